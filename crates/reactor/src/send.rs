//! What one vectored send carries: header bytes and payload segments, in wire order.

#![allow(unsafe_code)]

use std::fmt;
use std::ops::{Deref, DerefMut, Range};

use raceline_accel::Copier;

use self::stage::Stage;
use crate::buffer::{IoBuf, RegionHandle, SharedBuf};

mod stage;

/// Most segments that one system call takes (IOV_MAX of Linux).
pub const IOV_MAX: usize = 1024;

/// Where the bytes of [`Payload::Zeroes`] come from; a longer run names it several times.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// Bytes of a payload and who owns them until they are sent.
#[derive(Debug)]
pub enum Payload {
    /// A range of a buffer that goes back to its pool when the batch is cleared.
    Buf(IoBuf, Range<usize>),
    /// A range of a buffer that others read too, such as a host's write buffer.
    Shared(SharedBuf, Range<usize>),
    /// A range of a region, sent straight from it.
    Region(RegionHandle, Range<u64>),
    /// That many zeroes.
    Zeroes(usize),
}

impl Payload {
    /// Its bytes.
    #[allow(clippy::len_without_is_empty, reason = "a payload is not a collection")]
    pub fn len(&self) -> usize {
        match self {
            Payload::Buf(_, range) | Payload::Shared(_, range) => range.len(),
            Payload::Region(_, range) => region_range_len(range),
            Payload::Zeroes(len) => *len,
        }
    }

    /// Copies its first `out.len()` bytes.
    ///
    /// # Panics
    /// If it has fewer.
    pub fn copy_to(&self, out: &mut [u8]) {
        self.copy_from_offset(0, out);
    }

    fn copy_from_offset(&self, skip: usize, out: &mut [u8]) {
        assert!(skip + out.len() <= self.len(), "copy beyond the end of a payload");
        let part = |bytes: &[u8], range: &Range<usize>, out: &mut [u8]| {
            let start = range.start + skip;
            out.copy_from_slice(&bytes[start..start + out.len()]);
        };
        match self {
            Payload::Buf(buf, range) => part(buf, range, out),
            Payload::Shared(buf, range) => part(buf, range, out),
            Payload::Region(region, range) => region.copy_out(range.start + skip as u64, out),
            Payload::Zeroes(_) => out.fill(0),
        }
    }

    /// Panics if the range is not inside the memory it names: system calls rely on it.
    #[inline(always)]
    pub(crate) fn validate(&self) {
        match self {
            Payload::Buf(buf, range) => assert!(buf.get(range.clone()).is_some(), "payload range"),
            Payload::Shared(buf, range) => {
                assert!(buf.get(range.clone()).is_some(), "payload range")
            }
            Payload::Region(region, range) => {
                assert!(range.start <= range.end, "payload range");
                region.range(range.start, region_range_len(range));
            }
            Payload::Zeroes(_) => {}
        }
    }

    /// The memory from `skip` on: address and length, at most what lies in one piece.
    pub(crate) fn segment(&self, skip: usize) -> (*const u8, usize) {
        let len = self.len() - skip;
        match self {
            Payload::Buf(buf, range) => {
                (buf.as_io_ptr().wrapping_add(range.start + skip).cast_const(), len)
            }
            Payload::Shared(buf, range) => (buf.as_io_ptr().wrapping_add(range.start + skip), len),
            Payload::Region(region, range) => {
                (region.range(range.start + skip as u64, len).cast_const(), len)
            }
            Payload::Zeroes(_) => (ZEROES.as_ptr(), len.min(ZEROES.len())),
        }
    }
}

/// A list of bytes to send, in order, with the memory they live in.
///
/// The batch is filled, given to [`crate::Io::send`], comes back with the completion, and is
/// cleared and filled again; after [`SendBatch::new`] it does not allocate, as long as the
/// owner asks [`SendBatch::has_room`] first. (Without room it grows: correct, but an allocation.)
pub struct SendBatch {
    /// Header bytes of all parts, back to back.
    headers: Vec<u8>,
    parts: Vec<Part>,
    header_capacity: usize,
    part_capacity: usize,
    /// Bytes not yet sent.
    remaining: usize,
    /// Bytes of the largest payload.
    largest: usize,
    /// Most bytes of one poll while others wait.
    share: usize,
    /// Short or long, it says nothing of the next.
    mixed: bool,
    /// Most bytes of one system call.
    call_bytes_max: usize,
    /// The first part that is not completely sent, and how much of it is.
    next_part: usize,
    sent_of_part: usize,
    /// Copies of payloads that are digested on their way.
    stage: Stage,
    /// The system call leaves some bytes to another one that follows at once.
    more: bool,
    /// What the system call is given; rebuilt for each one.
    iovecs: Vec<libc::iovec>,
    message: libc::msghdr,
}

