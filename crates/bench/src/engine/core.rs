//! One core of a run: its queues, their jobs and their buffers; the first also has the admin queue.

use std::sync::{Arc, mpsc};
use std::time::Instant;

use raceline_host::{
    Association, BlockRange, Command, CommandDone, Controller, ControllerEvent, Data, HostConfig,
    HostError, IoQueueEvent, IoQueueSet, QueueCounters,
};
use raceline_proto::nvme::{ControllerId, NamespaceId};
use raceline_reactor::{Completion, Context, IoBuf, Outcome, Service, Token};

use crate::job::{Issue, JobResult, QueueJob};
use crate::random::Random;

/// Owners of completions on this core.
const OWN: u16 = 0;
const ADMIN: u16 = 1;
const QUEUES: u16 = 2;

/// What a core is made of.
pub(super) struct CoreConfig {
    pub(super) index: usize,
    pub(super) host: HostConfig,
    pub(super) nsid: NamespaceId,
    pub(super) qids: Vec<u16>,
    pub(super) io_bytes: usize,
    pub(super) seed: u64,
    pub(super) events: mpsc::Sender<Event>,
}

/// From the coordinator to a core.
pub(super) enum Message {
    /// The association is up (again).
    Up(Association),
    /// The association is lost, for now.
    Down(HostError),
    /// The association is lost for good.
    Failed(HostError),
    /// An I/O queue of another core was lost; the core with the admin queue has to know.
    QueueLost(ControllerId, HostError),
    /// Run these, one per queue.
    Begin(Vec<QueueJob>),
    /// End the run as if its time were over.
    Finish,
    /// Close everything and end.
    Close,
}

/// From a core to the coordinator.
pub(super) enum Event {
    /// The association is up (again).
    Up(Association),
    /// The association is lost; connecting again is being tried.
    Down(HostError),
    /// The association is lost for good.
    Failed(HostError),
    /// All queues of this core are connected.
    Ready,
    /// A queue of this association was lost.
    QueueLost(ControllerId, HostError),
    /// All jobs of this core have ended.
    Finished(Vec<JobResult>),
    /// Everything of this core is closed.
    Closed,
}

/// The service of one core.
pub(super) struct Core {
    config: CoreConfig,
    controller: Option<Controller>,
    queues: IoQueueSet,
    ready: Vec<bool>,
    jobs: Vec<QueueJob>,
    /// Per queue and slot: the buffer, while no command has it.
    buffers: Vec<Vec<Option<IoBuf>>>,
    /// The earliest timer that is set.
    timer: Option<Instant>,
    /// Jobs to look at: those with completions, or all.
    due: Vec<usize>,
    all_due: bool,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Connecting,
    Running,
    /// Results are sent.
    Idle,
    ClosingQueues,
    ClosingController,
    Closed,
}

impl Core {
    pub(super) fn new(cx: &mut Context<'_>, config: CoreConfig) -> Self {
        let controller = (config.index == 0).then(|| {
            Controller::connect(
                cx,
                config.host.clone(),
                Token { owner: ADMIN, generation: 0, index: 0 },
            )
        });
        let token = Token { owner: QUEUES, generation: 0, index: 0 };
        let queues = IoQueueSet::new(&config.host, config.qids.iter().copied(), token);
        Self {
            ready: vec![false; config.qids.len()],
            controller,
            queues,
            jobs: Vec::new(),
            buffers: Vec::new(),
            timer: None,
            due: Vec::new(),
            all_due: false,
            state: State::Connecting,
            config,
        }
    }

    /// What the I/O queues have done.
    pub(super) fn counters(&self) -> Arc<QueueCounters> {
        Arc::clone(self.queues.counters())
    }

    fn report(&self, event: Event) {
        // The coordinator outlives the cores, or nobody is interested.
        let _ = self.config.events.send(event);
    }

