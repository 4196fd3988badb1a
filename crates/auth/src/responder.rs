//! The controller's end of DH-HMAC-CHAP on one queue.
//!
//! Authentication Sends go into [`Responder::handle_send`], Authentication Receives into
//! [`Responder::handle_receive`], the results of computations into [`Responder::handle_finished`]. What follows for the
//! queue comes out of [`Responder::poll_verdict`].
//!
//! Every message that is wrong, late or not due ends the transaction: the host's next Authentication Receive gets
//! AUTH_Failure1, and the queue has to be closed then. A host without a key is answered like one whose secret is
//! wrong, after the same computations.

use raceline_proto::nvme::Status;
use raceline_proto::nvme::authentication::{
    Challenge, ControllerMessage, Explanation, HostMessage, Negotiate, Reply, transaction_of,
};

use crate::chap::{Algorithms, Concatenation, Names, Proof, challenge, sequence_number};
use crate::group::{DhGroup, Exchange};
use crate::hash::Hash;
use crate::interchange::KeyError;
use crate::psk::GeneratedPsk;
use crate::secret::{DhchapSecret, SecretBytes};
use crate::work::{Finished, Outcome, Work};

/// The secrets of a host and of the controller that hold together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPair {
    /// The secret by which the host proves itself.
    pub host: DhchapSecret,
    /// The secret by which the controller proves itself when a host asks that has proved itself by `host`; `None`: it
    /// cannot.
    pub controller: Option<DhchapSecret>,
}

/// The keys of one host: any of the pairs will do, so that a new one can be handed out while the old one still holds.
/// The first one that is right counts. Without any, each authentication fails.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    /// The pairs, the newest first.
    pub pairs: Vec<KeyPair>,
}

impl Keys {
    /// One pair.
    #[must_use]
    pub fn new(host: DhchapSecret, controller: Option<DhchapSecret>) -> Self {
        Self { pairs: vec![KeyPair { host, controller }] }
    }

    /// The same with a further pair, an older one.
    #[must_use]
    pub fn or(mut self, host: DhchapSecret, controller: Option<DhchapSecret>) -> Self {
        self.pairs.push(KeyPair { host, controller });
        self
    }
}

/// What a [`Responder`] needs to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponderConfig {
    /// The names in the queue's Connect.
    pub names: Names,
    /// The keys of the host.
    pub keys: Keys,
    /// What is allowed.
    pub algorithms: Algorithms,
    /// Which secure channel is made afterwards. [`Concatenation::New`] is demanded of the host;
    /// [`Concatenation::Replace`] is left to it.
    pub concatenation: Concatenation,
}

/// What to do with an Authentication Send.
#[derive(Debug)]
pub enum Received {
    /// Complete it with this status.
    Complete(Status),
    /// Run the work, give its result to [`Responder::handle_finished`], then complete the command with success.
    Compute(Work),
}

/// What an authentication means for its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The host has proved who it is, and is content with the controller.
    Authenticated,
    /// The queue has to be closed, once all answers are sent.
    Failed {
        /// Why.
        explanation: Explanation,
        /// The host gave up, and not the controller.
        by_host: bool,
    },
}

/// A challenge that the host has, or will get.
#[derive(Debug)]
pub(crate) struct Round {
    t_id: u16,
    hash: Hash,
    seqnum: u32,
    challenge: Vec<u8>,
    exchange: Exchange,
    concatenation: Concatenation,
}

/// A computed challenge.
#[derive(Debug)]
pub(crate) struct Offer {
    round: Round,
}

/// What came of checking a reply.
#[derive(Debug)]
pub(crate) struct Verification {
    t_id: u16,
    hash: Hash,
    result: Result<Proven, Explanation>,
}

/// What a reply has proved that is right.
#[derive(Debug)]
pub(crate) struct Proven {
    /// The place of the host's secret among its keys.
    key: usize,
    /// R2, if the host asked for it.
    response: Option<Vec<u8>>,
    /// The key for TLS, if the host asked for it.
    generated: Option<GeneratedPsk>,
}

#[derive(Debug)]
enum State {
    /// No transaction.
    Idle,
    /// A computation is out.
    Computing,
    /// The host has to fetch the challenge.
    Challenge(Box<Round>),
    /// The host has to reply.
    Reply(Box<Round>),
    /// The host has to fetch the success.
    Success1 { message: Vec<u8>, t_id: u16, mutual: bool },
    /// The host has to say that the controller's response is right.
    Success2 { t_id: u16 },
    /// The host has to fetch the failure.
    Failure1 { message: Vec<u8>, explanation: Explanation },
    /// Nothing is answered any more.
    Over,
}

