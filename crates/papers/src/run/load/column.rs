//! One column: all its series in turn, in one block forward and in the next backward.

use std::time::{Duration, Instant};

use raceline_bdev::SharedBdev;
use raceline_bench::Latencies;
use raceline_bench::distance::Distance;
use raceline_bench::job::{JobError, JobResult};
use raceline_bench::local::{Local, LocalJob, Ring};
use raceline_bench::quiet::{Disturbance, Machine};
use raceline_bench::runner::{Progress, StageOutcome};
use raceline_reactor::Mode;
use raceline_reactor::affinity::pin_to_core;

use super::Point;
use super::connected::Connected;
use super::stage::{self, Pace};
use crate::bed::Bed;
use crate::bed::veth::Veth;
use crate::experiment::Column;
use crate::record::Run;
use crate::run::cpu::{Costs, Sample};
use crate::run::settings::{LoadSettings, Protocol, SubjectKind};
use crate::run::values::{Counted, buckets};
use crate::run::{Journal, Options, RunError, Timing};
use crate::subject::{Counts, Needs, Raceline, Running, Spdk, Subject, Tgt};

/// A run of the search for a ceiling takes this part of a usual run, but no less than the least.
const CEILING_PART: f64 = 0.5;
const CEILING_MIN: Duration = Duration::from_millis(100);
/// How long a ring tries whether completions can be polled for.
const PROBE: Duration = Duration::from_millis(1);
/// A busy machine leaves such a run no time for a command, and then the run shows nothing: it is made longer, up to this.
const PROBE_MAX: Duration = Duration::from_secs(1);

/// Of this many blocks, one more may be thrown away because something disturbed it.
const DISCARD_PART: u32 = 3;
/// At least this many blocks may be thrown away.
const DISCARDS_MIN: u32 = 2;

/// What a column needs.
pub(super) struct ColumnRun<'a> {
    pub(super) column: &'a Column,
    pub(super) points: &'a [Point<'a>],
    pub(super) options: &'a Options<'a>,
    pub(super) device: &'a SharedBdev,
}

/// What carries out the runs of a series.
enum Means {
    Remote(Box<dyn Subject>),
    Local(Local),
    /// A file with a ring of its own, driven on the host's CPU.
    Ring(Box<Ring>),
}

/// A series that could be started.
struct Started<'a> {
    point: &'a Point<'a>,
    means: Means,
    target_cpus: Vec<usize>,
    host_cpus: Vec<usize>,
    /// The link of its own, if it has one; it is gone after the target.
    own_bed: Option<Veth>,
}

