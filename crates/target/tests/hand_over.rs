//! Connections that go from one target to another one, as between two processes: everything of them is there afterwards.
//!
//! One test of that, since what a process has been handed is known to all of it.
#![allow(clippy::unwrap_used)] // a test

mod common;
#[path = "common/reserving.rs"]
mod reserving;

use std::net::SocketAddr;
use std::time::Duration;

use common::{
    NSID1, RawHost, Wants, block_sqe, config, eventually, namespace, nqn, pattern, ram, status,
    subsystem,
};
use raceline_bdev::SharedBdev;
use raceline_proto::nvme::opcode::{admin, io};
use raceline_proto::nvme::reservation::ReservationType;
use raceline_proto::nvme::{CommandId, ControllerId, Direction, QueueId, Sqe};
use raceline_proto::tcp::{ControllerQueue, ControllerQueueConfig};
use raceline_reactor::inheritance;
use raceline_target::{FORM, HandOver, HandedTarget, Target};
use reserving::{Host, key, ok};

const REST: Duration = Duration::from_secs(30);
const BS: u32 = 512;
/// Feature 0Bh: tell of changed namespaces.
const TELL_OF_NAMESPACES: u32 = 0x100;

/// What a host has left in a target.
struct Traces {
    admin: RawHost,
    queue: RawHost,
    event: CommandId,
    cntlid: ControllerId,
    data: Vec<u8>,
}

impl Traces {
    fn leave(address: SocketAddr, wants: Wants, lba: u64) -> Self {
        let (mut admin, cntlid) = RawHost::admin(address, wants);
        let mut queue = RawHost::io(address, cntlid, 1, wants);
        let config = Sqe {
            opc: admin::SET_FEATURES,
            cdw10: 0x0b.into(),
            cdw11: TELL_OF_NAMESPACES.into(),
            ..Sqe::default()
        };
        ok(status(&admin.plain_command(config)));
        let request = Sqe { opc: admin::ASYNC_EVENT_REQUEST, ..Sqe::default() };
        let event = admin.submit(request, Direction::None, 0);
        // One error for the log.
        assert!(!status(&queue.read(1, 1 << 40, 1, BS)).is_success());
        eventually("the error is logged", || errors(&mut admin) == 1);
        let data = pattern(lba, 4096);
        ok(status(&queue.write(1, lba, &data, BS)));
        Self { admin, queue, event, cntlid, data }
    }

    fn check(&mut self, lba: u64) {
        let read = self.queue.read(1, lba, 8, BS);
        ok(status(&read));
        assert_eq!(read.data, self.data);
        assert_eq!(self.admin.get_property(0x1c) & 1, 1, "it is ready");
        let get = Sqe { opc: admin::GET_FEATURES, cdw10: 0x0b.into(), ..Sqe::default() };
        assert_eq!(self.admin.plain_command(get).cqe.dw0, TELL_OF_NAMESPACES);
        assert_eq!(errors(&mut self.admin), 1);
        let large = pattern(lba + 1, 65_536);
        ok(status(&self.queue.write_command(block_sqe(io::WRITE, 1, 512, 128), &large, false)));
        assert_eq!(self.queue.read(1, 512, 128, BS).data, large);
    }
}

/// The count of errors in the log of a controller.
fn errors(admin: &mut RawHost) -> u64 {
    let sqe = Sqe { opc: admin::GET_LOG_PAGE, cdw10: (15 << 16 | 1).into(), ..Sqe::default() };
    let data = admin.read_command(sqe, 64).data;
    u64::from_le_bytes(data[..8].try_into().unwrap())
}