#[derive(Debug)]
enum Part {
    Headers(Range<usize>),
    Payload(Payload),
    /// Copied on its way; and where among the header bytes the digest of the copy belongs.
    Digested(Payload, usize),
}

impl Part {
    fn len(&self) -> usize {
        match self {
            Part::Headers(range) => range.len(),
            Part::Payload(payload) | Part::Digested(payload, _) => payload.len(),
        }
    }
}

impl SendBatch {
    /// An empty batch that can hold so many header bytes and parts (runs of header bytes, and
    /// payloads).
    pub fn new(header_capacity: usize, part_capacity: usize) -> Box<SendBatch> {
        // SAFETY: msghdr is plain data for which zeroes (null pointers, no lengths) are valid.
        let message = unsafe { std::mem::zeroed() };
        Box::new(SendBatch {
            headers: Vec::with_capacity(header_capacity),
            parts: Vec::with_capacity(part_capacity),
            header_capacity,
            part_capacity,
            remaining: 0,
            largest: 0,
            share: usize::MAX,
            mixed: false,
            call_bytes_max: usize::MAX,
            next_part: 0,
            sent_of_part: 0,
            stage: Stage::default(),
            more: false,
            iovecs: Vec::with_capacity(part_capacity.clamp(16, IOV_MAX)),
            message,
        })
    }

    /// Lets the back end hand at most so many bytes to the kernel in each poll while another
    /// socket, whose batches have a share too, sends little at a time. A socket's buffer takes
    /// megabytes, and while they are copied nobody else on the core is served.
    ///
    /// # Panics
    /// If it is 0: nothing would ever be sent.
    pub fn set_share(&mut self, bytes: usize) {
        assert!(bytes > 0, "a batch that never leaves");
        self.share = bytes;
    }

    /// Tells that its socket sends short batches and long ones in turn, as a host's capsules and the
    /// data of its writes: a short one is no sign that the socket sends little.
    pub fn set_mixed(&mut self) {
        self.mixed = true;
    }

    pub(crate) fn is_mixed(&self) -> bool {
        self.mixed
    }

    /// The share, unless the batch has none.
    pub(crate) fn share(&self) -> Option<usize> {
        (self.share != usize::MAX).then_some(self.share)
    }

    /// From now on one system call takes at most a share, or else all that it can.
    pub(crate) fn take_turns(&mut self, turns: bool) {
        self.call_bytes_max = if turns { self.share } else { usize::MAX };
    }

    /// True if it leaves in shares: what one system call leaves has to wait for the next poll.
    pub(crate) fn takes_turns(&self) -> bool {
        self.call_bytes_max != usize::MAX
    }

    /// True if `header_bytes` more and `payloads` more fit, in any order.
    pub fn has_room(&self, header_bytes: usize, payloads: usize) -> bool {
        // Header bytes may come before, between and after the payloads.
        let parts = 2 * payloads + usize::from(header_bytes > 0);
        self.headers.len() + header_bytes <= self.header_capacity
            && self.parts.len() + parts <= self.part_capacity
    }

    /// Appends header bytes; they join header bytes just before them.
    pub fn push_bytes(&mut self, bytes: &[u8]) {
        self.bytes_mut().extend_from_slice(bytes);
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

    /// As [`SendBatch::append`], for as long as the writer is kept.
    pub fn bytes_mut(&mut self) -> HeaderWriter<'_> {
        HeaderWriter { start: self.headers.len(), batch: self }
    }

    /// Appends a payload.
    ///
    /// # Panics
    /// If its range is not inside its buffer or region.
    pub fn push_payload(&mut self, payload: Payload) {
        payload.validate();
        let len = payload.len();
        if len > 0 {
            self.remaining += len;
            self.largest = self.largest.max(len);
            self.push_part(Part::Payload(payload));
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
            self.remaining += len;
            self.largest = self.largest.max(len);
            self.stage.use_copier(copier);
            self.push_part(Part::Digested(payload, self.headers.len()));
        }
        self.push_bytes(&[0; size_of::<u32>()]);
    }

