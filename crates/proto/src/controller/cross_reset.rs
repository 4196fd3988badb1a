//! Cross-Controller Reset: which other controllers this one has been asked to end, and the log page about them
//! (TP8028; Base 2.3, 5.4.3 and 8.3.3).

use zerocopy::IntoBytes;

use super::event::EventKind;
use super::{AdminOutcome, Controller, Kind};
use crate::nvme::cross_reset::{
    ControllerInstance, CrossResetLogEntry, CrossResetLogHeader, LSP_REMOVE_COMPLETED, ResetStatus,
};
use crate::nvme::log::GetLogPage;
use crate::nvme::{ControllerId, HostNqn, Sqe, Status};

/// Cross-Controller Resets that a controller executes at a time (CCRL).
pub const MAX_CROSS_RESETS: u8 = 8;

/// Entries of the log page, at most 511: enough for a host that reads the page now and then.
const MAX_ENTRIES: usize = 64;

/// The resets of other controllers that one controller was asked for.
#[derive(Debug, Default)]
pub(super) struct CrossResets {
    pub(super) entries: Vec<(ControllerInstance, ResetStatus)>,
}

impl CrossResets {
    fn in_progress(&self) -> usize {
        self.entries.iter().filter(|(_, status)| *status == ResetStatus::InProgress).count()
    }

    /// Whether one more reset can begin.
    fn check(&self, instance: ControllerInstance) -> Result<(), Status> {
        match self.entries.iter().find(|(of, _)| *of == instance) {
            Some((_, ResetStatus::InProgress)) => return Err(Status::CCR_IN_PROGRESS),
            None if self.entries.len() >= MAX_ENTRIES => return Err(Status::CCR_LOG_FULL),
            _ => {}
        }
        if self.in_progress() >= usize::from(MAX_CROSS_RESETS) {
            return Err(Status::CCR_LIMIT_EXCEEDED);
        }
        Ok(())
    }

    fn begin(&mut self, instance: ControllerInstance) {
        self.entries.retain(|(of, _)| *of != instance);
        self.entries.push((instance, ResetStatus::InProgress));
    }

    /// Gives whether the reset was in progress.
    fn end(&mut self, instance: ControllerInstance, status: ResetStatus) -> bool {
        let begun = self
            .entries
            .iter_mut()
            .find(|(of, now)| *of == instance && *now == ResetStatus::InProgress);
        begun.map(|(_, now)| *now = status).is_some()
    }

    /// The log page; `asked` is the controller that was asked for the resets.
    fn page(&self, asked: ControllerId) -> Vec<u8> {
        let count = u16::try_from(self.entries.len()).unwrap_or(u16::MAX);
        let header =
            CrossResetLogHeader { entries: count.into(), ..CrossResetLogHeader::default() };
        let mut page = header.as_bytes().to_vec();
        for (instance, status) in &self.entries {
            let entry = CrossResetLogEntry {
                cntlid: instance.cntlid.0.into(),
                ciu: instance.ciu,
                active_cntlid: asked.0.into(),
                status: status.to_wire(),
                ..CrossResetLogEntry::default()
            };
            page.extend_from_slice(entry.as_bytes());
        }
        page
    }

    /// Forgets the resets that are over, among those whose whole entry lies before a byte of the page.
    fn remove_completed(&mut self, end: u64) {
        let shown = end.saturating_sub(CrossResetLogHeader::LEN as u64);
        let shown = usize::try_from(shown / CrossResetLogEntry::LEN as u64).unwrap_or(usize::MAX);
        let mut place = 0;
        self.entries.retain(|(_, status)| {
            place += 1;
            place > shown || *status == ResetStatus::InProgress
        });
    }
}

impl Controller {
    /// Whether it executes Cross-Controller Reset.
    pub(super) fn resets_others(&self) -> bool {
        matches!(self.kind, Kind::Io { .. })
    }

    /// Cross-Controller Reset of another controller. The driver looks whether the host has such a controller.
    pub(super) fn cross_reset(&self, sqe: &Sqe) -> Result<AdminOutcome, Status> {
        let instance = ControllerInstance::of(sqe);
        // Hosts without a name cannot be told apart, so none of them may end a controller of another.
        let is_unnamed = self.hostnqn == HostNqn::Unnamed;
        if instance.cntlid == self.instance.cntlid || instance.cirn == 0 || is_unnamed {
            return Err(Status::INVALID_CONTROLLER_ID.dnr());
        }
        self.resets.check(instance)?;
        Ok(AdminOutcome::CrossReset(instance))
    }

    /// The reset that [`AdminOutcome::CrossReset`] asked for has begun, and takes time: the log page shows it. The
    /// driver completes the command with success and DW0 0.
    pub fn cross_reset_begun(&mut self, instance: ControllerInstance) {
        self.resets.begin(instance);
    }

    /// A reset that had begun has ended, or is given up: the host is told.
    pub fn cross_reset_ended(&mut self, instance: ControllerInstance, status: ResetStatus) {
        if self.resets.end(instance, status) && !self.abandoned {
            self.events.raise(EventKind::CrossReset, &mut self.actions);
        }
    }

    /// The log page from an offset on.
    pub(super) fn cross_reset_page(&self) -> Vec<u8> {
        self.resets.page(self.instance.cntlid)
    }

    /// The log page was read.
    pub(super) fn cross_reset_page_read(&mut self, command: &GetLogPage) {
        if command.lsp & LSP_REMOVE_COMPLETED != 0 {
            self.resets.remove_completed(command.offset.saturating_add(command.len_bytes));
        }
        if !command.retain_event {
            let complete = command.offset == 0;
            self.events.log_read(EventKind::CrossReset, complete, &mut self.actions);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(cntlid: u16) -> ControllerInstance {
        ControllerInstance { cntlid: ControllerId(cntlid), ciu: 1, cirn: 77 }
    }

    #[test]
    fn resets_are_bounded_at_a_time_and_in_the_page() {
        let mut resets = CrossResets::default();
        for cntlid in 1..=u16::from(MAX_CROSS_RESETS) {
            assert_eq!(resets.check(instance(cntlid)), Ok(()));
            resets.begin(instance(cntlid));
        }
        assert_eq!(resets.check(instance(1)), Err(Status::CCR_IN_PROGRESS));
        assert_eq!(resets.check(instance(100)), Err(Status::CCR_LIMIT_EXCEEDED));
        assert!(resets.end(instance(1), ResetStatus::Failed));
        assert!(!resets.end(instance(1), ResetStatus::Succeeded), "it has ended");
        assert_eq!(resets.check(instance(1)), Ok(()), "a reset that failed may be tried again");
        for cntlid in 1..=u16::from(MAX_CROSS_RESETS) {
            resets.end(instance(cntlid), ResetStatus::Succeeded);
        }
        for cntlid in 100.. {
            if resets.check(instance(cntlid)).is_err() {
                break;
            }
            resets.begin(instance(cntlid));
            resets.end(instance(cntlid), ResetStatus::Succeeded);
        }
        assert_eq!(resets.entries.len(), MAX_ENTRIES);
        assert_eq!(resets.check(instance(9999)), Err(Status::CCR_LOG_FULL));
        // a page that shows the header and one and a half entries
        resets.remove_completed(20);
        assert_eq!(resets.entries.len(), MAX_ENTRIES - 1);
        resets.begin(instance(9999));
        resets.remove_completed(u64::MAX);
        assert_eq!(resets.entries, [(instance(9999), ResetStatus::InProgress)]);
    }
}
