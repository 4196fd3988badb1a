//! Messages and descriptors between a daemon and its successor.
//!
//! A message is its length (four bytes, little-endian) and JSON. A descriptor comes with one byte of its own.

use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The longest message.
const MAX_BYTES: usize = 256 << 20;
/// The byte that comes with a descriptor.
const MARK: u8 = 0xfd;

/// Whether something else came than was expected, and not an end.
pub(super) fn is_other(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput)
}

/// One end.
#[derive(Debug)]
pub struct Wire(UnixStream);

impl Wire {
    /// Connects to a daemon's socket.
    ///
    /// # Errors
    /// Those of connect(2).
    pub fn connect(path: &Path) -> io::Result<Self> {
        UnixStream::connect(path).map(Self)
    }

    pub(super) fn new(stream: UnixStream) -> Self {
        Self(stream)
    }

    /// Sets how long each call may take.
    ///
    /// # Errors
    /// Those of setsockopt(2).
    pub fn limit(&self, time: Duration) -> io::Result<()> {
        self.0.set_read_timeout(Some(time))?;
        self.0.set_write_timeout(Some(time))
    }

    /// User and process at the other end.
    pub(super) fn peer(&self) -> io::Result<(u32, i32)> {
        let peer = rustix::net::sockopt::socket_peercred(&self.0)?;
        Ok((peer.uid.as_raw(), peer.pid.as_raw_nonzero().get()))
    }

    /// Sends a message.
    ///
    /// # Errors
    /// When the other end is gone, or does not read in time.
    pub fn send(&self, message: &impl Serialize) -> io::Result<()> {
        let bytes = serde_json::to_vec(message)?;
        let length = u32::try_from(bytes.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let mut stream = &self.0;
        stream.write_all(&length.to_le_bytes())?;
        stream.write_all(&bytes)
    }

    /// Receives a message.
    ///
    /// # Errors
    /// When the other end is gone, is silent, or sends something else.
    pub fn receive<T: DeserializeOwned>(&self) -> io::Result<T> {
        let mut length = [0; 4];
        let mut stream = &self.0;
        stream.read_exact(&mut length)?;
        let length = u32::from_le_bytes(length) as usize;
        if length > MAX_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut bytes = vec![0; length];
        stream.read_exact(&mut bytes)?;
        serde_json::from_slice(&bytes).map_err(io::Error::from)
    }

    /// Sends descriptors.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn send_descriptors(&self, all: &[impl AsFd]) -> io::Result<()> {
        for fd in all {
            let fds = [fd.as_fd()];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            control.push(SendAncillaryMessage::ScmRights(&fds));
            let sent =
                sendmsg(&self.0, &[IoSlice::new(&[MARK])], &mut control, SendFlags::NOSIGNAL)?;
            if sent != 1 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }

    /// Receives that many descriptors.
    ///
    /// # Errors
    /// As [`Self::receive`]; `InvalidData` if a byte comes without one.
    pub fn receive_descriptors(&self, count: usize) -> io::Result<Vec<OwnedFd>> {
        let mut all = Vec::new();
        while all.len() < count {
            let mut byte = [0];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut into = [IoSliceMut::new(&mut byte)];
            let got = recvmsg(&self.0, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC)?;
            let rights = control.drain().find_map(|message| match message {
                RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
                _ => None,
            });
            match rights {
                Some(fd) if byte[0] == MARK => all.push(fd),
                _ if got.bytes == 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
        Ok(all)
    }

    /// The same end once more; none if there are no descriptors left.
    pub(super) fn again(&self) -> Option<Self> {
        self.0.try_clone().ok().map(Self)
    }

    /// Ends the wait for a message, also that of another thread. Messages can still be sent.
    pub(super) fn hear_no_more(&self) {
        let _ = self.0.shutdown(Shutdown::Read);
    }

    /// Waits until the other end has closed: what was sent last has been read then. What comes is thrown away.
    pub(super) fn wait_for_end(&self) {
        let mut bytes = [0; 4096];
        while (&self.0).read(&mut bytes).is_ok_and(|count| count > 0) {}
    }
}
