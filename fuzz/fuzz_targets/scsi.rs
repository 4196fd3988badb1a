//! Any commands of three initiators on one disk: each has a plan that holds, and the disk's state stays consistent.
//! Input: features of the disk, then steps of 24 bytes and the parameters that they name.
#![no_main]

use libfuzzer_sys::fuzz_target;
use raceline_scsi::copy::CopyList;
use raceline_scsi::{
    AsciiField, Attentions, Blocks, Change, DataDirection, Identity, Limits, Lun, LunState, Nexus,
    Parameters, Plan, Port, PortGroup, PortGroupState, Request, Residual, TargetFacts, Transfer,
    UnitAttention, View, Whom, plan, plan_without_lun, refuse, unmapped_blocks,
};

const BLOCK_COUNT: u64 = 10_000;
const PORT: Port = Port { group: 1, relative: 1 };

fn disk(features: u8) -> Lun {
    let has = |bit: u8| features & 1 << bit != 0;
    Lun {
        block_size: if has(0) { 4096 } else { 512 },
        block_count: BLOCK_COUNT,
        physical_block_size: 4096,
        io_boundary_bytes: 0,
        read_only: has(1),
        volatile_write_cache: has(2),
        deallocate: has(3),
        deallocate_zeroes: has(4),
        knows_holes: has(5),
        identity: Identity {
            serial: String::from_utf8_lossy(&[features; 40]).into_owned(),
            vendor: AsciiField::new("\u{1}\u{e9}"),
            ..Identity::of_uuid([features; 16])
        },
        limits: Limits::new(1 << 20),
    }
}

fn on_the_disk(blocks: Blocks) {
    let end = blocks.lba.checked_add(blocks.count).expect("no overflow");
    assert!(end <= BLOCK_COUNT, "{blocks:?}");
}

fn check_transfer(request: &Request, transfer: &Transfer) {
    assert!(transfer.bytes <= request.edtl);
    assert_eq!(transfer.bytes == 0, transfer.direction == DataDirection::None);
    if let Residual::Underflow(rest) = transfer.residual {
        assert_eq!(transfer.bytes + rest, request.edtl);
    }
}

fn check_plan(request: &Request, lun: &Lun, plan: &Plan) {
    let block = u64::from(lun.block_size);
    match plan {
        Plan::Read { blocks, transfer, .. } => {
            on_the_disk(*blocks);
            check_transfer(request, transfer);
            assert_eq!(blocks.count, u64::from(transfer.bytes).div_ceil(block));
        }
        Plan::Write { blocks, transfer, .. }
        | Plan::WriteAndVerify { blocks, transfer, .. }
        | Plan::OrWrite { blocks, transfer, .. } => {
            assert!(!lun.read_only);
            on_the_disk(*blocks);
            check_transfer(request, transfer);
            assert_eq!(blocks.count * block, u64::from(transfer.bytes));
        }
        Plan::CompareAndWrite { blocks, transfer, .. } => {
            assert!(!lun.read_only);
            on_the_disk(*blocks);
            assert_eq!(2 * blocks.count * block, u64::from(transfer.bytes));
        }
        Plan::Verify { blocks, transfer, .. } => {
            on_the_disk(*blocks);
            check_transfer(request, transfer);
        }
        Plan::WriteSame { blocks, transfer, deallocate, .. } => {
            assert!(!lun.read_only && (!deallocate || lun.deallocate));
            on_the_disk(*blocks);
            check_transfer(request, transfer);
        }
        Plan::PreFetch { blocks, .. } => on_the_disk(*blocks),
        Plan::LbaStatus { lba, .. } => assert!(*lba < BLOCK_COUNT && lun.knows_holes),
        Plan::Reply(reply) => {
            check_transfer(request, &reply.transfer);
            assert_eq!(reply.data.len() as u64, u64::from(reply.transfer.bytes));
        }
        Plan::Collect { transfer, .. }
        | Plan::Flush { transfer }
        | Plan::Change { transfer, .. } => {
            check_transfer(request, transfer);
        }
        Plan::Refuse(_) | Plan::CopyStatus { .. } => {}
    }
}

/// Three initiators and what they share.
struct World {
    lun: Lun,
    target: TargetFacts,
    state: LunState,
    attentions: [Attentions; 3],
}

