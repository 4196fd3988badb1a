//! CRC32C and other data operations, on the CPU or on offload engines.
//!
//! Today this is CRC32C on the CPU: [`crc32c`] for bytes in one piece, [`Crc32c`] for bytes that
//! arrive in several. The interface through which other engines are reached will stand beside
//! them; the two stay what they are, the way to a digest that costs no submission.

mod crc32c;

pub use crc32c::{Crc32c, crc32c};
