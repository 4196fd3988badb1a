//! Commands that wait: for a path, or for the time from which they may be sent again.

use std::sync::Arc;

use raceline_proto::nvme::command::Fuse;
use raceline_reactor::{Context, Token};

use super::{HELD_INTERVAL, PATH_BITS, PathSet, PathSetEvent, TIMER_PATH};
use crate::command::{Command, CommandDone};
use crate::error::CommandError;
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
        Self { queue, command: Returned { command, user, fate, error }, fence: None }
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

    /// Whether the command that waits since last is the first half of a fused operation on this queue.
    pub(super) fn is_first_held(&self, queue: usize) -> bool {
        self.held.back().is_some_and(|held| held.queue == queue && held.fuse() == Fuse::First)
    }

    /// Sends the commands that wait, as far as they may be sent and have a path; ends those for which no path is left.
    pub(super) fn submit_held(&mut self, cx: &mut Context<'_>) {
        let mut left = self.held.len();
        while left > 0
            && let Some(held) = self.held.pop_front()
        {
            left -= 1;
            if held.fuse() == Fuse::First {
                let is_second =
                    |next: &mut Held| next.fuse() == Fuse::Second && next.queue == held.queue;
                let second = if left > 0 { self.held.pop_front_if(is_second) } else { None };
                left -= usize::from(second.is_some());
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
    fn try_fused(&mut self, cx: &mut Context<'_>, first: Held, second: Option<Held>) {
        let nsid = first.command.command.sqe.namespace_id();
        let Some(second) = second else {
            self.held.push_back(first); // its other half comes next
            return;
        };
        if self.closed || !self.has_hope(cx, nsid) {
            for half in [first, second] {
                self.done.push_back((half.queue, half.end()));
            }
            return;
        }
        let at = self.choose(cx.now, first.queue, nsid);
        let at = at.filter(|&at| self.members[at].room(first.queue) >= 2);
        let Some(at) = at else {
            self.held.extend([first, second]);
            return;
        };
        for half in [first, second] {
            let Held { queue, command: Returned { command, user, fate, error }, .. } = half;
            if let Err(rejected) =
                self.members[at].submit(cx, queue, command, user, self.counts_paths)
            {
                let returned = Returned { command: rejected.command, user, fate, error };
                self.done.push_back((queue, returned.end(CommandError::NotSent)));
            }
        }
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
        let Held { queue, command: Returned { command, user, fate, error }, fence } = held;
        match self.members[at].submit(cx, queue, command, user, self.counts_paths) {
            Ok(()) => None,
            Err(rejected) if rejected.reason == crate::RejectedReason::BadData => {
                let fate = Fate::NotExecuted;
                let returned = Returned { command: rejected.command, user, fate, error };
                self.done.push_back((queue, returned.end(CommandError::NotSent)));
                None
            }
            Err(rejected) => {
                let command = Returned { command: rejected.command, user, fate, error };
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
