//! What must fail.

#![allow(unsafe_code)]

use std::fs::{self, File, OpenOptions};
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use io_uring::{IoUring, opcode, types};
use libc::{EACCES, ENOSYS, EPERM};

use super::Attempt;
use super::support::{Place, bits, call};
use super::works;

/// Name, attempt, and what the sandbox answers.
pub(crate) const ATTEMPTS: &[(&str, Attempt, &[i32])] = &[
    // Other programs and processes.
    ("execve", |_| call(libc::SYS_execve, [0; 6]), &[EPERM]),
    ("execveat", |_| call(libc::SYS_execveat, [0; 6]), &[EPERM]),
    // The kernel refuses these flags together, so outside there is no child either.
    ("fork", |_| call(libc::SYS_clone, [bits(libc::CLONE_SIGHAND), 0, 0, 0, 0, 0]), &[EPERM]),
    ("a program by the library", |_| run_program(), &[EPERM]),
    ("clone3", |_| call(libc::SYS_clone3, [0; 6]), &[ENOSYS]),
    ("unshare", |_| call(libc::SYS_unshare, [0; 6]), &[EPERM]),
    ("setns", |_| call(libc::SYS_setns, [u64::MAX, 0, 0, 0, 0, 0]), &[EPERM]),
    (
        "ptrace",
        |_| call(libc::SYS_ptrace, [u64::from(libc::PTRACE_TRACEME), 0, 0, 0, 0, 0]),
        &[EPERM],
    ),
    ("process_vm_readv", |_| call(libc::SYS_process_vm_readv, [parent(), 0, 0, 0, 0, 0]), &[EPERM]),
    (
        "process_vm_writev",
        |_| call(libc::SYS_process_vm_writev, [parent(), 0, 0, 0, 0, 0]),
        &[EPERM],
    ),
    ("pidfd_getfd", |_| call(libc::SYS_pidfd_getfd, [u64::MAX, 0, 0, 0, 0, 0]), &[EPERM]),
    ("a signal to the parent", |_| call(libc::SYS_kill, [parent(), 0, 0, 0, 0, 0]), &[EPERM]),
    ("a signal to all", |_| call(libc::SYS_kill, [u64::MAX, 0, 0, 0, 0, 0]), &[EPERM]),
    // The kernel.
    ("bpf", |_| call(libc::SYS_bpf, [u64::MAX, 0, 0, 0, 0, 0]), &[EPERM]),
    ("kexec_load", |_| call(libc::SYS_kexec_load, [0, 0, 0, u64::MAX, 0, 0]), &[EPERM]),
    ("init_module", |_| call(libc::SYS_init_module, [0; 6]), &[EPERM]),
    ("finit_module", |_| call(libc::SYS_finit_module, [u64::MAX, 0, 0, 0, 0, 0]), &[EPERM]),
    ("delete_module", |_| call(libc::SYS_delete_module, [0; 6]), &[EPERM]),
    ("reboot", |_| call(libc::SYS_reboot, [0; 6]), &[EPERM]),
    ("swapon", |_| call(libc::SYS_swapon, [0; 6]), &[EPERM]),
    ("syslog", |_| call(libc::SYS_syslog, [10, 0, 0, 0, 0, 0]), &[EPERM]),
    ("settimeofday", |_| call(libc::SYS_settimeofday, [0; 6]), &[EPERM]),
    ("sethostname", |_| call(libc::SYS_sethostname, [0, u64::MAX, 0, 0, 0, 0]), &[EPERM]),
    ("keyctl", |_| call(libc::SYS_keyctl, [u64::MAX, 0, 0, 0, 0, 0]), &[EPERM]),
    (
        "daemon: a key that is revoked",
        |_| call(libc::SYS_keyctl, [u64::from(libc::KEYCTL_REVOKE), 0, 0, 0, 0, 0]),
        &[EPERM],
    ),
    ("add_key", |_| call(libc::SYS_add_key, [0; 6]), &[EPERM]),
    ("userfaultfd", |_| call(libc::SYS_userfaultfd, [u64::MAX, 0, 0, 0, 0, 0]), &[EPERM]),
    ("perf_event_open", |_| call(libc::SYS_perf_event_open, [0; 6]), &[EPERM]),
    ("personality", |_| call(libc::SYS_personality, [0xffff_ffff, 0, 0, 0, 0, 0]), &[EPERM]),
    #[cfg(target_arch = "x86_64")]
    ("iopl", |_| call(libc::SYS_iopl, [4, 0, 0, 0, 0, 0]), &[EPERM]),
    #[cfg(target_arch = "x86_64")]
    ("a call of the x32 interface", |_| call(0x4000_0000 + libc::SYS_getpid, [0; 6]), &[EPERM]),
    // Privileges and limits.
    ("setuid", |_| call(libc::SYS_setuid, [0xffff_ffff, 0, 0, 0, 0, 0]), &[EPERM]),
    ("setgroups", |_| call(libc::SYS_setgroups, [u64::MAX, 0, 0, 0, 0, 0]), &[EPERM]),
    ("capset", |_| call(libc::SYS_capset, [0; 6]), &[EPERM]),
    (
        "core dumps again",
        |_| call(libc::SYS_prctl, [bits(libc::PR_SET_DUMPABLE), 1, 0, 0, 0, 0]),
        &[EPERM],
    ),
    ("a higher limit", |_| raise_core_limit(), &[EPERM]),
    // Memory.
    ("mmap of executable memory", |_| map(libc::PROT_READ | libc::PROT_EXEC), &[EPERM]),
    (
        "mprotect to executable",
        |_| call(libc::SYS_mprotect, [0, 0, bits(libc::PROT_EXEC), 0, 0, 0]),
        &[EPERM],
    ),
    ("shmget", |_| call(libc::SYS_shmget, [0, u64::MAX, 0, 0, 0, 0]), &[EPERM]),
    // File systems.
    ("mount", |_| call(libc::SYS_mount, [0; 6]), &[EPERM]),
    ("umount", |_| call(libc::SYS_umount2, [0; 6]), &[EPERM]),
    ("open_tree", |_| call(libc::SYS_open_tree, [u64::MAX, 0, 0, 0, 0, 0]), &[EPERM]),
    ("chroot", |_| call(libc::SYS_chroot, [0; 6]), &[EPERM]),
    ("pivot_root", |_| call(libc::SYS_pivot_root, [0; 6]), &[EPERM]),
    ("open_by_handle_at", |_| call(libc::SYS_open_by_handle_at, [0; 6]), &[EPERM]),
    ("mknodat", |_| call(libc::SYS_mknodat, [0; 6]), &[EPERM]),
    ("linkat", |_| call(libc::SYS_linkat, [0; 6]), &[EPERM]),
    ("symlinkat", |_| call(libc::SYS_symlinkat, [0; 6]), &[EPERM]),
    ("fchownat", |_| call(libc::SYS_fchownat, [0; 6]), &[EPERM]),
    (
        "read of a file outside",
        |place| File::open(place.outside().join("file")).map(drop),
        &[EACCES],
    ),
    ("write of a file outside", |place| open_to_write(place.outside().join("file")), &[EACCES]),
    ("write of a file of the system", |_| open_to_write(system_file()), &[EACCES]),
    ("a new file outside", |place| File::create(place.outside().join("new")).map(drop), &[EACCES]),
    ("a new folder inside", |place| fs::create_dir(place.inside().join("new")), &[EACCES]),
    ("removal of a file outside", |place| fs::remove_file(place.outside().join("file")), &[EACCES]),
    ("truncate of a file outside", |place| truncate(place), &[EPERM]),
    ("write of a file to read", |place| open_to_write(place.read_only().join("file")), &[EACCES]),
    (
        "a way out by two dots",
        |place| File::open(place.inside().join("../outside/file")).map(drop),
        &[EACCES],
    ),
    ("a file outside from a thread", |place| in_thread(place), &[EACCES]),
    ("a file outside by io_uring", |place| by_ring(place), &[EACCES]),
    // Sockets.
    ("daemon: another netlink socket", |_| works::netlink(libc::NETLINK_GENERIC), &[EPERM]),
    ("the list of RDMA devices", |_| works::netlink(libc::NETLINK_RDMA), &[EPERM]),
    ("a request to an RDMA device", |_| works::rdma_request(), &[EPERM]),
    ("a netlink socket", |_| socket(libc::AF_NETLINK, libc::SOCK_RAW), &[EPERM]),
    ("a packet socket", |_| socket(libc::AF_PACKET, libc::SOCK_RAW), &[EPERM]),
    ("a key socket", |_| socket(libc::AF_KEY, libc::SOCK_RAW), &[EPERM]),
    (
        "a socket of the kernel's cryptography",
        |_| socket(libc::AF_ALG, libc::SOCK_SEQPACKET),
        &[EPERM],
    ),
    ("a vsock", |_| socket(libc::AF_VSOCK, libc::SOCK_STREAM), &[EPERM]),
    ("another port to listen on", |_| TcpListener::bind("127.0.0.1:0").map(drop), &[EACCES]),
    (
        "a port to connect to",
        |place| TcpStream::connect(("127.0.0.1", place.port())).map(drop),
        &[EACCES],
    ),
    ("an abstract socket", |place| abstract_socket(place), &[EPERM]),
    ("sealed: a socket", |_| socket(libc::AF_INET, libc::SOCK_STREAM), &[EPERM]),
    ("sealed: a ring", |_| IoUring::new(2).map(drop), &[EPERM]),
    // Devices.
    ("TIOCSTI", |_| call(libc::SYS_ioctl, [0, libc::TIOCSTI, 0, 0, 0, 0]), &[EPERM]),
];

