//! The state of one logical unit's reservations, and what commands make of it (SPC-5, 5.14).

use raceline_proto::nvme::reservation::ReservationType;
use raceline_proto::reservation::Role;

use super::types::{type_from_wire, type_to_wire};
use super::{Foreign, Nexus, ReserveOutParameters};
use crate::cdb::{ReserveOut, ReserveOutAction};
use crate::sense::{FieldPointer, Sense};
use crate::status::Refusal;
use crate::unit_attention::UnitAttention;

/// Most registrants of a logical unit: READ KEYS of all of them fits into 1 KiB.
pub const MAX_REGISTRANTS: usize = 127;

/// An I_T nexus that is registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registrant {
    /// Who it is.
    pub nexus: Nexus,
    /// The key that it has registered, not 0.
    pub key: u64,
}

/// A persistent reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Its type.
    pub kind: ReservationType,
    /// The registrant that holds it. Without meaning where all registrants do.
    pub holder: Nexus,
}

/// The registrations and reservations of a logical unit. The default has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reservations {
    /// PRGENERATION: counts changes of registrations, from 0 at the start of the target.
    pub generation: u32,
    /// The registrants, each an I_T nexus of its own, at most [`MAX_REGISTRANTS`].
    pub registrants: Vec<Registrant>,
    /// The persistent reservation. Its holder is among the registrants.
    pub held: Option<Held>,
    /// They are to be there after a power loss (PTPL_A).
    pub persists: bool,
    /// There is a place where they can be kept for that (PTPL_C).
    pub can_persist: bool,
    /// Who holds the logical unit by Reserve (SPC-2). It does not survive the I_T nexus, a reset or a restart.
    pub reserved_by: Option<Nexus>,
    /// What the other protocol's registry of the same device says.
    pub foreign: Foreign,
}

/// An I_T nexus to tell something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// Whom. Nexuses that are not logged in now need not be told: their sets are gone.
    pub nexus: Nexus,
    /// What.
    pub attention: UnitAttention,
}

/// What a command makes of a state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changed {
    pub(crate) told: Vec<Told>,
    pub(crate) aborted: Vec<Nexus>,
}

impl Reservations {
    fn find(&self, nexus: &Nexus) -> Option<usize> {
        self.registrants.iter().position(|registrant| registrant.nexus == *nexus)
    }

    /// Whether a registrant holds the reservation.
    #[must_use]
    pub fn holds(&self, registrant: &Registrant) -> bool {
        let held = self.held.as_ref();
        held.is_some_and(|held| held.kind.is_held_by_all() || held.holder == registrant.nexus)
    }

    /// What an I_T nexus is to the reservation.
    #[must_use]
    pub fn role(&self, nexus: &Nexus) -> Role {
        match self.find(nexus).map(|place| &self.registrants[place]) {
            Some(registrant) if self.holds(registrant) => Role::Holder,
            Some(_) => Role::Registrant,
            None => Role::Stranger,
        }
    }

    /// Executes Persistent Reserve Out. `self` is a copy of the state that is dropped on errors.
    pub(crate) fn reserve_out(
        &mut self,
        nexus: &Nexus,
        command: &ReserveOut,
        parameters: &ReserveOutParameters,
    ) -> Result<Changed, Refusal> {
        if self.reserved_by.is_some() {
            return Err(Refusal::Conflict);
        }
        let mut change = Change { nexus, state: self, changed: Changed::default() };
        let ReserveOutParameters { key, action_key, persist } = *parameters;
        match command.action {
            ReserveOutAction::Register => change.register(Some(key), action_key, persist)?,
            ReserveOutAction::RegisterAndIgnore => change.register(None, action_key, persist)?,
            ReserveOutAction::Reserve => {
                let kind = kind_of(command)?;
                change.authorised(key)?;
                change.reserve(kind)?;
            }
            ReserveOutAction::Release => {
                let place = change.authorised(key)?;
                change.release(place, command.scope_and_type)?;
            }
            ReserveOutAction::Clear => {
                change.authorised(key)?;
                change.clear();
            }
            ReserveOutAction::Preempt => {
                change.authorised(key)?;
                change.preempt(action_key, command)?;
                change.changed.aborted.clear();
            }
            ReserveOutAction::PreemptAndAbort => {
                change.authorised(key)?;
                change.preempt(action_key, command)?;
            }
        }
        let changed = change.changed;
        debug_assert!(self.is_consistent(), "a reservation is held by a registrant");
        Ok(changed)
    }

