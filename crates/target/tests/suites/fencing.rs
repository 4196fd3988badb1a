//! Cross-Controller Reset, and what a lost connection leaves at devices: two paths of one host to one namespace.
#![allow(clippy::unwrap_used)] // a test

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{
    PATIENCE, RawHost, Wants, block_sqe, config, eventually, namespace, nqn, pattern, ram, status,
    subsystem,
};
use raceline_bdev::{InjectBdev, InjectControl, Injected, Injection, OpKind};
use raceline_proto::nvme::cross_reset::{ControllerInstance, IMMEDIATE, ResetStatus};
use raceline_proto::nvme::opcode::{admin, io};
use raceline_proto::nvme::{CommandId, ControllerId, Direction, Nqn, QueueId, Sqe, Status};
use raceline_target::{Target, TargetConfig};

const BS: u32 = 512;
/// What the target advertises where a device hangs for longer.
const QUIESCE: Duration = Duration::from_secs(3);

/// A target over a device whose writes can be held: for as long as a test may take.
fn start(cores: usize) -> (Target, SocketAddr, InjectControl) {
    start_with(cores, PATIENCE)
}

fn start_with(cores: usize, quiesce_time: Duration) -> (Target, SocketAddr, InjectControl) {
    let target = Target::start(TargetConfig { quiesce_time, ..config(cores) }).unwrap();
    target.add_subsystem(subsystem()).unwrap();
    let (device, control) = InjectBdev::new(ram("1M"));
    target.add_namespace(&nqn(), namespace(Arc::new(device))).unwrap();
    let address = crate::common::listen(&target);
    (target, address, control)
}

fn hold_a_write(control: &InjectControl) {
    let injection = Injection { what: Injected::Held, count: 1, depth: 0 };
    control.inject(OpKind::Write, injection);
}

/// One path: its queues, and the instance of its controller.
struct Path {
    admin: RawHost,
    queue: RawHost,
    instance: ControllerInstance,
}

fn path(address: SocketAddr) -> Path {
    path_with(address, PATIENCE)
}

/// The same, to a target that advertises this time.
fn path_with(address: SocketAddr, quiesce_time: Duration) -> Path {
    let (mut admin, cntlid) = RawHost::admin(address, Wants::default());
    let identify = admin.identify_controller();
    let instance = ControllerInstance {
        cntlid,
        ciu: identify[135],
        cirn: u64::from_le_bytes(*identify[136..].first_chunk().unwrap()),
    };
    let cqt = u16::from_le_bytes([identify[386], identify[387]]);
    assert_eq!(u128::from(cqt), quiesce_time.as_millis(), "CQT");
    assert!(identify[1807] > 0 && instance.cirn != 0);
    let queue = RawHost::io(address, cntlid, 1, Wants::default());
    Path { admin, queue, instance }
}

/// The log page: number of the controller, its uniquifier, how far the reset is.
fn log(admin: &mut RawHost) -> Vec<(ControllerId, u8, ResetStatus)> {
    let sqe = Sqe { opc: admin::GET_LOG_PAGE, cdw10: (0x1e | 63 << 16).into(), ..Sqe::default() };
    let page = admin.read_command(sqe, 256).data;
    let count = usize::from(u16::from_le_bytes([page[0], page[1]]));
    let entries = page[8..].chunks_exact(8).take(count);
    entries
        .map(|entry| {
            let cntlid = ControllerId(u16::from_le_bytes([entry[0], entry[1]]));
            (cntlid, entry[2], ResetStatus::from_wire(entry[6]).unwrap())
        })
        .collect()
}

/// A write of one block that stays at the device.
fn write_held(path: &mut Path, control: &InjectControl, slba: u64, data: &[u8]) -> CommandId {
    hold_a_write(control);
    let write = block_sqe(io::WRITE, 1, slba, 1);
    let cid = path.queue.submit_in_capsule(write, data);
    // It has come when a later command of the queue is answered.
    assert!(status(&path.queue.read(1, 8, 1, BS)).is_success());
    cid
}

