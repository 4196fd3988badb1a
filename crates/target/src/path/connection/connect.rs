//! Connect: how a connection becomes an admin queue or an I/O queue.

use std::sync::Arc;

use raceline_auth::{Concatenation, identity_names};
use raceline_proto::controller::{
    self as controller, Channel, ConnectError, ConnectRequest, Controller, Security,
    connect_transfer, parse_connect,
};
use raceline_proto::nvme::fabrics::ConnectResponse;
use raceline_proto::nvme::{CommandId, ControllerId, Cqe, HostNqn};
use raceline_proto::reservation::ReservingHost;
use raceline_reactor::{Context, IoBuf};

use super::{Connection, Role};
use crate::changes::config::SubsystemConfig;
use crate::changes::message::Message;
use crate::changes::snapshot::VisibleSubsystem;
use crate::path::association::{Association, controller_gone};
use crate::path::authentication::{Authentication, Proof};
use crate::path::commands::IoQueue;
use crate::path::core::Core;
use crate::path::life::LifeState;
use crate::path::outbox::Answers;
use crate::path::slots::{CommandSlot, Slots};
use crate::path::traveller::Joined;
use crate::records::controllers::NewController;
use crate::records::counters::QueueTotals;
use crate::records::ledger::QueueRecord;

impl Connection {
    /// A command before Connect: only Connect itself is legal. Gives it back when it can be executed.
    pub(super) fn begin_connect(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        command: CommandSlot,
    ) -> Option<CommandSlot> {
        let slot = self.commands.slots.get(command.key());
        match connect_transfer(&slot.sqe) {
            Ok(transfer) => slot.transfer = transfer,
            Err(status) => {
                self.commands.refuse(core, command, status);
                return None;
            }
        }
        // Not from the pool: strangers must not take I/O buffers from hosts.
        let buf = IoBuf::heap(slot.transfer.len as usize);
        self.commands.give_buffer(cx, core, command, buf)
    }

    pub(super) fn execute_connect(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        command: CommandSlot,
    ) {
        let slot = self.commands.slots.get(command.key());
        let (sqe, data) = (slot.sqe, slot.buf.take());
        let data = data.as_deref().unwrap_or_default();
        let result = parse_connect(&sqe, data).and_then(|request| {
            self.check_names(cx, &request)?;
            if request.qid.is_admin() {
                self.connect_admin(cx, core, request, sqe.command_id())
            } else {
                self.ask_home(cx, core, request)
            }
        });
        if let Err(error) = result {
            self.refuse_connect(core, command, &error);
        }
    }

    /// A host that has proved in a handshake who it is, and for which subsystem, may not be another one now (NVMe/TCP
    /// 1.1, 3.6.1.4).
    fn check_names(&self, cx: &Context<'_>, request: &ConnectRequest) -> Result<(), ConnectError> {
        let Some(identity) = cx.io.peer_identity(self.socket) else { return Ok(()) };
        let HostNqn::Named(host) = &request.hostnqn else { return Err(ConnectError::OTHER_HOST) };
        if identity_names(identity, host, &request.subnqn) {
            return Ok(());
        }
        tracing::warn!(
            peer = %self.ends.peer,
            host = %request.hostnqn,
            subsystem = %request.subnqn,
            identity = %identity.escape_debug(),
            "Connect has other names than the TLS identity"
        );
        Err(ConnectError::OTHER_HOST)
    }

    fn refuse_connect(&mut self, core: &mut Core, command: CommandSlot, error: &ConnectError) {
        tracing::info!(event = "refused", peer = %self.ends.peer, %error, "refused Connect");
        let cid = self.commands.slots.get(command.key()).cid();
        let (status, dw0) = (error.status, error.dw0());
        self.commands.finish(core, command, Cqe { cid, status, dw0, ..Cqe::default() });
    }

    /// Connect on the admin queue: a new association.
    fn connect_admin(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        request: ConnectRequest,
        cid: CommandId,
    ) -> Result<(), ConnectError> {
        let snapshot = Arc::clone(&core.snapshot.target);
        let place = core.place(self.key);
        let channel = self.channel(cx);
        let role = self.find(core, &request, channel)?;
        let nqn = request.subnqn.clone();
        let subsystem = core.snapshot.subsystem(&nqn);
        let ids = subsystem.map_or(SubsystemConfig::CONTROLLER_IDS, |s| s.controller_ids.clone());
        let stats = subsystem.map(|s| Arc::clone(&s.stats));
        let proof = self.demanded_proof(core, &request, channel)?;
        let proves = proof.is_some_and(|proof| !proof.is_given);
        if proves {
            self.may_authenticate(cx, core, &request.hostnqn)?;
        }
        let (subsystem, host) = (&nqn, &request.hostnqn);
        let new = NewController { place, subsystem, host, ids: &ids, is_proven: !proves };
        let instance = core.shared.add_controller(&new, cx.now).map_err(|full| {
            tracing::warn!(host = %request.hostnqn, ?full, "no controller number to give");
            ConnectError::BUSY
        })?;
        let joining = request.clone();
        let local_address = self.ends.local;
        let port_id = self.ends.port_id;
        let cntlid = instance.cntlid;
        let security = match proof {
            // It gives access to nothing, and so lacks nothing.
            Some(proof) if proof.concatenation == Concatenation::New => Security::BOTH,
            proof => {
                channel.security().or(Security { authentication: proof.is_some(), tls: false })
            }
        };
        let association = controller::Association {
            instance,
            request,
            role,
            snapshot,
            local_address,
            port_id,
            security,
        };
        let controller = Controller::new(association, cx.now);
        if let Some(stats) = &stats {
            stats.attach(Arc::clone(self.commands.counters()));
        }
        let peer = self.ends.peer;
        tracing::info!(event = "connect", %peer, host = %joining.hostnqn, subsystem = %joining.subnqn, %cntlid, "host connected");
        let mut association = Association::new(controller, (self.key, peer), nqn, stats);
        if channel == Channel::Concatenated {
            // The first key of an association takes the place of none.
            let _ = association.has_generated(cx.io.peer_identity(self.socket).unwrap_or_default());
        }
        self.connected(cx, core, &joining, cid, cntlid);
        association.log_tolerances();
        self.role = Role::Admin(Box::new(association));
        self.arm_timer(cx);
        Ok(())
    }

