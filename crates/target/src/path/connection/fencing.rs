//! What a closed connection has left at devices, and the end of a controller that another one has asked for.

use raceline_proto::nvme::cross_reset::{ControllerInstance, ResetStatus};
use raceline_reactor::Context;

use super::{Connection, Role};
use crate::changes::message::CrossReset;
use crate::path::core::Core;
use crate::path::life::LifeState;

impl Connection {
    /// The connection is closed: has later writes wait for its writes at devices, and sets the time by which all that
    /// it has started has to end.
    pub(super) fn begin_quiesce(&mut self, cx: &mut Context<'_>, core: &Core) {
        if self.commands.slots.in_use() == 0 && self.has_no_queues() {
            return;
        }
        self.commands.fence_writes(core);
        self.life.quiesce(cx.now + core.shared.config.quiesce_time);
        self.arm_timer(cx);
    }

    /// The closed connection has not come to its end in time.
    #[cold]
    pub(super) fn overdue(&mut self, core: &Core) {
        let (peer, time) = (self.ends.peer, core.shared.config.quiesce_time);
        let commands = self.commands.slots.in_use();
        if commands > 0 {
            tracing::error!(
                %peer,
                commands,
                ?time,
                "devices have not answered commands of a lost connection within the advertised time (CQT): its \
                 controller number stays in use, and writes to the same blocks wait"
            );
        }
        if let Role::Admin(association) = &mut self.role {
            association.give_up_waiting(core);
        }
    }

    /// Another controller of the host wants this one to end. Gives whether this is that controller; otherwise, that
    /// one has ended.
    #[must_use]
    pub(crate) fn cross_reset(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        reset: CrossReset,
    ) -> bool {
        let Role::Admin(association) = &mut self.role else { return false };
        if association.instance() != reset.instance {
            return false;
        }
        association.wait_for_end(core, reset);
        if self.life.state == LifeState::Closing {
            // The time may be over already; those who ask now wait as long as those who asked at first.
            self.begin_quiesce(cx, core);
        } else {
            let cntlid = reset.instance.cntlid;
            tracing::warn!(peer = %self.ends.peer, %cntlid, "its host ends the controller by another one");
            self.close(cx, core, "another controller of its host has reset it");
        }
        true
    }

    /// The reset of another controller that this one has asked for has ended.
    pub(crate) fn cross_reset_ended(
        &mut self,
        cx: &mut Context<'_>,
        core: &mut Core,
        instance: ControllerInstance,
        status: ResetStatus,
    ) {
        if let Role::Admin(association) = &mut self.role {
            association.cross_reset_ended(instance, status);
            self.run_actions(cx, core);
        }
    }
}
