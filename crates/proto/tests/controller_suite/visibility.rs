//! Which host sees and reaches what: listeners of a subsystem, namespaces of a host, referrals, filters.

use std::sync::Arc;

use raceline_proto::controller::{
    Action, Channel, DiscoveryFilter, HostAccess, Limits, ListenerInfo, Namespace, Referral,
    Subsystem, TargetSnapshot, Visibility, find_subsystem,
};
use raceline_proto::nvme::discovery::DiscoveryEntry;
use raceline_proto::nvme::feature::fid;
use raceline_proto::nvme::identify::{IdentifyController, IdentifyNamespace, NamespaceList, cns};
use raceline_proto::nvme::log::lid;
use raceline_proto::nvme::opcode::admin;
use raceline_proto::nvme::{Nqn, Sqe, Status};
use zerocopy::FromBytes;

use super::support::{
    Connect, HOSTNQN, Host, OTHER_HOSTNQN, OTHER_SUBNQN, SUBNQN, listener, namespace, nqn,
    snapshot, subsystem,
};

fn active(host: &mut Host) -> Vec<u32> {
    let data = host.identify(cns::ACTIVE_NAMESPACES, 0).ok().data;
    let list = NamespaceList::read_from_bytes(&data).unwrap();
    list.nsids.iter().map(|nsid| nsid.get()).take_while(|&nsid| nsid != 0).collect()
}

fn masked(hosts: &[&str]) -> Subsystem {
    let hosts: Vec<Nqn> = hosts.iter().map(|name| nqn(name)).collect();
    let second = Namespace { visibility: Visibility::Hosts(hosts.into()), ..namespace(2) };
    Subsystem { namespaces: vec![namespace(1), second], ..subsystem() }
}

#[test]
fn a_host_sees_its_namespaces_only() {
    let mut host = Host::ready_with(masked(&[OTHER_HOSTNQN]));
    assert_eq!(active(&mut host), [1]);
    let data = host.identify(cns::NAMESPACE, 2).ok().data;
    assert!(data.iter().all(|&b| b == 0), "inactive");
    let status = host.identify(cns::NAMESPACE_DESCRIPTORS, 2).status;
    assert_eq!(status, Status::INVALID_NAMESPACE.dnr());
    assert_eq!(active(&mut Host::ready_with(masked(&[OTHER_HOSTNQN, HOSTNQN]))), [1, 2]);
}

#[test]
fn the_host_that_gains_or_loses_a_namespace_is_told_and_no_other() {
    let mut host = Host::ready_with(masked(&[]));
    host.set_feature(fid::ASYNC_EVENT_CONFIG, 1 << 8).ok();
    let event = host.request_event();
    host.controller.handle_snapshot(snapshot(2, masked(&[OTHER_HOSTNQN])));
    assert_eq!(host.actions(), []);
    host.controller.handle_snapshot(snapshot(3, masked(&[OTHER_HOSTNQN, HOSTNQN])));
    assert_eq!(active(&mut host), [1, 2]);
    let told = Action::CompleteAer { cid: event, status: Status::SUCCESS, dw0: 0x0004_0002 };
    assert_eq!(host.actions(), [told]);
    let page = host.log(lid::CHANGED_NAMESPACES, 0, 4096, false).ok().data;
    assert_eq!(page[..8], [2, 0, 0, 0, 0, 0, 0, 0]);
    host.request_event();
    host.controller.handle_snapshot(snapshot(4, masked(&[HOSTNQN])));
    assert_eq!(host.actions(), [], "of the other host only");
    host.controller.handle_snapshot(snapshot(5, masked(&[])));
    assert_eq!(host.actions().len(), 1);
}

