//! The next command of one queue and its time, and the check of what came back.
//!
//! A job does no I/O and reads no clock. Its driver asks [`QueueJob::poll_issue`] for commands until there
//! is none, reports each completion once, and calls again at [`QueueJob::wake_at`].

use std::time::{Duration, Instant};

use crate::histogram::Latencies;
use crate::pacing::Pacer;
use crate::pattern::{self, Mismatch};
use crate::permutation::Permutation;
use crate::random::{Random, mix};
use crate::workload::{Access, Extent, Span, Workload};

/// Verification remembers the last write of every command-sized unit, in 4 bytes: all queues together
/// remember at most this many units (256 MiB).
pub const VERIFY_UNITS_MAX: u64 = 1 << 26;
/// Most slices of a recording: each has a histogram of 230 KiB for each queue. The last one has the rest.
pub const SLICES_MAX: usize = 64;

/// One queue's share of a run.
#[derive(Clone, Debug)]
pub struct JobConfig {
    /// The common work of all queues.
    pub workload: Workload,
    /// The number of this queue.
    pub queue: u64,
    /// The number of queues.
    pub queues: u64,
    /// The number of its random sequence within the workload's seed.
    pub stream: u64,
    /// Most commands in flight.
    pub depth: u16,
    /// How commands are gathered.
    pub batch: Batch,
    /// When the run begins.
    pub start: Instant,
    /// How long it runs before recording.
    pub ramp: Duration,
    /// How long it records; `None`: until all commands are done.
    pub runtime: Option<Duration>,
    /// Number of commands to issue; `None`: until the time is over.
    pub commands: Option<u64>,
    /// The recording is kept in slices of this length as well; `None`: only as a whole.
    pub slice: Option<Duration>,
}

/// How outgoing commands are gathered, and completions before the next commands: fio's `iodepth_batch` and
/// related options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Most commands that are sent together; `None`: all that are due.
    pub submit: Option<u16>,
    /// Once the depth is reached, number of completions to await before the next command; 0 and 1 mean the
    /// same.
    pub complete_min: u16,
    /// Most completions that are handled together before commands are issued; `None`: all of them.
    pub complete_max: Option<u16>,
    /// Once the depth is reached, completions are awaited until at most this many commands are in flight;
    /// `None`: one less than the depth.
    pub low: Option<u16>,
}

impl Batch {
    /// No gathering: every command is sent as soon as possible.
    pub const NONE: Self = Self { submit: None, complete_min: 1, complete_max: None, low: None };

    /// Number of completions to await once the depth is reached.
    fn awaited(&self, depth: u16) -> u16 {
        let to_low = self.low.map_or(1, |low| depth.saturating_sub(low));
        self.complete_min.max(to_low).clamp(1, depth)
    }
}

impl Default for Batch {
    fn default() -> Self {
        Self::NONE
    }
}

/// Why a workload cannot run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JobConfigError {
    /// A queue has no addresses.
    #[error(
        "the range has room for {units} commands, which is less than one for each of {queues} queues"
    )]
    RangeTooSmall {
        /// Commands that fit.
        units: u64,
        /// Queues that share them.
        queues: u64,
    },
    /// Verification needs a unit of its own for each command in flight.
    #[error(
        "to verify, each queue needs at least {depth} commands' worth of blocks, and has {units}"
    )]
    RangeBelowDepth {
        /// Commands that fit.
        units: u64,
        /// Most commands in flight.
        depth: u16,
    },
    /// Verification would need too much memory.
    #[error(
        "to verify, the range may have at most {VERIFY_UNITS_MAX} commands' worth of blocks, and has {units}"
    )]
    RangeTooLarge {
        /// Commands that fit.
        units: u64,
    },
    /// Blocks are too small for the header of the pattern.
    #[error("a block of {0} bytes has no room for the verification header")]
    BlockTooSmall(u32),
    /// A command without blocks, or a queue without depth.
    #[error("a command needs at least one block, and a queue a depth of at least 1")]
    Nothing,
    /// Neither a time nor a number of commands ends it.
    #[error("a job ends after a time or after a number of commands, and has neither")]
    Endless,
}

/// A command to issue now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Issue {
    /// The job's name for it, below the depth.
    pub slot: u16,
    /// Index of its span in the workload.
    pub span: u16,
    /// Whether it is a write; otherwise a read.
    pub write: bool,
    /// Whether it is the last of its batch: the commands issued up to here are to be sent.
    pub flush: bool,
    /// First block.
    pub slba: u64,
    /// Number of blocks.
    pub block_count: u32,
}

