//! One queue: its connection, and the commands on it.
//!
//! A queue outlives its connections. When one is lost, the operations in flight come back first (they own
//! buffers), then every command is judged. A command of which no byte was sent, or that only reads, waits
//! for the next connection; a command that may have changed the media ends with
//! [`CommandError::UnknownFate`]. The owner of the queue says when the next connection is made.

mod bell;
mod connect;
mod digest;
mod entry;
mod hub;
mod memory;
mod plan;
mod prove;
mod rdma;
mod receive;
mod returned;
mod send;
mod teardown;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use raceline_auth::Concatenation;
use raceline_proto::host::{CommandTable, command};
use raceline_proto::nvme::command::Fuse;
use raceline_proto::nvme::opcode::admin;
use raceline_proto::nvme::{CommandId, ControllerId, Cqe, Direction, QueueId, Sqe};
use raceline_proto::tcp::HostQueue;
use raceline_reactor::flow::Load;
use raceline_reactor::io::SocketId;
use raceline_reactor::{
    Arrival, Completion, Context, IoBuf, Outcome, SendBatch, StreamProvider, Token,
};

use crate::command::{Command, CommandDone, CommandSummary, Rejected};
use crate::config::{MAX_ENTRIES, MAX_SEND_PDUS, MIN_ENTRIES, QueuePairConfig};
use crate::counters::QueueCounters;
use crate::error::{CommandError, HostError, Phase, RejectedReason};
use crate::gather::{Gathering, I10Config};
use crate::generated::GeneratedStreams;
use crate::placement::{NapiGroup, Search};
use entry::Entry;
use plan::{Plan, UnderWay};
use prove::{Proving, Renewal};
use rdma::RdmaLink;
use returned::ReturnedList;
pub(crate) use returned::{Fate, Returned};
use send::Grant;

/// PDUs in one send.
const BATCH_PDUS: usize = MAX_SEND_PDUS as usize;
/// Header bytes of one PDU at most: header, digests, 128-byte alignment, rounded up.
const BATCH_PDU_BYTES: usize = 256;
/// How often deadlines are looked at within a command timeout.
const TIMEOUT_CHECKS: u32 = 4;
/// How long a TermReq may take to leave before the connection is reset.
const TERM_REQ_TIMEOUT: Duration = Duration::from_secs(1);

/// What happened to a queue as a whole.
#[derive(Clone, Debug)]
pub enum QueueEvent {
    /// Connect succeeded: commands are being sent.
    Ready {
        /// CNTLID: for an admin queue, the new association.
        cntlid: ControllerId,
    },
    /// The connection is gone, or could not be made.
    Lost(HostError),
    /// The queue is closed, and stays so; nothing is outstanding any more.
    Closed,
}

/// How far the connection has come.
#[derive(Debug)]
enum State {
    /// There is no connection; commands wait for [`QueuePair::reconnect`].
    Lost,
    /// TCP connect is under way, or the RDMA connection.
    Tcp,
    /// ICReq is sent.
    IcResp,
    /// Connect is sent.
    Connect(CommandId),
    /// The host proves who it is, by [`QueuePair::proving`].
    Proving,
    /// Commands flow.
    Ready,
    /// The connection ends: the queue waits for the operations in flight.
    Draining(Ending),
    /// The queue is closed, and stays so.
    Closed,
}

/// Why a connection ends, and what comes after.
#[derive(Debug)]
enum Ending {
    Lost(HostError),
    /// The controller wants SQ flow control: connect again with it.
    RetryWithFlow,
    /// There is a key now: connect again over TLS.
    RetryOverTls,
    Closed,
}

/// A connection: what exists while there is a socket.
#[derive(Debug)]
struct Link {
    socket: SocketId,
    queue: HostQueue,
    staging: Option<IoBuf>,
    /// Receives have ended in the core's staging memory, which not every back end has.
    core_staging: bool,
    /// A receive is in flight, maybe into the buffer of a command.
    receiving: bool,
    payload_of: Option<CommandId>,
    /// A send is in flight.
    sending: bool,
    /// The socket is closed; what is in flight comes back.
    closed: bool,
    /// Batches started and finished.
    batches_started: u64,
    batches_done: u64,
    flow: SqFlow,
}

/// Submission queue flow control (Fabrics 1.1, 2.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SqFlow {
    /// Only the commands outstanding are counted.
    Off,
    /// Entries put in and taken out, modulo the queue's size.
    On { tail: u16, head: u16 },
}

