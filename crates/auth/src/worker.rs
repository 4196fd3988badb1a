//! A thread for the arithmetic of authentications: sources take turns, and those that wait are bounded.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::{fmt, io, thread};

use crate::work::{Finished, Work};

/// What happens with a result. Called on the helper thread.
type Done = Box<dyn FnOnce(Finished) + Send>;

/// How many computations may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// All of them.
    pub total: usize,
    /// Those of one source.
    pub of_one: usize,
}

/// A helper thread. It ends when the `Worker` is dropped and what waited is done.
///
/// The sources that have computations take turns, one computation each. So a source with one computation waits for at
/// most one of each other source, and a crowd of one source holds up only itself.
pub struct Worker {
    queue: Arc<Queue>,
    limits: Waiting,
}

/// As many computations wait as may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many authentications are under way")]
pub struct Busy;

#[derive(Default)]
struct Queue {
    tasks: Mutex<Tasks>,
    changed: Condvar,
}

#[derive(Default)]
struct Tasks {
    /// Of each source that has any.
    of: HashMap<u64, VecDeque<(Work, Done)>>,
    /// The same sources, the next one first.
    turns: VecDeque<u64>,
    total: usize,
    /// No more will come.
    ended: bool,
}

impl Tasks {
    fn next(&mut self) -> Option<(Work, Done)> {
        let source = self.turns.pop_front()?;
        let tasks = self.of.get_mut(&source)?;
        let task = tasks.pop_front();
        if tasks.is_empty() {
            self.of.remove(&source);
        } else {
            self.turns.push_back(source);
        }
        self.total -= 1;
        task
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Tasks> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a computation; `None`: no more will come.
    fn take(&self) -> Option<(Work, Done)> {
        let mut tasks = self.lock();
        loop {
            match tasks.next() {
                None if tasks.ended => return None,
                None => tasks = self.changed.wait(tasks).unwrap_or_else(PoisonError::into_inner),
                task => return task,
            }
        }
    }
}

impl Worker {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the operating system gives no thread.
    pub fn start(limits: Waiting) -> io::Result<Self> {
        let queue = Arc::new(Queue::default());
        let waiting = Arc::clone(&queue);
        thread::Builder::new().name("authentication".into()).spawn(move || {
            while let Some((work, done)) = waiting.take() {
                done(work.run());
            }
        })?;
        Ok(Self { queue, limits })
    }

    /// Has the thread compute for a source, which a number of the caller's names; `done` gets the result there.
    ///
    /// # Errors
    /// When too many computations wait. Never blocks.
    pub fn submit(
        &self,
        source: u64,
        work: Work,
        done: impl FnOnce(Finished) + Send + 'static,
    ) -> Result<(), Busy> {
        let mut guard = self.queue.lock();
        let tasks = &mut *guard;
        let own = tasks.of.get(&source).map_or(0, VecDeque::len);
        if tasks.total >= self.limits.total || own >= self.limits.of_one {
            return Err(Busy);
        }
        if own == 0 {
            tasks.turns.push_back(source);
        }
        tasks.of.entry(source).or_default().push_back((work, Box::new(done)));
        tasks.total += 1;
        drop(guard);
        self.queue.changed.notify_one();
        Ok(())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.queue.lock().ended = true;
        self.queue.changed.notify_one();
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Worker")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;
    use crate::interchange::KeyError;
    use crate::work::Outcome;

    fn nothing() -> Work {
        Work::new(0, || Outcome::Offer(Err(KeyError::NoRandomness)))
    }

    #[test]
    fn sources_take_turns_and_a_full_worker_refuses_and_goes_on() {
        let worker = Worker::start(Waiting { total: 5, of_one: 3 }).unwrap();
        let (release, gate) = channel::<()>();
        let (started, has_started) = channel();
        let (report, results) = channel();
        let wait = Work::new(0, move || {
            started.send(()).unwrap();
            gate.recv().ok();
            Outcome::Offer(Err(KeyError::NoRandomness))
        });
        worker.submit(1, wait, |_| ()).unwrap();
        has_started.recv_timeout(Duration::from_secs(10)).unwrap();
        let submit = |source| {
            let report = report.clone();
            worker.submit(source, nothing(), move |_| report.send(source).unwrap())
        };
        assert_eq!([1, 1, 1, 1].map(submit), [Ok(()), Ok(()), Ok(()), Err(Busy)]);
        assert_eq!([2, 3, 4].map(submit), [Ok(()), Ok(()), Err(Busy)]);
        release.send(()).unwrap();
        let order = [(); 5].map(|()| results.recv_timeout(Duration::from_secs(10)).unwrap());
        assert_eq!(order, [1, 2, 3, 1, 1]);
        assert_eq!(submit(4), Ok(()));
        // What waits is done before the thread ends.
        drop(worker);
        assert_eq!(results.recv_timeout(Duration::from_secs(10)), Ok(4));
    }
}
