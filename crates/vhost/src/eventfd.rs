//! The guest's and the device's way to wake each other: event counters that the front end makes.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::SocketAddr;
use std::os::fd::AsFd as _;

use raceline_reactor::io::RecvBuffers;
use raceline_reactor::{ByteStream, SendBatch, Socket, Source};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

/// A counter that a core waits for: each count that it has taken is a byte of a stream.
struct Kicks(File);

/// Makes a core's socket of a counter.
///
/// # Errors
/// When it cannot be made non-blocking.
pub(crate) fn kicks(counter: File) -> io::Result<Socket> {
    set_nonblocking(&counter)?;
    let nowhere = SocketAddr::from(([0; 4], 0));
    Ok(Socket::provided(Box::new(Kicks(counter)), nowhere, nowhere))
}

impl ByteStream for Kicks {
    fn receive(&mut self, into: &mut RecvBuffers) -> io::Result<usize> {
        let mut count = [0; 8];
        match self.0.read(&mut count)? {
            0 => Ok(0),
            _ => Ok(into.put(0, &[1])),
        }
    }

    fn transmit(&mut self, _batch: &mut SendBatch) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn unread(&mut self) -> usize {
        0
    }

    fn source(&self) -> Source<'_> {
        Source::descriptor(self.0.as_fd())
    }

    fn close(&mut self, _reset: bool) {}
}

/// A counter by which the guest gets an interrupt.
#[derive(Debug)]
pub(crate) struct Interrupt(File);

impl Interrupt {
    /// # Errors
    /// When it cannot be made non-blocking.
    pub(crate) fn new(counter: File) -> io::Result<Self> {
        set_nonblocking(&counter)?;
        Ok(Self(counter))
    }

    /// A counter that is full already wakes whoever waits for it.
    pub(crate) fn raise(&self) {
        if let Err(error) = (&self.0).write_all(&1_u64.to_ne_bytes())
            && error.kind() != io::ErrorKind::WouldBlock
        {
            tracing::debug!("an interrupt of a guest: {error}");
        }
    }
}

fn set_nonblocking(file: &File) -> io::Result<()> {
    let flags = fcntl_getfl(file)?;
    fcntl_setfl(file, flags | OFlags::NONBLOCK)?;
    Ok(())
}
