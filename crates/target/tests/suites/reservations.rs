//! Reservations over sockets: hosts with names and identifiers of their own, on one target.
#![allow(clippy::unwrap_used)] // a test

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{
    Answer, Heard, block_sqe, config, namespace, nqn, pattern, ram, status, subsystem,
};
use crate::reserving::{BS, Host, key, ok};
use raceline_proto::nvme::opcode::{admin, io};
use raceline_proto::nvme::reservation::ReservationType;
use raceline_proto::nvme::{Direction, HostId, NamespaceId, Sqe, Status};
use raceline_target::{
    NamespaceConfig, ReservationPlace, ReservationStore, Reservations, SubsystemConfig, Target,
};
use zerocopy::IntoBytes;

use ReservationType::{
    ExclusiveAccess as EA, ExclusiveAccessRegistrantsOnly as EARO, WriteExclusive as WE,
};

const CONFLICT: Status = Status::RESERVATION_CONFLICT.dnr();
const ABORTED: Status = Status::ABORTED_BY_PREEMPT.dnr();

fn start(cores: usize) -> (Target, SocketAddr) {
    crate::common::start(config(cores), vec![ram("1M"), ram("1M")])
}

#[test]
fn commands_of_every_kind_follow_the_reservation() {
    let (target, address) = start(2);
    let [mut one, mut two, mut three] = [1, 2, 3].map(|number| Host::connect(address, number));
    ok(two.write(5, 4096));
    ok(one.register(key(1)));
    ok(two.register(key(2)));
    [&mut one, &mut two, &mut three].into_iter().for_each(Host::enable_copy_across);
    let data = pattern(5, 4096);
    let compare = |host: &mut Host| {
        status(&host.queue.write_command(block_sqe(io::COMPARE, 1, 0, 8), &data, true))
    };
    // For each type: what a registrant may read and write, what a stranger may.
    for (rtype, registrant, stranger) in [
        (1, (true, false), (true, false)),
        (2, (false, false), (false, false)),
        (3, (true, true), (true, false)),
        (4, (true, true), (false, false)),
        (5, (true, true), (true, false)),
        (6, (true, true), (false, false)),
    ] {
        let kind = ReservationType::from_wire(rtype).unwrap();
        ok(one.acquire(key(1), kind));
        let all = (true, true);
        for (who, host, (reads, writes)) in
            [(1, &mut one, all), (2, &mut two, registrant), (3, &mut three, stranger)]
        {
            let judge = |status: Status, may: bool, what: &str| {
                let expected = if may { Status::SUCCESS } else { CONFLICT };
                assert_eq!(status, expected, "{kind:?}: {what} by host {who}");
            };
            judge(host.read(), reads, "read");
            judge(compare(host), reads, "compare");
            judge(host.copy_from(), reads, "copy to another namespace");
            judge(host.write(5, 4096), writes, "write in its capsule");
            let large = [data.clone(), pattern(6, 61_440)].concat();
            let sqe = block_sqe(io::WRITE, 1, 0, 128);
            judge(status(&host.queue.write_command(sqe, &large, false)), writes, "large write");
            let plain = |host: &mut Host, sqe| status(&host.queue.plain_command(sqe));
            judge(plain(host, block_sqe(io::FLUSH, 1, 0, 1)), writes, "flush");
            judge(plain(host, block_sqe(io::WRITE_ZEROES, 1, 64, 8)), writes, "write zeroes");
            let deallocate = Sqe {
                opc: io::DATASET_MANAGEMENT,
                nsid: 1.into(),
                cdw11: 4.into(),
                ..Sqe::default()
            };
            let mut range = [0; 16];
            range[4] = 8;
            range[8] = 64;
            let managed = host.queue.write_command(deallocate, &range, true);
            judge(status(&managed), writes, "deallocate");
            // the other namespace is free for all
            ok(status(&host.queue.write(2, 0, &data, BS)));
        }
        assert_eq!(one.report().1, rtype);
        ok(one.reserve(io::RESERVATION_RELEASE, u32::from(rtype) << 8, [key(1), 0]));
    }
    ok(three.write(7, 4096));
    target.shutdown().unwrap();
}

