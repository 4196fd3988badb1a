//! Commands that wait: for a path, or for the time from which they may be sent again.

use std::sync::Arc;

use raceline_proto::nvme::command::Fuse;
use raceline_reactor::{Context, Token};

use super::{HELD_INTERVAL, PATH_BITS, PathSet, PathSetEvent, TIMER_PATH};
use crate::command::{Command, CommandDone, Rejected};
use crate::error::{CommandError, RejectedReason};
use crate::multipath::{Access, Fence};
use crate::queue::{Fate, Returned};
use crate::queue_set::ReturnedFrom;

/// A command that waits.
#[derive(Debug)]
pub(super) struct Held {
    queue: usize,
    command: Returned,
    /// Of a command of unknown fate: the association that may execute it.
    fence: Option<Arc<Fence>>,
}

impl Held {
    /// A new command, for which there is no path now.
    pub(super) fn new(queue: usize, command: Command, user: u64) -> Self {
        let (fate, error) = (Fate::NotExecuted, CommandError::NoPath);
        let command = Returned { command, user, fate, tried: false, error };
        Self { queue, command, fence: None }
    }

    /// The end of a command that cannot wait.
    pub(super) fn end(self) -> CommandDone {
        self.command.end(CommandError::NotSent)
    }

    fn fuse(&self) -> Fuse {
        self.command.command.sqe.fuse()
    }

    /// Whether it may be sent.
    fn is_free(&self, now: std::time::Instant) -> bool {
        self.command.fate != Fate::Unknown
            || self.fence.as_ref().is_some_and(|fence| fence.is_open(now))
    }
}

impl PathSet {
    /// Takes a command that the path at this position did not complete.
    pub(super) fn take_returned(&mut self, cx: &Context<'_>, at: usize, from: ReturnedFrom) {
        let ReturnedFrom { queue, returned, fence } = from;
        if self.closed {
            let error = returned.error;
            self.done.push_back((queue, returned.end(error)));
            return;
        }
        if let CommandError::Status(status) = returned.error {
            let member = &mut self.members[at];
            member.note_refused(returned.command.sqe.namespace_id(), status, cx.now);
            self.events.push_back(PathSetEvent::Outdated { path: member.id });
        }
        self.held.push_back(Held { queue, command: returned, fence });
    }

    /// Accepts half of a fused operation. The first half stays here until the second one comes, for the path may change
    /// between the two. Then both go by one path, or both wait, or both end.
    ///
    /// # Errors
    /// Gives the command back when the queue does not take it.
    #[cold]
    pub(super) fn submit_half(
        &mut self,
        cx: &mut Context<'_>,
        queue: usize,
        command: Command,
        user: u64,
    ) -> Result<(), Rejected> {
        if self.closed {
            return Err(Rejected { reason: RejectedReason::Closed, command });
        }
        let is_first = command.sqe.fuse() == Fuse::First;
        if self.shared_room(queue) < if is_first { 2 } else { 1 } {
            return Err(Rejected { reason: RejectedReason::Full, command });
        }
        let half = Held::new(queue, command, user);
        let place = self.firsts.iter().position(|first| first.queue == queue);
        let before = place.map(|place| self.firsts.swap_remove(place));
        match before {
            _ if is_first => {
                // The second half of the one before never came.
                self.done.extend(before.map(|before| (queue, before.end())));
                self.firsts.push(half);
            }
            Some(first) => {
                self.held.extend([first, half]);
                self.submit_held(cx);
            }
            None => self.done.push_back((queue, half.end())),
        }
        Ok(())
    }

