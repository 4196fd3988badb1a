//! What a controller does with commands: Connect, properties, admin commands, asynchronous
//! events, keep alive, discovery, and the parsing of I/O commands.
//!
//! A [`Controller`] is one association. It lives on the core of its admin queue and takes that
//! queue's commands; [`parse_io`] reads the commands of I/O queues on any core, against a
//! snapshot of the subsystem. Time is an argument. [`Controller::poll_action`] gives what the driver must
//! do besides the answer to a command.
//!
//! For each command of the admin queue the driver calls [`Controller::transfer`], which says how much
//! data to take or to send; with the data, [`Controller::handle_admin`], which gives the outcome; then
//! [`Controller::poll_action`] until it is empty. The actions go out before the outcome does: an
//! aborted command completes before the Abort that asked for it.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use crate::nvme::cross_reset::ControllerInstance;
use crate::nvme::feature::WriteProtection;
use crate::nvme::registration::Registration;
use crate::nvme::{CommandId, ControllerId, HostId, HostNqn, NamespaceId, QueueId, Status};
use crate::reservation::ReservationCommand;

mod admin;
mod ana;
mod changed;
mod connect;
mod copy;
mod cross_reset;
mod discovery;
mod error_log;
mod event;
mod extent;
mod feature;
mod hand_over;
mod identify;
mod io;
mod keep_alive;
mod lba_status;
mod log;
mod management;
mod protection;
mod queues;
mod registers;
mod reservation;
mod security;
mod sgl;
mod snapshot;
mod subsystem;
mod tolerance;

pub use admin::{Facts, asks_for_controllers, authentication_transfer};
pub use ana::{ANA_TRANSITION_SECONDS, Ana};
pub use connect::{
    ConnectError, ConnectRequest, Role, connect_transfer, find_subsystem, parse_connect,
};
pub use copy::{COPY_RANGES, CopyCommand, CopySource};
pub use cross_reset::MAX_CROSS_RESETS;
pub use discovery::DISCOVERY_LIMITS;
pub use error_log::{ERROR_LOG_ENTRIES, ErrorEntry};
pub use event::MAX_EVENT_REQUESTS;
pub use hand_over::{ControllerState, NotTakenOver};
pub use io::{IoCommand, parse_io, parse_ranges};
pub use keep_alive::{ASSOCIATION_TIMEOUT, DISCOVERY_IDLE_TIMEOUT, TRAFFIC_REPORT_INTERVAL};
pub use lba_status::{LbaState, LbaStatusQuery};
pub use log::IoCounters;
pub use management::ManagementCommand;
pub use reservation::{ReservedNamespaces, reservation_transfer};
pub use security::{Channel, Security};
pub use snapshot::{DiscoveryFilter, ListenerInfo, Referral, TargetSnapshot, Transport};
pub use subsystem::{
    HostAccess, Limits, MAX_IO_BYTES_RANGE, MAX_NSID, MIN_ADMIN_ENTRIES, Namespace, Pool,
    Subsystem, SubsystemError, Visibility, find_namespace,
};
pub use tolerance::Tolerance;

use ana::Departure;
use changed::ChangedNamespaces;
use cross_reset::CrossResets;
use discovery::DiscoveryLog;
use error_log::ErrorLog;
use event::{EventKind, Events};
use feature::Features;
use keep_alive::KeepAlive;
use queues::IoQueues;
use registers::{ConfigurationChange, Registers};
use reservation::Notices;
use tolerance::Tolerances;

/// Most bytes of data in a capsule of NVMe/RDMA. Hosts of some versions of Linux corrupt larger ones.
pub const MAX_RDMA_IN_CAPSULE_BYTES: u32 = 4096;

/// Bytes of data in a capsule of NVMe/RDMA, of a controller that takes so many over NVMe/TCP.
#[must_use]
pub fn rdma_in_capsule_bytes(in_capsule_bytes: u32) -> u32 {
    in_capsule_bytes.min(MAX_RDMA_IN_CAPSULE_BYTES)
}

