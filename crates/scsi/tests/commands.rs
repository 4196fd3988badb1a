//! What CDBs mean: ranges, lengths, fields, transfers.

mod common;

use common::{BLOCK_COUNT, BLOCK_SIZE, Disk, check_residual, request};
use raceline_scsi::{
    Attentions, Blocks, Change, Check, DataDirection, FieldPointer, Parameters, Plan,
    PortGroupState, Refusal, Refused, Residual, SameData, Sense, UnitAttention, plan_without_lun,
};

/// A command on blocks, in one of its forms.
struct Form {
    name: &'static str,
    opcode: u8,
    len: usize,
    direction: DataDirection,
    /// Bytes of data for so many blocks.
    needed: fn(u32) -> u32,
    writes: bool,
    /// 0 blocks are all to the end.
    zero_is_all: bool,
    /// 0 blocks are refused.
    zero_is_wrong: bool,
    /// It has a field for protection information.
    protects: bool,
}

const B: u32 = BLOCK_SIZE;

const fn form(name: &'static str, opcode: u8, len: usize) -> Form {
    Form {
        name,
        opcode,
        len,
        direction: DataDirection::Out,
        needed: |blocks| blocks * B,
        writes: true,
        zero_is_all: false,
        zero_is_wrong: false,
        protects: true,
    }
}

const fn reads(form: Form) -> Form {
    Form { direction: DataDirection::In, writes: false, ..form }
}

const fn verifies(form: Form) -> Form {
    Form { direction: DataDirection::None, writes: false, needed: |_| 0, ..form }
}

const fn hints(form: Form) -> Form {
    Form { zero_is_all: true, protects: false, ..verifies(form) }
}

const fn same(form: Form) -> Form {
    Form { zero_is_wrong: true, needed: |_| B, ..form }
}

const FORMS: &[Form] = &[
    reads(form("READ (10)", 0x28, 10)),
    reads(form("READ (12)", 0xa8, 12)),
    reads(form("READ (16)", 0x88, 16)),
    form("WRITE (10)", 0x2a, 10),
    form("WRITE (12)", 0xaa, 12),
    form("WRITE (16)", 0x8a, 16),
    form("WRITE AND VERIFY (10)", 0x2e, 10),
    form("WRITE AND VERIFY (12)", 0xae, 12),
    form("WRITE AND VERIFY (16)", 0x8e, 16),
    form("ORWRITE (16)", 0x8b, 16),
    verifies(form("VERIFY (10)", 0x2f, 10)),
    verifies(form("VERIFY (12)", 0xaf, 12)),
    verifies(form("VERIFY (16)", 0x8f, 16)),
    hints(form("PRE-FETCH (10)", 0x34, 10)),
    hints(form("PRE-FETCH (16)", 0x90, 16)),
    hints(form("SYNCHRONIZE CACHE (10)", 0x35, 10)),
    hints(form("SYNCHRONIZE CACHE (16)", 0x91, 16)),
    same(form("WRITE SAME (10)", 0x41, 10)),
    same(form("WRITE SAME (16)", 0x93, 16)),
    Form { needed: |blocks| 2 * blocks * B, ..form("COMPARE AND WRITE", 0x89, 16) },
];

impl Form {
    fn cdb(&self, lba: u64, blocks: u32) -> [u8; 16] {
        let mut cdb = [0; 16];
        cdb[0] = self.opcode;
        let short = u32::try_from(lba).unwrap_or(u32::MAX).to_be_bytes();
        match self.len {
            10 => {
                cdb[2..6].copy_from_slice(&short);
                cdb[7..9].copy_from_slice(&u16::try_from(blocks).expect("16 bits").to_be_bytes());
            }
            12 => {
                cdb[2..6].copy_from_slice(&short);
                cdb[6..10].copy_from_slice(&blocks.to_be_bytes());
            }
            _ if self.opcode == 0x89 => {
                cdb[2..10].copy_from_slice(&lba.to_be_bytes());
                cdb[13] = u8::try_from(blocks).expect("8 bits");
            }
            _ => {
                cdb[2..10].copy_from_slice(&lba.to_be_bytes());
                cdb[10..14].copy_from_slice(&blocks.to_be_bytes());
            }
        }
        cdb
    }