/// Why a job ended early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobError {
    /// A command failed.
    Io(String),
    /// A block read back is not what was written.
    Mismatch(Mismatch),
}

/// The records of a job.
#[derive(Clone, Debug)]
pub struct JobResult {
    /// Latencies of reads.
    pub read: Latencies,
    /// Latencies of writes.
    pub write: Latencies,
    /// Commands that were due (open loop) and could not be issued before the end.
    pub missed: u64,
    /// The longest latency of a command that was under way at the end, and so is not among the latencies
    /// (closed loop).
    pub beyond_end: Duration,
    /// Number of commands whose blocks were read and found right.
    pub verified: u64,
    /// Duration of the recording.
    pub measured: Duration,
    /// The same latencies by the slice in which each command counts, from the begin of the recording on. A slice
    /// without commands is not there if no later one has any.
    pub slices: Vec<Slice>,
    /// When the job took up its work, if it did so after the recording was to begin.
    pub late: Option<Duration>,
    /// The first error.
    pub error: Option<JobError>,
}

/// The records of a part of the recording.
#[derive(Clone, Debug, Default)]
pub struct Slice {
    /// Latencies of reads; `None`: there was none.
    pub read: Option<Box<Latencies>>,
    /// Latencies of writes; `None`: there was none.
    pub write: Option<Box<Latencies>>,
}

impl Slice {
    /// The record of one kind of command, made when the first one comes.
    fn side(&mut self, write: bool) -> &mut Latencies {
        if write { &mut self.write } else { &mut self.read }.get_or_insert_default()
    }

    /// Adds everything that `other` recorded.
    pub fn merge(&mut self, other: &Self) {
        for (write, side) in [(false, &other.read), (true, &other.write)] {
            if let Some(side) = side {
                self.side(write).merge(side);
            }
        }
    }
}

/// The state of one queue's share of a run.
#[derive(Debug)]
pub struct QueueJob {
    workload: Workload,
    read_percent: u8,
    start: Instant,
    /// Whether the start has come.
    started: bool,
    clock: Clock,
    measure_from: Instant,
    measure_from_ns: u64,
    /// End of the recording.
    end: Option<Instant>,
    /// The same in nanoseconds from the start; the largest number if never.
    end_ns: u64,
    /// Commands still to be issued.
    left: Option<u64>,
    phase: Phase,
    pacer: Option<Pacer>,
    random: Random,
    areas: Vec<Area>,
    /// Index of the next command's area.
    turn: usize,
    batch: Batch,
    /// Commands issued since the end of the last batch.
    gathered: u16,
    /// Number of completions to await before the next command.
    awaited: u16,
    slots: Vec<Slot>,
    free: Vec<u16>,
    result: JobResult,
    /// Length of a slice in nanoseconds; the largest number: the recording has one slice, which is the whole.
    slice_ns: u64,
    alike: Alike,
}

/// The last latencies, which are equal and not recorded yet: the clock is read once per turn, so commands
/// that were sent in the same turn and completed in the same turn have equal latencies.
#[derive(Clone, Copy, Debug, Default)]
struct Alike {
    write: bool,
    slice: u64,
    ns: u64,
    count: u64,
}

/// One span of the workload: this queue's part of it, and the position of the queue in it.
#[derive(Debug)]
struct Area {
    span: Span,
    extent: Extent,
    order: Order,
    cursor: u64,
    /// State of each unit, in verification only.
    units: Vec<Unit>,
}

/// The order in which an area's units are visited.
#[derive(Debug)]
enum Order {
    Sequential,
    Anywhere,
    /// All units in a random order, then all of them in another.
    Map {
        order: Permutation,
        next: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Issues commands of the workload.
    Running,
    /// Issues no new commands; commands in flight finish.
    Draining,
    /// Reads and checks all written blocks.
    ReadBack,
    /// Done.
    Finished,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    area: u16,
    unit: u64,
    write: bool,
    /// When it was issued, or was due (open loop), in nanoseconds from the start.
    since_ns: u64,
}

/// The time since the start. A driver gives the same time throughout a turn, so the conversion is done once
/// for all.
#[derive(Clone, Copy, Debug)]
struct Clock {
    start: Instant,
    now: Instant,
    now_ns: u64,
}

impl Clock {
    fn new(start: Instant) -> Self {
        Self { start, now: start, now_ns: 0 }
    }

