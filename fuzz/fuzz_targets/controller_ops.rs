//! Any operations of a host on a controller: it answers each once, in bounds, and stays consistent.
//! Input: kind of controller, then steps of a tag and its bytes.
#![no_main]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use libfuzzer_sys::fuzz_target;
use raceline_proto::controller::{
    Action, AdminOutcome, Ana, Association, Channel, ConnectRequest, Controller, CopyCommand,
    Facts, HostAccess, IoCommand, IoCounters, Limits, ListenerInfo, MAX_CROSS_RESETS,
    MAX_EVENT_REQUESTS, MAX_NSID, Namespace, Pool, Security, Subsystem, TargetSnapshot,
    Transport, Visibility, connect_transfer, find_subsystem, parse_connect, parse_io, parse_ranges,
};
use raceline_proto::nvme::ana::AnaState;
use raceline_proto::nvme::cross_reset::{ControllerInstance, ResetStatus};
use raceline_proto::nvme::fabrics::{ConnectData, ConnectWords};
use raceline_proto::nvme::feature::WriteProtection;
use raceline_proto::nvme::property::{CC, Configuration, PropertyAccess};
use raceline_proto::nvme::reservation::{NoticeKind, ReservationType};
use raceline_proto::nvme::{
    ControllerId, Direction, HostId, HostNqn, NamespaceId, Nqn, QueueId, Sqe, Status,
};
use raceline_proto::reservation::{Held, Registrant, Reservations, parse_reservation, put_report};
use zerocopy::{FromBytes, IntoBytes};

const CNTLID: ControllerId = ControllerId(1);
const PORT: u16 = 1;
const HOSTID: HostId = HostId([7; 16]);
const SUBNQN: &str = "nqn.2026-01.org.raceline:fuzz";
const HOSTNQN: &str = "nqn.2026-01.org.raceline:host";

fn namespace(nsid: u32, seed: u8) -> Namespace {
    Namespace {
        nsid: NamespaceId(nsid),
        block_size: if seed & 1 == 0 { 512 } else { 4096 },
        block_count: if seed & 2 == 0 { 1 + u64::from(seed) } else { u64::MAX },
        physical_block_size: 4096,
        io_boundary_bytes: u64::from(seed) << 12,
        uuid: [seed; 16],
        nguid: [seed; 16],
        eui64: [seed; 8],
        visibility: if seed & 64 == 0 {
            Visibility::All
        } else {
            Visibility::Hosts([Nqn::new(HOSTNQN).unwrap()].into())
        },
        shared: seed & 128 != 0,
        pool_bytes: (seed & 3 == 1).then_some(1 << 20),
        volatile_write_cache: seed & 4 != 0,
        read_only: seed & 8 != 0,
        protection: WriteProtection::from_wire(u32::from(seed >> 3 & 3)).unwrap_or_default(),
        deallocate: seed & 16 != 0,
        deallocate_zeroes: seed & 32 != 0,
        knows_holes: seed & 64 != 0,
        uncorrectable: seed & 128 != 0,
        ana_group: if seed & 16 == 0 { nsid } else { 1 },
    }
}

/// The reservations of a namespace; the seed says whether this host is registered, and which type is held.
fn reservations(seed: u8) -> Reservations {
    let id = if seed & 32 == 0 { HOSTID } else { HostId([8; 16]) };
    let held = ReservationType::from_wire(seed & 7).map(|kind| Held { kind, holder: id });
    Reservations {
        registrants: vec![Registrant::host(id, None, 1)],
        held,
        persists: seed & 16 != 0,
        can_persist: true,
        ..Reservations::default()
    }
}

/// A target; the seed says which namespaces it has and how, and rarely that there is no subsystem.
fn snapshot(generation: u64, seed: u8) -> Arc<TargetSnapshot> {
    let nsids = [1, 2, 5, 1024].into_iter().filter(|nsid| u64::from(seed) & nsid != 0);
    let namespaces: Vec<Namespace> =
        nsids.map(|nsid| namespace(u32::try_from(nsid).unwrap(), seed)).collect();
    let mut ana = Ana::default();
    ana.set_members(&namespaces);
    ana.set(PORT, 1, AnaState::ALL[usize::from(seed) % AnaState::ALL.len()]);
    let subsystem = Subsystem {
        nqn: Nqn::new(SUBNQN).unwrap(),
        serial: "FUZZ".into(),
        model: "Raceline".into(),
        firmware: "0".into(),
        hosts: if seed == 0xfe { HostAccess::List(vec![]) } else { HostAccess::Any },
        security: if seed == 0xfd { Security::TLS } else { Security::PLAIN },
        host_security: vec![],
        ports: vec![],
        max_nsid: MAX_NSID,
        namespaces,
        pool: (seed & 1 == 1).then(|| Pool {
            total_bytes: 1 << 30,
            free_bytes: u64::from(seed) << 20,
            block_sizes: vec![512, 4096],
            managers: HostAccess::Any,
        }),
        limits: Limits::DEFAULT,
        ana: Some(ana),
        reservations: (seed & 4 == 0).then(|| [(1, Arc::new(reservations(seed)))].into()),
    };
    let subsystems = if seed == 0xff { vec![] } else { vec![Arc::new(subsystem)] };
    let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 4420 + u16::from(seed & 64)));
    let listeners = vec![ListenerInfo {
        address,
        port_id: PORT,
        open: true,
        security: Security::PLAIN,
        concatenates: false,
        transport: Transport::default(),
    }];
    Arc::new(TargetSnapshot { generation, subsystems, listeners, ..TargetSnapshot::default() })
}

