//! The parameter list of Unmap (SBC-4, 5.35).

use crate::lun::Lun;
use crate::sense::Sense;

/// Bytes before the descriptors.
const HEADER_LEN: usize = 8;
/// Bytes of a descriptor.
const DESCRIPTOR_LEN: usize = 16;

/// Blocks of the medium that are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// The first one.
    pub lba: u64,
    /// How many.
    pub count: u64,
}

/// The blocks that a parameter list names: each part is on the disk, has at least one block, and all of them together
/// are within the limits.
pub fn unmapped_blocks<'a>(
    lun: &Lun,
    list: &'a [u8],
) -> Result<impl Iterator<Item = Blocks> + Clone + 'a, Sense> {
    let [d0, d1, b0, b1, ..] = *list else { return Err(Sense::PARAMETER_LIST_LENGTH) };
    let data_len = usize::from(u16::from_be_bytes([d0, d1]));
    let descriptors_len = usize::from(u16::from_be_bytes([b0, b1]));
    // UNMAP DATA LENGTH does not count itself
    let ends_early = data_len + 2 > list.len() || HEADER_LEN + descriptors_len > list.len();
    if list.len() < HEADER_LEN || ends_early {
        return Err(Sense::PARAMETER_LIST_LENGTH);
    }
    if data_len + 2 < HEADER_LEN + descriptors_len {
        return Err(Sense::bad_parameter(2));
    }
    // what is left over of a descriptor is ignored
    let descriptors = list[HEADER_LEN..HEADER_LEN + descriptors_len].chunks_exact(DESCRIPTOR_LEN);
    if descriptors.len() > usize::try_from(lun.limits.max_unmap_descriptors).unwrap_or(usize::MAX) {
        return Err(Sense::bad_parameter(2));
    }
    let parts = descriptors.map(parse_descriptor).filter(|part| part.count > 0);
    let mut total = 0;
    for part in parts.clone() {
        let end = part.lba.checked_add(part.count);
        if end.is_none_or(|end| end > lun.block_count) {
            return Err(Sense::LBA_OUT_OF_RANGE);
        }
        total += part.count;
    }
    let most = lun.limits.max_unmap_blocks;
    if most != u32::MAX && total > u64::from(most) {
        return Err(Sense::INVALID_FIELD_IN_PARAMETERS);
    }
    Ok(parts)
}

fn parse_descriptor(bytes: &[u8]) -> Blocks {
    let (lba, rest) = bytes.split_first_chunk::<8>().expect("16 bytes");
    let count = rest.first_chunk::<4>().expect("8 bytes");
    Blocks { lba: u64::from_be_bytes(*lba), count: u32::from_be_bytes(*count).into() }
}
