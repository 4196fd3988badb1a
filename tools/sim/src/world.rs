//! The state that all parts of one run share: the plan, the model, randomness, counts, the log.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use raceline_host::QueueCounters;
use raceline_reactor::sim::Random;

use crate::command::{Kind, Operation};
use crate::content::{Place, WriteId};
use crate::copies::Copies;
use crate::model::{Fate, Model, Moment};
use crate::paths::Paths;
use crate::plan::Plan;

/// Events that a failure shows.
const LOG_EVENTS: usize = 60;

/// Counts of one run or of many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Commands that have ended.
    pub commands: u64,
    /// Reads among them.
    pub reads: u64,
    /// Writes whose data were asked for by R2T.
    pub r2t_writes: u64,
    /// Writes with their data in the capsule.
    pub in_capsule_writes: u64,
    /// Fused pairs.
    pub fused: u64,
    /// Copies that succeeded.
    pub copies: u64,
    /// Those among them whose ranges name their namespaces.
    pub copies_across: u64,
    /// Commands that ended with an error status.
    pub failures: u64,
    /// Comparisons that found a difference.
    pub miscompares: u64,
    /// Writes that may or may not have happened.
    pub unknown_fates: u64,
    /// Reads that were torn by concurrent writes, where that is allowed.
    pub torn_reads: u64,
    /// Associations after the first of each host.
    pub reconnects: u64,
    /// Connections cut, hosts crashed or disconnected, namespaces removed.
    pub faults: u64,
    /// Bits flipped in the network.
    pub flips: u64,
    /// Digest errors that the target has found.
    pub digest_errors: u64,
    /// Requests that the device failed.
    pub device_errors: u64,
    /// Device errors that hosts got.
    pub device_errors_seen: u64,
    /// Commands of the target that waited for a buffer.
    pub buffer_waits: u64,
    /// Queues of the target that have moved to another core.
    pub moves: u64,
    /// Commands of the target that limits have held up.
    pub throttled: u64,
    /// Namespace changes that hosts have noticed.
    pub namespace_events: u64,
    /// Paths of bytes.
    pub paths: Paths,
    /// Virtual time.
    pub simulated: Duration,
    /// A hash over everything that happened.
    pub fingerprint: u64,
}

impl Totals {
    /// Adds another run.
    pub fn add(&mut self, other: &Self) {
        self.commands += other.commands;
        self.reads += other.reads;
        self.r2t_writes += other.r2t_writes;
        self.in_capsule_writes += other.in_capsule_writes;
        self.fused += other.fused;
        self.copies += other.copies;
        self.copies_across += other.copies_across;
        self.failures += other.failures;
        self.miscompares += other.miscompares;
        self.unknown_fates += other.unknown_fates;
        self.torn_reads += other.torn_reads;
        self.reconnects += other.reconnects;
        self.faults += other.faults;
        self.flips += other.flips;
        self.digest_errors += other.digest_errors;
        self.device_errors += other.device_errors;
        self.device_errors_seen += other.device_errors_seen;
        self.buffer_waits += other.buffer_waits;
        self.moves += other.moves;
        self.throttled += other.throttled;
        self.namespace_events += other.namespace_events;
        self.paths.add(&other.paths);
        self.simulated += other.simulated;
        self.fingerprint = self.fingerprint.rotate_left(1) ^ other.fingerprint;
    }
}

/// The last events of a run. Survives a panic of the code under test.
#[derive(Clone, Default)]
pub struct Log(Rc<RefCell<VecDeque<String>>>);

impl Log {
    /// Adds an event.
    pub fn push(&self, at: Duration, event: fmt::Arguments<'_>) {
        let mut events = self.0.borrow_mut();
        if events.len() == LOG_EVENTS {
            events.pop_front();
        }
        events.push_back(format!("{:>12.3} us  {event}", at.as_secs_f64() * 1e6));
    }

    /// The events that are still stored, oldest first.
    #[must_use]
    pub fn events(&self) -> Vec<String> {
        self.0.borrow().iter().cloned().collect()
    }
}

/// What the hosts do in this part of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duty {
    /// Random commands.
    Work,
    /// Every block is read once.
    Verify,
    /// Nothing.
    Rest,
}

/// A namespace as the hosts may see it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Presence {
    /// It is being removed, gone, or being added.
    pub absent: bool,
    /// When it was absent last.
    pub absent_at: Moment,
}

/// A write of unknown fate, until it cannot happen any more.
struct Ghost {
    until: Duration,
    places: Vec<Place>,
    write: WriteId,
    begun: Moment,
    is_copy: bool,
}

/// Shared by all parts of one run.
pub struct Shared {
    /// The plan.
    pub plan: Plan,
    /// The checker.
    pub model: Model,
    /// What copies may have brought.
    pub copies: Copies,
    /// The source of randomness.
    pub random: Random,
    /// Counts.
    pub totals: Totals,
    /// The counters of the queues of all hosts, including hosts that have crashed.
    pub queue_counters: Vec<Arc<QueueCounters>>,
    /// The last events.
    pub log: Log,
    /// The work of the hosts.
    pub duty: Duty,
    /// Random commands submitted.
    pub issued: u64,
    /// How many are to be submitted in this part of the run.
    pub issue_until: u64,
    /// Blocks still to be verified.
    pub unverified: Vec<Place>,
    /// Namespaces.
    pub namespaces: Vec<Presence>,
    /// Connections lost, for any reason.
    pub losses: u64,
    /// Losses are allowed.
    pub losses_excused: bool,
    /// Hosts whose first controllers know what they can do.
    pub greeted: usize,
    /// The beginning of the oldest command outstanding.
    pub oldest: Moment,
    /// Virtual time.
    pub now: Duration,
    /// Blocks that a command is writing, of runs with two paths. A write that is sent again can happen twice, so that a
    /// program that writes a block twice at a time may find either of both in the end, as with any host.
    busy: BTreeSet<Place>,
    next_user: u64,
    next_write: u64,
    ghosts: VecDeque<Ghost>,
    /// For how long a write of unknown fate may still happen; `None`: without limit.
    ghost_window: Option<Duration>,
}

