//! Queues and the operations on them.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_void};
use std::ptr::{NonNull, null_mut};
use std::time::Duration;

use ::raceline_host::caller::{Finished, Memory, Operation, Refusal, Refused};
use ::raceline_host::{
    BlockRange, CallerOptions, CallerQueues, CommandError, CommandSummary, HostError,
};
use raceline_proto::nvme::opcode::io;
use raceline_proto::nvme::{NamespaceId, Status};

use crate::boundary::{check, guard, read, write};
use crate::config::sized;
use crate::handle::{Exclusive, Named};
use crate::host::{host_of, raceline_host};
use crate::status::{
    Failure, RACELINE_COMMAND_FAILED, RACELINE_DIGEST, RACELINE_NOT_SENT, RACELINE_OK,
    RACELINE_TIMEOUT, RACELINE_UNKNOWN_FATE, code_of,
};

/// Flag of an operation: it goes to a poll queue, where there are some.
pub const RACELINE_POLLED: u32 = 1;
/// Flag of writes and write zeroes: the blocks are on stable media when it completes.
pub const RACELINE_FUA: u32 = 2;
/// Flag of write zeroes: the controller may free the blocks.
pub const RACELINE_DEALLOCATE: u32 = 4;

/// Queues with their connections, for one thread at a time.
pub struct raceline_queues {
    _private: [u8; 0],
}

/// What is behind [`raceline_queues`].
struct Group {
    queues: CallerQueues,
    /// The lane of the next operation, which chooses among several suitable queues.
    lane: usize,
}

impl Group {
    /// The queue whose turn it is, of those for such an operation.
    #[inline(always)]
    fn next_queue(&mut self, operation: &Operation, polled: bool) -> usize {
        let queue = self.queues.queue_for(operation, polled, self.lane);
        self.lane = self.lane.wrapping_add(1);
        queue
    }
}

impl Named for Group {
    const NAME: &'static str = "queues";
    const MAGIC: u64 = u64::from_be_bytes(*b"rl:queue");
}

/// What raceline_queues_open() is to open. All zeroes but the size: one queue.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct raceline_queues_options {
    /// Bytes of this structure: sizeof(raceline_queues_options).
    pub size: usize,
    /// As in raceline_config; 0 for 1.
    pub nr_io_queues: u16,
    /// As in raceline_config.
    pub nr_write_queues: u16,
    /// As in raceline_config.
    pub nr_poll_queues: u16,
    /// Must be 0.
    pub reserved: u16,
    /// How long raceline_wait() looks for completions itself before it sleeps, in microseconds.
    pub spin_us: u32,
}

/// An operation that has ended.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct raceline_completion {
    /// The name that the caller gave it.
    pub user: u64,
    /// First block of the operation, or of its command that failed.
    pub slba: u64,
    /// Number of blocks of the command that failed; 0 on success.
    pub block_count: u32,
    /// Namespace of the command that failed.
    pub nsid: u32,
    /// RACELINE_OK, or why it failed.
    pub result: i32,
    /// NVMe status of RACELINE_COMMAND_FAILED: status code in bits 7:0, its type in bits 10:8, DNR in
    /// bit 14.
    pub status: u16,
    /// NVMe opcode of the command that failed.
    pub opcode: u8,
    /// 0.
    pub reserved: u8,
}

/// Some blocks.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct raceline_range {
    /// First block.
    pub slba: u64,
    /// How many.
    pub block_count: u32,
    /// 0.
    pub reserved: u32,
}

/// Opens queues and waits until they are connected. `options` may be NULL: one queue.
///
/// # Safety
/// `host` is a handle of raceline_connect(); `options` is null or valid for reads of the bytes that its
/// `size` says; `queues` is valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raceline_queues_open(
    host: *const raceline_host,
    options: *const raceline_queues_options,
    queues: *mut *mut raceline_queues,
) -> i32 {
    guard(|| {
        // SAFETY: as the caller promises.
        unsafe { write(queues, "queues", null_mut()) }?;
        let mut wanted = CallerOptions::default();
        if !options.is_null() {
            // SAFETY: as the caller promises.
            let options = unsafe { sized(options, "options") }?;
            wanted.queues = options.nr_io_queues.max(1);
            wanted.write_queues = options.nr_write_queues;
            wanted.poll_queues = options.nr_poll_queues;
            wanted.spin = Duration::from_micros(u64::from(options.spin_us));
        }
        // SAFETY: as the caller promises.
        let opened = unsafe { host_of(host) }?.open(&wanted)?;
        let handle = Exclusive::open(Group { queues: opened, lane: 0 }).cast();
        // SAFETY: as the caller promises.
        unsafe { write(queues, "queues", handle) }?;
        Ok(RACELINE_OK)
    })
}

