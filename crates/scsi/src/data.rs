//! What commands do with data that are at hand: comparing, adding bits, looking for zeroes.

/// The offset of the first byte in which two slices of the same length differ.
///
/// # Panics
/// When the lengths differ: the transfer was checked against the blocks.
#[must_use]
pub fn first_difference(one: &[u8], other: &[u8]) -> Option<u64> {
    assert_eq!(one.len(), other.len(), "as long as each other");
    if one == other {
        return None;
    }
    one.iter().zip(other).position(|(one, other)| one != other).map(|offset| offset as u64)
}

/// The offset of the first byte in which blocks differ from one block that is repeated.
///
/// # Panics
/// When `block` is empty.
#[must_use]
pub fn first_difference_from_block(blocks: &[u8], block: &[u8]) -> Option<u64> {
    let mut start = 0;
    for part in blocks.chunks(block.len()) {
        if let Some(offset) = first_difference(part, &block[..part.len()]) {
            return Some(start + offset);
        }
        start += part.len() as u64;
    }
    None
}

/// Adds the bits of `data` to `blocks`, which is as long (ORWRITE).
///
/// # Panics
/// When the lengths differ.
pub fn add_bits(blocks: &mut [u8], data: &[u8]) {
    assert_eq!(blocks.len(), data.len(), "as long as each other");
    for (byte, bits) in blocks.iter_mut().zip(data) {
        *byte |= bits;
    }
}

/// Whether all bytes are zero.
#[must_use]
pub fn is_zeroes(data: &[u8]) -> bool {
    data.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_found_wherever_it_is() {
        let data: Vec<u8> = (0..=255).cycle().take(1024).collect();
        assert_eq!(first_difference(&data, &data), None);
        for at in [0, 1, 511, 512, 1023] {
            let mut other = data.clone();
            other[at] ^= 0x80;
            assert_eq!(first_difference(&data, &other), Some(at as u64));
        }
        // only the first one counts
        assert_eq!(first_difference(&[1, 2, 3, 4], &[1, 0, 3, 0]), Some(1));
        assert_eq!(first_difference(&[], &[]), None);
    }

    #[test]
    fn blocks_are_compared_with_one_that_repeats() {
        let block = [1, 2, 3, 4];
        assert_eq!(first_difference_from_block(&[1, 2, 3, 4, 1, 2, 3, 4], &block), None);
        assert_eq!(first_difference_from_block(&[1, 2, 3, 4, 1, 2, 0, 4], &block), Some(6));
        assert_eq!(first_difference_from_block(&[9, 2, 3, 4, 1, 2, 0, 4], &block), Some(0));
    }

    #[test]
    fn bits_are_added_and_none_is_taken() {
        let mut blocks = [0b0101, 0, 0xff];
        add_bits(&mut blocks, &[0b0011, 0x80, 0]);
        assert_eq!(blocks, [0b0111, 0x80, 0xff]);
    }

    #[test]
    fn zeroes_are_all_zero() {
        assert!(is_zeroes(&[]) && is_zeroes(&[0; 512]));
        assert!(!is_zeroes(&[0, 0, 1]));
    }
}
