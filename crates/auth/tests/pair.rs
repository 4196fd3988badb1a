//! Both ends of DH-HMAC-CHAP against each other: what agrees, what is refused, and what a man in the middle changes.

use proptest::prelude::*;
use raceline_auth::{
    Algorithms, AuthenticationError, Concatenation, DhGroup, DhchapSecret, Hash, Initiator,
    InitiatorConfig, InitiatorStep, KeyPair, Keys, Names, Received, Responder, ResponderConfig,
    Verdict,
};
use raceline_proto::nvme::authentication::{Explanation, HostMessage, Negotiate};
use raceline_proto::nvme::{Nqn, Status};

const BUFFER: usize = 4096;

fn names() -> Names {
    let nqn = |name: &str| Nqn::new(name).expect("it is a name");
    Names { host: nqn("nqn.2014-08.org.nvmexpress:uuid:1"), subsystem: nqn("nqn.2026-01.io.x:s") }
}

fn secret(transform: Option<Hash>) -> DhchapSecret {
    DhchapSecret::generate(transform).expect("there is randomness")
}

fn only(hash: Hash, group: DhGroup) -> Algorithms {
    Algorithms { hashes: vec![hash], groups: vec![group] }
}

/// Two ends, with what a controller and a host know.
struct Pair {
    host: InitiatorConfig,
    controller: ResponderConfig,
}

impl Pair {
    fn new(algorithms: &Algorithms, mutual: bool) -> Self {
        let (secret, controller_secret) = (secret(Some(Hash::Sha256)), secret(Some(Hash::Sha384)));
        let controller_secret = mutual.then_some(controller_secret);
        let keys = Keys::new(secret.clone(), controller_secret.clone());
        Self {
            host: InitiatorConfig {
                names: names(),
                secret,
                controller_secret,
                algorithms: algorithms.clone(),
                concatenation: Concatenation::None,
            },
            controller: ResponderConfig {
                names: names(),
                keys,
                algorithms: algorithms.clone(),
                concatenation: Concatenation::None,
            },
        }
    }

    fn run(&self) -> (Result<(), AuthenticationError>, Option<Verdict>) {
        let mut responder = Responder::new(self.controller.clone());
        let result = drive(&self.host, &mut responder, |_, _, _| ());
        (result, responder.poll_verdict())
    }
}

/// Runs a whole transaction. `tamper` gets each message on its way: its number, whether the host sends it, its bytes.
fn drive(
    config: &InitiatorConfig,
    responder: &mut Responder,
    mut tamper: impl FnMut(usize, bool, &mut Vec<u8>),
) -> Result<(), AuthenticationError> {
    let mut initiator = Initiator::new(config.clone(), 7);
    for number in 0..20 {
        match initiator.poll_step().expect("a step follows each other") {
            InitiatorStep::Send(mut message) => {
                tamper(number, true, &mut message);
                match responder.handle_send(&message) {
                    Received::Compute(work) => responder.handle_finished(work.run()),
                    Received::Complete(status) if status.is_success() => {}
                    // The driver closes the queue.
                    Received::Complete(_) => {
                        return Err(AuthenticationError::Misbehaved("a command failed"));
                    }
                }
                initiator.handle_sent();
            }
            InitiatorStep::Receive => {
                let Ok(mut message) = responder.handle_receive(BUFFER) else {
                    return Err(AuthenticationError::Misbehaved("a command failed"));
                };
                tamper(number, false, &mut message);
                message.resize(BUFFER, 0);
                initiator.handle_received(&message);
            }
            InitiatorStep::Compute(work) => initiator.handle_finished(work.run()),
            InitiatorStep::Done => return Ok(()),
            InitiatorStep::Failed(error) => return Err(error),
        }
    }
    panic!("the transaction does not end");
}

#[test]
fn every_hash_and_group_agrees_in_both_directions() {
    for hash in Hash::ALL {
        for group in DhGroup::ALL {
            for mutual in [false, true] {
                let pair = Pair::new(&only(hash, group), mutual);
                assert_eq!(
                    pair.run(),
                    (Ok(()), Some(Verdict::Authenticated)),
                    "{hash} {group} {mutual}"
                );
            }
        }
    }
}

