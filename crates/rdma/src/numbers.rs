//! Whose a completion is. It names its queue pair by a number, and a device may give the number of a queue pair that was
//! destroyed to the next one at once.

use std::collections::{HashMap, VecDeque};

use crate::verbs::{Completion, ConnectionId};

/// The connections by the numbers of their queue pairs, and completions that were taken before a number became free.
///
/// Rule: whoever destroys a queue pair takes all completions that are there ([`Self::keep`]) before it forgets the number
/// ([`Self::forget`]). So no completion of a queue pair is left when another one gets its number.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    connections: HashMap<u32, ConnectionId>,
    kept: VecDeque<Completion>,
}

impl Numbers {
    /// A queue pair has this number.
    pub(crate) fn add(&mut self, number: u32, connection: ConnectionId) {
        self.connections.insert(number, connection);
    }

    /// Whose the completions of this number are.
    #[inline]
    pub(crate) fn of(&self, number: u32) -> ConnectionId {
        self.connections.get(&number).copied().unwrap_or(ConnectionId::NOBODY)
    }

    /// The number's queue pair is no more, and neither are its completions.
    pub(crate) fn forget(&mut self, number: u32) {
        self.connections.remove(&number);
    }

    /// A completion to give out later, before all newer ones.
    pub(crate) fn keep(&mut self, done: Completion) {
        self.kept.push_back(done);
    }

    /// Gives out what was kept, up to the room that there is.
    #[inline]
    pub(crate) fn give_kept(&mut self, into: &mut Vec<Completion>) {
        if self.kept.is_empty() {
            return;
        }
        let count = self.kept.len().min(into.capacity() - into.len());
        into.extend(self.kept.drain(..count));
    }
}
