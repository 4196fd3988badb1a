//! Where messages leave the program, without a wait for whoever reads them.
//!
//! Cores log, too. If standard error is a pipe that nobody reads, or the journal is stuck, a core that waited for it would
//! hold up all of its connections. So a daemon only puts a message where there is room. Otherwise a thread of its own waits,
//! and a bounded number of bytes waits with it; what finds no room among those is counted, and the count is told later.

use std::collections::VecDeque;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use raceline_control::logging;

/// Bytes of messages that wait, at most.
const MOST_BYTES: usize = 1 << 20;

/// While more messages come than leave, those that are lost are told of this often.
const LOSS_INTERVAL: Duration = Duration::from_secs(10);

/// Where not even that can be told, it is tried again this often.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Put {
    /// It is there.
    Taken,
    /// There is no room for it now.
    Full,
    /// It could not be put there, and would have to wait for nothing.
    Lost,
}

/// A place that takes messages.
pub(super) trait Sink: Send + Sync + 'static {
    /// Puts a message there, if that needs no wait.
    fn try_put(&self, message: &[u8]) -> Put;

    /// Puts a message there, however long that takes. False: it is lost.
    fn put(&self, message: &[u8]) -> bool;

    /// The message that so many were lost.
    fn loss(&self, count: u64) -> Vec<u8>;
}

/// A sink with those messages that wait for it.
pub(super) struct Outlet<S> {
    sink: S,
    state: Mutex<State>,
    /// For the thread: something waits.
    arrived: Condvar,
    /// For the end of the program: nothing waits any longer.
    emptied: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Vec<u8>>,
    bytes: usize,
    lost: u64,
    /// The last message about that was lost, too.
    cannot_tell: bool,
    /// The thread puts a message.
    is_putting: bool,
    /// There is a thread; until then, who logs waits.
    has_thread: bool,
}

impl State {
    /// Counts a message that is lost.
    fn lose(&mut self) {
        self.lost += 1;
        logging::count_lost_message();
    }
}

impl<S: Sink> Outlet<S> {
    pub(super) fn new(sink: S) -> Self {
        let (arrived, emptied) = (Condvar::new(), Condvar::new());
        Self { sink, state: Mutex::default(), arrived, emptied }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a message on its way.
    pub(super) fn emit(&self, message: &[u8]) {
        let mut state = self.lock();
        if !state.has_thread {
            // The lock is held, so that messages of several threads do not mix.
            if !self.sink.put(message) {
                state.lose();
            }
            return;
        }
        let put = match state.waiting.is_empty() && !state.is_putting {
            true => self.sink.try_put(message),
            false => Put::Full,
        };
        if put == Put::Taken {
            return;
        }
        if put == Put::Lost || state.bytes + message.len() > MOST_BYTES {
            state.lose();
            self.arrived.notify_one();
            return;
        }
        state.bytes += message.len();
        state.waiting.push_back(message.to_vec());
        self.arrived.notify_one();
    }

    /// Starts the thread that waits: from here on, who logs does not.
    pub(super) fn start(&'static self, name: &str) -> io::Result<()> {
        let thread = std::thread::Builder::new().name(name.to_owned());
        thread.spawn(|| self.wait_for_sink())?;
        self.lock().has_thread = true;
        Ok(())
    }

    fn wait_for_sink(&self) {
        let mut told = Instant::now();
        let mut state = self.lock();
        loop {
            let pause = if state.cannot_tell { RETRY_INTERVAL } else { LOSS_INTERVAL };
            let is_time = state.waiting.is_empty() && !state.cannot_tell;
            let tells = state.lost > 0 && (is_time || told.elapsed() >= pause);
            let lost = if tells { std::mem::take(&mut state.lost) } else { 0 };
            let message = if tells { None } else { state.waiting.pop_front() };
            if message.is_none() && !tells {
                self.emptied.notify_all();
                state = match state.lost {
                    0 => self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner),
                    _ => {
                        let waited = self.arrived.wait_timeout(state, pause);
                        waited.unwrap_or_else(PoisonError::into_inner).0
                    }
                };
                continue;
            }
            state.bytes -= message.as_ref().map_or(0, Vec::len);
            state.is_putting = true;
            drop(state);
            let message = message.unwrap_or_else(|| {
                told = Instant::now();
                self.sink.loss(lost)
            });
            let is_lost = !self.sink.put(&message);
            state = self.lock();
            state.is_putting = false;
            state.cannot_tell = tells && is_lost;
            match (is_lost, tells) {
                // The message that tells of others is none of them.
                (true, true) => state.lost += lost,
                (true, false) => state.lose(),
                (false, _) => {}
            }
        }
    }

