//! Busy polling by the kernel while a core waits: for an epoll instance, and for a ring.
//!
//! The option of a socket (`socket_option::set_busy_poll`) makes a receive look into the device's queue. A core
//! that waits for all of its sockets receives nothing meanwhile. Since Linux 6.9, what it waits with has
//! settings of its own.

#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use io_uring::Submitter;
use io_uring::types::Napi;

use super::socket_option::BUSY_POLL_PACKETS;

/// What the kernel does before a core sleeps, as it tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitPolling {
    /// How long it looks into receive queues.
    pub time: Duration,
    /// Packets that it takes from a queue at once; `None`: it does not tell.
    pub packets: Option<u16>,
    /// Whether it holds back interrupts of the queues meanwhile, where the device defers them.
    pub preferred: bool,
}

impl fmt::Display for WaitPolling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} us", self.time.as_micros())?;
        if let Some(packets) = self.packets {
            write!(f, ", {packets} packets at a time")?;
        }
        f.write_str(if self.preferred { ", preferred over interrupts" } else { "" })
    }
}

/// Has every wait for the events of an epoll instance poll first (EPIOCSPARAMS), and reads it back.
///
/// # Errors
/// `Unsupported` before Linux 6.9, and where the kernel is built without busy polling.
pub(crate) fn set_epoll(epoll: &impl AsRawFd, time: Duration) -> io::Result<WaitPolling> {
    let params = libc::epoll_params {
        busy_poll_usecs: microseconds(time),
        busy_poll_budget: BUSY_POLL_PACKETS,
        prefer_busy_poll: 1,
        __pad: 0,
    };
    // SAFETY: the kernel reads one structure of this type, which lives across the call.
    let set = unsafe { libc::ioctl(epoll.as_raw_fd(), libc::EPIOCSPARAMS, &raw const params) };
    if set != 0 {
        return Err(refusal("epoll instances", io::Error::last_os_error()));
    }
    let mut told = libc::epoll_params {
        busy_poll_usecs: 0,
        busy_poll_budget: 0,
        prefer_busy_poll: 0,
        ..params
    };
    // SAFETY: the kernel writes one structure of this type.
    let read = unsafe { libc::ioctl(epoll.as_raw_fd(), libc::EPIOCGPARAMS, &raw mut told) };
    if read != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(WaitPolling {
        time: Duration::from_micros(told.busy_poll_usecs.into()),
        packets: Some(told.busy_poll_budget),
        preferred: told.prefer_busy_poll != 0,
    })
}

/// Has every wait for completions of a ring poll first (IORING_REGISTER_NAPI), and reads it back. The kernel
/// notes the queues by the sockets that the ring waits for.
///
/// # Errors
/// `Unsupported` before Linux 6.9, and where the kernel is built without busy polling.
pub(crate) fn set_ring(ring: &Submitter<'_>, time: Duration) -> io::Result<WaitPolling> {
    let wanted = Napi::new().set_busy_poll_timeout(microseconds(time)).set_prefer_busy_poll(true);
    ring.register_napi(&mut wanted.clone()).map_err(|error| refusal("rings", error))?;
    // Each call gives back what held before it.
    let mut told = wanted;
    ring.register_napi(&mut told)?;
    Ok(WaitPolling {
        time: Duration::from_micros(told.busy_poll_timeout().into()),
        packets: None,
        preferred: told.prefer_busy_poll(),
    })
}

fn microseconds(time: Duration) -> u32 {
    // The kernel takes no more than the positive half.
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX).min(i32::MAX.unsigned_abs())
}

fn refusal(what: &str, error: io::Error) -> io::Error {
    let lacks = [libc::ENOTTY, libc::EINVAL, libc::EOPNOTSUPP, libc::EACCES];
    if error.raw_os_error().is_some_and(|code| lacks.contains(&code)) {
        let text = format!("the kernel does not busy poll for {what} (Linux 6.9 does): {error}");
        return io::Error::new(io::ErrorKind::Unsupported, text);
    }
    error
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;
    use crate::io::Io;
    use crate::{EpollIo, UringIo};

    const TIME: Duration = Duration::from_micros(50);

    /// Whether this kernel has the settings (Linux 6.9).
    fn kernel_has_them() -> bool {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        let mut parts = release.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
        (parts.next(), parts.next()) >= (Some(6), Some(9))
    }

    fn check(told: io::Result<WaitPolling>, packets: Option<u16>) {
        match told {
            Ok(told) => assert_eq!(told, WaitPolling { time: TIME, packets, preferred: true }),
            Err(error) => {
                assert!(!kernel_has_them(), "{error}");
                assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{error}");
                eprintln!("SKIPPED: a kernel before 6.9 has no such settings: {error}");
            }
        }
    }

    #[test]
    fn the_structure_and_the_requests_are_the_kernels() {
        type Params = libc::epoll_params;
        assert_eq!((size_of::<Params>(), offset_of!(Params, busy_poll_budget)), (8, 4));
        assert_eq!((offset_of!(Params, prefer_busy_poll), offset_of!(Params, __pad)), (6, 7));
        #[cfg(target_arch = "x86_64")]
        assert_eq!((libc::EPIOCSPARAMS, libc::EPIOCGPARAMS), (0x4008_8a01, 0x8008_8a02));
    }

    #[test]
    fn an_epoll_instance_keeps_what_it_is_told() {
        check(EpollIo::new().unwrap().busy_poll(TIME), Some(64));
    }

    #[test]
    fn a_ring_keeps_what_it_is_told() {
        let Ok(mut io) = UringIo::new() else {
            eprintln!("SKIPPED: io_uring is not permitted");
            return;
        };
        check(io.busy_poll(TIME), None);
    }

    #[test]
    fn what_is_no_epoll_instance_says_what_the_kernel_lacks() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let error = set_epoll(&file, TIME).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        let text = error.to_string();
        assert!(text.starts_with("the kernel does not busy poll for epoll instances"), "{text}");
    }

    #[test]
    fn people_read_what_was_set() {
        let told = WaitPolling { time: TIME, packets: Some(64), preferred: true };
        assert_eq!(told.to_string(), "50 us, 64 packets at a time, preferred over interrupts");
        let told = WaitPolling { packets: None, preferred: false, ..told };
        assert_eq!(told.to_string(), "50 us");
        assert_eq!(microseconds(Duration::MAX), i32::MAX.unsigned_abs());
    }
}