#[test]
fn identifiers_and_limits_of_a_subsystem_are_shown() {
    let mut subsystem = subsystem();
    subsystem.max_nsid = 3;
    subsystem.limits = Limits { retry_delays: [10, 20, 30], ..Limits::DEFAULT };
    subsystem.namespaces[0].eui64 = *b"eui64eui";
    let mut host = Host::ready_with(subsystem);
    let data = host.identify(cns::CONTROLLER, 0).ok().data;
    let controller = IdentifyController::read_from_bytes(&data).unwrap();
    assert_eq!((controller.nn.get(), controller.mnan.get()), (3, 3));
    assert_eq!(controller.crdt.map(|delay| delay.get()), [10, 20, 30]);
    let data = host.identify(cns::NAMESPACE, 1).ok().data;
    assert_eq!(&IdentifyNamespace::read_from_bytes(&data).unwrap().eui64, b"eui64eui");
    let data = host.identify(cns::NAMESPACE_DESCRIPTORS, 1).ok().data;
    assert_eq!(data[..12], *b"\x01\x08\0\0eui64eui");
    assert_eq!(host.identify(cns::NAMESPACE, 4).status, Status::INVALID_NAMESPACE.dnr());
    let mut too_many = masked(&[]);
    too_many.max_nsid = 1;
    assert!(too_many.validated().unwrap_err().to_string().contains("outside 1..=1"));
}

#[test]
fn hosts_can_say_that_they_wait_before_a_retry() {
    let mut host = Host::ready();
    let set = Sqe {
        cdw10: u32::from(fid::HOST_BEHAVIOR).into(),
        ..Host::admin(admin::SET_FEATURES, 512)
    };
    host.submit_with(&set, &[1]).unwrap();
    assert_eq!(host.get_feature(fid::HOST_BEHAVIOR, 0, 0, 512).ok().data[0], 1);
    let outcome = host.submit_with(&set, &[2]).unwrap().0;
    let refused = raceline_proto::controller::AdminOutcome::status(Status::INVALID_FIELD.dnr());
    assert_eq!(outcome, refused);
}

fn closed(port_id: u16) -> ListenerInfo {
    ListenerInfo { open: false, ..listener(&format!("192.0.2.1:{}", 4420 + port_id), port_id) }
}

/// Ports 1 and 2 lead to one subsystem each, 3 to both, 4 to none.
fn two_subsystems() -> TargetSnapshot {
    let first = Subsystem {
        nqn: nqn(OTHER_SUBNQN),
        ports: vec![1, 3],
        hosts: HostAccess::Any,
        ..subsystem()
    };
    let second = Subsystem { ports: vec![2, 3], ..subsystem() };
    TargetSnapshot {
        generation: 1,
        subsystems: vec![Arc::new(first), Arc::new(second)],
        listeners: (1..=4).map(closed).collect(),
        ..TargetSnapshot::default()
    }
}

#[test]
fn a_subsystem_is_reached_by_its_own_listeners_only() {
    let snapshot = two_subsystems();
    let request = Connect::admin(SUBNQN).parse().unwrap();
    for (port, reached) in [(1, false), (2, true), (3, true), (4, false), (5, false)] {
        match find_subsystem(&snapshot, &request, (port, Channel::Plain)) {
            Ok(_) => assert!(reached, "port {port}"),
            Err(error) => {
                assert!(!reached, "port {port}: {error}");
                // a restarting target may be about to add the listener
                assert_eq!(error.status, Status::CONNECT_INVALID_HOST);
            }
        }
    }
    let discovery = Connect::admin(Nqn::discovery().as_str()).parse().unwrap();
    find_subsystem(&snapshot, &discovery, (4, Channel::Plain)).unwrap();
}

/// What the Discovery log says to our host: SUBTYPE, SUBNQN without its beginning, TRSVCID.
fn entries(snapshot: TargetSnapshot, local: &str) -> Vec<DiscoveryEntry> {
    let mut host = Host::discovery(&Arc::new(snapshot), 0, local);
    let page = host.log(lid::DISCOVERY, 0, 16 * 1024, true).ok().data;
    let entries =
        page.chunks_exact(1024).skip(1).map(|e| DiscoveryEntry::read_from_bytes(e).unwrap());
    entries.take(page[8].into()).collect()
}

