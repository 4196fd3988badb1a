//! The sessions of iSCSI: which initiator port has one with which target port, and where it lives.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;

use crate::records::names::Place;

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
        waiting
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
        SessionRecord { place, tsih: 0, cid: 0, peer: address, local: address }
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
    fn sessions_have_a_limit() {
        let mut sessions = Sessions::default();
        assert_eq!(sessions.claim(&nexus(1), record(1), 1), Claim::Session(1));
        assert_eq!(sessions.claim(&nexus(2), record(2), 1), Claim::Full);
        assert_eq!(sessions.list().count(), 1);
    }
}
