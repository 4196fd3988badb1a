//! Cross-Controller Reset: this controller ends another one of the same host, which was lost (TP8028).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use raceline_proto::host::AdminRequest;
use raceline_proto::nvme::cross_reset::{
    ControllerInstance, CrossResetLogEntry, CrossResetLogHeader, IMMEDIATE, LSP_REMOVE_COMPLETED,
    ResetStatus,
};
use raceline_proto::nvme::log::{GetLogPage, lid};
use raceline_proto::nvme::opcode::admin;
use raceline_proto::nvme::{Cqe, Sqe, Status};
use zerocopy::FromBytes;

use crate::error::CommandError;
use crate::path::Fence;

/// How often the log is read while a reset goes on, and how long until a refused reset is asked for again.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Bytes of the log with all the entries that there can be.
const LOG_LEN: u32 = 4096;

/// The resets that this controller is to execute, one at a time.
#[derive(Debug, Default)]
pub(super) struct Resets {
    /// The first one is under way.
    list: VecDeque<Reset>,
    /// Those that this controller refused or could not do.
    failed: Vec<ControllerInstance>,
    /// A command is outstanding.
    busy: bool,
    poll_at: Option<Instant>,
}

#[derive(Debug)]
struct Reset {
    instance: ControllerInstance,
    fence: Arc<Fence>,
    /// The controller has taken the command.
    accepted: bool,
}

impl Resets {
    pub(super) fn push(&mut self, instance: ControllerInstance, fence: Arc<Fence>) {
        self.list.push_back(Reset { instance, fence, accepted: false });
    }

    /// The association of this controller is over, and with it its log: none of the resets is executed.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// The controllers that this one did not reset since the last call: another one may be able to.
    pub(super) fn take_failed(&mut self) -> Vec<ControllerInstance> {
        std::mem::take(&mut self.failed)
    }

    /// The next command.
    pub(super) fn poll_request(&mut self, now: Instant) -> Option<AdminRequest> {
        if self.busy {
            return None;
        }
        // A fence that has opened by itself needs nothing.
        while self.list.pop_front_if(|reset| reset.fence.is_open(now)).is_some() {
            self.poll_at = None;
        }
        if self.poll_at.is_some_and(|at| now < at) {
            return None;
        }
        let reset = self.list.front()?;
        self.busy = true;
        self.poll_at = None;
        Some(if reset.accepted {
            AdminRequest { sqe: read_log(), receive_len: LOG_LEN }
        } else {
            AdminRequest { sqe: reset.instance.reset(), receive_len: 0 }
        })
    }

    /// When [`Self::poll_request`] has a command again.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.poll_at
    }

    /// The log has changed.
    pub(super) fn handle_event(&mut self) {
        self.poll_at = None;
    }

    /// The command could not be submitted.
    pub(super) fn handle_not_submitted(&mut self, now: Instant) {
        self.busy = false;
        self.poll_at = Some(now + POLL_INTERVAL);
    }

    pub(super) fn handle_done(
        &mut self,
        now: Instant,
        result: Result<Cqe, CommandError>,
        data: &[u8],
    ) {
        self.busy = false;
        let Some(reset) = self.list.front_mut() else { return };
        let step = match result {
            Ok(_) if reset.accepted => find(data, reset.instance),
            Ok(cqe) if cqe.dw0 & IMMEDIATE != 0 => ResetStatus::Succeeded,
            Ok(_) => {
                reset.accepted = true;
                ResetStatus::InProgress
            }
            Err(CommandError::Status(status)) if may_come(status) => ResetStatus::InProgress,
            Err(error) => {
                tracing::debug!(cntlid = %reset.instance.cntlid, %error, "no cross-controller reset");
                ResetStatus::Failed
            }
        };
        match step {
            ResetStatus::InProgress => self.poll_at = Some(now + POLL_INTERVAL),
            ResetStatus::Succeeded => {
                tracing::info!(cntlid = %reset.instance.cntlid, "the lost controller was reset");
                reset.fence.mark_reset();
                self.list.pop_front();
            }
            ResetStatus::Failed => {
                self.failed.extend(self.list.pop_front().map(|reset| reset.instance));
            }
        }
    }
}

/// Whether a refused reset may be possible later.
fn may_come(status: Status) -> bool {
    [Status::CCR_IN_PROGRESS, Status::CCR_LOG_FULL, Status::CCR_LIMIT_EXCEEDED]
        .into_iter()
        .any(|busy| status.same_code(busy))
}

fn read_log() -> Sqe {
    let mut sqe = Sqe { opc: admin::GET_LOG_PAGE, ..Sqe::default() };
    let words = GetLogPage {
        lid: lid::CROSS_CONTROLLER_RESET,
        lsp: LSP_REMOVE_COMPLETED,
        len_bytes: u64::from(LOG_LEN),
        ..GetLogPage::default()
    };
    words.write(&mut sqe);
    sqe
}

