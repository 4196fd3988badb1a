//! A queue of a disk without I/O: what the kernel asks for comes in, requests to the device and answers go out.
//!
//! Each tag is with the kernel (it fetches), or with the device (it works), or over. A tag owns one buffer, which goes with it.
//! How the data of requests get there and back is [`Data`].

use std::collections::VecDeque;
use std::io;

use raceline_bdev::{BdevError, Done, Op, OpKind, Request};
use raceline_reactor::ublk::{UblkCommand, UblkDescriptor};
use raceline_reactor::{IoBuf, PartPool, Payload, SharedBuf};

use crate::plan::{Facts, Plan, plan, result};
use crate::uapi::op;

/// `ENODEV`: the kernel will never ask again with this tag.
const ENODEV: i32 = 19;
/// `EBUSY` for an answer: the kernel does not take the request for one that is with this process. Where the disk ends, it has
/// taken the request back. Otherwise the tag is lost: the kernel says the same to a second answer, and to a tag that has a
/// command already (`!OWNED_BY_SRV`, and `ACTIVE` before Linux 6.16). So [`Queue::has_doubts`] until the end is seen.
const EBUSY: i32 = 16;

/// Bytes of zeroes that one write carries, where a device cannot zero by itself.
const ZERO_BYTES: usize = 256 << 10;

/// Copies data between requests of the kernel and memory here.
pub(crate) trait Copier {
    /// Gets the data of a write, which are as long as `buf`.
    fn take(&mut self, tag: u16, buf: &mut [u8]) -> io::Result<()>;

    /// Gives a read its data.
    fn give(&mut self, tag: u16, data: &[u8]) -> io::Result<()>;
}

/// How data get from the kernel's requests to the device, and back.
pub(crate) enum Data {
    /// The kernel copies them to and from the memory of its commands.
    Mapped,
    /// They are copied here.
    Copied(Box<dyn Copier>),
    /// The device moves them from and to the pages of the requests ([`Op::ReadPages`]). Those that it or the kernel refuses
    /// are copied.
    Pages(Box<dyn Copier>),
}

enum Tag {
    /// The kernel has a command of it.
    Fetches,
    /// The device has a request of it.
    Works {
        plan: Plan,
        /// Its buffer, unless the request has it.
        buf: Option<IoBuf>,
        /// How far it is written with zeroes, by a device that cannot zero by itself.
        zeroed: Option<u64>,
        /// The device moves its data from or to the pages of the request.
        pages: bool,
    },
    /// Nothing more comes.
    Over,
}

/// The end of a request, to be counted. The kind of one that was refused is not looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) kind: OpKind,
    pub(crate) bytes: u64,
    pub(crate) succeeded: bool,
    /// Its data were not copied on the way to the device, or back.
    pub(crate) uncopied: bool,
}

/// The state of all tags.
pub(crate) struct Queue {
    facts: Facts,
    data: Data,
    /// Pages were refused before, which was logged.
    was_refused: bool,
    tags: Vec<Tag>,
    /// Which tags have had a request: each later command of theirs is an answer.
    answers: Vec<bool>,
    fetching: usize,
    working: usize,
    /// Requests at the device.
    asked: usize,
    /// The disk is left to the next process: the device is asked for nothing more.
    leaving: bool,
    /// What the kernel has is left to it.
    abandoned: bool,
    requests: VecDeque<Request>,
    commands: VecDeque<(UblkCommand, IoBuf)>,
    zeroes: Option<SharedBuf>,
    parts: PartPool,
    /// Why a tag is over, if not because the disk is.
    fault: Option<io::Error>,
    /// An answer was not taken, and nothing has said yet that the disk ends.
    doubt: Option<io::Error>,
    /// The kernel has said that it will never ask again.
    ends: bool,
}