fn connect(
    words: ConnectWords,
    cntlid: ControllerId,
    subnqn: &Nqn,
    patch: &[u8],
) -> Option<ConnectRequest> {
    let hostnqn = Nqn::new(HOSTNQN).unwrap();
    let mut data = ConnectData::new(HOSTID, cntlid, subnqn, &hostnqn);
    for pair in patch.chunks_exact(4) {
        let place = usize::from(u16::from_le_bytes([pair[0], pair[1]])) % ConnectData::LEN;
        data.as_mut_bytes()[place] = pair[2];
    }
    let sqe = words.to_sqe();
    assert_eq!(connect_transfer(&sqe).unwrap().len, 1024);
    parse_connect(&sqe, data.as_bytes()).ok()
}

struct Driver {
    controller: Controller,
    snapshot: Arc<TargetSnapshot>,
    now: Instant,
    held: usize,
    /// Resets of other controllers that have not ended.
    resetting: Vec<ControllerInstance>,
    abandoned: bool,
}

impl Driver {
    fn command(&mut self, sqe: &Sqe) {
        let Ok(transfer) = self.controller.transfer(sqe) else { return };
        assert_eq!(transfer.len == 0, transfer.direction == Direction::None);
        assert!(transfer.len <= Limits::DEFAULT.max_io_bytes);
        let len = transfer.len as usize;
        let to_host = transfer.direction == Direction::ControllerToHost;
        let (data, mut reply) =
            if to_host { (vec![], vec![0; len]) } else { (self.data(len), vec![]) };
        let host = HostNqn::Named(Nqn::new(HOSTNQN).unwrap());
        let counters = IoCounters { read_bytes: u64::MAX, ..IoCounters::default() };
        let facts = Facts { counters, controllers: vec![(CNTLID, host)] };
        let outcome = self.controller.handle_admin(self.now, sqe, &data, &mut reply, &facts);
        match outcome {
            AdminOutcome::Held => self.held += 1,
            AdminOutcome::LbaStatus(query) => {
                let blocks = query.blocks.clone();
                assert!(blocks.start < blocks.end);
                query.put(&[blocks.clone(), blocks], &mut reply);
            }
            AdminOutcome::CrossReset(instance) => {
                self.controller.cross_reset_begun(instance);
                self.resetting.push(instance);
                assert!(self.resetting.len() <= usize::from(MAX_CROSS_RESETS));
            }
            _ => {}
        }
    }

    /// Data of a command, which sometimes look like a namespace to create, or a list of
    /// controllers.
    fn data(&self, len: usize) -> Vec<u8> {
        let mut data = vec![if self.held % 2 == 0 { 0 } else { 0x5a }; len];
        for (place, byte) in data.iter_mut().zip([1, 0, 1, 0, 0, 0, 0, 0, 1, 0, 1]) {
            *place = byte;
        }
        data
    }

    fn io(&self, sqe: &Sqe, data: &[u8]) {
        let Some(subsystem) = self.snapshot.subsystems.first() else { return };
        self.reserve(sqe, data);
        let Ok((command, transfer)) = parse_io(sqe, &subsystem.namespaces, &subsystem.limits)
        else {
            return;
        };
        assert!(transfer.len <= subsystem.limits.max_io_bytes);
        let namespace = &subsystem.namespaces[command.namespace()];
        if let IoCommand::Copy { sdlba, ranges, across, fua, .. } = command {
            let copy = CopyCommand { sdlba, ranges, across, fua };
            let source = |nsid| {
                let found = subsystem.namespaces.iter().find(|namespace| namespace.nsid == nsid);
                found.ok_or(Status::INVALID_NAMESPACE.dnr())
            };
            if copy.check(data, namespace, source).is_ok() {
                let sources = (0..copy.ranges).filter_map(|place| copy.source(data, place));
                let total: u64 = sources.map(|source| u64::from(source.block_count)).sum();
                assert!(copy.sdlba + total <= namespace.block_count);
            }
        }
        for (slba, count) in parse_ranges(data, 256, namespace).flatten() {
            assert!(slba + u64::from(count) <= namespace.block_count);
        }
    }

