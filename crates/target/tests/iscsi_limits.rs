//! Limits of rates over iSCSI: how exactly they are kept, whom they leave alone, and what they share with NVMe.
#![allow(clippy::unwrap_used)] // a test

mod common;
#[path = "common/iscsi.rs"]
mod initiator_end;
#[path = "common/rates.rs"]
mod rates;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use common::{
    Heard as NvmeHeard, RawHost, Wants, block_sqe, config, host_nqn, namespace, nqn, pattern, ram,
    subsystem,
};
use initiator_end::{Heard, INITIATOR, Initiator, TARGET, rw};
use raceline_bdev::SharedBdev;
use raceline_iscsi::pdu::{TmfFunction, TmfResponseCode};
use raceline_proto::nvme::opcode::io;
use raceline_proto::nvme::{Direction, NamespaceId};
use raceline_target::{
    HostLimit, InitiatorGroupConfig, LunConfig, PortalGroupConfig, PortalMap, QosLimits, Target,
    TargetNodeConfig, Throttle,
};
use rates::{exceeds, ios, keeps};

const READ: u8 = 0x28;
const WRITE: u8 = 0x2a;
const SECOND: Duration = Duration::from_secs(1);

/// How the data of a write come.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// As much as may be with the command, the rest on request.
    Immediate,
    /// Behind the command, without being asked for.
    Unsolicited,
}

/// A target node with LUNs over these devices, and where it listens.
fn start(devices: &[SharedBdev]) -> (Target, SocketAddr) {
    let target = Target::start(config(1)).unwrap();
    let iscsi = target.iscsi();
    iscsi.set_initiator_group(InitiatorGroupConfig::any(1)).unwrap();
    let group = PortalGroupConfig::new(1, vec!["127.0.0.1:0".parse().unwrap()]);
    iscsi.add_portal_group(PortalGroupConfig { wait: true, ..group }).unwrap();
    let luns = devices.iter().map(|device| LunConfig::new(device.clone())).collect();
    let maps = vec![PortalMap { portal_group: 1, initiator_group: 1 }];
    let node = TargetNodeConfig { maps, luns, ..TargetNodeConfig::new(TARGET) };
    iscsi.add_target_node(node).unwrap();
    let address = iscsi.start_portal_group(1).unwrap()[0];
    (target, address)
}

/// An initiator that has been told what there is to be told of two LUNs.
fn login(address: SocketAddr) -> Initiator {
    let mut initiator = Initiator::login(address, 1);
    for lun in [0, 1] {
        let _attention = initiator.test_unit_ready(lun);
    }
    initiator
}

fn limit(target: &Target, device: &SharedBdev, limits: QosLimits) {
    let throttle = target.throttle(limits).unwrap();
    target.iscsi().set_device_limits(device, Some(throttle)).unwrap();
}

fn begin(initiator: &mut Initiator, lun: u16, opcode: u8, data: &[u8], way: Way) -> u16 {
    let cdb = rw(opcode, 0, u16::try_from(data.len() / 512).unwrap());
    match (opcode, way) {
        (READ, _) => initiator.start(lun, &cdb, u32::try_from(data.len()).unwrap(), &[]),
        (_, Way::Immediate) => initiator.start(lun, &cdb, 0, data),
        (_, Way::Unsolicited) => initiator.start_unsolicited(lun, &cdb, data),
    }
}

/// Keeps `depth` commands of a LUN under way for a time; gives how many were answered in it.
fn load(
    initiator: &mut Initiator,
    (lun, opcode, way): (u16, u8, Way),
    len: usize,
    depth: usize,
    time: Duration,
) -> u64 {
    let data = pattern(3, len);
    let end = Instant::now() + time;
    for _ in 0..depth {
        begin(initiator, lun, opcode, &data, way);
    }
    let (mut answered, mut waiting) = (0, depth);
    while waiting > 0 {
        let Heard::Response { answer, .. } = initiator.listen() else { panic!("no answer") };
        answer.good();
        waiting -= 1;
        if Instant::now() < end {
            answered += 1;
            waiting += 1;
            begin(initiator, lun, opcode, &data, way);
        }
    }
    answered
}

