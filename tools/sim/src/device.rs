//! A block device that delays requests at random, fails some, and lies in tests of the checker.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use raceline_bdev::{
    Bdev, BdevError, BdevInfo, Channel, Done, Op, OpKind, Request, SharedBdev, WRAPPER_INDEX,
};
use raceline_reactor::sim::Random;
use raceline_reactor::{Completion, Context, IoBuf, Payload, Token};

/// A device that is broken in a way that the checker must notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// Some writes are acknowledged and thrown away.
    DropWrite,
    /// Some writes store all but their last bytes.
    TearWrite,
    /// Some writes land one block further.
    MisplaceWrite,
    /// Some reads give the content from before the latest writes.
    StaleRead,
    /// Some failed writes are executed nevertheless.
    FailButWrite,
}

impl Lie {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::DropWrite,
        Self::TearWrite,
        Self::MisplaceWrite,
        Self::StaleRead,
        Self::FailButWrite,
    ];
}

/// One of this many requests is affected by the lie.
const LIE_EVERY: u64 = 20;

/// How the device behaves, and what it has done.
#[derive(Debug, Default)]
pub struct Faults {
    /// How many of a thousand requests fail.
    pub errors_per_thousand: AtomicU32,
    /// Longest delay of a request in nanoseconds; 0: none.
    pub max_delay_ns: AtomicU64,
    /// Requests that failed.
    pub failed: AtomicU64,
    /// Channels that are open.
    pub open_channels: AtomicUsize,
    /// The blocks that were written, in the order in which the device has written them.
    landings: Mutex<Vec<Landing>>,
}

/// One block that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Landing {
    /// The block.
    pub block: u64,
    /// Its first eight bytes.
    pub write: u64,
}

impl Faults {
    /// The blocks that were written so far.
    #[must_use]
    pub fn landings(&self) -> Vec<Landing> {
        self.landings.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn record(&self, offset: u64, data: &[u8], block_size: u32) {
        let blocks = offset / u64::from(block_size)..;
        let writes = data.chunks(usize::try_from(block_size).unwrap_or(usize::MAX));
        let landed = blocks.zip(writes).filter_map(|(block, bytes)| {
            Some(Landing { block, write: u64::from_le_bytes(*bytes.first_chunk()?) })
        });
        self.landings.lock().unwrap_or_else(PoisonError::into_inner).extend(landed);
    }
}

/// A device with [`Faults`].
pub struct FaultyBdev {
    inner: SharedBdev,
    faults: Arc<Faults>,
    seed: u64,
    /// Reads are copied into buffers instead of being sent from the device's memory, and ranges are not copied by the
    /// device.
    copy_reads: bool,
    /// Reads and writes that need no request are done without one, and without faults.
    prompt: bool,
    lie: Option<Lie>,
}

impl FaultyBdev {
    /// Injects faults into `inner`; the same seed affects the same requests.
    #[must_use]
    pub fn new(
        inner: SharedBdev,
        faults: Arc<Faults>,
        seed: u64,
        copy_reads: bool,
        lie: Option<Lie>,
    ) -> Self {
        Self { inner, faults, seed, copy_reads, prompt: false, lie }
    }

    /// The device has its data at hand, and takes writes from any memory.
    #[must_use]
    pub fn prompt(self) -> Self {
        Self { prompt: true, ..self }
    }
}

impl Bdev for FaultyBdev {
    fn info(&self) -> BdevInfo {
        let info = self.inner.info();
        BdevInfo {
            reads_in_place: info.reads_in_place && !self.copy_reads,
            copies: info.copies && !self.copy_reads,
            ..info
        }
    }

    fn open_channel(&self, cx: &mut Context<'_>, owner: u16) -> std::io::Result<Box<dyn Channel>> {
        let inner = self.inner.open_channel(cx, owner)?;
        let number = self.faults.open_channels.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(FaultyChannel {
            inner,
            faults: Arc::clone(&self.faults),
            random: Random::new(self.seed ^ (number as u64) << 32 ^ u64::from(owner)),
            block_size: self.inner.info().block_size,
            bytes: self.inner.info().block_count * u64::from(self.inner.info().block_size),
            prompt: self.prompt,
            lie: self.lie,
            owner,
            held: Vec::new(),
            old_contents: Vec::new(),
        }))
    }
}

struct FaultyChannel {
    inner: Box<dyn Channel>,
    faults: Arc<Faults>,
    random: Random,
    block_size: u32,
    bytes: u64,
    prompt: bool,
    lie: Option<Lie>,
    owner: u16,
    /// Delayed requests by the index of their timer.
    held: Vec<Option<Held>>,
    /// Old contents, for stale reads.
    old_contents: Vec<(u64, Vec<u8>)>,
}

struct Held {
    request: Request,
    error: Option<BdevError>,
}

impl FaultyChannel {
    /// The error that this request gets.
    fn verdict(&mut self, kind: OpKind) -> Option<BdevError> {
        let rate = self.faults.errors_per_thousand.load(Ordering::Relaxed);
        if self.random.below(1000) >= u64::from(rate) {
            return None;
        }
        self.faults.failed.fetch_add(1, Ordering::Relaxed);
        let fault = if kind == OpKind::Read { BdevError::ReadFault } else { BdevError::WriteFault };
        let errors = [fault, fault, BdevError::NoSpace, BdevError::Transient, BdevError::Internal];
        let pick = usize::try_from(self.random.below(errors.len() as u64)).unwrap_or(0);
        // Only a request that changes blocks can run out of space.
        let fits = errors[pick] != BdevError::NoSpace || kind != OpKind::Read;
        Some(if fits { errors[pick] } else { fault })
    }

