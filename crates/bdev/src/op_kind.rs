//! The kinds of requests, for wrappers that treat them differently.

use std::fmt;

use crate::Op;

/// What a request does, without its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    /// [`Op::Read`].
    Read,
    /// [`Op::Write`].
    Write,
    /// [`Op::Flush`].
    Flush,
    /// [`Op::WriteZeroes`].
    WriteZeroes,
    /// [`Op::Deallocate`].
    Deallocate,
}

impl OpKind {
    /// All of them, in the order of their discriminants.
    pub const ALL: [Self; 5] =
        [Self::Read, Self::Write, Self::Flush, Self::WriteZeroes, Self::Deallocate];

    /// The kind of a request.
    #[must_use]
    pub const fn of(op: &Op) -> Self {
        match op {
            Op::Read { .. } => Self::Read,
            Op::Write { .. } => Self::Write,
            Op::Flush => Self::Flush,
            Op::WriteZeroes { .. } => Self::WriteZeroes,
            Op::Deallocate { .. } => Self::Deallocate,
        }
    }

    /// The word for it in the device grammar.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::WriteZeroes => "zeroes",
            Self::Deallocate => "deallocate",
        }
    }

    /// The kind that a word of the device grammar names.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.word() == word)
    }
}

impl fmt::Display for OpKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}
