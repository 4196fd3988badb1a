//! The settings of the procedures: read from experiment files, with defaults and ranges.

use std::time::Duration;

use raceline_bench::workload::RwMode;
use raceline_host::HostPlacement;
use raceline_reactor::Mode;
use raceline_target::PlacementPolicy;
use serde::{Deserialize, Serialize};

use super::Timing;
use crate::bed::link::LinkOptions;

mod converged;

pub use converged::{ConvergedSettings, Mix, Wire};

/// A setting that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingsError {
    /// The key.
    pub key: String,
    /// Its value as text; empty if it is not known.
    pub value: String,
    /// What is wrong, and what would be right.
    pub why: String,
}

/// Who is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SubjectKind {
    /// Raceline's target, in this process.
    #[default]
    Raceline,
    /// Raceline's target with interrupts and blocking file calls on worker threads.
    Handoff,
    /// The device itself, without a network.
    Local,
    /// A file with direct I/O, without a network.
    LocalFile,
    /// A file with direct I/O by an io_uring of its own, without a network.
    LocalUring,
    /// The same, with polled completions (IOPOLL).
    LocalIopoll,
    /// SPDK's target.
    Spdk,
    /// The kernel's target.
    Nvmet,
    /// tgt, an iSCSI target in user space.
    Tgt,
}

/// How host and target talk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// NVMe/TCP: one host with a queue for each connection.
    #[default]
    NvmeTcp,
    /// NVMe/RDMA: one host with a queue for each connection, over the device that `--rdma` names.
    NvmeRdma,
    /// iSCSI: a session for each connection, spread over target nodes. Each initiator has a session with each node.
    Iscsi,
}

/// What a core does when it has nothing to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CoreMode {
    /// It polls.
    #[default]
    Poll,
    /// It polls for a while, then sleeps.
    Adaptive,
    /// It sleeps at once.
    Interrupt,
}

impl From<CoreMode> for Mode {
    fn from(mode: CoreMode) -> Self {
        match mode {
            CoreMode::Poll => Self::Poll,
            CoreMode::Adaptive => Self::default(),
            CoreMode::Interrupt => Self::Interrupt,
        }
    }
}

/// Which connections a core gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlacementKind {
    /// Any: the same number for each core.
    #[default]
    Balanced,
    /// Those of one receive queue.
    Napi,
    /// Those whose packets the core's CPU receives.
    Cpu,
}

impl From<PlacementKind> for PlacementPolicy {
    fn from(kind: PlacementKind) -> Self {
        match kind {
            PlacementKind::Balanced => Self::Balanced,
            PlacementKind::Napi => Self::Napi,
            PlacementKind::Cpu => Self::Cpu,
        }
    }
}

impl From<PlacementKind> for HostPlacement {
    fn from(kind: PlacementKind) -> Self {
        match kind {
            PlacementKind::Balanced => Self::Any,
            PlacementKind::Napi => Self::Napi,
            PlacementKind::Cpu => Self::Cpu,
        }
    }
}

/// Who computes data digests at the target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Digest {
    /// There are none.
    #[default]
    None,
    /// The target's cores.
    Software,
    /// An engine: a DSA device, or a thread that plays one.
    Engine,
}

/// Queues of readers and of a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Maps {
    /// All queues are for both.
    Shared,
    /// Half of the queues are for reads only.
    Split,
}

/// Another host beside the measured one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Neighbour {
    /// None.
    #[default]
    None,
    /// Reads of 128 KiB on one connection, 8 in flight.
    Bulk,
    /// Reads of 4 KiB on 32 connections, 4 in flight on each.
    Many,
}

