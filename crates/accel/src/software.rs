//! The software engine: every operation is done by the calling CPU, complete at once.

#![allow(unsafe_code)]

use raceline_crc32c::{Crc32c, CrcPath, crc32c};

use crate::copier::Copier;
use crate::deflate::Deflate;
use crate::engine::RawRequest;
use crate::memory::{Piece, PieceMut, Source, Target};
use crate::operation::{AccelError, Operation, Output};
use crate::work::{Extent, Work};

/// Bytes that may change are copied in chunks of this before they are looked at.
const BOUNCE_BYTES: usize = 4096;

/// One core's software engine.
#[derive(Debug)]
pub(crate) struct Software {
    path: CrcPath,
    pub(crate) copier: Copier,
    deflate: Deflate,
}

impl Software {
    /// An engine that digests by this path.
    pub(crate) fn new(path: CrcPath) -> Software {
        Software { path, copier: Copier::new(path), deflate: Deflate::default() }
    }

    /// Does an operation where each operand is one piece, as most are: the channel's cost besides is then
    /// a few nanoseconds. Gives the output and the bytes. An operation that does not fit, or has to be
    /// looked at more closely, is left to [`Self::execute`].
    #[inline(always)]
    pub(crate) fn execute_simple<S: Source, T: Target>(
        &self,
        work: &mut Work<S, T>,
    ) -> Option<(Output, usize)> {
        match work.operation() {
            Operation::Crc32c { seed } => {
                let piece = work.one_source(0)?;
                if piece.may_change || self.path != CrcPath::Auto {
                    return None;
                }
                // SAFETY: the source promises that the piece is valid until it is dropped, and nothing
                // writes this one.
                let bytes = unsafe { std::slice::from_raw_parts(piece.pointer, piece.len) };
                let crc = if seed == 0 { crc32c(bytes) } else { crc32c_after(seed, bytes) };
                Some((Output::Crc32c(crc), bytes.len()))
            }
            Operation::CopyCrc32c { seed } => {
                let (from, to) = one_to_one(work)?;
                let crc = self.copier.copy_crc32c(seed, &[from], &[to], None);
                Some((Output::Crc32c(crc), from.len))
            }
            Operation::Copy => {
                let (from, to) = one_to_one(work)?;
                copy_run(from, to, from.len);
                Some((Output::Nothing, from.len))
            }
            Operation::Fill { byte } => {
                let to = work.one_target(0)?;
                fill(byte, to);
                Some((Output::Nothing, to.len))
            }
            Operation::Compare => {
                let (first, second) = (work.one_source(0)?, work.one_source(1)?);
                if first.len != second.len || first.may_change || second.may_change {
                    return None;
                }
                let mut equal = false;
                with_bytes(&first, |first| with_bytes(&second, |second| equal = first == second));
                Some((Output::Equal(equal), first.len))
            }
            Operation::DualCast => {
                let (from, to) = one_to_one(work)?;
                let second = work.one_target(1)?;
                if from.len != second.len {
                    return None;
                }
                copy_run(from, to, from.len);
                // From the first target: both hold the same, even if the source changes.
                copy_run(Piece::new(to.pointer, to.len), second, from.len);
                Some((Output::Nothing, from.len))
            }
            Operation::Compress { .. } | Operation::Decompress => None,
        }
    }

    /// Does an operation.
    pub(crate) fn execute(&mut self, request: &RawRequest<'_>) -> Result<Output, AccelError> {
        let [source, other] = request.sources();
        let [target, second] = request.targets();
        match request.operation() {
            Operation::Crc32c { seed } => Ok(Output::Crc32c(self.crc32c(seed, source))),
            Operation::Copy => {
                copy(source, target);
                Ok(Output::Nothing)
            }
            Operation::CopyCrc32c { seed } => {
                Ok(Output::Crc32c(self.copier.copy_crc32c(seed, source, target, None)))
            }
            Operation::Fill { byte } => {
                target.iter().for_each(|&piece| fill(byte, piece));
                Ok(Output::Nothing)
            }
            Operation::Compare => Ok(Output::Equal(is_equal(source, other))),
            Operation::DualCast => {
                copy(source, target);
                // From the first target: both hold the same, even if the source changes.
                for_each_run(target, second, |from, to, len| {
                    copy_run(Piece::new(from.pointer, len), to, len);
                });
                Ok(Output::Nothing)
            }
            Operation::Compress { level } => {
                let mut sink = Sink::new(target);
                self.deflate.compress(level, source, &mut sink).map(Output::Written)
            }
            Operation::Decompress => {
                let mut sink = Sink::new(target);
                self.deflate.decompress(source, &mut sink).map(Output::Written)
            }
        }
    }

