//! I/O queues that the program's own threads drive: no thread of ours is on the way of a command.
//!
//! A [`CallerHost`] is a connected controller; its admin queue, keep alive and reconnecting are in
//! the background, on a thread that no I/O passes. Its I/O queues belong to whoever opens them:
//! [`CallerQueues`] are a group of them with their sockets, and the thread that calls
//! [`CallerQueues::flush`] sends, the one that calls [`CallerQueues::poll`] receives. A group is
//! used by one thread at a time, and may move from thread to thread between calls.
//!
//! Lost connections are made again while the program polls. It polls at least as often as the
//! command timeout asks for: what was not looked for in time counts as not having come.

#![allow(unsafe_code)]

mod cut;
mod driving;
mod memory;
mod operation;
mod single;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use raceline_proto::host::NamespaceInfo;
use raceline_proto::nvme::NamespaceId;
use raceline_reactor::{
    BufferPool, Completion, Context, EpollIo, Io, PoolConfig, Token, Wait, Waker,
};

use crate::admin_link::AdminLink;
use crate::config::{Association, HostConfig};
use crate::counters::QueueCounters;
use crate::error::{HostError, Phase};
use crate::follower::AssociationFollower;
use crate::maps::{CoreMaps, CorePlace, QueueRequest};
use crate::queue_set::{IoQueueEvent, IoQueueSet};
use cut::Ticket;
pub use memory::Memory;
use operation::Limits;
pub use operation::{Finished, Operation, Refusal, Refused};
use single::Single;

/// How long [`CallerQueues::wait`] looks before it sleeps, unless told otherwise.
pub const DEFAULT_SPIN: Duration = Duration::from_micros(50);
/// Token indices of the timers; queues count from 0.
const FOLLOW_INDEX: u32 = u32::MAX;
const WAIT_INDEX: u32 = u32::MAX - 1;
/// One receive buffer per queue: more than what a queue stages.
const STAGING_BYTES: usize = 72 << 10;
/// Bytes of one command at most, where the controller allows more.
const MAX_COMMAND_BYTES: u32 = 1 << 20;
/// Turns within which a closed queue has given everything back: its socket goes at once.
const CLOSE_TURNS: usize = 8;
/// How long a controller may take to see that the connection of a queue's number has ended.
const REUSE_TIME: Duration = Duration::from_secs(1);
const REUSE_PAUSE: Duration = Duration::from_millis(20);

/// A connected controller whose I/O queues are handed out.
#[derive(Clone, Debug)]
pub struct CallerHost {
    shared: Arc<CallerShared>,
}

#[derive(Debug)]
struct CallerShared {
    config: HostConfig,
    admin: AdminLink,
    /// The one that was given back longest ago is used first.
    free_qids: Mutex<VecDeque<u16>>,
}

/// What a group of queues is to be like.
#[derive(Clone, Debug)]
pub struct CallerOptions {
    /// Queues for everything, or only for reads when there are `write_queues`.
    pub queues: u16,
    /// More of them, for what is no read; see [`crate::maps`].
    pub write_queues: u16,
    /// More of them, for polled operations.
    pub poll_queues: u16,
    /// How long [`CallerQueues::wait`] looks for completions itself before it sleeps.
    pub spin: Duration,
}

impl Default for CallerOptions {
    fn default() -> Self {
        Self { queues: 1, write_queues: 0, poll_queues: 0, spin: DEFAULT_SPIN }
    }
}

impl CallerOptions {
    fn request(&self) -> QueueRequest {
        QueueRequest { io: self.queues, write: self.write_queues, poll: self.poll_queues }
    }
}

impl CallerHost {
    /// Connects to the controller, and asks it for the I/O queues of `config`, of all kinds, for all
    /// groups together.
    ///
    /// # Errors
    /// When the controller cannot be reached or used.
    pub fn connect(config: HostConfig) -> Result<Self, HostError> {
        let admin = AdminLink::connect(config.clone())?;
        let granted = admin.association().io_queues.min(config.queue_request().total());
        let free_qids = Mutex::new((1..=granted).collect());
        Ok(Self { shared: Arc::new(CallerShared { config, admin, free_qids }) })
    }