impl Queue {
    /// A queue whose tags all fetch.
    pub(crate) fn new(facts: Facts, depth: u16, data: Data) -> Self {
        let fetch = |tag| (UblkCommand { tag, commit: None }, buffer(&facts));
        Self {
            facts,
            data,
            was_refused: false,
            tags: (0..depth).map(|_| Tag::Fetches).collect(),
            answers: vec![false; depth.into()],
            fetching: usize::from(depth),
            working: 0,
            asked: 0,
            leaving: false,
            abandoned: false,
            requests: VecDeque::with_capacity(depth.into()),
            commands: (0..depth).map(fetch).collect(),
            zeroes: None,
            parts: PartPool::new(depth.into()),
            fault: None,
            doubt: None,
            ends: false,
        }
    }

    /// The disk has this many bytes from now on.
    pub(crate) fn set_bytes(&mut self, bytes: u64) {
        self.facts.bytes = bytes;
    }

    /// A command has completed. The buffer comes back with it. Gives the end of a request that was refused.
    pub(crate) fn handle_fetched(
        &mut self,
        tag: u16,
        fetched: io::Result<UblkDescriptor>,
        buf: IoBuf,
    ) -> Option<Ended> {
        let index = usize::from(tag);
        if !matches!(self.tags.get(index), Some(Tag::Fetches)) {
            debug_assert!(false, "tag {tag} does not fetch");
            return None;
        }
        let answers = std::mem::replace(&mut self.answers[index], true);
        match fetched {
            Ok(asked) => match plan(&self.facts, &asked) {
                Ok(plan) => {
                    self.fetching -= 1;
                    self.working += 1;
                    if matches!(self.data, Data::Pages(_)) && asked.op_flags & op::NEED_REG_BUF == 0
                    {
                        self.begin_pages(tag, plan, buf);
                    } else {
                        return self.begin(tag, plan, buf);
                    }
                }
                Err(number) => {
                    tracing::warn!(?asked, "a request of the kernel was refused: error {number}");
                    self.commands.push_back((UblkCommand { tag, commit: Some(-number) }, buf));
                    return Some(refusal());
                }
            },
            Err(error) => {
                self.tags[index] = Tag::Over;
                self.fetching -= 1;
                match error.raw_os_error() {
                    Some(ENODEV) => self.end_is_seen(),
                    Some(EBUSY) if answers && self.ends => {}
                    Some(EBUSY) if answers => self.doubt = self.doubt.take().or(Some(error)),
                    _ => self.fault = self.fault.take().or(Some(error)),
                }
            }
        }
        None
    }

    /// The disk ends: that explains what was not taken.
    pub(crate) fn end_is_seen(&mut self) {
        self.ends = true;
        self.doubt = None;
    }

    /// Whether the disk ends, as far as the kernel or this process has said.
    pub(crate) fn ends(&self) -> bool {
        self.ends
    }

    /// Whether an answer was not taken, which the end of the disk would explain.
    pub(crate) fn has_doubts(&self) -> bool {
        self.doubt.is_some()
    }

    /// The disk has had the time to end: what was not taken is a fault, if it has not.
    pub(crate) fn end_doubts(&mut self) {
        if self.has_doubts() {
            self.fault = self.fault.take().or(self.doubt.take());
        }
    }

    /// Has the device move the data of a request from or to its pages, if it has any.
    fn begin_pages(&mut self, tag: u16, plan: Plan, buf: IoBuf) {
        let op = match plan {
            Plan::Read { offset, len } => Op::ReadPages { offset, len, tag },
            Plan::Write { offset, len, fua } => Op::WritePages { offset, len, tag, fua },
            Plan::Flush | Plan::Discard { .. } | Plan::WriteZeroes { .. } => {
                // They have no data, so nothing of them can fail here.
                self.begin(tag, plan, buf);
                return;
            }
        };
        let works = Tag::Works { plan, buf: Some(buf), zeroed: None, pages: true };
        self.tags[usize::from(tag)] = works;
        self.requests.push_back(Request { tag: tag.into(), op });
    }