/// Another target over the same devices, which gets what the first has.
fn successor(first: &Target, handed: HandOver, devices: &[SharedBdev], at: SocketAddr) -> Target {
    let text = serde_json::to_string(&handed.state).unwrap();
    let state: HandedTarget = serde_json::from_str(&text).unwrap();
    assert_eq!(state, handed.state);
    inheritance::receive(inheritance::offers().unwrap());
    // It has fewer cores.
    let target = Target::start(config(1)).unwrap();
    target.add_subsystem(subsystem()).unwrap();
    for device in devices {
        target.add_namespace(&nqn(), namespace(device.clone())).unwrap();
    }
    assert_eq!(target.add_listener(at).unwrap(), at, "the listener was handed over");
    let reservations = first.reservations(&nqn(), NSID1).unwrap();
    target.restore_reservations(&nqn(), NSID1, (*reservations).clone()).unwrap();
    target.install(&state, handed.sockets).unwrap();
    target.resume();
    assert_eq!(inheritance::settle(), [""; 0], "all is taken");
    target
}

#[test]
fn everything_of_a_connection_goes_over() {
    inheritance::enable();
    let devices = vec![ram("4M"), ram("1M")];
    let (first, address) = common::start(config(2), devices.clone());
    let digests = Wants { hdgst: true, ddgst: true, hpda: 0 };
    let mut hosts: Vec<Traces> = [Wants::default(), digests]
        .into_iter()
        .zip([0, 64])
        .map(|(wants, lba)| Traces::leave(address, wants, lba))
        .collect();
    let mut reserving = Host::connect(address, 3);
    ok(reserving.register(key(3)));
    ok(reserving.acquire(key(3), ReservationType::WriteExclusive));
    ok(reserving.reserve(io::RESERVATION_RELEASE, 1 << 8, [key(3), 0]));
    let report = reserving.report();
    let mut fresh = RawHost::dial(address, Wants::default());
    eventually("the fresh socket is there", || first.stats().pre_connect == 1);

    // A write whose data do not come keeps its host here, and nobody else.
    let (_slow_admin, slow) = RawHost::admin(address, Wants::default());
    let mut slow = RawHost::io(address, slow, 1, Wants::default());
    let late = pattern(9, 65_536);
    let write =
        slow.submit(block_sqe(io::WRITE, 1, 1024, 128), Direction::HostToController, 65_536);
    let grant = loop {
        if let common::Heard::SendData(grant) = slow.listen() {
            break grant;
        }
    };
    let handed = first.suspend(Duration::from_secs(3)).unwrap();
    assert_eq!(handed.left.len(), 1, "{:?}", handed.left);
    assert_eq!(handed.state.connections(), 7);
    // Nothing comes of it: all go on.
    drop(handed);
    first.resume();
    slow.send_data(&grant, &late);
    ok(status(&slow.wait(write, &late)));
    hosts.iter_mut().zip([0, 64]).for_each(|(host, lba)| host.check(lba));

    // The first part of a command has come.
    let capsules: Vec<_> = hosts
        .iter_mut()
        .map(|host| {
            let (cid, bytes) = host.queue.capsule(block_sqe(io::WRITE, 1, 2048, 1), &[7; 512]);
            host.queue.send_bytes(&bytes[..20]);
            (cid, bytes)
        })
        .collect();
    std::thread::sleep(Duration::from_millis(20));
    let handed = first.suspend(REST).unwrap();
    assert_eq!(handed.left, [""; 0]);
    assert_eq!(handed.state.connections(), 9);
    // What comes meanwhile waits in the sockets.
    let early = slow.submit(block_sqe(io::READ, 1, 1024, 128), Direction::ControllerToHost, 65_536);
    let second = successor(&first, handed, &devices, address);
    assert_eq!(slow.wait(early, &[]).data, late);
    for (host, (cid, bytes)) in hosts.iter_mut().zip(capsules) {
        host.queue.send_bytes(&bytes[20..]);
        ok(status(&host.queue.wait(cid, &[])));
    }
    hosts.iter_mut().zip([0, 64]).for_each(|(host, lba)| host.check(lba));
    assert_eq!(reserving.report(), report);
    fresh.greet();
    let cqe = fresh.connect(QueueId::ADMIN, 32, ControllerId::DYNAMIC);
    assert!(cqe.status.is_success(), "{}", cqe.status);

    // The controllers know their queues, and tell of what happens from here on.
    for host in &mut hosts {
        let mut more = RawHost::io(address, host.cntlid, 2, Wants::default());
        ok(status(&more.read(1, 0, 1, BS)));
    }
    second.add_namespace(&nqn(), namespace(ram("1M"))).unwrap();
    for host in &mut hosts {
        ok(status(&host.admin.wait(host.event, &[])));
    }
    // A reset waits for the end of the I/O queue that has come over.
    let mut host = hosts.remove(0);
    assert!(host.admin.set_property(0x14, 0x0046_0000).status.is_success());
    eventually("the reset", || host.admin.get_property(0x1c) & 1 == 0);
    // The first target never looks at these sockets again.
    std::mem::forget(first);
    second.shutdown().unwrap();
}

