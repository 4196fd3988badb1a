//! Why there is no session.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use raceline_iscsi::pdu::LoginStatus;

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginPhase {
    /// TCP.
    Tcp,
    /// The login.
    Login,
}

impl fmt::Display for LoginPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "the request for a connection",
            Self::Login => "the login",
        })
    }
}

/// Why a session could not be made, or ended.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SessionError {
    /// TCP does not connect.
    #[error("cannot connect to {0}: {1}; is an iSCSI target listening there?")]
    Connect(SocketAddr, Arc<io::Error>),
    /// No answer in time.
    #[error("{0} does not answer {1} within {2:?}")]
    NoAnswer(SocketAddr, LoginPhase, Duration),
    /// The target refuses the login.
    #[error("{address} refuses the login: {status}{}", advice(*.status))]
    Refused {
        /// The portal.
        address: SocketAddr,
        /// Why.
        status: LoginStatus,
    },
    /// The target redirects logins to where they cannot go.
    #[error(
        "{0} redirects the login to {1:?}, which is no address of a target: connect to that target by its address"
    )]
    Redirected(SocketAddr, String),
    /// The connection has ended.
    #[error("{address} closed the connection{}", if *.in_login { " during the login: is it an iSCSI target?" } else { "" })]
    ClosedByPeer {
        /// The portal.
        address: SocketAddr,
        /// The login was not complete.
        in_login: bool,
    },
    /// The connection has broken.
    #[error("the connection to {0} broke: {1}")]
    Broken(SocketAddr, Arc<io::Error>),
    /// The target has violated the protocol.
    #[error("{0} violates the protocol: {1}")]
    Protocol(SocketAddr, String),
    /// Data have come with a wrong digest.
    #[error("data from {0} have a wrong digest: the network, or a device in it, changes data")]
    DataDigest(SocketAddr),
    /// A command has taken too long, and the target did not end it.
    #[error("{0} does not answer a command (opcode {1:02x}h) within {2:?}, and does not end it")]
    TaskTimeout(SocketAddr, u8, Duration),
    /// No answer to a ping.
    #[error("{0} does not answer a ping within {1:?}")]
    NoPong(SocketAddr, Duration),
    /// The target has asked for the end of the session.
    #[error("{0} asks for the end of the session: {1}")]
    Asked(SocketAddr, &'static str),
    /// There are no random numbers for CHAP.
    #[error("the system gives no random numbers, which CHAP needs")]
    NoRandom,
    /// The program has closed it.
    #[error("the session is closed")]
    Closed,
    /// The logical unit, or what was asked of it, is not as it has to be.
    #[error("{0}")]
    Invalid(String),
    /// A command that finds out about the logical unit has failed.
    #[error("{0}: {1}")]
    Task(&'static str, crate::task::TaskError),
}

/// What a person can do about a refusal.
fn advice(status: LoginStatus) -> &'static str {
    match status {
        LoginStatus::AUTHENTICATION_FAILED => {
            ": give the user and the secret that the target knows (CHAP)"
        }
        LoginStatus::NOT_AUTHORIZED => ": let the name of this initiator in at the target",
        LoginStatus::NOT_FOUND => ": ask the target for its names (raceline discover --iscsi)",
        _ => "",
    }
}

impl SessionError {
    /// Whether the target was reached and says no, so that asking again changes nothing.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused { status, .. } if status.class() == 2)
    }
}
