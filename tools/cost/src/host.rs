//! The production host, or the production initiator, and the program that uses it.

use std::sync::Arc;

use anyhow::Result;
use raceline_host::{
    Command, Controller, ControllerEvent, Data, HostConfig, PathId, PathSet, PathSetEvent,
};
use raceline_initiator::{Session, SessionConfig, SessionEvent, Task, TaskData};
use raceline_proto::host::command::BlockRange;
use raceline_proto::nvme::NamespaceId;
use raceline_reactor::sim::Random;
use raceline_reactor::{
    BufferPool, Completion, Context, Io, IoBuf, PoolConfig, SharedBuf, Token, Wait,
};

use crate::memory_io::MemoryIo;
use crate::shape::Shape;
use crate::world::{BLOCK_BYTES, DEVICE_BYTES};

/// Fixed, so that every run reads and writes the same places.
const SEED: u64 = 1;
/// Index of the I/O queue in tokens; the controller has two below.
const FIRST_QUEUE_INDEX: u32 = 2;
/// Buffers of the host's pool, as in `raceline perf`.
const POOL: &[(usize, usize)] = &[(128 << 10, 8)];

/// How the host goes to the target.
pub(crate) enum Way {
    NvmeTcp(HostConfig),
    Iscsi(SessionConfig),
}

/// What carries the I/Os.
#[expect(clippy::large_enum_variant, reason = "there is one of it")]
pub(crate) enum Link {
    NvmeTcp { controller: Controller, queues: PathSet },
    Iscsi(Session),
}

/// The host, and the program that uses it.
pub(crate) struct Host {
    // Owners of buffers are dropped before the pool.
    pub(crate) link: Link,
    pub(crate) program: Program,
    completions: Vec<Completion>,
    pub(crate) io: MemoryIo,
    pub(crate) pool: BufferPool,
}

/// Issues one shape of I/O.
pub(crate) struct Program {
    shape: Shape,
    random: Random,
    read_buffers: Vec<IoBuf>,
    write_buffers: Vec<SharedBuf>,
    to_submit: usize,
    finished: usize,
    failure: Option<String>,
}

/// One I/O of a program.
struct Work {
    first_block: u64,
    blocks: u32,
    buffer: Buffer,
}

enum Buffer {
    Read(IoBuf),
    Write(SharedBuf),
}

impl Host {
    pub(crate) fn start(shape: Shape, mut io: MemoryIo, way: Way) -> Result<Self> {
        let pool = BufferPool::new(&PoolConfig::new(POOL))?;
        let token = Token { owner: 0, generation: 0, index: 0 };
        let now = io.now();
        let mut cx = Context { io: &mut io, pool: &pool, now };
        let link = match way {
            Way::NvmeTcp(config) => {
                let first_queue = Token { index: FIRST_QUEUE_INDEX, ..token };
                let queues = PathSet::new(&cx, &config, 1..=config.io_queues, first_queue);
                let controller = Controller::connect(&mut cx, config, token);
                Link::NvmeTcp { controller, queues }
            }
            Way::Iscsi(config) => Link::Iscsi(Session::connect(&mut cx, Arc::new(config), token)),
        };
        let (completions, program) = (Vec::with_capacity(1024), Program::new(shape));
        Ok(Self { link, program, completions, io, pool })
    }

    pub(crate) fn is_ready(&self) -> bool {
        match &self.link {
            Link::NvmeTcp { controller, queues } => {
                controller.association().is_some() && queues.is_ready()
            }
            Link::Iscsi(session) => session.is_ready(),
        }
    }

    /// One turn of its loop.
    pub(crate) fn turn(&mut self) -> Result<()> {
        self.io.poll(Wait::No, &mut self.completions)?;
        let now = self.io.now();
        let Self { link, program, completions, io, pool } = self;
        let mut cx = Context { io, pool, now };
        match link {
            Link::NvmeTcp { controller, queues } => {
                turn_nvme((controller, queues), program, &mut cx, completions);
            }
            Link::Iscsi(session) => turn_iscsi(session, program, &mut cx, completions),
        }
        Ok(())
    }
}

