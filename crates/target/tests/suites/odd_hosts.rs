//! Hosts that deviate from the specification harmlessly: the target serves them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::net::SocketAddr;
use std::time::Duration;

use crate::common::{Heard, RawHost, Wants, block_sqe, config, nqn, pattern, ram, start, status};
use raceline_proto::nvme::fabrics::{ConnectData, ConnectWords};
use raceline_proto::nvme::opcode::{admin, fabrics, io};
use raceline_proto::nvme::{ControllerId, Direction, HostId, Nqn, QueueId, Sqe, Status};
use raceline_target::{HostAccess, SubsystemConfig, Target, TargetConfig, TargetError};

const BS: u32 = 512;
/// Where the SGL descriptor lies in a command capsule: behind the PDU's header and 24 bytes of command.
const SGL: std::ops::Range<usize> = 8 + 24..8 + 40;

fn words(qid: u16, entries: u16) -> ConnectWords {
    ConnectWords { recfmt: 0, qid: QueueId(qid), sqsize: entries - 1, cattr: 4, kato: 0 }
}

/// Connects with these names, which may be any bytes, as they lie in the Connect data.
fn connect(host: &mut RawHost, words: ConnectWords, data: &ConnectData) -> Result<u32, Status> {
    let cqe = host.connect_with(words, data);
    if cqe.status.is_success() { Ok(cqe.dw0) } else { Err(cqe.status) }
}

fn data(hostid: u8, cntlid: ControllerId, subnqn: &str, hostnqn: &[u8]) -> ConnectData {
    let (subnqn, any) = (Nqn::new(subnqn).unwrap(), Nqn::new("any").unwrap());
    let mut data = ConnectData::new(HostId([hostid; 16]), cntlid, &subnqn, &any);
    data.hostnqn = [0; 256];
    data.hostnqn[..hostnqn.len()].copy_from_slice(hostnqn);
    data
}

/// Writes and reads through a controller whose queues are connected with these names.
fn serves(address: SocketAddr, subnqn: &str, hostnqn: &[u8]) {
    let mut admin = RawHost::open(address, Wants::default());
    let dynamic = data(1, ControllerId::DYNAMIC, subnqn, hostnqn);
    let cntlid = connect(&mut admin, words(0, 32), &dynamic).unwrap();
    let cntlid = ControllerId(u16::try_from(cntlid).unwrap());
    // CC.CSS: all I/O command sets, in two steps.
    assert!(admin.set_property(0x14, 0x0046_0060).status.is_success());
    assert!(admin.set_property(0x14, 0x0046_0061).status.is_success());
    assert_eq!(admin.get_property(0x1c) & 0b11, 1, "ready, and not failed");
    for qid in [1, 2] {
        // Each queue comes with a host identifier of its own.
        let mut queue = RawHost::open(address, Wants::default());
        let data = data(2 + u8::try_from(qid).unwrap(), cntlid, subnqn, hostnqn);
        connect(&mut queue, words(qid, 32), &data).unwrap();
        let bytes = pattern(qid.into(), 4096);
        assert!(status(&queue.write(1, 8, &bytes, BS)).is_success());
        assert_eq!(queue.read(1, 8, 8, BS).data, bytes);
    }
    // A queue with another host's NQN does not belong to this controller.
    let mut queue = RawHost::open(address, Wants::default());
    let error = connect(&mut queue, words(3, 32), &data(1, cntlid, subnqn, b"somebody"));
    let (not_its_own, not_admitted) =
        (Status::CONNECT_INVALID_PARAMETERS.dnr(), Status::CONNECT_INVALID_HOST.dnr());
    assert!(error == Err(not_its_own) || error == Err(not_admitted), "{error:?}");
}

#[test]
fn hosts_have_the_names_that_people_choose() {
    let (target, address) = start(config(2), vec![ram("1M")]);
    let longest = [b'h'; 223];
    let names: [&[u8]; 6] = [
        b"h",
        b"host1",
        b"iqn.1993-08.org.debian:01:abc",
        "h\u{f6}st".as_bytes(),
        b"\x1b[2J\nhost",
        &longest,
    ];
    for name in names {
        serves(address, nqn().as_str(), name);
    }
    for bad in [&[b'h'; 256][..], &[b'h'; 224], b"\xff\xfe"] {
        let mut host = RawHost::open(address, Wants::default());
        let data = data(1, ControllerId::DYNAMIC, nqn().as_str(), bad);
        let error = connect(&mut host, words(0, 32), &data);
        assert_eq!(error, Err(Status::CONNECT_INVALID_PARAMETERS.dnr()), "{bad:?}");
    }
    target.shutdown().unwrap();
}

