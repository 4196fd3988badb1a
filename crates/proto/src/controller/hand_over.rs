//! How a controller goes from one process to another one, which goes on with it.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use zerocopy::{FromBytes as _, IntoBytes as _};

use super::cross_reset::CrossResets;
use super::event::{Events, KindState, MAX_EVENT_REQUESTS};
use super::{Association, Controller};
use crate::nvme::cross_reset::{ControllerInstance, ResetStatus};
use crate::nvme::log::ErrorLogEntry;
use crate::nvme::property::Configuration;
use crate::nvme::reservation::NoticeKind;
use crate::nvme::{CommandId, ControllerId, NamespaceId};

/// A controller between two commands: all that is not in its Connect, nor in the snapshot of its target. Times are
/// those since then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControllerState {
    age: Duration,
    // Keep alive.
    kato_ms: u32,
    silent: Duration,
    disabled: Option<Duration>,
    shut_down: bool,
    // Properties.
    cc: u32,
    rdy: bool,
    cfs: bool,
    shst: u32,
    // I/O queues: which are connected, and how many may be.
    queues: Vec<u16>,
    granted: u16,
    features: FeatureState,
    // Events: feature 0Bh; pending and masked, for each kind; the requests held.
    event_config: u32,
    events: Vec<(bool, bool)>,
    requests: Vec<u16>,
    // The error log, newest first.
    errors: Vec<Vec<u8>>,
    error_count: u64,
    // The list of changed namespaces.
    changed: Vec<u32>,
    changed_overflow: bool,
    // Cross-Controller Resets: CNTLID, CIU, CIRN, status.
    resets: Vec<(u16, u8, u64, u8)>,
    // Reservation notices: count, kind, NSID; the last count; feature 82h.
    notices: Vec<(u64, u8, u32)>,
    notice_count: u64,
    notice_masks: BTreeMap<u32, u32>,
    // Deviations seen, and reported.
    tolerances: (u8, u8),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct FeatureState {
    arbitration: u32,
    power_management: u32,
    over_temperature: u16,
    under_temperature: u16,
    error_recovery: u32,
    write_atomicity: u32,
    waits_before_retry: bool,
    copies_across: bool,
}

/// The part of a state that no controller of this target can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotTakenOver(&'static str);

impl fmt::Display for NotTakenOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "its {} cannot be those of a controller here", self.0)
    }
}

impl std::error::Error for NotTakenOver {}

impl Controller {
    /// Whether the driver has nothing to do for it and no reset or shutdown is under way.
    #[must_use]
    pub fn is_between(&self) -> bool {
        !self.abandoned && !self.registers.is_draining() && self.actions.is_empty()
    }

    /// What another process needs to go on. [`Self::is_between`] is true.
    #[must_use]
    pub fn hand_over(&self, now: Instant) -> ControllerState {
        let since = |at: Instant| now.saturating_duration_since(at);
        let (alive, registers, features) = (&self.keep_alive, &self.registers, &self.features);
        let connected = (1..).zip(&self.queues.connected).filter(|(_, connected)| **connected);
        let resets = self.resets.entries.iter().map(|(of, status)| {
            let ControllerInstance { cntlid, ciu, cirn } = *of;
            (cntlid.0, ciu, cirn, status.to_wire())
        });
        let notices = self.notices.waiting.iter();
        ControllerState {
            age: since(self.created),
            kato_ms: alive.kato_ms,
            silent: since(alive.last_command),
            disabled: alive.disabled_since.map(since),
            shut_down: alive.shut_down,
            cc: registers.cc.0,
            rdy: registers.rdy,
            cfs: registers.cfs,
            shst: registers.shst,
            queues: connected.map(|(qid, _)| qid).collect(),
            granted: self.queues.granted,
            features: FeatureState {
                arbitration: features.arbitration,
                power_management: features.power_management,
                over_temperature: features.over_temperature,
                under_temperature: features.under_temperature,
                error_recovery: features.error_recovery,
                write_atomicity: features.write_atomicity,
                waits_before_retry: features.waits_before_retry,
                copies_across: features.copies_across,
            },
            event_config: self.events.config,
            events: self.events.kinds.iter().map(|kind| (kind.pending, kind.masked)).collect(),
            requests: self.events.requests.iter().map(|cid| cid.0).collect(),
            errors: self.errors.entries.iter().map(|entry| entry.as_bytes().to_vec()).collect(),
            error_count: self.errors.count,
            changed: self.changed.nsids.iter().map(|nsid| nsid.0).collect(),
            changed_overflow: self.changed.overflow,
            resets: resets.collect(),
            notices: notices.map(|(count, kind, nsid)| (*count, kind.to_wire(), nsid.0)).collect(),
            notice_count: self.notices.count,
            notice_masks: self.notices.masks.clone(),
            tolerances: (self.tolerances.seen, self.tolerances.told),
        }
    }

