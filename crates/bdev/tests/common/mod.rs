//! What the tests share: a scripted `Io`, a driver over the real back ends, and loop devices.
#![allow(dead_code, unreachable_pub, reason = "each test program uses a part")]

use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use raceline_bdev::{
    Bdev, BdevError, Channel, DeviceSpec, Done, Identity, Op, OpenError, Request, SharedBdev,
};
use raceline_reactor::core::{Backend, open_io};
use raceline_reactor::flow::{Flight, SocketClass};
use raceline_reactor::io::{AllocateMode, FileCall, FileId, ListenerId, RecvBuffers, SocketId};
use raceline_reactor::ublk::UblkMove;
use raceline_reactor::{
    Accelerator, BufferPool, Completion, Context, Io, IoBuf, Outcome, Payload, PoolConfig,
    SendBatch, SharedBuf, Socket, Token, Wait, Waker,
};

/// A test that waits longer than this has failed.
const PATIENCE: Duration = Duration::from_secs(30);

/// The owner of channels in tests; any number but 0.
pub const OWNER: u16 = 7;

pub fn open(spec: &str) -> Result<SharedBdev, OpenError> {
    let spec: DeviceSpec = spec.parse().unwrap_or_else(|error| panic!("{error}"));
    raceline_bdev::open(&spec, &Identity::from_seed(b"test"))
}

/// The message of a device that must not open.
pub fn refused(spec: &str) -> String {
    match open(spec) {
        Err(error) => error.to_string(),
        Ok(device) => panic!("{spec} was opened: {:?}", device.info()),
    }
}

pub fn pool() -> BufferPool {
    BufferPool::new(&PoolConfig::new(&[(4096, 16), (1 << 20, 4)])).unwrap()
}

pub fn shared(bytes: &[u8]) -> SharedBuf {
    IoBuf::from_slice(bytes).share()
}

/// The data of a read.
pub fn bytes_of(done: &Done) -> Vec<u8> {
    let payload = done.payload.as_ref().expect("a payload");
    let mut bytes = vec![0xEE; payload.len()];
    payload.copy_to(&mut bytes);
    bytes
}

/// An operation that a channel started on a [`ScriptedIo`].
#[derive(Debug)]
pub enum Started {
    Read(IoBuf, u64),
    Write { data: SharedBuf, offset: u64, durable: bool },
    Move(UblkMove),
    Sync,
    Allocate(AllocateMode, u64, u64),
    Call(Box<FileCall>),
    Timer(Instant),
}

/// An `Io` that does nothing: the test completes what was started, as and when it likes.
pub struct ScriptedIo {
    now: Instant,
    pub started: Vec<(Token, Started)>,
    pub files_open: u32,
    accelerator: Accelerator,
    flight: Flight,
}

impl ScriptedIo {
    pub fn new() -> Self {
        let accelerator = Accelerator::default();
        Self {
            now: Instant::now(),
            started: Vec::new(),
            files_open: 0,
            accelerator,
            flight: Flight::default(),
        }
    }

    pub fn advance(&mut self, by: Duration) {
        self.now += by;
    }
}

impl Io for ScriptedIo {
    fn accelerator(&mut self) -> &mut Accelerator {
        &mut self.accelerator
    }
    fn now(&self) -> Instant {
        self.now
    }
    fn listen(&mut self, _: SocketAddr, _: Token) -> io::Result<(ListenerId, SocketAddr)> {
        unimplemented!("no sockets here")
    }
    fn close_listener(&mut self, _: ListenerId) {
        unimplemented!("no sockets here")
    }
    fn connect(&mut self, _: SocketAddr, _: Option<IpAddr>, _: Token) {
        unimplemented!("no sockets here")
    }
    fn release(&mut self, _: SocketId, _: (SocketAddr, SocketAddr)) -> Option<Socket> {
        None
    }

