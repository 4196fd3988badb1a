//! The second ring of a core that has namespaces opened by their generic devices: its entries are
//! large enough for NVMe commands. A core without such a namespace has none.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;

use io_uring::register::Restriction;
use io_uring::types::Fd;
use io_uring::{IoUring, cqueue, opcode, squeue};
use raceline_proto::nvme::PassthroughCommand;
use zerocopy::IntoBytes as _;

use super::ring::Watch;
use super::{NVME_DATA, UringIo};
use crate::io::Completion;
use crate::io::nvme::{self, NVME_URING_CMD_IO};

/// Commands between two polls that need no extra system call; more wait in a backlog.
const ENTRIES: u32 = 256;

/// Room for a command in a submission entry.
const ENTRY_ROOM: usize = 80;

/// A ring that takes nothing but passthrough commands.
pub(super) struct NvmeRing {
    ring: IoUring<squeue::Entry128, cqueue::Entry32>,
    watch: Watch,
    backlog: VecDeque<squeue::Entry128>,
    /// Operations whose command could not be made.
    refused: VecDeque<(u64, io::Error)>,
    /// Commands that the kernel has, or will have.
    in_flight: usize,
}

impl NvmeRing {
    /// A ring for the calling thread.
    ///
    /// # Errors
    /// When the kernel is older than Linux 5.19, or does not permit it.
    pub(super) fn new() -> io::Result<Self> {
        let mut builder = IoUring::<squeue::Entry128, cqueue::Entry32>::builder();
        builder.setup_clamp().setup_submit_all().setup_r_disabled().setup_cqsize(4 * ENTRIES);
        let mut ring = builder.build(ENTRIES)?;
        let watch = Watch::new(&mut ring)?;
        let submitter = ring.submitter();
        submitter.register_restrictions(&mut [Restriction::sqe_op(opcode::UringCmd80::CODE)])?;
        submitter.register_enable_rings()?;
        let (backlog, refused) = (VecDeque::new(), VecDeque::new());
        Ok(Self { ring, watch, backlog, refused, in_flight: 0 })
    }

    /// Queues a command, or the reason why there is none. What the command points at is the
    /// operation's, whose slot stays where it is until the completion.
    pub(super) fn push(
        &mut self,
        user_data: u64,
        fd: RawFd,
        command: io::Result<PassthroughCommand>,
    ) {
        match command {
            Err(error) => self.refused.push_back((user_data, error)),
            Ok(command) => {
                self.in_flight += 1;
                self.backlog.push_back(entry(fd, &command).user_data(user_data));
            }
        }
    }

    /// Takes what is queued to the kernel, as far as there is room; waits for a completion if told.
    pub(super) fn submit(&mut self, wait: bool) -> io::Result<()> {
        let mut submission = self.ring.submission();
        while let Some(entry) = self.backlog.front() {
            // SAFETY: what the command points at belongs to an operation's slot, which does not
            // move and keeps its memory until this command has completed.
            if unsafe { submission.push(entry) }.is_err() {
                break;
            }
            self.backlog.pop_front();
        }
        let waiting = submission.len();
        let fetch = submission.cq_overflow() || submission.taskrun();
        drop(submission);
        if waiting == 0 && !fetch && !wait {
            return Ok(());
        }
        match self.ring.submit_and_wait(usize::from(wait)) {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                Some(libc::EINTR | libc::EBUSY | libc::EAGAIN) => Ok(()),
                _ => Err(error),
            },
        }
    }

    /// The next operation of which a command has completed, and how.
    pub(super) fn next(&mut self) -> Option<(u64, io::Result<()>)> {
        if let Some((user_data, error)) = self.refused.pop_front() {
            return Some((user_data, Err(error)));
        }
        // The status is the result; the second part, the command's own result, is of no use here.
        let entry = self.ring.completion().next()?;
        self.in_flight -= 1;
        Some((entry.user_data(), nvme::outcome(entry.result())))
    }
}

impl UringIo {
    /// Before a sleep: has the core's ring wait for this one, too, and looks at it a last time.
    pub(super) fn watch_nvme(&mut self, done: &mut Vec<Completion>) -> io::Result<()> {
        let Some(own) = &mut self.nvme else { return Ok(()) };
        let Some(poll) = own.watch.arm(&mut own.ring, NVME_DATA) else { return Ok(()) };
        self.counts.system_calls += 1;
        self.push(poll);
        self.poll_nvme(done)
    }

    /// The wait for this ring has ended. The next turn looks at it.
    pub(super) fn handle_nvme_news(&mut self) {
        if let Some(own) = &mut self.nvme {
            // The ring is looked at before the next sleep, which nothing else would end.
            self.woken = true;
            own.watch.handle_end(&mut own.ring);
        }
    }

    /// Sends NVMe commands, and takes their completions.
    pub(super) fn poll_nvme(&mut self, done: &mut Vec<Completion>) -> io::Result<()> {
        while let Some(ring) = &mut self.nvme {
            ring.submit(false)?;
            let mut is_over = true;
            while let Some((user_data, result)) = self.nvme.as_mut().and_then(|ring| ring.next()) {
                // An operation that goes on has a next command to send.
                is_over = false;
                let Some(slot) = self.ops.get_mut(user_data) else { continue };
                let token = slot.token();
                let format = slot.kind().file().and_then(|file| self.files.get(file)?.nvme);
                let moved = format.map_or(0, |format| slot.nvme_piece(format));
                self.settle(user_data, token, result.map(|()| moved), done);
            }
            if is_over {
                break;
            }
        }
        Ok(())
    }

    /// Waits for the commands in flight, which cannot be cancelled.
    pub(super) fn finish_nvme(&mut self, done: &mut Vec<Completion>) -> io::Result<()> {
        loop {
            self.poll_nvme(done)?;
            match self.nvme.as_mut().filter(|ring| ring.in_flight > 0) {
                Some(ring) => ring.submit(true)?,
                None => return Ok(()),
            }
        }
    }
}

/// Makes a ring and lets it go.
///
/// # Errors
/// As [`NvmeRing::new`].
pub(crate) fn check() -> io::Result<()> {
    NvmeRing::new().map(drop)
}

fn entry(fd: RawFd, command: &PassthroughCommand) -> squeue::Entry128 {
    let mut room = [0; ENTRY_ROOM];
    room[..PassthroughCommand::LEN].copy_from_slice(command.as_bytes());
    opcode::UringCmd80::new(Fd(fd), NVME_URING_CMD_IO).cmd(room).build()
}
