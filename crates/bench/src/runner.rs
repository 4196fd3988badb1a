//! Runs jobs over NVMe/TCP: reactors on the cores that the jobs name, which share out the queues.
//!
//! The calling thread coordinates: it waits until every queue is connected, gives all cores one
//! common start, samples the CPU time, and collects the results.

mod connect;
mod core;
mod fleet;
pub mod iscsi;
pub mod stage;
mod window;

use std::collections::HashSet;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use raceline_accel::Framework;
use raceline_host::{
    Association, HostConfig, HostError, I10Config, NamespaceInfo, PathSetEvent, QueueCounters,
};
use raceline_initiator::SessionError;
use raceline_proto::nvme::NamespaceId;
use raceline_reactor::{Backend, LoopSnapshot, Mode, PoolConfig, ReactorConfig};

use crate::cost::{Cost, Counts};
use crate::cpu::CpuTime;
use crate::histogram::Latencies;
use crate::job::{Batch, JobError, JobResult, QueueJob, Slice};
use crate::report::LoopCounters;
use crate::workload::RwMode;

use self::core::{Core, CoreConfig, Event, LoadConfig, Message, News, PathNews, PortConfig};
use self::fleet::{Fleet, Heard, Protocol};
use self::stage::{
    Cpus, FileSpec, JobSpec, Layout, Misfit, Plan, Route, Size, StageConfig, Volume, find_namespace,
};

/// How long before the common start the cores receive its time.
const START_DELAY: Duration = Duration::from_millis(5);
/// How often the coordinator checks whether the run is to stop.
const TICK: Duration = Duration::from_millis(50);
/// Time limit for commands in flight at the end, and for disconnecting.
const DRAIN_LIMIT: Duration = Duration::from_secs(35);

/// The settings of a run, for the usual case: one job on one namespace.
#[derive(Clone, Debug)]
pub struct RunConfig {
    /// The controller; `io_queues` and `io_entries` are the queues that the run uses.
    pub host: HostConfig,
    /// The engine that computes digests; `None`: the CPU.
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
    /// First byte of the range.
    pub offset_bytes: u64,
    /// Bytes of the range; `None`: up to the end.
    pub size_bytes: Option<u64>,
    /// The same seed gives the same addresses and the same data.
    pub seed: u64,
    /// Writes blocks that can be recognised, and checks the data of reads.
    pub verify: bool,
    /// Commands per second of all queues together (open loop).
    pub rate_iops: Option<u64>,
    /// How long it runs before recording.
    pub ramp: Duration,
    /// How long it records.
    pub runtime: Duration,
    /// Whether commands use poll queues, if the controller has any.
    pub polled: bool,
    /// Cores to run on; empty is one reactor that is not pinned.
    pub cores: Vec<usize>,
    /// What a core does when it is idle.
    pub reactor_mode: Mode,
    /// How to do I/O.
    pub backend: Backend,
}

impl RunConfig {
    /// The same settings as a stage of one job.
    pub(crate) fn stage(&self) -> StageConfig {
        let cores = self.cores.clone();
        let job = JobSpec {
            files: vec![FileSpec { host: 0, nsid: self.nsid }],
            mode: self.mode,
            mixed_read_percent: self.mixed_read_percent,
            io_bytes: self.io_bytes,
            depth: self.depth,
            batch: Batch::NONE,
            clones: 1,
            queues: self.host.io_queues,
            random_map: false,
            offset_bytes: self.offset_bytes,
            offset_increment_bytes: 0,
            size: self.size_bytes.map_or(Size::Rest, Size::Bytes),
            volume: Volume::Endless,
            seed: self.seed,
            verify: self.verify,
            rate_iops: self.rate_iops,
            ramp: self.ramp,
            runtime: Some(self.runtime),
            cpus: if cores.is_empty() { Cpus::Any } else { Cpus::Split(cores) },
            route: if self.host.write_queues + self.host.poll_queues > 0 {
                Route::Maps { polled: self.polled }
            } else {
                Route::Own
            },
        };
        StageConfig {
            hosts: vec![self.host.clone()],
            accel: self.accel.clone(),
            jobs: vec![job],
            exit_all: false,
            reactor_mode: self.reactor_mode,
            backend: self.backend,
        }
    }
}

