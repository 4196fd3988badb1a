//! The reactor thread of a controller's admin queue, whichever face has its I/O queues.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use raceline_proto::nvme::{ControllerId, Cqe, Sqe};
use raceline_reactor::{
    Completion, Context, IoBuf, Mode, PoolConfig, Reactor, ReactorConfig, ReactorHandle,
};
use raceline_reactor::{Service, Token};

use crate::command::{Command, CommandDone, CommandSummary, Data};
use crate::config::{Association, HostConfig};
use crate::controller::{Controller, ControllerEvent};
use crate::error::{CommandError, CommandFailure, HostError, RejectedReason};

/// Commands that callers may have submitted at a time; more wait their turn.
pub(crate) const MAX_TICKETS: usize = 1024;
/// Staging of the admin queue.
const POOL: &[(usize, usize)] = &[(128 << 10, 1)];

/// What a thread asks of the reactor.
#[derive(Debug)]
pub(crate) enum Message {
    /// Executes a command.
    Submit(Submission),
    /// An I/O queue of that association, on another core, is lost.
    QueueLost(ControllerId, HostError),
    /// Gives the association up and makes a new one.
    Reset,
    /// Shuts down in order and ends.
    Stop,
}

/// An admin command on its way to the reactor; buffers of a reactor do not leave it.
#[derive(Debug)]
pub(crate) struct Submission {
    pub(crate) sqe: Sqe,
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
}

#[derive(Clone, Debug, Default)]
pub(crate) struct LinkSnapshot {
    /// While it is up.
    pub(crate) association: Option<Association>,
    /// It was given up or closed.
    pub(crate) failed: Option<HostError>,
    /// Grows by one with each change.
    pub(crate) version: u64,
}

impl LinkState {
    pub(crate) fn get(&self) -> LinkSnapshot {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
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
        let controller = Controller::connect(cx, config, token);
        Ok(HostService::new(controller, service_state, started))
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
    controller: Controller,
    state: Arc<LinkState>,
    /// Told once, whether the controller came up.
    started: Option<mpsc::Sender<Result<(), HostError>>>,
    /// The callers that wait for a command, by ticket.
    tickets: Vec<Option<mpsc::Sender<Reply>>>,
    free: Vec<usize>,
    waiting: VecDeque<Submission>,
    failed: bool,
}

impl HostService {
    fn new(
        controller: Controller,
        state: Arc<LinkState>,
        started: mpsc::Sender<Result<(), HostError>>,
    ) -> Self {
        Self {
            controller,
            state,
            started: Some(started),
            tickets: std::iter::repeat_with(|| None).take(MAX_TICKETS).collect(),
            free: (0..MAX_TICKETS).rev().collect(),
            waiting: VecDeque::new(),
            failed: false,
        }
    }

    fn tell_started(&mut self, result: Result<(), HostError>) {
        if let Some(started) = self.started.take() {
            // The caller may be gone; then the result is dropped.
            drop(started.send(result));
        }
    }

    fn handle_events(&mut self) {
        while let Some(event) = self.controller.poll_event() {
            match event {
                ControllerEvent::Up(association) => {
                    self.state.update(|state| state.association = Some(association));
                    self.tell_started(Ok(()));
                }
                ControllerEvent::Down(error) => {
                    tracing::warn!(%error, "controller lost");
                    self.state.update(|state| state.association = None);
                }
                ControllerEvent::Namespaces(namespaces) => self.state.update(|state| {
                    if let Some(association) = &mut state.association {
                        association.namespaces = namespaces;
                    }
                }),
                // Threads that wait for changes read the log.
                ControllerEvent::DiscoveryChanged => self.state.update(|_| {}),
                ControllerEvent::Failed(error) => self.end(error),
                ControllerEvent::Closed => self.end(HostError::Closed),
            }
        }
    }

    fn end(&mut self, error: HostError) {
        self.failed = true;
        self.tell_started(Err(error.clone()));
        self.state.update(|state| {
            state.association = None;
            state.failed = Some(error);
        });
    }

    fn handle_finished(&mut self) {
        while let Some(done) = self.controller.poll_done() {
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
        if self.controller.room() == 0 {
            return Some(submission);
        }
        let Some(index) = self.free.pop() else { return Some(submission) };
        let Submission { sqe, receive_len, reply } = submission;
        let data = match usize::try_from(receive_len).unwrap_or(usize::MAX) {
            0 => Data::None,
            len => Data::Read(IoBuf::heap(len)),
        };
        self.tickets[index] = Some(reply);
        let user = u64::try_from(index).unwrap_or(u64::MAX);
        if let Err(rejected) = self.controller.submit(cx, Command::new(sqe, data), user) {
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
            Message::QueueLost(cntlid, error) => self.controller.queue_lost(cx, cntlid, error),
            Message::Reset => {
                if let Some(cntlid) = self.controller.association().map(|up| up.cntlid) {
                    self.controller.queue_lost(cx, cntlid, HostError::Reset);
                }
            }
            Message::Stop => self.controller.disconnect(cx),
        }
    }

    fn handle_completion(&mut self, cx: &mut Context<'_>, completion: Completion) {
        self.controller.handle_completion(cx, completion);
    }

    fn flush(&mut self, cx: &mut Context<'_>) {
        self.handle_events();
        self.handle_finished();
        self.submit_waiting(cx);
        self.controller.flush(cx);
    }

    fn is_finished(&self) -> bool {
        self.failed && self.controller.is_finished() && self.waiting.is_empty()
    }
}
