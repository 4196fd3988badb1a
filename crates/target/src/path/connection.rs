//! One connection: its socket, and how it handles the events that the protocol decodes.

mod admin;
mod authentication;
mod connect;
mod fencing;
mod moving;
mod security;
mod share;
mod suspending;
mod teardown;

use std::time::Instant;

use raceline_bdev::Done;
use raceline_proto::controller::ConnectRequest;
use raceline_proto::nvme::authentication::is_authentication;
use raceline_proto::nvme::{CommandId, Sqe, Status};
use raceline_proto::reservation::Registrant;
use raceline_proto::tcp::{ControllerQueue, DataDest, Event, FatalError, Violation};
use raceline_reactor::io::{RecvBuffers, SocketId, is_taken_back};
use raceline_reactor::{Context, SendBatch, Token, WorkDone};

use crate::changes::snapshot::DeviceId;
use crate::path::association::Association;
use crate::path::choice::pass_is_over;
use crate::path::commands::{Commands, DataEnd, IoQueue};
use crate::path::connection::moving::Moving;
use crate::path::core::Core;
use crate::path::inbox::Inbox;
use crate::path::life::{Life, LifeState};
use crate::path::range_lock::LockId;
use crate::path::slots::{CommandSlot, NoSlot};
use crate::path::suspension::Suspended;

use crate::records::early::Ticket;
use crate::records::names::{ConnKey, Ends, EngineToken, Home, SlotKey};

/// The role of the connection for its controller.
pub(crate) enum Role {
    /// Connect has not come.
    New,
    /// An I/O queue whose Connect the controller's core is looking at.
    Joining(Box<ConnectRequest>, Home),
    /// An I/O queue that has joined its controller, and whose host has to authenticate.
    Proving(Box<IoQueue>),
    /// The admin queue; the controller lives here.
    Admin(Box<Association>),
    /// An I/O queue: [`Commands::io`].
    Io,
}

/// One connection.
pub(crate) struct Connection {
    key: ConnKey,
    socket: SocketId,
    ends: Ends,
    life: Life,
    /// It counts among the connections of its source that are known.
    admitted: bool,
    role: Role,
    inbox: Inbox,
    commands: Commands,
    /// Another core is to have it.
    moving: Option<Moving>,
    /// A provider's stream carries its bytes.
    is_carried: bool,
    /// It is to rest, or rests, for another process to have it.
    suspended: Option<Suspended>,
}

impl Connection {
    pub(crate) fn new(
        key: ConnKey,
        socket: SocketId,
        (ends, ticket): (Ends, Ticket),
        core: &Core,
        now: Instant,
    ) -> Self {
        let config = &core.shared.config;
        Self {
            key,
            socket,
            ends,
            life: Life::new(now, config.pre_connect.ic_req, ticket),
            admitted: false,
            role: Role::New,
            inbox: Inbox::of(config, &ends),
            commands: Commands::new(key, ends.peer, core),
            moving: None,
            is_carried: false,
            suspended: None,
        }
    }

    /// Its stream has a handshake of its own before ICReq, for which there is the time until Connect.
    pub(crate) fn allow_handshake(&mut self, core: &Core) {
        self.is_carried = true;
        self.life.allow_handshake(core.shared.config.pre_connect.connect);
    }

    fn token(&self) -> Token {
        Token { owner: 0, generation: self.key.generation, index: self.key.index }
    }

    /// The listener that it came by.
    pub(crate) fn port_id(&self) -> u16 {
        self.ends.port_id
    }

    pub(crate) fn commands(&self) -> &Commands {
        &self.commands
    }

    // -------------------------------------------------------------------------- receive

