//! A split virtqueue in memory that the guest writes at the same time (VIRTIO 1.2, 2.7).

use std::sync::atomic::{Ordering, fence};

use crate::memory::{Memory, Outside, Segment};

/// The longest ring.
pub(crate) const MAX_RING: u16 = 1024;

/// Most segments of a request: the 126 of data that guests are told of, header and status, and some more for a guest
/// that cuts those.
pub(crate) const MAX_SEGMENTS: usize = 144;

/// Bytes of a descriptor.
const DESCRIPTOR_LEN: u64 = 16;

/// Another descriptor follows.
const NEXT: u16 = 1;
/// The device writes it.
const WRITE: u16 = 2;
/// It holds descriptors.
const INDIRECT: u16 = 4;

/// The guest wants no interrupts (`avail.flags`).
const NO_INTERRUPT: u16 = 1;

/// Where a ring is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// The descriptor table.
    pub(crate) descriptors: u64,
    /// What the guest gives.
    pub(crate) available: u64,
    /// What it gets back.
    pub(crate) used: u64,
}

/// What the guest has done wrong with a ring, which is not served any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    /// A number of entries that cannot be.
    #[error("a ring of {0} entries: it must be a power of two, at most {MAX_RING}")]
    Size(u16),
    /// A part of the ring is not where one can be.
    #[error("the ring is not aligned, or not inside of the memory that the front end shares")]
    Place,
    /// An access has failed.
    #[error(transparent)]
    Outside(#[from] Outside),
    /// More requests than the ring has entries.
    #[error("the available index is {0} requests ahead of a ring of {1}")]
    Index(u16, u16),
    /// There is no such descriptor.
    #[error("descriptor {0} is outside of its table of {1}")]
    Descriptor(u16, u16),
    /// A chain that does not end, or ends in more segments than a request may have.
    #[error("a chain of descriptors does not end")]
    Endless,
    /// A table of descriptors that cannot be.
    #[error("an indirect table of {0} bytes, or inside of another")]
    Indirect(u32),
    /// Segments to read come after segments to write.
    #[error("a segment to read comes after one to write")]
    Order,
    /// A request that is in flight was given again.
    #[error("descriptor {0} was given again before it was returned")]
    Twice(u16),
    /// No room for a header or a status.
    #[error("a request without room for its header and its status")]
    Headless,
    /// The memory is gone.
    #[error("the front end has truncated the file of its memory")]
    Lost,
}

/// The segments of a request; its memory is used again.
#[derive(Debug, Default)]
pub(crate) struct Chain {
    /// What the device reads.
    pub(crate) readable: Vec<Segment>,
    /// What the device writes.
    pub(crate) writable: Vec<Segment>,
}

impl Chain {
    fn push(&mut self, flags: u16, segment: Segment) -> Result<(), Fault> {
        if self.readable.len() + self.writable.len() >= MAX_SEGMENTS {
            return Err(Fault::Endless);
        }
        if flags & WRITE != 0 {
            self.writable.push(segment);
        } else if self.writable.is_empty() {
            self.readable.push(segment);
        } else {
            return Err(Fault::Order);
        }
        Ok(())
    }
}

/// The device's side of a ring.
#[derive(Debug)]
pub(crate) struct Ring {
    place: Place,
    size: u16,
    event_index: bool,
    next_available: u16,
    next_used: u16,
    /// Where it was when an interrupt was last thought of.
    signalled: u16,
}

impl Ring {
    /// A ring that goes on after `next_available` requests that were taken, all of them returned.
    ///
    /// # Errors
    /// When it cannot be where it is said to be.
    pub(crate) fn new(
        memory: &Memory,
        place: Place,
        (size, event_index): (u16, bool),
        next_available: u16,
    ) -> Result<Self, Fault> {
        if !size.is_power_of_two() || size > MAX_RING {
            return Err(Fault::Size(size));
        }
        let entries = usize::from(size);
        let parts = [
            (place.descriptors, 16, 16 * entries),
            (place.available, 2, 6 + 2 * entries),
            (place.used, 4, 6 + 8 * entries),
        ];
        let fits = |&(address, alignment, len): &(u64, u64, usize)| {
            address.is_multiple_of(alignment) && memory.contains(address, len)
        };
        if !parts.iter().all(fits) {
            return Err(Fault::Place);
        }
        // What was returned is in the ring itself, whatever has become of the process that returned it.
        let next_used = memory.load(place.used + 2)?;
        Ok(Self { place, size, event_index, next_available, next_used, signalled: next_used })
    }

    pub(crate) fn size(&self) -> u16 {
        self.size
    }

    pub(crate) fn next_available(&self) -> u16 {
        self.next_available
    }

    pub(crate) fn next_used(&self) -> u16 {
        self.next_used
    }