    /// For what is not I/O: namespaces, log pages, admin commands.
    #[must_use]
    pub fn admin(&self) -> &AdminLink {
        &self.shared.admin
    }

    /// How it was connected to.
    #[must_use]
    pub fn config(&self) -> &HostConfig {
        &self.shared.config
    }

    /// Why it was given up, if it was.
    #[must_use]
    pub fn failure(&self) -> Option<HostError> {
        self.shared.admin.failure()
    }

    /// Queues that can still be opened.
    #[must_use]
    pub fn free_queues(&self) -> usize {
        self.shared.qids().len()
    }

    /// Opens I/O queues and waits until commands flow.
    ///
    /// # Errors
    /// When there are not so many, or they cannot be connected.
    pub fn open(&self, options: &CallerOptions) -> Result<CallerQueues, HostError> {
        let deadline = Instant::now() + REUSE_TIME;
        loop {
            match self.try_open(options) {
                // Its number is that of a queue that was closed a moment ago.
                Err(HostError::ConnectRefused { .. }) if Instant::now() < deadline => {
                    std::thread::sleep(REUSE_PAUSE);
                }
                result => return result,
            }
        }
    }

    /// Shuts the association down in order and waits until that is done. Groups end with it.
    pub fn disconnect(&self) {
        self.shared.admin.disconnect();
    }

    fn try_open(&self, options: &CallerOptions) -> Result<CallerQueues, HostError> {
        let qids = self.shared.take_qids(options.request().total())?;
        let mut queues = CallerQueues::new(Arc::clone(&self.shared), options, qids)?;
        queues.until_ready()?;
        Ok(queues)
    }
}

impl CallerShared {
    fn qids(&self) -> std::sync::MutexGuard<'_, VecDeque<u16>> {
        self.free_qids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_qids(&self, count: u16) -> Result<Vec<u16>, HostError> {
        let mut free = self.qids();
        let wanted = usize::from(count);
        if wanted == 0 || wanted > free.len() {
            let granted = self.admin.association().io_queues;
            return Err(HostError::Invalid(format!(
                "{count} I/O queues cannot be opened: {} are left of {} asked for when connecting \
                 ({granted} granted by the controller)",
                free.len(),
                self.config.queue_request().total(),
            )));
        }
        Ok(free.drain(..wanted).collect())
    }
}

/// I/O queues with their connections, and the operations on them.
///
/// The order of use: [`Self::submit`] some operations, [`Self::flush`] to send them, then
/// [`Self::poll`] or [`Self::wait`], and [`Self::next_finished`] for what has ended. Nothing is
/// allocated for an operation (except for the list of a Deallocate).
pub struct CallerQueues {
    // Dropped in this order: queues and sockets let go of the memory that the tickets own.
    queues: IoQueueSet,
    driver: Driver,
    /// Operations of one command. An operation has a place in this list or in the next one, never in
    /// both at that position.
    singles: Vec<Single>,
    /// Operations of several commands.
    tickets: Vec<Option<Ticket>>,
    free: Vec<usize>,
    /// How many tickets there are.
    cut: usize,
    /// For each queue, the operation that has not been submitted whole.
    partial: Vec<Option<usize>>,
    /// What has ended and is not among the queues' finished commands any more.
    finished: VecDeque<Finished>,
    completions: Vec<Completion>,
    shared: Arc<CallerShared>,
    follower: AssociationFollower,
    /// The version of the controller's state that `namespaces` are of.
    seen: u64,
    qids: Vec<u16>,
    maps: CoreMaps,
    namespaces: Arc<[NamespaceInfo]>,
    max_transfer_bytes: u32,
    /// When the timer that ends a wait expires, if one is on its way.
    wait_end: Option<Instant>,
    spin: Duration,
    opening: bool,
    /// The first connection could not be made.
    refused: Option<HostError>,
}

// SAFETY: what is bound to a thread in here are the counters of buffers (`Rc`, `Cell`), of one pool
// that this value made, and raw pointers to the memory of its tickets. No buffer, no handle to the
// pool and no borrow of them leaves this module: programs give and get `Memory`, which is `Send`.
// So all of them move to another thread together, and are used by one thread at a time, as all
// methods that reach them take `&mut self`. Its `Io` is an `EpollIo`, which holds descriptors,
// tokens and buffers of this pool and no engine, and may be used by any thread; a ring of io_uring
// may not.
unsafe impl Send for CallerQueues {}

