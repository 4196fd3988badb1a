//! Bytes on their way out, and their owners.

use std::ops::Range;

use crate::memory::buffer::{IoBuf, RegionHandle, SharedBuf};
use crate::memory::lasting::LastingMemory;

/// Where the bytes of [`Payload::Zeroes`] come from; a longer run names it several times.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// Bytes of a payload and their owner until they are sent.
#[derive(Debug)]
pub enum Payload {
    /// A range of a buffer that goes back to its pool when the batch is cleared.
    Buf(IoBuf, Range<usize>),
    /// A range of a buffer that others read too, such as a host's write buffer.
    Shared(SharedBuf, Range<usize>),
    /// A range of a region, sent straight from it.
    Region(RegionHandle, Range<u64>),
    /// This many zeroes.
    Zeroes(usize),
}

impl Payload {
    /// Its bytes.
    #[allow(clippy::len_without_is_empty, reason = "a payload is not a collection")]
    pub fn len(&self) -> usize {
        match self {
            Payload::Buf(_, range) | Payload::Shared(_, range) => range.len(),
            Payload::Region(_, range) => region_range_len(range),
            Payload::Zeroes(len) => *len,
        }
    }

    /// Copies its first `out.len()` bytes.
    ///
    /// # Panics
    /// If it has fewer.
    pub fn copy_to(&self, out: &mut [u8]) {
        assert!(out.len() <= self.len(), "copy beyond the end of a payload");
        let part = |bytes: &[u8], range: &Range<usize>, out: &mut [u8]| {
            out.copy_from_slice(&bytes[range.start..range.start + out.len()]);
        };
        match self {
            Payload::Buf(buf, range) => part(buf, range, out),
            Payload::Shared(buf, range) => part(buf, range, out),
            Payload::Region(region, range) => region.copy_out(range.start, out),
            Payload::Zeroes(_) => out.fill(0),
        }
    }

    /// The memory around its bytes, if that lasts: of a pool, or if `pins`, of a region, whose pages stay from now on.
    pub(super) fn lasting(&self, pins: bool) -> Option<LastingMemory> {
        match self {
            Payload::Buf(buf, _) => buf.lasting(),
            Payload::Shared(buf, _) => buf.lasting(),
            Payload::Region(region, _) if pins => region.region().pin(),
            Payload::Region(..) | Payload::Zeroes(_) => None,
        }
    }

    /// Panics if the range is not inside the memory it names: system calls rely on it.
    #[inline(always)]
    pub(crate) fn validate(&self) {
        self.memory();
    }

    /// Where its bytes are, of zeroes only some, and how many it has.
    ///
    /// # Panics
    /// As [`Self::validate`].
    #[inline(always)]
    pub(super) fn memory(&self) -> (*const u8, usize) {
        let inside = |range: &Range<usize>, len| range.start <= range.end && range.end <= len;
        match self {
            Payload::Buf(buf, range) => {
                assert!(inside(range, buf.len()), "payload range");
                (buf.as_io_ptr().wrapping_add(range.start).cast_const(), range.len())
            }
            Payload::Shared(buf, range) => {
                assert!(inside(range, buf.len()), "payload range");
                (buf.as_io_ptr().wrapping_add(range.start), range.len())
            }
            Payload::Region(region, range) => {
                assert!(range.start <= range.end, "payload range");
                let len = region_range_len(range);
                (region.range(range.start, len).cast_const(), len)
            }
            Payload::Zeroes(len) => (ZEROES.as_ptr(), *len),
        }
    }

    /// The memory from `skip` on: address and length, at most what lies in one piece.
    pub(crate) fn segment(&self, skip: usize) -> (*const u8, usize) {
        let (base, len) = self.memory();
        match self {
            Payload::Zeroes(_) => (base, (len - skip).min(ZEROES.len())),
            _ => (base.wrapping_add(skip), len - skip),
        }
    }
}

fn region_range_len(range: &Range<u64>) -> usize {
    usize::try_from(range.end.saturating_sub(range.start)).expect("a payload fits in memory")
}