/// The controller's end of DH-HMAC-CHAP on one queue.
#[derive(Debug)]
pub struct Responder {
    config: ResponderConfig,
    state: State,
    /// Of the last computation that was asked for: the result of an earlier one, given up, means nothing.
    ticket: u64,
    verdict: Option<Verdict>,
    key: Option<usize>,
    generated: Option<GeneratedPsk>,
}

impl Responder {
    /// Waits for AUTH_Negotiate.
    #[must_use]
    pub fn new(config: ResponderConfig) -> Self {
        let (verdict, key, generated) = (None, None, None);
        Self { config, state: State::Idle, ticket: 0, verdict, key, generated }
    }

    /// Uses these keys from the next transaction on.
    pub fn set_keys(&mut self, keys: Keys) {
        self.config.keys = keys;
    }

    /// Who authenticates to whom.
    #[must_use]
    pub fn names(&self) -> &Names {
        &self.config.names
    }

    /// The place, among the keys of then, of the secret whose proof the host gave last; `None`: it gave none.
    #[must_use]
    pub fn key_of_proof(&self) -> Option<usize> {
        self.key
    }

    /// The key for TLS that the last transaction has made, once; for the owner of a queue that has the verdict
    /// [`Verdict::Authenticated`].
    pub fn take_generated(&mut self) -> Option<GeneratedPsk> {
        self.generated.take()
    }

