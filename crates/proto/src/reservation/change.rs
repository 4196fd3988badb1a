//! What can be done to the reservations of a device, whichever protocol asks for it.
//!
//! NVMe and SPC share one model: registrants with keys, six types, preemption by key. Each protocol has its own commands
//! over these operations, its own checks before them, and its own answers for [`Denied`].

use super::access::Role;
use super::nexus::Nexus;
use super::state::{
    Held, MAX_REGISTRANTS, Notice, Outcome, Registrant, Reservations, ReservingHost, Who,
};
use crate::nvme::HostId;
use crate::nvme::reservation::{NoticeKind, ReservationType};

/// Why an operation is not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// The key is not the one that is registered, or somebody else holds the reservation.
    Conflict,
    /// There are [`MAX_REGISTRANTS`] already.
    Full,
    /// Key 0, which nobody has, was given where a key is needed.
    NoKey,
    /// The reservation is of another type than the one that is to be released.
    WrongType,
    /// There is no place where reservations could persist.
    CannotPersist,
}

/// A state that is being changed for a registrant, or for somebody who is to become one.
#[derive(Debug)]
pub struct Change {
    id: HostId,
    who: Who,
    state: Reservations,
    outcome: Outcome,
}

impl Change {
    /// For a host of NVMe.
    #[must_use]
    pub fn by_host(state: &Reservations, host: &ReservingHost) -> Self {
        Self::new(state, host.id, Who::Host(Some(host.name.clone())))
    }

    /// For an I_T nexus of iSCSI.
    #[must_use]
    pub fn by_nexus(state: &Reservations, nexus: &Nexus) -> Self {
        Self::new(state, nexus.host_id(), Who::Nexus(nexus.clone()))
    }

    fn new(state: &Reservations, id: HostId, who: Who) -> Self {
        Self { id, who, state: state.clone(), outcome: Outcome::default() }
    }

