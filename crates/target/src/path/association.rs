//! A controller, the admin commands that it executes, and the I/O queues that have joined it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use raceline_proto::controller::{
    AbandonReason, Action, AdminOutcome, ConnectError, ConnectRequest, Controller, ControllerState,
    ErrorEntry, Facts, IoCounters, Security, TargetSnapshot, asks_for_controllers,
};
use raceline_proto::nvme::cross_reset::{ControllerInstance, IMMEDIATE, ResetStatus};
use raceline_proto::nvme::log::{GetLogPage, lid};
use raceline_proto::nvme::opcode::admin;
use raceline_proto::nvme::{
    CommandId, ControllerId, Cqe, Direction, HostId, HostNqn, NamespaceId, Nqn, QueueId, Sqe,
    Status,
};
use raceline_proto::reservation::Notice;
use raceline_reactor::{Context, IoBuf, Payload};

use crate::changes::management::{HostWish, ManagementRequest, NamespaceWish};
use crate::changes::message::{CrossReset, Message};
use crate::changes::snapshot::SubsystemStats;
use crate::path::commands::Commands;
use crate::path::core::Core;
use crate::path::fencing::Waiting;
use crate::path::slots::{CommandSlot, Phase};
use crate::path::traveller::{Joined, Switch};
use crate::records::controllers::Found;
use crate::records::counters::QueueCounters;
use crate::records::names::{CommandPlace, ConnKey, Place, SlotKey};

/// Keys for TLS of an association that are good for new connections: the newest and the one before.
const GENERATED_KEPT: usize = 2;

/// A controller and the I/O queues that have joined it. Lives with its admin connection.
pub(crate) struct Association {
    controller: Controller,
    /// The admin connection.
    key: ConnKey,
    peer: SocketAddr,
    /// Its subsystem, or the discovery service.
    nqn: Nqn,
    /// The counts of the subsystem; `None` for a discovery controller.
    stats: Option<Arc<SubsystemStats>>,
    queues: Vec<JoinedQueue>,
    /// The I/O queues are being closed; the controller waits until that is done.
    closing_queues: bool,
    /// Commands that had come on I/O queues at the last look at the keep alive timer.
    commands_seen: u64,
    /// Controllers that wait for the end of this one.
    waiting: Waiting,
    /// Whether Copy takes source ranges that name their namespaces; its I/O queues look at it.
    copies_across: Switch,
    /// The identities of the keys for TLS that the host has made for this association, the newest last. They go with it.
    generated: Vec<String>,
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
    /// The association of a controller that has just connected, with this connection.
    pub(crate) fn new(
        controller: Controller,
        (key, peer): (ConnKey, SocketAddr),
        nqn: Nqn,
        stats: Option<Arc<SubsystemStats>>,
    ) -> Self {
        Self {
            controller,
            key,
            peer,
            nqn,
            stats,
            queues: Vec::new(),
            closing_queues: false,
            commands_seen: 0,
            waiting: Waiting::default(),
            copies_across: Switch::default(),
            generated: Vec::new(),
        }
    }

    /// The host has made a key for TLS for this association, of that identity. The key before it holds on for connections
    /// that are being made by it; of one that is older yet, the identity is given back.
    #[must_use]
    pub(crate) fn has_generated(&mut self, identity: &str) -> Option<String> {
        self.generated.push(identity.to_owned());
        (self.generated.len() > GENERATED_KEPT).then(|| self.generated.remove(0))
    }

    pub(crate) fn cntlid(&self) -> ControllerId {
        self.controller.cntlid()
    }

    pub(crate) fn instance(&self) -> ControllerInstance {
        self.controller.instance()
    }

    pub(crate) fn nqn(&self) -> &Nqn {
        &self.nqn
    }

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

    /// The facts that the controller needs to execute a command.
    fn facts(&self, core: &Core, sqe: &Sqe) -> Facts {
        let mut facts = Facts::default();
        // These are summed over all queues of the subsystem, for the one page that shows them.
        if sqe.opc == admin::GET_LOG_PAGE && GetLogPage::parse(sqe).lid == lid::SMART {
            facts.counters = self.io_counters();
        }
        if asks_for_controllers(sqe) {
            facts.controllers = core.shared.controllers_of(&self.nqn);
        }
        facts
    }

