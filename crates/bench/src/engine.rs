//! Runs jobs over NVMe/TCP: one reactor per core, the queues dealt out to them.
//!
//! The calling thread coordinates: it waits until every queue is connected, gives all cores one
//! common start, samples the CPU time, and collects the results.

mod core;

use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use raceline_accel::Framework;
use raceline_host::{Association, HostConfig, HostError, NamespaceInfo, QueueCounters};
use raceline_proto::nvme::NamespaceId;
use raceline_reactor::{Backend, Mode, PoolConfig, Reactor, ReactorConfig, ReactorHandle};

use crate::cost::{Cost, Counts, Meter, Usage};
use crate::cpu::CpuTime;
use crate::histogram::Latencies;
use crate::job::{JobConfig, JobConfigError, JobError, JobResult, QueueJob};
use crate::report::LoopCounters;
use crate::workload::{RwMode, Workload};

use self::core::{Core, CoreConfig, Event, Message};

/// How long before the common start the cores are told of it.
const START_DELAY: Duration = Duration::from_millis(5);
/// How often the coordinator looks whether it was asked to stop.
const TICK: Duration = Duration::from_millis(50);
/// Commands in flight at the end, and the disconnection, may take this long.
const DRAIN_LIMIT: Duration = Duration::from_secs(35);

/// What to run.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The controller; `io_queues` and `io_entries` are the queues that will be used.
    pub host: HostConfig,
    /// Which engine computes digests; `None`: the CPU.
    pub accel: Option<Framework>,
    /// The namespace.
    pub nsid: NamespaceId,
    /// Order and kind of the commands.
    pub mode: RwMode,
    /// Percentage of reads where `mode` is mixed.
    pub mixed_read_percent: u8,
    /// Bytes per command.
    pub io_bytes: u32,
    /// Commands in flight per queue.
    pub depth: u16,
    /// First byte that is used.
    pub offset_bytes: u64,
    /// Bytes that are used; `None` is up to the end.
    pub size_bytes: Option<u64>,
    /// The same seed gives the same addresses and the same data.
    pub seed: u64,
    /// Write blocks that can be recognised, and check what is read.
    pub verify: bool,
    /// Commands per second of all queues together (open loop).
    pub rate_iops: Option<u64>,
    /// How long it runs before anything is recorded.
    pub ramp: Duration,
    /// How long it is recorded.
    pub runtime: Duration,
    /// Cores to run on; empty is one reactor that is not pinned.
    pub cores: Vec<usize>,
    /// What a core does when it is idle.
    pub reactor_mode: Mode,
    /// How to do I/O.
    pub backend: Backend,
}

/// Why a run could not be made.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The controller cannot be reached or used.
    #[error("{0}")]
    Host(#[from] HostError),
    /// The options do not fit the namespace.
    #[error("{0}")]
    Invalid(String),
    /// The workload does not fit its range.
    #[error("{0}")]
    Workload(#[from] JobConfigError),
    /// A reactor could not start.
    #[error("cannot start a reactor: {0}")]
    Reactor(std::io::Error),
    /// A reactor ended or does not answer.
    #[error("a reactor {0}")]
    Lost(&'static str),
    /// Asked to stop before anything was measured.
    #[error("stopped before the run began")]
    Stopped,
}

/// What a run recorded, all queues together.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Latencies of reads.
    pub read: Latencies,
    /// Latencies of writes.
    pub write: Latencies,
    /// How long was recorded.
    pub measured: Duration,
    /// CPU time of this process while it was recorded.
    pub cpu: CpuTime,
    /// What the loops of the cores did while it was recorded.
    pub loops: LoopCounters,
    /// What the commands that were recorded cost this process.
    pub cost: Cost,
    /// Commands that were due and not issued before the end.
    pub missed: u64,
    /// Commands' worth of blocks read and found right.
    pub verified: u64,
    /// The first thing that went wrong.
    pub error: Option<JobError>,
    /// The namespace that was used.
    pub namespace: NamespaceInfo,
}

/// How far a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Connecting.
    Connecting,
    /// Running since this long, of this long (ramp included).
    Running(Duration, Duration),
    /// Commands in flight finish; what was written is read back.
    Finishing,
}

