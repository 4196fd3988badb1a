//! Changes of a live target: which hosts are told or disconnected, and that no other host notices.
#![allow(clippy::unwrap_used)] // a test

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::common::{
    RawHost, Wants, config, entrance, eventually, host_nqn, is_reachable, listen, listen_for,
    namespace, nqn, pattern, ram, start, status, subsystem,
};
use raceline_proto::nvme::discovery::{DiscoveryEntry, SUBTYPE_NVM};
use raceline_proto::nvme::identify::ascii_field;
use raceline_proto::nvme::opcode::admin;
use raceline_proto::nvme::registration::{EntityKind, Registration, RegistrationTask};
use raceline_proto::nvme::{
    CommandId, ControllerId, Direction, HostNqn, NamespaceId, Nqn, QueueId, Sqe, Status,
};
use raceline_target::{
    DiscoveryFilter, HostAccess, NamespaceConfig, Referral, SubsystemConfig, Target, TargetConfig,
    TargetError, Visibility,
};

const BS: u32 = 512;
const CC: u32 = 0x14;
const ENABLED: u64 = 0x0046_0001;
const ANY: ControllerId = ControllerId::DYNAMIC;

fn other_nqn() -> Nqn {
    Nqn::new("nqn.2026-01.io.raceline:other").unwrap()
}

fn other_host() -> Nqn {
    Nqn::new("nqn.2026-01.io.raceline:another-host").unwrap()
}

/// An admin queue of any subsystem for any host, enabled.
fn admin_of(address: SocketAddr, subnqn: &Nqn, host: &Nqn, kato: u32) -> (RawHost, ControllerId) {
    let mut queue = RawHost::open(address, Wants::default());
    let cqe = queue.connect_as(QueueId::ADMIN, 32, ANY, subnqn, host, kato);
    assert!(cqe.status.is_success(), "{}", cqe.status);
    assert!(queue.set_property(CC, ENABLED).status.is_success());
    (queue, ControllerId(u16::try_from(cqe.dw0 & 0xffff).unwrap()))
}

fn refusal(address: SocketAddr, subnqn: &Nqn, host: &Nqn) -> Status {
    let mut queue = RawHost::open(address, Wants::default());
    queue.connect_as(QueueId::ADMIN, 32, ANY, subnqn, host, 0).status
}

fn active_namespaces(admin: &mut RawHost) -> Vec<u32> {
    let sqe = Sqe { opc: admin::IDENTIFY, cdw10: 2.into(), ..Sqe::default() };
    let answer = admin.read_command(sqe, 4096);
    assert!(answer.cqe.status.is_success(), "{}", answer.cqe.status);
    let words = answer.data.chunks_exact(4);
    let nsids = words.map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
    nsids.take_while(|&nsid| nsid != 0).collect()
}

fn discovery_log(admin: &mut RawHost) -> String {
    let sqe = Sqe { opc: admin::GET_LOG_PAGE, cdw10: (0x70 | 2047 << 16).into(), ..Sqe::default() };
    let answer = admin.read_command(sqe, 8192);
    assert!(answer.cqe.status.is_success(), "{}", answer.cqe.status);
    String::from_utf8_lossy(&answer.data).into_owned()
}

/// Asks for notices of that kind (a bit of feature 0Bh), and for one of them.
fn expect_notice(admin: &mut RawHost, bit: u32) -> CommandId {
    let configure = Sqe {
        opc: admin::SET_FEATURES,
        cdw10: 0x0b.into(),
        cdw11: (1 << bit).into(),
        ..Sqe::default()
    };
    assert!(status(&admin.plain_command(configure)).is_success());
    let request = Sqe { opc: admin::ASYNC_EVENT_REQUEST, ..Sqe::default() };
    admin.submit(request, Direction::None, 0)
}

// ------------------------------------------------------------------------------------- listeners