    /// Puts back the old contents.
    fn overlay(&self, offset: u64, bytes: &mut [u8]) {
        for (at, old) in self.old_contents.iter().rev() {
            for (old, at) in old.iter().zip(*at..) {
                let index = at.checked_sub(offset).and_then(|index| usize::try_from(index).ok());
                if let Some(byte) = index.and_then(|index| bytes.get_mut(index)) {
                    *byte = *old;
                }
            }
        }
    }

    fn execute(&mut self, cx: &mut Context<'_>, held: Held, done: &mut Vec<Done>) {
        let Held { request, error } = held;
        match error {
            None => self.perform(cx, request, done),
            Some(error) => {
                let payload = match request.op {
                    Op::Read { buf: Some(buf), len, .. } => Some(Payload::Buf(buf, 0..len)),
                    Op::Write { offset, data, fua } => {
                        if self.lie == Some(Lie::FailButWrite) {
                            let op = Op::Write { offset, data: data.clone(), fua };
                            self.perform(cx, Request { tag: request.tag, op }, &mut Vec::new());
                        }
                        let len = data.len();
                        Some(Payload::Shared(data, 0..len))
                    }
                    _ => None,
                };
                done.push(Done { tag: request.tag, result: Err(error), payload });
            }
        }
    }

    fn perform(&mut self, cx: &mut Context<'_>, request: Request, done: &mut Vec<Done>) {
        if let Op::Write { offset, data, .. } = &request.op {
            self.faults.record(*offset, data, self.block_size);
        }
        let lies = self.lie.is_some() && self.random.below(LIE_EVERY) == 0;
        let Request { tag, op } = request;
        match (op, self.lie) {
            (Op::Write { offset, data, fua }, Some(Lie::StaleRead)) => {
                self.old_contents.push((offset, data.to_vec()));
                self.inner.submit(cx, Request { tag, op: Op::Write { offset, data, fua } }, done);
            }
            (Op::Read { offset, len, buf }, Some(Lie::StaleRead)) if lies => {
                self.inner.submit(cx, Request { tag, op: Op::Read { offset, len, buf } }, done);
                if let Some(Payload::Buf(buf, _)) =
                    done.last_mut().and_then(|done| done.payload.as_mut())
                {
                    self.overlay(offset, &mut buf[..len]);
                }
            }
            (Op::Write { offset, data, fua }, Some(lie)) if lies => {
                let len = data.len();
                let whole = Payload::Shared(data.clone(), 0..len);
                let (offset, data) = match lie {
                    Lie::DropWrite => {
                        return done.push(Done { tag, result: Ok(()), payload: Some(whole) });
                    }
                    Lie::TearWrite => {
                        let kept = len - len.min(64);
                        (offset, IoBuf::from_slice(&data[..kept]).share())
                    }
                    Lie::MisplaceWrite => {
                        let moved = offset + u64::from(self.block_size);
                        let fits = moved + len as u64 <= self.bytes;
                        (if fits { moved } else { offset }, data)
                    }
                    Lie::StaleRead | Lie::FailButWrite => (offset, data),
                };
                let before = done.len();
                self.inner.submit(cx, Request { tag, op: Op::Write { offset, data, fua } }, done);
                done[before..].iter_mut().for_each(|done| done.payload = None);
                if let Some(last) = done.last_mut() {
                    last.payload = Some(whole);
                }
            }
            (op, _) => self.inner.submit(cx, Request { tag, op }, done),
        }
    }
}

impl Channel for FaultyChannel {
    fn reads_now(&self) -> bool {
        self.prompt && self.inner.reads_now()
    }

    fn read_now(&mut self, offset: u64, len: usize) -> Option<Payload> {
        self.inner.read_now(offset, len).filter(|_| self.prompt)
    }

    fn writes_now(&self) -> bool {
        self.prompt && self.inner.writes_now()
    }

    fn write_now(&mut self, offset: u64, data: &[u8]) -> Result<(), BdevError> {
        self.inner.write_now(offset, data)
    }

    fn submit(&mut self, cx: &mut Context<'_>, request: Request, done: &mut Vec<Done>) {
        let error = self.verdict(OpKind::of(&request.op));
        let held = Held { request, error };
        let max = self.faults.max_delay_ns.load(Ordering::Relaxed);
        // Every fourth request finds its data in a cache.
        if max == 0 || self.random.below(4) == 0 {
            return self.execute(cx, held, done);
        }
        let delay = Duration::from_nanos(1 + self.random.below(max));
        let free = self.held.iter().position(Option::is_none);
        let index = free.unwrap_or_else(|| {
            self.held.push(None);
            self.held.len() - 1
        });
        self.held[index] = Some(held);
        let index = u32::try_from(index).unwrap_or(0) | WRAPPER_INDEX;
        cx.io.timer(cx.now + delay, Token { owner: self.owner, generation: 0, index });
    }

    fn handle_completion(
        &mut self,
        cx: &mut Context<'_>,
        completion: Completion,
        done: &mut Vec<Done>,
    ) {
        let index = completion.token.index;
        if index & WRAPPER_INDEX == 0 {
            return self.inner.handle_completion(cx, completion, done);
        }
        let index = usize::try_from(index & !WRAPPER_INDEX).unwrap_or(usize::MAX);
        if let Some(held) = self.held.get_mut(index).and_then(Option::take) {
            self.execute(cx, held, done);
        }
    }

    fn flush(&mut self, cx: &mut Context<'_>, done: &mut Vec<Done>) {
        self.inner.flush(cx, done);
    }

    fn close(&mut self, cx: &mut Context<'_>) {
        assert!(self.held.iter().all(Option::is_none), "closed with requests in flight");
        self.inner.close(cx);
        self.faults.open_channels.fetch_sub(1, Ordering::Relaxed);
    }
}
