//! Framing of received bytes: headers are checked and handed out whole, data are handed out as
//! they come (NVMe/TCP 1.0, section 3.6).
//!
//! The common header is checked completely before any byte behind it is read, in the
//! order type, state, HLEN, FLAGS, PDO, PLEN. A header that lies whole in the input is used where
//! it lies; a header in pieces is put together in a fixed array. Data are never copied.

use raceline_crc32c::crc32c;
use zerocopy::FromBytes;

use super::error::{FatalError, Violation};
use super::pdu::{
    self, C2hDataPdu, CommonHeader, DIGEST_LEN, DIGEST_PLEN, H2cDataPdu, MAX_PDO, MAX_TERM_LEN,
    PduType, TermReqPdu, alignment, flags,
};
use super::{Fes, TermReq};

/// Which end receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Controller,
    Host,
}

/// The state of the queue's connection; it never goes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum QueueState {
    /// The ICReq (controller) or ICResp (host) has not come.
    Uninitialized,
    /// A controller has got the ICReq and not yet answered it.
    Answering,
    /// Commands flow.
    Ready,
    /// A fatal error or a TermReq: input is thrown away.
    Closed,
}

/// What a valid common header says about its PDU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) pdu_type: PduType,
    pub(super) flags: u8,
    /// Bytes to hold before the header can be checked: HLEN and HDGST; a whole TermReq.
    held_len: usize,
    /// Bytes between them and the data.
    pad: u32,
    /// Bytes of data.
    pub(super) data_len: u32,
    /// A header digest follows the header.
    header_digest: bool,
    /// A data digest follows the data.
    data_digest: bool,
}

/// A piece of a PDU's data, or the end of it.
pub(super) enum Body<'a> {
    /// `offset` is that within the PDU's data.
    Bytes {
        offset: u32,
        bytes: &'a [u8],
    },
    End {
        ddgst: Option<u32>,
    },
}

/// Where in a PDU the next byte belongs.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// `held` bytes of header are in the array; the shape is known from 8 on.
    Header { held: usize, shape: Option<Shape> },
    /// Header done.
    Body { pad_left: u32, data_done: u32, data_len: u32, digest: DataDigest },
}

/// Collects the data digest.
#[derive(Clone, Copy, Debug)]
enum DataDigest {
    Absent,
    Held { bytes: [u8; DIGEST_LEN], len: usize },
}

/// Framing state of one direction of a connection.
#[derive(Debug)]
pub(super) struct Receiver {
    role: Role,
    state: QueueState,
    header_digest: bool,
    data_digest: bool,
    alignment: u32,
    phase: Phase,
    held: [u8; MAX_TERM_LEN],
    /// The last valid common header, and its shape. Commands of one kind have equal common headers. An
    /// equal one is valid, too, as long as state and digests stay the same.
    judged: Option<([u8; CommonHeader::LEN], Shape)>,
}

impl Receiver {
    /// `pda` is the alignment that this end asks of the peer (CPDA for a controller, HPDA for a
    /// host).
    pub(super) fn new(role: Role, pda: u8) -> Self {
        Self {
            role,
            state: QueueState::Uninitialized,
            header_digest: false,
            data_digest: false,
            alignment: alignment(pda),
            phase: Phase::Header { held: 0, shape: None },
            held: [0; MAX_TERM_LEN],
            judged: None,
        }
    }

    pub(super) fn state(&self) -> QueueState {
        self.state
    }

    /// Goes on to a later state.
    pub(super) fn advance(&mut self, state: QueueState) {
        assert!(state >= self.state, "a connection goes from {:?} to {state:?}", self.state);
        self.state = state;
        self.judged = None;
    }

    /// The bytes of the next header that have come; `None`: data are next, or commands do not flow.
    pub(super) fn held_header(&self) -> Option<&[u8]> {
        match self.phase {
            Phase::Header { held, .. } if self.state == QueueState::Ready => {
                Some(&self.held[..held])
            }
            _ => None,
        }
    }

    /// The digests that PDUs carry from now on.
    pub(super) fn set_digests(&mut self, header: bool, data: bool) {
        self.header_digest = header;
        self.data_digest = data;
        self.judged = None;
    }

    /// Whether a header, and not data, comes next.
    pub(super) fn awaits_header(&self) -> bool {
        matches!(self.phase, Phase::Header { .. })
    }

