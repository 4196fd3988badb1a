//! iSCSI: logins, data, LUNs that come and go, task management, reservations, sessions on several cores.
#![allow(clippy::unwrap_used)] // a test

mod common;
#[path = "common/iscsi.rs"]
mod initiator_end;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use common::{config, eventually, namespace, nqn, pattern, ram, subsystem};
use initiator_end::{Heard, INITIATOR, Initiator, TARGET, config as initiator, credentials, rw};
use raceline_bdev::{DelayBdev, Delays, SharedBdev};
use raceline_iscsi::pdu::{
    AsyncEvent, LoginStatus, LogoutResponseCode, TmfFunction, TmfResponseCode,
};
use raceline_iscsi::target::Residual;
use raceline_proto::nvme::{ControllerId, NamespaceId};
use raceline_target::{
    ChapDemand, ChapPolicy, ChapSecret, InitiatorGroupConfig, IscsiError, IscsiNodeStats,
    IscsiSettings, IscsiTotals, LunConfig, PortalGroupConfig, PortalMap, Target, TargetConfig,
    TargetError, TargetNodeConfig,
};

const MAP: PortalMap = PortalMap { portal_group: 1, initiator_group: 1 };
const UNIT_ATTENTION: u8 = 6;
const CONFLICT: u8 = 0x18;

fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// A target node with these LUNs, and where it listens.
fn start(config: TargetConfig, devices: Vec<SharedBdev>) -> (Target, SocketAddr) {
    let target = Target::start(config).unwrap();
    let address = export(&target, devices);
    (target, address)
}

fn export(target: &Target, devices: Vec<SharedBdev>) -> SocketAddr {
    let iscsi = target.iscsi();
    iscsi.set_initiator_group(InitiatorGroupConfig::any(1)).unwrap();
    let group = PortalGroupConfig { wait: true, ..PortalGroupConfig::new(1, vec![loopback()]) };
    iscsi.add_portal_group(group).unwrap();
    let luns = devices.into_iter().map(LunConfig::new).collect();
    let node = TargetNodeConfig { maps: vec![MAP], luns, ..TargetNodeConfig::new(TARGET) };
    iscsi.add_target_node(node).unwrap();
    iscsi.start_portal_group(1).unwrap()[0]
}

/// A RAM disk on which every operation takes this time.
fn slow(size: &str, time: Duration) -> SharedBdev {
    Arc::new(DelayBdev::new(ram(size), Delays::all(time)))
}

fn refusal(address: SocketAddr, target: &str) -> LoginStatus {
    Initiator::try_login(address, initiator(Some(target), 1)).err().expect("refused")
}

#[test]
fn discovery_tells_who_asks_what_it_may_use() {
    let (target, address) = start(config(1), vec![ram("1M")]);
    let mut discovery = Initiator::try_login(address, initiator(None, 1)).unwrap();
    let all = discovery.targets("All");
    assert_eq!(all, [(TARGET.to_owned(), vec![(address.to_string(), 1)])]);
    assert_eq!(discovery.targets(TARGET), all);
    assert_eq!(discovery.targets("iqn.2026-01.io.raceline:other"), []);
    let nobody =
        InitiatorGroupConfig { initiators: vec!["!ANY".into()], ..InitiatorGroupConfig::any(1) };
    target.iscsi().set_initiator_group(nobody).unwrap();
    assert_eq!(discovery.targets("All"), []);
    target.shutdown().unwrap();
}

#[test]
fn logins_are_refused_for_a_reason() {
    let (target, address) = start(config(1), vec![ram("1M")]);
    let iscsi = target.iscsi();
    assert_eq!(refusal(address, "iqn.2026-01.io.raceline:other"), LoginStatus::NOT_FOUND);
    let only = |name: &str| InitiatorGroupConfig {
        initiators: vec![name.into()],
        ..InitiatorGroupConfig::any(1)
    };
    iscsi.set_initiator_group(only("iqn.2026-01.io.raceline:friend")).unwrap();
    assert_eq!(refusal(address, TARGET), LoginStatus::NOT_AUTHORIZED);
    iscsi.set_initiator_group(only(INITIATOR)).unwrap();
    iscsi.set_redirect(TARGET, 1, Some("192.0.2.1:3260".parse().unwrap())).unwrap();
    assert_eq!(refusal(address, TARGET), LoginStatus::MOVED_TEMPORARILY);
    iscsi.set_redirect(TARGET, 1, None).unwrap();
    Initiator::login(address, 1).test_unit_ready(0).good();
    iscsi.set_settings(IscsiSettings { max_sessions: 1, ..iscsi.settings() }).unwrap();
    let _one = Initiator::login(address, 1);
    let full = Initiator::try_login(address, initiator(Some(TARGET), 2)).err();
    assert_eq!(full, Some(LoginStatus::OUT_OF_RESOURCES));
    target.shutdown().unwrap();
}

