//! The I/O queues of all paths on one core, which look like those of one association.

mod held;
mod member;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use raceline_proto::host::NamespaceInfo;
use raceline_proto::nvme::command::Fuse;
use raceline_proto::nvme::{ControllerId, NamespaceId};
use raceline_reactor::{Arrival, Completion, Context, Token};

use super::selector::{Candidate, Selector};
use super::{Access, PathAna, PathId};
use crate::command::{Command, CommandDone, Rejected};
use crate::config::{Association, HostConfig};
use crate::counters::QueueCounters;
use crate::error::{HostError, RejectedReason};
use crate::gather::I10Config;
use crate::maps::{CoreMaps, CorePlace};
use crate::path::Routing;
use crate::queue_set::{IoQueueEvent, IoQueueSet};
use held::Held;
use member::Member;
pub use member::{PathCounters, PathSummary};

/// Token indices of each path, from `token.index + (id << PATH_BITS)` on.
const PATH_BITS: u32 = 16;
/// The index of the set's own timer among those of paths: no path has it as its number.
const TIMER_PATH: u32 = 0x7fff;
/// How often commands that are held back are looked at.
const HELD_INTERVAL: Duration = Duration::from_millis(20);

/// What happened to a queue of a path.
#[derive(Clone, Debug)]
pub enum PathSetEvent {
    /// Commands flow on a queue.
    Ready {
        /// Its path.
        path: PathId,
        /// Its position among the queues of the path.
        queue: usize,
    },
    /// The connection is lost: the owner of the path's [`crate::Controller`] must be told.
    Lost {
        /// Its path.
        path: PathId,
        /// The association that is over with it.
        cntlid: ControllerId,
        /// Why.
        error: HostError,
    },
    /// The ANA log of a path is out of date, as a command says: the owner of its [`crate::Controller`] must be told.
    Outdated {
        /// The path.
        path: PathId,
    },
}

/// Which queues of each path are here.
#[derive(Clone, Debug)]
enum Layout {
    Named(Vec<u16>),
    Core(CorePlace),
}

/// The I/O queues of all paths on one core, driven like one [`IoQueueSet`].
///
/// The program tells it what [`super::Paths`] report, and reports lost queues back. With one path and without
/// [`HostConfig::multipath`], it is no more than an [`IoQueueSet`].
#[derive(Debug)]
pub struct PathSet {
    config: HostConfig,
    layout: Layout,
    token: Token,
    /// In the order of their numbers.
    members: Vec<Member>,
    /// The position of the path that all commands take, while there is nothing to choose.
    direct: Option<usize>,
    selector: Selector,
    held: VecDeque<Held>,
    done: VecDeque<(usize, CommandDone)>,
    events: VecDeque<PathSetEvent>,
    candidates: Vec<Candidate>,
    counters: Arc<QueueCounters>,
    /// Counts the commands of each path, so that every command is looked at.
    counts_paths: bool,
    /// The first halves of fused operations whose second halves have not come; at most one of each queue.
    firsts: Vec<Held>,
    /// The most queues that a path has had.
    width: usize,
    alarm: Option<Instant>,
    closed: bool,
}

impl PathSet {
    /// Queues with these QIDs (from 1), of each path of the configuration.
    #[must_use]
    pub fn new(
        cx: &Context<'_>,
        config: &HostConfig,
        qids: impl IntoIterator<Item = u16>,
        token: Token,
    ) -> Self {
        Self::with_layout(cx, config, Layout::Named(qids.into_iter().collect()), token)
    }

    /// The queues of one of the cores in use ([`IoQueueSet::mapped`]), of each path of the configuration.
    #[must_use]
    pub fn mapped(cx: &Context<'_>, config: &HostConfig, core: CorePlace, token: Token) -> Self {
        Self::with_layout(cx, config, Layout::Core(core), token)
    }

