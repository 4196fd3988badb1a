//! One iSCSI connection, which is its session: its socket, and how it handles the events that the protocol decodes.

mod commands;
mod copy;
mod data;
mod login;
mod manage;
mod share;
mod steps;
mod teardown;
mod throttled;

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use raceline_bdev::Done;
use raceline_crc32c::Crc32c;
use raceline_iscsi::target::{Event, TargetConfig as ProtocolConfig, TaskId};
use raceline_reactor::flow::Departure;
use raceline_reactor::flow::policy;
use raceline_reactor::io::{RecvBuffers, SocketId};
use raceline_reactor::{Context, IoBuf, SendBatch, Token};

pub(crate) use self::steps::STEP_BYTES;
use super::outbox::Outbox;
use super::session::Session;
use super::slots::Slots;
use crate::changes::snapshot::DeviceId;
use crate::path::choice::{
    EARLY_STAGING_BYTES, departure, pass_is_over, receives_direct, socket_class, staging_bytes,
};
use crate::path::core::Core;
use crate::path::shares::ShareId;
use crate::records::counters::SessionCounters;
use crate::records::early::Ticket;
use crate::records::names::{ConnKey, Ends, ISCSI_OWNER, LocalCommand, Place, SlotKey};

use manage::Management;
use throttled::Throttled;

/// The state of a connection's life. Only ever moves down this list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LifeState {
    /// Before the last Login Response.
    Login,
    /// Takes commands.
    Open,
    /// The last answer is on its way or there: waits for the initiator to close.
    Ending,
    /// The socket is closed; operations in flight finish.
    Closing,
}

/// One connection.
pub(crate) struct Connection {
    key: ConnKey,
    socket: SocketId,
    ends: Ends,
    state: LifeState,
    /// Counts as an early socket.
    early: Option<Ticket>,
    /// Counts among the connections of its source that are known.
    admitted: bool,
    /// The target is stopping, or the initiator has logged out: no new commands.
    draining: bool,
    /// The initiator has been asked to log out, as another process takes over.
    asked: bool,
    deadline: Option<Instant>,
    timer_armed: Option<Instant>,
    /// When bytes came last.
    heard: Instant,
    /// A ping is out since then.
    pinged: Option<Instant>,
    out: Outbox,
    /// `None` while a receive is in flight.
    staging: Option<IoBuf>,
    staging_bytes: usize,
    /// The received bytes of the staging memory that have not been parsed.
    unparsed: Range<usize>,
    /// The command whose buffer is with the receive in flight.
    direct: Option<SlotKey>,
    /// It is among those that wait for the next pass.
    deferred: bool,
    /// So much waits to be sent that it has stopped taking input.
    stalled: bool,
    pass_bytes: usize,
    departure: Departure,
    slots: Slots,
    throttled: Throttled,
    /// From the initiator's name on.
    session: Option<Box<Session>>,
    /// The command whose data come next and have no buffer: the socket is not read.
    paused: Option<SlotKey>,
    /// CRC32C of the data of the PDU that is coming, where data digests are on.
    crc: Crc32c,
    /// Bytes moved in this pass.
    moved: usize,
    /// Task management functions that wait for commands to end.
    managing: Vec<Management>,
    next_management: u32,
    /// The session takes the place of an older one of the same nexus.
    reinstates: bool,
    /// Who begins the session anew, and waits for this connection to be gone.
    successors: Vec<Place>,
    /// The initiator's part of the I/O buffers, while any host has a weight.
    share: Option<ShareId>,
    /// What the session has done.
    counters: Arc<SessionCounters>,
}

impl Connection {
    pub(crate) fn new(
        cx: &mut Context<'_>,
        core: &Core,
        key: ConnKey,
        (socket, ends, ticket): (SocketId, Ends, Ticket),
    ) -> Self {
        let config = &core.shared.config;
        let settings = &core.snapshot.iscsi.settings;
        let protocol = ProtocolConfig {
            max_recv_data_segment_len: settings.max_data_segment_bytes,
            max_burst_len: settings.max_burst_bytes,
            first_burst_len: settings.first_burst_bytes,
            immediate_data: settings.immediate_data,
            initial_r2t: settings.initial_r2t,
            time2wait_s: settings.time2wait_seconds,
            ..ProtocolConfig::default()
        };
        let mut connection = Self {
            key,
            socket,
            ends,
            state: LifeState::Login,
            early: Some(ticket),
            admitted: false,
            draining: false,
            asked: false,
            deadline: Some(cx.now + settings.login_timeout),
            timer_armed: None,
            heard: cx.now,
            pinged: None,
            out: Outbox::new(key, protocol),
            staging: Some(IoBuf::heap(EARLY_STAGING_BYTES)),
            staging_bytes: EARLY_STAGING_BYTES,
            unparsed: 0..0,
            direct: None,
            deferred: false,
            stalled: false,
            pass_bytes: config.pass_bytes as usize,
            departure: departure(config, ends.local.ip(), ends.peer.ip()),
            slots: Slots::default(),
            throttled: Throttled::default(),
            session: None,
            paused: None,
            crc: Crc32c::new(),
            moved: 0,
            reinstates: false,
            managing: Vec::new(),
            next_management: 0,
            successors: Vec::new(),
            share: None,
            counters: Arc::default(),
        };
        connection.arm_timer(cx);
        connection.start_recv(cx);
        connection
    }

