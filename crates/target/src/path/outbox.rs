//! What a connection sends: responses and data, gathered and sent in one vectored call.

use std::sync::Arc;

use raceline_accel::Copier;
use raceline_proto::nvme::Cqe;
use raceline_proto::tcp::{ControllerQueue, ControllerQueueConfig, FatalError};
use raceline_reactor::io::SocketId;
use raceline_reactor::{Context, Payload, SendBatch, Token};

use crate::path::choice::MAX_H2C_DATA_BYTES;
use crate::path::core::Core;
use crate::path::traveller::PackedOutbox;

pub(crate) use crate::path::traveller::Answers;
use crate::records::counters::QueueCounters;
use crate::records::names::ConnKey;

/// Header bytes that one command's answer needs at most: C2HData with header digest and pad, its
/// data digest, CapsuleResp and R2T with header digest.
const HEADER_BYTES_PER_COMMAND: usize = 128 + 4 + 28 + 28;

/// What a connection sends, and the protocol's state.
pub(crate) struct Outbox {
    key: ConnKey,
    /// The controller's end of the protocol. Also decodes received bytes.
    pub(crate) queue: ControllerQueue,
    pub(crate) counters: Arc<QueueCounters>,
    batch: Box<SendBatch>,
    /// `None` while it is being sent.
    spare: Option<Box<SendBatch>>,
    dirty: bool,
    answers: Answers,
    sqhd: u16,
    /// Commands are no longer answered.
    muted: bool,
}

fn new_batch(entries: u16) -> Box<SendBatch> {
    let entries = usize::from(entries);
    SendBatch::new(entries * HEADER_BYTES_PER_COMMAND + 256, entries * 3 + 4)
}

impl Outbox {
    pub(crate) fn new(key: ConnKey, core: &Core) -> Self {
        let config = &core.shared.config;
        let answers = Answers { entries: 1, flow_control: true, says_success: false };
        Self {
            key,
            queue: ControllerQueue::new(ControllerQueueConfig {
                max_h2c_data: MAX_H2C_DATA_BYTES,
                in_capsule_bytes: config.in_capsule_bytes,
                max_r2t_slots: config.max_queue_entries.max(config.max_admin_entries),
                allow_hdgst: true,
                allow_ddgst: true,
            }),
            counters: Arc::default(),
            batch: new_batch(1),
            spare: Some(new_batch(1)),
            dirty: false,
            answers,
            sqhd: 0,
            muted: false,
        }
    }

    /// The queue is connected: sets the memory that it needs.
    pub(crate) fn set_queue(&mut self, is_admin: bool, answers: Answers) {
        self.queue.set_queue_kind(is_admin);
        let says_success = answers.says_success && !answers.flow_control;
        self.answers = Answers { says_success, ..answers };
        // A batch in use gets its room when it comes back.
        if self.batch.is_empty() {
            self.batch = new_batch(answers.entries);
        }
        if let Some(spare) = &mut self.spare {
            *spare = new_batch(answers.entries);
        }
    }

    // ----------------------------------------------------------------------------- sending

    /// Sends what is ready, if no send is in flight: one vectored call.
    #[inline]
    pub(crate) fn flush(&mut self, cx: &mut Context<'_>, socket: SocketId, token: Token) {
        if self.batch.is_empty() {
            return;
        }
        if let Some(mut batch) = self.spare.take() {
            std::mem::swap(&mut self.batch, &mut batch);
            self.counters.sends.add(1);
            cx.io.send(socket, batch, token);
        }
    }

    /// The flush that was due happens now.
    #[inline]
    pub(crate) fn clean(&mut self) {
        self.dirty = false;
    }

    /// A send has finished; its batch comes back.
    #[inline]
    pub(crate) fn take_back(&mut self, mut batch: Box<SendBatch>) {
        batch.clear();
        let entries = usize::from(self.answers.entries);
        if !batch.has_room(entries * HEADER_BYTES_PER_COMMAND, entries) {
            // It left before the queue was connected, with the answer to ICReq or to Connect.
            batch = new_batch(self.answers.entries);
        }
        // The same batch is filled again, if possible: with two in turns, neither may be in the caches.
        if self.batch.is_empty() {
            std::mem::swap(&mut self.batch, &mut batch);
        }
        self.spare = Some(batch);
    }

    /// Marks the rest for sending, after a send has succeeded.
    #[inline]
    pub(crate) fn go_on(&mut self, core: &mut Core) {
        if !self.batch.is_empty() {
            self.mark_dirty(core);
        }
    }

    /// The form of the queue's answers, and where the host's next entry is.
    pub(crate) fn answers(&self) -> (Answers, u16) {
        (self.answers, self.sqhd)
    }

    /// Whether nothing waits to be sent, and nothing is being sent.
    pub(crate) fn is_idle(&self) -> bool {
        self.batch.is_empty() && self.spare.is_some()
    }