/// One queue of a controller, driven by the completions of [`raceline_reactor::Io`].
#[derive(Debug)]
pub struct QueuePair {
    config: QueuePairConfig,
    token: Token,
    state: State,
    link: Option<Link>,
    /// The connection in place of `link` when the transport is RDMA.
    rdma: Option<Box<RdmaLink>>,
    /// Why there could not even be such a connection; the next timer takes it.
    refused: Option<Box<HostError>>,
    commands: CommandTable<Entry>,
    /// Accepted and not yet sent, in order.
    pending: VecDeque<CommandId>,
    /// R2Ts to be answered, in order.
    grants: VecDeque<Grant>,
    done: VecDeque<CommandDone>,
    /// Completed commands whose buffers the last send still has.
    held: Vec<CommandDone>,
    /// Commands that did not run here and may run on another path.
    returned: ReturnedList,
    events: VecDeque<QueueEvent>,
    batch: Option<Box<SendBatch>>,
    /// Commands whose data an engine has.
    with_engines: u32,
    /// What is outstanding, and what the core was last told of it.
    under_way: UnderWay,
    told: Load,
    plan: Plan,
    /// Asks for queues without SQ flow control; turned off when a controller refuses.
    disable_sq_flow: bool,
    phase_deadline: Option<Instant>,
    /// The next timer that will expire, for deadlines.
    alarm: Option<Instant>,
    gathering: Gathering,
    /// An authentication that is under way: before the queue is ready, or while it is in use.
    proving: Option<Box<Proving>>,
    renewal: Renewal,
    /// Where the packets of this connection come in.
    arrival: Arrival,
    search: Search,
    counters: Arc<QueueCounters>,
}

impl QueuePair {
    /// Makes a queue and starts connecting. Its operations are started with `token`, except that
    /// the generation is counted by the queue: completions for the token's owner and index are
    /// to be given to [`Self::handle_completion`].
    #[must_use]
    pub fn connect(cx: &mut Context<'_>, config: QueuePairConfig, token: Token) -> Self {
        let mut queue = Self::new(config, token);
        queue.start(cx);
        queue
    }

    /// Makes a queue that accepts commands and waits for [`Self::reconnect`].
    ///
    /// # Panics
    /// When the number of entries is not [`MIN_ENTRIES`]..=[`MAX_ENTRIES`].
    #[must_use]
    pub fn new(config: QueuePairConfig, token: Token) -> Self {
        assert!(
            (MIN_ENTRIES..=MAX_ENTRIES).contains(&config.entries),
            "{} queue entries",
            config.entries
        );
        let commands = CommandTable::new(config.entries);
        let capacity = commands.capacity();
        let batch = SendBatch::new(BATCH_PDUS * BATCH_PDU_BYTES, BATCH_PDUS * 4);
        Self {
            disable_sq_flow: config.disable_sq_flow,
            gathering: Gathering::new(config.i10),
            arrival: Arrival::default(),
            search: Search::new(config.placement),
            config,
            token,
            state: State::Lost,
            link: None,
            rdma: None,
            refused: None,
            commands,
            pending: VecDeque::with_capacity(capacity),
            grants: VecDeque::with_capacity(capacity),
            done: VecDeque::with_capacity(capacity),
            held: Vec::with_capacity(capacity),
            returned: ReturnedList::default(),
            events: VecDeque::with_capacity(4),
            batch: Some(batch),
            with_engines: 0,
            under_way: UnderWay::default(),
            told: Load::default(),
            plan: Plan::default(),
            phase_deadline: None,
            alarm: None,
            proving: None,
            renewal: Renewal::default(),
            counters: Arc::default(),
        }
    }

    /// Shares the receive queue of its connection with others of its core.
    pub(crate) fn join(&mut self, group: &NapiGroup) {
        self.search.join(group);
    }

    /// Counts what this queue does together with others of its core.
    pub(crate) fn share_counters(&mut self, counters: Arc<QueueCounters>) {
        self.counters = counters;
    }

    /// What this queue has done over all its connections.
    #[must_use]
    pub fn counters(&self) -> &Arc<QueueCounters> {
        &self.counters
    }

    /// Connects again after [`QueueEvent::Lost`]; `cntlid` and limits are those of the new
    /// association. Does nothing unless the queue is lost.
    pub fn reconnect(&mut self, cx: &mut Context<'_>, cntlid: ControllerId, in_capsule_bytes: u32) {
        if matches!(self.state, State::Lost) {
            self.config.cntlid = cntlid;
            self.config.in_capsule_bytes = in_capsule_bytes;
            self.disable_sq_flow = self.config.disable_sq_flow;
            if self.config.concatenator.is_some() {
                // A new association has a new key.
                self.config.generated = None;
            }
            self.start(cx);
        }
    }

