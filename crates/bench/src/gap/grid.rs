//! The points at which the gap is measured, and choosing among them.

use std::fmt;
use std::str::FromStr;

use crate::limit::report::{case_name, parse_size};

/// One point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Bytes per command.
    pub io_bytes: u32,
    /// Whether they are writes; otherwise reads.
    pub write: bool,
    /// Commands in flight per connection.
    pub depth: u16,
    /// Connections.
    pub connections: u16,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (depth, connections) = (self.depth.into(), self.connections.into());
        f.write_str(&case_name(self.io_bytes as usize, self.write, depth, connections))
    }
}

const IO_BYTES: [u32; 3] = [4 << 10, 16 << 10, 128 << 10];
const DEPTHS: [u16; 4] = [1, 8, 32, 128];
const CONNECTIONS: [u16; 4] = [1, 4, 16, 64];

/// Most values that one key of a selection may have.
const VALUES_MAX: usize = 64;

/// The most informative points for a few minutes: size, write, depth, connections.
const QUICK: [(u32, bool, u16, u16); 24] = [
    (4 << 10, false, 1, 1),
    (4 << 10, false, 8, 1),
    (4 << 10, false, 32, 1),
    (4 << 10, false, 128, 1),
    (4 << 10, false, 8, 4),
    (4 << 10, false, 32, 4),
    (4 << 10, false, 1, 16),
    (4 << 10, false, 32, 16),
    (4 << 10, false, 1, 64),
    (4 << 10, false, 8, 64),
    (4 << 10, true, 1, 1),
    (4 << 10, true, 32, 1),
    (4 << 10, true, 128, 1),
    (4 << 10, true, 32, 16),
    (4 << 10, true, 8, 64),
    (16 << 10, false, 1, 1),
    (16 << 10, false, 32, 1),
    (16 << 10, false, 8, 16),
    (16 << 10, true, 32, 1),
    (16 << 10, true, 8, 16),
    (128 << 10, false, 1, 1),
    (128 << 10, false, 32, 1),
    (128 << 10, true, 1, 1),
    (128 << 10, true, 32, 1),
];

/// A choice of points: `io=4k,rw=read,depth=1|32`. Keys that are not named have all values of the grid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    io_bytes: Vec<u32>,
    write: Vec<bool>,
    depths: Vec<u16>,
    connections: Vec<u16>,
}

/// Not a selection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}`: points are chosen as in io=4k|16k,rw=read,depth=1|32,connections=16")]
pub struct UnknownSelection(String);

impl FromStr for Selection {
    type Err = UnknownSelection;

    fn from_str(text: &str) -> Result<Self, UnknownSelection> {
        let mut selection = Self::default();
        for word in text.split(',') {
            let wrong = || UnknownSelection(word.to_owned());
            let (name, values) = word.split_once('=').ok_or_else(wrong)?;
            for value in values.split('|').take(VALUES_MAX) {
                let number = || value.parse().ok().filter(|&number| number > 0).ok_or_else(wrong);
                match (name, value) {
                    ("io", size) => {
                        let bytes = parse_size(size).and_then(|bytes| u32::try_from(bytes).ok());
                        let bytes = bytes.filter(|&bytes| bytes > 0 && bytes.is_multiple_of(512));
                        selection.io_bytes.push(bytes.ok_or_else(wrong)?);
                    }
                    ("rw", "read") => selection.write.push(false),
                    ("rw", "write") => selection.write.push(true),
                    ("depth", _) => selection.depths.push(number()?),
                    ("connections", _) => selection.connections.push(number()?),
                    _ => return Err(wrong()),
                }
            }
        }
        Ok(selection)
    }
}

/// All points of the grid that a selection leaves. A selection may also name values outside the grid.
#[must_use]
pub fn full(selection: &Selection) -> Vec<Case> {
    let mut cases = Vec::new();
    for &io_bytes in or(&selection.io_bytes, &IO_BYTES) {
        for &write in or(&selection.write, &[false, true]) {
            for &connections in or(&selection.connections, &CONNECTIONS) {
                for &depth in or(&selection.depths, &DEPTHS) {
                    cases.push(Case { io_bytes, write, depth, connections });
                }
            }
        }
    }
    cases
}

/// The points of the quick list that a selection leaves.
#[must_use]
pub fn quick(selection: &Selection) -> Vec<Case> {
    let case = |(io_bytes, write, depth, connections)| Case { io_bytes, write, depth, connections };
    let chosen = |case: &Case| {
        or(&selection.io_bytes, &[case.io_bytes]).contains(&case.io_bytes)
            && or(&selection.write, &[case.write]).contains(&case.write)
            && or(&selection.depths, &[case.depth]).contains(&case.depth)
            && or(&selection.connections, &[case.connections]).contains(&case.connections)
    };
    QUICK.into_iter().map(case).filter(chosen).collect()
}

fn or<'a, T>(chosen: &'a [T], otherwise: &'a [T]) -> &'a [T] {
    if chosen.is_empty() { otherwise } else { chosen }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grid_is_complete_and_the_quick_list_is_part_of_it() {
        let all = full(&Selection::default());
        assert_eq!(all.len(), 3 * 2 * 4 * 4);
        let quick = quick(&Selection::default());
        assert!(quick.len() <= 24 && quick.iter().all(|case| all.contains(case)));
        let first = quick[0];
        assert_eq!(quick.iter().filter(|&&case| case == first).count(), 1);
        assert_eq!(first.to_string(), "4k read depth 1 x 1");
    }

    #[test]
    fn selections_choose() {
        let selection: Selection = "io=4k|8k,rw=read,depth=2".parse().unwrap();
        let cases = full(&selection);
        assert_eq!(cases.len(), 2 * 4);
        assert!(cases.iter().all(|case| !case.write && case.depth == 2));
        let selection: Selection = "rw=write,connections=1,io=128k".parse().unwrap();
        assert_eq!(quick(&selection).len(), 2);
    }

    #[test]
    fn what_is_no_selection_is_named() {
        for text in ["", "4k", "io=x", "io=100", "rw=both", "depth=0", "depth=99999", "size=1"] {
            assert_eq!(text.parse::<Selection>(), Err(UnknownSelection(text.to_owned())));
        }
    }
}
