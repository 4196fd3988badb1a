//! Memory mappings, anonymous or of a file in memory: the ground under pools and regions.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, RawFd};
use std::ptr::NonNull;

/// The size of a normal page in bytes.
pub(crate) const PAGE_SIZE: usize = 4096;

/// An owned mapping: zeroed, private and anonymous, or shared with whoever else maps its file in memory.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: owning a range of addresses is not bound to a thread; how the bytes are accessed is
// the business of the types built on it.
unsafe impl Send for Mapping {}
// SAFETY: as above; a shared reference only gives the address.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes whose base is a multiple of `alignment` (a power of two). The memory is
    /// accounted (no MAP_NORESERVE): a system that promises no overcommit refuses here.
    pub(crate) fn anonymous(len: usize, alignment: usize) -> io::Result<Mapping> {
        let len = len.checked_next_multiple_of(PAGE_SIZE).ok_or(io::ErrorKind::InvalidInput)?;
        if alignment <= PAGE_SIZE {
            return Ok(Mapping { base: map(len, 0)?, len });
        }
        let base = Self::reserve(len, alignment)?;
        Ok(Mapping { base, len })
    }

    /// Maps the first `len` bytes of a file in memory (memfd_create(2)), as [`Self::anonymous`] does.
    pub(crate) fn of_memory(
        file: BorrowedFd<'_>,
        len: usize,
        alignment: usize,
    ) -> io::Result<Mapping> {
        let len = len.checked_next_multiple_of(PAGE_SIZE).ok_or(io::ErrorKind::InvalidInput)?;
        let base = Self::reserve(len, alignment.max(PAGE_SIZE))?;
        // From here on it is unmapped when this fails.
        let mapping = Mapping { base, len };
        map_shared_at(mapping.base, len, file.as_raw_fd())?;
        Ok(mapping)
    }

    /// Maps `len` bytes (a multiple of the page size) of a device from `offset` on, which the kernel writes and nobody here.
    pub(crate) fn of_device(file: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<Mapping> {
        let offset = libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        let (null, fd) = (std::ptr::null_mut(), file.as_raw_fd());
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing.
        let base = unsafe { libc::mmap(null, len, libc::PROT_READ, flags, fd, offset) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { base, len })
    }

    /// Addresses of `len` bytes of zeroes, at a multiple of `alignment`, which is more than a page.
    fn reserve(len: usize, alignment: usize) -> io::Result<NonNull<u8>> {
        let whole = len.checked_add(alignment).ok_or(io::ErrorKind::InvalidInput)?;
        let start = map(whole, 0)?;
        // Cut off what lies before the first aligned byte and after the last one needed.
        let head = start.as_ptr().align_offset(alignment);
        // SAFETY: head < alignment, so head + len is inside the mapping just made.
        let (base, end) = unsafe { (start.add(head), start.add(head + len)) };
        // SAFETY: nothing else knows the two ranges cut off.
        unsafe {
            unmap(start, head);
            unmap(end, alignment - head);
        }
        Ok(base)
    }

    /// Maps `len` bytes (a multiple of the huge page size) of reserved huge pages.
    pub(crate) fn huge(len: usize) -> io::Result<Mapping> {
        Ok(Mapping { base: map(len, libc::MAP_HUGETLB)?, len })
    }

    /// Has the kernel take pages that are not there yet from the memory of one NUMA node, while that has
    /// some (mbind(2), MPOL_PREFERRED).
    pub(crate) fn prefer_node(&self, node: usize) -> io::Result<()> {
        const MPOL_PREFERRED: libc::c_int = 1;
        const NODES: usize = 1024;
        const BITS: usize = libc::c_ulong::BITS as usize;
        let mut nodes: [libc::c_ulong; NODES / BITS] = [0; NODES / BITS];
        let word = nodes.get_mut(node / BITS).ok_or(io::ErrorKind::InvalidInput)?;
        *word = 1 << (node % BITS);
        // SAFETY: the range is this mapping's, whose contents do not change; the kernel reads `nodes`, and
        // takes the number of its bits plus one.
        let result = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.base.as_ptr(),
                self.len,
                MPOL_PREFERRED,
                nodes.as_ptr(),
                NODES + 1,
                0,
            )
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// The first byte.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Bytes mapped: the length asked for, in whole pages.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Tells the kernel how `len` bytes from `offset` will be used (madvise(2)).
    pub(crate) fn advise(&self, offset: usize, len: usize, advice: libc::c_int) -> io::Result<()> {
        assert!(offset <= self.len && len <= self.len - offset);
        // SAFETY: the range is inside this mapping. The advice given in this crate either
        // changes no contents (MADV_HUGEPAGE, MADV_POPULATE_WRITE) or (MADV_DONTNEED, MADV_REMOVE) makes
        // them zeroes, which the caller wants.
        let result = unsafe { libc::madvise(self.base.add(offset).as_ptr().cast(), len, advice) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: types that hand out pointers keep their mapping alive, so none are left.
        unsafe { unmap(self.base, self.len) };
    }
}

fn map(len: usize, flags: libc::c_int) -> io::Result<NonNull<u8>> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(base.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

/// Puts a shared mapping of a file in the place of one that [`map`] has made.
fn map_shared_at(base: NonNull<u8>, len: usize, file: RawFd) -> io::Result<()> {
    let flags = libc::MAP_SHARED | libc::MAP_FIXED;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the range was mapped by the caller, who alone knows of it, and nothing is stored there.
    let mapped = unsafe { libc::mmap(base.as_ptr().cast(), len, protection, flags, file, 0) };
    if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// # Safety
/// The range must come from [`map`], and nothing may use it any more.
unsafe fn unmap(base: NonNull<u8>, len: usize) {
    if len > 0 {
        // SAFETY: the caller's promise.
        unsafe { libc::munmap(base.as_ptr().cast(), len) };
    }
}
