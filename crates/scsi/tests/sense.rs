//! Sense data, unit attentions and errors of devices, byte for byte.

mod common;

use common::hex;
use raceline_scsi::{
    Attentions, DeviceError, FieldPointer, Refusal, Sense, SenseKey, Status, UnitAttention,
};

#[test]
fn fixed_format() {
    let bytes = |sense: Sense| sense.encode(false).as_bytes().to_vec();
    let plain = hex("70 00 05 00 00 00 00 0a 00 00 00 00 20 00 00 00 00 00");
    assert_eq!(bytes(Sense::INVALID_OPCODE), plain);
    let miscompare = hex("f0 00 0e 00 00 01 ff 0a 00 00 00 00 1d 00 00 00 00 00");
    assert_eq!(bytes(Sense::miscompare(511)), miscompare);
    // 32 bits of information: what is larger is not there, and VALID says so
    let large = hex("70 00 0e 00 00 00 00 0a 00 00 00 00 1d 00 00 00 00 00");
    assert_eq!(bytes(Sense::miscompare(1 << 32)), large);
    let byte = hex("70 00 05 00 00 00 00 0a 00 00 00 00 24 00 00 c0 00 07");
    assert_eq!(bytes(Sense::bad_cdb(7)), byte);
    let bit = hex("70 00 05 00 00 00 00 0a 00 00 00 00 24 00 00 cf 00 01");
    assert_eq!(bytes(Sense::bad_cdb_bit(1, 7)), bit);
    let parameter = hex("70 00 05 00 00 00 00 0a 00 00 00 00 26 00 00 80 01 02");
    assert_eq!(bytes(Sense::bad_parameter(0x102)), parameter);
}

