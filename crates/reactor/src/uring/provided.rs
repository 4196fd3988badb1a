//! Streams and listeners of providers: tried like sockets without the ring, which waits for their news.

use std::io;

use super::direct::{ALWAYS_TRIED, TRIES_MAX};
use super::ops::Kind;
use super::{CANCEL_DATA, UringIo};
use crate::io::provided::{Next, slot_of, slot_of_listener, socket_of};
use crate::io::socket::not_usable;
use crate::io::stream::{ByteStream, Interest};
use crate::io::{Completion, ListenerId, Outcome, RecvBuffers, SocketId, Token};
use crate::send::SendBatch;

/// The token of a watch, whose completion goes to no owner.
const NO_TOKEN: Token = Token { owner: 0, generation: 0, index: 0 };

impl UringIo {
    pub(super) fn adopt_stream(&mut self, stream: Box<dyn ByteStream>) -> io::Result<SocketId> {
        // Refuses a source that is not real.
        stream.source().real()?;
        Ok(socket_of(self.provided.adopt(stream)?))
    }

    /// Starts a receive on an id that is no usable socket of the kernel.
    #[cold]
    pub(super) fn recv_provided(&mut self, socket: SocketId, buffers: RecvBuffers, token: Token) {
        if let Err(buffers) = self.provided.recv(socket, buffers, token) {
            self.finish(token, Outcome::Received(Err(not_usable()), buffers));
        }
    }

    /// Starts a send on an id that is no usable socket of the kernel.
    #[cold]
    pub(super) fn send_provided(
        &mut self,
        socket: SocketId,
        mut batch: Box<SendBatch>,
        token: Token,
    ) {
        if let Some(class) = self.provided.class(socket) {
            self.neighbours.plan(socket, &class, self.now, &mut batch);
        }
        if let Err(batch) = self.provided.send(socket, batch, token) {
            self.finish(token, Outcome::Sent(Err(not_usable()), batch));
        }
    }

    /// Closes an id that is no open socket of the kernel.
    #[cold]
    pub(super) fn close_provided(&mut self, socket: SocketId, reset: bool) {
        if let Some(slot) = slot_of(socket) {
            self.close_slot(slot, reset);
        }
    }

    /// Closes an id that is no listener of the kernel.
    #[cold]
    pub(super) fn close_provided_listener(&mut self, listener: ListenerId) {
        if let Some(slot) = slot_of_listener(listener) {
            self.close_slot(slot, false);
        }
    }

    pub(super) fn close_all_provided(&mut self) {
        self.provided.ids().into_iter().for_each(|slot| self.close_slot(slot, false));
    }

    fn close_slot(&mut self, slot: u32, reset: bool) {
        if self.provided.close(slot, reset, &mut self.ready) {
            if let Some(Some((user_data, _))) = self.provided.watch(slot).copied() {
                self.cancel(user_data);
            }
            self.provided.remove_if_idle(slot);
        }
    }

    /// Tries slots that have news or operations, and slots that wait. If there are more than
    /// [`ALWAYS_TRIED`], the ring watches those that were quiet for [`TRIES_MAX`] tries.
    pub(super) fn try_provided(&mut self, done: &mut Vec<Completion>) {
        let crowded = self.provided.trying() > ALWAYS_TRIED;
        for _ in 0..self.provided.trying() {
            let Some(slot) = self.provided.next() else { return };
            match self.provided.attempt(slot, &mut self.counts, done) {
                Next::Idle => {}
                Next::Wait(interest) if crowded && self.provided.misses(slot) >= TRIES_MAX => {
                    self.watch(slot, interest);
                }
                Next::Wait(_) | Next::Again => self.provided.try_on(slot),
            }
        }
    }

    /// Has the ring watch all slots that wait, so that any of them ends a wait. False if a slot is to be
    /// tried again without news.
    pub(super) fn watch_provided(&mut self) -> bool {
        let mut sleeps = true;
        for _ in 0..self.provided.trying() {
            let Some(slot) = self.provided.next() else { break };
            let interest = self.provided.interest(slot);
            if interest.is_none() || self.provided.fd(slot).is_none() {
                self.provided.try_on(slot);
                sleeps = false;
            } else {
                self.watch(slot, interest);
            }
        }
        sleeps
    }

    /// Has the ring say when a slot has news.
    fn watch(&mut self, slot: u32, interest: Interest) {
        match self.provided.watch(slot).copied().flatten() {
            Some((_, watched)) if watched.covers(interest) => {}
            // Its end counts as news, and the next watch covers more.
            Some((user_data, _)) => self.cancel(user_data),
            None => {
                let user_data = self.start(NO_TOKEN, Kind::Watch { slot, interest });
                if let Some(watch) = self.provided.watch(slot) {
                    *watch = Some((user_data, interest));
                }
            }
        }
    }

    /// There are news, or the watch was cancelled.
    pub(super) fn handle_watch(&mut self, user_data: u64) {
        debug_assert_ne!(user_data, CANCEL_DATA);
        let Some(Kind::Watch { slot, .. }) = self.ops.remove(user_data) else { return };
        if let Some(watch) = self.provided.watch(slot) {
            *watch = None;
        }
        self.provided.remove_if_idle(slot);
        self.provided.wake(slot);
    }
}