/// Closes queues. What is on its way ends here, without a completion: writes may have been executed or
/// not. The memory of all operations is the caller's again.
///
/// # Safety
/// `queues` is a handle of raceline_queues_open().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raceline_queues_close(queues: *mut raceline_queues) -> i32 {
    guard(|| {
        // SAFETY: as the caller promises.
        drop(unsafe { Exclusive::<Group>::close(queues.cast()) }?);
        Ok(RACELINE_OK)
    })
}

/// Reads blocks from `slba` on into `data`; `bytes` are whole blocks. RACELINE_POLLED.
///
/// Like all operations, it leaves with the next raceline_send(), raceline_poll() or raceline_wait();
/// `user` comes back with its completion. RACELINE_FULL asks to take completions first.
///
/// # Safety
/// `queues` is a handle of raceline_queues_open(); `data` is valid for writes of `bytes` bytes, and left
/// alone, until the completion has come or the queues are closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raceline_read(
    queues: *mut raceline_queues,
    nsid: u32,
    slba: u64,
    data: *mut c_void,
    bytes: usize,
    flags: u32,
    user: u64,
) -> i32 {
    guard(|| {
        check_flags(flags, RACELINE_POLLED)?;
        // SAFETY: as the caller promises.
        let memory = unsafe { memory(data, bytes) }?;
        let operation = Operation::Read { nsid: NamespaceId(nsid), slba, memory };
        // SAFETY: as the caller promises.
        unsafe { submit(queues, operation, flags, user) }
    })
}

/// Writes blocks from `slba` on from `data`; `bytes` are whole blocks. RACELINE_POLLED, RACELINE_FUA.
///
/// # Safety
/// As raceline_read(), with `data` valid for reads and not written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raceline_write(
    queues: *mut raceline_queues,
    nsid: u32,
    slba: u64,
    data: *const c_void,
    bytes: usize,
    flags: u32,
    user: u64,
) -> i32 {
    guard(|| {
        check_flags(flags, RACELINE_POLLED | RACELINE_FUA)?;
        // SAFETY: as the caller promises; memory of a write is only read.
        let memory = unsafe { memory(data.cast_mut(), bytes) }?;
        let fua = flags & RACELINE_FUA != 0;
        let operation = Operation::Write { nsid: NamespaceId(nsid), slba, memory, fua };
        // SAFETY: as the caller promises.
        unsafe { submit(queues, operation, flags, user) }
    })
}

/// Compares blocks from `slba` on with `data`; where they differ, the status is Compare Failure, 285h.
/// RACELINE_POLLED.
///
/// # Safety
/// As raceline_write().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raceline_compare(
    queues: *mut raceline_queues,
    nsid: u32,
    slba: u64,
    data: *const c_void,
    bytes: usize,
    flags: u32,
    user: u64,
) -> i32 {
    guard(|| {
        check_flags(flags, RACELINE_POLLED)?;
        // SAFETY: as the caller promises; memory of a compare is only read.
        let memory = unsafe { memory(data.cast_mut(), bytes) }?;
        let operation = Operation::Compare { nsid: NamespaceId(nsid), slba, memory };
        // SAFETY: as the caller promises.
        unsafe { submit(queues, operation, flags, user) }
    })
}

/// Makes blocks read zeroes. RACELINE_POLLED, RACELINE_FUA, RACELINE_DEALLOCATE.
///
/// # Safety
/// `queues` is a handle of raceline_queues_open().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raceline_write_zeroes(
    queues: *mut raceline_queues,
    nsid: u32,
    slba: u64,
    block_count: u32,
    flags: u32,
    user: u64,
) -> i32 {
    guard(|| {
        check_flags(flags, RACELINE_POLLED | RACELINE_FUA | RACELINE_DEALLOCATE)?;
        let operation = Operation::WriteZeroes {
            nsid: NamespaceId(nsid),
            slba,
            block_count,
            deallocate: flags & RACELINE_DEALLOCATE != 0,
            fua: flags & RACELINE_FUA != 0,
        };
        // SAFETY: as the caller promises.
        unsafe { submit(queues, operation, flags, user) }
    })
}

/// Frees up to 256 ranges of blocks. The ranges are copied. RACELINE_POLLED.
///
/// # Safety
/// `queues` is a handle of raceline_queues_open(); `ranges` is valid for reads of `count` ranges.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raceline_deallocate(
    queues: *mut raceline_queues,
    nsid: u32,
    ranges: *const raceline_range,
    count: usize,
    flags: u32,
    user: u64,
) -> i32 {
    guard(|| {
        check_flags(flags, RACELINE_POLLED)?;
        check(ranges, "ranges")?;
        if count > raceline_proto::host::command::MAX_DEALLOCATE_RANGES {
            return Err(Failure::invalid(format!("{count} ranges: 256 at most")));
        }
        // SAFETY: as the caller promises.
        let ranges = unsafe { std::slice::from_raw_parts(ranges, count) };
        let ranges = ranges.iter().map(|range| (range.slba, range.block_count)).collect();
        let operation = Operation::Deallocate { nsid: NamespaceId(nsid), ranges };
        // SAFETY: as the caller promises.
        unsafe { submit(queues, operation, flags, user) }
    })
}

