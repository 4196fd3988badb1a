//! A thread for the arithmetic of authentications, with a bound on those that wait.

use std::sync::mpsc::{SyncSender, sync_channel};
use std::{fmt, io, thread};

use crate::work::{Finished, Work};

/// What happens with a result. Called on the helper thread.
type Done = Box<dyn FnOnce(Finished) + Send>;

/// A helper thread. It ends when the `Worker` is dropped and what waited is done.
pub struct Worker {
    tasks: SyncSender<(Work, Done)>,
}

/// As many computations wait as may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many authentications are under way")]
pub struct Busy;

impl Worker {
    /// Starts the thread. At most `limit` computations wait for it.
    ///
    /// # Errors
    /// When the operating system gives no thread.
    pub fn start(limit: usize) -> io::Result<Self> {
        let (tasks, queue) = sync_channel::<(Work, Done)>(limit);
        thread::Builder::new().name("authentication".into()).spawn(move || {
            for (work, done) in queue {
                done(work.run());
            }
        })?;
        Ok(Self { tasks })
    }

    /// Has the thread compute; `done` gets the result there.
    ///
    /// # Errors
    /// When too many computations wait. Never blocks.
    pub fn submit(
        &self,
        work: Work,
        done: impl FnOnce(Finished) + Send + 'static,
    ) -> Result<(), Busy> {
        self.tasks.try_send((work, Box::new(done))).map_err(|_| Busy)
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

    use super::*;
    use crate::interchange::KeyError;
    use crate::work::Outcome;

    #[test]
    fn a_full_worker_refuses_and_goes_on() {
        let worker = Worker::start(1).unwrap();
        let (release, gate) = channel::<()>();
        let (report, results) = channel();
        let nothing = || Outcome::Offer(Err(KeyError::NoRandomness));
        let wait = Work::new(0, move || {
            gate.recv().ok();
            nothing()
        });
        worker.submit(wait, |_| ()).unwrap();
        // One may wait behind the one that runs, once the thread has taken the first.
        let mut accepted = 0;
        while accepted == 0 {
            let report = report.clone();
            let work = Work::new(0, nothing);
            accepted += usize::from(worker.submit(work, move |_| report.send(()).unwrap()).is_ok());
        }
        let refused = (0..2).any(|_| worker.submit(Work::new(0, nothing), |_| ()) == Err(Busy));
        assert!(refused);
        release.send(()).unwrap();
        results.recv_timeout(std::time::Duration::from_secs(10)).unwrap();
    }
}
