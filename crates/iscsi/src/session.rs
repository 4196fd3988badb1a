//! What a login means for the sessions that there are (RFC 7143, 6.3.1, 6.3.5 and 6.3.6).
//!
//! The rules hold for the sessions of one initiator port with one target portal group: a session of another target or
//! portal group never matters.

use crate::names::Isid;
use crate::pdu::LoginStatus;

/// A session of the initiator that logs in, with the target and portal group that it logs in to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Existing<'a> {
    /// Its ISID.
    pub isid: Isid,
    /// Its TSIH.
    pub tsih: u16,
    /// CIDs of its connections.
    pub cids: &'a [u16],
    /// MaxConnections that it negotiated.
    pub max_connections: u16,
}

/// What the login asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// ISID.
    pub isid: Isid,
    /// TSIH: 0 for a new session.
    pub tsih: u16,
    /// CID.
    pub cid: u16,
    /// SessionType is Discovery.
    pub discovery: bool,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// A new session.
    New,
    /// A new session, once the session with this TSIH has ended: its connections are closed, its tasks have stopped,
    /// its nexus is lost.
    Reinstate {
        /// TSIH of the session that ends.
        tsih: u16,
    },
    /// A further connection of the session with this TSIH.
    Join {
        /// TSIH of the session.
        tsih: u16,
    },
    /// The session with this TSIH goes on with this connection in place of the one with the same CID, which is closed
    /// and whose tasks end first.
    Replace {
        /// TSIH of the session.
        tsih: u16,
    },
    /// The login is refused.
    Refuse(LoginStatus),
}

/// Decides what a login does, among the sessions of its initiator with its target and portal group. The initiator
/// must have authenticated itself before: otherwise anybody could end its sessions.
///
/// Discovery sessions never reinstate one another: hosts use one ISID for all of them.
#[must_use]
pub fn decide(request: &Request, sessions: &[Existing<'_>]) -> Decision {
    if request.discovery {
        return if request.tsih == 0 {
            Decision::New
        } else {
            Decision::Refuse(LoginStatus::NO_SESSION)
        };
    }
    let same_port = sessions.iter().find(|session| session.isid == request.isid);
    match same_port {
        None if request.tsih == 0 => Decision::New,
        Some(session) if request.tsih == 0 => Decision::Reinstate { tsih: session.tsih },
        Some(session) if session.tsih == request.tsih => {
            if session.cids.contains(&request.cid) {
                Decision::Replace { tsih: session.tsih }
            } else if session.cids.len() < usize::from(session.max_connections) {
                Decision::Join { tsih: session.tsih }
            } else {
                Decision::Refuse(LoginStatus::TOO_MANY_CONNECTIONS)
            }
        }
        _ => Decision::Refuse(LoginStatus::NO_SESSION),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ISID: Isid = Isid([0x80, 1, 2, 3, 4, 5]);

    fn decide_for(tsih: u16, cid: u16, isid: Isid, max_connections: u16) -> Decision {
        let sessions = [Existing { isid: ISID, tsih: 7, cids: &[1], max_connections }];
        decide(&Request { isid, tsih, cid, discovery: false }, &sessions)
    }

    #[test]
    fn every_row_of_the_table() {
        let other = Isid([0x80, 9, 9, 9, 9, 9]);
        assert_eq!(decide_for(0, 1, other, 1), Decision::New);
        assert_eq!(decide_for(0, 1, ISID, 1), Decision::Reinstate { tsih: 7 });
        assert_eq!(decide_for(0, 2, ISID, 1), Decision::Reinstate { tsih: 7 });
        assert_eq!(decide_for(7, 2, ISID, 2), Decision::Join { tsih: 7 });
        let full = Decision::Refuse(LoginStatus::TOO_MANY_CONNECTIONS);
        assert_eq!(decide_for(7, 2, ISID, 1), full);
        assert_eq!(decide_for(7, 1, ISID, 1), Decision::Replace { tsih: 7 });
        let unknown = Decision::Refuse(LoginStatus::NO_SESSION);
        assert_eq!(decide_for(8, 1, ISID, 1), unknown);
        assert_eq!(decide_for(7, 1, other, 1), unknown);
        assert_eq!(decide_for(9, 1, other, 1), unknown);
    }

    #[test]
    fn discovery_sessions_leave_each_other_alone() {
        let sessions = [Existing { isid: ISID, tsih: 7, cids: &[1], max_connections: 1 }];
        let request = |tsih| Request { isid: ISID, tsih, cid: 1, discovery: true };
        assert_eq!(decide(&request(0), &sessions), Decision::New);
        assert_eq!(decide(&request(7), &sessions), Decision::Refuse(LoginStatus::NO_SESSION));
    }
}