#[test]
fn a_subsystem_is_reached_and_listed_at_its_own_listeners_only() {
    let target = Target::start(config(2)).unwrap();
    for name in [nqn(), other_nqn()] {
        target.add_subsystem(SubsystemConfig::new(name)).unwrap();
    }
    let first = listen_for(&target, &nqn());
    let second = listen_for(&target, &other_nqn());
    let again = target.add_subsystem_listener_with(&nqn(), first, entrance());
    assert!(matches!(again, Err(TargetError::ListenerExists { .. })), "{again:?}");
    let refused = refusal(second, &nqn(), &host_nqn());
    assert!(refused.same_code(Status::CONNECT_INVALID_HOST), "{refused}");
    assert!(!refused.is_dnr(), "the listener may be about to come");

    let (mut discovery, _) = admin_of(second, &Nqn::discovery(), &host_nqn(), 5000);
    let notice = expect_notice(&mut discovery, 31);
    let log = discovery_log(&mut discovery);
    assert!(log.contains(&first.port().to_string()) && log.contains(&second.port().to_string()));

    // Shared from now on: the persistent discovery connection is told.
    target.add_subsystem_listener_with(&nqn(), second, entrance()).unwrap();
    assert_eq!(discovery.wait(notice, &[]).cqe.dw0, 0x0070_f002);
    let (mut shared, _) = admin_of(second, &nqn(), &host_nqn(), 0);
    let (mut stays, _) = admin_of(first, &nqn(), &host_nqn(), 0);
    let (mut other, _) = admin_of(second, &other_nqn(), &host_nqn(), 0);

    // Gone for one subsystem: its connections that came by it go, the others stay.
    target.remove_subsystem_listener(&nqn(), second).unwrap();
    shared.until_closed();
    assert!(active_namespaces(&mut stays).is_empty());
    assert!(active_namespaces(&mut other).is_empty());
    assert!(discovery_log(&mut discovery).contains(other_nqn().as_str()));
    let missing = target.remove_subsystem_listener(&nqn(), second);
    assert!(matches!(missing, Err(TargetError::NoListener(_))), "{missing:?}");

    // Gone for the last subsystem: the socket is closed.
    target.remove_subsystem_listener(&other_nqn(), second).unwrap();
    other.until_closed();
    discovery.until_closed();
    assert!(!is_reachable(second));
    target.remove_subsystem(&nqn()).unwrap();
    stays.until_closed();
    assert!(!is_reachable(first));
    assert!(target.listeners().is_empty());
    target.shutdown().unwrap();
}

#[test]
fn discovery_has_entrances_referrals_and_filters() {
    let (target, address) = start(config(1), vec![]);
    let entrance = listen_for(&target, &Nqn::discovery());
    assert_eq!(target.discovery_listeners(), [entrance]);
    let referral = Referral {
        trtype: 3,
        adrfam: 1,
        traddr: "198.51.100.7".into(),
        trsvcid: "8009".into(),
        subnqn: Nqn::discovery(),
        secure_channel: false,
        hosts: HostAccess::Any,
    };
    let (mut discovery, _) = admin_of(entrance, &Nqn::discovery(), &host_nqn(), 5000);
    let notice = expect_notice(&mut discovery, 31);
    target.add_referral(referral.clone()).unwrap();
    assert_eq!(discovery.wait(notice, &[]).cqe.dw0, 0x0070_f002);
    let log = discovery_log(&mut discovery);
    for part in ["198.51.100.7", nqn().as_str(), "discovery", &address.port().to_string()] {
        assert!(log.contains(part), "{part}");
    }
    let twice = target.add_referral(referral.clone());
    assert!(matches!(twice, Err(TargetError::ReferralExists { .. })), "{twice:?}");
    assert_eq!(target.referrals(), std::slice::from_ref(&referral));

    let by_service = DiscoveryFilter { service: true, ..DiscoveryFilter::default() };
    target.set_discovery_filter(by_service).unwrap();
    let log = discovery_log(&mut discovery);
    assert!(!log.contains(nqn().as_str()), "it is at the other port");
    target.set_discovery_filter(DiscoveryFilter::default()).unwrap();

    target.remove_referral(&referral).unwrap();
    assert!(!discovery_log(&mut discovery).contains("198.51.100.7"));
    let missing = target.remove_referral(&referral);
    assert!(matches!(missing, Err(TargetError::NoReferral { .. })), "{missing:?}");
    target.shutdown().unwrap();
}

/// Sends Discovery Information Management; gives its status.
fn register(admin: &mut RawHost, registration: &Registration) -> Status {
    let (cdw10, data) = registration.encode();
    let opc = admin::DISCOVERY_INFORMATION_MANAGEMENT;
    let sqe = Sqe { opc, cdw10: cdw10.into(), ..Sqe::default() };
    status(&admin.write_command(sqe, &data, false))
}

