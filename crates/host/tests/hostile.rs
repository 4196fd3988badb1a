//! A target that breaks every rule: each breach ends in a typed error within its time, touches no
//! memory but the command's own, and leaves other controllers alone.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::time::Duration;

use common::{BLOCK, Raw, Script, Step, World, config};
use raceline_host::{
    BlockRange, Command, CommandDone, CommandError, ControllerEvent, HostConfig, HostError,
    IoQueueEvent,
};
use raceline_proto::nvme::{NamespaceId, Status};
use raceline_reactor::{IoBuf, SimConfig};

const NS: NamespaceId = NamespaceId(1);
/// The read that is answered wrongly.
const READ_BLOCKS: u32 = 8;
const READ_BYTES: u32 = 4096;
/// The write: too large for its capsule, so that an R2T is due.
const WRITE_BYTES: u32 = 8192;
/// What lies behind a read's buffer and must stay there.
const CANARY: u8 = 0xc5;
const BUFFER_BYTES: usize = 128 << 10;
/// Until a command has to have ended, whatever happens.
const COMMAND_LIMIT: Duration = Duration::from_secs(8);

/// PDU types (NVMe/TCP Transport 1.0, 3.6.1).
const IC_RESP: u8 = 1;
const TERM_REQ: u8 = 3;
const CAPSULE_CMD: u8 = 4;
const RESPONSE: u8 = 5;
const H2C_DATA: u8 = 6;
const DATA: u8 = 7;
const R2T: u8 = 9;
/// Flags.
const LAST: u8 = 4;
const SUCCESS: u8 = 8;

/// A PDU with this common header; the fields from byte 8 on follow.
fn pdu(kind: u8, flags: u8, (hlen, pdo): (u8, u8), plen: u32, rest: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind, flags, hlen, pdo];
    bytes.extend(plen.to_le_bytes());
    bytes.extend(rest);
    bytes
}

/// The fields of C2HData and R2T: CCCID, TTAG, offset, length.
fn fields(cid: u16, offset: u32, len: u32) -> Vec<u8> {
    let mut bytes = cid.to_le_bytes().to_vec();
    bytes.extend([0; 2]);
    bytes.extend(offset.to_le_bytes());
    bytes.extend(len.to_le_bytes());
    bytes.extend([0; 4]);
    bytes
}

fn data(cid: u16, offset: u32, len: u32, flags: u8) -> Vec<u8> {
    let mut bytes = pdu(DATA, flags, (24, 24), 24 + len, &fields(cid, offset, len));
    bytes.resize(24 + len as usize, 0xdd);
    bytes
}

fn r2t(cid: u16, offset: u32, len: u32) -> Vec<u8> {
    pdu(R2T, 0, (24, 0), 24, &fields(cid, offset, len))
}

fn response(cid: u16, status: u16) -> Vec<u8> {
    let mut cqe = vec![0; 12];
    cqe.extend(cid.to_le_bytes());
    cqe.extend((status << 1).to_le_bytes());
    pdu(RESPONSE, 0, (24, 0), 24, &cqe)
}

fn term_req(len: u32) -> Vec<u8> {
    let mut bytes = pdu(TERM_REQ, 0, (24, 0), len, &[1, 0, 0, 0, 0, 0]);
    bytes.resize((len as usize).max(24), 0);
    bytes
}

/// How it has to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The connection is lost because the target broke the protocol.
    Protocol,
    /// It is lost because the target ended it.
    Terminated,
    /// The command is not answered, and the connection is given up.
    Timeout,
    /// Only the command fails.
    Command,
}

type Answer = fn(u16) -> Vec<u8>;

