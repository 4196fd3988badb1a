//! Simulated connections and listeners.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use super::pipe::Pipe;
use super::{Event, World};
use crate::flow::SocketClass;
use crate::io::socket::Socket;
use crate::io::{Completion, Outcome, RecvBuffers, Token};
use crate::memory::buffer::IoBuf;
use crate::send::SendBatch;

/// The first port given where none is asked for.
const FIRST_EPHEMERAL_PORT: u16 = 20_000;

/// All connections and listeners of a world. Ends are never forgotten, so that a stale id
/// cannot name another one.
#[derive(Default)]
pub(super) struct Network {
    /// Two per connection; the peer of an end is `end ^ 1`.
    ends: Vec<End>,
    listeners: BTreeMap<SocketAddr, (u32, Listener)>,
    listeners_made: u32,
    ports_given: u16,
}

/// The receiver of a listener's connections.
#[derive(Clone, Copy)]
pub(super) struct Listener {
    pub(super) core: usize,
    pub(super) token: Token,
}

/// One end of a connection.
pub(super) struct End {
    pub(super) local: SocketAddr,
    pub(super) peer_address: SocketAddr,
    /// The core that has adopted it, and what the socket is for.
    pub(super) core: Option<usize>,
    class: SocketClass,
    /// Its own staging memory, while its owner has some of the core's.
    own_staging: Option<IoBuf>,
    /// What a provider's stream reads and writes. Such an end has no operations.
    pipe: Arc<Pipe>,
    piped: bool,
    /// Sent by the peer and not yet here.
    in_transit: VecDeque<u8>,
    /// Here and not yet received.
    arrived: VecDeque<u8>,
    /// The peer has closed: the stream ends after what is in transit.
    peer_closed: bool,
    /// All of it, and the end of the stream, are here.
    ended: bool,
    broken: bool,
    closed: bool,
    recv: Option<(Token, RecvBuffers)>,
    send: Option<(Token, Box<SendBatch>)>,
    /// Events that are on their way, so that there is one of each.
    delivering: bool,
    progressing: bool,
    /// Bytes after which the connection breaks; on the connecting end.
    break_after: Option<u64>,
}

impl Network {
    pub(super) fn listen(
        &mut self,
        mut address: SocketAddr,
        listener: Listener,
    ) -> io::Result<(u32, SocketAddr)> {
        if address.port() == 0 {
            address.set_port(self.next_port());
        }
        if self.listeners.contains_key(&address) {
            return Err(io::Error::from_raw_os_error(libc::EADDRINUSE));
        }
        self.listeners_made += 1;
        self.listeners.insert(address, (self.listeners_made, listener));
        Ok((self.listeners_made, address))
    }

    pub(super) fn close_listener(&mut self, id: u32) {
        self.listeners.retain(|_, (other, _)| *other != id);
    }

    pub(super) fn close_listeners_of(&mut self, core: usize) {
        self.listeners.retain(|_, (_, listener)| listener.core != core);
    }

    /// The listener for an address: its own, or that of the wildcard address.
    pub(super) fn listener_at(&self, address: SocketAddr) -> Option<Listener> {
        let any = match address {
            SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port())),
            SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, address.port())),
        };
        let found = self.listeners.get(&address).or_else(|| self.listeners.get(&any));
        found.map(|(_, listener)| *listener)
    }

    /// Makes the connecting and the accepting end of a connection to `address`.
    pub(super) fn add_connection(
        &mut self,
        address: SocketAddr,
        break_after: Option<u64>,
    ) -> (u32, u32) {
        let local = match address {
            SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::LOCALHOST, self.next_port())),
            SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::LOCALHOST, self.next_port())),
        };
        let one = u32::try_from(self.ends.len()).expect("fewer than 2^32 simulated ends");
        self.ends.push(End::new(local, address, break_after));
        self.ends.push(End::new(address, local, None));
        (one, one + 1)
    }

    pub(super) fn addresses(&self, end: u32) -> (SocketAddr, SocketAddr) {
        let end = &self.ends[end as usize];
        (end.local, end.peer_address)
    }

    /// What a provider's stream over an end reads and writes.
    pub(super) fn pipe(&self, end: u32) -> Arc<Pipe> {
        Arc::clone(&self.ends[end as usize].pipe)
    }

    pub(super) fn adopt(&mut self, end: u32, core: usize) {
        self.end(end).core = Some(core);
    }

    pub(super) fn declare(&mut self, end: u32, class: SocketClass) {
        self.end(end).class = class;
    }

    pub(super) fn class(&self, end: u32) -> SocketClass {
        self.ends.get(end as usize).map_or(SocketClass::ADMIN, |end| end.class)
    }

    pub(super) fn open_connections(&self) -> usize {
        self.ends.chunks(2).filter(|pair| pair.iter().any(|end| !end.closed)).count()
    }

    /// Frees what a crashed core had in flight.
    pub(super) fn forget_core(&mut self, core: usize) {
        for end in self.ends.iter_mut().filter(|end| end.core == Some(core)) {
            end.recv = None;
            end.send = None;
            end.closed = true;
        }
    }

    /// Bytes that have arrived and were not received.
    pub(super) fn unread(&self, end: u32) -> usize {
        self.ends[end as usize].arrived.len()
    }

    fn end(&mut self, end: u32) -> &mut End {
        &mut self.ends[end as usize]
    }

    fn next_port(&mut self) -> u16 {
        self.ports_given = (self.ports_given + 1) % (u16::MAX - FIRST_EPHEMERAL_PORT);
        FIRST_EPHEMERAL_PORT + self.ports_given
    }
}

