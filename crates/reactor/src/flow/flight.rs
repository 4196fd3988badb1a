//! What the queues of one core have under way, counted exactly.
//!
//! Every host queue tells its core what it has under way when that has changed, once in each turn. The
//! sum is then known without looking at any other queue. A queue with less than 8 KiB under way does
//! not tell.
//!
//! It is also the place where queues say that somebody polls for their commands ([`Flight::poll_for`]).

use crate::flow::machine::Machine;
use crate::flow::policy::{self, Regime};
use crate::flow::turn_share::TurnShare;

/// What one host queue has under way, in bytes of data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Of reads that were accepted and have not ended.
    pub reading: usize,
    /// Of writes that were accepted and have not ended.
    pub writing: usize,
}

/// What one core has under way, and the caches that it has for that.
#[derive(Clone, Copy, Debug)]
pub struct Flight {
    machine: Machine,
    load: Load,
    /// Queues with reads under way.
    readers: usize,
    /// Who has commands under way whose end the core polls for.
    polled: usize,
    /// What its devices may still do by themselves in this turn.
    pub turn: TurnShare,
}

impl Flight {
    /// Nothing is under way.
    #[must_use]
    pub fn new(machine: Machine) -> Flight {
        Flight { machine, load: Load::default(), readers: 0, polled: 0, turn: TurnShare::default() }
    }

    /// Takes note that a queue has `now` under way. The queue's last note was `told`.
    #[inline]
    pub fn tell(&mut self, told: &mut Load, now: Load) {
        if *told != now {
            self.change(*told, now);
            *told = now;
        }
    }

    fn change(&mut self, told: Load, now: Load) {
        let sum = |all: usize, before, now| all.wrapping_sub(before).wrapping_add(now);
        let is_reading = |load: Load| usize::from(load.reading > 0);
        self.load.reading = sum(self.load.reading, told.reading, now.reading);
        self.load.writing = sum(self.load.writing, told.writing, now.writing);
        self.readers = sum(self.readers, is_reading(told), is_reading(now));
    }

    /// The sum over all queues.
    #[inline]
    #[must_use]
    pub fn load(&self) -> Load {
        self.load
    }

    /// Queues with reads under way.
    #[inline]
    #[must_use]
    pub fn readers(&self) -> usize {
        self.readers
    }

    /// Takes note whether somebody has commands under way whose end this core polls for. `told` is what was said last, and
    /// at first false.
    #[inline]
    pub fn poll_for(&mut self, told: &mut bool, now: bool) {
        if *told != now {
            self.polled = match now {
                true => self.polled.wrapping_add(1),
                false => self.polled.wrapping_sub(1),
            };
            *told = now;
        }
    }

    /// Whether there are such commands.
    #[inline]
    #[must_use]
    pub fn is_polled(&self) -> bool {
        self.polled > 0
    }

    /// What the caches hold of this many bytes.
    #[must_use]
    pub fn regime_of(&self, bytes: usize) -> Regime {
        policy::regime(&self.machine, bytes)
    }

    /// What the caches hold of the data that all reads bring.
    #[inline]
    #[must_use]
    pub fn reading(&self) -> Regime {
        self.regime_of(self.load.reading)
    }

    /// What the caches hold of the data of all writes.
    #[inline]
    #[must_use]
    pub fn writing(&self) -> Regime {
        self.regime_of(self.load.writing)
    }

    /// Bytes that one queue may have asked its controller for, so that all reading queues together ask
    /// for no more than the last-level cache has.
    #[must_use]
    pub fn share_to_ask(&self) -> usize {
        self.machine.llc_bytes / self.readers.max(1)
    }
}

impl Load {
    /// Whether the core has to be told of it: less than this of one queue changes no decision.
    #[inline]
    #[must_use]
    pub fn counts(&self) -> bool {
        (self.reading | self.writing) >= policy::IN_PLACE_BYTES_MIN
    }
}

impl Default for Flight {
    /// With the caches of this machine.
    fn default() -> Flight {
        Flight::new(Machine::current())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: Machine = Machine { l2_bytes: 1 << 20, llc_bytes: 32 << 20, llc_cores: 8 };

    fn reading(bytes: usize) -> Load {
        Load { reading: bytes, ..Load::default() }
    }

    #[test]
    fn the_core_knows_the_sum_of_its_queues() {
        let mut flight = Flight::new(MACHINE);
        let mut queues = [Load::default(); 3];
        flight.tell(&mut queues[0], Load { reading: 100, writing: 7 });
        flight.tell(&mut queues[1], Load { reading: 50, writing: 0 });
        flight.tell(&mut queues[2], Load { reading: 0, writing: 3 });
        assert_eq!(flight.load(), Load { reading: 150, writing: 10 });
        assert_eq!((flight.readers(), flight.share_to_ask()), (2, 16 << 20));
        flight.tell(&mut queues[0], reading(40));
        assert_eq!(flight.load(), Load { reading: 90, writing: 3 });
        for queue in &mut queues {
            flight.tell(queue, Load::default());
        }
        assert_eq!((flight.load(), flight.readers()), (Load::default(), 0));
        assert_eq!(flight.share_to_ask(), MACHINE.llc_bytes);
    }

    #[test]
    fn the_core_polls_as_long_as_one_of_them_asks_for_it() {
        let mut flight = Flight::new(MACHINE);
        let mut told = [false; 2];
        flight.poll_for(&mut told[0], false);
        assert!(!flight.is_polled());
        for at in [0, 1, 0] {
            flight.poll_for(&mut told[at], true);
        }
        flight.poll_for(&mut told[0], false);
        flight.poll_for(&mut told[0], false);
        assert!(flight.is_polled());
        flight.poll_for(&mut told[1], false);
        assert!(!flight.is_polled());
    }

    #[test]
    fn no_order_of_queues_changes_what_is_decided() {
        let decided = [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]].map(|order| {
            let mut flight = Flight::new(MACHINE);
            let mut queues = [Load::default(); 4];
            for at in order {
                flight.tell(&mut queues[at], reading((at + 1) << 20));
            }
            (flight.reading(), flight.readers(), flight.share_to_ask())
        });
        assert_eq!(decided, [(Regime::Flooded, 4, 8 << 20); 3]);
    }
}
