//! Workloads, statistics and reports.
//!
//! A [`job::QueueJob`] chooses the next command of one queue and checks the data that come back; it does no
//! I/O and reads no clock. [`runner::run`] drives one job per queue over NVMe/TCP, and [`report::Report`]
//! presents the results.

pub mod accel;
pub mod acceleration;
pub mod congestion;
pub mod cost;
pub mod cpu;
pub mod digest;
pub mod distance;
pub mod fio;
pub mod gap;
pub mod handshakes;
pub mod histogram;
pub mod host;
pub mod job;
pub mod limit;
pub mod local;
pub mod machine;
pub mod model;
pub mod pacing;
pub mod pattern;
pub mod permutation;
pub mod quiet;
pub mod random;
pub mod report;
pub mod runner;
pub mod workload;

pub use histogram::Latencies;
pub use job::{Batch, Issue, JobConfig, JobResult, QueueJob};
pub use pattern::Mismatch;
pub use workload::{Access, RwMode, Span, Workload};
