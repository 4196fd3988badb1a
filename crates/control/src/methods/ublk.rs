//! `ublk_*`: disks of the kernel of this machine, `/dev/ublkbN`.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::RpcError;
use crate::manager::ManagerError;
use crate::manager::catalogue::{Entry, Section};
use crate::manager::disks::{CREATE_UBLK_TARGET, START_UBLK, UblkDisk, UblkParams, UblkTarget};
use crate::method::{Call, Registry, States};
use crate::params::{NoParams, cores_of};

/// What SPDK takes where a call does not say.
const DEFAULT_DEPTH: u32 = 128;
const DEFAULT_QUEUES: u32 = 1;

pub(super) fn register(registry: &mut Registry) {
    registry.change(CREATE_UBLK_TARGET, States::Runtime, create_target);
    registry.change("ublk_destroy_target", States::Runtime, destroy_target);
    registry.change(START_UBLK, States::Runtime, start_disk);
    registry.change("ublk_recover_disk", States::Runtime, recover_disk);
    registry.change("ublk_stop_disk", States::Runtime, stop_disk);
    registry.read("ublk_get_disks", States::Runtime, get_disks);
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct CreateTarget {
    #[serde(skip_serializing_if = "Option::is_none")]
    cpumask: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    disable_user_copy: Option<bool>,
}

fn create_target(call: &Call<'_>, params: CreateTarget) -> Result<bool, RpcError> {
    let cores = cores_of(params.cpumask.as_deref())?;
    call.manager.change(|change| {
        let entry = Entry::new(Section::Ublk, call.method, &params)?;
        let zero_copy = !params.disable_user_copy.unwrap_or(false);
        change.add_ublk_target(UblkTarget { cores, zero_copy, ..UblkTarget::default() }, entry)?;
        Ok(true)
    })
}

fn destroy_target(call: &Call<'_>, _params: NoParams) -> Result<bool, RpcError> {
    call.manager.change(|change| {
        change.remove_ublk_target()?;
        Ok(true)
    })
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct StartDisk {
    bdev_name: String,
    ublk_id: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue_depth: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    num_queues: Option<u32>,
}

fn start_disk(call: &Call<'_>, params: StartDisk) -> Result<u32, RpcError> {
    call.manager.change(|change| {
        let entry = Entry::new(Section::Ublk, START_UBLK, &params)?;
        let disk = UblkParams {
            bdev_name: params.bdev_name,
            queue_depth: params.queue_depth.unwrap_or(DEFAULT_DEPTH),
            num_queues: params.num_queues.unwrap_or(DEFAULT_QUEUES),
        };
        change.add_ublk_disk(params.ublk_id, disk, entry)?;
        Ok(params.ublk_id)
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RecoverDisk {
    bdev_name: String,
    ublk_id: u32,
}

/// Goes on with a disk whose process was killed; [`start_disk`] does the same where it finds one.
fn recover_disk(call: &Call<'_>, params: RecoverDisk) -> Result<u32, RpcError> {
    let RecoverDisk { bdev_name, ublk_id } = params;
    if !Path::new(&format!("/dev/ublkc{ublk_id}")).exists() {
        return Err(ManagerError::missing("ublk disk", &ublk_id.to_string()).into());
    }
    start_disk(call, StartDisk { bdev_name, ublk_id, queue_depth: None, num_queues: None })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Id {
    ublk_id: u32,
}

fn stop_disk(call: &Call<'_>, params: Id) -> Result<bool, RpcError> {
    call.manager.change(|change| {
        change.remove_ublk_disk(params.ublk_id)?;
        Ok(true)
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GetDisks {
    ublk_id: Option<u32>,
}

fn get_disks(call: &Call<'_>, params: GetDisks) -> Result<Vec<Value>, RpcError> {
    let model = call.manager.model();
    let disks = model.disks.ublk.iter().flat_map(|target| &target.disks);
    let wanted = disks.filter(|(id, _)| params.ublk_id.is_none_or(|wanted| wanted == **id));
    let found: Vec<Value> = wanted.map(|(id, disk)| describe(*id, disk)).collect();
    match params.ublk_id {
        Some(id) if found.is_empty() => {
            Err(ManagerError::missing("ublk disk", &id.to_string()).into())
        }
        _ => Ok(found),
    }
}

fn describe(id: u32, disk: &UblkDisk) -> Value {
    json!({
        "ublk_device": format!("/dev/ublkb{id}"),
        "id": id,
        "queue_depth": disk.params.queue_depth,
        "num_queues": disk.params.num_queues,
        "bdev_name": disk.params.bdev_name,
        "zero_copy": disk.is_zero_copy(),
    })
}