/// Why a run was impossible.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The controller cannot be reached or used.
    #[error("{0}")]
    Host(#[from] HostError),
    /// The target of an iSCSI session cannot be reached or used.
    #[error("{0}")]
    Session(SessionError),
    /// The options do not fit the namespace.
    #[error("{0}")]
    Invalid(String),
    /// A job does not fit its namespaces or controllers.
    #[error("{}", .0.message)]
    Misfit(Misfit),
    /// The controller has fewer queues than the jobs need.
    #[error(
        "the controller grants {granted} I/O queues and {asked} were asked for: use -i {granted}"
    )]
    Grant {
        /// Number of queues that it grants.
        granted: u16,
        /// Number of queues that are needed.
        asked: u16,
    },
    /// A reactor could not start.
    #[error("cannot start a reactor: {0}")]
    Reactor(std::io::Error),
    /// A reactor has ended or does not answer.
    #[error("a reactor {0}")]
    Lost(&'static str),
    /// The caller asked to stop before anything was measured.
    #[error("stopped before the run began")]
    Stopped,
}

/// The records of a run, all queues together.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Latencies of reads.
    pub read: Latencies,
    /// Latencies of writes.
    pub write: Latencies,
    /// Duration of the recording.
    pub measured: Duration,
    /// CPU time of this process during the recording.
    pub cpu: CpuTime,
    /// Counts of the cores' loops during the recording.
    pub loops: LoopCounters,
    /// Cost of the recorded commands for this process.
    pub cost: Cost,
    /// Commands that were due and not issued before the end.
    pub missed: u64,
    /// The longest latency of a command that was under way at the end, and so is not among the latencies
    /// (closed loop).
    pub beyond_end: Duration,
    /// Number of commands whose blocks were read and found right.
    pub verified: u64,
    /// The first error.
    pub error: Option<JobError>,
    /// The same latencies by slice, if slices were asked for ([`Session::run_at`]).
    pub slices: Vec<Slice>,
    /// How long after the begin of the recording the last queue took up its work, if one did.
    pub late: Option<Duration>,
    /// The namespace of the run.
    pub namespace: NamespaceInfo,
}

/// When a run begins, and how its records are cut.
#[derive(Clone, Copy, Debug, Default)]
struct Moment {
    /// The start; `None`: as soon as all cores can have it.
    start: Option<Instant>,
    slice: Option<Duration>,
}

/// The records of one clone of a job, all its queues together.
#[derive(Clone, Debug)]
pub struct CloneOutcome {
    /// Position of the job in the stage.
    pub job: usize,
    /// Number of the clone, from 0.
    pub clone: u16,
    /// Latencies of reads.
    pub read: Latencies,
    /// Latencies of writes.
    pub write: Latencies,
    /// Duration of the recording.
    pub measured: Duration,
    /// Commands that were due and not issued before the end.
    pub missed: u64,
    /// The longest latency of a command that was under way at the end, and so is not among the latencies
    /// (closed loop).
    pub beyond_end: Duration,
    /// Number of commands whose blocks were read and found right.
    pub verified: u64,
    /// The first error.
    pub error: Option<JobError>,
    /// The same latencies by slice, if slices were asked for.
    pub slices: Vec<Slice>,
    /// How long after the begin of the recording the last of its queues took up its work, if one did.
    pub late: Option<Duration>,
}

/// The records of a stage.
#[derive(Clone, Debug)]
pub struct StageOutcome {
    /// Every clone of every job, in order.
    pub clones: Vec<CloneOutcome>,
    /// CPU time of this process during the recording.
    pub cpu: CpuTime,
    /// Counts of the cores' loops during the recording.
    pub loops: LoopCounters,
    /// Cost of the recorded commands for this process.
    pub cost: Cost,
    /// Time over which CPU time and loops were measured.
    pub window: Duration,
    /// How often a lost association of a path (NVMe/TCP) or a lost session (iSCSI) was made again.
    pub reconnects: u64,
}

/// The progress of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Connecting.
    Connecting,
    /// Running for the first duration, out of the second (ramp included) if that is known.
    Running(Duration, Option<Duration>),
    /// Commands in flight finish; written data are read back.
    Finishing,
}

/// Runs the workload. `watch` receives the progress several times a second, and ends the run early by
/// giving false.
///
/// # Errors
/// When the run cannot begin; a failure during the run is in [`Outcome::error`].
pub fn run(
    config: &RunConfig,
    watch: &mut dyn FnMut(Progress) -> bool,
) -> Result<Outcome, RunError> {
    Session::connect(config, watch)?.run(config.seed)
}

/// Runs the jobs of a stage at the same time; `watch` as in [`run`].
///
/// # Errors
/// When the run cannot begin; failures during the run are in [`CloneOutcome::error`].
pub fn run_stage(
    config: &StageConfig,
    watch: &mut dyn FnMut(Progress) -> bool,
) -> Result<StageOutcome, RunError> {
    Session::connect_stage(config, watch)?.run_stage()
}

