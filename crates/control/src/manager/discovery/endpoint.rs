//! Where a controller is reached: an address, and what carries the queues to it.

use std::fmt;
use std::net::SocketAddr;

use raceline_host::{HostConfig, Transport};

/// An address for one transport. The same address and port may be of two controllers, one for each transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// What carries the queues.
    pub transport: Transport,
    /// Where they lead.
    pub address: SocketAddr,
}

impl Endpoint {
    /// Where a configuration leads.
    #[must_use]
    pub fn of(config: &HostConfig) -> Self {
        Self { transport: config.transport, address: config.address }
    }

    /// The configuration of another controller, with this place instead of its own. A source is an address for one
    /// transport: RDMA devices and other network devices need not have the same.
    pub(super) fn reached_by(self, config: HostConfig) -> HostConfig {
        let Self { transport, address } = self;
        let source = config.source.filter(|_| config.transport == transport);
        HostConfig { transport, address, source, ..config }
    }
}

impl From<SocketAddr> for Endpoint {
    /// Of NVMe/TCP.
    fn from(address: SocketAddr) -> Self {
        Self { transport: Transport::Tcp, address }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.transport {
            Transport::Tcp => write!(f, "{}", self.address),
            Transport::Rdma => write!(f, "rdma://{}", self.address),
        }
    }
}
