//! A target of ours with one namespace, on loopback, and a host for it: for tests of host and C library
//! that name this file as a module.

#![allow(
    clippy::unwrap_used,
    dead_code,
    unreachable_pub,
    reason = "a test fails by panicking; not every test uses all"
)]

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use raceline_bdev::{Identity, SharedBdev};
use raceline_host::{BackoffConfig, HostConfig, PathAddress, Transport};
use raceline_proto::nvme::{HostId, NamespaceId, Nqn};
use raceline_reactor::Mode;
use raceline_target::{NamespaceConfig, SubsystemConfig, Target, TargetConfig};

pub const NQN: &str = "nqn.2026-01.io.raceline:served";
pub const NS: NamespaceId = NamespaceId(1);
pub const BLOCK: usize = 512;

pub const HAS_DIGESTS: bool = true;

/// What has no meaning over RDMA: the bytes and the sockets of a connection.
#[allow(unused_macros, reason = "not every test uses all")]
macro_rules! tcp_only {
    ($($item:item)*) => { $($item)* };
}

pub fn nqn() -> Nqn {
    Nqn::new(NQN).unwrap()
}

/// An address of the caller's own: nobody else takes its port while nobody listens there.
pub fn any_port() -> SocketAddr {
    static COUNT: AtomicU8 = AtomicU8::new(1);
    let [low, high, ..] = std::process::id().to_le_bytes();
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    assert!(count > 0, "a process has 255 of them");
    SocketAddr::from(([127, count, high, low.max(1)], 0))
}

/// 16 MiB of memory in blocks of [`BLOCK`]; always the same namespace.
pub fn memory() -> SharedBdev {
    raceline_bdev::open(&"ram:16M".parse().unwrap(), &Identity::from_seed(b"served")).unwrap()
}

pub fn listen(target: &Target, address: SocketAddr) -> SocketAddr {
    Target::listen_after_restart(|| target.add_listener(address)).unwrap()
}

/// Another path to the same.
pub fn second_path(target: &Target) -> PathAddress {
    let address = listen(target, any_port());
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

/// One core that sleeps when idle, and few buffers.
pub fn small() -> TargetConfig {
    TargetConfig {
        cores: vec![0],
        mode: Mode::Interrupt,
        max_io_bytes: 128 << 10,
        large_buffers_per_core: 16,
        small_buffers_per_core: 64,
        ..TargetConfig::default()
    }
}

/// A target that does not listen yet.
pub fn serve_with(config: TargetConfig, device: SharedBdev) -> Target {
    let target = Target::start(config).unwrap();
    target.add_subsystem(SubsystemConfig::new(nqn())).unwrap();
    target.add_namespace(&nqn(), NamespaceConfig::new(device)).unwrap();
    target
}

/// Two I/O queues, and not long until a lost target is tried again.
pub fn config(address: SocketAddr) -> HostConfig {
    let hostnqn = Nqn::new("nqn.2026-01.io.raceline:host").unwrap();
    HostConfig {
        io_queues: 2,
        backoff: BackoffConfig {
            first: Duration::from_millis(20),
            longest: Duration::from_millis(100),
            ..BackoffConfig::default()
        },
        ..HostConfig::new(address, nqn(), hostnqn, HostId([6; 16]))
    }
}