fn turn_nvme(
    (controller, queues): (&mut Controller, &mut PathSet),
    program: &mut Program,
    cx: &mut Context<'_>,
    completions: &mut Vec<Completion>,
) {
    for completion in completions.drain(..) {
        if completion.token.index < FIRST_QUEUE_INDEX {
            controller.handle_completion(cx, completion);
        } else {
            queues.handle_completion(cx, completion);
        }
    }
    while let Some(event) = controller.poll_event() {
        match event {
            ControllerEvent::Up(association) => {
                queues.handle_up(cx, PathId::FIRST, &association);
            }
            ControllerEvent::Down(error) | ControllerEvent::Failed(error) => {
                program.failure = Some(format!("the controller is lost: {error}"));
            }
            _ => {}
        }
    }
    while let Some(event) = queues.poll_event() {
        if let PathSetEvent::Lost { error, .. } = event {
            program.failure = Some(format!("the queue is lost: {error}"));
        }
    }
    while let Some((_, done)) = queues.poll_done() {
        if let Err(error) = &done.result {
            program.failure = Some(format!("{}: {error}", done.summary));
        }
        program.finish(match done.data {
            Data::Read(buf) => Some(Buffer::Read(buf)),
            Data::Write(buf) => Some(Buffer::Write(buf)),
            Data::None => None,
        });
    }
    while let Some(work) = program.next_work() {
        let Some(range) = BlockRange::new(work.first_block, work.blocks) else { return };
        let command = match work.buffer {
            Buffer::Read(buf) => Command::read(NamespaceId(1), range, buf),
            Buffer::Write(buf) => Command::write(NamespaceId(1), range, buf, false),
        };
        if let Err(rejected) = queues.submit(cx, 0, command, 0) {
            program.failure = Some(format!("the queue does not take it: {}", rejected.reason));
            return;
        }
    }
    controller.flush(cx);
    queues.flush(cx);
}

fn turn_iscsi(
    session: &mut Session,
    program: &mut Program,
    cx: &mut Context<'_>,
    completions: &mut Vec<Completion>,
) {
    for completion in completions.drain(..) {
        session.handle_completion(cx, completion);
    }
    while let Some(event) = session.poll_event() {
        if let SessionEvent::Lost(error) | SessionEvent::Failed(error) = event {
            program.failure = Some(format!("the session is lost: {error}"));
        }
    }
    while let Some(done) = session.poll_done() {
        if let Err(error) = &done.result {
            program.failure = Some(format!("a command failed: {error}"));
        }
        program.finish(match done.data {
            TaskData::Read(buf) => Some(Buffer::Read(buf)),
            TaskData::Write(buf) => Some(Buffer::Write(buf)),
            TaskData::None => None,
        });
    }
    while let Some(work) = program.next_work() {
        let task = match work.buffer {
            Buffer::Read(buf) => Task::read(work.first_block, work.blocks, buf),
            Buffer::Write(buf) => Task::write(work.first_block, work.blocks, buf, false),
        };
        if let Err(rejected) = session.submit(cx, task, 0) {
            program.failure = Some(format!("the session does not take it: {rejected}"));
            return;
        }
    }
    session.flush(cx);
}

impl Program {
    fn new(shape: Shape) -> Self {
        let buffer = || IoBuf::heap(shape.bytes);
        let count = |wanted: bool| if wanted { shape.depth } else { 0 };
        Self {
            shape,
            random: Random::new(SEED),
            read_buffers: (0..count(!shape.is_write)).map(|_| buffer()).collect(),
            write_buffers: (0..count(shape.is_write)).map(|_| buffer().share()).collect(),
            to_submit: 0,
            finished: 0,
            failure: None,
        }
    }

    /// Lets it do this many I/Os.
    pub(crate) fn begin(&mut self, count: usize) {
        self.to_submit = count;
        self.finished = 0;
    }

    pub(crate) fn has_finished(&self, count: usize) -> bool {
        self.finished == count
    }

    pub(crate) fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    #[expect(clippy::inline_always, reason = "a program costs the same over each protocol")]
    #[inline(always)]
    fn finish(&mut self, buffer: Option<Buffer>) {
        self.finished += 1;
        match buffer {
            Some(Buffer::Read(buf)) => self.read_buffers.push(buf),
            Some(Buffer::Write(buf)) => self.write_buffers.push(buf),
            None => {}
        }
    }

    /// An I/O at a random place, if one is wanted and a buffer is free.
    #[expect(clippy::inline_always, reason = "a program costs the same over each protocol")]
    #[inline(always)]
    fn next_work(&mut self) -> Option<Work> {
        if self.to_submit == 0 {
            return None;
        }
        let buffer = if self.shape.is_write {
            Buffer::Write(self.write_buffers.pop()?)
        } else {
            Buffer::Read(self.read_buffers.pop()?)
        };
        self.to_submit -= 1;
        let blocks = self.shape.bytes / BLOCK_BYTES;
        let slots = DEVICE_BYTES / self.shape.bytes as u64;
        let first_block = self.random.below(slots) * blocks as u64;
        Some(Work { first_block, blocks: u32::try_from(blocks).ok()?, buffer })
    }
}