    /// Nanoseconds from the start to `at`, 0 if that is before it.
    fn ns_at(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.start);
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }

    /// The same for the present time.
    #[inline]
    fn tick(&mut self, now: Instant) -> u64 {
        if now != self.now {
            (self.now, self.now_ns) = (now, self.ns_at(now));
        }
        self.now_ns
    }
}

/// The state of a unit in verification: whether a command is in flight there, and how often it was written.
#[derive(Clone, Copy, Debug, Default)]
struct Unit(u32);

impl Unit {
    const BUSY: u32 = 1 << 31;

    fn is_busy(self) -> bool {
        self.0 & Self::BUSY != 0
    }

    fn set_busy(&mut self, busy: bool) {
        self.0 = if busy { self.0 | Self::BUSY } else { self.0 & !Self::BUSY };
    }

    /// The number of the last write; 0: not written in this run.
    fn generation(self) -> u32 {
        self.0 & !Self::BUSY
    }

    /// Counts a write; after 2^31 writes it begins at 1 again.
    fn written(&mut self) {
        let next = self.generation() + 1;
        self.0 = (self.0 & Self::BUSY) | if next == Self::BUSY { 1 } else { next };
    }
}

impl Area {
    fn new(workload: &Workload, config: &JobConfig, span: Span) -> Result<Self, JobConfigError> {
        let (queue, queues, depth) = (config.queue, config.queues, config.depth);
        let extent = workload.extent(&span, queue, queues);
        if extent.units == 0 {
            return Err(JobConfigError::RangeTooSmall { units: span.units(), queues });
        }
        let units = if workload.verify { check_verify(span, extent, depth)? } else { 0 };
        let order = match workload.mode.access() {
            Access::Sequential => Order::Sequential,
            Access::Random if workload.random_map => Order::Map {
                order: Permutation::new(extent.units, mix(workload.seed ^ mix(config.stream))),
                next: 0,
            },
            Access::Random => Order::Anywhere,
        };
        Ok(Self { span, extent, order, cursor: 0, units: vec![Unit::default(); units] })
    }

    /// The unit for the next command. In verification this is a unit without a command in flight: there are
    /// at least as many units as slots, and a slot is free. So when a random map begins again, a unit that
    /// is still in flight gives way to its neighbour.
    fn choose_unit(&mut self, random: &mut Random) -> u64 {
        let mut unit = match &mut self.order {
            Order::Sequential => self.cursor,
            Order::Anywhere => random.below(self.extent.units),
            Order::Map { order, next } => {
                if *next == self.extent.units {
                    *order = Permutation::new(self.extent.units, random.next_u64());
                    *next = 0;
                }
                *next += 1;
                order.get(*next - 1)
            }
        };
        while self.unit(unit).is_some_and(Unit::is_busy) {
            unit = self.after(unit);
        }
        self.cursor = self.after(unit);
        unit
    }

    /// The unit after `unit`, cyclically; without a division.
    fn after(&self, unit: u64) -> u64 {
        if unit + 1 == self.extent.units { 0 } else { unit + 1 }
    }

    /// The first unit, from the cursor on, that this run has written.
    fn peek_written(&self) -> Option<u64> {
        let from = usize::try_from(self.cursor).ok()?;
        let rest = self.units.get(from..)?;
        let skip = rest.iter().position(|unit| unit.generation() != 0)?;
        u64::try_from(from + skip).ok()
    }

    fn slba(&self, unit: u64) -> u64 {
        self.extent.first_block + unit * u64::from(self.span.blocks_per_io)
    }

    fn block_size(&self) -> usize {
        usize::try_from(self.span.block_size).unwrap_or(usize::MAX)
    }

    fn unit(&self, unit: u64) -> Option<Unit> {
        self.units.get(usize::try_from(unit).ok()?).copied()
    }

    fn unit_mut(&mut self, unit: u64) -> Option<&mut Unit> {
        self.units.get_mut(usize::try_from(unit).ok()?)
    }
}

