//! [`Io`] in memory at nearly no cost: it records operations, and a [`Wire`] does the work.
//!
//! Operations that a core starts go on one list, and completions come from another. Bytes move between
//! two cores only when [`Wire::carry`] is called, which is not counted. Nothing is random
//! or delayed: the same calls give the same run.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use raceline_reactor::flow::{Flight, Machine, SocketClass};
use raceline_reactor::io::{AllocateMode, FileCall, FileId, ListenerId, RecvBuffers, SocketId};
use raceline_reactor::{
    Accelerator, ByteStream, Completion, Interest, Io, IoBuf, Outcome, SendBatch, SharedBuf,
    Socket, StreamListener, Token, Wait, Waker,
};

/// Initial capacity of the lists, so that none grows while instructions are counted.
const LIST_CAPACITY: usize = 1024;

/// Names one end of a connection: its own address, then its peer's.
type End = (SocketAddr, SocketAddr);

/// One core's I/O.
pub(crate) struct MemoryIo {
    now: Instant,
    /// For the next poll.
    done: Vec<Completion>,
    listener: Option<(SocketAddr, Token)>,
    /// A provider's; it is asked only while [`Self::accepts`].
    provided: Option<(Box<dyn StreamListener>, Token)>,
    pub(crate) accepts: bool,
    /// A socket has a stream, or the listener is a provider's.
    has_streams: bool,
    /// A stream was never tried: it may have to begin.
    has_fresh: bool,
    connects: Vec<Token>,
    /// By [`SocketId`].
    sockets: Vec<MemorySocket>,
    timers: Vec<(Instant, Token)>,
    accelerator: Accelerator,
    /// Copies are made and digested when a command is executed, as for an engine, not while they are sent.
    pub(crate) copies_first: bool,
    flight: Flight,
}

struct MemorySocket {
    end: End,
    receive: Option<(RecvBuffers, Token)>,
    send: Option<(Box<SendBatch>, Token)>,
    /// A provider's, of a socket that no [`Wire`] serves.
    stream: Option<Box<dyn ByteStream>>,
}

/// The bytes in flight between a host and a target.
#[derive(Default)]
pub(crate) struct Wire {
    /// Bytes sent and not yet received, by the end that they go to.
    inboxes: BTreeMap<End, Vec<u8>>,
    scratch: Vec<u8>,
}

impl MemoryIo {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            now,
            done: Vec::with_capacity(LIST_CAPACITY),
            listener: None,
            provided: None,
            accepts: true,
            has_streams: false,
            has_fresh: false,
            connects: Vec::new(),
            sockets: Vec::new(),
            timers: Vec::with_capacity(LIST_CAPACITY),
            accelerator: Accelerator::default(),
            copies_first: false,
            flight: Flight::new(Machine::ASSUMED),
        }
    }

    /// Whether a poll would give completions.
    pub(crate) fn has_completions(&self) -> bool {
        !self.done.is_empty()
    }

    /// Whether streams of providers have bytes for receives that wait, or were never tried.
    pub(crate) fn has_unread(&mut self) -> bool {
        self.has_fresh
            || self.sockets.iter_mut().any(|socket| {
                let waits = socket.receive.is_some();
                socket.stream.as_mut().is_some_and(|stream| waits && stream.unread() > 0)
            })
    }

    /// Has all streams of providers go on with what they have, as a reactor does whose sources have news.
    pub(crate) fn try_streams(&mut self) {
        if self.accepts
            && let Some((listener, token)) = &mut self.provided
        {
            while let Ok(socket) = listener.accept() {
                let peer = socket.peer_address();
                let outcome = Outcome::Accepted(Ok((socket, peer)));
                self.done.push(Completion { token: *token, outcome });
            }
        }
        self.has_fresh = false;
        let Self { sockets, done, .. } = self;
        for socket in sockets {
            socket.try_stream(done);
        }
    }

    /// Lets time pass.
    pub(crate) fn advance(&mut self, by: Duration) {
        self.now += by;
        let now = self.now;
        for (_, token) in self.timers.extract_if(.., |(at, _)| *at <= now) {
            self.done.push(Completion { token, outcome: Outcome::Timer });
        }
    }

    /// How long until the next timer expires.
    pub(crate) fn next_timer_in(&self) -> Option<Duration> {
        self.timers.iter().map(|(at, _)| at.saturating_duration_since(self.now)).min()
    }

    /// Bytes in the send of each socket, in the order in which they were adopted.
    #[cfg(test)]
    pub(crate) fn sending(&self) -> Vec<usize> {
        let bytes =
            |socket: &MemorySocket| socket.send.as_ref().map_or(0, |(batch, _)| batch.len());
        self.sockets.iter().map(bytes).collect()
    }

    fn socket(&mut self, socket: SocketId) -> &mut MemorySocket {
        &mut self.sockets[socket.0 as usize]
    }
}

