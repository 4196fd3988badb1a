//! The hosts of a run: one for each protocol, with connections, thread and part of the file of its own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use raceline_bench::Latencies;
use raceline_bench::job::JobError;
use raceline_bench::runner::iscsi::{Initiators, IscsiUnit};
use raceline_bench::runner::stage::{Cpus, FileSpec, JobSpec, Size, StageConfig};
use raceline_bench::runner::{Progress, RunError, Session, StageOutcome};
use raceline_host::{HostConfig, Transport};
use raceline_initiator::{BlockingSession, Name, SessionConfig, UnitInfo};
use raceline_proto::nvme::{HostId, NamespaceId};
use raceline_reactor::{Backend, Mode};
use raceline_tls::TlsConnector;

use super::super::Timing;
use super::super::settings::{ConvergedSettings, Wire};
use super::target::{INITIATOR, Served};
use crate::bed::{self, Bed};

/// Parts of the file: one for each protocol, so that each finds what it wrote.
const PARTS: u64 = 4;
/// Fewest entries of a queue.
const ENTRIES_MIN: u16 = 32;
/// How long hosts wait for the slowest of them to connect.
const PATIENCE: Duration = Duration::from_secs(60);

/// A host that can be run.
pub(super) struct Host {
    wire: Wire,
    address: SocketAddr,
    depth: u16,
    stage: StageConfig,
    /// The target node of iSCSI.
    node: Name,
}

impl Host {
    /// The host of a protocol.
    pub(super) fn new(
        served: &Served,
        settings: &ConvergedSettings,
        timing: &Timing,
        core: usize,
        seed: u64,
    ) -> Result<Self, String> {
        let wire = settings.protocol;
        let address = served.address(wire).ok_or("nothing listens for RDMA")?;
        let part = served.bytes / PARTS;
        let job = JobSpec {
            files: vec![FileSpec { host: 0, nsid: NamespaceId(1) }],
            mode: settings.mode(),
            offset_bytes: part * wire.number(),
            size: Size::Bytes(part),
            verify: true,
            cpus: Cpus::Split(vec![core]),
            ramp: super::ramp(timing),
            runtime: Some(timing.time.mul_f64(if timing.is_stated {
                1.0
            } else {
                settings.time_factor
            })),
            seed: seed.wrapping_add(wire.number() << 32),
            ..JobSpec::new(settings.io_bytes, settings.depth)
        };
        let id = u8::try_from(wire.number()).unwrap_or(u8::MAX);
        let usual = HostConfig::new(
            address,
            served.subsystem.clone(),
            wire.hostnqn(),
            HostId([id + 1; 16]),
        );
        let mut host = HostConfig {
            io_queues: 1,
            io_entries: settings.depth.saturating_add(1).max(ENTRIES_MIN),
            kato_ms: 0,
            ..usual
        };
        if wire == Wire::NvmeTls {
            host.streams = Some(Arc::new(TlsConnector::new(served.psk.clone())));
        }
        if wire == Wire::NvmeRdma {
            host.transport = Transport::Rdma;
            host.source = Some(address.ip());
            if let Some(devices) = &served.devices {
                host.rdma_devices = Arc::clone(devices);
            }
        }
        let stage = StageConfig {
            hosts: vec![host],
            accel: None,
            jobs: vec![job],
            exit_all: false,
            // All hosts share a CPU: one that polled would keep the others from it.
            reactor_mode: Mode::Interrupt,
            backend: Backend::default(),
        };
        Ok(Self { wire, address, depth: settings.depth, stage, node: served.node.clone() })
    }

    /// Connects, says so, waits for the word, and runs.
    fn work(
        &self,
        ready: &Sender<()>,
        go: &Receiver<()>,
        watch: &mut dyn FnMut(Progress) -> bool,
    ) -> Result<StageOutcome, RunError> {
        let wait = || match ready.send(()).is_ok() && go.recv_timeout(PATIENCE).is_ok() {
            true => Ok(()),
            false => Err(RunError::Stopped),
        };
        if self.wire == Wire::Iscsi {
            let mut initiators = Initiators::connect(&self.stage, &self.unit()?, watch)?;
            wait()?;
            return initiators.run_stage();
        }
        let mut session = Session::connect_stage(&self.stage, watch)?;
        wait()?;
        session.run_stage()
    }

