//! What one vectored send carries: header bytes and payload segments, in wire order.

#![allow(unsafe_code)]

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use raceline_accel::Copier;

use self::digested::DigestedPayloads;
pub use self::payload::Payload;
use crate::flow::policy::LARGE_BYTES;
use crate::memory::buffer::SharedBuf;
use crate::memory::lasting::LastingMemory;
use crate::memory::stream;

mod digested;
pub(crate) mod neighbours;
pub mod pages;
mod payload;

/// [`SendBatch::call_bytes_max`] of a batch that does not leave in shares, and is flagged.
const WHOLE_FLAGGED: usize = usize::MAX - 1;

/// The same of a batch whose owner watches it ([`SendBatch::watch`]): the owner sees what each call has sent.
const WATCHED_BYTES: usize = 1 << 20;

/// How long the last bytes of a batch wait in the kernel for the batch that was to follow
/// ([`SendBatch::set_followed`]). By itself the kernel waits for 200 ms.
pub(crate) const UNCORK_AFTER: Duration = Duration::from_micros(100);

/// Most segments that one system call takes (IOV_MAX of Linux).
pub const IOV_MAX: usize = 1024;

/// A list of bytes to send, in order, with the memory they live in.
///
/// The batch is filled, given to [`crate::Io::send`], comes back with the completion, and is
/// cleared and filled again; after [`SendBatch::new`] it does not allocate, as long as the
/// owner asks [`SendBatch::has_room`] first. (Without room it grows: correct, but an allocation.)
pub struct SendBatch {
    /// Header bytes, back to back.
    headers: Vec<u8>,
    /// Where `headers` begins, as the segments have it.
    headers_at: *const u8,
    /// Segments in wire order. Those from `next` on are to be sent, and none of these is empty. One whose
    /// bytes are still to be copied and digested has no address.
    segments: Vec<libc::iovec>,
    next: usize,
    /// The owners of the memory of segments that are no headers, until all is sent.
    payloads: Vec<Payload>,
    header_capacity: usize,
    segment_capacity: usize,
    /// Segments of long runs of zeroes beyond the first of each, for which owners ask for no room.
    beyond: usize,
    /// Bytes not yet sent.
    remaining: usize,
    /// Payloads of at least [`LARGE_BYTES`], and how many of them are kept.
    large: usize,
    kept: usize,
    /// Most bytes of one system call.
    call_bytes_max: usize,
    /// Counts the bytes that have left, for an owner that watches.
    watched: Option<Arc<AtomicU64>>,
    /// Payloads that are digested on their way, and their copies.
    digested: DigestedPayloads,
    /// What the system call is told of the bytes that follow: MSG_MORE, MSG_EOR or nothing.
    flags: libc::c_int,
    /// Another batch follows this one at once.
    followed: bool,
    /// Its socket's system calls are told of the bytes that follow.
    flagged: bool,
    /// What the system call gets where that is not `segments` as they are; rebuilt for each call.
    cut: Vec<libc::iovec>,
    message: libc::msghdr,
}

/// Reads what a batch has to send: [`SendBatch::unsent_reader`].
#[derive(Debug)]
pub struct UnsentReader<'a> {
    /// Memory that the batch owns, from `at` of the first one on.
    segments: &'a [libc::iovec],
    at: usize,
    payloads: &'a [Payload],
}

