//! Limits of rates: of devices, of subsystems, and of hosts alone or in groups; and weights of hosts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use raceline_proto::nvme::{NamespaceId, Nqn, NqnError};
use raceline_target::{
    HostLimit, MAX_BURST, QosLimits, Target, TargetError, Weight, check_iscsi_name,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::bdevs::Claim;
use super::catalogue::{Entry, Key, Section};
use super::{Change, ManagerError};

const MIB: u64 = 1 << 20;

/// Hosts that share limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostLimits {
    /// The hosts.
    pub hosts: Vec<LimitedHost>,
    /// The limits.
    pub limits: QosLimits,
}

/// A host that has limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitedHost {
    /// An NVMe host.
    Nvme(Nqn),
    /// An iSCSI initiator, by its name.
    Iscsi(String),
}

impl LimitedHost {
    /// A host by its NQN, or an initiator by its iSCSI name.
    ///
    /// # Errors
    /// When the text is neither.
    pub fn new(text: &str) -> Result<Self, ManagerError> {
        let starts_as = |kind: &str| {
            text.get(..kind.len()).is_some_and(|start| start.eq_ignore_ascii_case(kind))
        };
        if ["iqn.", "eui.", "naa."].into_iter().any(starts_as) {
            check_iscsi_name(text).map_err(TargetError::from)?;
            return Ok(Self::Iscsi(text.to_ascii_lowercase()));
        }
        let host = Nqn::new(text).map_err(|error| {
            let text = text.escape_debug();
            ManagerError::Invalid(format!(
                "`{text}`: {error}, and no iSCSI name (iqn., eui., naa.)"
            ))
        })?;
        Ok(Self::Nvme(host))
    }

    /// Its name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Nvme(host) => host.as_str(),
            Self::Iscsi(name) => name,
        }
    }
}

/// Limits in a call, by SPDK's names: what is left out stays as it is, 0 is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitParams {
    /// Commands per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rw_ios_per_sec: Option<u64>,
    /// MiB per second, read and written together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rw_mbytes_per_sec: Option<u64>,
    /// MiB per second that are read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub r_mbytes_per_sec: Option<u64>,
    /// MiB per second that are written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub w_mbytes_per_sec: Option<u64>,
    /// For how many milliseconds what was not used can be used later. SPDK has no such parameter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst_ms: Option<u64>,
}

impl LimitParams {
    /// The limits that follow on others.
    ///
    /// # Errors
    /// When nothing is given, or a number is out of range.
    pub fn over(&self, before: QosLimits) -> Result<QosLimits, ManagerError> {
        if *self == Self::default() {
            let text = "no limit is given: rw_ios_per_sec, rw_mbytes_per_sec, r_mbytes_per_sec or w_mbytes_per_sec";
            return Err(ManagerError::Invalid(text.to_owned()));
        }
        let bytes = |name: &str, mbytes: Option<u64>, before: u64| match mbytes {
            None => Ok(before),
            Some(mbytes) => mbytes.checked_mul(MIB).ok_or_else(|| {
                ManagerError::Invalid(format!("{name} is above {}: {mbytes}", u64::MAX / MIB))
            }),
        };
        let burst = self.burst_ms.map_or(before.burst, Duration::from_millis);
        if burst > MAX_BURST {
            let text = format!("burst_ms is above {}", MAX_BURST.as_millis());
            return Err(ManagerError::Invalid(text));
        }
        Ok(QosLimits {
            rw_ios_per_sec: self.rw_ios_per_sec.unwrap_or(before.rw_ios_per_sec),
            rw_bytes_per_sec: bytes(
                "rw_mbytes_per_sec",
                self.rw_mbytes_per_sec,
                before.rw_bytes_per_sec,
            )?,
            r_bytes_per_sec: bytes(
                "r_mbytes_per_sec",
                self.r_mbytes_per_sec,
                before.r_bytes_per_sec,
            )?,
            w_bytes_per_sec: bytes(
                "w_mbytes_per_sec",
                self.w_mbytes_per_sec,
                before.w_bytes_per_sec,
            )?,
            burst,
        })
    }
}

/// The four numbers as SPDK lists them.
pub(crate) fn rates(limits: &QosLimits) -> Value {
    json!({
        "rw_ios_per_sec": limits.rw_ios_per_sec,
        "rw_mbytes_per_sec": limits.rw_bytes_per_sec / MIB,
        "r_mbytes_per_sec": limits.r_bytes_per_sec / MIB,
        "w_mbytes_per_sec": limits.w_bytes_per_sec / MIB,
    })
}

/// All numbers, for the call that sets them again.
pub(crate) fn members(limits: &QosLimits) -> Map<String, Value> {
    let mut members = rates(limits).as_object().cloned().unwrap_or_default();
    let burst_ms = u64::try_from(limits.burst.as_millis()).unwrap_or(u64::MAX);
    if limits.burst != QosLimits::default().burst {
        members.insert("burst_ms".to_owned(), burst_ms.into());
    }
    members
}

