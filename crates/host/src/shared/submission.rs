//! Carries operations from many threads to the one that drives a queue, and their results back, without
//! locks and without allocation.
//!
//! A table of slots is made once. [`Submitter::submit`] takes a free slot, puts the request in it and the
//! slot at the head of a list, by one compare-and-exchange each. [`Receiver::collect`] takes the whole list
//! in one exchange and reverses it, so that requests come out in the order in which they went in.
//! [`Receiver::complete`] puts the result in the slot, where the [`Operation`] finds it: by looking, or
//! woken by the waker that it left there.
//!
//! A slot has two users, the operation and the receiver. The one that is done with it second frees it, so
//! an operation may be dropped at any time. The request of a dropped operation is executed all the same;
//! its memory stays with the receiver until then, and its result is dropped.

#![allow(unsafe_code)]

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::sync::{Arc, AtomicU32, AtomicU64, Ordering, UnsafeCell};

/// The index of no slot: the end of a list.
const NONE: u32 = u32::MAX;
/// The list's head once its receiver is gone.
const CLOSED: u32 = u32::MAX - 1;
/// Most slots of a table.
pub(crate) const MAX_SLOTS: u32 = 1 << 16;

/// The result is there, or there will be none.
const DONE: u32 = 1;
/// The slot has a waker, which the receiver takes.
const WAKER: u32 = 2;
/// The operation was dropped.
const OPERATION_GONE: u32 = 4;
/// The receiver will not touch the slot any more.
const RECEIVER_GONE: u32 = 8;

/// A table of `slots` operations at a time, clamped to 1..=[`MAX_SLOTS`].
#[must_use]
pub(crate) fn submission_list<Q, R>(slots: u32) -> (Submitter<Q, R>, Receiver<Q, R>) {
    let count = slots.clamp(1, MAX_SLOTS);
    let slots = (1..=count).map(|next| Slot::new(if next == count { NONE } else { next }));
    let table = Arc::new(Table {
        slots: slots.collect(),
        free: Line(AtomicU64::new(0)),
        submitted: Line(AtomicU32::new(NONE)),
    });
    let taken = (0..count).map(|_| false).collect();
    let receiver = Receiver { table: Arc::clone(&table), first: NONE, last: NONE, taken };
    (Submitter { table: Arc::new(table) }, receiver)
}

/// A value on cache lines of its own; two, since the prefetcher fetches pairs.
#[repr(align(128))]
struct Line<T>(T);

struct Table<Q, R> {
    slots: Box<[Slot<Q, R>]>,
    /// The index of the first free slot in the lower half. The upper half counts changes, so that the
    /// exchange fails if the head was replaced and put back meanwhile.
    free: Line<AtomicU64>,
    /// The newest submission, or [`NONE`], or [`CLOSED`].
    submitted: Line<AtomicU32>,
}

#[repr(align(64))]
struct Slot<Q, R> {
    /// The next slot in whatever list this one is in.
    next: AtomicU32,
    state: AtomicU32,
    request: UnsafeCell<Option<Q>>,
    result: UnsafeCell<Option<R>>,
    waker: UnsafeCell<Option<Waker>>,
}

// SAFETY: each cell of a slot has one user at a time, handed on by an atomic with release and
// acquire: the request goes from submitter to receiver with `submitted`, the result back with
// `DONE`, the waker to the receiver with `WAKER`, and all of the slot to the next operation with
// `free`. Requests and results so move between threads, and are never shared by them.
unsafe impl<Q: Send, R: Send> Send for Table<Q, R> {}
// SAFETY: as above.
unsafe impl<Q: Send, R: Send> Sync for Table<Q, R> {}

impl<Q, R> Slot<Q, R> {
    fn new(next: u32) -> Slot<Q, R> {
        Slot {
            next: AtomicU32::new(next),
            state: AtomicU32::new(0),
            request: UnsafeCell::new(None),
            result: UnsafeCell::new(None),
            waker: UnsafeCell::new(None),
        }
    }