/// The group's I/O and the pool of its buffers.
struct Driver {
    io: EpollIo,
    pool: BufferPool,
}

impl Driver {
    fn cx(&mut self) -> Context<'_> {
        let now = self.io.now();
        Context { io: &mut self.io, pool: &self.pool, now }
    }
}

/// Marks the commands of tickets in their `user`; below it is the position in either list.
const CUT: u64 = 1 << 63;

impl CallerQueues {
    /// How many queues there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.qids.len()
    }

    /// Always false: a group has at least one queue.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.qids.is_empty()
    }

    /// The position of the queue that an operation goes to, by its map. Where several would do, a
    /// `lane` always gets the same one.
    #[must_use]
    #[inline]
    pub fn queue_for(&self, operation: &Operation, polled: bool, lane: usize) -> usize {
        if let [_] = self.qids[..] {
            return 0;
        }
        self.maps.route(operation.opcode(), polled, lane).unwrap_or(0)
    }

    /// How many more operations a queue takes; one that needs several commands may use up all.
    #[must_use]
    pub fn room(&self, queue: usize) -> usize {
        match self.partial.get(queue) {
            Some(None) => self.queues.room(queue).min(self.free.len()),
            _ => 0,
        }
    }

    /// Whether commands flow on all queues; while they do not, operations wait.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.queues.is_ready()
    }

    /// Whether no operation is taken any more: the queues were closed, or the controller was given
    /// up.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.queues.is_closed()
    }

    /// Why the controller was given up for good, if it was.
    #[must_use]
    pub fn failure(&self) -> Option<HostError> {
        self.shared.admin.failure()
    }

    /// Operations taken whose end has not been given.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.tickets.len() - self.free.len() + self.finished.len()
    }

    /// Ends a [`Self::wait`] of another thread, now or as soon as it sleeps.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.driver.io.waker()
    }

    /// What the queues have done so far.
    #[must_use]
    pub fn counters(&self) -> &Arc<QueueCounters> {
        self.queues.counters()
    }

    /// Takes an operation for the queue at this position, which leaves with the next
    /// [`Self::flush`], poll or wait.
    ///
    /// # Errors
    /// Gives it back with its memory when it cannot be taken, now or ever.
    // Always inline: where the kind of operation is known, it goes into its slot without being moved.
    #[inline(always)]
    pub fn submit(&mut self, queue: usize, operation: Operation, user: u64) -> Result<(), Refused> {
        if self.follower.state().version() != self.seen {
            self.refresh();
        }
        let limits = match self.admit(queue, operation.nsid()) {
            Ok(limits) => limits,
            Err(reason) => return Err(Refused { reason, operation }),
        };
        match operation.single(limits) {
            Some((sqe, direction)) => {
                self.submit_single(queue, sqe, direction, operation.into_data(), user);
                Ok(())
            }
            None => self.submit_cut(queue, operation, limits, user),
        }
    }

    /// Sends what was submitted, now and on this thread.
    pub fn flush(&mut self) {
        self.queues.flush(&mut self.driver.cx());
    }

    /// Receives what has come, and sends what can go, without waiting. Gives how many operations
    /// have ended and wait for [`Self::next_finished`].
    ///
    /// # Errors
    /// Only when the operating system's part is broken; the group cannot go on.
    pub fn poll(&mut self) -> Result<usize, HostError> {
        self.turn(Wait::No)?;
        Ok(self.ended())
    }

    /// As [`Self::poll`], waiting for an end up to `timeout`, or until the [`Waker`] is used; first
    /// looking for it, then asleep.
    ///
    /// # Errors
    /// As [`Self::poll`].
    pub fn wait(&mut self, timeout: Duration) -> Result<usize, HostError> {
        let start = Instant::now();
        let deadline = start.checked_add(timeout);
        let is_over = |now: Instant| deadline.is_some_and(|deadline| now >= deadline);
        loop {
            self.turn(Wait::No)?;
            let now = Instant::now();
            if self.ended() > 0 || is_over(now) {
                return Ok(self.ended());
            }
            if now.duration_since(start) >= self.spin {
                break;
            }
            std::hint::spin_loop();
        }
        while self.ended() == 0 && !is_over(self.driver.io.now()) {
            if let Some(deadline) = deadline.filter(|&at| self.wait_end.is_none_or(|end| end > at))
            {
                self.wait_end = Some(deadline);
                self.driver.io.timer(deadline, Token { index: WAIT_INDEX, ..TOKEN });
            }
            if !self.turn(Wait::Yes)? {
                break; // woken by another thread
            }
        }
        Ok(self.ended())
    }

    /// The next operation that has ended, with its memory.
    #[inline]
    pub fn next_finished(&mut self) -> Option<Finished> {
        loop {
            if !self.finished.is_empty() {
                return self.finished.pop_front();
            }
            let (queue, done) = self.queues.poll_done()?;
            if done.user & CUT == 0 {
                return Some(self.finish_single(queue, done));
            }
            self.finish_command(done);
        }
    }

    /// Closes the queues. All operations end, those outstanding with an error: when this returns,
    /// [`Self::next_finished`] has them.
    pub fn close(&mut self) {
        self.queues.close(&mut self.driver.cx());
        for _ in 0..CLOSE_TURNS {
            self.take_done();
            if self.queues.is_closed() && self.free.len() == self.tickets.len() {
                return;
            }
            if let Err(error) = self.turn(Wait::No) {
                tracing::warn!(%error, "a group of queues is closed without its completions");
                return;
            }
        }
    }
}

