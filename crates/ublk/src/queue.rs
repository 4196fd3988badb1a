//! A queue of a disk without I/O: what the kernel asks for comes in, requests to the device and answers go out.
//!
//! Each tag is with the kernel (it fetches), or with the device (it works), or over. A tag owns one buffer, which goes with it.

use std::collections::VecDeque;
use std::io;

use raceline_bdev::{BdevError, Done, Op, Request};
use raceline_reactor::ublk::{UblkCommand, UblkDescriptor};
use raceline_reactor::{IoBuf, PartPool, Payload, SharedBuf};

use crate::plan::{Facts, Plan, plan, result};

/// `ENODEV`: the kernel will never ask again with this tag.
const ENODEV: i32 = 19;

/// Bytes of zeroes that one write carries, where a device cannot zero by itself.
const ZERO_BYTES: usize = 256 << 10;

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
    },
    /// Nothing more comes.
    Over,
}

/// The state of all tags.
pub(crate) struct Queue {
    facts: Facts,
    tags: Vec<Tag>,
    fetching: usize,
    working: usize,
    requests: VecDeque<Request>,
    commands: VecDeque<(UblkCommand, IoBuf)>,
    zeroes: Option<SharedBuf>,
    parts: PartPool,
    /// Why a tag is over, if not because the disk is.
    fault: Option<io::Error>,
}

impl Queue {
    /// A queue whose tags all fetch.
    pub(crate) fn new(facts: Facts, depth: u16) -> Self {
        let fetch = |tag| (UblkCommand { tag, commit: None }, buffer(&facts));
        Self {
            facts,
            tags: (0..depth).map(|_| Tag::Fetches).collect(),
            fetching: usize::from(depth),
            working: 0,
            requests: VecDeque::with_capacity(depth.into()),
            commands: (0..depth).map(fetch).collect(),
            zeroes: None,
            parts: PartPool::new(depth.into()),
            fault: None,
        }
    }

    /// The disk has this many bytes from now on.
    pub(crate) fn set_bytes(&mut self, bytes: u64) {
        self.facts.bytes = bytes;
    }

    /// A command has completed. The buffer comes back with it.
    pub(crate) fn handle_fetched(
        &mut self,
        tag: u16,
        fetched: io::Result<UblkDescriptor>,
        buf: IoBuf,
    ) {
        let index = usize::from(tag);
        if !matches!(self.tags.get(index), Some(Tag::Fetches)) {
            debug_assert!(false, "tag {tag} does not fetch");
            return;
        }
        match fetched {
            Ok(asked) => match plan(&self.facts, &asked) {
                Ok(plan) => {
                    self.fetching -= 1;
                    self.working += 1;
                    self.begin(tag, plan, buf);
                }
                Err(number) => {
                    tracing::warn!(?asked, "a request of the kernel was refused: error {number}");
                    self.commands.push_back((UblkCommand { tag, commit: Some(-number) }, buf));
                }
            },
            Err(error) => {
                self.tags[index] = Tag::Over;
                self.fetching -= 1;
                if error.raw_os_error() != Some(ENODEV) && self.fault.is_none() {
                    self.fault = Some(error);
                }
            }
        }
    }

    fn begin(&mut self, tag: u16, plan: Plan, mut buf: IoBuf) {
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
        self.tags[usize::from(tag)] = Tag::Works { plan, buf: kept, zeroed: None };
        self.requests.push_back(Request { tag: tag.into(), op });
    }

    /// The device has done a request.
    pub(crate) fn handle_done(&mut self, done: Done) {
        let index = usize::try_from(done.tag).unwrap_or(usize::MAX);
        let Some(Tag::Works { plan, buf, zeroed }) = self.tags.get_mut(index) else {
            debug_assert!(false, "tag {} has no request", done.tag);
            return;
        };
        let (plan, at) = (*plan, *zeroed);
        if let Plan::WriteZeroes { offset, len, fua, .. } = plan {
            let next = match (at, done.result) {
                (None, Err(BdevError::NotSupported)) => Some(offset),
                (Some(at), Ok(())) if at < offset + len => Some(at),
                _ => None,
            };
            if let Some(next) = next {
                drop(done.payload);
                return self.write_zeroes(done.tag, next, offset + len, fua);
            }
        }
        let (ended, buf) = match buf.take() {
            Some(buf) => (done.result, buf),
            None => take_back(&self.facts, plan, done.result, done.payload),
        };
        let commit = Some(result(plan, ended));
        self.tags[index] = Tag::Fetches;
        self.working -= 1;
        self.fetching += 1;
        let tag = u16::try_from(index).unwrap_or(u16::MAX);
        self.commands.push_back((UblkCommand { tag, commit }, buf));
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
        self.requests.pop_front()
    }

    /// The next command to the kernel.
    pub(crate) fn poll_command(&mut self) -> Option<(UblkCommand, IoBuf)> {
        self.commands.pop_front()
    }

    /// Whether no tag has anything to do any more.
    pub(crate) fn is_over(&self) -> bool {
        self.fetching == 0 && self.working == 0
    }

    /// Why a tag has ended, if not because the disk has.
    pub(crate) fn take_fault(&mut self) -> Option<io::Error> {
        self.fault.take()
    }
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