impl UnsentReader<'_> {
    /// Copies the next bytes, as many as fit and are ready; gives their number.
    #[inline]
    pub fn copy(&mut self, out: &mut [u8]) -> usize {
        let mut copied = 0;
        while copied < out.len()
            && let Some(segment) = self.segments.first()
        {
            let left = segment.iov_len - self.at;
            let len = left.min(out.len() - copied);
            let from = segment.iov_base.cast_const().cast::<u8>().wrapping_add(self.at);
            // SAFETY: the segment names memory that the batch owns for as long as this borrows it, from `at` on there are
            // `left` bytes, and `out` is other memory with room for `len`. A concurrent writer of a region makes the bytes
            // a mixture, as when the kernel copies them.
            unsafe {
                std::ptr::copy_nonoverlapping(from, out.as_mut_ptr().add(copied), len);
            }
            copied += len;
            self.at += len;
            if len == left {
                self.segments = &self.segments[1..];
                self.at = 0;
            }
        }
        copied
    }

    /// Where the next bytes lie that are in one piece, and how many they are.
    #[inline]
    #[must_use]
    pub fn piece(&self) -> Option<(*const u8, usize)> {
        let segment = self.segments.first()?;
        let start = segment.iov_base.cast_const().cast::<u8>().wrapping_add(self.at);
        Some((start, segment.iov_len - self.at))
    }

    /// Whether there are more than so many bytes.
    #[inline]
    #[must_use]
    pub fn has_more_than(&self, bytes: usize) -> bool {
        self.segments.len() > 1 || self.piece().is_some_and(|(_, len)| len > bytes)
    }

    /// The memory around the next bytes, if that lasts: of a pool, or if `pins`, of a region, whose pages stay from now on.
    #[must_use]
    pub fn lasting(&self, pins: bool) -> Option<LastingMemory> {
        let start = self.piece()?.0.addr();
        let holds = |payload: &&Payload| {
            let (base, len) = payload.memory();
            (base.addr()..base.addr() + len).contains(&start)
        };
        self.payloads.iter().find(holds)?.lasting(pins)
    }

    /// Passes over the next bytes, as many as are ready and at most so many; gives their number.
    pub fn skip(&mut self, most: usize) -> usize {
        let mut skipped = 0;
        while skipped < most
            && let Some(segment) = self.segments.first()
        {
            let left = segment.iov_len - self.at;
            let len = left.min(most - skipped);
            skipped += len;
            self.at += len;
            if len == left {
                self.segments = &self.segments[1..];
                self.at = 0;
            }
        }
        skipped
    }
}

impl SendBatch {
    /// An empty batch with room for this many header bytes and parts (runs of header bytes, and
    /// payloads).
    pub fn new(header_capacity: usize, part_capacity: usize) -> Box<SendBatch> {
        // SAFETY: msghdr is plain data for which zeroes (null pointers, no lengths) are valid.
        let message = unsafe { std::mem::zeroed() };
        let headers = Vec::with_capacity(header_capacity);
        Box::new(SendBatch {
            headers_at: headers.as_ptr(),
            headers,
            segments: Vec::with_capacity(part_capacity),
            next: 0,
            payloads: Vec::with_capacity(part_capacity),
            header_capacity,
            segment_capacity: part_capacity,
            beyond: 0,
            remaining: 0,
            large: 0,
            kept: 0,
            call_bytes_max: usize::MAX,
            watched: None,
            digested: DigestedPayloads::default(),
            flags: 0,
            followed: false,
            flagged: false,
            cut: Vec::new(),
            message,
        })
    }

    /// From now on one system call takes at most this many bytes, and what it leaves waits for the next
    /// poll; with `None`, it takes all that it can.
    pub(crate) fn take_turns(&mut self, share: Option<usize>) {
        let is_watched = self.watched.is_some() && self.remaining > WATCHED_BYTES;
        let whole = if is_watched { WATCHED_BYTES } else { usize::MAX };
        self.call_bytes_max = share.unwrap_or(usize::MAX).min(whole);
    }

    /// Adds the bytes that leave to this counter while they do, also when the batch is used again. Before, its owner
    /// learns of them when all have left.
    pub fn watch(&mut self, counter: Arc<AtomicU64>) {
        self.watched = Some(counter);
    }

    /// Most bytes of one system call.
    pub(crate) fn call_bytes_max(&self) -> usize {
        self.call_bytes_max
    }

    /// True if it leaves in shares: what one system call leaves has to wait for the next poll.
    pub(crate) fn takes_turns(&self) -> bool {
        self.call_bytes_max < WHOLE_FLAGGED
    }

    /// From now on, system calls are told whether more bytes follow ([`crate::flow::Departure::Flagged`]).
    pub(crate) fn flag(&mut self) {
        // Not the value by which `describe` knows that there is nothing to tell.
        self.call_bytes_max = self.call_bytes_max.min(WHOLE_FLAGGED);
        self.flagged = true;
    }

    /// Whether system calls are told whether more bytes follow.
    pub(crate) fn is_flagged(&self) -> bool {
        self.flagged
    }

