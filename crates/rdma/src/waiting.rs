//! Devices that a sleeping core can wait for.

use std::any::Any;
use std::fmt::{self, Debug};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use raceline_proto::rdma::{RejectData, RejectStatus};

use crate::foreign::Foreign;
use crate::verbs::{
    Access, Capabilities, Completion, ConnectionId, DomainId, Event, PairConfig, PostError,
    Provider, ProviderError, RecvWork, Region, SendWork,
};

/// A device that says when it has something to give. It may move to another thread, and belongs to one at a time.
pub trait WaitingDevice: Provider + Debug + Send {
    /// A descriptor that is readable once there are news after [`Self::arm`]: completions, or events of the connection
    /// manager. The same for as long as the device lives.
    fn news(&self) -> BorrowedFd<'_>;

    /// Forgets the news of before, and asks to be told of what comes from now on. Completions and events that are there
    /// already are not told: whoever calls this polls afterwards, until there is nothing more.
    fn arm(&mut self);

    /// Opens this device again, for other cores; `None`: there is only this value of it.
    fn kin(&self) -> Option<Kin> {
        None
    }

    /// Gives up a request that is not answered yet, so that a kin of this device takes it. `None`: there is no such
    /// request, or this device has no kin.
    fn give(&mut self, request: ConnectionId) -> Option<Given> {
        let _ = request;
        None
    }

    /// Takes a request over. It may have another name here.
    ///
    /// # Errors
    /// When it is no request of this device, or its connection manager refuses. The request is then rejected.
    fn take(&mut self, request: Given) -> Result<ConnectionId, ProviderError> {
        drop(request);
        let why = "the device has one completion queue for all cores";
        Err(ProviderError::new("taking a request over from another core", why))
    }
}

/// Opens a device again: each value that it gives has a completion queue, protection domains and an event channel of its
/// own, and belongs to one core. It may be called on any thread.
pub type Kin =
    Box<dyn Fn() -> Result<Box<dyn WaitingDevice>, ProviderError> + Send + Sync + 'static>;

/// A request for a queue between two cores. One that is dropped is rejected.
pub struct Given(Box<dyn Any + Send>);

impl Given {
    /// What a kind of device knows of a request. Dropped, it rejects the request.
    #[must_use]
    pub fn new(request: impl Any + Send) -> Self {
        Self(Box::new(request))
    }

    /// What the host of a request is told that nobody takes.
    pub(crate) fn last_words() -> RejectData {
        RejectData::new(RejectStatus::NoResources)
    }

    /// The same again, if it is of this kind. Otherwise it is rejected.
    #[must_use]
    pub fn into_kind<T: Any>(self) -> Option<T> {
        self.0.downcast().ok().map(|request| *request)
    }
}

impl Debug for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Given")
    }
}

/// So that users of any device need no type for each.
impl Provider for Box<dyn WaitingDevice> {
    fn name(&self) -> &str {
        (**self).name()
    }

    fn capabilities(&self) -> Capabilities {
        (**self).capabilities()
    }

    fn open_domain(&mut self) -> Result<DomainId, ProviderError> {
        (**self).open_domain()
    }

    fn close_domain(&mut self, domain: DomainId) {
        (**self).close_domain(domain);
    }

    fn register(
        &mut self,
        domain: DomainId,
        len: u32,
        access: Access,
    ) -> Result<Region, ProviderError> {
        (**self).register(domain, len, access)
    }

    fn deregister(&mut self, region: Region) {
        (**self).deregister(region);
    }

    fn register_foreign(&mut self, memory: Foreign) -> Result<u32, ProviderError> {
        (**self).register_foreign(memory)
    }

    fn deregister_foreign(&mut self, lkey: u32) {
        (**self).deregister_foreign(lkey);
    }

    fn read(&self, region: &Region, offset: u32, into: &mut [u8]) {
        (**self).read(region, offset, into);
    }

    fn fill(&mut self, region: &Region, offset: u32, len: u32, fill: &mut dyn FnMut(&mut [u8])) {
        (**self).fill(region, offset, len, fill);
    }

    fn write(&mut self, region: &Region, offset: u32, bytes: &[u8]) {
        (**self).write(region, offset, bytes);
    }

    fn listen(&mut self, address: SocketAddr) -> Result<(), ProviderError> {
        (**self).listen(address)
    }

    fn stop_listening(&mut self) {
        (**self).stop_listening();
    }

    fn resolve(
        &mut self,
        address: SocketAddr,
        source: Option<SocketAddr>,
    ) -> Result<ConnectionId, ProviderError> {
        (**self).resolve(address, source)
    }

    fn create_pair(
        &mut self,
        connection: ConnectionId,
        config: &PairConfig,
    ) -> Result<PairConfig, ProviderError> {
        (**self).create_pair(connection, config)
    }

    fn connect(
        &mut self,
        connection: ConnectionId,
        private: &[u8],
        reads: u8,
    ) -> Result<(), ProviderError> {
        (**self).connect(connection, private, reads)
    }

    fn accept(
        &mut self,
        connection: ConnectionId,
        private: &[u8],
        reads: u8,
    ) -> Result<(), ProviderError> {
        (**self).accept(connection, private, reads)
    }

    fn reject(&mut self, connection: ConnectionId, private: &[u8]) {
        (**self).reject(connection, private);
    }

    fn disconnect(&mut self, connection: ConnectionId) {
        (**self).disconnect(connection);
    }

    fn destroy(&mut self, connection: ConnectionId) {
        (**self).destroy(connection);
    }

    fn next_event(&mut self) -> Option<Event> {
        (**self).next_event()
    }

    fn peer(&self, connection: ConnectionId) -> Option<SocketAddr> {
        (**self).peer(connection)
    }

    #[inline]
    fn note_invalidation(&self) {
        (**self).note_invalidation();
    }

    fn note_failed_invalidation(&self) {
        (**self).note_failed_invalidation();
    }

    fn post_send(&mut self, connection: ConnectionId, work: &[SendWork]) -> Result<(), PostError> {
        (**self).post_send(connection, work)
    }

    fn post_recv(&mut self, connection: ConnectionId, work: &[RecvWork]) -> Result<(), PostError> {
        (**self).post_recv(connection, work)
    }

    fn share_receives(&mut self, entries: u32) -> Result<(), ProviderError> {
        (**self).share_receives(entries)
    }

    fn unshare_receives(&mut self) {
        (**self).unshare_receives();
    }

    fn post_shared(&mut self, work: &[RecvWork]) -> Result<(), PostError> {
        (**self).post_shared(work)
    }

    fn poll(&mut self, into: &mut Vec<Completion>) {
        (**self).poll(into);
    }
}
