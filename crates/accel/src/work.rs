//! An operation with the memory it owns, on its way to an engine and back.

#![allow(unsafe_code)]

use std::ops::Range;

use crate::engine::RawRequest;
use crate::memory::{Piece, PieceMut, Source, Target};
use crate::operation::{AccelError, OpCode, Operation, Output};

/// All of an operand's memory, or a part of it.
#[derive(Clone, Debug)]
pub struct Part<M> {
    memory: M,
    offset: usize,
    /// To the end if `WHOLE`.
    len: usize,
}

/// The length of a part that goes to the end of its memory.
const WHOLE: usize = usize::MAX;

impl<M> Part<M> {
    /// All of it.
    #[inline]
    #[must_use]
    pub const fn whole(memory: M) -> Part<M> {
        Part { memory, offset: 0, len: WHOLE }
    }

    /// These of its bytes, counted over all its pieces. A range that is not inside makes the operation
    /// fail with [`AccelError::Range`].
    #[inline]
    #[must_use]
    pub const fn range(memory: M, range: Range<usize>) -> Part<M> {
        Part { memory, offset: range.start, len: range.end.saturating_sub(range.start) }
    }

    /// The memory.
    pub const fn memory(&self) -> &M {
        &self.memory
    }

    /// The memory back, all of it.
    pub fn into_memory(self) -> M {
        self.memory
    }
}

/// `len` bytes of a piece from `offset` on, if they are inside; the slow way says what is wrong.
#[inline]
fn part_of<P: Extent>(piece: P, offset: usize, len: usize) -> Option<P> {
    if offset == 0 && len == WHOLE {
        return Some(piece);
    }
    let available = piece.extent().checked_sub(offset)?;
    let len = if len == WHOLE { available } else { len };
    (len <= available).then(|| piece.part(offset, len))
}

impl<M> From<M> for Part<M> {
    #[inline]
    fn from(memory: M) -> Part<M> {
        Part::whole(memory)
    }
}

/// An operation and its operands: up to two sources and two targets.
///
/// ```
/// use raceline_accel::{Part, Work};
/// let digest: Work<Vec<u8>, ()> = Work::crc32c(0, vec![1, 2, 3]);
/// let block: Work<Vec<u8>, Vec<u8>> =
///     Work::copy_crc32c(0, Part::range(vec![7; 8192], 4096..8192), vec![0; 4096]);
/// ```
#[derive(Debug)]
pub struct Work<S, T> {
    operation: Operation,
    sources: [Option<Part<S>>; 2],
    targets: [Option<Part<T>>; 2],
}

impl<S, T> Work<S, T> {
    /// The CRC32C of `source`, going on from `seed`, the CRC32C of what comes before (or 0).
    #[inline(always)]
    pub fn crc32c(seed: u32, source: impl Into<Part<S>>) -> Self {
        let sources = [Some(source.into()), None];
        Work { operation: Operation::Crc32c { seed }, sources, targets: [None, None] }
    }

    /// Copies `source` to `target`, which is of the same length.
    #[inline(always)]
    pub fn copy(source: impl Into<Part<S>>, target: impl Into<Part<T>>) -> Self {
        Self::source_to_target(Operation::Copy, source.into(), target.into())
    }

    /// Copies `source` to `target`, which is of the same length, and gives the CRC32C of the
    /// bytes in `target`, whatever happens to those of `source` meanwhile.
    #[inline(always)]
    pub fn copy_crc32c(seed: u32, source: impl Into<Part<S>>, target: impl Into<Part<T>>) -> Self {
        Self::source_to_target(Operation::CopyCrc32c { seed }, source.into(), target.into())
    }

    /// Fills `target` with `byte`.
    #[inline(always)]
    pub fn fill(byte: u8, target: impl Into<Part<T>>) -> Self {
        let targets = [Some(target.into()), None];
        Work { operation: Operation::Fill { byte }, sources: [None, None], targets }
    }

    /// Compares two sources of the same length.
    #[inline(always)]
    pub fn compare(first: impl Into<Part<S>>, second: impl Into<Part<S>>) -> Self {
        let sources = [Some(first.into()), Some(second.into())];
        Work { operation: Operation::Compare, sources, targets: [None, None] }
    }

    /// Copies `source` to two targets, all of the same length.
    #[inline(always)]
    pub fn dual_cast(
        source: impl Into<Part<S>>,
        first: impl Into<Part<T>>,
        second: impl Into<Part<T>>,
    ) -> Self {
        let targets = [Some(first.into()), Some(second.into())];
        Work { operation: Operation::DualCast, sources: [Some(source.into()), None], targets }
    }

    /// Compresses `source` into `target` as a raw DEFLATE stream.
    #[inline(always)]
    pub fn compress(level: u8, source: impl Into<Part<S>>, target: impl Into<Part<T>>) -> Self {
        Self::source_to_target(Operation::Compress { level }, source.into(), target.into())
    }

