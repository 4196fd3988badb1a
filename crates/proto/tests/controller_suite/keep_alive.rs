//! Keep alive and the other reasons for which an association ends, in virtual time.

use std::time::Duration;

use raceline_proto::controller::{
    ASSOCIATION_TIMEOUT, AbandonReason, Action, DISCOVERY_IDLE_TIMEOUT, HostAccess,
    TRAFFIC_REPORT_INTERVAL, TargetSnapshot,
};
use raceline_proto::nvme::Status;
use raceline_proto::nvme::feature::fid;
use raceline_proto::nvme::property::Configuration;
use std::sync::Arc;

use super::support::{Connect, Host, SUBNQN, listener, nqn, snapshot, subsystem};

const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);

fn abandoned(reason: AbandonReason) -> Vec<Action> {
    vec![Action::Abandon { reason }]
}

#[track_caller]
fn assert_expires_after(host: &mut Host, after: Duration, reason: AbandonReason) {
    host.advance(after - MILLISECOND);
    assert_eq!(host.actions(), []);
    host.advance(MILLISECOND);
    assert_eq!(host.actions(), abandoned(reason));
    assert!(host.controller.poll_timeout().is_none(), "once");
}

#[test]
fn silence_ends_the_association() {
    let mut host = Host::ready();
    host.request_event();
    host.io_connect(&Connect::io(1)).unwrap();
    let timeout = 5 * SECOND + TRAFFIC_REPORT_INTERVAL;
    assert_expires_after(&mut host, timeout, AbandonReason::KeepAliveExpired);
    assert!(host.csts().cfs(), "fatal status");
    assert!(host.io_connect(&Connect::io(2)).is_err());
    assert_eq!(host.set_cc(Configuration::default()).status, Status::ABORTED_SQ_DELETION);
    assert_eq!(host.keep_alive().status, Status::ABORTED_SQ_DELETION);
    assert_eq!(host.actions(), [], "abandon is the last action");
}

#[test]
fn keep_alive_restarts_the_timer() {
    let mut host = Host::ready();
    for _ in 0..100 {
        host.advance(5 * SECOND);
        host.keep_alive().ok();
    }
    assert_eq!(host.actions(), []);
    let timeout = 5 * SECOND + TRAFFIC_REPORT_INTERVAL;
    assert_expires_after(&mut host, timeout, AbandonReason::KeepAliveExpired);
}

#[test]
fn any_command_restarts_the_timer() {
    let mut host = Host::ready();
    for _ in 0..10 {
        host.advance(4 * SECOND);
        host.identify(1, 0).ok();
        host.advance(4 * SECOND);
        host.controller.command_seen(host.now);
    }
    assert_eq!(host.actions(), []);
    // a report of an earlier command changes nothing
    host.controller.command_seen(host.start);
    let timeout = 5 * SECOND + TRAFFIC_REPORT_INTERVAL;
    assert_expires_after(&mut host, timeout, AbandonReason::KeepAliveExpired);
}

#[test]
fn kato_is_rounded_up() {
    let mut connect = Connect::admin(SUBNQN);
    connect.words.kato = 1;
    let mut host = Host::connect_to(&connect, &snapshot(1, subsystem()), "192.0.2.1:4420");
    host.enable();
    let timeout = SECOND + TRAFFIC_REPORT_INTERVAL;
    assert_expires_after(&mut host, timeout, AbandonReason::KeepAliveExpired);
}

#[test]
fn kato_is_what_the_target_rounds_to() {
    let mut slow = subsystem();
    (slow.limits.keep_alive_granularity, slow.limits.min_keep_alive_ms) = (50, 12_000);
    let slow = snapshot(1, slow);
    for (asked, seconds) in [(1, 15), (15_000, 15), (15_001, 20), (0, 0)] {
        let mut connect = Connect::admin(SUBNQN);
        connect.words.kato = asked;
        let mut host = Host::connect_to(&connect, &slow, "192.0.2.1:4420");
        host.enable();
        assert_eq!(host.identify(1, 0).ok().data[320..322], [50, 0], "KAS");
        let kato = host.get_feature(fid::KEEP_ALIVE_TIMER, 0, 0, 0).ok().dw0;
        assert_eq!(kato, 1000 * seconds, "{asked}");
        if seconds > 0 {
            let timeout = seconds * SECOND + TRAFFIC_REPORT_INTERVAL;
            assert_expires_after(&mut host, timeout, AbandonReason::KeepAliveExpired);
        }
        let mut host = Host::connect_to(&connect, &slow, "192.0.2.1:4420");
        host.enable();
        host.set_feature(fid::KEEP_ALIVE_TIMER, 15_001).ok();
        assert_eq!(host.get_feature(fid::KEEP_ALIVE_TIMER, 0, 0, 0).ok().dw0, 20_000);
    }
}

