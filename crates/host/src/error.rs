//! What can go wrong for a host, naming the culprit.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use raceline_auth::AuthenticationError;
use raceline_proto::host::{AnaError, BringUpError, DiscoveryError, ScanError};
use raceline_proto::nvme::Status;
use raceline_rdma::Loss;

use crate::summary::CommandSummary;

/// Status code type of path related statuses.
const SCT_PATH: u8 = 3;

/// Why a command failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// The controller completed it with an error.
    #[error("{0}")]
    Status(Status),
    /// The connection was lost after the command may have been sent: it may or may not have had
    /// its effect, now or later. It is not sent again; the program decides.
    #[error("the connection was lost; whether the command was executed is unknown")]
    UnknownFate,
    /// The connection was lost before any byte of the command was sent, and the command does not wait
    /// for another.
    #[error("the connection was lost before the command was sent")]
    NotSent,
    /// The connection was lost; the command had no effect on the media, and is not sent again.
    #[error("the connection was lost")]
    Disconnected,
    /// The data digest of data from the controller was wrong; the connection survives.
    #[error("wrong data digest ({})", Status::TRANSIENT_TRANSPORT_ERROR)]
    Digest,
    /// The command was not completed in time; the connection was given up.
    #[error("no completion in time")]
    Timeout,
    /// No path leads to the namespace, and none is awaited any more.
    #[error("no path to the namespace is left, and none has come back in time")]
    NoPath,
}

impl CommandError {
    /// The NVMe status that says the same.
    #[must_use]
    pub fn status(self) -> Status {
        match self {
            Self::Status(status) => status,
            Self::UnknownFate | Self::NotSent | Self::Disconnected | Self::NoPath => {
                Status::HOST_PATH_ERROR
            }
            Self::Digest => Status::TRANSIENT_TRANSPORT_ERROR,
            Self::Timeout => Status::HOST_ABORTED,
        }
    }

    /// Whether the controller says that the path is the matter, and not the command (SCT 3h; Base 2.0, 3.3.3.2.1):
    /// another path may do it.
    #[inline]
    pub(crate) fn is_of_path(self) -> bool {
        matches!(self, Self::Status(status) if status.sct() == SCT_PATH && !status.is_dnr())
    }

    /// Whether data were spoiled between host and controller, so that the command had no effect
    /// and can be sent again.
    pub(crate) fn is_spoiled_data(self) -> bool {
        match self {
            Self::Digest => true,
            Self::Status(status) => {
                status.same_code(Status::TRANSIENT_TRANSPORT_ERROR) && !status.is_dnr()
            }
            _ => false,
        }
    }
}

/// A failed command: what it was, and why it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{summary}: {error}")]
pub struct CommandFailure {
    /// What it was about.
    pub summary: CommandSummary,
    /// Why it failed.
    pub error: CommandError,
}

/// Why a queue does not take a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RejectedReason {
    /// As many commands as the queue has room for are outstanding.
    #[error("the queue is full")]
    Full,
    /// The queue is closed, or its controller was given up.
    #[error("the queue is closed")]
    Closed,
    /// The data do not match what the command needs: direction, or a length over 4 GiB, or not
    /// whole double words.
    #[error("the buffer does not suit the command")]
    BadData,
    /// The map has fewer queues than there are cores, and this core's lives on another.
    #[error("the queue for such commands lives on another core: ask for one per core")]
    Elsewhere,
}

/// Which answer of the peer is awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The TCP connection.
    Tcp,
    /// The RDMA connection.
    Rdma,
    /// ICResp.
    IcResp,
    /// The completion of Connect.
    Connect,
    /// The messages of the authentication.
    Authentication,
}

impl std::fmt::Display for Phase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Tcp => "TCP connection",
            Self::Rdma => "RDMA connection",
            Self::IcResp => "initialize connection response",
            Self::Connect => "answer to Connect",
            Self::Authentication => "end of the authentication",
        })
    }
}

/// What to do about a connection that could not be made.
fn tcp_advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            "; nothing listens there: check the port, and that the target runs"
        }
        io::ErrorKind::TimedOut
        | io::ErrorKind::HostUnreachable
        | io::ErrorKind::NetworkUnreachable => "; check the address and the way to it",
        _ => "",
    }
}

