//! Connections on their way to another process, and from one.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use raceline_proto::nvme::{HostId, Sqe};
use raceline_reactor::Socket;

use crate::path::handed::{HandedConnection, HandedQueue};
use crate::path::traveller::Switch;
use crate::records::counters::QueueCounters;
use crate::records::names::{Ends, Home, Place};
use crate::records::placement::Seat;

/// What a connection knows while it does nothing.
#[derive(Default)]
pub(crate) struct Suspended {
    /// The receive that was in flight was told to come back.
    pub(crate) is_stopping: bool,
    /// Commands of a connection that has come from another process, which have yet to begin.
    pub(crate) commands: Vec<Sqe>,
}

/// A connection at rest, as another process needs it.
pub(crate) struct Packed {
    pub(crate) connection: HandedConnection,
    pub(crate) place: Place,
    pub(crate) socket: OwnedFd,
    /// Of an admin queue: where the I/O queues of its controller are.
    pub(crate) queues: Option<Vec<Place>>,
}

/// A connection that has come from another process.
pub(crate) struct Incoming {
    pub(crate) ends: Ends,
    pub(crate) seat: Seat,
    pub(crate) socket: Socket,
    /// `None`: nothing has come on it.
    pub(crate) queue: Option<Box<HandedQueue>>,
    /// Of an I/O queue: its controller, and what it learns of it.
    pub(crate) home: Option<(Home, HostId, Switch)>,
}

/// Such a connection on its core.
pub(crate) struct Settled {
    pub(crate) place: Place,
    pub(crate) counters: Arc<QueueCounters>,
    /// What I/O queues learn of a controller.
    pub(crate) hostid: HostId,
    pub(crate) copies_across: Switch,
}