fn nexus(number: usize) -> Nexus {
    let number = u8::try_from(number).expect("0 to 2");
    let initiator = format!("iqn.2026-01.org.example:{number}");
    let target = "iqn.2026-01.org.example:disk".to_owned();
    Nexus { initiator, isid: [number; 6], target, port: PORT }
}

impl World {
    fn change(&mut self, from: usize, change: &Change) {
        let Ok(outcome) = self.state.apply(&nexus(from), change) else { return };
        if let Some(next) = outcome.next {
            self.state = next;
        }
        for (whom, attention) in outcome.told {
            for (number, attentions) in self.attentions.iter_mut().enumerate() {
                let is_meant = match &whom {
                    Whom::All => true,
                    Whom::Others => number != from,
                    Whom::Nexus(one) => *one == nexus(number),
                };
                if is_meant {
                    attentions.add(attention);
                }
            }
        }
        let reservations = &self.state.reservations;
        if let Some(held) = &reservations.held {
            let is_registered = reservations.registrants.iter().any(|one| reservations.holds(one));
            assert!(is_registered, "{held:?}");
        }
    }

    fn run(&mut self, from: usize, request: &Request, parameters: &[u8]) {
        check_plan(request, &self.lun, &plan_without_lun(&self.target, request));
        let admission = self.state.admission(&nexus(from));
        let view = View {
            lun: &self.lun,
            state: &self.state,
            admission,
            target: &self.target,
            port: PORT,
            port_state: PortGroupState::Optimized,
        };
        let planned = plan(&view, &mut self.attentions[from], request);
        check_plan(request, &self.lun, &planned);
        match planned {
            Plan::Change { change, .. } => self.change(from, &change),
            Plan::Collect { parameters: command, transfer } => {
                let len = parameters.len().min(transfer.bytes as usize);
                let list = &parameters[..len];
                if command == Parameters::Unmap
                    && let Ok(parts) = unmapped_blocks(&self.lun, list)
                {
                    parts.for_each(on_the_disk);
                }
                if command == Parameters::ExtendedCopy
                    && let Ok(copy) = CopyList::parse(list)
                {
                    for segment in (0..).map_while(|number| copy.segment(number)) {
                        if let Ok(targets) = copy.targets(segment)
                            && let Ok(bytes) = segment.resolve(targets, (&self.lun, &self.lun))
                        {
                            let end = bytes.from.max(bytes.to) + bytes.len;
                            assert!(end <= BLOCK_COUNT * u64::from(self.lun.block_size));
                        }
                    }
                }
                match command.decide(&self.lun, &self.state, list) {
                    Ok(Some(change)) => self.change(from, &change),
                    Ok(None) => {}
                    Err(sense) => {
                        assert!(matches!(refuse(request, sense.into()), Plan::Refuse(_)));
                        for descriptors in [false, true] {
                            assert!(sense.encode(descriptors).as_bytes().len() >= 8);
                        }
                    }
                }
            }
            _ => {}
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((features, mut rest)) = data.split_first() else { return };
    let groups = vec![PortGroup { tag: 1, state: PortGroupState::Optimized, ports: vec![1] }];
    let name = "iqn.2026-01.org.example:disk".to_owned();
    let mut world = World {
        lun: disk(*features),
        target: TargetFacts { name, groups, luns: vec![0] },
        state: LunState::default(),
        attentions: [Attentions::default(); 3],
    };
    world.state.reservations.can_persist = features & 0x40 != 0;
    while let Some((step, after)) = rest.split_first_chunk::<24>() {
        let [who, direction, len, _, e0, e1, e2, e3, cdb @ ..] = *step;
        let from = usize::from(who % 3);
        let direction = match direction % 3 {
            0 => DataDirection::None,
            1 => DataDirection::In,
            _ => DataDirection::Out,
        };
        let request = Request { cdb, edtl: u32::from_be_bytes([e0, e1, e2, e3]), direction };
        let (parameters, after) = after.split_at(usize::from(len).min(after.len()));
        match who {
            0xfe => world.change(from, &Change::NexusLost),
            0xff => world.change(from, &Change::Reset(UnitAttention::LunReset)),
            _ => world.run(from, &request, parameters),
        }
        rest = after;
    }
});
