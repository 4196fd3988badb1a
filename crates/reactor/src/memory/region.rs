//! Large memory shared by all cores, such as the contents of a RAM namespace.
//!
//! Cores read and write a region at any time without locks, as hosts may do with one namespace.
//! A `&[u8]` into it would promise the compiler that no core writes meanwhile, which is false; so bytes
//! only ever leave and enter by raw copies, whose result under a concurrent write may be a mixture of old
//! and new bytes but never anything else. That is what NVMe promises, too.

#![allow(unsafe_code)]

use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::{Arc, PoisonError, RwLock};

use crate::flow::{Machine, policy};
use crate::memory::lasting::LastingMemory;
use crate::memory::mapping::{Mapping, PAGE_SIZE};
use crate::memory::stream;

/// The size of a huge page in bytes (x86-64, and arm64 with 4 KiB pages).
pub(crate) const HUGE_PAGE_SIZE: usize = 2 << 20;

/// The size of a cache line in bytes.
const CACHE_LINE_SIZE: usize = 64;

/// Which pages a region is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePages {
    /// Normal pages.
    None,
    /// Huge pages where the kernel has some (MADV_HUGEPAGE); worth 13-30 % of random reads.
    #[default]
    Transparent,
    /// Huge pages that the administrator has reserved (MAP_HUGETLB), or an error.
    Explicit,
}

/// A large anonymous mapping. Every call panics when its range is not inside: the caller has
/// validated it.
#[derive(Debug)]
pub struct Region {
    mapping: Mapping,
    len: usize,
    /// What [`Region::discard`] gives back at once: the size of the pages asked for.
    page_size: usize,
    /// Writes go to memory at once, past the caches: that takes half the time, and leaves the caches to
    /// other data.
    past_caches: bool,
    /// The advice that gives memory back and leaves zeroes: that depends on what is mapped.
    give_back: libc::c_int,
    /// Its pages stay: a device knows them.
    is_pinned: RwLock<bool>,
}

impl Region {
    /// Maps `len` bytes, reading zeroes. Pages are allocated when first written.
    ///
    /// # Errors
    /// The error of mmap(2): `OutOfMemory` for explicit huge pages that are not reserved.
    pub fn new(len: usize, pages: HugePages) -> io::Result<Region> {
        let (mapping, page_size) = map_pages(len, pages)?;
        let past_caches = policy::goes_past_caches(&Machine::current(), len);
        Ok(Region {
            mapping,
            len,
            page_size,
            past_caches,
            give_back: libc::MADV_DONTNEED,
            is_pinned: RwLock::default(),
        })
    }