#[test]
fn a_list_of_hosts_admits_the_names_on_it() {
    let (target, address) = start(config(1), vec![]);
    let subnqn = "a-test-subsystem-1";
    target
        .add_subsystem(SubsystemConfig {
            hosts: HostAccess::List(vec![Nqn::new("host1").unwrap()]),
            ..SubsystemConfig::new(Nqn::new(subnqn).unwrap())
        })
        .unwrap();
    target.add_namespace(&Nqn::new(subnqn).unwrap(), crate::common::namespace(ram("1M"))).unwrap();
    serves(address, subnqn, b"host1");
    for other in [&b"host"[..], b"host11", b"Host1"] {
        let mut host = RawHost::open(address, Wants::default());
        let error =
            connect(&mut host, words(0, 32), &data(1, ControllerId::DYNAMIC, subnqn, other));
        assert_eq!(error, Err(Status::CONNECT_INVALID_HOST.dnr()));
    }
    target.shutdown().unwrap();
}

tcp_only! {
    #[test]
    fn an_empty_descriptor_may_be_of_zeroes() {
        let (target, address) = start(config(1), vec![ram("1M")]);
        let (mut admin, cntlid) = RawHost::admin(address, Wants::default());
        let mut queue = RawHost::io(address, cntlid, 1, Wants::default());
        let zero = |capsule: &mut [u8]| capsule[SGL].fill(0);
        let feature = |opc, fid: u32| Sqe { opc, cdw10: fid.into(), ..Sqe::default() };
        let property =
            Sqe { opc: fabrics::OPCODE, nsid: 4.into(), cdw11: 0x1c.into(), ..Sqe::default() };
        for sqe in [
            feature(admin::SET_FEATURES, 0x0b),
            feature(admin::GET_FEATURES, 0x0b),
            feature(admin::GET_FEATURES, 0x07),
            feature(admin::KEEP_ALIVE, 0),
            feature(admin::ABORT, 0xffff_0001),
            property,
        ] {
            let answer = admin.patched_command(sqe, Direction::None, 0, zero);
            assert_eq!(status(&answer), Status::SUCCESS, "{:#x} {:?}", sqe.opc, sqe.cdw10);
        }
        for sqe in [
            Sqe { opc: io::FLUSH, nsid: 1.into(), ..Sqe::default() },
            block_sqe(io::WRITE_ZEROES, 1, 0, 8),
        ] {
            let answer = queue.patched_command(sqe, Direction::None, 0, zero);
            assert_eq!(status(&answer), Status::SUCCESS, "{:#x}", sqe.opc);
        }
        // Commands that need data say that there are none.
        for sqe in [block_sqe(io::READ, 1, 0, 1), block_sqe(io::WRITE, 1, 0, 1)] {
            let answer = queue.patched_command(sqe, Direction::None, 0, zero);
            assert_eq!(status(&answer), Status::DATA_SGL_LENGTH_INVALID.dnr(), "{:#x}", sqe.opc);
        }
        target.shutdown().unwrap();
    }
}

