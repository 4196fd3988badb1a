//! `nvmf_get_stats`.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::error::RpcError;
use crate::method::{Call, Registry, States};

/// Times are given in nanoseconds.
pub(super) const TICK_RATE: u64 = 1_000_000_000;

pub(super) fn register(registry: &mut Registry) {
    registry.read("nvmf_get_stats", States::Runtime, get);
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Get {
    tgt_name: Option<String>,
}

fn get(call: &Call<'_>, params: Get) -> Result<Value, RpcError> {
    let name = super::target_name(params.tgt_name);
    super::check_target(call.engine, &name)?;
    let cores = call.engine.model().nvmf.target(&name)?.cores();
    let groups: Vec<Value> = cores
        .iter()
        .flat_map(|cores| cores.stats().connections)
        .enumerate()
        .map(|(index, connections)| {
            json!({
                "name": format!("nvmf_tgt_poll_group_{index:03}"),
                "current_io_qpairs": connections,
            })
        })
        .collect();
    Ok(json!({ "tick_rate": TICK_RATE, "poll_groups": groups }))
}
