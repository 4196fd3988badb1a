//! How sockets of a ring end, and the ring itself.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use io_uring::opcode;
use io_uring::types::CancelBuilder;

use super::direct::SocketSlot;
use super::{CANCEL_DATA, Timer, UringIo};
use crate::io::provided::slot_of;
use crate::io::socket::Socket;
use crate::io::timer::TimerQueue;
use crate::io::{Io as _, ListenerId, SocketId};

/// How long a ring that ends waits until the kernel has done with what was sent without a copy.
const NOTICE_PATIENCE: Duration = Duration::from_secs(1);

impl UringIo {
    /// Gives a socket up, unless something of it is in flight here.
    pub(super) fn release_socket(
        &mut self,
        socket: SocketId,
        ends: (SocketAddr, SocketAddr),
    ) -> Option<Socket> {
        if let Some(slot) = slot_of(socket) {
            let (stream, watch) = self.provided.release(slot)?;
            watch.into_iter().for_each(|user_data| self.cancel(user_data));
            return Some(Socket::provided(stream, ends.0, ends.1));
        }
        let is_idle = |slot: &&SocketSlot| {
            let busy = slot.closing || slot.corked || slot.copied_since.is_some();
            !busy && slot.recv.is_none() && slot.send.is_none()
        };
        self.sockets.get(socket.0).filter(is_idle)?;
        let slot = self.sockets.remove(socket.0)?;
        if slot.own_staging.is_some() {
            self.staging.lose();
        }
        Some(Socket::released(slot.fd, ends))
    }

    /// Closes the descriptor of a closed socket once nothing is in flight.
    pub(super) fn close_if_idle(&mut self, socket: u32) {
        let idle = |slot: &&SocketSlot| slot.closing && slot.recv.is_none() && slot.send.is_none();
        if self.sockets.get(socket).filter(idle).is_some()
            && let Some(slot) = self.sockets.remove(socket)
            && slot.own_staging.is_some()
        {
            self.staging.lose();
        }
    }
}

impl Drop for UringIo {
    /// The kernel may write to the memory of operations in flight, so they are cancelled and
    /// waited for.
    fn drop(&mut self) {
        self.timers = TimerQueue::with_capacity(0);
        let cancel = opcode::AsyncCancel2::new(CancelBuilder::any().all()).build();
        self.push(cancel.user_data(CANCEL_DATA));
        let mut done = Vec::new();
        for listener in self.listeners.ids().collect::<Vec<_>>() {
            self.close_listener(ListenerId(listener));
        }
        for socket in self.sockets.ids().collect::<Vec<_>>() {
            self.close(SocketId(socket), false);
        }
        self.close_all_provided();
        if let Err(error) = self.finish_nvme(&mut done) {
            tracing::error!("NVMe commands in flight, their memory is kept: {error}");
            self.ops.leak();
            return;
        }
        // What a peer does not acknowledge, the kernel keeps for minutes.
        let give_up = Instant::now() + NOTICE_PATIENCE;
        while self.ops.live() > 0 {
            if self.ops.live() == self.zero_copy.waiting() {
                if Instant::now() >= give_up {
                    tracing::info!(
                        "the kernel has not done with what was sent: its memory is kept"
                    );
                    self.ops.leak();
                    return;
                }
                self.timers.push(give_up, Timer::Accept(u32::MAX));
            }
            let refilled = self.refill();
            if let Err(error) = self.enter(refilled) {
                tracing::error!(
                    "io_uring broke with operations in flight, their memory is kept: {error}"
                );
                self.ops.leak();
                return;
            }
            self.harvest(&mut done);
        }
    }
}
