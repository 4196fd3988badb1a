//! The admin queue of an association: bring-up, keep alive, events, reconnecting, shutdown.

mod ana;
mod reset;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use raceline_proto::host::{
    AdminRequest, AnaReader, Backoff, BringUp, BringUpConfig, BroughtUp, KeepAlive,
    KeepAliveAction, NamespaceInfo, NamespaceScan, command,
};
use raceline_proto::nvme::cross_reset::ControllerInstance;
use raceline_proto::nvme::event::AsyncEvent;
use raceline_proto::nvme::log::lid;
use raceline_proto::nvme::property::{
    CC, CSTS, Configuration, ControllerStatus, PropertyAccess, PropertySize,
};
use raceline_proto::nvme::{ControllerId, Cqe, NamespaceId};
use raceline_proto::tcp::ADMIN_IN_CAPSULE_BYTES;
use raceline_reactor::{Completion, Context, IoBuf, Outcome, Token};

use crate::command::{Command, CommandDone, Data, Rejected};
use crate::config::{Association, HostConfig};
use crate::error::{CommandError, HostError, RejectedReason};
use crate::path::{DEFAULT_QUIESCE, Fence, Lease, PathAna};
use crate::queue::{QueueEvent, QueuePair};
use crate::transport::Transport;
use ana::AnaFollower;
use reset::Resets;

/// `user` values from this on are the controller's own commands; programs use those below.
pub const FIRST_INTERNAL_USER: u64 = 1 << 63;
/// The running state machine: bring-up, scan or shutdown.
const USER_JOB: u64 = FIRST_INTERNAL_USER;
const USER_KEEP_ALIVE: u64 = FIRST_INTERNAL_USER + 1;
const USER_EVENT: u64 = FIRST_INTERNAL_USER + 2;
/// The log whose reading unmasks the next namespace event.
const USER_CHANGED_LIST: u64 = FIRST_INTERNAL_USER + 3;
/// A reset of another controller, or the log of resets.
const USER_RESET: u64 = FIRST_INTERNAL_USER + 4;
/// Commands kept free on the admin queue for the controller itself: one of each kind above.
const INTERNAL_COMMANDS: usize = 5;
/// An association that lives for a shorter time counts as a failed attempt to connect.
const SHORTEST_LIFE: Duration = Duration::from_secs(1);
/// An association whose I/O queues cannot be connected may live for the three phases of connecting
/// them, each of `connect_timeout`, and the time until they begin.
const LONGEST_USELESS_LIFE: u32 = 4;
/// How long an orderly shutdown may take before the connection is closed regardless.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
/// How often CSTS is read while waiting for the end of a shutdown.
const SHUTDOWN_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// SHN: normal shutdown. SHST: complete.
const SHN_NORMAL: u32 = 0b01;
const SHST_COMPLETE: u32 = 0b10;
/// Bytes of the Changed Namespace List log.
const CHANGED_LIST_LEN: u32 = 4096;

/// What happened to a controller.
#[derive(Clone, Debug)]
pub enum ControllerEvent {
    /// Brought up: I/O queues may connect. Comes again, with a new association, after a loss.
    Up(Association),
    /// Lost; I/O queues must give their connections up. It is being reconnected.
    Down(HostError),
    /// Namespaces have come, gone or changed.
    Namespaces(Arc<[NamespaceInfo]>),
    /// The ANA log was read again.
    Ana(Arc<PathAna>),
    /// The discovery log has changed.
    DiscoveryChanged,
    /// Given up: nothing happens any more.
    Failed(HostError),
    /// Disconnected as asked.
    Closed,
}

/// What the admin queue is busy with.
#[derive(Debug)]
enum Job {
    None,
    BringUp(Box<BringUp>),
    Scan(NamespaceScan),
    Ana(AnaReader),
    /// Sets CC.SHN, then reads CSTS until SHST says that it is done.
    Shutdown {
        asked: bool,
        set: bool,
        give_up: Instant,
        poll_at: Option<Instant>,
    },
}

