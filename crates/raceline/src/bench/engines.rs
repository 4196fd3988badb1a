//! Offload engines for measurements.

use std::io;
use std::sync::Arc;

use raceline_bench::accel::Device;
use raceline_dsa::discover::Roots;
use raceline_dsa::emulated::EmulatedConfig;
use raceline_dsa::{DsaEngine, EmulatedEngine};
use raceline_reactor::affinity::pin_to_core;

use crate::failure::Failure;

/// The DSA devices of this machine, for one core.
pub(super) fn dsa() -> Result<Device, Failure> {
    let engine = DsaEngine::discover(Roots::default(), 1).map_err(Failure::runtime)?;
    Ok(Device { engine: Arc::new(engine), is_emulated: false })
}

/// A thread that emulates a DSA device, on this core or on any.
pub(super) fn emulated_dsa(core: Option<usize>) -> Result<Device, Failure> {
    let start = move || {
        // A new thread inherits the core of the thread that starts it.
        core.map_or(Ok(()), pin_to_core)?;
        EmulatedEngine::start(EmulatedConfig::default(), 1)
    };
    let started = std::thread::Builder::new().spawn(start).and_then(|starter| {
        starter
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the thread that starts it panicked")))
    });
    let engine = started
        .map_err(|error| Failure::runtime(format!("cannot start an emulated DSA: {error}")))?;
    Ok(Device { engine: Arc::new(engine), is_emulated: true })
}