    /// Whether a header begins with the next byte.
    pub(super) fn at_header(&self) -> bool {
        matches!(self.phase, Phase::Header { held: 0, .. })
    }

    /// The next header, when it lies whole at the front of `input` and begins as the last valid one did.
    /// None with digests, which still have to be checked. Takes nothing: a header that the caller does not
    /// want is left to [`Receiver::header`].
    #[inline(always)]
    pub(super) fn familiar_header<'a>(&self, input: &'a [u8]) -> Option<(Shape, &'a [u8])> {
        let Phase::Header { held: 0, .. } = self.phase else { return None };
        let (same, shape) = self.judged.as_ref()?;
        let common = input.first_chunk()?;
        if u64::from_ne_bytes(*same) != u64::from_ne_bytes(*common)
            || shape.header_digest
            || shape.data_digest
        {
            return None;
        }
        Some((*shape, input.get(..shape.held_len)?))
    }

    /// Takes the next header from `input`: valid as far as a header can be judged alone, digest
    /// included. `None` when it has not arrived completely. [`Receiver::begin_body`] must follow.
    #[inline]
    pub(super) fn header<'h, 'a: 'h>(
        &'h mut self,
        input: &mut &'a [u8],
    ) -> Result<Option<(Shape, &'h [u8])>, FatalError> {
        let Phase::Header { held, shape } = self.phase else {
            unreachable!("a header asked for amid data");
        };
        let (shape, bytes) = match input.first_chunk() {
            Some(common) if held == 0 => {
                let shape = self.checked_shape(common)?;
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
        let header = checked_header(shape, bytes)?;
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
            let wanted = shape.map_or(CommonHeader::LEN, |shape| shape.held_len);
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
                (None, Some(common)) => shape = Some(self.checked_shape(&common)?),
                (None, None) => unreachable!("the array is longer than a common header"),
            }
        }
    }

    /// After a header: data follow, or the next header.
    #[inline]
    pub(super) fn begin_body(&mut self, shape: Shape) {
        self.phase = if shape.data_len == 0 {
            Phase::Header { held: 0, shape: None }
        } else {
            Phase::Body {
                pad_left: shape.pad,
                data_done: 0,
                data_len: shape.data_len,
                digest: if shape.data_digest {
                    DataDigest::Held { bytes: [0; DIGEST_LEN], len: 0 }
                } else {
                    DataDigest::Absent
                },
            }
        };
    }

    /// Takes data of the current PDU from `input`; `None` when more must come.
    #[inline]
    pub(super) fn body<'a>(&mut self, input: &mut &'a [u8]) -> Option<Body<'a>> {
        let Phase::Body { pad_left, data_done, data_len, digest } = &mut self.phase else {
            unreachable!("data asked for amid a header");
        };
        if *pad_left > 0 {
            *pad_left -= take_at_most(input, *pad_left).1;
            if *pad_left > 0 {
                return None;
            }
        }
        if data_done < data_len {
            let offset = *data_done;
            let (bytes, len) = take_at_most(input, *data_len - offset);
            *data_done += len;
            return (len > 0).then_some(Body::Bytes { offset, bytes });
        }
        let ddgst = match digest {
            DataDigest::Absent => None,
            DataDigest::Held { bytes, len } => {
                let missing = &mut bytes[*len..];
                let (head, rest) = input.split_at(input.len().min(missing.len()));
                missing[..head.len()].copy_from_slice(head);
                *input = rest;
                *len += head.len();
                if *len < bytes.len() {
                    return None;
                }
                Some(u32::from_le_bytes(*bytes))
            }
        };
        self.phase = Phase::Header { held: 0, shape: None };
        Some(Body::End { ddgst })
    }

    /// Offset within the PDU's data and count of the data that are next on the wire, if data are.
    pub(super) fn data_wanted(&self) -> Option<(u32, u32)> {
        match self.phase {
            Phase::Body { pad_left: 0, data_done, data_len, .. } if data_done < data_len => {
                Some((data_done, data_len - data_done))
            }
            _ => None,
        }
    }

    /// All data of the PDU whose header was just taken, when they are `len` bytes without a digest behind
    /// them, and lie whole at the front of `input`. A header is next after that.
    #[inline]
    pub(super) fn whole_data<'a>(&mut self, input: &'a [u8], len: usize) -> Option<&'a [u8]> {
        let Phase::Body { pad_left: 0, data_done: 0, data_len, digest: DataDigest::Absent } =
            self.phase
        else {
            return None;
        };
        let data = input.get(..len).filter(|_| data_len as usize == len)?;
        self.phase = Phase::Header { held: 0, shape: None };
        Some(data)
    }

    /// The data digest, when exactly that is next on the wire and lies whole in `input`.
    pub(super) fn digest_ahead(&self, input: &[u8]) -> Option<u32> {
        match self.phase {
            Phase::Body {
                pad_left: 0,
                data_done,
                data_len,
                digest: DataDigest::Held { len: 0, .. },
            } if data_done == data_len => {
                input.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
            }
            _ => None,
        }
    }

    /// Data that reached their place without [`Receiver::body`].
    ///
    /// # Panics
    /// When these are more than [`Receiver::data_wanted`] says.
    pub(super) fn data_received(&mut self, len: usize) {
        let wanted = self.data_wanted().map_or(0, |(_, wanted)| wanted);
        let len = u32::try_from(len).ok().filter(|&len| len <= wanted);
        match (&mut self.phase, len) {
            (Phase::Body { data_done, .. }, Some(len)) => *data_done += len,
            _ => panic!("more payload received than wanted"),
        }
    }

    #[inline]
    fn checked_shape(&mut self, common: &[u8; CommonHeader::LEN]) -> Result<Shape, FatalError> {
        match self.judged {
            Some((same, shape)) if u64::from_ne_bytes(same) == u64::from_ne_bytes(*common) => {
                Ok(shape)
            }
            _ => self.judge(common),
        }
    }

    #[inline(never)]
    fn judge(&mut self, common: &[u8; CommonHeader::LEN]) -> Result<Shape, FatalError> {
        let shape = self
            .shape(&zerocopy::transmute!(*common))
            .map_err(|violation| FatalError::in_header(violation, common))?;
        self.judged = Some((*common, shape));
        Ok(shape)
    }

    /// Checks a common header.
    fn shape(&self, common: &CommonHeader) -> Result<Shape, Violation> {
        let pdu_type = self.checked_type(common.pdu_type)?;
        let hlen = pdu_type.hlen();
        if common.hlen != hlen {
            return Err(Violation::HlenInvalid);
        }
        let bare = Shape {
            pdu_type,
            flags: common.flags,
            held_len: usize::from(hlen),
            pad: 0,
            data_len: 0,
            header_digest: false,
            data_digest: false,
        };
        match pdu_type {
            PduType::IcReq | PduType::IcResp => {
                if common.plen.get() != u32::from(hlen) {
                    return Err(Violation::PlenInvalid);
                }
                Ok(bare)
            }
            PduType::H2cTermReq | PduType::C2hTermReq => {
                // The specification wants at least one byte of header; Linux accepts a bare TermReq,
                // and so does this code.
                let held_len = usize::try_from(common.plen.get())
                    .ok()
                    .filter(|plen| (TermReqPdu::LEN..=MAX_TERM_LEN).contains(plen))
                    .ok_or(Violation::PlenInvalid)?;
                Ok(Shape { held_len, ..bare })
            }
            PduType::CapsuleCmd
            | PduType::CapsuleResp
            | PduType::H2cData
            | PduType::C2hData
            | PduType::R2t => self.digested_shape(common, bare),
        }
    }

    /// Checks the rest of the common header of a PDU that may have digests.
    fn digested_shape(&self, common: &CommonHeader, bare: Shape) -> Result<Shape, Violation> {
        if self.header_digest != (common.flags & flags::HDGSTF != 0) {
            return Err(Violation::HdgstfInvalid);
        }
        let digest_len = if self.header_digest { DIGEST_PLEN } else { 0 };
        let header_len = u32::from(common.hlen) + digest_len;
        let plen = common.plen.get();
        let has_data = match bare.pdu_type {
            PduType::H2cData | PduType::C2hData => true,
            PduType::CapsuleCmd => plen > header_len,
            _ => false,
        };
        let held_len = bare.held_len + if self.header_digest { DIGEST_LEN } else { 0 };
        let shape = Shape { held_len, header_digest: self.header_digest, ..bare };
        if !has_data {
            // PDO and DDGSTF are reserved without data.
            return if plen == header_len { Ok(shape) } else { Err(Violation::PlenInvalid) };
        }
        if self.data_digest != (common.flags & flags::DDGSTF != 0) {
            return Err(Violation::DdgstfInvalid);
        }
        let pdo = u32::from(common.pdo);
        if pdo < header_len || common.pdo > MAX_PDO || !pdo.is_multiple_of(self.alignment) {
            return Err(Violation::PdoInvalid);
        }
        let trailer_len = if self.data_digest { DIGEST_PLEN } else { 0 };
        let data_len = plen.checked_sub(pdo + trailer_len).ok_or(Violation::PlenInvalid)?;
        if data_len == 0 && bare.pdu_type == PduType::CapsuleCmd {
            return Err(Violation::PlenInvalid); // only padding; a data PDU has DATAL to blame
        }
        Ok(Shape { pad: pdo - header_len, data_len, data_digest: self.data_digest, ..shape })
    }

    /// Whether a PDU of this type may come now.
    fn checked_type(&self, byte: u8) -> Result<PduType, Violation> {
        let (first, term_req) = match self.role {
            Role::Controller => (PduType::IcReq, PduType::H2cTermReq),
            Role::Host => (PduType::IcResp, PduType::C2hTermReq),
        };
        let pdu_type = PduType::from_wire(byte);
        match self.state {
            QueueState::Uninitialized => match pdu_type {
                Some(pdu_type) if pdu_type == first => Ok(pdu_type),
                // The answer to an ICReq that the controller rejects.
                Some(PduType::C2hTermReq) if self.role == Role::Host => Ok(PduType::C2hTermReq),
                _ => Err(Violation::NotInitialized),
            },
            QueueState::Answering => match pdu_type {
                Some(pdu_type) if pdu_type == term_req => Ok(pdu_type),
                Some(pdu_type) if pdu_type == first => Err(Violation::AlreadyInitialized),
                _ => Err(Violation::NotInitialized),
            },
            QueueState::Ready => match pdu_type {
                Some(pdu_type) if pdu_type == first => Err(Violation::AlreadyInitialized),
                Some(pdu_type) if pdu_type.is_from_host() == (self.role == Role::Controller) => {
                    Ok(pdu_type)
                }
                _ => Err(Violation::TypeInvalid),
            },
            QueueState::Closed => unreachable!("a closed queue parses nothing"),
        }
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

/// Checks the digest of a whole header, and the length that a data header repeats. Gives the
/// header without its digest.
#[inline]
fn checked_header(shape: Shape, bytes: &[u8]) -> Result<&[u8], FatalError> {
    let header = match bytes.split_last_chunk() {
        Some((header, digest)) if shape.header_digest => {
            if crc32c(header) != u32::from_le_bytes(*digest) {
                return Err(FatalError::in_digest(bytes));
            }
            header
        }
        _ => bytes,
    };
    let datal = match shape.pdu_type {
        PduType::H2cData => parse::<H2cDataPdu>(header).datal.get(),
        PduType::C2hData => parse::<C2hDataPdu>(header).datal.get(),
        _ => return Ok(header),
    };
    let violation = if datal != shape.data_len {
        Violation::PlenInvalid
    } else if datal == 0 {
        Violation::DatalZero
    } else if shape.data_digest && !datal.is_multiple_of(4) {
        // Implementations differ in how they pad such data for the digest.
        Violation::DatalUnaligned
    } else {
        return Ok(header);
    };
    Err(FatalError::in_header(violation, header))
}

/// A header as its struct.
///
/// # Panics
/// When the header is shorter, which its shape rules out.
#[inline]
pub(super) fn parse<T: FromBytes>(header: &[u8]) -> T {
    match T::read_from_prefix(header) {
        Ok((pdu, _)) => pdu,
        Err(_) => unreachable!("a header shorter than its HLEN"),
    }
}

/// Reads a TermReq of either direction, header and data.
pub(super) fn parse_term_req(bytes: &[u8]) -> Result<TermReq, Violation> {
    let pdu: TermReqPdu = parse(bytes);
    let fes = Fes::from_wire(pdu.fes.get()).ok_or(Violation::FesInvalid)?;
    Ok(TermReq { fes, fei: pdu.fei.get(), header: bytes[pdu::TermReqPdu::LEN..].into() })
}