    /// Waits until all messages have left, for at most so long. Gives whether they have, or never will.
    pub(super) fn finish(&self, most: Duration) -> bool {
        let end = Instant::now() + most;
        let mut state = self.lock();
        while state.is_putting
            || !state.waiting.is_empty()
            || (state.lost > 0 && !state.cannot_tell)
        {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.emptied.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A sink that takes messages only while it is open.
    #[derive(Default)]
    pub(crate) struct Gate {
        taken: Mutex<Vec<String>>,
        is_open: Mutex<bool>,
        opened: Condvar,
    }

    impl Gate {
        fn set(&self, is_open: bool) {
            *self.is_open.lock().unwrap() = is_open;
            self.opened.notify_all();
        }

        /// Takes a message, unless it is one that is lost.
        fn takes(&self, message: &[u8]) -> bool {
            let text = String::from_utf8(message.to_vec()).unwrap();
            let is_lost = text.starts_with("lose");
            if !is_lost {
                self.taken.lock().unwrap().push(text);
            }
            !is_lost
        }
    }

    impl Sink for Gate {
        fn try_put(&self, message: &[u8]) -> Put {
            let is_open = *self.is_open.lock().unwrap();
            if is_open && self.takes(message) {
                return Put::Taken;
            }
            if is_open { Put::Lost } else { Put::Full }
        }

        fn put(&self, message: &[u8]) -> bool {
            let closed = self.is_open.lock().unwrap();
            drop(self.opened.wait_while(closed, |is_open| !*is_open).unwrap());
            self.takes(message)
        }

        fn loss(&self, count: u64) -> Vec<u8> {
            format!("{count} lost").into_bytes()
        }
    }

    const LONG: Duration = Duration::from_secs(60);

    /// Held by tests that lose messages: the count of lost ones is that of the process.
    static LOSING: Mutex<()> = Mutex::new(());

    fn losing() -> MutexGuard<'static, ()> {
        LOSING.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn outlet() -> &'static Outlet<Gate> {
        Box::leak(Box::new(Outlet::new(Gate::default())))
    }

    #[test]
    fn messages_keep_their_order_and_nobody_waits() {
        let outlet = outlet();
        outlet.start("log-test").unwrap();
        for number in 0..50 {
            outlet.emit(format!("{number}").as_bytes());
        }
        assert!(!outlet.finish(Duration::from_millis(1)), "nothing can have left");
        outlet.sink.set(true);
        for number in 50..100 {
            outlet.emit(format!("{number}").as_bytes());
        }
        assert!(outlet.finish(LONG));
        let expected: Vec<String> = (0..100).map(|number| number.to_string()).collect();
        assert_eq!(*outlet.sink.taken.lock().unwrap(), expected);
    }

    #[test]
    fn what_finds_no_room_is_counted_and_told() {
        let _alone = losing();
        let outlet = outlet();
        outlet.start("log-test").unwrap();
        let before = logging::lost_messages();
        let message = [b'x'; 1024];
        // One of them may be on its way and so not among those that wait.
        (0..3000).for_each(|_| outlet.emit(&message));
        outlet.sink.set(true);
        assert!(outlet.finish(LONG));
        let taken = outlet.sink.taken.lock().unwrap();
        let (last, left) = taken.split_last().unwrap();
        assert!((1024..=1025).contains(&left.len()), "{}", left.len());
        let lost = 3000 - left.len();
        assert_eq!(*last, format!("{lost} lost"));
        assert_eq!(logging::lost_messages() - before, lost as u64);
    }

    /// By a core at once, by the thread that waits, and before there is one.
    #[test]
    fn what_the_sink_loses_is_counted_and_told() {
        let _alone = losing();
        let outlet = outlet();
        outlet.sink.set(true);
        outlet.emit(b"lose before");
        outlet.start("log-test").unwrap();
        outlet.sink.set(false);
        for message in ["one", "lose two", "three"] {
            outlet.emit(message.as_bytes());
        }
        outlet.sink.set(true);
        assert!(outlet.finish(LONG));
        outlet.emit(b"lose four");
        assert!(outlet.finish(LONG));
        let taken = outlet.sink.taken.lock().unwrap().clone();
        let told = |it: &&String| it.ends_with(" lost");
        let counts = taken.iter().filter(told).map(|it| it.split(' ').next().unwrap());
        assert_eq!(counts.map(|count| count.parse::<u64>().unwrap()).sum::<u64>(), 3, "{taken:?}");
        let rest: Vec<&String> = taken.iter().filter(|it| !told(it)).collect();
        assert_eq!(rest, ["one", "three"]);
    }

    #[test]
    fn without_a_thread_messages_leave_at_once() {
        let outlet = outlet();
        outlet.sink.set(true);
        outlet.emit(b"one");
        assert_eq!(*outlet.sink.taken.lock().unwrap(), ["one"]);
        assert!(outlet.finish(Duration::ZERO));
    }
}