    fn with_layout(cx: &Context<'_>, config: &HostConfig, layout: Layout, token: Token) -> Self {
        let paths = config.paths();
        let multipath = paths[0].multipath.clone();
        let options = multipath.clone().unwrap_or_default();
        let mut set = Self {
            config: HostConfig { multipath, ..config.clone() },
            layout,
            token,
            members: Vec::with_capacity(paths.len()),
            direct: None,
            selector: Selector::new(options.policy, options.failback),
            held: VecDeque::new(),
            done: VecDeque::new(),
            events: VecDeque::with_capacity(8),
            candidates: Vec::new(),
            counters: Arc::default(),
            counts_paths: false,
            firsts: Vec::new(),
            width: 0,
            alarm: None,
            closed: false,
        };
        for (id, config) in (0..).map(PathId).zip(&paths) {
            set.add_path(cx, id, config);
        }
        set
    }

    /// Adds a path that the host did not have.
    pub fn add_path(&mut self, cx: &Context<'_>, id: PathId, config: &HostConfig) {
        let index = self.token.index + (u32::from(id.0) << PATH_BITS);
        let token = Token { index, ..self.token };
        let mut queues = match &self.layout {
            Layout::Named(qids) => IoQueueSet::new(config, qids.iter().copied(), token),
            Layout::Core(core) => IoQueueSet::mapped(config, *core, token),
        };
        queues.share_counters(Arc::clone(&self.counters));
        let mut member = Member::new(id, queues, cx.now, (config.source, config.address));
        member.measure(self.config.multipath.as_ref());
        self.members.push(member);
        self.choose_direct(cx.now);
    }

    /// Ends a path; its commands go to others.
    pub fn remove_path(&mut self, cx: &mut Context<'_>, id: PathId) {
        if let Some(member) = self.member(id) {
            member.give_up();
            member.queues.handle_down(cx, &HostError::Closed);
            member.queues.close(cx);
        }
        self.settle(cx);
    }

    /// Whether the host has several paths, or may have them.
    #[must_use]
    pub fn is_multipath(&self) -> bool {
        self.config.multipath.is_some()
    }

    /// How the paths are.
    #[must_use]
    pub fn summaries(&self) -> Vec<PathSummary> {
        self.members.iter().map(Member::summary).collect()
    }

    /// Changes how commands find their path.
    pub(crate) fn set_routing(&mut self, cx: &mut Context<'_>, routing: &Routing) {
        let Some(now) = &mut self.config.multipath else { return };
        if let Some(options) = &routing.options {
            now.clone_from(options);
            self.members.iter_mut().for_each(|member| member.measure(Some(&*now)));
        }
        self.selector.policy = now.policy;
        self.selector.failback = now.failback;
        self.selector.preferred = routing.preferred;
        self.counts_paths = routing.counts_paths;
        self.settle(cx);
    }

    /// Whether there is such a path.
    #[must_use]
    pub fn has_path(&self, id: PathId) -> bool {
        self.members.iter().any(|member| member.id == id)
    }

    /// Where the commands of a path are counted, when they are counted.
    pub(crate) fn set_counters(&mut self, id: PathId, counters: &Arc<PathCounters>) {
        if let Some(member) = self.member(id) {
            member.counters = Some(Arc::clone(counters));
        }
    }

    /// The association of a path is up: its queues connect.
    pub fn handle_up(&mut self, cx: &mut Context<'_>, path: PathId, association: &Association) {
        if let Some(member) = self.member(path) {
            member.handle_up(cx, association);
        }
        self.settle(cx);
    }

    /// The association of a path is lost, and is being made again.
    pub fn handle_down(&mut self, cx: &mut Context<'_>, path: PathId, error: &HostError) {
        if let Some(member) = self.member(path) {
            member.handle_down(cx, error);
        }
        self.settle(cx);
    }

    /// A path was given up. Without multipath, that closes all.
    pub fn handle_failed(&mut self, cx: &mut Context<'_>, path: PathId) {
        if !self.is_multipath() {
            return self.close(cx);
        }
        self.remove_path(cx, path);
    }

    /// The ANA log of a path was read.
    pub fn handle_ana(&mut self, cx: &mut Context<'_>, path: PathId, ana: &Arc<PathAna>) {
        if let Some(member) = self.member(path) {
            member.ana = Some(Arc::clone(ana));
        }
        self.settle(cx);
    }

