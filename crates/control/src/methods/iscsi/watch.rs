//! Who is connected by iSCSI, and what is told to initiators: connections, counts, logouts, SCSI devices.

use raceline_target::IscsiConnectionInfo;
use serde::Deserialize;
use serde_json::{Value, json};

use super::nodes::check_node;
use super::portal_tag;
use crate::error::RpcError;
use crate::manager::Manager;
use crate::manager::nvmf::DEFAULT_TARGET;
use crate::method::{Call, Registry, States};
use crate::params::NoParams;

pub(super) fn register(registry: &mut Registry) {
    registry.read("iscsi_get_connections", States::Runtime, connections);
    registry.read("iscsi_get_stats", States::Runtime, stats);
    registry.change("iscsi_target_node_request_logout", States::Runtime, request_logout);
    registry.read("scsi_get_devices", States::Runtime, devices);
}

/// The connections, by target node and initiator.
fn listed(manager: &Manager) -> Vec<IscsiConnectionInfo> {
    let cores = manager.model().iscsi_cores();
    cores.map_or_else(Vec::new, |cores| cores.iscsi().connections())
}

/// Connections as SPDK has them; the names of initiator and target node, and the portal group, are further members.
fn connections(call: &Call<'_>, _params: NoParams) -> Result<Vec<Value>, RpcError> {
    let describe = |(id, connection): (usize, &IscsiConnectionInfo)| {
        let target = &connection.target;
        json!({
            "id": id,
            "cid": connection.cid,
            "tsih": connection.tsih,
            "state": "running",
            "login_phase": "full_feature_phase",
            "initiator_addr": connection.peer.ip().to_string(),
            "target_addr": connection.local.ip().to_string(),
            // SPDK has the part after the naming authority here.
            "target_node_name": target.split_once(':').map_or(target.as_str(), |(_, name)| name),
            "thread_name": format!("{DEFAULT_TARGET}_poll_group_{:03}", connection.core),
            "initiator_name": connection.initiator,
            "target_name": target,
            "pg_tag": connection.portal_group,
        })
    };
    Ok(listed(call.manager).iter().enumerate().map(describe).collect())
}

/// Counts of connections. Those that have ended are forgotten at once here.
fn stats(call: &Call<'_>, _params: NoParams) -> Result<Value, RpcError> {
    let running = listed(call.manager).len();
    Ok(json!({ "invalid": 0, "running": running, "exiting": 0, "exited": 0 }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RequestLogout {
    name: String,
    pg_tag: Option<i32>,
}

fn request_logout(call: &Call<'_>, params: RequestLogout) -> Result<bool, RpcError> {
    check_node(call, &params.name, "Target is not found:")?;
    // SPDK's clients write -1 for all of them.
    let tag = params.pg_tag.filter(|tag| *tag != -1).map(portal_tag).transpose()?;
    let (cores, name) = {
        let model = call.manager.model();
        (model.iscsi_cores(), model.iscsi.full_name(&params.name))
    };
    if let Some(cores) = cores {
        let asked = cores.iscsi().request_logout(&name, tag);
        asked.map_err(|error| RpcError::invalid_params(error.to_string()))?;
    }
    Ok(true)
}

/// One SCSI device for each target node, as in SPDK.
fn devices(call: &Call<'_>, _params: NoParams) -> Result<Vec<Value>, RpcError> {
    let model = call.manager.model();
    let names = model.iscsi.nodes.keys().enumerate();
    Ok(names.map(|(id, name)| json!({ "id": id, "device_name": name })).collect())
}
