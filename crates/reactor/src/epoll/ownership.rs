//! How sockets become this core's, and how they leave it.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use super::{
    EDGE, EpollIo, HUNG_UP, LISTENER, ListenerSlot, READABLE, SOCKET, SocketSlot, WRITABLE,
};
use crate::flow::SocketClass;
use crate::io::provided::slot_of;
use crate::io::socket::{self, Inner, Socket};
use crate::io::{HandsOver, ListenerId, Outcome, SocketId, Token};

impl EpollIo {
    pub(super) fn adopt_socket(&mut self, socket: Socket) -> io::Result<SocketId> {
        let fd = match socket.into_inner() {
            Inner::Os(fd) => fd,
            Inner::Provided(stream) => return self.adopt_stream(stream),
            Inner::Simulated(_) => return Err(io::ErrorKind::Unsupported.into()),
        };
        let raw = fd.as_raw_fd();
        let slot = SocketSlot {
            fd,
            class: SocketClass::ADMIN,
            recv: None,
            send: None,
            readable: true,
            writable: true,
            hung_up: false,
            attempting: false,
            corked: false,
        };
        let id = self.sockets.insert(slot).map_err(|_| io::ErrorKind::QuotaExceeded)?;
        let events = READABLE | WRITABLE | HUNG_UP | EDGE;
        if let Err(error) =
            self.control(libc::EPOLL_CTL_ADD, raw, events, SOCKET << 32 | u64::from(id))
        {
            self.sockets.remove(id);
            return Err(error);
        }
        Ok(SocketId(id))
    }

    /// Gives a socket up, unless something of it is in flight here.
    pub(super) fn release_socket(
        &mut self,
        socket: SocketId,
        ends: (SocketAddr, SocketAddr),
    ) -> Option<Socket> {
        if let Some(slot) = slot_of(socket) {
            let fd = self.provided.fd(slot);
            let (stream, _) = self.provided.release(slot)?;
            if let Some(fd) = fd {
                // Its next core watches it.
                let _ = self.control(libc::EPOLL_CTL_DEL, fd, 0, 0);
            }
            return Some(Socket::provided(stream, ends.0, ends.1));
        }
        let is_idle = |slot: &&SocketSlot| slot.recv.is_none() && slot.send.is_none();
        self.sockets.get(socket.0).filter(is_idle).filter(|slot| !slot.corked)?;
        let slot = self.sockets.remove(socket.0)?;
        let _ = self.control(libc::EPOLL_CTL_DEL, slot.fd.as_raw_fd(), 0, 0);
        Some(Socket::released(slot.fd, ends))
    }

    pub(super) fn close_socket(&mut self, socket: SocketId, reset: bool) {
        let Some(slot) = self.sockets.remove(socket.0) else {
            return self.close_provided(socket, reset);
        };
        let cancelled = || io::Error::from_raw_os_error(libc::ECANCELED);
        if let Some((token, buffers)) = slot.recv {
            self.finish(token, Outcome::Received(Err(cancelled()), buffers));
        }
        if let Some((token, batch)) = slot.send {
            self.finish(token, Outcome::Sent(Err(cancelled()), batch));
        }
        if reset {
            socket::reset_on_close(&slot.fd);
        }
        // Between polls nothing is in the kernel, so the descriptor can go at once.
    }
}

impl HandsOver for EpollIo {
    fn stop_recv(&mut self, socket: SocketId) {
        let recv = self.sockets.get_mut(socket.0).and_then(|slot| slot.recv.take());
        if let Some((token, buffers)) = recv {
            let cancelled = io::Error::from_raw_os_error(libc::ECANCELED);
            self.finish(token, Outcome::Received(Err(cancelled), buffers));
        }
    }

    fn copy_socket(&mut self, socket: SocketId) -> Option<OwnedFd> {
        self.uncork(socket.0);
        self.sockets.get(socket.0)?.fd.try_clone().ok()
    }

    fn copy_listener(&self, listener: ListenerId) -> Option<OwnedFd> {
        self.listeners.get(listener.0)?.fd.try_clone().ok()
    }

    fn pause_listener(&mut self, listener: ListenerId, paused: bool) {
        let Some(slot) = self.listeners.get_mut(listener.0) else { return };
        slot.paused = paused;
        let data = LISTENER << 32 | u64::from(listener.0);
        let (fd, events) = (slot.fd.as_raw_fd(), if paused { 0 } else { READABLE });
        if let Err(error) = self.control(libc::EPOLL_CTL_MOD, fd, events, data) {
            tracing::error!("a listener cannot be watched any more: {error}");
        }
    }

    fn adopt_listener(
        &mut self,
        fd: OwnedFd,
        token: Token,
    ) -> io::Result<(ListenerId, SocketAddr)> {
        let address = socket::address_of_listener(&fd)?;
        let raw = fd.as_raw_fd();
        let slot = ListenerSlot { fd, token, paused: true };
        let id = self.listeners.insert(slot).map_err(|_| io::ErrorKind::QuotaExceeded)?;
        let data = LISTENER << 32 | u64::from(id);
        if let Err(error) = self.control(libc::EPOLL_CTL_ADD, raw, 0, data) {
            self.listeners.remove(id);
            return Err(error);
        }
        Ok((ListenerId(id), address))
    }
}
