//! Asymmetric Namespace Access: two listeners lead to the same namespaces, and one of them closes.
#![allow(clippy::unwrap_used)] // a test

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::common::{
    Answer, Heard, RawHost, Wants, any_address, block_sqe, config, entrance, eventually, host_nqn,
    listen_for, namespace, nqn, pattern, ram, status, subsystem,
};
use raceline_proto::nvme::ana::AnaState;
use raceline_proto::nvme::opcode::{admin, io};
use raceline_proto::nvme::{Direction, NamespaceId, Nqn, Sqe, Status};
use raceline_target::{ListenerAna, NamespaceConfig, SubsystemConfig, Target, TargetError};

const BS: u32 = 512;

/// A target with two namespaces, and its two listeners.
fn two_paths(cores: usize) -> (Target, SocketAddr, SocketAddr) {
    let target = Target::start(config(cores)).unwrap();
    target.add_subsystem(SubsystemConfig { ana_reporting: true, ..subsystem() }).unwrap();
    for _ in 0..2 {
        target.add_namespace(&nqn(), namespace(ram("1M"))).unwrap();
    }
    let listen = || listen_for(&target, &nqn());
    let (first, second) = (listen(), listen());
    (target, first, second)
}

/// Admin queue and I/O queue of a host that came by a listener.
fn host(address: SocketAddr) -> (RawHost, RawHost) {
    let (admin, cntlid) = RawHost::admin(address, Wants::default());
    (admin, RawHost::io(address, cntlid, 1, Wants::default()))
}

/// Sets feature 0Bh to ANA and namespace changes, and sends a request for an event.
fn ask_for_events(admin: &mut RawHost) -> raceline_proto::nvme::CommandId {
    let sqe = Sqe {
        opc: admin::SET_FEATURES,
        cdw10: 0x0b.into(),
        cdw11: (1 << 11 | 1 << 8).into(),
        ..Sqe::default()
    };
    assert!(status(&admin.plain_command(sqe)).is_success());
    let sqe = Sqe { opc: admin::ASYNC_EVENT_REQUEST, ..Sqe::default() };
    admin.submit(sqe, Direction::None, 0)
}

#[test]
fn commands_of_every_kind_are_refused_by_the_closed_path_and_run_by_the_other() {
    let (target, first, second) = two_paths(2);
    let (mut admin, mut queue) = host(first);
    let (_other_admin, mut other) = host(second);
    let data = pattern(9, 4096);
    assert!(status(&other.write(1, 0, &data, BS)).is_success());
    for (state, refusal) in [
        (AnaState::Inaccessible, Status::ANA_INACCESSIBLE),
        (AnaState::PersistentLoss, Status::ANA_PERSISTENT_LOSS),
        (AnaState::Change, Status::ANA_TRANSITION),
    ] {
        target.set_ana_state(&nqn(), first, Some(1), state).unwrap();
        let refused = |answer: Answer| assert_eq!(status(&answer), refusal, "{state:?}");
        refused(queue.read(1, 0, 8, BS));
        refused(queue.write(1, 0, &pattern(1, 4096), BS));
        refused(queue.write(1, 0, &pattern(1, 65536), BS));
        refused(queue.plain_command(block_sqe(io::FLUSH, 1, 0, 1)));
        refused(queue.plain_command(block_sqe(io::WRITE_ZEROES, 1, 0, 8)));
        refused(queue.write_command(block_sqe(io::COMPARE, 1, 0, 8), &data, true));
        let deallocate =
            Sqe { opc: io::DATASET_MANAGEMENT, nsid: 1.into(), cdw11: 4.into(), ..Sqe::default() };
        refused(queue.write_command(deallocate, &[0; 16], true));
        // another group, a namespace that is not there, admin commands
        assert!(status(&queue.read(2, 0, 8, BS)).is_success());
        assert_eq!(status(&queue.read(3, 0, 8, BS)), Status::INVALID_NAMESPACE.dnr());
        admin.identify_controller();
        assert_eq!(other.read(1, 0, 8, BS).data, data, "nothing was written");
    }
    target.set_ana_state(&nqn(), first, None, AnaState::NonOptimized).unwrap();
    assert_eq!(queue.read(1, 0, 8, BS).data, data);
    assert!(status(&queue.write(1, 0, &pattern(2, 4096), BS)).is_success());
    let states = target.ana_states(&nqn(), first).unwrap();
    assert_eq!(states, [(1, AnaState::NonOptimized), (2, AnaState::NonOptimized)]);
    let states = target.ana_states(&nqn(), second).unwrap();
    assert_eq!(states, [(1, AnaState::Optimized), (2, AnaState::Optimized)]);
    target.shutdown().unwrap();
}

