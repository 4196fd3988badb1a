//! seccomp: the system calls that are left, and with what arguments.
//!
//! A call that is not listed gives EPERM. It does not end the process, because a C library may try a newer call
//! before an older one. Calls on the path of an I/O are listed without conditions: the kernel remembers for such a
//! call that it is allowed, and does not run the filter (Linux 5.11).

use std::collections::BTreeMap;

use libc::c_long;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch,
};

use crate::{Missing, Policy, SandboxError};

/// A condition on an argument.
enum Is {
    /// The low 32 bits of the argument are this.
    Value(u32),
    /// These bits of the argument are these.
    Bits { mask: u64, value: u64 },
    /// All 64 bits are zero: a null pointer.
    Null,
}

/// Calls, each with what has to be the case; nothing has to where the list is empty.
type Rules = BTreeMap<c_long, Vec<SeccompRule>>;

/// The answer to a call that is not allowed.
const REFUSED: SeccompAction = SeccompAction::Errno(libc::EPERM.cast_unsigned());
/// The answer to a call that the kernel seems not to have.
const UNKNOWN: SeccompAction = SeccompAction::Errno(libc::ENOSYS.cast_unsigned());

/// A call with conditions: argument 0 is this and argument 1 is that, and so on.
type Conditional = (c_long, Vec<(u8, Is)>);

/// Calls that are allowed whatever their arguments are.
const ALWAYS: &[c_long] = &[
    // Memory. What makes memory executable has conditions.
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_mbind,
    libc::SYS_membarrier,
    // Memory of devices that a successor is given. It can no more become executable than other memory.
    libc::SYS_memfd_create,
    libc::SYS_mincore,
    // Pages of keys.
    libc::SYS_mlock,
    libc::SYS_mremap,
    libc::SYS_munmap,
    // Threads and time.
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_clone3,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_getcpu,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_getrusage,
    libc::SYS_gettid,
    libc::SYS_gettimeofday,
    libc::SYS_nanosleep,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_sigaltstack,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    // Who it is.
    libc::SYS_capget,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getuid,
    // Files. Which, Landlock says.
    libc::SYS_close,
    libc::SYS_copy_file_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fadvise64,
    libc::SYS_fallocate,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fcntl,
    libc::SYS_fdatasync,
    libc::SYS_flock,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_fsync,
    libc::SYS_ftruncate,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_lseek,
    // Landlock permits no new folder; a call for one that is there says so.
    libc::SYS_mkdirat,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_pipe2,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_read,
    libc::SYS_readlinkat,
    libc::SYS_readv,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_splice,
    libc::SYS_statfs,
    libc::SYS_statx,
    libc::SYS_unlinkat,
    libc::SYS_vmsplice,
    libc::SYS_write,
    libc::SYS_writev,
    // Sockets. Which families, a condition says.
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_listen,
    libc::SYS_recvfrom,
    libc::SYS_recvmmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendmmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    // Waiting.
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_ppoll,
    // io_uring. What its rings may do, the reactor restricts.
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
];

