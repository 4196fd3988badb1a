//! `bdev_set_options` and examining: devices that wait for the device on which they stand.

use serde::{Deserialize, Serialize};

use super::stacked;
use crate::error::{RpcError, code};
use crate::manager::catalogue::{self, Key, Section};
use crate::manager::{Change, Model};
use crate::method::{Call, Registry, States};
use crate::params::NoParams;

/// SPDK's defaults.
const POOL_SIZE: u32 = 65_535;
const CACHE_SIZE: u32 = 256;

pub(super) fn register(registry: &mut Registry) {
    registry.change("bdev_set_options", States::Startup, set_options);
    registry.alias("set_bdev_options", "bdev_set_options");
    registry.change("bdev_examine", States::Runtime, examine);
    registry.read("bdev_wait_for_examine", States::Runtime, wait_for_examine);
}

/// Sizes of pools that this program does not have, because requests are allocated with their queues. The
/// options are kept for clients that ask for them, without effect.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SetOptions {
    bdev_io_pool_size: Option<u32>,
    bdev_io_cache_size: Option<u32>,
    bdev_auto_examine: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    iobuf_small_cache_size: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    iobuf_large_cache_size: Option<u32>,
    #[serde(default, rename = "small_buf_pool_size", skip_serializing)]
    _small_buf_pool_size: u32,
    #[serde(default, rename = "large_buf_pool_size", skip_serializing)]
    _large_buf_pool_size: u32,
}

fn set_options(call: &Call<'_>, params: SetOptions) -> Result<bool, RpcError> {
    let pool = params.bdev_io_pool_size.unwrap_or(POOL_SIZE);
    let cache = params.bdev_io_cache_size.unwrap_or(CACHE_SIZE);
    if pool < cache.saturating_mul(2) {
        let text = format!("Pool size {pool} too small for cache size {cache}");
        return Err(RpcError::new(code::INVALID_PARAMS, text));
    }
    call.manager.change(|change| {
        let canonical = SetOptions {
            bdev_io_pool_size: Some(pool),
            bdev_io_cache_size: Some(cache),
            bdev_auto_examine: Some(params.bdev_auto_examine.unwrap_or(true)),
            ..params
        };
        let entry = catalogue::Entry::new(Section::Bdev, "bdev_set_options", &canonical)?;
        change.put(options_key(), entry);
        Ok(true)
    })
}

fn options_key() -> Key {
    Key::new(&["bdev-options"])
}

fn examines_unasked(model: &Model) -> bool {
    let options = model.catalogue.get(&options_key());
    options.is_none_or(|entry| entry.params["bdev_auto_examine"] != false)
}

/// Makes the devices that stand on a new device, unless clients want to choose the order.
pub(crate) fn examine_unasked(change: &mut Change<'_>, name: &str) {
    let wanted = examines_unasked(&change.model());
    if wanted {
        stacked::examine(change, name);
    }
}

fn examine(call: &Call<'_>, super::Name { name }: super::Name) -> Result<bool, RpcError> {
    if examines_unasked(&call.manager.model()) {
        let detail = "devices are examined when they come, unless bdev_auto_examine is false";
        return Err(RpcError::errno(libc::EINVAL).because(detail));
    }
    call.manager.change(|change| {
        stacked::examine(change, &name);
        Ok::<_, RpcError>(true)
    })
}

/// Nothing to wait for: a device is examined before the call that made it answers.
fn wait_for_examine(_call: &Call<'_>, _params: NoParams) -> Result<bool, RpcError> {
    Ok(true)
}