#[test]
fn a_wrong_secret_and_an_unknown_host_are_answered_alike() {
    let mut wrong = Pair::new(&only(Hash::Sha256, DhGroup::Ffdhe2048), false);
    wrong.host.secret = secret(None);
    let mut unknown = Pair::new(&only(Hash::Sha256, DhGroup::Ffdhe2048), false);
    unknown.controller.keys = Keys::default();
    let failed = Verdict::Failed { explanation: Explanation::Failed, by_host: false };
    let refused = (Err(AuthenticationError::Refused(Explanation::Failed)), Some(failed));
    assert_eq!(wrong.run(), refused);
    assert_eq!(unknown.run(), refused);
    // The same messages in the same order, of the same lengths.
    let lengths = |pair: &Pair| {
        let mut lengths = Vec::new();
        let mut responder = Responder::new(pair.controller.clone());
        let _ = drive(&pair.host, &mut responder, |_, _, message| lengths.push(message.len()));
        lengths
    };
    assert_eq!(lengths(&wrong), lengths(&unknown));
}

#[test]
fn the_old_and_the_new_secret_both_hold() {
    let mut pair = Pair::new(&only(Hash::Sha384, DhGroup::Null), false);
    let new = KeyPair { host: secret(None), controller: None };
    pair.controller.keys.pairs.insert(0, new);
    let mut responder = Responder::new(pair.controller.clone());
    assert_eq!(responder.key_of_proof(), None);
    assert_eq!(drive(&pair.host, &mut responder, |_, _, _| ()), Ok(()));
    assert_eq!(responder.key_of_proof(), Some(1), "operators see who still uses the old secret");
    pair.controller.keys.pairs.truncate(1);
    assert!(pair.run().0.is_err());
}

#[test]
fn a_controller_proves_itself_by_the_secret_that_goes_with_the_hosts() {
    let mut pair = Pair::new(&only(Hash::Sha384, DhGroup::Null), true);
    let (old_host, old_controller) =
        (pair.host.secret.clone(), pair.host.controller_secret.clone());
    let [new_host, new_controller] = [(); 2].map(|()| secret(None));
    let both = Keys::new(new_host.clone(), Some(new_controller.clone()))
        .or(old_host.clone(), old_controller.clone());
    for (host, controller, proven) in [
        (&old_host, old_controller.as_ref(), true),
        (&new_host, Some(&new_controller), true),
        (&new_host, old_controller.as_ref(), false),
        (&old_host, Some(&new_controller), false),
    ] {
        pair.host.secret = host.clone();
        pair.host.controller_secret = controller.cloned();
        pair.controller.keys = both.clone();
        assert_eq!(pair.run().0.is_ok(), proven);
    }
    // An older pair without a controller's secret is no way around the newer one's.
    pair.host.secret = old_host.clone();
    pair.controller.keys = Keys::new(new_host, Some(new_controller)).or(old_host, None);
    assert!(pair.run().0.is_err());
}

#[test]
fn a_controller_that_cannot_prove_itself_is_refused() {
    let algorithms = only(Hash::Sha256, DhGroup::Null);
    // It has no secret.
    let mut pair = Pair::new(&algorithms, true);
    pair.controller.keys.pairs[0].controller = None;
    assert_eq!(pair.run().0, Err(AuthenticationError::Refused(Explanation::Failed)));
    // It has another one.
    let mut pair = Pair::new(&algorithms, true);
    pair.controller.keys.pairs[0].controller = Some(secret(None));
    let failed = Verdict::Failed { explanation: Explanation::Failed, by_host: true };
    assert_eq!(pair.run(), (Err(AuthenticationError::ControllerNotProven), Some(failed)));
}

#[test]
fn what_only_one_end_allows_is_not_used() {
    let mut pair = Pair::new(&Algorithms::default(), false);
    pair.host.algorithms = only(Hash::Sha256, DhGroup::Null);
    let refused = |explanation| Err(AuthenticationError::Refused(explanation));
    assert_eq!(pair.run().0, refused(Explanation::GroupNotUsable));
    pair.host.algorithms = only(Hash::Sha256, DhGroup::Ffdhe2048);
    assert_eq!(pair.run().0, Ok(()));
    pair.controller.algorithms.hashes = vec![Hash::Sha512];
    assert_eq!(pair.run().0, refused(Explanation::HashNotUsable));
}

#[test]
fn a_queue_authenticates_again() {
    let pair = Pair::new(&only(Hash::Sha256, DhGroup::Null), true);
    let mut responder = Responder::new(pair.controller.clone());
    for _ in 0..3 {
        assert_eq!(drive(&pair.host, &mut responder, |_, _, _| ()), Ok(()));
        assert_eq!(responder.poll_verdict(), Some(Verdict::Authenticated));
        assert!(!responder.is_busy());
    }
    // With keys that were changed meanwhile.
    responder.set_keys(Keys::new(secret(None), None));
    assert!(drive(&pair.host, &mut responder, |_, _, _| ()).is_err());
}