/// Why a queue or a controller is lost.
#[derive(Clone, Debug, thiserror::Error)]
pub enum HostError {
    /// The TCP connection could not be made.
    #[error("cannot connect to {0}: {1}{advice}", advice = tcp_advice(.1))]
    Tcp(SocketAddr, Arc<io::Error>),
    /// The RDMA connection could not be made.
    #[error("cannot connect to {0} over RDMA: {1}")]
    Rdma(SocketAddr, String),
    /// The RDMA connection has ended.
    #[error("the RDMA connection to {0} has ended: {1}")]
    RdmaLost(SocketAddr, Loss),
    /// The connection broke.
    #[error("the connection to {0} broke: {1}")]
    Broken(SocketAddr, Arc<io::Error>),
    /// The peer closed the connection.
    #[error("{0} closed the connection")]
    ClosedByPeer(SocketAddr),
    /// The peer closed the connection instead of answering to ICReq.
    #[error(
        "{0} closed the connection before its first answer: it may take connections over TLS only (--tls-psk, in RPC \
         psk), or have too many of them"
    )]
    ClosedEarly(SocketAddr),
    /// The peer did not answer in time.
    #[error("no {1} from {0} in time")]
    NoAnswer(SocketAddr, Phase),
    /// The controller refused Connect.
    #[error("{address} refused Connect: {status}{}", parameter(*.address, *.status, *.offset, *.in_data))]
    ConnectRefused {
        /// Who.
        address: SocketAddr,
        /// Why.
        status: Status,
        /// IPO: byte offset of the parameter that it did not like.
        offset: u16,
        /// IATTR: the offset is into the data, not the command.
        in_data: bool,
    },
    /// An I/O queue is in use that the controller did not grant this time: a later association may
    /// have fewer than the one before.
    #[error("{address} grants {granted} I/O queues, and queue {qid} is in use")]
    QueueNotGranted {
        /// Who.
        address: SocketAddr,
        /// The queue.
        qid: u16,
        /// How many were granted.
        granted: u16,
    },
    /// The controller asks for authentication.
    #[error(
        "{0} asks for an authentication that this host has no secret for: give it the secret of its host NQN \
         (--dhchap-secret, in RPC dhchap_key)"
    )]
    AuthenticationRequired(SocketAddr),
    /// The controller asks for an authentication that makes a key for TLS.
    #[error(
        "{0} asks for TLS with a key that an authentication makes: have this host do it (--concat, with --dhchap-secret and \
         --dhchap-ctrl-secret; in RPC dhchap_key and dhchap_ctrlr_key), or give it a key (--tls-psk, in RPC psk)"
    )]
    SecureChannelRequired(SocketAddr),
    /// The secret of this host was taken away.
    #[error("the secret for {0} was taken away: set another one")]
    CredentialsWithdrawn(SocketAddr),
    /// The authentication failed.
    #[error("cannot authenticate with {0}: {1}")]
    Authentication(SocketAddr, AuthenticationError),
    /// The controller refused a command of the authentication.
    #[error(
        "cannot authenticate with {0}: it refused the command ({1}). Its subsystem may have no key for this host NQN"
    )]
    AuthenticationBroken(SocketAddr, Status),
    /// The peer's first bytes are of another protocol than NVMe/TCP and TLS: these, for people.
    #[error(
        "what answers at {0} speaks no NVMe/TCP (it sent {1}): check the port (--trsvcid, in RPC trsvcid)"
    )]
    OtherProtocol(SocketAddr, String),
    /// The peer broke the protocol.
    #[error("{0} broke the protocol: {1}")]
    Protocol(SocketAddr, String),
    /// The peer terminated the connection with C2HTermReq.
    #[error("{0} terminated the connection: {1}")]
    Terminated(SocketAddr, String),
    /// A command was not completed in time.
    #[error("{0} did not complete in time: {1}")]
    CommandTimeout(SocketAddr, CommandSummary),
    /// Keep Alive was not answered for a whole KATO.
    #[error("{0} did not answer Keep Alive")]
    KeepAliveExpired(SocketAddr),
    /// The controller could not be brought up.
    #[error("cannot bring up the controller at {0}: {1}")]
    BringUp(SocketAddr, BringUpError),
    /// The ANA log could not be read, or contradicts itself.
    #[error("cannot use the ANA log of {0}: {1}")]
    Ana(SocketAddr, AnaError),
    /// A path does not lead to what the other paths lead to.
    #[error("{0} is no path to the same namespaces: {1}")]
    OtherNamespaces(SocketAddr, String),
    /// All paths are gone.
    #[error("all {count} paths were given up, the last because {last}")]
    NoPath {
        /// How many there were.
        count: usize,
        /// Why the last one was given up.
        last: Box<HostError>,
    },
    /// The namespaces could not be read.
    #[error("cannot read the namespaces: {0}")]
    Scan(#[from] ScanError),
    /// The discovery log could not be read.
    #[error("cannot read the discovery log: {0}")]
    Discovery(#[from] DiscoveryError),
    /// A command failed.
    #[error("{0}")]
    Command(#[from] CommandFailure),
    /// The program wants a new association.
    #[error("reset")]
    Reset,
    /// The queue was closed by this program.
    #[error("closed")]
    Closed,
    /// What the program asked for makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// The reactor could not be started.
    #[error("cannot start a reactor: {0}")]
    Reactor(Arc<io::Error>),
}

impl HostError {
    /// Why a connection could not be made. From a named source address, some errors are about that address.
    pub(crate) fn tcp(address: SocketAddr, source: Option<IpAddr>, error: io::Error) -> Self {
        let no_way = [
            io::ErrorKind::InvalidInput,
            io::ErrorKind::NetworkUnreachable,
            io::ErrorKind::AddrNotAvailable,
        ];
        // An error that is not the kernel's says all already.
        let is_no_way = error.raw_os_error().is_some() && no_way.contains(&error.kind());
        let error = match source {
            Some(source) if is_no_way => {
                let text = format!("{error}: there is no way from the source address {source}");
                io::Error::new(error.kind(), text)
            }
            _ => error,
        };
        Self::Tcp(address, Arc::new(error))
    }

    /// Whether no TCP connection came about: it was refused, or nobody answered in time. Another port of that address may have
    /// somebody who listens.
    #[must_use]
    pub fn is_no_connection(&self) -> bool {
        matches!(self, Self::Tcp(..) | Self::NoAnswer(_, Phase::Tcp))
    }

    /// Whether it says that a connection was never good for commands.
    pub(crate) fn is_of_connecting(&self) -> bool {
        matches!(
            self,
            Self::Tcp(..)
                | Self::Rdma(..)
                | Self::NoAnswer(..)
                | Self::ConnectRefused { .. }
                | Self::QueueNotGranted { .. }
                | Self::AuthenticationRequired(_)
                | Self::SecureChannelRequired(_)
                | Self::CredentialsWithdrawn(_)
                | Self::Authentication(..)
                | Self::AuthenticationBroken(..)
        )
    }

    /// Whether trying again is pointless: the controller said so (DNR), or it is not one that
    /// this host can use.
    #[must_use]
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::ConnectRefused { status, .. } => status.is_dnr(),
            Self::BringUp(_, error) => error.is_permanent(),
            Self::AuthenticationRequired(_)
            | Self::SecureChannelRequired(_)
            | Self::Authentication(..)
            | Self::Closed
            | Self::Invalid(_)
            | Self::OtherNamespaces(..)
            | Self::NoPath { .. }
            | Self::Reactor(_) => true,
            _ => false,
        }
    }
}

