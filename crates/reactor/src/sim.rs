//! Simulated sockets, files and time.

use std::sync::{Arc, Mutex};

/// One end of a simulated connection on its way between cores.
#[derive(Debug)]
pub(crate) struct SimSocket {
    /// Names the end in its world.
    pub(crate) end: u32,
    /// Ends that were dropped without being adopted; the world closes them.
    pub(crate) dropped: Arc<Mutex<Vec<u32>>>,
}

impl Drop for SimSocket {
    fn drop(&mut self) {
        if let Ok(mut dropped) = self.dropped.lock() {
            dropped.push(self.end);
        }
    }
}
