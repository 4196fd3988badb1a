//! The thread of one core: a loop that drives a [`Service`] with completions and messages.
//!
//! A turn is: poll (submit what was started, collect what has finished), completions, a bounded
//! number of messages, flush. How eagerly it turns is the [`Mode`].
//!
//! A panic inside a service ends its core, not the process: its connections are closed while
//! the stack unwinds, [`ReactorHandle::is_running`] turns false, and [`ReactorHandle::join`]
//! reports it. What other cores do then is up to the owner of the handles.

use std::any::Any;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Once};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use raceline_accel::ChannelConfig;

use crate::accel::accelerator::Accelerator;
use crate::epoll::EpollIo;
use crate::io::busy_poll::WaitPolling;
use crate::io::{Completion, Io, Wait};
use crate::memory::buffer::{BufferPool, PoolConfig};
use crate::thread::affinity::pin_to_core;
use crate::thread::mailbox::{Mailbox, Sender, mailbox};
use crate::thread::roll::Listed;
use crate::thread::service::{Context, Service};
use crate::thread::stats::LoopStats;
use crate::uring::UringIo;

/// How long an adaptive core spins after its last work, unless told otherwise. A thread that drives host
/// queues itself looks for the same time before it sleeps.
pub const DEFAULT_SPIN: Duration = Duration::from_micros(50);

/// How long a core that polls for commands looks for work after its last work, whatever its mode: longer than a drive takes
/// for a command.
const POLL_TIME: Duration = Duration::from_millis(20);

/// Messages taken per turn, so that a flood of them does not delay I/O.
pub const MESSAGES_PER_TURN: usize = 64;

/// Room for completions made ready in advance; a turn with more grows it once.
const COMPLETIONS_PER_TURN: usize = 1024;

/// How eagerly a core looks for work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Always spins: the lowest latency, one core at 100 %.
    Poll,
    /// Spins while there was work in the last `spin`, then waits in the kernel.
    Adaptive {
        /// How long to spin after the last work.
        spin: Duration,
    },
    /// Waits in the kernel whenever there is nothing to do.
    Interrupt,
}

impl Default for Mode {
    fn default() -> Mode {
        Mode::Adaptive { spin: DEFAULT_SPIN }
    }
}

/// The mode of a running core, which other threads may change; on cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct SharedMode(AtomicU64);

impl SharedMode {
    /// How [`Mode::Interrupt`] is stored; the others by how long they spin, in nanoseconds.
    const INTERRUPT: u64 = 0;
    const POLL: u64 = u64::MAX;

    fn new(mode: Mode) -> SharedMode {
        let shared = SharedMode(AtomicU64::new(0));
        shared.set(mode);
        shared
    }

    fn set(&self, mode: Mode) {
        let spin = match mode {
            Mode::Interrupt => Self::INTERRUPT,
            Mode::Poll => Self::POLL,
            Mode::Adaptive { spin } => {
                u64::try_from(spin.as_nanos()).unwrap_or(Self::POLL).clamp(1, Self::POLL - 1)
            }
        };
        self.0.store(spin, Ordering::Relaxed);
    }

    fn get(&self) -> Mode {
        match self.0.load(Ordering::Relaxed) {
            Self::INTERRUPT => Mode::Interrupt,
            Self::POLL => Mode::Poll,
            spin => Mode::Adaptive { spin: Duration::from_nanos(spin) },
        }
    }
}

/// Which [`Io`] a core uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// io_uring, or epoll where io_uring is not permitted.
    #[default]
    Auto,
    /// io_uring, or an error.
    Uring,
    /// epoll(7), with helper threads for files.
    Epoll,
}

/// How to run a core.
#[derive(Clone, Debug, Default)]
pub struct ReactorConfig {
    /// The core to pin the thread to; `None` lets it float.
    pub core: Option<usize>,
    /// How eagerly it looks for work.
    pub mode: Mode,
    /// How it does I/O.
    pub backend: Backend,
    /// How long its waits look into receive queues before they sleep ([`Io::busy_poll`]); `None`: not at all.
    /// Where the kernel cannot, the core works without it, and the log says so.
    pub busy_poll: Option<Duration>,
    /// Its buffers.
    pub pool: PoolConfig,
    /// Which engine does which operation on data; `None`: the CPU does all.
    pub accel: Option<raceline_accel::Framework>,
    /// The name of its thread.
    pub name: String,
}

/// Starts cores.
#[derive(Debug)]
pub struct Reactor;