fn log(snapshot: TargetSnapshot, local: &str) -> Vec<(u8, String, String)> {
    entries(snapshot, local)
        .into_iter()
        .map(|entry| {
            let name = Nqn::from_field(&entry.subnqn).unwrap();
            let name = name.as_str().rsplit([':', '.']).next().unwrap().to_owned();
            (entry.subtype, name, entry.address().unwrap().1.to_owned())
        })
        .collect()
}

fn entry(subtype: u8, name: &str, service: &str) -> (u8, String, String) {
    (subtype, name.to_owned(), service.to_owned())
}

#[test]
fn discovery_lists_a_subsystem_at_its_own_listeners() {
    let mut snapshot = two_subsystems();
    let all = [
        entry(2, "other", "4421"),
        entry(2, "other", "4423"),
        entry(2, "subsystem", "4422"),
        entry(2, "subsystem", "4423"),
    ];
    assert_eq!(log(snapshot.clone(), "192.0.2.1:8009"), all);
    snapshot.discovery_ports = vec![4];
    let [.., last] = &log(snapshot, "192.0.2.1:8009")[..] else { panic!("an empty log") };
    assert_eq!(*last, entry(3, "discovery", "4424"));
}

#[test]
fn discovery_filters_by_how_the_host_came() {
    let mut snapshot = two_subsystems();
    snapshot.discovery_filter = DiscoveryFilter { service: true, address: false };
    let by_service = [entry(2, "other", "4423"), entry(2, "subsystem", "4423")];
    assert_eq!(log(snapshot.clone(), "192.0.2.1:4423"), by_service);
    snapshot.discovery_filter = DiscoveryFilter { service: false, address: true };
    assert_eq!(log(snapshot.clone(), "192.0.2.1:4423").len(), 4);
    assert_eq!(log(snapshot, "192.0.2.9:4423"), []);
}

#[test]
fn referrals_are_listed_for_the_hosts_that_they_are_for_and_a_change_is_told() {
    let referral = |subnqn: Nqn, hosts| Referral {
        trtype: 3,
        adrfam: 1,
        traddr: "198.51.100.7".into(),
        trsvcid: "8009".into(),
        subnqn,
        secure_channel: false,
        hosts,
    };
    let others = HostAccess::List(vec![nqn(OTHER_HOSTNQN)]);
    let mut snapshot = TargetSnapshot { generation: 1, ..TargetSnapshot::default() };
    let mut host = Host::discovery(&Arc::new(snapshot.clone()), 5000, "192.0.2.1:8009");
    host.set_feature(fid::ASYNC_EVENT_CONFIG, 1 << 31).ok();
    host.request_event();

    snapshot.generation = 2;
    snapshot.referrals = vec![referral(Nqn::discovery(), others)];
    host.controller.handle_snapshot(Arc::new(snapshot.clone()));
    assert_eq!(host.actions(), [], "it is for another host");

    snapshot.generation = 3;
    snapshot.referrals.push(referral(Nqn::discovery(), HostAccess::Any));
    snapshot.referrals.push(referral(nqn(OTHER_SUBNQN), HostAccess::Any));
    host.controller.handle_snapshot(Arc::new(snapshot.clone()));
    assert_eq!(host.actions().len(), 1);
    let expected = [entry(1, "discovery", "8009"), entry(2, "other", "8009")];
    assert_eq!(log(snapshot.clone(), "192.0.2.1:8009"), expected);

    // One by RDMA says which service of RDMA it takes: reliable connections, with the connection manager.
    snapshot.referrals =
        vec![Referral { trtype: 1, ..referral(Nqn::discovery(), HostAccess::Any) }];
    let [found] = &entries(snapshot, "192.0.2.1:8009")[..] else { panic!("not one entry") };
    assert_eq!((found.trtype, &found.tsas[..4]), (1, &[1, 1, 1, 0][..]));
}
