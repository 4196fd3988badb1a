//! The reactor thread of a controller's admin queue, whichever face has its I/O queues.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use raceline_proto::nvme::{ControllerId, Cqe, Sqe};
use raceline_reactor::{
    Completion, Context, IoBuf, Mode, PoolConfig, Reactor, ReactorConfig, ReactorHandle,
};
use raceline_reactor::{Service, Token};

use crate::command::{Command, CommandDone, CommandSummary, Data};
use crate::config::{Association, HostConfig};
use crate::controller::{Controller, ControllerEvent};
use crate::counters::{LinkCounters, LinkTotals};
use crate::error::{CommandError, CommandFailure, HostError, RejectedReason};
use crate::multipath::{PathCounters, PathEvent, PathId, Paths};
use crate::path::Routing;

/// Commands that callers may have submitted at a time; more wait their turn.
pub(crate) const MAX_TICKETS: usize = 1024;
/// Staging of the admin queue.
const POOL: &[(usize, usize)] = &[(128 << 10, 1)];

/// What a thread asks of the reactor.
#[derive(Debug)]
pub(crate) enum Message {
    /// Executes a command.
    Submit(Submission),
    /// An I/O queue of that association of a path, on another core, is lost.
    QueueLost(PathId, ControllerId, HostError),
    /// The ANA log of a path is out of date.
    RefreshAna(PathId),
    /// Gives the associations of all paths up, or of one, and makes new ones.
    Reset(Option<PathId>),
    /// Connects another path, and tells whether it came up.
    AddPath(Box<HostConfig>, mpsc::Sender<Result<PathId, HostError>>),
    /// Shuts a path down in order.
    RemovePath(PathId),
    /// Shuts a path down in order until it is enabled.
    DisablePath(PathId),
    /// Connects a path again that was disabled.
    EnablePath(PathId),
    /// Shuts down in order and ends.
    Stop,
}

/// An admin command on its way to the reactor; buffers of a reactor do not leave it.
#[derive(Debug)]
pub(crate) struct Submission {
    pub(crate) sqe: Sqe,
    /// Bytes that the host sends; none unless they go to the controller.
    pub(crate) send: Vec<u8>,
    /// Bytes that the controller sends.
    pub(crate) receive_len: u32,
    pub(crate) reply: mpsc::Sender<Reply>,
}

/// The end of a [`Submission`], with its data.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) result: Result<Cqe, CommandFailure>,
    pub(crate) data: Vec<u8>,
}

/// The controller's state, which threads may look at.
#[derive(Debug, Default)]
pub(crate) struct LinkState {
    state: Mutex<LinkSnapshot>,
    changed: Condvar,
    /// The version of `state`, for queues that look before each command.
    version: AtomicU64,
    /// Written by the thread of the admin queue only.
    counters: LinkCounters,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct LinkSnapshot {
    /// Of the first path that is up.
    pub(crate) association: Option<Association>,
    /// All paths were given up or closed.
    pub(crate) failed: Option<HostError>,
    /// In the order of their numbers.
    pub(crate) paths: Vec<LinkPath>,
    /// Those that were shut down until they are enabled.
    pub(crate) disabled: Vec<LinkPath>,
    /// Which path commands take.
    pub(crate) routing: Routing,
    /// Grows by one with each change.
    pub(crate) version: u64,
}

/// A path as threads see it.
#[derive(Clone, Debug)]
pub(crate) struct LinkPath {
    pub(crate) id: PathId,
    pub(crate) config: Arc<HostConfig>,
    /// While it is up.
    pub(crate) association: Option<Association>,
    /// Why it was given up.
    pub(crate) failed: Option<HostError>,
    pub(crate) counters: Arc<PathCounters>,
    /// It has been up.
    pub(crate) was_up: bool,
}

impl LinkPath {
    fn new(id: PathId, config: Arc<HostConfig>) -> Self {
        let counters = Arc::default();
        Self { id, config, association: None, failed: None, counters, was_up: false }
    }
}

impl LinkSnapshot {
    /// What is known of a path.
    pub(crate) fn path(&self, id: PathId) -> Option<&LinkPath> {
        self.paths.iter().find(|path| path.id == id)
    }

