//! A host core over real sockets, in turns with the test and, if it wants, a scripted target.

use std::time::{Duration, Instant};

use raceline_host::{
    BlockRange, Command, CommandDone, Controller, ControllerEvent, HostConfig, IoQueueEvent,
    IoQueueSet,
};
use raceline_proto::nvme::NamespaceId;
use raceline_reactor::core::{Backend, open_io};
use raceline_reactor::{Accelerator, BufferPool, Context, Io, IoBuf, PoolConfig, Token, Wait};

use super::{BLOCK, Script, Target};

const NS: NamespaceId = NamespaceId(1);
/// Bound of everything that waits.
const LIMIT: Duration = Duration::from_secs(60);
/// Buffers for commands.
pub const BUFFERS: usize = 130;
const BUFFER_BYTES: usize = 128 << 10;
/// Buffers for receiving beside payloads: of two connections.
const STAGING_BUFFERS: usize = 2;

/// A controller and one I/O queue.
pub struct Core {
    pub target: Option<Target>,
    pub io: Box<dyn Io>,
    pub pool: BufferPool,
    pub controller: Controller,
    pub queues: IoQueueSet,
    pub done: Vec<CommandDone>,
}

impl Core {
    /// Connected.
    pub fn new(config: HostConfig, accelerator: Accelerator, target: Option<Target>) -> Self {
        let (mut io, _) = open_io(Backend::Auto).unwrap();
        *io.accelerator() = accelerator;
        let classes = [(BUFFER_BYTES, BUFFERS + STAGING_BUFFERS)];
        let pool = BufferPool::new(&PoolConfig::new(&classes)).unwrap();
        let token = Token { owner: 1, generation: 0, index: 0 };
        let queues = IoQueueSet::new(&config, 1..=1, Token { index: 2, ..token });
        let now = io.now();
        let mut cx = Context { io: &mut *io, pool: &pool, now };
        let controller = Controller::connect(&mut cx, config, token);
        let mut core = Self { target, io, pool, controller, queues, done: Vec::new() };
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
        let mut completions = Vec::new();
        self.io.poll(Wait::No, &mut completions).unwrap();
        let now = self.io.now();
        let mut cx = Context { io: &mut *self.io, pool: &self.pool, now };
        for completion in completions {
            if completion.token.index < 2 {
                self.controller.handle_completion(&mut cx, completion);
            } else {
                self.queues.handle_completion(&mut cx, completion);
            }
        }
        while let Some(event) = self.controller.poll_event() {
            match &event {
                ControllerEvent::Up(association) => self.queues.handle_up(&mut cx, association),
                ControllerEvent::Down(error) => self.queues.handle_down(&mut cx, error),
                ControllerEvent::Failed(_) => self.queues.close(&mut cx),
                _ => {}
            }
        }
        while let Some(event) = self.queues.poll_event() {
            if let IoQueueEvent::Lost { cntlid, error, .. } = &event {
                self.controller.queue_lost(&mut cx, *cntlid, error.clone());
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

    fn submit(&mut self, command: Command, user: u64) {
        let now = self.io.now();
        let mut cx = Context { io: &mut *self.io, pool: &self.pool, now };
        self.queues.submit(&mut cx, 0, command, user).unwrap();
    }

    fn buffer(&self, len: usize) -> IoBuf {
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
        let all = BUFFERS + STAGING_BUFFERS;
        self.until("all buffers", |core| core.pool.available_total() == all);
    }
}
