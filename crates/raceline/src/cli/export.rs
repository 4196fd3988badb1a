//! Arguments of `raceline export`.

use std::net::SocketAddr;
use std::path::PathBuf;

use raceline_proto::nvme::Nqn;
use raceline_target::DEFAULT_QUEUE_DEPTH;
use raceline_tls::Ktls;

use super::authentication::AlgorithmArgs;
use super::connections::ConnectionArgs;
use super::device::Device;
use super::sandbox::SandboxArgs;
use super::values::{self, ACCEL_HELP, CoreList, IoChoice, Listen, ModeChoice};
use crate::accel::{AccelChoice, accel_choice};

const DEVICE_HELP: &str = "\
Device to export, becomes the next namespace (1, 2, ...)

  ram:SIZE                 memory, gone at exit
  null:SIZE                reads give zeroes, writes are forgotten
  file:PATH[,size=SIZE]    a file, created sparse with a size; ,buffered goes through the page cache
  block:PATH               a block device
  PATH                     a block device or a file, found out
  iscsi://[USER@]HOST[:PORT]/IQN/LUN
                           a logical unit of an iSCSI target, without the options below

each with [,bs=512|4096] [,pbs=BYTES] [,readonly] [,shared] [,uuid=UUID]";

/// Arguments of `export`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Without -l it listens on 127.0.0.1:4420 and admits any host of this machine. Any other address needs \
--tls: then the key says who may connect, and everything is encrypted. Without encryption it needs \
--insecure, and --host or --allow-any-host to say who may connect. An address that stands for all \
(0.0.0.0, [::]) needs --allow-wildcard too.

When it is ready it prints one line of JSON to standard output. SIGINT or SIGTERM ends it after \
what is in flight; a second one ends it at once. SIGUSR1 prints what each command has cost since the \
last time: CPU time, system calls, copies; and what was done by acceleration engines.

Example: raceline export ram:1G")]
pub(crate) struct ExportArgs {
    #[arg(required = true, value_name = "DEVICE", help = "Devices to export, see --help")]
    #[arg(long_help = DEVICE_HELP)]
    pub(crate) devices: Vec<Device>,

    /// Name of the subsystem [default: derived from this machine and the devices]
    #[arg(short = 'n', long, value_parser = values::nqn)]
    pub(crate) nqn: Option<Nqn>,

    /// Where to listen, repeatable [default: 127.0.0.1:4420]; port 0 takes any free port. rdma://ADDR:PORT is for NVMe/RDMA
    #[arg(short = 'l', long = "listen", value_name = "ADDR:PORT")]
    #[arg(value_parser = values::listen)]
    pub(crate) listen: Vec<Listen>,

    /// Admit this host, repeatable
    #[arg(long = "host", value_name = "NQN", value_parser = values::nqn)]
    pub(crate) hosts: Vec<Nqn>,

    /// Admit every host
    #[arg(long, conflicts_with = "hosts")]
    pub(crate) allow_any_host: bool,

    /// File with the secret by which the hosts of --host have to prove themselves (DHHC-1:...), or name of a key;
    /// twice while hosts change to a new secret: then both hold
    #[arg(long, value_name = "KEY", requires = "hosts", help_heading = "Authentication")]
    pub(crate) dhchap_key: Vec<PathBuf>,

