//! Memory in pieces of any size and alignment, whose owners are counted.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use raceline_accel::{Piece, PieceMut, Source, Target};

use super::random::Random;

/// A piece does not start where an allocation does, but up to this many bytes later.
const MAX_SHIFT: usize = 17;

/// A scatter-gather list that counts: one more owner of `alive` as long as it exists.
#[derive(Debug)]
pub(crate) struct Counted {
    /// Each with how many of its first bytes are not part of the piece.
    pieces: Vec<(usize, Vec<u8>)>,
    changing: bool,
    _alive: Arc<()>,
}

impl Counted {
    /// These bytes, cut into at most `most_pieces` pieces, some of them perhaps empty.
    pub(crate) fn new(
        bytes: &[u8],
        most_pieces: usize,
        random: &mut Random,
        alive: &Arc<()>,
    ) -> Counted {
        let mut pieces = Vec::new();
        let mut rest = bytes;
        for left in (0..random.below(most_pieces) + 1).rev() {
            let len = if left == 0 { rest.len() } else { random.below(rest.len() + 1) };
            let (piece, after) = rest.split_at(len);
            let shift = random.below(MAX_SHIFT);
            let mut memory = vec![0xcc; shift];
            memory.extend_from_slice(piece);
            pieces.push((shift, memory));
            rest = after;
        }
        Counted { pieces, changing: random.one_in(4), _alive: Arc::clone(alive) }
    }

    /// Its bytes.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.pieces.iter().flat_map(|(shift, memory)| memory[*shift..].to_vec()).collect()
    }

    /// True if nothing was written before its pieces.
    pub(crate) fn is_unharmed(&self) -> bool {
        self.pieces.iter().all(|(shift, memory)| memory[..*shift].iter().all(|&b| b == 0xcc))
    }
}

// SAFETY: the bytes of vectors stay where they are when these move, and change through `&mut`
// only; naming them as changing allows less.
unsafe impl Source for Counted {
    fn pieces(&self, list: &mut Vec<Piece>) {
        for (shift, memory) in &self.pieces {
            let piece = &memory[*shift..];
            list.push(if self.changing {
                Piece::changing(piece.as_ptr(), piece.len())
            } else {
                Piece::new(piece.as_ptr(), piece.len())
            });
        }
    }
}

// SAFETY: as above, and each vector is the only owner.
unsafe impl Target for Counted {
    fn pieces(&mut self, list: &mut Vec<PieceMut>) {
        for (shift, memory) in &mut self.pieces {
            let piece = &mut memory[*shift..];
            list.push(PieceMut::new(piece.as_mut_ptr(), piece.len()));
        }
    }
}

/// Memory that others change.
#[derive(Debug)]
pub(crate) struct Changing(pub(crate) Arc<Vec<AtomicU64>>);

// SAFETY: the vector's bytes stay where they are; a thread that changes them does so by atomics.
unsafe impl Source for Changing {
    fn pieces(&self, list: &mut Vec<Piece>) {
        let len = 8 * self.0.len();
        list.push(Piece::changing(self.0.as_ptr().cast(), len));
    }
}
