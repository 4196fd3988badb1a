//! A remote namespace exported again: host -> target -> host -> target -> RAM.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::net::SocketAddr;
use std::sync::Arc;

use raceline_bdev::SharedBdev;
use raceline_host::blocking::Host;
use raceline_host::{HostConfig, RemoteNamespace};
use raceline_proto::nvme::{HostId, NamespaceId, Nqn};
use raceline_reactor::Mode;
use raceline_target::{HostAccess, NamespaceConfig, SubsystemConfig, Target, TargetConfig};

const NSID: NamespaceId = NamespaceId(1);

fn export(bdev: SharedBdev, cores: Vec<usize>, name: &str) -> (Target, SocketAddr, Nqn) {
    let config = TargetConfig {
        cores,
        mode: Mode::Interrupt,
        large_buffers_per_core: 16,
        small_buffers_per_core: 64,
        ..TargetConfig::default()
    };
    let target = Target::start(config).unwrap();
    let nqn = Nqn::new(&format!("nqn.2026-01.io.raceline:{name}")).unwrap();
    target
        .add_subsystem(SubsystemConfig {
            nqn: nqn.clone(),
            serial: name.to_uppercase(),
            model: "Raceline".into(),
            hosts: HostAccess::Any,
        })
        .unwrap();
    let namespace = NamespaceConfig { nsid: None, bdev, uuid: None, nguid: None };
    assert_eq!(target.add_namespace(&nqn, namespace).unwrap(), NSID);
    let address = target.add_listener("127.0.0.1:0".parse().unwrap()).unwrap();
    (target, address, nqn)
}

fn host_config(address: SocketAddr, nqn: &Nqn) -> HostConfig {
    let hostnqn = Nqn::new("nqn.2026-01.io.raceline:host").unwrap();
    HostConfig::new(address, nqn.clone(), hostnqn, HostId([5; 16]))
}

#[test]
fn a_target_exports_what_another_target_exports() {
    let identity = raceline_bdev::Identity::of_this_machine();
    let ram = raceline_bdev::open(&"ram:16M,bs=4096".parse().unwrap(), &identity).unwrap();
    let (backing, address, nqn) = export(ram, vec![0], "backing");

    let remote = Arc::new(RemoteNamespace::open(host_config(address, &nqn), NSID).unwrap());
    let (gateway, front, gateway_nqn) = export(remote.clone(), vec![0], "gateway");

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