    /// The namespaces of a path have changed.
    pub fn handle_namespaces(
        &mut self,
        cx: &mut Context<'_>,
        path: PathId,
        namespaces: &[NamespaceInfo],
    ) {
        if let Some(member) = self.member(path) {
            member.namespaces = namespaces.iter().map(|info| info.nsid).collect();
        }
        self.settle(cx);
    }

    /// Closes all queues, because the host was given up or the program has finished.
    pub fn close(&mut self, cx: &mut Context<'_>) {
        self.closed = true;
        for member in &mut self.members {
            member.queues.close(cx);
        }
        self.settle(cx);
    }

    /// Whether all queues are closed, with nothing in flight.
    #[must_use]
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.closed && self.members.iter().all(|member| member.queues.is_closed())
    }

    /// Whether all queues wait for a connection, with nothing in flight.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.held.is_empty()
            && self.firsts.is_empty()
            && self.members.iter().all(|member| member.queues.is_lost())
    }

    /// Number of queues of a path; 0 before the first association.
    #[must_use]
    pub fn len(&self) -> usize {
        self.members.iter().map(|member| member.queues.len()).fold(self.width, usize::max)
    }

    /// Whether there are no queues (yet).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether commands flow on all queues of a path.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.members.iter().any(|member| member.queues.is_ready())
    }

    /// How many more commands a queue takes. With multipath, that counts the commands of all paths; where all commands go
    /// by one path, it is not more than the queue of that path takes, which the controller may have made smaller.
    #[must_use]
    #[inline]
    pub fn room(&self, queue: usize) -> usize {
        match (&self.members[..], self.direct) {
            ([member], _) if !self.is_multipath() => member.queues.room(queue),
            (members, Some(at)) if at < members.len() => {
                let on_path = members[at].queues.room(queue).saturating_sub(self.firsts.len());
                self.shared_room(queue).min(on_path)
            }
            _ => self.shared_room(queue),
        }
    }

    fn shared_room(&self, queue: usize) -> usize {
        if self.closed || self.is_empty() {
            return 0;
        }
        let limit = usize::from(self.config.io_entries).saturating_sub(1);
        let on = |member: &Member| member.queues.queue_outstanding(member.position(queue));
        let outstanding: usize = self.members.iter().map(on).sum();
        limit.saturating_sub(outstanding + self.held.len() + self.firsts.len())
    }

    /// Commands outstanding on all queues of all paths, or held back.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        let on_paths: usize = self.members.iter().map(|member| member.queues.outstanding()).sum();
        on_paths + self.held.len() + self.firsts.len()
    }

    /// Accepts a command for the queue at this position.
    ///
    /// # Errors
    /// Gives the command back when there is no such queue, or it does not take it.
    #[inline(always)]
    pub fn submit(
        &mut self,
        cx: &mut Context<'_>,
        queue: usize,
        command: Command,
        user: u64,
    ) -> Result<(), Rejected> {
        if command.sqe.fuse() != Fuse::Normal && self.is_multipath() {
            return self.submit_half(cx, queue, command, user);
        }
        match self.direct.and_then(|at| self.members.get_mut(at)) {
            Some(member) => member.queues.submit(cx, queue, command, user),
            None => self.submit_choosing(cx, queue, command, user),
        }
    }

    #[inline(never)]
    fn submit_choosing(
        &mut self,
        cx: &mut Context<'_>,
        queue: usize,
        command: Command,
        user: u64,
    ) -> Result<(), Rejected> {
        if self.closed {
            return Err(Rejected { reason: RejectedReason::Closed, command });
        }
        if self.shared_room(queue) == 0 {
            return Err(Rejected { reason: RejectedReason::Full, command });
        }
        match self.choose(cx.now, queue, command.sqe.namespace_id()) {
            Some(at) => self.members[at].submit(cx, queue, command, user, self.counts_paths),
            None => {
                self.held.push_back(Held::new(queue, command, user));
                self.submit_held(cx);
                Ok(())
            }
        }
    }

    /// Accepts a command for the queue of its map ([`IoQueueSet::submit_mapped`]). Returns the position of the queue.
    ///
    /// # Errors
    /// As [`Self::submit`], and when this core's queue of the map is one that lives on another core.
    pub fn submit_mapped(
        &mut self,
        cx: &mut Context<'_>,
        lane: (bool, usize),
        command: Command,
        user: u64,
    ) -> Result<usize, Rejected> {
        let is_half = command.sqe.fuse() != Fuse::Normal && self.is_multipath();
        let direct = self.direct.filter(|_| !is_half);
        if let Some(member) = direct.and_then(|at| self.members.get_mut(at)) {
            return member.queues.submit_mapped(cx, lane, command, user);
        }
        let maps = self.members.iter().find_map(|member| member.queues.maps());
        let queue = match (&self.layout, maps) {
            (_, Some(maps)) => maps.route(command.sqe.opc, lane.0, lane.1),
            (Layout::Named(_), None) => lane.1.checked_rem(self.len()),
            (Layout::Core(_), None) => {
                return Err(Rejected { reason: RejectedReason::Closed, command });
            }
        };
        match queue {
            Some(queue) if is_half => self.submit_half(cx, queue, command, user).map(|()| queue),
            Some(queue) => self.submit_choosing(cx, queue, command, user).map(|()| queue),
            None => Err(Rejected { reason: RejectedReason::Elsewhere, command }),
        }
    }

    /// How commands find their queue, once that is known: for a set made by [`Self::mapped`].
    #[must_use]
    pub fn maps(&self) -> Option<&CoreMaps> {
        self.members.iter().find_map(|member| member.queues.maps())
    }

    /// Changes how commands are gathered before they are sent, on all queues of all paths.
    pub fn set_i10(&mut self, i10: Option<I10Config>) {
        self.config.i10 = i10;
        self.members.iter_mut().for_each(|member| member.queues.set_i10(i10));
    }

    /// Where the packets of the first path's queue at this position come in.
    #[must_use]
    pub fn arrival(&self, queue: usize) -> Arrival {
        self.members.first().map(|member| member.queues.arrival(queue)).unwrap_or_default()
    }

    /// Takes a completion of an operation of one of the queues.
    pub fn handle_completion(&mut self, cx: &mut Context<'_>, completion: Completion) {
        let index = completion.token.index.wrapping_sub(self.token.index);
        let path = index >> PATH_BITS;
        if path == TIMER_PATH {
            if self.alarm.take_if(|at| *at <= cx.now).is_some() {
                self.settle(cx);
            }
            return;
        }
        let is_its = |member: &Member| u32::from(member.id.0) == path;
        if let Some(member) = self.members.iter_mut().find(|member| is_its(member)) {
            member.queues.handle_completion(cx, completion);
            if member.queues.has_news() {
                self.settle(cx);
            }
        }
    }

    /// Sends what is ready on all queues, and looks at RDMA devices; once per turn.
    pub fn flush(&mut self, cx: &mut Context<'_>) {
        for member in &mut self.members {
            member.queues.flush(cx);
            member.queues.spin(cx);
        }
    }

    /// The next finished command and the position of its queue.
    #[inline]
    pub fn poll_done(&mut self) -> Option<(usize, CommandDone)> {
        for member in &mut self.members {
            if let Some(done) = member.queues.poll_done() {
                return Some(done);
            }
        }
        self.done.pop_front()
    }

    /// How many commands [`Self::poll_done`] has to give.
    #[must_use]
    pub fn done_count(&self) -> usize {
        let on_paths: usize = self.members.iter().map(|member| member.queues.done_count()).sum();
        on_paths + self.done.len()
    }

    /// Takes all finished commands, with the positions of their queues.
    #[inline]
    pub fn take_done(&mut self, mut take: impl FnMut(usize, CommandDone)) {
        for member in &mut self.members {
            member.queues.take_done(&mut take);
        }
        for (queue, done) in self.done.drain(..) {
            take(queue, done);
        }
    }

    /// What all queues have done so far; readable from other threads.
    #[must_use]
    pub fn counters(&self) -> &Arc<QueueCounters> {
        &self.counters
    }

    /// What happened to one of the queues.
    pub fn poll_event(&mut self) -> Option<PathSetEvent> {
        self.events.pop_front()
    }

    fn member(&mut self, id: PathId) -> Option<&mut Member> {
        self.members.iter_mut().find(|member| member.id == id)
    }

    /// Takes what the queues report and give back, decides anew which paths there are, and sends what waited for one.
    #[cold]
    fn settle(&mut self, cx: &mut Context<'_>) {
        for at in 0..self.members.len() {
            while let Some(returned) = self.members[at].queues.poll_returned() {
                self.take_returned(cx, at, returned);
            }
            let member = &mut self.members[at];
            let path = member.id;
            while let Some(event) = member.queues.poll_event() {
                self.events.push_back(match event {
                    IoQueueEvent::Ready { queue } => {
                        member.note_ready();
                        PathSetEvent::Ready { path, queue }
                    }
                    IoQueueEvent::Lost { cntlid, error, .. } => {
                        member.note_lost(cx.now);
                        PathSetEvent::Lost { path, cntlid, error }
                    }
                });
            }
        }
        if self.is_multipath() && !self.closed {
            self.members.retain(|member| !member.is_gone());
        }
        self.width = self.len();
        self.choose_direct(cx.now);
        self.submit_held(cx);
    }

    /// Finds the path that all commands take, if there is one.
    fn choose_direct(&mut self, now: Instant) {
        self.direct = match (&self.members[..], self.is_multipath()) {
            ([_], false) => Some(0),
            _ if self.closed || self.counts_paths => None,
            _ => self.only_choice(now),
        };
    }

    /// The path that every namespace would choose on every queue.
    fn only_choice(&mut self, now: Instant) -> Option<usize> {
        let mut namespaces: Vec<NamespaceId> =
            self.members.iter().flat_map(|member| member.namespaces.iter().copied()).collect();
        namespaces.sort_unstable();
        namespaces.dedup();
        let mut only = None;
        for nsid in namespaces {
            self.find_candidates(now, None, nsid);
            let in_turn = self.selector.takes_turns();
            let optimized = self.candidates.iter().filter(|it| it.access == Access::Optimized);
            let (optimized, all) = (optimized.count(), self.candidates.len());
            let rivals = if optimized > 0 { optimized } else { all };
            if in_turn && rivals > 1 {
                return None;
            }
            let id = self.selector.choose(&self.candidates)?;
            if only.is_some_and(|only| only != id) {
                return None;
            }
            only = Some(id);
        }
        let at = self.members.iter().position(|member| Some(member.id) == only)?;
        // Positions of queues mean the same on this path as on the others.
        (self.members[at].queues.is_ready() && self.members[at].queues.len() == self.len())
            .then_some(at)
    }

    /// The position of the path for a command now.
    fn choose(&mut self, now: Instant, queue: usize, nsid: NamespaceId) -> Option<usize> {
        self.find_candidates(now, Some(queue), nsid);
        let id = self.selector.choose(&self.candidates)?;
        self.members.iter().position(|member| member.id == id)
    }

    /// Finds the paths that can take a command for a namespace, on one queue or on all.
    fn find_candidates(&mut self, now: Instant, queue: Option<usize>, nsid: NamespaceId) {
        self.candidates.clear();
        let fast_fail = self.config.multipath.as_ref().and_then(|it| it.fast_io_fail);
        for member in &self.members {
            let access = member.access(nsid, now, fast_fail);
            let ready = match queue {
                Some(queue) => member.has_room(queue),
                None => member.queues.is_ready(),
            };
            if access.is_usable() && ready {
                let at = member.position(queue.unwrap_or(0));
                let outstanding = member.queues.queue_outstanding(at);
                let (id, distance) = (member.id, member.distance);
                self.candidates.push(Candidate { id, access, outstanding, distance });
            }
        }
    }
}