    /// Replaces the value of one of its cells.
    ///
    /// # Safety
    /// The caller is the only user of the cell.
    unsafe fn replace<T>(cell: &UnsafeCell<Option<T>>, value: Option<T>) -> Option<T> {
        // SAFETY: nobody else uses it, says the caller.
        cell.with_mut(|value_at| unsafe { std::mem::replace(&mut *value_at, value) })
    }
}

impl<Q, R> Table<Q, R> {
    fn slot(&self, index: u32) -> &Slot<Q, R> {
        &self.slots[index as usize]
    }

    /// Takes a slot off the free list.
    fn take_free(&self) -> Option<u32> {
        let mut head = self.free.0.load(Ordering::Acquire);
        loop {
            let index = lower(head);
            if index == NONE {
                return None;
            }
            // If another thread takes the slot meanwhile, `next` is garbage, and the exchange fails.
            let next = self.slot(index).next.load(Ordering::Relaxed);
            let taken = self.free.0.compare_exchange_weak(
                head,
                changed(head, next),
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            match taken {
                Ok(_) => return Some(index),
                Err(now) => head = now,
            }
        }
    }

    /// Puts a slot on the free list.
    ///
    /// # Safety
    /// The caller is the only user of the slot.
    unsafe fn set_free(&self, index: u32) {
        let slot = self.slot(index);
        // SAFETY: the caller is the only user of all three.
        unsafe {
            drop(Slot::<Q, R>::replace(&slot.request, None));
            drop(Slot::<Q, R>::replace(&slot.result, None));
            drop(Slot::<Q, R>::replace(&slot.waker, None));
        }
        let mut head = self.free.0.load(Ordering::Relaxed);
        loop {
            slot.next.store(lower(head), Ordering::Relaxed);
            let put = self.free.0.compare_exchange_weak(
                head,
                changed(head, index),
                Ordering::Release,
                Ordering::Relaxed,
            );
            match put {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }
}

/// The index in a head of the free list.
#[allow(clippy::cast_possible_truncation, reason = "the lower half is what is asked for")]
const fn lower(head: u64) -> u32 {
    head as u32
}

/// The head of the free list after `head`.
const fn changed(head: u64, index: u32) -> u64 {
    ((head >> 32).wrapping_add(1) << 32) | index as u64
}

/// Submits requests, for one thread or for many. A clone for each thread is faster: each clone counts its
/// own operations.
pub(crate) struct Submitter<Q, R> {
    /// An operation keeps the table through its submitter's counter, not through the one that all
    /// submitters share.
    #[allow(clippy::redundant_allocation, reason = "the second counter is the point")]
    table: Arc<Arc<Table<Q, R>>>,
}

/// Why a request was not taken; the request comes back.
#[derive(PartialEq, Eq)]
pub(crate) enum SubmitError<Q> {
    /// All slots are in use.
    Full(Q),
    /// The receiver is gone.
    Closed(Q),
}

impl<Q, R> Submitter<Q, R> {
    /// Submits a request. Never blocks.
    ///
    /// # Errors
    /// Gives the request back when all slots are in use or the receiver is gone.
    pub(crate) fn submit(&self, request: Q) -> Result<Operation<Q, R>, SubmitError<Q>> {
        let table = &**self.table;
        let Some(index) = table.take_free() else { return Err(SubmitError::Full(request)) };
        let slot = table.slot(index);
        slot.state.store(0, Ordering::Relaxed);
        // SAFETY: the slot was free and now is this thread's.
        unsafe { drop(Slot::<Q, R>::replace(&slot.request, Some(request))) };
        let mut head = table.submitted.0.load(Ordering::Relaxed);
        loop {
            if head == CLOSED {
                // SAFETY: nobody has seen the slot.
                let request = unsafe { Slot::<Q, R>::replace(&slot.request, None) };
                // SAFETY: as before.
                unsafe { table.set_free(index) };
                return Err(SubmitError::Closed(request.expect("it was put there above")));
            }
            slot.next.store(head, Ordering::Relaxed);
            let put = table.submitted.0.compare_exchange_weak(
                head,
                index,
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
            match put {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
        Ok(Operation { table: Some(Arc::clone(&self.table)), index })
    }

    /// Whether submissions wait to be collected.
    #[must_use]
    pub(crate) fn has_waiting(&self) -> bool {
        self.table.submitted.0.load(Ordering::Acquire) < CLOSED
    }
}

impl<Q, R> Clone for Submitter<Q, R> {
    fn clone(&self) -> Submitter<Q, R> {
        Submitter { table: Arc::new(Arc::clone(&self.table)) }
    }
}

/// The receiver is gone: there will be no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Closed;

/// An operation that was submitted: a future of its result, for any executor. If it is dropped, its request
/// is carried out all the same.
pub(crate) struct Operation<Q, R> {
    /// `None` once the result was taken.
    #[allow(clippy::redundant_allocation, reason = "see `Submitter`")]
    table: Option<Arc<Arc<Table<Q, R>>>>,
    index: u32,
}

impl<Q, R> Operation<Q, R> {
    /// The result, if it is there: once, then never again.
    pub(crate) fn try_take(&mut self) -> Option<Result<R, Closed>> {
        let slot = self.table.as_ref()?.slot(self.index);
        if slot.state.load(Ordering::Acquire) & DONE == 0 {
            return None;
        }
        Some(self.take())
    }

    /// Takes the result, which is there.
    fn take(&mut self) -> Result<R, Closed> {
        let table = self.table.take().expect("it was not taken before");
        // SAFETY: `DONE` was seen, after which the receiver does not touch the result.
        let result = unsafe { Slot::<Q, R>::replace(&table.slot(self.index).result, None) };
        leave(&table, self.index);
        result.ok_or(Closed)
    }
}

/// The operation lets go of its slot.
fn leave<Q, R>(table: &Table<Q, R>, index: u32) {
    let before = table.slot(index).state.fetch_or(OPERATION_GONE, Ordering::AcqRel);
    if before & RECEIVER_GONE != 0 {
        // SAFETY: the other user went before.
        unsafe { table.set_free(index) };
    }
}

// No field of an operation is pinned.
impl<Q, R> Unpin for Operation<Q, R> {}

impl<Q, R> Future for Operation<Q, R> {
    type Output = Result<R, Closed>;

    /// # Panics
    /// When it is polled after it was ready.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let table = self.table.as_ref().expect("an operation is polled after it was ready");
        let slot = table.slot(self.index);
        let mut state = slot.state.load(Ordering::Acquire);
        if state & DONE == 0 && state & WAKER != 0 {
            // Takes the waker back, unless the receiver was faster.
            state = slot.state.fetch_and(!WAKER, Ordering::AcqRel);
        }
        if state & DONE == 0 {
            // SAFETY: without `WAKER`, the receiver does not touch it.
            unsafe { drop(Slot::<Q, R>::replace(&slot.waker, Some(cx.waker().clone()))) };
            state = slot.state.fetch_or(WAKER, Ordering::AcqRel);
        }
        if state & DONE == 0 {
            return Poll::Pending;
        }
        Poll::Ready(self.take())
    }
}

impl<Q, R> Drop for Operation<Q, R> {
    fn drop(&mut self) {
        if let Some(table) = self.table.take() {
            leave(&table, self.index);
        }
    }
}

/// The receiving end of a table, for the thread that drives the queue; there is one.
pub(crate) struct Receiver<Q, R> {
    table: Arc<Table<Q, R>>,
    /// The first of the requests that were collected and not yet taken, in their order.
    first: u32,
    last: u32,
    /// The slots of requests that were taken and have no result yet.
    taken: Box<[bool]>,
}

/// Names a request until its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestId(u32);

impl RequestId {
    /// As a number, below [`MAX_SLOTS`].
    #[must_use]
    pub(crate) const fn number(self) -> u32 {
        self.0
    }
}

impl From<u32> for RequestId {
    fn from(number: u32) -> RequestId {
        RequestId(number)
    }
}

impl<Q, R> Receiver<Q, R> {
    /// Collects all submissions, in one exchange.
    pub(crate) fn collect(&mut self) {
        // Loading first leaves the cache line where it is while there is nothing to collect.
        if self.table.submitted.0.load(Ordering::Relaxed) >= CLOSED {
            return;
        }
        self.append(NONE);
    }

    /// Replaces the list's head and appends what was there, oldest first.
    fn append(&mut self, head: u32) {
        let newest = self.table.submitted.0.swap(head, Ordering::AcqRel);
        let mut at = newest;
        let mut oldest = NONE;
        while at < CLOSED {
            let slot = self.table.slot(at);
            let older = slot.next.load(Ordering::Relaxed);
            slot.next.store(oldest, Ordering::Relaxed);
            oldest = at;
            at = older;
        }
        if oldest == NONE {
            return;
        }
        if self.first == NONE {
            self.first = oldest;
        } else {
            self.table.slot(self.last).next.store(oldest, Ordering::Relaxed);
        }
        self.last = newest;
    }

    /// Refuses later submissions, and collects those that have come: they can still be taken.
    pub(crate) fn close(&mut self) {
        if self.table.submitted.0.load(Ordering::Relaxed) != CLOSED {
            self.append(CLOSED);
        }
    }

    /// Takes the oldest collected request, which then needs a result.
    pub(crate) fn take(&mut self) -> Option<(RequestId, Q)> {
        let index = self.first;
        if index == NONE {
            return None;
        }
        let slot = self.table.slot(index);
        self.first = slot.next.load(Ordering::Relaxed);
        // SAFETY: a collected request is the receiver's.
        let request = unsafe { Slot::<Q, R>::replace(&slot.request, None) };
        self.taken[index as usize] = true;
        Some((RequestId(index), request.expect("a submission has a request")))
    }

    /// Gives a request its result. False when its operation was dropped: then the result has been dropped,
    /// too.
    ///
    /// # Panics
    /// When there is no such request, or it has a result.
    pub(crate) fn complete(&mut self, id: RequestId, result: R) -> bool {
        let taken = self.taken.get_mut(id.0 as usize).map(std::mem::take);
        assert_eq!(taken, Some(true), "a result for a request that wants none");
        self.end(id.0, Some(result))
    }

    fn end(&mut self, index: u32, result: Option<R>) -> bool {
        let slot = self.table.slot(index);
        // SAFETY: before `DONE`, the operation does not touch it.
        unsafe { drop(Slot::<Q, R>::replace(&slot.result, result)) };
        // The usual case of an operation that is polled: there is no waker to call.
        let both = DONE | RECEIVER_GONE;
        if slot.state.compare_exchange(0, both, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            return true;
        }
        let before = slot.state.fetch_or(DONE, Ordering::AcqRel);
        // SAFETY: `WAKER` was set before `DONE`, so it is the receiver's.
        let waker = (before & WAKER != 0)
            .then(|| unsafe { Slot::<Q, R>::replace(&slot.waker, None) })
            .flatten();
        // From here on the slot may belong to another operation, which is why the waker was taken out
        // before.
        let before = slot.state.fetch_or(RECEIVER_GONE, Ordering::AcqRel);
        if before & OPERATION_GONE != 0 {
            // SAFETY: the other user went before.
            unsafe { self.table.set_free(index) };
        }
        if let Some(waker) = waker {
            waker.wake();
        }
        before & OPERATION_GONE == 0
    }
}

impl<Q, R> Drop for Receiver<Q, R> {
    /// Ends every operation that waits for a result, and those that are submitted later.
    fn drop(&mut self) {
        self.close();
        while let Some((_, request)) = self.take() {
            drop(request);
        }
        for index in 0..self.taken.len() {
            if std::mem::take(&mut self.taken[index])
                && let Ok(index) = u32::try_from(index)
            {
                self.end(index, None);
            }
        }
    }
}

impl<Q, R> fmt::Debug for Submitter<Q, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Submitter({} slots)", self.table.slots.len())
    }
}

impl<Q, R> fmt::Debug for Receiver<Q, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Receiver({} slots)", self.table.slots.len())
    }
}

impl<Q, R> fmt::Debug for Operation<Q, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Operation({})", self.index)
    }
}

impl<Q> fmt::Debug for SubmitError<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SubmitError::Full(_) => "Full(..)",
            SubmitError::Closed(_) => "Closed(..)",
        })
    }
}