/// A host with another path takes that before its commands fail.
#[test]
fn hosts_hear_that_a_target_stops_before_their_connections_end() {
    let (target, first, second) = two_paths(2);
    let (mut admin, mut queue) = host(first);
    let (mut other, _silent) = host(second);
    let event = ask_for_events(&mut admin);
    let ignored = ask_for_events(&mut other);
    std::thread::scope(|scope| {
        let ends = scope.spawn(|| target.announce_end());
        assert_eq!(admin.wait(event, &[]).cqe.dw0, 0x000c_0302);
        assert_eq!(other.wait(ignored, &[]).cqe.dw0, 0x000c_0302);
        // It is served meanwhile.
        assert!(status(&queue.write(1, 0, &pattern(1, 4096), BS)).is_success());
        let page =
            Sqe { opc: admin::GET_LOG_PAGE, cdw10: (0x0c | 21 << 16).into(), ..Sqe::default() };
        let read = admin.read_command(page, 88);
        assert!(status(&read).is_success());
        assert_eq!(read.data[32], 0x0f, "the state changes");
        // The second host reads nothing, and nobody waits for it for long.
        let notice = ends.join().unwrap();
        assert!(!notice.all_know);
    });
    target.shutdown().unwrap();
}

#[test]
fn no_write_by_a_closed_path_lands_after_the_call() {
    let (target, first, second) = two_paths(2);
    let (_other_admin, mut other) = host(second);
    for round in 0..20 {
        target.set_ana_state(&nqn(), first, None, AnaState::Optimized).unwrap();
        let (running, written) = (AtomicBool::new(true), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let (_admin, mut queue) = host(first);
                while running.load(Ordering::Relaxed) {
                    // in the capsule, and with R2T
                    for len in [512, 16384] {
                        let data = pattern(written.load(Ordering::Relaxed) + 1000 * round, len);
                        match status(&queue.write(1, 0, &data, BS)) {
                            status if status.is_success() => {
                                written.fetch_add(1, Ordering::Relaxed);
                            }
                            status => assert_eq!(status.sct(), 3, "{status}"),
                        }
                    }
                }
            });
            eventually("a write", || written.load(Ordering::Relaxed) > 0);
            target.set_ana_state(&nqn(), first, Some(1), AnaState::Inaccessible).unwrap();
            let then = other.read(1, 0, 32, BS).data;
            for _ in 0..20 {
                std::thread::sleep(Duration::from_millis(1));
                assert_eq!(other.read(1, 0, 32, BS).data, then, "round {round}");
            }
            running.store(false, Ordering::Relaxed);
            writer.join().unwrap();
        });
    }
    target.shutdown().unwrap();
}

tcp_only! {
    #[test]
    fn a_command_that_waits_for_its_data_holds_the_change_up() {
        let (target, first, second) = two_paths(1);
        let (_admin, mut queue) = host(first);
        let (_other_admin, mut other) = host(second);
        let data = pattern(4, 65536);
        let write = block_sqe(io::WRITE, 1, 0, 128);
        let cid = queue.submit(write, Direction::HostToController, 65536);
        let grant = match queue.listen() {
            Heard::SendData(grant) => grant,
            heard => panic!("{heard:?}"),
        };
        std::thread::scope(|scope| {
            let change =
                scope.spawn(|| target.set_ana_state(&nqn(), first, Some(1), AnaState::Inaccessible));
            // what comes now is refused already
            eventually("the state changes", || {
                status(&queue.read(1, 0, 8, BS)) == Status::ANA_TRANSITION
            });
            std::thread::sleep(Duration::from_millis(100));
            assert!(!change.is_finished(), "a write can still land");
            assert!(status(&other.read(1, 0, 8, BS)).is_success());
            queue.send_data(&grant, &data);
            assert!(status(&queue.wait(cid, &data)).is_success());
            change.join().unwrap().unwrap();
        });
        assert_eq!(other.read(1, 0, 128, BS).data, data);
        assert_eq!(status(&queue.read(1, 0, 8, BS)), Status::ANA_INACCESSIBLE);
        target.shutdown().unwrap();
    }
}

