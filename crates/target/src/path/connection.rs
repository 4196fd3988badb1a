//! One connection: its socket, the controller's end of its queue, its commands' data.

mod ahead;
mod at_once;
mod blocks;
mod send;
mod teardown;

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use raceline_proto::controller::{ConnectRequest, parse_io};
use raceline_proto::nvme::{Cqe, Direction, QueueId, Sqe, Status};
use raceline_proto::tcp::{
    ControllerQueue, ControllerQueueConfig, DataDest, Event, FatalError, Violation,
};
use raceline_reactor::flow::{SocketClass, Traffic, policy};
use raceline_reactor::io::{RecvBuffers, SocketId};
use raceline_reactor::{Context, IoBuf, SendBatch, Token};

use crate::changes::message::{ConnKey, Home};
use crate::path::association::Association;
use crate::path::core::{Core, LocalCommand};
use crate::path::digest::DIGEST_LEN;
use crate::path::fused::PendingFuse;
use crate::path::io_queue::IoQueue;
use crate::path::slots::{NoSlot, Phase, Slots};
use crate::records::counters::QueueCounters;

/// Staging memory of a connection before Connect: one capsule with Connect data fits.
const EARLY_STAGING_BYTES: usize = 2048;
/// Staging memory of an admin queue.
const ADMIN_STAGING_BYTES: usize = 16 << 10;
/// Staging memory of an I/O queue: one receive brings many capsules.
const IO_STAGING_BYTES: usize = 64 << 10;
/// From this number of commands on a queue counts as deep: the data of its large writes come through
/// staging memory (lab 0033).
const DEEP_COMMANDS: usize = 16;
/// Offered while the data of a large write are awaited: a 4 KiB write's capsule, so that the data
/// come into their I/O buffer and are not copied there.
const SMALL_STAGING_BYTES: usize = 4096 + 256;
/// A payload of at least this size is received straight into its I/O buffer; below, one more
/// copy costs less than one more system call.
const DIRECT_MIN_BYTES: u32 = 8 << 10;
/// MAXH2CDATA: data bytes of one H2CData at most.
const MAX_H2C_DATA_BYTES: u32 = 128 << 10;
/// Header bytes that one command's answer needs at most: C2HData with header digest and pad, its
/// data digest, CapsuleResp and R2T with header digest.
const HEADER_BYTES_PER_COMMAND: usize = 128 + 4 + 28 + 28;
/// What the connection is to its controller.
pub(crate) enum Role {
    /// Connect has not come.
    New,
    /// An I/O queue whose Connect the controller's core is looking at.
    Joining(Box<ConnectRequest>, Home),
    /// The admin queue; the controller lives here.
    Admin(Box<Association>),
    /// An I/O queue.
    Io(IoQueue),
}

/// Where in its life the connection is. Only ever moves down this list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// Waits for ICReq.
    Greeting,
    /// Takes commands.
    Open,
    /// Sent TermReq, or got one: waits for the host to close, until the deadline.
    Terminating,
    /// The socket is closed; operations in flight come home.
    Closing,
}

/// Where in-capsule data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Capsule {
    /// Nowhere: its command was refused.
    Discard,
    /// To the command in this slot.
    Slot(u16),
}

/// One connection.
pub(crate) struct Connection {
    pub(crate) key: ConnKey,
    socket: SocketId,
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
    /// The listener that it came by.
    pub(crate) port_id: u16,
    pub(crate) stage: Stage,
    pub(crate) role: Role,
    pub(crate) queue: ControllerQueue,
    pub(crate) slots: Slots,
    pub(crate) capsule: Capsule,
    /// The command whose in-capsule data waits for an I/O buffer: the socket is not read.
    pub(crate) paused: Option<u16>,
    /// A fused operation whose second half has not come.
    pub(crate) pending_fuse: PendingFuse,
    /// Queue entries, and whether the host counts them by SQHD.
    pub(crate) entries: u16,
    pub(crate) flow_control: bool,
    /// The data of a read may say that it has succeeded.
    says_success: bool,
    sqhd: u16,
    pub(crate) counters: Arc<QueueCounters>,
    /// Since when there are commands outstanding.
    busy_since: Option<Instant>,

