//! One session: its connection, and the tasks on it.
//!
//! A session outlives its connections. When one is lost, the operations in flight come back first (they own buffers),
//! then every task is judged. A task of which no byte was sent, or that only reads, waits for the next connection; a
//! task that may have changed the medium ends with [`TaskError::UnknownFate`].

mod judge;
mod login;
mod receive;
mod send;
mod time;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use raceline_iscsi::initiator::{DiscoveredTarget, Grant, InitiatorConnection, TmfTag};
use raceline_iscsi::names::Isid;
use raceline_proto::host::Backoff;
use raceline_reactor::io::SocketId;
use raceline_reactor::{Completion, Context, IoBuf, Outcome, SendBatch, Token};

use crate::check::CheckCondition;
use crate::config::{SessionConfig, fresh_isid};
use crate::counters::SessionCounters;
use crate::error::SessionError;
use crate::task::{Rejected, RejectedReason, Task, TaskData, TaskDone, TaskError};

/// PDUs in one send.
const BATCH_PDUS: usize = 128;
/// Header bytes of one PDU at most: header, digest, trailer of its data.
const PDU_BYTES: usize = 64;
/// Bytes received beside payloads, per call: sixteen 4 KiB reads with their headers.
const STAGING_BYTES: usize = 68 << 10;
/// Most tasks of a session.
const MAX_DEPTH: u16 = 4096;
/// How often a task is sent again that the target has not executed.
const MAX_RETRIES: u8 = 20;
/// How long a target that is busy is left alone.
const BUSY_PAUSE: Duration = Duration::from_millis(20);
/// How long a target may take to answer a request to log out, and to end a task.
const LOGOUT_TIMEOUT: Duration = Duration::from_secs(2);

/// What happened to a session as a whole.
#[derive(Clone, Debug)]
pub enum SessionEvent {
    /// The login is complete: commands are being sent.
    Ready,
    /// The session is gone, or could not be made; it is tried again.
    Lost(SessionError),
    /// The session is gone and is not tried again. [`SessionEvent::Closed`] follows.
    Failed(SessionError),
    /// The session is closed, and stays so; nothing is outstanding any more.
    Closed,
    /// The logical unit reports that something has changed. Commands that it has ended for that are sent again.
    Attention(CheckCondition),
    /// The answer to [`Session::discover`].
    Targets(Vec<DiscoveredTarget>),
}

/// How far the connection has come.
#[derive(Debug)]
enum State {
    /// There is no connection; tasks wait until the time of the next attempt.
    Lost(Instant),
    /// TCP connect is under way.
    Tcp,
    /// The login is under way.
    Login,
    /// Commands flow.
    Ready,
    /// No command is sent any more; a Logout Request follows the last answer.
    LoggingOut {
        /// The session ends for good; else it is made again.
        for_good: bool,
        /// The request was sent.
        asked: bool,
    },
    /// The connection ends: the session waits for the operations in flight.
    Draining(Ending),
    /// The session is closed, and stays so.
    Closed,
}

/// Why a connection ends, and what comes after.
#[derive(Debug)]
enum Ending {
    Lost(SessionError),
    /// Another portal has the target.
    Redirected(SocketAddr),
    Closed,
}

/// A connection: what exists while there is a socket.
#[derive(Debug)]
struct Link {
    socket: SocketId,
    proto: InitiatorConnection,
    staging: Option<IoBuf>,
    /// A receive is in flight, maybe into the buffer of a task.
    receiving: bool,
    payload_of: Option<u16>,
    /// A send is in flight.
    sending: bool,
    /// The socket is closed; what is in flight comes back.
    closed: bool,
    /// Batches started and finished.
    batches_started: u64,
    batches_done: u64,
}

/// A task in its slot.
#[derive(Debug, Default)]
struct Slot {
    live: bool,
    user: u64,
    cdb: crate::cdb::Cdb,
    data: TaskData,
    whole: bool,
    len: u32,
    since: Option<Instant>,
    /// A byte of it was sent on this connection.
    sent: bool,
    /// It was sent on an earlier connection.
    tried: bool,
    /// The last batch that had bytes of it.
    batch: u64,
    retries: u8,
    /// It has taken too long.
    timed_out: bool,
}