/// Wrong answers to a read of 4096 bytes.
const TO_READS: &[(&str, Answer, End)] = &[
    ("an R2T", |cid| r2t(cid, 0, READ_BYTES), End::Protocol),
    ("data that begin past the end", |cid| data(cid, READ_BYTES, 4, LAST), End::Protocol),
    ("data that reach past the end", |cid| data(cid, READ_BYTES - 4, 8, LAST), End::Protocol),
    ("an offset that overflows", |cid| data(cid, u32::MAX - 3, 8, LAST), End::Protocol),
    ("more data than asked for", |cid| data(cid, 0, READ_BYTES + 512, LAST), End::Protocol),
    ("no data in C2HData", |cid| data(cid, 0, 0, LAST | SUCCESS), End::Protocol),
    (
        "the same data twice",
        |cid| [data(cid, 0, 2048, 0), data(cid, 0, 2048, LAST)].concat(),
        End::Protocol,
    ),
    (
        "data that overlap",
        |cid| [data(cid, 0, 2048, 0), data(cid, 1024, 3072, LAST)].concat(),
        End::Protocol,
    ),
    ("data with a hole before them", |cid| data(cid, 2048, 2048, LAST), End::Protocol),
    ("a second half only, and SUCCESS", |cid| data(cid, 2048, 2048, LAST | SUCCESS), End::Protocol),
    (
        "SUCCESS in a PDU that is not the last",
        |cid| data(cid, 0, READ_BYTES, SUCCESS),
        End::Protocol,
    ),
    (
        "data after the last",
        |cid| [data(cid, 0, READ_BYTES, LAST), data(cid, 0, 8, LAST)].concat(),
        End::Protocol,
    ),
    ("a success without data", |cid| response(cid, 0), End::Command),
    (
        "a success with half of the data",
        |cid| [data(cid, 0, 2048, LAST), response(cid, 0)].concat(),
        End::Command,
    ),
    ("SUCCESS with half of the data", |cid| data(cid, 0, 2048, LAST | SUCCESS), End::Protocol),
    ("an error, twice", |cid| [response(cid, 4), response(cid, 4)].concat(), End::Protocol),
    (
        "a response after SUCCESS",
        |cid| [data(cid, 0, READ_BYTES, LAST | SUCCESS), response(cid, 0)].concat(),
        End::Protocol,
    ),
    ("a response to nobody", |cid| response(cid ^ 0x8000, 0), End::Protocol),
    ("a response to a number beyond the queue", |_| response(u16::MAX, 0), End::Protocol),
    ("data for nobody", |cid| data(cid ^ 0x8000, 0, 8, LAST), End::Protocol),
    (
        "PLEN shorter than data",
        |cid| pdu(DATA, LAST, (24, 24), 24 + 100, &fields(cid, 0, READ_BYTES)),
        End::Protocol,
    ),
    (
        "PLEN longer than data",
        |cid| pdu(DATA, LAST, (24, 24), 24 + 5000, &fields(cid, 0, READ_BYTES)),
        End::Protocol,
    ),
    (
        "PLEN of 4 GiB",
        |cid| pdu(DATA, LAST, (24, 24), u32::MAX, &fields(cid, 0, READ_BYTES)),
        End::Protocol,
    ),
    (
        "PLEN below the header",
        |cid| pdu(DATA, LAST, (24, 24), 8, &fields(cid, 0, READ_BYTES)),
        End::Protocol,
    ),
    ("PLEN of 0", |cid| pdu(DATA, LAST, (24, 24), 0, &fields(cid, 0, READ_BYTES)), End::Protocol),
    (
        "PDO of 0",
        |cid| pdu(DATA, LAST, (24, 0), 24 + READ_BYTES, &fields(cid, 0, READ_BYTES)),
        End::Protocol,
    ),
    (
        "PDO inside the header",
        |cid| pdu(DATA, LAST, (24, 12), 24 + READ_BYTES, &fields(cid, 0, READ_BYTES)),
        End::Protocol,
    ),
    (
        "PDO that is not a multiple of 4",
        |cid| pdu(DATA, LAST, (24, 25), 25 + READ_BYTES, &fields(cid, 0, READ_BYTES)),
        End::Protocol,
    ),
    ("PDO past the PDU", |cid| pdu(DATA, LAST, (24, 252), 40, &fields(cid, 0, 16)), End::Protocol),
    (
        "HLEN of 0",
        |cid| pdu(DATA, LAST, (0, 24), 24 + READ_BYTES, &fields(cid, 0, READ_BYTES)),
        End::Protocol,
    ),
    (
        "HLEN of 23",
        |cid| pdu(DATA, LAST, (23, 24), 24 + READ_BYTES, &fields(cid, 0, READ_BYTES)),
        End::Protocol,
    ),
    (
        "HLEN of 255",
        |cid| pdu(DATA, LAST, (255, 24), 24 + READ_BYTES, &fields(cid, 0, READ_BYTES)),
        End::Protocol,
    ),
    ("a response that is too long", |_| pdu(RESPONSE, 0, (24, 0), 28, &[0; 20]), End::Protocol),
    ("ICResp again", |_| pdu(IC_RESP, 0, (128, 0), 128, &[0; 120]), End::Protocol),
    ("a host's PDU", |_| pdu(CAPSULE_CMD, 0, (72, 0), 72, &[0; 64]), End::Protocol),
    ("a host's data", |cid| pdu(H2C_DATA, LAST, (24, 24), 32, &fields(cid, 0, 8)), End::Protocol),
    ("a PDU type that is not defined", |_| pdu(0xbe, 0, (24, 0), 24, &[0; 16]), End::Protocol),
    ("zeroes", |_| vec![0; 4096], End::Protocol),
    ("ones", |_| vec![0xff; 4096], End::Protocol),
    (
        "a header digest that nobody wants",
        |cid| pdu(RESPONSE, 1, (24, 0), 28, &response(cid, 0)[8..]),
        End::Protocol,
    ),
    (
        "a data digest that nobody wants",
        |cid| pdu(DATA, LAST | 2, (24, 24), 28 + READ_BYTES, &fields(cid, 0, READ_BYTES)),
        End::Protocol,
    ),
    ("C2HTermReq", |_| term_req(24), End::Terminated),
    ("C2HTermReq with the PDU that was wrong", |_| term_req(152), End::Terminated),
    (
        "C2HTermReq in the middle of the data",
        |cid| [data(cid, 0, 2048, 0), term_req(24)].concat(),
        End::Terminated,
    ),
    ("C2HTermReq that is too short", |_| term_req(8), End::Protocol),
    ("C2HTermReq that is too long", |_| term_req(4096), End::Protocol),
    ("nothing", |_| Vec::new(), End::Timeout),
    ("half a header", |cid| response(cid, 0)[..11].to_vec(), End::Timeout),
    (
        "a part of the data",
        |cid| data(cid, 0, READ_BYTES, LAST | SUCCESS)[..1000].to_vec(),
        End::Timeout,
    ),
    ("all data, and no completion", |cid| data(cid, 0, READ_BYTES, LAST), End::Timeout),
];