    staging: Option<IoBuf>,
    staging_bytes: usize,
    unparsed: Range<usize>,
    receiving: bool,
    /// Large writes whose data were asked for and have not all come.
    large_writes: u16,
    /// The slot whose buffer is with the receive in flight.
    direct: Option<u16>,
    /// Bytes moved in this pass, from or to a device or through a digest, and how many may be.
    pub(crate) moved: usize,
    pass_bytes: usize,
    /// The rest of what was received waits for the next pass.
    deferred: bool,

    out: Box<SendBatch>,
    spare: Option<Box<SendBatch>>,
    dirty: bool,

    /// Counts as a socket before Connect.
    pub(crate) early: bool,
    accepted: Instant,
    deadline: Option<Instant>,
    timer_armed: Option<Instant>,
    /// Answers of other cores under way.
    pub(crate) awaiting: usize,
    /// The target is stopping: no new commands, close when those in flight are answered.
    draining: bool,
}

fn new_batch(entries: u16) -> Box<SendBatch> {
    let entries = usize::from(entries);
    SendBatch::new(entries * HEADER_BYTES_PER_COMMAND + 256, entries * 3 + 4)
}

impl Connection {
    pub(crate) fn new(
        key: ConnKey,
        socket: SocketId,
        peer: SocketAddr,
        local: SocketAddr,
        port_id: u16,
        core: &Core,
        now: Instant,
    ) -> Self {
        let config = &core.shared.config;
        Self {
            key,
            socket,
            peer,
            local,
            port_id,
            stage: Stage::Greeting,
            role: Role::New,
            queue: ControllerQueue::new(ControllerQueueConfig {
                max_h2c_data: MAX_H2C_DATA_BYTES,
                in_capsule_bytes: config.in_capsule_bytes,
                max_r2t_slots: config.max_queue_entries.max(config.max_admin_entries),
                allow_hdgst: true,
                allow_ddgst: true,
            }),
            slots: Slots::new(1),
            capsule: Capsule::Discard,
            paused: None,
            pending_fuse: PendingFuse::None,
            entries: 1,
            flow_control: true,
            says_success: false,
            sqhd: 0,
            counters: Arc::default(),
            busy_since: None,
            staging: Some(IoBuf::heap(EARLY_STAGING_BYTES)),
            staging_bytes: EARLY_STAGING_BYTES,
            unparsed: 0..0,
            receiving: false,
            large_writes: 0,
            direct: None,
            moved: 0,
            pass_bytes: config.pass_bytes as usize,
            deferred: false,
            out: new_batch(1),
            spare: Some(new_batch(1)),
            dirty: false,
            early: true,
            accepted: now,
            deadline: Some(now + config.pre_connect.ic_req),
            timer_armed: None,
            awaiting: 0,
            draining: false,
        }
    }

    pub(crate) fn token(&self) -> Token {
        Token { owner: 0, generation: self.key.generation, index: self.key.index }
    }

    pub(crate) fn command(&self, slot: u16) -> LocalCommand {
        LocalCommand { key: self.key, slot }
    }

    /// The queue is connected: as many slots and as much memory as it needs. Without flow control, the data
    /// of a read may say that it has succeeded (NVMe/TCP 3.6.2.7); `says_success`: they do.
    pub(crate) fn set_queue(
        &mut self,
        qid: QueueId,
        entries: u16,
        flow_control: bool,
        says_success: bool,
    ) {
        let staging = if qid.is_admin() { ADMIN_STAGING_BYTES } else { IO_STAGING_BYTES };
        self.queue.set_queue_kind(qid.is_admin());
        self.entries = entries;
        self.flow_control = flow_control;
        self.says_success = says_success && !flow_control;
        self.slots = Slots::new(entries);
        self.staging_bytes = staging;
        // A batch in use stays as it is: it grows.
        if self.out.is_empty() {
            self.out = new_batch(entries);
        }
        if let Some(spare) = &mut self.spare {
            *spare = new_batch(entries);
        }
    }

    // -------------------------------------------------------------------------- receive

