//! `framework_*`: the start, and the configuration.

use rustix::process::Signal;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::error::{RpcError, code};
use crate::manager::catalogue::{Catalogue, Entry, Section};
use crate::masked::without_secrets;
use crate::method::{Call, Registry, States};
use crate::params::NoParams;
use crate::role::Role;

/// The parameter of `bdev_nvme_attach_controller` with the paths besides the first.
const MORE_PATHS: &str = "more_paths";

pub(super) fn register(registry: &mut Registry) {
    registry.change("framework_start_init", States::Startup, start_init);
    registry.alias("start_subsystem_init", "framework_start_init");
    registry.read("framework_wait_init", States::Both, wait_init);
    registry.alias("wait_subsystem_init", "framework_wait_init");
    registry.read("framework_get_subsystems", States::Runtime, get_subsystems);
    registry.alias("get_subsystems", "framework_get_subsystems");
    registry.read("framework_get_config", States::Runtime, get_config);
    registry.alias("get_subsystem_config", "framework_get_config");
    registry.change("spdk_kill_instance", States::Runtime, kill_instance);
    registry.alias("kill_instance", "spdk_kill_instance");
}

fn start_init(call: &Call<'_>, _params: NoParams) -> Result<bool, RpcError> {
    let started = call.manager.start_all();
    started.map_err(|error| RpcError::internal("Internal error").because(error))?;
    Ok(true)
}

fn wait_init(call: &Call<'_>, _params: NoParams) -> Result<bool, RpcError> {
    // This blocks no other client: a client that asks before the start waits here, on a thread of its own
    // connection.
    call.manager.wait_started();
    match call.manager.failure() {
        None => Ok(true),
        Some(failure) => Err(RpcError::internal("Internal error").because(failure)),
    }
}

/// Whether clients are shown a section: some only if they hold calls.
fn is_shown(call: &Call<'_>, section: Section) -> bool {
    !section.is_shown_with_calls()
        || call.manager.model().catalogue.section(section).next().is_some()
}

fn get_subsystems(call: &Call<'_>, _params: NoParams) -> Result<Vec<Value>, RpcError> {
    let describe = |section: &Section| {
        let needs: Vec<&str> = section.depends_on().iter().map(|needed| needed.name()).collect();
        json!({ "subsystem": section.name(), "depends_on": needs })
    };
    let shown = Section::ALL.iter().filter(|section| is_shown(call, **section));
    Ok(shown.map(describe).collect())
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
    let section = Section::from_name(&params.name).filter(|section| is_shown(call, *section));
    let section = section.ok_or_else(|| {
        let text = format!("Subsystem '{}' not found", params.name);
        RpcError::new(code::INVALID_PARAMS, text)
    })?;
    Ok(section_calls(call, &call.manager.model().catalogue, section))
}

/// The calls that make a section of a configuration, as the caller may see them.
pub(super) fn section_calls(
    call: &Call<'_>,
    catalogue: &Catalogue,
    section: Section,
) -> Vec<Value> {
    let describe = |entry: &Entry| match &entry.params {
        // SPDK's programs cannot read a configuration with null in place of parameters.
        Value::Null => vec![json!({ "method": entry.method })],
        // The secrets of CHAP are for those that may set them.
        params if call.peer.role != Role::Admin => calls(&entry.method, &without_secrets(params)),
        params => calls(&entry.method, params),
    };
    catalogue.section(section).flat_map(describe).collect()
}

/// The calls that an entry stands for: SPDK's programs attach each path of a controller by a call of its own.
fn calls(method: &str, params: &Value) -> Vec<Value> {
    let mut first = params.clone();
    let paths = first.as_object_mut().and_then(|members| members.shift_remove(MORE_PATHS));
    let mut calls = vec![json!({ "method": method, "params": first })];
    for path in paths.iter().filter_map(Value::as_array).flatten() {
        let mut params = first.clone();
        if let (Some(members), Some(place)) = (params.as_object_mut(), path.as_object()) {
            for member in ["traddr", "adrfam", "trsvcid", "hostaddr"] {
                members.shift_remove(member);
            }
            members.extend(place.clone());
        }
        calls.push(json!({ "method": method, "params": params }));
    }
    calls
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KillInstance {
    sig_name: Value,
}

/// Signals by name, with or without SIG, or by number.
fn signal(name: &Value) -> Option<Signal> {
    let known = [
        ("INT", Signal::INT),
        ("TERM", Signal::TERM),
        ("QUIT", Signal::QUIT),
        ("HUP", Signal::HUP),
        ("KILL", Signal::KILL),
        ("USR1", Signal::USR1),
    ];
    let wanted = match name {
        Value::String(text) => text.strip_prefix("SIG").unwrap_or(text).to_owned(),
        Value::Number(number) => number.to_string(),
        _ => return None,
    };
    let mut known = known.into_iter();
    known
        .find(|(name, signal)| wanted == *name || wanted == signal.as_raw().to_string())
        .map(|(_, signal)| signal)
}

/// The answer may be lost when the process ends, as in SPDK.
fn kill_instance(_call: &Call<'_>, params: KillInstance) -> Result<bool, RpcError> {
    let unknown = || {
        RpcError::invalid_params(format!("sig_name {} is not a signal that ends", params.sig_name))
    };
    let signal = signal(&params.sig_name).ok_or_else(unknown)?;
    rustix::process::kill_process(rustix::process::getpid(), signal)
        .map_err(|error| RpcError::errno(error.raw_os_error()))?;
    Ok(true)
}
