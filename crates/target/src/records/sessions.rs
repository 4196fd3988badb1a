//! The sessions of iSCSI: which initiator port has one with which target port, and where it lives.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;

use crate::records::counters::{IscsiTotals, SessionCounters};
use crate::records::names::Place;

/// Target nodes whose counts are kept. Beyond that, a new one displaces one without a session.
const MAX_REMEMBERED_NODES: usize = 4096;

/// An I_T nexus: initiator port and target port (RFC 7143, 4.4.1.2).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Nexus {
    /// InitiatorName in lower case, and ISID.
    pub(crate) initiator: String,
    pub(crate) isid: [u8; 6],
    /// TargetName in lower case, and target portal group tag.
    pub(crate) target: String,
    pub(crate) portal_group: u16,
}

/// A session, for those who list them.
#[derive(Clone, Debug)]
pub(crate) struct SessionRecord {
    pub(crate) place: Place,
    /// The session's handle (TSIH).
    pub(crate) tsih: u16,
    pub(crate) cid: u16,
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
    pub(crate) counters: Arc<SessionCounters>,
}

/// All sessions of a target node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeSessions {
    /// Those that there are.
    pub(crate) sessions: usize,
    /// Those that ever were.
    pub(crate) sessions_ever: u64,
    /// What they have done.
    pub(crate) totals: IscsiTotals,
}

/// What a login comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// It has a new session with this handle.
    Session(u16),
    /// The session at this place has to end before.
    After(Place),
    /// There are as many sessions as there may be.
    Full,
}

/// The sessions of a target.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    sessions: HashMap<Nexus, (SessionRecord, Vec<Place>)>,
    /// By the names of target nodes. The totals are those of sessions that are gone.
    nodes: HashMap<String, NodeSessions>,
    handles: HashSet<u16>,
    last_handle: u16,
}

impl Sessions {
    /// A session for a nexus, unless there is one; then `place` is told when that is gone.
    pub(crate) fn claim(&mut self, nexus: &Nexus, record: SessionRecord, max: usize) -> Claim {
        if let Some((old, waiting)) = self.sessions.get_mut(nexus) {
            waiting.push(record.place);
            return Claim::After(old.place);
        }
        if self.sessions.len() >= max.min(usize::from(u16::MAX) - 1) {
            return Claim::Full;
        }
        self.note_begun(&nexus.target);
        let tsih = self.next_handle();
        self.sessions.insert(nexus.clone(), (SessionRecord { tsih, ..record }, Vec::new()));
        Claim::Session(tsih)
    }

    /// A session is gone. Gives who waits for that.
    pub(crate) fn release(&mut self, nexus: &Nexus, place: Place) -> Vec<Place> {
        match self.sessions.get(nexus) {
            Some((record, _)) if record.place == place => {}
            _ => return Vec::new(),
        }
        let Some((record, waiting)) = self.sessions.remove(nexus) else { return Vec::new() };
        self.handles.remove(&record.tsih);
        if let Some(node) = self.nodes.get_mut(&nexus.target) {
            node.sessions -= 1;
            node.totals.add(&record.counters.totals());
        }
        waiting
    }

    /// A session with this target node begins.
    fn note_begun(&mut self, target: &str) {
        if !self.nodes.contains_key(target) && self.nodes.len() >= MAX_REMEMBERED_NODES {
            let gone = self.nodes.iter().find(|(_, node)| node.sessions == 0);
            if let Some(name) = gone.map(|(name, _)| name.clone()) {
                self.nodes.remove(&name);
            }
        }
        let node = self.nodes.entry(target.to_owned()).or_default();
        node.sessions += 1;
        node.sessions_ever += 1;
    }