#[test]
fn a_reflected_challenge_is_refused() {
    let pair = Pair::new(&only(Hash::Sha256, DhGroup::Null), true);
    let mut responder = Responder::new(pair.controller.clone());
    let mut challenge = Vec::new();
    let result = drive(&pair.host, &mut responder, |_, from_host, message| match message[..2] {
        [1, 1] if !from_host => challenge = message[16..48].to_vec(),
        [1, 2] => message[48..80].copy_from_slice(&challenge),
        _ => {}
    });
    assert_eq!(result, Err(AuthenticationError::Refused(Explanation::IncorrectPayload)));
}

#[test]
fn a_secure_channel_and_other_protocols_are_refused() {
    let config = Pair::new(&Algorithms::default(), false).controller;
    for (sc_c, dhchap, explanation) in [
        (2, Some((vec![1], vec![1])), Explanation::SecureChannelMismatch),
        (0, None, Explanation::ProtocolNotUsable),
    ] {
        let mut responder = Responder::new(config.clone());
        let negotiate = HostMessage::Negotiate(Negotiate { t_id: 9, sc_c, dhchap });
        let sent = responder.handle_send(&negotiate.to_bytes());
        assert!(matches!(sent, Received::Complete(Status::SUCCESS)));
        assert_eq!(responder.poll_verdict(), None);
        let failure = responder.handle_receive(BUFFER).unwrap();
        assert_eq!(failure, [0, 0xf1, 0, 0, 9, 0, 1, explanation.to_wire()]);
        assert_eq!(responder.poll_verdict(), Some(Verdict::Failed { explanation, by_host: false }));
        // Nothing is answered after a failure.
        let again = responder.handle_send(&negotiate.to_bytes());
        assert!(matches!(again, Received::Complete(Status::COMMAND_SEQUENCE_ERROR)));
        assert_eq!(responder.handle_receive(BUFFER), Err(Status::COMMAND_SEQUENCE_ERROR));
    }
}

#[test]
fn a_buffer_that_is_too_short_changes_nothing() {
    let pair = Pair::new(&only(Hash::Sha256, DhGroup::Null), false);
    let mut responder = Responder::new(pair.controller.clone());
    assert_eq!(responder.handle_receive(BUFFER), Err(Status::COMMAND_SEQUENCE_ERROR));
    let mut initiator = Initiator::new(pair.host.clone(), 1);
    let Some(InitiatorStep::Send(negotiate)) = initiator.poll_step() else { panic!() };
    let Received::Compute(work) = responder.handle_send(&negotiate) else { panic!() };
    // Meanwhile, other commands are out of order, and change nothing either.
    assert!(matches!(
        responder.handle_send(&negotiate),
        Received::Complete(Status::COMMAND_SEQUENCE_ERROR)
    ));
    assert_eq!(responder.handle_receive(BUFFER), Err(Status::COMMAND_SEQUENCE_ERROR));
    responder.handle_finished(work.run());
    assert_eq!(responder.handle_receive(47), Err(Status::INVALID_FIELD.dnr()));
    assert_eq!(responder.handle_receive(48).unwrap().len(), 48);
}

#[test]
fn a_result_that_was_given_up_means_nothing() {
    let pair = Pair::new(&only(Hash::Sha256, DhGroup::Null), false);
    let mut responder = Responder::new(pair.controller.clone());
    let mut initiator = Initiator::new(pair.host.clone(), 1);
    let Some(InitiatorStep::Send(negotiate)) = initiator.poll_step() else { panic!() };
    let Received::Compute(late) = responder.handle_send(&negotiate) else { panic!() };
    responder.give_up();
    assert!(!responder.is_busy());
    let Received::Compute(work) = responder.handle_send(&negotiate) else { panic!() };
    responder.handle_finished(late.run());
    assert_eq!(responder.handle_receive(BUFFER), Err(Status::COMMAND_SEQUENCE_ERROR));
    responder.handle_finished(work.run());
    assert!(responder.handle_receive(BUFFER).is_ok());
}

