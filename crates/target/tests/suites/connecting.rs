//! Connects that are refused, and commands where a Connect is due: each gets what the specification says.

use raceline_proto::nvme::opcode::{fabrics, io};
use raceline_proto::nvme::{ControllerId, Nqn, QueueId, Sqe, Status};
use raceline_target::HostAccess;

use crate::common::{RawHost, Wants, config, host_nqn, nqn, ram, start, status};

#[test]
fn connect_is_refused_for_the_reason_that_holds() {
    let (target, address) = start(config(2), vec![ram("1M")]);
    let stranger = Nqn::new("nqn.2026-01.io.raceline:stranger").unwrap();
    let (mut admin, cntlid) = RawHost::admin(address, Wants::default());

    let try_connect = |qid, entries, cntlid, subnqn: &Nqn, hostnqn: &Nqn| {
        let mut host = RawHost::open(address, Wants::default());
        let cqe = host.connect_as(QueueId(qid), entries, cntlid, subnqn, hostnqn, 0);
        (cqe.status, cqe.dw0)
    };
    let (known, host, any) = (nqn(), host_nqn(), ControllerId::DYNAMIC);
    let invalid = Status::CONNECT_INVALID_PARAMETERS;
    let in_data = 1 << 16;
    for (what, (got, dw0), expected, ipo) in [
        ("unknown subsystem", try_connect(0, 32, any, &stranger, &host), invalid, in_data | 256),
        ("admin CNTLID", try_connect(0, 32, cntlid, &known, &host), invalid, in_data | 16),
        ("I/O CNTLID", try_connect(1, 32, ControllerId(999), &known, &host), invalid, in_data | 16),
        ("other host", try_connect(1, 32, cntlid, &known, &stranger), invalid, in_data | 16),
        ("too many entries", try_connect(1, 4096, cntlid, &known, &host), invalid, 44),
        ("one entry", try_connect(1, 1, cntlid, &known, &host), invalid, 44),
    ] {
        assert!(got.same_code(expected), "{what}: {got}");
        assert_eq!(dw0, ipo, "{what}");
    }

    let _queue = RawHost::io(address, cntlid, 1, Wants::default());
    let mut twice = RawHost::open(address, Wants::default());
    let again = twice.connect(QueueId(1), 32, cntlid).status;
    assert!(!again.is_success(), "QID 1 is taken: {again}");

    target.set_hosts(&nqn(), HostAccess::List(vec![stranger.clone()])).unwrap();
    admin.until_closed();
    let mut host = RawHost::open(address, Wants::default());
    let cqe = host.connect(QueueId::ADMIN, 32, any);
    assert!(cqe.status.same_code(Status::CONNECT_INVALID_HOST), "{}", cqe.status);
    let cqe = host.connect_as(QueueId::ADMIN, 32, any, &nqn(), &stranger, 0);
    assert!(cqe.status.is_success(), "a second Connect on the same connection: {}", cqe.status);
    target.shutdown().unwrap();
}

tcp_only! {
    /// Over RDMA the connection manager refuses it: `requests_that_are_refused` in `crates/rdma/tests/pairs/manager.rs`.
    #[test]
    fn connect_is_refused_for_a_qid_that_is_too_large() {
        let (target, address) = start(config(1), vec![ram("1M")]);
        let (_admin, cntlid) = RawHost::admin(address, Wants::default());
        let mut host = RawHost::open(address, Wants::default());
        let cqe = host.connect(QueueId(9999), 32, cntlid);
        assert!(cqe.status.same_code(Status::CONNECT_INVALID_PARAMETERS), "{}", cqe.status);
        assert_eq!(cqe.dw0, 42);
        target.shutdown().unwrap();
    }
}

#[test]
fn only_connect_is_legal_before_connect_and_only_once() {
    let (target, address) = start(config(1), vec![ram("1M")]);
    let mut host = RawHost::open(address, Wants::default());
    let answer = host.plain_command(Sqe { opc: io::FLUSH, nsid: 1.into(), ..Sqe::default() });
    assert!(status(&answer).same_code(Status::COMMAND_SEQUENCE_ERROR));
    let disconnect = u32::from(fabrics::DISCONNECT);
    let (mut admin, cntlid) = RawHost::admin(address, Wants::default());
    let mut queue = RawHost::io(address, cntlid, 1, Wants::default());
    let connects = [(&mut admin, QueueId::ADMIN), (&mut queue, QueueId(1))];
    for (host, qid) in connects {
        let sqe = Sqe { opc: fabrics::OPCODE, nsid: disconnect.into(), ..Sqe::default() };
        assert!(status(&host.plain_command(sqe)).same_code(Status::INVALID_OPCODE));
        let again = host.connect(qid, 32, cntlid);
        assert!(again.status.same_code(Status::COMMAND_SEQUENCE_ERROR), "{}", again.status);
    }
    target.shutdown().unwrap();
}
