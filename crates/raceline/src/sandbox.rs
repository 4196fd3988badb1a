//! What `export` and `serve` give up once they have started.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use raceline_control::daemon::Reach;
use raceline_sandbox::{Access, CapabilitySet, Demand, Policy, Rule, Sandbox, enter};

use crate::cli::device::Device;
use crate::cli::export::ExportArgs;
use crate::cli::sandbox::SandboxChoice;
use crate::cli::serve::ServeArgs;
use crate::cli::values::IoChoice;
use crate::failure::Failure;

/// What both read: limits of memory, caches, block devices, costs.
const FACTS: [&str; 2] = ["/proc", "/sys"];
/// What a daemon reads besides: who this machine is, and what udev knows of its drives.
const IDENTITY: [&str; 4] =
    ["/etc/machine-id", "/var/lib/dbus/machine-id", "/etc/nvme", "/run/udev/data"];
/// Work queues of Intel DSA.
const ACCELERATORS: &str = "/dev/dsa";
/// RDMA devices and the connection manager.
const RDMA_DEVICES: &str = "/dev/infiniband";
/// Which libraries drive which RDMA devices: libibverbs reads it whenever it lists the devices.
const RDMA_DRIVERS: &str = "/etc/libibverbs.d";
/// It is there if the kernel has its NBD client.
const NBD_MODULE: &str = "/sys/module/nbd";
/// The priority of a socket above which it takes CAP_NET_ADMIN.
const PLAIN_PRIORITY_MAX: u32 = 6;
/// The first port that any user may listen on.
const PLAIN_PORT_MIN: u16 = 1024;

/// Enters the sandbox of an export whose files and devices are open. Cores open them again.
pub(crate) fn enter_export(
    args: &ExportArgs,
    listen: &[SocketAddr],
) -> Result<Option<Sandbox>, Failure> {
    let mut files: Vec<Rule> = facts();
    for device in &args.devices {
        if let (Device::Local(spec), Some(path)) = (device, device.path()) {
            let path = path.canonicalize().map_err(|error| {
                Failure::runtime(format!("`{}` is not there any more: {error}", path.display()))
            })?;
            files.push(Rule::new(path, if spec.read_only { Access::Read } else { Access::Use }));
        }
    }
    if args.accel.as_ref().is_some_and(|choice| choice.uses_devices()) {
        files.push(Rule::if_there(ACCELERATORS, Access::Use));
    }
    let rdma = args.listen.iter().any(|listen| listen.is_rdma);
    if rdma {
        files.extend(rdma_files());
    }
    let ports = listen.iter().map(SocketAddr::port);
    let policy = Policy {
        files,
        // Sessions with iSCSI targets, which are made again when they are lost.
        connects: args.devices.iter().any(|device| device.url().is_some()),
        // The cores listen on the port that the kernel has chosen for the first.
        listens: ports.clone().all(|port| port != 0).then(|| ports.collect()),
        abstract_sockets: false,
        interfaces: args.mdns,
        generic_netlink: false,
        rdma,
        counters: true,
        keyrings: false,
        capabilities: capabilities_of_export(args, listen),
    };
    enter_as(args.sandbox.sandbox, &policy)
}

fn capabilities_of_export(args: &ExportArgs, listen: &[SocketAddr]) -> CapabilitySet {
    let needs = [
        (
            CapabilitySet::NET_ADMIN,
            args.connections.sock_priority.is_some_and(|priority| priority > PLAIN_PRIORITY_MAX)
                || args.connections.busy_poll.is_some()
                || args.connections.profile.is_some(),
        ),
        (
            CapabilitySet::NET_BIND_SERVICE,
            listen.iter().any(|address| (1..PLAIN_PORT_MIN).contains(&address.port())),
        ),
        // A core opens a file again, which may be another user's.
        (CapabilitySet::DAC_OVERRIDE, args.devices.iter().any(|device| device.path().is_some())),
        // Buffers that the ring or an RDMA device has registered count as locked memory.
        (
            CapabilitySet::IPC_LOCK,
            args.io != IoChoice::Epoll || args.listen.iter().any(|listen| listen.is_rdma),
        ),
        // Instructions per command, where kernel.perf_event_paranoid is above 2.
        (CapabilitySet::PERFMON, true),
    ];
    needs.into_iter().filter(|(_, needed)| *needed).map(|(capability, _)| capability).collect()
}

