//! DSA descriptors and completion records, byte by byte as the specification has them.
//!
//! Sections are those of the Intel Data Streaming Accelerator Architecture Specification, order
//! number 341204-006US, revision 3.0.

use proptest::prelude::*;
use raceline_dsa::descriptor::{
    Completion, CompletionRecord, CrcSeed, Descriptor, DescriptorSlot, DeviceOperation, Flags,
    Status,
};

const RECORD: u64 = 0x1122_3344_5566_7780;
const FIRST: u64 = 0xA1A2_A3A4_A5A6_A7A8;
const SECOND: u64 = 0xB1B2_B3B4_B5B6_B7B8;
const THIRD: u64 = 0xC1C2_C3C4_C5C6_C7C8;
const BYTES: u32 = 0xD1D2_D3D4;

/// What all have in common (8.1): byte 0 trusted fields, 4 flags, 7 operation, 8 record address.
/// Flag bits 2 and 3 are Completion Record Address Valid and Request Completion Record (8.1.3).
fn common(operation: u8, flags: [u8; 3]) -> [u8; 64] {
    let mut bytes = [0; 64];
    bytes[4..7].copy_from_slice(&flags);
    bytes[7] = operation;
    bytes[8..16].copy_from_slice(&[0x80, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]);
    bytes
}

fn put(bytes: &mut [u8; 64], offset: usize, field: &[u8]) {
    bytes[offset..offset + field.len()].copy_from_slice(field);
}

const FIRST_BYTES: [u8; 8] = [0xA8, 0xA7, 0xA6, 0xA5, 0xA4, 0xA3, 0xA2, 0xA1];
const SECOND_BYTES: [u8; 8] = [0xB8, 0xB7, 0xB6, 0xB5, 0xB4, 0xB3, 0xB2, 0xB1];
const THIRD_BYTES: [u8; 8] = [0xC8, 0xC7, 0xC6, 0xC5, 0xC4, 0xC3, 0xC2, 0xC1];
const SIZE_BYTES: [u8; 4] = [0xD4, 0xD3, 0xD2, 0xD1];

#[test]
fn sizes_and_alignment() {
    assert_eq!((size_of::<Descriptor>(), align_of::<Descriptor>()), (64, 64)); // 8.1
    assert_eq!((size_of::<DescriptorSlot>(), align_of::<DescriptorSlot>()), (64, 64)); // 8.3.2
    assert_eq!((size_of::<CompletionRecord>(), align_of::<CompletionRecord>()), (32, 32)); // 8.2
}

/// Table 8-2.
#[test]
fn operation_codes() {
    let codes = DeviceOperation::ALL.map(|operation| operation as u8);
    assert_eq!(codes, [0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x09, 0x10, 0x11]);
    for code in 0..=255 {
        let known = DeviceOperation::from_code(code).map(|operation| operation as u8);
        assert_eq!(known, codes.contains(&code).then_some(code));
    }
}

/// Table 8-3, and table 8-19 for the last three.
#[test]
fn flag_bits() {
    let flags = [
        (Flags::FENCE, 0),
        (Flags::BLOCK_ON_FAULT, 1),
        (Flags::RECORD_ADDRESS_VALID, 2),
        (Flags::REQUEST_RECORD, 3),
        (Flags::REQUEST_INTERRUPT, 4),
        (Flags::CHECK_RESULT, 7),
        (Flags::CACHE_CONTROL, 8),
        (Flags::STRICT_ORDERING, 13),
        (Flags::READBACK, 14),
        (Flags::CRC_READ_SEED, 16),
        (Flags::CRC_BYPASS_INVERSION, 17),
        (Flags::CRC_BYPASS_DATA_REFLECTION, 18),
    ];
    for (flag, bit) in flags {
        assert_eq!(flag.bits(), 1 << bit, "bit {bit}");
    }
}

/// 8.3.1.
#[test]
fn nop() {
    let expected = common(0x00, [0x0C, 0x00, 0x00]);
    assert_eq!(Descriptor::nop(RECORD, Flags::NONE).bytes(), &expected);
    let fenced = common(0x00, [0x0D, 0x00, 0x00]);
    assert_eq!(Descriptor::nop(RECORD, Flags::FENCE).bytes(), &fenced);
}

