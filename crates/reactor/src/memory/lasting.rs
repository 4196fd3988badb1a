//! Memory that a device may be told of once, and then reads for as long as it likes.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

/// A pool, or a region whose pages stay: it is mapped at the same place, on the same pages, while its owner lives.
#[derive(Clone)]
pub struct LastingMemory {
    pub(crate) start: NonNull<u8>,
    pub(crate) len: usize,
    pub(crate) owner: Arc<dyn Any + Send + Sync>,
    pub(crate) is_reused: bool,
}

impl LastingMemory {
    /// The first byte. The memory may be read at any time; others may write it meanwhile.
    #[must_use]
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty, reason = "memory is not a collection")]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// What keeps it mapped.
    #[must_use]
    pub fn owner(&self) -> &Arc<dyn Any + Send + Sync> {
        &self.owner
    }

    /// A part of it gets other contents as soon as nobody owns it any longer: who reads it keeps its owner until then. Else
    /// only the user of the memory changes it.
    #[must_use]
    pub fn is_reused(&self) -> bool {
        self.is_reused
    }
}

impl std::fmt::Debug for LastingMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LastingMemory({} bytes, reused: {})", self.len, self.is_reused)
    }
}
