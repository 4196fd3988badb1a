//! Framing of received bytes: headers are checked and handed out whole, data are handed out as they come
//! (RFC 7143, 11.1 and 11.2).
//!
//! The lengths in the first 8 bytes are bounded before any byte behind them is waited for. A header that lies whole
//! in the input is used where it lies; a header in pieces is put together in a fixed array. Data are never copied.

use raceline_crc32c::{Crc32c, crc32c};

use crate::error::{FatalError, Violation};
use crate::pdu::{BHS_LEN, Bhs, DIGEST_LEN, Lengths, MAX_AHS_LEN, pad_len};

/// Bytes at the front of a header that give its lengths.
const FIRST_LEN: usize = 8;
/// Most bytes of padding and digest behind data.
const MAX_TRAILER_LEN: usize = 3 + DIGEST_LEN;

/// What the first bytes of a header say about its PDU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Bytes of BHS and AHS.
    pub(crate) header_len: usize,
    /// Bytes of data, without padding.
    pub(crate) data_len: u32,
    /// Bytes to hold before the header can be checked: with the header digest.
    held_len: usize,
    /// Bytes of padding and data digest behind the data.
    trailer_len: usize,
}

/// The data digest of a PDU as it was received, with the padding that it covers (RFC 7143, 11.2.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataDigest {
    trailer: [u8; MAX_TRAILER_LEN],
    pad: u8,
}

impl DataDigest {
    /// Whether the digest is right for these data.
    #[must_use]
    pub fn is_right(&self, data: &[u8]) -> bool {
        let mut crc = Crc32c::new();
        crc.update(data);
        self.is_right_after(crc)
    }

    /// Whether the digest is right for data whose CRC32C, without padding, is in `crc`.
    #[must_use]
    pub fn is_right_after(&self, crc: Crc32c) -> bool {
        self.data_crc().is_some_and(|expected| expected == crc.finalize()) || {
            let mut crc = crc;
            let (pad, digest) = self.trailer.split_at(usize::from(self.pad));
            crc.update(pad);
            digest.first_chunk() == Some(&crc.finalize().to_le_bytes())
        }
    }

    /// The digest as a number, when it covers nothing but data: their length is a multiple of 4.
    #[inline]
    #[must_use]
    pub fn data_crc(&self) -> Option<u32> {
        let value = self.trailer.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
        value.filter(|_| self.pad == 0)
    }
}

/// Data that come next on the wire. A driver can receive them into the place where they belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PayloadWanted<D> {
    /// Whose data these are.
    pub dest: D,
    /// Offset in the command's data of the next byte.
    pub offset: u32,
    /// Bytes that are next; at least 1. Padding and digest are not counted.
    pub len: u32,
}

/// A piece of a PDU's data, or the end of it.
pub(crate) enum Body<'a> {
    /// `offset` is that within the PDU's data.
    Bytes {
        offset: u32,
        bytes: &'a [u8],
    },
    End {
        digest: Option<DataDigest>,
    },
}

/// Where in a PDU the next byte belongs.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// `held` bytes of header are in the array; the shape is known from 8 on.
    Header { held: usize, shape: Option<Shape> },
    /// Header done.
    Body { data_done: u32, data_len: u32, trailer_done: usize, trailer_len: usize },
}

/// Framing state of one direction of a connection.
#[derive(Debug)]
pub(crate) struct Receiver {
    header_digest: bool,
    data_digest: bool,
    /// Most bytes of a data segment.
    max_data: u32,
    phase: Phase,
    held: [u8; BHS_LEN + MAX_AHS_LEN + DIGEST_LEN],
    trailer: [u8; MAX_TRAILER_LEN],
    /// The first bytes of the last header whose lengths were right, and its shape. Headers of one kind of command
    /// begin alike.
    judged: Option<([u8; FIRST_LEN], Shape)>,
}

impl Receiver {
    /// Without digests.
    pub(crate) fn new(max_data: u32) -> Self {
        Self {
            header_digest: false,
            data_digest: false,
            max_data,
            phase: Phase::Header { held: 0, shape: None },
            held: [0; BHS_LEN + MAX_AHS_LEN + DIGEST_LEN],
            trailer: [0; MAX_TRAILER_LEN],
            judged: None,
        }
    }

    /// What PDUs carry from now on.
    pub(crate) fn set(&mut self, header_digest: bool, data_digest: bool, max_data: u32) {
        self.header_digest = header_digest;
        self.data_digest = data_digest;
        self.max_data = max_data;
        self.judged = None;
    }

