//! Queues that the program's threads share: which thread sends and receives, and the cost of a submission.
//!
//! `share` has a number of 4 KiB reads in flight, usually one, from one thread on the host's core. That thread
//! sends each or hands it to the worker. The thread receives its end, polls for it while the worker receives, or
//! waits for it; or one call of the blocking face does all that, which has one read in flight. Hand-offs and
//! voluntary context switches are counted for the whole process; the target polls and so makes none. In `submit`,
//! four threads submit bursts to one queue that a fifth thread drives. Only the time in the calls counts: by the
//! wall clock, which goes on while a thread does not run, and by the clock of the thread, which does not.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use raceline_host::blocking::Host;
use raceline_host::caller::{Finished, Memory, Operation};
use raceline_host::{
    CallerHost, HostError, Pending, Poller, SharedError, SharedOptions, SharedQueues,
};
use raceline_proto::nvme::NamespaceId;
use raceline_reactor::Mode;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

use super::bed::Bed;
use super::report::{Cell, Row, Section, Unit};
use super::{HostBenchConfig, HostBenchError, Round};
use crate::histogram::Latencies;
use crate::limit::report::median;
use crate::random::Random;

pub(super) const NSID: NamespaceId = NamespaceId(1);
pub(super) const IO_BYTES: usize = 4096;
/// Threads of the program that submit to one queue.
const SUBMITTERS: usize = 4;
/// Operations that each of them submits before it waits for all of them.
const BURST: usize = 16;
/// Reads of a clock, of which the fastest gives the cost of a read.
const CLOCK_LOOKS: usize = 100;

/// Which thread sends and which receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Path {
    /// The thread sends and receives.
    DirectAndPoll,
    /// The thread sends; the worker receives and wakes it.
    DirectAndWait,
    /// The worker sends and receives; the thread polls for the end.
    HandedOffAndLook,
    /// The thread calls the blocking face.
    Blocking,
    /// The worker sends and receives, and wakes the thread.
    HandedOffAndWait,
}

/// The path that has one operation in flight whatever the depth is.
pub const PATH_OF_DEPTH_1: &str = PATHS[Path::Blocking as usize];

/// The names of the paths, in the order of [`Path`].
pub const PATHS: [&str; Path::ALL.len()] = [
    "sends itself, polls",
    "sends itself, is woken",
    "hands off, looks for the end",
    "blocking face",
    "hands off, is woken",
];

/// The objects that a path needs.
enum Means {
    Shared(SharedQueues),
    Blocking(Host),
}

impl Path {
    const ALL: [Self; 5] = [
        Self::DirectAndPoll,
        Self::DirectAndWait,
        Self::HandedOffAndLook,
        Self::Blocking,
        Self::HandedOffAndWait,
    ];

    fn name(self) -> &'static str {
        PATHS[self as usize]
    }

    /// The paths that can have this many operations in flight.
    fn of_depth(depth: u16) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(move |path| depth == 1 || *path != Self::Blocking)
    }
}

/// The results of one path in one run.
struct Run {
    latencies: Latencies,
    measured: Duration,
    /// NaN if hand-offs are not counted.
    handed_off_per_io: f64,
    switches_per_io: f64,
}

/// The depth of the settings, by all paths that can have it.
pub(super) fn measure(bed: &Bed<'_>) -> Result<Section, HostBenchError> {
    let before = pin(bed.config.host_core);
    let rounds = measure_paths(bed);
    unpin(before);
    let rounds = rounds?;
    let over = |path: usize, what: &dyn Fn(&Run) -> f64| -> Vec<f64> {
        rounds.iter().map(|round| what(&round.runs[path])).collect()
    };
    let depth = bed.config.depth;
    let last = Path::of_depth(depth).count() - 1;
    let rows = Path::of_depth(depth).enumerate().map(|(index, path)| Row {
        label: path.name().to_owned(),
        cells: vec![
            Cell::new(
                "IOPS",
                Unit::Rate,
                over(index, &|run| run.latencies.count() as f64 / run.measured.as_secs_f64()),
            ),
            Cell::new("mean us", Unit::Micros, over(index, &|run| run.latencies.mean_ns())),
            Cell::new(
                "P99 us",
                Unit::Micros,
                over(index, &|run| run.latencies.percentile_ns(99.0) as f64),
            ),
            Cell::new(
                "mean / hands off, is woken",
                Unit::Ratio,
                rounds.iter().map(|round| {
                    round.runs[index].latencies.mean_ns() / round.runs[last].latencies.mean_ns()
                }),
            ),
            Cell::new("hand-offs per I/O", Unit::PerIo, over(index, &|run| run.handed_off_per_io)),
            Cell::new(
                "context switches per I/O",
                Unit::PerIo,
                over(index, &|run| run.switches_per_io),
            ),
        ],
    });
    Ok(Section {
        case: "share",
        title: format!(
            "{IO_BYTES} B reads at depth {depth} on shared queues, thread and worker on one core"
        ),
        rows: rows.collect(),
    })
}

