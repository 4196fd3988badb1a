//! `bdev_nvme_*_mdns_discovery`: discovery services that announce themselves by multicast DNS.

use raceline_proto::nvme::Nqn;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::discovery::{DISCOVERY_NQN, DISCOVERY_PORT, trid};
use super::{Attach, Name, default_hostnqn, host_config, invalid};
use crate::error::RpcError;
use crate::manager::catalogue::{Entry, Section};
use crate::manager::discovery::MAX_SUBSYSTEMS;
use crate::manager::mdns::{KnownService, MAX_FOLLOWED, MdnsDiscovery, is_known_service};
use crate::method::{Call, Registry, States};
use crate::params::NoParams;

/// The longest name of a search: a device's name adds `63_nvme1023n128` to it, and a name has 64 bytes.
const MAX_NAME_BYTES: usize = 49;

pub(super) fn register(registry: &mut Registry) {
    registry.change("bdev_nvme_start_mdns_discovery", States::Runtime, start);
    registry.change("bdev_nvme_stop_mdns_discovery", States::Runtime, stop);
    registry.read("bdev_nvme_get_mdns_discovery_info", States::Runtime, get_info);
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Start {
    name: String,
    svcname: String,
    hostnqn: Option<String>,
    /// The services that have numbers: a restart must not give a device's name to another subsystem.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    services: Vec<Known>,
}

/// A service that has a number.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Known {
    number: usize,
    instance: String,
    subnqn: String,
    #[serde(default)]
    subsystems: Vec<String>,
}

fn start(call: &Call<'_>, params: Start) -> Result<bool, RpcError> {
    let Start { name, svcname, .. } = &params;
    if name.is_empty() || name.len() > MAX_NAME_BYTES || name.chars().any(char::is_control) {
        let detail = format!("a name has 1 to {MAX_NAME_BYTES} bytes without control characters");
        return Err(RpcError::errno(libc::EINVAL).because(detail));
    }
    if !is_known_service(svcname) {
        let shown = svcname.escape_debug();
        return Err(invalid(format!(
            "svcname `{shown}` is not `{}`, the service of discovery controllers over TCP",
            raceline_mdns::SERVICE_NAME
        )));
    }
    crate::methods::check_mdns()?;
    let known = known(&params.services)?;
    let hostnqn = params.hostnqn.clone().filter(|text| !text.is_empty());
    let hostnqn = hostnqn.unwrap_or_else(|| default_hostnqn(call.manager));
    // The address and the name of the template stand for those that will be announced.
    let attach = Attach {
        name: name.clone(),
        trtype: "TCP".to_owned(),
        traddr: "0.0.0.0".to_owned(),
        trsvcid: Some(DISCOVERY_PORT.to_owned()),
        subnqn: Some(DISCOVERY_NQN.to_owned()),
        ..Attach::default()
    };
    let template = host_config(call.manager, &attach, &hostnqn)?;
    let max_bdevs = usize::try_from(super::DEFAULT_MAX_BDEVS).unwrap_or(usize::MAX);
    let mdns = MdnsDiscovery::new(name, template, max_bdevs, known);
    let canonical = Start { hostnqn: Some(hostnqn), ..params };
    call.manager.change(|change| {
        let entry = Entry::new(Section::Bdev, "bdev_nvme_start_mdns_discovery", &canonical)?;
        change.follow_mdns(&mdns, entry)
    })?;
    Ok(true)
}

fn known(services: &[Known]) -> Result<Vec<KnownService>, RpcError> {
    let nqn = |text: &String| {
        let what = format!("{text:?} is no name of a subsystem");
        Nqn::new(text).map_err(|error| invalid(what).because(error))
    };
    let mut known: Vec<KnownService> = Vec::with_capacity(services.len());
    for Known { number, instance, subnqn, subsystems } in services {
        if *number >= MAX_FOLLOWED || known.iter().any(|other| other.number == *number) {
            return Err(invalid(format!(
                "the number {number} of a service is there twice, or not 0 to {}",
                MAX_FOLLOWED - 1
            )));
        }
        if subsystems.len() > MAX_SUBSYSTEMS {
            return Err(invalid(format!("more than {MAX_SUBSYSTEMS} subsystems")));
        }
        let names = subsystems.iter().map(nqn).collect::<Result<_, _>>()?;
        let (instance, nqn) = (instance.clone(), nqn(subnqn)?);
        known.push(KnownService { number: *number, instance, nqn, names });
    }
    Ok(known)
}

fn stop(call: &Call<'_>, params: Name) -> Result<bool, RpcError> {
    if !call.manager.model().mdns_discoveries.contains_key(&params.name) {
        let text = format!(
            "there is no multicast DNS search `{}`: bdev_nvme_get_mdns_discovery_info lists them",
            params.name
        );
        return Err(RpcError::errno(libc::ENOENT).because(text));
    }
    let attached = call.manager.change(|change| change.forget_mdns(&params.name))?;
    // Ending takes as long as the controllers need to shut down: others need not wait for it.
    attached.iter().for_each(|controller| controller.link.end());
    Ok(true)
}

fn get_info(call: &Call<'_>, _params: NoParams) -> Result<Vec<Value>, RpcError> {
    let model = call.manager.model();
    Ok(model.mdns_discoveries.values().map(|mdns| describe(mdns)).collect())
}

fn describe(mdns: &MdnsDiscovery) -> Value {
    let referrals = mdns.found().into_iter().map(|found| {
        let mut shown = json!({
            "name": found.name,
            "trid": trid(found.address.into(), &found.nqn),
            "instance": found.instance,
        });
        if let Some(problem) = found.problem {
            shown["problem"] = problem.into();
        }
        shown
    });
    let mut shown = json!({
        "name": mdns.name,
        "svcname": raceline_mdns::SERVICE_NAME,
        "referrals": referrals.collect::<Vec<_>>(),
    });
    if let Some(problem) = mdns.problem() {
        shown["problem"] = problem.into();
    }
    shown
}
