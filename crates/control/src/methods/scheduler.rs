//! `framework_set_scheduler`, `framework_get_scheduler` and `scheduler_set_options`: whether I/O queues move between
//! cores. The parameters that tune SPDK's schedulers are kept and given back.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::cores::parse_cores;
use crate::error::RpcError;
use crate::manager::catalogue::{Entry, Section};
use crate::manager::options::option_key;
use crate::manager::scheduler::{DYNAMIC, SET_SCHEDULER, interval};
use crate::method::{Call, Registry, States};
use crate::params::NoParams;

/// A connection stays on the core that it was given to.
const STATIC: &str = "static";
/// SPDK's schedulers.
const KNOWN: [&str; 3] = [STATIC, DYNAMIC, "gscheduler"];

const SET: &str = SET_SCHEDULER;
const SET_OPTIONS: &str = "scheduler_set_options";

pub(super) fn register(registry: &mut Registry) {
    registry.read("framework_get_scheduler", States::Both, get);
    registry.change(SET, States::Both, set);
    registry.without_effect_for(SET, |params| {
        let Some(params) = params.as_object() else { return false };
        let in_effect = |name: &Value| name == STATIC || name == DYNAMIC;
        params.iter().any(|(name, value)| match name.as_str() {
            "name" => !in_effect(value),
            name => name != "period",
        })
    });
    registry.change(SET_OPTIONS, States::Both, set_options);
    registry.without_effect_for(SET_OPTIONS, |params| {
        params.as_object().is_some_and(|params| !params.is_empty())
    });
}

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Scheduler {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    period: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    load_limit: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    core_limit: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    core_busy: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mappings: Option<String>,
}

fn set(call: &Call<'_>, params: Scheduler) -> Result<bool, RpcError> {
    if !KNOWN.contains(&params.name.as_str()) {
        let name = params.name.escape_debug();
        let detail = format!("scheduler `{name}` is none of {}", KNOWN.join(", "));
        return Err(RpcError::errno(libc::ENOENT).because(detail));
    }
    call.manager.change(|change| {
        let entry = Entry::new(Section::Scheduler, call.method, &params)?;
        let interval = interval(&entry.params);
        change.put(option_key(call.method), entry);
        change.model().set_balancing(interval);
        Ok(true)
    })
}

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    #[serde(skip_serializing_if = "Option::is_none")]
    scheduling_core: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    isolated_core_mask: Option<String>,
}

fn set_options(call: &Call<'_>, params: Options) -> Result<bool, RpcError> {
    let is_none = |mask: &str| mask.trim_start_matches("0x").bytes().all(|digit| digit == b'0');
    if let Some(mask) = params.isolated_core_mask.as_deref().filter(|mask| !is_none(mask)) {
        parse_cores(mask)
            .map_err(|error| RpcError::invalid_params(format!("isolated_core_mask: {error}")))?;
    }
    keep(call, &params)
}

fn keep(call: &Call<'_>, params: &impl Serialize) -> Result<bool, RpcError> {
    call.manager.change(|change| {
        let entry = Entry::new(Section::Scheduler, call.method, params)?;
        change.put(option_key(call.method), entry);
        Ok(true)
    })
}

/// The settings, and beside them what is in effect.
fn get(call: &Call<'_>, _params: NoParams) -> Result<Value, RpcError> {
    let model = call.manager.model();
    let set =
        |method: &str| model.catalogue.get(&option_key(method)).map(|entry| entry.params.clone());
    let scheduler = set(SET).and_then(|set| serde_json::from_value(set).ok());
    let scheduler: Scheduler =
        scheduler.unwrap_or_else(|| Scheduler { name: STATIC.to_owned(), ..Scheduler::default() });
    let options = set(SET_OPTIONS).and_then(|set| serde_json::from_value(set).ok());
    let options: Options = options.unwrap_or_default();
    let first = call.manager.config().cores.first().copied().unwrap_or(0);
    let core = options.scheduling_core.map_or(json!(first), Value::from);
    let mut shown = json!({
        "scheduler_name": scheduler.name,
        "scheduler_period": scheduler.period.unwrap_or(0),
        "isolated_core_mask": options.isolated_core_mask.as_deref().unwrap_or("0"),
        "scheduling_core": core,
        "in_effect": if model.is_balancing() { DYNAMIC } else { STATIC },
    });
    let limits = [
        ("load_limit", scheduler.load_limit),
        ("core_limit", scheduler.core_limit),
        ("core_busy", scheduler.core_busy),
    ];
    for (name, limit) in limits {
        if let Some(limit) = limit {
            shown[name] = limit.into();
        }
    }
    if let Some(mappings) = scheduler.mappings {
        shown["mappings"] = mappings.into();
    }
    Ok(shown)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::error::code;
    use crate::manager::{Manager, ManagerConfig};
    use crate::role::Peer;

    fn call(manager: &Manager, method: &str, params: &Value) -> Result<Value, RpcError> {
        let raw = serde_json::value::to_raw_value(params).unwrap();
        let params = (!params.is_null()).then_some(&*raw);
        Registry::new().call(manager, Peer::this_process(), method, params)
    }

    #[test]
    fn what_is_set_is_given_back_beside_what_is_in_effect() {
        let manager = Manager::new(ManagerConfig::default(), Arc::new(Registry::new()));
        let get = || call(&manager, "framework_get_scheduler", &Value::Null).unwrap();
        assert_eq!(get()["scheduler_name"], "static");
        let dynamic = json!({
            "name": "dynamic", "period": 500_000, "load_limit": 20, "core_limit": 80, "core_busy": 95,
        });
        assert_eq!(call(&manager, SET, &dynamic), Ok(json!(true)));
        let options = json!({ "scheduling_core": 3, "isolated_core_mask": "0xc" });
        assert_eq!(call(&manager, SET_OPTIONS, &options), Ok(json!(true)));
        let expected = json!({
            "scheduler_name": "dynamic", "scheduler_period": 500_000, "load_limit": 20,
            "core_limit": 80, "core_busy": 95, "isolated_core_mask": "0xc", "scheduling_core": 3,
            "in_effect": "static",
        });
        assert_eq!(get(), expected);
        manager.start();
        let config =
            call(&manager, "framework_get_config", &json!({ "name": "scheduler" })).unwrap();
        let calls: Vec<&Value> =
            config.as_array().unwrap().iter().map(|call| &call["params"]).collect();
        assert_eq!(calls, [&dynamic, &options]);
        assert_eq!(call(&manager, SET, &json!({ "name": "gscheduler" })), Ok(json!(true)));
        assert_eq!(get()["scheduler_period"], 0, "what was set before is not in the call");
    }

    #[test]
    fn what_no_spdk_has_is_refused() {
        let manager = Manager::new(ManagerConfig::default(), Arc::new(Registry::new()));
        let error = call(&manager, SET, &json!({ "name": "fair" })).unwrap_err();
        assert_eq!(error.code, -libc::ENOENT);
        assert!(error.to_string().contains("none of static, dynamic, gscheduler"), "{error}");
        let error =
            call(&manager, SET, &json!({ "name": "dynamic", "load_limits": 3 })).unwrap_err();
        assert!(error.to_string().contains("load_limits"), "{error}");
        let options =
            |mask: &str| call(&manager, SET_OPTIONS, &json!({ "isolated_core_mask": mask }));
        assert_eq!(options("none").unwrap_err().code, code::INVALID_PARAMS);
        assert_eq!(options("0x0"), Ok(json!(true)));
    }
}
