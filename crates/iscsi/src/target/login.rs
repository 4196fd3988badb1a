//! The target's end of a login: identity, stages, operational keys, refusals (RFC 7143, 6.3, 11.12, 11.13).

mod security;

use crate::chap::{Algorithm, CHALLENGE_LEN, Secret};
use crate::error::{FatalError, Violation};
use crate::keys::Key;
use crate::names::{Isid, Name};
use crate::negotiate::{Parameters, Responder, Wishes};
use crate::pdu::{Bhs, LoginRequest, LoginResponse, LoginStatus, Stage, flags, opcode};
use crate::text::{Collected, Paged, Text, answer, pairs};

use super::tasks::Tasks;
use super::window::Window;
use super::{Answer, Ask, Due, End, Phase, TargetConfig, TargetConnection, answers::data_len};

use security::Security;

/// Most bytes of text in one Login Response: an initiator takes 8192 until it declares something else, and a
/// declaration holds after the login only.
const PAGE: usize = 8192;
/// Most Login Requests of one login. The longest useful login takes fewer than 10, without continued text.
const MAX_REQUESTS: u32 = 64;

/// Who logs in, and to what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// InitiatorName.
    pub initiator_name: Name,
    /// InitiatorAlias.
    pub initiator_alias: Option<String>,
    /// TargetName; none in a discovery session, which may leave it out.
    pub target_name: Option<Name>,
    /// SessionType is Discovery.
    pub discovery: bool,
    /// ISID.
    pub isid: Isid,
    /// TSIH: 0 for a new session.
    pub tsih: u16,
    /// CID.
    pub cid: u16,
}

/// The driver's answer to [`Event::Login`](super::Event::Login).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// Commands that the initiator may have outstanding, 1 to 4096.
    pub command_window: u16,
    /// TargetPortalGroupTag of the portal that the initiator came in by.
    pub portal_group_tag: u16,
    /// TargetAlias.
    pub target_alias: Option<String>,
    /// How the initiator has to authenticate itself.
    pub authentication: Authentication,
}

/// How an initiator has to authenticate itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Authentication {
    /// Not at all.
    None,
    /// By CHAP.
    Chap(ChapDemand),
}

/// What a target demands of CHAP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChapDemand {
    /// An initiator that offers CHAP nowhere is refused.
    pub required: bool,
    /// An initiator that does not ask the target to authenticate itself is refused.
    pub mutual: bool,
    /// The hashes that are acceptable.
    pub algorithms: &'static [Algorithm],
    /// Random identifier and challenge, fresh for this login.
    pub id: u8,
    /// The challenge.
    pub challenge: [u8; CHALLENGE_LEN],
}

/// The driver's answer to [`Event::Credentials`](super::Event::Credentials).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The initiator's secret.
    pub secret: Secret,
    /// Name and secret with which the target authenticates itself, if the initiator wants that.
    pub own: Option<(String, Secret)>,
}

/// A Login Response without the counters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reply(LoginStatus);

/// Why a login is refused: the status, and the reason for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refusal(pub(super) LoginStatus, pub(super) &'static str);

/// State of a login.
#[derive(Debug)]
pub(super) struct Login {
    responder: Responder,
    security: Security,
    identity: Option<Identity>,
    admission: Option<Admission>,
    /// The first request, whose ITT, ISID, CID and TSIH the others repeat.
    first: Option<LoginRequest>,
    /// The request that is being answered.
    request: LoginRequest,
    requests: u32,
    stage: Option<Stage>,
    collected: Collected,
    /// The text of a request, while the driver decides.
    held: Vec<u8>,
    reply: Text,
    pages: Paged,
    /// T and the next stage of the response whose pages are leaving.
    pages_flags: u8,
    /// The handle of the session, once the driver has established it.
    established: Option<u16>,
    refusal: Option<Refusal>,
}

