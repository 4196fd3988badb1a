//! The bytes on the wire: NVMe/TCP's PDUs without header digests, as templates.
//!
//! Lengths, types and the place of the address are those of NVMe/TCP Transport 1.0, 3.6; all other fields
//! stay zero, because neither side reads them.

/// CapsuleCmd without data: PDU header and submission queue entry.
pub(super) const COMMAND_BYTES: usize = 72;
/// Headers of C2HData, H2CData and R2T, and a whole CapsuleResp: all have the same length.
pub(super) const HEADER_BYTES: usize = 24;
/// A data digest, after the payload.
pub(super) const DIGEST_BYTES: usize = 4;
/// Writes up to this size travel in their capsule, as with Raceline's target.
pub(super) const IN_CAPSULE_BYTES: usize = 8 << 10;
/// The most data in one H2CData (MAXH2CDATA).
pub(super) const H2C_DATA_BYTES: usize = 128 << 10;

/// PDU-Type, the first byte of each PDU.
pub(super) const CAPSULE_CMD: u8 = 0x04;
pub(super) const CAPSULE_RESP: u8 = 0x05;
pub(super) const H2C_DATA: u8 = 0x06;
pub(super) const C2H_DATA: u8 = 0x07;
pub(super) const R2T: u8 = 0x09;

/// Place of the command's address (SLBA, here in bytes) in a capsule.
const ADDRESS: std::ops::Range<usize> = 48..56;
/// Places of DATAO and DATAL in an H2CData header.
const DATA_OFFSET: std::ops::Range<usize> = 12..16;
const DATA_LENGTH: std::ops::Range<usize> = 16..20;

/// A header of the given type.
pub(super) const fn header(pdu_type: u8) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[0] = pdu_type;
    bytes
}

/// A capsule with the address of a command.
pub(super) fn command(address: usize) -> [u8; COMMAND_BYTES] {
    let mut bytes = [0; COMMAND_BYTES];
    bytes[0] = CAPSULE_CMD;
    bytes[ADDRESS].copy_from_slice(&(address as u64).to_le_bytes());
    bytes
}

/// The address in a capsule.
pub(super) fn address(capsule: &[u8]) -> Option<usize> {
    let bytes = capsule.get(ADDRESS)?.try_into().ok()?;
    usize::try_from(u64::from_le_bytes(bytes)).ok()
}

/// The header of an H2CData with this part of a command's data.
pub(super) fn h2c_data(piece: Piece) -> [u8; HEADER_BYTES] {
    let mut bytes = header(H2C_DATA);
    bytes[DATA_OFFSET].copy_from_slice(&piece.offset.to_le_bytes());
    bytes[DATA_LENGTH].copy_from_slice(&piece.len.to_le_bytes());
    bytes
}

/// The part of a command's data that an H2CData header announces.
pub(super) fn piece(header: &[u8]) -> Option<Piece> {
    let number = |range: std::ops::Range<usize>| {
        Some(u32::from_le_bytes(header.get(range)?.try_into().ok()?))
    };
    Some(Piece { offset: number(DATA_OFFSET)?, len: number(DATA_LENGTH)? })
}

/// A part of a command's data, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) offset: u32,
    pub(super) len: u32,
}

/// The PDUs that are exchanged for one command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// Capsule; data with the SUCCESS flag, which is the response as well.
    Read,
    /// Capsule with data; response.
    InCapsule,
    /// Capsule; R2T; data in pieces; response.
    ReadyToTransfer,
}

impl Shape {
    /// The exchange for a command of this size.
    pub(super) fn of(write: bool, io_bytes: usize) -> Self {
        match write {
            false => Self::Read,
            true if io_bytes <= IN_CAPSULE_BYTES => Self::InCapsule,
            true => Self::ReadyToTransfer,
        }
    }

    /// Bytes to the host for one command.
    pub(super) fn bytes_to_host(self, io_bytes: usize) -> usize {
        match self {
            Self::Read => HEADER_BYTES + io_bytes,
            Self::InCapsule => HEADER_BYTES,
            Self::ReadyToTransfer => 2 * HEADER_BYTES,
        }
    }

    /// Bytes to the target for one command.
    pub(super) fn bytes_to_target(self, io_bytes: usize) -> usize {
        match self {
            Self::Read => COMMAND_BYTES,
            Self::InCapsule => COMMAND_BYTES + io_bytes,
            Self::ReadyToTransfer => {
                let pieces = io_bytes.div_ceil(H2C_DATA_BYTES);
                COMMAND_BYTES + pieces * HEADER_BYTES + io_bytes
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_pieces_round_trip() {
        let capsule = command(0x1234_5678_9000);
        assert_eq!((capsule[0], address(&capsule)), (CAPSULE_CMD, Some(0x1234_5678_9000)));
        let sent = Piece { offset: 131_072, len: 4096 };
        assert_eq!(piece(&h2c_data(sent)), Some(sent));
        assert_eq!((address(&capsule[..55]), piece(&[0; 19])), (None, None));
    }

    #[test]
    fn bytes_per_command_are_those_of_nvme_tcp() {
        let bytes = |write, io_bytes| {
            let shape = Shape::of(write, io_bytes);
            (shape.bytes_to_target(io_bytes), shape.bytes_to_host(io_bytes))
        };
        assert_eq!(bytes(false, 4096), (72, 24 + 4096));
        assert_eq!(bytes(true, 8192), (72 + 8192, 24));
        assert_eq!(bytes(true, 16_384), (72 + 24 + 16_384, 24 + 24));
        assert_eq!(bytes(true, 262_144), (72 + 2 * 24 + 262_144, 24 + 24));
    }
}