    /// Maps `len` bytes of a file in memory, which other processes may map as well. With
    /// [`HugePages::Transparent`] the kernel uses huge pages if it does so for shared memory
    /// (/sys/kernel/mm/transparent_hugepage/shmem_enabled).
    ///
    /// # Errors
    /// The error of mmap(2); `InvalidInput` if the file is shorter, and for explicit huge pages.
    pub fn of_memory(file: impl AsFd, len: usize, pages: HugePages) -> io::Result<Region> {
        let file = file.as_fd();
        let size = rustix::fs::fstat(file)?.st_size;
        let is_long = u64::try_from(size).is_ok_and(|size| size >= len as u64);
        if !is_long || pages == HugePages::Explicit {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let page_size = if pages == HugePages::None { PAGE_SIZE } else { HUGE_PAGE_SIZE };
        let mapping = Mapping::of_memory(file, len.max(1), page_size)?;
        if pages == HugePages::Transparent
            && let Err(error) = mapping.advise(0, mapping.len(), libc::MADV_HUGEPAGE)
        {
            tracing::debug!("no transparent huge pages: {error}");
        }
        let past_caches = policy::goes_past_caches(&Machine::current(), len);
        Ok(Region {
            mapping,
            len,
            page_size,
            past_caches,
            give_back: libc::MADV_REMOVE,
            is_pinned: RwLock::default(),
        })
    }

    /// Has pages that are allocated from now on come from the memory of a NUMA node, while that has some.
    ///
    /// # Errors
    /// The error of mbind(2): there is no such node, or this process may not.
    pub fn prefer_node(&self, node: usize) -> io::Result<()> {
        self.mapping.prefer_node(node)
    }

    /// Its length in bytes.
    #[allow(clippy::len_without_is_empty, reason = "a region is not a collection")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Allocates the pages of a range now, so that no operation waits for them later. Contents stay as
    /// they are. Takes milliseconds per huge page: not for a reactor.
    ///
    /// # Errors
    /// `InvalidInput` before Linux 5.14, where pages come when they are written.
    ///
    /// # Panics
    /// If the range is outside.
    pub fn populate(&self, offset: u64, len: u64) -> io::Result<()> {
        let (start, len) = (usize_of(offset), usize_of(len));
        self.range(offset, len);
        let first = start - start % PAGE_SIZE;
        self.mapping.advise(first, start + len - first, libc::MADV_POPULATE_WRITE)
    }

    /// Copies bytes out of the region.
    ///
    /// # Panics
    /// If the range is outside.
    pub fn copy_out(&self, offset: u64, to: &mut [u8]) {
        let from = self.range(offset, to.len());
        // SAFETY: the range is inside; `to` cannot overlap, as no slice of a region exists. A
        // concurrent writer makes the bytes a mixture, which every caller accepts.
        unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
    }

    /// Copies bytes into the region; a thread that learns that it is done finds them there.
    ///
    /// # Panics
    /// If the range is outside.
    pub fn copy_in(&self, offset: u64, from: &[u8]) {
        self.copy_in_relaxed(offset, from);
        stream::fence();
    }

    /// As [`Self::copy_in`], but without a fence behind each copy, which makes many copies cheaper. Only
    /// a receiver of what this thread sends ([`crate::Io::send`]) or of its messages ([`crate::mailbox`])
    /// is certain to find the bytes there.
    ///
    /// # Panics
    /// If the range is outside.
    pub fn copy_in_relaxed(&self, offset: u64, from: &[u8]) {
        let to = self.range(offset, from.len());
        let copy = if self.past_caches { stream::copy } else { stream::plain_copy };
        // SAFETY: as in `copy_out`.
        unsafe { copy(from.as_ptr(), to, from.len()) };
    }

    /// Copies a range to another place of the region. The ranges do not overlap. A thread that learns that it is done
    /// finds the bytes there.
    ///
    /// # Panics
    /// If a range is outside, or they overlap.
    pub fn copy_within(&self, from: u64, to: u64, len: u64) {
        assert!(from.abs_diff(to) >= len, "{len} bytes from {from} to {to} overlap");
        let len = usize_of(len);
        let (from, to) = (self.range(from, len), self.range(to, len));
        let copy = if self.past_caches { stream::copy } else { stream::plain_copy };
        // SAFETY: the ranges are inside and apart. As in `copy_out`, bytes that others write meanwhile may be a mixture.
        unsafe { copy(from, to, len) };
        stream::fence();
    }

    /// Makes a range read zeroes, keeping its memory.
    ///
    /// # Panics
    /// If the range is outside.
    pub fn fill_zero(&self, offset: u64, len: u64) {
        let len = usize_of(len);
        let to = self.range(offset, len);
        // SAFETY: as in `copy_out`.
        unsafe { std::ptr::write_bytes(to, 0, len) };
    }

    /// Its memory for a device that reads it in place. From now on its pages stay, and [`Self::discard`] gives none back.
    /// `None` for memory that other processes map, too: they could give its pages back.
    #[must_use]
    pub fn pin(self: &Arc<Self>) -> Option<LastingMemory> {
        if self.give_back != libc::MADV_DONTNEED {
            return None;
        }
        *self.is_pinned.write().unwrap_or_else(PoisonError::into_inner) = true;
        let owner: Arc<Self> = Arc::clone(self);
        Some(LastingMemory { start: self.mapping.base(), len: self.len, owner, is_reused: false })
    }

    /// Makes a range read zeroes and gives the memory of its whole pages back, unless it is pinned. With huge pages
    /// only whole huge pages: giving back less would break them up.
    ///
    /// # Panics
    /// If the range is outside.
    pub fn discard(&self, offset: u64, len: u64) {
        let (start, len) = (usize_of(offset), usize_of(len));
        self.range(offset, len);
        let end = start + len;
        let first = start.next_multiple_of(self.page_size);
        // The last page may be partly behind the end of the region, where nothing is stored.
        let last = if end == self.len { self.mapped_len() } else { end - end % self.page_size };
        // Held until the pages are gone, so that nobody pins them meanwhile.
        let is_pinned = self.is_pinned.read().unwrap_or_else(PoisonError::into_inner);
        let given_back = first < last
            && !*is_pinned
            && match self.mapping.advise(first, last - first, self.give_back) {
                Ok(()) => true,
                Err(error) => {
                    // Before Linux 5.18 explicit huge pages cannot be given back; locked
                    // memory never can.
                    tracing::debug!("memory not given back: {error}");
                    false
                }
            };
        if given_back {
            self.fill_zero(offset, (first - start) as u64);
            if last < end {
                self.fill_zero(last as u64, (end - last) as u64);
            }
        } else {
            self.fill_zero(offset, len as u64);
        }
    }

    /// True if the bytes from `offset` are these.
    ///
    /// # Panics
    /// If the range is outside.
    pub fn equals(&self, offset: u64, bytes: &[u8]) -> bool {
        let at = self.range(offset, bytes.len());
        // SAFETY: the range is inside; memcmp only reads, and sees a mixture of old and new
        // bytes under a concurrent write.
        unsafe { libc::memcmp(at.cast(), bytes.as_ptr().cast(), bytes.len()) == 0 }
    }

    /// Starts fetching a range into the cache, without waiting for it: the first lines of each page,
    /// which the processor's own prefetcher then follows. For random 4 KiB that are copied afterwards it
    /// saves a fifth of the time (a quarter with normal pages); asking for every line costs more than it
    /// saves.
    ///
    /// # Panics
    /// If the range is outside.
    pub fn prefetch(&self, offset: u64, len: usize) {
        prefetch_pages(self.range(offset, len), len);
    }

    /// Where a range starts, for copies and system calls.
    ///
    /// # Panics
    /// If the range is outside.
    pub(crate) fn range(&self, offset: u64, len: usize) -> *mut u8 {
        let offset = usize_of(offset);
        assert!(
            offset <= self.len && len <= self.len - offset,
            "range of {len} at {offset} outside a region of {}",
            self.len
        );
        // SAFETY: offset <= len of the mapping.
        unsafe { self.mapping.base().add(offset).as_ptr() }
    }

    fn mapped_len(&self) -> usize {
        self.mapping.len()
    }
}

/// Large memory with one owner, which may therefore use it as a slice.
#[derive(Debug)]
pub struct PageBuf {
    mapping: Mapping,
    len: usize,
}

impl PageBuf {
    /// Maps `len` bytes, reading zeroes. Pages are allocated when first written.
    ///
    /// # Errors
    /// As [`Region::new`].
    pub fn new(len: usize, pages: HugePages) -> io::Result<PageBuf> {
        let (mapping, _) = map_pages(len, pages)?;
        Ok(PageBuf { mapping, len })
    }

