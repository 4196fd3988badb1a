//! The reactors of a run, whichever protocol their cores speak: a common start, the window, the results, the end.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use raceline_reactor::{Context, LoopSnapshot, Reactor, ReactorConfig, ReactorHandle, Service};

use super::stage::{Layout, Misfit, Plan, StageConfig};
use super::window::{Sample, Window};
use super::{
    CloneOutcome, DRAIN_LIMIT, Moment, Progress, RunError, START_DELAY, StageOutcome, TICK,
};
use crate::cost::Counts;
use crate::cpu::CpuTime;
use crate::job::{JobConfig, JobResult, QueueJob};
use crate::report::LoopCounters;

/// What the coordinator of a run and its cores tell each other.
pub(super) trait Protocol {
    /// What a core is told.
    type Message: Send + 'static;
    /// What a core tells.
    type Event;
    /// What a core counts.
    type Counters: Clone + Default + Send + Sync + 'static;

    /// Run these jobs, one per load.
    fn begin(jobs: Vec<QueueJob>) -> Self::Message;
    /// End the run as if its time were over.
    fn finish() -> Self::Message;
    /// Close everything and end.
    fn close() -> Self::Message;
    /// What all protocols' cores tell, in words of its own.
    fn heard(event: Self::Event) -> Heard<Self::Event>;
    /// The counts of a core and of its loop.
    fn count(counters: &Self::Counters, stats: LoopSnapshot) -> Counts;
}

/// What a core has told.
pub(super) enum Heard<E> {
    /// All jobs of this core have ended; with the core's number.
    Finished(usize, Vec<JobResult>),
    /// A job has ended before others of its core.
    JobEnded,
    /// The core has closed everything.
    Closed,
    /// Something of its protocol.
    Other(E),
}

/// The reactors. Dropped, it closes all queues and sessions, and waits for the threads.
pub(super) struct Fleet<P: Protocol> {
    pub(super) cores: Vec<ReactorHandle<P::Message>>,
    /// By core.
    pub(super) counters: Vec<P::Counters>,
    events: Receiver<P::Event>,
}

impl<P: Protocol> Fleet<P> {
    pub(super) fn new(events: Receiver<P::Event>) -> Self {
        Self { cores: Vec::new(), counters: Vec::new(), events }
    }

    /// Starts a reactor that runs on these CPUs. `make` makes its service there, with its counters.
    pub(super) fn add<S: Service<Message = P::Message>>(
        &mut self,
        reactor: ReactorConfig,
        cpus: Vec<usize>,
        make: impl FnOnce(&mut Context<'_>) -> (S, P::Counters) + Send + 'static,
    ) -> Result<(), RunError> {
        let counters = Arc::new(OnceLock::new());
        let made = Arc::clone(&counters);
        let handle = Reactor::spawn(reactor, move |cx| {
            if cpus.len() > 1 {
                restrict(&cpus)?;
            }
            let (core, counters) = make(cx);
            let _ = made.set(counters);
            Ok(core)
        });
        self.cores.push(handle.map_err(RunError::Reactor)?);
        self.counters.push(counters.get().cloned().unwrap_or_default());
        Ok(())
    }

    /// Gives all cores a common start.
    pub(super) fn begin(
        &self,
        config: &StageConfig,
        layout: &Layout,
        plans: &[Vec<Plan>],
        moment: Moment,
    ) -> Result<Instant, RunError> {
        let start = moment.start.unwrap_or_else(|| Instant::now() + START_DELAY);
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
                slice: moment.slice,
            });
            let misfit = |error| RunError::Misfit(Misfit::of_workload(load.job, error));
            jobs[load.thread].push(made.map_err(misfit)?);
        }
        for (core, jobs) in self.cores.iter().zip(jobs) {
            // A missing result tells that a core has ended.
            let _ = core.sender().send(P::begin(jobs));
        }
        Ok(start)
    }

    /// Samples usage and counts at both ends of the window and gathers the results. `other` takes what only this protocol
    /// has; `watch` is that of the run.
    pub(super) fn collect(
        &self,
        config: &StageConfig,
        layout: &Layout,
        start: Instant,
        watch: &mut dyn FnMut(Progress) -> bool,
        mut other: impl FnMut(&Self, P::Event),
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
            match self.next_event(wait)?.map(P::heard) {
                Some(Heard::Finished(core, results)) => {
                    left -= 1;
                    let loads = layout.loads.iter().filter(|load| load.thread == core);
                    for (load, result) in loads.zip(results) {
                        let which = |clone: &&mut CloneOutcome| {
                            (clone.job, clone.clone) == (load.job, load.clone)
                        };
                        clones.iter_mut().find(which).into_iter().for_each(|c| c.add(&result));
                    }
                }
                Some(Heard::JobEnded) => {
                    stopped = true;
                    self.broadcast(P::finish);
                }
                Some(Heard::Other(event)) => other(self, event),
                Some(Heard::Closed) => {}
                None => {
                    let progress = if ended.is_some() {
                        Progress::Finishing
                    } else {
                        let done = now.saturating_duration_since(start);
                        Progress::Running(done, end.map(|end| end - start))
                    };
                    if !watch(progress) && !stopped {
                        stopped = true;
                        self.broadcast(P::finish);
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
            sample.counts.add(P::count(counters, stats));
        }
        sample
    }

    pub(super) fn next_event(&self, wait: Duration) -> Result<Option<P::Event>, RunError> {
        match self.events.recv_timeout(wait) {
            Ok(event) => Ok(Some(event)),
            Err(RecvTimeoutError::Timeout) if self.cores.iter().all(ReactorHandle::is_running) => {
                Ok(None)
            }
            Err(_) => Err(RunError::Lost("ended unexpectedly")),
        }
    }

    pub(super) fn broadcast(&self, message: impl Fn() -> P::Message) {
        for core in &self.cores {
            // `next_event` notices that a core has ended.
            let _ = core.sender().send(message());
        }
    }
}

impl<P: Protocol> Drop for Fleet<P> {
    fn drop(&mut self) {
        self.broadcast(P::close);
        let deadline = Instant::now() + DRAIN_LIMIT;
        let mut open = self.cores.len();
        while open > 0 && Instant::now() < deadline {
            match self.events.recv_timeout(TICK).map(P::heard) {
                Ok(Heard::Closed) => open -= 1,
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

/// Lets the calling thread run on these CPUs only.
fn restrict(cpus: &[usize]) -> std::io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    for &cpu in cpus {
        if cpu >= rustix::thread::CpuSet::MAX_CPU {
            return Err(std::io::Error::other(format!("there is no CPU {cpu}")));
        }
        set.set(cpu);
    }
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}