/// Wrong answers to a write of 8192 bytes that are not in the capsule.
const TO_WRITES: &[(&str, Answer, End)] = &[
    ("data", |cid| data(cid, 0, 512, LAST), End::Protocol),
    ("an R2T past the end", |cid| r2t(cid, WRITE_BYTES, 512), End::Protocol),
    ("an R2T that reaches past the end", |cid| r2t(cid, 4096, WRITE_BYTES), End::Protocol),
    ("an R2T whose offset overflows", |cid| r2t(cid, u32::MAX - 3, 8), End::Protocol),
    ("an R2T for 4 GiB", |cid| r2t(cid, 0, u32::MAX), End::Protocol),
    ("an R2T for nothing", |cid| r2t(cid, 0, 0), End::Protocol),
    (
        "the same R2T twice",
        |cid| [r2t(cid, 0, WRITE_BYTES), r2t(cid, 0, WRITE_BYTES)].concat(),
        End::Protocol,
    ),
    ("R2Ts that overlap", |cid| [r2t(cid, 0, 4096), r2t(cid, 2048, 4096)].concat(), End::Protocol),
    ("an R2T for the second half first", |cid| r2t(cid, 4096, 4096), End::Protocol),
    (
        "more R2Ts than MAXR2T",
        |cid| (0..8).flat_map(|at| r2t(cid, at * 1024, 1024)).collect(),
        End::Protocol,
    ),
    ("an R2T for nobody", |cid| r2t(cid ^ 0x8000, 0, 512), End::Protocol),
    ("an R2T with PLEN 28", |cid| pdu(R2T, 0, (24, 0), 28, &fields(cid, 0, 512)), End::Protocol),
    // PDO is reserved there: whatever it is, the R2T counts.
    ("an R2T with a PDO", |cid| pdu(R2T, 0, (24, 24), 24, &fields(cid, 0, 512)), End::Timeout),
    ("a success before the data were asked for", |cid| response(cid, 0), End::Command),
    ("an error, twice", |cid| [response(cid, 4), response(cid, 4)].concat(), End::Protocol),
    ("an R2T after the end", |cid| [response(cid, 4), r2t(cid, 0, 512)].concat(), End::Protocol),
    ("C2HTermReq", |_| term_req(24), End::Terminated),
    ("nothing", |_| Vec::new(), End::Timeout),
    ("an R2T and no completion", |cid| r2t(cid, 0, WRITE_BYTES), End::Timeout),
];

