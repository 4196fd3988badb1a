//! The commands of simulated hosts: how they are made, and what their results mean for the model.

use raceline_host::{BlockRange, Command, CommandDone, CommandError, Data, Hints};
use raceline_proto::host::command::deallocate_range;
use raceline_proto::nvme::opcode::io;
use raceline_proto::nvme::rw::CopyRange;
use raceline_proto::nvme::{NamespaceId, Sqe, Status};
use raceline_reactor::IoBuf;
use zerocopy::IntoBytes as _;

use crate::content::{Content, Place, WriteId};
use crate::model::{Fate, Moment};
use crate::world::Shared;

/// FUSE: first and second half of a fused operation.
const FUSE_FIRST: u8 = 0b01;
const FUSE_SECOND: u8 = 0b10;
/// The byte in a read buffer before the data come.
const UNREAD: u8 = 0xa5;

/// What a command does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Read.
    Read,
    /// Write.
    Write {
        /// Force unit access.
        fua: bool,
    },
    /// Compare with the expected contents.
    Compare,
    /// The first half of a fused Compare and Write.
    FusedCompare,
    /// The second half.
    FusedWrite,
    /// Write Zeroes.
    WriteZeroes,
    /// Deallocate.
    Deallocate,
    /// Copy.
    Copy,
    /// Flush.
    Flush,
}

impl Kind {
    /// Whether it changes blocks.
    #[must_use]
    pub fn writes(self) -> bool {
        use Kind::{Copy, Deallocate, FusedWrite, Write, WriteZeroes};
        matches!(self, Write { .. } | FusedWrite | WriteZeroes | Deallocate | Copy)
    }

    /// Whether it, or its other half, changes blocks.
    #[must_use]
    pub fn claims(self) -> bool {
        self.writes() || self == Self::FusedCompare
    }

    /// Whether it compares.
    #[must_use]
    pub fn compares(self) -> bool {
        matches!(self, Self::Compare | Self::FusedCompare)
    }

    fn is_fused(self) -> bool {
        matches!(self, Self::FusedCompare | Self::FusedWrite)
    }
}

/// A command that is outstanding.
#[derive(Clone, Debug)]
pub struct Operation {
    /// What.
    pub kind: Kind,
    /// Index of the namespace.
    pub namespace: usize,
    /// First blocks and numbers of blocks; one except for Deallocate, none for Flush.
    pub ranges: Vec<(u64, u64)>,
    /// The id of what it writes.
    pub write: WriteId,
    /// The value that it, or its other half, expects in each block.
    pub expected: Vec<WriteId>,
    /// The contents of these values.
    pub images: Vec<Content>,
    /// Namespaces, first blocks and numbers of blocks that a Copy reads, in the order in which it writes them.
    pub sources: Vec<(usize, u64, u64)>,
    /// The source ranges name their namespaces (format 2h).
    pub across: bool,
    /// When it was submitted.
    pub begun: Moment,
    /// The other half of a fused operation.
    pub partner: Option<u64>,
    /// Whether the other half succeeded, if it has ended.
    pub partner_ok: Option<bool>,
}

impl Operation {
    /// An operation that has not begun.
    #[must_use]
    pub fn new(kind: Kind, namespace: usize, ranges: Vec<(u64, u64)>, write: WriteId) -> Self {
        Self {
            kind,
            namespace,
            ranges,
            write,
            expected: Vec::new(),
            images: Vec::new(),
            sources: Vec::new(),
            across: false,
            begun: 0,
            partner: None,
            partner_ok: None,
        }
    }

    /// The blocks that a Copy reads, in the order of those that it writes.
    pub fn source_places(&self) -> impl Iterator<Item = Place> + use<> {
        let sources = self.sources.clone().into_iter();
        sources.flat_map(|(namespace, lba, count)| {
            (lba..lba + count).map(move |lba| Place { namespace, lba })
        })
    }

    /// Its blocks.
    pub fn places(&self) -> impl Iterator<Item = Place> + use<> {
        let namespace = self.namespace;
        let ranges = self.ranges.clone().into_iter();
        ranges.flat_map(move |(lba, count)| {
            (lba..lba + count).map(move |lba| Place { namespace, lba })
        })
    }

    fn block_count(&self) -> u64 {
        self.ranges.iter().map(|(_, count)| count).sum()
    }

