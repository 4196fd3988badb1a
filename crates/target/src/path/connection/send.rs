//! What a connection sends: responses and data, gathered and sent in one vectored call.

use raceline_accel::Copier;
use raceline_proto::nvme::{Cqe, Status};
use raceline_proto::tcp::ControllerQueue;
use raceline_reactor::{Context, Payload, SendBatch};

use super::{Capsule, Connection, Stage};
use crate::path::core::Core;

impl Connection {
    /// Sends what is ready, if no send is in flight: one vectored call.
    pub(crate) fn flush(&mut self, cx: &mut Context<'_>) {
        self.dirty = false;
        if self.slots.in_use() == 0
            && let Some(since) = self.busy_since.take()
        {
            let busy = cx.now.saturating_duration_since(since).as_micros();
            self.counters.busy_us.add(u64::try_from(busy).unwrap_or(u64::MAX));
        }
        if self.out.is_empty() || self.stage == Stage::Closing {
            return;
        }
        if let Some(mut batch) = self.spare.take() {
            std::mem::swap(&mut self.out, &mut batch);
            self.counters.sends.add(1);
            cx.io.send(self.socket, batch, self.token());
        }
    }

    /// A send has finished.
    pub(crate) fn handle_sent(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        result: std::io::Result<()>,
        mut batch: Box<SendBatch>,
    ) {
        batch.clear();
        // It is filled again, if possible: of two that take turns, neither may be in the caches.
        if self.out.is_empty() {
            std::mem::swap(&mut self.out, &mut batch);
        }
        self.spare = Some(batch);
        match result {
            Ok(()) if !self.out.is_empty() => self.mark_dirty(core),
            Ok(()) => {}
            Err(error) => {
                tracing::debug!(peer = %self.peer, %error, "send failed");
                self.close(cx, core, "sending failed");
            }
        }
    }

    fn mark_dirty(&mut self, core: &mut Core) {
        if !self.dirty {
            self.dirty = true;
            core.dirty.push(self.key);
        }
    }

    /// Adds the PDU that `put` encodes to what is to be sent.
    #[inline]
    pub(crate) fn push_pdu(
        &mut self,
        core: &mut Core,
        put: impl FnOnce(&mut ControllerQueue, &mut Vec<u8>),
    ) {
        self.counters.pdus_sent.add(1);
        let queue = &mut self.queue;
        self.out.append(|out| put(queue, out));
        self.mark_dirty(core);
    }

    /// Adds a response capsule.
    pub(crate) fn push_response(&mut self, core: &mut Core, cqe: Cqe) {
        // SQHD is reserved once flow control is off (Fabrics 1.1, 2.4.2).
        let sqhd = if self.flow_control { self.sqhd } else { 0 };
        self.push_pdu(core, |queue, out| queue.response(&Cqe { sqhd, ..cqe }, out));
    }

    /// Adds the answer to a successful Connect: SQHD is FFFFh if flow control is off (Fabrics
    /// 1.1, 3.3).
    pub(crate) fn push_connect_response(&mut self, core: &mut Core, cqe: Cqe) {
        self.advance_head();
        let sqhd = if self.flow_control { self.sqhd } else { u16::MAX };
        self.push_pdu(core, |queue, out| queue.response(&Cqe { sqhd, ..cqe }, out));
    }

    /// Adds the data of a successful admin command, and its response unless C2HData says it all.
    pub(crate) fn push_data(&mut self, core: &mut Core, cqe: Cqe, payload: Payload) {
        let ddgst = self.queue.data_digest().then(|| digest(&payload));
        self.push_payload(core, cqe, payload, ddgst);
    }

    /// As [`Self::push_data`], for an I/O queue whose data digest is known.
    #[inline]
    pub(crate) fn push_payload(
        &mut self,
        core: &mut Core,
        cqe: Cqe,
        payload: Payload,
        ddgst: Option<u32>,
    ) {
        let len = u32::try_from(payload.len()).expect("transfers are at most MDTS");
        let all_said = self.says_success && cqe.dw0 == 0 && cqe.dw1 == 0;
        self.push_pdu(core, |queue, out| queue.c2h_data(cqe.cid, 0, len, true, all_said, out));
        self.out.push_payload(payload);
        if let Some(ddgst) = ddgst {
            self.out.push_bytes(&ddgst.to_le_bytes());
        }
        if !all_said {
            self.push_response(core, cqe);
        }
    }

    /// As [`Self::push_payload`], of memory that others may write: digested on its way.
    #[inline]
    pub(crate) fn push_digested(
        &mut self,
        core: &mut Core,
        cqe: Cqe,
        payload: Payload,
        copier: Copier,
    ) {
        let len = u32::try_from(payload.len()).expect("transfers are at most MDTS");
        let all_said = self.says_success && cqe.dw0 == 0 && cqe.dw1 == 0;
        self.push_pdu(core, |queue, out| queue.c2h_data(cqe.cid, 0, len, true, all_said, out));
        self.counters.copied_bytes.add(u64::from(len));
        self.out.push_digested(payload, copier);
        if !all_said {
            self.push_response(core, cqe);
        }
    }

    /// Completes a command with a status only.
    pub(crate) fn refuse(&mut self, core: &mut Core, slot: u16, status: Status) {
        let cid = self.slots.get(slot).cid;
        self.finish(core, slot, Cqe { cid, status, ..Cqe::default() });
    }

    /// Completes a command that sends no data.
    pub(crate) fn finish(&mut self, core: &mut Core, index: u16, cqe: Cqe) {
        if !cqe.status.is_success() {
            self.counters.errors.add(1);
            self.log_failure(core, index, cqe.status);
        }
        if self.capsule == Capsule::Slot(index) {
            // Its data may still be coming in.
            self.capsule = Capsule::Discard;
        }
        self.slots.release(index);
        if self.stage < Stage::Terminating {
            self.push_response(core, cqe);
        }
    }
}

/// The digest of an admin command's data: small, and always in a buffer.
fn digest(payload: &Payload) -> u32 {
    match payload {
        Payload::Buf(buf, range) => raceline_accel::crc32c(&buf[range.clone()]),
        Payload::Shared(buf, range) => raceline_accel::crc32c(&buf[range.clone()]),
        Payload::Region(..) | Payload::Zeroes(_) => unreachable!("admin data are in buffers"),
    }
}
