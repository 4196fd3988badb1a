//! SIGKILL ends a daemon while hosts change reservations: what it answered is there again, and nothing else is.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod killed;
#[path = "../../target/tests/common/mod.rs"]
mod raw;

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use killed::{Daemon, START_TIMEOUT};
use raceline_control::manager::ManagerConfig;
use raceline_proto::nvme::fabrics::{ConnectData, ConnectWords};
use raceline_proto::nvme::opcode::{admin, io};
use raceline_proto::nvme::{CommandId, ControllerId, HostId, HostNqn, Nqn, QueueId, Sqe, Status};
use raceline_proto::reservation::{Reservations, ReservingHost, parse_reservation, put_report};
use raw::{RawHost, Wants};
use serde_json::json;
use zerocopy::IntoBytes as _;

/// Kills of a run.
const KILLS: u64 = 25;
/// Answers before a kill, however slow the machine is.
const LEAST_ANSWERS: u64 = 6;
/// Hosts that reserve.
const HOSTS: u8 = 3;
const NQN: &str = "nqn.2026-01.io.raceline:kept";

/// Not a test but the daemon of the test below, which starts this program again.
#[test]
fn a_daemon_to_be_killed() {
    let Some(dir) = killed::directory() else { return };
    let config = ManagerConfig {
        reservations: Some(dir.join("state/reservations")),
        protected: Some(dir.join("state/protected")),
        ..ManagerConfig::default()
    };
    killed::serve(&dir, config, |_, _| ());
}

/// An address of this test's own: no connection of this machine takes its port while a daemon is down.
fn address_of(test: u8) -> SocketAddr {
    let [low, high, ..] = std::process::id().to_le_bytes();
    SocketAddr::from(([127, 100 + test, high, low.max(1)], 4420))
}

