//! Waiting for a real device: one descriptor for completions and for events of the connection manager.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::null_mut;

use super::{RdmaDevice, last_error};
use crate::verbs::ProviderError;
use crate::waiting::WaitingDevice;

/// Makes calls on a descriptor return at once.
pub(super) fn set_nonblocking(fd: RawFd) -> Result<(), ProviderError> {
    // SAFETY: fcntl on a descriptor of a channel that is alive.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    // SAFETY: as above.
    if flags < 0 || unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) } < 0 {
        return Err(last_error("making a descriptor of the RDMA device non-blocking"));
    }
    Ok(())
}

impl RdmaDevice {
    /// Makes the channel that tells of completions.
    pub(super) fn open_notices(&mut self) -> Result<(), ProviderError> {
        // SAFETY: the context is alive.
        self.notices = unsafe { (self.functions.ibv_create_comp_channel)(self.context) };
        if self.notices.is_null() {
            return Err(last_error("making a channel for completions"));
        }
        // SAFETY: the channel is alive as long as this value.
        set_nonblocking(unsafe { (*self.notices).fd })
    }

    /// Makes the one descriptor for both channels.
    pub(super) fn open_news(&mut self) -> Result<(), ProviderError> {
        let what = "waiting for an RDMA device";
        // SAFETY: no memory is involved.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if epoll < 0 {
            return Err(last_error(what));
        }
        // SAFETY: a descriptor that was just made, and that nobody else has.
        let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
        // SAFETY: the channel is alive as long as this value.
        let notices = unsafe { (*self.notices).fd };
        for fd in [self.event_fd(), notices] {
            let events = u32::try_from(libc::EPOLLIN).unwrap_or_default();
            let mut event = libc::epoll_event { events, u64: 0 };
            // SAFETY: both descriptors are open; the event lives until the call returns.
            let failed = unsafe {
                libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event)
            };
            if failed != 0 {
                return Err(last_error(what));
            }
        }
        self.news = Some(epoll);
        Ok(())
    }
}

// SAFETY: the libraries' objects belong to no thread; they are used through `&mut self`, or read through `&self` by the
// one thread that has this value.
unsafe impl Send for RdmaDevice {}

impl WaitingDevice for RdmaDevice {
    fn news(&self) -> BorrowedFd<'_> {
        let Some(news) = &self.news else { unreachable!("a device is given out when it is whole") };
        news.as_fd()
    }

    fn arm(&mut self) {
        let mut queue = null_mut();
        let mut context = null_mut();
        let mut taken = 0;
        // SAFETY: the channel is alive and does not block.
        while unsafe {
            (self.functions.ibv_get_cq_event)(self.notices, &raw mut queue, &raw mut context)
        } == 0
        {
            taken += 1;
        }
        if taken > 0 {
            // SAFETY: this many notices of the one queue of the channel were taken.
            unsafe { (self.functions.ibv_ack_cq_events)(self.completions, taken) };
        }
        const ANY: c_int = 0;
        // SAFETY: the completion queue and its context are alive.
        if let Some(notify) = unsafe { (*(*self.completions).context).ops.req_notify_cq } {
            // SAFETY: as above.
            unsafe { notify(self.completions, ANY) };
        }
    }
}
