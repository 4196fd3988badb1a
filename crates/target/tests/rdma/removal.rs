//! A device that goes away and comes back: its listener too, and nobody else notices.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use raceline_bdev::{InjectBdev, Injected, Injection, OpKind};
use raceline_proto::nvme::Status;
use raceline_proto::nvme::opcode::io;
use raceline_rdma::fake::NetworkConfig;
use raceline_rdma::{HostTransfer, PortCounts};
use raceline_target::{Patience, RdmaConfig, RdmaStreams, Target, TargetError};

use super::host::{Fabric, Host};
use super::{each_kind, nobody_is_left, write_and_read};
use crate::common::{
    RawHost, Wants, block_sqe, config, eventually, namespace, nqn, pattern, ram, status, subsystem,
};

const OTHER: &str = "127.0.0.2:4420";

/// A host with an admin queue and an I/O queue, which has written and read.
fn host(fabric: &Fabric, address: SocketAddr) -> (Host, [raceline_rdma::verbs::ConnectionId; 2]) {
    let mut host = Host::new(fabric, address);
    let (admin, cntlid) = host.admin(&nqn(), 0);
    let queue = host.io(cntlid, 1, 32);
    write_and_read(&mut host, queue, 64, 128 << 10);
    (host, [admin, queue])
}

/// Whether somebody listens there: tries until the answer is this one.
fn listens(fabric: &Fabric, address: SocketAddr, wanted: bool) {
    eventually("the listener is as it should be", || {
        let mut host = Host::new(fabric, address);
        let dialed = host.dial(raceline_proto::nvme::QueueId::ADMIN, 32);
        if let Ok(id) = dialed {
            host.close(id);
        }
        dialed.is_ok() == wanted
    });
}

#[test]
fn a_listener_comes_back_with_its_device() {
    each_kind(|config, network| {
        let fabric = Fabric::new(network);
        let (target, tcp, rdma) = fabric.target(config.clone());
        let other = OTHER.parse().unwrap();
        let streams = fabric.streams(&config);
        target.add_listener_with(other, Some(streams as _)).unwrap();
        let (mut bystander, [by_admin, by_queue]) = host(&fabric, other);
        let (_tcp_admin, cntlid) = RawHost::admin(tcp, Wants::default());
        let mut tcp_queue = RawHost::io(tcp, cntlid, 1, Wants::default());

        for round in 0..2u64 {
            let (mut lost, _) = host(&fabric, rdma);
            fabric.are_devices_away.store(true, Ordering::Relaxed);
            let before = fabric.tries.load(Ordering::Relaxed);
            fabric.network.remove_listening(rdma);
            lost.until("the loss of both queues", |host| (host.losses.len() == 2).then_some(()));
            eventually("its queues are gone", || target.queues(&nqn()).len() == 4);
            listens(&fabric, rdma, false);
            eventually("the target looks for a device", || {
                fabric.tries.load(Ordering::Relaxed) > before
            });
            // Nobody else has noticed.
            assert!(bystander.losses.is_empty(), "{:?}", bystander.losses);
            assert_eq!(bystander.keep_alive(by_admin), Status::SUCCESS);
            write_and_read(&mut bystander, by_queue, 256, 64 << 10);
            let data = pattern(round, 4096);
            assert!(status(&tcp_queue.write(1, 0, &data, 512)).is_success());

            fabric.are_devices_away.store(false, Ordering::Relaxed);
            listens(&fabric, rdma, true);
            let (mut back, [admin, queue]) = host(&fabric, rdma);
            assert!(tcp_queue.read(1, 0, 8, 512).data == data);
            back.close(queue);
            back.close(admin);
        }
        let devices = fabric.devices();
        assert_eq!(devices.iter().filter(|device| device.address == rdma).count(), 1);
        bystander.close(by_queue);
        bystander.close(by_admin);
        drop((tcp_queue, _tcp_admin));
        nobody_is_left(&target);
        target.shutdown().unwrap();
        fabric.end();
    });
}

