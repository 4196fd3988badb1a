//! Portal groups.

use raceline_target::PortalGroupConfig;
use serde::Deserialize;
use serde_json::Value;

use super::{address, invalid, policy, portal_tag};
use crate::error::{RpcError, code};
use crate::manager::iscsi::portal_group_params;
use crate::method::{Call, Registry, States};
use crate::params::NoParams;

pub(super) fn register(registry: &mut Registry) {
    registry.read("iscsi_get_portal_groups", States::Runtime, get);
    registry.change("iscsi_create_portal_group", States::Runtime, create);
    registry.change("iscsi_start_portal_group", States::Runtime, start);
    registry.change("iscsi_delete_portal_group", States::Runtime, delete);
    registry.change("iscsi_portal_group_set_auth", States::Runtime, set_auth);
}

fn get(call: &Call<'_>, _params: NoParams) -> Result<Vec<Value>, RpcError> {
    Ok(call.manager.model().iscsi.portal_groups.values().map(portal_group_params).collect())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Portal {
    host: String,
    port: String,
    /// The cores of a portal, before SPDK 19.10: all cores serve every portal.
    #[serde(default, rename = "cpumask")]
    _cpumask: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Create {
    tag: i32,
    portals: Vec<Portal>,
    #[serde(default)]
    private: bool,
    #[serde(default)]
    wait: bool,
}

fn create(call: &Call<'_>, params: Create) -> Result<bool, RpcError> {
    let portals: Result<Vec<_>, RpcError> =
        params.portals.iter().map(|portal| address(&portal.host, &portal.port)).collect();
    let group = PortalGroupConfig {
        private: params.private,
        wait: params.wait,
        ..PortalGroupConfig::new(portal_tag(params.tag)?, portals?)
    };
    call.manager.change(|change| change.create_portal_group(group)).map_err(invalid)?;
    Ok(true)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tagged {
    tag: i32,
}

fn start(call: &Call<'_>, params: Tagged) -> Result<bool, RpcError> {
    let tag = portal_tag(params.tag)?;
    call.manager.change(|change| change.start_portal_group(tag)).map_err(invalid)?;
    Ok(true)
}

fn delete(call: &Call<'_>, params: Tagged) -> Result<bool, RpcError> {
    let tag = portal_tag(params.tag)?;
    call.manager.change(|change| change.delete_portal_group(tag)).map_err(invalid)?;
    Ok(true)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetAuth {
    tag: i32,
    #[serde(default)]
    disable_chap: bool,
    #[serde(default)]
    require_chap: bool,
    #[serde(default)]
    mutual_chap: bool,
    #[serde(default)]
    chap_group: i32,
}

fn set_auth(call: &Call<'_>, params: SetAuth) -> Result<bool, RpcError> {
    let SetAuth { tag, disable_chap, require_chap, mutual_chap, chap_group } = params;
    let tag = portal_tag(tag)?;
    let policy = policy(disable_chap, require_chap, mutual_chap, chap_group);
    let policy = policy.map_err(|error| {
        RpcError::new(code::INVALID_PARAMS, "Invalid combination of auth params").because(error)
    })?;
    call.manager.change(|change| change.set_portal_group_auth(tag, policy)).map_err(invalid)?;
    Ok(true)
}
