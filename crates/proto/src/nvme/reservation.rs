//! Reservations as on the wire: types, command words and data, the report, the notification log
//! (Base 2.0, 7.2 to 7.5 and 8.19).

use zerocopy::little_endian::{U16, U32, U64};

use super::wire::wire;

/// RTYPE: what a reservation lets which hosts do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReservationType {
    /// Only the holder writes.
    WriteExclusive,
    /// Only the holder reads and writes.
    ExclusiveAccess,
    /// Only registrants write.
    WriteExclusiveRegistrantsOnly,
    /// Only registrants read and write.
    ExclusiveAccessRegistrantsOnly,
    /// Only registrants write, and each of them holds the reservation.
    WriteExclusiveAllRegistrants,
    /// Only registrants read and write, and each of them holds the reservation.
    ExclusiveAccessAllRegistrants,
}

impl ReservationType {
    /// All types, by ascending RTYPE.
    pub const ALL: [Self; 6] = [
        Self::WriteExclusive,
        Self::ExclusiveAccess,
        Self::WriteExclusiveRegistrantsOnly,
        Self::ExclusiveAccessRegistrantsOnly,
        Self::WriteExclusiveAllRegistrants,
        Self::ExclusiveAccessAllRegistrants,
    ];

    /// From RTYPE; `None` for 0 and the reserved values.
    #[must_use]
    pub fn from_wire(rtype: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.to_wire() == rtype)
    }

    /// RTYPE, 1 to 6.
    #[must_use]
    pub fn to_wire(self) -> u8 {
        match self {
            Self::WriteExclusive => 1,
            Self::ExclusiveAccess => 2,
            Self::WriteExclusiveRegistrantsOnly => 3,
            Self::ExclusiveAccessRegistrantsOnly => 4,
            Self::WriteExclusiveAllRegistrants => 5,
            Self::ExclusiveAccessAllRegistrants => 6,
        }
    }

    /// Whether every registrant holds it.
    #[must_use]
    pub fn is_held_by_all(self) -> bool {
        matches!(self, Self::WriteExclusiveAllRegistrants | Self::ExclusiveAccessAllRegistrants)
    }

    /// Whether hosts that are not registered may read.
    #[must_use]
    pub fn lets_others_read(self) -> bool {
        matches!(
            self,
            Self::WriteExclusive
                | Self::WriteExclusiveRegistrantsOnly
                | Self::WriteExclusiveAllRegistrants
        )
    }

    /// Whether registrants have the rights of the holder.
    #[must_use]
    pub fn favours_registrants(self) -> bool {
        !matches!(self, Self::WriteExclusive | Self::ExclusiveAccess)
    }
}

/// RESCAP bit 0: reservations and registrations can persist through a power loss.
pub const RESCAP_PERSIST: u8 = 1 << 0;
/// RESCAP bits 6:1: all six types. Bit 7: IEKEY as in Base 1.3 and later.
pub const RESCAP_ALL_TYPES: u8 = 0xfe;

/// CDW10 bits 2:0 of all commands: the action.
pub const ACTION: u32 = 0b111;
/// CDW10 bit 3, IEKEY: the current key is not checked.
pub const IGNORE_EXISTING_KEY: u32 = 1 << 3;
/// CDW11 bit 0 of Reservation Report, EDS: the form with 128-bit host identifiers.
pub const EXTENDED_DATA: u32 = 1;

wire! {
    /// Data of Reservation Register and of Reservation Acquire.
    pub struct ReservationKeys[16] {
        /// CRKEY: the key with which the host is registered.
        pub current: U64,
        /// NRKEY, the key to register, or PRKEY, the key of the registrants to preempt.
        pub other: U64,
    }
}

wire! {
    /// Data of Reservation Release.
    pub struct ReservationKey[8] {
        /// CRKEY: the key with which the host is registered.
        pub current: U64,
    }
}

wire! {
    /// Reservation Status, extended form: what comes before the registrants.
    pub struct ReservationStatus[64] {
        /// GEN: counts changes of registrations.
        pub generation: U32,
        /// RTYPE; 0: the namespace is not reserved.
        pub rtype: u8,
        /// REGSTRNT: how many registrants there are, whatever the buffer has room for.
        pub registrants: U16,
        /// Reserved.
        pub reserved_7: [u8; 2],
        /// PTPLS: 1 if they persist through a power loss.
        pub ptpls: u8,
        /// Reserved.
        pub reserved_10: [u8; 54],
    }
}

wire! {
    /// A registrant in the extended form.
    pub struct RegistrantStatus[64] {
        /// CNTLID; FFFFh in the dynamic controller model.
        pub cntlid: U16,
        /// RCSTS bit 0: it holds the reservation.
        pub rcsts: u8,
        /// Reserved.
        pub reserved_3: [u8; 5],
        /// RKEY.
        pub rkey: U64,
        /// HOSTID.
        pub hostid: [u8; 16],
        /// Reserved.
        pub reserved_32: [u8; 32],
    }
}

/// RCSTS bit 0: the registrant holds the reservation.
pub const RCSTS_HOLDER: u8 = 1;

/// What a Reservation Notification log page tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NoticeKind {
    /// Another host has preempted the registration.
    RegistrationPreempted,
    /// The reservation was released, or its type has changed.
    ReservationReleased,
    /// Another host has cleared reservation and registrations.
    ReservationPreempted,
}

impl NoticeKind {
    /// Reservation Notification Log Page Type.
    #[must_use]
    pub fn to_wire(self) -> u8 {
        match self {
            Self::RegistrationPreempted => 1,
            Self::ReservationReleased => 2,
            Self::ReservationPreempted => 3,
        }
    }

    /// The bit of feature 82h (Reservation Notification Mask) that keeps it away.
    #[must_use]
    pub fn mask_bit(self) -> u32 {
        1 << self.to_wire()
    }
}

/// The bits of feature 82h: REGPRE, RESREL, RESPRE.
pub const NOTIFICATION_MASK: u32 = 0b1110;

/// Feature 83h (Reservation Persistence) bit 0, PTPL.
pub const PERSIST_THROUGH_POWER_LOSS: u32 = 1;

wire! {
    /// Reservation Notification (LID 80h; Base 2.0, 5.16.1.24).
    pub struct ReservationNotification[64] {
        /// Log Page Count: 0 if there is no page, else counts from 1.
        pub count: U64,
        /// Type, as [`NoticeKind::to_wire`] gives it; 0: there is no page.
        pub kind: u8,
        /// Number of Available Log Pages: how many more there are.
        pub available: u8,
        /// Reserved.
        pub reserved_10: [u8; 2],
        /// NSID.
        pub nsid: U32,
        /// Reserved.
        pub reserved_16: [u8; 48],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_have_the_numbers_of_the_specification() {
        for (place, kind) in (1..).zip(ReservationType::ALL) {
            assert_eq!(kind.to_wire(), place);
            assert_eq!(ReservationType::from_wire(place), Some(kind));
        }
        for rtype in [0, 7, 0xff] {
            assert_eq!(ReservationType::from_wire(rtype), None);
        }
    }
}
