//! Socket operations without the ring, while a core spins.
//!
//! An operation of the ring that finds nothing costs a poll that is armed, woken and finished later; on a
//! busy connection a plain system call that is tried again costs far less. So a receive is first tried at
//! every poll of a spinning core. It goes to the ring when its socket has been quiet ([`TRIES_MAX`]) or
//! when the core is about to sleep. A send is tried at once; the ring takes what a full socket leaves of
//! it, and what is more than its share of a poll.

use std::os::fd::OwnedFd;

use super::{Kind, UringIo};
use crate::flow::{Departure, SocketClass, policy};
use crate::io::nonblocking::{is_transient, receive, transmit};
use crate::io::socket::reset_on_close;
use crate::io::{Completion, Outcome, RecvBuffers, SocketId, Token};
use crate::memory::buffer::IoBuf;
use crate::send::SendBatch;

/// Sockets that are tried at every poll however quiet they are: a try costs less than the ring would add
/// to the latency of the next command.
pub(super) const ALWAYS_TRIED: usize = 4;

/// Tries in a row without data after which a socket goes to the ring, if there are more sockets.
/// The ring costs about as much as this many tries (lab 0029).
pub(super) const TRIES_MAX: u32 = 16;

/// Receives that one poll finishes: the answers to a few leave before the next ones are looked at,
/// so that the peers work on them meanwhile (lab 0030).
const RECEIVES_PER_POLL: usize = 8;

/// Bytes in staging memory after which a poll leaves the rest to the next one, while the caches still
/// hold them. What has landed in its I/O buffer does not count (lab 0030).
const BYTES_PER_POLL: usize = policy::TURN_BYTES;

/// A receive that is tried at every poll.
pub(super) struct DirectRecv {
    token: Token,
    buffers: RecvBuffers,
    misses: u32,
}

/// Where a receive is waiting for data.
pub(super) enum RecvAt {
    /// It is tried at every poll.
    Direct(DirectRecv),
    /// In the ring, under this `user_data`.
    Ring(u64),
}

/// A socket of the core.
pub(super) struct SocketSlot {
    pub(super) fd: OwnedFd,
    pub(super) recv: Option<RecvAt>,
    /// What it is for, as its owner has declared.
    pub(super) class: SocketClass,
    /// Its own staging memory, while its owner has some of the core's.
    pub(super) own_staging: Option<IoBuf>,
    /// If it has sent by reference: bytes sent since, which were copied.
    pub(super) copied_since: Option<usize>,
    /// The kernel has told that it copies what is sent without a copy.
    pub(super) copies_anyway: bool,
    /// The last bytes that were sent wait in the kernel for more.
    pub(super) corked: bool,
    /// The `user_data` of a send in the ring.
    pub(super) send: Option<u64>,
    /// Closed by the owner; the descriptor waits for the operations.
    pub(super) closing: bool,
}

impl SocketSlot {
    pub(super) fn new(fd: OwnedFd) -> SocketSlot {
        SocketSlot {
            fd,
            recv: None,
            class: SocketClass::ADMIN,
            own_staging: None,
            copied_since: None,
            copies_anyway: false,
            corked: false,
            send: None,
            closing: false,
        }
    }
}

/// What became of a try.
enum Try {
    Missed,
    /// With this many bytes in staging memory.
    Finished(usize),
    ToRing,
}

impl UringIo {
    /// Starts a receive on a usable socket.
    pub(super) fn start_recv(&mut self, socket: SocketId, mut buffers: RecvBuffers, token: Token) {
        if let Some(slot) = self.sockets.get_mut(socket.0) {
            if let Some(own) = slot.own_staging.take() {
                self.staging.restore(own, &mut buffers);
            }
            slot.recv = Some(RecvAt::Direct(DirectRecv { token, buffers, misses: 0 }));
            self.direct.push_back(socket.0);
        }
    }

    /// Sends on a usable socket: all of it at once, or the rest through the ring.
    pub(super) fn start_send(&mut self, socket: SocketId, mut batch: Box<SendBatch>, token: Token) {
        let Some(slot) = self.sockets.get_mut(socket.0) else { return };
        let by_reference = match slot.class.departure {
            Departure::Copied => false,
            Departure::ByReference => self.pages.takes(&batch),
            Departure::ZeroCopy(least) => {
                if self.zero_copy.takes(slot.copies_anyway, &batch, least) {
                    return self.send_kept(socket, batch, token);
                }
                false
            }
            Departure::Flagged => return self.send_flagged(socket, batch, token),
        };
        if by_reference && slot.copied_since.is_none() {
            reset_on_close(&slot.fd);
        }
        if by_reference {
            slot.copied_since = Some(0);
        }
        while !batch.is_empty() {
            let sent = if by_reference {
                self.pages.transmit(&slot.fd, &batch, &mut self.counts)
            } else {
                self.counts.system_calls += 1;
                transmit(&slot.fd, &mut batch)
            };
            match sent {
                Ok(sent) => {
                    self.counts.sent(sent);
                    batch.advance(sent);
                    if !by_reference && let Some(copied) = &mut slot.copied_since {
                        *copied = copied.saturating_add(sent);
                    }
                    let full = by_reference && self.pages.has_filled_socket();
                    if (full || batch.takes_turns()) && !batch.is_empty() {
                        return self.send_in_ring(socket, batch, token);
                    }
                }
                Err(error) if is_transient(&error) => {
                    return self.send_in_ring(socket, batch, token);
                }
                Err(error) => return self.finish(token, Outcome::Sent(Err(error), batch)),
            }
        }
        self.finish(token, Outcome::Sent(Ok(()), batch));
    }

