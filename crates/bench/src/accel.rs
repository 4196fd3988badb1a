//! The cost of an operation: called directly, through the framework in software, and on an engine.
//!
//! All ways to do one operation on operands of one size take turns in short runs, so that a disturbance
//! that outlasts a run slows all of them down.

mod contender;
mod operands;
pub mod report;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use raceline_accel::{
    AccelError, ChannelConfig, CrcPath, CrcPathError, Engine, Framework, OpCode, TableError,
};

use self::contender::BenchChannel;
use self::operands::{WorkingSet, direct_name};

/// The working set of one set of operands for each operation in flight, which fits in the caches.
pub const HOT: usize = 0;
/// Operations whose results are checked before the timed runs.
const CHECKED: usize = 64;
/// Rounds of [`contender::core_time`]; the median is the result.
const CORE_ROUNDS: usize = 15;
/// Most operations in flight.
pub const DEPTH_MAX: usize = 1024;
/// Largest operand.
pub const SIZE_MAX: usize = 64 << 20;

/// What to measure, and how.
#[derive(Clone, Debug)]
pub struct AccelConfig {
    /// The operations.
    pub operations: Vec<OpCode>,
    /// Measure the software engine on these paths of CRC32C, and the same without the framework; operations
    /// without a CRC have one way only. Empty: neither is measured.
    pub paths: Vec<CrcPath>,
    /// The other engines to measure.
    pub devices: Vec<Device>,
    /// Bytes of an operand.
    pub sizes: Vec<usize>,
    /// Operations in flight, for engines that complete asynchronously.
    pub depths: Vec<usize>,
    /// Bytes of all operands together, or [`HOT`].
    pub working_sets: Vec<usize>,
    /// Number of runs of each way.
    pub runs: usize,
    /// Approximate duration of a run.
    pub time: Duration,
    /// The same seed gives the same data.
    pub seed: u64,
}

/// An engine that completes asynchronously.
#[derive(Clone, Debug)]
pub struct Device {
    /// The engine.
    pub engine: Arc<dyn Engine>,
    /// Whether it only emulates a device: its speed is then not that of a device.
    pub is_emulated: bool,
}

/// Operands of one kind and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// The operation.
    pub operation: OpCode,
    /// Bytes of an operand.
    pub size: usize,
    /// Bytes of all operands together, or [`HOT`].
    pub working_set: usize,
}

/// A way to do an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// A direct call, without the framework.
    Direct(&'static str),
    /// Through the framework, in software; with a digest, on this path.
    Software(Option<CrcPath>),
    /// Through the framework, on an engine.
    Device {
        /// Its name.
        name: &'static str,
        /// Whether it only emulates a device.
        is_emulated: bool,
        /// Operations in flight.
        depth: usize,
    },
}

/// The results of one way.
#[derive(Clone, Debug)]
pub struct Row {
    /// The operands.
    pub case: Case,
    /// The way.
    pub way: Way,
    /// Bytes of the operands that were used.
    pub touched_bytes: usize,
    /// Time per operation in nanoseconds, of each run in order.
    pub runs_ns: Vec<f64>,
    /// The way that it is compared with, and that way's runs beside these.
    pub against: Option<(Way, Vec<f64>)>,
    /// Time of the core that uses the engine, per operation, in nanoseconds.
    pub core_ns: Option<f64>,
    /// The share of operations that an engine was to do and software did.
    pub fallback_share: f64,
}

/// Why nothing could be measured.
#[derive(Debug, thiserror::Error)]
pub enum AccelBenchError {
    /// The framework cannot be set up.
    #[error("{0}")]
    Table(#[from] TableError),
    /// A path of CRC32C cannot be taken.
    #[error("{0}")]
    Path(#[from] CrcPathError),
    /// An operation failed.
    #[error("{operation}: {error}")]
    Failed {
        /// The operation.
        operation: OpCode,
        /// The reason.
        error: AccelError,
    },
    /// An operation gave a wrong result.
    #[error("{0} gives a wrong result")]
    Wrong(OpCode),
    /// The software engine did not complete an operation at once.
    #[error("{0} was not complete when it was submitted, as software must be")]
    NotAtOnce(OpCode),
    /// An engine does not complete operations that it was given.
    #[error("{operation}: only {completed} of {count} operations were complete after 10 s")]
    Stuck {
        /// The operation.
        operation: OpCode,
        /// Operations that it completed.
        completed: u64,
        /// Operations that it was given.
        count: u64,
    },
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Direct(name) => f.write_str(name),
            Self::Software(None) => f.write_str("software"),
            Self::Software(Some(path)) => write!(f, "software, {path}"),
            Self::Device { name, is_emulated: false, .. } => f.write_str(name),
            Self::Device { name, is_emulated: true, .. } => write!(f, "{name} (emulation)"),
        }
    }
}

