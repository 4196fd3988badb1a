//! The requests of a send queue in their order, and which of them a completion ends.

use std::collections::VecDeque;

/// The mark of a receive in the number of a work request.
pub(crate) const RECEIVE: u64 = 1 << 63;

/// Requests that are posted, oldest first.
///
/// A send queue completes in order, and a request without a signal ends with the next one that has a completion. When a
/// queue pair fails, also requests without a signal may have one. So a completion ends its request and all older ones,
/// and each ends once.
#[derive(Debug)]
pub(crate) struct SendQueue<E> {
    entries: VecDeque<E>,
    /// The number of the oldest.
    oldest: u64,
    capacity: usize,
}

impl<E> SendQueue<E> {
    pub(crate) fn new(capacity: u32) -> Self {
        let capacity = usize::try_from(capacity).unwrap_or(usize::MAX);
        Self { entries: VecDeque::with_capacity(capacity), oldest: 0, capacity }
    }

    pub(crate) fn room(&self) -> usize {
        self.capacity - self.entries.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The number that the next request will have.
    pub(crate) fn next_number(&self) -> u64 {
        self.oldest + u64::try_from(self.entries.len()).unwrap_or(0)
    }

    /// Notes a request. There must be room.
    pub(crate) fn push(&mut self, entry: E) -> u64 {
        assert!(self.room() > 0, "the send queue is full");
        let number = self.next_number();
        self.entries.push_back(entry);
        number
    }

    /// The request with this number, if it has not ended.
    pub(crate) fn get(&self, number: u64) -> Option<&E> {
        self.entries.get(usize::try_from(number.checked_sub(self.oldest)?).ok()?)
    }

    /// The last `count` were not posted after all.
    pub(crate) fn take_back(&mut self, count: usize, mut each: impl FnMut(E)) {
        for _ in 0..count {
            if let Some(entry) = self.entries.pop_back() {
                each(entry);
            }
        }
    }

    /// The oldest request, if this completion ends it; call until there is none.
    pub(crate) fn pop_until(&mut self, number: u64) -> Option<E> {
        if number < self.oldest || number >= self.next_number() {
            return None;
        }
        self.oldest += 1;
        self.entries.pop_front()
    }

    /// All ends, because no completions will come.
    pub(crate) fn pop(&mut self) -> Option<E> {
        let entry = self.entries.pop_front()?;
        self.oldest += 1;
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_ends_all_up_to_its_own_and_each_once() {
        let mut queue = SendQueue::new(4);
        for n in 0..4 {
            assert_eq!(queue.push(n), n);
        }
        assert_eq!(queue.room(), 0);
        assert_eq!(
            [queue.pop_until(1), queue.pop_until(1), queue.pop_until(1)],
            [Some(0), Some(1), None]
        );
        // Flushed requests without a signal complete by themselves; a number from before means nothing.
        assert_eq!([queue.pop_until(0), queue.pop_until(4)], [None, None]);
        assert_eq!(
            [queue.pop_until(2), queue.pop_until(3), queue.pop_until(3)],
            [Some(2), Some(3), None]
        );
        assert!(queue.is_empty());
        assert_eq!(queue.push(9), 4);
        let mut back = Vec::new();
        queue.take_back(1, |entry| back.push(entry));
        assert_eq!((back, queue.next_number()), (vec![9], 4));
    }
}