fn impatient() -> HostConfig {
    HostConfig { command_timeout: Some(COMMAND_LIMIT), io_queues: 2, ..config() }
}

fn connected(config: &HostConfig, sim: SimConfig) -> World {
    let mut world = World::new(1, sim, config, Script::default());
    let values = (1u8..=251).cycle();
    world.target.storage.iter_mut().zip(values).for_each(|(byte, value)| *byte = value);
    world.run_until_ready();
    world
}

/// A read into the beginning of a buffer that is full of canaries.
fn read(world: &mut World, queue: usize, user: u64) {
    world.with(|_, queues, cx| {
        let mut buf = IoBuf::heap(BUFFER_BYTES);
        buf.fill(CANARY);
        buf.set_len(READ_BYTES as usize);
        let range = BlockRange::new(8, READ_BLOCKS).unwrap();
        queues.submit(cx, queue, Command::read(NS, range, buf), user).unwrap();
    });
}

/// What the read has left; nothing behind its end was touched.
#[track_caller]
fn checked(done: CommandDone, what: &str) -> Vec<u8> {
    let mut buf = done.data.into_read().expect("a read gives its buffer back");
    buf.set_len(BUFFER_BYTES);
    let (data, behind) = buf.split_at(READ_BYTES as usize);
    assert!(behind.iter().all(|&byte| byte == CANARY), "{what}: written past the buffer's end");
    data.to_vec()
}

fn stored(world: &World) -> Vec<u8> {
    world.target.storage[8 * BLOCK..][..READ_BYTES as usize].to_vec()
}

fn lost(world: &World) -> Option<HostError> {
    world.queue_events.iter().find_map(|event| match event {
        IoQueueEvent::Lost { error, .. } => Some(error.clone()),
        IoQueueEvent::Ready { .. } => None,
    })
}

#[track_caller]
fn check_end(world: &mut World, end: End, what: &str) {
    if end == End::Command {
        assert!(lost(world).is_none(), "{what}: {:?}", world.queue_events);
        return;
    }
    // The association is made again, and works.
    world.run(Duration::from_secs(60), |world| {
        world.events.iter().filter(|event| matches!(event, ControllerEvent::Up(_))).count() == 2
            && world.queues.is_ready()
    });
    let lost = lost(world);
    let right = match end {
        End::Protocol => matches!(lost, Some(HostError::Protocol(..))),
        End::Terminated => matches!(lost, Some(HostError::Terminated(..))),
        End::Timeout => matches!(lost, Some(HostError::CommandTimeout(..))),
        End::Command => false,
    };
    assert!(right, "{what}: {lost:?}");
}

/// Small and large pieces of the stream, with engines and without.
fn simulations() -> [SimConfig; 2] {
    [SimConfig::default(), SimConfig { max_chunk: 13, ..SimConfig::default() }]
}

#[test]
fn wrong_answers_to_a_read() {
    for (what, answer, end) in TO_READS {
        for sim in simulations() {
            let mut world = connected(&impatient(), sim);
            world.target.script.raw = Some(Raw(Box::new(move |sqe| answer(sqe.cid.get()))));
            read(&mut world, 0, 1);
            // A neighbour on the other queue.
            read(&mut world, 1, 2);
            let done = world.take_done(1);
            match (&done.result, end) {
                // It was sent again on the next connection, unless it had ended before the breach.
                (Ok(_), End::Protocol | End::Terminated) => {
                    let data = checked(done, what);
                    let first = data.iter().all(|&byte| byte == 0xdd);
                    assert!(first || data == stored(&world), "{what}");
                }
                (Err(CommandError::Timeout), End::Timeout) => drop(checked(done, what)),
                (Err(_), End::Command | End::Protocol) => drop(checked(done, what)),
                (result, end) => panic!("{what}: {result:?}, and {end:?} was expected"),
            }
            let neighbour = world.take_done(2);
            assert!(neighbour.result.is_ok(), "{what}: {:?}", neighbour.failure());
            assert!(checked(neighbour, what) == stored(&world), "{what}");
            check_end(&mut world, *end, what);
            read(&mut world, 0, 3);
            let after = world.take_done(3);
            assert!(checked(after, what) == stored(&world), "{what}");
        }
    }
}

