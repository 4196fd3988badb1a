//! Connect: every check, in order, with its status and the place of the parameter.

use raceline_proto::controller::{
    AbandonReason, Action, ConnectError, HostAccess, Limits, Role, Subsystem, TargetSnapshot,
    Tolerance, connect_transfer, parse_connect,
};
use raceline_proto::nvme::fabrics::ConnectWords;
use raceline_proto::nvme::identify::cns;
use raceline_proto::nvme::opcode::{admin, fabrics};
use raceline_proto::nvme::property::Configuration;
use raceline_proto::nvme::{Nqn, QueueId, SglDescriptor, Sqe, Status};
use zerocopy::IntoBytes;

use super::support::{
    CNTLID, Connect, HOSTID, HOSTNQN, Host, OTHER_HOSTNQN, OTHER_SUBNQN, SUBNQN, nqn, snapshot,
    subsystem,
};

/// Connect Invalid Parameters; DW0 is IATTR in bits 23:16 and IPO in bits 15:0.
#[track_caller]
fn assert_invalid(result: Result<(), ConnectError>, dw0: u32, dnr: bool) {
    let error = result.unwrap_err();
    let status = Status::CONNECT_INVALID_PARAMETERS;
    assert_eq!(error.status, if dnr { status.dnr() } else { status });
    assert_eq!(error.dw0(), dw0, "{error}");
}

fn admit(connect: &Connect) -> Result<(), ConnectError> {
    connect.admit(&snapshot(1, subsystem())).map(drop)
}

#[test]
fn a_right_connect_is_admitted() {
    let connect = Connect::admin(SUBNQN);
    let request = connect.parse().unwrap();
    assert_eq!((request.queue_entries, request.kato_ms), (32, 5000));
    assert_eq!((request.hostid, request.qid), (HOSTID, QueueId::ADMIN));
    assert!(!request.disable_sq_flow);
    assert!(matches!(connect.admit(&snapshot(1, subsystem())), Ok(Role::Io(_))));
    let mut connect = Connect::admin(Nqn::discovery().as_str());
    connect.words.cattr = 4;
    assert!(connect.parse().unwrap().disable_sq_flow);
    assert_eq!(connect.admit(&TargetSnapshot::default()), Ok(Role::Discovery));
}

#[test]
fn only_connect_is_legal_before_connect() {
    let sequence_error = Err(Status::COMMAND_SEQUENCE_ERROR.dnr());
    for opcode in [admin::IDENTIFY, admin::KEEP_ALIVE, 0x02, 0xff] {
        assert_eq!(connect_transfer(&Host::admin(opcode, 4096)), sequence_error);
    }
    for fctype in [fabrics::PROPERTY_GET, fabrics::AUTHENTICATION_SEND, fabrics::DISCONNECT] {
        let sqe = Sqe { nsid: u32::from(fctype).into(), ..Host::admin(fabrics::OPCODE, 1024) };
        assert_eq!(connect_transfer(&sqe), sequence_error);
    }
}

#[test]
fn connect_again_on_a_connected_queue_is_a_sequence_error() {
    let mut host = Host::ready();
    let answer = host.command(&ConnectWords::default().to_sqe());
    assert_eq!(answer.status, Status::COMMAND_SEQUENCE_ERROR.dnr());
}

#[test]
fn data_length_must_be_1024() {
    let sqe = ConnectWords { sqsize: 31, ..ConnectWords::default() }.to_sqe();
    for len in [0, 1, 1023, 1025, u32::MAX] {
        let sqe = Sqe { sgl1: SglDescriptor::in_capsule(len), ..sqe };
        assert_eq!(connect_transfer(&sqe), Err(Status::INVALID_FIELD.dnr()), "{len}");
    }
    for sgl1 in [SglDescriptor::in_capsule(1024), SglDescriptor::transport(1024)] {
        assert_eq!(connect_transfer(&Sqe { sgl1, ..sqe }).unwrap().len, 1024);
    }
    let data = Connect::admin(SUBNQN).data;
    for len in [0, 512, 1023] {
        let error = parse_connect(&sqe, &data.as_bytes()[..len]).unwrap_err();
        assert_eq!((error.status, error.dw0()), (Status::INVALID_FIELD.dnr(), 0));
    }
}

