//! Operations that are cut into commands, since one may not move as much.

#![allow(unsafe_code)]

use std::ptr::NonNull;

use raceline_proto::nvme::{Cqe, Direction};

use super::operation::{Limits, Plan};
use super::{CUT, CallerQueues, Finished, Memory, Operation, Refused};
use crate::command::{Command, CommandDone, CommandSummary, Data};
use crate::error::{CommandError, CommandFailure};

/// An operation on its way that is cut into commands.
pub(super) struct Ticket {
    user: u64,
    queue: usize,
    plan: Plan,
    /// Commands whose end has not come.
    outstanding: u32,
    /// Bytes whose commands were submitted.
    submitted_bytes: usize,
    /// Where `memory` begins.
    start: NonNull<u8>,
    memory: Option<Memory>,
    error: Option<CommandFailure>,
    cqe: Cqe,
}

impl CallerQueues {
    /// Submits an operation of several commands, or says what is wrong with it.
    #[inline(never)]
    pub(super) fn submit_cut(
        &mut self,
        queue: usize,
        operation: Operation,
        limits: Limits,
        user: u64,
    ) -> Result<(), Refused> {
        let (plan, mut memory) = operation.plan(limits)?;
        let Some(index) = self.free.pop() else {
            unreachable!("room was looked at");
        };
        let start = memory.as_mut().map_or(NonNull::dangling(), Memory::start);
        self.cut += 1;
        self.tickets[index] = Some(Ticket {
            user,
            queue,
            plan,
            outstanding: 0,
            submitted_bytes: 0,
            start,
            memory,
            error: None,
            cqe: Cqe::default(),
        });
        self.continue_ticket(index);
        Ok(())
    }

    /// Submits the commands of an operation, as far as there is room.
    pub(super) fn continue_ticket(&mut self, index: usize) {
        let Some(ticket) = &mut self.tickets[index] else { return };
        let queue = ticket.queue;
        let memory_len = ticket.memory.as_ref().map_or(0, Memory::len);
        if self.queues.is_closed()
            && let Some(step) = ticket.plan.next(0, memory_len)
        {
            let summary = CommandSummary::new(&step.sqe, false);
            let failure = CommandFailure { summary, error: CommandError::NotSent };
            ticket.error = ticket.error.or(Some(failure));
            ticket.plan.give_up();
        }
        while !ticket.plan.is_done()
            && self.queues.room(queue) > 0
            && self.driver.pool.lent_available() > 0
        {
            let Some(step) = ticket.plan.next(ticket.submitted_bytes, memory_len) else { break };
            debug_assert!(step.offset + step.len <= memory_len);
            // SAFETY: the step is a part of the ticket's memory, of which no other step has a byte.
            // The ticket keeps that memory, and nobody uses it, until `outstanding` is 0: then
            // every buffer has come back with its command and was dropped in `finish_command`.
            let buf = unsafe {
                let start = ticket.start.add(step.offset);
                (step.len > 0).then(|| self.driver.pool.lend(start, step.len)).flatten()
            };
            let data = match (buf, step.direction) {
                (None, _) | (_, Direction::None) => Data::None,
                (Some(buf), Direction::ControllerToHost) => Data::Read(buf),
                (Some(buf), Direction::HostToController) => Data::Write(buf.share()),
            };
            ticket.submitted_bytes += step.len;
            let user = CUT | u64::try_from(index).expect("fewer tickets than 2^63");
            let command = Command::new(step.sqe, data);
            let mut cx = self.driver.cx();
            if let Err(rejected) = self.queues.submit(&mut cx, queue, command, user) {
                // The queue was closed a moment ago.
                let summary = CommandSummary::new(&rejected.command.sqe, false);
                let failure = CommandFailure { summary, error: CommandError::NotSent };
                ticket.error = ticket.error.or(Some(failure));
                ticket.plan.give_up();
            } else {
                ticket.outstanding += 1;
            }
        }
        let (is_whole, has_ended) = (ticket.plan.is_done(), ticket.outstanding == 0);
        self.partial[queue] = if is_whole { None } else { Some(index) };
        if is_whole && has_ended {
            self.finish_ticket(index);
        }
    }

    /// Takes the end of a command of a ticket.
    pub(super) fn finish_command(&mut self, done: CommandDone) {
        let Ok(index) = usize::try_from(done.user & !CUT) else { return };
        drop(done.data); // before its memory can be given back
        let Some(ticket) = self.tickets.get_mut(index).and_then(Option::as_mut) else { return };
        ticket.outstanding -= 1;
        match done.result {
            Ok(cqe) => ticket.cqe = cqe,
            Err(error) => {
                let failure = CommandFailure { summary: done.summary, error };
                ticket.error = ticket.error.or(Some(failure));
                ticket.plan.give_up();
                if self.partial[ticket.queue] == Some(index) {
                    self.partial[ticket.queue] = None;
                }
            }
        }
        if ticket.outstanding == 0 && ticket.plan.is_done() {
            self.finish_ticket(index);
        }
    }

    pub(super) fn finish_ticket(&mut self, index: usize) {
        let Some(ticket) = &mut self.tickets[index] else { return };
        let &mut Ticket { user, queue, error, cqe, ref mut memory, .. } = ticket;
        let result = error.map_or(Ok(cqe), Err);
        self.finished.push_back(Finished { user, queue, result, memory: memory.take() });
        self.tickets[index] = None;
        self.cut -= 1;
        self.free.push(index);
    }
}
