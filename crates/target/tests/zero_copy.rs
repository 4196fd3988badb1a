//! Reads that leave without a copy: what arrives, and what becomes of a connection that ends meanwhile.

mod common;

use std::time::{Duration, Instant};

use common::{RawHost, Wants, block_sqe, config, eventually, nqn, pattern, ram, start, status};
use raceline_proto::nvme::opcode::io;
use raceline_proto::nvme::{Direction, NamespaceId};
use raceline_reactor::stats::DepartureCounts;
use raceline_reactor::{Backend, UringIo};
use raceline_target::{Target, TargetConfig, TargetError, ZeroCopySend};

const BS: u32 = 512;
/// Blocks of one read.
const BLOCKS: u32 = 256;

fn with(zero_copy: ZeroCopySend, backend: Backend) -> TargetConfig {
    TargetConfig { zero_copy, backend, ..config(1) }
}

fn departures(target: &Target) -> DepartureCounts {
    let mut all = DepartureCounts::default();
    target.stats().loops.iter().for_each(|core| all.add(&core.departures));
    all
}

/// Without io_uring there is nothing to test. The ring is tried on a thread of its own: while it is taken
/// down, it interrupts the system calls of its thread.
fn has_ring() -> bool {
    let has = std::thread::spawn(|| UringIo::new().is_ok()).join().is_ok_and(|has| has);
    if !has {
        eprintln!("SKIPPED: io_uring cannot be used here");
    }
    has
}

/// Writes a pattern, and reads it back several times; gives what the target has counted.
fn write_and_read(config: TargetConfig, wants: Wants) -> DepartureCounts {
    let (target, address) = start(config, vec![ram("16M")]);
    let (_admin, cntlid) = RawHost::admin(address, wants);
    let mut queue = RawHost::io(address, cntlid, 1, wants);
    let data = pattern(5, (BLOCKS * BS) as usize);
    for slba in [0, 1000, 7] {
        assert!(status(&queue.write(1, slba, &data, BS)).is_success());
        for _ in 0..4 {
            assert!(queue.read(1, slba, BLOCKS, BS).data == data);
        }
        // Small and large answers in one batch.
        let cids: Vec<_> = [1, BLOCKS, 8, BLOCKS, 2]
            .into_iter()
            .map(|blocks| {
                let sqe = block_sqe(io::READ, 1, slba, blocks);
                (queue.submit(sqe, Direction::ControllerToHost, blocks * BS), blocks)
            })
            .collect();
        for (cid, blocks) in cids {
            assert!(queue.wait(cid, &[]).data == data[..(blocks * BS) as usize]);
        }
    }
    drop(queue);
    let counts = departures(&target);
    target.shutdown().expect("the target ends");
    counts
}

#[test]
fn on_loopback_the_kernel_copies_and_the_connection_stops_asking() {
    if !has_ring() {
        return;
    }
    let wants = Wants { hdgst: true, ..Wants::default() };
    for wants in [Wants::default(), wants] {
        let counts = write_and_read(with(ZeroCopySend::On, Backend::Uring), wants);
        if counts.zero_copy_refused > 0 {
            eprintln!("SKIPPED: a kernel before 6.2 sends nothing without a copy");
            continue;
        }
        assert!(counts.zero_copy_sends > 0 && counts.zero_copy_copied > 0, "{counts:?}");
        assert!(counts.zero_copy_sends < 10, "{counts:?}");
    }
}

#[test]
fn what_is_not_asked_for_or_of_no_use_is_copied() {
    let plain = Wants::default();
    let ddgst = Wants { ddgst: true, ..plain };
    let none = DepartureCounts::default();
    assert_eq!(write_and_read(with(ZeroCopySend::Auto, Backend::Auto), plain), none);
    assert_eq!(write_and_read(with(ZeroCopySend::Off, Backend::Auto), plain), none);
    assert_eq!(write_and_read(with(ZeroCopySend::On, Backend::Epoll), plain), none);
    assert_eq!(write_and_read(with(ZeroCopySend::On, Backend::Auto), ddgst), none);
    let large = TargetConfig { zero_copy_bytes: 1 << 20, ..with(ZeroCopySend::On, Backend::Auto) };
    assert_eq!(write_and_read(large, plain), none);
}

#[test]
fn flags_change_nothing_that_arrives() {
    for backend in [Backend::Auto, Backend::Epoll] {
        for wants in [Wants::default(), Wants { ddgst: true, hdgst: true, ..Wants::default() }] {
            let config = TargetConfig { send_flags: true, ..with(ZeroCopySend::Off, backend) };
            let counts = write_and_read(config, wants);
            assert!(counts.eor_sends > 0, "{counts:?}");
            assert_eq!((counts.uncorks, counts.zero_copy_sends), (0, 0));
        }
    }
}

/// The host goes away, or the namespace does, with reads under way that nobody receives.
#[test]
fn a_connection_that_ends_gives_back_what_it_had() {
    if !has_ring() {
        return;
    }
    let (target, address) = start(with(ZeroCopySend::On, Backend::Uring), vec![ram("16M")]);
    for round in 0..6 {
        let (admin, cntlid) = RawHost::admin(address, Wants::default());
        let mut queue = RawHost::io(address, cntlid, 1, Wants::default());
        for _ in 0..100 {
            let sqe = block_sqe(io::READ, 1, 0, 2048);
            queue.submit(sqe, Direction::ControllerToHost, 2048 * BS);
        }
        if round % 2 == 1 {
            std::thread::sleep(Duration::from_millis(20));
        }
        drop((queue, admin));
        eventually("the connections are gone", || target.stats().connections == [0]);
    }
    let (_admin, cntlid) = RawHost::admin(address, Wants::default());
    let mut queue = RawHost::io(address, cntlid, 1, Wants::default());
    for _ in 0..100 {
        let sqe = block_sqe(io::READ, 1, 0, 2048);
        queue.submit(sqe, Direction::ControllerToHost, 2048 * BS);
    }
    target.remove_namespace(&nqn(), NamespaceId(1)).unwrap();
    let begin = Instant::now();
    drop(queue);
    target.shutdown().unwrap();
    assert!(begin.elapsed() < Duration::from_secs(10));
}

#[test]
fn the_threshold_is_a_page_at_least() {
    let config = TargetConfig { zero_copy_bytes: 4095, ..config(1) };
    let error = Target::start(config).err().unwrap();
    assert!(matches!(error, TargetError::Config { .. }));
    assert_eq!(error.to_string(), "bytes of a read that is not copied must be at least 4096");
}