    fn change_path(&mut self, id: PathId, change: impl FnOnce(&mut LinkPath)) {
        if let Some(path) = self.paths.iter_mut().find(|path| path.id == id) {
            change(path);
        }
        self.association = self.paths.iter().find_map(|path| path.association.clone());
    }
}

impl LinkState {
    pub(crate) fn get(&self) -> LinkSnapshot {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What has become of the connections so far.
    pub(crate) fn totals(&self) -> LinkTotals {
        self.counters.totals()
    }

    /// The version of the state, without waiting for a lock.
    #[inline]
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Waits until the state is newer than `version`, and gives the version that it has then.
    pub(crate) fn wait(&self, version: u64, timeout: Duration) -> u64 {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_old = |state: &mut LinkSnapshot| state.version == version;
        let waited = self.changed.wait_timeout_while(state, timeout, is_old);
        waited.unwrap_or_else(PoisonError::into_inner).0.version
    }

    pub(crate) fn update(&self, change: impl FnOnce(&mut LinkSnapshot)) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut state);
        state.version += 1;
        self.version.store(state.version, Ordering::Release);
        self.changed.notify_all();
    }
}

/// Starts the thread and waits until the controller is up.
pub(crate) fn start(
    config: HostConfig,
) -> Result<(ReactorHandle<Message>, Arc<LinkState>), HostError> {
    let state = Arc::new(LinkState::default());
    let configs = config.paths().into_iter().map(Arc::new);
    let paths: Vec<LinkPath> =
        (0..).map(PathId).zip(configs).map(|(id, config)| LinkPath::new(id, config)).collect();
    state.update(|state| state.paths = paths);
    let (started, start) = mpsc::channel();
    let reactor = ReactorConfig {
        mode: Mode::Interrupt,
        pool: PoolConfig::new(POOL),
        name: "raceline-host".to_owned(),
        ..ReactorConfig::default()
    };
    let service_state = state.clone();
    let handle = Reactor::spawn(reactor, move |cx| {
        let token = Token { owner: 0, generation: 0, index: 0 };
        let paths = Paths::connect(cx, &config, token);
        Ok(HostService::new(paths, service_state, started))
    })
    .map_err(|error| HostError::Reactor(Arc::new(error)))?;
    match start.recv() {
        Ok(Ok(())) => Ok((handle, state)),
        Ok(Err(error)) => {
            // The thread ends by itself; its own error would say less.
            drop(handle.join());
            Err(error)
        }
        Err(_) => Err(match handle.join() {
            Err(error) => HostError::Reactor(Arc::new(std::io::Error::other(error))),
            Ok(()) => HostError::Closed,
        }),
    }
}

/// The work of the thread.
struct HostService {
    paths: Paths,
    state: Arc<LinkState>,
    /// Told once, whether the controller came up.
    started: Option<mpsc::Sender<Result<(), HostError>>>,
    /// The callers that wait for a command, by ticket.
    tickets: Vec<Option<mpsc::Sender<Reply>>>,
    free: Vec<usize>,
    waiting: VecDeque<Submission>,
    /// Those who wait for the first connection of a path.
    adding: Vec<(PathId, mpsc::Sender<Result<PathId, HostError>>)>,
    failed: bool,
}

impl HostService {
    fn new(
        paths: Paths,
        state: Arc<LinkState>,
        started: mpsc::Sender<Result<(), HostError>>,
    ) -> Self {
        Self {
            paths,
            state,
            started: Some(started),
            tickets: std::iter::repeat_with(|| None).take(MAX_TICKETS).collect(),
            free: (0..MAX_TICKETS).rev().collect(),
            waiting: VecDeque::new(),
            adding: Vec::new(),
            failed: false,
        }
    }

    fn tell_started(&mut self, result: Result<(), HostError>) {
        if let Some(started) = self.started.take() {
            // The caller may be gone; then the result is dropped.
            drop(started.send(result));
        }
    }

