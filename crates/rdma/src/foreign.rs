//! Memory of others that a device reads in place.
#![allow(unsafe_code)]

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

/// Memory that is not the provider's. It is only read: for RDMA WRITEs to the peer.
pub struct Foreign {
    start: NonNull<u8>,
    len: usize,
    /// Keeps the memory where it is.
    _owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the memory may be read from any thread, as `new` demands, and the owner may be anywhere.
unsafe impl Send for Foreign {}
// SAFETY: as above; nothing is written through it.
unsafe impl Sync for Foreign {}

impl Foreign {
    /// So many bytes from `start` on.
    ///
    /// # Safety
    /// While the owner lives, the bytes are initialised, are valid for reads by any thread and by devices, and stay on the
    /// same pages. Others may write them meanwhile: then what is read is a mixture.
    #[must_use]
    pub unsafe fn new(start: NonNull<u8>, len: usize, owner: Arc<dyn Any + Send + Sync>) -> Self {
        Self { start, len, _owner: owner }
    }

    /// Where it begins, as work requests name it.
    #[must_use]
    pub fn address(&self) -> u64 {
        u64::try_from(self.start.as_ptr().addr()).unwrap_or(u64::MAX)
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty, reason = "memory is not a collection")]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// A copy of the bytes at an address, if they are within it.
    pub(crate) fn copy(&self, address: u64, len: u32) -> Option<Vec<u8>> {
        let offset = usize::try_from(address.checked_sub(self.address())?).ok()?;
        let len = usize::try_from(len).ok()?;
        if offset.checked_add(len)? > self.len {
            return None;
        }
        let mut bytes = vec![0; len];
        // SAFETY: the range is within the memory, which is valid for reads while the owner lives; the vector is other memory.
        unsafe {
            self.start.as_ptr().add(offset).copy_to_nonoverlapping(bytes.as_mut_ptr(), len);
        }
        Some(bytes)
    }
}

impl fmt::Debug for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Foreign({} bytes at {:?})", self.len, self.start)
    }
}

#[cfg(test)]
impl Foreign {
    /// All of a vector that nobody changes.
    pub(crate) fn of_bytes(owner: &Arc<Vec<u8>>) -> Self {
        let held: Arc<Vec<u8>> = Arc::clone(owner);
        // SAFETY: the vector has as many bytes, and stays as it is while it is shared.
        unsafe { Self::new(NonNull::from(&owner[0]), owner.len(), held) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_byte_outside_is_copied() {
        let owner: Arc<Vec<u8>> = Arc::new((0..100).collect());
        let start = NonNull::from(&owner[10]);
        let held: Arc<Vec<u8>> = Arc::clone(&owner);
        // SAFETY: 50 bytes of the vector, which nobody changes.
        let memory = unsafe { Foreign::new(start, 50, held) };
        let at = memory.address();
        assert_eq!(memory.copy(at + 5, 2), Some(vec![15, 16]));
        assert_eq!(memory.copy(at + 49, 1), Some(vec![59]));
        for (address, len) in [(at - 1, 1), (at + 50, 1), (at, 51), (u64::MAX, 1), (at, u32::MAX)] {
            assert_eq!(memory.copy(address, len), None, "{address:x} {len}");
        }
        assert_eq!(memory.copy(at + 50, 0), Some(Vec::new()));
        assert_eq!(Arc::strong_count(&owner), 2);
    }
}