    /// File with the secret by which the controller proves itself to hosts that ask, or name of a key
    #[arg(long, value_name = "KEY", requires = "dhchap_key", help_heading = "Authentication")]
    pub(crate) dhchap_ctrlr_key: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) algorithms: AlgorithmArgs,
    /// Connect over TLS 1.3 only. Without --tls-psk the key is made on first use, and kept in the state directory. Without
    /// --host, any host that has the key may connect
    #[arg(long, conflicts_with = "insecure")]
    pub(crate) tls: bool,

    /// File with the key by which the hosts of --host connect over TLS 1.3, and no host without it
    /// (NVMeTLSkey-1:...), or name of a key
    #[arg(long, value_name = "KEY", conflicts_with = "insecure")]
    pub(crate) tls_psk: Option<PathBuf>,

    /// Hosts begin in the clear with an authentication that makes a key, and do all else over TLS with that key
    #[arg(long, requires = "dhchap_ctrlr_key", conflicts_with = "insecure")]
    pub(crate) concat: bool,

    /// Derive from the key of --tls-psk what nvme-cli 2.13 and older derive from it
    #[arg(long)]
    pub(crate) tls_compat: bool,

    /// Let the kernel make the records of TLS: never, if it can do all of it, or insist on it
    #[arg(long, value_name = "off|auto|on", default_value = "off", requires = "tls_psk")]
    pub(crate) ktls: Ktls,

    /// Export the devices by iSCSI as well, as LUN 0, 1, ... of a target node of this name [default: that of the subsystem,
    /// with iqn.]
    #[arg(long, value_name = "IQN", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    #[arg(help_heading = "iSCSI")]
    pub(crate) iscsi: Option<String>,

    /// Where to listen for iSCSI, repeatable [default: the addresses of -l at port 3260]
    #[arg(long, value_name = "ADDR[:PORT]", value_parser = values::portal_address)]
    #[arg(requires = "iscsi", help_heading = "iSCSI")]
    pub(crate) iscsi_listen: Vec<SocketAddr>,

    /// Let this initiator log in, and no other, repeatable
    #[arg(long = "initiator", value_name = "IQN", requires = "iscsi", help_heading = "iSCSI")]
    pub(crate) initiators: Vec<String>,

    /// The name by which initiators have to prove themselves (CHAP)
    #[arg(
        long,
        value_name = "USER",
        requires = "iscsi",
        requires = "chap_secret",
        help_heading = "iSCSI"
    )]
    pub(crate) chap_user: Option<String>,

    /// File with the secret by which initiators have to prove themselves, or name of a key
    #[arg(long, value_name = "KEY", requires = "chap_user", help_heading = "iSCSI")]
    pub(crate) chap_secret: Option<PathBuf>,

    /// File with the secret of the USER of iscsi:// devices, or name of a key
    #[arg(long, value_name = "KEY", help_heading = "iSCSI")]
    pub(crate) lun_secret: Option<PathBuf>,

    /// Accept that other machines connect without encryption
    #[arg(long)]
    pub(crate) insecure: bool,

    /// Accept an address that stands for all addresses of this machine
    #[arg(long)]
    pub(crate) allow_wildcard: bool,

    /// Announce to the local network, by multicast DNS, where it listens for other machines
    #[arg(long)]
    pub(crate) mdns: bool,

    /// Cores to run on, e.g. 0,2-4 [default: one thread that is not bound]
    #[arg(long, value_name = "LIST", value_parser = values::core_list)]
    pub(crate) cores: Option<CoreList>,

    /// What a core does when it has nothing to do
    #[arg(long, value_enum, default_value_t)]
    pub(crate) mode: ModeChoice,

    /// How to do I/O
    #[arg(long, value_enum, value_name = "HOW", default_value_t)]
    pub(crate) io: IoChoice,

    #[command(flatten)]
    pub(crate) connections: ConnectionArgs,

    /// Which engine does which operation on data [default: software]
    #[arg(long, value_name = "LIST", value_parser = accel_choice, long_help = ACCEL_HELP)]
    pub(crate) accel: Option<AccelChoice>,

    /// Serial number, up to 20 characters [default: derived from the NQN]
    #[arg(long, value_name = "S", value_parser = values::serial)]
    pub(crate) serial: Option<String>,

    /// Largest transfer of one command
    #[arg(long, value_name = "SIZE", default_value = "1m", value_parser = values::max_io_size)]
    pub(crate) max_io_size: u32,

    /// Commands that an I/O queue holds; its hosts ask for queues of one entry more
    #[arg(long, value_name = "N", default_value_t = DEFAULT_QUEUE_DEPTH)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=4095))]
    pub(crate) max_queue_depth: u16,

    /// Largest write that travels inside its command
    #[arg(long, value_name = "SIZE", default_value = "8k", value_parser = values::in_capsule)]
    pub(crate) in_capsule: u32,

    /// Bytes that one connection moves before its neighbours on the same core have their turn
    #[arg(long, value_name = "SIZE", default_value = "256k", value_parser = values::pass_bytes)]
    pub(crate) pass_bytes: u32,

    #[command(flatten)]
    pub(crate) sandbox: SandboxArgs,
}
