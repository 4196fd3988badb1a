//! Connections on several cores: each core has queues and memory of its own, and no core waits for another one.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::cell::Cell;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use raceline_bdev::{BdevInfo, Op, SharedBdev};
use raceline_proto::nvme::opcode::io;
use raceline_proto::nvme::{ControllerId, QueueId, Status};
use raceline_proto::rdma::RejectStatus;
use raceline_rdma::fake::{CoreUse, Faults, NetworkConfig, Profile};
use raceline_rdma::verbs::ConnectionId;
use raceline_rdma::{ConnectError, HostTransfer};
use raceline_reactor::StreamProvider;
use raceline_target::{Target, TargetConfig, TargetError};

use super::host::{Fabric, Host};
use super::{BS, DATA, blocks, each_kind, nobody_is_left, write_and_read};
use crate::common::{RawHost, Wants, block_sqe, config, eventually, nqn, ram};
use crate::watched::watched;

/// A host with an admin queue and this many I/O queues, each of which has written and read.
fn host(
    fabric: &Fabric,
    address: SocketAddr,
    queues: u16,
) -> (Host, ControllerId, Vec<ConnectionId>) {
    let mut host = Host::new(fabric, address);
    let (admin, cntlid) = host.admin(&nqn(), 0);
    let mut all = vec![admin];
    for qid in 1..=queues {
        let queue = host.io(cntlid, qid, 32);
        write_and_read(&mut host, queue, u64::from(qid) * 512, 64 << 10);
        all.push(queue);
    }
    (host, cntlid, all)
}

fn close(mut host: Host, queues: &[ConnectionId]) {
    queues.iter().rev().for_each(|queue| host.close(*queue));
}

/// The core of an I/O queue.
fn core_of(target: &Target, qid: u16) -> usize {
    let queues = target.queues(&nqn());
    queues.iter().find(|queue| queue.qid == QueueId(qid)).unwrap().core
}

fn over<T>(uses: &[CoreUse], what: impl Fn(&CoreUse) -> T) -> Vec<T> {
    uses.iter().map(what).collect()
}

/// Waits until the cores have these numbers of pairs. One of a connection that has ended is there a moment longer.
fn has_pairs(fabric: &Fabric, address: SocketAddr, pairs: &[usize]) {
    eventually(&format!("{pairs:?} pairs"), || {
        over(&fabric.network.cores_of(address), |core| core.pairs) == pairs
    });
}

#[test]
fn each_core_has_queues_of_its_own() {
    each_kind(|one, network| {
        let shares = network.profile == Profile::Roce;
        let fabric = Fabric::new(network);
        let (target, _, rdma) = fabric.target(TargetConfig { cores: config(3).cores, ..one });
        assert_eq!(fabric.network.cores_of(rdma).len(), 1, "only the core that listens");
        let (mut host, cntlid, queues) = host(&fabric, rdma, 8);
        assert_eq!(target.stats().connections, [3, 3, 3]);
        let uses = fabric.network.cores_of(rdma);
        assert_eq!(over(&uses, |core| core.pairs), [3, 3, 3], "a completion queue for each core");
        assert_eq!(over(&uses, |core| core.taken), [0, 3, 3], "requests come to the first core");
        let sharing = if shares { 3 } else { 0 };
        assert_eq!(over(&uses, |core| core.sharing), [sharing; 3]);
        assert_eq!(over(&uses, |core| core.shared_receives > 0), [shares; 3]);

        for (qid, queue) in (1_u16..).zip(&queues[1..]) {
            write_and_read(&mut host, *queue, u64::from(qid), 128 << 10);
        }
        let mut devices = fabric.devices();
        devices.sort_by_key(|device| device.core);
        assert_eq!(devices.iter().map(|device| device.core).collect::<Vec<_>>(), [0, 1, 2]);
        for device in &devices {
            assert_eq!((device.address, &device.name[..]), (rdma, "simulated"));
            assert!(device.counts.requests >= 10, "{device:?}");
            assert!(device.counts.completions > device.counts.requests, "{device:?}");
        }
        let groups = target.poll_groups();
        assert!(groups.iter().all(|group| group.rdma.io_queues > 0), "{groups:?}");

        // A connection stays on its core.
        let before: Vec<usize> = (1..=8).map(|qid| core_of(&target, qid)).collect();
        let error = target.move_queue(&nqn(), cntlid, QueueId(1), 2).unwrap_err();
        assert!(matches!(error, TargetError::StaysOnCore { .. }), "{error}");
        let after: Vec<usize> = (1..=8).map(|qid| core_of(&target, qid)).collect();
        assert_eq!(before, after);
        close(host, &queues);
        nobody_is_left(&target);
        // The queues of the cores stay, for the next connections. A queue pair is there until its last receive has ended.
        has_pairs(&fabric, rdma, &[0, 0, 0]);
        target.shutdown().unwrap();
        fabric.end();
    });
}

