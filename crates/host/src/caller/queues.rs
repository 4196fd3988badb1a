//! A group of I/O queues with their sockets, driven by whichever thread has it.

#![allow(unsafe_code)]

mod in_flight;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use raceline_proto::host::NamespaceInfo;
use raceline_proto::nvme::NamespaceId;
use raceline_reactor::core::tell_busy_poll;
use raceline_reactor::{
    BufferPool, Completion, Context, EpollIo, Io, PoolConfig, Sleeper, Token, Wait, Waker,
};

use super::{CallerOptions, CallerShared, Finished, Operation, Refusal, Refused};
use crate::admin_link::LinkSnapshot;
use crate::config::Association;
use crate::counters::QueueCounters;
use crate::error::{HostError, Phase};
use crate::follower::AssociationFollower;
use crate::maps::{CoreMaps, CorePlace};
use crate::multipath::{PathSet, PathSetEvent};
use crate::split::{Limits, max_transfer_bytes};
use in_flight::{InFlight, is_of_split};

/// Token indices of the timers; queues count from 0.
const FOLLOW_INDEX: u32 = u32::MAX;
const WAIT_INDEX: u32 = u32::MAX - 1;
/// Bytes of the receive buffer of a queue: more than its staging memory.
const STAGING_BYTES: usize = 72 << 10;
/// Turns within which a closed queue has given everything back if it has a socket: that goes at once.
const CLOSE_TURNS: usize = 8;
/// The time within which it has over RDMA: a queue pair says of each request that nothing can reach its memory any more, or
/// is given up after 1 s.
const CLOSE_TIME: Duration = Duration::from_secs(3);

/// I/O queues with their connections, and the operations on them.
///
/// The order of use: [`Self::submit`] some operations, [`Self::flush`] to send them, then
/// [`Self::poll`] or [`Self::wait`], and [`Self::next_finished`] for what has ended. Nothing is
/// allocated for an operation (except for the list of a Deallocate).
pub struct CallerQueues {
    // Dropped in this order: queues and sockets let go of the memory that operations own.
    queues: PathSet,
    driver: Driver,
    in_flight: InFlight,
    /// Operations that have ended and are not among the queues' finished commands any more.
    finished: VecDeque<Finished>,
    completions: Vec<Completion>,
    shared: Arc<CallerShared>,
    follower: AssociationFollower,
    qids: Vec<u16>,
    maps: CoreMaps,
    allowed: Allowed,
    /// When the timer that ends a wait expires, if one is on its way.
    wait_end: Option<Instant>,
    spin: Duration,
    opening: Opening,
}

/// How the first connections stand.
#[derive(Debug)]
enum Opening {
    /// They are being made.
    Begun,
    /// One could not be made.
    Refused(HostError),
    /// They were made.
    Done,
}

/// What the controller allows.
struct Allowed {
    /// The version of the controller's state that `namespaces` are of.
    version: u64,
    /// Reported in ascending order (Base 2.0, 5.17.2.2).
    namespaces: Arc<[NamespaceInfo]>,
    max_transfer_bytes: u32,
}

impl Allowed {
    fn by(association: &Association) -> Self {
        Self {
            version: 0,
            namespaces: Arc::clone(&association.namespaces),
            max_transfer_bytes: max_transfer_bytes(&association.controller),
        }
    }

    /// Takes over what the controller says now; while no association is up, that is nothing new.
    fn update(&mut self, snapshot: LinkSnapshot) {
        if let Some(association) = &snapshot.association {
            *self = Self::by(association);
        }
        self.version = snapshot.version;
    }

    #[inline(always)]
    fn limits(&self, nsid: NamespaceId) -> Result<Limits, Refusal> {
        let found = self.namespaces.binary_search_by_key(&nsid.0, |info| info.nsid.0);
        let info = found.map_err(|_| Refusal::NoNamespace(nsid))?;
        let block_size = self.namespaces[info].block_size;
        Ok(Limits { block_size, max_transfer_bytes: self.max_transfer_bytes })
    }
}

// SAFETY: what is bound to a thread in here are the counters of buffers (`Rc`, `Cell`), of one pool
// that this value made, and raw pointers to the memory of its operations. No buffer, no handle to the
// pool and no borrow of them leaves this module: programs give and get `Memory`, which is `Send`.
// What queues over RDMA share (`Rc`) is found by this pool, so only queues in here have it.
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

    /// The position of the queue that an operation goes to, by its map. Among several suitable queues, a
    /// `lane` always gets the same one.
    #[must_use]
    #[inline]
    pub fn queue_for(&self, operation: &Operation, polled: bool, lane: usize) -> usize {
        if let [_] = self.qids[..] {
            return 0;
        }
        self.maps.route(operation.opcode(), polled, lane).unwrap_or(0)
    }

    /// How many more operations a queue takes; one operation that needs several commands may use up all.
    #[must_use]
    pub fn room(&self, queue: usize) -> usize {
        self.queues.room(queue).min(self.in_flight.room(queue))
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

    /// Why the controller was given up, if it was.
    #[must_use]
    pub fn failure(&self) -> Option<HostError> {
        self.shared.admin.failure()
    }

    /// Operations taken whose end has not been given.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.in_flight.len() + self.finished.len()
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
        if self.follower.state().version() != self.allowed.version {
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
            None => self.submit_split(queue, operation, limits, user),
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

    /// As [`Self::poll`], waiting for an end up to `timeout`, or until the [`Waker`] is used. It first
    /// looks for the end, then sleeps.
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
            if !is_of_split(&done) {
                return Some(self.finish_single(queue, done));
            }
            self.finish_command(done);
        }
    }

    /// Closes the queues. All operations end, outstanding ones with an error; after this,
    /// [`Self::next_finished`] gives them.
    pub fn close(&mut self) {
        self.queues.close(&mut self.driver.cx());
        let until = self.driver.io.now() + CLOSE_TIME;
        let mut turns = 0;
        while self.driver.io.now() < until {
            self.take_done();
            if self.queues.is_closed() && self.in_flight.len() == 0 {
                return;
            }
            if turns == CLOSE_TURNS {
                self.driver.io.timer(until, Token { index: WAIT_INDEX, ..TOKEN });
            }
            let wait = if turns < CLOSE_TURNS { Wait::No } else { Wait::Yes };
            turns += 1;
            if let Err(error) = self.turn(wait) {
                tracing::warn!(%error, "a group of queues is closed without its completions");
                return;
            }
        }
    }
}

