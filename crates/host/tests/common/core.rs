//! A host core over real sockets, in turns with the test and, if it wants, a scripted target.

use std::time::{Duration, Instant};

use raceline_host::{
    BlockRange, Command, CommandDone, Controller, ControllerEvent, CorePlace, HostConfig,
    HostError, IoQueueEvent, IoQueueSet, Transport,
};
use raceline_proto::nvme::NamespaceId;
use raceline_reactor::core::{Backend, open_io};
use raceline_reactor::{
    Accelerator, BufferPool, Completion, Context, Io, IoBuf, Outcome, PoolConfig, Token, Wait,
};

use super::{BLOCK, Script, Target};

const NS: NamespaceId = NamespaceId(1);
/// Bound of everything that waits.
const LIMIT: Duration = Duration::from_secs(60);
/// Buffers for commands.
pub const BUFFERS: usize = 130;
const BUFFER_BYTES: usize = 128 << 10;
/// Buffers for receiving beside payloads: one for each connection.
const STAGING_BUFFERS: usize = 2;
/// The controller's connections; those of I/O queues come behind them.
const FIRST: Token = Token { owner: 1, generation: 0, index: 0 };
const IO: Token = Token { index: 2, ..FIRST };

/// A controller and its I/O queues.
pub struct Core {
    pub target: Option<Target>,
    pub io: Box<dyn Io>,
    pub pool: BufferPool,
    pub controller: Controller,
    pub queues: IoQueueSet,
    /// Buffers of the pool.
    all: usize,
    pub done: Vec<CommandDone>,
    pub events: Vec<ControllerEvent>,
    /// Why I/O queues were lost.
    pub lost: Vec<HostError>,
    /// What has come in a turn that was only for sends.
    kept: Vec<Completion>,
    /// The first index of a token under which an answer for an I/O queue may come.
    first_answer: u32,
}

impl Core {
    /// With one I/O queue, connected.
    pub fn new(config: HostConfig, accelerator: Accelerator, target: Option<Target>) -> Self {
        let queues = IoQueueSet::new(&config, 1..=1, IO);
        Self::with_queues(config, accelerator, target, (queues, STAGING_BUFFERS))
    }

    /// With all I/O queues of the configuration, connected to a target that is elsewhere.
    pub fn mapped(config: HostConfig) -> Self {
        let queues = IoQueueSet::mapped(&config, CorePlace::ALONE, IO);
        let staging = 1 + usize::from(config.queue_request().total());
        Self::with_queues(config, Accelerator::default(), None, (queues, staging))
    }

    fn with_queues(
        config: HostConfig,
        accelerator: Accelerator,
        target: Option<Target>,
        (queues, staging): (IoQueueSet, usize),
    ) -> Self {
        let (mut io, _) = open_io(Backend::Auto).unwrap();
        *io.accelerator() = accelerator;
        let all = BUFFERS + staging;
        let classes = [(BUFFER_BYTES, all)];
        let pool = BufferPool::new(&PoolConfig::new(&classes)).unwrap();
        let now = io.now();
        let mut cx = Context { io: &mut *io, pool: &pool, now };
        // The queues of one core share what tells them of news.
        let first_answer = if config.transport == Transport::Rdma { FIRST } else { IO };
        let controller = Controller::connect(&mut cx, config, FIRST);
        let mut core = Self {
            target,
            io,
            pool,
            controller,
            queues,
            all,
            done: Vec::new(),
            events: Vec::new(),
            lost: Vec::new(),
            kept: Vec::new(),
            first_answer: first_answer.index,
        };
        core.until("ready", |core| core.queues.is_ready());
        core
    }

    /// What the target of this thread does.
    pub fn script(&mut self) -> &mut Script {
        &mut self.target.as_mut().expect("a scripted target").script
    }

    pub fn turn(&mut self) {
        if let Some(target) = &mut self.target {
            target.turn(Wait::No);
        }
        let mut completions = std::mem::take(&mut self.kept);
        self.io.poll(Wait::No, &mut completions).unwrap();
        completions.into_iter().for_each(|completion| self.handle(completion));
        self.follow();
        self.with(|_, queues, cx| queues.spin(cx));
    }

    /// Sends go on, and nothing that comes from the target is looked at until the next turn.
    pub fn turn_of_sends(&mut self) {
        let mut completions = Vec::new();
        self.io.poll(Wait::No, &mut completions).unwrap();
        for completion in completions {
            match completion.outcome {
                Outcome::Sent(..) => self.handle(completion),
                _ => self.kept.push(completion),
            }
        }
        self.follow();
    }

