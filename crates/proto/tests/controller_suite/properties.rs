//! Properties: their values, and enable, reset and shutdown through CC.

use raceline_proto::controller::{Action, Tolerance};
use raceline_proto::nvme::opcode::{admin, fabrics};
use raceline_proto::nvme::property::{
    CAP, CC, CRTO, CSTS, Capabilities, Configuration, ControllerStatus, NSSR, PropertyAccess,
    PropertySize, VS,
};
use raceline_proto::nvme::{Nqn, QueueId, SglDescriptor, Sqe, Status};

use super::support::{Connect, Host, snapshot, subsystem};

const RESET: Configuration = Configuration(0x0046_0000);

#[test]
fn cap_says_what_hosts_need() {
    let answer = Host::connected().property(CAP, PropertySize::Eight).ok();
    let cap = u64::from(answer.dw1) << 32 | u64::from(answer.dw0);
    assert_eq!(Capabilities(cap).mqes(), 127);
    assert_eq!(cap >> 16 & 1, 1, "CQR");
    assert_eq!(cap >> 24 & 0xff, 30, "TO, 15 s");
    assert_eq!(cap >> 32 & 0xf, 0, "DSTRD");
    assert_eq!(cap >> 36 & 1, 0, "NSSRS");
    assert_eq!(cap >> 37 & 0xff, 0b0100_0001, "CSS: NVM, and I/O command sets are told of");
    assert_eq!(cap >> 48 & 0xff, 0, "MPSMIN and MPSMAX");
    assert_eq!(cap >> 59 & 3, 0, "CRMS");
}

#[test]
fn vs_cc_and_csts_can_be_read() {
    let mut host = Host::connected();
    assert_eq!(host.property(VS, PropertySize::Four).ok().dw0, 0x0001_0400);
    assert_eq!(host.property(CC, PropertySize::Four).ok().dw0, 0);
    assert_eq!(host.csts(), ControllerStatus(0));
    host.enable();
    assert_eq!(host.property(CC, PropertySize::Four).ok().dw0, 0x0046_0001);
    assert_eq!(host.csts(), ControllerStatus(1));
}

#[test]
fn other_properties_and_sizes_are_invalid() {
    let mut host = Host::connected();
    for (offset, size) in [
        (CAP, PropertySize::Four),
        (VS, PropertySize::Eight),
        (CC, PropertySize::Eight),
        (CSTS, PropertySize::Eight),
        (NSSR, PropertySize::Four),
        (CRTO, PropertySize::Four),
        (0x04, PropertySize::Four),
        (0x24, PropertySize::Four),
        (u32::MAX, PropertySize::Four),
    ] {
        let status = host.property(offset, size).status;
        assert_eq!(status, Status::INVALID_FIELD.dnr(), "{offset:#x}");
    }
    for offset in [CAP, VS, CSTS, NSSR] {
        let status = host.command(&PropertyAccess::set(offset, 1)).status;
        assert_eq!(status, Status::INVALID_FIELD.dnr(), "{offset:#x}");
    }
    let wide = Sqe { cdw13: 1.into(), ..PropertyAccess::set(CC, 1) };
    assert_eq!(host.command(&wide).status, Status::INVALID_FIELD.dnr());
    let reserved = Sqe { cdw10: 7.into(), ..PropertyAccess::get(CC, PropertySize::Four) };
    assert_eq!(host.command(&reserved).status, Status::INVALID_FIELD.dnr());
}

#[test]
fn unsupported_fabrics_commands_are_invalid_opcodes() {
    let mut host = Host::ready();
    for fctype in [
        fabrics::DISCONNECT,
        fabrics::AUTHENTICATION_SEND,
        fabrics::AUTHENTICATION_RECEIVE,
        0x02,
        0x03,
        0xc0,
        0xff,
    ] {
        let sqe = Sqe { nsid: u32::from(fctype).into(), ..Host::admin(fabrics::OPCODE, 0) };
        assert_eq!(host.command(&sqe).status, Status::INVALID_OPCODE.dnr(), "{fctype:#x}");
    }
}

#[test]
fn admin_commands_before_ready_are_sequence_errors() {
    let mut host = Host::connected();
    for sqe in [
        Host::admin(admin::IDENTIFY, 4096),
        Host::admin(admin::KEEP_ALIVE, 0),
        Host::admin(admin::ASYNC_EVENT_REQUEST, 0),
        Host::admin(admin::SET_FEATURES, 0),
    ] {
        assert_eq!(host.command(&sqe).status, Status::COMMAND_SEQUENCE_ERROR.dnr());
    }
}