/// Concurrent Abort commands (ACL + 1).
pub const MAX_ABORTS: u8 = 4;

/// The parts of a new controller: an admin queue that passed [`find_subsystem`].
#[derive(Clone, Debug)]
pub struct Association {
    /// The number it gets, 1..=FFEFh, unique in its subsystem until everything it started has ended; and what tells
    /// it from earlier and later controllers of that number.
    pub instance: ControllerInstance,
    /// The Connect of its admin queue.
    pub request: ConnectRequest,
    /// What [`find_subsystem`] found.
    pub role: Role,
    /// What the target offers at this moment.
    pub snapshot: Arc<TargetSnapshot>,
    /// The address that the host connected to.
    pub local_address: SocketAddr,
    /// The listener ([`ListenerInfo::port_id`]) that the host came by.
    pub port_id: u16,
    /// What its connection has, or has before the host can use anything.
    pub security: Security,
}

/// The outcome of an admin command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminOutcome {
    /// It is done; with success, the reply buffer is the data to send.
    Complete {
        /// Status of the completion.
        status: Status,
        /// DW0 of the completion.
        dw0: u32,
        /// DW1 of the completion.
        dw1: u32,
    },
    /// An Asynchronous Event Request: [`Action::CompleteAer`] completes it, if ever.
    Held,
    /// Abort of another command: the driver looks for that command. It completes the Abort with success
    /// and DW0 0 if the command was aborted, 1 if not.
    Abort {
        /// Queue of the command to abort.
        sqid: QueueId,
        /// The command to abort.
        cid: CommandId,
    },
    /// A change of the subsystem's namespaces: the driver makes it and completes the command; it also
    /// passes a failure to [`Controller::record_error`].
    Manage(Box<ManagementCommand>),
    /// Cross-Controller Reset: the driver looks for that controller among those of the same subsystem and the same
    /// host. It completes the command with success and [`IMMEDIATE`] if the controller has ended with all that it
    /// started; otherwise it ends the controller, calls [`Controller::cross_reset_begun`], completes the command with
    /// success, and calls [`Controller::cross_reset_ended`] later. If there is no such controller, it completes the
    /// command with [`Status::INVALID_CONTROLLER_ID`].
    ///
    /// [`IMMEDIATE`]: crate::nvme::cross_reset::IMMEDIATE
    CrossReset(ControllerInstance),
    /// Get LBA Status: the driver asks the device of the namespace, puts what it finds into the reply
    /// ([`LbaStatusQuery::put`]), and completes the command.
    LbaStatus(Box<LbaStatusQuery>),
    /// A host or a discovery controller registers with this centralized one; else as [`Self::Manage`].
    Register(Box<Registration>),
    /// A change of the write protection of a namespace; else as [`Self::Manage`].
    Protect {
        /// Of which namespace.
        nsid: NamespaceId,
        /// What it is to be.
        protection: WriteProtection,
    },
    /// A change of the reservations of a namespace, as its host asks for it; else as [`Self::Manage`].
    Reserve {
        /// Of which namespace.
        nsid: NamespaceId,
        /// What to do.
        command: ReservationCommand,
    },
}

impl AdminOutcome {
    /// Done, without a result.
    #[must_use]
    pub fn status(status: Status) -> Self {
        Self::Complete { status, dw0: 0, dw1: 0 }
    }

    /// Done with a result in DW0.
    #[must_use]
    pub fn success(dw0: u32) -> Self {
        Self::Complete { status: Status::SUCCESS, dw0, dw1: 0 }
    }
}

/// What the driver must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Complete an Asynchronous Event Request that was held.
    CompleteAer {
        /// The request.
        cid: CommandId,
        /// Status of the completion.
        status: Status,
        /// DW0 of the completion.
        dw0: u32,
    },
    /// Drop every I/O queue, wait until all they started has ended, call
    /// [`Controller::io_queue_closed`] for each and then [`Controller::io_queues_drained`].
    CloseIoQueues,
    /// Drop every connection of the association; no action follows.
    Abandon {
        /// Why.
        reason: AbandonReason,
    },
}