/// A bond whose next link is another device's.
#[test]
fn a_listener_follows_its_address_to_another_device() {
    each_kind(|config, network| {
        let fabric = Fabric::new(network);
        let (target, _, rdma) = fabric.target(config);
        let (mut before, [admin, queue]) = host(&fabric, rdma);
        // A busy machine may delay some of them.
        let is_quick = (0..10).any(|_| {
            let (tries, begun) = (fabric.tries.load(Ordering::Relaxed), Instant::now());
            fabric.network.move_address(rdma);
            eventually("the target opens the next device", || {
                fabric.tries.load(Ordering::Relaxed) > tries
            });
            let time = begun.elapsed();
            listens(&fabric, rdma, true);
            time < Duration::from_secs(1)
        });
        assert!(is_quick, "a listener does not wait for a device that is there");
        let (mut after, [next_admin, next]) = host(&fabric, rdma);
        assert_eq!(target.queues(&nqn()).len(), 4);
        // What the network has left connected goes on.
        write_and_read(&mut before, queue, 64, 128 << 10);
        assert!(before.losses.is_empty(), "{:?}", before.losses);
        [next, next_admin].into_iter().for_each(|id| after.close(id));
        [queue, admin].into_iter().for_each(|id| before.close(id));
        drop((before, after));
        nobody_is_left(&target);
        target.shutdown().unwrap();
        fabric.end();
    });
}

#[test]
fn a_listener_that_looks_for_a_device_can_be_removed() {
    let fabric = Fabric::new(NetworkConfig::default());
    let (target, _, rdma) = fabric.target(config(1));
    fabric.are_devices_away.store(true, Ordering::Relaxed);
    let before = fabric.tries.load(Ordering::Relaxed);
    fabric.network.remove_listening(rdma);
    eventually("the target looks for a device", || fabric.tries.load(Ordering::Relaxed) > before);
    target.remove_listener(rdma).unwrap();
    // From now on nobody tries: the listener that comes is the only one.
    fabric.are_devices_away.store(false, Ordering::Relaxed);
    let config = config(1);
    target.add_listener_with(rdma, Some(fabric.streams(&config) as _)).unwrap();
    let tries = fabric.tries.load(Ordering::Relaxed);
    let (mut host, [admin, queue]) = host(&fabric, rdma);
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(3) {
        write_and_read(&mut host, queue, 0, 4096);
    }
    assert_eq!(fabric.tries.load(Ordering::Relaxed), tries, "somebody still looks");
    host.close(queue);
    host.close(admin);
    nobody_is_left(&target);
    target.shutdown().unwrap();
    fabric.end();
}

/// A target without listeners.
fn bare_target() -> Target {
    let target = Target::start(config(1)).unwrap();
    target.add_subsystem(subsystem()).unwrap();
    target.add_namespace(&nqn(), namespace(ram("16M"))).unwrap();
    target
}

#[test]
fn the_listener_of_a_successor_waits_for_the_process_before() {
    let fabric = Fabric::new(NetworkConfig::default());
    let (before, _, rdma) = fabric.target(config(1));
    let (mut old, _) = host(&fabric, rdma);
    let after = bare_target();
    let streams = fabric.streams(&config(1));
    streams.set_patience(Patience::ForPredecessor);
    let tries = fabric.tries.load(Ordering::Relaxed);
    after.add_listener_with(rdma, Some(streams.clone() as _)).unwrap();
    // The process before serves, and may go on for ever: nobody takes its address.
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(fabric.tries.load(Ordering::Relaxed), tries, "it does not even try");
    assert!(old.losses.is_empty());

    before.shutdown().unwrap();
    old.until("the loss of both queues", |host| (host.losses.len() == 2).then_some(()));
    listens(&fabric, rdma, false);
    streams.set_patience(Patience::None);
    let since = Instant::now();
    listens(&fabric, rdma, true);
    assert!(since.elapsed() < Duration::from_secs(20), "{:?}", since.elapsed());
    let (mut new, [admin, queue]) = host(&fabric, rdma);
    new.close(queue);
    new.close(admin);
    nobody_is_left(&after);
    after.shutdown().unwrap();
    fabric.end();
}

#[test]
fn a_listener_that_is_restored_waits_for_its_device() {
    let fabric = Fabric::new(NetworkConfig::default());
    let target = bare_target();
    let streams = fabric.streams(&config(1));
    let rdma: SocketAddr = "127.0.0.1:4420".parse().unwrap();
    fabric.are_devices_away.store(true, Ordering::Relaxed);
    let listen = || target.add_listener_with(rdma, Some(streams.clone() as _));
    let error = listen().unwrap_err().to_string();
    assert!(error.contains("no device has the address"), "a client asks again itself: {error}");
    streams.set_patience(Patience::ForDevice);
    listen().unwrap();
    listens(&fabric, rdma, false);
    fabric.are_devices_away.store(false, Ordering::Relaxed);
    listens(&fabric, rdma, true);
    let (mut host, [admin, queue]) = host(&fabric, rdma);
    host.close(queue);
    host.close(admin);
    nobody_is_left(&target);
    target.shutdown().unwrap();
    fabric.end();
}