/// Connected queues, for successive runs. Dropping it disconnects.
pub struct Session<'a> {
    coordinator: Coordinator<'a>,
    config: StageConfig,
    layout: Layout,
    associations: Vec<Association>,
    plans: Vec<Vec<Plan>>,
}

impl<'a> Session<'a> {
    /// Connects all queues; `watch` as in [`run`].
    ///
    /// # Errors
    /// When connecting fails, or the options do not fit the namespace.
    pub fn connect(
        config: &RunConfig,
        watch: &'a mut dyn FnMut(Progress) -> bool,
    ) -> Result<Self, RunError> {
        Self::connect_stage(&config.stage(), watch)
    }

    /// Connects all queues of a stage; `watch` as in [`run`].
    ///
    /// # Errors
    /// When connecting fails, or the jobs do not fit their namespaces.
    pub fn connect_stage(
        config: &StageConfig,
        watch: &'a mut dyn FnMut(Progress) -> bool,
    ) -> Result<Self, RunError> {
        let layout = config.layout()?;
        let mut config = config.clone();
        for (index, host) in config.hosts.iter_mut().enumerate() {
            if !layout.mapped[index] {
                host.io_queues = layout.queues[index];
                (host.write_queues, host.poll_queues) = (0, 0);
            }
        }
        let (sender, events) = mpsc::channel();
        let mut coordinator = Coordinator { fleet: Fleet::new(events), early: Vec::new(), watch };
        coordinator.spawn(&config, &layout, &sender)?;
        drop(sender);
        let (associations, plans) = coordinator.bring_up(&config, &layout)?;
        Ok(Self { coordinator, config, layout, associations, plans })
    }

    /// Runs the workload with the addresses and data of this seed, and adds up all jobs.
    ///
    /// # Errors
    /// When the run cannot begin; a failure during the run is in [`Outcome::error`].
    pub fn run(&mut self, seed: u64) -> Result<Outcome, RunError> {
        self.run_at_moment(seed, Moment::default())
    }

    /// As [`Self::run`], with the start at a fixed time, and with the latencies also by slices of this length. A core
    /// that is late begins late; its recording ends with that of the others.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn run_at(
        &mut self,
        seed: u64,
        start: Instant,
        slice: Duration,
    ) -> Result<Outcome, RunError> {
        self.run_at_moment(seed, Moment { start: Some(start), slice: Some(slice) })
    }

    fn run_at_moment(&mut self, seed: u64, moment: Moment) -> Result<Outcome, RunError> {
        self.plans.iter_mut().flatten().for_each(|plan| plan.workload.seed = seed);
        let file = self.config.jobs[0].files[0];
        let namespace = find_namespace(&self.associations[file.host], file.nsid)?;
        let stage = self.run_stage_at(moment)?;
        let mut outcome = Outcome {
            read: Latencies::new(),
            write: Latencies::new(),
            measured: Duration::ZERO,
            cpu: stage.cpu,
            loops: stage.loops,
            cost: stage.cost,
            missed: 0,
            beyond_end: Duration::ZERO,
            verified: 0,
            error: None,
            slices: Vec::new(),
            late: None,
            namespace,
        };
        for clone in stage.clones {
            outcome.read.merge(&clone.read);
            outcome.write.merge(&clone.write);
            outcome.measured = outcome.measured.max(clone.measured);
            outcome.missed += clone.missed;
            outcome.beyond_end = outcome.beyond_end.max(clone.beyond_end);
            outcome.verified += clone.verified;
            outcome.error = outcome.error.or(clone.error);
            outcome.late = outcome.late.max(clone.late);
            merge_slices(&mut outcome.slices, &clone.slices);
        }
        Ok(outcome)
    }

    /// Runs all jobs once.
    ///
    /// # Errors
    /// When the run cannot begin; failures during the run are in [`CloneOutcome::error`].
    pub fn run_stage(&mut self) -> Result<StageOutcome, RunError> {
        self.run_stage_at(Moment::default())
    }

    fn run_stage_at(&mut self, moment: Moment) -> Result<StageOutcome, RunError> {
        let (config, layout) = (&self.config, &self.layout);
        let Coordinator { fleet, watch, .. } = &mut self.coordinator;
        let start = fleet.begin(config, layout, &self.plans, moment)?;
        let (mut lost, mut reconnects) = (HashSet::new(), 0);
        let outcome = fleet.collect(config, layout, start, watch, |fleet, event| {
            if let Event::Path(PathNews { host, path, news }) = &event {
                match news {
                    News::Down(_) => drop(lost.insert((*host, *path))),
                    News::Up(_) => reconnects += u64::from(lost.remove(&(*host, *path))),
                    News::Changed(_) | News::GivenUp(_) => {}
                }
            }
            fleet.pass_on(layout, event);
        })?;
        Ok(StageOutcome { reconnects, ..outcome })
    }

    /// What the queues count, for samples while a run goes on.
    #[must_use]
    pub fn counters(&self) -> Vec<Arc<QueueCounters>> {
        self.coordinator.fleet.counters.concat()
    }

    /// Changes how all queues gather commands before they send them.
    pub fn set_i10(&self, i10: Option<I10Config>) {
        self.coordinator.fleet.broadcast(|| Message::Gather(i10));
    }

    /// Changes what the cores do when they are idle.
    pub fn set_mode(&self, mode: Mode) {
        self.coordinator.fleet.cores.iter().for_each(|core| core.set_mode(mode));
    }
}

