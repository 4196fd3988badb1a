//! A remote namespace exported again: host -> target -> host -> target -> RAM.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use raceline_bdev::{Bdev as _, NamedBdev, SharedBdev};
use raceline_host::blocking::Host;
use raceline_host::{HostConfig, RemoteController, RemoteNamespace, RemoteState};
use raceline_proto::nvme::{NamespaceId, Nqn};
use raceline_target::{NamespaceConfig, SubsystemConfig, Target};

use crate::served::{NS as NSID, any_port, config, listen, small};

fn export(bdev: SharedBdev, name: &str) -> (Target, SocketAddr, Nqn) {
    let target = Target::start(small()).unwrap();
    let nqn = Nqn::new(&format!("nqn.2026-01.io.raceline:{name}")).unwrap();
    target
        .add_subsystem(SubsystemConfig {
            serial: name.to_uppercase(),
            ..SubsystemConfig::new(nqn.clone())
        })
        .unwrap();
    let namespace = NamespaceConfig::new(bdev);
    assert_eq!(target.add_namespace(&nqn, namespace).unwrap(), NSID);
    let address = listen(&target, any_port());
    (target, address, nqn)
}

fn host_config(address: SocketAddr, nqn: &Nqn) -> HostConfig {
    HostConfig { subnqn: nqn.clone(), ..config(address) }
}

#[test]
fn a_target_exports_what_another_target_exports() {
    let identity = raceline_bdev::Identity::of_this_machine();
    let ram = raceline_bdev::open(&"ram:16M,bs=4096".parse().unwrap(), &identity).unwrap();
    let (backing, address, nqn) = export(ram, "backing");

    let remote = Arc::new(RemoteNamespace::open(host_config(address, &nqn), NSID).unwrap());
    let (gateway, front, gateway_nqn) = export(remote.clone(), "gateway");

    let through = Host::connect(host_config(front, &gateway_nqn)).unwrap();
    let direct = Host::connect(host_config(address, &nqn)).unwrap();
    let info = through.namespace(NSID).unwrap();
    assert_eq!((info.block_size, info.block_count), (4096, 4096));
    for (slba, blocks) in [(0u64, 1usize), (7, 2), (100, 16), (1000, 32), (4064, 32)] {
        let data: Vec<u8> =
            (0..blocks * 4096).map(|i| (i as u64 * 31 + slba).to_le_bytes()[0]).collect();
        through.write(NSID, slba, &data, false).unwrap();
        let mut back = vec![0; data.len()];
        direct.read(NSID, slba, &mut back).unwrap();
        assert_eq!(back, data, "written through the gateway, read from the device");
        back.fill(0);
        through.read(NSID, slba, &mut back).unwrap();
        assert_eq!(back, data, "read through the gateway");
    }
    through.flush(NSID).unwrap();

    through.disconnect();
    direct.disconnect();
    gateway.shutdown().unwrap();
    remote.disconnect();
    backing.shutdown().unwrap();
}

/// Waits for news of the controller until `holds`.
fn wait_until(controller: &RemoteController, what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut version = 0;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        version = controller.wait_change(version, Duration::from_millis(100));
    }
}

#[test]
fn a_controller_tells_what_becomes_of_its_namespaces() {
    let open = |text: &str| {
        let identity = raceline_bdev::Identity::from_seed(b"news");
        raceline_bdev::open(&text.parse().unwrap(), &identity).unwrap()
    };
    let growing = Arc::new(NamedBdev::new(open("null:1M"), "growing".into(), None));
    let (backing, address, nqn) = export(growing.clone(), "news");
    let controller = RemoteController::connect(host_config(address, &nqn)).unwrap();
    assert_eq!(controller.namespaces().len(), 1);
    assert!(controller.namespace(NamespaceId(2)).is_err());
    let first = controller.namespace(NSID).unwrap();
    assert_eq!(first.info().block_count, 2048);

    let second = NamespaceConfig::new(open("ram:4M"));
    backing.add_namespace(&nqn, second).unwrap();
    wait_until(&controller, "the second comes", || controller.namespaces().len() == 2);
    let second = controller.namespace(NamespaceId(2)).unwrap();
    assert_eq!(second.info().block_count, 8192);
    growing.resize(4096).unwrap();
    backing.refresh_sizes().unwrap();
    wait_until(&controller, "the first grows", || first.info().block_count == 4096);
    backing.remove_namespace(&nqn, NSID).unwrap();
    wait_until(&controller, "the first goes", || controller.namespaces().len() == 1);

    // SMART / Health Information: 512 bytes.
    assert_eq!(controller.get_log(2, NamespaceId::BROADCAST, 512).unwrap().len(), 512);
    let before = controller.controller().cntlid;
    controller.reset();
    wait_until(&controller, "a new association", || {
        matches!(controller.state(), RemoteState::Up) && controller.controller().cntlid != before
    });
    controller.disconnect();
    assert!(matches!(controller.state(), RemoteState::Failed(_)));
    backing.shutdown().unwrap();
}