#[test]
fn descriptor_format() {
    let bytes = |sense: Sense| sense.encode(true).as_bytes().to_vec();
    assert_eq!(bytes(Sense::INVALID_OPCODE), hex("72 05 20 00 00 00 00 00"));
    let miscompare = hex("72 0e 1d 00 00 00 00 0c 00 0a 80 00 00 00 00 01 00 00 00 00");
    assert_eq!(bytes(Sense::miscompare(1 << 32)), miscompare);
    let bit = hex("72 05 24 00 00 00 00 08 02 06 00 00 c8 00 01 00");
    assert_eq!(bytes(Sense::bad_cdb_bit(1, 0)), bit);
    let field = FieldPointer { in_cdb: false, bit: None, byte: 9 };
    let both = Sense::READ_ERROR.with_information(5).at(field);
    let expected = hex("72 03 11 00 00 00 00 14 00 0a 80 00 00 00 00 00 00 00 00 05
        02 06 00 00 80 00 09 00");
    assert_eq!(bytes(both), expected);
}

#[test]
fn codes() {
    for (sense, key, code) in [
        (Sense::LBA_OUT_OF_RANGE, 5, 0x2100),
        (Sense::NO_SUCH_LUN, 5, 0x2500),
        (Sense::PARAMETER_LIST_LENGTH, 5, 0x1a00),
        (Sense::SAVING_NOT_SUPPORTED, 5, 0x3900),
        (Sense::INVALID_RELEASE, 5, 0x2604),
        (Sense::NO_REGISTRATION_RESOURCES, 5, 0x5504),
        (Sense::INVALID_TRANSFER_LENGTH, 5, 0x0e03),
        (Sense::BECOMING_READY, 2, 0x0401),
        (Sense::NO_MEDIUM, 2, 0x3a00),
        (Sense::UNEXPECTED_UNSOLICITED_DATA, 0xb, 0x0c0c),
        (Sense::WRONG_AMOUNT_OF_DATA, 0xb, 0x0c0d),
        (Sense::PROTOCOL_CRC_ERROR, 0xb, 0x4705),
        (Sense::SNACK_REJECTED, 0xb, 0x1113),
        (Sense::SPACE_EXHAUSTED, 7, 0x2707),
    ] {
        assert_eq!((sense.key.to_wire(), sense.code), (key, code));
    }
}

#[test]
fn errors_of_devices() {
    let code = |error: DeviceError| match error.refusal() {
        Refusal::Check(sense) => (sense.key.to_wire(), sense.code),
        Refusal::Busy => (0, 0x08),
        Refusal::Conflict => (0, 0x18),
    };
    for (error, expected) in [
        (DeviceError::ReadFault, (3, 0x1100)),
        (DeviceError::WriteFault, (3, 0x0c00)),
        (DeviceError::NoSpace, (7, 0x2707)),
        (DeviceError::ReadOnly, (7, 0x2700)),
        (DeviceError::Gone, (2, 0x0400)),
        (DeviceError::Unknown, (0xb, 0)),
        (DeviceError::Transient, (0, 0x08)),
        (DeviceError::NotSupported, (4, 0x4400)),
        (DeviceError::Internal, (4, 0x4400)),
        (DeviceError::Nvme { sct: 2, sc: 0x81 }, (3, 0x1100)),
        (DeviceError::Nvme { sct: 2, sc: 0x80 }, (3, 0x0c00)),
        (DeviceError::Nvme { sct: 2, sc: 0x85 }, (0xe, 0x1d00)),
        (DeviceError::Nvme { sct: 0, sc: 0x20 }, (7, 0x2700)),
        (DeviceError::Nvme { sct: 0, sc: 0x81 }, (7, 0x2707)),
        (DeviceError::Nvme { sct: 0, sc: 0x83 }, (0, 0x18)),
        (DeviceError::Nvme { sct: 3, sc: 0x71 }, (0xb, 0)),
        (DeviceError::Nvme { sct: 7, sc: 0xff }, (4, 0x4400)),
    ] {
        assert_eq!(code(error), expected, "{error:?}");
    }
}

#[test]
fn statuses() {
    let all = [
        (Status::Good, 0x00),
        (Status::CheckCondition, 0x02),
        (Status::ConditionMet, 0x04),
        (Status::Busy, 0x08),
        (Status::ReservationConflict, 0x18),
        (Status::TaskSetFull, 0x28),
        (Status::TaskAborted, 0x40),
    ];
    for (status, byte) in all {
        assert_eq!(status.to_wire(), byte);
    }
    assert_eq!(Refusal::Conflict.status(), Status::ReservationConflict);
    assert_eq!((Refusal::Conflict.sense(), Refusal::Busy.sense()), (None, None));
    let check = Refusal::from(Sense::NO_MEDIUM);
    assert_eq!((check.status(), check.sense()), (Status::CheckCondition, Some(&Sense::NO_MEDIUM)));
}

fn all_of(mut attentions: Attentions) -> Vec<UnitAttention> {
    std::iter::from_fn(|| attentions.take()).collect()
}

#[test]
fn unit_attentions_are_told_once_each_by_rank() {
    let mut attentions = Attentions::NONE;
    for attention in UnitAttention::ALL.into_iter().rev() {
        attentions.add(attention);
        attentions.add(attention);
    }
    // power on, which came last, stands for all of them
    assert_eq!(all_of(attentions), [UnitAttention::PowerOn]);
    for attention in UnitAttention::ALL {
        attentions.add(attention);
    }
    // each reset stands for what is less, and the later things stay
    assert_eq!(all_of(attentions)[..2], [UnitAttention::PowerOn, UnitAttention::TargetReset]);
    assert_eq!(all_of(attentions), UnitAttention::ALL);
    let mut attentions = Attentions::NONE;
    attentions.add(UnitAttention::CapacityChanged);
    attentions.add(UnitAttention::ModeChanged);
    attentions.add(UnitAttention::LunsChanged);
    attentions.luns_are_known();
    let expected = [UnitAttention::ModeChanged, UnitAttention::CapacityChanged];
    assert_eq!(all_of(attentions), expected);
    attentions.add(UnitAttention::LunReset);
    assert_eq!(all_of(attentions), [UnitAttention::LunReset]);
}

#[test]
fn codes_of_unit_attentions() {
    let codes: Vec<u16> = UnitAttention::ALL.map(|one| one.sense().code).to_vec();
    let expected = [
        0x2900, 0x2902, 0x2903, 0x2907, 0x2a01, 0x2a03, 0x2a04, 0x2a05, 0x2a06, 0x2a09, 0x2f00,
        0x3f03, 0x3f0e,
    ];
    assert_eq!(codes, expected);
    assert!(UnitAttention::ALL.iter().all(|one| one.sense().key == SenseKey::UnitAttention));
}
