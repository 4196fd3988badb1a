//! `bdev_malloc_*`: devices in memory.

use raceline_bdev::{Backing, ByteSize, DeviceSpec};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{Name, Plain, Zero, block_size_of, bytes_of, open, physical_block_size};
use crate::error::RpcError;
use crate::manager::bdevs::Entry;
use crate::manager::catalogue::{self, Key, Section};
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
    /// The NUMA node from which memory is taken as long as it has some; -1 is any.
    #[serde(skip_serializing_if = "Option::is_none")]
    numa_id: Option<i32>,
    /// Uses reserved huge pages, as SPDK always does; otherwise the kernel's transparent huge pages.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    hugepages: bool,
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
    let physical_block_size = physical_block_size(params.physical_block_size)?;
    let numa_node = numa_node(params.numa_id)?;
    call.manager.change(|change| {
        let name = match params.name.clone() {
            Some(name) => name,
            None => change.model().bdevs.free_name("Malloc"),
        };
        change.model().bdevs.check_name(&name)?;
        let uuid = params.uuid.filter(|uuid| !uuid.is_nil()).unwrap_or_else(Uuid::new_v4);
        let spec = DeviceSpec {
            block_size: Some(block_size),
            uuid: Some(uuid),
            physical_block_size,
            io_boundary_bytes: u64::from(params.optimal_io_boundary) * u64::from(params.block_size),
            numa_node,
            ..DeviceSpec::new(Backing::Ram { size: ByteSize(size), huge_pages: params.hugepages })
        };
        let canonical = Create { name: Some(name.clone()), uuid: Some(uuid), ..params.clone() };
        let entry = catalogue::Entry::new(Section::Bdev, "bdev_malloc_create", &canonical)?;
        let bdev = Entry::new(&name, MODULE, "Malloc disk", open(change, &spec)?)
            .described_by(details(&params))
            .kept_as(Key::new(&["bdev", &name]));
        super::add(change, bdev, entry)?;
        Ok(name)
    })
}

/// The parameters that it was given beyond its size.
fn details(params: &Create) -> Plain {
    let mut members = serde_json::Map::new();
    let mut put = |name: &str, value: Value| drop(members.insert(name.to_owned(), value));
    if params.physical_block_size != 0 {
        put("physical_block_size", params.physical_block_size.into());
    }
    if params.optimal_io_boundary != 0 {
        put("optimal_io_boundary", params.optimal_io_boundary.into());
    }
    if params.hugepages {
        put("hugepages", true.into());
    }
    if let Some(node) = params.numa_id.filter(|node| *node >= 0) {
        put("numa_id", node.into());
    }
    if members.is_empty() {
        return Plain(json!({}));
    }
    Plain(json!({ "malloc": members }))
}

/// SPDK's -1 is any node.
fn numa_node(numa_id: Option<i32>) -> Result<Option<usize>, RpcError> {
    match numa_id {
        None | Some(-1) => Ok(None),
        Some(node) => usize::try_from(node).map(Some).map_err(|_| {
            let detail = format!("numa_id {node} is no NUMA node: it is -1 (any) or 0 and more");
            RpcError::errno(libc::EINVAL).because(detail)
        }),
    }
}

fn delete(call: &Call<'_>, Name { name }: Name) -> Result<bool, RpcError> {
    super::delete(call, &name, MODULE)
}
