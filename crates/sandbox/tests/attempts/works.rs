//! What must still work.

#![allow(unsafe_code)]

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;

use io_uring::{IoUring, opcode, types};
use raceline_sandbox::{CapabilitySet, Demand, Policy, enter};

use super::Attempt;
use super::support::{bits, call};

/// The attempt that needs a kernel with keyrings.
pub(crate) const KEYRING: &str = "daemon: the keyring of a thread";

/// Name and attempt.
pub(crate) const ATTEMPTS: &[(&str, Attempt)] = &[
    ("the kernel confirms what was given up", |_| confirmed()),
    ("a thread and its name", |_| {
        let thread = thread::Builder::new().name("worker".to_owned()).spawn(confirmed)?;
        thread.join().unwrap()
    }),
    ("a thread on a core", |_| stay_on_this_core()),
    ("files inside", |place| files(&place.inside())),
    ("a folder that is there", |place| fs::create_dir_all(place.inside())),
    ("a file to read", |place| File::open(place.read_only().join("file")).map(drop)),
    ("a file that is open already", |place| reopen(&place.inside().join("file"))),
    ("a Unix socket inside", |place| unix_socket(&place.inside())),
    ("the one port to listen on", |place| TcpListener::bind(("127.0.0.1", place.port())).map(drop)),
    ("daemon: any port, both ways", |_| tcp()),
    ("daemon: counters", |_| counters()),
    (KEYRING, |_| {
        let own = i64::from(libc::KEY_SPEC_THREAD_KEYRING).cast_unsigned();
        let operation = u64::from(libc::KEYCTL_GET_KEYRING_ID);
        call(libc::SYS_keyctl, [operation, own, 1, 0, 0, 0])
    }),
    ("daemon: network interfaces", |_| netlink(libc::NETLINK_ROUTE)),
    ("daemon with disks: the kernel's NBD client", |_| netlink(libc::NETLINK_GENERIC)),
    ("daemon: the list of RDMA devices, and their requests", |_| rdma_devices()),
    ("daemon: the number of a network interface", |_| number_of_loopback()),
    ("a listener for each core, chosen by a BPF program", |place| steered(place.port())),
    ("a socket's priority and mark", |_| priority()),
    ("io_uring", |place| ring(&place.inside().join("file"))),
    ("sealed: a file", |place| files(&place.inside())),
    ("a step that fails is an error that names it", |_| enter_again()),
    ("a signal to itself", |_| {
        call(libc::SYS_kill, [u64::from(std::process::id()), 0, 0, 0, 0, 0])
    }),
    ("the limit of open files", |_| read_limit()),
    ("memory that can be handed over", |_| {
        let name = u64::try_from(c"memory".as_ptr().addr()).unwrap();
        call(libc::SYS_memfd_create, [name, 0, 0, 0, 0, 0])
    }),
    ("a panic that is caught", |_| {
        thread::spawn(|| panic!("as a test")).join().unwrap_err();
        Ok(())
    }),
];

/// A socket of a part of the kernel.
pub(crate) fn netlink(protocol: i32) -> io::Result<()> {
    let [family, kind] = [libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC].map(bits);
    call(libc::SYS_socket, [family, kind, bits(protocol), 0, 0, 0])
}

/// A kernel without RDMA has no such socket, and no file but a device takes the request.
fn rdma_devices() -> io::Result<()> {
    match netlink(libc::NETLINK_RDMA) {
        Err(error) if error.raw_os_error() == Some(libc::EPROTONOSUPPORT) => {}
        other => other?,
    }
    let error = rdma_request().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOTTY), "{error}");
    Ok(())
}

/// RDMA_VERBS_IOCTL to standard error.
pub(crate) fn rdma_request() -> io::Result<()> {
    call(libc::SYS_ioctl, [2, 0xc018_1b01, 0, 0, 0, 0])
}

fn number_of_loopback() -> io::Result<()> {
    let socket = std::os::unix::net::UnixDatagram::unbound()?;
    rustix::net::netdevice::name_to_index(&socket, "lo").map(drop).map_err(Into::into)
}

/// What proc(5) says of the calling thread.
fn confirmed() -> io::Result<()> {
    let status = fs::read_to_string("/proc/thread-self/status")?;
    let field =
        |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim();
    let set = |name: &str| u64::from_str_radix(field(name), 16).unwrap();
    assert_eq!(field("NoNewPrivs:"), "1");
    assert_eq!(field("Seccomp:"), "2");
    // CAP_NET_ADMIN is 12, CAP_NET_BIND_SERVICE is 10.
    let kept = 1 << 12 | 1 << 10;
    assert_eq!(set("CapEff:") & !kept, 0);
    assert_eq!(set("CapPrm:") & !kept, 0);
    assert_eq!((set("CapInh:"), set("CapAmb:")), (0, 0));
    assert_eq!(field("CoreDumping:"), "0");
    let limits = fs::read_to_string("/proc/self/limits")?;
    let cores = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert_eq!(cores.split_whitespace().nth(4), Some("0"), "{cores}");
    assert_eq!(
        rustix::process::dumpable_behavior()?,
        rustix::process::DumpableBehavior::NotDumpable
    );
    Ok(())
}