#[test]
fn a_centralized_discovery_service_lists_what_registers_and_tells_others() {
    let (target, _) = start(config(2), vec![]);
    let entrance = listen_for(&target, &Nqn::discovery());
    let (mut shelf, _) = admin_of(entrance, &Nqn::discovery(), &host_nqn(), 5000);
    let (mut reader, _) = admin_of(entrance, &Nqn::discovery(), &other_host(), 5000);
    let entry = DiscoveryEntry {
        trtype: 3,
        adrfam: 1,
        subtype: SUBTYPE_NVM,
        trsvcid: ascii_field("4421"),
        traddr: ascii_field("198.51.100.8"),
        subnqn: other_nqn().to_field(),
        ..DiscoveryEntry::default()
    };
    let mut wish = Registration {
        task: RegistrationTask::Register,
        kind: EntityKind::Direct,
        entity: host_nqn(),
        name: "shelf".into(),
        version: "1".into(),
        entries: vec![entry],
    };
    // An ordinary discovery controller says nothing of its kind, and has no such command.
    let dctype = |admin: &mut RawHost| admin.identify_controller()[1806];
    assert_eq!(dctype(&mut shelf), 0);
    assert!(register(&mut shelf, &wish).same_code(Status::INVALID_OPCODE));
    assert!(target.registered().is_none());

    target.set_central(true).unwrap();
    assert_eq!(dctype(&mut shelf), 2);
    let notice = expect_notice(&mut reader, 31);
    assert!(register(&mut shelf, &wish).is_success());
    assert_eq!(reader.wait(notice, &[]).cqe.dw0, 0x0070_f002);
    let log = discovery_log(&mut reader);
    assert!(log.contains("198.51.100.8") && log.contains(other_nqn().as_str()), "{log}");
    let registered = target.registered().unwrap();
    assert_eq!((registered.len(), registered[0].name.as_str()), (1, "shelf"));

    // Another host neither takes it back nor changes it, and bad data change nothing.
    wish.task = RegistrationTask::Deregister;
    let refused = register(&mut reader, &wish);
    assert!(refused.same_code(Status::INVALID_DISCOVERY_INFORMATION), "{refused}");
    let sqe = Sqe { opc: admin::DISCOVERY_INFORMATION_MANAGEMENT, ..Sqe::default() };
    let refused = status(&shelf.write_command(sqe, &[0xff; 2048], false));
    assert!(refused.same_code(Status::INVALID_DISCOVERY_INFORMATION), "{refused}");
    assert!(discovery_log(&mut reader).contains("198.51.100.8"));

    // It outlives the connection, and its owner takes it back over another one.
    drop(shelf);
    assert!(discovery_log(&mut reader).contains("198.51.100.8"));
    let (mut shelf, _) = admin_of(entrance, &Nqn::discovery(), &host_nqn(), 5000);
    assert!(register(&mut shelf, &wish).is_success());
    assert!(!discovery_log(&mut reader).contains("198.51.100.8"));
    wish.task = RegistrationTask::Register;
    assert!(register(&mut shelf, &wish).is_success());
    assert!(target.deregister(&host_nqn()).unwrap());
    assert!(!target.deregister(&host_nqn()).unwrap());
    assert!(!discovery_log(&mut reader).contains("198.51.100.8"));
    target.set_central(false).unwrap();
    assert!(target.registered().is_none());
    target.shutdown().unwrap();
}

// ----------------------------------------------------------------------------------------- hosts

#[test]
fn hosts_come_and_go_and_others_stay() {
    let (target, address) = start(config(2), vec![ram("1M")]);
    let (mut admin, cntlid) = RawHost::admin(address, Wants::default());
    let mut queue = RawHost::io(address, cntlid, 1, Wants::default());
    let (mut other, _) = admin_of(address, &nqn(), &other_host(), 0);

    target.add_host(&nqn(), &host_nqn()).unwrap();
    let twice = target.add_host(&nqn(), &host_nqn());
    assert!(matches!(twice, Err(TargetError::HostExists { .. })), "{twice:?}");
    target.allow_any_host(&nqn(), false).unwrap();
    other.until_closed();
    let refused = refusal(address, &nqn(), &other_host());
    assert!(refused.same_code(Status::CONNECT_INVALID_HOST) && refused.is_dnr(), "{refused}");
    assert!(status(&queue.read(1, 0, 1, BS)).is_success());

    target.add_host(&nqn(), &other_host()).unwrap();
    let (mut other, _) = admin_of(address, &nqn(), &other_host(), 0);
    target.remove_host(&nqn(), &other_host()).unwrap();
    other.until_closed();
    assert!(status(&queue.read(1, 0, 1, BS)).is_success());
    let missing = target.remove_host(&nqn(), &other_host());
    assert!(matches!(missing, Err(TargetError::NoHost { .. })), "{missing:?}");

    // Removed where any host may connect: it goes, and may come back.
    target.allow_any_host(&nqn(), true).unwrap();
    target.remove_host(&nqn(), &host_nqn()).unwrap();
    admin.until_closed();
    queue.until_closed();
    let (_admin, _) = admin_of(address, &nqn(), &host_nqn(), 0);
    target.shutdown().unwrap();
}

