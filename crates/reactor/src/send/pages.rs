//! Sending memory without a copy: its pages go into a pipe, and from there to a socket (vmsplice(2),
//! splice(2)).
//!
//! The copy into a socket's buffers is most of the cost of large sends. It costs more if the peer runs on
//! a neighbouring core: the kernel takes the same few pages over and over, and these are in that core's
//! caches (lab 0040). The kernel reads a payload's pages whenever it sends them; to a peer on the same
//! machine, when the peer receives them. So this is only for bytes that stay as they are until the peer
//! has told that it has them: [`crate::SendBatch::push_kept`].

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::pipe::{IoSliceRaw, PipeFlags, SpliceFlags};

use crate::flow::policy::{LARGE_BYTES, SHARE_BYTES};
use crate::send::SendBatch;
use crate::thread::stats::IoCounts;

/// What a pipe should hold: more than one PDU's data. All pipes of an ordinary user have 64 MiB
/// together.
const PIPE_BYTES: usize = SHARE_BYTES;
/// What a pipe has by itself. With less, a copy is cheaper than the system calls.
const PIPE_BYTES_MIN: usize = LARGE_BYTES;

/// The pipe of one core, empty between calls. To be used by one thread.
#[derive(Debug, Default)]
pub struct PagePipe {
    ends: Option<(OwnedFd, OwnedFd)>,
    /// The last socket did not take all that it was given.
    filled: bool,
    /// The system does not let us do this.
    refused: bool,
}

impl PagePipe {
    /// Whether a batch is sent by way of it.
    #[inline]
    pub(crate) fn takes(&self, batch: &SendBatch) -> bool {
        batch.may_leave_by_reference() && !self.refused
    }

    /// Whether the socket that was last sent to is full.
    pub(crate) fn has_filled_socket(&self) -> bool {
        self.filled
    }

    /// As [`crate::io::nonblocking::transmit`] with some of the batch's next bytes: up to the next large
    /// payload, or as much of that as the socket, which must be non-blocking, takes.
    pub(crate) fn transmit(
        &mut self,
        fd: &OwnedFd,
        batch: &SendBatch,
        counts: &mut IoCounts,
    ) -> io::Result<usize> {
        // As in `SendBatch::prepare`.
        crate::memory::stream::fence();
        self.filled = false;
        let segments = batch.unsent();
        let small = segments.iter().take_while(|segment| !batch.is_kept(segment)).count();
        let follows = small.max(1) < segments.len();
        if small == 0 {
            // SAFETY: a kept payload is a shared buffer's, which the batch owns and nothing writes.
            let bytes = unsafe {
                std::slice::from_raw_parts(segments[0].iov_base.cast::<u8>(), segments[0].iov_len)
            };
            match self.send_pages(fd, bytes, follows, counts) {
                Err(Refused::ByPipe(error)) => self.note_refusal(&error),
                Err(Refused::BySocket(error)) => return Err(error),
                Ok(sent) => return Ok(sent),
            }
        }
        let count = small.clamp(1, crate::send::IOV_MAX);
        counts.system_calls += 1;
        send_copied(fd, &segments[..count], follows)
    }

    /// After an error that will come again, all sends from now on are copied. After another error, such
    /// as a lack of descriptors, this send is copied.
    #[cold]
    fn note_refusal(&mut self, error: &io::Error) {
        self.ends = None;
        if matches!(
            error.raw_os_error(),
            Some(libc::EPERM | libc::ENOSYS | libc::EINVAL | libc::EOPNOTSUPP)
        ) {
            self.refused = true;
            tracing::info!(
                "large writes are copied, as this system does not let their pages be sent: {error}"
            );
        } else {
            tracing::debug!("a large write is copied: {error}");
        }
    }

