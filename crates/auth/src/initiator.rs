//! The host's end of DH-HMAC-CHAP on one queue.
//!
//! [`Initiator::poll_step`] says what to do next, and one of the `handle_` functions takes what came of it.

use raceline_proto::nvme::authentication::{
    Challenge, ControllerMessage, Explanation, HostMessage, Negotiate, Reply,
};

use crate::chap::{Algorithms, Concatenation, Names, Proof, challenge, sequence_number};
use crate::group::{DhGroup, Exchange};
use crate::hash::Hash;
use crate::interchange::KeyError;
use crate::psk::GeneratedPsk;
use crate::secret::{DhchapSecret, SecretBytes};
use crate::work::{Finished, Outcome, Work};

/// What an [`Initiator`] needs to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitiatorConfig {
    /// The names in the queue's Connect.
    pub names: Names,
    /// The secret by which the host proves itself.
    pub secret: DhchapSecret,
    /// The secret by which the controller has to prove itself; `None`: it need not.
    pub controller_secret: Option<DhchapSecret>,
    /// What is allowed.
    pub algorithms: Algorithms,
    /// Which secure channel is made afterwards.
    pub concatenation: Concatenation,
}

/// Why an authentication failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthenticationError {
    /// AUTH_Failure1.
    #[error("the controller refused the authentication: {}", advice(*.0))]
    Refused(Explanation),
    /// The controller's response is not that of its secret, or is missing.
    #[error(
        "the controller did not prove that it knows the controller's secret: either the secret differs at both ends, or \
         this is not the controller that it says it is"
    )]
    ControllerNotProven,
    /// A message of the controller is wrong.
    #[error("the controller broke the authentication protocol: {0}")]
    Misbehaved(&'static str),
    /// The controller chose what the host does not allow.
    #[error("the controller chose a {0} that this host does not allow")]
    NotAllowed(&'static str),
    /// A key cannot be made.
    #[error("{0}")]
    Key(#[from] KeyError),
}

/// What a person can do about a refusal.
fn advice(explanation: Explanation) -> String {
    match explanation {
        Explanation::Failed => "its secret for this host differs from the one given here, or it has none, or the \
             host asked it to prove itself and it has no controller secret. Compare the keys of this host NQN at both \
             ends"
            .into(),
        Explanation::ProtocolNotUsable => "it does not support DH-HMAC-CHAP".into(),
        Explanation::SecureChannelMismatch => {
            "one end wants TLS after the authentication (--concat), with a key that the authentication makes, and the \
             other end does not"
                .into()
        }
        Explanation::HashNotUsable => "it allows none of the hash functions that this host allows".into(),
        Explanation::GroupNotUsable => "it allows none of the groups that this host allows".into(),
        Explanation::IncorrectPayload => "it found a field of a message wrong".into(),
        Explanation::IncorrectMessage => "it expected another message".into(),
        Explanation::Other(code) => format!("it gave the unknown reason {code:02x}h"),
    }
}

/// The next thing to do.
#[derive(Debug)]
pub enum InitiatorStep {
    /// Send this message by Authentication Send; then call [`Initiator::handle_sent`].
    Send(Vec<u8>),
    /// Fetch a message by Authentication Receive; then call [`Initiator::handle_received`].
    Receive,
    /// Run this; then call [`Initiator::handle_finished`].
    Compute(Work),
    /// Both have proved themselves as far as they had to.
    Done,
    /// The queue has to be closed.
    Failed(AuthenticationError),
}

/// The reply to a challenge, computed.
#[derive(Debug)]
pub(crate) struct Answer {
    reply: Reply,
    /// R2 as it has to be.
    expected: Option<SecretBytes>,
    hash: Hash,
    /// The key for TLS, if one is made.
    generated: Option<GeneratedPsk>,
}

/// Why a challenge is not answered: what the controller is told, and what the host's user is told.
pub(crate) type Refusal = (Explanation, AuthenticationError);

#[derive(Debug)]
enum Phase {
    /// AUTH_Negotiate is on its way.
    Negotiating,
    /// The challenge is to come.
    Challenge,
    /// The reply is being computed.
    Computing,
    /// The reply is on its way.
    Replying { expected: Option<SecretBytes>, hash: Hash },
    /// Success is to come.
    Success1 { expected: Option<SecretBytes>, hash: Hash },
    /// Success2 is on its way.
    Confirming,
    /// AUTH_Failure2 is on its way.
    Refusing(AuthenticationError),
    /// Over.
    Over,
}

/// The host's end of DH-HMAC-CHAP on one queue.
#[derive(Debug)]
pub struct Initiator {
    config: InitiatorConfig,
    t_id: u16,
    phase: Phase,
    next: Option<InitiatorStep>,
    generated: Option<GeneratedPsk>,
}

impl Initiator {
    /// Begins a transaction with this number, which differs from that of the previous one.
    #[must_use]
    pub fn new(mut config: InitiatorConfig, t_id: u16) -> Self {
        let concatenation = config.concatenation;
        config.algorithms.hashes.retain(|hash| concatenation.allows_hash(*hash));
        config.algorithms.groups.retain(|group| concatenation.allows_group(*group));
        let Algorithms { hashes, groups } = &config.algorithms;
        let ids = (
            hashes.iter().map(|hash| hash.id()).collect(),
            groups.iter().map(|group| group.id()).collect(),
        );
        let negotiate = Negotiate { t_id, sc_c: concatenation.sc_c(), dhchap: Some(ids) };
        let message = HostMessage::Negotiate(negotiate).to_bytes();
        let next = Some(InitiatorStep::Send(message));
        Self { config, t_id, phase: Phase::Negotiating, next, generated: None }
    }

    /// What to do next; each step once.
    pub fn poll_step(&mut self) -> Option<InitiatorStep> {
        self.next.take()
    }

    /// The key for TLS that the transaction has made, once; for after [`InitiatorStep::Done`].
    pub fn take_generated(&mut self) -> Option<GeneratedPsk> {
        self.generated.take()
    }

    /// Why this host has refused the controller, while it tells the controller so. A connection that ends now has ended for
    /// this reason.
    #[must_use]
    pub fn refusal(&self) -> Option<&AuthenticationError> {
        match &self.phase {
            Phase::Refusing(error) => Some(error),
            _ => None,
        }
    }

    /// The message has been sent, and the controller has taken it.
    pub fn handle_sent(&mut self) {
        let (phase, next) = match std::mem::replace(&mut self.phase, Phase::Over) {
            Phase::Negotiating => (Phase::Challenge, InitiatorStep::Receive),
            Phase::Replying { expected, hash } => {
                (Phase::Success1 { expected, hash }, InitiatorStep::Receive)
            }
            Phase::Confirming => (Phase::Over, InitiatorStep::Done),
            Phase::Refusing(error) => (Phase::Over, InitiatorStep::Failed(error)),
            other => {
                self.phase = other;
                return;
            }
        };
        self.phase = phase;
        self.next = Some(next);
    }

    /// A message has come; the buffer may be longer.
    pub fn handle_received(&mut self, message: &[u8]) {
        if !matches!(self.phase, Phase::Challenge | Phase::Success1 { .. }) {
            return;
        }
        let message = match ControllerMessage::parse(message) {
            Ok(message) => message,
            Err(explanation) => {
                let error = AuthenticationError::Misbehaved("its message cannot be read");
                return self.refuse((explanation, error));
            }
        };
        match (std::mem::replace(&mut self.phase, Phase::Over), message) {
            (_, ControllerMessage::Failure1 { explanation, .. }) => {
                self.generated = None;
                let error = AuthenticationError::Refused(explanation);
                self.next = Some(InitiatorStep::Failed(error));
            }
            (Phase::Challenge, ControllerMessage::Challenge(challenge)) => self.answer(challenge),
            (
                Phase::Success1 { expected, hash },
                ControllerMessage::Success1 { t_id, response, hash_len },
            ) => {
                if t_id != self.t_id || usize::from(hash_len) != hash.len() {
                    return self.refuse(wrong("Success1 is not that of this transaction"));
                }
                self.conclude(expected.as_ref(), response.as_deref());
            }
            _ => {
                let error = AuthenticationError::Misbehaved("another message was due");
                self.refuse((Explanation::IncorrectMessage, error));
            }
        }
    }

    /// A computation is done.
    pub fn handle_finished(&mut self, finished: Finished) {
        if !matches!(self.phase, Phase::Computing) {
            return;
        }
        match finished.outcome {
            Outcome::Answer(Ok(answer)) => {
                let Answer { reply, expected, hash, generated } = *answer;
                self.generated = generated;
                self.phase = Phase::Replying { expected, hash };
                self.next = Some(InitiatorStep::Send(HostMessage::Reply(reply).to_bytes()));
            }
            Outcome::Answer(Err(refusal)) => self.refuse(refusal),
            Outcome::Offer(_) | Outcome::Verification(_) => {
                self.refuse(wrong("a computation was mixed up"));
            }
        }
    }

    /// Tells the controller that the transaction has failed; then the queue has to be closed.
    fn refuse(&mut self, (explanation, error): Refusal) {
        self.generated = None;
        let message = HostMessage::Failure2 { t_id: self.t_id, explanation }.to_bytes();
        self.phase = Phase::Refusing(error);
        self.next = Some(InitiatorStep::Send(message));
    }

    fn answer(&mut self, challenge: Challenge) {
        let Algorithms { hashes, groups } = &self.config.algorithms;
        let not_allowed = |explanation, what| (explanation, AuthenticationError::NotAllowed(what));
        let hash = Hash::from_id(challenge.hash).filter(|hash| hashes.contains(hash));
        let Some(hash) = hash else {
            return self.refuse(not_allowed(Explanation::HashNotUsable, "hash function"));
        };
        let group = DhGroup::from_id(challenge.group).filter(|group| groups.contains(group));
        let Some(group) = group else {
            return self.refuse(not_allowed(Explanation::GroupNotUsable, "group"));
        };
        if challenge.t_id != self.t_id {
            return self.refuse(wrong("the challenge is not that of this transaction"));
        }
        if challenge.challenge.len() != hash.len() || challenge.public.len() != group.public_len() {
            return self.refuse(wrong("a length in its challenge is wrong"));
        }
        self.phase = Phase::Computing;
        let config = self.config.clone();
        self.next = Some(InitiatorStep::Compute(Work::new(0, move || {
            Outcome::Answer(answer(&config, &challenge, hash, group).map(Box::new))
        })));
    }

    /// Success1 has come.
    fn conclude(&mut self, expected: Option<&SecretBytes>, response: Option<&[u8]>) {
        match (expected, response) {
            (None, None) => self.next = Some(InitiatorStep::Done),
            (Some(expected), Some(response)) if expected.equals(response) => {
                self.phase = Phase::Confirming;
                let message = HostMessage::Success2 { t_id: self.t_id }.to_bytes();
                self.next = Some(InitiatorStep::Send(message));
            }
            (Some(_), _) => {
                self.refuse((Explanation::Failed, AuthenticationError::ControllerNotProven));
            }
            (None, Some(_)) => self.refuse(wrong("it answered a challenge that it did not get")),
        }
    }
}

/// A field of a message is wrong.
fn wrong(what: &'static str) -> Refusal {
    (Explanation::IncorrectPayload, AuthenticationError::Misbehaved(what))
}

/// Computes the reply to a challenge whose form is right.
fn answer(
    config: &InitiatorConfig,
    theirs: &Challenge,
    hash: Hash,
    group: DhGroup,
) -> Result<Answer, Refusal> {
    let InitiatorConfig { names, secret, controller_secret, concatenation, .. } = config;
    let concatenation = *concatenation;
    let no_key = |error: KeyError| (Explanation::Failed, error.into());
    let exchange = Exchange::new(group).map_err(no_key)?;
    let session_key = exchange
        .session_key(hash, &theirs.public)
        .map_err(|_| wrong("its public value does not belong to the group"))?;
    let proof = Proof {
        hash,
        challenge: &theirs.challenge,
        session_key: session_key.as_ref(),
        seqnum: theirs.seqnum,
        t_id: theirs.t_id,
        concatenation,
    };
    let response = proof.of_host(&secret.key_of(&names.host), names).expose().to_vec();
    let (mut own, mut expected, mut generated) = (None, None, None);
    if controller_secret.is_some() || concatenation.makes_key() {
        // A challenge without a number asks for no response: it is for the key only.
        let seqnum = match controller_secret {
            Some(_) => sequence_number().map_err(no_key)?,
            None => 0,
        };
        own = Some((seqnum, challenge(hash).map_err(no_key)?));
    }
    if let (Some(secret), Some((seqnum, challenge))) = (controller_secret, &own) {
        let proof = Proof { challenge, seqnum: *seqnum, ..proof };
        expected = Some(proof.of_controller(&secret.key_of(&names.subsystem), names));
    }
    if let (true, Some((_, challenge))) = (concatenation.makes_key(), &own) {
        let session_key = session_key.as_ref().ok_or_else(|| wrong("it chose no group"))?;
        let psk = GeneratedPsk::new(hash, session_key, &theirs.challenge, challenge);
        generated = Some(psk.map_err(no_key)?);
    }
    let public = exchange.public().to_vec();
    let reply = Reply { t_id: theirs.t_id, response, challenge: own, public };
    Ok(Answer { reply, expected, hash, generated })
}