    fn adopt(&mut self, _: Socket) -> io::Result<SocketId> {
        unimplemented!("no sockets here")
    }
    fn declare(&mut self, _: SocketId, _: SocketClass) {
        unimplemented!("no sockets here")
    }
    fn flight(&mut self) -> &mut Flight {
        &mut self.flight
    }
    fn recv(&mut self, _: SocketId, _: RecvBuffers, _: Token) {
        unimplemented!("no sockets here")
    }
    fn send(&mut self, _: SocketId, _: Box<SendBatch>, _: Token) {
        unimplemented!("no sockets here")
    }
    fn close(&mut self, _: SocketId, _: bool) {
        unimplemented!("no sockets here")
    }
    fn register_file(&mut self, _: Arc<File>) -> FileId {
        self.files_open += 1;
        FileId(3)
    }
    fn close_file(&mut self, _: FileId) {
        self.files_open -= 1;
    }
    fn read(&mut self, _: FileId, buf: IoBuf, offset: u64, token: Token) {
        self.started.push((token, Started::Read(buf, offset)));
    }
    fn write(&mut self, _: FileId, data: SharedBuf, offset: u64, durable: bool, token: Token) {
        self.started.push((token, Started::Write { data, offset, durable }));
    }
    fn sync(&mut self, _: FileId, token: Token) {
        self.started.push((token, Started::Sync));
    }
    fn allocate(&mut self, _: FileId, mode: AllocateMode, offset: u64, len: u64, token: Token) {
        self.started.push((token, Started::Allocate(mode, offset, len)));
    }
    fn move_ublk(&mut self, _: FileId, what: UblkMove, token: Token) {
        self.started.push((token, Started::Move(what)));
    }
    fn call_file(&mut self, _: FileId, call: Box<FileCall>, token: Token) {
        self.started.push((token, Started::Call(call)));
    }
    fn timer(&mut self, at: Instant, token: Token) {
        self.started.push((token, Started::Timer(at)));
    }
    fn poll(&mut self, _: Wait, _: &mut Vec<Completion>) -> io::Result<()> {
        Ok(())
    }
    fn waker(&self) -> Waker {
        Waker::none()
    }
}

/// A channel over a [`ScriptedIo`].
pub struct Script {
    pub io: ScriptedIo,
    pub pool: BufferPool,
    pub channel: Box<dyn Channel>,
    pub done: Vec<Done>,
}

impl Script {
    pub fn new(device: &dyn Bdev) -> Self {
        let (mut io, pool) = (ScriptedIo::new(), pool());
        let now = io.now;
        let mut cx = Context { io: &mut io, pool: &pool, now };
        let channel = device.open_channel(&mut cx, OWNER).unwrap();
        Self { io, pool, channel, done: Vec::new() }
    }

    pub fn submit(&mut self, tag: u64, op: Op) {
        let now = self.io.now;
        let mut cx = Context { io: &mut self.io, pool: &self.pool, now };
        self.channel.submit(&mut cx, Request { tag, op }, &mut self.done);
    }

    /// Completes the oldest operation in flight; gives back what it was, for a look at it.
    pub fn complete(&mut self, errno: Option<i32>) -> String {
        let result = errno.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)));
        self.complete_with(result)
    }

    pub fn complete_with(&mut self, result: io::Result<()>) -> String {
        let (token, started) = self.io.started.remove(0);
        assert_eq!(token.owner, OWNER);
        let text = match &started {
            Started::Read(buf, offset) => format!("read {offset}+{}", buf.len()),
            Started::Write { data, offset, durable } => {
                format!("write{} {offset}+{}", if *durable { " durable" } else { "" }, data.len())
            }
            Started::Move(what) => {
                let UblkMove { tag, writes, durable, offset, len } = what;
                let kind = if *writes { "write" } else { "read" };
                format!("{kind}{} of {tag} {offset}+{len}", if *durable { " durable" } else { "" })
            }
            Started::Sync => "sync".to_owned(),
            Started::Allocate(mode, offset, len) => format!("{mode:?} {offset}+{len}"),
            Started::Call(call) => format!("{call:?}"),
            Started::Timer(at) => format!("timer {:?}", at.duration_since(self.io.now)),
        };
        let outcome = match started {
            Started::Read(buf, _) => Outcome::Read(result, buf),
            Started::Write { data, .. } => Outcome::Written(result, data),
            Started::Sync | Started::Allocate(..) | Started::Move(_) => Outcome::Synced(result),
            Started::Call(call) => Outcome::Called(result, call),
            Started::Timer(_) => Outcome::Timer,
        };
        let now = self.io.now;
        let mut cx = Context { io: &mut self.io, pool: &self.pool, now };
        let completion = Completion { token, outcome };
        self.channel.handle_completion(&mut cx, completion, &mut self.done);
        text
    }

    /// What has finished since the last call: tags and results.
    pub fn results(&mut self) -> Vec<(u64, Result<(), BdevError>)> {
        self.done.drain(..).map(|done| (done.tag, done.result)).collect()
    }

    pub fn close(&mut self) {
        assert!(self.io.started.is_empty(), "{:?}", self.io.started);
        let now = self.io.now;
        let mut cx = Context { io: &mut self.io, pool: &self.pool, now };
        self.channel.close(&mut cx);
        assert_eq!(self.io.files_open, 0);
    }
}

/// A channel over a real back end, one request at a time or several.
pub struct Rig {
    io: Box<dyn Io>,
    pool: BufferPool,
    channel: Box<dyn Channel>,
}

