//! Before the start: `nvmf_set_config`, `nvmf_set_crdt`, `nvmf_set_max_subsystems`.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::cores::parse_cores;
use crate::error::RpcError;
use crate::manager::catalogue::{Entry, Section};
use crate::manager::nvmf::DEFAULT_TARGET;
use crate::manager::options::{FilterOptions, algorithms, option_key};
use crate::method::{Call, Registry, States};
use crate::params::refuse;

pub(super) fn register(registry: &mut Registry) {
    registry.change("nvmf_set_config", States::Startup, set_config);
    registry.alias("set_nvmf_target_config", "nvmf_set_config");
    registry.change("nvmf_set_crdt", States::Startup, set_crdt);
    registry.change("nvmf_set_max_subsystems", States::Startup, set_max_subsystems);
    registry.alias("set_nvmf_target_max_subsystems", "nvmf_set_max_subsystems");
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetConfig {
    #[serde(default)]
    admin_cmd_passthru: BTreeMap<String, bool>,
    poll_groups_mask: Option<String>,
    /// One text, parts separated by commas.
    discovery_filter: Option<String>,
    /// The same as a list.
    discovery_filters: Option<Vec<String>>,
    /// The hash functions with which hosts may authenticate.
    dhchap_digests: Option<Vec<String>>,
    /// The groups with which hosts may authenticate.
    dhchap_dhgroups: Option<Vec<String>>,
    dup_host_policy: Option<String>,
    /// How often listening sockets are polled. Ignored: the kernel reports connections.
    #[serde(rename = "acceptor_poll_rate")]
    _acceptor_poll_rate: Option<u32>,
    /// How the first clients of SPDK chose the distribution of connections.
    #[serde(rename = "conn_sched")]
    _conn_sched: Option<String>,
}

fn set_config(call: &Call<'_>, params: SetConfig) -> Result<bool, RpcError> {
    let policy = params.dup_host_policy.as_deref().unwrap_or("allow");
    refuse(&[
        ("admin_cmd_passthru", params.admin_cmd_passthru.values().any(|wanted| *wanted)),
        ("dup_host_policy", policy != "allow"),
    ])?;
    let parts = match (params.discovery_filters, params.discovery_filter) {
        (Some(parts), _) => parts,
        (None, Some(text)) => text.split(',').map(str::to_owned).collect(),
        (None, None) => Vec::new(),
    };
    let filter = parse_filter(&parts)?;
    let (digests, dhgroups) = (params.dhchap_digests, params.dhchap_dhgroups);
    let algorithms = algorithms(digests.as_deref(), dhgroups.as_deref());
    let algorithms = algorithms.map_err(RpcError::invalid_params)?;
    let cores = match &params.poll_groups_mask {
        None => Vec::new(),
        Some(mask) => parse_subset(mask, &call.manager.config().cores)?,
    };
    call.manager.change(|change| {
        let mut kept = json!({ "discovery_filter": filter.to_string() });
        if let Some(members) = kept.as_object_mut() {
            let mut keep = |name: &str, value: Option<Value>| {
                members.extend(value.map(|value| (name.to_owned(), value)));
            };
            keep("poll_groups_mask", params.poll_groups_mask.map(Value::from));
            keep("dhchap_digests", digests.map(Value::from));
            keep("dhchap_dhgroups", dhgroups.map(Value::from));
        }
        {
            let options = &mut change.model_mut().target_options;
            (options.filter, options.cores, options.algorithms) = (filter, cores, algorithms);
        }
        change.put(option_key("nvmf"), Entry::new(Section::Nvmf, "nvmf_set_config", &kept)?);
        Ok(true)
    })
}

/// A filter as a text or as a list.
pub(super) fn filter(value: &Value) -> Result<FilterOptions, RpcError> {
    let parts: Option<Vec<String>> = match value {
        Value::String(text) => Some(text.split(',').map(str::to_owned).collect()),
        Value::Array(list) => list.iter().map(|part| part.as_str().map(str::to_owned)).collect(),
        _ => None,
    };
    let parts = parts.ok_or_else(|| {
        RpcError::invalid_params("discovery_filter: a text, or a list of texts, is expected")
    })?;
    parse_filter(&parts)
}

fn parse_filter(parts: &[String]) -> Result<FilterOptions, RpcError> {
    let mut filter = FilterOptions::default();
    for part in parts {
        match part.trim() {
            "match_any" if parts.len() == 1 => {}
            "transport" => filter.transport = true,
            "address" => filter.address = true,
            "svcid" => filter.svcid = true,
            other => {
                let detail = format!(
                    "discovery_filter `{}`: use match_any alone, or transport, address, svcid",
                    other.escape_debug()
                );
                return Err(RpcError::invalid_params(detail));
            }
        }
    }
    Ok(filter)
}

fn parse_subset(mask: &str, all: &[usize]) -> Result<Vec<usize>, RpcError> {
    let cores = parse_cores(mask).map_err(RpcError::invalid_params)?;
    match cores.iter().find(|core| !all.contains(core)) {
        None => Ok(cores),
        Some(core) => {
            let detail = format!("poll_groups_mask names core {core}, which -m does not");
            Err(RpcError::invalid_params(detail))
        }
    }
}

#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct SetCrdt {
    #[serde(default)]
    crdt1: u16,
    #[serde(default)]
    crdt2: u16,
    #[serde(default)]
    crdt3: u16,
}

fn set_crdt(call: &Call<'_>, params: SetCrdt) -> Result<bool, RpcError> {
    let SetCrdt { crdt1, crdt2, crdt3 } = params;
    call.manager.change(|change| {
        change.model_mut().target_options.retry_delays = [crdt1, crdt2, crdt3];
        let kept: Value = json!({ "crdt1": crdt1, "crdt2": crdt2, "crdt3": crdt3 });
        change.put(option_key("nvmf-crdt"), Entry::new(Section::Nvmf, "nvmf_set_crdt", &kept)?);
        Ok(true)
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetMaxSubsystems {
    max_subsystems: u32,
}

fn set_max_subsystems(call: &Call<'_>, params: SetMaxSubsystems) -> Result<bool, RpcError> {
    let key = option_key("nvmf-max");
    if call.manager.model().catalogue.get(&key).is_some() {
        return Err(RpcError::internal("Must not call more than once"));
    }
    if params.max_subsystems == 0 {
        return Err(RpcError::invalid_params("max_subsystems must be at least 1"));
    }
    call.manager.change(|change| {
        change.set_max_subsystems(DEFAULT_TARGET, params.max_subsystems)?;
        let kept = json!({ "max_subsystems": params.max_subsystems });
        change.put(key, Entry::new(Section::Nvmf, "nvmf_set_max_subsystems", &kept)?);
        Ok(true)
    })
}