/// What all tokens of a group have in common.
const TOKEN: Token = Token { owner: 0, generation: 0, index: 0 };

impl CallerQueues {
    fn new(
        shared: Arc<CallerShared>,
        options: &CallerOptions,
        qids: Vec<u16>,
    ) -> Result<Self, HostError> {
        let association = shared.admin.association();
        let entries = shared.config.io_entries.min(association.max_entries);
        let slots = usize::from(entries) * qids.len();
        let staging = PoolConfig::new(&[(STAGING_BYTES, qids.len())]);
        let opened = EpollIo::eager()
            // Finished commands give their buffer back a turn later.
            .and_then(|io| Ok(Driver { io, pool: BufferPool::lending(&staging, 2 * slots)? }));
        let driver = match opened {
            Ok(driver) => driver,
            Err(error) => {
                shared.qids().extend(qids);
                return Err(HostError::Reactor(Arc::new(error)));
            }
        };
        Ok(Self {
            queues: IoQueueSet::new(&shared.config, qids.iter().copied(), TOKEN),
            driver,
            singles: std::iter::repeat_with(Single::default).take(slots).collect(),
            tickets: std::iter::repeat_with(|| None).take(slots).collect(),
            free: (0..slots).rev().collect(),
            cut: 0,
            partial: vec![None; qids.len()],
            finished: VecDeque::with_capacity(slots),
            completions: Vec::with_capacity(4 * qids.len()),
            follower: AssociationFollower::new(
                Arc::clone(shared.admin.state()),
                Token { index: FOLLOW_INDEX, ..TOKEN },
            ),
            seen: 0,
            shared,
            maps: options.request().grant(options.request().total()).core(CorePlace::ALONE),
            qids,
            namespaces: Arc::clone(&association.namespaces),
            max_transfer_bytes: MAX_COMMAND_BYTES,
            wait_end: None,
            spin: options.spin,
            opening: true,
            refused: None,
        })
    }

    /// Connects all queues for the first time.
    fn until_ready(&mut self) -> Result<(), HostError> {
        let config = &self.shared.config;
        let (address, limit) = (config.address, config.connect_timeout);
        let deadline = Instant::now() + limit;
        self.follow();
        while !self.queues.is_ready() {
            if let Some(error) = self.refused.take().or_else(|| self.failure()) {
                return Err(error);
            }
            if Instant::now() >= deadline {
                return Err(HostError::NoAnswer(address, Phase::Connect));
            }
            self.turn(Wait::Yes)?;
        }
        self.opening = false;
        Ok(())
    }

