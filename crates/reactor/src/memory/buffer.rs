//! Memory for I/O: pooled buffers with one owner, and read-only shared buffers.
//!
//! A [`BufferPool`] belongs to one core. Its size classes are carved out of one anonymous
//! mapping when it is made; taking, sharing and returning a buffer only moves an index and a
//! counter that live in the pool, so the I/O path never allocates.
//!
//! Every buffer keeps its pool alive: the mapping goes away with the last of them.
//!
//! A pool may also have slots without memory ([`BufferPool::lending`]), for buffers over memory
//! that a program lends to one operation after another.

#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

use crate::memory::companions::Companions;
use crate::memory::lasting::LastingMemory;
use crate::memory::mapping::Mapping;
use crate::memory::parts;
use crate::memory::region::HUGE_PAGE_SIZE;
pub use crate::memory::region::{HugePages, PageBuf, Region, RegionHandle};

/// Pool buffers start at multiples of this, as direct I/O wants (the largest logical block).
pub const BUFFER_ALIGNMENT: usize = 4096;

/// The size classes of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolConfig {
    /// Pairs of (buffer size in bytes, number of buffers), in any order. A size is rounded up
    /// to a multiple of [`BUFFER_ALIGNMENT`].
    pub classes: Vec<(usize, usize)>,
    /// In huge pages where the kernel has some (MADV_HUGEPAGE). Memory is then touched 2 MiB at a time.
    pub huge_pages: bool,
}

impl PoolConfig {
    /// A pool of the given (size in bytes, count) classes.
    pub fn new(classes: &[(usize, usize)]) -> PoolConfig {
        PoolConfig { classes: classes.to_vec(), huge_pages: false }
    }

    /// The same in huge pages where the kernel has some, for memory that is all used.
    #[must_use]
    pub fn in_huge_pages(self) -> PoolConfig {
        PoolConfig { huge_pages: true, ..self }
    }
}

/// A cheap handle to one core's pool of buffers.
#[derive(Clone)]
pub struct BufferPool {
    inner: Rc<PoolInner>,
}

impl BufferPool {
    /// Maps the memory of all classes, zeroed.
    ///
    /// # Errors
    /// The error of mmap(2), or `InvalidInput` if the sizes overflow.
    pub fn new(config: &PoolConfig) -> io::Result<BufferPool> {
        BufferPool::lending(config, 0)
    }

    /// As [`BufferPool::new`], and `lent_count` buffers at a time may be over lent memory
    /// ([`BufferPool::lend`]).
    ///
    /// # Errors
    /// As [`BufferPool::new`].
    pub fn lending(config: &PoolConfig, lent_count: usize) -> io::Result<BufferPool> {
        let mut classes: Vec<(usize, usize)> = Vec::with_capacity(config.classes.len());
        let mut total = 0usize;
        for &(size, count) in &config.classes {
            let size = size.max(1).checked_next_multiple_of(BUFFER_ALIGNMENT);
            let bytes = size.and_then(|size| size.checked_mul(count));
            let (Some(size), Some(bytes)) = (size, bytes) else {
                return Err(io::ErrorKind::InvalidInput.into());
            };
            total = total.checked_add(bytes).ok_or(io::ErrorKind::InvalidInput)?;
            classes.push((size, count));
        }
        classes.sort_unstable();

        let huge_pages = config.huge_pages && total >= HUGE_PAGE_SIZE;
        let alignment = if huge_pages { HUGE_PAGE_SIZE } else { BUFFER_ALIGNMENT };
        let mapping = Mapping::anonymous(total.max(1), alignment)?;
        if huge_pages && let Err(error) = mapping.advise(0, mapping.len(), libc::MADV_HUGEPAGE) {
            // The pages are then normal ones, which are slower.
            tracing::debug!("MADV_HUGEPAGE: {error}");
        }
        let mut offset = 0;
        let mut built = Vec::with_capacity(classes.len());
        for (class, &(size, count)) in classes.iter().enumerate() {
            let mut slots = Vec::with_capacity(count);
            for _ in 0..count {
                // SAFETY: `offset` < the sum of all classes, which is the mapping's length.
                let memory = unsafe { mapping.base().add(offset) };
                slots.push(Slot::free(memory, size, class));
                offset += size;
            }
            built.push(Class::new(size, slots));
        }
        let nothing = || Slot::free(NonNull::dangling(), 0, LENT_CLASS);
        let lent = Class::new(0, std::iter::repeat_with(nothing).take(lent_count).collect());
        let mapping = Arc::new(mapping);
        let companions = Companions::default();
        let inner = PoolInner { classes: built, lent, waits: Cell::new(0), mapping, companions };
        Ok(BufferPool { inner: Rc::new(inner) })
    }