fn measure_paths(bed: &Bed<'_>) -> Result<Vec<Round<Run>>, HostBenchError> {
    let host = CallerHost::connect(bed.host_config(4)).map_err(failed("connecting"))?;
    let mut ways = Vec::with_capacity(Path::ALL.len());
    for path in Path::of_depth(bed.config.depth) {
        if path == Path::Blocking {
            let host = Host::connect(bed.host_config(1)).map_err(failed(path.name()))?;
            ways.push((path, Means::Blocking(host)));
            continue;
        }
        let direct_send = matches!(path, Path::DirectAndPoll | Path::DirectAndWait);
        let options =
            SharedOptions { mode: Mode::Interrupt, direct_send, ..SharedOptions::default() };
        let queues = SharedQueues::open(&host, &options).map_err(failed(path.name()))?;
        ways.push((path, Means::Shared(queues)));
    }
    let blocks = Blocks::of(&host)?;
    let rounds = bed.rounds_of(ways.len(), |index| {
        let (path, means) = &ways[index];
        let run = match means {
            Means::Shared(queues) => run_shared(bed, *path, queues, &blocks),
            Means::Blocking(host) => run_blocking(bed, host, &blocks),
        };
        run.map_err(|why| HostBenchError::Command { way: path.name().to_owned(), why })
    })?;
    drop(ways);
    host.disconnect();
    Ok(rounds)
}

fn run_shared(
    bed: &Bed<'_>,
    path: Path,
    queues: &SharedQueues,
    blocks: &Blocks,
) -> Result<Run, String> {
    let mut poller = (path == Path::DirectAndPoll).then(|| queues.poller());
    let mut meter = Meter::new(bed.config, || queues.totals().handed_off as f64);
    let mut random = Random::new(bed.config.seed);
    let failed = |error: SharedError| error.to_string();
    let mut under_way = VecDeque::with_capacity(bed.config.depth.into());
    let mut memories: Vec<Memory> =
        (0..bed.config.depth).map(|_| Memory::from(vec![0; IO_BYTES])).collect();
    while !meter.is_over() {
        while let Some(memory) = memories.pop() {
            let operation = Operation::Read { nsid: NSID, slba: blocks.pick(&mut random), memory };
            let submitted = Instant::now();
            let pending = match &mut poller {
                Some(poller) => poller.submit(operation),
                None => queues.submit(operation),
            };
            let pending = pending.map_err(|error| SharedError::from(error).to_string())?;
            under_way.push_back((submitted, pending));
        }
        let Some((submitted, pending)) = under_way.pop_front() else { break };
        let finished = finish(path, poller.as_mut(), pending).map_err(failed)?;
        meter.record(submitted);
        memories.push(finished.memory.unwrap_or_else(|| Memory::from(vec![0; IO_BYTES])));
    }
    let run = meter.end();
    for (_, pending) in under_way {
        finish(path, poller.as_mut(), pending).map_err(failed)?;
    }
    Ok(run)
}

fn run_blocking(bed: &Bed<'_>, host: &Host, blocks: &Blocks) -> Result<Run, String> {
    let mut meter = Meter::new(bed.config, || f64::NAN);
    let mut random = Random::new(bed.config.seed);
    let mut buf = vec![0; IO_BYTES];
    while !meter.is_over() {
        let submitted = Instant::now();
        let read = host.read(NSID, blocks.pick(&mut random), &mut buf);
        read.map_err(|error| error.to_string())?;
        meter.record(submitted);
    }
    Ok(meter.end())
}

/// The times and counts of a run.
struct Meter<F> {
    ramp: Duration,
    time: Duration,
    begun: Instant,
    /// Counts the hand-offs so far.
    handed_off: F,
    /// When the ramp was over, with the hand-offs and the context switches until then.
    counted: Option<(Instant, f64, u64)>,
    latencies: Latencies,
}

