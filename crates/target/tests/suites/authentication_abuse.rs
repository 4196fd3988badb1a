//! Hosts that break the rules of authentication, stop halfway, guess secrets, or come in crowds.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::chap::{
    all_closed, authenticate, connect, guarded, guarded_by, initiator, receive, secret, send,
};
use crate::common::{Crowd, RawHost, Wants, config, eventually, status};
use raceline_auth::{DhchapSecret, Initiator, InitiatorConfig, InitiatorStep, Keys};
use raceline_proto::nvme::authentication::{Explanation, authentication_send};
use raceline_proto::nvme::command::SglDescriptor;
use raceline_proto::nvme::{ControllerId, Direction, QueueId, Sqe, Status};
use raceline_target::{PreConnectLimits, Target, TargetConfig};

/// The prime of ffdhe2048 (RFC 7919, appendix A.1).
const PRIME: &str = "\
FFFFFFFFFFFFFFFFADF85458A2BB4A9AAFDC5620273D3CF1D8B9C583CE2D3695A9E13641146433FBCC939DCE249B3EF9\
7D2FE363630C75D8F681B202AEC4617AD3DF1ED5D5FD65612433F51F5F066ED0856365553DED1AF3B557135E7F57C935\
984F0C70E0E68B77E2A689DAF3EFE8721DF158A136ADE73530ACCA4F483A797ABC0AB182B324FB61D108A94BB2C8E3FB\
B96ADAB760D7F4681D4F42A3DE394DF4AE56EDE76372BB190B07A7C8EE0A6D709E02FCE1CDF7E2ECC03404CD28342F61\
9172FE9CE98583FF8E4F1232EEF28183C3FE3B1B4C6FAD733BB5FCBC2EC22005C58EF1837D1683B2C6F34A26C1B2EFFA\
886B423861285C97FFFFFFFFFFFFFFFF";

/// Where things are in a reply with SHA-384 and ffdhe2048: R1, C2, the host's public value.
const RESPONSE: usize = 16;
const CHALLENGE: usize = RESPONSE + 48;
const PUBLIC: usize = CHALLENGE + 48;

fn prime(less: u8) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&PRIME[at..at + 2], 16).unwrap();
    let mut bytes: Vec<u8> = (0..PRIME.len()).step_by(2).map(digit).collect();
    *bytes.last_mut().unwrap() -= less;
    bytes
}

/// A target that lets any number of authentications fail; and both secrets.
fn patient(limit: Duration) -> (Target, SocketAddr, InitiatorConfig) {
    let [own, controller] = [(); 2].map(|()| secret());
    let pre_connect = PreConnectLimits {
        failures_per_source: u32::MAX,
        authentication: limit,
        ..PreConnectLimits::default()
    };
    let keys = Keys::new(own.clone(), Some(controller.clone()));
    let (target, address) = guarded_by(TargetConfig { pre_connect, ..config(2) }, keys);
    (target, address, initiator(&own, Some(&controller)))
}

/// What a host knows when it makes a message wrong.
#[derive(Default)]
struct Seen {
    /// The messages of the controller in this transaction.
    received: Vec<Vec<u8>>,
    /// The messages of the host in an earlier transaction that succeeded.
    earlier: Vec<Vec<u8>>,
}

/// How a message is made wrong: it is given the message as it should be.
type Tamper = fn(&mut Vec<u8>, &Seen);

/// Authenticates, but changes the host's message of this number. Gives the reason of AUTH_Failure1, if it came.
fn cheat(
    host: &mut RawHost,
    config: &InitiatorConfig,
    number: usize,
    tamper: Tamper,
    seen: &mut Seen,
) -> Option<Explanation> {
    let mut initiator = Initiator::new(config.clone(), 3);
    let mut sent = Vec::new();
    loop {
        match initiator.poll_step()? {
            InitiatorStep::Send(mut message) => {
                if sent.len() == number {
                    tamper(&mut message, seen);
                }
                assert_eq!(send(host, &message), Status::SUCCESS);
                sent.push(message);
                initiator.handle_sent();
            }
            InitiatorStep::Receive => {
                let answer = receive(host, 4096);
                assert_eq!(status(&answer), Status::SUCCESS);
                if answer.data[..2] == [0, 0xf1] {
                    return Some(Explanation::from_wire(answer.data[7]));
                }
                seen.received.push(answer.data.clone());
                initiator.handle_received(&answer.data);
            }
            InitiatorStep::Compute(work) => initiator.handle_finished(work.run()),
            InitiatorStep::Done => {
                seen.earlier = sent;
                return None;
            }
            InitiatorStep::Failed(error) => panic!("the host itself refuses: {error}"),
        }
    }
}