#[test]
fn recfmt_must_be_0() {
    let mut connect = Connect::admin(SUBNQN);
    connect.words.recfmt = 1;
    let error = admit(&connect).unwrap_err();
    assert_eq!(error.status, Status::CONNECT_INCOMPATIBLE_FORMAT.dnr());
}

#[test]
fn subnqn_must_be_terminated_and_known() {
    let mut connect = Connect::admin(SUBNQN);
    connect.data.subnqn = [b'a'; 256];
    assert_invalid(admit(&connect), 0x1_0100, true);
    connect.data.subnqn = [0; 256];
    assert_invalid(admit(&connect), 0x1_0100, true);
    // terminated, but after byte 223
    connect.data.subnqn = [b'a'; 256];
    connect.data.subnqn[..4].copy_from_slice(b"nqn.");
    connect.data.subnqn[224] = 0;
    assert_invalid(admit(&connect), 0x1_0100, true);
    // the longest there is, unknown: it may be added later
    connect.data.subnqn[223] = 0;
    assert_invalid(admit(&connect), 0x1_0100, false);
    assert_invalid(admit(&Connect::admin(OTHER_SUBNQN)), 0x1_0100, false);
}

#[test]
fn hostnqn_must_be_terminated_text() {
    let mut connect = Connect::admin(SUBNQN);
    connect.data.hostnqn = [b'a'; 256];
    assert_invalid(admit(&connect), 0x1_0200, true);
    connect.data.hostnqn = [0; 256];
    connect.data.hostnqn[..4].copy_from_slice(b"h\xc3\x28h");
    assert_invalid(admit(&connect), 0x1_0200, true);
}

/// Names as people choose them; the last has the greatest length.
fn chosen_names() -> Vec<String> {
    let names = ["h", "host", "host1", "iqn.1993-08.org.debian:01:abc", "nqn.2026-0", "h\u{e9}"];
    names.iter().map(|name| (*name).to_owned()).chain(["h".repeat(223)]).collect()
}

#[test]
fn any_text_is_the_name_of_a_host() {
    for name in chosen_names() {
        let mut connect = Connect::admin(SUBNQN);
        connect.data.hostnqn = nqn(&name).to_field();
        let refused = admit(&connect).unwrap_err();
        assert_eq!(refused.status, Status::CONNECT_INVALID_HOST.dnr(), "not on the list");
        let mut named = subsystem();
        named.hosts = HostAccess::List(vec![nqn(&name)]);
        let mut any = subsystem();
        any.hosts = HostAccess::Any;
        for subsystem in [named, any] {
            let mut host = Host::connect_to(&connect, &snapshot(1, subsystem), "192.0.2.1:4420");
            host.enable();
            assert_eq!(host.controller.poll_tolerance(), Some(Tolerance::HostName), "{name}");
            assert_eq!(host.controller.poll_tolerance(), None, "once");
            let mut queue = Connect::io(1);
            queue.data.hostnqn = nqn(&name).to_field();
            host.io_connect(&queue).unwrap();
        }
    }
    assert_eq!(Host::ready().controller.poll_tolerance(), None);
}

#[test]
fn any_text_is_the_name_of_a_subsystem() {
    for name in chosen_names() {
        let named = Subsystem { nqn: nqn(&name), ..subsystem() }.validated().unwrap();
        let mut host =
            Host::connect_to(&Connect::admin(&name), &snapshot(1, named), "192.0.2.1:4420");
        host.enable();
        let page = host.identify(cns::CONTROLLER, 0).ok().data;
        let field = page[768..1024].try_into().unwrap();
        assert_eq!(Nqn::from_field(&field).unwrap().as_str(), name);
    }
}

#[test]
fn host_must_be_allowed() {
    let mut connect = Connect::admin(SUBNQN);
    connect.data.hostnqn = nqn(OTHER_HOSTNQN).to_field();
    let error = admit(&connect).unwrap_err();
    assert_eq!(error.status, Status::CONNECT_INVALID_HOST.dnr());
    let mut open = subsystem();
    open.hosts = HostAccess::Any;
    assert!(connect.admit(&snapshot(1, open.clone())).is_ok());
    open.hosts = HostAccess::List(vec![]);
    assert!(Connect::admin(SUBNQN).admit(&snapshot(1, open)).is_err(), "nobody is admitted");
}

