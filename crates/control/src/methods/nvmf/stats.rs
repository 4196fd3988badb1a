//! Connected hosts and their I/O: `nvmf_subsystem_get_controllers`, `nvmf_subsystem_get_qpairs`,
//! `nvmf_get_stats`.

use std::net::SocketAddr;
use std::sync::Arc;

use raceline_proto::nvme::{HostNqn, Nqn};
use raceline_target::{HostStats, PollGroupStats, QueueInfo, QueueTotals, RdmaDeviceStats, Target};
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::error::RpcError;
use crate::manager::nvmf::ListenAddress;
use crate::method::{Call, Registry, States};

/// Times are given in nanoseconds.
const TICK_RATE: u64 = 1_000_000_000;

pub(super) fn register(registry: &mut Registry) {
    registry.read("nvmf_subsystem_get_controllers", States::Runtime, controllers);
    registry.read("nvmf_subsystem_get_qpairs", States::Runtime, queues);
    registry.read("nvmf_get_stats", States::Runtime, get);
}

/// The cores of the subsystem that a call names, and its name.
fn find(
    call: &Call<'_>,
    params: &super::subsystem::Query,
) -> Result<(Option<Arc<Target>>, Nqn), RpcError> {
    let model = call.manager.model();
    let (target, nqn) = params.find(&model)?;
    Ok((target.cores(), nqn))
}

fn host_name(host: &HostNqn) -> &str {
    match host {
        HostNqn::Named(name) => name.as_str(),
        HostNqn::Unnamed => "",
    }
}

fn controllers(call: &Call<'_>, params: super::subsystem::Query) -> Result<Vec<Value>, RpcError> {
    let (cores, nqn) = find(call, &params)?;
    let controllers = cores.iter().flat_map(|cores| cores.controllers(&nqn));
    Ok(controllers
        .map(|controller| {
            json!({
                "cntlid": controller.cntlid.0,
                "cntrltype": if nqn.is_discovery() { "discovery" } else { "io" },
                "hostnqn": host_name(&controller.host),
                "hostid": Uuid::from_bytes(controller.hostid.0),
                "num_io_qpairs": controller.io_queues,
            })
        })
        .collect())
}

fn queues(call: &Call<'_>, params: super::subsystem::Query) -> Result<Vec<Value>, RpcError> {
    let (cores, nqn) = find(call, &params)?;
    Ok(cores.iter().flat_map(|cores| cores.queues(&nqn)).map(|queue| describe(&queue)).collect())
}

/// SPDK's description, with further counts that its users ask for.
fn describe(queue: &QueueInfo) -> Value {
    let address = |socket: SocketAddr| {
        let address = ListenAddress::from(socket);
        let trtype = if queue.is_rdma { "RDMA".to_owned() } else { address.trtype.clone() };
        ListenAddress { trtype, ..address }
    };
    json!({
        "cntlid": queue.cntlid.0,
        "qid": queue.qid.0,
        "state": "enabled",
        "thread": group_name(queue.core),
        "hostnqn": host_name(&queue.host),
        "listen_address": address(queue.local),
        "peer_address": address(queue.peer),
        "statistics": totals(&queue.totals),
    })
}

fn group_name(core: usize) -> String {
    format!("nvmf_tgt_poll_group_{core:03}")
}

fn totals(totals: &QueueTotals) -> Value {
    json!({
        "commands": totals.commands,
        "num_read_ops": totals.reads,
        "bytes_read": totals.read_bytes,
        "num_write_ops": totals.writes,
        "bytes_written": totals.written_bytes,
        "errors": totals.errors,
        "media_errors": totals.media_errors,
        "digest_errors": totals.digest_errors,
        "buffer_waits": totals.buffer_waits,
        "throttled": totals.throttled,
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Get {
    tgt_name: Option<String>,
}

fn get(call: &Call<'_>, params: Get) -> Result<Value, RpcError> {
    let name = super::target_name(params.tgt_name);
    super::check_target(call.manager, &name)?;
    let (cores, rdma) = {
        let model = call.manager.model();
        let target = model.nvmf.target(&name)?;
        (target.cores(), target.rdma.clone())
    };
    let devices = rdma.map(|streams| streams.devices());
    let groups = cores.iter().flat_map(|cores| cores.poll_groups()).enumerate();
    let describe =
        |(core, group): (usize, PollGroupStats)| describe_group(core, &group, devices.as_deref());
    let groups: Vec<Value> = groups.map(describe).collect();
    let hosts = cores.iter().flat_map(|cores| cores.hosts());
    let hosts: Vec<Value> = hosts.map(|host| describe_host(&host)).collect();
    Ok(json!({ "tick_rate": TICK_RATE, "poll_groups": groups, "hosts": hosts }))
}

/// `devices`: of the transport RDMA, if there is one.
fn describe_group(
    core: usize,
    group: &PollGroupStats,
    devices: Option<&[RdmaDeviceStats]>,
) -> Value {
    let done = group.totals.reads + group.totals.writes + group.totals.errors;
    let tcp = json!({
        "trtype": "TCP",
        "pending_data_buffer": group.totals.buffer_waits - group.rdma.buffer_waits,
        "unassociated_qpairs": group.unassociated,
    });
    let rdma = devices.map(|devices| {
        json!({
            "trtype": "RDMA",
            "pending_data_buffer": group.rdma.buffer_waits,
            "current_admin_qpairs": group.rdma.admin_queues,
            "current_io_qpairs": group.rdma.io_queues,
            "devices": devices
                .iter()
                .filter(|device| device.core == core)
                .map(describe_device)
                .collect::<Vec<_>>(),
        })
    });
    let transports: Vec<Value> = [Some(tcp), rdma].into_iter().flatten().collect();
    json!({
        "name": group_name(core),
        "admin_qpairs": group.admin_queues_ever,
        "io_qpairs": group.io_queues_ever,
        "current_admin_qpairs": group.admin_queues,
        "current_io_qpairs": group.io_queues,
        "pending_bdev_io": 0,
        "completed_nvme_io": done,
        "transports": transports,
        "statistics": totals(&group.totals),
    })
}

/// SPDK's names. What it counts of requests that wait, and of their latency, is not counted here.
fn describe_device(device: &RdmaDeviceStats) -> Value {
    let counts = device.counts;
    json!({
        "name": device.name,
        "listen_address": device.address.to_string(),
        "polls": counts.polls,
        "idle_polls": counts.idle_polls,
        "completions": counts.completions,
        "requests": counts.requests,
        "total_send_wrs": counts.sends,
        "send_doorbell_updates": counts.send_posts,
        "total_recv_wrs": counts.receives,
        "recv_doorbell_updates": counts.receive_posts,
        "refused_queues": counts.refused,
        "lost_receives": counts.lost_receives,
    })
}

pub(in crate::methods) fn describe_host(host: &HostStats) -> Value {
    json!({
        "subnqn": host.nqn.as_str(),
        "hostnqn": host_name(&host.host),
        "controllers": host.controllers,
        "io_qpairs": host.io_queues,
        "statistics": totals(&host.totals),
    })
}
