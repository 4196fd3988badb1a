//! One device as a namespace and as a LUN: reservations that both protocols obey, take from each other, and report.
#![allow(clippy::unwrap_used)] // a test

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{
    block_sqe, config, eventually, namespace, nqn, pattern, ram, status, subsystem,
};
use crate::initiator_end::{Initiator, TARGET, rw};
use crate::reserving::{BS, Host, key, ok};
use raceline_bdev::{DelayBdev, Delays, SharedBdev};
use raceline_iscsi::names::Isid;
use raceline_iscsi::pdu::TmfFunction;
use raceline_proto::nvme::opcode::io;
use raceline_proto::nvme::reservation::ReservationType as Kind;
use raceline_proto::nvme::{NamespaceId, Sqe, Status};
use raceline_target::{
    InitiatorGroupConfig, LunConfig, NamespaceConfig, PortalGroupConfig, PortalMap,
    ReservationPlace, ReservationStore, Reservations, Target, TargetNodeConfig,
};

const CONFLICT: u8 = 0x18;
const CONFLICT_OF_HOST: Status = Status::RESERVATION_CONFLICT.dnr();
const ABORTED_OF_HOST: Status = Status::ABORTED_BY_PREEMPT.dnr();
const RELEASED: (u8, u8, u8) = (6, 0x2a, 0x04);
const PREEMPTED: (u8, u8, u8) = (6, 0x2a, 0x03);
const REGISTRATION_PREEMPTED: (u8, u8, u8) = (6, 0x2a, 0x05);
/// Keys of initiators.
const ONE: u64 = 0x11;
const TWO: u64 = 0x22;

/// A target over one device, exported by both protocols.
struct Bed {
    target: Target,
    nvme: SocketAddr,
    iscsi: SocketAddr,
}

fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn export(target: &Target, lun: LunConfig) -> SocketAddr {
    let iscsi = target.iscsi();
    iscsi.set_initiator_group(InitiatorGroupConfig::any(1)).unwrap();
    iscsi.add_portal_group(PortalGroupConfig::new(1, vec![loopback()])).unwrap();
    let map = PortalMap { portal_group: 1, initiator_group: 1 };
    let luns = vec![lun];
    let node = TargetNodeConfig { maps: vec![map], luns, ..TargetNodeConfig::new(TARGET) };
    iscsi.add_target_node(node).unwrap();
    iscsi.portal_groups()[0].portals[0]
}

impl Bed {
    fn over(device: &SharedBdev) -> Self {
        let (target, nvme) = crate::common::start(config(2), vec![Arc::clone(device)]);
        let iscsi = export(&target, LunConfig::new(Arc::clone(device)));
        Self { target, nvme, iscsi }
    }

    fn new() -> Self {
        Self::over(&ram("1M"))
    }

    fn host(&self, number: u8) -> Host {
        Host::connect(self.nvme, number)
    }

    fn initiator(&self, number: u32) -> Initiator {
        Initiator::login(self.iscsi, number)
    }
}

/// The number of a type in SCSI.
fn scsi(kind: Kind) -> u8 {
    raceline_scsi::reservation::type_to_wire(kind)
}

fn register(initiator: &mut Initiator, key: u64) {
    initiator.reserve_out(0, 0, 0, key).good();
}

/// The first byte of the identifier that an initiator has in a Reservation Report.
fn derived(number: u32) -> u8 {
    let nexus = raceline_scsi::Nexus {
        initiator: crate::initiator_end::INITIATOR.to_owned(),
        isid: Isid::random(number, 0).0,
        target: TARGET.to_owned(),
        port: raceline_scsi::Port { group: 1, relative: 1 },
    };
    nexus.host_id().0[0]
}

fn cdb16(opcode: u8, lba: u8, blocks: u8) -> [u8; 16] {
    let mut cdb = [0; 16];
    (cdb[0], cdb[9], cdb[13]) = (opcode, lba, blocks);
    cdb
}

