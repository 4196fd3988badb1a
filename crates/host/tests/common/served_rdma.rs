//! As `served.rs`, over RDMA on a simulated network: the target of ours listens there, and hosts connect by it. A second path
//! is one over TCP.

#![allow(clippy::unwrap_used, unreachable_pub, reason = "a test fails by panicking")]
#![allow(dead_code, unused_imports, unused_macros, reason = "not every test uses all")]

#[path = "../../../target/tests/common/profile.rs"]
mod profile;
#[path = "served.rs"]
mod tcp;

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use raceline_bdev::SharedBdev;
use raceline_host::{HostConfig, PathAddress, RdmaDevices, Transport};
use raceline_rdma::WaitingDevice;
use raceline_rdma::fake::{Network, NetworkConfig};
use raceline_rdma::verbs::ProviderError;
use raceline_target::{Entrance, RdmaConfig, RdmaStreams, Target};

pub use tcp::{BLOCK, NS, config as tcp_config, memory, nqn, serve_with, small};

/// RDMA has no digests.
pub const HAS_DIGESTS: bool = false;

/// What has no meaning over RDMA: the bytes and the sockets of a connection.
macro_rules! tcp_only {
    ($($item:item)*) => {};
}

/// Ports of listeners over RDMA: no socket of TCP gets one of them by itself.
const FIRST_PORT: u16 = 10_000;
const LAST_PORT: u16 = 20_000;

static PORTS: AtomicU16 = AtomicU16::new(FIRST_PORT);

/// One network for the whole program, which moves by itself.
static NETWORK: LazyLock<Network> = LazyLock::new(|| {
    let profile = profile::of_environment();
    let network = Network::new(NetworkConfig { profile, ..NetworkConfig::default() });
    let moved = network.clone();
    std::thread::spawn(move || {
        loop {
            if !moved.step() {
                std::thread::sleep(Duration::from_micros(50));
            }
            let misuses = moved.misuses();
            assert!(misuses.is_empty(), "{misuses:?}");
        }
    });
    network
});

static STREAMS: LazyLock<Arc<RdmaStreams>> = LazyLock::new(|| {
    let open = |_| Ok(Box::new(NETWORK.add_device()) as _);
    Arc::new(RdmaStreams::over(RdmaConfig::of(&small()), open))
});

/// Each core of a host gets a new device of the network for each target.
#[derive(Debug)]
struct Devices;

impl RdmaDevices for Devices {
    fn open(
        &self,
        _: SocketAddr,
        _: Option<IpAddr>,
        _: u32,
    ) -> Result<Box<dyn WaitingDevice>, ProviderError> {
        Ok(Box::new(NETWORK.add_device()))
    }
}

/// The network of the program.
pub fn network() -> &'static Network {
    &NETWORK
}

pub fn any_port() -> SocketAddr {
    let port = PORTS.fetch_add(1, Ordering::Relaxed);
    assert!(port < LAST_PORT, "no port is left");
    SocketAddr::new([127, 0, 0, 1].into(), port)
}

/// Listens for hosts over the transport that has this address.
pub fn listen(target: &Target, address: SocketAddr) -> SocketAddr {
    if (FIRST_PORT..LAST_PORT).contains(&address.port()) {
        let entrance =
            Entrance { streams: Some(Arc::clone(&*STREAMS) as _), ..Entrance::default() };
        return target.add_listener_with(address, entrance).unwrap();
    }
    target.add_listener(address).unwrap()
}

/// Another path, which is one over TCP.
pub fn second_path(target: &Target) -> PathAddress {
    let address = listen(target, tcp::any_port());
    PathAddress { address, source: None, transport: Transport::Tcp }
}

/// New memory at this address.
pub fn serve(address: SocketAddr) -> (Target, SocketAddr) {
    serve_device(address, memory())
}

pub fn serve_device(address: SocketAddr, device: SharedBdev) -> (Target, SocketAddr) {
    let target = serve_with(small(), device);
    let address = listen(&target, address);
    (target, address)
}

/// Two I/O queues, and not long until a lost target is tried again.
pub fn config(address: SocketAddr) -> HostConfig {
    HostConfig {
        transport: Transport::Rdma,
        rdma_devices: Arc::new(Devices),
        ..tcp::config(address)
    }
}
