//! TLS 1.3 for the pair: records by the library that our TLS uses, as long as ours, and as many in a call. No handshake,
//! no alerts, no change of keys, and no state of a connection beside keys and numbers.
//!
//! Ratios against it say what our streams cost, and not what encryption costs.

use std::io::{self, IoSlice, Read as _, Write as _};
use std::net::TcpStream;
use std::ops::Range;

use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use raceline_tls::{DATA_MAX, RECORD_MAX, Suite};

use super::Side;
use super::link::moved;

/// Records that one call writes, and that one call reads: as in `raceline_tls`.
const RECORDS: usize = 4;
/// Bytes before what a record protects, and of its tag.
const HEADER: usize = 5;
const TAG: usize = 16;
/// What a record adds to its data: header, type of the content, tag.
const OVERHEAD: usize = HEADER + 1 + TAG;
const APPLICATION_DATA: u8 = 23;

/// The key of one direction. Both ends know it from the start.
struct Key {
    key: LessSafeKey,
    iv: [u8; NONCE_LEN],
    sequence: u64,
}

impl Key {
    /// The key for what `from` sends.
    fn new(suite: Suite, from: Side) -> Self {
        let algorithm = match suite {
            Suite::Aes128GcmSha256 => &AES_128_GCM,
            Suite::Aes256GcmSha384 => &AES_256_GCM,
        };
        let byte = match from {
            Side::Target => 1,
            Side::Host => 2,
        };
        let key = UnboundKey::new(algorithm, &[byte; 32][..algorithm.key_len()]);
        let key = LessSafeKey::new(key.expect("a key of the right length"));
        Self { key, iv: [byte; NONCE_LEN], sequence: 0 }
    }

    fn nonce(&mut self) -> Nonce {
        let mut nonce = self.iv;
        for (byte, number) in nonce[4..].iter_mut().zip(self.sequence.to_be_bytes()) {
            *byte ^= number;
        }
        self.sequence += 1;
        Nonce::assume_unique_for_key(nonce)
    }
}

/// Both directions of one end.
pub(super) struct Records {
    sealer: Key,
    opener: Key,
    /// Sealed records; `owed` are the bytes that the socket has not taken, with `owed_data` bytes of data.
    out: Vec<u8>,
    owed: Range<usize>,
    owed_data: usize,
    /// Bytes that were read: data that nobody has taken, then records that are not opened.
    raw: Vec<u8>,
    data: Range<usize>,
    sealed: Range<usize>,
}

impl Records {
    /// For this end.
    pub(super) fn new(suite: Suite, side: Side) -> Self {
        let peer = match side {
            Side::Target => Side::Host,
            Side::Host => Side::Target,
        };
        Self {
            sealer: Key::new(suite, side),
            opener: Key::new(suite, peer),
            out: vec![0; RECORDS * (DATA_MAX + OVERHEAD)],
            owed: 0..0,
            owed_data: 0,
            raw: vec![0; RECORDS * RECORD_MAX],
            data: 0..0,
            sealed: 0..0,
        }
    }

