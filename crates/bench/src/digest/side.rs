//! One way to handle data digests: a target that computes them in this way, and a host that asks for them.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use raceline_accel::{Framework, OpCode};
use raceline_bdev::SharedBdev;
use raceline_host::HostConfig;
use raceline_proto::nvme::{HostId, NamespaceId, Nqn};
use raceline_reactor::Mode;
use raceline_target::{NamespaceConfig, PreConnectLimits, SubsystemConfig, Target, TargetConfig};

use super::{Case, DigestConfig, DigestError, Run, Who};
use crate::accel::Device;
use crate::job::JobError;
use crate::runner::{Progress, RunConfig, Session};
use crate::workload::RwMode;

const SUBSYSTEM: &str = "nqn.2026-01.io.raceline:digest";
const HOST: &str = "nqn.2026-01.io.raceline:digest-host";
/// The namespace and the host need no better ones within one process.
const UUID: [u8; 16] = *b"raceline-digest1";

/// A running target.
pub(super) struct Side {
    pub(super) who: Who,
    target: Target,
    address: SocketAddr,
    framework: Framework,
}

/// The counts of a target so far.
#[derive(Clone, Copy)]
struct Sample {
    busy: Duration,
    commands: u64,
    /// All digests, and those that an engine was to compute and software did.
    digests: u64,
    fallbacks: u64,
}

impl Side {
    /// Starts the target on a device that others may share, and lets it sleep.
    pub(super) fn start(
        who: Who,
        config: &DigestConfig,
        bdev: &SharedBdev,
        queues: u16,
    ) -> Result<Self, DigestError> {
        let framework = framework(&who, config.device.as_ref())?;
        let target = Target::start(target_config(config, queues, framework.clone()))?;
        let nqn = name(SUBSYSTEM);
        target.add_subsystem(SubsystemConfig {
            serial: "RLDIGEST".to_owned(),
            ..SubsystemConfig::new(nqn.clone())
        })?;
        let bdev = Arc::clone(bdev);
        let namespace = NamespaceConfig { uuid: Some(UUID), ..NamespaceConfig::new(bdev) };
        target.add_namespace(&nqn, namespace)?;
        let address = target.add_listener(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        target.set_mode(Mode::Interrupt);
        Ok(Self { who, target, address, framework })
    }

    /// Connects a host for one case, and lets host and target sleep.
    pub(super) fn connect<'a>(
        &self,
        config: &DigestConfig,
        case: Case,
        watch: &'a mut dyn FnMut(Progress) -> bool,
    ) -> Result<Session<'a>, DigestError> {
        let (queues, depth) = case.queues();
        let mut host = HostConfig::new(self.address, name(SUBSYSTEM), name(HOST), HostId(UUID));
        host.io_queues = queues;
        host.io_entries = depth.saturating_add(1);
        host.data_digest = self.who != Who::Nobody;
        // A sleeping host sends no keep alive.
        host.kato_ms = 0;
        let run = RunConfig {
            host,
            accel: None,
            nsid: NamespaceId(1),
            mode: if case.write { RwMode::RandWrite } else { RwMode::RandRead },
            mixed_read_percent: 0,
            io_bytes: case.io_bytes,
            depth,
            offset_bytes: 0,
            size_bytes: None,
            seed: config.seed,
            verify: false,
            rate_iops: None,
            ramp: config.ramp,
            runtime: config.time,
            polled: false,
            cores: config.host_core.into_iter().collect(),
            reactor_mode: Mode::Interrupt,
            backend: config.backend,
        };
        Ok(Session::connect(&run, watch)?)
    }

    /// One run; before and after it, target and host sleep.
    pub(super) fn run(
        &self,
        config: &DigestConfig,
        case: Case,
        session: &mut Session<'_>,
        seed: u64,
    ) -> Result<Run, DigestError> {
        let set_mode = |session: &Session<'_>, mode| {
            self.target.set_mode(mode);
            session.set_mode(mode);
        };
        let before = self.sample();
        set_mode(session, config.mode);
        let outcome = session.run(seed);
        set_mode(session, Mode::Interrupt);
        let (outcome, after) = (outcome?, self.sample());
        if let Some(error) = outcome.error {
            let why = match error {
                JobError::Io(why) => why,
                JobError::Mismatch(mismatch) => mismatch.to_string(),
            };
            return Err(DigestError::Command { case, who: self.who, why });
        }
        let part = |part: u64, of: u64| if of > 0 { part as f64 / of as f64 } else { 0.0 };
        let commands = after.commands - before.commands;
        let latencies = if case.write { &outcome.write } else { &outcome.read };
        let seconds = outcome.measured.as_secs_f64().max(f64::MIN_POSITIVE);
        Ok(Run {
            iops: latencies.count() as f64 / seconds,
            core_ns: (after.busy - before.busy).as_nanos() as f64 / commands.max(1) as f64,
            fallback_share: part(
                after.fallbacks - before.fallbacks,
                after.digests - before.digests,
            ),
        })
    }

    pub(super) fn stop(self) -> Result<(), DigestError> {
        Ok(self.target.shutdown()?)
    }

    fn sample(&self) -> Sample {
        let stats = self.target.stats();
        let accel = self.framework.statistics();
        let of = |count: fn(&raceline_accel::OpStatistics) -> u64| {
            count(accel.of(OpCode::Crc32c)) + count(accel.of(OpCode::CopyCrc32c))
        };
        Sample {
            busy: stats.loops.iter().map(|core| core.busy).sum(),
            commands: stats.subsystems.iter().map(|(_, of)| of.reads + of.writes).sum(),
            digests: of(|counts| counts.executed),
            fallbacks: of(|counts| counts.fallbacks),
        }
    }
}

/// The operation table of a target that computes digests in this way.
fn framework(who: &Who, device: Option<&Device>) -> Result<Framework, DigestError> {
    match (who, device) {
        (Who::Offload { .. }, Some(device)) => {
            let framework = Framework::new(vec![Arc::clone(&device.engine)])?;
            for code in [OpCode::Crc32c, OpCode::CopyCrc32c] {
                framework.assign(code, device.engine.name())?;
            }
            Ok(framework)
        }
        (Who::Software(path), _) => {
            let framework = Framework::software();
            framework.force_crc_path(*path)?;
            Ok(framework)
        }
        (Who::Nobody | Who::Offload { .. }, _) => Ok(Framework::software()),
    }
}

/// The usual target, on one core.
fn target_config(config: &DigestConfig, queues: u16, framework: Framework) -> TargetConfig {
    let usual = TargetConfig::default();
    let sockets = usize::from(queues) + 1;
    TargetConfig {
        cores: config.target_core.into_iter().collect(),
        mode: config.mode,
        backend: config.backend,
        accel: Some(framework),
        max_io_queues: usual.max_io_queues.max(queues),
        // A host connects all its queues at once.
        pre_connect: PreConnectLimits {
            total: usual.pre_connect.total.max(sockets),
            per_source: usual.pre_connect.per_source.max(sockets),
            ..usual.pre_connect
        },
        ..usual
    }
}

fn name(nqn: &str) -> Nqn {
    Nqn::new(nqn).expect("a constant NQN")
}