#[test]
fn what_initiators_do_is_counted_by_target_node() {
    // Memory answers at once; the other device takes a while, so its commands have slots and buffers.
    let (target, address) = start(config(2), vec![ram("1M"), slow("1M", Duration::from_millis(2))]);
    let of_node = || {
        let all = target.iscsi().stats();
        assert_eq!(all.len(), 1, "{all:?}");
        assert_eq!(all[0].name, TARGET);
        all[0].clone()
    };
    assert_eq!((of_node().sessions, of_node().sessions_ever), (0, 0));
    let (mut first, mut second) = (Initiator::login(address, 1), Initiator::login(address, 2));
    for lun in [0, 1] {
        first.test_unit_ready(lun).good();
        first.write(lun, 0, &pattern(0, 8 << 10)).good();
        assert_eq!(first.read(lun, 0, 4).good(), pattern(0, 2048));
        second.read(lun, 8, 2).good();
    }
    first.compare_and_write(0, &pattern(0, 512), &[7; 512]).good();
    let before = of_node();
    // Beyond the end.
    assert_ne!(first.read(0, 1 << 20, 1).status, 0);
    let node = of_node();
    assert_eq!((node.sessions, node.sessions_ever), (2, 2));
    let IscsiTotals { commands, reads, writes, errors, .. } = node.totals;
    assert_eq!((reads, writes, errors - before.totals.errors), (4, 3, 1), "{node:?}");
    assert!(commands >= 10, "{node:?}");
    assert_eq!(node.totals.read_bytes, 2 * (2048 + 1024));
    // Compare and Write sends both the old block and the new one.
    assert_eq!(node.totals.written_bytes, 2 * (8 << 10) + 1024);
    // Sessions that are gone count.
    drop((first, second));
    eventually("the sessions are gone", || of_node().sessions == 0);
    assert_eq!(of_node(), IscsiNodeStats { sessions: 0, ..node });
    target.shutdown().unwrap();
}

#[test]
fn initiators_prove_who_they_are() {
    let (target, address) = start(config(1), vec![ram("1M")]);
    let iscsi = target.iscsi();
    let secret = ChapSecret {
        user: "host".into(),
        secret: "secret of a host".into(),
        mutual: Some(("disk".into(), "secret of a disk".into())),
    };
    iscsi.set_auth_group(3, vec![secret]).unwrap();
    iscsi.set_auth(TARGET, ChapPolicy { demand: ChapDemand::Required, group: 3 }).unwrap();
    let login = |user: &str, secret: &str| {
        let mut config = initiator(Some(TARGET), 1);
        config.credentials = Some(credentials(user, secret));
        Initiator::try_login(address, config).map(|_| ())
    };
    assert_eq!(refusal(address, TARGET), LoginStatus::AUTHENTICATION_FAILED, "without CHAP");
    assert_eq!(login("host", "secret of a host"), Ok(()));
    assert_eq!(login("host", "another secret!!"), Err(LoginStatus::AUTHENTICATION_FAILED));
    assert_eq!(login("nobody", "secret of a host"), Err(LoginStatus::AUTHENTICATION_FAILED));
    iscsi.set_auth(TARGET, ChapPolicy { demand: ChapDemand::Mutual, group: 3 }).unwrap();
    assert_eq!(
        login("host", "secret of a host"),
        Err(LoginStatus::AUTHENTICATION_FAILED),
        "one way"
    );
    let mut both = initiator(Some(TARGET), 1);
    let disk = raceline_iscsi::chap::Secret::new(b"secret of a disk".to_vec());
    let target_too = Some(("disk".to_owned(), disk));
    both.credentials = Some(raceline_iscsi::initiator::InitiatorCredentials {
        target: target_too,
        ..credentials("host", "secret of a host")
    });
    Initiator::try_login(address, both).unwrap().test_unit_ready(0).good();
    iscsi.remove_auth_group(3).unwrap();
    assert_eq!(login("host", "secret of a host"), Err(LoginStatus::AUTHENTICATION_FAILED));
    target.shutdown().unwrap();
}

