//! The I/O of a simulated core, with a network that flips bits and connections that can be cut.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use raceline_accel::OpCode;
use raceline_reactor::flow::{Flight, SocketClass};
use raceline_reactor::io::{AllocateMode, FileCall, FileId, ListenerId, RecvBuffers, SocketId};
use raceline_reactor::sim::Random;
use raceline_reactor::stats::IoCounts;
use raceline_reactor::{
    Accelerated, Accelerator, Completion, Io, IoBuf, Outcome, SendBatch, SharedBuf, SimIo, Socket,
    StreamListener, Token, Wait, Waker, Work,
};

/// Bytes at the beginning of a connection that are not flipped: ICReq and ICResp have no digest.
const UNPROTECTED_BYTES: usize = 256;

/// An [`Io`] of the simulated world with faults of its own.
pub struct FaultIo {
    inner: SimIo,
    random: Random,
    /// How many of a million receives have one bit flipped.
    pub flips_per_million: u32,
    /// Bits flipped.
    pub flips: u64,
    /// Bytes received so far, by the token of the receive.
    received: BTreeMap<(u16, u32, u16), usize>,
    /// The addresses of both ends for the connections adopted here, by socket.
    connections: BTreeMap<u32, (SocketAddr, SocketAddr)>,
    /// Connections that take bytes and send none.
    muted: BTreeSet<u32>,
    /// The ends of their sends.
    swallowed: Vec<Completion>,
}

impl FaultIo {
    /// Faults that are the same for the same seed.
    #[must_use]
    pub fn new(inner: SimIo, seed: u64) -> Self {
        Self {
            inner,
            random: Random::new(seed),
            flips_per_million: 0,
            flips: 0,
            received: BTreeMap::new(),
            connections: BTreeMap::new(),
            muted: BTreeSet::new(),
            swallowed: Vec::new(),
        }
    }

    /// The addresses of this end for the connections that are open here.
    #[must_use]
    pub fn connections(&self) -> Vec<SocketAddr> {
        self.connections.values().map(|(own, _)| *own).collect()
    }

    /// The open connections to this address send nothing from here on.
    pub fn mute(&mut self, peer: SocketAddr) {
        let of_peer =
            |(socket, (_, to)): (&u32, &(SocketAddr, SocketAddr))| (*to == peer).then_some(*socket);
        self.muted.extend(self.connections.iter().filter_map(of_peer));
    }

    /// Whether a connection that sends nothing is open.
    #[must_use]
    pub fn is_muted(&self) -> bool {
        !self.muted.is_empty()
    }

    /// Whether a poll would give completions.
    #[must_use]
    pub fn has_completions(&self) -> bool {
        self.inner.has_completions() || !self.swallowed.is_empty()
    }

    fn spoil(&mut self, token: Token, count: usize, buffers: &mut RecvBuffers) {
        let received = self.received.entry((token.owner, token.index, token.generation));
        let before = received.or_default();
        let start = *before;
        *before += count;
        if start < UNPROTECTED_BYTES
            || self.random.below(1_000_000) >= u64::from(self.flips_per_million)
        {
            return;
        }
        let bit = 1 << self.random.below(8);
        let at = usize::try_from(self.random.below(count as u64)).unwrap_or(0);
        let staging = buffers.staging_range.start;
        match &mut buffers.payload {
            Some((buf, range)) if at < range.len() => buf[range.start + at] ^= bit,
            Some((_, range)) => buffers.staging[staging + at - range.len()] ^= bit,
            None => buffers.staging[staging + at] ^= bit,
        }
        self.flips += 1;
    }
}

impl Io for FaultIo {
    fn accelerator(&mut self) -> &mut Accelerator {
        self.inner.accelerator()
    }

    fn accelerate(&mut self, work: Work, token: Token) -> Accelerated {
        self.inner.accelerate(work, token)
    }

    fn accelerates_now(&mut self, code: OpCode) -> bool {
        self.inner.accelerates_now(code)
    }

    fn copies_on_the_way(&mut self) -> bool {
        self.inner.copies_on_the_way()
    }

