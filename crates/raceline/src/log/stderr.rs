//! Standard error, as a place for lines of the log.

use std::io::{self, Write as _};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FileType;

use super::outlet::{Outlet, Sink};

/// Bytes that a pipe takes at once if it takes any (PIPE_BUF of pipe(7)).
const PIPE_BUF: usize = 4096;

/// Standard error.
pub(super) struct Stderr {
    /// A file always says that there is room, and may then wait for its disk.
    is_file: bool,
}

impl Stderr {
    pub(super) fn new() -> Self {
        let stat = rustix::fs::fstat(rustix::stdio::stderr());
        let kind = stat.map(|stat| FileType::from_raw_mode(stat.st_mode));
        Self { is_file: kind == Ok(FileType::RegularFile) }
    }

    fn has_room(wait: Option<&Timespec>) -> bool {
        let stderr = rustix::stdio::stderr();
        let mut asked = [PollFd::new(&stderr, PollFlags::OUT)];
        // Whoever has closed it takes everything, too: the write says so.
        poll(&mut asked, wait).is_ok_and(|ready| ready > 0)
    }
}

impl Sink for Stderr {
    fn try_put(&self, line: &[u8]) -> bool {
        if self.is_file || line.len() > PIPE_BUF || !Self::has_room(Some(&Timespec::default())) {
            return false;
        }
        self.put(line);
        true
    }

    fn put(&self, mut line: &[u8]) {
        while !line.is_empty() {
            match io::stderr().write(line) {
                Ok(count) if count > 0 => line = &line[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Somebody else has made it so.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => _ = Self::has_room(None),
                // Nobody is left to be told.
                _ => return,
            }
        }
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
