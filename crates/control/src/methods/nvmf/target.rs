//! `nvmf_{create,delete}_target`, `nvmf_get_targets`.

use serde::Deserialize;

use crate::engine::nvmf::DEFAULT_MAX_SUBSYSTEMS;
use crate::error::{RpcError, code};
use crate::method::{Call, Registry, States};
use crate::params::NoParams;

/// The longest name of a target, as in SPDK.
const MAX_NAME_BYTES: usize = 255;

pub(super) fn register(registry: &mut Registry) {
    registry.change("nvmf_create_target", States::Runtime, create);
    registry.change("nvmf_delete_target", States::Runtime, delete);
    registry.read("nvmf_get_targets", States::Runtime, get);
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Create {
    name: String,
    #[serde(default)]
    max_subsystems: u32,
}

fn create(call: &Call<'_>, params: Create) -> Result<String, RpcError> {
    let name = params.name;
    if call.engine.model().nvmf.targets.contains_key(&name) {
        return Err(RpcError::new(code::INVALID_PARAMS, "Target already exists."));
    }
    let unable = |detail: String| {
        RpcError::internal("Unable to create the requested target.").because(detail)
    };
    if name.is_empty() || name.len() > MAX_NAME_BYTES || name.chars().any(char::is_control) {
        let text = format!("a name has 1 to {MAX_NAME_BYTES} bytes without control characters");
        return Err(unable(text));
    }
    let max_subsystems = match params.max_subsystems {
        0 => DEFAULT_MAX_SUBSYSTEMS,
        number => number,
    };
    call.engine
        .change(|change| change.create_target(&name, max_subsystems))
        .map_err(|error| unable(error.to_string()))?;
    Ok(name)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Delete {
    name: String,
}

fn delete(call: &Call<'_>, params: Delete) -> Result<bool, RpcError> {
    if !call.engine.model().nvmf.targets.contains_key(&params.name) {
        let text = "The specified target doesn't exist, cannot delete it.";
        return Err(RpcError::new(code::INVALID_PARAMS, text));
    }
    call.engine.change(|change| change.delete_target(&params.name))?;
    Ok(true)
}

fn get(call: &Call<'_>, _params: NoParams) -> Result<Vec<String>, RpcError> {
    Ok(call.engine.model().nvmf.targets.keys().cloned().collect())
}