/// When it completes, all that completed before it was submitted is on stable media. RACELINE_POLLED.
///
/// # Safety
/// `queues` is a handle of raceline_queues_open().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raceline_flush(
    queues: *mut raceline_queues,
    nsid: u32,
    flags: u32,
    user: u64,
) -> i32 {
    guard(|| {
        check_flags(flags, RACELINE_POLLED)?;
        // SAFETY: as the caller promises.
        unsafe { submit(queues, Operation::Flush { nsid: NamespaceId(nsid) }, flags, user) }
    })
}

/// Sends what was submitted, on this thread.
///
/// # Safety
/// `queues` is a handle of raceline_queues_open().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raceline_send(queues: *mut raceline_queues) -> i32 {
    guard(|| {
        // SAFETY: as the caller promises.
        unsafe {
            with(queues, |group| {
                group.queues.flush();
                Ok(RACELINE_OK)
            })
        }
    })
}

/// How many more operations the queues take, all together.
///
/// # Safety
/// `queues` is a handle of raceline_queues_open().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raceline_room(queues: *mut raceline_queues) -> i32 {
    guard(|| {
        // SAFETY: as the caller promises.
        unsafe {
            with(queues, |group| {
                let queues = 0..group.queues.len();
                let room = queues.map(|queue| group.queues.room(queue)).sum::<usize>();
                Ok(i32::try_from(room).unwrap_or(i32::MAX))
            })
        }
    })
}

/// Receives what has come and sends what can go, without waiting; writes up to `max` completions and
/// gives how many. When one of them failed, raceline_completion_text() says how.
///
/// # Safety
/// `queues` is a handle of raceline_queues_open(); `completions` is valid for writes of `max`
/// completions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raceline_poll(
    queues: *mut raceline_queues,
    completions: *mut raceline_completion,
    max: usize,
) -> i32 {
    guard(|| {
        // SAFETY: as the caller promises.
        unsafe {
            with(queues, |group| {
                let mut taker = Taker::new(completions, max)?;
                taker.take(group);
                if taker.count == 0 {
                    group.queues.poll()?;
                    taker.take(group);
                }
                taker.outcome(group)
            })
        }
    })
}

/// As raceline_poll(), waiting for at least `min` completions: up to `timeout_ns` nanoseconds, or
/// without end when that is negative. First it looks as long as spin_us says, then it sleeps.
///
/// # Safety
/// As raceline_poll().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raceline_wait(
    queues: *mut raceline_queues,
    completions: *mut raceline_completion,
    min: usize,
    max: usize,
    timeout_ns: i64,
) -> i32 {
    guard(|| {
        // SAFETY: as the caller promises.
        unsafe {
            with(queues, |group| {
                let mut taker = Taker::new(completions, max)?;
                let timeout = u64::try_from(timeout_ns).map_or(Duration::MAX, Duration::from_nanos);
                let start = std::time::Instant::now();
                loop {
                    taker.take(group);
                    let waited = start.elapsed();
                    if taker.count >= min.min(max) || waited >= timeout {
                        return taker.outcome(group);
                    }
                    if group.queues.outstanding() == 0 {
                        return taker.outcome(group); // nothing will come
                    }
                    group.queues.wait(timeout - waited)?;
                }
            })
        }
    })
}

/// Says in words what a completion says: which command, of which blocks, failed why. Writes up to
/// `size` bytes with a 0 at their end, and gives how many the whole text has without it.
///
/// # Safety
/// `completion` is valid for reads, `text` for writes of `size` bytes, or null when `size` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raceline_completion_text(
    completion: *const raceline_completion,
    text: *mut c_char,
    size: usize,
) -> i32 {
    guard(|| {
        // SAFETY: as the caller promises.
        let words = describe(unsafe { read(completion, "completion") }?);
        if size > 0 {
            check(text, "text")?;
            let count = words.len().min(size - 1);
            // SAFETY: `count` + 1 <= `size` bytes, as the caller promises.
            unsafe {
                std::ptr::copy_nonoverlapping(words.as_ptr(), text.cast(), count);
                text.add(count).write(0);
            }
        }
        Ok(i32::try_from(words.len()).unwrap_or(i32::MAX))
    })
}

/// Where completions go.
struct Taker {
    completions: *mut raceline_completion,
    max: usize,
    count: usize,
}

