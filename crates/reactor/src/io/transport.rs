//! What a provider builds on: the kernel's TCP or a simulated connection, to read from and write to.

use std::fmt;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use socket2::SockRef;

use crate::io::RecvBuffers;
use crate::io::nonblocking::{receive, transmit};
use crate::io::socket::{reset_on_close, unread};
use crate::io::stream::{ByteStream, Source};
use crate::send::SendBatch;
use crate::sim::SimSocket;

/// A connected, non-blocking socket taken apart by a provider ([`crate::Socket::into_transport`]).
///
/// It reads and writes bytes from the provider's memory. Bytes that need no provider, such as those
/// of a connection whose records the kernel makes, can go through its [`ByteStream`] without a copy.
/// Dropped, it is closed.
pub struct Transport {
    inner: Inner,
}

enum Inner {
    Os(OwnedFd),
    Simulated(SimSocket),
}

impl Transport {
    pub(crate) fn of_kernel(fd: OwnedFd) -> Transport {
        Transport { inner: Inner::Os(fd) }
    }

    pub(crate) fn of_simulation(end: SimSocket) -> Transport {
        Transport { inner: Inner::Simulated(end) }
    }

    /// The next byte, which the next read gives again; `None` at the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` when there is none; else the connection is lost.
    pub fn peek(&self) -> io::Result<Option<u8>> {
        match &self.inner {
            Inner::Os(fd) => {
                let mut byte = [0];
                let (_, count) = rustix::net::recv(fd, &mut byte, rustix::net::RecvFlags::PEEK)?;
                Ok((count > 0).then_some(byte[0]))
            }
            Inner::Simulated(end) => end.peek(),
        }
    }
}

impl Read for Transport {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match &mut self.inner {
            Inner::Os(fd) => (&*SockRef::from(&*fd)).read(buf),
            Inner::Simulated(end) => end.read(buf),
        }
    }
}

impl Write for Transport {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match &mut self.inner {
            Inner::Os(fd) => SockRef::from(&*fd).send_with_flags(buf, libc::MSG_NOSIGNAL),
            Inner::Simulated(end) => end.write(buf),
        }
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        match &mut self.inner {
            Inner::Os(fd) => SockRef::from(&*fd).send_vectored_with_flags(bufs, libc::MSG_NOSIGNAL),
            Inner::Simulated(end) => {
                let first = bufs.iter().find(|buf| !buf.is_empty());
                first.map_or(Ok(0), |first| end.write(first))
            }
        }
    }

    /// Nothing is kept.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl ByteStream for Transport {
    fn receive(&mut self, into: &mut RecvBuffers) -> io::Result<usize> {
        match &mut self.inner {
            Inner::Os(fd) => receive(fd, into),
            Inner::Simulated(end) => {
                let [payload, staging] = into.parts(0);
                end.read(if payload.is_empty() { staging } else { payload })
            }
        }
    }

    fn transmit(&mut self, batch: &mut SendBatch) -> io::Result<usize> {
        match &mut self.inner {
            Inner::Os(fd) => transmit(fd, batch),
            Inner::Simulated(end) => {
                let mut bytes = vec![0; batch.len().min(end.room()?)];
                let count = batch.copy_unsent(&mut bytes);
                end.write(&bytes[..count])
            }
        }
    }

    fn unread(&mut self) -> usize {
        match &self.inner {
            Inner::Os(fd) => unread(fd),
            Inner::Simulated(end) => end.unread(),
        }
    }

    fn source(&self) -> Source<'_> {
        match &self.inner {
            Inner::Os(fd) => Source::descriptor(fd.as_fd()),
            Inner::Simulated(end) => Source::simulated(end),
        }
    }

    fn kernel_socket(&self) -> Option<BorrowedFd<'_>> {
        match &self.inner {
            Inner::Os(fd) => Some(fd.as_fd()),
            Inner::Simulated(_) => None,
        }
    }

    fn close(&mut self, reset: bool) {
        match &self.inner {
            Inner::Os(fd) if reset => reset_on_close(fd),
            Inner::Os(_) => {}
            Inner::Simulated(end) => end.close(reset),
        }
    }
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.inner {
            Inner::Os(fd) => write!(f, "Transport({fd:?})"),
            Inner::Simulated(end) => write!(f, "Transport({end:?})"),
        }
    }
}