    /// Decompresses `source`, a raw DEFLATE stream, into `target`.
    #[inline(always)]
    pub fn decompress(source: impl Into<Part<S>>, target: impl Into<Part<T>>) -> Self {
        Self::source_to_target(Operation::Decompress, source.into(), target.into())
    }

    #[inline(always)]
    fn source_to_target(operation: Operation, source: Part<S>, target: Part<T>) -> Self {
        Work { operation, sources: [Some(source), None], targets: [Some(target), None] }
    }

    /// The operation.
    #[inline]
    pub const fn operation(&self) -> Operation {
        self.operation
    }

    /// The memory of the sources, in the order in which they were given.
    pub fn sources(&self) -> impl Iterator<Item = &S> {
        self.sources.iter().flatten().map(|part| &part.memory)
    }

    /// The memory of the targets, in the order in which they were given.
    pub fn targets(&self) -> impl Iterator<Item = &T> {
        self.targets.iter().flatten().map(|part| &part.memory)
    }

    /// All memory back: first the sources, then the targets.
    #[inline(always)]
    pub fn into_memory(self) -> ([Option<S>; 2], [Option<T>; 2]) {
        let sources = self.sources.map(|part| part.map(Part::into_memory));
        (sources, self.targets.map(|part| part.map(Part::into_memory)))
    }
}

/// An operation that is complete.
#[derive(Debug)]
pub struct Done<S, T> {
    /// What [`crate::Channel::submit`] was given.
    pub token: u64,
    /// How it went.
    pub result: Result<Output, AccelError>,
    /// The operands. `None` only if an engine that does not answer still owns the memory
    /// ([`AccelError::TimedOut`]).
    pub work: Option<Work<S, T>>,
}

/// The pieces of an operation's operands. The executing channel keeps them, so that nothing is allocated
/// for each operation.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    sources: [Vec<Piece>; 2],
    targets: [Vec<PieceMut>; 2],
}

/// How far an operation is that is done in steps.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    /// Bytes of each operand that are done.
    pub(crate) bytes: usize,
    /// The digest of these and of what came before them; only of operations that digest.
    pub(crate) crc32c: u32,
}

impl Pieces {
    /// The pieces of a source and of a target as long as it, and how long that is.
    #[inline]
    pub(crate) fn of_copy<S: Source, T: Target>(
        &mut self,
        code: OpCode,
        source: &S,
        target: &mut T,
    ) -> Result<(&[Piece], &[PieceMut], usize), AccelError> {
        let ([sources, _], [targets, _]) = (&mut self.sources, &mut self.targets);
        sources.clear();
        source.pieces(sources);
        targets.clear();
        target.pieces(targets);
        let source_len = sources.iter().map(Extent::extent).sum();
        let target_len = targets.iter().map(Extent::extent).sum();
        let len = check_lengths(code, [[source_len, 0], [target_len, 0]])?;
        Ok((sources, targets, len))
    }
}

impl<S: Source, T: Target> Work<S, T> {
    /// The source of this number, if it is one piece.
    #[inline(always)]
    pub(crate) fn one_source(&self, index: usize) -> Option<Piece> {
        let part = self.sources[index].as_ref()?;
        part_of(part.memory.one_piece()?, part.offset, part.len)
    }

    /// The target of this number, if it is one piece.
    #[inline(always)]
    pub(crate) fn one_target(&mut self, index: usize) -> Option<PieceMut> {
        let part = self.targets[index].as_mut()?;
        part_of(part.memory.one_piece()?, part.offset, part.len)
    }

