//! Changes of what is exported: the effect on the cores first, then the model and the record.

use std::sync::Arc;

use raceline_proto::nvme::{NamespaceId, Nqn};
use raceline_target::{SubsystemConfig, Target};
use serde_json::{Value, json};

use super::live;
use super::{
    DEFAULT_TARGET, ListenAddress, MAX_HOSTS, MAX_LISTENERS, Namespace, NewNamespace, NvmfTarget,
    Referral, Subsystem, SubsystemOptions, Transport, TransportOptions,
};
use crate::engine::bdevs::Claim;
use crate::engine::ledger::{Entry, Key, Section};
use crate::engine::{Change, EngineError, Phase};

/// The key of a part of a target.
fn key(target: &str, parts: &[&str]) -> Key {
    let mut all = vec!["nvmf", target];
    all.extend_from_slice(parts);
    Key::new(&all)
}

/// A call on a target: only one that is not the default is named.
fn entry(target: &str, method: &str, mut params: Value) -> Entry {
    if target != DEFAULT_TARGET
        && let Some(members) = params.as_object_mut()
    {
        members.insert("tgt_name".to_owned(), target.into());
    }
    Entry { section: Section::Nvmf, method: method.to_owned(), params }
}

impl Change<'_> {
    /// Makes another target.
    ///
    /// # Errors
    /// When there is one of that name.
    pub fn create_target(&mut self, name: &str, max_subsystems: u32) -> Result<(), EngineError> {
        if self.model().nvmf.targets.contains_key(name) {
            return Err(EngineError::exists("target", name));
        }
        let target = NvmfTarget { max_subsystems, ..NvmfTarget::default() };
        self.model_mut().nvmf.targets.insert(name.to_owned(), target);
        let params = json!({ "name": name, "max_subsystems": max_subsystems });
        let section = Section::Nvmf;
        let method = "nvmf_create_target".to_owned();
        self.put(key(name, &[]), Entry { section, method, params });
        Ok(())
    }

    /// Says how many subsystems a target may have.
    ///
    /// # Errors
    /// When there is no such target.
    pub fn set_max_subsystems(&mut self, target: &str, max: u32) -> Result<(), EngineError> {
        self.model_mut().nvmf.target_mut(target)?.max_subsystems = max;
        Ok(())
    }

    /// Removes a target with everything that it exports.
    ///
    /// # Errors
    /// When there is none, or its cores do not end.
    pub fn delete_target(&mut self, name: &str) -> Result<(), EngineError> {
        let removed = self.model_mut().nvmf.targets.remove(name);
        let target = removed.ok_or_else(|| EngineError::missing("target", name))?;
        self.remove(key(name, &[]));
        for subsystem in target.subsystems.values() {
            self.release_namespaces(subsystem);
        }
        match target.transport {
            Some(transport) => Ok(live::stop(transport.target)?),
            None => Ok(()),
        }
    }

    /// Starts the cores of a target, and gives them all that it exports.
    ///
    /// # Errors
    /// When it has a transport, an option is out of range, or a core cannot start.
    pub fn create_transport(
        &mut self,
        target: &str,
        options: TransportOptions,
        params: Value,
    ) -> Result<(), EngineError> {
        if self.model().nvmf.target(target)?.transport.is_some() {
            return Err(EngineError::exists("transport", "TCP"));
        }
        let mut config = live::target_config(&options, self.engine().config());
        self.model().apply_options(&mut config);
        let cpus = config.cores.clone();
        let cores = Arc::new(Target::start(config)?);
        let populated = {
            let model = self.model();
            model.nvmf.target(target).and_then(|t| live::populate(&cores, t, &model))
        };
        if let Err(error) = populated {
            live::stop(cores)?;
            return Err(error);
        }
        self.model_mut().nvmf.target_mut(target)?.transport =
            Some(Transport { options, cpus, target: cores });
        self.put(key(target, &["transport"]), entry(target, "nvmf_create_transport", params));
        Ok(())
    }

    /// Makes a subsystem without namespaces.
    ///
    /// # Errors
    /// When there is one of that name, a text or number is out of range, or there are too many.
    pub fn create_subsystem(
        &mut self,
        target: &str,
        nqn: &Nqn,
        options: SubsystemOptions,
    ) -> Result<(), EngineError> {
        let cores = {
            let model = self.model();
            let found = model.nvmf.target(target)?;
            if found.subsystems.contains_key(nqn) {
                return Err(EngineError::exists("subsystem", nqn.as_str()));
            }
            let max = found.max_subsystems;
            if found.subsystems.len() >= usize::try_from(max).unwrap_or(usize::MAX) {
                let text = format!("target {target} has {max} subsystems already");
                return Err(EngineError::Invalid(text));
            }
            found.cores()
        };
        check_subsystem(nqn, &options)?;
        if let Some(cores) = cores {
            cores.add_subsystem(live::subsystem_config(nqn, &options, &[]))?;
        }
        self.put(key(target, &["subsystem", nqn.as_str()]), subsystem_entry(target, &options));
        let subsystem = Subsystem {
            options,
            hosts: Vec::new(),
            listeners: Vec::new(),
            namespaces: std::collections::BTreeMap::new(),
        };
        self.model_mut().nvmf.target_mut(target)?.subsystems.insert(nqn.clone(), subsystem);
        Ok(())
    }

    /// Removes a subsystem with its listeners, hosts and namespaces; its controllers close.
    ///
    /// # Errors
    /// When there is none, or its devices do not become quiet.
    pub fn delete_subsystem(&mut self, target: &str, nqn: &Nqn) -> Result<(), EngineError> {
        let cores = {
            let model = self.model();
            let found = model.nvmf.target(target)?;
            found.subsystem(nqn)?;
            found.cores()
        };
        if let Some(cores) = cores {
            cores.remove_subsystem(nqn)?;
        }
        let removed = self.model_mut().nvmf.target_mut(target)?.subsystems.remove(nqn);
        if let Some(subsystem) = removed {
            self.release_namespaces(&subsystem);
        }
        self.remove(key(target, &["subsystem", nqn.as_str()]));
        Ok(())
    }

    /// Lets any host connect, or only those of the list.
    ///
    /// # Errors
    /// When there is no such subsystem.
    pub fn allow_any_host(
        &mut self,
        target: &str,
        nqn: &Nqn,
        allow: bool,
    ) -> Result<(), EngineError> {
        if nqn.is_discovery() {
            // Anybody may ask; what is found depends on who asks.
            return Ok(());
        }
        if let Some(cores) = self.cores_of(target, nqn)? {
            cores.allow_any_host(nqn, allow)?;
        }
        self.with_subsystem(target, nqn, |subsystem| {
            subsystem.options.allow_any_host = allow;
        })?;
        let options = self.model().nvmf.target(target)?.subsystem(nqn)?.options.clone();
        self.put(key(target, &["subsystem", nqn.as_str()]), subsystem_entry(target, &options));
        Ok(())
    }

    /// Puts a host on the list of those that may connect.
    ///
    /// # Errors
    /// When there is no such subsystem, or the host is on its list.
    pub fn add_host(&mut self, target: &str, nqn: &Nqn, host: &Nqn) -> Result<(), EngineError> {
        let cores = self.cores_of(target, nqn)?;
        {
            let model = self.model();
            let hosts = &model.nvmf.target(target)?.subsystem(nqn)?.hosts;
            if hosts.contains(host) {
                return Err(EngineError::exists("host", host.as_str()));
            }
            if hosts.len() >= MAX_HOSTS {
                let text = format!("{nqn} has {MAX_HOSTS} hosts already");
                return Err(EngineError::Invalid(text));
            }
        }
        if let Some(cores) = cores {
            cores.add_host(nqn, host)?;
        }
        self.with_subsystem(target, nqn, |subsystem| subsystem.hosts.push(host.clone()))?;
        let params = json!({ "nqn": nqn.as_str(), "host": host.as_str() });
        let key = key(target, &["subsystem", nqn.as_str(), "host", host.as_str()]);
        self.put(key, entry(target, "nvmf_subsystem_add_host", params));
        Ok(())
    }

    /// Takes a host from the list; its controllers close.
    ///
    /// # Errors
    /// When there is no such subsystem, or the host is not on its list.
    pub fn remove_host(&mut self, target: &str, nqn: &Nqn, host: &Nqn) -> Result<(), EngineError> {
        let cores = self.cores_of(target, nqn)?;
        if !self.model().nvmf.target(target)?.subsystem(nqn)?.hosts.contains(host) {
            return Err(EngineError::missing("host", host.as_str()));
        }
        if let Some(cores) = cores {
            cores.remove_host(nqn, host)?;
        }
        self.with_subsystem(target, nqn, |subsystem| {
            subsystem.hosts.retain(|listed| listed != host);
        })?;
        self.remove(key(target, &["subsystem", nqn.as_str(), "host", host.as_str()]));
        Ok(())
    }

    /// The cores of a target, if a subsystem is there.
    fn cores_of(&self, target: &str, nqn: &Nqn) -> Result<Option<Arc<Target>>, EngineError> {
        let model = self.model();
        let found = model.nvmf.target(target)?;
        found.subsystem(nqn)?;
        Ok(found.cores())
    }

    fn with_subsystem(
        &mut self,
        target: &str,
        nqn: &Nqn,
        change: impl FnOnce(&mut Subsystem),
    ) -> Result<(), EngineError> {
        change(self.model_mut().nvmf.target_mut(target)?.subsystem_mut(nqn)?);
        Ok(())
    }

    /// Shows a device as a namespace; gives its number.
    ///
    /// # Errors
    /// When the subsystem or device is missing, the device is in use, or the number is taken.
    pub fn add_namespace(
        &mut self,
        target: &str,
        nqn: &Nqn,
        new: &NewNamespace,
    ) -> Result<u32, EngineError> {
        let (cores, nsid, name, uuid, device) = {
            let model = self.model();
            let found = model.nvmf.target(target)?;
            let subsystem = found.subsystem(nqn)?;
            let nsid = match new.nsid {
                None => subsystem.free_nsid()?,
                Some(nsid) => free(subsystem, nsid)?,
            };
            let missing = || EngineError::NoBdev(new.bdev_name.clone());
            let bdev = model.bdevs.find(&new.bdev_name).ok_or_else(missing)?;
            (found.cores(), nsid, bdev.name.clone(), bdev.uuid, Arc::clone(&bdev.device))
        };
        let uuid = new.uuid.unwrap_or(uuid);
        let namespace = Namespace {
            bdev_name: name.clone(),
            uuid,
            // The UUID is unique, stable and as long as an NGUID.
            nguid: new.nguid.unwrap_or(*uuid.as_bytes()),
            eui64: new.eui64.unwrap_or_default(),
            hosts: new.no_auto_visible.then(Vec::new),
        };
        let (of, nqn_text) = (target.to_owned(), nqn.as_str().to_owned());
        self.claim_bdev(&name, Claim::Namespace { target: of, nqn: nqn_text, nsid })?;
        if let Some(cores) = cores {
            let config = live::namespace_config(nsid, &namespace, device);
            if let Err(error) = cores.add_namespace(nqn, config) {
                self.release_bdev(&name);
                return Err(error.into());
            }
        }
        let params =
            json!({ "nqn": nqn.as_str(), "namespace": namespace_params(nsid, &namespace) });
        let key = key(target, &["subsystem", nqn.as_str(), "namespace", &nsid.to_string()]);
        self.put(key, entry(target, "nvmf_subsystem_add_ns", params));
        let mut model = self.model_mut();
        let subsystem = model.nvmf.target_mut(target)?.subsystem_mut(nqn)?;
        subsystem.namespaces.insert(nsid, namespace);
        Ok(nsid)
    }

    /// Takes a namespace away; hosts are told, and commands in flight finish.
    ///
    /// # Errors
    /// When there is none, or its device does not become quiet.
    pub fn remove_namespace(
        &mut self,
        target: &str,
        nqn: &Nqn,
        nsid: u32,
    ) -> Result<(), EngineError> {
        let (cores, name) = {
            let model = self.model();
            let found = model.nvmf.target(target)?;
            let namespace = found.subsystem(nqn)?.namespace(nsid)?;
            (found.cores(), namespace.bdev_name.clone())
        };
        if let Some(cores) = cores {
            cores.remove_namespace(nqn, NamespaceId(nsid))?;
        }
        {
            let mut model = self.model_mut();
            let subsystem = model.nvmf.target_mut(target)?.subsystem_mut(nqn)?;
            subsystem.namespaces.remove(&nsid);
        }
        self.release_bdev(&name);
        self.remove(key(target, &["subsystem", nqn.as_str(), "namespace", &nsid.to_string()]));
        Ok(())
    }

    /// Lets hosts reach a subsystem at an address.
    ///
    /// # Errors
    /// When there is no transport or subsystem, it listens there already, or the address cannot
    /// be had.
    pub fn add_listener(
        &mut self,
        target: &str,
        nqn: &Nqn,
        address: &ListenAddress,
    ) -> Result<(), EngineError> {
        let cores = {
            let model = self.model();
            let found = model.nvmf.target(target)?;
            let listeners = listeners(found, nqn)?;
            if listeners.contains(address) {
                return Err(EngineError::exists("listener", &address.to_string()));
            }
            if listeners.len() >= MAX_LISTENERS {
                let text = format!("{nqn} has {MAX_LISTENERS} listeners already");
                return Err(EngineError::Invalid(text));
            }
            found.cores().ok_or_else(|| EngineError::missing("transport", "TCP"))?
        };
        let socket = address.socket()?;
        let listen = || cores.add_subsystem_listener(nqn, socket);
        // What is made again after a restart is worth a wait; a client can ask again itself.
        let real = match self.engine.phase() {
            Phase::Runtime => listen(),
            Phase::Startup | Phase::Starting => Target::listen_after_restart(listen),
        };
        let real = ListenAddress::from(real?);
        let params = json!({ "nqn": nqn.as_str(), "listen_address": real });
        self.put(
            key(target, &["subsystem", nqn.as_str(), "listener", &real.to_string()]),
            entry(target, "nvmf_subsystem_add_listener", params),
        );
        let mut model = self.model_mut();
        listeners_mut(model.nvmf.target_mut(target)?, nqn)?.push(real);
        Ok(())
    }

    /// Ends that hosts reach a subsystem at an address.
    ///
    /// # Errors
    /// When it does not listen there.
    pub fn remove_listener(
        &mut self,
        target: &str,
        nqn: &Nqn,
        address: &ListenAddress,
    ) -> Result<(), EngineError> {
        let cores = {
            let model = self.model();
            let found = model.nvmf.target(target)?;
            if !listeners(found, nqn)?.contains(address) {
                return Err(EngineError::missing("listener", &address.to_string()));
            }
            found.cores().ok_or_else(|| EngineError::missing("transport", "TCP"))?
        };
        cores.remove_subsystem_listener(nqn, address.socket()?)?;
        {
            let mut model = self.model_mut();
            listeners_mut(model.nvmf.target_mut(target)?, nqn)?.retain(|other| other != address);
        }
        let address = address.to_string();
        self.remove(key(target, &["subsystem", nqn.as_str(), "listener", &address]));
        Ok(())
    }

    /// Lets a host see a namespace that hosts do not see of themselves, or hides it from one.
    ///
    /// # Errors
    /// When there is no such namespace, or every host sees it.
    pub fn set_visible(
        &mut self,
        target: &str,
        nqn: &Nqn,
        nsid: u32,
        host: &Nqn,
        visible: bool,
    ) -> Result<(), EngineError> {
        let cores = {
            let model = self.model();
            let found = model.nvmf.target(target)?;
            if found.subsystem(nqn)?.namespace(nsid)?.hosts.is_none() {
                let text = format!(
                    "every host sees namespace {nsid}: add it with no_auto_visible instead"
                );
                return Err(EngineError::Invalid(text));
            }
            found.cores()
        };
        match (cores, visible) {
            (Some(cores), true) => cores.show_namespace(nqn, NamespaceId(nsid), host)?,
            (Some(cores), false) => cores.hide_namespace(nqn, NamespaceId(nsid), host)?,
            (None, _) => {}
        }
        self.with_subsystem(target, nqn, |subsystem| {
            let namespace = subsystem.namespaces.get_mut(&nsid);
            if let Some(hosts) = namespace.and_then(|namespace| namespace.hosts.as_mut()) {
                hosts.retain(|listed| listed != host);
                if visible {
                    hosts.push(host.clone());
                }
            }
        })?;
        let nsid_text = nsid.to_string();
        let parts =
            ["subsystem", nqn.as_str(), "namespace", nsid_text.as_str(), "host", host.as_str()];
        if visible {
            let params = json!({ "nqn": nqn.as_str(), "nsid": nsid, "host": host.as_str() });
            self.put(key(target, &parts), entry(target, "nvmf_ns_add_host", params));
        } else {
            self.remove(key(target, &parts));
        }
        Ok(())
    }

    /// Points hosts that ask for discovery to another place.
    ///
    /// # Errors
    /// When there is such a referral.
    pub fn add_referral(&mut self, target: &str, referral: Referral) -> Result<(), EngineError> {
        let cores = {
            let model = self.model();
            let found = model.nvmf.target(target)?;
            if found.referrals.iter().any(|other| other.is_same(&referral)) {
                return Err(EngineError::exists("referral", &referral.address.to_string()));
            }
            found.cores()
        };
        let taken = referral.to_target()?;
        if let Some(cores) = cores {
            cores.add_referral(taken)?;
        }
        let params = serde_json::to_value(&referral).unwrap_or_default();
        let place = entry(target, "nvmf_discovery_add_referral", params);
        self.put(referral_key(target, &referral), place);
        self.model_mut().nvmf.target_mut(target)?.referrals.push(referral);
        Ok(())
    }

    /// Takes a referral back.
    ///
    /// # Errors
    /// When there is none.
    pub fn remove_referral(
        &mut self,
        target: &str,
        referral: &Referral,
    ) -> Result<(), EngineError> {
        let cores = {
            let model = self.model();
            let found = model.nvmf.target(target)?;
            if !found.referrals.iter().any(|other| other.is_same(referral)) {
                return Err(EngineError::missing("referral", &referral.address.to_string()));
            }
            found.cores()
        };
        if let Some(cores) = cores {
            cores.remove_referral(&referral.to_target()?)?;
        }
        let mut model = self.model_mut();
        model.nvmf.target_mut(target)?.referrals.retain(|other| !other.is_same(referral));
        drop(model);
        self.remove(referral_key(target, referral));
        Ok(())
    }

    fn release_namespaces(&mut self, subsystem: &Subsystem) {
        for namespace in subsystem.namespaces.values() {
            self.release_bdev(&namespace.bdev_name);
        }
    }
}