    /// Starts a receive if none is in flight and the connection wants bytes.
    pub(crate) fn start_recv(&mut self, cx: &mut Context<'_>) {
        if self.receiving || self.paused.is_some() || self.draining || self.stage == Stage::Closing
        {
            return;
        }
        let Some(mut staging) = self.staging.take() else { return };
        if staging.len() < self.staging_bytes {
            staging = IoBuf::heap(self.staging_bytes);
            if self.staging_bytes == IO_STAGING_BYTES {
                let class = SocketClass {
                    traffic: Traffic::Responses,
                    share: self.pass_bytes,
                    core_staging: policy::TURN_BYTES,
                    by_reference: false,
                };
                cx.io.declare(self.socket, class);
            }
        }
        let payload = self.direct_payload();
        let small = self.large_writes > 0 && !self.blocks_are_coming();
        let len = if small { SMALL_STAGING_BYTES } else { IO_STAGING_BYTES };
        let staging_range = 0..staging.len().min(len);
        self.receiving = true;
        let buffers = RecvBuffers { payload, staging, staging_range };
        cx.io.recv(self.socket, buffers, self.token());
    }

    /// The buffer of a large payload in progress, with the range that has not come.
    fn direct_payload(&mut self) -> Option<(IoBuf, Range<usize>)> {
        if self.stage != Stage::Open {
            return None;
        }
        let wanted = self.queue.payload_wanted()?;
        if wanted.len < DIRECT_MIN_BYTES {
            return None;
        }
        let slot = self.data_slot(wanted.dest)?;
        let command = self.slots.get(slot);
        let buf = command.buf.take_if(|_| !command.by_blocks)?;
        self.direct = Some(slot);
        let start = wanted.offset as usize;
        Some((buf, start..start + (wanted.len as usize).min(self.pass_bytes)))
    }

    fn data_slot(&self, dest: DataDest) -> Option<u16> {
        match (dest, self.capsule) {
            (DataDest::Slot(slot), _) | (DataDest::Capsule, Capsule::Slot(slot)) => Some(slot),
            (DataDest::Capsule, Capsule::Discard) => None,
        }
    }

    /// A receive has finished.
    pub(crate) fn handle_received(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        result: std::io::Result<usize>,
        buffers: RecvBuffers,
    ) {
        self.receiving = false;
        self.staging = Some(buffers.staging);
        let mut direct_len = 0;
        if let (Some(slot), Some((buf, range))) = (self.direct.take(), buffers.payload) {
            direct_len = range.len();
            self.slots.get(slot).buf = Some(buf);
        }
        let len = match result {
            Ok(0) => return self.close(cx, core, "the host closed it"),
            Ok(len) => len,
            Err(error) => {
                tracing::debug!(peer = %self.peer, %error, "receive failed");
                return self.close(cx, core, "receiving failed");
            }
        };
        if self.stage >= Stage::Terminating {
            return self.start_recv(cx);
        }
        self.counters.receives.add(1);
        let direct = len.min(direct_len);
        if direct > 0 {
            self.queue.payload_received(direct);
        }
        let start = buffers.staging_range.start;
        self.unparsed = start..start + (len - direct);
        self.moved = 0;
        self.parse(cx, core);
    }

    /// Goes on with what the last pass has left.
    pub(crate) fn resume(&mut self, cx: &mut Context<'_>, core: &mut Core) {
        self.deferred = false;
        self.moved = 0;
        self.parse(cx, core);
    }

    /// Takes in what has come, until the bytes, the buffers or the connection's share of the core
    /// run out.
    pub(crate) fn parse(&mut self, cx: &mut Context<'_>, core: &mut Core) {
        let Some(staging) = self.staging.take() else { return };
        let end = self.unparsed.end;
        let mut input = &staging[self.unparsed.clone()];
        let mut unseen = input.len();
        while self.paused.is_none() && !self.draining && self.stage < Stage::Terminating {
            let pass_over = self.moved >= self.pass_bytes && !input.is_empty();
            // Between PDUs only: a write that goes to the device at once is checked with its header.
            if pass_over && self.queue.payload_wanted().is_none() {
                // A host that asks for a lot at once must not keep its neighbours waiting.
                if !std::mem::replace(&mut self.deferred, true) {
                    core.deferred.push(self.key);
                }
                break;
            }
            if !input.is_empty() && input.len() <= unseen {
                unseen = self.look_ahead(core, input);
            }
            match self.queue.receive(&mut input) {
                Ok(Some(event)) => {
                    let taken = self.handle_event(cx, core, event, input);
                    input = &input[taken..];
                }
                Ok(None) => break,
                Err(error) => self.fatal(cx, core, &error),
            }
        }
        self.unparsed = end - input.len()..end;
        self.staging = Some(staging);
        if self.stage >= Stage::Terminating {
            self.unparsed = 0..0;
        }
        if self.unparsed.is_empty() {
            self.start_recv(cx);
        }
    }

