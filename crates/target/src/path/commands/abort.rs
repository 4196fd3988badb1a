//! Abort of a command of an I/O queue (Base 2.0, 5.1).

use raceline_proto::nvme::{CommandId, Status};

use super::Commands;
use crate::path::core::Core;
use crate::path::slots::Phase;

impl Commands {
    /// Aborts a command that has not reached its device. Gives whether it is completed: if not, there is no such
    /// command, its device has it, or it will be completed when the data that the host sends for it have come.
    #[cold]
    pub(crate) fn abort(&mut self, core: &mut Core, cid: CommandId) -> bool {
        let Some(command) = self.slots.find(cid) else { return false };
        let key = command.key();
        let waiting = self.local(key);
        let slot = self.slots.get(key);
        if !slot.is_recallable() {
            return false;
        }
        let status = Status::ABORT_REQUESTED.dnr();
        // The data in its capsule would have to be taken off the socket first.
        if slot.phase == Phase::Buffer && !slot.in_capsule && slot.half.is_none() {
            core.buffer_lines.retain(|waiter| waiter != waiting);
            self.refuse(core, command, status);
            return true;
        }
        self.forbid(core, key, status);
        self.slots.resume(key).is_none()
    }
}
