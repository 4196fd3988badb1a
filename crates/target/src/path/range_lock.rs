//! Locks on LBA ranges of a device across all cores, for fused Compare and Write.
//!
//! One core per device (its *warden*) orders the requests: overlapping ranges are granted one
//! after another. To grant, it fences the range on every core: a core holds back new writes to
//! the range, waits for its writes in flight there, and says so. Only fused commands pay for
//! this; other writes pay for one comparison with an empty list.

use std::collections::VecDeque;
use std::ops::Range;

/// Names one lock of a warden.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct LockId(pub(crate) u64);

/// One request at its warden.
#[derive(Debug)]
struct Lock<W> {
    id: LockId,
    bytes: Range<u64>,
    who: W,
    /// Earlier locks that overlap it.
    behind: usize,
    /// Cores that have not fenced the range yet; `None`: waits for an earlier lock.
    unfenced: Option<usize>,
    /// It waits for no earlier lock: its requester only wants what is under way to come before what follows.
    is_barrier: bool,
}

/// Orders the locks of one device. `W` names the requester.
#[derive(Debug)]
pub(crate) struct Warden<W> {
    /// In the order of their names.
    locks: VecDeque<Lock<W>>,
    next: u64,
    cores: usize,
}

/// What the warden's core must tell others.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Order<W> {
    /// All cores: hold back writes to the range.
    Fence(LockId, Range<u64>),
    /// All cores: release writes to the range.
    Unfence(LockId),
    /// The requester: the range is yours.
    Granted(LockId, W),
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

impl<W: Clone> Warden<W> {
    pub(crate) fn new(cores: usize) -> Self {
        Self { locks: VecDeque::new(), next: 0, cores }
    }

    /// A requester wants a range.
    pub(crate) fn request(&mut self, bytes: Range<u64>, who: W, orders: &mut Vec<Order<W>>) {
        self.add(bytes, who, false, orders);
    }

    /// Writes to a range that come from here on have to wait until those under way have ended, also while earlier locks
    /// overlap it. The lock is to be released when it is granted.
    pub(crate) fn barrier(&mut self, bytes: Range<u64>, who: W, orders: &mut Vec<Order<W>>) {
        self.add(bytes, who, true, orders);
    }

    fn add(&mut self, bytes: Range<u64>, who: W, is_barrier: bool, orders: &mut Vec<Order<W>>) {
        let id = LockId(self.next);
        self.next += 1;
        let behind = self.locks.iter().filter(|lock| overlap(&lock.bytes, &bytes)).count();
        let mut lock = Lock { id, bytes, who, behind, unfenced: None, is_barrier };
        lock.advance(self.cores, orders);
        self.locks.push_back(lock);
    }

    fn place(&self, id: LockId) -> Option<usize> {
        self.locks.binary_search_by_key(&id, |lock| lock.id).ok()
    }

    /// A core has fenced a lock's range.
    pub(crate) fn fenced(&mut self, id: LockId, orders: &mut Vec<Order<W>>) {
        let Some(place) = self.place(id) else { return };
        let lock = &mut self.locks[place];
        let left = lock.unfenced.as_mut().expect("only a fencing lock is acknowledged");
        *left -= 1;
        if *left == 0 {
            orders.push(Order::Granted(id, lock.who.clone()));
        }
    }

    /// The holder is done.
    pub(crate) fn release(&mut self, id: LockId, orders: &mut Vec<Order<W>>) {
        orders.push(Order::Unfence(id));
        let Some(place) = self.place(id) else { return };
        let Some(released) = self.locks.remove(place) else { return };
        let later = self.locks.range_mut(place..);
        for lock in later.filter(|lock| overlap(&lock.bytes, &released.bytes)) {
            lock.behind -= 1;
            lock.advance(self.cores, orders);
        }
    }

    /// The device is gone: the requesters that still wait for a lock, and will not get it.
    pub(crate) fn abandon(self) -> impl Iterator<Item = W> {
        self.locks.into_iter().filter(|lock| lock.unfenced != Some(0)).map(|lock| lock.who)
    }
}

