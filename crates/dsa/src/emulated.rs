//! An emulated DSA device: a thread that takes descriptors as the hardware does, and misbehaves as
//! configured.
//!
//! It speaks the published format at both ends (64-byte descriptors in, 32-byte completion
//! records out), refuses what the specification says a device refuses, and takes work by the same
//! rules: a full shared queue answers Retry, a full dedicated one loses the descriptor (sections
//! 3.3.1, 3.3.2). It says nothing about the speed of a device.

#![allow(unsafe_code)]

mod execute;

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use self::execute::{Fault, Limits};
use crate::descriptor::{Completion, Descriptor, DeviceOperation, Flags, Status};
use crate::discover::{Mode, WorkQueue};
use crate::portal::{Portal, Submission};

/// What the emulated device is like.
#[derive(Clone, Debug)]
pub struct EmulatedConfig {
    /// How its work queue is submitted to.
    pub mode: Mode,
    /// Descriptors that the work queue holds.
    pub depth: usize,
    /// Most descriptors of a batch.
    pub batch_max: usize,
    /// Most bytes of one descriptor.
    pub transfer_bytes_max: u64,
    /// Bytes that it works through in a second; as fast as it can, if not given.
    pub bytes_per_second: Option<NonZeroU64>,
    /// From the end of the work to the completion record.
    pub latency: Duration,
    /// One operation in this many stops at a page fault.
    pub fault_every: Option<NonZeroU64>,
    /// How many bytes are done before a page fault; drawn anew each time, if not given.
    pub fault_after: Option<u32>,
    /// One operation in this many fails.
    pub error_every: Option<NonZeroU64>,
    /// With this status.
    pub error_status: u8,
    /// One operation in this many is never completed, unless [`EmulatedDevice::release_hung`] is called.
    pub hang_every: Option<NonZeroU64>,
    /// Of this many descriptors that it has taken, any may be next; 0 and 1 keep the order.
    pub reorder: usize,
    /// The seed of everything that is drawn.
    pub seed: u64,
}

impl Default for EmulatedConfig {
    /// A well-behaved device with the limits of a real one.
    fn default() -> Self {
        Self {
            mode: Mode::Shared,
            depth: 64,
            batch_max: 32,
            transfer_bytes_max: 2 << 20,
            bytes_per_second: None,
            latency: Duration::ZERO,
            fault_every: None,
            fault_after: None,
            error_every: None,
            error_status: Status::HARDWARE_READ,
            hang_every: None,
            reorder: 0,
            seed: 0,
        }
    }
}

/// What the device has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EmulatedCounts {
    /// Operations whose completion record was written, without batches.
    pub completed: u64,
    /// Batches likewise.
    pub batches: u64,
    /// Submissions answered with Retry.
    pub retries: u64,
    /// Descriptors lost because a dedicated queue was full.
    pub lost: u64,
    /// Descriptors refused for what they say.
    pub refused: u64,
    /// Operations that hang.
    pub hung: u64,
}

#[derive(Debug, Default)]
struct Counters {
    completed: AtomicU64,
    batches: AtomicU64,
    retries: AtomicU64,
    lost: AtomicU64,
    refused: AtomicU64,
    hung: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// What goes through the work queue.
enum Message {
    Work(Descriptor),
    /// Look at the flags.
    Wake,
}

#[derive(Debug, Default)]
struct Shared {
    counters: Counters,
    stop: AtomicBool,
    /// The thread is gone.
    stopped: AtomicBool,
    release: AtomicBool,
}

/// The device. Dropping it stops it.
#[derive(Debug)]
pub struct EmulatedDevice {
    config: EmulatedConfig,
    sender: SyncSender<Message>,
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Room of a dedicated queue that is given to no portal.
    room: Arc<Mutex<usize>>,
}

impl EmulatedDevice {
    /// Starts the device.
    ///
    /// # Errors
    ///
    /// When the kernel gives no thread.
    pub fn start(config: EmulatedConfig) -> std::io::Result<Self> {
        let (sender, receiver) = mpsc::sync_channel(config.depth.max(1));
        let shared = Arc::new(Shared::default());
        let device = Device {
            receiver,
            limits: Limits {
                batch_max: config.batch_max,
                transfer_bytes_max: config.transfer_bytes_max,
            },
            random: Random(config.seed),
            taken: Vec::new(),
            finishing: VecDeque::new(),
            hung: Vec::new(),
            operations: 0,
            busy_until: Instant::now(),
            shared: Arc::clone(&shared),
            config: config.clone(),
        };
        let builder = thread::Builder::new().name("dsa-emulated".to_owned());
        let thread = builder.spawn(move || device.run())?;
        let room = Arc::new(Mutex::new(config.depth));
        Ok(Self { config, sender, shared, thread: Mutex::new(Some(thread)), room })
    }