/// Checks a configuration.
///
/// # Panics
/// When a value is outside its range.
pub(super) fn check(config: &TargetConfig) {
    let lengths = 512..1 << 24;
    assert!(lengths.contains(&config.max_recv_data_segment_len), "MaxRecvDataSegmentLength");
    assert!(lengths.contains(&config.max_burst_len), "MaxBurstLength");
    assert!(lengths.contains(&config.first_burst_len), "FirstBurstLength");
    assert!(config.first_burst_len <= config.max_burst_len, "FirstBurstLength");
    assert!((1..=8).contains(&config.max_outstanding_r2t), "MaxOutstandingR2T is 1 to 8");
    assert!(config.time2wait_s <= 3600, "DefaultTime2Wait is at most 3600 s");
    assert!((1..=256).contains(&config.immediate_slots), "1 to 256 immediate slots");
}

impl Login {
    pub(super) fn new(config: TargetConfig) -> Self {
        let wishes = Wishes {
            header_digest: config.allow_header_digest,
            data_digest: config.allow_data_digest,
            no_header_digest: true,
            no_data_digest: true,
            initial_r2t: config.initial_r2t,
            immediate_data: config.immediate_data,
            max_data_segment_len: config.max_recv_data_segment_len,
            max_burst_len: config.max_burst_len,
            first_burst_len: config.first_burst_len,
            max_outstanding_r2t: config.max_outstanding_r2t,
            time2wait_s: config.time2wait_s,
        };
        Self {
            responder: Responder::new(wishes),
            security: Security::default(),
            identity: None,
            admission: None,
            first: None,
            request: LoginRequest::default(),
            requests: 0,
            stage: None,
            collected: Collected::default(),
            held: Vec::new(),
            reply: Text::default(),
            pages: Paged::default(),
            pages_flags: 0,
            established: None,
            refusal: None,
        }
    }

