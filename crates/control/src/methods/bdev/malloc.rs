//! `bdev_malloc_*`: devices in memory.

use raceline_bdev::{Backing, ByteSize, DeviceSpec};
use serde::{Deserialize, Serialize};
use serde_json::json;
use uuid::Uuid;

use super::{Name, Plain, Zero, block_size_of, bytes_of, open};
use crate::engine::bdevs::Entry;
use crate::engine::ledger::{self, Key, Section};
use crate::error::RpcError;
use crate::method::{Call, Registry, States};
use crate::params::refuse;

const MODULE: &str = "malloc";

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
    #[serde(default, skip_serializing_if = "Zero::is_zero")]
    physical_block_size: u32,
    uuid: Option<Uuid>,
    #[serde(default, skip_serializing_if = "Zero::is_zero")]
    optimal_io_boundary: u32,
    #[serde(default, skip_serializing)]
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

fn create(call: &Call<'_>, params: Create) -> Result<String, RpcError> {
    refuse(&[
        ("md_size", params.md_size != 0),
        ("md_interleave", params.md_interleave),
        ("dif_type", params.dif_type != 0),
        ("dif_is_head_of_md", params.dif_is_head_of_md),
        ("dif_pi_format", params.dif_pi_format != 0),
    ])?;
    let block_size = block_size_of(params.block_size)?;
    let size = bytes_of(params.num_blocks, params.block_size)?;
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
        let canonical = Create { name: Some(name.clone()), uuid: Some(uuid), ..params };
        let entry = ledger::Entry::new(Section::Bdev, "bdev_malloc_create", &canonical)?;
        let bdev = Entry::new(&name, MODULE, "Malloc disk", open(change, &spec)?)
            .described_by(Plain(json!({})))
            .kept_as(Key::new(&["bdev", &name]));
        super::add(change, bdev, entry)?;
        Ok(name)
    })
}

fn delete(call: &Call<'_>, Name { name }: Name) -> Result<bool, RpcError> {
    super::delete(call, &name, MODULE)
}