/// What an initiator may do: each command that reads agrees with the others, and so does each that writes.
fn rights_of(initiator: &mut Initiator, seed: u64) -> (bool, bool) {
    let agree = |answers: Vec<(&str, u8)>| {
        let first = answers[0].1 == 0;
        for (what, status) in answers {
            assert_eq!(status, if first { 0 } else { CONFLICT }, "{what}");
        }
        first
    };
    let block = pattern(seed, 512);
    let writes = agree(vec![
        ("WRITE with its data", initiator.write(0, 40, &block).status),
        (
            "WRITE that is asked for its data",
            initiator.write(0, 0, &pattern(seed, 128 << 10)).status,
        ),
        ("WRITE SAME", initiator.execute(0, &cdb16(0x93, 50, 4), 0, &block).status),
        ("SYNCHRONIZE CACHE", initiator.execute(0, &cdb16(0x91, 0, 0), 0, &[]).status),
        (
            "UNMAP",
            initiator
                .execute(0, &[0x42, 0, 0, 0, 0, 0, 0, 0, 8, 0], 0, &[0, 6, 0, 0, 0, 0, 0, 0])
                .status,
        ),
    ]);
    let reads = agree(vec![
        ("READ", initiator.read(0, 0, 8).status),
        ("VERIFY", initiator.execute(0, &rw(0x2f, 0, 8), 0, &[]).status),
    ]);
    let found = initiator.execute(0, &[0x12, 0, 0, 0, 96, 0], 96, &[]).status;
    assert_eq!(found, 0, "INQUIRY is always answered");
    (reads, writes)
}

/// The same of a host.
fn rights_of_host(host: &mut Host, seed: u64) -> (bool, bool) {
    let judge = |status: Status| match status {
        Status::SUCCESS => true,
        status => {
            assert_eq!(status, CONFLICT_OF_HOST);
            false
        }
    };
    let writes = judge(host.write(seed, 4096));
    assert_eq!(judge(host.write(seed, 65_536)), writes, "a write that is asked for its data");
    let flush = host.queue.plain_command(block_sqe(io::FLUSH, 1, 0, 1));
    assert_eq!(judge(status(&flush)), writes, "flush");
    let data = pattern(seed, 512);
    let halves = [(1, io::COMPARE), (2, io::WRITE)].map(|(flags, opc)| {
        host.queue.submit_in_capsule(Sqe { flags, ..block_sqe(opc, 1, 90, 1) }, &data)
    });
    let [compare, write] = halves.map(|cid| status(&host.queue.wait(cid, &[])));
    let is_conflict = compare == CONFLICT_OF_HOST;
    assert_eq!((is_conflict, write == CONFLICT_OF_HOST), (!writes, !writes), "a fused operation");
    let reads = judge(host.read());
    host.report();
    (reads, writes)
}

#[test]
fn a_reservation_of_either_protocol_binds_both() {
    let bed = Bed::new();
    let [mut holder, mut registrant, mut stranger] = [1, 2, 3].map(|number| bed.initiator(number));
    let [mut host, mut host_registrant, mut host_stranger] = [1, 2, 3].map(|n| bed.host(n));
    register(&mut holder, ONE);
    register(&mut registrant, TWO);
    ok(host.register(key(1)));
    ok(host_registrant.register(key(2)));
    for kind in Kind::ALL {
        let favours = kind.favours_registrants();
        let of_registrant = (favours || kind.lets_others_read(), favours);
        let of_stranger = (kind.lets_others_read(), false);
        for by_host in [false, true] {
            let (mine, other) = ((true, true), of_registrant);
            if by_host {
                ok(host.acquire(key(1), kind));
            } else {
                holder.reserve_out(1, scsi(kind), ONE, 0).good();
            }
            let seed = u64::from(kind.to_wire());
            let (first, second) = if by_host { (other, mine) } else { (mine, other) };
            assert_eq!(rights_of(&mut holder, seed), first, "{kind:?}, {by_host}");
            assert_eq!(rights_of_host(&mut host, seed), second, "{kind:?}, {by_host}");
            assert_eq!(rights_of(&mut registrant, seed), of_registrant, "{kind:?}");
            assert_eq!(rights_of_host(&mut host_registrant, seed), of_registrant, "{kind:?}");
            assert_eq!(rights_of(&mut stranger, seed), of_stranger, "{kind:?}");
            assert_eq!(rights_of_host(&mut host_stranger, seed), of_stranger, "{kind:?}");
            let rtype = host_stranger.report().1;
            assert_eq!(rtype, kind.to_wire());
            // Nobody who does not hold it can release it, or take it as his.
            assert_eq!(host_stranger.clear(key(1)), CONFLICT_OF_HOST);
            assert_eq!(stranger.reserve_out(3, 0, ONE, 0).status, CONFLICT);
            if by_host {
                let release = u32::from(kind.to_wire()) << 8;
                ok(host.reserve(io::RESERVATION_RELEASE, release, [key(1), 0]));
            } else {
                holder.reserve_out(2, scsi(kind), ONE, 0).good();
            }
            // Registrants of types that favour them are told of the release.
            if favours {
                assert_eq!(registrant.test_unit_ready(0).sense, Some(RELEASED), "{kind:?}");
                if by_host {
                    assert_eq!(holder.test_unit_ready(0).sense, Some(RELEASED), "{kind:?}");
                } else {
                    eventually("the host is told", || host.notice().0 == 2);
                }
                eventually("the other host is told", || host_registrant.notice().0 == 2);
            }
            registrant.test_unit_ready(0).good();
        }
    }
    bed.target.shutdown().unwrap();
}

