//! A few threads that make blocking file calls for a core.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::io::file_op::{Call, FileOp};
use crate::io::slab::Slab;
use crate::io::{Completion, Token};
use crate::thread::affinity::unpin;
use crate::thread::waker::Waker;

/// The threads of one core, and what they work on.
pub(crate) struct FileWorkers {
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

impl FileWorkers {
    /// `threads` calls can be in progress at once; more wait in line.
    pub(crate) fn new(waker: Waker, threads: usize) -> io::Result<FileWorkers> {
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            not_empty: Condvar::new(),
            finished: Mutex::default(),
            finished_count: AtomicUsize::new(0),
            waker,
        });
        let mut workers = FileWorkers {
            shared: shared.clone(),
            threads: Vec::with_capacity(threads),
            ops: Slab::new(),
            finished: Vec::new(),
        };
        for _ in 0..threads {
            let shared = shared.clone();
            let builder = std::thread::Builder::new().name("file-io".to_owned());
            workers.threads.push(builder.spawn(move || shared.work())?);
        }
        Ok(workers)
    }

    /// Queues an operation; gives it back if there are too many already.
    pub(crate) fn start(
        &mut self,
        file: Arc<File>,
        token: Token,
        op: FileOp,
    ) -> Result<(), FileOp> {
        let op = self.ops.insert((token, op)).map_err(|(_, op)| op)?;
        let Some((_, owner)) = self.ops.get_mut(op) else { return Ok(()) };
        let call = owner.call();
        lock(&self.shared.queue).jobs.push_back(Job { op, file, call });
        self.shared.not_empty.notify_one();
        Ok(())
    }

    /// Takes what the threads have finished.
    pub(crate) fn collect(&mut self, done: &mut Vec<Completion>) {
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
        if let Err(error) = unpin() {
            tracing::debug!("a file thread stays on its core: {error}");
        }
        while let Some(job) = self.next_job() {
            // SAFETY: the operation stays in `FileWorkers::ops`, untouched, until it is
            // collected as finished or this thread has ended.
            let result = unsafe { job.call.run(&job.file) };
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

/// The data behind a lock is whole even if a holder panicked: nothing in here panics midway.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
