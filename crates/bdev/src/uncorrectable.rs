//! A wrapper that remembers which blocks cannot be read since Write Uncorrectable, for tests.
//!
//! The marks are in memory: they are gone when the device is closed. A write takes a mark away when it begins.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use raceline_reactor::{Completion, Context};

use crate::extent::{Sought, encode};
use crate::wrap::{open_base, pass_to_base, payload_of};
use crate::{Bdev, BdevError, BdevInfo, Channel, Done, Op, Request, SharedBdev};

/// Most separate ranges that are marked at the same time.
const RANGES: usize = 4096;

/// A device of which blocks can be made unreadable.
pub struct UncorrectableBdev {
    inner: SharedBdev,
    marks: Arc<Marks>,
}

impl UncorrectableBdev {
    /// A device that does what `inner` does, and takes [`Op::WriteUncorrectable`].
    #[must_use]
    pub fn new(inner: SharedBdev) -> Self {
        Self { inner, marks: Arc::default() }
    }
}

/// The marked bytes, as all cores see them. They are locked only while there are any.
#[derive(Default)]
struct Marks {
    any: AtomicBool,
    ranges: Mutex<Ranges>,
}

impl Marks {
    fn lock(&self) -> MutexGuard<'_, Ranges> {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    fn mark(&self, bytes: Range<u64>) -> Result<(), BdevError> {
        let mut ranges = self.lock();
        if ranges.0.len() >= RANGES {
            return Err(BdevError::NoSpace);
        }
        ranges.insert(bytes);
        self.any.store(true, Ordering::Release);
        Ok(())
    }

    fn clear(&self, bytes: Range<u64>) {
        if self.any() {
            let mut ranges = self.lock();
            ranges.remove(bytes);
            self.any.store(!ranges.0.is_empty(), Ordering::Release);
        }
    }

    fn touches(&self, bytes: &Range<u64>) -> bool {
        self.any() && self.lock().within(bytes).next().is_some()
    }
}

/// Ranges that neither overlap nor touch: the end of each by its start.
#[derive(Default)]
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    fn insert(&mut self, bytes: Range<u64>) {
        let Range { mut start, mut end } = bytes;
        let touching: Vec<(u64, u64)> =
            self.overlapping(start.saturating_sub(1)..end + 1).collect();
        for (first, last) in touching {
            self.0.remove(&first);
            (start, end) = (start.min(first), end.max(last));
        }
        if start < end {
            self.0.insert(start, end);
        }
    }

    fn remove(&mut self, bytes: Range<u64>) {
        let cut: Vec<(u64, u64)> = self.overlapping(bytes.clone()).collect();
        for (first, last) in cut {
            self.0.remove(&first);
            if first < bytes.start {
                self.0.insert(first, bytes.start);
            }
            if bytes.end < last {
                self.0.insert(bytes.end, last);
            }
        }
    }

    /// Whole ranges of which at least a byte is in `bytes`, in ascending order.
    fn overlapping(&self, bytes: Range<u64>) -> impl Iterator<Item = (u64, u64)> {
        let before = self.0.range(..bytes.start).next_back();
        let before = before.filter(|(_, end)| **end > bytes.start).map(|(start, _)| *start);
        let from = before.unwrap_or(bytes.start);
        self.0.range(from..bytes.end.max(from)).map(|(start, end)| (*start, *end))
    }

    /// What of the ranges is in `bytes`.
    fn within(&self, bytes: &Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let Range { start, end } = *bytes;
        self.overlapping(start..end).map(move |(first, last)| first.max(start)..last.min(end))
    }
}

impl Bdev for UncorrectableBdev {
    fn info(&self) -> BdevInfo {
        let info = self.inner.info();
        BdevInfo { uncorrectable: !info.read_only, ..info }
    }

    fn open_channel(&self, cx: &mut Context<'_>, owner: u16) -> std::io::Result<Box<dyn Channel>> {
        Ok(Box::new(UncorrectableChannel {
            inner: open_base(&*self.inner, cx, owner)?,
            read_only: self.inner.info().read_only,
            marks: Arc::clone(&self.marks),
        }))
    }