    /// What else belongs to the core that has this pool.
    #[must_use]
    pub fn companions(&self) -> &Companions {
        &self.inner.companions
    }

    /// Where all of its own memory lies.
    pub(crate) fn memory(&self) -> (NonNull<u8>, usize) {
        (self.inner.mapping.base(), self.inner.mapping.len())
    }

    /// Takes a buffer of `len` bytes from the smallest class that fits and has one left.
    /// `None` when there is none; the contents are whatever its last owner left.
    pub fn take(&self, len: usize) -> Option<IoBuf> {
        self.take_of(len, 0..self.class_count())
    }

    /// As [`BufferPool::take`], from these classes only.
    ///
    /// # Panics
    /// If the range goes beyond the classes.
    pub fn take_of(&self, len: usize, classes: Range<usize>) -> Option<IoBuf> {
        for class in self.inner.classes[classes].iter().filter(|class| class.size >= len) {
            if let Some(index) = class.free.borrow_mut().pop() {
                let slot = &class.slots[index];
                debug_assert_eq!(slot.references.get(), 0);
                slot.references.set(1);
                let slot = NonNull::from(slot);
                return Some(IoBuf { slot: SlotRef { slot, pool: Some(self.inner.clone()) }, len });
            }
        }
        self.inner.waits.set(self.inner.waits.get() + 1);
        None
    }

    /// A buffer over memory that the pool does not own. `None` when all that [`BufferPool::lending`] was
    /// told of are in use.
    ///
    /// # Safety
    /// Until the buffer, and all that [`IoBuf::share`] makes of it, are gone, the memory is valid for
    /// reads and writes of `len` bytes, and nothing else writes it; nothing else reads it while the
    /// buffer is not shared.
    #[must_use]
    pub unsafe fn lend(&self, memory: NonNull<u8>, len: usize) -> Option<IoBuf> {
        let index = self.inner.lent.free.borrow_mut().pop()?;
        let slot = &self.inner.lent.slots[index];
        debug_assert_eq!(slot.references.get(), 0);
        slot.references.set(1);
        slot.memory.set(memory);
        slot.capacity.set(len);
        let slot = NonNull::from(slot);
        Some(IoBuf { slot: SlotRef { slot, pool: Some(self.inner.clone()) }, len })
    }

    /// How many more buffers [`BufferPool::lend`] gives.
    #[must_use]
    pub fn lent_available(&self) -> usize {
        self.inner.lent.free.borrow().len()
    }

    /// Number of size classes, ordered from small to large.
    pub fn class_count(&self) -> usize {
        self.inner.classes.len()
    }

    /// Buffer size of a class in bytes.
    pub fn class_size(&self, class: usize) -> usize {
        self.inner.classes[class].size
    }

    /// The smallest class whose buffers hold `len` bytes; the largest, if none does.
    pub fn class_of(&self, len: usize) -> usize {
        let fits = self.inner.classes.iter().position(|class| class.size >= len);
        fits.unwrap_or(self.class_count().saturating_sub(1))
    }

    /// Buffers that are free in a class.
    pub fn available(&self, class: usize) -> usize {
        self.inner.classes[class].free.borrow().len()
    }

    /// Buffers that are free in all classes together.
    pub fn available_total(&self) -> usize {
        (0..self.class_count()).map(|class| self.available(class)).sum()
    }

    /// Bytes of its own buffers that are in use.
    pub fn bytes_in_use(&self) -> usize {
        let in_use = |class: &Class| class.size * (class.slots.len() - class.free.borrow().len());
        self.inner.classes.iter().map(in_use).sum()
    }

    /// The largest buffer that the pool can ever give.
    pub fn largest(&self) -> usize {
        self.inner.classes.last().map_or(0, |class| class.size)
    }

