//! What devices of one core may still do by themselves in this turn of its loop: copy, clear, give back.
//!
//! Such work has no wait in it, so nothing else ends it: one host with many long commands would hold up every other
//! connection of the core. What finds no share waits for the next turn.

use std::time::Instant;

/// Bytes of one turn: about a millisecond of copying.
pub const BYTES_PER_TURN: u64 = 8 << 20;

/// What each piece counts for besides its bytes.
const BYTES_PER_PIECE: u64 = 1 << 10;

/// What is left of this turn.
#[derive(Clone, Copy, Debug, Default)]
pub struct TurnShare {
    turn: Option<Instant>,
    spent: u64,
}

impl TurnShare {
    /// Takes a share for one piece of work, in the turn that began at `turn`. False: none is left. A piece that is longer
    /// than a whole turn has one of its own.
    pub fn take(&mut self, turn: Instant, bytes: u64) -> bool {
        if self.turn != Some(turn) {
            *self = Self { turn: Some(turn), spent: 0 };
        }
        let spent = self.spent.saturating_add(bytes).saturating_add(BYTES_PER_PIECE);
        let is_given = self.spent == 0 || spent <= BYTES_PER_TURN;
        if is_given {
            self.spent = spent;
        }
        is_given
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_turn_has_so_many_bytes_and_the_next_one_too() {
        let (mut share, begin) = (TurnShare::default(), Instant::now());
        for turn in (0..3).map(|turn| begin + Duration::from_micros(turn)) {
            let given = (0..100).filter(|_| share.take(turn, 1 << 20)).count();
            assert_eq!(given, 7);
            assert!(share.take(turn, 4096), "what is small has room beside what is long");
        }
    }

    #[test]
    fn many_short_pieces_are_bounded_too() {
        let (mut share, turn) = (TurnShare::default(), Instant::now());
        assert_eq!((0..10_000).filter(|_| share.take(turn, 512)).count(), 5461);
    }

    #[test]
    fn what_is_longer_than_a_turn_has_one_of_its_own() {
        let (mut share, turn) = (TurnShare::default(), Instant::now());
        assert!(share.take(turn, u64::MAX));
        assert!(!share.take(turn, 1));
        assert!(share.take(turn + Duration::from_micros(1), 1));
        assert!(!share.take(turn + Duration::from_micros(1), u64::MAX));
    }
}
