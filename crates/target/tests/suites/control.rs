//! Associations and live changes: reset, shutdown, keep alive, hot added and removed namespaces,
//! discovery, draining.

use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{
    PATIENCE, RawHost, Wants, any_address, block_sqe, config, entrance, eventually, host_nqn,
    namespace, nqn, pattern,
};
use crate::common::{ram, start, status};
use raceline_bdev::{
    DelayBdev, Delays, InjectBdev, InjectControl, Injected, Injection, OpKind, SharedBdev,
};
use raceline_proto::nvme::opcode::{admin, io};
use raceline_proto::nvme::{ControllerId, Direction, NamespaceId, Nqn, QueueId, Sqe, Status};

const BS: u32 = 512;
const CC: u32 = 0x14;
const CSTS: u32 = 0x1c;
const ENABLED: u64 = 0x0046_0001;

fn slow(millis: u64) -> SharedBdev {
    Arc::new(DelayBdev::new(ram("1M"), Delays::all(Duration::from_millis(millis))))
}

/// A device that holds requests when it is told to.
fn holding() -> (SharedBdev, InjectControl) {
    let (device, orders) = InjectBdev::new(ram("1M"));
    (Arc::new(device), orders)
}

/// Orders that the device holds the next request of this kind.
fn hold(orders: &InjectControl, kind: OpKind) {
    orders.inject(kind, Injection { what: Injected::Held, count: 1, depth: 0 });
}

#[test]
fn reset_during_io_drops_the_io_queues_and_the_controller_can_be_used_again() {
    let (target, address) = start(config(2), vec![slow(100)]);
    let (mut admin, cntlid) = RawHost::admin(address, Wants::default());
    let mut queues: Vec<_> =
        (1..=4).map(|qid| RawHost::io(address, cntlid, qid, Wants::default())).collect();
    for queue in &mut queues {
        for _ in 0..8 {
            queue.submit(block_sqe(io::READ, 1, 0, 8), Direction::ControllerToHost, 8 * BS);
        }
    }
    // Let the commands reach the device.
    std::thread::sleep(Duration::from_millis(20));
    assert!(admin.set_property(CC, ENABLED & !1).status.is_success());
    eventually("CSTS.RDY is 0", || admin.get_property(CSTS) & 1 == 0);
    for queue in &mut queues {
        queue.until_closed();
    }
    let mut early = RawHost::open(address, Wants::default());
    let refused = early.connect(QueueId(1), 32, cntlid).status;
    assert!(refused.same_code(Status::CONNECT_INVALID_PARAMETERS), "{refused}");
    assert!(!refused.is_dnr(), "a host may try again after enabling: {refused}");

    assert!(admin.set_property(CC, ENABLED).status.is_success());
    assert_eq!(admin.get_property(CSTS) & 1, 1);
    let mut queue = RawHost::io(address, cntlid, 1, Wants::default());
    let data = pattern(1, 4096);
    assert!(status(&queue.write(1, 0, &data, BS)).is_success());

    // Shutdown: I/O queues go, SHST says complete.
    assert!(admin.set_property(CC, ENABLED | 1 << 14).status.is_success());
    eventually("CSTS.SHST is complete", || admin.get_property(CSTS) >> 2 & 3 == 2);
    queue.until_closed();
    drop(admin);
    eventually("the association is gone", || target.stats().controllers == 0);
    target.shutdown().unwrap();
}

#[test]
fn io_queues_go_with_their_admin_queue() {
    let (target, address) = start(config(2), vec![slow(50)]);
    let (admin, cntlid) = RawHost::admin(address, Wants::default());
    let mut queues: Vec<_> =
        (1..=3).map(|qid| RawHost::io(address, cntlid, qid, Wants::default())).collect();
    queues[0].submit(block_sqe(io::READ, 1, 0, 8), Direction::ControllerToHost, 8 * BS);
    drop(admin);
    for queue in &mut queues {
        queue.until_closed();
    }
    eventually("the association is gone", || {
        let stats = target.stats();
        stats.controllers == 0 && stats.connections.iter().all(|n| *n == 0)
    });
    target.shutdown().unwrap();
}

