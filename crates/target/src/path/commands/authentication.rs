//! Authentication commands of every queue: their data, the thread that computes for them, and their ends.

use raceline_auth::{Finished, Received, Verdict};
use raceline_proto::controller::authentication_transfer;
use raceline_proto::nvme::opcode::fabrics;
use raceline_proto::nvme::{Cqe, Status};
use raceline_reactor::{Context, IoBuf, Payload};

use super::Commands;
use crate::path::core::Core;
use crate::path::slots::{CommandSlot, Phase};
use crate::records::names::{CommandPlace, SlotKey};

/// Commands that a queue whose host has not proved itself may have under way.
const MAX_STRANGERS_COMMANDS: usize = 2;

impl Commands {
    /// Whether the host has proved itself as far as it has to.
    pub(crate) fn is_proven(&self) -> bool {
        self.auth.as_ref().is_none_or(|auth| auth.is_proven())
    }

    /// An authentication command has come. Gives it back when it can be executed.
    pub(crate) fn begin_authentication(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        command: CommandSlot,
    ) -> Option<CommandSlot> {
        let digest = self.out.queue.data_digest();
        // Each has memory of its own, and only one of them is due.
        let crowded = !self.is_proven() && self.slots.in_use() > MAX_STRANGERS_COMMANDS;
        let slot = self.slots.get(command.key());
        let transfer = match authentication_transfer(&slot.sqe) {
            _ if self.auth.is_none() => Err(Status::INVALID_OPCODE.dnr()),
            _ if crowded => Err(Status::COMMAND_SEQUENCE_ERROR),
            // As for other commands.
            Ok(transfer) if digest && !transfer.len.is_multiple_of(4) => {
                Err(Status::DATA_SGL_LENGTH_INVALID.dnr())
            }
            other => other,
        };
        match transfer {
            Ok(transfer) => {
                slot.transfer = transfer;
                // Not from the pool: strangers must not take I/O buffers from hosts.
                self.give_buffer(cx, core, command, IoBuf::heap(transfer.len as usize))
            }
            Err(status) => {
                self.refuse(core, command, status);
                None
            }
        }
    }

    /// Executes an authentication command that has its data. Gives what follows for the connection.
    #[must_use]
    pub(crate) fn execute_authentication(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        command: CommandSlot,
    ) -> Option<Verdict> {
        let slot = self.slots.get(command.key());
        let (sqe, buf) = (slot.sqe, slot.buf.take());
        let (Some(auth), Some(buf)) = (&mut self.auth, buf) else {
            self.refuse(core, command, Status::INTERNAL);
            return None;
        };
        if sqe.fctype() == fabrics::AUTHENTICATION_RECEIVE {
            let (message, verdict) = auth.handle_receive(buf.len());
            self.answer_receive(core, command, message, buf);
            return verdict;
        }
        let limit = core.shared.config.pre_connect.authentication;
        let (received, verdict) = auth.handle_send(cx.now, limit, &buf);
        match received {
            Received::Complete(status) => {
                let cid = self.slots.get(command.key()).cid();
                self.finish(core, command, Cqe { cid, status, ..Cqe::default() });
            }
            Received::Compute(work) => {
                let slot = command.key();
                self.slots.get(slot).phase = Phase::Device;
                let to = CommandPlace { conn: core.place(self.key()), slot };
                if !core.shared.authenticate(work, to, self.peer.ip()) {
                    if let Some(auth) = &mut self.auth {
                        auth.give_up();
                    }
                    // The host may try again.
                    self.refuse(core, command, Status::COMMAND_INTERRUPTED);
                }
            }
        }
        verdict
    }

    fn answer_receive(
        &mut self,
        core: &mut Core,
        command: CommandSlot,
        message: Result<Vec<u8>, Status>,
        mut buf: IoBuf,
    ) {
        let cid = self.slots.get(command.key()).cid();
        match message {
            Ok(message) => {
                buf.fill(0);
                buf[..message.len()].copy_from_slice(&message);
                let len = buf.len();
                self.slots.release(command);
                let cqe = Cqe { cid, ..Cqe::default() };
                self.out.push_data(core, cqe, Payload::Buf(buf, 0..len));
            }
            Err(status) => self.refuse(core, command, status),
        }
    }

    /// The thread has computed for an Authentication Send, which completes.
    pub(crate) fn finish_authentication(
        &mut self,
        core: &mut Core,
        slot: SlotKey,
        finished: Finished,
    ) {
        if let Some(auth) = &mut self.auth {
            auth.handle_finished(finished);
        }
        if let Some(command) = self.slots.resume(slot) {
            let cid = self.slots.get(slot).cid();
            self.finish(core, command, Cqe { cid, ..Cqe::default() });
        }
    }
}
