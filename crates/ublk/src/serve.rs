//! The work of a core: one queue of a disk, and a channel to the device.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use raceline_bdev::{Channel, DiskCounters, Done, SharedBdev};
use raceline_reactor::ublk::UblkQueue;
use raceline_reactor::{Completion, Context, Outcome, Service, Token};

use crate::pages::{CharacterDevice, Pages, Way};
use crate::plan::Facts;
use crate::queue::{Data, Ended, Queue};

/// The owner of commands to the kernel.
const COMMANDS: u16 = 0;
/// The owner of the channel's operations.
const CHANNEL: u16 = 1;
/// The owner of the timer of doubts.
const DOUBTS: u16 = 2;

/// How long a disk may take to end after the kernel has not taken an answer. It ends when the requests of all its queues have
/// been answered.
const DOUBT_TIME: Duration = Duration::from_secs(10);

/// What other threads tell a core.
pub(crate) enum Message {
    /// The character device is open: make the queue usable.
    Open,
    /// All cores have theirs: ask the kernel for requests.
    Fetch,
    /// The disk has this many bytes from now on.
    Resized(u64),
    /// The disk is left to another process: answer what is at the device, and begin nothing.
    Leave,
    /// The disk does not become this process's: end as soon as nothing is at the device, whatever the kernel has.
    Abandon,
    /// This process ends the disk.
    Ends,
}

/// What a core serves.
pub(crate) struct Part {
    pub(crate) file: CharacterDevice,
    pub(crate) device: SharedBdev,
    pub(crate) queue: UblkQueue,
    pub(crate) facts: Facts,
    pub(crate) way: Way,
    /// Set when the kernel refuses commands.
    pub(crate) failed: Arc<AtomicBool>,
    /// Set when the kernel has taken the place of a request back.
    pub(crate) ended: Arc<AtomicBool>,
    /// Cores that have made their queues usable, after [`Message::Open`].
    pub(crate) opened: Arc<AtomicUsize>,
    /// Cores that have nothing at the device any more, after [`Message::Leave`].
    pub(crate) left: Arc<AtomicUsize>,
    /// Where this core counts.
    pub(crate) counters: Arc<DiskCounters>,
}

/// The service.
pub(crate) struct Core {
    queue: Queue,
    number: u16,
    /// Of the kernel: what it has not been asked for yet.
    file: CharacterDevice,
    own: UblkQueue,
    fetches: bool,
    opened: Arc<AtomicUsize>,
    channel: Box<dyn Channel>,
    done: Vec<Done>,
    failed: Arc<AtomicBool>,
    ended: Arc<AtomicBool>,
    /// Until it has been counted there.
    left: Option<Arc<AtomicUsize>>,
    counters: Arc<DiskCounters>,
    /// The timer of doubts runs.
    doubts: bool,
    finished: bool,
}

impl Core {
    pub(crate) fn new(cx: &mut Context<'_>, part: Part) -> io::Result<Self> {
        let channel = part.device.open_channel(cx, CHANNEL)?;
        let (number, depth) = (part.queue.queue, part.queue.depth);
        let pages = Pages::new(Arc::clone(&part.file), number);
        let data = match part.way {
            Way::Mapped => Data::Mapped,
            Way::Copied => Data::Copied(Box::new(pages)),
            Way::Pages => Data::Pages(Box::new(pages)),
        };
        let core = Self {
            queue: Queue::new(part.facts, depth, data),
            number,
            file: part.file,
            own: part.queue,
            fetches: false,
            opened: part.opened,
            channel,
            done: Vec::new(),
            failed: part.failed,
            ended: part.ended,
            left: Some(part.left),
            counters: part.counters,
            doubts: false,
            finished: false,
        };
        core.counters.queue_began();
        Ok(core)
    }