    fn handle_events(&mut self, cx: &mut Context<'_>) {
        self.state.counters.failed_connects.add(self.paths.take_failed_connects());
        while let Some(PathEvent { path, event }) = self.paths.poll_event() {
            let change = |change: &mut dyn FnMut(&mut LinkPath)| {
                self.state.update(|state| state.change_path(path, change));
            };
            match event {
                ControllerEvent::Up(association) => {
                    tracing::info!(event = "path", %path, "a path is up");
                    let counters = &self.state.counters;
                    change(&mut |path| {
                        path.association = Some(association.clone());
                        counters.reconnects.add(u64::from(path.was_up));
                        path.was_up = true;
                    });
                    self.tell_started(Ok(()));
                    self.tell_added(path, None);
                }
                ControllerEvent::Down(error) => {
                    self.count_loss(path);
                    change(&mut |path| path.association = None);
                    self.handle_start_failure(cx);
                    self.log_loss(cx.now, path, &error);
                    if self.tell_added(path, Some(error)) {
                        self.paths.remove(cx, path);
                    }
                }
                ControllerEvent::Namespaces(namespaces) => change(&mut |path| {
                    if let Some(association) = &mut path.association {
                        association.namespaces = Arc::clone(&namespaces);
                    }
                }),
                ControllerEvent::Ana(ana) => change(&mut |path| {
                    self.state.counters.ana_changes.add(1);
                    if let Some(association) = &mut path.association {
                        association.ana = Some(Arc::clone(&ana));
                    }
                }),
                // Threads that wait for changes read the log.
                ControllerEvent::DiscoveryChanged => self.state.update(|_| {}),
                ControllerEvent::Failed(error) => self.handle_failed(path, error),
                ControllerEvent::Closed => {
                    self.state.update(|state| {
                        state.change_path(path, |path| path.association = None);
                        state.paths.retain(|known| known.id != path);
                    });
                    self.end_if_empty();
                }
            }
        }
    }

    /// A path that was up is lost, before the state says so.
    fn count_loss(&self, path: PathId) {
        let now = self.state.get();
        let is_up = |known: &&LinkPath| known.association.is_some();
        let (lost, others): (Vec<_>, Vec<_>) =
            now.paths.iter().filter(is_up).partition(|known| known.id == path);
        let counters = &self.state.counters;
        counters.losses.add(lost.len() as u64);
        counters.failovers.add(u64::from(!lost.is_empty() && !others.is_empty()));
    }

    /// What the program wants itself is no trouble.
    fn log_loss(&self, now: Instant, path: PathId, error: &HostError) {
        if matches!(error, HostError::Reset) {
            tracing::info!(event = "path", %path, "a path is reset, and is being connected again");
        } else if error.is_permanent() {
            let state = self.state.get();
            let retry_at = self.paths.controller(path).and_then(Controller::retry_at);
            // Of one that was up, the controller has warned; who connects or adds a path learns it from the result.
            let is_told = self.failed
                || self.adding.iter().any(|(adding, _)| *adding == path)
                || state.path(path).is_none_or(|known| known.was_up);
            if let (false, Some(retry_at)) = (is_told, retry_at) {
                let delay = retry_at - now;
                tracing::warn!(
                    event = "path", %path, %error,
                    "a path is refused, and is tried again while others are there: the next try is after {delay:?}, and \
                     later ones with the same result are not logged"
                );
            }
        } else if self.paths.count() > 1 {
            tracing::warn!(event = "path", %path, %error, "a path is lost, and is being connected again");
        } else {
            tracing::warn!(event = "path", %error, "controller lost");
        }
    }

    /// The last path is given up. While the controller is connected for the first time, its user learns that from the result.
    fn log_end(&self, path: PathId, error: &HostError) {
        let now = self.state.get();
        let Some(LinkPath { config, .. }) = now.path(path) else { return };
        if self.started.is_none() && !self.failed {
            let HostConfig { subnqn: nqn, address, .. } = &**config;
            tracing::error!(
                event = "path", %nqn, %address, %error,
                "the last path to the controller is given up, and all its I/O fails: let go of the disk or program that uses \
                 it, and connect anew, which the unit of a disk does by itself once nobody uses the disk; a longer \
                 ctrl_loss_tmo (-1: for ever) has I/O wait instead"
            );
        }
    }

