//! What the reservation commands of NVMe make of a state (Base 2.0, 7.2 to 7.5).

use super::change::{Change, Denied};
use super::command::{
    AcquireAction, Persistence, RegisterAction, ReleaseAction, ReservationCommand,
};
use super::state::{Outcome, Reservations, ReservingHost};
use crate::nvme::reservation::ReservationType;
use crate::nvme::{HostId, Status};

impl Reservations {
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
        if self.reserved_by.is_some() {
            return Err(Status::RESERVATION_CONFLICT.dnr());
        }
        let mut change = Change::by_host(self, host);
        change_by(&mut change, command).map_err(status_of)?;
        Ok(change.finish(self))
    }
}

fn status_of(denied: Denied) -> Status {
    let status = match denied {
        Denied::Conflict => Status::RESERVATION_CONFLICT,
        Denied::Full => Status::INTERNAL,
        Denied::NoKey | Denied::WrongType | Denied::CannotPersist => Status::INVALID_FIELD,
    };
    status.dnr()
}

fn change_by(change: &mut Change, command: &ReservationCommand) -> Result<(), Denied> {
    match *command {
        ReservationCommand::Register { action, current, new, ignore_existing, persistence } => {
            let check = (!ignore_existing).then_some(current);
            register(change, action, check, new)?;
            set_persistence(change, persistence)?;
            change.count();
        }
        ReservationCommand::Acquire { action, current, preempted, kind } => {
            change.authorise(current)?;
            if action == AcquireAction::Acquire {
                change.acquire(kind)?;
            } else {
                preempt(change, preempted, kind)?;
                change.count();
            }
            if action != AcquireAction::PreemptAndAbort {
                change.abort_nobody();
            }
        }
        ReservationCommand::Release { action: ReleaseAction::Release, current, rtype } => {
            change.authorise(current)?;
            change.release(|kind| kind.to_wire() == rtype)?;
        }
        ReservationCommand::Release { action: ReleaseAction::Clear, current, .. } => {
            change.authorise(current)?;
            change.clear();
            change.count();
        }
        ReservationCommand::Persist(on) => change.set_persistence(on)?,
    }
    Ok(())
}

fn set_persistence(change: &mut Change, persistence: Persistence) -> Result<(), Denied> {
    match persistence {
        Persistence::Keep => Ok(()),
        Persistence::Off => change.set_persistence(false),
        Persistence::On => change.set_persistence(true),
    }
}

/// `check`: the key that the host must have now, unless it is ignored.
fn register(
    change: &mut Change,
    action: RegisterAction,
    check: Option<u64>,
    new: u64,
) -> Result<(), Denied> {
    if action != RegisterAction::Unregister && new == 0 {
        return Err(Denied::NoKey);
    }
    let key = change.own().map(|own| own.key);
    match (action, key) {
        (RegisterAction::Register, Some(key)) if key != new => Err(Denied::Conflict),
        (RegisterAction::Register, _) => change.set_key(new),
        (RegisterAction::Replace, None) if check.is_none() => change.set_key(new),
        (RegisterAction::Replace | RegisterAction::Unregister, None) => Err(Denied::Conflict),
        (_, Some(key)) if check.is_some_and(|check| check != key) => Err(Denied::Conflict),
        (RegisterAction::Replace, _) => change.set_key(new),
        (RegisterAction::Unregister, _) => {
            change.unregister();
            Ok(())
        }
    }
}

fn preempt(change: &mut Change, key: u64, kind: ReservationType) -> Result<(), Denied> {
    if change.takes_reservation(key)? {
        change.take_reservation(key, kind);
        Ok(())
    } else {
        change.remove_by_key(key)
    }
}
