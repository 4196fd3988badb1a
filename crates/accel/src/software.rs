//! The software engine: every operation on the CPU that asks, complete at once.

#![allow(unsafe_code)]

use crate::crc32c::Crc32c;
use crate::engine::RawRequest;
use crate::memory::{Piece, PieceMut};
use crate::operation::{AccelError, Operation, Output};
use crate::work::Extent;

/// Bytes that are copied before they are looked at: a part of the first-level cache.
const CHUNK_BYTES: usize = 4096;

/// One core's software engine.
#[derive(Debug, Default)]
pub(crate) struct Software {}

impl Software {
    /// Does an operation.
    #[inline]
    pub(crate) fn execute(&mut self, request: &RawRequest<'_>) -> Result<Output, AccelError> {
        let [source, _] = request.sources();
        let [target, _] = request.targets();
        match request.operation() {
            Operation::Crc32c { seed } => Ok(Output::Crc32c(crc32c_of(seed, source))),
            Operation::Copy => {
                for_each_run(source, target, |from, to, len| {
                    // SAFETY: the request's pieces are valid, and a target overlaps nothing.
                    unsafe { std::ptr::copy_nonoverlapping(from.pointer, to.pointer, len) };
                });
                Ok(Output::Nothing)
            }
            Operation::CopyCrc32c { seed } => {
                let mut digest = Crc32c::resume(seed);
                for_each_run(source, target, |from, to, len| copy_run(&mut digest, from, to, len));
                Ok(Output::Crc32c(digest.finalize()))
            }
            other => Err(AccelError::NotSupported(other.code())),
        }
    }
}

/// The digest of a source.
#[inline]
fn crc32c_of(seed: u32, source: &[Piece]) -> u32 {
    let mut digest = Crc32c::resume(seed);
    for piece in source {
        with_bytes(piece, |bytes| digest.update(bytes));
    }
    digest.finalize()
}

/// Copies chunk by chunk, each looked at in the target while it is in the cache.
fn copy_run(digest: &mut Crc32c, from: Piece, to: PieceMut, len: usize) {
    for offset in (0..len).step_by(CHUNK_BYTES) {
        let chunk = CHUNK_BYTES.min(len - offset);
        let (from, to) = (from.part(offset, chunk), to.part(offset, chunk));
        // SAFETY: the request's pieces are valid, a target overlaps nothing, and nobody else
        // writes it while its bytes are looked at.
        digest.update(unsafe {
            std::ptr::copy_nonoverlapping(from.pointer, to.pointer, chunk);
            std::slice::from_raw_parts(to.pointer, chunk)
        });
    }
}

/// Shows a piece's bytes: as they lie, or copied in chunks if they may change.
#[inline]
fn with_bytes(piece: &Piece, mut look: impl FnMut(&[u8])) {
    if !piece.may_change {
        // SAFETY: the request's pieces are valid, and nobody writes this one.
        look(unsafe { std::slice::from_raw_parts(piece.pointer, piece.len) });
        return;
    }
    let mut copy = [0; CHUNK_BYTES];
    for offset in (0..piece.len).step_by(CHUNK_BYTES) {
        let chunk = &mut copy[..CHUNK_BYTES.min(piece.len - offset)];
        // SAFETY: the request's pieces are valid; a writer meanwhile makes it a mixture.
        unsafe {
            let from = piece.pointer.add(offset);
            std::ptr::copy_nonoverlapping(from, chunk.as_mut_ptr(), chunk.len());
        }
        look(chunk);
    }
}

/// Walks over two lists of the same total length, in runs that lie in one piece of both.
#[inline]
fn for_each_run<A: Extent, B: Extent>(first: &[A], second: &[B], mut run: impl FnMut(A, B, usize)) {
    let (mut first, mut second) = (first.iter().copied(), second.iter().copied());
    let (mut a, mut b) = (first.next(), second.next());
    while let (Some(from), Some(to)) = (a, b) {
        let len = from.extent().min(to.extent());
        if len > 0 {
            run(from, to, len);
        }
        a = if from.extent() == len { first.next() } else { Some(rest(from, len)) };
        b = if to.extent() == len { second.next() } else { Some(rest(to, len)) };
    }
}

fn rest<P: Extent>(piece: P, done: usize) -> P {
    piece.part(done, piece.extent() - done)
}
