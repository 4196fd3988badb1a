//! One core of a run over iSCSI: its sessions, their jobs and their buffers.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Instant;

use raceline_initiator::{
    Session, SessionConfig, SessionCounters, SessionError, SessionEvent, Task, TaskData, TaskDone,
    TaskError,
};
use raceline_reactor::{Completion, Context, IoBuf, Service, Token};

use crate::job::{Issue, JobResult, QueueJob};
use crate::random::Random;

/// Owner of this core's timer; sessions have the owners after it.
const OWN: u16 = 0;

/// The configuration of a core.
pub(super) struct CoreConfig {
    pub(super) loads: Vec<LoadConfig>,
    /// The number of its thread.
    pub(super) thread: usize,
    pub(super) seed: u64,
    /// Reports the end of each job.
    pub(super) report_each: bool,
    pub(super) events: mpsc::Sender<Event>,
}

/// The configuration of a queue job.
pub(super) struct LoadConfig {
    /// By span of the workload.
    pub(super) sessions: Vec<Arc<SessionConfig>>,
    pub(super) io_bytes: usize,
    pub(super) depth: usize,
    pub(super) complete_max: Option<usize>,
}

/// Messages from the coordinator to a core.
pub(super) enum Message {
    /// Run these jobs, one per load.
    Begin(Vec<QueueJob>),
    /// End the run as if its time were over.
    Finish,
    /// Log out of all sessions and end.
    Close,
}

/// Messages from a core to the coordinator.
pub(super) enum Event {
    /// All sessions of this core are there.
    Ready,
    /// A session is lost, or could not be made.
    Lost(SessionError),
    /// A session that was lost is there again.
    Again,
    /// A job has ended before others of its core.
    JobEnded,
    /// All jobs of this core have ended; with the core's number.
    Finished(usize, Vec<JobResult>),
    /// The core has closed everything.
    Closed,
}

/// What a core counts.
#[derive(Clone, Default)]
pub(super) struct CoreCounters {
    /// Of all its sessions together.
    pub(super) sessions: Arc<SessionCounters>,
    /// Commands that have ended.
    pub(super) ended: Arc<AtomicU64>,
}

/// The service of one core.
pub(super) struct Core {
    config: CoreConfig,
    /// Of all loads, in the order of their tokens' owners.
    sessions: Vec<Session>,
    loads: Vec<Load>,
    counters: CoreCounters,
    /// By session: it has been lost since it was there the last time.
    lost: Vec<bool>,
    /// The earliest timer.
    timer: Option<Instant>,
    ready: bool,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No job runs: before the begin, or after the results were sent.
    Idle,
    Running,
    Closing,
    Closed,
}

/// A queue job and its memory.
struct Load {
    /// By span: position of the session on this core.
    sessions: std::ops::Range<usize>,
    io_bytes: usize,
    depth: usize,
    complete_max: Option<usize>,
    job: Option<QueueJob>,
    /// Per slot: the buffer, unless a task has it.
    buffers: Vec<Option<IoBuf>>,
    /// Ends of tasks that wait for a batch.
    done: VecDeque<TaskDone>,
    /// Writes that are sent again, by slot: when a session was first lost under each.
    uncertain: Vec<(u16, Instant)>,
    ended: bool,
}

impl Load {
    fn new(config: &LoadConfig, first: usize) -> Self {
        Self {
            sessions: first..first + config.sessions.len(),
            io_bytes: config.io_bytes,
            depth: config.depth,
            complete_max: config.complete_max,
            job: None,
            buffers: Vec::new(),
            done: VecDeque::with_capacity(config.depth),
            uncertain: Vec::with_capacity(config.depth),
            ended: false,
        }
    }

    /// Allocates its buffers and touches all their pages.
    fn fill_buffers(&mut self, cx: &Context<'_>, random: &mut Random) {
        self.buffers.clear();
        self.buffers.resize_with(self.depth, || {
            let mut buf = cx.pool.take(self.io_bytes).unwrap_or_else(|| IoBuf::heap(self.io_bytes));
            random.fill(&mut buf);
            Some(buf)
        });
    }

    #[inline]
    fn handle_done(&mut self, now: Instant, done: TaskDone) {
        let Ok(slot) = u16::try_from(done.user) else { return };
        if !self.uncertain.is_empty() {
            self.uncertain.retain(|&(again, _)| again != slot);
        }
        let Some(job) = &mut self.job else { return };
        match (done.result, &done.data) {
            (Ok(_), TaskData::Read(buf)) => job.handle_read(now, slot, buf),
            (Ok(_), TaskData::Write(_) | TaskData::None) => job.handle_written(now, slot),
            (Err(error), _) => {
                let kind = if matches!(done.data, TaskData::Read(_)) { "READ" } else { "WRITE" };
                job.handle_failed(now, slot, format!("{kind}: {error}"));
            }
        }
        self.put_back(usize::from(slot), done.data);
    }

