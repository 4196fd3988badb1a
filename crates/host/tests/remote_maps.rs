//! Queue maps of a remote namespace: which commands go by which queue, and what is lost with a connection.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use raceline_bdev::SharedBdev;
use raceline_host::blocking::Host;
use raceline_host::{
    HostConfig, MultipathConfig, PathAddress, QueueKind, RemoteController, RemoteNamespace,
    Transport,
};
use raceline_proto::nvme::{HostId, NamespaceId, Nqn};
use raceline_reactor::Mode;
use raceline_target::{NamespaceConfig, QueueTotals, SubsystemConfig, Target, TargetConfig};

const NSID: NamespaceId = NamespaceId(1);
const BLOCK: usize = 512;

/// The target that has the device, or the one that exports it again and so makes requests of it.
fn export(bdev: SharedBdev, cores: usize, name: &str) -> (Target, SocketAddr, Nqn) {
    let config = TargetConfig {
        cores: (0..cores).collect(),
        mode: Mode::Interrupt,
        large_buffers_per_core: 16,
        small_buffers_per_core: 64,
        ..TargetConfig::default()
    };
    let target = Target::start(config).unwrap();
    let nqn = Nqn::new(&format!("nqn.2026-01.io.raceline:{name}")).unwrap();
    target.add_subsystem(SubsystemConfig::new(nqn.clone())).unwrap();
    assert_eq!(target.add_namespace(&nqn, NamespaceConfig::new(bdev)).unwrap(), NSID);
    let address = target.add_listener("127.0.0.1:0".parse().unwrap()).unwrap();
    (target, address, nqn)
}

fn device(dir: &tempfile::TempDir) -> SharedBdev {
    let path = dir.path().join("device");
    std::fs::File::create(&path).unwrap().set_len(4 << 20).unwrap();
    let identity = raceline_bdev::Identity::of_this_machine();
    raceline_bdev::open(&format!("file:{}", path.display()).parse().unwrap(), &identity).unwrap()
}

fn host_config(address: SocketAddr, nqn: &Nqn) -> HostConfig {
    let hostnqn = Nqn::new("nqn.2026-01.io.raceline:host").unwrap();
    HostConfig::new(address, nqn.clone(), hostnqn, HostId([5; 16]))
}

/// What the queues of each number have done, over all controllers that there are.
fn totals(target: &Target, nqn: &Nqn) -> BTreeMap<u16, QueueTotals> {
    target.queues(nqn).into_iter().map(|queue| (queue.qid.0, queue.totals)).collect()
}

/// Read and written bytes of a queue.
fn bytes(totals: &BTreeMap<u16, QueueTotals>, qid: u16) -> (u64, u64) {
    totals.get(&qid).map_or((0, 0), |queue| (queue.read_bytes, queue.written_bytes))
}

#[track_caller]
fn write_and_read(host: &Host, slba: u64, blocks: usize) {
    let data: Vec<u8> =
        (0..blocks * BLOCK).map(|i| (i as u64 / 3 + slba).to_le_bytes()[0]).collect();
    host.write(NSID, slba, &data, false).unwrap();
    let mut back = vec![0; data.len()];
    host.read(NSID, slba, &mut back).unwrap();
    assert!(back == data, "{blocks} blocks from {slba}");
}