    /// How many times [`BufferPool::take`] found nothing.
    pub fn waits(&self) -> u64 {
        self.inner.waits.get()
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let classes = (0..self.class_count()).map(|class| {
            (self.class_size(class), self.inner.classes[class].slots.len(), self.available(class))
        });
        f.debug_list().entries(classes).finish()
    }
}

/// The only owner of one buffer. Dropped, the buffer goes back to its pool.
pub struct IoBuf {
    slot: SlotRef,
    len: usize,
}

impl IoBuf {
    /// A zeroed buffer outside any pool, with the pool's alignment: for slow paths and tests.
    ///
    /// # Panics
    /// If `len` is more than the address space, as a `Vec` does.
    pub fn heap(len: usize) -> IoBuf {
        let capacity = len.max(1).next_multiple_of(BUFFER_ALIGNMENT);
        // SAFETY: the layout is not of size zero.
        let memory = unsafe { std::alloc::alloc_zeroed(heap_layout(capacity)) };
        let Some(memory) = NonNull::new(memory) else {
            std::alloc::handle_alloc_error(heap_layout(capacity));
        };
        IoBuf { slot: SlotRef { slot: heap_slot(memory, capacity), pool: None }, len }
    }

    /// The same, without a page of memory until it is written: for large buffers of which little may ever be used. The
    /// first use of each page costs a page fault.
    ///
    /// # Panics
    /// As [`IoBuf::heap`].
    pub fn sparse(len: usize) -> IoBuf {
        let capacity = len.max(1).next_multiple_of(BUFFER_ALIGNMENT);
        // SAFETY: the layout is not of size zero.
        let memory = unsafe { std::alloc::alloc(heap_layout(capacity)) };
        let Some(memory) = NonNull::new(memory) else {
            std::alloc::handle_alloc_error(heap_layout(capacity));
        };
        let all = memory.as_ptr().cast();
        // SAFETY: the memory was just allocated, nothing else is in it, and it is anonymous and private, as allocators
        // have no other. Its whole pages go back to the kernel, and read as zeroes.
        let is_empty = unsafe { libc::madvise(all, capacity, libc::MADV_DONTNEED) } == 0;
        if !is_empty {
            // The kernel's pages are larger than the alignment, or memory is locked.
            // SAFETY: the memory has this many bytes.
            unsafe { memory.write_bytes(0, capacity) };
        }
        IoBuf { slot: SlotRef { slot: heap_slot(memory, capacity), pool: None }, len }
    }

    /// A buffer outside any pool with these contents.
    pub fn from_slice(bytes: &[u8]) -> IoBuf {
        let mut buf = IoBuf::heap(bytes.len());
        buf.copy_from_slice(bytes);
        buf
    }

    /// Bytes in use: as asked for, or as set by [`IoBuf::set_len`].
    #[allow(clippy::len_without_is_empty, reason = "slices have is_empty, through Deref")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes it could hold.
    pub fn capacity(&self) -> usize {
        self.slot.get().capacity.get()
    }

    /// Changes the number of bytes in use; bytes never written are stale, not undefined.
    ///
    /// # Panics
    /// If `len` is more than [`IoBuf::capacity`].
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity(), "buffer length {len} over capacity {}", self.capacity());
        self.len = len;
    }

    /// Gives up writing, so that the buffer can have many readers.
    pub fn share(self) -> SharedBuf {
        SharedBuf { slot: self.slot, len: self.len }
    }

    /// A buffer of all the bytes of a slot that has no other owner.
    pub(super) fn over(slot: SlotRef, len: usize) -> IoBuf {
        IoBuf { slot, len }
    }

    /// All memory of its pool, if it has one.
    pub(crate) fn lasting(&self) -> Option<LastingMemory> {
        self.slot.lasting()
    }

    /// Where the bytes are, for system calls: valid for [`IoBuf::capacity`] bytes.
    pub(crate) fn as_io_ptr(&self) -> *mut u8 {
        self.slot.get().memory.get().as_ptr()
    }
}

