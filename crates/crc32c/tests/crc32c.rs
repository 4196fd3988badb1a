//! CRC32C against published check values and against a table computed here from the polynomial.

use proptest::prelude::*;
use raceline_crc32c::{Crc32c, CrcPath, CrcPathError, crc32c};

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

/// The paths of this machine besides the one it chooses.
fn forced_paths() -> impl Iterator<Item = CrcPath> {
    CrcPath::ALL.into_iter().filter(|path| *path != CrcPath::Auto && path.is_available())
}

/// Every length around the widths at which the kernels of any path change.
#[test]
fn every_path_agrees_at_every_short_length_and_alignment() {
    let data: Vec<u8> =
        (0..20_000_u32).map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
    assert!(forced_paths().any(|path| path == CrcPath::Table));
    for path in forced_paths() {
        for length in (0..1100).chain(4000..4100).chain([8192, 12_345, 19_990]) {
            for start in [0, 1, 7, 10] {
                let piece = &data[start..start + length];
                let mut digest = Crc32c::new();
                digest.update_by(path, &piece[..length / 3]);
                digest.update_by(path, &piece[length / 3..]);
                assert_eq!(digest.finalize(), crc32c(piece), "{path}, {length} from {start}");
            }
        }
    }
}

#[test]
fn a_path_that_is_not_there_is_refused_with_those_that_are() {
    for path in CrcPath::ALL {
        assert_eq!(path.name().parse(), Ok(path));
        match path.checked() {
            Ok(same) => assert_eq!(same, path),
            Err(error) => {
                let text = error.to_string();
                assert!(text.contains(path.name()) && text.contains("auto, table"), "{text}");
            }
        }
    }
    let unknown = CrcPathError::Unknown { name: "mmx".to_owned() };
    assert_eq!("mmx".parse::<CrcPath>(), Err(unknown));
}

/// A CRC detects every change of one bit; this shows that all kernels look at all bits.
#[test]
fn a_million_random_bit_flips_are_all_seen() {
    const FLIPS: usize = 1_000_000;
    const FLIPS_PER_BUFFER: usize = 1000;
    let mut state = 0x243F_6A88_85A3_08D3_u64;
    let mut random = |end: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from((state >> 11) % end as u64).unwrap()
    };
    for round in 0..FLIPS / FLIPS_PER_BUFFER {
        // Mostly short: the time goes by the bytes.
        let longest = if round % 10 == 0 { 4096 } else { 600 };
        let len = random(longest) + 1;
        let mut buffer: Vec<u8> = (0..len).map(|_| random(256).to_le_bytes()[0]).collect();
        let good = crc32c(&buffer);
        for _ in 0..FLIPS_PER_BUFFER {
            let (byte, bit) = (random(len), random(8));
            buffer[byte] ^= 1 << bit;
            assert_ne!(crc32c(&buffer), good, "bit {bit} of byte {byte} of {len}, {round}");
            buffer[byte] ^= 1 << bit;
        }
        assert_eq!(crc32c(&buffer), good);
        assert_eq!(reference(&buffer), good);
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
