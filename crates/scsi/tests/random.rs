//! CDBs and parameter lists that are damaged at random: nothing panics, blocks are on the disk, residuals add up.

mod common;

use common::{BLOCK_COUNT, Disk, check_residual, nexus};
use proptest::prelude::*;
use raceline_scsi::cdb::COMMANDS;
use raceline_scsi::{
    Admission, Blocks, DataDirection, Plan, Request, UnitAttention, lun_from_wire, lun_to_wire,
    plan_without_lun, unmapped_blocks,
};

fn direction() -> impl Strategy<Value = DataDirection> {
    prop_oneof![Just(DataDirection::None), Just(DataDirection::In), Just(DataDirection::Out)]
}

/// A valid command of the table with some bytes changed, or anything.
fn cdb() -> impl Strategy<Value = [u8; 16]> {
    let mutated = (0..COMMANDS.len(), prop::array::uniform16(any::<u8>()), any::<u16>()).prop_map(
        |(row, noise, kept)| {
            let row = &COMMANDS[row];
            let mut cdb = [0; 16];
            for (at, byte) in cdb.iter_mut().enumerate() {
                // of every byte that is evaluated, the bits that are, or zeroes, or noise
                let usage = row.usage.get(at).copied().unwrap_or(0);
                *byte = if kept & 1 << at == 0 { noise[at] & usage } else { 0 };
            }
            cdb[0] = row.opcode;
            cdb[1] |= row.service_action.unwrap_or(0);
            if noise[15] < 40 {
                let at = usize::from(noise[14] & 15);
                cdb[at] ^= noise[13];
            }
            cdb
        },
    );
    prop_oneof![9 => mutated, 1 => prop::array::uniform16(any::<u8>())]
}

fn request() -> impl Strategy<Value = Request> {
    let edtl = prop_oneof![
        Just(0_u32),
        1..2048_u32,
        (0..64_u32).prop_map(|blocks| blocks * 512),
        any::<u32>()
    ];
    (cdb(), edtl, direction()).prop_map(|(cdb, edtl, direction)| Request { cdb, edtl, direction })
}

fn on_the_disk(blocks: Blocks) {
    let end = blocks.lba.checked_add(blocks.count).expect("no overflow");
    assert!(blocks.lba < BLOCK_COUNT && end <= BLOCK_COUNT, "{blocks:?}");
}

fn check_plan(request: &Request, plan: &Plan) {
    check_residual(request, plan);
    let bytes = |blocks: &Blocks| blocks.count * 512;
    match plan {
        Plan::Read { blocks, transfer, .. } => {
            on_the_disk(*blocks);
            assert_eq!(blocks.count, u64::from(transfer.bytes).div_ceil(512));
        }
        Plan::Write { blocks, transfer, .. }
        | Plan::OrWrite { blocks, transfer, .. }
        | Plan::WriteAndVerify { blocks, transfer, .. } => {
            on_the_disk(*blocks);
            assert_eq!(bytes(blocks), u64::from(transfer.bytes));
        }
        Plan::CompareAndWrite { blocks, transfer, .. } => {
            on_the_disk(*blocks);
            assert!(blocks.count > 0 && 2 * bytes(blocks) == u64::from(transfer.bytes));
        }
        Plan::Verify { blocks, transfer, .. } => {
            on_the_disk(*blocks);
            assert!(blocks.count > 0);
            assert!([0, 512, bytes(blocks)].contains(&transfer.bytes.into()));
        }
        Plan::WriteSame { blocks, transfer, .. } => {
            on_the_disk(*blocks);
            assert!(blocks.count > 0 && [0, 512].contains(&transfer.bytes));
        }
        Plan::PreFetch { blocks, .. } => on_the_disk(*blocks),
        Plan::LbaStatus { lba, .. } => assert!(*lba < BLOCK_COUNT),
        Plan::Reply(reply) => {
            assert_eq!(reply.data.len() as u64, u64::from(reply.transfer.bytes));
        }
        Plan::Refuse(_)
        | Plan::Flush { .. }
        | Plan::Collect { .. }
        | Plan::Change { .. }
        | Plan::CopyStatus { .. } => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn any_cdb_has_a_plan_that_holds(
        request in request(),
        writable in any::<bool>(),
        features in any::<[bool; 4]>(),
        attention in prop::option::of(0..UnitAttention::ALL.len()),
    ) {
        let mut disk = Disk::new();
        disk.lun.read_only = !writable;
        [disk.lun.deallocate, disk.lun.deallocate_zeroes, disk.lun.knows_holes, disk.lun.volatile_write_cache] =
            features;
        if let Some(attention) = attention.filter(|at| at % 3 == 0) {
            disk.attentions.add(UnitAttention::ALL[attention]);
        }
        let plan = disk.plan(&request);
        check_plan(&request, &plan);
        check_plan(&request, &plan_without_lun(&disk.target, &request));
        if let Plan::Write { .. } | Plan::OrWrite { .. } | Plan::WriteSame { .. } = plan {
            prop_assert!(writable);
        }
        // and nothing of the medium for who may do nothing
        disk.admission = Admission { reserved_by_other: true, ..Admission::ALL };
        let plan = disk.plan(&request);
        let harmless = matches!(plan, Plan::Refuse(_) | Plan::Reply(_) | Plan::Change { .. });
        prop_assert!(harmless, "{plan:?}");
    }

    #[test]
    fn any_parameters_are_taken_or_refused(
        request in request(),
        data in prop::collection::vec(any::<u8>(), 0..80),
    ) {
        let mut disk = Disk::new();
        if let Plan::Collect { parameters, .. } = disk.plan(&request)
            && let Ok(Some(change)) = parameters.decide(&disk.lun, &disk.state, &data)
        {
            let _ = disk.state.apply(&nexus(1), &change);
        }
        for list in [data.clone(), [&[0, 0x46, 0, 0x40, 0, 0, 0, 0], &data[..]].concat()] {
            if let Ok(parts) = unmapped_blocks(&disk.lun, &list) {
                parts.for_each(on_the_disk);
            }
        }
    }

    #[test]
    fn any_lun_is_read(bytes in any::<[u8; 8]>()) {
        if let Some(number) = lun_from_wire(bytes) {
            prop_assert_eq!(lun_from_wire(lun_to_wire(number)), Some(number));
        }
    }
}
