//! The gap: how close Raceline's target and host come to the limit, by pairs of runs.
//!
//! Both are measured over the loopback in this process, on the same two cores, with the same amount of
//! memory in the same pages: a short run of the bare pair of [`crate::limit`], a short run of target and
//! host, and so on in turn. A disturbance that outlasts a run then affects both, and their ratio says more
//! than either figure. Each side sleeps while the other is measured, and the connections of a point are
//! made once. A pair counts when the two cores were as near as they can be ([`crate::distance`]), before it
//! and after it.
//!
//! Raceline's target is the daemon of `raceline serve` or the target of `raceline export`. The two are also
//! measured against each other ([`Subject::Both`]): they run in turn, and the other one sleeps.
//!
//! Over TLS, the bare pair makes and opens records, and a third run in each pair is the product without TLS.

mod daemon;
mod grid;
pub(crate) mod product;
pub mod report;

use std::time::Duration;

use raceline_auth::KeyError;
use raceline_reactor::buffer::PageBuf;
use raceline_reactor::{Backend, HugePages, Mode};
use raceline_target::TargetError;
use raceline_tls::Suite;

use crate::distance::{Distance, Distances};
use crate::histogram::Latencies;
use crate::job::JobError;
use crate::limit::report::median;
use crate::limit::{self, Fixed, Limit, LimitConfig, LimitError, Tuning, fill_region};
use crate::runner::{RunError, Session};

pub use grid::{Case, Selection, UnknownSelection, full, quick};
pub use product::filled_ram;

use self::product::Product;
use crate::quiet::{self, Disturbance, Machine};

/// Disturbed pairs are repeated until this many times the requested number of pairs has been run.
const ATTEMPTS_FACTOR: usize = 3;

/// When Raceline is faster than the limit, the limit's tuning is not the best: the search is repeated, up
/// to this many calibrations in total.
const CALIBRATIONS_MAX: usize = 2;
/// A calibration during which the cores moved apart is repeated, up to this many attempts in total.
const CALIBRATION_ATTEMPTS: usize = 2;
/// Round trips of all commands in flight before a run is measured, and during it.
const RAMP_ROUNDS: u32 = 2;
/// Additional ramp of a run for each connection: with a thousand connections and a shorter ramp, most of a
/// run passed before all took part.
const RAMP_PER_CONNECTION: Duration = Duration::from_millis(1);
const TIME_ROUNDS: u32 = 4;

/// The target of Raceline that is measured, and its reference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Subject {
    /// The daemon of `raceline serve` beside the limit.
    #[default]
    Serve,
    /// The target of `raceline export` beside the limit.
    Export,
    /// The daemon beside the target of `raceline export`.
    Both,
}

/// A way to run Raceline's target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Export,
    Serve,
}

/// The settings of a measurement, for all points.
#[derive(Clone, Debug)]
pub struct GapConfig {
    /// The target that is measured, and its reference.
    pub subject: Subject,
    /// Bytes of the namespace, and of the limit's region.
    pub memory_bytes: usize,
    /// The pages of both memories.
    pub pages: HugePages,
    /// Measure a namespace without storage against the limit with a hot region.
    pub null: bool,
    /// The limit's host, too, has a buffer for each command in flight ([`Fixed::buffer_each`]).
    pub buffer_each: bool,
    /// Writes of the limit come through staging memory ([`Fixed::staged`]).
    pub staged: bool,
    /// How long the limit works on each command ([`Fixed::work`]).
    pub work: Duration,
    /// Both over TLS with this suite, and the product without TLS as well; for [`Subject::Export`] only.
    pub tls: Option<Suite>,
    /// What the cores of target and host do when they are idle. In interrupt mode the limit blocks as well;
    /// otherwise it polls.
    pub mode: Mode,
    /// How target and host do I/O.
    pub backend: Backend,
    /// The core of the target; `None` lets it float.
    pub target_core: Option<usize>,
    /// The core of the host; `None` lets it float.
    pub host_core: Option<usize>,
    /// Pairs of runs per point.
    pub pairs: usize,
    /// The least ramp of each run before it is measured.
    pub ramp: Duration,
    /// The least measured time of each run.
    pub time: Duration,
    /// The same seed gives the same addresses and data.
    pub seed: u64,
    /// What is known of the distance of the two cores.
    pub distances: Distances,
}

/// One run of the reference and one of Raceline, next to each other in time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// Commands per second of the limit, or of `raceline export` ([`Subject::Both`]).
    pub reference_iops: f64,
    /// Commands per second of Raceline.
    pub iops: f64,
    /// The same without TLS, if both were measured over TLS.
    pub plain_iops: Option<f64>,
    /// Disturbances during the pair.
    pub disturbance: Disturbance,
    /// Round trip of a cache line between the two cores: the longer of the times before and after. `None`
    /// if a side floats, or both share a core.
    pub round_trip: Option<Duration>,
}