    /// Says whether its owner sends another batch as soon as this one is sent. It matters for a socket
    /// that tells the kernel ([`crate::flow::Departure::Flagged`]): the last bytes of a batch that is
    /// followed wait for the next one, for at most 100 us.
    pub fn set_followed(&mut self, followed: bool) {
        self.followed = followed;
    }

    /// Whether its last bytes wait in the kernel for another batch.
    pub(crate) fn leaves_corked(&self) -> bool {
        self.flagged && self.followed
    }

    /// Whether it may leave without a copy, and be kept: its payloads are in regions, or zeroes, and those
    /// of at least `least` bytes are half of it or more.
    pub(crate) fn may_be_kept(&self, least: usize) -> bool {
        if self.payloads.is_empty() || self.takes_turns() || self.digested.is_used() {
            return false;
        }
        let mut large = 0;
        for payload in &self.payloads {
            match payload {
                Payload::Region(..) if payload.len() >= least => large += payload.len(),
                Payload::Region(..) | Payload::Zeroes(_) => {}
                // A command may wait for the buffer.
                Payload::Buf(..) | Payload::Shared(..) => return false,
            }
        }
        large >= self.remaining / 2 && large > 0
    }

    /// An empty batch of the same size.
    pub(crate) fn twin(&self) -> Box<SendBatch> {
        SendBatch::new(self.header_capacity, self.segment_capacity)
    }

    /// Whether it has at least the room of another one.
    pub(crate) fn is_as_large_as(&self, other: &SendBatch) -> bool {
        self.header_capacity >= other.header_capacity
            && self.segment_capacity >= other.segment_capacity
    }

    /// True if `header_bytes` more and `payloads` more fit, in any order.
    pub fn has_room(&self, header_bytes: usize, payloads: usize) -> bool {
        // Header bytes may come before, between and after the payloads.
        let parts = 2 * payloads + usize::from(header_bytes > 0);
        self.headers.len() + header_bytes <= self.header_capacity
            && self.segments.len() - self.beyond + parts <= self.segment_capacity
    }

    /// Makes room for `header_bytes` more and `payloads` more, for an owner that cannot know beforehand how much an
    /// answer needs. It allocates.
    #[cold]
    pub fn make_room(&mut self, header_bytes: usize, payloads: usize) {
        self.header_capacity = self.header_capacity.max(self.headers.len() + header_bytes);
        let parts = self.segments.len() + 2 * payloads + 2;
        self.segment_capacity = self.segment_capacity.max(parts);
    }

    /// Appends header bytes; they join header bytes just before them.
    pub fn push_bytes(&mut self, bytes: &[u8]) {
        self.append(|out| out.extend_from_slice(bytes));
    }

    /// Appends header bytes by writing to the end of a `Vec<u8>`, as encoders do.
    ///
    /// # Panics
    /// If it ends shorter than it was.
    #[inline]
    pub fn append(&mut self, encode: impl FnOnce(&mut Vec<u8>)) {
        let start = self.headers.len();
        encode(&mut self.headers);
        self.headers_appended(start);
    }

    /// Appends a payload.
    ///
    /// # Panics
    /// If its range is not inside its buffer or region.
    #[inline]
    pub fn push_payload(&mut self, payload: Payload) {
        let (base, len) = match &payload {
            Payload::Zeroes(len) => return self.push_zeroes(*len),
            owned => owned.memory(),
        };
        if len == 0 {
            return;
        }
        self.count_payload(len);
        self.push_segment(base, len);
        self.payloads.push(payload);
    }

    /// Appends a payload whose bytes stay as they are until the peer has told that it has them, or the
    /// socket is closed. A large one may leave by reference: the kernel may read it after
    /// the batch has come back.
    ///
    /// # Panics
    /// As [`SendBatch::push_payload`].
    #[inline]
    pub fn push_kept(&mut self, buf: SharedBuf, range: Range<usize>) {
        self.kept += usize::from(range.len() >= LARGE_BYTES);
        self.push_payload(Payload::Shared(buf, range));
    }

    /// Whether all of its large payloads may leave by reference, and one is large.
    #[inline]
    pub(crate) fn may_leave_by_reference(&self) -> bool {
        self.kept > 0 && self.kept == self.large && !self.takes_turns() && !self.digested.is_used()
    }