    /// What has become of the state.
    #[must_use]
    pub fn finish(mut self, before: &Reservations) -> Outcome {
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

    /// Registrations have changed, or a command says so.
    pub fn count(&mut self) {
        self.state.generation = self.state.generation.wrapping_add(1);
    }

    /// The registrant for whom the state is changed.
    #[must_use]
    pub fn own(&self) -> Option<&Registrant> {
        self.place().map(|place| &self.state.registrants[place])
    }

    fn place(&self) -> Option<usize> {
        self.state.find(self.id, &self.who)
    }

    /// Checks that it is registered with this key.
    ///
    /// # Errors
    /// Conflict, if it is not.
    pub fn authorise(&self, key: u64) -> Result<(), Denied> {
        let own = self.own().filter(|own| own.key == key);
        own.map(drop).ok_or(Denied::Conflict)
    }

    /// Sets whether the state persists through a power loss.
    ///
    /// # Errors
    /// When it is to, and there is no place for it.
    pub fn set_persistence(&mut self, persists: bool) -> Result<(), Denied> {
        if persists && !self.state.can_persist {
            return Err(Denied::CannotPersist);
        }
        self.state.persists = persists;
        Ok(())
    }

    fn tell(&mut self, to: HostId, kind: NoticeKind) {
        if to != self.id {
            self.outcome.notices.push(Notice { to, kind });
        }
    }

    /// Tells all registrants except its own.
    fn tell_all(&mut self, kind: NoticeKind) {
        let others: Vec<HostId> = self.state.registrants.iter().map(|r| r.id).collect();
        others.into_iter().for_each(|to| self.tell(to, kind));
    }

    // -------------------------------------------------------------------------- register

    /// Registers a key, not 0, or puts it into the place of the one that is registered.
    ///
    /// # Errors
    /// Conflict, if somebody else is registered under the same identifier; Full.
    pub fn set_key(&mut self, key: u64) -> Result<(), Denied> {
        if let Some(place) = self.place() {
            let registrant = &mut self.state.registrants[place];
            (registrant.key, registrant.who) = (key, self.who.clone());
            return Ok(());
        }
        // Another one uses the same identifier under another name: one of them is not who it says.
        if self.state.registrants.iter().any(|registrant| registrant.id == self.id) {
            return Err(Denied::Conflict);
        }
        if self.state.registrants.len() >= MAX_REGISTRANTS {
            return Err(Denied::Full);
        }
        self.state.registrants.push(Registrant { id: self.id, who: self.who.clone(), key });
        Ok(())
    }

    /// Gives its own registration up, if it has any, and with it the reservation that it alone holds.
    pub fn unregister(&mut self) {
        let Some(place) = self.place() else { return };
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

    /// Makes the reservation its own.
    ///
    /// # Errors
    /// Conflict, if there is another one.
    pub fn acquire(&mut self, kind: ReservationType) -> Result<(), Denied> {
        let Some(own) = self.own() else { return Err(Denied::Conflict) };
        match self.state.held {
            None => self.state.held = Some(Held { kind, holder: self.id }),
            Some(held) if held.kind == kind && self.state.holds(own) => {}
            Some(_) => return Err(Denied::Conflict),
        }
        Ok(())
    }

    /// Whether preempting this key takes the reservation, and not registrations alone.
    ///
    /// # Errors
    /// The key is 0, which preempts only where all registrants hold the reservation.
    pub fn takes_reservation(&self, key: u64) -> Result<bool, Denied> {
        let is_holders = |held: Held| {
            let mut registrants = self.state.registrants.iter();
            registrants.any(|registrant| registrant.id == held.holder && registrant.key == key)
        };
        match self.state.held {
            Some(held) if held.kind.is_held_by_all() => Ok(key == 0),
            _ if key == 0 => Err(Denied::NoKey),
            Some(held) => Ok(is_holders(held)),
            None => Ok(false),
        }
    }

    /// The reservation becomes its own; all others with the key, or all others for key 0, lose their registrations.
    pub fn take_reservation(&mut self, key: u64, kind: ReservationType) {
        let before = self.state.held.map(|held| held.kind);
        let own = self.id;
        // The new holder comes first, so that the device is reserved at every moment.
        self.state.held = Some(Held { kind, holder: own });
        self.remove(|registrant| registrant.id != own && (key == 0 || registrant.key == key));
        if before != Some(kind) {
            // Who was removed was told so already.
            self.tell_all(NoticeKind::ReservationReleased);
        }
    }

    /// Removes all registrants with this key; the reservation stays, unless they were the last that held it.
    ///
    /// # Errors
    /// Conflict, if there are none.
    pub fn remove_by_key(&mut self, key: u64) -> Result<(), Denied> {
        if !self.state.registrants.iter().any(|registrant| registrant.key == key) {
            return Err(Denied::Conflict);
        }
        self.remove(|registrant| registrant.key == key);
        if self.state.registrants.is_empty() {
            self.state.held = None;
        }
        Ok(())
    }

    fn remove(&mut self, is_removed: impl Fn(&Registrant) -> bool) {
        let registrants = std::mem::take(&mut self.state.registrants);
        let (gone, stay): (Vec<_>, Vec<_>) = registrants.into_iter().partition(is_removed);
        self.state.registrants = stay;
        for registrant in gone {
            self.tell(registrant.id, NoticeKind::RegistrationPreempted);
            if registrant.id != self.id {
                self.outcome.aborted.push(registrant);
            }
        }
    }

    /// Commands of those who were preempted need not end.
    pub fn abort_nobody(&mut self) {
        self.outcome.aborted.clear();
    }

    // --------------------------------------------------------------------------- release

    /// Gives the reservation up, if it holds it and `is_type` is true of it.
    ///
    /// # Errors
    /// The reservation is of another type.
    pub fn release(&mut self, is_type: impl FnOnce(ReservationType) -> bool) -> Result<(), Denied> {
        let (Some(held), Some(own)) = (self.state.held, self.own()) else { return Ok(()) };
        if !self.state.holds(own) {
            return Ok(());
        }
        if !is_type(held.kind) {
            return Err(Denied::WrongType);
        }
        self.state.held = None;
        if held.kind.favours_registrants() {
            self.tell_all(NoticeKind::ReservationReleased);
        }
        Ok(())
    }

    /// Ends the reservation and all registrations.
    pub fn clear(&mut self) {
        self.tell_all(NoticeKind::ReservationPreempted);
        self.state.held = None;
        self.state.registrants.clear();
    }

    // ------------------------------------------------------------- Reserve and Release of SPC-2

    /// Gives the whole device to the I_T nexus.
    ///
    /// # Errors
    /// Conflict, if somebody is registered, or another I_T nexus has it.
    pub fn reserve_whole(&mut self, nexus: &Nexus) -> Result<(), Denied> {
        if self.has_it_already(nexus) {
            return Ok(());
        }
        let is_others = self.state.reserved_by.as_ref().is_some_and(|by| by != nexus);
        if is_others || !self.state.registrants.is_empty() {
            return Err(Denied::Conflict);
        }
        self.state.reserved_by = Some(nexus.clone());
        Ok(())
    }

    /// Takes the whole device from the I_T nexus, if it has it.
    ///
    /// # Errors
    /// Conflict, if somebody is registered.
    pub fn release_whole(&mut self, nexus: &Nexus) -> Result<(), Denied> {
        if self.has_it_already(nexus) {
            return Ok(());
        }
        if !self.state.registrants.is_empty() {
            return Err(Denied::Conflict);
        }
        if self.state.reserved_by.as_ref() == Some(nexus) {
            self.state.reserved_by = None;
        }
        Ok(())
    }

    /// Whether Reserve and Release of the I_T nexus succeed without effect, because a persistent reservation gives it
    /// what it asks for (SPC-4, 5.13.3, CRH).
    fn has_it_already(&self, nexus: &Nexus) -> bool {
        match (&self.state.held, self.state.role_of_nexus(nexus)) {
            (Some(_), Role::Holder) => true,
            (Some(held), Role::Registrant) => held.kind.favours_registrants(),
            _ => false,
        }
    }
}
