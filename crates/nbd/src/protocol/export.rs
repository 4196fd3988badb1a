//! What clients are told of an export.

use super::wire::can;

/// Most bytes of one read or write: what clients assume that do not ask.
pub(crate) const MAX_REQUEST_BYTES: u32 = 32 << 20;

/// What an export is and can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportFacts {
    /// Its name.
    pub name: String,
    /// A text for people.
    pub description: String,
    /// Its size, a multiple of `block_bytes`.
    pub bytes: u64,
    /// Requests begin and end at multiples of this.
    pub block_bytes: u32,
    /// The size of requests that suits the device, at least `block_bytes`.
    pub preferred_bytes: u32,
    /// Writes are refused.
    pub read_only: bool,
    /// Ranges can be released.
    pub trims: bool,
    /// Zeroing by releasing is faster than writing.
    pub fast_zero: bool,
    /// Data are in memory, so that CACHE has nothing to do.
    pub in_memory: bool,
    /// It knows what is allocated.
    pub knows_holes: bool,
}

impl ExportFacts {
    /// Its transmission flags.
    #[must_use]
    pub fn flags(&self, structured: bool) -> u16 {
        let writes = if self.read_only {
            can::READ_ONLY
        } else {
            let trim = if self.trims { can::TRIM } else { 0 };
            can::FUA | can::WRITE_ZEROES | can::FAST_ZERO | trim
        };
        let cache = if self.in_memory { can::CACHE } else { 0 };
        let df = if structured { can::DF } else { 0 };
        can::HAS_FLAGS | can::FLUSH | can::MULTI_CONN | writes | cache | df
    }

    /// Smallest, preferred and largest size of a request.
    pub(crate) fn block_sizes(&self) -> [u32; 3] {
        let preferred = self.preferred_bytes.max(self.block_bytes).min(MAX_REQUEST_BYTES);
        [self.block_bytes, preferred, MAX_REQUEST_BYTES]
    }
}