    fn token(&self) -> Token {
        Token { owner: ISCSI_OWNER, generation: self.key.generation, index: self.key.index }
    }

    #[inline]
    fn local(&self, slot: SlotKey) -> LocalCommand {
        LocalCommand { key: self.key, slot }
    }

    /// Counts the writes within the range that are at their device now.
    pub(crate) fn changing(&self, device: DeviceId, bytes: &Range<u64>) -> usize {
        self.slots.changing(device, bytes)
    }

    // -------------------------------------------------------------------------- receive

    /// The login is complete: sets the memory for receiving, from the next receive on.
    fn use_large_staging(&mut self) {
        self.staging_bytes = staging_bytes(false);
    }

    /// Starts a receive if none is in flight and the connection wants bytes.
    fn start_recv(&mut self, cx: &mut Context<'_>) {
        let unwanted = self.paused.is_some()
            || self.draining
            || self.state == LifeState::Closing
            || self.out.is_full();
        if unwanted {
            self.stalled |= self.out.is_full();
            return;
        }
        let Some(mut staging) = self.staging.take() else { return };
        if staging.len() < self.staging_bytes {
            staging = IoBuf::sparse(self.staging_bytes);
            if let Some(class) = socket_class(self.staging_bytes, self.pass_bytes, self.departure) {
                cx.io.declare(self.socket, class);
            }
        }
        let payload = self.direct_payload();
        let window = if payload.is_some() { policy::SMALL_STAGING_BYTES } else { staging.len() };
        let staging_range = 0..staging.len().min(window);
        cx.io.recv(self.socket, RecvBuffers { payload, staging, staging_range }, self.token());
    }

    /// The buffer of a large payload in progress, with the range that has not arrived.
    #[inline]
    fn direct_payload(&mut self) -> Option<(IoBuf, Range<usize>)> {
        if self.state != LifeState::Open {
            return None;
        }
        let wanted = self.out.proto.payload_wanted()?;
        if !receives_direct(wanted.len) {
            return None;
        }
        let key = self.slots.of(wanted.dest)?;
        let start = wanted.offset as usize;
        // Data beyond what the command takes go to the staging memory, and are dropped.
        let buf = self.slots.get(key)?.buf.take_if(|buf| start < buf.len())?;
        let end = (start + (wanted.len as usize).min(self.pass_bytes)).min(buf.len());
        self.direct = Some(key);
        Some((buf, start..end))
    }

    /// A receive has finished.
    pub(crate) fn handle_received(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        result: std::io::Result<usize>,
        buffers: RecvBuffers,
    ) {
        self.staging = Some(buffers.staging);
        let start = buffers.staging_range.start;
        let mut direct_len = 0;
        if let (Some(key), Some((buf, range))) = (self.direct.take(), buffers.payload) {
            direct_len = range.len();
            let received = result.as_ref().map_or(0, |len| range.len().min(*len));
            self.return_buffer(key, (buf, range.start..range.start + received));
        }
        let len = match result {
            Ok(0) => return self.close(cx, core, "the initiator closed it"),
            Ok(len) => len,
            Err(error) => {
                tracing::debug!(peer = %self.ends.peer, %error, "receive failed");
                return self.close(cx, core, "receiving failed");
            }
        };
        if self.state >= LifeState::Ending {
            return self.start_recv(cx);
        }
        self.heard = cx.now;
        let direct = len.min(direct_len);
        if direct > 0 {
            self.out.proto.payload_received(direct);
        }
        self.unparsed = start..start + (len - direct);
        self.moved = 0;
        self.parse(cx, core);
    }

    /// Goes on with the bytes that the last pass has left.
    pub(crate) fn resume(&mut self, cx: &mut Context<'_>, core: &mut Core) {
        self.deferred = false;
        self.moved = 0;
        self.parse(cx, core);
    }

    /// Handles received bytes, until the bytes, the buffers or the connection's share of the core run out.
    fn parse(&mut self, cx: &mut Context<'_>, core: &mut Core) {
        let Some(staging) = self.staging.take() else {
            // A receive is in flight; the protocol may have something to say without its bytes.
            self.parse_input(cx, core, &mut &[][..]);
            return;
        };
        let end = self.unparsed.end;
        let mut input = &staging[self.unparsed.clone()];
        self.parse_input(cx, core, &mut input);
        let left = if self.state < LifeState::Ending { input.len() } else { 0 };
        self.unparsed = end - left..end;
        self.staging = Some(staging);
        // With bytes left, the protocol waits for a decision, a buffer, or the next pass.
        if left == 0 {
            self.start_recv(cx);
        }
    }