#[test]
fn both_halves_of_a_fused_operation_are_refused_as_a_write() {
    let (target, address) = start(1);
    let [mut one, mut two] = [1, 2].map(|number| Host::connect(address, number));
    let data = pattern(5, 512);
    ok(one.register(key(1)));
    ok(one.acquire(key(1), WE));
    ok(one.write(5, 512));
    let fused = |host: &mut Host| {
        let first = Sqe { flags: 1, ..block_sqe(io::COMPARE, 1, 0, 1) };
        let second = Sqe { flags: 2, ..block_sqe(io::WRITE, 1, 0, 1) };
        let first = host.queue.submit_in_capsule(first, &data);
        let second = host.queue.submit_in_capsule(second, &data);
        [first, second].map(|cid| status(&host.queue.wait(cid, &[])))
    };
    assert_eq!(fused(&mut one), [Status::SUCCESS; 2]);
    assert_eq!(fused(&mut two), [CONFLICT; 2]);
    assert_eq!(fused(&mut two), [CONFLICT; 2]);
    // It can read, and the queue is as good as before.
    ok(two.read());
    target.shutdown().unwrap();
}

#[test]
fn a_registration_outlives_connections_and_is_that_of_the_admin_queues_host() {
    let (target, address) = start(2);
    let mut one = Host::connect(address, 1);
    ok(one.register(key(1)));
    ok(one.acquire(key(1), EA));
    drop(one);
    let mut two = Host::connect(address, 2);
    assert_eq!(two.read(), CONFLICT);
    assert_eq!(two.report(), (1, 2, vec![(1, key(1), true)]));
    // Its second controller, and one whose I/O queue says another identifier.
    let mut one = Host::connect(address, 1);
    ok(one.write(1, 4096));
    let mut odd = Host::connect_as(address, 1, [HostId([1; 16]), HostId([2; 16])]);
    ok(odd.write(2, 4096));
    // A host that uses the identifier of another, on its I/O queue or for all.
    let mut thief = Host::connect_as(address, 2, [HostId([2; 16]), HostId([1; 16])]);
    assert_eq!((thief.read(), thief.clear(key(1))), (CONFLICT, CONFLICT));
    let mut thief = Host::connect_as(address, 2, [HostId([1; 16]); 2]);
    assert_eq!((thief.read(), thief.register(key(1))), (CONFLICT, CONFLICT));
    ok(odd.clear(key(1)));
    ok(thief.read());
    target.shutdown().unwrap();
}

#[test]
fn hosts_are_told_once_the_new_state_shows() {
    let (target, address) = start(2);
    let [mut one, mut two] = [1, 2].map(|number| Host::connect(address, number));
    let hosts = [&mut one, &mut two];
    for (host, number) in hosts.into_iter().zip(1..) {
        ok(host.register(key(number)));
    }
    ok(one.acquire(key(1), EARO));
    let event = two.request_event();
    ok(one.reserve(io::RESERVATION_RELEASE, 4 << 8, [key(1), 0]));
    let answer = two.admin.wait(event, &[]);
    assert_eq!(answer.cqe.dw0, 0x0080_0006);
    assert_eq!((two.notice(), two.notice()), ((2, 1), (0, 0)));
    assert_eq!(two.report().1, 0, "it is released");
    let event = one.request_event();
    ok(two.preempt([key(2), key(1)], WE, false));
    one.admin.wait(event, &[]);
    assert_eq!((one.notice(), one.report().2), ((1, 1), vec![(2, key(2), false)]));
    target.shutdown().unwrap();
}

#[test]
fn no_write_of_a_preempted_host_lands_after_preempt_and_abort() {
    let (target, address) = start(2);
    let mut two = Host::connect(address, 2);
    ok(two.register(key(2)));
    for round in 0..20 {
        let mut one = Host::connect(address, 1);
        ok(one.register(key(1)));
        ok(one.acquire(key(1), WE));
        let running = AtomicBool::new(true);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut refused = false;
                for seed in 0.. {
                    // After that, both writes of another turn come behind the preemption.
                    let is_last = !running.load(Ordering::Relaxed);
                    for len in [512, 16384] {
                        match one.write(seed + 1000 * round, len) {
                            status if status.is_success() => {
                                assert!(!refused, "it was let in again");
                            }
                            status => {
                                assert!([CONFLICT, ABORTED].contains(&status), "{status}");
                                refused = true;
                            }
                        }
                    }
                    if is_last {
                        return refused;
                    }
                }
                unreachable!("the numbers do not end")
            });
            std::thread::sleep(Duration::from_millis(3));
            ok(two.preempt([key(2), key(1)], WE, true));
            let then = two.queue.read(1, 0, 32, BS).data;
            for _ in 0..10 {
                std::thread::sleep(Duration::from_millis(1));
                assert_eq!(two.queue.read(1, 0, 32, BS).data, then, "round {round}");
            }
            running.store(false, Ordering::Relaxed);
            assert!(writer.join().unwrap(), "the writer noticed");
        });
        ok(two.reserve(io::RESERVATION_RELEASE, 1 << 8, [key(2), 0]));
    }
    target.shutdown().unwrap();
}