#[test]
fn wrong_answers_to_a_write() {
    for (what, answer, end) in TO_WRITES {
        for sim in simulations() {
            let mut world = connected(&impatient(), sim);
            world.target.script.raw = Some(Raw(Box::new(move |sqe| answer(sqe.cid.get()))));
            let blocks = WRITE_BYTES / 512;
            let sent: Vec<u8> = (0..WRITE_BYTES).map(|at| at.to_le_bytes()[0]).collect();
            world.with(|_, queues, cx| {
                let buf = IoBuf::from_slice(&sent).share();
                let range = BlockRange::new(64, blocks).unwrap();
                queues.submit(cx, 0, Command::write(NS, range, buf, false), 1).unwrap();
            });
            read(&mut world, 1, 2);
            let done = world.take_done(1);
            assert!(done.result.is_err(), "{what}: nothing of it was written");
            let kept = done.data.into_write().unwrap().try_unique().unwrap();
            assert!(kept[..] == sent[..], "{what}: the caller's data");
            let neighbour = world.take_done(2);
            assert!(checked(neighbour, what) == stored(&world), "{what}");
            check_end(&mut world, *end, what);
        }
    }
}

/// A command's answer comes after it was given up, when its CID may name another one.
#[test]
fn an_answer_that_comes_too_late_is_for_nobody() {
    let mut world = connected(&impatient(), SimConfig::default());
    let (sender, cids) = std::sync::mpsc::channel();
    world.target.script.raw = Some(Raw(Box::new(move |sqe| {
        sender.send(sqe.cid.get()).unwrap();
        Vec::new()
    })));
    read(&mut world, 0, 1);
    assert_eq!(world.take_done(1).result, Err(CommandError::Timeout));
    let late = cids.try_recv().unwrap();
    world.run(Duration::from_secs(60), |world| world.queues.is_ready());
    // On the new connection, in front of the right answer.
    world.target.script.raw = Some(Raw(Box::new(move |sqe| {
        assert_ne!(sqe.cid.get(), late, "a CID is not used again at once");
        data(late, 0, READ_BYTES, LAST | SUCCESS)
    })));
    let before = lost(&world);
    assert!(matches!(before, Some(HostError::CommandTimeout(..))), "{before:?}");
    world.queue_events.clear();
    read(&mut world, 0, 2);
    let done = world.take_done(2);
    assert!(done.result.is_ok(), "{:?}", done.failure());
    assert!(checked(done, "late") == stored(&world));
    assert!(matches!(lost(&world), Some(HostError::Protocol(..))), "{:?}", lost(&world));
}

#[test]
fn wrong_digests() {
    let digests =
        HostConfig { header_digest: true, data_digest: true, digest_retries: 0, ..impatient() };
    // The header's digest is wrong: nothing of the PDU can be believed.
    let mut world = connected(&digests, SimConfig::default());
    world.target.script.raw = Some(Raw(Box::new(|sqe| {
        let fields = &response(sqe.cid.get(), 0)[8..];
        let mut bytes = pdu(RESPONSE, 1, (24, 0), 28, fields);
        bytes.extend([1, 2, 3, 4]);
        bytes
    })));
    read(&mut world, 0, 1);
    let done = world.take_done(1);
    assert!(checked(done, "header") == stored(&world));
    check_end(&mut world, End::Protocol, "header digest");
    // The data's digest is wrong: the command fails, the connection lives.
    let mut world = connected(&digests, SimConfig::default());
    world.target.script.wrong = Some(common::Wrong::BadDigest);
    read(&mut world, 0, 1);
    let done = world.take_done(1);
    assert_eq!(done.result, Err(CommandError::Digest));
    checked(done, "data");
    check_end(&mut world, End::Command, "data digest");
}

