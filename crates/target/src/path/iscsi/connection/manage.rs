//! Task management functions, logout, and what else ends commands of several sessions (RFC 7143, 11.5, 11.14).

use std::time::Duration;

use raceline_iscsi::pdu::{
    AsyncEvent, LogoutReason, LogoutResponseCode, TmfFunction, TmfResponseCode,
};
use raceline_iscsi::target::{Async, Referenced, TargetConnection, TaskId, TaskManagement};
use raceline_reactor::Context;
use raceline_scsi::{Change, UnitAttention, lun_from_wire};

use super::{Connection, LifeState};
use crate::changes::iscsi_message::{IscsiMessage, Scope};
use crate::changes::management::DeviceRequest;
use crate::changes::message::{Leavers, Message};
use crate::changes::snapshot::DeviceId;
use crate::path::core::Core;
use crate::path::iscsi::slots::{Phase, Slot};
use crate::records::names::{Place, SlotKey};

/// How long an initiator that is asked to log out may take.
const LOGOUT_TIME: Duration = Duration::from_secs(30);
/// How long it may take when another process takes over. The take-over does not wait for so long.
const NOTICE_TIME: Duration = Duration::from_secs(5);

/// A task management function, or a logout, that waits for commands to end.
pub(super) struct Management {
    number: u32,
    /// Cores that have not answered.
    cores: usize,
    then: Then,
}

/// What happens when the commands have ended.
enum Then {
    /// The function is answered.
    Answer(TaskId),
    /// Others are told that their commands have ended, and the function answered.
    ClearUnit(TaskId, u16),
    /// The logical unit is reset, and the function answered.
    ResetUnit(TaskId, u16),
    /// All logical units of the target node are reset, and the function answered; `cold`: and all sessions end.
    ResetNode { task: TaskId, cold: bool },
    /// The logout is answered.
    LogOut,
}

impl Connection {
    // ---------------------------------------------------------------- task management

    /// A task management function has come.
    pub(super) fn manage(&mut self, core: &mut Core, task: TaskId, request: &TaskManagement) {
        let number = lun_from_wire(request.lun.to_be_bytes());
        let device = number.and_then(|number| self.device_of(number));
        let here = core.place(self.key);
        let answer = |this: &mut Self, core: &mut Core, code| {
            this.out.push(core, |proto, out| proto.tmf_response(task, code, out));
        };
        let lun = number.zip(device);
        match (request.function, lun) {
            (Some(TmfFunction::AbortTask), _) => match request.referenced {
                Referenced::Task(referenced) => match self.slots.of(referenced) {
                    Some(key) => {
                        self.end_scope(core, Scope::Task(here, key), Then::Answer(task));
                    }
                    None => answer(self, core, TmfResponseCode::NoTask),
                },
                Referenced::NeverCame => answer(self, core, TmfResponseCode::Complete),
                Referenced::None | Referenced::Unknown => {
                    answer(self, core, TmfResponseCode::NoTask);
                }
            },
            (Some(TmfFunction::AbortTaskSet), Some((_, device))) => {
                self.end_scope(core, Scope::TaskSet(here, device), Then::Answer(task));
            }
            (Some(TmfFunction::ClearTaskSet), Some((number, device))) => {
                self.end_scope(core, Scope::Unit(device), Then::ClearUnit(task, number));
            }
            (Some(TmfFunction::LogicalUnitReset), Some((number, device))) => {
                self.end_scope(core, Scope::Unit(device), Then::ResetUnit(task, number));
            }
            (Some(TmfFunction::TargetWarmReset | TmfFunction::TargetColdReset), _) => {
                let Some(session) = &self.session else { return };
                let scope = Scope::Node(session.node.name.clone());
                let cold = request.function == Some(TmfFunction::TargetColdReset);
                self.end_scope(core, scope, Then::ResetNode { task, cold });
            }
            (
                Some(
                    TmfFunction::AbortTaskSet
                    | TmfFunction::ClearTaskSet
                    | TmfFunction::LogicalUnitReset,
                ),
                None,
            ) => answer(self, core, TmfResponseCode::NoLun),
            (Some(TmfFunction::TaskReassign), _) => {
                answer(self, core, TmfResponseCode::ReassignUnsupported);
            }
            _ => answer(self, core, TmfResponseCode::Unsupported),
        }
    }

    fn device_of(&self, number: u16) -> Option<DeviceId> {
        self.session.as_ref()?.lun_as_seen(number).map(|view| view.lun.device)
    }