impl Deref for IoBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len` <= capacity, the memory is initialised (zeroed when mapped), and this
        // is the only owner.
        unsafe { std::slice::from_raw_parts(self.slot.get().memory.get().as_ptr(), self.len) }
    }
}

impl DerefMut for IoBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; the only owner is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.slot.get().memory.get().as_ptr(), self.len) }
    }
}

impl fmt::Debug for IoBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IoBuf({} of {} bytes)", self.len, self.capacity())
    }
}

/// One of several readers of a buffer; the last one dropped returns it to its pool.
#[derive(Clone)]
pub struct SharedBuf {
    slot: SlotRef,
    len: usize,
}

impl SharedBuf {
    /// Bytes in use.
    #[allow(clippy::len_without_is_empty, reason = "slices have is_empty, through Deref")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Becomes the only owner again.
    ///
    /// # Errors
    /// Gives itself back when there are other readers, or may be: it is a part of a shared buffer.
    pub fn try_unique(self) -> Result<IoBuf, SharedBuf> {
        if self.slot.get().references.get() == 1 && !self.slot.is_read_only() {
            Ok(IoBuf { slot: self.slot, len: self.len })
        } else {
            Err(self)
        }
    }

    /// All memory of its pool, if it has one.
    pub(crate) fn lasting(&self) -> Option<LastingMemory> {
        self.slot.lasting()
    }

    /// Its reference to the memory.
    pub(super) fn slot(&self) -> &SlotRef {
        &self.slot
    }

    /// Where the bytes are, for system calls that read them.
    pub(crate) fn as_io_ptr(&self) -> *const u8 {
        self.slot.get().memory.get().as_ptr()
    }
}

impl Deref for SharedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len` <= capacity, the memory is initialised, and all owners only read.
        unsafe { std::slice::from_raw_parts(self.slot.get().memory.get().as_ptr(), self.len) }
    }
}

impl From<IoBuf> for SharedBuf {
    fn from(buf: IoBuf) -> SharedBuf {
        buf.share()
    }
}

impl fmt::Debug for SharedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedBuf({} bytes, {} readers)", self.len, self.slot.get().references.get())
    }
}

/// The class of slots over lent memory, which is not among those that buffers are taken from.
const LENT_CLASS: usize = usize::MAX;
/// The class of slots over parts of other slots' memory, which are in no pool of buffers.
const PART_CLASS: usize = LENT_CLASS - 1;

struct PoolInner {
    classes: Vec<Class>,
    lent: Class,
    waits: Cell<u64>,
    /// What the slots point into.
    mapping: Arc<Mapping>,
    companions: Companions,
}

struct Class {
    size: usize,
    /// Never moves: buffers point at their slot.
    slots: Box<[Slot]>,
    /// Indices of the slots without an owner. Its capacity is the number of slots.
    free: RefCell<Vec<usize>>,
}

impl Class {
    fn new(size: usize, slots: Vec<Slot>) -> Class {
        // Last in, first out, so that a hot buffer is used again; the first goes out first.
        let free = RefCell::new((0..slots.len()).rev().collect());
        Class { size, slots: slots.into_boxed_slice(), free }
    }
}

/// One buffer's memory and the number of its owners. Only the memory of a lent slot and of a part
/// changes, while it has no owner.
pub(super) struct Slot {
    references: Cell<u32>,
    memory: Cell<NonNull<u8>>,
    capacity: Cell<usize>,
    class: usize,
}

impl Slot {
    fn free(memory: NonNull<u8>, capacity: usize, class: usize) -> Slot {
        let (memory, capacity) = (Cell::new(memory), Cell::new(capacity));
        Slot { references: Cell::new(0), memory, capacity, class }
    }
}

impl Slot {
    /// Of a part that is not there yet.
    pub(super) fn of_part() -> Slot {
        Slot::free(NonNull::dangling(), 0, PART_CLASS)
    }

    /// Becomes a part that has one owner.
    pub(super) fn lend_part(&self, memory: NonNull<u8>, len: usize) {
        debug_assert_eq!((self.references.get(), self.class), (0, PART_CLASS));
        self.references.set(1);
        self.memory.set(memory);
        self.capacity.set(len);
    }
}

/// One counted reference to a slot: in a pool (kept alive), on the heap, or of a part, which keeps its
/// place alive.
pub(super) struct SlotRef {
    slot: NonNull<Slot>,
    pool: Option<Rc<PoolInner>>,
}

