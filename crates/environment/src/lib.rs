//! What of a machine matters for a measurement: read without changing it, checked, and compared.
//!
//! [`Environment::read`] reads it. Each value is a [`Reading`]: the value, or the reason why it could not be
//! read. [`check`](check()) judges it. [`differences`] says in what two environments differ that changes results.

pub mod check;
pub mod cpu;
pub mod drives;
pub mod ethtool;
pub mod idle;
pub mod interface;
pub mod kernel;
pub mod measure;
pub mod memory;
pub mod network;
pub mod now;
pub mod platform;
pub mod programs;
pub mod services;

mod checks;
mod difference;
mod reading;
mod snapshot;
mod system;

pub use checks::check;
pub use difference::{Difference, differences};
pub use reading::Reading;
pub use snapshot::{Environment, SCHEMA};
pub use system::System;