    /// Whether a header, and not data, comes next.
    #[inline]
    pub(crate) fn awaits_header(&self) -> bool {
        matches!(self.phase, Phase::Header { .. })
    }

    /// Whether a header begins with the next byte.
    #[inline]
    pub(crate) fn at_header(&self) -> bool {
        matches!(self.phase, Phase::Header { held: 0, .. })
    }

    /// The next header, when it lies whole at the front of `input` and begins as the last valid one did. None with
    /// digests, which still have to be checked. Takes nothing.
    #[inline(always)]
    pub(crate) fn familiar_header<'a>(&self, input: &'a [u8]) -> Option<(Shape, &'a Bhs)> {
        let Phase::Header { held: 0, .. } = self.phase else { return None };
        let (same, shape) = self.judged.as_ref()?;
        let bhs: &Bhs = input.first_chunk()?;
        let first = bhs.first_chunk()?;
        if u64::from_ne_bytes(*same) != u64::from_ne_bytes(*first) || shape.held_len != BHS_LEN {
            return None;
        }
        Some((*shape, bhs))
    }

    /// Takes the next header from `input`, BHS and AHS: lengths and digest are right. `None` when it has not arrived
    /// completely. [`Receiver::begin_body`] must follow.
    #[inline]
    pub(crate) fn header<'h, 'a: 'h>(
        &'h mut self,
        input: &mut &'a [u8],
    ) -> Result<Option<(Shape, &'h [u8])>, FatalError> {
        let Phase::Header { held, shape } = self.phase else {
            unreachable!("a header asked for amid data");
        };
        let (shape, bytes) = match input.first_chunk() {
            Some(first) if held == 0 => {
                let shape = self.checked_shape(first)?;
                match input.split_at_checked(shape.held_len) {
                    Some((bytes, rest)) => {
                        *input = rest;
                        (shape, bytes)
                    }
                    None => match self.assemble(held, Some(shape), input)? {
                        Some(shape) => (shape, &self.held[..shape.held_len]),
                        None => return Ok(None),
                    },
                }
            }
            _ => match self.assemble(held, shape, input)? {
                Some(shape) => (shape, &self.held[..shape.held_len]),
                None => return Ok(None),
            },
        };
        let (header, digest) = bytes.split_at(shape.header_len);
        if let Some(digest) = digest.first_chunk()
            && crc32c(header) != u32::from_le_bytes(*digest)
        {
            return Err(FatalError::in_header(Violation::HeaderDigest, header));
        }
        Ok(Some((shape, header)))
    }

    /// Copies header bytes into the array; gives the shape once all are there.
    #[cold]
    fn assemble(
        &mut self,
        mut held: usize,
        mut shape: Option<Shape>,
        input: &mut &[u8],
    ) -> Result<Option<Shape>, FatalError> {
        loop {
            let wanted = shape.map_or(FIRST_LEN, |shape| shape.held_len);
            let (bytes, rest) = input.split_at(input.len().min(wanted - held));
            self.held[held..held + bytes.len()].copy_from_slice(bytes);
            *input = rest;
            held += bytes.len();
            if held < wanted {
                self.phase = Phase::Header { held, shape };
                return Ok(None);
            }
            match (shape, self.held.first_chunk().copied()) {
                (Some(shape), _) => return Ok(Some(shape)),
                (None, Some(first)) => shape = Some(self.checked_shape(&first)?),
                (None, None) => unreachable!("the array is longer than a header's first bytes"),
            }
        }
    }

    /// After a header: data follow, or the next header.
    #[inline]
    pub(crate) fn begin_body(&mut self, shape: Shape) {
        self.phase = if shape.data_len == 0 {
            Phase::Header { held: 0, shape: None }
        } else {
            Phase::Body {
                data_done: 0,
                data_len: shape.data_len,
                trailer_done: 0,
                trailer_len: shape.trailer_len,
            }
        };
    }

    /// Takes data of the current PDU from `input`; `None` when more must come.
    #[inline]
    pub(crate) fn body<'a>(&mut self, input: &mut &'a [u8]) -> Option<Body<'a>> {
        let Phase::Body { data_done, data_len, trailer_done, trailer_len } = &mut self.phase else {
            unreachable!("data asked for amid a header");
        };
        if data_done < data_len {
            let offset = *data_done;
            let (bytes, len) = take_at_most(input, *data_len - offset);
            *data_done += len;
            return (len > 0).then_some(Body::Bytes { offset, bytes });
        }
        if trailer_done < trailer_len {
            let missing = &mut self.trailer[*trailer_done..*trailer_len];
            let (head, rest) = input.split_at(input.len().min(missing.len()));
            missing[..head.len()].copy_from_slice(head);
            *input = rest;
            *trailer_done += head.len();
            if trailer_done < trailer_len {
                return None;
            }
        }
        let digest = self.data_digest.then(|| self.received_digest(*data_len_of(&self.phase)));
        self.phase = Phase::Header { held: 0, shape: None };
        Some(Body::End { digest })
    }

    /// The digest in the trailer, which is complete.
    fn received_digest(&self, data_len: u32) -> DataDigest {
        let [pad, ..] = pad_len(data_len).to_le_bytes();
        DataDigest { trailer: self.trailer, pad }
    }

    /// Offset within the PDU's data and count of the data that are next on the wire, if data are.
    pub(crate) fn data_wanted(&self) -> Option<(u32, u32)> {
        match self.phase {
            Phase::Body { data_done, data_len, .. } if data_done < data_len => {
                Some((data_done, data_len - data_done))
            }
            _ => None,
        }
    }

    /// All data of the PDU whose header was just taken, when they are `len` bytes without padding or digest, and
    /// lie whole at the front of `input`. A header is next after that.
    #[inline]
    pub(crate) fn whole_data<'a>(&mut self, input: &'a [u8], len: usize) -> Option<&'a [u8]> {
        let Phase::Body { data_done: 0, data_len, trailer_len: 0, .. } = self.phase else {
            return None;
        };
        let data = input.get(..len).filter(|_| data_len as usize == len)?;
        self.phase = Phase::Header { held: 0, shape: None };
        Some(data)
    }

    /// The data digest, when the trailer is next on the wire and lies whole in `input`.
    pub(crate) fn digest_ahead(&self, input: &[u8]) -> Option<DataDigest> {
        match self.phase {
            Phase::Body { data_done, data_len, trailer_done: 0, trailer_len }
                if data_done == data_len && self.data_digest =>
            {
                let mut trailer = [0; MAX_TRAILER_LEN];
                trailer[..trailer_len].copy_from_slice(input.get(..trailer_len)?);
                let [pad, ..] = pad_len(data_len).to_le_bytes();
                Some(DataDigest { trailer, pad })
            }
            _ => None,
        }
    }

    /// Data that reached their place without [`Receiver::body`].
    ///
    /// # Panics
    /// When these are more than [`Receiver::data_wanted`] says.
    pub(crate) fn data_received(&mut self, len: usize) {
        let wanted = self.data_wanted().map_or(0, |(_, wanted)| wanted);
        let len = u32::try_from(len).ok().filter(|&len| len <= wanted);
        match (&mut self.phase, len) {
            (Phase::Body { data_done, .. }, Some(len)) => *data_done += len,
            _ => panic!("more payload received than wanted"),
        }
    }

    #[inline]
    fn checked_shape(&mut self, first: &[u8; FIRST_LEN]) -> Result<Shape, FatalError> {
        match self.judged {
            Some((same, shape)) if u64::from_ne_bytes(same) == u64::from_ne_bytes(*first) => {
                Ok(shape)
            }
            _ => self.judge(first),
        }
    }

    #[inline(never)]
    fn judge(&mut self, first: &[u8; FIRST_LEN]) -> Result<Shape, FatalError> {
        let Lengths { ahs, data } = Lengths::of(first);
        if ahs > MAX_AHS_LEN {
            return Err(FatalError::in_header(Violation::AhsTooLong, first));
        }
        if data > self.max_data {
            return Err(FatalError::in_header(Violation::DataSegmentTooLong, first));
        }
        let header_len = BHS_LEN + ahs;
        let digest_len = |on: bool| if on { DIGEST_LEN } else { 0 };
        let shape = Shape {
            header_len,
            data_len: data,
            held_len: header_len + digest_len(self.header_digest),
            trailer_len: pad_len(data) as usize + digest_len(self.data_digest),
        };
        self.judged = Some((*first, shape));
        Ok(shape)
    }
}

/// The length of the data that are coming.
fn data_len_of(phase: &Phase) -> &u32 {
    match phase {
        Phase::Body { data_len, .. } => data_len,
        Phase::Header { .. } => &0,
    }
}

/// Takes at most `len` bytes off the front, and says how many.
#[inline]
fn take_at_most<'a>(input: &mut &'a [u8], len: u32) -> (&'a [u8], u32) {
    // A length that does not fit into 32 bits is more than `len`.
    let count = u32::try_from(input.len()).map_or(len, |available| available.min(len));
    let (bytes, rest) = input.split_at(count as usize);
    *input = rest;
    (bytes, count)
}
