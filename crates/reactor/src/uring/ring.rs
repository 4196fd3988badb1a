//! Opens a ring with what this kernel has, and says what the ring may do.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{Ordering, fence};

use io_uring::types::Fd;
use io_uring::{IoUring, cqueue, opcode, squeue};

use super::{POLL_IN, ops};
use crate::thread::waker::eventfd;

/// Submissions between two polls that need no extra system call; more wait in a backlog.
const SUBMISSION_ENTRIES: u32 = 1024;

/// Completions the kernel can post before it has to keep them aside.
const COMPLETION_ENTRIES: u32 = 4 * SUBMISSION_ENTRIES;

/// Opens the ring with what this kernel has to make completions cheap.
pub(super) fn open_ring() -> io::Result<IoUring> {
    let mut common = IoUring::builder();
    common.setup_clamp().setup_submit_all().setup_taskrun_flag().setup_r_disabled();
    common.setup_cqsize(COMPLETION_ENTRIES);
    // Linux 6.1: completions are processed when this thread asks for them, in batches.
    let mut deferred = common.clone();
    deferred.setup_single_issuer().setup_defer_taskrun();
    // Linux 5.19: at its next system call.
    let mut cooperative = common;
    cooperative.setup_coop_taskrun();
    let too_old = |error: &io::Error| error.raw_os_error() == Some(libc::EINVAL);
    let ring = match deferred.build(SUBMISSION_ENTRIES) {
        Err(error) if too_old(&error) => match cooperative.build(SUBMISSION_ENTRIES) {
            Err(error) if too_old(&error) => {
                let message = "the kernel's io_uring is too old";
                return Err(io::Error::new(io::ErrorKind::Unsupported, message));
            }
            result => result?,
        },
        result => result?,
    };
    // System-call filters do not see what a ring does: it gets a list of its own.
    let (submitter, zero_copy) = (ring.submitter(), knows_zero_copy(&ring));
    match submitter.register_restrictions(&mut ops::permitted(zero_copy, true)) {
        // Before Linux 6.9.
        Err(error) if too_old(&error) => {
            submitter.register_restrictions(&mut ops::permitted(zero_copy, false))?;
        }
        result => result?,
    }
    submitter.register_enable_rings()?;
    Ok(ring)
}

/// Whether the kernel is one that sends without a copy what has several parts. That came with the same
/// version as deferred completions.
pub(super) fn knows_zero_copy(ring: &IoUring) -> bool {
    ring.params().is_setup_single_issuer()
}

/// How the core's ring waits for another ring, while the core sleeps: by an eventfd that the kernel writes at completions.
///
/// No ring of ours polls a ring itself. While a thread has a request on the file of a ring, the kernel cancels what all rings of
/// that thread have when it is killed, and not only after it has marked the thread as dying. To a ublk driver the thread looks
/// alive then: it gives it requests that nobody answers, waits for their answers without end, and the disk cannot be recovered
/// nor removed (seen with Linux 6.12).
///
/// The kernel writes the eventfd only from [`Watch::arm`] until the poll has ended: completions that a core sees without a sleep
/// cost no write.
///
/// Each poll is for one event. The kernel ends a poll that a ring has woken; before its commit 1967f0b1cafd, a poll for several
/// events said then that it goes on.
pub(super) struct Watch {
    event: File,
    is_armed: bool,
}

impl Watch {
    /// Watches a ring that is not at work yet.
    pub(super) fn new<S, C>(ring: &mut IoUring<S, C>) -> io::Result<Self>
    where
        S: squeue::EntryMarker,
        C: cqueue::EntryMarker,
    {
        let event = File::from(eventfd()?);
        ring.completion().disable_eventfd();
        ring.submitter().register_eventfd(event.as_raw_fd())?;
        Ok(Self { event, is_armed: false })
    }

    /// The poll to submit before a sleep, unless it is under way. It tells of completions that come from now on: those that are
    /// there have to be looked at before the sleep.
    pub(super) fn arm<S, C>(
        &mut self,
        ring: &mut IoUring<S, C>,
        user_data: u64,
    ) -> Option<squeue::Entry>
    where
        S: squeue::EntryMarker,
        C: cqueue::EntryMarker,
    {
        if std::mem::replace(&mut self.is_armed, true) {
            return None;
        }
        self.take_event();
        ring.completion().enable_eventfd();
        // The look at the completions that follows must not come before: the kernel adds a completion and then looks whether it
        // is to write.
        fence(Ordering::SeqCst);
        let poll = opcode::PollAdd::new(Fd(self.event.as_raw_fd()), POLL_IN);
        Some(poll.build().user_data(user_data))
    }

    /// The poll has ended.
    pub(super) fn handle_end<S, C>(&mut self, ring: &mut IoUring<S, C>)
    where
        S: squeue::EntryMarker,
        C: cqueue::EntryMarker,
    {
        ring.completion().disable_eventfd();
        self.is_armed = false;
    }

    /// Empties the eventfd; false if nothing was written to it.
    pub(super) fn take_event(&self) -> bool {
        // `WouldBlock` when nothing was written.
        (&self.event).read(&mut [0; 8]).is_ok()
    }
}