// ------------------------------------------------------------------------------------ namespaces

#[test]
fn a_namespace_is_seen_by_its_hosts_only_and_they_are_told() {
    let (target, address) = start(config(2), vec![ram("1M")]);
    let hidden = NamespaceConfig {
        nsid: Some(NamespaceId(5)),
        visibility: Visibility::Hosts([].into()),
        ..namespace(ram("2M"))
    };
    target.add_namespace(&nqn(), hidden).unwrap();
    let (mut admin, cntlid) = RawHost::admin(address, Wants::default());
    let mut queue = RawHost::io(address, cntlid, 1, Wants::default());
    let (mut other, _) = admin_of(address, &nqn(), &other_host(), 0);
    assert_eq!(active_namespaces(&mut admin), [1]);
    assert!(status(&queue.read(5, 0, 1, BS)).same_code(Status::INVALID_NAMESPACE));

    let notice = expect_notice(&mut admin, 8);
    let quiet = expect_notice(&mut other, 8);
    target.show_namespace(&nqn(), NamespaceId(5), &host_nqn()).unwrap();
    assert_eq!(admin.wait(notice, &[]).cqe.dw0, 0x0004_0002);
    assert_eq!(active_namespaces(&mut admin), [1, 5]);
    assert_eq!(active_namespaces(&mut other), [1]);
    let data = pattern(5, 4096);
    assert!(status(&queue.write(5, 4000, &data, BS)).is_success());
    assert_eq!(queue.read(5, 4000, 8, BS).data, data);
    assert!(status(&queue.read(1, 4000, 8, BS)).same_code(Status::LBA_OUT_OF_RANGE));

    target.hide_namespace(&nqn(), NamespaceId(5), &host_nqn()).unwrap();
    assert!(status(&queue.read(5, 0, 1, BS)).same_code(Status::INVALID_NAMESPACE));
    assert!(status(&queue.read(1, 0, 1, BS)).is_success());
    let always = target.hide_namespace(&nqn(), NamespaceId(1), &host_nqn());
    assert!(matches!(always, Err(TargetError::AlwaysVisible { .. })), "{always:?}");

    // The other host has heard nothing: its request is still held, and can be aborted.
    let abort =
        Sqe { opc: admin::ABORT, cdw10: (u32::from(quiet.0) << 16).into(), ..Sqe::default() };
    assert_eq!(other.plain_command(abort).cqe.dw0, 0);
    assert!(status(&other.wait(quiet, &[])).same_code(Status::ABORT_REQUESTED));
    target.shutdown().unwrap();
}

#[test]
fn a_device_is_replaced_under_a_namespace_and_its_new_size_is_told() {
    let (target, address) = start(config(2), vec![ram("1M")]);
    let uuid = target.subsystem(&nqn()).unwrap().namespaces[0].uuid;
    let (mut admin, cntlid) = RawHost::admin(address, Wants::default());
    let mut queue = RawHost::io(address, cntlid, 1, Wants::default());
    let notice = expect_notice(&mut admin, 8);
    assert!(status(&queue.read(1, 4095, 1, BS)).same_code(Status::LBA_OUT_OF_RANGE));
    target.replace_device(&nqn(), NamespaceId(1), ram("2M")).unwrap();
    assert_eq!(admin.wait(notice, &[]).cqe.dw0, 0x0004_0002);
    assert!(status(&queue.read(1, 4095, 1, BS)).is_success());
    let info = target.subsystem(&nqn()).unwrap();
    assert_eq!((info.namespaces[0].block_count, info.namespaces[0].uuid), (4096, uuid));
    let missing = target.replace_device(&nqn(), NamespaceId(9), ram("2M"));
    assert!(matches!(missing, Err(TargetError::NoNamespace { .. })), "{missing:?}");
    target.shutdown().unwrap();
}

