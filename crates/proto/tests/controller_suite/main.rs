//! The controller, driven the way a target drives it, in virtual time.
#![allow(clippy::unwrap_used)] // a test

mod ana;
mod connect;
mod cross_reset;
mod discovery;
mod events;
mod features;
mod identify;
mod io;
mod keep_alive;
mod lba_status;
mod logs;
mod management;
mod properties;
mod random;
mod reservations;
mod security;
mod support;
mod visibility;
