//! The admin queue's connection: carries out the decisions of its association.

use std::sync::Arc;

use raceline_proto::controller::{ConnectError, ConnectRequest, ErrorEntry};
use raceline_proto::nvme::authentication::is_authentication;
use raceline_proto::nvme::{NamespaceId, Nqn, QueueId, Sqe, Status};
use raceline_proto::reservation::Notice;
use raceline_reactor::Context;

use super::{Connection, Role};
use crate::path::core::Core;
use crate::path::life::LifeState;
use crate::path::slots::CommandSlot;
use crate::path::traveller::Joined;
use crate::records::counters::QueueCounters;
use crate::records::names::{Place, SlotKey};

impl Connection {
    pub(super) fn execute_admin(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        command: CommandSlot,
    ) {
        if is_authentication(&self.commands.slots.get(command.key()).sqe) {
            return self.authenticate(cx, core, command);
        }
        let Role::Admin(association) = &mut self.role else { return };
        if let Some(why) = association.execute(&mut self.commands, cx, core, command) {
            self.close(cx, core, why);
        }
        self.run_actions(cx, core);
    }

    /// Forgets the event request with this identifier; gives whether there was one. A host that is about to
    /// disconnect may have forgotten its requests, and waits for the answer to its last commands.
    #[cold]
    pub(super) fn forgets_event_request(&mut self, sqe: &Sqe) -> bool {
        let Role::Admin(association) = &mut self.role else { return false };
        association.forget_event_request(&mut self.commands, sqe.command_id())
    }

    /// Carries out the actions that the controller asks for.
    pub(super) fn run_actions(&mut self, cx: &mut Context<'_>, core: &mut Core) {
        while let Role::Admin(association) = &mut self.role
            && let Some(why) = association.run_actions(&mut self.commands, cx, core)
        {
            self.close(cx, core, why);
        }
        self.arm_timer(cx);
    }

    /// The result of a command about namespaces, or about their reservations.
    pub(crate) fn managed(&mut self, core: &mut Core, slot: SlotKey, result: Result<u32, Status>) {
        if let Role::Admin(association) = &mut self.role {
            association.managed(&mut self.commands, core, slot, result);
        } else {
            self.commands.reserved(core, slot, result);
        }
    }

    /// Tells the controller what has happened to the reservations of a namespace, if that concerns its host.
    pub(crate) fn note_reservations(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        nqn: &Nqn,
        (nsid, notices): (NamespaceId, &[Notice]),
    ) {
        if let Role::Admin(association) = &mut self.role {
            association.note_reservations(nqn, nsid, notices);
            self.run_actions(cx, core);
        }
    }

    /// A command of an I/O queue failed.
    pub(crate) fn record_failure(&mut self, entry: ErrorEntry) {
        if let Role::Admin(association) = &mut self.role {
            association.record_failure(entry);
        }
    }

    /// Closes the connection if it is that host's admin queue with that subsystem.
    pub(crate) fn disconnect(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        nqn: &Nqn,
        host: &Nqn,
    ) {
        if let Role::Admin(association) = &self.role
            && association.is_of(nqn, host)
        {
            self.close(cx, core, "its host was removed");
        }
    }

    /// An I/O queue wants to join. `None`: there is no controller here.
    pub(crate) fn handle_io_connect(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        from: Place,
        request: &ConnectRequest,
        counters: Arc<QueueCounters>,
    ) -> Option<Result<Joined, ConnectError>> {
        let open = self.life.state == LifeState::Open && self.commands.is_proven();
        let Role::Admin(association) = &mut self.role else { return None };
        let result = association.join(cx.now, open, from, request, counters);
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
        if let Role::Admin(association) = &mut self.role {
            association.queue_closed(cx.now, qid, place);
            self.run_actions(cx, core);
        }
    }

    /// A new snapshot is there.
    pub(crate) fn handle_snapshot(&mut self, cx: &mut Context<'_>, core: &mut Core) {
        self.update_keys(core);
        let (snapshot, port_id) = (&core.snapshot.target, self.ends.port_id);
        let mut changed = false;
        let gone = match (&mut self.role, &mut self.commands.io) {
            (Role::Admin(association), _) => {
                let reached = association.handle_snapshot(snapshot, port_id);
                (!reached).then_some("its listener was removed")
            }
            (Role::Proving(io), _) => match core.snapshot.subsystem(io.visible.nqn()) {
                Some(subsystem) => {
                    io.visible.update(subsystem);
                    None
                }
                None => Some("its subsystem was removed"),
            },
            (Role::Io, Some(io)) => match core.snapshot.subsystem(io.visible.nqn()) {
                Some(subsystem) if snapshot.leads_to(port_id, &subsystem.subsystem) => {
                    if let Some(restricts) = io.visible.update(subsystem) {
                        changed = true;
                        if restricts {
                            self.commands.check_waiting(core);
                        }
                    }
                    None
                }
                Some(_) => Some("its listener was removed"),
                None => Some("its subsystem was removed"),
            },
            _ => None,
        };
        if let Some(why) = gone {
            self.close(cx, core, why);
        }
        self.update_share(core);
        if changed {
            self.restart_throttled(cx, core);
        }
        self.run_actions(cx, core);
    }
}
