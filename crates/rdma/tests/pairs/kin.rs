//! One device for several cores: a request that comes to one value of the device is answered by another.

use std::time::{Duration, Instant};

use raceline_proto::rdma::RejectStatus;
use raceline_rdma::fake::{Network, NetworkConfig};
use raceline_rdma::verbs::{ConnectionId, Provider};
use raceline_rdma::{
    Asked, ConnectError, Loss, TargetEvent, TargetPort, TargetPortEvent, WaitingDevice,
};

use super::support::{Host, address, port_config};

type Port = TargetPort<Box<dyn WaitingDevice>>;

/// Polls all until the first port has a request.
fn asked(network: &Network, host: &mut Host, port: &mut Port) -> (ConnectionId, Asked) {
    let now = Instant::now();
    for _ in 0..100 {
        host.poll(now);
        network.step();
        port.poll(now);
        match port.poll_event() {
            Some((id, TargetPortEvent::Asked(asked))) => return (id, asked),
            None => {}
            other => panic!("{other:?}"),
        }
    }
    panic!("no request");
}

fn until(network: &Network, host: &mut Host, ports: &mut [Port], done: impl Fn(&Host) -> bool) {
    let now = Instant::now();
    for _ in 0..1000 {
        host.poll(now);
        network.step();
        ports.iter_mut().for_each(|port| _ = port.poll(now));
        if done(host) {
            return;
        }
    }
    panic!("it does not come");
}

#[test]
fn a_request_is_answered_by_another_core() {
    for seed in 0..20 {
        let delay = Duration::from_micros(if seed % 2 == 0 { 0 } else { 20 });
        let network = Network::new(NetworkConfig { seed, delay, ..NetworkConfig::default() });
        let mut device: Box<dyn WaitingDevice> = Box::new(network.add_device());
        device.listen(address()).unwrap();
        let kin = device.kin().expect("a simulated device has kin");
        let mut ports = [device, kin().unwrap()].map(|device| Port::new(device, port_config()));
        ports[0].hold_requests();
        let mut host = Host::new(network.add_device());
        let now = Instant::now();

        host.connect(1, now).unwrap();
        let (id, request) = asked(&network, &mut host, &mut ports[0]);
        let given = ports[0].provider().give(id).expect("a request");
        let id = ports[1].provider().take(given).unwrap();
        ports[1].admit(id, &request, now).unwrap();
        until(&network, &mut host, &mut ports, |host| host.live.len() == 1);
        let uses = network.cores_of(address());
        assert_eq!(uses.iter().map(|core| core.pairs).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(uses.iter().map(|core| core.taken).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(uses.iter().map(|core| core.sharing).collect::<Vec<_>>(), [0, 1]);
        assert!(uses.iter().all(|core| core.shared_receives > 0), "each has its own: {uses:?}");

        // One that nobody takes is refused, and so is one that is given to another device.
        host.connect(2, now).unwrap();
        let (id, _) = asked(&network, &mut host, &mut ports[0]);
        drop(ports[0].provider().give(id));
        until(&network, &mut host, &mut ports, |host| !host.failures.is_empty());
        host.connect(3, now).unwrap();
        let (id, _) = asked(&network, &mut host, &mut ports[0]);
        let given = ports[0].provider().give(id).expect("a request");
        let error = network.add_device().take(given).unwrap_err();
        assert!(error.to_string().contains("another device"), "{error}");
        until(&network, &mut host, &mut ports, |host| host.failures.len() == 2);
        let refused = ConnectError::Rejected(RejectStatus::NoResources);
        assert_eq!(host.failures, [refused.clone(), refused]);

        // The device is gone for both.
        network.remove_listening(address());
        until(&network, &mut host, &mut ports, |host| host.live.is_empty());
        assert!(ports.iter().all(TargetPort::is_device_gone));
        let lost = std::iter::from_fn(|| ports[1].poll_event()).any(|(_, event)| {
            event == TargetPortEvent::Queue(TargetEvent::Lost(Loss::DeviceRemoved))
        });
        assert!(lost, "its connection is lost");
        assert!(kin().is_err(), "a device that is gone is not opened again");
        for mut port in ports {
            port.end();
        }
        assert_eq!(network.misuses(), Vec::<String>::new());
    }
}
