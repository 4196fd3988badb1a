//! Settings of kinds of devices that are not here, which every configuration that SPDK saves has.
//!
//! They are kept and given back, so that such a configuration is loaded as it is. What asks for
//! something to happen is refused.

use serde::{Deserialize, Serialize};

use crate::engine::ledger::{Entry, Section};
use crate::engine::options::option_key;
use crate::error::RpcError;
use crate::method::{Call, Registry, States};
use crate::params::refuse;

pub(super) fn register(registry: &mut Registry) {
    registry.change("bdev_virtio_blk_set_hotplug", States::Runtime, set_hotplug);
    registry.change("bdev_raid_set_options", States::Both, set_raid);
    registry.change("bdev_iscsi_set_options", States::Both, set_iscsi);
}

/// Watching for devices that are plugged in.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Hotplug {
    enable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    period_us: Option<u64>,
}

fn set_hotplug(call: &Call<'_>, params: Hotplug) -> Result<bool, RpcError> {
    refuse(&[("enable", params.enable)])?;
    keep(call, &params)
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Raid {
    #[serde(skip_serializing_if = "Option::is_none")]
    process_window_size_kb: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    process_max_bandwidth_mb_sec: Option<u32>,
}

fn set_raid(call: &Call<'_>, params: Raid) -> Result<bool, RpcError> {
    keep(call, &params)
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Iscsi {
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_sec: Option<u64>,
}

fn set_iscsi(call: &Call<'_>, params: Iscsi) -> Result<bool, RpcError> {
    keep(call, &params)
}

fn keep(call: &Call<'_>, params: &impl Serialize) -> Result<bool, RpcError> {
    call.engine.change(|change| {
        let entry = Entry::new(Section::Bdev, call.method, params)?;
        change.put(option_key(call.method), entry);
        Ok(true)
    })
}