    /// As [`Region::prefetch`].
    ///
    /// # Panics
    /// If the range is outside.
    pub fn prefetch(&self, range: Range<usize>) {
        let bytes = &self[range];
        prefetch_pages(bytes.as_ptr(), bytes.len());
    }

    /// Copies bytes into memory, past the cache: each of the pieces to its offset.
    ///
    /// # Panics
    /// If one does not fit in there.
    pub fn stream_in<'a>(&mut self, pieces: impl IntoIterator<Item = (usize, &'a [u8])>) {
        /// Also when the pieces panic: the fence comes before the memory is read.
        struct Fence;
        impl Drop for Fence {
            fn drop(&mut self) {
                stream::fence();
            }
        }
        let _fence = Fence;
        for (offset, from) in pieces {
            let to = &mut self[offset..offset + from.len()];
            // SAFETY: both are slices of this length, and one of them is borrowed mutably.
            unsafe { stream::copy(from.as_ptr(), to.as_mut_ptr(), from.len()) };
        }
    }
}

impl Deref for PageBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping has at least `len` bytes, zeroed when mapped; a writer has borrowed this,
        // their only owner, mutably.
        unsafe { std::slice::from_raw_parts(self.mapping.base().as_ptr(), self.len) }
    }
}

impl DerefMut for PageBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; the only owner is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.base().as_ptr(), self.len) }
    }
}

