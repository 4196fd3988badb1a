//! The end of a connection: what is in flight comes back first, then commands are judged.

use std::io;
use std::sync::Arc;

use raceline_proto::nvme::CommandId;
use raceline_proto::nvme::command::Fuse;
use raceline_proto::tcp::FatalError;
use raceline_reactor::{Context, SendBatch};

use super::entry::Tried;
use super::{Ending, Fate, QueueEvent, QueuePair, State, TERM_REQ_TIMEOUT};
use crate::error::{CommandError, HostError};

impl QueuePair {
    /// Closes the queue. Everything outstanding ends with an error; then [`QueueEvent::Closed`] comes.
    pub fn close(&mut self, cx: &mut Context<'_>) {
        match &mut self.state {
            State::Closed => {}
            State::Lost => self.end_all(),
            State::Draining(ending) => *ending = Ending::Closed,
            State::Tcp | State::IcResp | State::Connect(_) | State::Proving | State::Ready => {
                self.lose(cx, Ending::Closed, None);
            }
        }
    }

    /// Gives the connection up, as if it had broken: the controller was lost elsewhere.
    pub fn disconnect(&mut self, cx: &mut Context<'_>, error: HostError) {
        if !matches!(self.state, State::Lost | State::Draining(_) | State::Closed) {
            self.lose(cx, Ending::Lost(error), None);
        }
    }

    /// Ends the connection. With `fatal`, tells the peer why, if that can be sent at once.
    pub(super) fn lose(&mut self, cx: &mut Context<'_>, ending: Ending, fatal: Option<FatalError>) {
        let ending = match (ending, self.refusal()) {
            (Ending::Lost(_), Some(refusal)) => Ending::Lost(refusal),
            (ending, _) => ending,
        };
        self.state = State::Draining(ending);
        self.phase_deadline = None;
        self.proving = None;
        self.renewal.forget_use();
        let idle = self.link.as_ref().is_some_and(|link| !link.sending);
        if let (Some(fatal), true) = (fatal, idle) {
            self.send_with(cx, |queue, batch| batch.append(|out| queue.term_req(&fatal, out)));
        }
        if self.link.as_ref().is_some_and(|link| link.sending && idle) {
            self.expect(cx, TERM_REQ_TIMEOUT); // closed when it has left
        } else {
            let orderly = matches!(self.state, State::Draining(Ending::Closed));
            self.close_socket(cx, !orderly);
        }
        self.check_drained(cx);
    }

    pub(super) fn close_socket(&mut self, cx: &mut Context<'_>, reset: bool) {
        if let Some(link) = &mut self.link
            && !link.closed
        {
            link.closed = true;
            cx.io.close(link.socket, reset);
            self.forget_plan(cx);
        }
        self.close_rdma(cx);
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
            self.close_socket(cx, false);
            self.check_drained(cx);
        } else if let Err(error) = result {
            let error = HostError::Broken(self.config.address, Arc::new(error));
            self.lose(cx, Ending::Lost(error), None);
        }
    }

    /// When nothing is in flight any more, the connection is over.
    pub(super) fn check_drained(&mut self, cx: &mut Context<'_>) {
        if !matches!(self.state, State::Draining(_)) {
            return;
        }
        if self.link.as_ref().is_some_and(|link| !link.closed || link.receiving || link.sending) {
            return;
        }
        if self.rdma.as_ref().is_some_and(|rdma| !rdma.is_over()) {
            return;
        }
        // The data that engines have come back first.
        if self.with_engines > 0 {
            return;
        }
        self.link = None;
        self.rdma = None;
        self.grants.clear();
        let State::Draining(ending) = std::mem::replace(&mut self.state, State::Lost) else {
            return;
        };
        self.judge();
        match ending {
            Ending::Lost(error) => self.events.push_back(QueueEvent::Lost(error)),
            Ending::RetryWithFlow => {
                self.disable_sq_flow = false;
                self.start(cx);
            }
            Ending::RetryOverTls => self.start(cx),
            Ending::Closed => self.end_all(),
        }
    }

    /// Decides about each command after a connection: send it again, or end it. Admin commands
    /// always end: the next association must be brought up before it takes any.
    fn judge(&mut self) {
        let admin = self.config.qid.is_admin();
        let parted = self.parted_half();
        let ids: Vec<CommandId> = self.commands.ids().collect(); // once per connection
        for cid in ids {
            let Some(entry) = self.commands.get_mut(cid) else { continue };
            let is_half = entry.sqe.fuse() != Fuse::Normal;
            let harmless = !entry.sent || entry.only_reads(admin);
            if entry.is_own() {
                self.remove_connect(cid);
            } else if self.config.failover && entry.may_move() {
                self.give_back(cid);
            } else if is_half && !entry.sent && (self.config.failover || parted == Some(cid)) {
                // There may be another path for both, now.
                self.finish(cid, Err(CommandError::NotSent));
            } else if !harmless {
                self.finish(cid, Err(CommandError::UnknownFate));
            } else if entry.timed_out {
                self.finish(cid, Err(CommandError::Timeout));
            } else if admin {
                let error =
                    if entry.sent { CommandError::Disconnected } else { CommandError::NotSent };
                self.finish(cid, Err(error));
            } else if entry.sent {
                entry.sent = false;
                entry.tried = Tried::Harmless;
                entry.batch = 0;
                entry.forget_received();
                self.pending.push_back(cid);
                self.counters.resubmitted.add(1);
            }
        }
        self.pending.retain(|&cid| self.commands.get(cid).is_some());
        self.done.extend(self.held.drain(..));
    }

    /// The second half of a fused operation that was not sent, though its first half was: it never goes alone.
    fn parted_half(&self) -> Option<CommandId> {
        let fuse = |cid: CommandId| self.commands.get(cid).map(|entry| entry.sqe.fuse());
        let mut waiting = self.pending.iter().copied();
        let first = waiting.find(|&cid| fuse(cid).is_some_and(|fuse| fuse != Fuse::Normal))?;
        (fuse(first) == Some(Fuse::Second)).then_some(first)
    }

    /// Gives a command back for another path.
    fn give_back(&mut self, cid: CommandId) {
        let Some(mut entry) = self.commands.remove(cid) else { return };
        self.under_way.end(&entry);
        let error = match (entry.sent, entry.only_reads(false)) {
            (false, _) => CommandError::NotSent,
            (true, true) => CommandError::Disconnected,
            (true, false) => CommandError::UnknownFate,
        };
        let fate = match (entry.sent, entry.may_linger()) {
            (false, _) => Fate::NotExecuted,
            (true, true) => Fate::Harmless,
            (true, false) => Fate::Unknown,
        };
        entry.batch = 0; // the batch is gone with its connection
        self.returned.push(&mut entry, fate, error);
    }

    /// Ends every command that waits for a connection, for there will be none.
    fn end_all(&mut self) {
        self.state = State::Closed;
        self.pending.clear();
        let ids: Vec<CommandId> = self.commands.ids().collect(); // once
        for cid in ids {
            let error = match self.commands.get(cid).map(|entry| entry.tried) {
                Some(Tried::Unknown) => CommandError::UnknownFate,
                Some(Tried::Harmless) => CommandError::Disconnected,
                Some(Tried::Never) | None => CommandError::NotSent,
            };
            self.finish(cid, Err(error));
        }
        self.events.push_back(QueueEvent::Closed);
    }
}
