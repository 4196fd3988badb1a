//! `bdev_*` of all devices: names and descriptions.

mod malloc;

use raceline_bdev::{BdevInfo, OpenError};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::engine::bdevs::Entry;
use crate::error::RpcError;
use crate::method::{Call, Registry, States};

pub(super) fn register(registry: &mut Registry) {
    registry.read("bdev_get_bdevs", States::Runtime, get_bdevs);
    registry.alias("get_bdevs", "bdev_get_bdevs");
    malloc::register(registry);
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GetBdevs {
    name: Option<String>,
    /// How long to wait for the device, in milliseconds.
    timeout: Option<u64>,
}

fn get_bdevs(call: &Call<'_>, params: GetBdevs) -> Result<Vec<Value>, RpcError> {
    let Some(name) = params.name else {
        return Ok(call.engine.model().bdevs.iter().map(describe).collect());
    };
    let found = call.engine.wait_bdev(&name, params.timeout.unwrap_or(0), describe);
    found.map(|bdev| vec![bdev]).ok_or_else(|| {
        RpcError::errno(libc::ENODEV).because(format!("there is no device `{name}`"))
    })
}

/// A device as SPDK describes it.
fn describe(bdev: &Entry) -> Value {
    let info = bdev.info();
    let claimed = bdev.claim.is_some();
    let mut text = json!({
        "name": bdev.name,
        "aliases": aliases(bdev),
        "product_name": bdev.product_name,
        "block_size": info.block_size,
        "num_blocks": info.block_count,
        "uuid": bdev.uuid,
        "numa_id": -1,
        "assigned_rate_limits": {
            "rw_ios_per_sec": 0,
            "rw_mbytes_per_sec": 0,
            "r_mbytes_per_sec": 0,
            "w_mbytes_per_sec": 0,
        },
        "claimed": claimed,
        "zoned": false,
        "supported_io_types": io_types(&info),
        "driver_specific": bdev.details.driver_specific(),
    });
    if let (Some(claim), Some(object)) = (&bdev.claim, text.as_object_mut()) {
        object.insert("claim_type".to_owned(), "exclusive_write".into());
        object.insert("claimed_by".to_owned(), claim.module().into());
    }
    text
}

/// SPDK lists the UUID among the aliases.
fn aliases(bdev: &Entry) -> Vec<String> {
    let mut aliases = bdev.aliases.clone();
    aliases.push(bdev.uuid.to_string());
    aliases
}

fn io_types(info: &BdevInfo) -> Value {
    let writable = !info.read_only;
    json!({
        "read": true,
        "write": writable,
        "unmap": info.deallocate,
        "flush": true,
        "reset": false,
        "nvme_admin": false,
        "nvme_io": false,
        "nvme_io_md": false,
        "write_zeroes": writable,
        "zcopy": false,
        "get_zone_info": false,
        "zone_management": false,
        "zone_append": false,
        "compare": false,
        "compare_and_write": false,
        "abort": false,
        "seek_hole": false,
        "seek_data": false,
        "copy": false,
        "nvme_iov_md": false,
    })
}

/// What SPDK answers when a device cannot be opened.
pub(super) fn open_failed(error: OpenError) -> RpcError {
    crate::engine::EngineError::from(error).into()
}

/// Deletes a device that this module has made; SPDK says "No such device" to any other.
pub(super) fn delete(call: &Call<'_>, name: &str, module: &str) -> Result<bool, RpcError> {
    call.engine.change(|change| {
        let found = change.model().bdevs.find(name).is_some_and(|bdev| bdev.module == module);
        if !found {
            let detail = format!("there is no {module} device `{name}`");
            return Err(RpcError::errno(libc::ENODEV).because(detail));
        }
        change.remove_bdev(name)?;
        Ok(true)
    })
}
