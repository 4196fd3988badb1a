//! NVMe/TCP: PDUs, framing, digests, and the two ends of one queue's connection
//! (NVMe/TCP Transport 1.0).
//!
//! The driver of a queue (a target's or a host's connection) owns socket, buffers and the NVMe
//! commands. A queue end ([`ControllerQueue`], [`HostQueue`]) takes received bytes and says what
//! they mean. It appends the PDUs to send to a byte vector of the driver, which puts payload and
//! data digest after them.
//!
//! # Receiving
//!
//! The driver calls `receive` until it gives `None`, also with no input left: bytes reported by
//! `payload_received` may have ended a PDU. Every call gives at most one event and advances the
//! input past what it has used. Between two calls the driver may stop, for instance to wait for a
//! buffer; nothing is lost.
//!
//! The data of a PDU come as any number of `Data` events, borrowed from the input, and one
//! `DataEnd`. When the input ends amid data, `payload_wanted` names the bytes that come next on
//! the wire, and the driver may let the socket write them into their place; it reports them with
//! `payload_received`. If data of a capsule lie whole behind its header, the driver may take them at once
//! ([`ControllerQueue::take_capsule_data`]); then there are no events for them.
//!
//! The queue ends check header digests. The driver checks data digests: `DataEnd` carries the received
//! one (to be compared with the CRC32C of the PDU's data), and the driver appends one after the
//! data it sends when `data_digest()` says so.
//!
//! # Errors
//!
//! A [`FatalError`] ends the connection. The driver sends `term_req`, waits a limited time for the peer to
//! close, and closes. From the error on, and after the peer's own TermReq, the queue is closing:
//! `receive` throws input away and the sending methods append nothing. TermReq is never an answer
//! to a TermReq.

mod ahead;
mod controller_queue;
mod error;
mod host_queue;
pub mod pdu;
mod receive;
mod send;

pub use ahead::CommandsAhead;
pub use controller_queue::{
    ControllerQueue, ControllerQueueConfig, ControllerQueueState, DataDest, Event,
};
pub use error::{FatalError, Fes, Violation};
pub use host_queue::{HostEvent, HostQueue, HostQueueConfig, R2tGrant};
pub use pdu::{ADMIN_IN_CAPSULE_BYTES, DIGEST_LEN, IcReq, IcResp, TermReq};

/// Bytes that come next on the wire, and where they belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PayloadWanted<D> {
    /// The command that they belong to.
    pub dest: D,
    /// Offset in the command's data.
    pub offset: u32,
    /// How many, up to the end of the PDU's data.
    pub len: u32,
}
