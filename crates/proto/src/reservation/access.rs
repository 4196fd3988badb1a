//! Which commands a reservation lets a host execute (Base 2.0, figure 622: command behaviour in the presence of a
//! reservation).

use crate::nvme::opcode::io;
use crate::nvme::reservation::ReservationType;

/// What a command does to a namespace, as far as reservations care.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessGroup {
    /// It reads data: Read, Compare, Verify, the source of a Copy.
    Read,
    /// It changes data or the namespace. What is not known to be anything else belongs here.
    Write,
    /// Reservation commands, which check reservations themselves, and commands that tell nothing of the data.
    Exempt,
}

/// The group of an I/O command. A fused operation writes: both halves are of the group of its Write.
#[must_use]
pub fn access_group(opcode: u8) -> AccessGroup {
    match opcode {
        io::READ | io::COMPARE | io::VERIFY => AccessGroup::Read,
        io::RESERVATION_REGISTER
        | io::RESERVATION_REPORT
        | io::RESERVATION_ACQUIRE
        | io::RESERVATION_RELEASE => AccessGroup::Exempt,
        _ => AccessGroup::Write,
    }
}

/// What a host is to a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// It holds it, maybe with others.
    Holder,
    /// It is registered and does not hold it.
    Registrant,
    /// Neither.
    Stranger,
}

/// What a host may do with a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rights {
    /// Commands that read.
    pub reads: bool,
    /// Commands that write.
    pub writes: bool,
}

impl Rights {
    /// Everything: no reservation stands in the way.
    pub const ALL: Self = Self { reads: true, writes: true };
    /// Nothing: somebody else holds all of the device.
    pub const NONE: Self = Self { reads: false, writes: false };

    /// Whether commands of this group may run.
    #[must_use]
    pub fn allow(self, group: AccessGroup) -> bool {
        match group {
            AccessGroup::Read => self.reads,
            AccessGroup::Write => self.writes,
            AccessGroup::Exempt => true,
        }
    }
}

/// What a reservation of this type leaves to a host.
#[must_use]
pub fn rights(kind: ReservationType, role: Role) -> Rights {
    match role {
        Role::Holder => Rights::ALL,
        Role::Registrant if kind.favours_registrants() => Rights::ALL,
        Role::Registrant | Role::Stranger => {
            Rights { reads: kind.lets_others_read(), writes: false }
        }
    }
}
