//! `framework_*`: starting, and what is configured.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::engine::Phase;
use crate::engine::ledger::Section;
use crate::error::{RpcError, code};
use crate::method::{Call, Registry, States};
use crate::params::NoParams;

pub(super) fn register(registry: &mut Registry) {
    registry.change("framework_start_init", States::Startup, start_init);
    registry.alias("start_subsystem_init", "framework_start_init");
    registry.read("framework_wait_init", States::Both, wait_init);
    registry.alias("wait_subsystem_init", "framework_wait_init");
    registry.read("framework_get_subsystems", States::Runtime, get_subsystems);
    registry.alias("get_subsystems", "framework_get_subsystems");
    registry.read("framework_get_config", States::Runtime, get_config);
    registry.alias("get_subsystem_config", "framework_get_config");
}

fn start_init(call: &Call<'_>, _params: NoParams) -> Result<bool, RpcError> {
    call.engine.start();
    Ok(true)
}

fn wait_init(call: &Call<'_>, _params: NoParams) -> Result<bool, RpcError> {
    // Asking is not waiting: a client that asks before the start waits here, on a thread of its
    // own connection.
    if call.engine.phase() == Phase::Startup {
        call.engine.wait_started();
    }
    Ok(true)
}

fn get_subsystems(_call: &Call<'_>, _params: NoParams) -> Result<Vec<Value>, RpcError> {
    let describe = |section: &Section| {
        let needs: Vec<&str> = section.depends_on().iter().map(|needed| needed.name()).collect();
        json!({ "subsystem": section.name(), "depends_on": needs })
    };
    Ok(Section::ALL.iter().map(describe).collect())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GetConfig {
    name: String,
    /// Whether calls may be grouped into batches; ours are never grouped.
    #[serde(default, rename = "with_batches")]
    _with_batches: bool,
}

fn get_config(call: &Call<'_>, params: GetConfig) -> Result<Vec<Value>, RpcError> {
    let section = Section::from_name(&params.name).ok_or_else(|| {
        let text = format!("Subsystem '{}' not found", params.name);
        RpcError::new(code::INVALID_PARAMS, text)
    })?;
    let model = call.engine.model();
    let entries = model.ledger.section(section);
    Ok(entries.map(|entry| json!({ "method": entry.method, "params": entry.params })).collect())
}