    /// Starts a receive if none is in flight and the connection wants bytes.
    pub(crate) fn start_recv(&mut self, cx: &mut Context<'_>) {
        let unwanted = self.commands.are_paused()
            || self.holds_back()
            || self.life.draining
            || self.life.state == LifeState::Closing;
        if !unwanted {
            let (open, place) = (self.life.state == LifeState::Open, (self.socket, self.token()));
            self.inbox.start(cx, &mut self.commands, open, place);
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
        let (direct_len, start) = self.inbox.take_back(&mut self.commands, buffers);
        if let Some(suspended) = &mut self.suspended {
            suspended.is_stopping = false;
            if result.as_ref().is_err_and(is_taken_back) {
                return self.start_recv(cx);
            }
        }
        let len = match result {
            Ok(0) => return self.close(cx, core, "the host closed it"),
            Ok(len) => len,
            Err(error) => {
                self.log_broken(&error);
                return self.close(cx, core, "receiving failed");
            }
        };
        if self.life.state >= LifeState::Terminating {
            return self.start_recv(cx);
        }
        self.commands.counters().receives.add(1);
        let direct = len.min(direct_len);
        if direct > 0 {
            self.commands.out.queue.payload_received(direct);
        }
        self.inbox.set_unparsed(start..start + (len - direct));
        if let Some(share) = self.commands.share {
            return self.await_turn(cx, core, share);
        }
        self.commands.moved = 0;
        self.parse(cx, core);
    }

    /// Goes on with the bytes that the last pass has left.
    pub(crate) fn resume(&mut self, cx: &mut Context<'_>, core: &mut Core) {
        self.inbox.resume();
        self.commands.moved = 0;
        self.parse(cx, core);
    }

    /// Handles received bytes, until the bytes, the buffers or the connection's share of the core
    /// run out.
    fn parse(&mut self, cx: &mut Context<'_>, core: &mut Core) {
        let Some((staging, unparsed)) = self.inbox.lend_staging() else { return };
        let end = unparsed.end;
        let mut input = &staging[unparsed];
        let mut unseen = input.len();
        while !self.commands.are_paused()
            && !self.life.draining
            && self.life.state < LifeState::Terminating
        {
            let limit = self.inbox.pass_limit();
            let pass_over = pass_is_over(self.commands.moved, limit) && !input.is_empty();
            // Between PDUs only: a write that goes to the device at once is checked with its header.
            if pass_over && self.commands.out.queue.payload_wanted().is_none() {
                // A host with many requests at once must not keep its neighbours waiting.
                if let Some(share) = self.commands.share {
                    self.await_turn(cx, core, share);
                } else if self.inbox.defer() {
                    core.deferred.push(self.key);
                }
                break;
            }
            if !input.is_empty() && input.len() <= unseen {
                unseen = self.commands.look_ahead(core, input);
            }
            match self.commands.out.queue.receive(&mut input) {
                Ok(Some(event)) => {
                    let taken = self.handle_event(cx, core, event, input);
                    input = &input[taken..];
                }
                Ok(None) => break,
                Err(error) => self.fatal(cx, core, &error),
            }
        }
        let left = if self.life.state < LifeState::Terminating { input.len() } else { 0 };
        if self.inbox.return_staging(staging, end - left..end) {
            self.start_recv(cx);
        }
        if let Some(share) = self.commands.share {
            core.shares.charge(share, std::mem::take(&mut self.commands.served));
        }
    }

    /// Handles an event. Gives how many bytes of `rest`, which is behind the event, belong to it.
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
        self.commands.counters().pdus_received.add(u64::from(!is_part));
        match event {
            Event::Connected(_) => {
                core.digests |= self.commands.out.queue.data_digest();
                self.life.open(core.shared.config.pre_connect.connect);
                self.commands.out.push_pdu(core, ControllerQueue::ic_resp);
            }
            Event::Command { sqe, in_capsule } => {
                self.commands.note_arrival(cx.now);
                if self.commands.io.is_none() {
                    self.handle_command(cx, core, &sqe, in_capsule);
                    return 0;
                }
                if self.commands.share.is_some() {
                    self.commands.note_served(&sqe);
                }
                match self.commands.take_io(cx, core, &sqe, in_capsule, rest) {
                    Ok(taken) => return taken,
                    Err(violation) => self.fatal(cx, core, &FatalError::new(violation)),
                }
            }
            Event::Data { dest, offset, bytes } => {
                self.commands.take_data(cx, core, dest, offset, (bytes, rest));
            }
            Event::DataEnd { dest, offset, len, ddgst, last_pdu } => {
                let end = DataEnd { dest, offset, len, ddgst, last_pdu };
                if let Some(command) = self.commands.end_data(cx, core, end) {
                    self.execute(cx, core, command);
                }
            }
            Event::Terminated(info) => {
                let (fes, fei) = (info.fes, info.fei);
                tracing::warn!(peer = %self.ends.peer, ?fes, fei, "the host sent H2CTermReq");
                self.close(cx, core, "the host sent H2CTermReq");
            }
        }
        0
    }

    // -------------------------------------------------------------------------- commands

    /// A command of a queue that is not an I/O queue.
    fn handle_command(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        sqe: &Sqe,
        in_capsule: u32,
    ) {
        let taken = match self.commands.take(sqe, in_capsule) {
            Err(NoSlot::Duplicate) if self.forgets_event_request(sqe) => {
                self.commands.take(sqe, in_capsule)
            }
            taken => taken,
        };
        let command = match taken {
            Ok(command) => command,
            Err(NoSlot::Duplicate) => return self.commands.refuse_duplicate(core, sqe),
            Err(NoSlot::Overrun) => {
                return self.fatal(cx, core, &FatalError::new(Violation::QueueOverrun));
            }
        };
        let executable = match &mut self.role {
            Role::New => self.begin_connect(cx, core, command),
            Role::Admin(_) | Role::Proving(_) if is_authentication(sqe) => {
                self.commands.begin_authentication(cx, core, command)
            }
            Role::Admin(_) | Role::Proving(_) if !self.commands.is_proven() => {
                let status = Status::AUTHENTICATION_REQUIRED.dnr();
                return self.commands.refuse(core, command, status);
            }
            Role::Admin(association) => association.begin(&mut self.commands, cx, core, command),
            Role::Joining(..) | Role::Proving(_) | Role::Io => {
                let status = Status::COMMAND_SEQUENCE_ERROR.dnr();
                return self.commands.refuse(core, command, status);
            }
        };
        if let Some(command) = executable {
            self.execute(cx, core, command);
        }
    }

