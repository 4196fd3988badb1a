//! A wrapper that fails chosen requests, switchable while it runs, for tests.

use std::fmt;
use std::num::NonZeroU64;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use raceline_reactor::{Completion, Context};

use crate::op_kind::OpKind;
use crate::wrap::{open_base, pass_to_base, payload_of};
use crate::{Bdev, BdevError, BdevInfo, Channel, Done, Op, Request, SharedBdev};

/// Which requests fail, and how. A rule that does not match leaves the request alone; of several
/// that match, the first decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorRule {
    /// The kind of request; `None` is any.
    pub op: Option<OpKind>,
    /// Only requests that touch one of these blocks (a flush touches none, a copy what it reads and writes).
    pub blocks: Option<RangeInclusive<u64>>,
    /// The number of matching requests of which one fails, over all channels; 1: every one fails.
    pub every: NonZeroU64,
    /// The error; `None` is [`BdevError::ReadFault`] for reads, else [`BdevError::WriteFault`].
    pub error: Option<BdevError>,
}

/// The words for errors in the device grammar.
const ERROR_WORDS: [(&str, BdevError); 7] = [
    ("nospace", BdevError::NoSpace),
    ("readonly", BdevError::ReadOnly),
    ("gone", BdevError::Gone),
    ("unknown", BdevError::Unknown),
    ("transient", BdevError::Transient),
    ("unsupported", BdevError::NotSupported),
    ("internal", BdevError::Internal),
];

/// Why a text is not an error rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not an error rule: write OP[@FIRST-LAST][/N][:KIND], e.g. write/10, read@0-7 or flush:gone"
)]
pub struct RuleError(String);

impl FromStr for ErrorRule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        parse_rule(text).ok_or_else(|| RuleError(text.to_owned()))
    }
}

fn parse_rule(text: &str) -> Option<ErrorRule> {
    let (rest, error) = match text.split_once(':') {
        None | Some((_, "fault")) => (text.trim_end_matches(":fault"), None),
        Some((rest, word)) => (rest, Some(ERROR_WORDS.iter().find(|(known, _)| *known == word)?.1)),
    };
    let (rest, every) = match rest.split_once('/') {
        None => (rest, NonZeroU64::MIN),
        Some((rest, every)) => (rest, every.parse().ok()?),
    };
    let (word, blocks) = match rest.split_once('@') {
        None => (rest, None),
        Some((word, range)) => {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last) = (first.parse().ok()?, last.parse().ok()?);
            (word, (first <= last).then_some(Some(first..=last))?)
        }
    };
    let op = if word == "all" { None } else { Some(OpKind::from_word(word)?) };
    Some(ErrorRule { op, blocks, every, error })
}

impl fmt::Display for ErrorRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.op.map_or("all", OpKind::word))?;
        if let Some(blocks) = &self.blocks {
            write!(f, "@{}-{}", blocks.start(), blocks.end())?;
        }
        if self.every.get() != 1 {
            write!(f, "/{}", self.every)?;
        }
        match ERROR_WORDS.iter().find(|(_, error)| Some(*error) == self.error) {
            Some((word, _)) => write!(f, ":{word}"),
            None => Ok(()),
        }
    }
}

/// A device that fails requests by [`ErrorRule`]s.
pub struct ErrorBdev {
    inner: SharedBdev,
    switch: Arc<Switch>,
}

impl ErrorBdev {
    /// Fails requests of `inner` by `rules`; the control changes them later, from any thread.
    #[must_use]
    pub fn new(inner: SharedBdev, rules: Vec<ErrorRule>) -> (Self, ErrorControl) {
        let switch = Arc::new(Switch::default());
        let control = ErrorControl { switch: Arc::clone(&switch) };
        control.set(rules);
        (Self { inner, switch }, control)
    }
}

/// Changes the rules of an [`ErrorBdev`] while it runs.
#[derive(Clone)]
pub struct ErrorControl {
    switch: Arc<Switch>,
}

impl ErrorControl {
    /// Replaces the rules, with their counts at zero. Channels see it at their next request.
    pub fn set(&self, rules: Vec<ErrorRule>) {
        let rules = rules.into_iter().map(|rule| Counted { rule, matched: AtomicU64::new(0) });
        *self.switch.rules.lock().unwrap_or_else(PoisonError::into_inner) = rules.collect();
        self.switch.version.fetch_add(1, Ordering::Release);
    }