impl ColumnRun<'_> {
    /// Measures all blocks that the record lacks.
    pub(super) fn measure(&self, journal: &mut Journal<'_>) -> Result<(), RunError> {
        let mut started = Vec::new();
        for point in self.points {
            match self.start(point) {
                Ok(series) => {
                    if let Some(bed) = &series.own_bed {
                        let name = format!("link/{}", point.series.id);
                        journal.setting(&name, bed.describe().description);
                    }
                    started.push(series);
                }
                Err(why) => {
                    let what = self.place(point);
                    journal.missing(&what, &why, self.options.timing.blocks as usize);
                }
            }
            self.check_stop()?;
        }
        let mut started = self.without_refused(started, journal)?;
        let rate = self.rate(&started, journal)?;
        let blocks = self.blocks(&mut started, rate, journal);
        for series in started {
            if let Means::Remote(subject) = series.means {
                // A failure of the measurement says more than one of the end.
                let stopped = subject.stop().map_err(RunError::Failed);
                if blocks.is_ok() {
                    stopped?;
                }
            }
        }
        blocks
    }

    /// Leaves out the targets of other projects that do not take the connections or commands of their series, and notes
    /// why. They say nothing about the other series.
    fn without_refused<'a>(
        &self,
        started: Vec<Started<'a>>,
        journal: &mut Journal<'_>,
    ) -> Result<Vec<Started<'a>>, RunError> {
        let mut taken = Vec::with_capacity(started.len());
        for series in started {
            let kind = series.point.settings.subject;
            let tried = if matches!(kind, SubjectKind::Spdk | SubjectKind::Nvmet | SubjectKind::Tgt)
            {
                self.try_connection(&series)
            } else {
                Ok(())
            };
            match tried {
                Ok(()) => taken.push(series),
                Err(RunError::Failed(why)) => {
                    let place = self.place(series.point);
                    let why = why.strip_prefix(&format!("{place}: ")).unwrap_or(&why);
                    journal.missing(&place, why, self.options.timing.blocks as usize);
                }
                Err(other) => return Err(other),
            }
        }
        Ok(taken)
    }

    /// Makes the connections of a series and ends them.
    fn try_connection(&self, series: &Started<'_>) -> Result<(), RunError> {
        let mut watch = |_: Progress| !(self.options.stop)();
        let session = self.connect(series, None, &mut watch)?;
        if let Means::Remote(subject) = &series.means {
            // A target that is stopped could not end its connections.
            subject.wake();
            drop(session);
            subject.sleep();
        }
        Ok(())
    }

    fn start<'a>(&self, point: &'a Point<'a>) -> Result<Started<'a>, String> {
        let settings = &point.settings;
        let (target, host) = self.options.cpus.split_at(settings.target_cores);
        let host_cpus = host[..settings.host_cores].to_vec();
        let own_bed = self.own_bed(settings)?;
        let bed: &dyn Bed = own_bed.as_ref().map_or(self.options.bed, |bed| bed);
        let needs = Needs {
            settings,
            bed,
            cpus: target,
            device: self.device,
            engine: self.options.engine.as_ref(),
            rdma: &self.options.rdma,
        };
        let job = job(settings, self.options.timing, self.options.seed);
        let local = |device: &SharedBdev| {
            Local::start(device, Some(host_cpus[0]), &job).map_err(|error| error.to_string())
        };
        let means = match (settings.subject, &self.options.target) {
            (SubjectKind::Local, _) => Means::Local(local(self.device)?),
            (SubjectKind::LocalFile, _) => {
                let bytes = u64::from(settings.memory_mib) << 20;
                let folder = self.options.out.clone().unwrap_or_else(std::env::temp_dir);
                let file = crate::subject::TemporaryFile::filled_in(&folder, bytes)?;
                Means::Local(local(&file.into_device(false)?)?)
            }
            (SubjectKind::LocalUring | SubjectKind::LocalIopoll, _) => {
                let polls = settings.subject == SubjectKind::LocalIopoll;
                Means::Ring(Box::new(self.ring(settings, &job, polls)?))
            }
            (SubjectKind::Raceline, Some(_)) if settings.protocol == Protocol::Iscsi => {
                return Err("an iSCSI target: --target names one of NVMe/TCP".to_owned());
            }
            (SubjectKind::Raceline, Some(_)) if settings.protocol == Protocol::NvmeRdma => {
                return Err("a target over RDMA: --target names one of NVMe/TCP".to_owned());
            }
            (SubjectKind::Raceline, Some((address, nqn))) => {
                let (address, nqn) = (*address, nqn.clone());
                Means::Remote(Box::new(Running { address, nqn, rdma: None }))
            }
            (SubjectKind::Raceline | SubjectKind::Handoff, _) => {
                Means::Remote(Box::new(Raceline::start(&needs)?))
            }
            (SubjectKind::Spdk, _) => {
                let folder = self.options.spdk.as_ref().ok_or("there is no SPDK")?;
                let subject = Spdk::start(folder, &needs)?;
                subject.sleep();
                Means::Remote(Box::new(subject))
            }
            (SubjectKind::Nvmet, _) => Means::Remote(Box::new(self.kernel(settings)?)),
            (SubjectKind::Tgt, _) => Means::Remote(Box::new(Tgt::start(&needs)?)),
        };
        Ok(Started { point, means, target_cpus: target.to_vec(), host_cpus, own_bed })
    }

    /// The kernel's target, which runs already.
    fn kernel(&self, settings: &LoadSettings) -> Result<Running, String> {
        let options = self.options;
        let over_rdma = settings.protocol == Protocol::NvmeRdma;
        let (named, option) = match over_rdma {
            true => (&options.nvmet_rdma, "--nvmet-rdma"),
            false => (&options.nvmet, "--nvmet"),
        };
        let (address, nqn) = named
            .clone()
            .ok_or_else(|| format!("there is no kernel target: name it by {option}"))?;
        let rdma = over_rdma.then(|| options.rdma.find()).transpose()?;
        Ok(Running { address, nqn, rdma })
    }

    /// The link of a series that has one of its own.
    fn own_bed(&self, settings: &LoadSettings) -> Result<Option<Veth>, String> {
        let Some(link) = settings.own_link() else { return Ok(None) };
        if !["veth", "shaped"].contains(&self.options.bed.describe().kind.as_str()) {
            return Err(
                "a veth pair, whose MTU and GRO can be set: run as root, without --bed loopback"
                    .to_owned(),
            );
        }
        Veth::make(&link).map(Some).map_err(|error| error.to_string())
    }

    /// Moves the calling thread to where the host of a series runs.
    fn enter_host(&self, series: &Started<'_>) -> Result<(), RunError> {
        let bed: &dyn Bed = series.own_bed.as_ref().map_or(self.options.bed, |bed| bed);
        bed.enter_host().map_err(|error| self.failed(series, &format!("the test bed: {error}")))
    }

    /// A ring with a file, which has no name any more; a short run shows whether completions can be polled for.
    fn ring(&self, settings: &LoadSettings, job: &LocalJob, polls: bool) -> Result<Ring, String> {
        let folder = self.options.out.clone().unwrap_or_else(std::env::temp_dir);
        let bytes = u64::from(settings.memory_mib) << 20;
        let file = crate::subject::TemporaryFile::filled_in(&folder, bytes)?;
        let ring = Ring::open(file.path(), polls, job).and_then(|mut ring| {
            let mut time = PROBE;
            loop {
                let done = ring.run(&LocalJob { ramp: Duration::ZERO, time, ..*job }, &|| false)?;
                if done.read.count() + done.write.count() > 0 || time >= PROBE_MAX {
                    return Ok(ring);
                }
                time *= 2;
            }
        });
        ring.map_err(|error| error.to_string())
    }

    /// The rate of all series: of the settings, or a part of the slowest one's ceiling.
    fn rate(
        &self,
        started: &[Started<'_>],
        journal: &mut Journal<'_>,
    ) -> Result<Option<u64>, RunError> {
        let Some(settings) = started.first().map(|series| &series.point.settings) else {
            return Ok(None);
        };
        if settings.rate_percent == 0 {
            return Ok((settings.rate_iops > 0).then_some(settings.rate_iops));
        }
        let name = format!("ceiling_iops/{}", self.column.id);
        let known = journal.record.settings.get(&name).and_then(|text| text.parse::<f64>().ok());
        let ceiling = match known {
            Some(ceiling) => ceiling,
            None => {
                let mut ceiling = f64::INFINITY;
                for series in started {
                    self.check_stop()?;
                    ceiling = ceiling.min(self.ceiling(series)?);
                }
                journal.setting(&name, format!("{ceiling:.0}"));
                ceiling
            }
        };
        let rate = ceiling * f64::from(settings.rate_percent) / 100.0;
        let rate = format!("{:.0}", rate.max(1.0)).parse().unwrap_or(1);
        journal.setting(&format!("rate_iops/{}", self.column.id), rate);
        Ok(Some(rate))
    }

    /// IOPS of a series in a closed loop.
    fn ceiling(&self, series: &Started<'_>) -> Result<f64, RunError> {
        let Means::Remote(subject) = &series.means else { return Ok(f64::INFINITY) };
        let time = self.options.timing.time.mul_f64(CEILING_PART).max(CEILING_MIN);
        let pace =
            Pace { ramp: self.options.timing.ramp, time, rate_iops: None, seed: self.options.seed };
        let settings = &series.point.settings;
        let mut watch = |_: Progress| !(self.options.stop)();
        let fail = |error: String| self.failed(series, &error);
        self.enter_host(series)?;
        subject.wake();
        let mut session =
            Connected::make(settings, &**subject, &series.host_cpus, pace, &mut watch)
                .map_err(|error| fail(error.to_string()))?;
        session.set_mode(settings.host_mode.into());
        let outcome = session.run_stage().map_err(|error| fail(error.to_string()))?;
        session.set_mode(Mode::Interrupt);
        drop(session);
        subject.sleep();
        self.check_stop()?;
        let (latencies, measured, ..) =
            figures(&outcome, settings, 0).map_err(|why| self.failed(series, &why))?;
        Ok(latencies.count() as f64 / measured.as_secs_f64())
    }

    fn blocks(
        &self,
        started: &mut [Started<'_>],
        rate: Option<u64>,
        journal: &mut Journal<'_>,
    ) -> Result<(), RunError> {
        let mut watches: Vec<_> =
            started.iter().map(|_| |_: Progress| !(self.options.stop)()).collect();
        let mut sessions = Vec::with_capacity(started.len());
        for (series, watch) in started.iter().zip(&mut watches) {
            sessions.push(self.connect(series, rate, watch)?);
        }
        let measured = self.measure_blocks(started, &mut sessions, journal);
        for series in started.iter() {
            // A target that is stopped could not end its connections.
            if let Means::Remote(subject) = &series.means {
                subject.wake();
            }
        }
        measured
    }

    fn measure_blocks(
        &self,
        started: &mut [Started<'_>],
        sessions: &mut [Option<Connected<'_>>],
        journal: &mut Journal<'_>,
    ) -> Result<(), RunError> {
        let ids: Vec<&str> = started.iter().map(|it| it.point.series.id.as_str()).collect();
        let first = journal.next_block(&ids, &self.column.id);
        let mut allowed = (self.options.timing.blocks / DISCARD_PART).max(DISCARDS_MIN);
        let mut distance = self.distance(started);
        let mut block = first;
        while block < self.options.until && !started.is_empty() {
            let near = distance.wait(self.options.stop);
            let mut runs = Vec::with_capacity(started.len());
            let mut disturbed = false;
            for position in order(started.len(), block) {
                self.check_stop()?;
                let (run, disturbance) =
                    self.run(&mut started[position], &mut sessions[position], block)?;
                disturbed |= disturbance.is_too_much();
                runs.push((started[position].point.series.id.clone(), run));
            }
            let still = distance.look();
            self.options.distances.keep(distance);
            disturbed |= distance.is_far(near) || distance.is_far(still);
            self.check_stop()?;
            if disturbed && allowed > 0 {
                allowed -= 1;
                journal.record.discarded_blocks += 1;
                continue;
            }
            self.drop_idle(&mut runs, journal);
            subtract_local(started, &mut runs);
            journal.add_block(&self.column.id, runs)?;
            block += 1;
        }
        Ok(())
    }

    /// Takes out runs in which no command ended, and notes them.
    fn drop_idle(&self, runs: &mut Vec<(String, Run)>, journal: &mut Journal<'_>) {
        for (id, _) in runs.iter().filter(|(_, run)| run.latencies.is_empty()) {
            let what = format!("series {id}, column {}, at least one run", self.column.id);
            let why = "no command ended: the machine is overloaded, or the run too short";
            journal.missing(&what, why, 1);
        }
        runs.retain(|(_, run)| !run.latencies.is_empty());
    }

    fn connect<'w>(
        &self,
        series: &Started<'_>,
        rate_iops: Option<u64>,
        watch: &'w mut dyn FnMut(Progress) -> bool,
    ) -> Result<Option<Connected<'w>>, RunError> {
        let Means::Remote(subject) = &series.means else { return Ok(None) };
        let settings = &series.point.settings;
        let timing = self.options.timing;
        let pace = Pace {
            ramp: timing.ramp,
            time: settings.time(&timing),
            rate_iops,
            seed: self.options.seed,
        };
        self.enter_host(series)?;
        subject.wake();
        let session = Connected::make(settings, &**subject, &series.host_cpus, pace, watch);
        subject.sleep();
        self.check_stop()?;
        session.map(Some).map_err(|error| self.failed(series, &error.to_string()))
    }

    fn distance(&self, started: &[Started<'_>]) -> Distance {
        let first = started.first();
        let target = first.and_then(|series| series.target_cpus.first().copied());
        self.options
            .distances
            .between(target, first.and_then(|series| series.host_cpus.first().copied()))
    }

    /// One run of one series; before and after it, its host and target sleep.
    fn run(
        &self,
        series: &mut Started<'_>,
        session: &mut Option<Connected<'_>>,
        block: u32,
    ) -> Result<(Run, Disturbance), RunError> {
        let settings = &series.point.settings;
        let process = match &series.means {
            Means::Remote(subject) => subject.process(),
            Means::Local(_) | Means::Ring(_) => None,
        };
        let machine = Machine::now();
        let before = Sample::now(process, &series.target_cpus);
        let since = Instant::now();
        let counted = match (&mut series.means, session) {
            (Means::Remote(subject), Some(session)) => {
                subject.wake();
                session.set_mode(settings.host_mode.into());
                let count = |session: &Connected<'_>| {
                    let counts = subject.counts();
                    Counts { commands: session.commands().or(counts.commands), ..counts }
                };
                let counts = count(session);
                let outcome = session.run_stage();
                session.set_mode(Mode::Interrupt);
                let after = count(session);
                let alive = subject.check();
                subject.sleep();
                alive.map_err(|why| self.failed(series, &why))?;
                let outcome = outcome.map_err(|error| self.failed(series, &error.to_string()))?;
                remote(&outcome, settings, counts, after)
                    .map_err(|why| self.failed(series, &why))?
            }
            (Means::Local(local), _) => {
                let result = local.run(self.job_of(settings, block));
                alone(result.map_err(|error| self.failed(series, &error.to_string()))?)
            }
            (Means::Ring(ring), _) => {
                let job = self.job_of(settings, block);
                let result = on_cpu(series.host_cpus[0], || ring.run(&job, self.options.stop));
                let result = result.and_then(|result| result.map_err(|error| error.to_string()));
                alone(result.map_err(|why| self.failed(series, &why))?)
            }
            (Means::Remote(_), None) => return Err(self.failed(series, "it is not connected")),
        };
        let window = since.elapsed();
        let costs = Sample::now(process, &series.target_cpus).since(&before);
        let mut disturbance = Machine::now().since(&machine);
        let named = [&self.options.target, &self.options.nvmet, &self.options.nvmet_rdma];
        if process.is_some() || named.iter().any(|target| target.is_some()) {
            // The target is another process: its usage is part of the measurement.
            disturbance.foreign_percent = 0.0;
        }
        // A run in which nothing happened says nothing about the target.
        disturbance.apart |= counted.latencies.count() == 0;
        let mut counted = Counted { window, costs, ..counted };
        if counted.commands <= 0.0 {
            // The target does not count: the rate of the measured time holds for the ramp, too.
            let rate = counted.latencies.count() as f64 / counted.measured.as_secs_f64();
            counted.commands = (rate * window.as_secs_f64()).max(1.0);
        }
        let cpus = self.options.cpus.len();
        let run = Run {
            block,
            values: counted.values(settings, cpus),
            latencies: buckets(&counted.latencies),
            target_bound: counted.target_bound(settings),
            foreign_percent: disturbance.foreign_percent,
            stolen_percent: disturbance.stolen_percent,
        };
        Ok((run, disturbance))
    }

    /// The job of a block: each has addresses of its own.
    fn job_of(&self, settings: &LoadSettings, block: u32) -> LocalJob {
        job(settings, self.options.timing, self.options.seed.wrapping_add(block.into()))
    }

    fn failed(&self, series: &Started<'_>, why: &str) -> RunError {
        if (self.options.stop)() {
            return RunError::Stopped;
        }
        RunError::Failed(format!("{}: {why}", self.place(series.point)))
    }

    /// Which series and column it is, in messages.
    fn place(&self, point: &Point<'_>) -> String {
        format!("series {}, column {}", point.series.id, self.column.id)
    }

    fn check_stop(&self) -> Result<(), RunError> {
        if (self.options.stop)() { Err(RunError::Stopped) } else { Ok(()) }
    }
}

/// The order of the series in a block: forward in even ones, backward in the others.
fn order(count: usize, block: u32) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    if block % 2 == 1 {
        order.reverse();
    }
    order
}

