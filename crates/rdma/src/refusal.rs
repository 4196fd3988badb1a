//! Why a port refuses a queue: a status for the host, and words for whoever runs the target.

use raceline_proto::rdma::RejectStatus;

use crate::Loss;
use crate::verbs::ProviderError;

/// Why a request for a queue was refused, and what helps.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum Refusal {
    /// The host asks for what no queue can be, or its device cannot do what is needed.
    #[error("the request of the host is wrong: {0}")]
    Request(RejectStatus),
    /// The completion queue would overflow, and end all queues.
    #[error(
        "the queue needs {needed} entries of the core's completion queue, and {free} of {all} are left: let hosts \
         have fewer or shorter queues, or spread them over more cores or listeners"
    )]
    Completions {
        /// Of this queue.
        needed: u32,
        /// Those that no queue has.
        free: u32,
        /// Those that the device has made.
        all: u32,
    },
    /// There are as many connections as there may be.
    #[error(
        "the listener has {0} queues on this core, which is the most: let hosts have fewer queues, or spread them over more \
         cores or listeners"
    )]
    Connections(usize),
    /// The device's queue pairs are too short.
    #[error(
        "the queue needs {needed} requests in its queue pair, and the device has {most}: allow only shorter queues"
    )]
    Requests {
        /// Of this queue.
        needed: u32,
        /// Most that the device has.
        most: u32,
    },
    /// There is no memory for capsules or responses.
    #[error(
        "no memory for its capsules: {0}; allow more locked memory (LimitMEMLOCK=, RLIMIT_MEMLOCK)"
    )]
    Memory(ProviderError),
    /// There is no queue pair.
    #[error("the device makes no queue pair for it: {0}; let hosts have fewer queues")]
    Pair(ProviderError),
    /// The device takes no receives for it.
    #[error("its receives are not posted: {0}")]
    Receives(Loss),
    /// The host is gone, or the connection manager refuses.
    #[error("the host was not told that it has the queue: {0}")]
    Accept(ProviderError),
}

impl Refusal {
    /// What the host is told.
    #[must_use]
    pub fn status(&self) -> RejectStatus {
        match self {
            Self::Request(status) => *status,
            _ => RejectStatus::NoResources,
        }
    }
}

impl From<RejectStatus> for Refusal {
    fn from(status: RejectStatus) -> Self {
        Self::Request(status)
    }
}
