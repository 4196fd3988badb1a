//! The Discovery log: what a host sees of the target.

use std::sync::Arc;

use raceline_proto::controller::{
    Action, HostAccess, ListenerInfo, Security, Subsystem, TargetSnapshot,
};
use raceline_proto::nvme::discovery::{DiscoveryEntry, DiscoveryHeader};
use raceline_proto::nvme::feature::fid;
use raceline_proto::nvme::log::lid;
use raceline_proto::nvme::{Nqn, Status};
use zerocopy::FromBytes;

use super::support::{
    Connect, Host, OTHER_HOSTNQN, OTHER_SUBNQN, SUBNQN, listener, nqn, snapshot, subsystem,
};

const LOCAL: &str = "192.0.2.1:8009";

fn target(generation: u64, listeners: Vec<ListenerInfo>) -> Arc<TargetSnapshot> {
    let hidden = Subsystem {
        nqn: nqn(OTHER_SUBNQN),
        hosts: HostAccess::List(vec![nqn(OTHER_HOSTNQN)]),
        ..subsystem()
    };
    let subsystems = vec![Arc::new(hidden), Arc::new(subsystem())];
    Arc::new(TargetSnapshot { generation, subsystems, listeners, ..TargetSnapshot::default() })
}

struct Log {
    header: DiscoveryHeader,
    entries: Vec<DiscoveryEntry>,
}

impl Log {
    fn addresses(&self) -> Vec<(String, String)> {
        let address = |entry: &DiscoveryEntry| {
            let (traddr, trsvcid) = entry.address().unwrap();
            (traddr.to_owned(), trsvcid.to_owned())
        };
        self.entries.iter().map(address).collect()
    }
}

/// Reads the log as Linux does: the start of the header, then all of it in pieces.
fn read(host: &mut Host) -> Log {
    let header = host.log(lid::DISCOVERY, 0, 1024, true).ok().data;
    let header = DiscoveryHeader::read_from_bytes(&header).unwrap();
    let count = usize::try_from(header.numrec.get()).unwrap();
    let mut page = vec![];
    for offset in (0..(count as u64 + 1) * 1024).step_by(4096) {
        page.extend(host.log(lid::DISCOVERY, offset, 4096, true).ok().data);
    }
    let entries = page.chunks_exact(1024).skip(1).take(count);
    let entries = entries.map(|bytes| DiscoveryEntry::read_from_bytes(bytes).unwrap()).collect();
    assert!(page[(count + 1) * 1024..].iter().all(|&b| b == 0), "zero past the end");
    Log { header, entries }
}

fn addresses(listeners: &[&str], local: &str) -> Vec<(String, String)> {
    let listeners = listeners.iter().map(|address| listener(address, 1)).collect();
    read(&mut Host::discovery(&target(1, listeners), 0, local)).addresses()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|&(a, b)| (a.to_owned(), b.to_owned())).collect()
}

#[test]
fn entries_are_complete() {
    let secure = ListenerInfo { security: Security::TLS, ..listener("[2001:db8::5]:4421", 4) };
    let listeners = vec![listener("192.0.2.1:4420", 3), secure];
    let log = read(&mut Host::discovery(&target(17, listeners), 0, LOCAL));
    assert_eq!((log.header.genctr.get(), log.header.numrec.get()), (17, 2));
    assert_eq!(log.header.recfmt.get(), 0);
    let [v4, v6] = &log.entries[..] else { panic!("two entries") };
    assert_eq!((v4.trtype, v4.adrfam, v4.subtype), (3, 1, 2));
    assert_eq!(v4.treq, 0b110, "no secure channel required, SQ flow control may be disabled");
    assert_eq!((v4.portid.get(), v4.cntlid.get(), v4.asqsz.get()), (3, 0xffff, 32));
    assert_eq!(Nqn::from_field(&v4.subnqn).unwrap().as_str(), SUBNQN);
    assert_eq!(&v4.traddr[..12], b"192.0.2.1   ");
    assert_eq!(&v4.trsvcid[..6], b"4420  ");
    assert_eq!(v4.tsas[0], 0, "SECTYPE none");
    assert_eq!((v6.adrfam, v6.portid.get()), (2, 4));
    assert_eq!((v6.treq, v6.tsas[0]), (0b101, 2), "TLS 1.3 is required");
    assert_eq!(v6.address(), Some(("2001:db8::5", "4421")));
}

