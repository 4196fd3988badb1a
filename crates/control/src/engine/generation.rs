//! The generation counter of the Discovery log (GENCTR), which never goes back: not over a restart, and
//! not when a target is made anew.
//!
//! It begins with the number of changes that have ever been written down, the start itself included,
//! times 2^20. So no more than 2^20 steps may be shown for each change. What is shown without one (a
//! device that goes and comes by itself) counts, too: before the steps are used up, a change without
//! effect is written down.

use std::sync::atomic::Ordering;

use raceline_target::Target;

use super::catalogue::{Key, Record};
use super::{Engine, EngineError};

/// Steps for each change that has been written down.
const GENERATION_BITS: u32 = 20;
/// Steps that one change may take, at most: those of a target that begins with all it exports.
const MARGIN: u64 = 1 << (GENERATION_BITS - 1);

/// A change without effect: nothing has this key.
pub(crate) fn mark() -> Record {
    Record::Remove { key: Key::new(&["generation"]) }
}

/// Whether a change has to be written down before there are more steps; `changes` are written down.
fn is_near_end(generation: u64, changes: u64) -> bool {
    let end = changes.saturating_add(1).saturating_mul(1 << GENERATION_BITS);
    generation.saturating_add(MARGIN) >= end
}

impl Engine {
    /// Where a new target begins.
    pub(super) fn first_generation(&self) -> u64 {
        let first = self.config.changes_before << GENERATION_BITS;
        first.max(self.ended_generation.load(Ordering::Relaxed) + 1)
    }

    /// A target ends: another one goes on from there.
    pub(super) fn note_generation(&self, target: &Target) {
        self.ended_generation.fetch_max(target.generation(), Ordering::Relaxed);
    }

    /// Whether a change must be written down, because of what hosts have been shown without one. To
    /// be asked without the locks that a target's thread may wait for.
    pub(super) fn generation_needs_change(&self) -> bool {
        let changes = self.keeping.position().max(self.config.changes_before);
        self.cores().iter().any(|cores| is_near_end(cores.generation(), changes))
    }

    /// Writes down a change if there must be one.
    pub(super) fn keep_generation(&self) {
        if !self.generation_needs_change() {
            return;
        }
        if let Err(error) = self.change(|_| Ok::<_, EngineError>(())) {
            tracing::warn!("discovery's generation may go back after a restart: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_due_before_the_steps_of_the_last_are_used_up() {
        let first = 7 << GENERATION_BITS;
        assert!(!is_near_end(first, 7));
        assert!(!is_near_end(first + MARGIN - 1, 7));
        assert!(is_near_end(first + MARGIN, 7));
        assert!(!is_near_end(first + MARGIN, 8));
        assert!(is_near_end(u64::MAX, u64::MAX));
    }
}