impl<W> Lock<W> {
    /// Starts it if it overlaps no earlier one, or is a barrier.
    fn advance(&mut self, cores: usize, orders: &mut Vec<Order<W>>) {
        if (self.behind == 0 || self.is_barrier) && self.unfenced.is_none() {
            self.unfenced = Some(cores);
            orders.push(Order::Fence(self.id, self.bytes.clone()));
        }
    }
}

/// The fences of one device on one core. `T` names a write held back.
#[derive(Debug)]
pub(crate) struct Fences<T> {
    fences: Vec<Fence<T>>,
}

#[derive(Debug)]
struct Fence<T> {
    id: LockId,
    bytes: Range<u64>,
    /// Writes in flight there when the fence came.
    draining: usize,
    held: Vec<T>,
}

impl<T> Default for Fences<T> {
    fn default() -> Self {
        Self { fences: Vec::new() }
    }
}

impl<T> Fences<T> {
    /// Puts up a fence over a range in which `draining` writes are in flight. True: none, the
    /// warden may be told at once.
    pub(crate) fn raise(&mut self, id: LockId, bytes: Range<u64>, draining: usize) -> bool {
        self.fences.push(Fence { id, bytes, draining, held: Vec::new() });
        draining == 0
    }

    /// Takes a fence down and gives back the writes that it held.
    pub(crate) fn lower(&mut self, id: LockId) -> Vec<T> {
        match self.fences.iter().position(|fence| fence.id == id) {
            Some(i) => self.fences.swap_remove(i).held,
            None => Vec::new(),
        }
    }

    /// Takes all fences down and gives back the writes that they held.
    pub(crate) fn lower_all(&mut self) -> Vec<T> {
        self.fences.drain(..).flat_map(|fence| fence.held).collect()
    }

    /// Whether there is no fence: the only check that ordinary writes pay for.
    pub(crate) fn is_empty(&self) -> bool {
        self.fences.is_empty()
    }

    /// Holds a write back if its range is fenced; otherwise returns the write.
    pub(crate) fn hold(&mut self, bytes: &Range<u64>, write: T) -> Option<T> {
        match self.fences.iter_mut().find(|fence| overlap(&fence.bytes, bytes)) {
            Some(fence) => {
                fence.held.push(write);
                None
            }
            None => Some(write),
        }
    }

