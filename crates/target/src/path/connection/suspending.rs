//! How a connection rests between two commands, goes to another process, or comes from one.
//!
//! As for a move to another core ([`super::moving`]), nothing of it may be in flight. Its state and its socket stay here
//! until the other process has them: if that fails, it goes on.

use std::sync::Arc;

use raceline_proto::controller::{self as controller, Controller, Role as ControllerRole};
use raceline_proto::nvme::{HostId, QueueId, Sqe};
use raceline_proto::reservation::ReservingHost;
use raceline_proto::tcp::{ControllerQueue, FatalError};
use raceline_reactor::Context;
use raceline_reactor::io::SocketId;
use zerocopy::{FromBytes as _, IntoBytes as _};

use super::{Connection, Role};
use crate::changes::message::Leavers;
use crate::changes::snapshot::VisibleSubsystem;
use crate::path::association::Association;
use crate::path::authentication::Authentication;
use crate::path::commands::{Commands, IoQueue};
use crate::path::core::Core;
use crate::path::handed::{HandedConnection, HandedController, HandedQueue};
use crate::path::inbox::Inbox;
use crate::path::life::{Life, LifeState};
use crate::path::outbox::Outbox;
use crate::path::slots::{Phase, Slots};
use crate::path::suspension::{Packed, Settled, Suspended};
use crate::path::traveller::{PackedOutbox, Switch};
use crate::records::controllers::NewController;
use crate::records::counters::{QueueCounters, QueueTotals};
use crate::records::ledger::QueueRecord;
use crate::records::names::{ConnKey, Ends, Home, Place};

type Made = Result<(Connection, Settled), String>;

impl Connection {
    /// The connection is to rest as soon as it can.
    pub(crate) fn suspend(&mut self, cx: &mut Context<'_>, core: &mut Core) {
        if !self.may_rest() || self.suspended.is_some() {
            return;
        }
        self.moving = None;
        self.suspended = Some(Suspended::default());
        if matches!(self.role, Role::Io) {
            self.commands.begin_move(core);
        }
        self.comes_to_rest(cx);
    }

    /// If it is that of a controller which is about to end, tells its host, and says so.
    pub(crate) fn give_notice(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        why: Leavers,
    ) -> bool {
        let Role::Admin(association) = &mut self.role else { return false };
        let stays = why == Leavers::NotHandedOver && !self.is_carried;
        if stays || self.life.state > LifeState::Open || self.life.draining {
            return false;
        }
        let (peer, cntlid, nqn) = (self.ends.peer, association.cntlid(), association.nqn());
        if why == Leavers::NotHandedOver {
            tracing::info!(
                %peer, %cntlid, %nqn,
                "not handed over, as the keys of TLS or the queues of RDMA are this process's: its host connects anew"
            );
        }
        association.give_notice();
        self.run_actions(cx, core);
        true
    }

    /// Whether nobody has to be told any more.
    pub(crate) fn knows_notice(&self) -> bool {
        match &self.role {
            Role::Admin(association) => association.knows_notice(),
            _ => true,
        }
    }

    /// Whether it can rest at all: not if bytes of it are in a stream of a provider, or it is about to end.
    pub(crate) fn may_rest(&self) -> bool {
        !self.is_carried && self.life.state <= LifeState::Open && !self.life.draining
    }

    /// Whether it rests. A receive that nothing is to come by any more is taken back.
    pub(crate) fn comes_to_rest(&mut self, cx: &mut Context<'_>) -> bool {
        if self.holds_back()
            && self.inbox.is_receiving()
            && let Some(suspended) = &mut self.suspended
            && !std::mem::replace(&mut suspended.is_stopping, true)
            && let Some(io) = cx.io.hands_over()
        {
            io.stop_recv(self.socket);
        }
        // It may have come to need bytes since then.
        self.start_recv(cx);
        self.rests()
    }

    /// Whether bytes have yet to come before it can rest.
    pub(super) fn needs_bytes(&self) -> bool {
        let queue = &self.commands.out.queue;
        match &self.role {
            Role::New if self.life.state == LifeState::Greeting => !queue.is_untouched(),
            Role::Io => self.commands.await_bytes() || !queue.is_between(),
            Role::Admin(_) if self.commands.is_proven() => {
                self.commands.await_bytes() || !queue.is_between()
            }
            // Connect, or the host's proof.
            Role::New | Role::Joining(..) | Role::Proving(_) | Role::Admin(_) => true,
        }
    }

    fn rests(&self) -> bool {
        let waits = |phase: Phase| match self.role {
            Role::Admin(_) => phase == Phase::Event,
            _ => phase == Phase::Move,
        };
        let decided = match &self.role {
            Role::Admin(association) => association.rests(),
            _ => true,
        };
        self.suspended.is_some()
            && self.may_rest()
            && !self.needs_bytes()
            && decided
            && self.life.awaiting == 0
            && self.inbox.is_idle()
            && self.commands.rest(waits)
            && self.commands.out.is_idle()
    }