#[test]
fn rates_of_reads_and_writes_of_every_way_are_kept() {
    let devices = [ram("4M"), ram("4M")];
    let (target, address) = start(&devices);
    let mut initiator = login(address);
    for (opcode, way, len, depth, limits, expected) in [
        (READ, Way::Immediate, 512, 8, ios(400), 400),
        (WRITE, Way::Immediate, 4096, 8, ios(400), 400),
        (WRITE, Way::Unsolicited, 8192, 8, ios(400), 400),
        // The first quarter with the command, the rest with R2T.
        (WRITE, Way::Immediate, 1 << 20, 4, QosLimits { w_bytes_per_sec: 64 << 20, ..ios(0) }, 64),
        (READ, Way::Immediate, 65536, 4, QosLimits { rw_bytes_per_sec: 20 << 20, ..ios(0) }, 320),
        (WRITE, Way::Immediate, 512, 4, QosLimits { r_bytes_per_sec: 1, ..ios(300) }, 300),
    ] {
        limit(&target, &devices[0], limits);
        let slack = expected / 50 + depth as u64 + 2;
        keeps(expected, slack, || load(&mut initiator, (0, opcode, way), len, depth, SECOND));
        if opcode == WRITE {
            let blocks = u16::try_from(len / 512).unwrap();
            target.iscsi().set_device_limits(&devices[0], None).unwrap();
            assert_eq!(initiator.read(0, 0, blocks).good(), pattern(3, len), "{way:?} {len}");
        }
    }
    limit(&target, &devices[0], ios(1));
    let quick = Duration::from_millis(200);
    // Another LUN has no limit.
    exceeds(200, || load(&mut initiator, (1, READ, Way::Immediate), 512, 8, quick));
    target.shutdown().unwrap();
}

#[test]
fn pings_and_aborts_are_answered_while_commands_wait() {
    let devices = [ram("4M"), ram("4M")];
    let (target, address) = start(&devices);
    let mut initiator = login(address);
    // A command of 4 KiB in 8 s.
    limit(&target, &devices[0], QosLimits { rw_bytes_per_sec: 512, ..ios(0) });
    let data = pattern(5, 4096);
    // The burst may let the first begin; the others wait.
    let first = begin(&mut initiator, 0, WRITE, &data, Way::Immediate);
    initiator.finish(first).good();
    let slots: Vec<u16> =
        [(WRITE, Way::Immediate), (READ, Way::Immediate), (WRITE, Way::Unsolicited)]
            .into_iter()
            .map(|(opcode, way)| begin(&mut initiator, 0, opcode, &data, way))
            .collect();
    let begun = Instant::now();
    initiator.ping();
    initiator.read(1, 0, 8).good();
    for slot in slots {
        let code = initiator.manage(TmfFunction::AbortTask, Some(slot));
        assert_eq!(code, Some(TmfResponseCode::Complete));
    }
    assert!(begun.elapsed() < Duration::from_secs(7), "{:?}", begun.elapsed());
    // What the three had reserved is there for others: without that, this would wait for 32 s.
    let next = begin(&mut initiator, 0, READ, &data, Way::Immediate);
    initiator.finish(next).good();
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    target.shutdown().unwrap();
}

#[test]
fn commands_that_wait_are_counted_with_their_core() {
    let devices = [ram("4M"), ram("4M")];
    let (target, address) = start(&devices);
    let mut initiator = login(address);
    let counted = || {
        let totals = target.poll_groups()[0].totals;
        (totals.throttled, totals.throttled_us)
    };
    let mut run = |lun, count| {
        let slots: Vec<u16> = (0..count)
            .map(|_| begin(&mut initiator, lun, READ, &[0; 512], Way::Immediate))
            .collect();
        slots.into_iter().for_each(|slot| drop(initiator.finish(slot).good()));
    };
    run(0, 4);
    assert_eq!(counted(), (0, 0), "there is no limit");
    limit(&target, &devices[0], ios(20));
    // Other programs may take the time of one try.
    let as_computed = (0..20).any(|_| {
        let before = counted();
        run(0, 8);
        let after = counted();
        let (count, us) = (after.0 - before.0, after.1 - before.1);
        println!("{count} of 8 commands waited {us} us");
        std::thread::sleep(Duration::from_millis(200));
        // One begins at once, and the others wait 50 ms for the one before them. The clock of the limit may have gone on
        // between.
        (5..=7).contains(&count) && (500_000..=1_400_000).contains(&us)
    });
    assert!(as_computed, "{:?}", counted());
    let before = counted();
    run(1, 4);
    assert_eq!(counted(), before, "another LUN has no limit");
    target.shutdown().unwrap();
}

