//! Work requests, completions, events of the connection manager, and the trait of those who carry them out.

use std::io;
use std::net::SocketAddr;

use raceline_proto::rdma::WorkStatus;

use crate::foreign::Foreign;

/// Names a connection of a provider: an identifier of the connection manager, later with a queue pair. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u32);

impl ConnectionId {
    /// A connection that is no more, and whose name is not known any longer.
    pub const NOBODY: Self = Self(u32::MAX);
}

/// Names a protection domain of a provider. Never used twice.
///
/// A queue pair and the requests of its peer reach the memory that is registered in the pair's domain, and no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DomainId(pub u32);

impl DomainId {
    /// The domain that each provider has for as long as it lives. Shared receives and memory of others are in it.
    pub const OWN: Self = Self(0);
}

/// What a registration allows besides local reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Receives and RDMA READs of this end may write it.
    pub local_write: bool,
    /// The peer may read it.
    pub remote_read: bool,
    /// The peer may write it.
    pub remote_write: bool,
}

impl Access {
    /// For data that only this end touches.
    pub const LOCAL: Self = Self { local_write: true, remote_read: false, remote_write: false };
    /// For a host's data: the controller moves them both ways.
    pub const HOST_DATA: Self = Self { local_write: true, remote_read: true, remote_write: true };
}

/// Registered memory that the provider has allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Region {
    /// For work requests.
    pub address: u64,
    /// Bytes.
    pub len: u32,
    /// Key for local use.
    pub lkey: u32,
    /// Key for the peer.
    pub rkey: u32,
}

impl Region {
    /// A part of it.
    ///
    /// # Panics
    /// When it is no part: that is a bug of the caller.
    #[must_use]
    pub fn slice(&self, offset: u32, len: u32) -> Slice {
        let end = offset.checked_add(len);
        assert!(end.is_some_and(|end| end <= self.len), "{offset} + {len} of {}", self.len);
        Slice { address: self.address + u64::from(offset), len, lkey: self.lkey }
    }
}

/// Local memory of a work request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slice {
    /// Where.
    pub address: u64,
    /// Bytes.
    pub len: u32,
    /// Its registration.
    pub lkey: u32,
}

/// What a request of the send queue does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A message. The peer's key in it is invalidated when the message is received.
    Send {
        /// The key.
        invalidate: Option<u32>,
    },
    /// From local memory to the peer's.
    Write {
        /// The peer's address.
        remote: u64,
        /// The peer's key.
        key: u32,
    },
    /// From the peer's memory to local memory.
    Read {
        /// The peer's address.
        remote: u64,
        /// The peer's key.
        key: u32,
    },
}

/// A request for the send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendWork {
    /// Comes back in its completion.
    pub id: u64,
    /// What to do.
    pub operation: Operation,
    /// The local end.
    pub local: Slice,
    /// It has a completion also when it succeeds.
    pub signalled: bool,
    /// The bytes are taken when it is posted.
    pub inline: bool,
}

/// A receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvWork {
    /// Comes back in its completion.
    pub id: u64,
    /// Where the message goes.
    pub local: Slice,
}

/// The end of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Whose.
    pub connection: ConnectionId,
    /// Of the request.
    pub id: u64,
    /// How it ended.
    pub status: WorkStatus,
    /// Bytes of the message, of a receive that succeeded.
    pub bytes: u32,
    /// The local key that the message invalidated.
    pub invalidated: Option<u32>,
}

/// Sizes of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairConfig {
    /// Where the memory of its requests is registered, and what its peer can reach.
    pub domain: DomainId,
    /// Requests in the send queue.
    pub sends: u32,
    /// Receives of its own.
    pub receives: u32,
    /// Its messages take receives of [`Provider::share_receives`] instead. That is for pairs in [`DomainId::OWN`].
    pub shares_receives: bool,
    /// Bytes of inline requests.
    pub inline_bytes: u32,
}

/// What a device can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Entries of the completion queue, which all queue pairs of a provider share.
    pub completions: u32,
    /// Requests in one queue of a pair.
    pub work_requests: u32,
    /// Receives that its queue pairs can share; 0: none.
    pub shared_receives: u32,
    /// It ends each receive that a queue pair has taken when that fails, and tells of the last one
    /// ([`Event::ReceivesEnded`]). Another device may lose the receive of a message that has come in part.
    pub tells_last_receive: bool,
    /// RDMA READs of the peer that a queue pair answers at a time.
    pub reads_answered: u8,
    /// RDMA READs that a queue pair has under way at a time.
    pub reads_begun: u8,
    /// Bytes of inline requests.
    pub inline_bytes: u32,
    /// It can invalidate keys of the peer with a SEND.
    pub send_with_invalidate: bool,
    /// It is iWARP: memory for RDMA READs must be open to writes of the peer.
    pub is_iwarp: bool,
}

