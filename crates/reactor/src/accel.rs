//! The bridge to the acceleration framework: a core's channel to it, and the memory it may use.

pub(crate) mod accelerator;
mod access;
