//! What an operation may read and write: memory that it owns until it is complete.

#![allow(unsafe_code)]

use std::sync::Arc;

/// Bytes to read, in one piece.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    pub(crate) pointer: *const u8,
    pub(crate) len: usize,
    pub(crate) may_change: bool,
}

impl Piece {
    /// Bytes that nothing changes while the operation lasts.
    #[inline]
    #[must_use]
    pub const fn new(pointer: *const u8, len: usize) -> Piece {
        Piece { pointer, len, may_change: false }
    }

    /// Bytes that others may change at any time, such as a RAM namespace's. They are only
    /// copied, never looked at as a slice.
    #[inline]
    #[must_use]
    pub const fn changing(pointer: *const u8, len: usize) -> Piece {
        Piece { pointer, len, may_change: true }
    }

    /// Where they start.
    #[must_use]
    pub const fn pointer(&self) -> *const u8 {
        self.pointer
    }

    /// How many.
    #[allow(clippy::len_without_is_empty, reason = "a piece is not a collection")]
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }
}

/// Bytes to write, in one piece.
#[derive(Clone, Copy, Debug)]
pub struct PieceMut {
    pub(crate) pointer: *mut u8,
    pub(crate) len: usize,
}

impl PieceMut {
    /// Bytes that only the operation accesses.
    #[inline]
    #[must_use]
    pub const fn new(pointer: *mut u8, len: usize) -> PieceMut {
        PieceMut { pointer, len }
    }

    /// Where they start.
    #[must_use]
    pub const fn pointer(&self) -> *mut u8 {
        self.pointer
    }

    /// How many.
    #[allow(clippy::len_without_is_empty, reason = "a piece is not a collection")]
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }
}

/// Memory that will be read soon: what comes after an operation. A hint, of which only the cache makes
/// use.
#[derive(Clone, Copy, Debug)]
pub struct Upcoming {
    pub(crate) pointer: *const u8,
}

impl Upcoming {
    /// It starts here.
    #[inline]
    #[must_use]
    pub const fn at(pointer: *const u8) -> Upcoming {
        Upcoming { pointer }
    }
}

/// Memory that an operation reads.
///
/// # Safety
/// The pieces that its functions name can be read from then on until the value is dropped, at the same
/// addresses even when the value is moved, and from any thread (a device reads them). Their bytes are
/// initialised. Nothing writes them meanwhile, or they are [`Piece::changing`].
pub unsafe trait Source {
    /// Appends its pieces, in order.
    fn pieces(&self, list: &mut Vec<Piece>);

    /// The same without a list, if it has exactly one piece and that is quickly known.
    #[inline]
    fn one_piece(&self) -> Option<Piece> {
        None
    }
}

/// Memory that an operation writes.
///
/// # Safety
/// The pieces that its functions name can be read and written from then on until the value is dropped, at
/// the same addresses even when the value is moved, and from any thread (a device writes them). Their
/// bytes are initialised; the pieces do not overlap; nothing else reads or writes them while the value
/// exists and is not borrowed.
pub unsafe trait Target {
    /// Appends its pieces, in order.
    fn pieces(&mut self, list: &mut Vec<PieceMut>);

    /// The same without a list, if it has exactly one piece and that is quickly known.
    #[inline]
    fn one_piece(&mut self) -> Option<PieceMut> {
        None
    }
}

// SAFETY: no pieces.
unsafe impl Source for () {
    fn pieces(&self, _: &mut Vec<Piece>) {}
}

// SAFETY: no pieces.
unsafe impl Target for () {
    fn pieces(&mut self, _: &mut Vec<PieceMut>) {}
}

// SAFETY: a vector's bytes stay where they are when it moves, and change through `&mut` only.
unsafe impl Source for Vec<u8> {
    #[inline]
    fn pieces(&self, list: &mut Vec<Piece>) {
        list.extend(self.one_piece());
    }

