//! Weights of hosts in the lines for I/O buffers: large writes, for whose data a core has few buffers.
//!
//! Nothing here is timed. A host whose data do not come holds all large buffers of the core until all commands of
//! the others wait. Then the order in which writes reach the device shows how the buffers were given out.
#![allow(clippy::unwrap_used)] // a test

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use raceline_bdev::{Op, SharedBdev};
use raceline_proto::nvme::Direction;
use raceline_proto::nvme::opcode::io;
use raceline_target::{
    InitiatorGroupConfig, IscsiSettings, LunConfig, PortalGroupConfig, PortalMap, Target,
    TargetConfig, TargetNodeConfig, Weight,
};

use crate::common::hosts::{connect_with, host, weight};
use crate::common::{
    Heard, RawHost, block_sqe, config, eventually, listen, namespace, nqn, pattern, ram, subsystem,
};
use crate::initiator_end::{Heard as IscsiHeard, Initiator, TARGET, rw};
use crate::watched::watched;

const BS: u32 = 512;
const LARGE: u32 = 32 << 10;
const BLOCKS: u32 = LARGE / BS;
/// Large buffers of the core.
const BUFFERS: usize = 4;
const COMMANDS: usize = 60;
/// The host that holds the buffers at first.
const HOLDER: u64 = 7;
const INITIATOR: u64 = 6;

/// A device that notes whose data each write has: hosts write to places of their own.
fn noted(writes: &Arc<Mutex<Vec<u64>>>) -> SharedBdev {
    let writes = Arc::clone(writes);
    watched(ram("1M"), ram("1M").info(), move |op| {
        if let Op::Write { offset, .. } = op {
            writes.lock().unwrap().push(offset / u64::from(LARGE));
        }
        None
    })
}

/// A target with one core and few buffers, with a subsystem and a target node over one device, and what is written there.
struct Bed {
    target: Target,
    address: SocketAddr,
    portal: SocketAddr,
    writes: Arc<Mutex<Vec<u64>>>,
}

impl Bed {
    fn new() -> Self {
        let target = Target::start(TargetConfig {
            large_buffers_per_core: BUFFERS,
            max_io_queues: 16,
            max_io_bytes: LARGE,
            ..config(1)
        })
        .unwrap();
        let writes = Arc::new(Mutex::new(Vec::new()));
        let device = noted(&writes);
        target.add_subsystem(subsystem()).unwrap();
        target.add_namespace(&nqn(), namespace(Arc::clone(&device))).unwrap();
        let loopback: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let address = listen(&target);
        let iscsi = target.iscsi();
        // Writes without data of their own do not stop their sockets while they wait.
        let settings = IscsiSettings { immediate_data: false, ..iscsi.settings() };
        iscsi.set_settings(settings).unwrap();
        iscsi.set_initiator_group(InitiatorGroupConfig::any(1)).unwrap();
        let group = PortalGroupConfig { wait: true, ..PortalGroupConfig::new(1, vec![loopback]) };
        iscsi.add_portal_group(group).unwrap();
        let maps = vec![PortalMap { portal_group: 1, initiator_group: 1 }];
        let luns = vec![LunConfig::new(device)];
        let node = TargetNodeConfig { maps, luns, ..TargetNodeConfig::new(TARGET) };
        iscsi.add_target_node(node).unwrap();
        let portal = iscsi.start_portal_group(1).unwrap()[0];
        Self { target, address, portal, writes }
    }

    fn set_weight(&self, number: u64, weight: Option<Weight>) {
        self.target.set_host_weight(&nqn(), &host(number), weight).unwrap();
    }

    fn connect(&self, number: u64, queues: u16) -> (RawHost, Vec<RawHost>) {
        connect_with(self.address, number, (queues, 128))
    }

    /// Commands of NVMe hosts that have waited for a buffer.
    fn waits(&self) -> u64 {
        self.target.stats().subsystems[0].1.buffer_waits
    }

