//! Parts of a buffer as buffers of their own: without a copy, and with the memory kept alive by each.
//!
//! An owner that moves a buffer in several operations gives each of them a part. A part may outlive the
//! operation and its owner (a hung engine keeps what it was given): the whole buffer goes back to its
//! pool with the last of its parts.

#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::rc::Rc;

use crate::memory::buffer::{IoBuf, SharedBuf, Slot, SlotRef};

/// Room for a number of parts at a time, of any buffers of one core. Making a part allocates nothing.
#[derive(Clone)]
pub struct PartPool {
    places: Rc<Places>,
}

struct Places {
    /// Never moves: parts point at their place.
    parts: Box<[PartSlot]>,
    /// Indices of the unused places. Its capacity is the number of all places.
    free: RefCell<Vec<usize>>,
}

/// The place of one part. A pointer to it is one to its slot, too.
#[repr(C)]
struct PartSlot {
    slot: Slot,
    /// Others may read the same bytes.
    read_only: Cell<bool>,
    /// While the part is there: the buffer that it is a part of, and where its place goes back to.
    lender: Cell<Option<(SlotRef, Rc<Places>)>>,
}

impl PartPool {
    /// Room for `count` parts.
    #[must_use]
    pub fn new(count: usize) -> Self {
        let unused = || PartSlot {
            slot: Slot::of_part(),
            read_only: Cell::new(false),
            lender: Cell::new(None),
        };
        let parts = std::iter::repeat_with(unused).take(count).collect();
        let free = RefCell::new((0..count).rev().collect());
        Self { places: Rc::new(Places { parts, free }) }
    }

    /// How many more parts there may be.
    #[must_use]
    pub fn available(&self) -> usize {
        self.places.free.borrow().len()
    }

    /// A reader of a part of a shared buffer. `None` when all places are used.
    ///
    /// # Panics
    /// If the range is not inside the buffer.
    #[must_use]
    pub fn share(&self, whole: &SharedBuf, range: Range<usize>) -> Option<SharedBuf> {
        self.part(whole, range, true).map(IoBuf::share)
    }

    /// The caller promises that an `IoBuf` that is not `read_only` has its bytes to itself.
    fn part(&self, whole: &SharedBuf, range: Range<usize>, read_only: bool) -> Option<IoBuf> {
        let (start, end, len) = (range.start, range.end, whole.len());
        assert!(start <= end && end <= len, "part {start}..{end} of {len} bytes is out of range");
        let index = self.places.free.borrow_mut().pop()?;
        let part = &self.places.parts[index];
        // SAFETY: a buffer begins where its slot's memory does, and `start` is inside of it.
        let memory = unsafe { whole.slot().memory().add(start) };
        part.slot.lend_part(memory, end - start);
        part.read_only.set(read_only);
        part.lender.set(Some((whole.slot().clone(), Rc::clone(&self.places))));
        // From a pointer to all of the place, of which `release` makes one to all of it again.
        let slot = NonNull::from(part).cast::<Slot>();
        Some(IoBuf::over(SlotRef::of_part(slot), end - start))
    }
}

impl fmt::Debug for PartPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PartPool({} of {} free)", self.available(), self.places.parts.len())
    }
}

/// A buffer that is given away in parts, from its start to its end, each of which is the only owner
/// of its bytes. When all parts are gone, the buffer can be had again.
#[derive(Debug)]
pub struct PartedBuf {
    /// Not read while there are parts.
    whole: SharedBuf,
    given: usize,
}

impl PartedBuf {
    /// A buffer of which nothing was given away.
    #[must_use]
    pub fn new(whole: IoBuf) -> Self {
        Self { whole: whole.share(), given: 0 }
    }

    /// Bytes of the whole.
    #[allow(clippy::len_without_is_empty, reason = "it is about the whole, not what is left of it")]
    #[must_use]
    pub fn len(&self) -> usize {
        self.whole.len()
    }

    /// Gives the next `len` bytes away. `None` when the pool has no room for another part.
    ///
    /// # Panics
    /// If fewer than `len` bytes are left.
    pub fn give(&mut self, pool: &PartPool, len: usize) -> Option<IoBuf> {
        let end = self.given.checked_add(len).expect("a part is shorter than the address space");
        // Its bytes are its own: no other part has them, and the whole is not read.
        let part = pool.part(&self.whole, self.given..end, false)?;
        self.given = end;
        Some(part)
    }

