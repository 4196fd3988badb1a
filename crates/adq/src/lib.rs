//! Queues of a network device for one application: Intel's ADQ, and what comes close to it on other devices.
//!
//! [`facts::Facts`] is what a machine and its device are and have. [`plan::plan`] makes of it an ordered list of
//! [`plan::Step`]s, without looking at the machine. [`apply::apply`] takes them, with a [`journal::Journal`] written
//! before each, and [`revert::revert`] gives every value back. [`show::show`] compares the journal with what there is.

#![forbid(unsafe_code)]

pub mod apply;
pub mod error;
pub mod facts;
pub mod guard;
pub mod journal;
pub mod judge;
pub mod machine;
pub mod plan;
pub mod revert;
pub mod setting;
pub mod show;