    /// Has a host hold all large buffers, whose data have yet to come.
    fn hold_buffers(&self) -> (RawHost, RawHost, Vec<Heard>) {
        let (admin, mut queues) = self.connect(HOLDER, 1);
        let mut queue = queues.remove(0);
        queue.keep_data(true);
        (0..BUFFERS).for_each(|_| submit(&mut queue, HOLDER));
        let grants = queue.grants(BUFFERS);
        (admin, queue, grants)
    }

    fn end(self) -> Vec<u64> {
        self.target.shutdown().unwrap();
        let mut writes = std::mem::take(&mut *self.writes.lock().unwrap());
        writes.retain(|host| *host != HOLDER);
        writes
    }
}

fn submit(queue: &mut RawHost, place: u64) {
    let sqe = block_sqe(io::WRITE, 1, place * u64::from(BLOCKS), BLOCKS);
    queue.submit(sqe, Direction::HostToController, LARGE);
}

/// Sends the data of this many commands when they are asked for, and takes the answers.
fn finish(queue: &mut RawHost, grants: Vec<Heard>, mut commands: usize) {
    queue.keep_data(false);
    let data = pattern(1, LARGE as usize);
    let mut grants = grants.into_iter();
    while commands > 0 {
        match grants.next().unwrap_or_else(|| queue.listen()) {
            Heard::SendData(grant) => queue.send_data(&grant, &data),
            Heard::Response(cqe) => {
                assert!(cqe.status.is_success(), "{}", cqe.status);
                commands -= 1;
            }
            other => panic!("{other:?} with {commands} commands to go"),
        }
    }
}

/// Two hosts of (weight, connections) have [`COMMANDS`] writes on each connection, all of which wait. Gives the number of
/// writes that each had at the device when one of them had none that waited any more.
fn compete(hosts: [(u16, u16); 2]) -> [usize; 2] {
    let bed = Bed::new();
    for (number, (own, _)) in (1..).zip(hosts) {
        bed.set_weight(number, weight(own));
    }
    let (_admin, mut holder, grants) = bed.hold_buffers();
    let mut connected: Vec<_> =
        (1..).zip(hosts).map(|(number, (_, queues))| bed.connect(number, queues)).collect();
    let mut all = 0;
    for (number, (_, queues)) in (1..).zip(&mut connected) {
        for queue in queues {
            (0..COMMANDS).for_each(|_| submit(queue, number));
            all += COMMANDS as u64;
            // One connection after the other: all commands of the first host have come before any of the second one.
            eventually("all commands wait", || bed.waits() == all);
        }
    }
    std::thread::scope(|scope| {
        for queue in connected.iter_mut().flat_map(|(_, queues)| queues) {
            scope.spawn(move || finish(queue, Vec::new(), COMMANDS));
        }
        finish(&mut holder, grants, BUFFERS);
    });
    let mut done = [0; 2];
    for write in bed.end() {
        let place = usize::try_from(write - 1).unwrap();
        done[place] += 1;
        if done[place] + BUFFERS == COMMANDS * usize::from(hosts[place].1) {
            break;
        }
    }
    done
}

#[test]
fn large_writes_share_by_weights_whatever_the_connections() {
    for (light, heavy) in [(100, 100), (100, 300), (100, 1000)] {
        for (few, many) in [(1, 1), (1, 8), (8, 1)] {
            let done = compete([(light, few), (heavy, many)]);
            // Buffers are given out in exact proportion. Writes come to the device as fast as the hosts send their data,
            // so each host may be behind by all the buffers that there are.
            let weights = [light, heavy].map(usize::from);
            for (own, other) in [(0, 1), (1, 0)] {
                let most = (done[other] + BUFFERS + 2) * weights[own] / weights[other] + 2;
                assert!(
                    done[own] <= most,
                    "{done:?} by weights {light} : {heavy} with {few} and {many} connections"
                );
            }
        }
    }
}

