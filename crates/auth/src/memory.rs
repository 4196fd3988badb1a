//! Memory for secrets: locked where the limit allows it, so that it is not swapped out, and overwritten when it is given
//! back.

use std::sync::{Mutex, MutexGuard, PoisonError};

use zeroize::Zeroize as _;

/// Bytes of a slot: the longest secret.
pub(crate) const SLOT_BYTES: usize = 64;
/// Bytes that are locked together: a page, which holds nothing but secrets.
const PAGE_BYTES: usize = 4096;

#[repr(align(4096))]
struct Page([[u8; SLOT_BYTES]; PAGE_BYTES / SLOT_BYTES]);

const _: () = assert!(size_of::<Page>() == PAGE_BYTES);

/// Slots that are free. Pages stay locked for as long as the process lives: there are as many as the secrets have needed
/// that there were at one time.
struct Arena {
    free: Vec<&'static mut [u8; SLOT_BYTES]>,
    /// Somebody knows that pages are not locked.
    told: bool,
}

static ARENA: Mutex<Arena> = Mutex::new(Arena { free: Vec::new(), told: false });

fn arena() -> MutexGuard<'static, Arena> {
    ARENA.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The memory of one secret, zeroes at first.
pub(crate) struct Slot {
    /// `None` only while it is dropped.
    bytes: Option<&'static mut [u8; SLOT_BYTES]>,
}

impl Slot {
    pub(crate) fn take() -> Slot {
        let mut arena = arena();
        if arena.free.is_empty() {
            arena.add_page();
        }
        Slot { bytes: arena.free.pop() }
    }

    pub(crate) fn bytes(&self) -> &[u8; SLOT_BYTES] {
        self.bytes.as_deref().expect("a slot has its bytes until it is dropped")
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8; SLOT_BYTES] {
        self.bytes.as_deref_mut().expect("a slot has its bytes until it is dropped")
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(bytes) = self.bytes.take() {
            bytes.zeroize();
            arena().free.push(bytes);
        }
    }
}

impl Arena {
    fn add_page(&mut self) {
        let page: &'static mut Page =
            Box::leak(Box::new(Page([[0; SLOT_BYTES]; PAGE_BYTES / SLOT_BYTES])));
        match region::lock(page.0.as_ptr(), PAGE_BYTES) {
            // Its drop would unlock the page.
            Ok(guard) => std::mem::forget(guard),
            Err(error) if !self.told => {
                self.told = true;
                tracing::warn!(
                    "keys are in memory that can be swapped out: {error}. Raise the limit of locked memory (ulimit -l, \
                     LimitMEMLOCK= of a unit), forbid swap (MemorySwapMax=0) or encrypt it"
                );
            }
            Err(_) => {}
        }
        self.free.extend(&mut page.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_overwritten_before_another_gets_it() {
        // More than a page, so that some slots are used again.
        let mut slots: Vec<Slot> = (0..100).map(|_| Slot::take()).collect();
        for slot in &mut slots {
            assert_eq!(*slot.bytes(), [0; SLOT_BYTES]);
            slot.bytes_mut().fill(0xa5);
        }
        let mut addresses: Vec<usize> =
            slots.iter().map(|slot| slot.bytes().as_ptr().addr()).collect();
        addresses.sort_unstable();
        addresses.dedup();
        assert_eq!(addresses.len(), 100, "no two secrets share memory");
        drop(slots);
        assert!((0..100).map(|_| Slot::take()).all(|slot| *slot.bytes() == [0; SLOT_BYTES]));
    }

    /// The kernel says how much is locked (VmLck of /proc/self/status).
    #[test]
    fn pages_of_secrets_are_locked_where_the_limit_allows_it() {
        let _slot = Slot::take();
        let is_refused = arena().told;
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let locked = status.lines().find_map(|line| line.strip_prefix("VmLck:")).unwrap();
        let kib: u64 = locked.trim().trim_end_matches(" kB").trim().parse().unwrap();
        assert!(kib >= 4 || is_refused, "{locked}");
    }
}