#[test]
fn commands_that_wait_go_by_new_limits() {
    let devices = [ram("4M"), ram("4M")];
    let (target, address) = start(&devices);
    let mut initiator = login(address);
    let data = pattern(6, 8192);
    for way in [Way::Immediate, Way::Unsolicited] {
        limit(&target, &devices[0], QosLimits { w_bytes_per_sec: 16, ..ios(0) });
        // The limit lets one begin at once.
        let first = begin(&mut initiator, 0, WRITE, &data, way);
        initiator.finish(first).good();
        for _ in 0..2 {
            begin(&mut initiator, 0, WRITE, &data, way);
        }
        // The answer to the ping says that the commands are there and wait.
        initiator.ping();
        target.iscsi().set_device_limits(&devices[0], None).unwrap();
        for _ in 0..2 {
            let Heard::Response { answer, .. } = initiator.listen() else { panic!("no answer") };
            answer.good();
        }
        assert_eq!(initiator.read(0, 0, 16).good(), data);
    }
    // A LUN goes while commands for it wait.
    limit(&target, &devices[0], QosLimits { r_bytes_per_sec: 16, ..ios(0) });
    let first = begin(&mut initiator, 0, READ, &data, Way::Immediate);
    initiator.finish(first).good();
    let second = begin(&mut initiator, 0, READ, &data, Way::Immediate);
    initiator.ping();
    target.iscsi().remove_lun(TARGET, 0).unwrap();
    let refused = initiator.finish(second);
    assert_eq!(refused.sense, Some((5, 0x25, 0)), "{refused:?}");
    // An initiator goes while its commands wait; nothing of them stays.
    limit(&target, &devices[1], QosLimits { r_bytes_per_sec: 16, ..ios(0) });
    for _ in 0..3 {
        begin(&mut initiator, 1, READ, &data, Way::Immediate);
    }
    drop(initiator);
    target.shutdown().unwrap();
}

/// Commands that an NVMe host and an iSCSI initiator together had answered in a time.
fn both(queue: &mut RawHost, initiator: &mut Initiator, time: Duration) -> u64 {
    // Both have the same time, whenever the thread begins.
    let end = Instant::now() + time;
    std::thread::scope(|scope| {
        let nvme = scope.spawn(|| {
            let mut answered = 0;
            while Instant::now() < end {
                queue.submit(block_sqe(io::READ, 1, 0, 1), Direction::ControllerToHost, 512);
                loop {
                    match queue.listen() {
                        NvmeHeard::Response(cqe) => assert!(cqe.status.is_success()),
                        NvmeHeard::DataEnd { success: true, .. } => {}
                        _ => continue,
                    }
                    break;
                }
                answered += u64::from(Instant::now() < end);
            }
            answered
        });
        let left = end.saturating_duration_since(Instant::now());
        let iscsi = load(initiator, (0, READ, Way::Immediate), 512, 1, left);
        iscsi + nvme.join().unwrap()
    })
}

#[test]
fn nvme_and_iscsi_share_the_limits_of_a_device_and_of_a_tenant() {
    let devices = [ram("4M"), ram("4M")];
    let (target, address) = start(&devices);
    target.add_subsystem(subsystem()).unwrap();
    target.add_namespace(&nqn(), namespace(devices[0].clone())).unwrap();
    let listener = target.add_listener("127.0.0.1:0".parse().unwrap()).unwrap();
    let (_admin, cntlid) = RawHost::admin(listener, Wants::default());
    let mut queue = RawHost::io(listener, cntlid, 1, Wants::default());
    let mut initiator = login(address);
    let of = |throttle: Throttle, initiator: &str| HostLimit {
        hosts: vec![host_nqn()],
        initiators: vec![initiator.to_owned()],
        throttle,
    };

    let throttle = target.throttle(ios(200)).unwrap();
    target.set_namespace_limits(&nqn(), NamespaceId(1), Some(throttle.clone())).unwrap();
    target.iscsi().set_device_limits(&devices[0], Some(throttle)).unwrap();
    keeps(200, 10, || both(&mut queue, &mut initiator, SECOND));
    target.set_namespace_limits(&nqn(), NamespaceId(1), None).unwrap();
    target.iscsi().set_device_limits(&devices[0], None).unwrap();

    let throttle = target.throttle(ios(100)).unwrap();
    target.set_host_limits(vec![of(throttle, &INITIATOR.to_uppercase())]).unwrap();
    keeps(100, 8, || both(&mut queue, &mut initiator, SECOND));
    // It holds for sessions that begin later, too.
    drop(initiator);
    let mut initiator = login(address);
    keeps(100, 8, || both(&mut queue, &mut initiator, SECOND));
    let other = "iqn.2026-01.io.raceline:other";
    let throttle = target.throttle(ios(1)).unwrap();
    let limits = HostLimit { hosts: Vec::new(), ..of(throttle, other) };
    target.set_host_limits(vec![limits.clone()]).unwrap();
    let quick = Duration::from_millis(200);
    // It is another's limit.
    exceeds(200, || load(&mut initiator, (0, READ, Way::Immediate), 512, 8, quick));
    let wrong = HostLimit { initiators: vec!["nobody".to_owned()], ..limits };
    let refused = target.set_host_limits(vec![wrong]).unwrap_err().to_string();
    assert!(refused.contains("is no iSCSI name"), "{refused}");
    target.shutdown().unwrap();
}
