//! Connecting: what is not done at once goes on in the background.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;

use socket2::SockRef;

use super::{CONNECT, ConnectSlot, EDGE, EpollIo, WRITABLE};
use crate::io::socket::{self, ConnectOptions, Socket};
use crate::io::{Completion, Outcome, Token};

impl EpollIo {
    /// Starts a connect; `None` if it goes on in the background.
    pub(super) fn try_connect(
        &mut self,
        address: SocketAddr,
        options: ConnectOptions,
        token: Token,
    ) -> Option<io::Result<Socket>> {
        let fd = match socket::for_connect(address, options) {
            Ok(fd) => fd,
            Err(error) => return Some(Err(error)),
        };
        match SockRef::from(&fd).connect(&address.into()) {
            Ok(()) => return Some(Socket::from_fd(fd)),
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
            Err(error) => return Some(Err(error)),
        }
        let raw = fd.as_raw_fd();
        let Ok(id) = self.connects.insert(ConnectSlot { fd, token }) else {
            return Some(Err(io::ErrorKind::QuotaExceeded.into()));
        };
        let data = CONNECT << 32 | u64::from(id);
        if let Err(error) = self.control(libc::EPOLL_CTL_ADD, raw, WRITABLE | EDGE, data) {
            self.connects.remove(id);
            return Some(Err(error));
        }
        None
    }

    pub(super) fn finish_connect(&mut self, connect: u32, done: &mut Vec<Completion>) {
        let Some(ConnectSlot { fd, token }) = self.connects.remove(connect) else { return };
        // The core that adopts the socket watches it. An error here does no harm.
        let _ = self.control(libc::EPOLL_CTL_DEL, fd.as_raw_fd(), 0, 0);
        let result = match SockRef::from(&fd).take_error() {
            Ok(None) => Socket::from_fd(fd),
            Ok(Some(error)) | Err(error) => Err(error),
        };
        done.push(Completion { token, outcome: Outcome::Connected(result) });
    }
}
