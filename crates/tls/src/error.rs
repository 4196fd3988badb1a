//! Why a TLS connection ends, in words for the log of whoever runs this end, and the alert for the peer.

use std::io;

/// Why a TLS connection cannot be made, or ends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsError {
    /// The first bytes are those of NVMe/TCP.
    #[error(
        "the peer speaks NVMe/TCP without TLS: its first byte is {0:02x}h, and TLS begins with 16h. Both ends have to use \
         TLS, or neither"
    )]
    Plain(u8),
    /// The first bytes are neither those of TLS nor those of NVMe/TCP.
    #[error("the peer does not speak TLS: its first byte is {0:02x}h, and TLS begins with 16h")]
    NotTls(u8),
    /// The host offered keys, and none of them is known.
    #[error("no key is known for what the host offered: {0}")]
    UnknownIdentity(String),
    /// The host offered no key.
    #[error("the host offered no pre-shared key, and there is no other way to authenticate")]
    NoIdentity,
    /// A handshake without the key that was offered, or with another suite than that of the key.
    #[error("the handshake ended without the pre-shared key: {0}")]
    NotThePsk(String),
    /// The library refused the handshake.
    #[error("the TLS handshake failed: {0}")]
    Handshake(String),
    /// The peer has ended the handshake with an alert.
    #[error("the peer refused the TLS handshake with alert {name} ({0}){hint}", name = alert_name(*.0), hint = alert_hint(*.0))]
    Refused(u8),
    /// The peer has ended the connection with an alert, after the handshake.
    #[error("the peer ended TLS with alert {name} ({0})", name = alert_name(*.0))]
    Alert(u8),
    /// The connection ended without close_notify: somebody may have cut it off.
    #[error("the connection ended without the end of TLS (close_notify): it may have been cut off")]
    CutOff,
    /// The connection ended in the middle of the handshake.
    #[error("the peer closed the connection during the TLS handshake{when}", when = if *.0 { "" } else { ", before its first byte" })]
    CutOffEarly(bool),
    /// A record that the key does not open: it was changed on the way, or made with another key.
    #[error("a TLS record is not authentic: it was changed on its way, or the peer has other keys")]
    NotAuthentic,
    /// The header of a record announces more than TLS allows.
    #[error("a TLS record of {0} bytes; at most 16640 are allowed")]
    TooLong(usize),
    /// A record of a type that has no place here.
    #[error("a TLS record of type {0}, which is not expected here")]
    UnexpectedRecord(u8),
    /// A handshake message that has no place after the handshake.
    #[error("a TLS handshake message of type {0}, which is not expected here")]
    UnexpectedMessage(u8),
    /// A message or an alert that cannot be read.
    #[error("a malformed TLS {0}")]
    Malformed(&'static str),
    /// The kernel does not take the records over, and has to.
    #[error(
        "the kernel does not make the records of TLS ({0}): load its module (modprobe tls), or leave out --ktls on"
    )]
    NoKernel(String),
    /// The kernel makes the records and cannot go on with another key.
    #[error(
        "the kernel does not change keys of TLS (Linux 6.14 and later do), and {0}: connect again, or use --ktls off"
    )]
    KernelKey(&'static str),
    /// More messages without data than any peer needs.
    #[error("the peer sends TLS messages and no data")]
    Flood,
    /// The key of this end was taken away.
    #[error(
        "the pre-shared key of this host was removed, and nothing is sent without it: give the host a key again"
    )]
    KeyWithdrawn,
}

/// What [`TlsError::reason`] can be.
pub(crate) const REASONS: [&str; 11] = [
    "plain",
    "not_tls",
    "no_key",
    "wrong_key",
    "handshake",
    "refused_by_peer",
    "cut_off",
    "not_authentic",
    "malformed",
    "kernel",
    "key_withdrawn",
];

