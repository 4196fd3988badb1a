//! Saving and loading configurations: what `rpc.py` does on its side, with several requests.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};
use thiserror::Error;

use super::{ClientError, Connection};
use crate::absent::THIS_DAEMON;
use crate::configuration::{Looked, look};
use crate::method::Registry;
use crate::state::{self, SubsystemConfig};

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
    /// It has calls that the daemon cannot make.
    #[error("{0}")]
    Refused(String),
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

/// The named parts and every part that they depend on.
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

/// What loading has come to.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// The calls that no state allowed.
    pub skipped: Vec<String>,
    /// The calls that the daemon keeps without effect, in one line.
    pub kept: Option<String>,
}

/// Makes a daemon what a saved configuration says.
///
/// All calls are checked first: if the daemon does not have one of the methods, no call is made. If the
/// daemon waits for its start, the calls that belong before it come first, then the start, then the other
/// calls. A daemon that runs already gets the calls that its state allows.
pub fn load(
    connection: &mut Connection,
    sections: &[SubsystemConfig],
) -> Result<Loaded, ConfigError> {
    let known = methods(connection, false)?;
    let kept = look_at(connection, &known, sections)?;
    let calls = sections.iter().flat_map(|section| &section.config);
    let skipped = load_calls(connection, calls.map(parts).collect::<Result<_, _>>()?)?;
    Ok(Loaded { skipped, kept })
}

/// Checks, as far as possible before a call is made, whether a daemon with these methods can take a
/// configuration; gives the calls that the daemon keeps without effect.
pub fn look_at(
    connection: &mut Connection,
    known: &BTreeSet<String>,
    sections: &[SubsystemConfig],
) -> Result<Option<String>, ConfigError> {
    let check = |call: &state::Call| match known.contains(&call.method) {
        true => parts(call).map(drop).map_err(|error| error.to_string()),
        false => Err(String::new()),
    };
    let registry = Registry::new();
    let is_kept = |call: &state::Call| registry.has_no_effect(&call.method, call.params.as_ref());
    let Looked { kept, refused } = look(sections, THIS_DAEMON, check, is_kept);
    match (refused, kept) {
        (Some(refused), _) => Err(ConfigError::Refused(refused)),
        (None, Some(kept)) if is_ours(connection)? => Ok(Some(kept)),
        (None, _) => Ok(None),
    }
}

/// Whether the daemon is Raceline: another program may act on calls that Raceline only keeps.
pub fn is_ours(connection: &mut Connection) -> Result<bool, ConfigError> {
    let version = connection.call("spdk_get_version", &Map::new())?;
    Ok(version["server"]["name"] == "raceline")
}

type Call = (String, Map<String, Value>);

/// The method and the parameters of a call.
fn parts(call: &state::Call) -> Result<Call, ConfigError> {
    let params = match &call.params {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(params)) => params.clone(),
        Some(_) => return Err(ConfigError::Form("has parameters that are no object".to_owned())),
    };
    Ok((call.method.clone(), params))
}

fn load_calls(
    connection: &mut Connection,
    mut calls: Vec<Call>,
) -> Result<Vec<String>, ConfigError> {
    loop {
        let allowed = methods(connection, true)?;
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

/// The methods that a daemon has, also by old names; with `current`, only those that its state allows.
pub fn methods(
    connection: &mut Connection,
    current: bool,
) -> Result<BTreeSet<String>, ConfigError> {
    let mut params = Map::from_iter([("include_aliases".to_owned(), Value::Bool(true))]);
    if current {
        params.insert("current".to_owned(), Value::Bool(true));
    }
    let listed = connection.call("rpc_get_methods", &params)?;
    let names = listed.as_array().into_iter().flatten().filter_map(Value::as_str);
    Ok(names.map(str::to_owned).collect())
}

#[cfg(test)]
mod tests;
