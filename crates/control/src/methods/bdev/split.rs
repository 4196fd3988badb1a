//! `bdev_split_*`: equal parts of a device, each a device of its own.

use std::sync::Arc;

use raceline_bdev::PartBdev;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::Plain;
use super::stacked::{self, Stacked};
use crate::error::{RpcError, code};
use crate::manager::bdevs::Entry;
use crate::manager::catalogue::Key;
use crate::manager::missing::numbered;
use crate::method::{Call, Registry, States};

/// The largest number of parts: each has a name, statistics and channels.
const MAX_PARTS: u32 = 65_536;
const MIB: u64 = 1 << 20;

pub(super) fn register(registry: &mut Registry) {
    registry.change("bdev_split_create", States::Runtime, create);
    registry.alias("construct_split_vbdev", "bdev_split_create");
    registry.change("bdev_split_delete", States::Runtime, delete);
    registry.alias("destruct_split_vbdev", "bdev_split_delete");
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Create {
    base_bdev: String,
    split_count: u32,
    /// 0: as large as possible.
    #[serde(default)]
    split_size_mb: u64,
}

impl Stacked for Create {
    const METHOD: &'static str = "bdev_split_create";
    const MODULE: &'static str = "split";

    fn base(&self) -> &str {
        &self.base_bdev
    }

    fn key(&self) -> Key {
        key(&self.base_bdev)
    }

    fn is_named(&self, name: &str) -> bool {
        numbered(name, 'p') == Some(&*self.base_bdev)
    }

    fn make(&self, base: &Entry) -> Result<Vec<Entry>, RpcError> {
        let invalid = |detail: String| RpcError::errno(libc::EINVAL).because(detail);
        let info = base.info();
        let part_blocks = match self.split_size_mb {
            0 => info.block_count / u64::from(self.split_count.max(1)),
            mib => mib.saturating_mul(MIB / u64::from(info.block_size)),
        };
        if part_blocks == 0 || part_blocks > info.block_count {
            let detail = format!("`{}` has {} blocks", base.name, info.block_count);
            return Err(invalid(format!("{detail}: fewer than one part")));
        }
        // As in SPDK: as many parts as there is room for.
        let count = u64::from(self.split_count).min(info.block_count / part_blocks);
        let part = |number: u64| {
            let name = format!("{}p{number}", self.base_bdev);
            let first_block = number * part_blocks;
            let device = PartBdev::new(base.device.clone(), first_block, part_blocks);
            let device = device.ok_or_else(|| invalid(format!("`{name}` is outside")))?;
            let uuid = super::uuid_on(base, &format!("{} {number}", Self::MODULE), None);
            let details = json!({ "split": {
                "base_bdev": base.name,
                "offset_blocks": first_block,
            } });
            let entry = Entry::with_uuid(&name, uuid, Self::MODULE, "Split Disk", Arc::new(device));
            Ok(entry.described_by(Plain(details)))
        };
        (0..count).map(part).collect()
    }
}

fn key(base: &str) -> Key {
    Key::new(&["bdev", base, "split"])
}

fn create(call: &Call<'_>, params: Create) -> Result<Vec<String>, RpcError> {
    let failed = |error: RpcError| {
        let Create { base_bdev, split_count, .. } = &params;
        let text = format!(
            "Failed to create {split_count} split bdevs from '{base_bdev}': {}",
            error.message
        );
        let detail = error.data.unwrap_or_default();
        RpcError::new(code::INVALID_PARAMS, text).because(detail)
    };
    if params.split_count == 0 || params.split_count > MAX_PARTS {
        let detail = format!("split_count must be 1 to {MAX_PARTS}");
        return Err(failed(RpcError::errno(libc::EINVAL).because(detail)));
    }
    stacked::create(call, &params).map_err(failed)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Delete {
    base_bdev: String,
}

fn delete(call: &Call<'_>, Delete { base_bdev }: Delete) -> Result<bool, RpcError> {
    call.manager.change(|change| {
        if change.model().catalogue.get(&key(&base_bdev)).is_none() {
            let text = RpcError::errno(libc::ENOENT).message;
            return Err(RpcError::new(code::INVALID_PARAMS, text)
                .because(format!("`{base_bdev}` is not split")));
        }
        let parts: Vec<String> = {
            let model = change.model();
            let name = model.bdevs.find(&base_bdev).map_or(&*base_bdev, |bdev| &bdev.name);
            let parts = model.bdevs.above(name).filter(|bdev| bdev.module == Create::MODULE);
            parts.map(|bdev| bdev.name.clone()).collect()
        };
        for part in parts {
            change.remove_bdev(&part)?;
        }
        change.remove(key(&base_bdev));
        Ok(true)
    })
}