    /// What carries its bytes because an authentication has made a key for that.
    pub(crate) fn generated(&self) -> Option<Arc<GeneratedStreams>> {
        self.config.generated.clone()
    }

    /// Sets what carries the bytes of its next connection in the same way.
    pub(crate) fn set_generated(&mut self, generated: Option<Arc<GeneratedStreams>>) {
        self.config.generated = generated;
    }

    /// The provider that carries its bytes; `None`: the kernel's TCP.
    fn streams(&self) -> Option<&dyn StreamProvider> {
        match &self.config.generated {
            Some(generated) => Some(&**generated),
            None => self.config.streams.as_deref(),
        }
    }

    /// The key for TLS that an authentication on this queue makes.
    fn concatenation(&self) -> Concatenation {
        match (&self.config.concatenator, &self.config.generated) {
            (None, _) => Concatenation::None,
            (Some(_), None) => Concatenation::New,
            (Some(_), Some(_)) => Concatenation::Replace,
        }
    }

    /// Whether the connection is there only to make a key for TLS.
    fn only_makes_key(&self) -> bool {
        self.concatenation() == Concatenation::New
    }

    /// Accepts a command; it leaves with the next [`Self::flush`] unless it may wait for others
    /// ([`crate::gather`]). While there is no connection, it waits for one.
    ///
    /// # Errors
    /// Gives the command back when the queue is full or closed, or its data do not suit it.
    // Always inline: a command that is made where it is submitted is then built in its slot.
    #[inline(always)]
    pub fn submit(
        &mut self,
        cx: &mut Context<'_>,
        command: Command,
        user: u64,
    ) -> Result<(), Rejected> {
        let reason = match self.check(&command) {
            Ok(len) => {
                self.gathering.handle_submitted(cx.now, len, command.hints);
                let since = (!self.waits(&command.sqe)).then_some(cx.now);
                let cid = self.insert(command, user, len, since);
                self.begin_digest(cx, cid);
                return Ok(());
            }
            Err(reason) => reason,
        };
        Err(Rejected { reason, command })
    }

    /// Accepts commands that leave together, from the front of `batch`: for all but the last, it is known
    /// that more follow. Commands that are not accepted stay in `batch`.
    ///
    /// # Errors
    /// As [`Self::submit`], about the command that is at the front now.
    pub fn submit_batch(
        &mut self,
        cx: &mut Context<'_>,
        batch: &mut VecDeque<(Command, u64)>,
    ) -> Result<(), RejectedReason> {
        while let Some((mut command, user)) = batch.pop_front() {
            let hints = command.hints;
            command.hints.more |= !batch.is_empty();
            if let Err(Rejected { reason, mut command }) = self.submit(cx, command, user) {
                command.hints = hints;
                batch.push_front((command, user));
                // The commands that were accepted need not wait for it.
                self.gathering.release();
                return Err(reason);
            }
        }
        Ok(())
    }

    /// Changes how commands are gathered before they are sent, from now on; `None`: not at all.
    pub fn set_i10(&mut self, i10: Option<I10Config>) {
        self.gathering.set(i10);
    }

    /// How commands are gathered before they are sent.
    #[must_use]
    pub fn i10(&self) -> Option<I10Config> {
        self.gathering.i10()
    }

    /// Where the packets of the connection, or of the last one, come in.
    #[must_use]
    pub fn arrival(&self) -> Arrival {
        self.arrival
    }

    /// Its number.
    #[must_use]
    pub fn qid(&self) -> QueueId {
        self.config.qid
    }

    /// How many more commands [`Self::submit`] takes.
    #[must_use]
    pub fn room(&self) -> usize {
        // A Connect that is being given up counts, too.
        if self.is_ending() { 0 } else { self.limit().saturating_sub(self.outstanding()) }
    }

    /// Commands accepted whose end has not been given by [`Self::poll_done`].
    #[must_use]
    pub fn outstanding(&self) -> usize {
        let proof = self.proving.as_ref().is_some_and(|proving| proving.command.is_some());
        let own = usize::from(proof || matches!(self.state, State::Connect(_)));
        self.commands.len() - own + self.held.len()
    }