/// Settings of the procedure `load`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LoadSettings {
    /// Who is measured.
    pub subject: SubjectKind,
    /// How host and target talk.
    pub protocol: Protocol,
    /// Target nodes of iSCSI, each with the device as its logical unit.
    pub nodes: u16,
    /// The bed that fits best: `loopback`, `veth` or `shaped`.
    pub bed: String,
    /// MTU of the series' own veth pair; 0: the series uses the bed of the run.
    pub mtu: u32,
    /// Whether received packets are joined on the series' own veth pair; without it, the series uses the bed of the run.
    pub gro: Option<bool>,
    /// What an idle core of the target does.
    pub target_mode: CoreMode,
    /// Cores of the target.
    pub target_cores: usize,
    /// Which connections a core of the target gets.
    pub placement: PlacementKind,
    /// How long a receive of the target polls the device's queue, in microseconds; 0: not at all.
    pub busy_poll_us: u32,
    /// What an idle core of the host does.
    pub host_mode: CoreMode,
    /// Cores of the host.
    pub host_cores: usize,
    /// Which connections a core of the host accepts.
    pub host_placement: PlacementKind,
    /// As `busy_poll_us`, for the host.
    pub host_busy_poll_us: u32,
    /// fio's name of the workload.
    pub rw: String,
    /// Bytes of a command.
    pub io_bytes: u32,
    /// Commands in flight on each connection.
    pub depth: u16,
    /// Connections.
    pub connections: u16,
    /// Connections for each core of the target, instead of `connections`.
    pub connections_per_core: u16,
    /// Most commands that are submitted together; 0: no bound.
    pub batch_submit: u16,
    /// Most completions that are taken together; 0: no bound.
    pub batch_complete_max: u16,
    /// Commands per second of all connections (open loop); 0: closed loop.
    pub rate_iops: u64,
    /// The same, in percent of the closed-loop ceiling of the slowest series; 0: closed loop.
    pub rate_percent: u16,
    /// Data digests.
    pub digest: Digest,
    /// Gather commands as i10 does.
    pub i10: bool,
    /// Most PDUs in one send of the host; 0: the usual number.
    pub send_pdus: u16,
    /// Target and host tell the kernel with each send whether more bytes follow (MSG_MORE, MSG_EOR).
    pub send_flags: bool,
    /// Readers on queue maps beside a writer.
    pub maps: Option<Maps>,
    /// Number of readers with one command each, if there are maps.
    pub readers: u16,
    /// Bytes of a command of the writer.
    pub writer_bytes: u32,
    /// Commands of the writer in flight.
    pub writer_depth: u16,
    /// Bound on the writer's rate; 0: none.
    pub writer_mib_per_s: u64,
    /// Another host.
    pub neighbour: Neighbour,
    /// Bound on its rate; 0: none.
    pub neighbour_mib_per_s: u64,
    /// Number of agents that do the neighbour's work, in the procedure `fleet`.
    pub neighbour_agents: u16,
    /// Size of the namespace.
    pub memory_mib: u32,
    /// Runs take this many times the usual time.
    pub time_factor: f64,
    /// The series whose mean latency is subtracted for `delta_us`.
    pub delta_to: String,
}

impl Default for LoadSettings {
    fn default() -> Self {
        Self {
            subject: SubjectKind::Raceline,
            protocol: Protocol::NvmeTcp,
            nodes: 20,
            bed: "loopback".to_owned(),
            mtu: 0,
            gro: None,
            target_mode: CoreMode::Poll,
            target_cores: 1,
            placement: PlacementKind::Balanced,
            busy_poll_us: 0,
            host_mode: CoreMode::Poll,
            host_cores: 1,
            host_placement: PlacementKind::Balanced,
            host_busy_poll_us: 0,
            rw: "randread".to_owned(),
            io_bytes: 4096,
            depth: 1,
            connections: 1,
            connections_per_core: 0,
            batch_submit: 0,
            batch_complete_max: 0,
            rate_iops: 0,
            rate_percent: 0,
            digest: Digest::None,
            i10: false,
            send_pdus: 0,
            send_flags: false,
            maps: None,
            readers: 0,
            writer_bytes: 1 << 20,
            writer_depth: 16,
            writer_mib_per_s: 0,
            neighbour: Neighbour::None,
            neighbour_mib_per_s: 0,
            neighbour_agents: 1,
            memory_mib: 128,
            time_factor: 1.0,
            delta_to: String::new(),
        }
    }
}

