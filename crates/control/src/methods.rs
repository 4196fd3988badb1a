//! The methods, one file for each family of SPDK's.

mod accel;
mod activity;
mod bdev;
mod cpu;
mod disk;
mod events;
mod framework;
mod history;
mod iobuf;
mod iscsi;
mod kept;
mod keyring;
mod log;
mod nbd;
mod notify;
mod nvmf;
mod qos;
mod replay;
mod rpc;
mod scheduler;
mod sock;
mod thread;
mod ublk;
mod vhost;

pub use disk::{GET_DISK, ServedDisk};

use crate::error::RpcError;
use crate::method::Registry;

impl Registry {
    /// Every method that this program has.
    #[must_use]
    pub fn new() -> Self {
        let mut registry = Self::default();
        for register in [
            rpc::register,
            framework::register,
            log::register,
            history::register,
            notify::register,
            events::register,
            activity::register,
            keyring::register,
            bdev::register,
            nvmf::register,
            iscsi::register,
            vhost::register,
            ublk::register,
            nbd::register,
            qos::register,
            accel::register,
            iobuf::register,
            sock::register,
            thread::register,
            cpu::register,
            scheduler::register,
            kept::register,
        ] {
            register(&mut registry);
        }
        registry
    }
}

/// Checks that the sandbox lets this process use multicast DNS.
fn check_mdns() -> Result<(), RpcError> {
    raceline_mdns::check_access().map_err(|error| {
        let remedy = "a daemon in a sandbox may only if it was started with --mdns";
        RpcError::errno(libc::EPERM).because(format!("{error}; {remedy}"))
    })
}
