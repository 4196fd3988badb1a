//! A device that is nowhere: reads give zeroes, writes vanish. It measures everything but storage.

use std::sync::atomic::{AtomicU64, Ordering};

use raceline_reactor::send::Payload;
use raceline_reactor::{Completion, Context};

use crate::{Bdev, BdevError, BdevInfo, Channel, Done, Op, Request};

/// A device without storage.
pub struct NullBdev {
    info: BdevInfo,
    /// Now; `info` has what it was at first.
    block_count: AtomicU64,
}

impl NullBdev {
    /// A device of the size in `info`, whose properties are filled in here.
    pub(crate) fn new(info: BdevInfo) -> Self {
        let info = BdevInfo {
            volatile_write_cache: false,
            deallocate: !info.read_only,
            deallocate_zeroes: !info.read_only,
            reads_in_place: true,
            copies: !info.read_only,
            ..info
        };
        Self { block_count: AtomicU64::new(info.block_count), info }
    }
}

impl Bdev for NullBdev {
    fn info(&self) -> BdevInfo {
        BdevInfo { block_count: self.block_count.load(Ordering::Relaxed), ..self.info.clone() }
    }

    fn open_channel(
        &self,
        _cx: &mut Context<'_>,
        _owner: u16,
    ) -> std::io::Result<Box<dyn Channel>> {
        Ok(Box::new(NullChannel { read_only: self.info.read_only }))
    }

    fn resize(&self, block_count: u64) -> Result<(), BdevError> {
        self.block_count.store(block_count, Ordering::Relaxed);
        Ok(())
    }
}

struct NullChannel {
    read_only: bool,
}

impl Channel for NullChannel {
    fn reads_now(&self) -> bool {
        true
    }

    fn read_now(&mut self, _offset: u64, len: usize) -> Option<Payload> {
        Some(Payload::Zeroes(len))
    }

    fn writes_now(&self) -> bool {
        true
    }

    fn write_now(&mut self, _offset: u64, _data: &[u8]) -> Result<(), BdevError> {
        if self.read_only { Err(BdevError::ReadOnly) } else { Ok(()) }
    }

    fn submit(&mut self, _cx: &mut Context<'_>, request: Request, done: &mut Vec<Done>) {
        let written = if self.read_only { Err(BdevError::ReadOnly) } else { Ok(()) };
        let (result, payload) = match request.op {
            Op::Read { len, buf: None, .. } => (Ok(()), Some(Payload::Zeroes(len))),
            Op::Read { len, buf: Some(mut buf), .. } => {
                buf[..len].fill(0);
                (Ok(()), Some(Payload::Buf(buf, 0..len)))
            }
            Op::Write { data, .. } => {
                let len = data.len();
                (written, Some(Payload::Shared(data, 0..len)))
            }
            Op::Flush => (Ok(()), None),
            Op::WriteZeroes { .. } | Op::Deallocate { .. } | Op::Copy { .. } => (written, None),
            Op::Find { .. }
            | Op::WriteUncorrectable { .. }
            | Op::ReadPages { .. }
            | Op::WritePages { .. } => (Err(BdevError::NotSupported), None),
        };
        done.push(Done { tag: request.tag, result, payload });
    }

    fn handle_completion(
        &mut self,
        _cx: &mut Context<'_>,
        _completion: Completion,
        _done: &mut Vec<Done>,
    ) {
    }

    fn close(&mut self, _cx: &mut Context<'_>) {}
}
