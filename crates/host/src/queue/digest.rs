//! Data digests through the acceleration framework: of what is written, and of what was read.
//!
//! The CPU computes a digest where it is needed. An engine gets the data of a write when the
//! program submits it, and those of a read when they have all come; meanwhile the command stays,
//! whatever else happens to it, and the connection goes on with others.

use raceline_accel::{OpCode, Output};
use raceline_proto::nvme::command::Fuse;
use raceline_proto::nvme::{CommandId, Cqe, Direction};
use raceline_proto::tcp::R2tGrant;
use raceline_reactor::{Accelerated, Accelerator, Context, IoBuf, Payload, Token, Work, WorkDone};

use super::send::{Grant, to_usize};
use super::{Entry, QueuePair};
use crate::command::Data;
use crate::error::CommandError;

/// What an engine does for a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum EngineUse {
    /// Nothing.
    #[default]
    None,
    /// The digest of what was read, to be compared with this one.
    Check(u32),
    /// The digest of what is to be written.
    Write,
}

/// The state of a command's work on engines.
#[derive(Debug, Default)]
pub(super) struct EntryDigest {
    engine: EngineUse,
    /// The end of the command, which came while an engine had its data.
    ended: Option<Result<Cqe, CommandError>>,
    /// The R2T that asks for the data that an engine has.
    grant: Option<R2tGrant>,
    /// The digest of all its data: of a write, if an engine has computed it; of a read, if it was
    /// computed while they were copied.
    pub(super) known: Option<u32>,
}

impl EntryDigest {
    pub(super) fn is_with_engine(&self) -> bool {
        self.engine != EngineUse::None
    }

    /// Keeps the end of the command for when the engine is done; false if none has its data.
    pub(super) fn defer_end(&mut self, result: Result<Cqe, CommandError>) -> bool {
        if self.is_with_engine() {
            self.ended = Some(result);
        }
        self.is_with_engine()
    }
}

impl QueuePair {
    fn engine_token(&self, cid: CommandId) -> Token {
        Token { generation: cid.0, ..self.token }
    }

    /// Whether an engine computes digests. It never computes those of admin commands: they are few, and the
    /// controller depends on them.
    fn offloads(&self, cx: &mut Context<'_>) -> bool {
        !self.config.qid.is_admin() && !cx.io.accelerates_now(OpCode::Crc32c)
    }

    /// Whether the CPU digests the data that come, so that it may do so while it copies them.
    pub(super) fn digests_now(&self, cx: &mut Context<'_>) -> bool {
        let link = self.link.as_ref();
        link.is_some_and(|link| link.queue.data_digest())
            && !self.offloads(cx)
            && cx.io.accelerates_now(OpCode::CopyCrc32c)
    }

    /// Gives the data of a write to an engine, if one computes digests. Halves of fused operations
    /// are sent in order, so they do not wait for one.
    #[inline]
    pub(super) fn begin_digest(&mut self, cx: &mut Context<'_>, cid: CommandId) {
        if self.config.data_digest {
            self.offer_digest(cx, cid);
        }
    }

    fn offer_digest(&mut self, cx: &mut Context<'_>, cid: CommandId) {
        if !self.link.as_ref().is_some_and(|link| link.queue.data_digest()) || !self.offloads(cx) {
            return;
        }
        let token = self.engine_token(cid);
        let Some(entry) = self.commands.get_mut(cid) else { return };
        let Data::Write(buf) = &entry.data else { return };
        if entry.sqe.fuse() != Fuse::Normal {
            return;
        }
        let payload = Payload::Shared(buf.clone(), 0..buf.len());
        match cx.io.accelerate(Work::crc32c(0, payload), token) {
            Accelerated::Now(done) => entry.digest.known = crc32c_of(&done),
            Accelerated::Later => {
                entry.digest.engine = EngineUse::Write;
                self.with_engines += 1;
            }
        }
    }