    pub(super) fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }

    pub(super) fn chap_name(&self) -> Option<&str> {
        self.security.name()
    }

    /// Commands that the initiator may have outstanding.
    fn window(&self) -> u16 {
        self.admission.as_ref().map_or(1, |admission| admission.command_window)
    }

    /// Whether a Login Request has come.
    pub(super) fn has_begun(&self) -> bool {
        self.first.is_some()
    }

    /// Judges the header of a request.
    fn check_request(&mut self, request: &LoginRequest) -> Result<(), Refusal> {
        let error = |text| Err(Refusal(LoginStatus::INITIATOR_ERROR, text));
        self.requests += 1;
        if self.requests > MAX_REQUESTS {
            return error("the login takes more than 64 requests");
        }
        if request.version_min > 0 {
            let status = LoginStatus::UNSUPPORTED_VERSION;
            return Err(Refusal(status, "the initiator wants a version above 0"));
        }
        let first = self.first.get_or_insert(*request);
        if (request.itt, request.isid, request.cid, request.cmd_sn, request.tsih)
            != (first.itt, first.isid, first.cid, first.cmd_sn, first.tsih)
        {
            return error("ITT, ISID, TSIH, CID or CmdSN changed during the login");
        }
        let Some(stage) = request.current_stage().filter(|&stage| stage != Stage::FullFeature)
        else {
            return error("CSG is reserved");
        };
        if self.stage.is_some_and(|current| current != stage) {
            return error("CSG is not the stage that the login is in");
        }
        if request.transits() {
            if request.continues() {
                return error("T and C are both set");
            }
            let later = |next: Stage| next.to_wire() > stage.to_wire();
            if !request.next_stage().is_some_and(later) {
                return error("NSG is not behind CSG");
            }
        }
        self.stage = Some(stage);
        Ok(())
    }

    /// Takes a whole request; gives what is due.
    fn take(&mut self, request: LoginRequest, text: &[u8]) -> Result<Due, Refusal> {
        self.check_request(&request)?;
        self.request = request;
        let too_long = Refusal(LoginStatus::INITIATOR_ERROR, "the text exceeds 64 KiB");
        self.collected.push(text).map_err(|_| too_long)?;
        if request.continues() {
            return Ok(self.respond(false));
        }
        let text = self.collected.take();
        if !self.pages.is_done() {
            // The initiator asks for the next page of the response; it says nothing else.
            return if text.is_empty() {
                Ok(self.page())
            } else {
                Err(Refusal(LoginStatus::INITIATOR_ERROR, "text came amid a continued response"))
            };
        }
        if self.identity.is_none() {
            self.identify(&text)?;
            self.held = text;
            return Ok(Due::Ask(Ask::Login));
        }
        self.negotiate(&text)
    }

    /// Reads who the initiator is (6.3).
    fn identify(&mut self, text: &[u8]) -> Result<(), Refusal> {
        let unreadable = Refusal(LoginStatus::INITIATOR_ERROR, "the text cannot be read");
        let (mut initiator, mut target, mut alias, mut discovery) = (None, None, None, false);
        for pair in pairs(text) {
            let (key, value) = pair.map_err(|_| unreadable)?;
            match Key::from_name(key) {
                Some(Key::InitiatorName) => initiator = Some(value),
                Some(Key::InitiatorAlias) => alias = Some(value.to_owned()),
                Some(Key::TargetName) => target = Some(value),
                Some(Key::SessionType) => {
                    discovery = match value {
                        "Discovery" => true,
                        "Normal" => false,
                        _ => {
                            let status = LoginStatus::SESSION_TYPE_UNSUPPORTED;
                            return Err(Refusal(status, "SessionType is unknown"));
                        }
                    }
                }
                _ => {}
            }
        }
        let missing = |text| Refusal(LoginStatus::MISSING_PARAMETER, text);
        let initiator = initiator.ok_or(missing("InitiatorName is missing"))?;
        let initiator_name = Name::new(initiator)
            .map_err(|_| Refusal(LoginStatus::INITIATOR_ERROR, "InitiatorName is no iSCSI name"))?;
        if target.is_none() && !discovery {
            return Err(missing("TargetName is missing"));
        }
        let target_name = target.map(Name::new).transpose();
        let target_name = target_name
            .map_err(|_| Refusal(LoginStatus::NOT_FOUND, "TargetName is no iSCSI name"))?;
        let LoginRequest { isid, tsih, cid, .. } = self.request;
        self.identity = Some(Identity {
            initiator_name,
            initiator_alias: alias,
            target_name,
            discovery,
            isid: Isid(isid),
            tsih,
            cid,
        });
        self.responder.parameters.discovery = discovery;
        Ok(())
    }

    /// The driver admits the initiator: its first text is negotiated.
    fn admit(&mut self, admission: Admission) -> Result<Due, Refusal> {
        if !self.responder.parameters.discovery {
            let tag = u32::from(admission.portal_group_tag);
            self.reply.push_number(Key::TargetPortalGroupTag.name(), tag);
        }
        if let Some(alias) = &admission.target_alias {
            self.reply.push(Key::TargetAlias.name(), alias);
        }
        self.security.demand(&admission.authentication);
        self.admission = Some(admission);
        let text = std::mem::take(&mut self.held);
        self.negotiate(&text)
    }

    /// Answers the keys of one whole text.
    fn negotiate(&mut self, text: &[u8]) -> Result<Due, Refusal> {
        let error = |text| Refusal(LoginStatus::INITIATOR_ERROR, text);
        let security = self.stage == Some(Stage::Security);
        for pair in pairs(text) {
            let (key, value) = pair.map_err(|_| error("the text cannot be read"))?;
            let Some(key) = Key::from_name(key) else {
                self.reply.push(key, answer::NOT_UNDERSTOOD);
                continue;
            };
            if !self.responder.is_first(key) {
                return Err(error("a key came twice"));
            }
            match key {
                Key::InitiatorName | Key::InitiatorAlias | Key::TargetName | Key::SessionType => {}
                Key::AuthMethod
                | Key::ChapA
                | Key::ChapI
                | Key::ChapC
                | Key::ChapN
                | Key::ChapR
                    if security =>
                {
                    self.security.take(key, value)?;
                }
                Key::AuthMethod
                | Key::ChapA
                | Key::ChapI
                | Key::ChapC
                | Key::ChapN
                | Key::ChapR => {
                    return Err(error("a security key came in the operational stage"));
                }
                Key::TargetAlias | Key::TargetAddress | Key::TargetPortalGroupTag => {
                    return Err(error("the initiator declares what only a target may"));
                }
                Key::SendTargets => return Err(error("SendTargets came during the login")),
                _ if security => {
                    return Err(error("an operational key came in the security stage"));
                }
                _ if value == answer::IRRELEVANT => self.reply.push(key.name(), value),
                _ => self.responder.answer(key, value, &mut self.reply),
            }
        }
        if security {
            let transits = self.request.transits();
            if self.security.step(transits, &mut self.reply)? == security::Step::Credentials {
                return Ok(Due::Ask(Ask::Credentials));
            }
        } else {
            self.security.skipped()?;
        }
        self.conclude()
    }

    /// The driver knows the secret of the name, or nobody has the name.
    fn credentials(&mut self, credentials: Option<&Credentials>) -> Result<Due, Refusal> {
        self.security.check(credentials, &mut self.reply)?;
        self.conclude()
    }

    /// Answers a text that has been negotiated: the stage changes if the initiator wants that and nothing is missing.
    fn conclude(&mut self) -> Result<Due, Refusal> {
        let transits = self.request.transits() && self.security.is_done();
        if transits && self.stage == Some(Stage::Operational) {
            self.responder.declare(&mut self.reply);
        }
        if transits && self.request.next_stage() == Some(Stage::FullFeature) {
            return Ok(Due::Ask(Ask::Establish));
        }
        Ok(self.respond(transits))
    }

    /// The response with the text that has been collected for it.
    fn respond(&mut self, transits: bool) -> Due {
        let csg = self.request.flags & 0b1100;
        self.pages_flags = csg;
        if transits {
            self.pages_flags |= flags::TRANSIT | self.request.flags & 0b11;
        }
        self.pages = Paged::new(std::mem::take(&mut self.reply).into_bytes());
        self.page()
    }

    /// The next page of the response.
    fn page(&self) -> Due {
        Due::Answer(Answer::Login(Reply(LoginStatus::SUCCESS)))
    }

    fn refuse(&mut self, refusal: Refusal) -> Due {
        self.refusal = Some(refusal);
        self.pages = Paged::new(std::mem::take(&mut self.reply).into_bytes());
        self.pages_flags = 0;
        Due::Answer(Answer::Login(Reply(refusal.0)))
    }
}

