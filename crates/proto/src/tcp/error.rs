//! Fatal errors: what a peer did wrong, and the status that a TermReq reports (NVMe/TCP 1.0,
//! section 3.5 and figures 33 and 34).

use std::fmt;

use super::pdu::{DIGEST_LEN, MAX_TERM_DATA, PduType, offset};

/// FES: fatal error status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Fes {
    /// Invalid PDU Header Field; FEI is the byte offset of the field.
    InvalidHeaderField = 1,
    /// PDU Sequence Error.
    SequenceError = 2,
    /// Header Digest Error; FEI is the digest that was received.
    HeaderDigestError = 3,
    /// Data Transfer Out of Range.
    DataOutOfRange = 4,
    /// Data Transfer Limit Exceeded from a controller, R2T Limit Exceeded from a host.
    LimitExceeded = 5,
    /// Unsupported Parameter; FEI is the byte offset of the field.
    UnsupportedParameter = 6,
}

impl Fes {
    /// From the wire; reserved values are none.
    #[must_use]
    pub const fn from_wire(word: u16) -> Option<Self> {
        Some(match word {
            1 => Self::InvalidHeaderField,
            2 => Self::SequenceError,
            3 => Self::HeaderDigestError,
            4 => Self::DataOutOfRange,
            5 => Self::LimitExceeded,
            6 => Self::UnsupportedParameter,
            _ => return None,
        })
    }

    /// As on the wire.
    #[must_use]
    pub const fn to_wire(self) -> u16 {
        self as u16
    }
}

/// The table of all violations: name, FES, FEI, text.
macro_rules! violations {
    ($( $name:ident = $fes:ident, $fei:expr, $text:literal; )*) => {
        /// A peer's fault that ends the connection.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Violation {
            $(
                #[doc = concat!("A peer's fault: ", $text, ".")]
                $name,
            )*
        }

        impl Violation {
            /// All of them.
            pub const ALL: &[Self] = &[$( Self::$name, )*];

            /// FES of the TermReq.
            #[must_use]
            pub const fn fes(self) -> Fes {
                match self { $( Self::$name => Fes::$fes, )* }
            }

            /// FEI of the TermReq, where it is not a header digest.
            #[must_use]
            pub const fn fei(self) -> u32 {
                match self { $( Self::$name => $fei, )* }
            }

            /// In words.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self { $( Self::$name => $text, )* }
            }
        }
    };
}

