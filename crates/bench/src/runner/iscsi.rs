//! Runs jobs over iSCSI: the same workloads, pacing, checks and records as over NVMe/TCP, by sessions instead of queues.
//!
//! Each queue of a job is a session of its own with each of its targets.

mod core;

use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};

use raceline_host::NamespaceInfo;
use raceline_initiator::{SessionConfig, UnitInfo};
use raceline_proto::nvme::NamespaceId;
use raceline_reactor::{LoopSnapshot, Mode, PoolConfig, ReactorConfig};

use self::core::{Core, CoreConfig, CoreCounters, Event, LoadConfig, Message};
use super::fleet::{Fleet, Heard, Protocol};
use super::stage::{self, FileSpec, JobSpec, Layout, Plan, Problem, Route, StageConfig};
use super::{Moment, Progress, RunError, StageOutcome, TICK};
use crate::cost::Counts;
use crate::job::QueueJob;

/// Bytes of the memory into which a session receives beside payloads.
const STAGING_BYTES: usize = 128 << 10;

/// A logical unit that jobs use.
#[derive(Clone, Debug)]
pub struct IscsiUnit {
    /// How sessions with its target are made; their depth is that of the jobs.
    pub session: SessionConfig,
    /// What it is.
    pub unit: UnitInfo,
}

impl IscsiUnit {
    /// The unit in terms of a namespace.
    #[must_use]
    pub fn namespace(&self) -> NamespaceInfo {
        let unit = &self.unit;
        let target = self.session.target_name.as_ref().map_or("", |name| name.as_str());
        NamespaceInfo {
            nsid: NamespaceId(1),
            block_count: unit.block_count,
            capacity_blocks: unit.block_count,
            used_blocks: unit.block_count,
            block_size: unit.block_size,
            physical_block_size: unit.physical_block_size,
            read_only: unit.write_protected,
            deallocate_zeroes: unit.unmapped_read_zeroes,
            shared: false,
            nguid: [0; 16],
            eui64: [0; 8],
            uuid: unit.uuid(target, self.session.lun),
        }
    }

    fn check(&self, job: &JobSpec) -> Result<NamespaceInfo, Problem> {
        let (unit, lun) = (&self.unit, self.session.lun);
        let (block_size, io_bytes) = (unit.block_size, job.io_bytes);
        if io_bytes == 0 || !io_bytes.is_multiple_of(block_size) {
            let message =
                format!("--bs {io_bytes} is not a multiple of the block size {block_size}");
            return Err(("bs", message));
        }
        let most = unit.max_transfer_blocks;
        if most != 0 && io_bytes / block_size > most {
            let most = u64::from(most) * u64::from(block_size);
            let message = format!(
                "--bs {io_bytes} is more than the largest transfer of logical unit {lun}, {most}"
            );
            return Err(("bs", message));
        }
        if unit.write_protected && job.mode.read_percent(job.mixed_read_percent) < 100 {
            return Err(("rw", format!("logical unit {lun} is write protected")));
        }
        Ok(self.namespace())
    }
}

/// Runs the jobs of a stage at the same time. `units` are what [`StageConfig::hosts`] is over NVMe/TCP: jobs name them by
/// position. `watch` receives the progress several times a second, and ends the run early by giving false.
///
/// # Errors
/// When the run cannot begin; failures during the run are in [`CloneOutcome::error`](super::CloneOutcome::error).
pub fn run_stage(
    config: &StageConfig,
    units: &[IscsiUnit],
    watch: &mut dyn FnMut(Progress) -> bool,
) -> Result<StageOutcome, RunError> {
    Initiators::connect(config, units, watch)?.run_stage()
}

/// Sessions that are there, for successive runs. Dropping it logs out of all of them.
pub struct Initiators<'a> {
    fleet: Fleet<Sessions>,
    watch: &'a mut dyn FnMut(Progress) -> bool,
    config: StageConfig,
    layout: Layout,
    plans: Vec<Vec<Plan>>,
}

impl<'a> Initiators<'a> {
    /// Makes the sessions of all jobs; `units` and `watch` as in [`run_stage`].
    ///
    /// # Errors
    /// When a login fails, or the jobs do not fit their units.
    pub fn connect(
        config: &StageConfig,
        units: &[IscsiUnit],
        watch: &'a mut dyn FnMut(Progress) -> bool,
    ) -> Result<Self, RunError> {
        if config.jobs.iter().any(|job| job.route != Route::Own) {
            let message = "iSCSI has no queue maps: leave -W and -P out".to_owned();
            return Err(RunError::Invalid(message));
        }
        let layout = config.layout()?;
        let plan = |job| {
            let mut find = |file: &FileSpec, spec: &JobSpec| units[file.host].check(spec);
            stage::plan_with(job, &mut find)
        };
        let plans = config.jobs.iter().enumerate().map(plan).collect::<Result<Vec<_>, _>>()?;
        stage::check_overlaps(&config.jobs, &plans)?;
        let (sender, events) = mpsc::channel();
        let fleet = Fleet::new(events);
        let mut this = Self { fleet, watch, config: config.clone(), layout, plans };
        this.spawn(units, &sender)?;
        drop(sender);
        this.wait_ready()?;
        Ok(this)
    }