/// The calling thread's part of a run.
struct Coordinator<'a> {
    fleet: Fleet<Tcp>,
    /// What was told of paths before the cores had queues.
    early: Vec<PathNews>,
    watch: &'a mut dyn FnMut(Progress) -> bool,
}

/// NVMe/TCP. Closing ends the I/O queues, then the admin queue.
struct Tcp;

impl Protocol for Tcp {
    type Message = Message;
    type Event = Event;
    /// Of the queues, by controller.
    type Counters = Vec<Arc<QueueCounters>>;

    fn begin(jobs: Vec<QueueJob>) -> Message {
        Message::Begin(jobs)
    }

    fn finish() -> Message {
        Message::Finish
    }

    fn close() -> Message {
        Message::Close
    }

    fn heard(event: Event) -> Heard<Event> {
        match event {
            Event::Finished(core, results) => Heard::Finished(core, results),
            Event::JobEnded => Heard::JobEnded,
            Event::Closed => Heard::Closed,
            event => Heard::Other(event),
        }
    }

    fn count(counters: &Self::Counters, stats: LoopSnapshot) -> Counts {
        // The counts of a loop are taken once, however many controllers it talks to.
        let (mut stats, mut counts) = (Some(stats), Counts::default());
        for counters in counters {
            let stats = stats.take().unwrap_or_default();
            counts.add(Counts::of_host(counters.totals(), &stats));
        }
        counts
    }
}

impl Coordinator<'_> {
    /// Starts the reactors.
    fn spawn(
        &mut self,
        config: &StageConfig,
        layout: &Layout,
        events: &mpsc::Sender<Event>,
    ) -> Result<(), RunError> {
        for (thread, cpus) in layout.threads.iter().enumerate() {
            let core = CoreConfig {
                loads: load_configs(config, layout, thread),
                ports: port_configs(config, layout, thread),
                thread,
                seed: config.jobs.first().map_or(0, |job| job.seed),
                report_each: config.exit_all,
                events: events.clone(),
            };
            let classes: Vec<(usize, usize)> =
                core.loads.iter().map(|load| (load.io_bytes, load.depth)).collect();
            let pinned = if let [core] = cpus[..] { Some(core) } else { None };
            let reactor = ReactorConfig {
                core: pinned,
                mode: config.reactor_mode,
                backend: config.backend,
                busy_poll: config.hosts.iter().find_map(|host| host.busy_poll),
                pool: PoolConfig::new(&classes).in_huge_pages(),
                accel: config.accel.clone(),
                name: format!("perf-{}", pinned.unwrap_or(thread)),
            };
            self.fleet.add(reactor, cpus.clone(), move |cx| {
                let core = Core::new(cx, core);
                let counters = core.counters();
                (core, counters)
            })?;
        }
        Ok(())
    }

    /// Waits until all queues are connected.
    fn bring_up(
        &mut self,
        config: &StageConfig,
        layout: &Layout,
    ) -> Result<(Vec<Association>, Vec<Vec<Plan>>), RunError> {
        let up = self.connect(config)?;
        let associations: Vec<Association> =
            up.iter().map(|(_, association)| association.clone()).collect();
        for (index, association) in associations.iter().enumerate() {
            let granted = association.io_queues;
            if layout.mapped[index] {
                layout.check_maps(index, &config.hosts[index].queue_request().grant(granted))?;
                continue;
            }
            let asked = layout.queues[index];
            if granted < asked {
                return Err(RunError::Grant { granted, asked });
            }
        }
        let plan = |job| stage::plan(job, &config.hosts, &associations);
        let plans = config.jobs.iter().enumerate().map(plan).collect::<Result<Vec<_>, _>>()?;
        stage::check_overlaps(&config.jobs, &plans)?;
        for (host, (path, association)) in up.into_iter().enumerate() {
            let news = PathNews { host, path, news: News::Up(association) };
            self.fleet.broadcast(|| Message::Path(news.clone()));
        }
        for news in std::mem::take(&mut self.early) {
            self.fleet.broadcast(|| Message::Path(news.clone()));
        }
        self.wait_ready(config, layout)?;
        Ok((associations, plans))
    }
}

