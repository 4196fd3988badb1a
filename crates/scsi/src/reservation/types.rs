//! The types of persistent reservations as SCSI numbers them (SPC-5, table 56).

use raceline_proto::nvme::reservation::ReservationType;

/// From TYPE; `None` for obsolete and reserved values.
#[must_use]
pub fn type_from_wire(value: u8) -> Option<ReservationType> {
    ReservationType::ALL.into_iter().find(|kind| type_to_wire(*kind) == value)
}

/// TYPE.
#[must_use]
pub fn type_to_wire(kind: ReservationType) -> u8 {
    match kind {
        ReservationType::WriteExclusive => 1,
        ReservationType::ExclusiveAccess => 3,
        ReservationType::WriteExclusiveRegistrantsOnly => 5,
        ReservationType::ExclusiveAccessRegistrantsOnly => 6,
        ReservationType::WriteExclusiveAllRegistrants => 7,
        ReservationType::ExclusiveAccessAllRegistrants => 8,
    }
}
