//! Where hosts connect: `nvmf_subsystem_{add,remove}_listener`, `nvmf_subsystem_get_listeners`.

use serde::Deserialize;
use serde_json::{Value, json};

use super::AddressParams;
use crate::error::RpcError;
use crate::method::{Call, Registry, States};
use crate::params::refuse;

pub(super) fn register(registry: &mut Registry) {
    registry.change("nvmf_subsystem_add_listener", States::Runtime, add);
    registry.change("nvmf_subsystem_remove_listener", States::Runtime, remove);
    registry.read("nvmf_subsystem_get_listeners", States::Runtime, get);
}

/// SPDK's decoder is relaxed here.
#[derive(Deserialize)]
struct Add {
    nqn: String,
    listen_address: AddressParams,
    tgt_name: Option<String>,
    #[serde(default)]
    secure_channel: bool,
    ana_state: Option<String>,
    /// Ignored: there is one kind of sockets here.
    #[serde(rename = "sock_impl")]
    _sock_impl: Option<String>,
    #[serde(rename = "numa_id")]
    _numa_id: Option<i32>,
}

fn add(call: &Call<'_>, params: Add) -> Result<bool, RpcError> {
    let ana_state = params.ana_state.as_deref().unwrap_or("optimized");
    refuse(&[("secure_channel", params.secure_channel), ("ana_state", ana_state != "optimized")])?;
    let target = super::target_name(params.tgt_name);
    super::check_target(call.manager, &target)?;
    let (nqn, address) = (super::nqn(&params.nqn)?, params.listen_address.parse()?);
    call.manager
        .change(|change| change.add_listener(&target, &nqn, &address))
        .map_err(super::invalid)?;
    Ok(true)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Remove {
    nqn: String,
    listen_address: AddressParams,
    tgt_name: Option<String>,
}

fn remove(call: &Call<'_>, params: Remove) -> Result<bool, RpcError> {
    let target = super::target_name(params.tgt_name);
    super::check_target(call.manager, &target)?;
    let (nqn, address) = (super::nqn(&params.nqn)?, params.listen_address.parse()?);
    call.manager
        .change(|change| change.remove_listener(&target, &nqn, &address))
        .map_err(super::invalid)?;
    Ok(true)
}

fn get(call: &Call<'_>, params: super::subsystem::Query) -> Result<Vec<Value>, RpcError> {
    let model = call.manager.model();
    let (target, nqn) = params.find(&model)?;
    let listeners = match target.subsystems.get(&nqn) {
        Some(subsystem) => &subsystem.listeners,
        None => &target.discovery_listeners,
    };
    Ok(listeners.iter().map(|address| json!({ "address": address })).collect())
}