/// However patient it is, since no device will ever have such an address.
#[test]
fn a_listener_at_all_addresses_is_refused_at_once() {
    let fabric = Fabric::new(NetworkConfig::default());
    let target = bare_target();
    let streams = fabric.streams(&config(1));
    for patience in [Patience::None, Patience::ForDevice, Patience::ForPredecessor] {
        streams.set_patience(patience);
        for all in ["0.0.0.0:4420", "[::]:4420", "[::ffff:0.0.0.0]:4420"] {
            let all: SocketAddr = all.parse().unwrap();
            match target.add_listener_with(all, Some(streams.clone() as _)) {
                Err(TargetError::Listen { error, .. }) => {
                    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput, "{error}");
                    assert!(error.to_string().contains("stands for all addresses"), "{error}");
                }
                other => panic!("{patience:?}, {all}: {other:?}"),
            }
        }
    }
    assert_eq!(fabric.tries.load(Ordering::Relaxed), 0, "no device is looked for");
    target.shutdown().unwrap();
    fabric.end();
}

/// Hosts are told by CAP.MQES how long queues may be, so a device has to have the longest ones.
#[test]
fn a_listener_needs_a_device_that_has_the_queues_it_offers() {
    let offered = RdmaConfig::of(&config(1)).io_entries;
    let needed = u32::from(offered) * 2;
    let at =
        |work_requests| Fabric::new(NetworkConfig { work_requests, ..NetworkConfig::default() });
    let (fabric, target) = (at(needed - 1), bare_target());
    let streams = fabric.streams(&config(1));
    let rdma: SocketAddr = "127.0.0.1:4420".parse().unwrap();
    let error = target.add_listener_with(rdma, Some(streams as _)).unwrap_err().to_string();
    for part in [
        format!("the device simulated takes {} requests in a queue pair", needed - 1),
        format!("a queue of {offered} entries needs {needed}"),
        format!("allow queues of {} commands at most (--max-queue-depth", offered - 2),
    ] {
        assert!(error.contains(&part), "{part}: {error}");
    }
    target.shutdown().unwrap();
    fabric.end();

    let fabric = at(needed);
    let (target, _, rdma) = fabric.target(config(1));
    let mut host = Host::new(&fabric, rdma);
    let (admin, cntlid) = host.admin(&nqn(), 0);
    let queue = host.io(cntlid, 1, offered);
    write_and_read(&mut host, queue, 0, 4096);
    host.close(queue);
    host.close(admin);
    nobody_is_left(&target);
    target.shutdown().unwrap();
    fabric.end();
}

/// The kernel may still take down what a killed process had.
#[test]
fn after_a_restart_an_address_may_be_in_use_for_a_moment() {
    let fabric = Fabric::new(NetworkConfig::default());
    let (before, _, rdma) = fabric.target(config(1));
    let target = bare_target();
    let streams = fabric.streams(&config(1));
    streams.set_patience(Patience::ForDevice);
    let listen = || target.add_listener_with(rdma, Some(streams.clone() as _));
    match listen() {
        Err(TargetError::Listen { error, .. }) => {
            assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse, "{error}");
        }
        other => panic!("{other:?}"),
    }
    let ending = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        before.shutdown().unwrap();
    });
    assert_eq!(Target::listen_after_restart(listen).unwrap(), rdma);
    ending.join().unwrap();
    listens(&fabric, rdma, true);
    target.shutdown().unwrap();
    fabric.end();
}