    /// It goes on.
    pub(crate) fn resume_from_suspension(&mut self, cx: &mut Context<'_>, core: &mut Core) {
        if let Role::Admin(association) = &mut self.role {
            association.withdraw_notice();
        }
        let Some(suspended) = self.suspended.take() else {
            return self.run_actions(cx, core);
        };
        if matches!(self.role, Role::Io) {
            self.commands.end_move(cx, core);
            if !suspended.commands.is_empty()
                && let Err(violation) = self.commands.take_again(cx, core, &suspended.commands)
            {
                self.fatal(cx, core, &FatalError::new(violation));
            }
        }
        if let Role::Admin(association) = &mut self.role {
            association.go_on(cx.now);
        }
        self.run_actions(cx, core);
        self.start_recv(cx);
    }

    /// What another process needs to go on with it; `None`: it does not rest.
    pub(crate) fn hand_over(&mut self, cx: &mut Context<'_>, core: &Core) -> Option<Packed> {
        if !self.rests() {
            return None;
        }
        let place = core.place(self.key);
        let listener = core.snapshot.target.listener(self.ends.port_id)?.address;
        let (queue, queues) = match &self.role {
            Role::New => (None, None),
            Role::Admin(association) => {
                let (instance, security, state) = association.hand_over(cx.now);
                let (authentication, tls) = (security.authentication, security.tls);
                let (ciu, cirn) = (instance.ciu, instance.cirn);
                let controller = HandedController { ciu, cirn, authentication, tls, state };
                (Some(self.handed_queue(core, Some(controller))?), Some(association.places()))
            }
            _ => (Some(self.handed_queue(core, None)?), None),
        };
        let socket = cx.io.hands_over()?.copy_socket(self.socket)?;
        let Ends { peer, local, .. } = self.ends;
        let connection = HandedConnection { peer, local, listener, core: core.index, queue };
        Some(Packed { connection, place, socket, queues })
    }

    fn handed_queue(
        &self,
        core: &Core,
        controller: Option<HandedController>,
    ) -> Option<HandedQueue> {
        let record = core.shared.ledger().live.get(&core.place(self.key))?.clone();
        let (answers, sqhd) = self.commands.out.answers();
        let active = self.commands.slots.active();
        Some(HandedQueue {
            qid: record.qid.0,
            entries: record.entries,
            cntlid: record.cntlid.0,
            subsystem: record.subsystem.as_str().to_owned(),
            host: match &record.host {
                raceline_proto::nvme::HostNqn::Named(name) => Some(name.as_str().to_owned()),
                raceline_proto::nvme::HostNqn::Unnamed => None,
            },
            hostid: record.hostid.0,
            flow_control: answers.flow_control,
            says_success: answers.says_success,
            sqhd,
            queue: self.commands.out.queue.hand_over()?,
            commands: active.map(|(_, slot)| slot.sqe.as_bytes().to_vec()).collect(),
            is_proven: self.commands.auth.is_some(),
            controller,
        })
    }

    /// A connection of another process on which nothing has come.
    pub(crate) fn take_over_fresh(
        cx: &mut Context<'_>,
        core: &mut Core,
        (key, socket): (ConnKey, SocketId),
        ends: Ends,
    ) -> Made {
        let ticket = core.shared.enter(ends.peer.ip(), cx.now);
        let ticket = ticket.map_err(|_| "too many sockets wait for Connect".to_owned())?;
        let mut connection = Self::new(key, socket, (ends, ticket), core, cx.now);
        core.shared.settle(ticket, core.place(key));
        connection.suspended = Some(Suspended::default());
        let (place, counters) = (core.place(key), Arc::clone(connection.commands.counters()));
        let (hostid, copies_across) = (HostId([0; 16]), Switch::default());
        Ok((connection, Settled { place, counters, hostid, copies_across }))
    }

