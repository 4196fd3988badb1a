//! A thread that waits for a future, without allocating each time.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Instant;

/// Ends the wait of one thread.
struct Parked {
    thread: Thread,
    woken: AtomicBool,
}

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

thread_local! {
    /// One for all waits of a thread: a wake-up that comes late costs one more look.
    static PARKED: Arc<Parked> =
        Arc::new(Parked { thread: std::thread::current(), woken: AtomicBool::new(false) });
}

/// Waits until the future is ready.
pub(super) fn block_on<F: Future + Unpin>(mut future: F) -> F::Output {
    loop {
        if let Poll::Ready(output) = wait_once(&mut future, None) {
            return output;
        }
    }
}

/// Waits until the future is ready or the time is over, and gives the future back then.
pub(super) fn block_on_until<F: Future + Unpin>(
    mut future: F,
    until: Instant,
) -> Result<F::Output, F> {
    loop {
        if let Poll::Ready(output) = wait_once(&mut future, Some(until)) {
            return Ok(output);
        }
        if Instant::now() >= until {
            return Err(future);
        }
    }
}

/// Polls, and if that does not suffice, sleeps until the future calls or the time is over.
fn wait_once<F: Future + Unpin>(future: &mut F, until: Option<Instant>) -> Poll<F::Output> {
    let parked = PARKED.with(Arc::clone);
    let waker = Waker::from(Arc::clone(&parked));
    let polled = Pin::new(future).poll(&mut Context::from_waker(&waker));
    if polled.is_pending() && !parked.woken.swap(false, Ordering::Acquire) {
        match until {
            None => std::thread::park(),
            Some(until) => {
                std::thread::park_timeout(until.saturating_duration_since(Instant::now()));
            }
        }
        parked.woken.store(false, Ordering::Relaxed);
    }
    polled
}
