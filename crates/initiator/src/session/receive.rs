//! Receiving: payload lands in its buffer, everything else in the staging buffer.

use std::io;
use std::sync::Arc;

use raceline_iscsi::DataDigest;
use raceline_iscsi::initiator::{InitiatorEvent, Outcome};
use raceline_iscsi::pdu::{AsyncEvent, AsyncMessage, TmfResponseCode};
use raceline_iscsi::target::Residual;
use raceline_reactor::Context;
use raceline_reactor::flow::policy::{HEADER_STAGING_BYTES, LARGE_BYTES};
use raceline_reactor::io::RecvBuffers;

use super::{Abort, BUSY_PAUSE, Ending, MAX_RETRIES, Session, SessionEvent, State, to_usize};
use crate::check::CheckCondition;
use crate::error::SessionError;
use crate::task::{TaskData, TaskError};

/// Statuses (SAM-5, 5.3.1).
const GOOD: u8 = 0x00;
const CHECK_CONDITION: u8 = 0x02;
const BUSY: u8 = 0x08;
const TASK_SET_FULL: u8 = 0x28;

impl Session {
    /// Whether there is a connection without a receive.
    #[inline]
    pub(super) fn can_receive(&self) -> bool {
        self.link.as_ref().is_some_and(|link| !link.receiving && !link.closed)
    }

    /// Keeps one receive in flight.
    pub(super) fn post_receive(&mut self, cx: &mut Context<'_>) {
        if !self.can_receive() {
            return;
        }
        let Some(link) = &mut self.link else { return };
        let Some(staging) = link.staging.take() else { return };
        let mut staging_len =
            if self.large_reads > 0 { HEADER_STAGING_BYTES } else { staging.len() };
        let mut payload = None;
        if let Some(wanted) = link.proto.payload_wanted()
            && let Some(entry) = self.slots.get_mut(usize::from(wanted.dest))
            && let TaskData::Read(_) = entry.data
            && let TaskData::Read(buf) = std::mem::take(&mut entry.data)
        {
            let (start, len) = (to_usize(wanted.offset), to_usize(wanted.len));
            link.payload_of = Some(wanted.dest);
            self.counters.landed_in_place.add(1);
            if len > LARGE_BYTES {
                staging_len = 0; // more payload comes before anything else
            }
            payload = Some((buf, start..start + len.min(LARGE_BYTES)));
        }
        let buffers = RecvBuffers { payload, staging, staging_range: 0..staging_len };
        link.receiving = true;
        cx.io.recv(link.socket, buffers, self.token);
    }

    pub(super) fn handle_received(
        &mut self,
        cx: &mut Context<'_>,
        result: io::Result<usize>,
        buffers: RecvBuffers,
    ) {
        let Some(link) = &mut self.link else { return };
        link.receiving = false;
        let RecvBuffers { payload, staging, .. } = buffers;
        let direct = payload.as_ref().map_or(0, |(_, range)| range.len());
        // The buffer goes back to its task, whatever happened.
        if let (Some((buf, _)), Some(slot)) = (payload, link.payload_of.take())
            && let Some(entry) = self.slots.get_mut(usize::from(slot))
        {
            entry.data = TaskData::Read(buf);
        }
        if matches!(self.state, State::Draining(_)) {
            return self.check_drained(cx);
        }
        let count = match result {
            Ok(count @ 1..) => count,
            ended => {
                let address = self.target.0;
                let in_login = matches!(self.state, State::Login);
                let error = match ended {
                    Err(error) => SessionError::Broken(address, Arc::new(error)),
                    Ok(_) => SessionError::ClosedByPeer { address, in_login },
                };
                return self.lose(cx, Ending::Lost(error));
            }
        };
        self.heard = cx.now;
        self.counters.receives.add(1);
        let direct = direct.min(count);
        if direct > 0 {
            link.proto.payload_received(direct);
        }
        self.handle_input(cx, &staging[..count - direct]);
        if let Some(link) = &mut self.link {
            link.staging = Some(staging);
        }
        self.post_receive(cx);
    }