    /// Ends the commands of a scope, here at once and on all cores, and then does something.
    fn end_scope(&mut self, core: &mut Core, scope: Scope, then: Then) {
        let from = core.place(self.key);
        let number = self.next_management;
        self.next_management = number.wrapping_add(1);
        self.abort_scope(core, &scope);
        // Commands of this session alone are on this core.
        let cores = match scope {
            Scope::Task(..) | Scope::TaskSet(..) | Scope::Session(_) => from.core..from.core + 1,
            Scope::Unit(_) | Scope::Node(_) | Scope::Nexuses(..) => 0..core.shared.cores(),
        };
        self.managing.push(Management { number, cores: cores.len(), then });
        for other in cores {
            let message = IscsiMessage::Abort { scope: scope.clone(), from, number };
            core.send(other, Message::Iscsi(message));
        }
    }

    /// Ends the commands of a scope. Those that are with a device end when they come back.
    pub(crate) fn abort_scope(&mut self, core: &mut Core, scope: &Scope) {
        for key in self.in_scope(scope, core.index, |slot| !slot.aborted) {
            let Some(slot) = self.slots.get(key) else { continue };
            match slot.phase {
                Phase::Throttled | Phase::Buffer | Phase::Data => {
                    self.drop_command(core, key);
                }
                Phase::Lock | Phase::Fence | Phase::Device | Phase::Reserver => slot.aborted = true,
                Phase::Free => {}
            }
        }
    }

    /// The commands of this session in a scope for which `is_meant` is true.
    fn in_scope(
        &self,
        scope: &Scope,
        core: usize,
        is_meant: impl Fn(&Slot) -> bool,
    ) -> Vec<SlotKey> {
        let Some(session) = &self.session else { return Vec::new() };
        let here = Place { core, key: self.key };
        // A change of reservations may wait for the very commands that a preemption ends: it is not one of them.
        let is_preempted = matches!(scope, Scope::Nexuses(..));
        let counts =
            |slot: &Slot| !(is_preempted && slot.phase == Phase::Reserver) && is_meant(slot);
        match scope {
            Scope::Task(place, key) if *place == here => {
                let mut active = self.slots.active();
                active
                    .find(|(found, slot)| found == key && counts(slot))
                    .map(|(key, _)| key)
                    .into_iter()
                    .collect()
            }
            Scope::TaskSet(place, device) if *place == here => {
                self.slots.those(|slot| slot.device == Some(*device) && counts(slot))
            }
            Scope::Unit(device) => {
                self.slots.those(|slot| slot.device == Some(*device) && counts(slot))
            }
            Scope::Session(place) if *place == here => self.slots.those(counts),
            Scope::Node(node) if *node == session.node.name => self.slots.those(counts),
            Scope::Nexuses(device, nexuses) if nexuses.contains(&session.scsi) => {
                self.slots.those(|slot| slot.device == Some(*device) && counts(slot))
            }
            _ => Vec::new(),
        }
    }

    /// Whether commands that were ended are still with a device.
    pub(crate) fn has_aborted(&self, scope: &Scope, core: usize) -> bool {
        !self.in_scope(scope, core, |slot| slot.aborted).is_empty()
    }

    /// The commands of a task management function have ended on a core.
    pub(crate) fn aborted(&mut self, cx: &mut Context<'_>, core: &mut Core, number: u32) {
        let Some(place) = self.managing.iter().position(|one| one.number == number) else { return };
        let managing = &mut self.managing[place];
        managing.cores -= 1;
        if managing.cores > 0 {
            return;
        }
        let then = self.managing.swap_remove(place).then;
        self.go_on(cx, core, then);
    }

    fn go_on(&mut self, cx: &mut Context<'_>, core: &mut Core, then: Then) {
        let task = match then {
            Then::Answer(task) => task,
            Then::ClearUnit(task, number) => {
                let session = self.session.as_ref();
                let view = session.and_then(|s| Some((s, s.lun_as_seen(number)?)));
                if let Some((session, view)) = view {
                    let (unit, own) = (&view.lun.unit, &session.scsi);
                    unit.tell(|nexus| nexus != own, UnitAttention::CommandsCleared);
                }
                task
            }
            Then::ResetUnit(task, number) => {
                self.reset(core, |view| view == number, UnitAttention::LunReset);
                task
            }
            Then::ResetNode { task, cold } => {
                self.reset(core, |_| true, UnitAttention::TargetReset);
                if cold {
                    self.close_all(core);
                }
                task
            }
            Then::LogOut => return self.answer_logout(cx, core),
        };
        let code = TmfResponseCode::Complete;
        self.out.push(core, |proto, out| proto.tmf_response(task, code, out));
    }

