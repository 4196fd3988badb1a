//! Wakes the core of a queue when its RDMA device has news.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use raceline_reactor::SendBatch;
use raceline_reactor::io::RecvBuffers;
use raceline_reactor::{ByteStream, Source};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The time between two looks at the descriptor, which take a system call each, on a core that asks the device for completions
/// in every turn without one. A core that does not ask the device looks at the descriptor in every turn.
const LOOK_INTERVAL: Duration = Duration::from_micros(100);

/// A stream from which one byte can be received whenever a descriptor is readable. The byte says nothing, and the
/// descriptor is left as it is.
#[derive(Debug)]
pub(super) struct Bell {
    fd: OwnedFd,
    /// When the descriptor was asked last.
    looked: Instant,
    /// The core has asked the device itself since the bell was tried last.
    was_spun: Arc<AtomicBool>,
}

impl Bell {
    /// Whoever asks the device itself sets `was_spun`.
    pub(super) fn new(fd: OwnedFd, was_spun: Arc<AtomicBool>) -> Self {
        Self { fd, looked: Instant::now(), was_spun }
    }
}

impl ByteStream for Bell {
    fn receive(&mut self, _: &mut RecvBuffers) -> io::Result<usize> {
        self.looked = Instant::now();
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        loop {
            match poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], Some(&now)) {
                Ok(0) => return Err(io::ErrorKind::WouldBlock.into()),
                Ok(_) => return Ok(1),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn transmit(&mut self, _: &mut SendBatch) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn spin(&mut self) -> bool {
        let was_spun = self.was_spun.swap(false, Ordering::Relaxed);
        !was_spun || self.looked.elapsed() >= LOOK_INTERVAL
    }

    fn unread(&mut self) -> usize {
        0
    }

    fn source(&self) -> Source<'_> {
        Source::descriptor(self.fd.as_fd())
    }

    fn close(&mut self, _: bool) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bell_looks_in_every_turn_in_which_nobody_asks_the_device() {
        let (near, _far) = std::os::unix::net::UnixStream::pair().unwrap();
        let was_spun = Arc::new(AtomicBool::new(false));
        let mut bell = Bell::new(near.into(), Arc::clone(&was_spun));
        // No time passes.
        bell.looked = Instant::now() + Duration::from_secs(3600);
        assert!(bell.spin(), "nobody has asked the device");
        was_spun.store(true, Ordering::Relaxed);
        assert!(!bell.spin(), "the core has asked the device in this turn");
        assert!(bell.spin(), "and not in the next one");
        bell.looked = Instant::now();
        std::thread::sleep(LOOK_INTERVAL);
        was_spun.store(true, Ordering::Relaxed);
        assert!(bell.spin(), "the connection manager is asked from time to time");
    }
}
