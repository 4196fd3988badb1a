//! The eight operations: their names, their parameters, and what they give back.

use std::fmt;
use std::str::FromStr;

/// What an operation does, without its parameters; spelled as SPDK's RPC spells it.
///
/// A new operation is a variant here and in [`Operation`], and its function in `software.rs`,
/// where the compiler asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpCode {
    /// Copies a source to a target.
    Copy,
    /// Fills a target with one byte.
    Fill,
    /// Copies a source to two targets.
    DualCast,
    /// Compares two sources.
    Compare,
    /// The CRC32C of a source.
    Crc32c,
    /// Copies a source to a target, and gives the CRC32C of what the target then holds.
    CopyCrc32c,
    /// Compresses a source into a target (DEFLATE, RFC 1951).
    Compress,
    /// Decompresses a source into a target (DEFLATE, RFC 1951).
    Decompress,
}

impl OpCode {
    /// How many there are.
    pub const COUNT: usize = 8;

    /// All of them.
    pub const ALL: [OpCode; OpCode::COUNT] = [
        OpCode::Copy,
        OpCode::Fill,
        OpCode::DualCast,
        OpCode::Compare,
        OpCode::Crc32c,
        OpCode::CopyCrc32c,
        OpCode::Compress,
        OpCode::Decompress,
    ];

    /// Its name in the RPC, e.g. `copy_crc32c`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            OpCode::Copy => "copy",
            OpCode::Fill => "fill",
            OpCode::DualCast => "dualcast",
            OpCode::Compare => "compare",
            OpCode::Crc32c => "crc32c",
            OpCode::CopyCrc32c => "copy_crc32c",
            OpCode::Compress => "compress",
            OpCode::Decompress => "decompress",
        }
    }

    /// Its place in [`OpCode::ALL`], for tables.
    #[inline]
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for OpCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no operation's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no operation is called {name:?}; there are {}", OpSet::ALL)]
pub struct UnknownOpCode {
    /// The name.
    pub name: String,
}

impl FromStr for OpCode {
    type Err = UnknownOpCode;

    fn from_str(name: &str) -> Result<OpCode, UnknownOpCode> {
        let found = OpCode::ALL.into_iter().find(|code| code.name() == name);
        found.ok_or_else(|| UnknownOpCode { name: name.to_owned() })
    }
}

/// A set of operations: what an engine can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpSet(u16);

impl OpSet {
    /// No operation.
    pub const EMPTY: OpSet = OpSet(0);

    /// Every operation.
    pub const ALL: OpSet = OpSet::of(&OpCode::ALL);

    /// These operations.
    #[must_use]
    pub const fn of(codes: &[OpCode]) -> OpSet {
        let mut bits = 0;
        let mut at = 0;
        while at < codes.len() {
            bits |= 1 << codes[at].index();
            at += 1;
        }
        OpSet(bits)
    }

    /// True if it has this one.
    #[inline]
    #[must_use]
    pub const fn contains(self, code: OpCode) -> bool {
        self.0 & (1 << code.index()) != 0
    }

    /// Its members.
    pub fn iter(self) -> impl Iterator<Item = OpCode> {
        OpCode::ALL.into_iter().filter(move |&code| self.contains(code))
    }
}

impl fmt::Display for OpSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, code) in self.iter().enumerate() {
            write!(f, "{}{code}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// An operation with its parameters, without its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// See [`OpCode::Copy`].
    Copy,
    /// See [`OpCode::Fill`].
    Fill {
        /// What every byte becomes.
        byte: u8,
    },
    /// See [`OpCode::DualCast`].
    DualCast,
    /// See [`OpCode::Compare`].
    Compare,
    /// See [`OpCode::Crc32c`].
    Crc32c {
        /// The CRC32C of the bytes that come before these; 0 when none do.
        seed: u32,
    },
    /// See [`OpCode::CopyCrc32c`].
    CopyCrc32c {
        /// As of [`Operation::Crc32c`].
        seed: u32,
    },
    /// See [`OpCode::Compress`].
    Compress {
        /// From 1 (fast) to 9 (small); other levels are taken for the nearest of these.
        level: u8,
    },
    /// See [`OpCode::Decompress`].
    Decompress,
}

impl Operation {
    /// Which it is.
    #[inline]
    #[must_use]
    pub const fn code(self) -> OpCode {
        match self {
            Operation::Copy => OpCode::Copy,
            Operation::Fill { .. } => OpCode::Fill,
            Operation::DualCast => OpCode::DualCast,
            Operation::Compare => OpCode::Compare,
            Operation::Crc32c { .. } => OpCode::Crc32c,
            Operation::CopyCrc32c { .. } => OpCode::CopyCrc32c,
            Operation::Compress { .. } => OpCode::Compress,
            Operation::Decompress => OpCode::Decompress,
        }
    }