    /// How many requests have been failed since the device was made.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.switch.failed.load(Ordering::Relaxed)
    }
}

/// The rules as all channels see them. A channel locks only when the version has changed.
#[derive(Default)]
struct Switch {
    version: AtomicU64,
    rules: Mutex<Arc<[Counted]>>,
    failed: AtomicU64,
}

struct Counted {
    rule: ErrorRule,
    matched: AtomicU64,
}

impl Bdev for ErrorBdev {
    fn info(&self) -> BdevInfo {
        self.inner.info()
    }

    fn open_channel(&self, cx: &mut Context<'_>, owner: u16) -> std::io::Result<Box<dyn Channel>> {
        Ok(Box::new(ErrorChannel {
            inner: open_base(&*self.inner, cx, owner)?,
            block_size: self.inner.info().block_size.into(),
            switch: Arc::clone(&self.switch),
            version: 0,
            rules: Arc::default(),
        }))
    }

    fn wrapper_levels(&self) -> u32 {
        self.inner.wrapper_levels()
    }

    pass_to_base!(inner);
}

struct ErrorChannel {
    inner: Box<dyn Channel>,
    block_size: u64,
    switch: Arc<Switch>,
    version: u64,
    rules: Arc<[Counted]>,
}

impl ErrorChannel {
    /// The error that the rules have for this request.
    fn verdict(&mut self, op: &Op) -> Option<BdevError> {
        let version = self.switch.version.load(Ordering::Acquire);
        if version != self.version {
            self.version = version;
            let rules = self.switch.rules.lock().unwrap_or_else(PoisonError::into_inner);
            self.rules = Arc::clone(&rules);
        }
        let kind = OpKind::of(op);
        let [blocks, written] = touched_blocks(op, self.block_size);
        let rule = self.rules.iter().find_map(|Counted { rule, matched }| {
            let kind_matches = rule.op.is_none_or(|op| op == kind);
            let touches = |rule: &RangeInclusive<u64>| {
                let mut touched = [&blocks, &written].into_iter().flatten();
                touched
                    .any(|touched| rule.start() <= touched.end() && touched.start() <= rule.end())
            };
            let blocks_match = rule.blocks.as_ref().is_none_or(touches);
            let hit = kind_matches
                && blocks_match
                && (matched.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(rule.every.get());
            hit.then_some(rule)
        })?;
        self.switch.failed.fetch_add(1, Ordering::Relaxed);
        Some(rule.error.unwrap_or(match kind {
            OpKind::Read | OpKind::Find => BdevError::ReadFault,
            _ => BdevError::WriteFault,
        }))
    }
}

/// The blocks that a request touches, if any; of a copy, those that it reads and those that it writes.
fn touched_blocks(op: &Op, block_size: u64) -> [Option<RangeInclusive<u64>>; 2] {
    let blocks = |offset: u64, len: u64| {
        let last = offset.saturating_add(len).checked_sub(1)?;
        (len > 0).then(|| offset / block_size..=last / block_size)
    };
    match *op {
        Op::Flush => [None, None],
        Op::Read { offset, len, .. }
        | Op::ReadPages { offset, len, .. }
        | Op::WritePages { offset, len, .. } => [blocks(offset, len as u64), None],
        Op::Write { offset, ref data, .. } => [blocks(offset, data.len() as u64), None],
        Op::WriteZeroes { offset, len, .. }
        | Op::Deallocate { offset, len }
        | Op::Find { offset, len, .. }
        | Op::WriteUncorrectable { offset, len } => [blocks(offset, len), None],
        Op::Copy { from, to, len, .. } => [blocks(from, len), blocks(to, len)],
    }
}

impl Channel for ErrorChannel {
    fn submit(&mut self, cx: &mut Context<'_>, request: Request, done: &mut Vec<Done>) {
        match self.verdict(&request.op) {
            None => self.inner.submit(cx, request, done),
            Some(error) => done.push(Done {
                tag: request.tag,
                result: Err(error),
                payload: payload_of(request.op),
            }),
        }
    }

    fn handle_completion(
        &mut self,
        cx: &mut Context<'_>,
        completion: Completion,
        done: &mut Vec<Done>,
    ) {
        self.inner.handle_completion(cx, completion, done);
    }

    fn flush(&mut self, cx: &mut Context<'_>, done: &mut Vec<Done>) {
        self.inner.flush(cx, done);
    }

    fn close(&mut self, cx: &mut Context<'_>) {
        self.inner.close(cx);
    }
}