/// The results for one point.
#[derive(Clone, Debug)]
pub struct Point {
    /// The point.
    pub case: Case,
    /// The best choices for the limit, if it was measured.
    pub tuning: Option<Tuning>,
    /// The requested number of pairs: the quiet ones, then the least disturbed.
    pub pairs: Vec<Pair>,
    /// Pairs that were repeated because something disturbed them.
    pub repeated: usize,
    /// Number of repeated pairs during which the cores were apart.
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
    /// The daemon of `raceline serve` failed.
    #[error("the daemon: {0}")]
    Daemon(String),
    /// The settings exclude each other.
    #[error("{0}")]
    Invalid(String),
    /// Raceline's host failed.
    #[error("the host: {0}")]
    Host(#[from] RunError),
    /// The key for TLS cannot be made.
    #[error("the key for TLS: {0}")]
    Key(#[from] KeyError),
    /// A command failed.
    #[error("{case}: {why}")]
    Command {
        /// The point.
        case: Case,
        /// The reason.
        why: String,
    },
    /// The namespace's memory cannot be allocated.
    #[error("cannot map {bytes} bytes for the namespace: {error}")]
    Memory {
        /// Size of the memory.
        bytes: usize,
        /// The reason.
        error: std::io::Error,
    },
    /// The thread that shakes hands cannot be started.
    #[error("cannot start a thread for handshakes: {0}")]
    Storm(std::io::Error),
    /// The caller asked to stop.
    #[error("stopped")]
    Stopped,
}

impl Subject {
    /// The measured target: `serve` or `export`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Serve | Self::Both => "serve",
            Self::Export => "export",
        }
    }

    /// The reference: `limit` or `export`.
    #[must_use]
    pub fn reference(self) -> &'static str {
        match self {
            Self::Serve | Self::Export => "limit",
            Self::Both => "export",
        }
    }
}

impl GapError {
    pub(crate) fn command(case: Case, error: JobError) -> Self {
        let why = match error {
            JobError::Io(why) => why,
            JobError::Mismatch(mismatch) => mismatch.to_string(),
        };
        Self::Command { case, why }
    }
}

impl Pair {
    /// Raceline's IOPS relative to the limit, or the daemon's relative to `raceline export`.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        if self.reference_iops > 0.0 { self.iops / self.reference_iops } else { 0.0 }
    }

    /// Raceline's IOPS over TLS relative to those without it, if both were measured.
    #[must_use]
    pub fn plain_ratio(&self) -> Option<f64> {
        self.plain_iops.filter(|iops| *iops > 0.0).map(|iops| self.iops / iops)
    }
}

/// A target and its reference, for one point after the other.
pub struct Gap {
    config: GapConfig,
    product: Product,
    /// The target of `raceline export`, if it is the reference of the daemon.
    export: Option<Product>,
    /// The limit's memory, while no limit uses it.
    region: Option<PageBuf>,
    /// The distance between the cores of the two sides.
    distance: Distance,
}

impl Gap {
    /// Starts the target, or both, with a filled namespace that can serve these cases.
    ///
    /// # Errors
    /// When memory, threads or the listening socket are not available, or a daemon cannot do what the
    /// settings ask for.
    pub fn start(config: &GapConfig, cases: &[Case]) -> Result<Self, GapError> {
        if config.tls.is_some() && config.subject != Subject::Export {
            let why = "the daemon is not measured over TLS: choose --target export";
            return Err(GapError::Invalid(why.to_owned()));
        }
        let start = |kind| Product::start(kind, config, cases);
        let (product, export) = match config.subject {
            Subject::Serve => (start(Kind::Serve)?, None),
            Subject::Export => (start(Kind::Export)?, None),
            Subject::Both => (start(Kind::Serve)?, Some(start(Kind::Export)?)),
        };
        let distance = config.distances.between(config.target_core, config.host_core);
        Ok(Self { config: config.clone(), product, export, region: None, distance })
    }

    /// Measures one point. `stop` is asked several times a second.
    ///
    /// # Errors
    /// When either side fails, or `stop` says true.
    pub fn measure(&mut self, case: Case, stop: &dyn Fn() -> bool) -> Result<Point, GapError> {
        let mut distance = self.distance;
        let point = if let Some(export) = &self.export {
            self.beside_export(export, case, &mut distance, stop)
        } else {
            let config = self.limit_config(case);
            let region = match self.region.take() {
                Some(region) => region,
                None => fill_region(config.memory_bytes, config.pages, config.seed)?,
            };
            let mut limit = Limit::start(&config, region)?;
            let point = self.beside_limit(&mut limit, case, &mut distance, stop);
            self.region = limit.stop();
            point
        };
        self.distance = distance;
        self.config.distances.keep(distance);
        point
    }