impl Reactor {
    /// Starts a thread, pins it, opens its I/O, builds its service there, and runs it until
    /// [`Service::is_finished`]. Returns when the service has been built.
    ///
    /// # Errors
    /// When the thread cannot be started or pinned (the error names the core and the allowed
    /// ones), the I/O or the pool cannot be made, or the builder fails.
    pub fn spawn<S, F>(config: ReactorConfig, builder: F) -> io::Result<ReactorHandle<S::Message>>
    where
        S: Service,
        F: FnOnce(&mut Context<'_>) -> io::Result<S> + Send + 'static,
    {
        let stats = Arc::new(LoopStats::default());
        let mode = Arc::new(SharedMode::new(config.mode));
        let (started, start) = mpsc::sync_channel(1);
        let thread = std::thread::Builder::new().name(config.name.clone()).spawn({
            let (stats, mode) = (stats.clone(), mode.clone());
            move || match Core::start(&config, mode, stats, builder) {
                Ok((mut core, sender, backend)) => {
                    let listed = Listed::new(&config.name, &core.stats, core.io.waker());
                    // The receiver waits for exactly this.
                    let _ = started.send(Ok((sender, backend)));
                    drop(started);
                    let ended = core.run().inspect_err(|error| {
                        // Nobody waits for this thread before the service is told to stop.
                        tracing::error!(
                            name = config.name,
                            "this core has ended, its I/O broke: {error}"
                        );
                    });
                    listed.end(ended.is_ok());
                    ended
                }
                Err(error) => {
                    let _ = started.send(Err(error));
                    Ok(())
                }
            }
        })?;
        match start.recv() {
            Ok(Ok((sender, backend))) => Ok(ReactorHandle { sender, mode, stats, backend, thread }),
            Ok(Err(error)) => Err(error),
            // The thread ended without a word: it panicked.
            Err(_) => Err(match join(thread) {
                Err(error) => io::Error::other(error),
                Ok(()) => io::Error::other("the core ended at once"),
            }),
        }
    }
}

/// A running core, seen from outside. Dropped, the core runs on.
#[derive(Debug)]
pub struct ReactorHandle<M> {
    sender: Sender<M>,
    mode: Arc<SharedMode>,
    stats: Arc<LoopStats>,
    backend: Backend,
    thread: JoinHandle<io::Result<()>>,
}

impl<M> ReactorHandle<M> {
    /// The way to its mailbox.
    pub fn sender(&self) -> &Sender<M> {
        &self.sender
    }

    /// Its loop's counters.
    pub fn stats(&self) -> &Arc<LoopStats> {
        &self.stats
    }

    /// Changes how eagerly it looks for work, from its next turn on: at once, unless it sleeps.
    pub fn set_mode(&self, mode: Mode) {
        self.mode.set(mode);
    }

    /// Which back end it really uses: never [`Backend::Auto`].
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// False once the thread has ended, for whatever reason.
    pub fn is_running(&self) -> bool {
        !self.thread.is_finished()
    }

    /// Waits until the thread has ended. (Tell the service to stop first, by message.)
    ///
    /// # Errors
    /// When the core ended other than by [`Service::is_finished`].
    pub fn join(self) -> Result<(), ReactorError> {
        join(self.thread)
    }
}

/// Why a core ended before it was told to.
#[derive(Debug)]
pub enum ReactorError {
    /// Its I/O broke.
    Io(io::Error),
    /// Its service panicked, with this message.
    Panicked(String),
}

impl fmt::Display for ReactorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReactorError::Io(error) => write!(f, "the core's I/O broke: {error}"),
            ReactorError::Panicked(message) => write!(f, "the core panicked: {message}"),
        }
    }
}

impl std::error::Error for ReactorError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ReactorError::Io(error) => Some(error),
            ReactorError::Panicked(_) => None,
        }
    }
}

/// Opens the I/O of the calling thread, and tells which back end it is.
///
/// # Errors
/// When the back end asked for cannot be used; [`Backend::Auto`] fails only if neither can.
pub fn open_io(backend: Backend) -> io::Result<(Box<dyn Io>, Backend)> {
    static REASON_LOGGED: Once = Once::new();
    if backend != Backend::Epoll {
        match UringIo::new() {
            Ok(io) => return Ok((Box::new(io), Backend::Uring)),
            Err(error) if backend == Backend::Auto && is_forbidden(&error) => {
                REASON_LOGGED
                    .call_once(|| tracing::info!("io_uring cannot be used ({error}): using epoll"));
            }
            Err(error) => return Err(error),
        }
    }
    Ok((Box::new(EpollIo::new()?), Backend::Epoll))
}

/// Logs what the waits of a core do about busy polling.
pub fn tell_busy_poll(core: &str, set: io::Result<WaitPolling>) {
    match set {
        Ok(set) => tracing::info!(core, "waits busy poll: {set}"),
        Err(error) => tracing::info!(core, "waits sleep without busy polling: {error}"),
    }
}