    /// Executes a command that has its data and buffer.
    fn execute(&mut self, cx: &mut Context<'_>, core: &mut Core, command: CommandSlot) {
        match &self.role {
            Role::New => self.execute_connect(cx, core, command),
            Role::Joining(..) => {}
            Role::Proving(_) => self.authenticate(cx, core, command),
            Role::Admin(_) => self.execute_admin(cx, core, command),
            Role::Io => self.commands.execute_io(cx, core, command),
        }
    }

    /// The command heads its line, and a buffer of one of these sizes is there for it.
    pub(crate) fn serve(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        slot: SlotKey,
        sizes: std::ops::Range<usize>,
    ) {
        let was_paused = self.commands.are_paused();
        if let Some(command) = self.commands.serve(cx, core, slot, sizes) {
            self.execute(cx, core, command);
        }
        if was_paused && !self.commands.are_paused() {
            self.parse(cx, core);
        }
    }

    /// The time of commands that wait because of limits may have come.
    pub(crate) fn run_throttled(&mut self, cx: &mut Context<'_>, core: &mut Core) {
        if self.life.state == LifeState::Closing {
            return;
        }
        let was_paused = self.commands.are_paused();
        self.commands.run_throttled(cx, core);
        if was_paused && !self.commands.are_paused() {
            self.parse(cx, core);
        }
    }

    /// Namespaces or limits have changed: commands that wait because of limits begin anew.
    pub(super) fn restart_throttled(&mut self, cx: &mut Context<'_>, core: &mut Core) {
        if self.life.state == LifeState::Closing || !self.commands.has_throttled() {
            return;
        }
        let was_paused = self.commands.are_paused();
        self.commands.restart_throttled(cx, core);
        if was_paused && !self.commands.are_paused() {
            self.parse(cx, core);
        }
    }

    /// A device request of a command has finished. Gives whether the command was waiting for that.
    #[must_use]
    pub(crate) fn handle_done(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        slot: SlotKey,
        done: Done,
    ) -> bool {
        self.commands.take_done(cx, core, slot, done)
    }

    /// An engine has finished with the data of a command. Gives whether the command was waiting for that.
    #[must_use]
    pub(crate) fn handle_accelerated(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        token: EngineToken,
        done: WorkDone,
    ) -> bool {
        let closing = self.life.state == LifeState::Closing;
        self.commands.take_accelerated(cx, core, token, done, closing)
    }

    /// A fence over the command's range is down: executes the command, or drops it with its connection.
    pub(crate) fn handle_unfenced(&mut self, cx: &mut Context<'_>, core: &mut Core, slot: SlotKey) {
        let closing = self.life.state == LifeState::Closing;
        match self.commands.slots.resume(slot) {
            Some(command) if closing => self.commands.slots.release(command),
            Some(command) => self.execute(cx, core, command),
            None => tracing::error!(?slot, "a fence has held a command that is completed"),
        }
    }

    /// Aborts a command of an I/O queue; gives whether it is completed.
    pub(crate) fn abort(&mut self, core: &mut Core, cid: CommandId) -> bool {
        self.commands.abort(core, cid)
    }

    /// Aborts the commands for a device that have not reached it, if they are those of one of these hosts; counts
    /// those that have.
    pub(crate) fn abort_preempted(
        &mut self,
        core: &mut Core,
        device: DeviceId,
        hosts: &[Registrant],
    ) -> usize {
        self.commands.abort_preempted(core, device, hosts)
    }

    /// The range of a fused operation is locked for it, or the device is gone.
    pub(crate) fn handle_lock(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        first: SlotKey,
        lock: (DeviceId, Option<LockId>),
    ) {
        let closing = self.life.state == LifeState::Closing;
        self.commands.lock_granted(cx, core, first, lock, closing);
    }

    // ------------------------------------------------------------------------------ send

    /// Sends what is ready, if no send is in flight.
    pub(crate) fn flush(&mut self, cx: &mut Context<'_>) {
        self.commands.out.clean();
        self.commands.count_busy(cx.now);
        if self.life.state != LifeState::Closing {
            let token = self.token();
            self.commands.out.flush(cx, self.socket, token);
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
        self.commands.out.take_back(batch);
        match result {
            Ok(()) => self.commands.out.go_on(core),
            Err(error) => {
                tracing::debug!(peer = %self.ends.peer, %error, "send failed");
                self.close(cx, core, "sending failed");
            }
        }
    }
}
