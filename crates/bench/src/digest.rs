//! The cost of data digests for a target's core: without, in software, and offloaded.
//!
//! One target for each way runs on the same core and exports the same memory; they take turns in short
//! runs, and sleep in between. The result is the core's time for a command: the busy part of its time over
//! IOPS. The host, on its own core, checks every digest by the fastest path.
//!
//! Beside the measured figures stand those of the [model](crate::model), and published ones.

pub mod report;
mod side;

use std::fmt;
use std::time::Duration;

use raceline_accel::{CrcPath, CrcPathError, TableError};
use raceline_reactor::{Backend, HugePages, Mode};
use raceline_target::TargetError;

use crate::accel::Device;
use crate::distance::Distance;
use crate::gap::product::filled_ram;
use crate::limit::report::{median, size_name};
use crate::model::published;
use crate::quiet::{self, Disturbance, Machine};
use crate::runner::{Progress, RunError, Session};

use self::side::Side;

/// Most commands in flight on one queue; a greater depth is spread over several queues.
const QUEUE_DEPTH: u32 = 64;
/// Most commands in flight on all queues.
pub const DEPTH_MAX: u32 = 4096;
/// Disturbed rounds are repeated until this many times the requested number of rounds has been run.
const ATTEMPTS_FACTOR: usize = 2;
/// Additional ramp of a run for each queue.
const RAMP_PER_QUEUE: Duration = Duration::from_millis(1);

/// The settings of a measurement, for all cases.
#[derive(Clone, Debug)]
pub struct DigestConfig {
    /// Bytes of the namespace.
    pub memory_bytes: usize,
    /// The pages of its memory.
    pub pages: HugePages,
    /// The paths of CRC32C in software; the last is the usual one on this machine.
    pub paths: Vec<CrcPath>,
    /// The engine to measure, if any.
    pub device: Option<Device>,
    /// What the cores do when they are idle. For a core that sleeps, the IOPS per core are too low: its
    /// wake-ups are not counted as work.
    pub mode: Mode,
    /// How target and host do I/O.
    pub backend: Backend,
    /// The core of the target; `None` lets it float.
    pub target_core: Option<usize>,
    /// The core of the host; `None` lets it float.
    pub host_core: Option<usize>,
    /// Runs of each way.
    pub rounds: usize,
    /// The least ramp of each run before it is measured.
    pub ramp: Duration,
    /// How long each run is measured.
    pub time: Duration,
    /// The same seed gives the same addresses and data.
    pub seed: u64,
}

/// Commands of one size and direction at one depth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Bytes per command.
    pub io_bytes: u32,
    /// Commands in flight, all queues together.
    pub depth: u32,
    /// Whether they are writes; otherwise reads. The model and the published figures are for reads.
    pub write: bool,
}

/// The unit that computes the target's data digests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// None: there are no digests.
    Nobody,
    /// The target's core, on this path.
    Software(CrcPath),
    /// An engine computes them.
    Offload {
        /// Its name.
        name: &'static str,
        /// Whether it only emulates a device.
        is_emulated: bool,
    },
}

/// One run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Run {
    /// Commands per second.
    pub iops: f64,
    /// Busy time of the target's core per command, in nanoseconds.
    pub core_ns: f64,
    /// The share of digests that an engine was to compute and software did.
    pub fallback_share: f64,
}

/// One run of each way in turn.
#[derive(Clone, Debug, PartialEq)]
pub struct Round {
    /// A run of each way.
    pub runs: Vec<Run>,
    /// Disturbances during the round.
    pub disturbance: Disturbance,
}

/// The results for one case.
#[derive(Clone, Debug)]
pub struct Point {
    /// The case.
    pub case: Case,
    /// The requested number of rounds: the quiet ones, then the least disturbed.
    pub rounds: Vec<Round>,
    /// Rounds that were repeated because something disturbed them.
    pub repeated: usize,
}