/// Runs the workload. `watch` is called several times a second with the progress, and ends the
/// run early by giving false.
///
/// # Errors
/// When the run cannot begin; a failure during the run is in [`Outcome::error`].
pub fn run(
    config: &EngineConfig,
    watch: &mut dyn FnMut(Progress) -> bool,
) -> Result<Outcome, EngineError> {
    Session::connect(config, watch)?.run(config.seed)
}

/// Connected queues, for one run after the other. Dropped, it disconnects.
pub struct Session<'a> {
    coordinator: Coordinator<'a>,
    config: EngineConfig,
    /// Queue identifiers of each core.
    queues: Vec<Vec<u16>>,
    namespace: NamespaceInfo,
    workload: Workload,
}

impl<'a> Session<'a> {
    /// Connects all queues; `watch` as in [`run`].
    ///
    /// # Errors
    /// When that fails, or the options do not fit the namespace.
    pub fn connect(
        config: &EngineConfig,
        watch: &'a mut dyn FnMut(Progress) -> bool,
    ) -> Result<Self, EngineError> {
        let (sender, events) = mpsc::channel();
        let mut coordinator =
            Coordinator { cores: Vec::new(), counters: Vec::new(), events, watch };
        let queues = coordinator.spawn(config, &sender)?;
        drop(sender);
        let (namespace, workload) = coordinator.bring_up(config)?;
        Ok(Self { coordinator, config: config.clone(), queues, namespace, workload })
    }

    /// Runs the workload with the addresses and data that follow from this seed.
    ///
    /// # Errors
    /// When the run cannot begin; a failure during the run is in [`Outcome::error`].
    pub fn run(&mut self, seed: u64) -> Result<Outcome, EngineError> {
        self.workload.seed = seed;
        let start = self.coordinator.begin(&self.config, &self.queues, &self.workload)?;
        self.coordinator.collect(&self.config, start, self.namespace.clone())
    }

    /// Changes what the cores do when they are idle.
    pub fn set_mode(&self, mode: Mode) {
        self.coordinator.cores.iter().for_each(|core| core.set_mode(mode));
    }
}

/// The calling thread's side of a run.
struct Coordinator<'a> {
    cores: Vec<ReactorHandle<Message>>,
    /// Of the queues of each core.
    counters: Vec<Arc<QueueCounters>>,
    events: Receiver<Event>,
    watch: &'a mut dyn FnMut(Progress) -> bool,
}