    /// The work queue as discovery would describe it.
    #[must_use]
    pub fn work_queue(&self) -> WorkQueue {
        WorkQueue {
            name: "emulated".to_owned(),
            path: std::path::PathBuf::new(),
            mode: self.config.mode,
            depth: self.config.depth,
            batch_max: self.config.batch_max,
            transfer_bytes_max: self.config.transfer_bytes_max,
            block_on_fault: false,
            cache_control: true,
            numa_node: None,
            missing: Vec::new(),
        }
    }

    /// A portal with room for at most `window` descriptors. `None` when other portals have all
    /// the room of a dedicated queue.
    #[must_use]
    pub fn portal(&self, window: usize) -> Option<EmulatedPortal> {
        let window = if self.config.mode == Mode::Shared {
            window.min(self.config.depth)
        } else {
            let mut room = self.room.lock().unwrap_or_else(PoisonError::into_inner);
            let window = window.min(*room);
            *room -= window;
            window
        };
        (window > 0).then(|| EmulatedPortal {
            mode: self.config.mode,
            window,
            sender: self.sender.clone(),
            shared: Arc::clone(&self.shared),
            room: Arc::clone(&self.room),
        })
    }

    /// What it has done so far.
    #[must_use]
    pub fn counts(&self) -> EmulatedCounts {
        let counters = &self.shared.counters;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        EmulatedCounts {
            completed: read(&counters.completed),
            batches: read(&counters.batches),
            retries: read(&counters.retries),
            lost: read(&counters.lost),
            refused: read(&counters.refused),
            hung: read(&counters.hung),
        }
    }

    /// Does the operations that hang, late.
    pub fn release_hung(&self) {
        self.shared.release.store(true, Ordering::Release);
        self.wake();
    }

    /// Ends the device as it is: when this returns, it touches no memory any more. Operations that were
    /// not complete then never will be.
    pub fn stop(&self) {
        self.shared.stop.store(true, Ordering::Release);
        self.wake();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && let Err(panic) = thread.join()
        {
            std::panic::resume_unwind(panic);
        }
    }

    fn wake(&self) {
        // A full queue wakes the thread, too.
        let _ = self.sender.try_send(Message::Wake);
    }
}

impl Drop for EmulatedDevice {
    fn drop(&mut self) {
        if !thread::panicking() {
            self.stop();
        }
    }
}

/// A submitter's way into an [`EmulatedDevice`].
#[derive(Debug)]
pub struct EmulatedPortal {
    mode: Mode,
    window: usize,
    sender: SyncSender<Message>,
    shared: Arc<Shared>,
    room: Arc<Mutex<usize>>,
}

// SAFETY: `stopped` is set when the device's thread, which alone touches memory, has done its
// last access.
unsafe impl Portal for EmulatedPortal {
    fn window(&self) -> usize {
        self.window
    }

    unsafe fn submit(&mut self, descriptor: &Descriptor) -> Submission {
        match (self.sender.try_send(Message::Work(*descriptor)), self.mode) {
            (Ok(()), _) => Submission::Accepted,
            // A device that is gone answers no more than one that is halted (5.7).
            (Err(TrySendError::Full(_) | TrySendError::Disconnected(_)), Mode::Shared) => {
                count(&self.shared.counters.retries);
                Submission::Retry
            }
            (Err(_), Mode::Dedicated) => {
                count(&self.shared.counters.lost);
                Submission::Accepted
            }
        }
    }

