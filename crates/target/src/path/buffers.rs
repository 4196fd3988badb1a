//! The I/O buffers of a core: how many there are of each size, and the lines of commands that wait.
//!
//! Each size has its own line. A command waits in the line of the smallest size that its data fit,
//! so a small command never waits behind a large one. It may take a larger buffer only while no command
//! waits for that size or a size between. Commands for which a small buffer would do therefore do not
//! starve a command that needs a large one.
//!
//! Within a line the order is first come, first served. While any host has a weight, the parts of hosts are served by
//! their weights instead ([`line`]).

mod line;

use std::ops::Range;

use raceline_reactor::{BufferPool, PoolConfig};

use crate::path::shares::{ShareId, Shares};

use line::Line;

/// Small I/O buffers: the blocks of most random I/O.
const SMALL_BUFFER_BYTES: usize = 4 << 10;
/// Medium I/O buffers, so that databases' pages leave the large ones to large commands (lab 0043).
const MEDIUM_BUFFER_BYTES: usize = 16 << 10;
/// Medium buffers for each large one (lab 0043).
const MEDIUM_PER_LARGE: usize = 2;
/// Large I/O buffers.
const LARGE_BUFFER_BYTES: usize = 128 << 10;
/// Fewest buffers of the largest size.
const MIN_LARGEST: usize = 4;

/// The I/O buffers of one core, for commands of at most `max_io_bytes`: `small` small ones, the medium
/// ones, and larger ones in the memory of `large` large ones.
pub(crate) fn pool_config(small: usize, large: usize, max_io_bytes: u32) -> PoolConfig {
    let mut classes = vec![
        (SMALL_BUFFER_BYTES, small),
        (MEDIUM_BUFFER_BYTES, large.saturating_mul(MEDIUM_PER_LARGE)),
    ];
    classes.extend(large_classes(large, max_io_bytes as usize));
    PoolConfig::new(&classes)
}

/// The sizes beyond the medium one, in the memory of `count` large buffers. Where a command may be
/// larger than a large buffer (lab 0053), one half of the memory stays in large buffers, one quarter goes to
/// buffers of the largest command, and the rest to the powers of two between, shared equally.
fn large_classes(count: usize, max_io_bytes: usize) -> Vec<(usize, usize)> {
    if max_io_bytes <= LARGE_BUFFER_BYTES {
        return vec![(max_io_bytes, count)];
    }
    let memory = count.saturating_mul(LARGE_BUFFER_BYTES);
    let doubled = |size: &usize| size.checked_mul(2);
    let between: Vec<usize> = std::iter::successors(Some(2 * LARGE_BUFFER_BYTES), doubled)
        .take_while(|size| *size < max_io_bytes)
        .collect();
    let largest = if between.is_empty() { memory / 2 } else { memory / 4 };
    let mut classes = vec![(LARGE_BUFFER_BYTES, count.div_ceil(2))];
    classes.extend(between.iter().map(|&size| {
        let share = memory / 4 / between.len();
        (size, (share / size).max(1))
    }));
    classes.push((max_io_bytes, (largest / max_io_bytes).max(MIN_LARGEST)));
    classes
}

/// Commands that wait for a buffer, by their names: a line for each size of the pool.
pub(crate) struct BufferLines<Command> {
    lines: Vec<Line<Command>>,
    waiting: usize,
}

impl<Command> Default for BufferLines<Command> {
    fn default() -> Self {
        Self { lines: Vec::new(), waiting: 0 }
    }
}

impl<Command: Copy> BufferLines<Command> {
    /// Whether no command waits.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// The sizes of the pool, as indices, that a new command with `len` bytes of data may take from:
    /// none if a command waits for the smallest of them.
    #[inline]
    pub(crate) fn open_to(&self, pool: &BufferPool, len: usize) -> Range<usize> {
        let all = pool.class_count();
        if self.is_empty() {
            return 0..all;
        }
        let own = pool.class_of(len);
        let mut waiting = self.lines.iter().enumerate().skip(own);
        let closed = waiting.find(|(_, line)| !line.is_empty());
        own..closed.map_or(all, |(class, _)| class)
    }

    /// Puts a command into the line of its size, behind all others of its part of the core.
    pub(crate) fn join(
        &mut self,
        pool: &BufferPool,
        len: usize,
        (command, share): (Command, Option<ShareId>),
    ) {
        if self.lines.len() < pool.class_count() {
            self.lines.resize_with(pool.class_count(), Line::default);
        }
        self.lines[pool.class_of(len)].push(command, len, share);
        self.waiting += 1;
    }

    /// The command to serve next: the size whose line it heads, the command, and the sizes that it
    /// may take from, one of which has a buffer. Large sizes come first, as commands that wait for them
    /// cannot take another buffer.
    pub(crate) fn next(&self, pool: &BufferPool) -> Option<(usize, Command, Range<usize>)> {
        let mut closed = pool.class_count();
        for (class, line) in self.lines.iter().enumerate().rev() {
            let Some(command) = line.front() else { continue };
            let open = class..closed;
            if open.clone().any(|class| pool.available(class) > 0) {
                return Some((class, command, open));
            }
            closed = class;
        }
        None
    }

    /// Takes the first of a line out of it: it gets its buffer.
    pub(crate) fn leave(&mut self, class: usize, shares: &Shares) {
        self.waiting -= usize::from(self.lines[class].pop(shares));
    }