/// Older forms of calls, which C libraries and `rustix` use where they are there.
#[cfg(target_arch = "x86_64")]
const OLDER: &[c_long] = &[
    libc::SYS_access,
    libc::SYS_chmod,
    libc::SYS_dup2,
    libc::SYS_epoll_wait,
    libc::SYS_lstat,
    libc::SYS_mkdir,
    libc::SYS_open,
    libc::SYS_poll,
    libc::SYS_readlink,
    libc::SYS_rename,
    libc::SYS_stat,
    libc::SYS_time,
    libc::SYS_unlink,
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[c_long] = &[];

/// Flags of clone(2) that make a name space: a user of its own would have capabilities again.
const NAMESPACE_FLAGS: u64 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u64;

const CLONE_THREAD: u64 = libc::CLONE_THREAD as u64;
const PROT_EXEC: u64 = libc::PROT_EXEC as u64;

/// Families of sockets: IPv4, IPv6, and Unix for clients of the RPC socket and for systemd.
const FAMILIES: [i32; 3] = [libc::AF_INET, libc::AF_INET6, libc::AF_UNIX];

/// What prctl(2) may do: name threads and memory, and what [`seal`] begins with.
const THREAD_SETTINGS: [i32; 5] = [
    libc::PR_SET_NAME,
    libc::PR_GET_NAME,
    PR_SET_VMA,
    libc::PR_GET_DUMPABLE,
    libc::PR_SET_NO_NEW_PRIVS,
];
/// `PR_SET_VMA` of linux/prctl.h: the C library names its memory.
const PR_SET_VMA: i32 = 0x5356_4d41;

/// What ioctl(2) may ask, by the numbers of the kernel's headers.
const REQUESTS: &[u32] = &[
    0x5401,      // TCGETS: is it a terminal?
    0x5411,      // TIOCOUTQ: bytes that a socket has not sent
    0x541b,      // FIONREAD: bytes that a socket has received
    0x5421,      // FIONBIO
    0x1268,      // BLKSSZGET
    0x4008_8a01, // EPIOCSPARAMS
    0x8008_8a02, // EPIOCGPARAMS
    0xc048_4e41, // NVME_IOCTL_ADMIN_CMD
    0xc048_4e43, // NVME_IOCTL_IO_CMD
    0x4e44,      // NVME_IOCTL_RESET
];

/// Requests for the numbers and names of network interfaces (netdevice(7)).
const INTERFACE_REQUESTS: &[u32] = &[
    0x8910, // SIOCGIFNAME
    0x8933, // SIOCGIFINDEX
];

/// Requests to RDMA devices: RDMA_VERBS_IOCTL of rdma/rdma_user_ioctl.h. The requests of older kernels are written to the
/// device.
const RDMA_REQUESTS: &[u32] = &[0xc018_1b01];

/// What keyctl(2) may do: find and read keys, and have a keyring of this thread lead to them.
const KEY_OPERATIONS: &[u32] =
    &[libc::KEYCTL_GET_KEYRING_ID, libc::KEYCTL_LINK, libc::KEYCTL_SEARCH, libc::KEYCTL_READ];

/// Requests to performance counters.
const COUNTER_REQUESTS: &[u32] = &[
    0x2400, // PERF_EVENT_IOC_ENABLE
    0x2401, // PERF_EVENT_IOC_DISABLE
    0x2403, // PERF_EVENT_IOC_RESET
];

/// Calls with conditions. A call that is listed twice is allowed if one entry fits.
fn conditional(policy: &Policy) -> Vec<Conditional> {
    let own_process = std::process::id();
    let mut calls: Vec<Conditional> = vec![
        // Threads, and neither processes nor name spaces.
        (
            libc::SYS_clone,
            vec![(0, Is::Bits { mask: CLONE_THREAD | NAMESPACE_FLAGS, value: CLONE_THREAD })],
        ),
        // No memory that can be executed.
        (libc::SYS_mmap, vec![(2, Is::Bits { mask: PROT_EXEC, value: 0 })]),
        (libc::SYS_mprotect, vec![(2, Is::Bits { mask: PROT_EXEC, value: 0 })]),
        // Limits are read, and not changed.
        (libc::SYS_prlimit64, vec![(0, Is::Value(0)), (2, Is::Null)]),
        // Signals for this process alone: the RPC method spdk_kill_instance, and abort(3).
        (libc::SYS_kill, vec![(0, Is::Value(own_process))]),
        (libc::SYS_tgkill, vec![(0, Is::Value(own_process))]),
        // Another filter for all threads, which can only take more away.
        (
            libc::SYS_seccomp,
            vec![
                (0, Is::Value(libc::SECCOMP_SET_MODE_FILTER)),
                (1, Is::Bits { mask: u64::MAX, value: libc::SECCOMP_FILTER_FLAG_TSYNC }),
            ],
        ),
        (libc::SYS_socketpair, vec![(0, Is::Value(libc::AF_UNIX.cast_unsigned()))]),
    ];
    let argument = |call, index, values: &[u32]| {
        values.iter().map(move |&value| (call, vec![(index, Is::Value(value))])).collect::<Vec<_>>()
    };
    calls.extend(argument(libc::SYS_socket, 0, &FAMILIES.map(i32::cast_unsigned)));
    if policy.interfaces {
        let rtnetlink = |index, value: i32| (index, Is::Value(value.cast_unsigned()));
        let family = rtnetlink(0, libc::AF_NETLINK);
        calls.push((libc::SYS_socket, vec![family, rtnetlink(2, libc::NETLINK_ROUTE)]));
        calls.extend(argument(libc::SYS_ioctl, 1, INTERFACE_REQUESTS));
    }
    if policy.generic_netlink {
        let netlink = |index, value: i32| (index, Is::Value(value.cast_unsigned()));
        let family = netlink(0, libc::AF_NETLINK);
        calls.push((libc::SYS_socket, vec![family, netlink(2, libc::NETLINK_GENERIC)]));
    }
    if policy.rdma {
        let netlink = |index, value: i32| (index, Is::Value(value.cast_unsigned()));
        let family = netlink(0, libc::AF_NETLINK);
        calls.push((libc::SYS_socket, vec![family, netlink(2, libc::NETLINK_RDMA)]));
        calls.extend(argument(libc::SYS_ioctl, 1, RDMA_REQUESTS));
        // The ticks of a listener.
        let clock = libc::CLOCK_MONOTONIC.cast_unsigned();
        calls.extend(argument(libc::SYS_timerfd_create, 0, &[clock]));
        calls.push((libc::SYS_timerfd_settime, Vec::new()));
    }
    calls.extend(argument(libc::SYS_prctl, 0, &THREAD_SETTINGS.map(i32::cast_unsigned)));
    calls.extend(argument(libc::SYS_ioctl, 1, REQUESTS));
    if policy.keyrings {
        calls.extend(argument(libc::SYS_keyctl, 0, KEY_OPERATIONS));
    }
    if policy.counters {
        calls.push((libc::SYS_perf_event_open, Vec::new()));
        calls.extend(argument(libc::SYS_ioctl, 1, COUNTER_REQUESTS));
    }
    calls
}

/// Calls that a C library tries first and does without: it falls back only if the kernel seems not to have them.
/// The flags of clone3(2) lie in memory, where a filter cannot see them.
const AS_IF_UNKNOWN: [c_long; 1] = [libc::SYS_clone3];

/// What a process that has all its sockets and rings gives up, too. A new ring could do what the restrictions of the
/// old ones forbid.
const SEALED: [c_long; 5] = [
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_io_uring_setup,
    libc::SYS_listen,
    libc::SYS_socket,
];

/// Filters the calls of [`SEALED`] in all threads.
pub(crate) fn seal() -> Result<(), SandboxError> {
    let rules = SEALED.iter().map(|&call| (call, Vec::new())).collect();
    let program = program(rules, SeccompAction::Allow, REFUSED);
    let program = program.map_err(seccompiler::Error::Backend)?;
    Ok(seccompiler::apply_filter_all_threads(&program)?)
}

/// Filters the system calls of the calling thread; false if the kernel has no filters.
pub(crate) fn filter(policy: &Policy, missing: &mut Missing) -> Result<bool, SandboxError> {
    let programs = programs(policy).map_err(seccompiler::Error::Backend)?;
    for program in programs {
        match seccompiler::apply_filter(&program) {
            Ok(()) => {}
            // A kernel without filters, or one that is emulated.
            Err(seccompiler::Error::Seccomp(error))
                if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS)) =>
            {
                missing.parts.push(format!(
                    "this kernel has no filters for system calls (CONFIG_SECCOMP_FILTER): {error}"
                ));
                return Ok(false);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}

/// The two filters. The kernel asks both, and the stricter answer counts.
fn programs(policy: &Policy) -> Result<[BpfProgram; 2], BackendError> {
    let unknown = AS_IF_UNKNOWN.iter().map(|&call| (call, Vec::new())).collect();
    let unknown = program(unknown, SeccompAction::Allow, UNKNOWN)?;
    let mut rules = Rules::new();
    for &call in ALWAYS.iter().chain(OLDER) {
        rules.insert(call, Vec::new());
    }
    for (call, conditions) in conditional(policy) {
        let all = rules.entry(call).or_default();
        if !conditions.is_empty() {
            let conditions = conditions.into_iter().map(|(index, is)| condition(index, &is));
            all.push(SeccompRule::new(conditions.collect::<Result<_, _>>()?)?);
        }
    }
    Ok([unknown, program(rules, REFUSED, SeccompAction::Allow)?])
}

/// A filter that gives `listed` for calls of the rules and `others` for all others.
fn program(
    rules: Rules,
    others: SeccompAction,
    listed: SeccompAction,
) -> Result<BpfProgram, BackendError> {
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    SeccompFilter::new(rules, others, listed, arch)?.try_into()
}

fn condition(index: u8, is: &Is) -> Result<SeccompCondition, BackendError> {
    use SeccompCmpArgLen::{Dword, Qword};
    match *is {
        Is::Value(value) => SeccompCondition::new(index, Dword, SeccompCmpOp::Eq, u64::from(value)),
        Is::Bits { mask, value } => {
            SeccompCondition::new(index, Qword, SeccompCmpOp::MaskedEq(mask), value)
        }
        Is::Null => SeccompCondition::new(index, Qword, SeccompCmpOp::Eq, 0),
    }
}
