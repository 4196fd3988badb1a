//! What hosts have made, reserved and protected goes over, or nobody takes the place of a daemon.

use std::net::{SocketAddr, TcpListener};
use std::process::Child;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use raceline_control::hand_over::{FromDaemon, FromSuccessor, Hello, Wire, socket_of};
use raceline_proto::nvme::identify::{ControllerList, IdentifyNamespace};
use raceline_proto::nvme::opcode::{admin, io};
use raceline_proto::nvme::{ControllerId, Nqn, QueueId, Sqe, Status};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use zerocopy::IntoBytes as _;

use crate::common::{self, RawHost, Wants, status};
use crate::support::Export;
use crate::{LIMIT, NQN, Place, end_load, start, wait};

const MIB: u64 = 1 << 20;
/// Set Features, Namespace Write Protection Config: until the next power cycle.
const UNTIL_POWER_CYCLE: u32 = 2;

/// Adds a subsystem whose hosts divide a device of 8 MiB; gives its address.
fn add_pool(place: &Place) -> SocketAddr {
    let nqn = common::nqn();
    let nqn = nqn.as_str();
    let address = json!({ "trtype": "TCP", "traddr": "127.0.0.1", "trsvcid": &place.port });
    let memory = json!({ "name": "P", "num_blocks": 16384, "block_size": 512 });
    for (method, params) in [
        ("bdev_malloc_create", memory),
        ("nvmf_create_subsystem", json!({ "nqn": nqn, "allow_any_host": true })),
        ("nvmf_subsystem_add_pool", json!({ "nqn": nqn, "bdev_name": "P" })),
        ("nvmf_subsystem_add_listener", json!({ "nqn": nqn, "listen_address": address })),
    ] {
        place.call(method, params);
    }
    format!("127.0.0.1:{}", place.port).parse().unwrap()
}

/// Has a namespace of 1 MiB made.
fn create(admin: &mut RawHost) -> Result<u32, Status> {
    let blocks = MIB / 512;
    let wanted = IdentifyNamespace {
        nsze: blocks.into(),
        ncap: blocks.into(),
        ..IdentifyNamespace::default()
    };
    let sqe = Sqe { opc: admin::NAMESPACE_MANAGEMENT, ..Sqe::default() };
    let answer = admin.write_command(sqe, wanted.as_bytes(), true);
    if answer.cqe.status.is_success() { Ok(answer.cqe.dw0) } else { Err(answer.cqe.status) }
}

fn attach(admin: &mut RawHost, nsid: u32, cntlid: ControllerId) -> Status {
    let mut list = ControllerList { count: 1.into(), ..ControllerList::default() };
    list.ids[0] = cntlid.0.into();
    let sqe = Sqe { opc: admin::NAMESPACE_ATTACHMENT, nsid: nsid.into(), ..Sqe::default() };
    status(&admin.write_command(sqe, list.as_bytes(), true))
}

/// A host of the subsystem with the two namespaces.
fn other_host(address: SocketAddr) -> RawHost {
    let mut host = RawHost::open(address, Wants::default());
    let (any, nqn) = (ControllerId::DYNAMIC, Nqn::new(NQN).unwrap());
    let cqe = host.connect_as(QueueId::ADMIN, 32, any, &nqn, &common::host_nqn(), 0);
    assert!(cqe.status.is_success(), "{}", cqe.status);
    assert!(host.set_property(0x14, 0x0046_0001).status.is_success());
    host
}

fn protect(admin: &mut RawHost, nsid: u32) -> Status {
    let sqe = Sqe {
        opc: admin::SET_FEATURES,
        nsid: nsid.into(),
        cdw10: 0x84.into(),
        cdw11: UNTIL_POWER_CYCLE.into(),
        ..Sqe::default()
    };
    status(&admin.plain_command(sqe))
}

/// Reservation Report: its header and first registrant.
fn report(queue: &mut RawHost, nsid: u32) -> Vec<u8> {
    let len = 128;
    let sqe = Sqe {
        opc: io::RESERVATION_REPORT,
        nsid: nsid.into(),
        cdw10: (len / 4 - 1).into(),
        cdw11: 1.into(),
        ..Sqe::default()
    };
    let answer = queue.read_command(sqe, len);
    assert!(status(&answer).is_success(), "{}", status(&answer));
    answer.data
}

