//! Daemons with discovery services and exports, on loopback.

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Kept, ok};

pub(crate) const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// How long a test waits for an expected state.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn nqn(name: &str) -> String {
    format!("nqn.2026-01.io.raceline:{name}")
}

pub(crate) fn address(port: u16) -> Value {
    let traddr = ip().to_string();
    json!({ "trtype": "tcp", "adrfam": "ipv4", "traddr": traddr, "trsvcid": port.to_string() })
}

/// Where the daemons of this process listen: nobody else takes their ports while they are down.
pub(crate) fn ip() -> Ipv4Addr {
    let [low, high, ..] = std::process::id().to_le_bytes();
    Ipv4Addr::new(127, 99, high, low.max(1))
}

/// A port that nobody else is given. Those that the kernel chooses are larger.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(4420);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A daemon with a discovery service on this port.
pub(crate) fn serve_discovery(dir: &Path, port: u16) -> Kept {
    let daemon = Kept::start(dir);
    ok(daemon.call("nvmf_create_transport", json!({ "trtype": "tcp" })));
    let listener = json!({ "nqn": DISCOVERY, "listen_address": address(port) });
    ok(daemon.call("nvmf_subsystem_add_listener", listener));
    daemon
}

/// Exports a subsystem with one namespace.
pub(crate) fn export(daemon: &Kept, name: &str, any_host: bool) {
    let listener = json!({ "nqn": nqn(name), "listen_address": address(0) });
    for (method, params) in [
        ("bdev_malloc_create", json!({ "name": name, "num_blocks": 64, "block_size": 512 })),
        ("nvmf_create_subsystem", json!({ "nqn": nqn(name), "allow_any_host": any_host })),
        ("nvmf_subsystem_add_ns", json!({ "nqn": nqn(name), "namespace": { "bdev_name": name } })),
        ("nvmf_subsystem_add_listener", listener),
    ] {
        ok(daemon.call(method, params));
    }
}

pub(crate) fn wait(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