    /// The controller of another process, made with the same Connect. The driver holds the requests for events
    /// ([`Self::event_requests`]).
    ///
    /// # Errors
    /// When a controller of this target cannot have that state.
    pub fn take_over(
        association: Association,
        state: &ControllerState,
        now: Instant,
    ) -> Result<Self, NotTakenOver> {
        let before = |since: Duration| now.checked_sub(since).unwrap_or(now);
        let mut controller = Self::new(association, before(state.age));
        let alive = &mut controller.keep_alive;
        alive.kato_ms = state.kato_ms;
        alive.last_command = before(state.silent);
        alive.disabled_since = state.disabled.map(before);
        alive.shut_down = state.shut_down;
        let registers = &mut controller.registers;
        registers.cc = Configuration(state.cc);
        registers.rdy = state.rdy;
        registers.cfs = state.cfs;
        registers.shst = state.shst;
        controller.take_queues(state)?;
        let features = &mut controller.features;
        let kept = &state.features;
        features.arbitration = kept.arbitration;
        features.power_management = kept.power_management;
        features.over_temperature = kept.over_temperature;
        features.under_temperature = kept.under_temperature;
        features.error_recovery = kept.error_recovery;
        features.write_atomicity = kept.write_atomicity;
        features.waits_before_retry = kept.waits_before_retry;
        features.copies_across = kept.copies_across;
        controller.events.take_over(state)?;
        controller.take_logs(state)?;
        (controller.tolerances.seen, controller.tolerances.told) = state.tolerances;
        Ok(controller)
    }

    /// The requests for events that it holds.
    pub fn event_requests(&self) -> impl Iterator<Item = CommandId> + '_ {
        self.events.requests.iter().copied()
    }

    fn take_queues(&mut self, state: &ControllerState) -> Result<(), NotTakenOver> {
        let connected = &mut self.queues.connected;
        for qid in &state.queues {
            let place = usize::from(*qid).checked_sub(1).and_then(|at| connected.get_mut(at));
            *place.ok_or(NotTakenOver("I/O queues"))? = true;
        }
        self.queues.granted = state.granted.min(self.queues.limit());
        Ok(())
    }

    fn take_logs(&mut self, state: &ControllerState) -> Result<(), NotTakenOver> {
        let errors = state.errors.iter().map(|bytes| ErrorLogEntry::read_from_bytes(bytes));
        let errors: Result<VecDeque<_>, _> = errors.collect();
        self.errors.entries = errors.map_err(|_| NotTakenOver("errors"))?;
        self.errors.count = state.error_count;
        self.changed.nsids = state.changed.iter().copied().map(NamespaceId).collect();
        self.changed.overflow = state.changed_overflow;
        let resets = state.resets.iter().map(|&(cntlid, ciu, cirn, status)| {
            let instance = ControllerInstance { cntlid: ControllerId(cntlid), ciu, cirn };
            Some((instance, ResetStatus::from_wire(status)?))
        });
        let entries: Option<Vec<_>> = resets.collect();
        self.resets = CrossResets { entries: entries.ok_or(NotTakenOver("resets of others"))? };
        let notices = state.notices.iter().map(|&(count, kind, nsid)| {
            let kinds = [
                NoticeKind::RegistrationPreempted,
                NoticeKind::ReservationReleased,
                NoticeKind::ReservationPreempted,
            ];
            let kind = kinds.into_iter().find(|known| known.to_wire() == kind)?;
            Some((count, kind, NamespaceId(nsid)))
        });
        let waiting: Option<VecDeque<_>> = notices.collect();
        self.notices.waiting = waiting.ok_or(NotTakenOver("reservation notices"))?;
        self.notices.count = state.notice_count;
        self.notices.masks.clone_from(&state.notice_masks);
        Ok(())
    }
}

impl Events {
    fn take_over(&mut self, state: &ControllerState) -> Result<(), NotTakenOver> {
        let is_right = state.events.len() == self.kinds.len()
            && state.requests.len() <= MAX_EVENT_REQUESTS
            && self.set_config(state.event_config).is_ok();
        if !is_right {
            return Err(NotTakenOver("events"));
        }
        for (kind, &(pending, masked)) in self.kinds.iter_mut().zip(&state.events) {
            *kind = KindState { pending, masked };
        }
        self.requests.extend(state.requests.iter().copied().map(CommandId));
        Ok(())
    }
}
