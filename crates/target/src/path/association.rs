//! The admin queue's side of an association: Connect, admin commands, and the I/O queues that
//! belong to the controller.

use std::sync::Arc;
use std::time::Instant;

use raceline_proto::controller::{
    self as controller, Action, AdminOutcome, ConnectError, ConnectRequest, Controller, ErrorEntry,
    Facts, IoCounters, ManagementCommand, asks_for_controllers, connect_transfer, find_subsystem,
    parse_connect,
};
use raceline_proto::nvme::opcode::admin;
use raceline_proto::nvme::{
    CommandId, ControllerId, Cqe, Direction, HostNqn, Nqn, QueueId, Sqe, Status,
};
use raceline_reactor::{Context, IoBuf, Payload};

use crate::changes::config::SubsystemConfig;
use crate::changes::message::{CommandPlace, Home, Message, Place};
use crate::changes::pool::ManagementRequest;
use crate::changes::snapshot::{Seen, SubsystemStats};
use crate::path::connection::{Connection, Role, Stage};
use crate::path::core::Core;
use crate::path::io_queue::IoQueue;
use crate::path::slots::Phase;
use crate::records::counters::QueueCounters;
use crate::records::ledger::QueueRecord;

/// A controller and the I/O queues that have joined it. Lives with its admin connection.
pub(crate) struct Association {
    controller: Controller,
    cntlid: ControllerId,
    /// Its subsystem, or the discovery service.
    nqn: Nqn,
    /// The counts of the subsystem; `None` for a discovery controller.
    stats: Option<Arc<SubsystemStats>>,
    queues: Vec<JoinedQueue>,
    /// The I/O queues are being closed; the controller waits for it.
    closing_queues: bool,
    /// Commands seen on I/O queues when the keep alive timer was looked at last.
    commands_seen: u64,
}

struct JoinedQueue {
    qid: QueueId,
    place: Place,
    counters: Arc<QueueCounters>,
}

/// The answer to an I/O queue whose controller is not there (any more).
pub(crate) fn controller_gone() -> ConnectError {
    ConnectError::UNKNOWN_CONTROLLER
}

impl Association {
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.controller.poll_timeout()
    }

    /// Whether no I/O queue is left.
    pub(crate) fn is_quiet(&self) -> bool {
        self.queues.is_empty()
    }

    pub(crate) fn record_failure(&mut self, entry: ErrorEntry) {
        self.controller.record_error(entry);
    }

    fn io_counters(&self) -> IoCounters {
        let Some(stats) = &self.stats else { return IoCounters::default() };
        let totals = stats.totals();
        IoCounters {
            read_commands: totals.reads,
            write_commands: totals.writes,
            read_bytes: totals.read_bytes,
            written_bytes: totals.written_bytes,
            media_errors: totals.media_errors,
            busy: stats.busy(),
        }
    }

    /// What the controller has to be told to execute a command.
    fn facts(&self, core: &Core, sqe: &Sqe) -> Facts {
        let mut facts = Facts::default();
        if sqe.opc == admin::GET_LOG_PAGE {
            facts.counters = self.io_counters();
        }
        if asks_for_controllers(sqe) {
            facts.controllers = core.shared.controllers_of(&self.nqn);
        }
        facts
    }

    /// Whether it is that host's, with that subsystem.
    pub(crate) fn is_of(&self, nqn: &Nqn, host: &Nqn) -> bool {
        let named = matches!(self.controller.hostnqn(), HostNqn::Named(name) if name == host);
        named && self.nqn == *nqn
    }

    /// Traffic on I/O queues keeps the association alive, too (CTRATT.TBKAS).
    fn note_traffic(&mut self, now: Instant) {
        let seen = self.queues.iter().map(|queue| queue.counters.commands.get()).sum();
        if seen != self.commands_seen {
            self.commands_seen = seen;
            self.controller.command_seen(now);
        }
    }
}

// ---------------------------------------------------------------------------------- Connect