    /// Sends the commands that wait, as far as they may be sent and have a path; ends those for which no path is left.
    pub(super) fn submit_held(&mut self, cx: &mut Context<'_>) {
        if self.closed {
            let ended = self.firsts.drain(..).map(|first| (first.queue, first.end()));
            self.done.extend(ended);
        }
        let mut left = self.held.len();
        while left > 0
            && let Some(held) = self.held.pop_front()
        {
            left -= 1;
            if held.fuse() == Fuse::First
                && let Some(second) = self.held.pop_front()
            {
                left -= 1;
                self.try_fused(cx, held, second);
            } else if let Some(held) = self.try_held(cx, held) {
                self.held.push_back(held);
            }
        }
        if !self.held.is_empty() {
            let at = cx.now + HELD_INTERVAL;
            if self.alarm.is_none_or(|alarm| at < alarm || alarm < cx.now) {
                self.alarm = Some(at);
                let index = self.token.index + (TIMER_PATH << PATH_BITS);
                cx.io.timer(at, Token { index, ..self.token });
            }
        }
    }

    /// Sends both halves of a fused operation by one path, ends both, or has both wait.
    fn try_fused(&mut self, cx: &mut Context<'_>, first: Held, second: Held) {
        debug_assert_eq!((second.queue, second.fuse()), (first.queue, Fuse::Second));
        let nsid = first.command.command.sqe.namespace_id();
        if self.closed || !self.has_hope(cx, nsid) {
            return self.end_fused([first, second]);
        }
        let at = self.choose(cx.now, first.queue, nsid);
        let Some(at) = at.filter(|&at| self.members[at].room(first.queue) >= 2) else {
            return self.held.extend([first, second]);
        };
        // Before the first half is sent: it cannot be called back.
        let suits = |half: &Held| self.members[at].takes(half.queue, &half.command.command);
        if !suits(&first) || !suits(&second) {
            return self.end_fused([first, second]);
        }
        for half in [first, second] {
            let Held { queue, command: Returned { command, user, .. }, .. } = half;
            let sent = self.members[at].submit(cx, queue, command, user, self.counts_paths);
            debug_assert!(sent.is_ok(), "the queue has room, and takes both: {sent:?}");
            if let Err(Rejected { command, .. }) = sent {
                self.done.push_back((queue, Held::new(queue, command, user).end()));
            }
        }
    }

    fn end_fused(&mut self, halves: [Held; 2]) {
        self.done.extend(halves.map(|half| (half.queue, half.end())));
    }

    /// Sends a command or ends it, or gives it back when it has to wait.
    fn try_held(&mut self, cx: &mut Context<'_>, held: Held) -> Option<Held> {
        let nsid = held.command.command.sqe.namespace_id();
        if self.closed || !self.has_hope(cx, nsid) {
            let (queue, returned) = (held.queue, held.command);
            let error = if self.closed { CommandError::NotSent } else { CommandError::NoPath };
            self.done.push_back((queue, returned.end(error)));
            return None;
        }
        if !held.is_free(cx.now) {
            return Some(held);
        }
        let Some(at) = self.choose(cx.now, held.queue, nsid) else { return Some(held) };
        let is_uncertain = held.command.is_uncertain();
        let Held { queue, command: Returned { command, user, fate, tried, error }, fence } = held;
        match self.members[at].submit(cx, queue, command, user, self.counts_paths) {
            Ok(()) => {
                // Others have not been on a path before.
                if !matches!(error, CommandError::NoPath | CommandError::NotSent) {
                    self.counters.resubmitted.add(1);
                }
                if is_uncertain {
                    self.members[at].note_tried(queue);
                }
                None
            }
            Err(rejected) if rejected.reason == RejectedReason::BadData => {
                let command = rejected.command;
                let returned = Returned { command, user, fate, tried, error };
                self.done.push_back((queue, returned.end(CommandError::NotSent)));
                None
            }
            Err(rejected) => {
                let command = Returned { command: rejected.command, user, fate, tried, error };
                Some(Held { queue, command, fence })
            }
        }
    }

    /// Whether a path may lead to the namespace now or later.
    fn has_hope(&self, cx: &Context<'_>, nsid: raceline_proto::nvme::NamespaceId) -> bool {
        let fast_fail = self.config.multipath.as_ref().and_then(|it| it.fast_io_fail);
        self.members.iter().any(|member| member.access(nsid, cx.now, fast_fail) != Access::Lost)
    }
}