#[test]
fn reads_go_by_their_queue_and_everything_else_by_the_other() {
    let dir = tempfile::tempdir().unwrap();
    let (backing, address, nqn) = export(device(&dir), 1, "maps");
    let config = HostConfig { io_queues: 1, write_queues: 1, ..host_config(address, &nqn) };
    let remote = Arc::new(RemoteNamespace::open_exactly(config, NSID).unwrap());
    let maps = remote.queue_maps();
    assert_eq!((maps.count(QueueKind::Default), maps.count(QueueKind::Read)), (1, 1));
    let (gateway, front, front_nqn) = export(remote.clone(), 1, "gateway");
    let host = Host::connect(host_config(front, &front_nqn)).unwrap();
    write_and_read(&host, 0, 8);
    // More than one command may move.
    write_and_read(&host, 64, 5000);
    let moved = u64::try_from(5008 * BLOCK).unwrap();
    let before = totals(&backing, &nqn);
    assert_eq!((bytes(&before, 1), bytes(&before, 2)), ((0, moved), (moved, 0)), "{before:?}");

    // Each of these is a command that is no read.
    host.flush(NSID).unwrap();
    host.write_zeroes(NSID, 0, 8, false).unwrap();
    host.deallocate(NSID, &[(64, 8)]).unwrap();
    let after = totals(&backing, &nqn);
    assert!(after[&1].commands >= before[&1].commands + 3, "{before:?} {after:?}");
    assert_eq!(after[&2].commands, before[&2].commands);
    let mut back = vec![1; 8 * BLOCK];
    host.read(NSID, 0, &mut back).unwrap();
    assert_eq!(back, vec![0; 8 * BLOCK]);

    host.disconnect();
    gateway.shutdown().unwrap();
    remote.disconnect();
    backing.shutdown().unwrap();
}

/// With and without queues of their own for reads. The core that polls is told never to spin by itself.
#[test]
fn reads_and_writes_go_by_the_queue_for_which_the_core_polls() {
    for write_queues in [0, 1] {
        let dir = tempfile::tempdir().unwrap();
        let (backing, address, nqn) = export(device(&dir), 1, "polled");
        let config = HostConfig {
            io_queues: 1,
            write_queues,
            // There are no more than cores.
            poll_queues: 5,
            ..host_config(address, &nqn)
        };
        let remote = Arc::new(RemoteNamespace::open_exactly(config, NSID).unwrap());
        let maps = remote.queue_maps();
        assert_eq!((maps.count(QueueKind::Poll), maps.total()), (1, write_queues + 2));
        let (gateway, front, front_nqn) = export(remote.clone(), 1, "gateway5");
        let host = Host::connect(host_config(front, &front_nqn)).unwrap();
        write_and_read(&host, 0, 8);
        write_and_read(&host, 64, 5000);
        let moved = u64::try_from(5008 * BLOCK).unwrap();
        let poll = maps.total();
        let before = totals(&backing, &nqn);
        assert_eq!(bytes(&before, poll), (moved, moved), "{before:?}");
        // What is not polled for goes by the queue for everything.
        host.flush(NSID).unwrap();
        host.write_zeroes(NSID, 0, 8, false).unwrap();
        host.deallocate(NSID, &[(64, 8)]).unwrap();
        let after = totals(&backing, &nqn);
        assert!(after[&1].commands >= before[&1].commands + 3, "{before:?} {after:?}");
        assert_eq!(after[&poll].commands, before[&poll].commands);
        host.disconnect();
        gateway.shutdown().unwrap();
        remote.disconnect();
        backing.shutdown().unwrap();
    }
}

/// Timers go on while a controller is lost, and each of them is work for the core.
#[test]
fn no_core_polls_for_commands_of_a_controller_that_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let (backing, address, nqn) = export(device(&dir), 1, "lost");
    let config = HostConfig { io_queues: 1, poll_queues: 1, ..host_config(address, &nqn) };
    let remote = Arc::new(RemoteNamespace::open_exactly(config, NSID).unwrap());
    let (gateway, front, front_nqn) = export(remote.clone(), 1, "gateway6");
    let host = Host::connect(host_config(front, &front_nqn)).unwrap();
    write_and_read(&host, 0, 8);
    backing.shutdown().unwrap();
    // Turns that did not wait.
    let spun = || {
        let before = gateway.stats().loops[0];
        std::thread::sleep(Duration::from_millis(500));
        let after = gateway.stats().loops[0];
        (after.turns - before.turns) - (after.waits - before.waits)
    };
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| host.read(NSID, 0, &mut [0; BLOCK]));
        let end = Instant::now() + Duration::from_secs(30);
        while !reader.is_finished() && spun() > 2000 {
            assert!(Instant::now() < end, "the core polls");
        }
        assert!(!reader.is_finished(), "the read waits for the controller");
        remote.disconnect();
        assert!(reader.join().unwrap().is_err());
    });
    host.disconnect();
    gateway.shutdown().unwrap();
}

