//! Authentications that make a key for TLS (secure channel concatenation): both ends get the same key, and nobody else.

use raceline_auth::{
    Algorithms, AuthenticationError, Concatenation, DhGroup, DhchapSecret, GeneratedPsk, Hash,
    Initiator, InitiatorConfig, InitiatorStep, Keys, Names, Received, Responder, ResponderConfig,
    Verdict, identity_is_generated,
};
use raceline_proto::nvme::Nqn;
use raceline_proto::nvme::authentication::Explanation;

const BUFFER: usize = 4096;

fn names() -> Names {
    let nqn = |name: &str| Nqn::new(name).expect("it is a name");
    Names { host: nqn("nqn.2014-08.org.nvmexpress:uuid:1"), subsystem: nqn("nqn.2026-01.io.x:s") }
}

fn ends(
    algorithms: &Algorithms,
    is_mutual: bool,
    [host, controller]: [Concatenation; 2],
) -> (InitiatorConfig, ResponderConfig) {
    let [secret, other] = [(); 2].map(|()| DhchapSecret::generate(None).expect("randomness"));
    let controller_secret = is_mutual.then_some(other);
    let keys = Keys::new(secret.clone(), controller_secret.clone());
    let algorithms = algorithms.clone();
    (
        InitiatorConfig {
            names: names(),
            secret,
            controller_secret,
            algorithms: algorithms.clone(),
            concatenation: host,
        },
        ResponderConfig { names: names(), keys, algorithms, concatenation: controller },
    )
}

/// What an authentication comes to: its result at the host, the verdict, and the keys of both ends.
struct Outcome {
    result: Result<(), AuthenticationError>,
    verdict: Option<Verdict>,
    keys: [Option<GeneratedPsk>; 2],
}

/// Runs a whole transaction; `tamper` gets each message: whether the host sends it, and its bytes.
fn run(
    (host, controller): &(InitiatorConfig, ResponderConfig),
    mut tamper: impl FnMut(bool, &mut Vec<u8>),
) -> Outcome {
    let mut responder = Responder::new(controller.clone());
    let mut initiator = Initiator::new(host.clone(), 7);
    let mut result = Err(AuthenticationError::Misbehaved("it does not end"));
    for _ in 0..20 {
        match initiator.poll_step() {
            Some(InitiatorStep::Send(mut message)) => {
                tamper(true, &mut message);
                if let Received::Compute(work) = responder.handle_send(&message) {
                    responder.handle_finished(work.run());
                }
                initiator.handle_sent();
            }
            Some(InitiatorStep::Receive) => {
                let mut message = responder.handle_receive(BUFFER).unwrap_or_default();
                tamper(false, &mut message);
                initiator.handle_received(&message);
            }
            Some(InitiatorStep::Compute(work)) => initiator.handle_finished(work.run()),
            Some(InitiatorStep::Done) => {
                result = Ok(());
                break;
            }
            Some(InitiatorStep::Failed(error)) => {
                result = Err(error);
                break;
            }
            None => break,
        }
    }
    let verdict = responder.poll_verdict();
    let keys = [initiator.take_generated(), responder.take_generated()];
    Outcome { result, verdict, keys }
}

#[test]
fn both_ends_make_the_same_key_and_another_one_each_time() {
    for group in [DhGroup::Ffdhe2048, DhGroup::Ffdhe3072] {
        for (hash, used) in [(Hash::Sha256, Hash::Sha256), (Hash::Sha384, Hash::Sha384)] {
            for is_mutual in [false, true] {
                let algorithms = Algorithms { hashes: vec![hash], groups: vec![group] };
                let ends = ends(&algorithms, is_mutual, [Concatenation::New; 2]);
                let made = [(); 2].map(|()| {
                    let outcome = run(&ends, |_, _| ());
                    assert_eq!(outcome.result, Ok(()));
                    assert_eq!(outcome.verdict, Some(Verdict::Authenticated));
                    let [host, controller] = outcome.keys.map(|key| key.expect("a key is made"));
                    assert_eq!(host, controller);
                    host
                });
                assert_ne!(made[0], made[1]);
                let Names { host, subsystem } = names();
                let (identity, key) = made[0].for_tls(&host, &subsystem).expect("names fit");
                assert_eq!(key.hash(), used);
                let expected = format!("NVMe1G0{} {host} {subsystem} ", used.id());
                assert!(identity.as_str().starts_with(&expected), "{identity}");
                assert!(identity_is_generated(identity.as_str()));
                assert!(identity.names(&host, &subsystem));
            }
        }
    }
}