/// A task that the target is asked to end.
#[derive(Clone, Copy, Debug)]
struct Abort {
    tag: TmfTag,
    slot: u16,
    /// When the task was submitted: its slot may have another one by now.
    since: Option<Instant>,
    deadline: Instant,
}

/// One session with a target, driven by the completions of [`raceline_reactor::Io`].
#[derive(Debug)]
pub struct Session {
    config: Arc<SessionConfig>,
    token: Token,
    isid: Option<Isid>,
    state: State,
    link: Option<Link>,
    slots: Vec<Slot>,
    free: Vec<u16>,
    /// Accepted and not yet sent, in order.
    pending: VecDeque<u16>,
    /// Data that the target wants, in order.
    grants: VecDeque<Grant>,
    /// PDUs that are no commands, encoded: they go first.
    control: Vec<u8>,
    done: VecDeque<TaskDone>,
    /// Completed tasks whose buffers the last send still has.
    held: Vec<TaskDone>,
    events: VecDeque<SessionEvent>,
    batch: Option<Box<SendBatch>>,
    /// Outstanding reads whose payloads are large.
    large_reads: u32,
    aborts: Vec<Abort>,
    /// SendTargets: what is asked for, until it was sent.
    wanted_targets: Option<String>,
    backoff: Option<Backoff>,
    /// Where the next connection goes, and redirections that led there.
    target: (SocketAddr, u8),
    phase_deadline: Option<Instant>,
    /// Until when no command is sent, because the target is busy.
    pause_until: Option<Instant>,
    /// When the target was last heard, and whether a ping is under way.
    heard: Instant,
    pinged: Option<Instant>,
    /// The next timer that will expire.
    alarm: Option<Instant>,
    counters: Arc<SessionCounters>,
}

impl Session {
    /// Makes a session and starts connecting. Its operations are started with `token`, except that the generation is
    /// counted by the session: completions for the token's owner and index are to be given to
    /// [`Self::handle_completion`].
    ///
    /// # Panics
    /// When the depth is not 1..=4096.
    #[must_use]
    pub fn connect(cx: &mut Context<'_>, config: Arc<SessionConfig>, token: Token) -> Self {
        let depth = config.depth;
        assert!((1..=MAX_DEPTH).contains(&depth), "a depth of {depth}");
        let capacity = usize::from(depth);
        let mut slots = Vec::new();
        slots.resize_with(capacity, Slot::default);
        let mut session = Self {
            target: (config.address, 0),
            isid: fresh_isid(),
            config,
            token,
            state: State::Lost(cx.now),
            link: None,
            slots,
            free: (0..depth).rev().collect(),
            pending: VecDeque::with_capacity(capacity),
            grants: VecDeque::with_capacity(capacity),
            control: Vec::with_capacity(1024),
            done: VecDeque::with_capacity(capacity),
            held: Vec::with_capacity(capacity),
            events: VecDeque::with_capacity(4),
            batch: Some(SendBatch::new(BATCH_PDUS * PDU_BYTES, BATCH_PDUS * 4)),
            large_reads: 0,
            aborts: Vec::new(),
            wanted_targets: None,
            backoff: None,
            phase_deadline: None,
            pause_until: None,
            heard: cx.now,
            pinged: None,
            alarm: None,
            counters: Arc::default(),
        };
        session.start(cx);
        session
    }

    /// Counts what this session does together with others of its core.
    pub fn share_counters(&mut self, counters: Arc<SessionCounters>) {
        self.counters = counters;
    }

    /// What this session has done over all its connections.
    #[must_use]
    pub fn counters(&self) -> &Arc<SessionCounters> {
        &self.counters
    }

    /// What it was made with.
    #[must_use]
    pub fn config(&self) -> &SessionConfig {
        &self.config
    }

