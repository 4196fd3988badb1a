//! Several cores that serve one thing: they start one after another, and end together.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::thread::core::{Reactor, ReactorConfig, ReactorHandle};
use crate::thread::mailbox::Sender;
use crate::thread::service::{Context, Service};
use crate::thread::stats::{LoopSnapshot, LoopStats};

/// How often a wait that has a limit looks whether cores have ended.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// What the loop of one of several cores has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoreLoop {
    /// The name of its thread.
    pub name: String,
    /// The number to which its thread is pinned; `None`: it floats.
    pub core: Option<usize>,
    /// How long ago it has started.
    pub age: Duration,
    /// Its counters.
    pub loops: LoopSnapshot,
}

/// One of the cores, and what it was started with.
#[derive(Debug)]
struct Started<M> {
    handle: ReactorHandle<M>,
    watched: Watched,
}

/// What a thread other than a core needs to read the counters of its loop.
#[derive(Clone, Debug)]
struct Watched {
    stats: Arc<LoopStats>,
    name: String,
    core: Option<usize>,
    began: Instant,
}

/// A way for any thread to read what the loops of several cores have done, which outlives them.
#[derive(Clone, Debug)]
pub struct CoreWatch {
    watched: Vec<Watched>,
}

impl CoreWatch {
    /// What the loops have done, in the order in which they have started. Reading it waits for no core.
    #[must_use]
    pub fn loops(&self) -> Vec<CoreLoop> {
        self.watched.iter().map(Watched::read).collect()
    }
}

impl Watched {
    fn read(&self) -> CoreLoop {
        CoreLoop {
            name: self.name.clone(),
            core: self.core,
            age: self.began.elapsed(),
            loops: self.stats.snapshot(),
        }
    }
}

/// The cores of a server. Dropped, they run on.
#[derive(Debug)]
pub struct Cores<M> {
    started: Vec<Started<M>>,
}

impl<M> Default for Cores<M> {
    fn default() -> Self {
        Self { started: Vec::new() }
    }
}

impl<M> Cores<M> {
    /// Starts a core for each entry of `pinned`: a number to pin its thread to, or none to let it float. `builder` gives
    /// what builds the service of a core, by its place. `config` is that of all of them; the place of each core is
    /// appended to the name of its thread.
    ///
    /// # Errors
    /// Those of [`Reactor::spawn`], for the first core that does not start. Those before it run, and the caller ends them
    /// as it ends all.
    pub fn start<S, F>(
        &mut self,
        config: &ReactorConfig,
        pinned: impl IntoIterator<Item = Option<usize>>,
        mut builder: impl FnMut(usize) -> F,
    ) -> io::Result<()>
    where
        S: Service<Message = M>,
        F: FnOnce(&mut Context<'_>) -> io::Result<S> + Send + 'static,
    {
        for (place, core) in pinned.into_iter().enumerate() {
            let name = format!("{}-{place}", config.name);
            let config = ReactorConfig { core, name: name.clone(), ..config.clone() };
            let handle = Reactor::spawn(config, builder(place))?;
            let stats = Arc::clone(handle.stats());
            let watched = Watched { stats, name, core, began: Instant::now() };
            self.started.push(Started { handle, watched });
        }
        Ok(())
    }

    /// The ways to their mailboxes.
    #[must_use]
    pub fn senders(&self) -> Vec<Sender<M>> {
        self.started.iter().map(|core| core.handle.sender().clone()).collect()
    }

    /// The way to the mailbox of the first core, if there is one.
    #[must_use]
    pub fn first(&self) -> Option<&Sender<M>> {
        self.started.first().map(|core| core.handle.sender())
    }

    /// Sends each core a message. One that has ended by itself has logged why.
    pub fn tell(&self, mut message: impl FnMut() -> M) {
        for core in &self.started {
            let _ = core.handle.sender().send(message());
        }
    }

    /// False once a core has ended, for whatever reason.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.started.iter().all(|core| core.handle.is_running())
    }

    /// What their loops have done, in the order in which they have started. Reading it waits for no core.
    #[must_use]
    pub fn loops(&self) -> Vec<CoreLoop> {
        self.started.iter().map(|core| core.watched.read()).collect()
    }

    /// A way to read the same from another thread.
    #[must_use]
    pub fn watch(&self) -> CoreWatch {
        CoreWatch { watched: self.started.iter().map(|core| core.watched.clone()).collect() }
    }