/// What a host hears of a step instead of an answer.
fn instead() -> [(&'static str, Vec<u8>); 5] {
    [
        ("nothing", Vec::new()),
        ("garbage", vec![0xee; 256]),
        ("half a PDU", response(0, 0)[..9].to_vec()),
        ("C2HTermReq", term_req(24)),
        ("an answer to nobody", response(0x7777, 0)),
    ]
}

#[test]
fn every_step_may_be_the_last() {
    let steps = [
        Step::IcResp,
        Step::Connect,
        Step::PropertyGet,
        Step::PropertySet,
        Step::Identify,
        Step::SetFeatures,
        Step::IoConnect,
        Step::Io,
    ];
    for step in steps {
        for (what, bytes) in instead() {
            let script = Script { at: Some((step, bytes)), ..Script::default() };
            let mut world = World::new(1, SimConfig::default(), &impatient(), script);
            if step == Step::Io {
                world.run_until_ready();
                read(&mut world, 0, 1);
            }
            // Connecting takes at most ten seconds, a command eight.
            world.run(Duration::from_secs(15), |world| {
                let ended = |event: &ControllerEvent| {
                    matches!(event, ControllerEvent::Failed(_) | ControllerEvent::Down(_))
                };
                world.events.iter().any(ended)
            });
            let error = world.events.iter().find_map(|event| match event {
                ControllerEvent::Failed(error) | ControllerEvent::Down(error) => {
                    Some(error.clone())
                }
                _ => None,
            });
            let right = match (what, &error) {
                ("nothing" | "half a PDU", Some(error)) => {
                    matches!(error, HostError::NoAnswer(..) | HostError::CommandTimeout(..))
                }
                ("C2HTermReq", Some(error)) => matches!(error, HostError::Terminated(..)),
                // Bytes that are no PDU, before the other end has sent one.
                ("garbage", Some(error)) if step == Step::IcResp => {
                    matches!(error, HostError::OtherProtocol(..))
                }
                (_, Some(error)) => matches!(error, HostError::Protocol(..)),
                (_, None) => false,
            };
            // Before ICResp there is nothing to terminate, and no command to answer.
            let early = step == Step::IcResp && matches!(error, Some(HostError::Protocol(..)));
            assert!(right || early, "{what} at {step:?}: {error:?}");
        }
    }
}

/// The admin queue comes up each time, and each time the I/O queues do not.
#[test]
fn io_queues_that_always_fail_are_tried_less_and_less_often() {
    let at = Some((Step::IoConnect, vec![0xee; 256]));
    let script = Script { at, ..Script::default() };
    let mut world = World::new(1, SimConfig::default(), &impatient(), script);
    let end = world.world.elapsed() + Duration::from_secs(60);
    while world.world.elapsed() < end && world.step() {}
    let ups = world.events.iter().filter(|event| matches!(event, ControllerEvent::Up(_))).count();
    // After 100 ms, 200 ms and so on, up to 10 s.
    assert!((8..=14).contains(&ups), "{ups} associations in a minute");
    world.target.script.at = None;
    world.run(Duration::from_secs(15), |world| world.queues.is_ready());
}

/// Two controllers on one thread; one of them is hostile.
#[test]
fn other_controllers_are_undisturbed() {
    let mut good = connected(&impatient(), SimConfig::default());
    let mut bad = connected(&impatient(), SimConfig::default());
    for (round, (what, answer, _)) in (0u64..).zip(TO_READS) {
        bad.target.script.raw = Some(Raw(Box::new(move |sqe| answer(sqe.cid.get()))));
        read(&mut bad, 0, round);
        read(&mut good, 0, round);
        let done = good.take_done(round);
        assert!(checked(done, what) == stored(&good), "{what}");
        bad.take_done(round);
    }
    assert_eq!(good.events.len(), 1, "{:?}", good.events);
    assert!(lost(&good).is_none());
}

#[test]
fn a_status_that_nobody_knows_is_a_status() {
    let mut world = connected(&impatient(), SimConfig::default());
    world.target.script.raw = Some(Raw(Box::new(|sqe| response(sqe.cid.get(), 0x7fff))));
    read(&mut world, 0, 1);
    let done = world.take_done(1);
    let error = done.result.unwrap_err();
    assert!(!error.status().same_code(Status::SUCCESS), "{error}");
    checked(done, "status");
    assert!(lost(&world).is_none());
}