#[test]
fn each_core_has_a_pair_and_no_more_cores_than_queues_can_be_served() {
    let dir = tempfile::tempdir().unwrap();
    let (backing, address, nqn) = export(device(&dir), 1, "cores");
    let config = |io_queues, write_queues| HostConfig {
        io_queues,
        write_queues,
        ..host_config(address, &nqn)
    };
    let remote = Arc::new(RemoteNamespace::open_exactly(config(2, 2), NSID).unwrap());
    let (gateway, front, front_nqn) = export(remote.clone(), 2, "gateway2");
    // Its connections are spread over the two cores.
    let host = HostConfig { io_queues: 2, ..host_config(front, &front_nqn) };
    let host = Host::connect(host).unwrap();
    write_and_read(&host, 0, 64);
    host.disconnect();
    let qids: Vec<u16> = totals(&backing, &nqn).into_keys().collect();
    assert_eq!(qids, [0, 1, 2, 3, 4]);
    gateway.shutdown().unwrap();
    remote.disconnect();

    // A second core finds none.
    let remote = Arc::new(RemoteNamespace::open_exactly(config(1, 1), NSID).unwrap());
    let target = TargetConfig { cores: vec![0, 1], ..TargetConfig::default() };
    let target = Target::start(target).unwrap();
    target.add_subsystem(SubsystemConfig::new(front_nqn.clone())).unwrap();
    let error = target.add_namespace(&front_nqn, NamespaceConfig::new(remote.clone())).unwrap_err();
    assert!(error.to_string().contains("all 2 I/O queues"), "{error}");
    target.shutdown().unwrap();
    remote.disconnect();
    backing.shutdown().unwrap();
}

/// Hands connections on; each can be cut by the address from which the target sees it.
#[derive(Clone)]
struct Proxy {
    address: SocketAddr,
    open: Arc<Mutex<BTreeMap<SocketAddr, [TcpStream; 2]>>>,
    /// New connections are refused from now on.
    is_down: Arc<Mutex<bool>>,
}