#[test]
fn unknown_admin_opcodes_are_invalid() {
    let mut host = Host::ready();
    // Namespace Management, Firmware Commit, Security Receive, Format, vendor specific
    for opcode in [0x0d, 0x10, 0x82, 0x80, 0xc0, 0xff, 0x00, 0x03] {
        let status = host.command(&Host::admin(opcode, 4096)).status;
        assert_eq!(status, Status::INVALID_OPCODE.dnr(), "{opcode:#x}");
    }
}

#[test]
fn unsupported_configurations_are_fatal() {
    for cc in [
        Configuration::ENABLED.0 | 1 << 7,        // MPS 8 KiB
        Configuration::ENABLED.0 | 1 << 11,       // AMS weighted round robin
        Configuration::ENABLED.0 | 1 << 4,        // CSS reserved
        Configuration::ENABLED.0 | 7 << 4,        // CSS admin commands only
        Configuration::ENABLED.0 | 1 << 16,       // IOSQES 7
        Configuration::ENABLED.0 ^ (4 ^ 5) << 20, // IOCQES 5
    ] {
        let mut host = Host::connected();
        host.set_cc(Configuration(cc)).ok();
        assert_eq!(host.csts(), ControllerStatus::new(false, true, 0), "{cc:#x}");
        // a reset clears it, and then a valid configuration works
        host.set_cc(RESET).ok();
        assert_eq!(host.csts(), ControllerStatus(0));
        host.enable();
    }
}

#[test]
fn all_command_sets_may_be_selected() {
    let all = Configuration::ENABLED.with_css(Configuration::CSS_ALL);
    assert_eq!(all.0, 0x0046_0061);
    let mut host = Host::connected();
    host.set_cc(Configuration(all.0 & !1)).ok();
    host.set_cc(all).ok();
    assert_eq!(host.csts(), ControllerStatus(1));
    assert_eq!(host.property(CC, PropertySize::Four).ok().dw0, all.0);
    assert_eq!(host.controller.poll_tolerance(), None, "CAP.CSS says it");
    host.io_connect(&Connect::io(1)).unwrap();
    // A discovery controller does not offer it, and has no I/O queue for which it would matter.
    let connect = Connect::admin(Nqn::discovery().as_str());
    let mut host = Host::connect_to(&connect, &snapshot(1, subsystem()), "192.0.2.1:8009");
    let cap = host.property(CAP, PropertySize::Eight).ok();
    assert_eq!(cap.dw1 >> 5 & 0xff, 1, "CSS: NVM only");
    host.set_cc(all).ok();
    assert_eq!(host.csts(), ControllerStatus(1));
    assert_eq!(host.controller.poll_tolerance(), Some(Tolerance::CommandSets));
    assert_eq!(host.controller.poll_tolerance(), None, "once");
}

#[test]
fn an_empty_descriptor_may_be_of_any_type() {
    for kind in [0x00, 0x0f, 0x10, 0x40, 0x5a, 0x01] {
        let mut host = Host::ready();
        let sgl1 = SglDescriptor { kind, ..SglDescriptor::default() };
        for (sqe, status) in [
            (Host::admin(admin::KEEP_ALIVE, 0), Status::SUCCESS),
            (PropertyAccess::get(CSTS, PropertySize::Four), Status::SUCCESS),
            (PropertyAccess::set(CC, Configuration::ENABLED.0), Status::SUCCESS),
            // Asynchronous Event Configuration, Number of Queues
            (Sqe { cdw10: 0x0b.into(), ..Host::admin(admin::SET_FEATURES, 0) }, Status::SUCCESS),
            (Sqe { cdw10: 0x07.into(), ..Host::admin(admin::SET_FEATURES, 0) }, Status::SUCCESS),
            (Sqe { cdw10: 0x07.into(), ..Host::admin(admin::GET_FEATURES, 0) }, Status::SUCCESS),
            (Sqe { cdw10: 0x0b.into(), ..Host::admin(admin::GET_FEATURES, 0) }, Status::SUCCESS),
            // a command with data is told that they are missing
            (Host::admin(admin::IDENTIFY, 0), Status::DATA_SGL_LENGTH_INVALID.dnr()),
            (
                Sqe { cdw10: 0x81.into(), cdw11: 1.into(), ..Host::admin(admin::GET_FEATURES, 0) },
                Status::DATA_SGL_LENGTH_INVALID.dnr(),
            ),
            (Host::admin(admin::GET_LOG_PAGE, 0), Status::DATA_SGL_LENGTH_INVALID.dnr()),
        ] {
            let answer = host.command(&Sqe { sgl1, ..sqe });
            assert_eq!(answer.status, status, "{kind:#x} {:#x} {:?}", sqe.opc, sqe.cdw10);
        }
        let odd = !matches!(kind, 0x5a | 0x01);
        let told = host.controller.poll_tolerance();
        assert_eq!(told, odd.then_some(Tolerance::DescriptorType), "{kind:#x}");
        assert_eq!(host.controller.poll_tolerance(), None, "once");
        // with a length, the type counts
        let sgl1 = SglDescriptor { kind, length: 4096.into(), ..SglDescriptor::default() };
        let sqe = Sqe { sgl1, ..Host::admin(admin::IDENTIFY, 0) };
        let expected = if kind == 0x5a {
            Status::INVALID_NAMESPACE.dnr()
        } else {
            Status::SGL_DESCRIPTOR_TYPE_INVALID.dnr()
        };
        assert_eq!(host.command(&sqe).status, expected, "{kind:#x}");
    }
}