fn referral_key(target: &str, referral: &Referral) -> Key {
    key(target, &["referral", &referral.address.to_string(), &referral.subnqn])
}

fn check_subsystem(nqn: &Nqn, options: &SubsystemOptions) -> Result<(), EngineError> {
    let config: SubsystemConfig = live::subsystem_config(nqn, options, &[]);
    let printable = |text: &str| text.bytes().all(|byte| (0x20..=0x7e).contains(&byte));
    for (what, text, max) in
        [("serial_number", &config.serial, 20), ("model_number", &config.model, 40)]
    {
        if text.len() > max || !printable(text) {
            let text = format!("{what} must be at most {max} printable ASCII characters");
            return Err(EngineError::Invalid(text));
        }
    }
    let max = SubsystemConfig::MAX_NAMESPACES;
    if !(1..=max).contains(&config.max_namespaces) {
        return Err(EngineError::Invalid(format!("max_namespaces must be 1 to {max}")));
    }
    Ok(())
}

fn free(subsystem: &Subsystem, nsid: u32) -> Result<u32, EngineError> {
    if subsystem.namespaces.contains_key(&nsid) {
        return Err(EngineError::exists("namespace", &nsid.to_string()));
    }
    let max = subsystem.options.max_namespaces;
    if nsid > max {
        let text = format!("nsid {nsid} is above max_namespaces {max}");
        return Err(EngineError::Invalid(text));
    }
    Ok(nsid)
}

