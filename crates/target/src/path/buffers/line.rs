//! One line of commands that wait for an I/O buffer: first come, first served, or by the weights of hosts.
//!
//! While no host has a weight, no command of the line belongs to a part of the core, and the line is a queue. Otherwise
//! the parts are served by start-time fair queueing ([`crate::path::shares`]), each first come, first served. A line has
//! clocks of its own, because buffers of one size are a resource of their own: a part is charged for the buffers that its
//! commands have waited for.
//!
//! No part starves: a part waits until the clocks of the others have passed its own, and each command of theirs brings
//! them nearer to that.

use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, VecDeque};

use crate::path::shares::{Clock, ShareId, Shares, charge_of};
use crate::records::limited::Weight;

/// A command that waits.
#[derive(Clone, Copy, Debug)]
struct Waiter<Command> {
    command: Command,
    /// Bytes of data.
    bytes: u32,
}

/// The commands of one part.
#[derive(Debug)]
struct PartLine<Command> {
    queue: VecDeque<Waiter<Command>>,
    clock: Clock,
}

impl<Command> PartLine<Command> {
    /// A part that is new has nothing to catch up with, or who connects again and again would.
    fn new(clock: Clock) -> Self {
        Self { queue: VecDeque::new(), clock }
    }
}

/// Whose command is next.
enum Next {
    Plain,
    Part(ShareId),
}

/// One line.
#[derive(Debug)]
pub(super) struct Line<Command> {
    /// The commands of connections without a part. Together they count as one part of the default weight.
    plain: PartLine<Command>,
    /// By [`ShareId::index`].
    parts: Vec<PartLine<Command>>,
    /// The parts that have commands, with their clocks; none twice.
    waiting: BinaryHeap<Reverse<(Clock, ShareId)>>,
    /// The clock of the part that was served last.
    clock: Clock,
}

impl<Command> Default for Line<Command> {
    fn default() -> Self {
        Self {
            plain: PartLine::new(Clock::default()),
            parts: Vec::new(),
            waiting: BinaryHeap::new(),
            clock: Clock::default(),
        }
    }
}

impl<Command: Copy> Line<Command> {
    pub(super) fn is_empty(&self) -> bool {
        self.plain.queue.is_empty() && self.waiting.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        let in_parts: usize = self.parts.iter().map(|part| part.queue.len()).sum();
        self.plain.queue.len() + in_parts
    }

    /// A command with this number of data bytes waits behind all others of its part.
    pub(super) fn push(&mut self, command: Command, bytes: usize, share: Option<ShareId>) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.push_waiter(Waiter { command, bytes }, share);
    }

    fn push_waiter(&mut self, waiter: Waiter<Command>, share: Option<ShareId>) {
        let Some(share) = share else {
            if self.plain.queue.is_empty() {
                self.plain.clock = self.plain.clock.caught_up(self.clock);
            }
            return self.plain.queue.push_back(waiter);
        };
        if self.parts.len() <= share.index() {
            let clock = self.clock;
            self.parts.resize_with(share.index() + 1, || PartLine::new(clock));
        }
        let part = &mut self.parts[share.index()];
        if part.queue.is_empty() {
            part.clock = part.clock.caught_up(self.clock);
            self.waiting.push(Reverse((part.clock, share)));
        }
        part.queue.push_back(waiter);
    }

    fn next(&self) -> Option<Next> {
        let Some(Reverse((clock, share))) = self.waiting.peek() else {
            return (!self.plain.queue.is_empty()).then_some(Next::Plain);
        };
        let is_plain = !self.plain.queue.is_empty() && self.plain.clock <= *clock;
        Some(if is_plain { Next::Plain } else { Next::Part(*share) })
    }

    /// The command that gets the next buffer.
    pub(super) fn front(&self) -> Option<Command> {
        let queue = match self.next()? {
            Next::Plain => &self.plain.queue,
            Next::Part(share) => &self.parts[share.index()].queue,
        };
        queue.front().map(|waiter| waiter.command)
    }

    /// Takes the command that [`Self::front`] gives out of the line, and charges its part. Gives whether there was one.
    pub(super) fn pop(&mut self, shares: &Shares) -> bool {
        match self.next() {
            None => return false,
            Some(Next::Plain) => {
                let waiter = self.plain.queue.pop_front();
                // Nobody competes for the buffers while all commands are of this kind.
                if let Some(waiter) = waiter.filter(|_| !self.waiting.is_empty()) {
                    self.clock = self.clock.max(self.plain.clock);
                    self.plain.clock = waiter.charge(self.plain.clock, Weight::DEFAULT);
                }
            }
            Some(Next::Part(share)) => {
                let part = &mut self.parts[share.index()];
                self.clock = self.clock.max(part.clock);
                if let Some(waiter) = part.queue.pop_front() {
                    part.clock = waiter.charge(part.clock, shares.weight(share));
                }
                let Some(mut first) = self.waiting.peek_mut() else { return true };
                if part.queue.is_empty() {
                    PeekMut::pop(first);
                } else {
                    *first = Reverse((part.clock, share));
                }
            }
        }
        true
    }

    /// Removes the commands that no longer wait.
    pub(super) fn retain(&mut self, keep: impl Fn(Command) -> bool) {
        self.plain.queue.retain(|waiter| keep(waiter.command));
        for Reverse((_, share)) in &self.waiting {
            self.parts[share.index()].queue.retain(|waiter| keep(waiter.command));
        }
        let parts = &self.parts;
        self.waiting.retain(|Reverse((_, share))| !parts[share.index()].queue.is_empty());
    }

    /// These commands belong to another part from now on, or to none. They wait behind those of that part.
    pub(super) fn regroup(&mut self, is_meant: impl Fn(Command) -> bool, share: Option<ShareId>) {
        let waiting = self.waiting.iter().map(|Reverse((_, share))| share.index());
        let mut moved: Vec<_> = self.plain.queue.iter().copied().collect();
        moved.extend(waiting.flat_map(|index| &self.parts[index].queue).copied());
        moved.retain(|waiter| is_meant(waiter.command));
        if moved.is_empty() {
            return;
        }
        self.retain(|command| !is_meant(command));
        moved.into_iter().for_each(|waiter| self.push_waiter(waiter, share));
    }

    /// A part has ended: the next one in its place begins without its clock.
    pub(super) fn forget(&mut self, share: ShareId) {
        let Some(part) = self.parts.get_mut(share.index()) else { return };
        let part = std::mem::replace(part, PartLine::new(self.clock));
        self.waiting.retain(|Reverse((_, waiting))| *waiting != share);
        // Commands of connections that are gone, which are dropped when their turn comes.
        part.queue.into_iter().for_each(|waiter| self.push_waiter(waiter, None));
    }
}

impl<Command> Waiter<Command> {
    /// The clock of its part when it was served.
    fn charge(&self, clock: Clock, weight: Weight) -> Clock {
        clock.after(charge_of(self.bytes) as u64, weight)
    }
}

#[cfg(test)]
mod tests;
