//! The initiator's end of a login: stages, CHAP, offers, and checks on what the target answers (RFC 7143, 6.3, 11.12,
//! 11.13, 12.1).

use subtle::ConstantTimeEq;

use crate::chap::{self, Algorithm, MAX_CHALLENGE_LEN};
use crate::error::{FatalError, Violation};
use crate::keys::Key;
use crate::negotiate::Offerer;
use crate::pdu::{LoginRequest, LoginResponse, LoginStatus, Stage, flags};
use crate::text::{Collected, Text, answer, number, pairs};

use super::{
    Answer, End, InitiatorConfig, InitiatorConnection, InitiatorCredentials, InitiatorEvent, Phase,
};

/// Most Login Responses of one login.
const MAX_RESPONSES: u32 = 32;
/// The tag of all requests of a login.
const LOGIN_TAG: u32 = 1 << 31;

/// How far authentication has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chap {
    /// AuthMethod is offered, or will be.
    Method,
    /// CHAP_A is offered.
    Algorithm,
    /// The response to the target's challenge was sent.
    Responded(Algorithm),
    /// The target is satisfied, and so is this end.
    Done,
}

/// State of a login.
#[derive(Debug)]
pub(super) struct Login {
    config: InitiatorConfig,
    offerer: Offerer,
    stage: Stage,
    chap: Chap,
    offered: bool,
    /// What the next request says.
    text: Text,
    transits: bool,
    responses: u32,
    collected: Collected,
    tsih: u16,
    redirected_to: Option<String>,
}

/// What is wrong, and with what.
type Fault = (Violation, String);

fn fault(violation: Violation, detail: impl Into<String>) -> Fault {
    (violation, detail.into())
}

impl Login {
    pub(super) fn new(config: InitiatorConfig) -> Self {
        let discovery = config.target_name.is_none();
        let stage = if config.credentials.is_some() { Stage::Security } else { Stage::Operational };
        let mut text = Text::default();
        text.push(Key::InitiatorName.name(), config.initiator_name.as_str());
        text.push(Key::SessionType.name(), if discovery { "Discovery" } else { "Normal" });
        if let Some(name) = &config.target_name {
            text.push(Key::TargetName.name(), name.as_str());
        }
        let mut login = Self {
            offerer: Offerer::new(config.wishes, discovery),
            stage,
            chap: Chap::Done,
            offered: false,
            text,
            transits: false,
            responses: 0,
            collected: Collected::default(),
            tsih: 0,
            redirected_to: None,
            config,
        };
        match &login.config.credentials {
            Some(credentials) => {
                // A target that has to authenticate itself cannot leave CHAP out.
                let methods = if credentials.target.is_some() { "CHAP" } else { "CHAP,None" };
                login.text.push(Key::AuthMethod.name(), methods);
                login.chap = Chap::Method;
            }
            None => login.offer(),
        }
        login
    }

    pub(super) fn tsih(&self) -> u16 {
        self.tsih
    }

    pub(super) fn redirected_to(&self) -> Option<&str> {
        self.redirected_to.as_deref()
    }

    /// Offers all operational keys, and to begin the full feature phase.
    fn offer(&mut self) {
        self.offered = true;
        self.offerer.offer(&mut self.text);
        self.transits = true;
    }

    /// Checks the header of a response against the request before it.
    fn check(&mut self, pdu: &LoginResponse) -> Result<(), Fault> {
        self.responses += 1;
        if self.responses > MAX_RESPONSES {
            return Err(fault(Violation::LoginTooLong, ""));
        }
        if pdu.itt != LOGIN_TAG {
            return Err(fault(Violation::LoginResponseInvalid, "ITT"));
        }
        // tgt fills in nothing else when it refuses.
        if !pdu.login_status().is_success() {
            return Ok(());
        }
        if pdu.isid != self.config.isid.0 || pdu.version_active != 0 {
            return Err(fault(Violation::LoginResponseInvalid, "ISID or version"));
        }
        if pdu.current_stage() != Some(self.stage) {
            return Err(fault(Violation::LoginStage, "CSG"));
        }
        if pdu.transits() {
            let wanted = self.transits && pdu.next_stage() == Some(self.next_stage());
            if !wanted || pdu.continues() {
                return Err(fault(Violation::LoginStage, "T or NSG"));
            }
        }
        Ok(())
    }

    /// The stage that follows.
    fn next_stage(&self) -> Stage {
        if self.stage == Stage::Security { Stage::Operational } else { Stage::FullFeature }
    }

