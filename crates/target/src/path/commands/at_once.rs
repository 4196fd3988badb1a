//! Commands that are answered with their header, because their device has the data, or takes them,
//! immediately: they need neither a slot nor a buffer (lab 0046).

use raceline_bdev::{BdevError, OpKind};
use raceline_proto::controller::IoCommand;
use raceline_proto::nvme::opcode::io;
use raceline_proto::nvme::{Cqe, Fuse, Sqe, Status, Transfer};
use raceline_reactor::Context;

use super::Commands;
use super::fused::PendingFuse;
use super::io::job;
use crate::changes::snapshot::DeviceId;
use crate::path::choice::{ReadPath, WritePath};
use crate::path::core::Core;

/// Where a command reads or writes.
struct Place {
    device: DeviceId,
    offset: u64,
    block_size: u64,
}

impl Commands {
    /// Answers a read or a write of an I/O queue if that can be done now, and gives how many bytes of
    /// `rest` belong to it. `rest` is the bytes behind the command's header. `None`: the command is wrong
    /// or unusual, or its device needs a request, so it has to take a slot.
    #[inline(always)]
    pub(super) fn answer_now(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        sqe: &Sqe,
        parsed: &Result<(IoCommand, Transfer), Status>,
        (in_capsule, rest): (u32, &[u8]),
    ) -> Option<usize> {
        let queue = self.io.as_ref()?;
        let unusual = self.out.queue.data_digest()
            || sqe.opc != io::READ && in_capsule == 0
            || self.pending_fuse != PendingFuse::None
            || sqe.fuse() != Fuse::Normal
            || !self.slots.has_room_for(sqe.command_id());
        if unusual {
            return None;
        }
        let Ok((command, transfer)) = *parsed else { return None };
        let (IoCommand::Read { namespace, slba, .. } | IoCommand::Write { namespace, slba, .. }) =
            command
        else {
            return None;
        };
        let devices = &queue.visible.devices;
        let block_size = u64::from(devices.subsystem.namespaces[namespace].block_size);
        let device = devices.devices[namespace];
        let place = Place { device, offset: slba * block_size, block_size };
        if matches!(command, IoCommand::Read { .. }) {
            self.read_at_once(core, sqe, transfer, &place)
        } else {
            self.write_at_once(cx, core, sqe, (command, transfer), &place, rest)
        }
    }

    #[inline(always)]
    fn read_at_once(
        &mut self,
        core: &mut Core,
        sqe: &Sqe,
        transfer: Transfer,
        place: &Place,
    ) -> Option<usize> {
        let len = transfer.len as usize;
        let payload = core.read_now(place.device, place.offset, len)?;
        self.count_read(ReadPath::AtOnce, u64::from(transfer.len));
        let cqe = Cqe { cid: sqe.command_id(), status: Status::SUCCESS, ..Cqe::default() };
        self.out.push_payload(core, cqe, payload, None);
        Some(0)
    }

    /// A write whose data are in its capsule and have all arrived.
    #[inline(always)]
    fn write_at_once(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        sqe: &Sqe,
        (command, transfer): (IoCommand, Transfer),
        place: &Place,
        rest: &[u8],
    ) -> Option<usize> {
        let len = transfer.len as usize;
        if !core.writes_at_once(place.device) {
            return None;
        }
        let data = self.out.queue.take_capsule_data(rest, len)?;
        self.moved = self.moved.saturating_add(len);
        self.out.counters.copied_bytes.add(len as u64);
        if let Err(error) = core.write_at_once(place.device, place.offset, data) {
            self.write_failed(cx, core, sqe, (command, transfer), place, error);
            return Some(len);
        }
        self.count_write(WritePath::AtOnce, len as u64);
        let cqe = Cqe { cid: sqe.command_id(), status: Status::SUCCESS, ..Cqe::default() };
        self.out.push_response(core, cqe);
        Some(len)
    }

    /// Gives the failed command a slot, because the answer and the log entry of a failure need one.
    #[cold]
    fn write_failed(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        sqe: &Sqe,
        (command, transfer): (IoCommand, Transfer),
        place: &Place,
        error: BdevError,
    ) {
        let Ok(taken) = self.slots.take(sqe) else { unreachable!("there was room for it") };
        let slot = self.slots.get(taken.key());
        slot.transfer = transfer;
        slot.job = Some(job(command, place.device, place.block_size));
        slot.measured = core.measure(place.device, cx.now, OpKind::Write, transfer.len.into());
        slot.pending = 1;
        self.part_done(cx, core, taken, Err(error), None);
    }
}
