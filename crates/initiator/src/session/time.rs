//! What a session does when time has passed: limits of phases and tasks, pings, attempts to connect.

use std::time::{Duration, Instant};

use raceline_iscsi::pdu::TmfFunction;
use raceline_reactor::Context;

use super::{Abort, Ending, LOGOUT_TIMEOUT, Session, State};
use crate::error::{LoginPhase, SessionError};

/// How often deadlines are looked at within a task's time limit.
const TIMEOUT_CHECKS: u32 = 4;

impl Session {
    /// The peer must answer within `limit`.
    pub(super) fn expect(&mut self, cx: &mut Context<'_>, limit: Duration) {
        let at = cx.now + limit;
        self.phase_deadline = Some(at);
        self.arm(cx, at);
    }

    /// Asks for a timer unless an earlier one is on its way.
    pub(super) fn arm(&mut self, cx: &mut Context<'_>, at: Instant) {
        if self.alarm.is_none_or(|alarm| at < alarm) {
            self.alarm = Some(at);
            cx.io.timer(at, self.token);
        }
    }

    /// Whether the target is left alone because it was busy.
    pub(super) fn pauses(&mut self, cx: &Context<'_>) -> bool {
        if self.pause_until.is_some_and(|until| cx.now >= until) {
            self.pause_until = None;
        }
        self.pause_until.is_some()
    }

    /// Sees to it that tasks, pings and pauses are looked at. Called when commands were sent, so it is cheap while a timer
    /// is on its way.
    #[inline]
    pub(super) fn arm_next(&mut self, cx: &mut Context<'_>) {
        if self.alarm.is_none() {
            self.arm_earliest(cx);
        }
    }

    fn arm_earliest(&mut self, cx: &mut Context<'_>) {
        let outstanding = self.free.len() < self.slots.len();
        let tasks = (outstanding && !matches!(self.state, State::Lost(_)))
            .then(|| cx.now + self.config.task_timeout / TIMEOUT_CHECKS);
        let interval = self.config.ping_interval;
        let ping = (self.is_ready() && !interval.is_zero()).then(|| match self.pinged {
            Some(at) => at + interval,
            None => self.heard + interval,
        });
        let attempt = match self.state {
            State::Lost(at) => Some(at),
            _ => None,
        };
        let aborts = self.aborts.iter().map(|abort| abort.deadline).min();
        let next = [tasks, ping, attempt, aborts, self.phase_deadline, self.pause_until];
        if let Some(at) = next.into_iter().flatten().min() {
            self.arm(cx, at);
        }
    }

    pub(super) fn handle_timer(&mut self, cx: &mut Context<'_>) {
        if self.alarm.is_none_or(|alarm| cx.now < alarm) {
            return; // an earlier, longer one
        }
        self.alarm = None;
        match self.state {
            State::Lost(at) if cx.now >= at => return self.start(cx),
            State::Tcp | State::Login | State::LoggingOut { .. } => self.check_phase(cx),
            State::Ready => {
                self.check_tasks(cx);
                if self.is_ready() {
                    self.check_peer(cx);
                }
            }
            State::Lost(_) | State::Draining(_) | State::Closed => {}
        }
        self.send_control(cx);
        self.arm_next(cx);
    }

    fn check_phase(&mut self, cx: &mut Context<'_>) {
        if self.phase_deadline.is_none_or(|deadline| cx.now < deadline) {
            return;
        }
        self.phase_deadline = None;
        let (address, config) = (self.target.0, &self.config);
        let error = match self.state {
            State::Tcp => SessionError::NoAnswer(address, LoginPhase::Tcp, config.connect_timeout),
            State::Login => {
                SessionError::NoAnswer(address, LoginPhase::Login, config.login_timeout)
            }
            State::LoggingOut { for_good: true, .. } => return self.lose(cx, Ending::Closed),
            _ => SessionError::Asked(address, "it asked for a logout"),
        };
        self.lose(cx, Ending::Lost(error));
    }

    /// A task that has taken too long is aborted at the target. If that does not help, it costs the connection: if only
    /// the task were given up, its data could still arrive in a buffer that has a new owner.
    fn check_tasks(&mut self, cx: &mut Context<'_>) {
        let limit = self.config.task_timeout;
        let late = |since: Option<Instant>| {
            since.is_some_and(|since| cx.now.saturating_duration_since(since) >= limit)
        };
        let overdue = self.aborts.iter().any(|abort| cx.now >= abort.deadline);
        let mut lost = None;
        for slot in 0..u16::try_from(self.slots.len()).unwrap_or(u16::MAX) {
            let entry = &mut self.slots[usize::from(slot)];
            if !entry.live || !late(entry.since) {
                continue;
            }
            let first = !std::mem::replace(&mut entry.timed_out, true);
            let Some(link) = self.link.as_mut().filter(|_| first && entry.sent && !overdue) else {
                // A closed window, or an abort without an answer.
                lost = (overdue || !entry.sent).then_some(entry.cdb[0]).or(lost);
                continue;
            };
            let lun = self.config.lun_field();
            let function = TmfFunction::AbortTask;
            match link.proto.task_management(function, lun, Some(slot), &mut self.control) {
                Some(tag) => self.aborts.push(Abort {
                    tag,
                    slot,
                    since: entry.since,
                    deadline: cx.now + LOGOUT_TIMEOUT.max(limit / TIMEOUT_CHECKS),
                }),
                None => entry.timed_out = false, // as many as the protocol has; later
            }
        }
        if let Some(opcode) = lost {
            let error = SessionError::TaskTimeout(self.target.0, opcode, limit);
            self.lose(cx, Ending::Lost(error));
        }
    }

    /// A silent target is pinged, and one that stays silent is given up.
    fn check_peer(&mut self, cx: &mut Context<'_>) {
        let interval = self.config.ping_interval;
        if interval.is_zero() {
            return;
        }
        match self.pinged {
            Some(at) if self.heard > at => self.pinged = None,
            Some(at) if cx.now >= at + interval => {
                let error = SessionError::NoPong(self.target.0, interval);
                self.lose(cx, Ending::Lost(error));
            }
            Some(_) => {}
            None if cx.now.saturating_duration_since(self.heard) >= interval => {
                if let Some(link) = &mut self.link
                    && link.proto.ping(&mut self.control)
                {
                    self.pinged = Some(cx.now);
                }
            }
            None => {}
        }
    }
}