    /// Whether a transaction is under way.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        !matches!(self.state, State::Idle | State::Over)
    }

    /// What has come of a transaction; each result once.
    pub fn poll_verdict(&mut self) -> Option<Verdict> {
        self.verdict.take()
    }

    /// Gives the transaction up, because it took too long. A later result of its computation is ignored.
    pub fn give_up(&mut self) {
        if self.is_busy() {
            self.state = State::Idle;
        }
    }

    /// An Authentication Send has brought a message.
    #[must_use]
    pub fn handle_send(&mut self, message: &[u8]) -> Received {
        match self.state {
            // One command at a time: the message is not looked at.
            State::Computing | State::Over => {
                return Received::Complete(Status::COMMAND_SEQUENCE_ERROR);
            }
            // What was wrong first is what the host is told.
            State::Failure1 { .. } => return Received::Complete(Status::SUCCESS),
            _ => {}
        }
        let parsed = match HostMessage::parse(message) {
            Ok(parsed) => parsed,
            Err(explanation) => return self.fail(transaction_of(message), explanation),
        };
        match (std::mem::replace(&mut self.state, State::Idle), parsed) {
            (_, HostMessage::Failure2 { explanation, .. }) => {
                self.state = State::Over;
                self.verdict = Some(Verdict::Failed { explanation, by_host: true });
                Received::Complete(Status::SUCCESS)
            }
            (State::Idle, HostMessage::Negotiate(negotiate)) => self.negotiate(&negotiate),
            (State::Reply(round), HostMessage::Reply(reply)) => self.check(*round, reply),
            (State::Success2 { t_id }, HostMessage::Success2 { t_id: theirs }) => {
                if t_id != theirs {
                    return self.fail(theirs, Explanation::IncorrectPayload);
                }
                self.verdict = Some(Verdict::Authenticated);
                Received::Complete(Status::SUCCESS)
            }
            _ => self.fail(transaction_of(message), Explanation::IncorrectMessage),
        }
    }

    /// An Authentication Receive has come, for at most `len` bytes. Gives the message.
    ///
    /// # Errors
    /// The status to complete the command with.
    pub fn handle_receive(&mut self, len: usize) -> Result<Vec<u8>, Status> {
        let fits = |message: &[u8]| fits(message, len);
        match std::mem::replace(&mut self.state, State::Over) {
            State::Challenge(round) => {
                let message = round.message();
                let fit = fits(&message);
                self.state = match fit {
                    Ok(()) => State::Reply(round),
                    Err(_) => State::Challenge(round),
                };
                fit.map(|()| message)
            }
            State::Success1 { message, t_id, mutual } => {
                if let Err(status) = fits(&message) {
                    self.state = State::Success1 { message, t_id, mutual };
                    return Err(status);
                }
                if mutual {
                    self.state = State::Success2 { t_id };
                } else {
                    self.state = State::Idle;
                    self.verdict = Some(Verdict::Authenticated);
                }
                Ok(message)
            }
            State::Failure1 { message, explanation } => {
                self.verdict = Some(Verdict::Failed { explanation, by_host: false });
                fits(&message).map(|()| message)
            }
            State::Reply(round) => self.fail_receive(round.t_id, len),
            State::Success2 { t_id } => self.fail_receive(t_id, len),
            state @ (State::Idle | State::Computing | State::Over) => {
                self.state = state;
                Err(Status::COMMAND_SEQUENCE_ERROR)
            }
        }
    }

    /// The host asks for a message when it has to send one.
    fn fail_receive(&mut self, t_id: u16, len: usize) -> Result<Vec<u8>, Status> {
        let explanation = Explanation::IncorrectMessage;
        self.verdict = Some(Verdict::Failed { explanation, by_host: false });
        let message = ControllerMessage::Failure1 { t_id, explanation }.to_bytes();
        fits(&message, len).map(|()| message)
    }

    /// A computation is done.
    pub fn handle_finished(&mut self, finished: Finished) {
        if !matches!(self.state, State::Computing) || finished.ticket != self.ticket {
            return;
        }
        match finished.outcome {
            Outcome::Offer(Ok(offer)) => self.state = State::Challenge(Box::new(offer.round)),
            Outcome::Verification(Verification { t_id, hash, result: Ok(proven) }) => {
                let Proven { key, response, generated } = proven;
                self.key = Some(key);
                self.generated = generated;
                let mutual = response.is_some();
                let hash_len = u8::try_from(hash.len()).unwrap_or(u8::MAX);
                let message = ControllerMessage::Success1 { t_id, response, hash_len }.to_bytes();
                self.state = State::Success1 { message, t_id, mutual };
            }
            Outcome::Verification(Verification { t_id, result: Err(explanation), .. }) => {
                self.key = None;
                let _ = self.fail(t_id, explanation);
            }
            Outcome::Offer(Err(_)) | Outcome::Answer(_) => {
                let _ = self.fail(0, Explanation::Failed);
            }
        }
    }

    /// The transaction fails: the host learns it from its next Authentication Receive.
    fn fail(&mut self, t_id: u16, explanation: Explanation) -> Received {
        self.generated = None;
        let message = ControllerMessage::Failure1 { t_id, explanation }.to_bytes();
        self.state = State::Failure1 { message, explanation };
        Received::Complete(Status::SUCCESS)
    }

    /// The secure channel that the host asks for by SC_C; `None`: this queue does not make it.
    fn taken_channel(&self, sc_c: u8) -> Option<Concatenation> {
        let taken: &[Concatenation] = match self.config.concatenation {
            Concatenation::None => &[Concatenation::None],
            Concatenation::New => &[Concatenation::New],
            Concatenation::Replace => &[Concatenation::None, Concatenation::Replace],
        };
        taken.iter().copied().find(|concatenation| concatenation.sc_c() == sc_c)
    }

    fn negotiate(&mut self, negotiate: &Negotiate) -> Received {
        let t_id = negotiate.t_id;
        self.generated = None;
        let Algorithms { hashes, groups } = &self.config.algorithms;
        let concatenation = self.taken_channel(negotiate.sc_c);
        let choice = match &negotiate.dhchap {
            _ if concatenation.is_none() => Err(Explanation::SecureChannelMismatch),
            None => Err(Explanation::ProtocolNotUsable),
            Some((hash_ids, group_ids)) => {
                let channel = concatenation.unwrap_or_default();
                let hash = hashes
                    .iter()
                    .copied()
                    .find(|hash| hash_ids.contains(&hash.id()) && channel.allows_hash(*hash));
                let group = groups
                    .iter()
                    .copied()
                    .find(|group| group_ids.contains(&group.id()) && channel.allows_group(*group));
                match (hash, group) {
                    (None, _) => Err(Explanation::HashNotUsable),
                    (_, None) => Err(Explanation::GroupNotUsable),
                    (Some(hash), Some(group)) => Ok((hash, group, channel)),
                }
            }
        };
        match choice {
            Err(explanation) => self.fail(t_id, explanation),
            Ok((hash, group, concatenation)) => {
                self.state = State::Computing;
                self.ticket += 1;
                Received::Compute(Work::new(self.ticket, move || {
                    Outcome::Offer(
                        Round::new(t_id, (hash, group), concatenation)
                            .map(|round| Box::new(Offer { round })),
                    )
                }))
            }
        }
    }

    /// A reply that is due: checks its form, and has its response computed.
    fn check(&mut self, round: Round, reply: Reply) -> Received {
        let reflected =
            reply.challenge.as_ref().is_some_and(|(_, challenge)| *challenge == round.challenge);
        if reply.t_id != round.t_id
            || reply.response.len() != round.hash.len()
            || reply.public.len() != round.exchange.group().public_len()
            || reflected
        {
            return self.fail(reply.t_id, Explanation::IncorrectPayload);
        }
        let is_numbered = reply.challenge.as_ref().map(|(seqnum, _)| *seqnum != 0);
        match is_numbered {
            // A challenge without a number asks for no response: it is for a key only.
            Some(false) if !round.concatenation.makes_key() => {
                return self.fail(reply.t_id, Explanation::IncorrectPayload);
            }
            None if round.concatenation.makes_key() => {
                return self.fail(reply.t_id, Explanation::Failed);
            }
            _ => {}
        }
        let proves = |pair: &KeyPair| pair.controller.is_some();
        if is_numbered == Some(true) && !self.config.keys.pairs.iter().any(proves) {
            return self.fail(reply.t_id, Explanation::Failed);
        }
        self.state = State::Computing;
        self.ticket += 1;
        let ResponderConfig { names, keys, .. } = self.config.clone();
        Received::Compute(Work::new(self.ticket, move || {
            Outcome::Verification(Verification {
                t_id: round.t_id,
                hash: round.hash,
                result: round.verify(&reply, &keys, &names),
            })
        }))
    }
}