tcp_only! {
    #[test]
    fn a_write_that_waits_for_its_data_does_not_hold_a_preemption_up() {
        let (target, address) = start(1);
        let [mut one, mut two] = [1, 2].map(|number| Host::connect(address, number));
        ok(one.register(key(1)));
        ok(two.register(key(2)));
        ok(one.acquire(key(1), WE));
        ok(one.write(1, 16384));
        let before = one.queue.read(1, 0, 32, BS).data;
        let waiting =
            one.queue.submit(block_sqe(io::WRITE, 1, 0, 32), Direction::HostToController, 16384);
        let grant = match one.queue.listen() {
            Heard::SendData(grant) => grant,
            other => panic!("{other:?}"),
        };
        ok(two.preempt([key(2), key(1)], WE, true));
        // The host sends the data of its write all the same.
        let data = pattern(99, 16384);
        one.queue.send_data(&grant, &data);
        let verdict = status(&one.queue.wait(waiting, &data));
        assert!([CONFLICT, ABORTED].contains(&verdict), "{verdict}");
        assert_eq!(two.queue.read(1, 0, 32, BS).data, before);
        // The queue is as good as before.
        ok(one.read());
        assert_eq!(one.write(2, 16384), CONFLICT);
        target.shutdown().unwrap();
    }
}

/// Keeps the reservations in memory, unless it is broken.
#[derive(Default)]
struct Store {
    kept: Mutex<Option<Reservations>>,
    broken: AtomicBool,
    saves: Mutex<Vec<usize>>,
}

