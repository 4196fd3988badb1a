//! The controllers of all paths to a subsystem, on one core.

use std::collections::VecDeque;
use std::sync::Arc;

use raceline_proto::nvme::ControllerId;
use raceline_proto::nvme::cross_reset::ControllerInstance;
use raceline_reactor::{Completion, Context, Token};

use super::identity::contradiction;
use super::{Fence, PathId};
use crate::command::{Command, CommandDone, Rejected};
use crate::config::{Association, HostConfig};
use crate::controller::{Controller, ControllerEvent};
use crate::error::{HostError, RejectedReason};

/// Paths that a subsystem may have had.
const MAX_PATHS: u16 = 0x7ff0;
/// Token indices that a controller uses.
const INDICES: u32 = 2;

/// What happened to the controller of a path.
#[derive(Clone, Debug)]
pub struct PathEvent {
    /// Which path.
    pub path: PathId,
    /// What happened.
    pub event: ControllerEvent,
}

/// The controllers of all paths, driven like one [`Controller`].
///
/// Paths must lead to the same namespaces: a path whose namespaces contradict those of the others is given up with
/// [`HostError::OtherNamespaces`]. The controllers reset each other when one is lost, if they can.
#[derive(Debug)]
pub struct Paths {
    token: Token,
    entries: Vec<Entry>,
    next: u16,
    events: VecDeque<PathEvent>,
    lost: Vec<Lost>,
    /// Attempts to connect that have failed since [`Self::take_failed_connects`].
    failed_connects: u64,
    closing: bool,
}

/// A lost controller whose fence was closed when last looked at.
#[derive(Debug)]
struct Lost {
    instance: ControllerInstance,
    fence: Arc<Fence>,
    /// The paths whose present controllers were asked to reset it. Those of another daemon do not know it.
    asked: Vec<PathId>,
    /// The last of these has not refused yet.
    under_way: bool,
}

#[derive(Debug)]
struct Entry {
    id: PathId,
    controller: Controller,
    /// The association that is up, or was last.
    association: Option<Association>,
    is_up: bool,
    first_error: Option<HostError>,
    /// It was given up, or has ended.
    ending: bool,
    /// It is being removed: another path to the same addresses may come before it has ended.
    leaving: bool,
}

impl Paths {
    /// Starts connecting all paths of the configuration. Uses the token's owner, and two indices for each path from
    /// the token's on.
    #[must_use]
    pub fn connect(cx: &mut Context<'_>, config: &HostConfig, token: Token) -> Self {
        let mut paths = Self {
            token,
            entries: Vec::new(),
            next: 0,
            events: VecDeque::with_capacity(8),
            lost: Vec::new(),
            failed_connects: 0,
            closing: false,
        };
        let configs = config.paths();
        let insist = configs.len() > 1;
        for config in configs {
            paths.start(cx, config, insist);
        }
        paths
    }

    /// Starts connecting another path. It is tried like one that was lost, until it is given up.
    ///
    /// # Errors
    /// When a path with the same addresses exists, the subsystem is another one, or it has had 32,752 paths.
    pub fn add(&mut self, cx: &mut Context<'_>, config: HostConfig) -> Result<PathId, HostError> {
        let wrong = |text: String| Err(HostError::Invalid(text));
        if let Some(entry) = self.entries.first() {
            let other = entry.controller.config();
            if (&other.subnqn, &other.hostnqn) != (&config.subnqn, &config.hostnqn) {
                return wrong(format!(
                    "a path leads {} to {}, and this one is for {} to {}",
                    other.hostnqn, other.subnqn, config.hostnqn, config.subnqn
                ));
            }
        }
        let same = |entry: &&Entry| {
            let other = entry.controller.config();
            !entry.ending
                && !entry.leaving
                && (other.address, other.source, other.transport)
                    == (config.address, config.source, config.transport)
        };
        if self.entries.iter().find(same).is_some() {
            return wrong(format!("there is a path to {} already", config.address));
        }
        if self.next == MAX_PATHS {
            return wrong("the subsystem has had too many paths: connect to it anew".to_owned());
        }
        let id = self.start(cx, config, true);
        self.collect(cx);
        Ok(id)
    }

    fn start(&mut self, cx: &mut Context<'_>, config: HostConfig, insist: bool) -> PathId {
        let id = PathId(self.next);
        self.next += 1;
        let token = Token { index: self.token.index + INDICES * u32::from(id.0), ..self.token };
        let mut controller = Controller::connect(cx, config, token);
        if insist {
            controller.insist();
        }
        self.entries.push(Entry {
            id,
            controller,
            association: None,
            is_up: false,
            first_error: None,
            ending: false,
            leaving: false,
        });
        id
    }

