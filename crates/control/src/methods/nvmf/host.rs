//! Which hosts may connect: `nvmf_subsystem_{add,remove}_host`, `nvmf_subsystem_allow_any_host`.

use serde::Deserialize;

use crate::error::RpcError;
use crate::method::{Call, Registry, States};
use crate::params::refuse;

pub(super) fn register(registry: &mut Registry) {
    registry.change("nvmf_subsystem_add_host", States::Runtime, add);
    registry.change("nvmf_subsystem_remove_host", States::Runtime, remove);
    registry.change("nvmf_subsystem_allow_any_host", States::Runtime, allow_any);
}

/// SPDK's decoder is relaxed here.
#[derive(Deserialize)]
struct Add {
    nqn: String,
    host: String,
    tgt_name: Option<String>,
    psk: Option<String>,
    dhchap_key: Option<String>,
    dhchap_ctrlr_key: Option<String>,
}

fn add(call: &Call<'_>, params: Add) -> Result<bool, RpcError> {
    refuse(&[
        ("psk", params.psk.is_some()),
        ("dhchap_key", params.dhchap_key.is_some()),
        ("dhchap_ctrlr_key", params.dhchap_ctrlr_key.is_some()),
    ])?;
    let target = super::target_name(params.tgt_name);
    super::check_target(call.manager, &target)?;
    let (nqn, host) = (super::nqn(&params.nqn)?, super::host_nqn(&params.host)?);
    call.manager.model().nvmf.target(&target)?.subsystem(&nqn).map_err(super::invalid)?;
    let added = call.manager.change(|change| change.add_host(&target, &nqn, &host));
    added.map_err(|error| RpcError::internal("Internal error").because(error))?;
    Ok(true)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Remove {
    nqn: String,
    host: String,
    tgt_name: Option<String>,
    /// How long the host's connections may take to close. Ignored: the target's own limit applies.
    #[serde(rename = "timeout_ms")]
    _timeout_ms: Option<u64>,
}

fn remove(call: &Call<'_>, params: Remove) -> Result<bool, RpcError> {
    let target = super::target_name(params.tgt_name);
    super::check_target(call.manager, &target)?;
    let (nqn, host) = (super::nqn(&params.nqn)?, super::host_nqn(&params.host)?);
    call.manager.model().nvmf.target(&target)?.subsystem(&nqn).map_err(super::invalid)?;
    let removed = call.manager.change(|change| change.remove_host(&target, &nqn, &host));
    removed.map_err(|error| RpcError::internal("Internal error").because(error))?;
    Ok(true)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AllowAny {
    nqn: String,
    allow_any_host: bool,
    tgt_name: Option<String>,
}

fn allow_any(call: &Call<'_>, params: AllowAny) -> Result<bool, RpcError> {
    let target = super::target_name(params.tgt_name);
    super::check_target(call.manager, &target)?;
    let nqn = super::nqn(&params.nqn)?;
    let allow = params.allow_any_host;
    call.manager
        .change(|change| change.allow_any_host(&target, &nqn, allow))
        .map_err(super::invalid)?;
    Ok(true)
}
