//! Arguments of `raceline serve`.

use std::path::PathBuf;

use super::connections::ConnectionArgs;
use super::http::HttpArgs;
use super::sandbox::{SandboxArgs, confine_path};
use super::values::CoreList;

/// The socket that SPDK's clients use by default.
pub(crate) const DEFAULT_SOCKET: &str = "/var/tmp/spdk.sock";

/// Arguments of `serve`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Clients of SPDK (rpc.py, spdk-rpc, and raceline rpc) configure it on the socket. Users named with \
--rpc-admin, root, and the user it runs as may change things; others whom the mode of the socket \
lets in may look.

SIGINT or SIGTERM ends it after what is in flight; a second one ends it at once.

To replace it by a new program while hosts stay connected, run raceline serve with the same arguments and \
--take-over, or systemctl reload. SIGUSR2 has it start that itself, but only with --sandbox off: in the sandbox, which \
is on by default, it can start no program.

Example: raceline serve -r ./rpc.sock -m [0,1] --state-dir ./state

The package has a service with its own user: systemctl start raceline")]
pub(crate) struct ServeArgs {
    /// Begin with this configuration, as save_config writes it
    #[arg(short = 'c', long = "config", visible_alias = "json", value_name = "CONFIG.json")]
    pub(crate) config: Option<PathBuf>,

    /// Where clients connect
    #[arg(short = 'r', long = "rpc-socket", value_name = "SOCKET", default_value = DEFAULT_SOCKET)]
    pub(crate) socket: PathBuf,

    /// Cores to run on, a mask like 0x3 or a list like [0,2-4] [default: one thread that is not bound]
    #[arg(short = 'm', long = "cpumask", value_name = "CORES", value_parser = cores)]
    pub(crate) cores: Option<CoreList>,

    /// Wait for framework_start_init, so that options can be set first
    #[arg(long)]
    pub(crate) wait_for_rpc: bool,

    /// Keep every change here, and begin with what is there
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) connections: ConnectionArgs,

    /// Let this user (by number) change things, repeatable
    #[arg(long = "rpc-admin", value_name = "UID")]
    pub(crate) admins: Vec<u32>,

    /// Announce the listeners of the discovery service to the local network by multicast DNS, and let clients search it
    #[arg(long)]
    pub(crate) mdns: bool,

    /// Take the place of the daemon that has this RPC socket: hosts see a pause and no error. What it is started with besides
    /// should be what the daemon was started with; the configuration comes from the daemon, whatever -c says
    #[arg(long)]
    pub(crate) take_over: bool,

    /// Come back when it is ready, and leave it running
    #[arg(long)]
    pub(crate) detach: bool,

    /// Keep the contents of devices in memory where a process that takes over finds them. They then have huge pages only if
    /// /sys/kernel/mm/transparent_hugepage/shmem_enabled says so
    #[arg(long)]
    pub(crate) keep_ram: bool,

    /// Load the RDMA libraries, and keep the RDMA devices of this machine in the sandbox: for listeners and paths over RDMA.
    /// The devices must be there at the start
    #[arg(long)]
    pub(crate) rdma: bool,

    #[command(flatten)]
    pub(crate) sandbox: SandboxArgs,

    /// A file, device or folder in which it may ever open devices, whatever clients and the configuration ask for,
    /// repeatable; has --sandbox on [default: any that its user may open]
    #[arg(long, value_name = "PATH", value_parser = confine_path)]
    pub(crate) confine: Vec<PathBuf>,

    #[command(flatten)]
    pub(crate) http: HttpArgs,
}

fn cores(text: &str) -> Result<CoreList, String> {
    raceline_control::cores::parse_cores(text).map(CoreList)
}
