//! `bdev_passthru_*`: a device under another name.

use std::sync::Arc;

use raceline_bdev::PartBdev;
use serde::{Deserialize, Serialize};
use serde_json::json;
use uuid::Uuid;

use super::stacked::{self, Stacked};
use super::{Name, Plain};
use crate::error::RpcError;
use crate::manager::bdevs::Entry;
use crate::manager::catalogue::Key;
use crate::method::{Call, Registry, States};

pub(super) fn register(registry: &mut Registry) {
    registry.change("bdev_passthru_create", States::Runtime, create);
    registry.alias("construct_passthru_bdev", "bdev_passthru_create");
    registry.change("bdev_passthru_delete", States::Runtime, delete);
    registry.alias("delete_passthru_bdev", "bdev_passthru_delete");
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Create {
    name: String,
    base_bdev_name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    uuid: Option<Uuid>,
}

impl Stacked for Create {
    const METHOD: &'static str = "bdev_passthru_create";
    const MODULE: &'static str = "passthru";

    fn base(&self) -> &str {
        &self.base_bdev_name
    }

    fn key(&self) -> Key {
        Key::new(&["bdev", &self.name])
    }

    fn make(&self, base: &Entry) -> Result<Vec<Entry>, RpcError> {
        let device = Arc::new(PartBdev::whole(base.device.clone()));
        let details = json!({ "passthru": { "name": self.name, "base_bdev_name": base.name } });
        let uuid = super::uuid_on(base, Self::MODULE, self.uuid);
        Ok(vec![
            Entry::with_uuid(&self.name, uuid, Self::MODULE, "passthru", device)
                .described_by(Plain(details)),
        ])
    }
}

fn create(call: &Call<'_>, params: Create) -> Result<String, RpcError> {
    stacked::create(call, &params)?;
    Ok(params.name)
}

fn delete(call: &Call<'_>, Name { name }: Name) -> Result<bool, RpcError> {
    stacked::delete::<Create>(call, &name, Key::new(&["bdev", &name]))
}