/// True if io_uring is missing, too old, or kept from this process by a system-call filter, a
/// sysctl or a memory limit; not if, say, descriptors have run out.
fn is_forbidden(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Unsupported
        || matches!(
            error.raw_os_error(),
            Some(libc::EPERM | libc::EACCES | libc::ENOSYS | libc::ENOMEM)
        )
}

/// What lives on the core's thread. The order of the fields is the order of dropping: the
/// service lets go of its buffers, then the I/O waits for operations in flight.
struct Core<S: Service> {
    service: S,
    mailbox: Mailbox<S::Message>,
    io: Box<dyn Io>,
    pool: BufferPool,
    mode: Arc<SharedMode>,
    stats: Arc<LoopStats>,
}

type Started<S> = (Core<S>, Sender<<S as Service>::Message>, Backend);

impl<S: Service> Core<S> {
    fn start<F>(
        config: &ReactorConfig,
        mode: Arc<SharedMode>,
        stats: Arc<LoopStats>,
        builder: F,
    ) -> io::Result<Started<S>>
    where
        F: FnOnce(&mut Context<'_>) -> io::Result<S>,
    {
        if let Some(core) = config.core {
            pin_to_core(core)?;
        }
        let pool = BufferPool::new(&config.pool)?;
        let (mut io, backend) = open_io(config.backend)?;
        if let Some(time) = config.busy_poll {
            tell_busy_poll(&config.name, io.busy_poll(time));
        }
        io.lend_pool(&pool);
        if let Some(framework) = &config.accel {
            let channel = ChannelConfig { cpu: config.core, ..ChannelConfig::default() };
            let channel = framework.open_channel(&channel).map_err(io::Error::other)?;
            *io.accelerator() = Accelerator::new(channel);
        }
        stats.set_departures(io.departures());
        let (sender, mailbox) = mailbox(io.waker());
        let now = io.now();
        let service = builder(&mut Context { io: &mut *io, pool: &pool, now })?;
        Ok((Core { service, mailbox, io, pool, mode, stats }, sender, backend))
    }

    fn run(&mut self) -> io::Result<()> {
        let mut completions = Vec::with_capacity(COMPLETIONS_PER_TURN);
        let mut last_work = self.io.now();
        // When the turn before this one ended.
        let mut last_end = last_work;
        let mut wait = Wait::No;
        while !self.service.is_finished() {
            self.io.poll(wait, &mut completions)?;
            self.stats.record_turn(wait == Wait::Yes, self.io.counts());
            let now = self.io.now();
            let work = self.turn(now, &mut completions);
            if work == Work::None {
                last_end = now;
            } else {
                last_work = now;
                let poll = match wait {
                    Wait::No => now.saturating_duration_since(last_end),
                    Wait::Yes => Duration::ZERO,
                };
                let time = now.elapsed();
                self.stats.record_busy(time, poll);
                last_end = now + time;
            }
            wait = match self.mode.get() {
                _ if work == Work::More => Wait::No,
                Mode::Poll => Wait::No,
                Mode::Adaptive { spin } if now.duration_since(last_work) < spin => Wait::No,
                _ if self.polls(now.duration_since(last_work)) => Wait::No,
                Mode::Adaptive { .. } | Mode::Interrupt => Wait::Yes,
            };
            if work == Work::None && wait == Wait::No {
                std::hint::spin_loop();
            }
        }
        Ok(())
    }

    /// Whether it looks for the end of commands that somebody polls for. Nothing may end for long, if a controller is lost.
    fn polls(&mut self, idle: Duration) -> bool {
        idle < POLL_TIME && self.io.flight().is_polled()
    }

    fn turn(&mut self, now: Instant, completions: &mut Vec<Completion>) -> Work {
        let mut work = if completions.is_empty() { Work::None } else { Work::Done };
        let mut cx = Context { io: &mut *self.io, pool: &self.pool, now };
        for completion in completions.drain(..) {
            self.service.handle_completion(&mut cx, completion);
        }
        for count in 1..=MESSAGES_PER_TURN {
            let Some(message) = self.mailbox.receive() else { break };
            self.service.handle_message(&mut cx, message);
            // Messages that are left cause no wake-up: the next turn must look.
            work = if count == MESSAGES_PER_TURN { Work::More } else { Work::Done };
        }
        self.service.flush(&mut cx);
        work
    }
}

/// What a turn has done.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    None,
    Done,
    /// Something, and there may be more messages.
    More,
}

fn join(thread: JoinHandle<io::Result<()>>) -> Result<(), ReactorError> {
    match thread.join() {
        Ok(result) => result.map_err(ReactorError::Io),
        Err(panic) => Err(ReactorError::Panicked(panic_message(&*panic))),
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").to_owned()
}
