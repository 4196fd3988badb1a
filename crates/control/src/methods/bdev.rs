//! `bdev_*` of all devices: names and descriptions.

mod delay;
mod disk;
mod error;
mod iscsi;
mod malloc;
mod null;
mod nvme;
mod options;
mod passthru;
mod split;
mod stacked;
mod statistics;

pub(super) use nvme::{describe_paths, discovery_host, keys};
use std::time::Duration;

use raceline_bdev::{
    BdevInfo, BlockSize, DeviceSpec, MAX_PHYSICAL_BLOCK_BYTES, MAX_WRAPPER_LEVELS, SharedBdev,
};
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::error::RpcError;
use crate::manager::bdevs::Entry;
use crate::manager::bdevs::Plain;
use crate::manager::missing::Missing;
use crate::manager::qos::rates;
use crate::manager::{Change, ManagerError, catalogue};
use crate::method::{Call, Registry, States};
use crate::params::NoParams;
pub(super) use options::examine_unasked;
pub(super) use statistics::describe_histogram;

/// How long a client may wait for a device: each wait occupies a thread.
const MAX_WAIT: Duration = Duration::from_secs(600);

pub(super) fn register(registry: &mut Registry) {
    registry.read("bdev_get_bdevs", States::Runtime, get_bdevs);
    registry.alias("get_bdevs", "bdev_get_bdevs");
    registry.read("bdev_get_missing", States::Runtime, get_missing);
    for register in [
        malloc::register,
        null::register,
        disk::register,
        passthru::register,
        split::register,
        delay::register,
        error::register,
        statistics::register,
        options::register,
        nvme::register,
        iscsi::register,
    ] {
        register(registry);
    }
}

/// The parameters of many methods.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Name {
    name: String,
}

/// Lets a number be left out of JSON if it is 0.
trait Zero {
    fn is_zero(&self) -> bool;
}

impl Zero for u32 {
    fn is_zero(&self) -> bool {
        *self == 0
    }
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
        return Ok(call.manager.model().bdevs.iter().map(describe).collect());
    };
    let wait = Duration::from_millis(params.timeout.unwrap_or(0)).min(MAX_WAIT);
    let found = call.allowance.wait(wait, |limit| call.manager.wait_bdev(&name, limit, describe));
    match found {
        Some(bdev) => Ok(vec![bdev]),
        None => Ok(vec![describe(call.manager.model().bdev(&name)?)]),
    }
}

/// Lists what is configured but missing.
fn get_missing(call: &Call<'_>, _params: NoParams) -> Result<Vec<Value>, RpcError> {
    let describe = |missing: &Missing| {
        json!({
            "name": missing.name,
            "type": if missing.is_controller() { "controller" } else { "bdev" },
            "method": missing.entry.method,
            "params": missing.entry.params,
            "reason": missing.reason,
        })
    };
    Ok(call.manager.model().missing.values().map(describe).collect())
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
        // Hints that no device here has.
        "preferred_write_alignment": 0,
        "preferred_write_granularity": 0,
        "optimal_write_size": 0,
        "preferred_unmap_alignment": 0,
        "preferred_unmap_granularity": 0,
        "uuid": bdev.uuid,
        "numa_id": info.numa_node.map_or(-1, i64::from),
        "assigned_rate_limits": rates(&bdev.limits),
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

/// The aliases, to which SPDK counts the UUID.
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
        "seek_hole": info.knows_holes,
        "seek_data": info.knows_holes,
        "copy": info.copies,
        "nvme_iov_md": false,
    })
}

fn block_size_of(bytes: u32) -> Result<BlockSize, RpcError> {
    match bytes {
        512 => Ok(BlockSize::B512),
        4096 => Ok(BlockSize::B4096),
        other => {
            let detail = format!("block_size {other} is not supported: use 512 or 4096");
            Err(RpcError::errno(libc::EINVAL).because(detail))
        }
    }
}

/// The physical block of a device in memory; 0 stands for a page.
fn physical_block_size(bytes: u32) -> Result<Option<u32>, RpcError> {
    match bytes {
        0 => Ok(None),
        bytes if bytes >= 512 && bytes.is_power_of_two() && bytes <= MAX_PHYSICAL_BLOCK_BYTES => {
            Ok(Some(bytes))
        }
        bytes => {
            let detail = format!(
                "physical_block_size {bytes} is not supported: use a power of two of 512 to \
                 {MAX_PHYSICAL_BLOCK_BYTES}"
            );
            Err(RpcError::errno(libc::EINVAL).because(detail))
        }
    }
}

fn bytes_of(num_blocks: u64, block_size: u32) -> Result<u64, RpcError> {
    let bytes = num_blocks.checked_mul(u64::from(block_size)).filter(|bytes| *bytes > 0);
    bytes.ok_or_else(|| {
        RpcError::errno(libc::EINVAL).because(format!("num_blocks {num_blocks} is out of range"))
    })
}

/// Opens a device that stands on nothing else.
fn open(change: &Change<'_>, spec: &DeviceSpec) -> Result<SharedBdev, RpcError> {
    let identity = &change.manager().config().identity;
    let opened = raceline_bdev::open(spec, identity);
    opened.map_err(|error| ManagerError::from(error).into())
}

/// Adds a device, and then everything that has waited for it.
fn add(change: &mut Change<'_>, bdev: Entry, entry: catalogue::Entry) -> Result<(), RpcError> {
    let name = bdev.name.clone();
    change.add_bdev(bdev, Some(entry))?;
    change.arrived(&name);
    Ok(())
}

/// The UUID of a device that stands on another: the given one, or else one derived from the base device.
fn uuid_on(base: &Entry, what: &str, given: Option<Uuid>) -> Uuid {
    let given = given.filter(|uuid| !uuid.is_nil());
    given.unwrap_or_else(|| Uuid::new_v5(&base.uuid, what.as_bytes()))
}

/// Refuses a layer too many in advance: no core could open it.
fn check_levels(base: &Entry) -> Result<(), RpcError> {
    if base.device.wrapper_levels() < MAX_WRAPPER_LEVELS {
        return Ok(());
    }
    let detail = format!("{MAX_WRAPPER_LEVELS} delay and error devices lie on top of each other");
    Err(RpcError::errno(libc::EINVAL).because(detail))
}

/// A device of this module; to any other SPDK says "No such device".
fn find(change: &Change<'_>, name: &str, module: &str) -> Result<Entry, RpcError> {
    let found = change.model().bdevs.find(name).filter(|bdev| bdev.module == module).cloned();
    found.ok_or_else(|| {
        let detail = format!("there is no {module} device `{name}`");
        RpcError::errno(libc::ENODEV).because(detail)
    })
}

fn delete(call: &Call<'_>, name: &str, module: &str) -> Result<bool, RpcError> {
    call.manager.change(|change| {
        if change.forget_missing(&catalogue::Key::new(&["bdev", name])) {
            return Ok(true);
        }
        find(change, name, module)?;
        change.remove_bdev(name)?;
        Ok(true)
    })
}