violations! {
    // Any PDU: type and state, then the common header.
    NotInitialized = SequenceError, 0, "the first PDU does not initialize the connection";
    AlreadyInitialized = SequenceError, 0, "the connection is initialized a second time";
    TypeInvalid = InvalidHeaderField, offset::PDU_TYPE, "PDU-Type is unknown or of the other direction";
    HlenInvalid = InvalidHeaderField, offset::HLEN, "HLEN is not that of the PDU type";
    // The specification has no status for a digest flag that contradicts the negotiation. The flag is a
    // header field, so it is reported as one.
    HdgstfInvalid = InvalidHeaderField, offset::FLAGS, "HDGSTF differs from what was negotiated";
    DdgstfInvalid = InvalidHeaderField, offset::FLAGS, "DDGSTF differs from what was negotiated";
    PdoInvalid = InvalidHeaderField, offset::PDO, "PDO is misaligned, within the header, or above 128";
    PlenInvalid = InvalidHeaderField, offset::PLEN, "PLEN contradicts the PDU type, PDO or data length";
    HdgstMismatch = HeaderDigestError, 0, "the header digest is wrong";

    // ICReq and ICResp.
    PfvInvalid = InvalidHeaderField, offset::PFV, "PFV is not 0";
    PdaInvalid = InvalidHeaderField, offset::PDA, "HPDA or CPDA is above 31";
    DgstUnexpected = UnsupportedParameter, offset::DGST, "DGST is not what the host asked for";
    Maxh2cdataInvalid = InvalidHeaderField, offset::MAXH2CDATA, "MAXH2CDATA is below 4096 or no multiple of 4";

    // H2CTermReq and C2HTermReq.
    FesInvalid = InvalidHeaderField, offset::FES, "FES is unknown";

    // CapsuleCmd.
    SglNotInCapsule = UnsupportedParameter, offset::SGL_TYPE, "data follow a command whose SGL is not in-capsule";
    SglOffsetInvalid = UnsupportedParameter, offset::SGL_ADDRESS, "the in-capsule offset is not 0";
    SglLengthMismatch = InvalidHeaderField, offset::PLEN, "the in-capsule SGL length differs from the data in the capsule";
    InCapsuleTooLong = LimitExceeded, 0, "in-capsule data exceed the capsule size";
    // The host overran the submission queue. The specification has no status for this; the capsule is out of
    // sequence, since it had to wait for a completion. The driver, which counts commands, raises it.
    QueueOverrun = SequenceError, 0, "more commands are outstanding than the queue holds";

    // H2CData and C2HData.
    DatalZero = InvalidHeaderField, offset::DATAL, "DATAL is 0";
    DatalUnaligned = InvalidHeaderField, offset::DATAL, "DATAL is no multiple of 4 although data digests are on";

    // H2CData.
    TtagUnknown = SequenceError, offset::TTAG, "TTAG was not given out";
    TtagNotWaiting = InvalidHeaderField, offset::TTAG, "TTAG names a command that awaits no data";
    CccidMismatch = SequenceError, offset::CCCID, "CCCID is not that of the R2T";
    H2cDataoNotNext = DataOutOfRange, 0, "DATAO of H2CData is not the next offset";
    H2cDataOutOfRange = DataOutOfRange, 0, "H2CData goes beyond the R2T";
    H2cDataTooLong = LimitExceeded, 0, "DATAL exceeds MAXH2CDATA";
    // LAST_PDU is a header field that contradicts the transfer.
    H2cLastInvalid = InvalidHeaderField, offset::FLAGS, "LAST_PDU is not exactly on the last H2CData of the R2T";

    // CapsuleResp.
    ResponseCidUnknown = InvalidHeaderField, offset::RESPONSE_CID, "the response names no outstanding command";

    // C2HData and R2T. A command that takes no such PDU is an invalid CCCID, too.
    CccidUnknown = InvalidHeaderField, offset::CCCID, "CCCID names no outstanding command";
    C2hDataUnexpected = InvalidHeaderField, offset::CCCID, "C2HData for a command that reads nothing";
    C2hDataAfterLast = SequenceError, 0, "C2HData after the one with LAST_PDU";
    C2hDataoNotNext = InvalidHeaderField, offset::DATAO, "DATAO of C2HData is not the next offset";
    C2hDataOutOfRange = DataOutOfRange, 0, "C2HData goes beyond the command's data";
    SuccessWithoutLast = InvalidHeaderField, offset::FLAGS, "SUCCESS without LAST_PDU";
    SuccessShort = InvalidHeaderField, offset::FLAGS, "SUCCESS although data are missing";
    R2tUnexpected = InvalidHeaderField, offset::CCCID, "R2T for a command that has nothing to send";
    R2toNotNext = InvalidHeaderField, offset::DATAO, "R2TO is not the next offset";
    R2tlZero = InvalidHeaderField, offset::DATAL, "R2TL is 0";
    R2tlUnaligned = InvalidHeaderField, offset::DATAL, "R2TL is no multiple of 4 although data digests are on";
    R2tOutOfRange = DataOutOfRange, 0, "R2T goes beyond the command's data";
    TooManyR2ts = LimitExceeded, 0, "more R2Ts are outstanding than MAXR2T allows";
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// A violation with the TermReq's contents. The queue takes no more input after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FatalError {
    violation: Violation,
    fei: u32,
    /// Allocated once in a connection's life; keeps `Result`s of the I/O path small.
    header: Box<[u8]>,
}

impl FatalError {
    /// An error that is not in a received header, or that a driver found.
    #[must_use]
    pub fn new(violation: Violation) -> Self {
        Self { violation, fei: violation.fei(), header: Box::default() }
    }

    /// An error in `header`, which is the part of it that was received.
    pub(super) fn in_header(violation: Violation, header: &[u8]) -> Self {
        let header = &header[..header.len().min(MAX_TERM_DATA)];
        Self { violation, fei: violation.fei(), header: header.into() }
    }