impl TargetConnection {
    /// Admits the initiator of [`Event::Login`](super::Event::Login): it goes on with the login.
    ///
    /// # Panics
    /// When there is nothing to decide, or the window is outside 1 to 4096.
    pub fn admit(&mut self, admission: Admission) {
        assert!((1..=4096).contains(&admission.command_window), "a window of 1 to 4096 commands");
        let end = &mut self.end;
        end.decided(|ask| ask == Ask::Login);
        end.due = end.login.admit(admission).unwrap_or_else(|refusal| end.login.refuse(refusal));
    }

    /// Gives the secret that belongs to [`TargetConnection::chap_name`], or none when nobody has the name.
    ///
    /// # Panics
    /// When there is nothing to decide.
    pub fn credentials(&mut self, credentials: Option<&Credentials>) {
        let end = &mut self.end;
        end.decided(|ask| ask == Ask::Credentials);
        let due = end.login.credentials(credentials);
        end.due = due.unwrap_or_else(|refusal| end.login.refuse(refusal));
    }

    /// Completes the login: the session has this handle, which is not 0. For a connection that joins a session, it is
    /// the handle of the session.
    ///
    /// # Panics
    /// When there is nothing to decide, or the handle is 0.
    pub fn establish(&mut self, tsih: u16) {
        assert!(tsih != 0, "TSIH 0 stands for a new session");
        let end = &mut self.end;
        end.decided(|ask| ask == Ask::Establish);
        end.login.established = Some(tsih);
        end.due = end.login.respond(true);
    }

    /// Refuses the login with a status of class 2 or 3.
    ///
    /// # Panics
    /// When the login has nothing to decide, or the status says success.
    pub fn refuse(&mut self, status: LoginStatus) {
        assert!(status.class() >= 2, "a refusal has status class 2 or 3");
        let end = &mut self.end;
        end.decided(|ask| matches!(ask, Ask::Login | Ask::Credentials | Ask::Establish));
        end.due = end.login.refuse(Refusal(status, status.text()));
    }

