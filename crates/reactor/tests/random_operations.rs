//! Random operations against both back ends, checked against a model of what must come of them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/encrypted.rs"]
mod encrypted;
#[path = "common/scramble.rs"]
mod scramble;
#[path = "common/stack.rs"]
mod stack;

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use encrypted::Encrypted;
use raceline_reactor::io::{FileId, RecvBuffers, SocketId};
use raceline_reactor::sim::Random;
use raceline_reactor::socket::BufferSizes;
use raceline_reactor::{
    BufferPool, Completion, EpollIo, Io, IoBuf, Outcome, Payload, PoolConfig, SendBatch,
    StreamProvider, Token, UringIo, Wait,
};
use scramble::Scrambler;
use stack::Stack;

const SEEDS: u64 = 25;
/// For each kind of stream besides the kernel's.
const PROVIDED_SEEDS: u64 = 8;
const OPERATIONS: usize = 400;
const CONNECTIONS: usize = 6;
const BLOCK: usize = 4096;
const BLOCKS: usize = 16;

#[test]
fn uring_does_what_the_model_says() {
    for seed in 0..SEEDS {
        match UringIo::new() {
            Ok(io) => Run::new(Box::new(io), seed, None).run(),
            Err(error) => return eprintln!("SKIPPED: io_uring cannot be used here: {error}"),
        }
    }
}

#[test]
fn epoll_does_what_the_model_says() {
    for seed in 0..SEEDS {
        Run::new(Box::new(EpollIo::new().unwrap()), seed, None).run();
    }
}

#[test]
fn eager_epoll_does_what_the_model_says() {
    for seed in 0..SEEDS {
        Run::new(Box::new(EpollIo::eager().unwrap()), seed, None).run();
    }
}

fn providers() -> [Arc<dyn StreamProvider>; 4] {
    let scrambler = Scrambler::new(3, "run");
    let polled = Scrambler { polled: true, ..scrambler.clone() };
    [Arc::new(scrambler), Arc::new(polled), Arc::new(Stack::default()), Arc::new(Encrypted::new())]
}

#[test]
fn uring_with_providers_does_what_the_model_says() {
    for seed in 0..PROVIDED_SEEDS {
        for provider in providers() {
            match UringIo::new() {
                Ok(io) => Run::new(Box::new(io), seed, Some(provider)).run(),
                Err(error) => return eprintln!("SKIPPED: io_uring cannot be used here: {error}"),
            }
        }
    }
}

#[test]
fn epoll_with_providers_does_what_the_model_says() {
    for seed in 0..PROVIDED_SEEDS {
        for provider in providers() {
            Run::new(Box::new(EpollIo::new().unwrap()), seed, Some(provider)).run();
        }
    }
}

#[test]
fn eager_epoll_with_providers_does_what_the_model_says() {
    for seed in 0..PROVIDED_SEEDS {
        for provider in providers() {
            Run::new(Box::new(EpollIo::eager().unwrap()), seed, Some(provider)).run();
        }
    }
}

/// One end of a connection: what it has sent and received, by the model.
struct End {
    socket: SocketId,
    peer: usize,
    open: bool,
    sending: Option<Token>,
    receiving: Option<Token>,
    /// All bytes ever given to send.
    sent: Vec<u8>,
    /// How many the peer has received.
    delivered: usize,
    /// It has seen the end of the stream, or an error.
    ended: bool,
}

/// What an operation in flight will have to give.
enum Expected {
    Receive { end: usize },
    Send { end: usize },
    Write { block: usize, contents: u8 },
    Read { block: usize, contents: u8 },
    Sync,
}

struct Run {
    seed: u64,
    random: Random,
    io: Box<dyn Io>,
    pool: BufferPool,
    ends: Vec<End>,
    file: FileId,
    /// The contents of each block, and whether an operation on it is in flight.
    blocks: Vec<(u8, bool)>,
    expected: HashMap<Token, Expected>,
    tokens: u32,
    deadline: Instant,
}

impl Run {
    fn new(io: Box<dyn Io>, seed: u64, provider: Option<Arc<dyn StreamProvider>>) -> Run {
        // Both back ends run the same seeds, at the same time.
        static NAMES: AtomicU64 = AtomicU64::new(0);
        let number = NAMES.fetch_add(1, Ordering::Relaxed);
        let name = format!("raceline-random-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.set_len((BLOCK * BLOCKS) as u64).unwrap();
        let mut run = Run {
            seed,
            random: Random::new(seed),
            io,
            pool: BufferPool::new(&PoolConfig::new(&[(BLOCK, 256)])).unwrap(),
            ends: Vec::new(),
            file: FileId(0),
            blocks: vec![(0, false); BLOCKS],
            expected: HashMap::new(),
            tokens: 0,
            deadline: Instant::now() + Duration::from_secs(30),
        };
        run.file = run.io.register_file(Arc::new(file));
        run.connect(provider.as_deref());
        run
    }

    fn token(&mut self) -> Token {
        self.tokens += 1;
        Token { owner: 1, generation: 1, index: self.tokens }
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.random.below(bound as u64)).unwrap()
    }

