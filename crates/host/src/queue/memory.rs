//! Registered memory of a core for what its queues over RDMA send and receive, in blocks that are used again, and the
//! protection domains in which it is: one for each target.
//!
//! A queue pair and its peer reach the memory of their own domain only. So a target that guesses the key of another one's
//! block reaches nothing by it.

use std::net::SocketAddr;

use raceline_rdma::verbs::{Access, DomainId, Provider, ProviderError, Region};

/// Blocks have these sizes: powers of two, from a page on.
const SMALLEST: u32 = 4096;
const SIZES: usize = 13;
/// Bytes of the largest block.
pub(super) const LARGEST: u32 = SMALLEST << (SIZES - 1);
/// Bytes of free blocks for data that stay registered, of all domains together: 127 commands of 128 KiB, rounded up.
const MOST_DATA: u64 = 16 << 20;
/// The same for capsules: 512 with more than 4,032 bytes of data, which is more than four queues have usually.
const MOST_CAPSULES: u64 = 4 << 20;

/// What a block is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Data, which the controller reads and writes itself.
    Data,
    /// Capsules with data, which no peer reaches.
    Capsule,
}

impl Kind {
    const ALL: [Self; 2] = [Self::Data, Self::Capsule];

    fn access(self) -> Access {
        match self {
            Self::Data => Access::HOST_DATA,
            Self::Capsule => Access::LOCAL,
        }
    }
}

/// Free blocks of one kind, by size.
type Free = [Vec<Region>; SIZES];

/// The memory for the commands of one target.
#[derive(Debug)]
struct Domain {
    target: SocketAddr,
    id: DomainId,
    /// Queues to the target.
    queues: usize,
    /// Blocks that commands have.
    lent: usize,
    /// By kind.
    free: [Free; 2],
}

/// All of it.
#[derive(Debug)]
pub(super) struct Memory {
    /// Queues know theirs by its place. One that no queue is in and of which no command has a block is closed.
    domains: Vec<Option<Domain>>,
    /// Bytes of free blocks, by kind.
    kept: [u64; 2],
    most_kept: [u64; 2],
    /// Blocks that commands have.
    lent: usize,
}

/// Which size holds so many bytes.
fn size_of(bytes: u32) -> usize {
    let blocks = bytes.div_ceil(SMALLEST).max(1).next_power_of_two();
    usize::try_from(blocks.trailing_zeros()).unwrap_or(usize::MAX)
}

impl Memory {
    pub(super) fn new() -> Self {
        let most_kept = [MOST_DATA, MOST_CAPSULES];
        Self { domains: Vec::new(), kept: [0; 2], most_kept, lent: 0 }
    }

    /// A queue to this target joins: gives the place of the target's domain, which is made if there is none.
    ///
    /// # Errors
    /// When the device makes no further domain.
    pub(super) fn enter(
        &mut self,
        device: &mut impl Provider,
        target: SocketAddr,
    ) -> Result<usize, ProviderError> {
        let is_its = |known: &Option<Domain>| known.as_ref().is_some_and(|it| it.target == target);
        let place = match self.domains.iter().position(is_its) {
            Some(place) => place,
            None => {
                let id = device.open_domain()?;
                let domain = Domain { target, id, queues: 0, lent: 0, free: Default::default() };
                let free = self.domains.iter().position(Option::is_none);
                let place = free.unwrap_or(self.domains.len());
                self.domains.resize_with(self.domains.len().max(place + 1), || None);
                self.domains[place] = Some(domain);
                place
            }
        };
        self.domain(place).queues += 1;
        Ok(place)
    }

    /// A queue has left, and nothing is left of its queue pair. Its commands may give their blocks back later.
    pub(super) fn leave(&mut self, device: &mut impl Provider, place: usize) {
        self.domain(place).queues -= 1;
        self.close_unused(device, place);
    }

    /// The domain of a place, for queue pairs and their own memory.
    pub(super) fn id(&mut self, place: usize) -> DomainId {
        self.domain(place).id
    }

    /// Whether some command has a block.
    pub(super) fn is_lent(&self) -> bool {
        self.lent > 0
    }

    /// # Panics
    /// When it is closed: that is a bug of the caller, who has a queue or a block there.
    #[inline]
    fn domain(&mut self, place: usize) -> &mut Domain {
        let Some(domain) = &mut self.domains[place] else {
            unreachable!("a domain is used after its end")
        };
        domain
    }