    /// Something has happened to the reservations of a namespace.
    pub(crate) fn note_reservations(&mut self, nqn: &Nqn, nsid: NamespaceId, notices: &[Notice]) {
        if self.nqn != *nqn {
            return;
        }
        let own = self.controller.hostid();
        for notice in notices.iter().filter(|notice| notice.to == own) {
            self.controller.note_reservation(nsid, notice.kind);
        }
    }

    /// Whether the controller belongs to that host and that subsystem.
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

// ---------------------------------------------------------------------------- admin commands

impl Association {
    /// An admin command has come. Gives it back when it can be executed.
    pub(crate) fn begin(
        &mut self,
        commands: &mut Commands,
        cx: &mut Context<'_>,
        core: &mut Core,
        command: CommandSlot,
    ) -> Option<CommandSlot> {
        let slot = commands.slots.get(command.key());
        match self.controller.transfer(&slot.sqe) {
            Ok(transfer) => {
                slot.transfer = transfer;
                commands.begin_transfer(cx, core, command, transfer.len > 0)
            }
            Err(status) => {
                let (cid, nsid) = (slot.cid(), slot.sqe.namespace_id());
                self.record_own_failure(cid, status, nsid);
                commands.refuse(core, command, status);
                None
            }
        }
    }

    fn record_own_failure(&mut self, cid: CommandId, status: Status, nsid: NamespaceId) {
        let sqid = QueueId::ADMIN;
        self.record_failure(ErrorEntry { sqid, cid, status, nsid, lba: 0 });
    }