/// Why an association ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AbandonReason {
    /// No command came within the keep alive timeout.
    KeepAliveExpired,
    /// A discovery controller without keep alive was idle.
    DiscoveryIdle,
    /// The controller was not enabled in time, or stayed after its shutdown.
    NotEnabled,
    /// Its subsystem is gone.
    SubsystemRemoved,
    /// The host may not connect to the subsystem any more.
    HostRemoved,
    /// The subsystem demands more of the connections of its host than this one has: TLS, or authentication.
    TooLittleSecurity,
}

/// One association: the state behind an admin queue.
#[derive(Debug)]
pub struct Controller {
    instance: ControllerInstance,
    hostnqn: HostNqn,
    hostid: HostId,
    port_id: u16,
    transport: Transport,
    security: Security,
    kind: Kind,
    created: Instant,
    registers: Registers,
    keep_alive: KeepAlive,
    queues: IoQueues,
    features: Features,
    events: Events,
    errors: ErrorLog,
    changed: ChangedNamespaces,
    resets: CrossResets,
    notices: Notices,
    /// The ANA log page as the host began to read it.
    ana_page: Vec<u8>,
    departure: Departure,
    tolerances: Tolerances,
    abandoned: bool,
    actions: VecDeque<Action>,
}

/// What a controller gives access to.
#[derive(Debug)]
enum Kind {
    /// An NVM subsystem, as of the latest snapshot: all of it, and what the host sees of it.
    Io { whole: Arc<Subsystem>, visible: Arc<Subsystem> },
    /// The discovery service.
    Discovery(Box<DiscoveryService>),
}

/// The state of a discovery controller.
#[derive(Debug)]
struct DiscoveryService {
    log: DiscoveryLog,
    limits: Limits,
    /// It takes registrations.
    is_central: bool,
}

impl Kind {
    fn limits(&self) -> &Limits {
        match self {
            Self::Io { whole, .. } => &whole.limits,
            Self::Discovery(service) => &service.limits,
        }
    }
}

impl Controller {
    /// A controller that is not enabled yet.
    #[must_use]
    pub fn new(association: Association, now: Instant) -> Self {
        let Association { instance, request, role, snapshot, local_address, port_id, security } =
            association;
        let transport = snapshot.listener(port_id).map_or(Transport::Tcp, |l| l.transport);
        let (kind, is_discovery) = match role {
            Role::Io(whole) => {
                let visible = whole.visible_to(&request.hostnqn);
                (Kind::Io { whole, visible }, false)
            }
            Role::Discovery => {
                let limits = snapshot.discovery_limits;
                let is_central = snapshot.registered.is_some();
                let log = DiscoveryLog::new(snapshot, &request.hostnqn, local_address);
                (Kind::Discovery(Box::new(DiscoveryService { log, limits, is_central })), true)
            }
        };
        let limits = *kind.limits();
        let reports_ana = matches!(&kind, Kind::Io { whole, .. } if whole.ana.is_some());
        let events: &[EventKind] = match (is_discovery, reports_ana) {
            (true, _) => &[EventKind::Discovery],
            (false, true) => &[EventKind::Namespaces, EventKind::Ana, EventKind::CrossReset],
            (false, false) => &[EventKind::Namespaces, EventKind::CrossReset],
        };
        let mut tolerances = Tolerances::default();
        if matches!(&request.hostnqn, HostNqn::Named(name) if !name.is_qualified()) {
            tolerances.note(Tolerance::HostName);
        }
        Self {
            instance,
            hostnqn: request.hostnqn,
            hostid: request.hostid,
            port_id,
            transport,
            security,
            kind,
            created: now,
            registers: Registers::new(limits.max_queue_entries, is_discovery),
            keep_alive: KeepAlive::new(request.kato_ms, &limits, is_discovery, now),
            queues: IoQueues::new(limits.max_io_queues),
            features: Features::default(),
            events: Events::new(events),
            errors: ErrorLog::default(),
            changed: ChangedNamespaces::default(),
            resets: CrossResets::default(),
            notices: Notices::default(),
            ana_page: Vec::new(),
            departure: Departure::default(),
            tolerances,
            abandoned: false,
            actions: VecDeque::with_capacity(MAX_EVENT_REQUESTS + 2),
        }
    }