    /// Runs all jobs once.
    ///
    /// # Errors
    /// When the run cannot begin; failures during the run are in
    /// [`CloneOutcome::error`](super::CloneOutcome::error).
    pub fn run_stage(&mut self) -> Result<StageOutcome, RunError> {
        let Self { fleet, watch, config, layout, plans } = self;
        let start = fleet.begin(config, layout, plans, Moment::default())?;
        let mut reconnects = 0;
        let outcome = fleet.collect(config, layout, start, watch, |_, event| match event {
            Event::Lost(error) => tracing::warn!("{error}; trying to connect again"),
            Event::Again => reconnects += 1,
            Event::Ready | Event::JobEnded | Event::Finished(..) | Event::Closed => {}
        })?;
        Ok(StageOutcome { reconnects, ..outcome })
    }

    /// Commands of all sessions that have ended so far, those of ramps included.
    #[must_use]
    pub fn commands(&self) -> u64 {
        self.fleet.counters.iter().map(|of| of.ended.load(Ordering::Relaxed)).sum()
    }

    /// Changes what the cores do when they are idle.
    pub fn set_mode(&self, mode: Mode) {
        self.fleet.cores.iter().for_each(|core| core.set_mode(mode));
    }

    /// Starts the reactors.
    fn spawn(&mut self, units: &[IscsiUnit], events: &mpsc::Sender<Event>) -> Result<(), RunError> {
        let (config, layout) = (&self.config, &self.layout);
        for (thread, cpus) in layout.threads.iter().enumerate() {
            let core = CoreConfig {
                loads: loads(config, units, layout, thread),
                thread,
                seed: config.jobs.first().map_or(0, |job| job.seed),
                report_each: config.exit_all,
                events: events.clone(),
            };
            let sessions = core.loads.iter().map(|load| load.sessions.len()).sum();
            let mut classes: Vec<(usize, usize)> =
                core.loads.iter().map(|load| (load.io_bytes, load.depth)).collect();
            classes.push((STAGING_BYTES, sessions));
            let pinned = if let [core] = cpus[..] { Some(core) } else { None };
            let reactor = ReactorConfig {
                core: pinned,
                mode: config.reactor_mode,
                backend: config.backend,
                busy_poll: units.iter().find_map(|unit| unit.session.busy_poll),
                pool: PoolConfig::new(&classes).in_huge_pages(),
                accel: None,
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

    /// Waits until all sessions are there.
    fn wait_ready(&mut self) -> Result<(), RunError> {
        let mut ready = 0;
        while ready < self.fleet.cores.len() {
            match self.fleet.next_event(TICK)? {
                Some(Event::Ready) => ready += 1,
                Some(Event::Lost(error)) => return Err(RunError::Session(error)),
                Some(_) => {}
                None if !(self.watch)(Progress::Connecting) => return Err(RunError::Stopped),
                None => {}
            }
        }
        Ok(())
    }
}

/// iSCSI. Closing logs out of all sessions.
struct Sessions;

impl Protocol for Sessions {
    type Message = Message;
    type Event = Event;
    type Counters = CoreCounters;

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

    /// Under the names that the counts of queues have.
    fn count(counters: &Self::Counters, stats: LoopSnapshot) -> Counts {
        let totals = counters.sessions.totals();
        Counts {
            system_calls: stats.io.system_calls,
            receives: totals.receives,
            sends: totals.sends,
            pdus_received: totals.pdus_received,
            pdus_sent: totals.pdus_sent,
            copied_bytes: totals.copied_bytes,
            // A wrong digest ends an iSCSI session.
            digest_retries: 0,
        }
    }
}

/// The queue jobs of one thread.
fn loads(
    config: &StageConfig,
    units: &[IscsiUnit],
    layout: &Layout,
    thread: usize,
) -> Vec<LoadConfig> {
    let loads = layout.loads.iter().filter(|load| load.thread == thread);
    let load = |load: &stage::Load| {
        let job = &config.jobs[load.job];
        let session = |file: &FileSpec| {
            Arc::new(SessionConfig { depth: job.depth, ..units[file.host].session.clone() })
        };
        LoadConfig {
            sessions: job.files.iter().map(session).collect(),
            io_bytes: usize::try_from(job.io_bytes).unwrap_or(usize::MAX),
            depth: usize::from(job.depth),
            complete_max: job.batch.complete_max.map(usize::from),
        }
    };
    loads.map(load).collect()
}
