//! What `wake_state` is made of; the models put loom's types in its place.

pub(crate) use std::sync::atomic::{AtomicU32, Ordering};
