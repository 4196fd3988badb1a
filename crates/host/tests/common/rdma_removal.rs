//! A device of the host that goes away and comes back: who used it goes on by another path or waits, and nobody else notices.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use raceline_host::blocking::Host;
use raceline_host::{
    BackoffConfig, CommandError, HostConfig, HostError, PathAddress, RdmaDevices, Transport,
};
use raceline_proto::nvme::NamespaceId;
use raceline_rdma::WaitingDevice;
use raceline_rdma::fake::{Network, NetworkConfig, Profile};
use raceline_rdma::verbs::ProviderError;

use super::common::config;
use super::rdma_target::{BLOCK, Served};
use super::served;

const NS: NamespaceId = NamespaceId(1);
const LIMIT: Duration = Duration::from_secs(60);

/// An adapter: each core has opened it for itself, and loses it with all others.
#[derive(Debug)]
struct Adapter {
    network: Network,
    is_away: AtomicBool,
    opened: Mutex<Vec<usize>>,
    /// Times that it was asked for while it was away.
    misses: AtomicUsize,
}

impl Adapter {
    fn new(network: &Network) -> Arc<Self> {
        Arc::new(Self {
            network: network.clone(),
            is_away: AtomicBool::new(false),
            opened: Mutex::default(),
            misses: AtomicUsize::new(0),
        })
    }

    fn remove(&self) {
        let mut opened = self.opened.lock().unwrap();
        self.is_away.store(true, Ordering::Relaxed);
        opened.drain(..).for_each(|number| self.network.remove_numbered(number));
    }

    fn come_back(&self) {
        self.is_away.store(false, Ordering::Relaxed);
    }
}

impl RdmaDevices for Adapter {
    fn open(
        &self,
        _: SocketAddr,
        _: Option<IpAddr>,
        _: u32,
    ) -> Result<Box<dyn WaitingDevice>, ProviderError> {
        let mut opened = self.opened.lock().unwrap();
        if self.is_away.load(Ordering::Relaxed) {
            self.misses.fetch_add(1, Ordering::Relaxed);
            let why = "no RDMA device has a route to the target".to_owned();
            return Err(ProviderError::new("opening", why));
        }
        let device = self.network.add_device();
        opened.push(device.number());
        Ok(Box::new(device))
    }
}

fn over(adapter: &Arc<Adapter>) -> HostConfig {
    let backoff = BackoffConfig {
        first: Duration::from_millis(5),
        longest: Duration::from_millis(20),
        ..BackoffConfig::default()
    };
    HostConfig {
        transport: Transport::Rdma,
        rdma_devices: Arc::clone(adapter) as _,
        backoff,
        io_queues: 2,
        ..config()
    }
}

fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Writes and reads blocks from this one on.
fn works(host: &Host, slba: u64, byte: u8) {
    for blocks in [1, 9, 300] {
        let data = vec![byte; blocks * BLOCK];
        host.write(NS, slba, &data, false).unwrap();
        let mut back = vec![0; data.len()];
        host.read(NS, slba, &mut back).unwrap();
        assert!(back == data, "{blocks} blocks");
    }
}

#[test]
fn a_device_that_goes_under_io_costs_its_own_queues_only() {
    for profile in [Profile::Roce, Profile::Iwarp] {
        let served = Served::start(NetworkConfig { profile, ..NetworkConfig::default() });
        let (adapter, other) = (Adapter::new(&served.network), Adapter::new(&served.network));
        // The small target has one association with I/O queues at a time: the bystander has an admin queue.
        let bystander = Host::connect(HostConfig { io_queues: 0, ..over(&other) }).unwrap();
        let host = Host::connect(over(&adapter)).unwrap();
        works(&host, 5, 1);
        for round in 0..3u8 {
            served.shared.holds_io.store(true, Ordering::Relaxed);
            let before = served.seen();
            std::thread::scope(|scope| {
                let read = scope.spawn(|| {
                    let mut back = vec![0; 300 * BLOCK];
                    host.read(NS, 5, &mut back).map(|()| back)
                });
                let write = scope.spawn(|| host.write(NS, 2000, &[1; 20 * BLOCK], false));
                wait_for("the commands come", || served.seen().io.len() >= before.io.len() + 3);
                served.shared.holds_io.store(false, Ordering::Relaxed);
                adapter.remove();
                let error = write.join().unwrap().unwrap_err();
                let HostError::Command(failure) = error else { panic!("{error}") };
                assert_eq!(failure.error, CommandError::UnknownFate);
                let misses = adapter.misses.load(Ordering::Relaxed);
                wait_for("the host asks again and again for a device", || {
                    adapter.misses.load(Ordering::Relaxed) > misses + 3
                });
                assert_eq!(bystander.identify(1, NamespaceId(0)).unwrap().len(), 4096);
                assert!(bystander.is_up() && !host.is_up());
                adapter.come_back();
                // The read has waited, and is sent again.
                assert!(read.join().unwrap().unwrap() == vec![round + 1; 300 * BLOCK]);
            });
            assert!(served.seen().connects > before.connects);
            works(&host, 5, round + 2);
        }
        assert!(bystander.is_up());
        host.disconnect();
        bystander.disconnect();
        served.finish();
    }
}

#[test]
fn a_host_can_end_while_its_device_is_away() {
    let served = Served::start(NetworkConfig::default());
    let adapter = Adapter::new(&served.network);
    let host = Host::connect(over(&adapter)).unwrap();
    works(&host, 5, 1);
    adapter.remove();
    wait_for("the loss", || !host.is_up());
    host.disconnect();
    let error = Host::connect(over(&adapter)).unwrap_err().to_string();
    assert!(error.contains("no RDMA device has a route"), "{error}");
    served.finish();
}

/// Each target has data of its own, so that the data tell the path.
#[test]
fn a_path_over_tcp_takes_over_from_a_device_that_is_gone() {
    let (target, tcp) = served::serve(served::any_port());
    let plain = served::config(tcp);
    let known = Host::connect(plain.clone()).unwrap();
    let pages = [0, 3].map(|cns| known.identify(cns, NS).unwrap());
    known.write(NS, 0, &[0x22; BLOCK], false).unwrap();
    known.disconnect();
    let served = Served::start(NetworkConfig::default());
    *served.shared.namespace.lock().unwrap() = Some(pages);
    let adapter = Adapter::new(&served.network);
    let over = over(&adapter);
    let more_paths = vec![PathAddress { address: tcp, source: None, transport: Transport::Tcp }];
    let host = Host::connect(HostConfig {
        address: over.address,
        transport: over.transport,
        rdma_devices: over.rdma_devices,
        backoff: over.backoff,
        more_paths,
        ..plain
    })
    .unwrap();
    let read = || {
        let mut data = [0; BLOCK];
        host.read(NS, 0, &mut data).map(|()| data[0])
    };
    wait_for("the first path is up", || {
        read().unwrap();
        !served.seen().io.is_empty()
    });
    host.write(NS, 0, &[0x11; BLOCK], false).unwrap();
    for _ in 0..3 {
        adapter.remove();
        // No read fails meanwhile.
        wait_for("reads go over TCP", || read().unwrap() == 0x22);
        adapter.come_back();
        wait_for("the first path is back", || read().unwrap() == 0x11);
    }
    host.disconnect();
    served.finish();
    target.shutdown().unwrap();
}
