//! `bdev_malloc_*`: devices in memory.

use std::any::Any;
use std::sync::Arc;

use raceline_bdev::{Backing, BlockSize, ByteSize, DeviceSpec};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::engine::bdevs::{Details, Entry};
use crate::engine::ledger::{self, Key, Section};
use crate::error::RpcError;
use crate::method::{Call, Registry, States};
use crate::params::refuse;

pub(super) fn register(registry: &mut Registry) {
    registry.change("bdev_malloc_create", States::Runtime, create);
    registry.alias("construct_malloc_bdev", "bdev_malloc_create");
    registry.change("bdev_malloc_delete", States::Runtime, delete);
    registry.alias("delete_malloc_bdev", "bdev_malloc_delete");
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Create {
    name: Option<String>,
    num_blocks: u64,
    block_size: u32,
    #[serde(default, skip_serializing_if = "is_zero")]
    physical_block_size: u32,
    uuid: Option<Uuid>,
    #[serde(default, skip_serializing_if = "is_zero")]
    optimal_io_boundary: u32,
    #[serde(default, skip_serializing_if = "is_zero")]
    md_size: u32,
    #[serde(default, skip_serializing)]
    md_interleave: bool,
    #[serde(default, skip_serializing)]
    dif_type: i32,
    #[serde(default, skip_serializing)]
    dif_is_head_of_md: bool,
    #[serde(default, skip_serializing)]
    dif_pi_format: u32,
    /// Memory is taken from wherever the kernel has it.
    #[serde(default, rename = "numa_id", skip_serializing)]
    _numa_id: i32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Delete {
    name: String,
}

struct Malloc;

impl Details for Malloc {
    fn driver_specific(&self) -> Value {
        json!({})
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn create(call: &Call<'_>, params: Create) -> Result<String, RpcError> {
    refuse(&[
        ("md_size", params.md_size != 0),
        ("md_interleave", params.md_interleave),
        ("dif_type", params.dif_type != 0),
        ("dif_is_head_of_md", params.dif_is_head_of_md),
        ("dif_pi_format", params.dif_pi_format != 0),
    ])?;
    let block_size = match params.block_size {
        512 => BlockSize::B512,
        4096 => BlockSize::B4096,
        other => {
            let detail = format!("block_size {other} is not supported: use 512 or 4096");
            return Err(RpcError::errno(libc::EINVAL).because(detail));
        }
    };
    let bytes = params.num_blocks.checked_mul(u64::from(params.block_size));
    let size = bytes.filter(|bytes| *bytes > 0).ok_or_else(|| {
        RpcError::errno(libc::EINVAL)
            .because(format!("num_blocks {} is out of range", params.num_blocks))
    })?;
    call.engine.change(|change| {
        let name = match params.name.clone() {
            Some(name) => name,
            None => change.model().bdevs.free_name("Malloc"),
        };
        change.model().bdevs.check_name(&name)?;
        let uuid = params.uuid.filter(|uuid| !uuid.is_nil()).unwrap_or_else(Uuid::new_v4);
        let spec = DeviceSpec {
            block_size: Some(block_size),
            uuid: Some(uuid),
            ..DeviceSpec::new(Backing::Ram { size: ByteSize(size), huge_pages: false })
        };
        let identity = &change.engine().config().identity;
        let device = raceline_bdev::open(&spec, identity).map_err(super::open_failed)?;
        let key = Key::new(&["bdev", &name]);
        let canonical = Create { name: Some(name.clone()), uuid: Some(uuid), ..params };
        let entry = ledger::Entry::new(Section::Bdev, "bdev_malloc_create", &canonical)?;
        let bdev = Entry {
            name: name.clone(),
            aliases: Vec::new(),
            uuid,
            module: "malloc",
            product_name: "Malloc disk",
            device,
            details: Arc::new(Malloc),
            claim: None,
            bases: Vec::new(),
            key: Some(key),
        };
        change.add_bdev(bdev, Some(entry))?;
        Ok(name)
    })
}

fn delete(call: &Call<'_>, params: Delete) -> Result<bool, RpcError> {
    super::delete(call, &params.name, "malloc")
}
