//! An [`Io`] under test, and the steps that tests are made of.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use raceline_reactor::io::{FileId, ListenerId, RecvBuffers, SocketId};
use raceline_reactor::{
    BufferPool, Completion, Io, IoBuf, Outcome, PoolConfig, SendBatch, Socket, StreamProvider,
    Token, Wait,
};

use crate::common::received;
use crate::encrypted::Encrypted;
use crate::scramble::{HandedOn, Scrambler};
use crate::stack::Stack;

const WATCHDOG_TOKEN: Token = Token { owner: 0, generation: 0, index: u32::MAX };

/// Longer than any test needs; a test that takes this long has lost a completion.
const WATCHDOG: Duration = Duration::from_secs(30);

/// An [`Io`] under test, with a pool and what has completed so far.
pub(crate) struct Bed {
    pub(crate) io: Box<dyn Io>,
    pub(crate) pool: BufferPool,
    pub(crate) done: Vec<Completion>,
    /// Makes the streams of what is accepted and connected; `None`: the kernel.
    pub(crate) provider: Option<Arc<dyn StreamProvider>>,
    /// Its back end is io_uring.
    pub(crate) is_ring: bool,
    /// It has no stack of its own.
    wraps: bool,
    /// Its streams begin with a handshake.
    handshakes: bool,
    /// Tokens given out.
    tokens: u32,
}

impl Bed {
    pub(crate) fn new(io: Box<dyn Io>) -> Bed {
        let pool = BufferPool::new(&PoolConfig::new(&[(4096, 64), (65536, 16)])).unwrap();
        let mut bed = Bed {
            io,
            pool,
            done: Vec::new(),
            provider: None,
            is_ring: false,
            wraps: false,
            handshakes: false,
            tokens: 0,
        };
        bed.io.timer(Instant::now() + WATCHDOG, WATCHDOG_TOKEN);
        bed
    }

    /// With io_uring as its back end.
    pub(crate) fn of_ring(self) -> Bed {
        Bed { is_ring: true, ..self }
    }

    /// With streams over the kernel's.
    pub(crate) fn scrambled(self) -> Bed {
        Bed {
            provider: Some(Arc::new(Scrambler::new(9, "bed"))),
            wraps: true,
            handshakes: true,
            ..self
        }
    }

    /// With TLS.
    pub(crate) fn encrypted(self) -> Bed {
        Bed { provider: Some(Arc::new(Encrypted::new())), ..self.scrambled() }
    }

    /// With records and a handshake, and nothing to wait for.
    pub(crate) fn polled(self) -> Bed {
        let provider = Scrambler { polled: true, ..Scrambler::new(9, "bed") };
        Bed { provider: Some(Arc::new(provider)), ..self.scrambled() }
    }

    /// With the kernel's streams, by way of the seam.
    pub(crate) fn handed_on(self) -> Bed {
        Bed { provider: Some(Arc::new(HandedOn)), wraps: true, ..self }
    }

    /// With streams of a stack that has no descriptors.
    pub(crate) fn stacked(self) -> Bed {
        Bed { provider: Some(Arc::new(Stack::default())), ..self }
    }

    pub(crate) fn token(&mut self) -> Token {
        self.tokens += 1;
        Token { owner: 7, generation: 9, index: self.tokens }
    }

    pub(crate) fn poll(&mut self, wait: Wait) {
        self.io.poll(wait, &mut self.done).unwrap();
        assert!(self.done.iter().all(|done| done.token != WATCHDOG_TOKEN), "a completion was lost");
    }

    pub(crate) fn take(&mut self, token: Token) -> Option<Outcome> {
        let at = self.done.iter().position(|done| done.token == token)?;
        Some(self.done.remove(at).outcome)
    }

    pub(crate) fn wait_for(&mut self, token: Token) -> Outcome {
        loop {
            if let Some(outcome) = self.take(token) {
                return outcome;
            }
            self.poll(Wait::Yes);
        }
    }

    pub(crate) fn listen(&mut self, address: &str) -> (ListenerId, SocketAddr, Token) {
        let token = self.token();
        let address = address.parse().unwrap();
        let own = self.provider.as_ref().and_then(|provider| provider.listen(address));
        let (listener, address) = match own {
            Some(listener) => self.io.listen_provided(listener.unwrap(), token).unwrap(),
            None => self.io.listen(address, token).unwrap(),
        };
        (listener, address, token)
    }

    pub(crate) fn connect(&mut self, address: SocketAddr) -> io::Result<Socket> {
        self.connect_from(address, None)
    }