#[test]
fn reset_without_io_queues_is_immediate() {
    let mut host = Host::ready();
    host.set_cc(RESET).ok();
    assert_eq!(host.csts(), ControllerStatus(0));
    assert_eq!(host.actions(), []);
    host.enable();
}

#[test]
fn reset_waits_until_the_io_queues_are_gone() {
    let mut host = Host::ready();
    host.io_connect(&Connect::io(1)).unwrap();
    host.io_connect(&Connect::io(2)).unwrap();
    host.set_cc(RESET).ok();
    assert_eq!(host.actions(), [Action::CloseIoQueues]);
    assert!(host.csts().rdy());
    host.controller.io_queue_closed(QueueId(1));
    host.controller.io_queue_closed(QueueId(2));
    assert!(host.csts().rdy(), "the driver says when nothing goes on any more");
    host.controller.io_queues_drained(host.now);
    assert_eq!(host.csts(), ControllerStatus(0));
    host.enable();
    host.io_connect(&Connect::io(1)).unwrap();
}

#[test]
fn enable_during_a_reset_happens_after_it() {
    let mut host = Host::ready();
    host.io_connect(&Connect::io(1)).unwrap();
    host.set_cc(RESET).ok();
    host.set_cc(Configuration::ENABLED).ok();
    assert_eq!(host.actions(), [Action::CloseIoQueues]);
    host.controller.io_queues_drained(host.now);
    assert_eq!(host.csts(), ControllerStatus(1));
    host.io_connect(&Connect::io(1)).unwrap();
}

#[test]
fn shutdown_is_complete_when_the_io_queues_are_gone() {
    for shn in [1, 2] {
        let mut host = Host::ready();
        host.io_connect(&Connect::io(1)).unwrap();
        host.set_cc(Configuration::ENABLED.with_shn(shn)).ok();
        assert_eq!(host.actions(), [Action::CloseIoQueues]);
        assert_eq!(host.csts(), ControllerStatus::new(true, false, 1));
        host.controller.io_queues_drained(host.now);
        assert_eq!(host.csts(), ControllerStatus::new(true, false, 2));
        host.set_cc(RESET).ok();
        assert_eq!(host.csts(), ControllerStatus(0), "a reset follows a shutdown");
        host.enable();
    }
}

#[test]
fn shutdown_without_io_queues_is_immediate() {
    let mut host = Host::ready();
    host.set_cc(Configuration::ENABLED.with_shn(1)).ok();
    assert_eq!(host.csts().shst(), 2);
    let mut host = Host::connected();
    host.set_cc(Configuration::default().with_shn(1)).ok();
    assert_eq!(host.csts(), ControllerStatus::new(false, false, 2));
}

#[test]
fn reset_and_shutdown_at_once_do_both() {
    let mut host = Host::ready();
    host.io_connect(&Connect::io(1)).unwrap();
    host.set_cc(Configuration::ENABLED.with_shn(1)).ok();
    host.set_cc(RESET).ok();
    assert_eq!(host.actions(), [Action::CloseIoQueues], "once");
    host.controller.io_queues_drained(host.now);
    assert_eq!(host.csts(), ControllerStatus::new(false, false, 2));
}

#[test]
fn psdt_must_say_sgl() {
    let mut host = Host::ready();
    for flags in [0, 0b10 << 6, 0b11 << 6] {
        let sqe = Sqe { flags, ..Host::admin(admin::KEEP_ALIVE, 0) };
        assert_eq!(host.command(&sqe).status, Status::INVALID_FIELD.dnr());
    }
}