/// How often the device is asked for more than its completions, at most.
const LOOK_INTERVAL: Duration = Duration::from_micros(100);

/// The connection manager, the kernel and the timer are asked now and then, and each time before the core sleeps.
#[test]
fn a_core_that_spins_asks_the_device_alone() {
    let fabric = Fabric::new(NetworkConfig::default());
    let address = "192.0.2.1:4420".parse().unwrap();
    let streams = fabric.streams(&config(1));
    let mut listener = streams.listen(address).unwrap().unwrap();
    // A thread that the machine keeps waiting meanwhile finds that it is time again.
    let mut is_fresh = || {
        let start = Instant::now();
        let result = listener.accept().err().map(|error| error.kind());
        assert_eq!(result, Some(ErrorKind::WouldBlock));
        let is_due = listener.spin();
        assert!(!is_due || start.elapsed() >= LOOK_INTERVAL, "it has just asked");
        !is_due
    };
    assert!((0..10_000).any(|_| is_fresh()), "each time more than {LOOK_INTERVAL:?} have passed");
    let (looks, polls) =
        (|| fabric.network.looks_numbered(0), || fabric.devices()[0].counts.idle_polls);
    let before = (looks(), polls());
    let mut due = 0;
    for _ in 0..1000 {
        due += u64::from(listener.spin());
    }
    assert_eq!((looks(), polls()), (before.0, before.1 + 1000), "only what is due is looked for");
    std::thread::sleep(10 * LOOK_INTERVAL);
    assert!(listener.spin(), "after {due} others, it is time for the rest");
    assert!(listener.accept().is_err());
    assert!(looks() > before.0);
}

#[derive(Default)]
struct Stops {
    /// Whether it stops cores, and whether it has one now.
    state: Mutex<(bool, bool)>,
    changed: Condvar,
}

const STOP: u64 = 4000;

impl Stops {
    fn set(&self, stops: bool) {
        self.state.lock().unwrap().0 = stops;
        self.changed.notify_all();
    }

    /// Has a core stop by a read of this queue.
    fn stop_by(&self, host: &mut Host, queue: ConnectionId) -> raceline_proto::nvme::CommandId {
        self.set(true);
        let transfer = HostTransfer::Keyed { block: host.block(DATA, BS), invalidate: false };
        let cid = host.submit(queue, &block_sqe(io::READ, 1, STOP, 1), transfer);
        host.until("a core that stands", |_| self.state.lock().unwrap().1.then_some(()));
        cid
    }
}

/// A device that stops a core that reads its block 4000, while it is told to. Its reads need a request.
fn stopping(inner: SharedBdev, stops: Arc<Stops>) -> SharedBdev {
    let info = BdevInfo { reads_in_place: false, ..inner.info() };
    watched(inner, info, move |op| {
        if matches!(op, Op::Read { offset, .. } if *offset == STOP * u64::from(BS)) {
            let mut state = stops.state.lock().unwrap();
            state.1 = true;
            let end = Instant::now() + Duration::from_secs(30);
            while state.0 {
                assert!(Instant::now() < end, "the test goes on");
                state = stops.changed.wait_timeout(state, Duration::from_secs(1)).unwrap().0;
            }
            state.1 = false;
        }
        None
    })
}

