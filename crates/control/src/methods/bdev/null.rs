//! `bdev_null_*`: devices without storage, for measurements.

use raceline_bdev::{Backing, ByteSize, DeviceSpec};
use serde::{Deserialize, Serialize};
use serde_json::json;
use uuid::Uuid;

use super::{Name, Plain, Zero, block_size_of, bytes_of, open, physical_block_size};
use crate::error::RpcError;
use crate::manager::bdevs::Entry;
use crate::manager::catalogue::{self, Key, Section};
use crate::method::{Call, Registry, States};
use crate::params::refuse;

const MODULE: &str = "null";
const MIB: u64 = 1 << 20;

pub(super) fn register(registry: &mut Registry) {
    registry.change("bdev_null_create", States::Runtime, create);
    registry.alias("construct_null_bdev", "bdev_null_create");
    registry.change("bdev_null_delete", States::Runtime, delete);
    registry.alias("delete_null_bdev", "bdev_null_delete");
    registry.change("bdev_null_resize", States::Runtime, resize);
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Create {
    name: String,
    num_blocks: u64,
    block_size: u32,
    uuid: Option<Uuid>,
    #[serde(default, skip_serializing_if = "Zero::is_zero")]
    physical_block_size: u32,
    #[serde(default, skip_serializing)]
    md_size: u32,
    #[serde(default, skip_serializing)]
    dif_type: i32,
    #[serde(default, skip_serializing)]
    dif_is_head_of_md: bool,
    #[serde(default, skip_serializing)]
    dif_pi_format: u32,
    #[serde(default, skip_serializing)]
    preferred_write_granularity: u32,
    #[serde(default, skip_serializing)]
    preferred_write_alignment: u32,
    #[serde(default, skip_serializing)]
    optimal_write_size: u32,
    #[serde(default, skip_serializing)]
    preferred_unmap_granularity: u32,
    #[serde(default, skip_serializing)]
    preferred_unmap_alignment: u32,
}

fn create(call: &Call<'_>, params: Create) -> Result<String, RpcError> {
    refuse(&[
        ("md_size", params.md_size != 0),
        ("dif_type", params.dif_type != 0),
        ("dif_is_head_of_md", params.dif_is_head_of_md),
        ("dif_pi_format", params.dif_pi_format != 0),
        ("preferred_write_granularity", params.preferred_write_granularity != 0),
        ("preferred_write_alignment", params.preferred_write_alignment != 0),
        ("optimal_write_size", params.optimal_write_size != 0),
        ("preferred_unmap_granularity", params.preferred_unmap_granularity != 0),
        ("preferred_unmap_alignment", params.preferred_unmap_alignment != 0),
    ])?;
    let block_size = block_size_of(params.block_size)?;
    let size = bytes_of(params.num_blocks, params.block_size)?;
    let physical_block_size = physical_block_size(params.physical_block_size)?;
    let uuid = params.uuid.filter(|uuid| !uuid.is_nil()).unwrap_or_else(Uuid::new_v4);
    let name = params.name.clone();
    call.manager.change(|change| {
        change.model().bdevs.check_name(&name)?;
        let spec = DeviceSpec {
            block_size: Some(block_size),
            uuid: Some(uuid),
            physical_block_size,
            ..DeviceSpec::new(Backing::Null { size: ByteSize(size) })
        };
        let details = match params.physical_block_size {
            0 => json!({}),
            bytes => json!({ "null": { "physical_block_size": bytes } }),
        };
        let canonical = Create { uuid: Some(uuid), ..params };
        let entry = catalogue::Entry::new(Section::Bdev, "bdev_null_create", &canonical)?;
        let bdev = Entry::new(&name, MODULE, "Null disk", open(change, &spec)?)
            .described_by(Plain(details))
            .kept_as(Key::new(&["bdev", &name]));
        super::add(change, bdev, entry)?;
        Ok(name)
    })
}

fn delete(call: &Call<'_>, Name { name }: Name) -> Result<bool, RpcError> {
    super::delete(call, &name, MODULE)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Resize {
    name: String,
    /// In MiB.
    new_size: u64,
}

fn resize(call: &Call<'_>, Resize { name, new_size }: Resize) -> Result<bool, RpcError> {
    let invalid = |detail: String| RpcError::errno(libc::EINVAL).because(detail);
    call.manager.change(|change| {
        let bdev = change.model().bdev(&name)?.clone();
        if bdev.module != MODULE {
            return Err(invalid(format!("`{name}` is a {} device", bdev.module)));
        }
        let info = bdev.info();
        let blocks_per_mib = MIB / u64::from(info.block_size);
        let block_count = new_size.checked_mul(blocks_per_mib);
        let block_count =
            block_count.filter(|count| *count >= info.block_count).ok_or_else(|| {
                let size = info.block_count / blocks_per_mib;
                invalid(format!(
                    "new_size {new_size} is less than the {size} MiB that it has, or too much"
                ))
            })?;
        bdev.device.resize(block_count).map_err(|error| invalid(format!("{error:?}")))?;
        if let Some(key) = bdev.key {
            let kept = change.model().catalogue.get(&key).cloned();
            if let Some(mut entry) = kept {
                entry.params["num_blocks"] = block_count.into();
                change.put(key, entry);
            }
        }
        change.manager().sizes_changed()?;
        Ok(true)
    })
}