    fn is_consistent(&self) -> bool {
        let held = self.held.as_ref();
        held.is_none_or(|held| {
            !self.registrants.is_empty()
                && (held.kind.is_held_by_all() || self.find(&held.holder).is_some())
        })
    }

    /// Executes Reserve (6) or (10): the whole logical unit for the I_T nexus (SPC-2, 5.5.1; SPC-4, 5.13.3 for CRH).
    pub(crate) fn reserve(&mut self, nexus: &Nexus) -> Result<(), Refusal> {
        if self.has_it_already(nexus) {
            return Ok(());
        }
        if !self.registrants.is_empty() || self.foreign.has_registrants {
            return Err(Refusal::Conflict);
        }
        match &self.reserved_by {
            Some(by) if by != nexus => Err(Refusal::Conflict),
            _ => {
                self.reserved_by = Some(nexus.clone());
                Ok(())
            }
        }
    }

    /// Executes Release (6) or (10): without effect for who does not hold the logical unit.
    pub(crate) fn release(&mut self, nexus: &Nexus) -> Result<(), Refusal> {
        if self.has_it_already(nexus) {
            return Ok(());
        }
        if !self.registrants.is_empty() {
            return Err(Refusal::Conflict);
        }
        if self.reserved_by.as_ref() == Some(nexus) {
            self.reserved_by = None;
        }
        Ok(())
    }

    /// Whether Reserve and Release of the I_T nexus succeed without effect, because a persistent reservation gives it
    /// what it asks for (CRH).
    fn has_it_already(&self, nexus: &Nexus) -> bool {
        match (&self.held, self.role(nexus)) {
            (Some(_), Role::Holder) => true,
            (Some(held), Role::Registrant) => held.kind.favours_registrants(),
            _ => false,
        }
    }
}

/// SCOPE, which is the logical unit, and TYPE.
fn kind_of(command: &ReserveOut) -> Result<ReservationType, Refusal> {
    if command.scope_and_type >> 4 != 0 {
        return Err(Sense::bad_cdb_bit(2, 7).into());
    }
    type_from_wire(command.scope_and_type & 0x0f).ok_or(Sense::bad_cdb_bit(2, 3).into())
}

/// A state that is being changed for an I_T nexus.
struct Change<'a> {
    nexus: &'a Nexus,
    state: &'a mut Reservations,
    changed: Changed,
}

