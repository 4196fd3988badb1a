//! The thread of one core: its loop, the work it does, and how others reach it.

pub mod affinity;
pub mod core;
pub(crate) mod cores;
pub mod mailbox;
pub(crate) mod roll;
pub mod service;
pub mod stats;
mod wake_state;
pub mod waker;
