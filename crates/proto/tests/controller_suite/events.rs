//! Asynchronous Event Requests and Abort.

use raceline_proto::controller::{Action, AdminOutcome};
use raceline_proto::nvme::feature::fid;
use raceline_proto::nvme::log::lid;
use raceline_proto::nvme::opcode::admin;
use raceline_proto::nvme::property::Configuration;
use raceline_proto::nvme::{CommandId, QueueId, Sqe, Status};

use super::support::{Host, namespace, snapshot, subsystem};

const NAMESPACE_CHANGED: u32 = 0x0004_0002;

fn completed(cid: CommandId) -> Action {
    Action::CompleteAer { cid, status: Status::SUCCESS, dw0: NAMESPACE_CHANGED }
}

/// A host that wants to hear of namespaces.
fn listening() -> Host {
    let mut host = Host::ready();
    host.set_feature(fid::ASYNC_EVENT_CONFIG, 1 << 8).ok();
    host
}

/// The target grows or shrinks namespace 1.
fn change(host: &mut Host, generation: u64) {
    let mut changed = subsystem();
    changed.namespaces[0].block_count = 1000 + generation;
    host.controller.handle_snapshot(snapshot(generation, changed));
}

fn abort(host: &mut Host, sqid: u16, cid: u16) -> AdminOutcome {
    let cdw10 = u32::from(cid) << 16 | u32::from(sqid);
    host.submit(&Sqe { cdw10: cdw10.into(), ..Host::admin(admin::ABORT, 0) }).unwrap()
}

#[test]
fn a_namespace_change_completes_a_request() {
    let mut host = listening();
    let cid = host.request_event();
    assert_eq!(host.actions(), []);
    change(&mut host, 2);
    assert_eq!(host.actions(), [completed(cid)]);
}

#[test]
fn an_added_and_a_removed_namespace_are_changes() {
    let mut host = listening();
    let cid = host.request_event();
    let mut more = subsystem();
    more.namespaces.push(namespace(3));
    host.controller.handle_snapshot(snapshot(2, more));
    assert_eq!(host.actions(), [completed(cid)]);
    host.log(lid::CHANGED_NAMESPACES, 0, 4096, false).ok();
    let cid = host.request_event();
    host.controller.handle_snapshot(snapshot(3, subsystem()));
    assert_eq!(host.actions(), [completed(cid)]);
}

#[test]
fn an_event_is_masked_until_its_log_is_read() {
    let mut host = listening();
    let (first, second) = (host.request_event(), host.request_event());
    change(&mut host, 2);
    change(&mut host, 3);
    assert_eq!(host.actions(), [completed(first)]);
    // RAE 1 does not unmask
    host.log(lid::CHANGED_NAMESPACES, 0, 4096, true).ok();
    change(&mut host, 4);
    assert_eq!(host.actions(), []);
    // the reading shows all changes so far, so they are not reported again
    host.log(lid::CHANGED_NAMESPACES, 0, 4096, false).ok();
    assert_eq!(host.actions(), []);
    change(&mut host, 5);
    assert_eq!(host.actions(), [completed(second)]);
}

#[test]
fn an_event_waits_for_a_request() {
    let mut host = listening();
    change(&mut host, 2);
    change(&mut host, 3);
    assert_eq!(host.actions(), []);
    let cid = host.request_event();
    assert_eq!(host.actions(), [completed(cid)]);
    host.request_event();
    assert_eq!(host.actions(), [], "one event");
}

#[test]
fn an_event_that_nobody_asked_for_is_dropped() {
    let mut host = Host::ready();
    host.request_event();
    change(&mut host, 2);
    host.set_feature(fid::ASYNC_EVENT_CONFIG, 1 << 8).ok();
    assert_eq!(host.actions(), []);
    // turned off while one is pending
    let mut host = listening();
    change(&mut host, 2);
    host.set_feature(fid::ASYNC_EVENT_CONFIG, 0).ok();
    host.set_feature(fid::ASYNC_EVENT_CONFIG, 1 << 8).ok();
    host.request_event();
    assert_eq!(host.actions(), []);
}

#[test]
fn four_requests_and_no_more() {
    let mut host = listening();
    let first = host.request_event();
    for _ in 0..3 {
        host.request_event();
    }
    let fifth = Host::admin(admin::ASYNC_EVENT_REQUEST, 0);
    assert_eq!(host.command(&fifth).status, Status::AER_LIMIT_EXCEEDED.dnr());
    change(&mut host, 2);
    assert_eq!(host.actions(), [completed(first)]);
    host.request_event();
    assert_eq!(host.command(&fifth).status, Status::AER_LIMIT_EXCEEDED.dnr());
}

#[test]
fn abort_of_an_event_request() {
    let mut host = listening();
    let (first, second) = (host.request_event(), host.request_event());
    assert_eq!(abort(&mut host, 0, first.0), AdminOutcome::success(0));
    let status = Status::ABORT_REQUESTED;
    assert_eq!(host.actions(), [Action::CompleteAer { cid: first, status, dw0: 0 }]);
    change(&mut host, 2);
    assert_eq!(host.actions(), [completed(second)]);
    // again: it is not here any more
    let outcome = abort(&mut host, 0, first.0);
    assert_eq!(outcome, AdminOutcome::Abort { sqid: QueueId::ADMIN, cid: first });
}

#[test]
fn abort_of_other_commands_is_for_the_driver() {
    let mut host = listening();
    let held = host.request_event();
    let outcome = abort(&mut host, 3, held.0);
    assert_eq!(outcome, AdminOutcome::Abort { sqid: QueueId(3), cid: held });
    assert_eq!(host.actions(), []);
}

#[test]
fn a_reset_aborts_event_requests() {
    let mut host = listening();
    let (first, second) = (host.request_event(), host.request_event());
    host.set_cc(Configuration::default()).ok();
    let aborted = |cid| Action::CompleteAer { cid, status: Status::ABORTED_SQ_DELETION, dw0: 0 };
    assert_eq!(host.actions(), [aborted(first), aborted(second)]);
    host.enable();
    change(&mut host, 2);
    assert_eq!(host.actions(), [], "neither request nor configuration is left");
}

#[test]
fn event_requests_survive_time() {
    let mut host = listening();
    host.set_feature(fid::KEEP_ALIVE_TIMER, 0).ok();
    let cid = host.request_event();
    host.advance(std::time::Duration::from_secs(86_400));
    assert_eq!(host.actions(), []);
    change(&mut host, 2);
    assert_eq!(host.actions(), [completed(cid)]);
}

#[test]
fn a_forgotten_request_is_not_answered_and_makes_room() {
    let mut host = listening();
    let first = host.request_event();
    let second = host.request_event();
    host.request_event();
    host.request_event();
    assert!(host.controller.forget_event_request(first));
    assert!(!host.controller.forget_event_request(first), "once");
    host.request_event();
    assert_eq!(host.actions(), []);
    change(&mut host, 2);
    assert_eq!(host.actions(), [completed(second)]);
}
