//! Where hosts connect: `nvmf_subsystem_{add,remove}_listener`, `nvmf_subsystem_get_listeners`.

use raceline_proto::nvme::Nqn;
use raceline_target::ListenerAna;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{AddressParams, ana};
use crate::error::RpcError;
use crate::manager::ManagerError;
use crate::manager::nvmf::{ListenAddress, NvmfTarget, PortLevel, ana_states};
use crate::method::{Call, Registry, States};

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
    /// The level of its connections, where `secure_channel` does not say all of it.
    security: Option<String>,
    ana_state: Option<String>,
    /// Of single groups; SPDK's decoder overlooks it. Configurations that are saved here have it.
    #[serde(default)]
    ana_states: Vec<GroupState>,
    /// Ignored: there is one kind of sockets here.
    #[serde(rename = "sock_impl")]
    _sock_impl: Option<String>,
    #[serde(rename = "numa_id")]
    _numa_id: Option<i32>,
}

/// The state of one ANA group.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GroupState {
    ana_group: u32,
    ana_state: String,
}

fn add(call: &Call<'_>, params: Add) -> Result<bool, RpcError> {
    let mut ana = ListenerAna::default();
    if let Some(word) = &params.ana_state {
        ana.set(None, ana::state(word)?);
    }
    for GroupState { ana_group, ana_state } in &params.ana_states {
        ana.set(Some(*ana_group), ana::state(ana_state)?);
    }
    let target = super::target_name(params.tgt_name);
    super::check_target(call.manager, &target)?;
    let (nqn, address) = (super::nqn(&params.nqn)?, params.listen_address.parse_listener()?);
    let level = level(params.secure_channel, params.security.as_deref())?;
    if level.security.tls && admits_any_host(call, &target, &nqn) {
        // SPDK's text.
        let text = "Cannot establish secure channel, when 'allow_any_host' is set";
        return Err(RpcError::internal(text).because("a host without a key cannot connect there"));
    }
    call.manager
        .change(|change| change.add_listener(&target, &nqn, &address, (ana, level)))
        .map_err(super::invalid)?;
    Ok(true)
}

/// The level that both parameters say.
fn level(secure_channel: bool, security: Option<&str>) -> Result<PortLevel, RpcError> {
    let Some(word) = security else {
        return Ok(if secure_channel { PortLevel::TLS } else { PortLevel::default() });
    };
    let level: PortLevel = word.parse().map_err(super::refused)?;
    if secure_channel && !level.security.tls {
        return Err(super::refused(format!(
            "secure_channel is TLS, and security `{level}` is without"
        )));
    }
    Ok(level)
}

fn admits_any_host(call: &Call<'_>, target: &str, nqn: &Nqn) -> bool {
    let model = call.manager.model();
    let target = model.nvmf.target(target);
    let subsystem = target.and_then(|target| target.subsystem(nqn));
    subsystem.is_ok_and(|subsystem| subsystem.options.allow_any_host)
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
    let (nqn, address) = (super::nqn(&params.nqn)?, params.listen_address.parse_listener()?);
    call.manager
        .change(|change| change.remove_listener(&target, &nqn, &address))
        .map_err(super::invalid)?;
    Ok(true)
}

fn get(call: &Call<'_>, params: super::subsystem::Query) -> Result<Vec<Value>, RpcError> {
    let (cores, nqn, found) = {
        let model = call.manager.model();
        let (target, nqn) = params.find(&model)?;
        let Some(subsystem) = target.subsystems.get(&nqn) else {
            return Ok(target
                .discovery_listeners
                .iter()
                .map(|it| describe_level(target, it))
                .collect());
        };
        let cores = target.cores().filter(|_| subsystem.options.ana_reporting);
        let describe = |address: &ListenAddress| (address.clone(), describe_level(target, address));
        let found: Vec<_> = subsystem.listeners.iter().map(describe).collect();
        (cores, nqn, found)
    };
    // The model is free again before the target is called.
    let with_states = |(address, mut listener): (ListenAddress, Value)| {
        if let (Some(cores), Some(members)) = (&cores, listener.as_object_mut()) {
            let states = cores.ana_states(&nqn, address.place()?)?;
            let states = states.iter().map(|(group, state)| (group, state));
            members.insert("ana_states".to_owned(), ana_states(states));
        }
        Ok(listener)
    };
    let described: Result<Vec<Value>, ManagerError> = found.into_iter().map(with_states).collect();
    Ok(described?)
}

fn describe_level(target: &NvmfTarget, address: &ListenAddress) -> Value {
    let mut listener = json!({ "address": address });
    let level = target.level(address);
    if level.security.tls {
        listener["secure_channel"] = true.into();
    }
    if !level.is_of_spdk() {
        listener["security"] = level.to_string().into();
    }
    listener
}
