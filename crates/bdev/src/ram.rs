//! A device in memory: fast, and gone with the process.
//!
//! Nothing is ever durable here, so a flush has nothing to do and no write cache is advertised:
//! a completed write is as safe as it will ever be.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use raceline_reactor::buffer::HugePages;
use raceline_reactor::flow::policy;
use raceline_reactor::inheritance::{self, Offer};
use raceline_reactor::send::Payload;
use raceline_reactor::{Completion, Context, IoBuf, Region, RegionHandle, Token};
use rustix::fs::MemfdFlags;
use uuid::Uuid;

use crate::limits::Promise;
use crate::{Bdev, BdevError, BdevInfo, Channel, Done, Op, Request};

/// Bytes that are zeroed, given back or copied at once; the rest waits for the next turn, so that a command over the whole
/// device does not hold up the other connections. Clearing them takes about a quarter of a millisecond. All devices of a
/// core together do in one turn what its share is ([`TurnShare`](raceline_reactor::flow::TurnShare)).
const BYTES_AT_ONCE: u64 = 2 << 20;

/// Bytes that a copy within the device makes at once; a longer one waits for the next turn. A Copy of many ranges
/// lets the other connections work between two of them.
const COPY_BYTES_AT_ONCE: u64 = 128 << 10;

/// What a range that is given back counts for besides its bytes: about the system call, in bytes that are cleared.
const BYTES_PER_DISCARD: u64 = 16 << 10;

/// The largest pages that memory has.
const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// Bytes that a device does in a turn whose share others have taken, so that each gets on.
const LEAST_BYTES: u64 = 128 << 10;

/// Bytes that are allocated at a time in the background.
const POPULATE_BYTES_PER_STEP: u64 = 16 << 20;

/// The hint for alignment: the size of a page.
pub(crate) const PAGE_BYTES: u32 = 4096;

/// A device in memory.
pub struct RamBdev {
    region: Arc<Region>,
    info: BdevInfo,
    /// Given back after the memory; none for huge pages, which the kernel itself reserves, and for memory of another
    /// process.
    _promise: Option<Promise>,
    /// A process that takes the place of this one gets the memory.
    _offer: Option<Offer>,
}

impl RamBdev {
    /// A zeroed device of the size in `info`, whose properties are filled in here.
    ///
    /// # Errors
    /// When the memory cannot be mapped.
    pub(crate) fn new(
        info: BdevInfo,
        pages: HugePages,
        promise: Option<Promise>,
    ) -> std::io::Result<Self> {
        let bytes = info.block_count * u64::from(info.block_size);
        let len = usize::try_from(bytes).map_err(|_| std::io::ErrorKind::OutOfMemory)?;
        let is_kept = inheritance::keeps_memory() && pages != HugePages::Explicit;
        let memory = is_kept.then(|| new_memory(len)).transpose()?;
        Self::over(info, (len, pages), promise, memory)
    }

    /// The device over memory of another process, whose place this one takes; `None`: that had none of this identity.
    ///
    /// # Errors
    /// When the memory cannot be mapped.
    pub(crate) fn handed(info: &BdevInfo) -> Option<std::io::Result<Self>> {
        let memory = inheritance::take(&handed_name(info))?;
        let bytes = info.block_count * u64::from(info.block_size);
        let len = usize::try_from(bytes).ok()?;
        Some(Self::over(info.clone(), (len, HugePages::Transparent), None, Some(memory)))
    }

    fn over(
        info: BdevInfo,
        (len, pages): (usize, HugePages),
        promise: Option<Promise>,
        memory: Option<OwnedFd>,
    ) -> std::io::Result<Self> {
        let region = match &memory {
            Some(memory) => Region::of_memory(memory, len, pages)?,
            None => Region::new(len, pages)?,
        };
        let region = Arc::new(region);
        let offer = memory.map(|memory| inheritance::offer_owned(handed_name(&info), memory));
        let info = BdevInfo {
            volatile_write_cache: false,
            deallocate: !info.read_only,
            deallocate_zeroes: !info.read_only,
            reads_in_place: true,
            copies_data: true,
            copies: !info.read_only,
            ..info
        };
        Ok(Self { region, info, _promise: promise, _offer: offer })
    }
}