    fn plan(&self, disk: &mut Disk, lba: u64, blocks: u32) -> Plan {
        let request = request(&self.cdb(lba, blocks), self.direction, (self.needed)(blocks));
        let plan = disk.plan(&request);
        check_residual(&request, &plan);
        plan
    }
}

fn code_of(plan: &Plan) -> Option<u16> {
    match plan {
        Plan::Refuse(Refused { why: Refusal::Check(sense), .. }) => Some(sense.code),
        Plan::Refuse(other) => panic!("{other:?}"),
        _ => None,
    }
}

#[test]
fn blocks_have_to_be_on_the_disk() {
    let mut disk = Disk::new();
    let last = BLOCK_COUNT - 1;
    for form in FORMS {
        let mut goes = |lba, blocks| code_of(&form.plan(&mut disk, lba, blocks));
        let name = form.name;
        for (lba, blocks) in [(0, 1), (0, 8), (last, 1), (BLOCK_COUNT - 8, 8), (last, 0)] {
            let expected = (form.zero_is_wrong && blocks == 0).then_some(0x2400);
            assert_eq!(goes(lba, blocks), expected, "{name}: {blocks} from {lba} on");
        }
        for (lba, blocks) in [
            (last, 2),
            (BLOCK_COUNT - 7, 8),
            (BLOCK_COUNT, 0),
            (BLOCK_COUNT, 1),
            (BLOCK_COUNT + 1, 0),
            (u32::MAX.into(), 0),
            (u32::MAX.into(), 8),
        ] {
            assert_eq!(goes(lba, blocks), Some(0x2100), "{name}: {blocks} from {lba} on");
        }
        if form.len == 16 {
            for lba in [1 << 32, 1 << 63, u64::MAX - 1, u64::MAX] {
                for blocks in [0, 1, 2, 8] {
                    assert_eq!(goes(lba, blocks), Some(0x2100), "{name}: {blocks} from {lba} on");
                }
            }
        }
    }
}

#[test]
fn lba_plus_length_does_not_wrap() {
    let mut disk = Disk::new();
    disk.lun.block_count = u64::MAX;
    let mut cdb = [0; 16];
    cdb[0] = 0x8f;
    cdb[2..10].copy_from_slice(&(u64::MAX - 1).to_be_bytes());
    cdb[13] = 2;
    assert_eq!(disk.sense(&cdb, DataDirection::None, 0).code, 0x2100);
    cdb[13] = 1;
    let Plan::Verify { blocks, .. } = disk.data_in(&cdb) else { panic!("the last block") };
    assert_eq!(blocks, Blocks { lba: u64::MAX - 1, count: 1 });
}

#[test]
fn the_place_of_a_wrong_lba_is_told() {
    let mut disk = Disk::new();
    let lba = |plan: Plan| match plan {
        Plan::Refuse(Refused { why: Refusal::Check(sense), .. }) => sense.field,
        other => panic!("{other:?}"),
    };
    let at = |byte| Some(FieldPointer { in_cdb: true, bit: None, byte });
    assert_eq!(lba(FORMS[0].plan(&mut disk, BLOCK_COUNT, 1)), at(2));
    let read_6 = request(&[0x08, 0x1f, 0xff, 0xff, 1, 0], DataDirection::In, 512);
    assert_eq!(lba(disk.plan(&read_6)), at(1));
}

#[test]
fn protection_information_is_refused() {
    let mut disk = Disk::new();
    for form in FORMS.iter().filter(|form| form.protects) {
        for protect in 1..8 {
            let mut cdb = form.cdb(0, 1);
            cdb[1] |= protect << 5;
            let sense = disk.sense(&cdb, form.direction, (form.needed)(1));
            let field = FieldPointer { in_cdb: true, bit: Some(7), byte: 1 };
            assert_eq!(sense, Sense::INVALID_FIELD_IN_CDB.at(field), "{}", form.name);
        }
    }
}

#[test]
fn naca_is_refused_in_every_command() {
    let mut disk = Disk::new();
    for row in raceline_scsi::cdb::COMMANDS {
        let mut cdb = [0; 16];
        cdb[0] = row.opcode;
        cdb[1] = row.service_action.unwrap_or(0);
        cdb[row.cdb_len() - 1] = 0x04;
        let sense = disk.sense(&cdb, DataDirection::In, 512);
        let byte = u16::try_from(row.cdb_len() - 1).unwrap();
        let field = FieldPointer { in_cdb: true, bit: Some(2), byte };
        assert_eq!(sense, Sense::INVALID_FIELD_IN_CDB.at(field), "{}", row.name);
    }
}