    /// Shuts a path down in order; the end is its [`ControllerEvent::Closed`].
    pub fn remove(&mut self, cx: &mut Context<'_>, path: PathId) {
        if let Some(entry) = self.entry(path) {
            entry.leaving = true;
            entry.controller.disconnect(cx);
        }
        self.collect(cx);
    }

    /// Shuts all paths down in order; each ends with [`ControllerEvent::Closed`]. I/O queues are to be closed before.
    pub fn disconnect(&mut self, cx: &mut Context<'_>) {
        self.closing = true;
        for entry in &mut self.entries {
            entry.controller.disconnect(cx);
        }
        self.collect(cx);
    }

    /// Whether nothing is connected or in flight, and will not be.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.entries.iter().all(|entry| entry.controller.is_finished())
    }

    /// The controller of a path.
    #[must_use]
    pub fn controller(&self, path: PathId) -> Option<&Controller> {
        self.entries.iter().find(|entry| entry.id == path).map(|entry| &entry.controller)
    }

    /// The first path that is up, and its association.
    #[must_use]
    pub fn first_up(&self) -> Option<(PathId, &Association)> {
        let up = self.entries.iter().find(|entry| entry.is_up)?;
        Some((up.id, up.association.as_ref()?))
    }

    /// How many attempts to connect a path have failed since this was asked last.
    pub(crate) fn take_failed_connects(&mut self) -> u64 {
        std::mem::take(&mut self.failed_connects)
    }

    /// Why no path can be used, if none was ever up and each has failed at least once: the reason of the first.
    #[must_use]
    pub fn start_failure(&self) -> Option<HostError> {
        let failed = |entry: &Entry| entry.association.is_none() && entry.first_error.is_some();
        if !self.entries.iter().all(failed) {
            return None;
        }
        self.entries.first()?.first_error.clone()
    }

    /// How many paths there are that were neither given up nor removed.
    #[must_use]
    pub fn count(&self) -> usize {
        self.entries.iter().filter(|entry| !entry.ending).count()
    }

    /// How many more admin commands [`Self::submit`] takes.
    #[must_use]
    pub fn room(&self) -> usize {
        let up = self.entries.iter().find(|entry| entry.is_up);
        up.map_or(0, |entry| entry.controller.room())
    }

    /// Accepts an admin command for the first path that is up.
    ///
    /// # Errors
    /// Gives the command back when no path is up, the queue is full, or the data do not suit it.
    pub fn submit(
        &mut self,
        cx: &mut Context<'_>,
        command: Command,
        user: u64,
    ) -> Result<(), Rejected> {
        match self.entries.iter_mut().find(|entry| entry.is_up) {
            Some(entry) => entry.controller.submit(cx, command, user),
            None => Err(Rejected { reason: RejectedReason::Closed, command }),
        }
    }

    /// The next finished admin command.
    pub fn poll_done(&mut self) -> Option<CommandDone> {
        self.entries.iter_mut().find_map(|entry| entry.controller.poll_done())
    }

    /// What happened.
    pub fn poll_event(&mut self) -> Option<PathEvent> {
        self.events.pop_front()
    }

    /// As [`Controller::queue_lost`], about an I/O queue of a path.
    pub fn queue_lost(
        &mut self,
        cx: &mut Context<'_>,
        path: PathId,
        cntlid: ControllerId,
        error: HostError,
    ) {
        if let Some(entry) = self.entry(path) {
            entry.controller.queue_lost(cx, cntlid, error);
        }
        self.collect(cx);
    }

    /// Gives the associations of all paths up, or of one, and makes new ones.
    pub fn reset(&mut self, cx: &mut Context<'_>, only: Option<PathId>) {
        for entry in &mut self.entries {
            if only.is_none_or(|path| path == entry.id)
                && let Some(up) = entry.controller.association()
            {
                let cntlid = up.cntlid;
                entry.controller.queue_lost(cx, cntlid, HostError::Reset);
            }
        }
        self.collect(cx);
    }

    /// Has the ANA log of a path read again ([`Controller::refresh_ana`]).
    pub fn refresh_ana(&mut self, cx: &mut Context<'_>, path: PathId) {
        if let Some(entry) = self.entry(path) {
            entry.controller.refresh_ana(cx);
        }
    }

    /// Takes a completion of an operation of one of the controllers.
    pub fn handle_completion(&mut self, cx: &mut Context<'_>, completion: Completion) {
        let index = completion.token.index.wrapping_sub(self.token.index) / INDICES;
        let path = u16::try_from(index).map(PathId);
        if let Some(entry) = path.ok().and_then(|path| self.entry(path)) {
            entry.controller.handle_completion(cx, completion);
        }
        self.collect(cx);
    }

    /// Sends what is ready; once per turn.
    pub fn flush(&mut self, cx: &mut Context<'_>) {
        for entry in &mut self.entries {
            entry.controller.flush(cx);
        }
    }

    fn entry(&mut self, path: PathId) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.id == path)
    }

    /// Takes the events of all controllers, and does what follows from them for the others.
    fn collect(&mut self, cx: &mut Context<'_>) {
        for at in 0..self.entries.len() {
            while let Some(event) = self.entries[at].controller.poll_event() {
                self.handle_event(cx, at, event);
            }
            self.failed_connects += self.entries[at].controller.take_failed_connects();
        }
        self.entries.retain(|entry| !(entry.ending && entry.controller.is_finished()));
        self.reset_lost(cx);
    }

    fn handle_event(&mut self, cx: &mut Context<'_>, at: usize, event: ControllerEvent) {
        let entry = &mut self.entries[at];
        match &event {
            ControllerEvent::Up(association) => {
                entry.association = Some(association.clone());
                entry.is_up = true;
            }
            ControllerEvent::Namespaces(namespaces) => {
                if let Some(association) = &mut entry.association {
                    association.namespaces = Arc::clone(namespaces);
                }
            }
            ControllerEvent::Ana(ana) => {
                if let Some(association) = &mut entry.association {
                    association.ana = Some(Arc::clone(ana));
                }
            }
            ControllerEvent::Down(error) | ControllerEvent::Failed(error) => {
                entry.first_error.get_or_insert_with(|| error.clone());
                self.handle_lost(at);
            }
            ControllerEvent::Closed => entry.is_up = false,
            ControllerEvent::DiscoveryChanged => {}
        }
        let entry = &mut self.entries[at];
        if entry.ending {
            return; // given up for its namespaces, which was told
        }
        entry.ending = matches!(event, ControllerEvent::Failed(_) | ControllerEvent::Closed);
        let id = entry.id;
        let checked = matches!(event, ControllerEvent::Up(_) | ControllerEvent::Namespaces(_));
        if checked && let Some(text) = self.contradiction(at) {
            let entry = &mut self.entries[at];
            let error = HostError::OtherNamespaces(entry.controller.config().address, text);
            (entry.is_up, entry.ending) = (false, true);
            entry.association = None;
            entry.controller.disconnect(cx);
            self.events.push_back(PathEvent { path: id, event: ControllerEvent::Failed(error) });
            return;
        }
        self.events.push_back(PathEvent { path: id, event });
    }

    /// Why the path at this position leads elsewhere than another one, if it does.
    fn contradiction(&self, at: usize) -> Option<String> {
        let new = self.entries[at].association.as_ref()?;
        let others =
            self.entries.iter().enumerate().filter(|(other, entry)| *other != at && !entry.ending);
        others.filter_map(|(_, entry)| contradiction(entry.association.as_ref()?, new)).next()
    }

    /// The association of a path is lost: others may reset its controller, and it resets no other any more.
    fn handle_lost(&mut self, at: usize) {
        let Self { entries, lost, .. } = self;
        let entry = &mut entries[at];
        for lost in lost.iter_mut() {
            lost.under_way &= lost.asked.last() != Some(&entry.id);
            lost.asked.retain(|path| *path != entry.id);
        }
        entry.controller.forget_resets();
        if std::mem::take(&mut entry.is_up)
            && let Some(association) = &entry.association
            && entry.controller.config().multipath.is_some()
            && let Some(instance) = association.controller.instance()
        {
            let fence = Arc::clone(&association.fence);
            lost.push(Lost { instance, fence, asked: Vec::new(), under_way: false });
        }
    }

    /// Asks controllers that are up to reset those that are lost, one after another until one can. A new association of
    /// the same path can do it, too, and is the only one that can if the other paths lead to other daemons.
    fn reset_lost(&mut self, cx: &mut Context<'_>) {
        self.lost.retain(|lost| !lost.fence.is_open(cx.now));
        if self.lost.is_empty() || self.closing {
            return;
        }
        for entry in &mut self.entries {
            for failed in entry.controller.take_failed_resets() {
                let lost = self.lost.iter_mut().find(|lost| lost.instance == failed);
                lost.into_iter().for_each(|lost| lost.under_way = false);
            }
        }
        for lost in self.lost.iter_mut().filter(|lost| !lost.under_way) {
            let can_reset = |entry: &&mut Entry| {
                let association = entry.association.as_ref().filter(|_| entry.is_up);
                association.is_some_and(|up| up.controller.cross_resets() > 0)
                    && !lost.asked.contains(&entry.id)
            };
            if let Some(entry) = self.entries.iter_mut().find(can_reset) {
                entry.controller.reset_other(cx, lost.instance, Arc::clone(&lost.fence));
                lost.asked.push(entry.id);
                lost.under_way = true;
            }
        }
    }
}
