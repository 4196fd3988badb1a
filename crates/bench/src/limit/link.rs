//! The sockets between the two sides, and finding those with something to read.

use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll;
use rustix::fd::OwnedFd;

use super::tls::Records;
use super::tuning::Look;
use super::{LimitConfig, LimitError, Mode, Side};

/// Longest wait in the kernel: after it the sides check whether the window is over.
pub(super) const WAIT: Duration = Duration::from_millis(10);
/// Most sockets that one wait reports; the next wait reports the others.
const EVENTS: usize = 256;
/// How long a connection of the loopback may take to be accepted.
const ACCEPT_LIMIT: Duration = Duration::from_secs(5);

/// Connects pairs of sockets over the loopback: the target's ends and the host's ends, in the
/// same order.
pub(super) fn connect(
    count: usize,
    mode: Mode,
) -> Result<(Vec<TcpStream>, Vec<TcpStream>), LimitError> {
    let failed = |error| LimitError::Connect { count, error };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let (mut target, mut host) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for _ in 0..count {
        let stream = TcpStream::connect(address).map_err(failed)?;
        let local = stream.local_addr().map_err(failed)?;
        target.push(accept(&listener, local).map_err(failed)?);
        host.push(stream);
    }
    for stream in target.iter().chain(&host) {
        prepare(stream, mode == Mode::Blocking && count == 1).map_err(failed)?;
    }
    Ok((target, host))
}

/// Accepts the connection from this address; connections from other addresses are closed.
fn accept(listener: &TcpListener, from: SocketAddr) -> io::Result<TcpStream> {
    let deadline = Instant::now() + ACCEPT_LIMIT;
    loop {
        match listener.accept() {
            Ok((stream, peer)) if peer == from => return Ok(stream),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if Instant::now() >= deadline {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => return Err(error),
        }
    }
}

fn prepare(stream: &TcpStream, blocking: bool) -> io::Result<()> {
    stream.set_nodelay(true)?;
    if blocking {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(WAIT))?;
        stream.set_write_timeout(Some(WAIT))
    } else {
        stream.set_nonblocking(true)
    }
}

/// Spins for this time without touching the sockets.
pub(super) fn pause(time: Duration) {
    if time.is_zero() {
        return;
    }
    let until = Instant::now() + time;
    while Instant::now() < until {
        std::hint::spin_loop();
    }
}

/// The result of a receive or send: bytes, none for now, or the end.
pub(super) fn moved(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) => match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted => {
                Ok(None)
            }
            _ => Err(error),
        },
    }
}

/// One end of a connection.
pub(super) struct Link {
    stream: TcpStream,
    /// The records of windows with TLS.
    records: Option<Box<Records>>,
    /// Whether this window is one of them.
    tls: bool,
}

impl Link {
    pub(super) fn new(stream: TcpStream, config: &LimitConfig, side: Side) -> Self {
        let records = config.tls.map(|suite| Box::new(Records::new(suite, side)));
        Self { stream, records, tls: false }
    }

    pub(super) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Says whether the bytes of the next window go in records of TLS. None is under way.
    pub(super) fn set_tls(&mut self, tls: bool) {
        self.tls = tls;
    }

    fn records(&mut self) -> Option<(&mut Records, &TcpStream)> {
        let records = self.records.as_deref_mut().filter(|_| self.tls)?;
        Some((records, &self.stream))
    }

    /// Receives; gives the number of bytes, if any have come.
    pub(super) fn read(&mut self, into: &mut [u8]) -> io::Result<Option<usize>> {
        match self.records() {
            Some((records, stream)) => records.read(stream, [into, &mut []]),
            None => moved((&self.stream).read(into)),
        }
    }

    /// The same into two memories, of which the first may be empty.
    pub(super) fn read_both(
        &mut self,
        [first, second]: [&mut [u8]; 2],
    ) -> io::Result<Option<usize>> {
        if let Some((records, stream)) = self.records() {
            return records.read(stream, [first, second]);
        }
        let skip = usize::from(first.is_empty());
        let mut into = [IoSliceMut::new(first), IoSliceMut::new(second)];
        moved((&self.stream).read_vectored(&mut into[skip..]))
    }

    /// Whether a receive gives bytes that epoll does not report.
    pub(super) fn holds_more(&self) -> bool {
        self.tls && self.records.as_ref().is_some_and(|records| records.holds_more())
    }

    fn write(&mut self, slices: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
        match self.records() {
            Some((records, stream)) => records.send(stream, slices),
            None => moved((&self.stream).write_vectored(slices)),
        }
    }
}

/// Slices to send in one call, at most `N` and at most a given number of bytes.
pub(super) struct Gather<'a, const N: usize> {
    slices: [IoSlice<'a>; N],
    used: usize,
    /// Bytes at the beginning that have been sent already.
    skip: usize,
    room: usize,
}

impl<'a, const N: usize> Gather<'a, N> {
    pub(super) fn new(skip: usize, bytes: usize) -> Self {
        Self { slices: [IoSlice::new(&[]); N], used: 0, skip, room: bytes }
    }