impl ReservationStore for Store {
    fn save(&self, reservations: Option<&Reservations>) -> std::io::Result<()> {
        if self.broken.load(Ordering::Relaxed) {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        *self.kept.lock().unwrap() = reservations.cloned();
        self.saves.lock().unwrap().push(reservations.map_or(0, |kept| kept.registrants.len()));
        Ok(())
    }
}

fn with_store(store: &Arc<Store>) -> (Target, SocketAddr) {
    let saved = store.kept.lock().unwrap().clone().unwrap_or_default();
    let place = ReservationPlace { store: Arc::clone(store) as _, saved };
    let target = Target::start(config(1)).unwrap();
    target.add_subsystem(subsystem()).unwrap();
    let exported = NamespaceConfig { reservations: Some(place), ..namespace(ram("1M")) };
    target.add_namespace(&nqn(), exported).unwrap();
    let address = crate::common::listen(&target);
    (target, address)
}

const PERSIST: u32 = 3 << 30;
const FORGET: u32 = 2 << 30;

#[test]
fn what_persists_is_kept_before_the_answer_and_comes_back() {
    let store = Arc::new(Store::default());
    let (target, address) = with_store(&store);
    let [mut one, mut two] = [1, 2].map(|number| Host::connect(address, number));
    ok(one.register(key(1)));
    assert_eq!(*store.kept.lock().unwrap(), None, "it does not persist yet");
    ok(two.reserve(io::RESERVATION_REGISTER, PERSIST, [0, key(2)]));
    assert_eq!(store.kept.lock().unwrap().as_ref().unwrap().registrants.len(), 2);
    ok(one.acquire(key(1), WE));
    assert!(store.kept.lock().unwrap().as_ref().unwrap().held.is_some());
    // What cannot be kept does not happen.
    store.broken.store(true, Ordering::Relaxed);
    assert_eq!(two.clear(key(2)), Status::INTERNAL);
    assert_eq!(two.report(), (2, 1, vec![(1, key(1), true), (2, key(2), false)]));
    assert_eq!(two.write(1, 4096), CONFLICT);
    store.broken.store(false, Ordering::Relaxed);
    target.shutdown().unwrap();

    let (target, address) = with_store(&store);
    let [mut one, mut two] = [1, 2].map(|number| Host::connect(address, number));
    assert_eq!(two.report(), (0, 1, vec![(1, key(1), true), (2, key(2), false)]));
    assert_eq!((one.write(1, 4096), two.write(1, 4096)), (Status::SUCCESS, CONFLICT));
    let state = target.reservations(&nqn(), NamespaceId(1)).unwrap();
    assert!(state.persists && state.can_persist);
    // Set Features of Reservation Persistence is kept as well.
    let persistence = |value: u32| Sqe {
        opc: admin::SET_FEATURES,
        nsid: 1.into(),
        cdw10: 0x83.into(),
        cdw11: value.into(),
        ..Sqe::default()
    };
    for (value, kept) in [(0, false), (1, true)] {
        ok(status(&two.admin.plain_command(persistence(value))));
        assert_eq!(store.kept.lock().unwrap().is_some(), kept);
    }
    ok(one.reserve(io::RESERVATION_REGISTER, FORGET | 2, [key(1), key(1)]));
    assert_eq!(*store.kept.lock().unwrap(), None);
    target.shutdown().unwrap();
}

#[test]
fn commands_that_cannot_be_are_refused() {
    let (target, address) = start(1);
    let mut one = Host::connect(address, 1);
    let keys = [0_u64, key(1)];
    assert_eq!(one.reserve(io::RESERVATION_REGISTER, PERSIST, keys), Status::INVALID_FIELD.dnr());
    let send = |host: &mut Host, sqe: Sqe, len: usize| -> Answer {
        host.queue.write_command(sqe, &keys.as_bytes()[..len], true)
    };
    let sqe = Sqe { opc: io::RESERVATION_REGISTER, nsid: 1.into(), ..Sqe::default() };
    let short = Status::DATA_SGL_LENGTH_INVALID.dnr();
    assert_eq!(status(&send(&mut one, sqe, 8)), short);
    assert_eq!(status(&one.queue.plain_command(sqe)), short);
    for (nsid, expected) in [(0, Status::INVALID_NAMESPACE), (9, Status::INVALID_NAMESPACE)] {
        let sqe = Sqe { nsid: nsid.into(), ..sqe };
        assert_eq!(status(&send(&mut one, sqe, 16)), expected.dnr(), "{nsid}");
    }
    let report = Sqe {
        opc: io::RESERVATION_REPORT,
        nsid: 1.into(),
        cdw10: 1023.into(),
        cdw11: 1.into(),
        ..Sqe::default()
    };
    assert_eq!(status(&one.queue.read_command(report, 512)), short);
    let of_64_bits = Sqe { cdw11: 0.into(), ..report };
    let status_64 = status(&one.queue.read_command(of_64_bits, 4096));
    assert_eq!(status_64, Status::HOST_ID_INCONSISTENT.dnr());
    assert_eq!(status(&one.queue.plain_command(report)), short);
    ok(one.register(key(1)));
    target.shutdown().unwrap();
}

#[test]
fn a_subsystem_that_another_target_serves_too_cannot_be_reserved() {
    let target = Target::start(config(1)).unwrap();
    target.add_subsystem(SubsystemConfig { controller_ids: 1..=100, ..subsystem() }).unwrap();
    target.add_namespace(&nqn(), namespace(ram("1M"))).unwrap();
    let address = crate::common::listen(&target);
    let mut one = Host::connect(address, 1);
    assert_eq!(one.register(key(1)), Status::INVALID_OPCODE.dnr());
    assert_eq!(one.admin.identify_controller()[520] & 1 << 5, 0, "ONCS bit 5");
    ok(one.write(1, 4096));
    target.shutdown().unwrap();
}

#[test]
fn a_namespace_that_goes_takes_its_registrations_along() {
    let (target, address) = start(1);
    let mut one = Host::connect(address, 1);
    ok(one.register(key(1)));
    ok(one.acquire(key(1), EA));
    target.remove_namespace(&nqn(), NamespaceId(1)).unwrap();
    target.add_namespace(&nqn(), namespace(ram("1M"))).unwrap();
    let mut two = Host::connect(address, 2);
    ok(two.read());
    assert_eq!(two.report(), (0, 0, vec![]));
    target.shutdown().unwrap();
}
