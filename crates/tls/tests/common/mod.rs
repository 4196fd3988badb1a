//! A target that listens with TLS, and hosts for it.
#![allow(
    dead_code,
    clippy::unwrap_used,
    unreachable_pub,
    missing_docs,
    reason = "parts of several tests"
)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use raceline_auth::{IdentityVersion, TlsKey};
use raceline_bdev::{DeviceSpec, Identity};
use raceline_host::blocking::Host;
use raceline_host::{HostConfig, HostError};
use raceline_proto::nvme::{HostId, NamespaceId, Nqn};
use raceline_reactor::core::Backend;
use raceline_target::{NamespaceConfig, SubsystemConfig, Target, TargetConfig};
use raceline_tls::{ClientPsk, PskTable, TlsAcceptor, TlsConnector};

pub const NS: NamespaceId = NamespaceId(1);
pub const BLOCK: usize = 512;

pub fn nqn(name: &str) -> Nqn {
    Nqn::new(name).unwrap()
}

/// A target with two subsystems, that listens with TLS.
pub struct Served {
    pub target: Target,
    pub table: Arc<PskTable>,
    pub address: SocketAddr,
}

impl Served {
    pub fn start(backend: Backend) -> Served {
        let target = Target::start(TargetConfig { backend, ..TargetConfig::default() }).unwrap();
        for name in ["nqn.sub", "nqn.other-sub"] {
            target.add_subsystem(SubsystemConfig::new(nqn(name))).unwrap();
            let spec: DeviceSpec = "ram:16M".parse().unwrap();
            let device = raceline_bdev::open(&spec, &Identity::of_this_machine()).unwrap();
            target.add_namespace(&nqn(name), NamespaceConfig::new(device)).unwrap();
        }
        let table = Arc::new(PskTable::new());
        let streams = Arc::new(TlsAcceptor::new(Arc::clone(&table) as Arc<_>));
        let any_port = "127.0.0.1:0".parse().unwrap();
        let address = target
            .add_listener_with(any_port, Some(streams as Arc<dyn raceline_reactor::StreamProvider>))
            .unwrap();
        Served { target, table, address }
    }

    /// What a host needs that claims `host` and `subsystem`, with a key for other names maybe.
    pub fn config(
        &self,
        (host, subsystem): (&str, &str),
        key: &TlsKey,
        (key_host, key_subsystem): (&str, &str),
    ) -> HostConfig {
        let version = IdentityVersion::One;
        let psk = ClientPsk::new(key, version, &nqn(key_host), &nqn(key_subsystem)).unwrap();
        let hostid = HostId([7; 16]);
        let mut config = HostConfig::new(self.address, nqn(subsystem), nqn(host), hostid);
        config.streams = Some(Arc::new(TlsConnector::new(psk)));
        config.io_queues = 2;
        config.backoff.give_up_after = Some(Duration::ZERO);
        config
    }

    /// Connects such a host.
    pub fn connect(
        &self,
        names: (&str, &str),
        key: &TlsKey,
        key_names: (&str, &str),
    ) -> Result<Host, HostError> {
        Host::connect(self.config(names, key, key_names))
    }
}

pub fn backends() -> impl Iterator<Item = Backend> {
    let usable = |backend: &Backend| raceline_reactor::core::open_io(*backend).is_ok();
    [Backend::Uring, Backend::Epoll].into_iter().filter(usable)
}
