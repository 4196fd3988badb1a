//! `nvmf_{publish,stop}_mdns_prr`: the listeners of the discovery service, announced by multicast DNS.

use serde::Deserialize;

use crate::error::RpcError;
use crate::method::{Call, Registry, States};

pub(super) fn register(registry: &mut Registry) {
    registry.change("nvmf_publish_mdns_prr", States::Runtime, publish);
    registry.change("nvmf_stop_mdns_prr", States::Runtime, stop);
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Target {
    tgt_name: Option<String>,
}

fn publish(call: &Call<'_>, params: Target) -> Result<bool, RpcError> {
    let target = super::target_name(params.tgt_name);
    super::check_target(call.manager, &target)?;
    crate::methods::check_mdns()?;
    call.manager.change(|change| change.publish(&target))?;
    call.manager.follow_published();
    Ok(true)
}

fn stop(call: &Call<'_>, params: Target) -> Result<bool, RpcError> {
    let target = super::target_name(params.tgt_name);
    super::check_target(call.manager, &target)?;
    // As with SPDK, it is no error when nothing is announced.
    call.manager.change(|change| change.unpublish(&target))?;
    Ok(true)
}
