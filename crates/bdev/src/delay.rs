//! A wrapper that delays every request by a fixed time per kind of request, for tests.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use raceline_reactor::{Completion, Context, Outcome, Token};

use crate::op_kind::OpKind;
use crate::slots::{Key, Slots};
use crate::{Bdev, BdevInfo, Channel, Done, Request, SharedBdev, WRAPPER_INDEX};

/// How many delayed requests a channel holds before it allocates.
const EXPECTED_DEPTH: usize = 128;

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
    "`{0}` is not a delay: write delay=MICROSECONDS, or delay=OP:MICROSECONDS[+OP:...] with read, write, flush, zeroes, deallocate"
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

/// A device whose requests are delayed.
pub struct DelayBdev {
    inner: SharedBdev,
    delays: Delays,
}

impl DelayBdev {
    /// Delays the requests of `inner`.
    #[must_use]
    pub const fn new(inner: SharedBdev, delays: Delays) -> Self {
        Self { inner, delays }
    }
}

impl Bdev for DelayBdev {
    fn info(&self) -> BdevInfo {
        self.inner.info()
    }

    fn open_channel(&self, cx: &mut Context<'_>, owner: u16) -> std::io::Result<Box<dyn Channel>> {
        Ok(Box::new(DelayChannel {
            inner: self.inner.open_channel(cx, owner)?,
            delays: self.delays,
            owner,
            held: Slots::with_capacity(EXPECTED_DEPTH),
        }))
    }

    fn write_fault(&self) -> bool {
        self.inner.write_fault()
    }

    fn reset_write_fault(&self) {
        self.inner.reset_write_fault();
    }
}

struct DelayChannel {
    inner: Box<dyn Channel>,
    delays: Delays,
    owner: u16,
    held: Slots<Request>,
}

impl Channel for DelayChannel {
    fn submit(&mut self, cx: &mut Context<'_>, request: Request, done: &mut Vec<Done>) {
        let delay = self.delays.of(OpKind::of(&request.op));
        if delay.is_zero() {
            return self.inner.submit(cx, request, done);
        }
        let Key { index, generation } = self.held.insert(request);
        let token = Token { owner: self.owner, generation, index: index | WRAPPER_INDEX };
        cx.io.timer(cx.now + delay, token);
    }

    fn handle_completion(
        &mut self,
        cx: &mut Context<'_>,
        completion: Completion,
        done: &mut Vec<Done>,
    ) {
        let Token { generation, index, .. } = completion.token;
        if index & WRAPPER_INDEX == 0 {
            return self.inner.handle_completion(cx, completion, done);
        }
        debug_assert!(matches!(completion.outcome, Outcome::Timer));
        let key = Key { index: index & !WRAPPER_INDEX, generation };
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
