//! How sockets of a ring listen and accept, and how they go to another process.

#![allow(unsafe_code)]

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, FromRawFd, OwnedFd, RawFd};

use super::direct::RecvAt;
use super::ops::Kind;
use super::{Timer, UringIo};
use crate::io::socket::{self, ACCEPT_PAUSE, accept_outcome, is_transient_accept_error};
use crate::io::{Completion, HandsOver, ListenerId, Outcome, SocketId, Token, is_taken_back, room};

/// A listening socket.
pub(super) struct ListenerSlot {
    pub(super) fd: OwnedFd,
    pub(super) token: Token,
    pub(super) accept: Option<u64>,
    pub(super) closing: bool,
    /// It accepts nothing for now.
    pub(super) paused: bool,
    /// It accepts one connection at a time, so that the kernel does not make more than there is room for: the limit is
    /// small, or there was no room once.
    one_by_one: bool,
}

impl ListenerSlot {
    pub(super) fn new(fd: OwnedFd, token: Token, paused: bool) -> Self {
        Self { fd, token, accept: None, closing: false, paused, one_by_one: !room::is_vast() }
    }
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
        let accepted = accepted.and_then(room::keep);
        let taken_back = accepted.as_ref().is_err_and(is_taken_back);
        let is_full =
            !taken_back && matches!(&accepted, Err(error) if !is_transient_accept_error(error));
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
        let (token, was_one_by_one) = (slot.token, slot.one_by_one);
        slot.one_by_one |= is_full;
        if !more {
            slot.accept = None;
            if is_full || (taken_back && slot.one_by_one && !slot.paused) {
                self.timers.push(self.now + ACCEPT_PAUSE, Timer::Accept(listener));
            } else if slot.one_by_one {
                // If there is no room for the next one, that waits in the kernel.
                self.resume_accept(listener, done);
            } else {
                self.start_accept(listener);
            }
        } else if is_full && !was_one_by_one {
            self.cancel(user_data);
        }
        if taken_back || (is_full && more && was_one_by_one) {
            return;
        }
        if let Some(outcome) = accept_outcome(accepted) {
            done.push(Completion { token, outcome });
        }
    }

    /// Goes on, if there is room.
    pub(super) fn resume_accept(&mut self, listener: u32, done: &mut Vec<Completion>) {
        let waiting = |slot: &&ListenerSlot| slot.accept.is_none() && !slot.paused;
        let Some(slot) = self.listeners.get(listener).filter(waiting) else { return };
        match room::probe(slot.fd.as_fd()) {
            Ok(()) => self.start_accept(listener),
            Err(error) => {
                done.push(Completion { token: slot.token, outcome: Outcome::Accepted(Err(error)) });
                self.timers.push(self.now + ACCEPT_PAUSE, Timer::Accept(listener));
            }
        }
    }

    pub(super) fn start_accept(&mut self, listener: u32) {
        let Some(slot) =
            self.listeners.get(listener).filter(|slot| slot.accept.is_none() && !slot.paused)
        else {
            return;
        };
        let one = slot.one_by_one;
        let user_data = self.start(slot.token, Kind::Accept { listener, one });
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
        let slot = ListenerSlot::new(listener, token, true);
        let id = self.listeners.insert(slot).map_err(|_| io::ErrorKind::QuotaExceeded)?;
        Ok((ListenerId(id), address))
    }
}
