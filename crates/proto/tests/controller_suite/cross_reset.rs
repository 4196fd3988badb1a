//! Cross-Controller Reset: what the command may name, what its log page shows, and when the host is told.

use raceline_proto::controller::{Action, AdminOutcome, Limits, MAX_CROSS_RESETS, Subsystem};
use raceline_proto::nvme::cross_reset::{
    ControllerInstance, CrossResetLogEntry, CrossResetLogHeader, LSP_REMOVE_COMPLETED, ResetStatus,
};
use raceline_proto::nvme::event::{AsyncEvent, CONFIG_CROSS_CONTROLLER_RESET};
use raceline_proto::nvme::identify::{IdentifyController, cns};
use raceline_proto::nvme::log::{EFFECT_SUPPORTED, EffectsLog, GetLogPage, lid};
use raceline_proto::nvme::opcode::admin;
use raceline_proto::nvme::property::Configuration;
use raceline_proto::nvme::{ControllerId, SglDescriptor, Sqe, Status};
use zerocopy::FromBytes;

use super::support::{Host, INSTANCE, snapshot, subsystem};

/// A feature identifier: asynchronous events.
const EVENTS: u8 = 0x0b;

fn other(cntlid: u16) -> ControllerInstance {
    ControllerInstance { cntlid: ControllerId(cntlid), ciu: 9, cirn: 0xfeed_0000_0000_0001 }
}

fn command(instance: ControllerInstance) -> Sqe {
    Sqe { flags: Sqe::PSDT_SGL, sgl1: SglDescriptor::transport(0), ..instance.reset() }
}

/// The host asks for a reset, which begins.
fn begin(host: &mut Host, instance: ControllerInstance) {
    let outcome = host.submit(&command(instance));
    assert_eq!(outcome, Ok(AdminOutcome::CrossReset(instance)));
    host.controller.cross_reset_begun(instance);
}

/// The log page, as (number, CIU, status).
fn page(host: &mut Host, lsp: u8) -> Vec<(u16, u8, u8)> {
    let len = 4096;
    let mut sqe = Host::admin(admin::GET_LOG_PAGE, len);
    let lid = lid::CROSS_CONTROLLER_RESET;
    GetLogPage { lid, lsp, retain_event: false, len_bytes: len.into(), offset: 0, csi: 0 }
        .write(&mut sqe);
    let data = host.command(&sqe).ok().data;
    let (header, mut rest) = CrossResetLogHeader::read_from_prefix(&data).unwrap();
    let mut entries = Vec::new();
    for _ in 0..header.entries.get() {
        let (entry, after) = CrossResetLogEntry::read_from_prefix(rest).unwrap();
        assert_eq!(entry.active_cntlid.get(), INSTANCE.cntlid.0);
        entries.push((entry.cntlid.get(), entry.ciu, entry.status));
        rest = after;
    }
    assert!(rest.iter().all(|byte| *byte == 0));
    entries
}

#[test]
fn identify_names_the_instance_and_the_time() {
    let limits = Limits { quiesce_ms: 5000, ..Limits::DEFAULT };
    let mut host = Host::ready_with(Subsystem { limits, ..subsystem() });
    let data = host.identify(cns::CONTROLLER, 0).ok().data;
    let controller = IdentifyController::read_from_bytes(&data).unwrap();
    assert_eq!(controller.cqt.get(), 5000);
    assert_eq!(controller.ciu, INSTANCE.ciu);
    assert_eq!(controller.cirn.get(), INSTANCE.cirn);
    assert_eq!(controller.ccrl, MAX_CROSS_RESETS);
    let bit = CONFIG_CROSS_CONTROLLER_RESET;
    assert_eq!(controller.oaes.get() & bit, bit);
    let data = host.log(lid::EFFECTS, 0, 4096, true).ok().data;
    let effects = EffectsLog::read_from_bytes(&data).unwrap();
    assert_eq!(effects.acs[0x38].get(), EFFECT_SUPPORTED);
}

