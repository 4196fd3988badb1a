//! Runs jobs over iSCSI: the same workloads, pacing, checks and records as over NVMe/TCP, by sessions instead of queues.
//!
//! Each queue of a job is a session of its own with each of its targets.

mod core;

use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use raceline_host::NamespaceInfo;
use raceline_initiator::{SessionConfig, SessionCounters, SessionTotals, UnitInfo};
use raceline_proto::nvme::NamespaceId;
use raceline_reactor::{PoolConfig, Reactor, ReactorConfig, ReactorHandle};

use self::core::{Core, CoreConfig, Event, LoadConfig, Message};
use super::stage::{self, FileSpec, JobSpec, Layout, Misfit, Plan, Problem, Route, StageConfig};
use super::window::{Sample, Window};
use super::{
    CloneOutcome, DRAIN_LIMIT, Progress, RunError, START_DELAY, StageOutcome, TICK, restrict,
};
use crate::cost::Counts;
use crate::cpu::CpuTime;
use crate::job::{JobConfig, QueueJob};
use crate::report::LoopCounters;

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
/// When the run cannot begin; failures during the run are in [`CloneOutcome::error`].
pub fn run_stage(
    config: &StageConfig,
    units: &[IscsiUnit],
    watch: &mut dyn FnMut(Progress) -> bool,
) -> Result<StageOutcome, RunError> {
    if config.jobs.iter().any(|job| job.route != Route::Own) {
        return Err(RunError::Invalid("iSCSI has no queue maps: leave -W and -P out".to_owned()));
    }
    let layout = config.layout()?;
    let plan = |job| {
        let mut find = |file: &FileSpec, spec: &JobSpec| units[file.host].check(spec);
        stage::plan_with(job, &mut find)
    };
    let plans = config.jobs.iter().enumerate().map(plan).collect::<Result<Vec<_>, _>>()?;
    stage::check_overlaps(&config.jobs, &plans)?;
    let (sender, events) = mpsc::channel();
    let mut run = Run { cores: Vec::new(), counters: Vec::new(), events, watch };
    run.spawn(config, units, &layout, &sender)?;
    drop(sender);
    run.wait_ready()?;
    let start = run.begin(config, &layout, &plans)?;
    run.collect(config, &layout, start)
}

/// The calling thread's part of a run. Dropped, it closes all sessions.
struct Run<'a> {
    cores: Vec<ReactorHandle<Message>>,
    counters: Vec<Arc<SessionCounters>>,
    events: Receiver<Event>,
    watch: &'a mut dyn FnMut(Progress) -> bool,
}