    /// Sends as much of `bytes` as the socket takes; more bytes follow at once if `follows`. The kernel
    /// reads the memory also after this has returned: the peer gets what it holds when the peer receives.
    ///
    /// # Errors
    /// The socket's error, or that of a system that does not permit this. `WouldBlock` when a
    /// non-blocking socket takes nothing.
    pub fn send(&mut self, fd: &impl AsFd, bytes: &[u8], follows: bool) -> io::Result<usize> {
        let sent = self.send_pages(fd, bytes, follows, &mut IoCounts::default());
        sent.map_err(|refused| match refused {
            Refused::ByPipe(error) | Refused::BySocket(error) => error,
        })
    }

    /// Sends pages of `bytes`; the rest goes with later calls.
    fn send_pages(
        &mut self,
        fd: &impl AsFd,
        bytes: &[u8],
        follows: bool,
        counts: &mut IoCounts,
    ) -> Result<usize, Refused> {
        let (reader, writer) = match &mut self.ends {
            Some(ends) => ends,
            none => none.insert(open().map_err(Refused::ByPipe)?),
        };
        counts.system_calls += 1;
        // SAFETY: it is the pipe's end for writing, so the memory is only read; it is no gift.
        let filled = unsafe {
            let bytes = [IoSliceRaw::from_slice(bytes)];
            rustix::pipe::vmsplice(&*writer, &bytes, SpliceFlags::NONBLOCK)
        };
        let filled = filled.map_err(|error| Refused::ByPipe(error.into()))?;
        let more = follows || filled < bytes.len();
        let flags =
            SpliceFlags::NONBLOCK | if more { SpliceFlags::MORE } else { SpliceFlags::empty() };
        let mut sent = 0;
        while sent < filled {
            counts.system_calls += 1;
            match rustix::pipe::splice(&*reader, None, fd, None, filled - sent, flags) {
                Ok(count) if count > 0 => sent += count,
                result => {
                    // What the socket did not take must not come before the bytes of another socket.
                    (self.ends, self.filled) = (None, true);
                    let error =
                        result.err().map_or(io::ErrorKind::WriteZero.into(), io::Error::from);
                    return if sent > 0 { Ok(sent) } else { Err(Refused::BySocket(error)) };
                }
            }
        }
        Ok(sent)
    }
}

enum Refused {
    ByPipe(io::Error),
    BySocket(io::Error),
}

fn open() -> io::Result<(OwnedFd, OwnedFd)> {
    let ends = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    if let Err(error) = rustix::pipe::fcntl_setpipe_size(&ends.1, PIPE_BYTES)
        && rustix::pipe::fcntl_getpipe_size(&ends.1)? < PIPE_BYTES_MIN
    {
        return Err(error.into());
    }
    block_sigpipe();
    Ok(ends)
}

/// splice(2) has no MSG_NOSIGNAL: to a connection that is gone it raises SIGPIPE in its thread, which
/// ends programs that are not in Rust.
fn block_sigpipe() {
    // SAFETY: sigset_t is plain data, and sigemptyset sets all of it.
    unsafe {
        let mut signals = std::mem::zeroed();
        libc::sigemptyset(&raw mut signals);
        libc::sigaddset(&raw mut signals, libc::SIGPIPE);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const signals, std::ptr::null_mut());
    }
}

