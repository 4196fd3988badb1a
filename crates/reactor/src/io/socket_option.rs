//! Socket options that tell where packets come from, and that let a receive poll for them.

#![allow(unsafe_code)]

use std::io;
use std::num::NonZeroU32;
use std::os::fd::AsRawFd;
use std::time::Duration;

use libc::c_int;

/// Packets that one busy poll may take from a receive queue, as many as an interrupt may. With the
/// kernel's default of 8, a queue under load would fall behind.
pub(crate) const BUSY_POLL_PACKETS: u16 = 64;

/// The receive queue, by its NAPI id, from which the last packet came (SO_INCOMING_NAPI_ID);
/// `None` when the kernel does not know, as on loopback.
pub(crate) fn incoming_napi_id(fd: &impl AsRawFd) -> Option<NonZeroU32> {
    let id = get(fd, libc::SO_INCOMING_NAPI_ID).ok()?;
    NonZeroU32::new(u32::try_from(id).ok()?)
}

/// The CPU that processed the last packet (SO_INCOMING_CPU); `None` when there was none.
pub(crate) fn incoming_cpu(fd: &impl AsRawFd) -> Option<usize> {
    usize::try_from(get(fd, libc::SO_INCOMING_CPU).ok()?).ok()
}

/// The mark of a socket (SO_MARK). An accepted socket has that of its listener, or with
/// `net.ipv4.tcp_fwmark_accept` that of the packet that asked for the connection. `None`: 0, which is no
/// mark.
pub(crate) fn mark(fd: &impl AsRawFd) -> Option<NonZeroU32> {
    NonZeroU32::new(get(fd, libc::SO_MARK).ok()?.cast_unsigned())
}

/// The priority of what is sent (SO_PRIORITY): queueing disciplines sort by it.
///
/// # Errors
/// `PermissionDenied`, saying what is needed, for a priority above 6 where the kernel wants CAP_NET_ADMIN
/// for that; `InvalidInput` for a number that the kernel's type does not hold.
pub(crate) fn set_priority(fd: &impl AsRawFd, priority: u32) -> io::Result<()> {
    let Ok(value) = c_int::try_from(priority) else {
        let text = format!("socket priority {priority} is above {}", c_int::MAX);
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    };
    set(fd, libc::SO_PRIORITY, value).map_err(|error| priority_error(error, priority))
}

fn priority_error(error: io::Error, priority: u32) -> io::Error {
    let reason = match error.kind() {
        io::ErrorKind::PermissionDenied => "above 6 it needs CAP_NET_ADMIN".to_owned(),
        _ => error.to_string(),
    };
    let text = format!("socket priority {priority} cannot be set: {reason}");
    io::Error::new(error.kind(), text)
}

/// The priority of what is sent.
pub(crate) fn priority(fd: &impl AsRawFd) -> io::Result<u32> {
    let value = get(fd, libc::SO_PRIORITY)?;
    Ok(value.cast_unsigned())
}

/// What busy polling a process is permitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BusyPoll {
    /// Interrupts still come meanwhile.
    Plain,
    /// Preferred over interrupts, and in large steps: that needs CAP_NET_ADMIN.
    Preferred,
}

/// Has a receive that finds nothing look into the receive queue itself, for at most `time`
/// (SO_BUSY_POLL). Where that is permitted, the kernel prefers it to interrupts (SO_PREFER_BUSY_POLL,
/// SO_BUSY_POLL_BUDGET).
///
/// # Errors
/// `PermissionDenied`, saying what is needed, where the kernel wants CAP_NET_ADMIN for a `time`
/// above `net.core.busy_read` and this process lacks it.
pub(crate) fn set_busy_poll(fd: &impl AsRawFd, time: Duration) -> io::Result<BusyPoll> {
    let time_us = c_int::try_from(time.as_micros()).unwrap_or(c_int::MAX);
    set(fd, libc::SO_BUSY_POLL, time_us).map_err(|error| busy_poll_error(error, time_us))?;
    let preferred = set(fd, libc::SO_PREFER_BUSY_POLL, 1)
        .and_then(|()| set(fd, libc::SO_BUSY_POLL_BUDGET, BUSY_POLL_PACKETS.into()));
    Ok(if preferred.is_ok() { BusyPoll::Preferred } else { BusyPoll::Plain })
}

