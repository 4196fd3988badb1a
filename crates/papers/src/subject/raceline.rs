//! Raceline's target in this process, in each mode, and as the stand-in with worker hand-off.

use std::fs;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use raceline_accel::{Framework, OpCode, OpStatistics};
use raceline_bdev::{DeviceSpec, Identity, SharedBdev};
use raceline_bench::random::Random;
use raceline_initiator::Name;
use raceline_proto::nvme::Nqn;
use raceline_reactor::{Backend, Mode, StreamProvider};
use raceline_target::{
    DEFAULT_ISCSI_QUEUE_DEPTH, InitiatorGroupConfig, LunConfig, NamespaceConfig, PortalGroupConfig,
    PortalMap, PreConnectLimits, SubsystemConfig, Target, TargetConfig, TargetError,
    TargetNodeConfig,
};

use super::{Counts, Export, Needs, Rdma, Subject, mode_of, node_names};
use crate::bed;
use crate::run::{Digest, LoadSettings, Protocol, SubjectKind};

const SUBSYSTEM: &str = "nqn.2026-01.io.raceline:papers";
/// The tag of the only group of each kind of iSCSI.
const TAG: u16 = 1;
/// The namespace needs no better one within one process.
const UUID: [u8; 16] = *b"raceline-papers1";
/// Largest command of any experiment.
const IO_BYTES_MAX: u32 = 1 << 20;
/// Where a file is memory.
const SHARED_MEMORY: &str = "/dev/shm";
/// Bytes that are written to a file at a time.
const FILL_BYTES: usize = 1 << 20;

/// Raceline's target.
pub struct Raceline {
    target: Target,
    address: SocketAddr,
    export: Export,
    mode: Mode,
    polls: bool,
    framework: Framework,
    rdma: Option<Rdma>,
}

impl Raceline {
    /// Starts it, and lets it sleep.
    ///
    /// # Errors
    /// When a core, memory, an engine or the address is not available.
    pub fn start(needs: &Needs<'_>) -> Result<Self, String> {
        let settings = needs.settings;
        let framework = framework(needs)?;
        let hands_off = settings.subject == SubjectKind::Handoff;
        let device = if hands_off {
            TemporaryFile::filled(u64::from(settings.memory_mib) << 20)?.into_device(true)?
        } else {
            Arc::clone(needs.device)
        };
        let config = config(settings, needs.cpus, framework.clone());
        let mode = config.mode;
        let rdma = match settings.protocol {
            Protocol::NvmeRdma => Some(needs.rdma.find()?),
            Protocol::NvmeTcp | Protocol::Iscsi => None,
        };
        let (address, streams) = match &rdma {
            Some(rdma) => (rdma.free_address()?, Some((rdma.streams)(&config) as _)),
            None => (SocketAddr::new(needs.bed.target_addr(), 0), None),
        };
        let export = match settings.protocol {
            Protocol::NvmeTcp | Protocol::NvmeRdma => Export::Subsystem(name()),
            Protocol::Iscsi => Export::Nodes { names: node_names(settings), lun: 0 },
        };
        let depth = settings.depth.max(DEFAULT_ISCSI_QUEUE_DEPTH);
        let make = |target: &Target| match &export {
            Export::Subsystem(nqn) => export_subsystem(target, nqn, device, (address, streams)),
            Export::Nodes { names, .. } => export_nodes(target, names, &device, depth, address),
        };
        let started = bed::in_target_ns(needs.bed, || start(config, make));
        let (target, address) = started.map_err(|error| format!("the test bed: {error}"))??;
        target.set_mode(Mode::Interrupt);
        let polls = mode == Mode::Poll;
        Ok(Self { target, address, export, mode, polls, framework, rdma })
    }
}

fn start(
    config: TargetConfig,
    export: impl FnOnce(&Target) -> Result<SocketAddr, TargetError>,
) -> Result<(Target, SocketAddr), String> {
    let target = Target::start(config).map_err(|error| format!("the target: {error}"))?;
    match export(&target) {
        Ok(address) => Ok((target, address)),
        Err(error) => {
            let message = format!("the target: {error}");
            // The first failure says more than one of the end.
            let _ = target.shutdown();
            Err(message)
        }
    }
}

/// The device as namespace 1 of a subsystem; gives where it is reached.
fn export_subsystem(
    target: &Target,
    nqn: &Nqn,
    device: SharedBdev,
    (address, streams): (SocketAddr, Option<Arc<dyn StreamProvider>>),
) -> Result<SocketAddr, TargetError> {
    let subsystem =
        SubsystemConfig { serial: "RLPAPERS".to_owned(), ..SubsystemConfig::new(nqn.clone()) };
    target.add_subsystem(subsystem)?;
    let namespace = NamespaceConfig { uuid: Some(UUID), ..NamespaceConfig::new(device) };
    target.add_namespace(nqn, namespace)?;
    target.add_listener_with(address, streams)
}

/// The device as LUN 0 of each of these target nodes; gives where they are reached.
fn export_nodes(
    target: &Target,
    names: &[Name],
    device: &SharedBdev,
    queue_depth: u16,
    address: SocketAddr,
) -> Result<SocketAddr, TargetError> {
    let iscsi = target.iscsi();
    iscsi.set_initiator_group(InitiatorGroupConfig::any(TAG.into()))?;
    let portals = iscsi.add_portal_group(PortalGroupConfig::new(TAG, vec![address]))?;
    for name in names {
        let lun = LunConfig { uuid: Some(UUID), ..LunConfig::new(Arc::clone(device)) };
        iscsi.add_target_node(TargetNodeConfig {
            maps: vec![PortalMap { portal_group: TAG, initiator_group: TAG.into() }],
            luns: vec![lun],
            queue_depth,
            ..TargetNodeConfig::new(name.as_str())
        })?;
    }
    // One portal was asked for, and one listens.
    Ok(portals.first().copied().unwrap_or(address))
}