    /// Gives how many bytes of `rest`, which is behind the event, belong to it.
    fn handle_event(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        event: Event<'_>,
        rest: &[u8],
    ) -> usize {
        // A PDU of data is counted when it ends; data in a capsule belong to the capsule.
        let is_part =
            matches!(event, Event::Data { .. } | Event::DataEnd { dest: DataDest::Capsule, .. });
        self.counters.pdus_received.add(u64::from(!is_part));
        match event {
            Event::Connected(_) => {
                core.digests |= self.queue.data_digest();
                self.stage = Stage::Open;
                self.deadline = Some(self.accepted + core.shared.config.pre_connect.connect);
                self.push_pdu(core, ControllerQueue::ic_resp);
            }
            Event::Command { sqe, in_capsule } => {
                self.counters.commands.add(1);
                self.advance_head();
                self.busy_since.get_or_insert(cx.now);
                if let Role::Io(queue) = &self.role {
                    let subsystem = &queue.seen.devices.subsystem;
                    let parsed = parse_io(&sqe, &subsystem.namespaces, &subsystem.limits);
                    let taken = self.answer_now(cx, core, &sqe, &parsed, in_capsule, rest);
                    if let Some(taken) = taken {
                        return taken;
                    }
                    if let Some(slot) = self.take_slot(cx, core, &sqe, in_capsule) {
                        self.handle_io_command(cx, core, slot, parsed, rest);
                    }
                } else if let Some(slot) = self.take_slot(cx, core, &sqe, in_capsule) {
                    self.handle_command(cx, core, slot);
                }
            }
            Event::Data { dest, offset, bytes } => {
                if let Some(slot) = self.data_slot(dest) {
                    self.handle_data(cx, core, slot, offset, bytes, rest);
                }
            }
            Event::DataEnd { dest, offset, len, ddgst, transfer_done } => {
                if let Some(slot) = self.data_slot(dest) {
                    let start = offset as usize;
                    let bytes = start..start + len as usize;
                    // A command whose data come in one PDU, as they usually do.
                    let all = transfer_done && offset == 0;
                    if ddgst.is_some() {
                        self.moved = self.moved.saturating_add(len as usize);
                    }
                    let waits =
                        ddgst.is_some_and(|ddgst| self.check_data(cx, slot, bytes, ddgst, all));
                    if transfer_done && std::mem::take(&mut self.slots.get(slot).lands_direct) {
                        self.large_writes -= 1;
                    }
                    if transfer_done && !waits {
                        self.data_complete(cx, core, slot);
                    }
                }
                if dest == DataDest::Capsule {
                    self.capsule = Capsule::Discard;
                }
            }
            Event::Terminated(info) => {
                let (fes, fei) = (info.fes, info.fei);
                tracing::warn!(peer = %self.peer, ?fes, fei, "the host sent H2CTermReq");
                self.close(cx, core, "the host sent H2CTermReq");
            }
        }
        0
    }

    /// Payload in the staging buffer, `rest` behind it: to the device if that takes it from here,
    /// else to the command's I/O buffer.
    fn handle_data(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        index: u16,
        offset: u32,
        bytes: &[u8],
        rest: &[u8],
    ) {
        self.counters.copied_bytes.add(bytes.len() as u64);
        let digest = self.queue.data_digest();
        let ddgst = if digest { self.queue.data_digest_ahead(rest) } else { None };
        let available = bytes.len() + if ddgst.is_some() { DIGEST_LEN } else { 0 };
        let direct = self.slots.get(index).direct;
        if direct || offset == 0 && self.writes_now(cx, core, index, available) {
            let good = ddgst.is_none_or(|ddgst| {
                self.slots.get(index).checked = true;
                let found = cx.io.accelerator().crc32c_now(bytes);
                self.judge_data(index, found.ok(), ddgst)
            });
            if good {
                self.moved = self.moved.saturating_add(bytes.len());
                self.write_now(core, index, cx.now, bytes);
            }
            return;
        }
        if self.slots.get(index).by_blocks {
            return self.write_blocks(core, index, cx.now, offset as usize, bytes);
        }
        if let Some(buf) = &mut self.slots.get(index).buf {
            let start = offset as usize;
            buf[start..start + bytes.len()].copy_from_slice(bytes);
        }
    }

