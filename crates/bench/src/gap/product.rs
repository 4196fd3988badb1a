//! Raceline's side: a target with one namespace, and a host, in this process.
//!
//! The target is that of `raceline export` or the daemon of `raceline serve` ([`super::daemon`]).

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use raceline_auth::{Hash, IdentityVersion, TlsKey};
use raceline_bdev::{Backing, ByteSize, DeviceSpec, Identity, RamBdev, SharedBdev};
use raceline_host::HostConfig;
use raceline_proto::nvme::{HostId, NamespaceId, Nqn};
use raceline_reactor::{HugePages, Mode, StreamProvider};
use raceline_target::{NamespaceConfig, PreConnectLimits, SubsystemConfig, Target, TargetConfig};
use raceline_tls::{ClientPsk, PskTable, Suite, TlsAcceptor, TlsConnector};

use super::daemon::Served;
use super::{Case, GapConfig, GapError, Kind};
use crate::random::Random;
use crate::runner::stage::Volume;
use crate::runner::{Outcome, Progress, RunConfig, RunError, Session};
use crate::workload::RwMode;

pub(super) const SUBSYSTEM: &str = "nqn.2026-01.io.raceline:gap";
const HOST: &str = "nqn.2026-01.io.raceline:gap-host";
/// The namespace and the host need no better ones within one process.
const UUID: [u8; 16] = *b"raceline-gap-one";

/// Bytes that are filled at a time.
const FILL_BYTES: usize = 1 << 20;
/// The commands that fill a daemon's memory.
const FILL_IO_BYTES: u32 = 128 << 10;
const FILL_DEPTH: u16 = 8;

/// A running target.
pub(crate) struct Product {
    running: Running,
    address: SocketAddr,
    /// Where it listens with TLS, if it does.
    tls: Option<OverTls>,
}

/// A listener with TLS.
struct OverTls {
    address: SocketAddr,
    psk: ClientPsk,
}

enum Running {
    Export(Target),
    Serve(Box<Served>),
}

impl Product {
    /// Starts the target with a filled namespace, and lets it sleep.
    pub(crate) fn start(kind: Kind, config: &GapConfig, cases: &[Case]) -> Result<Self, GapError> {
        let product = match kind {
            Kind::Export => Self::export(config, cases)?,
            Kind::Serve => {
                let served = Served::start(config, cases)?;
                let address = served.address;
                let running = Running::Serve(Box::new(served));
                let product = Self { running, address, tls: None };
                if !config.null {
                    product.fill(config)?;
                }
                product
            }
        };
        product.set_mode(Mode::Interrupt);
        Ok(product)
    }

    fn export(config: &GapConfig, cases: &[Case]) -> Result<Self, GapError> {
        let target = Target::start(target_config(config, cases))?;
        let nqn = name(SUBSYSTEM);
        target.add_subsystem(SubsystemConfig {
            serial: "RLGAP".to_owned(),
            ..SubsystemConfig::new(nqn.clone())
        })?;
        let bdev = device(config)?;
        let namespace = NamespaceConfig { uuid: Some(UUID), ..NamespaceConfig::new(bdev) };
        target.add_namespace(&nqn, namespace)?;
        let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let address = target.add_listener(any_port)?;
        let tls = match config.tls {
            Some(suite) => {
                let (acceptor, psk) = keys(suite)?;
                let address = target.add_listener_with(
                    any_port,
                    Some(Arc::new(acceptor) as Arc<dyn StreamProvider>),
                )?;
                Some(OverTls { address, psk })
            }
            None => None,
        };
        Ok(Self { running: Running::Export(target), address, tls })
    }

    /// Writes the namespace once from end to end, through a host.
    fn fill(&self, config: &GapConfig) -> Result<(), GapError> {
        let io_bytes = FILL_IO_BYTES;
        let case = Case { io_bytes, write: true, depth: FILL_DEPTH, connections: 1 };
        let mut stage = RunConfig { mode: RwMode::Write, ..self.run_config(config, case) }.stage();
        for job in &mut stage.jobs {
            (job.volume, job.ramp, job.runtime) = (Volume::Passes(1), Duration::ZERO, None);
        }
        let outcome = Session::connect_stage(&stage, &mut |_| true)?.run_stage()?;
        let error = outcome.clones.into_iter().find_map(|clone| clone.error);
        error.map_or(Ok(()), |error| Err(GapError::command(case, error)))
    }

