//! CRC32C (Castagnoli), the header and data digest of NVMe/TCP (NVMe/TCP 1.1 section 3.3.1.1).
//!
//! The kernels are those of the `crc-fast` crate, chosen at run time (AVX-512 with VPCLMULQDQ
//! where the CPU has it). A digest over several pieces carries the raw CRC register from one to
//! the next; the crate's `combine`, which joins two finished digests, takes microseconds and is
//! not used.

use crc_fast::{CrcAlgorithm, Digest};

/// The CRC32C of `data`.
///
/// ```
/// assert_eq!(raceline_accel::crc32c(b"123456789"), 0xE306_9283);
/// ```
#[inline]
#[must_use]
pub fn crc32c(data: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(data)
}

/// A CRC32C in progress over data that comes in pieces.
///
/// Four bytes, `Copy`: a copy taken between two pieces is a digest of what came before.
///
/// ```
/// let mut digest = raceline_accel::Crc32c::new();
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

    /// Appends a piece.
    #[inline]
    pub fn update(&mut self, data: &[u8]) {
        if self.register == Self::new().register {
            // Usually the first piece is the only one. Carrying a register into the crate means
            // a copy of its parameters, about 15 ns.
            self.register = !crc32c(data);
        } else {
            self.register = advance(self.register, data);
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

/// The register after `data`, starting from `register`.
#[inline]
fn advance(register: u32, data: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(register));
    digest.update(data);
    let [low @ .., _, _, _, _] = digest.get_state().to_le_bytes();
    u32::from_le_bytes(low) // the crate keeps registers of all widths in a u64
}