impl Shared {
    /// The beginning of a run.
    #[must_use]
    pub fn new(plan: Plan, log: Log) -> Self {
        let count = plan.block_sizes.len();
        Self {
            model: Model::new(&vec![plan.block_count; count]),
            copies: Copies::default(),
            random: Random::new(plan.seed),
            totals: Totals::default(),
            queue_counters: Vec::new(),
            log,
            duty: Duty::Work,
            issued: 0,
            issue_until: 0,
            unverified: Vec::new(),
            namespaces: vec![Presence::default(); count],
            losses: 0,
            losses_excused: true,
            greeted: 0,
            oldest: 0,
            now: Duration::ZERO,
            busy: BTreeSet::new(),
            next_user: 1,
            next_write: 1,
            ghosts: VecDeque::new(),
            ghost_window: ghost_window(&plan),
            plan,
        }
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    /// A position in a list of that length.
    pub fn pick(&mut self, len: usize) -> usize {
        usize::try_from(self.random.below(len as u64)).unwrap_or(0)
    }

    /// A name for the next command.
    pub fn next_user(&mut self) -> u64 {
        self.next_user += 1;
        self.next_user
    }

    /// The id of the next write.
    pub fn next_write(&mut self) -> WriteId {
        self.next_write += 1;
        WriteId(self.next_write)
    }

    /// Whether a command may begin: no other one is writing its blocks, where that matters.
    ///
    /// # Errors
    /// When a place does not exist.
    pub fn may_begin(&mut self, operation: &Operation) -> Result<bool, String> {
        if operation.kind == Kind::Copy && !self.copies.may_begin(operation, &mut self.model)? {
            return Ok(false);
        }
        let claims = operation.kind.claims();
        Ok(!claims || !operation.places().any(|place| self.busy.contains(&place)))
    }

    /// A command that writes begins, or has ended.
    pub fn set_busy(&mut self, operation: &Operation, is_busy: bool) {
        if !self.plan.has_two_paths() || !operation.kind.writes() {
            return;
        }
        for place in operation.places() {
            if is_busy {
                self.busy.insert(place);
            } else {
                self.busy.remove(&place);
            }
        }
    }

    /// Whether commands are to be submitted in this part of the run.
    #[must_use]
    pub fn has_work(&self) -> bool {
        match self.duty {
            Duty::Work => self.issued < self.issue_until,
            Duty::Verify => !self.unverified.is_empty(),
            Duty::Rest => false,
        }
    }

    /// Bytes of a block.
    #[must_use]
    pub fn block_size(&self, namespace: usize) -> usize {
        usize::try_from(self.plan.block_sizes[namespace]).unwrap_or(0)
    }

    /// Adds an event to the log.
    pub fn note(&self, event: fmt::Arguments<'_>) {
        self.log.push(self.now, event);
    }

    /// Whether a namespace may have been missing since that moment.
    #[must_use]
    pub fn was_absent(&self, namespace: usize, since: Moment) -> bool {
        let presence = self.namespaces[namespace];
        presence.absent || presence.absent_at > since
    }

    /// Whether hosts may not have told their first controllers yet what they can do.
    #[must_use]
    pub fn is_starting(&self) -> bool {
        self.greeted < self.plan.hosts.len()
    }

    /// Whether connections have been lost.
    #[must_use]
    pub fn had_losses(&self) -> bool {
        self.losses > 0
    }

    /// Notes that a write of unknown fate may still happen, within the ghost window.
    pub fn remember_ghost(&mut self, operation: &Operation) {
        if let Some(window) = self.ghost_window {
            self.ghosts.push_back(Ghost {
                until: self.now + window,
                places: operation.places().collect(),
                write: operation.write,
                begun: operation.begun,
                is_copy: operation.kind == Kind::Copy,
            });
        }
    }

    /// Settles the writes that cannot happen any more.
    ///
    /// # Errors
    /// When the model does not know one.
    pub fn settle_ghosts(&mut self) -> Result<(), String> {
        while let Some(ghost) = self.ghosts.pop_front_if(|ghost| ghost.until <= self.now) {
            self.model.tick();
            if ghost.is_copy {
                let copy = (ghost.write, &ghost.places[..]);
                self.copies.end(copy, Fate::Maybe, &mut self.model)?;
            }
            for place in ghost.places {
                self.model.settle(place, ghost.write, ghost.begun)?;
                if ghost.is_copy {
                    self.model.settle(place, WriteId::ZEROES, ghost.begun)?;
                }
            }
        }
        Ok(())
    }
}

/// A command whose connection was reset can still be at its device, or on the way there. The window is
/// known only when nothing else can delay the command: neither a buffer that it waits for, nor a connection
/// that ends regularly and first delivers all bytes that were sent.
fn ghost_window(plan: &Plan) -> Option<Duration> {
    let plain = plan.faults.flips_per_million == 0
        && plan.faults.disconnects == 0
        && plan.target.large_buffers_per_core >= 64;
    // The reset, then a receive that had completed, then at most two requests to the device.
    plain.then(|| 4 * plan.network.max_delay + 3 * plan.device_delay + Duration::from_millis(1))
}