#[test]
fn a_host_without_a_name_is_admitted_where_any_host_is() {
    let mut connect = Connect::admin(SUBNQN);
    connect.data.hostnqn = [0; 256];
    let error = admit(&connect).unwrap_err();
    assert_eq!((error.status, error.dw0()), (Status::CONNECT_INVALID_HOST.dnr(), 0x1_0200));
    let mut open = subsystem();
    open.hosts = HostAccess::Any;
    let mut host = Host::connect_to(&connect, &snapshot(1, open), "192.0.2.1:4420");
    host.enable();
    // its I/O queues have no name, either
    assert_invalid(host.io_connect(&Connect::io(1)), 0x1_0010, true);
    let mut queue = Connect::io(1);
    queue.data.hostnqn = [0; 256];
    host.io_connect(&queue).unwrap();
    // it is not on a list that comes later
    host.controller.handle_snapshot(snapshot(2, subsystem()));
    assert_eq!(host.actions(), [Action::Abandon { reason: AbandonReason::HostRemoved }]);
}

#[test]
fn sqsize_must_be_in_range() {
    let mut connect = Connect::admin(SUBNQN);
    for (sqsize, valid) in [(0, false), (1, true), (31, true), (32, false), (u16::MAX, false)] {
        connect.words.sqsize = sqsize;
        if valid {
            admit(&connect).unwrap();
        } else {
            assert_invalid(admit(&connect), 44, true);
        }
    }
    let mut host = Host::ready();
    let mut connect = Connect::io(1);
    for sqsize in [0, 128, u16::MAX] {
        connect.words.sqsize = sqsize;
        assert_invalid(host.io_connect(&connect), 44, true);
    }
    connect.words.sqsize = 128;
    assert_invalid(admit(&connect), 44, true);
    connect.words.sqsize = 127;
    admit(&connect).unwrap();
    host.io_connect(&connect).unwrap();
}

#[test]
fn the_admin_queue_is_as_deep_as_the_target_says() {
    let mut deep = subsystem();
    deep.limits.max_admin_entries = 4096;
    let discovery_limits = Limits { max_admin_entries: 64, ..Limits::DEFAULT };
    let snapshot = TargetSnapshot { discovery_limits, ..(*snapshot(1, deep)).clone() };
    let mut connect = Connect::admin(SUBNQN);
    let mut discovery = Connect::admin(Nqn::discovery().as_str());
    for (sqsize, deep, shallow) in [(63, true, true), (64, true, false), (4096, false, false)] {
        (connect.words.sqsize, discovery.words.sqsize) = (sqsize, sqsize);
        assert_eq!(connect.admit(&snapshot).is_ok(), deep, "{sqsize}");
        assert_eq!(discovery.admit(&snapshot).is_ok(), shallow, "{sqsize}");
    }
    connect.words.sqsize = 4095;
    connect.admit(&snapshot).unwrap();
}

#[test]
fn admin_cntlid_must_be_dynamic() {
    let mut connect = Connect::admin(SUBNQN);
    for cntlid in [0, 1, 0xfffe] {
        connect.data.cntlid = cntlid.into();
        assert_invalid(admit(&connect), 0x1_0010, true);
    }
}

#[test]
fn io_cntlid_must_be_that_of_the_association() {
    let mut host = Host::ready();
    let mut connect = Connect::io(1);
    connect.data.cntlid = (CNTLID.0 + 1).into();
    assert_invalid(host.io_connect(&connect), 0x1_0010, true);
    // an unknown controller may be one that no longer exists
    assert_invalid(Err(ConnectError::UNKNOWN_CONTROLLER), 0x1_0010, false);
}

#[test]
fn io_hostnqn_must_be_that_of_the_association() {
    let mut host = Host::ready();
    let mut connect = Connect::io(1);
    connect.data.hostnqn = nqn(OTHER_HOSTNQN).to_field();
    assert_invalid(host.io_connect(&connect), 0x1_0010, true);
}

#[test]
fn an_io_hostid_may_be_another() {
    let mut host = Host::ready();
    host.io_connect(&Connect::io(1)).unwrap();
    assert_eq!(host.controller.poll_tolerance(), None);
    for qid in [2, 3] {
        let mut connect = Connect::io(qid);
        connect.data.hostid[15] ^= u8::try_from(qid).unwrap();
        host.io_connect(&connect).unwrap();
    }
    assert_eq!(host.controller.poll_tolerance(), Some(Tolerance::HostIdentifier));
    assert_eq!(host.controller.poll_tolerance(), None, "once");
    assert_eq!(host.controller.hostid(), HOSTID, "that of the admin queue counts");
    // a refused queue reports no deviation
    let mut host = Host::ready();
    let mut connect = Connect::io(17);
    connect.data.hostid[0] ^= 1;
    assert_invalid(host.io_connect(&connect), 42, true);
    assert_eq!(host.controller.poll_tolerance(), None);
}