#[test]
fn each_takes_the_device_from_the_other() {
    let bed = Bed::new();
    let (mut initiator, mut host) = (bed.initiator(1), bed.host(1));
    register(&mut initiator, ONE);
    ok(host.register(key(1)));
    initiator.reserve_out(1, scsi(Kind::ExclusiveAccess), ONE, 0).good();
    assert_eq!(host.read(), CONFLICT_OF_HOST);
    assert_eq!(host.report(), (2, 2, vec![(derived(1), ONE, true), (1, key(1), false)]));
    // The host takes it, with the initiator's key.
    let event = host.request_event();
    ok(host.preempt([key(1), ONE], Kind::WriteExclusive, false));
    assert_eq!(initiator.test_unit_ready(0).sense, Some(REGISTRATION_PREEMPTED));
    assert_eq!(initiator.write(0, 0, &[7; 512]).status, CONFLICT);
    initiator.read(0, 0, 1).good();
    // And the initiator takes it back.
    register(&mut initiator, ONE);
    initiator.reserve_out(4, scsi(Kind::ExclusiveAccess), ONE, key(1)).good();
    host.admin.wait(event, &[]);
    assert_eq!(host.notice(), (1, 1), "its registration was preempted");
    assert_eq!(host.read(), CONFLICT_OF_HOST);
    assert_eq!(host.report(), (5, 2, vec![(derived(1), ONE, true)]));
    // Clear, by the host, ends all of it.
    ok(host.register(key(1)));
    ok(host.clear(key(1)));
    assert_eq!(initiator.test_unit_ready(0).sense, Some(PREEMPTED));
    ok(host.write(1, 4096));
    initiator.write(0, 0, &[7; 512]).good();
    assert_eq!(host.report(), (7, 0, vec![]));
    bed.target.shutdown().unwrap();
}

#[test]
fn reports_of_scsi_show_hosts() {
    let bed = Bed::new();
    let (mut initiator, mut host) = (bed.initiator(1), bed.host(1));
    ok(host.register(key(1)));
    ok(host.acquire(key(1), Kind::WriteExclusiveRegistrantsOnly));
    let mut reserve_in =
        |action: u8| initiator.execute(0, &[0x5e, action, 0, 0, 0, 0, 0, 2, 0, 0], 512, &[]).good();
    let keys = reserve_in(0);
    assert_eq!(keys[4..], [&8_u32.to_be_bytes()[..], &key(1).to_be_bytes()].concat());
    let held = reserve_in(1);
    assert_eq!((&held[8..16], held[21]), (&key(1).to_be_bytes()[..], 5));
    assert_eq!(reserve_in(2)[2..4], [0x10, 0x80], "no place, so nothing persists");
    let full = reserve_in(3);
    let name = b"nqn.2026-01.io.raceline:host1,h,0x01010101010101010101010101010101\0";
    assert_eq!(full[8 + 24], 0x4f);
    assert_eq!(&full[8 + 28..][..name.len()], name);
    bed.target.shutdown().unwrap();
}