#[test]
fn a_controller_ends_with_all_that_it_has_started_before_the_reset_succeeds() {
    let (target, address, control) = start(2);
    let (mut lost, mut other) = (path(address), path(address));
    let old = pattern(1, 512);
    write_held(&mut lost, &control, 0, &old);
    let sqe = Sqe {
        opc: admin::SET_FEATURES,
        cdw10: 0x0b.into(),
        cdw11: (1 << 20).into(),
        ..Sqe::default()
    };
    assert!(status(&other.admin.plain_command(sqe)).is_success());
    let sqe = Sqe { opc: admin::ASYNC_EVENT_REQUEST, ..Sqe::default() };
    let event = other.admin.submit(sqe, Direction::None, 0);
    let reset = other.admin.plain_command(lost.instance.reset());
    assert!(status(&reset).is_success());
    assert_eq!(reset.cqe.dw0 & IMMEDIATE, 0, "a write is at the device");
    // Its connections are closed at once.
    assert!(lost.admin.until_closed().is_none() && lost.queue.until_closed().is_none());
    let ControllerInstance { cntlid, ciu, .. } = lost.instance;
    assert_eq!(log(&mut other.admin), [(cntlid, ciu, ResetStatus::InProgress)]);
    let again = other.admin.plain_command(lost.instance.reset());
    assert_eq!(status(&again), Status::CCR_IN_PROGRESS);
    control.resume();
    assert_eq!(other.admin.wait(event, &[]).cqe.dw0, 0x001e_f402);
    assert_eq!(log(&mut other.admin), [(cntlid, ciu, ResetStatus::Succeeded)]);
    assert_eq!(other.queue.read(1, 0, 1, BS).data, old);
    // From here on it is known to have ended.
    let again = other.admin.plain_command(lost.instance.reset());
    assert!(status(&again).is_success());
    assert_eq!(again.cqe.dw0, IMMEDIATE);
    target.shutdown().unwrap();
}

#[test]
fn a_device_that_hangs_holds_the_association_and_later_writes() {
    let (target, address, control) = start_with(2, QUIESCE);
    let path = |address| path_with(address, QUIESCE);
    let (mut lost, mut other) = (path(address), path(address));
    let (old, new) = (pattern(1, 512), pattern(2, 512));
    write_held(&mut lost, &control, 0, &old);
    let begun = Instant::now();
    assert!(status(&other.admin.plain_command(lost.instance.reset())).is_success());
    let ControllerInstance { cntlid, ciu, .. } = lost.instance;
    let failed = [(cntlid, ciu, ResetStatus::Failed)];
    eventually("the reset is given up", || log(&mut other.admin) == failed);
    assert!(begun.elapsed() >= QUIESCE, "{:?}", begun.elapsed());
    assert!(target.controllers(&nqn()).iter().any(|held| held.cntlid == cntlid), "it is held");
    // The host writes by the other path nevertheless: that waits; another block does not.
    let late = other.queue.submit_in_capsule(block_sqe(io::WRITE, 1, 0, 1), &new);
    assert!(status(&other.queue.write(1, 1, &new, BS)).is_success());
    std::thread::sleep(Duration::from_millis(100));
    let answered = other
        .queue
        .heard
        .iter()
        .any(|heard| matches!(heard, crate::common::Heard::Response(cqe) if cqe.cid == late));
    assert!(!answered, "it would be overwritten by the older one");
    assert!(status(&other.queue.read(1, 0, 1, BS)).is_success(), "reads do not wait");
    // The reset can be asked for again, and succeeds when the device answers.
    assert_eq!(other.admin.plain_command(lost.instance.reset()).cqe.dw0, 0);
    control.resume();
    assert!(status(&other.queue.wait(late, &[])).is_success());
    assert_eq!(other.queue.read(1, 0, 1, BS).data, new);
    let succeeded = [(cntlid, ciu, ResetStatus::Succeeded)];
    eventually("the reset succeeds", || log(&mut other.admin) == succeeded);
    target.shutdown().unwrap();
}