/// Writes and reads of many sizes, which come with their command, unsolicited behind it, and on request.
fn data_arrive(address: SocketAddr, header_digest: bool, data_digest: bool) {
    let mut settings = initiator(Some(TARGET), 1);
    settings.wishes.header_digest = header_digest;
    settings.wishes.data_digest = data_digest;
    let mut host = Initiator::try_login(address, settings).unwrap();
    assert_eq!(host.proto.data_digest(), data_digest);
    let sizes: [usize; 7] = [512, 4096, 65_536, 262_144, 262_656, 524_288, 1 << 20];
    for (seed, bytes) in (1_u64..).zip(sizes) {
        let data = pattern(seed, bytes);
        let blocks = u16::try_from(bytes / 512).unwrap();
        host.write(0, 3, &data).good();
        assert_eq!(host.read(0, 3, blocks).good(), data, "{bytes} bytes");
        let data = pattern(seed + 100, bytes);
        let slot = host.start_unsolicited(0, &rw(0x2a, 7, blocks), &data);
        host.finish(slot).good();
        assert_eq!(host.read(0, 7, blocks).good(), data, "{bytes} bytes unsolicited");
    }
    host.ping();
}

#[test]
fn data_arrive_whole_over_memory() {
    let (target, address) = start(config(1), vec![ram("4M")]);
    data_arrive(address, false, false);
    data_arrive(address, true, true);
    data_arrive(address, false, true);
    target.shutdown().unwrap();
}

#[test]
fn data_arrive_whole_over_a_device_that_takes_its_time() {
    let (target, address) = start(config(1), vec![slow("4M", Duration::from_micros(300))]);
    data_arrive(address, false, false);
    data_arrive(address, true, true);
    target.shutdown().unwrap();
}

#[test]
fn many_commands_at_once_share_few_buffers() {
    let few = TargetConfig { large_buffers_per_core: 8, small_buffers_per_core: 4, ..config(1) };
    let (target, address) = start(few, vec![slow("16M", Duration::from_micros(200))]);
    let mut host = Initiator::login(address, 1);
    let data: Vec<Vec<u8>> = (0..32).map(|seed| pattern(seed, 300 << 10)).collect();
    let slots: Vec<u16> = (0_u32..)
        .zip(&data)
        .map(|(place, data)| host.start(0, &rw(0x2a, place * 600, 600), 0, data))
        .collect();
    let mut left = slots;
    while !left.is_empty() {
        let Heard::Response { slot, answer } = host.listen() else { panic!("an answer") };
        answer.good();
        left.retain(|other| *other != slot);
    }
    for (place, data) in (0_u32..).zip(&data) {
        assert_eq!(host.read(0, place * 600, 600).good(), *data);
    }
    // The data of these come with their commands: the socket waits for buffers.
    let data: Vec<Vec<u8>> = (50..114).map(|seed| pattern(seed, 64 << 10)).collect();
    let mut left: Vec<u16> = (0_u32..)
        .zip(&data)
        .map(|(place, data)| host.start(0, &rw(0x2a, place * 128, 128), 0, data))
        .collect();
    while !left.is_empty() {
        let Heard::Response { slot, answer } = host.listen() else { panic!("an answer") };
        answer.good();
        left.retain(|other| *other != slot);
    }
    for (place, data) in (0_u32..).zip(&data) {
        assert_eq!(host.read(0, place * 128, 128).good(), *data);
    }
    target.shutdown().unwrap();
}

#[test]
fn data_that_a_command_does_not_take_are_dropped() {
    let (target, address) = start(config(1), vec![slow("1M", Duration::from_micros(100))]);
    let mut host = Initiator::login(address, 1);
    for bytes in [1024_usize, 65_536, 262_144, 524_288] {
        // One block, and the initiator sends more.
        let data = pattern(bytes as u64, bytes);
        let slot = host.start(0, &rw(0x2a, 5, 1), 0, &data);
        let answer = host.finish(slot);
        let rest = u32::try_from(bytes - 512).unwrap();
        assert_eq!(answer.outcome.residual, Residual::Underflow(rest));
        answer.good();
        assert_eq!(host.read(0, 5, 1).good(), data[..512]);
        // No such block: the data are of no use.
        let answer = host.execute(0, &rw(0x2a, 1 << 20, 1), 0, &data);
        assert_eq!(answer.sense, Some((5, 0x21, 0)));
    }
    assert_eq!(host.read(0, 6, 1).good(), [0; 512]);
    target.shutdown().unwrap();
}