/// Runs a test over every back end of this machine. epoll always works; io_uring may be
/// forbidden.
pub fn each_backend(test: impl Fn(Backend)) {
    test(Backend::Epoll);
    match open_io(Backend::Uring) {
        Ok(_) => test(Backend::Uring),
        Err(error) => eprintln!("SKIPPED: over io_uring: {error}"),
    }
}

impl Rig {
    pub fn new(device: &dyn Bdev, backend: Backend) -> Self {
        let (mut io, _) = open_io(backend).unwrap();
        let pool = pool();
        let now = io.now();
        let mut cx = Context { io: &mut *io, pool: &pool, now };
        let channel = device.open_channel(&mut cx, OWNER).unwrap();
        Self { io, pool, channel }
    }

    /// Runs requests at the same time; gives their ends in the order of the requests.
    pub fn run_all(&mut self, ops: Vec<Op>) -> Vec<Done> {
        let (count, deadline) = (ops.len(), Instant::now() + PATIENCE);
        let (mut done, mut completions) = (Vec::new(), Vec::new());
        let now = self.io.now();
        let mut cx = Context { io: &mut *self.io, pool: &self.pool, now };
        for (tag, op) in (0..).zip(ops) {
            self.channel.submit(&mut cx, Request { tag, op }, &mut done);
        }
        self.channel.flush(&mut cx, &mut done);
        while done.len() < count {
            assert!(Instant::now() < deadline, "{} of {count} requests finished", done.len());
            self.io.poll(Wait::No, &mut completions).unwrap();
            if completions.is_empty() {
                std::thread::sleep(Duration::from_micros(20));
            }
            let now = self.io.now();
            let mut cx = Context { io: &mut *self.io, pool: &self.pool, now };
            for completion in completions.drain(..) {
                assert_eq!(completion.token.owner, OWNER);
                self.channel.handle_completion(&mut cx, completion, &mut done);
            }
            self.channel.flush(&mut cx, &mut done);
        }
        assert_eq!(done.len(), count, "a request finished twice");
        done.sort_by_key(|done| done.tag);
        done
    }

    pub fn run(&mut self, op: Op) -> Done {
        self.run_all(vec![op]).remove(0)
    }

    /// Runs what must work.
    pub fn ok(&mut self, op: Op) -> Done {
        let text = format!("{op:?}");
        let done = self.run(op);
        assert_eq!(done.result, Ok(()), "{text}");
        done
    }

    pub fn read(&mut self, offset: u64, len: usize) -> Vec<u8> {
        bytes_of(&self.ok(read(offset, len)))
    }

    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        let done = self.ok(write(offset, bytes));
        assert!(matches!(done.payload, Some(Payload::Shared(..))), "the buffer comes back");
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let now = self.io.now();
        let mut cx = Context { io: &mut *self.io, pool: &self.pool, now };
        self.channel.close(&mut cx);
    }
}

pub fn read(offset: u64, len: usize) -> Op {
    let mut buf = IoBuf::heap(len);
    buf.fill(0xEE);
    Op::Read { offset, len, buf: Some(buf) }
}

pub fn write(offset: u64, bytes: &[u8]) -> Op {
    Op::Write { offset, data: shared(bytes), fua: false }
}

/// Runs a program; `Err` with its words if it fails or is not there.
pub fn command(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(arguments).output().map_err(|e| e.to_string())?;
    let text = |bytes| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

/// A loop device on a file, detached when dropped.
pub struct Loop(pub PathBuf);

impl Loop {
    /// `None`, with a message, where loop devices are not permitted.
    pub fn new(file: &Path, options: &[&str]) -> Option<Self> {
        let mut arguments = vec!["--find", "--show"];
        arguments.extend_from_slice(options);
        arguments.push(file.to_str().unwrap());
        match command("losetup", &arguments) {
            Ok(path) => Some(Self(path.into())),
            Err(error) => {
                eprintln!("SKIPPED: no loop device: {error}");
                None
            }
        }
    }

    pub fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        if let Err(error) = command("losetup", &["--detach", self.path()]) {
            eprintln!("{} stays: {error}", self.path());
        }
    }
}

/// Something mounted, unmounted when dropped.
pub struct Mount(PathBuf);

impl Mount {
    /// `None`, with a message, where mounting is not permitted.
    pub fn new(kind: &str, options: &str, source: &str, at: &Path) -> Option<Self> {
        match command("mount", &["-t", kind, "-o", options, source, at.to_str().unwrap()]) {
            Ok(_) => Some(Self(at.into())),
            Err(error) => {
                eprintln!("SKIPPED: no mount: {error}");
                None
            }
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // The kernel closes the files of a ring a moment after the ring.
        let give_up = Instant::now() + Duration::from_secs(2);
        while let Err(error) = command("umount", &[self.0.to_str().unwrap()]) {
            if Instant::now() > give_up {
                eprintln!("# {} stays mounted: {error}", self.0.display());
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