    /// A block of at least so many bytes, at most [`LARGEST`], for a command of a domain.
    ///
    /// # Errors
    /// When no more memory can be registered.
    pub(super) fn lend(
        &mut self,
        device: &mut impl Provider,
        place: usize,
        kind: Kind,
        bytes: u32,
    ) -> Result<Region, ProviderError> {
        let size = size_of(bytes);
        let domain = self.domain(place);
        if let Some(region) = domain.free[kind as usize][size].pop() {
            domain.lent += 1;
            self.kept[kind as usize] -= u64::from(region.len);
            self.lent += 1;
            return Ok(region);
        }
        let id = domain.id;
        let region = match device.register(id, SMALLEST << size, kind.access()) {
            // Blocks that nobody uses may be in the way: of other sizes, the other kind, other domains.
            Err(_) if self.kept != [0; 2] => {
                self.clear(device);
                device.register(id, SMALLEST << size, kind.access())?
            }
            registered => registered?,
        };
        self.domain(place).lent += 1;
        self.lent += 1;
        Ok(region)
    }

    /// Takes a block back.
    pub(super) fn give_back(
        &mut self,
        device: &mut impl Provider,
        place: usize,
        kind: Kind,
        region: Region,
    ) {
        self.lent -= 1;
        let (of, size, len) = (kind as usize, size_of(region.len), u64::from(region.len));
        self.domain(place).lent -= 1;
        // No queue of a domain that ends will ask for it.
        if self.domain(place).queues > 0 && self.make_room(device, place, (kind, size)) {
            self.kept[of] += len;
            self.domain(place).free[of][size].push(region);
        } else {
            device.deregister(region);
        }
        self.close_unused(device, place);
    }

    /// Ends free blocks until one of this size fits, if it has to be: of the same size in other domains, so that a target whose
    /// commands came first does not keep all blocks; then of other sizes, the largest first, so that a burst of large commands does
    /// not have all small ones register theirs. False where all are of its own size and domain.
    fn make_room(
        &mut self,
        device: &mut impl Provider,
        place: usize,
        (kind, size): (Kind, usize),
    ) -> bool {
        let of = kind as usize;
        while self.kept[of] + u64::from(SMALLEST << size) > self.most_kept[of] {
            let Some(other) = self.take_other(place, (kind, size)) else { return false };
            self.kept[of] -= u64::from(other.len);
            device.deregister(other);
        }
        true
    }

    fn take_other(&mut self, place: usize, (kind, size): (Kind, usize)) -> Option<Region> {
        let others = (0..SIZES).rev().filter(|other| *other != size);
        std::iter::once(size).chain(others).find_map(|which| {
            let mut domains = self.domains.iter_mut().enumerate();
            domains.find_map(|(at, domain)| match domain {
                Some(domain) if at != place || which != size => {
                    domain.free[kind as usize][which].pop()
                }
                _ => None,
            })
        })
    }

    /// Ends the registrations of all free blocks.
    fn clear(&mut self, device: &mut impl Provider) {
        for place in 0..self.domains.len() {
            self.clear_domain(device, place);
        }
    }

    fn clear_domain(&mut self, device: &mut impl Provider, place: usize) {
        let Some(domain) = &mut self.domains[place] else { return };
        for kind in Kind::ALL {
            for region in domain.free[kind as usize].iter_mut().flat_map(|free| free.drain(..)) {
                self.kept[kind as usize] -= u64::from(region.len);
                device.deregister(region);
            }
        }
    }