    /// Executes an admin command. Gives the reason if the association has to end.
    pub(crate) fn execute(
        &mut self,
        commands: &mut Commands,
        cx: &mut Context<'_>,
        core: &mut Core,
        command: CommandSlot,
    ) -> Option<&'static str> {
        let slot = commands.slots.get(command.key());
        let (sqe, direction) = (slot.sqe, slot.transfer.direction);
        let facts = self.facts(core, &sqe);
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
            self.controller.handle_admin(cx.now, &sqe, data, reply, &facts)
        };
        self.copies_across.set(self.controller.enables_copy_across());
        let reply = buf.filter(|_| direction == Direction::ControllerToHost);
        if matches!(outcome, AdminOutcome::Held) {
            // Before the actions: an event that waits completes the request there.
            slot.phase = Phase::Event;
        }
        // An aborted command completes before the Abort that asked for it.
        let why = self.run_actions(commands, cx, core);
        if let AdminOutcome::LbaStatus(query) = outcome {
            let subsystem = core.snapshot.subsystem(&self.nqn).cloned();
            let room = (subsystem.as_deref(), reply);
            commands.begin_lba_status(cx, core, command, *query, room);
            return why;
        }
        self.answer(commands, core, command, outcome, reply);
        why
    }

    /// Carries out the controller's decision about a command.
    fn answer(
        &mut self,
        commands: &mut Commands,
        core: &mut Core,
        command: CommandSlot,
        outcome: AdminOutcome,
        reply: Option<IoBuf>,
    ) {
        let cid = match outcome {
            AdminOutcome::Held => return,
            AdminOutcome::Manage(wish) => {
                return self.manage(commands, core, command, HostWish::Namespaces(*wish));
            }
            AdminOutcome::Register(registration) => {
                let wish = HostWish::Register(registration, self.peer.ip().to_canonical());
                return self.manage(commands, core, command, wish);
            }
            AdminOutcome::CrossReset(instance) => {
                return self.cross_reset(commands, core, command, instance);
            }
            AdminOutcome::Reserve { nsid, command: wish } => {
                let host = self.controller.reserving_host();
                let wish = NamespaceWish::Reserve(wish);
                return commands.reserve(core, command, (&self.nqn, nsid), host, wish);
            }
            AdminOutcome::Protect { nsid, protection } => {
                let host = self.controller.reserving_host();
                let wish = NamespaceWish::Protect(protection);
                return commands.reserve(core, command, (&self.nqn, nsid), host, wish);
            }
            _ => commands.slots.get(command.key()).cid(),
        };
        match outcome {
            AdminOutcome::Complete { status, dw0, dw1 } => {
                let cqe = Cqe { cid, status, dw0, dw1, ..Cqe::default() };
                match reply {
                    Some(buf) if status.is_success() => {
                        let len = buf.len();
                        commands.slots.release(command);
                        commands.out.push_data(core, cqe, Payload::Buf(buf, 0..len));
                    }
                    _ => commands.finish(core, command, cqe),
                }
            }
            AdminOutcome::Abort { sqid, cid: wanted } => {
                let queue = self.queues.iter().find(|queue| queue.qid == sqid);
                let Some(place) = queue.map(|queue| queue.place) else {
                    // Admin commands are executed when they come: bit 0 says "not aborted".
                    return commands.finish(core, command, Cqe { cid, dw0: 1, ..Cqe::default() });
                };
                let slot = command.key();
                commands.slots.get(slot).phase = Phase::Device;
                let from = CommandPlace { conn: core.place(self.key), slot };
                core.send(place.core, Message::Abort { key: place.key, cid: wanted, from });
            }
            AdminOutcome::Held
            | AdminOutcome::Manage(_)
            | AdminOutcome::Register(_)
            | AdminOutcome::CrossReset(_)
            | AdminOutcome::Reserve { .. }
            | AdminOutcome::Protect { .. }
            | AdminOutcome::LbaStatus(_) => {}
        }
    }

    /// The host wants another controller of its own to end.
    fn cross_reset(
        &mut self,
        commands: &mut Commands,
        core: &mut Core,
        command: CommandSlot,
        instance: ControllerInstance,
    ) {
        let slot = commands.slots.get(command.key());
        let (cid, nsid) = (slot.cid(), slot.sqe.namespace_id());
        let dw0 = match core.shared.find_instance(&self.nqn, self.controller.hostnqn(), instance) {
            Found::Ended => IMMEDIATE,
            Found::Live(place) => {
                self.controller.cross_reset_begun(instance);
                let reset = CrossReset { instance, from: core.place(self.key) };
                core.send(place.core, Message::CrossReset { home: place.key, reset });
                0
            }
            Found::Unknown => {
                let status = Status::INVALID_CONTROLLER_ID.dnr();
                self.record_own_failure(cid, status, nsid);
                return commands.refuse(core, command, status);
            }
        };
        commands.finish(core, command, Cqe { cid, dw0, ..Cqe::default() });
    }

    /// The reset of another controller has ended.
    pub(crate) fn cross_reset_ended(&mut self, instance: ControllerInstance, status: ResetStatus) {
        self.controller.cross_reset_ended(instance, status);
    }

    /// Another controller waits for the end of this one.
    pub(crate) fn wait_for_end(&mut self, core: &Core, reset: CrossReset) {
        self.waiting.join(core, reset);
    }

    /// The association does not end in time: those who wait are told that its end is not known.
    pub(crate) fn give_up_waiting(&mut self, core: &Core) {
        tracing::error!(
            peer = %self.peer,
            cntlid = %self.cntlid(),
            io_queues = self.queues.len(),
            "a lost association has not ended within the advertised time (CQT); it is held until it has"
        );
        self.waiting.answer(core, ResetStatus::Failed);
    }

    /// A change of namespaces takes time, and may wait for this core: another thread makes it.
    fn manage(
        &mut self,
        commands: &mut Commands,
        core: &mut Core,
        command: CommandSlot,
        wish: HostWish,
    ) {
        let slot = command.key();
        let request = ManagementRequest {
            nqn: self.nqn.clone(),
            host: self.controller.hostnqn().clone(),
            wish,
            from: CommandPlace { conn: core.place(self.key), slot },
        };
        commands.slots.get(slot).phase = Phase::Device;
        if !core.shared.manage(request) {
            self.managed(commands, core, slot, Err(Status::INTERNAL));
        }
    }

    /// The result of a command about namespaces; with success, DW0.
    pub(crate) fn managed(
        &mut self,
        commands: &mut Commands,
        core: &mut Core,
        slot: SlotKey,
        result: Result<u32, Status>,
    ) {
        let Some(command) = commands.slots.resume(slot) else {
            tracing::error!(peer = %self.peer, ?slot, "an answer to a command that is completed");
            return;
        };
        let slot = commands.slots.get(slot);
        let (cid, nsid) = (slot.cid(), slot.sqe.namespace_id());
        if let Err(status) = result {
            self.record_own_failure(cid, status, nsid);
        }
        let (status, dw0) = match result {
            Ok(dw0) => (Status::SUCCESS, dw0),
            Err(status) => (status, 0),
        };
        commands.finish(core, command, Cqe { cid, status, dw0, ..Cqe::default() });
    }

    /// Frees the slot of an event request without an answer; says whether there was one.
    pub(crate) fn forget_event_request(&mut self, commands: &mut Commands, cid: CommandId) -> bool {
        let held = self.controller.forget_event_request(cid);
        if held && let Some(command) = commands.slots.find(cid) {
            tracing::debug!(peer = %self.peer, %cid, "the host reuses the identifier of an event request");
            commands.slots.release(command);
        }
        held
    }

    /// Carries out the actions that the controller asks for. Gives the reason if the association has to end;
    /// then actions may be left.
    pub(crate) fn run_actions(
        &mut self,
        commands: &mut Commands,
        cx: &mut Context<'_>,
        core: &mut Core,
    ) -> Option<&'static str> {
        while let Some(action) = self.controller.poll_action() {
            match action {
                Action::CompleteAer { cid, status, dw0 } => {
                    if let Some(command) = commands.slots.find(cid) {
                        let cqe = Cqe { cid, status, dw0, ..Cqe::default() };
                        commands.finish(core, command, cqe);
                    }
                }
                Action::CloseIoQueues => {
                    self.closing_queues = true;
                    self.close_queues(core);
                    self.queues_maybe_drained(cx.now);
                }
                Action::Abandon { reason } => {
                    tracing::warn!(peer = %self.peer, ?reason, "abandoning the association");
                    if reason == AbandonReason::KeepAliveExpired {
                        let host = self.controller.hostnqn();
                        core.shared.ledger().note_keep_alive_timeout(&self.nqn, host);
                    }
                    return Some("the association is abandoned");
                }
            }
        }
        self.log_tolerances();
        None
    }

    /// Logs each deviation of the host that the controller tolerates, once for each association.
    pub(crate) fn log_tolerances(&mut self) {
        while let Some(tolerance) = self.controller.poll_tolerance() {
            let host = self.controller.hostnqn();
            tracing::info!(peer = %self.peer, %host, "tolerated: {tolerance}");
        }
    }

    /// The controller's timer may have run out.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        self.note_traffic(now);
        self.controller.handle_timeout(now);
    }

    /// A new snapshot is there. Gives whether the connection's listener still leads here.
    pub(crate) fn handle_snapshot(&mut self, snapshot: &Arc<TargetSnapshot>, port_id: u16) -> bool {
        self.controller.handle_snapshot(Arc::clone(snapshot));
        match snapshot.subsystem(&self.nqn) {
            Some(subsystem) => snapshot.leads_to(port_id, subsystem),
            None => snapshot.listener(port_id).is_some(),
        }
    }
}