impl<F: Fn() -> f64> Meter<F> {
    fn new(config: &HostBenchConfig, handed_off: F) -> Self {
        Self {
            ramp: config.ramp,
            time: config.time,
            begun: Instant::now(),
            handed_off,
            counted: None,
            latencies: Latencies::new(),
        }
    }

    /// Whether the run is over; the end of the ramp is noted here.
    fn is_over(&mut self) -> bool {
        let now = Instant::now();
        let since = now - self.begun;
        if since >= self.ramp && self.counted.is_none() {
            self.counted = Some((now, (self.handed_off)(), context_switches()));
        }
        since >= self.ramp + self.time
    }

    /// Records an operation that was submitted at this time and is done now, unless the ramp still goes on.
    fn record(&mut self, submitted: Instant) {
        if self.counted.is_some() {
            self.latencies.record(submitted.elapsed());
        }
    }

    fn end(self) -> Run {
        let (since, handed_off, switches) = self.counted.unwrap_or((self.begun, 0.0, 0));
        let count = self.latencies.count().max(1) as f64;
        Run {
            measured: since.elapsed(),
            handed_off_per_io: ((self.handed_off)() - handed_off) / count,
            switches_per_io: context_switches().saturating_sub(switches) as f64 / count,
            latencies: self.latencies,
        }
    }
}

/// Waits for an operation, as the path does.
fn finish(
    path: Path,
    poller: Option<&mut Poller>,
    pending: Pending,
) -> Result<Finished, SharedError> {
    match poller {
        Some(poller) => poller.wait(pending),
        None if path == Path::HandedOffAndLook => look(pending),
        None => pending.wait(),
    }
}

/// Polls until the end is there. The worker shares the core, so the loop must yield to it.
fn look(mut pending: Pending) -> Result<Finished, SharedError> {
    loop {
        match pending.try_take() {
            Some(end) => return end,
            None => std::thread::yield_now(),
        }
    }
}

/// Four threads and one queue.
pub(super) fn measure_submit(bed: &Bed<'_>) -> Result<Section, HostBenchError> {
    let host = CallerHost::connect(bed.host_config(1)).map_err(failed("connecting"))?;
    let queues = SharedQueues::open(&host, &SharedOptions::default()).map_err(failed("opening"))?;
    let blocks = Blocks::of(&host)?;
    let rounds = bed.rounds_of(1, |_| {
        let (config, stop) = (bed.config, AtomicBool::new(false));
        let mut poller = queues.poller();
        let bursts = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..SUBMITTERS as u64)
                .map(|thread| {
                    let (queues, stop, blocks) = (queues.clone(), &stop, &blocks);
                    scope.spawn(move || submit_bursts(&queues, blocks, config.seed + thread, stop))
                })
                .collect();
            let begin = Instant::now();
            while begin.elapsed() < config.ramp + config.time {
                poller.poll();
            }
            stop.store(true, Ordering::Relaxed);
            while threads.iter().any(|thread| !thread.is_finished()) {
                poller.poll();
            }
            let joined = threads.into_iter().map(|thread| thread.join());
            joined.collect::<Result<Vec<_>, _>>()
        });
        let crashed = || HostBenchError::Command {
            way: "submit".to_owned(),
            why: "a thread panicked".to_owned(),
        };
        let mut all = Vec::new();
        for burst in bursts.map_err(|_| crashed())? {
            let why = |error: SharedError| HostBenchError::Command {
                way: "submit".to_owned(),
                why: error.to_string(),
            };
            all.extend(burst.map_err(why)?);
        }
        Ok(all)
    })?;
    drop(queues);
    host.disconnect();
    let cell = |column, what: fn(&[Burst]) -> f64| {
        Cell::new(column, Unit::Micros, rounds.iter().map(|round| what(&round.runs[0])))
    };
    let cells = vec![
        cell("median us per submission", |bursts| {
            let mut times: Vec<f64> = bursts.iter().map(|burst| burst.wall_ns).collect();
            times.sort_by(f64::total_cmp);
            median(&times)
        }),
        cell("mean us per submission", |bursts| mean(bursts.iter().map(|burst| burst.wall_ns))),
        cell("mean us of CPU time", |bursts| mean(bursts.iter().map(|burst| burst.cpu_ns))),
    ];
    let label = format!("{SUBMITTERS} threads, 1 queue");
    Ok(Section {
        case: "submit",
        title: format!(
            "submissions from threads that do not drive the queue, in bursts of {BURST}; the mean has the times in which a thread did not run"
        ),
        rows: vec![Row { label, cells }],
    })
}

