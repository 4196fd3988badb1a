//! The ring of a core that serves a queue of a ublk disk: it takes nothing but that queue's commands. Other cores have none.
//!
//! Where the kernel makes the pages of requests buffers of this ring ([`UblkQueue::pages`]), it also reads and writes files
//! with those buffers, and with no other memory.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::ptr::NonNull;
use std::sync::Arc;

use io_uring::register::Restriction;
use io_uring::types::Fd;
use io_uring::{IoUring, opcode, squeue};

use super::ring::Watch;
use super::{UBLK_DATA, UringIo};
use crate::io::socket::not_usable;
use crate::io::ublk::{DESCRIPTOR_LEN, UblkCommand, UblkDescriptor, UblkMove, UblkQueue};
use crate::io::{Completion, FileId, Outcome, Token};
use crate::memory::buffer::IoBuf;
use crate::memory::mapping::{Mapping, PAGE_SIZE};

/// The bit of `user_data` of reads and writes of files; the rest is the tag.
const MOVE: u64 = 1 << 32;

/// A move in progress.
struct Moving {
    token: Token,
    file: Arc<File>,
    what: UblkMove,
    progress: u32,
}

impl Moving {
    /// The submission for what is left to do.
    fn entry(&self) -> squeue::Entry {
        let UblkMove { tag, writes, durable, offset, len } = self.what;
        let (fd, offset) = (Fd(self.file.as_raw_fd()), offset + u64::from(self.progress));
        // The address in a buffer of pages of the kernel is the distance from its beginning.
        let place = std::ptr::without_provenance_mut(self.progress as usize);
        let rest = len - self.progress;
        let entry = if writes {
            let flags = if durable { libc::RWF_DSYNC } else { 0 };
            opcode::WriteFixed::new(fd, place, rest, tag).offset(offset).rw_flags(flags).build()
        } else {
            opcode::ReadFixed::new(fd, place, rest, tag).offset(offset).build()
        };
        entry.user_data(MOVE | u64::from(tag))
    }

    /// Takes note of a result; gives that of the whole move, unless there is more to do.
    fn advance(&mut self, result: i32) -> Option<io::Result<()>> {
        match u32::try_from(result) {
            Ok(0) => Some(Err(match self.what.writes {
                true => io::ErrorKind::WriteZero.into(),
                false => io::ErrorKind::UnexpectedEof.into(),
            })),
            Ok(count) => {
                self.progress = self.progress.saturating_add(count).min(self.what.len);
                (self.progress == self.what.len).then_some(Ok(()))
            }
            Err(_) if matches!(-result, libc::EAGAIN | libc::EINTR) => None,
            Err(_) => Some(Err(io::Error::from_raw_os_error(-result))),
        }
    }
}

/// How often a turn tries to give the kernel what is left of moves.
const SUBMISSIONS_MAX: usize = 4;

/// A queue, and the commands that the kernel has of it.
pub(super) struct UblkRing {
    ring: IoUring,
    watch: Watch,
    file: Arc<File>,
    queue: UblkQueue,
    /// What the kernel asks for, one descriptor for each tag.
    descriptors: Mapping,
    /// What belongs to the command that the kernel has of each tag.
    commands: Box<[Option<(Token, IoBuf)>]>,
    /// The move that uses the pages of each tag's request.
    moves: Box<[Option<Moving>]>,
    /// Commands and moves that cannot be.
    refused: VecDeque<Completion>,
}

impl UblkRing {
    fn new(file: Arc<File>, queue: UblkQueue) -> io::Result<Self> {
        let (offset, len) = queue.descriptors(PAGE_SIZE)?;
        let descriptors = Mapping::of_device(file.as_fd(), offset, len)?;
        let mut builder = IoUring::builder();
        // Requests come while this thread does something else: a flag shows them, and no interrupt.
        builder.setup_coop_taskrun().setup_taskrun_flag().setup_submit_all().setup_r_disabled();
        // Each tag has one command or move at most, so that there always is room.
        let mut ring: IoUring = builder.build(u32::from(queue.depth))?;
        let watch = Watch::new(&mut ring)?;
        let submitter = ring.submitter();
        let mut permitted = vec![opcode::UringCmd16::CODE];
        if queue.pages {
            // The kernel fills the table in, and empties it, as requests come and go.
            submitter.register_buffers_sparse(queue.depth.into())?;
            permitted.extend([opcode::ReadFixed::CODE, opcode::WriteFixed::CODE]);
        }
        let mut permitted: Vec<_> = permitted.into_iter().map(Restriction::sqe_op).collect();
        submitter.register_restrictions(&mut permitted)?;
        submitter.register_enable_rings()?;
        let commands = (0..queue.depth).map(|_| None).collect();
        let moves = (0..queue.depth).map(|_| None).collect();
        let refused = VecDeque::new();
        Ok(Self { ring, watch, file, queue, descriptors, commands, moves, refused })
    }