impl End {
    fn new(local: SocketAddr, peer_address: SocketAddr, break_after: Option<u64>) -> End {
        End {
            local,
            peer_address,
            core: None,
            class: SocketClass::ADMIN,
            own_staging: None,
            pipe: Arc::default(),
            piped: false,
            in_transit: VecDeque::new(),
            arrived: VecDeque::new(),
            peer_closed: false,
            ended: false,
            broken: false,
            closed: false,
            recv: None,
            send: None,
            delivering: false,
            progressing: false,
            break_after,
        }
    }
}

impl World {
    /// Starts a receive; gives the buffers back if the socket cannot.
    pub(super) fn start_recv(
        &mut self,
        core: usize,
        end: u32,
        token: Token,
        mut buffers: RecvBuffers,
    ) -> Result<(), RecvBuffers> {
        let slot = self.network.ends.get_mut(end as usize);
        match slot.filter(|slot| slot.core == Some(core) && !slot.closed && slot.recv.is_none()) {
            Some(slot) if buffers.room() > 0 => {
                if let Some(own) = slot.own_staging.take() {
                    self.cores[core].staging.restore(own, &mut buffers);
                }
                slot.recv = Some((token, buffers));
            }
            _ => return Err(buffers),
        }
        self.schedule_progress(end);
        Ok(())
    }

    /// Starts sending; gives the batch back if the socket cannot.
    pub(super) fn start_send(
        &mut self,
        core: usize,
        end: u32,
        token: Token,
        batch: Box<SendBatch>,
    ) -> Result<(), Box<SendBatch>> {
        let slot = self.network.ends.get_mut(end as usize);
        match slot.filter(|slot| slot.core == Some(core) && !slot.closed && slot.send.is_none()) {
            Some(slot) => slot.send = Some((token, batch)),
            None => return Err(batch),
        }
        self.schedule_progress(end);
        Ok(())
    }

    /// Has a core give an end up, unless something of it is in flight there.
    pub(super) fn release(&mut self, core: usize, end: u32) -> Option<Socket> {
        let is_idle = |slot: &&mut End| {
            slot.core == Some(core) && !slot.closed && slot.recv.is_none() && slot.send.is_none()
        };
        let slot = self.network.ends.get_mut(end as usize).filter(is_idle)?;
        slot.core = None;
        if slot.own_staging.take().is_some() {
            self.cores[core].staging.lose();
        }
        Some(self.socket(end))
    }