fn stay_on_this_core() -> io::Result<()> {
    let set = rustix::thread::sched_getaffinity(None)?;
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// As a state directory is used.
fn files(folder: &Path) -> io::Result<()> {
    let (old, new) = (folder.join("old"), folder.join("new"));
    let mut file = File::create(&old)?;
    file.write_all(b"some text")?;
    file.set_len(4)?;
    file.sync_all()?;
    fs::rename(&old, &new)?;
    File::open(folder)?.sync_all()?;
    assert_eq!(fs::read(&new)?, b"some");
    assert_eq!(fs::read_dir(folder)?.count(), 2);
    fs::remove_file(new)
}

/// As each core opens a device again.
fn reopen(path: &Path) -> io::Result<()> {
    let file = File::options().read(true).write(true).open(path)?;
    File::options()
        .read(true)
        .write(true)
        .open(format!("/proc/self/fd/{}", file.as_raw_fd()))
        .map(drop)
}

fn unix_socket(folder: &Path) -> io::Result<()> {
    let path = folder.join("socket");
    let listener = UnixListener::bind(&path)?;
    let mut client = UnixStream::connect(&path)?;
    client.write_all(b"x")?;
    let mut byte = [0];
    listener.accept()?.0.read_exact(&mut byte)?;
    fs::remove_file(path)
}

fn tcp() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut client = TcpStream::connect(listener.local_addr()?)?;
    client.write_all(b"x")?;
    listener.accept()?.0.read_exact(&mut [0])
}

/// This machine may have no counters, or forbid them to this user: the sandbox must not be what refuses.
fn counters() -> io::Result<()> {
    match call(libc::SYS_perf_event_open, [0; 6]) {
        Err(error) if error.raw_os_error() == Some(libc::EFAULT) => Ok(()),
        other => other,
    }
}

fn steered(port: u16) -> io::Result<()> {
    use socket2::{Domain, Socket, Type};
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_reuse_port(true)?;
    let address: std::net::SocketAddr = ([127, 0, 0, 1], port).into();
    socket.bind(&address.into())?;
    // Returns 0: the first listener.
    let code = [libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: 0 }];
    let program = libc::sock_fprog { len: 1, filter: code.as_ptr().cast_mut() };
    let (level, option) = (bits(libc::SOL_SOCKET), bits(libc::SO_ATTACH_REUSEPORT_CBPF));
    let address = (&raw const program).expose_provenance() as u64;
    let len = size_of_val(&program) as u64;
    call(libc::SYS_setsockopt, [bits(socket.as_raw_fd()), level, option, address, len, 0])?;
    socket.listen(1)
}

/// Above 6 it takes CAP_NET_ADMIN, which the policy keeps.
fn priority() -> io::Result<()> {
    use socket2::{Domain, Socket, Type};
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    let has = rustix::thread::capabilities(None)?.effective;
    if has.contains(CapabilitySet::NET_ADMIN) {
        socket.set_priority(7)?;
        socket.set_mark(1)?;
    }
    socket.set_priority(6)
}

fn ring(path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    let mut ring = match IoUring::new(2) {
        // Forbidden on this machine by kernel.io_uring_disabled, and not by the sandbox.
        Err(_) if fs::read_to_string("/proc/sys/kernel/io_uring_disabled")?.trim() != "0" => {
            return Ok(());
        }
        ring => ring?,
    };
    let mut text = [0; 4];
    let read = opcode::Read::new(types::Fd(file.as_raw_fd()), text.as_mut_ptr(), 4).build();
    // SAFETY: the memory and the file outlive the operation, which is waited for.
    unsafe { ring.submission().push(&read) }.map_err(io::Error::other)?;
    ring.submit_and_wait(1)?;
    assert_eq!(ring.completion().next().unwrap().result(), 4);
    assert_eq!(&text, b"text");
    Ok(())
}

/// Inside, the first step is refused: a process that cannot give everything up must not go on.
fn enter_again() -> io::Result<()> {
    let policy = Policy {
        files: Vec::new(),
        connects: false,
        listens: None,
        abstract_sockets: false,
        interfaces: false,
        generic_netlink: false,
        rdma: false,
        counters: false,
        keyrings: false,
        capabilities: CapabilitySet::empty(),
    };
    let error = enter(&policy, Demand::WherePossible).unwrap_err().to_string();
    assert!(error.contains("cannot set RLIMIT_CORE to 0: Operation not permitted"), "{error}");
    assert!(error.ends_with("--sandbox off starts without it"), "{error}");
    Ok(())
}

fn read_limit() -> io::Result<()> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile);
    Ok(())
}
