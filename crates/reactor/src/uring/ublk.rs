//! The ring of a core that serves a queue of a ublk disk: it takes nothing but that queue's commands. Other cores have none.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::ptr::NonNull;
use std::sync::Arc;

use io_uring::register::Restriction;
use io_uring::types::Fd;
use io_uring::{IoUring, opcode};

use super::{POLL_IN, UBLK_DATA, UringIo};
use crate::io::ublk::{DESCRIPTOR_LEN, UblkCommand, UblkDescriptor, UblkQueue};
use crate::io::{Completion, Outcome, Token};
use crate::memory::buffer::IoBuf;
use crate::memory::mapping::{Mapping, PAGE_SIZE};

/// A queue, and the commands that the kernel has of it.
pub(super) struct UblkRing {
    ring: IoUring,
    file: Arc<File>,
    queue: UblkQueue,
    /// What the kernel asks for, one descriptor for each tag.
    descriptors: Mapping,
    /// What belongs to the command that the kernel has of each tag.
    commands: Box<[Option<(Token, IoBuf)>]>,
    /// Commands that cannot be.
    refused: VecDeque<Completion>,
}

impl UblkRing {
    fn new(file: Arc<File>, queue: UblkQueue) -> io::Result<Self> {
        let (offset, len) = queue.descriptors(PAGE_SIZE)?;
        let descriptors = Mapping::of_device(file.as_fd(), offset, len)?;
        let mut builder = IoUring::builder();
        // Requests come while this thread does something else: a flag shows them, and no interrupt.
        builder.setup_coop_taskrun().setup_taskrun_flag().setup_submit_all().setup_r_disabled();
        // Each tag has one command at most, so that there always is room.
        let ring: IoUring = builder.build(u32::from(queue.depth))?;
        let submitter = ring.submitter();
        submitter.register_restrictions(&mut [Restriction::sqe_op(opcode::UringCmd16::CODE)])?;
        submitter.register_enable_rings()?;
        let commands = (0..queue.depth).map(|_| None).collect();
        Ok(Self { ring, file, queue, descriptors, commands, refused: VecDeque::new() })
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
        let entry = opcode::UringCmd16::new(Fd(self.file.as_raw_fd()), number).cmd(bytes).build();
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
        self.watch_ublk();
        Ok(())
    }

    /// Waits on the core's ring for completions on this one, too.
    pub(super) fn watch_ublk(&mut self) {
        let Some(fd) = self.ublk.as_ref().map(|ring| ring.ring.as_raw_fd()) else { return };
        let poll = opcode::PollAdd::new(Fd(fd), POLL_IN).multi(true);
        self.push(poll.build().user_data(UBLK_DATA));
    }

    pub(super) fn push_ublk(&mut self, command: UblkCommand, buf: IoBuf, token: Token) {
        match &mut self.ublk {
            Some(ring) => ring.push(command, buf, token),
            None => self.finish(token, Outcome::Ublk(Err(io::ErrorKind::NotFound.into()), buf)),
        }
    }

    /// Sends commands, and takes their completions.
    pub(super) fn poll_ublk(&mut self, done: &mut Vec<Completion>) -> io::Result<()> {
        if let Some(ring) = &mut self.ublk {
            ring.submit()?;
            while let Some(completion) = ring.next() {
                done.push(completion);
            }
        }
        Ok(())
    }
}