    fn advance_head(&mut self) {
        self.sqhd = if self.sqhd + 1 >= self.entries { 0 } else { self.sqhd + 1 };
    }

    /// A slot for a command that has come, with its data if it has any in its capsule. `None`: the host
    /// may not send it now, and has been told.
    fn take_slot(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        sqe: &Sqe,
        in_capsule: u32,
    ) -> Option<u16> {
        let slot = match self.slots.take(sqe) {
            Ok(slot) => slot,
            Err(NoSlot::Duplicate) => self.resolve_conflict(core, sqe)?,
            Err(NoSlot::Overrun) => {
                self.fatal(cx, core, &FatalError::new(Violation::QueueOverrun));
                return None;
            }
        };
        self.slots.get(slot).in_capsule = in_capsule > 0;
        self.capsule = if in_capsule > 0 { Capsule::Slot(slot) } else { Capsule::Discard };
        Some(slot)
    }

    /// A command of a queue that is no I/O queue.
    fn handle_command(&mut self, cx: &mut Context<'_>, core: &mut Core, slot: u16) {
        match &self.role {
            Role::New => self.handle_early_command(cx, core, slot),
            Role::Joining(..) => self.refuse(core, slot, Status::COMMAND_SEQUENCE_ERROR.dnr()),
            Role::Admin(_) => self.handle_admin_command(cx, core, slot),
            Role::Io(_) => {}
        }
    }

    /// The command has the identifier of one that is outstanding: an error, unless that is an
    /// event request. A host that is about to go may have forgotten its requests, and looks for
    /// the answer to its last commands.
    #[cold]
    fn resolve_conflict(&mut self, core: &mut Core, sqe: &Sqe) -> Option<u16> {
        let cid = sqe.command_id();
        if self.forget_event_request(cid)
            && let Ok(slot) = self.slots.take(sqe)
        {
            return Some(slot);
        }
        self.capsule = Capsule::Discard;
        let status = Status::CID_CONFLICT.dnr();
        self.push_response(core, Cqe { cid, status, ..Cqe::default() });
        None
    }

    /// All data of a command have come.
    pub(crate) fn data_complete(&mut self, cx: &mut Context<'_>, core: &mut Core, slot: u16) {
        let command = self.slots.get(slot);
        if let Some(result) = command.written.take() {
            command.pending = 1;
            return self.part_done(cx, core, slot, result, None);
        }
        if command.corrupt {
            return self.refuse_corrupt(core, slot);
        }
        self.execute(cx, core, slot);
    }

    /// Everything the command needs is here.
    pub(crate) fn execute(&mut self, cx: &mut Context<'_>, core: &mut Core, slot: u16) {
        match &self.role {
            Role::New => self.execute_connect(cx, core, slot),
            Role::Joining(..) => {}
            Role::Admin(_) => self.execute_admin(cx, core, slot),
            Role::Io(_) => self.execute_io(cx, core, slot),
        }
    }

    // ------------------------------------------------------------------------- buffers