    /// Asks the device for what the kernel asks for, with the buffer of the tag. Gives the end of a write whose data cannot
    /// be had.
    fn begin(&mut self, tag: u16, plan: Plan, mut buf: IoBuf) -> Option<Ended> {
        if let (Plan::Write { len, .. }, Data::Copied(copier) | Data::Pages(copier)) =
            (plan, &mut self.data)
        {
            buf.set_len(len);
            if let Err(error) = copier.take(tag, &mut buf) {
                tracing::warn!(tag, "the data of a write cannot be had of the kernel: {error}");
                return self.end(tag, plan, (Err(BdevError::Internal), buf), false);
            }
        }
        let mut kept = None;
        let op = match plan {
            Plan::Read { offset, len } => {
                buf.set_len(len);
                Op::Read { offset, len, buf: Some(buf) }
            }
            Plan::Write { offset, len, fua } => {
                buf.set_len(len);
                Op::Write { offset, data: buf.share(), fua }
            }
            Plan::Flush => {
                kept = Some(buf);
                Op::Flush
            }
            Plan::Discard { offset, len } => {
                kept = Some(buf);
                Op::Deallocate { offset, len }
            }
            Plan::WriteZeroes { offset, len, may_release, fua } => {
                kept = Some(buf);
                Op::WriteZeroes { offset, len, deallocate: may_release, fua }
            }
        };
        let works = Tag::Works { plan, buf: kept, zeroed: None, pages: false };
        self.tags[usize::from(tag)] = works;
        self.requests.push_back(Request { tag: tag.into(), op });
        None
    }

    /// The device has done a request. Gives what has ended with it, if it was the last one of its tag.
    pub(crate) fn handle_done(&mut self, done: Done) -> Option<Ended> {
        self.asked = self.asked.saturating_sub(1);
        if self.leaving && done.result.is_err() {
            // The device may have gone already. The kernel asks the next process again.
            return None;
        }
        let index = usize::try_from(done.tag).unwrap_or(usize::MAX);
        let Some(Tag::Works { plan, buf, zeroed, pages }) = self.tags.get_mut(index) else {
            debug_assert!(false, "tag {} has no request", done.tag);
            return None;
        };
        let (plan, at, pages) = (*plan, *zeroed, *pages);
        let tag = u16::try_from(index).unwrap_or(u16::MAX);
        if pages && done.result == Err(BdevError::NotSupported) {
            let buf = buf.take().unwrap_or_else(|| buffer(&self.facts));
            if !std::mem::replace(&mut self.was_refused, true) {
                tracing::info!(
                    "the kernel does not move the data of a request between its pages and the device as they lie: they are \
                     copied, as with all such requests"
                );
            }
            return self.begin(tag, plan, buf);
        }
        if let Plan::WriteZeroes { offset, len, fua, .. } = plan {
            let next = match (at, done.result) {
                (None, Err(BdevError::NotSupported)) => Some(offset),
                (Some(at), Ok(())) if at < offset + len => Some(at),
                _ => None,
            };
            if let Some(next) = next {
                drop(done.payload);
                self.write_zeroes(done.tag, next, offset + len, fua);
                return None;
            }
        }
        let (ended, buf) = match buf.take() {
            Some(buf) => (done.result, buf),
            None => take_back(&self.facts, plan, done.result, done.payload),
        };
        let ended = match (plan, ended, &mut self.data) {
            (Plan::Read { len, .. }, Ok(()), Data::Copied(copier) | Data::Pages(copier))
                if !pages =>
            {
                // The kernel takes it for read only when all of its pages are written.
                copier.give(tag, &buf[..len]).map_err(|error| {
                    tracing::warn!(tag, "the kernel does not take the data of a read: {error}");
                    BdevError::Internal
                })
            }
            _ => ended,
        };
        self.end(tag, plan, (ended, buf), pages)
    }

    /// Answers the request of a tag.
    fn end(
        &mut self,
        tag: u16,
        plan: Plan,
        (ended, buf): (Result<(), BdevError>, IoBuf),
        pages: bool,
    ) -> Option<Ended> {
        let commit = Some(result(plan, ended));
        self.tags[usize::from(tag)] = Tag::Fetches;
        self.working -= 1;
        self.fetching += 1;
        self.commands.push_back((UblkCommand { tag, commit }, buf));
        let (kind, bytes) = plan.measure();
        Some(Ended { kind, bytes, succeeded: ended.is_ok(), uncopied: pages })
    }

