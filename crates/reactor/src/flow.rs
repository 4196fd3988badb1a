//! How bytes travel: facts about the machine and the core, and the one policy that decides by them.
//!
//! | module | what it holds |
//! |---|---|
//! | [`machine`] | the caches, as sysfs describes them or an operator does |
//! | [`flight`] | what the queues of one core have under way, exactly |
//! | [`class`] | what a socket is for, declared by its owner |
//! | [`turn_share`] | what devices in memory may still do in this turn of the core's loop |
//! | [`policy`] | every threshold, and the decisions that follow: pure functions with a table of tests |
//!
//! The mechanisms (host, target, back ends) ask the policy once for each command or each turn. None of
//! them has a threshold of its own.

pub mod class;
pub mod flight;
pub mod machine;
pub mod policy;
pub mod turn_share;

pub use class::{Departure, SocketClass, Traffic};
pub use flight::{Flight, Load};
pub use machine::Machine;
pub use policy::Regime;
pub use turn_share::TurnShare;
