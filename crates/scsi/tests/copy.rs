//! Extended Copy: parameter lists, segments, and what is told of copies.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use common::{BLOCK_COUNT, Disk, UUID, hex, request};
use raceline_scsi::copy::{
    CopyBytes, CopyList, CopyState, CopyStatus, MAX_COPY_SEGMENTS, MAX_COPY_TARGETS,
    MAX_DESCRIPTOR_BYTES, aborted,
};
use raceline_scsi::{
    DataDirection, Identity, Lun, Parameters, Plan, Refusal, Refused, Sense, SenseKey,
    reply_copy_status,
};

/// The NAA identifier of a logical unit in an identification descriptor.
fn naa(lun: &Lun) -> [u8; 32] {
    let mut descriptor = [0; 32];
    (descriptor[0], descriptor[4], descriptor[5], descriptor[7]) = (0xe4, 0x01, 0x03, 16);
    descriptor[8..24].copy_from_slice(&lun.identity.naa());
    descriptor[28..32].copy_from_slice(&lun.block_size.to_be_bytes());
    descriptor
}

/// A segment from the first target to the second.
fn segment(blocks: u16, from: u64, to: u64) -> [u8; 28] {
    let mut segment = [0; 28];
    (segment[0], segment[3], segment[7]) = (0x02, 0x18, 1);
    segment[10..12].copy_from_slice(&blocks.to_be_bytes());
    segment[12..20].copy_from_slice(&from.to_be_bytes());
    segment[20..28].copy_from_slice(&to.to_be_bytes());
    segment
}

fn list(targets: &[[u8; 32]], segments: &[[u8; 28]]) -> Vec<u8> {
    let mut list = vec![7, 0];
    list.extend(u16::try_from(targets.len() * 32).unwrap().to_be_bytes());
    list.extend([0; 4]);
    list.extend(u32::try_from(segments.len() * 28).unwrap().to_be_bytes());
    list.extend([0; 4]);
    list.extend(targets.concat());
    list.extend(segments.concat());
    list
}

/// Two disks, and the descriptors of both.
fn disks() -> (Lun, Lun, [[u8; 32]; 2]) {
    let (one, mut other) = (common::lun(), common::lun());
    other.identity = Identity::of_uuid([9; 16]);
    let targets = [naa(&one), naa(&other)];
    (one, other, targets)
}

/// What a list with this one segment copies between two disks.
fn resolve(segment: [u8; 28], change: impl FnOnce(&mut Lun, &mut Lun)) -> Result<CopyBytes, Sense> {
    let (mut one, mut other, mut targets) = disks();
    change(&mut one, &mut other);
    for (target, lun) in targets.iter_mut().zip([&one, &other]) {
        target[28..32].copy_from_slice(&lun.block_size.to_be_bytes());
    }
    let copy = CopyList::parse(&list(&targets, &[segment])).unwrap();
    let segment = copy.segment(0).unwrap();
    let found = copy.targets(segment)?;
    assert!(found.0.names(&one) && !found.0.names(&other) && found.1.names(&other));
    segment.resolve(found, (&one, &other))
}

#[test]
fn a_segment_is_bytes_from_one_disk_to_the_other() {
    let same = |_: &mut Lun, _: &mut Lun| {};
    let bytes = resolve(segment(8, 100, 200), same).unwrap();
    assert_eq!((bytes.from, bytes.to, bytes.len), (100 * 512, 200 * 512, 8 * 512));
    // Blocks of the source, or with DC of the destination.
    let larger = |_: &mut Lun, other: &mut Lun| other.block_size = 4096;
    let bytes = resolve(segment(8, 100, 2), larger).unwrap();
    assert_eq!((bytes.from, bytes.to, bytes.len), (100 * 512, 2 * 4096, 4096));
    let mut counted = segment(2, 100, 2);
    counted[1] = 0x02;
    assert_eq!(resolve(counted, larger).unwrap().len, 2 * 4096);
    assert_eq!(resolve(segment(7, 100, 2), larger), Err(Sense::UNEXPECTED_INEXACT_SEGMENT));
    assert_eq!(resolve(segment(0, 0, 0), same).unwrap().len, 0);
}