impl Connection {
    /// A command before Connect: only Connect itself is legal.
    pub(crate) fn handle_early_command(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        index: u16,
    ) {
        let slot = self.slots.get(index);
        match connect_transfer(&slot.sqe) {
            Ok(transfer) => slot.transfer = transfer,
            Err(status) => return self.refuse(core, index, status),
        }
        let len = slot.transfer.len as usize;
        // Not from the pool: strangers must not take I/O buffers from hosts.
        let buf = IoBuf::heap(len);
        self.give_buffer(cx, core, index, buf);
    }

    pub(crate) fn execute_connect(&mut self, cx: &mut Context<'_>, core: &mut Core, index: u16) {
        let slot = self.slots.get(index);
        let (sqe, data) = (slot.sqe, slot.buf.take());
        let data = data.as_deref().unwrap_or_default();
        let result = parse_connect(&sqe, data).and_then(|request| {
            if request.qid.is_admin() {
                self.connect_admin(cx, core, request, sqe.command_id())
            } else {
                self.ask_home(core, request)
            }
        });
        if let Err(error) = result {
            self.refuse_connect(core, index, &error);
        }
    }

    fn refuse_connect(&mut self, core: &mut Core, index: u16, error: &ConnectError) {
        tracing::info!(peer = %self.peer, %error, "refused Connect");
        let cid = self.slots.get(index).cid;
        let (status, dw0) = (error.status, error.dw0());
        self.finish(core, index, Cqe { cid, status, dw0, ..Cqe::default() });
    }

    /// Connect on the admin queue: a new association.
    fn connect_admin(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        request: ConnectRequest,
        cid: CommandId,
    ) -> Result<(), ConnectError> {
        let view = Arc::clone(&core.snapshot.view);
        let place = core.place(self.key);
        let role = find_subsystem(&view, &request, self.port_id)?;
        let nqn = request.subnqn.clone();
        let subsystem = core.snapshot.subsystem(&nqn);
        let ids = subsystem.map_or(SubsystemConfig::CONTROLLER_IDS, |s| s.controller_ids.clone());
        let stats = subsystem.map(|s| Arc::clone(&s.stats));
        let cntlid =
            core.shared.add_controller(place, &nqn, &request.hostnqn, &ids).map_err(|full| {
                tracing::warn!(host = %request.hostnqn, ?full, "no controller number to give");
                ConnectError::BUSY
            })?;
        let joining = request.clone();
        let association =
            controller::Association { cntlid, request, role, view, local_address: self.local };
        let controller = Controller::new(association, cx.now);
        if let Some(stats) = &stats {
            stats.attach(Arc::clone(&self.counters));
        }
        tracing::info!(peer = %self.peer, host = %joining.hostnqn, %cntlid, "host connected");
        self.role = Role::Admin(Box::new(Association {
            controller,
            cntlid,
            nqn,
            stats,
            queues: Vec::new(),
            closing_queues: false,
            commands_seen: 0,
        }));
        self.connected(core, &joining, cid, cntlid);
        self.log_tolerances();
        self.arm_timer(cx);
        Ok(())
    }

    /// The queue is connected: sets it up and says so.
    fn connected(
        &mut self,
        core: &mut Core,
        request: &ConnectRequest,
        cid: CommandId,
        cntlid: ControllerId,
    ) {
        self.admitted(core);
        let entries = queue_entries(request);
        let says_success = core.shared.config.c2h_success;
        self.set_queue(request.qid, entries, !request.disable_sq_flow, says_success);
        let record = QueueRecord {
            qid: request.qid,
            entries,
            cntlid,
            subsystem: request.subnqn.clone(),
            host: request.hostnqn.clone(),
            hostid: request.hostid,
            peer: self.peer,
            local: self.local,
            counters: Arc::clone(&self.counters),
        };
        core.shared.ledger().attach(core.place(self.key), record);
        let cqe = Cqe { cid, dw0: cntlid.0.into(), ..Cqe::default() };
        self.push_connect_response(core, cqe);
    }