/// What all tokens of a group have in common.
const TOKEN: Token = Token { owner: 0, generation: 0, index: 0 };

impl CallerQueues {
    pub(super) fn new(
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
        let mut driver = match opened {
            Ok(mut driver) => {
                if let Some(time) = shared.config.busy_poll {
                    tell_busy_poll("host", driver.io.busy_poll(time));
                }
                driver
            }
            Err(error) => {
                shared.qids().extend(qids);
                return Err(HostError::Reactor(Arc::new(error)));
            }
        };
        let queues = PathSet::new(&driver.cx(), &shared.config, qids.iter().copied(), TOKEN);
        Ok(Self {
            queues,
            driver,
            in_flight: InFlight::new(slots, qids.len()),
            finished: VecDeque::with_capacity(slots),
            completions: Vec::with_capacity(4 * qids.len()),
            follower: AssociationFollower::new(
                Arc::clone(shared.admin.state()),
                Token { index: FOLLOW_INDEX, ..TOKEN },
            ),
            shared,
            maps: options.request().grant(options.request().total()).core(CorePlace::ALONE),
            qids,
            allowed: Allowed::by(&association),
            wait_end: None,
            spin: options.spin,
            opening: Opening::Begun,
        })
    }

    /// Connects all queues for the first time.
    pub(super) fn until_ready(&mut self) -> Result<(), HostError> {
        let config = &self.shared.config;
        let (address, limit) = (config.address, config.connect_timeout);
        let deadline = Instant::now() + limit;
        self.follow();
        while !self.queues.is_ready() {
            if let Opening::Refused(error) = &self.opening {
                return Err(error.clone());
            }
            if let Some(error) = self.failure() {
                return Err(error);
            }
            if Instant::now() >= deadline {
                return Err(HostError::NoAnswer(address, Phase::Connect));
            }
            self.turn(Wait::Yes)?;
        }
        self.opening = Opening::Done;
        Ok(())
    }

    /// The controller's state has changed. An operation may be for a namespace that has come just now; all
    /// other changes wait for [`Self::follow`].
    #[cold]
    fn refresh(&mut self) {
        self.allowed.update(self.follower.state().get());
    }

    /// Has the queues follow the association.
    fn follow(&mut self) {
        let snapshot = self.follower.follow(&mut self.driver.cx(), &mut self.queues);
        self.allowed.update(snapshot);
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
        self.allowed.limits(nsid)
    }

    /// Operations that have ended and wait for [`Self::next_finished`]. (With split operations outstanding,
    /// [`Self::collect`] leaves no command with the queues.)
    fn ended(&self) -> usize {
        self.finished.len() + self.queues.done_count()
    }

    /// Takes all that the queues have finished.
    fn take_done(&mut self) {
        while let Some((queue, done)) = self.queues.poll_done() {
            if !is_of_split(&done) {
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

    /// Takes what the queues give, and fills the room that this makes. A command that is a whole operation
    /// stays with its queue until the program takes it.
    fn collect(&mut self) {
        if self.in_flight.has_splits() {
            self.take_done();
        }
        while let Some(event) = self.queues.poll_event() {
            if let PathSetEvent::Lost { error, .. } = &event {
                // Of several paths, another one may do.
                if !matches!(self.opening, Opening::Done) && !self.queues.is_multipath() {
                    self.opening = Opening::Refused(error.clone());
                    continue;
                }
                tracing::warn!(%error, "an I/O queue is lost");
                self.follower.look_soon(&mut self.driver.cx());
            }
            self.shared.admin.handle_event(event);
        }
        self.continue_splits();
    }
}

/// What shared queues need to know of a group that one thread of several drives.
impl CallerQueues {
    /// What a thread waits with while it does not have the group.
    pub(crate) fn sleeper(&self) -> io::Result<Sleeper> {
        self.driver.io.sleeper()
    }

    /// To be called before the last poll before a sleep.
    pub(crate) fn prepare_sleep(&mut self) {
        self.driver.io.ask_events();
    }

    /// Whether there is something to do that no event will announce.
    pub(crate) fn wants_poll(&self) -> bool {
        self.driver.io.wants_poll() || self.ended() > 0
    }

    /// When there will be something to do, at the latest.
    pub(crate) fn next_timer(&self) -> Option<Instant> {
        self.driver.io.next_timer()
    }

    /// The queue with the most room, if any has some.
    pub(crate) fn roomiest(&self) -> Option<usize> {
        let rooms = (0..self.len()).map(|queue| (self.room(queue), queue));
        rooms.max().filter(|&(room, _)| room > 0).map(|(_, queue)| queue)
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
