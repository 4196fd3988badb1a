//! Limits of rates: how exactly they are kept, and whom they leave alone.
#![allow(clippy::unwrap_used)] // a test

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::common::{
    DEEPER, Heard, RawHost, Wants, block_sqe, config, eventually, host_nqn, namespace, nqn,
    pattern, ram, status, subsystem, unlimited,
};
use crate::rates::{exceeds, ios, keeps};
use raceline_proto::nvme::opcode::{admin, io};
use raceline_proto::nvme::{Direction, NamespaceId, Sqe, Status};
use raceline_target::{HostLimit, NamespaceConfig, QosLimits, Target};

const BS: u32 = 512;

/// A target with two namespaces in memory, and an I/O queue of a host.
fn start(cores: usize) -> (Target, SocketAddr, RawHost, RawHost) {
    let target = Target::start(config(cores)).unwrap();
    target.add_subsystem(subsystem()).unwrap();
    for _ in 0..2 {
        target.add_namespace(&nqn(), namespace(ram("4M"))).unwrap();
    }
    let address = crate::common::listen(&target);
    let (admin, cntlid) = RawHost::admin(address, Wants::default());
    let queue = RawHost::io(address, cntlid, 1, Wants::default());
    (target, address, admin, queue)
}

fn limit(target: &Target, nsid: u32, limits: QosLimits) {
    let throttle = target.throttle(limits).unwrap();
    target.set_namespace_limits(&nqn(), NamespaceId(nsid), Some(throttle)).unwrap();
}

/// Keeps `depth` commands of a namespace under way for a time; gives how many were answered in it.
fn load(
    queue: &mut RawHost,
    nsid: u32,
    opcode: u8,
    len: usize,
    depth: usize,
    time: Duration,
) -> u64 {
    load_until(queue, nsid, opcode, len, depth, Instant::now() + time)
}

/// As [`load`], until a moment.
fn load_until(
    queue: &mut RawHost,
    nsid: u32,
    opcode: u8,
    len: usize,
    depth: usize,
    end: Instant,
) -> u64 {
    let data = pattern(3, len);
    let sqe = block_sqe(opcode, nsid, 0, u32::try_from(len).unwrap() / BS);
    let submit = |queue: &mut RawHost| {
        if opcode == io::READ {
            queue.submit(sqe, Direction::ControllerToHost, u32::try_from(len).unwrap());
        } else if len <= 8192 {
            queue.submit_in_capsule(sqe, &data);
        } else {
            queue.submit_write(sqe, &data);
        }
    };
    (0..depth).for_each(|_| submit(queue));
    let (mut answered, mut waiting) = (0, depth);
    while waiting > 0 {
        match queue.listen() {
            Heard::Response(cqe) => {
                assert!(cqe.status.is_success(), "{}", cqe.status);
                waiting -= 1;
                if Instant::now() < end {
                    answered += 1;
                    waiting += 1;
                    submit(queue);
                }
            }
            Heard::SendData(grant) => queue.send_data(&grant, &data),
            Heard::DataEnd { success: true, .. } => {
                waiting -= 1;
                if Instant::now() < end {
                    answered += 1;
                    waiting += 1;
                    submit(queue);
                }
            }
            _ => {}
        }
    }
    answered
}

#[test]
fn rates_of_reads_and_writes_of_every_way_are_kept() {
    let (target, _, _admin, mut queue) = start(1);
    let second = Duration::from_secs(1);
    for (opcode, len, depth, limits, expected) in [
        (io::READ, 512, 8, ios(400), 400),
        // in the capsule, then with R2T
        (io::WRITE, 512, 8, ios(400), 400),
        (io::WRITE, 65536, 4, QosLimits { w_bytes_per_sec: 20 << 20, ..ios(0) }, 320),
        (io::READ, 131_072, 4, QosLimits { rw_bytes_per_sec: 40 << 20, ..ios(0) }, 320),
        (io::READ, 4096, 4, QosLimits { r_bytes_per_sec: 1 << 20, ..ios(0) }, 256),
        (io::WRITE, 4096, 4, QosLimits { r_bytes_per_sec: 1, rw_ios_per_sec: 300, ..ios(0) }, 300),
    ] {
        limit(&target, 1, limits);
        // what the burst allows at the beginning, and what is under way at the end
        let slack = expected / 50 + depth as u64 + 2;
        keeps(expected, slack, || load(&mut queue, 1, opcode, len, depth * DEEPER, second));
    }
    assert!(target.stats().subsystems[0].1.throttled > 500);
    target.set_namespace_limits(&nqn(), NamespaceId(1), None).unwrap();
    let quick = Duration::from_millis(200);
    // The last limit would have let 60 through.
    exceeds(unlimited(400, 100), || load(&mut queue, 1, io::READ, 512, 8 * DEEPER, quick));
    target.shutdown().unwrap();
}