#[test]
fn a_core_that_stands_holds_up_nobody_elses_connections() {
    let fabric = Fabric::new(NetworkConfig::default());
    let stops = Arc::new(Stops::default());
    let device = stopping(ram("16M"), Arc::clone(&stops));
    let config = config(2);
    let (target, _, rdma) = fabric.target_of(config.clone(), fabric.streams(&config), device);
    let (mut host, cntlid, queues) = host(&fabric, rdma, 3);
    let here = |qid| core_of(&target, qid);
    assert_eq!([here(1), here(2), here(3)], [1, 0, 1]);

    // The core that listens stands: the connections of the other one go on.
    let cid = stops.stop_by(&mut host, queues[2]);
    for n in 0..50 {
        write_and_read(&mut host, queues[1], n * 8, 4096);
        write_and_read(&mut host, queues[3], n * 8, 64 << 10);
    }
    stops.set(false);
    assert!(host.wait(queues[2], cid).status.is_success());

    // The other one stands: connections that come to it wait, and those of the first core go on, and come.
    let cid = stops.stop_by(&mut host, queues[1]);
    std::thread::scope(|scope| {
        let mut late = Host::new(&fabric, rdma);
        assert_eq!(target.stats().connections, [2, 2]);
        // The next connection is the first core's, and the one after it the other's.
        let queue = host.io(cntlid, 4, 32);
        let waits = scope.spawn(move || {
            let queue = late.dial(QueueId::ADMIN, 32);
            (late, queue)
        });
        eventually("a connection is on its way", || target.stats().connections == [3, 3]);
        for n in 0..50 {
            write_and_read(&mut host, queue, n * 8, 4096);
            write_and_read(&mut host, queues[2], n * 8, 64 << 10);
        }
        assert_eq!(host.keep_alive(queues[0]), Status::SUCCESS);
        assert!(!waits.is_finished(), "its core stands");
        stops.set(false);
        let (mut late, queue) = waits.join().unwrap();
        late.close(queue.unwrap());
    });
    assert!(host.wait(queues[1], cid).status.is_success());
    write_and_read(&mut host, queues[1], 0, 4096);
    drop(host);
    target.shutdown().unwrap();
    fabric.end();
}

#[test]
fn a_device_goes_and_comes_for_all_cores() {
    each_kind(|one, network| {
        let fabric = Fabric::new(network);
        let (target, _, rdma) = fabric.target(TargetConfig { cores: config(2).cores, ..one });
        let hosts = Cell::new(0);
        for _ in 0..2 {
            hosts.set(hosts.get() + 1);
            let (mut lost, _, queues) = host(&fabric, rdma, 3);
            has_pairs(&fabric, rdma, &[2, 2]);
            fabric.are_devices_away.store(true, Ordering::Relaxed);
            fabric.network.remove_listening(rdma);
            lost.until("the loss of all", |host| (host.losses.len() == 4).then_some(()));
            nobody_is_left(&target);
            eventually("both cores leave the device", || fabric.devices().is_empty());
            close(lost, &queues);
            eventually("only the memory of hosts is left", || {
                fabric.network.leftovers().0 == hosts.get()
            });
            fabric.are_devices_away.store(false, Ordering::Relaxed);
            eventually("somebody listens", || {
                hosts.set(hosts.get() + 1);
                let mut host = Host::new(&fabric, rdma);
                let dialed = host.dial(QueueId::ADMIN, 32);
                dialed.iter().for_each(|id| host.close(*id));
                dialed.is_ok()
            });
            nobody_is_left(&target);
        }
        let (again, _, queues) = host(&fabric, rdma, 3);
        has_pairs(&fabric, rdma, &[2, 2]);
        close(again, &queues);
        target.shutdown().unwrap();
        fabric.end();
    });
}

#[test]
fn a_listener_goes_with_its_connections_on_all_cores() {
    each_kind(|one, network| {
        let fabric = Fabric::new(network);
        let config = TargetConfig { cores: config(3).cores, ..one };
        let (target, _, rdma) = fabric.target(config.clone());
        let other: SocketAddr = "127.0.0.2:4420".parse().unwrap();
        target.add_listener_with(other, Some(fabric.streams(&config) as _)).unwrap();
        let (mut bystander, _, by) = host(&fabric, other, 2);
        for _ in 0..3 {
            let (mut lost, _, queues) = host(&fabric, rdma, 5);
            has_pairs(&fabric, rdma, &[2, 2, 2]);
            // Amid I/O.
            for (n, queue) in (0..).zip(&queues[1..]) {
                let block = lost.block(DATA + n * (128 << 10), 128 << 10);
                let transfer = HostTransfer::Keyed { block, invalidate: false };
                lost.submit(*queue, &block_sqe(io::READ, 1, 0, blocks(128 << 10)), transfer);
            }
            target.remove_listener(rdma).unwrap();
            lost.until("the loss of all", |host| (host.losses.len() == 6).then_some(()));
            close(lost, &queues);
            eventually("only the other listener has devices", || {
                fabric.devices().iter().all(|device| device.address == other)
            });
            assert!(Host::new(&fabric, rdma).dial(QueueId::ADMIN, 32).is_err(), "nobody listens");
            write_and_read(&mut bystander, by[1], 0, 4096);
            write_and_read(&mut bystander, by[2], 0, 128 << 10);
            target.add_listener_with(rdma, Some(fabric.streams(&config) as _)).unwrap();
        }
        close(bystander, &by);
        nobody_is_left(&target);
        target.shutdown().unwrap();
        fabric.end();
    });
}

