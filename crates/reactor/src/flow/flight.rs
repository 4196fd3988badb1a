//! What the queues of one core have under way, counted exactly.
//!
//! Every host queue tells its core what it has under way when that has changed, once for each receive
//! and each send. The sum is then known without looking at any other queue.

use crate::flow::machine::Machine;
use crate::flow::policy::{self, Regime};

/// What one host queue has under way, in bytes of data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Of reads that were accepted and have not ended.
    pub reading: usize,
    /// Of those reads, what the controller has been asked for.
    pub asked: usize,
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
}

impl Flight {
    /// Nothing is under way.
    #[must_use]
    pub fn new(machine: Machine) -> Flight {
        Flight { machine, load: Load::default(), readers: 0 }
    }

    /// A queue has `now` under way, and had told `told` before.
    #[inline]
    pub fn tell(&mut self, told: &mut Load, now: Load) {
        let sum =
            |all: usize, before: usize, now: usize| all.wrapping_sub(before).wrapping_add(now);
        self.load.reading = sum(self.load.reading, told.reading, now.reading);
        self.load.asked = sum(self.load.asked, told.asked, now.asked);
        self.load.writing = sum(self.load.writing, told.writing, now.writing);
        self.readers =
            sum(self.readers, usize::from(told.reading > 0), usize::from(now.reading > 0));
        *told = now;
    }

    /// The sum over all queues.
    #[must_use]
    pub fn load(&self) -> Load {
        self.load
    }

    /// Queues with reads under way.
    #[must_use]
    pub fn readers(&self) -> usize {
        self.readers
    }

    /// What the caches hold of this many bytes.
    #[must_use]
    pub fn regime_of(&self, bytes: usize) -> Regime {
        policy::regime(&self.machine, bytes)
    }

    /// What the caches hold of the data that all reads bring.
    #[must_use]
    pub fn reading(&self) -> Regime {
        self.regime_of(self.load.reading)
    }

    /// What the caches hold of the data of all writes.
    #[must_use]
    pub fn writing(&self) -> Regime {
        self.regime_of(self.load.writing)
    }

    /// Bytes that the controllers may still be asked for before as much is on its way as the
    /// last-level cache has.
    #[must_use]
    pub fn room_to_ask(&self) -> usize {
        self.machine.llc_bytes.saturating_sub(self.load.asked)
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
        flight.tell(&mut queues[0], Load { reading: 100, asked: 60, writing: 7 });
        flight.tell(&mut queues[1], Load { reading: 50, asked: 50, writing: 0 });
        flight.tell(&mut queues[2], Load { reading: 0, asked: 0, writing: 3 });
        assert_eq!(flight.load(), Load { reading: 150, asked: 110, writing: 10 });
        assert_eq!(flight.readers(), 2);
        flight.tell(&mut queues[0], reading(40));
        assert_eq!(flight.load(), Load { reading: 90, asked: 50, writing: 3 });
        for queue in &mut queues {
            flight.tell(queue, Load::default());
        }
        assert_eq!((flight.load(), flight.readers()), (Load::default(), 0));
    }

    #[test]
    fn no_order_of_queues_changes_what_is_decided() {
        let mut orders = [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]].map(|order| {
            let mut flight = Flight::new(MACHINE);
            let mut queues = [Load::default(); 4];
            for at in order {
                flight.tell(&mut queues[at], reading((at + 1) << 20));
            }
            (flight.reading(), flight.readers(), flight.room_to_ask())
        });
        orders.sort_by_key(|(_, readers, room)| (*readers, *room));
        assert!(orders.iter().all(|order| *order == orders[0]), "{orders:?}");
        assert_eq!(orders[0].0, Regime::Flooded);
    }

    #[test]
    fn a_controller_is_not_asked_for_more_than_the_last_level_cache_has() {
        let mut flight = Flight::new(MACHINE);
        let mut queue = Load::default();
        flight.tell(&mut queue, Load { reading: 90 << 20, asked: 31 << 20, writing: 0 });
        assert_eq!(flight.room_to_ask(), 1 << 20);
        flight.tell(&mut queue, Load { reading: 90 << 20, asked: 40 << 20, writing: 0 });
        assert_eq!(flight.room_to_ask(), 0);
    }
}
