//! Devices that a sleeping core can wait for.

use std::fmt::Debug;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use crate::foreign::Foreign;
use crate::verbs::{
    Access, Capabilities, Completion, ConnectionId, Event, PairConfig, PostError, Provider,
    ProviderError, RecvWork, Region, SendWork,
};

/// A device that says when it has something to give. It may move to another thread, and belongs to one at a time.
pub trait WaitingDevice: Provider + Debug + Send {
    /// A descriptor that is readable once there are news after [`Self::arm`]: completions, or events of the connection
    /// manager. The same for as long as the device lives.
    fn news(&self) -> BorrowedFd<'_>;

    /// Forgets the news of before, and asks to be told of what comes from now on. Completions and events that are there
    /// already are not told: whoever calls this polls afterwards, until there is nothing more.
    fn arm(&mut self);
}

/// So that users of any device need no type for each.
impl Provider for Box<dyn WaitingDevice> {
    fn name(&self) -> &str {
        (**self).name()
    }

    fn capabilities(&self) -> Capabilities {
        (**self).capabilities()
    }

    fn register(&mut self, len: u32, access: Access) -> Result<Region, ProviderError> {
        (**self).register(len, access)
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

    fn resolve(&mut self, address: SocketAddr) -> Result<ConnectionId, ProviderError> {
        (**self).resolve(address)
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
