//! Whatever a host sends, the controller answers and stays consistent.

use std::time::Duration;

use proptest::prelude::*;
use raceline_proto::controller::{
    AdminOutcome, Channel, Limits, Namespace, connect_transfer, find_subsystem, parse_connect,
    parse_io, parse_ranges,
};
use raceline_proto::nvme::event::AsyncEvent;
use raceline_proto::nvme::fabrics::{ConnectResponse, ConnectWords};
use raceline_proto::nvme::feature::QueueCounts;
use raceline_proto::nvme::log::{GetLogPage, lid};
use raceline_proto::nvme::opcode::{admin, fabrics, io};
use raceline_proto::nvme::rw::BlockRange;
use raceline_proto::nvme::{CommandId, ControllerId, Cqe, Direction, Nqn, QueueId, Sqe, Status};
use zerocopy::{FromBytes, IntoBytes};

use super::support::{Connect, Host, PORT, SUBNQN, namespace, snapshot, subsystem};

/// Random bytes with opcode, PSDT, FCTYPE and SGL biased towards what exists.
fn any_sqe() -> impl Strategy<Value = Sqe> {
    let opcode = prop_oneof![
        8 => prop::sample::select(vec![
            admin::GET_LOG_PAGE, admin::IDENTIFY, admin::ABORT, admin::SET_FEATURES,
            admin::GET_FEATURES, admin::ASYNC_EVENT_REQUEST, admin::KEEP_ALIVE,
            admin::NAMESPACE_MANAGEMENT, admin::NAMESPACE_ATTACHMENT, admin::FORMAT_NVM,
            fabrics::OPCODE, io::FLUSH, io::WRITE, io::READ, io::COMPARE, io::WRITE_ZEROES,
            io::DATASET_MANAGEMENT,
        ]),
        1 => any::<u8>(),
    ];
    let small = || prop_oneof![any::<u32>(), 0..2048_u32, (0..256_u32).prop_map(|n| n << 16 | n)];
    let words = (small(), small(), small(), small());
    let sgl = (prop_oneof![Just(0x5a_u8), Just(0x01), any::<u8>()], small());
    let flags = prop_oneof![4 => Just(0x40_u8), 1 => any::<u8>()];
    (any::<[u8; 64]>(), opcode, flags, small(), sgl, words).prop_map(
        |(bytes, opc, flags, nsid, (kind, length), (cdw10, cdw11, cdw12, cdw13))| {
            let mut sqe = Sqe::read_from_bytes(&bytes).unwrap();
            sqe.opc = opc;
            sqe.flags = flags;
            sqe.nsid = nsid.into();
            sqe.sgl1.kind = kind;
            sqe.sgl1.length = length.into();
            (sqe.cdw10, sqe.cdw11) = (cdw10.into(), cdw11.into());
            (sqe.cdw12, sqe.cdw13) = (cdw12.into(), cdw13.into());
            sqe
        },
    )
}

fn any_namespace() -> impl Strategy<Value = Namespace> {
    (9..=12_u32, 1..=u64::MAX, any::<bool>()).prop_map(|(shift, block_count, read_only)| {
        Namespace { block_size: 1 << shift, block_count, read_only, ..namespace(1) }
    })
}

#[derive(Clone, Debug)]
enum Step {
    Command(Sqe),
    Wait(u32),
    Snapshot(u8),
    IoConnect(u16),
    IoClosed(u16),
    Drained,
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => any_sqe().prop_map(Step::Command),
        1 => (0..200_000_u32).prop_map(Step::Wait),
        1 => any::<u8>().prop_map(Step::Snapshot),
        1 => (0..20_u16).prop_map(Step::IoConnect),
        1 => (0..20_u16).prop_map(Step::IoClosed),
        1 => Just(Step::Drained),
    ]
}

