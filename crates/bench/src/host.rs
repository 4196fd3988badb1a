//! The effects of the host's ways of using queues: case by case, in rounds of interleaved runs.
//!
//! A case compares a few ways of doing the same work. Each way is a stage of jobs with its own connections
//! to one target. In every round each way has one short run, in turn, so that a disturbance that outlasts a
//! run affects all ways. Rounds during which other programs used the machine are repeated. Ratios are
//! between runs of the same round.
//!
//! To add a case: write `host/NAME.rs` with a function that takes a [`Bed`] and gives a
//! [`report::Section`], as [`maps`] does; put its name into [`Case`], and call it in [`run`]. A case whose
//! ways are not stages (for example threads of the program's own) uses [`Bed::rounds_of`] with a closure
//! for each way.

pub mod affinity;
mod bed;
mod gather;
mod maps;
pub mod report;
mod share;

use std::net::SocketAddr;
use std::time::Duration;

use raceline_host::I10Config;
use raceline_proto::nvme::Nqn;
use raceline_reactor::{Backend, Mode};
use raceline_target::TargetError;

use crate::distance::Distances;
use crate::job::JobError;
use crate::runner::RunError;

pub(crate) use bed::{Bed, Round};
pub use share::{PATH_OF_DEPTH_1 as SHARE_PATH_OF_DEPTH_1, PATHS as SHARE_PATHS};

/// The cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// Separate queues for reads, against queues shared with a large writer.
    Maps,
    /// Commands gathered as i10 does, against one PDU per send and against the usual way.
    I10,
    /// Which thread sends and which receives on queues that threads share.
    Share,
    /// The cost of a submission for threads that do not drive the queue.
    Submit,
}

impl Case {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Maps, Self::I10, Self::Share, Self::Submit];

    /// Its name, as options have it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Maps => "maps",
            Self::I10 => "i10",
            Self::Share => "share",
            Self::Submit => "submit",
        }
    }
}

/// The settings of a measurement, for all cases.
#[derive(Clone, Debug)]
pub struct HostBenchConfig {
    /// A running target; `None`: a target in this process.
    pub target: Option<(SocketAddr, Nqn)>,
    /// Bytes of the namespace of our own target.
    pub memory_bytes: usize,
    /// What cores do when they are idle.
    pub mode: Mode,
    /// How target and host do I/O.
    pub backend: Backend,
    /// The core of our own target.
    pub target_core: usize,
    /// The core of the host.
    pub host_core: usize,
    /// Rounds of each comparison.
    pub rounds: usize,
    /// How long each run goes before it is measured.
    pub ramp: Duration,
    /// How long each run is measured.
    pub time: Duration,
    /// The same seed gives the same addresses and data.
    pub seed: u64,
    /// Bytes per second of a capped writer.
    pub writer_bytes: u64,
    /// How commands are gathered in the ways that gather.
    pub i10: I10Config,
    /// Operations in flight in `share`, up to 127.
    pub depth: u16,
    /// What is known of the distance of the two cores.
    pub distances: Distances,
}

/// Why a case could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum HostBenchError {
    /// The target failed.
    #[error("the target: {0}")]
    Target(#[from] TargetError),
    /// The host failed.
    #[error("the host: {0}")]
    Host(#[from] RunError),
    /// A command failed.
    #[error("{way}: {why}")]
    Command {
        /// The way.
        way: String,
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

impl HostBenchError {
    fn command(way: &str, error: JobError) -> Self {
        let why = match error {
            JobError::Io(why) => why,
            JobError::Mismatch(mismatch) => mismatch.to_string(),
        };
        Self::Command { way: way.to_owned(), why }
    }
}

/// Measures a case. `stop` is asked between runs.
///
/// # Errors
/// When either side fails, or `stop` says true.
pub fn run(
    case: Case,
    config: &HostBenchConfig,
    stop: &dyn Fn() -> bool,
) -> Result<report::Section, HostBenchError> {
    let bed = Bed::start(config, stop)?;
    let section = match case {
        Case::Maps => maps::measure(&bed),
        Case::I10 => gather::measure(&bed),
        Case::Share => share::measure(&bed),
        Case::Submit => share::measure_submit(&bed),
    };
    let stopped = bed.end();
    let section = section?;
    stopped?;
    Ok(section)
}