#[test]
fn one_device_is_namespace_and_lun() {
    let device = ram("1M");
    let (target, nvme) = common::start(config(2), vec![Arc::clone(&device)]);
    let address = export(&target, vec![device]);
    let mut host = Initiator::login(address, 1);
    let (_admin, cntlid): (_, ControllerId) =
        common::RawHost::admin(nvme, common::Wants::default());
    let mut queue = common::RawHost::io(nvme, cntlid, 1, common::Wants::default());
    let ours = pattern(5, 4096);
    host.write(0, 16, &ours).good();
    assert_eq!(queue.read(1, 16, 8, 512).data, ours);
    let theirs = pattern(6, 4096);
    assert!(queue.write(1, 16, &theirs, 512).cqe.status.is_success());
    assert_eq!(host.read(0, 16, 8).good(), theirs);
    // The namespace goes, the LUN stays.
    target.remove_namespace(&nqn(), NamespaceId(1)).unwrap();
    assert_eq!(host.read(0, 16, 8).good(), theirs);
    target.shutdown().unwrap();
}

#[test]
fn compare_and_write_is_atomic_across_cores() {
    let (target, address) = start(config(2), vec![ram("1M")]);
    const EACH: u32 = 40;
    let workers: Vec<_> = (0..4)
        .map(|number| {
            std::thread::spawn(move || {
                let mut host = Initiator::login(address, number);
                let mut done = 0;
                while done < EACH {
                    let old = host.read(0, 9, 1).good();
                    let count = u32::from_be_bytes([old[0], old[1], old[2], old[3]]);
                    let mut new = old.clone();
                    new[..4].copy_from_slice(&(count + 1).to_be_bytes());
                    let answer = host.compare_and_write(9, &old, &new);
                    match answer.sense {
                        None => done += 1,
                        Some(sense) => assert_eq!(sense, (0xe, 0x1d, 0), "MISCOMPARE"),
                    }
                }
            })
        })
        .collect();
    eventually("sessions on both cores", || {
        let cores: Vec<usize> = target.iscsi().connections().iter().map(|c| c.core).collect();
        cores.len() < 4 || cores.contains(&0) && cores.contains(&1)
    });
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    let block = Initiator::login(address, 9).read(0, 9, 1).good();
    assert_eq!(u32::from_be_bytes([block[0], block[1], block[2], block[3]]), 4 * EACH);
    target.shutdown().unwrap();
}

#[test]
fn luns_come_and_go_while_initiators_are_connected() {
    let (target, address) = start(config(2), vec![ram("1M")]);
    let iscsi = target.iscsi();
    let mut host = Initiator::login(address, 1);
    assert_eq!(host.test_unit_ready(1).sense, Some((5, 0x25, 0)));
    assert_eq!(iscsi.add_lun(TARGET, LunConfig::new(ram("2M"))).unwrap(), 1);
    assert_eq!(host.test_unit_ready(0).sense, Some((UNIT_ATTENTION, 0x3f, 0x0e)));
    let luns = host.execute(0, &[0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0], 64, &[]).good();
    assert_eq!((luns.len(), luns[3], luns[17]), (24, 16, 1));
    // REPORT LUNS has told it for all LUNs.
    host.write(1, 0, &pattern(1, 512)).good();
    iscsi.remove_lun(TARGET, 1).unwrap();
    assert_eq!(host.test_unit_ready(1).sense, Some((5, 0x25, 0)));
    assert_eq!(host.test_unit_ready(0).sense, Some((UNIT_ATTENTION, 0x3f, 0x0e)));
    host.test_unit_ready(0).good();
    let twice = iscsi.add_lun(TARGET, LunConfig { lun: Some(0), ..LunConfig::new(ram("1M")) });
    assert!(matches!(twice, Err(TargetError::Iscsi(IscsiError::Exists(_)))), "{twice:?}");
    target.shutdown().unwrap();
}

