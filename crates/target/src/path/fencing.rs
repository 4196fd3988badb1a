//! Fencing: the end of an association that is lost, and controllers that wait for the end of another one.
//!
//! When a connection is lost, what has not reached a device is dropped. What is at a device cannot be called back.
//! A write there is made to come before all later writes to its range, whatever connection they come by: each core
//! holds such writes back until the device has answered (`path/range_lock.rs`). An association has ended when nothing
//! that it started is left. If that takes longer than `TargetConfig::quiesce_time`, those who wait for it are told
//! that it is not known, and the association keeps its controller number.

use raceline_proto::nvme::cross_reset::ResetStatus;

use crate::changes::message::{CrossReset, Message};
use crate::path::core::Core;

/// Controllers that may wait for the end of the same one.
const MAX_WAITING: usize = 16;

impl CrossReset {
    /// Tells the controller that has asked.
    pub(crate) fn answer(self, core: &Core, status: ResetStatus) {
        let Self { instance, from } = self;
        core.send(from.core, Message::CrossResetEnded { to: from.key, instance, status });
    }
}

/// Those who wait for the end of one controller.
#[derive(Debug, Default)]
pub(crate) struct Waiting(Vec<CrossReset>);

impl Waiting {
    /// One more waits. If there are too many, it is told at once that the end is not known.
    pub(crate) fn join(&mut self, core: &Core, reset: CrossReset) {
        if self.0.len() < MAX_WAITING {
            self.0.push(reset);
        } else {
            reset.answer(core, ResetStatus::Failed);
        }
    }

    /// Whether nobody waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Tells all of them; they wait no more.
    pub(crate) fn answer(&mut self, core: &Core, status: ResetStatus) {
        for reset in self.0.drain(..) {
            reset.answer(core, status);
        }
    }
}