#[test]
fn limits_and_numbers_are_those_of_the_subsystem() {
    // Numbers of lost controllers are free again after this time.
    let quiesce_time = Duration::from_millis(1);
    let target = Target::start(TargetConfig { quiesce_time, ..config(1) }).unwrap();
    let config = SubsystemConfig { max_namespaces: 2, controller_ids: 40..=41, ..subsystem() };
    target.add_subsystem(config.clone()).unwrap();
    let address = listen(&target);
    for _ in 0..2 {
        target.add_namespace(&nqn(), namespace(ram("1M"))).unwrap();
    }
    let full = target.add_namespace(&nqn(), namespace(ram("1M")));
    assert!(matches!(full, Err(TargetError::TooManyNamespaces { max: 2, .. })), "{full:?}");
    let beyond = NamespaceConfig { nsid: Some(NamespaceId(3)), ..namespace(ram("1M")) };
    let beyond = target.add_namespace(&nqn(), beyond).unwrap_err().to_string();
    assert!(beyond.contains("outside 1..=2"), "{beyond}");
    assert_eq!(target.subsystem(&nqn()).unwrap().namespaces.len(), 2);

    let (_a, first) = RawHost::admin(address, Wants::default());
    let (b, second) = RawHost::admin(address, Wants::default());
    assert_eq!([first.0, second.0], [40, 41]);
    let refused = refusal(address, &nqn(), &host_nqn());
    assert!(refused.same_code(Status::CONNECT_CONTROLLER_BUSY), "{refused}");
    drop(b);
    eventually("its number is free", || refusal(address, &nqn(), &host_nqn()).is_success());

    for ids in [0..=1, 65519..=65520, 65520..=65530] {
        let wrong = SubsystemConfig { nqn: other_nqn(), controller_ids: ids, ..config.clone() };
        assert!(target.add_subsystem(wrong).is_err());
    }
    let wrong = SubsystemConfig { nqn: other_nqn(), max_namespaces: 1025, ..config };
    assert!(target.add_subsystem(wrong).is_err());
    assert_eq!(target.subsystems().len(), 1);

    target.set_retry_delays([1, 2, 3]).unwrap();
    eventually("the number is free again", || target.controllers(&nqn()).len() == 1);
    std::thread::sleep(2 * quiesce_time);
    let mut admin = RawHost::admin(address, Wants::default()).0;
    assert_eq!(admin.identify_controller()[128..134], [1, 0, 2, 0, 3, 0]);
    target.shutdown().unwrap();
}

// ------------------------------------------------------------------------------------ statistics

#[test]
fn what_is_connected_and_what_it_did_can_be_listed() {
    let (target, address) = start(config(2), vec![ram("1M")]);
    let (_admin, cntlid) = RawHost::admin(address, Wants::default());
    let mut queue = RawHost::io(address, cntlid, 1, Wants::default());
    assert!(status(&queue.write(1, 0, &pattern(1, 4096), BS)).is_success());
    assert!(status(&queue.read(1, 0, 8, BS)).is_success());
    let host = HostNqn::Named(host_nqn());

    let [controller] = &target.controllers(&nqn())[..] else { panic!("one controller") };
    assert_eq!((controller.cntlid, controller.io_queues), (cntlid, 1));
    assert_eq!((&controller.host, controller.hostid.0), (&host, [7; 16]));
    let queues = target.queues(&nqn());
    let [first, second] = &queues[..] else { panic!("two queues: {queues:?}") };
    assert_eq!((first.qid, second.qid), (QueueId(0), QueueId(1)));
    assert_eq!((second.entries, second.local), (128, address));
    assert!(queue.own_address().is_none_or(|own| own == second.peer));
    assert_eq!((second.totals.reads, second.totals.writes), (1, 1));

    let groups = target.poll_groups();
    assert_eq!(groups.iter().map(|g| (g.admin_queues, g.io_queues)).collect::<Vec<_>>().len(), 2);
    assert_eq!(groups.iter().map(|g| g.admin_queues + g.io_queues).sum::<usize>(), 2);
    assert_eq!(groups[second.core].totals.reads, 1);

    drop(queue);
    eventually("the queue is gone", || target.queues(&nqn()).len() == 1);
    let [stats] = &target.hosts()[..] else { panic!("one host") };
    assert_eq!((&stats.host, stats.controllers, stats.io_queues), (&host, 1, 0));
    assert_eq!((stats.totals.reads, stats.totals.written_bytes), (1, 4096));
    let ever: u64 = target.poll_groups().iter().map(|group| group.io_queues_ever).sum();
    assert_eq!(ever, 1);
    assert_eq!(target.poll_groups().iter().map(|group| group.totals.reads).sum::<u64>(), 1);
    target.shutdown().unwrap();
}