/// 8.3.2: Descriptor List Address at 16, Descriptor Count at 32.
#[test]
fn batch() {
    let mut expected = common(0x01, [0x0C, 0x00, 0x00]);
    put(&mut expected, 16, &FIRST_BYTES);
    put(&mut expected, 32, &[0x20, 0x00, 0x00, 0x00]);
    assert_eq!(Descriptor::batch(RECORD, Flags::NONE, FIRST, 32).bytes(), &expected);
}

/// 8.3.3.
#[test]
fn drain() {
    assert_eq!(Descriptor::drain(RECORD, Flags::NONE).bytes(), &common(0x02, [0x0C, 0x00, 0x00]));
}

/// 8.3.4: Source at 16, Destination at 24, Transfer Size at 32.
#[test]
fn memory_move() {
    let mut expected = common(0x03, [0x0C, 0x01, 0x00]);
    put(&mut expected, 16, &FIRST_BYTES);
    put(&mut expected, 24, &SECOND_BYTES);
    put(&mut expected, 32, &SIZE_BYTES);
    let built = Descriptor::memory_move(RECORD, Flags::CACHE_CONTROL, FIRST, SECOND, BYTES);
    assert_eq!(built.bytes(), &expected);
}

/// 8.3.5: Pattern Lower at 16, Destination at 24.
#[test]
fn fill() {
    let mut expected = common(0x04, [0x0E, 0x00, 0x00]);
    put(&mut expected, 16, &FIRST_BYTES);
    put(&mut expected, 24, &SECOND_BYTES);
    put(&mut expected, 32, &SIZE_BYTES);
    let built = Descriptor::fill(RECORD, Flags::BLOCK_ON_FAULT, FIRST, SECOND, BYTES);
    assert_eq!(built.bytes(), &expected);
}

/// 8.3.6: Source1 at 16, Source2 at 24, Expected Result at 40 is 0.
#[test]
fn compare() {
    let mut expected = common(0x05, [0x8C, 0x00, 0x00]);
    put(&mut expected, 16, &FIRST_BYTES);
    put(&mut expected, 24, &SECOND_BYTES);
    put(&mut expected, 32, &SIZE_BYTES);
    let built = Descriptor::compare(RECORD, Flags::CHECK_RESULT, FIRST, SECOND, BYTES);
    assert_eq!(built.bytes(), &expected);
}

/// 8.3.10: Destination1 at 24, Destination2 at 40.
#[test]
fn dualcast() {
    let mut expected = common(0x09, [0x0C, 0x01, 0x00]);
    put(&mut expected, 16, &FIRST_BYTES);
    put(&mut expected, 24, &SECOND_BYTES);
    put(&mut expected, 32, &SIZE_BYTES);
    put(&mut expected, 40, &THIRD_BYTES);
    let flags = Flags::CACHE_CONTROL;
    let built = Descriptor::dualcast(RECORD, flags, FIRST, [SECOND, THIRD], BYTES);
    assert_eq!(built.bytes(), &expected);
    assert_eq!(built.second_destination(), THIRD);
}

/// 8.3.12: CRC Seed at 40; with Read CRC Seed (bit 16), CRC Seed Address at 48, and the seed zero.
#[test]
fn crc_generation() {
    let mut expected = common(0x10, [0x0C, 0x00, 0x00]);
    put(&mut expected, 16, &FIRST_BYTES);
    put(&mut expected, 32, &SIZE_BYTES);
    put(&mut expected, 40, &[0xE4, 0xE3, 0xE2, 0xE1]);
    let seed = CrcSeed::Value(0xE1E2_E3E4);
    let built = Descriptor::crc(RECORD, Flags::NONE, FIRST, BYTES, seed);
    assert_eq!(built.bytes(), &expected);
    assert_eq!(built.crc_seed(), seed);

    let mut expected = common(0x10, [0x0D, 0x00, 0x01]);
    put(&mut expected, 16, &FIRST_BYTES);
    put(&mut expected, 32, &SIZE_BYTES);
    put(&mut expected, 48, &THIRD_BYTES);
    let built = Descriptor::crc(RECORD, Flags::FENCE, FIRST, BYTES, CrcSeed::At(THIRD));
    assert_eq!(built.bytes(), &expected);
    assert_eq!(built.crc_seed(), CrcSeed::At(THIRD));
}