    fn connect(&mut self, provider: Option<&dyn StreamProvider>) {
        let listen = self.token();
        let any = "127.0.0.1:0".parse().unwrap();
        let own = provider.and_then(|provider| provider.listen(any));
        let wrapper = provider.filter(|_| own.is_none());
        let (listener, address) = match own {
            Some(own) => self.io.listen_provided(own.unwrap(), listen).unwrap(),
            None => self.io.listen(any, listen).unwrap(),
        };
        for _ in 0..CONNECTIONS {
            let token = self.token();
            let (mut one, mut two) = (None, None);
            match provider.and_then(|provider| provider.connect(address, None)) {
                Some(socket) => one = Some(socket.unwrap()),
                None => self.io.connect(address, None, token),
            }
            let mut done = Vec::new();
            while one.is_none() || two.is_none() {
                self.io.poll(Wait::Yes, &mut done).unwrap();
                for completion in done.drain(..) {
                    match completion.outcome {
                        Outcome::Connected(socket) => one = Some(socket.unwrap()),
                        Outcome::Accepted(accepted) => two = Some(accepted.unwrap().0),
                        other => panic!("{other:?}"),
                    }
                }
            }
            if let Some(wrapper) = wrapper {
                one = one.map(|socket| wrapper.connected(socket).unwrap());
                two = two.map(|socket| wrapper.accepted(socket).unwrap());
            }
            let first = self.ends.len();
            for (socket, peer) in [(one, first + 1), (two, first)] {
                let socket = socket.unwrap();
                let size = Some(self.random.size(100_000));
                socket.set_buffer_sizes(BufferSizes { send: size, receive: size }).unwrap();
                let socket = self.io.adopt(socket).unwrap();
                self.ends.push(End {
                    socket,
                    peer,
                    open: true,
                    sending: None,
                    receiving: None,
                    sent: Vec::new(),
                    delivered: 0,
                    ended: false,
                });
            }
        }
        self.io.close_listener(listener);
    }

    fn run(mut self) {
        for _ in 0..OPERATIONS {
            match self.below(12) {
                0..=3 => self.receive(),
                4..=6 => self.send(),
                7..=8 => self.file_operation(),
                9 if self.below(8) == 0 => self.close(),
                _ => self.poll(Wait::No),
            }
        }
        for end in 0..self.ends.len() {
            self.close_end(end);
        }
        while !self.expected.is_empty() {
            self.poll(Wait::Yes);
        }
        for block in 0..BLOCKS {
            self.start_read(block);
        }
        while !self.expected.is_empty() {
            self.poll(Wait::Yes);
        }
        assert_eq!(self.pool.available_total(), 256, "seed {}", self.seed);
    }

    fn receive(&mut self) {
        let end = self.below(self.ends.len());
        if !self.ends[end].open || self.ends[end].receiving.is_some() || self.pool.available(0) < 2
        {
            return;
        }
        let len = self.random.size(BLOCK);
        let payload = (self.below(2) == 0).then(|| (self.pool.take(len).unwrap(), len / 2..len));
        let start = self.below(BLOCK);
        let staging = self.pool.take(BLOCK).unwrap();
        let token = self.token();
        let buffers = RecvBuffers { payload, staging, staging_range: start..BLOCK };
        self.ends[end].receiving = Some(token);
        self.io.recv(self.ends[end].socket, buffers, token);
        self.expected.insert(token, Expected::Receive { end });
    }

    fn send(&mut self) {
        let end = self.below(self.ends.len());
        if !self.ends[end].open || self.ends[end].sending.is_some() {
            return;
        }
        let mut batch = SendBatch::new(256, 64);
        while batch.has_room(32, 1) && self.below(10) > 0 {
            let seed = self.tokens.to_le_bytes()[0];
            let header: Vec<u8> = (0..self.random.size(32)).map(|_| seed).collect();
            batch.push_bytes(&header);
            self.ends[end].sent.extend(header);
            if self.below(3) == 0 && self.pool.available(0) > 10 {
                let len = self.random.size(BLOCK);
                let mut buf = self.pool.take(len).unwrap();
                let fill = self.random.next_u64().to_le_bytes()[0];
                buf.fill(fill);
                self.ends[end].sent.extend(&buf[len / 3..]);
                batch.push_payload(Payload::Buf(buf, len / 3..len));
            } else {
                let len = self.random.size(70_000);
                self.ends[end].sent.extend(std::iter::repeat_n(0, len));
                batch.push_payload(Payload::Zeroes(len));
            }
        }
        let token = self.token();
        self.ends[end].sending = Some(token);
        self.io.send(self.ends[end].socket, batch, token);
        self.expected.insert(token, Expected::Send { end });
    }

