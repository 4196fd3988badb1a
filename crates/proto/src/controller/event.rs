//! Asynchronous events: the requests held, what is pending, what is masked (Base 2.0, 5.2).
//!
//! Each kind of event is reported once and then masked until the host reads its log page with
//! RAE 0. What happens in the meantime is one more event, unless that reading already showed it.

use std::collections::VecDeque;

use super::Action;
use crate::nvme::event::{
    AsyncEvent, CONFIG_ANA_CHANGE, CONFIG_CROSS_CONTROLLER_RESET, CONFIG_DISCOVERY_CHANGE,
    CONFIG_NAMESPACE_ATTRIBUTE, CONFIG_SMART,
};
use crate::nvme::{CommandId, Status};

/// Asynchronous Event Requests a host may have outstanding (AERL + 1).
pub const MAX_EVENT_REQUESTS: usize = 4;

/// The kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventKind {
    /// Namespaces came, went or changed.
    Namespaces,
    /// The state or the namespaces of an ANA group changed.
    Ana,
    /// A Cross-Controller Reset ended.
    CrossReset,
    /// The Discovery log changed.
    Discovery,
    /// There is a Reservation Notification. Feature 82h masks it, not feature 0Bh.
    Reservation,
}

impl EventKind {
    const ALL: [Self; 5] =
        [Self::Namespaces, Self::Ana, Self::CrossReset, Self::Discovery, Self::Reservation];

    fn index(self) -> usize {
        match self {
            Self::Namespaces => 0,
            Self::Ana => 1,
            Self::CrossReset => 2,
            Self::Discovery => 3,
            Self::Reservation => 4,
        }
    }

    fn config_bit(self) -> u32 {
        match self {
            Self::Namespaces => CONFIG_NAMESPACE_ATTRIBUTE,
            Self::Ana => CONFIG_ANA_CHANGE,
            Self::CrossReset => CONFIG_CROSS_CONTROLLER_RESET,
            Self::Discovery => CONFIG_DISCOVERY_CHANGE,
            Self::Reservation => 0,
        }
    }

    fn is_enabled_by(self, config: u32) -> bool {
        self == Self::Reservation || config & self.config_bit() != 0
    }

    fn event(self) -> AsyncEvent {
        match self {
            Self::Namespaces => AsyncEvent::NAMESPACE_CHANGED,
            Self::Ana => AsyncEvent::ANA_CHANGED,
            Self::CrossReset => AsyncEvent::CROSS_CONTROLLER_RESET,
            Self::Discovery => AsyncEvent::DISCOVERY_CHANGED,
            Self::Reservation => AsyncEvent::RESERVATION,
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KindState {
    pub(super) pending: bool,
    pub(super) masked: bool,
}

/// The state of one controller's events.
#[derive(Debug)]
pub(crate) struct Events {
    /// OAES: the optional events that this kind of controller has.
    supported: u32,
    /// Feature 0Bh.
    pub(super) config: u32,
    pub(super) kinds: [KindState; EventKind::ALL.len()],
    pub(super) requests: VecDeque<CommandId>,
}

impl Events {
    /// The events of a controller that can report these kinds.
    pub(crate) fn new(kinds: &[EventKind]) -> Self {
        Self {
            supported: kinds.iter().fold(0, |bits, kind| bits | kind.config_bit()),
            config: Self::DEFAULT_CONFIG,
            kinds: Default::default(),
            requests: VecDeque::with_capacity(MAX_EVENT_REQUESTS),
        }
    }

    /// Feature 0Bh after a reset: hosts ask for the events that they want.
    pub(crate) const DEFAULT_CONFIG: u32 = 0;

    /// OAES.
    pub(crate) fn supported(&self) -> u32 {
        self.supported
    }

    /// Feature 0Bh.
    pub(crate) fn config(&self) -> u32 {
        self.config
    }

    /// Sets feature 0Bh.
    pub(crate) fn set_config(&mut self, config: u32) -> Result<(), Status> {
        if config & !(self.supported | CONFIG_SMART) != 0 {
            return Err(Status::INVALID_FIELD.dnr());
        }
        self.config = config;
        for kind in EventKind::ALL {
            if !kind.is_enabled_by(config) {
                self.kinds[kind.index()].pending = false;
            }
        }
        Ok(())
    }

    /// Holds a request, or completes it at once with what is pending.
    pub(crate) fn request(
        &mut self,
        cid: CommandId,
        actions: &mut VecDeque<Action>,
    ) -> Result<(), Status> {
        if self.requests.len() >= MAX_EVENT_REQUESTS {
            return Err(Status::AER_LIMIT_EXCEEDED.dnr());
        }
        self.requests.push_back(cid);
        self.deliver(actions);
        Ok(())
    }

    /// An event of that kind happened.
    pub(crate) fn raise(&mut self, kind: EventKind, actions: &mut VecDeque<Action>) {
        if kind.is_enabled_by(self.config) {
            self.kinds[kind.index()].pending = true;
            self.deliver(actions);
        }
    }

    /// The log page of that kind was read with RAE 0. `complete`: the reading showed all changes so far.
    pub(crate) fn log_read(
        &mut self,
        kind: EventKind,
        complete: bool,
        actions: &mut VecDeque<Action>,
    ) {
        let state = &mut self.kinds[kind.index()];
        state.masked = false;
        if complete {
            state.pending = false;
        }
        self.deliver(actions);
    }

    /// Aborts one request, if it is held.
    pub(crate) fn abort(&mut self, cid: CommandId, actions: &mut VecDeque<Action>) -> bool {
        let held = self.forget(cid);
        if held {
            actions.push_back(Action::CompleteAer { cid, status: Status::ABORT_REQUESTED, dw0: 0 });
        }
        held
    }

    /// Drops one request without an answer, if it is held.
    pub(crate) fn forget(&mut self, cid: CommandId) -> bool {
        let index = self.requests.iter().position(|&held| held == cid);
        index.and_then(|index| self.requests.remove(index)).is_some()
    }

    /// Drops the requests without answers: the association ends.
    pub(crate) fn forget_requests(&mut self) {
        self.requests.clear();
    }

    /// A controller reset aborts all requests and forgets everything else.
    pub(crate) fn reset(&mut self, actions: &mut VecDeque<Action>) {
        let status = Status::ABORTED_SQ_DELETION;
        for cid in self.requests.drain(..) {
            actions.push_back(Action::CompleteAer { cid, status, dw0: 0 });
        }
        self.config = Self::DEFAULT_CONFIG;
        self.kinds = Default::default();
    }

    fn deliver(&mut self, actions: &mut VecDeque<Action>) {
        for kind in EventKind::ALL {
            let state = &mut self.kinds[kind.index()];
            if !state.pending || state.masked {
                continue;
            }
            let Some(cid) = self.requests.pop_front() else {
                return;
            };
            *state = KindState { pending: false, masked: true };
            let dw0 = kind.event().to_dw0();
            actions.push_back(Action::CompleteAer { cid, status: Status::SUCCESS, dw0 });
        }
    }
}