    /// Bytes not yet sent.
    pub fn len(&self) -> usize {
        self.remaining
    }

    /// Bytes of its largest payload, sent or not.
    pub(crate) fn largest_payload(&self) -> usize {
        self.largest
    }

    /// True if there is nothing left to send.
    pub fn is_empty(&self) -> bool {
        self.remaining == 0
    }

    /// Frees the payloads, sent or not; keeps the capacity.
    pub fn clear(&mut self) {
        self.headers.clear();
        self.parts.clear();
        self.iovecs.clear();
        self.remaining = 0;
        self.largest = 0;
        self.next_part = 0;
        self.sent_of_part = 0;
        self.stage.clear();
    }

    /// Copies the next bytes to send, as many as fit and are ready, at least one if there are any;
    /// gives their number. For back ends without system calls.
    pub fn copy_unsent(&mut self, out: &mut [u8]) -> usize {
        self.stage.fill(&self.parts, &mut self.headers, self.call_bytes_max);
        let (mut copied, mut copies) = (0, self.stage.copies());
        let mut skip = self.sent_of_part;
        for (i, part) in self.parts.iter().enumerate().skip(self.next_part) {
            let ready = self.ready(i);
            let len = (ready - skip).min(out.len() - copied);
            let to = &mut out[copied..copied + len];
            match part {
                Part::Headers(range) => {
                    to.copy_from_slice(&self.headers[range.start + skip..range.start + skip + len]);
                }
                Part::Payload(payload) => payload.copy_from_offset(skip, to),
                Part::Digested(..) => {
                    to.copy_from_slice(&copies[..len]);
                    copies = &copies[len..];
                }
            }
            copied += len;
            if copied == out.len() || ready < part.len() {
                break;
            }
            skip = 0;
        }
        copied
    }

    /// How many bytes of a part may leave.
    fn ready(&self, index: usize) -> usize {
        match &self.parts[index] {
            Part::Digested(payload, _) => self.stage.copied(index, payload.len()),
            part => part.len(),
        }
    }

    /// Notes that the next `sent` bytes are gone.
    ///
    /// # Panics
    /// If there were not so many.
    pub fn advance(&mut self, sent: usize) {
        assert!(sent <= self.remaining, "{sent} bytes sent of {}", self.remaining);
        self.remaining -= sent;
        let mut left = sent;
        while left > 0 {
            let part = &self.parts[self.next_part];
            let len = left.min(part.len() - self.sent_of_part);
            if matches!(part, Part::Digested(..)) {
                self.stage.advance(len);
            }
            left -= len;
            self.sent_of_part += len;
            if self.sent_of_part == part.len() {
                self.sent_of_part = 0;
                self.next_part += 1;
            }
        }
    }

    /// Describes the bytes not yet sent (at most [`IOV_MAX`] segments, and the bytes of one call) for
    /// sendmsg(2). The
    /// result stays valid until the batch is changed or dropped; the box it lives in may move.
    pub(crate) fn prepare(&mut self) -> &libc::msghdr {
        self.stage.fill(&self.parts, &mut self.headers, self.call_bytes_max);
        self.iovecs.clear();
        let mut copies = self.stage.copies();
        let mut skip = self.sent_of_part;
        let mut room = self.call_bytes_max;
        let mut described = 0;
        'parts: for (i, part) in self.parts.iter().enumerate().skip(self.next_part) {
            let ready = self.ready(i);
            while skip < ready {
                let full =
                    self.iovecs.len() == self.iovecs.capacity() || self.iovecs.len() == IOV_MAX;
                if full || room == 0 {
                    break 'parts;
                }
                let (base, len) = match part {
                    Part::Headers(range) => {
                        let bytes = &self.headers[range.start + skip..range.end];
                        (bytes.as_ptr(), bytes.len())
                    }
                    Part::Payload(payload) => payload.segment(skip),
                    Part::Digested(..) => {
                        let (part, rest) = copies.split_at(ready - skip);
                        copies = rest;
                        (part.as_ptr(), part.len())
                    }
                };
                let len = len.min(room);
                self.iovecs.push(libc::iovec { iov_base: base.cast_mut().cast(), iov_len: len });
                skip += len;
                room -= len;
                described += len;
            }
            if ready < part.len() {
                break;
            }
            skip = 0;
        }
        let turns = self.takes_turns();
        self.more = self.stage.is_used() && !turns && described < self.remaining;
        self.message.msg_iov = self.iovecs.as_mut_ptr();
        self.message.msg_iovlen = self.iovecs.len();
        &self.message
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

