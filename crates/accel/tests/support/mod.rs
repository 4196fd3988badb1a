//! What the tests of channels share: memory that is counted, a naive model, an engine that misbehaves.

#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(clippy::unwrap_used, reason = "tests")]

pub(crate) mod drive;
pub(crate) mod engine;
pub(crate) mod memory;
pub(crate) mod model;
pub(crate) mod random;