    fn is_stopped(&self) -> bool {
        self.shared.stopped.load(Ordering::Acquire)
    }
}

impl Drop for EmulatedPortal {
    fn drop(&mut self) {
        if self.mode == Mode::Dedicated {
            *self.room.lock().unwrap_or_else(PoisonError::into_inner) += self.window;
        }
    }
}

/// Most operations that are done but for their completion record.
const FINISHING_MAX: usize = 256;
/// How long a device that mixes up the order waits for more descriptors to mix.
const REORDER_LINGER: Duration = Duration::from_micros(50);
/// Work that is due sooner than this is waited for without sleeping.
const SPIN: Duration = Duration::from_micros(100);
/// How long the thread sleeps before it looks at its flags.
const SLEEP_MAX: Duration = Duration::from_millis(1);

/// A completion record to be written.
struct Finish {
    due: Instant,
    record: u64,
    completion: Completion,
    of_batch: bool,
}

/// Work that waits for [`EmulatedDevice::release_hung`].
enum Hung {
    Operation(Descriptor),
    /// The completion of a batch that had such an operation.
    Batch {
        record: u64,
        completion: Completion,
    },
}

/// The device's own side.
struct Device {
    receiver: Receiver<Message>,
    config: EmulatedConfig,
    limits: Limits,
    random: Random,
    /// Taken from the work queue, not begun.
    taken: Vec<Descriptor>,
    /// In the order of their due times.
    finishing: VecDeque<Finish>,
    hung: Vec<Hung>,
    /// How many operations there have been.
    operations: u64,
    busy_until: Instant,
    shared: Arc<Shared>,
}

impl Device {
    fn run(mut self) {
        while !self.shared.stop.load(Ordering::Acquire) {
            self.finish_due();
            if self.shared.release.swap(false, Ordering::AcqRel) {
                self.release_hung();
            }
            if !self.take() {
                break;
            }
            self.begin();
        }
        self.shared.stopped.store(true, Ordering::Release);
    }

    /// Takes descriptors from the work queue while there is room; waits if there is nothing else to do.
    /// False when no submitter is left.
    fn take(&mut self) -> bool {
        let room = self.config.reorder.max(1);
        while self.taken.len() < room && self.finishing.len() < FINISHING_MAX {
            let limit = if !self.taken.is_empty() {
                if self.config.reorder > 1 { Some(REORDER_LINGER) } else { None }
            } else if let Some(next) = self.finishing.front() {
                let left = next.due.saturating_duration_since(Instant::now());
                if left < SPIN { None } else { Some(left.min(SLEEP_MAX)) }
            } else {
                Some(Duration::MAX)
            };
            let message = match limit {
                None => match self.receiver.try_recv() {
                    Ok(message) => message,
                    Err(_) => return true,
                },
                Some(Duration::MAX) => match self.receiver.recv() {
                    Ok(message) => message,
                    Err(_) => return false,
                },
                Some(limit) => match self.receiver.recv_timeout(limit) {
                    Ok(message) => message,
                    Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return true,
                },
            };
            match message {
                Message::Work(descriptor) => self.taken.push(descriptor),
                Message::Wake => return true,
            }
        }
        true
    }

    /// Does one of the descriptors taken, if the work before it is done.
    fn begin(&mut self) {
        if self.taken.is_empty() || self.finishing.len() >= FINISHING_MAX {
            return;
        }
        if self.config.bytes_per_second.is_some() {
            let busy = self.busy_until.saturating_duration_since(Instant::now());
            if busy > SPIN {
                let next = self.finishing.front().map_or(self.busy_until, |finish| finish.due);
                sleep_until(next.min(self.busy_until));
                return;
            }
        }
        let index = self.random.below(self.taken.len());
        let index = if self.config.reorder > 1 { index } else { 0 };
        let descriptor = self.taken.remove(index);
        if DeviceOperation::from_code(descriptor.operation_code()) == Some(DeviceOperation::Batch) {
            self.batch(&descriptor);
        } else {
            let _ = self.operation(&descriptor, false);
        }
    }

    /// Does a batch (3.8, 8.3.2).
    fn batch(&mut self, descriptor: &Descriptor) {
        if let Err(status) = execute::check(descriptor, false, &self.limits) {
            self.refuse(descriptor, status, true);
            return;
        }
        let (mut failed, mut hung, mut done) = (false, false, 0);
        for index in 0..descriptor.transfer_size() {
            // SAFETY: the submitter keeps the list until the batch is complete.
            let entry = unsafe { execute::list_entry(descriptor.source(), index) };
            if entry.flags().contains(Flags::FENCE) {
                self.settle();
                // An operation that hangs is waited for without end; one that failed ends the batch (3.9).
                if failed || hung {
                    break;
                }
            }
            match self.operation(&entry, true) {
                Some(Status::Success) => {}
                Some(_) => failed = true,
                None => hung = true,
            }
            done += 1;
        }
        let completion = Completion {
            status: if failed { Status::BatchFailed } else { Status::Success },
            fault_on_write: false,
            result: u8::from(failed),
            bytes_completed: done,
            fault_address: 0,
            crc: 0,
        };
        let record = descriptor.record_address();
        if hung {
            self.hung.push(Hung::Batch { record, completion });
        } else {
            self.finish(record, completion, 0, true);
        }
    }

