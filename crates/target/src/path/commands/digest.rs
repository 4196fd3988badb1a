//! Data digests, computed by the acceleration framework: of data to send, and of data received.
//!
//! The CPU does an operation at once; an engine does it later, and meanwhile the command is in
//! [`Phase::Digest`], its data with the engine. The connection goes on with other commands.

use std::ops::Range;

use raceline_accel::{AccelError, OpCode, Output, Part};
use raceline_proto::nvme::{Cqe, Fuse, Status};
use raceline_reactor::{Accelerated, Context, IoBuf, Payload, Work, WorkDone};

use super::Commands;
use crate::path::choice::WritePath;
use crate::path::core::Core;
use crate::path::slots::{CommandSlot, DigestUse, Judged, Phase, Slot, Way};
use crate::records::names::{EngineToken, SlotKey};

impl Commands {
    /// All data of a PDU are in the command's buffer: checks their digest. True if the verdict
    /// will come later, with [`Self::take_accelerated`].
    #[inline]
    pub(super) fn check_data(
        &mut self,
        cx: &mut Context<'_>,
        key: SlotKey,
        bytes: Range<usize>,
        ddgst: u32,
        all: bool,
    ) -> bool {
        let token = self.local(key).token();
        let is_io = self.io.is_some();
        let slot = self.slots.get(key);
        if slot.way == Way::Write(WritePath::Staged) {
            // The digest was checked where the data lay.
            return false;
        }
        let Some(buf) = slot.buf.take() else { return false };
        // An engine would hold the buffer that the next PDU's data need.
        if !(is_io && all) || cx.io.accelerates_now(OpCode::Crc32c) {
            let found = cx.io.accelerator().crc32c_now(&buf[bytes]);
            slot.buf = Some(buf);
            self.judge_data(key, found.ok(), ddgst);
            return false;
        }
        match cx.io.accelerate(Work::crc32c(0, Payload::Buf(buf, bytes)), token) {
            Accelerated::Now(done) => {
                self.data_checked(key, ddgst, done);
                false
            }
            Accelerated::Later => {
                slot.phase = Phase::Digest(DigestUse::Check(ddgst));
                true
            }
        }
    }

    fn data_checked(&mut self, key: SlotKey, ddgst: u32, done: WorkDone) {
        if let Err(error) = done.result {
            tracing::warn!(peer = %self.peer, %error, "a data digest was not computed: command fails with Transient Transport Error");
        }
        let found = crc32c_of(&done);
        let ([payload, _], _) = done.work.map(Work::into_memory).unwrap_or_default();
        if let Some(Payload::Buf(buf, _)) = payload {
            self.slots.get(key).buf = Some(buf);
        }
        self.judge_data(key, found, ddgst);
    }

    /// Compares the digest found, if any, with the one received. Data with a wrong digest must not
    /// reach the device.
    #[inline]
    pub(super) fn judge_data(&mut self, key: SlotKey, found: Option<u32>, ddgst: u32) -> bool {
        let good = found == Some(ddgst);
        if !good {
            let slot = self.slots.get(key);
            slot.judged = Judged::Corrupt;
            self.out.counters.digest_errors.add(1);
            if found.is_some() {
                tracing::warn!(peer = %self.peer, cid = slot.cid().0, "data digest mismatch: command fails with Transient Transport Error");
            }
        }
        good
    }

    /// A read has its data: sends them with their digest. Memory that others may write could change
    /// between the two, so it is copied on the way; the digest is that of the copy.
    pub(super) fn send_with_digest(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        command: CommandSlot,
        payload: Payload,
    ) {
        let token = self.local(command.key()).token();
        let slot = self.slots.get(command.key());
        let len = slot.transfer.len as usize;
        if matches!(payload, Payload::Region(..))
            && cx.io.copies_on_the_way()
            && let Some(copier) = cx.io.accelerator().copier(len)
        {
            let cqe = Cqe { cid: slot.cid(), status: Status::SUCCESS, ..Cqe::default() };
            self.slots.release(command);
            return self.out.push_digested(core, cqe, payload, copier);
        }
        let work = match (payload, slot.buf.take()) {
            (payload @ Payload::Region(..), buf) => {
                let mut copy = buf.unwrap_or_else(|| IoBuf::heap(len));
                if cx.io.accelerates_now(OpCode::CopyCrc32c) {
                    let (accelerator, upcoming) = (cx.io.accelerator(), core.upcoming.take());
                    let found = accelerator.copy_crc32c_now(&payload, &mut copy, upcoming);
                    let copy = Payload::Buf(copy, 0..len);
                    return self.send_digested(core, command, Some(copy), found);
                }
                Work::copy_crc32c(0, payload, Part::range(copy, 0..len))
            }
            (Payload::Buf(buf, bytes), _) if cx.io.accelerates_now(OpCode::Crc32c) => {
                let found = cx.io.accelerator().crc32c_now(&buf[bytes.clone()]);
                let payload = Payload::Buf(buf, bytes);
                return self.send_digested(core, command, Some(payload), found);
            }
            (payload, _) => Work::crc32c(0, payload),
        };
        match cx.io.accelerate(work, token) {
            Accelerated::Now(done) => self.send_done(core, command, done),
            Accelerated::Later => slot.phase = Phase::Digest(DigestUse::Send),
        }
    }

