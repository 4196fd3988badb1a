//! Groups of I/O queues, and the operations on them.

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

/// Flag of an operation: it goes to a poll queue, if these queues have any. Otherwise the flag has no effect.
pub const RACELINE_POLLED: u32 = 1;
/// Flag of raceline_write() and raceline_write_zeroes(): the blocks are on stable media when the operation
/// completes.
pub const RACELINE_FUA: u32 = 2;
/// Flag of raceline_write_zeroes(): the controller may free the blocks.
pub const RACELINE_DEALLOCATE: u32 = 4;

/// I/O queues with one connection each. raceline_queues_open() makes them, and raceline_queues_close() ends
/// them. One thread at a time may use them.
pub struct raceline_queues {
    _private: [u8; 0],
}

/// What is behind [`raceline_queues`].
struct Group {
    queues: CallerQueues,
    /// The lane of the next operation. When several queues suit an operation, the lane chooses one.
    lane: usize,
}

impl Group {
    /// The queue whose turn it is, among those that suit the operation.
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

/// What raceline_queues_open() is to open. When all fields but the size are 0, that is one queue, and
/// raceline_wait() sleeps at once.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct raceline_queues_options {
    /// Bytes of this structure: sizeof(raceline_queues_options).
    pub size: usize,
    /// Queues for all operations, or only for reads when nr_write_queues is not 0. 0 means 1.
    pub nr_io_queues: u16,
    /// Further queues, for operations that are not reads.
    pub nr_write_queues: u16,
    /// Further queues, for operations with RACELINE_POLLED.
    pub nr_poll_queues: u16,
    /// The caller sets it to 0.
    pub reserved: u16,
    /// Microseconds for which raceline_wait() looks for completions before it sleeps.
    pub spin_us: u32,
}

/// The end of an operation. The caller owns the structure; the library writes it once.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct raceline_completion {
    /// The `user` that the caller gave when it submitted the operation.
    pub user: u64,
    /// First block of the command that failed; 0 on success, or if that command names no blocks.
    pub slba: u64,
    /// Number of blocks of the command that failed; 0 on success, or if that command names no blocks.
    pub block_count: u32,
    /// Namespace of the command that failed; 0 on success.
    pub nsid: u32,
    /// RACELINE_OK, or the code that says why the operation failed. When several commands of an operation
    /// fail, the first failure counts.
    pub result: i32,
    /// NVMe status if `result` is RACELINE_COMMAND_FAILED, otherwise 0. Bits 7:0 are the status code, bits
    /// 10:8 its type, and bit 14 is Do Not Retry.
    pub status: u16,
    /// NVMe opcode of the command that failed; 0 on success.
    pub opcode: u8,
    /// Always 0.
    pub reserved: u8,
}

/// Consecutive blocks, for raceline_deallocate().
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct raceline_range {
    /// First block.
    pub slba: u64,
    /// Number of blocks.
    pub block_count: u32,
    /// The caller sets it to 0.
    pub reserved: u32,
}

/// Opens queues, and waits until all are connected, at most 1 s longer than connect_timeout_ms.
///
/// NULL for `options` means one queue and a spin_us of 50. On success `*queues` is a handle, which the
/// caller ends with raceline_queues_close(). On failure `*queues` is NULL. RACELINE_INVALID also means
/// that fewer queues are left, of those that raceline_connect() asked for and the controller granted.
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

/// Closes queues. Later calls on the handle give RACELINE_CLOSED.
///
/// Outstanding operations end without a completion; the controller may have executed them or not. When the
/// call gives RACELINE_OK, the library uses the memory of no operation any more. When another thread is in
/// a call on these queues, this call gives RACELINE_BUSY, and the queues stay open.
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