    /// Sends the initiator to another address: `host`, `host:port`, IPv6 in brackets.
    ///
    /// # Panics
    /// When there is nothing to decide.
    pub fn redirect(&mut self, permanently: bool, address: &str) {
        let end = &mut self.end;
        end.decided(|ask| ask == Ask::Login);
        let status = if permanently {
            LoginStatus::MOVED_PERMANENTLY
        } else {
            LoginStatus::MOVED_TEMPORARILY
        };
        end.login.reply = Text::default();
        end.login.reply.push(Key::TargetAddress.name(), address);
        end.due = end.login.refuse(Refusal(status, status.text()));
    }

    /// Why the login was refused or redirected, in words, once it was.
    #[must_use]
    pub fn refusal(&self) -> Option<(LoginStatus, &'static str)> {
        self.end.login.refusal.map(|Refusal(status, text)| (status, text))
    }

    /// Appends a Login Response. The last one begins the full feature phase.
    pub(super) fn login_answer(&mut self, Reply(status): Reply, out: &mut Vec<u8>) {
        let end = &mut self.end;
        let login = &mut end.login;
        let (page, more) = login.pages.next(PAGE);
        let page = page.to_vec();
        let flags =
            if more { login.pages_flags & 0b1100 | flags::CONTINUE } else { login.pages_flags };
        if flags & flags::TRANSIT != 0 {
            login.stage = Stage::from_bits(flags);
        }
        let tsih = login.established.filter(|_| !more && status.is_success());
        if tsih.is_some() {
            end.window.open(end.login.window());
        }
        end.put_login_response(flags, status, tsih, &page, out);
        if !status.is_success() {
            end.phase = Phase::Closed;
        } else if tsih.is_some() {
            let Parameters { header_digest, data_digest, max_data_segment_len, .. } =
                end.enter_full_feature();
            self.receiver.set(header_digest, data_digest, max_data_segment_len);
        }
    }
}

impl End {
    /// Judges a header before the login is complete.
    pub(super) fn handle_login_header<'a>(
        &mut self,
        data_len: u32,
        bhs: &Bhs,
    ) -> Result<Option<super::Event<'a>>, FatalError> {
        if bhs[0] & flags::OPCODE != opcode::LOGIN_REQUEST {
            let violation = if self.login.has_begun() {
                Violation::NotLoginInLogin
            } else {
                Violation::NotLogin
            };
            return Err(FatalError::in_header(violation, bhs));
        }
        if !self.login.has_begun() {
            self.window = Window::at_login(LoginRequest::decode(bhs).cmd_sn);
        }
        self.collect(data_len, bhs);
        if data_len == 0 {
            self.handle_login();
        }
        Ok(None)
    }

    /// A Login Request is whole.
    pub(super) fn handle_login(&mut self) {
        let request = LoginRequest::decode(&self.header);
        let due = self.login.take(request, &self.collected);
        self.due = due.unwrap_or_else(|refusal| self.login.refuse(refusal));
    }

    fn put_login_response(
        &mut self,
        flags: u8,
        status: LoginStatus,
        tsih: Option<u16>,
        text: &[u8],
        out: &mut Vec<u8>,
    ) {
        let request = &self.login.request;
        let first = self.login.first.as_ref().unwrap_or(request);
        let pdu = LoginResponse {
            flags,
            version_max: 0,
            version_active: 0,
            isid: first.isid,
            tsih: tsih.unwrap_or(first.tsih),
            itt: first.itt,
            stat_sn: self.window.next_stat_sn(),
            exp_cmd_sn: self.window.exp_cmd_sn,
            max_cmd_sn: self.window.max_cmd_sn,
            status: status.0.to_be_bytes(),
        };
        self.framing.put_with_data(&pdu.encode(data_len(text)), text, out);
    }

    /// Appends a Login Response that refuses without a request of its own.
    pub(super) fn put_login_refusal(&mut self, status: LoginStatus, out: &mut Vec<u8>) {
        self.login.refusal = Some(Refusal(status, status.text()));
        self.put_login_response(0, status, None, &[], out);
    }

    /// The full feature phase begins.
    fn enter_full_feature(&mut self) -> Parameters {
        let parameters = self.login.responder.result();
        self.parameters = parameters;
        self.tasks = Tasks::new(self.login.window(), self.config.immediate_slots);
        self.framing.header_digest = parameters.header_digest;
        self.framing.data_digest = parameters.data_digest;
        self.phase = Phase::FullFeature;
        parameters
    }
}
