//! Target nodes and their LUNs.

use raceline_bdev::{Histogram, HistogramShape};
use raceline_target::PortalMap;
use serde::Deserialize;
use serde_json::Value;

use super::{address, invalid, policy, portal_tag, tag};
use crate::error::{RpcError, code};
use crate::manager::iscsi::{NewNode, node_params};
use crate::method::{Call, Registry, States};
use crate::methods::bdev::describe_histogram;
use crate::params::NoParams;

pub(super) fn register(registry: &mut Registry) {
    registry.read("iscsi_get_target_nodes", States::Runtime, get);
    registry.change("iscsi_create_target_node", States::Runtime, create);
    registry.change("iscsi_delete_target_node", States::Runtime, delete);
    registry.change("iscsi_target_node_add_lun", States::Runtime, add_lun);
    registry.change("iscsi_target_node_remove_lun", States::Runtime, remove_lun);
    registry.change("iscsi_target_node_add_pg_ig_maps", States::Runtime, add_maps);
    registry.change("iscsi_target_node_remove_pg_ig_maps", States::Runtime, remove_maps);
    registry.change("iscsi_target_node_set_auth", States::Runtime, set_auth);
    registry.change("iscsi_target_node_set_redirect", States::Runtime, set_redirect);
    registry.change("iscsi_enable_histogram", States::Runtime, enable_histogram);
    registry.read("iscsi_get_histogram", States::Runtime, get_histogram);
}

