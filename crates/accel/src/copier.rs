//! Copy and digest together, by the CPU.

#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
use raceline_crc32c::fused;
use raceline_crc32c::{Crc32c, CrcPath};

use crate::memory::{Piece, PieceMut, Source, Upcoming};
use crate::software::for_each_run;
use crate::work::Extent;

/// Where copy and digest are two passes, they take turns after this many bytes: half of a first-level
/// cache. With fewer, carrying the digest on costs more than they save.
const CHUNK_BYTES: usize = 16 << 10;

/// Copies bytes and digests the copies, always by the same path. For memory that is copied part by part,
/// where nothing can wait or fail.
#[derive(Clone, Copy, Debug)]
pub struct Copier {
    path: CrcPath,
    /// Copy and digest in one pass; not when a path is forced.
    is_fused: bool,
}

impl Copier {
    pub(crate) fn new(path: CrcPath) -> Copier {
        #[cfg(target_arch = "x86_64")]
        let is_fused = path == CrcPath::Auto && fused::is_available();
        #[cfg(not(target_arch = "x86_64"))]
        let is_fused = false;
        Copier { path, is_fused }
    }

    /// Copies the bytes of `source` from `skip` on, as many as `to` has, and gives the CRC32C up to
    /// there. `before` is the CRC32C of the bytes that come before them, or 0. The digest is that of the
    /// copy, whatever happens to the source meanwhile. Lines of `upcoming` are on their way to the cache
    /// afterwards.
    ///
    /// # Panics
    /// If the source has fewer bytes.
    pub fn copy_part<S: Source>(
        &self,
        before: u32,
        source: &S,
        mut skip: usize,
        to: &mut [u8],
        upcoming: Option<Upcoming>,
    ) -> u32 {
        let (one, mut several);
        let pieces: &[Piece] = if let Some(piece) = source.one_piece() {
            one = [piece];
            &one
        } else {
            several = Vec::new();
            source.pieces(&mut several);
            &several
        };
        let (mut crc, mut done) = (before, 0);
        for piece in pieces {
            let len = piece.len.saturating_sub(skip).min(to.len() - done);
            if len > 0 {
                let to = PieceMut::new(to[done..].as_mut_ptr(), len);
                crc = self.copy_crc32c(crc, &[piece.part(skip, len)], &[to], upcoming);
                done += len;
            }
            skip = skip.saturating_sub(piece.len);
        }
        assert_eq!(done, to.len(), "a copy beyond the end of its source");
        crc
    }

    /// Copies, and digests what the target then holds.
    pub(crate) fn copy_crc32c(
        &self,
        seed: u32,
        source: &[Piece],
        target: &[PieceMut],
        upcoming: Option<Upcoming>,
    ) -> u32 {
        #[cfg(not(target_arch = "x86_64"))]
        let _ = upcoming;
        let mut digest = Crc32c::resume(seed);
        for_each_run(source, target, |from, to, len| {
            #[cfg(target_arch = "x86_64")]
            if self.is_fused && len >= fused::WORTH_BYTES {
                let (from, to) = (from.pointer, to.pointer);
                let next = upcoming.map_or(from, |upcoming| upcoming.pointer);
                // SAFETY: the request's pieces are valid, a target overlaps nothing, and the CPU
                // can.
                let register =
                    unsafe { fused::copy_crc32c(!digest.finalize(), from, to, len, next) };
                digest = Crc32c::resume(!register);
                return;
            }
            self.copy_chunks(&mut digest, from, to, len);
        });
        digest.finalize()
    }

    /// Copies chunk by chunk, each looked at in the target while it is in the cache.
    fn copy_chunks(&self, digest: &mut Crc32c, from: Piece, to: PieceMut, len: usize) {
        for offset in (0..len).step_by(CHUNK_BYTES) {
            let chunk = CHUNK_BYTES.min(len - offset);
            let (from, to) = (from.part(offset, chunk), to.part(offset, chunk));
            // SAFETY: the request's pieces are valid, a target overlaps nothing, and nothing else writes
            // it while its bytes are looked at.
            let bytes = unsafe {
                std::ptr::copy_nonoverlapping(from.pointer, to.pointer, chunk);
                std::slice::from_raw_parts(to.pointer, chunk)
            };
            digest.update_by(self.path, bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use raceline_crc32c::crc32c;

    use super::*;

    #[test]
    fn parts_one_after_the_other_are_the_whole() {
        let from: Vec<u8> = (0..100_000_u32).map(|i| i.to_le_bytes()[0] ^ 0x5a).collect();
        for path in CrcPath::ALL.into_iter().filter(|path| path.is_available()) {
            let copier = Copier::new(path);
            for part in [1000, 4096, 16_384, 33_333, 100_000] {
                let (mut to, mut crc) = (vec![0; from.len()], 0);
                for (i, to) in to.chunks_mut(part).enumerate() {
                    crc = copier.copy_part(crc, &from, i * part, to, None);
                }
                assert_eq!((crc, &to), (crc32c(&from), &from), "{path:?}, {part} at a time");
            }
        }
    }

    #[test]
    #[should_panic(expected = "beyond the end")]
    fn a_source_is_not_left() {
        Copier::new(CrcPath::Auto).copy_part(0, &vec![0; 10], 8, &mut [0; 3], None);
    }
}