#[test]
fn hosts_are_told_by_the_listener_that_changes() {
    let (target, first, second) = two_paths(2);
    let (mut admin, _queue) = host(first);
    let (mut other, _other_queue) = host(second);
    let event = ask_for_events(&mut admin);
    let quiet = ask_for_events(&mut other);
    target.set_ana_state(&nqn(), first, Some(2), AnaState::NonOptimized).unwrap();
    assert_eq!(admin.wait(event, &[]).cqe.dw0, 0x000c_0302);
    let page = Sqe { opc: admin::GET_LOG_PAGE, cdw10: (0x0c | 21 << 16).into(), ..Sqe::default() };
    let read = admin.read_command(page, 88);
    assert!(status(&read).is_success());
    assert_eq!((read.data[8], read.data[16], read.data[32]), (2, 1, 1), "first group");
    assert_eq!((read.data[52], read.data[68], read.data[84]), (2, 2, 2), "second group");
    // A group of its own: the namespace changes as well, for all hosts.
    target.set_ana_group(&nqn(), NamespaceId(2), 30).unwrap();
    assert_eq!(other.wait(quiet, &[]).cqe.dw0, 0x0004_0002);
    assert_eq!(target.ana_states(&nqn(), first).unwrap()[1], (30, AnaState::Optimized));
    target.shutdown().unwrap();
}

#[test]
fn a_listener_begins_in_its_state() {
    let (target, _first, _second) = two_paths(1);
    let states =
        ListenerAna { all: AnaState::Inaccessible, groups: [(2, AnaState::NonOptimized)].into() };
    let third =
        target.add_subsystem_listener_in(&nqn(), any_address(), entrance(), &states).unwrap();
    let (_admin, mut queue) = host(third);
    assert_eq!(status(&queue.read(1, 0, 8, BS)), Status::ANA_INACCESSIBLE);
    assert!(status(&queue.read(2, 0, 8, BS)).is_success());
    // also for namespaces that come later
    let late = NamespaceConfig { ana_group: Some(7), ..namespace(ram("1M")) };
    assert_eq!(target.add_namespace(&nqn(), late).unwrap(), NamespaceId(3));
    assert_eq!(status(&queue.read(3, 0, 8, BS)), Status::ANA_INACCESSIBLE);
    let shown = target.ana_states(&nqn(), third).unwrap();
    assert_eq!(shown, [1, 2, 7].map(|group| (group, states.state(group))));
    target.shutdown().unwrap();
}

#[test]
fn what_is_not_there_is_refused_by_name() {
    let (target, first, _) = two_paths(1);
    let plain = Nqn::new("nqn.2026-01.io.raceline:plain").unwrap();
    target.add_subsystem(SubsystemConfig { nqn: plain.clone(), ..subsystem() }).unwrap();
    let set = |nqn: &Nqn, address, group| {
        target.set_ana_state(nqn, address, group, AnaState::Inaccessible).unwrap_err()
    };
    assert!(matches!(set(&plain, first, None), TargetError::NoAna(_)));
    assert!(matches!(set(&nqn(), first, Some(0)), TargetError::AnaGroup { .. }));
    assert!(matches!(set(&nqn(), first, Some(5000)), TargetError::AnaGroup { .. }));
    assert!(matches!(set(&host_nqn(), first, None), TargetError::NoSubsystem(_)));
    let nowhere = "127.0.0.1:1".parse().unwrap();
    assert!(matches!(set(&nqn(), nowhere, None), TargetError::NoListener(_)));
    let moved = target.set_ana_group(&nqn(), NamespaceId(9), 1);
    assert!(matches!(moved, Err(TargetError::NoNamespace { .. })), "{moved:?}");
    let late = NamespaceConfig { ana_group: Some(0), ..namespace(ram("1M")) };
    let refused = target.add_namespace(&nqn(), late);
    assert!(matches!(refused, Err(TargetError::AnaGroup { .. })), "{refused:?}");
    let late = NamespaceConfig { ana_group: Some(1), ..namespace(ram("1M")) };
    let refused = target.add_namespace(&plain, late);
    assert!(matches!(refused, Err(TargetError::NoAna(_))), "{refused:?}");
    target.shutdown().unwrap();
}
