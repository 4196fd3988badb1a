//! I/O commands: parsing and every check.

use raceline_proto::controller::{
    CopyCommand, IoCommand, Limits, Namespace, find_namespace, parse_io, parse_ranges,
};
use raceline_proto::nvme::opcode::{admin, fabrics, io};
use raceline_proto::nvme::rw::{BlockRange, CopyRange, DatasetRange};
use raceline_proto::nvme::{Direction, NamespaceId, SglDescriptor, Sqe, Status, Transfer};
use zerocopy::IntoBytes;

use super::support::namespace;

const FUA: u32 = 1 << 30;

fn parse(sqe: &Sqe) -> Result<(IoCommand, Transfer), Status> {
    let mut protected = namespace(2);
    protected.read_only = true;
    parse_io(sqe, &[namespace(1), protected], &Limits::DEFAULT)
}

/// A command on namespace 1 with blocks and, where it moves data, their length in the SGL.
fn command(opcode: u8, slba: u64, block_count: u32) -> Sqe {
    let len = match opcode {
        io::READ | io::WRITE | io::COMPARE => block_count * 512,
        _ => 0,
    };
    let mut sqe = Sqe {
        opc: opcode,
        flags: Sqe::PSDT_SGL,
        nsid: 1.into(),
        sgl1: SglDescriptor::transport(len),
        ..Sqe::default()
    };
    BlockRange { slba, block_count }.write(&mut sqe);
    sqe
}

fn dataset_management(ranges: u32, len: u32) -> Sqe {
    Sqe {
        cdw10: (ranges - 1).into(),
        cdw11: 4.into(),
        cdw12: 0.into(),
        sgl1: SglDescriptor::transport(len),
        ..command(io::DATASET_MANAGEMENT, 0, 1)
    }
}

#[test]
fn read_write_and_compare() {
    let to_host = Transfer { direction: Direction::ControllerToHost, len: 4096 };
    let from_host = Transfer { direction: Direction::HostToController, len: 4096 };
    let (slba, block_count) = (2040, 8);
    assert_eq!(
        parse(&command(io::READ, slba, block_count)),
        Ok((IoCommand::Read { namespace: 0, slba, block_count, fua: false }, to_host))
    );
    let write = IoCommand::Write { namespace: 0, slba, block_count, fua: true };
    let sqe = Sqe { cdw12: (FUA | 7).into(), ..command(io::WRITE, slba, block_count) };
    assert_eq!(parse(&sqe), Ok((write, from_host)));
    let in_capsule = Sqe { sgl1: SglDescriptor::in_capsule(4096), ..sqe };
    assert_eq!(parse(&in_capsule), Ok((write, from_host)));
    assert_eq!(
        parse(&command(io::COMPARE, slba, block_count)),
        Ok((IoCommand::Compare { namespace: 0, slba, block_count }, from_host))
    );
}

#[test]
fn flush_names_one_namespace() {
    let flush = Ok((IoCommand::Flush { namespace: 0 }, Transfer::default()));
    assert_eq!(parse(&command(io::FLUSH, 0, 1)), flush);
    let broadcast = Sqe { nsid: u32::MAX.into(), ..command(io::FLUSH, 0, 1) };
    assert_eq!(parse(&broadcast), Err(Status::INVALID_NAMESPACE.dnr()), "as VWC says");
}

#[test]
fn write_zeroes_has_no_data_and_no_mdts() {
    let sqe = Sqe { cdw12: (FUA | 1 << 25 | 2047).into(), ..command(io::WRITE_ZEROES, 0, 2048) };
    let zeroes = IoCommand::WriteZeroes {
        namespace: 0,
        slba: 0,
        block_count: 2048,
        deallocate: true,
        fua: true,
    };
    assert_eq!(parse(&sqe), Ok((zeroes, Transfer::default())));
    let beyond = command(io::WRITE_ZEROES, 1, 2048);
    assert_eq!(parse(&beyond), Err(Status::LBA_OUT_OF_RANGE.dnr()));
}

