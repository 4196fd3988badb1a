//! The devices behind namespaces of a pool: a part of the pool's device, and a stand-in while the
//! part is formatted.

use std::io;
use std::sync::Arc;

use raceline_bdev::{
    Bdev, BdevError, BdevInfo, Channel, DeviceStats, Done, Op, PartBdev, Request, SharedBdev,
};
use raceline_proto::nvme::Status;
use raceline_reactor::{Completion, Context, Payload};

use crate::changes::pool_map::{PoolMap, PoolNamespace};

/// A part of the pool's device, with blocks of its own size.
pub(crate) struct CarvedBdev {
    part: PartBdev,
    block_size: u32,
    block_count: u64,
    uuid: [u8; 16],
}

impl CarvedBdev {
    /// The part of a namespace whose map has been checked against the device.
    pub(crate) fn open(
        base: &SharedBdev,
        map: &PoolMap,
        namespace: &PoolNamespace,
    ) -> Option<SharedBdev> {
        let blocks_per_unit = map.unit_bytes / u64::from(base.info().block_size);
        let units = &namespace.units;
        let first = units.start * blocks_per_unit;
        let count = (units.end - units.start) * blocks_per_unit;
        Some(Arc::new(Self {
            part: PartBdev::new(Arc::clone(base), first, count)?,
            block_size: namespace.block_size,
            block_count: namespace.block_count,
            uuid: namespace.uuid,
        }))
    }
}

impl Bdev for CarvedBdev {
    fn info(&self) -> BdevInfo {
        let info = self.part.info();
        BdevInfo {
            block_size: self.block_size,
            block_count: self.block_count,
            physical_block_size: info.physical_block_size.max(self.block_size),
            uuid: self.uuid,
            ..info
        }
    }

    fn open_channel(&self, cx: &mut Context<'_>, owner: u16) -> io::Result<Box<dyn Channel>> {
        self.part.open_channel(cx, owner)
    }

    fn write_fault(&self) -> bool {
        self.part.write_fault()
    }

    fn reset_write_fault(&self) {
        self.part.reset_write_fault();
    }

    fn stats(&self) -> Option<&Arc<DeviceStats>> {
        self.part.stats()
    }

    fn wrapper_levels(&self) -> u32 {
        self.part.wrapper_levels()
    }
}

/// Stands in for a device that is being formatted: every command fails with Format In Progress
/// (Base 2.0, 5.14).
pub(crate) struct BusyBdev {
    info: BdevInfo,
}

impl BusyBdev {
    /// A stand-in for this device.
    pub(crate) fn instead_of(device: &SharedBdev) -> SharedBdev {
        let info = device.info();
        Arc::new(Self { info: BdevInfo { reads_in_place: false, copies_data: false, ..info } })
    }
}

impl Bdev for BusyBdev {
    fn info(&self) -> BdevInfo {
        self.info.clone()
    }

    fn open_channel(&self, _cx: &mut Context<'_>, _owner: u16) -> io::Result<Box<dyn Channel>> {
        Ok(Box::new(BusyChannel))
    }
}

struct BusyChannel;

impl Channel for BusyChannel {
    fn submit(&mut self, _cx: &mut Context<'_>, request: Request, done: &mut Vec<Done>) {
        let payload = match request.op {
            Op::Read { buf, len, .. } => buf.map(|buf| Payload::Buf(buf, 0..len)),
            Op::Write { data, .. } => {
                let len = data.len();
                Some(Payload::Shared(data, 0..len))
            }
            Op::Flush
            | Op::ReadPages { .. }
            | Op::WritePages { .. }
            | Op::WriteZeroes { .. }
            | Op::Deallocate { .. }
            | Op::Copy { .. }
            | Op::Find { .. }
            | Op::WriteUncorrectable { .. } => None,
        };
        let status = Status::FORMAT_IN_PROGRESS;
        let error = BdevError::Status { sct: status.sct(), sc: status.sc() };
        done.push(Done { tag: request.tag, result: Err(error), payload });
    }

    fn handle_completion(
        &mut self,
        _cx: &mut Context<'_>,
        _completion: Completion,
        _done: &mut Vec<Done>,
    ) {
        debug_assert!(false, "it starts no operation");
    }

    fn close(&mut self, _cx: &mut Context<'_>) {}
}