    /// Whether what [`Self::prepare`] described is followed by more at once.
    pub(crate) fn has_more(&self) -> bool {
        self.more
    }

    fn push_part(&mut self, part: Part) {
        debug_assert!(self.parts.len() < self.part_capacity, "no room asked for");
        self.parts.push(part);
    }

    /// Takes note of header bytes appended since `start`.
    #[inline]
    fn headers_appended(&mut self, start: usize) {
        let end = self.headers.len();
        assert!(start <= end, "a header writer only appends");
        debug_assert!(end <= self.header_capacity, "no room asked for");
        if start == end {
            return;
        }
        self.remaining += end - start;
        // Sent bytes stay in `headers` until the batch is cleared, so joined ranges are safe
        // even while the part before is partly sent; a part completely sent is left alone.
        let unsent = self.parts.len() > self.next_part;
        match self.parts.last_mut() {
            Some(Part::Headers(range)) if unsent => range.end = end,
            _ => self.push_part(Part::Headers(start..end)),
        }
    }
}

impl fmt::Debug for SendBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "SendBatch({} bytes left in {} parts)",
            self.remaining,
            self.parts.len() - self.next_part
        )
    }
}

/// The end of a batch's header bytes, as a vector that is only appended to.
#[derive(Debug)]
pub struct HeaderWriter<'a> {
    batch: &'a mut SendBatch,
    start: usize,
}

impl Deref for HeaderWriter<'_> {
    type Target = Vec<u8>;

    fn deref(&self) -> &Vec<u8> {
        &self.batch.headers
    }
}

impl DerefMut for HeaderWriter<'_> {
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        &mut self.batch.headers
    }
}

impl Drop for HeaderWriter<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.batch.headers_appended(self.start);
        }
    }
}

fn region_range_len(range: &Range<u64>) -> usize {
    usize::try_from(range.end.saturating_sub(range.start)).expect("a payload fits in memory")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::buffer::{HugePages, Region};

    fn gather(batch: &mut SendBatch) -> Vec<u8> {
        batch.described()
    }

    fn sample() -> (Box<SendBatch>, Vec<u8>) {
        let region = Arc::new(Region::new(8192, HugePages::None).unwrap());
        region.copy_in(4000, &[3; 200]);
        let shared = IoBuf::from_slice(b"0123456789").share();
        let mut batch = SendBatch::new(64, 16);
        batch.push_bytes(b"he");
        batch.bytes_mut().extend_from_slice(b"ad");
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
            batch.set_share(most);
            batch.take_turns(true);
            let mut sent = Vec::new();
            while !batch.is_empty() {
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
        assert_eq!(batch.parts.len(), 7);
        assert!(batch.has_room(64 - 8, 4));
        assert!(!batch.has_room(64 - 7, 0));
        assert!(!batch.has_room(1, 5));
    }

    #[test]
    fn clearing_frees_payloads_and_keeps_capacity() {
        let (mut batch, _) = sample();
        let shared = IoBuf::heap(10).share();
        batch.push_payload(Payload::Shared(shared.clone(), 0..10));
        let capacity = (batch.headers.capacity(), batch.parts.capacity(), batch.iovecs.capacity());
        batch.prepare();
        batch.clear();
        assert!(shared.try_unique().is_ok());
        assert!(batch.is_empty() && batch.has_room(64, 7));
        batch.push_bytes(b"x");
        assert_eq!(gather(&mut batch), b"x");
        assert_eq!(
            capacity,
            (batch.headers.capacity(), batch.parts.capacity(), batch.iovecs.capacity())
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
    #[should_panic(expected = "payload range")]
    fn ranges_are_checked() {
        SendBatch::new(0, 1).push_payload(Payload::Buf(IoBuf::heap(4), 0..5));
    }
}