    /// Removes the commands that no longer wait.
    pub(crate) fn retain(&mut self, keep: impl Fn(Command) -> bool) {
        if self.is_empty() {
            return;
        }
        for line in &mut self.lines {
            line.retain(&keep);
        }
        self.waiting = self.lines.iter().map(Line::len).sum();
    }

    /// These commands belong to another part of the core from now on, or to none.
    pub(crate) fn regroup(&mut self, is_meant: impl Fn(Command) -> bool, share: Option<ShareId>) {
        if !self.is_empty() {
            self.lines.iter_mut().for_each(|line| line.regroup(&is_meant, share));
        }
    }

    /// A part of the core has ended.
    pub(crate) fn forget(&mut self, share: ShareId) {
        self.lines.iter_mut().for_each(|line| line.forget(share));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn larger_commands_take_no_more_memory() {
        let large = |max_io_bytes| large_classes(256, max_io_bytes);
        assert_eq!(large(64 << 10), [(64 << 10, 256)]);
        assert_eq!(large(128 << 10), [(128 << 10, 256)]);
        assert_eq!(large(256 << 10), [(128 << 10, 128), (256 << 10, 64)]);
        assert_eq!(
            large(MIB),
            [(128 << 10, 128), (256 << 10, 16), (512 << 10, 8), (MIB, 8)],
            "half, an eighth, an eighth, a quarter"
        );
        let bytes = |max| large(max).iter().map(|(size, count)| size * count).sum::<usize>();
        for max in [128 << 10, 256 << 10, 512 << 10, MIB] {
            assert_eq!(bytes(max), 32 * MIB, "{max}");
        }
        assert_eq!(large(16 * MIB).last(), Some(&(16 * MIB, 4)), "never fewer than four");
        assert!(large_classes(4, 16 * MIB).iter().all(|(_, count)| *count > 0));
    }

    /// One buffer of each size; hands them to commands until none fits any more.
    struct Bed {
        pool: BufferPool,
        lines: BufferLines<u16>,
        held: Vec<(usize, raceline_reactor::IoBuf)>,
    }

    impl Bed {
        fn new() -> Self {
            let pool = BufferPool::new(&PoolConfig::new(&[(4096, 1), (8192, 1), (16384, 1)]));
            Self { pool: pool.unwrap(), lines: BufferLines::default(), held: Vec::new() }
        }

        /// A new command: whether it got a buffer at once.
        fn come(&mut self, slot: u16, len: usize) -> bool {
            let open = self.lines.open_to(&self.pool, len);
            match self.pool.take_of(len, open) {
                Some(buf) => self.held.push((buf.capacity(), buf)),
                None => {
                    self.lines.join(&self.pool, len, (slot, None));
                    return false;
                }
            }
            true
        }

        /// A buffer of that size comes back: the commands that get one.
        fn give_back(&mut self, size: usize) -> Vec<u16> {
            let index = self.held.iter().position(|(held, _)| *held == size).unwrap();
            self.held.remove(index);
            let mut served = Vec::new();
            while let Some((class, command, sizes)) = self.lines.next(&self.pool) {
                self.lines.leave(class, &Shares::default());
                let buf = self.pool.take_of(1, sizes).unwrap();
                self.held.push((buf.capacity(), buf));
                served.push(command);
            }
            served
        }
    }

    #[test]
    fn the_small_do_not_wait_behind_the_large() {
        let mut bed = Bed::new();
        assert!(bed.come(0, 16384));
        assert!(!bed.come(1, 16384), "there is no second one");
        assert!(bed.come(2, 4096));
        assert!(bed.come(3, 4096), "a larger one, for which nobody waits");
        assert!(!bed.come(4, 4096));
        assert_eq!(bed.give_back(4096), [4]);
        assert!(!bed.lines.is_empty());
        assert_eq!(bed.give_back(16384), [1]);
        assert!(bed.lines.is_empty());
    }

    #[test]
    fn who_needs_a_large_one_is_not_starved() {
        let mut bed = Bed::new();
        for slot in 0..3 {
            assert!(bed.come(slot, 4096));
        }
        assert!(!bed.come(3, 4096));
        assert!(!bed.come(4, 16384));
        assert!(!bed.come(5, 8192));
        // The buffer of 16 KiB goes to the command that needs it, though two have waited as long or longer.
        assert_eq!(bed.give_back(16384), [4]);
        assert_eq!(bed.give_back(16384), [5], "then for the next smaller");
        assert_eq!(bed.give_back(8192), [3]);
    }

    #[test]
    fn first_come_first_served_within_a_size() {
        let mut bed = Bed::new();
        for slot in 0..6 {
            assert_eq!(bed.come(slot, 1), slot < 3, "{slot}");
        }
        assert_eq!(bed.give_back(8192), [3]);
        assert!(!bed.come(6, 1), "a newcomer does not overtake");
        assert_eq!(bed.give_back(4096), [4]);
        assert_eq!(bed.give_back(4096), [5]);
        assert_eq!(bed.give_back(4096), [6]);
    }

    #[test]
    fn who_goes_leaves_the_lines() {
        let mut bed = Bed::new();
        for slot in 0..7 {
            bed.come(slot, 1);
        }
        bed.lines.retain(|slot| ![3, 4, 5].contains(&slot));
        assert_eq!(bed.give_back(4096), [6]);
        assert!(bed.lines.is_empty());
    }
}