    /// Whether a segment is (what is left of) a large payload, of a batch that may leave by reference.
    pub(crate) fn is_kept(&self, segment: &libc::iovec) -> bool {
        segment.iov_len >= LARGE_BYTES
            && !self.headers.as_ptr_range().contains(&segment.iov_base.cast_const().cast())
    }

    /// What is to be sent.
    pub(crate) fn unsent(&self) -> &[libc::iovec] {
        &self.segments[self.next..]
    }

    fn push_zeroes(&mut self, len: usize) {
        self.count_payload(len);
        let mut left = len;
        while left > 0 {
            let (base, piece) = Payload::Zeroes(left).segment(0);
            self.push_segment(base, piece);
            left -= piece;
            self.beyond += usize::from(left > 0);
        }
    }

    /// Appends a payload that others may write meanwhile, and the CRC32C of what is sent of it,
    /// little-endian: it is copied and digested just before it leaves.
    ///
    /// # Panics
    /// As [`SendBatch::push_payload`].
    pub fn push_digested(&mut self, payload: Payload, copier: Copier) {
        payload.validate();
        let len = payload.len();
        if len > 0 {
            self.count_payload(len);
            self.push_segment(std::ptr::null(), len);
            self.digested.push(payload, self.headers.len(), copier);
        }
        self.push_bytes(&[0; size_of::<u32>()]);
    }

    /// Bytes not yet sent.
    pub fn len(&self) -> usize {
        self.remaining
    }

    /// True if there is nothing left to send.
    pub fn is_empty(&self) -> bool {
        self.remaining == 0
    }

    /// Frees the payloads, sent or not; keeps the capacity.
    pub fn clear(&mut self) {
        self.segments.clear();
        self.cut.clear();
        self.headers.clear();
        self.payloads.clear();
        self.remaining = 0;
        self.large = 0;
        self.kept = 0;
        self.beyond = 0;
        self.next = 0;
        self.digested.clear();
    }

    /// Copies the next bytes to send, as many as fit and are ready, at least one if there are any;
    /// gives their number. For back ends without system calls, and for streams of providers.
    pub fn copy_unsent(&mut self, out: &mut [u8]) -> usize {
        let mut copied = 0;
        for segment in self.describe() {
            let len = segment.iov_len.min(out.len() - copied);
            let to = &mut out[copied..copied + len];
            // SAFETY: the segment names memory that the batch owns, and `to` is other memory. A
            // concurrent writer of a region makes the bytes a mixture, as when the kernel copies them.
            unsafe {
                std::ptr::copy_nonoverlapping(segment.iov_base.cast(), to.as_mut_ptr(), len);
            }
            copied += len;
        }
        copied
    }

