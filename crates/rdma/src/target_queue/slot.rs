//! One command of a controller's queue.

use raceline_proto::nvme::Cqe;
use raceline_proto::rdma::KeyedBlock;

use crate::verbs::{Region, Slice};

/// Where a command is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stage {
    /// There is none: its receive is posted.
    Posted,
    /// The driver has it.
    Held,
    /// Its data are on their way from the host.
    Reading,
    /// Its response waits.
    Responding,
    /// There is none, and no receive.
    #[default]
    Over,
}

/// Where a message was received: from an offset of this memory on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    /// The number of the receive, among those that are shared.
    pub(crate) receive: u32,
    /// The memory.
    pub(crate) region: Region,
    /// The beginning of the message.
    pub(crate) offset: u32,
}

/// One command.
#[derive(Debug, Default)]
pub(super) struct Slot {
    pub(super) stage: Stage,
    /// Where its capsule was received.
    pub(super) place: Place,
    /// The host's memory of its data. The memory for the list is kept from command to command.
    pub(super) blocks: Vec<KeyedBlock>,
    /// The next block to read, and how many are under way.
    pub(super) next_block: usize,
    pub(super) blocks_under_way: u8,
    /// A read has failed.
    pub(super) failed: bool,
    /// The key that its response invalidates.
    pub(super) key: Option<u32>,
    /// The driver's memory, from the next block on.
    pub(super) buffer: Slice,
    pub(super) response: Cqe,
    /// The driver's name of its response.
    pub(super) tag: u32,
}

impl Slot {
    /// A command has come.
    pub(super) fn begin(&mut self) {
        self.stage = Stage::Held;
        self.blocks.clear();
        (self.next_block, self.blocks_under_way, self.failed) = (0, 0, false);
        self.key = None;
        self.buffer = Slice::default();
    }

    /// Bytes of the host's memory. The capsule's parser has bounded the sum.
    pub(super) fn bytes(&self) -> u32 {
        self.blocks.iter().map(|block| block.len).sum()
    }
}
