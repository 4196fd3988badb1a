//! A simulated RDMA device whose own work is not counted.
//!
//! Posts and polls are what a device's library does: they write and read rings in memory, and differ from device to device.
//! So their instructions are left out, as the kernel's are for TCP. What our code does around them is counted, and so is
//! each copy into and out of registered memory.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use raceline_host::RdmaDevices;
use raceline_rdma::Foreign;
use raceline_rdma::fake::{FakeDevice, Network};
use raceline_rdma::verbs::{
    Access, Capabilities, Completion, ConnectionId, DomainId, Event, PairConfig, PostError,
    Provider, ProviderError, RecvWork, Region, SendWork,
};
use raceline_rdma::waiting::WaitingDevice;

/// Instructions are being counted.
static IS_COUNTING: AtomicBool = AtomicBool::new(false);

/// From now on, the work of devices is taken out of the count, or is no part of it.
pub(crate) fn set_counting(is_counting: bool) {
    IS_COUNTING.store(is_counting, Ordering::Relaxed);
}

/// Gives each core of a host a device.
#[derive(Debug)]
pub(crate) struct HostDevices(pub(crate) Network);

impl RdmaDevices for HostDevices {
    fn open(
        &self,
        _: SocketAddr,
        _: Option<IpAddr>,
        _: u32,
    ) -> Result<Box<dyn WaitingDevice>, ProviderError> {
        Ok(Box::new(self.0.add_device()))
    }
}

/// The target's device.
#[derive(Debug)]
pub(crate) struct Device(pub(crate) FakeDevice);

/// Callgrind stops to count when this is called, and goes on when it returns; it finds it by its name.
#[inline(never)]
fn uncounted_device<T>(work: impl FnOnce() -> T) -> T {
    std::hint::black_box(work())
}

fn apart<T>(work: impl FnOnce() -> T) -> T {
    if IS_COUNTING.load(Ordering::Relaxed) { uncounted_device(work) } else { work() }
}

impl Provider for Device {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn open_domain(&mut self) -> Result<DomainId, ProviderError> {
        self.0.open_domain()
    }

    fn close_domain(&mut self, domain: DomainId) {
        self.0.close_domain(domain);
    }

    fn register(
        &mut self,
        domain: DomainId,
        len: u32,
        access: Access,
    ) -> Result<Region, ProviderError> {
        self.0.register(domain, len, access)
    }

    fn deregister(&mut self, region: Region) {
        self.0.deregister(region);
    }

    fn register_foreign(&mut self, memory: Foreign) -> Result<u32, ProviderError> {
        self.0.register_foreign(memory)
    }

    fn deregister_foreign(&mut self, lkey: u32) {
        self.0.deregister_foreign(lkey);
    }

    fn read(&self, region: &Region, offset: u32, into: &mut [u8]) {
        self.0.read(region, offset, into);
    }

    fn fill(&mut self, region: &Region, offset: u32, len: u32, fill: &mut dyn FnMut(&mut [u8])) {
        self.0.fill(region, offset, len, fill);
    }

    fn write(&mut self, region: &Region, offset: u32, bytes: &[u8]) {
        self.0.write(region, offset, bytes);
    }

    fn listen(&mut self, address: SocketAddr) -> Result<(), ProviderError> {
        self.0.listen(address)
    }

    fn stop_listening(&mut self) {
        self.0.stop_listening();
    }

    fn resolve(
        &mut self,
        address: SocketAddr,
        source: Option<SocketAddr>,
    ) -> Result<ConnectionId, ProviderError> {
        self.0.resolve(address, source)
    }

    fn create_pair(
        &mut self,
        connection: ConnectionId,
        config: &PairConfig,
    ) -> Result<PairConfig, ProviderError> {
        self.0.create_pair(connection, config)
    }

    fn connect(
        &mut self,
        connection: ConnectionId,
        private: &[u8],
        reads: u8,
    ) -> Result<(), ProviderError> {
        self.0.connect(connection, private, reads)
    }

    fn accept(
        &mut self,
        connection: ConnectionId,
        private: &[u8],
        reads: u8,
    ) -> Result<(), ProviderError> {
        self.0.accept(connection, private, reads)
    }

    fn reject(&mut self, connection: ConnectionId, private: &[u8]) {
        self.0.reject(connection, private);
    }

    fn disconnect(&mut self, connection: ConnectionId) {
        self.0.disconnect(connection);
    }

    fn destroy(&mut self, connection: ConnectionId) {
        self.0.destroy(connection);
    }

    fn next_event(&mut self) -> Option<Event> {
        apart(|| self.0.next_event())
    }

    fn post_send(&mut self, connection: ConnectionId, work: &[SendWork]) -> Result<(), PostError> {
        apart(|| self.0.post_send(connection, work))
    }

    fn post_recv(&mut self, connection: ConnectionId, work: &[RecvWork]) -> Result<(), PostError> {
        apart(|| self.0.post_recv(connection, work))
    }

    fn share_receives(&mut self, entries: u32) -> Result<(), ProviderError> {
        self.0.share_receives(entries)
    }

    fn unshare_receives(&mut self) {
        self.0.unshare_receives();
    }

    fn post_shared(&mut self, work: &[RecvWork]) -> Result<(), PostError> {
        apart(|| self.0.post_shared(work))
    }

    fn poll(&mut self, into: &mut Vec<Completion>) {
        apart(|| self.0.poll(into));
    }
}

impl WaitingDevice for Device {
    fn news(&self) -> BorrowedFd<'_> {
        self.0.news()
    }

    fn arm(&mut self) {
        self.0.arm();
    }
}