#[derive(Debug)]
enum State {
    /// The admin queue is connecting, or bring-up is going on.
    Connecting,
    Up,
    /// Until the next attempt.
    Waiting {
        until: Instant,
    },
    Closing,
    Finished,
}

/// One association with a controller, driven like a [`QueuePair`].
#[derive(Debug)]
pub struct Controller {
    config: HostConfig,
    token: Token,
    admin: QueuePair,
    state: State,
    job: Job,
    /// The state machine's command is outstanding.
    job_busy: bool,
    cntlid: ControllerId,
    association: Option<Association>,
    keep_alive: Option<KeepAlive>,
    events_enabled: bool,
    event_outstanding: bool,
    /// A namespace event came during a scan.
    scan_again: bool,
    ana: AnaFollower,
    resets: Resets,
    /// The right to send on the association, while it is up.
    lease: Option<Lease>,
    /// It is connected again even if it was never up.
    insists: bool,
    backoff: Option<Backoff>,
    /// With which words the controller has refused this host as if for good, since the last association that was of use.
    refusal: Option<String>,
    /// When it came up last, if ever. Only a controller that was up before is connected again.
    up_at: Option<Instant>,
    /// An I/O queue of this association could not be connected.
    useless: bool,
    /// Attempts to connect that have failed since [`Self::take_failed_connects`].
    failed_connects: u64,
    alarm: Option<Instant>,
    done: VecDeque<CommandDone>,
    events: VecDeque<ControllerEvent>,
}

impl Controller {
    /// Starts connecting. Uses the token's owner with two indices: `token.index` for the admin
    /// queue and `token.index + 1` for its own timers.
    #[must_use]
    pub fn connect(cx: &mut Context<'_>, config: HostConfig, token: Token) -> Self {
        let admin = QueuePair::connect(cx, config.admin_queue(), token);
        Self {
            config,
            token: Token { index: token.index + 1, ..token },
            admin,
            state: State::Connecting,
            job: Job::None,
            job_busy: false,
            cntlid: ControllerId::DYNAMIC,
            association: None,
            keep_alive: None,
            events_enabled: false,
            event_outstanding: false,
            scan_again: false,
            ana: AnaFollower::default(),
            resets: Resets::default(),
            lease: None,
            insists: false,
            backoff: None,
            refusal: None,
            up_at: None,
            useless: false,
            failed_connects: 0,
            alarm: None,
            done: VecDeque::with_capacity(32),
            events: VecDeque::with_capacity(8),
        }
    }

    /// Has a controller that has never been up connected again like one that was: other paths lead to its subsystem.
    pub fn insist(&mut self) {
        self.insists = true;
    }

    /// Has this controller reset another one, whose association is lost. The fence opens when it has; if it cannot,
    /// [`Self::take_failed_resets`] says so.
    pub(crate) fn reset_other(
        &mut self,
        cx: &mut Context<'_>,
        instance: ControllerInstance,
        fence: Arc<Fence>,
    ) {
        self.resets.push(instance, fence);
        self.advance_resets(cx);
    }

    /// The association, while the controller is up.
    #[must_use]
    pub fn association(&self) -> Option<&Association> {
        self.association.as_ref()
    }

    /// How many attempts to connect have failed since this was asked last.
    pub(crate) fn take_failed_connects(&mut self) -> u64 {
        std::mem::take(&mut self.failed_connects)
    }

    /// How it was configured.
    #[must_use]
    pub fn config(&self) -> &HostConfig {
        &self.config
    }

