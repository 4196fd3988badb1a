//! `vhost_*`: disks for virtual machines, by vhost-user-blk.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::cores::mask_text;
use crate::error::RpcError;
use crate::manager::ManagerError;
use crate::manager::catalogue::{Entry, Section};
use crate::manager::disks::{CREATE_VHOST, SET_COALESCING, VhostDisk, VhostParams};
use crate::method::{Call, Registry, States};
use crate::params::cores_of;

/// The only way to a virtual machine.
const TRANSPORT: &str = "vhost_user_blk";

pub(super) fn register(registry: &mut Registry) {
    registry.change(CREATE_VHOST, States::Runtime, create);
    registry.alias("construct_vhost_blk_controller", CREATE_VHOST);
    registry.change("vhost_delete_controller", States::Runtime, delete);
    registry.alias("remove_vhost_controller", "vhost_delete_controller");
    registry.read("vhost_get_controllers", States::Runtime, get);
    registry.alias("get_vhost_controllers", "vhost_get_controllers");
    registry.change(SET_COALESCING, States::Runtime, set_coalescing);
    registry.alias("set_vhost_controller_coalescing", SET_COALESCING);
    registry.without_effect_for(SET_COALESCING, |params| {
        params.as_object().is_some_and(|params| params.len() > 1)
    });
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Create {
    ctrlr: String,
    dev_name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    readonly: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    packed_ring: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpumask: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    transport: Option<String>,
}

fn create(call: &Call<'_>, params: Create) -> Result<bool, RpcError> {
    if params.packed_ring == Some(true) {
        return Err(RpcError::unsupported("packed_ring"));
    }
    if let Some(other) = params.transport.as_deref().filter(|name| *name != TRANSPORT) {
        let detail = format!("transport `{}` is not {TRANSPORT}", other.escape_debug());
        return Err(RpcError::errno(libc::EINVAL).because(detail));
    }
    let cores = cores_of(params.cpumask.as_deref())?;
    call.manager.change(|change| {
        let entry = Entry::new(Section::VhostBlk, call.method, &params)?;
        let disk = VhostParams {
            bdev_name: params.dev_name,
            read_only: params.readonly.unwrap_or(false),
            cores,
        };
        change.add_vhost_disk(&params.ctrlr, disk, entry)?;
        Ok(true)
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Controller {
    ctrlr: String,
}

fn delete(call: &Call<'_>, params: Controller) -> Result<bool, RpcError> {
    call.manager.change(|change| {
        let is_used = change.model().disks.vhost.get(&params.ctrlr).is_some_and(VhostDisk::is_used);
        if is_used {
            let detail = "a virtual machine uses it: have it let go of the disk first";
            return Err(RpcError::errno(libc::EBUSY).because(detail));
        }
        change.remove_vhost_disk(&params.ctrlr)?;
        Ok(true)
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Coalescing {
    ctrlr: String,
    delay_base_us: u32,
    iops_threshold: u32,
}

fn set_coalescing(call: &Call<'_>, params: Coalescing) -> Result<bool, RpcError> {
    call.manager.change(|change| {
        let values = (params.delay_base_us, params.iops_threshold);
        change.set_coalescing(&params.ctrlr, values)?;
        Ok(true)
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Name {
    name: Option<String>,
}

fn get(call: &Call<'_>, params: Name) -> Result<Vec<Value>, RpcError> {
    let model = call.manager.model();
    let Some(name) = params.name else {
        return Ok(model.disks.vhost.iter().map(|(name, disk)| describe(name, disk)).collect());
    };
    match model.disks.vhost.get(&name) {
        Some(disk) => Ok(vec![describe(&name, disk)]),
        None => Err(ManagerError::missing("controller", &name).into()),
    }
}

fn describe(name: &str, disk: &VhostDisk) -> Value {
    let session = json!({ "vid": 0, "id": 0, "name": format!("{name}s0"), "started": true });
    let sessions = if disk.is_used() { vec![session] } else { vec![] };
    json!({
        "ctrlr": name,
        "cpumask": format!("0x{}", mask_text(&disk.params.cores)),
        "delay_base_us": disk.coalescing.0,
        "iops_threshold": disk.coalescing.1,
        "socket": disk.socket,
        "sessions": sessions,
        "backend_specific": {
            "block": {
                "readonly": disk.params.read_only,
                "bdev": if disk.is_there() { Some(&disk.params.bdev_name) } else { None },
                "transport": TRANSPORT,
            },
        },
    })
}