    /// The digest of bytes.
    #[inline]
    pub(crate) fn crc32c_of(&self, bytes: &[u8]) -> u32 {
        let mut digest = Crc32c::new();
        digest.update_by(self.path, bytes);
        digest.finalize()
    }

    /// The digest of a source.
    #[inline]
    fn crc32c(&self, seed: u32, source: &[Piece]) -> u32 {
        let mut digest = Crc32c::resume(seed);
        for piece in source {
            with_bytes(piece, |bytes| digest.update_by(self.path, bytes));
        }
        digest.finalize()
    }
}

#[inline(never)]
fn crc32c_after(seed: u32, bytes: &[u8]) -> u32 {
    let mut digest = Crc32c::resume(seed);
    digest.update(bytes);
    digest.finalize()
}

/// Where a target is written piece by piece.
pub(crate) struct Sink<'a> {
    pieces: &'a [PieceMut],
    /// Bytes of the first piece that are written.
    written: usize,
}

impl<'a> Sink<'a> {
    fn new(pieces: &'a [PieceMut]) -> Sink<'a> {
        Sink { pieces, written: 0 }
    }

    /// The bytes that come next, as many as lie in one piece; none at the end.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        while let [first, rest @ ..] = self.pieces {
            if self.written < first.len {
                let free = first.part(self.written, first.len - self.written);
                // SAFETY: a request's pieces are valid and initialised, and a target's bytes are
                // known to this sink alone, which is borrowed.
                return unsafe { std::slice::from_raw_parts_mut(free.pointer, free.len) };
            }
            (self.pieces, self.written) = (rest, 0);
        }
        &mut []
    }

    /// `bytes` bytes of [`Sink::room`] are written.
    pub(crate) fn advance(&mut self, bytes: usize) {
        self.written += bytes;
    }
}

/// Copies a source to a target.
fn copy(source: &[Piece], target: &[PieceMut]) {
    for_each_run(source, target, copy_run);
}

/// Copies the first `len` bytes of a piece to another, both of an operation's operands.
#[inline(always)]
fn copy_run(from: Piece, to: PieceMut, len: usize) {
    // SAFETY: the operands' pieces are valid and so long, and a target overlaps nothing.
    unsafe { std::ptr::copy_nonoverlapping(from.pointer, to.pointer, len) };
}

/// Fills a piece of an operation's target.
#[inline(always)]
fn fill(byte: u8, piece: PieceMut) {
    // SAFETY: the target's pieces are valid, and a target is this operation's alone.
    unsafe { std::ptr::write_bytes(piece.pointer, byte, piece.len) };
}

/// Source and target of an operation, if each is one piece and they are equally long.
#[inline(always)]
fn one_to_one<S: Source, T: Target>(work: &mut Work<S, T>) -> Option<(Piece, PieceMut)> {
    let (from, to) = (work.one_source(0)?, work.one_target(0)?);
    (from.len == to.len).then_some((from, to))
}

/// Whether two sources of one length hold the same.
fn is_equal(first: &[Piece], second: &[Piece]) -> bool {
    let mut equal = true;
    for_each_run(first, second, |a, b, len| {
        for offset in (0..len).step_by(BOUNCE_BYTES) {
            if equal {
                let chunk = BOUNCE_BYTES.min(len - offset);
                with_bytes(&a.part(offset, chunk), |a| {
                    with_bytes(&b.part(offset, chunk), |b| equal &= a == b);
                });
            }
        }
    });
    equal
}

/// Shows a piece's bytes: as they lie, or copied in chunks if they may change.
#[inline]
pub(crate) fn with_bytes(piece: &Piece, mut look: impl FnMut(&[u8])) {
    if !piece.may_change {
        // SAFETY: the request's pieces are valid, and nothing writes this one.
        look(unsafe { std::slice::from_raw_parts(piece.pointer, piece.len) });
    } else {
        with_copied_bytes(piece, look);
    }
}

fn with_copied_bytes(piece: &Piece, mut look: impl FnMut(&[u8])) {
    let mut copy = [0; BOUNCE_BYTES];
    for offset in (0..piece.len).step_by(BOUNCE_BYTES) {
        let chunk = &mut copy[..BOUNCE_BYTES.min(piece.len - offset)];
        let from = piece.part(offset, chunk.len());
        // SAFETY: the request's pieces are valid; a concurrent writer makes the bytes a mixture.
        unsafe { std::ptr::copy_nonoverlapping(from.pointer, chunk.as_mut_ptr(), chunk.len()) };
        look(chunk);
    }
}

/// Walks over two lists of the same total length, in runs that lie in one piece of both.
#[inline]
pub(crate) fn for_each_run<A: Extent, B: Extent>(
    first: &[A],
    second: &[B],
    mut run: impl FnMut(A, B, usize),
) {
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
