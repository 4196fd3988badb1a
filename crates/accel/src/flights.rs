//! The operations that engines have: slots allocated at start, each with its generation.

use std::collections::VecDeque;

use crate::engine::{RawResult, SlotId};
use crate::work::{Progress, Work};

/// An operation that an engine has, or will get.
#[derive(Debug)]
pub(crate) struct Flight<S, T> {
    pub(crate) token: u64,
    /// Which of the channel's queues.
    pub(crate) queue: usize,
    /// Bytes of each operand.
    pub(crate) total: usize,
    pub(crate) progress: Progress,
    /// Bytes of the step that the engine has.
    pub(crate) step: usize,
    /// Deadline checks that it has seen in an engine.
    pub(crate) checks: u32,
    pub(crate) work: Work<S, T>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Free,
    /// Its turn comes when the queue has room.
    Waiting,
    /// An engine owns its memory.
    Submitted,
    /// An engine has reported it, in this turn.
    Reported(RawResult),
    /// Its owner has been told that it timed out; an engine still owns its memory.
    Quarantined,
}

#[derive(Debug)]
struct Slot<S, T> {
    /// Changes with every step given to an engine, so that no report is taken for that of another step.
    generation: u32,
    phase: Phase,
    /// There unless free. It does not move while an engine owns its memory.
    flight: Option<Flight<S, T>>,
}

/// What a report was about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// An operation in flight; [`Flights::next_reported`] gives it.
    Expected,
    /// One that was given up: its memory is free now.
    Late,
    /// Nothing.
    Bogus,
}

/// All slots of a channel.
#[derive(Debug)]
pub(crate) struct Flights<S, T> {
    slots: Box<[Slot<S, T>]>,
    free: Vec<u32>,
    /// Slots in phase `Reported`, in the order of the reports.
    reported: VecDeque<u32>,
}

impl<S, T> Flights<S, T> {
    /// `count` slots, all free.
    pub(crate) fn new(count: usize) -> Flights<S, T> {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let slot = || Slot { generation: 0, phase: Phase::Free, flight: None };
        let slots: Box<[_]> = (0..count).map(|_| slot()).collect();
        let reported = VecDeque::with_capacity(slots.len());
        Flights { slots, free: (0..count).rev().collect(), reported }
    }

    pub(crate) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Puts an operation in a slot, to wait.
    ///
    /// # Panics
    /// Without [`Flights::has_room`].
    pub(crate) fn insert(&mut self, flight: Flight<S, T>) -> u32 {
        let index = self.free.pop().expect("room was asked for");
        let slot = &mut self.slots[index as usize];
        (slot.phase, slot.flight) = (Phase::Waiting, Some(flight));
        index
    }

    /// An operation that waits, and what its slot will be called when an engine takes it.
    ///
    /// # Panics
    /// If it does not wait.
    pub(crate) fn waiting(&mut self, index: u32) -> (SlotId, &mut Flight<S, T>) {
        let slot = &mut self.slots[index as usize];
        assert_eq!(slot.phase, Phase::Waiting, "slot {index} is in line");
        let id = slot_id(index, slot.generation.wrapping_add(1));
        (id, slot.flight.as_mut().expect("a slot in line is not free"))
    }

    /// An engine has taken an operation that waited.
    pub(crate) fn set_submitted(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        debug_assert_eq!(slot.phase, Phase::Waiting);
        slot.generation = slot.generation.wrapping_add(1);
        slot.phase = Phase::Submitted;
    }

    /// Puts an operation that was reported in line again, for its next step.
    pub(crate) fn set_waiting(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        debug_assert!(matches!(slot.phase, Phase::Reported(_)));
        slot.phase = Phase::Waiting;
    }

    /// Takes an operation that no engine has out of its slot.
    ///
    /// # Panics
    /// If it neither waits nor was reported.
    pub(crate) fn take(&mut self, index: u32) -> Flight<S, T> {
        let slot = &mut self.slots[index as usize];
        assert!(matches!(slot.phase, Phase::Waiting | Phase::Reported(_)), "slot {index} is ours");
        self.free.push(index);
        slot.phase = Phase::Free;
        slot.flight.take().expect("a slot in use is not free")
    }

    /// Takes note of an engine's report.
    pub(crate) fn report(&mut self, queue: usize, id: SlotId, result: RawResult) -> Report {
        let (index, generation) = split(id);
        let Some(slot) = self.slots.get_mut(index as usize) else { return Report::Bogus };
        let of_queue = slot.flight.as_ref().is_some_and(|flight| flight.queue == queue);
        if slot.generation != generation || !of_queue {
            return Report::Bogus;
        }
        match slot.phase {
            Phase::Submitted => {
                slot.phase = Phase::Reported(result);
                self.reported.push_back(index);
                Report::Expected
            }
            Phase::Quarantined => {
                (slot.phase, slot.flight) = (Phase::Free, None);
                self.free.push(index);
                Report::Late
            }
            Phase::Free | Phase::Waiting | Phase::Reported(_) => Report::Bogus,
        }
    }

    /// The next operation that was reported, and how. [`Flights::set_waiting`] or
    /// [`Flights::take`] follows.
    pub(crate) fn next_reported(&mut self) -> Option<(u32, &mut Flight<S, T>, RawResult)> {
        let index = self.reported.pop_front()?;
        let slot = &mut self.slots[index as usize];
        match (slot.phase, &mut slot.flight) {
            (Phase::Reported(result), Some(flight)) => Some((index, flight, result)),
            _ => unreachable!("only slots that were reported are in this list"),
        }
    }

    /// Adds a deadline check to everything that engines have. An operation that then has more than
    /// `most_checks` is quarantined, and `expire` is told.
    pub(crate) fn check_deadlines(
        &mut self,
        most_checks: u32,
        mut expire: impl FnMut(&Flight<S, T>),
    ) {
        for slot in &mut self.slots {
            let (Phase::Submitted, Some(flight)) = (slot.phase, &mut slot.flight) else { continue };
            flight.checks += 1;
            if flight.checks > most_checks {
                expire(flight);
                slot.phase = Phase::Quarantined;
            }
        }
    }

    /// Empties the slots of operations that a queue has, which will report nothing any more.
    pub(crate) fn abandon(&mut self, queue: usize, mut give: impl FnMut(Flight<S, T>)) {
        for slot in &mut self.slots {
            if matches!(slot.phase, Phase::Submitted | Phase::Quarantined)
                && let Some(flight) = slot.flight.take_if(|flight| flight.queue == queue)
            {
                slot.phase = Phase::Free;
                give(flight);
            }
        }
    }
}

fn slot_id(index: u32, generation: u32) -> SlotId {
    SlotId(u64::from(generation) << 32 | u64::from(index))
}

/// Index and generation.
fn split(id: SlotId) -> (u32, u32) {
    let [a, b, c, d, generation @ ..] = id.0.to_le_bytes();
    (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes(generation))
}
