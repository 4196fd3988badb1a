//! iSCSI (RFC 7143) as state machines that do no I/O: both ends of a connection, its PDUs, its login.
//!
//! Neither end reads a clock, opens a socket or starts a thread. Bytes that arrive go in with `receive`, and come
//! out as events; methods that send append the bytes of a PDU to a `Vec<u8>`, and the caller appends payload behind
//! its header. So payload moves between the socket and the caller's buffers without a copy.
//!
//! | module | what it holds |
//! |---|---|
//! | [`pdu`] | every PDU of both directions, to and from its 48-byte header |
//! | [`text`], [`keys`], [`negotiate`] | `key=value` text, the keys, and what two offers come to |
//! | [`chap`] | both ends of CHAP |
//! | [`names`] | names of initiators, targets and ports |
//! | [`session`] | what a login means for the sessions that there are |
//! | [`target`] | the target's end of a connection |
//! | [`initiator`] | the initiator's end of a connection |
//!
//! Both ends work at error recovery level 0, with one connection per session.
#![forbid(unsafe_code)]

pub mod chap;
pub mod error;
pub mod initiator;
pub mod keys;
pub mod names;
pub mod negotiate;
pub mod pdu;
mod receive;
mod send;
pub mod serial;
pub mod session;
pub mod target;
pub mod text;

pub use error::{FatalError, Violation};
pub use receive::{DataDigest, PayloadWanted};