impl MemorySocket {
    /// One try of all that a stream has to do. A stream that fails is silent from then on, and its run stalls.
    fn try_stream(&mut self, done: &mut Vec<Completion>) {
        let Self { stream: Some(stream), receive, send, .. } = self else { return };
        if stream.advance().is_err() {
            return;
        }
        if let Some((mut buffers, token)) = receive.take() {
            match stream.receive(&mut buffers) {
                Ok(count) => {
                    let outcome = Outcome::Received(Ok(count), buffers);
                    done.push(Completion { token, outcome });
                }
                Err(_) => *receive = Some((buffers, token)),
            }
        }
        if let Some((mut batch, token)) = send.take() {
            while !batch.is_empty()
                && let Ok(sent) = stream.transmit(&mut batch)
            {
                batch.advance(sent);
            }
            if batch.is_empty() {
                done.push(Completion { token, outcome: Outcome::Sent(Ok(()), batch) });
            } else {
                *send = Some((batch, token));
            }
        }
        stream.interest(Interest { read: receive.is_some(), write: send.is_some() });
    }
}

impl Wire {
    /// Takes the bytes that `from` has sent, and its request to connect to `to`.
    pub(crate) fn collect(&mut self, from: &mut MemoryIo, to: &mut MemoryIo) -> io::Result<()> {
        for token in from.connects.drain(..) {
            let listener = to.listener.ok_or(io::ErrorKind::ConnectionRefused)?;
            let (near, far) = connected_pair()?;
            let peer = far.peer_address();
            from.done.push(Completion { token, outcome: Outcome::Connected(Ok(near)) });
            let outcome = Outcome::Accepted(Ok((far, peer)));
            to.done.push(Completion { token: listener.1, outcome });
        }
        for socket in from.sockets.iter_mut().filter(|socket| socket.stream.is_none()) {
            let Some((mut batch, token)) = socket.send.take() else { continue };
            let (local, peer) = socket.end;
            let inbox = self.inboxes.entry((peer, local)).or_default();
            self.scratch.resize(batch.len(), 0);
            while !batch.is_empty() {
                let len = batch.copy_unsent(&mut self.scratch);
                batch.advance(len);
                inbox.extend_from_slice(&self.scratch[..len]);
            }
            from.done.push(Completion { token, outcome: Outcome::Sent(Ok(()), batch) });
        }
        Ok(())
    }

    /// Gives each waiting receive of `to` as many of the sent bytes as it has room for.
    pub(crate) fn deliver(&mut self, to: &mut MemoryIo) {
        for socket in &mut to.sockets {
            let Some(inbox) = self.inboxes.get_mut(&socket.end).filter(|inbox| !inbox.is_empty())
            else {
                continue;
            };
            let Some((mut buffers, token)) = socket.receive.take() else { continue };
            let count = fill(&mut buffers, inbox);
            inbox.drain(..count);
            let outcome = Outcome::Received(Ok(count), buffers);
            to.done.push(Completion { token, outcome });
        }
    }
}

impl Io for MemoryIo {
    fn accelerator(&mut self) -> &mut Accelerator {
        &mut self.accelerator
    }

    fn copies_on_the_way(&mut self) -> bool {
        !self.copies_first && self.accelerator.is_copier()
    }

    fn now(&self) -> Instant {
        self.now
    }

    fn listen(
        &mut self,
        address: SocketAddr,
        token: Token,
    ) -> io::Result<(ListenerId, SocketAddr)> {
        self.listener = Some((address, token));
        Ok((ListenerId(0), address))
    }

    fn close_listener(&mut self, _listener: ListenerId) {
        self.listener = None;
        self.provided = None;
    }