#[test]
fn reads_of_six_bytes_have_21_bits_and_256_blocks() {
    let mut disk = Disk::new();
    disk.lun.block_count = 1 << 30;
    let request = request(&[0x08, 0xff, 0xff, 0xff, 0, 0], DataDirection::In, 256 * B);
    let Plan::Read { blocks, transfer, fua: false } = disk.plan(&request) else { panic!() };
    assert_eq!(blocks, Blocks { lba: 0x1f_ffff, count: 256 });
    assert_eq!(transfer.bytes, 256 * B);
}

#[test]
fn a_transfer_has_at_most_the_bytes_of_the_block_limits() {
    let mut disk = Disk::new();
    let most = disk.lun.max_transfer_blocks();
    assert_eq!(most, 2048);
    for form in
        FORMS.iter().filter(|form| !form.zero_is_all && !form.zero_is_wrong && form.opcode != 0x89)
    {
        assert_eq!(code_of(&form.plan(&mut disk, 0, most)), None, "{}", form.name);
        assert_eq!(code_of(&form.plan(&mut disk, 0, most + 1)), Some(0x2400), "{}", form.name);
    }
}

#[test]
fn nothing_is_written_where_nothing_may_be() {
    for (hardware, code) in [(true, 0x2700), (false, 0x2702)] {
        let mut disk = Disk::new();
        disk.lun.read_only = hardware;
        disk.state.mode.software_write_protect = !hardware;
        for form in FORMS {
            let expected = form.writes.then_some(code);
            for blocks in [0, 1] {
                let got = code_of(&form.plan(&mut disk, 0, blocks));
                assert_eq!(got, expected, "{} of {blocks} blocks", form.name);
            }
        }
        let unmap = disk.sense(&[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], DataDirection::Out, 24);
        assert_eq!(unmap.code, code);
        // WRITE SAME (10) with UNMAP, also where nothing can be deallocated
        for deallocate in [true, false] {
            disk.lun.deallocate = deallocate;
            let cdb = [0x41, 8, 0, 0, 0, 0, 0, 0, 1, 0];
            assert_eq!(disk.sense(&cdb, DataDirection::Out, 512).code, code);
        }
        // the range is looked at first
        assert_eq!(
            code_of(&form("WRITE (16)", 0x8a, 16).plan(&mut disk, 1 << 40, 1)),
            Some(0x2100)
        );
    }
}

#[test]
fn reads_move_what_the_initiator_expects() {
    let mut disk = Disk::new();
    let cdb = [0x28, 0, 0, 0, 0, 7, 0, 0, 2, 0];
    let cases = [
        (0, 0, 0, Residual::Overflow(1024)),
        (1, 1, 1, Residual::Overflow(1023)),
        (200, 200, 1, Residual::Overflow(824)),
        (512, 512, 1, Residual::Overflow(512)),
        (513, 513, 2, Residual::Overflow(511)),
        (1024, 1024, 2, Residual::None),
        (10_000, 1024, 2, Residual::Underflow(8976)),
    ];
    for (edtl, bytes, count, residual) in cases {
        let request = request(&cdb, DataDirection::In, edtl);
        let plan = disk.plan(&request);
        check_residual(&request, &plan);
        let Plan::Read { blocks, transfer, .. } = plan else { panic!("{edtl}: {plan:?}") };
        assert_eq!(blocks, Blocks { lba: 7, count });
        assert_eq!((transfer.bytes, transfer.residual), (bytes, residual), "{edtl}");
    }
    // what an initiator sends for a command that reads is not taken, and the command succeeds
    let request = request(&cdb, DataDirection::Out, 1024);
    let Plan::Read { blocks, transfer, .. } = disk.plan(&request) else { panic!() };
    assert_eq!((blocks.count, transfer.bytes), (0, 0));
    assert_eq!(transfer.direction, DataDirection::None);
    assert_eq!(transfer.residual, Residual::Overflow(1024));
}