impl LoadSettings {
    /// Number of connections of the measured host.
    #[must_use]
    pub fn total_connections(&self) -> u16 {
        if self.connections_per_core == 0 {
            return self.connections;
        }
        let cores = u16::try_from(self.target_cores).unwrap_or(u16::MAX);
        self.connections_per_core.saturating_mul(cores)
    }

    /// Target nodes that have a session.
    #[must_use]
    pub fn used_nodes(&self) -> u16 {
        self.nodes.min(self.total_connections()).max(1)
    }

    /// The link of a series with a veth pair of its own; `None`: it uses the bed of the run.
    #[must_use]
    pub fn own_link(&self) -> Option<LinkOptions> {
        if self.mtu == 0 && self.gro.is_none() {
            return None;
        }
        let usual = LinkOptions::default();
        let mtu = if self.mtu == 0 { usual.mtu } else { self.mtu };
        Some(LinkOptions { mtu, gro: self.gro.unwrap_or(usual.gro), ..usual })
    }

    /// Commands in flight, all connections together.
    #[must_use]
    pub fn in_flight(&self) -> f64 {
        match self.maps {
            Some(_) => f64::from(self.readers),
            None => f64::from(self.total_connections()) * f64::from(self.depth),
        }
    }

    /// The workload.
    #[must_use]
    pub fn mode(&self) -> RwMode {
        self.rw.parse().unwrap_or(RwMode::RandRead)
    }

    /// Whether commands come at a rate of their own.
    #[must_use]
    pub fn is_open_loop(&self) -> bool {
        self.rate_iops > 0 || self.rate_percent > 0
    }

    /// The time of a run: the factor of these settings applies, unless the source states the time.
    #[must_use]
    pub fn time(&self, timing: &Timing) -> Duration {
        if timing.is_stated { timing.time } else { timing.time.mul_f64(self.time_factor) }
    }

    /// All settings are in range.
    ///
    /// # Errors
    /// The first one that is not.
    pub fn check(&self) -> Result<(), SettingsError> {
        let block = 512;
        let whole = self.io_bytes.is_multiple_of(block);
        in_range("io_bytes", self.io_bytes.into(), 512, 1 << 20)?;
        if !whole {
            return Err(wrong("io_bytes", "commands have a multiple of 512 bytes".to_owned()));
        }
        in_range("depth", self.depth.into(), 1, 1024)?;
        in_range("connections", self.total_connections().into(), 1, 1024)?;
        in_range("target_cores", self.target_cores as u64, 1, 256)?;
        in_range("host_cores", self.host_cores as u64, 1, 256)?;
        in_range("neighbour_agents", self.neighbour_agents.into(), 0, 64)?;
        in_range("busy_poll_us", self.busy_poll_us.into(), 0, 10_000)?;
        in_range("host_busy_poll_us", self.host_busy_poll_us.into(), 0, 10_000)?;
        in_range("rate_percent", self.rate_percent.into(), 0, 1000)?;
        in_range("memory_mib", self.memory_mib.into(), 16, 1 << 20)?;
        in_range("writer_bytes", self.writer_bytes.into(), 4096, 1 << 20)?;
        in_range("writer_depth", self.writer_depth.into(), 1, 128)?;
        if self.rw.parse::<RwMode>().is_err() {
            let why = format!("`{}` is no workload: use read, write, randread, ...", self.rw);
            return Err(wrong("rw", why));
        }
        if !["loopback", "veth", "shaped"].contains(&self.bed.as_str()) {
            let why = format!("`{}` is no test bed: use loopback, veth or shaped", self.bed);
            return Err(wrong("bed", why));
        }
        if !(self.time_factor > 0.0 && self.time_factor <= 100.0) {
            return Err(wrong("time_factor", "a factor is above 0 and at most 100".to_owned()));
        }
        if let Some(link) = self.own_link() {
            if self.bed != "veth" {
                let why = "mtu and gro are settings of a veth pair: use bed = \"veth\"".to_owned();
                return Err(wrong(if self.mtu == 0 { "gro" } else { "mtu" }, why));
            }
            link.check().map_err(|why| wrong("mtu", why))?;
        }
        if self.maps.is_some() {
            in_range("readers", self.readers.into(), 1, 1024)?;
            in_range("connections", self.connections.into(), 2, 128)?;
        }
        in_range("nodes", self.nodes.into(), 1, 128)?;
        self.check_protocol()
    }

