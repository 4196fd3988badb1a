//! A target in this process, and a core with one session, in turns with the test.
#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use raceline_bdev::SharedBdev;
use raceline_initiator::{
    BackoffConfig, Name, Session, SessionConfig, SessionEvent, Task, TaskData, TaskDone,
};
use raceline_reactor::core::{Backend, open_io};
use raceline_reactor::{BufferPool, Context, Io, IoBuf, PoolConfig, Token, Wait};
use raceline_target::{
    InitiatorGroupConfig, LunConfig, PortalGroupConfig, PortalMap, Target, TargetConfig,
    TargetNodeConfig,
};

pub const TARGET: &str = "iqn.2026-01.io.raceline:test";
pub const INITIATOR: &str = "iqn.2026-01.io.raceline:initiator";
/// Bound of everything that waits.
pub const LIMIT: Duration = Duration::from_secs(30);
pub const BLOCK: usize = 512;

pub fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

pub fn config(address: SocketAddr) -> SessionConfig {
    SessionConfig {
        backoff: BackoffConfig {
            first: Duration::from_millis(10),
            longest: Duration::from_millis(50),
            give_up_after: Some(LIMIT),
        },
        ..SessionConfig::new(address, name(INITIATOR), Some(name(TARGET)))
    }
}

pub fn ram(size: &str) -> SharedBdev {
    let identity = raceline_bdev::Identity::of_this_machine();
    raceline_bdev::open(&format!("ram:{size}").parse().unwrap(), &identity).unwrap()
}

/// Small pools, one core that sleeps when idle.
pub fn target_config() -> TargetConfig {
    TargetConfig {
        cores: vec![0],
        mode: raceline_reactor::Mode::Interrupt,
        large_buffers_per_core: 16,
        small_buffers_per_core: 64,
        ..TargetConfig::default()
    }
}

/// A target node with these LUNs at `address`, and where it listens.
pub fn serve_at(address: SocketAddr, devices: Vec<SharedBdev>) -> (Target, SocketAddr) {
    let target = Target::start(target_config()).unwrap();
    let iscsi = target.iscsi();
    iscsi.set_initiator_group(InitiatorGroupConfig::any(1)).unwrap();
    let group = PortalGroupConfig { wait: true, ..PortalGroupConfig::new(1, vec![address]) };
    iscsi.add_portal_group(group).unwrap();
    let luns = devices.into_iter().map(LunConfig::new).collect();
    let maps = vec![PortalMap { portal_group: 1, initiator_group: 1 }];
    let node = TargetNodeConfig { maps, luns, ..TargetNodeConfig::new(TARGET) };
    iscsi.add_target_node(node).unwrap();
    let portals = Target::listen_after_restart(|| iscsi.start_portal_group(1)).unwrap();
    (target, portals[0])
}

/// An address of the caller's own: nobody else takes its port while nobody listens there.
pub fn own_address() -> SocketAddr {
    static COUNT: AtomicU8 = AtomicU8::new(1);
    let [low, high, ..] = std::process::id().to_le_bytes();
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    assert!(count > 0, "a process has 255 of them");
    SocketAddr::from(([127, count, high, low.max(1)], 0))
}

pub fn serve(devices: Vec<SharedBdev>) -> (Target, SocketAddr) {
    serve_at(own_address(), devices)
}

/// Bytes that a seed makes.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..len).map(|_| next()).collect()
}

/// A core with one session.
pub struct Core {
    pub io: Box<dyn Io>,
    pub pool: BufferPool,
    pub session: Session,
    pub done: Vec<TaskDone>,
    pub events: Vec<SessionEvent>,
}

impl Core {
    pub fn new(config: SessionConfig) -> Self {
        let (mut io, _) = open_io(Backend::Auto).unwrap();
        let pool = BufferPool::new(&PoolConfig::new(&[(128 << 10, 4)])).unwrap();
        let token = Token { owner: 1, generation: 0, index: 0 };
        let now = io.now();
        let mut cx = Context { io: &mut *io, pool: &pool, now };
        let session = Session::connect(&mut cx, Arc::new(config), token);
        Self { io, pool, session, done: Vec::new(), events: Vec::new() }
    }

    /// Logged in.
    pub fn ready(config: SessionConfig) -> Self {
        let mut core = Self::new(config);
        core.until("the login", |core| core.session.is_ready());
        core
    }

    fn with<T>(&mut self, act: impl FnOnce(&mut Session, &mut Context<'_>) -> T) -> T {
        let now = self.io.now();
        let mut cx = Context { io: &mut *self.io, pool: &self.pool, now };
        act(&mut self.session, &mut cx)
    }

    pub fn turn(&mut self) {
        let mut completions = Vec::new();
        self.io.poll(Wait::No, &mut completions).unwrap();
        self.with(|session, cx| {
            for completion in completions {
                session.handle_completion(cx, completion);
            }
            session.flush(cx);
        });
        while let Some(done) = self.session.poll_done() {
            self.done.push(done);
        }
        while let Some(event) = self.session.poll_event() {
            self.events.push(event);
        }
    }

    #[track_caller]
    pub fn until(&mut self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        let start = Instant::now();
        while !holds(self) {
            assert!(start.elapsed() < LIMIT, "not in time: {what}; {:?}", self.events);
            self.turn();
            std::thread::yield_now();
        }
    }

    #[track_caller]
    pub fn submit(&mut self, task: Task, user: u64) {
        self.with(|session, cx| session.submit(cx, task, user)).unwrap();
    }

    pub fn read(&mut self, lba: u64, blocks: u32, user: u64) {
        let buf = IoBuf::heap(blocks as usize * BLOCK);
        self.submit(Task::read(lba, blocks, buf), user);
    }

    pub fn write(&mut self, lba: u64, data: &[u8], user: u64) {
        let blocks = u32::try_from(data.len() / BLOCK).unwrap();
        let buf = IoBuf::from_slice(data).share();
        self.submit(Task::write(lba, blocks, buf, false), user);
    }

    #[track_caller]
    pub fn take_done(&mut self, user: u64) -> TaskDone {
        self.until("a task's end", |core| core.done.iter().any(|done| done.user == user));
        let index = self.done.iter().position(|done| done.user == user).unwrap();
        self.done.remove(index)
    }

    /// Reads blocks, which has to work.
    #[track_caller]
    pub fn data(&mut self, lba: u64, blocks: u32) -> Vec<u8> {
        self.read(lba, blocks, u64::MAX);
        let done = self.take_done(u64::MAX);
        assert_eq!(done.result, Ok(blocks * u32::try_from(BLOCK).unwrap()));
        let TaskData::Read(buf) = done.data else { panic!("a read without its buffer") };
        buf.to_vec()
    }

    pub fn close(&mut self) {
        self.with(|session, cx| session.close(cx));
        self.until("closed", |core| core.session.is_closed());
    }

    /// The last loss, in words.
    pub fn lost(&self) -> Option<String> {
        self.events.iter().rev().find_map(|event| match event {
            SessionEvent::Lost(error) | SessionEvent::Failed(error) => Some(error.to_string()),
            _ => None,
        })
    }
}