/// The host's messages that are wrong: number, name, what is changed, and the reason that the host is told.
fn offences() -> Vec<(usize, &'static str, Tamper, Explanation)> {
    use Explanation::{
        Failed, GroupNotUsable, HashNotUsable, IncorrectMessage, IncorrectPayload,
        SecureChannelMismatch,
    };
    fn public(message: &mut [u8], value: &[u8]) {
        message[PUBLIC..].copy_from_slice(value);
    }
    fn small(number: u8) -> Vec<u8> {
        let mut bytes = vec![0; 256];
        bytes[255] = number;
        bytes
    }
    vec![
        (0, "Negotiate cut short", |m, _| m.truncate(70), IncorrectPayload),
        (0, "Negotiate too long", |m, _| m.extend([0; 4]), IncorrectPayload),
        (0, "no protocol", |m, _| m[7] = 0, IncorrectPayload),
        (0, "no hash function", |m, _| m[10] = 0, HashNotUsable),
        (0, "no group", |m, _| m[11] = 0, GroupNotUsable),
        (0, "a secure channel", |m, _| m[6] = 2, SecureChannelMismatch),
        (0, "Reply first", |m, seen| m.clone_from(&seen.earlier[1]), IncorrectMessage),
        (0, "Success2 first", |m, seen| m.clone_from(&seen.earlier[2]), IncorrectMessage),
        (1, "Negotiate twice", |m, seen| m.clone_from(&seen.earlier[0]), IncorrectMessage),
        (1, "Success2 too early", |m, seen| m.clone_from(&seen.earlier[2]), IncorrectMessage),
        (
            1,
            "a message of the controller",
            |m, seen| m.clone_from(&seen.received[0]),
            IncorrectMessage,
        ),
        (1, "a reply of earlier", |m, seen| m.clone_from(&seen.earlier[1]), Failed),
        (1, "another transaction", |m, _| m[4] ^= 1, IncorrectPayload),
        (1, "Reply cut short", |m, _| m.truncate(PUBLIC + 252), IncorrectPayload),
        (1, "Reply without its value", |m, _| m.truncate(PUBLIC), IncorrectPayload),
        (1, "Reply too long", |m, _| m.extend([0; 4]), IncorrectPayload),
        (
            1,
            "a longer public value",
            |m, _| {
                m.extend([0; 4]);
                m[10..12].copy_from_slice(&260_u16.to_le_bytes());
            },
            IncorrectPayload,
        ),
        (
            1,
            "no public value",
            |m, _| {
                m.truncate(PUBLIC);
                m[10..12].fill(0);
            },
            IncorrectPayload,
        ),
        (1, "public value 0", |m, _| public(m, &small(0)), IncorrectPayload),
        (1, "public value 1", |m, _| public(m, &small(1)), IncorrectPayload),
        (1, "public value p - 1", |m, _| public(m, &prime(1)), IncorrectPayload),
        (1, "public value p", |m, _| public(m, &prime(0)), IncorrectPayload),
        (1, "public value 2^2048 - 1", |m, _| public(m, &[0xff; 256]), IncorrectPayload),
        (1, "another public value", |m, _| public(m, &small(2)), Failed),
        (
            1,
            "the controller's challenge reflected",
            |m, seen| m[CHALLENGE..PUBLIC].copy_from_slice(&seen.received[0][16..64]),
            IncorrectPayload,
        ),
        (1, "a wrong response", |m, _| m[RESPONSE] ^= 1, Failed),
        (1, "the response of another hash", |m, _| m[6] = 32, IncorrectPayload),
        (1, "a challenge without a number", |m, _| m[12..16].fill(0), IncorrectPayload),
        (2, "Success2 of another transaction", |m, _| m[4] ^= 1, IncorrectPayload),
        (2, "Success2 cut short", |m, _| m.truncate(12), IncorrectPayload),
        (
            2,
            "Negotiate instead of Success2",
            |m, seen| m.clone_from(&seen.earlier[0]),
            IncorrectMessage,
        ),
    ]
}