    /// Takes a whole response; gives whether the login is complete.
    fn take(&mut self, pdu: &LoginResponse, text: &[u8]) -> Result<bool, Fault> {
        self.text = Text::default();
        let too_long = |_| fault(Violation::TextTooLong, "");
        self.collected.push(text).map_err(too_long)?;
        if pdu.continues() {
            // The initiator asks for the rest with an empty request, and keeps T for later.
            return Ok(false);
        }
        let text = self.collected.take();
        let chap_keys = self.take_keys(&text)?;
        if self.stage == Stage::Security {
            self.authenticate(&chap_keys)?;
        }
        if !pdu.transits() {
            return Ok(false);
        }
        if self.stage == Stage::Security {
            if self.chap != Chap::Done {
                return Err(fault(
                    Violation::LoginStage,
                    "the target leaves the security stage early",
                ));
            }
            self.stage = Stage::Operational;
            if !self.offered {
                self.offer();
            }
            return Ok(false);
        }
        if pdu.tsih == 0 {
            return Err(fault(Violation::LoginResponseInvalid, "TSIH is 0"));
        }
        self.tsih = pdu.tsih;
        Ok(true)
    }

    /// Takes the operational and declarative keys of a text; gives the security keys.
    fn take_keys(&mut self, text: &[u8]) -> Result<Vec<(Key, String)>, Fault> {
        let mut security = Vec::new();
        for pair in pairs(text) {
            let (key, value) =
                pair.map_err(|error| fault(Violation::LoginResponseText, error.to_string()))?;
            let Some(key) = Key::from_name(key) else {
                if value != answer::NOT_UNDERSTOOD {
                    self.text.push(key, answer::NOT_UNDERSTOOD);
                }
                continue;
            };
            match key {
                Key::AuthMethod
                | Key::ChapA
                | Key::ChapI
                | Key::ChapC
                | Key::ChapN
                | Key::ChapR => {
                    if self.stage != Stage::Security {
                        return Err(fault(Violation::LoginKey, key.name()));
                    }
                    security.push((key, value.to_owned()));
                }
                _ => {
                    if !self.offerer.take(key, value, &mut self.text) {
                        let detail = format!("{}={value}", key.name());
                        return Err(fault(Violation::LoginKey, detail));
                    }
                }
            }
        }
        Ok(security)
    }

    /// Takes a step of CHAP.
    fn authenticate(&mut self, keys: &[(Key, String)]) -> Result<(), Fault> {
        let value = |wanted: Key| {
            keys.iter().find(|(key, _)| *key == wanted).map(|(_, value)| value.as_str())
        };
        let Some(credentials) = &self.config.credentials else {
            unreachable!("without credentials there is no security stage");
        };
        match self.chap {
            Chap::Method => match value(Key::AuthMethod) {
                Some("CHAP") => {
                    let algorithms: Vec<_> =
                        credentials.algorithms.iter().map(|algorithm| algorithm.text()).collect();
                    self.text.push(Key::ChapA.name(), &algorithms.join(","));
                    self.chap = Chap::Algorithm;
                }
                Some(answer::NONE) if credentials.target.is_none() => {
                    self.chap = Chap::Done;
                    self.transits = true;
                }
                Some(other) => return Err(fault(Violation::AuthRefused, other)),
                None => return Err(fault(Violation::AuthRefused, "it answered no AuthMethod")),
            },
            Chap::Algorithm => {
                let algorithm = value(Key::ChapA).and_then(Algorithm::from_text);
                let algorithm = algorithm
                    .filter(|algorithm| credentials.algorithms.contains(algorithm))
                    .ok_or_else(|| fault(Violation::LoginKey, "CHAP_A"))?;
                let id = value(Key::ChapI).and_then(number).and_then(|id| u8::try_from(id).ok());
                let id = id.ok_or_else(|| fault(Violation::LoginKey, "CHAP_I"))?;
                let challenge =
                    value(Key::ChapC).and_then(|text| chap::from_text(text, MAX_CHALLENGE_LEN));
                let challenge = challenge.ok_or_else(|| fault(Violation::LoginKey, "CHAP_C"))?;
                if challenge == credentials.challenge {
                    let text = "it reflects the initiator's challenge";
                    return Err(fault(Violation::TargetNotAuthentic, text));
                }
                respond(credentials, algorithm, id, &challenge, &mut self.text);
                self.chap = Chap::Responded(algorithm);
                self.transits = true;
            }
            Chap::Responded(algorithm) => {
                if let Some((name, secret)) = &credentials.target {
                    let expected =
                        algorithm.response(credentials.id, secret, &credentials.challenge);
                    let proof = value(Key::ChapR)
                        .and_then(|text| chap::from_text(text, expected.len()))
                        .unwrap_or_default();
                    let named = value(Key::ChapN) == Some(name);
                    if !(bool::from(expected.ct_eq(&proof)) && named) {
                        return Err(fault(Violation::TargetNotAuthentic, ""));
                    }
                }
                self.chap = Chap::Done;
            }
            Chap::Done => {}
        }
        Ok(())
    }
}