    fn counts(&self) -> IoCounts {
        self.inner.counts()
    }

    fn now(&self) -> Instant {
        self.inner.now()
    }

    fn listen(
        &mut self,
        address: SocketAddr,
        token: Token,
    ) -> io::Result<(ListenerId, SocketAddr)> {
        self.inner.listen(address, token)
    }

    fn close_listener(&mut self, listener: ListenerId) {
        self.inner.close_listener(listener);
    }

    fn listen_provided(
        &mut self,
        listener: Box<dyn StreamListener>,
        token: Token,
    ) -> io::Result<(ListenerId, SocketAddr)> {
        self.inner.listen_provided(listener, token)
    }

    fn peer_identity(&self, socket: SocketId) -> Option<&str> {
        self.inner.peer_identity(socket)
    }

    fn connect(&mut self, address: SocketAddr, source: Option<IpAddr>, token: Token) {
        self.inner.connect(address, source, token);
    }

    fn release(&mut self, socket: SocketId, ends: (SocketAddr, SocketAddr)) -> Option<Socket> {
        let released = self.inner.release(socket, ends)?;
        self.connections.remove(&socket.0);
        Some(released)
    }

    fn adopt(&mut self, socket: Socket) -> io::Result<SocketId> {
        let addresses = (socket.local_address(), socket.peer_address());
        let socket = self.inner.adopt(socket)?;
        self.connections.insert(socket.0, addresses);
        self.muted.remove(&socket.0);
        Ok(socket)
    }

    fn declare(&mut self, socket: SocketId, class: SocketClass) {
        self.inner.declare(socket, class);
    }

    fn flight(&mut self) -> &mut Flight {
        self.inner.flight()
    }

    fn recv(&mut self, socket: SocketId, buffers: RecvBuffers, token: Token) {
        self.inner.recv(socket, buffers, token);
    }

    fn unread(&mut self, socket: SocketId) -> usize {
        self.inner.unread(socket)
    }

    fn send(&mut self, socket: SocketId, batch: Box<SendBatch>, token: Token) {
        if self.muted.contains(&socket.0) {
            self.swallowed.push(Completion { token, outcome: Outcome::Sent(Ok(()), batch) });
            return;
        }
        self.inner.send(socket, batch, token);
    }

    fn close(&mut self, socket: SocketId, reset: bool) {
        self.connections.remove(&socket.0);
        self.muted.remove(&socket.0);
        self.inner.close(socket, reset);
    }

    fn register_file(&mut self, file: Arc<File>) -> FileId {
        self.inner.register_file(file)
    }

    fn close_file(&mut self, file: FileId) {
        self.inner.close_file(file);
    }

    fn read(&mut self, file: FileId, buf: IoBuf, offset: u64, token: Token) {
        self.inner.read(file, buf, offset, token);
    }

    fn write(&mut self, file: FileId, buf: SharedBuf, offset: u64, durable: bool, token: Token) {
        self.inner.write(file, buf, offset, durable, token);
    }

    fn sync(&mut self, file: FileId, token: Token) {
        self.inner.sync(file, token);
    }

    fn allocate(&mut self, file: FileId, mode: AllocateMode, offset: u64, len: u64, token: Token) {
        self.inner.allocate(file, mode, offset, len, token);
    }

    fn call_file(&mut self, file: FileId, call: Box<FileCall>, token: Token) {
        self.inner.call_file(file, call, token);
    }

    fn timer(&mut self, at: Instant, token: Token) {
        self.inner.timer(at, token);
    }

    fn poll(&mut self, wait: Wait, done: &mut Vec<Completion>) -> io::Result<()> {
        let before = done.len();
        self.inner.poll(wait, done)?;
        done.append(&mut self.swallowed);
        if self.flips_per_million > 0 {
            for Completion { token, outcome } in &mut done[before..] {
                if let Outcome::Received(Ok(count @ 1..), buffers) = outcome {
                    self.spoil(*token, *count, buffers);
                }
            }
        }
        Ok(())
    }

    fn waker(&self) -> Waker {
        self.inner.waker()
    }
}