#[test]
fn each_wrong_message_is_refused_for_its_reason_and_lets_nobody_in() {
    let (target, address, config) = patient(Duration::from_secs(30));
    let mut earlier = Seen::default();
    let (mut good, _) = connect(address, 0, ControllerId::DYNAMIC);
    assert_eq!(cheat(&mut good, &config, usize::MAX, |_, _| (), &mut earlier), None);
    let mut refused = Vec::new();
    for (number, name, tamper, reason) in offences() {
        // Before the queue is in use, and while it is.
        for is_in_use in [false, true] {
            let mut seen = Seen { earlier: earlier.earlier.clone(), ..Seen::default() };
            let (mut host, _) = connect(address, 0, ControllerId::DYNAMIC);
            if is_in_use {
                authenticate(&mut host, &config).unwrap();
            }
            let found = cheat(&mut host, &config, number, tamper, &mut seen).unwrap_or_else(|| {
                // After the last message of the host there is nothing that it would fetch.
                let failure = receive(&mut host, 64).data;
                assert_eq!(failure[..2], [0, 0xf1], "{name}");
                Explanation::from_wire(failure[7])
            });
            assert_eq!(found, reason, "{name}, in use: {is_in_use}");
            refused.push((name, host));
        }
    }
    for (name, mut host) in refused {
        assert!(host.until_closed().is_none(), "{name}");
    }
    authenticate(&mut good, &config).unwrap();
    drop(good);
    all_closed(&target);
    target.shutdown().unwrap();
}