    fn file_operation(&mut self) {
        let block = self.below(BLOCKS);
        if self.pool.available(0) < 10 || self.blocks[block].1 {
            return;
        }
        match self.below(5) {
            0 => {
                let token = self.token();
                self.io.sync(self.file, token);
                self.expected.insert(token, Expected::Sync);
            }
            1 | 2 => self.start_read(block),
            _ => {
                let contents = self.random.next_u64().to_le_bytes()[0];
                let mut buf = self.pool.take(BLOCK).unwrap();
                buf.fill(contents);
                let token = self.token();
                let durable = self.below(3) == 0;
                self.io.write(self.file, buf.share(), (block * BLOCK) as u64, durable, token);
                self.blocks[block].1 = true;
                self.expected.insert(token, Expected::Write { block, contents });
            }
        }
    }

    fn start_read(&mut self, block: usize) {
        let token = self.token();
        let buf = self.pool.take(BLOCK).unwrap();
        self.io.read(self.file, buf, (block * BLOCK) as u64, token);
        self.blocks[block].1 = true;
        let contents = self.blocks[block].0;
        self.expected.insert(token, Expected::Read { block, contents });
    }

    fn close(&mut self) {
        let end = self.below(self.ends.len());
        self.close_end(end);
    }

    fn close_end(&mut self, end: usize) {
        if std::mem::take(&mut self.ends[end].open) {
            let reset = self.below(2) == 0;
            self.io.close(self.ends[end].socket, reset);
        }
    }

    fn poll(&mut self, wait: Wait) {
        assert!(Instant::now() < self.deadline, "seed {}: operations are lost", self.seed);
        let mut done = Vec::new();
        if wait == Wait::Yes {
            let token = self.token();
            self.io.timer(Instant::now() + Duration::from_millis(100), token);
        }
        self.io.poll(wait, &mut done).unwrap();
        for completion in done {
            self.check(completion);
        }
    }

    fn check(&mut self, Completion { token, outcome }: Completion) {
        let seed = self.seed;
        if matches!(outcome, Outcome::Timer) {
            return;
        }
        let expected = self.expected.remove(&token).expect("each operation completes once");
        match (expected, outcome) {
            (Expected::Receive { end }, Outcome::Received(result, buffers)) => {
                assert_eq!(self.ends[end].receiving.take(), Some(token));
                let peer = self.ends[end].peer;
                match result {
                    Ok(0) => {
                        assert!(!self.ends[peer].open, "seed {seed}: the stream ended early");
                        self.ends[end].ended = true;
                    }
                    Ok(count) => {
                        assert!(!self.ends[end].ended, "seed {seed}: bytes after the end");
                        let bytes = received(&buffers, count);
                        let from = self.ends[peer].delivered;
                        assert!(self.ends[peer].sent[from..].starts_with(&bytes), "seed {seed}");
                        self.ends[peer].delivered += count;
                    }
                    Err(_) => {
                        assert!(
                            !self.ends[end].open || !self.ends[peer].open,
                            "seed {seed}: broken"
                        );
                        self.ends[end].ended = true;
                    }
                }
            }
            (Expected::Send { end }, Outcome::Sent(result, batch)) => {
                assert_eq!(self.ends[end].sending.take(), Some(token));
                let peer_open = self.ends[self.ends[end].peer].open;
                match result {
                    Ok(()) => assert!(batch.is_empty()),
                    Err(_) => assert!(!self.ends[end].open || !peer_open, "seed {seed}: broken"),
                }
            }
            (Expected::Write { block, contents }, Outcome::Written(result, _)) => {
                result.unwrap();
                self.blocks[block] = (contents, false);
            }
            (Expected::Read { block, contents }, Outcome::Read(result, buf)) => {
                result.unwrap();
                assert!(buf.iter().all(|&byte| byte == contents), "seed {seed} block {block}");
                self.blocks[block].1 = false;
            }
            (Expected::Sync, Outcome::Synced(result)) => result.unwrap(),
            (_, other) => panic!("seed {seed}: {other:?}"),
        }
    }
}

fn received(buffers: &RecvBuffers, count: usize) -> Vec<u8> {
    let part = |buf: &IoBuf, range: &std::ops::Range<usize>| buf[range.clone()].to_vec();
    let mut bytes = buffers.payload.as_ref().map_or(Vec::new(), |(buf, range)| part(buf, range));
    bytes.extend(part(&buffers.staging, &buffers.staging_range));
    bytes.truncate(count);
    bytes
}