#[test]
fn dataset_management_needs_its_ranges() {
    for (ranges, len) in [(1, 16), (1, 4096), (256, 4096)] {
        let command = IoCommand::DatasetManagement {
            namespace: 0,
            ranges: u16::try_from(ranges).unwrap(),
            deallocate: true,
        };
        let transfer = Transfer { direction: Direction::HostToController, len };
        assert_eq!(parse(&dataset_management(ranges, len)), Ok((command, transfer)));
    }
    for (ranges, len) in [(1, 0), (1, 15), (2, 16), (256, 4080)] {
        let error = parse(&dataset_management(ranges, len));
        assert_eq!(error, Err(Status::DATA_SGL_LENGTH_INVALID.dnr()), "{ranges} {len}");
    }
    let error = parse(&dataset_management(1, 128 * 1024 + 16));
    assert_eq!(error, Err(Status::INVALID_FIELD.dnr()));
}

#[test]
fn verify_has_no_data_and_the_length_of_a_transfer() {
    let verify = IoCommand::Verify { namespace: 0, slba: 8, block_count: 256 };
    assert_eq!(parse(&command(io::VERIFY, 8, 256)), Ok((verify, Transfer::default())));
    assert_eq!(parse(&command(io::VERIFY, 8, 257)), Err(Status::INVALID_FIELD.dnr()), "VSL");
}

/// A Copy to block 100, with that many ranges and bytes of data.
fn copy(ranges: u32, len: u32, word: u32) -> Sqe {
    let mut sqe = command(io::COPY, 100, 1);
    sqe.cdw12 = ((ranges - 1) | word).into();
    Sqe { sgl1: SglDescriptor::transport(len), ..sqe }
}

#[test]
fn copy_needs_its_ranges() {
    let transfer = Transfer { direction: Direction::HostToController, len: 64 };
    for (format, across) in [(0, false), (2 << 8, true)] {
        let expected = IoCommand::Copy { namespace: 0, sdlba: 100, ranges: 2, across, fua: true };
        assert_eq!(parse(&copy(2, 64, FUA | format)), Ok((expected, transfer)));
    }
    assert!(parse(&copy(128, 4096, 0)).is_ok());
    for (sqe, status) in [
        (copy(129, 8192, 0), Status::COMMAND_SIZE_LIMIT_EXCEEDED),
        (copy(2, 63, 0), Status::DATA_SGL_LENGTH_INVALID),
        (copy(1, 0, 0), Status::DATA_SGL_LENGTH_INVALID),
        // other formats, protection information
        (copy(1, 4096, 1 << 8), Status::INVALID_FIELD),
        (copy(1, 4096, 3 << 8), Status::INVALID_FIELD),
        (copy(1, 4096, 1 << 12), Status::INVALID_FIELD),
        (Sqe { cdw10: 2048.into(), ..copy(1, 32, 0) }, Status::LBA_OUT_OF_RANGE),
        (Sqe { nsid: 2.into(), ..copy(1, 32, 0) }, Status::NAMESPACE_WRITE_PROTECTED),
    ] {
        assert_eq!(parse(&sqe), Err(status.dnr()), "{sqe:?}");
    }
}

/// The checks of a Copy to block 100 within a namespace.
fn check_copy(data: &[u8], ranges: u16, target: &Namespace) -> Result<(), (u16, Status)> {
    let copy = CopyCommand { sdlba: 100, ranges, across: false, fua: false };
    copy.check(data, target, |_| unreachable!("no range names a namespace"))
}

#[test]
fn write_uncorrectable_is_only_on_test_namespaces() {
    let parse = |uncorrectable, read_only, (slba, block_count)| {
        let namespace = Namespace { uncorrectable, read_only, ..namespace(1) };
        let sqe = command(io::WRITE_UNCORRECTABLE, slba, block_count);
        parse_io(&sqe, &[namespace], &Limits::DEFAULT)
    };
    let expected = IoCommand::WriteUncorrectable { namespace: 0, slba: 1984, block_count: 64 };
    assert_eq!(parse(true, false, (1984, 64)), Ok((expected, Transfer::default())));
    for (uncorrectable, read_only, blocks, status) in [
        (false, false, (0, 1), Status::INVALID_OPCODE),
        (true, true, (0, 1), Status::NAMESPACE_WRITE_PROTECTED),
        (true, false, (2047, 2), Status::LBA_OUT_OF_RANGE),
        (true, false, (u64::MAX, 1), Status::LBA_OUT_OF_RANGE),
    ] {
        assert_eq!(parse(uncorrectable, read_only, blocks), Err(status.dnr()));
    }
}