impl Fleet<Tcp> {
    /// Tells the other cores what one core learns about an association.
    fn pass_on(&self, layout: &Layout, event: Event) {
        match event {
            Event::Path(news) => {
                if let News::Down(error) | News::GivenUp(error) = &news.news {
                    let again = matches!(news.news, News::Down(_));
                    let then =
                        if again { "trying to connect again" } else { "its path is given up" };
                    tracing::warn!("{error}; {then}");
                }
                self.broadcast(|| Message::Path(news.clone()));
            }
            Event::Failed(host, error) => self.broadcast(|| Message::Failed(host, error.clone())),
            Event::Queues(host, event) => {
                if let PathSetEvent::Lost { error, .. } = &event {
                    tracing::warn!("{error}");
                }
                if let Some(admin) = self.cores.get(layout.admins[host]) {
                    let _ = admin.sender().send(Message::Queues(host, event));
                }
            }
            Event::Unreachable(_) => {}
            Event::Ready | Event::JobEnded | Event::Finished(..) | Event::Closed => {}
        }
    }
}

impl StageConfig {
    /// When the first job begins to record, and when the last one stops, if their times say so.
    fn window(&self, start: Instant) -> (Instant, Option<Instant>) {
        let ramp = self.jobs.iter().map(|job| job.ramp).min().unwrap_or_default();
        let ends = self.jobs.iter().map(|job| Some(start + job.ramp + job.runtime?));
        // A job that only its volume ends makes the end unknown.
        let end = ends.collect::<Option<Vec<Instant>>>().and_then(|ends| ends.into_iter().max());
        (start + ramp, end)
    }

    fn empty_clones(&self) -> Vec<CloneOutcome> {
        let clones = |(index, job): (usize, &JobSpec)| {
            (0..job.clones.max(1)).map(move |clone| CloneOutcome {
                job: index,
                clone,
                read: Latencies::new(),
                write: Latencies::new(),
                measured: Duration::ZERO,
                missed: 0,
                beyond_end: Duration::ZERO,
                verified: 0,
                error: None,
                slices: Vec::new(),
                late: None,
            })
        };
        self.jobs.iter().enumerate().flat_map(clones).collect()
    }
}

impl CloneOutcome {
    /// Adds the records of one of its queues.
    fn add(&mut self, result: &JobResult) {
        self.read.merge(&result.read);
        self.write.merge(&result.write);
        self.measured = self.measured.max(result.measured);
        self.missed += result.missed;
        self.beyond_end = self.beyond_end.max(result.beyond_end);
        self.verified += result.verified;
        self.late = self.late.max(result.late);
        merge_slices(&mut self.slices, &result.slices);
        if self.error.is_none() {
            self.error.clone_from(&result.error);
        }
    }
}

/// Adds slices to those of the same times.
fn merge_slices(all: &mut Vec<Slice>, more: &[Slice]) {
    if all.len() < more.len() {
        all.resize_with(more.len(), Slice::default);
    }
    all.iter_mut().zip(more).for_each(|(slice, more)| slice.merge(more));
}

/// The queue jobs of one thread.
fn load_configs(config: &StageConfig, layout: &Layout, thread: usize) -> Vec<LoadConfig> {
    let loads = layout.loads.iter().filter(|load| load.thread == thread);
    let load = |load: &stage::Load| {
        let job = &config.jobs[load.job];
        LoadConfig {
            files: job
                .files
                .iter()
                .map(|file| (file.host, load.qids[&file.host], file.nsid))
                .collect(),
            polled: job.route == Route::Maps { polled: true },
            io_bytes: usize::try_from(job.io_bytes).unwrap_or(usize::MAX),
            depth: usize::from(job.depth),
            complete_max: job.batch.complete_max.map(usize::from),
        }
    };
    loads.map(load).collect()
}

/// The controllers of one thread.
fn port_configs(config: &StageConfig, layout: &Layout, thread: usize) -> Vec<PortConfig> {
    let port = |(index, queues)| PortConfig {
        index,
        host: config.hosts[index].clone(),
        queues,
        place: layout.mapped[index].then(|| layout.place(index, thread)),
        admin: layout.admins[index] == thread,
    };
    layout.ports(thread).into_iter().map(port).collect()
}
