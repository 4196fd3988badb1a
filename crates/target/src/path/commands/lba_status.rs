//! Get LBA Status: an admin command that asks a device.

use raceline_bdev::{Op, Sought, found_parts};
use raceline_proto::controller::{LbaState, LbaStatusQuery};
use raceline_proto::nvme::{Cqe, Status};
use raceline_reactor::{Context, IoBuf, Payload};

use super::Commands;
use crate::changes::snapshot::SubsystemDevices;
use crate::path::core::Core;
use crate::path::slots::{CommandSlot, Extra, Phase};

impl Commands {
    /// Asks the device of the namespace. `reply` is for the answer.
    pub(crate) fn begin_lba_status(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        command: CommandSlot,
        query: LbaStatusQuery,
        (subsystem, reply): (Option<&SubsystemDevices>, Option<IoBuf>),
    ) {
        let found = subsystem.and_then(|subsystem| {
            let namespaces = &subsystem.subsystem.namespaces;
            let place = namespaces.iter().position(|namespace| namespace.nsid == query.nsid)?;
            let device = *subsystem.devices.get(place)?;
            Some((device, u64::from(namespaces.get(place)?.block_size)))
        });
        let found = found.filter(|(device, _)| core.device(*device).is_some());
        let (Some((device, block_size)), Some(reply)) = (found, reply) else {
            return self.refuse(core, command, Status::INVALID_NAMESPACE.dnr());
        };
        let sought = match query.state {
            LbaState::Allocated => Sought::Data,
            LbaState::Unreadable => Sought::Uncorrectable,
        };
        let offset = query.blocks.start * block_size;
        let len = (query.blocks.end - query.blocks.start) * block_size;
        let op = Op::Find { sought, offset, len, most: query.most };
        let tag = self.local(command.key()).tag();
        let slot = self.slots.get(command.key());
        (slot.phase, slot.pending) = (Phase::Device, 1);
        slot.buf = Some(reply);
        slot.extra = Some(Box::new(Extra::LbaStatus { query, block_size }));
        core.submit(cx, device, tag, op);
    }

    /// The device has answered.
    #[cold]
    pub(super) fn lba_status_found(
        &mut self,
        core: &mut Core,
        command: CommandSlot,
        payload: Option<&Payload>,
    ) {
        let slot = self.slots.get(command.key());
        let (cid, status) = (slot.cid(), slot.status);
        let (Some(extra), Some(mut reply)) = (slot.extra.take(), slot.buf.take()) else { return };
        let Extra::LbaStatus { query, block_size } = *extra else { return };
        if self.out.is_muted() || !status.is_success() {
            return self.refuse(core, command, status);
        }
        let parts = found_parts(payload).into_iter();
        // A part of a block is a block.
        let blocks = parts.map(|part| part.start / block_size..part.end.div_ceil(block_size));
        query.put(&blocks.collect::<Vec<_>>(), &mut reply);
        let len = reply.len();
        self.slots.release(command);
        let cqe = Cqe { cid, ..Cqe::default() };
        self.out.push_data(core, cqe, Payload::Buf(reply, 0..len));
    }
}
