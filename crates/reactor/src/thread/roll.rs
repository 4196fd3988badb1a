//! All cores of this process, whoever has started them: for those who watch that cores turn.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::thread::stats::LoopStats;
use crate::thread::waker::Waker;

static ROLL: Mutex<Vec<RunningCore>> = Mutex::new(Vec::new());
static BROKEN: AtomicU64 = AtomicU64::new(0);

/// A core whose loop runs.
#[derive(Clone, Debug)]
pub struct RunningCore {
    id: u64,
    name: String,
    thread: u32,
    stats: Arc<LoopStats>,
    waker: Waker,
}

impl RunningCore {
    /// No other core of this process has this number, nor ever had.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The name of its thread. Several may have the same.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The number of its thread, as `/proc/PID/task` has it.
    #[must_use]
    pub fn thread(&self) -> u32 {
        self.thread
    }

    /// Its loop's counters. Reading them waits for nothing, so it works while the core is stuck.
    #[must_use]
    pub fn stats(&self) -> &Arc<LoopStats> {
        &self.stats
    }

    /// Has it turn once, unless it is stuck. Does not wait.
    pub fn nudge(&self) {
        self.waker.wake();
    }
}

/// The cores that run now, in the order in which they have started.
#[must_use]
pub fn running_cores() -> Vec<RunningCore> {
    roll().clone()
}

/// How many cores of this process have ended by a failure: their I/O broke, or their service panicked.
#[must_use]
pub fn broken_cores() -> u64 {
    BROKEN.load(Ordering::Relaxed)
}

fn roll() -> MutexGuard<'static, Vec<RunningCore>> {
    ROLL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The entry of a core, which its thread has. Dropped without [`Self::end`], as by a panic, it counts as broken.
pub(super) struct Listed {
    id: u64,
    is_broken: bool,
}

impl Listed {
    /// Lists the core of the calling thread.
    pub(super) fn new(name: &str, stats: &Arc<LoopStats>, waker: Waker) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let thread = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        let (name, stats) = (name.to_owned(), Arc::clone(stats));
        roll().push(RunningCore { id, name, thread, stats, waker });
        Self { id, is_broken: true }
    }

    /// The loop has ended.
    pub(super) fn end(mut self, is_well: bool) {
        self.is_broken = !is_well;
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        roll().retain(|core| core.id != self.id);
        if self.is_broken {
            BROKEN.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::io::Completion;
    use crate::thread::core::{Backend, Mode, Reactor, ReactorConfig, ReactorHandle};
    use crate::thread::service::{Context, Service};

    enum Word {
        End,
        Panic,
    }

    #[derive(Default)]
    struct Sleeper {
        is_over: bool,
    }

    impl Service for Sleeper {
        type Message = Word;

        fn handle_message(&mut self, _cx: &mut Context<'_>, word: Word) {
            match word {
                Word::End => self.is_over = true,
                Word::Panic => panic!("on purpose"),
            }
        }

        fn handle_completion(&mut self, _cx: &mut Context<'_>, _completion: Completion) {}

        fn flush(&mut self, _cx: &mut Context<'_>) {}

        fn is_finished(&self) -> bool {
            self.is_over
        }
    }

    fn start(name: &str) -> ReactorHandle<Word> {
        let config = ReactorConfig {
            name: name.to_owned(),
            backend: Backend::Epoll,
            mode: Mode::Interrupt,
            ..ReactorConfig::default()
        };
        Reactor::spawn(config, |_: &mut Context<'_>| Ok::<_, io::Error>(Sleeper::default()))
            .unwrap()
    }

    fn listed(name: &str) -> Option<RunningCore> {
        running_cores().into_iter().find(|core| core.name() == name)
    }

    #[test]
    fn a_core_that_sleeps_turns_when_it_is_nudged() {
        let handle = start("roll-nudge");
        let core = listed("roll-nudge").unwrap();
        let comm = std::fs::read_to_string(format!("/proc/self/task/{}/comm", core.thread()));
        assert_eq!(comm.unwrap(), "roll-nudge\n");
        for _ in 0..3 {
            let before = core.stats().snapshot().turns;
            let deadline = Instant::now() + Duration::from_secs(20);
            while core.stats().snapshot().turns == before {
                core.nudge();
                assert!(Instant::now() < deadline, "it does not turn");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        handle.sender().send(Word::End).unwrap();
        handle.join().unwrap();
        assert!(listed("roll-nudge").is_none());
    }

    #[test]
    fn a_core_that_panics_is_broken_and_one_that_ends_is_not() {
        let (ends, panics) = (start("roll-ends"), start("roll-panics"));
        assert!(listed("roll-ends").is_some() && listed("roll-panics").is_some());
        panics.sender().send(Word::Panic).unwrap();
        panics.join().unwrap_err();
        assert!(listed("roll-panics").is_none() && listed("roll-ends").is_some());
        // Other tests of this process have cores that break, so the count only grows.
        let broken = broken_cores();
        assert!(broken >= 1);
        ends.sender().send(Word::End).unwrap();
        ends.join().unwrap();
        assert!(listed("roll-ends").is_none());
    }
}
