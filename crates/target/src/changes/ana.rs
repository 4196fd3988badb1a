//! Changes of Asymmetric Namespace Access: the states of groups by listener, the group of a namespace.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use raceline_proto::controller::ANA_TRANSITION_SECONDS;
use raceline_proto::nvme::ana::AnaState;
use raceline_proto::nvme::{NamespaceId, Nqn};

use crate::changes::config::TargetError;
use crate::changes::control::{Control, Entry, State};
use crate::changes::message::Message;
use crate::changes::snapshot::DeviceId;
use crate::changes::target::Target;
use crate::records::names::ListenerAt;

/// How long commands in flight may take to end when their path closes: as long as hosts wait for the end of
/// a change.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(ANA_TRANSITION_SECONDS as u64);
/// How often the cores are asked for commands in flight.
const DRAIN_INTERVAL: Duration = Duration::from_millis(2);

/// The states of all groups for hosts that come by a listener.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListenerAna {
    /// Of groups that are not among [`Self::groups`].
    pub all: AnaState,
    /// Of single groups.
    pub groups: BTreeMap<u32, AnaState>,
}

impl ListenerAna {
    /// The state of a group.
    #[must_use]
    pub fn state(&self, group: u32) -> AnaState {
        self.groups.get(&group).copied().unwrap_or(self.all)
    }

    /// Sets the state of a group, or of all groups.
    pub fn set(&mut self, group: Option<u32>, state: AnaState) {
        match group {
            None => *self = Self { all: state, groups: BTreeMap::new() },
            Some(group) if state == self.all => {
                self.groups.remove(&group);
            }
            Some(group) => {
                self.groups.insert(group, state);
            }
        }
    }
}

impl Target {
    /// Sets the state of a group, or of all groups, for hosts that come by a listener; hosts are told.
    ///
    /// When the namespaces cannot be used any more, new commands are refused first, in the state
    /// [`AnaState::Change`]. The new state shows when no command for them that came by the listener is in
    /// flight: from then on, no write by that path reaches them.
    ///
    /// # Errors
    /// When there is no such subsystem or listener, the subsystem reports no ANA, or the group is out of
    /// range. When commands stay in flight for [`ANA_TRANSITION_SECONDS`]: the groups then stay in the state
    /// [`AnaState::Change`], and the call can be made again.
    pub fn set_ana_state(
        &self,
        nqn: &Nqn,
        at: impl Into<ListenerAt>,
        group: Option<u32>,
        ana: AnaState,
    ) -> Result<(), TargetError> {
        let mut state = self.control.lock();
        let port_id = state.ana_port(nqn, at.into())?;
        let groups = state.entry(nqn)?.ana_groups_named(group)?;
        let set = |entry: &mut Entry, wanted: AnaState| {
            if let Some(states) = &mut entry.ana {
                states.set_all(port_id, &groups, wanted);
            }
            Ok(())
        };
        if ana.refusal().is_some() {
            self.control.change(&mut state, nqn, |entry| set(entry, AnaState::Change))?;
            self.control.publish(&mut state)?;
            let devices = state.entry(nqn)?.devices_of(&groups);
            self.control.drain(nqn, port_id, &devices)?;
        }
        self.control.change(&mut state, nqn, |entry| set(entry, ana))?;
        self.control.publish(&mut state)
    }

    /// Moves a namespace to another group; hosts are told of the namespace and of the groups.
    ///
    /// # Errors
    /// When there is no such subsystem or namespace, the subsystem reports no ANA, or the group is out of
    /// range.
    pub fn set_ana_group(
        &self,
        nqn: &Nqn,
        nsid: NamespaceId,
        group: u32,
    ) -> Result<(), TargetError> {
        self.change(nqn, |entry| {
            entry.ana_groups_named(Some(group))?;
            entry.namespace(nsid)?;
            entry.ana_groups.insert(nsid.0, group);
            Ok(())
        })
    }

    /// The state of each group that has a namespace, for hosts that come by a listener.
    ///
    /// # Errors
    /// When there is no such subsystem or listener, or the subsystem reports no ANA.
    pub fn ana_states(
        &self,
        nqn: &Nqn,
        at: impl Into<ListenerAt>,
    ) -> Result<Vec<(u32, AnaState)>, TargetError> {
        let mut state = self.control.lock();
        let port_id = state.ana_port(nqn, at.into())?;
        let entry = state.entry(nqn)?;
        let Some(ana) = &entry.ana else { return Ok(Vec::new()) };
        let mut groups: Vec<u32> =
            entry.namespaces.keys().map(|nsid| entry.ana_group(NamespaceId(*nsid))).collect();
        groups.sort_unstable();
        groups.dedup();
        Ok(groups.into_iter().map(|group| (group, ana.state(port_id, group))).collect())
    }
}

impl State {
    /// The listener at an address that leads to the subsystem, which reports ANA.
    fn ana_port(&mut self, nqn: &Nqn, at: ListenerAt) -> Result<u16, TargetError> {
        let found = self.listener_at(at).copied();
        let entry = self.entry(nqn)?;
        if entry.ana.is_none() {
            return Err(TargetError::NoAna(nqn.clone()));
        }
        let listener = found?;
        match listener.open || entry.ports.contains(&listener.port_id) {
            true => Ok(listener.port_id),
            false => Err(TargetError::NoListener(at.address)),
        }
    }
}

impl Entry {
    /// The group of a namespace: its own number unless it has been moved.
    pub(crate) fn ana_group(&self, nsid: NamespaceId) -> u32 {
        match self.ana {
            Some(_) => self.ana_groups.get(&nsid.0).copied().unwrap_or(nsid.0),
            None => 0,
        }
    }

    /// The groups that a call names: one, or all that there can be.
    pub(crate) fn ana_groups_named(&self, group: Option<u32>) -> Result<Vec<u32>, TargetError> {
        let max = self.config.max_namespaces;
        match (&self.ana, group) {
            (None, _) => Err(TargetError::NoAna(self.config.nqn.clone())),
            (Some(_), None) => Ok((1..=max).collect()),
            (Some(_), Some(group)) if (1..=max).contains(&group) => Ok(vec![group]),
            (Some(_), Some(group)) => {
                Err(TargetError::AnaGroup { nqn: self.config.nqn.clone(), group, max })
            }
        }
    }

    /// The devices of the namespaces of these groups.
    fn devices_of(&self, groups: &[u32]) -> Arc<[DeviceId]> {
        let namespaces = self.namespaces.iter();
        let of_groups = namespaces
            .filter(|(nsid, _)| groups.binary_search(&self.ana_group(NamespaceId(**nsid))).is_ok());
        of_groups.map(|(_, exported)| exported.device).collect()
    }
}

impl Control {
    /// Waits until no command for these devices that came by the port is in flight.
    fn drain(&self, nqn: &Nqn, port_id: u16, devices: &Arc<[DeviceId]>) -> Result<(), TargetError> {
        let deadline = Instant::now() + DRAIN_TIMEOUT;
        loop {
            let departures = self.shared.departures();
            let counts = self.ask_all(DRAIN_TIMEOUT, |reply| {
                let devices = Arc::clone(devices);
                Message::CountInFlight { port_id, devices, reply }
            })?;
            let commands: usize = counts.iter().sum();
            // Otherwise a connection may have left the core that was asked last for one that was asked before.
            if commands == 0 && departures == self.shared.departures() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(TargetError::InFlight { nqn: nqn.clone(), commands });
            }
            std::thread::sleep(DRAIN_INTERVAL);
        }
    }
}
