//! The methods, one file for each family of SPDK's.

pub(crate) mod bdev;
mod framework;
mod notify;
mod nvmf;
mod rpc;

use crate::method::Registry;

/// Registers all of them.
pub(crate) fn register(registry: &mut Registry) {
    rpc::register(registry);
    framework::register(registry);
    notify::register(registry);
    bdev::register(registry);
    nvmf::register(registry);
}
