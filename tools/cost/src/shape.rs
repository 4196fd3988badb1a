//! The kinds of I/O whose cost is counted.

use std::str::FromStr;

use anyhow::{Error, bail};

/// Which end of the connection is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Target,
    Host,
}

/// What the host asks for, again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Its name, without the side.
    pub(crate) name: &'static str,
    /// A write; else a read.
    pub(crate) is_write: bool,
    /// Bytes of one I/O.
    pub(crate) bytes: usize,
    /// I/Os outstanding. All capsules of a round come in one receive.
    pub(crate) depth: usize,
    /// I/Os that are counted: a multiple of the depth.
    pub(crate) count: usize,
}

/// All shapes. Writes up to 8 KiB go in the capsule, larger ones by R2T.
pub(crate) const SHAPES: [Shape; 6] = [
    Shape { name: "4k-read-1", is_write: false, bytes: 4 << 10, depth: 1, count: 1024 },
    Shape { name: "4k-read-32", is_write: false, bytes: 4 << 10, depth: 32, count: 4096 },
    Shape { name: "4k-write-1", is_write: true, bytes: 4 << 10, depth: 1, count: 1024 },
    Shape { name: "4k-write-32", is_write: true, bytes: 4 << 10, depth: 32, count: 4096 },
    Shape { name: "16k-write-r2t-8", is_write: true, bytes: 16 << 10, depth: 8, count: 1024 },
    Shape { name: "128k-read-8", is_write: false, bytes: 128 << 10, depth: 8, count: 256 },
];

/// One shape, counted on one side: `target-4k-read-1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) side: Side,
    pub(crate) shape: Shape,
}

impl Case {
    /// All cases, the target's first.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let sides = [Side::Target, Side::Host].into_iter();
        sides.flat_map(|side| SHAPES.into_iter().map(move |shape| Self { side, shape }))
    }

    pub(crate) fn name(self) -> String {
        let side = match self.side {
            Side::Target => "target",
            Side::Host => "host",
        };
        format!("{side}-{}", self.shape.name)
    }
}

impl FromStr for Case {
    type Err = Error;

    fn from_str(word: &str) -> Result<Self, Error> {
        match Self::all().find(|case| case.name() == word) {
            Some(case) => Ok(case),
            None => bail!("there is no case '{word}' (see --list)"),
        }
    }
}
