//! Copies that go past the cache, for data that are not read soon (lab 0045).

#![allow(unsafe_code)]

/// Bytes of a cache line, written at once.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;

/// Copies `len` bytes without fetching the lines they overwrite into the cache. The calling thread sees
/// them at once. Other threads are certain to see only what was copied before its last [`fence`], as
/// these stores are not ordered with those that follow. A fence waits until memory has them all, so one
/// for many copies costs less.
///
/// # Safety
/// As for [`std::ptr::copy_nonoverlapping`].
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    let head = to.align_offset(LINE).min(len);
    let lines = (len - head) / LINE;
    let tail = head + lines * LINE;
    // SAFETY: head + lines * LINE <= len; the streaming stores are aligned, as `to + head` is;
    // SSE2 is part of x86-64.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, head);
        for line in 0..lines {
            let at = head + line * LINE;
            let source = from.add(at).cast::<__m128i>();
            let target = to.add(at).cast::<__m128i>();
            let (a, b, c, d) = (
                _mm_loadu_si128(source),
                _mm_loadu_si128(source.add(1)),
                _mm_loadu_si128(source.add(2)),
                _mm_loadu_si128(source.add(3)),
            );
            _mm_stream_si128(target, a);
            _mm_stream_si128(target.add(1), b);
            _mm_stream_si128(target.add(2), c);
            _mm_stream_si128(target.add(3), d);
        }
        std::ptr::copy_nonoverlapping(from.add(tail), to.add(tail), len - tail);
    }
}

/// Copies `len` bytes.
///
/// # Safety
/// As for [`std::ptr::copy_nonoverlapping`].
#[cfg(not(target_arch = "x86_64"))]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { plain_copy(from, to, len) };
}

/// All copies before it come before all that this thread stores after it, for every other thread.
/// Atomic operations that read and write do the same, and so do system calls that take a lock.
#[inline]
pub(crate) fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

/// Copies `len` bytes through the cache.
///
/// # Safety
/// As for [`std::ptr::copy_nonoverlapping`].
pub(crate) unsafe fn plain_copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_exact_at_every_alignment_and_length() {
        let from: Vec<u8> = (0..512).map(|n: u32| n.to_le_bytes()[0] ^ 0x5a).collect();
        for start in 0..70 {
            for len in [0, 1, 15, 16, 63, 64, 65, 127, 128, 200, 300] {
                let mut to = vec![0xee; 512];
                // SAFETY: start + len and 3 + len are inside both vectors.
                unsafe { copy(from.as_ptr().add(3), to.as_mut_ptr().add(start), len) };
                assert_eq!(to[start..start + len], from[3..3 + len], "{len} bytes to {start}");
                assert!(to[..start].iter().chain(&to[start + len..]).all(|&byte| byte == 0xee));
            }
        }
    }
}