    /// The command on the reservations of namespace 1: what it makes of them has a holder that is registered.
    fn reserve(&self, sqe: &Sqe, data: &[u8]) {
        let subsystem = self.snapshot.subsystems.first();
        let reserved = subsystem.and_then(|subsystem| subsystem.reservations.as_ref()?.get(&1));
        let (Some(state), Ok(command)) = (reserved, parse_reservation(sqe, data)) else { return };
        let Ok(outcome) = state.apply(&self.controller.reserving_host(), &command) else { return };
        let Some(next) = outcome.next else { return };
        if let Some(held) = next.held {
            let is_there = next.registrants.iter().any(|registrant| registrant.id == held.holder);
            assert!(is_there || held.kind.is_held_by_all() && !next.registrants.is_empty());
        }
        put_report(&next, &mut [0; 100]);
    }

    fn actions(&mut self) {
        while let Some(action) = self.controller.poll_action() {
            assert!(!self.abandoned, "abandon is the last action");
            match action {
                Action::CompleteAer { .. } => self.held = self.held.checked_sub(1).unwrap(),
                Action::CloseIoQueues => {}
                Action::Abandon { .. } => self.abandoned = true,
            }
        }
        assert!(self.held <= MAX_EVENT_REQUESTS);
    }

    fn step(&mut self, tag: u8, bytes: &[u8; 64], rest: &[u8]) {
        let [a, b, ..] = *bytes;
        match tag & 7 {
            0..=3 => {
                let mut sqe = Sqe::read_from_bytes(bytes).unwrap();
                // most commands should get further than PSDT
                if tag & 8 == 0 {
                    sqe.flags = Sqe::PSDT_SGL | sqe.flags & 3;
                }
                self.command(&sqe);
                self.io(&sqe, rest);
            }
            4 => {
                self.now += Duration::from_millis(u64::from(u16::from_le_bytes([a, b])) * 4);
                if self.controller.poll_timeout().is_some_and(|at| at <= self.now) {
                    self.controller.handle_timeout(self.now);
                }
                if let Some(instance) = self.resetting.pop() {
                    let failed = tag & 8 != 0;
                    let status = if failed { ResetStatus::Failed } else { ResetStatus::Succeeded };
                    self.controller.cross_reset_ended(instance, status);
                }
            }
            5 => {
                self.snapshot = snapshot(self.snapshot.generation + 1, a);
                self.controller.handle_snapshot(Arc::clone(&self.snapshot));
            }
            6 => {
                let words = ConnectWords {
                    qid: QueueId(u16::from(a & 31)),
                    sqsize: u16::from(b),
                    ..ConnectWords::default()
                };
                let patch = if tag & 8 == 0 { &[] } else { &bytes[2..] };
                if let Some(request) = connect(words, CNTLID, &Nqn::new(SUBNQN).unwrap(), patch) {
                    let _ = find_subsystem(&self.snapshot, &request, (1, Channel::Plain));
                    let _ = self.controller.handle_io_connect(self.now, &request);
                }
            }
            _ if tag & 16 != 0 => {
                let kinds = [NoticeKind::RegistrationPreempted, NoticeKind::ReservationReleased];
                let kind = kinds[usize::from(a & 1)];
                self.controller.note_reservation(NamespaceId(u32::from(b & 7)), kind);
            }
            _ if tag & 8 == 0 => self.controller.io_queue_closed(QueueId(u16::from(a & 31))),
            _ => self.controller.io_queues_drained(self.now),
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&kind, mut steps)) = data.split_first() else { return };
    let snapshot = snapshot(1, 7);
    let subnqn = if kind & 1 == 0 { Nqn::new(SUBNQN).unwrap() } else { Nqn::discovery() };
    let kato = u32::from(kind >> 2) * 100;
    let words = ConnectWords { sqsize: 31, kato, ..ConnectWords::default() };
    let request = connect(words, ControllerId::DYNAMIC, &subnqn, &[]).unwrap();
    let role = find_subsystem(&snapshot, &request, (1, Channel::Plain)).unwrap();
    let local_address = SocketAddr::from((Ipv4Addr::LOCALHOST, 8009));
    let association = Association {
        instance: ControllerInstance { cntlid: CNTLID, ciu: 3, cirn: 5 },
        request,
        role,
        snapshot: Arc::clone(&snapshot),
        local_address,
        port_id: PORT,
        security: Security::PLAIN,
    };
    let now = Instant::now();
    let controller = Controller::new(association, now);
    let mut driver =
        Driver { controller, snapshot, now, held: 0, resetting: vec![], abandoned: false };
    if kind & 2 == 0 {
        driver.command(&PropertyAccess::set(CC, Configuration::ENABLED.0));
    }
    while let Some((&tag, rest)) = steps.split_first() {
        let Some((bytes, rest)) = rest.split_first_chunk::<64>() else { break };
        driver.step(tag, bytes, rest);
        driver.actions();
        steps = rest;
    }
});
