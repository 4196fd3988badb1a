//! Sessions with Raceline's own target: logins, data of all sizes, what happens when the target goes away.
#![allow(clippy::unwrap_used)] // a test

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{BLOCK, Core, TARGET, config, name, pattern, ram, serve, serve_at};
use raceline_bdev::{DelayBdev, Delays};
use raceline_initiator::{
    BlockingSession, Chap, Secret, SessionConfig, SessionError, SessionEvent, Task, TaskError,
    UnitInfo, cdb,
};
use raceline_target::{ChapDemand, ChapPolicy, ChapSecret};

fn blocks(bytes: usize) -> u32 {
    u32::try_from(bytes / BLOCK).unwrap()
}

/// Writes and reads of many sizes, one by one and all at once.
fn data_arrive(settings: SessionConfig) {
    let mut core = Core::ready(settings);
    let sizes: [usize; 8] = [512, 4096, 65_536, 131_072, 262_144, 262_656, 524_288, 1 << 20];
    for (seed, bytes) in (1_u64..).zip(sizes) {
        let data = pattern(seed, bytes);
        core.write(3, &data, seed);
        assert_eq!(core.take_done(seed).result, Ok(0), "{bytes} bytes");
        assert_eq!(core.data(3, blocks(bytes)), data, "{bytes} bytes");
    }
    let data: Vec<Vec<u8>> = (0..100).map(|seed| pattern(seed + 50, 16_384)).collect();
    for (user, data) in (0_u64..).zip(&data) {
        core.write(user * 32, data, user);
    }
    for user in 0..100 {
        assert_eq!(core.take_done(user).result, Ok(0));
    }
    for user in 0..100 {
        core.read(user * 32, 32, user);
    }
    for (user, data) in (0_u64..).zip(&data) {
        let done = core.take_done(user);
        assert_eq!(done.result, Ok(16_384));
        assert!(
            matches!(done.data, raceline_initiator::TaskData::Read(buf) if buf[..] == data[..])
        );
    }
    core.close();
    assert!(core.lost().is_none(), "{:?}", core.events);
}

#[test]
fn data_arrive_whole_with_and_without_digests() {
    let (target, address) = serve(vec![ram("4M")]);
    for (header_digest, data_digest) in [(false, false), (true, true), (false, true), (true, false)]
    {
        data_arrive(SessionConfig { header_digest, data_digest, ..config(address) });
    }
    target.shutdown().unwrap();
}

#[test]
fn data_arrive_whole_over_a_device_that_takes_its_time() {
    let slow = DelayBdev::new(ram("4M"), Delays::all(Duration::from_micros(300)));
    let (target, address) = serve(vec![Arc::new(slow)]);
    data_arrive(config(address));
    data_arrive(SessionConfig { depth: 3, ..config(address) }.deep());
    target.shutdown().unwrap();
}

/// A depth that the test above fills beyond the target's window.
trait Deep {
    fn deep(self) -> Self;
}

impl Deep for SessionConfig {
    fn deep(self) -> Self {
        Self { depth: 512, ..self }
    }
}

#[test]
fn errors_are_those_of_the_target() {
    let (target, address) = serve(vec![ram("1M")]);
    let mut core = Core::ready(config(address));
    core.read(1 << 20, 1, 1);
    let done = core.take_done(1);
    let Err(TaskError::Check(check)) = done.result else { panic!("{done:?}") };
    assert_eq!(check.code(), (5, 0x21, 0));
    core.submit(Task::plain([0xee; 16]), 2);
    assert!(matches!(core.take_done(2).result, Err(TaskError::Check(check)) if check.asc == 0x20));
    let compare = pattern(1, 1024);
    core.submit(
        Task::send(
            cdb::compare_and_write(0, 1),
            raceline_reactor::IoBuf::from_slice(&compare).share(),
        ),
        3,
    );
    assert!(matches!(core.take_done(3).result, Err(TaskError::Check(check)) if check.key == 0xe));
    assert_eq!(core.data(0, 1), [0; 512]);
    core.close();
    target.shutdown().unwrap();
}

#[test]
fn a_unit_is_described() {
    let (target, address) = serve(vec![ram("1M"), ram("2M")]);
    let session = BlockingSession::connect(config(address)).unwrap();
    let unit = UnitInfo::read(&session).unwrap();
    assert_eq!((unit.block_size, unit.block_count), (512, 2048));
    assert_eq!(unit.uuid(TARGET, 0), unit.uuid("another name", 0), "it has an identity");
    assert!(unit.max_unmap_blocks.is_some() && !unit.write_protected, "{unit:?}");
    assert_eq!(raceline_initiator::luns(&session).unwrap(), [0, 1]);
    session.send(cdb::write_same(0, 8, false), vec![7; 512]).unwrap();
    assert_eq!(session.receive(cdb::read(7, 1), 512).unwrap(), [7; 512]);
    session.send(cdb::unmap(24), cdb::unmap_list(0, 4).to_vec()).unwrap();
    session.send(cdb::synchronize_cache(), Vec::new()).unwrap();
    assert_eq!(session.receive(cdb::read(3, 1), 512).unwrap(), [0; 512]);
    session.close();
    let missing = BlockingSession::connect(SessionConfig { lun: 7, ..config(address) }).unwrap();
    let error = UnitInfo::read(&missing).unwrap_err();
    assert!(error.to_string().contains("no logical unit 7"), "{error}");
    target.shutdown().unwrap();
}