    fn wrapper_levels(&self) -> u32 {
        self.inner.wrapper_levels()
    }

    pass_to_base!(inner);
}

struct UncorrectableChannel {
    inner: Box<dyn Channel>,
    read_only: bool,
    marks: Arc<Marks>,
}

impl UncorrectableChannel {
    /// What the wrapper answers itself; `None`: the request is for the device.
    fn answer(&self, op: &Op) -> Option<Result<Option<raceline_reactor::Payload>, BdevError>> {
        let range = |offset: u64, len: u64| offset..offset + len;
        match *op {
            Op::WriteUncorrectable { .. } if self.read_only => Some(Err(BdevError::ReadOnly)),
            Op::WriteUncorrectable { offset, len } => {
                Some(self.marks.mark(range(offset, len)).map(|()| None))
            }
            Op::Find { sought: Sought::Uncorrectable, offset, len, most } => {
                let ranges = self.marks.lock();
                let found = ranges.within(&range(offset, len)).take(most).collect::<Vec<_>>();
                Some(Ok(Some(encode(&found))))
            }
            Op::Read { offset, len, .. } | Op::ReadPages { offset, len, .. } => {
                let is_marked = self.marks.touches(&range(offset, len as u64));
                is_marked.then_some(Err(BdevError::ReadFault))
            }
            Op::Copy { from, to, len, .. } => {
                if self.marks.touches(&range(from, len)) {
                    return Some(Err(BdevError::ReadFault));
                }
                self.marks.clear(range(to, len));
                None
            }
            Op::Write { offset, ref data, .. } => {
                self.marks.clear(range(offset, data.len() as u64));
                None
            }
            Op::WritePages { offset, len, .. } => {
                self.marks.clear(range(offset, len as u64));
                None
            }
            Op::WriteZeroes { offset, len, .. } | Op::Deallocate { offset, len } => {
                self.marks.clear(range(offset, len));
                None
            }
            Op::Flush | Op::Find { sought: Sought::Data, .. } => None,
        }
    }
}

impl Channel for UncorrectableChannel {
    fn submit(&mut self, cx: &mut Context<'_>, request: Request, done: &mut Vec<Done>) {
        match self.answer(&request.op) {
            None => self.inner.submit(cx, request, done),
            Some(Ok(payload)) => done.push(Done { tag: request.tag, result: Ok(()), payload }),
            Some(Err(error)) => done.push(Done {
                tag: request.tag,
                result: Err(error),
                payload: payload_of(request.op),
            }),
        }
    }

    fn handle_completion(
        &mut self,
        cx: &mut Context<'_>,
        completion: Completion,
        done: &mut Vec<Done>,
    ) {
        self.inner.handle_completion(cx, completion, done);
    }

    fn flush(&mut self, cx: &mut Context<'_>, done: &mut Vec<Done>) {
        self.inner.flush(cx, done);
    }

    fn close(&mut self, cx: &mut Context<'_>) {
        self.inner.close(cx);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against one flag for each byte.
        #[test]
        fn ranges_are_a_set_of_bytes(
            steps in proptest::collection::vec((any::<bool>(), 0_u64..40, 1_u64..12), 0..40),
            look in (0_u64..40, 1_u64..12),
        ) {
            let (mut ranges, mut bytes) = (Ranges::default(), [false; 64]);
            for (mark, start, len) in steps {
                let range = start..start + len;
                for (place, byte) in (0..).zip(&mut bytes) {
                    if range.contains(&place) {
                        *byte = mark;
                    }
                }
                if mark { ranges.insert(range) } else { ranges.remove(range) }
            }
            let kept: Vec<(u64, u64)> = ranges.overlapping(0..64).collect();
            prop_assert!(kept.windows(2).all(|pair| pair[0].1 < pair[1].0), "{kept:?}");
            let look = look.0..look.0 + look.1;
            let found: Vec<u64> = ranges.within(&look).flatten().collect();
            let expected = (0..).zip(&bytes).filter(|(place, byte)| **byte && look.contains(place));
            prop_assert_eq!(found, expected.map(|(place, _)| place).collect::<Vec<u64>>());
        }
    }
}
