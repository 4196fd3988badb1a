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
    /// [`Op::Copy`].
    Copy,
    /// [`Op::Find`].
    Find,
    /// [`Op::WriteUncorrectable`].
    WriteUncorrectable,
}

impl OpKind {
    /// All of them, in the order of their discriminants.
    pub const ALL: [Self; 8] = [
        Self::Read,
        Self::Write,
        Self::Flush,
        Self::WriteZeroes,
        Self::Deallocate,
        Self::Copy,
        Self::Find,
        Self::WriteUncorrectable,
    ];

    /// The kind of a request.
    #[must_use]
    pub const fn of(op: &Op) -> Self {
        match op {
            Op::Read { .. } | Op::ReadPages { .. } => Self::Read,
            Op::Write { .. } | Op::WritePages { .. } => Self::Write,
            Op::Flush => Self::Flush,
            Op::WriteZeroes { .. } => Self::WriteZeroes,
            Op::Deallocate { .. } => Self::Deallocate,
            Op::Copy { .. } => Self::Copy,
            Op::Find { .. } => Self::Find,
            Op::WriteUncorrectable { .. } => Self::WriteUncorrectable,
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
            Self::Copy => "copy",
            Self::Find => "find",
            Self::WriteUncorrectable => "uncorrectable",
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