impl SlotRef {
    /// The memory of its pool; `None` outside pools, and for lent memory.
    pub(super) fn lasting(&self) -> Option<LastingMemory> {
        let pool = self.pool.as_ref().filter(|_| self.get().class != LENT_CLASS)?;
        let (start, len) = (pool.mapping.base(), pool.mapping.len());
        let owner: Arc<Mapping> = Arc::clone(&pool.mapping);
        Some(LastingMemory { start, len, owner, is_reused: true })
    }

    /// The only reference to a part.
    pub(super) fn of_part(slot: NonNull<Slot>) -> SlotRef {
        SlotRef { slot, pool: None }
    }

    /// Whether it is a part whose bytes others may read.
    fn is_read_only(&self) -> bool {
        // SAFETY: it is one, and has an owner.
        self.get().class == PART_CLASS && unsafe { parts::is_read_only(self.slot) }
    }

    pub(super) fn memory(&self) -> NonNull<u8> {
        self.get().memory.get()
    }

    fn get(&self) -> &Slot {
        // SAFETY: a pool slot lives in the pool that `pool` keeps alive, and never moves; a
        // heap slot and the place of a part live until the last reference is dropped.
        unsafe { self.slot.as_ref() }
    }
}

impl Clone for SlotRef {
    fn clone(&self) -> SlotRef {
        let references = &self.get().references;
        references.set(references.get().checked_add(1).expect("fewer than 2^32 readers"));
        SlotRef { slot: self.slot, pool: self.pool.clone() }
    }
}

impl Drop for SlotRef {
    #[inline]
    fn drop(&mut self) {
        let references = &self.get().references;
        let left = references.get() - 1;
        references.set(left);
        if left == 0 {
            self.release();
        }
    }
}

impl SlotRef {
    /// Gives the slot back after its last reference.
    fn release(&mut self) {
        let slot = self.get();
        if let Some(pool) = &self.pool {
            let class = pool.classes.get(slot.class).unwrap_or(&pool.lent);
            // SAFETY: a pool slot points into the slots of its own class.
            let index = unsafe { self.slot.as_ptr().offset_from(class.slots.as_ptr()) };
            class.free.borrow_mut().push(index.unsigned_abs());
        } else if slot.class == PART_CLASS {
            // SAFETY: this was the last reference.
            unsafe { parts::release(self.slot) };
        } else {
            let (memory, layout) = (slot.memory.get(), heap_layout(slot.capacity.get()));
            // SAFETY: both were allocated in `IoBuf::heap` or `IoBuf::sparse`, and this was the last reference.
            unsafe {
                std::alloc::dealloc(memory.as_ptr(), layout);
                drop(Box::from_raw(self.slot.as_ptr()));
            }
        }
    }
}

/// The slot of a buffer outside any pool, with its first reference.
fn heap_slot(memory: NonNull<u8>, capacity: usize) -> NonNull<Slot> {
    let slot = Slot::free(memory, capacity, 0);
    slot.references.set(1);
    NonNull::from(Box::leak(Box::new(slot)))
}