#[test]
fn the_ranges_of_a_copy_are_checked_before_it_begins() {
    let check = |ranges: &[(u64, u16)]| {
        let range = |&(slba, nlb): &(u64, u16)| CopyRange {
            slba: slba.into(),
            nlb: nlb.into(),
            ..CopyRange::default()
        };
        let data: Vec<CopyRange> = ranges.iter().map(range).collect();
        let count = u16::try_from(ranges.len()).unwrap();
        check_copy(data.as_bytes(), count, &namespace(1))
    };
    assert_eq!(check(&[(0, 9), (110, 9), (50, 49)]), Err((1, Status::OVERLAPPING_IO_RANGE.dnr())));
    assert_eq!(check(&[(0, 9), (120, 9), (90, 9)]), Err((1, Status::OVERLAPPING_IO_RANGE.dnr())));
    assert_eq!(check(&[(0, 9), (140, 9), (0, 9)]), Ok(()), "sources may overlap each other");
    assert_eq!(check(&[(0, 99), (2047, 0)]), Ok(()));
    let beyond = |place| Err((place, Status::LBA_OUT_OF_RANGE.dnr()));
    assert_eq!(check(&[(0, 9), (2047, 1)]), beyond(1));
    assert_eq!(check(&[(u64::MAX, 0)]), beyond(0));
    // more than there is behind block 100
    let small = Namespace { block_count: 110, ..namespace(1) };
    let eleven = CopyRange { nlb: 10.into(), ..CopyRange::default() };
    assert_eq!(check_copy(eleven.as_bytes(), 1, &small), beyond(0));
    let size = |place| Err((place, Status::COMMAND_SIZE_LIMIT_EXCEEDED.dnr()));
    assert_eq!(check(&[(0, 2048)]), size(0), "MSSRL");
    let large = Namespace { block_count: 1 << 20, ..namespace(1) };
    let ranges =
        [CopyRange { slba: 0x8_0000.into(), nlb: 2047.into(), ..CopyRange::default() }; 17];
    assert_eq!(check_copy(ranges.as_bytes(), 16, &large), Ok(()));
    assert_eq!(check_copy(ranges.as_bytes(), 17, &large), size(16), "MCL");
    let short = check_copy(&ranges.as_bytes()[..40], 2, &large);
    assert_eq!(short, Err((1, Status::DATA_SGL_LENGTH_INVALID.dnr())));
}

#[test]
fn deallocation_is_asked_only_where_it_works() {
    let mut fixed = namespace(1);
    fixed.deallocate = false;
    let mut unsure = namespace(1);
    unsure.deallocate_zeroes = false;
    let zeroes = Sqe { cdw12: (1 << 25).into(), ..command(io::WRITE_ZEROES, 0, 1) };
    for (info, dataset, write_zeroes) in
        [(namespace(1), true, true), (fixed, false, false), (unsure, true, false)]
    {
        let asks = |sqe: &Sqe| match parse_io(sqe, std::slice::from_ref(&info), &Limits::DEFAULT) {
            Ok((IoCommand::DatasetManagement { deallocate, .. }, _)) => deallocate,
            Ok((IoCommand::WriteZeroes { deallocate, .. }, _)) => deallocate,
            other => panic!("{other:?}"),
        };
        assert_eq!(asks(&dataset_management(1, 16)), dataset);
        assert_eq!(asks(&zeroes), write_zeroes);
    }
}

