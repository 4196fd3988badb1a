//! Receives that all queues of a port share.
//!
//! Each queue is promised as many as it has entries, and there are never fewer than what is promised. So hosts that keep
//! to the sizes of their queues find receives. A host that sends more takes receives that others were promised, until the
//! port sees the messages: then its queue ends, and the receives are posted again. On RoCE the messages of others wait
//! until then. On iWARP a message without a receive ends its connection, so queues share none there.
//!
//! Memory is registered when more is promised than ever before, and kept.

use raceline_proto::rdma::CapsuleLimits;

use crate::send_queue::RECEIVE;
use crate::target_port::PortCounts;
use crate::target_queue::{Place, capsule_stride};
use crate::verbs::{Access, Provider, RecvWork, Region};

/// The mark of a shared receive in the number of a work request, beside that of a receive.
const SHARED: u64 = 1 << 62;
/// Receives that are made at a time, at least.
const STEP: u32 = 32;

/// The shared receives of a port.
#[derive(Debug)]
pub(crate) struct SharedReceives {
    /// Most of them.
    depth: u32,
    stride: u32,
    len: u32,
    /// Entries of all queues that take them.
    promised: u32,
    regions: Vec<Region>,
    /// Where each receive is: in one of the regions, from an offset on.
    places: Vec<(Region, u32)>,
    /// Those that are to be posted.
    free: Vec<RecvWork>,
}

impl SharedReceives {
    /// Makes the device's shared queue. `None`: it has none or is iWARP, and each queue needs receives of its own.
    pub(crate) fn new<P: Provider>(
        provider: &mut P,
        depth: u32,
        limits: &CapsuleLimits,
    ) -> Option<Self> {
        let can = provider.capabilities();
        let depth = depth.min(can.shared_receives);
        if depth == 0 || can.is_iwarp {
            return None;
        }
        provider.share_receives(depth).ok()?;
        let (stride, len) = (capsule_stride(limits), u32::try_from(limits.capsule_len()).ok()?);
        Some(Self {
            depth,
            stride,
            len,
            promised: 0,
            regions: Vec::new(),
            places: Vec::new(),
            free: Vec::new(),
        })
    }

    /// Promises receives to a queue with so many entries. False when there are not so many.
    pub(crate) fn promise<P: Provider>(&mut self, provider: &mut P, entries: u16) -> bool {
        let promised = self.promised + u32::from(entries);
        if promised > self.depth {
            return false;
        }
        let made = u32::try_from(self.places.len()).unwrap_or(u32::MAX);
        if promised > made {
            let more = (promised - made).max(STEP).min(self.depth - made);
            let Some(bytes) = more.checked_mul(self.stride) else { return false };
            let Ok(region) = provider.register(bytes, Access::LOCAL) else { return false };
            self.regions.push(region);
            self.places.extend((0..more).map(|n| (region, n * self.stride)));
            (made..made + more).for_each(|receive| self.give_back(receive));
        }
        self.post(provider, &mut PortCounts::default());
        if !self.free.is_empty() {
            return false;
        }
        self.promised = promised;
        true
    }

    /// A queue that was promised so many is no more.
    pub(crate) fn release(&mut self, entries: u16) {
        self.promised -= u32::from(entries);
    }

    /// Where a message is whose receive has this number; `None` for all other requests.
    pub(crate) fn place(&self, id: u64) -> Option<Place> {
        let receive = u32::try_from(id.checked_sub(RECEIVE | SHARED)?).ok()?;
        let &(region, offset) = self.places.get(usize::try_from(receive).ok()?)?;
        Some(Place { receive, region, offset })
    }

    /// A receive is free again.
    pub(crate) fn give_back(&mut self, receive: u32) {
        let place = usize::try_from(receive).ok().and_then(|receive| self.places.get(receive));
        let Some((region, offset)) = place else { return };
        let local = region.slice(*offset, self.len);
        self.free.push(RecvWork { id: RECEIVE | SHARED | u64::from(receive), local });
    }

    /// Posts those that are free. What the device does not take waits for the next time.
    pub(crate) fn post<P: Provider>(&mut self, provider: &mut P, counts: &mut PortCounts) {
        if self.free.is_empty() {
            return;
        }
        counts.receive_posts += 1;
        let posted = match provider.post_shared(&self.free) {
            Ok(()) => self.free.len(),
            Err(error) => error.posted,
        };
        counts.receives += u64::try_from(posted).unwrap_or(0);
        self.free.drain(..posted);
    }

    /// Gives all memory back. No queue pair is left.
    pub(crate) fn end<P: Provider>(self, provider: &mut P) {
        provider.unshare_receives();
        self.regions.into_iter().for_each(|region| provider.deregister(region));
    }
}
