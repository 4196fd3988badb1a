//! Environments of recorded machines, and of this one.

mod support;

use raceline_environment::{Environment, differences, interface};
use support::machine;

const VIRTIO_GUEST: &str = include_str!("machines/virtio-guest.txt");

#[test]
fn a_guest_is_read_whole() {
    let machine = machine(&[VIRTIO_GUEST]);
    let found = Environment::read_of(&machine.system, Some("eth0"));
    assert_eq!(found.cpu.model.text(), Some("AMD EPYC"));
    assert_eq!(found.cpu.cpus.get(), Some(2));
    assert_eq!((found.cpu.cores.get(), found.cpu.sockets.get()), (Some(2), Some(1)));
    assert!(found.cpu.governors.reason().is_some());
    assert_eq!(found.platform.virtual_machine.get(), Some(true));
    assert_eq!(found.platform.container.text(), Some("docker"));
    assert_eq!(found.idle.halt_poll_ns.get(), Some(0));
    assert_eq!(found.memory.lock_limit_bytes.get(), Some(Some(8_388_608)));
    assert_eq!(found.network.numbers("net.ipv4.tcp_rmem").len(), 3);
    assert_eq!(found.services.runs("irqbalance"), Some(false));
    let interface = found.interface.value().unwrap();
    assert_eq!(interface.driver.text(), Some("virtio_net"));
    assert_eq!(interface.address.text(), Some("0000:00:03.0"));
    assert_eq!(interface.numa_node.get(), Some(-1));
    assert_eq!(interface.discipline_kinds(), ["pfifo_fast"]);
    let interrupts = interface.interrupts.value().unwrap();
    let names: Vec<_> = interrupts.iter().map(|found| found.name.as_str()).collect();
    assert_eq!(names, ["virtio2-config", "virtio2-input.0", "virtio2-output.0"]);
    let drives = found.drives.value().unwrap();
    assert_eq!(drives.len(), 1, "{drives:?}");
    assert_eq!(drives[0].name, "vda");
}

#[test]
fn this_machine_is_read_and_comes_back_from_json() {
    let found = Environment::read(Some("lo"));
    assert!(found.cpu.cpus.get().is_some_and(|cpus| cpus > 0), "{found:?}");
    assert!(found.kernel.release.value().is_some());
    let lo = found.interface.value().unwrap();
    assert_eq!(lo.driver.reason(), Some("the interface has no device"));
    let json = serde_json::to_value(&found).unwrap();
    let back: Environment = serde_json::from_value(json.clone()).unwrap();
    assert_eq!(serde_json::to_value(&back).unwrap(), json);
    let again = serde_json::to_value(Environment::read(Some("lo"))).unwrap();
    assert!(differences(&json, &again).is_empty(), "{:?}", differences(&json, &again));
}

#[test]
fn a_missing_interface_names_the_others() {
    let machine = machine(&[VIRTIO_GUEST]);
    for name in ["eth7", "../eth0", ""] {
        let found = Environment::read_of(&machine.system, Some(name));
        let reason = found.interface.reason().unwrap();
        assert_eq!(reason, format!("there is no interface {name:?}; there are: eth0"));
    }
}

#[test]
fn the_interface_towards_an_address_is_the_route_s() {
    let machine = machine(&[
        VIRTIO_GUEST,
        "== /programs/ip -j route get 192.0.2.1\n[{\"dst\":\"192.0.2.1\",\"dev\":\"eth0\",\"flags\":[]}]",
        "== /programs/ip -j route get 192.0.2.2\nRTNETLINK answers",
    ]);
    let towards = |address: &str| interface::towards(&machine.system, address.parse().unwrap());
    assert_eq!(towards("192.0.2.1").text(), Some("eth0"));
    let broken = towards("192.0.2.2");
    assert!(broken.reason().unwrap().starts_with("ip prints no JSON list"), "{broken:?}");
    assert_eq!(towards("2001:db8::1").reason(), Some("the program ip is not installed"));
}
