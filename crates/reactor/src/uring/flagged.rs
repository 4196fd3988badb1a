//! Sends that tell the kernel whether more bytes follow ([`crate::flow::Departure::Flagged`]).

use super::{Timer, UringIo};
use crate::io::nonblocking::{is_transient, transmit};
use crate::io::{Outcome, SocketId, Token, socket};
use crate::send::{SendBatch, UNCORK_AFTER};

impl UringIo {
    /// Sends on a usable socket, as [`UringIo::start_send`] does.
    #[inline(never)]
    pub(super) fn send_flagged(
        &mut self,
        socket: SocketId,
        mut batch: Box<SendBatch>,
        token: Token,
    ) {
        let Some(slot) = self.sockets.get_mut(socket.0) else { return };
        slot.corked = false;
        batch.flag();
        while !batch.is_empty() {
            self.counts.system_calls += 1;
            match transmit(&slot.fd, &mut batch) {
                Ok(sent) => {
                    self.departures.count_flags(batch.flags());
                    self.counts.sent(sent);
                    batch.advance(sent);
                    if batch.takes_turns() && !batch.is_empty() {
                        return self.send_in_ring(socket, batch, token);
                    }
                }
                Err(error) if is_transient(&error) => {
                    return self.send_in_ring(socket, batch, token);
                }
                Err(error) => return self.finish(token, Outcome::Sent(Err(error), batch)),
            }
        }
        self.note_corked(socket.0, &batch);
        self.finish(token, Outcome::Sent(Ok(()), batch));
    }

    /// Looks soon after a batch that says that another one follows whether it has.
    pub(super) fn note_corked(&mut self, socket: u32, batch: &SendBatch) {
        if batch.leaves_corked()
            && let Some(slot) = self.sockets.get_mut(socket)
        {
            slot.corked = true;
            self.timers.push(self.now + UNCORK_AFTER, Timer::Uncork(socket));
        }
    }

    /// What should have followed did not: the kernel sends what it has.
    pub(super) fn uncork(&mut self, socket: u32) {
        if let Some(slot) = self.sockets.get_mut(socket)
            && std::mem::take(&mut slot.corked)
        {
            self.departures.uncorks.add(1);
            socket::uncork(&slot.fd);
        }
    }
}
