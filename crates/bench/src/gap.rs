//! The gap: how close Raceline's target and host come to the limit, pair of runs by pair.
//!
//! Both are measured over the loopback in this process, on the same two cores, with as much
//! memory of the same pages behind them: a short run of the bare pair of [`crate::limit`], a
//! short run of target and host, and so on in turn. What disturbs the machine for longer than a
//! run then disturbs both, and their ratio says more than either figure. Each side sleeps while
//! the other is measured, and the connections of a point are made once. A pair counts when the two
//! cores were as near as they can be ([`crate::distance`]), before it and after it.

mod grid;
pub(crate) mod product;
pub mod report;

use std::time::Duration;

use raceline_reactor::buffer::PageBuf;
use raceline_reactor::{Backend, HugePages, Mode};
use raceline_target::TargetError;

use crate::distance::Distance;
use crate::engine::{EngineError, Session};
use crate::histogram::Latencies;
use crate::job::JobError;
use crate::limit::report::median;
use crate::limit::{self, Fixed, Limit, LimitConfig, LimitError, Tuning, fill_region};

pub use grid::{Case, Selection, UnknownSelection, full, quick};

use self::product::Product;
use crate::quiet::{self, Disturbance, Machine};

/// Pairs that were disturbed are repeated until there are so many times the pairs asked for.
const ATTEMPTS_FACTOR: usize = 3;

/// When Raceline is faster than the limit, the limit's tuning is not the best: it is looked for
/// again, up to so many times in all.
const CALIBRATIONS_MAX: usize = 2;
/// A calibration during which the cores went apart is repeated, up to so many times in all.
const CALIBRATION_ATTEMPTS: usize = 2;
/// How often all commands in flight turn round before a run is measured, and meanwhile.
const RAMP_ROUNDS: u32 = 2;
/// How long each connection delays the start of a run: with a thousand of them and a shorter ramp,
/// most of a run was seen to pass before all took part.
const RAMP_PER_CONNECTION: Duration = Duration::from_millis(1);
const TIME_ROUNDS: u32 = 4;

/// How to measure, for all points.
#[derive(Clone, Debug)]
pub struct GapConfig {
    /// Bytes of the namespace, and of the limit's region.
    pub memory_bytes: usize,
    /// What both are made of.
    pub pages: HugePages,
    /// A namespace without storage against the limit out of a hot region.
    pub null: bool,
    /// The limit's host, too, has a buffer for each command in flight ([`Fixed::buffer_each`]).
    pub buffer_each: bool,
    /// Writes of the limit come through staging memory ([`Fixed::staged`]).
    pub staged: bool,
    /// How long the limit works on each command ([`Fixed::work`]).
    pub work: Duration,
    /// What the cores of target and host do when they are idle. In interrupt mode, the limit
    /// blocks as well; otherwise it polls.
    pub mode: Mode,
    /// How target and host do I/O.
    pub backend: Backend,
    /// The core of the target; `None` lets it float.
    pub target_core: Option<usize>,
    /// The core of the host; `None` lets it float.
    pub host_core: Option<usize>,
    /// Pairs of runs per point.
    pub pairs: usize,
    /// How long each run goes before it is measured, at least.
    pub ramp: Duration,
    /// How long each run is measured, at least.
    pub time: Duration,
    /// The same seed gives the same addresses and data.
    pub seed: u64,
}

/// One run of the limit and one of Raceline, next to each other in time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// Commands per second of the limit.
    pub limit_iops: f64,
    /// Commands per second of Raceline.
    pub iops: f64,
    /// What happened meanwhile.
    pub disturbance: Disturbance,
    /// How long a cache line took between the two cores and back: the longer of the times before
    /// and after. `None` where a side floats, or both share a core.
    pub round_trip: Option<Duration>,
}