#[test]
fn a_segment_that_cannot_be_copied_says_why() {
    let same = |_: &mut Lun, _: &mut Lun| {};
    let last = BLOCK_COUNT - 1;
    assert!(resolve(segment(1, last, last), same).is_ok());
    for (from, to) in [(last, 0), (0, last), (u64::MAX, 0), (0, u64::MAX), (BLOCK_COUNT, 0)] {
        assert_eq!(resolve(segment(2, from, to), same), Err(Sense::NONE), "{from} {to}");
    }
    let protected = |_: &mut Lun, other: &mut Lun| other.read_only = true;
    assert_eq!(resolve(segment(1, 0, 0), protected), Err(Sense::WRITE_PROTECTED));
    assert!(resolve(segment(1, 0, 0), |one, _| one.read_only = true).is_ok(), "it is only read");
    let mut nowhere = segment(1, 0, 0);
    nowhere[7] = 2;
    assert_eq!(resolve(nowhere, same), Err(Sense::UNREACHABLE_COPY_TARGET));
    let huge = |one: &mut Lun, other: &mut Lun| {
        (one.block_size, other.block_size) = (4096, 4096);
        (one.block_count, other.block_count) = (1 << 20, 1 << 20);
    };
    assert!(resolve(segment(16 << 10, 0, 0), huge).is_ok());
    assert_eq!(
        resolve(segment((16 << 10) + 1, 0, 0), huge),
        Err(Sense::INVALID_FIELD_IN_PARAMETERS)
    );
    let sense = aborted(3, &Sense::WRITE_PROTECTED);
    assert_eq!((sense.key, sense.code, sense.segment), (SenseKey::CopyAborted, 0x2700, Some(3)));
    let fixed = "70 00 0a 00 00 00 00 0a 00 00 00 03 27 00 00 00 00 00";
    assert_eq!(sense.encode(false).as_bytes(), hex(fixed));
    let descriptors = "72 0a 27 00 00 00 00 0c 01 0a 00 00 00 00 00 03 00 00 00 00";
    assert_eq!(sense.encode(true).as_bytes(), hex(descriptors));
}

#[test]
fn a_target_is_named_by_any_designator_of_the_disk_that_fits() {
    let (one, _, targets) = disks();
    let names = |kind: u8, id: &[u8], lun: &Lun| {
        let mut target = targets[0];
        (target[5], target[7]) = (kind, u8::try_from(id.len()).unwrap());
        target[8..28].fill(0);
        target[8..8 + id.len()].copy_from_slice(id);
        let copy = CopyList::parse(&list(&[target, target], &[segment(1, 0, 0)])).unwrap();
        copy.targets(copy.segment(0).unwrap()).unwrap().0.names(lun)
    };
    assert!(names(0x02, &[0xa0; 16], &one) && names(0x02, &[0xe0; 8], &one));
    assert!(names(0x0a, &[&[0x10, 0][..], &UUID].concat(), &one));
    assert!(!names(0x03, &[0xa0; 16], &one) && !names(0x02, &[0xa0; 15], &one));
    assert!(!names(0x12, &[0xa0; 16], &one), "a port, and not a logical unit");
    let mut long = targets[0];
    long[7] = 21;
    let copy = CopyList::parse(&list(&[long, long], &[segment(1, 0, 0)])).unwrap();
    assert!(!copy.targets(copy.segment(0).unwrap()).unwrap().0.names(&one));
    // No disk, and another block size than it says.
    for (at, value, why) in [
        (1, 0x01, Sense::INCORRECT_COPY_TARGET_TYPE),
        (30, 0x10, Sense::INVALID_FIELD_IN_PARAMETERS),
    ] {
        let (one, other, mut targets) = disks();
        targets[1][at] = value;
        let copy = CopyList::parse(&list(&targets, &[segment(1, 0, 0)])).unwrap();
        let segment = copy.segment(0).unwrap();
        assert_eq!(segment.resolve(copy.targets(segment).unwrap(), (&one, &other)), Err(why));
    }
}

#[test]
fn lists_that_are_wrong_copy_nothing() {
    let (_, _, targets) = disks();
    let good = list(&targets, &[segment(1, 0, 0), segment(2, 0, 0)]);
    let copy = CopyList::parse(&good).unwrap();
    assert_eq!((copy.id, copy.segment(1).is_some(), copy.segment(2)), (Some(7), true, None));
    for len in 0..good.len() {
        assert_eq!(CopyList::parse(&good[..len]), Err(Sense::PARAMETER_LIST_LENGTH), "{len}");
    }
    let with = |at: usize, value: u8| {
        let mut list = good.clone();
        list[at] = value;
        CopyList::parse(&list)
    };
    assert_eq!(with(1, 0x10).unwrap().id, Some(7));
    assert_eq!(with(1, 0x18), Err(Sense::bad_parameter(0)), "no identifier, and one is there");
    assert_eq!(with(1, 0x08), Err(Sense::bad_parameter(1)));
    assert_eq!(with(3, 63), Err(Sense::bad_parameter(2)));
    assert_eq!(with(15, 1), Err(Sense::INLINE_DATA_LENGTH_EXCEEDED));
    assert_eq!(with(16, 0xe0), Err(Sense::UNSUPPORTED_TARGET_DESCRIPTOR));
    assert_eq!(with(80, 0x03), Err(Sense::UNSUPPORTED_SEGMENT_DESCRIPTOR));
    assert_eq!(with(83, 0x14), Err(Sense::INVALID_FIELD_IN_PARAMETERS));
    let mut none = good.clone();
    (none[0], none[1]) = (0, 0x18);
    assert_eq!(CopyList::parse(&none).unwrap().id, None);
    let (many, some) = (usize::from(MAX_COPY_TARGETS), usize::from(MAX_COPY_SEGMENTS));
    let parse = |targets_count, segments_count| {
        let (targets, segments) =
            (vec![targets[0]; targets_count], vec![segment(1, 0, 0); segments_count]);
        CopyList::parse(&list(&targets, &segments)).map(|_| ())
    };
    assert_eq!(parse(many, some), Ok(()));
    assert_eq!(parse(many + 1, 1), Err(Sense::TOO_MANY_TARGET_DESCRIPTORS));
    assert_eq!(parse(1, some + 1), Err(Sense::TOO_MANY_SEGMENT_DESCRIPTORS));
    assert_eq!(parse(many + 1, some + 1), Err(Sense::PARAMETER_LIST_LENGTH));
    assert_eq!(parse(0, 0), Ok(()));
}

