//! Encoding of PDU headers with digest and padding, for both ends.

use raceline_crc32c::crc32c;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32};

use super::error::FatalError;
use super::pdu::{self, CommonHeader, DIGEST_PLEN, PduType, TermReqPdu, alignment, flags};

/// How the PDUs that one end sends are framed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Framing {
    /// Header digests are on.
    pub(super) header_digest: bool,
    /// Data digests are on.
    pub(super) data_digest: bool,
    /// Where the data of a command capsule begin.
    capsule_data: u32,
    /// The same of an H2CData or C2HData.
    data: u32,
}

impl Framing {
    /// Before the connection is initialized.
    pub(super) const INITIAL: Self = Self::new(false, false, 0);

    /// `pda`: HPDA or CPDA, whichever the peer asked for.
    pub(super) const fn new(header_digest: bool, data_digest: bool, pda: u8) -> Self {
        let framing = Self { header_digest, data_digest, capsule_data: 0, data: 0 };
        // The first multiple of the peer's alignment after the header. Above 128 only where no
        // multiple of the alignment lies between the end of a command capsule's header and 128
        // (CPDA 16, or 17 with header digests); there it is 136 or 144.
        let capsule = framing.header_len(PduType::CapsuleCmd).next_multiple_of(alignment(pda));
        let data = framing.header_len(PduType::C2hData).next_multiple_of(alignment(pda));
        Self { capsule_data: capsule, data, ..framing }
    }

    /// Bytes of a header with its digest.
    const fn header_len(self, pdu_type: PduType) -> u32 {
        pdu_type.hlen() as u32 + if self.header_digest { DIGEST_PLEN } else { 0 }
    }

    /// Where the data begin in a PDU of a type that may carry data.
    #[inline]
    pub(super) fn data_offset(self, pdu_type: PduType) -> u32 {
        if matches!(pdu_type, PduType::CapsuleCmd) { self.capsule_data } else { self.data }
    }

    /// Bytes of a PDU that are not data, when it carries data.
    pub(super) fn overhead(self, pdu_type: PduType) -> u32 {
        self.data_offset(pdu_type) + self.data_digest_len()
    }

    #[inline]
    fn data_digest_len(self) -> u32 {
        if self.data_digest { DIGEST_PLEN } else { 0 }
    }

    /// The common header of a PDU that may have a digest, with `data_len` bytes of data.
    ///
    /// # Panics
    /// When the PDU would not fit into 4 GiB: commands are far smaller.
    #[inline]
    pub(super) fn common(self, pdu_type: PduType, flags: u8, data_len: u32) -> CommonHeader {
        let mut flags = flags;
        if self.header_digest {
            flags |= flags::HDGSTF;
        }
        let (pdo, plen) = if data_len == 0 {
            (0, self.header_len(pdu_type))
        } else {
            if self.data_digest {
                flags |= flags::DDGSTF;
            }
            let pdo = self.data_offset(pdu_type);
            (pdo, (pdo + self.data_digest_len()).checked_add(data_len).expect("a PDU below 4 GiB"))
        };
        let [pdo, ..] = pdo.to_le_bytes(); // at most 144, see data_offset
        CommonHeader {
            pdu_type: pdu_type.to_wire(),
            flags,
            hlen: pdu_type.hlen(),
            pdo,
            plen: plen.into(),
        }
    }

    /// Appends a header made with [`Framing::common`], its digest, and padding up to the data. Inline:
    /// where the length of the header is known, copying the header takes a few instructions and no call.
    #[inline(always)]
    pub(super) fn put(self, header: &[u8], common: &CommonHeader, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(header);
        if self.header_digest {
            out.extend_from_slice(&crc32c(header).to_le_bytes());
        }
        let pdo = usize::from(common.pdo);
        if pdo > out.len() - start {
            out.resize(start + pdo, 0);
        }
    }
}

/// The common header of an ICReq or ICResp.
pub(super) fn ic_common(pdu_type: PduType) -> CommonHeader {
    CommonHeader {
        pdu_type: pdu_type.to_wire(),
        flags: 0,
        hlen: pdu_type.hlen(),
        pdo: 0,
        plen: u32::from(pdu_type.hlen()).into(),
    }
}

/// Appends a TermReq. It must carry a piece of header; an error without one sends a zeroed common
/// header.
pub(super) fn put_term_req(pdu_type: PduType, error: &FatalError, out: &mut Vec<u8>) {
    let header = match error.header() {
        [] => &[0; CommonHeader::LEN],
        header => header,
    };
    let plen = u32::try_from(TermReqPdu::LEN + header.len()).expect("at most 152");
    let pdu = TermReqPdu {
        common: CommonHeader { plen: U32::new(plen), ..ic_common(pdu_type) },
        fes: U16::new(error.fes().to_wire()),
        fei: U32::new(error.fei()),
        reserved: [0; 10],
    };
    debug_assert!(header.len() <= pdu::MAX_TERM_DATA);
    out.extend_from_slice(pdu.as_bytes());
    out.extend_from_slice(header);
}