    /// Tells the model that it has begun.
    ///
    /// # Errors
    /// When it does not fit the model.
    pub fn begin(&mut self, shared: &mut Shared) -> Result<(), String> {
        self.begun = shared.model.tick();
        if self.kind.writes() {
            for (index, place) in self.places().enumerate() {
                let replaced = self.expected.get(index).copied();
                shared.model.begin_write(place, self.write, self.begun, replaced)?;
                if self.kind == Kind::Copy {
                    // It may find zeroes.
                    shared.model.begin_write(place, WriteId::ZEROES, self.begun, None)?;
                }
            }
        }
        if self.kind == Kind::Copy {
            shared.copies.begin(self);
        }
        Ok(())
    }

    /// The command for the host.
    ///
    /// # Errors
    /// When the plan asks for an impossible one.
    pub fn command(&self, block_size: usize) -> Result<Command, String> {
        let nsid = nsid_of(self.namespace);
        let (lba, count) = self.ranges.first().copied().unwrap_or((0, 1));
        let range = u32::try_from(count).ok().and_then(|count| BlockRange::new(lba, count));
        let range = range.ok_or("an impossible range")?;
        let command = match self.kind {
            Kind::Read => {
                let mut buf = IoBuf::heap(self.len(block_size));
                buf.fill(UNREAD);
                Command::read(nsid, range, buf)
            }
            Kind::Write { fua } => Command::write(nsid, range, self.contents(block_size), fua),
            Kind::FusedWrite => {
                let mut command = Command::write(nsid, range, self.contents(block_size), false);
                command.sqe.flags |= FUSE_SECOND;
                command
            }
            Kind::Compare => Command::compare(nsid, range, self.contents(block_size)),
            Kind::FusedCompare => {
                let mut command = Command::compare(nsid, range, self.contents(block_size));
                command.sqe.flags |= FUSE_FIRST;
                command
            }
            Kind::WriteZeroes => {
                Command::write_zeroes(nsid, range, self.write.0.is_multiple_of(2), false)
            }
            Kind::Deallocate => {
                let ranges = self.ranges.iter().flat_map(|&(lba, count)| {
                    deallocate_range(lba, u32::try_from(count).unwrap_or(u32::MAX))
                });
                let ranges: Vec<u8> = ranges.collect();
                let command = Command::deallocate(nsid, IoBuf::from_slice(&ranges).share());
                command.ok_or("impossible ranges")?
            }
            Kind::Copy => self.copy(nsid),
            Kind::Flush => Command::flush(nsid),
        };
        Ok(command)
    }

    fn copy(&self, nsid: NamespaceId) -> Command {
        let range = |&(namespace, lba, count): &(usize, u64, u64)| CopyRange {
            snsid: if self.across { nsid_of(namespace).0 } else { 0 }.into(),
            slba: lba.into(),
            nlb: u16::try_from(count - 1).unwrap_or(u16::MAX).into(),
            ..CopyRange::default()
        };
        let ranges: Vec<CopyRange> = self.sources.iter().map(range).collect();
        let sdlba = self.ranges.first().map_or(0, |&(lba, _)| lba);
        let [low, high] = [sdlba & u64::from(u32::MAX), sdlba >> 32]
            .map(|half| u32::try_from(half).unwrap_or(u32::MAX));
        let last = u32::try_from(ranges.len()).unwrap_or(1) - 1;
        let format = if self.across { 2 << 8 } else { 0 };
        let sqe = Sqe {
            opc: io::COPY,
            nsid: nsid.0.into(),
            cdw10: low.into(),
            cdw11: high.into(),
            cdw12: (last | format).into(),
            ..Sqe::default()
        };
        let data = Data::Write(IoBuf::from_slice(ranges.as_bytes()).share());
        Command { sqe, data, hints: Hints::default() }
    }

    fn len(&self, block_size: usize) -> usize {
        usize::try_from(self.block_count()).unwrap_or(0) * block_size
    }

    /// What it writes or compares with.
    fn contents(&self, block_size: usize) -> raceline_reactor::SharedBuf {
        let mut buf = IoBuf::heap(self.len(block_size));
        for (index, (block, place)) in
            buf.chunks_exact_mut(block_size).zip(self.places()).enumerate()
        {
            let written = Content::new(place, self.write);
            let content = if self.kind.compares() { self.images[index] } else { written };
            content.fill(block);
        }
        buf.share()
    }