/// Why digests could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum DigestError {
    /// A target failed.
    #[error("the target: {0}")]
    Target(#[from] TargetError),
    /// A host failed.
    #[error("the host: {0}")]
    Host(#[from] RunError),
    /// The engines are not available.
    #[error("{0}")]
    Table(#[from] TableError),
    /// A path cannot be used.
    #[error("{0}")]
    Path(#[from] CrcPathError),
    /// A command failed.
    #[error("{case}, {who}: {why}")]
    Command {
        /// The case.
        case: Case,
        /// The unit that computed the digests.
        who: Who,
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
    /// The caller asked to stop.
    #[error("stopped")]
    Stopped,
}

impl Case {
    /// Reads.
    #[must_use]
    pub const fn read(io_bytes: u32, depth: u32) -> Self {
        Self { io_bytes, depth, write: false }
    }

    /// Number of queues, and commands in flight on each.
    #[must_use]
    pub fn queues(self) -> (u16, u16) {
        let queues = self.depth.div_ceil(QUEUE_DEPTH).max(1);
        let small = |number| u16::try_from(number).unwrap_or(u16::MAX);
        (small(queues), small(self.depth / queues))
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (queues, depth) = self.queues();
        let size = size_name(self.io_bytes as usize);
        let direction = if self.write { "write" } else { "read" };
        write!(f, "{size} {direction} depth {} ({depth} x {queues})", self.depth)
    }
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nobody => f.write_str("no digest"),
            Self::Software(path) => write!(f, "software, {path}"),
            Self::Offload { name, is_emulated: false } => write!(f, "offload, {name}"),
            Self::Offload { name, is_emulated: true } => write!(f, "offload, {name} (emulation)"),
        }
    }
}

/// The cases of the published table; `quick` leaves out the depths in between.
#[must_use]
pub fn cases(quick: bool) -> Vec<Case> {
    let [least, .., most] = published::DEPTHS;
    let mut cases = Vec::new();
    for io_bytes in published::SIZES {
        for depth in published::DEPTHS {
            if !quick || depth == least || depth == most {
                cases.push(Case::read(io_bytes, depth));
            }
        }
    }
    cases
}

/// The paths of CRC32C that this machine has, the usual one last.
#[must_use]
pub fn paths() -> Vec<CrcPath> {
    let all = [CrcPath::Table, CrcPath::Sse42, CrcPath::Avx512, CrcPath::Neon];
    let mut paths: Vec<CrcPath> = all.into_iter().filter(|path| path.is_available()).collect();
    if !matches!(paths.last(), Some(CrcPath::Avx512 | CrcPath::Neon)) {
        paths.push(CrcPath::Auto);
    }
    paths
}

/// Targets that handle digests in every way.
pub struct DigestBench {
    config: DigestConfig,
    sides: Vec<Side>,
    /// Number of runs so far: each has a seed of its own.
    runs: u64,
    /// Distance between the cores of target and host.
    distance: Distance,
}

impl DigestBench {
    /// Starts the targets on a filled namespace that can serve these cases.
    ///
    /// # Errors
    /// When memory, threads, an engine or the listening sockets are not available.
    pub fn start(config: DigestConfig, cases: &[Case]) -> Result<Self, DigestError> {
        let bytes = config.memory_bytes;
        let bdev = filled_ram(bytes, config.pages, config.seed)
            .map_err(|error| DigestError::Memory { bytes, error })?;
        let queues = cases.iter().map(|case| case.queues().0).max().unwrap_or(1);
        let mut sides = Vec::new();
        for who in ways(&config) {
            sides.push(Side::start(who, &config, &bdev, queues)?);
        }
        let distance = Distance::between(config.target_core, config.host_core);
        Ok(Self { config, sides, runs: 0, distance })
    }

    /// The ways of a round, in order: first the one without digests.
    #[must_use]
    pub fn ways(&self) -> Vec<Who> {
        self.sides.iter().map(|side| side.who).collect()
    }

    /// Measures one case. `stop` is asked several times a second.
    ///
    /// # Errors
    /// When a side fails, or `stop` says true.
    pub fn measure(&mut self, case: Case, stop: &dyn Fn() -> bool) -> Result<Point, DigestError> {
        let queues = u32::from(case.queues().0);
        let config = DigestConfig {
            ramp: self.config.ramp.max(RAMP_PER_QUEUE * queues),
            ..self.config.clone()
        };
        let mut watches: Vec<_> = self.sides.iter().map(|_| |_: Progress| !stop()).collect();
        let mut sessions = Vec::new();
        for (side, watch) in self.sides.iter().zip(&mut watches) {
            sessions.push(side.connect(&config, case, watch)?);
        }
        let wanted = config.rounds;
        let (mut rounds, mut quiet): (Vec<Round>, usize) = (Vec::new(), 0);
        while quiet < wanted && rounds.len() < wanted * ATTEMPTS_FACTOR {
            self.runs += 1;
            let seed = config.seed.wrapping_add(self.runs);
            let before = self.distance.wait(stop);
            let mut round = round(&config, case, &self.sides, &mut sessions, seed)?;
            if stop() {
                return Err(DigestError::Stopped);
            }
            let after = self.distance.look();
            let is_far = |found| self.distance.is_far(found);
            round.disturbance.apart = is_far(before) || is_far(after);
            quiet += usize::from(!round.disturbance.is_too_much());
            rounds.push(round);
        }
        let (rounds, rejected) = quiet::choose(rounds, wanted, |round| round.disturbance);
        Ok(Point { case, rounds, repeated: rejected.len() })
    }

    /// Ends the targets.
    ///
    /// # Errors
    /// When a target does not end.
    pub fn stop(self) -> Result<(), DigestError> {
        self.sides.into_iter().try_for_each(Side::stop)
    }
}

/// The ways to compare.
fn ways(config: &DigestConfig) -> Vec<Who> {
    let device = config.device.as_ref();
    let offload = device
        .map(|device| Who::Offload { name: device.engine.name(), is_emulated: device.is_emulated });
    let software = config.paths.iter().copied().map(Who::Software);
    std::iter::once(Who::Nobody).chain(software).chain(offload).collect()
}

fn round(
    config: &DigestConfig,
    case: Case,
    sides: &[Side],
    sessions: &mut [Session<'_>],
    seed: u64,
) -> Result<Round, DigestError> {
    let before = Machine::now();
    let mut runs = Vec::with_capacity(sides.len());
    for (side, session) in sides.iter().zip(sessions) {
        runs.push(side.run(config, case, session, seed)?);
    }
    Ok(Round { runs, disturbance: Machine::now().since(&before) })
}

impl Point {
    /// The median over the rounds of a figure of one way's runs.
    fn median(&self, way: usize, figure: impl Fn(&Run) -> f64) -> f64 {
        let mut values: Vec<f64> =
            self.rounds.iter().map(|round| figure(&round.runs[way])).collect();
        values.sort_by(f64::total_cmp);
        median(&values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_is_spread_over_queues() {
        let queues = |depth| Case::read(4096, depth).queues();
        assert_eq!((queues(1), queues(64)), ((1, 1), (1, 64)));
        assert_eq!((queues(128), queues(1024)), ((2, 64), (16, 64)));
        let case = Case::read(16 << 10, 256);
        assert_eq!(case.to_string(), "16k read depth 256 (64 x 4)");
    }

    #[test]
    fn the_cases_are_those_that_were_published() {
        assert_eq!((cases(false).len(), cases(true).len()), (12, 6));
        assert!(cases(false).iter().all(|case| {
            published::gain(case.io_bytes, case.depth).is_some() && case.depth <= DEPTH_MAX
        }));
    }

    #[test]
    fn paths_end_with_the_usual_one() {
        let paths = paths();
        assert_eq!(paths[0], CrcPath::Table);
        let last = paths.last().unwrap();
        assert!(matches!(last, CrcPath::Auto | CrcPath::Avx512 | CrcPath::Neon), "{last}");
    }
}