#[test]
fn a_reservation_holds_on_all_cores() {
    let (target, address) = start(config(2), vec![ram("1M")]);
    let mut one = Initiator::login(address, 1);
    let mut two = Initiator::login(address, 2);
    one.reserve_out(0, 0, 0, 0x11).good();
    two.reserve_out(0, 0, 0, 0x22).good();
    one.reserve_out(1, 1, 0x11, 0).good(); // write exclusive
    assert_eq!(two.write(0, 0, &[7; 512]).status, CONFLICT);
    two.read(0, 0, 1).good();
    one.write(0, 0, &[7; 512]).good();
    two.reserve_out(4, 1, 0x22, 0x11).good(); // preempt
    assert_eq!(one.test_unit_ready(0).sense, Some((UNIT_ATTENTION, 0x2a, 0x05)));
    assert_eq!(one.write(0, 0, &[7; 512]).status, CONFLICT);
    two.write(0, 0, &[8; 512]).good();
    // Registrations outlive the session.
    drop(two);
    eventually("the session is gone", || target.iscsi().connections().len() == 1);
    assert_eq!(one.write(0, 0, &[7; 512]).status, CONFLICT);
    let mut two = Initiator::login(address, 2);
    two.reserve_out(3, 0, 0x22, 0).good(); // clear
    one.write(0, 0, &[7; 512]).good();
    target.shutdown().unwrap();
}

#[test]
fn preempt_and_abort_ends_commands_of_others() {
    let (target, address) = start(config(2), vec![slow("1M", Duration::from_secs(2))]);
    let mut one = Initiator::login(address, 1);
    let mut two = Initiator::login(address, 2);
    one.reserve_out(0, 0, 0, 0x11).good();
    two.reserve_out(0, 0, 0, 0x22).good();
    one.reserve_out(1, 3, 0x11, 0).good();
    let lost = one.start(0, &rw(0x2a, 0, 1), 0, &[7; 512]);
    one.ping();
    two.reserve_out(5, 3, 0x22, 0x11).good();
    // The write at the device has ended, without an answer.
    one.ping();
    one.proto.forget(lost);
    assert_eq!(one.test_unit_ready(0).sense, Some((UNIT_ATTENTION, 0x2a, 0x05)));
    target.shutdown().unwrap();
}

#[test]
fn a_session_that_is_begun_anew_ends_the_old_one_first() {
    let (target, address) = start(config(2), vec![slow("1M", Duration::from_secs(2))]);
    let mut old = Initiator::login(address, 1);
    let handle = old.proto.tsih();
    old.start(0, &rw(0x2a, 0, 1), 0, &[0xaa; 512]);
    old.ping();
    let mut new = Initiator::login(address, 1);
    assert_ne!(new.proto.tsih(), handle);
    assert!(matches!(old.listen(), Heard::Closed));
    assert_eq!(new.test_unit_ready(0).sense, Some((UNIT_ATTENTION, 0x29, 0x07)), "nexus loss");
    // Had the old write come after the login, it would have come after this one.
    new.write(0, 0, &[0xbb; 512]).good();
    assert_eq!(new.read(0, 0, 1).good(), [0xbb; 512]);
    assert_eq!(target.iscsi().connections().len(), 1);
    target.shutdown().unwrap();
}

#[test]
fn task_management_ends_commands_and_tells_others() {
    let (target, address) = start(config(2), vec![slow("1M", Duration::from_secs(2))]);
    let mut host = Initiator::login(address, 1);
    let mut other = Initiator::login(address, 2);
    let slot = host.start(0, &rw(0x28, 0, 1), 512, &[]);
    let code = host.manage(TmfFunction::AbortTask, Some(slot));
    assert_eq!(code, Some(TmfResponseCode::Complete));
    host.proto.forget(slot);
    let slots: Vec<u16> = (0..5).map(|_| host.start(0, &rw(0x28, 0, 1), 512, &[])).collect();
    let code = host.manage(TmfFunction::AbortTaskSet, None);
    assert_eq!(code, Some(TmfResponseCode::Complete));
    slots.into_iter().for_each(|slot| host.proto.forget(slot));
    let lost = other.start(0, &rw(0x28, 0, 1), 512, &[]);
    other.ping();
    let code = host.manage(TmfFunction::LogicalUnitReset, None);
    assert_eq!(code, Some(TmfResponseCode::Complete));
    other.proto.forget(lost);
    assert_eq!(other.test_unit_ready(0).sense, Some((UNIT_ATTENTION, 0x29, 0x03)));
    assert_eq!(host.test_unit_ready(0).sense, Some((UNIT_ATTENTION, 0x29, 0x03)));
    host.read(0, 0, 1).good();
    assert_eq!(
        host.manage(TmfFunction::TaskReassign, None),
        Some(TmfResponseCode::ReassignUnsupported)
    );
    assert_eq!(host.manage(TmfFunction::TargetWarmReset, None), Some(TmfResponseCode::Complete));
    assert_eq!(other.test_unit_ready(0).sense, Some((UNIT_ATTENTION, 0x29, 0x02)));
    target.shutdown().unwrap();
}

