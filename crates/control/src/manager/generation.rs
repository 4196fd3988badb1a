//! The generation counter of the Discovery log (GENCTR), which never goes back: not over a restart, and not
//! when a target is made anew.
//!
//! It begins with the number of all changes ever written down, the start itself included, times 2^20. So at
//! most 2^20 steps may be shown for each change. Steps that are shown without a change (a device that
//! disappears and comes back by itself) count as well: before the steps are used up, a change without
//! effect is written down.

use std::sync::atomic::Ordering;

use raceline_target::Target;

use super::catalogue::{Key, Record};
use super::{Manager, ManagerError};

/// log2 of the steps for each change that has been written down.
const GENERATION_BITS: u32 = 20;
/// Steps that one change may take at most: those of a target that begins with all its exports.
const MARGIN: u64 = 1 << (GENERATION_BITS - 1);

/// The record of a change without effect: nothing has this key.
pub(crate) fn mark() -> Record {
    Record::Remove { key: Key::new(&["generation"]) }
}

/// The record that a daemon starts for the `run`th time with its state, which also is a change without effect.
pub(crate) fn mark_of_start(run: u64) -> Record {
    Record::Remove { key: Key::new(&["generation", "run", &run.to_string()]) }
}

/// The number of the start that a record is about, if it is about one.
pub(crate) fn start_of(record: &Record) -> Option<u64> {
    let Record::Remove { key } = record else { return None };
    match key.parts() {
        [generation, run, number] if generation == "generation" && run == "run" => {
            number.parse().ok()
        }
        _ => None,
    }
}

/// Whether another change has to be written down first; `changes` is the number of changes so far.
fn is_near_end(generation: u64, changes: u64) -> bool {
    let end = changes.saturating_add(1).saturating_mul(1 << GENERATION_BITS);
    generation.saturating_add(MARGIN) >= end
}

impl Manager {
    /// The first generation of a new target.
    pub(super) fn first_generation(&self) -> u64 {
        let first = self.config.changes_before << GENERATION_BITS;
        first.max(self.ended_generation.load(Ordering::Relaxed) + 1)
    }

    /// Notes the generation at which a target ends: the next target continues from it.
    pub(super) fn note_generation(&self, target: &Target) {
        self.ended_generation.fetch_max(target.generation(), Ordering::Relaxed);
    }

    /// Whether a change must be written down, because hosts have been shown steps without one. The caller
    /// must hold no lock that a target's thread may wait for.
    pub(super) fn generation_needs_change(&self) -> bool {
        let changes = self.keeping.position().max(self.config.changes_before);
        self.cores().iter().any(|cores| is_near_end(cores.generation(), changes))
    }

    /// Writes down a change without effect if one is due.
    pub(super) fn keep_generation(&self) {
        if !self.generation_needs_change() {
            return;
        }
        if let Err(error) = self.change(|_| Ok::<_, ManagerError>(())) {
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