impl TlsError {
    /// One word of a few, for counts.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Plain(_) => "plain",
            Self::NotTls(_) => "not_tls",
            Self::UnknownIdentity(_) | Self::NoIdentity => "no_key",
            Self::NotThePsk(_) => "wrong_key",
            Self::Handshake(_) => "handshake",
            Self::Refused(_) | Self::Alert(_) => "refused_by_peer",
            Self::CutOff | Self::CutOffEarly(_) => "cut_off",
            Self::NotAuthentic => "not_authentic",
            Self::TooLong(_)
            | Self::UnexpectedRecord(_)
            | Self::UnexpectedMessage(_)
            | Self::Malformed(_)
            | Self::Flood => "malformed",
            Self::NoKernel(_) | Self::KernelKey(_) => "kernel",
            Self::KeyWithdrawn => "key_withdrawn",
        }
    }

    /// The alert for the peer (RFC 8446, 6); `None`: the peer has ended the connection itself.
    #[must_use]
    pub fn alert(&self) -> Option<u8> {
        match self {
            Self::Plain(_) | Self::NotTls(_) | Self::UnexpectedRecord(_) => Some(10),
            Self::UnexpectedMessage(_) | Self::Flood => Some(10),
            Self::NotAuthentic => Some(20),
            Self::TooLong(_) => Some(22),
            Self::Handshake(_) | Self::NotThePsk(_) => Some(40),
            Self::NoKernel(_) | Self::KernelKey(_) => Some(80),
            Self::Malformed(_) => Some(50),
            Self::NoIdentity => Some(109),
            Self::UnknownIdentity(_) => Some(115),
            Self::Refused(_) | Self::Alert(_) | Self::CutOff | Self::CutOffEarly(_) => None,
            Self::KeyWithdrawn => None,
        }
    }
}

impl From<TlsError> for io::Error {
    fn from(error: TlsError) -> io::Error {
        let kind = match error {
            TlsError::CutOff | TlsError::CutOffEarly(_) => io::ErrorKind::UnexpectedEof,
            TlsError::Refused(_) | TlsError::Alert(_) => io::ErrorKind::ConnectionAborted,
            TlsError::KeyWithdrawn => io::ErrorKind::PermissionDenied,
            _ => io::ErrorKind::InvalidData,
        };
        io::Error::new(kind, error)
    }
}

/// The name of an alert (RFC 8446, 6).
fn alert_name(description: u8) -> &'static str {
    match description {
        0 => "close_notify",
        10 => "unexpected_message",
        20 => "bad_record_mac",
        22 => "record_overflow",
        40 => "handshake_failure",
        47 => "illegal_parameter",
        48 => "unknown_ca",
        50 => "decode_error",
        51 => "decrypt_error",
        70 => "protocol_version",
        71 => "insufficient_security",
        80 => "internal_error",
        86 => "inappropriate_fallback",
        90 => "user_canceled",
        109 => "missing_extension",
        110 => "unsupported_extension",
        115 => "unknown_psk_identity",
        116 => "certificate_required",
        120 => "no_application_protocol",
        _ => "unknown",
    }
}

/// What most often stands behind an alert during the handshake. OpenSSL, and so SPDK, says internal_error where it does not
/// know an identity, and illegal_parameter where it has another key.
fn alert_hint(description: u8) -> &'static str {
    match description {
        115 | 80 | 40 | 109 => {
            ": it has no key for this host and this subsystem, or knows the key under an identity of another version. Give \
             both ends the same key; for a target that knows version 0 only, as SPDK's does, add --tls-identity 0"
        }
        51 | 47 | 20 => ": it has another key for this identity. Give both ends the same key",
        70 => ": it does not speak TLS 1.3",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_what_to_do() {
        let text = TlsError::Refused(115).to_string();
        assert!(text.contains("unknown_psk_identity (115)") && text.contains("no key"), "{text}");
        let text = TlsError::Refused(80).to_string();
        assert!(
            text.contains("internal_error (80)") && text.contains("--tls-identity 0"),
            "{text}"
        );
        assert!(TlsError::Refused(47).to_string().contains("another key"));
        // After the handshake, it is not for want of a key.
        assert!(TlsError::Alert(80).to_string().ends_with("internal_error (80)"));
        let text = TlsError::Plain(0).to_string();
        assert!(text.contains("without TLS") && text.contains("00h"), "{text}");
        let error = io::Error::from(TlsError::CutOff);
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        assert!(error.to_string().contains("close_notify"));
    }
}
