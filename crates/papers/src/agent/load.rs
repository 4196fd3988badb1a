//! The load of one agent, as it travels, and as the bench runs it.

use std::net::SocketAddr;
use std::time::Duration;

use raceline_bench::RwMode;
use raceline_bench::runner::RunConfig;
use raceline_host::HostConfig;
use raceline_proto::nvme::{HostId, NamespaceId, Nqn};
use raceline_reactor::{Backend, Mode};
use serde::{Deserialize, Serialize};

/// The longest ramp, and the longest run.
const TIME_MAX_MS: u64 = 24 * 3600 * 1000;
const QUEUES_MAX: u16 = 1024;
const DEPTH_MAX: u16 = 4096;
const IO_BYTES_MAX: u32 = 16 << 20;
const CORES_MAX: usize = 1024;
/// Entries of a queue, unless its depth needs more.
const ENTRIES: u16 = 128;

/// What an agent does to a target. Names and meanings are those of `raceline perf`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {
    /// Where the target listens, as the agent reaches it.
    pub target: SocketAddr,
    /// The subsystem.
    pub nqn: String,
    /// The namespace.
    pub nsid: u32,
    /// A name of fio's: `read`, `randread`, `write`...
    pub rw: String,
    /// Percentage of reads where `rw` mixes.
    pub read_percent: u8,
    /// Bytes of a command.
    pub io_bytes: u32,
    /// Commands in flight of each queue.
    pub depth: u16,
    /// I/O queues, each a connection.
    pub queues: u16,
    /// The same seed gives the same addresses and data.
    pub seed: u64,
    /// Commands per second of all queues of this agent (open loop); without it, as many as possible.
    #[serde(default)]
    pub rate_iops: Option<u64>,
    /// How long it runs before it records, in milliseconds.
    pub ramp_ms: u64,
    /// How long it records, in milliseconds.
    pub runtime_ms: u64,
    /// Cores of the agent's machine; empty: one thread that is not pinned.
    #[serde(default)]
    pub cores: Vec<usize>,
    /// Whether the cores look for work without a pause while the load runs.
    #[serde(default)]
    pub poll: bool,
    /// Busy polling of sockets, in microseconds.
    #[serde(default)]
    pub busy_poll_us: Option<u32>,
    /// Priority of what is sent (SO_PRIORITY).
    #[serde(default)]
    pub priority: Option<u32>,
    /// Protect data by CRC32C.
    #[serde(default)]
    pub data_digest: bool,
}

impl Load {
    /// Random 4 KiB reads by one queue with 32 commands in flight: 200 ms of ramp, then 1 s.
    #[must_use]
    pub fn new(target: SocketAddr, nqn: &str) -> Self {
        Self {
            target,
            nqn: nqn.to_owned(),
            nsid: 1,
            rw: "randread".to_owned(),
            read_percent: 50,
            io_bytes: 4096,
            depth: 32,
            queues: 1,
            seed: 1,
            rate_iops: None,
            ramp_ms: 200,
            runtime_ms: 1000,
            cores: Vec::new(),
            poll: false,
            busy_poll_us: None,
            priority: None,
            data_digest: false,
        }
    }

    /// Ramp and run together.
    #[must_use]
    pub fn time(&self) -> Duration {
        Duration::from_millis(self.ramp_ms.saturating_add(self.runtime_ms))
    }

    /// The same for a run, from a host of its own.
    ///
    /// # Errors
    /// When a value is out of range; the text names it and says what the range is.
    pub fn run_config(&self) -> Result<RunConfig, String> {
        self.check()?;
        let mode: RwMode = self.rw.parse().map_err(|error| format!("rw {:?}: {error}", self.rw))?;
        let nqn = Nqn::new(&self.nqn).map_err(|error| format!("nqn {:?}: {error}", self.nqn))?;
        let uuid = uuid::Uuid::new_v4();
        let hostnqn = Nqn::new(&format!("nqn.2014-08.org.nvmexpress:uuid:{uuid}"))
            .map_err(|error| format!("the agent's own name: {error}"))?;
        let host = HostConfig {
            io_queues: self.queues,
            io_entries: ENTRIES.max(self.depth.saturating_add(1)),
            data_digest: self.data_digest,
            busy_poll: self.busy_poll_us.map(|us| Duration::from_micros(us.into())),
            priority: self.priority,
            ..HostConfig::new(self.target, nqn, hostnqn, HostId(*uuid.as_bytes()))
        };
        Ok(RunConfig {
            host,
            accel: None,
            nsid: NamespaceId(self.nsid),
            mode,
            mixed_read_percent: self.read_percent,
            io_bytes: self.io_bytes,
            depth: self.depth,
            offset_bytes: 0,
            size_bytes: None,
            seed: self.seed,
            verify: false,
            rate_iops: self.rate_iops,
            ramp: Duration::from_millis(self.ramp_ms),
            runtime: Duration::from_millis(self.runtime_ms),
            polled: false,
            cores: self.cores.clone(),
            // The cores poll only while the load runs: an agent that waits takes nothing from others.
            reactor_mode: Mode::Interrupt,
            backend: Backend::Auto,
        })
    }

    fn check(&self) -> Result<(), String> {
        let within = |what: &str, value: u64, least: u64, most: u64| {
            let fits = (least..=most).contains(&value);
            if fits { Ok(()) } else { Err(format!("{what} {value}: use {least} to {most}")) }
        };
        within("nsid", self.nsid.into(), 1, 0xffff_fffe)?;
        within("io_bytes", self.io_bytes.into(), 512, IO_BYTES_MAX.into())?;
        within("depth", self.depth.into(), 1, DEPTH_MAX.into())?;
        within("queues", self.queues.into(), 1, QUEUES_MAX.into())?;
        within("read_percent", self.read_percent.into(), 0, 100)?;
        within("ramp_ms", self.ramp_ms, 0, TIME_MAX_MS)?;
        within("runtime_ms", self.runtime_ms, 1, TIME_MAX_MS)?;
        within("rate_iops", self.rate_iops.unwrap_or(1), 1, 1_000_000_000)?;
        within("number of cores", self.cores.len() as u64, 0, CORES_MAX as u64)?;
        within("priority", self.priority.unwrap_or(0).into(), 0, 15)?;
        within("busy_poll_us", self.busy_poll_us.unwrap_or(1).into(), 1, 1_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_out_of_range_are_named() {
        let target = "127.0.0.1:4420".parse().unwrap();
        let load = || Load::new(target, "nqn.2026-01.io.raceline:x");
        assert!(load().run_config().is_ok());
        let wrong = |load: Load| load.run_config().unwrap_err();
        assert!(wrong(Load { depth: 0, ..load() }).contains("depth 0: use 1 to"));
        assert!(wrong(Load { queues: 0, ..load() }).contains("queues"));
        assert!(wrong(Load { rate_iops: Some(0), ..load() }).contains("rate_iops"));
        assert!(wrong(Load { rw: "trim".to_owned(), ..load() }).contains("trim"));
        assert!(wrong(Load { nqn: "x".repeat(500), ..load() }).contains("nqn"));
        assert!(wrong(Load { runtime_ms: 0, ..load() }).contains("runtime_ms"));
        assert!(wrong(Load { io_bytes: 0, ..load() }).contains("io_bytes"));
    }
}