// -------------------------------------------------------------------------------- I/O queues

impl Association {
    /// An I/O queue wants to join. `open`: the admin connection takes commands.
    pub(crate) fn join(
        &mut self,
        now: Instant,
        open: bool,
        place: Place,
        request: &ConnectRequest,
        counters: Arc<QueueCounters>,
    ) -> Result<Joined, ConnectError> {
        if !open || self.closing_queues {
            return Err(controller_gone());
        }
        self.controller.handle_io_connect(now, request)?;
        if let Some(stats) = &self.stats {
            stats.attach(Arc::clone(&counters));
        }
        self.queues.push(JoinedQueue { qid: request.qid, place, counters });
        self.copies_across.set(self.controller.enables_copy_across());
        let copies_across = self.copies_across.clone();
        Ok(Joined { hostid: self.controller.hostid(), copies_across })
    }

    /// An I/O queue is gone with all its commands.
    pub(crate) fn queue_closed(&mut self, now: Instant, qid: QueueId, place: Place) {
        let position = self.queues.iter().position(|q| q.qid == qid && q.place == place);
        let Some(position) = position else { return };
        let queue = self.queues.swap_remove(position);
        if let Some(stats) = &self.stats {
            stats.detach(&queue.counters);
        }
        self.controller.io_queue_closed(qid);
        self.queues_maybe_drained(now);
    }