    /// Of several paths, one that comes up at first is enough. If all have failed, nobody waits for more.
    fn handle_start_failure(&mut self, cx: &mut Context<'_>) {
        if self.started.is_some()
            && let Some(error) = self.paths.start_failure()
        {
            self.end(error);
            self.paths.disconnect(cx);
        }
    }

    /// A path was given up; with the last one, all is.
    fn handle_failed(&mut self, path: PathId, error: HostError) {
        self.tell_added(path, Some(error.clone()));
        self.count_loss(path);
        self.state.update(|state| {
            state.change_path(path, |path| {
                path.association = None;
                path.failed = Some(error.clone());
            });
        });
        let count = self.state.get().paths.len();
        if self.paths.count() == 0 {
            self.log_end(path, &error);
        }
        if self.paths.count() > 0 {
            tracing::warn!(event = "path", %path, %error, "a path is given up");
        } else if count == 1 || self.started.is_some() {
            self.end(self.paths.start_failure().unwrap_or(error));
        } else {
            self.end(HostError::NoPath { count, last: Box::new(error) });
        }
    }

    /// Tells who has added a path that it came up, or why not. Whether somebody was told.
    fn tell_added(&mut self, path: PathId, error: Option<HostError>) -> bool {
        let Some(at) = self.adding.iter().position(|(adding, _)| *adding == path) else {
            return false;
        };
        let (_, sender) = self.adding.swap_remove(at);
        // The caller may be gone; then the result is dropped.
        drop(sender.send(error.map_or(Ok(path), Err)));
        true
    }

    /// There is no path any more, and none will be enabled.
    fn end_if_empty(&mut self) {
        if self.paths.count() == 0 && self.state.get().disabled.is_empty() {
            self.end(HostError::Closed);
        }
    }

    fn disable(&mut self, cx: &mut Context<'_>, path: PathId) {
        self.state.update(|state| {
            if let Some(at) = state.paths.iter().position(|known| known.id == path) {
                let mut disabled = state.paths.remove(at);
                // What it was last stays known, for those who name it by that.
                disabled.failed = None;
                state.disabled.push(disabled);
                state.association = state.paths.iter().find_map(|it| it.association.clone());
            }
        });
        self.paths.remove(cx, path);
    }

    fn enable(&mut self, cx: &mut Context<'_>, path: PathId) {
        let known = self.state.get().disabled.into_iter().find(|known| known.id == path);
        let Some(disabled) = known else { return };
        match self.paths.add(cx, HostConfig::clone(&disabled.config)) {
            Ok(id) => self.state.update(|state| {
                state.disabled.retain(|known| known.id != path);
                let counters = Arc::clone(&disabled.counters);
                let new = LinkPath { counters, ..LinkPath::new(id, Arc::clone(&disabled.config)) };
                state.paths.push(new);
            }),
            Err(error) => tracing::warn!(%path, %error, "a path stays disabled"),
        }
    }

    fn add_path(
        &mut self,
        cx: &mut Context<'_>,
        config: HostConfig,
        sender: mpsc::Sender<Result<PathId, HostError>>,
    ) {
        if self.failed {
            drop(sender.send(Err(HostError::Closed)));
            return;
        }
        match self.paths.add(cx, config.clone()) {
            Ok(id) => {
                self.adding.push((id, sender));
                let path = LinkPath::new(id, Arc::new(config));
                self.state.update(|state| state.paths.push(path));
            }
            Err(error) => drop(sender.send(Err(error))),
        }
    }

    fn end(&mut self, error: HostError) {
        self.failed = true;
        self.tell_started(Err(error.clone()));
        self.state.update(|state| {
            state.association = None;
            state.failed.get_or_insert(error);
        });
    }

    fn handle_finished(&mut self) {
        while let Some(done) = self.paths.poll_done() {
            self.answer(done);
        }
    }

