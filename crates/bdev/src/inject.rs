//! A wrapper that fails, holds or corrupts the next requests, as many as an operator orders.
//!
//! [`crate::ErrorBdev`] fails by standing rules; here each order is counted down, and then is over.

use std::io;
use std::num::NonZeroU8;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use raceline_reactor::{Completion, Context, IoBuf, Payload, SharedBuf, Token};

use crate::wrap::{open_base, pass_to_base, payload_of, wrapper_bit};
use crate::{Bdev, BdevError, BdevInfo, Channel, Done, Op, OpKind, Request, SharedBdev};

/// How soon a request that lacked memory is tried again.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);
/// How often a channel with held requests looks whether they may go.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);
/// How many requests are held before that allocates.
const EXPECTED_HELD: usize = 64;

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Injected {
    /// It fails.
    Failure,
    /// It fails with this status.
    Status {
        /// Status Code Type.
        sct: u8,
        /// Status Code.
        sc: u8,
    },
    /// It is held until [`InjectControl::resume`].
    Held,
    /// It finds no memory, and is tried again 1 ms later: that counts as one more.
    NoMemory,
    /// One byte of the data read or written is another.
    Corrupt {
        /// Which byte of the request.
        offset: u64,
        /// The bits that are turned over.
        bits: NonZeroU8,
    },
}

/// An order for one kind of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Injection {
    /// What happens.
    pub what: Injected,
    /// To how many requests, over all cores.
    pub count: u32,
    /// Only while at least this many requests are in flight on the core.
    pub depth: u64,
}

/// A device whose requests are tampered with.
pub struct InjectBdev {
    inner: SharedBdev,
    control: InjectControl,
}

impl InjectBdev {
    /// A device that does what `inner` does, until the control says otherwise.
    #[must_use]
    pub fn new(inner: SharedBdev) -> (Self, InjectControl) {
        let control = InjectControl(Arc::default());
        (Self { inner, control: control.clone() }, control)
    }
}

/// Gives orders to an [`InjectBdev`], from any thread.
#[derive(Clone, Debug)]
pub struct InjectControl(Arc<Orders>);

#[derive(Debug, Default)]
struct Orders {
    /// By [`OpKind`].
    kinds: [Slot; OpKind::ALL.len()],
    /// How often held requests were let go.
    resumed: AtomicU64,
}

#[derive(Debug, Default)]
struct Slot {
    /// How many are still to be tampered with; most of the time none, which costs one look.
    left: AtomicU32,
    order: Mutex<Option<Injection>>,
}

impl Slot {
    fn order(&self) -> MutexGuard<'_, Option<Injection>> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, injection: Option<Injection>) {
        let mut order = self.order();
        *order = injection;
        self.left.store(injection.map_or(0, |injection| injection.count), Ordering::Relaxed);
    }

    /// What happens to the next request, and counts it.
    fn take(&self, in_flight: u64) -> Option<Injected> {
        if self.left.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let order = self.order();
        let injection = order.filter(|injection| in_flight >= injection.depth)?;
        let left = self.left.load(Ordering::Relaxed).checked_sub(1)?;
        self.left.store(left, Ordering::Relaxed);
        Some(injection.what)
    }
}

impl InjectControl {
    /// Orders what happens to the next requests of a kind, instead of what was ordered before.
    pub fn inject(&self, kind: OpKind, injection: Injection) {
        self.0.kinds[kind as usize].set(Some(injection));
    }

    /// To how many more requests of a kind the last order applies: 0 once all of them have come.
    #[must_use]
    pub fn left(&self, kind: OpKind) -> u32 {
        self.0.kinds[kind as usize].left.load(Ordering::Relaxed)
    }

    /// Takes all orders back; what is held stays held.
    pub fn clear(&self) {
        self.0.kinds.iter().for_each(|slot| slot.set(None));
    }

    /// Lets go of held requests, and holds no more.
    pub fn resume(&self) {
        for slot in &self.0.kinds {
            if slot.order().is_some_and(|injection| injection.what == Injected::Held) {
                slot.set(None);
            }
        }
        self.0.resumed.fetch_add(1, Ordering::Release);
    }
}

impl Bdev for InjectBdev {
    fn info(&self) -> BdevInfo {
        self.inner.info()
    }

    fn open_channel(&self, cx: &mut Context<'_>, owner: u16) -> io::Result<Box<dyn Channel>> {
        let orders = Arc::clone(&self.control.0);
        Ok(Box::new(InjectChannel {
            timer: Token { owner, generation: 0, index: wrapper_bit(&*self.inner)? },
            inner: open_base(&*self.inner, cx, owner)?,
            resumed: orders.resumed.load(Ordering::Acquire),
            orders,
            in_flight: 0,
            held: Vec::with_capacity(EXPECTED_HELD),
            short: Vec::with_capacity(EXPECTED_HELD),
            corrupting: Vec::with_capacity(EXPECTED_HELD),
            timer_runs: false,
        }))
    }

    fn wrapper_levels(&self) -> u32 {
        self.inner.wrapper_levels() + 1
    }

    pass_to_base!(inner);
}