// --------------------------------------------------------------------------------- under full I/O

/// Writes and reads back at one place of namespace 1 until told to stop; every command must work.
fn verify_until(stop: &AtomicBool, rounds: &AtomicU64, address: SocketAddr, lane: u32) {
    let (_admin, cntlid) = RawHost::admin(address, Wants::default());
    let mut queue = RawHost::io(address, cntlid, 1, Wants::default());
    let mut round = 0;
    while !stop.load(Ordering::Relaxed) {
        let data = pattern(u64::from(lane) << 32 | round, 16 << 10);
        let slba = u64::from(lane) * 32;
        let written = queue.write(1, slba, &data, BS);
        assert!(written.cqe.status.is_success(), "{}", written.cqe.status);
        let read = queue.read(1, slba, 32, BS);
        assert!(read.cqe.status.is_success(), "{}", read.cqe.status);
        assert!(read.data == data, "lane {lane}, round {round}");
        round += 1;
        rounds.fetch_add(1, Ordering::Relaxed);
    }
}

/// Hosts verify while `change` is called `changes` times, with a few of their rounds between calls.
fn under_io(target: &Target, address: SocketAddr, changes: u64, mut change: impl FnMut(u64)) {
    let stop = Arc::new(AtomicBool::new(false));
    let rounds = Arc::new(AtomicU64::new(0));
    let hosts: Vec<_> = (0..3)
        .map(|lane| {
            let (stop, rounds) = (Arc::clone(&stop), Arc::clone(&rounds));
            std::thread::spawn(move || verify_until(&stop, &rounds, address, lane))
        })
        .collect();
    for number in 0..changes {
        let before = rounds.load(Ordering::Relaxed);
        change(number);
        if number % 8 == 0 && !hosts.iter().any(std::thread::JoinHandle::is_finished) {
            eventually("I/O goes on", || rounds.load(Ordering::Relaxed) > before);
        }
    }
    stop.store(true, Ordering::Relaxed);
    for host in hosts {
        host.join().expect("its I/O was not disturbed");
    }
    eventually("all have gone", || target.stats().connections.iter().sum::<usize>() == 0);
}

#[test]
fn namespaces_come_and_go_under_io() {
    let (target, address) = start(config(2), vec![ram("1M")]);
    under_io(&target, address, 200, |number| {
        let visibility = if number % 3 == 0 {
            Visibility::Hosts([other_host()].into())
        } else {
            Visibility::All
        };
        let config = NamespaceConfig { visibility, ..namespace(ram("64K")) };
        let nsid = target.add_namespace(&nqn(), config).unwrap();
        if number % 3 == 0 {
            target.show_namespace(&nqn(), nsid, &host_nqn()).unwrap();
        }
        target.remove_namespace(&nqn(), nsid).unwrap();
    });
    assert_eq!(target.subsystem(&nqn()).unwrap().namespaces.len(), 1);
    target.shutdown().unwrap();
}

#[test]
fn listeners_hosts_and_subsystems_come_and_go_under_io() {
    let (target, address) = start(config(2), vec![ram("1M")]);
    under_io(&target, address, 200, |number| match number % 3 {
        0 => {
            let extra = listen_for(&target, &nqn());
            let mut guest = admin_of(extra, &nqn(), &other_host(), 0).0;
            target.remove_subsystem_listener(&nqn(), extra).unwrap();
            guest.until_closed();
        }
        1 => {
            target.add_host(&nqn(), &other_host()).unwrap();
            let mut guest = admin_of(address, &nqn(), &other_host(), 0).0;
            target.remove_host(&nqn(), &other_host()).unwrap();
            guest.until_closed();
        }
        _ => {
            target.add_subsystem(SubsystemConfig::new(other_nqn())).unwrap();
            target.add_namespace(&other_nqn(), namespace(ram("64K"))).unwrap();
            let mut guest = admin_of(address, &other_nqn(), &other_host(), 0).0;
            target.remove_subsystem(&other_nqn()).unwrap();
            guest.until_closed();
        }
    });
    assert_eq!((target.subsystems().len(), target.listeners().len()), (1, 1));
    target.shutdown().unwrap();
}