    /// Takes all events of what has come.
    fn handle_input(&mut self, cx: &mut Context<'_>, mut input: &[u8]) {
        let mut pdus = 0;
        while let Some(link) = &mut self.link
            && !matches!(self.state, State::Draining(_))
        {
            match link.proto.receive(&mut input) {
                Ok(Some(event)) => {
                    // A PDU of data is counted when it ends.
                    pdus += u64::from(!matches!(event, InitiatorEvent::Data { .. }));
                    self.handle_event(cx, event);
                }
                Ok(None) => break,
                Err(error) => {
                    let lost = SessionError::Protocol(self.target.0, error.to_string());
                    self.lose(cx, Ending::Lost(lost));
                }
            }
        }
        self.counters.pdus_received.add(pdus);
        if matches!(self.state, State::LoggingOut { .. }) {
            self.ask_for_logout(cx);
        }
        self.send_control(cx);
    }

    #[inline]
    fn handle_event(&mut self, cx: &mut Context<'_>, event: InitiatorEvent<'_>) {
        match event {
            InitiatorEvent::Data { slot, offset, bytes } => {
                if let TaskData::Read(buf) = &mut self.slots[usize::from(slot)].data {
                    let start = to_usize(offset);
                    buf[start..start + bytes.len()].copy_from_slice(bytes);
                    self.counters.copied_bytes.add(bytes.len() as u64);
                }
            }
            InitiatorEvent::DataEnd { slot, offset, len, digest, outcome } => {
                if let Some(digest) = digest
                    && !self.is_right(digest, slot, (offset, len))
                {
                    self.counters.digest_errors.add(1);
                    let error = SessionError::DataDigest(self.target.0);
                    return self.lose(cx, Ending::Lost(error));
                }
                if let Some(outcome) = outcome {
                    self.handle_outcome(cx, slot, outcome);
                }
            }
            InitiatorEvent::Response { slot, outcome } => self.handle_outcome(cx, slot, outcome),
            InitiatorEvent::R2t(grant) => self.grants.push_back(grant),
            event => self.handle_rare_event(cx, event),
        }
    }

    #[cold]
    fn handle_rare_event(&mut self, cx: &mut Context<'_>, event: InitiatorEvent<'_>) {
        let Some(link) = &mut self.link else { return };
        match event {
            InitiatorEvent::Answer => link.proto.answer(&mut self.control),
            InitiatorEvent::LoggedIn => self.handle_logged_in(cx),
            InitiatorEvent::Refused(status) => self.handle_refused(cx, status),
            InitiatorEvent::TmfResponse { tag, response } => {
                if let Some(at) = self.aborts.iter().position(|abort| abort.tag == tag) {
                    let abort = self.aborts.swap_remove(at);
                    self.handle_aborted(cx, abort, response);
                }
            }
            InitiatorEvent::Targets => match link.proto.targets() {
                Ok(targets) => self.events.push_back(SessionEvent::Targets(targets)),
                Err(violation) => {
                    let error = SessionError::Protocol(self.target.0, violation.to_string());
                    self.lose(cx, Ending::Lost(error));
                }
            },
            InitiatorEvent::Pong => {
                self.pinged = None;
                self.arm_next(cx);
            }
            InitiatorEvent::Async(message) => {
                let sense = CheckCondition::parse(async_sense(link.proto.data()));
                self.handle_async(cx, &message, sense);
            }
            InitiatorEvent::LoggedOut(_) => {
                let error = SessionError::Asked(self.target.0, "it asked for a logout");
                self.lose(cx, Ending::Lost(error));
            }
            InitiatorEvent::Data { .. }
            | InitiatorEvent::DataEnd { .. }
            | InitiatorEvent::Response { .. }
            | InitiatorEvent::R2t(_) => unreachable!("handled before"),
        }
    }

    /// What the target tells of itself (RFC 7143, 11.9).
    fn handle_async(
        &mut self,
        cx: &mut Context<'_>,
        message: &AsyncMessage,
        sense: CheckCondition,
    ) {
        let why = match AsyncEvent::from_wire(message.event) {
            Some(AsyncEvent::ScsiEvent) => {
                self.events.push_back(SessionEvent::Attention(sense));
                return;
            }
            Some(AsyncEvent::LogoutRequested) => {
                if matches!(self.state, State::Ready) {
                    self.log_out(cx, false);
                }
                return;
            }
            Some(AsyncEvent::DropConnection | AsyncEvent::DropSession) => "it drops the connection",
            // At error recovery level 0 a new login settles both.
            Some(AsyncEvent::NegotiationRequested) => "it wants other parameters",
            Some(AsyncEvent::TasksTerminated) => "the tasks of the logical unit were ended",
            Some(AsyncEvent::Vendor) | None => return,
        };
        self.lose(cx, Ending::Lost(SessionError::Asked(self.target.0, why)));
    }