    fn reset(&self, core: &Core, is_meant: impl Fn(u16) -> bool, attention: UnitAttention) {
        let Some(session) = &self.session else { return };
        for number in session.node.numbers().filter(|number| is_meant(*number)) {
            let Some(view) = session.lun_as_seen(number) else { continue };
            if view.lun.unit.change(&session.scsi, &Change::Reset(attention)) {
                core.shared.reserve(DeviceRequest::Released(view.lun.device));
            }
            // The initiator that has asked for it is told as well: its other paths may not know.
            view.lun.unit.tell(|nexus| *nexus == session.scsi, attention);
        }
    }

    /// After a cold reset: all sessions of the target node end.
    fn close_all(&mut self, core: &Core) {
        let Some(session) = &self.session else { return };
        for other in 0..core.shared.cores() {
            let node = session.node.name.clone();
            core.send(other, Message::Iscsi(IscsiMessage::CloseNode { node }));
        }
    }

    /// A cold reset has ended all sessions of a target node.
    pub(crate) fn close_node(&mut self, cx: &mut Context<'_>, core: &mut Core, node: &str) {
        if self.session.as_ref().is_some_and(|session| session.node.name == node) {
            // The answer to the reset may be on its way.
            self.end(cx, core);
        }
    }

    // -------------------------------------------------------------------------- logout

    /// The initiator logs out: its commands end, then it is answered.
    pub(super) fn log_out(&mut self, cx: &mut Context<'_>, core: &mut Core, reason: LogoutReason) {
        tracing::debug!(peer = %self.ends.peer, %reason, "logout");
        if self.session.is_none() {
            return self.answer_logout(cx, core);
        }
        let scope = Scope::Session(core.place(self.key));
        self.end_scope(core, scope, Then::LogOut);
    }

    fn answer_logout(&mut self, cx: &mut Context<'_>, core: &mut Core) {
        let code = LogoutResponseCode::Closed;
        self.out.push(core, |proto, out| proto.logout_response(code, out));
        self.end(cx, core);
    }

    /// The operator wants initiators of a target node to log out.
    pub(crate) fn request_logout(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        node: &str,
        portal_group: Option<u16>,
    ) {
        let concerned = self.session.as_ref().is_some_and(|session| {
            session.node.name == node
                && portal_group.is_none_or(|group| group == session.nexus.portal_group)
        });
        if concerned {
            self.ask_for_logout(cx, core, LOGOUT_TIME);
        }
    }

    /// The connection is about to end: asks its initiator to log out, and says whether it has.
    pub(crate) fn give_notice(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        why: Leavers,
    ) -> bool {
        let Some(session) = &self.session else { return false };
        let (peer, initiator) = (self.ends.peer, &session.nexus.initiator);
        if self.state != LifeState::Open || self.draining {
            return false;
        }
        if why == Leavers::NotHandedOver {
            tracing::info!(%peer, initiator, "not handed over, as iSCSI sessions are not: it logs in anew");
        }
        self.asked = true;
        self.ask_for_logout(cx, core, NOTICE_TIME);
        true
    }

    /// Whether the initiator is to log out because another process takes over, and has not yet.
    pub(crate) fn is_asked(&self) -> bool {
        self.asked && self.state == LifeState::Open
    }

    fn ask_for_logout(&mut self, cx: &mut Context<'_>, core: &mut Core, time: Duration) {
        if self.state != LifeState::Open {
            return;
        }
        let seconds = u16::try_from(time.as_secs()).unwrap_or(u16::MAX);
        let message = Async {
            event: AsyncEvent::LogoutRequested,
            lun: 0,
            parameters: (0, 0, 0, seconds),
            sense: &[],
        };
        self.out.push(core, |proto: &mut TargetConnection, out| proto.async_message(&message, out));
        self.deadline = Some(cx.now + time);
        self.arm_timer(cx);
    }

    // ------------------------------------------------------------------- reinstatement

    /// The initiator has begun this session anew.
    pub(crate) fn give_up(&mut self, cx: &mut Context<'_>, core: &mut Core, to: Place) {
        self.successors.push(to);
        self.close(cx, core, "the initiator has begun its session anew");
    }
}
