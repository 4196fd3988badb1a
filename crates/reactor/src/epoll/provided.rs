//! Streams and listeners of providers: tried when they are given work, and when their source has news.

use std::io;
use std::net::SocketAddr;

use super::{EDGE, EpollIo, HUNG_UP, PROVIDED, READABLE, WRITABLE};
use crate::io::provided::{Next, slot_of, slot_of_listener, socket_of};
use crate::io::socket::not_usable;
use crate::io::stream::{ByteStream, StreamListener};
use crate::io::{Completion, ListenerId, Outcome, RecvBuffers, SocketId, Token};
use crate::send::SendBatch;

impl EpollIo {
    pub(super) fn adopt_stream(&mut self, stream: Box<dyn ByteStream>) -> io::Result<SocketId> {
        // Refuses a source that is not real.
        stream.source().real()?;
        let slot = self.provided.adopt(stream)?;
        self.watch(slot)?;
        Ok(socket_of(slot))
    }

    pub(super) fn add_provided_listener(
        &mut self,
        listener: Box<dyn StreamListener>,
        token: Token,
    ) -> io::Result<(ListenerId, SocketAddr)> {
        listener.source().real()?;
        let (slot, id, address) = self.provided.listen(listener, token)?;
        self.watch(slot)?;
        Ok((id, address))
    }

    /// Watches the source of a slot, once and edge-triggered, as a socket of the kernel.
    fn watch(&mut self, slot: u32) -> io::Result<()> {
        let Some(fd) = self.provided.fd(slot) else { return Ok(()) };
        let events = READABLE | WRITABLE | HUNG_UP | EDGE;
        let data = PROVIDED << 32 | u64::from(slot);
        let watched = self.control(libc::EPOLL_CTL_ADD, fd, events, data);
        if watched.is_err() {
            self.provided.close(slot, false, &mut self.ready);
            self.provided.remove_if_idle(slot);
        }
        watched
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
        match self.provided.send(socket, batch, token) {
            Ok(slot) if self.eager => {
                self.provided.attempt(slot, &mut self.counts, &mut self.ready);
            }
            Ok(_) => {}
            Err(batch) => self.finish(token, Outcome::Sent(Err(not_usable()), batch)),
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

    fn close_slot(&mut self, slot: u32, reset: bool) {
        let fd = self.provided.fd(slot);
        if self.provided.close(slot, reset, &mut self.ready) {
            if let Some(fd) = fd {
                // The provider may have a copy of the descriptor, which would be watched on.
                let _ = self.control(libc::EPOLL_CTL_DEL, fd, 0, 0);
            }
            self.provided.remove_if_idle(slot);
        }
    }

    /// Tries slots that have news or operations. Slots that it leaves in line are to be tried again
    /// without news.
    pub(super) fn try_provided(&mut self, done: &mut Vec<Completion>) {
        for _ in 0..self.provided.trying() {
            let Some(slot) = self.provided.next() else { break };
            if self.provided.attempt(slot, &mut self.counts, done) == Next::Again {
                self.provided.try_on(slot);
            }
        }
    }
}
