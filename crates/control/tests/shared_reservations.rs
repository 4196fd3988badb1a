//! SIGKILL ends a daemon while hosts of NVMe and initiators of iSCSI change the reservations of one device: what persists
//! and was answered is there again for both, and what does not persist is not.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../../target/tests/common/mod.rs"]
mod common;
#[path = "../../target/tests/common/iscsi.rs"]
mod initiator_end;
mod killed;
#[path = "../../target/tests/common/reserving.rs"]
mod reserving;

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::nqn;
use initiator_end::{Heard as FromTarget, INITIATOR, Initiator, TARGET};
use killed::{Daemon, START_TIMEOUT};
use raceline_control::manager::ManagerConfig;
use raceline_iscsi::names::Isid;
use raceline_proto::nvme::opcode::io;
use raceline_proto::nvme::{HostId, HostNqn, Sqe, Status};
use raceline_proto::reservation::{
    Nexus, Port, Reservations, ReservingHost, parse_reservation, put_report,
};
use raceline_scsi::cdb::{ReserveOut, ReserveOutAction};
use raceline_scsi::reservation::ReserveOutParameters;
use raceline_scsi::{Change, LunState, Refusal};
use reserving::{Host, host_name};
use serde_json::{Value, json};
use zerocopy::IntoBytes as _;

/// Kills of a run.
const KILLS: u64 = 25;
/// Answers before a kill, however slow the machine is.
const LEAST_ANSWERS: u64 = 6;
/// Of so many rounds, one asks for no persistence.
const FORGETFUL_ROUND: u64 = 4;
/// Hosts, and initiators.
const EACH: u8 = 2;

/// Not a test but the daemon of the tests below, which start this program again.
#[test]
fn a_daemon_to_be_killed() {
    let Some(dir) = killed::directory() else { return };
    let reservations = Some(dir.join("state/reservations"));
    killed::serve(&dir, ManagerConfig { reservations, ..ManagerConfig::default() }, |_, _| ());
}

/// Addresses of a test's own: no connection of this machine takes their ports while a daemon is down.
#[derive(Clone, Copy)]
struct Addresses {
    nvme: SocketAddr,
    iscsi: SocketAddr,
}

impl Addresses {
    fn of(test: u8) -> Self {
        let [low, high, ..] = std::process::id().to_le_bytes();
        let at = |port| SocketAddr::from(([127, 110 + test, high, low.max(1)], port));
        Self { nvme: at(4420), iscsi: at(3260) }
    }