    /// An I/O queue has moved. Gives whether it goes on there: not if the queues are being closed. `None`: there is no
    /// such queue.
    pub(crate) fn queue_moved(&mut self, qid: QueueId, from: Place, to: Place) -> Option<bool> {
        let mut queues = self.queues.iter_mut();
        queues.find(|queue| queue.qid == qid && queue.place == from)?.place = to;
        Some(!self.closing_queues)
    }

    fn queues_maybe_drained(&mut self, now: Instant) {
        if self.closing_queues && self.queues.is_empty() {
            self.closing_queues = false;
            self.controller.io_queues_drained(now);
        }
    }

    /// Tells the I/O queues to close.
    pub(crate) fn close_queues(&self, core: &Core) {
        for queue in &self.queues {
            core.send(queue.place.core, Message::Close { key: queue.place.key });
        }
    }

    /// The admin connection is gone, and the controller with it.
    pub(crate) fn end(&mut self, core: &Core, counters: &Arc<QueueCounters>, now: Instant) {
        if let Some(stats) = &self.stats {
            stats.detach(counters);
        }
        let was_lost = !self.controller.is_shut_down();
        core.shared.remove_controller(self.cntlid(), &self.nqn, was_lost.then_some(now));
        self.waiting.answer(core, ResetStatus::Succeeded);
        if let Some(keys) = &core.shared.config.generated_keys {
            self.generated.iter().for_each(|identity| keys.forget(identity));
        }
    }
}

// ------------------------------------------------------------------------- another process

impl Association {
    /// Whether nothing is under way that another process could not go on with.
    pub(crate) fn rests(&self) -> bool {
        !self.closing_queues
            && self.waiting.is_empty()
            && self.generated.is_empty()
            && self.controller.is_between()
    }

    /// It cannot be handed over, and is about to end.
    pub(crate) fn give_notice(&mut self) {
        self.controller.announce_departure();
    }

    /// It does not end after all.
    pub(crate) fn withdraw_notice(&mut self) {
        self.controller.withdraw_departure();
    }

    /// Whether its host knows all that it has been told about its end.
    pub(crate) fn knows_notice(&self) -> bool {
        self.controller.departure_is_known()
    }

    /// What another process needs to go on with the controller.
    pub(crate) fn hand_over(
        &self,
        now: Instant,
    ) -> (ControllerInstance, Security, ControllerState) {
        let controller = &self.controller;
        (controller.instance(), controller.security(), controller.hand_over(now))
    }

    /// Where its I/O queues are.
    pub(crate) fn places(&self) -> Vec<Place> {
        self.queues.iter().map(|queue| queue.place).collect()
    }

    /// What I/O queues of it learn when they come.
    pub(crate) fn hostid(&self) -> HostId {
        self.controller.hostid()
    }

    /// [`Joined::copies_across`].
    pub(crate) fn switch(&self) -> Switch {
        self.copies_across.set(self.controller.enables_copy_across());
        self.copies_across.clone()
    }

    /// It goes on after a rest, which was no silence of the host.
    pub(crate) fn go_on(&mut self, now: Instant) {
        self.controller.command_seen(now);
    }

    /// An I/O queue has come from another process, too.
    pub(crate) fn queue_restored(
        &mut self,
        qid: QueueId,
        place: Place,
        counters: Arc<QueueCounters>,
    ) {
        if let Some(stats) = &self.stats {
            stats.attach(Arc::clone(&counters));
        }
        self.queues.push(JoinedQueue { qid, place, counters });
    }
}
