//! The pool's memory, registered with the ring, so that file operations need not look it up.
//!
//! A direct read or write of other memory pins its pages, and marks and releases each of them at
//! the end. Registered (lab 0016), all of the pool stays pinned, so this waits for a file. Where the limit of
//! locked memory (RLIMIT_MEMLOCK) forbids it, operations go on as those of other memory.

#![allow(unsafe_code)]

use std::ops::Range;

use io_uring::IoUring;

use crate::memory::buffer::BufferPool;

/// The one buffer that a ring has registered.
pub(super) const FIXED_INDEX: u16 = 0;

/// Memory that the kernel has pinned for a ring, or may be asked to.
#[derive(Default)]
pub(super) struct FixedMemory {
    /// Its mapping lives as long as the ring: other memory at the same addresses would be
    /// mistaken for what is pinned.
    pool: Option<BufferPool>,
    /// The addresses that are registered.
    addresses: Range<usize>,
    tried: bool,
}

impl FixedMemory {
    /// Offers a pool; the first one counts.
    pub(super) fn lend(&mut self, pool: &BufferPool) {
        self.pool.get_or_insert_with(|| pool.clone());
    }

    /// Registers the pool, if there is one and this is the first time.
    #[cold]
    pub(super) fn register(&mut self, ring: &IoUring) {
        let Some(pool) = self.pool.as_ref().filter(|_| !self.tried) else { return };
        self.tried = true;
        let (base, len) = pool.memory();
        let iovec = libc::iovec { iov_base: base.as_ptr().cast(), iov_len: len };
        // SAFETY: the mapping is `len` bytes long, and kept until after the ring. The kernel uses
        // it only for operations that own a part of it.
        match unsafe { ring.submitter().register_buffers(&[iovec]) } {
            Ok(()) => self.addresses = base.addr().get()..base.addr().get() + len,
            Err(error) => tracing::debug!(
                "{len} bytes of I/O buffers are not registered ({error}): file I/O takes more time"
            ),
        }
    }

    /// Whether all `len` bytes from this address on are registered.
    pub(super) fn holds(&self, address: usize, len: u32) -> bool {
        self.addresses.contains(&address) && len as usize <= self.addresses.end - address
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_wholly_inside_is_registered() {
        let memory = FixedMemory { addresses: 4096..12288, ..FixedMemory::default() };
        assert!(memory.holds(4096, 8192));
        assert!(memory.holds(12287, 1));
        assert!(!memory.holds(4095, 1));
        assert!(!memory.holds(8192, 4097));
        assert!(!memory.holds(12288, 0));
        assert!(!FixedMemory::default().holds(0, 1));
    }
}