/// Its connections may take their time to end: they keep the device, but not the address.
#[test]
fn an_address_is_free_when_its_listener_is_removed() {
    each_kind(|config, network| {
        let fabric = Fabric::new(network);
        let streams = fabric.streams(&config);
        let (device, control) = InjectBdev::new(ram("16M"));
        let (target, _, rdma) = fabric.target_of(config, streams.clone(), Arc::new(device));
        for _ in 0..3 {
            let (mut held, [_, queue]) = host(&fabric, rdma);
            let injection = Injection { what: Injected::Held, count: 1, depth: 0 };
            control.inject(OpKind::Read, injection);
            let read = block_sqe(io::READ, 1, 0, 8);
            let block = held.block(0, 4096);
            held.submit(queue, &read, HostTransfer::Keyed { block, invalidate: false });
            // It is at the device when a later command is answered.
            let flush = block_sqe(io::FLUSH, 1, 0, 1);
            assert!(held.command(queue, &flush, 0, 0).status.is_success());
            target.remove_listener(rdma).unwrap();
            target.add_listener_with(rdma, Some(streams.clone() as _)).unwrap();
            let (mut next, [admin, queue]) = host(&fabric, rdma);
            control.resume();
            held.until("the loss of both", |host| (host.losses.len() == 2).then_some(()));
            next.close(queue);
            next.close(admin);
        }
        nobody_is_left(&target);
        target.shutdown().unwrap();
        fabric.end();
    });
}

/// What devices have done, of each listener and core: all of them have one name here.
type Sums = BTreeMap<(SocketAddr, usize), [u64; 11]>;

fn sums(streams: &RdmaStreams) -> Sums {
    let mut sums = Sums::new();
    for device in streams.devices_ever() {
        let PortCounts { polls, idle_polls, completions, requests, sends, .. } = device.counts;
        let PortCounts { send_posts, receives, receive_posts, refused, .. } = device.counts;
        let of_it = [polls, idle_polls, completions, requests, sends, send_posts, receives];
        let more = [receive_posts, refused, device.counts.lost_receives, device.in_place];
        let sum = sums.entry((device.address, device.core)).or_default();
        for (sum, count) in sum.iter_mut().zip(of_it.into_iter().chain(more)) {
            *sum += count;
        }
    }
    sums
}

/// Nothing of the sums before is missing, and none has fallen.
fn none_falls(before: &Sums, after: &Sums) {
    for (place, counts) in before {
        let now = after.get(place).unwrap_or_else(|| panic!("{place:?} is gone: {counts:?}"));
        assert!(
            counts.iter().zip(now).all(|(old, new)| old <= new),
            "{place:?}: {counts:?} {now:?}"
        );
    }
}

#[test]
fn no_count_of_a_device_falls_when_it_is_lost_or_its_listener_removed() {
    let fabric = Fabric::new(NetworkConfig::default());
    let config = config(2);
    let streams = fabric.streams(&config);
    let (target, _, rdma) = fabric.target_of(config, Arc::clone(&streams), ram("16M"));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // It looks all the time, so also while a device ends.
        let watcher = scope.spawn(|| {
            let mut before = sums(&streams);
            while !over.load(Ordering::Acquire) {
                let after = sums(&streams);
                none_falls(&before, &after);
                before = after;
                std::thread::yield_now();
            }
            before
        });
        for round in 1..=3_u64 {
            let (mut lost, _) = host(&fabric, rdma);
            let before = sums(&streams);
            let requests = |sums: &Sums| sums.values().map(|counts| counts[3]).sum::<u64>();
            // Connect twice, what the admin queue asks, a write and a read.
            assert!(requests(&before) >= 4 * round, "{before:?}");
            match round {
                1 | 2 => {
                    fabric.network.remove_listening(rdma);
                    lost.until("the loss", |host| (host.losses.len() == 2).then_some(()));
                }
                _ => target.remove_listener(rdma).unwrap(),
            }
            eventually("its device is gone", || {
                streams.devices().iter().all(|device| device.counts.requests == 0)
            });
            none_falls(&before, &sums(&streams));
            match round {
                1 | 2 => listens(&fabric, rdma, true),
                _ => {
                    let again = Some(Arc::clone(&streams) as _);
                    target.add_listener_with(rdma, again).unwrap();
                }
            }
        }
        let (mut last, [admin, queue]) = host(&fabric, rdma);
        last.close(queue);
        last.close(admin);
        over.store(true, Ordering::Release);
        let before = watcher.join().unwrap();
        none_falls(&before, &sums(&streams));
    });
    nobody_is_left(&target);
    target.shutdown().unwrap();
    let before = sums(&streams);
    assert!(!before.is_empty() && streams.devices().is_empty());
    fabric.end();
}