    /// Sends a write of unknown fate again, with the same data. Its blocks hold either the old or the new data, and no other
    /// command of the run goes there before the write has ended. The session keeps its ISID, so the login by which it is
    /// made again ends what is left of the old session at the target (RFC 7143, 6.3.5): the old write cannot come later.
    /// For as long as a lost session may be tried again, so may its writes.
    #[cold]
    fn write_again(&mut self, cx: &mut Context<'_>, session: &mut Session, done: TaskDone) {
        let Ok(slot) = u16::try_from(done.user) else { return };
        let since = self.uncertain.iter().find(|&&(again, _)| again == slot).map(|&(_, at)| at);
        let limit = session.config().backoff.give_up_after;
        let in_time = since.is_none_or(|since| {
            limit.is_none_or(|limit| cx.now.saturating_duration_since(since) < limit)
        });
        if !in_time {
            return self.handle_done(cx.now, done);
        }
        let TaskDone { user, cdb, result, data } = done;
        match session.submit(cx, Task { cdb, data, whole: true }, user) {
            Ok(()) if since.is_none() => self.uncertain.push((slot, cx.now)),
            Ok(()) => {}
            Err(rejected) => {
                let data = rejected.task.data;
                self.handle_done(cx.now, TaskDone { user, cdb, result, data });
            }
        }
    }

    #[inline]
    fn put_back(&mut self, slot: usize, data: TaskData) {
        let buf = match data {
            TaskData::Read(buf) => buf,
            // Normally the session gives its last reference back; otherwise a new buffer is needed.
            TaskData::Write(buf) => buf.try_unique().unwrap_or_else(|_| IoBuf::heap(self.io_bytes)),
            TaskData::None => IoBuf::heap(self.io_bytes),
        };
        self.buffers[slot] = Some(buf);
    }

    /// Handles batches of ends and issues the commands due after each, until nothing is left. Gives the number of ends.
    fn work(&mut self, cx: &mut Context<'_>, sessions: &mut [Session]) -> u64 {
        let mut ended = 0;
        for index in self.sessions.clone() {
            while let Some(done) = sessions[index].poll_done() {
                let is_write = matches!(done.data, TaskData::Write(_));
                if is_write && done.result == Err(TaskError::UnknownFate) {
                    self.write_again(cx, &mut sessions[index], done);
                    continue;
                }
                ended += 1;
                if self.complete_max.is_none() {
                    self.handle_done(cx.now, done);
                } else {
                    self.done.push_back(done);
                }
            }
        }
        loop {
            let most = self.complete_max.unwrap_or(usize::MAX).max(1);
            for _ in 0..most {
                let Some(done) = self.done.pop_front() else { break };
                self.handle_done(cx.now, done);
            }
            while let Some(issue) = self.job.as_mut().and_then(|job| job.poll_issue(cx.now)) {
                self.issue(cx, sessions, issue);
                if issue.flush {
                    self.flush(cx, sessions);
                }
            }
            if self.done.is_empty() {
                return ended;
            }
            self.flush(cx, sessions);
        }
    }

    #[inline]
    fn issue(&mut self, cx: &mut Context<'_>, sessions: &mut [Session], issue: Issue) {
        let slot = usize::from(issue.slot);
        let Some(job) = &mut self.job else { return };
        let session = self.sessions.start + usize::from(issue.span);
        let (Some(session), Some(mut buf)) = (sessions.get_mut(session), self.buffers[slot].take())
        else {
            let why = format!("LBA {}: no session has these blocks", issue.slba);
            return job.handle_failed(cx.now, issue.slot, why);
        };
        let task = if issue.write {
            job.fill(issue.slot, &mut buf);
            Task::write(issue.slba, issue.block_count, buf.share(), false)
        } else {
            Task::read(issue.slba, issue.block_count, buf)
        };
        if let Err(rejected) = session.submit(cx, task, issue.slot.into()) {
            let why = format!("LBA {}: {}", issue.slba, rejected.reason);
            job.handle_failed(cx.now, issue.slot, why);
            self.put_back(slot, rejected.task.data);
        }
    }

    fn flush(&self, cx: &mut Context<'_>, sessions: &mut [Session]) {
        sessions[self.sessions.clone()].iter_mut().for_each(|session| session.flush(cx));
    }

    fn is_finished(&self) -> bool {
        self.job.as_ref().is_none_or(QueueJob::is_finished)
    }
}

