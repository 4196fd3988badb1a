//! NVMe/RDMA: private data of the connection manager, capsules, keyed SGL descriptors, errors
//! (NVMe/RDMA Transport 1.0).
//!
//! One NVMe queue is one reliable connected queue pair, and one capsule is one SEND. There are no PDUs, no digests
//! and no messages about errors: a violation ends the connection. The data of a command come in its capsule, or the
//! controller moves them by RDMA READ and RDMA WRITE with the keys of the command's descriptors.
//!
//! Everything here is a function of bytes. The queue pairs of both roles, which decide what is posted when, are in
//! the crate `rdma`.

mod capsule;
mod private;
mod sgl;
mod tsas;
mod work_status;

pub use capsule::{
    CAPSULE_HEAD_LEN, CapsuleLimits, CommandCapsule, MAX_DESCRIPTORS, RESPONSE_CAPSULE_LEN,
    Violation, parse_response,
};
pub use private::{
    AcceptData, Grant, GrantLimits, QueueRequest, RejectData, RejectStatus, RequestData,
};
pub use sgl::{HostData, KeyedBlock, KeyedDescriptor, MAX_BLOCK_BYTES};
pub use tsas::{PRTYPE_IWARP, PRTYPE_NONE, PRTYPE_ROCE_V2, TRTYPE_RDMA, Tsas};
pub use work_status::{Cause, WorkStatus};

#[cfg(test)]
mod tests;
