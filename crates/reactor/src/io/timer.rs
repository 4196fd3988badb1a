//! Deadlines in order: a heap of times, each with what it stands for.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::time::Instant;

/// Timers that fit before the queue grows.
pub(crate) const TIMER_CAPACITY: usize = 1024;

/// Timers of one core. Those due at the same time expire in the order they were asked for.
#[derive(Debug)]
pub(crate) struct TimerQueue<T> {
    heap: BinaryHeap<Timer<T>>,
    asked: u64,
}

impl<T> TimerQueue<T> {
    /// An empty queue with room for `capacity` timers; with more it grows.
    pub(crate) fn with_capacity(capacity: usize) -> TimerQueue<T> {
        TimerQueue { heap: BinaryHeap::with_capacity(capacity), asked: 0 }
    }

    pub(crate) fn push(&mut self, at: Instant, value: T) {
        self.asked += 1;
        self.heap.push(Timer { at, order: self.asked, value });
    }

    /// The earliest deadline.
    pub(crate) fn next_at(&self) -> Option<Instant> {
        self.heap.peek().map(|timer| timer.at)
    }

    /// Takes the earliest timer if it is due.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<T> {
        if self.next_at()? > now {
            return None;
        }
        self.heap.pop().map(|timer| timer.value)
    }
}

#[derive(Debug)]
struct Timer<T> {
    at: Instant,
    order: u64,
    value: T,
}

impl<T> Ord for Timer<T> {
    /// The greatest of the heap is the earliest.
    fn cmp(&self, other: &Timer<T>) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

impl<T> PartialOrd for Timer<T> {
    fn partial_cmp(&self, other: &Timer<T>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for Timer<T> {
    fn eq(&self, other: &Timer<T>) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T> Eq for Timer<T> {}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn timers_expire_in_order_and_not_early() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut timers = TimerQueue::with_capacity(4);
        for (ms, name) in [(30, 'd'), (10, 'a'), (20, 'b'), (20, 'c')] {
            timers.push(at(ms), name);
        }
        assert_eq!(timers.next_at(), Some(at(10)));
        assert_eq!(timers.pop_due(at(9)), None);
        let due: String = std::iter::from_fn(|| timers.pop_due(at(20))).collect();
        assert_eq!(due, "abc");
        assert_eq!(timers.pop_due(at(30)), Some('d'));
        assert_eq!(timers.next_at(), None);
    }
}
