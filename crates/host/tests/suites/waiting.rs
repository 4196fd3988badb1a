//! The blocking face against a real target: many threads at once, and a target that goes and comes back.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::served::{BLOCK, HAS_DIGESTS, NS, any_port, config, memory, nqn, serve, serve_device};
use raceline_host::blocking::Host;
use raceline_host::{CommandError, HostConfig, HostError};
use raceline_proto::nvme::{NamespaceId, Status};
use raceline_target::NamespaceConfig;

/// Bound of everything that waits.
const LIMIT: Duration = Duration::from_secs(60);
/// Blocks that each thread has for itself.
const REGION: u64 = 1024;
const THREADS: u64 = 8;

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64).map(|index| (index / 3 + seed * 7).to_le_bytes()[0]).collect()
}

/// Waits until something holds; for what other threads bring about.
#[track_caller]
fn until(what: impl Fn() -> bool) {
    let start = Instant::now();
    while !what() {
        assert!(start.elapsed() < LIMIT, "it does not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn threads_that_wait_share_a_host() {
    let (target, address) = serve(any_port());
    let host = Host::connect(HostConfig { data_digest: HAS_DIGESTS, ..config(address) }).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let host = &host;
            scope.spawn(move || {
                let first = thread * REGION;
                for round in 0..40u64 {
                    // From one block to several commands.
                    let blocks = [1, 8, 300][usize::try_from(round % 3).unwrap()];
                    let data = pattern(blocks * BLOCK, thread * 100 + round);
                    let slba = first + round;
                    host.write(NS, slba, &data, round % 8 == 0).unwrap();
                    let mut back = vec![0; data.len()];
                    host.read(NS, slba, &mut back).unwrap();
                    assert!(back == data, "thread {thread}, round {round}");
                    host.compare(NS, slba, &data).unwrap();
                }
                host.flush(NS).unwrap();
                host.write_zeroes(NS, first, REGION, true).unwrap();
                host.deallocate(NS, &[(first, 8), (first + 16, 8)]).unwrap();
                let mut back = vec![1; BLOCK];
                host.read(NS, first + 40, &mut back).unwrap();
                assert_eq!(back, [0; BLOCK]);
            });
        }
    });
    host.disconnect();
    target.shutdown().unwrap();
}

#[test]
fn errors_name_the_command_and_a_call_leaves_nothing_behind() {
    let (target, address) = serve(any_port());
    let host = Host::connect(config(address)).unwrap();
    host.write(NS, 3, &[7; BLOCK], false).unwrap();
    let differs = host.compare(NS, 3, &[8; BLOCK]).unwrap_err();
    let HostError::Command(failure) = differs else { panic!("{differs}") };
    let CommandError::Status(status) = failure.error else { panic!("{failure}") };
    assert!(status.same_code(Status::COMPARE_FAILURE), "{failure}");
    assert!(failure.to_string().contains("LBA 3"), "{failure}");
    let beyond = host.write_zeroes(NS, u64::MAX, 2, false).unwrap_err();
    assert!(matches!(beyond, HostError::Invalid(_)), "{beyond}");
    assert!(matches!(host.flush(NamespaceId(9)), Err(HostError::Invalid(_))));
    drop(host);
    let admin_only = Host::connect(HostConfig { io_queues: 0, ..config(address) }).unwrap();
    assert!(matches!(admin_only.flush(NS), Err(HostError::Invalid(_))));
    assert!(admin_only.is_up());
    drop(admin_only);
    target.shutdown().unwrap();
}

#[test]
fn calls_wait_for_a_lost_target() {
    let device = memory();
    let (target, address) = serve_device(any_port(), device.clone());
    let host = Host::connect(config(address)).unwrap();
    host.write(NS, 5, &[5; BLOCK], false).unwrap();
    target.shutdown().unwrap();
    until(|| !host.is_up());
    let ended = AtomicU64::new(0);
    let target = std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut back = vec![0; BLOCK];
                host.read(NS, 5, &mut back).unwrap();
                assert_eq!(back, [5; BLOCK]);
                ended.fetch_add(1, Ordering::Relaxed);
            });
        }
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(ended.load(Ordering::Relaxed), 0, "nobody could have answered");
        let (target, again) = serve_device(address, device);
        assert_eq!(again, address);
        target
    });
    assert_eq!(ended.load(Ordering::Relaxed), 4);
    host.disconnect();
    target.shutdown().unwrap();
}

#[test]
fn a_namespace_is_used_as_soon_as_it_is_seen() {
    let (target, address) = serve(any_port());
    let host = Host::connect(config(address)).unwrap();
    let second = NamespaceId(2);
    assert!(matches!(host.write(second, 0, &[1; BLOCK], false), Err(HostError::Invalid(_))));
    let device = raceline_bdev::open(
        &"ram:1M".parse().unwrap(),
        &raceline_bdev::Identity::from_seed(b"second"),
    );
    target.add_namespace(&nqn(), NamespaceConfig::new(device.unwrap())).unwrap();
    until(|| host.namespace(second).is_some());
    host.write(second, 0, &[1; BLOCK], false).unwrap();
    host.disconnect();
    target.shutdown().unwrap();
}
