//! The state of one namespace's reservations, and what commands make of it (Base 2.0, 8.19).

use super::access::{AccessGroup, Rights, Role, rights};
use super::command::{
    AcquireAction, Persistence, RegisterAction, ReleaseAction, ReservationCommand,
};
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

/// A host that is registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registrant {
    /// HOSTID.
    pub id: HostId,
    /// HOSTNQN; `None`: a state that was kept without names. The first host with the identifier that registers
    /// again gives its name.
    pub name: Option<HostNqn>,
    /// The key that it has registered, not 0.
    pub key: u64,
}

impl Registrant {
    /// Whether it is this host.
    #[must_use]
    pub fn is(&self, host: &ReservingHost) -> bool {
        self.id == host.id && self.name.as_ref().is_none_or(|name| *name == host.name)
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

/// The registrations and the reservation of a namespace. The default has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reservations {
    /// GEN: counts changes of registrations, from 0 at the start of the target.
    pub generation: u32,
    /// The registrants, each with an identifier of its own, at most [`MAX_REGISTRANTS`].
    pub registrants: Vec<Registrant>,
    /// The reservation. Its holder is among the registrants.
    pub held: Option<Held>,
    /// They are to be there after a power loss (PTPLS).
    pub persists: bool,
    /// There is a place where they can be kept for that (RESCAP bit 0).
    pub can_persist: bool,
}

/// A registrant to tell something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// To all controllers of this host.
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
    /// Hosts whose commands for the namespace have to end before the command is answered.
    pub aborted: Vec<Registrant>,
}

impl Reservations {
    /// A place among the registrants.
    fn find(&self, host: &ReservingHost) -> Option<usize> {
        self.registrants.iter().position(|registrant| registrant.is(host))
    }

    /// Whether a registrant holds the reservation.
    #[must_use]
    pub fn holds(&self, registrant: &Registrant) -> bool {
        let held = self.held.as_ref();
        held.is_some_and(|held| held.kind.is_held_by_all() || held.holder == registrant.id)
    }

    /// What a host is to the reservation.
    #[must_use]
    pub fn role(&self, host: &ReservingHost) -> Role {
        match self.find(host).map(|place| &self.registrants[place]) {
            Some(registrant) if self.holds(registrant) => Role::Holder,
            Some(_) => Role::Registrant,
            None => Role::Stranger,
        }
    }

    /// What a host may do with the namespace.
    #[must_use]
    pub fn rights(&self, host: &ReservingHost) -> Rights {
        self.held.map_or(Rights::ALL, |held| rights(held.kind, self.role(host)))
    }

    /// Checks whether a command of this group may run for a host.
    ///
    /// # Errors
    /// Reservation Conflict, when it may not.
    pub fn admit(&self, host: &ReservingHost, group: AccessGroup) -> Result<(), Status> {
        if self.rights(host).allow(group) { Ok(()) } else { Err(conflict()) }
    }

    /// What a command of a host makes of this state.
    ///
    /// # Errors
    /// The status to complete the command with; the state stays as it is.
    pub fn apply(
        &self,
        host: &ReservingHost,
        command: &ReservationCommand,
    ) -> Result<Outcome, Status> {
        if host.id == HostId::default() {
            // It says that the host is the same as no other: there would be nobody to register.
            return Err(Status::COMMAND_SEQUENCE_ERROR.dnr());
        }
        let mut change = Change::new(self, host);
        match *command {
            ReservationCommand::Register { action, current, new, ignore_existing, persistence } => {
                let check = (!ignore_existing).then_some(current);
                change.register(action, check, new)?;
                change.set_persistence(persistence)?;
                change.count();
            }
            ReservationCommand::Acquire { action, current, preempted, kind } => {
                let own = change.authorised(current)?;
                if action == AcquireAction::Acquire {
                    change.acquire(own, kind)?;
                } else {
                    change.preempt(own, preempted, kind)?;
                    change.count();
                }
                if action != AcquireAction::PreemptAndAbort {
                    change.outcome.aborted.clear();
                }
            }
            ReservationCommand::Release { action: ReleaseAction::Release, current, rtype } => {
                let own = change.authorised(current)?;
                change.release(own, rtype)?;
            }
            ReservationCommand::Release { action: ReleaseAction::Clear, current, .. } => {
                change.authorised(current)?;
                change.clear();
                change.count();
            }
            ReservationCommand::Persist(on) => {
                change.set_persistence(if on { Persistence::On } else { Persistence::Off })?;
            }
        }
        Ok(change.finish(self))
    }
}