#[test]
fn initiators_count_as_hosts_of_the_default_weight() {
    let mut tries = Vec::new();
    for _ in 0..5 {
        let (before, most) = before_an_initiator();
        if before <= most {
            return;
        }
        // Other programs may have taken the initiator's time: its data come late then, and others go first.
        tries.push(before);
    }
    panic!("{tries:?} writes of the host came before the last one of the initiator");
}

/// How many writes of a host come before the last one of an initiator, and how many may.
fn before_an_initiator() -> (usize, usize) {
    const WRITES: usize = 12;
    let bed = Bed::new();
    bed.set_weight(1, weight(300));
    let (_admin, mut holder, grants) = bed.hold_buffers();
    let mut initiator = Initiator::login(bed.portal, 1);
    let data = pattern(2, LARGE as usize);
    let cdb = rw(0x2a, u32::try_from(INITIATOR).unwrap() * BLOCKS, u16::try_from(BLOCKS).unwrap());
    // What comes first after a login is not a write's end.
    initiator.test_unit_ready(0);
    let (_other_admin, mut queues) = bed.connect(1, 4);
    for queue in &mut queues {
        (0..COMMANDS).for_each(|_| submit(queue, 1));
    }
    eventually("all commands of the host wait", || bed.waits() == 4 * COMMANDS as u64);
    // These come last, and would wait behind all of the others.
    for _ in 0..WRITES {
        initiator.start(0, &cdb, 0, &data);
    }
    initiator.ping();
    std::thread::scope(|scope| {
        for queue in &mut queues {
            scope.spawn(move || finish(queue, Vec::new(), COMMANDS));
        }
        scope.spawn(|| {
            for _ in 0..WRITES {
                match initiator.listen() {
                    IscsiHeard::Response { answer, .. } => drop(answer.good()),
                    other => panic!("{other:?} instead of the answer to a write"),
                }
            }
        });
        finish(&mut holder, grants, BUFFERS);
    });
    let writes = bed.end();
    assert_eq!(writes.len(), 4 * COMMANDS + WRITES);
    let last = writes.iter().rposition(|host| *host == INITIATOR).unwrap();
    let before = writes[..last].iter().filter(|host| **host == 1).count();
    (before, 3 * (WRITES + 1 + BUFFERS) + BUFFERS)
}

#[test]
fn who_leaves_and_whose_weight_goes_keeps_nobody_waiting() {
    let bed = Bed::new();
    bed.set_weight(1, weight(10_000));
    bed.set_weight(2, weight(1));
    let (_admin, mut holder, grants) = bed.hold_buffers();
    let (_first_admin, mut first) = bed.connect(1, 2);
    let (_second_admin, mut second) = bed.connect(2, 2);
    let (third_admin, mut third) = bed.connect(3, 2);
    for (number, queues) in [(1, &mut first), (2, &mut second), (3, &mut third)] {
        for queue in queues {
            (0..COMMANDS).for_each(|_| submit(queue, number));
        }
    }
    eventually("all commands wait", || bed.waits() == 6 * COMMANDS as u64);
    // A host leaves with its commands in line; the weights change, then go, while those of the others wait.
    drop((third_admin, third));
    eventually("it is gone", || {
        bed.target.hosts().iter().map(|host| host.io_queues).sum::<usize>() == 5
    });
    bed.set_weight(1, weight(1));
    bed.set_weight(1, None);
    bed.set_weight(2, None);
    bed.set_weight(2, weight(200));
    std::thread::scope(|scope| {
        for queue in first.iter_mut().chain(&mut second) {
            scope.spawn(move || finish(queue, Vec::new(), COMMANDS));
        }
        finish(&mut holder, grants, BUFFERS);
    });
    let writes = bed.end();
    assert_eq!(writes.len(), 4 * COMMANDS);
    assert!(!writes.contains(&3), "the data of a host that has left never came");
}