fn config(settings: &LoadSettings, cpus: &[usize], framework: Framework) -> TargetConfig {
    let usual = TargetConfig::default();
    // A neighbour has at most 32 queues, and each host an admin queue.
    let sockets = usize::from(settings.total_connections()) + 64;
    let hands_off = settings.subject == SubjectKind::Handoff;
    TargetConfig {
        cores: cpus.to_vec(),
        mode: if hands_off { Mode::Interrupt } else { mode_of(settings) },
        backend: if hands_off { Backend::Epoll } else { Backend::default() },
        placement: settings.placement.into(),
        busy_poll: (settings.busy_poll_us > 0)
            .then(|| Duration::from_micros(settings.busy_poll_us.into())),
        send_flags: settings.send_flags,
        accel: Some(framework),
        max_io_bytes: IO_BYTES_MAX,
        max_queue_entries: usual.max_queue_entries.max(settings.depth.saturating_add(1)),
        max_io_queues: usual.max_io_queues.max(settings.total_connections()),
        pre_connect: PreConnectLimits {
            total: usual.pre_connect.total.max(sockets),
            per_source: usual.pre_connect.per_source.max(sockets),
            ..usual.pre_connect
        },
        ..usual
    }
}

/// The operation table of a target with these digests.
fn framework(needs: &Needs<'_>) -> Result<Framework, String> {
    if needs.settings.digest != Digest::Engine {
        return Ok(Framework::software());
    }
    let device = needs.engine.ok_or("there is no engine that computes digests")?;
    let make = || {
        let framework = Framework::new(vec![Arc::clone(&device.engine)])?;
        for code in [OpCode::Crc32c, OpCode::CopyCrc32c] {
            framework.assign(code, device.engine.name())?;
        }
        Ok(framework)
    };
    make().map_err(|error: raceline_accel::TableError| error.to_string())
}

impl Subject for Raceline {
    fn address(&self) -> SocketAddr {
        self.address
    }

    fn export(&self) -> Export {
        self.export.clone()
    }

    fn process(&self) -> Option<u32> {
        None
    }

    fn wake(&self) {
        self.target.set_mode(self.mode);
    }

    fn sleep(&self) {
        self.target.set_mode(Mode::Interrupt);
    }

    fn rdma(&self) -> Option<&Rdma> {
        self.rdma.as_ref()
    }

    fn counts(&self) -> Counts {
        let stats = self.target.stats();
        let accel = self.framework.statistics();
        let of = |count: fn(&OpStatistics) -> u64| {
            count(accel.of(OpCode::Crc32c)) + count(accel.of(OpCode::CopyCrc32c))
        };
        Counts {
            busy: self.polls.then(|| stats.loops.iter().map(|core| core.busy).sum()),
            commands: matches!(self.export, Export::Subsystem(_))
                .then(|| stats.subsystems.iter().map(|(_, of)| of.reads + of.writes).sum()),
            digests: (of(|counts| counts.executed), of(|counts| counts.fallbacks)),
        }
    }

    fn check(&mut self) -> Result<(), String> {
        if self.target.is_running() {
            return Ok(());
        }
        Err("a core of the target has ended; its messages say why".to_owned())
    }

    fn stop(self: Box<Self>) -> Result<(), String> {
        self.target.shutdown().map_err(|error| format!("the target: {error}"))
    }
}

fn name() -> Nqn {
    Nqn::new(SUBSYSTEM).expect("a constant NQN")
}

/// A file with random data, which has no name any more once it is a device: nothing is left of it, even if this
/// program is killed.
pub(crate) struct TemporaryFile {
    path: PathBuf,
}

impl TemporaryFile {
    /// A file in shared memory, or where temporary files are.
    pub(crate) fn filled(bytes: u64) -> Result<Self, String> {
        let shared = Path::new(SHARED_MEMORY);
        let folder = if shared.is_dir() { shared.to_owned() } else { std::env::temp_dir() };
        Self::filled_in(&folder, bytes)
    }

    /// A file in this folder.
    pub(crate) fn filled_in(folder: &Path, bytes: u64) -> Result<Self, String> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        fs::create_dir_all(folder)
            .map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("raceline-papers-{}-{number}", std::process::id()));
        let file = Self { path };
        let fail = |error: std::io::Error| format!("cannot fill {}: {error}", file.path.display());
        let mut open = fs::File::create(&file.path).map_err(fail)?;
        let (mut random, mut block) = (Random::new(bytes), vec![0; FILL_BYTES]);
        let mut left = bytes;
        while left > 0 {
            random.fill(&mut block);
            let part = usize::try_from(left).unwrap_or(FILL_BYTES).min(FILL_BYTES);
            open.write_all(&block[..part]).map_err(fail)?;
            left -= part as u64;
        }
        open.sync_all().map_err(fail)?;
        Ok(file)
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The file as a device.
    pub(crate) fn into_device(self, buffered: bool) -> Result<SharedBdev, String> {
        let path = self.path.display().to_string().replace('\\', "\\\\").replace(',', "\\,");
        let text = format!("file:{path}{}", if buffered { ",buffered" } else { "" });
        let spec: DeviceSpec = text.parse().map_err(|error| format!("{error}"))?;
        raceline_bdev::open(&spec, &Identity::of_this_machine()).map_err(|error| error.to_string())
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(%error, "{} stays", self.path.display());
        }
    }
}
