//! `nbd_*`: disks of the kernel's NBD client, `/dev/nbdN`.

use raceline_nbd::{index_of, path};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::error::RpcError;
use crate::manager::disks::START_NBD;
use crate::method::{Call, Registry, States};

pub(super) fn register(registry: &mut Registry) {
    registry.change(START_NBD, States::Runtime, start_disk);
    registry.alias("start_nbd_disk", START_NBD);
    registry.change("nbd_stop_disk", States::Runtime, stop_disk);
    registry.alias("stop_nbd_disk", "nbd_stop_disk");
    registry.read("nbd_get_disks", States::Runtime, get_disks);
    registry.alias("get_nbd_disks", "nbd_get_disks");
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StartDisk {
    bdev_name: String,
    nbd_device: Option<String>,
}

fn start_disk(call: &Call<'_>, params: StartDisk) -> Result<String, RpcError> {
    let index = match &params.nbd_device {
        None => None,
        Some(device) => Some(index_of(device).ok_or_else(|| illegal(device))?),
    };
    call.manager.change(|change| Ok(path(change.add_nbd_disk(index, &params.bdev_name)?)))
}

/// SPDK's error.
fn illegal(device: &str) -> RpcError {
    RpcError::new(-libc::ENODEV, format!("illegal nbd device {device}"))
        .because("disks are named /dev/nbd0, /dev/nbd1 and so on")
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Device {
    nbd_device: String,
}

fn stop_disk(call: &Call<'_>, params: Device) -> Result<bool, RpcError> {
    let index = index_of(&params.nbd_device).ok_or_else(|| missing(&params.nbd_device))?;
    call.manager.change(|change| {
        change.remove_nbd_disk(index)?;
        Ok(true)
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GetDisks {
    nbd_device: Option<String>,
}

fn get_disks(call: &Call<'_>, params: GetDisks) -> Result<Vec<Value>, RpcError> {
    let model = call.manager.model();
    let describe =
        |index: u32, bdev_name: &str| json!({ "nbd_device": path(index), "bdev_name": bdev_name });
    let Some(device) = params.nbd_device else {
        let disks = model.disks.nbd.iter();
        return Ok(disks.map(|(index, disk)| describe(*index, &disk.bdev_name)).collect());
    };
    let found = index_of(&device).and_then(|index| Some((index, model.disks.nbd.get(&index)?)));
    let (index, disk) = found.ok_or_else(|| missing(&device))?;
    Ok(vec![describe(index, &disk.bdev_name)])
}

fn missing(device: &str) -> RpcError {
    let detail =
        format!("there is no nbd disk `{}`: nbd_get_disks lists them", device.escape_debug());
    RpcError::errno(libc::ENODEV).because(detail)
}