tcp_only! {
    /// Reads, and gives whether C2HData reported success; if it did not, the response has come.
    fn data_say_success(host: &mut RawHost, sqe: Sqe, len: u32) -> bool {
        let cid = host.submit(sqe, Direction::ControllerToHost, len);
        loop {
            match host.listen() {
                Heard::DataEnd { success: true, .. } => return true,
                Heard::DataEnd { .. } => break,
                Heard::Data { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        match host.listen() {
            Heard::Response(cqe) => assert_eq!((cqe.cid, cqe.status), (cid, Status::SUCCESS)),
            other => panic!("{other:?}"),
        }
        false
    }
}

tcp_only! {
    #[test]
    fn data_say_success_where_the_target_is_told_so() {
        for c2h_success in [true, false] {
            let (target, address) = start(TargetConfig { c2h_success, ..config(1) }, vec![ram("1M")]);
            for ddgst in [false, true] {
                let wants = Wants { ddgst, ..Wants::default() };
                let (mut admin, cntlid) = RawHost::admin(address, wants);
                let mut queue = RawHost::io(address, cntlid, 1, wants);
                let identify = Sqe { opc: admin::IDENTIFY, cdw10: 1.into(), ..Sqe::default() };
                assert_eq!(data_say_success(&mut admin, identify, 4096), c2h_success);
                for blocks in [1, 8, 256] {
                    let read = block_sqe(io::READ, 1, 0, blocks);
                    assert_eq!(data_say_success(&mut queue, read, blocks * BS), c2h_success);
                }
            }
            target.shutdown().unwrap();
        }
    }
}

tcp_only! {
    #[test]
    fn the_admin_queue_and_keep_alive_are_what_the_target_is_told() {
        let told = TargetConfig {
            max_admin_entries: 256,
            keep_alive_granularity: 20,
            min_keep_alive_ms: 4000,
            ..config(1)
        };
        let (target, address) = start(told, vec![ram("1M")]);
        for subnqn in [nqn(), Nqn::discovery()] {
            let names = data(1, ControllerId::DYNAMIC, subnqn.as_str(), b"host");
            let mut host = RawHost::open(address, Wants::default());
            let error = connect(&mut host, words(0, 257), &names);
            assert_eq!(error, Err(Status::CONNECT_INVALID_PARAMETERS.dnr()));
            let mut host = RawHost::open(address, Wants::default());
            connect(&mut host, ConnectWords { kato: 4001, ..words(0, 256) }, &names).unwrap();
            assert!(host.set_property(0x14, 0x0046_0001).status.is_success());
            assert_eq!(host.identify_controller()[320..322], [20, 0], "KAS");
            // As many commands at a time as the queue has room for.
            let kato = Sqe { opc: admin::GET_FEATURES, cdw10: 0x0f.into(), ..Sqe::default() };
            let cids: Vec<_> = (0..255).map(|_| host.submit(kato, Direction::None, 0)).collect();
            for cid in cids {
                let cqe = host.wait(cid, &[]).cqe;
                assert_eq!((cqe.status, cqe.dw0), (Status::SUCCESS, 6000));
            }
        }
        target.shutdown().unwrap();
    }
}

tcp_only! {
    #[test]
    fn a_host_that_takes_nothing_is_given_up_when_the_target_is_told_so() {
        for (ack_timeout, is_given_up) in [(Some(Duration::from_millis(500)), true), (None, false)] {
            let (target, address) = start(TargetConfig { ack_timeout, ..config(1) }, vec![ram("1M")]);
            let (_admin, cntlid) = RawHost::admin(address, Wants::default());
            let mut queue = RawHost::io(address, cntlid, 1, Wants::default());
            socket2::SockRef::from(&queue.stream).set_recv_buffer_size(4096).unwrap();
            // More than the buffers of both sockets hold, and the host receives nothing.
            for _ in 0..120 {
                queue.submit(block_sqe(io::READ, 1, 0, 256), Direction::ControllerToHost, 256 * BS);
            }
            let connections = || target.stats().connections.iter().sum::<usize>();
            if is_given_up {
                crate::common::eventually("the queue is given up", || connections() == 1);
            } else {
                std::thread::sleep(Duration::from_secs(3));
                assert_eq!(connections(), 2);
            }
            drop(queue);
            target.shutdown().unwrap();
        }
    }
}

#[test]
fn settings_outside_their_range_are_named() {
    for (config, setting) in [
        (TargetConfig { max_admin_entries: 31, ..config(1) }, "entries of an admin queue"),
        (TargetConfig { max_admin_entries: 4097, ..config(1) }, "entries of an admin queue"),
        (TargetConfig { keep_alive_granularity: 0, ..config(1) }, "keep alive granularity"),
    ] {
        match Target::start(config) {
            Err(TargetError::Config { what, .. }) => assert_eq!(what, setting),
            Err(error) => panic!("{error}"),
            Ok(_) => panic!("{setting}"),
        }
    }
}