/// An event of the connection manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Address and route of [`Provider::resolve`] are known.
    Resolved(ConnectionId),
    /// A host asks for a queue.
    Request {
        /// A new connection.
        connection: ConnectionId,
        /// The listener's address.
        listener: SocketAddr,
        /// Private data, maybe padded.
        private: Vec<u8>,
        /// RDMA READs that the host answers at a time.
        host_reads: u8,
    },
    /// Both ends have agreed.
    Established {
        /// The connection.
        connection: ConnectionId,
        /// Private data of the accept, for a host.
        private: Vec<u8>,
    },
    /// The peer, or its manager, refuses.
    Rejected {
        /// The connection.
        connection: ConnectionId,
        /// What for.
        reason: Rejection,
    },
    /// It could not be made.
    Failed {
        /// The connection.
        connection: ConnectionId,
        /// What failed.
        why: &'static str,
    },
    /// The peer or the network has ended it.
    Disconnected(ConnectionId),
    /// Its queue pair has failed, and takes no shared receive any longer. Those that it has taken are completed.
    ReceivesEnded(ConnectionId),
    /// The device is gone: there may be no further completions. Of [`ConnectionId::NOBODY`] it is for all connections, and
    /// for those who listen.
    DeviceRemoved(ConnectionId),
    /// The address with which the device was opened, or at which it listens, is another device's from now on, as after a
    /// failover of a bond: nobody gets here by it any more. Connections that are there say themselves whether they end.
    AddressMoved,
}

impl Event {
    /// Of which connection it is.
    #[must_use]
    pub fn connection(&self) -> ConnectionId {
        match self {
            Self::Resolved(connection)
            | Self::Disconnected(connection)
            | Self::ReceivesEnded(connection)
            | Self::DeviceRemoved(connection)
            | Self::Request { connection, .. }
            | Self::Established { connection, .. }
            | Self::Rejected { connection, .. }
            | Self::Failed { connection, .. } => *connection,
            Self::AddressMoved => ConnectionId::NOBODY,
        }
    }
}

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// The peer still has an older connection of the same numbers: another attempt may succeed.
    Stale,
    /// The peer's program refuses, with this private data.
    Consumer(Vec<u8>),
    /// The connection manager refuses: nobody listens there, for instance.
    Manager(i32),
}

/// A device or its manager refuses.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{what}: {why}")]
pub struct ProviderError {
    /// What was asked for.
    pub what: &'static str,
    /// Why not.
    pub why: String,
    /// What kind of reason that is: [`io::ErrorKind::AddrInUse`] of an address that somebody else has.
    pub kind: io::ErrorKind,
}

impl ProviderError {
    /// Of no particular kind.
    #[must_use]
    pub fn new(what: &'static str, why: impl Into<String>) -> Self {
        Self { what, why: why.into(), kind: io::ErrorKind::Other }
    }

    /// The same, of this kind.
    #[must_use]
    pub fn of_kind(self, kind: io::ErrorKind) -> Self {
        Self { kind, ..self }
    }
}

impl From<ProviderError> for io::Error {
    fn from(error: ProviderError) -> Self {
        Self::new(error.kind, error)
    }
}

/// The device took fewer requests than it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PostError {
    /// The first of them are posted.
    pub posted: usize,
}

/// Completions that a device gives at a time, if it has as many: with fewer, it has no more.
pub const POLL_BATCH: usize = 64;

/// One device, as one core uses it: one completion queue, its protection domains, its connections.
///
/// A connection of a host is resolved, gets its queue pair and its receives, and connects. A connection of a target comes
/// with a request, gets its queue pair and its receives, and is accepted or rejected. Both are destroyed at the end.
///
/// Nothing here waits. Memory is given back by [`Provider::deregister`] only when no request can touch it.
pub trait Provider {
    /// The device's name, as the system has it.
    fn name(&self) -> &str;
    /// What the device can do.
    fn capabilities(&self) -> Capabilities;
    /// Makes a protection domain.
    ///
    /// # Errors
    /// When the device refuses: it has a limit of them (`max_pd`).
    fn open_domain(&mut self) -> Result<DomainId, ProviderError> {
        let why = "the device has one for all";
        Err(ProviderError::new("allocating a protection domain", why))
    }
    /// Ends a domain of [`Self::open_domain`]. Its queue pairs are destroyed, and its registrations have ended.
    fn close_domain(&mut self, domain: DomainId) {
        let _ = domain;
    }
    /// Allocates and registers zeroed memory in a domain.
    ///
    /// # Errors
    /// When the device or the memory's limit (RLIMIT_MEMLOCK) refuses, or there is no such domain.
    fn register(
        &mut self,
        domain: DomainId,
        len: u32,
        access: Access,
    ) -> Result<Region, ProviderError>;
    /// Ends a registration and frees its memory.
    fn deregister(&mut self, region: Region);
    /// Registers memory of others in [`DomainId::OWN`], for RDMA WRITEs from it: neither the peer nor a receive reaches it. It is
    /// kept until [`Self::deregister_foreign`], or until the device is no more. Gives the key for local use.
    ///
    /// # Errors
    /// When the device or the limit of locked memory refuses.
    fn register_foreign(&mut self, memory: Foreign) -> Result<u32, ProviderError> {
        let why = format!("the device reads no memory of others ({} bytes)", memory.len());
        Err(ProviderError::new("registering memory of others", why))
    }
    /// Ends a registration of [`Self::register_foreign`]. No request may be left that reads the memory.
    fn deregister_foreign(&mut self, lkey: u32) {
        let _ = lkey;
    }
    /// Copies out of registered memory.
    fn read(&self, region: &Region, offset: u32, into: &mut [u8]);
    /// Lends a part of registered memory to somebody who fills it.
    fn fill(&mut self, region: &Region, offset: u32, len: u32, fill: &mut dyn FnMut(&mut [u8]));
    /// Copies into registered memory.
    fn write(&mut self, region: &Region, offset: u32, bytes: &[u8]);