/// Limits in the form that the cores take; `None`: there are none.
pub(super) fn throttle(
    cores: &Target,
    limits: Option<QosLimits>,
) -> Result<Option<raceline_target::Throttle>, ManagerError> {
    let limits = limits.filter(|limits| !limits.is_unlimited());
    Ok(limits.map(|limits| cores.throttle(limits)).transpose()?)
}

/// Gives the cores the limits of hosts.
pub(super) fn show_host_limits(
    cores: &Target,
    limited: &BTreeMap<String, HostLimits>,
) -> Result<(), ManagerError> {
    let mut all = Vec::new();
    for HostLimits { hosts, limits } in limited.values() {
        if let Some(throttle) = throttle(cores, Some(*limits))? {
            let mut limit = HostLimit { hosts: Vec::new(), initiators: Vec::new(), throttle };
            for host in hosts {
                match host {
                    LimitedHost::Nvme(host) => limit.hosts.push(host.clone()),
                    LimitedHost::Iscsi(name) => limit.initiators.push(name.clone()),
                }
            }
            all.push(limit);
        }
    }
    Ok(cores.set_host_limits(all)?)
}

fn bdev_key(name: &str) -> Key {
    Key::new(&["qos", "bdev", name])
}

impl Change<'_> {
    /// Sets the limits of a device, for all that hosts do with it.
    ///
    /// # Errors
    /// When there is no such device, or a number is out of range.
    pub fn set_bdev_limits(&mut self, name: &str, params: LimitParams) -> Result<(), ManagerError> {
        let name = match self.model().bdev(name) {
            Ok(bdev) => bdev.name.clone(),
            // The device has them when it comes.
            Err(ManagerError::Away { .. }) if self.may_wait() => name.to_owned(),
            Err(error) => return Err(error),
        };
        let before = self.model().bdevs.limits(&name);
        let limits = params.over(before)?;
        self.model_mut().bdevs.set_limits(&name, limits);
        if let Err(error) = self.show_bdev_limits(&name) {
            self.model_mut().bdevs.set_limits(&name, before);
            return Err(error);
        }
        if limits.is_unlimited() {
            self.remove(bdev_key(&name));
        } else {
            let mut params = members(&limits);
            params.insert("name".to_owned(), name.as_str().into());
            self.put(bdev_key(&name), call(Section::Bdev, "bdev_set_qos_limit", params));
        }
        Ok(())
    }

    /// Gives the namespace and the LUNs over a device its limits.
    fn show_bdev_limits(&self, name: &str) -> Result<(), ManagerError> {
        // The model is free again before a target is called.
        let (mut namespace, mut luns) = (None, None);
        {
            let model = self.model();
            let Ok(bdev) = model.bdev(name) else { return Ok(()) };
            if let Some(Claim::Namespace { target, nqn, nsid }) = &bdev.claim
                && let Some(cores) = model.nvmf.target(target)?.cores()
            {
                let invalid = |error: NqnError| ManagerError::Invalid(error.to_string());
                let nqn = Nqn::new(nqn).map_err(invalid)?;
                let throttle = model.bdevs.throttle(&cores, name)?;
                namespace = Some((cores, nqn, NamespaceId(*nsid), throttle));
            }
            if !bdev.luns.is_empty()
                && let Some(cores) = model.iscsi_cores()
            {
                let throttle = model.bdevs.throttle(&cores, name)?;
                luns = Some((cores, Arc::clone(&bdev.device), throttle));
            }
        }
        if let Some((cores, nqn, nsid, throttle)) = namespace {
            cores.set_namespace_limits(&nqn, nsid, throttle)?;
        }
        if let Some((cores, device, throttle)) = luns {
            cores.iscsi().set_device_limits(&device, throttle)?;
        }
        Ok(())
    }

    /// A device is removed for good: its limits go with it.
    pub(super) fn forget_bdev_limits(&mut self, name: &str) {
        if !self.model().bdevs.limits(name).is_unlimited() {
            self.model_mut().bdevs.set_limits(name, QosLimits::default());
            self.remove(bdev_key(name));
        }
    }

    /// Sets the limits of all commands for a subsystem together.
    ///
    /// # Errors
    /// When there is no such subsystem, or a number is out of range.
    pub fn set_subsystem_limits(
        &mut self,
        target: &str,
        nqn: &Nqn,
        params: LimitParams,
    ) -> Result<(), ManagerError> {
        let (cores, before) = {
            let model = self.model();
            let found = model.nvmf.target(target)?;
            (found.cores(), found.subsystem(nqn)?.limits)
        };
        let limits = params.over(before)?;
        if let Some(cores) = cores {
            cores.set_subsystem_limits(nqn, throttle(&cores, Some(limits))?)?;
        }
        let key = Key::new(&["nvmf", target, "subsystem", nqn.as_str(), "qos"]);
        if limits.is_unlimited() {
            self.remove(key);
        } else {
            let mut params = members(&limits);
            params.insert("nqn".to_owned(), nqn.as_str().into());
            self.put_of_target(key, target, "nvmf_subsystem_set_qos_limit", params);
        }
        self.model_mut().nvmf.target_mut(target)?.subsystem_mut(nqn)?.limits = limits;
        Ok(())
    }

    /// Sets the limits that hosts share, in all subsystems of a target; they are known by a name. Without a limit the
    /// name is forgotten.
    ///
    /// # Errors
    /// When there is no such target, hosts are missing, or a number is out of range.
    pub fn set_host_limits(
        &mut self,
        target: &str,
        name: &str,
        hosts: Option<Vec<LimitedHost>>,
        params: LimitParams,
    ) -> Result<(), ManagerError> {
        let before = self.model().nvmf.target(target)?.host_limits.get(name).cloned();
        let limits = params.over(before.as_ref().map_or_else(QosLimits::default, |b| b.limits))?;
        let hosts = hosts.or_else(|| before.map(|before| before.hosts)).unwrap_or_default();
        let is_gone = limits.is_unlimited();
        if hosts.is_empty() && !is_gone {
            return Err(ManagerError::Invalid(format!(
                "hosts is empty: who is limited by {name}?"
            )));
        }
        let key = Key::new(&["nvmf", target, "qos", name]);
        let names: Vec<&str> = hosts.iter().map(LimitedHost::as_str).collect();
        let mut params = members(&limits);
        params.insert("name".to_owned(), name.into());
        params.insert("hosts".to_owned(), json!(names));
        let (old, cores) = {
            let mut model = self.model_mut();
            let found = model.nvmf.target_mut(target)?;
            let old = if is_gone {
                found.host_limits.remove(name)
            } else {
                found.host_limits.insert(name.to_owned(), HostLimits { hosts, limits })
            };
            (old, found.cores())
        };
        let limited = self.model().nvmf.target(target)?.host_limits.clone();
        let shown = cores.map_or(Ok(()), |cores| show_host_limits(&cores, &limited));
        if let Err(error) = shown {
            let mut model = self.model_mut();
            let found = model.nvmf.target_mut(target)?;
            match old {
                Some(old) => found.host_limits.insert(name.to_owned(), old),
                None => found.host_limits.remove(name),
            };
            return Err(error);
        }
        if is_gone {
            self.remove(key);
        } else {
            self.put_of_target(key, target, "nvmf_host_set_qos_limit", params);
        }
        Ok(())
    }

    /// Sets the weight of a host in a subsystem; `None`: it has none. The host need not be on the subsystem's list.
    ///
    /// # Errors
    /// When there is no such subsystem, or the number is not from 1 to [`Weight::MAX`].
    pub fn set_host_weight(
        &mut self,
        target: &str,
        nqn: &Nqn,
        host: &Nqn,
        weight: Option<u64>,
    ) -> Result<(), ManagerError> {
        let parse = |number: u64| {
            u16::try_from(number).ok().and_then(Weight::new).ok_or_else(|| {
                ManagerError::Invalid(format!("weight is {number}: from 1 to {}", Weight::MAX))
            })
        };
        let weight = weight.map(parse).transpose()?;
        let cores = {
            let model = self.model();
            let found = model.nvmf.target(target)?;
            found.subsystem(nqn)?;
            found.cores()
        };
        if let Some(cores) = cores {
            cores.set_host_weight(nqn, host, weight)?;
        }
        let key = Key::new(&["nvmf", target, "subsystem", nqn.as_str(), "weight", host.as_str()]);
        if let Some(weight) = weight {
            let mut params = Map::new();
            params.insert("nqn".to_owned(), nqn.as_str().into());
            params.insert("host".to_owned(), host.as_str().into());
            params.insert("weight".to_owned(), weight.get().into());
            self.put_of_target(key, target, "nvmf_subsystem_set_host_weight", params);
        } else {
            self.remove(key);
        }
        let mut model = self.model_mut();
        let weights = &mut model.nvmf.target_mut(target)?.subsystem_mut(nqn)?.weights;
        match weight {
            Some(weight) => weights.insert(host.clone(), weight),
            None => weights.remove(host),
        };
        Ok(())
    }

    fn put_of_target(
        &mut self,
        key: Key,
        target: &str,
        method: &str,
        mut params: Map<String, Value>,
    ) {
        if target != super::nvmf::DEFAULT_TARGET {
            params.insert("tgt_name".to_owned(), target.into());
        }
        self.put(key, call(Section::Nvmf, method, params));
    }
}

fn call(section: Section, method: &str, params: Map<String, Value>) -> Entry {
    Entry { section, method: method.to_owned(), params: Value::Object(params) }
}
