//! What Persistent Reserve Out, Reserve and Release make of the reservations of a logical unit (SPC-5, 5.14; SPC-2, 5.5).

use raceline_proto::nvme::reservation::ReservationType;
use raceline_proto::reservation::{self as registry, Denied, Outcome, Reservations};

use super::types::{type_from_wire, type_to_wire};
use super::{Nexus, ReserveOutParameters};
use crate::cdb::{ReserveOut, ReserveOutAction};
use crate::sense::{FieldPointer, Sense};
use crate::status::Refusal;

/// Executes Persistent Reserve Out.
pub(crate) fn reserve_out(
    state: &Reservations,
    nexus: &Nexus,
    command: &ReserveOut,
    parameters: &ReserveOutParameters,
) -> Result<Outcome, Refusal> {
    if state.reserved_by.is_some() {
        return Err(Refusal::Conflict);
    }
    let mut change = registry::Change::by_nexus(state, nexus);
    let ReserveOutParameters { key, action_key, persist } = *parameters;
    match command.action {
        ReserveOutAction::Register => register(&mut change, Some(key), action_key, persist)?,
        ReserveOutAction::RegisterAndIgnore => register(&mut change, None, action_key, persist)?,
        ReserveOutAction::Reserve => {
            let kind = kind_of(command)?;
            change.authorise(key).map_err(refusal)?;
            change.acquire(kind).map_err(refusal)?;
        }
        ReserveOutAction::Release => {
            change.authorise(key).map_err(refusal)?;
            let is_type = |kind| command.scope_and_type == type_to_wire(kind);
            change.release(is_type).map_err(refusal)?;
        }
        ReserveOutAction::Clear => {
            change.authorise(key).map_err(refusal)?;
            change.clear();
            change.count();
        }
        ReserveOutAction::Preempt | ReserveOutAction::PreemptAndAbort => {
            change.authorise(key).map_err(refusal)?;
            if change.takes_reservation(action_key).map_err(refusal)? {
                change.take_reservation(action_key, kind_of(command)?);
            } else {
                change.remove_by_key(action_key).map_err(refusal)?;
            }
            change.count();
            if command.action == ReserveOutAction::Preempt {
                change.abort_nobody();
            }
        }
    }
    Ok(change.finish(state))
}

/// Executes Reserve (6) or (10): the whole logical unit for the I_T nexus (SPC-2, 5.5.1; SPC-4, 5.13.3 for CRH).
pub(crate) fn reserve(state: &Reservations, nexus: &Nexus) -> Result<Outcome, Refusal> {
    let mut change = registry::Change::by_nexus(state, nexus);
    change.reserve_whole(nexus).map_err(refusal)?;
    Ok(change.finish(state))
}

/// Executes Release (6) or (10): without effect for who does not hold the logical unit.
pub(crate) fn release(state: &Reservations, nexus: &Nexus) -> Result<Outcome, Refusal> {
    let mut change = registry::Change::by_nexus(state, nexus);
    change.release_whole(nexus).map_err(refusal)?;
    Ok(change.finish(state))
}

/// `check`: the key that the I_T nexus must have now, 0 if none; `None`: it is ignored.
fn register(
    change: &mut registry::Change,
    check: Option<u64>,
    new: u64,
    persist: bool,
) -> Result<(), Refusal> {
    let own = change.own().map(|own| own.key);
    if own.is_none() && new == 0 {
        // Nothing to give up.
        let is_right = check.is_none_or(|key| key == 0);
        return if is_right { Ok(()) } else { Err(Refusal::Conflict) };
    }
    // What follows may still refuse: the state is dropped then.
    change.set_persistence(persist).map_err(refusal)?;
    if check.is_some_and(|key| key != own.unwrap_or(0)) {
        return Err(Refusal::Conflict);
    }
    if new == 0 {
        change.unregister();
    } else {
        change.set_key(new).map_err(refusal)?;
    }
    change.count();
    Ok(())
}

/// SCOPE, which is the logical unit, and TYPE.
fn kind_of(command: &ReserveOut) -> Result<ReservationType, Refusal> {
    if command.scope_and_type >> 4 != 0 {
        return Err(Sense::bad_cdb_bit(2, 7).into());
    }
    type_from_wire(command.scope_and_type & 0x0f).ok_or(Sense::bad_cdb_bit(2, 3).into())
}

fn refusal(denied: Denied) -> Refusal {
    match denied {
        Denied::Conflict => Refusal::Conflict,
        Denied::Full => Sense::NO_REGISTRATION_RESOURCES.into(),
        Denied::NoKey => Sense::bad_parameter(8).into(),
        Denied::WrongType => Sense::INVALID_RELEASE.into(),
        Denied::CannotPersist => {
            let field = FieldPointer { in_cdb: false, bit: Some(0), byte: 20 };
            Sense::INVALID_FIELD_IN_PARAMETERS.at(field).into()
        }
    }
}