    fn listen_provided(
        &mut self,
        listener: Box<dyn StreamListener>,
        token: Token,
    ) -> io::Result<(ListenerId, SocketAddr)> {
        let address = listener.local_address();
        self.provided = Some((listener, token));
        self.has_streams = true;
        Ok((ListenerId(0), address))
    }

    fn connect(&mut self, _: SocketAddr, _: Option<IpAddr>, token: Token) {
        self.connects.push(token);
    }

    fn release(&mut self, _: SocketId, _: (SocketAddr, SocketAddr)) -> Option<Socket> {
        None
    }

    fn adopt(&mut self, socket: Socket) -> io::Result<SocketId> {
        let end = (socket.local_address(), socket.peer_address());
        let id = u32::try_from(self.sockets.len()).map_err(io::Error::other)?;
        let stream = socket.into_stream();
        self.has_streams |= stream.is_some();
        self.has_fresh |= stream.is_some();
        self.sockets.push(MemorySocket { end, receive: None, send: None, stream });
        Ok(SocketId(id))
    }

    fn declare(&mut self, _: SocketId, _: SocketClass) {}

    fn flight(&mut self) -> &mut Flight {
        &mut self.flight
    }

    fn recv(&mut self, socket: SocketId, buffers: RecvBuffers, token: Token) {
        self.socket(socket).receive = Some((buffers, token));
    }

    fn send(&mut self, socket: SocketId, mut batch: Box<SendBatch>, token: Token) {
        // Counted, because every back end has to do it.
        std::hint::black_box(batch.count_segments());
        let Self { sockets, done, has_streams, .. } = self;
        let socket = &mut sockets[socket.0 as usize];
        socket.send = Some((batch, token));
        if *has_streams {
            socket.try_stream(done);
        }
    }

    fn close(&mut self, _socket: SocketId, _reset: bool) {
        // Connections never end; a run that loses one stalls, and reports that.
    }

    fn register_file(&mut self, _file: Arc<File>) -> FileId {
        unreachable!("memory needs no files")
    }

    fn close_file(&mut self, _file: FileId) {}

    fn read(&mut self, _file: FileId, _buf: IoBuf, _offset: u64, _token: Token) {
        unreachable!("memory needs no files")
    }

    fn write(&mut self, _file: FileId, _buf: SharedBuf, _at: u64, _durable: bool, _token: Token) {
        unreachable!("memory needs no files")
    }

    fn sync(&mut self, _file: FileId, _token: Token) {
        unreachable!("memory needs no files")
    }

    fn allocate(&mut self, _file: FileId, _mode: AllocateMode, _at: u64, _len: u64, _token: Token) {
        unreachable!("memory needs no files")
    }

    fn call_file(&mut self, _file: FileId, _call: Box<FileCall>, _token: Token) {
        unreachable!("memory needs no files")
    }

    fn timer(&mut self, at: Instant, token: Token) {
        self.timers.push((at, token));
    }

    fn poll(&mut self, _wait: Wait, done: &mut Vec<Completion>) -> io::Result<()> {
        if self.has_streams {
            self.try_streams();
        }
        // Both lists are empty at first; the caller's list keeps its capacity as well.
        if done.is_empty() {
            std::mem::swap(done, &mut self.done);
        } else {
            done.append(&mut self.done);
        }
        Ok(())
    }

    fn waker(&self) -> Waker {
        Waker::none()
    }
}

/// Puts bytes where a receive would; gives how many fit.
fn fill(buffers: &mut RecvBuffers, bytes: &[u8]) -> usize {
    let payload = buffers.payload.as_mut().map(|(buf, range)| &mut buf[range.clone()]);
    let staging = &mut buffers.staging[buffers.staging_range.clone()];
    let mut rest = bytes;
    for room in payload.into_iter().chain([staging]) {
        let (now, later) = rest.split_at(rest.len().min(room.len()));
        room[..now.len()].copy_from_slice(now);
        rest = later;
    }
    bytes.len() - rest.len()
}

/// Two ends of a connection over loopback, which only provide their addresses.
fn connected_pair() -> io::Result<(Socket, Socket)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let (far, _) = listener.accept()?;
    Ok((Socket::from_fd(near.into())?, Socket::from_fd(far.into())?))
}