/// Target nodes as SPDK has them; a LUN whose device is missing says why.
fn get(call: &Call<'_>, _params: NoParams) -> Result<Vec<Value>, RpcError> {
    let model = call.manager.model();
    let describe = |(name, node): (&String, &crate::manager::iscsi::Node)| {
        let mut shown = node_params(name, node);
        for (place, lun) in node.luns.values().enumerate() {
            if let Some(reason) = &lun.missing {
                shown["luns"][place]["missing"] = reason.as_str().into();
            }
        }
        shown
    };
    Ok(model.iscsi.nodes.iter().map(describe).collect())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Map {
    ig_tag: i32,
    pg_tag: i32,
}

fn maps(maps: &[Map]) -> Result<Vec<PortalMap>, RpcError> {
    let checked = |map: &Map| {
        Ok(PortalMap { portal_group: portal_tag(map.pg_tag)?, initiator_group: tag(map.ig_tag)? })
    };
    maps.iter().map(checked).collect()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Lun {
    bdev_name: String,
    lun_id: i32,
}

fn lun_number(number: i32) -> Result<u16, RpcError> {
    let wrong = |_| RpcError::invalid_params(format!("lun_id {number} is not within 0 to 255"));
    u16::try_from(number).map_err(wrong)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Create {
    name: String,
    alias_name: String,
    pg_ig_maps: Vec<Map>,
    luns: Vec<Lun>,
    queue_depth: i32,
    #[serde(default)]
    disable_chap: bool,
    #[serde(default)]
    require_chap: bool,
    #[serde(default)]
    mutual_chap: bool,
    #[serde(default)]
    chap_group: i32,
    #[serde(default)]
    header_digest: bool,
    #[serde(default)]
    data_digest: bool,
}

fn create(call: &Call<'_>, params: Create) -> Result<bool, RpcError> {
    let Create { disable_chap, require_chap, mutual_chap, chap_group, .. } = params;
    let auth = policy(disable_chap, require_chap, mutual_chap, chap_group);
    let luns: Result<Vec<(u16, String)>, RpcError> =
        params.luns.into_iter().map(|lun| Ok((lun_number(lun.lun_id)?, lun.bdev_name))).collect();
    let new = NewNode {
        name: params.name,
        alias: params.alias_name,
        maps: maps(&params.pg_ig_maps)?,
        luns: luns?,
        queue_depth: params.queue_depth,
        auth: auth.map_err(RpcError::invalid_params)?,
        header_digest: params.header_digest,
        data_digest: params.data_digest,
    };
    call.manager.change(|change| change.create_target_node(new)).map_err(invalid)?;
    Ok(true)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Delete {
    name: String,
}

fn delete(call: &Call<'_>, params: Delete) -> Result<bool, RpcError> {
    call.manager.change(|change| change.delete_target_node(&params.name)).map_err(invalid)?;
    Ok(true)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AddLun {
    name: String,
    bdev_name: String,
    lun_id: Option<i32>,
}

fn add_lun(call: &Call<'_>, params: AddLun) -> Result<bool, RpcError> {
    // SPDK's clients write -1 for the lowest free number.
    let number = params.lun_id.filter(|number| *number != -1).map(lun_number).transpose()?;
    call.manager
        .change(|change| change.add_lun(&params.name, &params.bdev_name, number))
        .map_err(invalid)?;
    Ok(true)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RemoveLun {
    name: String,
    lun_id: i32,
}

fn remove_lun(call: &Call<'_>, params: RemoveLun) -> Result<bool, RpcError> {
    let number = lun_number(params.lun_id)?;
    call.manager.change(|change| change.remove_lun(&params.name, number)).map_err(invalid)?;
    Ok(true)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Maps {
    name: String,
    pg_ig_maps: Vec<Map>,
}

fn add_maps(call: &Call<'_>, params: Maps) -> Result<bool, RpcError> {
    let maps = maps(&params.pg_ig_maps)?;
    call.manager.change(|change| change.add_maps(&params.name, &maps)).map_err(invalid)?;
    Ok(true)
}

fn remove_maps(call: &Call<'_>, params: Maps) -> Result<bool, RpcError> {
    let maps = maps(&params.pg_ig_maps)?;
    call.manager.change(|change| change.remove_maps(&params.name, &maps)).map_err(invalid)?;
    Ok(true)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetAuth {
    name: String,
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
    let SetAuth { name, disable_chap, require_chap, mutual_chap, chap_group } = params;
    check_node(call, &name, "Could not find target")?;
    let policy = policy(disable_chap, require_chap, mutual_chap, chap_group);
    let policy = policy.map_err(|error| {
        RpcError::new(code::INVALID_PARAMS, "Invalid combination of auth params").because(error)
    })?;
    call.manager.change(|change| change.set_node_auth(&name, policy)).map_err(invalid)?;
    Ok(true)
}

/// SPDK's answer when there is no such node.
pub(super) fn check_node(call: &Call<'_>, name: &str, text: &str) -> Result<(), RpcError> {
    let found = call.manager.model().iscsi.node(name).map(drop);
    found.map_err(|error| {
        let text = format!("{text} {}", name.escape_debug());
        RpcError::new(code::INVALID_PARAMS, text).because(error)
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EnableHistogram {
    name: String,
    enable: bool,
}

fn enable_histogram(call: &Call<'_>, params: EnableHistogram) -> Result<bool, RpcError> {
    call.manager
        .change(|change| change.set_histogram(&params.name, params.enable))
        .map_err(invalid)?;
    Ok(true)
}

/// As bdev_get_histogram answers.
fn get_histogram(call: &Call<'_>, params: Delete) -> Result<Value, RpcError> {
    check_node(call, &params.name, "target not found:")?;
    // The model is free again before the target is called.
    let (name, is_enabled, cores) = {
        let model = call.manager.model();
        let (name, node) = model.iscsi.node(&params.name).map_err(invalid)?;
        (name, node.histogram, model.iscsi_cores())
    };
    let histogram = match cores {
        Some(cores) => cores.iscsi().histogram(&name).ok().flatten(),
        // Nobody has logged in so far.
        None => is_enabled.then(|| Histogram::empty(HistogramShape::default())),
    };
    let histogram = histogram.ok_or_else(|| {
        let name = name.escape_debug();
        RpcError::new(code::INVALID_PARAMS, "target's histogram function is not enabled")
            .because(format!("`{name}` has no histogram: iscsi_enable_histogram starts one"))
    })?;
    Ok(describe_histogram(&histogram))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetRedirect {
    name: String,
    pg_tag: i32,
    redirect_host: Option<String>,
    redirect_port: Option<String>,
}

fn set_redirect(call: &Call<'_>, params: SetRedirect) -> Result<bool, RpcError> {
    check_node(call, &params.name, "Target is not found:")?;
    let to = match (&params.redirect_host, &params.redirect_port) {
        (Some(host), Some(port)) => Some(address(host, port)?),
        (None, None) => None,
        _ => {
            let text = "redirect_host and redirect_port come together; without both, logins are not sent elsewhere";
            return Err(RpcError::invalid_params(text));
        }
    };
    let tag = portal_tag(params.pg_tag)?;
    call.manager.change(|change| change.set_redirect(&params.name, tag, to)).map_err(invalid)?;
    Ok(true)
}
