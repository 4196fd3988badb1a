//! The suites of the host against a target of ours, over TCP.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;
#[macro_use]
#[path = "common/served.rs"]
mod served;
mod suites;