#[test]
fn a_silent_host_is_given_up_after_its_keep_alive_timeout() {
    let (target, address) = start(config(1), vec![ram("1M")]);
    let mut host = RawHost::open(address, Wants::default());
    let any = ControllerId::DYNAMIC;
    let cqe = host.connect_as(QueueId::ADMIN, 32, any, &nqn(), &host_nqn(), 3000);
    assert!(cqe.status.is_success());
    assert!(host.set_property(CC, ENABLED).status.is_success());
    let keep_alive = Sqe { opc: admin::KEEP_ALIVE, ..Sqe::default() };
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(7) {
        assert!(status(&host.plain_command(keep_alive)).is_success());
        std::thread::sleep(Duration::from_millis(200));
    }
    let start = Instant::now();
    host.until_closed();
    let waited = start.elapsed();
    assert!(waited > Duration::from_millis(2400) && waited < PATIENCE, "{waited:?}");
    eventually("the association is gone", || target.stats().controllers == 0);
    let timeouts = || {
        let hosts = target.hosts();
        assert_eq!(hosts.len(), 1, "{hosts:?}");
        (hosts[0].keep_alive_timeouts, hosts[0].is_timed_out)
    };
    assert_eq!(timeouts(), (1, true));
    // One that comes back, and closes by itself, has not fallen silent.
    let mut host = RawHost::open(address, Wants::default());
    let cqe = host.connect_as(QueueId::ADMIN, 32, any, &nqn(), &host_nqn(), 3000);
    assert!(cqe.status.is_success());
    drop(host);
    eventually("the association is gone", || target.stats().controllers == 0);
    assert_eq!(timeouts(), (1, false));
    target.shutdown().unwrap();
}

