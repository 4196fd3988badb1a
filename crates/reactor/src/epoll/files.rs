//! A few threads that make blocking file calls for a core.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::buffer::{IoBuf, SharedBuf};
use crate::io::{AllocateMode, Completion, Outcome, Token};
use crate::slab::Slab;
use crate::waker::Waker;

/// File calls that can be in progress at once, per core. More wait in line.
const FILE_THREADS: usize = 4;

/// A file operation with the memory it owns.
pub(super) enum FileOp {
    Read { buf: IoBuf, offset: u64 },
    Write { buf: SharedBuf, offset: u64, durable: bool },
    Sync,
    Allocate { mode: AllocateMode, offset: u64, len: u64 },
}

impl FileOp {
    pub(super) fn outcome(self, result: io::Result<()>) -> Outcome {
        match self {
            FileOp::Read { buf, .. } => Outcome::Read(result, buf),
            FileOp::Write { buf, .. } => Outcome::Written(result, buf),
            FileOp::Sync | FileOp::Allocate { .. } => Outcome::Synced(result),
        }
    }

    /// What a thread is told: the operation, with its memory by address.
    fn call(&mut self) -> Call {
        match self {
            FileOp::Read { buf, offset } => {
                Call::Read { to: buf.as_mut_ptr(), len: buf.len(), offset: *offset }
            }
            FileOp::Write { buf, offset, durable } => Call::Write {
                from: buf.as_ptr(),
                len: buf.len(),
                offset: *offset,
                durable: *durable,
            },
            FileOp::Sync => Call::Sync,
            FileOp::Allocate { mode, offset, len } => {
                Call::Allocate { mode: *mode, offset: *offset, len: *len }
            }
        }
    }
}

/// The threads of one core, and what they work on.
pub(super) struct FileWorkers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Operations not yet collected: they own the memory that the threads use.
    ops: Slab<(Token, FileOp)>,
    finished: Vec<(u32, io::Result<()>)>,
}

struct Shared {
    queue: Mutex<Queue>,
    not_empty: Condvar,
    finished: Mutex<Vec<(u32, io::Result<()>)>>,
    /// Length of `finished`, to be looked at without its lock.
    finished_count: AtomicUsize,
    waker: Waker,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    stop: bool,
}

struct Job {
    op: u32,
    file: Arc<File>,
    call: Call,
}

enum Call {
    Read { to: *mut u8, len: usize, offset: u64 },
    Write { from: *const u8, len: usize, offset: u64, durable: bool },
    Sync,
    Allocate { mode: AllocateMode, offset: u64, len: u64 },
}

// SAFETY: the pointers name memory of an operation in `FileWorkers::ops`, which nobody else
// touches until the thread has reported the job as finished, or has ended.
unsafe impl Send for Call {}

impl FileWorkers {
    pub(super) fn new(waker: Waker) -> io::Result<FileWorkers> {
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            not_empty: Condvar::new(),
            finished: Mutex::default(),
            finished_count: AtomicUsize::new(0),
            waker,
        });
        let mut workers = FileWorkers {
            shared: shared.clone(),
            threads: Vec::with_capacity(FILE_THREADS),
            ops: Slab::new(),
            finished: Vec::new(),
        };
        for _ in 0..FILE_THREADS {
            let shared = shared.clone();
            let builder = std::thread::Builder::new().name("file-io".to_owned());
            workers.threads.push(builder.spawn(move || shared.work())?);
        }
        Ok(workers)
    }

    pub(super) fn start(&mut self, file: Arc<File>, token: Token, op: FileOp) {
        // The slab holds a million operations: far more than any pool has buffers for.
        let op =
            self.ops.insert((token, op)).unwrap_or_else(|_| panic!("too many file operations"));
        let Some((_, owner)) = self.ops.get_mut(op) else { return };
        let call = owner.call();
        lock(&self.shared.queue).jobs.push_back(Job { op, file, call });
        self.shared.not_empty.notify_one();
    }

    /// Takes what the threads have finished.
    pub(super) fn collect(&mut self, done: &mut Vec<Completion>) {
        if self.shared.finished_count.load(Ordering::Acquire) == 0 {
            return;
        }
        {
            let mut finished = lock(&self.shared.finished);
            std::mem::swap(&mut *finished, &mut self.finished);
            self.shared.finished_count.store(0, Ordering::Relaxed);
        }
        for (op, result) in self.finished.drain(..) {
            if let Some((token, op)) = self.ops.remove(op) {
                done.push(Completion { token, outcome: op.outcome(result) });
            }
        }
    }
}

