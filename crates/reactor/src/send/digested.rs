//! Payloads that are digested on their way out.
//!
//! Memory that others may write must not change between its digest and its departure, so it is copied and
//! the copy is digested. The copy is made just before the system call that takes it, into memory that was
//! used for the call before. So no command needs a buffer for it. All that is ready leaves at once: few
//! large calls are cheaper than many small ones (lab 0019).

use std::cell::RefCell;

use raceline_accel::Copier;

use super::Payload;
use crate::flow::Machine;
use crate::flow::policy::{COPY_BUFFERS_MAX, LARGE_BYTES};

/// Most bytes that are copied for one system call: as many as a second-level cache holds. Each call lets
/// the peer begin, and the peer's work on the socket costs this side more than the third-level cache
/// does: with 128 KiB a call, large reads were a quarter slower (lab 0019).
fn copy_buffer_bytes() -> usize {
    Machine::current().l2_bytes.max(LARGE_BYTES)
}

thread_local! {
    static COPY_BUFFERS: RefCell<CopyBuffers> = const { RefCell::new(CopyBuffers { spare: Vec::new(), used: 0 }) };
}

/// A thread's large buffers for copies. A batch keeps one between calls only while its socket is full. When all
/// buffers are in use, other batches get small ones.
struct CopyBuffers {
    /// The one that was used last is at the end.
    spare: Vec<Box<[u8]>>,
    used: usize,
}

/// Payloads that are digested, and the copies of the bytes that leave next.
#[derive(Default)]
pub(super) struct DigestedPayloads {
    /// How to copy; `None` while nothing is to be digested.
    copier: Option<Copier>,
    /// In the order in which they leave; those whose copies have left stay until the end.
    digested: Vec<Digested>,
    memory: Option<Box<[u8]>>,
    filled: usize,
    /// How many of the copied bytes have left.
    sent: usize,
    /// The payload that is to be copied next, from this offset on, and the digest up to there.
    next: usize,
    offset: usize,
    digest: u32,
}

/// A payload that is copied on its way; and where among the header bytes the digest of the copy
/// belongs.
struct Digested {
    payload: Payload,
    place: usize,
}

impl DigestedPayloads {
    /// Adds a payload, which leaves after what has been pushed before.
    pub(super) fn push(&mut self, payload: Payload, place: usize, copier: Copier) {
        self.copier = Some(copier);
        self.digested.push(Digested { payload, place });
    }

    pub(super) fn is_used(&self) -> bool {
        self.copier.is_some()
    }

    /// Copies what leaves next, at most `most` bytes, unless earlier copies are left. Completes digests
    /// among the headers.
    pub(super) fn fill(&mut self, headers: &mut [u8], most: usize) {
        let Some(copier) = self.copier else { return };
        if self.sent < self.filled {
            return;
        }
        (self.filled, self.sent) = (0, 0);
        while let Some(Digested { payload, place }) = self.digested.get(self.next) {
            let memory = self.memory.get_or_insert_with(take);
            let room = memory.len().min(most) - self.filled;
            let len = (payload.len() - self.offset).min(room);
            if len == 0 {
                break;
            }
            let to = &mut memory[self.filled..self.filled + len];
            let ends = self.offset + len == payload.len();
            let after = if ends { self.digested.get(self.next + 1) } else { None };
            let upcoming = after.and_then(|after| after.payload.upcoming());
            self.digest = copier.copy_part(self.digest, payload, self.offset, to, upcoming);
            self.filled += len;
            self.offset += len;
            if ends {
                headers[*place..*place + size_of::<u32>()]
                    .copy_from_slice(&self.digest.to_le_bytes());
                self.next += 1;
                (self.offset, self.digest) = (0, 0);
            }
        }
    }

    /// The copies that have not left.
    pub(super) fn copies(&self) -> &[u8] {
        self.memory.as_deref().map_or(&[], |memory| &memory[self.sent..self.filled])
    }

    /// `sent` copied bytes have left.
    pub(super) fn advance(&mut self, sent: usize) {
        self.sent += sent;
        if self.sent == self.filled {
            self.give_back();
        }
    }

    /// Nothing is left to be sent.
    pub(super) fn clear(&mut self) {
        if self.is_used() {
            self.give_back();
            self.copier = None;
            self.digested.clear();
            (self.filled, self.sent) = (0, 0);
            (self.next, self.offset, self.digest) = (0, 0, 0);
        }
    }

    fn give_back(&mut self) {
        if let Some(memory) = self.memory.take()
            && memory.len() == copy_buffer_bytes()
        {
            // At the end of a thread there is no list any more.
            let _ = COPY_BUFFERS.try_with(|buffers| {
                let buffers = &mut *buffers.borrow_mut();
                buffers.used = buffers.used.saturating_sub(1);
                buffers.spare.push(memory);
            });
        }
    }
}

impl Drop for DigestedPayloads {
    fn drop(&mut self) {
        self.give_back();
    }
}

