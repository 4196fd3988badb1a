//! `nvmf_{create,delete}_target`, `nvmf_get_targets`.

use serde::Deserialize;
use serde_json::Value;

use super::options;
use crate::error::{RpcError, code};
use crate::manager::nvmf::DEFAULT_MAX_SUBSYSTEMS;
use crate::method::{Call, Registry, States};
use crate::params::{NoParams, refuse};

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
    /// One text, parts separated by commas, or a list of them.
    discovery_filter: Option<Value>,
    dup_host_policy: Option<String>,
}

fn create(call: &Call<'_>, params: Create) -> Result<String, RpcError> {
    let policy = params.dup_host_policy.as_deref().unwrap_or("allow");
    refuse(&[("dup_host_policy", policy != "allow")])?;
    let filter = params.discovery_filter.as_ref().map(options::filter).transpose()?;
    let name = params.name;
    if call.manager.model().nvmf.targets.contains_key(&name) {
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
    call.manager
        .change(|change| change.create_target(&name, max_subsystems, filter))
        .map_err(|error| unable(error.to_string()))?;
    Ok(name)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Delete {
    name: String,
}

fn delete(call: &Call<'_>, params: Delete) -> Result<bool, RpcError> {
    if !call.manager.model().nvmf.targets.contains_key(&params.name) {
        let text = "The specified target doesn't exist, cannot delete it.";
        return Err(RpcError::new(code::INVALID_PARAMS, text));
    }
    call.manager.change(|change| change.delete_target(&params.name))?;
    Ok(true)
}

fn get(call: &Call<'_>, _params: NoParams) -> Result<Vec<String>, RpcError> {
    Ok(call.manager.model().nvmf.targets.keys().cloned().collect())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::manager::{Manager, ManagerConfig};
    use crate::role::Peer;

    #[test]
    fn a_target_has_a_filter_of_its_own() {
        let manager = Manager::new(ManagerConfig::default(), Arc::new(Registry::new()));
        manager.start();
        let create = |name: &str, filter: Value| {
            let params = json!({ "name": name, "discovery_filter": filter });
            let raw = serde_json::value::to_raw_value(&params).unwrap();
            let peer = Peer::this_process();
            Registry::new().call(&manager, peer, "nvmf_create_target", Some(&raw))
        };
        assert_eq!(create("a", json!("svcid,address")), Ok(json!("a")));
        assert_eq!(create("b", json!(["transport"])), Ok(json!("b")));
        for wrong in [json!("port"), json!(["address", "match_any"]), json!(1), json!([1])] {
            assert_eq!(
                create("c", wrong.clone()).unwrap_err().code,
                code::INVALID_PARAMS,
                "{wrong}"
            );
        }
        let model = manager.model();
        let kept: Vec<&Value> = model.catalogue.entries().map(|(_, entry)| &entry.params).collect();
        let filters: Vec<&Value> = kept.iter().map(|params| &params["discovery_filter"]).collect();
        assert_eq!(filters, [&json!("address,svcid"), &json!("transport")]);
        let filter = model.nvmf.targets["a"].filter.unwrap();
        assert!(filter.address && filter.svcid && !filter.transport);
    }
}
