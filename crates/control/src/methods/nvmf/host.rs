//! Which hosts may connect, and their keys: `nvmf_subsystem_{add,remove}_host`, `nvmf_subsystem_set_keys`,
//! `nvmf_subsystem_allow_any_host`.

use std::time::Duration;

use serde::Deserialize;

use crate::error::RpcError;
use crate::manager::ManagerError;
use crate::manager::nvmf::{KeyNames, Overlap};
use crate::method::{Call, Registry, States};

pub(super) fn register(registry: &mut Registry) {
    registry.change("nvmf_subsystem_add_host", States::Runtime, add);
    registry.change("nvmf_subsystem_set_keys", States::Runtime, set_keys);
    registry.change("nvmf_subsystem_remove_host", States::Runtime, remove);
    registry.change("nvmf_subsystem_allow_any_host", States::Runtime, allow_any);
}

/// How long the keys before go on holding beside new ones, in seconds, unless a call says otherwise: for as long as
/// hosts by default try again to connect (ctrl_loss_tmo).
const DEFAULT_OVERLAP_S: u64 = 600;
/// The longest overlap: a week.
const MAX_OVERLAP_S: u64 = 7 * 86_400;

/// SPDK's decoder is relaxed here.
#[derive(Deserialize)]
struct Add {
    nqn: String,
    host: String,
    tgt_name: Option<String>,
    psk: Option<String>,
    dhchap_key: Option<String>,
    dhchap_ctrlr_key: Option<String>,
    // What nvmf_subsystem_set_keys has left in a saved configuration.
    previous_dhchap_key: Option<String>,
    previous_dhchap_ctrlr_key: Option<String>,
    previous_until: Option<u64>,
    /// What its connections need besides what the subsystem demands.
    security: Option<String>,
}

fn add(call: &Call<'_>, params: Add) -> Result<bool, RpcError> {
    let target = super::target_name(params.tgt_name);
    super::check_target(call.manager, &target)?;
    let (nqn, host) = (super::nqn(&params.nqn)?, super::host_nqn(&params.host)?);
    call.manager.model().nvmf.target(&target)?.subsystem(&nqn).map_err(super::invalid)?;
    let names = KeyNames {
        psk: params.psk,
        dhchap_key: params.dhchap_key,
        dhchap_ctrlr_key: params.dhchap_ctrlr_key,
        previous_dhchap_key: params.previous_dhchap_key,
        previous_dhchap_ctrlr_key: params.previous_dhchap_ctrlr_key,
        previous_until: params.previous_until,
    };
    let security = super::security(params.security.as_deref())?.unwrap_or_default();
    let demands = (&names, security);
    let added = call.manager.change(|change| change.add_host(&target, &nqn, &host, demands));
    added.map_err(|error| match error {
        // As SPDK answers.
        ManagerError::Keyring(_) => super::refused(error),
        other => RpcError::internal("Internal error").because(other),
    })?;
    call.manager.follow_overlaps();
    Ok(true)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetKeys {
    nqn: String,
    host: String,
    tgt_name: Option<String>,
    dhchap_key: Option<String>,
    dhchap_ctrlr_key: Option<String>,
    /// How long the keys before hold as well.
    overlap_sec: Option<u64>,
    /// The keys before, if they are not those that the host has.
    previous_dhchap_key: Option<String>,
    previous_dhchap_ctrlr_key: Option<String>,
}

fn set_keys(call: &Call<'_>, params: SetKeys) -> Result<bool, RpcError> {
    let target = super::target_name(params.tgt_name);
    super::check_target(call.manager, &target)?;
    let (nqn, host) = (super::nqn(&params.nqn)?, super::host_nqn(&params.host)?);
    let overlap_s = params.overlap_sec.unwrap_or(DEFAULT_OVERLAP_S);
    if overlap_s > MAX_OVERLAP_S {
        return Err(super::refused(format!("overlap_sec is 0 to {MAX_OVERLAP_S}")));
    }
    {
        let model = call.manager.model();
        let found = model.nvmf.target(&target)?.subsystem(&nqn).map_err(super::invalid)?;
        if !found.hosts.iter().any(|listed| listed.nqn == host) {
            let detail = format!(
                "{host} is not on the list of {nqn}: nvmf_subsystem_add_host puts it there"
            );
            return Err(RpcError::errno(libc::EINVAL).because(detail));
        }
    }
    let overlap = Overlap {
        time: Duration::from_secs(overlap_s),
        dhchap_key: params.previous_dhchap_key,
        dhchap_ctrlr_key: params.previous_dhchap_ctrlr_key,
    };
    let keys = (params.dhchap_key, params.dhchap_ctrlr_key);
    let set =
        call.manager.change(|change| change.set_host_keys(&target, &nqn, &host, keys, overlap));
    set.map_err(|error| match error {
        ManagerError::Keyring(_) => super::refused(error),
        other => other.into(),
    })?;
    call.manager.follow_overlaps();
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