    fn push(&mut self, command: UblkCommand, buf: IoBuf, token: Token) {
        let most = usize::try_from(self.queue.max_io_bytes).unwrap_or(usize::MAX);
        let slot = self.commands.get_mut(usize::from(command.tag)).filter(|slot| slot.is_none());
        let Some(slot) = slot.filter(|_| buf.capacity() >= most) else {
            let outcome = Outcome::Ublk(Err(io::ErrorKind::InvalidInput.into()), buf);
            return self.refused.push_back(Completion { token, outcome });
        };
        let address = buf.as_io_ptr().expose_provenance() as u64;
        let (number, bytes) = self.queue.command(command, address);
        let entry = opcode::UringCmd16::new(Fd(self.file.as_raw_fd()), number).cmd(bytes);
        let entry = entry.addr(self.queue.registration(command.tag)).build();
        let entry = entry.user_data(u64::from(command.tag));
        // SAFETY: the kernel reads and writes at most `max_io_bytes` at `address`, which the buffer has, until the
        // command completes. Until then the buffer is in `commands`, or leaked.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        match pushed {
            Ok(()) => *slot = Some((token, buf)),
            Err(_) => {
                let outcome = Outcome::Ublk(Err(io::ErrorKind::QuotaExceeded.into()), buf);
                self.refused.push_back(Completion { token, outcome });
            }
        }
    }

    /// Starts a move for a request that this process has.
    fn push_move(&mut self, file: Arc<File>, what: UblkMove, token: Token) {
        let tag = usize::from(what.tag);
        let has_request = self.commands.get(tag).is_some_and(Option::is_none);
        let fits = self.queue.pages && (1..=self.queue.max_io_bytes).contains(&what.len);
        match self.moves.get_mut(tag).filter(|slot| slot.is_none() && has_request && fits) {
            Some(slot) => {
                *slot = Some(Moving { token, file, what, progress: 0 });
                self.submit_move(tag);
            }
            None => self.refuse_move(token, io::ErrorKind::InvalidInput),
        }
    }

    fn refuse_move(&mut self, token: Token, kind: io::ErrorKind) {
        let outcome = Outcome::Synced(Err(kind.into()));
        self.refused.push_back(Completion { token, outcome });
    }

    /// Queues what is left of the move of a tag.
    fn submit_move(&mut self, tag: usize) {
        let Some(moving) = self.moves.get(tag).and_then(Option::as_ref) else { return };
        let (entry, token) = (moving.entry(), moving.token);
        // SAFETY: the entry names no memory of this process: its buffer is one of the kernel's pages, or none, which is an
        // error. Its file is open until the completion.
        if unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.moves[tag] = None;
            self.refuse_move(token, io::ErrorKind::QuotaExceeded);
        }
    }

    /// A piece of a move is done; gives the end of the move, if it was the last one.
    fn handle_moved(&mut self, tag: usize, result: i32) -> Option<Completion> {
        let Some(slot) = self.moves.get_mut(tag).filter(|slot| slot.is_some()) else {
            debug_assert!(false, "a completion for no move");
            return None;
        };
        match slot.as_mut()?.advance(result) {
            Some(result) => {
                let token = slot.take()?.token;
                Some(Completion { token, outcome: Outcome::Synced(result) })
            }
            None => {
                self.submit_move(tag);
                None
            }
        }
    }

    /// Takes what is queued to the kernel, and has it look for requests that have come.
    fn submit(&mut self) -> io::Result<()> {
        let submission = self.ring.submission();
        let idle = submission.is_empty() && !submission.cq_overflow() && !submission.taskrun();
        drop(submission);
        if idle {
            return Ok(());
        }
        match self.ring.submit_and_wait(0) {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                Some(libc::EINTR | libc::EBUSY | libc::EAGAIN) => Ok(()),
                _ => Err(error),
            },
        }
    }

    /// The next command that has completed.
    fn next(&mut self) -> Option<Completion> {
        if let Some(refused) = self.refused.pop_front() {
            return Some(refused);
        }
        loop {
            let entry = self.ring.completion().next()?;
            if entry.user_data() & MOVE != 0 {
                let tag = usize::try_from(entry.user_data() & !MOVE).unwrap_or(usize::MAX);
                match self.handle_moved(tag, entry.result()) {
                    Some(completion) => return Some(completion),
                    None => continue,
                }
            }
            let tag = usize::try_from(entry.user_data()).unwrap_or(usize::MAX);
            let Some((token, buf)) = self.commands.get_mut(tag).and_then(Option::take) else {
                debug_assert!(false, "a completion for no command");
                continue;
            };
            let result = match entry.result() {
                0 => Ok(self.descriptor(tag)),
                error if error < 0 => Err(io::Error::from_raw_os_error(-error)),
                // The kernel asks for memory, although it was told not to.
                _ => Err(io::ErrorKind::InvalidData.into()),
            };
            return Some(Completion { token, outcome: Outcome::Ublk(result, buf) });
        }
    }

    /// What the kernel asks for with a tag, which is below the depth.
    fn descriptor(&self, tag: usize) -> UblkDescriptor {
        assert!(tag < self.commands.len());
        let words: NonNull<u32> = self.descriptors.base().cast();
        // SAFETY: the mapping has a descriptor of 24 bytes for each tag. Whatever the kernel writes there, any bits are
        // numbers, and each is read once.
        let read = |word: usize| unsafe {
            words.add(tag * (DESCRIPTOR_LEN / size_of::<u32>()) + word).read_volatile()
        };
        UblkDescriptor {
            op_flags: read(0),
            nr_sectors: read(1),
            start_sector: if cfg!(target_endian = "little") {
                u64::from(read(2)) | u64::from(read(3)) << 32
            } else {
                u64::from(read(3)) | u64::from(read(2)) << 32
            },
        }
    }
}

