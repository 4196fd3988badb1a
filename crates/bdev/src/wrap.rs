//! What wrappers of devices have in common: their timers' tokens, and counting on the device below.

use std::io;
use std::time::Instant;

use raceline_reactor::{Completion, Context, Payload};

use crate::slots::{Key, Slots};
use crate::stats::Meter;
use crate::{Bdev, BdevError, Channel, Done, Op, OpKind, Request};

/// The bit of [`raceline_reactor::Token::index`] that belongs to the lowest wrapper with timers
/// (such as [`crate::DelayBdev`]); those above it have the bits below, see [`MAX_WRAPPER_LEVELS`].
/// A channel that may be wrapped leaves them clear in the tokens of its own operations.
pub const WRAPPER_INDEX: u32 = 1 << 31;

/// Wrappers with timers that can lie on top of each other: a bit each, above the slots' indexes.
pub const MAX_WRAPPER_LEVELS: u32 = 11;

/// How many requests a channel holds before it allocates.
const EXPECTED_DEPTH: usize = 128;

/// The bit of a wrapper's timers on top of `inner`.
///
/// # Errors
/// With more than [`MAX_WRAPPER_LEVELS`] of them.
pub(crate) fn wrapper_bit(inner: &dyn Bdev) -> io::Result<u32> {
    let level = inner.wrapper_levels();
    if level >= MAX_WRAPPER_LEVELS {
        let text = format!("more than {MAX_WRAPPER_LEVELS} delays and errors on top of each other");
        return Err(io::Error::other(text));
    }
    Ok(WRAPPER_INDEX >> level)
}

/// Opens the device under a wrapper. That device counts for itself, as the device above counts too.
pub(crate) fn open_base(
    base: &dyn Bdev,
    cx: &mut Context<'_>,
    owner: u16,
) -> io::Result<Box<dyn Channel>> {
    let channel = base.open_channel(cx, owner)?;
    Ok(match base.stats() {
        None => channel,
        Some(stats) => Box::new(MeteredChannel {
            inner: channel,
            meter: stats.meter(),
            running: Slots::with_capacity(EXPECTED_DEPTH),
            in_flight: 0,
            now: cx.now,
        }),
    })
}

/// What comes back with a request that was never started.
pub(crate) fn payload_of(op: Op) -> Option<Payload> {
    match op {
        Op::Read { buf: Some(buf), len, .. } => Some(Payload::Buf(buf, 0..len)),
        Op::Write { data, .. } => {
            let len = data.len();
            Some(Payload::Shared(data, 0..len))
        }
        _ => None,
    }
}

/// Counts what a channel does. The tag of a request is its slot here while it runs.
struct MeteredChannel {
    inner: Box<dyn Channel>,
    meter: Meter,
    running: Slots<Running>,
    in_flight: usize,
    /// The time of the last turn in which there was something to do: good enough for writes
    /// that take no time.
    now: Instant,
}

struct Running {
    tag: u64,
    kind: OpKind,
    bytes: u64,
    started: Instant,
}

impl MeteredChannel {
    /// Counts what has finished since `first`, and gives it its own tag back.
    fn count(&mut self, now: Instant, first: usize, done: &mut [Done]) {
        self.now = now;
        for done in &mut done[first..] {
            let Some(Running { tag, kind, bytes, started }) = self.running.remove(key_of(done.tag))
            else {
                unreachable!("a channel finishes what was submitted, once: {done:?}")
            };
            done.tag = tag;
            self.in_flight -= 1;
            self.meter.finish(kind, bytes, (started, now), done.result);
        }
        self.meter.set_in_flight(self.in_flight);
    }
}

fn tag_of(key: Key) -> u64 {
    u64::from(key.generation) << 32 | u64::from(key.index)
}

fn key_of(tag: u64) -> Key {
    let [i0, i1, i2, i3, g0, g1, ..] = tag.to_le_bytes();
    Key { index: u32::from_le_bytes([i0, i1, i2, i3]), generation: u16::from_le_bytes([g0, g1]) }
}

impl Channel for MeteredChannel {
    fn submit(&mut self, cx: &mut Context<'_>, request: Request, done: &mut Vec<Done>) {
        let Request { tag, op } = request;
        let (kind, bytes) = (OpKind::of(&op), op.bytes());
        let started = self.meter.start(cx.now);
        let key = self.running.insert(Running { tag, kind, bytes, started });
        self.in_flight += 1;
        let first = done.len();
        self.inner.submit(cx, Request { tag: tag_of(key), op }, done);
        self.count(cx.now, first, done);
    }

    fn reads_now(&self) -> bool {
        self.inner.reads_now()
    }

    fn read_now(&mut self, offset: u64, len: usize) -> Option<Payload> {
        let started = self.meter.start(self.now);
        let payload = self.inner.read_now(offset, len)?;
        self.meter.finish(OpKind::Read, len as u64, (started, self.now), Ok(()));
        Some(payload)
    }

    fn prefetch(&mut self, offset: u64, len: usize) {
        self.inner.prefetch(offset, len);
    }

    fn writes_now(&self) -> bool {
        self.inner.writes_now()
    }

    fn write_now(&mut self, offset: u64, data: &[u8]) -> Result<(), BdevError> {
        let started = self.meter.start(self.now);
        let result = self.inner.write_now(offset, data);
        self.meter.finish(OpKind::Write, data.len() as u64, (started, self.now), result);
        result
    }

    fn handle_completion(
        &mut self,
        cx: &mut Context<'_>,
        completion: Completion,
        done: &mut Vec<Done>,
    ) {
        let first = done.len();
        self.inner.handle_completion(cx, completion, done);
        self.count(cx.now, first, done);
    }

    fn flush(&mut self, cx: &mut Context<'_>, done: &mut Vec<Done>) {
        let first = done.len();
        self.inner.flush(cx, done);
        self.count(cx.now, first, done);
    }

    fn close(&mut self, cx: &mut Context<'_>) {
        self.inner.close(cx);
    }
}

/// What the devices below decide, and a wrapper only passes on.
macro_rules! pass_to_base {
    ($($field:ident).+) => {
        fn write_fault(&self) -> bool {
            self.$($field).+.write_fault()
        }

        fn reset_write_fault(&self) {
            self.$($field).+.reset_write_fault();
        }

        fn rescan(&self) -> std::io::Result<()> {
            self.$($field).+.rescan()
        }
    };
}
pub(crate) use pass_to_base;