#[test]
fn initiators_log_out_of_their_own_will_and_when_asked() {
    let (target, address) = start(config(1), vec![slow("1M", Duration::from_secs(2))]);
    let mut host = Initiator::login(address, 1);
    target.iscsi().request_logout(TARGET, Some(1)).unwrap();
    assert!(matches!(host.listen(), Heard::Async(Some(AsyncEvent::LogoutRequested))));
    host.start(0, &rw(0x28, 0, 1), 512, &[]);
    let mut out = Vec::new();
    assert!(host.proto.logout(&mut out));
    host.send(&out);
    let heard = host.listen();
    assert!(matches!(heard, Heard::LoggedOut(Some(LogoutResponseCode::Closed))), "{heard:?}");
    drop(host);
    eventually("the session is gone", || target.iscsi().connections().is_empty());
    target.shutdown().unwrap();
}

#[test]
fn a_silent_initiator_is_pinged_and_then_given_up() {
    let target = Target::start(config(1)).unwrap();
    let quick = Duration::from_millis(50);
    let settings = IscsiSettings {
        nop_in_interval: Some(quick),
        nop_timeout: 4 * quick,
        ..IscsiSettings::default()
    };
    target.iscsi().set_settings(settings).unwrap();
    let address = export(&target, vec![ram("1M")]);
    let silent = Initiator::login(address, 1);
    eventually("it is given up", || target.iscsi().connections().is_empty());
    drop(silent);
    target.shutdown().unwrap();
}

#[test]
fn who_loses_its_way_in_is_disconnected() {
    let (target, address) = start(config(2), vec![ram("1M")]);
    let iscsi = target.iscsi();
    let in_use = iscsi.remove_portal_group(1);
    assert!(matches!(in_use, Err(TargetError::Iscsi(IscsiError::InUse { .. }))), "{in_use:?}");
    let mut host = Initiator::login(address, 1);
    iscsi.remove_maps(TARGET, &[MAP]).unwrap();
    assert!(matches!(host.listen(), Heard::Closed));
    iscsi.add_maps(TARGET, &[MAP]).unwrap();
    let mut host = Initiator::login(address, 1);
    iscsi.remove_target_node(TARGET).unwrap();
    assert!(matches!(host.listen(), Heard::Closed));
    assert_eq!(refusal(address, TARGET), LoginStatus::NOT_FOUND);
    iscsi.remove_portal_group(1).unwrap();
    assert!(std::net::TcpStream::connect(address).is_err());
    target.shutdown().unwrap();
}

#[test]
fn a_disk_that_grows_is_reported() {
    let path = std::env::temp_dir().join(format!("raceline-iscsi-{}.img", std::process::id()));
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(1 << 20).unwrap();
    let identity = raceline_bdev::Identity::of_this_machine();
    let spec = format!("file:{}", path.display());
    let device = raceline_bdev::open(&spec.parse().unwrap(), &identity).unwrap();
    let (target, address) = start(config(1), vec![Arc::clone(&device)]);
    let mut host = Initiator::login(address, 1);
    let data = pattern(3, 64 << 10);
    host.write(0, 8, &data).good();
    assert_eq!(host.read(0, 8, 128).good(), data);
    file.set_len(2 << 20).unwrap();
    device.rescan().unwrap();
    target.refresh_sizes().unwrap();
    assert_eq!(host.test_unit_ready(0).sense, Some((UNIT_ATTENTION, 0x2a, 0x09)));
    let capacity = host.execute(0, &[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], 8, &[]).good();
    assert_eq!(capacity[..4], 4095_u32.to_be_bytes());
    host.write(0, 4088, &[1; 4096]).good();
    target.shutdown().unwrap();
    std::fs::remove_file(path).unwrap();
}

#[test]
fn subsystems_and_nodes_are_apart() {
    let target = Target::start(config(1)).unwrap();
    target.add_subsystem(subsystem()).unwrap();
    target.add_namespace(&nqn(), namespace(ram("1M"))).unwrap();
    let address = export(&target, vec![ram("1M")]);
    let nodes = target.iscsi().target_nodes();
    assert_eq!((nodes.len(), nodes[0].luns.len(), nodes[0].maps.len()), (1, 1, 1));
    assert_eq!(target.iscsi().portal_groups()[0].portals, [address]);
    assert_eq!(target.listeners().len(), 0);
    target.shutdown().unwrap();
}
