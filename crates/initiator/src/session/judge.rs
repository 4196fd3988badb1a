//! The end of a connection: what is in flight comes back first, then tasks are judged.

use raceline_proto::host::Backoff;
use raceline_reactor::Context;

use super::{Ending, Session, SessionEvent, State};
use crate::error::SessionError;
use crate::task::{TaskData, TaskError};

impl Session {
    /// Ends the connection.
    pub(super) fn lose(&mut self, cx: &mut Context<'_>, ending: Ending) {
        // Who has closed it wants no other session, whatever ends this one.
        let is_leaving = matches!(self.state, State::LoggingOut { for_good: true, .. });
        let ending = if is_leaving { Ending::Closed } else { ending };
        let orderly = matches!(ending, Ending::Closed | Ending::Redirected(_));
        self.state = State::Draining(ending);
        self.phase_deadline = None;
        if let Some(link) = &mut self.link
            && !link.closed
        {
            link.closed = true;
            cx.io.close(link.socket, !orderly);
        }
        self.check_drained(cx);
    }

    /// When nothing is in flight any more, the connection is over.
    pub(super) fn check_drained(&mut self, cx: &mut Context<'_>) {
        if self.link.as_ref().is_some_and(|link| !link.closed || link.is_busy()) {
            return;
        }
        self.link = None;
        self.grants.clear();
        self.aborts.clear();
        self.control.clear();
        let State::Draining(ending) = std::mem::replace(&mut self.state, State::Closed) else {
            return;
        };
        self.judge();
        match ending {
            Ending::Lost(error) => self.try_later(cx, error),
            Ending::Redirected(to) => {
                self.target = (to, self.target.1 + 1);
                self.start(cx);
            }
            Ending::Closed => self.end_all(),
        }
    }

    /// Waits for the time of the next attempt, or gives up.
    fn try_later(&mut self, cx: &mut Context<'_>, error: SessionError) {
        let config = self.config.backoff;
        let backoff = self.backoff.get_or_insert_with(|| Backoff::new(config, cx.now));
        self.target = (self.config.address, 0);
        match backoff.next_attempt(cx.now) {
            Some(at) => {
                self.state = State::Lost(at);
                self.events.push_back(SessionEvent::Lost(error));
                self.arm(cx, at);
            }
            None => {
                self.events.push_back(SessionEvent::Failed(error));
                self.end_all();
            }
        }
    }

    /// Decides about each task after a connection: send it again, or end it.
    fn judge(&mut self) {
        for slot in 0..u16::try_from(self.slots.len()).unwrap_or(u16::MAX) {
            let entry = &mut self.slots[usize::from(slot)];
            if !entry.live || !entry.sent {
                continue;
            }
            entry.batch = 0;
            if !matches!(entry.data, TaskData::Read(_)) {
                self.finish(slot, Err(TaskError::UnknownFate));
            } else if entry.timed_out {
                self.finish(slot, Err(TaskError::Timeout));
            } else {
                entry.sent = false;
                entry.tried = true;
                self.pending.push_back(slot);
            }
        }
        self.done.extend(self.held.drain(..));
    }

    /// Ends every task that waits for a connection, for there will be none.
    pub(super) fn end_all(&mut self) {
        self.state = State::Closed;
        self.pending.clear();
        for slot in 0..u16::try_from(self.slots.len()).unwrap_or(u16::MAX) {
            let entry = &self.slots[usize::from(slot)];
            if entry.live {
                let tried = entry.tried;
                let error = if tried { TaskError::Disconnected } else { TaskError::NotSent };
                self.finish(slot, Err(error));
            }
        }
        self.events.push_back(SessionEvent::Closed);
    }
}