/// What was found for one point.
#[derive(Clone, Debug)]
pub struct Point {
    /// Which.
    pub case: Case,
    /// The choices that were best for the limit.
    pub tuning: Tuning,
    /// As many as asked for: the quiet ones, else the least disturbed.
    pub pairs: Vec<Pair>,
    /// Pairs that were repeated because something disturbed them.
    pub repeated: usize,
    /// Those of them during which the cores were apart.
    pub repeated_apart: usize,
    /// Latencies of Raceline's commands, all runs together.
    pub latencies: Latencies,
}

/// Why a gap could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum GapError {
    /// The limit's side failed.
    #[error("the limit: {0}")]
    Limit(#[from] LimitError),
    /// Raceline's target failed.
    #[error("the target: {0}")]
    Target(#[from] TargetError),
    /// Raceline's host failed.
    #[error("the host: {0}")]
    Host(#[from] EngineError),
    /// A command failed.
    #[error("{case}: {why}")]
    Command {
        /// At which point.
        case: Case,
        /// Why.
        why: String,
    },
    /// The namespace's memory cannot be had.
    #[error("cannot map {bytes} bytes for the namespace: {error}")]
    Memory {
        /// How much.
        bytes: usize,
        /// Why.
        error: std::io::Error,
    },
    /// Asked to stop.
    #[error("stopped")]
    Stopped,
}

impl Pair {
    /// Raceline's part of the limit.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        if self.limit_iops > 0.0 { self.iops / self.limit_iops } else { 0.0 }
    }
}

/// A target and the memory of a limit, for one point after the other.
pub struct Gap {
    config: GapConfig,
    product: Product,
    /// The limit's memory, while no limit has it.
    region: Option<PageBuf>,
    /// Between the cores of the two sides.
    distance: Distance,
}

impl Gap {
    /// Starts the target with a filled namespace that can serve these cases.
    ///
    /// # Errors
    /// When memory, threads or the listening socket cannot be had.
    pub fn start(config: &GapConfig, cases: &[Case]) -> Result<Self, GapError> {
        let product = Product::start(config, cases)?;
        let distance = Distance::between(config.target_core, config.host_core);
        Ok(Self { config: config.clone(), product, region: None, distance })
    }

    /// Measures one point. `stop` is asked several times a second.
    ///
    /// # Errors
    /// When either side fails, or `stop` says true.
    pub fn measure(&mut self, case: Case, stop: &dyn Fn() -> bool) -> Result<Point, GapError> {
        let config = self.limit_config(case);
        let region = match self.region.take() {
            Some(region) => region,
            None => fill_region(config.memory_bytes, config.pages, config.seed)?,
        };
        let mut limit = Limit::start(&config, region)?;
        let mut distance = self.distance;
        let point = self.measure_with(&mut limit, case, &mut distance, stop);
        self.distance = distance;
        self.region = limit.stop();
        point
    }

    /// Ends the target.
    ///
    /// # Errors
    /// When it does not end.
    pub fn stop(self) -> Result<(), GapError> {
        Ok(self.product.stop()?)
    }

    fn measure_with(
        &self,
        limit: &mut Limit,
        case: Case,
        distance: &mut Distance,
        stop: &dyn Fn() -> bool,
    ) -> Result<Point, GapError> {
        calibrate(limit, distance, stop)?;
        // With much in flight, a short run would end before it has settled.
        let config = GapConfig {
            ramp: self
                .config
                .ramp
                .max(limit.round() * RAMP_ROUNDS)
                .max(RAMP_PER_CONNECTION * u32::from(case.connections)),
            time: self.config.time.max(limit.round() * TIME_ROUNDS),
            ..self.config.clone()
        };
        let mut watch = |_| !stop();
        let session = self.product.connect(&config, case, &mut watch)?;
        let latencies = Latencies::new();
        let mut runs = Runs { config, case, session, latencies, distance, stop };
        let mut calibrations = 1;
        loop {
            let (pairs, rejected) = runs.pairs(limit, &self.product)?;
            let mut ratios: Vec<f64> = pairs.iter().map(Pair::ratio).collect();
            ratios.sort_by(f64::total_cmp);
            if median(&ratios) <= 1.0 || calibrations == CALIBRATIONS_MAX {
                let (tuning, latencies) = (limit.tuning(), runs.latencies);
                let repeated = rejected.len();
                let repeated_apart = rejected.iter().filter(|pair| pair.disturbance.apart).count();
                return Ok(Point { case, tuning, pairs, repeated, repeated_apart, latencies });
            }
            calibrations += 1;
            calibrate(limit, runs.distance, stop)?;
        }
    }

    fn limit_config(&self, case: Case) -> LimitConfig {
        let config = &self.config;
        let hot = limit::HOT_BYTES.max(case.io_bytes as usize);
        LimitConfig {
            io_bytes: case.io_bytes as usize,
            write: case.write,
            depth: case.depth.into(),
            connections: case.connections.into(),
            memory_bytes: if config.null { hot } else { config.memory_bytes },
            pages: config.pages,
            mode: match config.mode {
                Mode::Interrupt => limit::Mode::Blocking,
                Mode::Poll | Mode::Adaptive { .. } => limit::Mode::Polled,
            },
            target_core: config.target_core,
            host_core: config.host_core,
            fixed: Fixed {
                buffer_each: config.buffer_each,
                staged: config.staged,
                work: config.work,
                ..Fixed::default()
            },
            seed: config.seed,
        }
    }
}

/// Looks for the limit's best choices while the cores are near: what is best differs when they are not.
fn calibrate(
    limit: &mut Limit,
    distance: &mut Distance,
    stop: &dyn Fn() -> bool,
) -> Result<(), GapError> {
    for _ in 0..CALIBRATION_ATTEMPTS {
        distance.wait(stop);
        if stop() {
            return Err(GapError::Stopped);
        }
        limit.calibrate()?;
        let after = distance.look();
        if !distance.is_far(after) {
            break;
        }
    }
    Ok(())
}

/// The runs of one point.
struct Runs<'a> {
    config: GapConfig,
    case: Case,
    session: Session<'a>,
    latencies: Latencies,
    distance: &'a mut Distance,
    stop: &'a dyn Fn() -> bool,
}