    /// Gets the command what it needs to go on: an I/O buffer, the host's data. Waits its turn
    /// if there is no buffer.
    pub(crate) fn begin_transfer(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        slot: u16,
        buffer: bool,
    ) {
        if !buffer {
            return self.execute(cx, core, slot);
        }
        let command = self.command(slot);
        let transfer = self.slots.get(slot).transfer;
        if self.queue.data_digest() && !transfer.len.is_multiple_of(4) {
            // Implementations differ on the digest of a part of a dword; hosts do not need it.
            return self.refuse(core, slot, Status::DATA_SGL_LENGTH_INVALID.dnr());
        }
        let len = transfer.len as usize;
        // First come, first served: a newcomer does not overtake those who wait for such a buffer.
        let pooled = self.take_buffer(cx, len, core.buffer_lines.open_to(cx.pool, len));
        let in_capsule = self.slots.get(slot).in_capsule;
        let fused = self.slots.get(slot).partner.is_some();
        // But who holds a buffer must not wait for another, nor keep its own data from coming.
        match pooled {
            None if fused || in_capsule && self.owed_data() => {
                self.give_buffer(cx, core, slot, IoBuf::heap(len));
            }
            Some(buf) => self.give_buffer(cx, core, slot, buf),
            None => {
                self.counters.buffer_waits.add(1);
                if len <= cx.pool.class_size(0) {
                    self.counters.small_buffer_waits.add(1);
                }
                self.slots.get(slot).phase = Phase::Buffer;
                if in_capsule {
                    self.paused = Some(slot);
                }
                core.buffer_lines.join(cx.pool, len, command);
            }
        }
    }

    /// A buffer of the core's, of one of these sizes, counted by its kind.
    pub(crate) fn take_buffer(
        &self,
        cx: &Context<'_>,
        len: usize,
        sizes: Range<usize>,
    ) -> Option<IoBuf> {
        let buf = cx.pool.take_of(len, sizes)?;
        let is_small = buf.capacity() <= cx.pool.class_size(0);
        let QueueCounters { small_buffers, large_buffers, .. } = &*self.counters;
        (if is_small { small_buffers } else { large_buffers }).add(1);
        Some(buf)
    }

    /// A second buffer for a command, which must not wait for it.
    pub(crate) fn take_buffer_or_heap(&self, cx: &Context<'_>, len: usize) -> IoBuf {
        let all = 0..cx.pool.class_count();
        self.take_buffer(cx, len, all).unwrap_or_else(|| IoBuf::heap(len))
    }

    /// The command's I/O buffer is here.
    pub(crate) fn give_buffer(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        index: u16,
        buf: IoBuf,
    ) {
        let deep = self.slots.in_use() >= DEEP_COMMANDS;
        let slot = self.slots.get(index);
        slot.buf = Some(buf);
        let (cid, len) = (slot.cid, slot.transfer.len);
        match slot.transfer.direction {
            Direction::HostToController => {
                slot.phase = Phase::Data;
                if slot.in_capsule {
                    if self.paused.take_if(|paused| *paused == index).is_some() {
                        self.parse(cx, core);
                    }
                } else {
                    let by_blocks = self.goes_by_blocks(cx, core, index);
                    let slot = self.slots.get(index);
                    // Of much data under digests most comes whole into staging memory, and some
                    // devices take it from there.
                    let from_staging = by_blocks
                        || deep
                            && len <= MAX_H2C_DATA_BYTES
                            && slot.device.is_some_and(|id| core.writes_now(id));
                    slot.by_blocks = by_blocks;
                    slot.lands_direct = slot.is_large_write() && !from_staging;
                    self.large_writes += u16::from(slot.lands_direct);
                    self.push_pdu(core, |queue, out| queue.r2t(index, cid, 0, len, out));
                    self.unpause(cx, core);
                }
            }
            Direction::ControllerToHost | Direction::None => self.execute(cx, core, index),
        }
    }

    /// Whether commands hold buffers for data, or for the other half of a fused operation, that
    /// will come on this socket.
    fn owed_data(&mut self) -> bool {
        self.slots.active().any(|(_, slot)| {
            slot.phase == Phase::Data && !slot.in_capsule
                || slot.phase == Phase::Fuse && !slot.lock_asked
        })
    }

    /// Data that were just asked for are behind the capsule that waits for a buffer: it gets one
    /// that is not from the pool, for what holds the pool's buffers may be waiting for those data.
    fn unpause(&mut self, cx: &mut Context<'_>, core: &mut Core) {
        let Some(slot) = self.paused else { return };
        let command = self.command(slot);
        core.buffer_lines.retain(|waiter| waiter != command);
        let len = self.slots.get(slot).transfer.len as usize;
        self.give_buffer(cx, core, slot, IoBuf::heap(len));
    }
}
