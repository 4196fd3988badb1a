//! The commands of one connection: what they wait for, what they work on, how they end.
//!
//! Nothing here knows the socket, or how bytes are received. The folder holds the code for commands
//! of I/O queues; admin commands are in `path/association.rs`.

mod abort;
mod ahead;
mod at_once;
mod authentication;
mod blocks;
mod copy;
mod data;
mod digest;
mod fused;
mod io;
mod lba_status;
mod moving;
mod reservation;
mod throttled;

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use raceline_proto::controller::ErrorEntry;
use raceline_proto::nvme::{Cqe, Direction, Sqe, Status};
use raceline_reactor::{Context, IoBuf};

use crate::changes::message::Message;
use crate::path::authentication::Authentication;
use crate::path::core::Core;
use crate::path::outbox::Outbox;
use crate::path::shares::ShareId;
use crate::path::slots::{CommandSlot, Job, NoSlot, Phase, Slot, Slots};
use crate::records::counters::QueueCounters;
use crate::records::names::{CommandPlace, ConnKey, LocalCommand, SlotKey};

use fused::PendingFuse;

pub(crate) use crate::path::traveller::IoQueue;
pub(crate) use data::DataEnd;
pub(crate) use throttled::THROTTLE_BIT;
use throttled::Throttled;

/// The commands of one connection.
pub(crate) struct Commands {
    key: ConnKey,
    peer: SocketAddr,
    pub(crate) slots: Slots,
    pub(crate) out: Outbox,
    /// Of an I/O queue that is connected.
    pub(crate) io: Option<IoQueue>,
    /// Of a host that has to authenticate. No command of an authenticated I/O queue looks at it.
    pub(crate) auth: Option<Box<Authentication>>,
    /// The command that gets the in-capsule data that arrive next. `None`: it was refused.
    capsule: Option<SlotKey>,
    /// The command whose in-capsule data waits for an I/O buffer: the socket is not read.
    paused: Option<SlotKey>,
    /// A fused operation whose second half has not come.
    pending_fuse: PendingFuse,
    /// Commands that wait because of limits.
    throttled: Throttled,
    /// Large writes whose data were asked for and have not all come.
    large_writes: u16,
    /// Bytes moved in this pass, from or to a device or through a digest.
    pub(crate) moved: usize,
    /// What the host was served since its part of the core was charged.
    pub(crate) served: usize,
    /// The part of the core of its host, while any host has a weight.
    pub(crate) share: Option<ShareId>,
    /// The connection is about to move: writes wait for that before the host is asked for their data.
    holding: bool,
    /// Since when at least one command is outstanding.
    busy_since: Option<Instant>,
}

impl Commands {
    pub(crate) fn new(key: ConnKey, peer: SocketAddr, core: &Core) -> Self {
        Self {
            key,
            peer,
            slots: Slots::new(1),
            out: Outbox::new(key, core),
            io: None,
            auth: None,
            capsule: None,
            paused: None,
            pending_fuse: PendingFuse::None,
            throttled: Throttled::default(),
            large_writes: 0,
            moved: 0,
            served: 0,
            share: None,
            holding: false,
            busy_since: None,
        }
    }

    #[inline]
    pub(crate) fn counters(&self) -> &Arc<QueueCounters> {
        &self.out.counters
    }

    /// The connection.
    pub(crate) fn key(&self) -> ConnKey {
        self.key
    }

    #[inline]
    fn local(&self, slot: SlotKey) -> LocalCommand {
        LocalCommand { key: self.key, slot }
    }

    // --------------------------------------------------------------------- coming and going

    /// A command has come.
    #[inline]
    pub(crate) fn note_arrival(&mut self, now: Instant) {
        self.out.counters.commands.add(1);
        self.out.advance_head();
        self.busy_since.get_or_insert(now);
    }

    /// A slot for a command that has come, with its data if it has any in its capsule.
    #[inline]
    pub(crate) fn take(&mut self, sqe: &Sqe, in_capsule: u32) -> Result<CommandSlot, NoSlot> {
        let command = self.slots.take(sqe)?;
        self.slots.get(command.key()).in_capsule = in_capsule > 0;
        self.capsule = (in_capsule > 0).then(|| command.key());
        Ok(command)
    }

    /// A command has the identifier of one that is outstanding.
    #[cold]
    pub(crate) fn refuse_duplicate(&mut self, core: &mut Core, sqe: &Sqe) {
        self.capsule = None;
        let status = Status::CID_CONFLICT.dnr();
        self.out.push_response(core, Cqe { cid: sqe.command_id(), status, ..Cqe::default() });
    }

