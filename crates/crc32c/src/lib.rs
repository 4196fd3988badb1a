//! CRC32C (Castagnoli), the header and data digest of NVMe/TCP (NVMe/TCP 1.1 section 3.3.1.1).
//!
//! Unless told otherwise, the kernels are those of the `crc-fast` crate, chosen at run time. From 1 KiB
//! to less than 8 KiB, where the CPU has AVX-512 with VPCLMULQDQ, `fused.rs` is used: there it is at least
//! as fast. A digest over several pieces carries the raw CRC register from one to the next; the crate's
//! `combine`, which joins two finished digests, takes microseconds and is not used.

#[cfg(target_arch = "x86_64")]
pub mod fused;
#[cfg(target_arch = "x86_64")]
mod sse42;
mod table;

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

use crc_fast::{CrcAlgorithm, Digest};

/// The CRC32C of `data`.
///
/// ```
/// assert_eq!(raceline_crc32c::crc32c(b"123456789"), 0xE306_9283);
/// ```
#[inline]
#[must_use]
pub fn crc32c(data: &[u8]) -> u32 {
    match own(!0, data) {
        Some(register) => !register,
        None => crc_fast::crc32_iscsi(data),
    }
}

/// The register after `data` by the kernel that also copies, where that is the faster one.
#[inline]
fn own(register: u32, data: &[u8]) -> Option<u32> {
    #[cfg(target_arch = "x86_64")]
    return fused::crc32c(register, data);
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = (register, data);
        None
    }
}

/// A CRC32C in progress over data that comes in pieces.
///
/// Four bytes, `Copy`: a copy taken between two pieces is a digest of what came before.
///
/// ```
/// let mut digest = raceline_crc32c::Crc32c::new();
/// digest.update(b"1234");
/// digest.update(b"56789");
/// assert_eq!(digest.finalize(), 0xE306_9283);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crc32c {
    /// The CRC register, before the final inversion.
    register: u32,
}

impl Crc32c {
    /// A digest of no bytes.
    #[inline]
    #[must_use]
    pub const fn new() -> Self {
        Self { register: !0 }
    }

    /// A digest that goes on from a finished one: of the bytes that came before, or 0 for none.
    #[inline]
    #[must_use]
    pub const fn resume(crc: u32) -> Self {
        Self { register: !crc }
    }

    /// Appends a piece by a given path: to test and to compare.
    ///
    /// # Panics
    /// If this machine has no such path; see [`CrcPath::is_available`].
    #[inline]
    pub fn update_by(&mut self, path: CrcPath, data: &[u8]) {
        match path {
            CrcPath::Auto => self.update(data),
            other => self.register = other.advance(self.register, data),
        }
    }

    /// Appends a piece.
    #[inline]
    pub fn update(&mut self, data: &[u8]) {
        if self.register == Self::new().register {
            // Usually the first piece is the only one. Carrying a register into the crate means
            // a copy of its parameters, about 15 ns.
            self.register = !crc32c(data);
        } else {
            let own = own(self.register, data);
            self.register = own.unwrap_or_else(|| advance(self.register, data));
        }
    }

    /// The CRC32C of all pieces so far. The digest may go on after it.
    #[inline]
    #[must_use]
    pub const fn finalize(&self) -> u32 {
        !self.register
    }
}

impl Default for Crc32c {
    fn default() -> Self {
        Self::new()
    }
}

/// A way to compute a CRC32C.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CrcPath {
    /// The fastest that the machine has.
    #[default]
    Auto,
    /// Tables: any machine.
    Table,
    /// The CRC32 instruction of x86.
    Sse42,
    /// AVX-512 with VPCLMULQDQ of x86.
    Avx512,
    /// NEON with PMULL of ARM.
    Neon,
}

/// A path that cannot be taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CrcPathError {
    /// No path has this name.
    #[error("no CRC path is called {name:?}; there are auto, table, sse4.2, avx512, neon")]
    Unknown {
        /// The name.
        name: String,
    },
    /// The CPU lacks what the path needs.
    #[error(
        "this machine cannot compute a CRC by {path}; it can by {}",
        CrcPath::names_available()
    )]
    Unavailable {
        /// The path.
        path: CrcPath,
    },
}

impl CrcPath {
    /// All paths.
    pub const ALL: [CrcPath; 5] =
        [CrcPath::Auto, CrcPath::Table, CrcPath::Sse42, CrcPath::Avx512, CrcPath::Neon];

    /// Its name, e.g. `avx512`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            CrcPath::Auto => "auto",
            CrcPath::Table => "table",
            CrcPath::Sse42 => "sse4.2",
            CrcPath::Avx512 => "avx512",
            CrcPath::Neon => "neon",
        }
    }

    /// True if this machine has it.
    #[must_use]
    pub fn is_available(self) -> bool {
        match self {
            CrcPath::Auto | CrcPath::Table => true,
            #[cfg(target_arch = "x86_64")]
            CrcPath::Sse42 => is_x86_feature_detected!("sse4.2"),
            #[cfg(not(target_arch = "x86_64"))]
            CrcPath::Sse42 => false,
            // The crate says what it has chosen, by the instructions it uses.
            CrcPath::Avx512 => chosen_by_crate().contains("vpclmulqdq"),
            CrcPath::Neon => chosen_by_crate().contains("neon"),
        }
    }

    /// The path, if this machine has it.
    ///
    /// # Errors
    /// [`CrcPathError::Unavailable`].
    pub fn checked(self) -> Result<CrcPath, CrcPathError> {
        if self.is_available() { Ok(self) } else { Err(CrcPathError::Unavailable { path: self }) }
    }

    fn names_available() -> String {
        let available = CrcPath::ALL.into_iter().filter(|path| path.is_available());
        available.map(CrcPath::name).collect::<Vec<_>>().join(", ")
    }

    /// The register after `data`.
    fn advance(self, register: u32, data: &[u8]) -> u32 {
        match self {
            CrcPath::Table => table::update(register, data),
            #[cfg(target_arch = "x86_64")]
            CrcPath::Sse42 => sse42::update(register, data),
            CrcPath::Auto => own(register, data).unwrap_or_else(|| advance(register, data)),
            CrcPath::Avx512 | CrcPath::Neon if self.is_available() => advance(register, data),
            other => panic!("this machine cannot compute a CRC by {other}"),
        }
    }
}

impl fmt::Display for CrcPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for CrcPath {
    type Err = CrcPathError;

    fn from_str(name: &str) -> Result<CrcPath, CrcPathError> {
        let found = CrcPath::ALL.into_iter().find(|path| path.name() == name);
        found.ok_or_else(|| CrcPathError::Unknown { name: name.to_owned() })
    }
}

/// The instructions that the crate chose for this machine.
fn chosen_by_crate() -> &'static str {
    static CHOSEN: OnceLock<String> = OnceLock::new();
    CHOSEN.get_or_init(|| crc_fast::get_calculator_target(CrcAlgorithm::Crc32Iscsi))
}

/// The register after `data`, starting from `register`.
#[inline]
fn advance(register: u32, data: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(register));
    digest.update(data);
    let [low @ .., _, _, _, _] = digest.get_state().to_le_bytes();
    u32::from_le_bytes(low) // the crate keeps registers of all widths in a u64
}
