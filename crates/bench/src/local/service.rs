//! The workload on any block device, by a reactor on one core.

use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::time::{Duration, Instant};

use raceline_bdev::{Channel, Done, Op, Request, SharedBdev};
use raceline_reactor::send::Payload;
use raceline_reactor::{
    Backend, Completion, Context, IoBuf, Mode, PoolConfig, Reactor, ReactorConfig, ReactorHandle,
    Service, SharedBuf, Token,
};

use super::{LocalError, LocalJob, offset, outcome};
use crate::job::{JobResult, QueueJob};
use crate::random::Random;

/// The owner of the device's operations, and of this service's own timer.
const DEVICE: u16 = 0;
const TIMER: Token = Token { owner: 1, generation: 0, index: 0 };
/// Commands after which the loop has its turn, if the device completes at once.
const TURN: usize = 64;
/// How much longer than its run the generator may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

type Answer = Result<JobResult, LocalError>;

/// A message to the thread of the generator.
enum Order {
    Run(LocalJob, Sender<Answer>),
    End,
}

/// A thread that sends commands to a device.
pub struct Local {
    reactor: Option<ReactorHandle<Order>>,
}

impl Local {
    /// Starts the thread, on a core if one is named, with buffers for jobs like this one. It sleeps between runs.
    ///
    /// # Errors
    /// When the thread or the device's channel cannot be made.
    pub fn start(
        device: &SharedBdev,
        core: Option<usize>,
        job: &LocalJob,
    ) -> Result<Self, LocalError> {
        let class = (job.io_bytes as usize, usize::from(job.depth));
        let config = ReactorConfig {
            core,
            mode: Mode::Interrupt,
            backend: Backend::default(),
            busy_poll: None,
            pool: PoolConfig::new(&[class]),
            accel: None,
            name: "local-0".to_owned(),
        };
        let device = Arc::clone(device);
        let reactor = Reactor::spawn(config, move |cx| {
            let info = device.info();
            let channel = device.open_channel(cx, DEVICE)?;
            let bytes = info.block_count * u64::from(info.block_size);
            let run = None;
            Ok(Generator { _device: device, channel: Some(channel), bytes, run, done: Vec::new() })
        });
        let reactor = reactor.map_err(|error| failed(format!("cannot start: {error}")))?;
        Ok(Self { reactor: Some(reactor) })
    }

    /// One run. The thread polls meanwhile.
    ///
    /// # Errors
    /// When the job does not fit the device, or a command fails.
    pub fn run(&self, job: LocalJob) -> Result<JobResult, LocalError> {
        let Some(reactor) = &self.reactor else { return Err(failed("has ended")) };
        let (sender, answer) = mpsc::channel();
        reactor.set_mode(Mode::Poll);
        let sent = reactor.sender().send(Order::Run(job, sender)).is_ok();
        let answer = answer.recv_timeout(job.ramp + job.time + ANSWER_LIMIT);
        reactor.set_mode(Mode::Interrupt);
        match answer {
            Ok(answer) if sent => answer,
            _ => Err(failed("does not answer")),
        }
    }
}

fn failed(what: impl Into<String>) -> LocalError {
    LocalError::Generator(what.into())
}

impl Drop for Local {
    fn drop(&mut self) {
        let Some(reactor) = self.reactor.take() else { return };
        // If it has ended, there is nothing to end.
        let _ = reactor.sender().send(Order::End);
        if let Err(error) = reactor.join() {
            tracing::warn!(%error, "the local generator");
        }
    }
}

/// The service of the thread.
struct Generator {
    /// Keeps the device open.
    _device: SharedBdev,
    channel: Option<Box<dyn Channel>>,
    bytes: u64,
    run: Option<Run>,
    done: Vec<Done>,
}

/// A run that goes on.
struct Run {
    job: QueueJob,
    io_bytes: usize,
    answer: Sender<Answer>,
    reads: Vec<IoBuf>,
    writes: Vec<SharedBuf>,
}