/// Takes this many steps of an authentication.
fn begin(host: &mut RawHost, config: &InitiatorConfig, steps: usize) {
    let mut initiator = Initiator::new(config.clone(), 3);
    for _ in 0..steps {
        match initiator.poll_step().unwrap() {
            InitiatorStep::Send(message) => {
                assert_eq!(send(host, &message), Status::SUCCESS);
                initiator.handle_sent();
            }
            InitiatorStep::Receive => initiator.handle_received(&receive(host, 4096).data),
            InitiatorStep::Compute(work) => initiator.handle_finished(work.run()),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_host_that_stops_at_any_step_has_to_go() {
    let limit = Duration::from_secs(4);
    let (target, address, config) = patient(limit);
    // Negotiate, challenge, computation, reply, Success1; Success2 never comes.
    let hosts: Vec<_> = (0..=5)
        .map(|steps| {
            let start = Instant::now();
            let (mut host, _) = connect(address, 0, ControllerId::DYNAMIC);
            begin(&mut host, &config, steps);
            (steps, start, host)
        })
        .collect();
    for (steps, start, mut host) in hosts {
        assert!(host.until_closed().is_none(), "{steps}");
        assert!(start.elapsed() >= limit, "{steps}: {:?}", start.elapsed());
    }
    all_closed(&target);
    target.shutdown().unwrap();
}

#[test]
fn a_source_that_fails_often_has_to_wait_and_others_need_not() {
    let own = secret();
    let pre_connect = PreConnectLimits { failures_per_source: 3, ..PreConnectLimits::default() };
    let config = TargetConfig { pre_connect, ..config(1) };
    let (target, address) = guarded_by(config, Keys::new(own.clone(), None));
    let try_from = |source: [u8; 4], secret: &DhchapSecret| {
        let mut host = RawHost::open_from(source, address, Wants::default());
        let cqe = host.connect(QueueId::ADMIN, 32, ControllerId::DYNAMIC);
        if !cqe.status.is_success() {
            return Err(cqe.status);
        }
        let proved = authenticate(&mut host, &initiator(secret, None)).is_ok();
        if !proved {
            host.until_closed();
        }
        Ok(proved)
    };
    let other = [127, 0, 0, 6];
    // A failure is forgiven after 3 s: a busy machine takes another guesser if one has taken longer.
    let guesser = (7..40).map(|last| [127, 0, 0, last]).find(|&guesser| {
        let begun = Instant::now();
        let wrong = [(); 3].map(|()| try_from(guesser, &secret()));
        // Neither a right secret nor a wrong one is looked at now. The host may try again later.
        let late = [try_from(guesser, &own), try_from(guesser, &secret())];
        if begun.elapsed() >= Duration::from_secs(3) {
            return false;
        }
        assert_eq!(wrong, [Ok(false); 3]);
        let busy = late[0].unwrap_err();
        assert!(busy.same_code(Status::CONNECT_CONTROLLER_BUSY) && !busy.is_dnr(), "{busy}");
        assert_eq!(late[1], Err(busy));
        true
    });
    let guesser = guesser.expect("one of them takes less than 3 s");
    assert_eq!(try_from(other, &own), Ok(true));
    std::thread::sleep(Duration::from_millis(3100));
    assert_eq!(try_from(guesser, &own), Ok(true), "one failure is forgiven after 3 s");
    target.shutdown().unwrap();
}

#[test]
fn strangers_with_the_name_of_a_host_take_none_of_its_controllers() {
    let own = secret();
    let config = TargetConfig { max_controllers_per_host: 2, ..config(1) };
    let (target, address) = guarded_by(config, Keys::new(own.clone(), None));
    let strangers: Vec<_> = (0..8).map(|_| connect(address, 0, ControllerId::DYNAMIC)).collect();
    let config = initiator(&own, None);
    let mut hosts = [(); 2].map(|()| connect(address, 0, ControllerId::DYNAMIC).0);
    hosts.iter_mut().for_each(|host| authenticate(host, &config).unwrap());
    // Two controllers that have proved themselves are all that this host may have.
    let mut third = RawHost::open(address, Wants::default());
    let busy = third.connect(QueueId::ADMIN, 32, ControllerId::DYNAMIC).status;
    assert!(busy.same_code(Status::CONNECT_CONTROLLER_BUSY), "{busy}");
    drop((strangers, hosts, third));
    all_closed(&target);
    target.shutdown().unwrap();
}

tcp_only! {
    #[test]
    fn a_stranger_has_few_commands_at_the_same_time() {
        let (target, address) = guarded(Keys::new(secret(), None));
        let (mut host, _) = connect(address, 0, ControllerId::DYNAMIC);
        let sgl1 = SglDescriptor::transport(4096);
        let sqe = Sqe { sgl1, ..authentication_send(4096) };
        let waiting = [(); 3].map(|()| host.submit(sqe, Direction::HostToController, 4096));
        let refused = host.wait(waiting[2], &[]);
        assert_eq!(status(&refused), Status::COMMAND_SEQUENCE_ERROR);
        target.shutdown().unwrap();
    }
}

/// A real host connects and proves itself; gives how long that took.
fn come_in(address: SocketAddr, config: &InitiatorConfig) -> Duration {
    let start = Instant::now();
    let (mut host, _) = connect(address, 0, ControllerId::DYNAMIC);
    authenticate(&mut host, config).unwrap();
    start.elapsed()
}

/// Longer than a host that is not kept out takes to come in.
const FLOOD: Duration = Duration::from_secs(60);

#[test]
fn a_flood_of_half_open_hosts_keeps_no_real_host_out() {
    let own = secret();
    let keys = Keys::new(own.clone(), None);
    let pre_connect = PreConnectLimits { total: Crowd::EARLY, ..PreConnectLimits::default() };
    let (target, address) = guarded_by(TargetConfig { pre_connect, ..config(2) }, keys);
    let crowd = Crowd::new(address);
    let config = initiator(&own, None);
    let [begun, over] = [false; 2].map(AtomicBool::new);
    let came_in = AtomicUsize::new(0);
    let held = std::thread::scope(|scope| {
        let flood = scope.spawn(|| {
            let (mut held, start) = (VecDeque::new(), Instant::now());
            for number in 0.. {
                // On a machine that runs this thread first, it goes on until the others have had their turn.
                let is_awaited = came_in.load(Ordering::Acquire) == 0 && start.elapsed() < FLOOD;
                if number >= Crowd::SIZE && !is_awaited {
                    break;
                }
                begun.store(number >= Crowd::SIZE / 10, Ordering::Release);
                let Some(host) = crowd.come(number) else { continue };
                held.push_back(host);
                if held.len() > Crowd::STAY {
                    held.pop_front();
                }
            }
            over.store(true, Ordering::Release);
            held
        });
        // While it comes, hosts wait in the line of new connections, and get in.
        eventually("the flood", || begun.load(Ordering::Acquire));
        while !over.load(Ordering::Acquire) {
            come_in(address, &config);
            came_in.fetch_add(1, Ordering::Release);
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(came_in.load(Ordering::Acquire) > 0);
        flood.join().unwrap()
    });
    // It stands. Every place for early connections is taken.
    let nearly_all = Crowd::EARLY * 49 / 50;
    eventually("the line of new connections is empty", || target.stats().pre_connect > nearly_all);
    // The first of ten that is quick: other programs may take the time of some.
    let is_quick = (0..10).any(|_| come_in(address, &config) < Duration::from_secs(1));
    assert!(is_quick, "each of ten hosts has waited for a second");
    drop(held);
    target.shutdown().unwrap();
}
