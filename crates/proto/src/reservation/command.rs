//! The commands that change reservations, read from their words and data (Base 2.0, 7.2 to 7.5).

use zerocopy::FromBytes;

use crate::nvme::opcode::io;
use crate::nvme::reservation::{
    ACTION, IGNORE_EXISTING_KEY, ReservationKey, ReservationKeys, ReservationType,
};
use crate::nvme::{Sqe, Status};

/// A command that can be applied to the reservations of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservationCommand {
    /// Reservation Register.
    Register {
        /// What to do.
        action: RegisterAction,
        /// CRKEY.
        current: u64,
        /// NRKEY.
        new: u64,
        /// IEKEY: CRKEY is not checked.
        ignore_existing: bool,
        /// CPTPL.
        persistence: Persistence,
    },
    /// Reservation Acquire.
    Acquire {
        /// What to do.
        action: AcquireAction,
        /// CRKEY.
        current: u64,
        /// PRKEY.
        preempted: u64,
        /// RTYPE.
        kind: ReservationType,
    },
    /// Reservation Release.
    Release {
        /// What to do.
        action: ReleaseAction,
        /// CRKEY.
        current: u64,
        /// RTYPE as it is on the wire: it has to be that of the reservation.
        rtype: u8,
    },
    /// Set Features of Reservation Persistence.
    Persist(bool),
}

/// RREGA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterAction {
    /// Register a key.
    Register,
    /// Remove the registration.
    Unregister,
    /// Register another key.
    Replace,
}

/// RACQA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcquireAction {
    /// Reserve the namespace.
    Acquire,
    /// Take it from another host, or remove registrations.
    Preempt,
    /// The same, and end the commands of the hosts that were preempted.
    PreemptAndAbort,
}

/// RRELA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseAction {
    /// Give the reservation up.
    Release,
    /// Remove the reservation and all registrations.
    Clear,
}

/// CPTPL: what becomes of the persistence through a power loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persistence {
    /// Nothing.
    Keep,
    /// They are lost.
    Off,
    /// They persist.
    On,
}

/// Whether it is a reservation command.
#[must_use]
pub fn is_reservation_command(sqe: &Sqe) -> bool {
    matches!(
        sqe.opc,
        io::RESERVATION_REGISTER
            | io::RESERVATION_REPORT
            | io::RESERVATION_ACQUIRE
            | io::RESERVATION_RELEASE
    )
}

/// Reads a command that changes reservations.
///
/// # Errors
/// The status to complete it with: a field has a reserved value, or the data are too short.
pub fn parse_reservation(sqe: &Sqe, data: &[u8]) -> Result<ReservationCommand, Status> {
    let word = sqe.cdw10.get();
    let [low, rtype, _, high] = word.to_le_bytes();
    let ignore_existing = u32::from(low) & IGNORE_EXISTING_KEY != 0;
    let action = u32::from(low) & ACTION;
    let invalid = Status::INVALID_FIELD.dnr();
    let keys = || {
        let read = ReservationKeys::read_from_prefix(data);
        read.map(|(keys, _)| keys).map_err(|_| Status::DATA_SGL_LENGTH_INVALID.dnr())
    };
    match sqe.opc {
        io::RESERVATION_REGISTER => {
            let action = match action {
                0 => RegisterAction::Register,
                1 => RegisterAction::Unregister,
                2 => RegisterAction::Replace,
                _ => return Err(invalid),
            };
            let persistence = match high >> 6 {
                // The value 1 is reserved. Linux sends it where it means that they may persist.
                0 | 1 => Persistence::Keep,
                2 => Persistence::Off,
                _ => Persistence::On,
            };
            let keys = keys()?;
            let (current, new) = (keys.current.get(), keys.other.get());
            Ok(ReservationCommand::Register { action, current, new, ignore_existing, persistence })
        }
        // IEKEY is only of use in a registration.
        _ if ignore_existing => Err(invalid),
        io::RESERVATION_ACQUIRE => {
            let action = match action {
                0 => AcquireAction::Acquire,
                1 => AcquireAction::Preempt,
                2 => AcquireAction::PreemptAndAbort,
                _ => return Err(invalid),
            };
            let kind = ReservationType::from_wire(rtype).ok_or(invalid)?;
            let keys = keys()?;
            let (current, preempted) = (keys.current.get(), keys.other.get());
            Ok(ReservationCommand::Acquire { action, current, preempted, kind })
        }
        io::RESERVATION_RELEASE => {
            let action = match action {
                0 => ReleaseAction::Release,
                1 => ReleaseAction::Clear,
                _ => return Err(invalid),
            };
            let (key, _) = ReservationKey::read_from_prefix(data)
                .map_err(|_| Status::DATA_SGL_LENGTH_INVALID.dnr())?;
            Ok(ReservationCommand::Release { action, current: key.current.get(), rtype })
        }
        _ => Err(Status::INVALID_OPCODE.dnr()),
    }
}
