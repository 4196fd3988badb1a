//! CRC32C against published check values and against a table computed here from the polynomial.

use proptest::prelude::*;
use raceline_accel::{Crc32c, crc32c};

/// The Castagnoli polynomial 1EDC6F41h, bits reversed.
const POLYNOMIAL: u32 = 0x82F6_3B78;

const TABLE: [u32; 256] = table();

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    let mut register = 0_u32;
    while byte < 256 {
        let mut value = register;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 == 1 { (value >> 1) ^ POLYNOMIAL } else { value >> 1 };
            bit += 1;
        }
        table[byte] = value;
        byte += 1;
        register += 1;
    }
    table
}

fn reference(data: &[u8]) -> u32 {
    !data.iter().fold(!0, |register: u32, byte| {
        let [low, ..] = register.to_le_bytes();
        (register >> 8) ^ TABLE[usize::from(low ^ byte)]
    })
}

/// RFC 3720 appendix B.4, and the catalogue's check value.
#[test]
fn published_check_values() {
    let ascending: Vec<u8> = (0..32).collect();
    let descending: Vec<u8> = (0..32).rev().collect();
    let vectors: [(&[u8], u32); 6] = [
        (b"", 0),
        (b"123456789", 0xE306_9283),
        (&[0x00; 32], 0x8A91_36AA),
        (&[0xFF; 32], 0x62A8_AB43),
        (&ascending, 0x46DD_794E),
        (&descending, 0x113F_DB5C),
    ];
    for (data, expected) in vectors {
        assert_eq!(crc32c(data), expected, "{data:02x?}");
        assert_eq!(reference(data), expected, "reference, {data:02x?}");
    }
}

/// Every length around the widths at which kernels change (8, 16, 64, 256, 1024, 4096 bytes).
#[test]
fn every_short_length_and_alignment() {
    let data: Vec<u8> =
        (0..5000_u32).map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
    for length in (0..600).chain(1000..1050).chain(4000..4200) {
        for start in [0, 1, 7, 15] {
            let piece = &data[start..start + length];
            assert_eq!(crc32c(piece), reference(piece), "start {start}, length {length}");
        }
    }
}

#[test]
fn every_split_of_a_block_gives_the_same_digest() {
    let block: Vec<u8> = (0..=255).cycle().take(4096 + 24).collect();
    let whole = reference(&block);
    for split in 0..=block.len() {
        let mut digest = Crc32c::new();
        digest.update(&block[..split]);
        digest.update(&block[split..]);
        assert_eq!(digest.finalize(), whole, "split at {split}");
    }
}

#[test]
fn a_flipped_bit_changes_the_digest() {
    let mut block = vec![0x5A; 4096];
    let good = crc32c(&block);
    for byte in [0, 1, 2047, 4095] {
        for bit in 0..8 {
            block[byte] ^= 1 << bit;
            assert_ne!(crc32c(&block), good, "byte {byte} bit {bit}");
            block[byte] ^= 1 << bit;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_pieces_equal_the_reference(pieces in prop::collection::vec(
        prop::collection::vec(any::<u8>(), 0..700), 0..12,
    )) {
        let whole: Vec<u8> = pieces.concat();
        let mut digest = Crc32c::default();
        for (index, piece) in pieces.iter().enumerate() {
            let before = pieces[..index].concat();
            prop_assert_eq!(digest.finalize(), reference(&before));
            digest.update(piece);
        }
        prop_assert_eq!(digest.finalize(), reference(&whole));
        prop_assert_eq!(crc32c(&whole), reference(&whole));
    }
}
