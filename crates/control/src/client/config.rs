//! Saving and loading configurations: what `rpc.py` does on its side, with several requests.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};
use thiserror::Error;

use super::{ClientError, Connection};

/// The method that ends the start-up state, where SPDK waits for it.
const START: &str = "framework_start_init";

/// Why a configuration was not saved or not loaded.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// A call failed.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The file is not such a configuration.
    #[error("the configuration {0}")]
    Form(String),
}

/// The running configuration: of all parts, or of those named and what they depend on.
pub fn save(
    connection: &mut Connection,
    parts: Option<&[String]>,
    with_batches: bool,
) -> Result<Value, ConfigError> {
    let listed = connection.call("framework_get_subsystems", &Map::new())?;
    let listed = listed.as_array().cloned().unwrap_or_default();
    let wanted = match parts {
        Some(parts) => Some(with_dependencies(&listed, parts)?),
        None => None,
    };
    let mut subsystems = Vec::new();
    for name in listed.iter().filter_map(|part| part["subsystem"].as_str()) {
        if wanted.as_ref().is_none_or(|wanted| wanted.contains(name)) {
            subsystems.push(save_part(connection, name, with_batches)?);
        }
    }
    Ok(json!({"subsystems": subsystems}))
}

/// The running configuration of one part.
pub fn save_part(
    connection: &mut Connection,
    name: &str,
    with_batches: bool,
) -> Result<Value, ConfigError> {
    let mut params = Map::from_iter([("name".to_owned(), Value::from(name))]);
    if with_batches {
        params.insert("with_batches".to_owned(), Value::Bool(true));
    }
    let config = connection.call("framework_get_config", &params)?;
    Ok(json!({"subsystem": name, "config": config}))
}

/// Everything that the named parts depend on, and they.
fn with_dependencies(listed: &[Value], parts: &[String]) -> Result<BTreeSet<String>, ConfigError> {
    let depends: BTreeMap<&str, Vec<&str>> = listed
        .iter()
        .filter_map(|part| {
            let on = part["depends_on"].as_array()?.iter().filter_map(Value::as_str).collect();
            Some((part["subsystem"].as_str()?, on))
        })
        .collect();
    let mut wanted = BTreeSet::new();
    let mut next: Vec<&str> = parts.iter().map(String::as_str).collect();
    while let Some(part) = next.pop() {
        let Some(on) = depends.get(part) else {
            return Err(ConfigError::Form(format!("has no part {part} in this daemon")));
        };
        if wanted.insert(part.to_owned()) {
            next.extend(on);
        }
    }
    Ok(wanted)
}

/// Makes a daemon what a saved configuration says; gives the calls that no state allowed.
///
/// Calls that belong before the start of a daemon that waits for it come first, then the start,
/// then the others; a daemon that runs already takes what its state allows.
pub fn load(
    connection: &mut Connection,
    config: &Value,
    include_aliases: bool,
) -> Result<Vec<String>, ConfigError> {
    let parts = config["subsystems"]
        .as_array()
        .ok_or_else(|| ConfigError::Form("has no list \"subsystems\"".to_owned()))?;
    let mut calls = Vec::new();
    for part in parts {
        collect(&part["config"], &mut calls)?;
    }
    load_calls(connection, calls, include_aliases)
}

/// The same for the configuration of one part.
pub fn load_part(connection: &mut Connection, part: &Value) -> Result<Vec<String>, ConfigError> {
    let mut calls = Vec::new();
    collect(&part["config"], &mut calls)?;
    load_calls(connection, calls, false)
}

type Call = (String, Map<String, Value>);

/// The calls of one part; those of a batch count one by one.
fn collect(config: &Value, calls: &mut Vec<Call>) -> Result<(), ConfigError> {
    let Some(elements) = config.as_array() else {
        // A part without configuration.
        return Ok(());
    };
    for element in elements {
        if element.is_array() {
            collect(element, calls)?;
            continue;
        }
        let Some(method) = element["method"].as_str() else {
            return Err(ConfigError::Form(format!("has an entry without a method: {element}")));
        };
        let params = element["params"].as_object().cloned().unwrap_or_default();
        calls.push((method.to_owned(), params));
    }
    Ok(())
}

fn load_calls(
    connection: &mut Connection,
    mut calls: Vec<Call>,
    include_aliases: bool,
) -> Result<Vec<String>, ConfigError> {
    let known = methods(connection, false, include_aliases)?;
    if let Some((method, _)) = calls.iter().find(|(method, _)| !known.contains(method)) {
        return Err(ConfigError::Form(format!("calls {method}, which this daemon does not have")));
    }
    loop {
        let allowed = methods(connection, true, include_aliases)?;
        let before = calls.len();
        let mut left = Vec::new();
        for (method, params) in calls {
            if allowed.contains(&method) {
                connection.call(&method, &params)?;
            } else {
                left.push((method, params));
            }
        }
        calls = left;
        let waits = allowed.contains(START);
        if waits {
            connection.call(START, &Map::new())?;
        }
        if calls.is_empty() || (!waits && calls.len() == before) {
            return Ok(calls.into_iter().map(|(method, _)| method).collect());
        }
    }
}

fn methods(
    connection: &mut Connection,
    current: bool,
    include_aliases: bool,
) -> Result<BTreeSet<String>, ConfigError> {
    let mut params = Map::new();
    for (name, value) in [("current", current), ("include_aliases", include_aliases)] {
        if value {
            params.insert(name.to_owned(), Value::Bool(true));
        }
    }
    let listed = connection.call("rpc_get_methods", &params)?;
    let names = listed.as_array().into_iter().flatten().filter_map(Value::as_str);
    Ok(names.map(str::to_owned).collect())
}

#[cfg(test)]
mod tests;
