//! Data digests, computed by the acceleration framework: of what is sent, and of what has come.
//!
//! The CPU does an operation at once; an engine does it later, and meanwhile the command is in
//! [`Phase::Digest`], its data with the engine. The connection goes on with other commands.

use std::ops::Range;

use raceline_accel::{AccelError, OpCode, Output, Part};
use raceline_proto::nvme::{Cqe, Fuse, Status};
pub(crate) use raceline_proto::tcp::DIGEST_LEN;
use raceline_reactor::{Accelerated, Context, IoBuf, Payload, Token, Work, WorkDone};

use crate::path::connection::{Connection, Role, Stage};
use crate::path::core::Core;
use crate::path::slots::{Phase, Slot};

/// What an engine's digest of a command's data is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum DigestUse {
    /// None is being computed.
    #[default]
    None,
    /// Data from the host: to be compared with the digest that came with them.
    Check(u32),
    /// Data for the host: to be sent behind them.
    Send,
}

impl Connection {
    /// The core's token for an operation on the data of a command. A slot stays taken until the
    /// operation is over, so no generation is needed to know whose it is.
    fn digest_token(&self, slot: u16) -> Token {
        Token { owner: 0, generation: slot, index: self.key.index }
    }

    /// All data of a PDU are in the command's buffer: checks their digest. True if the verdict
    /// will come later, with [`Self::handle_accelerated`].
    pub(crate) fn check_data(
        &mut self,
        cx: &mut Context<'_>,
        index: u16,
        bytes: Range<usize>,
        ddgst: u32,
        all: bool,
    ) -> bool {
        let token = self.digest_token(index);
        let is_io = matches!(self.role, Role::Io(_));
        let slot = self.slots.get(index);
        if slot.checked {
            return false;
        }
        let Some(buf) = slot.buf.take() else { return false };
        // While an engine had the buffer, the next PDU's data could not go there.
        if !(is_io && all) || cx.io.accelerates_now(OpCode::Crc32c) {
            let found = cx.io.accelerator().crc32c_now(&buf[bytes]);
            slot.buf = Some(buf);
            self.judge_data(index, found.ok(), ddgst);
            return false;
        }
        match cx.io.accelerate(Work::crc32c(0, Payload::Buf(buf, bytes)), token) {
            Accelerated::Now(done) => {
                self.data_checked(index, ddgst, done);
                false
            }
            Accelerated::Later => {
                let slot = self.slots.get(index);
                slot.phase = Phase::Digest;
                slot.digest = DigestUse::Check(ddgst);
                true
            }
        }
    }

    fn data_checked(&mut self, index: u16, ddgst: u32, done: WorkDone) {
        if let Err(error) = done.result {
            tracing::warn!(peer = %self.peer, %error, "a data digest was not computed: command fails with Transient Transport Error");
        }
        let found = crc32c_of(&done);
        let ([payload, _], _) = done.work.map(Work::into_memory).unwrap_or_default();
        if let Some(Payload::Buf(buf, _)) = payload {
            self.slots.get(index).buf = Some(buf);
        }
        self.judge_data(index, found, ddgst);
    }

    /// Compares the digest found, if any, with the one that came. Data with a bad one must not
    /// reach the device.
    pub(crate) fn judge_data(&mut self, index: u16, found: Option<u32>, ddgst: u32) -> bool {
        let good = found == Some(ddgst);
        if !good {
            let slot = self.slots.get(index);
            slot.corrupt = true;
            self.counters.digest_errors.add(1);
            if found.is_some() {
                tracing::warn!(peer = %self.peer, cid = slot.cid.0, "data digest mismatch: command fails with Transient Transport Error");
            }
        }
        good
    }