    /// Connect on an I/O queue: the core that has the controller decides.
    fn ask_home(&mut self, core: &mut Core, request: ConnectRequest) -> Result<(), ConnectError> {
        find_subsystem(&core.snapshot.view, &request, self.port_id)?;
        let home = core
            .shared
            .find_controller(request.cntlid, &request.subnqn)
            .ok_or(ConnectError::UNKNOWN_CONTROLLER)?;
        let from = core.place(self.key);
        let counters = Arc::clone(&self.counters);
        self.awaiting += 1;
        self.role = Role::Joining(Box::new(request.clone()), home);
        let request = Box::new(request);
        let message = Message::IoConnect { home: home.place.key, from, request, counters };
        core.send(home.place.core, message);
        Ok(())
    }

    /// The controller's core has decided.
    pub(crate) fn io_connected(&mut self, core: &mut Core, result: Result<(), ConnectError>) {
        self.awaiting -= 1;
        let Role::Joining(request, home) = std::mem::replace(&mut self.role, Role::New) else {
            return;
        };
        // Slot 0 is the only one before Connect; a close has freed it.
        let closed = self.stage == Stage::Closing;
        let cid = self.slots.get(0).cid;
        let view = &core.snapshot.view;
        let subsystem = core.snapshot.subsystem(&request.subnqn);
        let reached = subsystem.filter(|s| view.leads_to(self.port_id, &s.subsystem));
        match (result, reached.map(|subsystem| Seen::new(subsystem, &request.hostnqn))) {
            (Ok(()), Some(seen)) => {
                self.role = Role::Io(IoQueue { qid: request.qid, home, seen });
                if self.stage < Stage::Terminating {
                    self.connected(core, &request, cid, home.cntlid);
                } else if !closed {
                    self.slots.release(0);
                }
            }
            (Ok(()), None) => {
                self.leave_home(core, &home, request.qid);
                if !closed {
                    self.refuse_connect(core, 0, &controller_gone());
                }
            }
            (Err(_), _) if closed => {}
            (Err(error), _) => self.refuse_connect(core, 0, &error),
        }
    }

    fn leave_home(&self, core: &Core, home: &Home, qid: QueueId) {
        let from = core.place(self.key);
        core.send(home.place.core, Message::IoClosed { home: home.place.key, qid, from });
    }

    /// The connection is removed: tells those who count on it.
    pub(crate) fn leave(&mut self, core: &Core) {
        core.shared.ledger().detach(core.place(self.key));
        match &self.role {
            Role::Admin(association) => {
                if let Some(stats) = &association.stats {
                    stats.detach(&self.counters);
                }
                core.shared.remove_controller(association.cntlid, &association.nqn);
                tracing::info!(peer = %self.peer, cntlid = %association.cntlid, "association ended");
            }
            Role::Io(io) => self.leave_home(core, &io.home, io.qid),
            Role::New | Role::Joining(..) => {}
        }
    }
}

// ---------------------------------------------------------------------------- admin commands

impl Connection {
    pub(crate) fn handle_admin_command(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        index: u16,
    ) {
        let Role::Admin(association) = &mut self.role else { return };
        let slot = self.slots.get(index);
        match association.controller.transfer(&slot.sqe) {
            Ok(transfer) => {
                slot.transfer = transfer;
                self.begin_transfer(cx, core, index, transfer.len > 0);
            }
            Err(status) => {
                let (sqid, cid) = (QueueId::ADMIN, slot.cid);
                let nsid = slot.sqe.namespace_id();
                association.record_failure(ErrorEntry { sqid, cid, status, nsid, lba: 0 });
                self.refuse(core, index, status);
            }
        }
    }

    pub(crate) fn execute_admin(&mut self, cx: &mut Context<'_>, core: &mut Core, index: u16) {
        let Role::Admin(association) = &mut self.role else { return };
        let slot = self.slots.get(index);
        let (sqe, direction) = (slot.sqe, slot.transfer.direction);
        let facts = association.facts(core, &sqe);
        let mut buf = slot.buf.take();
        let outcome = {
            let (data, reply): (&[u8], &mut [u8]) = match (&mut buf, direction) {
                (Some(buf), Direction::HostToController) => (buf, &mut []),
                (Some(buf), _) => {
                    buf.fill(0);
                    (&[], buf)
                }
                (None, _) => (&[], &mut []),
            };
            association.controller.handle_admin(cx.now, &sqe, data, reply, &facts)
        };
        let reply = buf.filter(|_| direction == Direction::ControllerToHost);
        if matches!(outcome, AdminOutcome::Held) {
            // Before the actions: an event that waits already completes it there.
            self.slots.get(index).phase = Phase::Event;
        }
        // An aborted command completes before the Abort that asked for it.
        self.run_actions(cx, core);
        self.end_admin(core, index, &sqe, outcome, reply);
    }