#[test]
fn kato_0_is_no_timeout() {
    let mut connect = Connect::admin(SUBNQN);
    connect.words.kato = 0;
    let mut host = Host::connect_to(&connect, &snapshot(1, subsystem()), "192.0.2.1:4420");
    host.enable();
    assert_eq!(host.controller.poll_timeout(), None);
    host.advance(86_400 * SECOND);
    assert_eq!(host.actions(), []);
}

#[test]
fn set_features_changes_kato_on_the_fly() {
    let mut host = Host::ready();
    host.set_feature(fid::KEEP_ALIVE_TIMER, 0).ok();
    assert_eq!(host.controller.poll_timeout(), None, "0 really stops it");
    host.advance(3600 * SECOND);
    host.set_feature(fid::KEEP_ALIVE_TIMER, 20_000).ok();
    let timeout = 20 * SECOND + TRAFFIC_REPORT_INTERVAL;
    assert_expires_after(&mut host, timeout, AbandonReason::KeepAliveExpired);
}

#[test]
fn shutdown_stops_keep_alive() {
    let mut host = Host::ready();
    host.set_cc(Configuration::ENABLED.with_shn(1)).ok();
    // but the host must leave in the end
    assert_expires_after(&mut host, ASSOCIATION_TIMEOUT, AbandonReason::NotEnabled);
}

#[test]
fn nothing_expires_while_queues_drain() {
    for cc in [Configuration::default(), Configuration::ENABLED.with_shn(1)] {
        let mut host = Host::ready();
        host.io_connect(&Connect::io(1)).unwrap();
        host.set_cc(cc).ok();
        assert_eq!(host.actions(), [Action::CloseIoQueues]);
        host.advance(3600 * SECOND);
        host.controller.handle_timeout(host.now);
        assert_eq!(host.actions(), []);
        host.controller.io_queues_drained(host.now);
        host.advance(SECOND);
        assert_eq!(host.actions(), [], "the timers start anew");
        assert!(host.controller.poll_timeout().is_some());
    }
}

#[test]
fn a_controller_that_is_never_enabled_ends() {
    let mut connect = Connect::admin(SUBNQN);
    connect.words.kato = 0;
    let mut host = Host::connect_to(&connect, &snapshot(1, subsystem()), "192.0.2.1:4420");
    assert_expires_after(&mut host, ASSOCIATION_TIMEOUT, AbandonReason::NotEnabled);
}

#[test]
fn a_controller_that_is_disabled_for_long_ends() {
    let mut host = Host::ready();
    host.set_feature(fid::KEEP_ALIVE_TIMER, 0).ok();
    host.advance(1000 * SECOND);
    host.set_cc(Configuration::default()).ok();
    assert_expires_after(&mut host, ASSOCIATION_TIMEOUT, AbandonReason::NotEnabled);
}

#[test]
fn an_idle_discovery_controller_ends() {
    let mut host = Host::discovery(&snapshot(1, subsystem()), 0, "192.0.2.1:8009");
    host.advance(100 * SECOND);
    host.keep_alive().ok();
    assert_expires_after(&mut host, DISCOVERY_IDLE_TIMEOUT, AbandonReason::DiscoveryIdle);
}

#[test]
fn a_persistent_discovery_controller_has_its_kato() {
    let mut host = Host::discovery(&snapshot(1, subsystem()), 30_000, "192.0.2.1:8009");
    let timeout = 30 * SECOND + TRAFFIC_REPORT_INTERVAL;
    assert_expires_after(&mut host, timeout, AbandonReason::KeepAliveExpired);
}

#[test]
fn a_removed_subsystem_ends_its_associations() {
    let mut host = Host::ready();
    host.request_event();
    let listeners = vec![listener("192.0.2.1:4420", 1)];
    let empty = TargetSnapshot { generation: 2, listeners, ..TargetSnapshot::default() };
    host.controller.handle_snapshot(Arc::new(empty));
    assert_eq!(host.actions(), abandoned(AbandonReason::SubsystemRemoved));
    host.controller.handle_snapshot(snapshot(3, subsystem()));
    assert_eq!(host.actions(), []);
}

#[test]
fn a_host_that_is_not_allowed_any_more_ends() {
    let mut host = Host::ready();
    let mut closed = subsystem();
    closed.hosts = HostAccess::List(vec![nqn(super::support::OTHER_HOSTNQN)]);
    host.controller.handle_snapshot(snapshot(2, closed));
    assert_eq!(host.actions(), abandoned(AbandonReason::HostRemoved));
}