    /// Does one operation, unless it is one of those that go wrong. Its status; none if it hangs.
    fn operation(&mut self, descriptor: &Descriptor, in_batch: bool) -> Option<Status> {
        if let Err(status) = execute::check(descriptor, in_batch, &self.limits) {
            self.refuse(descriptor, status, false);
            return Some(Status::Error(status));
        }
        self.operations += 1;
        let turn = |every: Option<NonZeroU64>| {
            every.is_some_and(|every| self.operations.is_multiple_of(every.get()))
        };
        if turn(self.config.hang_every) {
            count(&self.shared.counters.hung);
            self.hung.push(Hung::Operation(*descriptor));
            return None;
        }
        let fault = if turn(self.config.error_every) {
            Some(Fault::Error(self.config.error_status))
        } else if turn(self.config.fault_every) {
            let size = u64::from(descriptor.transfer_size());
            let drawn = u32::try_from(self.random.next() % size.max(1)).unwrap_or(0);
            Some(Fault::Page { after: self.config.fault_after.unwrap_or(drawn) })
        } else {
            None
        };
        Some(self.execute(descriptor, fault))
    }

    fn execute(&mut self, descriptor: &Descriptor, fault: Option<Fault>) -> Status {
        // SAFETY: the submitter keeps the memory until the completion record is written, which
        // happens later, and `check` found the descriptor valid.
        let completion = unsafe { execute::execute(descriptor, fault) };
        let bytes = descriptor.transfer_size();
        self.finish(descriptor.record_address(), completion, bytes, false);
        completion.status
    }

    /// Answers a descriptor that is not valid.
    fn refuse(&mut self, descriptor: &Descriptor, status: u8, of_batch: bool) {
        count(&self.shared.counters.refused);
        let record = descriptor.record_address();
        // Without a place for a completion record the submitter hears nothing (5.4).
        if descriptor.flags().contains(Flags::RECORD_ADDRESS_VALID) && record.is_multiple_of(32) {
            self.finish(record, execute::refusal(descriptor, status), 0, of_batch);
        }
    }

    /// Has a completion record written when the time has come.
    fn finish(&mut self, record: u64, completion: Completion, bytes: u32, of_batch: bool) {
        let now = Instant::now();
        if let Some(rate) = self.config.bytes_per_second {
            let nanoseconds = u128::from(bytes) * 1_000_000_000 / u128::from(rate.get());
            let work = Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX));
            self.busy_until = self.busy_until.max(now) + work;
        } else {
            self.busy_until = now;
        }
        let due = self.busy_until + self.config.latency;
        self.finishing.push_back(Finish { due, record, completion, of_batch });
        self.finish_due();
    }

    /// Writes the completion records that are due.
    fn finish_due(&mut self) {
        let now = Instant::now();
        while let Some(finish) = self.finishing.pop_front_if(|finish| finish.due <= now) {
            self.write(finish.record, &finish.completion, finish.of_batch);
        }
    }

    fn write(&self, record: u64, completion: &Completion, of_batch: bool) {
        let counters = &self.shared.counters;
        count(if of_batch { &counters.batches } else { &counters.completed });
        // SAFETY: the submitter keeps the record until it is written.
        unsafe { execute::write_record(record, completion) };
    }

    /// Waits until everything begun is complete.
    fn settle(&mut self) {
        while !self.finishing.is_empty() && !self.shared.stop.load(Ordering::Acquire) {
            self.finish_due();
            if let Some(next) = self.finishing.front() {
                sleep_until(next.due);
            }
        }
    }

    fn release_hung(&mut self) {
        for hung in std::mem::take(&mut self.hung) {
            match hung {
                Hung::Operation(descriptor) => {
                    let _ = self.execute(&descriptor, None);
                }
                Hung::Batch { record, completion } => self.finish(record, completion, 0, true),
            }
        }
    }
}

/// Sleeps until `due`, but [`SLEEP_MAX`] at most; not at all if less than [`SPIN`] is left.
fn sleep_until(due: Instant) {
    let left = due.saturating_duration_since(Instant::now());
    if left >= SPIN {
        thread::sleep(left.min(SLEEP_MAX));
    }
}

/// SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        let limit = u64::try_from(limit.max(1)).unwrap_or(u64::MAX);
        usize::try_from(self.next() % limit).unwrap_or(0)
    }
}