    /// Appends bytes; false if no more fit.
    pub(super) fn push(&mut self, bytes: &'a [u8]) -> bool {
        let skipped = self.skip.min(bytes.len());
        self.skip -= skipped;
        let bytes = &bytes[skipped..];
        if bytes.is_empty() {
            return true;
        }
        let taken = bytes.len().min(self.room);
        if taken == 0 || self.used == N {
            return false;
        }
        self.slices[self.used] = IoSlice::new(&bytes[..taken]);
        self.used += 1;
        self.room -= taken;
        taken == bytes.len()
    }

    /// Number of bytes to send.
    pub(super) fn len(&self) -> usize {
        self.slices[..self.used].iter().map(|slice| slice.len()).sum()
    }

    /// Sends; gives the number of bytes, if the socket took any.
    pub(super) fn send(&self, link: &mut Link) -> io::Result<Option<usize>> {
        link.write(&self.slices[..self.used])
    }
}

/// Finds the connections to handle: all in turn, or those that epoll reports.
pub(super) struct Finder {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
    /// For scanning: number of connections, which are visited in order.
    count: usize,
    look: Look,
    /// Time limit for a wait for events.
    timeout: Timespec,
}

impl Finder {
    pub(super) fn new(streams: &[TcpStream], mode: Mode) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (index, stream) in (0u64..).zip(streams) {
            let data = epoll::EventData::new_u64(index);
            epoll::add(&epoll, stream, data, epoll::EventFlags::IN)?;
        }
        let wait = if mode == Mode::Blocking { WAIT } else { Duration::ZERO };
        Ok(Self {
            epoll,
            events: Vec::with_capacity(EVENTS),
            count: streams.len(),
            look: Look::Scan,
            timeout: Timespec { tv_sec: 0, tv_nsec: wait.subsec_nanos().into() },
        })
    }

    pub(super) fn set_look(&mut self, look: Look) {
        self.look = look;
    }

    /// Finds connections; gives their number.
    pub(super) fn find(&mut self) -> io::Result<usize> {
        if self.look == Look::Scan {
            return Ok(self.count);
        }
        self.events.clear();
        let buffer = rustix::buffer::spare_capacity(&mut self.events);
        match epoll::wait(&self.epoll, buffer, Some(&self.timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(self.events.len()),
            Err(error) => Err(error.into()),
        }
    }

    /// The connection at this position of the last result.
    pub(super) fn connection(&self, position: usize) -> usize {
        match self.look {
            Look::Scan => position,
            Look::Epoll => {
                let index = self.events[position].data.u64();
                usize::try_from(index).unwrap_or(usize::MAX)
            }
        }
    }

    /// Sets whether a connection is also reported when it can be written.
    pub(super) fn watch_writing(
        &self,
        index: usize,
        stream: &TcpStream,
        writing: bool,
    ) -> io::Result<()> {
        let flags = if writing {
            epoll::EventFlags::IN | epoll::EventFlags::OUT
        } else {
            epoll::EventFlags::IN
        };
        let data = epoll::EventData::new_u64(index as u64);
        Ok(epoll::modify(&self.epoll, stream, data, flags)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined<const N: usize>(gather: &Gather<'_, N>) -> Vec<u8> {
        gather.slices[..gather.used].iter().flat_map(|slice| slice.iter().copied()).collect()
    }

    #[test]
    fn what_was_sent_before_is_left_out_and_the_room_is_kept() {
        let mut gather = Gather::<4>::new(5, 6);
        assert!(gather.push(b"abc"));
        assert!(gather.push(b"defg"));
        assert!(!gather.push(b"hijkl"), "one byte too many");
        assert_eq!(joined(&gather), b"fghijk");
        assert!(!gather.push(b"m"));
    }

    #[test]
    fn slices_are_counted() {
        let mut gather = Gather::<2>::new(0, usize::MAX);
        assert!(gather.push(b"a") && gather.push(b"b") && !gather.push(b"c"));
        assert_eq!(joined(&gather), b"ab");
    }

    #[test]
    fn the_ends_are_in_the_same_order() {
        let (target, host) = connect(3, Mode::Polled).unwrap();
        for (target, host) in target.iter().zip(&host) {
            assert_eq!(target.peer_addr().unwrap(), host.local_addr().unwrap());
        }
    }

    #[test]
    fn a_socket_with_data_is_found() {
        let (target, host) = connect(3, Mode::Blocking).unwrap();
        let mut finder = Finder::new(&target, Mode::Blocking).unwrap();
        assert_eq!(finder.find().unwrap(), 3);
        finder.set_look(Look::Epoll);
        assert_eq!(finder.find().unwrap(), 0);
        (&host[1]).write_all(b"x").unwrap();
        let deadline = Instant::now() + ACCEPT_LIMIT;
        while finder.find().unwrap() == 0 {
            assert!(Instant::now() < deadline);
        }
        assert_eq!(finder.connection(0), 1);
    }
}