    /// The ring sends the rest: one system call in each poll, when the socket has room.
    pub(super) fn send_in_ring(&mut self, socket: SocketId, batch: Box<SendBatch>, token: Token) {
        let user_data = self.start(token, Kind::Send { socket: socket.0, batch });
        if let Some(slot) = self.sockets.get_mut(socket.0) {
            slot.send = Some(user_data);
        }
    }

    /// Tries the receives that are not in the ring, up to [`RECEIVES_PER_POLL`] with data, or
    /// [`BYTES_PER_POLL`].
    pub(super) fn try_direct(&mut self, done: &mut Vec<Completion>) {
        let (mut receives, mut bytes) = (RECEIVES_PER_POLL, BYTES_PER_POLL);
        for _ in 0..self.direct.len() {
            let Some(socket) = self.direct.pop_front() else { return };
            match self.try_recv(socket, done) {
                Try::Missed => self.direct.push_back(socket),
                Try::ToRing => self.recv_in_ring(socket),
                Try::Finished(count) => {
                    receives -= 1;
                    bytes = bytes.saturating_sub(count);
                    if receives == 0 || bytes == 0 {
                        return;
                    }
                }
            }
        }
    }

    /// Gives all receives to the ring, so that any of them ends a wait.
    pub(super) fn all_to_ring(&mut self) {
        while let Some(socket) = self.direct.pop_front() {
            self.recv_in_ring(socket);
        }
    }

    /// Takes back a receive that is not in the ring, as its socket is being closed.
    pub(super) fn cancel_direct(&mut self, socket: u32) {
        let Some(slot) = self.sockets.get_mut(socket) else { return };
        if let Some(RecvAt::Direct(DirectRecv { token, buffers, .. })) =
            slot.recv.take_if(|recv| matches!(recv, RecvAt::Direct(_)))
        {
            self.direct.retain(|&other| other != socket);
            let cancelled = std::io::Error::from_raw_os_error(libc::ECANCELED);
            self.finish(token, Outcome::Received(Err(cancelled), buffers));
        }
    }

    fn try_recv(&mut self, socket: u32, done: &mut Vec<Completion>) -> Try {
        let crowded = self.direct.len() > ALWAYS_TRIED;
        let Some(slot) = self.sockets.get_mut(socket) else { return Try::Finished(0) };
        let Some(RecvAt::Direct(recv)) = &mut slot.recv else { return Try::Finished(0) };
        let own = self.staging.offer(slot.class.core_staging, &mut recv.buffers);
        self.counts.system_calls += 1;
        let result = receive(&slot.fd, &mut recv.buffers);
        match (&result, own) {
            (Ok(_), own) => slot.own_staging = own,
            (Err(_), Some(own)) => self.staging.withdraw(own, &mut recv.buffers),
            (Err(_), None) => {}
        }
        let count = match &result {
            Err(error) if is_transient(error) => {
                recv.misses += 1;
                return if crowded && recv.misses >= TRIES_MAX { Try::ToRing } else { Try::Missed };
            }
            Err(_) => 0,
            Ok(count) => *count,
        };
        self.counts.received(count);
        let landed = recv.buffers.payload.as_ref().map_or(0, |(_, range)| range.len());
        if let Some(RecvAt::Direct(DirectRecv { token, buffers, .. })) = slot.recv.take() {
            done.push(Completion { token, outcome: Outcome::Received(result, buffers) });
        }
        Try::Finished(count.saturating_sub(landed))
    }

    fn recv_in_ring(&mut self, socket: u32) {
        let Some(slot) = self.sockets.get_mut(socket) else { return };
        let Some(RecvAt::Direct(DirectRecv { token, buffers, .. })) = slot.recv.take() else {
            return;
        };
        let user_data = self.start(token, Kind::Recv { socket, buffers });
        if let Some(slot) = self.sockets.get_mut(socket) {
            slot.recv = Some(RecvAt::Ring(user_data));
        }
    }
}