    /// Takes the command's end into the model.
    ///
    /// When the command could not have ended in this way; says why.
    pub fn end(&self, done: &CommandDone, shared: &mut Shared) -> Result<(), String> {
        shared.model.tick();
        match done.result {
            Ok(_) => self.succeeded(done, shared),
            Err(CommandError::Status(status)) => self.failed(status, shared),
            Err(error) => self.lost(error, shared),
        }
    }

    /// Tells the model the fate of a write.
    ///
    /// # Errors
    /// The contradiction, if there is one.
    pub fn decide(&self, fate: Fate, shared: &mut Shared) -> Result<(), String> {
        if !self.kind.writes() {
            return Ok(());
        }
        let zeroes = if self.kind == Kind::Copy {
            let places: Vec<Place> = self.places().collect();
            shared.copies.end((self.write, &places), fate, &mut shared.model)?
        } else {
            Vec::new()
        };
        let oldest = shared.oldest.min(self.begun).min(shared.copies.oldest_open());
        for (index, place) in self.places().enumerate() {
            shared.model.end_write(place, self.write, self.begun, fate)?;
            if let Some(&may_be_zeroes) = zeroes.get(index) {
                let fate = match fate {
                    Fate::Unknown => Fate::Unknown,
                    Fate::Done | Fate::Maybe if may_be_zeroes => Fate::Maybe,
                    _ => Fate::Refused,
                };
                shared.model.end_write(place, WriteId::ZEROES, self.begun, fate)?;
            }
            shared.model.forget(place, oldest)?;
        }
        if fate == Fate::Unknown {
            shared.remember_ghost(self);
        }
        Ok(())
    }

    fn succeeded(&self, done: &CommandDone, shared: &mut Shared) -> Result<(), String> {
        if self.kind == Kind::FusedWrite && self.partner_ok == Some(false) {
            return Err("a fused Write succeeded after its Compare had failed".into());
        }
        match self.kind {
            Kind::Read => self.check_read(done, shared),
            Kind::Compare | Kind::FusedCompare => {
                for (place, &id) in self.places().zip(&self.expected) {
                    shared.model.saw(place, id, self.begun)?;
                }
                Ok(())
            }
            _ => {
                shared.totals.copies += u64::from(self.kind == Kind::Copy);
                shared.totals.copies_across += u64::from(self.across);
                self.decide(Fate::Done, shared)
            }
        }
    }

    fn check_read(&self, done: &CommandDone, shared: &mut Shared) -> Result<(), String> {
        let Data::Read(buf) = &done.data else { return Err("a read without its buffer".into()) };
        let block_size = shared.block_size(self.namespace);
        if buf.len() != self.len(block_size) {
            return Err(format!("a buffer of {} bytes came back", buf.len()));
        }
        for (block, place) in buf.chunks_exact(block_size).zip(self.places()) {
            match shared.copies.identify(block, place, &mut shared.model)? {
                Some(id) => shared.model.saw(place, id, self.begun)?,
                None => self.check_torn(block, place, shared)?,
            }
        }
        Ok(())
    }

    /// A block that matches no write as a whole. Only memory that is sent in place while others write to it
    /// may look like this, and then each byte must come from a possible write.
    fn check_torn(&self, block: &[u8], place: Place, shared: &mut Shared) -> Result<(), String> {
        let candidates = shared.copies.contents(place, self.begun, &mut shared.model)?;
        let mut image = vec![0; block.len()];
        let mut explained = vec![false; block.len()];
        for content in &candidates {
            content.fill(&mut image);
            for (explained, (byte, image)) in explained.iter_mut().zip(block.iter().zip(&image)) {
                *explained |= byte == image;
            }
        }
        let mixture = candidates.len() > 1 && explained.iter().all(|&explained| explained);
        if mixture && !shared.plan.copy_reads {
            shared.totals.torn_reads += 1;
            return Ok(());
        }
        let first = block.iter().take(16).map(|byte| format!("{byte:02x}")).collect::<String>();
        let word = if mixture { "torn" } else { "foreign" };
        Err(format!("{place} is {word}: begins with {first}, possible were {candidates:?}"))
    }