    /// Sends what the slices hold. Gives the number of bytes of data whose records have left whole, if there are any.
    /// What has not left is kept sealed, so the next call has to begin with the same bytes.
    pub(super) fn send(
        &mut self,
        mut stream: &TcpStream,
        slices: &[IoSlice<'_>],
    ) -> io::Result<Option<usize>> {
        let mut rest = Rest { slices, skip: self.owed_data };
        let mut sent = 0;
        loop {
            if self.owed.is_empty() {
                self.seal(&mut rest)?;
            }
            if self.owed.is_empty() {
                break;
            }
            let Some(count) = moved(stream.write(&self.out[self.owed.clone()]))? else { break };
            self.owed.start += count;
            if self.owed.is_empty() {
                sent += std::mem::take(&mut self.owed_data);
            }
        }
        Ok((sent > 0).then_some(sent))
    }

    /// Makes as many records of the rest as one call writes.
    fn seal(&mut self, rest: &mut Rest<'_>) -> io::Result<()> {
        let mut end = 0;
        for _ in 0..RECORDS {
            let record = &mut self.out[end..end + DATA_MAX + OVERHEAD];
            let len = rest.fill(&mut record[HEADER..HEADER + DATA_MAX]);
            if len == 0 {
                break;
            }
            let [high, low] = u16::try_from(len + 1 + TAG).unwrap_or(u16::MAX).to_be_bytes();
            let header = [APPLICATION_DATA, 3, 3, high, low];
            record[HEADER + len] = APPLICATION_DATA;
            let inner = &mut record[HEADER..=HEADER + len];
            let nonce = self.sealer.nonce();
            let tag = self.sealer.key.seal_in_place_separate_tag(nonce, Aad::from(header), inner);
            let tag = tag.map_err(|_| io::Error::other("a record was not sealed"))?;
            record[..HEADER].copy_from_slice(&header);
            record[HEADER + len + 1..][..TAG].copy_from_slice(tag.as_ref());
            end += len + OVERHEAD;
            self.owed_data += len;
        }
        self.owed = 0..end;
        Ok(())
    }

    /// Receives into the first memory, and then into the second. Reads from the socket once at most, and only if there
    /// is no whole record.
    pub(super) fn read(
        &mut self,
        mut stream: &TcpStream,
        into: [&mut [u8]; 2],
    ) -> io::Result<Option<usize>> {
        let [first, second] = into;
        let (room, split) = (first.len() + second.len(), first.len());
        let mut filled = 0;
        loop {
            while !self.data.is_empty() && filled < room {
                let place = if filled < split {
                    &mut first[filled..]
                } else {
                    &mut second[filled - split..]
                };
                let len = place.len().min(self.data.len());
                place[..len].copy_from_slice(&self.raw[self.data.start..self.data.start + len]);
                self.data.start += len;
                filled += len;
            }
            if filled == room {
                return Ok(Some(filled));
            }
            let place =
                if filled < split { &mut first[filled..] } else { &mut second[filled - split..] };
            match self.whole() {
                Some(len) => filled += self.open(len, place)?,
                None if filled > 0 => return Ok(Some(filled)),
                None => {
                    self.raw.copy_within(self.sealed.clone(), 0);
                    self.sealed = 0..self.sealed.len();
                    let got = moved(stream.read(&mut self.raw[self.sealed.end..]))?;
                    let Some(got) = got else { return Ok(None) };
                    self.sealed.end += got;
                    if self.whole().is_none() {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// Whether a read gives bytes without looking at the socket.
    pub(super) fn holds_more(&self) -> bool {
        !self.data.is_empty() || self.whole().is_some()
    }

    /// Length of the next record, if it is whole.
    fn whole(&self) -> Option<usize> {
        let bytes = &self.raw[self.sealed.clone()];
        let &[_, _, _, high, low, ..] = bytes else { return None };
        let len = HEADER + usize::from(u16::from_be_bytes([high, low]));
        (len <= bytes.len()).then_some(len)
    }

    /// Opens a record into the place if there is room, or else where it lies. Gives the bytes that were put there.
    fn open(&mut self, len: usize, place: &mut [u8]) -> io::Result<usize> {
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, "a record is not authentic");
        let start = self.sealed.start;
        self.sealed.start += len;
        let (header, body) = self.raw[start..start + len].split_at_mut(HEADER);
        let inner = body.len().checked_sub(TAG + 1).ok_or_else(wrong)?;
        let nonce = self.opener.nonce();
        if place.len() > inner {
            let (sealed, tag) = body.split_at(body.len() - TAG);
            let out = &mut place[..=inner];
            let key = &self.opener.key;
            key.open_separate_gather(nonce, Aad::from(&*header), sealed, tag, out)
                .map_err(|_| wrong())?;
            return Ok(inner);
        }
        self.opener.key.open_in_place(nonce, Aad::from(&*header), body).map_err(|_| wrong())?;
        self.data = start + HEADER..start + HEADER + inner;
        Ok(0)
    }
}

/// The bytes of slices that are not sealed yet.
struct Rest<'a> {
    slices: &'a [IoSlice<'a>],
    /// Bytes at the front that are sealed already.
    skip: usize,
}

impl Rest<'_> {
    /// Copies as many bytes as there are and fit.
    fn fill(&mut self, room: &mut [u8]) -> usize {
        let mut filled = 0;
        while let Some((slice, others)) = self.slices.split_first() {
            let skipped = self.skip.min(slice.len());
            let bytes = &slice[skipped..];
            let len = bytes.len().min(room.len() - filled);
            room[filled..filled + len].copy_from_slice(&bytes[..len]);
            filled += len;
            if len < bytes.len() {
                self.skip += len;
                break;
            }
            self.skip -= skipped;
            self.slices = others;
        }
        filled
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::super::{Mode, link};
    use super::*;

    /// Whatever sizes a sender's slices and a receiver's memories have, the bytes come in order.
    #[test]
    fn bytes_come_as_they_were_sent_in_pieces_of_any_size() {
        let data: Vec<u8> = (0..300_000u32).map(|at| (at * 7 % 251).to_le_bytes()[0]).collect();
        for suite in [Suite::Aes128GcmSha256, Suite::Aes256GcmSha384] {
            for (slice, room) in [(1000, [0, 100]), (72, [5000, 70_000]), (300_000, [16_385, 24])] {
                let (target, host) = link::connect(1, Mode::Polled).unwrap();
                let mut sender = Records::new(suite, Side::Target);
                let mut receiver = Records::new(suite, Side::Host);
                let (mut sent, mut received) = (0, Vec::new());
                let mut memories = room.map(|len| vec![0; len]);
                let deadline = Instant::now() + Duration::from_secs(20);
                while received.len() < data.len() {
                    assert!(Instant::now() < deadline, "{suite:?}, {slice} and {room:?}");
                    if sent < data.len() {
                        let slices: Vec<IoSlice<'_>> =
                            data[sent..].chunks(slice).map(IoSlice::new).collect();
                        sent += sender.send(&target[0], &slices).unwrap().unwrap_or(0);
                    }
                    let [first, second] = &mut memories;
                    let got = receiver.read(&host[0], [first, second]).unwrap().unwrap_or(0);
                    received.extend_from_slice(&first[..got.min(first.len())]);
                    received.extend_from_slice(&second[..got.saturating_sub(first.len())]);
                }
                assert!(received == data && !receiver.holds_more());
            }
        }
    }

    #[test]
    fn a_changed_record_is_an_error() {
        let (target, host) = link::connect(1, Mode::Polled).unwrap();
        let mut sender = Records::new(Suite::Aes128GcmSha256, Side::Target);
        sender.seal(&mut Rest { slices: &[IoSlice::new(b"data")], skip: 0 }).unwrap();
        sender.out[HEADER] ^= 1;
        sender.send(&target[0], &[]).unwrap();
        let mut receiver = Records::new(Suite::Aes128GcmSha256, Side::Host);
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            match receiver.read(&host[0], [&mut [], &mut [0; 100]]) {
                Ok(got) => assert!(got.is_none() && Instant::now() < deadline),
                Err(error) => break assert_eq!(error.kind(), io::ErrorKind::InvalidData),
            }
        }
    }
}
