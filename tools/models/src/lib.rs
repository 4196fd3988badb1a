//! The host's submission list and gate, and the reactor's wake-up, compiled over loom's types and run under every
//! schedule that it finds, and the same with a bug, which it must find too.
//!
//! The files are those that production uses; only `crate::sync` is another.

#[cfg(test)]
#[allow(unreachable_pub, reason = "it is public where it comes from")]
#[path = "../../../crates/host/src/shared/gate.rs"]
mod gate;
#[cfg(test)]
#[allow(dead_code, unreachable_pub, reason = "models use a part")]
#[path = "../../../crates/host/src/shared/submission.rs"]
mod submission;
#[cfg(test)]
mod sync;
#[cfg(test)]
#[allow(dead_code, reason = "models use a part")]
#[path = "../../../crates/reactor/src/thread/wake_state.rs"]
mod wake_state;

#[cfg(test)]
mod gate_models;
#[cfg(test)]
mod submission_models;
