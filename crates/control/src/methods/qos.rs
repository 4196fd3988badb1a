//! Limits of rates: `bdev_set_qos_limit`, and of subsystems and hosts, for which SPDK has none; and weights of hosts.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::error::RpcError;
use crate::manager::qos::{LimitParams, LimitedHost, members};
use crate::method::{Call, Registry, States};
use crate::params::NoParams;

pub(super) fn register(registry: &mut Registry) {
    registry.change("bdev_set_qos_limit", States::Runtime, set_bdev);
    registry.alias("set_bdev_qos_limit", "bdev_set_qos_limit");
    registry.change("nvmf_subsystem_set_qos_limit", States::Runtime, set_subsystem);
    registry.change("nvmf_host_set_qos_limit", States::Runtime, set_hosts);
    registry.change("nvmf_subsystem_set_host_weight", States::Runtime, set_weight);
    registry.read("nvmf_get_qos_limits", States::Runtime, get);
}

/// Limits are not flattened into the parameters: unknown members have to be refused.
macro_rules! with_limits {
    ($(#[$doc:meta])* struct $name:ident { $( $field:ident: $type:ty, )* }) => {
        $(#[$doc])*
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct $name {
            $( $field: $type, )*
            rw_ios_per_sec: Option<u64>,
            rw_mbytes_per_sec: Option<u64>,
            r_mbytes_per_sec: Option<u64>,
            w_mbytes_per_sec: Option<u64>,
            burst_ms: Option<u64>,
        }

        impl $name {
            fn limits(&self) -> LimitParams {
                LimitParams {
                    rw_ios_per_sec: self.rw_ios_per_sec,
                    rw_mbytes_per_sec: self.rw_mbytes_per_sec,
                    r_mbytes_per_sec: self.r_mbytes_per_sec,
                    w_mbytes_per_sec: self.w_mbytes_per_sec,
                    burst_ms: self.burst_ms,
                }
            }
        }
    };
}

with_limits! {
    struct OfBdev { name: String, }
}
with_limits! {
    struct OfSubsystem { nqn: String, tgt_name: Option<String>, }
}
with_limits! {
    /// `name` stands for the hosts together.
    struct OfHosts { name: String, hosts: Option<Vec<String>>, tgt_name: Option<String>, }
}

fn set_bdev(call: &Call<'_>, params: OfBdev) -> Result<bool, RpcError> {
    let limits = params.limits();
    call.manager.change(|change| change.set_bdev_limits(&params.name, limits))?;
    Ok(true)
}

fn set_subsystem(call: &Call<'_>, params: OfSubsystem) -> Result<bool, RpcError> {
    let limits = params.limits();
    let target = super::nvmf::target_name(params.tgt_name);
    super::nvmf::check_target(call.manager, &target)?;
    let nqn = super::nvmf::nqn(&params.nqn)?;
    call.manager
        .change(|change| change.set_subsystem_limits(&target, &nqn, limits))
        .map_err(super::nvmf::invalid)?;
    Ok(true)
}

fn set_hosts(call: &Call<'_>, params: OfHosts) -> Result<bool, RpcError> {
    let limits = params.limits();
    let target = super::nvmf::target_name(params.tgt_name);
    super::nvmf::check_target(call.manager, &target)?;
    let hosts = params.hosts.map(|hosts| {
        hosts.iter().map(|host| LimitedHost::new(host)).collect::<Result<Vec<_>, _>>()
    });
    let hosts = hosts.transpose().map_err(super::nvmf::invalid)?;
    call.manager
        .change(|change| change.set_host_limits(&target, &params.name, hosts, limits))
        .map_err(super::nvmf::invalid)?;
    Ok(true)
}

/// `weight` left out takes the weight away.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfHost {
    nqn: String,
    host: String,
    weight: Option<u64>,
    tgt_name: Option<String>,
}

fn set_weight(call: &Call<'_>, params: OfHost) -> Result<bool, RpcError> {
    let target = super::nvmf::target_name(params.tgt_name);
    super::nvmf::check_target(call.manager, &target)?;
    let nqn = super::nvmf::nqn(&params.nqn)?;
    let host = super::nvmf::host_nqn(&params.host)?;
    call.manager
        .change(|change| change.set_host_weight(&target, &nqn, &host, params.weight))
        .map_err(super::nvmf::invalid)?;
    Ok(true)
}

/// Everything that has limits or a weight.
fn get(call: &Call<'_>, _params: NoParams) -> Result<Vec<Value>, RpcError> {
    let model = call.manager.model();
    let mut all = Vec::new();
    let mut add = |kind: &str, name: &str, limits: Map<String, Value>, more: Value| {
        let mut described = Map::new();
        described.insert("type".to_owned(), kind.into());
        described.insert("name".to_owned(), name.into());
        described.extend(limits);
        described.extend(more.as_object().cloned().unwrap_or_default());
        all.push(Value::Object(described));
    };
    for (name, limits) in model.bdevs.all_limits() {
        add("bdev", name, members(limits), Value::Null);
    }
    for (tgt_name, target) in &model.nvmf.targets {
        let more = json!({ "tgt_name": tgt_name });
        for (nqn, subsystem) in &target.subsystems {
            if !subsystem.limits.is_unlimited() {
                add("subsystem", nqn.as_str(), members(&subsystem.limits), more.clone());
            }
            for (host, weight) in &subsystem.weights {
                let weight = Map::from_iter([("weight".to_owned(), weight.get().into())]);
                let more = json!({ "tgt_name": tgt_name, "nqn": nqn.as_str() });
                add("weight", host.as_str(), weight, more);
            }
        }
        for (name, group) in &target.host_limits {
            let hosts: Vec<&str> = group.hosts.iter().map(LimitedHost::as_str).collect();
            let more = json!({ "tgt_name": tgt_name, "hosts": hosts });
            add("hosts", name, members(&group.limits), more);
        }
    }
    Ok(all)
}