    /// Reads the next bytes to send, in order, and leaves them in the batch. For streams of providers that have several
    /// places for them.
    pub fn unsent_reader(&mut self) -> UnsentReader<'_> {
        let segments = if self.is_plain() {
            &self.segments[self.next..]
        } else {
            self.describe_part();
            &self.cut[..]
        };
        UnsentReader { segments, at: 0, payloads: &self.payloads }
    }

    /// Addresses and lengths of the next bytes to send, in order, as many as are ready, at least one if
    /// there are any. For streams of providers that read without a copy, until
    /// [`crate::ByteStream::transmit`] returns. Other threads may change the bytes of a region meanwhile,
    /// so a stream that reads them twice uses [`Self::copy_unsent`].
    pub fn unsent_parts(&mut self) -> impl Iterator<Item = (*const u8, usize)> {
        let part = |segment: &libc::iovec| (segment.iov_base.cast_const().cast(), segment.iov_len);
        self.describe().iter().map(part)
    }

    /// Notes that the next `sent` bytes are gone.
    ///
    /// # Panics
    /// If fewer are left.
    pub fn advance(&mut self, sent: usize) {
        assert!(sent <= self.remaining, "{sent} bytes sent of {}", self.remaining);
        self.remaining -= sent;
        if let Some(watched) = &self.watched {
            watched.fetch_add(sent as u64, Ordering::Relaxed);
        }
        if self.remaining == 0 && !self.digested.is_used() {
            self.next = self.segments.len();
            return;
        }
        let mut left = sent;
        while left > 0 {
            let segment = &mut self.segments[self.next];
            let len = left.min(segment.iov_len);
            if segment.iov_base.is_null() {
                self.digested.advance(len);
            } else {
                segment.iov_base = segment.iov_base.wrapping_byte_add(len);
            }
            segment.iov_len -= len;
            left -= len;
            self.next += usize::from(segment.iov_len == 0);
        }
    }

    /// Segments that the next system call could take. This does what a back end does before that call,
    /// for a program that measures the cost.
    pub fn count_segments(&mut self) -> usize {
        self.prepare().msg_iovlen
    }

    /// Describes the bytes not yet sent (at most [`IOV_MAX`] segments, and the bytes of one call) for
    /// sendmsg(2). The result stays valid until the batch is changed or dropped; the box it lives in
    /// may move.
    #[inline]
    pub(crate) fn prepare(&mut self) -> &libc::msghdr {
        // The peer may read the batch, such as that a write is done, before the call is over.
        stream::fence();
        let segments = self.describe();
        let (start, count) = (segments.as_ptr(), segments.len().min(IOV_MAX));
        self.message.msg_iov = start.cast_mut();
        self.message.msg_iovlen = count;
        &self.message
    }

    /// The segments that one system call may take.
    fn describe(&mut self) -> &[libc::iovec] {
        if self.is_plain() {
            self.flags = 0;
            return &self.segments[self.next..];
        }
        self.describe_part()
    }

    /// Whether one system call may take all that is left as it is.
    fn is_plain(&self) -> bool {
        self.call_bytes_max == usize::MAX && !self.digested.is_used()
    }

    /// The same where it is less than all that is left, or some of it has to be copied first.
    fn describe_part(&mut self) -> &[libc::iovec] {
        self.digested.fill(&mut self.headers, self.call_bytes_max);
        self.cut.clear();
        let mut copies = self.digested.copies();
        let mut room = self.call_bytes_max;
        let mut described = 0;
        for segment in &self.segments[self.next..] {
            let (mut base, mut len) = (segment.iov_base, segment.iov_len.min(room));
            if base.is_null() {
                let (copy, rest) = copies.split_at(len.min(copies.len()));
                copies = rest;
                (base, len) = (copy.as_ptr().cast_mut().cast(), copy.len());
            }
            if len > 0 {
                self.cut.push(libc::iovec { iov_base: base, iov_len: len });
                room -= len;
                described += len;
            }
            if len < segment.iov_len || room == 0 || self.cut.len() == IOV_MAX {
                break;
            }
        }
        let more = described < self.remaining;
        self.flags = match (more || self.followed, self.flagged) {
            (true, true) => libc::MSG_MORE,
            (false, true) => libc::MSG_EOR,
            (_, false) if more && self.digested.is_used() && !self.takes_turns() => libc::MSG_MORE,
            (_, false) => 0,
        };
        &self.cut
    }

    /// The bytes that a system call would see, through its vectors.
    #[cfg(test)]
    fn described(&mut self) -> Vec<u8> {
        let message = self.prepare();
        let mut bytes = Vec::new();
        // SAFETY: `prepare` describes memory that the batch owns.
        unsafe {
            for iovec in std::slice::from_raw_parts(message.msg_iov, message.msg_iovlen) {
                bytes.extend_from_slice(std::slice::from_raw_parts(
                    iovec.iov_base.cast(),
                    iovec.iov_len,
                ));
            }
        }
        bytes
    }

    /// What a system call is to be told of the bytes that follow those that [`Self::prepare`] described.
    #[inline]
    pub(crate) fn flags(&self) -> libc::c_int {
        self.flags
    }

    /// Whether what [`Self::prepare`] described is followed by more at once.
    #[cfg(test)]
    pub(crate) fn has_more(&self) -> bool {
        self.flags == libc::MSG_MORE
    }

    #[inline]
    fn count_payload(&mut self, len: usize) {
        self.remaining += len;
        self.large += usize::from(len >= LARGE_BYTES);
        self.assert_room();
    }

    fn assert_room(&self) {
        let used = self.segments.len() - self.beyond;
        debug_assert!(used < self.segment_capacity, "no room asked for");
    }

    #[inline]
    fn push_segment(&mut self, base: *const u8, len: usize) {
        self.segments.push(libc::iovec { iov_base: base.cast_mut().cast(), iov_len: len });
    }

    /// Takes note of header bytes appended since `start`.
    #[inline(always)]
    fn headers_appended(&mut self, start: usize) {
        let end = self.headers.len();
        assert!(start <= end, "a header writer only appends");
        debug_assert!(end <= self.header_capacity, "no room asked for");
        if start == end {
            return;
        }
        if self.headers.as_ptr() != self.headers_at {
            self.headers_moved(start);
        }
        self.remaining += end - start;
        let base = self.headers_at.wrapping_add(start);
        // Sent bytes stay in `headers` until the batch is cleared, so what is joined is right even
        // while the segment before is partly sent; a segment completely sent is left alone.
        match self.segments[self.next..].last_mut() {
            // A segment that ends amid the headers is one of them.
            Some(last) if start > 0 && ends_at(last, base) => last.iov_len += end - start,
            _ => {
                self.assert_room();
                self.push_segment(base, end - start);
            }
        }
    }

    /// `headers` has outgrown its room and has moved. Segments describe the first `described` bytes of it.
    #[cold]
    fn headers_moved(&mut self, described: usize) {
        let (old, new) = (self.headers_at.addr(), self.headers.as_ptr());
        for segment in &mut self.segments {
            let offset = segment.iov_base.addr().wrapping_sub(old);
            // No payload lay where the headers were.
            if offset < described && !segment.iov_base.is_null() {
                segment.iov_base = new.wrapping_add(offset).cast_mut().cast();
            }
        }
        self.headers_at = new;
    }
}