    /// The work that [`Self::send_with_digest`] started is complete.
    fn send_done(&mut self, core: &mut Core, command: CommandSlot, done: WorkDone) {
        let len = self.slots.get(command.key()).transfer.len as usize;
        let found = match done.result {
            Ok(Output::Crc32c(crc)) => Ok(crc),
            Ok(_) => Err(AccelError::NotSupported(OpCode::Crc32c)),
            Err(error) => Err(error),
        };
        let payload = match done.work.map(Work::into_memory).unwrap_or_default() {
            (_, [Some(copy), _]) => Some(Payload::Buf(copy, 0..len)),
            ([payload, _], _) => payload,
        };
        self.send_digested(core, command, payload, found);
    }

    /// Sends data with the digest that was found. Without a digest, or if an engine keeps the data, the
    /// command fails.
    fn send_digested(
        &mut self,
        core: &mut Core,
        command: CommandSlot,
        payload: Option<Payload>,
        found: Result<u32, AccelError>,
    ) {
        let (Some(payload), Ok(ddgst)) = (payload, &found) else {
            let error = found.err();
            tracing::warn!(peer = %self.peer, ?error, "a data digest was not computed: command fails with Transient Transport Error");
            return self.refuse(core, command, Status::TRANSIENT_TRANSPORT_ERROR);
        };
        let cid = self.slots.get(command.key()).cid();
        self.slots.release(command);
        if !self.out.is_muted() {
            let cqe = Cqe { cid, status: Status::SUCCESS, ..Cqe::default() };
            self.out.push_payload(core, cqe, payload, Some(*ddgst));
        }
    }

    /// An engine has finished with the data of a command. `closing`: the connection closes and drops the
    /// result. Gives whether the command was waiting for that.
    #[must_use]
    pub(crate) fn take_accelerated(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        token: EngineToken,
        done: WorkDone,
        closing: bool,
    ) -> bool {
        let Some(command) = self.slots.resume_at(token.slot) else { return false };
        let key = command.key();
        let slot = self.slots.get(key);
        let Phase::Digest(purpose) = slot.phase else { return false };
        if !token.is_of(key) {
            return false;
        }
        if closing {
            self.slots.release(command);
            return true;
        }
        match purpose {
            DigestUse::Send => self.send_done(core, command, done),
            DigestUse::Check(ddgst) => {
                slot.phase = Phase::Data;
                self.data_checked(key, ddgst, done);
                if let Some(command) = self.complete_data(cx, core, command) {
                    self.execute_io(cx, core, command);
                }
            }
        }
        true
    }

    /// Fails a command whose data came with a wrong digest. The other half of a fused operation fails with
    /// it, unless that half was refused before.
    pub(super) fn refuse_corrupt(&mut self, core: &mut Core, command: CommandSlot) {
        let status = Status::TRANSIENT_TRANSPORT_ERROR;
        if self.slots.get(command.key()).is_pending_half() {
            self.fused_refuse(core, command, status);
        } else {
            self.refuse(core, command, status);
        }
    }
}

impl Slot {
    fn is_pending_half(&self) -> bool {
        self.sqe.fuse() != Fuse::Normal && self.status.is_success()
    }
}

fn crc32c_of(done: &WorkDone) -> Option<u32> {
    if let Ok(Output::Crc32c(crc)) = done.result { Some(crc) } else { None }
}
