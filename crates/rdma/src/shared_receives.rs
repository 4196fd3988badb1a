//! Receives that all queues of a port share.
//!
//! Each queue is promised as many as it has entries, and there are never fewer than what is promised. So hosts that keep
//! to the sizes of their queues find receives. A host that sends more takes receives that others were promised, until the
//! port sees the messages: then its queue ends, and the receives are posted again. On RoCE the messages of others wait
//! until then. On iWARP a message without a receive ends its connection, so queues share none there.
//!
//! Each receive is free, posted, or a queue's whose message it has; the number of its work request says for which post. A
//! queue pair that ends while a message has come in part takes a receive along, unless the device tells that all have ended
//! (`Event::ReceivesEnded`). Nobody can say which one, so it is only counted: there are that many more than are promised. Where a
//! device should tell and does not, the same is done when the time of the queue pair is over, which its last messages do not outlive.
//! When no queue shares any longer, the device's shared queue is made anew, and all receives are free.
//!
//! Memory is registered when more is promised than ever before, and kept.

use raceline_proto::rdma::CapsuleLimits;

use crate::port_counts::PortCounts;
use crate::send_queue::RECEIVE;
use crate::target_queue::{Place, capsule_stride};
use crate::verbs::{Access, DomainId, Provider, RecvWork, Region};

/// The mark of a shared receive in the number of a work request, beside that of a receive.
const SHARED: u64 = RECEIVE | 1 << 62;
/// Posts that have different numbers. The number of a receive is below them.
const POSTS: u64 = 1 << 30;
/// Receives that are made at a time, at least.
const STEP: u32 = 32;

/// One of them.
#[derive(Debug)]
struct Receive {
    region: Region,
    /// Where it is in the region.
    offset: u32,
    /// The number of its work request; 0: it is not posted.
    id: u64,
}

/// The shared receives of a port.
#[derive(Debug)]
pub(crate) struct SharedReceives {
    /// Most of them.
    depth: u32,
    stride: u32,
    len: u32,
    /// Entries of all queues that take them.
    promised: u32,
    /// Those that the device may have lost.
    lost: u32,
    regions: Vec<Region>,
    receives: Vec<Receive>,
    /// Receives that were given back so far, for the numbers of work requests.
    posts: u64,
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
        // Of the three completions of an entry of a queue, one is a receive's.
        let depth = depth.min(can.shared_receives).min(can.completions / 3);
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
            lost: 0,
            regions: Vec::new(),
            receives: Vec::new(),
            posts: 0,
            free: Vec::new(),
        })
    }

    /// Promises receives to a queue with so many entries. False when there are not so many. No more than `room` are made.
    pub(crate) fn promise<P: Provider>(
        &mut self,
        provider: &mut P,
        entries: u16,
        room: u32,
    ) -> bool {
        let promised = self.promised + u32::from(entries);
        let needed = promised + self.lost;
        if needed > self.depth {
            return false;
        }
        let made = self.made();
        if needed > made {
            let more = (needed - made).max(STEP).min(self.depth - made).min(room);
            if made + more < needed {
                return false;
            }
            let Some(bytes) = more.checked_mul(self.stride) else { return false };
            let Ok(region) = provider.register(DomainId::OWN, bytes, Access::LOCAL) else {
                return false;
            };
            self.regions.push(region);
            let offsets = (0..more).map(|n| n * self.stride);
            self.receives.extend(offsets.map(|offset| Receive { region, offset, id: 0 }));
            (made..made + more).for_each(|receive| self.give_back(receive));
        }
        self.post(provider, &mut PortCounts::default());
        if !self.free.is_empty() {
            return false;
        }
        self.promised = promised;
        true
    }

    /// How many there are: so many completions there can be of them, whichever queues take them.
    pub(crate) fn made(&self) -> u32 {
        u32::try_from(self.receives.len()).unwrap_or(u32::MAX)
    }

    /// A queue that was promised so many is no more. Whether the device may have lost the receive of a message that had come
    /// in part: no more than one, because the messages of a connection come one after the other.
    pub(crate) fn release(&mut self, entries: u16, may_have_lost: bool) {
        self.promised -= u32::from(entries);
        self.lost += u32::from(may_have_lost);
    }

    /// Whether the device has lost receives, and no queue shares any: [`Self::renew`] gets them back.
    pub(crate) fn needs_renewal(&self) -> bool {
        self.lost > 0 && self.promised == 0
    }

    /// Makes the device's shared queue anew. No queue pair takes receives from it, and all completions are handled. False: the
    /// device refuses, and has none any longer.
    pub(crate) fn renew<P: Provider>(&mut self, provider: &mut P) -> bool {
        provider.unshare_receives();
        if let Err(error) = provider.share_receives(self.depth) {
            tracing::warn!(%error, "RDMA queues share no receives any longer");
            return false;
        }
        self.lost = 0;
        self.free.clear();
        for receive in 0..self.made() {
            let posted = self.at(receive).filter(|known| known.id != 0);
            if let Some(posted) = posted {
                posted.id = 0;
                self.give_back(receive);
            }
        }
        true
    }

    fn at(&mut self, receive: u32) -> Option<&mut Receive> {
        self.receives.get_mut(usize::try_from(receive).ok()?)
    }

    /// Where a message is whose receive has this number, which is no longer posted; `None` for all other requests.
    #[inline]
    pub(crate) fn take(&mut self, id: u64) -> Option<Place> {
        if id < SHARED {
            return None;
        }
        let receive = u32::try_from(id & u64::from(u32::MAX)).ok()?;
        let known = self.at(receive).filter(|known| known.id == id)?;
        known.id = 0;
        Some(Place { receive, region: known.region, offset: known.offset })
    }

    /// A receive is free again.
    #[inline]
    pub(crate) fn give_back(&mut self, receive: u32) {
        self.posts += 1;
        let id = SHARED | (self.posts % POSTS) << 32 | u64::from(receive);
        let len = self.len;
        let Some(known) = self.at(receive) else { return };
        debug_assert_eq!(known.id, 0, "a receive comes back twice");
        known.id = id;
        let local = known.region.slice(known.offset, len);
        self.free.push(RecvWork { id, local });
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
