//! Asymmetric Namespace Access of a subsystem: which port leads to which group of namespaces, and how well
//! (Base 2.0, 8.1).

use std::collections::{BTreeMap, BTreeSet};

use zerocopy::IntoBytes;

use super::Controller;
use super::event::EventKind;
use super::subsystem::{Namespace, Subsystem};
use crate::nvme::ana::{AnaGroupDescriptor, AnaLogHeader, AnaState, LSP_GROUPS_ONLY};
use crate::nvme::event::CONFIG_ANA_CHANGE;
use crate::nvme::{NamespaceId, Status};

/// ANATT: the longest time in seconds for which a group stays in [`AnaState::Change`].
pub const ANA_TRANSITION_SECONDS: u8 = 10;

/// The state and the namespaces of each group.
type Groups = BTreeMap<u32, (AnaState, Vec<NamespaceId>)>;

/// Whether a controller is about to end ([`Controller::announce_departure`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Departure {
    #[default]
    None,
    /// Its host has been told, if it wants to be.
    Announced,
    /// Its host has read of it.
    Known,
}

/// The states of a subsystem's groups.
///
/// A group is there when a namespace names it ([`Namespace::ana_group`]). What is not set is optimized.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ana {
    states: BTreeMap<(u16, u32), AnaState>,
    /// The namespaces of each group, for [`Ana::set_members`].
    members: BTreeMap<u32, Vec<NamespaceId>>,
    changes: u64,
    group_changes: BTreeMap<u32, u64>,
}

impl Ana {
    /// The state of a group for hosts that came by that port.
    #[must_use]
    pub fn state(&self, port_id: u16, group: u32) -> AnaState {
        self.states.get(&(port_id, group)).copied().unwrap_or_default()
    }

    /// Sets the state of a group for hosts that came by that port.
    pub fn set(&mut self, port_id: u16, group: u32, state: AnaState) {
        if self.state(port_id, group) == state {
            return;
        }
        if state == AnaState::default() {
            self.states.remove(&(port_id, group));
        } else {
            self.states.insert((port_id, group), state);
        }
        self.changed(group);
    }

    /// Sets the state of several groups for hosts that came by that port.
    pub fn set_all(&mut self, port_id: u16, groups: &[u32], state: AnaState) {
        groups.iter().for_each(|group| self.set(port_id, *group, state));
    }

    /// Takes the namespaces that the groups have from now on.
    pub fn set_members(&mut self, namespaces: &[Namespace]) {
        let mut members: BTreeMap<u32, Vec<NamespaceId>> = BTreeMap::new();
        for namespace in namespaces {
            members.entry(namespace.ana_group).or_default().push(namespace.nsid);
        }
        let before = std::mem::take(&mut self.members);
        let groups: BTreeSet<u32> = before.keys().chain(members.keys()).copied().collect();
        for group in groups {
            if before.get(&group) != members.get(&group) {
                self.changed(group);
            }
        }
        self.members = members;
    }

    fn changed(&mut self, group: u32) {
        // 0 says that changes are not reported
        self.changes = self.changes.wrapping_add(1).max(1);
        self.group_changes.insert(group, self.changes);
    }

    /// Forgets a port that leads to the subsystem no more.
    pub fn forget_port(&mut self, port_id: u16) {
        self.states.retain(|(port, _), _| *port != port_id);
    }

    /// The groups that hosts see who came by a port and see these namespaces, which are sorted by NSID.
    fn groups(&self, port_id: u16, namespaces: &[Namespace]) -> Groups {
        let mut groups = Groups::new();
        for namespace in namespaces {
            let group = namespace.ana_group;
            let state = self.state(port_id, group);
            let (_, nsids) = groups.entry(group).or_insert_with(|| (state, Vec::new()));
            nsids.push(namespace.nsid);
        }
        groups
    }