    fn begin(&mut self, cx: &Context<'_>, jobs: Vec<QueueJob>, depth: usize) {
        self.jobs = jobs;
        self.state = State::Running;
        // A run before this one has left its buffers, unless a failure kept some.
        let complete = |buffers: &Vec<Option<IoBuf>>| buffers.iter().all(Option::is_some);
        if !self.buffers.is_empty() && self.buffers.iter().all(complete) {
            return;
        }
        self.buffers.clear();
        let mut random = Random::new(self.config.seed);
        let mut buffer = || {
            let mut buf = cx
                .pool
                .take(self.config.io_bytes)
                .unwrap_or_else(|| IoBuf::heap(self.config.io_bytes));
            random.fill(&mut buf);
            Some(buf)
        };
        self.buffers = self.jobs.iter().map(|_| (0..depth).map(|_| buffer()).collect()).collect();
    }

    /// Takes what the queues have finished, then issues what is due.
    fn work(&mut self, cx: &mut Context<'_>) {
        let mut due = std::mem::take(&mut self.due);
        while let Some((queue, done)) = self.queues.poll_done() {
            self.handle_done(cx.now, queue, done);
            if due.last() != Some(&queue) {
                due.push(queue);
            }
        }
        if std::mem::take(&mut self.all_due) {
            due.clear();
            due.extend(0..self.jobs.len());
        }
        let mut finished = false;
        let mut wake_at: Option<Instant> = None;
        for queue in due.drain(..) {
            while let Some(issue) = self.jobs[queue].poll_issue(cx.now) {
                self.issue(cx, queue, issue);
            }
            let job = &self.jobs[queue];
            finished |= job.is_finished();
            wake_at = wake_at.into_iter().chain(job.wake_at()).min();
        }
        self.due = due;
        if finished && self.jobs.iter().all(QueueJob::is_finished) {
            let results = std::mem::take(&mut self.jobs).into_iter().map(QueueJob::into_result);
            let results = results.collect();
            self.state = State::Idle;
            self.report(Event::Finished(results));
            return;
        }
        self.set_timer(cx, wake_at);
    }

    fn issue(&mut self, cx: &mut Context<'_>, queue: usize, issue: Issue) {
        let slot = usize::from(issue.slot);
        let range = BlockRange::new(issue.slba, issue.block_count);
        let (Some(range), Some(mut buf)) = (range, self.buffers[queue][slot].take()) else {
            let why = format!("LBA {}: no command can carry these blocks", issue.slba);
            return self.jobs[queue].handle_failed(cx.now, issue.slot, why);
        };
        let command = if issue.write {
            self.jobs[queue].fill(issue.slot, &mut buf);
            Command::write(self.config.nsid, range, buf.share(), false)
        } else {
            Command::read(self.config.nsid, range, buf)
        };
        if let Err(rejected) = self.queues.submit(cx, queue, command, u64::from(issue.slot)) {
            let why = format!("LBA {}: {}", issue.slba, rejected.reason);
            self.put_back(queue, slot, rejected.command.data);
            self.jobs[queue].handle_failed(cx.now, issue.slot, why);
        }
    }

    fn handle_done(&mut self, now: Instant, queue: usize, done: CommandDone) {
        let Ok(slot) = u16::try_from(done.user) else { return };
        let Some(job) = self.jobs.get_mut(queue) else { return };
        match (done.failure(), &done.data) {
            (Some(failure), _) => job.handle_failed(now, slot, failure.to_string()),
            (None, Data::Read(buf)) => job.handle_read(now, slot, buf),
            (None, Data::Write(_) | Data::None) => job.handle_written(now, slot),
        }
        self.put_back(queue, usize::from(slot), done.data);
    }

    fn put_back(&mut self, queue: usize, slot: usize, data: Data) {
        let buf = match data {
            Data::Read(buf) => Some(buf),
            // The queue gives its last reference back; a new buffer only if it did not.
            Data::Write(buf) => buf.try_unique().ok(),
            Data::None => None,
        };
        let io_bytes = self.config.io_bytes;
        self.buffers[queue][slot] = Some(buf.unwrap_or_else(|| IoBuf::heap(io_bytes)));
    }