/// Waits until nobody listens there: the kernel may still be at the ring of a daemon that was killed.
fn wait_until_free(address: SocketAddr) {
    let deadline = Instant::now() + START_TIMEOUT;
    while let Err(error) = TcpListener::bind(address) {
        assert!(Instant::now() < deadline, "{address}: {error}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The daemon on this directory, once its address is free.
fn start(dir: &Path, address: SocketAddr) -> Daemon {
    wait_until_free(address);
    Daemon::start(dir)
}

fn export(daemon: &Daemon, address: SocketAddr) {
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    let at = json!({ "trtype": "tcp", "adrfam": "ipv4", "traddr": ip, "trsvcid": port });
    let device = json!({ "name": "M", "num_blocks": 2048, "block_size": 512 });
    daemon.ok("nvmf_create_transport", json!({ "trtype": "tcp" }));
    daemon.ok("bdev_malloc_create", device);
    daemon.ok("nvmf_create_subsystem", json!({ "nqn": NQN, "allow_any_host": true }));
    let namespace = json!({ "nqn": NQN, "namespace": { "bdev_name": "M" } });
    daemon.ok("nvmf_subsystem_add_ns", namespace);
    daemon.ok("nvmf_subsystem_add_listener", json!({ "nqn": NQN, "listen_address": at }));
}

fn who(number: u8) -> ReservingHost {
    let name = Nqn::new(&format!("nqn.2026-01.io.raceline:host{number}")).unwrap();
    ReservingHost { id: HostId([number; 16]), name: HostNqn::Named(name) }
}

/// Both queues of a host.
struct Host {
    admin: RawHost,
    queue: RawHost,
}

impl Host {
    fn connect(address: SocketAddr, number: u8) -> Self {
        let words = |qid| ConnectWords { recfmt: 0, qid, sqsize: 31, cattr: 4, kato: 0 };
        let nqn = Nqn::new(NQN).unwrap();
        let ReservingHost { id, name: HostNqn::Named(name) } = who(number) else { unreachable!() };
        let mut admin = RawHost::open(address, Wants::default());
        let data = ConnectData::new(id, ControllerId::DYNAMIC, &nqn, &name);
        let cqe = admin.connect_with(words(QueueId::ADMIN), &data);
        assert!(cqe.status.is_success(), "{}", cqe.status);
        let cntlid = ControllerId(u16::try_from(cqe.dw0 & 0xffff).unwrap());
        assert!(admin.set_property(0x14, 0x0046_0001).status.is_success());
        let mut queue = RawHost::open(address, Wants::default());
        let cqe = queue.connect_with(words(QueueId(1)), &ConnectData::new(id, cntlid, &nqn, &name));
        assert!(cqe.status.is_success(), "{}", cqe.status);
        Self { admin, queue }
    }

    /// The report without GEN, which begins anew with the daemon.
    fn report(&mut self) -> Vec<u8> {
        let sqe = Sqe {
            opc: io::RESERVATION_REPORT,
            nsid: 1.into(),
            cdw10: 1023.into(),
            cdw11: 1.into(),
            ..Sqe::default()
        };
        let answer = self.queue.read_command(sqe, 4096);
        assert!(answer.cqe.status.is_success(), "{}", answer.cqe.status);
        answer.data[4..].to_vec()
    }
}

fn report_of(state: &Reservations) -> Vec<u8> {
    let mut page = vec![0; 4096];
    put_report(state, &mut page);
    page[4..].to_vec()
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
}

/// A command as on the wire. Few keys, so that they meet.
fn any_command(random: &mut Random) -> (Sqe, Vec<u8>) {
    let rtype = u32::try_from(1 + random.below(6)).unwrap() << 8;
    let (opc, cdw10) = match random.below(10) {
        0..4 => (io::RESERVATION_REGISTER, 3 << 30 | 8 | u32::try_from(random.below(3)).unwrap()),
        4..8 => (io::RESERVATION_ACQUIRE, rtype | u32::try_from(random.below(3)).unwrap()),
        8 => (io::RESERVATION_RELEASE, rtype),
        _ => (io::RESERVATION_RELEASE, rtype | u32::from(random.below(4) == 0)),
    };
    let keys = [1 + random.below(2), 1 + random.below(2)];
    let len = if opc == io::RESERVATION_RELEASE { 8 } else { 16 };
    let sqe = Sqe { opc, nsid: 1.into(), cdw10: cdw10.into(), ..Sqe::default() };
    (sqe, keys.as_bytes()[..len].to_vec())
}

/// What the hosts know: the state after the last answer, and the one that an unanswered command would make.
struct Known {
    state: Reservations,
    coming: Option<Reservations>,
    answered: u64,
}

/// Waits until the hosts of a round have had enough answers.
fn wait_for_answers(answers: &AtomicU64) {
    let deadline = Instant::now() + START_TIMEOUT;
    while answers.load(Ordering::Relaxed) < LEAST_ANSWERS && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl Known {
    /// Sends commands until the daemon dies, and counts their answers.
    fn run(&mut self, hosts: &mut [(u8, Host)], random: &mut Random, answers: &AtomicU64) {
        loop {
            let place = usize::try_from(random.below(HOSTS.into())).unwrap();
            let (number, host) = &mut hosts[place];
            let (sqe, data) = any_command(random);
            let command = parse_reservation(&sqe, &data).unwrap();
            let expected = self.state.apply(&who(*number), &command);
            self.coming = expected.as_ref().ok().and_then(|outcome| outcome.next.clone());
            let (cid, capsule) = host.queue.capsule(sqe, &data);
            let Some(status) = exchange(&mut host.queue, cid, &capsule) else { return };
            self.answered += 1;
            match expected {
                Ok(_) => assert_eq!(status, Status::SUCCESS, "{command:?}"),
                Err(refusal) => assert_eq!(status, refusal, "{command:?}"),
            }
            if let Some(next) = self.coming.take() {
                self.state = next;
            }
            answers.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The status of a command; `None`: the daemon has died before its answer.
fn exchange(queue: &mut RawHost, cid: CommandId, capsule: &[u8]) -> Option<Status> {
    let stream: &mut TcpStream = &mut queue.stream;
    stream.write_all(capsule).ok()?;
    loop {
        match queue.listen() {
            raw::Heard::Response(cqe) if cqe.cid == cid => return Some(cqe.status),
            raw::Heard::Closed => return None,
            _ => {}
        }
    }
}

#[test]
fn reservations_that_were_answered_survive_sigkill() {
    let dir = tempfile::tempdir().unwrap();
    let address = address_of(1);
    let mut random = Random(11);
    let place = Reservations { can_persist: true, ..Reservations::default() };
    let mut known = Known { state: place, coming: None, answered: 0 };
    for round in 0..=KILLS {
        let daemon = start(dir.path(), address);
        if round == 0 {
            export(&daemon, address);
        }
        let mut hosts: Vec<(u8, Host)> =
            (1..=HOSTS).map(|number| (number, Host::connect(address, number))).collect();
        let found = hosts[0].1.report();
        if found != report_of(&known.state) {
            let coming = known.coming.take().expect("nothing was under way");
            assert_eq!(found, report_of(&coming), "round {round}: {:?}", known.state);
            known.state = coming;
        }
        if round == KILLS {
            break;
        }
        let answers = &AtomicU64::new(0);
        std::thread::scope(|scope| {
            let (known, hosts, random) = (&mut known, &mut hosts, &mut random);
            scope.spawn(move || known.run(hosts, random, answers));
            wait_for_answers(answers);
            std::thread::sleep(Duration::from_millis(5 + round * 37 % 41));
            drop(daemon);
        });
    }
    assert!(known.answered > KILLS, "{} answers under {KILLS} kills", known.answered);
    println!("{KILLS} kills, {} answers", known.answered);
}

/// Registers a host with the key 5 and has that persist; gives the file that keeps it, and its text.
fn register(host: &mut Host, dir: &Path) -> (PathBuf, String) {
    let register = Sqe {
        opc: io::RESERVATION_REGISTER,
        nsid: 1.into(),
        cdw10: (3 << 30).into(),
        ..Sqe::default()
    };
    let registered = host.queue.write_command(register, [0_u64, 5].as_bytes(), true);
    assert!(registered.cqe.status.is_success());
    let kept = dir.join("state/reservations");
    let file = std::fs::read_dir(&kept).unwrap().next().unwrap().unwrap().path();
    let text = std::fs::read_to_string(&file).unwrap();
    (file, text)
}

#[test]
fn a_damaged_file_costs_its_namespace_and_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let address = address_of(2);
    let daemon = start(dir.path(), address);
    export(&daemon, address);
    let mut host = Host::connect(address, 1);
    let (file, text) = register(&mut host, dir.path());
    // Added again under a name of its own, then with a file that is not its own.
    let other = json!({ "name": "N", "num_blocks": 2048, "block_size": 512 });
    daemon.ok("bdev_malloc_create", other);
    let own = dir.path().join("own.json");
    let named =
        |file: &Path| json!({ "nqn": NQN, "namespace": { "bdev_name": "N", "ptpl_file": file } });
    let answer = daemon.answer("nvmf_subsystem_add_ns", named(&file));
    assert!(answer["error"].to_string().contains("it is that of namespace"), "{answer}");
    let answer = daemon.answer("nvmf_subsystem_add_ns", named(&dir.path().join("no/where.json")));
    assert!(answer["error"].to_string().contains("open the directory"), "{answer}");
    daemon.ok("nvmf_subsystem_add_ns", named(&own));
    drop(daemon);

    std::fs::write(&file, text.replace("\"rkey\": 5", "\"rkey\": 6")).unwrap();
    let daemon = start(dir.path(), address);
    let mut host = Host::connect(address, 1);
    let read = |host: &mut Host, nsid| host.queue.read(nsid, 0, 1, 512).cqe.status;
    assert_eq!(read(&mut host, 1), Status::INVALID_NAMESPACE.dnr(), "its reservations are lost");
    assert_eq!(read(&mut host, 2), Status::SUCCESS);
    let listed = daemon.answer("nvmf_get_subsystems", json!({ "nqn": NQN })).to_string();
    assert!(listed.contains("is damaged") && listed.contains(file.to_str().unwrap()), "{listed}");
    drop(daemon);

    std::fs::write(&file, text).unwrap();
    let daemon = start(dir.path(), address);
    let mut host = Host::connect(address, 1);
    assert_eq!(read(&mut host, 1), Status::SUCCESS);
    assert_eq!(host.report()[1], 1, "one registrant");
    drop(daemon);
}

/// As it is where the calls of a configuration make the transport last: cores get all namespaces at once.
#[test]
fn a_damaged_file_costs_its_namespace_alone_where_the_transport_comes_last() {
    let dir = tempfile::tempdir().unwrap();
    let address = address_of(4);
    let daemon = start(dir.path(), address);
    daemon.ok("nvmf_create_subsystem", json!({ "nqn": NQN, "allow_any_host": true }));
    for name in ["M", "N"] {
        let device = json!({ "name": name, "num_blocks": 2048, "block_size": 512 });
        daemon.ok("bdev_malloc_create", device);
        let namespace = json!({ "nqn": NQN, "namespace": { "bdev_name": name } });
        daemon.ok("nvmf_subsystem_add_ns", namespace);
    }
    daemon.ok("nvmf_create_transport", json!({ "trtype": "tcp" }));
    let (ip, port) = (address.ip().to_string(), address.port().to_string());
    let at = json!({ "trtype": "tcp", "adrfam": "ipv4", "traddr": ip, "trsvcid": port });
    daemon.ok("nvmf_subsystem_add_listener", json!({ "nqn": NQN, "listen_address": at }));
    let mut host = Host::connect(address, 1);
    let (file, text) = register(&mut host, dir.path());
    drop(daemon);

    std::fs::write(&file, text.replace("\"rkey\": 5", "\"rkey\": 6")).unwrap();
    let daemon = start(dir.path(), address);
    let mut host = Host::connect(address, 1);
    let read = |host: &mut Host, nsid| host.queue.read(nsid, 0, 1, 512).cqe.status;
    assert_eq!(read(&mut host, 1), Status::INVALID_NAMESPACE.dnr(), "its reservations are lost");
    assert_eq!(read(&mut host, 2), Status::SUCCESS);
    drop(daemon);

    std::fs::write(&file, text).unwrap();
    let _daemon = start(dir.path(), address);
    let mut host = Host::connect(address, 1);
    assert_eq!(read(&mut host, 1), Status::SUCCESS);
    assert_eq!(host.report()[1], 1, "one registrant");
}

#[test]
fn write_protection_survives_sigkill() {
    let dir = tempfile::tempdir().unwrap();
    let address = address_of(3);
    let daemon = start(dir.path(), address);
    export(&daemon, address);
    drop(daemon);
    let write = |host: &mut Host| host.queue.write(1, 0, &[1; 512], 512).cqe.status;
    let protected = Status::NAMESPACE_WRITE_PROTECTED.dnr();
    // Each state is set under one daemon, which is killed, and looked at under the next.
    for (state, next) in [(1_u32, protected), (0, Status::SUCCESS), (2, Status::SUCCESS)] {
        let daemon = start(dir.path(), address);
        let mut host = Host::connect(address, 1);
        let set = Sqe {
            opc: admin::SET_FEATURES,
            nsid: 1.into(),
            cdw10: 0x84.into(),
            cdw11: state.into(),
            ..Sqe::default()
        };
        assert_eq!(host.admin.plain_command(set).cqe.status, Status::SUCCESS, "{state}");
        drop(daemon);
        let _daemon = start(dir.path(), address);
        assert_eq!(write(&mut Host::connect(address, 1)), next, "after {state}");
    }
}