    /// The log page, with that many more changes. Groups and NSIDs are in ascending order: Linux skips what is not.
    fn page(&self, groups: &Groups, groups_only: bool, changes: u64) -> Vec<u8> {
        let header = AnaLogHeader {
            change_count: self.changes.wrapping_add(changes).into(),
            // at most as many as namespaces
            groups: u16::try_from(groups.len()).unwrap_or(u16::MAX).into(),
            ..AnaLogHeader::default()
        };
        let count =
            |group| self.group_changes.get(group).copied().unwrap_or(0).wrapping_add(changes);
        let mut page = header.as_bytes().to_vec();
        for (group, (state, nsids)) in groups {
            let shown: &[NamespaceId] = if groups_only { &[] } else { nsids };
            let descriptor = AnaGroupDescriptor {
                group: (*group).into(),
                namespaces: u32::try_from(shown.len()).unwrap_or(u32::MAX).into(),
                change_count: count(group).into(),
                state: state.to_wire(),
                ..AnaGroupDescriptor::default()
            };
            page.extend_from_slice(descriptor.as_bytes());
            page.extend(shown.iter().flat_map(|nsid| nsid.0.to_le_bytes()));
        }
        page
    }
}

impl Subsystem {
    /// The status of commands for a namespace by that port, when they do not run.
    #[must_use]
    pub fn refusal(&self, port_id: u16, namespace: &Namespace) -> Option<Status> {
        self.ana.as_ref()?.state(port_id, namespace.ana_group).refusal()
    }
}

impl Controller {
    /// The log page. A host may read it in pieces: what begins at an offset is of the page that its last
    /// reading from the beginning has made.
    pub(super) fn ana_page(&mut self, offset: u64, lsp: u8) -> Result<&[u8], Status> {
        let visible = self.subsystem().ok_or(Status::INVALID_LOG_PAGE.dnr())?;
        let ana = visible.ana.as_ref().ok_or(Status::INVALID_LOG_PAGE.dnr())?;
        if offset == 0 || self.ana_page.is_empty() {
            let mut groups = ana.groups(self.port_id, &visible.namespaces);
            let departs = self.departure != Departure::None;
            if departs {
                groups.values_mut().for_each(|(state, _)| *state = AnaState::Change);
            }
            self.ana_page = ana.page(&groups, lsp & LSP_GROUPS_ONLY != 0, u64::from(departs));
            if departs {
                self.departure = Departure::Known;
            }
        }
        Ok(&self.ana_page)
    }

    /// The controller is about to end without a fault of the host's, which can connect anew: to a host that follows ANA, all
    /// groups are in the state [`AnaState::Change`] from now on. Commands are executed as before.
    pub fn announce_departure(&mut self) {
        if self.departure == Departure::None {
            self.departure = Departure::Announced;
            self.events.raise(EventKind::Ana, &mut self.actions);
        }
    }

    /// It stays after all.
    pub fn withdraw_departure(&mut self) {
        if std::mem::take(&mut self.departure) != Departure::None {
            self.events.raise(EventKind::Ana, &mut self.actions);
        }
    }

    /// Whether the host has read of the departure, or does not follow ANA.
    #[must_use]
    pub fn departure_is_known(&self) -> bool {
        self.departure != Departure::Announced || self.events.config() & CONFIG_ANA_CHANGE == 0
    }

    /// Tells the host when its log page differs between two snapshots of what it sees.
    pub(super) fn compare_ana(&mut self, old: &Subsystem, new: &Subsystem) {
        let groups = |subsystem: &Subsystem| {
            Some(subsystem.ana.as_ref()?.groups(self.port_id, &subsystem.namespaces))
        };
        if groups(old) != groups(new) {
            self.events.raise(EventKind::Ana, &mut self.actions);
        }
    }

    /// The status of an admin command for this namespace, when its group's state forbids it.
    pub(super) fn ana_refusal(&self, nsid: NamespaceId) -> Option<Status> {
        self.subsystem()?.refusal(self.port_id, self.namespace(nsid)?)
    }
}