#[test]
fn writes_write_whole_blocks_or_nothing() {
    let mut disk = Disk::new();
    for opcode in [0x2a, 0x2e] {
        let cdb = [opcode, 0, 0, 0, 0, 7, 0, 0, 2, 0];
        let cases = [
            (0, 0, Residual::Overflow(1024)),
            (512, 1, Residual::Overflow(512)),
            (1024, 2, Residual::None),
            (10_000, 2, Residual::Underflow(8976)),
        ];
        for (edtl, count, residual) in cases {
            let (blocks, transfer) = match disk.plan(&request(&cdb, DataDirection::Out, edtl)) {
                Plan::Write { blocks, transfer, .. }
                | Plan::WriteAndVerify { blocks, transfer, check: Check::Readable } => {
                    (blocks, transfer)
                }
                other => panic!("{edtl}: {other:?}"),
            };
            assert_eq!(blocks, Blocks { lba: 7, count });
            assert_eq!(u64::from(transfer.bytes), count * 512);
            assert_eq!(transfer.residual, residual, "{edtl}");
        }
        for edtl in [1, 200, 511, 513, 1023] {
            let plan = disk.plan(&request(&cdb, DataDirection::Out, edtl));
            let why = Refusal::Check(Sense::INVALID_TRANSFER_LENGTH);
            let residual = Residual::Overflow(1024 - edtl);
            assert_eq!(plan, Plan::Refuse(Refused { why, residual }));
        }
    }
}

#[test]
fn compare_and_write_needs_exactly_its_data() {
    let mut disk = Disk::new();
    let cdb = |blocks| form("", 0x89, 16).cdb(3, blocks);
    let plan = disk.plan(&request(&cdb(2), DataDirection::Out, 4 * B));
    let Plan::CompareAndWrite { blocks, transfer, fua: false } = plan else { panic!("{plan:?}") };
    assert_eq!((blocks, transfer.bytes), (Blocks { lba: 3, count: 2 }, 4 * B));
    for edtl in [0, B, 2 * B, 4 * B - 1] {
        assert_eq!(disk.sense(&cdb(2), DataDirection::Out, edtl).code, 0x0e03, "{edtl}");
    }
    for edtl in [4 * B + 1, 8 * B] {
        assert_eq!(disk.sense(&cdb(2), DataDirection::Out, edtl), Sense::bad_cdb(13), "{edtl}");
    }
    assert_eq!(disk.sense(&cdb(0), DataDirection::Out, 512 * B), Sense::bad_cdb(13));
    assert_eq!(disk.sense(&cdb(9), DataDirection::Out, 18 * B), Sense::bad_cdb(13));
    let nothing = disk.plan(&request(&cdb(0), DataDirection::None, 0));
    assert!(matches!(nothing, Plan::Reply(_)), "{nothing:?}");
    disk.lun.limits.max_compare_and_write_blocks = 0;
    assert_eq!(disk.sense(&cdb(1), DataDirection::Out, 2 * B), Sense::INVALID_OPCODE);
}

#[test]
fn verify_checks_in_three_ways() {
    let mut disk = Disk::new();
    let cdb = |bytchk: u8| [0x2f, bytchk << 1, 0, 0, 0, 9, 0, 0, 3, 0];
    let mut verify =
        |bytchk, direction, edtl| match disk.plan(&request(&cdb(bytchk), direction, edtl)) {
            Plan::Verify { blocks, check, transfer } => {
                assert_eq!(blocks, Blocks { lba: 9, count: 3 });
                Ok((check, transfer.bytes, transfer.residual))
            }
            other => Err(code_of(&other)),
        };
    let out = DataDirection::Out;
    assert_eq!(verify(0, DataDirection::None, 0), Ok((Check::Readable, 0, Residual::None)));
    // some initiators announce data here, which are of no interest
    assert_eq!(verify(0, out, 1536), Ok((Check::Readable, 0, Residual::Underflow(1536))));
    assert_eq!(verify(1, out, 1536), Ok((Check::Data, 1536, Residual::None)));
    assert_eq!(verify(1, out, 2000), Ok((Check::Data, 1536, Residual::Underflow(464))));
    assert_eq!(verify(1, out, 1024), Err(Some(0x0e03)));
    assert_eq!(verify(2, out, 1536), Err(Some(0x2400)));
    assert_eq!(verify(3, out, 512), Ok((Check::OneBlock, 512, Residual::None)));
    assert_eq!(verify(3, out, 511), Err(Some(0x0e03)));
    // write and verify has no such form
    let cdb = [0x2e, 0x06, 0, 0, 0, 9, 0, 0, 3, 0];
    assert_eq!(disk.sense(&cdb, out, 1536), Sense::bad_cdb_bit(1, 2));
    let cdb = [0x2e, 0x02, 0, 0, 0, 9, 0, 0, 3, 0];
    let plan = disk.plan(&request(&cdb, out, 1536));
    assert!(matches!(plan, Plan::WriteAndVerify { check: Check::Data, .. }), "{plan:?}");
}