    /// Accepts a task; it leaves with the next [`Self::flush`]. While there is no session, it waits for one.
    ///
    /// # Errors
    /// Gives the task back when the session is full or closed, or its data cannot be moved.
    #[inline]
    pub fn submit(&mut self, cx: &mut Context<'_>, task: Task, user: u64) -> Result<(), Rejected> {
        let len = task.data.len();
        let is_empty = len == 0 && !matches!(task.data, TaskData::None);
        let reason = match u32::try_from(len) {
            _ if self.is_ending() => RejectedReason::Closed,
            Ok(len) if !is_empty => match self.free.pop() {
                Some(slot) => {
                    self.insert(cx.now, slot, task, (user, len));
                    return Ok(());
                }
                None => RejectedReason::Full,
            },
            _ => RejectedReason::BadData,
        };
        Err(Rejected { reason, task })
    }

    #[inline]
    fn insert(&mut self, now: Instant, slot: u16, task: Task, (user, len): (u64, u32)) {
        if is_large_read(&task.data) {
            self.large_reads += 1;
        }
        self.slots[usize::from(slot)] = Slot {
            live: true,
            user,
            cdb: task.cdb,
            data: task.data,
            whole: task.whole,
            len,
            since: Some(now),
            ..Slot::default()
        };
        self.pending.push_back(slot);
    }

    /// Asks for targets: `All` in a discovery session, nothing for the target of the session. The answer is
    /// [`SessionEvent::Targets`].
    pub fn discover(&mut self, what: &str) {
        self.wanted_targets = Some(what.to_owned());
    }

    /// How many more tasks [`Self::submit`] takes.
    #[must_use]
    pub fn room(&self) -> usize {
        if self.is_ending() { 0 } else { self.free.len() }
    }

    /// Tasks accepted whose end has not been given by [`Self::poll_done`].
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.slots.len() - self.free.len() + self.held.len() + self.done.len()
    }

    /// Whether commands flow.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready)
    }

    /// Whether it is closed and nothing is in flight.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed)
    }

    /// The next finished task.
    #[inline]
    pub fn poll_done(&mut self) -> Option<TaskDone> {
        self.done.pop_front()
    }

    /// What happened to the session.
    pub fn poll_event(&mut self) -> Option<SessionEvent> {
        self.events.pop_front()
    }

    /// Takes a completion of an operation of this session.
    pub fn handle_completion(&mut self, cx: &mut Context<'_>, completion: Completion) {
        let current = completion.token.generation == self.token.generation;
        match completion.outcome {
            // A connection that is not wanted any more is closed by being dropped.
            Outcome::Connected(result) if current => self.handle_connected(cx, result),
            Outcome::Received(result, buffers) => self.handle_received(cx, result, buffers),
            Outcome::Sent(result, batch) => self.handle_sent(cx, result, batch),
            Outcome::Timer if current => self.handle_timer(cx),
            _ => {}
        }
    }

    fn is_ending(&self) -> bool {
        match self.state {
            State::Closed
            | State::Draining(Ending::Closed)
            | State::LoggingOut { for_good: true, .. } => true,
            State::Lost(_)
            | State::Tcp
            | State::Login
            | State::Ready
            | State::LoggingOut { .. }
            | State::Draining(_) => false,
        }
    }

    /// Takes a task out of its slot and reports its end.
    #[inline]
    fn finish(&mut self, slot: u16, result: Result<u32, TaskError>) {
        let Some(entry) = self.slots.get_mut(usize::from(slot)).filter(|entry| entry.live) else {
            return;
        };
        entry.live = false;
        let data = std::mem::take(&mut entry.data);
        let done = TaskDone { user: entry.user, cdb: entry.cdb, result, data };
        if is_large_read(&done.data) {
            self.large_reads -= 1;
        }
        if !self.grants.is_empty() {
            self.grants.retain(|grant| grant.slot != slot);
        }
        let batches_done = self.link.as_ref().map_or(u64::MAX, |link| link.batches_done);
        if entry.batch > batches_done && matches!(done.data, TaskData::Write(_)) {
            self.held.push(done);
        } else {
            self.done.push_back(done);
        }
        self.free.push(slot);
    }
}

/// Whether it is a read whose payload should land in its buffer.
fn is_large_read(data: &TaskData) -> bool {
    matches!(data, TaskData::Read(buf) if raceline_reactor::flow::policy::is_large(buf.len()))
}

/// A length that is a buffer's, so it fits.
fn to_usize(len: u32) -> usize {
    usize::try_from(len).expect("32 bits fit a usize")
}
