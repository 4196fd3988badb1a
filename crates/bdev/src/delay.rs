//! A wrapper that delays every request by a time per kind of request, changed while it runs.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use raceline_reactor::{Completion, Context, Outcome, Token};

use crate::op_kind::OpKind;
use crate::slots::{Key, Slots};
use crate::wrap::{open_base, pass_to_base, wrapper_bit};
use crate::{Bdev, BdevInfo, Channel, Done, Request, SharedBdev};

/// How many delayed requests a channel holds before it allocates.
const EXPECTED_DEPTH: usize = 128;

/// One request in this many is delayed by [`Latency::p99`].
const RARE: u64 = 100;

/// How long each kind of request is held back before the device sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delays([Duration; OpKind::ALL.len()]);

impl Delays {
    /// The same delay for every kind.
    #[must_use]
    pub const fn all(delay: Duration) -> Self {
        Self([delay; OpKind::ALL.len()])
    }

    /// With another delay for one kind.
    #[must_use]
    pub const fn with(mut self, kind: OpKind, delay: Duration) -> Self {
        self.0[kind as usize] = delay;
        self
    }

    /// The delay of one kind.
    #[must_use]
    pub const fn of(&self, kind: OpKind) -> Duration {
        self.0[kind as usize]
    }
}

/// Why a text is not a delay.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a delay: write delay=MICROSECONDS, or delay=OP:MICROSECONDS[+OP:...] with read, write, flush, zeroes, deallocate, copy, find, uncorrectable"
)]
pub struct DelayError(String);

impl FromStr for Delays {
    type Err = DelayError;

    fn from_str(text: &str) -> Result<Self, DelayError> {
        let error = || DelayError(text.to_owned());
        let micros = |digits: &str| {
            digits.parse().map(|us: u32| Duration::from_micros(us.into())).map_err(|_| error())
        };
        if !text.contains(':') {
            return Ok(Self::all(micros(text)?));
        }
        text.split('+').try_fold(Self::all(Duration::ZERO), |delays, part| {
            let (word, digits) = part.split_once(':').ok_or_else(error)?;
            let kind = OpKind::from_word(word).ok_or_else(error)?;
            Ok(delays.with(kind, micros(digits)?))
        })
    }
}

impl fmt::Display for Delays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, rest @ ..] = &self.0;
        if rest.iter().all(|delay| delay == first) {
            return write!(f, "{}", first.as_micros());
        }
        let mut separator = "";
        for kind in OpKind::ALL {
            let delay = self.of(kind);
            if !delay.is_zero() {
                write!(f, "{separator}{kind}:{}", delay.as_micros())?;
                separator = "+";
            }
        }
        Ok(())
    }
}

/// The delays of one kind of request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    /// Of most requests.
    pub average: Duration,
    /// Of one in a hundred, chosen at random.
    pub p99: Duration,
}

/// Changes the delays of a [`DelayBdev`] while it runs, for requests that come from then on.
#[derive(Clone, Debug)]
pub struct DelayControl(Arc<[Live; OpKind::ALL.len()]>);

/// A [`Latency`] in nanoseconds, for all cores.
#[derive(Debug, Default)]
struct Live {
    average: AtomicU64,
    p99: AtomicU64,
}

impl DelayControl {
    /// The delays of one kind of request.
    #[must_use]
    pub fn get(&self, kind: OpKind) -> Latency {
        let Live { average, p99 } = &self.0[kind as usize];
        let duration = |nanos: &AtomicU64| Duration::from_nanos(nanos.load(Ordering::Relaxed));
        Latency { average: duration(average), p99: duration(p99) }
    }

    /// Delays one kind of request differently from now on.
    pub fn set(&self, kind: OpKind, latency: Latency) {
        let Live { average, p99 } = &self.0[kind as usize];
        let nanos = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        average.store(nanos(latency.average), Ordering::Relaxed);
        p99.store(nanos(latency.p99), Ordering::Relaxed);
    }
}

/// A device whose requests are delayed.
pub struct DelayBdev {
    inner: SharedBdev,
    control: DelayControl,
}

impl DelayBdev {
    /// Delays the requests of `inner`, all of a kind alike; [`Self::control`] changes that.
    #[must_use]
    pub fn new(inner: SharedBdev, delays: Delays) -> Self {
        let control = DelayControl(Arc::default());
        for kind in OpKind::ALL {
            let delay = delays.of(kind);
            control.set(kind, Latency { average: delay, p99: delay });
        }
        Self { inner, control }
    }

    /// Changes the delays, from any thread.
    #[must_use]
    pub fn control(&self) -> DelayControl {
        self.control.clone()
    }
}

impl Bdev for DelayBdev {
    fn info(&self) -> BdevInfo {
        self.inner.info()
    }

    fn open_channel(&self, cx: &mut Context<'_>, owner: u16) -> std::io::Result<Box<dyn Channel>> {
        Ok(Box::new(DelayChannel {
            timer_bit: wrapper_bit(&*self.inner)?,
            inner: open_base(&*self.inner, cx, owner)?,
            delays: self.control.clone(),
            owner,
            held: Slots::with_capacity(EXPECTED_DEPTH),
            dice: u64::from(owner) + 1,
        }))
    }

    fn wrapper_levels(&self) -> u32 {
        self.inner.wrapper_levels() + 1
    }

    pass_to_base!(inner);
}

struct DelayChannel {
    inner: Box<dyn Channel>,
    delays: DelayControl,
    owner: u16,
    /// In the index of this channel's own timers.
    timer_bit: u32,
    held: Slots<Request>,
    /// The state of a generator of random numbers (xorshift; never 0).
    dice: u64,
}

impl DelayChannel {
    fn delay_of(&mut self, kind: OpKind) -> Duration {
        let Latency { average, p99 } = self.delays.get(kind);
        if average == p99 {
            return average;
        }
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        if self.dice.is_multiple_of(RARE) { p99 } else { average }
    }
}

impl Channel for DelayChannel {
    fn submit(&mut self, cx: &mut Context<'_>, request: Request, done: &mut Vec<Done>) {
        let delay = self.delay_of(OpKind::of(&request.op));
        // A delay of zero, or one that ends beyond what the clock can tell, holds nothing back.
        let Some(at) = cx.now.checked_add(delay).filter(|_| !delay.is_zero()) else {
            return self.inner.submit(cx, request, done);
        };
        let Key { index, generation } = self.held.insert(request);
        let token = Token { owner: self.owner, generation, index: index | self.timer_bit };
        cx.io.timer(at, token);
    }

    fn handle_completion(
        &mut self,
        cx: &mut Context<'_>,
        completion: Completion,
        done: &mut Vec<Done>,
    ) {
        let Token { generation, index, .. } = completion.token;
        if index & self.timer_bit == 0 {
            return self.inner.handle_completion(cx, completion, done);
        }
        debug_assert!(matches!(completion.outcome, Outcome::Timer));
        let key = Key { index: index & !self.timer_bit, generation };
        if let Some(request) = self.held.remove(key) {
            self.inner.submit(cx, request, done);
        }
    }

    fn flush(&mut self, cx: &mut Context<'_>, done: &mut Vec<Done>) {
        self.inner.flush(cx, done);
    }

    fn close(&mut self, cx: &mut Context<'_>) {
        debug_assert!(self.held.is_empty(), "closed with requests in flight");
        self.inner.close(cx);
    }
}