    /// Listens at an address of the device.
    ///
    /// # Errors
    /// When it is not an address of the device, or in use.
    fn listen(&mut self, address: SocketAddr) -> Result<(), ProviderError>;
    /// Listens no longer: the addresses are free, and nobody gets in who has not been answered. Connections stay.
    fn stop_listening(&mut self);
    /// Begins a connection of a host, which comes from the source, if there is one.
    ///
    /// # Errors
    /// When the address cannot be reached by the device, or the source is not an address of it.
    fn resolve(
        &mut self,
        address: SocketAddr,
        source: Option<SocketAddr>,
    ) -> Result<ConnectionId, ProviderError>;
    /// Makes the queue pair of a connection; `inline_bytes` may become less.
    ///
    /// # Errors
    /// When the device has no resources for it.
    fn create_pair(
        &mut self,
        connection: ConnectionId,
        config: &PairConfig,
    ) -> Result<PairConfig, ProviderError>;
    /// Asks the peer for a connection, answering up to `reads` RDMA READs at a time.
    ///
    /// # Errors
    /// When the manager refuses.
    fn connect(
        &mut self,
        connection: ConnectionId,
        private: &[u8],
        reads: u8,
    ) -> Result<(), ProviderError>;
    /// Accepts a request, with up to `reads` RDMA READs under way.
    ///
    /// # Errors
    /// When the peer is gone or the manager refuses.
    fn accept(
        &mut self,
        connection: ConnectionId,
        private: &[u8],
        reads: u8,
    ) -> Result<(), ProviderError>;
    /// Refuses a request.
    fn reject(&mut self, connection: ConnectionId, private: &[u8]);
    /// Ends a connection: requests that are posted are flushed.
    fn disconnect(&mut self, connection: ConnectionId);
    /// Forgets a connection and its queue pair.
    fn destroy(&mut self, connection: ConnectionId);
    /// The next event of the connection manager.
    fn next_event(&mut self) -> Option<Event>;
    /// A SEND has invalidated a key of the peer: the device can do this.
    fn note_invalidation(&self) {}
    /// A SEND that was to invalidate a key has failed at this end. If none has succeeded so far, the device says that it can do this,
    /// and cannot: from now on [`Self::capabilities`] says that it cannot, so all queues do without.
    fn note_failed_invalidation(&self) {}
    /// The peer's address, if the connection manager tells it.
    fn peer(&self, connection: ConnectionId) -> Option<SocketAddr> {
        let _ = connection;
        None
    }

    /// Posts requests in order.
    ///
    /// # Errors
    /// When the device takes only the first of them.
    fn post_send(&mut self, connection: ConnectionId, work: &[SendWork]) -> Result<(), PostError>;
    /// Posts receives in order.
    ///
    /// # Errors
    /// When the device takes only the first of them.
    fn post_recv(&mut self, connection: ConnectionId, work: &[RecvWork]) -> Result<(), PostError>;
    /// Makes the shared receive queue, with room for so many receives. There is one at most.
    ///
    /// # Errors
    /// When the device has none, or refuses.
    fn share_receives(&mut self, entries: u32) -> Result<(), ProviderError> {
        let why = format!("the device shares no receives ({entries} were asked for)");
        Err(ProviderError::new("making a shared receive queue", why))
    }
    /// Ends the shared receive queue and what is posted to it. No queue pair may be left that takes receives from it.
    fn unshare_receives(&mut self) {}
    /// Posts receives that all queue pairs share.
    ///
    /// # Errors
    /// When the device takes only the first of them.
    fn post_shared(&mut self, work: &[RecvWork]) -> Result<(), PostError> {
        if work.is_empty() { Ok(()) } else { Err(PostError { posted: 0 }) }
    }
    /// Appends completions that are there, up to the room of `into`, and to [`POLL_BATCH`] in it. A shared receive that a destroyed queue pair has
    /// taken may still complete: it names a connection that is no more, or [`ConnectionId::NOBODY`].
    fn poll(&mut self, into: &mut Vec<Completion>);
}