impl Drop for FileWorkers {
    /// Forgets jobs not begun and waits for the others, which use the memory of `ops`.
    fn drop(&mut self) {
        {
            let mut queue = lock(&self.shared.queue);
            queue.jobs.clear();
            queue.stop = true;
        }
        self.shared.not_empty.notify_all();
        for thread in self.threads.drain(..) {
            // A thread that panicked has ended as well.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn work(&self) {
        while let Some(job) = self.next_job() {
            let result = job.call.run(&job.file);
            // The core may drop its last reference to the file as soon as it knows.
            drop(job.file);
            {
                let mut finished = lock(&self.finished);
                finished.push((job.op, result));
                self.finished_count.store(finished.len(), Ordering::Release);
            }
            self.waker.wake();
        }
    }

    fn next_job(&self) -> Option<Job> {
        let mut queue = lock(&self.queue);
        loop {
            if queue.stop {
                return None;
            }
            if let Some(job) = queue.jobs.pop_front() {
                return Some(job);
            }
            queue = self.not_empty.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Call {
    fn run(&self, file: &File) -> io::Result<()> {
        match *self {
            Call::Read { to, len, offset } => {
                // SAFETY: the operation owns this memory and lends it to this thread alone.
                let buf = unsafe { std::slice::from_raw_parts_mut(to, len) };
                file.read_exact_at(buf, offset)
            }
            Call::Write { from, len, offset, durable } => {
                // SAFETY: as above; others may read it, too.
                let buf = unsafe { std::slice::from_raw_parts(from, len) };
                if durable {
                    write_durably(file, buf, offset)
                } else {
                    file.write_all_at(buf, offset)
                }
            }
            Call::Sync => file.sync_data(),
            Call::Allocate { mode, offset, len } => allocate(file, mode, offset, len),
        }
    }
}

fn write_durably(file: &File, buf: &[u8], offset: u64) -> io::Result<()> {
    let mut written = 0;
    while written < buf.len() {
        let rest = &buf[written..];
        let iovec = libc::iovec { iov_base: rest.as_ptr().cast_mut().cast(), iov_len: rest.len() };
        let at = file_offset(offset + written as u64)?;
        // SAFETY: the vector names memory that outlives the call, which only reads it.
        let result =
            unsafe { libc::pwritev2(file.as_raw_fd(), &raw const iovec, 1, at, libc::RWF_DSYNC) };
        match usize::try_from(result) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => written += count,
            Err(_) => retry_if_interrupted()?,
        }
    }
    Ok(())
}

fn allocate(file: &File, mode: AllocateMode, offset: u64, len: u64) -> io::Result<()> {
    let (offset, len) = (file_offset(offset)?, file_offset(len)?);
    loop {
        // SAFETY: takes no pointers.
        if unsafe { libc::fallocate(file.as_raw_fd(), mode.flags(), offset, len) } == 0 {
            return Ok(());
        }
        retry_if_interrupted()?;
    }
}

/// The error of the last call, unless a signal is to blame.
fn retry_if_interrupted() -> io::Result<()> {
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) }
}

fn file_offset(value: u64) -> io::Result<i64> {
    i64::try_from(value).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// The data behind a lock is whole even if a holder panicked: nothing in here panics midway.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
