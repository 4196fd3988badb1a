//! The reservations of one device: one registry for the hosts of NVMe and the I_T nexuses of iSCSI (Base 2.0, 8.19;
//! SPC-5, 5.14).

use super::access::{AccessGroup, Rights, Role, rights};
use super::nexus::Nexus;
use crate::nvme::reservation::{NoticeKind, ReservationType};
use crate::nvme::{HostId, HostNqn, Status};

/// Most registrants of a namespace: as many as a report of the smallest MDTS, 8 KiB, has room for.
pub const MAX_REGISTRANTS: usize = (8192 - 64) / 64;

/// A host that sends commands: the identity that its controllers have from Connect.
///
/// The host identifier alone would let a host use the registration of another one, whose identifier is no secret.
/// So the name, which a host may have to prove, belongs to the identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservingHost {
    /// HOSTID.
    pub id: HostId,
    /// HOSTNQN.
    pub name: HostNqn,
}

/// Who is registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Who {
    /// A host of NVMe, with its HOSTNQN; `None`: a state that was kept without names. The first host with the identifier
    /// that registers again gives its name.
    Host(Option<HostNqn>),
    /// An I_T nexus of iSCSI.
    Nexus(Nexus),
}

impl Who {
    /// Whether a registrant of this description, with the same host identifier, is `other`.
    fn is(&self, other: &Self) -> bool {
        self == other || matches!((self, other), (Self::Host(None), Self::Host(_)))
    }
}

/// A host or an I_T nexus that is registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registrant {
    /// HOSTID; that of an I_T nexus is derived of its names ([`Nexus::host_id`]).
    pub id: HostId,
    /// Who it is. The identifier alone says it of nobody.
    pub who: Who,
    /// The key that it has registered, not 0.
    pub key: u64,
}

impl Registrant {
    /// A host of NVMe.
    #[must_use]
    pub fn host(id: HostId, name: Option<HostNqn>, key: u64) -> Self {
        Self { id, who: Who::Host(name), key }
    }

    /// An I_T nexus of iSCSI.
    #[must_use]
    pub fn nexus(nexus: Nexus, key: u64) -> Self {
        Self { id: nexus.host_id(), who: Who::Nexus(nexus), key }
    }

    /// Whether it is this host.
    #[must_use]
    pub fn is(&self, host: &ReservingHost) -> bool {
        self.id == host.id
            && match &self.who {
                Who::Host(name) => name.as_ref().is_none_or(|name| *name == host.name),
                Who::Nexus(_) => false,
            }
    }

    /// The I_T nexus that it is; `None`: it is a host of NVMe.
    #[must_use]
    pub fn as_nexus(&self) -> Option<&Nexus> {
        match &self.who {
            Who::Nexus(nexus) => Some(nexus),
            Who::Host(_) => None,
        }
    }

    /// Whether it is the same one, whatever the keys.
    pub(super) fn is_same(&self, id: HostId, who: &Who) -> bool {
        self.id == id && self.who.is(who)
    }
}

/// A reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Its type.
    pub kind: ReservationType,
    /// The registrant that holds it. Without meaning where all registrants do.
    pub holder: HostId,
}

/// The registrations and the reservation of a device. The default has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reservations {
    /// GEN, PRGENERATION: counts changes of registrations, from 0 at the start of the target.
    pub generation: u32,
    /// The registrants, each with an identifier of its own, at most [`MAX_REGISTRANTS`].
    pub registrants: Vec<Registrant>,
    /// The reservation. Its holder is among the registrants.
    pub held: Option<Held>,
    /// They are to be there after a power loss (PTPLS, PTPL_A).
    pub persists: bool,
    /// There is a place where they can be kept for that (RESCAP bit 0, PTPL_C).
    pub can_persist: bool,
    /// The I_T nexus that holds the whole device by Reserve (SPC-2, 5.5). It keeps all hosts and all other I_T nexuses
    /// out, and does not survive the I_T nexus, a reset or a restart.
    pub reserved_by: Option<Nexus>,
}

/// A registrant to tell something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// To all controllers of the host, or to the I_T nexus, of this identifier.
    pub to: HostId,
    /// What has happened.
    pub kind: NoticeKind,
}

/// What a command makes of a state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The new state; `None`: the old one stays.
    pub next: Option<Reservations>,
    /// Whom to tell once the new state shows.
    pub notices: Vec<Notice>,
    /// Whose commands for the device have to end before the command is answered.
    pub aborted: Vec<Registrant>,
}

impl Reservations {
    /// A place among the registrants.
    pub(super) fn find(&self, id: HostId, who: &Who) -> Option<usize> {
        self.registrants.iter().position(|registrant| registrant.is_same(id, who))
    }

    /// Whether a registrant holds the reservation.
    #[must_use]
    pub fn holds(&self, registrant: &Registrant) -> bool {
        let held = self.held.as_ref();
        held.is_some_and(|held| held.kind.is_held_by_all() || held.holder == registrant.id)
    }

    fn role_of(&self, registrant: Option<&Registrant>) -> Role {
        match registrant {
            Some(registrant) if self.holds(registrant) => Role::Holder,
            Some(_) => Role::Registrant,
            None => Role::Stranger,
        }
    }

    /// What a host is to the reservation.
    #[must_use]
    pub fn role(&self, host: &ReservingHost) -> Role {
        self.role_of(self.registrants.iter().find(|registrant| registrant.is(host)))
    }

    /// What an I_T nexus is to the reservation.
    #[must_use]
    pub fn role_of_nexus(&self, nexus: &Nexus) -> Role {
        self.role_of(
            self.registrants.iter().find(|registrant| registrant.as_nexus() == Some(nexus)),
        )
    }

    /// What a host may do with the device.
    #[must_use]
    pub fn rights(&self, host: &ReservingHost) -> Rights {
        if self.reserved_by.is_some() {
            return Rights::NONE;
        }
        self.held.map_or(Rights::ALL, |held| rights(held.kind, self.role(host)))
    }

    /// What the persistent reservation leaves to an I_T nexus.
    #[must_use]
    pub fn rights_of_nexus(&self, nexus: &Nexus) -> Rights {
        self.held.map_or(Rights::ALL, |held| rights(held.kind, self.role_of_nexus(nexus)))
    }

    /// Checks whether a command of this group may run for a host.
    ///
    /// # Errors
    /// Reservation Conflict, when it may not.
    pub fn admit(&self, host: &ReservingHost, group: AccessGroup) -> Result<(), Status> {
        if self.rights(host).allow(group) {
            Ok(())
        } else {
            Err(Status::RESERVATION_CONFLICT.dnr())
        }
    }

    /// Whether there is nothing to know of it: nobody is registered, and nobody holds the device.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.registrants.is_empty() && self.reserved_by.is_none()
    }
}