/// Channels to all engines.
pub struct AccelBench {
    config: AccelConfig,
    /// One channel for each path.
    software: Vec<BenchChannel>,
    devices: Vec<OpenDevice>,
}

struct OpenDevice {
    name: &'static str,
    is_emulated: bool,
    framework: Framework,
    channel: BenchChannel,
}

/// A way, ready to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contender {
    Direct,
    /// The software channel of this index, one for each path.
    Software(usize),
    Device {
        index: usize,
        depth: usize,
    },
}

impl AccelBench {
    /// Opens channels to the engines, for use on the calling thread.
    ///
    /// # Errors
    /// When an engine gives no queue.
    pub fn open(config: AccelConfig) -> Result<Self, AccelBenchError> {
        let channel = ChannelConfig::default();
        let mut software = Vec::new();
        for &path in &config.paths {
            let framework = Framework::software();
            framework.force_crc_path(path)?;
            software.push(framework.open_channel(&channel)?);
        }
        let mut devices = Vec::new();
        for Device { engine, is_emulated } in &config.devices {
            let framework = Framework::new(vec![Arc::clone(engine)])?;
            for code in engine.operations().iter() {
                framework.assign(code, engine.name())?;
            }
            let channel = framework.open_channel(&channel)?;
            let (name, is_emulated) = (engine.name(), *is_emulated);
            devices.push(OpenDevice { name, is_emulated, framework, channel });
        }
        Ok(Self { config, software, devices })
    }