impl Drop for UblkRing {
    /// The kernel may still copy to the memory of a command that it has: that memory is kept.
    fn drop(&mut self) {
        for (_, buf) in self.commands.iter_mut().filter_map(Option::take) {
            std::mem::forget(buf);
        }
    }
}

impl UringIo {
    pub(super) fn open_ublk_ring(&mut self, file: Arc<File>, queue: UblkQueue) -> io::Result<()> {
        if self.ublk.is_some() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.ublk = Some(Box::new(UblkRing::new(file, queue)?));
        Ok(())
    }

    /// Before a sleep: has the core's ring wait for this one, too, and looks at it a last time.
    pub(super) fn watch_ublk(&mut self, done: &mut Vec<Completion>) -> io::Result<()> {
        let Some(own) = &mut self.ublk else { return Ok(()) };
        let Some(poll) = own.watch.arm(&mut own.ring, UBLK_DATA) else { return Ok(()) };
        self.counts.system_calls += 1;
        self.push(poll);
        self.poll_ublk(done)
    }

    /// The wait for this ring has ended. The next turn looks at it.
    pub(super) fn handle_ublk_news(&mut self) {
        if let Some(own) = &mut self.ublk {
            // The ring is looked at before the next sleep, which nothing else would end.
            self.woken = true;
            own.watch.handle_end(&mut own.ring);
        }
    }

    pub(super) fn push_ublk(&mut self, command: UblkCommand, buf: IoBuf, token: Token) {
        match &mut self.ublk {
            Some(ring) => ring.push(command, buf, token),
            None => self.finish(token, Outcome::Ublk(Err(io::ErrorKind::NotFound.into()), buf)),
        }
    }

    /// Starts a move between a file and the pages of a request.
    pub(super) fn push_ublk_move(&mut self, file: FileId, what: UblkMove, token: Token) {
        let slot = self.files.get(file.0).filter(|slot| !slot.closing && slot.nvme.is_none());
        match (&mut self.ublk, slot) {
            (Some(ring), Some(slot)) => ring.push_move(Arc::clone(&slot.file), what, token),
            _ => self.finish(token, Outcome::Synced(Err(not_usable()))),
        }
    }