/// The response to the target's challenge, and the challenge to the target.
fn respond(
    credentials: &InitiatorCredentials,
    algorithm: Algorithm,
    id: u8,
    challenge: &[u8],
    text: &mut Text,
) {
    text.push(Key::ChapN.name(), &credentials.name);
    let response = algorithm.response(id, &credentials.secret, challenge);
    text.push(Key::ChapR.name(), &chap::to_text(&response));
    if credentials.target.is_some() {
        text.push_number(Key::ChapI.name(), u32::from(credentials.id));
        text.push(Key::ChapC.name(), &chap::to_text(&credentials.challenge));
    }
}

impl InitiatorConnection {
    /// Appends the first Login Request, the first thing on a connection.
    ///
    /// # Panics
    /// When it was sent before.
    pub fn login(&mut self, out: &mut Vec<u8>) {
        assert!(self.end.phase == Phase::Unused, "a connection logs in once");
        self.end.phase = Phase::Login;
        self.end.put_login(out);
    }
}

impl End {
    /// Appends a Login Request.
    pub(super) fn put_login(&mut self, out: &mut Vec<u8>) {
        let login = &self.login;
        let mut bits = login.stage.to_wire() << 2;
        if login.transits && !login.text_is_continued() {
            bits |= flags::TRANSIT | login.next_stage().to_wire();
        }
        let pdu = LoginRequest {
            immediate: true,
            flags: bits,
            version_max: 0,
            version_min: 0,
            isid: login.config.isid.0,
            tsih: 0,
            itt: LOGIN_TAG,
            cid: 0,
            cmd_sn: self.numbers.cmd_sn,
            exp_stat_sn: self.numbers.exp_stat_sn,
        };
        let text = login.text.as_bytes();
        let len = u32::try_from(text.len()).expect("a few keys");
        self.framing.put_with_data(&pdu.encode(len), text, out);
    }

    /// A Login Response is whole.
    pub(super) fn handle_login<'a>(&mut self) -> Result<Option<InitiatorEvent<'a>>, FatalError> {
        let pdu = LoginResponse::decode(&self.header);
        let status = pdu.login_status();
        if self.login.responses == 0 {
            self.numbers.exp_stat_sn = pdu.stat_sn;
        }
        let error = |(violation, detail): Fault| {
            FatalError::in_header(violation, &self.header).with_detail(detail)
        };
        self.login.check(&pdu).map_err(error)?;
        if !status.is_success() {
            self.phase = Phase::Closed;
            self.login.note_address(status, &self.collected);
            return Ok(Some(InitiatorEvent::Refused(status)));
        }
        let in_order = self.numbers.take_status(pdu.stat_sn);
        in_order.map_err(|violation| error(fault(violation, "")))?;
        if !self.login.take(&pdu, &self.collected).map_err(error)? {
            self.due = Some(Answer::Login);
            return Ok(None);
        }
        self.parameters = self.login.offerer.result();
        self.framing.header_digest = self.parameters.header_digest;
        self.framing.data_digest = self.parameters.data_digest;
        self.numbers.max_cmd_sn = pdu.max_cmd_sn;
        self.phase = Phase::FullFeature;
        Ok(Some(InitiatorEvent::LoggedIn))
    }
}

impl Login {
    /// Whether the next request only asks for the rest of a response.
    fn text_is_continued(&self) -> bool {
        !self.collected.is_empty()
    }

    /// Keeps the address that a redirection names.
    fn note_address(&mut self, status: LoginStatus, text: &[u8]) {
        if status.class() == 1 {
            self.redirected_to = pairs(text)
                .filter_map(Result::ok)
                .find(|(key, _)| *key == Key::TargetAddress.name())
                .map(|(_, value)| value.to_owned());
        }
    }
}
