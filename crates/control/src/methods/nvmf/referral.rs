//! Other places where hosts may look: `nvmf_discovery_*_referral(s)`.

use serde::Deserialize;

use super::AddressParams;
use crate::error::RpcError;
use crate::manager::nvmf::Referral;
use crate::method::{Call, Registry, States};

pub(super) fn register(registry: &mut Registry) {
    registry.change("nvmf_discovery_add_referral", States::Runtime, add);
    registry.change("nvmf_discovery_remove_referral", States::Runtime, remove);
    registry.read("nvmf_discovery_get_referrals", States::Runtime, get);
}

/// SPDK's decoder is relaxed here.
#[derive(Deserialize)]
struct Add {
    address: AddressParams,
    tgt_name: Option<String>,
    #[serde(default)]
    secure_channel: bool,
    subnqn: Option<String>,
}

fn add(call: &Call<'_>, params: Add) -> Result<bool, RpcError> {
    let target = super::target_name(params.tgt_name);
    super::check_target(call.manager, &target)?;
    let referral = referral(&params.address, params.secure_channel, params.subnqn)?;
    let added = call.manager.change(|change| change.add_referral(&target, referral));
    added.map_err(|error| RpcError::internal("Internal error").because(error))?;
    Ok(true)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Remove {
    address: AddressParams,
    tgt_name: Option<String>,
    subnqn: Option<String>,
}

fn remove(call: &Call<'_>, params: Remove) -> Result<bool, RpcError> {
    let target = super::target_name(params.tgt_name);
    super::check_target(call.manager, &target)?;
    let referral = referral(&params.address, false, params.subnqn)?;
    let removed = call.manager.change(|change| change.remove_referral(&target, &referral));
    removed.map_err(|error| RpcError::internal("Unable to remove a referral.").because(error))?;
    Ok(true)
}

fn referral(
    address: &AddressParams,
    secure_channel: bool,
    subnqn: Option<String>,
) -> Result<Referral, RpcError> {
    if address.trsvcid.as_deref().unwrap_or("").is_empty() {
        return Err(RpcError::internal("Service ID is required."));
    }
    let subnqn = super::nqn(subnqn.as_deref().unwrap_or(super::DISCOVERY_WORD))?;
    let subnqn = subnqn.as_str().to_owned();
    let address = address.parse_listener()?;
    if secure_channel && address.is_rdma() {
        let text = "secure_channel is for TCP: nothing encrypts RDMA";
        return Err(RpcError::invalid_params(text));
    }
    Ok(Referral { address, secure_channel, subnqn })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Get {
    tgt_name: Option<String>,
}

fn get(call: &Call<'_>, params: Get) -> Result<Vec<Referral>, RpcError> {
    let target = super::target_name(params.tgt_name);
    super::check_target(call.manager, &target)?;
    Ok(call.manager.model().nvmf.target(&target)?.referrals.clone())
}
