//! A simulated RDMA network that carries the tests' targets and hosts.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use raceline_bdev::SharedBdev;
use raceline_host::RdmaDevices;
use raceline_proto::nvme::Nqn;
use raceline_rdma::device::{Carrier, Link};
use raceline_rdma::fake::{Network, NetworkConfig};
use raceline_rdma::verbs::ProviderError;
use raceline_rdma::waiting::WaitingDevice;
use raceline_reactor::affinity::allowed_cores;
use raceline_reactor::{Mode, StreamProvider};
use raceline_target::{
    NamespaceConfig, RdmaConfig, RdmaStreams, SubsystemConfig, Target, TargetConfig,
};

use super::Rdma;

/// Each queue of a host gets a device of the simulated network.
#[derive(Debug)]
struct Devices(Network);

impl RdmaDevices for Devices {
    fn open(
        &self,
        _: SocketAddr,
        _: Option<std::net::IpAddr>,
        _: u32,
    ) -> Result<Box<dyn WaitingDevice>, ProviderError> {
        Ok(Box::new(self.0.add_device()))
    }
}

/// What runs over the simulated network; the thread moves it until it is told to stop.
pub(crate) fn with_fabric<T>(work: impl FnOnce(Rdma, &Network) -> T) -> T {
    let network = Network::new(NetworkConfig::default());
    let stop = AtomicBool::new(false);
    let result = std::thread::scope(|scope| {
        let moved = network.clone();
        let stopped = &stop;
        scope.spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                if !moved.step() {
                    std::thread::sleep(Duration::from_micros(50));
                }
            }
        });
        let target = network.clone();
        let streams = move |config: &TargetConfig| {
            let network = target.clone();
            let open = move |_| Ok(Box::new(network.add_device()) as _);
            Arc::new(RdmaStreams::over(RdmaConfig::of(config), open))
        };
        let rdma = Rdma {
            address: std::net::Ipv4Addr::LOCALHOST.into(),
            devices: Arc::new(Devices(network.clone())),
            streams: Arc::new(streams),
            link: Link { name: "simulated".to_owned(), carrier: Carrier::Roce, is_software: true },
        };
        let result = work(rdma, &network);
        stop.store(true, Ordering::Relaxed);
        result
    });
    assert_eq!(network.misuses(), Vec::<String>::new());
    result
}

/// A target of somebody else: it exports the device there.
pub(crate) fn serve(rdma: &Rdma, address: SocketAddr, nqn: &Nqn, device: SharedBdev) -> Target {
    let usual = TargetConfig::default();
    let cores = allowed_cores().unwrap()[..1].to_vec();
    let config = TargetConfig { cores, mode: Mode::Interrupt, ..usual };
    let streams: Arc<dyn StreamProvider> = (rdma.streams)(&config);
    let target = Target::start(config).unwrap();
    target.add_subsystem(SubsystemConfig::new(nqn.clone())).unwrap();
    target.add_namespace(nqn, NamespaceConfig::new(device)).unwrap();
    target.add_listener_with(address, Some(streams)).unwrap();
    target
}