#[test]
fn what_hosts_have_made_reserved_and_protected_goes_over() {
    let mut place = Place::new(&["--keep-ram"]);
    let address = add_pool(&place);
    let (mut admin, cntlid) = RawHost::admin(address, Wants::default());
    let mut queue = RawHost::io(address, cntlid, 1, Wants::default());
    assert_eq!(create(&mut admin), Ok(1));
    assert_eq!(attach(&mut admin, 1, cntlid), Status::SUCCESS);
    let reserving =
        |opc, cdw10: u32| Sqe { opc, nsid: 1.into(), cdw10: cdw10.into(), ..Sqe::default() };
    let register = reserving(io::RESERVATION_REGISTER, 0);
    assert!(status(&queue.write_command(register, [0_u64, 5].as_bytes(), true)).is_success());
    // Write Exclusive.
    let acquire = reserving(io::RESERVATION_ACQUIRE, 1 << 8);
    assert!(status(&queue.write_command(acquire, [5_u64, 0].as_bytes(), true)).is_success());
    let before = report(&mut queue, 1);
    assert_eq!((before[0], before[4], before[5]), (1, 1, 1), "generation, type, registrants");
    let mut other = other_host(address);
    assert_eq!(protect(&mut other, 1), Status::SUCCESS);
    for _ in 0..2 {
        place.take_over(&["--keep-ram"]);
        assert_eq!(report(&mut queue, 1), before);
        assert!(status(&queue.write(1, 0, &[1; 512], 512)).is_success());
        let words = ["write", "-a", "127.0.0.1", "-s", &place.port, "-n", NQN];
        let refused = crate::support::run_with_input(&words, &[1; 512]);
        assert!(refused.code != Some(0) && refused.stderr.contains("rite"), "{}", refused.stderr);
        assert!(refused.stderr.to_lowercase().contains("protected"), "{}", refused.stderr);
    }
}

/// The changes that can be undone, and those that cannot, by their devices.
fn changes(place: &Place) -> (Vec<String>, Vec<String>) {
    let all = place.call("raceline_get_changes", json!({ "last": 3 }));
    let (can, cannot): (Vec<&Value>, Vec<&Value>) =
        all.as_array().unwrap().iter().partition(|past| past["can_undo"] == true);
    let effects = |of: Vec<&Value>| of.iter().map(|past| past["effects"][0].to_string()).collect();
    (effects(can), effects(cannot))
}

fn undo(place: &Place) -> crate::support::Output {
    let socket = place.socket();
    crate::support::run(&["config", "undo", "-s", socket.to_str().unwrap()])
}

#[test]
fn the_list_of_changes_goes_over_and_back() {
    let mut place = Place::new(&["--keep-ram"]);
    let make = |place: &Place, name| {
        place.call(
            "bdev_malloc_create",
            json!({ "name": name, "num_blocks": 8, "block_size": 512 }),
        );
    };
    let made = |name| format!("\"+ bdev / {name}\"");
    for _ in 0..2 {
        // The daemon writes its list a second after a change.
        make(&place, "A");
        make(&place, "B");
        place.take_over(&["--keep-ram"]);
        let (can, cannot) = changes(&place);
        assert_eq!(can[..2], [made("B"), made("A")], "{cannot:?}");
        let undone = undo(&place);
        assert_eq!(undone.code, Some(0), "{}", undone.stderr);
        let gone = crate::call(&place.socket(), "bdev_get_bdevs", json!({ "name": "B" }));
        assert_eq!(gone.unwrap_err()["code"], -19);
        place.call("bdev_malloc_delete", json!({ "name": "A" }));
    }
    // An end in good order loses nothing either.
    make(&place, "C");
    kill_process(Pid::from_child(&place.daemon), Signal::TERM).unwrap();
    assert_eq!(wait(&mut place.daemon), Some(0), "{}", place.said());
    place.daemon = start(place.directory.path(), &[]);
    place.wait_for_ready().unwrap();
    let (can, _) = changes(&place);
    assert_eq!((can.len(), &can[0]), (3, &made("C")));
    // After a kill, the change is there and the list may be without it: nothing leads back over what is not in the list.
    let list = place.path("state").join("history.json");
    let without = std::fs::read(&list).unwrap();
    make(&place, "D");
    place.daemon.kill().unwrap();
    wait(&mut place.daemon);
    // It is without it, also where a second has passed since the change.
    std::fs::write(&list, without).unwrap();
    place.daemon = start(place.directory.path(), &[]);
    place.wait_for_ready().unwrap();
    place.call("bdev_get_bdevs", json!({ "name": "D" }));
    let (can, cannot) = changes(&place);
    assert_eq!((can.len(), &cannot[0]), (0, &made("C")));
    let refused = undo(&place);
    assert!(
        refused.code != Some(0) && refused.stderr.contains("no way back"),
        "{}",
        refused.stderr
    );
    assert!(place.said().contains("does not lead to the present configuration"));
    make(&place, "E");
    assert_eq!(undo(&place).code, Some(0));
    place.call("bdev_get_bdevs", json!({ "name": "D" }));
}