fn ends_at(segment: &libc::iovec, end: *const u8) -> bool {
    !segment.iov_base.is_null() && segment.iov_base.addr() + segment.iov_len == end.addr()
}

impl fmt::Debug for SendBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "SendBatch({} bytes left in {} segments)",
            self.remaining,
            self.segments.len() - self.next
        )
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::memory::buffer::{HugePages, IoBuf, Region, RegionHandle};

    fn gather(batch: &mut SendBatch) -> Vec<u8> {
        batch.described()
    }

    fn sample() -> (Box<SendBatch>, Vec<u8>) {
        let region = Arc::new(Region::new(8192, HugePages::None).unwrap());
        region.copy_in(4000, &[3; 200]);
        let shared = IoBuf::from_slice(b"0123456789").share();
        let mut batch = SendBatch::new(64, 16);
        batch.push_bytes(b"he");
        batch.append(|out| out.extend_from_slice(b"ad"));
        batch.push_payload(Payload::Buf(IoBuf::from_slice(b"payload"), 1..4));
        batch.push_bytes(b"|");
        batch.push_payload(Payload::Shared(shared, 5..10));
        batch.push_payload(Payload::Region(RegionHandle::new(region), 3999..4201));
        batch.push_payload(Payload::Zeroes(3));
        batch.push_payload(Payload::Zeroes(0));
        batch.push_bytes(b"end");
        let mut expected = b"headayl|56789\0".to_vec();
        expected.extend([3; 200]);
        expected.extend(b"\0\0\0\0end");
        (batch, expected)
    }

    #[test]
    fn a_call_takes_no_more_than_its_share() {
        for most in [1, 4, 5, 100, 1000] {
            let (mut batch, expected) = sample();
            let watched = Arc::new(AtomicU64::new(0));
            batch.watch(Arc::clone(&watched));
            batch.take_turns(Some(most));
            let mut sent = Vec::new();
            while !batch.is_empty() {
                assert_eq!(watched.load(Ordering::Relaxed), sent.len() as u64);
                let bytes = gather(&mut batch);
                assert_eq!(bytes.len(), most.min(expected.len() - sent.len()));
                batch.advance(bytes.len());
                sent.extend(bytes);
            }
            assert_eq!(sent, expected);
        }
    }

    #[test]
    fn bytes_leave_in_order_after_every_partial_send() {
        for step in 1..20 {
            let (mut batch, expected) = sample();
            assert_eq!(batch.len(), expected.len());
            let mut sent = 0;
            while !batch.is_empty() {
                assert_eq!(gather(&mut batch), expected[sent..]);
                let lengths = batch.unsent_parts().map(|(_, len)| len);
                assert_eq!(lengths.sum::<usize>(), expected.len() - sent);
                let mut copy = vec![0; 1000];
                let copied = batch.copy_unsent(&mut copy);
                assert_eq!(&copy[..copied], &expected[sent..]);
                let mut copy = vec![0; step];
                let copied = batch.copy_unsent(&mut copy);
                assert_eq!(&copy[..copied], &expected[sent..sent + copied]);
                batch.advance(copied);
                sent += copied;
            }
            assert_eq!(sent, expected.len());
            assert_eq!(batch.prepare().msg_iovlen, 0);
        }
    }

    #[test]
    fn adjacent_header_bytes_are_one_part() {
        let (batch, _) = sample();
        assert_eq!(batch.segments.len(), 7);
        assert!(batch.has_room(64 - 8, 4));
        assert!(!batch.has_room(64 - 7, 0));
        assert!(!batch.has_room(1, 5));
    }

    #[test]
    fn clearing_frees_payloads_and_keeps_capacity() {
        let (mut batch, _) = sample();
        let shared = IoBuf::heap(10).share();
        batch.push_payload(Payload::Shared(shared.clone(), 0..10));
        let capacity =
            (batch.headers.capacity(), batch.segments.capacity(), batch.payloads.capacity());
        batch.prepare();
        batch.clear();
        assert!(shared.try_unique().is_ok());
        assert!(batch.is_empty() && batch.has_room(64, 7));
        batch.push_bytes(b"x");
        assert_eq!(gather(&mut batch), b"x");
        assert_eq!(
            capacity,
            (batch.headers.capacity(), batch.segments.capacity(), batch.payloads.capacity())
        );
    }

    #[test]
    fn long_runs_of_zeroes_and_many_parts_take_several_calls() {
        let mut batch = SendBatch::new(4096, 2048);
        batch.push_payload(Payload::Zeroes(200_000));
        for _ in 0..1000 {
            batch.push_bytes(b"h");
            batch.push_payload(Payload::Zeroes(1));
        }
        let total = batch.len();
        assert_eq!(total, 202_000);
        assert_eq!(batch.prepare().msg_iovlen, IOV_MAX);
        let first = gather(&mut batch).len();
        assert!(first < total);
        batch.advance(first);
        let rest = gather(&mut batch);
        assert_eq!(rest.len(), total - first);
        assert_eq!(rest.iter().filter(|&&byte| byte == b'h').count(), rest.len() / 2);
    }

    #[test]
    fn appending_after_a_partial_send_loses_nothing() {
        let mut batch = SendBatch::new(64, 8);
        batch.push_bytes(b"abc");
        batch.advance(3);
        batch.push_bytes(b"def");
        batch.advance(1);
        batch.push_bytes(b"g");
        assert_eq!(gather(&mut batch), b"efg");
    }

    #[test]
    fn headers_without_room_move_and_are_still_the_same() {
        let mut batch = SendBatch::new(80, 16);
        let mut expected = Vec::new();
        for round in 0..5_u8 {
            let bytes = [round; 13];
            batch.append(|out| out.extend(bytes));
            batch.push_payload(Payload::Buf(IoBuf::from_slice(&[100 + round; 3]), 0..3));
            expected.extend(bytes);
            expected.extend([100 + round; 3]);
        }
        assert_eq!(gather(&mut batch), expected);
        let mut all = std::mem::take(&mut expected);
        batch.advance(20);
        // As a writer that asked for more than there is room for.
        let old = std::mem::replace(&mut batch.headers, Vec::with_capacity(4096));
        batch.headers.extend(&old);
        batch.append(|out| out.push(7));
        drop(old);
        all.push(7);
        assert_eq!(gather(&mut batch), all[20..]);
    }

    #[test]
    #[should_panic(expected = "payload range")]
    fn ranges_are_checked() {
        SendBatch::new(0, 1).push_payload(Payload::Buf(IoBuf::heap(4), 0..5));
    }
}
