//! What a process tells the one that takes its place about the connections of a target, in the form of [`FORM`].

use std::net::SocketAddr;

use raceline_proto::controller::{ConnectRequest, ControllerState, Security};
use raceline_proto::nvme::cross_reset::ControllerInstance;
use raceline_proto::nvme::{ControllerId, HostId, HostNqn, Nqn, QueueId};
use raceline_proto::tcp::ControllerQueueState;
use serde::{Deserialize, Serialize};

use crate::path::traveller::Answers;

/// The form of [`HandedTarget`] and of all that it holds. Every change of these types is a new form; a test holds the
/// present one.
pub const FORM: u32 = 1;

/// The connections of a target, in the order of their sockets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandedTarget {
    /// The generation that hosts were shown last.
    pub(crate) generation: u64,
    pub(crate) connections: Vec<HandedConnection>,
}

impl HandedTarget {
    /// How many connections there are.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.len()
    }
}

/// One connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HandedConnection {
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
    /// The address of its listener.
    pub(crate) listener: SocketAddr,
    /// The core that had it.
    pub(crate) core: usize,
    /// `None`: nothing has come on it.
    pub(crate) queue: Option<HandedQueue>,
}

/// A queue that its host has connected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HandedQueue {
    pub(crate) qid: u16,
    pub(crate) entries: u16,
    pub(crate) cntlid: u16,
    pub(crate) subsystem: String,
    /// `None`: the host has no name.
    pub(crate) host: Option<String>,
    pub(crate) hostid: [u8; 16],
    pub(crate) flow_control: bool,
    pub(crate) says_success: bool,
    pub(crate) sqhd: u16,
    pub(crate) queue: ControllerQueueState,
    /// Commands that have come and have had no effect. Of an admin queue: requests for events.
    pub(crate) commands: Vec<Vec<u8>>,
    /// The host has proved who it is, and may do so again.
    pub(crate) is_proven: bool,
    /// Of an admin queue.
    pub(crate) controller: Option<HandedController>,
}

/// A controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HandedController {
    pub(crate) ciu: u8,
    pub(crate) cirn: u64,
    pub(crate) authentication: bool,
    pub(crate) tls: bool,
    pub(crate) state: ControllerState,
}

impl HandedQueue {
    pub(crate) fn answers(&self) -> Answers {
        let (entries, flow_control) = (self.entries, self.flow_control);
        Answers { entries, flow_control, says_success: self.says_success }
    }

    /// The Connect that has made it. `None`: a name is wrong.
    pub(crate) fn request(&self) -> Option<ConnectRequest> {
        let hostnqn = match &self.host {
            Some(name) => HostNqn::Named(Nqn::new(name).ok()?),
            None => HostNqn::Unnamed,
        };
        Some(ConnectRequest {
            qid: QueueId(self.qid),
            queue_entries: self.entries.into(),
            disable_sq_flow: !self.flow_control,
            kato_ms: 0,
            hostid: HostId(self.hostid),
            cntlid: ControllerId(self.cntlid),
            subnqn: Nqn::new(&self.subsystem).ok()?,
            hostnqn,
        })
    }
}

impl HandedController {
    pub(crate) fn instance(&self, cntlid: u16) -> ControllerInstance {
        ControllerInstance { cntlid: ControllerId(cntlid), ciu: self.ciu, cirn: self.cirn }
    }

    pub(crate) fn security(&self) -> Security {
        Security { authentication: self.authentication, tls: self.tls }
    }
}