    /// A write that was in flight when a fence came has finished; gives the locks whose range
    /// is quiet now.
    pub(crate) fn drained(&mut self, bytes: &Range<u64>, quiet: &mut Vec<LockId>) {
        for fence in self.fences.iter_mut().filter(|f| overlap(&f.bytes, bytes)) {
            if fence.draining > 0 {
                fence.draining -= 1;
                if fence.draining == 0 {
                    quiet.push(fence.id);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_locks_are_granted_in_order() {
        let mut warden = Warden::new(2);
        let mut orders = Vec::new();
        warden.request(0..10, 'a', &mut orders);
        warden.request(5..15, 'b', &mut orders);
        warden.request(20..30, 'c', &mut orders);
        assert_eq!(orders, [Order::Fence(LockId(0), 0..10), Order::Fence(LockId(2), 20..30)]);
        orders.clear();
        warden.fenced(LockId(0), &mut orders);
        assert!(orders.is_empty());
        warden.fenced(LockId(0), &mut orders);
        assert_eq!(orders, [Order::Granted(LockId(0), 'a')]);
        orders.clear();
        warden.release(LockId(0), &mut orders);
        assert_eq!(orders, [Order::Unfence(LockId(0)), Order::Fence(LockId(1), 5..15)]);
    }

    #[test]
    fn a_barrier_waits_for_no_lock_and_locks_wait_for_it() {
        let mut warden = Warden::new(1);
        let mut orders = Vec::new();
        warden.request(0..10, 'a', &mut orders);
        warden.barrier(5..15, 'b', &mut orders);
        warden.barrier(8..20, 'c', &mut orders);
        warden.request(12..13, 'd', &mut orders);
        let fence = |id, bytes| Order::Fence(LockId(id), bytes);
        assert_eq!(orders, [fence(0, 0..10), fence(1, 5..15), fence(2, 8..20)]);
        orders.clear();
        warden.fenced(LockId(2), &mut orders);
        warden.release(LockId(2), &mut orders);
        assert_eq!(orders, [Order::Granted(LockId(2), 'c'), Order::Unfence(LockId(2))]);
        orders.clear();
        warden.release(LockId(1), &mut orders);
        assert_eq!(orders, [Order::Unfence(LockId(1)), fence(3, 12..13)]);
    }

    /// What a lock waits for, found by looking at all pairs.
    #[test]
    fn locks_start_when_no_earlier_one_overlaps_them() {
        let mut state = 1_u64;
        let mut any_below = |most: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % most
        };
        let (mut warden, mut started) = (Warden::new(1), 0);
        // Identifier, range, whether it is a barrier, and whether it has begun.
        let mut locks: Vec<(u64, Range<u64>, bool, bool)> = Vec::new();
        for id in 0..20_000 {
            let (mut orders, mut expected) = (Vec::new(), Vec::new());
            let (start, is_barrier) = (any_below(60), any_below(5) == 0);
            let bytes = start..start + 1 + any_below(8);
            if is_barrier {
                warden.barrier(bytes.clone(), (), &mut orders);
            } else {
                warden.request(bytes.clone(), (), &mut orders);
            }
            let begun: Vec<_> = locks.iter().filter(|lock| lock.3).map(|lock| lock.0).collect();
            locks.push((id, bytes, is_barrier, false));
            // About thirty at a time.
            let ends = if begun.is_empty() { 0 } else { any_below(begun.len() as u64) + 1 };
            for &ended in
                begun.iter().take(usize::try_from(ends.min(locks.len() as u64 / 15)).unwrap())
            {
                warden.release(LockId(ended), &mut orders);
                locks.retain(|lock| lock.0 != ended);
                expected.push(Order::Unfence(LockId(ended)));
            }
            for at in 0..locks.len() {
                let (id, bytes, is_barrier, is_begun) = locks[at].clone();
                let waits = locks[..at].iter().any(|lock| overlap(&lock.1, &bytes));
                if !is_begun && (is_barrier || !waits) {
                    (locks[at].3, started) = (true, started + 1);
                    expected.push(Order::Fence(LockId(id), bytes));
                }
            }
            orders.sort_by_key(|order| format!("{order:?}"));
            expected.sort_by_key(|order| format!("{order:?}"));
            assert_eq!(orders, expected);
        }
        assert!(started > 15_000, "{started}");
    }

    #[test]
    fn a_device_that_goes_tells_those_who_wait() {
        let mut warden = Warden::new(1);
        let mut orders = Vec::new();
        for who in ['a', 'b', 'c'] {
            warden.request(0..10, who, &mut orders);
        }
        warden.request(20..30, 'd', &mut orders);
        warden.fenced(LockId(0), &mut orders);
        assert_eq!(warden.abandon().collect::<String>(), "bcd", "one has its lock");
    }

    #[test]
    fn a_fence_waits_for_writes_in_flight_and_holds_new_ones() {
        let mut fences = Fences::default();
        assert!(!fences.raise(LockId(1), 0..100, 2));
        assert_eq!(fences.hold(&(50..60), 'w'), None);
        assert_eq!(fences.hold(&(100..110), 'x'), Some('x'));
        let mut quiet = Vec::new();
        fences.drained(&(0..10), &mut quiet);
        assert!(quiet.is_empty());
        fences.drained(&(90..120), &mut quiet);
        assert_eq!(quiet, [LockId(1)]);
        assert_eq!(fences.lower(LockId(1)), ['w']);
        assert!(fences.is_empty());
    }
}
