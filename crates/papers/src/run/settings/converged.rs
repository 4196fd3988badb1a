//! The settings of the procedure `converged`.

use raceline_bench::workload::RwMode;
use raceline_proto::nvme::Nqn;
use serde::{Deserialize, Serialize};

use super::{SettingsError, in_range, wrong};

/// One of the protocols of the procedure `converged`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wire {
    /// NVMe/TCP.
    #[default]
    NvmeTcp,
    /// NVMe/TCP with TLS.
    NvmeTls,
    /// iSCSI.
    Iscsi,
    /// NVMe/RDMA.
    NvmeRdma,
}

impl Wire {
    /// Its number, from 0: that of its part of the device.
    pub(crate) fn number(self) -> u64 {
        self as u64
    }

    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::NvmeTcp => "NVMe/TCP",
            Self::NvmeTls => "NVMe/TCP with TLS",
            Self::Iscsi => "iSCSI",
            Self::NvmeRdma => "NVMe/RDMA",
        }
    }

    /// The host that uses it.
    pub(crate) fn hostnqn(self) -> Nqn {
        let number = self.number();
        let name = format!("nqn.2026-01.io.raceline:papers-converged-host-{number}");
        Nqn::new(&name).expect("an NQN of constant form")
    }
}

/// Who works at the same time in the procedure `converged`, and what bounds it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mix {
    /// One protocol after the other.
    Alone,
    /// All of them.
    #[default]
    Together,
    /// All of them; hosts of NVMe have weights.
    Weights,
    /// All of them; their hosts have limits.
    Limits,
}

/// Settings of the procedure `converged`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ConvergedSettings {
    /// The protocol of the series.
    pub protocol: Wire,
    /// Who works at the same time.
    pub mix: Mix,
    /// fio's name of the workload, which is verified.
    pub rw: String,
    /// Bytes of a command.
    pub io_bytes: u32,
    /// Commands in flight.
    pub depth: u16,
    /// The weight of the protocol's host, with `mix = "weights"`. iSCSI has none.
    pub weight: u16,
    /// Commands per second of the protocol's host, with `mix = "limits"`; 0: no limit.
    pub limit_iops: u64,
    /// Size of the file; each protocol uses a quarter of it.
    pub memory_mib: u32,
    /// Runs take this many times the usual time.
    pub time_factor: f64,
}

impl Default for ConvergedSettings {
    fn default() -> Self {
        Self {
            protocol: Wire::NvmeTcp,
            mix: Mix::Together,
            rw: "randrw".to_owned(),
            io_bytes: 4096,
            depth: 16,
            weight: 100,
            limit_iops: 0,
            memory_mib: 64,
            time_factor: 1.0,
        }
    }
}

impl ConvergedSettings {
    /// The workload.
    #[must_use]
    pub fn mode(&self) -> RwMode {
        self.rw.parse().unwrap_or(RwMode::RandReadWrite)
    }

    /// The limit that is in force for the protocol.
    #[must_use]
    pub fn limit(&self) -> Option<u64> {
        let has = self.mix == Mix::Limits && self.limit_iops > 0;
        has.then_some(self.limit_iops)
    }

    /// All settings are in range.
    ///
    /// # Errors
    /// The first one that is not.
    pub fn check(&self) -> Result<(), SettingsError> {
        in_range("io_bytes", self.io_bytes.into(), 512, 1 << 20)?;
        if !self.io_bytes.is_multiple_of(512) {
            return Err(wrong("io_bytes", "commands have a multiple of 512 bytes".to_owned()));
        }
        in_range("depth", self.depth.into(), 1, 127)?;
        in_range("weight", self.weight.into(), 1, raceline_target::Weight::MAX.into())?;
        in_range("limit_iops", self.limit_iops, 0, 1 << 40)?;
        in_range("memory_mib", self.memory_mib.into(), 16, 1 << 16)?;
        let part = u64::from(self.memory_mib) << 18;
        if part / u64::from(self.io_bytes) < u64::from(self.depth) {
            let why = format!(
                "a quarter of {} MiB does not hold {} commands of {} bytes: use more",
                self.memory_mib, self.depth, self.io_bytes
            );
            return Err(wrong("memory_mib", why));
        }
        match self.rw.parse::<RwMode>() {
            Ok(mode) if mode.read_percent(50) < 100 => {}
            _ => {
                let why = format!(
                    "`{}` writes nothing to verify: use randrw, randwrite, rw or write",
                    self.rw
                );
                return Err(wrong("rw", why));
            }
        }
        if !(self.time_factor > 0.0 && self.time_factor <= 100.0) {
            return Err(wrong("time_factor", "a factor is above 0 and at most 100".to_owned()));
        }
        Ok(())
    }
}