    /// Its number.
    #[must_use]
    pub fn cntlid(&self) -> ControllerId {
        self.instance.cntlid
    }

    /// Its number, and what tells it from other controllers that have or had this number.
    #[must_use]
    pub fn instance(&self) -> ControllerInstance {
        self.instance
    }

    /// The host of the association.
    #[must_use]
    pub fn hostnqn(&self) -> &HostNqn {
        &self.hostnqn
    }

    /// The host identifier of the association.
    #[must_use]
    pub fn hostid(&self) -> HostId {
        self.hostid
    }

    /// What its connection has, or has before the host can use anything.
    #[must_use]
    pub fn security(&self) -> Security {
        self.security
    }

    /// The part of its subsystem that its host sees, as of the latest snapshot; `None` for a discovery
    /// controller.
    #[must_use]
    pub fn subsystem(&self) -> Option<&Arc<Subsystem>> {
        match &self.kind {
            Kind::Io { visible, .. } => Some(visible),
            Kind::Discovery(_) => None,
        }
    }

    /// Whether it is a centralized discovery controller, which takes registrations.
    fn is_central(&self) -> bool {
        matches!(&self.kind, Kind::Discovery(service) if service.is_central)
    }

    /// Its subsystem, including the namespaces that its host does not see.
    fn whole(&self) -> Option<&Arc<Subsystem>> {
        match &self.kind {
            Kind::Io { whole, .. } => Some(whole),
            Kind::Discovery(_) => None,
        }
    }

