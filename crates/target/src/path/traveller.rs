//! A connection on its way from one core to another: what it is without the memory of a core.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use raceline_proto::nvme::{HostId, QueueId, Sqe};
use raceline_proto::tcp::ControllerQueue;
use raceline_reactor::Socket;

use crate::changes::snapshot::VisibleSubsystem;
use crate::path::authentication::Authentication;
use crate::records::counters::QueueCounters;
use crate::records::names::{Ends, Home, Place};
use crate::records::placement::Seat;

/// What an I/O queue knows of its controller.
pub(crate) struct IoQueue {
    pub(crate) qid: QueueId,
    pub(crate) home: Home,
    pub(crate) visible: VisibleSubsystem,
    /// The host has enabled source ranges of Copy that name their namespaces.
    pub(crate) copies_across: Switch,
}

/// What an I/O queue learns of its controller when it joins.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) hostid: HostId,
    /// [`IoQueue::copies_across`].
    pub(crate) copies_across: Switch,
}

/// What a controller tells its I/O queues on other cores, who look at it before rare commands.
#[derive(Clone, Debug, Default)]
pub(crate) struct Switch(Arc<AtomicBool>);

impl Switch {
    pub(crate) fn set(&self, on: bool) {
        self.0.store(on, Ordering::Release);
    }

    pub(crate) fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// The form of a queue's answers, as its Connect has requested.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answers {
    /// Queue entries.
    pub(crate) entries: u16,
    /// The host follows the queue's entries by SQHD.
    pub(crate) flow_control: bool,
    /// C2HData of a read may report success (NVMe/TCP 3.6.2.7). Only without flow control.
    pub(crate) says_success: bool,
}

/// An outbox on its way to another core, without the memory of its core.
pub(crate) struct PackedOutbox {
    pub(crate) queue: ControllerQueue,
    pub(crate) counters: Arc<QueueCounters>,
    pub(crate) answers: Answers,
    pub(crate) sqhd: u16,
}

/// The commands of a connection on its way to another core, without the memory of its core.
pub(crate) struct PackedCommands {
    pub(crate) peer: SocketAddr,
    /// Writes whose data the host was not asked for.
    pub(crate) waiting: Vec<Sqe>,
    pub(crate) out: PackedOutbox,
    pub(crate) io: IoQueue,
    pub(crate) auth: Option<Box<Authentication>>,
}

/// A connection on its way to another core, without the memory of its core.
pub(crate) struct PackedConnection {
    pub(crate) ends: Ends,
    /// It counts among the connections of its source that are known.
    pub(crate) admitted: bool,
    /// A provider's stream carries its bytes.
    pub(crate) is_carried: bool,
    pub(crate) commands: PackedCommands,
}

/// A connection between two cores. If it is dropped there, `lost` learns of it.
pub(crate) struct Traveller {
    /// `None` once it has arrived.
    pub(crate) load: Option<(PackedConnection, Seat)>,
    pub(crate) socket: Option<Socket>,
    pub(crate) from: Place,
    /// The snapshot that it has seen last.
    pub(crate) generation: u64,
    pub(crate) lost: Box<dyn FnMut(PackedConnection, Seat) + Send>,
}

impl Drop for Traveller {
    fn drop(&mut self) {
        if let Some((connection, seat)) = self.load.take() {
            (self.lost)(connection, seat);
        }
    }
}