/// 8.3.13.
#[test]
fn copy_crc() {
    let mut expected = common(0x11, [0x0C, 0x01, 0x00]);
    put(&mut expected, 16, &FIRST_BYTES);
    put(&mut expected, 24, &SECOND_BYTES);
    put(&mut expected, 32, &SIZE_BYTES);
    put(&mut expected, 40, &[0xE4, 0xE3, 0xE2, 0xE1]);
    let (flags, seed) = (Flags::CACHE_CONTROL, CrcSeed::Value(0xE1E2_E3E4));
    let built = Descriptor::copy_crc(RECORD, flags, FIRST, SECOND, BYTES, seed);
    assert_eq!(built.bytes(), &expected);
}

/// 8.2, 8.2.1 to 8.2.5, 8.3.12: Status at 0, Result at 1, Bytes Completed at 4, Fault Address at 8,
/// CRC Value at 16.
#[test]
fn completion_record() {
    let record = CompletionRecord::default();
    assert_eq!(record.bytes(), [0; 32]);
    assert_eq!(record.poll(), None);
    let completion = Completion {
        status: Status::PageFault,
        fault_on_write: true,
        result: 0x01,
        bytes_completed: 0x0403_0201,
        fault_address: 0x1817_1615_1413_1211,
        crc: 0x2423_2221,
    };
    record.write(&completion);
    let mut expected = [0; 32];
    expected[0] = 0x83; // bit 7: on a write
    expected[1] = 0x01;
    expected[4..8].copy_from_slice(&[0x01, 0x02, 0x03, 0x04]);
    expected[8..16].copy_from_slice(&[0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18]);
    expected[16..20].copy_from_slice(&[0x21, 0x22, 0x23, 0x24]);
    assert_eq!(record.bytes(), expected);
    assert_eq!(record.poll(), Some(completion));
    assert_eq!(CompletionRecord::CRC_OFFSET, 16);
    record.clear();
    assert_eq!(record.bytes(), [0; 32]);
}

/// Table 5-6.
#[test]
fn status_codes() {
    let known = [
        (Status::Success, 0x01),
        (Status::FalsePredicate, 0x02),
        (Status::PageFault, 0x03),
        (Status::PageRequestFailed, 0x04),
        (Status::BatchFailed, 0x05),
        (Status::BatchPageFault, 0x06),
    ];
    for (status, code) in known {
        assert_eq!((status.code(), Status::from_code(code)), (code, status));
    }
    let errors = [
        (Status::BAD_OPERATION, 0x10),
        (Status::BAD_FLAGS, 0x11),
        (Status::RESERVED_NOT_ZERO, 0x12),
        (Status::BAD_TRANSFER_SIZE, 0x13),
        (Status::BAD_DESCRIPTOR_COUNT, 0x14),
        (Status::OVERLAP, 0x16),
        (Status::DUALCAST_MISALIGNED, 0x17),
        (Status::LIST_MISALIGNED, 0x18),
        (Status::ADDRESS_MISALIGNED, 0x1C),
        (Status::HARDWARE_READ, 0x20),
    ];
    for (constant, code) in errors {
        assert_eq!(constant, code);
    }
    for code in 7..=0x3F {
        assert_eq!(Status::from_code(code), Status::Error(code));
    }
}

proptest! {
    #[test]
    fn whatever_a_device_is_given_it_reads(bytes in prop::array::uniform32(any::<u8>())) {
        let mut all = [0; 64];
        all[..32].copy_from_slice(&bytes);
        all[32..].copy_from_slice(&bytes);
        let descriptor = Descriptor::from_bytes(all);
        let slot = DescriptorSlot::default();
        slot.store(&descriptor);
        prop_assert_eq!(slot.load(), descriptor);
        prop_assert_eq!(descriptor.bytes(), &all);
        let flags = u32::from_le_bytes([all[4], all[5], all[6], 0]);
        prop_assert_eq!(descriptor.flags().bits(), flags);
        let text = format!("{descriptor:?}");
        prop_assert!(text.contains("transfer_size"));
    }
}
