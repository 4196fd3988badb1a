//! What is announced: numbers, their reuse, limits, and names of devices.

use raceline_proto::nvme::HostId;

use super::*;

fn nqn(name: &str) -> Nqn {
    Nqn::new(&format!("nqn.2026-01.io.raceline:{name}")).unwrap()
}

fn service(instance: &str, subsystem: &Nqn) -> Service {
    let addresses = vec!["192.0.2.1:8009".parse().unwrap(), "192.0.2.2:8009".parse().unwrap()];
    Service { instance: instance.to_owned(), nqn: subsystem.clone(), addresses }
}

fn search_with(known: Vec<KnownService>) -> Arc<MdnsDiscovery> {
    let address = "0.0.0.0:8009".parse().unwrap();
    let template = HostConfig::new(address, Nqn::discovery(), nqn("host"), HostId([1; 16]));
    MdnsDiscovery::new("M", template, 128, known)
}

fn found(mdns: &MdnsDiscovery) -> Vec<String> {
    mdns.found().into_iter().map(|it| format!("{} {}", it.name, it.instance)).collect()
}

#[test]
fn a_service_keeps_its_number_only_while_something_needs_it() {
    let (own, other) = (Nqn::discovery(), nqn("other"));
    let (number, instance, names) = (1, "old".to_owned(), vec![nqn("a")]);
    let mdns = search_with(vec![KnownService { number, instance, nqn: own.clone(), names }]);
    assert!(found(&mdns).is_empty());
    mdns.take([service("b", &own), service("a", &own)].iter());
    assert_eq!(found(&mdns), ["M0_nvme a", "M2_nvme b"]);
    mdns.take([service("old", &own), service("b", &own)].iter());
    assert_eq!(found(&mdns), ["M1_nvme old", "M2_nvme b"]);
    // Number 0 is free again; an instance that now names another subsystem is another service.
    mdns.take([service("c", &own), service("b", &other)].iter());
    assert_eq!(found(&mdns), ["M0_nvme c"]);
    mdns.take([service("c", &own), service("b", &other)].iter());
    assert_eq!(found(&mdns), ["M0_nvme c", "M2_nvme b"]);
    mdns.take([].iter());
    assert!(found(&mdns).is_empty());
    assert_eq!(mdns.lock().slots.len(), 1);
}

#[test]
fn what_is_due_is_a_service_with_all_of_its_addresses() {
    let mdns = search_with(vec![]);
    mdns.take([service("a", &nqn("own"))].iter());
    let due = mdns.due();
    assert_eq!(due.len(), 1);
    let (number, discovery) = &due[0];
    assert_eq!((*number, &*discovery.name), (0, "M0_nvme"));
    assert_eq!(discovery.address.to_string(), "192.0.2.1:8009");
    assert_eq!(discovery.subnqn(), &nqn("own"));
    assert_eq!(discovery.key, mdns.key);
    assert!(mdns.lost().is_empty() && !discovery.is_in_use());
    mdns.lock().slots.get_mut(&0).unwrap().discovery = Some(Arc::clone(discovery));
    assert!(mdns.due().is_empty() && mdns.lost().is_empty());
    mdns.take([].iter());
    assert_eq!(mdns.lost().len(), 1);
    assert_eq!(found(&mdns), ["M0_nvme a"]);
}

#[test]
fn services_without_end_take_no_more_than_their_share() {
    let mdns = search_with(vec![]);
    let many: Vec<Service> =
        (0..2 * MAX_FOLLOWED).map(|it| service(&format!("s{it}"), &Nqn::discovery())).collect();
    mdns.take(many.iter());
    assert_eq!(mdns.lock().slots.len(), MAX_FOLLOWED);
    assert!(mdns.problem().unwrap().contains("more than 64 services"));
    mdns.take(many[..1].iter());
    let left = mdns.lock().slots.len();
    assert_eq!((left, mdns.problem()), (1, None));
}

#[test]
fn names_of_devices_lead_to_their_service() {
    let (number, instance, names) = (3, "shelf".to_owned(), vec![nqn("a")]);
    let mdns = search_with(vec![KnownService { number, instance, nqn: Nqn::discovery(), names }]);
    assert!(mdns.makes("M3_nvme0n1") && mdns.makes("M3_nvme12n3"));
    for other in ["M3_nvmen1", "M03_nvme0n1", "M3_nvme00n1", "M4_nvme0n1", "N3_nvme0n1", "M3n1", ""]
    {
        assert!(!mdns.makes(other), "{other}");
    }
    let why = mdns.why_missing("M3_nvme0").unwrap();
    assert_eq!(why, "multicast DNS search M: shelf is not announced");
    assert_eq!(mdns.why_missing("M4_nvme0"), None);
}

#[test]
fn one_service_can_be_searched_for() {
    for name in ["_nvme-disc._tcp", "_NVMe-disc._tcp.local", "_nvme-disc._tcp.local."] {
        assert!(is_known_service(name), "{name}");
    }
    for name in ["", "_nvme-disc._udp", "_http._tcp", "nvme-disc"] {
        assert!(!is_known_service(name), "{name}");
    }
}
