//! Wakes the core of a queue when its RDMA device has news.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use raceline_reactor::SendBatch;
use raceline_reactor::io::RecvBuffers;
use raceline_reactor::{ByteStream, Source};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// A core that spins asks the descriptor so often, by a system call each time. It asks the device for completions in every
/// turn, without one.
const LOOK_INTERVAL: Duration = Duration::from_micros(100);

/// A stream from which one byte can be received whenever a descriptor is readable. The byte says nothing, and the
/// descriptor is left as it is.
#[derive(Debug)]
pub(super) struct Bell {
    fd: OwnedFd,
    /// When the descriptor was asked last.
    looked: Instant,
}

impl Bell {
    pub(super) fn new(fd: OwnedFd) -> Self {
        Self { fd, looked: Instant::now() }
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
        self.looked.elapsed() >= LOOK_INTERVAL
    }

    fn unread(&mut self) -> usize {
        0
    }

    fn source(&self) -> Source<'_> {
        Source::descriptor(self.fd.as_fd())
    }

    fn close(&mut self, _: bool) {}
}