impl QueueJob {
    /// A job that has issued nothing yet. Allocates all memory that it will need.
    ///
    /// # Errors
    /// When the workload does not fit its range.
    pub fn new(config: JobConfig) -> Result<Self, JobConfigError> {
        let workload = &config.workload;
        let no_blocks = workload.spans.iter().any(|span| span.blocks_per_io == 0);
        if no_blocks || workload.spans.is_empty() || config.depth == 0 || config.queues == 0 {
            return Err(JobConfigError::Nothing);
        }
        if config.runtime.is_none() && config.commands.is_none() {
            return Err(JobConfigError::Endless);
        }
        let area = |span: &Span| Area::new(workload, &config, *span);
        let areas = workload.spans.iter().map(area).collect::<Result<Vec<Area>, _>>()?;
        let JobConfig { workload, queue, queues, stream, depth, batch, start, .. } = config;
        let measure_from = start + config.ramp;
        let clock = Clock::new(start);
        let end = config.runtime.map(|runtime| measure_from + runtime);
        let result = JobResult {
            read: Latencies::new(),
            write: Latencies::new(),
            missed: 0,
            beyond_end: Duration::ZERO,
            verified: 0,
            measured: Duration::ZERO,
            slices: Vec::new(),
            late: None,
            error: None,
        };
        let slice = config.slice.map(|slice| u64::try_from(slice.as_nanos()).unwrap_or(u64::MAX));
        Ok(Self {
            read_percent: workload.mode.read_percent(workload.mixed_read_percent),
            start,
            started: false,
            clock,
            measure_from,
            measure_from_ns: clock.ns_at(measure_from),
            end,
            end_ns: end.map_or(u64::MAX, |end| clock.ns_at(end)),
            left: config.commands,
            phase: Phase::Running,
            pacer: workload.rate_iops.map(|rate| Pacer::new(start, rate, queue, queues)),
            random: Random::new(mix(workload.seed ^ mix(stream))),
            areas,
            turn: 0,
            batch,
            gathered: 0,
            awaited: 0,
            slots: vec![Slot { area: 0, unit: 0, write: false, since_ns: 0 }; usize::from(depth)],
            free: (0..depth).rev().collect(),
            workload,
            result,
            slice_ns: slice.map_or(u64::MAX, |slice| slice.max(1)),
            alike: Alike::default(),
        })
    }

    /// The next command to issue at `now`, if any.
    #[inline]
    pub fn poll_issue(&mut self, now: Instant) -> Option<Issue> {
        let now_ns = self.clock.tick(now);
        self.advance_at(now, now_ns);
        if !self.started {
            self.started = now >= self.start;
            self.result.late = now.checked_duration_since(self.measure_from);
        }
        let slot = *self.free.last().filter(|_| self.started)?;
        let (area, unit, write, since_ns) = match self.phase {
            Phase::Running if self.awaited > 0 || self.left == Some(0) => return None,
            Phase::Running => {
                let since_ns = match &mut self.pacer {
                    Some(pacer) => self.clock.ns_at(pacer.take(now)?),
                    None => now_ns,
                };
                let write = match self.read_percent {
                    100 => false,
                    percent => !self.random.percent(percent),
                };
                let area = self.turn;
                self.turn = if area + 1 == self.areas.len() { 0 } else { area + 1 };
                (area, self.areas[area].choose_unit(&mut self.random), write, since_ns)
            }
            Phase::ReadBack => {
                let (area, unit) = self.next_written()?;
                (area, unit, false, now_ns)
            }
            Phase::Draining | Phase::Finished => return None,
        };
        self.free.pop();
        let span = u16::try_from(area).unwrap_or(u16::MAX);
        self.slots[usize::from(slot)] = Slot { area: span, unit, write, since_ns };
        let area = &mut self.areas[area];
        if let Some(state) = area.unit_mut(unit) {
            state.set_busy(true);
            if write {
                state.written();
            }
        }
        let (slba, block_count) = (area.slba(unit), area.span.blocks_per_io);
        let flush = self.count_issue();
        Some(Issue { slot, span, write, flush, slba, block_count })
    }

    /// Counts an issued command; gives whether its batch ends with it.
    fn count_issue(&mut self) -> bool {
        if self.phase == Phase::Running
            && let Some(left) = &mut self.left
        {
            *left -= 1;
        }
        if self.free.is_empty() {
            self.awaited = self.batch.awaited(u16::try_from(self.slots.len()).unwrap_or(u16::MAX));
        }
        self.gathered += 1;
        let full = self.free.is_empty() || self.left == Some(0);
        let ends = self.batch.submit.is_some_and(|most| full || self.gathered >= most);
        if ends || self.batch.submit.is_none() {
            self.gathered = 0;
        }
        ends
    }