    /// Closes an end: what is in flight comes back, and the peer is told after what it was sent.
    pub(super) fn close_end(&mut self, end: u32, reset: bool) {
        let Some(slot) = self.network.ends.get_mut(end as usize).filter(|slot| !slot.closed) else {
            return;
        };
        slot.closed = true;
        if let (Some(_), Some(core)) = (slot.own_staging.take(), slot.core) {
            self.cores[core].staging.lose();
        }
        // As TCP does: a close with unread bytes resets the connection.
        let unread = slot.arrived.len() + slot.pipe.unread() + slot.in_transit.len();
        let reset = reset || unread > 0;
        let last = slot.pipe.take(slot.pipe.waiting());
        slot.arrived.clear();
        slot.in_transit.clear();
        let broken = slot.broken;
        self.end_operations(end, libc::ECANCELED);
        if broken {
            return;
        }
        let peer = end ^ 1;
        if reset {
            self.network.end(peer).in_transit.clear();
            self.schedule(Event::Reset(peer));
        } else {
            // What the network has taken from the stream leaves all the same.
            self.network.end(peer).in_transit.extend(last);
            self.network.end(peer).peer_closed = true;
            self.schedule_delivery(peer);
        }
    }

    /// Breaks connections, seen from both ends, at once.
    pub(super) fn reset_matching(&mut self, matches: impl Fn(&End) -> bool) {
        let ends = (0u32..).zip(&self.network.ends).filter(|(_, end)| matches(end));
        let ends: Vec<u32> = ends.map(|(id, _)| id).collect();
        for end in ends {
            self.break_end(end);
            self.break_end(end ^ 1);
        }
    }

    /// An end learns that its connection is gone.
    pub(super) fn break_end(&mut self, end: u32) {
        let slot = self.network.end(end);
        if !slot.broken {
            slot.broken = true;
            slot.arrived.clear();
            slot.in_transit.clear();
            slot.pipe.break_off();
            self.end_operations(end, libc::ECONNRESET);
            self.tell_news(end);
        }
    }

    /// A random part of what is in transit arrives.
    pub(super) fn deliver(&mut self, end: u32) {
        let limit = self.config.max_chunk;
        let slot = self.network.end(end);
        slot.delivering = false;
        if slot.broken || slot.closed {
            return;
        }
        let chunk = self.random.size(slot.in_transit.len()).min(limit).min(slot.in_transit.len());
        slot.arrived.extend(slot.in_transit.drain(..chunk));
        if slot.in_transit.is_empty() {
            slot.ended = slot.peer_closed;
        } else {
            self.schedule_delivery(end);
        }
        self.progress_recv(end);
        self.fill_pipe(end);
    }

    /// Lets the operations of an end go on.
    pub(super) fn progress(&mut self, end: u32) {
        self.network.end(end).progressing = false;
        self.progress_recv(end);
        self.progress_send(end);
        if self.network.end(end).piped {
            self.drain_pipe(end);
        }
    }

    fn progress_recv(&mut self, end: u32) {
        let slot = self.network.end(end);
        let Some((token, mut buffers)) = slot.recv.take() else { return };
        let result = if slot.broken {
            Err(io::Error::from_raw_os_error(libc::ECONNRESET))
        } else if !slot.arrived.is_empty() {
            if let Some(core) = slot.core {
                let staging = &mut self.cores[core].staging;
                slot.own_staging = staging.offer(slot.class.core_staging, &mut buffers);
            }
            let count = buffers.put(0, slot.arrived.make_contiguous());
            slot.arrived.drain(..count);
            Ok(count)
        } else if slot.ended {
            Ok(0)
        } else {
            slot.recv = Some((token, buffers));
            return;
        };
        if let Some(core) = slot.core {
            self.complete(core, Completion { token, outcome: Outcome::Received(result, buffers) });
        }
        // The peer may have waited for room.
        self.let_send(end ^ 1);
    }

    /// Lets an end go on that has something to send.
    fn let_send(&mut self, end: u32) {
        let slot = self.network.end(end);
        if slot.send.is_some() || slot.pipe.waiting() > 0 {
            self.schedule_progress(end);
        }
    }

    /// A provider's stream takes an end over.
    pub(super) fn adopt_piped(&mut self, end: u32, core: usize) {
        self.network.adopt(end, core);
        let outgoing_max = self.config.socket_buffer;
        let slot = self.network.end(end);
        slot.piped = true;
        slot.pipe.open(outgoing_max);
        if slot.broken {
            slot.pipe.break_off();
        }
        self.fill_pipe(end);
    }

    /// A provider's stream may have read or written.
    pub(super) fn pipe_used(&mut self, end: u32) {
        self.let_send(end);
        self.let_send(end ^ 1);
    }

    /// Hands what has arrived to the provider's stream.
    fn fill_pipe(&mut self, end: u32) {
        let slot = self.network.end(end);
        if slot.piped {
            slot.pipe.arrive(slot.arrived.drain(..), slot.ended);
            self.tell_news(end);
        }
    }