/// How far a reset is by the log; one that is missing there has not begun.
fn find(page: &[u8], instance: ControllerInstance) -> ResetStatus {
    let Ok((header, mut rest)) = CrossResetLogHeader::ref_from_prefix(page) else {
        return ResetStatus::Failed;
    };
    for _ in 0..header.entries.get() {
        let Ok((entry, after)) = CrossResetLogEntry::ref_from_prefix(rest) else { break };
        rest = after;
        if entry.cntlid.get() == instance.cntlid.0 && entry.ciu == instance.ciu {
            return ResetStatus::from_wire(entry.status).unwrap_or(ResetStatus::Failed);
        }
    }
    ResetStatus::InProgress
}

#[cfg(test)]
mod tests {
    use raceline_proto::nvme::ControllerId;

    use super::*;

    const INSTANCE: ControllerInstance =
        ControllerInstance { cntlid: ControllerId(4), ciu: 2, cirn: 77 };

    fn begun(now: Instant) -> (Resets, Arc<Fence>) {
        let fence = Fence::new(Duration::from_secs(20));
        fence.seal(now);
        let mut resets = Resets::default();
        resets.push(INSTANCE, Arc::clone(&fence));
        let request = resets.poll_request(now).unwrap();
        assert_eq!(ControllerInstance::of(&request.sqe), INSTANCE);
        assert!(resets.poll_request(now).is_none(), "one command at a time");
        (resets, fence)
    }

    fn page(entries: &[(u16, u8, u8)]) -> Vec<u8> {
        let mut page = vec![u8::try_from(entries.len()).unwrap(), 0, 0, 0, 0, 0, 0, 0];
        for (cntlid, ciu, status) in entries {
            let [low, high] = cntlid.to_le_bytes();
            page.extend([low, high, *ciu, 0, 0, 0, *status, 0]);
        }
        page
    }

    #[test]
    fn a_reset_that_is_done_at_once_opens_the_fence() {
        let now = Instant::now();
        let (mut resets, fence) = begun(now);
        resets.handle_done(now, Ok(Cqe { dw0: IMMEDIATE, ..Cqe::default() }), &[]);
        assert!(fence.is_open(now) && resets.poll_request(now).is_none());
    }

    #[test]
    fn a_reset_that_takes_time_is_followed_in_the_log() {
        let now = Instant::now();
        let (mut resets, fence) = begun(now);
        resets.handle_done(now, Ok(Cqe::default()), &[]);
        assert!(resets.poll_request(now).is_none());
        let mut later = now;
        for entries in [&[(4, 1, 1), (4, 2, 0)][..], &[(5, 2, 1)], &[]] {
            later = resets.poll_timeout().unwrap();
            let request = resets.poll_request(later).unwrap();
            assert_eq!(request.sqe.opc, admin::GET_LOG_PAGE);
            resets.handle_done(later, Ok(Cqe::default()), &page(entries));
            assert!(!fence.is_open(later), "{entries:?} are about others, or under way");
        }
        resets.handle_event();
        resets.poll_request(later).unwrap();
        resets.handle_done(later, Ok(Cqe::default()), &page(&[(4, 2, 1)]));
        assert!(fence.is_open(later));
    }

    #[test]
    fn a_refused_or_failed_reset_is_left_to_others_and_to_time() {
        let now = Instant::now();
        let (mut resets, fence) = begun(now);
        let busy = Err(CommandError::Status(Status::CCR_LIMIT_EXCEEDED));
        resets.handle_done(now, busy, &[]);
        let again = resets.poll_timeout().unwrap();
        let request = resets.poll_request(again).unwrap();
        assert_eq!(request.sqe.opc, admin::CROSS_CONTROLLER_RESET);
        let refused = Err(CommandError::Status(Status::INVALID_CONTROLLER_ID.dnr()));
        resets.handle_done(again, refused, &[]);
        assert!(!fence.is_open(again) && resets.poll_request(again).is_none());
        assert_eq!((resets.take_failed(), resets.take_failed()), (vec![INSTANCE], vec![]));

        let (mut resets, fence) = begun(now);
        resets.handle_done(now, Ok(Cqe::default()), &[]);
        resets.handle_event();
        resets.poll_request(now).unwrap();
        resets.handle_done(now, Ok(Cqe::default()), &page(&[(4, 2, 2)]));
        assert!(!fence.is_open(now) && resets.poll_timeout().is_none());
        assert_eq!(resets.take_failed(), [INSTANCE]);
    }

    #[test]
    fn an_open_fence_needs_no_reset() {
        let now = Instant::now();
        let fence = Fence::new(Duration::ZERO);
        fence.seal(now);
        let mut resets = Resets::default();
        resets.push(INSTANCE, fence);
        assert!(resets.poll_request(now).is_none());
    }
}