    /// Makes the queue of the kernel usable.
    fn open(&mut self, cx: &mut Context<'_>) {
        let file = self.file.get().map(Arc::clone);
        let file = file.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound));
        match file.and_then(|file| cx.io.open_ublk(file, self.own)) {
            Ok(()) => {
                self.opened.fetch_add(1, Ordering::AcqRel);
            }
            Err(error) => {
                tracing::error!(queue = self.number, "a queue of a disk cannot be opened: {error}");
                self.failed.store(true, Ordering::Release);
            }
        }
    }

    /// Sends what is ready to go, both ways.
    fn send(&mut self, cx: &mut Context<'_>) {
        loop {
            while let Some(request) = self.queue.poll_request() {
                self.channel.submit(cx, request, &mut self.done);
            }
            self.channel.flush(cx, &mut self.done);
            if self.done.is_empty() {
                break;
            }
            self.collect();
        }
        if !self.fetches {
            return;
        }
        while let Some((command, buf)) = self.queue.poll_command() {
            let token = Token { owner: COMMANDS, generation: 0, index: command.tag.into() };
            cx.io.ublk(command, buf, token);
        }
    }
}

impl Core {
    /// Gives what has finished to the queue, and counts what has ended with it.
    fn collect(&mut self) {
        let mut all = std::mem::take(&mut self.done);
        for done in all.drain(..) {
            let ended = self.queue.handle_done(done);
            self.count(ended);
        }
        self.done = all;
    }

    fn count(&self, ended: Option<Ended>) {
        if let Some(Ended { kind, bytes, succeeded, uncopied }) = ended {
            self.counters.count(kind, bytes, succeeded);
            if succeeded && uncopied {
                self.counters.count_uncopied();
            }
        }
    }
}

impl Service for Core {
    type Message = Message;

    fn handle_message(&mut self, cx: &mut Context<'_>, message: Message) {
        match message {
            Message::Open => self.open(cx),
            Message::Fetch => self.fetches = true,
            Message::Resized(bytes) => self.queue.set_bytes(bytes),
            Message::Leave => self.queue.leave(),
            Message::Abandon => self.queue.abandon(),
            Message::Ends => self.queue.end_is_seen(),
        }
    }

    fn handle_completion(&mut self, cx: &mut Context<'_>, completion: Completion) {
        match (completion.token.owner, completion.outcome) {
            (COMMANDS, Outcome::Ublk(fetched, buf)) => {
                if let Ok(tag) = u16::try_from(completion.token.index) {
                    let refused = self.queue.handle_fetched(tag, fetched, buf);
                    self.count(refused);
                }
            }
            (DOUBTS, _) => {
                self.doubts = false;
                self.queue.end_doubts();
            }
            (_, outcome) => {
                let completion = Completion { token: completion.token, outcome };
                self.channel.handle_completion(cx, completion, &mut self.done);
                self.collect();
            }
        }
    }

    fn flush(&mut self, cx: &mut Context<'_>) {
        self.send(cx);
        if let Some(left) = self.left.take_if(|_| self.queue.has_left()) {
            left.fetch_add(1, Ordering::AcqRel);
        }
        if self.queue.ends() {
            self.ended.store(true, Ordering::Release);
        }
        if let Some(error) = self.queue.take_fault() {
            self.failed.store(true, Ordering::Release);
            tracing::error!(
                queue = self.number,
                "the kernel refuses a command of a disk by ublk ({error}): a request on it is not answered any more. Begin the \
                 disk again, or remove it (`raceline disconnect -d`, or ublk_stop_disk of a daemon)"
            );
        }
        if self.queue.has_doubts() && !std::mem::replace(&mut self.doubts, true) {
            let token = Token { owner: DOUBTS, generation: 0, index: 0 };
            cx.io.timer(cx.now + DOUBT_TIME, token);
        }
        if self.queue.is_over() && !self.finished {
            self.finished = true;
            self.counters.queue_ended();
            self.channel.close(cx);
        }
    }

    fn is_finished(&self) -> bool {
        self.finished
    }
}
