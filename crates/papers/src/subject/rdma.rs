//! What carries NVMe/RDMA: the device that has an address of this machine, or a simulated one.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;

use raceline_host::{RdmaDevices, SystemDevices};
use raceline_target::{RdmaConfig, RdmaStreams, TargetConfig, load_rdma_libraries};

/// Entries of the completion queue with which a device is tried.
const PROBE_ENTRIES: u32 = 16;

/// Makes what carries the listener for RDMA of a target with this configuration.
type MakeStreams = dyn Fn(&TargetConfig) -> Arc<RdmaStreams> + Send + Sync;

/// What carries NVMe/RDMA.
#[derive(Clone)]
pub struct Rdma {
    pub(crate) address: IpAddr,
    pub(crate) devices: Arc<dyn RdmaDevices>,
    pub(crate) streams: Arc<MakeStreams>,
}

impl Rdma {
    /// The device of this machine that has the address.
    fn here(address: Option<IpAddr>) -> Result<Self, String> {
        let address = address.ok_or(
            "an RDMA adapter, or rdma_rxe over a network device: name the address of its interface \
             with --rdma ADDR; nothing stands in for it",
        )?;
        let open = || {
            load_rdma_libraries().map_err(|error| error.to_string())?;
            let devices: Arc<dyn RdmaDevices> = SystemDevices::shared();
            let at = SocketAddr::new(address, 0);
            let device = devices.open(at, Some(address), PROBE_ENTRIES);
            device.map_err(|error| error.to_string())?;
            Ok(devices)
        };
        let devices =
            open().map_err(|why: String| format!("an RDMA device at {address}: {why}"))?;
        let streams = |config: &TargetConfig| Arc::new(RdmaStreams::new(RdmaConfig::of(config)));
        Ok(Self { address, devices, streams: Arc::new(streams) })
    }

    /// Where a listener can be. It has a number of its own, which the kernel chooses for TCP here.
    pub(crate) fn free_address(&self) -> Result<SocketAddr, String> {
        let address = self.address;
        let text = |error: std::io::Error| format!("a free port of {address}: {error}");
        let listener = TcpListener::bind((address, 0)).map_err(text)?;
        listener.local_addr().map_err(text)
    }
}

/// Where NVMe/RDMA is. Only an experiment that needs it asks.
#[derive(Clone)]
pub struct RdmaSource(Arc<dyn Fn() -> Result<Rdma, String> + Send + Sync>);

impl RdmaSource {
    /// The device of this machine that has the address; `None`: nobody has named one.
    #[must_use]
    pub fn at(address: Option<IpAddr>) -> Self {
        Self(Arc::new(move || Rdma::here(address)))
    }

    /// What a test has made.
    #[cfg(test)]
    pub(crate) fn of(rdma: Result<Rdma, String>) -> Self {
        Self(Arc::new(move || rdma.clone()))
    }

    /// What carries NVMe/RDMA.
    ///
    /// # Errors
    /// Why there is nothing.
    pub fn find(&self) -> Result<Rdma, String> {
        (self.0)()
    }
}