    /// A header whose digest, the 4 bytes at its end, is wrong.
    pub(super) fn in_digest(header_and_digest: &[u8]) -> Self {
        let (header, digest) = match header_and_digest.split_last_chunk() {
            Some((header, digest)) => (header, u32::from_le_bytes(*digest)),
            None => unreachable!("a header with digest has more than {DIGEST_LEN} bytes"),
        };
        Self { fei: digest, ..Self::in_header(Violation::HdgstMismatch, header) }
    }

    /// What the peer did.
    #[must_use]
    pub fn violation(&self) -> Violation {
        self.violation
    }

    /// FES of the TermReq.
    #[must_use]
    pub fn fes(&self) -> Fes {
        self.violation.fes()
    }

    /// FEI of the TermReq: the offset of the bad field, or the header digest received, or 0.
    #[must_use]
    pub fn fei(&self) -> u32 {
        self.fei
    }

    /// Copy of the offending header, at most 128 bytes: as much as was received when the error
    /// was found. Empty when no header is to blame.
    #[must_use]
    pub fn header(&self) -> &[u8] {
        &self.header
    }

    /// What a peer has sent whose first bytes are neither a PDU nor TLS, for people: as text if there is any, of which only
    /// printable ASCII is shown, or else in hexadecimal; at most 16 bytes.
    #[must_use]
    pub fn other_protocol(&self) -> Option<String> {
        const SHOWN: usize = 16;
        let first = *self.header.first()?;
        if self.violation != Violation::NotInitialized
            || self.is_tls()
            || PduType::from_wire(first).is_some()
        {
            return None;
        }
        let shown = &self.header[..self.header.len().min(SHOWN)];
        let is_text = |byte: &&u8| byte.is_ascii_graphic() || **byte == b' ';
        let text: String = shown.iter().take_while(is_text).copied().map(char::from).collect();
        if text.len() < 3 {
            let digits: Vec<String> = shown.iter().map(|byte| format!("{byte:02x}")).collect();
            return Some(format!("the bytes {}", digits.join(" ")));
        }
        Some(format!("`{text}`"))
    }

    /// Whether the peer's first bytes are a record of TLS: an alert or a message of a handshake (RFC 8446, 5.1).
    fn is_tls(&self) -> bool {
        self.violation == Violation::NotInitialized && matches!(self.header[..], [21 | 22, 3, ..])
    }
}

impl fmt::Display for FatalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (FES {:02x}h, FEI {:x}h", self.violation, self.fes().to_wire(), self.fei)?;
        if let Some((pdu_type, _)) = self.header.split_first() {
            write!(f, ", PDU type {pdu_type:02x}h")?;
        }
        f.write_str(")")?;
        if self.is_tls() {
            f.write_str("; these bytes are TLS, which this end does not use: use it at both ends or at neither")?;
        }
        Ok(())
    }
}

impl std::error::Error for FatalError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_no_pdu_and_no_tls_is_another_protocol() {
        let first =
            |bytes: &[u8]| FatalError::in_header(Violation::NotInitialized, bytes).other_protocol();
        assert_eq!(first(b"HTTP/1.1").unwrap(), "`HTTP/1.1`");
        assert_eq!(first(b"SSH-2.0-\r\n").unwrap(), "`SSH-2.0-`");
        assert_eq!(first(&[b'x'; 40]).unwrap().len(), 18);
        assert_eq!(first(b"J\0\0\0\n8.0").unwrap(), "the bytes 4a 00 00 00 0a 38 2e 30");
        // A terminal is never given what would move its cursor.
        assert_eq!(first(b"\x1b[2J`rm`").unwrap(), "the bytes 1b 5b 32 4a 60 72 6d 60");
        for pdu_or_tls in [&[5, 0, 24, 0, 24, 0, 0, 0][..], &[22, 3, 3, 0, 1, 1, 1, 1], &[]] {
            assert_eq!(first(pdu_or_tls), None, "{pdu_or_tls:?}");
        }
        let later = FatalError::in_header(Violation::HlenInvalid, b"HTTP/1.1");
        assert_eq!(later.other_protocol(), None);
    }
}