#[test]
fn a_discovery_controller_resets_no_other() {
    let mut host = Host::discovery(&snapshot(1, subsystem()), 5000, "192.0.2.1:4420");
    let data = host.identify(cns::CONTROLLER, 0).ok().data;
    let controller = IdentifyController::read_from_bytes(&data).unwrap();
    assert_eq!((controller.ccrl, controller.cirn.get(), controller.cqt.get()), (0, 0, 0));
    assert_eq!(host.command(&command(other(9))).status, Status::INVALID_OPCODE.dnr());
    let log = host.log(lid::CROSS_CONTROLLER_RESET, 0, 8, true);
    assert_eq!(log.status, Status::INVALID_LOG_PAGE.dnr());
}

#[test]
fn a_controller_resets_neither_itself_nor_an_instance_without_a_number() {
    let mut host = Host::ready();
    for instance in [
        INSTANCE,
        ControllerInstance { cirn: 1, ..INSTANCE },
        ControllerInstance { cirn: 0, ..other(9) },
    ] {
        let status = host.command(&command(instance)).status;
        assert_eq!(status, Status::INVALID_CONTROLLER_ID.dnr(), "{instance:?}");
    }
    // before it is enabled
    let mut host = Host::connected();
    assert_eq!(host.command(&command(other(9))).status, Status::COMMAND_SEQUENCE_ERROR.dnr());
}

#[test]
fn the_log_page_shows_a_reset_from_its_begin_to_its_removal() {
    let mut host = Host::ready();
    assert_eq!(page(&mut host, 0), []);
    begin(&mut host, other(9));
    begin(&mut host, other(10));
    assert_eq!(host.command(&command(other(9))).status, Status::CCR_IN_PROGRESS);
    assert_eq!(page(&mut host, 0), [(9, 9, 0), (10, 9, 0)]);
    host.controller.cross_reset_ended(other(9), ResetStatus::Succeeded);
    host.controller.cross_reset_ended(other(77), ResetStatus::Succeeded);
    assert_eq!(page(&mut host, 0), [(9, 9, 1), (10, 9, 0)]);
    assert_eq!(page(&mut host, LSP_REMOVE_COMPLETED), [(9, 9, 1), (10, 9, 0)]);
    assert_eq!(page(&mut host, 0), [(10, 9, 0)]);
    host.controller.cross_reset_ended(other(10), ResetStatus::Failed);
    assert_eq!(page(&mut host, 0), [(10, 9, 2)]);
    // It may be asked for again, and a reset of this controller forgets all.
    begin(&mut host, other(10));
    assert_eq!(page(&mut host, 0), [(10, 9, 0)]);
    host.set_cc(Configuration(Configuration::ENABLED.0 & !1)).ok();
    host.enable();
    assert_eq!(page(&mut host, 0), []);
}

#[test]
fn no_more_resets_at_a_time_than_it_says() {
    let mut host = Host::ready();
    for cntlid in 0..u16::from(MAX_CROSS_RESETS) {
        begin(&mut host, other(100 + cntlid));
    }
    assert_eq!(host.command(&command(other(9))).status, Status::CCR_LIMIT_EXCEEDED);
    host.controller.cross_reset_ended(other(100), ResetStatus::Succeeded);
    begin(&mut host, other(9));
}

#[test]
fn the_host_is_told_once_until_it_reads_the_page() {
    let mut host = Host::ready();
    host.set_feature(EVENTS, CONFIG_CROSS_CONTROLLER_RESET).ok();
    let event = host.request_event();
    host.request_event();
    begin(&mut host, other(9));
    begin(&mut host, other(10));
    assert_eq!(host.actions(), []);
    let told = |cid| Action::CompleteAer {
        cid,
        status: Status::SUCCESS,
        dw0: AsyncEvent::CROSS_CONTROLLER_RESET.to_dw0(),
    };
    host.controller.cross_reset_ended(other(9), ResetStatus::Succeeded);
    assert_eq!(host.actions(), [told(event)]);
    host.controller.cross_reset_ended(other(10), ResetStatus::Failed);
    assert_eq!(host.actions(), [], "it is masked");
    assert_eq!(page(&mut host, 0), [(9, 9, 1), (10, 9, 2)]);
    assert_eq!(host.actions(), [], "the page has shown both");
}
