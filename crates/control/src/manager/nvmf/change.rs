//! Changes of the exports: the effect on the cores first, then the model and the record.

use std::sync::Arc;

use raceline_proto::nvme::Nqn;
use raceline_reactor::no_wait::MayWait;
use raceline_target::{
    Entrance, ListenerAna, Patience, QosLimits, RdmaConfig, RdmaStreams, SubsystemConfig, Target,
    check_rdma_address, load_rdma_libraries,
};
use serde_json::{Value, json};

use super::listener::RDMA;
use super::live;
use super::{
    DEFAULT_TARGET, ListenAddress, MAX_LISTENERS, NvmfTarget, PortLevel, RdmaOptions, Referral,
    Running, Subsystem, SubsystemOptions, TransportOptions,
};
use crate::manager::catalogue::{Entry, Key, Section};
use crate::manager::options::{FilterOptions, option_key};
use crate::manager::{Change, ManagerError, Phase, iscsi};

/// The key of a part of a target.
pub(in crate::manager) fn key(target: &str, parts: &[&str]) -> Key {
    let mut all = vec!["nvmf", target];
    all.extend_from_slice(parts);
    Key::new(&all)
}

/// A call on a target: the target is named only if it is not the default one.
pub(in crate::manager) fn entry(target: &str, method: &str, mut params: Value) -> Entry {
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
    pub fn create_target(
        &mut self,
        name: &str,
        max_subsystems: u32,
        filter: Option<FilterOptions>,
    ) -> Result<(), ManagerError> {
        if self.model().nvmf.targets.contains_key(name) {
            return Err(ManagerError::exists("target", name));
        }
        let target = NvmfTarget { max_subsystems, filter, ..NvmfTarget::default() };
        self.model_mut().nvmf.targets.insert(name.to_owned(), target);
        let mut params = json!({ "name": name, "max_subsystems": max_subsystems });
        if let Some(filter) = filter {
            params["discovery_filter"] = filter.to_string().into();
        }
        let section = Section::Nvmf;
        let method = "nvmf_create_target".to_owned();
        self.put(key(name, &[]), Entry { section, method, params });
        Ok(())
    }

    /// Sets how many subsystems a target may have.
    ///
    /// # Errors
    /// When there is no such target.
    pub fn set_max_subsystems(&mut self, target: &str, max: u32) -> Result<(), ManagerError> {
        self.model_mut().nvmf.target_mut(target)?.max_subsystems = max;
        Ok(())
    }

    /// Removes a target with everything that it exports.
    ///
    /// # Errors
    /// When there is none, or its cores do not end.
    pub fn delete_target(&mut self, name: &str) -> Result<(), ManagerError> {
        if name == DEFAULT_TARGET && !self.model().iscsi.portal_groups.is_empty() {
            let text = format!(
                "the cores of target {name} serve iSCSI portal groups: delete these first \
                 (iscsi_delete_portal_group)"
            );
            return Err(ManagerError::Invalid(text));
        }
        let removed = self.model_mut().nvmf.targets.remove(name);
        let target = removed.ok_or_else(|| ManagerError::missing("target", name))?;
        self.remove(key(name, &[]));
        if name == DEFAULT_TARGET {
            // The default target exists at each start, so its removal is recorded as a call.
            let (section, method) = (Section::Nvmf, "nvmf_delete_target".to_owned());
            let entry = Entry { section, method, params: json!({ "name": name }) };
            self.put(option_key("nvmf-without-default"), entry);
        }
        for subsystem in target.subsystems.values() {
            self.release_namespaces(subsystem);
        }
        target.registrars.values().for_each(|registrar| registrar.end());
        self.stop_cores(target.running)
    }

    /// Starts the cores of a target with the options of its transport, and gives them all its exports. Cores that have
    /// served iSCSI alone end before: initiators log in again.
    ///
    /// # Errors
    /// When it has a transport, an option is out of range, or a core cannot start.
    pub fn create_transport(
        &mut self,
        target: &str,
        options: TransportOptions,
        params: Value,
    ) -> Result<(), ManagerError> {
        let rdma = self.manager().rdma_options(target);
        {
            let model = self.model();
            let found = model.nvmf.target(target)?;
            if found.has_tcp() {
                return Err(ManagerError::exists("transport", "TCP"));
            }
            if let Some(rdma) = rdma {
                rdma.limits.check_against(&options)?;
            }
            if found.transport().is_some_and(|own| *own != options) && found.listens() {
                let text = "the cores of the target serve RDMA with other options than these: remove its RDMA listeners \
                            before, and add them again";
                return Err(ManagerError::Invalid(text.to_owned()));
            }
        }
        self.change_cores(target, &options)?;
        if let Some(rdma) = rdma {
            let streams = self.rdma_streams(&options, rdma);
            let mut model = self.model_mut();
            let found = model.nvmf.target_mut(target)?;
            // Listeners keep what carries them; the options are the same then.
            if !found.listens() {
                found.rdma = Some(streams);
            }
        }
        if let Some(running) = &mut self.model_mut().nvmf.target_mut(target)?.running {
            running.has_tcp = true;
        }
        self.put(key(target, &["transport"]), entry(target, "nvmf_create_transport", params));
        Ok(())
    }

    /// Has the cores of a target run with these options. They start anew unless they have them: whoever is connected by
    /// iSCSI logs in again.
    fn change_cores(
        &mut self,
        target: &str,
        options: &TransportOptions,
    ) -> Result<(), ManagerError> {
        if self.model().nvmf.target(target)?.transport() == Some(options) {
            return Ok(());
        }
        let before = self.model_mut().nvmf.target_mut(target)?.running.take();
        let transport_before = before.as_ref().map(|running| running.transport.clone());
        self.stop_cores(before)?;
        if let Err(error) = self.start_cores(target, Some(options.clone())) {
            if let Some(transport) = transport_before {
                self.start_cores(target, transport)?;
            }
            return Err(error);
        }
        Ok(())
    }

    /// What carries the connections of RDMA listeners.
    fn rdma_streams(&self, options: &TransportOptions, rdma: RdmaOptions) -> Arc<RdmaStreams> {
        Arc::new(RdmaStreams::new(RdmaConfig {
            shared_receives: if rdma.no_srq { 0 } else { rdma.max_srq_depth },
            reads_regions: rdma.zcopy,
            ..RdmaConfig::of(&live::target_config(options, self.manager()))
        }))
    }

    /// Lets a target have RDMA listeners. Their limits are those of its transport TCP, if there is one.
    ///
    /// # Errors
    /// When there is such a transport, TCP has other limits than are named, a core cannot start, or the RDMA libraries
    /// cannot be loaded.
    pub fn create_rdma_transport(
        &mut self,
        target: &str,
        rdma: RdmaOptions,
    ) -> Result<(), ManagerError> {
        let options = {
            let model = self.model();
            let found = model.nvmf.target(target)?;
            if found.rdma.is_some() {
                return Err(ManagerError::exists("transport", RDMA));
            }
            found.transport().cloned()
        };
        if let Some(tcp) = &options {
            rdma.limits.check_against(tcp)?;
        }
        load_rdma_libraries().map_err(|error| ManagerError::Invalid(error.to_string()))?;
        let options = options.unwrap_or_else(|| rdma.limits.options());
        self.change_cores(target, &options)?;
        let streams = self.rdma_streams(&options, rdma);
        self.model_mut().nvmf.target_mut(target)?.rdma = Some(streams);
        let RdmaOptions { limits, max_srq_depth, no_srq, zcopy, shown } = rdma;
        let mut params = json!({
            "trtype": RDMA, "max_srq_depth": max_srq_depth, "no_srq": no_srq, "zcopy": zcopy,
        });
        for more in [serde_json::to_value(limits), serde_json::to_value(shown)] {
            if let (Some(params), Ok(Value::Object(more))) = (params.as_object_mut(), more) {
                params.extend(more);
            }
        }
        self.put(key(target, &["rdma"]), entry(target, "nvmf_create_transport", params));
        Ok(())
    }

    /// Starts the cores of the default target for iSCSI, unless they run.
    ///
    /// # Errors
    /// When the default target has been deleted, or a core cannot start.
    pub(in crate::manager) fn start_cores_for_iscsi(
        &mut self,
    ) -> Result<Arc<Target>, ManagerError> {
        if self.model().nvmf.target(DEFAULT_TARGET)?.running.is_none() {
            self.start_cores(DEFAULT_TARGET, None)?;
        }
        let cores = self.model().nvmf.target(DEFAULT_TARGET)?.cores();
        cores.ok_or_else(|| ManagerError::missing("target", DEFAULT_TARGET))
    }

    /// Starts the cores of a target, and gives them all its exports.
    fn start_cores(
        &mut self,
        target: &str,
        transport: Option<TransportOptions>,
    ) -> Result<(), ManagerError> {
        let options = transport.clone().unwrap_or_default();
        let mut config = live::target_config(&options, self.manager());
        self.model().apply_options(&mut config);
        config.generated_keys =
            Some(self.model().nvmf.target(target)?.secure_channel.generated_keys());
        for overruled in self.manager().config().connections.apply(&mut config) {
            tracing::warn!("the command line wins over calls: {overruled}");
        }
        let cpus = config.cores.clone();
        let cores = Arc::new(Target::start(config)?);
        let populated = {
            let model = self.model();
            // Nobody else knows these cores, and no host is there whose command could want the model.
            let _may_wait = MayWait::begin();
            let all = live::populate(self.manager(), &cores, target, &model);
            match target == DEFAULT_TARGET {
                true => all.and_then(|()| iscsi::populate(self.manager().config(), &cores, &model)),
                false => all,
            }
        };
        if let Err(error) = populated {
            self.manager().note_generation(&cores);
            live::stop(cores)?;
            return Err(error);
        }
        self.model().start_balancing(&cores, &self.manager().config().connections);
        self.model_mut().nvmf.target_mut(target)?.running =
            Some(Running { transport, has_tcp: false, cpus, target: cores });
        Ok(())
    }

    fn stop_cores(&mut self, running: Option<Running>) -> Result<(), ManagerError> {
        let Some(running) = running else { return Ok(()) };
        self.manager().note_generation(&running.target);
        Ok(live::stop(running.target)?)
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
    ) -> Result<(), ManagerError> {
        let cores = {
            let model = self.model();
            let found = model.nvmf.target(target)?;
            if found.subsystems.contains_key(nqn) {
                return Err(ManagerError::exists("subsystem", nqn.as_str()));
            }
            let max = found.max_subsystems;
            if found.subsystems.len() >= usize::try_from(max).unwrap_or(usize::MAX) {
                let text = format!("target {target} has {max} subsystems already");
                return Err(ManagerError::Invalid(text));
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
            ana: std::collections::BTreeMap::new(),
            namespaces: std::collections::BTreeMap::new(),
            pool: None,
            limits: QosLimits::default(),
            weights: std::collections::BTreeMap::new(),
        };
        self.model_mut().nvmf.target_mut(target)?.subsystems.insert(nqn.clone(), subsystem);
        Ok(())
    }

    /// Removes a subsystem with its listeners, hosts and namespaces; its controllers close.
    ///
    /// # Errors
    /// When there is none, or its devices do not become quiet.
    pub fn delete_subsystem(&mut self, target: &str, nqn: &Nqn) -> Result<(), ManagerError> {
        let cores = {
            let model = self.model();
            let found = model.nvmf.target(target)?;
            found.subsystem(nqn)?;
            found.cores()
        };
        if let Some(cores) = cores {
            cores.remove_subsystem(nqn)?;
        }
        let removed = {
            let mut model = self.model_mut();
            let target = model.nvmf.target_mut(target)?;
            let removed = target.subsystems.remove(nqn);
            for host in removed.iter().flat_map(|subsystem| &subsystem.hosts) {
                target.secure_channel.set(nqn, &host.nqn, None)?;
                target.secure_channel.forget_generated(nqn, &host.nqn);
            }
            target.forget_unused_addresses();
            removed
        };
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
    ) -> Result<(), ManagerError> {
        if nqn.is_discovery() {
            // Any host may use discovery; the log depends on which host asks.
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

    /// The cores of a target, if a subsystem is there.
    pub(super) fn cores_of(
        &self,
        target: &str,
        nqn: &Nqn,
    ) -> Result<Option<Arc<Target>>, ManagerError> {
        let model = self.model();
        let found = model.nvmf.target(target)?;
        found.subsystem(nqn)?;
        Ok(found.cores())
    }

    pub(super) fn with_subsystem(
        &mut self,
        target: &str,
        nqn: &Nqn,
        change: impl FnOnce(&mut Subsystem),
    ) -> Result<(), ManagerError> {
        change(self.model_mut().nvmf.target_mut(target)?.subsystem_mut(nqn)?);
        Ok(())
    }

    /// Lets hosts reach a subsystem at an address.
    ///
    /// # Errors
    /// When there is no transport or subsystem, it listens there already, or the address cannot be bound or, for RDMA, is that
    /// of no device.
    pub fn add_listener(
        &mut self,
        target: &str,
        nqn: &Nqn,
        address: &ListenAddress,
        (ana, level): (ListenerAna, PortLevel),
    ) -> Result<(), ManagerError> {
        let socket = address.socket()?;
        if address.is_rdma() {
            let refused =
                |error| ManagerError::Invalid(format!("a listener at {address}: {error}"));
            check_rdma_address(socket).map_err(refused)?;
        }
        let (cores, entrance) = {
            let model = self.model();
            let found = model.nvmf.target(target)?;
            let listeners = listeners(found, nqn)?;
            if listeners.contains(address) {
                return Err(ManagerError::exists("listener", &address.to_string()));
            }
            if listeners.len() >= MAX_LISTENERS {
                let text = format!("{nqn} has {MAX_LISTENERS} listeners already");
                return Err(ManagerError::Invalid(text));
            }
            let (trtype, is_there) = match address.is_rdma() {
                true => (RDMA, found.rdma.is_some()),
                false => ("TCP", found.has_tcp()),
            };
            let cores = found.cores().filter(|_| is_there);
            let cores = cores.ok_or_else(|| ManagerError::missing("transport", trtype))?;
            let entrance = match address.is_rdma() {
                true => rdma_entrance(found, level, self.manager().rdma_patience())?,
                false => found.secure_channel.entrance(level, model.ktls()),
            };
            (cores, entrance)
        };
        let listen = || cores.add_subsystem_listener_in(nqn, socket, entrance.clone(), &ana);
        // A listener that is restored waits for its address to become free; a client can ask again itself.
        let real = match self.manager().phase() {
            Phase::Runtime => listen(),
            Phase::Startup | Phase::Starting => Target::listen_after_restart(listen),
        };
        let trtype = address.trtype.clone();
        let real = ListenAddress { trtype, ..ListenAddress::from(real?) };
        {
            let mut model = self.model_mut();
            let target = model.nvmf.target_mut(target)?;
            if level != PortLevel::default() {
                target.levels.insert(real.clone(), level);
            }
            listeners_mut(target, nqn)?.push(real.clone());
            if let Some(subsystem) = target.subsystems.get_mut(nqn) {
                subsystem.ana.insert(real.clone(), ana.clone());
            }
        }
        self.put_listener(target, nqn, &real, &ana)
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
    ) -> Result<(), ManagerError> {
        let cores = {
            let model = self.model();
            let found = model.nvmf.target(target)?;
            if !listeners(found, nqn)?.contains(address) {
                return Err(ManagerError::missing("listener", &address.to_string()));
            }
            found.cores().ok_or_else(|| ManagerError::missing("transport", "TCP"))?
        };
        cores.remove_subsystem_listener(nqn, address.place()?)?;
        {
            let mut model = self.model_mut();
            let target = model.nvmf.target_mut(target)?;
            listeners_mut(target, nqn)?.retain(|other| other != address);
            if let Some(subsystem) = target.subsystems.get_mut(nqn) {
                subsystem.ana.remove(address);
            }
            target.forget_unused_addresses();
        }
        let address = address.to_string();
        self.remove(key(target, &["subsystem", nqn.as_str(), "listener", &address]));
        Ok(())
    }

    /// Refers hosts that ask for discovery to another place.
    ///
    /// # Errors
    /// When there is such a referral.
    pub fn add_referral(&mut self, target: &str, referral: Referral) -> Result<(), ManagerError> {
        let cores = {
            let model = self.model();
            let found = model.nvmf.target(target)?;
            if found.referrals.iter().any(|other| other.is_same(&referral)) {
                return Err(ManagerError::exists("referral", &referral.address.to_string()));
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

    /// Removes a referral.
    ///
    /// # Errors
    /// When there is none.
    pub fn remove_referral(
        &mut self,
        target: &str,
        referral: &Referral,
    ) -> Result<(), ManagerError> {
        let cores = {
            let model = self.model();
            let found = model.nvmf.target(target)?;
            if !found.referrals.iter().any(|other| other.is_same(referral)) {
                return Err(ManagerError::missing("referral", &referral.address.to_string()));
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
        // A missing device may have another user by now.
        let namespaces = subsystem.namespaces.values().filter(|ns| ns.missing.is_none());
        let pool = subsystem.pool.iter().filter(|pool| pool.missing.is_none());
        let names = namespaces.map(|ns| &ns.bdev_name).chain(pool.map(|pool| &pool.bdev_name));
        names.for_each(|name| self.release_bdev(name));
    }
}

fn referral_key(target: &str, referral: &Referral) -> Key {
    key(target, &["referral", &referral.address.to_string(), &referral.subnqn])
}

fn check_subsystem(nqn: &Nqn, options: &SubsystemOptions) -> Result<(), ManagerError> {
    let config: SubsystemConfig = live::subsystem_config(nqn, options, &[]);
    let printable = |text: &str| text.bytes().all(|byte| (0x20..=0x7e).contains(&byte));
    for (what, text, max) in
        [("serial_number", &config.serial, 20), ("model_number", &config.model, 40)]
    {
        if text.len() > max || !printable(text) {
            let text = format!("{what} must be at most {max} printable ASCII characters");
            return Err(ManagerError::Invalid(text));
        }
    }
    let max = SubsystemConfig::MAX_NAMESPACES;
    if !(1..=max).contains(&config.max_namespaces) {
        return Err(ManagerError::Invalid(format!("max_namespaces must be 1 to {max}")));
    }
    Ok(())
}

/// How connections come in by an RDMA listener of this level.
fn rdma_entrance(
    target: &NvmfTarget,
    level: PortLevel,
    patience: Patience,
) -> Result<Entrance, ManagerError> {
    if level.security.tls || level.concatenates {
        let text = "TLS is for TCP: an RDMA listener has no secure channel";
        return Err(ManagerError::Invalid(text.to_owned()));
    }
    let streams = target.rdma.clone().ok_or_else(|| ManagerError::missing("transport", RDMA))?;
    streams.set_patience(patience);
    Ok(Entrance { streams: Some(streams), authentication: level.security.authentication })
}

fn listeners<'a>(
    target: &'a NvmfTarget,
    nqn: &Nqn,
) -> Result<&'a Vec<ListenAddress>, ManagerError> {
    if nqn.is_discovery() {
        return Ok(&target.discovery_listeners);
    }
    Ok(&target.subsystem(nqn)?.listeners)
}

fn listeners_mut<'a>(
    target: &'a mut NvmfTarget,
    nqn: &Nqn,
) -> Result<&'a mut Vec<ListenAddress>, ManagerError> {
    if nqn.is_discovery() {
        return Ok(&mut target.discovery_listeners);
    }
    Ok(&mut target.subsystem_mut(nqn)?.listeners)
}

pub(super) fn subsystem_entry(target: &str, options: &SubsystemOptions) -> Entry {
    // Texts and numbers can always be JSON.
    let params = serde_json::to_value(options).unwrap_or_default();
    entry(target, "nvmf_create_subsystem", params)
}

/// Upper-case hexadecimal, as SPDK writes identifiers.
#[must_use]
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02X}")).collect()
}