impl Change<'_> {
    /// Registrations have changed.
    fn count(&mut self) {
        self.state.generation = self.state.generation.wrapping_add(1);
    }

    /// The place of the I_T nexus, which has to be registered with this key.
    fn authorised(&self, key: u64) -> Result<usize, Refusal> {
        let place = self.state.find(self.nexus);
        place.filter(|place| self.state.registrants[*place].key == key).ok_or(Refusal::Conflict)
    }

    fn tell(&mut self, nexus: &Nexus, attention: UnitAttention) {
        if nexus != self.nexus {
            self.changed.told.push(Told { nexus: nexus.clone(), attention });
        }
    }

    /// Tells all registrants except the I_T nexus itself.
    fn tell_all(&mut self, attention: UnitAttention) {
        let others = self.state.registrants.iter().filter(|other| other.nexus != *self.nexus);
        let told = others.map(|other| Told { nexus: other.nexus.clone(), attention });
        self.changed.told.extend(told);
    }

    // -------------------------------------------------------------------------- register

    /// `check`: the key that the I_T nexus must have now, 0 if none; `None`: it is ignored.
    fn register(&mut self, check: Option<u64>, new: u64, persist: bool) -> Result<(), Refusal> {
        if persist && !self.state.can_persist {
            let field = FieldPointer { in_cdb: false, bit: Some(0), byte: 20 };
            return Err(Sense::INVALID_FIELD_IN_PARAMETERS.at(field).into());
        }
        let place = self.state.find(self.nexus);
        let current = place.map_or(0, |place| self.state.registrants[place].key);
        if check.is_some_and(|key| key != current) {
            return Err(Refusal::Conflict);
        }
        match place {
            None if new == 0 => return Ok(()), // nothing to give up
            None => self.add(new)?,
            Some(place) if new == 0 => self.unregister(place),
            Some(place) => self.state.registrants[place].key = new,
        }
        self.state.persists = persist;
        self.count();
        Ok(())
    }

    fn add(&mut self, key: u64) -> Result<(), Refusal> {
        if self.state.foreign.has_registrants {
            return Err(Refusal::Conflict);
        }
        if self.state.registrants.len() >= MAX_REGISTRANTS {
            return Err(Sense::NO_REGISTRATION_RESOURCES.into());
        }
        self.state.registrants.push(Registrant { nexus: self.nexus.clone(), key });
        Ok(())
    }

    /// The I_T nexus gives its own registration up.
    fn unregister(&mut self, place: usize) {
        let gone = self.state.registrants.remove(place);
        let Some(held) = &self.state.held else { return };
        let (ends, favours) = if held.kind.is_held_by_all() {
            (self.state.registrants.is_empty(), false)
        } else {
            (held.holder == gone.nexus, held.kind.favours_registrants())
        };
        if ends {
            self.state.held = None;
            if favours {
                self.tell_all(UnitAttention::ReservationsReleased);
            }
        }
    }

    // --------------------------------------------------------------------------- reserve

    fn reserve(&mut self, kind: ReservationType) -> Result<(), Refusal> {
        match &self.state.held {
            None => self.state.held = Some(Held { kind, holder: self.nexus.clone() }),
            Some(held) if held.kind == kind && self.state.role(self.nexus) == Role::Holder => {}
            Some(_) => return Err(Refusal::Conflict),
        }
        Ok(())
    }

    fn preempt(&mut self, key: u64, command: &ReserveOut) -> Result<(), Refusal> {
        let holder_key = |holder: &Nexus| {
            let mut registrants = self.state.registrants.iter();
            registrants.find(|registrant| registrant.nexus == *holder).map(|r| r.key)
        };
        let takes = match &self.state.held {
            Some(held) if held.kind.is_held_by_all() => key == 0,
            _ if key == 0 => return Err(Sense::bad_parameter(8).into()),
            Some(held) => holder_key(&held.holder) == Some(key),
            None => false,
        };
        if takes {
            self.take_over(key, kind_of(command)?)
        } else {
            self.remove_by_key(key)?
        }
        self.count();
        Ok(())
    }

    /// The reservation becomes that of the I_T nexus; registrants with the key, or all for key 0, lose theirs.
    fn take_over(&mut self, key: u64, kind: ReservationType) {
        let before = self.state.held.as_ref().map(|held| held.kind);
        let own = self.nexus.clone();
        self.state.held = Some(Held { kind, holder: own.clone() });
        self.remove(|registrant| registrant.nexus != own && (key == 0 || registrant.key == key));
        if before != Some(kind) {
            // who was removed was told so already
            self.tell_all(UnitAttention::ReservationsReleased);
        }
    }

    /// Removes all registrants with this key; the reservation stays, unless they were the last that held it.
    fn remove_by_key(&mut self, key: u64) -> Result<(), Refusal> {
        if !self.state.registrants.iter().any(|registrant| registrant.key == key) {
            return Err(Refusal::Conflict);
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
            self.tell(&registrant.nexus, UnitAttention::RegistrationsPreempted);
            if registrant.nexus != *self.nexus {
                self.changed.aborted.push(registrant.nexus);
            }
        }
    }

    // --------------------------------------------------------------------------- release

    fn release(&mut self, place: usize, scope_and_type: u8) -> Result<(), Refusal> {
        let Some(held) = &self.state.held else { return Ok(()) };
        if !self.state.holds(&self.state.registrants[place]) {
            return Ok(());
        }
        let kind = held.kind;
        if scope_and_type != type_to_wire(kind) {
            return Err(Sense::INVALID_RELEASE.into());
        }
        self.state.held = None;
        if kind.favours_registrants() {
            self.tell_all(UnitAttention::ReservationsReleased);
        }
        Ok(())
    }

    fn clear(&mut self) {
        self.tell_all(UnitAttention::ReservationsPreempted);
        self.state.held = None;
        self.state.registrants.clear();
        self.count();
    }
}