    /// Whether it was closed or given up, and nothing is in flight.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        matches!(self.state, State::Finished)
    }

    /// How many more commands [`Self::submit`] takes.
    #[must_use]
    pub fn room(&self) -> usize {
        match self.state {
            State::Up => self.admin.room().saturating_sub(INTERNAL_COMMANDS),
            _ => 0,
        }
    }

    /// Accepts an admin command; `user` is below [`FIRST_INTERNAL_USER`].
    ///
    /// # Errors
    /// Gives the command back when the queue is full or closed, or its data do not suit it.
    pub fn submit(
        &mut self,
        cx: &mut Context<'_>,
        command: Command,
        user: u64,
    ) -> Result<(), Rejected> {
        debug_assert!(user < FIRST_INTERNAL_USER, "user names from 2^63 on are reserved");
        let reason = match self.state {
            State::Up if self.admin.room() > INTERNAL_COMMANDS => {
                return self.admin.submit(cx, command, user);
            }
            State::Up => RejectedReason::Full,
            _ => RejectedReason::Closed,
        };
        Err(Rejected { reason, command })
    }

    /// The next finished admin command of the program.
    pub fn poll_done(&mut self) -> Option<CommandDone> {
        self.done.pop_front()
    }

    /// What happened.
    pub fn poll_event(&mut self) -> Option<ControllerEvent> {
        self.events.pop_front()
    }

    /// An I/O queue of the association `cntlid` was lost: with it, that association is over (Fabrics 1.1,
    /// 2.3). A report about an earlier association changes nothing.
    pub fn queue_lost(&mut self, cx: &mut Context<'_>, cntlid: ControllerId, error: HostError) {
        if matches!(self.state, State::Up) && cntlid == self.cntlid {
            self.useless |= error.is_of_connecting();
            self.seal(cx.now);
            self.admin.disconnect(cx, error);
            self.run(cx);
        }
    }

    /// Shuts the controller down in order and closes the connection; the end is
    /// [`ControllerEvent::Closed`]. I/O queues are to be closed before.
    pub fn disconnect(&mut self, cx: &mut Context<'_>) {
        self.seal(cx.now);
        match self.state {
            State::Closing | State::Finished => return,
            State::Up => {
                let give_up = cx.now + SHUTDOWN_TIMEOUT;
                self.keep_alive = None;
                self.job = Job::Shutdown { asked: false, set: false, give_up, poll_at: None };
                self.arm(cx, give_up);
            }
            _ => {
                // An answer that has come already must not bring the controller up.
                self.job = Job::None;
                self.admin.close(cx);
            }
        }
        self.state = State::Closing;
        self.run(cx);
    }

    /// Takes a completion of an operation of this controller (both of its indices).
    pub fn handle_completion(&mut self, cx: &mut Context<'_>, completion: Completion) {
        if completion.token.index == self.token.index {
            if matches!(completion.outcome, Outcome::Timer) {
                self.handle_timer(cx);
            }
        } else {
            self.admin.handle_completion(cx, completion);
        }
        self.run(cx);
    }

    /// Sends what is ready; once per turn.
    pub fn flush(&mut self, cx: &mut Context<'_>) {
        self.admin.flush(cx);
    }

    /// Does everything that follows from what the admin queue has reported.
    fn run(&mut self, cx: &mut Context<'_>) {
        while let Some(event) = self.admin.poll_event() {
            match event {
                QueueEvent::Ready { cntlid } => self.handle_ready(cntlid),
                QueueEvent::Lost(error) => self.handle_lost(cx, error),
                QueueEvent::Closed => self.handle_closed(cx.now),
            }
        }
        // After the events: commands that a lost connection has ended start nothing new.
        while let Some(done) = self.admin.poll_done() {
            self.handle_done(cx, done);
        }
        self.advance_job(cx);
        self.advance_resets(cx);
    }

    /// No queue may begin to use the association any more.
    fn seal(&self, now: Instant) {
        if let Some(lease) = &self.lease {
            lease.fence().seal(now);
        }
    }

    /// The association is over, and its admin queue is gone.
    fn end_association(&mut self, now: Instant) {
        self.seal(now);
        if let Some(lease) = self.lease.take() {
            lease.release(now);
        }
        self.association = None;
        self.keep_alive = None;
    }

    fn handle_ready(&mut self, cntlid: ControllerId) {
        self.cntlid = cntlid;
        self.job_busy = false;
        self.job = Job::BringUp(Box::new(BringUp::new(BringUpConfig {
            cntlid,
            discovery: self.config.is_discovery(),
            keep_alive: self.config.kato_ms > 0,
            io_queues: self.config.queue_request().total(),
            ana: self.config.multipath.is_some(),
            rdma: self.config.transport == Transport::Rdma,
        })));
    }

    fn handle_closed(&mut self, now: Instant) {
        self.end_association(now);
        if matches!(self.state, State::Finished) {
            return;
        }
        if matches!(self.state, State::Closing) {
            self.events.push_back(ControllerEvent::Closed);
        }
        self.state = State::Finished;
    }

    /// The admin queue is lost: try again, or give up.
    fn handle_lost(&mut self, cx: &mut Context<'_>, error: HostError) {
        self.end_association(cx.now);
        self.ana.due = None;
        self.event_outstanding = false;
        self.job = Job::None;
        self.job_busy = false;
        if matches!(self.state, State::Closing) {
            self.admin.close(cx);
            return;
        }
        self.failed_connects += u64::from(matches!(self.state, State::Connecting));
        if matches!(self.state, State::Up) && self.was_of_use(cx.now) {
            (self.backoff, self.refusal) = (None, None);
        }
        match self.next_attempt(cx.now, &error) {
            Some(until) => {
                let is_news = self.note_refusal(&error, until - cx.now);
                if !matches!(self.state, State::Connecting) || (self.up_at.is_none() && is_news) {
                    self.events.push_back(ControllerEvent::Down(error));
                }
                self.state = State::Waiting { until };
                self.arm(cx, until);
            }
            None => {
                self.events.push_back(ControllerEvent::Failed(error));
                self.state = State::Finished;
                self.admin.close(cx);
            }
        }
    }

    /// When to try again after this error, if at all. A failed first attempt is reported at once: a wrong address is not
    /// worth waiting for. What was refused as if for good is tried again for a user who wants no end: the target may have
    /// begun to listen before it knew its hosts.
    fn next_attempt(&mut self, now: Instant, error: &HostError) -> Option<Instant> {
        let config = self.config.backoff;
        let backoff = self.backoff.get_or_insert_with(|| Backoff::new(config, now));
        if self.up_at.is_none() && !self.insists {
            return None;
        }
        if !error.is_permanent() {
            return backoff.next_attempt(now);
        }
        let at = backoff.next_attempt(now).filter(|_| config.give_up_after.is_none());
        at.map(|at| at.max(now + self.config.refused_delay))
    }

    /// Warns of a refusal that the controller repeats, once. False if it is the one before.
    fn note_refusal(&mut self, error: &HostError, delay: Duration) -> bool {
        if !error.is_permanent() {
            return true;
        }
        let text = Some(error.to_string());
        let is_news = self.refusal != text;
        // What was never up is not waited for yet: those who connect it tell people.
        if is_news && self.up_at.is_some() {
            let HostConfig { subnqn: nqn, address, .. } = &self.config;
            tracing::warn!(
                event = "path", %nqn, %address, %error,
                "the controller was up and does not take this host back: put that right at the target, or the secret or key here; \
                 because ctrl_loss_tmo is -1, the next try is after {delay:?}, and later ones with the same result are not logged"
            );
        }
        self.refusal = text;
        is_news
    }

    /// When it is tried again, while it waits for that.
    pub(crate) fn retry_at(&self) -> Option<Instant> {
        match self.state {
            State::Waiting { until } => Some(until),
            _ => None,
        }
    }

    /// Whether the association that is lost counts as a new start. An association whose I/O queues always
    /// fail does not, whether they fail at once or by their time limits: time to give up is then counted
    /// from the first loss.
    fn was_of_use(&self, now: Instant) -> bool {
        let least = match self.useless {
            true => LONGEST_USELESS_LIFE * self.config.connect_timeout,
            false => SHORTEST_LIFE,
        };
        self.up_at.is_some_and(|up_at| now >= up_at + least)
    }

    fn handle_done(&mut self, cx: &mut Context<'_>, done: CommandDone) {
        match done.user {
            USER_JOB => {
                self.job_busy = false;
                self.handle_job_done(cx, &done);
            }
            USER_KEEP_ALIVE => {
                if let (Some(keep_alive), Ok(_)) = (&mut self.keep_alive, &done.result) {
                    keep_alive.handle_response(cx.now);
                }
                self.arm_keep_alive(cx);
            }
            USER_EVENT => {
                self.event_outstanding = false;
                match done.result {
                    Ok(cqe) => self.handle_event(cx, AsyncEvent::from_dw0(cqe.dw0)),
                    Err(CommandError::Status(_)) => self.events_enabled = false,
                    Err(_) => {}
                }
                self.request_event(cx);
            }
            USER_CHANGED_LIST => {}
            USER_RESET => {
                let data: &[u8] = if let Data::Read(buf) = &done.data { buf } else { &[] };
                self.resets.handle_done(cx.now, done.result, data);
            }
            _ => self.done.push_back(done),
        }
    }

    fn handle_event(&mut self, cx: &mut Context<'_>, event: AsyncEvent) {
        if event == AsyncEvent::NAMESPACE_CHANGED {
            // Reading the log unmasks the event; the scan finds out what has changed.
            let nsid = NamespaceId(0);
            let sqe =
                command::get_log_page(lid::CHANGED_NAMESPACES, nsid, 0, CHANGED_LIST_LEN, false);
            self.submit_internal(
                cx,
                AdminRequest { sqe, receive_len: CHANGED_LIST_LEN },
                USER_CHANGED_LIST,
            );
            self.start_scan();
            // The namespace may be in another group.
            self.refresh_ana(cx);
        } else if event == AsyncEvent::ANA_CHANGED {
            self.read_ana_at(cx, cx.now);
        } else if event == AsyncEvent::CROSS_CONTROLLER_RESET {
            self.resets.handle_event();
        } else if event == AsyncEvent::DISCOVERY_CHANGED {
            self.events.push_back(ControllerEvent::DiscoveryChanged);
        }
    }

    fn start_scan(&mut self) {
        match (&self.job, &self.association) {
            (Job::None, Some(association)) => {
                let controller = &association.controller;
                self.job =
                    Job::Scan(NamespaceScan::new(controller.namespace_count, controller.version));
            }
            (Job::Scan(_) | Job::Ana(_), _) => self.scan_again = true,
            _ => {}
        }
    }

    /// Lets the running state machine ask for its next command.
    fn advance_job(&mut self, cx: &mut Context<'_>) {
        if self.job_busy {
            return;
        }
        if matches!(self.job, Job::None) && std::mem::take(&mut self.scan_again) {
            self.start_scan();
        }
        self.begin_due_ana(cx);
        let request = match &mut self.job {
            Job::None => None,
            Job::BringUp(bring_up) => {
                let request = bring_up.poll_request(cx.now);
                let at = bring_up.poll_timeout();
                if let (None, Some(at)) = (&request, at) {
                    self.arm(cx, at);
                }
                request
            }
            Job::Scan(scan) => scan.poll_request(),
            Job::Ana(reader) => reader.poll_request(),
            Job::Shutdown { poll_at: Some(at), .. } if cx.now < *at => {
                let at = *at;
                self.arm(cx, at);
                None
            }
            Job::Shutdown { asked, .. } => {
                let first = !std::mem::replace(asked, true);
                let cc = Configuration::ENABLED.with_shn(SHN_NORMAL);
                let sqe = if first {
                    PropertyAccess::set(CC, cc.0)
                } else {
                    PropertyAccess::get(CSTS, PropertySize::Four)
                };
                Some(AdminRequest { sqe, receive_len: 0 })
            }
        };
        if let Some(request) = request {
            self.job_busy = self.submit_internal(cx, request, USER_JOB);
        }
    }

    fn handle_job_done(&mut self, cx: &mut Context<'_>, done: &CommandDone) {
        let data: &[u8] = if let Data::Read(buf) = &done.data { buf } else { &[] };
        let cqe = match done.result {
            Ok(cqe) => cqe,
            Err(CommandError::Status(status)) => Cqe { status, ..Cqe::default() },
            // The connection is lost, which is reported by itself; or a digest was wrong: the
            // state machine takes it for a refusal.
            Err(error) => Cqe { status: error.status(), ..Cqe::default() },
        };
        match &mut self.job {
            Job::None => {}
            Job::BringUp(bring_up) => match bring_up.handle_completion(cx.now, &cqe, data) {
                Ok(()) => {
                    if let Some(up) = bring_up.poll_done() {
                        self.handle_up(cx, up);
                    }
                }
                Err(error) => {
                    self.job = Job::None;
                    self.admin.disconnect(cx, HostError::BringUp(self.config.address, error));
                }
            },
            Job::Scan(scan) => match scan.handle_completion(&cqe, data) {
                Ok(()) => {
                    if let Some(namespaces) = scan.poll_done() {
                        self.handle_scanned(namespaces);
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot read the namespaces");
                    self.job = Job::None;
                }
            },
            Job::Ana(reader) => {
                let result = reader.handle_completion(&cqe, data);
                if let Some(result) = result.map(|()| reader.poll_done()).transpose() {
                    self.handle_ana(cx, result);
                }
            }
            Job::Shutdown { set, give_up, poll_at, .. } => {
                let first = !std::mem::replace(set, true);
                let complete = !first && ControllerStatus(cqe.dw0).shst() == SHST_COMPLETE;
                if !cqe.status.is_success() || complete || cx.now >= *give_up {
                    self.job = Job::None;
                    self.admin.close(cx);
                } else if !first {
                    *poll_at = Some(cx.now + SHUTDOWN_POLL_INTERVAL);
                }
            }
        }
    }

    fn handle_up(&mut self, cx: &mut Context<'_>, up: BroughtUp) {
        self.job = Job::None;
        self.up_at = Some(cx.now);
        self.useless = false;
        self.state = State::Up;
        self.events_enabled = up.events;
        let controller = up.controller;
        let quiesce =
            self.config.multipath.as_ref().map_or(DEFAULT_QUIESCE, |it| it.default_quiesce);
        let fence = Fence::new(controller.hold_time(self.config.kato_ms, quiesce));
        self.lease = fence.lease();
        self.ana.begin(cx.now);
        let transition = controller.ana_transition_time();
        let association = Association {
            cntlid: self.cntlid,
            max_entries: up.max_entries,
            io_queues: up.io_queues,
            ana: up.ana.map(|log| Arc::new(PathAna::new(log, transition, cx.now))),
            controller: Arc::new(controller),
            namespaces: up.namespaces.into(),
            fence,
            generated: self.admin.generated(),
        };
        self.association = Some(association.clone());
        self.events.push_back(ControllerEvent::Up(association));
        self.keep_alive = KeepAlive::new(self.config.kato_ms, cx.now);
        self.arm_keep_alive(cx);
        self.request_event(cx);
    }

    fn handle_scanned(&mut self, namespaces: Vec<NamespaceInfo>) {
        self.job = Job::None;
        if let Some(association) = &mut self.association {
            let namespaces: Arc<[NamespaceInfo]> = namespaces.into();
            if association.namespaces != namespaces {
                association.namespaces = namespaces.clone();
                self.events.push_back(ControllerEvent::Namespaces(namespaces));
            }
        }
    }

    fn handle_timer(&mut self, cx: &mut Context<'_>) {
        if self.alarm.is_none_or(|alarm| cx.now < alarm) {
            return; // an earlier, longer one
        }
        self.alarm = None;
        match &self.state {
            State::Waiting { until } if *until <= cx.now => {
                self.state = State::Connecting;
                self.admin.reconnect(cx, ControllerId::DYNAMIC, ADMIN_IN_CAPSULE_BYTES);
            }
            State::Waiting { until } => {
                let until = *until;
                self.arm(cx, until);
            }
            State::Up => self.check_keep_alive(cx),
            State::Closing => {
                if let Job::Shutdown { give_up, .. } = self.job {
                    if cx.now >= give_up {
                        self.admin.close(cx);
                    } else {
                        self.arm(cx, give_up);
                    }
                }
            }
            State::Connecting | State::Finished => {}
        }
    }

    fn check_keep_alive(&mut self, cx: &mut Context<'_>) {
        let Some(keep_alive) = &mut self.keep_alive else { return };
        match keep_alive.handle_timeout(cx.now) {
            Some(KeepAliveAction::Send) => {
                let request = AdminRequest { sqe: command::keep_alive(), receive_len: 0 };
                self.submit_internal(cx, request, USER_KEEP_ALIVE);
                self.arm_keep_alive(cx);
            }
            Some(KeepAliveAction::Expired) => {
                let error = HostError::KeepAliveExpired(self.config.address);
                self.admin.disconnect(cx, error);
            }
            None => self.arm_keep_alive(cx),
        }
    }

    fn arm_keep_alive(&mut self, cx: &mut Context<'_>) {
        if let Some(keep_alive) = &self.keep_alive {
            let at = keep_alive.poll_timeout();
            self.arm(cx, at);
        }
    }

    fn request_event(&mut self, cx: &mut Context<'_>) {
        if self.events_enabled && !self.event_outstanding && matches!(self.state, State::Up) {
            let request = AdminRequest { sqe: command::async_event_request(), receive_len: 0 };
            self.event_outstanding = self.submit_internal(cx, request, USER_EVENT);
        }
    }

    /// Submits a command of the controller itself; true when it is on its way.
    fn submit_internal(&mut self, cx: &mut Context<'_>, request: AdminRequest, user: u64) -> bool {
        let data = match usize::try_from(request.receive_len) {
            Ok(0) | Err(_) => Data::None,
            Ok(len) => Data::Read(cx.pool.take(len).unwrap_or_else(|| IoBuf::heap(len))),
        };
        let command = Command::new(request.sqe, data);
        let result = self.admin.submit(cx, command, user);
        if let Err(rejected) = &result {
            tracing::debug!(reason = %rejected.reason, "the admin queue takes no command");
        }
        result.is_ok()
    }

    /// Lets the resets of other controllers go on.
    fn advance_resets(&mut self, cx: &mut Context<'_>) {
        if !matches!(self.state, State::Up) {
            return;
        }
        if let Some(request) = self.resets.poll_request(cx.now)
            && !self.submit_internal(cx, request, USER_RESET)
        {
            self.resets.handle_not_submitted(cx.now);
        }
        if let Some(at) = self.resets.poll_timeout() {
            self.arm(cx, at);
        }
    }

    /// The other controllers that this one was to reset and could not, since the last call.
    pub(crate) fn take_failed_resets(&mut self) -> Vec<ControllerInstance> {
        self.resets.take_failed()
    }

    /// Forgets what other controllers this one was to reset, because its association is lost.
    pub(crate) fn forget_resets(&mut self) {
        self.resets.clear();
    }

    fn arm(&mut self, cx: &mut Context<'_>, at: Instant) {
        if self.alarm.is_none_or(|alarm| at < alarm) {
            self.alarm = Some(at);
            cx.io.timer(at, self.token);
        }
    }
}
