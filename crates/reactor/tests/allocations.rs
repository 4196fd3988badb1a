//! The I/O path does not allocate: proven by counting.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/counting.rs"]
mod counting;

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use counting::ALLOCATIONS;
use raceline_reactor::io::{FileId, RecvBuffers, SocketId};
use raceline_reactor::{
    Backend, BufferPool, Completion, HugePages, Io, Outcome, Payload, PoolConfig, Region,
    RegionHandle, SendBatch, Token, Wait, open_io,
};

const ROUNDS: usize = 500;

#[test]
fn operations_do_not_allocate() {
    for backend in [Backend::Auto, Backend::Epoll] {
        let mut bed = Bed::new(backend);
        // The first rounds may: vectors grow to the size they keep.
        (0..ROUNDS).for_each(|_| bed.round());
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        (0..ROUNDS).for_each(|_| bed.round());
        let made = ALLOCATIONS.load(Ordering::Relaxed) - before;
        assert_eq!(made, 0, "{:?}", bed.backend);
    }
}

fn token(index: u32) -> Token {
    Token { owner: 0, generation: 0, index }
}

struct Bed {
    io: Box<dyn Io>,
    backend: Backend,
    pool: BufferPool,
    region: RegionHandle,
    sockets: (SocketId, SocketId),
    file: FileId,
    batch: Option<Box<SendBatch>>,
    done: Vec<Completion>,
}

impl Bed {
    fn new(backend: Backend) -> Bed {
        let (mut io, backend) = open_io(backend).unwrap();
        let (_, address) = io.listen("127.0.0.1:0".parse().unwrap(), token(0)).unwrap();
        io.connect(address, None, token(0));
        let mut done = Vec::with_capacity(16);
        let mut ends = Vec::new();
        while ends.len() < 2 {
            io.poll(Wait::Yes, &mut done).unwrap();
            for completion in done.drain(..) {
                match completion.outcome {
                    Outcome::Connected(socket) => ends.push(io.adopt(socket.unwrap()).unwrap()),
                    Outcome::Accepted(accepted) => {
                        ends.push(io.adopt(accepted.unwrap().0).unwrap())
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        let path =
            std::env::temp_dir().join(format!("raceline-allocations-{}", std::process::id()));
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        Bed {
            file: io.register_file(Arc::new(file)),
            io,
            backend,
            pool: BufferPool::new(&PoolConfig::new(&[(8192, 8)])).unwrap(),
            region: RegionHandle::new(Arc::new(Region::new(1 << 20, HugePages::None).unwrap())),
            sockets: (ends[0], ends[1]),
            batch: Some(SendBatch::new(128, 8)),
            done,
        }
    }

    /// One of each operation: send, receive, write, read, sync, timer.
    fn round(&mut self) {
        let mut batch = self.batch.take().unwrap();
        batch.push_bytes(&[1; 24]);
        batch.push_payload(Payload::Region(self.region.clone(), 4096..8192));
        batch.push_payload(Payload::Buf(self.pool.take(100).unwrap(), 0..50));
        let total = batch.len();
        self.io.send(self.sockets.0, batch, token(1));
        let buf = self.pool.take(4096).unwrap().share();
        self.io.write(self.file, buf.clone(), 0, false, token(2));
        self.io.sync(self.file, token(3));
        self.io.timer(Instant::now(), token(4));
        let mut received = 0;
        self.receive();
        let mut left = 5;
        while left > 0 {
            self.io.poll(Wait::Yes, &mut self.done).unwrap();
            let mut done = std::mem::take(&mut self.done);
            for completion in done.drain(..) {
                match completion.outcome {
                    Outcome::Received(count, _) => {
                        received += count.unwrap();
                        if received < total {
                            self.receive();
                            continue;
                        }
                    }
                    Outcome::Sent(result, mut batch) => {
                        result.unwrap();
                        batch.clear();
                        self.batch = Some(batch);
                    }
                    Outcome::Written(result, buf) => {
                        result.unwrap();
                        drop(buf);
                        let buf = self.pool.take(4096).unwrap();
                        self.io.read(self.file, buf, 0, token(5));
                        continue;
                    }
                    Outcome::Read(result, _) => result.unwrap(),
                    Outcome::Synced(result) => result.unwrap(),
                    Outcome::Timer => {}
                    other => panic!("{other:?}"),
                }
                left -= 1;
            }
            self.done = done;
        }
    }

    fn receive(&mut self) {
        let payload = Some((self.pool.take(8192).unwrap(), 0..1000));
        let staging = self.pool.take(8192).unwrap();
        let buffers = RecvBuffers { payload, staging, staging_range: 100..8192 };
        self.io.recv(self.sockets.1, buffers, token(6));
    }
}