#[test]
fn write_same_writes_one_block_or_zeroes() {
    let mut disk = Disk::new();
    let cdb = |flags, lba, blocks| {
        let mut cdb = form("", 0x93, 16).cdb(lba, blocks);
        cdb[1] = flags;
        cdb
    };
    let mut same = |flags, lba, blocks, edtl| match disk.plan(&request(
        &cdb(flags, lba, blocks),
        DataDirection::Out,
        edtl,
    )) {
        Plan::WriteSame { blocks, data, deallocate, .. } => Ok((blocks.count, data, deallocate)),
        other => Err(code_of(&other)),
    };
    assert_eq!(same(0x00, 0, 10, 512), Ok((10, SameData::Transfer, false)));
    assert_eq!(same(0x08, 0, 10, 512), Ok((10, SameData::Transfer, true)), "UNMAP");
    assert_eq!(same(0x01, 0, 10, 0), Ok((10, SameData::Zeroes, false)), "NDOB");
    assert_eq!(same(0x09, 0, 10, 0), Ok((10, SameData::Zeroes, true)));
    assert_eq!(same(0x10, 0, 10, 512), Err(Some(0x2400)), "ANCHOR");
    assert_eq!(same(0x18, 0, 10, 512), Err(Some(0x2400)));
    assert_eq!(same(0x04, 0, 10, 512), Err(Some(0x2400)), "PBDATA");
    for edtl in [0, 256, 1024] {
        assert_eq!(same(0x00, 0, 10, edtl), Err(Some(0x0e03)), "{edtl}");
    }
    assert_eq!(same(0x00, 5000, 0, 512), Err(Some(0x2400)), "0 blocks (WSNZ)");
    assert_eq!(same(0x00, 0, 5000, 512), Ok((5000, SameData::Transfer, false)));
    assert_eq!(same(0x00, 0, 5001, 512), Err(Some(0x2400)));
    disk.lun.limits.max_write_same_blocks = 0;
    let plan = disk.plan(&request(&cdb(0, 0, 10_000), DataDirection::Out, 512));
    assert!(matches!(plan, Plan::WriteSame { blocks: Blocks { lba: 0, count: BLOCK_COUNT }, .. }));
    disk.lun.deallocate_zeroes = false;
    let plan = disk.plan(&request(&cdb(0x08, 0, 1), DataDirection::Out, 512));
    assert!(matches!(plan, Plan::WriteSame { deallocate: false, .. }), "blocks must read zeroes");
    disk.lun.deallocate = false;
    let sense = disk.sense(&cdb(0x08, 0, 1), DataDirection::Out, 512);
    assert_eq!(sense, Sense::bad_cdb_bit(1, 3));
}