impl Core {
    pub(super) fn new(cx: &mut Context<'_>, config: CoreConfig) -> Self {
        let counters = CoreCounters::default();
        let (mut sessions, mut loads) = (Vec::new(), Vec::new());
        for load in &config.loads {
            loads.push(Load::new(load, sessions.len()));
            for session in &load.sessions {
                let owner = OWN + 1 + u16::try_from(sessions.len()).unwrap_or(u16::MAX - 1);
                let token = Token { owner, generation: 0, index: 0 };
                let mut session = Session::connect(cx, Arc::clone(session), token);
                session.share_counters(Arc::clone(&counters.sessions));
                sessions.push(session);
            }
        }
        // Allocated here: otherwise a run would spend its first part on page faults.
        let mut random = Random::new(config.seed);
        loads.iter_mut().for_each(|load| load.fill_buffers(cx, &mut random));
        Self {
            lost: vec![false; sessions.len()],
            sessions,
            loads,
            counters,
            timer: None,
            ready: false,
            state: State::Idle,
            config,
        }
    }

    pub(super) fn counters(&self) -> CoreCounters {
        self.counters.clone()
    }

    fn report(&self, event: Event) {
        // Fails only if the coordinator is gone, and with it the interest in events.
        let _ = self.config.events.send(event);
    }

    fn poll_sessions(&mut self) {
        for index in 0..self.sessions.len() {
            while let Some(event) = self.sessions[index].poll_event() {
                match event {
                    SessionEvent::Lost(error) => {
                        self.lost[index] = true;
                        self.report(Event::Lost(error));
                    }
                    SessionEvent::Failed(error) => {
                        self.report(Event::Lost(error.clone()));
                        self.abandon(index, &error);
                    }
                    SessionEvent::Ready => {
                        if std::mem::take(&mut self.lost[index]) {
                            self.report(Event::Again);
                        }
                    }
                    SessionEvent::Closed
                    | SessionEvent::Attention(_)
                    | SessionEvent::Targets(_) => {}
                }
            }
        }
        if !self.ready && self.sessions.iter().all(Session::is_ready) {
            self.ready = true;
            self.report(Event::Ready);
        }
    }

    /// Ends the job of a session that is given up.
    fn abandon(&mut self, session: usize, error: &SessionError) {
        let now = Instant::now();
        for load in self.loads.iter_mut().filter(|load| load.sessions.contains(&session)) {
            if let Some(job) = &mut load.job {
                job.abandon(now, error.to_string());
            }
        }
    }

    /// Handles ends of tasks, then issues due commands.
    fn work(&mut self, cx: &mut Context<'_>) {
        let (mut finished, mut commands) = (false, 0);
        let mut wake_at: Option<Instant> = None;
        for load in &mut self.loads {
            commands += load.work(cx, &mut self.sessions);
            let ended = load.is_finished();
            if ended && !std::mem::replace(&mut load.ended, true) && self.config.report_each {
                let _ = self.config.events.send(Event::JobEnded);
            }
            finished |= ended;
            let at = load.job.as_ref().and_then(QueueJob::wake_at);
            wake_at = wake_at.into_iter().chain(at).min();
        }
        self.counters.ended.fetch_add(commands, Ordering::Relaxed);
        if finished && self.loads.iter().all(Load::is_finished) {
            let jobs = self.loads.iter_mut().filter_map(|load| load.job.take());
            let results = jobs.map(QueueJob::into_result).collect();
            self.state = State::Idle;
            self.report(Event::Finished(self.config.thread, results));
            return;
        }
        if let Some(at) = wake_at.filter(|&at| self.timer.is_none_or(|set| at < set)) {
            self.timer = Some(at);
            cx.io.timer(at, Token { owner: OWN, generation: 0, index: 0 });
        }
    }
}

impl Service for Core {
    type Message = Message;

    fn handle_message(&mut self, cx: &mut Context<'_>, message: Message) {
        match message {
            Message::Begin(jobs) => {
                self.state = State::Running;
                for (load, job) in self.loads.iter_mut().zip(jobs) {
                    load.job = Some(job);
                    load.ended = false;
                }
            }
            Message::Finish => {
                for job in self.loads.iter_mut().filter_map(|load| load.job.as_mut()) {
                    job.stop(cx.now);
                }
            }
            Message::Close => {
                self.state = State::Closing;
                self.sessions.iter_mut().for_each(|session| session.close(cx));
            }
        }
    }

    fn handle_completion(&mut self, cx: &mut Context<'_>, completion: Completion) {
        match completion.token.owner.checked_sub(OWN + 1) {
            None => self.timer = None,
            Some(index) => {
                if let Some(session) = self.sessions.get_mut(usize::from(index)) {
                    session.handle_completion(cx, completion);
                }
            }
        }
    }

    fn flush(&mut self, cx: &mut Context<'_>) {
        self.poll_sessions();
        if self.state == State::Running {
            self.work(cx);
        }
        self.sessions.iter_mut().for_each(|session| session.flush(cx));
        if self.state == State::Closing && self.sessions.iter().all(Session::is_closed) {
            self.state = State::Closed;
            self.report(Event::Closed);
        }
    }

    fn is_finished(&self) -> bool {
        self.state == State::Closed
    }
}
