//! Registered memory for the data of a queue over RDMA, in blocks that are used again.

use raceline_rdma::verbs::{Access, Provider, ProviderError, Region};

/// Blocks have these sizes: powers of two, from a page on.
const SMALLEST: u32 = 4096;
const SIZES: usize = 13;
/// Bytes of the largest block.
pub(super) const LARGEST: u32 = SMALLEST << (SIZES - 1);
/// Bytes of free blocks that stay registered: 127 commands of 128 KiB, rounded up.
const MOST_KEPT: u64 = 16 << 20;

/// The blocks of one connection that no command has.
#[derive(Debug, Default)]
pub(super) struct DataMemory {
    free: [Vec<Region>; SIZES],
    kept: u64,
}

/// Which size holds so many bytes.
fn size_of(bytes: u32) -> usize {
    let blocks = bytes.div_ceil(SMALLEST).max(1).next_power_of_two();
    usize::try_from(blocks.trailing_zeros()).unwrap_or(usize::MAX)
}

impl DataMemory {
    /// A block of at least so many bytes, at most [`LARGEST`].
    ///
    /// # Errors
    /// When no more memory can be registered.
    pub(super) fn take(
        &mut self,
        device: &mut impl Provider,
        bytes: u32,
    ) -> Result<Region, ProviderError> {
        let size = size_of(bytes);
        if let Some(region) = self.free[size].pop() {
            self.kept -= u64::from(region.len);
            return Ok(region);
        }
        let registered = device.register(SMALLEST << size, Access::HOST_DATA);
        if registered.is_err() && self.kept > 0 {
            // Blocks of other sizes may be in the way.
            self.clear(device);
            return device.register(SMALLEST << size, Access::HOST_DATA);
        }
        registered
    }

    /// Takes a block back.
    pub(super) fn give(&mut self, device: &mut impl Provider, region: Region) {
        let kept = self.kept + u64::from(region.len);
        if kept > MOST_KEPT {
            return device.deregister(region);
        }
        self.kept = kept;
        self.free[size_of(region.len)].push(region);
    }

    /// Ends the registrations of all free blocks.
    pub(super) fn clear(&mut self, device: &mut impl Provider) {
        for region in self.free.iter_mut().flat_map(|free| free.drain(..)) {
            device.deregister(region);
        }
        self.kept = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_has_a_size() {
        let sizes = [1, 4096, 4097, 8192, 131_072, 131_073, LARGEST].map(size_of);
        assert_eq!(sizes, [0, 0, 1, 1, 5, 6, SIZES - 1]);
    }
}
