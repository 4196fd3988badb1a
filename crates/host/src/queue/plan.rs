//! What is under way on a queue, and how its bytes travel: decided once for each change of that.

use raceline_proto::nvme::Direction;
use raceline_reactor::Context;
use raceline_reactor::flow::policy::{self, Landing};
use raceline_reactor::flow::{Load, Regime};

use super::QueuePair;
use super::entry::Entry;
use super::send::to_usize;

/// What is outstanding on a queue.
#[derive(Debug, Default)]
pub(super) struct UnderWay {
    /// Bytes of all commands in each direction: an index, as it is counted with each command.
    bytes: [usize; 3],
    /// Bytes that the last command reads: the next command may be like it.
    pub(super) last_read: usize,
    /// Reads whose payloads are large.
    pub(super) large_reads: u32,
}

// The order of `UnderWay::bytes`.
const _: () = {
    assert!(Direction::HostToController as usize == 1 && Direction::ControllerToHost as usize == 2);
};

impl UnderWay {
    /// Counts a command that has just been accepted.
    #[inline(always)]
    pub(super) fn begin(&mut self, entry: &Entry) {
        let bytes = to_usize(entry.len);
        self.bytes[entry.direction as usize] += bytes;
        self.last_read = 0;
        if entry.direction == Direction::ControllerToHost {
            self.last_read = bytes;
            self.large_reads += u32::from(policy::is_large(bytes));
        }
    }

    /// The command is taken out.
    #[inline(always)]
    pub(super) fn end(&mut self, entry: &Entry) {
        let bytes = to_usize(entry.len);
        self.bytes[entry.direction as usize] -= bytes;
        if entry.direction == Direction::ControllerToHost {
            self.large_reads -= u32::from(policy::is_large(bytes));
        }
    }

    /// Bytes of all commands.
    #[inline(always)]
    pub(super) fn load(&self) -> Load {
        let [_, writing, reading] = self.bytes;
        Load { reading, writing }
    }
}

/// What was decided.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// What the caches hold of the data that the core reads and writes.
    pub(super) reading: Regime,
    pub(super) writing: Regime,
    /// Where the payloads of large reads land.
    pub(super) landing: Landing,
}

impl Default for Plan {
    fn default() -> Self {
        Self { reading: Regime::Warm, writing: Regime::Warm, landing: Landing::InPlace }
    }
}

impl QueuePair {
    /// Tells the core what this queue has under way, and decides anew.
    pub(super) fn make_plan(&mut self, cx: &mut Context<'_>) {
        let Some(link) = self.link.as_ref().filter(|link| !link.closed) else { return };
        let flight = cx.io.flight();
        flight.tell(&mut self.told, self.under_way.load());
        let reading = flight.reading();
        let landing = policy::landing(reading, flight.readers(), link.core_staging);
        self.plan = Plan { reading, writing: flight.writing(), landing };
    }

    /// Bytes for which the controller was asked and that have not all come. Commands that wait are looked
    /// at one by one: this is for a core whose caches are flooded, and costs other cores nothing.
    pub(super) fn asked(&self) -> usize {
        let waiting = self.pending.iter().filter_map(|&cid| self.commands.get(cid));
        let unasked: usize = waiting.map(Entry::read_bytes).sum();
        self.under_way.load().reading - unasked
    }

    /// Nothing is under way any more: the socket is closed.
    pub(super) fn forget_plan(&mut self, cx: &mut Context<'_>) {
        cx.io.flight().tell(&mut self.told, Load::default());
        self.plan = Plan::default();
    }
}