#[test]
fn what_must_be_durable_is_told() {
    // (there is a cache, WCE, FUA in the CDB) -> the write waits for stable media
    for (cache, wce, bit, fua) in [
        (true, true, false, false),
        (true, true, true, true),
        (true, false, false, true),
        (true, false, true, true),
        (false, true, true, false),
        (false, false, false, false),
    ] {
        let mut disk = Disk::new();
        disk.lun.volatile_write_cache = cache;
        disk.state.mode.write_cache = wce;
        let flags = if bit { 0x08 } else { 0 };
        let cdb = [0x2a, flags, 0, 0, 0, 0, 0, 0, 1, 0];
        let Plan::Write { fua: got, .. } = disk.plan(&request(&cdb, DataDirection::Out, B)) else {
            panic!();
        };
        assert_eq!(got, fua, "cache {cache}, WCE {wce}, FUA {bit}");
        let cdb = [0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let plan = disk.plan(&request(&cdb, DataDirection::None, 0));
        assert_eq!(matches!(plan, Plan::Flush { .. }), cache);
    }
}

#[test]
fn start_stop_unit_flushes_and_ejects_nothing() {
    let mut disk = Disk::new();
    let mut go = |byte_4| {
        let plan = disk.plan(&request(&[0x1b, 0, 0, 0, byte_4, 0], DataDirection::None, 0));
        (matches!(plan, Plan::Flush { .. }), code_of(&plan))
    };
    assert_eq!(go(0x01), (false, None), "start");
    assert_eq!(go(0x00), (true, None), "stop");
    assert_eq!(go(0x04), (false, None), "stop, without a flush");
    assert_eq!(go(0x02), (false, Some(0x2400)), "eject");
    assert_eq!(go(0x03), (false, Some(0x2400)), "load");
    assert_eq!(go(0x20), (false, None), "a power condition");
}

#[test]
fn commands_that_are_not_there_say_so() {
    let mut disk = Disk::new();
    // FORMAT UNIT, SANITIZE, WRITE ATOMIC (16), variable length
    for opcode in [0x04, 0x48, 0x9c, 0x7f, 0xff, 0x01] {
        assert_eq!(disk.sense(&[opcode], DataDirection::None, 0), Sense::INVALID_OPCODE);
    }
    // of EXTENDED COPY also LID4 and POPULATE TOKEN, of RECEIVE COPY RESULTS also those with data
    for (opcode, action) in [
        (0x5e, 4),
        (0x5e, 0x1f),
        (0x5f, 7),
        (0x83, 0x01),
        (0x83, 0x10),
        (0x84, 0x01),
        (0x84, 0x04),
        (0x9e, 0x11),
        (0xa3, 0x05),
    ] {
        assert_eq!(disk.sense(&[opcode, action], DataDirection::None, 0), Sense::bad_cdb_bit(1, 4));
    }
    disk.lun.deallocate = false;
    assert_eq!(disk.sense(&[0x42], DataDirection::Out, 8), Sense::INVALID_OPCODE);
}

#[test]
fn allocation_lengths_cut_and_leave_lengths_alone() {
    let mut disk = Disk::new();
    let whole = disk.data(&[0x12, 0, 0, 0, 255, 0]);
    for allocation in [0, 1, 4, 5, 36, 95, 96, 97] {
        let cdb = [0x12, 0, 0, 0, allocation, 0];
        let expected = usize::from(allocation).min(96);
        assert_eq!(disk.data(&cdb), whole[..expected]);
        // and what the initiator expects cuts again
        let request = request(&cdb, DataDirection::In, 10);
        let plan = disk.plan(&request);
        check_residual(&request, &plan);
        let Plan::Reply(reply) = plan else { panic!() };
        assert_eq!(reply.data, whole[..expected.min(10)]);
    }
}

#[test]
fn unit_attentions_come_after_conflicts_and_before_fields() {
    let mut disk = Disk::new();
    disk.attentions.add(UnitAttention::LunReset);
    disk.attentions.add(UnitAttention::LunsChanged);
    // not reported by commands that always run, nor taken by a command that conflicts or does not exist
    assert_eq!(disk.data(&[0x12, 0, 0, 0, 36, 0]).len(), 36);
    assert_eq!(disk.sense(&[0x48], DataDirection::None, 0), Sense::INVALID_OPCODE);
    disk.admission.reserved_by_other = true;
    let plan = disk.plan(&request(&[0x00], DataDirection::None, 0));
    assert!(matches!(plan, Plan::Refuse(Refused { why: Refusal::Conflict, .. })), "{plan:?}");
    disk.admission.reserved_by_other = false;
    // reported once, and before a wrong field is looked for
    let bad = [0x28, 0xe0, 0, 0, 0, 0, 0, 0, 1, 0];
    assert_eq!(disk.sense(&bad, DataDirection::In, 512).code, 0x2903);
    assert_eq!(disk.attentions, {
        let mut rest = Attentions::NONE;
        rest.add(UnitAttention::LunsChanged);
        rest
    });
    // Report LUNs answers the last one
    disk.data(&[0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
    assert!(disk.attentions.is_empty());
    assert_eq!(disk.sense(&bad, DataDirection::In, 512).code, 0x2400);
}

#[test]
fn request_sense_gives_unit_attentions_as_data() {
    let mut disk = Disk::new();
    disk.attentions.add(UnitAttention::ModeChanged);
    let data = disk.data(&[0x03, 0, 0, 0, 252, 0]);
    assert_eq!((data[0], data[2], data[12], data[13], data.len()), (0x70, 6, 0x2a, 0x01, 18));
    let data = disk.data(&[0x03, 1, 0, 0, 252, 0]);
    assert_eq!(data, [0x72, 0, 0, 0, 0, 0, 0, 0], "nothing is left");
}

#[test]
fn a_missing_logical_unit_answers_three_commands() {
    let target = common::target();
    let plan = |cdb: &[u8]| plan_without_lun(&target, &request(cdb, DataDirection::In, 4096));
    let data = |plan| match plan {
        Plan::Reply(reply) => reply.data,
        other => panic!("{other:?}"),
    };
    let inquiry = data(plan(&[0x12, 0, 0, 0, 96, 0]));
    assert_eq!((inquiry[0], inquiry.len()), (0x7f, 96));
    assert_eq!(data(plan(&[0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0])).len(), 8 + 3 * 8);
    assert_eq!(data(plan(&[0x03, 0, 0, 0, 18, 0]))[12], 0x25);
    for cdb in
        [&[0x00][..], &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[0x12, 1, 0x83, 0, 96, 0], &[0xff]]
    {
        assert_eq!(code_of(&plan(cdb)), Some(0x2500), "{cdb:02x?}");
    }
    assert_eq!(code_of(&plan(&[0xa0, 0, 9, 0, 0, 0, 0, 0, 1, 0])), Some(0x2400));
}

#[test]
fn a_port_that_is_not_active_leaves_the_medium_alone() {
    let mut disk = Disk::new();
    for (state, code) in [
        (PortGroupState::Standby, 0x040b),
        (PortGroupState::Unavailable, 0x040c),
        (PortGroupState::Transitioning, 0x040a),
    ] {
        disk.port_state = state;
        for cdb in [&[0x00][..], &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[0x25]] {
            assert_eq!(disk.sense(cdb, DataDirection::In, 512).code, code, "{cdb:02x?}");
        }
        assert_eq!(disk.data(&[0x12, 0, 0, 0, 36, 0]).len(), 36);
        assert_eq!(disk.data(&[0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 1, 0]).len(), 4 + 12 + 16);
    }
}

#[test]
fn parameters_are_collected_before_they_are_judged() {
    let mut disk = Disk::new();
    let unmap = disk.plan(&request(&[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], DataDirection::Out, 24));
    let Plan::Collect { parameters: Parameters::Unmap, transfer } = unmap else { panic!() };
    assert_eq!(transfer.bytes, 24);
    // no parameters are none, and change nothing
    for cdb in [&[0x42][..], &[0x15, 0x10], &[0x55, 0x10]] {
        let plan = disk.plan(&request(cdb, DataDirection::None, 0));
        assert!(matches!(plan, Plan::Reply(_)), "{plan:?}");
    }
    let cdb = [0x5f, 0, 0, 0, 0, 0, 0, 0, 23, 0];
    assert_eq!(disk.sense(&cdb, DataDirection::Out, 23), Sense::PARAMETER_LIST_LENGTH);
    for (cdb, change) in [(0x16, Change::Reserve), (0x17, Change::Release), (0x56, Change::Reserve)]
    {
        let plan = disk.plan(&request(&[cdb], DataDirection::None, 0));
        let Plan::Change { change: got, .. } = plan else { panic!("{plan:?}") };
        assert_eq!(got, change);
    }
    // third parties and extents, of SCSI-2 and SPC-2
    for (cdb, bit) in [([0x16, 0x10], 4), ([0x16, 0x01], 0), ([0x57, 0x10], 4), ([0x56, 0x02], 1)] {
        assert_eq!(disk.sense(&cdb, DataDirection::None, 0), Sense::bad_cdb_bit(1, bit));
    }
}
