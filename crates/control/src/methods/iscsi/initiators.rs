//! Initiator groups.

use raceline_target::{InitiatorGroupConfig, InitiatorPattern, Netmask};
use serde::Deserialize;
use serde_json::Value;

use super::{invalid, tag};
use crate::error::RpcError;
use crate::manager::iscsi::initiator_group_params;
use crate::method::{Call, Registry, States};
use crate::params::NoParams;

pub(super) fn register(registry: &mut Registry) {
    registry.read("iscsi_get_initiator_groups", States::Runtime, get);
    registry.change("iscsi_create_initiator_group", States::Runtime, create);
    registry.change("iscsi_delete_initiator_group", States::Runtime, delete);
    registry.change("iscsi_initiator_group_add_initiators", States::Runtime, add);
    registry.change("iscsi_initiator_group_remove_initiators", States::Runtime, remove);
}

fn get(call: &Call<'_>, _params: NoParams) -> Result<Vec<Value>, RpcError> {
    let model = call.manager.model();
    Ok(model.iscsi.initiator_groups.values().map(initiator_group_params).collect())
}

fn patterns(texts: &[String]) -> Vec<InitiatorPattern> {
    texts.iter().map(|text| text.as_str().into()).collect()
}

fn netmasks(texts: &[String]) -> Result<Vec<Netmask>, RpcError> {
    texts.iter().map(|text| text.parse().map_err(RpcError::invalid_params)).collect()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Create {
    tag: i32,
    initiators: Vec<String>,
    netmasks: Vec<String>,
}

fn create(call: &Call<'_>, params: Create) -> Result<bool, RpcError> {
    let group = InitiatorGroupConfig {
        tag: tag(params.tag)?,
        initiators: patterns(&params.initiators),
        netmasks: netmasks(&params.netmasks)?,
    };
    call.manager.change(|change| change.create_initiator_group(group)).map_err(invalid)?;
    Ok(true)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Delete {
    tag: i32,
}

fn delete(call: &Call<'_>, params: Delete) -> Result<bool, RpcError> {
    let tag = tag(params.tag)?;
    call.manager.change(|change| change.delete_initiator_group(tag)).map_err(invalid)?;
    Ok(true)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Members {
    tag: i32,
    #[serde(default)]
    initiators: Vec<String>,
    #[serde(default)]
    netmasks: Vec<String>,
}

fn add(call: &Call<'_>, params: Members) -> Result<bool, RpcError> {
    let (tag, netmasks) = (tag(params.tag)?, netmasks(&params.netmasks)?);
    let initiators = patterns(&params.initiators);
    call.manager
        .change(|change| change.add_initiators(tag, initiators, netmasks))
        .map_err(invalid)?;
    Ok(true)
}

fn remove(call: &Call<'_>, params: Members) -> Result<bool, RpcError> {
    let (tag, netmasks) = (tag(params.tag)?, netmasks(&params.netmasks)?);
    let initiators = patterns(&params.initiators);
    call.manager
        .change(|change| change.remove_initiators(tag, &initiators, &netmasks))
        .map_err(invalid)?;
    Ok(true)
}