impl Proxy {
    fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let proxy = Self { address, open: Arc::default(), is_down: Arc::default() };
        let own = proxy.clone();
        std::thread::spawn(move || {
            for host in listener.incoming().map_while(Result::ok) {
                if *own.is_down.lock().unwrap() {
                    continue;
                }
                let Ok(target) = TcpStream::connect(target) else { return };
                let seen = target.local_addr().unwrap();
                let copies = [host.try_clone().unwrap(), target.try_clone().unwrap()];
                own.open.lock().unwrap().insert(seen, copies);
                let back = (target.try_clone().unwrap(), host.try_clone().unwrap());
                for (mut from, mut to) in [(host, target), back] {
                    std::thread::spawn(move || {
                        let mut piece = vec![0; 65_536];
                        while let Ok(count @ 1..) = from.read(&mut piece) {
                            if to.write_all(&piece[..count]).is_err() {
                                break;
                            }
                        }
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        proxy
    }

    /// Cuts the connection of this queue.
    fn cut(&self, target: &Target, nqn: &Nqn, qid: u16) {
        let open = self.open.lock().unwrap();
        let queues = target.queues(nqn).into_iter();
        let cut: Vec<SocketAddr> = queues
            .filter(|queue| queue.qid.0 == qid && open.contains_key(&queue.peer))
            .map(|queue| queue.peer)
            .collect();
        assert_eq!(cut.len(), 1, "queue {qid}: {cut:?}");
        for stream in &open[&cut[0]] {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Cuts all connections, and takes no more.
    fn go_down(&self) {
        *self.is_down.lock().unwrap() = true;
        for stream in self.open.lock().unwrap().values().flatten() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

#[track_caller]
fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_lost_queue_of_either_kind_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let (backing, address, nqn) = export(device(&dir), 1, "lost");
    let proxy = Proxy::start(address);
    let config = HostConfig { io_queues: 1, write_queues: 1, ..host_config(proxy.address, &nqn) };
    let remote = Arc::new(RemoteNamespace::open_exactly(config, NSID).unwrap());
    let (gateway, front, front_nqn) = export(remote.clone(), 1, "gateway3");
    let host = Host::connect(host_config(front, &front_nqn)).unwrap();
    write_and_read(&host, 0, 8);
    for qid in [1, 2, 1] {
        let before: Vec<_> = backing.queues(&nqn).iter().map(|queue| queue.peer).collect();
        proxy.cut(&backing, &nqn, qid);
        wait_until("both queues are new", || {
            let now = backing.queues(&nqn);
            let is_new = |queue: &raceline_target::QueueInfo| !before.contains(&queue.peer);
            (1..=2).all(|qid| now.iter().any(|queue| queue.qid.0 == qid && is_new(queue)))
        });
        write_and_read(&host, 100, 16);
        let now = totals(&backing, &nqn);
        let moved = u64::try_from(16 * BLOCK).unwrap();
        assert_eq!((bytes(&now, 1), bytes(&now, 2)), ((0, moved), (moved, 0)), "{now:?}");
    }
    host.disconnect();
    gateway.shutdown().unwrap();
    remote.disconnect();
    backing.shutdown().unwrap();
}

#[test]
fn several_paths_have_the_same_maps() {
    let dir = tempfile::tempdir().unwrap();
    let (backing, address, nqn) = export(device(&dir), 1, "paths");
    let proxy = Proxy::start(address);
    let more = PathAddress { address, source: None, transport: Transport::Tcp };
    let config = HostConfig {
        io_queues: 1,
        write_queues: 1,
        more_paths: vec![more],
        multipath: Some(MultipathConfig::default()),
        ..host_config(proxy.address, &nqn)
    };
    let remote = Arc::new(RemoteNamespace::open_exactly(config, NSID).unwrap());
    let (gateway, front, front_nqn) = export(remote.clone(), 1, "gateway4");
    let host = Host::connect(host_config(front, &front_nqn)).unwrap();
    wait_until("both paths are up", || backing.queues(&nqn).len() == 6);
    // Read and written bytes of the queues of a path.
    let through = |is_first: bool| {
        let queues = backing.queues(&nqn).into_iter();
        let open = proxy.open.lock().unwrap();
        let of_path = queues.filter(|queue| open.contains_key(&queue.peer) == is_first);
        let totals = of_path.map(|queue| (queue.qid.0, queue.totals)).collect();
        [1, 2].map(|qid| bytes(&totals, qid))
    };
    // What so many blocks, written and read, add to them.
    let with = |before: [(u64, u64); 2], blocks: usize| {
        let moved = u64::try_from(blocks * BLOCK).unwrap();
        [(before[0].0, before[0].1 + moved), (before[1].0 + moved, before[1].1)]
    };
    // The host may use the other path until it knows that the first one is ready.
    wait_until("the first path is used", || {
        let before = through(true);
        write_and_read(&host, 200, 4);
        through(true) == with(before, 4)
    });
    let before = [true, false].map(through);
    write_and_read(&host, 0, 8);
    assert_eq!([true, false].map(through), [with(before[0], 8), before[1]]);
    proxy.go_down();
    write_and_read(&host, 100, 16);
    assert_eq!(through(false), with(before[1], 16));
    host.disconnect();
    gateway.shutdown().unwrap();
    remote.disconnect();
    backing.shutdown().unwrap();
}

/// A path is shut down in order, which takes a while. Who asks for it meanwhile gets it.
#[test]
fn a_path_is_enabled_before_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let (backing, address, nqn) = export(device(&dir), 1, "enabled");
    let multipath = Some(MultipathConfig::default());
    let config = HostConfig { io_queues: 1, multipath, ..host_config(address, &nqn) };
    let controller = RemoteController::connect_exactly(config).unwrap();
    for _ in 0..3 {
        let before = controller.paths()[0].id;
        controller.disable_path(before);
        controller.enable_path(before);
        wait_until("the path is up again", || {
            let paths = controller.paths();
            paths.iter().any(|path| path.id != before && path.association.is_some())
        });
        assert!(controller.disabled_paths().is_empty());
    }
    controller.disconnect();
    backing.shutdown().unwrap();
}