    fn end_admin(
        &mut self,
        core: &mut Core,
        index: u16,
        sqe: &Sqe,
        outcome: AdminOutcome,
        reply: Option<IoBuf>,
    ) {
        let cid = sqe.command_id();
        match outcome {
            AdminOutcome::Complete { status, dw0, dw1 } => {
                let cqe = Cqe { cid, status, dw0, dw1, ..Cqe::default() };
                match reply {
                    Some(buf) if status.is_success() => {
                        let len = buf.len();
                        self.slots.release(index);
                        self.push_data(core, cqe, Payload::Buf(buf, 0..len));
                    }
                    _ => self.finish(core, index, cqe),
                }
            }
            AdminOutcome::Held => {}
            AdminOutcome::Manage(command) => self.manage(core, index, *command),
            // A command that reached its device cannot be called back, and one that has not will
            // be done soon: bit 0 says "not aborted" (Base 2.0, 5.1).
            AdminOutcome::Abort { .. } => {
                self.finish(core, index, Cqe { cid, dw0: 1, ..Cqe::default() });
            }
        }
    }

    /// A change of namespaces takes time, and may wait for this core: another thread makes it.
    fn manage(&mut self, core: &mut Core, index: u16, command: ManagementCommand) {
        let Role::Admin(association) = &self.role else { return };
        let request = ManagementRequest {
            nqn: association.nqn.clone(),
            host: association.controller.hostnqn().clone(),
            command,
            from: CommandPlace { conn: core.place(self.key), slot: index },
        };
        self.slots.get(index).phase = Phase::Device;
        if !core.shared.manage(request) {
            self.managed(core, index, Err(Status::INTERNAL));
        }
    }

    /// What became of it; with success, DW0.
    pub(crate) fn managed(&mut self, core: &mut Core, index: u16, result: Result<u32, Status>) {
        let slot = self.slots.get(index);
        let (cid, nsid) = (slot.cid, slot.sqe.namespace_id());
        if let (Err(status), Role::Admin(association)) = (result, &mut self.role) {
            let sqid = QueueId::ADMIN;
            association.record_failure(ErrorEntry { sqid, cid, status, nsid, lba: 0 });
        }
        let (status, dw0) = match result {
            Ok(dw0) => (Status::SUCCESS, dw0),
            Err(status) => (status, 0),
        };
        self.finish(core, index, Cqe { cid, status, dw0, ..Cqe::default() });
    }

    /// Frees the slot of an event request without an answer; says whether there was one.
    pub(crate) fn forget_event_request(&mut self, cid: CommandId) -> bool {
        let Role::Admin(association) = &mut self.role else { return false };
        let held = association.controller.forget_event_request(cid);
        if held && let Some(index) = self.slots.find(cid) {
            tracing::debug!(peer = %self.peer, %cid, "the host reuses the identifier of an event request");
            self.slots.release(index);
        }
        held
    }

    /// Does what the controller asks for.
    fn run_actions(&mut self, cx: &mut Context<'_>, core: &mut Core) {
        while let Role::Admin(association) = &mut self.role
            && let Some(action) = association.controller.poll_action()
        {
            match action {
                Action::CompleteAer { cid, status, dw0 } => {
                    if let Some(index) = self.slots.find(cid) {
                        self.finish(core, index, Cqe { cid, status, dw0, ..Cqe::default() });
                    }
                }
                Action::CloseIoQueues => {
                    association.closing_queues = true;
                    close_queues(core, association);
                    self.queues_maybe_drained(cx);
                }
                Action::Abandon { reason } => {
                    tracing::warn!(peer = %self.peer, ?reason, "abandoning the association");
                    self.close(cx, core, "the association is abandoned");
                }
            }
        }
        self.log_tolerances();
        self.arm_timer(cx);
    }