/// Maps at least `len` bytes, and gives the size of the pages asked for.
fn map_pages(len: usize, pages: HugePages) -> io::Result<(Mapping, usize)> {
    let page_size = if pages == HugePages::None { PAGE_SIZE } else { HUGE_PAGE_SIZE };
    let mapped = len
        .max(1)
        .checked_next_multiple_of(if pages == HugePages::Explicit { page_size } else { PAGE_SIZE })
        .ok_or(io::ErrorKind::InvalidInput)?;
    let mapping = match pages {
        HugePages::Explicit => Mapping::huge(mapped)?,
        HugePages::None | HugePages::Transparent => Mapping::anonymous(mapped, page_size)?,
    };
    if pages == HugePages::Transparent
        && let Err(error) = mapping.advise(0, mapped, libc::MADV_HUGEPAGE)
    {
        // A kernel built without transparent huge pages: slower, not wrong.
        tracing::debug!("no transparent huge pages: {error}");
    }
    Ok((mapping, page_size))
}

/// One core's handle to a region: cloned per command without touching the counter of the
/// [`Arc`], whose cache line all cores share.
#[derive(Clone, Debug)]
#[allow(clippy::redundant_allocation, reason = "the second counter is the point")]
pub struct RegionHandle {
    region: Rc<Arc<Region>>,
}

impl RegionHandle {
    /// A handle for the core that calls.
    pub fn new(region: Arc<Region>) -> RegionHandle {
        RegionHandle { region: Rc::new(region) }
    }

    /// The region for another core.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }
}

impl Deref for RegionHandle {
    type Target = Region;

    fn deref(&self) -> &Region {
        &self.region
    }
}

