//! NVMe/RDMA queue pairs of both roles, over the verbs of a device or of a simulated network.
//!
//! The layers, bottom up:
//!
//! * [`verbs`]: work requests, completions, events of the connection manager, and the trait [`Provider`];
//! * [`fake`]: a network of simulated devices in virtual time, which checks what real devices check;
//! * [`device`]: a real device, through libibverbs and librdmacm, which are loaded on first use;
//! * [`Foreign`]: memory of others that a device reads in place;
//! * [`waiting`]: devices that a sleeping core can wait for;
//! * [`TargetQueue`] and [`HostQueue`]: the two ends of one NVMe queue;
//! * [`Refusal`]: why a port refuses a queue;
//! * [`Table`]: what belongs to numbers of connections and commands;
//! * [`TargetPort`] and [`HostPort`]: all queues of one core on one device, from the request to the drained end.

pub mod device;
pub mod fake;
mod foreign;
mod host_port;
mod host_queue;
mod invalidation;
mod numbers;
mod port_counts;
mod refusal;
mod send_queue;
mod shared_receives;
mod table;
mod target_port;
mod target_queue;
pub mod verbs;
pub mod waiting;

pub use foreign::Foreign;
pub use host_port::{ConnectConfig, ConnectError, HostPort, HostPortEvent};
pub use host_queue::{HostEvent, HostQueue, HostQueueConfig, HostTransfer, SubmitError};
pub use port_counts::PortCounts;
pub use refusal::Refusal;
pub use table::Table;
pub use target_port::{Asked, PortConfig, TargetPort, TargetPortEvent};
pub use target_queue::{CommandToken, TargetEvent, TargetQueue, TargetQueueConfig};
pub use verbs::Provider;
pub use waiting::WaitingDevice;

use std::fmt;

use raceline_proto::rdma::{Violation, WorkStatus};

/// Why a queue has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// A work request failed: what it was, and how it ended.
    Work(&'static str, WorkStatus),
    /// The peer broke the protocol.
    Violation(Violation),
    /// The device refused a work request.
    Refused(&'static str),
    /// The peer took no response for too long.
    Stuck,
    /// The peer has disconnected, or the network has.
    Disconnected,
    /// The device is gone.
    DeviceRemoved,
    /// This end has closed it.
    Closed,
}

impl Loss {
    /// Whether it only follows from another one: what was posted is flushed when a queue pair fails, or is disconnected.
    fn is_consequence(&self) -> bool {
        matches!(self, Self::Work(_, WorkStatus::WR_FLUSH_ERR))
    }

    /// Whether it explains flushed requests.
    fn is_cause(&self) -> bool {
        !self.is_consequence() && *self != Self::Closed
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Work(what, status) => write!(f, "{what} failed: {status}"),
            Self::Violation(violation) => write!(f, "the peer broke the protocol: {violation}"),
            Self::Refused(what) => write!(f, "the device refused {what}"),
            Self::Stuck => f.write_str("the peer has taken no response for too long"),
            Self::Disconnected => f.write_str("the peer has disconnected"),
            Self::DeviceRemoved => f.write_str("the RDMA device was removed"),
            Self::Closed => f.write_str("this end has closed the queue"),
        }
    }
}

impl std::error::Error for Loss {}