#[test]
fn traffic_on_io_queues_keeps_an_association_alive() {
    let (target, address) = start(config(2), vec![ram("1M")]);
    let mut admin = RawHost::open(address, Wants::default());
    let any = ControllerId::DYNAMIC;
    let cqe = admin.connect_as(QueueId::ADMIN, 32, any, &nqn(), &host_nqn(), 3000);
    let cntlid = ControllerId(u16::try_from(cqe.dw0).unwrap());
    assert!(admin.set_property(CC, ENABLED).status.is_success());
    let mut queue = RawHost::io(address, cntlid, 1, Wants::default());
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(9) {
        assert!(status(&queue.read(1, 0, 1, BS)).is_success());
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(admin.get_property(CSTS) & 1, 1);
    target.shutdown().unwrap();
}

fn get_log(host: &mut RawHost, page: u8, len: u32) -> Vec<u8> {
    let numd = len / 4 - 1;
    let cdw10 = u32::from(page) | (numd & 0xffff) << 16;
    let sqe = Sqe {
        opc: admin::GET_LOG_PAGE,
        nsid: u32::MAX.into(),
        cdw10: cdw10.into(),
        ..Sqe::default()
    };
    let answer = host.read_command(sqe, len);
    assert!(status(&answer).is_success(), "log {page:02x}h: {}", status(&answer));
    answer.data
}

#[test]
fn a_namespace_comes_and_goes_while_hosts_are_connected() {
    let (target, address) = start(config(2), vec![ram("1M")]);
    let (mut admin, cntlid) = RawHost::admin(address, Wants::default());
    let mut queue = RawHost::io(address, cntlid, 1, Wants::default());
    let events =
        Sqe { opc: admin::SET_FEATURES, cdw10: 0x0b.into(), cdw11: 0x100.into(), ..Sqe::default() };
    assert!(status(&admin.plain_command(events)).is_success());
    let aer = Sqe { opc: admin::ASYNC_EVENT_REQUEST, ..Sqe::default() };
    let event = admin.submit(aer, Direction::None, 0);

    assert!(status(&queue.read(2, 0, 1, BS)).same_code(Status::INVALID_NAMESPACE));
    let (device, orders) = holding();
    let added = target.add_namespace(&nqn(), namespace(device)).unwrap();
    assert_eq!(added, NamespaceId(2));
    // Notice (2), Namespace Attribute Changed (00h), log page 04h.
    assert_eq!(admin.wait(event, &[]).cqe.dw0, 0x0004_0002);
    assert_eq!(get_log(&mut admin, 4, 4096)[..8], [2, 0, 0, 0, 0, 0, 0, 0]);
    assert!(status(&queue.read(2, 0, 1, BS)).is_success());

    // Removed with commands in flight: those finish, later ones are refused.
    let event = admin.submit(aer, Direction::None, 0);
    hold(&orders, OpKind::Read);
    let read = queue.submit(block_sqe(io::READ, 2, 0, 8), Direction::ControllerToHost, 8 * BS);
    eventually("the read is at the device", || orders.left(OpKind::Read) == 0);
    std::thread::scope(|scope| {
        let removing = scope.spawn(|| target.remove_namespace(&nqn(), added));
        eventually("the namespace goes", || {
            status(&queue.read(2, 0, 1, BS)).same_code(Status::INVALID_NAMESPACE)
        });
        orders.resume();
        assert!(queue.wait(read, &[]).cqe.status.is_success());
        removing.join().unwrap().unwrap();
    });
    assert!(status(&queue.read(2, 0, 1, BS)).same_code(Status::INVALID_NAMESPACE));
    assert!(status(&queue.read(1, 0, 1, BS)).is_success());
    assert_eq!(admin.wait(event, &[]).cqe.dw0, 0x0004_0002);

    // Many times, under I/O.
    for round in 0..50u64 {
        let nsid = target.add_namespace(&nqn(), namespace(ram("1M"))).unwrap();
        let data = pattern(round, 4096);
        assert!(status(&queue.write(nsid.0, 0, &data, BS)).is_success());
        assert_eq!(queue.read(nsid.0, 0, 8, BS).data, data);
        target.remove_namespace(&nqn(), nsid).unwrap();
    }

    target.remove_subsystem(&nqn()).unwrap();
    admin.until_closed();
    queue.until_closed();
    target.shutdown().unwrap();
}

#[test]
fn discovery_lists_what_the_host_may_use_where_it_asked() {
    let (target, address) = start(config(1), vec![ram("1M")]);
    let hidden = Nqn::new("nqn.2026-01.io.raceline:hidden").unwrap();
    target
        .add_subsystem(raceline_target::SubsystemConfig {
            nqn: hidden.clone(),
            hosts: raceline_target::HostAccess::List(vec![hidden]),
            ..crate::common::subsystem()
        })
        .unwrap();
    let mut host = RawHost::open(address, Wants::default());
    let discovery = Nqn::discovery();
    let any = ControllerId::DYNAMIC;
    let cqe = host.connect_as(QueueId::ADMIN, 32, any, &discovery, &host_nqn(), 0);
    assert!(cqe.status.is_success(), "{}", cqe.status);
    assert!(host.set_property(CC, ENABLED).status.is_success());
    let log = get_log(&mut host, 0x70, 8192);
    let text = String::from_utf8_lossy(&log);
    assert!(text.contains(nqn().as_str()) && !text.contains(":hidden"));
    assert!(text.contains("127.0.0.1") && text.contains(&address.port().to_string()));

    let io = host.connect(QueueId(1), 32, ControllerId(1));
    assert!(!io.status.is_success());
    target.shutdown().unwrap();
}

#[test]
fn shutdown_answers_what_is_in_flight() {
    let (device, orders) = holding();
    let (target, address) = start(config(2), vec![device]);
    let (_admin, cntlid) = RawHost::admin(address, Wants::default());
    let mut queue = RawHost::io(address, cntlid, 1, Wants::default());
    let data = pattern(9, 4096);
    hold(&orders, OpKind::Write);
    let write = queue.submit_in_capsule(block_sqe(io::WRITE, 1, 0, 8), &data);
    eventually("the write is at the device", || orders.left(OpKind::Write) == 0);
    let stopper = std::thread::spawn(move || target.shutdown());
    eventually("nobody listens", || !crate::common::is_reachable(address));
    orders.resume();
    assert!(queue.wait(write, &[]).cqe.status.is_success());
    queue.until_closed();
    stopper.join().unwrap().unwrap();
}

#[test]
fn many_subsystems_listeners_and_address_families() {
    let (target, v4) = start(config(2), vec![ram("1M")]);
    let second = crate::common::listen(&target);
    let v6 = SocketAddr::new(Ipv6Addr::LOCALHOST.into(), any_address().port());
    let listeners = match target.add_listener_with(v6, entrance()) {
        Ok(v6) => vec![v4, second, v6],
        Err(error) => {
            eprintln!("SKIPPED: no IPv6 here: {error}");
            vec![v4, second]
        }
    };
    assert!(target.add_listener_with(v4, entrance()).is_err(), "the port is in use");
    for address in listeners {
        let (_admin, cntlid) = RawHost::admin(address, Wants::default());
        let mut queue = RawHost::io(address, cntlid, 1, Wants::default());
        assert!(status(&queue.read(1, 0, 1, BS)).is_success());
    }
    target.remove_listener(second).unwrap();
    eventually("nobody listens", || !crate::common::is_reachable(second));
    assert!(target.remove_listener(second).is_err());
    target.shutdown().unwrap();
}

#[test]
fn connections_spread_over_the_cores() {
    let (target, address) = start(config(2), vec![ram("1M")]);
    let (_admin, cntlid) = RawHost::admin(address, Wants::default());
    let _queues: Vec<_> =
        (1..=7).map(|qid| RawHost::io(address, cntlid, qid, Wants::default())).collect();
    assert_eq!(target.stats().connections, [4, 4]);
    target.shutdown().unwrap();
}

#[test]
fn keep_alive_is_answered_whatever_the_flow_control() {
    let (target, address) = start(config(2), vec![ram("1M")]);
    let mut host = RawHost::open(address, Wants::default());
    // `connect_as` asks for queues without flow control.
    let cqe = host.connect_as(QueueId::ADMIN, 32, ControllerId::DYNAMIC, &nqn(), &host_nqn(), 4000);
    assert!(cqe.status.is_success());
    assert!(host.set_property(0x14, 0x0046_0001).status.is_success());
    for _ in 0..100 {
        let sqe = Sqe { opc: admin::KEEP_ALIVE, ..Sqe::default() };
        assert!(status(&host.plain_command(sqe)).is_success());
    }
    target.shutdown().unwrap();
}
