//! Drives both ends of DH-HMAC-CHAP with any bytes: none panics, and none believes what was not proved.
//!
//! The NULL group only: the arithmetic of the others is not what messages can break, and takes milliseconds.

use raceline_auth::{
    Algorithms, Concatenation, DhGroup, DhchapSecret, Hash, Initiator, InitiatorConfig,
    InitiatorStep, Keys, Names, Received, Responder, ResponderConfig, TlsKey, Verdict,
};
use raceline_proto::nvme::Nqn;

const SECRET: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
const BUFFER: usize = 4096;

fn names() -> Names {
    let nqn = |name: &str| Nqn::new(name).expect("it is a name");
    Names { host: nqn("nqn.2026-01.io.x:h"), subsystem: nqn("nqn.2026-01.io.x:s") }
}

fn secret() -> DhchapSecret {
    DhchapSecret::parse(SECRET).expect("it is a secret")
}

fn algorithms() -> Algorithms {
    Algorithms { hashes: Hash::ALL.to_vec(), groups: vec![DhGroup::Null] }
}

/// Takes a length byte and as many bytes as it says, or as there are.
fn take<'a>(input: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (&len, rest) = input.split_first()?;
    let (message, rest) = rest.split_at(usize::from(len).min(rest.len()));
    *input = rest;
    Some(message)
}

/// The secure channel that an end wants, by the length of the input.
fn concatenation(input: &[u8]) -> Concatenation {
    [Concatenation::None, Concatenation::New, Concatenation::Replace][input.len() % 3]
}

/// A hostile host: commands of the input, each a byte that chooses and what it needs.
pub fn responder(mut input: &[u8]) {
    let keys = Keys::new(secret(), Some(secret()));
    let concatenation = concatenation(input);
    let config = ResponderConfig { names: names(), keys, algorithms: algorithms(), concatenation };
    let mut responder = Responder::new(config);
    let mut finished = Vec::new();
    while let Some((&act, rest)) = input.split_first() {
        input = rest;
        match act % 4 {
            0 => {
                let Some(message) = take(&mut input) else { return };
                if let Received::Compute(work) = responder.handle_send(message) {
                    finished.push(work.run());
                }
            }
            1 => {
                let len = input.first().map_or(BUFFER, |len| usize::from(*len) * 16);
                if let Ok(message) = responder.handle_receive(len) {
                    assert!(message.len() <= len, "a message longer than its buffer");
                }
            }
            2 => {
                if let Some(finished) = finished.pop() {
                    responder.handle_finished(finished);
                }
            }
            _ => responder.give_up(),
        }
        // Nobody guesses an HMAC.
        assert_ne!(responder.poll_verdict(), Some(Verdict::Authenticated));
    }
}

/// A hostile controller: its messages are the input.
pub fn initiator(mut input: &[u8]) {
    let config = InitiatorConfig {
        names: names(),
        secret: secret(),
        controller_secret: Some(secret()),
        algorithms: algorithms(),
        concatenation: concatenation(input),
    };
    let mut initiator = Initiator::new(config, 1);
    while let Some(step) = initiator.poll_step() {
        match step {
            InitiatorStep::Send(_) => initiator.handle_sent(),
            InitiatorStep::Compute(work) => initiator.handle_finished(work.run()),
            InitiatorStep::Receive => match take(&mut input) {
                Some(message) => initiator.handle_received(message),
                None => return,
            },
            InitiatorStep::Done => panic!("a controller without the secret was believed"),
            InitiatorStep::Failed(_) => {}
        }
    }
}

/// Any text as a key: one that is read is printed as the same key.
pub fn keys(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(secret) = DhchapSecret::parse(text) {
        assert_eq!(DhchapSecret::parse(&secret.to_text()).as_ref(), Ok(&secret));
    }
    if let Ok(key) = TlsKey::parse(text) {
        assert_eq!(TlsKey::parse(&key.to_text()).as_ref(), Ok(&key));
    }
}
