//! The protocol without I/O: negotiation, requests and replies.

#![forbid(unsafe_code)]

mod export;
mod negotiation;
mod reply;
mod request;
pub mod wire;

pub use export::ExportFacts;
pub use negotiation::{Agreement, MAX_OPTIONS, Negotiation, Progress, Refused, TlsPolicy};
pub use reply::{Extent, MAX_HEADER_LEN, push_block_status, push_error, push_read, push_simple};
pub use request::{Plan, Refusal, Request, plan};
