//! Requests of an initiator that are no SCSI commands: pings, task management, text, logout (RFC 7143, 11.5, 11.6,
//! 11.9 to 11.11, 11.14, 11.15, 11.18, 11.19).

use crate::error::Violation;
use crate::keys::Key;
use crate::names::Name;
use crate::pdu::{
    AsyncMessage, LogoutReason, LogoutRequest, LogoutResponse, LogoutResponseCode, NopIn, NopOut,
    RESERVED_TAG, TextRequest, TextResponse, TmfFunction, TmfRequest, TmfResponse, TmfResponseCode,
    flags,
};
use crate::text::{Text, pairs};

use super::{Answer, End, InitiatorConnection, InitiatorEvent, Phase};

/// Most bytes of text that a target may answer with: about 40,000 targets.
const MAX_ANSWER_LEN: usize = 4 << 20;
/// Most task management functions that may be outstanding.
const MAX_TMFS: usize = 8;
/// Uppermost bit of the tags of all that is no SCSI command.
const TAG_BIT: u32 = 1 << 31;

/// A task management function that is outstanding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TmfTag(u32);

/// A target that a target has named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveredTarget {
    /// Its name.
    pub name: Name,
    /// Its addresses as `host:port`, each with its portal group tag. Empty: that of the discovery session.
    pub addresses: Vec<(String, u16)>,
}

/// What is outstanding.
#[derive(Debug, Default)]
pub(super) struct Requests {
    next_tag: u32,
    ping: Option<u32>,
    text: Option<u32>,
    logout: Option<u32>,
    tmfs: Vec<u32>,
    /// The text of the answer, of all its pages.
    answer: Vec<u8>,
}

impl Requests {
    fn tag(&mut self) -> u32 {
        self.next_tag = self.next_tag.wrapping_add(1);
        // FFFFFFFFh is no tag.
        TAG_BIT | (self.next_tag % (TAG_BIT - 1))
    }
}

impl InitiatorConnection {
    /// Appends the PDU that [`InitiatorEvent::Answer`] is about.
    ///
    /// # Panics
    /// When there is none.
    pub fn answer(&mut self, out: &mut Vec<u8>) {
        let Some(answer) = self.end.due.take() else {
            panic!("the connection has no answer to send");
        };
        match answer {
            Answer::Login => self.end.put_login(out),
            Answer::NopOut { lun, ttt } => self.end.put_nop_out(lun, RESERVED_TAG, ttt, out),
            Answer::Text { lun, ttt } => {
                let itt = self.end.requests.text.unwrap_or(RESERVED_TAG);
                self.end.put_text(lun, itt, ttt, &[], out);
            }
        }
    }

    /// Appends a NOP-Out that the target has to answer ([`InitiatorEvent::Pong`]). Gives whether it did: a connection
    /// has one ping at a time.
    pub fn ping(&mut self, out: &mut Vec<u8>) -> bool {
        if !self.is_full_feature() || self.end.requests.ping.is_some() {
            return false;
        }
        let itt = self.end.requests.tag();
        self.end.requests.ping = Some(itt);
        self.end.put_nop_out(0, itt, RESERVED_TAG, out);
        true
    }

    /// Appends a task management function, for immediate delivery. `slot`: the command that it refers to. Gives none
    /// when 8 functions are outstanding, or the command has ended.
    ///
    /// # Panics
    /// Before the login is complete.
    pub fn task_management(
        &mut self,
        function: TmfFunction,
        lun: u64,
        slot: Option<u16>,
        out: &mut Vec<u8>,
    ) -> Option<TmfTag> {
        assert!(self.is_full_feature(), "functions follow the login");
        let end = &mut self.end;
        if end.requests.tmfs.len() == MAX_TMFS {
            return None;
        }
        let rtt = match slot {
            Some(slot) => end.commands.tag(slot)?,
            None => RESERVED_TAG,
        };
        let itt = end.requests.tag();
        end.requests.tmfs.push(itt);
        let pdu = TmfRequest {
            immediate: true,
            flags: flags::FINAL | function.to_wire(),
            lun,
            itt,
            rtt,
            cmd_sn: end.numbers.cmd_sn,
            exp_stat_sn: end.numbers.exp_stat_sn,
            // Commands are on one connection, so a command that is aborted has arrived.
            ref_cmd_sn: end.numbers.cmd_sn.wrapping_sub(1),
            exp_data_sn: 0,
        };
        end.framing.put(&pdu.encode(0), out);
        Some(TmfTag(itt))
    }