/// Mean times for the submission of a burst, in nanoseconds.
#[derive(Clone, Copy)]
struct Burst {
    wall_ns: f64,
    /// Time by the thread's clock, less the cost of reading that clock.
    cpu_ns: f64,
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len().max(1) as f64;
    values.sum::<f64>() / count
}

/// The processor time that the calling thread has used, in nanoseconds.
fn thread_time_ns() -> i64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// The time that [`thread_time_ns`] itself adds between two reads.
fn look_ns() -> i64 {
    let look = |_| {
        let before = thread_time_ns();
        thread_time_ns() - before
    };
    (0..CLOCK_LOOKS).map(look).min().unwrap_or(0)
}

/// Submits bursts until told to stop.
fn submit_bursts(
    queues: &SharedQueues,
    blocks: &Blocks,
    seed: u64,
    stop: &AtomicBool,
) -> Result<Vec<Burst>, SharedError> {
    let look_ns = look_ns();
    let mut random = Random::new(seed);
    let mut memories: Vec<Memory> =
        (0..BURST).map(|_| Memory::from(vec![0; blocks.block_bytes])).collect();
    let mut operations = Vec::with_capacity(BURST);
    let mut pending = Vec::with_capacity(BURST);
    let mut took = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        operations.extend(memories.drain(..).map(|memory| {
            let slba = blocks.pick(&mut random);
            Operation::Read { nsid: NSID, slba, memory }
        }));
        let cpu_before_ns = thread_time_ns();
        let begin = Instant::now();
        for operation in operations.drain(..) {
            pending.push(queues.submit(operation)?);
        }
        let wall = begin.elapsed();
        let cpu_ns = (thread_time_ns() - cpu_before_ns - look_ns).max(0);
        took.push(Burst {
            wall_ns: wall.as_nanos() as f64 / BURST as f64,
            cpu_ns: cpu_ns as f64 / BURST as f64,
        });
        for pending in pending.drain(..) {
            let finished = look(pending)?;
            let memory = finished.memory;
            memories.push(memory.unwrap_or_else(|| Memory::from(vec![0; blocks.block_bytes])));
        }
    }
    Ok(took)
}

/// The addresses to read.
pub(super) struct Blocks {
    block_bytes: usize,
    per_io: u64,
    ios: u64,
}

impl Blocks {
    pub(super) fn of(host: &CallerHost) -> Result<Self, HostBenchError> {
        let none = || HostBenchError::Command {
            way: "share".to_owned(),
            why: "the target has no namespace 1".to_owned(),
        };
        let info = host.admin().namespace(NSID).ok_or_else(none)?;
        let block_bytes = usize::try_from(info.block_size).unwrap_or(IO_BYTES);
        let per_io = (IO_BYTES / block_bytes).max(1) as u64;
        Ok(Self { block_bytes, per_io, ios: (info.block_count / per_io).max(1) })
    }

    pub(super) fn pick(&self, random: &mut Random) -> u64 {
        random.below(self.ios) * self.per_io
    }
}

pub(super) fn failed(way: &'static str) -> impl Fn(HostError) -> HostBenchError {
    move |error| HostBenchError::Command { way: way.to_owned(), why: error.to_string() }
}

/// Voluntary context switches of all threads so far.
pub(super) fn context_switches() -> u64 {
    let of = |entry: std::fs::DirEntry| -> Option<u64> {
        let status = std::fs::read_to_string(entry.path().join("status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        line.trim().parse().ok()
    };
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    tasks.filter_map(of).sum()
}

/// Binds the calling thread, and threads that it starts, to a core if possible.
pub(super) fn pin(core: usize) -> Option<CpuSet> {
    let before = sched_getaffinity(None).ok()?;
    let mut one = CpuSet::new();
    one.set(core);
    sched_setaffinity(None, &one).ok()?;
    Some(before)
}

pub(super) fn unpin(before: Option<CpuSet>) {
    if let Some(before) = before
        && let Err(error) = sched_setaffinity(None, &before)
    {
        tracing::warn!(%error, "this thread stays on its core");
    }
}