#[test]
fn portals_tell_of_their_targets() {
    let (target, address) = serve(vec![ram("1M")]);
    let discovery = SessionConfig { target_name: None, ..config(address) };
    let session = BlockingSession::connect(discovery).unwrap();
    let targets = session.discover("All").unwrap();
    assert_eq!(targets.len(), 1);
    assert_eq!(
        (targets[0].name.as_str(), &targets[0].addresses[..]),
        (TARGET, &[(address.to_string(), 1)][..])
    );
    session.close();
    let other = SessionConfig {
        target_name: Some(name("iqn.2026-01.io.raceline:other")),
        ..config(address)
    };
    let error = BlockingSession::connect(other).unwrap_err();
    assert!(
        error.is_refusal() && error.to_string().contains("ask the target for its names"),
        "{error}"
    );
    target.shutdown().unwrap();
}

#[test]
fn both_ends_prove_who_they_are() {
    let (target, address) = serve(vec![ram("1M")]);
    let iscsi = target.iscsi();
    let mutual = Some(("disk".into(), "secret of a disk".into()));
    let secret = ChapSecret { user: "host".into(), secret: "secret of a host".into(), mutual };
    iscsi.set_auth_group(3, vec![secret]).unwrap();
    iscsi.set_auth(TARGET, ChapPolicy { demand: ChapDemand::Required, group: 3 }).unwrap();
    let secret = |text: &str| Secret::new(text.as_bytes().to_vec());
    let login = |secret_text: &str, of_target: Option<&str>| {
        let target = of_target.map(|text| ("disk".to_owned(), secret(text)));
        let chap = Some(Chap { user: "host".into(), secret: secret(secret_text), target });
        BlockingSession::connect(SessionConfig { chap, ..config(address) }).map(|it| it.close())
    };
    login("secret of a host", None).unwrap();
    login("secret of a host", Some("secret of a disk")).unwrap();
    let error = login("another secret!!", None).unwrap_err();
    assert!(error.to_string().contains("the secret that the target knows"), "{error}");
    let error = login("secret of a host", Some("not of the disk!")).unwrap_err();
    assert!(matches!(error, SessionError::Protocol(..)), "{error}");
    let error = BlockingSession::connect(config(address)).unwrap_err();
    assert!(error.is_refusal() || matches!(error, SessionError::Protocol(..)), "{error}");
    target.shutdown().unwrap();
}

#[test]
fn a_lost_target_is_found_again_and_writes_under_way_are_not_replayed() {
    let device = ram("4M");
    let slow =
        || Arc::new(DelayBdev::new(Arc::clone(&device), Delays::all(Duration::from_millis(200))));
    let (target, address) = serve(vec![slow()]);
    let mut core = Core::ready(config(address));
    let data = pattern(9, 4096);
    core.write(64, &data, 1);
    core.read(0, 8, 2);
    core.until("sent", |core| core.session.counters().totals().pdus_sent == 2);
    for _ in 0..20 {
        core.turn();
    }
    target.shutdown().unwrap();
    let write = core.take_done(1);
    assert!(matches!(write.result, Err(TaskError::UnknownFate) | Ok(0)), "{write:?}");
    core.write(128, &data, 3); // waits
    let (target, _) = serve_at(address, vec![Arc::clone(&device)]);
    assert_eq!(core.take_done(2).result, Ok(4096), "a read is sent again");
    assert_eq!(core.take_done(3).result, Ok(0));
    assert_eq!(core.data(128, 8), data);
    let readies = core.events.iter().filter(|event| matches!(event, SessionEvent::Ready)).count();
    assert!(readies >= 2 && core.lost().is_some(), "{:?}", core.events);
    core.close();
    target.shutdown().unwrap();
}

#[test]
fn a_session_that_is_given_up_ends_all_tasks() {
    let (target, address) = serve(vec![ram("1M")]);
    let never =
        SessionConfig { backoff: raceline_initiator::BackoffConfig::NEVER, ..config(address) };
    let mut core = Core::ready(never);
    target.shutdown().unwrap();
    core.until("given up", |core| core.session.is_closed());
    assert!(core.lost().is_some());
    let error = Session::submit_plain(&mut core);
    assert_eq!(error, raceline_initiator::RejectedReason::Closed);
}

/// What a closed session says.
struct Session;

impl Session {
    fn submit_plain(core: &mut Core) -> raceline_initiator::RejectedReason {
        let now = core.io.now();
        let mut cx = raceline_reactor::Context { io: &mut *core.io, pool: &core.pool, now };
        let task = Task::plain(cdb::test_unit_ready());
        core.session.submit(&mut cx, task, 1).unwrap_err().reason
    }
}

#[test]
fn a_target_that_asks_for_a_logout_gets_one_and_the_session_is_made_again() {
    let (target, address) = serve(vec![ram("1M")]);
    let mut core = Core::ready(config(address));
    target.iscsi().request_logout(TARGET, None).unwrap();
    core.until("a loss", |core| core.lost().is_some());
    assert!(core.lost().unwrap().contains("logout"), "{:?}", core.events);
    core.until("ready again", |core| core.session.is_ready());
    assert_eq!(core.data(0, 1), [0; 512]);
    core.close();
    target.shutdown().unwrap();
}