    /// Completes a command with a status only.
    pub(crate) fn refuse(&mut self, core: &mut Core, command: CommandSlot, status: Status) {
        let cid = self.slots.get(command.key()).cid();
        self.finish(core, command, Cqe { cid, status, ..Cqe::default() });
    }

    /// Completes a command that sends no data.
    #[inline]
    pub(crate) fn finish(&mut self, core: &mut Core, command: CommandSlot, cqe: Cqe) {
        let key = command.key();
        if !cqe.status.is_success() {
            self.out.counters.errors.add(1);
            self.log_failure(core, key, cqe.status);
        }
        if self.capsule == Some(key) {
            // Its data may not all have arrived.
            self.capsule = None;
        }
        self.slots.release(command);
        if !self.out.is_muted() {
            self.out.push_response(core, cqe);
        }
    }

    /// Counts a failed command, and puts one for I/O into the controller's error log; the controller records failed
    /// admin commands itself.
    fn log_failure(&mut self, core: &Core, key: SlotKey, status: Status) {
        core.shared.statuses.add_one(status);
        let Some(io) = &self.io else { return };
        let slot = self.slots.get(key);
        let lba = slot.job.as_ref().map_or(0, |job| job.bytes.start / job.block_size);
        let (cid, nsid) = (slot.cid(), slot.sqe.namespace_id());
        let entry = ErrorEntry { sqid: io.qid, cid, status, nsid, lba };
        let home = io.home.place;
        core.send(home.core, Message::CommandFailed { home: home.key, entry });
    }

    /// Frees the slots of commands that wait for something that no longer comes: the connection
    /// closes.
    pub(crate) fn drop_waiting(&mut self, core: &mut Core) {
        self.paused = None;
        self.drop_throttled();
        let waits = |phase: Phase| {
            matches!(
                phase,
                Phase::Buffer
                    | Phase::Throttled
                    | Phase::Move
                    | Phase::Data
                    | Phase::Event
                    | Phase::Partner
            )
        };
        let active = self.slots.active().filter(|(_, slot)| waits(slot.phase));
        let waiting: Vec<SlotKey> = active.map(|(key, _)| key).collect();
        for key in waiting {
            self.abandon(key);
        }
        core.buffer_lines.retain(|waiter| waiter.key != self.key);
    }

    /// The connection is closed: has the writes that it has left at devices come before all later writes to the same
    /// bytes, of every connection. The lock of a range is granted when no write is under way there, and given back at
    /// once. The lock of a fused operation does the same.
    pub(crate) fn fence_writes(&self, core: &Core) {
        let left =
            |slot: &Slot| slot.phase == Phase::Device && slot.changes_data() && slot.half.is_none();
        for (key, slot) in self.slots.active().filter(|(_, slot)| left(slot)) {
            let Some(Job { device, bytes, .. }) = &slot.job else { continue };
            let who = CommandPlace { conn: core.place(self.key), slot: key };
            let warden = device.warden(core.shared.cores());
            let (device, bytes) = (*device, bytes.clone());
            core.send(warden, Message::FenceRange { device, bytes, who });
        }
    }

    /// Frees the slot of a command without an answer.
    pub(crate) fn abandon(&mut self, key: SlotKey) {
        if let Some(command) = self.slots.resume(key) {
            self.slots.release(command);
        }
    }

    /// Whether no command is with a device or an engine, nor waits for another command or a lock.
    pub(crate) fn are_drained(&self) -> bool {
        let works = |phase: Phase| {
            !matches!(
                phase,
                Phase::Free
                    | Phase::Buffer
                    | Phase::Throttled
                    | Phase::Move
                    | Phase::Data
                    | Phase::Event
            )
        };
        !self.slots.active().any(|(_, slot)| works(slot.phase))
    }

    /// When no command is outstanding any more, counts the time during which one was.
    #[inline]
    pub(crate) fn count_busy(&mut self, now: Instant) {
        if self.slots.in_use() == 0
            && let Some(since) = self.busy_since.take()
        {
            let busy = now.saturating_duration_since(since).as_micros();
            self.out.counters.busy_us.add(u64::try_from(busy).unwrap_or(u64::MAX));
        }
    }

    // ------------------------------------------------------------------------------ buffers

    /// Whether the connection stops reading its socket, because the next data have no buffer.
    #[inline]
    pub(crate) fn are_paused(&self) -> bool {
        self.paused.is_some()
    }

    /// The next data are to be dropped.
    pub(crate) fn forget_pause(&mut self) {
        self.paused = None;
    }

