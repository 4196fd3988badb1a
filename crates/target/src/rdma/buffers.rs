//! Registered memory for data that are under way, within a budget.

use std::time::{Duration, Instant};

use raceline_rdma::verbs::{Access, DomainId, Provider, Region};

/// Bytes of the smallest buffer.
const LEAST: u32 = 4096;
/// A device that refuses memory is not told of more often.
const WARNING_INTERVAL: Duration = Duration::from_secs(1);

/// Buffers of powers of two. They are registered when they are first needed, and kept.
///
/// Buffers that are open to writes of peers are not kept: each transfer tells a peer the key of its buffer. The key has to be
/// dead before data of another connection can be there.
#[derive(Debug)]
pub(super) struct Buffers {
    access: Access,
    budget: u64,
    /// Bytes that are registered, in use or not.
    registered: u64,
    /// Those not in use, by size.
    free: Vec<Vec<Region>>,
    /// When the last warning was written.
    warned: Option<Instant>,
}

impl Buffers {
    /// None yet, and at most so many bytes.
    pub(super) fn new(access: Access, budget: u64) -> Self {
        Self { access, budget, registered: 0, free: Vec::new(), warned: None }
    }

    /// Bytes of the buffer for so many bytes.
    pub(super) fn size_of(len: u32) -> u64 {
        u64::from(len.max(LEAST)).next_power_of_two()
    }

    /// The most that one connection may have at a time, beyond its first buffer.
    pub(super) fn share(&self) -> u64 {
        self.budget / 4
    }

    /// Whether a host that has so many bytes may have another buffer for so many: half of all, or one buffer. So another
    /// host finds a half, whatever this one does not take.
    pub(super) fn may_hold(&self, held: u64, len: u32) -> bool {
        held == 0 || held + Self::size_of(len) <= self.budget / 2
    }

    /// A buffer of at least so many bytes. `None`: all are in use, or the device refuses more.
    pub(super) fn take<P: Provider>(&mut self, device: &mut P, len: u32) -> Option<Region> {
        let size = Self::size_of(len);
        let class = class_of(size);
        if self.free.len() <= class {
            self.free.resize_with(class + 1, Vec::new);
        }
        if let Some(region) = self.free[class].pop() {
            return Some(region);
        }
        while self.registered + size > self.budget {
            // Another size was wanted before.
            let unused = self.free.iter_mut().rev().find_map(Vec::pop)?;
            self.registered -= u64::from(unused.len);
            device.deregister(unused);
        }
        match device.register(DomainId::OWN, u32::try_from(size).ok()?, self.access) {
            Ok(region) => {
                self.registered += size;
                Some(region)
            }
            Err(error) => {
                let now = Instant::now();
                if self.warned.is_none_or(|at| now >= at + WARNING_INTERVAL) {
                    self.warned = Some(now);
                    tracing::warn!(%error, size, "no registered memory for the data of an RDMA connection");
                }
                None
            }
        }
    }

    /// A buffer comes back. No request can touch it any longer.
    pub(super) fn give<P: Provider>(&mut self, device: &mut P, region: Region) {
        if self.access.remote_write {
            self.registered -= u64::from(region.len);
            return device.deregister(region);
        }
        self.free[class_of(u64::from(region.len))].push(region);
    }

    /// Ends the registrations of all that is not in use.
    pub(super) fn end<P: Provider>(&mut self, device: &mut P) {
        for region in self.free.iter_mut().flat_map(std::mem::take) {
            self.registered -= u64::from(region.len);
            device.deregister(region);
        }
    }
}

fn class_of(size: u64) -> usize {
    usize::try_from(size.ilog2() - LEAST.ilog2()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use raceline_rdma::fake::{Network, NetworkConfig};

    #[test]
    fn buffers_of_other_sizes_make_room_within_the_budget() {
        let network = Network::new(NetworkConfig::default());
        let mut device = network.add_device();
        let mut buffers = Buffers::new(Access::LOCAL, 16 * 1024);
        let small: Vec<Region> = (0..4).map_while(|_| buffers.take(&mut device, 1)).collect();
        assert_eq!(small.len(), 4);
        assert_eq!(buffers.take(&mut device, 4096), None, "the budget is used up");
        assert_eq!(buffers.take(&mut device, 16 * 1024), None);
        small.into_iter().for_each(|region| buffers.give(&mut device, region));
        let large = buffers.take(&mut device, 9000).unwrap();
        assert_eq!(large.len, 16 * 1024, "the small ones had to go");
        assert_eq!(network.leftovers().0, 1);
        assert_eq!(buffers.take(&mut device, 1), None);
        buffers.give(&mut device, large);
        buffers.end(&mut device);
        assert_eq!(network.leftovers().0, 0);
        assert_eq!(buffers.registered, 0);
    }

    #[test]
    fn a_buffer_that_is_open_to_peers_ends_with_its_use() {
        let network = Network::new(NetworkConfig::default());
        let mut device = network.add_device();
        let mut buffers = Buffers::new(Access::HOST_DATA, 16 * 1024);
        for _ in 0..8 {
            let buffer = buffers.take(&mut device, 16 * 1024).unwrap();
            assert_eq!(buffers.take(&mut device, 1), None, "the budget is used up");
            buffers.give(&mut device, buffer);
            assert_eq!((network.leftovers().0, buffers.registered), (0, 0));
        }
    }
}