    /// The target nodes that have or had sessions, and what all these have done.
    pub(crate) fn by_node(&self) -> BTreeMap<String, NodeSessions> {
        let mut all: BTreeMap<_, _> =
            self.nodes.iter().map(|(name, node)| (name.clone(), *node)).collect();
        for (nexus, record) in self.list() {
            if let Some(node) = all.get_mut(&nexus.target) {
                node.totals.add(&record.counters.totals());
            }
        }
        all
    }

    /// Whether a session has this handle.
    pub(crate) fn knows(&self, tsih: u16) -> bool {
        self.handles.contains(&tsih)
    }

    /// All sessions.
    pub(crate) fn list(&self) -> impl Iterator<Item = (&Nexus, &SessionRecord)> {
        self.sessions.iter().map(|(nexus, (record, _))| (nexus, record))
    }

    /// A handle that no session has; 0 is none (RFC 7143, 11.12.6).
    pub(crate) fn next_handle(&mut self) -> u16 {
        loop {
            self.last_handle = self.last_handle.wrapping_add(1).max(1);
            if self.handles.insert(self.last_handle) {
                return self.last_handle;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::names::ConnKey;

    fn nexus(isid: u8) -> Nexus {
        Nexus {
            initiator: "iqn.i".into(),
            isid: [isid; 6],
            target: "iqn.t".into(),
            portal_group: 1,
        }
    }

    fn record(index: u32) -> SessionRecord {
        let address = "127.0.0.1:3260".parse().unwrap();
        let place = Place { core: 0, key: ConnKey { index, generation: 0 } };
        let counters = Arc::default();
        SessionRecord { place, tsih: 0, cid: 0, peer: address, local: address, counters }
    }

    #[test]
    fn a_login_of_the_same_nexus_waits_for_the_session_to_end() {
        let mut sessions = Sessions::default();
        assert_eq!(sessions.claim(&nexus(1), record(1), 9), Claim::Session(1));
        assert_eq!(sessions.claim(&nexus(2), record(2), 9), Claim::Session(2));
        assert_eq!(sessions.claim(&nexus(1), record(3), 9), Claim::After(record(1).place));
        assert_eq!(sessions.release(&nexus(1), record(3).place), [], "it has no session yet");
        assert_eq!(sessions.release(&nexus(1), record(1).place), [record(3).place]);
        assert!(!sessions.knows(1) && sessions.knows(2));
        assert_eq!(sessions.claim(&nexus(1), record(3), 9), Claim::Session(3));
    }

    #[test]
    fn a_node_keeps_the_counts_of_sessions_that_are_gone() {
        let mut sessions = Sessions::default();
        for isid in 1..=2 {
            let record = record(isid.into());
            record.counters.count_read(512);
            record.counters.count_write(4096 * u32::from(isid));
            assert!(matches!(sessions.claim(&nexus(isid), record, 9), Claim::Session(_)));
        }
        sessions.release(&nexus(1), record(1).place);
        let node = sessions.by_node()["iqn.t"];
        assert_eq!((node.sessions, node.sessions_ever), (1, 2));
        let IscsiTotals { reads, writes, read_bytes, written_bytes, .. } = node.totals;
        assert_eq!((reads, writes, read_bytes, written_bytes), (2, 2, 1024, 12_288));
        // The names of nodes that come and go do not fill the memory.
        sessions.release(&nexus(2), record(2).place);
        for number in 0..MAX_REMEMBERED_NODES * 2 {
            let other = Nexus { target: format!("iqn.t:{number}"), ..nexus(1) };
            sessions.claim(&other, record(1), 9);
            sessions.release(&other, record(1).place);
        }
        assert_eq!(sessions.by_node().len(), MAX_REMEMBERED_NODES);
    }

    #[test]
    fn sessions_have_a_limit() {
        let mut sessions = Sessions::default();
        assert_eq!(sessions.claim(&nexus(1), record(1), 1), Claim::Session(1));
        assert_eq!(sessions.claim(&nexus(2), record(2), 1), Claim::Full);
        assert_eq!(sessions.list().count(), 1);
    }
}
