//! Headers of PDUs of NVMe/TCP, as a line writes and reads them.

use raceline_proto::tcp::pdu::{CapsuleRespPdu, CommonHeader, IcReqPdu, PduType};
use zerocopy::{FromBytes, Immutable, KnownLayout};

/// The controller's end has said something that it never says: a bug of the target, but for [`REUSED`].
pub(super) type Broken = &'static str;

/// The host's fault: its new command has the identifier of an Asynchronous Event Request whose answer was on its way. That answer
/// went to the new command, so the one of the command itself has none to go to.
pub(super) const REUSED: Broken =
    "the host has used the identifier of an event request again before it had the answer";

/// Why a response has no command: with a host that has used the identifier of an event request again, or without.
#[cold]
pub(super) fn unknown_response(has_reused: bool) -> Broken {
    if has_reused { REUSED } else { "a response to an unknown command" }
}

/// Bytes of the longest header.
pub(super) const MAX_HEADER: usize = IcReqPdu::LEN;
/// Bytes of the shortest header that a controller sends.
pub(super) const LEAST_HEADER: usize = CapsuleRespPdu::LEN;

/// The first bytes of a header in front of this number of bytes of data.
pub(super) fn common(kind: PduType, flags: u8, data: u32) -> CommonHeader {
    let hlen = kind.hlen();
    let plen = (u32::from(hlen) + data).into();
    CommonHeader {
        pdu_type: kind.to_wire(),
        flags,
        hlen,
        pdo: if data > 0 { hlen } else { 0 },
        plen,
    }
}

/// The header that is in these bytes.
pub(super) fn parse<T: FromBytes + KnownLayout + Immutable + zerocopy::Unaligned>(
    header: &[u8],
) -> Result<&T, Broken> {
    T::ref_from_bytes(header).map_err(|_| "a header of a wrong length")
}
