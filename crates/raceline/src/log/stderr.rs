//! Standard error, as a place for lines of the log.

use std::io;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::stdio::stderr;

use super::outlet::{Outlet, Put, Sink};

/// Bytes that a pipe takes at once if it takes any (PIPE_BUF of pipe(7)).
const PIPE_BUF: usize = 4096;

/// Standard error.
pub(super) struct Stderr {
    /// A pipe or a socket that has room takes a short line at once. A terminal may take half of it and wait, and a file
    /// always says that it has room, and may then wait for its disk.
    takes_lines: bool,
}

impl Stderr {
    pub(super) fn new() -> Self {
        let kind = rustix::fs::fstat(stderr()).map(|stat| FileType::from_raw_mode(stat.st_mode));
        Self { takes_lines: matches!(kind, Ok(FileType::Fifo | FileType::Socket)) }
    }

    /// Whether it takes bytes, or does so before this time is over.
    pub(super) fn has_room(within: Duration) -> bool {
        let within = Timespec {
            tv_sec: i64::try_from(within.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: within.subsec_nanos().into(),
        };
        Self::wait_for_room(Some(&within))
    }

    fn wait_for_room(within: Option<&Timespec>) -> bool {
        let stderr = stderr();
        let mut asked = [PollFd::new(&stderr, PollFlags::OUT)];
        // If nobody can read it any more, it takes everything, too: the write says so.
        poll(&mut asked, within).is_ok_and(|ready| ready > 0)
    }
}

impl Sink for Stderr {
    fn try_put(&self, line: &[u8]) -> Put {
        if !self.takes_lines || line.len() > PIPE_BUF || !Self::has_room(Duration::ZERO) {
            return Put::Full;
        }
        match rustix::io::write(stderr(), line) {
            Err(Errno::AGAIN | Errno::INTR) => Put::Full,
            Ok(count) if self.put(&line[count..]) => Put::Taken,
            _ => Put::Lost,
        }
    }

    // Not by way of the standard library's lock: a thread that waits here would have it.
    fn put(&self, mut line: &[u8]) -> bool {
        while !line.is_empty() {
            match rustix::io::write(stderr(), line) {
                Ok(count) if count > 0 => line = &line[count..],
                Err(Errno::INTR) => {}
                // Somebody else has made it so.
                Err(Errno::AGAIN) => _ = Self::wait_for_room(None),
                _ => return false,
            }
        }
        true
    }

    fn loss(&self, count: u64) -> Vec<u8> {
        format!("raceline: {count} messages are lost: standard error was not read, or its disk was too slow\n")
            .into_bytes()
    }
}

/// Writes one line with each call.
#[derive(Clone, Copy)]
pub(super) struct Lines(pub(super) &'static Outlet<Stderr>);

impl io::Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.emit(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
