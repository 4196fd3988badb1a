//! One core of a run: its queues, their jobs and their buffers; one core of each controller also has the
//! admin queue.

use std::collections::VecDeque;
use std::sync::{Arc, mpsc};
use std::time::Instant;

use raceline_host::{
    Association, BlockRange, Command, CommandDone, ControllerEvent, CorePlace, Data, HostConfig,
    HostError, I10Config, PathEvent, PathId, PathSet, PathSetEvent, Paths, QueueCounters,
};
use raceline_proto::nvme::NamespaceId;
use raceline_reactor::{Completion, Context, IoBuf, Outcome, Service, Token};

use crate::job::{Issue, JobResult, QueueJob};
use crate::random::Random;

/// Owner of this core's timer; each port has two further owners, for its admin queue and its I/O queues.
const OWN: u16 = 0;
/// A command's name: the number of the load in the upper bits, the job's slot in the lower ones.
const SLOT_BITS: u32 = 16;
const SLOT_MASK: u64 = (1 << SLOT_BITS) - 1;

/// The configuration of a core.
pub(super) struct CoreConfig {
    pub(super) ports: Vec<PortConfig>,
    pub(super) loads: Vec<LoadConfig>,
    /// The number of its thread.
    pub(super) thread: usize,
    pub(super) seed: u64,
    /// Reports the end of each job.
    pub(super) report_each: bool,
    pub(super) events: mpsc::Sender<Event>,
}

/// A controller that this core talks to.
pub(super) struct PortConfig {
    /// Position of its host in the stage.
    pub(super) index: usize,
    pub(super) host: HostConfig,
    /// The I/O queues of this core, and the load that each serves; unused with a `place`.
    pub(super) queues: Vec<(u16, usize)>,
    /// This core's part of the maps, if its queues come from maps.
    pub(super) place: Option<CorePlace>,
    /// Whether the admin queue is on this core.
    pub(super) admin: bool,
}

/// The configuration of a queue job.
pub(super) struct LoadConfig {
    /// By span of the workload: the stage's host, the queue there, and the namespace.
    pub(super) files: Vec<(usize, u16, NamespaceId)>,
    pub(super) polled: bool,
    pub(super) io_bytes: usize,
    pub(super) depth: usize,
    pub(super) complete_max: Option<usize>,
}

/// News of one path of a host, which all cores have to know.
#[derive(Clone)]
pub(super) struct PathNews {
    /// Position of the host in the stage.
    pub(super) host: usize,
    pub(super) path: PathId,
    pub(super) news: News,
}

/// What has become of a path.
#[derive(Clone)]
pub(super) enum News {
    /// The association is up (again).
    Up(Association),
    /// The association is lost; the host connects again.
    Down(HostError),
    /// The association leads to other namespaces, or in another way.
    Changed(Association),
    /// The path was given up.
    GivenUp(HostError),
}

/// Messages from the coordinator to a core. The first number is the host's.
pub(super) enum Message {
    /// About a path.
    Path(PathNews),
    /// All paths were given up.
    Failed(usize, HostError),
    /// Another core has an event of the queues of a path; the core with the admin queue has to know.
    Queues(usize, PathSetEvent),
    /// Gather commands in this way from now on.
    Gather(Option<I10Config>),
    /// Run these jobs, one per load.
    Begin(Vec<QueueJob>),
    /// End the run as if its time were over.
    Finish,
    /// Close everything and end.
    Close,
}

/// Messages from a core to the coordinator. The first number is the host's.
pub(super) enum Event {
    /// About a path.
    Path(PathNews),
    /// No path has ever been up, and each has failed.
    Unreachable(HostError),
    /// All paths were given up.
    Failed(usize, HostError),
    /// All queues of this core are connected.
    Ready,
    /// What the owner of a path's admin queue has to know.
    Queues(usize, PathSetEvent),
    /// A job has ended before others of its core.
    JobEnded,
    /// All jobs of this core have ended; with the core's number.
    Finished(usize, Vec<JobResult>),
    /// The core has closed everything.
    Closed,
}

