//! The target, the sessions of the compared ways, and the rounds in which the ways take turns.

use std::cell::Cell;
use std::net::{Ipv4Addr, SocketAddr};

use raceline_host::HostConfig;
use raceline_proto::nvme::{HostId, NamespaceId, Nqn};
use raceline_reactor::{HugePages, Mode};
use raceline_target::{NamespaceConfig, PreConnectLimits, SubsystemConfig, Target, TargetConfig};

use super::{HostBenchConfig, HostBenchError};
use crate::distance::Distance;
use crate::gap::product::filled_ram;
use crate::quiet::{self, Disturbance, Machine};
use crate::runner::stage::{Cpus, FileSpec, JobSpec, StageConfig};
use crate::runner::{Session, StageOutcome};

const SUBSYSTEM: &str = "nqn.2026-01.io.raceline:bench-host";
const HOST: &str = "nqn.2026-01.io.raceline:bench-host-host";
/// The namespace and the host need no better ones within one process.
const UUID: [u8; 16] = *b"raceline-bh-ours";
/// Largest command of any case.
const IO_BYTES_MAX: u32 = 1 << 20;
/// Number of the target's buffers of that size.
const LARGE_BUFFERS: usize = 64;
/// Entries of every queue.
const ENTRIES: u16 = 128;
/// Disturbed rounds are repeated until this many times the requested number of rounds has been run.
const ATTEMPTS_FACTOR: usize = 3;

/// A target, and the settings that all ways share.
pub(crate) struct Bed<'a> {
    pub(crate) config: &'a HostBenchConfig,
    stop: &'a dyn Fn() -> bool,
    target: Option<Target>,
    address: SocketAddr,
    nqn: Nqn,
    /// Distance between the cores of target and host, if both are in this process.
    distance: Cell<Distance>,
}

/// A run of each way, next to each other in time.
pub(crate) struct Round<T> {
    /// The runs by way.
    pub(crate) runs: Vec<T>,
    disturbance: Disturbance,
}

/// One of the compared ways.
pub(crate) struct Way {
    pub(crate) name: &'static str,
    pub(crate) stage: StageConfig,
}

