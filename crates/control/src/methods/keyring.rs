//! `keyring_*`: keys by name. A secret is never an answer.

use std::path::PathBuf;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::error::RpcError;
use crate::keyring::KeyInfo;
use crate::method::{Call, Registry, States};
use crate::params::NoParams;

/// The module of SPDK that keys of files belong to.
const FILE_MODULE: &str = "keyring_file";
/// Of keys that are found by their names.
const FOUND_MODULE: &str = "keyring_folder";

pub(super) fn register(registry: &mut Registry) {
    registry.change("keyring_file_add_key", States::Runtime, add);
    registry.change("keyring_file_remove_key", States::Runtime, remove);
    registry.read("keyring_get_keys", States::Runtime, get);
}

/// SPDK's decoder is relaxed here.
#[derive(Deserialize)]
struct Add {
    name: String,
    path: PathBuf,
}

fn add(call: &Call<'_>, params: Add) -> Result<bool, RpcError> {
    call.manager.change(|change| change.add_key(&params.name, &params.path))?;
    Ok(true)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Remove {
    name: String,
}

fn remove(call: &Call<'_>, params: Remove) -> Result<bool, RpcError> {
    call.manager.change(|change| change.remove_key(&params.name))?;
    Ok(true)
}

fn get(call: &Call<'_>, _params: NoParams) -> Result<Vec<Value>, RpcError> {
    let keys = call.manager.model().keyring.list();
    Ok(keys.into_iter().map(describe).collect())
}

fn describe(key: KeyInfo) -> Value {
    let mut shown = json!({
        "name": key.name,
        "module": if key.found { FOUND_MODULE } else { FILE_MODULE },
        "removed": key.path.is_none(),
        "probed": key.found,
        "refcnt": key.references,
    });
    if let Some(path) = key.path {
        shown["path"] = path.to_string_lossy().into();
    }
    shown
}