    /// Appends a Text Request for targets: `All` and a name in a discovery session, nothing for the target of the
    /// session. Gives whether it did: there is one text negotiation at a time, and the window must be open.
    pub fn send_targets(&mut self, value: &str, out: &mut Vec<u8>) -> bool {
        if !self.may_send() || self.end.requests.text.is_some() {
            return false;
        }
        let itt = self.end.requests.tag();
        self.end.requests.text = Some(itt);
        self.end.requests.answer.clear();
        let mut text = Text::default();
        text.push(Key::SendTargets.name(), value);
        self.end.put_text(0, itt, RESERVED_TAG, text.as_bytes(), out);
        true
    }

    /// The targets of [`InitiatorEvent::Targets`].
    ///
    /// # Errors
    /// When the text of the target cannot be read.
    pub fn targets(&self) -> Result<Vec<DiscoveredTarget>, Violation> {
        let mut targets: Vec<DiscoveredTarget> = Vec::new();
        for pair in pairs(&self.end.requests.answer) {
            let (key, value) = pair.map_err(|_| Violation::TextInvalid)?;
            match (Key::from_name(key), targets.last_mut()) {
                (Some(Key::TargetName), _) => {
                    let name = Name::new(value).map_err(|_| Violation::TextInvalid)?;
                    targets.push(DiscoveredTarget { name, addresses: Vec::new() });
                }
                (Some(Key::TargetAddress), Some(target)) => {
                    let address = value
                        .rsplit_once(',')
                        .and_then(|(address, tag)| Some((address.to_owned(), tag.parse().ok()?)));
                    target.addresses.push(address.ok_or(Violation::TextInvalid)?);
                }
                _ => {} // an alias, or the answer to another key
            }
        }
        Ok(targets)
    }

    /// Appends a Logout Request for this session. Gives whether it did: none before the login is complete, and
    /// one at most.
    pub fn logout(&mut self, out: &mut Vec<u8>) -> bool {
        if !self.is_full_feature() || self.end.requests.logout.is_some() {
            return false;
        }
        let end = &mut self.end;
        let itt = end.requests.tag();
        end.requests.logout = Some(itt);
        let pdu = LogoutRequest {
            immediate: true,
            flags: flags::FINAL | LogoutReason::CloseSession.to_wire(),
            itt,
            cid: 0,
            cmd_sn: end.numbers.cmd_sn,
            exp_stat_sn: end.numbers.exp_stat_sn,
        };
        end.framing.put(&pdu.encode(0), out);
        true
    }
}

impl End {
    fn put_nop_out(&self, lun: u64, itt: u32, ttt: u32, out: &mut Vec<u8>) {
        let pdu = NopOut {
            immediate: true,
            flags: flags::FINAL,
            lun,
            itt,
            ttt,
            cmd_sn: self.numbers.cmd_sn,
            exp_stat_sn: self.numbers.exp_stat_sn,
        };
        self.framing.put(&pdu.encode(0), out);
    }

    fn put_text(&mut self, lun: u64, itt: u32, ttt: u32, text: &[u8], out: &mut Vec<u8>) {
        let pdu = TextRequest {
            // A further page needs no place in the window.
            immediate: ttt != RESERVED_TAG,
            flags: flags::FINAL,
            lun,
            itt,
            ttt,
            cmd_sn: self.numbers.cmd_sn,
            exp_stat_sn: self.numbers.exp_stat_sn,
        };
        if !pdu.immediate {
            self.numbers.cmd_sn = self.numbers.cmd_sn.wrapping_add(1);
        }
        let len = u32::try_from(text.len()).expect("one key");
        self.framing.put_with_data(&pdu.encode(len), text, out);
    }