    /// What the host does that is put up with, once for each association.
    fn log_tolerances(&mut self) {
        if let Role::Admin(association) = &mut self.role {
            while let Some(tolerance) = association.controller.poll_tolerance() {
                let host = association.controller.hostnqn();
                tracing::info!(peer = %self.peer, %host, "tolerated: {tolerance}");
            }
        }
    }

    fn queues_maybe_drained(&mut self, cx: &mut Context<'_>) {
        if let Role::Admin(association) = &mut self.role
            && association.closing_queues
            && association.queues.is_empty()
        {
            association.closing_queues = false;
            association.controller.io_queues_drained(cx.now);
        }
    }

    pub(crate) fn handle_controller_timeout(&mut self, cx: &mut Context<'_>, core: &mut Core) {
        if let Role::Admin(association) = &mut self.role {
            association.note_traffic(cx.now);
            association.controller.handle_timeout(cx.now);
        }
        self.run_actions(cx, core);
    }

    /// The admin connection closes: its I/O queues go, too.
    pub(crate) fn close_association(&mut self, core: &mut Core) {
        if let Role::Admin(association) = &self.role {
            close_queues(core, association);
        }
    }

    /// An I/O queue wants to join.
    pub(crate) fn handle_io_connect(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        from: Place,
        request: &ConnectRequest,
        counters: Arc<QueueCounters>,
    ) -> Option<Result<(), ConnectError>> {
        let Role::Admin(association) = &mut self.role else { return None };
        if self.stage != Stage::Open || association.closing_queues {
            return Some(Err(controller_gone()));
        }
        let result = association.controller.handle_io_connect(cx.now, request);
        if result.is_ok() {
            if let Some(stats) = &association.stats {
                stats.attach(Arc::clone(&counters));
            }
            association.queues.push(JoinedQueue { qid: request.qid, place: from, counters });
        }
        self.run_actions(cx, core);
        Some(result)
    }

    /// An I/O queue is gone with all its commands.
    pub(crate) fn io_queue_closed(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        qid: QueueId,
        place: Place,
    ) {
        let Role::Admin(association) = &mut self.role else { return };
        let position = association.queues.iter().position(|q| q.qid == qid && q.place == place);
        let Some(position) = position else { return };
        let queue = association.queues.swap_remove(position);
        if let Some(stats) = &association.stats {
            stats.detach(&queue.counters);
        }
        association.controller.io_queue_closed(qid);
        self.queues_maybe_drained(cx);
        self.run_actions(cx, core);
    }

    /// What exists has changed.
    pub(crate) fn handle_view(&mut self, cx: &mut Context<'_>, core: &mut Core) {
        let view = &core.snapshot.view;
        let gone = match &mut self.role {
            Role::New | Role::Joining(..) => None,
            Role::Io(io) => match core.snapshot.subsystem(io.seen.nqn()) {
                Some(subsystem) if view.leads_to(self.port_id, &subsystem.subsystem) => {
                    io.seen.update(subsystem);
                    None
                }
                Some(_) => Some("its listener was removed"),
                None => Some("its subsystem was removed"),
            },
            Role::Admin(association) => {
                association.controller.handle_view(Arc::clone(view));
                let reached = match view.subsystem(&association.nqn) {
                    Some(subsystem) => view.leads_to(self.port_id, subsystem),
                    None => view.listener(self.port_id).is_some(),
                };
                (!reached).then_some("its listener was removed")
            }
        };
        if let Some(why) = gone {
            self.close(cx, core, why);
        }
        self.run_actions(cx, core);
    }
}

/// Entries of the queue; [`find_subsystem`] has checked them against a limit of 16 bits.
fn queue_entries(request: &ConnectRequest) -> u16 {
    u16::try_from(request.queue_entries).unwrap_or(u16::MAX)
}

fn close_queues(core: &Core, association: &Association) {
    for queue in &association.queues {
        core.send(queue.place.core, Message::Close { key: queue.place.key });
    }
}