fn listeners<'a>(target: &'a NvmfTarget, nqn: &Nqn) -> Result<&'a Vec<ListenAddress>, EngineError> {
    if nqn.is_discovery() {
        return Ok(&target.discovery_listeners);
    }
    Ok(&target.subsystem(nqn)?.listeners)
}

fn listeners_mut<'a>(
    target: &'a mut NvmfTarget,
    nqn: &Nqn,
) -> Result<&'a mut Vec<ListenAddress>, EngineError> {
    if nqn.is_discovery() {
        return Ok(&mut target.discovery_listeners);
    }
    Ok(&mut target.subsystem_mut(nqn)?.listeners)
}

fn subsystem_entry(target: &str, options: &SubsystemOptions) -> Entry {
    // Texts and numbers can always be JSON.
    let params = serde_json::to_value(options).unwrap_or_default();
    entry(target, "nvmf_create_subsystem", params)
}

fn namespace_params(nsid: u32, namespace: &Namespace) -> Value {
    let mut params = json!({
        "nsid": nsid,
        "bdev_name": namespace.bdev_name,
        "nguid": hex(&namespace.nguid),
        "uuid": namespace.uuid,
    });
    if let Some(members) = params.as_object_mut() {
        if namespace.eui64 != [0; 8] {
            members.insert("eui64".to_owned(), hex(&namespace.eui64).into());
        }
        if namespace.hosts.is_some() {
            members.insert("no_auto_visible".to_owned(), true.into());
        }
    }
    params
}

/// Upper-case hexadecimal, as SPDK writes identifiers.
#[must_use]
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02X}")).collect()
}