    pub(super) fn handle_nop_in<'a>(&mut self) -> Result<Option<InitiatorEvent<'a>>, Violation> {
        let pdu = NopIn::decode(&self.header);
        self.numbers.take_window(pdu.exp_cmd_sn, pdu.max_cmd_sn);
        if pdu.itt == RESERVED_TAG {
            // Without a tag of the target nothing is asked for (11.19.1).
            if pdu.ttt != RESERVED_TAG {
                self.due = Some(Answer::NopOut { lun: pdu.lun, ttt: pdu.ttt });
            }
            return Ok(None);
        }
        if self.requests.ping != Some(pdu.itt) {
            return Err(Violation::IttUnknown);
        }
        self.requests.ping = None;
        self.numbers.take_status(pdu.stat_sn)?;
        Ok(Some(InitiatorEvent::Pong))
    }

    pub(super) fn handle_tmf_response<'a>(&mut self) -> Result<InitiatorEvent<'a>, Violation> {
        let pdu = TmfResponse::decode(&self.header);
        let at = self.requests.tmfs.iter().position(|&tag| tag == pdu.itt);
        self.requests.tmfs.swap_remove(at.ok_or(Violation::IttUnknown)?);
        self.numbers.take_status(pdu.stat_sn)?;
        self.numbers.take_window(pdu.exp_cmd_sn, pdu.max_cmd_sn);
        let response = TmfResponseCode::from_wire(pdu.response);
        Ok(InitiatorEvent::TmfResponse { tag: TmfTag(pdu.itt), response })
    }

    pub(super) fn handle_text_response<'a>(
        &mut self,
    ) -> Result<Option<InitiatorEvent<'a>>, Violation> {
        let pdu = TextResponse::decode(&self.header);
        if self.requests.text != Some(pdu.itt) {
            return Err(Violation::IttUnknown);
        }
        self.numbers.take_status(pdu.stat_sn)?;
        self.numbers.take_window(pdu.exp_cmd_sn, pdu.max_cmd_sn);
        if self.requests.answer.len() + self.collected.len() > MAX_ANSWER_LEN {
            return Err(Violation::TextTooLong);
        }
        self.requests.answer.extend_from_slice(&self.collected);
        let (ends, more) = (pdu.flags & flags::FINAL != 0, pdu.flags & flags::CONTINUE != 0);
        if ends != (pdu.ttt == RESERVED_TAG) || (ends && more) {
            return Err(Violation::TextInvalid);
        }
        if ends {
            self.requests.text = None;
            return Ok(Some(InitiatorEvent::Targets));
        }
        if self.collected.is_empty() {
            return Err(Violation::TextInvalid); // it would go on for ever
        }
        self.due = Some(Answer::Text { lun: pdu.lun, ttt: pdu.ttt });
        Ok(None)
    }

    pub(super) fn handle_logout_response<'a>(&mut self) -> Result<InitiatorEvent<'a>, Violation> {
        let pdu = LogoutResponse::decode(&self.header);
        if self.requests.logout != Some(pdu.itt) {
            return Err(Violation::IttUnknown);
        }
        self.numbers.take_status(pdu.stat_sn)?;
        self.phase = Phase::Closed;
        Ok(InitiatorEvent::LoggedOut(LogoutResponseCode::from_wire(pdu.response)))
    }

    pub(super) fn handle_async<'a>(&mut self) -> Result<InitiatorEvent<'a>, Violation> {
        let pdu = AsyncMessage::decode(&self.header);
        self.numbers.take_status(pdu.stat_sn)?;
        self.numbers.take_window(pdu.exp_cmd_sn, pdu.max_cmd_sn);
        Ok(InitiatorEvent::Async(pdu))
    }
}
