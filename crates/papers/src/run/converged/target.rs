//! The target of a column: one file, with a listener for each protocol, and what bounds the hosts.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use raceline_bdev::SharedBdev;
use raceline_host::RdmaDevices;
use raceline_initiator::Name;
use raceline_proto::nvme::Nqn;
use raceline_reactor::{Mode, StreamProvider};
use raceline_target::{
    Hash, HostLimit, InitiatorGroupConfig, LunConfig, NamespaceConfig, PortalGroupConfig,
    PortalMap, QosLimits, RdmaStreams, SubsystemConfig, Target, TargetConfig, TargetError,
    TargetNodeConfig, Weight,
};
use raceline_tls::{ClientPsk, PskTable, TlsAcceptor};

use super::super::Options;
use super::super::settings::{ConvergedSettings, Mix, Wire};
use crate::bed;
use crate::subject::{Rdma, TemporaryFile};

/// The initiator of iSCSI.
pub(super) const INITIATOR: &str = "iqn.2026-01.io.raceline:papers-converged-host";
const SUBSYSTEM: &str = "nqn.2026-01.io.raceline:papers-converged";
const NODE: &str = "iqn.2026-01.io.raceline:papers-converged";
/// The file needs no better identity within one process.
const UUID: [u8; 16] = *b"raceline-papers4";
/// The tag of the only group of each kind of iSCSI.
const TAG: u16 = 1;
/// A target with all its listeners.
pub(super) struct Served {
    target: Target,
    pub(super) subsystem: Nqn,
    pub(super) node: Name,
    pub(super) bytes: u64,
    plain: SocketAddr,
    tls: SocketAddr,
    iscsi: SocketAddr,
    rdma: Option<SocketAddr>,
    pub(super) psk: ClientPsk,
    pub(super) devices: Option<Arc<dyn RdmaDevices>>,
}

impl Served {
    /// Starts it, and lets it sleep. `lanes` are the settings of all protocols of the column.
    pub(super) fn start(
        lanes: &[&ConvergedSettings],
        options: &Options<'_>,
        rdma: Option<&Rdma>,
    ) -> Result<Self, String> {
        let first = lanes.first().ok_or("there is no protocol")?;
        let bytes = u64::from(first.memory_mib) << 20;
        let device = TemporaryFile::filled(bytes)?.into_device(true)?;
        let config = config(lanes, &options.cpus[..1]);
        let streams =
            rdma.map(|rdma| Ok::<_, String>((rdma.free_address()?, (rdma.streams)(&config))));
        let streams = streams.transpose()?;
        let address = options.bed.target_addr();
        let devices = rdma.map(|rdma| Arc::clone(&rdma.devices));
        let start = || -> Result<Self, String> {
            let target = Target::start(config).map_err(|error| format!("the target: {error}"))?;
            match Self::listen(target, device, bytes, address, streams) {
                Ok(served) => served.bound(lanes),
                Err((target, why)) => {
                    // The first failure says more than one of the end.
                    let _ = target.shutdown();
                    Err(why)
                }
            }
        };
        let started = bed::in_target_ns(options.bed, start);
        let served = started.map_err(|error| format!("the test bed: {error}"))??;
        served.set_mode(Mode::Interrupt);
        Ok(Self { devices, ..served })
    }

    /// Exports the device over everything.
    fn listen(
        target: Target,
        device: SharedBdev,
        bytes: u64,
        address: IpAddr,
        streams: Option<(SocketAddr, Arc<RdmaStreams>)>,
    ) -> Result<Self, (Target, String)> {
        let subsystem = Nqn::new(SUBSYSTEM).expect("a constant NQN");
        let node = Name::new(NODE).expect("a constant name");
        let made = (|| -> Result<_, String> {
            let text = |error: TargetError| format!("the target: {error}");
            let config = SubsystemConfig {
                serial: "RLCONVERGED".to_owned(),
                ..SubsystemConfig::new(subsystem.clone())
            };
            target.add_subsystem(config).map_err(text)?;
            let namespace =
                NamespaceConfig { uuid: Some(UUID), ..NamespaceConfig::new(Arc::clone(&device)) };
            target.add_namespace(&subsystem, namespace).map_err(text)?;
            let any_port = SocketAddr::new(address, 0);
            let plain = target.add_listener(any_port).map_err(text)?;
            let (acceptor, psk) = keys(&subsystem)?;
            let acceptor: Arc<dyn StreamProvider> = Arc::new(acceptor);
            let tls = target.add_listener_with(any_port, Some(acceptor)).map_err(text)?;
            let iscsi = portal(&target, &node, device, any_port).map_err(text)?;
            let rdma = match streams {
                Some((at, streams)) => {
                    let streams: Arc<dyn StreamProvider> = streams;
                    Some(target.add_listener_with(at, Some(streams)).map_err(text)?)
                }
                None => None,
            };
            Ok((plain, tls, iscsi, rdma, psk))
        })();
        match made {
            Ok((plain, tls, iscsi, rdma, psk)) => {
                let devices = None;
                Ok(Self { target, subsystem, node, bytes, plain, tls, iscsi, rdma, psk, devices })
            }
            Err(why) => Err((target, why)),
        }
    }