/// The names of the parameters that controllers do not like in Connect (Fabrics 1.1, 3.3), and what to do. What to give is named
/// as options of the command line and as parameters of RPC: both show this text.
fn parameter(address: SocketAddr, status: Status, offset: u16, in_data: bool) -> String {
    let name = match (in_data, offset) {
        (true, 0) => " (host identifier)",
        (true, 16) => " (controller identifier)",
        (true, 256) if status.same_code(Status::CONNECT_INVALID_PARAMETERS) => {
            let (ip, port) = (address.ip(), address.port());
            let scope = match address {
                SocketAddr::V6(v6) if v6.scope_id() != 0 => format!("%{}", v6.scope_id()),
                _ => String::new(),
            };
            return format!(
                " (subsystem NQN): there is no such subsystem for this host: `raceline discover -a {ip}{scope} -s {port}` lists the \
                 names (with the same -t, -q and --dhchap-secret)"
            );
        }
        (true, 256) => " (subsystem NQN)",
        (true, 512) => {
            " (host NQN): this host may not be admitted, or only over TLS (--tls-psk, in RPC psk) or with a secret \
             (--dhchap-secret, in RPC dhchap_key)"
        }
        (false, 42) => " (queue identifier)",
        (false, 44) => " (queue size)",
        (false, 46) => " (connect attributes)",
        _ => "",
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: Status, offset: u16) -> String {
        let address = "[::1]:4421".parse().unwrap();
        HostError::ConnectRefused { address, status, offset, in_data: true }.to_string()
    }

    #[test]
    fn who_is_refused_learns_what_to_do_by_the_command_line_and_by_rpc() {
        let unknown = refused(Status::CONNECT_INVALID_PARAMETERS.dnr(), 256);
        let end = "there is no such subsystem for this host: `raceline discover -a ::1 -s 4421` lists the names";
        assert!(unknown.contains(end), "{unknown}");
        let address = "[fe80::1%3]:4421".parse().unwrap();
        let local = HostError::ConnectRefused {
            address,
            status: Status::CONNECT_INVALID_PARAMETERS,
            offset: 256,
            in_data: true,
        };
        assert!(local.to_string().contains("-a fe80::1%3 -s 4421"), "{local}");
        // A controller that says otherwise is not one that has no such subsystem.
        assert!(refused(Status::CONNECT_INVALID_HOST, 256).ends_with("(subsystem NQN)"));
        let address = "192.0.2.1:4420".parse().unwrap();
        for (text, words) in [
            (
                refused(Status::CONNECT_INVALID_HOST, 512),
                ["--tls-psk, in RPC psk", "--dhchap-secret, in RPC dhchap_key"],
            ),
            (
                HostError::AuthenticationRequired(address).to_string(),
                ["--dhchap-secret, in RPC dhchap_key"; 2],
            ),
            (HostError::ClosedEarly(address).to_string(), ["--tls-psk, in RPC psk"; 2]),
            (
                HostError::SecureChannelRequired(address).to_string(),
                ["in RPC dhchap_key", "in RPC psk"],
            ),
        ] {
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
        }
    }

    #[test]
    fn another_protocol_is_named_as_such() {
        let address = "127.0.0.1:80".parse().unwrap();
        let text = HostError::OtherProtocol(address, "`HTTP/1.1`".to_owned()).to_string();
        let wanted = "what answers at 127.0.0.1:80 speaks no NVMe/TCP (it sent `HTTP/1.1`): check the port (--trsvcid, in RPC trsvcid)";
        assert_eq!(text, wanted);
    }
}