fn take() -> Box<[u8]> {
    let large = COPY_BUFFERS.try_with(|buffers| {
        let buffers = &mut *buffers.borrow_mut();
        (buffers.used < COPY_BUFFERS_MAX).then(|| {
            buffers.used += 1;
            buffers.spare.pop().unwrap_or_else(|| vec![0; copy_buffer_bytes()].into())
        })
    });
    large.ok().flatten().unwrap_or_else(|| vec![0; LARGE_BYTES].into())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use raceline_accel::crc32c;

    use super::*;
    use crate::accel::accelerator::Accelerator;
    use crate::memory::buffer::{HugePages, Region, RegionHandle};
    use crate::send::SendBatch;

    const REGION_BYTES: usize = 4 << 20;

    fn region() -> Arc<Region> {
        let region = Region::new(REGION_BYTES, HugePages::None).unwrap();
        let bytes: Vec<u8> =
            (0..REGION_BYTES).map(|i| (i * 7 + i / 251).to_le_bytes()[0]).collect();
        region.copy_in(0, &bytes);
        Arc::new(region)
    }

    /// Three payloads, the second longer than two buffers, with headers and an undigested one between;
    /// and the bytes that must leave.
    fn sample(region: &Arc<Region>) -> (Box<SendBatch>, Vec<u8>) {
        let handle = RegionHandle::new(Arc::clone(region));
        let copier = Accelerator::default().copier(0).unwrap();
        let (mut batch, mut expected) = (SendBatch::new(64, 16), Vec::new());
        for range in [5..4_101, 10_000..10_000 + (2 << 20) + 77, 3..4] {
            batch.push_bytes(b"head");
            batch.push_digested(Payload::Region(handle.clone(), range.clone()), copier);
            let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap()];
            region.copy_out(range.start, &mut bytes);
            expected.extend(b"head");
            expected.extend(&bytes);
            expected.extend(crc32c(&bytes).to_le_bytes());
        }
        batch.push_payload(Payload::Zeroes(3));
        expected.extend([0; 3]);
        (batch, expected)
    }

    fn bytes_of(batch: &mut SendBatch) -> Vec<u8> {
        let mut copy = vec![0; batch.len()];
        let count = batch.copy_unsent(&mut copy);
        copy.truncate(count);
        copy
    }

    #[test]
    fn each_payload_is_followed_by_its_digest_however_it_is_cut() {
        let region = region();
        for step in [1000, 4_095, 65_536, 1 << 20, 3 << 20] {
            let (mut batch, expected) = sample(&region);
            assert_eq!(batch.len(), expected.len());
            let mut sent: Vec<u8> = Vec::new();
            while !batch.is_empty() {
                let described = batch.described();
                let ready = bytes_of(&mut batch);
                assert!(!ready.is_empty() && described == ready, "{step}");
                assert!(ready.len() <= copy_buffer_bytes() + 100, "{step}");
                assert_eq!(batch.has_more(), ready.len() < batch.len());
                let count = step.min(ready.len());
                sent.extend(&ready[..count]);
                batch.advance(count);
            }
            assert!(sent == expected, "{step} at a time");
        }
    }

    #[test]
    fn what_changes_after_it_was_copied_leaves_as_it_was() {
        let region = region();
        let (mut batch, expected) = sample(&region);
        let first = bytes_of(&mut batch);
        region.fill_zero(0, 4_101);
        batch.advance(100);
        assert!(bytes_of(&mut batch) == first[100..] && first[..] == expected[..first.len()]);
    }

    #[test]
    fn a_share_bounds_what_is_copied_at_once() {
        let region = region();
        let (mut batch, expected) = sample(&region);
        batch.take_turns(Some(10_000));
        let mut sent: Vec<u8> = Vec::new();
        while !batch.is_empty() {
            let ready = batch.described();
            assert!(!ready.is_empty() && ready.len() <= 10_000 && !batch.has_more());
            sent.extend(&ready);
            batch.advance(ready.len());
        }
        assert!(sent == expected);
    }

    #[test]
    fn memory_is_lent_and_comes_back() {
        let region = region();
        let used = || COPY_BUFFERS.with_borrow(|buffers| (buffers.used, buffers.spare.len()));
        let mut batches: Vec<_> = (0..COPY_BUFFERS_MAX + 2).map(|_| sample(&region)).collect();
        for (batch, expected) in &mut batches {
            let ready = bytes_of(batch);
            assert_eq!(ready, expected[..ready.len()]);
        }
        assert_eq!(used(), (COPY_BUFFERS_MAX, 0));
        for (batch, _) in &mut batches {
            batch.clear();
        }
        assert_eq!(used(), (0, COPY_BUFFERS_MAX));
        let (mut batch, expected) = sample(&region);
        while !batch.is_empty() {
            let ready = bytes_of(&mut batch).len();
            batch.advance(ready);
        }
        assert_eq!((used(), expected.is_empty()), ((0, COPY_BUFFERS_MAX), false));
        let (mut batch, _) = sample(&region);
        bytes_of(&mut batch);
        assert_eq!(used(), (1, COPY_BUFFERS_MAX - 1));
        drop(batch);
        assert_eq!(used(), (0, COPY_BUFFERS_MAX));
    }
}