#[test]
fn hosts_see_only_what_admits_them() {
    let log = read(&mut Host::discovery(&target(1, vec![listener("192.0.2.1:4420", 1)]), 0, LOCAL));
    let names: Vec<_> = log.entries.iter().map(|e| Nqn::from_field(&e.subnqn).unwrap()).collect();
    assert_eq!(names, [nqn(SUBNQN)]);
}

#[test]
fn hosts_without_a_name_see_what_admits_any_host() {
    let mut connect = Connect::admin(Nqn::discovery().as_str());
    connect.data.hostnqn = [0; 256];
    let open = Subsystem { nqn: nqn(OTHER_SUBNQN), hosts: HostAccess::Any, ..subsystem() };
    let mut snapshot = TargetSnapshot::clone(&snapshot(1, subsystem()));
    snapshot.subsystems.insert(0, Arc::new(open));
    let mut host = Host::connect_to(&connect, &Arc::new(snapshot), LOCAL);
    host.enable();
    let log = read(&mut host);
    let names: Vec<_> = log.entries.iter().map(|e| Nqn::from_field(&e.subnqn).unwrap()).collect();
    assert_eq!(names, [nqn(OTHER_SUBNQN)]);
}

#[test]
fn wildcards_become_the_address_that_the_host_reached() {
    assert_eq!(
        addresses(&["0.0.0.0:4420", "192.0.2.9:4421"], "192.0.2.1:8009"),
        pairs(&[("192.0.2.1", "4420"), ("192.0.2.9", "4421")])
    );
    assert_eq!(addresses(&["[::]:4420"], "[2001:db8::1]:8009"), pairs(&[("2001:db8::1", "4420")]));
    // one socket for both families
    assert_eq!(addresses(&["[::]:4420"], "192.0.2.1:8009"), pairs(&[("192.0.2.1", "4420")]));
    assert_eq!(
        addresses(&["[::]:4420"], "[::ffff:192.0.2.1]:8009"),
        pairs(&[("192.0.2.1", "4420")])
    );
    // an IPv4 socket has no address for a host that came over IPv6
    assert_eq!(addresses(&["0.0.0.0:4420"], "[2001:db8::1]:8009"), pairs(&[]));
}

#[test]
fn loopback_is_for_loopback() {
    assert_eq!(addresses(&["127.0.0.1:4420", "[::1]:4420"], "192.0.2.1:8009"), pairs(&[]));
    assert_eq!(addresses(&["127.0.0.1:4420"], "127.0.0.1:8009"), pairs(&[("127.0.0.1", "4420")]));
}

#[test]
fn offsets_are_checked() {
    let mut host = Host::discovery(&target(1, vec![listener("192.0.2.1:4420", 1)]), 0, LOCAL);
    assert_eq!(host.log(lid::DISCOVERY, 2048, 1024, true).ok().data, [0; 1024]);
    for offset in [1, 2, 1025, 2052, 1 << 40, u64::MAX - 3] {
        let status = host.log(lid::DISCOVERY, offset, 1024, true).status;
        assert_eq!(status, Status::INVALID_FIELD.dnr(), "{offset}");
    }
}

#[test]
fn any_offset_and_length_gives_the_same_bytes() {
    let listeners = (1..=5).map(|i| listener(&format!("192.0.2.{i}:4420"), i)).collect();
    let mut host = Host::discovery(&target(1, listeners), 0, LOCAL);
    let mut whole = host.log(lid::DISCOVERY, 0, 6 * 1024, true).ok().data;
    whole.resize(8 * 1024, 0);
    for offset in (0..=6 * 1024).step_by(68) {
        for len in [4, 20, 1024, 1988] {
            let piece = host.log(lid::DISCOVERY, offset, len, true).ok().data;
            let from = usize::try_from(offset).unwrap();
            assert_eq!(piece, whole[from..from + usize::try_from(len).unwrap()]);
        }
    }
}