/// Whether a message fits into the host's buffer.
fn fits(message: &[u8], len: usize) -> Result<(), Status> {
    if message.len() <= len { Ok(()) } else { Err(Status::INVALID_FIELD.dnr()) }
}

impl Round {
    fn new(
        t_id: u16,
        (hash, group): (Hash, DhGroup),
        concatenation: Concatenation,
    ) -> Result<Self, KeyError> {
        let exchange = Exchange::new(group)?;
        let (seqnum, challenge) = (sequence_number()?, challenge(hash)?);
        Ok(Self { t_id, hash, seqnum, challenge, exchange, concatenation })
    }

    fn message(&self) -> Vec<u8> {
        let challenge = Challenge {
            t_id: self.t_id,
            hash: self.hash.id(),
            group: self.exchange.group().id(),
            seqnum: self.seqnum,
            challenge: self.challenge.clone(),
            public: self.exchange.public().to_vec(),
        };
        ControllerMessage::Challenge(challenge).to_bytes()
    }

    /// What the reply proves, when it is right.
    fn verify(&self, reply: &Reply, keys: &Keys, names: &Names) -> Result<Proven, Explanation> {
        let session_key = self
            .exchange
            .session_key(self.hash, &reply.public)
            .map_err(|_| Explanation::IncorrectPayload)?;
        let proof = Proof {
            hash: self.hash,
            challenge: &self.challenge,
            session_key: session_key.as_ref(),
            seqnum: self.seqnum,
            t_id: self.t_id,
            concatenation: self.concatenation,
        };
        let is_right = |secret: &DhchapSecret| {
            proof.of_host(&secret.key_of(&names.host), names).equals(&reply.response)
        };
        if keys.pairs.is_empty() {
            // The same work as with a key, for nothing.
            let decoy = DhchapSecret::generate(Some(self.hash)).map_err(|_| Explanation::Failed)?;
            std::hint::black_box(is_right(&decoy));
            return Err(Explanation::Failed);
        }
        // All of them are tried, also after one that is right.
        let pairs = keys.pairs.iter().enumerate();
        let right = pairs.fold(None, |right, (place, pair)| {
            let is_right = is_right(&pair.host);
            right.or_else(|| is_right.then_some((place, pair)))
        });
        let (key, pair) = right.ok_or(Explanation::Failed)?;
        let Some((seqnum, challenge)) = &reply.challenge else {
            return Ok(Proven { key, response: None, generated: None });
        };
        let generated = self.generate(session_key.as_ref(), challenge)?;
        if *seqnum == 0 {
            return Ok(Proven { key, response: None, generated });
        }
        let secret = pair.controller.as_ref().ok_or(Explanation::Failed)?;
        let proof = Proof { challenge, seqnum: *seqnum, ..proof };
        let own: SecretBytes = secret.key_of(&names.subsystem);
        let response = Some(proof.of_controller(&own, names).expose().to_vec());
        Ok(Proven { key, response, generated })
    }

    /// The key for TLS; `None`: none is asked for.
    fn generate(
        &self,
        session_key: Option<&SecretBytes>,
        host_challenge: &[u8],
    ) -> Result<Option<GeneratedPsk>, Explanation> {
        if !self.concatenation.makes_key() {
            return Ok(None);
        }
        // The group is none without a session key, which is never chosen here.
        let session_key = session_key.ok_or(Explanation::SecureChannelMismatch)?;
        let psk = GeneratedPsk::new(self.hash, session_key, &self.challenge, host_challenge);
        psk.map(Some).map_err(|_| Explanation::SecureChannelMismatch)
    }
}