    /// Whether the digest of a PDU is that of the data that have come.
    #[cold]
    fn is_right(&self, digest: DataDigest, slot: u16, (offset, len): (u32, u32)) -> bool {
        let (start, len) = (to_usize(offset), to_usize(len));
        match &self.slots[usize::from(slot)].data {
            TaskData::Read(buf) => digest.is_right(&buf[start..start + len]),
            TaskData::None | TaskData::Write(_) => false,
        }
    }

    #[inline]
    fn handle_outcome(&mut self, cx: &mut Context<'_>, slot: u16, outcome: Outcome) {
        let is_plain = outcome.status == GOOD
            && outcome.response == 0
            && outcome.missing == 0
            && outcome.residual == Residual::None;
        let result = if is_plain {
            Ok(outcome.received)
        } else {
            match self.judge_outcome(cx, slot, outcome) {
                Some(result) => result,
                None => return, // it is sent again
            }
        };
        self.finish(slot, result);
    }

    /// What an outcome with something to say means; `None`: the task is sent again.
    #[cold]
    fn judge_outcome(
        &mut self,
        cx: &mut Context<'_>,
        slot: u16,
        outcome: Outcome,
    ) -> Option<Result<u32, TaskError>> {
        let entry = &self.slots[usize::from(slot)];
        if outcome.response != 0 {
            return Some(Err(TaskError::TargetFailure(outcome.response)));
        }
        let may_retry = entry.retries < MAX_RETRIES && self.is_ready();
        match outcome.status {
            GOOD => {
                let left = match outcome.residual {
                    Residual::Underflow(count) => count,
                    Residual::None | Residual::Overflow(_) => 0,
                };
                let (len, whole) = (entry.len, entry.whole);
                let reads = matches!(entry.data, TaskData::Read(_));
                let moved = if reads { outcome.received } else { len.saturating_sub(left) };
                let short = outcome.missing > 0 || (whole && moved < len);
                let overflows = whole && matches!(outcome.residual, Residual::Overflow(_));
                if short || overflows {
                    return Some(Err(TaskError::Short { moved, len }));
                }
                Some(Ok(outcome.received))
            }
            CHECK_CONDITION => {
                let sense = self.link.as_ref().map_or(&[][..], |link| link.proto.data());
                let check = CheckCondition::parse(sense);
                if check.is_unit_attention() {
                    self.events.push_back(SessionEvent::Attention(check));
                }
                if may_retry && (check.is_unit_attention() || check.is_aborted()) {
                    self.send_again(slot);
                    return None;
                }
                Some(Err(TaskError::Check(check)))
            }
            BUSY | TASK_SET_FULL if may_retry => {
                self.pause_until = Some(cx.now + BUSY_PAUSE);
                self.arm(cx, cx.now + BUSY_PAUSE);
                self.send_again(slot);
                None
            }
            status => Some(Err(TaskError::Status { status })),
        }
    }

    /// Sends a task again that the target has ended without executing it.
    fn send_again(&mut self, slot: u16) {
        let entry = &mut self.slots[usize::from(slot)];
        entry.retries += 1;
        entry.sent = false;
        self.counters.retries.add(1);
        if !self.grants.is_empty() {
            self.grants.retain(|grant| grant.slot != slot);
        }
        self.pending.push_back(slot);
    }

    /// The target has answered to the request to end a task (RFC 7143, 11.6.1).
    fn handle_aborted(
        &mut self,
        cx: &mut Context<'_>,
        abort: Abort,
        response: Option<TmfResponseCode>,
    ) {
        let entry = &self.slots[usize::from(abort.slot)];
        if !entry.live || entry.since != abort.since || !entry.sent {
            return; // its answer came first
        }
        if response != Some(TmfResponseCode::Complete) {
            let error =
                SessionError::TaskTimeout(self.target.0, entry.cdb[0], self.config.task_timeout);
            return self.lose(cx, Ending::Lost(error));
        }
        if let Some(link) = &mut self.link {
            link.proto.forget(abort.slot);
        }
        let reads = matches!(entry.data, TaskData::Read(_));
        self.finish(
            abort.slot,
            Err(if reads { TaskError::Timeout } else { TaskError::UnknownFate }),
        );
    }
}

/// The sense data of an asynchronous message: behind their length.
fn async_sense(data: &[u8]) -> &[u8] {
    match data.split_first_chunk::<2>() {
        Some((len, rest)) => &rest[..rest.len().min(usize::from(u16::from_be_bytes(*len)))],
        None => &[],
    }
}
