//! Waits for an [`EpollIo`](super::EpollIo) without borrowing it: other threads may use it meanwhile.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::thread::waker::Waker;

/// Waits until there is an event to be fetched, or the waker fires.
#[derive(Debug)]
pub struct Sleeper {
    epoll: OwnedFd,
    waker: Waker,
}

impl Sleeper {
    pub(super) fn new(epoll: OwnedFd, waker: Waker) -> Sleeper {
        Sleeper { epoll, waker }
    }

    /// The waker that ends a sleep, or the next one.
    #[must_use]
    pub fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Sleeps until a socket or a file has news, the waker fires, or it is `until`. False when it did
    /// not sleep, because it had been woken before.
    pub fn sleep(&self, until: Option<Instant>) -> bool {
        let slept = self.waker.start_wait();
        if slept {
            // The next user of the epoll instance fetches the event, that of the waker included.
            wait_readable(self.epoll.as_raw_fd(), until);
        }
        self.waker.end_wait();
        slept
    }

    /// As [`Self::sleep`], but ignores sockets and files: another thread takes care of them.
    pub fn sleep_until_woken(&self, until: Option<Instant>) -> bool {
        let slept = self.waker.start_wait();
        if slept {
            wait_readable(self.waker.fd(), until);
            self.waker.drain();
        }
        self.waker.end_wait();
        slept
    }
}

/// Returns when the descriptor is readable, it is `until`, or a signal has come.
fn wait_readable(fd: libc::c_int, until: Option<Instant>) {
    // Rounded up, so as not to come too early and have to sleep again.
    let timeout = until.map(|until| until.saturating_duration_since(Instant::now()));
    let milliseconds = |time: Duration| time.as_nanos().div_ceil(1_000_000);
    let timeout_ms =
        timeout.map_or(-1, |time| i32::try_from(milliseconds(time)).unwrap_or(i32::MAX));
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid entry, which lives across the call.
    let result = unsafe { libc::poll(&raw mut poll, 1, timeout_ms) };
    if result < 0 {
        let error = io::Error::last_os_error();
        debug_assert_eq!(error.kind(), io::ErrorKind::Interrupted, "{error}");
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::io::{Io, Outcome, RecvBuffers, Token, Wait};
    use crate::{EpollIo, IoBuf, Socket};

    /// Bound of what is waited for.
    const LIMIT: Duration = Duration::from_secs(20);

    #[test]
    fn a_thread_without_the_io_learns_of_bytes_and_of_wake_ups() {
        let mut io = EpollIo::new().unwrap();
        let sleeper = io.sleeper().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (socket, _) = listener.accept().unwrap();
        let socket = io.adopt(Socket::from_fd(socket.into()).unwrap()).unwrap();
        let token = Token { owner: 0, generation: 0, index: 0 };
        let buffers = RecvBuffers { payload: None, staging: IoBuf::heap(16), staging_range: 0..16 };
        io.recv(socket, buffers, token);
        assert!(io.wants_poll(), "it does not know yet that nothing has come");
        let mut done = Vec::new();
        for _ in 0..2 {
            io.poll(Wait::No, &mut done).unwrap();
        }
        assert!(done.is_empty() && !io.wants_poll());

        let soon = Instant::now() + Duration::from_millis(1);
        assert!(sleeper.sleep(Some(soon)), "nothing happens");
        assert!(Instant::now() >= soon);
        let late = Instant::now() + LIMIT;
        (&peer).write_all(b"news").unwrap();
        assert!(sleeper.sleep(Some(late)));
        io.poll(Wait::No, &mut done).unwrap();
        assert!(matches!(done[0].outcome, Outcome::Received(Ok(4), _)), "{done:?}");

        sleeper.waker().wake();
        assert!(!sleeper.sleep(Some(late)), "it was woken before");
        let woken = std::thread::spawn({
            let waker = sleeper.waker().clone();
            move || waker.wake()
        });
        sleeper.sleep_until_woken(Some(late));
        woken.join().unwrap();
        assert!(Instant::now() < late, "it slept on");
    }
}
