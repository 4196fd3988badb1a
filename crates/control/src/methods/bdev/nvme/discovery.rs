//! `bdev_nvme_*_discovery`: controllers that come and go with the list of a discovery service.

use std::sync::Arc;
use std::time::{Duration, Instant};

use raceline_host::{HostConfig, Transport};
use raceline_proto::nvme::Nqn;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Attach, Name, default_hostnqn, host_config, invalid};
use crate::error::RpcError;
use crate::manager::catalogue::{Entry, Section};
use crate::manager::discovery::{Discovery, Endpoint, MAX_SUBSYSTEMS, Origin};
use crate::manager::nvmf::ListenAddress;
use crate::manager::{Manager, ManagerError, Phase};
use crate::method::{Call, Registry, States};
use crate::params::NoParams;

pub(super) const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// The port that is registered for discovery services; nvme-cli tries it first.
pub(super) const DISCOVERY_PORT: &str = "8009";
/// The longest name of a service: the name of a controller adds a number to it.
const MAX_NAME_BYTES: usize = 59;
/// How long a client without a time limit of its own may wait: each wait occupies a thread.
const MAX_ATTACH_WAIT: Duration = Duration::from_secs(600);

pub(super) fn register(registry: &mut Registry) {
    registry.change("bdev_nvme_start_discovery", States::Runtime, start);
    registry.change("bdev_nvme_stop_discovery", States::Runtime, stop);
    registry.read("bdev_nvme_get_discovery_info", States::Runtime, get_info);
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Start {
    name: String,
    trtype: String,
    traddr: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    adrfam: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trsvcid: Option<String>,
    hostnqn: Option<String>,
    #[serde(default)]
    wait_for_attach: bool,
    #[serde(default, skip_serializing)]
    attach_timeout_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    ctrlr_loss_timeout_sec: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reconnect_delay_sec: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fast_io_fail_timeout_sec: Option<u32>,
    /// The subsystems that have numbers, in the order of the numbers: a restart must not give a device's
    /// name to another subsystem.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    subsystems: Vec<String>,
}

fn start(call: &Call<'_>, params: Start) -> Result<bool, RpcError> {
    let began = Instant::now();
    let trsvcid = params.trsvcid.filter(|port| !port.is_empty());
    let params =
        Start { trsvcid: Some(trsvcid.unwrap_or_else(|| DISCOVERY_PORT.to_owned())), ..params };
    let discovery = new_discovery(call.manager, &params)?;
    let hostnqn = Some(params.hostnqn.clone().unwrap_or_else(|| default_hostnqn(call.manager)));
    // SPDK's clients may send a time limit alone.
    let wait_for_attach = params.wait_for_attach || params.attach_timeout_ms > 0;
    let timeout = match params.attach_timeout_ms {
        0 => MAX_ATTACH_WAIT,
        timeout_ms => Duration::from_millis(timeout_ms).min(MAX_ATTACH_WAIT),
    };
    let canonical = Start { hostnqn, wait_for_attach, ..params };
    call.manager.change(|change| {
        let entry = Entry::new(Section::Bdev, "bdev_nvme_start_discovery", &canonical)?;
        change.follow_discovery(&discovery)?;
        change.put(discovery.key.clone(), entry);
        Ok::<_, ManagerError>(())
    })?;
    // A start waits for nothing outside: what stands on these devices waits for them.
    if !wait_for_attach || call.manager.phase() != Phase::Runtime {
        return Ok(true);
    }
    let left = timeout.saturating_sub(began.elapsed());
    let wait = |limit| is_all_attached(call.manager, &discovery, limit);
    let attached = call.allowance.wait_alone(left, wait);
    // For a client that has gone meanwhile the change stays made, as any other: it is as if it had not wanted to wait.
    if attached == Some(true) || (attached.is_none() && call.allowance.is_gone()) {
        return Ok(true);
    }
    let problem = discovery.problem().unwrap_or_else(|| "it is not all attached yet".to_owned());
    if is_followed(call.manager, &discovery) {
        forget(call.manager, &discovery.name)?;
    }
    Err(RpcError::errno(libc::ETIMEDOUT).because(problem))
}

/// Waits until the subsystems that a service has named first are attached, and gives whether they are; nothing if they may
/// still be.
fn is_all_attached(manager: &Manager, discovery: &Arc<Discovery>, limit: Duration) -> Option<bool> {
    if discovery.wait_attached(limit) {
        return Some(true);
    }
    (manager.is_ending() || !is_followed(manager, discovery)).then_some(false)
}

fn is_followed(manager: &Manager, discovery: &Arc<Discovery>) -> bool {
    let model = manager.model();
    let followed = model.discoveries.get(&discovery.name);
    followed.is_some_and(|followed| Arc::ptr_eq(followed, discovery))
}

fn new_discovery(manager: &Manager, params: &Start) -> Result<Arc<Discovery>, RpcError> {
    let Start { name, .. } = params;
    if name.is_empty() || name.len() > MAX_NAME_BYTES || name.chars().any(char::is_control) {
        let detail = format!("a name has 1 to {MAX_NAME_BYTES} bytes without control characters");
        return Err(RpcError::errno(libc::EINVAL).because(detail));
    }
    if params.subsystems.len() > MAX_SUBSYSTEMS {
        return Err(invalid(format!("more than {MAX_SUBSYSTEMS} subsystems")));
    }
    let parse = |text: &String| {
        let what = format!("{text:?} is no name of a host or a subsystem");
        Nqn::new(text).map_err(|error| invalid(what).because(error))
    };
    let names = params.subsystems.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
    let hostnqn = params.hostnqn.clone().unwrap_or_else(|| default_hostnqn(manager));
    let attach = Attach {
        name: name.clone(),
        trtype: params.trtype.clone(),
        traddr: params.traddr.clone(),
        adrfam: params.adrfam.clone(),
        trsvcid: params.trsvcid.clone(),
        subnqn: Some(DISCOVERY_NQN.to_owned()),
        ctrlr_loss_timeout_sec: params.ctrlr_loss_timeout_sec,
        reconnect_delay_sec: params.reconnect_delay_sec,
        fast_io_fail_timeout_sec: params.fast_io_fail_timeout_sec,
        ..Attach::default()
    };
    let config = host_config(manager, &attach, &hostnqn)?;
    let max_bdevs = usize::try_from(super::DEFAULT_MAX_BDEVS).unwrap_or(usize::MAX);
    Ok(Discovery::new(name, Origin::Client, config, max_bdevs, names))
}

/// How a discovery controller is connected to, with what callers may set; the well-known port unless it has one. Registering
/// with a central one goes over TCP, where it can be encrypted.
pub(in crate::methods) fn discovery_host(
    manager: &Manager,
    address: &ListenAddress,
    hostnqn: Option<&str>,
) -> Result<HostConfig, RpcError> {
    let is_rdma = address.trtype.eq_ignore_ascii_case(super::RDMA);
    super::refuse_because(&[("trtype", is_rdma, "targets register over TCP only")])?;
    let hostnqn = hostnqn.map_or_else(|| default_hostnqn(manager), str::to_owned);
    let attach = Attach {
        trtype: address.trtype.clone(),
        traddr: address.traddr.clone(),
        adrfam: Some(address.adrfam.clone()),
        trsvcid: Some(address.trsvcid.clone()),
        subnqn: Some(DISCOVERY_NQN.to_owned()),
        ..Attach::default()
    };
    host_config(manager, &attach, &hostnqn)
}

fn stop(call: &Call<'_>, params: Name) -> Result<bool, RpcError> {
    let name = &params.name;
    let followed = call.manager.model().discoveries.get(name).cloned();
    let Some(followed) = followed else {
        let text = format!(
            "there is no discovery service `{name}`: bdev_nvme_get_discovery_info lists them"
        );
        return Err(RpcError::errno(libc::ENOENT).because(text));
    };
    if followed.origin != Origin::Client {
        let text = format!(
            "`{name}` has announced itself by multicast DNS: bdev_nvme_stop_mdns_discovery stops the search that has \
             found it"
        );
        return Err(RpcError::errno(libc::EBUSY).because(text));
    }
    forget(call.manager, &params.name)?;
    Ok(true)
}

fn forget(manager: &Manager, name: &str) -> Result<(), RpcError> {
    let attached = manager.change(|change| change.forget_discovery(name))?;
    // Ending takes as long as the controllers need to shut down: others need not wait for it.
    attached.iter().for_each(|controller| controller.link.end());
    Ok(())
}

fn get_info(call: &Call<'_>, _params: NoParams) -> Result<Vec<Value>, RpcError> {
    let model = call.manager.model();
    Ok(model.discoveries.values().map(|discovery| describe(discovery)).collect())
}

fn describe(discovery: &Discovery) -> Value {
    let referrals = discovery.referrals();
    let subsystems = discovery.listed().into_iter().map(|listed| {
        let mut shown = json!({ "name": listed.name, "subnqn": listed.nqn });
        if let Some(problem) = listed.problem {
            shown["problem"] = problem.into();
        }
        shown
    });
    let mut shown = json!({
        "name": discovery.name,
        "trid": trid(discovery.address, discovery.subnqn()),
        "referrals": referrals
            .iter()
            .map(|address| json!({ "trid": trid(*address, &Nqn::discovery()) }))
            .collect::<Vec<_>>(),
        "subsystems": subsystems.collect::<Vec<_>>(),
    });
    if let Some(problem) = discovery.problem() {
        shown["problem"] = problem.into();
    }
    shown
}

/// A discovery controller as SPDK shows it.
pub(super) fn trid(place: Endpoint, subnqn: &Nqn) -> Value {
    let ListenAddress { trtype, adrfam, traddr, trsvcid } = ListenAddress::from(place.address);
    json!({
        "trtype": if place.transport == Transport::Rdma { super::RDMA.to_owned() } else { trtype },
        "adrfam": adrfam,
        "traddr": traddr,
        "trsvcid": trsvcid,
        "subnqn": subnqn.as_str(),
    })
}