    /// Goes on with another request than the next.
    pub(crate) fn skip_to(&mut self, next_available: u16) {
        self.next_available = next_available;
    }

    /// The index behind the last request that the guest has given.
    pub(crate) fn available(&self, memory: &Memory) -> Result<u16, Fault> {
        Ok(memory.load(self.place.available + 2)?)
    }

    /// The head of the next request.
    pub(crate) fn next(&mut self, memory: &Memory) -> Result<Option<u16>, Fault> {
        let index = self.available(memory)?;
        let ahead = index.wrapping_sub(self.next_available);
        if ahead > self.size {
            return Err(Fault::Index(ahead, self.size));
        }
        if ahead == 0 {
            return Ok(None);
        }
        let entry = u64::from(self.next_available % self.size);
        let head = memory.load(self.place.available + 4 + 2 * entry)?;
        if head >= self.size {
            return Err(Fault::Descriptor(head, self.size));
        }
        self.next_available = self.next_available.wrapping_add(1);
        Ok(Some(head))
    }

    /// Reads the chain of a head. Each descriptor is read once, and then means what it meant.
    pub(crate) fn read_chain(
        &self,
        memory: &Memory,
        head: u16,
        chain: &mut Chain,
    ) -> Result<(), Fault> {
        chain.readable.clear();
        chain.writable.clear();
        let (mut table, mut entries, mut index) = (self.place.descriptors, self.size, head);
        let mut is_indirect = false;
        let mut left = self.size;
        loop {
            if index >= entries {
                return Err(Fault::Descriptor(index, entries));
            }
            let Some(rest) = left.checked_sub(1) else { return Err(Fault::Endless) };
            left = rest;
            let at = table.checked_add(DESCRIPTOR_LEN * u64::from(index));
            let (segment, flags, next) = read_descriptor(memory, at.ok_or(Outside(table))?)?;
            if flags & INDIRECT != 0 {
                let count = segment.len / 16;
                let is_table = segment.len.is_multiple_of(16) && flags & NEXT == 0;
                let count = u16::try_from(count).ok().filter(|&count| count > 0 && is_table);
                let Some(count) = count.filter(|_| !is_indirect) else {
                    return Err(Fault::Indirect(segment.len));
                };
                is_indirect = true;
                (table, entries, index, left) = (segment.address, count, 0, count);
                continue;
            }
            chain.push(flags, segment)?;
            if flags & NEXT == 0 {
                return Ok(());
            }
            index = next;
        }
    }

    /// Returns a request, of which `written` bytes are for the guest.
    pub(crate) fn put_used(
        &mut self,
        memory: &Memory,
        head: u16,
        written: u32,
    ) -> Result<(), Fault> {
        let entry = u64::from(self.next_used % self.size);
        let [a, b, c, d] = u32::from(head).to_le_bytes();
        let [e, f, g, h] = written.to_le_bytes();
        memory.write(self.place.used + 4 + 8 * entry, &[a, b, c, d, e, f, g, h])?;
        self.next_used = self.next_used.wrapping_add(1);
        memory.store(self.place.used + 2, self.next_used)?;
        Ok(())
    }

    /// Asks to be kicked for the next request; true if one has come meanwhile.
    pub(crate) fn await_kick(&mut self, memory: &Memory) -> Result<bool, Fault> {
        if self.event_index {
            let at = self.place.used + 4 + 8 * u64::from(self.size);
            memory.store(at, self.next_available)?;
            // The guest writes its index, then reads this; here it is the other way round.
            fence(Ordering::SeqCst);
        }
        Ok(self.available(memory)? != self.next_available)
    }

    /// Whether the guest wants an interrupt for what was returned since the last call.
    pub(crate) fn wants_interrupt(&mut self, memory: &Memory) -> Result<bool, Fault> {
        let (old, new) = (self.signalled, self.next_used);
        if old == new {
            return Ok(false);
        }
        self.signalled = new;
        fence(Ordering::SeqCst);
        if !self.event_index {
            return Ok(memory.load(self.place.available)? & NO_INTERRUPT == 0);
        }
        let event = memory.load(self.place.available + 4 + 2 * u64::from(self.size))?;
        Ok(new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old))
    }
}

fn read_descriptor(memory: &Memory, at: u64) -> Result<(Segment, u16, u16), Outside> {
    let mut bytes = [0; 16];
    memory.read(at, &mut bytes)?;
    let [a0, a1, a2, a3, a4, a5, a6, a7, l0, l1, l2, l3, f0, f1, n0, n1] = bytes;
    let address = u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7]);
    let len = u32::from_le_bytes([l0, l1, l2, l3]);
    let segment = Segment { address, len };
    Ok((segment, u16::from_le_bytes([f0, f1]), u16::from_le_bytes([n0, n1])))
}