impl Run {
    /// Takes the buffers: one for each command in flight and kind of command.
    fn new(
        job: LocalJob,
        bytes: u64,
        answer: Sender<Answer>,
        cx: &Context<'_>,
    ) -> Result<Self, (Sender<Answer>, LocalError)> {
        let io_bytes = job.io_bytes as usize;
        let queue_job = match job.queue_job(bytes, Instant::now()) {
            Ok(queue_job) => queue_job,
            Err(error) => return Err((answer, error)),
        };
        let mut random = Random::new(job.seed);
        let mut buffer = || {
            let mut buf = cx.pool.take(io_bytes).unwrap_or_else(|| IoBuf::heap(io_bytes));
            random.fill(&mut buf[..io_bytes]);
            buf
        };
        let percent = job.mode.read_percent(job.mixed_read_percent);
        let count = |is_used: bool| if is_used { job.depth } else { 0 };
        let reads = (0..count(percent > 0)).map(|_| buffer()).collect();
        let writes = (0..count(percent < 100)).map(|_| buffer().share()).collect();
        Ok(Self { job: queue_job, io_bytes, answer, reads, writes })
    }

    /// The next command, if one is due.
    fn next(&mut self, now: Instant) -> Option<Request> {
        let issue = self.job.poll_issue(now)?;
        let offset = offset(issue.slba);
        let op = if issue.write {
            let data = self.writes.pop().unwrap_or_else(|| IoBuf::heap(self.io_bytes).share());
            Op::Write { offset, data, fua: false }
        } else {
            Op::Read { offset, len: self.io_bytes, buf: self.reads.pop() }
        };
        Some(Request { tag: issue.slot.into(), op })
    }

    fn take(&mut self, done: Done, now: Instant) {
        let Ok(slot) = u16::try_from(done.tag) else { return };
        match (done.result, done.payload) {
            (Err(error), _) => self.job.handle_failed(now, slot, format!("{error:?}")),
            (Ok(()), Some(Payload::Shared(buf, _))) => {
                self.writes.push(buf);
                self.job.handle_written(now, slot);
            }
            (Ok(()), payload) => {
                if let Some(Payload::Buf(buf, _)) = payload {
                    self.reads.push(buf);
                }
                self.job.handle_read(now, slot, &[]);
            }
        }
    }
}

impl Service for Generator {
    type Message = Order;

    fn handle_message(&mut self, cx: &mut Context<'_>, message: Order) {
        match message {
            Order::Run(job, answer) => match Run::new(job, self.bytes, answer, cx) {
                Ok(run) => self.run = Some(run),
                Err((answer, error)) => {
                    // A caller that has stopped waiting needs no answer.
                    let _ = answer.send(Err(error));
                }
            },
            Order::End => {
                if let Some(mut channel) = self.channel.take() {
                    channel.close(cx);
                }
            }
        }
    }

    fn handle_completion(&mut self, cx: &mut Context<'_>, completion: Completion) {
        if completion.token.owner != DEVICE {
            return;
        }
        if let Some(channel) = &mut self.channel {
            channel.handle_completion(cx, completion, &mut self.done);
        }
    }

    fn flush(&mut self, cx: &mut Context<'_>) {
        let (Some(run), Some(channel)) = (&mut self.run, &mut self.channel) else { return };
        for _ in 0..TURN {
            // The clock is read for each command: a device in memory completes many of them in one turn.
            let now = Instant::now();
            self.done.drain(..).for_each(|done| run.take(done, now));
            let Some(request) = run.next(Instant::now()) else { break };
            channel.submit(cx, request, &mut self.done);
        }
        channel.flush(cx, &mut self.done);
        let now = Instant::now();
        self.done.drain(..).for_each(|done| run.take(done, now));
        if run.job.is_finished() {
            if let Some(run) = self.run.take() {
                // A caller that has stopped waiting needs no answer.
                let _ = run.answer.send(outcome(run.job.into_result()));
            }
        } else if run.job.in_flight() == 0 {
            cx.io.timer(cx.now, TIMER);
        }
    }

    fn is_finished(&self) -> bool {
        self.channel.is_none()
    }
}