    /// Something about the controller has changed. An operation may be for a namespace that has come just
    /// now; all else waits for [`Self::follow`].
    #[cold]
    fn refresh(&mut self) {
        let state = self.follower.state().get();
        self.seen = state.version;
        if let Some(association) = state.association {
            self.namespaces = association.namespaces;
        }
    }

    /// Has the queues follow the association.
    fn follow(&mut self) {
        let seen = self.follower.follow(&mut self.driver.cx(), &mut self.queues);
        self.seen = seen.version;
        if let Some(association) = seen.association {
            self.max_transfer_bytes = max_transfer(&association);
            self.namespaces = association.namespaces;
        }
    }

    #[inline(always)]
    fn admit(&self, queue: usize, nsid: NamespaceId) -> Result<Limits, Refusal> {
        if queue >= self.qids.len() {
            return Err(Refusal::NoQueue { queue, count: self.qids.len() });
        }
        if self.queues.is_closed() {
            return Err(Refusal::Closed);
        }
        if self.room(queue) == 0 || self.driver.pool.lent_available() == 0 {
            return Err(Refusal::Full);
        }
        // Reported in ascending order (Base 2.0, 5.17.2.2).
        let found = self.namespaces.binary_search_by_key(&nsid.0, |info| info.nsid.0);
        let info = found.map_err(|_| Refusal::NoNamespace(nsid))?;
        let block_size = self.namespaces[info].block_size;
        Ok(Limits { block_size, max_transfer_bytes: self.max_transfer_bytes })
    }

    /// Operations that have ended and wait for [`Self::next_finished`]. (With tickets outstanding,
    /// [`Self::collect`] leaves no command with the queues.)
    fn ended(&self) -> usize {
        self.finished.len() + self.queues.done_count()
    }

    /// Takes all that the queues have finished.
    fn take_done(&mut self) {
        while let Some((queue, done)) = self.queues.poll_done() {
            if done.user & CUT == 0 {
                let finished = self.finish_single(queue, done);
                self.finished.push_back(finished);
            } else {
                self.finish_command(done);
            }
        }
    }

    /// One turn; false when nothing has happened.
    fn turn(&mut self, wait: Wait) -> Result<bool, HostError> {
        let Self { driver, completions, .. } = self;
        if let Err(error) = driver.io.poll(wait, completions) {
            return Err(HostError::Reactor(Arc::new(error)));
        }
        let any = !self.completions.is_empty();
        for completion in self.completions.drain(..) {
            match completion.token.index {
                FOLLOW_INDEX => {}
                WAIT_INDEX => self.wait_end = None,
                _ => self.queues.handle_completion(&mut self.driver.cx(), completion),
            }
        }
        if self.follower.is_due(self.driver.io.now()) {
            self.follow();
        }
        self.collect();
        self.queues.flush(&mut self.driver.cx());
        Ok(any)
    }

    /// Takes what the queues give, and fills the room that this makes. What is an operation of its own
    /// stays with them until the program takes it.
    fn collect(&mut self) {
        if self.cut > 0 {
            self.take_done();
        }
        while let Some(event) = self.queues.poll_event() {
            let IoQueueEvent::Lost { cntlid, error, .. } = event else { continue };
            if self.opening {
                self.refused = Some(error);
                continue;
            }
            tracing::warn!(%error, "an I/O queue is lost");
            self.shared.admin.queue_lost(cntlid, error);
            self.follower.look_soon(&mut self.driver.cx());
        }
        for queue in 0..self.partial.len() {
            if let Some(index) = self.partial[queue] {
                self.continue_ticket(index);
            }
        }
    }
}

impl Drop for CallerQueues {
    fn drop(&mut self) {
        self.close();
        self.shared.qids().extend(self.qids.drain(..));
    }
}

impl std::fmt::Debug for CallerQueues {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CallerQueues")
            .field("qids", &self.qids)
            .field("outstanding", &self.outstanding())
            .finish_non_exhaustive()
    }
}

fn max_transfer(association: &Association) -> u32 {
    let limit = association.controller.max_transfer_bytes.unwrap_or(MAX_COMMAND_BYTES);
    limit.min(MAX_COMMAND_BYTES)
}
