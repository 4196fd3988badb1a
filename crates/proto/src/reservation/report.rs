//! Reservation Report: the state of a namespace's reservations as hosts read it (Base 2.0, 7.4). I_T nexuses of iSCSI
//! are in it like hosts, each with the identifier that is derived of its names.

use zerocopy::IntoBytes;

use super::state::Reservations;
use crate::nvme::reservation::{EXTENDED_DATA, RCSTS_HOLDER, RegistrantStatus, ReservationStatus};
use crate::nvme::{ControllerId, Sqe, Status};

/// How many bytes a Reservation Report asks for.
///
/// # Errors
/// The status to complete it with: it asks for 64-bit host identifiers, and over fabrics all have 128 bits.
/// Or the host gives less room than it asks for.
pub fn parse_report(sqe: &Sqe, room: usize) -> Result<usize, Status> {
    if sqe.cdw11.get() & EXTENDED_DATA == 0 {
        return Err(Status::HOST_ID_INCONSISTENT.dnr());
    }
    let bytes = (u64::from(sqe.cdw10.get()) + 1) * 4;
    let bytes = usize::try_from(bytes).ok().filter(|bytes| *bytes <= room);
    bytes.ok_or(Status::DATA_SGL_LENGTH_INVALID.dnr())
}

/// Fills `reply`, which is zeroed, with as much of the report as it has room for.
pub fn put_report(state: &Reservations, reply: &mut [u8]) {
    let status = ReservationStatus {
        generation: state.generation.into(),
        rtype: state.held.map_or(0, |held| held.kind.to_wire()),
        registrants: u16::try_from(state.registrants.len()).unwrap_or(u16::MAX).into(),
        ptpls: state.persists.into(),
        ..ReservationStatus::default()
    };
    let mut rest = put(reply, status.as_bytes());
    for registrant in &state.registrants {
        let entry = RegistrantStatus {
            // A registration is that of a host, whichever controllers it has.
            cntlid: ControllerId::DYNAMIC.0.into(),
            rcsts: if state.holds(registrant) { RCSTS_HOLDER } else { 0 },
            rkey: registrant.key.into(),
            hostid: registrant.id.0,
            ..RegistrantStatus::default()
        };
        rest = put(rest, entry.as_bytes());
    }
}

/// Copies the part that fits; gives what room is left.
fn put<'a>(room: &'a mut [u8], bytes: &[u8]) -> &'a mut [u8] {
    let len = bytes.len().min(room.len());
    let (place, rest) = room.split_at_mut(len);
    place.copy_from_slice(&bytes[..len]);
    rest
}