    /// Nothing is asked of a protocol that it does not have.
    fn check_protocol(&self) -> Result<(), SettingsError> {
        if self.protocol != Protocol::Iscsi && self.subject == SubjectKind::Tgt {
            let why = "tgt is an iSCSI target: use protocol = \"iscsi\"".to_owned();
            return Err(wrong("subject", why));
        }
        match self.protocol {
            Protocol::NvmeTcp => Ok(()),
            Protocol::NvmeRdma => self.check_rdma(),
            Protocol::Iscsi => self.check_iscsi(),
        }
    }

    fn check_rdma(&self) -> Result<(), SettingsError> {
        let usual = Self::default();
        let tcp_only = [
            ("send_flags", self.send_flags),
            ("placement", self.placement != usual.placement),
            ("host_placement", self.host_placement != usual.host_placement),
            ("busy_poll_us", self.busy_poll_us > 0),
            ("host_busy_poll_us", self.host_busy_poll_us > 0),
            ("digest", self.digest != Digest::None),
            ("mtu", self.mtu > 0),
            ("gro", self.gro.is_some()),
        ];
        if let Some((key, _)) = tcp_only.iter().find(|(_, given)| *given) {
            return Err(wrong(key, "series over RDMA do not have it: leave it out".to_owned()));
        }
        match self.subject {
            SubjectKind::Raceline | SubjectKind::Spdk | SubjectKind::Nvmet => Ok(()),
            _ => {
                let why = "over RDMA, only these targets are measured: raceline, spdk, nvmet";
                Err(wrong("subject", why.to_owned()))
            }
        }
    }

    fn check_iscsi(&self) -> Result<(), SettingsError> {
        let usual = Self::default();
        let nvme_only = [
            ("maps", self.maps.is_some()),
            ("neighbour", self.neighbour != usual.neighbour),
            ("i10", self.i10),
            ("send_pdus", self.send_pdus != usual.send_pdus),
            ("send_flags", self.send_flags),
            ("host_placement", self.host_placement != usual.host_placement),
            ("digest", self.digest == Digest::Engine),
            ("rate_iops", self.rate_iops > 0),
            ("rate_percent", self.rate_percent > 0),
        ];
        if let Some((key, _)) = nvme_only.iter().find(|(_, given)| *given) {
            let why = "series over iSCSI do not have it: leave it out".to_owned();
            return Err(wrong(key, why));
        }
        if self.subject == SubjectKind::Nvmet {
            let why = "the kernel's target is measured over NVMe: use raceline, spdk or tgt";
            return Err(wrong("subject", why.to_owned()));
        }
        Ok(())
    }

    /// Agents can carry out these settings.
    ///
    /// # Errors
    /// The first one that they cannot.
    pub fn check_agents(&self) -> Result<(), SettingsError> {
        if self.protocol == Protocol::NvmeTcp {
            return Ok(());
        }
        Err(wrong("protocol", "agents are hosts of NVMe/TCP: use \"nvme-tcp\"".to_owned()))
    }
}

/// Settings of the procedures `limit` and `gap`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PairSettings {
    /// Bytes of a command.
    pub io_bytes: u32,
    /// Whether they are writes.
    pub write: bool,
    /// Commands in flight on each connection.
    pub depth: u16,
    /// Connections.
    pub connections: u16,
    /// Size of the memory.
    pub memory_mib: u32,
}

