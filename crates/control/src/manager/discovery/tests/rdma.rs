//! A discovery service over RDMA that is followed: the target and its follower on a simulated network.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use raceline_host::transport::{ProviderError, WaitingDevice};
use raceline_host::{HostConfig, MultipathConfig, RdmaDevices, RemoteState, Transport};
use raceline_proto::nvme::{HostId, Nqn};
use raceline_rdma::fake::{Network, NetworkConfig};
use raceline_target::{
    HostAccess, NamespaceConfig, RdmaConfig, RdmaStreams, SubsystemConfig, Target, TargetConfig,
};

use super::super::{Discovery, Endpoint, Origin};
use crate::manager::controllers::link::Link;
use crate::manager::threads::tests::Nothing;
use crate::manager::{Manager, ManagerConfig};

/// How long the test waits for what must happen.
const PATIENCE: Duration = Duration::from_secs(60);

/// The devices of a host on the network.
#[derive(Debug)]
struct Devices(Network);

impl RdmaDevices for Devices {
    fn open(
        &self,
        _target: SocketAddr,
        _source: Option<IpAddr>,
        _completions: u32,
    ) -> Result<Box<dyn WaitingDevice>, ProviderError> {
        Ok(Box::new(self.0.add_device()))
    }
}

/// A network in motion.
struct Fabric {
    network: Network,
    stop: Arc<AtomicBool>,
    engine: Option<JoinHandle<()>>,
}

impl Fabric {
    fn new() -> Self {
        let network = Network::new(NetworkConfig::default());
        let stop = Arc::new(AtomicBool::new(false));
        let (moved, stopped) = (network.clone(), Arc::clone(&stop));
        let engine = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                if !moved.step() {
                    std::thread::sleep(Duration::from_micros(50));
                }
            }
        });
        Self { network, stop, engine: Some(engine) }
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.engine.take().map(JoinHandle::join);
    }
}

fn wait(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The places to which a controller has paths that are up.
fn paths(discovery: &Discovery) -> Vec<Endpoint> {
    let state = discovery.lock();
    let controller = state.found.first().and_then(|found| found.controller.as_ref());
    let Some(Link::Remote(remote)) = controller.map(|controller| &controller.link) else {
        return Vec::new();
    };
    let up = remote.paths().into_iter().filter(|path| matches!(path.state, RemoteState::Up));
    up.map(|path| Endpoint::of(&path.config)).collect()
}

#[test]
fn a_service_over_rdma_leads_to_paths_over_both_transports() {
    let fabric = Fabric::new();
    let nqn = |name: &str| Nqn::new(&format!("nqn.2026-01.io.raceline:{name}")).unwrap();
    let config = TargetConfig::default();
    let network = fabric.network.clone();
    let open = move |_| Ok(Box::new(network.add_device()) as _);
    let streams = RdmaStreams::over(RdmaConfig::of(&config), open);
    let target = Target::start(config).unwrap();
    let subsystem = SubsystemConfig { hosts: HostAccess::Any, ..SubsystemConfig::new(nqn("both")) };
    target.add_subsystem(subsystem).unwrap();
    let device = raceline_bdev::open(
        &"ram:1M".parse().unwrap(),
        &raceline_bdev::Identity::of_this_machine(),
    );
    target.add_namespace(&nqn("both"), NamespaceConfig::new(device.unwrap())).unwrap();
    let tcp = target.add_listener("127.0.0.1:0".parse().unwrap()).unwrap();
    let rdma: SocketAddr = "127.0.0.1:4420".parse().unwrap();
    target.add_listener_with(rdma, Some(Arc::new(streams) as _)).unwrap();

    let manager = Arc::new(Manager::new(ManagerConfig::default(), Arc::new(Nothing)));
    manager.share();
    manager.start();
    let config = HostConfig {
        transport: Transport::Rdma,
        multipath: Some(MultipathConfig::default()),
        rdma_devices: Arc::new(Devices(fabric.network.clone())),
        ..HostConfig::new(rdma, Nqn::discovery(), nqn("host"), HostId([1; 16]))
    };
    let discovery = Discovery::new("D", Origin::Client, config, 128, Vec::new());
    manager.change(|change| change.follow_discovery(&discovery)).unwrap();
    assert!(discovery.wait_attached(PATIENCE), "{:?}", discovery.problem());
    let by_rdma = Endpoint { transport: Transport::Rdma, address: rdma };
    let has = |place: Endpoint| paths(&discovery).contains(&place);
    wait("a path for each transport", || has(by_rdma) && has(tcp.into()));
    // What is listed no more goes, and the other path stays.
    target.remove_listener(tcp).unwrap();
    wait("the path over RDMA alone", || paths(&discovery) == [by_rdma]);
    assert_eq!(discovery.problem(), None);

    let attached = manager.change(|change| change.forget_discovery("D")).unwrap();
    attached.iter().for_each(|controller| controller.link.end());
    drop((attached, discovery, manager));
    target.shutdown().unwrap();
    assert_eq!(fabric.network.misuses(), Vec::<String>::new());
}