    /// Ends the targets.
    ///
    /// # Errors
    /// When a target does not end.
    pub fn stop(self) -> Result<(), GapError> {
        let export = self.export.map_or(Ok(()), Product::stop);
        self.product.stop().and(export)
    }

    fn beside_limit(
        &self,
        limit: &mut Limit,
        case: Case,
        distance: &mut Distance,
        stop: &dyn Fn() -> bool,
    ) -> Result<Point, GapError> {
        let over_tls = self.config.tls.is_some();
        calibrate(limit, over_tls, distance, stop)?;
        let config = self.times_for(case, limit.round());
        let (mut watch, mut watch_plain) = (|_| !stop(), |_| !stop());
        let session = self.product.connect(&config, case, &mut watch)?;
        let product = Side { product: &self.product, session };
        let mut runs = Runs::new(config, case, product, distance, stop);
        if over_tls {
            let config = GapConfig { tls: None, ..runs.config.clone() };
            let session = self.product.connect(&config, case, &mut watch_plain)?;
            runs.plain = Some(Side { product: &self.product, session });
        }
        let mut calibrations = 1;
        loop {
            let (pairs, rejected) = runs.pairs(&mut Reference::Limit(limit))?;
            let mut ratios: Vec<f64> = pairs.iter().map(Pair::ratio).collect();
            ratios.sort_by(f64::total_cmp);
            if median(&ratios) <= 1.0 || calibrations == CALIBRATIONS_MAX {
                let tuning = if over_tls { limit.tls_tuning() } else { limit.tuning() };
                return Ok(runs.point(Some(tuning), pairs, &rejected));
            }
            calibrations += 1;
            calibrate(limit, over_tls, runs.distance, stop)?;
        }
    }

    fn beside_export(
        &self,
        export: &Product,
        case: Case,
        distance: &mut Distance,
        stop: &dyn Fn() -> bool,
    ) -> Result<Point, GapError> {
        let config = self.times_for(case, self.round(export, case, stop)?);
        let (mut watch, mut watch_export) = (|_| !stop(), |_| !stop());
        let session = export.connect(&config, case, &mut watch_export)?;
        let export = Side { product: export, session };
        let session = self.product.connect(&config, case, &mut watch)?;
        let product = Side { product: &self.product, session };
        let mut runs = Runs::new(config, case, product, distance, stop);
        let (pairs, rejected) = runs.pairs(&mut Reference::Export(Box::new(export)))?;
        Ok(runs.point(None, pairs, &rejected))
    }

    /// Round-trip time of all commands in flight, from a run that does not count.
    fn round(
        &self,
        product: &Product,
        case: Case,
        stop: &dyn Fn() -> bool,
    ) -> Result<Duration, GapError> {
        let mut watch = |_| !stop();
        let session = product.connect(&self.config, case, &mut watch)?;
        let run = Side { product, session }.run(&self.config, case)?;
        let in_flight = f64::from(case.depth) * f64::from(case.connections);
        Ok(Duration::try_from_secs_f64(in_flight / run.iops).unwrap_or_default())
    }

    /// Times for a point: with many commands in flight, a short run would end before it has settled.
    fn times_for(&self, case: Case, round: Duration) -> GapConfig {
        let ramp = self.config.ramp.max(round * RAMP_ROUNDS);
        GapConfig {
            ramp: ramp.max(RAMP_PER_CONNECTION * u32::from(case.connections)),
            time: self.config.time.max(round * TIME_ROUNDS),
            ..self.config.clone()
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
            tls: config.tls,
            seed: config.seed,
        }
    }
}

/// Searches the limit's best choices while the cores are near: other choices are best while they are apart.
fn calibrate(
    limit: &mut Limit,
    over_tls: bool,
    distance: &mut Distance,
    stop: &dyn Fn() -> bool,
) -> Result<(), GapError> {
    for _ in 0..CALIBRATION_ATTEMPTS {
        distance.wait(stop);
        if stop() {
            return Err(GapError::Stopped);
        }
        if over_tls {
            limit.calibrate_with_tls()?;
        } else {
            limit.calibrate()?;
        }
        let after = distance.look();
        if !distance.is_far(after) {
            break;
        }
    }
    Ok(())
}

/// A target and a connected host.
struct Side<'a> {
    product: &'a Product,
    session: Session<'a>,
}

