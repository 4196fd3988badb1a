//! NVMe data structures as they are on the wire (NVM Express Base 2.0, NVM Command Set 1.0,
//! NVMe over Fabrics 1.1).

pub mod command;
pub mod completion;
pub mod id;
pub mod opcode;
pub mod status;
pub mod transfer;

pub use command::{SglDescriptor, Sqe};
pub use completion::Cqe;
pub use id::{CommandId, ControllerId, HostId, NamespaceId, Nqn, NqnError, QueueId};
pub use status::Status;
pub use transfer::{Direction, Transfer};