    /// A queue of another process.
    pub(crate) fn take_over(
        cx: &mut Context<'_>,
        core: &mut Core,
        (key, socket): (ConnKey, SocketId),
        (ends, handed, home): (Ends, &HandedQueue, Option<(Home, HostId, Switch)>),
    ) -> Made {
        let request = handed.request().ok_or("a name is wrong")?;
        let mut queue = ControllerQueue::take_over(&handed.queue).ok_or("its state is wrong")?;
        let is_admin = request.qid.is_admin();
        queue.set_queue_kind(is_admin);
        core.digests |= queue.data_digest();
        let (answers, sqhd, counters) = (handed.answers(), handed.sqhd, Arc::default());
        let packed = PackedOutbox { queue, counters: Arc::clone(&counters), answers, sqhd };
        let sqes = handed.commands.iter().map(|bytes| Sqe::read_from_bytes(bytes));
        let sqes: Vec<Sqe> = sqes.collect::<Result<_, _>>().map_err(|_| "a command is wrong")?;
        let mut commands = Commands::new(key, ends.peer, core);
        commands.out = Outbox::unpack(key, packed);
        commands.slots = Slots::new(answers.entries);
        if handed.is_proven {
            let secrets = core.snapshot.secrets(&request.subnqn);
            let proof = crate::path::authentication::Proof { is_given: true, ..Default::default() };
            commands.auth = Authentication::new(secrets, &request, proof);
        }
        let place = core.place(key);
        let mut suspended = Suspended::default();
        let (role, hostid, copies_across) = match (&handed.controller, home) {
            (Some(controller), None) => {
                for sqe in &sqes {
                    let taken = commands.slots.take(sqe).map_err(|_| "a command comes twice")?;
                    commands.slots.get(taken.key()).phase = Phase::Event;
                }
                let made = association(cx, core, (key, ends), (handed, controller), &counters)?;
                let (hostid, switch) = (made.hostid(), made.switch());
                (Role::Admin(Box::new(made)), hostid, switch)
            }
            (None, Some((home, hostid, copies_across))) => {
                let subsystem = core.snapshot.subsystem(&request.subnqn);
                let subsystem = subsystem.ok_or("its subsystem is gone")?;
                let host = ReservingHost { id: hostid, name: request.hostnqn.clone() };
                let visible = VisibleSubsystem::new(subsystem, host, ends.port_id);
                let (qid, switch) = (request.qid, copies_across.clone());
                commands.io = Some(IoQueue { qid, home, visible, copies_across: switch });
                suspended.commands = sqes;
                (Role::Io, hostid, copies_across)
            }
            _ => return Err("it is no queue of a controller".to_owned()),
        };
        let record = QueueRecord {
            qid: request.qid,
            entries: handed.entries,
            cntlid: request.cntlid,
            subsystem: request.subnqn,
            host: request.hostnqn,
            hostid: request.hostid,
            peer: ends.peer,
            local: ends.local,
            is_rdma: ends.is_rdma,
            counters: Arc::clone(&counters),
            before: QueueTotals::default(),
        };
        core.shared.ledger().attach(place, record);
        let admitted = core.shared.enter(ends.peer.ip(), cx.now).map(|t| core.shared.admit(t));
        let mut inbox = Inbox::of(&core.shared.config, &ends);
        inbox.set_queue(is_admin);
        let connection = Self {
            key,
            socket,
            ends,
            life: Life::of_queue(cx.now),
            admitted: admitted.is_ok(),
            role,
            inbox,
            commands,
            moving: None,
            is_carried: false,
            suspended: Some(suspended),
        };
        Ok((connection, Settled { place, counters, hostid, copies_across }))
    }

    /// An I/O queue of the controller that lives here has come from another process as well.
    pub(crate) fn io_queue_restored(
        &mut self,
        qid: QueueId,
        place: Place,
        counters: Arc<QueueCounters>,
    ) {
        if let Role::Admin(association) = &mut self.role {
            association.queue_restored(qid, place, counters);
        }
    }
}

/// The association of a controller of another process.
fn association(
    cx: &Context<'_>,
    core: &Core,
    (key, ends): (ConnKey, Ends),
    (handed, of): (&HandedQueue, &HandedController),
    counters: &Arc<QueueCounters>,
) -> Result<Association, String> {
    let request = handed.request().ok_or("a name is wrong")?;
    let (nqn, host) = (request.subnqn.clone(), request.hostnqn.clone());
    let snapshot = Arc::clone(&core.snapshot.target);
    let devices = core.snapshot.subsystem(&nqn);
    let role = match (nqn.is_discovery(), snapshot.subsystem(&nqn)) {
        (true, _) => ControllerRole::Discovery,
        (false, Some(subsystem)) => ControllerRole::Io(Arc::clone(subsystem)),
        (false, None) => return Err("its subsystem is gone".to_owned()),
    };
    let instance = of.instance(handed.cntlid);
    let parts = controller::Association {
        instance,
        request,
        role,
        snapshot,
        local_address: ends.local,
        port_id: ends.port_id,
        security: of.security(),
    };
    let controller = Controller::take_over(parts, &of.state, cx.now).map_err(|e| e.to_string())?;
    let place = core.place(key);
    let ids = &(handed.cntlid..=handed.cntlid);
    let new = NewController { place, subsystem: &nqn, host: &host, ids, is_proven: true };
    if !core.shared.restore_controller(&new, instance) {
        return Err(format!("controller {} is there already", handed.cntlid));
    }
    let stats = devices.map(|devices| Arc::clone(&devices.stats));
    if let Some(stats) = &stats {
        stats.attach(Arc::clone(counters));
    }
    Ok(Association::new(controller, (key, ends.peer), nqn, stats))
}