impl RamBdev {
    /// A writable device of whole blocks of 512 bytes, for measurements that choose the pages
    /// and the contents; [`crate::open`] also looks whether the machine has the memory.
    ///
    /// # Errors
    /// When the memory cannot be mapped.
    pub fn with_pages(bytes: u64, pages: HugePages) -> std::io::Result<Self> {
        const BLOCK_BYTES: u32 = 512;
        let info = BdevInfo {
            name: "ram".to_owned(),
            block_size: BLOCK_BYTES,
            block_count: bytes / u64::from(BLOCK_BYTES),
            physical_block_size: PAGE_BYTES,
            io_boundary_bytes: 0,
            volatile_write_cache: false,
            read_only: false,
            deallocate: true,
            deallocate_zeroes: true,
            copies: true,
            knows_holes: false,
            uncorrectable: false,
            reads_in_place: true,
            copies_data: true,
            numa_node: None,
            uuid: [0; 16],
        };
        let device = Self::new(info, pages, None)?;
        device.populate()?;
        Ok(device)
    }

    /// Has memory that is not allocated yet come from a NUMA node.
    ///
    /// # Errors
    /// When there is no such node, or this process may not use it.
    pub(crate) fn prefer_node(&self, node: usize) -> std::io::Result<()> {
        self.region.prefer_node(node)
    }

    /// Allocates its memory in the background.
    ///
    /// # Errors
    /// When there can be no thread.
    pub(crate) fn populate(&self) -> std::io::Result<()> {
        populate(&self.region)
    }

    /// Its memory.
    #[must_use]
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }
}

/// Memory that other processes can map.
fn new_memory(len: usize) -> std::io::Result<OwnedFd> {
    let memory = rustix::fs::memfd_create("raceline-ram", MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&memory, len.max(1).next_multiple_of(PAGE_BYTES as usize) as u64)?;
    Ok(memory)
}

/// The name under which the memory of a device is handed over.
fn handed_name(info: &BdevInfo) -> String {
    format!("the memory of device {}", Uuid::from_bytes(info.uuid))
}

/// Allocates the memory in the background. If a page is written before its turn, the kernel allocates it
/// during that write, which holds up the core that writes: a huge page takes milliseconds.
fn populate(region: &Arc<Region>) -> std::io::Result<()> {
    let len = region.len() as u64;
    let region: Weak<Region> = Arc::downgrade(region);
    let work = move || {
        let mut offset = 0;
        // The device may be closed meanwhile.
        while offset < len
            && let Some(region) = region.upgrade()
        {
            let step = POPULATE_BYTES_PER_STEP.min(len - offset);
            if let Err(error) = region.populate(offset, step) {
                tracing::debug!("memory is allocated when it is written: {error}");
                return;
            }
            offset += step;
        }
    };
    std::thread::Builder::new().name("ram-populate".into()).spawn(work)?;
    Ok(())
}

impl Bdev for RamBdev {
    fn info(&self) -> BdevInfo {
        self.info.clone()
    }

    fn open_channel(&self, _cx: &mut Context<'_>, owner: u16) -> std::io::Result<Box<dyn Channel>> {
        Ok(Box::new(RamChannel {
            region: RegionHandle::new(Arc::clone(&self.region)),
            read_only: self.info.read_only,
            owner,
            tasks: VecDeque::new(),
        }))
    }
}

struct RamChannel {
    region: RegionHandle,
    read_only: bool,
    owner: u16,
    /// Long ranges, and those that found no share of the turn, in order.
    tasks: VecDeque<Task>,
}

/// The rest of a range to be changed.
struct Task {
    tag: u64,
    offset: u64,
    len: u64,
    kind: TaskKind,
}

enum TaskKind {
    Zero,
    /// Zero, and give the memory back.
    Discard,
    /// Copy what begins here.
    Copy {
        from: u64,
    },
}

impl Task {
    /// Takes a share of the core's turn for its next step.
    fn takes_share(&self, cx: &mut Context<'_>) -> bool {
        let besides = if matches!(self.kind, TaskKind::Discard) { BYTES_PER_DISCARD } else { 0 };
        cx.io.flight().turn.take(cx.now, self.len.min(BYTES_AT_ONCE) + besides)
    }
}

impl RamChannel {
    fn writable(&self) -> Result<(), BdevError> {
        if self.read_only { Err(BdevError::ReadOnly) } else { Ok(()) }
    }

    fn read(&self, offset: u64, len: usize, buf: Option<IoBuf>) -> Payload {
        match buf {
            Some(mut buf) => {
                self.region.copy_out(offset, &mut buf[..len]);
                Payload::Buf(buf, 0..len)
            }
            None => Payload::Region(self.region.clone(), offset..offset + len as u64),
        }
    }

