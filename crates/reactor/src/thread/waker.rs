//! Ends a core's wait from another thread. It makes a system call only if the core really waits.
//!
//! A `WakeState`, which is private to this crate, says whether the core waits.

#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use crate::thread::wake_state::WakeState;

/// Ends a waiting [`crate::Io::poll`], or the next one. Cheap when the core is awake.
#[derive(Clone, Debug)]
pub struct Waker {
    /// None in simulation, where no core ever waits.
    shared: Option<Arc<Shared>>,
}

#[derive(Debug)]
struct Shared {
    state: WakeState,
    /// An eventfd(2).
    event: File,
}

impl Waker {
    /// A waker that does nothing.
    pub fn none() -> Waker {
        Waker { shared: None }
    }

    /// A waker with its own eventfd.
    pub(crate) fn new() -> io::Result<Waker> {
        let event = File::from(eventfd()?);
        Ok(Waker { shared: Some(Arc::new(Shared { state: WakeState::new(), event })) })
    }

    /// Wakes the core, now or as soon as it wants to wait.
    pub fn wake(&self) {
        let Some(shared) = &self.shared else { return };
        if shared.state.notify() {
            // It can only fail when the counter is about to overflow: then it is readable.
            let _ = (&shared.event).write(&1u64.to_ne_bytes());
        }
    }

    /// Declares that the core is about to wait. False if it was woken meanwhile: then it must
    /// not wait, but look for work again.
    pub(crate) fn start_wait(&self) -> bool {
        self.shared.as_ref().is_some_and(|shared| shared.state.start_wait())
    }

    /// Declares that the core runs again.
    pub(crate) fn end_wait(&self) {
        if let Some(shared) = &self.shared {
            shared.state.end_wait();
        }
    }

    /// The eventfd, readable after a wake-up until [`Waker::drain`].
    pub(crate) fn fd(&self) -> RawFd {
        self.shared.as_ref().map_or(-1, |shared| shared.event.as_raw_fd())
    }

    /// Makes the eventfd unreadable again.
    pub(crate) fn drain(&self) {
        if let Some(shared) = &self.shared {
            // `WouldBlock` when nothing was written.
            let _ = (&shared.event).read(&mut [0; 8]);
        }
    }
}

/// A new eventfd(2) that nobody waits at yet.
pub(crate) fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: takes no pointers.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just made, and without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readable(waker: &Waker) -> bool {
        let shared = waker.shared.as_ref().unwrap();
        (&shared.event).read(&mut [0; 8]).is_ok()
    }

    #[test]
    fn a_running_core_is_woken_without_a_system_call() {
        let waker = Waker::new().unwrap();
        waker.wake();
        assert!(!readable(&waker));
        assert!(!waker.start_wait(), "must look for work first");
        assert!(waker.start_wait());
        waker.clone().wake();
        waker.wake();
        assert!(readable(&waker));
        waker.end_wait();
        assert!(waker.start_wait());
        assert!(!readable(&waker));
    }

    #[test]
    fn no_wake_up_is_lost() {
        use std::sync::atomic::{AtomicU32, Ordering};
        let waker = Waker::new().unwrap();
        let sent = Arc::new(AtomicU32::new(0));
        let count = 20_000;
        let thread = std::thread::spawn({
            let (waker, sent) = (waker.clone(), sent.clone());
            move || {
                for _ in 0..count {
                    sent.fetch_add(1, Ordering::Relaxed);
                    waker.wake();
                }
            }
        });
        // A lost wake-up would leave this waiting for ever: the time limit makes it a failure.
        while sent.load(Ordering::Relaxed) < count {
            if waker.start_wait() {
                let mut poll = libc::pollfd { fd: waker.fd(), events: libc::POLLIN, revents: 0 };
                // SAFETY: one valid entry.
                let ready = unsafe { libc::poll(&raw mut poll, 1, 10_000) };
                assert_eq!(ready, 1, "a wake-up was lost");
                waker.drain();
            }
            waker.end_wait();
        }
        thread.join().unwrap();
    }
}
