//! Several load generators at the same time: agents, which run loads, and the fleet that one controller drives.
//!
//! An agent is `raceline bench agent`, on another machine, in another network namespace, or beside others. It speaks
//! JSON lines over its standard input and output, or over TCP. The controller estimates the offset of each agent's
//! clock, gives all of them one common start, cuts what they recorded to the time that all of them recorded, and merges
//! it. Latencies are always taken on one clock, so
//! an error of an offset shifts windows only.

pub mod fleet;
pub mod link;
pub mod load;
pub mod message;
pub mod serve;

/// The version of this program.
#[must_use]
pub fn version() -> String {
    env!("CARGO_PKG_VERSION").to_owned()
}