    #[inline]
    fn one_piece(&self) -> Option<Piece> {
        Some(Piece::new(self.as_ptr(), self.len()))
    }
}

// SAFETY: as above, and a vector is the only owner.
unsafe impl Target for Vec<u8> {
    #[inline]
    fn pieces(&mut self, list: &mut Vec<PieceMut>) {
        list.extend(self.one_piece());
    }

    #[inline]
    fn one_piece(&mut self) -> Option<PieceMut> {
        Some(PieceMut::new(self.as_mut_ptr(), self.len()))
    }
}

// SAFETY: a box's bytes stay where they are when it moves, and change through `&mut` only.
unsafe impl Source for Box<[u8]> {
    #[inline]
    fn pieces(&self, list: &mut Vec<Piece>) {
        list.extend(self.one_piece());
    }

    #[inline]
    fn one_piece(&self) -> Option<Piece> {
        Some(Piece::new(self.as_ptr(), self.len()))
    }
}

// SAFETY: as above, and a box is the only owner.
unsafe impl Target for Box<[u8]> {
    #[inline]
    fn pieces(&mut self, list: &mut Vec<PieceMut>) {
        list.extend(self.one_piece());
    }

    #[inline]
    fn one_piece(&mut self) -> Option<PieceMut> {
        Some(PieceMut::new(self.as_mut_ptr(), self.len()))
    }
}

// SAFETY: shared bytes stay where they are, and nothing writes them.
unsafe impl Source for Arc<[u8]> {
    #[inline]
    fn pieces(&self, list: &mut Vec<Piece>) {
        list.extend(self.one_piece());
    }

    #[inline]
    fn one_piece(&self) -> Option<Piece> {
        Some(Piece::new(self.as_ptr(), self.len()))
    }
}

// SAFETY: static bytes stay where they are, and nothing writes them.
unsafe impl Source for &'static [u8] {
    #[inline]
    fn pieces(&self, list: &mut Vec<Piece>) {
        list.extend(self.one_piece());
    }

    #[inline]
    fn one_piece(&self) -> Option<Piece> {
        Some(Piece::new(self.as_ptr(), self.len()))
    }
}

/// A scatter-gather list.
// SAFETY: each member keeps the promise, and moving the list moves the members.
unsafe impl<S: Source> Source for Vec<S> {
    fn pieces(&self, list: &mut Vec<Piece>) {
        self.iter().for_each(|member| member.pieces(list));
    }
}

/// A scatter-gather list.
// SAFETY: each member keeps the promise and owns its own memory.
unsafe impl<T: Target> Target for Vec<T> {
    fn pieces(&mut self, list: &mut Vec<PieceMut>) {
        self.iter_mut().for_each(|member| member.pieces(list));
    }
}

/// A scatter-gather list without an allocation of its own.
// SAFETY: as for `Vec<S>`.
unsafe impl<S: Source, const N: usize> Source for [S; N] {
    #[inline]
    fn pieces(&self, list: &mut Vec<Piece>) {
        self.iter().for_each(|member| member.pieces(list));
    }
}

/// A scatter-gather list without an allocation of its own.
// SAFETY: as for `Vec<T>`.
unsafe impl<T: Target, const N: usize> Target for [T; N] {
    #[inline]
    fn pieces(&mut self, list: &mut Vec<PieceMut>) {
        self.iter_mut().for_each(|member| member.pieces(list));
    }
}

/// Perhaps nothing.
// SAFETY: the member keeps the promise.
unsafe impl<S: Source> Source for Option<S> {
    #[inline]
    fn pieces(&self, list: &mut Vec<Piece>) {
        self.iter().for_each(|member| member.pieces(list));
    }
}

/// Perhaps nothing.
// SAFETY: the member keeps the promise.
unsafe impl<T: Target> Target for Option<T> {
    #[inline]
    fn pieces(&mut self, list: &mut Vec<PieceMut>) {
        self.iter_mut().for_each(|member| member.pieces(list));
    }
}