fn parent() -> u64 {
    u64::from(std::os::unix::process::parent_id())
}

fn run_program() -> io::Result<()> {
    Command::new("/bin/true").stdin(Stdio::inherit()).output().map(drop)
}

fn raise_core_limit() -> io::Result<()> {
    let limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let address = (&raw const limit).expose_provenance() as u64;
    call(libc::SYS_prlimit64, [0, u64::from(libc::RLIMIT_CORE), address, 0, 0, 0])
}

fn map(protection: i32) -> io::Result<()> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    call(libc::SYS_mmap, [0, 4096, bits(protection), bits(flags), u64::MAX, 0])
}

fn open_to_write(path: PathBuf) -> io::Result<()> {
    OpenOptions::new().write(true).open(path).map(drop)
}

/// A file that nobody but root may write; a small guest has no users.
fn system_file() -> PathBuf {
    let all = ["/etc/shadow", "/etc/passwd", "/bin/sh"].map(PathBuf::from);
    all.into_iter().find(|path| path.exists()).unwrap()
}

fn truncate(place: &Place) -> io::Result<()> {
    let path = std::ffi::CString::new(place.outside().join("file").into_os_string().into_vec())?;
    call(libc::SYS_truncate, [path.as_ptr().expose_provenance() as u64, 1, 0, 0, 0, 0])
}

/// A thread that is started after the sandbox is in it, too.
fn in_thread(place: &Place) -> io::Result<()> {
    let path = place.outside().join("file");
    std::thread::spawn(move || File::open(path).map(drop)).join().unwrap()
}

/// A ring is not seen by the filter of system calls: Landlock holds there.
fn by_ring(place: &Place) -> io::Result<()> {
    let path = std::ffi::CString::new(place.outside().join("file").into_os_string().into_vec())?;
    let mut ring = IoUring::new(2)?;
    let open = opcode::OpenAt::new(types::Fd(libc::AT_FDCWD), path.as_ptr()).build();
    // SAFETY: the path outlives the operation, which is waited for.
    unsafe { ring.submission().push(&open) }.map_err(io::Error::other)?;
    ring.submit_and_wait(1)?;
    let result = ring.completion().next().unwrap().result();
    if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(()) }
}

fn socket(family: i32, kind: i32) -> io::Result<()> {
    call(libc::SYS_socket, [bits(family), bits(kind), 0, 0, 0, 0])
}

/// The listener is the parent's, which is outside.
fn abstract_socket(place: &Place) -> io::Result<()> {
    UnixStream::connect_addr(&place.abstract_name()).map(drop)
}
