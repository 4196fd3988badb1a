//! Sending: everything that is ready to go leaves in one batch.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use raceline_crc32c::Crc32c;
use raceline_iscsi::initiator::{Direction, InitiatorConnection, Request};
use raceline_reactor::{Context, SendBatch, SharedBuf};

use super::{BATCH_PDUS, Ending, Link, PDU_BYTES, Session, State, to_usize};
use crate::error::SessionError;
use crate::task::TaskData;

/// Simple task attribute (RFC 7143, 11.3.1).
const SIMPLE: u8 = 1;

impl Session {
    /// Sends what is ready, unless a send is in flight: then it leaves with the next. To be called once per turn of the
    /// loop.
    #[inline]
    pub fn flush(&mut self, cx: &mut Context<'_>) {
        if !self.pending.is_empty()
            || !self.grants.is_empty()
            || !self.control.is_empty()
            || self.wanted_targets.is_some()
        {
            self.flush_ready(cx);
        }
        if self.can_receive() {
            self.post_receive(cx);
        }
    }

    fn flush_ready(&mut self, cx: &mut Context<'_>) {
        let Some(link) = &mut self.link else { return };
        if link.sending || link.closed || matches!(self.state, State::Draining(_)) {
            return;
        }
        if self.is_ready()
            && let (Some(link), Some(what)) = (&mut self.link, &self.wanted_targets)
            && link.proto.send_targets(what, &mut self.control)
        {
            self.wanted_targets = None;
        }
        let Some(mut batch) = self.batch.take() else { return };
        self.put_control(&mut batch);
        let mut pdus_left = BATCH_PDUS;
        let flows = matches!(self.state, State::Ready | State::LoggingOut { .. });
        if flows && !self.grants.is_empty() {
            self.put_data(&mut batch, &mut pdus_left);
        }
        if self.is_ready() && !self.pauses(cx) {
            self.put_commands(&mut batch, &mut pdus_left);
        }
        if batch.is_empty() {
            self.batch = Some(batch);
            return;
        }
        self.start_send(cx, batch);
        self.arm_next(cx);
    }

    /// Sends what is no command at once, if no send is in flight.
    pub(super) fn send_control(&mut self, cx: &mut Context<'_>) {
        let idle = self.link.as_ref().is_some_and(|link| !link.sending && !link.closed);
        if idle
            && !self.control.is_empty()
            && let Some(mut batch) = self.batch.take()
        {
            self.put_control(&mut batch);
            self.start_send(cx, batch);
        }
    }

    fn put_control(&mut self, batch: &mut SendBatch) {
        if !self.control.is_empty() {
            batch.make_room(self.control.len() + BATCH_PDUS * PDU_BYTES, BATCH_PDUS * 2);
            batch.push_bytes(&self.control);
            self.control.clear();
        }
    }

    fn start_send(&mut self, cx: &mut Context<'_>, batch: Box<SendBatch>) {
        let Some(link) = &mut self.link else { return };
        link.sending = true;
        link.batches_started += 1;
        self.counters.sends.add(1);
        cx.io.send(link.socket, batch, self.token);
    }

    /// Sends data that the target waits for, in the order in which they were permitted.
    fn put_data(&mut self, batch: &mut SendBatch, pdus_left: &mut usize) {
        let Some(link) = &mut self.link else { return };
        let number = link.batches_started + 1;
        while let Some(grant) = self.grants.front_mut() {
            let entry = &mut self.slots[usize::from(grant.slot)];
            let TaskData::Write(buf) = &entry.data else {
                unreachable!("data are permitted for a task that writes")
            };
            entry.batch = number;
            while grant.len > 0 {
                if *pdus_left == 0 || !batch.has_room(PDU_BYTES, 1) {
                    return;
                }
                *pdus_left -= 1;
                let mut piece = None;
                batch.append(|out| piece = Some(link.proto.data_out(grant, out)));
                if let Some(piece) = piece {
                    let start = to_usize(piece.offset);
                    put_payload(&link.proto, batch, buf, start..start + to_usize(piece.len));
                }
                self.counters.pdus_sent.add(1);
            }
            self.grants.pop_front();
        }
    }

    /// Sends commands, as many as the target's window takes.
    fn put_commands(&mut self, batch: &mut SendBatch, pdus_left: &mut usize) {
        let Some(link) = &mut self.link else { return };
        let (number, lun) = (link.batches_started + 1, self.config.lun_field());
        while *pdus_left > 0
            && link.proto.may_send()
            && batch.has_room(PDU_BYTES, 1)
            && let Some(slot) = self.pending.pop_front()
        {
            *pdus_left -= 1;
            let entry = &mut self.slots[usize::from(slot)];
            entry.sent = true;
            entry.batch = number;
            let direction = entry.data.direction();
            let request =
                Request { lun, cdb: entry.cdb, direction, len: entry.len, attribute: SIMPLE };
            let writes = direction == Direction::Write;
            let immediate = if writes { link.proto.immediate_limit(entry.len) } else { 0 };
            let mut grant = None;
            batch.append(|out| {
                grant = link.proto.command(slot, &request, immediate, writes, out);
            });
            if immediate > 0
                && let TaskData::Write(buf) = &entry.data
            {
                put_payload(&link.proto, batch, buf, 0..to_usize(immediate));
            }
            self.grants.extend(grant);
            self.counters.pdus_sent.add(1);
        }
        if !self.grants.is_empty() {
            self.put_data(batch, pdus_left);
        }
    }

    pub(super) fn handle_sent(
        &mut self,
        cx: &mut Context<'_>,
        result: io::Result<()>,
        mut batch: Box<SendBatch>,
    ) {
        batch.clear();
        self.batch = Some(batch);
        let Some(link) = &mut self.link else { return };
        link.sending = false;
        link.batches_done = link.batches_started;
        if !self.held.is_empty() {
            self.done.extend(self.held.drain(..));
        }
        if matches!(self.state, State::Draining(_)) {
            self.check_drained(cx);
        } else if let Err(error) = result {
            let error = SessionError::Broken(self.target.0, Arc::new(error));
            self.lose(cx, Ending::Lost(error));
        }
    }
}

/// Puts payload, its padding and, if negotiated, its digest.
fn put_payload(
    proto: &InitiatorConnection,
    batch: &mut SendBatch,
    buf: &SharedBuf,
    range: Range<usize>,
) {
    let mut crc = Crc32c::new();
    if proto.data_digest() {
        crc.update(&buf[range.clone()]);
    }
    let len = u32::try_from(range.len()).expect("a piece of a task's data");
    // Its owner gets the buffer back when the target has answered.
    batch.push_kept(buf.clone(), range);
    if proto.trailer_len(len) > 0 {
        batch.append(|out| proto.data_trailer(len, crc, out));
    }
}

impl Link {
    /// Whether an operation of its socket is in flight.
    pub(super) fn is_busy(&self) -> bool {
        self.receiving || self.sending
    }
}
