//! Fatal errors: what a peer did that ends its connection (RFC 7143, 7.8 to 7.10).

use std::fmt;

use crate::pdu::{BHS_LEN, RejectReason};

/// The table of all violations: name, reason of the Reject that is sent before the connection is closed, text.
macro_rules! violations {
    ($( $name:ident = $reject:expr, $text:literal; )*) => {
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

            /// Reason of the Reject that a target sends before it closes.
            #[must_use]
            pub const fn reject(self) -> Option<RejectReason> {
                match self { $( Self::$name => $reject, )* }
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
    // Framing. A header that cannot be believed leaves no boundary to go on from (7.8).
    HeaderDigest = None, "the header digest is wrong";
    AhsTooLong = None, "TotalAHSLength is above 60 bytes";
    DataSegmentTooLong = None, "DataSegmentLength exceeds MaxRecvDataSegmentLength";
    DataDigest = Some(RejectReason::DataDigest), "the data digest is wrong in a PDU that cannot be repeated";

    // At the target.
    NotLogin = None, "the first PDU is not a Login Request";
    NotLoginInLogin = None, "another PDU came before the login was complete";
    LoginAgain = Some(RejectReason::Protocol), "a Login Request came in full feature phase";
    AnswerOverrun = None, "more PDUs wait for an answer than a connection may have";
    AfterLogout = None, "a PDU came after the Logout Request";

    // At the initiator: what a target's PDU says.
    OpcodeInvalid = None, "the opcode is unknown or of the other direction";
    AhsUnexpected = None, "the target sent an additional header segment";
    DataUnexpected = None, "the PDU carries data although its kind has none";
    DataDigestFromTarget = None, "the data digest of a target's PDU is wrong";
    StatSnInvalid = None, "StatSN is not the next one";
    LoginResponseInvalid = None, "the Login Response contradicts its request";
    LoginResponseText = None, "the text of the Login Response cannot be read";
    LoginStage = None, "the Login Response names a stage that was not asked for";
    LoginKey = None, "the target answered a key with a value that the offer rules out";
    LoginTooLong = None, "the login took more than 32 exchanges";
    TargetNotAuthentic = None, "the target did not prove that it knows its secret";
    AuthRefused = None, "the target demands an authentication method that was not offered";
    IttUnknown = None, "the Initiator Task Tag names no outstanding task";
    TaskKind = None, "the PDU does not suit the kind of its task";
    DataInUnexpected = None, "Data-In for a command that reads nothing";
    DataSnInvalid = None, "DataSN or R2TSN is not the next one";
    DataInOffset = None, "Buffer Offset of Data-In is not the next one";
    DataInOutOfRange = None, "Data-In goes beyond the command's data";
    DataInAfterEnd = None, "Data-In after the one with status";
    StatusWithoutFinal = None, "Data-In with S but without F";
    AckRequested = None, "Data-In with A at error recovery level 0";
    R2tUnexpected = None, "R2T for a command that has nothing to send";
    R2tOffset = None, "Buffer Offset of R2T is not the next one";
    R2tLenZero = None, "Desired Data Transfer Length is 0";
    R2tTooLong = None, "Desired Data Transfer Length exceeds MaxBurstLength";
    R2tOutOfRange = None, "R2T goes beyond the command's data";
    R2tTooMany = None, "more R2Ts are outstanding than MaxOutstandingR2T allows";
    R2tBeforeUnsolicited = None, "R2T came before the unsolicited data ended";
    SenseInvalid = None, "the sense length exceeds the data segment";
    TextInvalid = None, "the text of a response cannot be read";
    TextTooLong = None, "the text of a response exceeds its limit";
    Rejected = None, "the target rejected a PDU";
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// A violation with the header to blame. The connection takes no more input after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FatalError {
    violation: Violation,
    /// Allocated once in a connection's life; keeps `Result`s of the I/O path small.
    header: Box<[u8]>,
    /// What is particular to this case: a key, a status.
    detail: Box<str>,
}

impl FatalError {
    /// An error that is not in a received header.
    #[must_use]
    pub fn new(violation: Violation) -> Self {
        Self { violation, header: Box::default(), detail: Box::default() }
    }

    /// An error in `header`, which is the part of it that was received.
    pub(crate) fn in_header(violation: Violation, header: &[u8]) -> Self {
        let header = &header[..header.len().min(BHS_LEN)];
        Self { violation, header: header.into(), detail: Box::default() }
    }

    /// The same error with what is particular to it.
    pub(crate) fn with_detail(self, detail: impl Into<Box<str>>) -> Self {
        Self { detail: detail.into(), ..self }
    }

    /// What the peer did.
    #[must_use]
    pub fn violation(&self) -> Violation {
        self.violation
    }

    /// Copy of the offending header: at most 48 bytes, and as much as was received when the error was found. Empty
    /// when no header is to blame.
    #[must_use]
    pub fn header(&self) -> &[u8] {
        &self.header
    }

    /// What is particular to this case, or nothing.
    #[must_use]
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// Whether the peer's first bytes are a record of TLS: an alert or a handshake's message (RFC 8446, 5.1).
    fn is_tls(&self) -> bool {
        self.violation == Violation::NotLogin && matches!(self.header[..], [21 | 22, 3, ..])
    }
}

impl fmt::Display for FatalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.violation)?;
        if !self.detail.is_empty() {
            write!(f, ": {}", self.detail)?;
        }
        if let Some((first, _)) = self.header.split_first() {
            write!(f, " (opcode {:02x}h", first & crate::pdu::flags::OPCODE)?;
            if let Some(tag) = self.header.get(16..20) {
                write!(f, ", task tag {:02x}{:02x}{:02x}{:02x}h", tag[0], tag[1], tag[2], tag[3])?;
            }
            f.write_str(")")?;
        }
        if self.is_tls() {
            f.write_str("; these bytes are TLS, which iSCSI does not use")?;
        }
        Ok(())
    }
}

impl std::error::Error for FatalError {}