fn job(settings: &LoadSettings, timing: Timing, seed: u64) -> LocalJob {
    LocalJob {
        mode: settings.mode(),
        mixed_read_percent: 50,
        io_bytes: settings.io_bytes,
        depth: settings.depth,
        rate_iops: None,
        ramp: timing.ramp,
        time: settings.time(&timing),
        seed,
    }
}

/// Runs `work` on a thread of its own that stays on this CPU.
fn on_cpu<T: Send>(cpu: usize, work: impl FnOnce() -> T + Send) -> Result<T, String> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            pin_to_core(cpu).map_err(|error| error.to_string())?;
            Ok(work())
        });
        thread.join().unwrap_or_else(|_| Err("the local generator panicked".to_owned()))
    })
}

/// Latencies of the measured commands, how long they were measured, commands missed, and bytes of others.
type Figures = (Latencies, Duration, u64, u64);

/// `other_io_bytes` are the bytes of a command of the jobs beside the measured one.
fn figures(
    outcome: &StageOutcome,
    settings: &LoadSettings,
    other_io_bytes: u64,
) -> Result<Figures, String> {
    let (mut all, mut time, mut missed, mut other) = (Latencies::new(), Duration::ZERO, 0, 0);
    for clone in &outcome.clones {
        if let Some(error) = &clone.error {
            return Err(match error {
                JobError::Io(why) => why.clone(),
                JobError::Mismatch(mismatch) => mismatch.to_string(),
            });
        }
        if stage::is_measured(settings, clone.job) {
            all.merge(&clone.read);
            all.merge(&clone.write);
            time = time.max(clone.measured);
            missed += clone.missed;
        } else {
            other += (clone.read.count() + clone.write.count()) * other_io_bytes;
        }
    }
    Ok((all, time, missed, other))
}