#[test]
fn ranges_are_checked_and_empty_ones_skipped() {
    let range = |slba: u64, length: u32| DatasetRange {
        attributes: 0.into(),
        length: length.into(),
        slba: slba.into(),
    };
    let data = [range(0, 8), range(5000, 0), range(2040, 8), range(2041, 8), range(u64::MAX, 1)];
    let info = namespace(1);
    let out = Err(Status::LBA_OUT_OF_RANGE.dnr());
    let parsed: Vec<_> = parse_ranges(data.as_bytes(), 5, &info).collect();
    assert_eq!(parsed, [Ok((0, 8)), Ok((2040, 8)), out, out]);
    assert_eq!(parse_ranges(data.as_bytes(), 2, &info).count(), 1);
    assert_eq!(parse_ranges(&data.as_bytes()[..31], 5, &info).count(), 1);
}

#[test]
fn blocks_must_be_inside_the_namespace() {
    for opcode in [io::READ, io::WRITE, io::COMPARE, io::WRITE_ZEROES, io::VERIFY] {
        assert!(parse(&command(opcode, 2047, 1)).is_ok());
        for (slba, count) in [(2048, 1), (2047, 2), (u64::MAX, 1), (u64::MAX - 1, 2), (1 << 63, 1)]
        {
            let error = parse(&command(opcode, slba, count));
            assert_eq!(error, Err(Status::LBA_OUT_OF_RANGE.dnr()), "{opcode:#x} {slba}");
        }
    }
}

#[test]
fn sgl_length_must_be_that_of_the_blocks() {
    for opcode in [io::READ, io::WRITE, io::COMPARE] {
        for len in [0, 511, 513, 4095, 4097, 8192, 128 * 1024] {
            let sqe = Sqe { sgl1: SglDescriptor::transport(len), ..command(opcode, 0, 8) };
            assert_eq!(parse(&sqe), Err(Status::DATA_SGL_LENGTH_INVALID.dnr()), "{len}");
        }
    }
}

#[test]
fn transfers_are_bounded_by_mdts() {
    for opcode in [io::READ, io::WRITE, io::COMPARE] {
        assert!(parse(&command(opcode, 0, 256)).is_ok(), "128 KiB");
        assert_eq!(parse(&command(opcode, 0, 257)), Err(Status::INVALID_FIELD.dnr()));
        let whole = Sqe { sgl1: SglDescriptor::transport(u32::MAX), ..command(opcode, 0, 65_536) };
        assert_eq!(parse(&whole), Err(Status::INVALID_FIELD.dnr()));
        let sgl = Sqe { sgl1: SglDescriptor::transport(u32::MAX), ..command(opcode, 0, 1) };
        assert_eq!(parse(&sgl), Err(Status::INVALID_FIELD.dnr()));
    }
}

#[test]
fn sgl_types_are_checked() {
    let write = command(io::WRITE, 0, 8);
    for kind in [0x00, 0x02, 0x10, 0x20, 0x30, 0x40, 0x50, 0x51, 0x5f, 0xff] {
        let sqe = Sqe { sgl1: SglDescriptor { kind, ..write.sgl1 }, ..write };
        assert_eq!(parse(&sqe), Err(Status::SGL_DESCRIPTOR_TYPE_INVALID.dnr()), "{kind:#x}");
    }
    let read = Sqe { sgl1: SglDescriptor::in_capsule(4096), ..command(io::READ, 0, 8) };
    assert_eq!(parse(&read), Err(Status::SGL_DESCRIPTOR_TYPE_INVALID.dnr()));
    let mut offset = Sqe { sgl1: SglDescriptor::in_capsule(4096), ..write };
    offset.sgl1.address = 16.into();
    assert_eq!(parse(&offset), Err(Status::INVALID_SGL_OFFSET.dnr()));
}

#[test]
fn psdt_must_be_sgl() {
    for opcode in [io::FLUSH, io::READ, io::WRITE_ZEROES, io::DATASET_MANAGEMENT] {
        for flags in [0, 0x80, 0xc0] {
            let sqe = Sqe { flags, ..command(opcode, 0, 1) };
            assert_eq!(parse(&sqe), Err(Status::INVALID_FIELD.dnr()));
        }
    }
}