    /// Does a task now, as far as it may, and the rest in later turns.
    fn begin(&mut self, cx: &mut Context<'_>, mut task: Task, done: &mut Vec<Done>) {
        let waits = matches!(task.kind, TaskKind::Copy { .. }) && task.len > COPY_BYTES_AT_ONCE;
        let is_done = self.tasks.is_empty()
            && !waits
            && task.takes_share(cx)
            && self.step(&mut task, BYTES_AT_ONCE);
        if is_done {
            return done.push(Done { tag: task.tag, result: Ok(()), payload: None });
        }
        if self.tasks.is_empty() {
            self.next_turn(cx, cx.now);
        }
        self.tasks.push_back(task);
    }

    /// Does the next bytes of a task, at most so many; gives true when all of it is done.
    fn step(&self, task: &mut Task, most: u64) -> bool {
        let mut len = task.len.min(most);
        if len < task.len && matches!(task.kind, TaskKind::Discard) {
            // Only whole huge pages are given back.
            let end = task.offset + len;
            let end = end - end % HUGE_PAGE_BYTES;
            len = if end > task.offset { end - task.offset } else { len };
        }
        match &mut task.kind {
            TaskKind::Zero => self.region.fill_zero(task.offset, len),
            TaskKind::Discard => self.region.discard(task.offset, len),
            TaskKind::Copy { from } => {
                self.region.copy_within(*from, task.offset, len);
                *from += len;
            }
        }
        task.offset += len;
        task.len -= len;
        task.len == 0
    }

    fn next_turn(&self, cx: &mut Context<'_>, at: Instant) {
        cx.io.timer(at, Token { owner: self.owner, generation: 0, index: 0 });
    }
}

impl Channel for RamChannel {
    fn reads_now(&self) -> bool {
        true
    }

    fn read_now(&mut self, offset: u64, len: usize) -> Option<Payload> {
        Some(self.read(offset, len, None))
    }

    fn prefetch(&mut self, offset: u64, len: usize) {
        let inside =
            offset.checked_add(len as u64).is_some_and(|end| end <= self.region.len() as u64);
        // The processor sees the pattern of a large read soon enough (lab 0044).
        if inside && !policy::is_large(len) {
            self.region.prefetch(offset, len);
        }
    }

    fn writes_now(&self) -> bool {
        true
    }

    fn write_now(&mut self, offset: u64, data: &[u8]) -> Result<(), BdevError> {
        self.writable()?;
        self.region.copy_in_relaxed(offset, data);
        Ok(())
    }

    fn submit(&mut self, cx: &mut Context<'_>, request: Request, done: &mut Vec<Done>) {
        let Request { tag, op } = request;
        let (result, payload) = match op {
            Op::Read { offset, len, buf } => (Ok(()), Some(self.read(offset, len, buf))),
            Op::Write { offset, data, .. } => {
                let result = self.writable().map(|()| self.region.copy_in(offset, &data));
                let len = data.len();
                (result, Some(Payload::Shared(data, 0..len)))
            }
            Op::Flush => (Ok(()), None),
            Op::WriteZeroes { .. } | Op::Deallocate { .. } | Op::Copy { .. } if self.read_only => {
                (Err(BdevError::ReadOnly), None)
            }
            Op::WriteZeroes { offset, len, deallocate, .. } => {
                let kind = if deallocate { TaskKind::Discard } else { TaskKind::Zero };
                return self.begin(cx, Task { tag, offset, len, kind }, done);
            }
            Op::Deallocate { offset, len } => {
                return self.begin(cx, Task { tag, offset, len, kind: TaskKind::Discard }, done);
            }
            Op::Copy { from, to, len, .. } => {
                let kind = TaskKind::Copy { from };
                return self.begin(cx, Task { tag, offset: to, len, kind }, done);
            }
            Op::Find { .. }
            | Op::WriteUncorrectable { .. }
            | Op::ReadPages { .. }
            | Op::WritePages { .. } => (Err(BdevError::NotSupported), None),
        };
        done.push(Done { tag, result, payload });
    }

    fn handle_completion(
        &mut self,
        cx: &mut Context<'_>,
        _completion: Completion,
        done: &mut Vec<Done>,
    ) {
        let (mut most, mut next) = (LEAST_BYTES, cx.now);
        while let Some(mut task) = self.tasks.pop_front() {
            if task.takes_share(cx) {
                // In the next turn, those without a share are first.
                (most, next) = (BYTES_AT_ONCE, cx.now + Duration::from_nanos(1));
            }
            let is_done = most > 0 && self.step(&mut task, most);
            most = 0;
            if !is_done {
                self.tasks.push_front(task);
                break;
            }
            done.push(Done { tag: task.tag, result: Ok(()), payload: None });
        }
        if !self.tasks.is_empty() {
            self.next_turn(cx, next);
        }
    }

    fn close(&mut self, _cx: &mut Context<'_>) {}
}
