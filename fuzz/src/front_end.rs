//! A front end that lies, and its guest, against a vhost-user server: messages with descriptors, rings of nonsense, memory
//! that changes or goes away. Whatever they do, the connection ends, and the next guest finds its disk.

use std::fs::File;
use std::io::Read as _;
use std::net::Shutdown;
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};
use vmm_sys_util::sock_ctrl_msg::ScmSocket as _;

/// A front end that behaves, which the tests of the server have as well.
#[path = "../../crates/vhost/tests/server/guest.rs"]
#[allow(dead_code, reason = "tests use the rest of it")]
mod guest;

use guest::{Bed, DATA, Guest, Layout, MEMORY, Memory, PATIENCE, READ, SIZE, USER, USUAL, WRITE};

/// Rings of the device.
const QUEUES: u8 = 4;
/// Steps of one input.
const MAX_STEPS: usize = 96;
/// How long a core may take to see a kick of a ring that runs. A ring that does not run never sees it.
const KICK_TIME: Duration = Duration::from_millis(5);

static BED: LazyLock<Bed> = LazyLock::new(|| Bed::start("ram:1M", |_| {}));

/// What is left of an input.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    fn byte(&mut self) -> Option<u8> {
        self.bytes().map(|[byte]| byte)
    }

    fn short(&mut self) -> Option<u16> {
        self.bytes().map(u16::from_le_bytes)
    }

    fn slice(&mut self, len: usize) -> &[u8] {
        let (now, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        now
    }

    /// A number that means something to the server more often than any number would.
    fn number(&mut self) -> Option<u64> {
        let (near, small) = (self.byte()?, u64::from(self.byte()?));
        Some(match near % 12 {
            0 | 1 => small,
            2 => 1 << (small % 64),
            3 => MEMORY,
            4 => MEMORY - small,
            5 => DATA + small * 8,
            6 => USER + small * 0x1000,
            7 => USER + MEMORY - small,
            8 => u64::MAX - small,
            9 => 4096 * small,
            10 => u64::from(self.short()?) << 4,
            _ => u64::from_le_bytes(self.bytes()?),
        })
    }
}

/// The two ends of one input.
struct Liar {
    stream: UnixStream,
    memory: Memory,
    kicks: Vec<EventFd>,
    interrupts: Vec<EventFd>,
    /// What it says that was in flight.
    flight: File,
    /// Sockets that it gave away: a server that talks to them finds nobody.
    sockets: Vec<UnixStream>,
}

impl Liar {
    fn new() -> Self {
        let stream = UnixStream::connect(BED.path()).expect("the server listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time is set");
        stream.set_write_timeout(Some(PATIENCE)).expect("a time is set");
        let counter = || EventFd::new(EFD_NONBLOCK).expect("a counter");
        let counters = || (0..QUEUES).map(|_| counter());
        let flight = tempfile::tempfile().expect("a file");
        flight.set_len(1 << 16).expect("a length is set");
        Self {
            stream,
            memory: Memory::new(),
            kicks: counters().collect(),
            interrupts: counters().collect(),
            flight,
            sockets: Vec::new(),
        }
    }

    /// A message; false once the server has gone.
    fn send(&self, code: u32, flags: u32, body: &[u8], files: &[RawFd]) -> bool {
        let len = u32::try_from(body.len()).expect("messages are short");
        let mut message: Vec<u8> = [code, flags, len].map(u32::to_le_bytes).concat();
        message.extend(body);
        self.stream.send_with_fds(&[&message[..]], files).is_ok()
    }

    /// A message of version 1 with these words.
    fn say(&self, code: u32, words: &[u64], files: &[RawFd]) -> bool {
        let body: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.send(code, 1, &body, files)
    }

    /// One of the descriptors that a message may bring.
    fn file(&mut self, kind: u8) -> RawFd {
        let queue = usize::from(kind / 8 % QUEUES);
        match kind % 8 {
            0 | 1 => self.memory.file.as_raw_fd(),
            2 => self.kicks[queue].as_raw_fd(),
            3 => self.interrupts[queue].as_raw_fd(),
            4 | 5 => self.flight.as_raw_fd(),
            6 => self.stream.as_raw_fd(),
            _ => {
                let (given, kept) = UnixStream::pair().expect("a pair of sockets");
                self.sockets.extend([given, kept]);
                self.sockets[self.sockets.len() - 2].as_raw_fd()
            }
        }
    }