impl Taker {
    fn new(completions: *mut raceline_completion, max: usize) -> Result<Self, Failure> {
        if max == 0 {
            return Err(Failure::invalid("max is 0: there must be room for a completion"));
        }
        check(completions, "completions")?;
        Ok(Self { completions, max, count: 0 })
    }

    /// # Safety
    /// The array is valid for writes of `max` completions.
    unsafe fn take(&mut self, group: &mut Group) {
        while self.count < self.max
            && let Some(finished) = group.queues.next_finished()
        {
            // SAFETY: `count` < `max`.
            unsafe { self.completions.add(self.count).write(completion(&finished)) };
            self.count += 1;
        }
    }

    /// How many there are; an error when there will never be any.
    fn outcome(&self, group: &Group) -> Result<i32, Failure> {
        if self.count == 0 && group.queues.outstanding() == 0 && group.queues.is_closed() {
            return Err(group.queues.failure().unwrap_or(HostError::Closed).into());
        }
        Ok(i32::try_from(self.count).unwrap_or(i32::MAX))
    }
}

#[inline(always)]
unsafe fn with(
    queues: *mut raceline_queues,
    body: impl FnOnce(&mut Group) -> Result<i32, Failure>,
) -> Result<i32, Failure> {
    // SAFETY: as the caller promises.
    unsafe { Exclusive::with(queues.cast(), body) }
}

#[inline(always)]
unsafe fn submit(
    queues: *mut raceline_queues,
    operation: Operation,
    flags: u32,
    user: u64,
) -> Result<i32, Failure> {
    let polled = flags & RACELINE_POLLED != 0;
    // SAFETY: as the caller promises.
    unsafe {
        with(queues, |group| {
            let queue = group.next_queue(&operation, polled);
            match group.queues.submit(queue, operation, user) {
                Ok(()) => Ok(RACELINE_OK),
                Err(refused) => submit_elsewhere(group, refused, polled, user),
            }
        })
    }
}

/// Tries one queue after the other, as long as they are full.
#[cold]
fn submit_elsewhere(
    group: &mut Group,
    mut refused: Refused,
    polled: bool,
    user: u64,
) -> Result<i32, Failure> {
    for _ in 1..group.queues.len() {
        if refused.reason != Refusal::Full {
            break;
        }
        let queue = group.next_queue(&refused.operation, polled);
        match group.queues.submit(queue, refused.operation, user) {
            Ok(()) => return Ok(RACELINE_OK),
            Err(again) => refused = again,
        }
    }
    Err(refused.reason.into())
}

/// # Safety
/// As [`Memory::foreign`].
unsafe fn memory(data: *mut c_void, bytes: usize) -> Result<Memory, Failure> {
    let Some(start) = NonNull::new(data.cast()) else {
        return Err(Failure::invalid("data is null"));
    };
    if isize::try_from(bytes).is_err() {
        return Err(Failure::invalid(format!("{bytes} bytes are more than there are addresses")));
    }
    // SAFETY: not null; the rest is what the caller promises.
    Ok(unsafe { Memory::foreign(start, bytes) })
}

fn check_flags(flags: u32, known: u32) -> Result<(), Failure> {
    if flags & !known == 0 {
        return Ok(());
    }
    Err(Failure::invalid(format!("flags {:#x} are not for this operation", flags & !known)))
}

#[inline(always)]
fn completion(finished: &Finished) -> raceline_completion {
    let mut completion = raceline_completion { user: finished.user, ..Default::default() };
    if let Err(failure) = &finished.result {
        completion.result = code_of(failure.error);
        if let CommandError::Status(status) = failure.error {
            completion.status = status.to_wire() >> 1; // without the phase tag
        }
        completion.opcode = failure.summary.opcode;
        completion.nsid = failure.summary.nsid.0;
        if let Some(blocks) = failure.summary.blocks {
            (completion.slba, completion.block_count) = (blocks.slba(), blocks.block_count());
        }
    }
    completion
}

fn describe(completion: &raceline_completion) -> String {
    let error = match completion.result {
        RACELINE_OK => return "success".to_owned(),
        RACELINE_COMMAND_FAILED => CommandError::Status(Status::from_wire(completion.status << 1)),
        RACELINE_UNKNOWN_FATE => CommandError::UnknownFate,
        RACELINE_NOT_SENT => CommandError::NotSent,
        RACELINE_TIMEOUT => CommandError::Timeout,
        RACELINE_DIGEST => CommandError::Digest,
        _ => return "not a completion of this library".to_owned(),
    };
    let nsid = NamespaceId(completion.nsid);
    let mut summary =
        CommandSummary { opcode: completion.opcode, admin: false, nsid, blocks: None };
    if matches!(summary.opcode, io::READ | io::WRITE | io::COMPARE | io::WRITE_ZEROES) {
        summary.blocks = BlockRange::new(completion.slba, completion.block_count);
    }
    format!("{summary}: {error}")
}