#[test]
fn io_subnqn_must_be_that_of_the_association() {
    let mut host = Host::ready();
    let mut connect = Connect::io(1);
    connect.data.subnqn = nqn(OTHER_SUBNQN).to_field();
    assert_invalid(host.io_connect(&connect), 0x1_0100, true);
}

#[test]
fn io_qid_must_be_in_range() {
    let mut host = Host::ready();
    for qid in [0, 17, u16::MAX] {
        assert_invalid(host.io_connect(&Connect::io(qid)), 42, true);
    }
    host.io_connect(&Connect::io(16)).unwrap();
}

#[test]
fn io_connect_needs_an_enabled_controller() {
    let mut host = Host::connected();
    assert_invalid(host.io_connect(&Connect::io(1)), 42, false);
    host.enable();
    host.io_connect(&Connect::io(1)).unwrap();
    // while it is being reset, and after its shutdown
    host.set_cc(Configuration::default()).ok();
    assert_invalid(host.io_connect(&Connect::io(2)), 42, false);
    let mut host = Host::ready();
    host.set_cc(Configuration::ENABLED.with_shn(1)).ok();
    assert_invalid(host.io_connect(&Connect::io(1)), 42, false);
}

#[test]
fn discovery_controllers_have_no_io_queues() {
    let mut host = Host::discovery(&snapshot(1, subsystem()), 0, "192.0.2.1:8009");
    assert_invalid(host.io_connect(&Connect::io(1)), 42, true);
}

#[test]
fn io_connect_needs_the_entry_sizes() {
    for (iosqes, iocqes) in [(0, 4), (6, 0), (0, 0)] {
        let mut host = Host::connected();
        host.set_cc(Configuration(iocqes << 20 | iosqes << 16 | 1)).ok();
        assert!(host.csts().rdy(), "they may be set later");
        assert_invalid(host.io_connect(&Connect::io(1)), 42, true);
        host.set_cc(Configuration::ENABLED).ok();
        host.io_connect(&Connect::io(1)).unwrap();
    }
}

#[test]
fn a_qid_in_use_is_a_sequence_error_that_may_pass() {
    let mut host = Host::ready();
    host.io_connect(&Connect::io(3)).unwrap();
    let error = host.io_connect(&Connect::io(3)).unwrap_err();
    assert_eq!((error.status, error.dw0()), (Status::COMMAND_SEQUENCE_ERROR, 0));
    host.controller.io_queue_closed(QueueId(3));
    host.io_connect(&Connect::io(3)).unwrap();
}

#[test]
fn busy_may_be_retried() {
    assert_eq!(ConnectError::BUSY.status, Status::new(1, 0x81));
    assert!(!ConnectError::BUSY.status.is_dnr());
}

#[test]
fn checks_come_in_order() {
    let mut connect = Connect::admin(SUBNQN);
    connect.words.recfmt = 1;
    connect.words.sqsize = u16::MAX;
    connect.data.cntlid = 1.into();
    connect.data.subnqn = [b'a'; 256];
    connect.data.hostnqn = [b'a'; 256];
    let status = |connect: &Connect| admit(connect).unwrap_err().status;
    assert_eq!(status(&connect), Status::CONNECT_INCOMPATIBLE_FORMAT.dnr());
    connect.words.recfmt = 0;
    assert_invalid(admit(&connect), 0x1_0100, true);
    connect.data.subnqn = nqn(SUBNQN).to_field();
    assert_invalid(admit(&connect), 0x1_0200, true);
    connect.data.hostnqn = nqn(OTHER_HOSTNQN).to_field();
    assert_eq!(status(&connect), Status::CONNECT_INVALID_HOST.dnr());
    connect.data.hostnqn = nqn(HOSTNQN).to_field();
    assert_invalid(admit(&connect), 44, true);
    connect.words.sqsize = 31;
    assert_invalid(admit(&connect), 0x1_0010, true);
}