    fn failed(&self, status: Status, shared: &mut Shared) -> Result<(), String> {
        shared.totals.failures += 1;
        let same = |other: Status| status.same_code(other);
        let device = [
            Status::UNRECOVERED_READ_ERROR,
            Status::WRITE_FAULT,
            Status::CAPACITY_EXCEEDED,
            Status::COMMAND_INTERRUPTED,
            Status::INTERNAL,
        ];
        let faults = shared.plan.faults;
        let device_may_fail = faults.device_errors_per_thousand > 0;
        let unexcused = if same(Status::COMPARE_FAILURE) && self.kind.compares() {
            return self.differed(shared);
        } else if same(Status::INVALID_NAMESPACE) {
            let mut all = self.sources.iter().map(|source| source.0).chain([self.namespace]);
            !all.any(|namespace| shared.was_absent(namespace, self.begun))
        } else if same(Status::INVALID_FIELD) && self.across {
            // A controller takes such ranges once its host has enabled them, which only that of the first path knows.
            let all_know = !shared.is_starting() && !shared.plan.has_two_paths();
            all_know && !shared.had_losses()
        } else if same(Status::INVALID_FIELD) && self.kind.is_fused() {
            // The namespace was replaced between the halves.
            !shared.was_absent(self.namespace, self.begun)
        } else if same(Status::UNRECOVERED_READ_ERROR) {
            let reads = !self.kind.writes() || self.kind == Kind::Copy;
            !reads || self.kind == Kind::Flush || !device_may_fail
        } else if same(Status::COMMAND_INTERRUPTED) || same(Status::INTERNAL) {
            !device_may_fail
        } else if device.into_iter().any(same) {
            self.kind == Kind::Read || self.kind.compares() || !device_may_fail
        } else if same(Status::TRANSIENT_TRANSPORT_ERROR) {
            faults.flips_per_million == 0
        } else if same(Status::ABORTED_FAILED_FUSED) {
            !self.kind.is_fused() || self.partner_ok == Some(true)
        } else if same(Status::ABORTED_MISSING_FUSED) {
            !self.kind.is_fused() || !shared.had_losses()
        } else {
            true
        };
        if unexcused {
            return Err(format!("{status} has no reason"));
        }
        if device_may_fail {
            shared.totals.device_errors_seen += u64::from(device.into_iter().any(same));
        }
        // Some ranges of a Deallocate may have been released before another failed. A device that takes
        // blocks as they come may have some blocks of a Write before its namespace is removed.
        let partial = self.kind == Kind::Deallocate && self.ranges.len() > 1
            || self.kind == Kind::Copy
            || matches!(self.kind, Kind::Write { .. }) && shared.plan.is_prompt();
        self.decide(if partial { Fate::Maybe } else { Fate::Refused }, shared)
    }

    /// A Compare has found a difference: the model must allow one.
    fn differed(&self, shared: &mut Shared) -> Result<(), String> {
        shared.totals.miscompares += 1;
        for (place, id) in self.places().zip(&self.expected) {
            let found = shared.model.candidates(place, self.begun)?;
            if found.iter().any(|found| found != id) {
                return Ok(());
            }
        }
        Err("Compare Failure, but all blocks were as expected".into())
    }

    /// The controller has sent no completion.
    fn lost(&self, error: CommandError, shared: &mut Shared) -> Result<(), String> {
        let harmless = matches!(self.kind, Kind::Read | Kind::Compare);
        let fate = match error {
            CommandError::UnknownFate if harmless => None,
            CommandError::UnknownFate => Some(Fate::Unknown),
            CommandError::NotSent | CommandError::Timeout => Some(Fate::Refused),
            CommandError::NoPath => return Err("a command ended for want of a path".into()),
            CommandError::Disconnected => harmless.then_some(Fate::Refused),
            CommandError::Digest => {
                let excused = self.kind == Kind::Read && shared.plan.faults.flips_per_million > 0;
                excused.then_some(Fate::Refused)
            }
            CommandError::Status(_) => None,
        };
        let lossless = !matches!(error, CommandError::Digest) && !shared.had_losses();
        let Some(fate) = fate.filter(|_| !lossless) else {
            return Err(format!("{error} has no reason"));
        };
        shared.totals.unknown_fates += u64::from(fate == Fate::Unknown && self.kind.writes());
        self.decide(fate, shared)
    }
}

/// The number of a namespace.
#[must_use]
pub fn nsid_of(namespace: usize) -> NamespaceId {
    NamespaceId(u32::try_from(namespace + 1).unwrap_or(u32::MAX))
}
