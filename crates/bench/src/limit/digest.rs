//! Data digests of the pair: computed while a payload is copied, and checked on arrival.

use std::io;

use raceline_accel::{Channel, ChannelConfig, Crc32c, Framework, Upcoming};
use raceline_reactor::HugePages;
use raceline_reactor::buffer::PageBuf;

use super::wire::{DIGEST_BYTES, HEADER_BYTES};

/// Copies start at multiples of this, so that no store touches two lines.
const LINE_BYTES: usize = 64;

/// Payloads on their way out, each followed by its digest. They are copies: a target whose memory others
/// may write must copy as well.
pub(super) struct Copies {
    channel: Channel<Vec<u8>, Vec<u8>>,
    memory: PageBuf,
    io_bytes: usize,
    stride: usize,
    /// The free places of copies; the last one freed is taken first, because it is in a cache.
    free: Vec<usize>,
}

impl Copies {
    /// Room for `count` copies.
    pub(super) fn new(io_bytes: usize, count: usize) -> io::Result<Self> {
        let stride = (io_bytes + DIGEST_BYTES).next_multiple_of(LINE_BYTES);
        let channel = Framework::software().open_channel(&ChannelConfig::default());
        Ok(Self {
            channel: channel.map_err(io::Error::other)?,
            memory: PageBuf::new(stride * count, HugePages::Transparent)?,
            io_bytes,
            stride,
            free: (0..count).rev().collect(),
        })
    }

    /// Copies and digests a payload; gives the place of the copy. `upcoming` prefetches the next payload.
    pub(super) fn copy(&mut self, payload: &[u8], upcoming: Option<&[u8]>) -> Option<usize> {
        let place = self.free.pop()?;
        let start = place * self.stride;
        let copy = &mut self.memory[start..start + self.io_bytes + DIGEST_BYTES];
        let (to, behind) = copy.split_at_mut(self.io_bytes);
        let upcoming = upcoming.map(|next| Upcoming::at(next.as_ptr()));
        let digest = self.channel.copy_bytes_crc32c_now(payload, to, upcoming).ok()?;
        behind.copy_from_slice(&digest.to_le_bytes());
        Some(place)
    }

    /// A copy and its digest.
    pub(super) fn bytes(&self, place: usize) -> &[u8] {
        &self.memory[place * self.stride..][..self.io_bytes + DIGEST_BYTES]
    }

    /// Frees the place of a copy that was sent.
    pub(super) fn release(&mut self, place: usize) {
        self.free.push(place);
    }
}

/// Checks successive C2HData PDUs, whose bytes come in pieces, while they are in a cache.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Check {
    found: Crc32c,
    /// The received bytes of the digest.
    came: u32,
}

impl Check {
    /// Takes the next bytes of a PDU with `io_bytes` of payload; `left` bytes of it are still to come,
    /// including these. False if the PDU ends with them and its digest is wrong.
    pub(super) fn take(&mut self, bytes: &[u8], left: usize, io_bytes: usize) -> bool {
        let at = HEADER_BYTES + io_bytes + DIGEST_BYTES - left;
        let header = HEADER_BYTES.saturating_sub(at).min(bytes.len());
        let payload = (HEADER_BYTES + io_bytes).saturating_sub(at + header);
        let bytes = &bytes[header..];
        let (payload, digest) = bytes.split_at(payload.min(bytes.len()));
        self.found.update(payload);
        for &byte in digest {
            self.came = self.came >> 8 | u32::from(byte) << 24;
        }
        if left > header + bytes.len() {
            return true;
        }
        let good = self.found.finalize() == self.came;
        *self = Self::default();
        good
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IO_BYTES: usize = 200;

    /// A PDU as the target's side sends it.
    fn pdu(copies: &mut Copies) -> Vec<u8> {
        let payload: Vec<u8> =
            (0..IO_BYTES).map(|at| u8::try_from(at * 7 % 251).unwrap()).collect();
        let place = copies.copy(&payload, None).unwrap();
        let mut bytes = vec![7; HEADER_BYTES];
        bytes.extend_from_slice(copies.bytes(place));
        copies.release(place);
        bytes
    }

    fn is_good(pdu: &[u8], piece: usize) -> bool {
        let (mut check, mut left) = (Check::default(), pdu.len());
        pdu.chunks(piece).all(|bytes| {
            let good = check.take(bytes, left, IO_BYTES);
            left -= bytes.len();
            good
        })
    }

    #[test]
    fn digests_are_right_in_pieces_of_any_size() {
        let mut copies = Copies::new(IO_BYTES, 1).unwrap();
        let pdu = pdu(&mut copies);
        assert!((1..=pdu.len()).all(|piece| is_good(&pdu, piece)));
    }

    #[test]
    fn every_flipped_bit_behind_the_header_is_seen() {
        let mut copies = Copies::new(IO_BYTES, 1).unwrap();
        let mut pdu = pdu(&mut copies);
        for bit in HEADER_BYTES * 8..pdu.len() * 8 {
            pdu[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_good(&pdu, 64), "bit {bit}");
            pdu[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn there_are_as_many_copies_as_asked_for() {
        let mut copies = Copies::new(IO_BYTES, 2).unwrap();
        let payload = [1; IO_BYTES];
        let first = copies.copy(&payload, None);
        assert!(first.is_some() && copies.copy(&payload, Some(&payload)).is_some());
        assert_eq!(copies.copy(&payload, None), None);
        copies.release(first.unwrap());
        assert_eq!(copies.copy(&payload, None), first);
    }
}
