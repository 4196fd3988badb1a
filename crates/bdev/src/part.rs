//! A device on top of another: a part of it, or all of it.

use std::io;

use raceline_reactor::{Completion, Context, Payload};

use crate::extent::moved_down;
use crate::wrap::{open_base, pass_to_base};
use crate::{Bdev, BdevError, BdevInfo, Channel, Done, Op, Request, SharedBdev};

/// Blocks of another device, from one of them on.
///
/// The code that makes several parts of a device ensures that they do not overlap, and that nothing else
/// uses the device itself.
pub struct PartBdev {
    base: SharedBdev,
    /// First block, and how many; `None` is all of the device, and grows with it.
    blocks: Option<(u64, u64)>,
}

impl PartBdev {
    /// `block_count` blocks from `first_block` on; `None` if the device has not that many.
    #[must_use]
    pub fn new(base: SharedBdev, first_block: u64, block_count: u64) -> Option<Self> {
        let end = first_block.checked_add(block_count)?;
        let fits = block_count > 0 && end <= base.info().block_count;
        fits.then_some(Self { base, blocks: Some((first_block, block_count)) })
    }

    /// All of the device.
    #[must_use]
    pub const fn whole(base: SharedBdev) -> Self {
        Self { base, blocks: None }
    }
}

impl Bdev for PartBdev {
    fn info(&self) -> BdevInfo {
        let info = self.base.info();
        let (first, block_count) = self.blocks.unwrap_or((0, info.block_count));
        // Its own boundaries are where those of the base are, or it has none.
        let start = first * u64::from(info.block_size);
        let boundary = info.io_boundary_bytes;
        let io_boundary_bytes = if start.is_multiple_of(boundary.max(1)) { boundary } else { 0 };
        BdevInfo { block_count, io_boundary_bytes, ..info }
    }

    fn open_channel(&self, cx: &mut Context<'_>, owner: u16) -> io::Result<Box<dyn Channel>> {
        let block_size = u64::from(self.base.info().block_size);
        let first_block = self.blocks.map_or(0, |(first, _)| first);
        Ok(Box::new(PartChannel {
            inner: open_base(&*self.base, cx, owner)?,
            start: first_block * block_size,
            finding: Vec::new(),
        }))
    }

    fn wrapper_levels(&self) -> u32 {
        self.base.wrapper_levels()
    }

    fn takes_pages(&self) -> bool {
        self.base.takes_pages()
    }

    pass_to_base!(base);
}

struct PartChannel {
    inner: Box<dyn Channel>,
    /// Where the part begins, in bytes.
    start: u64,
    /// Requests under way whose answers have places of the base.
    finding: Vec<u64>,
}

impl PartChannel {
    /// Gives the answers since `first` the places of this device.
    fn move_down(&mut self, first: usize, done: &mut [Done]) {
        if self.finding.is_empty() {
            return;
        }
        for done in &mut done[first..] {
            if let Some(i) = self.finding.iter().position(|tag| *tag == done.tag) {
                self.finding.swap_remove(i);
                done.payload = Some(moved_down(done.payload.as_ref(), self.start));
            }
        }
    }
}

impl Channel for PartChannel {
    fn submit(&mut self, cx: &mut Context<'_>, mut request: Request, done: &mut Vec<Done>) {
        match &mut request.op {
            Op::Read { offset, .. }
            | Op::Write { offset, .. }
            | Op::ReadPages { offset, .. }
            | Op::WritePages { offset, .. }
            | Op::WriteZeroes { offset, .. }
            | Op::Deallocate { offset, .. }
            | Op::WriteUncorrectable { offset, .. } => *offset += self.start,
            Op::Copy { from, to, .. } => {
                *from += self.start;
                *to += self.start;
            }
            Op::Find { offset, .. } => {
                *offset += self.start;
                self.finding.push(request.tag);
            }
            Op::Flush => {}
        }
        let first = done.len();
        self.inner.submit(cx, request, done);
        self.move_down(first, done);
    }

    fn reads_now(&self) -> bool {
        self.inner.reads_now()
    }

    fn read_now(&mut self, offset: u64, len: usize) -> Option<Payload> {
        self.inner.read_now(offset + self.start, len)
    }

    fn prefetch(&mut self, offset: u64, len: usize) {
        self.inner.prefetch(offset.saturating_add(self.start), len);
    }

    fn writes_now(&self) -> bool {
        self.inner.writes_now()
    }

    fn write_now(&mut self, offset: u64, data: &[u8]) -> Result<(), BdevError> {
        self.inner.write_now(offset + self.start, data)
    }

    fn handle_completion(
        &mut self,
        cx: &mut Context<'_>,
        completion: Completion,
        done: &mut Vec<Done>,
    ) {
        let first = done.len();
        self.inner.handle_completion(cx, completion, done);
        self.move_down(first, done);
    }

    fn flush(&mut self, cx: &mut Context<'_>, done: &mut Vec<Done>) {
        let first = done.len();
        self.inner.flush(cx, done);
        self.move_down(first, done);
    }

    fn close(&mut self, cx: &mut Context<'_>) {
        self.inner.close(cx);
    }
}
