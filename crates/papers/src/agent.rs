//! Several load generators at the same time: agents, which run loads, and the fleet that one controller drives.
//!
//! An agent is `raceline bench agent`, on another machine, in another network namespace, or beside others. It speaks
//! JSON lines over its standard input and output, or over TCP. The controller estimates the offset of each agent's
//! clock, gives all of them one common start, and merges their histograms. Latencies are always taken on one clock, so
//! an error of an offset shifts windows only.

pub mod fleet;
pub mod link;
pub mod load;
pub mod message;
pub mod serve;

use std::fs;

/// The version of this program.
#[must_use]
pub fn version() -> String {
    env!("CARGO_PKG_VERSION").to_owned()
}

/// What an agent says about its machine.
fn environment() -> serde_json::Value {
    let read = |path: &str| fs::read_to_string(path).map(|text| text.trim().to_owned()).ok();
    serde_json::json!({
        "hostname": read("/proc/sys/kernel/hostname"),
        "kernel": read("/proc/sys/kernel/osrelease"),
        "cpus": std::thread::available_parallelism().map_or(1, usize::from),
    })
}