#[test]
fn a_write_of_a_lost_connection_comes_before_later_ones_without_any_reset() {
    let (target, address, control) = start(2);
    let mut other = path(address);
    for round in 0..8 {
        let mut lost = path(address);
        let (old, new) = (pattern(2 * round, 512), pattern(2 * round + 1, 512));
        write_held(&mut lost, &control, 0, &old);
        let cntlid = lost.instance.cntlid;
        drop(lost);
        eventually("the connections are known to be lost", || {
            let controllers = target.controllers(&nqn());
            let lost = controllers.iter().find(|controller| controller.cntlid == cntlid);
            lost.is_some_and(|controller| controller.io_queues == 1)
                && target.stats().pre_connect == 0
        });
        std::thread::sleep(Duration::from_millis(20));
        let late = other.queue.submit_in_capsule(block_sqe(io::WRITE, 1, 0, 1), &new);
        assert!(status(&other.queue.read(1, 8, 1, BS)).is_success());
        control.resume();
        assert!(status(&other.queue.wait(late, &[])).is_success());
        assert_eq!(other.queue.read(1, 0, 1, BS).data, new, "round {round}");
    }
    target.shutdown().unwrap();
}

#[test]
fn a_controller_without_commands_ends_at_once() {
    let (target, address, _control) = start(2);
    let (mut lost, mut other) = (path(address), path(address));
    assert!(status(&other.admin.plain_command(lost.instance.reset())).is_success());
    assert!(lost.queue.until_closed().is_none());
    let ControllerInstance { cntlid, ciu, .. } = lost.instance;
    let succeeded = [(cntlid, ciu, ResetStatus::Succeeded)];
    eventually("the reset succeeds", || log(&mut other.admin) == succeeded);
    assert_eq!(target.controllers(&nqn()).len(), 1);
    target.shutdown().unwrap();
}

#[test]
fn a_host_resets_its_own_controllers_only_and_by_all_that_names_them() {
    let (target, address, _control) = start(1);
    let (mut one, mut two) = (path(address), path(address));
    let unknown = Status::INVALID_CONTROLLER_ID.dnr();
    let named = one.instance;
    for wrong in [
        ControllerInstance { cntlid: ControllerId(999), ..named },
        ControllerInstance { ciu: named.ciu.wrapping_add(1), ..named },
        ControllerInstance { cirn: named.cirn ^ 1, ..named },
        two.instance,
    ] {
        assert_eq!(status(&two.admin.plain_command(wrong.reset())), unknown, "{wrong:?}");
    }
    let mut stranger = RawHost::open(address, Wants::default());
    let host = Nqn::new("nqn.2026-01.io.raceline:stranger").unwrap();
    let connected =
        stranger.connect_as(QueueId::ADMIN, 32, ControllerId::DYNAMIC, &nqn(), &host, 0);
    assert!(connected.status.is_success());
    stranger.set_property(0x14, 0x0046_0001);
    assert_eq!(status(&stranger.plain_command(named.reset())), unknown, "another host");
    assert!(log(&mut two.admin).is_empty());
    for path in [&mut one, &mut two] {
        assert!(status(&path.queue.read(1, 0, 1, BS)).is_success(), "nothing has ended");
    }
    target.shutdown().unwrap();
}

#[test]
fn the_number_of_a_lost_controller_is_not_given_out_within_the_time() {
    let config = TargetConfig { quiesce_time: Duration::from_secs(1), ..config(1) };
    let target = Target::start(config).unwrap();
    let ids = raceline_target::SubsystemConfig { controller_ids: 7..=7, ..subsystem() };
    target.add_subsystem(ids).unwrap();
    target.add_namespace(&nqn(), namespace(ram("1M"))).unwrap();
    let address = crate::common::listen(&target);
    let (lost, cntlid) = RawHost::admin(address, Wants::default());
    let ended = Instant::now();
    drop(lost);
    eventually("it has ended", || target.controllers(&nqn()).is_empty());
    loop {
        let mut next = RawHost::open(address, Wants::default());
        let cqe = next.connect(QueueId::ADMIN, 32, ControllerId::DYNAMIC);
        if cqe.status.is_success() {
            assert_eq!(cqe.dw0 & 0xffff, u32::from(cntlid.0));
            break;
        }
        assert!(cqe.status.same_code(Status::CONNECT_CONTROLLER_BUSY), "{}", cqe.status);
        assert!(ended.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(ended.elapsed() > Duration::from_millis(800), "{:?}", ended.elapsed());
    target.shutdown().unwrap();
}