    /// Gets the command the I/O buffer and the host's data that it needs. The command waits in line
    /// if there is no buffer. Gives the command back when it can be executed.
    #[inline]
    pub(crate) fn begin_transfer(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        command: CommandSlot,
        buffer: bool,
    ) -> Option<CommandSlot> {
        if !buffer {
            return Some(command);
        }
        let key = command.key();
        let slot = self.slots.get(key);
        let (transfer, in_capsule) = (slot.transfer, slot.in_capsule);
        let has_partner = slot.half.is_some_and(|half| half.partner.is_some());
        if self.out.queue.data_digest() && !transfer.len.is_multiple_of(4) {
            // Implementations differ on the digest of a partial dword; hosts do not need it.
            self.refuse(core, command, Status::DATA_SGL_LENGTH_INVALID.dnr());
            return None;
        }
        let len = transfer.len as usize;
        if self.holding && self.hold(key) {
            return None;
        }
        // A new command does not overtake those that wait for such a buffer.
        let pooled = self.take_buffer(cx, len, core.buffer_lines.open_to(cx.pool, len));
        // But a command that holds a buffer must not wait for another, nor block its own data.
        match pooled {
            None if has_partner || in_capsule && self.are_owed_data() => {
                self.give_buffer(cx, core, command, IoBuf::heap(len))
            }
            Some(buf) => self.give_buffer(cx, core, command, buf),
            None => {
                self.out.counters.buffer_waits.add(1);
                if len <= cx.pool.class_size(0) {
                    self.out.counters.small_buffer_waits.add(1);
                }
                self.slots.get(key).phase = Phase::Buffer;
                if in_capsule {
                    self.paused = Some(key);
                }
                core.buffer_lines.join(cx.pool, len, (self.local(key), self.share));
                None
            }
        }
    }

    /// One of the core's buffers, of one of these sizes, counted by its kind.
    #[inline]
    fn take_buffer(&self, cx: &Context<'_>, len: usize, sizes: Range<usize>) -> Option<IoBuf> {
        let buf = cx.pool.take_of(len, sizes)?;
        let is_small = buf.capacity() <= cx.pool.class_size(0);
        let QueueCounters { small_buffers, large_buffers, .. } = &*self.out.counters;
        (if is_small { small_buffers } else { large_buffers }).add(1);
        Some(buf)
    }

    /// A second buffer for a command that already holds one, and so must not wait.
    fn take_buffer_or_heap(&self, cx: &Context<'_>, len: usize) -> IoBuf {
        let all = 0..cx.pool.class_count();
        self.take_buffer(cx, len, all).unwrap_or_else(|| IoBuf::heap(len))
    }

    /// The command heads its line, and a buffer is there for it. Gives the command back when it can
    /// be executed.
    pub(crate) fn serve(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        key: SlotKey,
        sizes: Range<usize>,
    ) -> Option<CommandSlot> {
        let command = self.slots.resume(key)?;
        let slot = self.slots.get(key);
        if slot.phase != Phase::Buffer {
            return None;
        }
        let len = slot.transfer.len as usize;
        let buf = self.take_buffer(cx, len, sizes);
        let buf = buf.expect("the line is served because there is a buffer");
        self.give_buffer(cx, core, command, buf)
    }

    /// The command's I/O buffer is here. Gives the command back when it can be executed.
    #[inline]
    pub(crate) fn give_buffer(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        command: CommandSlot,
        buf: IoBuf,
    ) -> Option<CommandSlot> {
        let key = command.key();
        let slot = self.slots.get(key);
        slot.buf = Some(buf);
        match slot.transfer.direction {
            Direction::HostToController => {
                slot.phase = Phase::Data;
                if slot.in_capsule {
                    self.paused.take_if(|paused| *paused == key);
                } else {
                    self.ask_for_data(cx, core, key);
                    self.unpause(cx, core);
                }
                None
            }
            Direction::ControllerToHost | Direction::None => Some(command),
        }
    }

    /// Whether commands that hold buffers wait for data, or for the other half of a fused operation, on
    /// this socket.
    fn are_owed_data(&self) -> bool {
        self.slots.active().any(|(_, slot)| {
            slot.phase == Phase::Data && !slot.in_capsule || slot.phase == Phase::Partner
        })
    }

    /// The data that the host was just asked for are behind the capsule that waits for a buffer. The capsule
    /// gets memory outside the pool, since the holders of the pool's buffers may wait for those data.
    fn unpause(&mut self, cx: &mut Context<'_>, core: &mut Core) {
        let Some(command) = self.paused.and_then(|key| self.slots.resume(key)) else { return };
        self.release_throttled(command.key());
        let waiting = self.local(command.key());
        core.buffer_lines.retain(|waiter| waiter != waiting);
        let len = self.slots.get(command.key()).transfer.len as usize;
        let executable = self.give_buffer(cx, core, command, IoBuf::heap(len));
        debug_assert_eq!(executable, None, "its data have yet to come");
    }
}
