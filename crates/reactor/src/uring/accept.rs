//! How sockets of a ring listen and accept, and how they go to another process.

#![allow(unsafe_code)]

use std::io;
use std::net::SocketAddr;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use super::direct::RecvAt;
use super::ops::Kind;
use super::{Timer, UringIo};
use crate::io::socket::{self, ACCEPT_PAUSE, accept_outcome, is_transient_accept_error};
use crate::io::{Completion, HandsOver, ListenerId, SocketId, Token, is_taken_back};

/// A listening socket.
pub(super) struct ListenerSlot {
    pub(super) fd: OwnedFd,
    pub(super) token: Token,
    pub(super) accept: Option<u64>,
    pub(super) closing: bool,
    /// It accepts nothing for now.
    pub(super) paused: bool,
}

impl UringIo {
    pub(super) fn handle_accept(
        &mut self,
        user_data: u64,
        listener: u32,
        result: io::Result<usize>,
        more: bool,
        done: &mut Vec<Completion>,
    ) {
        let accepted = result.map(|fd| {
            let fd = RawFd::try_from(fd).expect("descriptors are 31-bit");
            // SAFETY: the kernel has just made it for this completion.
            unsafe { OwnedFd::from_raw_fd(fd) }
        });
        let pause = matches!(&accepted, Err(error) if !is_transient_accept_error(error));
        let taken_back = accepted.as_ref().is_err_and(is_taken_back);
        if !more {
            self.ops.remove(user_data);
        }
        let Some(slot) = self.listeners.get_mut(listener) else { return };
        if slot.closing {
            // A connection that came while the listener was being closed is closed unseen.
            if !more {
                self.listeners.remove(listener);
            }
            return;
        }
        let token = slot.token;
        if !more {
            slot.accept = None;
            if slot.paused || taken_back {
                // It goes on if it may, as after a short pause.
                self.start_accept(listener);
            } else if pause {
                self.timers.push(self.now + ACCEPT_PAUSE, Timer::Accept(listener));
            } else {
                self.start_accept(listener);
            }
        }
        if taken_back {
            return;
        }
        if let Some(outcome) = accept_outcome(accepted) {
            done.push(Completion { token, outcome });
        }
    }

    pub(super) fn start_accept(&mut self, listener: u32) {
        let Some(slot) =
            self.listeners.get(listener).filter(|slot| slot.accept.is_none() && !slot.paused)
        else {
            return;
        };
        let user_data = self.start(slot.token, Kind::Accept { listener });
        if let Some(slot) = self.listeners.get_mut(listener) {
            slot.accept = Some(user_data);
        }
    }
}

impl HandsOver for UringIo {
    fn stop_recv(&mut self, socket: SocketId) {
        match self.sockets.get(socket.0).map(|slot| &slot.recv) {
            Some(Some(RecvAt::Ring(user_data))) => self.cancel(*user_data),
            Some(Some(RecvAt::Direct(_))) => self.cancel_direct(socket.0),
            Some(None) | None => {}
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
        match slot.accept {
            Some(accept) if paused => self.cancel(accept),
            Some(_) => {}
            None => self.start_accept(listener.0),
        }
    }

    fn adopt_listener(
        &mut self,
        listener: OwnedFd,
        token: Token,
    ) -> io::Result<(ListenerId, SocketAddr)> {
        let address = socket::address_of_listener(&listener)?;
        let (fd, paused) = (listener, true);
        let slot = ListenerSlot { fd, token, accept: None, closing: false, paused };
        let id = self.listeners.insert(slot).map_err(|_| io::ErrorKind::QuotaExceeded)?;
        Ok((ListenerId(id), address))
    }
}
