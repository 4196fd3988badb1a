//! Commands that a queue gives back for another path.

use std::collections::VecDeque;

use super::QueuePair;
use super::entry::{Entry, Tried};
use crate::command::{Command, CommandDone, CommandSummary, Hints};
use crate::error::CommandError;

/// What is known of a command whose connection did not complete it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It was not executed, and will not be: it was never sent, or the controller refused it.
    NotExecuted,
    /// It may be executed at any time, which does no harm.
    Harmless,
    /// It may be executed at any time until the fence of its association opens.
    Unknown,
}

/// A command that may run on another path.
#[derive(Debug)]
pub(crate) struct Returned {
    pub(crate) command: Command,
    pub(crate) user: u64,
    pub(crate) fate: Fate,
    /// An earlier path may have executed it, and its fence is open.
    pub(crate) tried: bool,
    /// Its end, if there is no other path.
    pub(crate) error: CommandError,
}

impl Returned {
    /// Whether a path may have executed it.
    pub(crate) fn is_uncertain(&self) -> bool {
        self.tried || self.fate == Fate::Unknown
    }

    /// Its end, because there is no path for it.
    pub(crate) fn end(self, error: CommandError) -> CommandDone {
        // Whether it was executed stays unknown, whatever the reason.
        let error = if self.is_uncertain() { CommandError::UnknownFate } else { error };
        CommandDone {
            user: self.user,
            summary: CommandSummary::new(&self.command.sqe, false),
            result: Err(error),
            data: self.command.data,
        }
    }
}

/// The commands that were given back and not taken yet, each with the batch that may still read its data.
#[derive(Debug, Default)]
pub(super) struct ReturnedList(VecDeque<(u64, Returned)>);

impl ReturnedList {
    /// Takes the command over from its slot.
    #[cold]
    pub(super) fn push(&mut self, entry: &mut Entry, fate: Fate, error: CommandError) {
        let command = Command {
            sqe: entry.sqe,
            data: std::mem::take(&mut entry.data),
            hints: Hints::default(),
        };
        let (user, tried) = (entry.user, entry.tried == Tried::Unknown);
        self.0.push_back((entry.batch, Returned { command, user, fate, tried, error }));
    }
}

impl QueuePair {
    /// Another path may have executed the command that was submitted last.
    #[cold]
    pub(crate) fn note_tried(&mut self) {
        let last = self.pending.back().copied();
        if let Some(entry) = last.and_then(|cid| self.commands.get_mut(cid)) {
            entry.tried = Tried::Unknown;
        }
    }

    /// Whether [`Self::poll_returned`] has something to give.
    #[inline]
    pub(crate) fn has_returned(&self) -> bool {
        !self.returned.0.is_empty()
    }

    /// The next command that is to run on another path. Its data are not in use any more.
    pub(crate) fn poll_returned(&mut self) -> Option<Returned> {
        let batches_done = self.link.as_ref().map_or(u64::MAX, |link| link.batches_done);
        let (_, returned) = self.returned.0.pop_front_if(|(batch, _)| *batch <= batches_done)?;
        Some(returned)
    }
}
