//! Reservation commands of an I/O queue, and what a reservation does to commands that are under way.
//!
//! A thread changes reservations ([`crate::changes::reserve`]): the new state has to be on stable media and on all
//! cores before the command is answered. A report is answered here.

use raceline_proto::controller::reservation_transfer;
use raceline_proto::nvme::opcode::io;
use raceline_proto::nvme::{Cqe, NamespaceId, Nqn, Status};
use raceline_proto::reservation::{
    Registrant, ReservingHost, parse_report, parse_reservation, put_report,
};
use raceline_reactor::{Context, Payload};

use super::Commands;
use crate::changes::management::{DeviceRequest, NamespaceWish, ReservationRequest};
use crate::changes::snapshot::DeviceId;
use crate::path::core::Core;
use crate::path::slots::{CommandSlot, Phase, Slot};
use crate::records::names::{CommandPlace, SlotKey};

impl Commands {
    /// A reservation command has come: gets it its data or its buffer.
    #[cold]
    pub(super) fn begin_reservation(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        command: CommandSlot,
    ) {
        let Some(queue) = &self.io else { return };
        let limit = queue.visible.devices.subsystem.limits.max_io_bytes;
        let slot = self.slots.get(command.key());
        let checked = queue
            .visible
            .reservations(slot.sqe.namespace_id())
            .and_then(|_| reservation_transfer(&slot.sqe, limit));
        match checked {
            Ok(transfer) => {
                slot.transfer = transfer;
                if let Some(command) = self.begin_transfer(cx, core, command, true) {
                    self.execute_reservation(core, command);
                }
            }
            Err(status) => self.fused_refuse(core, command, status),
        }
    }

    /// A reservation command has its data or its buffer.
    #[cold]
    pub(super) fn execute_reservation(&mut self, core: &mut Core, command: CommandSlot) {
        let Some(queue) = &self.io else { return };
        let slot = self.slots.get(command.key());
        let nsid = slot.sqe.namespace_id();
        if slot.sqe.opc == io::RESERVATION_REPORT {
            return self.report_reservations(core, command);
        }
        let len = slot.transfer.len as usize;
        let data = slot.buf.take();
        let data = data.as_ref().and_then(|buf| buf.get(..len)).unwrap_or_default();
        match parse_reservation(&slot.sqe, data) {
            Ok(wish) => {
                let (nqn, host) = (queue.visible.nqn().clone(), queue.visible.host().clone());
                let wish = NamespaceWish::Reserve(wish);
                self.reserve(core, command, (&nqn, nsid), host, wish);
            }
            Err(status) => self.refuse(core, command, status),
        }
    }

    fn report_reservations(&mut self, core: &mut Core, command: CommandSlot) {
        let Some(queue) = &self.io else { return };
        let slot = self.slots.get(command.key());
        let len = slot.transfer.len as usize;
        let state = queue.visible.reservations(slot.sqe.namespace_id());
        let found = state.and_then(|state| Ok((state, parse_report(&slot.sqe, len)?)));
        let cid = slot.cid();
        match (found, slot.buf.take()) {
            (Ok((state, asked)), Some(mut buf)) => {
                buf[..len].fill(0);
                put_report(&state, &mut buf[..asked]);
                self.slots.release(command);
                let cqe = Cqe { cid, ..Cqe::default() };
                self.out.push_data(core, cqe, Payload::Buf(buf, 0..len));
            }
            (Err(status), _) => self.refuse(core, command, status),
            (Ok(_), None) => self.refuse(core, command, Status::INTERNAL),
        }
    }

    /// Hands a change of reservations or write protection to the thread that makes it. [`Self::reserved`], or the association, gets the
    /// result.
    pub(crate) fn reserve(
        &mut self,
        core: &mut Core,
        command: CommandSlot,
        (nqn, nsid): (&Nqn, NamespaceId),
        host: ReservingHost,
        wish: NamespaceWish,
    ) {
        let slot = command.key();
        let from = CommandPlace { conn: core.place(self.key()), slot };
        self.slots.get(slot).phase = Phase::Device;
        let request = ReservationRequest { nqn: nqn.clone(), nsid, host, wish, from };
        if !core.shared.reserve(DeviceRequest::Namespace(request)) {
            self.refuse(core, command, Status::INTERNAL);
        }
    }

    /// The result of a change of reservations.
    #[cold]
    pub(crate) fn reserved(&mut self, core: &mut Core, slot: SlotKey, result: Result<u32, Status>) {
        let Some(command) = self.slots.resume(slot) else {
            tracing::error!(peer = %self.peer, ?slot, "an answer to a command that is completed");
            return;
        };
        let cid = self.slots.get(slot).cid();
        let status = result.err().unwrap_or(Status::SUCCESS);
        self.finish(core, command, Cqe { cid, status, ..Cqe::default() });
    }

    // ------------------------------------------------------------------ commands under way

    /// A reservation or write protection may forbid commands that have come and have not reached their device.
    #[cold]
    pub(crate) fn check_waiting(&mut self, core: &mut Core) {
        let Some(queue) = &self.io else { return };
        let verdict =
            |device, slot: &Slot| queue.visible.check(device, &slot.sqe, slot.changes_data()).err();
        let waiting = self.slots.active().filter(|(_, slot)| slot.is_recallable());
        let illegal: Vec<(SlotKey, Status)> =
            waiting.filter_map(|(key, slot)| Some((key, verdict(slot.device()?, slot)?))).collect();
        illegal.into_iter().for_each(|(key, status)| self.forbid(core, key, status));
    }

    /// Aborts the commands for a device that have not reached it, if they are those of one of these hosts; counts
    /// those that have.
    #[cold]
    pub(crate) fn abort_preempted(
        &mut self,
        core: &mut Core,
        device: DeviceId,
        hosts: &[Registrant],
    ) -> usize {
        if !self.io.as_ref().is_some_and(|queue| queue.visible.is_of(hosts)) {
            return 0;
        }
        let of_device = self.slots.active().filter(|(_, slot)| slot.device() == Some(device));
        let (waiting, working): (Vec<_>, Vec<_>) =
            of_device.map(|(key, slot)| (key, slot.is_recallable())).partition(|(_, waits)| *waits);
        let status = Status::ABORTED_BY_PREEMPT.dnr();
        waiting.into_iter().for_each(|(key, _)| self.forbid(core, key, status));
        working.len()
    }

    /// Keeps a command from its device: it completes with this status when the data that it waits for have come,
    /// because the host sends them whatever the target says.
    pub(super) fn forbid(&mut self, core: &mut Core, key: SlotKey, status: Status) {
        let Some(command) = self.slots.resume(key) else {
            // The other half of its fused operation has taken it along.
            return;
        };
        let slot = self.slots.get(key);
        if slot.half.is_some() {
            return self.forbid_fused(core, key, status);
        }
        if matches!(slot.phase, Phase::Throttled | Phase::Move) && !slot.in_capsule {
            // The host was not asked for data.
            self.release_throttled(key);
            return self.refuse(core, command, status);
        }
        if slot.status.is_success() {
            slot.status = status;
        }
        // Data that are yet to come find no device.
        slot.job = None;
    }
}