fn conflict() -> Status {
    Status::RESERVATION_CONFLICT.dnr()
}

/// A state that is being changed for a host.
struct Change<'a> {
    host: &'a ReservingHost,
    state: Reservations,
    outcome: Outcome,
}

impl<'a> Change<'a> {
    fn new(state: &Reservations, host: &'a ReservingHost) -> Self {
        Self { host, state: state.clone(), outcome: Outcome::default() }
    }

    fn finish(mut self, before: &Reservations) -> Outcome {
        debug_assert!(
            self.state.held.is_none_or(|held| {
                held.kind.is_held_by_all() && !self.state.registrants.is_empty()
                    || self.state.registrants.iter().any(|r| r.id == held.holder)
            }),
            "a reservation is held by a registrant"
        );
        self.outcome.next = (self.state != *before).then_some(self.state);
        self.outcome
    }

    /// Registrations have changed.
    fn count(&mut self) {
        self.state.generation = self.state.generation.wrapping_add(1);
    }

    /// The place of the host, which has to be registered with this key.
    fn authorised(&self, key: u64) -> Result<usize, Status> {
        let place = self.state.find(self.host);
        place.filter(|place| self.state.registrants[*place].key == key).ok_or(conflict())
    }

    fn tell(&mut self, to: HostId, kind: NoticeKind) {
        if to != self.host.id {
            self.outcome.notices.push(Notice { to, kind });
        }
    }

    /// Tells all registrants except the host itself.
    fn tell_all(&mut self, kind: NoticeKind) {
        let others: Vec<HostId> = self.state.registrants.iter().map(|r| r.id).collect();
        others.into_iter().for_each(|to| self.tell(to, kind));
    }

    fn set_persistence(&mut self, persistence: Persistence) -> Result<(), Status> {
        match persistence {
            Persistence::Keep => {}
            Persistence::Off => self.state.persists = false,
            Persistence::On if self.state.can_persist => self.state.persists = true,
            Persistence::On => return Err(Status::INVALID_FIELD.dnr()),
        }
        Ok(())
    }

    // -------------------------------------------------------------------------- register

    /// `check`: the key that the host must have now, unless it is ignored.
    fn register(
        &mut self,
        action: RegisterAction,
        check: Option<u64>,
        new: u64,
    ) -> Result<(), Status> {
        if action != RegisterAction::Unregister && new == 0 {
            return Err(Status::INVALID_FIELD.dnr());
        }
        let place = self.state.find(self.host);
        match (action, place) {
            (RegisterAction::Register, None) => self.add(new),
            (RegisterAction::Register, Some(place)) => {
                let registrant = &mut self.state.registrants[place];
                if registrant.key != new {
                    return Err(conflict());
                }
                registrant.name = Some(self.host.name.clone());
                Ok(())
            }
            (RegisterAction::Replace, None) if check.is_none() => self.add(new),
            (RegisterAction::Replace | RegisterAction::Unregister, None) => Err(conflict()),
            (_, Some(place)) => {
                let registrant = &mut self.state.registrants[place];
                if check.is_some_and(|key| key != registrant.key) {
                    return Err(conflict());
                }
                if action == RegisterAction::Unregister {
                    self.unregister(place);
                } else {
                    registrant.key = new;
                    registrant.name = Some(self.host.name.clone());
                }
                Ok(())
            }
        }
    }

