//! How a controller's ANA log is followed: read at bring-up, again after each event, and when a command says that the
//! log is out of date.

use std::sync::Arc;
use std::time::{Duration, Instant};

use raceline_proto::host::{AnaError, AnaLog, AnaReader};
use raceline_reactor::Context;

use super::{Controller, ControllerEvent, Job};
use crate::error::HostError;

/// How long after a reading the log is read again because of a command, or because the reading was no good.
const AGAIN_AFTER: Duration = Duration::from_millis(100);
/// Readings that may be no good one after another.
const MAX_BAD_READINGS: u32 = 3;

/// What is to be read of the ANA log, and when.
#[derive(Debug, Default)]
pub(super) struct AnaFollower {
    /// When the log is to be read.
    pub(super) due: Option<Instant>,
    read_at: Option<Instant>,
    /// Readings in a row that failed, or were of an earlier time than the one before.
    bad: u32,
}

impl AnaFollower {
    /// The log was read for the first time on an association.
    pub(super) fn begin(&mut self, now: Instant) {
        *self = Self { read_at: Some(now), ..Self::default() };
    }
}

impl Controller {
    /// Has the ANA log read again soon, because a command was refused for the state of its namespace on this path.
    pub fn refresh_ana(&mut self, cx: &mut Context<'_>) {
        let reads = self.association.as_ref().is_some_and(|up| up.ana.is_some());
        if reads && self.ana.due.is_none() {
            let least = self.ana.read_at.map_or(cx.now, |at| at + AGAIN_AFTER);
            self.read_ana_at(cx, least.max(cx.now));
            self.advance_job(cx);
        }
    }

    pub(super) fn read_ana_at(&mut self, cx: &mut Context<'_>, at: Instant) {
        if self.ana.due.is_none_or(|due| at < due) {
            self.ana.due = Some(at);
        }
        if at > cx.now {
            self.arm(cx, at);
        }
    }

    /// Begins to read the log if it is time and nothing else is going on.
    pub(super) fn begin_due_ana(&mut self, cx: &mut Context<'_>) {
        let Some(at) = self.ana.due else { return };
        if !matches!(self.job, Job::None) {
            return;
        }
        if at > cx.now {
            return self.arm(cx, at);
        }
        let Some(association) = &self.association else { return };
        self.ana.due = None;
        if let Some(reader) = AnaReader::new(&association.controller) {
            self.job = Job::Ana(reader);
        }
    }

    pub(super) fn handle_ana(&mut self, cx: &mut Context<'_>, result: Result<AnaLog, AnaError>) {
        self.job = Job::None;
        self.ana.read_at = Some(cx.now);
        let Some(association) = &mut self.association else { return };
        let Some(before) = &association.ana else { return };
        let address = self.config.address;
        let log = match result {
            Ok(log) if log.is_older_than(before.log()) => {
                self.ana.bad += 1;
                if self.ana.bad < MAX_BAD_READINGS {
                    return self.read_ana_at(cx, cx.now + AGAIN_AFTER);
                }
                tracing::warn!(
                    %address,
                    before = before.log().change_count,
                    now = log.change_count,
                    "the change count of the ANA log has gone back; the log is used as it is"
                );
                log
            }
            Ok(log) => log,
            Err(error) => {
                self.ana.bad += 1;
                if self.ana.bad < MAX_BAD_READINGS {
                    return self.read_ana_at(cx, cx.now + AGAIN_AFTER);
                }
                // A new association reads it from the beginning.
                return self.admin.disconnect(cx, HostError::Ana(address, error));
            }
        };
        self.ana.bad = 0;
        let next = Arc::new(before.followed_by(log, cx.now));
        association.ana = Some(Arc::clone(&next));
        self.events.push_back(ControllerEvent::Ana(next));
    }
}