#[test]
fn protection_information_is_not_supported() {
    for opcode in [io::READ, io::WRITE, io::COMPARE, io::WRITE_ZEROES, io::VERIFY, io::COPY] {
        for bit in 26..30 {
            let mut sqe = command(opcode, 0, 1);
            sqe.cdw12 = (1 << bit).into();
            assert_eq!(parse(&sqe), Err(Status::INVALID_FIELD.dnr()));
        }
    }
}

#[test]
fn namespaces_must_exist() {
    for opcode in [io::FLUSH, io::READ, io::WRITE, io::DATASET_MANAGEMENT] {
        for nsid in [0, 3, 1024, 1025, 0xffff_fffe, u32::MAX] {
            let sqe = Sqe { nsid: nsid.into(), ..command(opcode, 0, 1) };
            assert_eq!(parse(&sqe), Err(Status::INVALID_NAMESPACE.dnr()), "{nsid}");
        }
    }
}

#[test]
fn read_only_namespaces_refuse_changes() {
    let on_protected = |sqe: Sqe| parse(&Sqe { nsid: 2.into(), ..sqe });
    for sqe in
        [command(io::WRITE, 0, 1), command(io::WRITE_ZEROES, 0, 1), dataset_management(1, 16)]
    {
        assert_eq!(on_protected(sqe), Err(Status::NAMESPACE_WRITE_PROTECTED.dnr()));
    }
    let hint = Sqe { cdw11: 1.into(), ..dataset_management(1, 16) };
    for sqe in [command(io::READ, 0, 1), command(io::COMPARE, 0, 1), command(io::FLUSH, 0, 1), hint]
    {
        assert_eq!(on_protected(sqe).unwrap().0.namespace(), 1);
    }
}

#[test]
fn other_opcodes_are_invalid() {
    // Write Uncorrectable, reservations (the driver's), I/O Management, vendor specific, admin
    for opcode in [0x04, 0x0d, 0x0e, 0x11, 0x12, 0x15, 0x80, 0xff, admin::IDENTIFY] {
        assert_eq!(parse(&command(opcode, 0, 1)), Err(Status::INVALID_OPCODE.dnr()));
    }
    for fctype in 0..=255 {
        let sqe = Sqe { nsid: fctype.into(), ..command(fabrics::OPCODE, 0, 1) };
        let expected = if fctype == u32::from(fabrics::CONNECT) {
            Status::COMMAND_SEQUENCE_ERROR
        } else {
            Status::INVALID_OPCODE
        };
        assert_eq!(parse(&sqe), Err(expected.dnr()), "{fctype:#x}");
    }
}

#[test]
fn only_compare_and_write_can_be_fused() {
    let fused = |opcode, fuse: u8| {
        let sqe = command(opcode, 0, 1);
        Sqe { flags: sqe.flags | fuse, ..sqe }
    };
    let (compare, write) = (fused(io::COMPARE, 1), fused(io::WRITE, 2));
    assert!(parse(&compare).is_ok() && parse(&write).is_ok());
    for (opcode, fuse) in [
        (io::COMPARE, 2),
        (io::WRITE, 1),
        (io::READ, 1),
        (io::READ, 2),
        (io::FLUSH, 1),
        (io::WRITE_ZEROES, 2),
        (io::WRITE, 3),
        (io::READ, 3),
    ] {
        assert_eq!(parse(&fused(opcode, fuse)), Err(Status::INVALID_FIELD.dnr()));
    }
}

#[test]
fn namespaces_are_found_with_and_without_gaps() {
    let dense: Vec<Namespace> = (1..=10).map(namespace).collect();
    let sparse: Vec<Namespace> = [2, 3, 5, 700, 1024].map(namespace).to_vec();
    for list in [dense, sparse] {
        for nsid in (0..1030).chain([u32::MAX]) {
            let expected = list.iter().position(|namespace| namespace.nsid.0 == nsid);
            assert_eq!(find_namespace(&list, NamespaceId(nsid)), expected, "{nsid}");
        }
    }
}
