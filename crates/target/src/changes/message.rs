//! What cores and the control thread say to each other.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc;

use raceline_auth::{Finished, Verdict};
use raceline_bdev::{BdevError, SharedBdev};
use raceline_proto::controller::{ConnectError, ConnectRequest, ErrorEntry};
use raceline_proto::nvme::cross_reset::{ControllerInstance, ResetStatus};
use raceline_proto::nvme::{CommandId, NamespaceId, Nqn, QueueId, Status};
use raceline_proto::reservation::{Notice, Registrant};
use raceline_reactor::StreamProvider;
use raceline_reactor::socket::Socket;

use crate::changes::config::TargetError;
use crate::changes::iscsi_message::IscsiMessage;
use crate::changes::snapshot::{DeviceId, Snapshot};
use crate::path::range_lock::LockId;
use crate::path::suspension::{Incoming, Packed, Settled};
use crate::path::traveller::{Joined, Traveller};
use crate::records::counters::QueueCounters;
use crate::records::early::Ticket;
use crate::records::names::{CommandPlace, ConnKey, Ends, Place, Protocol};
use crate::records::placement::Seat;

/// A controller's wish that another one of its host ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CrossReset {
    /// The controller that is to end.
    pub(crate) instance: ControllerInstance,
    /// The admin queue that is told when it has.
    pub(crate) from: Place,
}

/// An answer to the control thread.
pub(crate) type Reply<T> = mpsc::Sender<(usize, T)>;

/// Whose connections end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leavers {
    /// Those that cannot be handed over to another process.
    NotHandedOver,
    /// All: the target stops.
    All,
}

/// To a core.
pub(crate) enum Message {
    /// Control: start listening; connections of the protocol know the listener by the number.
    Listen {
        address: SocketAddr,
        port: (Protocol, u16),
        streams: Option<Arc<dyn StreamProvider>>,
        reply: Reply<Result<SocketAddr, TargetError>>,
    },
    /// Control: wait for the news of connections that come by a listener of another core.
    Attend {
        address: SocketAddr,
        port: (Protocol, u16),
        streams: Arc<dyn StreamProvider>,
        reply: Reply<Result<(), TargetError>>,
    },
    /// Control: turn once.
    Nudge,
    /// Control: stop listening.
    CloseListener { port: (Protocol, u16), reply: Reply<()> },
    /// Control: open a device's channel, before any snapshot shows it.
    OpenDevice { id: DeviceId, bdev: SharedBdev, reply: Reply<Result<(), TargetError>> },
    /// Control: no snapshot shows the device any more; close it once it is quiet.
    CloseDevice { id: DeviceId, reply: Reply<()> },
    /// Control: zero the first `bytes` of a device that no snapshot shows.
    Wipe { id: DeviceId, bytes: u64, reply: Reply<Result<(), BdevError>> },
    /// Control: the result of a command about namespaces; with success, DW0.
    Managed { to: CommandPlace, result: Result<u32, Status> },
    /// The result of a computation for an Authentication Send.
    Authenticated { to: CommandPlace, finished: Box<Finished> },
    /// What an authentication on a queue in use means for it.
    Judged { key: ConnKey, verdict: Verdict },
    /// Control: what exists has changed.
    Snapshot { snapshot: Arc<Snapshot>, reply: Reply<()> },
    /// Control: count the commands in flight that came by this port for these devices.
    CountInFlight { port_id: u16, devices: Arc<[DeviceId]>, reply: Reply<usize> },
    /// Control: abort the commands of these hosts and I_T nexuses for a device, as far as they have not reached it; count
    /// those that have. `again`: the I_T nexuses' were aborted before, and are only counted.
    AbortPreempted {
        device: DeviceId,
        preempted: Arc<[Registrant]>,
        again: bool,
        reply: Reply<usize>,
    },
    /// Control: count the commands at a device that change data there.
    CountWrites { device: DeviceId, reply: Reply<usize> },
    /// Control: what has happened to the reservations of a namespace, for the controllers of its hosts.
    ReservationNotices { nqn: Nqn, nsid: NamespaceId, notices: Arc<[Notice]> },
    /// Control: close this host's controllers of a subsystem.
    DisconnectHost { nqn: Nqn, host: Nqn, reply: Reply<()> },
    /// Control: close everything, then end.
    Shutdown,