    /// The rest of the input waits for the next pass.
    fn defer(&mut self, core: &mut Core) {
        if !std::mem::replace(&mut self.deferred, true) {
            core.iscsi.deferred.push(self.key);
        }
    }

    fn parse_input(&mut self, cx: &mut Context<'_>, core: &mut Core, input: &mut &[u8]) {
        while self.paused.is_none() && !self.draining && self.state < LifeState::Ending {
            if self.out.is_full() {
                self.stalled = true;
                break;
            }
            // Between PDUs only: data that go to a device at once were checked with their header.
            if pass_is_over(self.moved, self.pass_bytes)
                && !input.is_empty()
                && self.out.proto.at_header()
            {
                // An initiator with many requests at once must not keep its neighbours waiting.
                self.defer(core);
                break;
            }
            if !self.out.proto.takes_data() {
                // A task that has ended amid the data of a PDU leaves the sum of those that came.
                self.crc = Crc32c::new();
            }
            match self.out.proto.receive(input) {
                Ok(Some(event)) => {
                    let taken = self.handle_event(cx, core, event, input);
                    *input = &input[taken..];
                }
                Ok(None) => break,
                Err(error) => self.fatal(cx, core, &error),
            }
        }
    }

    /// Handles an event. Gives how many bytes of `rest`, which is behind the event, belong to it.
    #[inline]
    fn handle_event(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        event: Event<'_>,
        rest: &[u8],
    ) -> usize {
        match event {
            Event::Command { task, command, immediate, unsolicited } => {
                return self.take_command(
                    cx,
                    core,
                    (task, &command),
                    (immediate, unsolicited),
                    rest,
                );
            }
            Event::Data { task, offset, bytes } => {
                self.take_data(task, offset as usize, bytes);
            }
            Event::DataEnd { task, offset, len, digest, sequence_end } => {
                let bytes = offset as usize..(offset + len) as usize;
                self.end_data(cx, core, (task, bytes), digest.as_ref(), sequence_end);
            }
            event => self.handle_rare_event(cx, core, &event),
        }
        0
    }

    #[cold]
    fn handle_rare_event(&mut self, cx: &mut Context<'_>, core: &mut Core, event: &Event<'_>) {
        match *event {
            Event::Answer => {
                self.out.push_answer(core);
                self.look_at_phase(cx, core);
            }
            Event::Login => self.admit_login(core),
            Event::Credentials => self.give_credentials(core),
            Event::Establish => self.establish(core),
            Event::SendTargets => self.send_targets(core),
            Event::DataFault { task, fault } => self.data_fault(core, task, fault),
            Event::TaskManagement { task, request } => self.manage(core, task, &request),
            Event::Logout(reason) => self.log_out(cx, core, reason),
            Event::Pong => self.pinged = None,
            Event::Command { .. } | Event::Data { .. } | Event::DataEnd { .. } => {}
        }
    }

    // ------------------------------------------------------------------------------ send

    /// Sends what is ready, if no send is in flight.
    #[inline]
    pub(crate) fn flush(&mut self, cx: &mut Context<'_>) {
        if self.state != LifeState::Closing {
            let token = self.token();
            self.out.flush(cx, self.socket, token);
        }
    }

    /// A send has finished.
    pub(crate) fn handle_sent(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        result: std::io::Result<()>,
        batch: Box<SendBatch>,
    ) {
        let goes_on = self.out.take_back(batch);
        if let Err(error) = result {
            tracing::debug!(peer = %self.ends.peer, %error, "send failed");
            return self.close(cx, core, "sending failed");
        }
        if goes_on {
            self.out.mark_dirty(core);
        } else if self.state == LifeState::Ending && self.is_refused() {
            return self.close(cx, core, "the login was refused");
        }
        if self.stalled && !self.out.is_full() {
            self.stalled = false;
            self.parse(cx, core);
        }
    }

    // ------------------------------------------------------------------------- commands

    /// A device request of a command has finished. Gives whether the command was waiting for that.
    #[must_use]
    pub(crate) fn handle_done(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        slot: SlotKey,
        done: Done,
    ) -> bool {
        let waited = self.slots.get(slot).is_some_and(|slot| slot.pending > 0);
        if waited {
            self.part_done(cx, core, slot, done.result, done.payload);
        }
        waited
    }

    /// The protocol's name of a command, whose slot is in use.
    fn task(&self, key: SlotKey) -> TaskId {
        self.slots.task(key).expect("a command that has not ended has its task")
    }
}
