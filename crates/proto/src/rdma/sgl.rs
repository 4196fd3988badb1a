//! Descriptors of host memory with keys (Base 2.0, figures 91 and 95), and where the data of a command are.

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, transmute};

use crate::nvme::wire::wire;
use crate::nvme::{Direction, SglDescriptor, Sqe, Status};

use super::capsule::{CapsuleLimits, MAX_DESCRIPTORS};

/// Most bytes of one keyed block: its length has 24 bits.
pub const MAX_BLOCK_BYTES: u32 = (1 << 24) - 1;

/// Keyed SGL Data Block, Sub Type Address.
const KEYED: u8 = 0x40;
/// Keyed SGL Data Block, Sub Type Invalidate Key.
const KEYED_INVALIDATE: u8 = 0x4f;
/// Last Segment, Sub Type Offset: a list of descriptors in the capsule.
const LIST_IN_CAPSULE: u8 = 0x31;

wire! {
    /// Keyed SGL Data Block descriptor.
    pub struct KeyedDescriptor[16] {
        /// Address of the host's memory.
        pub address: U64,
        /// Length in bytes, little-endian.
        pub length: [u8; 3],
        /// Key of the registration, little-endian.
        pub key: [u8; 4],
        /// SGL Descriptor Type in bits 7:4, Sub Type in bits 3:0.
        pub kind: u8,
    }
}

/// A block of the host's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyedBlock {
    /// Its address, for work requests.
    pub address: u64,
    /// Its bytes.
    pub len: u32,
    /// The host's key.
    pub key: u32,
}

impl KeyedBlock {
    /// The block of a descriptor, whatever its type.
    #[must_use]
    pub fn of(descriptor: &KeyedDescriptor) -> Self {
        let [a, b, c] = descriptor.length;
        Self {
            address: descriptor.address.get(),
            len: u32::from_le_bytes([a, b, c, 0]),
            key: u32::from_le_bytes(descriptor.key),
        }
    }

    /// Its descriptor, as SGL1 of a command. `invalidate` asks the controller to end the key with the response.
    ///
    /// # Panics
    /// When the block is longer than [`MAX_BLOCK_BYTES`]: that is a bug of the caller.
    #[must_use]
    pub fn descriptor(&self, invalidate: bool) -> SglDescriptor {
        assert!(self.len <= MAX_BLOCK_BYTES, "a block of {} bytes", self.len);
        let [a, b, c, _] = self.len.to_le_bytes();
        let kind = if invalidate { KEYED_INVALIDATE } else { KEYED };
        transmute!(KeyedDescriptor {
            address: self.address.into(),
            length: [a, b, c],
            key: self.key.to_le_bytes(),
            kind,
        })
    }
}

impl KeyedBlock {
    /// SGL1 of a command with as many descriptors behind it.
    #[must_use]
    pub fn list_descriptor(count: usize) -> SglDescriptor {
        let bytes = u32::try_from(count).unwrap_or(u32::MAX).saturating_mul(16);
        SglDescriptor { length: bytes.into(), kind: LIST_IN_CAPSULE, ..SglDescriptor::default() }
    }
}

/// Where a command's data are, checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostData {
    /// There are none.
    #[default]
    None,
    /// In the capsule, from this byte of it on.
    InCapsule {
        /// From the capsule's first byte.
        start: u32,
        /// Bytes.
        len: u32,
    },
    /// In one block of the host's memory.
    Keyed {
        /// The block.
        block: KeyedBlock,
        /// The response has to invalidate the key.
        invalidate: bool,
    },
    /// In several blocks; [`HostData::blocks`] gives them.
    List {
        /// Descriptors in the capsule.
        count: u8,
        /// Bytes of all of them.
        len: u32,
    },
}