    fn answer(&mut self, done: CommandDone) {
        let Ok(index) = usize::try_from(done.user) else { return };
        let Some(reply) = self.tickets.get_mut(index).and_then(Option::take) else { return };
        self.free.push(index);
        let result = match done.result {
            Ok(cqe) => Ok(cqe),
            Err(error) => Err(CommandFailure { summary: done.summary, error }),
        };
        let data = if let Data::Read(buf) = done.data { buf.to_vec() } else { Vec::new() };
        // The caller may not wait any more; then the reply is dropped.
        drop(reply.send(Reply { result, data }));
    }

    /// Submits what waits, as far as there is room.
    fn submit_waiting(&mut self, cx: &mut Context<'_>) {
        for _ in 0..self.waiting.len() {
            let Some(submission) = self.waiting.pop_front() else { return };
            if self.failed {
                refuse(&submission, CommandError::NotSent);
            } else if let Some(submission) = self.submit(cx, submission) {
                self.waiting.push_back(submission);
            }
        }
    }

    /// Submits one; gives it back when it has to wait.
    fn submit(&mut self, cx: &mut Context<'_>, submission: Submission) -> Option<Submission> {
        if self.paths.room() == 0 {
            return Some(submission);
        }
        let Some(index) = self.free.pop() else { return Some(submission) };
        let Submission { sqe, send, receive_len, reply } = submission;
        let data = match usize::try_from(receive_len).unwrap_or(usize::MAX) {
            0 if !send.is_empty() => {
                let mut buf = IoBuf::heap(send.len());
                buf.copy_from_slice(&send);
                Data::Write(buf.into())
            }
            0 => Data::None,
            len => Data::Read(IoBuf::heap(len)),
        };
        self.tickets[index] = Some(reply);
        let user = u64::try_from(index).unwrap_or(u64::MAX);
        if let Err(rejected) = self.paths.submit(cx, Command::new(sqe, data), user) {
            debug_assert_ne!(rejected.reason, RejectedReason::Full, "room was looked at");
            let summary = CommandSummary::new(&rejected.command.sqe, true);
            self.answer(CommandDone {
                user,
                summary,
                result: Err(CommandError::NotSent),
                data: rejected.command.data,
            });
        }
        None
    }
}

/// Answers a submission that cannot be executed any more.
fn refuse(submission: &Submission, error: CommandError) {
    let summary = CommandSummary::new(&submission.sqe, true);
    let result = Err(CommandFailure { summary, error });
    drop(submission.reply.send(Reply { result, data: Vec::new() }));
}

impl Service for HostService {
    type Message = Message;

    fn handle_message(&mut self, cx: &mut Context<'_>, message: Message) {
        match message {
            Message::Submit(submission) => self.waiting.push_back(submission),
            Message::QueueLost(path, cntlid, error) => {
                self.paths.queue_lost(cx, path, cntlid, error);
            }
            Message::RefreshAna(path) => self.paths.refresh_ana(cx, path),
            Message::Reset(path) => self.paths.reset(cx, path),
            Message::AddPath(config, sender) => self.add_path(cx, *config, sender),
            Message::RemovePath(path) => {
                self.state.update(|state| state.disabled.retain(|known| known.id != path));
                self.paths.remove(cx, path);
                self.end_if_empty();
            }
            Message::DisablePath(path) => self.disable(cx, path),
            Message::EnablePath(path) => self.enable(cx, path),
            Message::Stop => {
                self.state.update(|state| state.disabled.clear());
                self.paths.disconnect(cx);
                self.end_if_empty();
            }
        }
    }

    fn handle_completion(&mut self, cx: &mut Context<'_>, completion: Completion) {
        self.paths.handle_completion(cx, completion);
    }

    fn flush(&mut self, cx: &mut Context<'_>) {
        self.handle_events(cx);
        self.handle_finished();
        self.submit_waiting(cx);
        self.paths.flush(cx);
    }

    fn is_finished(&self) -> bool {
        self.failed && self.paths.is_finished() && self.waiting.is_empty()
    }
}