    /// Checks the digest of data that have come. True if an engine does it: the command cannot
    /// end before that.
    pub(super) fn check_digest(
        &mut self,
        cx: &mut Context<'_>,
        cid: CommandId,
        bytes: std::ops::Range<usize>,
        expected: u32,
    ) {
        let (token, offloads) = (self.engine_token(cid), self.offloads(cx));
        let Some(entry) = self.commands.get_mut(cid) else { return };
        if let Some(known) = entry.digest.known.take() {
            return self.judge_digest(cid, Some(known), expected);
        }
        let Data::Read(buf) = std::mem::take(&mut entry.data) else { return };
        // While an engine had the buffer, the next PDU's data could not go there. The queue's own commands end at
        // once.
        let all = bytes.len() == buf.len();
        if !all || !offloads || entry.is_own() {
            let found = cx.io.accelerator().crc32c_now(&buf[bytes]);
            entry.data = Data::Read(buf);
            return self.judge_digest(cid, found.ok(), expected);
        }
        match cx.io.accelerate(Work::crc32c(0, Payload::Buf(buf, bytes)), token) {
            Accelerated::Now(done) => self.digest_checked(cid, expected, done),
            Accelerated::Later => {
                entry.digest.engine = EngineUse::Check(expected);
                self.with_engines += 1;
            }
        }
    }

    fn digest_checked(&mut self, cid: CommandId, expected: u32, done: WorkDone) {
        let found = crc32c_of(&done);
        let ([payload, _], _) = done.work.map(Work::into_memory).unwrap_or_default();
        if let Some(entry) = self.commands.get_mut(cid) {
            entry.data = Data::Read(match payload {
                Some(Payload::Buf(buf, _)) => buf,
                // An engine that hangs keeps the buffer: the command goes on in other memory.
                _ => IoBuf::heap(to_usize(entry.len)),
            });
        }
        self.judge_digest(cid, found, expected);
    }

    fn judge_digest(&mut self, cid: CommandId, found: Option<u32>, expected: u32) {
        if found != Some(expected)
            && let Some(entry) = self.commands.get_mut(cid)
        {
            entry.digest_failed = true;
            self.counters.digest_errors.add(1);
        }
    }

    /// An R2T has come: it is answered now, or when the digest of its data is known.
    pub(super) fn grant(&mut self, r2t: R2tGrant) {
        match self.commands.get_mut(r2t.cid) {
            Some(entry) if entry.digest.is_with_engine() => entry.digest.grant = Some(r2t),
            _ => self.grants.push_back(Grant { r2t, sent: 0 }),
        }
    }

    /// An engine has finished with the data of a command.
    pub(super) fn handle_accelerated(
        &mut self,
        cx: &mut Context<'_>,
        cid: CommandId,
        done: WorkDone,
    ) {
        self.with_engines -= 1;
        let Some(entry) = self.commands.get_mut(cid) else {
            debug_assert!(false, "a command stays while an engine has its data");
            return;
        };
        let engine = std::mem::take(&mut entry.digest.engine);
        let (ended, grant) = (entry.digest.ended.take(), entry.digest.grant.take());
        match engine {
            EngineUse::Check(expected) => self.digest_checked(cid, expected, done),
            EngineUse::Write => {
                // Without one, the CPU computes it when the data are sent.
                entry.digest.known = crc32c_of(&done);
                if !entry.sent && ended.is_none() && !self.pending.contains(&cid) {
                    self.pending.push_back(cid);
                    self.gathering.release();
                }
                self.grants.extend(grant.map(|r2t| Grant { r2t, sent: 0 }));
            }
            EngineUse::None => {}
        }
        if let Some(result) = ended {
            self.finish(cid, result);
        }
        self.check_drained(cx);
    }
}

impl Entry {
    /// The command is sent again: data that came for it before do not count any more.
    pub(super) fn forget_received(&mut self) {
        self.digest_failed = false;
        if self.direction == Direction::ControllerToHost {
            self.digest.known = None;
        }
    }

    /// The digest of a part of a write's data.
    pub(super) fn digest_of(
        known: Option<u32>,
        accelerator: &mut Accelerator,
        data: &[u8],
        range: std::ops::Range<usize>,
    ) -> u32 {
        match known {
            Some(known) if range.len() == data.len() => known,
            _ => {
                let bytes = &data[range];
                // Injected failures end operations of engines; here nothing can fail.
                accelerator.crc32c_now(bytes).unwrap_or_else(|_| raceline_accel::crc32c(bytes))
            }
        }
    }
}

fn crc32c_of(done: &WorkDone) -> Option<u32> {
    if let Ok(Output::Crc32c(crc)) = done.result { Some(crc) } else { None }
}