    /// Takes some of what the provider's stream has written.
    fn drain_pipe(&mut self, end: u32) {
        let peer = end ^ 1;
        let (room, peer_gone) = (self.room(peer), self.network.end(peer).closed);
        let slot = self.network.end(end);
        let waiting = slot.pipe.waiting();
        if peer_gone {
            slot.pipe.lose_peer();
        } else if !slot.closed && waiting > 0 && room > 0 {
            let bytes = slot.pipe.take(self.random.size(room.min(waiting)));
            let left = waiting - bytes.len();
            self.network.end(peer).in_transit.extend(&bytes);
            self.schedule_delivery(peer);
            self.count_sent(end, bytes.len());
            if left > 0 {
                self.schedule_progress(end);
            }
        } else {
            return;
        }
        self.tell_news(end);
    }

    /// The core of a provider's stream learns that the stream may go on.
    pub(super) fn tell_news(&mut self, end: u32) {
        let slot = self.network.end(end);
        if let Some(core) = slot.core.filter(|_| slot.piped && !slot.closed)
            && let Some(core) = self.cores.get_mut(core).filter(|core| !core.crashed)
        {
            core.news.push(end);
        }
    }

    /// Bytes that an end takes until its peer has to wait.
    fn room(&mut self, end: u32) -> usize {
        let limit = self.config.socket_buffer;
        let to = self.network.end(end);
        limit.saturating_sub(to.in_transit.len() + to.arrived.len() + to.pipe.unread())
    }

    fn progress_send(&mut self, end: u32) {
        let peer = end ^ 1;
        let (room, peer_gone) = (self.room(peer), self.network.end(peer).closed);
        let slot = self.network.end(end);
        let Some((token, mut batch)) = slot.send.take() else { return };
        let gone = slot.broken || peer_gone;
        if !gone && !batch.is_empty() {
            if room == 0 {
                slot.send = Some((token, batch));
                return;
            }
            let mut bytes = vec![0; self.random.size(room.min(batch.len()))];
            let count = batch.copy_unsent(&mut bytes);
            batch.advance(count);
            self.network.end(peer).in_transit.extend(&bytes[..count]);
            self.schedule_delivery(peer);
            self.count_sent(end, count);
            if !batch.is_empty() {
                self.network.end(end).send = Some((token, batch));
                self.schedule_progress(end);
                return;
            }
        }
        let result = if gone { Err(io::Error::from_raw_os_error(libc::EPIPE)) } else { Ok(()) };
        if let Some(core) = self.network.end(end).core {
            self.complete(core, Completion { token, outcome: Outcome::Sent(result, batch) });
        }
    }

    /// Breaks the connection when its byte has come.
    fn count_sent(&mut self, end: u32, count: usize) {
        let one = end & !1;
        if let Some(left) = &mut self.network.end(one).break_after {
            let count = count as u64;
            if *left < count {
                self.schedule(Event::Reset(one));
                self.schedule(Event::Reset(one + 1));
            }
            if let Some(left) = &mut self.network.end(one).break_after {
                *left = left.saturating_sub(count);
            }
        }
    }

    /// Gives what is in flight back with an error, after a random delay.
    fn end_operations(&mut self, end: u32, errno: i32) {
        let slot = self.network.end(end);
        let Some(core) = slot.core else { return };
        let (recv, send) = (slot.recv.take(), slot.send.take());
        let error = || io::Error::from_raw_os_error(errno);
        if let Some((token, buffers)) = recv {
            let outcome = Outcome::Received(Err(error()), buffers);
            self.schedule(Event::Complete { core, completion: Completion { token, outcome } });
        }
        if let Some((token, batch)) = send {
            let outcome = Outcome::Sent(Err(error()), batch);
            self.schedule(Event::Complete { core, completion: Completion { token, outcome } });
        }
    }

    fn schedule_progress(&mut self, end: u32) {
        if !std::mem::replace(&mut self.network.end(end).progressing, true) {
            self.schedule(Event::Progress(end));
        }
    }

    fn schedule_delivery(&mut self, end: u32) {
        if !std::mem::replace(&mut self.network.end(end).delivering, true) {
            self.schedule(Event::Deliver(end));
        }
    }
}
