//! The sockets of a front end, by which its connection is cut and it is told of changes.

use std::io::Write as _;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The sockets of the front end that is connected.
#[derive(Default)]
pub(crate) struct Link {
    ends: Mutex<Ends>,
}

/// The sockets.
#[derive(Default)]
pub(crate) struct Ends {
    /// Where its requests come from.
    pub(crate) front: Option<UnixStream>,
    /// Where it is told of changes.
    pub(crate) back: Option<UnixStream>,
}

impl Link {
    pub(crate) fn ends(&self) -> MutexGuard<'_, Ends> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the connection.
    pub(crate) fn cut(&self) {
        if let Some(front) = &self.ends().front {
            // It may be closed already.
            let _ = front.shutdown(Shutdown::Both);
        }
    }

    /// Has the front end read the configuration space again (BACKEND_CONFIG_CHANGE_MSG).
    pub(crate) fn tell_change(&self) {
        const CONFIG_CHANGE: u32 = 2;
        const VERSION: u32 = 1;
        let words = [CONFIG_CHANGE, VERSION, 0].map(u32::to_ne_bytes);
        if let Some(back) = &mut self.ends().back
            && let Err(error) = back.write_all(words.as_flattened())
        {
            tracing::warn!("a front end does not learn of the disk's new size: {error}");
        }
    }
}