#[test]
fn reserve_of_spc_2_closes_the_device_to_hosts_until_its_session_ends() {
    let bed = Bed::new();
    let (mut initiator, mut other, mut host) = (bed.initiator(1), bed.initiator(2), bed.host(1));
    let reserve = [0x16, 0, 0, 0, 0, 0];
    initiator.execute(0, &reserve, 0, &[]).good();
    assert_eq!((host.read(), host.write(1, 512)), (CONFLICT_OF_HOST, CONFLICT_OF_HOST));
    assert_eq!(host.register(key(1)), CONFLICT_OF_HOST);
    assert_eq!(other.read(0, 0, 1).status, CONFLICT);
    host.report();
    initiator.write(0, 0, &[1; 512]).good();
    drop(initiator);
    eventually("the session is gone", || bed.target.iscsi().connections().len() == 1);
    eventually("the host is let in", || host.read().is_success());
    other.read(0, 0, 1).good();
    // A reset ends it as well.
    let mut initiator = bed.initiator(1);
    initiator.execute(0, &reserve, 0, &[]).good();
    assert_eq!(host.read(), CONFLICT_OF_HOST);
    initiator.manage(TmfFunction::LogicalUnitReset, None);
    eventually("the host is let in", || host.read().is_success());
    // Who is registered keeps it from being reserved that way.
    ok(host.register(key(1)));
    other.test_unit_ready(0);
    assert_eq!(other.execute(0, &reserve, 0, &[]).status, CONFLICT);
    bed.target.shutdown().unwrap();
}

/// No write that one of `write` gave lands once the other protocol's PREEMPT AND ABORT was answered.
#[test]
fn no_write_of_the_preempted_lands_after_preempt_and_abort_of_the_other_protocol() {
    let delays = Delays::all(Duration::from_millis(5));
    let device: SharedBdev = Arc::new(DelayBdev::new(ram("1M"), delays));
    let bed = Bed::over(&device);
    for round in 0..6 {
        // The initiator writes, and the host preempts.
        let (mut initiator, mut host) = (bed.initiator(1), bed.host(1));
        initiator.test_unit_ready(0);
        register(&mut initiator, ONE);
        ok(host.register(key(1)));
        initiator.reserve_out(1, scsi(Kind::WriteExclusive), ONE, 0).good();
        let mut lost: Vec<u16> = Vec::new();
        for place in 0..8 {
            let data = [place; 512 * 8];
            lost.push(initiator.start(0, &rw(0x2a, u32::from(place) * 8, 8), 0, &data));
        }
        ok(host.preempt([key(1), ONE], Kind::WriteExclusive, true));
        let then = host.queue.read(1, 0, 64, BS).data;
        ok(status(&host.queue.write(1, 64, &pattern(round, 512), BS)));
        std::thread::sleep(Duration::from_millis(10));
        assert_eq!(host.queue.read(1, 0, 64, BS).data, then, "round {round}");
        drop(initiator);
        // The host writes, and the initiator preempts.
        let mut initiator = bed.initiator(2);
        register(&mut initiator, TWO);
        let running = AtomicBool::new(true);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for seed in 0.. {
                    match host.write(seed + 1000 * round, 16_384) {
                        status if status.is_success() => {}
                        status => {
                            let known = [CONFLICT_OF_HOST, ABORTED_OF_HOST];
                            assert!(known.contains(&status), "{status}");
                            if !running.load(Ordering::Relaxed) {
                                break;
                            }
                        }
                    }
                }
            });
            initiator.reserve_out(5, scsi(Kind::WriteExclusive), TWO, key(1)).good();
            let then = initiator.read(0, 0, 32).good();
            for _ in 0..3 {
                std::thread::sleep(Duration::from_millis(5));
                assert_eq!(initiator.read(0, 0, 32).good(), then, "round {round}");
            }
            running.store(false, Ordering::Relaxed);
            writer.join().unwrap();
        });
        initiator.reserve_out(3, 0, TWO, 0).good();
    }
    bed.target.shutdown().unwrap();
}

#[test]
fn a_write_that_waits_for_its_data_is_judged_by_the_reservation_that_has_come() {
    let bed = Bed::new();
    let (mut initiator, mut host) = (bed.initiator(1), bed.host(1));
    ok(host.register(key(1)));
    // The target has the command and asks for the data, which do not come yet.
    let slot = initiator.start(0, &rw(0x2a, 0, 1024), 0, &pattern(3, 512 << 10));
    initiator.await_r2t();
    ok(host.acquire(key(1), Kind::WriteExclusive));
    let then = host.queue.read(1, 0, 128, BS).data;
    assert_eq!(initiator.finish(slot).status, CONFLICT);
    assert_eq!(host.queue.read(1, 0, 128, BS).data, then);
    bed.target.shutdown().unwrap();
}

// ----------------------------------------------------------------------------- persistence

/// Keeps what a target would have after a crash.
#[derive(Default)]
struct Disk {
    saved: Mutex<Option<Reservations>>,
    is_full: AtomicBool,
}

