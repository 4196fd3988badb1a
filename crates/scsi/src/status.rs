//! The status of a command (SAM-6, 5.3.1), and why one was refused.

use crate::sense::Sense;

/// The status byte of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// The command did what it says.
    Good,
    /// It failed; sense data say why.
    CheckCondition,
    /// What Pre-fetch asked for fits into the cache.
    ConditionMet,
    /// It can be sent again later.
    Busy,
    /// A reservation of another I_T nexus stands in the way.
    ReservationConflict,
    /// There is no room for another command.
    TaskSetFull,
    /// Another I_T nexus has aborted it (only with TAS in the control mode page).
    TaskAborted,
}

impl Status {
    /// The byte on the wire.
    #[must_use]
    pub fn to_wire(self) -> u8 {
        match self {
            Self::Good => 0x00,
            Self::CheckCondition => 0x02,
            Self::ConditionMet => 0x04,
            Self::Busy => 0x08,
            Self::ReservationConflict => 0x18,
            Self::TaskSetFull => 0x28,
            Self::TaskAborted => 0x40,
        }
    }
}

/// Why a command is not executed, or did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// CHECK CONDITION with these sense data.
    Check(Sense),
    /// RESERVATION CONFLICT, which has no sense data.
    Conflict,
    /// BUSY: it had no effect and can be sent again.
    Busy,
}

impl Refusal {
    /// Its status.
    #[must_use]
    pub fn status(&self) -> Status {
        match self {
            Self::Check(_) => Status::CheckCondition,
            Self::Conflict => Status::ReservationConflict,
            Self::Busy => Status::Busy,
        }
    }

    /// Its sense data.
    #[must_use]
    pub fn sense(&self) -> Option<&Sense> {
        match self {
            Self::Check(sense) => Some(sense),
            Self::Conflict | Self::Busy => None,
        }
    }
}

impl From<Sense> for Refusal {
    fn from(sense: Sense) -> Self {
        Self::Check(sense)
    }
}