fn heap_layout(capacity: usize) -> std::alloc::Layout {
    std::alloc::Layout::from_size_align(capacity, BUFFER_ALIGNMENT)
        .expect("a buffer fits in memory")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool() -> BufferPool {
        BufferPool::new(&PoolConfig::new(&[(8192, 1), (512, 2)])).unwrap()
    }

    #[test]
    fn take_prefers_the_smallest_class_and_falls_back_to_larger() {
        let pool = pool();
        assert_eq!((pool.class_count(), pool.class_size(0), pool.class_size(1)), (2, 4096, 8192));
        let small = [pool.take(100).unwrap(), pool.take(4096).unwrap()];
        assert_eq!((pool.available(0), pool.available(1)), (0, 1));
        let large = pool.take(1).unwrap();
        assert_eq!((large.len(), large.capacity()), (1, 8192));
        assert!(pool.take(1).is_none());
        assert_eq!(pool.waits(), 1);
        drop(small);
        drop(large);
        assert_eq!(pool.available_total(), 3);
        assert!(pool.take(8193).is_none());
    }

    #[test]
    fn buffers_are_aligned_disjoint_and_zeroed() {
        let pool = BufferPool::new(&PoolConfig::new(&[(4096, 4)])).unwrap();
        let mut all: Vec<IoBuf> = (0..4).map(|_| pool.take(4096).unwrap()).collect();
        for (fill, buf) in (1u8..).zip(&mut all) {
            assert!(buf.iter().all(|&byte| byte == 0));
            assert_eq!(buf.as_ptr().addr() % BUFFER_ALIGNMENT, 0);
            buf.fill(fill);
        }
        for (fill, buf) in (1u8..).zip(&all) {
            assert!(buf.iter().all(|&byte| byte == fill));
        }
    }

    #[test]
    fn shared_buffers_return_with_their_last_reader() {
        let pool = pool();
        let mut buf = pool.take(3).unwrap();
        buf.copy_from_slice(b"abc");
        let one = buf.share();
        let two = one.clone();
        assert_eq!(&two[..], b"abc");
        let one = one.try_unique().unwrap_err();
        drop(one);
        assert_eq!(pool.available(0), 1);
        let mut buf = two.try_unique().unwrap();
        buf.set_len(4096);
        assert_eq!(&buf[..3], b"abc");
        drop(buf);
        assert_eq!(pool.available(0), 2);
    }

    #[test]
    fn buffers_outlive_their_pool() {
        let pool = pool();
        let mut buf = pool.take(16).unwrap();
        drop(pool);
        buf.fill(7);
        assert_eq!(buf.share()[15], 7);
    }

    #[test]
    fn lent_memory_is_used_in_place_and_given_back() {
        let mut own = vec![1u8; 5000];
        let pool = BufferPool::lending(&PoolConfig::new(&[(4096, 1)]), 1).unwrap();
        let memory = NonNull::from(&mut own[..]).cast();
        // SAFETY: `own` lives and is left alone until the buffer is gone.
        let mut buf = unsafe { pool.lend(memory, 5000) }.unwrap();
        assert_eq!((buf.len(), buf.capacity(), pool.lent_available()), (5000, 5000, 0));
        // SAFETY: it gives nothing.
        assert!(unsafe { pool.lend(memory, 1) }.is_none());
        buf[4999] = 7;
        let shared = buf.share();
        let other = shared.clone();
        drop(shared);
        assert_eq!((other[4999], pool.lent_available()), (7, 0));
        drop(other);
        assert_eq!((pool.lent_available(), pool.available_total()), (1, 1));
        assert_eq!(own[4999], 7);
    }

    #[test]
    fn heap_buffers_need_no_pool() {
        let shared = IoBuf::from_slice(b"hello").share();
        let other = shared.clone();
        drop(shared);
        assert_eq!(&other.try_unique().unwrap()[..], b"hello");
        assert!(IoBuf::heap(0).is_empty());
    }

    /// How many pages of a buffer the kernel has given memory.
    fn resident_pages(buf: &IoBuf) -> usize {
        let mut pages = vec![0_u8; buf.capacity() / BUFFER_ALIGNMENT];
        let start = buf.as_ptr().cast_mut().cast();
        // SAFETY: the range is the buffer's, and the vector has a byte for each of its pages.
        let result = unsafe { libc::mincore(start, buf.capacity(), pages.as_mut_ptr()) };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
        pages.iter().filter(|&&page| page & 1 != 0).count()
    }

    #[test]
    fn a_sparse_buffer_has_the_pages_that_were_written() {
        const BYTES: usize = 64 << 10;
        // An allocator that gives out used memory gives out this.
        let mut used = IoBuf::heap(BYTES);
        used.fill(7);
        assert_eq!(resident_pages(&used), 16);
        drop(used);
        let mut buf = IoBuf::sparse(BYTES);
        assert_eq!((buf.len(), resident_pages(&buf)), (BYTES, 0));
        buf[5000] = 1;
        assert_eq!(resident_pages(&buf), 1);
        assert_eq!(buf.iter().map(|&byte| u32::from(byte)).sum::<u32>(), 1, "zeroes but for one");
        buf.fill(9);
        assert_eq!(resident_pages(&buf), 16);
        let other = IoBuf::sparse(1);
        assert_eq!((other.len(), other.capacity(), other[0]), (1, BUFFER_ALIGNMENT, 0));
    }

    #[test]
    #[should_panic(expected = "over capacity")]
    fn set_len_is_checked() {
        IoBuf::heap(1).set_len(BUFFER_ALIGNMENT + 1);
    }
}