    /// The whole buffer again.
    ///
    /// # Errors
    /// Gives itself back while a part is in use.
    pub fn try_join(self) -> Result<IoBuf, Self> {
        let given = self.given;
        self.whole.try_unique().map_err(|whole| Self { whole, given })
    }
}

/// Whether a part is one of those that others may read as well.
///
/// # Safety
/// `slot` is that of a part ([`Slot::is_part`]) that has an owner.
pub(super) unsafe fn is_read_only(slot: NonNull<Slot>) -> bool {
    // SAFETY: slots of parts are the first field of a `PartSlot`, and were named by a pointer to all of
    // that. It lives as long as its part, which holds `Places`.
    unsafe { slot.cast::<PartSlot>().as_ref() }.read_only.get()
}

/// Gives the place of a part back, and the part's hold on the whole buffer.
///
/// # Safety
/// `slot` is that of a part ([`Slot::is_part`]) whose last owner is being dropped.
pub(super) unsafe fn release(slot: NonNull<Slot>) {
    let place = slot.cast::<PartSlot>();
    // SAFETY: as in `is_read_only`; `lender` keeps the place until the end of this function.
    let lender = unsafe { place.as_ref() }.lender.take();
    let Some((whole, places)) = lender else { unreachable!("a part has a lender") };
    // SAFETY: the place is one of these.
    let index = unsafe { place.as_ptr().cast_const().offset_from(places.parts.as_ptr()) };
    places.free.borrow_mut().push(index.unsigned_abs());
    drop(whole);
    drop(places);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::buffer::{BufferPool, PoolConfig};

    fn numbered(len: usize) -> IoBuf {
        let bytes: Vec<u8> = (0..len).map(|index| index.to_le_bytes()[0]).collect();
        IoBuf::from_slice(&bytes)
    }

    #[test]
    fn parts_are_written_and_come_together() {
        let core = BufferPool::new(&PoolConfig::new(&[(4096, 1)])).unwrap();
        let pool = PartPool::new(2);
        let mut parted = PartedBuf::new(core.take(10).unwrap());
        let mut first = parted.give(&pool, 4).unwrap();
        let mut second = parted.give(&pool, 6).unwrap();
        assert_eq!((first.len(), second.capacity(), pool.available()), (4, 6, 0));
        first.fill(1);
        second.fill(2);
        let parted = parted.try_join().unwrap_err();
        drop(first);
        let parted = parted.try_join().unwrap_err();
        drop(second.share());
        let whole = parted.try_join().unwrap();
        assert_eq!(whole[..], [1, 1, 1, 1, 2, 2, 2, 2, 2, 2]);
        assert_eq!((pool.available(), core.available(0)), (2, 0));
        drop(whole);
        assert_eq!(core.available(0), 1);
    }

    #[test]
    fn a_part_keeps_the_whole_and_its_place_alive() {
        let core = BufferPool::new(&PoolConfig::new(&[(4096, 1)])).unwrap();
        let pool = PartPool::new(1);
        let mut parted = PartedBuf::new(core.take(100).unwrap());
        let mut part = parted.give(&pool, 50).unwrap();
        assert!(parted.give(&pool, 50).is_none(), "there is one place");
        drop((parted, pool));
        part.fill(7);
        assert_eq!(core.available(0), 0);
        assert_eq!(part.share()[49], 7);
        assert_eq!(core.available(0), 1, "the buffer goes back with the last part");
    }

    #[test]
    fn readers_of_parts_never_become_owners() {
        let pool = PartPool::new(3);
        let whole = numbered(300).share();
        let part = pool.share(&whole, 100..103).unwrap();
        assert_eq!(part[..], [100, 101, 102]);
        let part = part.try_unique().unwrap_err();
        let again = pool.share(&part, 1..2).unwrap();
        drop(part);
        assert_eq!((again[0], pool.available()), (101, 1));
        let whole = whole.try_unique().unwrap_err();
        drop(again);
        assert_eq!(whole.try_unique().unwrap().len(), 300);
        assert_eq!(pool.available(), 3);
    }

    #[test]
    #[should_panic(expected = "part 5..11 of 10 bytes is out of range")]
    fn a_part_is_inside_the_whole() {
        drop(PartPool::new(1).share(&numbered(10).share(), 5..11));
    }
}
