//! Headers of PDUs of NVMe/TCP, as a line writes and reads them.

use raceline_proto::tcp::pdu::{CapsuleRespPdu, CommonHeader, IcReqPdu, PduType};
use zerocopy::{FromBytes, Immutable, KnownLayout};

use super::line::Broken;

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