    /// Until something has come for an I/O queue, which is not looked at: its sends are over by then.
    #[track_caller]
    pub fn until_answered(&mut self) {
        let start = Instant::now();
        let first = self.first_answer;
        let is_answer = |completion: &Completion| {
            completion.token.index >= first && matches!(completion.outcome, Outcome::Received(..))
        };
        while !self.kept.iter().any(is_answer) {
            assert!(start.elapsed() < LIMIT, "nothing has come");
            self.turn_of_sends();
            std::thread::yield_now();
        }
    }

    fn handle(&mut self, completion: Completion) {
        let now = self.io.now();
        let mut cx = Context { io: &mut *self.io, pool: &self.pool, now };
        if completion.token.index < IO.index {
            self.controller.handle_completion(&mut cx, completion);
        } else {
            self.queues.handle_completion(&mut cx, completion);
        }
    }

    /// Something for the controller or the queues, then everything that follows at once.
    pub fn with<R>(
        &mut self,
        act: impl FnOnce(&mut Controller, &mut IoQueueSet, &mut Context<'_>) -> R,
    ) -> R {
        let now = self.io.now();
        let mut cx = Context { io: &mut *self.io, pool: &self.pool, now };
        let result = act(&mut self.controller, &mut self.queues, &mut cx);
        self.follow();
        result
    }

    fn follow(&mut self) {
        let now = self.io.now();
        let mut cx = Context { io: &mut *self.io, pool: &self.pool, now };
        while let Some(event) = self.controller.poll_event() {
            match &event {
                ControllerEvent::Up(association) => self.queues.handle_up(&mut cx, association),
                ControllerEvent::Down(error) => self.queues.handle_down(&mut cx, error),
                ControllerEvent::Failed(_) => self.queues.close(&mut cx),
                _ => {}
            }
            self.events.push(event);
        }
        while let Some(event) = self.queues.poll_event() {
            if let IoQueueEvent::Lost { cntlid, error, .. } = event {
                self.controller.queue_lost(&mut cx, cntlid, error.clone());
                self.lost.push(error);
            }
        }
        while let Some((_, done)) = self.queues.poll_done() {
            self.done.push(done);
        }
        self.controller.flush(&mut cx);
        self.queues.flush(&mut cx);
    }

    #[track_caller]
    pub fn until(&mut self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        let start = Instant::now();
        while !holds(self) {
            assert!(start.elapsed() < LIMIT, "not in time: {what}");
            self.turn();
            std::thread::yield_now();
        }
    }

    /// Takes a command, which leaves with the next turn.
    pub fn submit(&mut self, command: Command, user: u64) {
        let now = self.io.now();
        let mut cx = Context { io: &mut *self.io, pool: &self.pool, now };
        self.queues.submit(&mut cx, 0, command, user).unwrap();
    }

    pub fn buffer(&self, len: usize) -> IoBuf {
        let mut buf = self.pool.take(len).expect("as many buffers as commands");
        buf.set_len(len);
        buf
    }

    pub fn read(&mut self, slba: u64, blocks: u32, user: u64) {
        let buf = self.buffer(blocks as usize * BLOCK);
        self.submit(Command::read(NS, BlockRange::new(slba, blocks).unwrap(), buf), user);
    }

    pub fn write(&mut self, slba: u64, data: &[u8], user: u64) {
        let blocks = u32::try_from(data.len() / BLOCK).unwrap();
        let mut buf = self.buffer(data.len());
        buf.copy_from_slice(data);
        let range = BlockRange::new(slba, blocks).unwrap();
        self.submit(Command::write(NS, range, buf.share(), false), user);
    }

    #[track_caller]
    pub fn take_done(&mut self, user: u64) -> CommandDone {
        self.until("a command's end", |core| core.done.iter().any(|done| done.user == user));
        let index = self.done.iter().position(|done| done.user == user).unwrap();
        self.done.remove(index)
    }

    /// Closes the queue and the controller; every buffer is back in the pool then.
    #[track_caller]
    pub fn ends_clean(mut self) {
        let now = self.io.now();
        let mut cx = Context { io: &mut *self.io, pool: &self.pool, now };
        self.queues.close(&mut cx);
        self.controller.disconnect(&mut cx);
        self.until("closed", |core| core.queues.is_closed() && core.controller.is_finished());
        self.done.clear();
        self.until("all buffers", |core| core.pool.available_total() == core.all);
    }
}
