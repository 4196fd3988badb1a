//! A core's channel to the device, and what requests need beside it.

use std::sync::Arc;

use raceline_bdev::{BdevError, Channel, DiskCounters, Done, Op, Request};
use raceline_reactor::{Context, Payload};

use crate::config::Facts;

/// Most bytes that a request has in a buffer at a time: longer ones are carried out in pieces.
pub(crate) const PIECE: usize = 1 << 20;

/// Bytes of data of a core's requests: 64 of the largest pieces.
const BUDGET: usize = 64 * PIECE;

/// Bytes that are copied at once from memory of a device.
const SCRATCH: usize = 64 << 10;

/// The channel of a core, and what its requests need.
pub(crate) struct Devices {
    pub(crate) facts: Arc<Facts>,
    pub(crate) scratch: Vec<u8>,
    pub(crate) budget: usize,
    pub(crate) channel: Box<dyn Channel>,
    pub(crate) done: Vec<Done>,
    /// Where this core counts.
    pub(crate) counters: Arc<DiskCounters>,
}

impl Devices {
    pub(crate) fn new(
        facts: Arc<Facts>,
        channel: Box<dyn Channel>,
        counters: Arc<DiskCounters>,
    ) -> Self {
        let (scratch, done) = (vec![0; SCRATCH], Vec::new());
        Self { facts, scratch, budget: BUDGET, channel, done, counters }
    }

    /// Starts an operation for a request; `done` has its end.
    pub(crate) fn submit(&mut self, cx: &mut Context<'_>, (queue, head): (u16, u16), op: Op) {
        let tag = u64::from(queue) << 16 | u64::from(head);
        self.channel.submit(cx, Request { tag, op }, &mut self.done);
    }

    pub(crate) fn has_room(&self) -> bool {
        self.budget >= PIECE
    }

    pub(crate) fn reads_now(&self) -> bool {
        self.channel.reads_now()
    }

    pub(crate) fn read_now(&mut self, offset: u64, len: usize) -> Option<Payload> {
        self.channel.read_now(offset, len)
    }

    pub(crate) fn writes_now(&self) -> bool {
        self.channel.writes_now()
    }

    pub(crate) fn write_now(&mut self, offset: u64, data: &[u8]) -> Result<(), BdevError> {
        self.channel.write_now(offset, data)
    }
}
