//! Asymmetric Namespace Access: the states of groups by listener, the groups of namespaces.

use raceline_proto::nvme::{NamespaceId, Nqn};
use raceline_target::{AnaState, ListenerAna};
use serde_json::{Value, json};

use super::change::{entry, key};
use super::{ListenAddress, Subsystem};
use crate::manager::{Change, ManagerError};

impl Subsystem {
    /// Checks that the subsystem reports ANA and has this group.
    ///
    /// # Errors
    /// When it does not.
    pub(super) fn check_ana_group(&self, group: Option<u32>) -> Result<(), ManagerError> {
        let nqn = &self.options.nqn;
        if !self.options.ana_reporting {
            let text = format!("{nqn} reports no ANA: create the subsystem with ana_reporting");
            return Err(ManagerError::Invalid(text));
        }
        let max = self.options.max_namespaces;
        match group {
            Some(group) if !(1..=max).contains(&group) => {
                let text = format!("anagrpid {group} is not within 1 to max_namespaces {max}");
                Err(ManagerError::Invalid(text))
            }
            _ => Ok(()),
        }
    }
}

impl Change<'_> {
    /// Sets the state of an ANA group, or of all, for hosts that come by a listener. When hosts cannot use
    /// the namespaces any more, the call returns after the last command by that listener.
    ///
    /// # Errors
    /// When the subsystem reports no ANA, it does not listen there, or commands stay in flight.
    pub fn set_ana_state(
        &mut self,
        target: &str,
        nqn: &Nqn,
        address: &ListenAddress,
        (group, state): (Option<u32>, AnaState),
    ) -> Result<(), ManagerError> {
        let (cores, mut ana) = {
            let model = self.model();
            let found = model.nvmf.target(target)?;
            let subsystem = found.subsystem(nqn)?;
            subsystem.check_ana_group(group)?;
            if !subsystem.listeners.contains(address) {
                return Err(ManagerError::missing("listener", &address.to_string()));
            }
            (found.cores(), subsystem.ana.get(address).cloned().unwrap_or_default())
        };
        ana.set(group, state);
        if let Some(cores) = cores {
            cores.set_ana_state(nqn, address.place()?, group, state)?;
        }
        self.put_listener(target, nqn, address, &ana)?;
        self.with_subsystem(target, nqn, |subsystem| {
            subsystem.ana.insert(address.clone(), ana);
        })
    }

    /// Moves a namespace to another ANA group.
    ///
    /// # Errors
    /// When the subsystem reports no ANA, or has no such group or namespace.
    pub fn set_ana_group(
        &mut self,
        target: &str,
        nqn: &Nqn,
        nsid: u32,
        group: u32,
    ) -> Result<(), ManagerError> {
        let (cores, mut namespace) = {
            let model = self.model();
            let found = model.nvmf.target(target)?;
            let subsystem = found.subsystem(nqn)?;
            subsystem.check_ana_group(Some(group))?;
            (found.cores(), subsystem.namespace(nsid)?.clone())
        };
        namespace.anagrpid = Some(group);
        // A namespace whose device is missing gets its group with the device.
        if let Some(cores) = cores.filter(|_| namespace.missing.is_none()) {
            cores.set_ana_group(nqn, NamespaceId(nsid), group)?;
        }
        self.put_namespace(target, nqn, nsid, &namespace);
        self.with_subsystem(target, nqn, |subsystem| {
            subsystem.namespaces.insert(nsid, namespace);
        })
    }

    /// Records a listener with the states of its groups: a restart opens it in these states.
    pub(super) fn put_listener(
        &mut self,
        target: &str,
        nqn: &Nqn,
        address: &ListenAddress,
        ana: &ListenerAna,
    ) -> Result<(), ManagerError> {
        let level = self.model().nvmf.target(target)?.level(address);
        let mut params = json!({ "nqn": nqn.as_str(), "listen_address": address });
        if let Some(members) = params.as_object_mut() {
            if level.security.tls {
                members.insert("secure_channel".to_owned(), true.into());
            }
            if !level.is_of_spdk() {
                members.insert("security".to_owned(), level.to_string().into());
            }
            if ana.all != AnaState::default() {
                members.insert("ana_state".to_owned(), ana_word(ana.all).into());
            }
            if !ana.groups.is_empty() {
                members.insert("ana_states".to_owned(), ana_states(ana.groups.iter()));
            }
        }
        let key = key(target, &["subsystem", nqn.as_str(), "listener", &address.to_string()]);
        self.put(key, entry(target, "nvmf_subsystem_add_listener", params));
        Ok(())
    }
}

/// States of groups as SPDK lists them.
pub(crate) fn ana_states<'a>(groups: impl Iterator<Item = (&'a u32, &'a AnaState)>) -> Value {
    groups
        .map(|(group, state)| json!({ "ana_group": group, "ana_state": ana_word(*state) }))
        .collect()
}

/// SPDK's word for a state.
pub(crate) fn ana_word(state: AnaState) -> &'static str {
    match state {
        AnaState::Optimized => "optimized",
        AnaState::NonOptimized => "non_optimized",
        AnaState::Inaccessible => "inaccessible",
        AnaState::PersistentLoss => "persistent_loss",
        AnaState::Change => "change",
    }
}

/// The state of SPDK's word.
pub(crate) fn ana_of_word(word: &str) -> Option<AnaState> {
    AnaState::ALL.into_iter().find(|state| ana_word(*state) == word)
}
