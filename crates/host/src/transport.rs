//! What carries the queues of a path: TCP, or RDMA and where its devices come from.

use std::fmt::Debug;
use std::net::{IpAddr, SocketAddr};

pub use raceline_rdma::device::seal;
use raceline_rdma::device::{RdmaDevice, load_libraries};
pub use raceline_rdma::verbs::ProviderError;
pub use raceline_rdma::waiting::WaitingDevice;

/// What carries the queues of a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// NVMe/TCP.
    #[default]
    Tcp,
    /// NVMe/RDMA: RoCE, iWARP or InfiniBand.
    Rdma,
}

/// Where a host gets its RDMA devices from. Each queue opens one for each of its connections: it has a protection domain
/// and a completion queue of its own, so no target reaches the memory of another queue.
pub trait RdmaDevices: Debug + Send + Sync {
    /// Opens the device by which `target` is reached, or the one that has the address `source`, with a completion queue
    /// of so many entries.
    ///
    /// # Errors
    /// When there is no such device, or RDMA cannot be used here.
    fn open(
        &self,
        target: SocketAddr,
        source: Option<IpAddr>,
        completions: u32,
    ) -> Result<Box<dyn WaitingDevice>, ProviderError>;

    /// Whether there is any device: whoever chooses among transports passes RDMA over where there is none.
    fn are_there(&self) -> bool {
        true
    }
}

/// The RDMA devices of this machine, by libibverbs and librdmacm.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemDevices;

impl RdmaDevices for SystemDevices {
    fn open(
        &self,
        target: SocketAddr,
        source: Option<IpAddr>,
        completions: u32,
    ) -> Result<Box<dyn WaitingDevice>, ProviderError> {
        let device = match source {
            Some(source) => RdmaDevice::open(source, completions)?,
            None => RdmaDevice::open_towards(target, completions)?,
        };
        Ok(Box::new(device))
    }

    fn are_there(&self) -> bool {
        load_libraries().is_ok_and(|count| count > 0)
    }
}