    pub(crate) fn connect_from(
        &mut self,
        address: SocketAddr,
        source: Option<IpAddr>,
    ) -> io::Result<Socket> {
        let own = self.provider.as_ref().and_then(|provider| provider.connect(address, source));
        if let Some(socket) = own {
            return socket;
        }
        let token = self.token();
        self.io.connect(address, source, token);
        match self.wait_for(token) {
            Outcome::Connected(result) => self.wrap(result?, true),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn accepted(&mut self, token: Token) -> Socket {
        match self.wait_for(token) {
            Outcome::Accepted(Ok((socket, peer))) => {
                assert_eq!(socket.peer_address(), peer);
                self.wrap(socket, false).unwrap()
            }
            other => panic!("{other:?}"),
        }
    }

    /// Wraps what the kernel has connected or accepted, if there is a provider without a stack.
    fn wrap(&self, socket: Socket, connected: bool) -> io::Result<Socket> {
        match &self.provider {
            Some(provider) if self.wraps && connected => provider.connected(socket),
            Some(provider) if self.wraps => provider.accepted(socket),
            _ => Ok(socket),
        }
    }

    /// Two connected sockets that are not adopted yet.
    pub(crate) fn raw_pair(&mut self) -> (Socket, Socket) {
        let (listener, address, token) = self.listen("127.0.0.1:0");
        let one = self.connect(address).unwrap();
        let two = self.accepted(token);
        assert_eq!(one.local_address(), two.peer_address());
        assert_eq!(one.peer_address(), two.local_address());
        self.io.close_listener(listener);
        (one, two)
    }

    pub(crate) fn pair(&mut self) -> (SocketId, SocketId) {
        let (one, two) = self.raw_pair();
        let pair = (self.io.adopt(one).unwrap(), self.io.adopt(two).unwrap());
        // A close before the handshake is done cuts the other end off.
        while self.handshakes
            && [pair.0, pair.1].iter().any(|&end| self.io.peer_identity(end).is_none())
        {
            self.poll(Wait::No);
        }
        pair
    }

    /// Starts a receive into `payload` bytes of one buffer and then `staging` of another.
    pub(crate) fn start_recv(&mut self, socket: SocketId, payload: usize, staging: usize) -> Token {
        let payload = (payload > 0).then(|| (self.pool.take(payload + 5).unwrap(), 5..payload + 5));
        let staging_buf = self.pool.take(staging + 3).unwrap();
        let buffers = RecvBuffers { payload, staging: staging_buf, staging_range: 3..staging + 3 };
        let token = self.token();
        self.io.recv(socket, buffers, token);
        token
    }

    pub(crate) fn recv_result(&mut self, token: Token) -> (io::Result<usize>, RecvBuffers) {
        match self.wait_for(token) {
            Outcome::Received(result, buffers) => (result, buffers),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn recv(
        &mut self,
        socket: SocketId,
        payload: usize,
        staging: usize,
    ) -> io::Result<Vec<u8>> {
        let token = self.start_recv(socket, payload, staging);
        let (result, buffers) = self.recv_result(token);
        result.map(|count| received(&buffers, count))
    }

    pub(crate) fn recv_exactly(&mut self, socket: SocketId, count: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        while bytes.len() < count {
            let more = self.recv(socket, 0, (count - bytes.len()).min(60_000)).unwrap();
            assert!(!more.is_empty(), "the stream ended after {} of {count}", bytes.len());
            bytes.extend(more);
        }
        bytes
    }

    pub(crate) fn start_send(&mut self, socket: SocketId, batch: Box<SendBatch>) -> Token {
        let token = self.token();
        self.io.send(socket, batch, token);
        token
    }

    pub(crate) fn sent(&mut self, token: Token) -> (io::Result<()>, Box<SendBatch>) {
        match self.wait_for(token) {
            Outcome::Sent(result, batch) => (result, batch),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn send_bytes(&mut self, socket: SocketId, bytes: &[u8]) {
        let mut batch = SendBatch::new(bytes.len(), 4);
        batch.push_bytes(bytes);
        let token = self.start_send(socket, batch);
        self.sent(token).0.unwrap();
    }

    pub(crate) fn synced(&mut self, token: Token) -> io::Result<()> {
        match self.wait_for(token) {
            Outcome::Synced(result) => result,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn read_file(&mut self, file: FileId, len: usize, offset: u64) -> io::Result<IoBuf> {
        let token = self.token();
        let buf = self.pool.take(len).unwrap();
        self.io.read(file, buf, offset, token);
        match self.wait_for(token) {
            Outcome::Read(result, buf) => result.map(|()| buf),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn write_file(
        &mut self,
        file: FileId,
        bytes: &[u8],
        offset: u64,
        durable: bool,
    ) -> io::Result<()> {
        let token = self.token();
        let mut buf = self.pool.take(bytes.len()).unwrap();
        buf.copy_from_slice(bytes);
        self.io.write(file, buf.share(), offset, durable, token);
        match self.wait_for(token) {
            Outcome::Written(result, buf) => {
                assert_eq!(&buf[..], bytes);
                result
            }
            other => panic!("{other:?}"),
        }
    }
}
