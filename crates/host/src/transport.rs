//! What carries the queues of a path: TCP, or RDMA and where its devices come from.

use std::fmt::Debug;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::sync::{Arc, LazyLock};

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

/// Where a host gets its RDMA devices from. The queues of one core that have the same place share one, with its completion
/// queue and memory; each target has a protection domain of its own there. A core opens another one when the completion queue has no room for one more queue.
pub trait RdmaDevices: Debug + Send + Sync {
    /// This end's address for connections to `target`: that of the device by which it is reached, or `source`. Those who
    /// know no addresses have a place for each target.
    ///
    /// # Errors
    /// When there is no route to the target.
    fn place(
        &self,
        target: SocketAddr,
        source: Option<IpAddr>,
    ) -> Result<SocketAddr, ProviderError> {
        Ok(source.map_or(target, |source| source_towards(source, target)))
    }

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

/// This end's address for connections to a target. That of a link is on the link of the target.
pub(crate) fn source_towards(source: IpAddr, target: SocketAddr) -> SocketAddr {
    match (source, target) {
        (IpAddr::V6(ip), SocketAddr::V6(target)) if ip.is_unicast_link_local() => {
            SocketAddrV6::new(ip, 0, 0, target.scope_id()).into()
        }
        _ => SocketAddr::new(source, 0),
    }
}

/// The RDMA devices of this machine, by libibverbs and librdmacm.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemDevices;

/// The same value for all configurations: so queues of several controllers share devices.
static SYSTEM: LazyLock<Arc<SystemDevices>> = LazyLock::new(|| Arc::new(SystemDevices));

impl SystemDevices {
    /// Those of this machine, once for the whole program.
    #[must_use]
    pub fn shared() -> Arc<dyn RdmaDevices> {
        Arc::clone(&*SYSTEM) as _
    }
}

impl RdmaDevices for SystemDevices {
    fn place(
        &self,
        target: SocketAddr,
        source: Option<IpAddr>,
    ) -> Result<SocketAddr, ProviderError> {
        match source {
            Some(source) => Ok(source_towards(source, target)),
            None => RdmaDevice::address_towards(target),
        }
    }

    fn open(
        &self,
        target: SocketAddr,
        source: Option<IpAddr>,
        completions: u32,
    ) -> Result<Box<dyn WaitingDevice>, ProviderError> {
        let place = self.place(target, source)?;
        Ok(Box::new(RdmaDevice::open(place, completions)?))
    }

    fn are_there(&self) -> bool {
        load_libraries().is_ok_and(|count| count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_of_a_link_has_the_link_of_the_target() {
        let towards = |source: &str, target: &str| {
            let (source, target) = (source.parse().unwrap(), target.parse().unwrap());
            source_towards(source, target).to_string()
        };
        assert_eq!(towards("fe80::2", "[fe80::1%7]:4420"), "[fe80::2%7]:0");
        assert_eq!(towards("2001:db8::2", "[2001:db8::1]:4420"), "[2001:db8::2]:0");
        assert_eq!(towards("192.0.2.2", "192.0.2.1:4420"), "192.0.2.2:0");
    }
}
