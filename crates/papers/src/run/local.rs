//! The generator on a device in this process, without a network: what a remote latency is compared with.

use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::time::{Duration, Instant};

use raceline_bdev::{Channel, Done, Op, Request, SharedBdev};
use raceline_bench::Latencies;
use raceline_bench::random::Random;
use raceline_reactor::send::Payload;
use raceline_reactor::{
    Backend, Completion, Context, IoBuf, Mode, PoolConfig, Reactor, ReactorConfig, ReactorHandle,
    Service, SharedBuf, Token,
};

/// The owner of the device's operations, and of this service's own timer.
const DEVICE: u16 = 0;
const TIMER: Token = Token { owner: 1, generation: 0, index: 0 };
/// Commands after which the loop has its turn, if the device completes at once.
const TURN: usize = 64;
/// How much longer than its run the generator may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// One run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    pub(super) io_bytes: u32,
    pub(super) depth: u16,
    pub(super) write: bool,
    pub(super) random: bool,
    pub(super) ramp: Duration,
    pub(super) time: Duration,
    pub(super) seed: u64,
}

/// The result of a run.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) latencies: Latencies,
    pub(super) time: Duration,
    /// Commands with those of the ramp.
    pub(super) commands: u64,
}

type Answer = Result<Measured, String>;

/// A message to the thread of the generator.
pub(super) enum Order {
    Run(Job, Sender<Answer>),
    End,
}

/// A thread on one core that sends commands to a device.
pub(super) struct Local {
    reactor: Option<ReactorHandle<Order>>,
}

impl Local {
    /// Starts the thread.
    pub(super) fn start(device: &SharedBdev, core: usize, job: Job) -> Result<Self, String> {
        let class = (job.io_bytes as usize, usize::from(job.depth));
        let config = ReactorConfig {
            core: Some(core),
            mode: Mode::Interrupt,
            backend: Backend::default(),
            pool: PoolConfig::new(&[class]),
            accel: None,
            name: "local-0".to_owned(),
        };
        let device = Arc::clone(device);
        let reactor = Reactor::spawn(config, move |cx| {
            let info = device.info();
            let channel = device.open_channel(cx, DEVICE)?;
            let bytes = info.block_count * u64::from(info.block_size);
            Ok(Generator { device, channel: Some(channel), bytes, run: None, done: Vec::new() })
        });
        let reactor = reactor.map_err(|error| format!("the local generator: {error}"))?;
        Ok(Self { reactor: Some(reactor) })
    }

    /// One run; before and after it, the thread sleeps.
    pub(super) fn run(&self, job: Job) -> Answer {
        let Some(reactor) = &self.reactor else { return Err("it has ended".to_owned()) };
        let (sender, answer) = mpsc::channel();
        reactor.set_mode(Mode::Poll);
        let sent = reactor.sender().send(Order::Run(job, sender)).is_ok();
        let answer = answer.recv_timeout(job.ramp + job.time + ANSWER_LIMIT);
        reactor.set_mode(Mode::Interrupt);
        match answer {
            Ok(answer) if sent => answer,
            _ => Err("the local generator does not answer".to_owned()),
        }
    }
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
    #[expect(dead_code, reason = "the channel uses it")]
    device: SharedBdev,
    channel: Option<Box<dyn Channel>>,
    bytes: u64,
    run: Option<Run>,
    done: Vec<Done>,
}

struct Run {
    job: Job,
    answer: Sender<Answer>,
    random: Random,
    next: u64,
    begun: Instant,
    latencies: Latencies,
    commands: u64,
    submitted: Vec<Option<Instant>>,
    /// Buffers of commands that are not in flight.
    reads: Vec<IoBuf>,
    writes: Vec<SharedBuf>,
    failed: Option<String>,
}

impl Run {
    fn new(job: Job, answer: Sender<Answer>, cx: &Context<'_>) -> Option<Self> {
        let len = job.io_bytes as usize;
        let mut random = Random::new(job.seed);
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        for _ in 0..job.depth {
            let mut buf = cx.pool.take(len)?;
            if job.write {
                random.fill(&mut buf[..len]);
                writes.push(buf.share());
            } else {
                reads.push(buf);
            }
        }
        let (begun, submitted) = (Instant::now(), vec![None; usize::from(job.depth)]);
        let (latencies, commands, failed) = (Latencies::new(), 0, None);
        Some(Self {
            job,
            answer,
            random,
            next: 0,
            begun,
            latencies,
            commands,
            submitted,
            reads,
            writes,
            failed,
        })
    }

    fn is_over(&self) -> bool {
        self.failed.is_some() || self.begun.elapsed() >= self.job.ramp + self.job.time
    }

    /// The next command, if one may be submitted.
    fn next(&mut self, bytes: u64) -> Option<Request> {
        let slot = self.submitted.iter().position(Option::is_none)?;
        let len = u64::from(self.job.io_bytes);
        let units = (bytes / len).max(1);
        let unit = if self.job.random { self.random.below(units) } else { self.next % units };
        self.next += 1;
        let offset = unit * len;
        let op = if self.job.write {
            Op::Write { offset, data: self.writes.pop()?, fua: false }
        } else {
            Op::Read { offset, len: self.job.io_bytes as usize, buf: Some(self.reads.pop()?) }
        };
        self.submitted[slot] = Some(Instant::now());
        Some(Request { tag: slot as u64, op })
    }

    fn take(&mut self, done: Done) {
        let now = Instant::now();
        let slot = usize::try_from(done.tag).ok().and_then(|slot| self.submitted.get_mut(slot));
        let Some(submitted) = slot.and_then(Option::take) else { return };
        match done.payload {
            Some(Payload::Buf(buf, _)) => self.reads.push(buf),
            Some(Payload::Shared(buf, _)) => self.writes.push(buf),
            _ => {}
        }
        if let Err(error) = done.result {
            self.failed = Some(format!("the device: {error:?}"));
        }
        self.commands += 1;
        if submitted.duration_since(self.begun) >= self.job.ramp {
            self.latencies.record(now - submitted);
        }
    }

    fn end(self) {
        let time = self.begun.elapsed().saturating_sub(self.job.ramp);
        let Self { latencies, commands, failed, .. } = self;
        let answer = failed.map_or(Ok(Measured { latencies, time, commands }), Err);
        // A caller that has stopped waiting needs no answer.
        let _ = self.answer.send(answer);
    }
}

impl Service for Generator {
    type Message = Order;

    fn handle_message(&mut self, cx: &mut Context<'_>, message: Order) {
        match message {
            Order::Run(job, answer) => match Run::new(job, answer.clone(), cx) {
                Some(run) => self.run = Some(run),
                None => {
                    let _ = answer.send(Err("the local generator has no buffer left".to_owned()));
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
            self.done.drain(..).for_each(|done| run.take(done));
            if run.is_over() {
                break;
            }
            let Some(request) = run.next(self.bytes) else { break };
            channel.submit(cx, request, &mut self.done);
        }
        channel.flush(cx, &mut self.done);
        self.done.drain(..).for_each(|done| run.take(done));
        let in_flight = run.submitted.iter().any(Option::is_some);
        if run.is_over() && !in_flight {
            if let Some(run) = self.run.take() {
                run.end();
            }
        } else if !in_flight {
            cx.io.timer(cx.now, TIMER);
        }
    }

    fn is_finished(&self) -> bool {
        self.channel.is_none()
    }
}