    /// Gives the hosts what bounds them.
    fn bound(self, lanes: &[&ConvergedSettings]) -> Result<Self, String> {
        let bounds = || -> Result<(), TargetError> {
            let mut limits = Vec::new();
            for lane in lanes {
                let is_iscsi = lane.protocol == Wire::Iscsi;
                let host = lane.protocol.hostnqn();
                if let Some(iops) = lane.limit() {
                    let rate = QosLimits { rw_ios_per_sec: iops, ..QosLimits::default() };
                    let throttle = self.target.throttle(rate)?;
                    limits.push(if is_iscsi {
                        let initiators = vec![INITIATOR.to_owned()];
                        HostLimit { hosts: Vec::new(), initiators, throttle }
                    } else {
                        HostLimit { hosts: vec![host.clone()], initiators: Vec::new(), throttle }
                    });
                }
                if lane.mix == Mix::Weights && !is_iscsi {
                    let weight = Weight::new(lane.weight);
                    self.target.set_host_weight(&self.subsystem, &host, weight)?;
                }
            }
            self.target.set_host_limits(limits)
        };
        match bounds() {
            Ok(()) => Ok(self),
            Err(error) => {
                // The first failure says more than one of the end.
                let _ = self.target.shutdown();
                Err(format!("the target: {error}"))
            }
        }
    }

    /// Where a protocol is reached; `None`: it is not.
    pub(super) fn address(&self, wire: Wire) -> Option<SocketAddr> {
        match wire {
            Wire::NvmeTcp => Some(self.plain),
            Wire::NvmeTls => Some(self.tls),
            Wire::Iscsi => Some(self.iscsi),
            Wire::NvmeRdma => self.rdma,
        }
    }

    pub(super) fn set_mode(&self, mode: Mode) {
        self.target.set_mode(mode);
    }

    pub(super) fn stop(self) -> Result<(), String> {
        self.target.shutdown().map_err(|error| format!("the target: {error}"))
    }
}

fn config(lanes: &[&ConvergedSettings], cpus: &[usize]) -> TargetConfig {
    let usual = TargetConfig::default();
    let depth = lanes.iter().map(|lane| lane.depth).max().unwrap_or(1);
    TargetConfig {
        cores: cpus.to_vec(),
        mode: Mode::Poll,
        max_queue_entries: usual.max_queue_entries.max(depth.saturating_add(1)),
        ..usual
    }
}

/// Both ends of TLS.
fn keys(subsystem: &Nqn) -> Result<(TlsAcceptor, ClientPsk), String> {
    let host = Wire::NvmeTls.hostnqn();
    let make = || -> Result<_, raceline_auth::KeyError> {
        let key = raceline_auth::TlsKey::generate(Hash::Sha256)?;
        let table = PskTable::new();
        table.insert(&key, &host, subsystem)?;
        let version = raceline_auth::IdentityVersion::One;
        let psk = ClientPsk::new(&key, version, &host, subsystem)?;
        Ok((TlsAcceptor::new(Arc::new(table)), psk))
    };
    make().map_err(|error| format!("a key for TLS: {error}"))
}

/// The device as LUN 0 of a target node; gives where it is reached.
fn portal(
    target: &Target,
    node: &Name,
    device: SharedBdev,
    address: SocketAddr,
) -> Result<SocketAddr, TargetError> {
    let iscsi = target.iscsi();
    iscsi.set_initiator_group(InitiatorGroupConfig::any(TAG.into()))?;
    let portals = iscsi.add_portal_group(PortalGroupConfig::new(TAG, vec![address]))?;
    iscsi.add_target_node(TargetNodeConfig {
        maps: vec![PortalMap { portal_group: TAG, initiator_group: TAG.into() }],
        luns: vec![LunConfig { uuid: Some(UUID), ..LunConfig::new(device) }],
        ..TargetNodeConfig::new(node.as_str())
    })?;
    // One portal was asked for, and one listens.
    Ok(portals.first().copied().unwrap_or(address))
}