/// The service of one core.
pub(super) struct Core {
    config: CoreConfig,
    ports: Vec<Port>,
    loads: Vec<Load>,
    /// The earliest timer.
    timer: Option<Instant>,
    /// Loads to handle: those with completions, or all.
    due: Vec<usize>,
    all_due: bool,
    state: State,
}

/// This core's part of a controller.
struct Port {
    /// Position of its host in the stage.
    host: usize,
    paths: Option<Paths>,
    queues: PathSet,
    /// Whether all queues are connected, and that was reported.
    ready: bool,
}

/// A queue job and its memory.
struct Load {
    /// By span: port, position of the queue in its set unless a map chooses it, namespace.
    files: Vec<(usize, Option<usize>, NamespaceId)>,
    /// Its number on this core: part of its commands' names, and its lane if it shares queues.
    index: usize,
    polled: bool,
    io_bytes: usize,
    depth: usize,
    complete_max: Option<usize>,
    job: Option<QueueJob>,
    /// Per slot: the buffer, unless a command has it.
    buffers: Vec<Option<IoBuf>>,
    /// Completions that wait for a batch; loads without a limit take completions at once.
    done: VecDeque<CommandDone>,
    ended: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Connecting,
    Running,
    /// The results have been sent.
    Idle,
    ClosingQueues,
    ClosingController,
    Closed,
}

impl Port {
    fn new(cx: &mut Context<'_>, position: usize, config: &PortConfig) -> Self {
        let owner = OWN + 1 + 2 * u16::try_from(position).unwrap_or(u16::MAX / 4);
        let token = |owner| Token { owner, generation: 0, index: 0 };
        let paths = config.admin.then(|| Paths::connect(cx, &config.host, token(owner)));
        let qids = config.queues.iter().map(|&(qid, _)| qid);
        let queues = match config.place {
            Some(place) => PathSet::mapped(cx, &config.host, place, token(owner + 1)),
            None => PathSet::new(cx, &config.host, qids, token(owner + 1)),
        };
        Self { host: config.index, paths, queues, ready: false }
    }

    /// Takes the events of the admin queues.
    fn poll_paths(&mut self, report: &mut dyn FnMut(Event)) {
        let host = self.host;
        let Some(paths) = &mut self.paths else { return };
        while paths.poll_done().is_some() {}
        let mut gone = false;
        while let Some(PathEvent { path, event }) = paths.poll_event() {
            let changed = || {
                let association = paths.controller(path).and_then(|it| it.association());
                association.cloned().map(News::Changed)
            };
            let news = match event {
                ControllerEvent::Up(association) => Some(News::Up(association)),
                ControllerEvent::Down(error) => Some(News::Down(error)),
                ControllerEvent::Failed(error) => {
                    if paths.count() == 0 {
                        gone = true;
                        report(Event::Failed(host, error.clone()));
                    }
                    Some(News::GivenUp(error))
                }
                ControllerEvent::Closed => {
                    gone |= paths.count() == 0;
                    None
                }
                ControllerEvent::Namespaces(_) | ControllerEvent::Ana(_) => changed(),
                ControllerEvent::DiscoveryChanged => None,
            };
            let unreachable = matches!(news, Some(News::Down(_) | News::GivenUp(_)));
            if let Some(news) = news {
                report(Event::Path(PathNews { host, path, news }));
            }
            if unreachable && let Some(error) = paths.start_failure() {
                report(Event::Unreachable(error));
            }
        }
        if gone {
            self.paths = None;
        }
    }

    fn handle_news(&mut self, cx: &mut Context<'_>, PathNews { path, news, .. }: &PathNews) {
        match news {
            News::Up(association) => self.queues.handle_up(cx, *path, association),
            News::Down(error) => self.queues.handle_down(cx, *path, error),
            News::GivenUp(_) => self.queues.handle_failed(cx, *path),
            News::Changed(association) => {
                self.queues.handle_namespaces(cx, *path, &association.namespaces);
                if let Some(ana) = &association.ana {
                    self.queues.handle_ana(cx, *path, ana);
                }
            }
        }
    }
}