fn run(host: &mut Host, steps: Vec<Step>) {
    let mut held = 0_usize;
    for (generation, step) in (2..).zip(steps) {
        match step {
            Step::Command(sqe) => {
                if let Ok(AdminOutcome::Held) = host.submit(&sqe) {
                    held += 1;
                }
            }
            Step::Wait(ms) => host.advance(Duration::from_millis(ms.into())),
            Step::Snapshot(size) => {
                let mut changed = subsystem();
                changed.namespaces = (1..=u32::from(size)).map(namespace).collect();
                host.controller.handle_snapshot(snapshot(generation, changed));
            }
            Step::IoConnect(qid) => drop(host.io_connect(&Connect::io(qid))),
            Step::IoClosed(qid) => host.controller.io_queue_closed(QueueId(qid)),
            Step::Drained => host.controller.io_queues_drained(host.now),
        }
        for action in host.actions() {
            use raceline_proto::controller::Action;
            if let Action::CompleteAer { .. } = action {
                // each request completes at most once
                held = held.checked_sub(1).unwrap();
            }
        }
        assert!(held <= 4);
    }
}

proptest! {
    #[test]
    fn any_commands_on_an_io_controller(steps in prop::collection::vec(any_step(), 0..60)) {
        run(&mut Host::ready(), steps);
    }

    #[test]
    fn any_commands_on_a_discovery_controller(
        steps in prop::collection::vec(any_step(), 0..60),
        kato in 0..20_000_u32,
    ) {
        run(&mut Host::discovery(&snapshot(1, subsystem()), kato, "192.0.2.1:8009"), steps);
    }

    #[test]
    fn any_log_offset_and_length(
        lid in prop::sample::select(vec![1, 2, 3, 4, 5, 0x70_u8]),
        offset in prop_oneof![any::<u64>(), (0..20_000_u64), (0..5000_u64).prop_map(|n| n * 4)],
        len in prop_oneof![0..5000_u32, any::<u32>()],
        numd in prop_oneof![0..5000_u64, 0..1_u64 << 32],
        discovery: bool,
    ) {
        let mut host = if discovery {
            Host::discovery(&snapshot(1, subsystem()), 0, "192.0.2.1:8009")
        } else {
            Host::ready()
        };
        let mut sqe = Host::admin(admin::GET_LOG_PAGE, len);
        let len_bytes = (numd + 1) * 4;
        GetLogPage { lid, lsp: 0, retain_event: true, len_bytes, offset, csi: 0 }
            .write(&mut sqe);
        let answer = host.command(&sqe);
        if answer.status.is_success() {
            prop_assert_eq!(offset % 4, 0);
            prop_assert_eq!(answer.data.len(), usize::try_from(len).unwrap());
            prop_assert!(len_bytes <= u64::from(len));
        }
        prop_assert_eq!(lid == lid::DISCOVERY && !discovery && answer.status.is_success(), false);
    }

    #[test]
    fn any_io_command(sqe in any_sqe(), info in any_namespace(), shift in 13..=25_u32) {
        let limits = Limits { max_io_bytes: 1 << shift, ..Limits::DEFAULT };
        match parse_io(&sqe, std::slice::from_ref(&info), &limits) {
            Ok((command, transfer)) => {
                prop_assert_eq!(command.namespace(), 0);
                prop_assert_eq!(transfer.len == 0, transfer.direction == Direction::None);
                prop_assert!(transfer.len <= limits.max_io_bytes);
            }
            Err(status) => prop_assert!(!status.is_success() && status.is_dnr()),
        }
    }

    #[test]
    fn any_parsed_range_is_inside(
        slba in prop_oneof![0..5000_u64, any::<u64>()],
        block_count in 1..=300_u32,
        info in any_namespace(),
        opcode in prop::sample::select(vec![io::READ, io::WRITE, io::COMPARE, io::WRITE_ZEROES]),
    ) {
        let bytes = block_count * info.block_size;
        let mut sqe = Host::admin(opcode, bytes);
        sqe.nsid = 1.into();
        BlockRange { slba, block_count }.write(&mut sqe);
        let inside = u128::from(slba) + u128::from(block_count) <= u128::from(info.block_count);
        let changes = matches!(opcode, io::WRITE | io::WRITE_ZEROES);
        let limits = Limits { max_io_bytes: 1 << 25, ..Limits::DEFAULT };
        let parsed = parse_io(&sqe, std::slice::from_ref(&info), &limits);
        prop_assert_eq!(parsed.is_ok(), inside && !(changes && info.read_only));
    }

    #[test]
    fn any_ranges(data: Vec<u8>, ranges: u16, info in any_namespace()) {
        for (slba, count) in parse_ranges(&data, ranges, &info).flatten() {
            prop_assert!(slba + u64::from(count) <= info.block_count);
        }
    }

    #[test]
    fn any_connect(
        words in any::<[u8; 64]>(),
        patches in prop::collection::vec((0..1024_usize, any::<u8>()), 0..8),
        len in prop_oneof![4 => Just(1024_usize), 1 => 0..1024_usize],
    ) {
        let sqe = Sqe::read_from_bytes(&words).unwrap();
        let _ = connect_transfer(&sqe);
        let mut data = Connect::admin(SUBNQN).data;
        for (place, byte) in patches {
            data.as_mut_bytes()[place] = byte;
        }
        let sqe = Sqe { cdw10: (sqe.cdw10.get() & 0xffff_0000).into(), ..sqe };
        match parse_connect(&sqe, &data.as_bytes()[..len]) {
            Ok(request) => {
                prop_assert_eq!(len, 1024);
                prop_assert!(request.queue_entries <= 65_536);
                prop_assert_eq!(request.hostid.0, data.hostid);
                let _ = find_subsystem(&snapshot(1, subsystem()), &request, (PORT, Channel::Plain));
            }
            Err(error) => prop_assert!(!error.status.is_success()),
        }
    }

    #[test]
    fn connect_words_round_trip(
        recfmt: u16, qid: u16, sqsize: u16, cattr: u8, kato: u32, cntlid: u16,
    ) {
        let words = ConnectWords { recfmt, qid: QueueId(qid), sqsize, cattr, kato };
        prop_assert_eq!(ConnectWords::parse(&words.to_sqe()), words);
        let response = ConnectResponse {
            cntlid: ControllerId(cntlid),
            authentication_required: cattr & 1 != 0,
            secure_channel_required: cattr & 2 != 0,
        };
        prop_assert_eq!(ConnectResponse::from_dw0(response.to_dw0()), response);
    }

    #[test]
    fn log_words_round_trip(lid: u8, lsp in 0..0x80_u8, rae: bool, numd: u32, offset: u64) {
        let len_bytes = (u64::from(numd) + 1) * 4;
        let command = GetLogPage { lid, lsp, retain_event: rae, len_bytes, offset, csi: 0 };
        let mut sqe = Sqe::default();
        command.write(&mut sqe);
        prop_assert_eq!(GetLogPage::parse(&sqe), command);
    }

    #[test]
    fn small_words_round_trip(slba: u64, block_count in 1..=65_536_u32, dword: u32) {
        let mut sqe = Sqe::default();
        BlockRange { slba, block_count }.write(&mut sqe);
        prop_assert_eq!(BlockRange::parse(&sqe), BlockRange { slba, block_count });
        prop_assert_eq!(QueueCounts::from_dword(dword).to_dword(), dword);
        let event = AsyncEvent::from_dw0(dword);
        prop_assert_eq!(AsyncEvent::from_dw0(event.to_dw0()), event);
    }

    #[test]
    fn cqe_round_trips(dw0: u32, dw1: u32, sqhd: u16, sqid: u16, cid: u16, status: u16) {
        let status = Status::from_wire(status);
        let (sqid, cid) = (QueueId(sqid), CommandId(cid));
        let cqe = Cqe { dw0, dw1, sqhd, sqid, cid, status };
        prop_assert_eq!(Cqe::from_bytes(&cqe.to_bytes()), cqe);
        prop_assert_eq!(Status::new(status.sct(), status.sc()).same_code(status), true);
    }

    #[test]
    fn nqn_fields_round_trip(name in "nqn\\.[0-9a-z:.-]{7,219}") {
        let nqn = Nqn::new(&name).unwrap();
        prop_assert_eq!(Nqn::from_field(&nqn.to_field()), Ok(nqn));
    }

    #[test]
    fn sqe_round_trips(bytes in any::<[u8; 64]>()) {
        let sqe = Sqe::read_from_bytes(&bytes).unwrap();
        prop_assert_eq!(sqe.as_bytes(), bytes);
    }
}