    /// The table of the guest's memory, as it is.
    fn share(&self) -> bool {
        self.say(5, &[1, 0, MEMORY, USER, 0], &[self.memory.file.as_raw_fd()])
    }

    /// All that a ring needs, as it is.
    fn start_ring(&self, queue: u8) -> bool {
        let (layout, index) = (Layout::of(queue.into()), u64::from(queue));
        let number = |value: u64| index | value << 32;
        let kick = self.kicks[usize::from(queue)].as_raw_fd();
        let interrupt = self.interrupts[usize::from(queue)].as_raw_fd();
        let places = [layout.descriptors, layout.used, layout.available].map(|place| USER + place);
        self.say(8, &[number(SIZE.into())], &[])
            && self.say(10, &[number(0)], &[])
            && self.say(9, &[index, places[0], places[1], places[2], 0], &[])
            && self.say(13, &[index], &[interrupt])
            && self.say(12, &[index], &[kick])
            && self.say(18, &[number(1)], &[])
    }

    /// Kicks a ring, and waits until a core has seen it or does not look.
    fn kick(&self, queue: u8) {
        let kick = &self.kicks[usize::from(queue)];
        // A counter that is full was kicked.
        let _ = kick.write(1);
        // Who reads a counter sets it to zero: so it is only looked at.
        let place = format!("/proc/self/fdinfo/{}", kick.as_raw_fd());
        let end = Instant::now() + KICK_TIME;
        while Instant::now() < end {
            let info = std::fs::read_to_string(&place).unwrap_or_default();
            if !info.lines().any(|line| line.starts_with("eventfd-count:") && !line.ends_with(" 0"))
            {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// Memory that the server sees at the same time. What is outside of it stays outside.
    fn put(&self, at: u64, bytes: &[u8]) {
        if at.checked_add(bytes.len() as u64).is_some_and(|end| end <= MEMORY) {
            self.memory.put(at, bytes);
        }
    }

    /// A request that is right, at an entry of the available ring.
    fn post(&self, queue: u8, (kind, sector): (u32, u64), (address, len): (u64, u32), entry: u16) {
        let (layout, own) =
            (Layout::of(queue.into()), DATA - 0x1_0000 + 32 * u64::from(entry % 16));
        let first = entry % 16 * 4;
        let mut header: Vec<u8> = [kind, 0].map(u32::to_le_bytes).concat();
        header.extend(sector.to_le_bytes());
        self.put(own, &header);
        let device_writes = if kind == WRITE { 0 } else { 2 };
        let parts = [
            ((own, 16), 1, first + 1),
            ((address, len), 1 | device_writes, first + 2),
            ((own + 16, 1), 2, 0),
        ];
        for (place, ((address, len), flags, next)) in (u64::from(first)..).zip(parts) {
            self.descriptor(layout.descriptors + 16 * place, (address, len), (flags, next));
        }
        self.put(layout.available + 4 + 2 * u64::from(entry % SIZE), &first.to_le_bytes());
    }

    fn descriptor(&self, at: u64, (address, len): (u64, u32), (flags, next): (u16, u16)) {
        let mut bytes = address.to_le_bytes().to_vec();
        bytes.extend(len.to_le_bytes());
        bytes.extend([flags, next].map(u16::to_le_bytes).concat());
        self.put(at, &bytes);
    }

    /// A step of the front end: a message.
    fn message(&mut self, kind: u8, input: &mut Input<'_>) -> Option<bool> {
        let queue = input.byte()? % QUEUES;
        Some(match kind {
            0 => self.say(2, &[input.number()?], &[]),
            1 => self.say(16, &[input.number()?], &[]),
            2 => self.share(),
            3 | 4 => self.start_ring(queue),
            5 => self.say(11, &[u64::from(queue)], &[]),
            // What was in flight, and where.
            6 => {
                use std::os::unix::fs::FileExt as _;
                let at = u64::from(input.short()?);
                let len = usize::from(input.byte()?);
                self.flight.write_all_at(input.slice(len), at).ok()?;
                let (len, at) = (input.number()?, input.number()?);
                let shape = u64::from(input.short()?) | u64::from(SIZE) << 16;
                let body: Vec<u8> = [len, at, shape].map(u64::to_le_bytes).concat();
                self.send(32, 1, &body[..20], &[self.flight.as_raw_fd()])
            }
            // A known code, with words and files of all kinds.
            7 | 8 => {
                let (code, count, files) = (input.byte()? % 46, input.byte()?, input.byte()?);
                let mut body = Vec::new();
                for _ in 0..count % 9 {
                    body.extend(input.number()?.to_le_bytes());
                }
                // Some messages have a body that is no number of words.
                body.truncate(body.len().saturating_sub(usize::from(count / 9 % 8)));
                let mut given = Vec::new();
                for _ in 0..files % 5 {
                    let kind = input.byte()?;
                    given.push(self.file(kind));
                }
                let flags = [1, 1, 1, 9, 5, 0, 2, u32::from(files)][usize::from(files / 5) % 8];
                self.send(code.into(), flags, &body, &given)
            }
            // No message at all.
            _ => {
                let len = usize::from(input.byte()?);
                let bytes = input.slice(len).to_vec();
                self.stream.send_with_fds(&[&bytes[..]], &[]).is_ok()
            }
        })
    }

    /// A step of the guest: its memory, and kicks.
    fn act(&self, kind: u8, input: &mut Input<'_>) -> Option<()> {
        let queue = input.byte()? % QUEUES;
        let layout = Layout::of(queue.into());
        match kind {
            0 => self.kick(queue),
            1 => {
                let at = layout.descriptors + 16 * u64::from(input.byte()?);
                let (address, len) = (input.number()?, input.number()?);
                let len = u32::try_from(len & 0xffff_ffff).unwrap_or(u32::MAX);
                let (flags, next) = (input.byte()?, input.byte()?);
                let flags = if flags < 200 { u16::from(flags % 8) } else { u16::from(flags) << 5 };
                self.descriptor(at, (address, len), (flags, next.into()));
            }
            2 => {
                let entry = u64::from(input.byte()? % 64);
                self.put(layout.available + 4 + 2 * entry, &input.short()?.to_le_bytes());
            }
            3 => {
                let index = input.byte()?;
                let index = if index < 250 { u16::from(index) } else { input.short()? };
                self.put(layout.available + 2, &index.to_le_bytes());
            }
            4 => {
                let (at, len) = (input.number()?, input.byte()?);
                self.put(at, input.slice(len.into()));
            }
            // Requests that are right but for their numbers.
            5 => {
                let (kind, entry) = (u32::from(input.byte()? % 14), u16::from(input.byte()? % 16));
                let (sector, len) = (input.number()?, input.number()?);
                let len = u32::try_from(len & 0xffff_ffff).unwrap_or(u32::MAX);
                self.post(queue, (kind, sector), (DATA, len), entry);
            }
            // One that is right.
            6 => {
                let (what, entry) = (input.byte()?, u16::from(input.byte()? % 16));
                let kind = if what % 2 == 0 { READ } else { WRITE };
                self.post(queue, (kind, what.into()), (DATA, 512 * u32::from(what / 8)), entry);
            }
            // The memory goes away; the front end itself does not touch what is lost.
            _ => {
                let _ = self.memory.file.set_len(input.number()?.max(DATA).min(MEMORY));
            }
        }
        Some(())
    }

    /// Says no more, and waits until the server has let go of everything.
    fn end(mut self) {
        // The server may have closed it.
        let _ = self.stream.shutdown(Shutdown::Write);
        let end = Instant::now() + PATIENCE;
        let mut answers = [0; 4096];
        loop {
            match self.stream.read(&mut answers) {
                Ok(0) => break,
                Ok(_) => assert!(Instant::now() < end, "the server does not stop talking"),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break,
                Err(error) => {
                    panic!("the server does not let go of a front end that has gone: {error}")
                }
            }
        }
    }
}

/// One front end with its guest; the first byte says whether a guest that behaves comes after it.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let Some(first) = input.byte() else { return };
    let mut liar = Liar::new();
    if first & 1 != 0 {
        liar.share();
        liar.start_ring(0);
    }
    for _ in 0..MAX_STEPS {
        let Some(step) = input.byte() else { break };
        let done = match step % 18 {
            message @ 0..=9 => liar.message(message, &mut input),
            action => liar.act(action - 10, &mut input).map(|()| true),
        };
        if done != Some(true) {
            break;
        }
    }
    liar.end();
    assert!(BED.server().is_running(), "a core has ended");
    if first & 6 == 0 {
        let mut guest = Guest::boot(&BED.path(), USUAL);
        let data: Vec<u8> = (0..=255).cycle().skip(first.into()).take(8192).collect();
        assert_eq!(guest.write(0, 64, &data), 0, "a guest that behaves is refused");
        assert!(guest.read(1, 64, 8192) == data, "a guest that behaves reads something else");
    }
}