    /// Puts the data of a write into its buffer, in verification only: otherwise the data do not matter.
    pub fn fill(&self, slot: u16, data: &mut [u8]) {
        let Slot { area, unit, .. } = self.slots[usize::from(slot)];
        let area = &self.areas[usize::from(area)];
        if let Some(state) = area.unit(unit) {
            let (block_size, slba) = (area.block_size(), area.slba(unit));
            pattern::fill(data, block_size, slba, self.workload.seed, state.generation());
        }
    }

    /// Handles a finished read with these data.
    #[inline]
    pub fn handle_read(&mut self, now: Instant, slot: u16, data: &[u8]) {
        let Slot { area, unit, .. } = self.slots[usize::from(slot)];
        let area = &self.areas[usize::from(area)];
        if let Some(state) = area.unit(unit) {
            // A workload without writes checks the blocks of an earlier run; a workload with writes knows
            // nothing about blocks that it has not written yet.
            let known = (state.generation() != 0).then_some(state.generation());
            if known.is_some() || self.read_percent == 100 {
                let (block_size, slba) = (area.block_size(), area.slba(unit));
                match pattern::check(data, block_size, slba, self.workload.seed, known) {
                    Ok(()) => self.result.verified += 1,
                    Err(mismatch) => self.fail(now, JobError::Mismatch(mismatch)),
                }
            }
        }
        self.finish_slot(now, slot);
    }

    /// Handles a finished write.
    #[inline]
    pub fn handle_written(&mut self, now: Instant, slot: u16) {
        self.finish_slot(now, slot);
    }

    /// Handles a failed command. The job ends: blocks after a failed write cannot be verified, and the
    /// figures of a run with failures mean nothing.
    pub fn handle_failed(&mut self, now: Instant, slot: u16, why: String) {
        self.fail(now, JobError::Io(why));
        self.release(slot);
        self.advance(now);
    }

    /// Ends the run now, as if its time were over.
    pub fn stop(&mut self, now: Instant) {
        self.end_by(now);
        self.advance(now);
    }

    /// Ends the job at once because the queue is gone: commands in flight will not complete.
    pub fn abandon(&mut self, now: Instant, why: String) {
        self.fail(now, JobError::Io(why));
        self.phase = Phase::Finished;
    }

    /// When to call [`QueueJob::poll_issue`] next even if nothing completes before.
    #[must_use]
    pub fn wake_at(&self) -> Option<Instant> {
        match (self.phase, &self.pacer) {
            (Phase::Running, _) if !self.started => Some(self.start),
            (Phase::Running, Some(pacer)) if !self.free.is_empty() && self.awaited == 0 => {
                self.end.into_iter().chain([pacer.next_due()]).min()
            }
            (Phase::Running, _) => self.end,
            _ => None,
        }
    }