struct InjectChannel {
    inner: Box<dyn Channel>,
    orders: Arc<Orders>,
    resumed: u64,
    timer: Token,
    timer_runs: bool,
    /// Requests at the device below.
    in_flight: u64,
    held: Vec<Request>,
    /// Those that are to be tried again.
    short: Vec<Request>,
    /// Reads whose data will be tampered with: tag, byte, bits.
    corrupting: Vec<(u64, u64, NonZeroU8)>,
}

impl InjectChannel {
    fn pass_on(&mut self, cx: &mut Context<'_>, request: Request, done: &mut Vec<Done>) {
        let first = done.len();
        self.in_flight += 1;
        self.inner.submit(cx, request, done);
        self.settle(first, done);
    }

    /// Looks at what the device has finished since `first`.
    fn settle(&mut self, first: usize, done: &mut [Done]) {
        for done in &mut done[first..] {
            self.in_flight -= 1;
            let Some(i) = self.corrupting.iter().position(|(tag, ..)| *tag == done.tag) else {
                continue;
            };
            let (_, offset, bits) = self.corrupting.swap_remove(i);
            if let (Ok(()), Some(payload)) = (done.result, done.payload.take()) {
                let mut buf = IoBuf::heap(payload.len());
                payload.copy_to(&mut buf);
                turn_over(&mut buf, offset, bits);
                let len = buf.len();
                done.payload = Some(Payload::Buf(buf, 0..len));
            }
        }
    }

    fn corrupt(
        &mut self,
        cx: &mut Context<'_>,
        Request { tag, op }: Request,
        (offset, bits): (u64, NonZeroU8),
        done: &mut Vec<Done>,
    ) {
        let op = match op {
            Op::Write { offset: at, data, fua } => {
                Op::Write { offset: at, data: corrupted(&data, offset, bits), fua }
            }
            Op::Read { .. } => {
                self.corrupting.push((tag, offset, bits));
                op
            }
            other => other,
        };
        self.pass_on(cx, Request { tag, op }, done);
    }

    fn look_again(&mut self, cx: &mut Context<'_>) {
        if self.timer_runs || self.held.is_empty() && self.short.is_empty() {
            return;
        }
        let wait = if self.short.is_empty() { LOOK_INTERVAL } else { RETRY_INTERVAL };
        cx.io.timer(cx.now + wait, self.timer);
        self.timer_runs = true;
    }

    fn handle_timer(&mut self, cx: &mut Context<'_>, done: &mut Vec<Done>) {
        self.timer_runs = false;
        let resumed = self.orders.resumed.load(Ordering::Acquire);
        let mut ready = std::mem::take(&mut self.short);
        if resumed != self.resumed {
            self.resumed = resumed;
            ready.append(&mut self.held);
        }
        for request in ready {
            self.submit(cx, request, done);
        }
        self.look_again(cx);
    }
}

impl Channel for InjectChannel {
    fn submit(&mut self, cx: &mut Context<'_>, request: Request, done: &mut Vec<Done>) {
        let kind = OpKind::of(&request.op);
        let failed = |request: Request, error| Done {
            tag: request.tag,
            result: Err(error),
            payload: payload_of(request.op),
        };
        match self.orders.kinds[kind as usize].take(self.in_flight) {
            None => self.pass_on(cx, request, done),
            Some(Injected::Failure) => done.push(failed(request, BdevError::Internal)),
            Some(Injected::Status { sct, sc }) => {
                done.push(failed(request, BdevError::Status { sct, sc }));
            }
            Some(Injected::Corrupt { offset, bits }) => {
                self.corrupt(cx, request, (offset, bits), done);
            }
            Some(Injected::Held) => {
                if self.held.is_empty() {
                    self.resumed = self.orders.resumed.load(Ordering::Acquire);
                }
                self.held.push(request);
                self.look_again(cx);
            }
            Some(Injected::NoMemory) => {
                self.short.push(request);
                self.look_again(cx);
            }
        }
    }

    fn handle_completion(
        &mut self,
        cx: &mut Context<'_>,
        completion: Completion,
        done: &mut Vec<Done>,
    ) {
        if completion.token.index & self.timer.index != 0 {
            return self.handle_timer(cx, done);
        }
        let first = done.len();
        self.inner.handle_completion(cx, completion, done);
        self.settle(first, done);
    }

    fn flush(&mut self, cx: &mut Context<'_>, done: &mut Vec<Done>) {
        let first = done.len();
        self.inner.flush(cx, done);
        self.settle(first, done);
    }

    fn close(&mut self, cx: &mut Context<'_>) {
        debug_assert!(self.held.is_empty() && self.short.is_empty(), "closed with requests held");
        self.inner.close(cx);
    }
}

fn turn_over(bytes: &mut [u8], offset: u64, bits: NonZeroU8) {
    let byte = usize::try_from(offset).ok().and_then(|offset| bytes.get_mut(offset));
    if let Some(byte) = byte {
        *byte ^= bits.get();
    }
}

/// The host's data stay as they are: a copy is tampered with.
fn corrupted(data: &SharedBuf, offset: u64, bits: NonZeroU8) -> SharedBuf {
    let mut copy = IoBuf::from_slice(data);
    turn_over(&mut copy, offset, bits);
    copy.share()
}