    /// The cases, one operation after the other.
    #[must_use]
    pub fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for &operation in &self.config.operations {
            for &size in &self.config.sizes {
                for &working_set in &self.config.working_sets {
                    cases.push(Case { operation, size, working_set });
                }
            }
        }
        cases
    }

    /// Measures all ways to do one operation.
    ///
    /// # Errors
    /// When an operation fails, or gives a wrong result.
    pub fn measure(&mut self, case: Case) -> Result<Vec<Row>, AccelBenchError> {
        let Case { operation, size, working_set } = case;
        let contenders = self.contenders(operation);
        let least = contenders.iter().map(|contender| contender.in_flight()).max().unwrap_or(1);
        let mut set = WorkingSet::new(operation, size, working_set, least, self.config.seed);
        Self::prepare(operation, size, &mut set)?;
        let before: Vec<(u64, u64)> = self.devices.iter().map(|it| it.counts(operation)).collect();
        let mut counts = Vec::new();
        for &contender in &contenders {
            if let Some(channel) = self.channel(contender) {
                contender::check(channel, &mut set, operation, CHECKED)?;
            }
            counts.push(self.calibrate(case, contender, &mut set)?);
        }
        let mut runs_ns = vec![Vec::with_capacity(self.config.runs); contenders.len()];
        for _ in 0..self.config.runs {
            for ((&contender, &count), runs_ns) in contenders.iter().zip(&counts).zip(&mut runs_ns)
            {
                let time = self.run(case, contender, &mut set, count)?;
                runs_ns.push(time.as_nanos() as f64 / count as f64);
            }
        }
        let mut rows = Vec::new();
        for (index, &contender) in contenders.iter().enumerate() {
            let mut row = Row {
                case,
                way: self.way(operation, contender),
                touched_bytes: set.bytes() / set.operands.len() * case.limit(contender, &set),
                runs_ns: runs_ns[index].clone(),
                against: None,
                core_ns: None,
                fallback_share: 0.0,
            };
            if let Some(other) = rival(contender, &contenders) {
                row.against =
                    Some((self.way(operation, contenders[other]), runs_ns[other].clone()));
            }
            if let Contender::Device { index, depth } = contender {
                row.core_ns = self.core_ns(case, index, depth, &row, &mut set)?;
                row.fallback_share = self.devices[index].fallback_share(operation, before[index]);
            }
            rows.push(row);
        }
        Ok(rows)
    }

    /// The ways to do an operation.
    fn contenders(&self, code: OpCode) -> Vec<Contender> {
        let mut contenders = Vec::new();
        let paths = if has_digest(code) { self.software.len() } else { self.software.len().min(1) };
        if paths > 0 && !direct_name(code).is_empty() {
            contenders.push(Contender::Direct);
        }
        contenders.extend((0..paths).map(Contender::Software));
        for (index, device) in self.config.devices.iter().enumerate() {
            if device.engine.operations().contains(code) {
                let device = |&depth: &usize| Contender::Device { index, depth };
                contenders.extend(self.config.depths.iter().map(device));
            }
        }
        contenders
    }

    fn way(&self, code: OpCode, contender: Contender) -> Way {
        match contender {
            Contender::Direct => Way::Direct(direct_name(code)),
            Contender::Software(index) => {
                Way::Software(has_digest(code).then(|| self.config.paths[index]))
            }
            Contender::Device { index, depth } => {
                let OpenDevice { name, is_emulated, .. } = self.devices[index];
                Way::Device { name, is_emulated, depth }
            }
        }
    }

    /// Compresses the data that are to be decompressed.
    fn prepare(code: OpCode, size: usize, set: &mut WorkingSet) -> Result<(), AccelBenchError> {
        if code != OpCode::Decompress {
            return Ok(());
        }
        let mut software = Framework::software().open_channel(&ChannelConfig::default())?;
        for index in 0..set.operands.len() {
            let written = contender::written(&mut software, set, OpCode::Compress, index)?;
            let operands = &mut set.operands[index];
            operands.targets[0].truncate(written);
            operands.sources[0] = std::mem::replace(&mut operands.targets[0], vec![0; size]);
        }
        Ok(())
    }

    fn channel(&mut self, contender: Contender) -> Option<&mut BenchChannel> {
        match contender {
            Contender::Direct => None,
            Contender::Software(index) => Some(&mut self.software[index]),
            Contender::Device { index, .. } => Some(&mut self.devices[index].channel),
        }
    }

    fn run(
        &mut self,
        case: Case,
        contender: Contender,
        set: &mut WorkingSet,
        count: u64,
    ) -> Result<Duration, AccelBenchError> {
        let (code, limit) = (case.operation, case.limit(contender, set));
        match contender {
            Contender::Direct => Ok(contender::run_directly(set, code, limit, count)),
            Contender::Software(index) => {
                contender::run_at_once(&mut self.software[index], set, code, limit, count)
            }
            Contender::Device { index, depth } => {
                let channel = &mut self.devices[index].channel;
                contender::run_in_flight(channel, set, code, limit, depth, count)
            }
        }
    }

    /// The number of operations that fill the time of a run; the attempts also warm everything up.
    fn calibrate(
        &mut self,
        case: Case,
        contender: Contender,
        set: &mut WorkingSet,
    ) -> Result<u64, AccelBenchError> {
        let mut count = 1;
        loop {
            let time = self.run(case, contender, set, count)?;
            if time >= self.config.time / 4 {
                let ns = time.as_nanos().max(1);
                let fitting = u128::from(count) * self.config.time.as_nanos() / ns;
                return Ok(u64::try_from(fitting).unwrap_or(u64::MAX).max(1));
            }
            count *= 2;
        }
    }

    /// The cost of an engine for the core that uses it, per operation.
    fn core_ns(
        &mut self,
        case: Case,
        index: usize,
        depth: usize,
        row: &Row,
        set: &mut WorkingSet,
    ) -> Result<Option<f64>, AccelBenchError> {
        let typical = Duration::from_secs_f64(report::median_of(&row.runs_ns) * depth as f64 / 1e9);
        let channel = &mut self.devices[index].channel;
        let mut times = Vec::new();
        for _ in 0..CORE_ROUNDS {
            if let Some(time) = contender::core_time(channel, set, case.operation, depth, typical)?
            {
                times.push(time.as_nanos() as f64 / depth as f64);
            }
        }
        Ok((!times.is_empty()).then(|| report::median_of(&times)))
    }
}

impl Case {
    /// The number of operands that a way uses.
    fn limit(&self, contender: Contender, set: &WorkingSet) -> usize {
        if self.working_set == HOT { contender.in_flight() } else { set.operands.len() }
    }
}

impl Contender {
    fn in_flight(self) -> usize {
        match self {
            Self::Direct | Self::Software(_) => 1,
            Self::Device { depth, .. } => depth,
        }
    }
}

impl OpenDevice {
    /// Operations so far, and how many of them software did.
    fn counts(&self, code: OpCode) -> (u64, u64) {
        let statistics = self.framework.statistics();
        let counts = statistics.of(code);
        (counts.executed, counts.fallbacks)
    }

    fn fallback_share(&self, code: OpCode, before: (u64, u64)) -> f64 {
        let (executed, fallbacks) = self.counts(code);
        (fallbacks - before.1) as f64 / (executed - before.0).max(1) as f64
    }
}

fn has_digest(code: OpCode) -> bool {
    matches!(code, OpCode::Crc32c | OpCode::CopyCrc32c)
}

/// The way for comparison: for software the direct call, for an engine software on the first path.
fn rival(contender: Contender, contenders: &[Contender]) -> Option<usize> {
    let with = match contender {
        Contender::Direct => return None,
        Contender::Software(_) => Contender::Direct,
        Contender::Device { .. } => Contender::Software(0),
    };
    contenders.iter().position(|&other| other == with)
}