/// Enters the sandbox of a daemon, which makes its directories first. What RPC calls will ask for is not known yet.
pub(crate) fn enter_serve(
    args: &ServeArgs,
    reach: impl FnOnce() -> Result<Reach, Failure>,
) -> Result<(), Failure> {
    let is_off = args.sandbox.sandbox == Some(SandboxChoice::Off);
    if is_off && !args.confine.is_empty() {
        return Err(Failure::usage(
            "--confine has no effect with --sandbox off: leave one of them out",
        ));
    }
    if is_off {
        return Ok(());
    }
    let reach = reach()?;
    let is_confined = !args.confine.is_empty();
    // Clients of SPDK name any file while a daemon runs. Whoever can say which files that are says it.
    let data = if is_confined { args.confine.clone() } else { vec![PathBuf::from("/")] };
    let mut files = facts();
    files.extend(IDENTITY.map(|path| Rule::if_there(path, Access::Read)));
    files.extend(reach.own.iter().map(|path| Rule::new(path, Access::Keep)));
    files.extend(data.iter().map(|path| Rule::new(path, Access::Use)));
    if args.rdma {
        files.extend(rdma_files());
    }
    let notifies_by_name = std::env::var_os("NOTIFY_SOCKET")
        .is_some_and(|socket| socket.as_encoded_bytes().starts_with(b"@"));
    let policy = Policy {
        files,
        connects: true,
        listens: None,
        abstract_sockets: notifies_by_name,
        interfaces: args.mdns,
        // With CAP_NET_ADMIN it is a way to many parts of the kernel: only where there may be disks of its NBD client.
        generic_netlink: Path::new(NBD_MODULE).exists(),
        rdma: args.rdma,
        counters: false,
        // Pre-shared keys of attached controllers.
        keyrings: true,
        capabilities: CapabilitySet::NET_ADMIN
            | CapabilitySet::NET_BIND_SERVICE
            | CapabilitySet::DAC_OVERRIDE
            | CapabilitySet::IPC_LOCK
            // Health, reset and passthrough of local drives.
            | CapabilitySet::SYS_ADMIN,
    };
    // Who says where a daemon may go does not want one that may go anywhere.
    let choice = args.sandbox.sandbox.or(is_confined.then_some(SandboxChoice::On));
    let sandbox = enter_as(choice, &policy)?;
    if is_confined && sandbox.is_some_and(|sandbox| sandbox.missing().restricts_files()) {
        raceline_bdev::confine_to(data);
    }
    Ok(())
}

fn rdma_files() -> [Rule; 2] {
    [Rule::if_there(RDMA_DEVICES, Access::Use), Rule::if_there(RDMA_DRIVERS, Access::Read)]
}

fn facts() -> Vec<Rule> {
    FACTS.iter().map(|path| Rule::if_there(path, Access::Read)).collect()
}

fn enter_as(choice: Option<SandboxChoice>, policy: &Policy) -> Result<Option<Sandbox>, Failure> {
    let demand = match choice {
        Some(SandboxChoice::Off) => return Ok(None),
        Some(SandboxChoice::On) => Demand::All,
        None => Demand::WherePossible,
    };
    let sandbox = enter(policy, demand).map_err(Failure::runtime)?;
    // What is not loaded yet cannot be loaded any more, and errors say so.
    raceline_host::transport::seal();
    let missing = sandbox.missing();
    for part in &missing.parts {
        tracing::warn!("sandbox: {part}; the program goes on without this part");
    }
    missing.details.iter().for_each(|detail| tracing::info!("sandbox: {detail}"));
    Ok(Some(sandbox))
}
