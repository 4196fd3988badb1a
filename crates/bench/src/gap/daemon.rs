//! `raceline serve` in this process: a daemon that starts from a configuration file, as users start it.

use std::fs::DirBuilder;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use raceline_control::daemon::{Daemon, DaemonConfig};
use raceline_reactor::{Backend, HugePages, Mode};
use raceline_target::TargetConfig;
use serde_json::{Value, json};

use super::product::{SUBSYSTEM, target_config};
use super::{Case, GapConfig, GapError};

/// Name and blocks of the device.
const DEVICE: &str = "Gap";
const BLOCK_BYTES: usize = 512;

/// A running daemon.
pub(super) struct Served {
    daemon: Daemon,
    /// The address for hosts.
    pub(super) address: SocketAddr,
    /// Its socket and its configuration; removed after the daemon has ended.
    _folder: Folder,
}

impl Served {
    /// Starts the daemon with an empty namespace that can serve these cases.
    pub(super) fn start(config: &GapConfig, cases: &[Case]) -> Result<Self, GapError> {
        let target = target_config(config, cases);
        check(config, &target)?;
        let failed = |error: std::io::Error| GapError::Daemon(error.to_string());
        let folder = Folder::new().map_err(failed)?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        // The daemon needs the number of a free port.
        drop(listener);
        let file = folder.0.join("serve.json");
        let text = configuration(config, &target, address).to_string();
        std::fs::write(&file, text).map_err(failed)?;
        let daemon = Daemon::start(DaemonConfig {
            socket: folder.0.join("rpc.sock"),
            cores: target.cores,
            config: Some(file),
            ..DaemonConfig::default()
        });
        let daemon = daemon.map_err(|error| GapError::Daemon(error.to_string()))?;
        Ok(Self { daemon, address, _folder: folder })
    }

    /// Changes what its cores do when they are idle.
    pub(super) fn set_mode(&self, mode: Mode) {
        self.daemon.manager().cores().iter().for_each(|target| target.set_mode(mode));
    }

    /// Ends it.
    pub(super) fn stop(self) -> Result<(), GapError> {
        self.daemon.stop().map_err(|error| GapError::Daemon(error.to_string()))
    }
}

/// Refuses settings that a daemon cannot have; the error says what to do.
fn check(config: &GapConfig, target: &TargetConfig) -> Result<(), GapError> {
    let invalid = |what: &str| {
        Err(GapError::Invalid(format!("raceline serve {what}: measure with --target export")))
    };
    if config.backend == Backend::Epoll {
        return invalid("chooses io_uring or epoll by itself, or takes io_uring");
    }
    if config.pages == HugePages::None && !config.null {
        return invalid("has no memory in plain pages");
    }
    let most = TargetConfig::default().pre_connect.per_source;
    if target.pre_connect.per_source > most {
        return invalid(&format!("lets one address connect {most} sockets at once"));
    }
    Ok(())
}

/// The configuration in SPDK's form. The transport has the limits of `raceline export`, so that the two
/// differ only in what a daemon does.
fn configuration(config: &GapConfig, target: &TargetConfig, address: SocketAddr) -> Value {
    let call = |method: &str, params: Value| json!({"method": method, "params": params});
    let mut sockets = Vec::new();
    if config.backend == Backend::Uring {
        sockets.push(call("sock_set_default_impl", json!({"impl_name": "uring"})));
    }
    let block_count = config.memory_bytes / BLOCK_BYTES;
    let mut device = json!({"name": DEVICE, "num_blocks": block_count, "block_size": BLOCK_BYTES});
    if config.pages == HugePages::Explicit && !config.null {
        device["hugepages"] = true.into();
    }
    let create = if config.null { "bdev_null_create" } else { "bdev_malloc_create" };
    let transport = json!({
        "trtype": "TCP",
        "max_io_size": target.max_io_bytes,
        "in_capsule_data_size": target.in_capsule_bytes,
        "max_queue_depth": target.max_queue_entries - 1,
        "max_io_qpairs_per_ctrlr": target.max_io_queues,
    });
    let subsystem = json!({"nqn": SUBSYSTEM, "allow_any_host": true, "serial_number": "RLGAP"});
    let namespace = json!({"nsid": 1, "bdev_name": DEVICE});
    let listen = json!({
        "trtype": "TCP", "adrfam": "IPv4", "traddr": address.ip().to_string(),
        "trsvcid": address.port().to_string(),
    });
    json!({"subsystems": [
        {"subsystem": "sock", "config": sockets},
        {"subsystem": "bdev", "config": [call(create, device)]},
        {"subsystem": "nvmf", "config": [
            call("nvmf_create_transport", transport),
            call("nvmf_create_subsystem", subsystem),
            call("nvmf_subsystem_add_ns", json!({"nqn": SUBSYSTEM, "namespace": namespace})),
            call("nvmf_subsystem_add_listener", json!({"nqn": SUBSYSTEM, "listen_address": listen})),
        ]},
    ]})
}

/// A folder for this process alone, with a short path, as a socket needs it.
struct Folder(PathBuf);

impl Folder {
    fn new() -> std::io::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("raceline-gap-{}-{number}", std::process::id());
        let path: &Path = &std::env::temp_dir().join(name);
        DirBuilder::new().mode(0o700).create(path)?;
        Ok(Self(path.to_owned()))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A leftover is small, and a destructor cannot report an error.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