    /// As [`Self::join`], for `limit` at most; gives how many have not ended by then. These run on.
    pub fn join_within(self, limit: Duration) -> usize {
        let until = Instant::now() + limit;
        let mut left = self.started;
        loop {
            let (run, ended) = left.into_iter().partition(|core| core.handle.is_running());
            Self { started: ended }.join();
            left = run;
            if left.is_empty() || Instant::now() >= until {
                return left.len();
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
    }

    /// Waits until all have ended; logs what went wrong with them. (Tell them to end first.)
    pub fn join(self) {
        for core in self.started {
            if let Err(error) = core.handle.join() {
                tracing::error!("{error}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::io::Completion;
    use crate::thread::core::Backend;

    /// Tells where it ran, and ends when told to.
    struct Word {
        place: usize,
        heard: mpsc::Sender<(usize, Option<String>)>,
        is_over: bool,
    }

    impl Service for Word {
        type Message = ();

        fn handle_message(&mut self, _cx: &mut Context<'_>, (): ()) {
            let name = std::thread::current().name().map(str::to_owned);
            self.heard.send((self.place, name)).unwrap();
            self.is_over = true;
        }

        fn handle_completion(&mut self, _cx: &mut Context<'_>, _completion: Completion) {}

        fn flush(&mut self, _cx: &mut Context<'_>) {}

        fn is_finished(&self) -> bool {
            self.is_over
        }
    }

    fn config() -> ReactorConfig {
        ReactorConfig { name: "word".to_owned(), backend: Backend::Epoll, ..Default::default() }
    }

    #[test]
    fn all_are_told_and_end() {
        let (heard, hears) = mpsc::channel();
        let mut cores = Cores::default();
        assert!(cores.first().is_none());
        cores
            .start(&config(), [None, None, None], |place| {
                let heard = heard.clone();
                move |_: &mut Context<'_>| Ok(Word { place, heard, is_over: false })
            })
            .unwrap();
        assert!(cores.is_running() && cores.first().is_some());
        assert_eq!(cores.senders().len(), 3);
        let loops = cores.loops();
        let names: Vec<_> = loops.iter().map(|core| (core.name.as_str(), core.core)).collect();
        assert_eq!(names, [("word-0", None), ("word-1", None), ("word-2", None)]);
        let watch = cores.watch();
        cores.tell(|| ());
        cores.join();
        // Who reads them needs no cores that run.
        let after = watch.loops();
        assert_eq!(
            after.iter().map(|core| (core.name.as_str(), core.core)).collect::<Vec<_>>(),
            names
        );
        assert!(after.iter().all(|core| core.loops.turns > 0), "{after:?}");
        drop(heard);
        let mut words: Vec<_> = hears.iter().collect();
        words.sort_unstable();
        assert_eq!(words, [0, 1, 2].map(|place| (place, Some(format!("word-{place}")))));
    }

    #[test]
    fn those_before_one_that_fails_run_until_they_are_told() {
        let (heard, hears) = mpsc::channel();
        let mut cores = Cores::default();
        let error = cores
            .start(&config(), [None, None, None], |place| {
                let heard = heard.clone();
                move |_: &mut Context<'_>| match place {
                    0 => Ok(Word { place, heard, is_over: false }),
                    _ => Err(io::Error::other(format!("the device of core {place} is away"))),
                }
            })
            .unwrap_err();
        assert_eq!(error.to_string(), "the device of core 1 is away");
        assert!(cores.is_running());
        cores.tell(|| ());
        cores.join();
        drop(heard);
        assert_eq!(hears.iter().map(|(place, _)| place).collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn a_wait_for_the_end_has_a_limit() {
        let (heard, hears) = mpsc::channel();
        let mut cores = Cores::default();
        cores
            .start(&config(), [None, None], |place| {
                let heard = heard.clone();
                move |_: &mut Context<'_>| Ok(Word { place, heard, is_over: false })
            })
            .unwrap();
        let [one, other] = &cores.senders()[..] else { panic!("two cores") };
        let other = other.clone();
        one.send(()).unwrap();
        let (limit, start) = (Duration::from_millis(100), Instant::now());
        assert_eq!(cores.join_within(limit), 1, "the second core was not told");
        assert!(start.elapsed() >= limit);
        // It runs on.
        other.send(()).unwrap();
        drop(heard);
        let mut places: Vec<usize> = hears.iter().map(|(place, _)| place).collect();
        places.sort_unstable();
        assert_eq!(places, [0, 1]);
        assert_eq!(Cores::<()>::default().join_within(Duration::from_secs(600)), 0);
    }
}