    /// True if its parts can be done one after another, each from where the last one stopped.
    #[inline]
    #[must_use]
    pub const fn is_divisible(self) -> bool {
        !matches!(self, Operation::Compress { .. } | Operation::Decompress)
    }

    /// For an operation that digests: the digest of the bytes that come before.
    #[inline]
    #[must_use]
    pub const fn seed(self) -> u32 {
        match self {
            Operation::Crc32c { seed } | Operation::CopyCrc32c { seed } => seed,
            _ => 0,
        }
    }

    /// The same operation after bytes with this digest.
    pub(crate) const fn going_on_from(self, crc32c: u32) -> Operation {
        match self {
            Operation::Crc32c { .. } => Operation::Crc32c { seed: crc32c },
            Operation::CopyCrc32c { .. } => Operation::CopyCrc32c { seed: crc32c },
            other => other,
        }
    }
}

/// What an operation that succeeded gives besides what it wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Nothing: copy, fill, dualcast.
    Nothing,
    /// Whether the sources are the same: compare.
    Equal(bool),
    /// The digest: crc32c, and copy_crc32c of the bytes in the target.
    Crc32c(u32),
    /// The bytes written to the target: compress, decompress.
    Written(usize),
}

/// Why an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccelError {
    /// A sub-range is not inside its memory.
    #[error("{len} bytes at {offset} asked for, of an operand of {available}")]
    Range {
        /// Where the range starts.
        offset: usize,
        /// How long it is.
        len: usize,
        /// How long the memory is.
        available: usize,
    },
    /// Operands that must be of one length are not.
    #[error("{operation}: operands of {first} and {second} bytes, which must be the same")]
    Lengths {
        /// The operation.
        operation: OpCode,
        /// Bytes of the first source.
        first: usize,
        /// Bytes of the other operand.
        second: usize,
    },
    /// The target is too small for what compress or decompress makes of the source.
    #[error("the target of {available} bytes is too small for the result")]
    TargetTooSmall {
        /// Bytes of the target.
        available: usize,
    },
    /// What should be decompressed is no DEFLATE stream, or ends early.
    #[error("the source is not a complete DEFLATE stream")]
    NotDeflate,
    /// An engine reported an error. Its number is the engine's own.
    #[error("engine {engine} failed the operation with status {status:#x}")]
    Engine {
        /// The engine's name.
        engine: &'static str,
        /// Its status.
        status: u32,
    },
    /// An engine did not complete the operation in time; it still owns the memory.
    #[error("engine {engine} did not complete the operation in time; its memory is set aside")]
    TimedOut {
        /// The engine's name.
        engine: &'static str,
    },
    /// Error injection was told to fail it.
    #[error("failed by error injection")]
    Injected,
    /// Nothing can do this operation.
    #[error("{0} is not supported")]
    NotSupported(OpCode),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_has_its_place_and_its_name() {
        for (index, code) in OpCode::ALL.into_iter().enumerate() {
            assert_eq!(code.index(), index);
            assert_eq!(code.name().parse(), Ok(code));
            assert!(OpSet::ALL.contains(code) && !OpSet::EMPTY.contains(code));
        }
        let unknown = "crc64".parse::<OpCode>().unwrap_err().to_string();
        assert!(unknown.contains("crc64") && unknown.contains("copy_crc32c"), "{unknown}");
        let some = OpSet::of(&[OpCode::Fill, OpCode::Crc32c]);
        assert_eq!(some.to_string(), "fill, crc32c");
    }
}