    /// Whether it is enabled and ready (CSTS.RDY).
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.registers.status().rdy()
    }

    /// Whether the host has shut it down, and its I/O queues are gone (CSTS.SHST).
    #[must_use]
    pub fn is_shut_down(&self) -> bool {
        self.registers.is_shut_down()
    }

    /// Takes the Connect of an I/O queue that passed [`find_subsystem`].
    ///
    /// When a check fails: the error of the first that does.
    pub fn handle_io_connect(
        &mut self,
        now: Instant,
        request: &ConnectRequest,
    ) -> Result<(), ConnectError> {
        use connect::{IPO_CNTLID, IPO_QID, IPO_SUBNQN, check_entries};

        let Kind::Io { whole: subsystem, .. } = &self.kind else {
            return Err(ConnectError::in_sqe(IPO_QID));
        };
        if request.subnqn != subsystem.nqn {
            return Err(ConnectError::in_data(IPO_SUBNQN));
        }
        check_entries(request, subsystem.limits.max_queue_entries)?;
        if request.cntlid != self.instance.cntlid || request.hostnqn != self.hostnqn {
            return Err(ConnectError::in_data(IPO_CNTLID));
        }
        self.queues.check(request.qid)?;
        if self.abandoned || !self.registers.takes_io_queues() {
            return Err(ConnectError::in_sqe(IPO_QID).transient());
        }
        if !self.registers.entry_sizes_are_right() {
            return Err(ConnectError::in_sqe(IPO_QID));
        }
        self.queues.open(request.qid)?;
        if request.hostid != self.hostid {
            self.tolerances.note(Tolerance::HostIdentifier);
        }
        self.keep_alive.command_seen(now);
        Ok(())
    }

    /// An I/O queue is gone, and so is everything that it started.
    pub fn io_queue_closed(&mut self, qid: QueueId) {
        self.queues.close(qid);
    }

    /// Every I/O queue is gone, as [`Action::CloseIoQueues`] asked: reset or shutdown completes.
    pub fn io_queues_drained(&mut self, now: Instant) {
        self.queues.close_all();
        self.finish_drain(now);
    }

    /// What the target offers has changed.
    pub fn handle_snapshot(&mut self, snapshot: Arc<TargetSnapshot>) {
        if self.abandoned {
            return;
        }
        let (whole, visible) = match &mut self.kind {
            Kind::Io { whole, visible } => (whole, visible),
            Kind::Discovery(service) => {
                service.is_central = snapshot.registered.is_some();
                if service.log.update(snapshot) && self.keep_alive.has_timeout() {
                    self.events.raise(EventKind::Discovery, &mut self.actions);
                }
                return;
            }
        };
        let Some(new) = snapshot.subsystem(&whole.nqn) else {
            return self.abandon(AbandonReason::SubsystemRemoved);
        };
        if Arc::ptr_eq(new, whole) {
            return;
        }
        if !new.hosts.admits(&self.hostnqn) {
            return self.abandon(AbandonReason::HostRemoved);
        }
        if !self.security.satisfies(new.demands(&self.hostnqn)) {
            return self.abandon(AbandonReason::TooLittleSecurity);
        }
        let now_visible = new.visible_to(&self.hostnqn);
        let was_visible = Arc::clone(visible);
        if self.changed.compare(&visible.namespaces, &now_visible.namespaces) {
            self.events.raise(EventKind::Namespaces, &mut self.actions);
        }
        *whole = Arc::clone(new);
        *visible = Arc::clone(&now_visible);
        self.compare_ana(&was_visible, &now_visible);
    }

    /// Records a command that failed; failed admin commands are recorded without being told.
    pub fn record_error(&mut self, entry: ErrorEntry) {
        self.errors.record(entry);
    }

    /// An I/O queue received a command at that time, which may be in the past: keep alive is traffic
    /// based. Cores need not report more often than every [`TRAFFIC_REPORT_INTERVAL`].
    pub fn command_seen(&mut self, at: Instant) {
        self.keep_alive.command_seen(at);
    }

    /// When to call [`Controller::handle_timeout`].
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.abandoned || self.registers.is_draining() {
            return None;
        }
        self.keep_alive.deadline().map(|(at, _)| at)
    }

    /// The deadline may have passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.abandoned || self.registers.is_draining() {
            return;
        }
        if let Some((at, reason)) = self.keep_alive.deadline()
            && at <= now
        {
            self.registers.fail();
            self.abandon(reason);
        }
    }

    /// The next action for the driver.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The next deviation from the specification that the controller tolerates in its host: each once.
    pub fn poll_tolerance(&mut self) -> Option<Tolerance> {
        self.tolerances.poll()
    }

    /// The namespace, when the controller has it.
    fn namespace(&self, nsid: NamespaceId) -> Option<&Namespace> {
        self.subsystem().and_then(|subsystem| subsystem.namespace(nsid))
    }

    /// Ends the association: nothing is answered or held any more, and the connections close.
    fn abandon(&mut self, reason: AbandonReason) {
        self.abandoned = true;
        self.events.forget_requests();
        self.actions.clear();
        self.actions.push_back(Action::Abandon { reason });
    }

    /// CC was written.
    fn configuration_changed(&mut self, now: Instant, change: ConfigurationChange) {
        match change {
            ConfigurationChange::Nothing => {}
            ConfigurationChange::Enabled => {
                if self.registers.selects_untold_command_sets() {
                    self.tolerances.note(Tolerance::CommandSets);
                }
                self.keep_alive.enabled();
            }
            ConfigurationChange::Drain => {
                if self.queues.is_empty() {
                    self.finish_drain(now);
                } else {
                    self.actions.push_back(Action::CloseIoQueues);
                }
            }
        }
    }

    /// A reset resets everything but the properties and the association itself: keep alive
    /// stays as the host asked.
    fn finish_drain(&mut self, now: Instant) {
        let Some(finished) = self.registers.finish_drain() else {
            return;
        };
        self.keep_alive.disabled(now, finished.shutdown);
        if finished.reset {
            self.features = Features::default();
            self.events.reset(&mut self.actions);
            self.queues.reset();
            self.changed = ChangedNamespaces::default();
            self.resets = CrossResets::default();
            self.notices = Notices::default();
        }
        if self.registers.status().rdy() && finished.reset {
            self.keep_alive.enabled();
        }
    }
}