    /// Looks up where the operands are, and checks that they fit the operation.
    #[inline]
    pub(crate) fn request<'a>(
        &'a mut self,
        pieces: &'a mut Pieces,
    ) -> Result<RawRequest<'a>, AccelError> {
        let bytes = self.gather(pieces)?;
        Ok(self.describe(self.operation, pieces, bytes))
    }

    /// As [`Self::request`] for the next step: from where it stands, at most `max_bytes`.
    ///
    /// Only operations that work byte by byte have more than one step.
    pub(crate) fn step<'a>(
        &'a mut self,
        pieces: &'a mut Pieces,
        progress: Progress,
        max_bytes: usize,
    ) -> Result<RawRequest<'a>, AccelError> {
        let total = self.gather(pieces)?;
        let bytes = total.saturating_sub(progress.bytes).min(max_bytes);
        if bytes < total {
            for list in pieces.sources.iter_mut().filter(|list| !list.is_empty()) {
                trim(list, progress.bytes, bytes)?;
            }
            for list in pieces.targets.iter_mut().filter(|list| !list.is_empty()) {
                trim(list, progress.bytes, bytes)?;
            }
        }
        let operation = self.operation.going_on_from(progress.crc32c);
        Ok(self.describe(operation, pieces, bytes))
    }

    /// True if the target has this many bytes.
    pub(crate) fn target_holds(&mut self, pieces: &mut Pieces, bytes: usize) -> bool {
        self.gather(pieces).is_ok()
            && bytes <= pieces.targets[0].iter().map(Extent::extent).sum::<usize>()
    }

    /// Changes the first byte that was written, if any: for error injection.
    pub(crate) fn corrupt_target(&mut self, pieces: &mut Pieces) {
        if self.gather(pieces).is_ok()
            && let Some(piece) = pieces.targets[0].iter().find(|piece| piece.len > 0)
        {
            // SAFETY: the piece is valid until the target is dropped, has a byte, and is this
            // operation's alone.
            unsafe { *piece.pointer ^= 0x01 };
        }
    }

    /// Writes the operands' pieces to the lists, and gives the bytes of each operand.
    #[inline]
    fn gather(&mut self, pieces: &mut Pieces) -> Result<usize, AccelError> {
        let mut lengths = [[0; 2]; 2];
        for (index, list) in pieces.sources.iter_mut().enumerate() {
            list.clear();
            if let Some(part) = &self.sources[index] {
                part.memory.pieces(list);
                lengths[0][index] = trim(list, part.offset, part.len)?;
            }
        }
        for (index, list) in pieces.targets.iter_mut().enumerate() {
            list.clear();
            if let Some(part) = &mut self.targets[index] {
                part.memory.pieces(list);
                lengths[1][index] = trim(list, part.offset, part.len)?;
            }
        }
        check_lengths(self.operation.code(), lengths)
    }

    #[inline]
    fn describe<'a>(
        &'a mut self,
        operation: Operation,
        pieces: &'a Pieces,
        bytes: usize,
    ) -> RawRequest<'a> {
        let [first_source, second_source] = &pieces.sources;
        let [first_target, second_target] = &pieces.targets;
        // SAFETY: the operands promise that these pieces are valid until they are dropped, and
        // they are borrowed for as long as the request.
        unsafe {
            RawRequest::new(
                operation,
                [first_source, second_source],
                [first_target, second_target],
                bytes,
            )
        }
    }
}

/// The bytes that an operation works on, if its operands' lengths fit.
#[inline]
fn check_lengths(code: OpCode, lengths: [[usize; 2]; 2]) -> Result<usize, AccelError> {
    let [[source, other], [target, second_target]] = lengths;
    let same = |first: usize, second: usize| {
        if first == second {
            Ok(first)
        } else {
            Err(AccelError::Lengths { operation: code, first, second })
        }
    };
    match code {
        OpCode::Crc32c | OpCode::Compress | OpCode::Decompress => Ok(source),
        OpCode::Fill => Ok(target),
        OpCode::Copy | OpCode::CopyCrc32c => same(source, target),
        OpCode::Compare => same(source, other),
        OpCode::DualCast => same(source, target).and_then(|_| same(source, second_target)),
    }
}

/// A piece of either kind.
pub(crate) trait Extent: Copy {
    /// Its bytes.
    fn extent(&self) -> usize;
    /// `len` of its bytes, from `offset`; both are inside.
    fn part(&self, offset: usize, len: usize) -> Self;
}

impl Extent for Piece {
    #[inline]
    fn extent(&self) -> usize {
        self.len
    }

    #[inline]
    fn part(&self, offset: usize, len: usize) -> Piece {
        Piece { pointer: self.pointer.wrapping_add(offset), len, ..*self }
    }
}

impl Extent for PieceMut {
    #[inline]
    fn extent(&self) -> usize {
        self.len
    }

    #[inline]
    fn part(&self, offset: usize, len: usize) -> PieceMut {
        PieceMut { pointer: self.pointer.wrapping_add(offset), len }
    }
}

/// Leaves `len` bytes from `offset` on in the list, and gives how many bytes it then has.
#[inline]
fn trim<P: Extent>(list: &mut Vec<P>, offset: usize, len: usize) -> Result<usize, AccelError> {
    let available: usize = list.iter().map(Extent::extent).sum();
    if offset == 0 && len == WHOLE {
        return Ok(available);
    }
    let len = if len == WHOLE { available.saturating_sub(offset) } else { len };
    if offset > available || len > available - offset {
        return Err(AccelError::Range { offset, len, available });
    }
    let (mut skip, mut left) = (offset, len);
    list.retain_mut(|piece| {
        let skipped = skip.min(piece.extent());
        skip -= skipped;
        let kept = left.min(piece.extent() - skipped);
        left -= kept;
        *piece = piece.part(skipped, kept);
        kept > 0
    });
    Ok(len)
}