impl Default for PairSettings {
    fn default() -> Self {
        Self { io_bytes: 4096, write: false, depth: 32, connections: 1, memory_mib: 128 }
    }
}

impl PairSettings {
    /// All settings are in range.
    ///
    /// # Errors
    /// The first one that is not.
    pub fn check(&self) -> Result<(), SettingsError> {
        in_range("io_bytes", self.io_bytes.into(), 512, 1 << 20)?;
        in_range("depth", self.depth.into(), 1, 1024)?;
        in_range("connections", self.connections.into(), 1, 1024)?;
        in_range("memory_mib", self.memory_mib.into(), 16, 1 << 20)
    }
}

/// Settings of the procedure `share`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ShareSettings {
    /// Bytes of a command: 4096.
    pub io_bytes: u32,
    /// Commands in flight.
    pub depth: u16,
    /// The row of `raceline bench host --case share`.
    pub path: String,
}

impl ShareSettings {
    /// All settings are in range.
    ///
    /// # Errors
    /// The first one that is not.
    pub fn check(&self) -> Result<(), SettingsError> {
        in_range("io_bytes", self.io_bytes.into(), 4096, 4096)?;
        in_range("depth", self.depth.into(), 1, 127)?;
        if raceline_bench::host::SHARE_PATHS.contains(&self.path.as_str()) {
            return Ok(());
        }
        let paths = raceline_bench::host::SHARE_PATHS.join("`, `");
        Err(wrong("path", format!("`{}` is no path: use `{paths}`", self.path)))
    }

    /// Whether the path has one command in flight, and more are asked for.
    #[must_use]
    pub fn has_no_depth(&self) -> bool {
        self.depth > 1 && self.path == raceline_bench::host::SHARE_PATH_OF_DEPTH_1
    }
}

/// Settings of the procedure `submit`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SubmitSettings {
    /// Bytes of a command: 4096.
    pub io_bytes: u32,
}

impl SubmitSettings {
    /// All settings are in range.
    ///
    /// # Errors
    /// The first one that is not.
    pub fn check(&self) -> Result<(), SettingsError> {
        in_range("io_bytes", self.io_bytes.into(), 4096, 4096)
    }
}

/// Settings of the procedure `affinity`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AffinitySettings {
    /// Bytes of a command: 4096.
    pub io_bytes: u32,
    /// Commands in flight.
    pub depth: u16,
    /// Whether the worker is on the CPU of the program's thread.
    pub same_cpu: bool,
}

impl AffinitySettings {
    /// All settings are in range.
    ///
    /// # Errors
    /// The first one that is not.
    pub fn check(&self) -> Result<(), SettingsError> {
        in_range("io_bytes", self.io_bytes.into(), 4096, 4096)?;
        in_range("depth", self.depth.into(), 1, 127)
    }
}

/// Settings of the procedure `accel`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AccelSettings {
    /// The operation, by its name in `raceline bench accel`.
    pub operation: String,
    /// Bytes of an operand.
    pub io_bytes: u32,
}

impl AccelSettings {
    /// All settings are in range.
    ///
    /// # Errors
    /// The first one that is not.
    pub fn check(&self) -> Result<(), SettingsError> {
        in_range("io_bytes", self.io_bytes.into(), 1, 64 << 20)?;
        match self.operation.parse::<raceline_accel::OpCode>() {
            Ok(_) => Ok(()),
            Err(_) => {
                let why = format!("`{}` is no operation: use crc32c, copy, ...", self.operation);
                Err(wrong("operation", why))
            }
        }
    }
}

fn in_range(key: &str, value: u64, least: u64, most: u64) -> Result<(), SettingsError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    let why = format!("{value} is out of range: {key} is from {least} to {most}");
    Err(SettingsError { key: key.to_owned(), value: value.to_string(), why })
}

fn wrong(key: &str, why: String) -> SettingsError {
    SettingsError { key: key.to_owned(), value: String::new(), why }
}