impl ReservationStore for Disk {
    fn save(&self, reservations: Option<&Reservations>) -> std::io::Result<()> {
        if self.is_full.load(Ordering::Relaxed) {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        *self.saved.lock().unwrap() = reservations.cloned();
        Ok(())
    }
}

fn place(disk: &Arc<Disk>) -> Option<ReservationPlace> {
    let saved = disk.saved.lock().unwrap().clone().unwrap_or_default();
    Some(ReservationPlace { store: Arc::clone(disk) as Arc<dyn ReservationStore>, saved })
}

/// A target whose namespace and LUN have a place each; `lun_first`: which of them is there first.
fn persistent(disks: &[Arc<Disk>; 2], lun_first: bool) -> Bed {
    let device = ram("1M");
    let target = Target::start(config(2)).unwrap();
    target.add_subsystem(subsystem()).unwrap();
    let add_namespace = || {
        let config =
            NamespaceConfig { reservations: place(&disks[0]), ..namespace(Arc::clone(&device)) };
        target.add_namespace(&nqn(), config).unwrap();
    };
    let lun = LunConfig { reservations: place(&disks[1]), ..LunConfig::new(Arc::clone(&device)) };
    let iscsi = if lun_first {
        let address = export(&target, lun);
        add_namespace();
        address
    } else {
        add_namespace();
        export(&target, lun)
    };
    let nvme = crate::common::listen(&target);
    Bed { target, nvme, iscsi }
}

/// PERSISTENT RESERVE OUT, Register, with APTPL.
fn register_for_good(initiator: &mut Initiator, key: u64) -> crate::initiator_end::Answer {
    let mut list = [0; 24];
    list[8..16].copy_from_slice(&key.to_be_bytes());
    list[20] = 1;
    initiator.execute(0, &[0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0], 0, &list)
}

#[test]
fn what_persists_is_kept_in_both_places_before_the_answer_and_comes_back() {
    let disks = [Arc::new(Disk::default()), Arc::new(Disk::default())];
    let kept = |place: usize| disks[place].saved.lock().unwrap().clone();
    let bed = persistent(&disks, false);
    let (mut initiator, mut host) = (bed.initiator(1), bed.host(1));
    assert_eq!(
        initiator.execute(0, &[0x5e, 2, 0, 0, 0, 0, 0, 0, 8, 0], 8, &[]).good()[2..4],
        [0x11, 0x80]
    );
    register_for_good(&mut initiator, ONE).good();
    ok(host.register(key(1)));
    ok(host.acquire(key(1), Kind::WriteExclusive));
    assert_eq!(initiator.execute(0, &[0x5e, 2, 0, 0, 0, 0, 0, 0, 8, 0], 8, &[]).good()[3], 0x81);
    let all = kept(0).unwrap();
    assert_eq!((all.registrants.len(), all.held.is_some()), (2, true));
    assert_eq!(kept(1).as_ref(), Some(&all));
    // A place that is full: the change is not made, and no place has it.
    disks[1].is_full.store(true, Ordering::Relaxed);
    assert_eq!(initiator.reserve_out(4, 1, ONE, key(1)).sense, Some((4, 0x44, 0)));
    assert_eq!(host.clear(key(1)), Status::INTERNAL);
    assert_eq!(kept(0), Some(all));
    ok(host.write(1, 512));
    disks[1].is_full.store(false, Ordering::Relaxed);
    drop((initiator, host));
    bed.target.shutdown().unwrap();
    for lun_first in [true, false] {
        let bed = persistent(&disks, lun_first);
        let (mut initiator, mut host) = (bed.initiator(1), bed.host(1));
        let mut stranger = bed.initiator(2);
        assert_eq!(host.report().2, [(derived(1), ONE, false), (1, key(1), true)]);
        assert_eq!(initiator.write(0, 0, &[7; 512]).status, CONFLICT);
        assert_eq!(stranger.write(0, 0, &[7; 512]).status, CONFLICT);
        ok(host.write(2, 512));
        let full = initiator.execute(0, &[0x5e, 3, 0, 0, 0, 0, 0, 2, 0, 0], 512, &[]).good();
        assert_eq!(full[8 + 19], 1, "the relative identifier of its target port");
        bed.target.shutdown().unwrap();
    }
    // The initiator, known again, ends it; the last registration decides whether it persists.
    let bed = persistent(&disks, true);
    let (mut initiator, mut host) = (bed.initiator(1), bed.host(1));
    initiator.reserve_out(4, 1, ONE, key(1)).good();
    ok(host.register(key(1)));
    initiator.reserve_out(6, 0, 0, ONE).good();
    assert_eq!((kept(0), kept(1)), (None, None), "APTPL is 0 now");
    drop((initiator, host));
    bed.target.shutdown().unwrap();
    let bed = persistent(&disks, true);
    assert_eq!(bed.host(1).report(), (0, 0, vec![]));
    bed.target.shutdown().unwrap();
}

#[test]
fn registrants_stay_when_one_of_the_two_is_removed_and_comes_again() {
    let device = ram("1M");
    let bed = Bed::over(&device);
    let (mut initiator, mut host) = (bed.initiator(1), bed.host(1));
    register(&mut initiator, ONE);
    ok(host.register(key(1)));
    initiator.reserve_out(1, scsi(Kind::ExclusiveAccess), ONE, 0).good();
    bed.target.remove_namespace(&nqn(), NamespaceId(1)).unwrap();
    bed.target.add_namespace(&nqn(), namespace(Arc::clone(&device))).unwrap();
    eventually("the namespace is back", || host.read() == CONFLICT_OF_HOST);
    assert_eq!(host.report().2, [(derived(1), ONE, true), (1, key(1), false)]);
    bed.target.iscsi().remove_lun(TARGET, 0).unwrap();
    assert_eq!(host.read(), CONFLICT_OF_HOST, "nobody has given it up");
    bed.target.iscsi().add_lun(TARGET, LunConfig::new(device)).unwrap();
    initiator.test_unit_ready(0);
    initiator.write(0, 0, &[7; 512]).good();
    ok(host.preempt([key(1), ONE], Kind::WriteExclusive, false));
    assert_eq!(initiator.test_unit_ready(0).sense, Some(REGISTRATION_PREEMPTED));
    bed.target.shutdown().unwrap();
}

// ------------------------------------------------------------------------------- hand-over

/// Another target over the same device, as in a process that takes the place of this one.
#[test]
fn a_target_goes_on_with_the_reservations_of_another_one() {
    let device = ram("1M");
    let first = Bed::over(&device);
    let (mut initiator, mut late) = (first.initiator(1), first.initiator(2));
    let mut host = first.host(3);
    register(&mut initiator, ONE);
    ok(host.register(key(3)));
    initiator.reserve_out(1, scsi(Kind::WriteExclusiveRegistrantsOnly), ONE, 0).good();
    let report = host.report();
    let handed = first.target.suspend(Duration::from_secs(10)).unwrap();
    // The initiator is served until its session ends, and changes nothing of which nobody would learn.
    const BUSY: u8 = 8;
    assert_eq!(late.reserve_out(0, 0, 0, TWO).status, BUSY);
    late.read(0, 0, 1).good();
    let of_namespace = first.target.reservations(&nqn(), NamespaceId(1)).unwrap();
    let of_lun = first.target.iscsi().reservations(TARGET, 0).unwrap();
    assert_eq!((of_namespace.registrants.len(), &*of_namespace), (2, &of_lun));
    for by_lun in [false, true] {
        let second = Bed::over(&device);
        if by_lun {
            second.target.iscsi().restore_reservations(TARGET, 0, of_lun.clone()).unwrap();
        } else {
            let state = of_namespace.as_ref().clone();
            second.target.restore_reservations(&nqn(), NamespaceId(1), state).unwrap();
        }
        let (mut same, mut stranger) = (second.initiator(1), second.initiator(2));
        let mut same_host = second.host(3);
        assert_eq!(same_host.report(), report);
        assert_eq!(rights_of(&mut same, 1), (true, true));
        assert_eq!(rights_of(&mut stranger, 2), (true, false));
        assert_eq!(rights_of_host(&mut same_host, 3), (true, true));
        assert_eq!(rights_of_host(&mut second.host(4), 4), (true, false));
        // The next change is made of what has gone over.
        register(&mut stranger, TWO);
        assert_eq!(same_host.report().0, report.0 + 1);
        assert_eq!(same_host.report().2.len(), 3);
        second.target.shutdown().unwrap();
    }
    // Nothing comes of it: the first goes on.
    drop(handed);
    first.target.resume();
    register(&mut late, TWO);
    assert_eq!(host.report().2.len(), 3);
    first.target.shutdown().unwrap();
}
