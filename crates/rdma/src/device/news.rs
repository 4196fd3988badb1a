//! Waiting for a real device: one descriptor for completions and for events of the connection manager.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::null_mut;
use std::time::Duration;

use super::{RdmaDevice, last_error};
use crate::verbs::{ConnectionId, ProviderError};
use crate::waiting::{Given, Kin, WaitingDevice};

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

/// One descriptor that is readable while any of a set of descriptors is.
#[derive(Debug)]
pub struct NewsSet(OwnedFd);

impl NewsSet {
    /// Of none so far.
    ///
    /// # Errors
    /// When the process or the system has no descriptor left.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no memory is involved.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if epoll < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor that was just made, and that nobody else has.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(epoll) }))
    }

    /// Watches a descriptor as well, until it is closed or [`Self::forget`] is called.
    ///
    /// # Errors
    /// When the system refuses: too many are watched, or it cannot be waited for.
    pub fn watch(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.change(libc::EPOLL_CTL_ADD, fd.as_raw_fd())
    }

    /// Does not watch a descriptor any longer.
    ///
    /// # Errors
    /// When it is not watched.
    pub fn forget(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.change(libc::EPOLL_CTL_DEL, fd.as_raw_fd())
    }

    /// Whether any of them is readable now. It costs one system call.
    pub(super) fn is_readable(&self) -> bool {
        let mut asked = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, which lives until the call returns. An error counts as news: whoever looks finds out.
        unsafe { libc::poll(&raw mut asked, 1, 0) != 0 }
    }

    /// [`Self::forget`] of a descriptor by its number.
    pub(super) fn forget_raw(&self, fd: RawFd) -> io::Result<()> {
        self.change(libc::EPOLL_CTL_DEL, fd)
    }

    fn change(&self, operation: c_int, fd: RawFd) -> io::Result<()> {
        let events = u32::try_from(libc::EPOLLIN).unwrap_or_default();
        let mut event = libc::epoll_event { events, u64: 0 };
        // SAFETY: both descriptors are open; the event lives until the call returns.
        let failed = unsafe { libc::epoll_ctl(self.0.as_raw_fd(), operation, fd, &raw mut event) };
        if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl AsFd for NewsSet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A descriptor that is readable again and again, while its ticks are wanted.
#[derive(Debug)]
pub struct Ticks {
    timer: OwnedFd,
    period: Duration,
    are_wanted: bool,
}

impl Ticks {
    /// They are not wanted yet.
    ///
    /// # Errors
    /// When the process or the system has no descriptor left.
    pub fn new(period: Duration) -> io::Result<Self> {
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: no memory is involved.
        let timer = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) };
        if timer < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor that was just made, and that nobody else has.
        Ok(Self { timer: unsafe { OwnedFd::from_raw_fd(timer) }, period, are_wanted: false })
    }

    /// Whether they are wanted from now on.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn want(&mut self, are_wanted: bool) -> io::Result<()> {
        if self.are_wanted == are_wanted {
            return Ok(());
        }
        let period = if are_wanted { self.period } else { Duration::ZERO };
        let tv_sec = libc::time_t::try_from(period.as_secs()).unwrap_or(libc::time_t::MAX);
        let time = libc::timespec { tv_sec, tv_nsec: period.subsec_nanos().into() };
        let times = libc::itimerspec { it_interval: time, it_value: time };
        // SAFETY: the descriptor is open; the times live until the call returns.
        let failed = unsafe {
            libc::timerfd_settime(self.timer.as_raw_fd(), 0, &raw const times, null_mut())
        };
        if failed != 0 {
            return Err(io::Error::last_os_error());
        }
        self.are_wanted = are_wanted;
        Ok(())
    }

    /// Takes the ticks that were, so that the descriptor is not readable before the next one.
    pub fn take(&self) {
        let mut count = [0u8; 8];
        // SAFETY: the descriptor is open and does not block; the eight bytes live until the call returns. Without ticks there is
        // an error, which means nothing.
        unsafe { libc::read(self.timer.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }
}

impl AsFd for Ticks {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
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

    /// Makes the one descriptor for both channels, and for news of the device.
    pub(super) fn open_news(&mut self) -> Result<(), ProviderError> {
        let failed =
            |error: &io::Error| ProviderError::new("waiting for an RDMA device", error.to_string());
        let news = NewsSet::new().map_err(|error| failed(&error))?;
        // SAFETY: the channel is alive as long as this value.
        let notices = unsafe { (*self.notices).fd };
        let [alarms, bell] = self.open_alarms()?;
        for fd in [self.event_fd(), notices, alarms, bell] {
            news.change(libc::EPOLL_CTL_ADD, fd).map_err(|error| failed(&error))?;
        }
        self.news = Some(news);
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

    /// One system call while there are no news: the descriptor of all of them says so.
    fn arm(&mut self) {
        self.is_quiet = self.is_armed && self.news.as_ref().is_some_and(|news| !news.is_readable());
        if self.is_quiet {
            return;
        }
        self.take_alarms();
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
            self.is_armed = false;
        }
        if self.is_armed {
            return;
        }
        const ANY: c_int = 0;
        // SAFETY: the completion queue and its context are alive.
        if let Some(notify) = unsafe { (*(*self.completions).context).ops.req_notify_cq } {
            // SAFETY: as above.
            self.is_armed = unsafe { notify(self.completions, ANY) } == 0;
        }
    }

    fn kin(&self) -> Option<Kin> {
        Some(Self::open_again(self.address, self.wanted_completions))
    }

    fn give(&mut self, request: ConnectionId) -> Option<Given> {
        self.give_up(request)
    }

    fn take(&mut self, request: Given) -> Result<ConnectionId, ProviderError> {
        self.take_over(request)
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::WorkCompletion;
    use super::super::stub::{alarm, complete, open, stub};
    use super::*;
    use crate::verbs::{Event, Provider};

    /// Looks as a core does before it sleeps, and gives the functions that this has called.
    fn look(device: &mut RdmaDevice) -> Vec<&'static str> {
        stub(|stub| stub.calls.clear());
        device.arm();
        let mut some = Vec::with_capacity(8);
        while let Some(event) = device.next_event() {
            assert_eq!(event, Event::DeviceRemoved(ConnectionId::NOBODY));
        }
        device.poll(&mut some);
        stub(|stub| std::mem::take(&mut stub.calls)).into_keys().collect()
    }

    fn is_told(device: &RdmaDevice) -> bool {
        device.news.as_ref().unwrap().is_readable()
    }

    #[test]
    fn a_device_without_news_is_not_asked_again() {
        let mut device = open();
        let all = ["ibv_get_async_event", "ibv_get_cq_event", "rdma_get_cm_event", "req_notify_cq"];
        assert_eq!(look(&mut device), all, "it is armed");
        for _ in 0..100 {
            assert_eq!(look(&mut device), [""; 0], "the one descriptor says that there is nothing");
        }
        // The first completion since then is told, and those after it need no word.
        complete(WorkCompletion::default());
        complete(WorkCompletion::default());
        assert!(is_told(&device));
        let mut some = Vec::with_capacity(8);
        stub(|stub| stub.calls.clear());
        (0..100).for_each(|_| device.poll(&mut some));
        assert_eq!(some.len(), 2);
        assert_eq!(stub(|stub| stub.calls.len()), 0, "polls cost nothing");
        assert!(is_told(&device), "whoever sleeps now wakes at once");
        assert_eq!(look(&mut device), all, "the notice is taken, and the queue armed again");
        assert!(!is_told(&device));
        complete(WorkCompletion::default());
        assert!(is_told(&device));
        look(&mut device);
        // What the kernel says takes no arming away.
        alarm(super::super::alarms::kind::DEVICE_FATAL, 0);
        assert!(is_told(&device));
        assert_eq!(look(&mut device), all[..3]);
        complete(WorkCompletion::default());
        assert!(is_told(&device));
    }

    fn is_readable(set: &NewsSet, wait: c_int) -> bool {
        let fd = set.as_fd().as_raw_fd();
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, which lives until the call returns.
        unsafe { libc::poll(&raw mut poll, 1, wait) > 0 }
    }

    #[test]
    fn ticks_come_while_they_are_wanted() {
        let mut ticks = Ticks::new(Duration::from_millis(20)).unwrap();
        let set = NewsSet::new().unwrap();
        set.watch(ticks.as_fd()).unwrap();
        assert!(!is_readable(&set, 60), "nobody wants them");
        ticks.want(true).unwrap();
        for _ in 0..3 {
            assert!(is_readable(&set, 10_000), "a tick");
            ticks.take();
        }
        ticks.want(false).unwrap();
        ticks.take();
        assert!(!is_readable(&set, 60), "nobody wants them any longer");
    }
}
