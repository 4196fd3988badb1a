//! Text requests in the full feature phase: SendTargets, in pages (RFC 7143, 11.10, 11.11, appendix C).

use std::net::SocketAddr;

use crate::keys::Key;
use crate::names::Name;
use crate::pdu::{RESERVED_TAG, RejectReason, TextRequest, TextResponse, flags};
use crate::text::{Collected, Paged, Text, answer, number, pairs};

use super::answers::data_len;
use super::{Answer, Ask, Due, End, TargetConnection};

/// Which targets an initiator asks about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetsWanted {
    /// All that it may use.
    All,
    /// This one.
    Named(Name),
    /// The one of the session.
    Current,
}

/// Where a target can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetPortal {
    /// Address and port; not the unspecified address.
    pub address: SocketAddr,
    /// Portal group tag.
    pub portal_group_tag: u16,
}

/// The answer to [`Event::SendTargets`](super::Event::SendTargets).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetList(Text);

impl TargetList {
    /// Appends a target and its portals.
    pub fn push(&mut self, name: &Name, portals: impl IntoIterator<Item = TargetPortal>) {
        self.0.push(Key::TargetName.name(), name.as_str());
        for TargetPortal { address, portal_group_tag } in portals {
            self.0.push(Key::TargetAddress.name(), &format!("{address},{portal_group_tag}"));
        }
    }
}

/// The text negotiation of a connection: one at a time.
#[derive(Debug, Default)]
pub(super) struct Texts {
    collected: Collected,
    pages: Paged,
    /// TTT that the next request must carry.
    ttt: Option<u32>,
    next_ttt: u32,
    wanted: Option<TargetsWanted>,
    /// The answers but for the targets.
    reply: Text,
}

impl TargetConnection {
    /// What [`Event::SendTargets`](super::Event::SendTargets) asks about.
    #[must_use]
    pub fn targets_wanted(&self) -> Option<&TargetsWanted> {
        self.end.text.wanted.as_ref()
    }

    /// Answers [`Event::SendTargets`](super::Event::SendTargets): those of the wanted targets that the initiator may
    /// use, with the portals that it can reach. It leaves in as many PDUs as it takes.
    ///
    /// # Panics
    /// When nothing was asked.
    pub fn send_targets(&mut self, list: TargetList) {
        let end = &mut self.end;
        end.decided(|ask| ask == Ask::SendTargets);
        end.text.wanted = None;
        let mut text = std::mem::take(&mut end.text.reply).into_bytes();
        text.extend_from_slice(list.0.as_bytes());
        end.text.pages = Paged::new(text);
        end.text_due();
    }
}

impl End {
    /// A Text Request is whole.
    pub(super) fn handle_text_data(&mut self) {
        let request = TextRequest::decode(&self.header);
        if request.ttt == RESERVED_TAG {
            // A new negotiation; what was left of another one is forgotten (11.10.4).
            self.text = Texts { next_ttt: self.text.next_ttt, ..Texts::default() };
        } else if self.text.ttt != Some(request.ttt) {
            return self.text_failed(RejectReason::InvalidField);
        }
        self.text.ttt = None;
        if self.text.collected.push(&self.collected).is_err()
            || (request.flags & flags::CONTINUE != 0 && request.flags & flags::FINAL != 0)
        {
            return self.text_failed(RejectReason::Protocol);
        }
        if request.flags & flags::CONTINUE != 0 {
            return self.text_due();
        }
        let text = self.text.collected.take();
        if !self.text.pages.is_done() {
            return if text.is_empty() {
                self.text_due();
            } else {
                self.text_failed(RejectReason::Protocol);
            };
        }
        match self.negotiate_text(&text) {
            Ok(()) if self.text.wanted.is_some() => self.due = Due::Ask(Ask::SendTargets),
            Ok(()) => {
                self.text.pages = Paged::new(std::mem::take(&mut self.text.reply).into_bytes());
                self.text_due();
            }
            Err(reason) => self.text_failed(reason),
        }
    }

    fn text_failed(&mut self, reason: RejectReason) {
        self.text = Texts { next_ttt: self.text.next_ttt, ..Texts::default() };
        let (header, immediate) = (self.header, TextRequest::decode(&self.header).immediate);
        self.reject_counted(reason, immediate, &header);
    }

    /// A page of the response is due.
    fn text_due(&mut self) {
        let TextRequest { lun, itt, immediate, .. } = TextRequest::decode(&self.header);
        self.due = Due::Answer(Answer::Text { lun, itt, immediate });
    }

    fn negotiate_text(&mut self, text: &[u8]) -> Result<(), RejectReason> {
        for pair in pairs(text) {
            let (key, value) = pair.map_err(|_| RejectReason::Protocol)?;
            match Key::from_name(key) {
                None => self.text.reply.push(key, answer::NOT_UNDERSTOOD),
                Some(Key::SendTargets) => {
                    if self.text.wanted.is_some() {
                        return Err(RejectReason::Protocol);
                    }
                    let wanted = self.targets_of(value).ok_or(RejectReason::InvalidField)?;
                    self.text.wanted = Some(wanted);
                }
                Some(Key::MaxRecvDataSegmentLength) => {
                    let range = 512..1 << 24;
                    let len = number(value).filter(|len| range.contains(len));
                    self.parameters.peer_max_data_segment_len =
                        len.ok_or(RejectReason::InvalidField)?;
                }
                Some(Key::InitiatorAlias) => {}
                Some(key) => self.text.reply.push(key.name(), answer::REJECT),
            }
        }
        Ok(())
    }

    /// What a value of SendTargets asks for, where it is allowed (13.5, appendix C).
    fn targets_of(&self, value: &str) -> Option<TargetsWanted> {
        match value {
            "All" => self.parameters.discovery.then_some(TargetsWanted::All),
            "" => (!self.parameters.discovery).then_some(TargetsWanted::Current),
            name => {
                let name = Name::new(name).ok()?;
                let current = self.login.identity().and_then(|who| who.target_name.as_ref());
                if self.parameters.discovery {
                    Some(TargetsWanted::Named(name))
                } else {
                    (current == Some(&name)).then_some(TargetsWanted::Current)
                }
            }
        }
    }

    pub(super) fn put_text_response(
        &mut self,
        lun: u64,
        itt: u32,
        immediate: bool,
        out: &mut Vec<u8>,
    ) {
        self.window.give_back(immediate);
        let request = TextRequest::decode(&self.header);
        let (page, more) = self.text.pages.next(self.parameters.peer_max_data_segment_len as usize);
        let ends = !more && request.flags & flags::FINAL != 0;
        let ttt = if ends { RESERVED_TAG } else { self.text.next_ttt };
        let pdu = TextResponse {
            flags: if ends {
                flags::FINAL
            } else if more {
                flags::CONTINUE
            } else {
                0
            },
            lun,
            itt,
            ttt,
            stat_sn: self.window.next_stat_sn(),
            exp_cmd_sn: self.window.exp_cmd_sn,
            max_cmd_sn: self.window.max_cmd_sn,
        };
        self.framing.put_with_data(&pdu.encode(data_len(page)), page, out);
        if !ends {
            self.text.ttt = Some(ttt);
            self.text.next_ttt = if ttt == RESERVED_TAG - 1 { 0 } else { ttt + 1 };
        }
    }
}