    /// The queue is connected: sets it up and answers the host. The deadline and the pre-Connect caps end.
    fn connected(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        request: &ConnectRequest,
        cid: CommandId,
        cntlid: ControllerId,
    ) {
        let proof = self.demanded_proof(core, request, self.channel(cx));
        // Who has lost its keys since has to prove itself, and cannot.
        let proof = proof.unwrap_or(Some(Proof::default()));
        let secrets = core.snapshot.secrets(&request.subnqn);
        self.commands.auth = proof.and_then(|proof| Authentication::new(secrets, request, proof));
        if !self.commands.is_proven() {
            // A stranger as yet: it goes on counting as a socket before Connect.
            self.life.prove(cx.now + core.shared.config.pre_connect.authentication);
            self.arm_timer(cx);
        } else {
            self.admit(core);
        }
        let (entries, is_admin) = (queue_entries(request), request.qid.is_admin());
        let answers = Answers {
            entries,
            flow_control: !request.disable_sq_flow,
            says_success: core.shared.config.c2h_success,
        };
        self.commands.out.set_queue(is_admin, answers);
        self.commands.slots = Slots::new(entries);
        self.inbox.set_queue(is_admin);
        let record = QueueRecord {
            qid: request.qid,
            entries,
            cntlid,
            subsystem: request.subnqn.clone(),
            host: request.hostnqn.clone(),
            hostid: request.hostid,
            peer: self.ends.peer,
            local: self.ends.local,
            is_rdma: self.ends.is_rdma,
            counters: Arc::clone(self.commands.counters()),
            before: QueueTotals::default(),
        };
        core.shared.ledger().attach(core.place(self.key), record);
        let concatenates = proof.is_some_and(|proof| proof.concatenation == Concatenation::New);
        let response = ConnectResponse {
            cntlid,
            authentication_required: !self.commands.is_proven() && !concatenates,
            // An authentication, and then a secure channel.
            secure_channel_required: concatenates,
        };
        let cqe = Cqe { cid, dw0: response.to_dw0(), ..Cqe::default() };
        self.commands.out.push_connect_response(core, cqe);
    }

    /// Connect on an I/O queue: the core that has the controller decides.
    fn ask_home(
        &mut self,
        cx: &Context<'_>,
        core: &mut Core,
        request: ConnectRequest,
    ) -> Result<(), ConnectError> {
        let channel = self.channel(cx);
        self.find(core, &request, channel)?;
        if self.demanded_proof(core, &request, channel)?.is_some_and(|proof| !proof.is_given) {
            self.may_authenticate(cx, core, &request.hostnqn)?;
        }
        let home = core
            .shared
            .find_controller(request.cntlid, &request.subnqn)
            .ok_or(ConnectError::UNKNOWN_CONTROLLER)?;
        let from = core.place(self.key);
        let counters = Arc::clone(self.commands.counters());
        self.life.awaiting += 1;
        self.role = Role::Joining(Box::new(request.clone()), home);
        let request = Box::new(request);
        let message = Message::IoConnect { home: home.place.key, from, request, counters };
        core.send(home.place.core, message);
        Ok(())
    }

    /// The controller's core has decided.
    pub(crate) fn io_connected(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        result: Result<Joined, ConnectError>,
    ) {
        self.life.awaiting -= 1;
        let Role::Joining(request, home) = std::mem::replace(&mut self.role, Role::New) else {
            return;
        };
        let port_id = self.ends.port_id;
        let snapshot = &core.snapshot.target;
        let subsystem = core.snapshot.subsystem(&request.subnqn);
        let reached = subsystem.filter(|s| snapshot.leads_to(port_id, &s.subsystem));
        // Slot 0 is the only one before Connect; a close has freed it.
        let command = self.commands.slots.resume_at(0);
        let error = match (result, reached) {
            (Ok(Joined { hostid, copies_across }), Some(subsystem)) => {
                let host = ReservingHost { id: hostid, name: request.hostnqn.clone() };
                let visible = VisibleSubsystem::new(subsystem, host, port_id);
                // Until the host has proved itself, if it has to.
                let qid = request.qid;
                self.role = Role::Proving(Box::new(IoQueue { qid, home, visible, copies_across }));
                let Some(command) = command else { return };
                let cid = self.commands.slots.get(command.key()).cid();
                self.commands.slots.release(command);
                if self.life.state < LifeState::Terminating {
                    self.connected(cx, core, &request, cid, home.cntlid);
                }
                if self.commands.is_proven() {
                    self.begin_io();
                    self.update_share(core);
                }
                return;
            }
            (Ok(_), None) => {
                let (qid, from) = (request.qid, core.place(self.key));
                let message = Message::IoClosed { home: home.place.key, qid, from };
                core.send(home.place.core, message);
                controller_gone()
            }
            (Err(error), _) => error,
        };
        if let Some(command) = command {
            self.refuse_connect(core, command, &error);
        }
    }
}

/// Entries of the queue; [`find_subsystem`] has checked them against a limit of 16 bits.
fn queue_entries(request: &ConnectRequest) -> u16 {
    u16::try_from(request.queue_entries).unwrap_or(u16::MAX)
}