/// What a run over the network has counted; costs and window are still to be set.
fn remote(
    outcome: &StageOutcome,
    settings: &LoadSettings,
    before: Counts,
    after: Counts,
) -> Result<Counted, String> {
    let (latencies, time, missed, other_bytes) =
        figures(outcome, settings, stage::other_io_bytes(settings).into())?;
    let commands = after.commands.zip(before.commands).map(|(after, before)| after - before);
    let digests = after.digests.0 - before.digests.0;
    let fallbacks = after.digests.1 - before.digests.1;
    Ok(Counted {
        latencies,
        measured: time,
        missed,
        other_bytes,
        window: time,
        commands: commands.unwrap_or(0) as f64,
        busy: after.busy.zip(before.busy).map(|(after, before)| after.saturating_sub(before)),
        costs: Costs::default(),
        fallback_share: if digests > 0 { fallbacks as f64 / digests as f64 } else { 0.0 },
        host: Some(outcome.cost.per_io()),
    })
}

/// What a run without a network has counted.
fn alone(run: JobResult) -> Counted {
    let mut latencies = run.read;
    latencies.merge(&run.write);
    Counted {
        latencies,
        measured: run.measured,
        missed: run.missed,
        other_bytes: 0,
        window: run.measured,
        commands: 0.0,
        busy: None,
        costs: Costs::default(),
        fallback_share: 0.0,
        host: None,
    }
}

/// Adds the difference of the mean latency to that of the local series of the same block.
fn subtract_local(started: &[Started<'_>], runs: &mut [(String, Run)]) {
    let Some(local) = started.first().map(|series| &series.point.settings.delta_to) else { return };
    let mean = |run: &Run| run.values.get("mean_us").copied();
    let found = runs.iter().find(|(series, _)| series == local);
    let Some(base) = found.and_then(|(_, run)| mean(run)) else { return };
    for (series, run) in runs.iter_mut() {
        if let Some(mean) = mean(run)
            && series != local
        {
            run.values.insert("delta_us".to_owned(), mean - base);
        }
    }
}