/// The results of one run of Raceline.
struct Run {
    iops: f64,
    latencies: Latencies,
}

impl Side<'_> {
    /// One run; before and after it, target and host sleep.
    fn run(&mut self, config: &GapConfig, case: Case) -> Result<Run, GapError> {
        let outcome = self.product.run(config, &mut self.session)?;
        if let Some(error) = outcome.error {
            return Err(GapError::command(case, error));
        }
        let latencies = if case.write { outcome.write } else { outcome.read };
        let seconds = outcome.measured.as_secs_f64().max(f64::MIN_POSITIVE);
        Ok(Run { iops: latencies.count() as f64 / seconds, latencies })
    }
}

/// The reference of Raceline at one point.
enum Reference<'a> {
    Limit(&'a mut Limit),
    /// `raceline export`, if the daemon is measured.
    Export(Box<Side<'a>>),
}

/// The runs of one point.
struct Runs<'a> {
    config: GapConfig,
    case: Case,
    product: Side<'a>,
    /// The product without TLS, if the other one is over TLS.
    plain: Option<Side<'a>>,
    latencies: Latencies,
    distance: &'a mut Distance,
    stop: &'a dyn Fn() -> bool,
}

impl<'a> Runs<'a> {
    fn new(
        config: GapConfig,
        case: Case,
        product: Side<'a>,
        distance: &'a mut Distance,
        stop: &'a dyn Fn() -> bool,
    ) -> Self {
        Self { config, case, product, plain: None, latencies: Latencies::new(), distance, stop }
    }

    /// The requested number of pairs, quiet ones if possible; and the other pairs.
    fn pairs(&mut self, reference: &mut Reference<'_>) -> Result<(Vec<Pair>, Vec<Pair>), GapError> {
        let wanted = self.config.pairs;
        let mut pairs: Vec<Pair> = Vec::with_capacity(wanted);
        loop {
            let quiet = pairs.iter().filter(|pair| !pair.disturbance.is_too_much()).count();
            if quiet >= wanted || pairs.len() >= wanted * ATTEMPTS_FACTOR {
                break;
            }
            pairs.push(self.pair(reference, pairs.len())?);
            // Also for earlier pairs: what is known now may show that the cores were far.
            for pair in &mut pairs {
                pair.disturbance.apart = self.distance.is_far(pair.round_trip);
            }
        }
        Ok(quiet::choose(pairs, wanted, |pair| pair.disturbance))
    }

    fn pair(&mut self, reference: &mut Reference<'_>, number: usize) -> Result<Pair, GapError> {
        let near = self.distance.wait(self.stop);
        let before = Machine::now();
        let (reference_iops, run) = self.both(reference, number)?;
        let plain = self.plain.as_mut().map(|plain| plain.run(&self.config, self.case));
        let plain_iops = plain.transpose()?.map(|run| run.iops);
        let mut disturbance = Machine::now().since(&before);
        if (self.stop)() {
            return Err(GapError::Stopped);
        }
        let round_trip = near.max(self.distance.look());
        self.latencies.merge(&run.latencies);
        disturbance.apart = self.distance.is_far(round_trip);
        Ok(Pair { reference_iops, iops: run.iops, plain_iops, disturbance, round_trip })
    }

    /// The two targets take turns in going first, so that neither always follows the other.
    fn both(
        &mut self,
        reference: &mut Reference<'_>,
        number: usize,
    ) -> Result<(f64, Run), GapError> {
        let case = self.case;
        self.config.seed = self.config.seed.wrapping_add(1);
        match reference {
            Reference::Limit(limit) => {
                let (ramp, time) = (self.config.ramp, self.config.time);
                let bare = match self.config.tls {
                    Some(_) => limit.run_with_tls(ramp, time)?,
                    None => limit.run(ramp, time)?,
                };
                Ok((bare.iops(), self.product.run(&self.config, case)?))
            }
            Reference::Export(export) if number.is_multiple_of(2) => {
                let other = export.run(&self.config, case)?;
                Ok((other.iops, self.product.run(&self.config, case)?))
            }
            Reference::Export(export) => {
                let run = self.product.run(&self.config, case)?;
                Ok((export.run(&self.config, case)?.iops, run))
            }
        }
    }

    fn point(self, tuning: Option<Tuning>, pairs: Vec<Pair>, rejected: &[Pair]) -> Point {
        let repeated_apart = rejected.iter().filter(|pair| pair.disturbance.apart).count();
        Point {
            case: self.case,
            tuning,
            pairs,
            repeated: rejected.len(),
            repeated_apart,
            latencies: self.latencies,
        }
    }
}