    fn add(&mut self, key: u64) -> Result<(), Status> {
        // Another host uses the same identifier under another name: one of them is not who it says.
        if self.state.registrants.iter().any(|registrant| registrant.id == self.host.id) {
            return Err(conflict());
        }
        if self.state.registrants.len() >= MAX_REGISTRANTS {
            return Err(Status::INTERNAL.dnr());
        }
        let (id, name) = (self.host.id, Some(self.host.name.clone()));
        self.state.registrants.push(Registrant { id, name, key });
        Ok(())
    }

    /// The host gives its own registration up.
    fn unregister(&mut self, place: usize) {
        let gone = self.state.registrants.remove(place);
        let Some(held) = self.state.held else { return };
        let ends = if held.kind.is_held_by_all() {
            self.state.registrants.is_empty()
        } else {
            held.holder == gone.id
        };
        if ends {
            self.state.held = None;
            if held.kind.favours_registrants() {
                self.tell_all(NoticeKind::ReservationReleased);
            }
        }
    }

    // --------------------------------------------------------------------------- acquire

    fn acquire(&mut self, own: usize, kind: ReservationType) -> Result<(), Status> {
        let registrant = &self.state.registrants[own];
        match self.state.held {
            None => self.state.held = Some(Held { kind, holder: registrant.id }),
            Some(held) if held.kind == kind && self.state.holds(registrant) => {}
            Some(_) => return Err(conflict()),
        }
        Ok(())
    }

    fn preempt(&mut self, own: usize, key: u64, kind: ReservationType) -> Result<(), Status> {
        let own = self.state.registrants[own].id;
        let holder_key = |holder: HostId| {
            let mut registrants = self.state.registrants.iter();
            registrants.find(|registrant| registrant.id == holder).map(|r| r.key)
        };
        let takes = match self.state.held {
            Some(held) if held.kind.is_held_by_all() => key == 0,
            _ if key == 0 => return Err(Status::INVALID_FIELD.dnr()),
            Some(held) => holder_key(held.holder) == Some(key),
            None => false,
        };
        if !takes {
            return self.remove_by_key(key);
        }
        let before = self.state.held.map(|held| held.kind);
        // The new holder comes first, so that the namespace is reserved at every moment.
        self.state.held = Some(Held { kind, holder: own });
        self.remove(|registrant| registrant.id != own && (key == 0 || registrant.key == key));
        if before != Some(kind) {
            self.tell_all(NoticeKind::ReservationReleased);
        }
        Ok(())
    }

    /// Removes all registrants with this key; the reservation stays, unless they were the last that held it.
    fn remove_by_key(&mut self, key: u64) -> Result<(), Status> {
        if !self.state.registrants.iter().any(|registrant| registrant.key == key) {
            return Err(conflict());
        }
        self.remove(|registrant| registrant.key == key);
        if self.state.registrants.is_empty() {
            self.state.held = None;
        }
        Ok(())
    }

    fn remove(&mut self, is_removed: impl Fn(&Registrant) -> bool) {
        let registrants = std::mem::take(&mut self.state.registrants);
        let (gone, stay) = registrants.into_iter().partition(is_removed);
        self.state.registrants = stay;
        let gone: Vec<Registrant> = gone;
        for registrant in gone {
            self.tell(registrant.id, NoticeKind::RegistrationPreempted);
            if registrant.id != self.host.id {
                self.outcome.aborted.push(registrant);
            }
        }
    }

    // --------------------------------------------------------------------------- release

    fn release(&mut self, own: usize, rtype: u8) -> Result<(), Status> {
        let Some(held) = self.state.held else { return Ok(()) };
        if !self.state.holds(&self.state.registrants[own]) {
            return Ok(());
        }
        if held.kind.to_wire() != rtype {
            return Err(Status::INVALID_FIELD.dnr());
        }
        self.state.held = None;
        if held.kind.favours_registrants() {
            self.tell_all(NoticeKind::ReservationReleased);
        }
        Ok(())
    }

    fn clear(&mut self) {
        self.tell_all(NoticeKind::ReservationPreempted);
        self.state.held = None;
        self.state.registrants.clear();
    }
}