#[test]
fn each_core_has_room_of_its_own_and_says_when_it_has_none() {
    // Each core's completion queue has room for one queue of 32 entries and for no second one.
    let network = NetworkConfig { completions: 110, ..NetworkConfig::default() };
    let fabric = Fabric::new(network);
    let (target, _, rdma) = fabric.target(config(2));
    let mut one = Host::new(&fabric, rdma);
    one.port.provider().set_completions(1 << 16);
    let first = one.dial(QueueId::ADMIN, 32).unwrap();
    eventually("it is there", || fabric.network.cores_of(rdma)[0].pairs == 1);
    let second = one.dial(QueueId::ADMIN, 32).unwrap();
    let uses = fabric.network.cores_of(rdma);
    assert_eq!(over(&uses, |core| core.pairs), [1, 1], "a completion queue for each");
    for _ in 0..4 {
        let refused = one.dial(QueueId::ADMIN, 32).unwrap_err();
        assert_eq!(refused, ConnectError::Rejected(RejectStatus::NoResources));
    }
    let refused: u64 = fabric.devices().iter().map(|device| device.counts.refused).sum();
    assert_eq!(refused, 4);
    one.close(first);
    one.close(second);
    eventually("there is room again", || {
        let dialed = one.dial(QueueId::ADMIN, 32);
        dialed.iter().for_each(|id| one.close(*id));
        dialed.is_ok()
    });
    target.shutdown().unwrap();
    fabric.end();
}

/// Hosts that come and go on several cores, with faults of the network, devices and listeners that are removed amid I/O.
#[test]
fn hosts_come_and_go_on_several_cores() {
    let seeds = std::env::var("RACELINE_RDMA_CORE_SEEDS").ok().and_then(|text| text.parse().ok());
    for seed in 0..seeds.unwrap_or(8_u64) {
        let profile = if seed % 2 == 0 { Profile::Roce } else { Profile::Iwarp };
        let delay = Duration::from_micros(10 * (seed % 3));
        let faults = Faults { refused_post: 4000, lost_peer: 4000, ..Faults::default() };
        let fabric =
            Fabric::new(NetworkConfig { seed, profile, delay, faults, ..NetworkConfig::default() });
        let cores = 2 + usize::try_from(seed % 3).unwrap();
        let config = config(cores);
        let (target, tcp, rdma) = fabric.target(config.clone());
        let mut dice = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut below = |limit: u64| {
            dice ^= dice << 13;
            dice ^= dice >> 7;
            dice ^= dice << 17;
            dice % limit
        };
        for _ in 0..6 {
            let mut hosts: Vec<(Host, Vec<ConnectionId>)> = Vec::new();
            for _ in 0..=below(3) {
                let mut host = Host::new(&fabric, rdma);
                // Queues without a controller: their commands fail, and come and go all the same.
                let dialed = (0..1 + below(4)).map_while(|_| host.dial(QueueId::ADMIN, 32).ok());
                let queues = dialed.collect();
                hosts.push((host, queues));
            }
            for n in 0..40 {
                let at = usize::try_from(below(hosts.len() as u64)).unwrap();
                let (host, queues) = &mut hosts[at];
                let Some(queue) = queues.get(usize::try_from(below(5)).unwrap()).copied() else {
                    continue;
                };
                let len = [512, 4096, 128 << 10][usize::try_from(below(3)).unwrap()];
                let block = host.block(DATA + n * (128 << 10), len);
                let opc = if below(2) == 0 { io::READ } else { io::WRITE };
                host.try_submit(queue, &block_sqe(opc, 1, 0, blocks(len)), block);
                host.turn();
            }
            match below(5) {
                0 => fabric.network.cut_all(),
                1 => fabric.network.remove_listening(rdma),
                2 => {
                    target.remove_listener(rdma).unwrap();
                    target.add_listener_with(rdma, Some(fabric.streams(&config) as _)).unwrap();
                }
                _ => {}
            }
            for (mut host, queues) in hosts {
                queues.iter().for_each(|queue| host.close(*queue));
            }
            eventually("somebody listens", || {
                let mut host = Host::new(&fabric, rdma);
                let dialed = host.dial(QueueId::ADMIN, 32);
                dialed.iter().for_each(|id| host.close(*id));
                dialed.is_ok()
            });
        }
        fabric.network.stop_faults();
        let (last, _, queues) = host(&fabric, rdma, 4);
        close(last, &queues);
        let _tcp = RawHost::admin(tcp, Wants::default());
        target.shutdown().unwrap();
        eventually("nothing is left", || fabric.network.leftovers().1 == 0);
        let misuses = fabric.network.misuses();
        assert!(misuses.is_empty(), "seed {seed}: {misuses:?}");
    }
}
