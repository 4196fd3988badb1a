//! State that survives: every change is on disk before it is acknowledged.
//!
//! The state directory holds the configuration as it was after change N (`config-N.json`, SPDK's JSON form)
//! and a log of the changes since (`changes-M.log`, which begins with change M). The caller defines what a
//! change is: here it is a JSON value. It is recorded in these steps:
//!
//! 1. [`Store::reserve`]: reserves room for it in the log. A full disk refuses it here, before anything has
//!    happened.
//! 2. The caller applies it. If that fails, dropping its [`Permit`] forgets it.
//! 3. [`Store::append`], in the order in which the changes were applied. The change is recorded with every
//!    identity that was chosen for it (UUIDs, serial numbers, namespace ids), so that applying it again
//!    gives the same target.
//! 4. [`Store::wait`], then the change is acknowledged. One thread writes all changes that have been
//!    appended meanwhile as one group, and syncs it once for all waiting callers.
//!
//! A change is logged after its effect, so a change that failed is never in the log, and every change in it
//! has been applied once and can be applied again. A change that a crash loses was never acknowledged. If
//! the disk fails between steps 2 and 4, the caller gets an error, the change may or may not be there after
//! a restart, and no further change is accepted.
//!
//! When the log has grown, [`Store::checkpoint`] writes a new configuration file beside the old
//! one (write, sync, rename, sync of the directory) and removes what the *previous* file does not
//! need: if the newest file is damaged, the previous one and the log give the same state.
//!
//! [`StateJournal`] makes all this the journal of a [`Manager`](crate::manager::Manager).
//!
//! One kind of damage looks like a write that a crash interrupted: damage of the very last group, before
//! the daemon has ended in good order or written another group. That group is cut off, with a note.

mod change_log;
mod committer;
mod disk;
mod document;
mod error;
mod format;
mod kept;
mod look;
mod store;

#[cfg(test)]
mod crash_tests;
#[cfg(test)]
mod ptpl_tests;
#[cfg(test)]
mod sim;
#[cfg(test)]
mod store_tests;

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

pub use disk::{Disk, DiskFile, RealDisk};
pub use error::StateError;
pub use format::MAX_CHANGE_BYTES;
pub use kept::{Kept, StateJournal};
pub use store::{Health, Permit, Store};

/// A call of the control plane that makes a part of the configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// The method, as in `nvmf_create_subsystem`.
    pub method: String,
    /// Its parameters, with every identity filled in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub params: Option<Value>,
}

/// The calls that make one subsystem of the framework what it is (`bdev`, `nvmf`...).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SubsystemConfig {
    /// The subsystem of the framework.
    pub subsystem: String,
    /// Its calls, in the order in which they are made.
    #[serde(default, deserialize_with = "calls")]
    pub config: Vec<Call>,
}

/// A whole configuration: the calls that make a target from nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Configuration {
    /// By subsystem of the framework, in the order in which they are made.
    pub subsystems: Vec<SubsystemConfig>,
    /// State that has to survive but is no call, such as generation counters.
    pub identity: Value,
}

/// What a state directory held when it was opened.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recovered {
    /// The configuration at the start.
    pub configuration: Configuration,
    /// The changes to apply after it, as appended and in that order.
    pub changes: Vec<Value>,
    /// The number of the last change.
    pub sequence: u64,
    /// What was found and repaired, for the log.
    pub notes: Vec<String>,
}

impl Recovered {
    /// Whether nothing has ever been recorded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sequence == 0
    }
}

/// A list of calls, or of lists of calls, which SPDK sends as one batch each. `null` is empty.
fn calls<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Call>, D::Error> {
    let elements: Option<Vec<Element>> = Option::deserialize(deserializer)?;
    Ok(elements.into_iter().flatten().flat_map(|Element(calls)| calls).collect())
}

/// A call, or the calls of a batch.
struct Element(Vec<Call>);

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrMore;
        impl<'de> Visitor<'de> for OneOrMore {
            type Value = Element;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a call or a list of calls")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Element, A::Error> {
                Call::deserialize(MapAccessDeserializer::new(map)).map(|call| Element(vec![call]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Element, A::Error> {
                let mut calls = Vec::new();
                while let Some(call) = seq.next_element()? {
                    calls.push(call);
                }
                Ok(Element(calls))
            }
        }
        deserializer.deserialize_any(OneOrMore)
    }
}
