//! `raceline_get_changes`, `raceline_get_config_before`: what has been changed, and the way back.

use serde::Deserialize;
use serde_json::{Value, json};

use super::framework::section_calls;
use crate::error::RpcError;
use crate::manager::catalogue::Section;
use crate::method::{Call, Registry, States};

pub(super) fn register(registry: &mut Registry) {
    registry.read("raceline_get_changes", States::Runtime, get_changes);
    registry.read("raceline_get_config_before", States::Runtime, get_config_before);
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct GetChanges {
    /// Only so many of the last ones.
    last: Option<usize>,
}

/// The last changes, newest first.
fn get_changes(call: &Call<'_>, params: GetChanges) -> Result<Vec<Value>, RpcError> {
    let changes = call.manager.history().changes();
    let last = changes.iter().rev().take(params.last.unwrap_or(usize::MAX));
    Ok(last
        .map(|past| {
            json!({
                "number": past.number,
                "time": past.time_s,
                "caller": past.caller,
                "effects": past.effects,
                "can_undo": past.undo.is_some(),
            })
        })
        .collect())
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct GetConfigBefore {
    /// The change; by default the last one.
    number: Option<u64>,
}

/// The whole configuration as it was before a change, in the form of `save_config`.
fn get_config_before(call: &Call<'_>, params: GetConfigBefore) -> Result<Value, RpcError> {
    let found = call.manager.configuration_before(params.number);
    let (number, catalogue) =
        found.map_err(|error| RpcError::errno(libc::ENOENT).because(error))?;
    let has_calls = |section: &Section| catalogue.section(*section).next().is_some();
    let shown = Section::ALL
        .into_iter()
        .filter(|section| !section.is_shown_with_calls() || has_calls(section));
    let subsystems: Vec<Value> = shown
        .map(|section| {
            let config = section_calls(call, &catalogue, section);
            json!({ "subsystem": section.name(), "config": config })
        })
        .collect();
    Ok(json!({ "number": number, "subsystems": subsystems }))
}

#[cfg(test)]
mod tests;
