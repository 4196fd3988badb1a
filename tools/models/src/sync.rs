//! The items of the `sync` of host and reactor, from loom.

pub(crate) use std::sync::TryLockError;

pub(crate) use loom::cell::UnsafeCell;
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
pub(crate) use loom::sync::{Arc, Mutex};

/// Most switches away from a thread that could have gone on, in one schedule of a model. Two find
/// nearly all bugs (Musuvathi and Qadeer, 2007), and three keep a model within seconds.
const PREEMPTIONS: usize = 3;

/// Runs `model` under all schedules.
pub(crate) fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(model);
}