    /// Whether commands flow.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready)
    }

    /// Whether there is no connection and none is being made or ended.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        matches!(self.state, State::Lost)
    }

    /// Whether it is closed and nothing is in flight.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed)
    }

    /// Whether [`Self::poll_done`] has something to give.
    #[must_use]
    pub fn has_done(&self) -> bool {
        !self.done.is_empty()
    }

    /// How many commands [`Self::poll_done`] has to give.
    #[must_use]
    pub fn done_count(&self) -> usize {
        self.done.len()
    }

    /// The next finished command.
    #[inline]
    pub fn poll_done(&mut self) -> Option<CommandDone> {
        self.done.pop_front()
    }

    /// What happened to the queue.
    pub fn poll_event(&mut self) -> Option<QueueEvent> {
        self.events.pop_front()
    }

    /// Takes a completion of an operation of this queue.
    pub fn handle_completion(&mut self, cx: &mut Context<'_>, completion: Completion) {
        let current = completion.token.generation == self.token.generation;
        match completion.outcome {
            // A connection that is not wanted any more is closed by being dropped.
            Outcome::Connected(result) if current => self.handle_connected(cx, result),
            Outcome::Received(result, buffers) if current || self.link.is_some() => {
                self.handle_received(cx, result, buffers);
            }
            Outcome::Sent(result, batch) => self.handle_sent(cx, result, batch),
            // The generation names the command.
            Outcome::Accelerated(finished) => {
                if let Some(done) = cx.io.accelerated(finished) {
                    self.handle_accelerated(cx, CommandId(completion.token.generation), done);
                }
            }
            Outcome::Timer if current => self.handle_timer(cx),
            _ => {}
        }
    }

    fn limit(&self) -> usize {
        usize::from(self.config.entries) - 1
    }

    #[inline]
    fn is_ending(&self) -> bool {
        !self.is_ready() && matches!(self.state, State::Closed | State::Draining(Ending::Closed))
    }

    /// Whether [`Self::submit`] takes a command now.
    pub(crate) fn takes(&self, command: &Command) -> bool {
        self.check(command).is_ok()
    }

    #[inline(always)]
    fn check(&self, command: &Command) -> Result<u32, RejectedReason> {
        if self.is_ending() {
            return Err(RejectedReason::Closed);
        }
        if self.outstanding() >= self.limit() {
            return Err(RejectedReason::Full);
        }
        let len = u32::try_from(command.data.len()).map_err(|_| RejectedReason::BadData)?;
        // Data Digests and hosts before us cover whole double words only.
        let suits = match command.data.direction() {
            Direction::None => true,
            direction => {
                len > 0 && len.is_multiple_of(4) && direction == command::direction(&command.sqe)
            }
        };
        if suits { Ok(len) } else { Err(RejectedReason::BadData) }
    }

    /// An event request waits until an event happens; all other commands have the usual limit.
    fn waits(&self, sqe: &Sqe) -> bool {
        sqe.opc == admin::ASYNC_EVENT_REQUEST && self.config.qid.is_admin()
    }

    /// Inline, so that the entry is built in its slot and not moved there.
    #[inline(always)]
    fn insert(
        &mut self,
        command: Command,
        user: u64,
        len: u32,
        since: Option<Instant>,
    ) -> CommandId {
        let under_way = &mut self.under_way;
        let inserted = self.commands.insert_with(|entry| {
            entry.fill(command, user, len, since);
            under_way.begin(entry);
        });
        let Some(cid) = inserted else {
            unreachable!("the table has more slots than the queue takes commands");
        };
        self.pending.push_back(cid);
        cid
    }

    /// The peer must answer within `limit`.
    fn expect(&mut self, cx: &mut Context<'_>, limit: Duration) {
        let at = cx.now + limit;
        self.phase_deadline = Some(at);
        self.arm(cx, at);
    }

    /// Asks for a timer unless an earlier one is on its way.
    fn arm(&mut self, cx: &mut Context<'_>, at: Instant) {
        if self.alarm.is_none_or(|alarm| at < alarm) {
            self.alarm = Some(at);
            cx.io.timer(at, self.token);
        }
    }

    fn handle_timer(&mut self, cx: &mut Context<'_>) {
        self.gathering.handle_timer(cx.now);
        if self.rdma.is_some() {
            self.handle_call(cx);
        }
        if self.alarm.is_none_or(|alarm| cx.now < alarm) {
            return; // an earlier, longer one
        }
        self.alarm = None;
        let address = self.config.address;
        if self.config.rdma.is_some() {
            self.tend_rdma(cx);
        }
        if let Some(deadline) = self.phase_deadline {
            if cx.now < deadline && self.is_computing() {
                return self.look_for_result(cx);
            }
            if cx.now < deadline {
                self.arm(cx, deadline);
                return;
            }
            self.phase_deadline = None;
            let phase = match self.state {
                State::Tcp if self.config.rdma.is_some() => Phase::Rdma,
                State::Tcp => Phase::Tcp,
                State::IcResp => Phase::IcResp,
                State::Connect(_) => Phase::Connect,
                State::Proving => Phase::Authentication,
                State::Draining(_) => return self.close_socket(cx, true),
                State::Lost | State::Ready | State::Closed => return,
            };
            self.lose(cx, Ending::Lost(HostError::NoAnswer(address, phase)), None);
            return;
        }
        if self.is_ready() {
            self.tend_authentication(cx);
        }
        if self.is_ready() {
            self.check_deadlines(cx);
        }
    }

    /// A command that has taken too long costs the connection. If only the command were given up, its data
    /// could still arrive in a buffer that has a new owner.
    fn check_deadlines(&mut self, cx: &mut Context<'_>) {
        let mut late: Option<CommandSummary> = None;
        let Some(limit) = self.config.command_timeout else { return };
        let admin = self.config.qid.is_admin();
        let ids: Vec<CommandId> = self.commands.ids().collect(); // a few times per timeout
        for cid in ids {
            let Some(entry) = self.commands.get_mut(cid) else { continue };
            if entry.since.is_some_and(|since| cx.now.saturating_duration_since(since) >= limit) {
                entry.timed_out = true;
                late = late.or(Some(CommandSummary::new(&entry.sqe, admin)));
            }
        }
        match late {
            Some(late) => {
                let error = HostError::CommandTimeout(self.config.address, late);
                self.lose(cx, Ending::Lost(error), None);
            }
            None => self.watch_deadlines(cx),
        }
    }

    /// Commands that have waited for this connection get all their time again.
    fn restart_deadlines(&mut self, now: Instant) {
        let ids: Vec<CommandId> = self.commands.ids().collect(); // once per connection
        for cid in ids {
            if let Some(since) = self.commands.get_mut(cid).and_then(|entry| entry.since.as_mut()) {
                *since = now;
            }
        }
    }

    /// Sees to it that deadlines are looked at while commands are outstanding.
    fn watch_deadlines(&mut self, cx: &mut Context<'_>) {
        if self.alarm.is_none()
            && !self.commands.is_empty()
            && let Some(limit) = self.config.command_timeout
        {
            self.arm(cx, cx.now + limit / TIMEOUT_CHECKS);
        }
    }

    /// Takes a command out and reports its end, unless an engine has its data or it is sent again.
    #[inline]
    fn finish(&mut self, cid: CommandId, result: Result<Cqe, CommandError>) {
        let admin = self.config.qid.is_admin();
        let batches_done = self.link.as_ref().map_or(u64::MAX, |link| link.batches_done);
        let Self { commands, done, held, returned, under_way, state, config, .. } = self;
        let mut again = false;
        // The end is built where it stays, and not moved there.
        commands.remove_if(cid, |entry| {
            // This comes before a retry, too: what an engine reports names the command by `cid`.
            if entry.digest.defer_end(result) {
                return None;
            }
            let spoiled = entry.digest_failed && result.is_ok();
            let result = if spoiled { Err(CommandError::Digest) } else { result };
            if result.is_err_and(CommandError::is_spoiled_data) {
                // As a new one, for it had no effect; but half of a fused operation never alone.
                again = matches!(state, State::Ready)
                    && entry.retries < config.digest_retries
                    && entry.sqe.fuse() == Fuse::Normal;
                if again {
                    return None;
                }
            }
            under_way.end(entry);
            if let Err(error) = result
                && config.failover
                && error.is_of_path()
                && entry.may_move()
            {
                returned.push(entry, Fate::NotExecuted, error);
                return Some(());
            }
            let sending = entry.batch > batches_done;
            let ended = CommandDone {
                user: entry.user,
                summary: CommandSummary::new(&entry.sqe, admin),
                result,
                data: std::mem::take(&mut entry.data),
            };
            if sending && entry.direction == Direction::HostToController {
                held.push(ended);
            } else {
                done.push_back(ended);
            }
            Some(())
        });
        if again {
            self.retry(cid);
        }
    }
}

impl QueuePair {
    /// Takes the Connect command out: no one waits for its end.
    #[cold]
    fn remove_connect(&mut self, cid: CommandId) {
        if let Some(entry) = self.commands.remove(cid) {
            self.under_way.end(&entry);
        }
    }

    /// Sends a command again that had no effect because its data were spoiled on the way.
    #[cold]
    fn retry(&mut self, cid: CommandId) {
        let Some(mut entry) = self.commands.remove(cid) else { return };
        entry.retries += 1;
        entry.sent = false;
        entry.forget_received();
        let Ok(cid) = self.commands.insert(entry) else {
            unreachable!("a slot has just become free");
        };
        self.pending.push_back(cid);
        self.gathering.release();
        self.counters.retries.add(1);
    }
}
