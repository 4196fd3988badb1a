//! `nvmf_discovery_*`: registration with a centralized discovery controller (TP8010), of others here and of targets there.

use raceline_proto::nvme::registration::EntityKind;
use raceline_target::RegisteredInfo;
use serde::Deserialize;
use serde_json::{Value, json};

use super::AddressParams;
use crate::error::RpcError;
use crate::manager::central::{Registrar, Secure, show};
use crate::method::{Call, Registry, States};
use crate::methods::bdev::discovery_host;
use crate::methods::bdev::keys::{self, NamedPsk};

pub(super) fn register(registry: &mut Registry) {
    registry.change("nvmf_discovery_set_central", States::Runtime, set_central);
    registry.read("nvmf_discovery_get_registrations", States::Runtime, get);
    registry.change("nvmf_discovery_remove_registration", States::Runtime, remove);
    registry.change("nvmf_discovery_register", States::Runtime, add);
    registry.change("nvmf_discovery_unregister", States::Runtime, end);
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetCentral {
    enable: bool,
    tgt_name: Option<String>,
}

fn set_central(call: &Call<'_>, params: SetCentral) -> Result<bool, RpcError> {
    let target = super::target_name(params.tgt_name);
    super::check_target(call.manager, &target)?;
    call.manager.change(|change| change.set_central(&target, params.enable))?;
    Ok(true)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Target {
    tgt_name: Option<String>,
}

fn get(call: &Call<'_>, params: Target) -> Result<Value, RpcError> {
    let target = super::target_name(params.tgt_name);
    super::check_target(call.manager, &target)?;
    let registered = call.manager.registered(&target)?;
    let registrars = call.manager.model().nvmf.target(&target)?.registrars.clone();
    let places: Vec<Value> = registrars
        .iter()
        .map(|(address, registrar)| {
            let progress = registrar.progress();
            json!({
                "address": address,
                "hostnqn": registrar.host.hostnqn.as_str(),
                "entries": progress.entries,
                "problem": progress.problem,
            })
        })
        .collect();
    let is_central = registered.is_some();
    let registered: Vec<Value> = registered.iter().flatten().map(entity).collect();
    Ok(json!({ "central": is_central, "registered": registered, "registers_with": places }))
}

fn entity(info: &RegisteredInfo) -> Value {
    json!({
        "kind": match info.kind {
            EntityKind::Host => "host",
            EntityKind::Direct => "direct discovery controller",
            EntityKind::Centralized => "centralized discovery controller",
        },
        "nqn": info.nqn.as_str(),
        "hostnqn": info.host.to_string(),
        "name": info.name,
        "version": info.version,
        "entries": info.entries.iter().map(show).collect::<Vec<_>>(),
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Remove {
    nqn: String,
    tgt_name: Option<String>,
}

fn remove(call: &Call<'_>, params: Remove) -> Result<bool, RpcError> {
    let target = super::target_name(params.tgt_name);
    super::check_target(call.manager, &target)?;
    let nqn = super::nqn(&params.nqn)?;
    let cores = call.manager.model().nvmf.target(&target)?.cores();
    let removed = match cores {
        Some(cores) => cores.deregister(&nqn).map_err(|it| RpcError::internal(it.to_string()))?,
        None => false,
    };
    if !removed {
        let text = "has not registered here: nvmf_discovery_get_registrations lists what has";
        return Err(RpcError::errno(libc::ENOENT).because(format!("{nqn} {text}")));
    }
    Ok(true)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Register {
    address: AddressParams,
    hostnqn: Option<String>,
    psk: Option<String>,
    dhchap_key: Option<String>,
    dhchap_ctrlr_key: Option<String>,
    tgt_name: Option<String>,
}

fn add(call: &Call<'_>, params: Register) -> Result<bool, RpcError> {
    let target = super::target_name(params.tgt_name);
    super::check_target(call.manager, &target)?;
    let address = params.address.parse()?;
    let host = discovery_host(call.manager, &address, params.hostnqn.as_deref())?;
    let (host_key, controller_key) =
        (params.dhchap_key.as_deref(), params.dhchap_ctrlr_key.as_deref());
    let chap = keys::hold(call, host_key, controller_key)?;
    let psk = params.psk.as_deref().map(|name| NamedPsk::hold(call, name)).transpose()?;
    // A key may come back, and options may change, between two connections.
    let secure: Secure = Box::new(move |manager, config| {
        let credentials = keys::credentials(manager, chap.as_ref()).map_err(text)?;
        config.credentials.set(credentials);
        let streams = |psk: &NamedPsk| keys::streams(manager, &psk.psk(config)?).map_err(text);
        config.streams = psk.as_ref().map(streams).transpose()?;
        Ok(())
    });
    let registrar = Registrar::new(&target, host, secure);
    let names = [
        ("psk", params.psk),
        ("dhchap_key", params.dhchap_key),
        ("dhchap_ctrlr_key", params.dhchap_ctrlr_key),
    ];
    let names = names.into_iter().filter_map(|(what, name)| Some((what, name?)));
    call.manager.change(|change| change.add_registrar(&address, &registrar, names))?;
    call.manager.follow_registrar(&registrar)?;
    Ok(true)
}

fn text(error: RpcError) -> String {
    error.to_string()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Unregister {
    address: AddressParams,
    tgt_name: Option<String>,
}

fn end(call: &Call<'_>, params: Unregister) -> Result<bool, RpcError> {
    let target = super::target_name(params.tgt_name);
    super::check_target(call.manager, &target)?;
    let address = params.address.parse()?;
    call.manager.change(|change| change.remove_registrar(&target, &address))?;
    Ok(true)
}
