//! The host's submission list and gate, and the reactor's wake-up, compiled with loom's types and run under
//! every schedule that loom explores; and versions with a bug, which loom must find.
//!
//! The files are those of production; only `crate::sync` is replaced.

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