#[test]
fn several_queues_on_several_cores_share_one_limit() {
    let (target, address, _admin, queue) = start(3);
    drop(queue);
    limit(&target, 1, ios(600));
    let (_second_admin, cntlid) = RawHost::admin(address, Wants::default());
    let mut queues: Vec<RawHost> =
        (1..=4).map(|qid| RawHost::io(address, cntlid, qid, Wants::default())).collect();
    keeps(600, 12 + 16, || {
        std::thread::scope(|scope| {
            // All have the same second, whenever their threads begin.
            let end = Instant::now() + Duration::from_secs(1);
            let load = |queue| move || load_until(queue, 1, io::READ, 512, 4 * DEEPER, end);
            let threads: Vec<_> = queues.iter_mut().map(|queue| scope.spawn(load(queue))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        })
    });
    target.shutdown().unwrap();
}

#[test]
fn limits_of_a_host_and_of_the_subsystem_count_for_all_namespaces() {
    let (target, _, _admin, mut queue) = start(1);
    let second = Duration::from_secs(1);
    let of_host = target.throttle(ios(200)).unwrap();
    let of = |host, throttle| HostLimit { hosts: vec![host], initiators: Vec::new(), throttle };
    target.set_host_limits(vec![of(host_nqn(), of_host)]).unwrap();
    keeps(200, 10, || load(&mut queue, 2, io::READ, 512, 4 * DEEPER, second));
    let of_others = target.throttle(ios(1)).unwrap();
    target.set_host_limits(vec![of(nqn(), of_others)]).unwrap();
    let quick = Duration::from_millis(200);
    // The other host's limit would let one through.
    exceeds(unlimited(200, 30), || load(&mut queue, 2, io::READ, 512, 4 * DEEPER, quick));
    let whole = target.throttle(ios(100)).unwrap();
    target.set_subsystem_limits(&nqn(), Some(whole)).unwrap();
    limit(&target, 1, ios(10_000));
    keeps(100, 8, || load(&mut queue, 1, io::READ, 512, 4 * DEEPER, second));
    target.shutdown().unwrap();
}

#[test]
fn namespaces_with_one_device_share_its_limit() {
    let (target, _, _admin, mut queue) = start(1);
    let shared = target.throttle(ios(200)).unwrap();
    for nsid in [1, 2] {
        let throttle = Some(shared.clone());
        target.set_namespace_limits(&nqn(), NamespaceId(nsid), throttle).unwrap();
    }
    let half = Duration::from_millis(500);
    keeps(200, 16, || {
        let first = load(&mut queue, 1, io::READ, 512, 4 * DEEPER, half);
        first + load(&mut queue, 2, io::READ, 512, 4 * DEEPER, half)
    });
    let added = NamespaceConfig { throttle: Some(shared), ..namespace(ram("1M")) };
    assert_eq!(target.add_namespace(&nqn(), added).unwrap(), NamespaceId(3));
    keeps(100, 8, || load(&mut queue, 3, io::READ, 512, 4 * DEEPER, half));
    target.shutdown().unwrap();
}

/// One command in 100 s: the queue's second waits for as long.
fn hold_all(target: &Target, queue: &mut RawHost) {
    limit(target, 1, QosLimits { burst: Duration::ZERO, ..ios(1) });
    for _ in 0..100 {
        queue.submit(block_sqe(io::READ, 1, 0, 1), Direction::ControllerToHost, BS);
    }
}

#[test]
fn a_host_whose_commands_wait_administers_and_disconnects_and_gives_back_what_it_reserved() {
    let (target, address, mut admin, mut queue) = start(1);
    hold_all(&target, &mut queue);
    admin.identify_controller();
    let keep_alive = Sqe { opc: admin::KEEP_ALIVE, ..Sqe::default() };
    assert!(status(&admin.plain_command(keep_alive)).is_success());
    let abort = Sqe { opc: admin::ABORT, cdw10: 1.into(), ..Sqe::default() };
    assert!(status(&admin.plain_command(abort)).is_success());
    // Another namespace of the same queue goes on.
    assert!(status(&queue.read(2, 0, 8, BS)).is_success());
    assert!(status(&queue.write(2, 0, &pattern(1, 65536), BS)).is_success());
    let begun = Instant::now();
    drop(admin);
    assert!(queue.until_closed().is_none());
    eventually("it has ended", || target.controllers(&nqn()).is_empty());
    assert!(begun.elapsed() < Duration::from_secs(50), "{:?}", begun.elapsed());
    // 100 s are reserved no more.
    let (_admin, cntlid) = RawHost::admin(address, Wants::default());
    let mut queue = RawHost::io(address, cntlid, 1, Wants::default());
    assert!(status(&queue.read(1, 0, 1, BS)).is_success());
    assert!(begun.elapsed() < Duration::from_secs(50), "{:?}", begun.elapsed());
    target.shutdown().unwrap();
}

#[test]
fn commands_that_wait_go_by_new_limits_and_states_at_once() {
    let (target, _, _admin, mut queue) = start(1);
    hold_all(&target, &mut queue);
    // Data in a capsule stop the socket; that must end, too.
    let write = queue.submit_in_capsule(block_sqe(io::WRITE, 1, 8, 1), &pattern(5, 512));
    std::thread::sleep(Duration::from_millis(50));
    let begun = Instant::now();
    limit(&target, 1, ios(1_000_000));
    assert!(status(&queue.wait(write, &[])).is_success());
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert_eq!(queue.read(1, 8, 1, BS).data, pattern(5, 512));

    hold_all(&target, &mut queue);
    let write = queue.submit_in_capsule(block_sqe(io::WRITE, 1, 9, 1), &pattern(6, 512));
    std::thread::sleep(Duration::from_millis(50));
    target.remove_namespace(&nqn(), NamespaceId(1)).unwrap();
    assert_eq!(status(&queue.wait(write, &[])), Status::INVALID_NAMESPACE.dnr());
    assert!(status(&queue.read(2, 0, 8, BS)).is_success(), "what follows on the socket is read");
    target.shutdown().unwrap();
}

#[test]
fn fused_and_other_commands_of_a_limited_namespace_work() {
    let (target, _, _admin, mut queue) = start(2);
    limit(&target, 1, ios(100));
    let old = pattern(1, 512);
    assert!(status(&queue.write(1, 0, &old, BS)).is_success());
    for round in 0..20 {
        let (before, after) = (pattern(round + 1, 512), pattern(round + 2, 512));
        let compare = Sqe { flags: 1, ..block_sqe(io::COMPARE, 1, 0, 1) };
        let write = Sqe { flags: 2, ..block_sqe(io::WRITE, 1, 0, 1) };
        let first = queue.submit_in_capsule(compare, &before);
        let second = queue.submit_in_capsule(write, &after);
        assert!(status(&queue.wait(first, &[])).is_success(), "round {round}");
        assert!(status(&queue.wait(second, &[])).is_success());
    }
    assert!(status(&queue.plain_command(block_sqe(io::FLUSH, 1, 0, 1))).is_success());
    assert!(status(&queue.plain_command(block_sqe(io::WRITE_ZEROES, 1, 0, 8))).is_success());
    let deallocate =
        Sqe { opc: io::DATASET_MANAGEMENT, nsid: 1.into(), cdw11: 4.into(), ..Sqe::default() };
    let mut range = [0; 16];
    range[4] = 8;
    assert!(status(&queue.write_command(deallocate, &range, true)).is_success());
    assert_eq!(queue.read(1, 0, 1, BS).data, [0; 512]);
    assert_eq!(status(&queue.read(1, 1 << 30, 1, BS)), Status::LBA_OUT_OF_RANGE.dnr());
    target.shutdown().unwrap();
}

#[test]
fn commands_that_begin_anew_do_not_part_the_halves_of_a_fused_operation() {
    let (target, _, _admin, mut queue) = start(1);
    let (old, new) = (pattern(1, 512), pattern(2, 512));
    let (mut before, mut after) = (&old, &new);
    assert!(status(&queue.write(2, 0, before, BS)).is_success());
    for removes in [false, true] {
        limit(&target, 1, QosLimits { burst: Duration::ZERO, ..ios(1) });
        let read = block_sqe(io::READ, 1, 0, 1);
        let reads: Vec<_> =
            (0..8).map(|_| queue.submit(read, Direction::ControllerToHost, BS)).collect();
        let compare = Sqe { flags: 1, ..block_sqe(io::COMPARE, 2, 0, 1) };
        let first = queue.submit_in_capsule(compare, before);
        std::thread::sleep(Duration::from_millis(50));
        if removes {
            target.remove_namespace(&nqn(), NamespaceId(1)).unwrap();
        } else {
            limit(&target, 1, ios(1_000_000));
        }
        let ends = reads.into_iter().map(|read| status(&queue.wait(read, &[])));
        let refused = ends.filter(|status| !status.is_success()).count();
        assert_eq!(refused > 0, removes);
        let write = Sqe { flags: 2, ..block_sqe(io::WRITE, 2, 0, 1) };
        let second = queue.submit_in_capsule(write, after);
        for half in [first, second] {
            assert_eq!(status(&queue.wait(half, &[])), Status::SUCCESS, "removes: {removes}");
        }
        assert_eq!(queue.read(2, 0, 1, BS).data, *after);
        std::mem::swap(&mut before, &mut after);
    }
    target.shutdown().unwrap();
}
