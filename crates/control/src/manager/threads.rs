//! The threads that watch things outside of a manager, and their end.

use std::convert::Infallible;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{Manager, lock};

/// How long a shutdown waits for these threads. A thread may be connecting to a controller, which takes
/// half a second to probe it and two seconds to attach it.
const JOIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Where threads find the manager, once it is shared.
pub(crate) type SharedManager = OnceLock<Weak<Manager>>;

/// The threads of one manager.
#[derive(Default)]
pub(super) struct Threads {
    /// The manager, for threads that must not keep it alive.
    pub(super) shared: Arc<SharedManager>,
    /// Signals the end to threads that wait for it.
    pub(super) end: Arc<End>,
    /// Threads that the shutdown waits for.
    running: Mutex<Vec<Running>>,
}

struct Running {
    thread: JoinHandle<()>,
    /// Nothing is sent through it; the thread drops the sender when it ends.
    ended: Receiver<Infallible>,
}

impl Threads {
    /// Starts a thread that the shutdown waits for. The thread must end soon after [`End`] has come.
    pub(super) fn spawn(&self, name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let (alive, ended) = channel::<Infallible>();
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let _alive = alive;
            run();
        })?;
        let mut running = lock(&self.running);
        running.retain(|running| !running.thread.is_finished());
        running.push(Running { thread, ended });
        Ok(())
    }

    /// Waits until these threads have ended, but for [`JOIN_TIMEOUT`] at most.
    pub(super) fn join(&self) {
        let deadline = Instant::now() + JOIN_TIMEOUT;
        let running = std::mem::take(&mut *lock(&self.running));
        let own = std::thread::current().id();
        // A thread that held the last reference runs this itself, and cannot wait for itself.
        for Running { thread, ended } in
            running.into_iter().filter(|running| running.thread.thread().id() != own)
        {
            let left = deadline.saturating_duration_since(Instant::now());
            if ended.recv_timeout(left) == Err(RecvTimeoutError::Timeout) {
                let name = thread.thread().name().unwrap_or_default();
                tracing::warn!("the thread `{name}` is left behind: it has not ended in time");
            } else if thread.join().is_err() {
                // The panic has been logged with its reason.
                tracing::error!("a thread of the manager has panicked");
            }
        }
    }
}

/// The end of a manager.
#[derive(Default)]
pub(super) struct End {
    has_come: Mutex<bool>,
    changed: Condvar,
}

impl End {
    /// Whether it has come.
    pub(super) fn has_come(&self) -> bool {
        *lock(&self.has_come)
    }

    /// Signals the end: threads that wait for something outside stop waiting.
    pub(super) fn come(&self) {
        *lock(&self.has_come) = true;
        self.changed.notify_all();
    }

    /// Waits for this time, or until the end; gives whether the end has come.
    pub(super) fn wait(&self, time: Duration) -> bool {
        let goes_on = |has_come: &mut bool| !*has_come;
        let waited = self.changed.wait_timeout_while(lock(&self.has_come), time, goes_on);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Manager {
    /// Lets the manager's own threads find it: they make devices come and go with what is attached.
    pub fn share(self: &Arc<Self>) {
        // A second call would set the same value.
        let _ = self.threads.shared.set(Arc::downgrade(self));
    }

    /// Whether the manager shuts down: threads that wait for something outside then stop waiting.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.threads.end.has_come()
    }

    /// Ends the threads that look for drives and missing parts. The caller must hold no lock of theirs.
    pub(super) fn end_threads(&self) {
        self.threads.end.come();
        self.model().hotplug.end();
        self.threads.join();
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.end_threads();
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use serde_json::{Value, json};

    use super::*;
    use crate::error::RpcError;
    use crate::manager::controllers::hotplug::HotplugOptions;
    use crate::manager::{Change, ManagerConfig, Phase, Replay};

    /// Methods that never find what they need.
    pub(in crate::manager) struct Nothing;

    impl Replay for Nothing {
        fn current_name(&self, _method: &str) -> Option<&'static str> {
            None
        }

        fn admits(&self, _method: &str, _phase: Phase) -> Option<bool> {
            None
        }

        fn check(&self, _method: &str, _params: Option<&Value>) -> Result<(), RpcError> {
            Ok(())
        }

        fn call(&self, _: &Manager, _method: &str, _: Option<&Value>) -> Result<(), RpcError> {
            Err(RpcError::errno(libc::ENOENT))
        }

        fn examine(&self, _change: &mut Change<'_>, _device: &str) {}
    }

    #[test]
    fn a_manager_that_has_ended_has_left_no_thread_behind() {
        let manager = Arc::new(Manager::new(ManagerConfig::default(), Arc::new(Nothing)));
        manager.share();
        manager.make_or_miss("bdev_aio_create", Some(&json!({ "name": "gone" }))).unwrap();
        manager.start_all().unwrap();
        let options = HotplugOptions { enable: true, ..HotplugOptions::default() };
        manager.change(|change| change.set_hotplug(options)).unwrap();
        assert_eq!(lock(&manager.threads.running).len(), 2);
        let hotplug = Arc::clone(&manager.model().hotplug);
        let holders = || (Arc::strong_count(&manager.threads.end), Arc::strong_count(&hotplug));
        // The manager and a thread hold the end; the model, this test and a thread hold the watching.
        assert_eq!(holders(), (2, 3));
        manager.shut_down().unwrap();
        assert_eq!(holders(), (1, 2));
    }

    #[test]
    fn a_thread_that_waits_for_the_end_is_joined_when_it_comes() {
        let threads = Threads::default();
        let done = Arc::new(AtomicBool::new(false));
        let (end, noted) = (Arc::clone(&threads.end), Arc::clone(&done));
        let run = move || {
            while !end.wait(Duration::from_secs(600)) {}
            noted.store(true, Ordering::Relaxed);
        };
        threads.spawn("waits", run).unwrap();
        assert!(!threads.end.has_come());
        threads.end.come();
        threads.join();
        assert!(done.load(Ordering::Relaxed));
        assert!(threads.end.wait(Duration::ZERO));
    }

    #[test]
    fn a_thread_does_not_wait_for_itself() {
        let threads = Arc::new(Threads::default());
        let (joined, done) = channel();
        let own = Arc::clone(&threads);
        let run = move || {
            // The thread is not in the list before it runs.
            while lock(&own.running).is_empty() {
                std::thread::yield_now();
            }
            own.join();
            joined.send(()).unwrap();
        };
        threads.spawn("itself", run).unwrap();
        done.recv_timeout(JOIN_TIMEOUT / 2).unwrap();
    }
}