    /// A read has its data: sends them with their digest. Memory that others may write must not
    /// change between the two, so it is copied on the way; the digest is that of the copy.
    pub(crate) fn send_with_digest(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        index: u16,
        payload: Payload,
    ) {
        let token = self.digest_token(index);
        let slot = self.slots.get(index);
        let len = slot.transfer.len as usize;
        if matches!(payload, Payload::Region(..))
            && cx.io.copies_on_the_way()
            && let Some(copier) = cx.io.accelerator().copier(len)
        {
            let cqe = Cqe { cid: slot.cid, status: Status::SUCCESS, ..Cqe::default() };
            self.slots.release(index);
            return self.push_digested(core, cqe, payload, copier);
        }
        let work = match (payload, slot.buf.take()) {
            (payload @ Payload::Region(..), buf) => {
                let mut copy = buf.unwrap_or_else(|| IoBuf::heap(len));
                if cx.io.accelerates_now(OpCode::CopyCrc32c) {
                    let (accelerator, upcoming) = (cx.io.accelerator(), core.upcoming.take());
                    let found = accelerator.copy_crc32c_now(&payload, &mut copy, upcoming);
                    let copy = Payload::Buf(copy, 0..len);
                    return self.send_digested(core, index, Some(copy), found);
                }
                Work::copy_crc32c(0, payload, Part::range(copy, 0..len))
            }
            (Payload::Buf(buf, bytes), _) if cx.io.accelerates_now(OpCode::Crc32c) => {
                let found = cx.io.accelerator().crc32c_now(&buf[bytes.clone()]);
                return self.send_digested(core, index, Some(Payload::Buf(buf, bytes)), found);
            }
            (payload, _) => Work::crc32c(0, payload),
        };
        match cx.io.accelerate(work, token) {
            Accelerated::Now(done) => self.send_done(core, index, done),
            Accelerated::Later => {
                slot.phase = Phase::Digest;
                slot.digest = DigestUse::Send;
            }
        }
    }

    /// What [`Self::send_with_digest`] started is complete.
    fn send_done(&mut self, core: &mut Core, index: u16, done: WorkDone) {
        let len = self.slots.get(index).transfer.len as usize;
        let found = match done.result {
            Ok(Output::Crc32c(crc)) => Ok(crc),
            Ok(_) => Err(AccelError::NotSupported(OpCode::Crc32c)),
            Err(error) => Err(error),
        };
        let payload = match done.work.map(Work::into_memory).unwrap_or_default() {
            (_, [Some(copy), _]) => Some(Payload::Buf(copy, 0..len)),
            ([payload, _], _) => payload,
        };
        self.send_digested(core, index, payload, found);
    }

    /// Sends data, unless an engine keeps them, with the digest that was found, if one was.
    fn send_digested(
        &mut self,
        core: &mut Core,
        index: u16,
        payload: Option<Payload>,
        found: Result<u32, AccelError>,
    ) {
        let (Some(payload), Ok(ddgst)) = (payload, &found) else {
            let error = found.err();
            tracing::warn!(peer = %self.peer, ?error, "a data digest was not computed: command fails with Transient Transport Error");
            return self.refuse(core, index, Status::TRANSIENT_TRANSPORT_ERROR);
        };
        let cid = self.slots.get(index).cid;
        self.slots.release(index);
        if self.stage < Stage::Terminating {
            let cqe = Cqe { cid, status: Status::SUCCESS, ..Cqe::default() };
            self.push_payload(core, cqe, payload, Some(*ddgst));
        }
    }

    /// An engine has finished with the data of a command.
    pub(crate) fn handle_accelerated(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        index: u16,
        done: WorkDone,
    ) {
        let slot = self.slots.get(index);
        if slot.phase != Phase::Digest {
            debug_assert!(false, "one operation per command");
            return;
        }
        let purpose = std::mem::take(&mut slot.digest);
        if self.stage == Stage::Closing {
            return self.slots.release(index);
        }
        match purpose {
            DigestUse::Send => self.send_done(core, index, done),
            DigestUse::Check(ddgst) => {
                slot.phase = Phase::Data;
                self.data_checked(index, ddgst, done);
                self.data_complete(cx, core, index);
            }
            DigestUse::None => {}
        }
    }

    /// A command whose data came with a bad digest. The other half of a fused operation goes with
    /// it, unless it has gone before.
    pub(crate) fn refuse_corrupt(&mut self, core: &mut Core, index: u16) {
        let status = Status::TRANSIENT_TRANSPORT_ERROR;
        if self.slots.get(index).is_pending_half() {
            self.fused_refuse(core, index, status);
        } else {
            self.refuse(core, index, status);
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