fn send_copied(fd: &OwnedFd, segments: &[libc::iovec], follows: bool) -> io::Result<usize> {
    // SAFETY: msghdr is plain data for which zeroes are valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = segments.as_ptr().cast_mut();
    message.msg_iovlen = segments.len();
    let more = if follows { libc::MSG_MORE } else { 0 };
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | more;
    // SAFETY: the vectors name memory that the batch owns, and live across the call.
    let result = unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const message, flags) };
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use super::*;
    use crate::io::nonblocking::transmit;
    use crate::memory::buffer::{IoBuf, SharedBuf};
    use crate::send::Payload;
    use crate::socket;

    const LARGE: usize = 256 << 10;

    /// A sender as a core has it, and its peer.
    fn connected() -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        sender.set_nonblocking(true).unwrap();
        let (peer, _) = listener.accept().unwrap();
        peer.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        (sender.into(), peer)
    }

    fn pattern(seed: usize, len: usize) -> Vec<u8> {
        (0..len).map(|at| u8::try_from((at + seed) * 31 % 251).unwrap()).collect()
    }

    /// Two PDUs, one of which begins off a page, and what the peer has to see.
    fn sample() -> (Box<SendBatch>, SharedBuf, Vec<u8>) {
        let buf = IoBuf::from_slice(&pattern(1, LARGE)).share();
        let mut batch = SendBatch::new(64, 16);
        batch.push_bytes(b"first");
        batch.push_kept(buf.clone(), 0..LARGE / 2);
        batch.push_bytes(b"second");
        batch.push_kept(buf.clone(), 77..77 + LARGE / 2);
        let expected = [b"first", &buf[..LARGE / 2], b"second", &buf[77..77 + LARGE / 2]].concat();
        (batch, buf, expected)
    }

    /// Sends until all is gone or the socket is full; gives how much went.
    fn send(pages: &mut PagePipe, fd: &OwnedFd, batch: &mut SendBatch) -> usize {
        let mut all = 0;
        while !batch.is_empty() {
            let result = if pages.takes(batch) {
                pages.transmit(fd, batch, &mut IoCounts::default())
            } else {
                transmit(fd, batch)
            };
            match result {
                Ok(sent) => {
                    batch.advance(sent);
                    all += sent;
                }
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                    break;
                }
            }
        }
        all
    }

    /// Sends all of it to a peer that reads slowly; gives what came.
    fn exchange(pages: &mut PagePipe, (fd, peer): &mut (OwnedFd, TcpStream)) -> Vec<u8> {
        let (mut batch, _buf, expected) = sample();
        let (mut came, mut piece) = (Vec::new(), vec![0; 10_000]);
        while came.len() < expected.len() {
            send(pages, fd, &mut batch);
            let count = peer.read(&mut piece).unwrap();
            assert!(count > 0, "the end after {} bytes", came.len());
            came.extend(&piece[..count]);
        }
        came
    }

    #[test]
    fn what_is_kept_leaves_by_reference_and_what_is_not_does_not() {
        for kept in [true, false] {
            let (mut pages, (fd, mut peer)) = (PagePipe::default(), connected());
            let mut buf = IoBuf::from_slice(&[1; LARGE]);
            let memory = buf.as_mut_ptr();
            let (mut batch, buf) = (SendBatch::new(64, 16), buf.share());
            if kept {
                batch.push_kept(buf.clone(), 0..LARGE);
            } else {
                batch.push_payload(Payload::Shared(buf.clone(), 0..LARGE));
            }
            let sent = send(&mut pages, &fd, &mut batch);
            assert!(sent >= 4096);
            // Changes the payload before the peer has it, which no owner may do.
            // SAFETY: the memory is `buf`'s, and this thread alone uses it.
            unsafe { memory.write_bytes(2, LARGE) };
            let mut came = vec![0; sent];
            peer.read_exact(&mut came).unwrap();
            let expected = if kept { 2 } else { 1 };
            assert!(came.iter().all(|&byte| byte == expected), "kept: {kept}");
        }
    }

    #[test]
    fn bytes_arrive_in_order_whatever_the_socket_takes() {
        let (_, _, expected) = sample();
        let mut small = PagePipe { ends: Some(pipe(8 << 10)), ..PagePipe::default() };
        let mut refused = PagePipe { refused: true, ..PagePipe::default() };
        for pages in [&mut PagePipe::default(), &mut small, &mut refused] {
            let mut pair = connected();
            socket2::SockRef::from(&pair.0).set_send_buffer_size(16 << 10).unwrap();
            assert!(exchange(pages, &mut pair) == expected);
        }
    }

    fn pipe(bytes: usize) -> (OwnedFd, OwnedFd) {
        let ends = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
        rustix::pipe::fcntl_setpipe_size(&ends.1, bytes).unwrap();
        ends
    }

    #[test]
    fn what_one_socket_leaves_does_not_go_to_another() {
        let (_, _, expected) = sample();
        let mut pages = PagePipe::default();
        let full = connected();
        let mut unread = Vec::new();
        loop {
            let (mut batch, buf, _) = sample();
            send(&mut pages, &full.0, &mut batch);
            unread.push(buf);
            if !batch.is_empty() {
                break;
            }
        }
        assert!(exchange(&mut pages, &mut connected()) == expected);
    }

    #[test]
    fn a_connection_that_is_gone_is_an_error_of_its_own() {
        let (mut pages, (fd, peer)) = (PagePipe::default(), connected());
        drop(peer);
        let error = loop {
            let (mut batch, _buf, _) = sample();
            batch.advance(5);
            match pages.transmit(&fd, &batch, &mut IoCounts::default()) {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        let kinds = [io::ErrorKind::BrokenPipe, io::ErrorKind::ConnectionReset];
        assert!(kinds.contains(&error.kind()), "{error}");
        assert!(!pages.refused);
    }

    #[test]
    fn closing_drops_what_the_peer_has_not_acknowledged_and_nothing_else() {
        let (mut pages, (fd, mut peer)) = (PagePipe::default(), connected());
        let (mut batch, _buf, expected) = sample();
        socket::reset_on_close(&fd);
        let mut came = vec![0; send(&mut pages, &fd, &mut batch)];
        peer.read_exact(&mut came).unwrap();
        assert!(came == expected[..came.len()]);
        // Copied, and not acknowledged at once.
        assert_eq!(rustix::io::write(&fd, b"the end").unwrap(), 7);
        socket::prepare_close(&fd, Some(7), false);
        drop(fd);
        assert_eq!(peer.read(&mut came).unwrap(), 7);
        assert_eq!(peer.read(&mut came).unwrap(), 0, "an orderly end");

        let (fd, mut peer) = connected();
        socket::reset_on_close(&fd);
        let mut kept = Vec::new();
        while kept.len() < 100 {
            let (mut batch, buf, _) = sample();
            send(&mut pages, &fd, &mut batch);
            kept.push(buf);
        }
        socket::prepare_close(&fd, Some(0), false);
        let mut came = Vec::new();
        let error = peer.read_to_end(&mut came).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }

    #[test]
    fn a_batch_leaves_by_reference_only_if_all_that_is_large_is_kept() {
        let buf = || IoBuf::heap(LARGE).share();
        let filled = |fill: &dyn Fn(&mut SendBatch)| {
            let mut batch = SendBatch::new(64, 16);
            batch.push_bytes(b"header");
            fill(&mut batch);
            batch.may_leave_by_reference()
        };
        assert!(filled(&|batch| batch.push_kept(buf(), 0..LARGE)));
        assert!(filled(&|batch| {
            batch.push_payload(Payload::Zeroes(100));
            batch.push_kept(buf(), 0..LARGE);
        }));
        assert!(!filled(&|batch| batch.push_payload(Payload::Shared(buf(), 0..LARGE))));
        assert!(!filled(&|batch| {
            batch.push_kept(buf(), 0..LARGE);
            batch.push_payload(Payload::Shared(buf(), 0..LARGE));
        }));
        assert!(!filled(&|batch| {
            batch.push_kept(buf(), 0..LARGE);
            batch.clear();
            batch.push_payload(Payload::Shared(buf(), 0..LARGE));
        }));
        assert!(!filled(&|batch| batch.push_kept(IoBuf::heap(100).share(), 0..100)));
        assert!(!filled(&|batch| {
            batch.push_kept(buf(), 0..LARGE);
            batch.take_turns(Some(1 << 20));
        }));
    }
}
