//! Registered memory of a core for what its queues over RDMA send and receive, in blocks that are used again.

use std::net::SocketAddr;

use raceline_rdma::verbs::{Access, Provider, ProviderError, Region};

/// Blocks have these sizes: powers of two, from a page on.
const SMALLEST: u32 = 4096;
const SIZES: usize = 13;
/// Bytes of the largest block.
pub(super) const LARGEST: u32 = SMALLEST << (SIZES - 1);
/// Bytes of free blocks for data that stay registered: 127 commands of 128 KiB, rounded up.
const MOST_DATA: u64 = 16 << 20;
/// The same for capsules: 512 with more than 4,032 bytes of data, which is more than four queues have usually.
const MOST_CAPSULES: u64 = 4 << 20;

/// The blocks of one kind that no command has.
#[derive(Debug)]
pub(super) struct Blocks {
    access: Access,
    most_kept: u64,
    /// With the target whose commands they were for: it keeps the keys, so they are never for another one.
    free: [Vec<(Option<SocketAddr>, Region)>; SIZES],
    kept: u64,
}

/// Which size holds so many bytes.
fn size_of(bytes: u32) -> usize {
    let blocks = bytes.div_ceil(SMALLEST).max(1).next_power_of_two();
    usize::try_from(blocks.trailing_zeros()).unwrap_or(usize::MAX)
}

impl Blocks {
    /// For data, which the controller reads and writes itself.
    pub(super) fn of_data() -> Self {
        Self::new(Access::HOST_DATA, MOST_DATA)
    }

    /// For capsules with data, which no peer reaches.
    pub(super) fn of_capsules() -> Self {
        Self::new(Access::LOCAL, MOST_CAPSULES)
    }

    fn new(access: Access, most_kept: u64) -> Self {
        Self { access, most_kept, free: Default::default(), kept: 0 }
    }

    /// A block of at least so many bytes, at most [`LARGEST`], for a command of this target; none: no target reaches it.
    ///
    /// # Errors
    /// When no more memory can be registered.
    pub(super) fn take(
        &mut self,
        device: &mut impl Provider,
        target: Option<SocketAddr>,
        bytes: u32,
    ) -> Result<Region, ProviderError> {
        let size = size_of(bytes);
        let free = &mut self.free[size];
        if let Some(at) = free.iter().rposition(|(of, _)| *of == target) {
            let (_, region) = free.swap_remove(at);
            self.kept -= u64::from(region.len);
            return Ok(region);
        }
        let registered = device.register(SMALLEST << size, self.access);
        if registered.is_err() && self.kept > 0 {
            // Blocks of other sizes may be in the way.
            self.clear(device);
            return device.register(SMALLEST << size, self.access);
        }
        registered
    }

    /// Takes a block back.
    pub(super) fn give(
        &mut self,
        device: &mut impl Provider,
        target: Option<SocketAddr>,
        region: Region,
    ) {
        let free = &mut self.free[size_of(region.len)];
        if self.kept + u64::from(region.len) <= self.most_kept {
            self.kept += u64::from(region.len);
            return free.push((target, region));
        }
        // One of the same size makes room, so that a target whose commands came first does not keep all blocks.
        match free.iter().position(|(of, _)| *of != target) {
            Some(at) => device.deregister(std::mem::replace(&mut free[at], (target, region)).1),
            None => device.deregister(region),
        }
    }

    /// Ends the registrations of all free blocks. Whether there were any.
    pub(super) fn clear(&mut self, device: &mut impl Provider) -> bool {
        for (_, region) in self.free.iter_mut().flat_map(|free| free.drain(..)) {
            device.deregister(region);
        }
        std::mem::take(&mut self.kept) > 0
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

    use raceline_rdma::fake::{Network, NetworkConfig};

    use super::*;

    /// The target keeps the key of what it was given.
    #[test]
    fn a_block_is_never_for_another_target() {
        let network = Network::new(NetworkConfig::default());
        let mut device = network.add_device();
        let mut blocks = Blocks::of_data();
        let [one, other] = [1, 2].map(|last| Some(SocketAddr::new([192, 0, 2, last].into(), 4420)));
        let first = blocks.take(&mut device, one, 100).unwrap();
        blocks.give(&mut device, one, first);
        let second = blocks.take(&mut device, other, 100).unwrap();
        assert_ne!(first.rkey, second.rkey);
        blocks.give(&mut device, other, second);
        assert_eq!(blocks.take(&mut device, one, 100).unwrap().rkey, first.rkey);
        blocks.give(&mut device, one, first);
        // All that may be kept is of one target: the other one's takes the place of one of them.
        blocks.most_kept = blocks.kept;
        let third = blocks.take(&mut device, other, 100).unwrap();
        let more = blocks.take(&mut device, other, 100).unwrap();
        blocks.give(&mut device, other, third);
        blocks.give(&mut device, other, more);
        assert_eq!(blocks.kept, blocks.most_kept);
        assert!(blocks.free[0].iter().all(|(of, _)| *of == other), "{:?}", blocks.free[0]);
        assert!(
            blocks.clear(&mut device) && network.core_numbered(device.number()).registered == 0
        );
    }

    #[test]
    fn every_length_has_a_size() {
        let sizes = [1, 4096, 4097, 8192, 131_072, 131_073, LARGEST].map(size_of);
        assert_eq!(sizes, [0, 0, 1, 1, 5, 6, SIZES - 1]);
    }
}