impl Coordinator<'_> {
    /// Starts the reactors; gives the queue identifiers of each.
    fn spawn(
        &mut self,
        config: &EngineConfig,
        events: &mpsc::Sender<Event>,
    ) -> Result<Vec<Vec<u16>>, EngineError> {
        let queues = deal_queues(config.host.io_queues, config.cores.len().max(1));
        for (index, qids) in queues.iter().enumerate() {
            let core = config.cores.get(index).copied();
            let io_bytes = usize::try_from(config.io_bytes).unwrap_or(usize::MAX);
            let buffers = qids.len() * usize::from(config.depth);
            let reactor = ReactorConfig {
                core,
                mode: config.reactor_mode,
                backend: config.backend,
                pool: PoolConfig::new(&[(io_bytes, buffers)]),
                accel: config.accel.clone(),
                name: format!("perf-{}", core.unwrap_or(index)),
            };
            let core = CoreConfig {
                index,
                host: config.host.clone(),
                nsid: config.nsid,
                qids: qids.clone(),
                io_bytes,
                seed: config.seed,
                events: events.clone(),
            };
            let counters = Arc::new(OnceLock::new());
            let made = Arc::clone(&counters);
            let handle = Reactor::spawn(reactor, move |cx| {
                let core = Core::new(cx, core);
                let _ = made.set(core.counters());
                Ok(core)
            });
            self.cores.push(handle.map_err(EngineError::Reactor)?);
            self.counters.extend(counters.get().cloned());
        }
        Ok(queues)
    }

    /// Waits until all queues are connected.
    fn bring_up(
        &mut self,
        config: &EngineConfig,
    ) -> Result<(NamespaceInfo, Workload), EngineError> {
        let association = self.connect()?;
        let granted = association.io_queues;
        if granted < config.host.io_queues {
            let asked = config.host.io_queues;
            return Err(EngineError::Invalid(format!(
                "the controller grants {granted} I/O queues and {asked} were asked for: use -i {granted}"
            )));
        }
        let namespace = find_namespace(&association, config.nsid)?;
        let workload = plan(config, &association, &namespace)?;
        self.broadcast(|| Message::Up(association.clone()));
        self.wait_ready()?;
        Ok((namespace, workload))
    }

    /// Gives all cores a common start.
    fn begin(
        &self,
        config: &EngineConfig,
        queues: &[Vec<u16>],
        workload: &Workload,
    ) -> Result<Instant, EngineError> {
        let start = Instant::now() + START_DELAY;
        let total = u64::from(config.host.io_queues);
        for (core, qids) in self.cores.iter().zip(queues) {
            let job = |&qid: &u16| {
                QueueJob::new(JobConfig {
                    workload: workload.clone(),
                    queue: u64::from(qid) - 1,
                    queues: total,
                    depth: config.depth,
                    start,
                    ramp: config.ramp,
                    runtime: config.runtime,
                })
            };
            let jobs = qids.iter().map(job).collect::<Result<Vec<QueueJob>, _>>()?;
            // A core that has ended is noticed by the missing results.
            let _ = core.sender().send(Message::Begin(jobs));
        }
        Ok(start)
    }

    /// Waits for the admin queue's first success or failure.
    fn connect(&mut self) -> Result<Association, EngineError> {
        loop {
            match self.next_event(TICK)? {
                Some(Event::Up(association)) => return Ok(association),
                Some(Event::Down(error) | Event::Failed(error) | Event::QueueLost(_, error)) => {
                    return Err(error.into());
                }
                Some(_) => {}
                None if !(self.watch)(Progress::Connecting) => return Err(EngineError::Stopped),
                None => {}
            }
        }
    }

    fn wait_ready(&mut self) -> Result<(), EngineError> {
        let mut ready = 0;
        while ready < self.cores.len() {
            match self.next_event(TICK)? {
                Some(Event::Ready) => ready += 1,
                Some(Event::Down(error) | Event::Failed(error) | Event::QueueLost(_, error)) => {
                    return Err(error.into());
                }
                Some(_) => {}
                None if !(self.watch)(Progress::Connecting) => return Err(EngineError::Stopped),
                None => {}
            }
        }
        Ok(())
    }

    /// Samples what has been used and done at both ends of the window and gathers the results.
    fn collect(
        &mut self,
        config: &EngineConfig,
        start: Instant,
        namespace: NamespaceInfo,
    ) -> Result<Outcome, EngineError> {
        let (measure_from, end) = (start + config.ramp, start + config.ramp + config.runtime);
        let mut outcome = empty_outcome(namespace);
        let mut window = Window::begin(config, self.sample());
        let (mut ended, mut stopped) = (None, false);
        let mut sampled_start = false;
        let mut left = self.cores.len();
        while left > 0 {
            let now = Instant::now();
            if !sampled_start && now >= measure_from {
                (window, sampled_start) = (Window::begin(config, self.sample()), true);
            }
            if ended.is_none() && (now >= end || stopped) {
                ended = Some((self.sample(), window.meter.usage()));
            }
            let next = [measure_from, end].into_iter().find(|&at| at > now);
            let wait = next.map_or(TICK, |at| TICK.min(at - now));
            match self.next_event(wait)? {
                Some(Event::Finished(results)) => {
                    left -= 1;
                    results.into_iter().for_each(|result| merge(&mut outcome, result));
                }
                Some(event) => self.pass_on(event),
                None => {
                    let progress = if ended.is_some() {
                        Progress::Finishing
                    } else {
                        Progress::Running(now.saturating_duration_since(start), end - start)
                    };
                    if !(self.watch)(progress) && !stopped {
                        stopped = true;
                        self.broadcast(|| Message::Finish);
                    }
                }
            }
        }
        let ended = ended.unwrap_or_else(|| (self.sample(), window.meter.usage()));
        window.end(&mut outcome, ended);
        Ok(outcome)
    }

    /// What has been used and done so far.
    fn sample(&self) -> Sample {
        let mut sample = Sample { cpu: CpuTime::now(), ..Sample::default() };
        for (core, counters) in self.cores.iter().zip(&self.counters) {
            let stats = core.stats().snapshot();
            sample.loops.add(LoopCounters { busy_turns: stats.busy_turns, waits: stats.waits });
            sample.counts.add(Counts::of_host(counters.totals(), &stats));
        }
        sample
    }

    /// What one core learns about the association, the others have to know.
    fn pass_on(&self, event: Event) {
        match event {
            Event::Up(association) => self.broadcast(|| Message::Up(association.clone())),
            Event::Down(error) => {
                tracing::warn!("{error}; trying to connect again");
                self.broadcast(|| Message::Down(error.clone()));
            }
            Event::Failed(error) => self.broadcast(|| Message::Failed(error.clone())),
            Event::QueueLost(cntlid, error) => {
                tracing::warn!("{error}");
                if let Some(first) = self.cores.first() {
                    let _ = first.sender().send(Message::QueueLost(cntlid, error));
                }
            }
            Event::Ready | Event::Finished(_) | Event::Closed => {}
        }
    }

    fn next_event(&self, wait: Duration) -> Result<Option<Event>, EngineError> {
        match self.events.recv_timeout(wait) {
            Ok(event) => Ok(Some(event)),
            Err(RecvTimeoutError::Timeout) if self.cores.iter().all(ReactorHandle::is_running) => {
                Ok(None)
            }
            Err(_) => Err(EngineError::Lost("ended unexpectedly")),
        }
    }

    fn broadcast(&self, message: impl Fn() -> Message) {
        for core in &self.cores {
            // A core that has ended is noticed by `next_event`.
            let _ = core.sender().send(message());
        }
    }

    /// Closes the I/O queues, then the admin queue, and waits for the threads.
    fn close(&mut self) {
        self.broadcast(|| Message::Close);
        let deadline = Instant::now() + DRAIN_LIMIT;
        let mut open = self.cores.len();
        while open > 0 && Instant::now() < deadline {
            match self.events.recv_timeout(TICK) {
                Ok(Event::Closed) => open -= 1,
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout)
                    if self.cores.iter().any(ReactorHandle::is_running) => {}
                Err(_) => break,
            }
        }
        for core in self.cores.drain(..) {
            if let Err(error) = if open == 0 { core.join() } else { Ok(()) } {
                tracing::error!("{error}");
            }
        }
    }
}