fn prefetch_pages(start: *const u8, len: usize) {
    for page in (0..len).step_by(PAGE_SIZE) {
        for line in 0..policy::PREFETCH_LINES {
            prefetch_line(start.wrapping_add(page + line * CACHE_LINE_SIZE));
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn prefetch_line(line: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a prefetch changes nothing but the cache, whatever the address.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) }
}

#[cfg(not(target_arch = "x86_64"))]
fn prefetch_line(_line: *const u8) {}

/// Offsets are 64-bit on the wire; one that does not fit an address is outside any region.
fn usize_of(value: u64) -> usize {
    usize::try_from(value).expect("offset beyond the address space")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resident_pages(region: &Region) -> usize {
        let mut pages = vec![0u8; region.mapped_len().div_ceil(PAGE_SIZE)];
        let base = region.range(0, region.len());
        // SAFETY: the vector has one byte per page of the mapping.
        let result = unsafe { libc::mincore(base.cast(), region.mapped_len(), pages.as_mut_ptr()) };
        assert_eq!(result, 0);
        pages.iter().filter(|&&page| page & 1 == 1).count()
    }

    #[test]
    fn memory_of_a_node() {
        let region = Region::new(64 * PAGE_SIZE, HugePages::None).unwrap();
        // A container may forbid it, and a kernel have no nodes.
        match region.prefer_node(0) {
            Ok(()) => region.copy_in(0, &[1; 4096]),
            Err(error) => eprintln!("SKIPPED: no mbind(2): {error}"),
        }
        region.prefer_node(1023).unwrap_err();
        region.prefer_node(usize::MAX).unwrap_err();
    }

    #[test]
    fn populated_pages_are_there_and_hold_what_was_written() {
        let region = Region::new(64 * PAGE_SIZE, HugePages::None).unwrap();
        region.copy_in(5, b"abc");
        region.populate(1, 32 * PAGE_SIZE as u64).unwrap();
        assert_eq!(resident_pages(&region), 33);
        assert!(region.equals(4, b"\0abc\0"));
    }

    #[test]
    fn copies_in_and_out() {
        let region = Region::new(10_000, HugePages::None).unwrap();
        assert_eq!(region.len(), 10_000);
        region.copy_in(9_995, b"12345");
        let mut out = [1; 6];
        region.copy_out(9_994, &mut out);
        assert_eq!(&out, b"\x0012345");
        assert!(region.equals(9_996, b"2345"));
        assert!(!region.equals(9_996, b"2346"));
        region.fill_zero(9_996, 2);
        assert!(region.equals(9_995, b"1\0\x0045"));
    }

    #[test]
    fn discard_zeroes_exactly_its_range_and_gives_memory_back() {
        for pages in [HugePages::None, HugePages::Transparent] {
            let len = 3 * HUGE_PAGE_SIZE + 100;
            let region = Region::new(len, pages).unwrap();
            assert_eq!(region.range(0, 0).addr() % region.page_size, 0);
            region.copy_in(0, &vec![0xaa; len]);
            let before = resident_pages(&region);
            let (start, end) = (1000, 2 * HUGE_PAGE_SIZE + 5);
            region.discard(start as u64, (end - start) as u64);
            let mut contents = vec![0; len];
            region.copy_out(0, &mut contents);
            for (offset, &byte) in contents.iter().enumerate() {
                let expected = if (start..end).contains(&offset) { 0 } else { 0xaa };
                assert_eq!(byte, expected, "at {offset} with {pages:?}");
            }
            // Reading maps the zero page again, which counts as resident: discard once more.
            region.discard(start as u64, (len - start) as u64);
            assert!(resident_pages(&region) < before, "{pages:?}");
            assert!(region.equals((len - 100) as u64, &[0; 100]));
        }
    }

    #[test]
    fn a_pinned_region_keeps_its_pages() {
        let region = Arc::new(Region::new(64 * PAGE_SIZE, HugePages::None).unwrap());
        region.copy_in(0, &[7; 64 * PAGE_SIZE]);
        let memory = region.pin().unwrap();
        assert_eq!((memory.len(), memory.is_reused()), (region.len(), false));
        assert_eq!(memory.start().as_ptr(), region.range(0, 0));
        region.discard(0, region.len() as u64);
        assert_eq!(resident_pages(&region), 64);
        assert!(region.equals(0, &[0; 64 * PAGE_SIZE]));
    }

    #[test]
    fn small_discards_only_fill() {
        let region = Region::new(8192, HugePages::None).unwrap();
        region.copy_in(0, &[1; 8192]);
        region.discard(100, 200);
        region.discard(4090, 12);
        assert!(
            region.equals(99, &[1]) && region.equals(100, &[0; 200]) && region.equals(300, &[1])
        );
        assert!(
            region.equals(4089, &[1]) && region.equals(4090, &[0; 12]) && region.equals(4102, &[1])
        );
        region.discard(0, 0);
        assert!(region.equals(0, &[1]));
    }

    #[test]
    fn a_buffer_of_pages_is_zeroed_and_writable_to_its_last_byte() {
        for pages in [HugePages::None, HugePages::Transparent] {
            let mut buf = PageBuf::new(HUGE_PAGE_SIZE + 5, pages).unwrap();
            assert_eq!(buf.len(), HUGE_PAGE_SIZE + 5);
            assert!(buf.iter().all(|&byte| byte == 0));
            buf.fill(7);
            assert_eq!((buf[0], buf[HUGE_PAGE_SIZE + 4]), (7, 7));
            buf.stream_in([(HUGE_PAGE_SIZE - 100, &[9; 100][..]), (HUGE_PAGE_SIZE, &[9; 5])]);
            assert_eq!(buf[HUGE_PAGE_SIZE - 101..][..106], [&[7][..], &[9; 105]].concat());
            buf.prefetch(0..HUGE_PAGE_SIZE + 5);
        }
    }

    #[test]
    #[should_panic(expected = "outside a region")]
    fn ranges_are_checked() {
        Region::new(4096, HugePages::None).unwrap().copy_in(4095, &[0; 2]);
    }

    #[test]
    #[should_panic(expected = "outside a region")]
    fn offsets_do_not_wrap() {
        Region::new(4096, HugePages::None).unwrap().fill_zero(u64::MAX, 2);
    }
}
