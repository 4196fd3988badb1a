//! Logical units as devices: requests of all kinds, and a unit that a target exports again.
#![allow(clippy::unwrap_used)] // a test

mod common;

use std::time::Instant;

use common::{Core, LIMIT, config, pattern, ram, serve};
use raceline_bdev::{Bdev, BdevError, Channel, Done, Op, Request};
use raceline_initiator::{LunBdev, SessionConfig};
use raceline_reactor::core::{Backend, open_io};
use raceline_reactor::{BufferPool, Context, Io, IoBuf, Payload, PoolConfig, Wait};

/// A channel and the core that drives it.
struct Way {
    io: Box<dyn Io>,
    pool: BufferPool,
    channel: Box<dyn Channel>,
}

impl Way {
    fn open(device: &LunBdev) -> Self {
        let (mut io, _) = open_io(Backend::Auto).unwrap();
        let pool = BufferPool::new(&PoolConfig::new(&[(128 << 10, 4)])).unwrap();
        let now = io.now();
        let mut cx = Context { io: &mut *io, pool: &pool, now };
        let channel = device.open_channel(&mut cx, 1).unwrap();
        Self { io, pool, channel }
    }

    /// Executes requests, and gives their ends in the order of the requests.
    fn execute(&mut self, ops: Vec<Op>) -> Vec<Done> {
        let (count, mut done) = (ops.len(), Vec::new());
        let start = Instant::now();
        let now = self.io.now();
        let mut cx = Context { io: &mut *self.io, pool: &self.pool, now };
        for (tag, op) in (0..).zip(ops) {
            self.channel.submit(&mut cx, Request { tag, op }, &mut done);
        }
        self.channel.flush(&mut cx, &mut done);
        while done.len() < count {
            assert!(start.elapsed() < LIMIT, "{} of {count} have ended", done.len());
            let mut completions = Vec::new();
            self.io.poll(Wait::No, &mut completions).unwrap();
            let now = self.io.now();
            let mut cx = Context { io: &mut *self.io, pool: &self.pool, now };
            for completion in completions {
                self.channel.handle_completion(&mut cx, completion, &mut done);
            }
            self.channel.flush(&mut cx, &mut done);
            std::thread::yield_now();
        }
        done.sort_by_key(|done| done.tag);
        done
    }

    fn one(&mut self, op: Op) -> Result<(), BdevError> {
        self.execute(vec![op]).remove(0).result
    }

    fn read(&mut self, offset: u64, len: usize) -> Vec<u8> {
        let done = self.execute(vec![read(offset, len)]).remove(0);
        data(done)
    }
}

fn read(offset: u64, len: usize) -> Op {
    Op::Read { offset, len, buf: Some(IoBuf::heap(len)) }
}

fn write(offset: u64, data: &[u8], fua: bool) -> Op {
    Op::Write { offset, data: IoBuf::from_slice(data).share(), fua }
}

fn data(done: Done) -> Vec<u8> {
    assert_eq!(done.result, Ok(()));
    let Some(Payload::Buf(buf, range)) = done.payload else { panic!("no buffer") };
    buf[range].to_vec()
}

#[test]
fn requests_of_all_kinds_do_what_they_say() {
    let (target, address) = serve(vec![ram("16M")]);
    let device = LunBdev::open(config(address)).unwrap();
    let info = device.info();
    assert_eq!((info.block_size, info.block_count, info.deallocate), (512, 32_768, true));
    let mut way = Way::open(&device);
    let long = pattern(3, 5 << 20);
    assert_eq!(way.one(write(4096, &long, true)), Ok(()));
    assert_eq!(way.read(4096, long.len()), long, "in several commands");
    assert_eq!(way.one(Op::Flush), Ok(()));
    let zero = Op::WriteZeroes { offset: 4096, len: 1 << 20, deallocate: false, fua: true };
    assert_eq!(way.one(zero), Ok(()));
    assert_eq!(way.read(4096, 1 << 20), vec![0; 1 << 20]);
    let zero = Op::WriteZeroes { offset: 2 << 20, len: 4096, deallocate: true, fua: false };
    assert_eq!(way.one(zero), Ok(()));
    assert_eq!(way.read(2 << 20, 4096), [0; 4096]);
    assert_eq!(way.one(Op::Deallocate { offset: 3 << 20, len: 8192 }), Ok(()));
    assert_eq!(way.read((3 << 20) + 8192, 512), long[(3 << 20) + 8192 - 4096..][..512]);
    let copy = Op::Copy { from: 0, to: 4096, len: 512, fua: false };
    assert_eq!(way.one(copy), Err(BdevError::NotSupported));
    target.shutdown().unwrap();
}

#[test]
fn more_requests_than_the_session_takes_wait() {
    let (target, address) = serve(vec![ram("16M")]);
    let device = LunBdev::open(SessionConfig { depth: 4, ..config(address) }).unwrap();
    let mut way = Way::open(&device);
    let pieces: Vec<Vec<u8>> = (0..40).map(|seed| pattern(seed, 300 << 10)).collect();
    let place = |index: usize| (index * (300 << 10)) as u64;
    let writes = pieces.iter().enumerate();
    let writes = writes.map(|(index, data)| write(place(index), data, false)).collect();
    assert!(way.execute(writes).iter().all(|done| done.result == Ok(())));
    let reads = (0..40).map(|index| read(place(index), 300 << 10)).collect();
    for (done, data_written) in way.execute(reads).into_iter().zip(&pieces) {
        assert_eq!(data(done), *data_written);
    }
    target.shutdown().unwrap();
}

#[test]
fn a_unit_is_exported_again() {
    let (first, address) = serve(vec![ram("4M")]);
    let device = LunBdev::open(config(address)).unwrap();
    let uuid = device.info().uuid;
    let (second, again) = serve(vec![std::sync::Arc::new(device)]);
    let mut core = Core::ready(config(again));
    let written = pattern(8, 1 << 20);
    core.write(100, &written, 1);
    assert_eq!(core.take_done(1).result, Ok(0));
    assert_eq!(core.data(100, 2048), written);
    core.close();
    let mut direct = Core::ready(config(address));
    assert_eq!(direct.data(100, 2048), written);
    direct.close();
    assert_ne!(uuid, [0; 16]);
    second.shutdown().unwrap();
    first.shutdown().unwrap();
}
