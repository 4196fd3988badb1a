//! NVMe data structures as they are on the wire (NVM Express Base 2.0, NVM Command Set 1.0,
//! NVMe over Fabrics 1.1).

pub mod ana;
pub mod authentication;
pub mod command;
pub mod completion;
pub mod cross_reset;
pub mod discovery;
pub mod event;
pub mod fabrics;
pub mod feature;
pub mod id;
pub mod identify;
pub mod lba_status;
pub mod log;
pub mod opcode;
pub mod passthrough;
pub mod property;
pub mod registration;
pub mod reservation;
pub mod rw;
pub mod status;
pub mod transfer;
pub(crate) mod wire;

pub use command::{Fuse, SglDescriptor, Sqe};
pub use completion::Cqe;
pub use id::{CommandId, ControllerId, HostId, HostNqn, NamespaceId, Nqn, NqnError, QueueId};
pub use passthrough::PassthroughCommand;
pub use status::Status;
pub use transfer::{Direction, Transfer};
