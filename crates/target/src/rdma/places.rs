//! Memory of the target that the device reads in place: pools of cores, and regions of namespaces.
//!
//! It is registered when the first data of it are to be sent, and the device writes none of it. Where memory is reused, as
//! that of a pool is, a lease tells the connection: its batch stays as it is until the device has read the data, or until
//! the queue pair is no more.
#![allow(unsafe_code)]

use std::any::Any;
use std::sync::{Arc, Weak};

use raceline_rdma::Foreign;
use raceline_rdma::verbs::{Provider, Slice};
use raceline_reactor::{LastingMemory, UnsentReader};

/// Ranges that are known at a time. Data in other memory are copied.
const MOST_RANGES: usize = 1024;

/// One range of memory.
#[derive(Debug)]
struct Range {
    start: usize,
    len: usize,
    /// `None`: the device does not take it, and its data are copied.
    lkey: Option<u32>,
    is_reused: bool,
    /// Data that the device may still read.
    uses: u32,
    /// `None`: the range is not in use.
    owner: Option<Weak<dyn Any + Send + Sync>>,
}

/// Data that the device reads in place. They are in use until [`Places::end`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lease {
    pub(super) data: Slice,
    /// Where the range is in the table.
    pub(super) range: u32,
    /// The batch has to stay as it is.
    pub(super) keeps_batch: bool,
}

/// All ranges of a device.
#[derive(Debug)]
pub(super) struct Places {
    ranges: Vec<Range>,
    /// Regions of namespaces as well.
    with_regions: bool,
    /// Where the last data were.
    last: usize,
    leased: u64,
}

impl Places {
    pub(super) fn new(with_regions: bool) -> Self {
        Self { ranges: Vec::new(), with_regions, last: 0, leased: 0 }
    }

    /// Leases the next bytes of a batch, if they are so many in one piece, and the device reads them where they are.
    #[inline]
    pub(super) fn lease<P: Provider>(
        &mut self,
        device: &mut P,
        input: &UnsentReader<'_>,
        len: u32,
    ) -> Option<Lease> {
        let (start, there) = input.piece()?;
        let bytes = usize::try_from(len).ok()?;
        if there < bytes {
            return None;
        }
        let start = start.addr();
        let at = match self.find(start, bytes) {
            Some(at) => at,
            None => self.add(device, input.lasting(self.with_regions)?)?,
        };
        self.last = at;
        let range = &mut self.ranges[at];
        let lkey = range.lkey?;
        range.uses += 1;
        self.leased += 1;
        let data = Slice { address: u64::try_from(start).ok()?, len, lkey };
        Some(Lease { data, range: u32::try_from(at).ok()?, keeps_batch: range.is_reused })
    }

    /// Data of this range are read, or never will be. Gives whether a batch was kept for them.
    pub(super) fn end(&mut self, range: u32) -> bool {
        let place = usize::try_from(range).ok().and_then(|at| self.ranges.get_mut(at));
        let Some(range) = place else { return false };
        range.uses = range.uses.saturating_sub(1);
        range.is_reused
    }

    /// Leases that there were.
    pub(super) fn leased(&self) -> u64 {
        self.leased
    }

    fn find(&self, start: usize, len: usize) -> Option<usize> {
        let holds = |range: &Range| {
            range.owner.is_some()
                && start.checked_sub(range.start).is_some_and(|offset| {
                    offset.checked_add(len).is_some_and(|end| end <= range.len)
                })
        };
        if self.ranges.get(self.last).is_some_and(holds) {
            return Some(self.last);
        }
        self.ranges.iter().position(holds)
    }

    #[cold]
    fn add<P: Provider>(&mut self, device: &mut P, memory: LastingMemory) -> Option<usize> {
        // The same addresses may have been another's.
        self.forget_ended(device);
        let free = self.ranges.iter().position(|range| range.owner.is_none());
        if free.is_none() && self.ranges.len() >= MOST_RANGES {
            return None;
        }
        let (start, len) = (memory.start().as_ptr().addr(), memory.len());
        let owner: Weak<dyn Any + Send + Sync> = Arc::downgrade(memory.owner());
        // SAFETY: lasting memory is mapped at its place, on its pages and initialised, while its owner lives, and may be
        // read at any time.
        let foreign = unsafe { Foreign::new(memory.start(), len, Arc::clone(memory.owner())) };
        let lkey = device.register_foreign(foreign).map_err(|error| {
            tracing::warn!(%error, bytes = len, "the device reads no data in place: they are copied");
        });
        let is_reused = memory.is_reused();
        let range = Range { start, len, lkey: lkey.ok(), is_reused, uses: 0, owner: Some(owner) };
        match free {
            Some(at) => self.ranges[at] = range,
            None => self.ranges.push(range),
        }
        Some(free.unwrap_or(self.ranges.len() - 1))
    }

    /// Ends the registrations of memory that only the device has: its namespace, or its core, is gone.
    pub(super) fn forget_ended<P: Provider>(&mut self, device: &mut P) {
        for range in &mut self.ranges {
            let owners = range.owner.as_ref().map_or(usize::MAX, Weak::strong_count);
            let least = usize::from(range.lkey.is_some());
            if range.uses == 0 && owners <= least {
                range.owner = None;
                range.lkey.take().into_iter().for_each(|lkey| device.deregister_foreign(lkey));
            }
        }
    }

    /// Ends all registrations. No queue pair is left.
    pub(super) fn clear<P: Provider>(&mut self, device: &mut P) {
        for range in self.ranges.drain(..) {
            range.lkey.into_iter().for_each(|lkey| device.deregister_foreign(lkey));
        }
    }
}