impl<'a> Bed<'a> {
    /// Starts the target with a filled namespace, unless the settings name a target.
    pub(super) fn start(
        config: &'a HostBenchConfig,
        stop: &'a dyn Fn() -> bool,
    ) -> Result<Self, HostBenchError> {
        if let Some((address, nqn)) = &config.target {
            let (address, nqn, distance) = (*address, nqn.clone(), Cell::default());
            return Ok(Self { config, stop, target: None, address, nqn, distance });
        }
        let target = Target::start(target_config(config))?;
        let nqn = name(SUBSYSTEM);
        let subsystem =
            SubsystemConfig { serial: "RLHOST".to_owned(), ..SubsystemConfig::new(nqn.clone()) };
        target.add_subsystem(subsystem)?;
        let bytes = config.memory_bytes;
        let device = filled_ram(bytes, HugePages::Transparent, config.seed)
            .map_err(|error| HostBenchError::Memory { bytes, error })?;
        let namespace = NamespaceConfig { uuid: Some(UUID), ..NamespaceConfig::new(device) };
        target.add_namespace(&nqn, namespace)?;
        let address = target.add_listener(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        let distance = config.distances.between(Some(config.target_core), Some(config.host_core));
        let distance = distance.into();
        Ok(Self { config, stop, target: Some(target), address, nqn, distance })
    }

    /// Ends the target, if it is in this process.
    pub(super) fn end(self) -> Result<(), HostBenchError> {
        match self.target {
            Some(target) => Ok(target.shutdown()?),
            None => Ok(()),
        }
    }

    /// The connection to the target, with `io_queues` queues.
    pub(crate) fn host_config(&self, io_queues: u16) -> HostConfig {
        let (nqn, hostnqn) = (self.nqn.clone(), self::name(HOST));
        HostConfig {
            io_queues,
            io_entries: ENTRIES,
            // A host that sleeps during other runs sends no keep alive.
            kato_ms: 0,
            ..HostConfig::new(self.address, nqn, hostnqn, HostId(UUID))
        }
    }

    /// Jobs on the host's core, on a controller that `shape` may change.
    pub(crate) fn way(
        &self,
        name: &'static str,
        jobs: Vec<JobSpec>,
        shape: impl FnOnce(&mut HostConfig),
    ) -> Way {
        let mut host = self.host_config(1);
        shape(&mut host);
        let config = self.config;
        let on_core = |job: JobSpec| JobSpec {
            files: vec![FileSpec { host: 0, nsid: NamespaceId(1) }],
            cpus: Cpus::Split(vec![config.host_core]),
            ramp: config.ramp,
            runtime: Some(config.time),
            seed: config.seed,
            ..job
        };
        let stage = StageConfig {
            hosts: vec![host],
            accel: None,
            jobs: jobs.into_iter().map(on_core).collect(),
            exit_all: false,
            reactor_mode: Mode::Interrupt,
            backend: config.backend,
        };
        Way { name, stage }
    }

    /// Runs all ways, round after round: the requested number of rounds, quiet ones if possible.
    pub(crate) fn rounds(&self, ways: &[Way]) -> Result<Vec<Round<StageOutcome>>, HostBenchError> {
        let mut watches: Vec<_> = ways.iter().map(|_| |_| !(self.stop)()).collect();
        let mut sessions = Vec::with_capacity(ways.len());
        for (way, watch) in ways.iter().zip(&mut watches) {
            sessions.push((way.name, Session::connect_stage(&way.stage, watch)?));
        }
        self.rounds_of(sessions.len(), |index| {
            let (name, session) = &mut sessions[index];
            session.set_mode(self.config.mode);
            let outcome = session.run_stage();
            session.set_mode(Mode::Interrupt);
            let mut outcome = outcome?;
            match outcome.clones.iter_mut().find_map(|clone| clone.error.take()) {
                Some(error) => Err(HostBenchError::command(name, error)),
                None => Ok(outcome),
            }
        })
    }

    /// As [`Self::rounds`], for ways that `run` runs by their number.
    pub(crate) fn rounds_of<T>(
        &self,
        ways: usize,
        mut run: impl FnMut(usize) -> Result<T, HostBenchError>,
    ) -> Result<Vec<Round<T>>, HostBenchError> {
        let wanted = self.config.rounds;
        let (mut rounds, mut quiet): (Vec<Round<T>>, usize) = (Vec::with_capacity(wanted), 0);
        while quiet < wanted && rounds.len() < wanted * ATTEMPTS_FACTOR {
            let mut distance = self.distance.get();
            let near = distance.wait(self.stop);
            let before = Machine::now();
            let mut runs = Vec::with_capacity(ways);
            for way in 0..ways {
                if (self.stop)() {
                    return Err(HostBenchError::Stopped);
                }
                runs.push(run(way)?);
            }
            let mut disturbance = Machine::now().since(&before);
            if self.target.is_none() {
                // The target is another process: its usage is part of the measurement.
                disturbance.foreign_percent = 0.0;
            }
            let still = distance.look();
            self.distance.set(distance);
            self.config.distances.keep(distance);
            disturbance.apart = distance.is_far(near) || distance.is_far(still);
            quiet += usize::from(!disturbance.is_too_much());
            rounds.push(Round { runs, disturbance });
        }
        Ok(quiet::choose(rounds, wanted, |round| round.disturbance).0)
    }
}

/// A target for all cases.
fn target_config(config: &HostBenchConfig) -> TargetConfig {
    let usual = TargetConfig::default();
    TargetConfig {
        cores: vec![config.target_core],
        mode: config.mode,
        backend: config.backend,
        max_io_bytes: IO_BYTES_MAX,
        large_buffers_per_core: LARGE_BUFFERS,
        max_queue_entries: ENTRIES,
        pre_connect: PreConnectLimits { ..usual.pre_connect.clone() },
        ..usual
    }
}

fn name(nqn: &str) -> Nqn {
    Nqn::new(nqn).expect("a constant NQN")
}