    /// One timer at a time, for the earliest of what the jobs that were looked at wait for.
    fn set_timer(&mut self, cx: &mut Context<'_>, wake_at: Option<Instant>) {
        if let Some(at) = wake_at.filter(|&at| self.timer.is_none_or(|set| at < set)) {
            self.timer = Some(at);
            cx.io.timer(at, Token { owner: OWN, generation: 0, index: 0 });
        }
    }

    fn poll_controller(&mut self) {
        let Some(controller) = &mut self.controller else { return };
        let mut events = Vec::new();
        while controller.poll_done().is_some() {}
        while let Some(event) = controller.poll_event() {
            events.push(event);
        }
        for event in events {
            match event {
                ControllerEvent::Up(association) => self.report(Event::Up(association)),
                ControllerEvent::Down(error) => self.report(Event::Down(error)),
                ControllerEvent::Failed(error) => {
                    self.controller = None;
                    self.report(Event::Failed(error));
                }
                ControllerEvent::Closed => self.controller = None,
                ControllerEvent::Namespaces(_) | ControllerEvent::DiscoveryChanged => {}
            }
        }
    }

    fn poll_queues(&mut self) {
        while let Some(event) = self.queues.poll_event() {
            match event {
                IoQueueEvent::Ready { queue } => {
                    let all = |ready: &[bool]| ready.iter().all(|&ready| ready);
                    let before = all(&self.ready);
                    self.ready[queue] = true;
                    if !before && all(&self.ready) {
                        self.report(Event::Ready);
                    }
                }
                IoQueueEvent::Lost { queue, cntlid, error } => {
                    self.ready[queue] = false;
                    self.report(Event::QueueLost(cntlid, error));
                }
            }
        }
    }

    /// Queues first, then the controller that they belong to.
    fn poll_close(&mut self, cx: &mut Context<'_>) {
        if self.state == State::ClosingQueues && self.queues.is_closed() {
            if let Some(controller) = &mut self.controller {
                controller.disconnect(cx);
            }
            self.state = State::ClosingController;
        }
        if self.state == State::ClosingController && self.controller.is_none() {
            self.state = State::Closed;
            self.report(Event::Closed);
        }
    }
}

impl Service for Core {
    type Message = Message;

    fn handle_message(&mut self, cx: &mut Context<'_>, message: Message) {
        self.all_due = true;
        match message {
            Message::Up(association) => self.queues.handle_up(cx, &association),
            Message::Down(error) => self.queues.handle_down(cx, &error),
            Message::Failed(error) => {
                self.queues.close(cx);
                self.jobs.iter_mut().for_each(|job| job.abandon(cx.now, error.to_string()));
            }
            Message::QueueLost(cntlid, error) => {
                if let Some(controller) = &mut self.controller {
                    controller.queue_lost(cx, cntlid, error);
                }
            }
            Message::Begin(jobs) => {
                let depth = jobs.iter().map(QueueJob::depth).max().unwrap_or(0);
                self.begin(cx, jobs, depth);
            }
            Message::Finish => self.jobs.iter_mut().for_each(|job| job.stop(cx.now)),
            Message::Close => {
                self.queues.close(cx);
                self.state = State::ClosingQueues;
            }
        }
    }

    fn handle_completion(&mut self, cx: &mut Context<'_>, completion: Completion) {
        match completion.token.owner {
            ADMIN => {
                if let Some(controller) = &mut self.controller {
                    controller.handle_completion(cx, completion);
                }
            }
            QUEUES => self.queues.handle_completion(cx, completion),
            _ => {
                debug_assert!(matches!(completion.outcome, Outcome::Timer));
                self.timer = None;
                self.all_due = true;
            }
        }
    }

    fn flush(&mut self, cx: &mut Context<'_>) {
        self.poll_controller();
        self.poll_queues();
        if self.state == State::Running {
            self.work(cx);
        }
        if let Some(controller) = &mut self.controller {
            controller.flush(cx);
        }
        self.queues.flush(cx);
        self.poll_close(cx);
    }

    fn is_finished(&self) -> bool {
        self.state == State::Closed
    }
}