impl Drop for Coordinator<'_> {
    fn drop(&mut self) {
        self.close();
    }
}

/// What has been used and done at one time.
#[derive(Clone, Copy, Default)]
struct Sample {
    cpu: CpuTime,
    loops: LoopCounters,
    counts: Counts,
}

/// The time in which commands are recorded.
struct Window {
    begun: Sample,
    meter: Meter,
}

impl Window {
    fn begin(config: &EngineConfig, begun: Sample) -> Self {
        Self { begun, meter: Meter::start(&config.cores) }
    }

    fn end(self, outcome: &mut Outcome, (ended, usage): (Sample, Usage)) {
        outcome.cpu = ended.cpu.since(self.begun.cpu);
        outcome.loops = ended.loops.since(self.begun.loops);
        outcome.cost = Cost {
            ios: outcome.read.count() + outcome.write.count(),
            usage,
            counts: ended.counts.since(self.begun.counts),
        };
    }
}

/// Queue identifiers 1.. in turn to each core.
fn deal_queues(queues: u16, cores: usize) -> Vec<Vec<u16>> {
    let mut dealt = vec![Vec::new(); cores.min(usize::from(queues.max(1)))];
    let count = dealt.len();
    for qid in 1..=queues {
        dealt[(usize::from(qid) - 1) % count].push(qid);
    }
    dealt
}

