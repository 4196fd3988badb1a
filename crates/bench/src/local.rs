//! A workload on a device in this process, without a network: what a remote latency is compared with.
//!
//! The commands, their times and their records are those of a run over NVMe/TCP, because the same [`QueueJob`] makes
//! them. [`Local`] drives any block device by a reactor, as a target does. [`Ring`] drives a file or a block device by an
//! io_uring of its own, which can poll the device for completions (IOPOLL).

mod ring;
mod service;

use std::time::{Duration, Instant};

use crate::job::{Batch, JobConfig, JobConfigError, JobError, JobResult, QueueJob};
use crate::workload::{RwMode, Span, Workload};

pub use ring::{Ring, RingError};
pub use service::Local;

/// Addresses count in blocks of this many bytes.
const BLOCK_BYTES: u32 = 512;

/// One run.
#[derive(Clone, Copy, Debug)]
pub struct LocalJob {
    /// Order and kind of the commands.
    pub mode: RwMode,
    /// Percentage of reads where `mode` is mixed.
    pub mixed_read_percent: u8,
    /// Bytes of a command: a multiple of 512.
    pub io_bytes: u32,
    /// Commands in flight.
    pub depth: u16,
    /// Commands per second (open loop); `None`: as many as possible.
    pub rate_iops: Option<u64>,
    /// How long it runs before it records.
    pub ramp: Duration,
    /// How long it records.
    pub time: Duration,
    /// The same seed gives the same addresses.
    pub seed: u64,
}

/// Why a local run is impossible, or has failed.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// The workload does not fit the device.
    #[error("{0}")]
    Workload(#[from] JobConfigError),
    /// A command has another size than blocks permit.
    #[error("a command has a multiple of {BLOCK_BYTES} bytes, and not {0}")]
    Size(u32),
    /// A command failed.
    #[error("the device: {0}")]
    Command(String),
    /// The generator does not work.
    #[error("the local generator {0}")]
    Generator(String),
    /// The ring or its file does not work.
    #[error(transparent)]
    Ring(#[from] RingError),
}

impl LocalJob {
    /// The job on a device of this size, from `start` on.
    fn queue_job(&self, device_bytes: u64, start: Instant) -> Result<QueueJob, LocalError> {
        if self.io_bytes == 0 || !self.io_bytes.is_multiple_of(BLOCK_BYTES) {
            return Err(LocalError::Size(self.io_bytes));
        }
        let span = Span {
            block_size: BLOCK_BYTES,
            blocks_per_io: self.io_bytes / BLOCK_BYTES,
            first_block: 0,
            block_count: device_bytes / u64::from(BLOCK_BYTES),
        };
        let workload = Workload {
            mode: self.mode,
            mixed_read_percent: self.mixed_read_percent,
            spans: vec![span],
            random_map: false,
            seed: self.seed,
            verify: false,
            rate_iops: self.rate_iops,
        };
        Ok(QueueJob::new(JobConfig {
            workload,
            queue: 0,
            queues: 1,
            stream: 0,
            depth: self.depth,
            batch: Batch::NONE,
            start,
            ramp: self.ramp,
            runtime: Some(self.time),
            commands: None,
            slice: None,
        })?)
    }
}

/// Where a command of a job begins, in bytes.
fn offset(slba: u64) -> u64 {
    slba * u64::from(BLOCK_BYTES)
}

/// The records, unless a command failed.
fn outcome(result: JobResult) -> Result<JobResult, LocalError> {
    match result.error {
        None => Ok(result),
        Some(JobError::Io(why)) => Err(LocalError::Command(why)),
        Some(JobError::Mismatch(mismatch)) => Err(LocalError::Command(mismatch.to_string())),
    }
}

#[cfg(test)]
mod tests;