#[test]
fn a_page_is_read_from_one_snapshot() {
    let one = target(1, vec![listener("192.0.2.1:4420", 1)]);
    let mut host = Host::discovery(&one, 0, LOCAL);
    let before = host.log(lid::DISCOVERY, 0, 2048, true).ok().data;
    let two = target(2, vec![listener("192.0.2.7:4420", 1), listener("192.0.2.8:4420", 1)]);
    host.controller.handle_snapshot(two);
    let tail = host.log(lid::DISCOVERY, 1024, 1024, true).ok().data;
    assert_eq!(tail, before[1024..], "the rest of what was begun");
    let log = read(&mut host);
    assert_eq!((log.header.genctr.get(), log.header.numrec.get()), (2, 2));
    assert_eq!(log.addresses(), pairs(&[("192.0.2.7", "4420"), ("192.0.2.8", "4420")]));
}

#[test]
fn genctr_changes_when_what_the_host_sees_does() {
    let listeners = vec![listener("192.0.2.1:4420", 1)];
    let mut host = Host::discovery(&target(1, listeners.clone()), 0, LOCAL);
    // a namespace, and a subsystem that this host does not see
    let mut other = (*target(2, listeners.clone())).clone();
    let mut grown = subsystem();
    grown.namespaces.pop();
    other.subsystems = vec![Arc::new(grown)];
    host.controller.handle_snapshot(Arc::new(other));
    assert_eq!(read(&mut host).header.genctr.get(), 1);
    host.controller.handle_snapshot(target(3, vec![listener("192.0.2.1:4421", 1)]));
    assert_eq!(read(&mut host).header.genctr.get(), 3);
}

#[test]
fn a_persistent_host_hears_of_changes() {
    let listeners = vec![listener("192.0.2.1:4420", 1)];
    let mut host = Host::discovery(&target(1, listeners.clone()), 30_000, LOCAL);
    host.set_feature(fid::ASYNC_EVENT_CONFIG, 1 << 31).ok();
    let (first, second) = (host.request_event(), host.request_event());
    let event = |cid| Action::CompleteAer { cid, status: Status::SUCCESS, dw0: 0x0070_f002 };
    host.controller.handle_snapshot(target(2, listeners.clone()));
    assert_eq!(host.actions(), [], "nothing that it sees");
    host.controller.handle_snapshot(target(3, vec![]));
    assert_eq!(host.actions(), [event(first)]);
    host.controller.handle_snapshot(target(4, listeners.clone()));
    assert_eq!(host.actions(), [], "masked");
    // reading the rest of an old page leaves the change to be reported
    host.log(lid::DISCOVERY, 1024, 1024, false).ok();
    assert_eq!(host.actions(), [event(second)]);
    let third = host.request_event();
    host.log(lid::DISCOVERY, 0, 1024, false).ok();
    assert_eq!(host.actions(), []);
    host.controller.handle_snapshot(target(5, vec![]));
    assert_eq!(host.actions(), [event(third)]);
}

#[test]
fn a_host_without_keep_alive_does_not_hear_of_changes() {
    let mut host = Host::discovery(&target(1, vec![listener("192.0.2.1:4420", 1)]), 0, LOCAL);
    host.set_feature(fid::ASYNC_EVENT_CONFIG, 1 << 31).ok();
    host.request_event();
    host.controller.handle_snapshot(target(2, vec![]));
    assert_eq!(host.actions(), []);
}

#[test]
fn a_target_without_subsystems_has_an_empty_log() {
    let mut host = Host::discovery(&Arc::new(TargetSnapshot::default()), 0, LOCAL);
    let log = read(&mut host);
    assert_eq!((log.header.numrec.get(), log.entries.len()), (0, 0));
    assert_eq!(snapshot(1, subsystem()).subsystems.len(), 1);
}