fn find_namespace(
    association: &Association,
    nsid: NamespaceId,
) -> Result<NamespaceInfo, EngineError> {
    let found = association.namespaces.iter().find(|namespace| namespace.nsid == nsid);
    found.cloned().ok_or_else(|| {
        let known: Vec<String> =
            association.namespaces.iter().map(|ns| ns.nsid.to_string()).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        EngineError::Invalid(format!("there is no namespace {nsid}; the subsystem has {known}"))
    })
}

/// Fits the options to the namespace.
fn plan(
    config: &EngineConfig,
    association: &Association,
    namespace: &NamespaceInfo,
) -> Result<Workload, EngineError> {
    let invalid = |message: String| Err(EngineError::Invalid(message));
    let (block_size, io_bytes) = (namespace.block_size, config.io_bytes);
    if io_bytes == 0 || !io_bytes.is_multiple_of(block_size) {
        return invalid(format!(
            "--bs {io_bytes} is not a multiple of the block size {block_size}"
        ));
    }
    if let Some(max) = association.controller.max_transfer_bytes.filter(|max| io_bytes > *max) {
        return invalid(format!(
            "--bs {io_bytes} is more than the controller's largest transfer {max}"
        ));
    }
    let entries = association.max_entries.min(config.host.io_entries);
    if config.depth >= entries {
        return invalid(format!(
            "--iodepth {} needs a queue of {} entries and the controller has {entries}: use --iodepth {}",
            config.depth,
            u32::from(config.depth) + 1,
            entries.saturating_sub(1)
        ));
    }
    let writes = config.mode.read_percent(config.mixed_read_percent) < 100;
    if writes && namespace.read_only {
        return invalid(format!("namespace {} is write protected", namespace.nsid));
    }
    let block = u64::from(block_size);
    for (option, bytes) in
        [("--offset", config.offset_bytes), ("--size", config.size_bytes.unwrap_or(0))]
    {
        if !bytes.is_multiple_of(block) {
            return invalid(format!(
                "{option} {bytes} is not a multiple of the block size {block_size}"
            ));
        }
    }
    let available = namespace.size_bytes().saturating_sub(config.offset_bytes);
    let size = config.size_bytes.unwrap_or(available);
    if size > available || available == 0 {
        return invalid(format!(
            "the namespace has {} bytes, and --offset and --size reach to {}",
            namespace.size_bytes(),
            config.offset_bytes.saturating_add(size)
        ));
    }
    Ok(Workload {
        mode: config.mode,
        mixed_read_percent: config.mixed_read_percent,
        block_size,
        blocks_per_io: io_bytes / block_size,
        first_block: config.offset_bytes / block,
        block_count: size / block,
        seed: config.seed,
        verify: config.verify,
        rate_iops: config.rate_iops,
    })
}

fn empty_outcome(namespace: NamespaceInfo) -> Outcome {
    Outcome {
        read: Latencies::new(),
        write: Latencies::new(),
        measured: Duration::ZERO,
        cpu: CpuTime::default(),
        loops: LoopCounters::default(),
        cost: Cost::default(),
        missed: 0,
        verified: 0,
        error: None,
        namespace,
    }
}

fn merge(outcome: &mut Outcome, result: JobResult) {
    outcome.read.merge(&result.read);
    outcome.write.merge(&result.write);
    outcome.measured = outcome.measured.max(result.measured);
    outcome.missed += result.missed;
    outcome.verified += result.verified;
    if outcome.error.is_none() {
        outcome.error = result.error;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_dealt_out_evenly() {
        assert_eq!(deal_queues(5, 2), [vec![1, 3, 5], vec![2, 4]]);
        assert_eq!(deal_queues(1, 1), [vec![1]]);
        assert_eq!(deal_queues(2, 4), [vec![1], vec![2]]);
    }
}