/// Each byte of each message, changed on its way: never accepted by both ends unless the byte has no meaning.
#[test]
fn no_changed_byte_is_believed() {
    let pair = Pair::new(&only(Hash::Sha256, DhGroup::Null), true);
    let mut lengths = Vec::new();
    let mut responder = Responder::new(pair.controller.clone());
    drive(&pair.host, &mut responder, |number, _, message| {
        lengths.push((number, message.len()));
    })
    .unwrap();
    assert_eq!(lengths.len(), 5, "Negotiate, Challenge, Reply, Success1, Success2");
    for (index, (step, len)) in lengths.into_iter().enumerate() {
        for at in 0..len {
            let mut responder = Responder::new(pair.controller.clone());
            let result = drive(&pair.host, &mut responder, |number, _, message| {
                if number == step {
                    message[at] ^= 0x40;
                }
            });
            let verdict = responder.poll_verdict();
            let accepted = result.is_ok() && verdict == Some(Verdict::Authenticated);
            assert_eq!(accepted, is_reserved(index, at), "message {index}, byte {at}: {result:?}");
        }
    }
}

/// Bytes that receivers do not look at.
fn is_reserved(message: usize, at: usize) -> bool {
    match message {
        // Identifiers behind those that count.
        0 => matches!(at, 2 | 3 | 9 | 13..=41 | 43..),
        1 => matches!(at, 2 | 3 | 7),
        2 => matches!(at, 2 | 3 | 7 | 9),
        3 => matches!(at, 2 | 3 | 7 | 9..=15),
        _ => matches!(at, 2 | 3 | 6..=15),
    }
}

/// What a hostile host does with a queue.
#[derive(Clone, Debug)]
enum Act {
    Send(usize),
    SendBytes(Vec<u8>),
    Receive(usize),
    Finish,
    GiveUp,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        (0_usize..8).prop_map(Act::Send),
        prop::collection::vec(any::<u8>(), 0..120).prop_map(Act::SendBytes),
        prop_oneof![Just(BUFFER), 0..100_usize].prop_map(Act::Receive),
        Just(Act::Finish),
        Just(Act::GiveUp),
    ];
    prop::collection::vec(act, 0..40)
}

/// The messages of a right transaction with a wrong secret, and of an earlier one with the right secret.
fn recorded() -> (ResponderConfig, Vec<Vec<u8>>) {
    let pair = Pair::new(&only(Hash::Sha256, DhGroup::Null), true);
    let mut messages = Vec::new();
    for config in [pair.host.clone(), InitiatorConfig { secret: secret(None), ..pair.host.clone() }]
    {
        let mut responder = Responder::new(pair.controller.clone());
        let _ = drive(&config, &mut responder, |_, _, message| messages.push(message.clone()));
    }
    (pair.controller, messages)
}

proptest! {
    /// Recorded messages, in any order, any number of times, with any others between them: never a proof.
    #[test]
    fn nothing_replayed_or_reordered_authenticates(acts in acts()) {
        let (config, messages) = recorded();
        let mut responder = Responder::new(config);
        let mut work = Vec::new();
        for act in acts {
            let message = match act {
                Act::Send(index) => messages[index % messages.len()].clone(),
                Act::SendBytes(bytes) => bytes,
                Act::Receive(len) => {
                    if let Ok(message) = responder.handle_receive(len) {
                        prop_assert!(message.len() <= len);
                    }
                    continue;
                }
                Act::Finish => {
                    if let Some(work) = work.pop() {
                        responder.handle_finished(work);
                    }
                    continue;
                }
                Act::GiveUp => {
                    responder.give_up();
                    continue;
                }
            };
            if let Received::Compute(next) = responder.handle_send(&message) {
                work.push(next.run());
            }
            prop_assert_ne!(responder.poll_verdict(), Some(Verdict::Authenticated));
        }
    }

    /// A hostile controller: whatever it sends, the host says no or asks for more, and never panics.
    #[test]
    fn a_host_believes_no_noise(messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..6)) {
        let pair = Pair::new(&only(Hash::Sha256, DhGroup::Null), true);
        let mut initiator = Initiator::new(pair.host, 1);
        let mut messages = messages.into_iter();
        while let Some(step) = initiator.poll_step() {
            match step {
                InitiatorStep::Send(_) => initiator.handle_sent(),
                InitiatorStep::Compute(work) => initiator.handle_finished(work.run()),
                InitiatorStep::Receive => match messages.next() {
                    Some(message) => initiator.handle_received(&message),
                    None => break,
                },
                InitiatorStep::Done => prop_assert!(false, "it believed noise"),
                InitiatorStep::Failed(_) => {}
            }
        }
    }
}
