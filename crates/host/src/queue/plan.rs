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
    /// Bytes of all commands.
    pub(super) load: Load,
    /// Bytes of reads for which the controller was not asked yet.
    pub(super) unasked: usize,
    /// Reads whose payloads are large.
    pub(super) large_reads: u32,
}

impl UnderWay {
    /// Counts a command that has just been accepted; gives the bytes that it reads.
    #[inline(always)]
    pub(super) fn begin(&mut self, entry: &Entry) -> usize {
        let bytes = to_usize(entry.len);
        match entry.direction {
            Direction::ControllerToHost => {
                self.large_reads += u32::from(policy::is_large(bytes));
                self.load.reading += bytes;
                self.unasked += bytes;
                return bytes;
            }
            Direction::HostToController => self.load.writing += bytes,
            Direction::None => {}
        }
        0
    }

    /// The command is taken out.
    #[inline(always)]
    pub(super) fn end(&mut self, entry: &Entry) {
        let bytes = to_usize(entry.len);
        match entry.direction {
            Direction::ControllerToHost => {
                self.large_reads -= u32::from(policy::is_large(bytes));
                self.load.reading -= bytes;
                self.unasked -= if entry.sent { 0 } else { bytes };
            }
            Direction::HostToController => self.load.writing -= bytes,
            Direction::None => {}
        }
    }

    /// Bytes for which the controller was asked and that have not all come.
    pub(super) fn asked(&self) -> usize {
        self.load.reading - self.unasked
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
        flight.tell(&mut self.told, self.under_way.load);
        let reading = flight.reading();
        let landing = policy::landing(reading, flight.readers(), link.core_staging);
        self.plan = Plan { reading, writing: flight.writing(), landing };
    }

    /// Nothing is under way any more: the socket is closed.
    pub(super) fn forget_plan(&mut self, cx: &mut Context<'_>) {
        cx.io.flight().tell(&mut self.told, Load::default());
        self.plan = Plan::default();
    }
}