/// The CDB of EXTENDED COPY, or of RECEIVE COPY RESULTS with a service action.
fn cdb(opcode: u8, action: u8, id: u8, length: u32) -> [u8; 16] {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1], cdb[2]) = (opcode, action, id);
    cdb[10..14].copy_from_slice(&length.to_be_bytes());
    cdb
}

#[test]
fn parameters_are_collected_up_to_the_longest_list() {
    let mut disk = Disk::new();
    let most = 16 + MAX_DESCRIPTOR_BYTES;
    match disk.plan(&request(&cdb(0x83, 0, 0, most), DataDirection::Out, most)) {
        Plan::Collect { parameters: Parameters::ExtendedCopy, transfer } => {
            assert_eq!(transfer.bytes, most);
        }
        other => panic!("{other:?}"),
    }
    let long = disk.sense(&cdb(0x83, 0, 0, most + 1), DataDirection::Out, most + 1);
    assert_eq!(long, Sense::PARAMETER_LIST_LENGTH);
    let none = disk.plan(&request(&cdb(0x83, 0, 0, 0), DataDirection::None, 0));
    assert!(matches!(none, Plan::Reply(_)), "{none:?}");
    disk.admission.reserved = true;
    disk.admission.reserved_by_other = true;
    let plan = disk.plan(&request(&cdb(0x83, 0, 0, most), DataDirection::Out, most));
    assert!(matches!(plan, Plan::Refuse(Refused { why: Refusal::Conflict, .. })), "{plan:?}");
}

#[test]
fn operating_parameters_and_the_page_tell_the_same_limits() {
    let mut disk = Disk::new();
    let expected = hex("00 00 00 2a 01 00 00 00 00 08 00 10 00 00 02 c0 04 00 00 00
        00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 10 10 09 00 00 00 00 00 02 02 e4");
    assert_eq!(disk.data(&cdb(0x84, 3, 0, 1024)), expected);
    assert_eq!(disk.data(&cdb(0x84, 3, 0, 8)), expected[..8]);
    let page = disk.data(&[0x12, 1, 0x8f, 2, 0, 0]);
    let commands = "00 8f 00 5c 00 01 00 08 07 83 01 00 84 02 00 03";
    let parameters = "00 04 00 1c 00 00 00 00 00 08 00 10 00 00 02 c0 00 00 00 00
        00 00 00 00 00 00 00 00 00 00 00 00";
    let descriptors = "00 08 00 04 02 02 e4 00";
    let general = "80 01 00 20 00 00 00 10 00 00 00 10 04 00 00 00 09 00 00 00
        00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00";
    let expected = [commands, parameters, descriptors, general].map(hex).concat();
    assert_eq!(usize::from(u16::from_be_bytes([page[2], page[3]])), page.len() - 4);
    assert_eq!(page[4..], expected[4..]);
}

#[test]
fn the_status_of_a_copy_is_told_or_refused() {
    let mut disk = Disk::new();
    let asked = request(&cdb(0x84, 0, 7, 255), DataDirection::In, 255);
    assert_eq!(disk.plan(&asked), Plan::CopyStatus { id: 7, allocation: 255 });
    let status = |state, bytes| {
        let status = CopyStatus { state, segments: 2, bytes };
        match reply_copy_status(&asked, 255, Some(status)) {
            Plan::Reply(reply) => reply.data,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(status(CopyState::Done, 0x1_0000), hex("00 00 00 08 01 00 02 00 00 01 00 00"));
    assert_eq!(status(CopyState::Failed, 1 << 32), hex("00 00 00 08 02 00 02 01 00 40 00 00"));
    assert_eq!(status(CopyState::InProgress, 0)[4], 0);
    let Plan::Refuse(refused) = reply_copy_status(&asked, 255, None) else { panic!() };
    assert_eq!(refused.why, Sense::bad_cdb(2).into());
}