    /// What another core needs to go on. Nothing may be left to send.
    pub(crate) fn pack(self) -> PackedOutbox {
        let Self { queue, counters, answers, sqhd, .. } = self;
        PackedOutbox { queue, counters, answers, sqhd }
    }

    /// The outbox of a connection that has come from another core.
    pub(crate) fn unpack(key: ConnKey, packed: PackedOutbox) -> Self {
        let PackedOutbox { queue, counters, answers, sqhd } = packed;
        Self {
            key,
            queue,
            counters,
            batch: new_batch(answers.entries),
            spare: Some(new_batch(answers.entries)),
            dirty: false,
            answers,
            sqhd,
            muted: false,
        }
    }

    /// Whether a send is in flight.
    pub(crate) fn is_sending(&self) -> bool {
        self.spare.is_none()
    }

    /// Drops the bytes that wait to be sent; commands are no longer answered.
    pub(crate) fn close(&mut self) {
        self.batch.clear();
        self.muted = true;
    }

    /// Whether commands are no longer answered: their connection is about to end.
    #[inline]
    pub(crate) fn is_muted(&self) -> bool {
        self.muted
    }

    #[inline]
    fn mark_dirty(&mut self, core: &mut Core) {
        if !self.dirty {
            self.dirty = true;
            core.dirty.push(self.key);
        }
    }

    // -------------------------------------------------------------------------------- PDUs

    /// Adds the PDU that `put` encodes to what is to be sent.
    #[inline(always)]
    pub(crate) fn push_pdu(
        &mut self,
        core: &mut Core,
        put: impl FnOnce(&mut ControllerQueue, &mut Vec<u8>),
    ) {
        self.counters.pdus_sent.add(1);
        let queue = &mut self.queue;
        self.batch.append(|out| put(queue, out));
        self.mark_dirty(core);
    }

    /// Adds a TermReq; afterwards commands are no longer answered.
    pub(crate) fn push_term_req(&mut self, core: &mut Core, error: &FatalError) {
        self.push_pdu(core, |queue, out| queue.term_req(error, out));
        self.muted = true;
    }

    /// The host has used another queue entry.
    #[inline]
    pub(crate) fn advance_head(&mut self) {
        self.sqhd = if self.sqhd + 1 >= self.answers.entries { 0 } else { self.sqhd + 1 };
    }

    /// Adds a response capsule.
    pub(crate) fn push_response(&mut self, core: &mut Core, cqe: Cqe) {
        // SQHD is reserved once flow control is off (Fabrics 1.1, 2.4.2).
        let sqhd = if self.answers.flow_control { self.sqhd } else { 0 };
        self.push_pdu(core, |queue, out| queue.response(&Cqe { sqhd, ..cqe }, out));
    }

    /// Adds the answer to a successful Connect: SQHD is FFFFh if flow control is off (Fabrics
    /// 1.1, 3.3).
    pub(crate) fn push_connect_response(&mut self, core: &mut Core, cqe: Cqe) {
        self.advance_head();
        let sqhd = if self.answers.flow_control { self.sqhd } else { u16::MAX };
        self.push_pdu(core, |queue, out| queue.response(&Cqe { sqhd, ..cqe }, out));
    }

    /// Adds the data of a successful admin command, and its response unless C2HData reports success.
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
        let all_said = self.answers.says_success && cqe.dw0 == 0 && cqe.dw1 == 0;
        self.push_pdu(core, |queue, out| queue.c2h_data(cqe.cid, 0, len, true, all_said, out));
        self.batch.push_payload(payload);
        if let Some(ddgst) = ddgst {
            self.batch.push_bytes(&ddgst.to_le_bytes());
        }
        if !all_said {
            self.push_response(core, cqe);
        }
    }

    /// [`Self::push_payload`] for memory that others may write: the data are digested while they are sent.
    #[inline]
    pub(crate) fn push_digested(
        &mut self,
        core: &mut Core,
        cqe: Cqe,
        payload: Payload,
        copier: Copier,
    ) {
        let len = u32::try_from(payload.len()).expect("transfers are at most MDTS");
        let all_said = self.answers.says_success && cqe.dw0 == 0 && cqe.dw1 == 0;
        self.push_pdu(core, |queue, out| queue.c2h_data(cqe.cid, 0, len, true, all_said, out));
        self.counters.copied_bytes.add(u64::from(len));
        self.batch.push_digested(payload, copier);
        if !all_said {
            self.push_response(core, cqe);
        }
    }
}

/// The digest of an admin command's data, which are small and always in a buffer.
fn digest(payload: &Payload) -> u32 {
    match payload {
        Payload::Buf(buf, range) => raceline_accel::crc32c(&buf[range.clone()]),
        Payload::Shared(buf, range) => raceline_accel::crc32c(&buf[range.clone()]),
        Payload::Region(..) | Payload::Zeroes(_) => unreachable!("admin data are in buffers"),
    }
}