    /// The logical unit, which is asked what it is.
    fn unit(&self) -> Result<Vec<IscsiUnit>, RunError> {
        let initiator = Name::new(INITIATOR).expect("a constant name");
        let usual = SessionConfig::new(self.address, initiator, Some(self.node.clone()));
        let session = SessionConfig { depth: self.depth, ping_interval: Duration::ZERO, ..usual };
        let asked = BlockingSession::connect(session.clone()).map_err(RunError::Session)?;
        let unit = UnitInfo::read(&asked).map_err(RunError::Session)?;
        asked.close();
        Ok(vec![IscsiUnit { session, unit }])
    }
}

/// What a host measured.
#[derive(Debug)]
pub(super) struct Measured {
    reads: Latencies,
    writes: Latencies,
    time: Duration,
    /// Reads whose data were compared with what was written, in the ramp and at the end, too.
    pub(super) checked: u64,
}

impl Measured {
    /// Reads and writes.
    pub(super) fn latencies(&self) -> Latencies {
        let mut all = self.reads.clone();
        all.merge(&self.writes);
        all
    }

    pub(super) fn iops(&self) -> f64 {
        let seconds = self.time.max(Duration::from_nanos(1)).as_secs_f64();
        (self.reads.count() + self.writes.count()) as f64 / seconds
    }
}

/// Runs all hosts at the same time, from the moment at which all have connected.
///
/// # Errors
/// The first failure, with the protocol: also data that are not those that were written.
pub(super) fn run(
    bed: &dyn Bed,
    hosts: &[Host],
    stop: &(dyn Fn() -> bool + Sync),
) -> Result<Vec<Measured>, String> {
    std::thread::scope(|scope| {
        let (ready, readies) = channel();
        let mut threads = Vec::new();
        let mut words = Vec::new();
        for host in hosts {
            let (word, go) = channel();
            let ready = ready.clone();
            words.push(word);
            threads.push(scope.spawn(move || {
                let work = move || host.work(&ready, &go, &mut |_| !stop());
                bed::in_host_ns(bed, work)
            }));
        }
        // A host that cannot connect drops its sender: the others are let go at once then.
        drop(ready);
        let up = hosts.iter().take_while(|_| readies.recv_timeout(PATIENCE).is_ok()).count();
        if up == hosts.len() {
            for word in &words {
                // A host that has given up says why itself.
                let _: Result<(), _> = word.send(());
            }
        }
        drop(words);
        let mut found = Vec::with_capacity(hosts.len());
        let mut failure = None;
        for (host, thread) in hosts.iter().zip(threads) {
            let ended = thread.join().map_err(|_| "its thread panicked".to_owned());
            let ended = ended.and_then(|ended| ended.map_err(|error| format!("the bed: {error}")));
            let outcome = ended.map(|ended| ended.map_err(Some));
            match outcome {
                Ok(Ok(outcome)) => match measured(&outcome) {
                    Ok(measured) => found.push(measured),
                    Err(why) => failure = failure.or(Some(host.failed(&why))),
                },
                // Another one says why.
                Ok(Err(Some(RunError::Stopped) | None)) => {}
                Ok(Err(Some(error))) => failure = failure.or(Some(host.failed(&error.to_string()))),
                Err(why) => failure = failure.or(Some(host.failed(&why))),
            }
        }
        match failure {
            Some(why) => Err(why),
            None if found.len() < hosts.len() => Err("stopped before all had connected".to_owned()),
            None => Ok(found),
        }
    })
}

impl Host {
    fn failed(&self, why: &str) -> String {
        format!("{}: {why}", self.wire.name())
    }
}

/// The records of the only job, unless it failed.
fn measured(outcome: &StageOutcome) -> Result<Measured, String> {
    let clone = outcome.clones.first().ok_or("no job ran")?;
    if let Some(error) = &clone.error {
        return Err(match error {
            JobError::Io(why) => why.clone(),
            JobError::Mismatch(found) => format!("data are not what was written: {found}"),
        });
    }
    if outcome.reconnects > 0 {
        return Err("its connection was lost during the run".to_owned());
    }
    Ok(Measured {
        reads: clone.read.clone(),
        writes: clone.write.clone(),
        time: clone.measured,
        checked: clone.verified,
    })
}
