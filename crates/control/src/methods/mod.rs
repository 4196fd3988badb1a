//! The methods, one file for each family of SPDK's.

mod accel;
pub(crate) mod bdev;
mod cpu;
mod framework;
mod iobuf;
mod kept;
mod log;
mod notify;
mod nvmf;
mod rpc;
mod scheduler;
mod sock;
mod thread;

use crate::method::Registry;

/// Registers all of them.
pub(crate) fn register(registry: &mut Registry) {
    rpc::register(registry);
    framework::register(registry);
    log::register(registry);
    notify::register(registry);
    bdev::register(registry);
    nvmf::register(registry);
    accel::register(registry);
    iobuf::register(registry);
    sock::register(registry);
    thread::register(registry);
    cpu::register(registry);
    scheduler::register(registry);
    kept::register(registry);
}
