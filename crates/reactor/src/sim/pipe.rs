//! One end of a simulated connection as bytes to read and write, for streams of providers.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a provider's stream and the simulated network know of each other. The network moves bytes
/// when their events are due; the stream takes and leaves them meanwhile.
#[derive(Debug, Default)]
pub(super) struct Pipe {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Bytes that have come.
    arrived: VecDeque<u8>,
    /// The stream ends after them.
    ended: bool,
    /// The connection is gone.
    broken: bool,
    /// The peer takes no more.
    peer_gone: bool,
    /// Bytes that are to leave.
    outgoing: VecDeque<u8>,
    /// Most of them at a time; 0 until the end is adopted.
    outgoing_max: usize,
    /// The stream was closed with a reset.
    reset: bool,
}

impl Pipe {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The end is adopted: it may have `outgoing_max` bytes on their way out.
    pub(super) fn open(&self, outgoing_max: usize) {
        self.state().outgoing_max = outgoing_max;
    }

    /// Bytes come, the last of the stream or not.
    pub(super) fn arrive(&self, bytes: impl Iterator<Item = u8>, ended: bool) {
        let mut state = self.state();
        state.arrived.extend(bytes);
        state.ended = ended;
    }

    /// The connection breaks.
    pub(super) fn break_off(&self) {
        let mut state = self.state();
        state.broken = true;
        state.arrived.clear();
        state.outgoing.clear();
    }

    /// The peer has closed.
    pub(super) fn lose_peer(&self) {
        let mut state = self.state();
        state.peer_gone = true;
        state.outgoing.clear();
    }

    /// Bytes that have come and were not read.
    pub(super) fn unread(&self) -> usize {
        self.state().arrived.len()
    }

    /// Bytes that wait to leave.
    pub(super) fn waiting(&self) -> usize {
        self.state().outgoing.len()
    }

    /// `count` of them leave.
    pub(super) fn take(&self, count: usize) -> Vec<u8> {
        self.state().outgoing.drain(..count).collect()
    }

    /// Whether the stream was closed with a reset.
    pub(super) fn is_reset(&self) -> bool {
        self.state().reset
    }
}

/// One end of a simulated connection on its way between cores, or in the hands of a provider.
pub(crate) struct SimSocket {
    /// Names the end in its world, until it is adopted as it is.
    pub(super) end: Option<u32>,
    /// Ends that were dropped; the world closes them.
    pub(super) dropped: Arc<Mutex<Vec<u32>>>,
    pub(super) pipe: Arc<Pipe>,
}

impl SimSocket {
    /// Reads as a non-blocking socket does.
    pub(crate) fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        let mut state = self.pipe.state();
        if state.broken {
            return Err(io::Error::from_raw_os_error(libc::ECONNRESET));
        }
        if state.arrived.is_empty() && !state.ended {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let count = buf.len().min(state.arrived.len());
        for (to, from) in buf.iter_mut().zip(state.arrived.drain(..count)) {
            *to = from;
        }
        Ok(count)
    }

    /// The next byte, which stays; `None` at the end of the stream.
    pub(crate) fn peek(&self) -> io::Result<Option<u8>> {
        let state = self.pipe.state();
        match state.arrived.front() {
            _ if state.broken => Err(io::Error::from_raw_os_error(libc::ECONNRESET)),
            None if !state.ended => Err(io::ErrorKind::WouldBlock.into()),
            next => Ok(next.copied()),
        }
    }

    /// Writes as a non-blocking socket does.
    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let room = self.room()?;
        let count = bytes.len().min(room);
        self.pipe.state().outgoing.extend(&bytes[..count]);
        Ok(count)
    }

    /// How many bytes a write takes, at least one.
    pub(crate) fn room(&self) -> io::Result<usize> {
        let state = self.pipe.state();
        if state.broken || state.peer_gone {
            return Err(io::Error::from_raw_os_error(libc::EPIPE));
        }
        match state.outgoing_max.saturating_sub(state.outgoing.len()) {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            room => Ok(room),
        }
    }

    /// Bytes that have come and were not read.
    pub(crate) fn unread(&self) -> usize {
        self.pipe.unread()
    }

    /// The drop closes it this way.
    pub(crate) fn close(&self, reset: bool) {
        self.pipe.state().reset = reset;
    }
}

impl Drop for SimSocket {
    fn drop(&mut self) {
        if let Some(end) = self.end {
            self.dropped.lock().unwrap_or_else(PoisonError::into_inner).push(end);
        }
    }
}

impl fmt::Debug for SimSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimSocket({:?})", self.end)
    }
}
