//! The target's end of the security stage: AuthMethod and CHAP (RFC 7143, 12.1).

use crate::chap::{self, Algorithm, MAX_CHALLENGE_LEN, Secret};
use crate::keys::Key;
use crate::pdu::LoginStatus;
use crate::text::{Text, answer, list, number};

use super::{Authentication, ChapDemand, Credentials, Refusal};

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The response as it is.
    Respond,
    /// The driver has to find the secret first.
    Credentials,
}

/// How far the initiator has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Nothing was chosen.
    #[default]
    Open,
    /// CHAP was chosen: CHAP_A must come.
    Method,
    /// The challenge is out: CHAP_N and CHAP_R must come.
    Challenged(Algorithm),
    /// The initiator is authentic, or need not be.
    Done,
}

/// State of the security stage.
#[derive(Debug, Default)]
pub(super) struct Security {
    demand: Option<ChapDemand>,
    state: State,
    /// Keys of the text that is being read.
    method: Option<String>,
    algorithms: Option<String>,
    name: Option<String>,
    response: Option<Vec<u8>>,
    /// The initiator's challenge to the target.
    id: Option<u8>,
    challenge: Option<Vec<u8>>,
}

/// A refusal because the initiator is not who it says, or does not say it.
const fn failed(text: &'static str) -> Refusal {
    Refusal(LoginStatus::AUTHENTICATION_FAILED, text)
}

impl Security {
    /// The driver's demand.
    pub(super) fn demand(&mut self, authentication: &Authentication) {
        self.demand = match authentication {
            Authentication::None => None,
            Authentication::Chap(demand) => Some(demand.clone()),
        };
    }

    /// The name that the initiator authenticates itself with.
    pub(super) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Whether the stage may end.
    pub(super) fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Takes a security key.
    pub(super) fn take(&mut self, key: Key, value: &str) -> Result<(), Refusal> {
        let expected = match key {
            Key::AuthMethod => self.state == State::Open,
            Key::ChapA => self.state == State::Method,
            _ => matches!(self.state, State::Challenged(_)),
        };
        if !expected {
            return Err(failed("a security key came out of order"));
        }
        match (key, self.state) {
            (Key::AuthMethod, _) => self.method = Some(value.to_owned()),
            (Key::ChapA, _) => self.algorithms = Some(value.to_owned()),
            // A name that looks like a number is a name.
            (Key::ChapN, _) => self.name = Some(value.to_owned()),
            (Key::ChapR, State::Challenged(algorithm)) => {
                let len = algorithm.response_len();
                let response = chap::from_text(value, len).filter(|bytes| bytes.len() == len);
                self.response = Some(response.ok_or(failed("CHAP_R has the wrong length"))?);
            }
            (Key::ChapI, _) => {
                let id = number(value).and_then(|id| u8::try_from(id).ok());
                self.id = Some(id.ok_or(failed("CHAP_I is above 255"))?);
            }
            (Key::ChapC, _) => {
                let challenge = chap::from_text(value, MAX_CHALLENGE_LEN);
                self.challenge = Some(challenge.ok_or(failed("CHAP_C is no binary value"))?);
            }
            _ => return Err(failed("a security key came out of order")),
        }
        Ok(())
    }

    /// Answers the keys of one text. `transits`: the initiator is ready to leave the stage.
    pub(super) fn step(&mut self, transits: bool, reply: &mut Text) -> Result<Step, Refusal> {
        match self.state {
            State::Open => self.choose_method(transits, reply).map(|()| Step::Respond),
            State::Method => self.challenge(reply).map(|()| Step::Respond),
            State::Challenged(_) => {
                if self.name.is_none() || self.response.is_none() {
                    return Err(failed("CHAP_N or CHAP_R is missing"));
                }
                if self.id.is_some() != self.challenge.is_some() {
                    return Err(failed("CHAP_I and CHAP_C go together"));
                }
                Ok(Step::Credentials)
            }
            State::Done => Ok(Step::Respond),
        }
    }

    fn choose_method(&mut self, transits: bool, reply: &mut Text) -> Result<(), Refusal> {
        let required = self.demand.as_ref().is_some_and(|demand| demand.required);
        let Some(methods) = self.method.take() else {
            if transits {
                return self.skipped();
            }
            return Ok(()); // an empty text: the initiator has yet to offer
        };
        let chosen = list(&methods).find(|&method| match method {
            "CHAP" => self.demand.is_some(),
            answer::NONE => !required,
            _ => false,
        });
        match chosen {
            Some(method) => reply.push(Key::AuthMethod.name(), method),
            None => return Err(failed("no authentication method is acceptable to both ends")),
        }
        self.state = if chosen == Some("CHAP") { State::Method } else { State::Done };
        Ok(())
    }

    fn challenge(&mut self, reply: &mut Text) -> Result<(), Refusal> {
        let offered = self.algorithms.take().ok_or(failed("CHAP_A is missing"))?;
        let Some(demand) = &self.demand else { unreachable!("CHAP was chosen by a demand") };
        let algorithm = list(&offered)
            .filter_map(Algorithm::from_text)
            .find(|algorithm| demand.algorithms.contains(algorithm));
        let algorithm = algorithm.ok_or(failed("no algorithm of CHAP_A is acceptable"))?;
        reply.push(Key::ChapA.name(), algorithm.text());
        reply.push_number(Key::ChapI.name(), u32::from(demand.id));
        reply.push(Key::ChapC.name(), &chap::to_text(&demand.challenge));
        self.state = State::Challenged(algorithm);
        Ok(())
    }

    /// Checks the response, and makes that of the target. Without credentials nobody has the name; the hash is
    /// computed all the same, so the time does not tell.
    pub(super) fn check(
        &mut self,
        credentials: Option<&Credentials>,
        reply: &mut Text,
    ) -> Result<(), Refusal> {
        let (State::Challenged(algorithm), Some(demand), Some(response)) =
            (self.state, &self.demand, self.response.take())
        else {
            unreachable!("credentials are asked for with a response only");
        };
        let secret = credentials.map(|credentials| &credentials.secret);
        if !algorithm.is_right(demand.id, secret, &demand.challenge, &response) {
            return Err(failed("the response does not belong to the name"));
        }
        let own = credentials.and_then(|credentials| credentials.own.as_ref());
        match (self.id, self.challenge.take()) {
            (Some(id), Some(challenge)) => {
                if challenge == demand.challenge {
                    return Err(failed("the initiator reflects the target's challenge"));
                }
                let own = own.ok_or(failed("the target has no secret of its own for the name"))?;
                push_proof(algorithm, id, own, &challenge, reply);
            }
            _ if demand.mutual => {
                return Err(failed("the initiator must ask the target to authenticate itself"));
            }
            _ => {}
        }
        self.state = State::Done;
        Ok(())
    }

    /// The initiator leaves the stage out: fine unless it has to authenticate itself.
    pub(super) fn skipped(&mut self) -> Result<(), Refusal> {
        let required = self.demand.as_ref().is_some_and(|demand| demand.required);
        match self.state {
            State::Done => Ok(()),
            State::Open if !required => {
                self.state = State::Done;
                Ok(())
            }
            _ => Err(failed("the target requires CHAP")),
        }
    }
}

fn push_proof(
    algorithm: Algorithm,
    id: u8,
    (name, secret): &(String, Secret),
    challenge: &[u8],
    reply: &mut Text,
) {
    reply.push(Key::ChapN.name(), name);
    let response = algorithm.response(id, secret, challenge);
    reply.push(Key::ChapR.name(), &chap::to_text(&response));
}