/// Submits a read of the blocks from `slba` on into `data`. `bytes` is the size of one or more whole blocks.
/// The flag RACELINE_POLLED is possible.
///
/// What follows holds for all six operations. RACELINE_OK means that the queues have taken the operation, and
/// that one completion with this `user` will come, unless the queues are closed first. The operation is sent
/// by the next raceline_send(), or when raceline_poll() or raceline_wait() next looks at the connections.
/// Operations may complete in any order.
///
/// A negative code means that the operation was not taken, and that no completion will come.
/// RACELINE_FULL: the caller takes completions, and submits the operation again. RACELINE_INVALID:
/// an argument is wrong, such as the namespace, the size or a flag. RACELINE_CLOSED: the controller was given
/// up or disconnected, or the queues were closed.
///
/// # Safety
/// `queues` is a handle of raceline_queues_open(). `data` is valid for writes of `bytes` bytes, and nobody else
/// reads or writes it, until the completion was given or the queues are closed.
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

/// Submits a write of `data` to the blocks from `slba` on. `bytes` is the size of one or more whole blocks.
/// The flags RACELINE_POLLED and RACELINE_FUA are possible.
///
/// # Safety
/// As raceline_read(), but `data` is valid for reads, and nobody writes it.
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

/// Submits a comparison of the blocks from `slba` on with `data`. `bytes` is the size of one or more whole
/// blocks. The flag RACELINE_POLLED is possible.
///
/// If they differ, the completion's `result` is RACELINE_COMMAND_FAILED, and bits 10:0 of its `status` are
/// 285h, Compare Failure.
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

/// Submits a write of zeroes to `block_count` blocks from `slba` on, without sending zeroes. `block_count` is at
/// least 1. The flags RACELINE_POLLED, RACELINE_FUA and RACELINE_DEALLOCATE are possible.
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

/// Submits the deallocation of `count` ranges of blocks, from 1 to 256. The flag RACELINE_POLLED is possible.
///
/// The library copies the ranges before the call returns: `ranges` is then the caller's again.
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

/// Submits a flush of a namespace. The flag RACELINE_POLLED is possible.
///
/// When the flush completes with RACELINE_OK, all writes to the namespace whose completion was given before
/// the flush was submitted are on stable media.
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

/// Sends the submitted operations now, on the calling thread and without waiting.
///
/// Operations that a socket does not take yet, or that RACELINE_I10 holds back, are sent later, inside
/// raceline_poll() or raceline_wait().
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

/// Gives how many more commands all queues together can take. An operation of more bytes than
/// max_transfer_bytes takes several of them.
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

/// Gives completions without waiting: it writes at most `max` of them, and gives how many it wrote.
///
/// If the library has received completions that the caller has not taken, the call gives those, and neither
/// sends nor receives. Otherwise it receives what has arrived, sends what was submitted, and gives the
/// completions that came of it; 0 means that there are none.
///
/// `completion.result` says whether an operation has succeeded; raceline_completion_text() says it in words.
/// RACELINE_CLOSED: the controller was given up or disconnected, and all completions were given.
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

/// As raceline_poll(), but waits until there are at least `min` completions.
///
/// It waits at most `timeout_ns` nanoseconds; a negative number means no limit. While it waits, it sends and
/// receives. It looks for completions for spin_us, then sleeps until something arrives. A `min` above `max`
/// counts as `max`. When the time is over, or when no operation is outstanding, the call gives the completions
/// that there are: fewer than `min`, maybe 0. When at least `min` completions were received before the call,
/// or when `timeout_ns` is 0, the call neither sends nor receives.
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
                        return taker.outcome(group); // no completion can come any more
                    }
                    group.queues.wait(timeout - waited)?;
                }
            })
        }
    })
}

/// Says in words which command of an operation failed, on which blocks, and why; on success "success".
///
/// It writes at most `size` bytes to `text`, the last of which is 0. A longer text is cut off. It gives the
/// number of bytes of the whole text without the 0. `text` may be NULL if `size` is 0. Any thread may
/// call it.
///
/// # Safety
/// `completion` is valid for reads. `text` is valid for writes of `size` bytes, or null when `size` is 0.
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

/// The caller's array for completions, and how many of them are written.
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
            // SAFETY: `count` < `max`, and the caller promises room for `max`.
            unsafe { self.completions.add(self.count).write(completion(&finished)) };
            self.count += 1;
        }
    }

    /// How many completions were written; an error when none was, and none can come any more.
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

/// Tries the other queues in turn, until one takes the operation or refuses it for a reason other than being full.
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
            completion.status = status.to_wire() >> 1; // drops the phase tag, bit 0
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
