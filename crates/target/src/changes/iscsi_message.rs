//! What cores say to each other about iSCSI connections.

use std::sync::Arc;

use raceline_scsi::{Nexus, Refusal};

use crate::records::names::{CommandPlace, ConnKey, DeviceId, Place, SlotKey};

/// Which commands a task management function ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// One command of a session.
    Task(Place, SlotKey),
    /// Those of a session for a logical unit.
    TaskSet(Place, DeviceId),
    /// Those of all sessions for a logical unit.
    Unit(DeviceId),
    /// Those of all sessions of a target node.
    Node(String),
    /// All of one session.
    Session(Place),
    /// Those of these I_T nexuses for a logical unit.
    Nexuses(DeviceId, Arc<[Nexus]>),
}

/// To a core.
#[derive(Debug)]
pub(crate) enum IscsiMessage {
    /// The initiator has begun this session anew (session reinstatement): it has to end, and `to` is to be told when
    /// none of its commands touches a device any more.
    GiveUp { key: ConnKey, to: Place },
    /// The session that a new one takes the place of is gone.
    PredecessorGone { to: ConnKey },
    /// Control: ask the initiators of a target node to log out.
    RequestLogout { node: String, portal_group: Option<u16> },
    /// End these commands. [`Self::Aborted`] answers when those that had reached a device have come back.
    Abort { scope: Scope, from: Place, number: u32 },
    /// The commands of a task management function have ended on a core.
    Aborted { to: ConnKey, number: u32 },
    /// Control: the result of a change of reservations that a command has asked for.
    Reserved { to: CommandPlace, result: Result<(), Refusal> },
    /// Close the sessions of a target node, after a TARGET COLD RESET.
    CloseNode { node: String },
}