    /// Connects a host for one case, and lets host and target sleep.
    pub(crate) fn connect<'a>(
        &self,
        config: &GapConfig,
        case: Case,
        watch: &'a mut dyn FnMut(Progress) -> bool,
    ) -> Result<Session<'a>, RunError> {
        Session::connect(&self.run_config(config, case), watch)
    }

    /// Where it listens with TLS, and the key for it; `None`: it does not.
    pub(crate) fn tls_offer(&self) -> Option<(SocketAddr, &ClientPsk)> {
        self.tls.as_ref().map(|tls| (tls.address, &tls.psk))
    }

    fn run_config(&self, config: &GapConfig, case: Case) -> RunConfig {
        let mut host = HostConfig::new(self.address, name(SUBSYSTEM), name(HOST), HostId(UUID));
        if let Some(tls) = self.tls.as_ref().filter(|_| config.tls.is_some()) {
            host.address = tls.address;
            host.streams = Some(Arc::new(TlsConnector::new(tls.psk.clone())));
        }
        host.io_queues = case.connections;
        host.io_entries = case.depth.saturating_add(1);
        // A sleeping host sends no keep alive.
        host.kato_ms = 0;
        RunConfig {
            host,
            accel: None,
            nsid: NamespaceId(1),
            mode: if case.write { RwMode::RandWrite } else { RwMode::RandRead },
            mixed_read_percent: 0,
            io_bytes: case.io_bytes,
            depth: case.depth,
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
        }
    }

    /// One run; before and after it, target and host sleep.
    pub(super) fn run(
        &self,
        config: &GapConfig,
        session: &mut Session<'_>,
    ) -> Result<Outcome, RunError> {
        let set_mode = |session: &Session<'_>, mode| {
            self.set_mode(mode);
            session.set_mode(mode);
        };
        set_mode(session, config.mode);
        let outcome = session.run(config.seed);
        set_mode(session, Mode::Interrupt);
        outcome
    }

    pub(crate) fn set_mode(&self, mode: Mode) {
        match &self.running {
            Running::Export(target) => target.set_mode(mode),
            Running::Serve(served) => served.set_mode(mode),
        }
    }

    pub(crate) fn stop(self) -> Result<(), GapError> {
        match self.running {
            Running::Export(target) => Ok(target.shutdown()?),
            Running::Serve(served) => served.stop(),
        }
    }
}

/// The usual target, large enough for the cases.
pub(super) fn target_config(config: &GapConfig, cases: &[Case]) -> TargetConfig {
    let usual = TargetConfig::default();
    let connections = cases.iter().map(|case| case.connections).max().unwrap_or(1);
    let depth = cases.iter().map(|case| case.depth).max().unwrap_or(1);
    let io_bytes = cases.iter().map(|case| case.io_bytes).max().unwrap_or(0);
    let sockets = usize::from(connections) + 1;
    TargetConfig {
        cores: config.target_core.into_iter().collect(),
        mode: config.mode,
        backend: config.backend,
        max_io_bytes: usual.max_io_bytes.max(io_bytes.next_power_of_two()),
        max_queue_entries: usual.max_queue_entries.max(depth.saturating_add(1)),
        max_io_queues: usual.max_io_queues.max(connections),
        // A host connects all its queues at once.
        pre_connect: PreConnectLimits {
            total: usual.pre_connect.total.max(sockets),
            per_source: usual.pre_connect.per_source.max(sockets),
            ..usual.pre_connect
        },
        ..usual
    }
}

/// Both ends of TLS with a key for this suite.
fn keys(suite: Suite) -> Result<(TlsAcceptor, ClientPsk), GapError> {
    let hash = match suite {
        Suite::Aes128GcmSha256 => Hash::Sha256,
        Suite::Aes256GcmSha384 => Hash::Sha384,
    };
    let (host, subsystem) = (name(HOST), name(SUBSYSTEM));
    let key = TlsKey::generate(hash)?;
    let table = PskTable::new();
    table.insert(&key, &host, &subsystem)?;
    let psk = ClientPsk::new(&key, IdentityVersion::One, &host, &subsystem)?;
    Ok((TlsAcceptor::new(Arc::new(table)), psk))
}

fn device(config: &GapConfig) -> Result<SharedBdev, GapError> {
    let bytes = config.memory_bytes;
    let failed = |error| GapError::Memory { bytes, error };
    if config.null {
        let spec = DeviceSpec::new(Backing::Null { size: ByteSize(bytes as u64) });
        let device = raceline_bdev::open(&spec, &Identity::of_this_machine());
        return device.map_err(|error| failed(io::Error::other(error)));
    }
    filled_ram(bytes, config.pages, config.seed).map_err(failed)
}

/// Memory as a device, with random data.
///
/// # Errors
/// When the memory cannot be mapped.
pub fn filled_ram(bytes: usize, pages: HugePages, seed: u64) -> io::Result<SharedBdev> {
    let device = RamBdev::with_pages(bytes as u64, pages)?;
    let mut random = Random::new(seed);
    let mut block = vec![0; FILL_BYTES];
    let region = device.region();
    for offset in (0..region.len()).step_by(FILL_BYTES) {
        let len = FILL_BYTES.min(region.len() - offset);
        random.fill(&mut block[..len]);
        region.copy_in(offset as u64, &block[..len]);
    }
    Ok(Arc::new(device))
}

fn name(nqn: &str) -> Nqn {
    Nqn::new(nqn).expect("a constant NQN")
}
