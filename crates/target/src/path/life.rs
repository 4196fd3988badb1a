//! The state of a connection's life, and its deadlines.

use std::time::{Duration, Instant};

use crate::records::early::Ticket;

/// How long a connected host may take to close after our TermReq (NVMe/TCP 1.0, 3.5).
const TERMINATE_TIMEOUT: Duration = Duration::from_secs(30);
/// The same before Connect: half-dead sockets of unknown peers must go sooner.
const EARLY_TERMINATE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a host whose authentication has failed may take to close.
const DISMISS_TIMEOUT: Duration = Duration::from_millis(500);
/// How long commands in flight may take when the target stops.
const COMMANDS_TIMEOUT: Duration = Duration::from_secs(5);

/// The state of a connection's life. Only ever moves down this list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LifeState {
    /// Waits for ICReq.
    Greeting,
    /// Takes commands.
    Open,
    /// Sent TermReq, or got one: waits for the host to close, until the deadline.
    Terminating,
    /// The socket is closed; operations in flight finish.
    Closing,
}

/// A connection's state and deadlines.
pub(crate) struct Life {
    pub(crate) state: LifeState,
    /// The target is stopping: no new commands, close when those in flight are answered.
    pub(crate) draining: bool,
    /// Counts as an early socket.
    early: Option<Ticket>,
    /// Connected, and has to authenticate.
    proving: bool,
    /// Answers that other cores still owe.
    pub(crate) awaiting: usize,
    accepted: Instant,
    deadline: Option<Instant>,
    timer_armed: Option<Instant>,
}

impl Life {
    /// A socket that was accepted now; the host has to send ICReq within this time.
    pub(crate) fn new(now: Instant, ic_req: Duration, ticket: Ticket) -> Self {
        Self {
            state: LifeState::Greeting,
            draining: false,
            early: Some(ticket),
            proving: false,
            awaiting: 0,
            accepted: now,
            deadline: Some(now + ic_req),
            timer_armed: None,
        }
    }

    /// An I/O queue in use, which has come from another core.
    pub(crate) fn of_queue(now: Instant) -> Self {
        Self {
            state: LifeState::Open,
            draining: false,
            early: None,
            proving: false,
            awaiting: 0,
            accepted: now,
            deadline: None,
            timer_armed: None,
        }
    }

    /// A handshake comes before ICReq; both have to end within this time from the accept.
    pub(crate) fn allow_handshake(&mut self, limit: Duration) {
        self.deadline = Some(self.accepted + limit);
    }

    /// ICReq has come; Connect has to complete within this time from the accept.
    pub(crate) fn open(&mut self, connect: Duration) {
        self.state = LifeState::Open;
        self.deadline = Some(self.accepted + connect);
    }

    /// Connect has completed, and the host has to prove itself before a deadline.
    pub(crate) fn prove(&mut self, deadline: Instant) {
        self.proving = true;
        self.deadline = Some(deadline);
    }

    /// Connect has completed, and the host has proved itself if it has to.
    pub(crate) fn admit(&mut self) {
        self.proving = false;
        self.deadline = None;
    }

    /// Whether the host has not shown who it is.
    pub(crate) fn is_early(&self) -> bool {
        self.early.is_some()
    }

    /// It does not count as an early socket any more. Gives its ticket if it did until now.
    pub(crate) fn leave_early(&mut self) -> Option<Ticket> {
        self.early.take()
    }

    /// The host has failed to prove itself. It gets the answer, and has to close before a deadline.
    pub(crate) fn dismiss(&mut self, now: Instant) {
        self.state = LifeState::Terminating;
        self.deadline = Some(now + DISMISS_TIMEOUT);
    }

    /// The host has to close before a deadline.
    pub(crate) fn terminate(&mut self, now: Instant) {
        self.state = LifeState::Terminating;
        let wait = if self.is_early() { EARLY_TERMINATE_TIMEOUT } else { TERMINATE_TIMEOUT };
        self.deadline = Some(now + wait);
    }

    /// Commands in flight have to end before a deadline.
    pub(crate) fn drain(&mut self, now: Instant) {
        self.draining = true;
        self.deadline = Some(now + COMMANDS_TIMEOUT);
    }

    pub(crate) fn close(&mut self) {
        self.state = LifeState::Closing;
        self.deadline = None;
    }

    /// The connection is closed, and what it has started has to end before a deadline. A deadline that is set stays.
    pub(crate) fn quiesce(&mut self, deadline: Instant) {
        self.deadline.get_or_insert(deadline);
    }

    /// Whether a closed connection has a deadline, and that has passed.
    pub(crate) fn is_overdue(&mut self, now: Instant) -> bool {
        self.state == LifeState::Closing
            && self.deadline.take_if(|deadline| *deadline <= now).is_some()
    }

    /// When to set a timer for the next deadline, `other` being a deadline outside this type; `None`: no
    /// timer is needed, or one that expires soon enough is set.
    #[inline]
    pub(crate) fn arm(&mut self, other: Option<Instant>) -> Option<Instant> {
        // A closed connection waits for nothing but its end.
        let other = other.filter(|_| self.state != LifeState::Closing);
        let at = [self.deadline, other].into_iter().flatten().min()?;
        if self.timer_armed.is_some_and(|armed| at >= armed) {
            return None;
        }
        self.timer_armed = Some(at);
        Some(at)
    }

    /// A timer has expired, and is set again later.
    pub(crate) fn forget_timer(&mut self) {
        self.timer_armed = None;
    }

    /// A timer has expired. Gives why the connection has to end, if its deadline has passed.
    pub(crate) fn expire(&mut self, now: Instant) -> Option<&'static str> {
        self.timer_armed = None;
        if self.state == LifeState::Closing {
            return None;
        }
        self.deadline.take_if(|deadline| *deadline <= now)?;
        Some(match self.state {
            _ if self.draining => "commands in flight did not finish in time",
            LifeState::Greeting => "no ICReq in time",
            LifeState::Open if self.proving => "the host did not authenticate in time",
            LifeState::Open => "no Connect in time",
            LifeState::Terminating | LifeState::Closing => "the host did not close in time",
        })
    }
}