    /// Closes a domain that has neither queues nor blocks at commands.
    fn close_unused(&mut self, device: &mut impl Provider, place: usize) {
        let Domain { queues: 0, lent: 0, id, .. } = *self.domain(place) else { return };
        self.clear_domain(device, place);
        self.domains[place] = None;
        device.close_domain(id);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

    use raceline_rdma::fake::{FakeDevice, Network, NetworkConfig};

    use super::*;

    /// A device, and two targets with a queue each.
    fn two() -> (Network, FakeDevice, Memory, [usize; 2]) {
        let network = Network::new(NetworkConfig::default());
        let mut device = network.add_device();
        let mut memory = Memory::new();
        let target = |last| SocketAddr::new([192, 0, 2, last].into(), 4420);
        let places = [1, 2].map(|last| memory.enter(&mut device, target(last)).unwrap());
        (network, device, memory, places)
    }

    /// The target keeps the key of what it was given.
    #[test]
    fn a_block_is_never_for_another_target() {
        let (network, mut device, mut memory, [one, other]) = two();
        let kind = Kind::Data;
        let first = memory.lend(&mut device, one, kind, 100).unwrap();
        assert_ne!(memory.id(one), memory.id(other));
        memory.give_back(&mut device, one, kind, first);
        let second = memory.lend(&mut device, other, kind, 100).unwrap();
        assert_ne!(first.rkey, second.rkey);
        memory.give_back(&mut device, other, kind, second);
        assert_eq!(memory.lend(&mut device, one, kind, 100).unwrap().rkey, first.rkey);
        memory.give_back(&mut device, one, kind, first);
        // All that may be kept is of one target: the other one's takes the place of one of them.
        memory.most_kept = memory.kept;
        let third = memory.lend(&mut device, other, kind, 100).unwrap();
        let more = memory.lend(&mut device, other, kind, 100).unwrap();
        memory.give_back(&mut device, other, kind, third);
        memory.give_back(&mut device, other, kind, more);
        assert_eq!(memory.kept, memory.most_kept);
        let kept = [one, other].map(|place| memory.domain(place).free[kind as usize][0].len());
        assert_eq!(kept, [0, 2]);
        let core = network.core_numbered(device.number());
        assert_eq!((core.domains, core.registered), (2, 2 * 4096));
        for place in [one, other] {
            memory.leave(&mut device, place);
        }
        assert_eq!((network.leftovers(), memory.kept), ((0, 0), [0; 2]));
        assert_eq!(network.misuses(), Vec::<String>::new());
    }

    /// Large blocks that were kept of a burst give way to small ones, and a domain that ends takes no room.
    #[test]
    fn blocks_of_other_sizes_make_room() {
        let (network, mut device, mut memory, [one, other]) = two();
        let kind = Kind::Data;
        memory.most_kept = [2 * 32768, 0];
        let large = [0; 3].map(|_| memory.lend(&mut device, one, kind, 32768).unwrap());
        large.into_iter().for_each(|block| memory.give_back(&mut device, one, kind, block));
        let free = |memory: &mut Memory, place: usize, size: usize| {
            memory.domain(place).free[kind as usize][size].len()
        };
        assert_eq!(free(&mut memory, one, 3), 2, "no more than may be kept");
        for place in [one, other] {
            let small = memory.lend(&mut device, place, kind, 100).unwrap();
            memory.give_back(&mut device, place, kind, small);
            let again = memory.lend(&mut device, place, kind, 100).unwrap();
            assert_eq!(again.rkey, small.rkey, "it was kept");
            memory.give_back(&mut device, place, kind, again);
        }
        assert_eq!((free(&mut memory, one, 3), memory.kept[0]), (1, 32768 + 2 * 4096));
        // The last queue of a target has left.
        let late = [0; 2].map(|_| memory.lend(&mut device, other, kind, 32768).unwrap());
        memory.leave(&mut device, other);
        late.into_iter().for_each(|block| memory.give_back(&mut device, other, kind, block));
        assert_eq!((free(&mut memory, one, 3), memory.kept[0]), (1, 32768 + 4096));
        memory.leave(&mut device, one);
        assert_eq!((network.leftovers(), memory.kept), ((0, 0), [0; 2]));
        assert_eq!(network.misuses(), Vec::<String>::new());
    }

    #[test]
    fn a_domain_ends_with_its_last_queue_and_its_last_block() {
        let (network, mut device, mut memory, [one, other]) = two();
        let target = SocketAddr::new([192, 0, 2, 1].into(), 4420);
        assert_eq!(memory.enter(&mut device, target).unwrap(), one, "queues to it share one");
        let domains = |device: &FakeDevice| network.core_numbered(device.number()).domains;
        let block = memory.lend(&mut device, one, Kind::Capsule, 5000).unwrap();
        memory.leave(&mut device, one);
        memory.leave(&mut device, one);
        assert_eq!(domains(&device), 2, "a command has a block");
        memory.give_back(&mut device, one, Kind::Capsule, block);
        assert_eq!((domains(&device), memory.kept), (1, [0; 2]));
        // The place is used again.
        assert_eq!(memory.enter(&mut device, target).unwrap(), one);
        network.refuse_domains(true);
        let third = SocketAddr::new([192, 0, 2, 3].into(), 4420);
        let error = memory.enter(&mut device, third).unwrap_err();
        assert!(error.to_string().contains("protection domain"), "{error}");
        for place in [one, other] {
            memory.leave(&mut device, place);
        }
        assert_eq!(network.leftovers(), (0, 0));
        assert_eq!(network.misuses(), Vec::<String>::new());
    }

    /// What nobody uses in one domain is not in the way of another one.
    #[test]
    fn free_blocks_of_all_domains_make_room() {
        let (network, mut device, mut memory, [one, other]) = two();
        for kind in Kind::ALL {
            let block = memory.lend(&mut device, one, kind, 100).unwrap();
            memory.give_back(&mut device, one, kind, block);
        }
        network.refuse_memory(true);
        assert!(memory.lend(&mut device, other, Kind::Data, 100).is_err());
        assert_eq!((network.memory_refusals(), memory.kept, memory.is_lent()), (2, [0; 2], false));
        assert_eq!(network.core_numbered(device.number()).registered, 0);
        for place in [one, other] {
            memory.leave(&mut device, place);
        }
        assert_eq!(network.leftovers(), (0, 0));
    }

    #[test]
    fn every_length_has_a_size() {
        let sizes = [1, 4096, 4097, 8192, 131_072, 131_073, LARGEST].map(size_of);
        assert_eq!(sizes, [0, 0, 1, 1, 5, 6, SIZES - 1]);
    }
}