    /// The accepting core: a connection that now belongs to this core.
    Adopt { seat: Seat, socket: Socket, ends: Ends, ticket: Ticket },
    /// An early socket has to go, so that a new one can come.
    GiveWay { key: ConnKey },

    /// An I/O queue wants to join the controller whose admin queue is at `home`.
    IoConnect {
        home: ConnKey,
        from: Place,
        request: Box<ConnectRequest>,
        counters: Arc<QueueCounters>,
    },
    /// The answer to [`Self::IoConnect`].
    IoConnected { to: ConnKey, result: Result<Joined, ConnectError> },
    /// An I/O queue that had joined is gone, all its commands with it.
    IoClosed { home: ConnKey, qid: QueueId, from: Place },
    /// Control: the connection is to move to another core as soon as it may.
    Move { key: ConnKey, to: usize },
    /// To the core itself, behind all that it has told itself about the connection: it moves now.
    Depart { key: ConnKey },
    /// A connection of another core, which now belongs to this one.
    Arrive(Box<Traveller>),
    /// An I/O queue that had joined has moved.
    IoMoved { home: ConnKey, qid: QueueId, from: Place, to: Place },
    /// Close this connection: its controller is reset, shut down or lost.
    Close { key: ConnKey },
    /// A controller wants another one of its host to end (Cross-Controller Reset), and to be told.
    CrossReset { home: ConnKey, reset: CrossReset },
    /// The answer to [`Self::CrossReset`], once it is known.
    CrossResetEnded { to: ConnKey, instance: ControllerInstance, status: ResetStatus },
    /// A command of an I/O queue failed: add it to the controller's error log.
    CommandFailed { home: ConnKey, entry: ErrorEntry },

    /// Abort a command of an I/O queue, as far as it has not reached its device. [`Self::Managed`] answers: DW0 is 0 if
    /// the command is completed, 1 if not.
    Abort { key: ConnKey, cid: CommandId, from: CommandPlace },

    /// To a device's warden: a fused operation wants a range.
    LockRange { device: DeviceId, bytes: Range<u64>, who: CommandPlace },
    /// To a device's warden: writes to a range have to come after those that are under way there. The lock that is
    /// granted is to be given back at once.
    FenceRange { device: DeviceId, bytes: Range<u64>, who: CommandPlace },
    /// From a device's warden: hold back writes to this range.
    Fence { device: DeviceId, lock: LockId, bytes: Range<u64> },
    /// To the warden: this core has no write to the range in flight.
    Fenced { device: DeviceId, lock: LockId },
    /// From the warden: the range is locked for the command, or (`None`) the device is gone.
    LockGranted { to: CommandPlace, device: DeviceId, lock: Option<LockId> },
    /// To the warden: the lock is no longer needed.
    UnlockRange { device: DeviceId, lock: LockId },
    /// From the warden: let writes to this range go.
    Unfence { device: DeviceId, lock: LockId },

    /// Control: accept nothing, and tell hosts whose connections end; answer with how many when all have heard of it.
    GiveNotice { to: Leavers, reply: mpsc::Sender<usize> },
    /// Control: accept nothing, and have all connections rest; then answer.
    Suspend { reply: mpsc::Sender<()> },
    /// Control: give the connections that rest.
    Pack { reply: Reply<Vec<Packed>> },
    /// Control: go on.
    Resume,
    /// Control: end all connections but these; then answer.
    Leave { keep: Arc<HashSet<Place>>, reply: Reply<()> },
    /// Control: make a connection of another process, which waits for [`Self::Resume`].
    Install { incoming: Box<Incoming>, reply: Reply<Result<Settled, String>> },
    /// Control: an I/O queue of the controller at `home` has come as well.
    IoRestored { home: ConnKey, qid: QueueId, from: Place, counters: Arc<QueueCounters> },

    /// About iSCSI connections only.
    Iscsi(IscsiMessage),
}