/// The form of a state: names and kinds of all members, whatever the values.
fn form(value: &serde_json::Value) -> String {
    use serde_json::Value;
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) => "bool".to_owned(),
        Value::Number(_) => "number".to_owned(),
        Value::String(_) => "text".to_owned(),
        Value::Array(all) => format!("[{}]", all.first().map_or(String::new(), form)),
        Value::Object(members) => {
            let members = members.iter().map(|(name, value)| format!("{name}:{}", form(value)));
            format!("{{{}}}", members.collect::<Vec<_>>().join(","))
        }
    }
}

#[test]
fn a_queue_that_is_not_between_two_commands_is_not_handed_over() {
    let queue = ControllerQueue::new(ControllerQueueConfig {
        max_h2c_data: 4096,
        in_capsule_bytes: 4096,
        max_r2t_slots: 4,
        allow_hdgst: true,
        allow_ddgst: true,
    });
    assert!(queue.is_untouched());
    assert!(queue.hand_over().is_none(), "it has had no ICReq");
}

#[test]
fn the_form_of_the_state_has_this_number() {
    // Whoever changes this text also counts FORM up.
    let text = r#"{"generation":7,"connections":[{"peer":"127.0.0.1:9","local":"127.0.0.1:4420",
        "listener":"127.0.0.1:4420","core":0,"queue":{"qid":1,"entries":129,"cntlid":5,
        "subsystem":"nqn.2016-06.io.spdk:a","host":"nqn.2016-06.io.spdk:h","hostid":[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,1],
        "flow_control":false,"says_success":true,"sqhd":3,"queue":{"max_h2c_data":131072,
        "in_capsule_bytes":4096,"max_r2t_slots":129,"header_digest":true,"data_digest":false,"hpda":0,
        "maxr2t":0,"held":[4]},"commands":[[1]],"is_proven":false,"controller":{"ciu":1,"cirn":9,
        "authentication":false,"tls":false,"state":{"age":{"secs":1,"nanos":2},"kato_ms":10000,
        "silent":{"secs":0,"nanos":1},"disabled":{"secs":0,"nanos":1},"shut_down":false,"cc":4587521,"rdy":true,"cfs":false,
        "shst":0,"queues":[1],"granted":127,"features":{"arbitration":0,"power_management":0,
        "over_temperature":65535,"under_temperature":0,"error_recovery":0,"write_atomicity":0,
        "waits_before_retry":false,"copies_across":false},"event_config":256,
        "events":[[false,true]],"requests":[12],"errors":[[0]],"error_count":1,"changed":[1],
        "changed_overflow":false,"resets":[[1,2,3,4]],"notices":[[1,2,3]],"notice_count":1,
        "notice_masks":{"1":2},"tolerances":[0,0]}}}}]}"#;
    let value: serde_json::Value = serde_json::from_str(text).unwrap();
    let state: HandedTarget = serde_json::from_value(value.clone()).unwrap();
    let written = serde_json::to_value(&state).unwrap();
    assert_eq!(form(&written), form(&value), "FORM is {FORM}: another form has another number");
    assert_eq!(FORM, 1);
}