/// A successor that has read the configuration does not learn of later changes, so there are none meanwhile.
#[test]
fn hosts_change_no_namespaces_while_a_successor_starts() {
    let place = Place::new(&["--keep-ram"]);
    let address = add_pool(&place);
    let (mut admin, cntlid) = RawHost::admin(address, Wants::default());
    let mut other = other_host(address);
    assert_eq!(create(&mut admin), Ok(1));
    let wire = Wire::connect(&socket_of(&place.socket())).unwrap();
    wire.limit(LIMIT).unwrap();
    let hello = Hello::of_this_program(Some(place.path("state")));
    wire.send(&FromSuccessor::Hello(hello)).unwrap();
    let FromDaemon::Offer(offered) = wire.receive().unwrap() else { panic!("no offer") };
    drop(wire.receive_descriptors(offered.descriptors()).unwrap());
    assert_eq!(create(&mut admin), Err(Status::COMMAND_INTERRUPTED));
    assert_eq!(attach(&mut admin, 1, cntlid), Status::COMMAND_INTERRUPTED);
    assert_eq!(protect(&mut other, 1), Status::COMMAND_INTERRUPTED);
    // The successor is gone: the daemon goes on, and so do its hosts.
    drop(wire);
    let deadline = Instant::now() + LIMIT;
    while attach(&mut admin, 1, cntlid) == Status::COMMAND_INTERRUPTED {
        assert!(Instant::now() < deadline, "{}", place.said());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(create(&mut admin), Ok(2));
    assert_eq!(protect(&mut other, 1), Status::SUCCESS);
}

/// A namespace on a controller that discovery brings would be missing for seconds.
#[test]
fn nobody_takes_over_what_he_would_not_have() {
    let place = Place::new(&["--keep-ram"]);
    let export = Export::start(&["ram:4M"]);
    let discovery = json!({ "name": "D", "trtype": "tcp", "adrfam": "ipv4", "traddr": "127.0.0.1",
        "trsvcid": &export.port, "wait_for_attach": true });
    place.call("bdev_nvme_start_discovery", discovery);
    let devices = place.call("bdev_get_bdevs", Value::Null);
    let mut names = devices.as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap());
    let found = names.find(|name| name.starts_with('D')).expect("a discovered device").to_owned();
    place.call("nvmf_subsystem_add_ns", json!({ "nqn": NQN, "namespace": { "bdev_name": found } }));
    let load = place.load(2);
    let said =
        place.refused(&mut crate::command(place.directory.path(), &["--take-over", "--keep-ram"]));
    assert!(said.contains("goes on") && said.contains("namespace 3 of"), "{said}");
    place.wait_for_reads(50);
    end_load(load);
    export.terminate();
}

/// Whether a process has a handler for SIGTERM, so far as the kernel knows.
fn catches_term(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() >> (Signal::TERM.as_raw() - 1) & 1 == 1
}

/// Whether a process has a connection to this port.
fn is_connected(pid: u32, port: u16) -> bool {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let names = files.filter_map(|file| std::fs::read_link(file.path()).ok());
    let names: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let (to, established) = (format!(":{port:04X}"), "01");
    table.lines().skip(1).any(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        columns[2].ends_with(&to)
            && columns[3] == established
            && names.contains(&format!("socket:[{}]", columns[9]))
    })
}

/// Somebody thinks better of it while the new process is still starting.
#[test]
fn a_successor_that_is_asked_to_end_leaves_the_daemon_alone() {
    let place = Place::new(&["--keep-ram"]);
    let silent = Silent::new(&place);
    let load = place.load(2);
    let mut successor = silent.start_successor(&place);
    // It waits for the controller.
    kill_process(Pid::from_child(&successor), Signal::TERM).unwrap();
    assert_eq!(wait(&mut successor), Some(1), "{}", place.said());
    assert!(place.said().contains("asked to end"), "{}", place.said());
    place.wait_for_reads(50);
    end_load(load);
}

/// A remote controller of the daemon that has fallen silent. A start waits two seconds for it.
pub(crate) struct Silent {
    port: u16,
    /// Accepts, and says nothing.
    _listener: TcpListener,
}

impl Silent {
    pub(crate) fn new(place: &Place) -> Self {
        // An address of each test, since the tests of a process run at the same time.
        static NEXT: AtomicU8 = AtomicU8::new(78);
        let ip = format!("127.0.0.{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let export = Export::start(&["ram:4M", "-l", &format!("{ip}:0")]);
        let controller = json!({ "name": "R", "trtype": "tcp", "adrfam": "ipv4", "traddr": ip,
            "trsvcid": &export.port, "subnqn": &export.nqn });
        place.call("bdev_nvme_attach_controller", controller);
        let port: u16 = export.port.parse().unwrap();
        drop(export);
        let deadline = Instant::now() + LIMIT;
        loop {
            match TcpListener::bind((ip.as_str(), port)) {
                Ok(listener) => return Self { port, _listener: listener },
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Starts a successor, and waits until it has what the daemon offers and waits for the controller.
    pub(crate) fn start_successor(&self, place: &Place) -> Child {
        let successor = start(place.directory.path(), &["--take-over", "--keep-ram"]);
        let deadline = Instant::now() + LIMIT;
        // It connects there once it has the configuration.
        while !(catches_term(successor.id()) && is_connected(successor.id(), self.port)) {
            assert!(Instant::now() < deadline, "{}", place.said());
            std::thread::sleep(Duration::from_millis(1));
        }
        successor
    }
}
