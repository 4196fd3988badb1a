//! The network loses one connection of a controller, and its others stay: the host connects the controller anew, and no
//! command is lost.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use raceline_host::blocking::Host;
use raceline_host::{CommandError, HostConfig, HostError, RdmaDevices};
use raceline_rdma::WaitingDevice;
use raceline_rdma::verbs::ProviderError;
use raceline_target::Target;

use crate::served::{self, BLOCK, NS, any_port, config, network, nqn, second_path, serve};

const LIMIT: Duration = Duration::from_secs(60);
/// Threads that write and read, each with a region of its own.
const THREADS: usize = 4;
/// Blocks of a region, and of the largest write.
const REGION: u64 = 64;
/// The queues that are lost, one after the other.
const LOST: [u16; 5] = [1, 2, 1, 0, 2];

/// Each queue has a device with an address of its own, by which the target's list of queues tells them apart.
#[derive(Debug, Default)]
struct Devices {
    opened: Mutex<Vec<(IpAddr, usize)>>,
    places: AtomicU16,
}

impl RdmaDevices for Devices {
    /// No two queues have the same, so none shares a device.
    fn place(&self, _: SocketAddr, _: Option<IpAddr>) -> Result<SocketAddr, ProviderError> {
        Ok(SocketAddr::new([10, 77, 0, 0].into(), self.places.fetch_add(1, Ordering::Relaxed)))
    }

    fn open(
        &self,
        _: SocketAddr,
        _: Option<IpAddr>,
        _: u32,
    ) -> Result<Box<dyn WaitingDevice>, ProviderError> {
        let mut opened = self.opened.lock().unwrap();
        let mut device = network().add_device();
        let [low, high, ..] = opened.len().to_le_bytes();
        let address = IpAddr::from([10, 77, high, low]);
        device.set_address(address);
        opened.push((address, device.number()));
        Ok(Box::new(device))
    }
}

/// The connections over RDMA that the target has.
fn peers(target: &Target) -> BTreeSet<(u16, SocketAddr)> {
    let queues = target.queues(&nqn()).into_iter().filter(|queue| queue.is_rdma);
    queues.map(|queue| (queue.qid.0, queue.peer)).collect()
}

impl Devices {
    /// Has the network lose this queue.
    fn cut(&self, target: &Target, qid: u16) {
        let (_, peer) = peers(target).into_iter().find(|(of, _)| *of == qid).unwrap();
        let opened = self.opened.lock().unwrap();
        let (_, number) = opened.iter().find(|(address, _)| *address == peer.ip()).unwrap();
        network().cut_numbered(*number);
    }
}

fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Ends the work also when the test fails.
struct End<'a>(&'a Work);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

/// What the threads have done.
#[derive(Default)]
struct Work {
    is_over: AtomicBool,
    rounds: [AtomicU64; THREADS],
    /// Writes of which nobody knows whether they were executed.
    unknown: AtomicU64,
}

impl Work {
    /// Writes and reads until it is over. Reads never fail.
    fn work(&self, host: &Host, thread: usize) {
        let region = thread as u64 * REGION;
        let mut round = 0;
        while !self.is_over.load(Ordering::Relaxed) {
            round += 1;
            let blocks = [1, 9, REGION][usize::try_from(round % 3).unwrap()];
            let byte = |at: usize| (at as u64 / 7 + round * 3 + region).to_le_bytes()[0];
            let data: Vec<u8> = (0..usize::try_from(blocks).unwrap() * BLOCK).map(byte).collect();
            let start = Instant::now();
            while let Err(error) = host.write(NS, region, &data, false) {
                let HostError::Command(failure) = error else { panic!("{error}") };
                assert_eq!(failure.error, CommandError::UnknownFate);
                self.unknown.fetch_add(1, Ordering::Relaxed);
                assert!(start.elapsed() < LIMIT);
            }
            let mut back = vec![0; data.len()];
            host.read(NS, region, &mut back).unwrap();
            assert!(back == data, "round {round} of thread {thread}");
            self.rounds[thread].store(round, Ordering::Relaxed);
        }
    }

    /// Waits until each thread has done something more.
    fn goes_on(&self) {
        let rounds = || self.rounds.iter().map(|rounds| rounds.load(Ordering::Relaxed));
        let before: Vec<_> = rounds().collect();
        wait_for("all threads go on", || rounds().zip(&before).all(|(now, then)| now > then + 2));
    }
}

/// Loses one queue after the other under I/O; gives the number of writes of which nobody knows whether they were executed.
fn lose_queues(target: &Target, over: HostConfig) -> u64 {
    let devices = Arc::new(Devices::default());
    let rdma_devices = Arc::clone(&devices) as _;
    let host = Host::connect(HostConfig { rdma_devices, ..over }).unwrap();
    let work = Work::default();
    std::thread::scope(|scope| {
        let _end = End(&work);
        for thread in 0..THREADS {
            let (work, host) = (&work, &host);
            scope.spawn(move || work.work(host, thread));
        }
        for qid in LOST {
            wait_for("all queues are there", || peers(target).len() == 3);
            work.goes_on();
            let before = peers(target);
            devices.cut(target, qid);
            // All queues of the controller are new, and none of the others is left.
            wait_for("the controller is new", || {
                let now = peers(target);
                now.len() == 3 && now.is_disjoint(&before)
            });
            work.goes_on();
        }
    });
    host.disconnect();
    wait_for("the target has nothing left", || {
        let stats = target.stats();
        stats.controllers == 0 && stats.connections.iter().all(|count| *count == 0)
    });
    work.unknown.into_inner()
}

#[test]
fn a_queue_that_is_lost_alone_costs_its_controller_and_no_read() {
    let (target, address) = serve(any_port());
    let unknown = lose_queues(&target, config(address));
    let most = THREADS * LOST.len();
    assert!(unknown <= most as u64, "{unknown} writes: each thread has one under way");
    target.shutdown().unwrap();
}

#[test]
fn with_another_path_a_queue_that_is_lost_alone_costs_no_command() {
    let target = served::serve_with(served::small(), served::memory());
    let address = served::listen(&target, any_port());
    let more_paths = vec![second_path(&target)];
    let unknown = lose_queues(&target, HostConfig { more_paths, ..config(address) });
    assert_eq!(unknown, 0, "writes are held back until the lost controller cannot execute them");
    target.shutdown().unwrap();
}