    /// Writes the next zeroes to a device that cannot zero by itself.
    fn write_zeroes(&mut self, tag: u64, offset: u64, end: u64, fua: bool) {
        let len = usize::try_from(end - offset).map_or(ZERO_BYTES, |len| len.min(ZERO_BYTES));
        let zeroes = self.zeroes.get_or_insert_with(|| IoBuf::heap(ZERO_BYTES).share());
        let data = self.parts.share(zeroes, 0..len);
        let data = data.unwrap_or_else(|| IoBuf::heap(len).share());
        let index = usize::try_from(tag).unwrap_or(usize::MAX);
        if let Some(Tag::Works { zeroed, .. }) = self.tags.get_mut(index) {
            *zeroed = Some(offset + len as u64);
        }
        self.requests.push_back(Request { tag, op: Op::Write { offset, data, fua } });
    }

    /// The next request to the device.
    pub(crate) fn poll_request(&mut self) -> Option<Request> {
        let request = if self.leaving { None } else { self.requests.pop_front() };
        self.asked += usize::from(request.is_some());
        request
    }

    /// Asks the device for nothing more, and tells the kernel of no more errors: what is not answered, the kernel asks of the
    /// process that follows.
    pub(crate) fn leave(&mut self) {
        self.leaving = true;
    }

    /// Whether it leaves, and nothing of it is at the device.
    pub(crate) fn has_left(&self) -> bool {
        self.leaving && self.asked == 0
    }

    /// Leaves, and waits for no command that the kernel has: the queue is over once nothing of it is at the device.
    pub(crate) fn abandon(&mut self) {
        self.leave();
        self.abandoned = true;
    }

    /// The next command to the kernel.
    pub(crate) fn poll_command(&mut self) -> Option<(UblkCommand, IoBuf)> {
        self.commands.pop_front()
    }

    /// Whether no tag has anything to do any more, and it is known why; or it is abandoned, and the device has nothing of it.
    pub(crate) fn is_over(&self) -> bool {
        let has_ended = self.fetching == 0 && self.working == 0 && self.doubt.is_none();
        has_ended || self.abandoned && self.has_left()
    }

    /// Why a tag has ended, if not because the disk has.
    pub(crate) fn take_fault(&mut self) -> Option<io::Error> {
        self.fault.take()
    }
}

/// The end of a request that was refused.
fn refusal() -> Ended {
    Ended { kind: OpKind::Find, bytes: 0, succeeded: false, uncopied: false }
}

/// The memory of a tag, of which nothing is used before the kernel or the device writes it.
fn buffer(facts: &Facts) -> IoBuf {
    IoBuf::sparse(usize::try_from(facts.max_io_bytes).unwrap_or(usize::MAX))
}

/// The buffer of a request, which begins with the data of a read.
fn take_back(
    facts: &Facts,
    plan: Plan,
    ended: Result<(), BdevError>,
    payload: Option<Payload>,
) -> (Result<(), BdevError>, IoBuf) {
    let wanted = match (plan, ended) {
        (Plan::Read { len, .. }, Ok(())) => len,
        _ => 0,
    };
    let whole = |buf: &IoBuf| buf.capacity() >= usize::try_from(facts.max_io_bytes).unwrap_or(0);
    match payload {
        Some(Payload::Buf(buf, range)) if range == (0..wanted) && whole(&buf) => (ended, buf),
        Some(Payload::Buf(buf, _)) if wanted == 0 && whole(&buf) => (ended, buf),
        Some(Payload::Shared(buf, _)) if wanted == 0 => match buf.try_unique() {
            Ok(buf) if whole(&buf) => (ended, buf),
            _ => (ended, buffer(facts)),
        },
        // Data in memory of others.
        Some(payload) if payload.len() >= wanted => {
            let mut buf = buffer(facts);
            payload.copy_to(&mut buf[..wanted]);
            (ended, buf)
        }
        _ => (if wanted == 0 { ended } else { Err(BdevError::Internal) }, buffer(facts)),
    }
}

// The paths hold also where the fuzz target `disk_queues` has this file as a module.
#[cfg(test)]
#[path = "queue/model.rs"]
mod model;
#[cfg(test)]
#[path = "queue/tests.rs"]
mod tests;