    /// The daemon on this directory, once nobody listens there: the kernel may still be at the ring of a daemon that was
    /// killed.
    fn start(self, dir: &Path) -> Daemon {
        let deadline = Instant::now() + START_TIMEOUT;
        for address in [self.nvme, self.iscsi] {
            while let Err(error) = TcpListener::bind(address) {
                assert!(Instant::now() < deadline, "{address}: {error}");
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        Daemon::start(dir)
    }

    fn export(self, daemon: &Daemon) {
        let text = |address: SocketAddr| (address.ip().to_string(), address.port().to_string());
        let (ip, port) = text(self.nvme);
        let at = json!({ "trtype": "tcp", "adrfam": "ipv4", "traddr": ip, "trsvcid": port });
        let device = json!({ "name": "M", "num_blocks": 2048, "block_size": 512 });
        let nqn = nqn();
        let nqn = nqn.as_str();
        daemon.ok("nvmf_create_transport", json!({ "trtype": "tcp" }));
        daemon.ok("bdev_malloc_create", device);
        daemon.ok("nvmf_create_subsystem", json!({ "nqn": nqn, "allow_any_host": true }));
        let namespace = json!({ "nqn": nqn, "namespace": { "bdev_name": "M" } });
        daemon.ok("nvmf_subsystem_add_ns", namespace);
        daemon.ok("nvmf_subsystem_add_listener", json!({ "nqn": nqn, "listen_address": at }));
        let (host, port) = text(self.iscsi);
        let portals = json!([{ "host": host, "port": port }]);
        daemon.ok("iscsi_create_portal_group", json!({ "tag": 1, "portals": portals }));
        let anybody = json!({ "tag": 1, "initiators": ["ANY"], "netmasks": ["ANY"] });
        daemon.ok("iscsi_create_initiator_group", anybody);
        let node = json!({
            "name": TARGET, "alias_name": "", "pg_ig_maps": [{ "pg_tag": 1, "ig_tag": 1 }],
            "luns": [{ "bdev_name": "M", "lun_id": 0 }], "queue_depth": 32, "disable_chap": true,
        });
        daemon.ok("iscsi_create_target_node", node);
    }
}

fn host(number: u8) -> ReservingHost {
    ReservingHost { id: HostId([number; 16]), name: HostNqn::Named(host_name(number)) }
}

fn nexus(number: u8) -> Nexus {
    Nexus {
        initiator: INITIATOR.to_owned(),
        isid: Isid::random(number.into(), 0).0,
        target: TARGET.to_owned(),
        port: Port { group: 1, relative: 1 },
    }
}

/// Simple random numbers of sufficient quality (SplitMix64: Steele, Lea, Flood, OOPSLA 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }

    fn byte_below(&mut self, limit: u8) -> u8 {
        u8::try_from(self.below(limit.into())).unwrap()
    }
}

/// A command of a host. Few keys, so that they meet. Of registrations, one in eight ends persistence, or all do.
fn any_of_host(random: &mut Random, forgetful: bool) -> (Sqe, Vec<u8>) {
    let rtype = (1 + u32::from(random.byte_below(6))) << 8;
    let persists = if random.below(8) == 0 || forgetful { 2 << 30 } else { 3 << 30 };
    let (opc, cdw10) = match random.below(10) {
        0..4 => (io::RESERVATION_REGISTER, persists | 8 | u32::from(random.byte_below(3))),
        4..8 => (io::RESERVATION_ACQUIRE, rtype | u32::from(random.byte_below(3))),
        8 => (io::RESERVATION_RELEASE, rtype),
        _ => (io::RESERVATION_RELEASE, rtype | u32::from(random.below(4) == 0)),
    };
    let keys = [1 + random.below(2), 1 + random.below(2)];
    let len = if opc == io::RESERVATION_RELEASE { 8 } else { 16 };
    let sqe = Sqe { opc, nsid: 1.into(), cdw10: cdw10.into(), ..Sqe::default() };
    (sqe, keys.as_bytes()[..len].to_vec())
}

/// A PERSISTENT RESERVE OUT, likewise: what it means, its CDB and its parameters.
fn any_of_initiator(random: &mut Random, forgetful: bool) -> (Change, [u8; 10], [u8; 24]) {
    let action = match random.below(10) {
        0..4 => ReserveOutAction::RegisterAndIgnore,
        4 => ReserveOutAction::Register,
        5 => ReserveOutAction::Reserve,
        6 => ReserveOutAction::Preempt,
        7 => ReserveOutAction::PreemptAndAbort,
        8 => ReserveOutAction::Release,
        _ if random.below(4) == 0 => ReserveOutAction::Clear,
        _ => ReserveOutAction::Reserve,
    };
    let kind = [1, 3, 5, 6, 7, 8][usize::from(random.byte_below(6))];
    let registers =
        matches!(action, ReserveOutAction::Register | ReserveOutAction::RegisterAndIgnore);
    let (key, action_key) = (1 + random.below(2), 1 + random.below(2));
    let persist = registers && random.below(8) > 0 && !forgetful;
    let mut cdb = [0; 10];
    (cdb[0], cdb[1], cdb[2], cdb[8]) = (0x5f, service_action(action), kind, 24);
    let mut list = [0; 24];
    list[..8].copy_from_slice(&key.to_be_bytes());
    list[8..16].copy_from_slice(&action_key.to_be_bytes());
    list[20] = u8::from(persist);
    let command = ReserveOut { action, scope_and_type: kind, length: 24 };
    let parameters = ReserveOutParameters { key, action_key, persist };
    (Change::ReserveOut(command, parameters), cdb, list)
}

fn service_action(action: ReserveOutAction) -> u8 {
    match action {
        ReserveOutAction::Register => 0,
        ReserveOutAction::Reserve => 1,
        ReserveOutAction::Release => 2,
        ReserveOutAction::Clear => 3,
        ReserveOutAction::Preempt => 4,
        ReserveOutAction::PreemptAndAbort => 5,
        ReserveOutAction::RegisterAndIgnore => 6,
    }
}

/// What is left of a state after the end of its target.
fn surviving(state: &Reservations) -> Reservations {
    let fresh = Reservations { can_persist: true, ..Reservations::default() };
    match state.persists {
        true => Reservations { generation: 0, ..state.clone() },
        false => fresh,
    }
}

/// The report without GEN, which begins anew with the daemon.
fn report_of(state: &Reservations) -> Vec<u8> {
    let mut page = vec![0; 4096];
    put_report(state, &mut page);
    page[4..].to_vec()
}

fn report(host: &mut Host) -> Vec<u8> {
    let sqe = Sqe {
        opc: io::RESERVATION_REPORT,
        nsid: 1.into(),
        cdw10: 1023.into(),
        cdw11: 1.into(),
        ..Sqe::default()
    };
    let answer = host.queue.read_command(sqe, 4096);
    assert!(answer.cqe.status.is_success(), "{}", answer.cqe.status);
    answer.data[4..].to_vec()
}

/// What everybody knows: the state after the last answer, and the one that an unanswered command would make.
struct Known {
    state: Reservations,
    coming: Option<Reservations>,
    answers: [u64; 2],
    /// Those of this round.
    answered: Arc<AtomicU64>,
    /// Registrations of this round do not persist.
    forgetful: bool,
}

impl Known {
    /// Sends commands, one at a time, until the daemon dies.
    fn run(&mut self, hosts: &mut [Host], initiators: &mut [Initiator], random: &mut Random) {
        loop {
            let number = random.byte_below(EACH);
            let place = usize::from(number);
            let is_alive = match random.below(2) {
                0 => self.of_host(number + 1, &mut hosts[place], random),
                _ => self.of_initiator(number + 1, &mut initiators[place], random),
            };
            if !is_alive {
                return;
            }
            if let Some(next) = self.coming.take() {
                self.state = next;
            }
            self.answered.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn of_host(&mut self, number: u8, from: &mut Host, random: &mut Random) -> bool {
        let (sqe, data) = any_of_host(random, self.forgetful);
        let command = parse_reservation(&sqe, &data).unwrap();
        let expected = self.state.apply(&host(number), &command);
        self.coming = expected.as_ref().ok().and_then(|outcome| outcome.next.clone());
        let (cid, capsule) = from.queue.capsule(sqe, &data);
        if from.queue.stream.write_all(&capsule).is_err() {
            return false;
        }
        let status = loop {
            match from.queue.listen() {
                common::Heard::Response(cqe) if cqe.cid == cid => break cqe.status,
                common::Heard::Closed => return false,
                _ => {}
            }
        };
        self.answers[0] += 1;
        assert_eq!(
            status,
            expected.map_or_else(|refusal| refusal, |_| Status::SUCCESS),
            "{command:?}"
        );
        true
    }

    fn of_initiator(&mut self, number: u8, from: &mut Initiator, random: &mut Random) -> bool {
        let (change, cdb, list) = any_of_initiator(random, self.forgetful);
        let unit = LunState { reservations: self.state.clone(), ..LunState::default() };
        let expected = unit.apply(&nexus(number), &change);
        let next = expected.as_ref().ok().and_then(|outcome| outcome.next.clone());
        self.coming = next.map(|next| next.reservations);
        loop {
            let slot = from.start(0, &cdb, 0, &list);
            let FromTarget::Response { slot: found, answer } = from.listen() else { return false };
            assert_eq!(slot, found);
            if answer.sense.is_some_and(|(key, asc, _)| (key, asc) == (6, 0x2a)) {
                continue; // another one has changed something
            }
            self.answers[1] += 1;
            match &expected {
                Ok(_) => assert_eq!((answer.status, answer.sense), (0, None), "{change:?}"),
                Err(Refusal::Conflict) => assert_eq!(answer.status, 0x18, "{change:?}"),
                Err(_) => assert_eq!(answer.status, 2, "{change:?}"),
            }
            return true;
        }
    }

    /// Checks what a new daemon shows.
    fn look(&mut self, hosts: &mut [Host], round: u64) {
        let found = report(&mut hosts[0]);
        let kept = surviving(&self.state);
        let coming = self.coming.take().map(|coming| surviving(&coming));
        self.state = if found == report_of(&kept) {
            kept
        } else {
            let coming = coming.expect("nothing was under way");
            assert_eq!(found, report_of(&coming), "round {round}: {kept:?}");
            coming
        };
    }
}

#[test]
fn what_both_protocols_were_answered_survives_sigkill_at_any_point() {
    let dir = tempfile::tempdir().unwrap();
    let addresses = Addresses::of(1);
    let mut random = Random(23);
    let place = Reservations { can_persist: true, ..Reservations::default() };
    let answered = Arc::new(AtomicU64::new(0));
    let mut known = Known {
        state: place,
        coming: None,
        answers: [0; 2],
        answered: Arc::clone(&answered),
        forgetful: false,
    };
    let (mut kept, mut lost) = (0, 0);
    for round in 0..=KILLS {
        let daemon = addresses.start(dir.path());
        if round == 0 {
            addresses.export(&daemon);
        }
        let mut hosts: Vec<Host> =
            (1..=EACH).map(|number| Host::connect(addresses.nvme, number)).collect();
        answered.store(0, Ordering::Relaxed);
        known.forgetful = round % FORGETFUL_ROUND == 1;
        let had = !known.state.registrants.is_empty();
        known.look(&mut hosts, round);
        let has = !known.state.registrants.is_empty();
        (kept, lost) = (kept + u64::from(has), lost + u64::from(had && !has));
        if round == KILLS {
            break;
        }
        let mut initiators: Vec<Initiator> =
            (1..=EACH).map(|number| Initiator::login(addresses.iscsi, number.into())).collect();
        std::thread::scope(|scope| {
            let (known, random) = (&mut known, &mut random);
            let (hosts, initiators) = (&mut hosts, &mut initiators);
            scope.spawn(move || known.run(hosts, initiators, random));
            std::thread::sleep(Duration::from_millis(5 + round * 37 % 41));
            let deadline = Instant::now() + START_TIMEOUT;
            while answered.load(Ordering::Relaxed) < LEAST_ANSWERS && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
            drop(daemon);
        });
    }
    let answers = known.answers;
    assert!(answers.iter().all(|count| *count > KILLS), "{answers:?} answers, {KILLS} kills");
    assert!(kept > 0 && lost > 0, "after {kept} kills there were registrants, after {lost} none");
    println!("{KILLS} kills, {answers:?} answers; {kept} kept registrants, {lost} lost them");
}

#[test]
fn a_lun_persists_without_a_namespace_and_a_damaged_file_costs_it() {
    let dir = tempfile::tempdir().unwrap();
    let addresses = Addresses::of(2);
    let daemon = addresses.start(dir.path());
    addresses.export(&daemon);
    daemon.ok("nvmf_delete_subsystem", json!({ "nqn": nqn().as_str() }));
    let mut one = Initiator::login(addresses.iscsi, 1);
    let mut list = [0; 24];
    (list[15], list[20]) = (0x11, 1);
    one.execute(0, &[0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0], 0, &list).good();
    one.reserve_out(1, 1, 0x11, 0).good();
    drop(daemon);
    let daemon = addresses.start(dir.path());
    let mut two = Initiator::login(addresses.iscsi, 2);
    assert_eq!(two.write(0, 0, &[7; 512]).status, 0x18);
    let mut one = Initiator::login(addresses.iscsi, 1);
    one.write(0, 0, &[7; 512]).good();
    drop(daemon);

    let kept = dir.path().join("state/reservations");
    let files = std::fs::read_dir(&kept).unwrap().map(|file| file.unwrap().path());
    let file = files.filter(|path| path.to_str().unwrap().ends_with("-iscsi.json"));
    let file = file.last().unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("\"rkey\": 17", "\"rkey\": 18")).unwrap();
    let daemon = addresses.start(dir.path());
    let mut two = Initiator::login(addresses.iscsi, 2);
    assert_eq!(two.write(0, 0, &[7; 512]).sense, Some((5, 0x25, 0)), "it is not exported");
    let listed = daemon.ok("iscsi_get_target_nodes", Value::Null).to_string();
    assert!(listed.contains(TARGET), "{listed}");
    drop(daemon);
    std::fs::write(&file, text).unwrap();
    let _daemon = addresses.start(dir.path());
    let mut two = Initiator::login(addresses.iscsi, 2);
    assert_eq!(two.write(0, 0, &[7; 512]).status, 0x18);
}