impl HostData {
    /// Bytes.
    #[must_use]
    pub fn len(&self) -> u32 {
        match self {
            Self::None => 0,
            Self::InCapsule { len, .. } | Self::List { len, .. } => *len,
            Self::Keyed { block, .. } => block.len,
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The key that the response has to invalidate.
    #[must_use]
    pub fn key_to_invalidate(&self) -> Option<u32> {
        match self {
            Self::Keyed { block, invalidate: true } => Some(block.key),
            _ => None,
        }
    }

    /// The blocks of host memory, in order. `capsule` is the capsule that the command was in.
    pub fn blocks<'a>(&'a self, capsule: &'a [u8]) -> impl Iterator<Item = KeyedBlock> + 'a {
        let one = match self {
            Self::Keyed { block, .. } => Some(*block),
            _ => None,
        };
        let count = match self {
            Self::List { count, .. } => usize::from(*count),
            _ => 0,
        };
        let list = capsule
            .get(Sqe::LEN..)
            .and_then(|rest| <[KeyedDescriptor]>::ref_from_prefix_with_elems(rest, count).ok());
        one.into_iter()
            .chain(list.into_iter().flat_map(|(list, _)| list.iter().map(KeyedBlock::of)))
    }

    /// The same command for those who do not know the transport: SGL1 asks for a transfer of as many bytes.
    #[must_use]
    pub fn for_controller(&self, sqe: &Sqe) -> Sqe {
        Sqe { sgl1: SglDescriptor::transport(self.len()), ..*sqe }
    }
}

/// Where the data of a command are whose capsule has `received` bytes and begins with `head`.
pub(super) fn host_data(
    sqe: &Sqe,
    head: &[u8],
    received: usize,
    limits: &CapsuleLimits,
) -> Result<HostData, Status> {
    if !sqe.uses_sgl() {
        return Err(Status::INVALID_FIELD.dnr());
    }
    let sgl = &sqe.sgl1;
    let data = match sgl.kind {
        SglDescriptor::IN_CAPSULE => in_capsule(sqe, received, limits)?,
        KEYED | KEYED_INVALIDATE => {
            let descriptor: KeyedDescriptor = transmute!(*sgl);
            let block = KeyedBlock::of(&descriptor);
            HostData::Keyed { block, invalidate: sgl.kind == KEYED_INVALIDATE }
        }
        LIST_IN_CAPSULE => list(sgl, head, limits)?,
        // Hosts leave an empty descriptor of zeroes where a command has no data.
        0 if sgl.length.get() == 0 => HostData::None,
        kind => return Err(unknown(kind)),
    };
    if data.len() > limits.transfer_bytes {
        return Err(Status::DATA_SGL_LENGTH_INVALID.dnr());
    }
    // An empty block moves nothing, and its key means nothing.
    Ok(if data.is_empty() { HostData::None } else { data })
}

/// A known type with another subtype is an invalid field; an unknown type is an invalid type.
fn unknown(kind: u8) -> Status {
    match kind >> 4 {
        0x0 | 0x3 | 0x4 => Status::INVALID_FIELD.dnr(),
        _ => Status::SGL_DESCRIPTOR_TYPE_INVALID.dnr(),
    }
}

fn in_capsule(sqe: &Sqe, received: usize, limits: &CapsuleLimits) -> Result<HostData, Status> {
    let (offset, len) = (sqe.sgl1.address.get(), sqe.sgl1.length.get());
    if len == 0 {
        return Ok(HostData::None);
    }
    // The capsule of a response has no data.
    if sqe.direction() != Some(Direction::HostToController) {
        return Err(Status::INVALID_FIELD.dnr());
    }
    // What the receive buffer holds behind the message is of an earlier capsule.
    let received = received.saturating_sub(Sqe::LEN);
    let there = u64::from(limits.in_capsule_bytes).min(u64::try_from(received).unwrap_or(u64::MAX));
    let Some(behind) = there.checked_sub(offset) else {
        return Err(Status::INVALID_SGL_OFFSET.dnr());
    };
    if u64::from(len) > behind {
        return Err(Status::DATA_SGL_LENGTH_INVALID.dnr());
    }
    let start = u32::try_from(offset).ok().and_then(|offset| offset.checked_add(64));
    let start = start.ok_or(Status::INVALID_SGL_OFFSET.dnr())?;
    Ok(HostData::InCapsule { start, len })
}

fn list(sgl: &SglDescriptor, head: &[u8], limits: &CapsuleLimits) -> Result<HostData, Status> {
    if sgl.address.get() != 0 {
        return Err(Status::INVALID_SGL_OFFSET.dnr());
    }
    let bytes = sgl.length.get();
    if bytes == 0 || !bytes.is_multiple_of(16) {
        return Err(Status::INVALID_SGL_SEGMENT.dnr());
    }
    let count = bytes / 16;
    if count > u32::from(limits.descriptors.min(MAX_DESCRIPTORS)) {
        return Err(Status::INVALID_SGL_COUNT.dnr());
    }
    let count = u8::try_from(count).map_err(|_| Status::INVALID_SGL_COUNT.dnr())?;
    let rest = head.get(Sqe::LEN..).unwrap_or_default();
    let Ok((list, _)) = <[KeyedDescriptor]>::ref_from_prefix_with_elems(rest, usize::from(count))
    else {
        return Err(Status::INVALID_SGL_SEGMENT.dnr());
    };
    let mut len = 0;
    for descriptor in list {
        if descriptor.kind != KEYED {
            return Err(unknown(descriptor.kind));
        }
        // At most 255 lengths of 24 bits.
        len += KeyedBlock::of(descriptor).len;
    }
    Ok(HostData::List { count, len })
}