impl Runs<'_> {
    /// As many pairs as asked for, quiet ones if possible; and the others.
    fn pairs(
        &mut self,
        limit: &mut Limit,
        product: &Product,
    ) -> Result<(Vec<Pair>, Vec<Pair>), GapError> {
        let wanted = self.config.pairs;
        let mut pairs: Vec<Pair> = Vec::with_capacity(wanted);
        loop {
            let quiet = pairs.iter().filter(|pair| !pair.disturbance.is_too_much()).count();
            if quiet >= wanted || pairs.len() >= wanted * ATTEMPTS_FACTOR {
                break;
            }
            pairs.push(self.pair(limit, product)?);
            // Also the earlier ones: what looked near may have been far, as is known only now.
            for pair in &mut pairs {
                pair.disturbance.apart = self.distance.is_far(pair.round_trip);
            }
        }
        Ok(quiet::choose(pairs, wanted, |pair| pair.disturbance))
    }

    fn pair(&mut self, limit: &mut Limit, product: &Product) -> Result<Pair, GapError> {
        let near = self.distance.wait(self.stop);
        let before = Machine::now();
        let bare = limit.run(self.config.ramp, self.config.time)?;
        self.config.seed = self.config.seed.wrapping_add(1);
        let outcome = product.run(&self.config, &mut self.session)?;
        let mut disturbance = Machine::now().since(&before);
        if (self.stop)() {
            return Err(GapError::Stopped);
        }
        let round_trip = near.max(self.distance.look());
        if let Some(error) = outcome.error {
            let why = match error {
                JobError::Io(why) => why,
                JobError::Mismatch(mismatch) => mismatch.to_string(),
            };
            return Err(GapError::Command { case: self.case, why });
        }
        let side = if self.case.write { &outcome.write } else { &outcome.read };
        self.latencies.merge(side);
        let iops = side.count() as f64 / outcome.measured.as_secs_f64().max(f64::MIN_POSITIVE);
        disturbance.apart = self.distance.is_far(round_trip);
        Ok(Pair { limit_iops: bare.iops(), iops, disturbance, round_trip })
    }
}