fn busy_poll_error(error: io::Error, time_us: c_int) -> io::Error {
    let (kind, reason) = match error.raw_os_error() {
        Some(libc::EPERM) => (
            io::ErrorKind::PermissionDenied,
            "it needs CAP_NET_ADMIN, or net.core.busy_read of that many microseconds".to_owned(),
        ),
        Some(libc::ENOPROTOOPT) => {
            (io::ErrorKind::Unsupported, "this kernel is built without it".to_owned())
        }
        _ => (error.kind(), error.to_string()),
    };
    io::Error::new(kind, format!("cannot busy poll for {time_us} us: {reason}"))
}

/// Has the listeners of an address (SO_REUSEPORT) be chosen by CPU: the listener that was the `i`-th to
/// listen gets the requests for connections that CPU `cpus[i]` processes. Where there is none, the kernel
/// chooses by a hash.
pub(crate) fn steer_by_cpu(fd: &impl AsRawFd, cpus: &[usize]) -> io::Result<()> {
    let mut program = cpu_program(cpus)?;
    let length = u16::try_from(program.len()).map_err(|_| too_many_cpus(cpus))?;
    let program = libc::sock_fprog { len: length, filter: program.as_mut_ptr() };
    // SAFETY: the kernel reads the program, whose instructions live across the call.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const program).cast(),
            libc::socklen_t::try_from(size_of::<libc::sock_fprog>()).unwrap_or_default(),
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A classic BPF program that gives the position of this CPU among `cpus`, or a number that no listener has.
fn cpu_program(cpus: &[usize]) -> io::Result<Vec<libc::sock_filter>> {
    // linux/filter.h: loads from this address on are facts about the packet; this one is its CPU.
    const CPU: u32 = 0xffff_f000 + 36;
    const LOAD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
    const JUMP_IF_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
    const RETURN: u16 = 0x06; // BPF_RET | BPF_K
    /// Most instructions of a program (BPF_MAXINSNS), of which each CPU takes two.
    const INSTRUCTIONS_MAX: usize = 4096;
    if 2 * cpus.len() + 2 > INSTRUCTIONS_MAX {
        return Err(too_many_cpus(cpus));
    }
    let instruction = |code, jf, k| libc::sock_filter { code, jt: 0, jf, k };
    let mut program = vec![instruction(LOAD, 0, CPU)];
    for (index, &cpu) in (0..).zip(cpus) {
        let cpu = u32::try_from(cpu).map_err(|_| too_many_cpus(cpus))?;
        program.push(instruction(JUMP_IF_EQUAL, 1, cpu));
        program.push(instruction(RETURN, 0, index));
    }
    program.push(instruction(RETURN, 0, u32::MAX));
    Ok(program)
}

fn too_many_cpus(cpus: &[usize]) -> io::Error {
    let text = format!("{} CPUs are too many for a program that chooses listeners", cpus.len());
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

/// Bytes sent that the peer has not acknowledged (SIOCOUTQ).
pub(crate) fn unacknowledged(fd: &impl AsRawFd) -> usize {
    let mut bytes: c_int = 0;
    // SAFETY: the kernel writes one int.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    // Fails only for what is no TCP socket.
    if result == 0 { usize::try_from(bytes).unwrap_or(0) } else { 0 }
}

/// Has bind(2) leave the port to connect(2), which may take a port that other connections use to other
/// places (IP_BIND_ADDRESS_NO_PORT; it is for both families).
pub(crate) fn bind_address_no_port(fd: &impl AsRawFd) -> io::Result<()> {
    set_at(fd, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1)
}

fn get(fd: &impl AsRawFd, option: c_int) -> io::Result<c_int> {
    let mut value: c_int = 0;
    let mut length = INT_BYTES;
    // SAFETY: the kernel writes at most `length` bytes, the size of `value`.
    let result = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

fn set(fd: &impl AsRawFd, option: c_int, value: c_int) -> io::Result<()> {
    set_at(fd, libc::SOL_SOCKET, option, value)
}

fn set_at(fd: &impl AsRawFd, level: c_int, option: c_int, value: c_int) -> io::Result<()> {
    // SAFETY: the kernel reads as many bytes as `value` has.
    let result = unsafe {
        libc::setsockopt(fd.as_raw_fd(), level, option, (&raw const value).cast(), INT_BYTES)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The size of every option here.
const INT_BYTES: libc::socklen_t = 4;

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::OwnedFd;

    use super::*;

    fn accepted() -> (TcpStream, OwnedFd) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (stream, listener.accept().unwrap().0.into())
    }

    #[test]
    fn loopback_has_a_cpu_and_no_receive_queue() {
        assert_eq!(size_of::<c_int>(), INT_BYTES as usize);
        let (_stream, fd) = accepted();
        assert_eq!(incoming_napi_id(&fd), None);
        assert!(incoming_cpu(&fd).is_some_and(|cpu| cpu < 4096));
    }

    #[test]
    fn what_is_no_socket_has_neither() {
        let file: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
        assert_eq!((incoming_napi_id(&file), incoming_cpu(&file)), (None, None));
        assert_eq!(mark(&file), None);
        let error = set_busy_poll(&file, Duration::from_micros(7)).unwrap_err();
        assert!(error.to_string().starts_with("cannot busy poll for 7 us: "), "{error}");
    }

    #[test]
    fn the_program_for_listeners_has_bounds() {
        let program = cpu_program(&[4, 6]).unwrap();
        let steps: Vec<_> = program.iter().map(|step| (step.code, step.jf, step.k)).collect();
        let load = (0x20, 0, 0xffff_f024);
        let rest = [(0x15, 1, 4), (0x06, 0, 0), (0x15, 1, 6), (0x06, 0, 1), (0x06, 0, u32::MAX)];
        assert_eq!((steps[0], &steps[1..]), (load, &rest[..]));
        assert!(cpu_program(&vec![0; 2047]).is_ok());
        let error = cpu_program(&vec![0; 2048]).unwrap_err();
        assert!(error.to_string().starts_with("2048 CPUs are too many"), "{error}");
    }

    #[test]
    fn accepted_sockets_have_the_mark_of_their_listener() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let marked = set(&listener, libc::SO_MARK, 9).is_ok();
        let _stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        // Marks need CAP_NET_ADMIN.
        assert_eq!(mark(&accepted), marked.then_some(9).and_then(NonZeroU32::new));
    }

    #[test]
    fn a_priority_that_is_refused_says_what_is_needed() {
        let (_stream, fd) = accepted();
        let error = set_priority(&fd, u32::MAX).unwrap_err();
        assert_eq!(error.to_string(), "socket priority 4294967295 is above 2147483647");
        let refused = priority_error(io::Error::from_raw_os_error(libc::EPERM), 7);
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(
            refused.to_string(),
            "socket priority 7 cannot be set: above 6 it needs CAP_NET_ADMIN"
        );
        match set_priority(&fd, 7) {
            Ok(()) => assert_eq!(priority(&fd).unwrap(), 7),
            Err(error) => {
                assert_eq!(error.to_string(), refused.to_string());
                eprintln!("SKIPPED: a priority of 7 is not permitted: {error}");
            }
        }
    }

    #[test]
    fn busy_polling_is_set_or_its_refusal_says_what_is_needed() {
        let (_stream, fd) = accepted();
        match set_busy_poll(&fd, Duration::from_micros(50)) {
            Ok(how) => {
                assert_eq!(get(&fd, libc::SO_BUSY_POLL).unwrap(), 50);
                let preferred = get(&fd, libc::SO_PREFER_BUSY_POLL).unwrap() == 1;
                assert_eq!(how == BusyPoll::Preferred, preferred);
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                assert!(error.to_string().contains("CAP_NET_ADMIN"), "{error}");
                eprintln!("SKIPPED: what busy polling sets: {error}");
            }
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{error}");
                eprintln!("SKIPPED: what busy polling sets: {error}");
            }
        }
        let refused = busy_poll_error(io::Error::from_raw_os_error(libc::EPERM), 50);
        assert_eq!(
            refused.to_string(),
            "cannot busy poll for 50 us: it needs CAP_NET_ADMIN, or net.core.busy_read of that \
             many microseconds"
        );
    }
}