impl Load {
    fn new(index: usize, config: &LoadConfig, ports: &[PortConfig]) -> Self {
        let file = |&(host, qid, nsid): &(usize, u16, NamespaceId)| {
            let port = ports.iter().position(|port| port.index == host)?;
            if ports[port].place.is_some() {
                return Some((port, None, nsid));
            }
            let queue = ports[port].queues.iter().position(|&(has, _)| has == qid)?;
            Some((port, Some(queue), nsid))
        };
        Self {
            index,
            polled: config.polled,
            files: config.files.iter().filter_map(file).collect(),
            io_bytes: config.io_bytes,
            depth: config.depth,
            complete_max: config.complete_max,
            job: None,
            buffers: Vec::new(),
            done: VecDeque::with_capacity(config.depth),
            ended: false,
        }
    }

    fn begin(&mut self, cx: &Context<'_>, job: QueueJob, random: &mut Random) {
        self.job = Some(job);
        self.ended = false;
        self.done.clear();
        // An earlier run has left its buffers, unless a failure kept some.
        if !self.buffers.iter().all(Option::is_some) {
            self.fill_buffers(cx, random);
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

    /// Handles a completion: at once, unless its batch may have no room for it.
    #[inline]
    fn take_done(&mut self, now: Instant, done: CommandDone) {
        if self.complete_max.is_none() {
            self.handle_done(now, done);
        } else {
            self.done.push_back(done);
        }
    }

    #[inline(always)]
    fn handle_done(&mut self, now: Instant, done: CommandDone) {
        let Ok(slot) = u16::try_from(done.user & SLOT_MASK) else { return };
        let Some(job) = &mut self.job else { return };
        match (done.result, &done.data) {
            (Ok(_), Data::Read(buf)) => job.handle_read(now, slot, buf),
            (Ok(_), Data::Write(_) | Data::None) => job.handle_written(now, slot),
            (Err(_), _) => {
                let why = done.failure().map_or_else(String::new, |failure| failure.to_string());
                job.handle_failed(now, slot, why);
            }
        }
        self.put_back(usize::from(slot), done.data);
    }

    #[inline]
    fn put_back(&mut self, slot: usize, data: Data) {
        let buf = match data {
            Data::Read(buf) => buf,
            // Normally the queue gives its last reference back; otherwise a new buffer is needed.
            Data::Write(buf) => buf.try_unique().unwrap_or_else(|_| IoBuf::heap(self.io_bytes)),
            Data::None => IoBuf::heap(self.io_bytes),
        };
        self.buffers[slot] = Some(buf);
    }

    /// Handles batches of completions and issues the commands due after each, until nothing is left.
    fn work(&mut self, cx: &mut Context<'_>, ports: &mut [Port]) {
        loop {
            let most = self.complete_max.unwrap_or(usize::MAX).max(1);
            for _ in 0..most {
                let Some(done) = self.done.pop_front() else { break };
                self.handle_done(cx.now, done);
            }
            while let Some(issue) = self.job.as_mut().and_then(|job| job.poll_issue(cx.now)) {
                self.issue(cx, ports, issue);
                if issue.flush {
                    self.flush(cx, ports);
                }
            }
            if self.done.is_empty() {
                return;
            }
            self.flush(cx, ports);
        }
    }

    #[inline(always)]
    fn issue(&mut self, cx: &mut Context<'_>, ports: &mut [Port], issue: Issue) {
        let slot = usize::from(issue.slot);
        let Some(job) = &mut self.job else { return };
        let range = BlockRange::new(issue.slba, issue.block_count);
        let file = self.files.get(usize::from(issue.span));
        let (Some(range), Some(&(port, queue, nsid)), Some(mut buf)) =
            (range, file, self.buffers[slot].take())
        else {
            let why = format!("LBA {}: no command can carry these blocks", issue.slba);
            return job.handle_failed(cx.now, issue.slot, why);
        };
        let command = if issue.write {
            job.fill(issue.slot, &mut buf);
            Command::write(nsid, range, buf.share(), false)
        } else {
            Command::read(nsid, range, buf)
        };
        let user = (self.index as u64) << SLOT_BITS | u64::from(issue.slot);
        let queues = &mut ports[port].queues;
        let submitted = match queue {
            Some(queue) => queues.submit(cx, queue, command, user),
            None => {
                let lane = (self.polled, self.index);
                queues.submit_mapped(cx, lane, command, user).map(drop)
            }
        };
        if let Err(rejected) = submitted {
            let why = format!("LBA {}: {}", issue.slba, rejected.reason);
            job.handle_failed(cx.now, issue.slot, why);
            self.put_back(slot, rejected.command.data);
        }
    }

    fn flush(&self, cx: &mut Context<'_>, ports: &mut [Port]) {
        for &(port, ..) in &self.files {
            ports[port].queues.flush(cx);
        }
    }

    fn is_finished(&self) -> bool {
        self.job.as_ref().is_none_or(QueueJob::is_finished)
    }
}

impl Core {
    pub(super) fn new(cx: &mut Context<'_>, config: CoreConfig) -> Self {
        let ports = config.ports.iter().enumerate();
        let ports = ports.map(|(position, port)| Port::new(cx, position, port)).collect();
        let load = |(index, load)| Load::new(index, load, &config.ports);
        let mut loads: Vec<Load> = config.loads.iter().enumerate().map(load).collect();
        // Allocated here: otherwise a run would spend its first part on page faults.
        let mut random = Random::new(config.seed);
        loads.iter_mut().for_each(|load| load.fill_buffers(cx, &mut random));
        Self {
            ports,
            loads,
            timer: None,
            due: Vec::new(),
            all_due: false,
            state: State::Connecting,
            config,
        }
    }

    /// The counters of the I/O queues, by port.
    pub(super) fn counters(&self) -> Vec<Arc<QueueCounters>> {
        self.ports.iter().map(|port| Arc::clone(port.queues.counters())).collect()
    }

    fn report(&self, event: Event) {
        // Fails only if the coordinator is gone, and with it the interest in events.
        let _ = self.config.events.send(event);
    }

    fn begin(&mut self, cx: &Context<'_>, jobs: Vec<QueueJob>) {
        self.state = State::Running;
        let mut random = Random::new(self.config.seed);
        for (load, job) in self.loads.iter_mut().zip(jobs) {
            load.begin(cx, job, &mut random);
        }
    }

    /// Handles completions of the queues, then issues due commands.
    fn work(&mut self, cx: &mut Context<'_>) {
        let mut due = std::mem::take(&mut self.due);
        let loads = &mut self.loads;
        for port in &mut self.ports {
            port.queues.take_done(|_, done| {
                let Ok(load) = usize::try_from(done.user >> SLOT_BITS) else { return };
                loads[load].take_done(cx.now, done);
                if due.last() != Some(&load) {
                    due.push(load);
                }
            });
        }
        if std::mem::take(&mut self.all_due) {
            due.clear();
            due.extend(0..self.loads.len());
        }
        let mut finished = false;
        let mut wake_at: Option<Instant> = None;
        for index in due.drain(..) {
            let load = &mut self.loads[index];
            load.work(cx, &mut self.ports);
            let ended = load.is_finished();
            if ended && !std::mem::replace(&mut load.ended, true) && self.config.report_each {
                let _ = self.config.events.send(Event::JobEnded);
            }
            finished |= ended;
            let at = load.job.as_ref().and_then(QueueJob::wake_at);
            wake_at = wake_at.into_iter().chain(at).min();
        }
        self.due = due;
        if finished && self.loads.iter().all(Load::is_finished) {
            let jobs = self.loads.iter_mut().filter_map(|load| load.job.take());
            let results = jobs.map(QueueJob::into_result).collect();
            self.state = State::Idle;
            self.report(Event::Finished(self.config.thread, results));
            return;
        }
        self.set_timer(cx, wake_at);
    }

    /// Sets the single timer to the earliest time that the handled jobs wait for.
    fn set_timer(&mut self, cx: &mut Context<'_>, wake_at: Option<Instant>) {
        if let Some(at) = wake_at.filter(|&at| self.timer.is_none_or(|set| at < set)) {
            self.timer = Some(at);
            cx.io.timer(at, Token { owner: OWN, generation: 0, index: 0 });
        }
    }

    fn poll_queues(&mut self) {
        let mut ready = false;
        for port in &mut self.ports {
            while let Some(event) = port.queues.poll_event() {
                match event {
                    PathSetEvent::Ready { .. } => {
                        let before = std::mem::replace(&mut port.ready, port.queues.is_ready());
                        ready |= !before && port.ready;
                    }
                    event => {
                        port.ready = port.queues.is_ready();
                        let _ = self.config.events.send(Event::Queues(port.host, event));
                    }
                }
            }
        }
        if ready && self.ports.iter().all(|port| port.ready) {
            self.report(Event::Ready);
        }
    }

    /// Closes queues first, then their controllers.
    fn poll_close(&mut self, cx: &mut Context<'_>) {
        if self.state == State::ClosingQueues
            && self.ports.iter().all(|port| port.queues.is_closed())
        {
            for paths in self.ports.iter_mut().filter_map(|port| port.paths.as_mut()) {
                paths.disconnect(cx);
            }
            self.state = State::ClosingController;
        }
        if self.state == State::ClosingController
            && self.ports.iter().all(|port| port.paths.is_none())
        {
            self.state = State::Closed;
            self.report(Event::Closed);
        }
    }

    fn port(&mut self, host: usize) -> Option<&mut Port> {
        self.ports.iter_mut().find(|port| port.host == host)
    }
}

impl Service for Core {
    type Message = Message;

    fn handle_message(&mut self, cx: &mut Context<'_>, message: Message) {
        self.all_due = true;
        match message {
            Message::Path(news) => {
                if let Some(port) = self.port(news.host) {
                    port.handle_news(cx, &news);
                }
            }
            Message::Failed(host, error) => {
                let Some(position) = self.ports.iter().position(|port| port.host == host) else {
                    return;
                };
                self.ports[position].queues.close(cx);
                for load in &mut self.loads {
                    let uses = load.files.iter().any(|&(port, ..)| port == position);
                    if let Some(job) = load.job.as_mut().filter(|_| uses) {
                        job.abandon(cx.now, error.to_string());
                    }
                }
            }
            Message::Queues(host, event) => {
                let Some(paths) = self.port(host).and_then(|port| port.paths.as_mut()) else {
                    return;
                };
                match event {
                    PathSetEvent::Lost { path, cntlid, error } => {
                        paths.queue_lost(cx, path, cntlid, error);
                    }
                    PathSetEvent::Outdated { path } => paths.refresh_ana(cx, path),
                    PathSetEvent::Ready { .. } => {}
                }
            }
            Message::Gather(i10) => {
                self.ports.iter_mut().for_each(|port| port.queues.set_i10(i10));
            }
            Message::Begin(jobs) => self.begin(cx, jobs),
            Message::Finish => {
                self.loads
                    .iter_mut()
                    .filter_map(|load| load.job.as_mut())
                    .for_each(|job| job.stop(cx.now));
            }
            Message::Close => {
                self.ports.iter_mut().for_each(|port| port.queues.close(cx));
                self.state = State::ClosingQueues;
            }
        }
    }

    fn handle_completion(&mut self, cx: &mut Context<'_>, completion: Completion) {
        let Some(owner) = completion.token.owner.checked_sub(OWN + 1) else {
            debug_assert!(matches!(completion.outcome, Outcome::Timer));
            self.timer = None;
            self.all_due = true;
            return;
        };
        let Some(port) = self.ports.get_mut(usize::from(owner / 2)) else { return };
        match &mut port.paths {
            _ if owner % 2 == 1 => port.queues.handle_completion(cx, completion),
            Some(paths) => paths.handle_completion(cx, completion),
            None => {}
        }
    }

    fn flush(&mut self, cx: &mut Context<'_>) {
        let events = &self.config.events;
        for port in &mut self.ports {
            port.poll_paths(&mut |event| {
                // Fails only as in `report`.
                let _ = events.send(event);
            });
        }
        self.poll_queues();
        if self.state == State::Running {
            self.work(cx);
        }
        // Before controllers send: a core that sleeps has no further turn to send the last messages.
        self.poll_close(cx);
        for port in &mut self.ports {
            if let Some(paths) = &mut port.paths {
                paths.flush(cx);
            }
            port.queues.flush(cx);
        }
    }

    fn is_finished(&self) -> bool {
        self.state == State::Closed
    }
}