#[test]
fn ends_that_do_not_want_the_same_channel_do_not_agree() {
    use Concatenation::{New, None as Nothing, Replace};
    let algorithms = Algorithms { hashes: vec![Hash::Sha256], groups: vec![DhGroup::Ffdhe2048] };
    for (host, controller, makes) in [
        (New, Nothing, None),
        (Nothing, New, None),
        (Replace, New, None),
        (New, Replace, None),
        (Replace, Nothing, None),
        (Replace, Replace, Some(true)),
        (Nothing, Replace, Some(false)),
        (Nothing, Nothing, Some(false)),
    ] {
        let outcome = run(&ends(&algorithms, true, [host, controller]), |_, _| ());
        let keys = outcome.keys.map(|key| key.is_some());
        match makes {
            Some(makes) => assert_eq!((outcome.result, keys), (Ok(()), [makes; 2])),
            None => {
                let explanation = Explanation::SecureChannelMismatch;
                let refused = AuthenticationError::Refused(explanation);
                assert_eq!((outcome.result, keys), (Err(refused), [false; 2]));
                let verdict = Some(Verdict::Failed { explanation, by_host: false });
                assert_eq!(outcome.verdict, verdict, "{host:?} {controller:?}");
            }
        }
    }
}

/// TLS 1.3 has no suite with SHA-512, and without a group there is no secret of the two ends alone. Who prefers one of
/// these gets the next.
#[test]
fn what_no_key_can_be_made_with_is_not_chosen() {
    let all = Algorithms {
        hashes: vec![Hash::Sha512, Hash::Sha384],
        groups: vec![DhGroup::Null, DhGroup::Ffdhe2048],
    };
    let mut chosen = Vec::new();
    let outcome = run(&ends(&all, true, [Concatenation::New; 2]), |from_host, message| {
        if !from_host && message.get(..2) == Some(&[1, 1]) {
            chosen = message[8..10].to_vec();
        }
    });
    assert_eq!(outcome.result, Ok(()));
    assert_eq!(chosen, [Hash::Sha384.id(), DhGroup::Ffdhe2048.id()]);
    for (hash, group, explanation) in [
        (Hash::Sha512, DhGroup::Ffdhe2048, Explanation::HashNotUsable),
        (Hash::Sha256, DhGroup::Null, Explanation::GroupNotUsable),
    ] {
        let algorithms = Algorithms { hashes: vec![hash], groups: vec![group] };
        let outcome = run(&ends(&algorithms, true, [Concatenation::New; 2]), |_, _| ());
        assert_eq!(outcome.result, Err(AuthenticationError::Refused(explanation)));
        assert!(outcome.keys.iter().all(Option::is_none));
    }
}

/// SC_C is a part of both proofs, and the challenge of the host a part of the key.
#[test]
fn who_changes_a_message_gets_no_connection() {
    let algorithms = Algorithms { hashes: vec![Hash::Sha256], groups: vec![DhGroup::Ffdhe2048] };
    let both = ends(&algorithms, true, [Concatenation::New, Concatenation::New]);
    let plain = ends(&algorithms, true, [Concatenation::None, Concatenation::New]);
    // The request for a channel is put into a message without it.
    let outcome = run(&plain, |from_host, message| {
        if from_host && message[..2] == [0, 0] {
            message[6] = 2;
        }
    });
    assert!(outcome.result.is_err() && outcome.keys.iter().all(Option::is_none));
    // The host's challenge goes, or loses its number.
    for (at, value) in [(8, 0), (48, 0x55), (12, 0)] {
        let outcome = run(&both, |from_host, message| {
            if from_host && message[..2] == [1, 2] {
                message[at] ^= if at == 48 { value } else { message[at] };
            }
        });
        let [host, controller] = outcome.keys;
        assert!(outcome.result.is_err() && host.is_none(), "byte {at}");
        assert!(controller.is_none() || outcome.verdict != Some(Verdict::Authenticated));
    }
}

/// A challenge without a number is for a key: where none is made, it is wrong.
#[test]
fn a_challenge_without_a_number_is_for_a_key_only() {
    let algorithms = Algorithms { hashes: vec![Hash::Sha256], groups: vec![DhGroup::Null] };
    let ends = ends(&algorithms, true, [Concatenation::None; 2]);
    let outcome = run(&ends, |from_host, message| {
        if from_host && message[..2] == [1, 2] {
            message[12..16].fill(0);
        }
    });
    let refused = AuthenticationError::Refused(Explanation::IncorrectPayload);
    assert_eq!(outcome.result, Err(refused));
}
