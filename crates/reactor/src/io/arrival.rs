//! Where the packets of a connection come into this machine.

use std::num::NonZeroU32;

/// Where the packets of a connection come into this machine, as of the last packet when it was read.
/// The kernel tells it ([`crate::Socket::incoming_napi_id`], [`crate::Socket::incoming_cpu`],
/// [`crate::Socket::mark`]).
///
/// A later change of the receive queue by the network device is not noticed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrival {
    /// The network device's receive queue, by its NAPI id. `None` when the kernel does not know it (it
    /// says 0), as on loopback.
    pub napi_id: Option<NonZeroU32>,
    /// The CPU that processed the packet; `None` when it is not known.
    pub cpu: Option<usize>,
    /// The mark that the packet filter gave the request for the connection (SO_MARK); `None` when it has
    /// none.
    pub mark: Option<NonZeroU32>,
}
