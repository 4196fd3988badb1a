//! The contents of a simulation's blocks: which write made them, and where they belong.
//!
//! Every write has a [`WriteId`]. Each of its blocks is filled with words made from that id and
//! from the block's own address, so that a torn or misplaced block is detected.

use std::fmt;

/// Names one write of a run; [`WriteId::ZEROES`] is the content of a block that was zeroed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriteId(pub u64);

impl WriteId {
    /// Zeroes: a new device, Write Zeroes, Deallocate.
    pub const ZEROES: Self = Self(0);
}

impl fmt::Display for WriteId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::ZEROES { f.write_str("zeroes") } else { write!(f, "write {}", self.0) }
    }
}

/// Where a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Index of the namespace.
    pub namespace: usize,
    /// LBA: logical block address.
    pub lba: u64,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "namespace {}, LBA {}", self.namespace + 1, self.lba)
    }
}

/// The bytes of a block: which write made them, and where that write put them. Copies take them elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Content {
    /// The block that was written.
    pub origin: Place,
    /// The write.
    pub write: WriteId,
}

impl Content {
    /// What a write puts into a block.
    #[must_use]
    pub fn new(origin: Place, write: WriteId) -> Self {
        Self { origin, write }
    }

    /// Whether they are zeroes, which are the same everywhere.
    #[must_use]
    pub fn is_zeroes(&self) -> bool {
        self.write == WriteId::ZEROES
    }

    /// Fills one block.
    pub fn fill(&self, block: &mut [u8]) {
        fill(block, self.origin, self.write);
    }
}

/// Bytes of a word of a block.
const WORD_BYTES: usize = 8;

/// Fills one block.
pub fn fill(block: &mut [u8], place: Place, write: WriteId) {
    if write == WriteId::ZEROES {
        block.fill(0);
        return;
    }
    for (index, word) in block.chunks_exact_mut(WORD_BYTES).enumerate() {
        word.copy_from_slice(&word_of(place, write, index).to_le_bytes());
    }
}

/// The write that made a block; `None` if the block is torn, misplaced, or was never written.
#[must_use]
pub fn identify(block: &[u8], place: Place) -> Option<WriteId> {
    let (first, _) = block.split_first_chunk::<WORD_BYTES>()?;
    let write = WriteId(u64::from_le_bytes(*first));
    is(block, place, write).then_some(write)
}

/// Whether the block has exactly the contents of this write.
#[must_use]
pub fn is(block: &[u8], place: Place, write: WriteId) -> bool {
    if write == WriteId::ZEROES {
        return block.iter().all(|&byte| byte == 0);
    }
    let mut words = block.chunks_exact(WORD_BYTES).enumerate();
    words.all(|(index, word)| word == word_of(place, write, index).to_le_bytes())
}

/// Word 0 is the write's id, the others mix it with the place.
fn word_of(place: Place, write: WriteId, index: usize) -> u64 {
    if index == 0 {
        return write.0;
    }
    let place = (place.namespace as u64) << 48 ^ place.lba;
    let mut word = write.0 ^ place.rotate_left(20) ^ (index as u64).rotate_left(52);
    // The finalizer of SplitMix64 (Steele, Lea, Flood, 2014).
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_names_its_write_and_place() {
        let place = Place { namespace: 1, lba: 7 };
        let mut block = [0xff; 512];
        fill(&mut block, place, WriteId(42));
        assert_eq!(identify(&block, place), Some(WriteId(42)));
        assert_eq!(identify(&block, Place { lba: 8, ..place }), None, "misplaced");
        let mut torn = [0; 512];
        fill(&mut torn, place, WriteId(43));
        torn[256..].copy_from_slice(&block[256..]);
        assert_eq!(identify(&torn, place), None, "torn");
        for bit in [0, 63, 64, 4095] {
            let mut flipped = block;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(identify(&flipped, place), None, "bit {bit}");
        }
        fill(&mut block, place, WriteId::ZEROES);
        assert_eq!(identify(&block, place), Some(WriteId::ZEROES));
    }
}