impl Run<'_> {
    /// Starts the reactors.
    fn spawn(
        &mut self,
        config: &StageConfig,
        units: &[IscsiUnit],
        layout: &Layout,
        events: &mpsc::Sender<Event>,
    ) -> Result<(), RunError> {
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
            let counters = Arc::new(OnceLock::new());
            let (made, cpus) = (Arc::clone(&counters), cpus.clone());
            let handle = Reactor::spawn(reactor, move |cx| {
                if cpus.len() > 1 {
                    restrict(&cpus)?;
                }
                let core = Core::new(cx, core);
                let _ = made.set(core.counters());
                Ok(core)
            });
            self.cores.push(handle.map_err(RunError::Reactor)?);
            self.counters.push(counters.get().cloned().unwrap_or_default());
        }
        Ok(())
    }

    /// Waits until all sessions are there.
    fn wait_ready(&mut self) -> Result<(), RunError> {
        let mut ready = 0;
        while ready < self.cores.len() {
            match self.next_event(TICK)? {
                Some(Event::Ready) => ready += 1,
                Some(Event::Lost(error)) => return Err(RunError::Session(error)),
                Some(_) => {}
                None if !(self.watch)(Progress::Connecting) => return Err(RunError::Stopped),
                None => {}
            }
        }
        Ok(())
    }

    /// Gives all cores a common start.
    fn begin(
        &self,
        config: &StageConfig,
        layout: &Layout,
        plans: &[Vec<Plan>],
    ) -> Result<Instant, RunError> {
        let start = Instant::now() + START_DELAY;
        let mut jobs: Vec<Vec<QueueJob>> = self.cores.iter().map(|_| Vec::new()).collect();
        for (stream, load) in (0..).zip(&layout.loads) {
            let job = &config.jobs[load.job];
            let plan = &plans[load.job][usize::from(load.clone)];
            let made = QueueJob::new(JobConfig {
                workload: plan.workload.clone(),
                queue: plan.first_part + u64::from(load.queue),
                queues: plan.parts,
                stream,
                depth: job.depth,
                batch: job.batch,
                start,
                ramp: job.ramp,
                runtime: job.runtime,
                commands: plan.commands_of(load.queue, job.queues),
                slice: None,
            });
            let misfit = |error| RunError::Misfit(Misfit::of_workload(load.job, error));
            jobs[load.thread].push(made.map_err(misfit)?);
        }
        for (core, jobs) in self.cores.iter().zip(jobs) {
            // A missing result tells that a core has ended.
            let _ = core.sender().send(Message::Begin(jobs));
        }
        Ok(start)
    }

    /// Samples usage and counts at both ends of the window and gathers the results.
    fn collect(
        &mut self,
        config: &StageConfig,
        layout: &Layout,
        start: Instant,
    ) -> Result<StageOutcome, RunError> {
        let (measure_from, end) = config.window(start);
        let cores = layout.bound_cores();
        let mut clones = config.empty_clones();
        let mut window = Window::begin(&cores, self.sample());
        let (mut ended, mut stopped, mut sampled_start) = (None, false, false);
        let mut left = self.cores.len();
        while left > 0 {
            let now = Instant::now();
            if !sampled_start && now >= measure_from {
                (window, sampled_start) = (Window::begin(&cores, self.sample()), true);
            }
            if ended.is_none() && (end.is_some_and(|end| now >= end) || stopped) {
                ended = Some(window.end(self.sample()));
            }
            let next = [Some(measure_from), end].into_iter().flatten().find(|&at| at > now);
            let wait = next.map_or(TICK, |at| TICK.min(at - now));
            match self.next_event(wait)? {
                Some(Event::Finished(core, results)) => {
                    left -= 1;
                    let loads = layout.loads.iter().filter(|load| load.thread == core);
                    for (load, result) in loads.zip(results) {
                        let which = |clone: &&mut CloneOutcome| {
                            (clone.job, clone.clone) == (load.job, load.clone)
                        };
                        clones.iter_mut().find(which).into_iter().for_each(|c| c.add(&result));
                    }
                }
                Some(Event::JobEnded) => {
                    stopped = true;
                    self.broadcast(|| Message::Finish);
                }
                Some(Event::Lost(error)) => {
                    tracing::warn!("{error}; trying to connect again");
                }
                Some(Event::Ready | Event::Closed) => {}
                None => {
                    let progress = if ended.is_some() {
                        Progress::Finishing
                    } else {
                        let done = now.saturating_duration_since(start);
                        Progress::Running(done, end.map(|end| end - start))
                    };
                    if !(self.watch)(progress) && !stopped {
                        stopped = true;
                        self.broadcast(|| Message::Finish);
                    }
                }
            }
        }
        let used = ended.unwrap_or_else(|| window.end(self.sample()));
        Ok(used.outcome(clones))
    }

    /// The usage and counts so far.
    fn sample(&self) -> Sample {
        let mut sample = Sample { cpu: CpuTime::now(), ..Sample::default() };
        for (core, counters) in self.cores.iter().zip(&self.counters) {
            let stats = core.stats().snapshot();
            sample.loops.add(LoopCounters { busy_turns: stats.busy_turns, waits: stats.waits });
            sample.counts.add(counts(counters.totals(), stats.io.system_calls));
        }
        sample
    }

    fn next_event(&self, wait: Duration) -> Result<Option<Event>, RunError> {
        match self.events.recv_timeout(wait) {
            Ok(event) => Ok(Some(event)),
            Err(RecvTimeoutError::Timeout) if self.cores.iter().all(ReactorHandle::is_running) => {
                Ok(None)
            }
            Err(_) => Err(RunError::Lost("ended unexpectedly")),
        }
    }

    fn broadcast(&self, message: impl Fn() -> Message) {
        for core in &self.cores {
            // `next_event` notices that a core has ended.
            let _ = core.sender().send(message());
        }
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
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

/// The counts of sessions under the names that those of queues have.
fn counts(totals: SessionTotals, system_calls: u64) -> Counts {
    Counts {
        system_calls,
        receives: totals.receives,
        sends: totals.sends,
        pdus_received: totals.pdus_received,
        pdus_sent: totals.pdus_sent,
        copied_bytes: totals.copied_bytes,
        // A wrong digest ends an iSCSI session.
        digest_retries: 0,
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