    /// Sends commands and moves, and takes their completions.
    pub(super) fn poll_ublk(&mut self, done: &mut Vec<Completion>) -> io::Result<()> {
        let Some(ring) = &mut self.ublk else { return Ok(()) };
        for _ in 0..SUBMISSIONS_MAX {
            ring.submit()?;
            while let Some(completion) = ring.next() {
                done.push(completion);
            }
            // The rest of a move that was cut short.
            if ring.ring.submission().is_empty() {
                return Ok(());
            }
        }
        // The kernel takes no more now: the rest goes in the next turn, which does not sleep.
        self.woken = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moving(writes: bool) -> Moving {
        let file = Arc::new(File::open("/dev/null").unwrap());
        let what = UblkMove { tag: 3, writes, durable: false, offset: 1 << 20, len: 8192 };
        Moving { token: Token { owner: 0, generation: 0, index: 0 }, file, what, progress: 0 }
    }

    #[test]
    fn a_move_that_is_cut_short_goes_on_until_it_is_whole() {
        for writes in [false, true] {
            let mut moving = moving(writes);
            assert!(moving.advance(-libc::EAGAIN).is_none());
            assert!(moving.advance(512).is_none());
            assert!(moving.advance(-libc::EINTR).is_none());
            assert_eq!(moving.progress, 512);
            assert!(moving.advance(7680).unwrap().is_ok());
        }
    }

    #[test]
    fn a_move_that_ends_early_is_an_error() {
        let kind = |writes: bool, result: i32| {
            let mut moving = moving(writes);
            assert!(moving.advance(4096).is_none());
            moving.advance(result).unwrap().unwrap_err()
        };
        assert_eq!(kind(false, 0).kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(kind(true, 0).kind(), io::ErrorKind::WriteZero);
        assert_eq!(kind(true, -libc::ENOSPC).raw_os_error(), Some(libc::ENOSPC));
        assert_eq!(kind(false, -libc::EINVAL).raw_os_error(), Some(libc::EINVAL));
    }

    /// Completions that a ring shows within `time`.
    fn completions(ring: &mut IoUring, time: std::time::Duration) -> Vec<u64> {
        let time = io_uring::types::Timespec::from(time);
        let args = io_uring::types::SubmitArgs::new().timespec(&time);
        // ETIME where there are none.
        let _ = ring.submitter().submit_with_args(1, &args);
        ring.completion().map(|entry| entry.user_data()).collect()
    }

    /// A completion in a ring, which is taken out of it.
    fn complete(ring: &mut IoUring) {
        // SAFETY: the entry points at nothing.
        unsafe { ring.submission().push(&opcode::Nop::new().build()) }.unwrap();
        ring.submit_and_wait(1).unwrap();
        assert_eq!(ring.completion().count(), 1);
    }

    #[test]
    fn a_ring_tells_of_its_completions_each_time() {
        let (Ok(mut core), Ok(mut other)) = (crate::uring::ring::open_ring(), IoUring::new(8))
        else {
            return eprintln!("SKIPPED: this machine has no io_uring");
        };
        let mut watch = Watch::new(&mut other).unwrap();
        for round in 0..100 {
            // A core that spins takes its completions without a poll.
            complete(&mut other);
            let entry = watch.arm(&mut other, 7).expect("its poll has ended");
            assert!(watch.arm(&mut other, 7).is_none(), "one poll at a time");
            // SAFETY: the entry points at nothing.
            unsafe { core.submission().push(&entry) }.unwrap();
            // What was there before is not told again.
            let early = completions(&mut core, std::time::Duration::from_millis(1));
            assert!(early.is_empty(), "round {round}: {early:?}");
            complete(&mut other);
            complete(&mut other);
            let told = completions(&mut core, std::time::Duration::from_secs(10));
            assert_eq!(told, [7], "round {round}");
            watch.handle_end(&mut other);
        }
    }

    #[test]
    fn the_kernel_writes_the_eventfd_of_a_ring_only_for_a_sleep() {
        let Ok(mut ring) = IoUring::new(8) else {
            return eprintln!("SKIPPED: this machine has no io_uring");
        };
        let mut watch = Watch::new(&mut ring).unwrap();
        for round in 0..3 {
            complete(&mut ring);
            assert!(!watch.take_event(), "round {round}: it was written while the core spins");
            watch.arm(&mut ring, 7).expect("its poll has ended");
            assert!(!watch.take_event(), "round {round}: it was written before the completion");
            complete(&mut ring);
            assert!(watch.take_event(), "round {round}: it was not written for a sleep");
            watch.handle_end(&mut ring);
        }
    }
}
