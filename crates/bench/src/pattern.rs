//! Blocks that contain the address and the number of their write, so that a read finds misplaced ones.
//!
//! Each logical block begins with a header of 32 bytes, little-endian: magic (8), LBA (8),
//! seed (8), generation (4), CRC32C (4) of the whole block with that field zero. The rest is
//! random data of (seed, LBA, generation).

use std::fmt;

use raceline_accel::Crc32c;

use crate::random::{Random, mix};

/// Size of the header at the start of a block.
pub const HEADER_LEN: usize = 32;

const MAGIC: [u8; 8] = *b"RACELINE";
const CRC_AT: usize = HEADER_LEN - 4;

/// Writes the pattern over `data`, whole blocks that begin at `slba`.
///
/// # Panics
/// If `block_size` is smaller than [`HEADER_LEN`].
pub fn fill(data: &mut [u8], block_size: usize, slba: u64, seed: u64, generation: u32) {
    for (lba, block) in (slba..).zip(data.chunks_exact_mut(block_size)) {
        fill_block(block, lba, seed, generation);
    }
}

/// Checks that `data`, whole blocks that begin at `slba`, is what [`fill`] wrote. `generation` is `None` if
/// the reader cannot know it.
///
/// # Errors
/// For the first block that differs.
pub fn check(
    data: &[u8],
    block_size: usize,
    slba: u64,
    seed: u64,
    generation: Option<u32>,
) -> Result<(), Mismatch> {
    for (lba, block) in (slba..).zip(data.chunks_exact(block_size)) {
        check_block(block, lba, seed, generation).map_err(|found| Mismatch { lba, found })?;
    }
    Ok(())
}

/// A block that differs from what was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The block.
    pub lba: u64,
    /// What was found instead.
    pub found: Found,
}

/// The content of a wrong block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Zeroes where the header should be: never written, or lost.
    Zeroes,
    /// No header: other data.
    Other,
    /// The block of another address.
    Lba(u64),
    /// A block of a run with another seed.
    Seed(u64),
    /// A correct header over damaged data.
    Damaged,
    /// A block of this address, but from an earlier (or later) write.
    Generation {
        /// The write that was found.
        found: u32,
        /// The last write.
        expected: u32,
    },
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LBA {}: ", self.lba)?;
        match self.found {
            Found::Zeroes => f.write_str("found zeroes where written data should be"),
            Found::Other => f.write_str("found data that was never written here"),
            Found::Lba(lba) => write!(f, "found the data of LBA {lba}"),
            Found::Seed(seed) => write!(f, "found data written with seed {seed}"),
            Found::Damaged => f.write_str("found the right header over damaged data (checksum)"),
            Found::Generation { found, expected } => {
                write!(f, "found the data of write {found}, the last was write {expected}")
            }
        }
    }
}

fn fill_block(block: &mut [u8], lba: u64, seed: u64, generation: u32) {
    let (header, body) = block.split_at_mut(HEADER_LEN);
    header[0..8].copy_from_slice(&MAGIC);
    header[8..16].copy_from_slice(&lba.to_le_bytes());
    header[16..24].copy_from_slice(&seed.to_le_bytes());
    header[24..28].copy_from_slice(&generation.to_le_bytes());
    Random::new(mix(seed ^ mix(lba ^ mix(u64::from(generation))))).fill(body);
    let crc = block_crc(block);
    block[CRC_AT..HEADER_LEN].copy_from_slice(&crc.to_le_bytes());
}

fn check_block(block: &[u8], lba: u64, seed: u64, generation: Option<u32>) -> Result<(), Found> {
    let header: &[u8; HEADER_LEN] = block.first_chunk().ok_or(Found::Other)?;
    if header[0..8] != MAGIC {
        let zeroes = header.iter().all(|&byte| byte == 0);
        return Err(if zeroes { Found::Zeroes } else { Found::Other });
    }
    if header[CRC_AT..] != block_crc(block).to_le_bytes() {
        return Err(Found::Damaged);
    }
    let found_lba = u64_at(header, 8);
    if found_lba != lba {
        return Err(Found::Lba(found_lba));
    }
    let found_seed = u64_at(header, 16);
    if found_seed != seed {
        return Err(Found::Seed(found_seed));
    }
    let found = u32::from_le_bytes([header[24], header[25], header[26], header[27]]);
    match generation {
        Some(expected) if expected != found => Err(Found::Generation { found, expected }),
        _ => Ok(()),
    }
}

fn block_crc(block: &[u8]) -> u32 {
    let mut crc = Crc32c::new();
    crc.update(&block[..CRC_AT]);
    crc.update(&block[HEADER_LEN..]);
    crc.finalize()
}

fn u64_at(header: &[u8; HEADER_LEN], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&header[at..at + 8]);
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: usize = 512;
    const SEED: u64 = 42;

    fn written(slba: u64, generation: u32) -> Vec<u8> {
        let mut data = vec![0; 4 * BLOCK];
        fill(&mut data, BLOCK, slba, SEED, generation);
        data
    }

    fn found(data: &[u8], slba: u64, generation: Option<u32>) -> Result<(), (u64, Found)> {
        check(data, BLOCK, slba, SEED, generation)
            .map_err(|mismatch| (mismatch.lba, mismatch.found))
    }

    #[test]
    fn what_was_written_is_found() {
        assert_eq!(found(&written(100, 3), 100, Some(3)), Ok(()));
        assert_eq!(found(&written(100, 3), 100, None), Ok(()));
    }

    #[test]
    fn every_kind_of_damage_is_named() {
        let data = written(100, 3);
        assert_eq!(found(&data, 101, None), Err((101, Found::Lba(100))));
        let older = Found::Generation { found: 3, expected: 4 };
        assert_eq!(found(&data, 100, Some(4)), Err((100, older)));
        let seed = check(&data, BLOCK, 100, 1, None).unwrap_err();
        assert_eq!(seed, Mismatch { lba: 100, found: Found::Seed(SEED) });
        assert_eq!(found(&[0; BLOCK], 9, None), Err((9, Found::Zeroes)));
        assert_eq!(found(&[1; BLOCK], 9, None), Err((9, Found::Other)));
        let mut swapped = data.clone();
        swapped[BLOCK..3 * BLOCK].rotate_left(BLOCK);
        assert_eq!(found(&swapped, 100, None), Err((101, Found::Lba(102))));
    }

    #[test]
    fn any_flipped_bit_is_found() {
        let data = written(100, 3);
        for bit in (0..2 * BLOCK * 8).step_by(7) {
            let mut damaged = data.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let (lba, _) = found(&damaged, 100, Some(3)).unwrap_err();
            assert_eq!(lba, 100 + u64::from(bit >= BLOCK * 8));
        }
    }

    #[test]
    fn writes_of_one_block_differ_everywhere() {
        let (one, two) = (written(100, 1), written(100, 2));
        let equal = one.iter().zip(&two).filter(|(a, b)| a == b).count();
        assert!(equal < 4 * (HEADER_LEN + BLOCK / 64), "{equal}");
    }

    #[test]
    fn the_text_says_where_and_what() {
        let mismatch = Mismatch { lba: 7, found: Found::Generation { found: 1, expected: 2 } };
        assert_eq!(mismatch.to_string(), "LBA 7: found the data of write 1, the last was write 2");
    }
}
