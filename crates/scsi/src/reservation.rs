//! Persistent reservations and the older Reserve and Release: who is registered, who holds the logical unit, what
//! each I_T nexus may do (SPC-5, 5.14; SPC-2, 5.5).
//!
//! # One device, two protocols
//!
//! The six types and what they leave to whom are those of NVMe ([`raceline_proto::reservation`]), and are used from
//! there. The registry is another one, because a registrant is an I_T nexus, which has no host identifier, and because
//! the rules for keys, for actions and for whom to tell differ. So two rules hold where one device is exported by both
//! protocols, and [`Foreign`] is how the integrator keeps them:
//!
//! 1. Who is registered by one protocol keeps the other one from registering anybody (RESERVATION CONFLICT).
//! 2. A reservation that is held by one protocol treats all of the other protocol as not registered.

mod parameters;
mod report;
mod state;
mod types;

pub use parameters::ReserveOutParameters;
pub use report::transport_id;
pub use state::{Held, MAX_REGISTRANTS, Registrant, Reservations, Told};
pub use types::{type_from_wire, type_to_wire};

use raceline_proto::nvme::reservation::ReservationType;
use raceline_proto::reservation::{AccessGroup, Rights, Role, rights};

use crate::lun::Port;

/// An I_T nexus: an initiator port and a target port. It is the same one after a new login with the same names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Nexus {
    /// The initiator's name in its normal form (lower case), at most 223 bytes.
    pub initiator: String,
    /// ISID of the session.
    pub isid: [u8; 6],
    /// The target port.
    pub port: Port,
}

/// What the other protocol's registry of the same device says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Foreign {
    /// It has registrants.
    pub has_registrants: bool,
    /// The type of the reservation that one of them holds.
    pub held: Option<ReservationType>,
}

impl From<&raceline_proto::reservation::Reservations> for Foreign {
    fn from(nvme: &raceline_proto::reservation::Reservations) -> Self {
        Self {
            has_registrants: !nvme.registrants.is_empty(),
            held: nvme.held.map(|held| held.kind),
        }
    }
}

/// What an I_T nexus may do with a logical unit. It is made when the state of the reservations changes and costs a
/// command one comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// What persistent reservations leave.
    pub rights: Rights,
    /// Another I_T nexus holds the logical unit by Reserve.
    pub reserved_by_other: bool,
    /// Some I_T nexus does, maybe this one.
    pub reserved: bool,
}

impl Admission {
    /// Everything: there is no reservation.
    pub const ALL: Self = Self { rights: Rights::ALL, reserved_by_other: false, reserved: false };

    /// Whether a command may run: `None` are commands that always may.
    #[must_use]
    pub fn admits(self, group: Option<AccessGroup>) -> bool {
        group.is_none_or(|group| !self.reserved_by_other && self.rights.allow(group))
    }
}

/// Both at once.
fn both(one: Rights, other: Rights) -> Rights {
    Rights { reads: one.reads && other.reads, writes: one.writes && other.writes }
}

impl Reservations {
    /// What the other protocol has to know of this registry. A logical unit that an I_T nexus holds by Reserve is
    /// closed to it.
    #[must_use]
    pub fn as_foreign(&self) -> Foreign {
        let held = self.held.as_ref().map(|held| held.kind);
        let reserved = self.reserved_by.as_ref().map(|_| ReservationType::ExclusiveAccess);
        Foreign {
            has_registrants: !self.registrants.is_empty() || self.reserved_by.is_some(),
            held: held.or(reserved),
        }
    }

    /// What an I_T nexus may do.
    #[must_use]
    pub fn admission(&self, nexus: &Nexus) -> Admission {
        let own =
            self.held.as_ref().map_or(Rights::ALL, |held| rights(held.kind, self.role(nexus)));
        let foreign = self.foreign.held.map_or(Rights::ALL, |kind| rights(kind, Role::Stranger));
        Admission {
            rights: both(own, foreign),
            reserved_by_other: self.reserved_by.as_ref().is_some_and(|by| by != nexus),
            reserved: self.reserved_by.is_some(),
        }
    }
}
