//! What an engine is: something that does operations on raw memory, for one core through one queue.

#![allow(unsafe_code)]

use std::fmt;
use std::io;

use crate::memory::{Piece, PieceMut};
use crate::operation::{OpSet, Operation, Output};

/// An operation on memory that is known by address only.
///
/// The lists are valid while it is submitted; an engine that needs them later copies what it
/// needs. The memory stays valid until the completion is reported.
#[derive(Clone, Copy, Debug)]
pub struct RawRequest<'a> {
    operation: Operation,
    sources: [&'a [Piece]; 2],
    targets: [&'a [PieceMut]; 2],
    bytes: usize,
}

impl<'a> RawRequest<'a> {
    /// A request; for channels, and for tests of engines.
    ///
    /// `bytes` is the length of all operands; for compress and decompress, that of the first source.
    /// Operands that the operation lacks are empty.
    ///
    /// # Safety
    /// Every piece is valid for reads for `'a` (a target's also for writes, and nothing else writes it),
    /// its bytes are initialised, and the lists are as long as said.
    #[inline]
    #[must_use]
    pub unsafe fn new(
        operation: Operation,
        sources: [&'a [Piece]; 2],
        targets: [&'a [PieceMut]; 2],
        bytes: usize,
    ) -> RawRequest<'a> {
        RawRequest { operation, sources, targets, bytes }
    }

    /// What to do.
    #[inline]
    #[must_use]
    pub const fn operation(&self) -> Operation {
        self.operation
    }

    /// The pieces to read: of the source, and of what it is compared with.
    #[inline]
    #[must_use]
    pub const fn sources(&self) -> [&'a [Piece]; 2] {
        self.sources
    }

    /// The pieces to write: of the target, and of dualcast's second.
    #[inline]
    #[must_use]
    pub const fn targets(&self) -> [&'a [PieceMut]; 2] {
        self.targets
    }

    /// How many bytes each operand has.
    #[inline]
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }
}

/// What a queue calls an operation in flight: unique as long as the queue lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlotId(pub u64);

/// How an operation ended, as an engine reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RawResult {
    /// All of it is done.
    Completed(Output),
    /// The engine stopped after this many bytes of each operand (a page fault, for instance), which
    /// are done; the channel does the rest in software.
    Partial {
        /// The bytes done.
        bytes_completed: usize,
        /// With crc32c and copy_crc32c the CRC32C so far, seed included; otherwise ignored.
        crc32c: u32,
    },
    /// It failed, with the engine's own number for it.
    Failed {
        /// The engine's status.
        status: u32,
    },
}

/// Why a queue did not take an operation. It keeps nothing of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It is full; later it will take it.
    Busy,
    /// It cannot do this one, for instance because of its alignment.
    Unsuitable,
}

/// What one queue takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The operations.
    pub operations: OpSet,
    /// Most bytes of one operand; what is longer is given to it in parts.
    pub max_bytes: usize,
    /// Most pieces of one operand; an operation with more is done in software.
    pub max_pieces: usize,
    /// Most operations in flight.
    pub depth: usize,
}

/// One core's queue to an engine.
///
/// # Safety
/// After a queue has reported a slot's completion (or refused it, or [`EngineQueue::stop`] gave
/// true) neither it nor its device touches the memory of that slot's request.
pub unsafe trait EngineQueue {
    /// What it takes; constant.
    fn capabilities(&self) -> Capabilities;

    /// Takes an operation, to be reported by [`EngineQueue::poll`] under `slot`.
    ///
    /// # Errors
    /// Why it was not taken.
    ///
    /// # Safety
    /// The memory of the request stays valid, and a target's is not touched by others, until the
    /// completion is reported.
    unsafe fn submit(&mut self, slot: SlotId, request: &RawRequest<'_>) -> Result<(), Refused>;

    /// Tells the device about what was submitted, if it does not know yet.
    fn kick(&mut self);

    /// Reports what is complete, in any order. A report of a slot that is not in flight is counted
    /// and ignored.
    fn poll(&mut self, report: &mut dyn FnMut(SlotId, RawResult));

    /// False once it should get no more work.
    fn is_healthy(&self) -> bool {
        true
    }

    /// Ends what is in flight, waiting for a bounded time. True if from now on the device touches
    /// no memory of any request; nothing more is reported then.
    fn stop(&mut self) -> bool;
}

/// Something that does operations, for the whole process.
pub trait Engine: fmt::Debug + Send + Sync {
    /// What the table calls it, e.g. `dsa`.
    fn name(&self) -> &'static str;

    /// What it can do.
    fn operations(&self) -> OpSet;

    /// A queue for the calling core. `cpu` is its number, if it is known, to choose a device near
    /// to it.
    ///
    /// # Errors
    /// What the device or the kernel says.
    fn open_queue(&self, cpu: Option<usize>) -> io::Result<Box<dyn EngineQueue>>;
}