    /// Whether nothing is left to do.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.phase == Phase::Finished
    }

    /// Most commands in flight.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.slots.len()
    }

    /// Commands in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// The records of the job.
    #[must_use]
    pub fn into_result(mut self) -> JobResult {
        self.record_alike();
        self.result
    }

    /// Changes the state when the time is over, the last command in flight is done, or all blocks are read
    /// back.
    fn advance(&mut self, now: Instant) {
        let now_ns = self.clock.tick(now);
        self.advance_at(now, now_ns);
    }

    /// Inline, because most calls change nothing.
    #[inline(always)]
    fn advance_at(&mut self, now: Instant, now_ns: u64) {
        let goes_on = self.phase == Phase::Running && now_ns < self.end_ns && self.left != Some(0);
        if !goes_on {
            self.change_phase(now);
        }
    }

    fn change_phase(&mut self, now: Instant) {
        if self.phase == Phase::Running {
            if let Some(end) = self.end.filter(|&end| now >= end) {
                self.result.measured = end.saturating_duration_since(self.measure_from);
                self.result.missed =
                    self.pacer.as_ref().map_or(0, |pacer| pacer.missed_before(end));
                self.phase = Phase::Draining;
            } else if self.left == Some(0) && self.in_flight() == 0 {
                // All its commands are done: its measured time ends with the last completion.
                self.result.measured = now.saturating_duration_since(self.measure_from);
                self.phase = Phase::Draining;
            }
        }
        if self.phase == Phase::Draining && self.in_flight() == 0 {
            self.areas.iter_mut().for_each(|area| area.cursor = 0);
            self.turn = 0;
            let failed = self.result.error.is_some();
            self.phase = if failed { Phase::Finished } else { Phase::ReadBack };
        }
        if self.phase == Phase::ReadBack && self.in_flight() == 0 && self.peek_written().is_none() {
            self.phase = Phase::Finished;
        }
    }

    fn end_by(&mut self, now: Instant) {
        let end = self.end.map_or(now, |end| end.min(now));
        (self.end, self.end_ns) = (Some(end), self.clock.ns_at(end));
    }

    fn fail(&mut self, now: Instant, error: JobError) {
        self.result.error.get_or_insert(error);
        match self.phase {
            Phase::Running => self.end_by(now),
            Phase::ReadBack => self.phase = Phase::Draining,
            Phase::Draining | Phase::Finished => {}
        }
        self.advance(now);
    }

    #[inline(always)]
    fn finish_slot(&mut self, now: Instant, slot: u16) {
        let Slot { write, since_ns, .. } = self.slots[usize::from(slot)];
        let now_ns = self.clock.tick(now);
        // Closed loop: commands that complete in the window count, as in fio. Open loop: commands that were
        // due in the window count, however late they are; otherwise the worst latencies would be left out.
        let counts = match self.pacer {
            None => now_ns >= self.measure_from_ns && now_ns <= self.end_ns,
            Some(_) => since_ns >= self.measure_from_ns && since_ns < self.end_ns,
        };
        let of_workload = matches!(self.phase, Phase::Running | Phase::Draining);
        let ns = now_ns.saturating_sub(since_ns);
        if of_workload && !counts && now_ns > self.end_ns {
            self.result.beyond_end = self.result.beyond_end.max(Duration::from_nanos(ns));
        }
        if of_workload && counts {
            let slice = match self.slice_ns {
                u64::MAX => 0,
                slice_ns => {
                    let counted_at = if self.pacer.is_some() { since_ns } else { now_ns };
                    (counted_at - self.measure_from_ns) / slice_ns
                }
            };
            if (ns, write, slice) != (self.alike.ns, self.alike.write, self.alike.slice) {
                self.record_alike();
                self.alike = Alike { write, slice, ns, count: 0 };
            }
            self.alike.count += 1;
        }
        self.release(slot);
        self.advance_at(now, now_ns);
    }

    fn record_alike(&mut self) {
        let Alike { write, slice, ns, count } = std::mem::take(&mut self.alike);
        let side = if write { &mut self.result.write } else { &mut self.result.read };
        side.record_ns(ns, count);
        if self.slice_ns != u64::MAX && count > 0 {
            let at = usize::try_from(slice).unwrap_or(usize::MAX).min(SLICES_MAX - 1);
            if self.result.slices.len() <= at {
                self.result.slices.resize_with(at + 1, Slice::default);
            }
            self.result.slices[at].side(write).record_ns(ns, count);
        }
    }

    #[inline]
    fn release(&mut self, slot: u16) {
        debug_assert!(!self.free.contains(&slot), "slot {slot} completed twice");
        let Slot { area, unit, .. } = self.slots[usize::from(slot)];
        if let Some(state) = self.areas[usize::from(area)].unit_mut(unit) {
            state.set_busy(false);
        }
        self.free.push(slot);
        self.awaited = self.awaited.saturating_sub(1);
    }

    fn next_written(&mut self) -> Option<(usize, u64)> {
        let (area, unit) = self.peek_written()?;
        self.turn = area;
        self.areas[area].cursor = unit + 1;
        Some((area, unit))
    }

    /// The first unit, from the position of reading back on, that this run has written.
    fn peek_written(&self) -> Option<(usize, u64)> {
        let areas = self.areas.iter().enumerate().skip(self.turn);
        areas.into_iter().find_map(|(index, area)| Some((index, area.peek_written()?)))
    }
}

/// The number of units that verification has to remember.
fn check_verify(span: Span, extent: Extent, depth: u16) -> Result<usize, JobConfigError> {
    let block_size = span.block_size;
    if usize::try_from(block_size).is_ok_and(|size| size < pattern::HEADER_LEN) {
        return Err(JobConfigError::BlockTooSmall(block_size));
    }
    if extent.units < u64::from(depth) {
        return Err(JobConfigError::RangeBelowDepth { units: extent.units, depth });
    }
    let units = span.units();
    if units > VERIFY_UNITS_MAX {
        return Err(JobConfigError::RangeTooLarge { units });
    }
    usize::try_from(extent.units).map_err(|_| JobConfigError::RangeTooLarge { units })
}

#[cfg(test)]
mod tests;
