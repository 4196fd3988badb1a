//! One connection: its socket, the controller's end of its queue, receive and send.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use raceline_proto::controller::ConnectRequest;
use raceline_proto::nvme::{Cqe, Direction, Fuse, QueueId, Status};
use raceline_proto::tcp::{
    ControllerQueue, ControllerQueueConfig, DataDest, Event, FatalError, Violation,
};
use raceline_reactor::io::{RecvBuffers, SocketId};
use raceline_reactor::{Context, IoBuf, Payload, SendBatch, Token};

use crate::association::Association;
use crate::config::TargetConfig;
use crate::core::{Core, LocalCommand};
use crate::counters::QueueCounters;
use crate::fused::PendingFuse;
use crate::io_queue::IoQueue;
use crate::message::{ConnKey, Home};
use crate::slots::{NoSlot, Phase, Slots};

/// Staging memory of a connection before Connect: one capsule with Connect data fits.
const EARLY_STAGING_BYTES: usize = 2048;
/// Staging memory of an admin queue.
const ADMIN_STAGING_BYTES: usize = 16 << 10;
/// Staging memory of an I/O queue: one receive brings many capsules.
const IO_STAGING_BYTES: usize = 64 << 10;
/// A payload of at least this size is received straight into its I/O buffer; below, one more
/// copy costs less than one more system call.
const DIRECT_MIN_BYTES: u32 = 8 << 10;
/// MAXH2CDATA: data bytes of one H2CData at most.
const MAX_H2C_DATA_BYTES: u32 = 128 << 10;
/// Header bytes that one command's answer needs at most: C2HData with header digest and pad, its
/// data digest, CapsuleResp and R2T with header digest.
const HEADER_BYTES_PER_COMMAND: usize = 128 + 4 + 28 + 28;
/// How long a host may take to close after our TermReq (NVMe/TCP 1.0, 3.5), once connected.
const TERMINATE_TIMEOUT: Duration = Duration::from_secs(30);
/// The same before Connect: half-dead sockets of strangers are to go sooner.
const EARLY_TERMINATE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long commands in flight may take when the target stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

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
    sqhd: u16,
    pub(crate) counters: Arc<QueueCounters>,
    /// Since when there are commands outstanding.
    busy_since: Option<Instant>,

    staging: Option<IoBuf>,
    staging_bytes: usize,
    unparsed: Range<usize>,
    receiving: bool,
    /// The slot whose buffer is with the receive in flight.
    direct: Option<u16>,

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
        core: &Core,
        now: Instant,
    ) -> Self {
        let config = &core.shared.config;
        Self {
            key,
            socket,
            peer,
            local,
            stage: Stage::Greeting,
            role: Role::New,
            queue: ControllerQueue::new(ControllerQueueConfig {
                max_h2c_data: MAX_H2C_DATA_BYTES,
                in_capsule_bytes: config.in_capsule_bytes,
                max_r2t_slots: config.max_queue_entries.max(TargetConfig::MAX_ADMIN_ENTRIES),
                allow_hdgst: true,
                allow_ddgst: true,
            }),
            slots: Slots::new(1),
            capsule: Capsule::Discard,
            paused: None,
            pending_fuse: PendingFuse::None,
            entries: 1,
            flow_control: true,
            sqhd: 0,
            counters: Arc::default(),
            busy_since: None,
            staging: Some(IoBuf::heap(EARLY_STAGING_BYTES)),
            staging_bytes: EARLY_STAGING_BYTES,
            unparsed: 0..0,
            receiving: false,
            direct: None,
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

    /// The queue is connected: as many slots and as much memory as it needs.
    pub(crate) fn set_queue(&mut self, qid: QueueId, entries: u16, flow_control: bool) {
        let staging = if qid.is_admin() { ADMIN_STAGING_BYTES } else { IO_STAGING_BYTES };
        self.queue.set_queue_kind(qid.is_admin());
        self.entries = entries;
        self.flow_control = flow_control;
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
        }
        let payload = self.direct_payload();
        let staging_range = 0..staging.len();
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
        let buf = self.slots.get(slot).buf.take()?;
        self.direct = Some(slot);
        let start = wanted.offset as usize;
        Some((buf, start..start + wanted.len as usize))
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
        self.parse(cx, core);
    }

    /// Takes in what has come, until the bytes or the buffers run out.
    pub(crate) fn parse(&mut self, cx: &mut Context<'_>, core: &mut Core) {
        let Some(staging) = self.staging.take() else { return };
        let end = self.unparsed.end;
        let mut input = &staging[self.unparsed.clone()];
        while self.paused.is_none() && !self.draining && self.stage < Stage::Terminating {
            match self.queue.receive(&mut input) {
                Ok(Some(event)) => self.handle_event(cx, core, event),
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

    fn handle_event(&mut self, cx: &mut Context<'_>, core: &mut Core, event: Event<'_>) {
        match event {
            Event::Connected(_) => {
                self.stage = Stage::Open;
                self.deadline = Some(self.accepted + core.shared.config.pre_connect.connect);
                core.scratch.clear();
                self.queue.ic_resp(&mut core.scratch);
                self.push_scratch(core);
            }
            Event::Command { sqe, in_capsule } => {
                self.counters.commands.add(1);
                self.advance_head();
                self.busy_since.get_or_insert(cx.now);
                match self.slots.take(&sqe) {
                    Ok(slot) => self.handle_command(cx, core, slot, in_capsule),
                    Err(NoSlot::Duplicate) => {
                        self.capsule = Capsule::Discard;
                        let cid = sqe.command_id();
                        self.push_response(
                            core,
                            Cqe { cid, status: Status::CID_CONFLICT.dnr(), ..Cqe::default() },
                        );
                    }
                    Err(NoSlot::Overrun) => {
                        self.fatal(cx, core, &FatalError::new(Violation::QueueOverrun));
                    }
                }
            }
            Event::Data { dest, offset, bytes } => {
                if let Some(slot) = self.data_slot(dest)
                    && let Some(buf) = &mut self.slots.get(slot).buf
                {
                    let start = offset as usize;
                    buf[start..start + bytes.len()].copy_from_slice(bytes);
                }
            }
            Event::DataEnd { dest, offset, len, ddgst, transfer_done } => {
                if let Some(slot) = self.data_slot(dest) {
                    self.check_digest(slot, offset, len, ddgst);
                    if transfer_done {
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
    }

    fn advance_head(&mut self) {
        self.sqhd = if self.sqhd + 1 >= self.entries { 0 } else { self.sqhd + 1 };
    }

    /// Compares a data digest; a command with a bad one must not touch its device.
    fn check_digest(&mut self, slot: u16, offset: u32, len: u32, ddgst: Option<u32>) {
        let Some(ddgst) = ddgst else { return };
        let slot = self.slots.get(slot);
        let Some(buf) = &slot.buf else { return };
        let start = offset as usize;
        if raceline_accel::crc32c(&buf[start..start + len as usize]) != ddgst {
            slot.corrupt = true;
            self.counters.digest_errors.add(1);
            tracing::warn!(peer = %self.peer, cid = slot.cid.0, "data digest mismatch: command fails with Transient Transport Error");
        }
    }

    fn handle_command(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        slot: u16,
        in_capsule: u32,
    ) {
        self.slots.get(slot).in_capsule = in_capsule > 0;
        self.capsule = if in_capsule > 0 { Capsule::Slot(slot) } else { Capsule::Discard };
        match &self.role {
            Role::New => self.handle_early_command(cx, core, slot),
            Role::Joining(..) => self.refuse(core, slot, Status::COMMAND_SEQUENCE_ERROR.dnr()),
            Role::Admin(_) => self.handle_admin_command(cx, core, slot),
            Role::Io(_) => self.handle_io_command(cx, core, slot),
        }
    }

    /// All data of a command have come.
    fn data_complete(&mut self, cx: &mut Context<'_>, core: &mut Core, slot: u16) {
        let command = self.slots.get(slot);
        if command.corrupt {
            let status = Status::TRANSIENT_TRANSPORT_ERROR;
            let fused = command.sqe.fuse() != Fuse::Normal && command.status.is_success();
            // The other half of a fused operation goes with it, unless it has gone before.
            return if fused {
                self.fused_refuse(core, slot, status)
            } else {
                self.refuse(core, slot, status)
            };
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
        // First come, first served: a newcomer does not overtake those who wait.
        let pooled = if core.buffer_waiters.is_empty() { cx.pool.take(len) } else { None };
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
                self.slots.get(slot).phase = Phase::Buffer;
                if in_capsule {
                    self.paused = Some(slot);
                }
                core.buffer_waiters.push_back(command);
            }
        }
    }

    /// The command's I/O buffer is here.
    pub(crate) fn give_buffer(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        index: u16,
        buf: IoBuf,
    ) {
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
                    core.scratch.clear();
                    self.queue.r2t(index, cid, 0, len, &mut core.scratch);
                    self.push_scratch(core);
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
        core.buffer_waiters.retain(|waiter| *waiter != command);
        let len = self.slots.get(slot).transfer.len as usize;
        self.give_buffer(cx, core, slot, IoBuf::heap(len));
    }

    // ---------------------------------------------------------------------------- send

    /// Sends what is ready, if no send is in flight: one vectored call.
    pub(crate) fn flush(&mut self, cx: &mut Context<'_>) {
        self.dirty = false;
        if self.slots.in_use() == 0
            && let Some(since) = self.busy_since.take()
        {
            let busy = cx.now.saturating_duration_since(since).as_micros();
            self.counters.busy_us.add(u64::try_from(busy).unwrap_or(u64::MAX));
        }
        if self.out.is_empty() || self.stage == Stage::Closing {
            return;
        }
        if let Some(mut batch) = self.spare.take() {
            std::mem::swap(&mut self.out, &mut batch);
            self.counters.sends.add(1);
            cx.io.send(self.socket, batch, self.token());
        }
    }

    /// A send has finished.
    pub(crate) fn handle_sent(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        result: std::io::Result<()>,
        mut batch: Box<SendBatch>,
    ) {
        batch.clear();
        self.spare = Some(batch);
        match result {
            Ok(()) if !self.out.is_empty() => self.mark_dirty(core),
            Ok(()) => {}
            Err(error) => {
                tracing::debug!(peer = %self.peer, %error, "send failed");
                self.close(cx, core, "sending failed");
            }
        }
    }

    fn mark_dirty(&mut self, core: &mut Core) {
        if !self.dirty {
            self.dirty = true;
            core.dirty.push(self.key);
        }
    }

    /// Adds the PDU in `core.scratch` to what is to be sent.
    pub(crate) fn push_scratch(&mut self, core: &mut Core) {
        self.out.push_bytes(&core.scratch);
        self.mark_dirty(core);
    }

    /// Adds a response capsule.
    pub(crate) fn push_response(&mut self, core: &mut Core, cqe: Cqe) {
        // SQHD is reserved once flow control is off (Fabrics 1.1, 2.4.2).
        let sqhd = if self.flow_control { self.sqhd } else { 0 };
        core.scratch.clear();
        self.queue.response(&Cqe { sqhd, ..cqe }, &mut core.scratch);
        self.push_scratch(core);
    }

    /// Adds the answer to a successful Connect: SQHD is FFFFh if flow control is off (Fabrics
    /// 1.1, 3.3).
    pub(crate) fn push_connect_response(&mut self, core: &mut Core, cqe: Cqe) {
        self.advance_head();
        let sqhd = if self.flow_control { self.sqhd } else { u16::MAX };
        core.scratch.clear();
        self.queue.response(&Cqe { sqhd, ..cqe }, &mut core.scratch);
        self.push_scratch(core);
    }

    /// Adds the data of a successful command, and its response unless C2HData says it all.
    pub(crate) fn push_data(&mut self, core: &mut Core, cqe: Cqe, payload: Payload) {
        let len = u32::try_from(payload.len()).expect("transfers are at most MDTS");
        let all_said = !self.flow_control && cqe.dw0 == 0 && cqe.dw1 == 0;
        core.scratch.clear();
        self.queue.c2h_data(cqe.cid, 0, len, true, all_said, &mut core.scratch);
        self.out.push_bytes(&core.scratch);
        if self.queue.data_digest() {
            let payload = settle(payload);
            let digest = digest(&payload);
            self.out.push_payload(payload);
            self.out.push_bytes(&digest.to_le_bytes());
        } else {
            self.out.push_payload(payload);
        }
        if all_said {
            self.mark_dirty(core);
        } else {
            self.push_response(core, cqe);
        }
    }

    /// Completes a command with a status only.
    pub(crate) fn refuse(&mut self, core: &mut Core, slot: u16, status: Status) {
        let cid = self.slots.get(slot).cid;
        self.finish(core, slot, Cqe { cid, status, ..Cqe::default() });
    }

    /// Completes a command that sends no data.
    pub(crate) fn finish(&mut self, core: &mut Core, index: u16, cqe: Cqe) {
        if !cqe.status.is_success() {
            self.counters.errors.add(1);
            self.log_failure(core, index, cqe.status);
        }
        if self.capsule == Capsule::Slot(index) {
            // Its data may still be coming in.
            self.capsule = Capsule::Discard;
        }
        self.slots.release(index);
        if self.stage < Stage::Terminating {
            self.push_response(core, cqe);
        }
    }

    // ------------------------------------------------------------------------ deadlines

    /// The next time the connection wants to be called, whatever for.
    fn next_timeout(&self) -> Option<Instant> {
        let controller = match &self.role {
            Role::Admin(association) => association.next_timeout(),
            _ => None,
        };
        [self.deadline, controller].into_iter().flatten().min()
    }

    /// Makes sure that a timer is running for the next deadline.
    pub(crate) fn arm_timer(&mut self, cx: &mut Context<'_>) {
        if self.stage == Stage::Closing {
            return;
        }
        let Some(at) = self.next_timeout() else { return };
        if self.timer_armed.is_none_or(|armed| at < armed) {
            self.timer_armed = Some(at);
            cx.io.timer(at, self.token());
        }
    }

    /// A timer has expired; maybe one that matters no more.
    pub(crate) fn handle_timer(&mut self, cx: &mut Context<'_>, core: &mut Core) {
        self.timer_armed = None;
        if self.deadline.is_some_and(|deadline| deadline <= cx.now) {
            self.deadline = None;
            let why = match self.stage {
                _ if self.draining => "commands in flight did not finish in time",
                Stage::Greeting => "no ICReq in time",
                Stage::Open => "no Connect in time",
                Stage::Terminating | Stage::Closing => "the host did not close after TermReq",
            };
            self.close(cx, core, why);
        }
        if matches!(self.role, Role::Admin(_)) {
            self.handle_controller_timeout(cx, core);
        }
        self.arm_timer(cx);
    }

    /// Connect has completed: the deadline and the caps for strangers end.
    pub(crate) fn admitted(&mut self, core: &Core) {
        self.deadline = None;
        self.leave_early(core);
    }

    fn leave_early(&mut self, core: &Core) {
        if std::mem::take(&mut self.early) {
            core.shared.leave(self.peer.ip());
        }
    }

    // ------------------------------------------------------------------------- the end

    /// The host broke the protocol: says so in a TermReq and waits for it to close.
    pub(crate) fn fatal(&mut self, cx: &mut Context<'_>, core: &mut Core, error: &FatalError) {
        tracing::warn!(peer = %self.peer, %error, "the host broke the protocol; sending C2HTermReq");
        core.scratch.clear();
        self.queue.term_req(error, &mut core.scratch);
        self.push_scratch(core);
        self.stage = Stage::Terminating;
        let wait = if self.early { EARLY_TERMINATE_TIMEOUT } else { TERMINATE_TIMEOUT };
        self.deadline = Some(cx.now + wait);
        self.paused = None;
        self.arm_timer(cx);
    }

    /// The target is stopping: takes no new commands.
    pub(crate) fn drain(&mut self, cx: &mut Context<'_>) {
        self.draining = true;
        self.deadline = Some(cx.now + DRAIN_TIMEOUT);
        self.arm_timer(cx);
    }

    /// Whether the connection is draining and all commands that reached a device are answered.
    pub(crate) fn is_drained(&mut self) -> bool {
        self.draining
            && self.stage < Stage::Closing
            && self.out.is_empty()
            && self.spare.is_some()
            && self.has_no_queues()
            && !self
                .slots
                .active()
                .any(|(_, slot)| matches!(slot.phase, Phase::Device | Phase::Fuse | Phase::Fence))
    }

    /// Closes the socket. The connection itself goes when its operations have come home.
    pub(crate) fn close(&mut self, cx: &mut Context<'_>, core: &mut Core, why: &str) {
        if self.stage == Stage::Closing {
            return;
        }
        tracing::debug!(peer = %self.peer, why, "closing connection");
        self.stage = Stage::Closing;
        self.deadline = None;
        self.paused = None;
        cx.io.close(self.socket, false);
        self.out.clear();
        self.leave_early(core);
        self.drop_waiting_commands(core);
        self.close_association(core);
    }

    /// Frees the slots of commands that wait for something that will not come any more.
    fn drop_waiting_commands(&mut self, core: &mut Core) {
        let waiting: Vec<u16> = self
            .slots
            .active()
            .filter(|(_, slot)| {
                matches!(slot.phase, Phase::Buffer | Phase::Data | Phase::Event)
                    || (slot.phase == Phase::Fuse && !slot.lock_asked)
            })
            .map(|(index, _)| index)
            .collect();
        for index in waiting {
            self.slots.release(index);
        }
        core.buffer_waiters.retain(|waiter| waiter.key != self.key);
    }

    /// A fence over the command's range is down: on it goes, or away with its connection.
    pub(crate) fn fence_lowered(&mut self, cx: &mut Context<'_>, core: &mut Core, slot: u16) {
        if self.stage == Stage::Closing {
            self.slots.release(slot);
        } else {
            self.execute(cx, core, slot);
        }
    }

    /// Whether nothing of the connection is in flight any more, so that it can go.
    pub(crate) fn is_gone(&self) -> bool {
        self.stage == Stage::Closing
            && !self.receiving
            && self.spare.is_some()
            && self.slots.in_use() == 0
            && self.awaiting == 0
            && self.has_no_queues()
    }

    /// Whether no I/O queue depends on the connection.
    fn has_no_queues(&self) -> bool {
        match &self.role {
            Role::Admin(association) => association.is_quiet(),
            _ => true,
        }
    }
}

/// Memory that cannot change between digest and send: what is not in an I/O buffer is copied.
fn settle(payload: Payload) -> Payload {
    match payload {
        Payload::Buf(..) | Payload::Shared(..) => payload,
        other => {
            let mut copy = IoBuf::heap(other.len());
            other.copy_to(&mut copy);
            let len = copy.len();
            Payload::Buf(copy, 0..len)
        }
    }
}

fn digest(payload: &Payload) -> u32 {
    match payload {
        Payload::Buf(buf, range) => raceline_accel::crc32c(&buf[range.clone()]),
        Payload::Shared(buf, range) => raceline_accel::crc32c(&buf[range.clone()]),
        Payload::Region(..) | Payload::Zeroes(_) => unreachable!("settled before"),
    }
}
