//! Arguments of the verbs that manage a daemon: `bdev`, `subsys`, `ns`, `pool`, `port`, `host`,
//! `config`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, Subcommand, ValueHint};
use clap_complete::ArgValueCandidates;
use raceline_bdev::ByteSize;
use raceline_initiator::Name;
use uuid::Uuid;

use crate::cli::device::Device;
use crate::cli::initiator::iscsi_name;
use crate::cli::values::OutputFormat;
use crate::manage::complete;

/// The environment variable with the path of the daemon's socket.
pub(crate) const SOCKET_VARIABLE: &str = "RACELINE_RPC_SOCKET";

/// The daemon to manage, and the form of the output.
#[derive(Clone, Debug, Args)]
pub(crate) struct DaemonArgs {
    /// The daemon's socket [default: /run/raceline/rpc.sock, or else /var/tmp/spdk.sock]
    #[arg(short = 's', long, value_name = "PATH", env = SOCKET_VARIABLE, global = true)]
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) socket: Option<String>,
    /// How long to wait for the daemon, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "60", global = true)]
    #[arg(value_parser = super::rpc::seconds)]
    pub(crate) timeout: Duration,
    /// Form of the output
    #[arg(short = 'o', long, value_enum, value_name = "FORM", default_value_t, global = true)]
    pub(crate) output: OutputFormat,
}

/// Arguments of `bdev`.
#[derive(Clone, Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct BdevArgs {
    #[command(flatten)]
    pub(crate) daemon: DaemonArgs,
    #[command(subcommand)]
    pub(crate) verb: BdevVerb,
}

/// What to do with devices.
#[derive(Clone, Debug, Subcommand)]
#[expect(clippy::large_enum_variant, reason = "a command line has one")]
pub(crate) enum BdevVerb {
    /// List devices
    Ls {
        /// Only this one
        #[arg(value_name = "NAME", add = ArgValueCandidates::new(complete::bdevs))]
        name: Option<String>,
    },
    /// Open a device, as in export: ram:SIZE, null:SIZE, file:PATH, block:PATH, a path, or
    /// iscsi://[USER@]HOST[:PORT]/IQN/LUN
    Add {
        /// The device
        #[arg(value_name = "DEVICE", value_hint = ValueHint::FilePath)]
        device: Device,
        /// Its name; by default that of the file, or the next free one
        #[arg(short, long, value_name = "NAME")]
        name: Option<String>,
        /// The daemon's key with the secret of the USER of an iscsi:// device (CHAP)
        #[arg(long, value_name = "NAME")]
        chap_key: Option<String>,
        /// The daemon's name as the initiator of an iscsi:// device [default: that in /etc/iscsi/initiatorname.iscsi,
        /// or derived from this machine]
        #[arg(long, value_name = "IQN", value_parser = iscsi_name)]
        initiator: Option<Name>,
    },
    /// Close devices
    Rm {
        /// Their names
        #[arg(required = true, value_name = "NAME", add = ArgValueCandidates::new(complete::bdevs))]
        names: Vec<String>,
        /// Also those in use: their namespaces go with them
        #[arg(long)]
        force: bool,
    },
    /// Change a device
    Set {
        /// Its name
        #[arg(value_name = "NAME", add = ArgValueCandidates::new(complete::bdevs))]
        name: String,
        /// Its new size (null devices)
        #[arg(long, value_name = "SIZE", required_unless_present = "rescan")]
        size: Option<ByteSize>,
        /// Look again how large its file or block device is
        #[arg(long, conflicts_with = "size")]
        rescan: bool,
    },
}

/// Arguments of `subsys`.
#[derive(Clone, Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct SubsysArgs {
    #[command(flatten)]
    pub(crate) daemon: DaemonArgs,
    #[command(subcommand)]
    pub(crate) verb: SubsysVerb,
}

/// Levels of security.
const LEVELS: [&str; 4] = ["plain", "authenticated", "tls", "both"];
/// Those of an address.
const PORT_LEVELS: [&str; 5] = ["plain", "authenticated", "tls", "both", "concat"];

/// What to do with subsystems.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum SubsysVerb {
    /// List subsystems
    Ls {
        /// Only this one
        #[arg(value_name = "NQN", add = ArgValueCandidates::new(complete::subsystems))]
        nqn: Option<String>,
    },
    /// Create a subsystem, to which no host may connect yet
    Add {
        /// Its name
        #[arg(value_name = "NQN")]
        nqn: String,
        /// Its serial number [default: derived from the NQN]
        #[arg(long, value_name = "TEXT")]
        serial: Option<String>,
        /// Its model number
        #[arg(long, value_name = "TEXT")]
        model: Option<String>,
        /// How many namespaces it may have
        #[arg(long, value_name = "N")]
        max_namespaces: Option<u32>,
        /// Let every host connect
        #[arg(long)]
        allow_any_host: bool,
        /// Report the states of paths (ANA): port set, ns set --ana-group
        #[arg(long)]
        ana: bool,
        /// The numbers of its controllers; another daemon with the same subsystem needs others [default: 1-65519]
        #[arg(long, value_name = "FIRST-LAST", value_parser = super::values::controller_numbers)]
        cntlids: Option<(u16, u16)>,
        /// What the connections of every host need
        #[arg(long, value_name = "LEVEL", value_parser = LEVELS)]
        security: Option<String>,
    },
    /// Delete subsystems with all that they have
    Rm {
        /// Their names
        #[arg(required = true, value_name = "NQN")]
        #[arg(add = ArgValueCandidates::new(complete::subsystems))]
        nqns: Vec<String>,
        /// Also those with connected hosts
        #[arg(long)]
        force: bool,
    },
    /// Change a subsystem
    #[command(group = clap::ArgGroup::new("what").required(true).multiple(true))]
    Set {
        /// Its name
        #[arg(value_name = "NQN", add = ArgValueCandidates::new(complete::subsystems))]
        nqn: String,
        /// Whether every host may connect, or only those that are listed
        #[arg(long, value_name = "true|false", action = ArgAction::Set, group = "what")]
        allow_any_host: Option<bool>,
        /// What the connections of every host need; connections that have less end
        #[arg(long, value_name = "LEVEL", value_parser = LEVELS, group = "what")]
        security: Option<String>,
        /// Whether hosts that have a pre-shared key may come without TLS as well
        #[arg(long, value_name = "true|false", action = ArgAction::Set, group = "what")]
        psk_optional: Option<bool>,
    },
}

/// Arguments of `ns`.
#[derive(Clone, Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct NsArgs {
    #[command(flatten)]
    pub(crate) daemon: DaemonArgs,
    #[command(subcommand)]
    pub(crate) verb: NsVerb,
}

/// What to do with namespaces.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum NsVerb {
    /// List namespaces
    Ls {
        /// Only those of this subsystem
        #[arg(value_name = "NQN", add = ArgValueCandidates::new(complete::subsystems))]
        nqn: Option<String>,
    },
    /// Show a device to hosts
    Add {
        /// The subsystem
        #[arg(value_name = "NQN", add = ArgValueCandidates::new(complete::subsystems))]
        nqn: String,
        /// The device
        #[arg(value_name = "DEVICE", add = ArgValueCandidates::new(complete::bdevs))]
        device: String,
        /// The namespace's number; by default the next free one
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        nsid: Option<u32>,
        /// The namespace's identity; by default that of the device
        #[arg(long, value_name = "UUID")]
        uuid: Option<Uuid>,
        /// Its group of paths (ANA); by default that of its number
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        ana_group: Option<u32>,
        /// Let no host see it before ns set --show
        #[arg(long)]
        hidden: bool,
    },
    /// Take a namespace away; its device stays
    Rm {
        /// The subsystem
        #[arg(value_name = "NQN", add = ArgValueCandidates::new(complete::subsystems))]
        nqn: String,
        /// The namespace's number
        #[arg(value_name = "NSID")]
        nsid: u32,
    },
    /// Say which hosts see a namespace that was added hidden, or in which group of paths it is
    #[command(group = clap::ArgGroup::new("who").required(true))]
    Set {
        /// The subsystem
        #[arg(value_name = "NQN", add = ArgValueCandidates::new(complete::subsystems))]
        nqn: String,
        /// The namespace's number
        #[arg(value_name = "NSID")]
        nsid: u32,
        /// Show it to this host
        #[arg(long, value_name = "HOSTNQN", group = "who")]
        #[arg(add = ArgValueCandidates::new(complete::hosts))]
        show: Option<String>,
        /// Hide it from this host
        #[arg(long, value_name = "HOSTNQN", group = "who")]
        #[arg(add = ArgValueCandidates::new(complete::hosts))]
        hide: Option<String>,
        /// Put it into this group of paths (ANA)
        #[arg(long, value_name = "N", group = "who")]
        #[arg(value_parser = clap::value_parser!(u32).range(1..))]
        ana_group: Option<u32>,
    },
}

/// Arguments of `pool`.
#[derive(Clone, Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct PoolArgs {
    #[command(flatten)]
    pub(crate) daemon: DaemonArgs,
    #[command(subcommand)]
    pub(crate) verb: PoolVerb,
}

/// What to do with pools.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum PoolVerb {
    /// List the pools
    Ls {
        /// Only that of this subsystem
        #[arg(value_name = "NQN", add = ArgValueCandidates::new(complete::subsystems))]
        nqn: Option<String>,
    },
    /// Let hosts make namespaces of a device: nvme create-ns, attach-ns, format, delete-ns
    Add {
        /// The subsystem
        #[arg(value_name = "NQN", add = ArgValueCandidates::new(complete::subsystems))]
        nqn: String,
        /// The device
        #[arg(value_name = "DEVICE", add = ArgValueCandidates::new(complete::bdevs))]
        device: String,
        /// The smallest part, a multiple of 4 KiB
        #[arg(long, value_name = "SIZE", default_value = "1M")]
        unit: ByteSize,
        /// Only these hosts may divide it; by default all that may connect
        #[arg(long = "manager", value_name = "HOSTNQN", add = ArgValueCandidates::new(complete::hosts))]
        managers: Vec<String>,
    },
    /// Take a pool away with its namespaces; what is on the device stays there
    Rm {
        /// The subsystem
        #[arg(value_name = "NQN", add = ArgValueCandidates::new(complete::subsystems))]
        nqn: String,
        /// Also with namespaces in it
        #[arg(long)]
        force: bool,
    },
}

/// Arguments of `qos`.
#[derive(Clone, Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct QosArgs {
    #[command(flatten)]
    pub(crate) daemon: DaemonArgs,
    #[command(subcommand)]
    pub(crate) verb: QosVerb,
}

/// What to do with limits of rates.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum QosVerb {
    /// List everything that has limits or a weight
    Ls,
    /// Set limits; those that are not named stay, and 0 takes one away
    #[command(group = clap::ArgGroup::new("limits").required(true).multiple(true))]
    Set(QosSet),
    /// Take all limits away
    Rm {
        #[command(flatten)]
        what: QosTarget,
    },
    /// Say which part of a full core a host gets beside others
    Weight {
        /// The subsystem
        #[arg(value_name = "NQN", add = ArgValueCandidates::new(complete::subsystems))]
        nqn: String,
        /// The host
        #[arg(value_name = "HOSTNQN", add = ArgValueCandidates::new(complete::hosts))]
        host: String,
        /// From 1 to 10000, where 100 is that of hosts without a weight; or none
        #[arg(value_name = "N|none", value_parser = super::values::weight)]
        weight: WeightChoice,
    },
}

/// A weight, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WeightChoice(pub(crate) Option<u16>);

/// Who is limited.
#[derive(Clone, Debug, Args)]
pub(crate) struct QosTarget {
    /// What has the limits
    #[arg(value_enum, value_name = "KIND")]
    pub(crate) kind: QosKind,
    /// The device, the NQN of the subsystem, or a name of your choice for the hosts
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
}

/// What can have limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum QosKind {
    /// A device, for all hosts together
    Bdev,
    /// A subsystem, for all hosts and namespaces together
    Subsys,
    /// Hosts together, for all subsystems
    Hosts,
}

/// Limits of rates.
#[derive(Clone, Debug, Args)]
pub(crate) struct QosSet {
    #[command(flatten)]
    pub(crate) what: QosTarget,
    /// One of the hosts, or iSCSI initiators, that share the limits (hosts)
    #[arg(long = "host", value_name = "NAME", add = ArgValueCandidates::new(complete::hosts))]
    pub(crate) hosts: Vec<String>,
    /// Commands per second
    #[arg(long, value_name = "N", group = "limits")]
    pub(crate) iops: Option<u64>,
    /// MiB per second, read and written together
    #[arg(long, value_name = "MIB", group = "limits")]
    pub(crate) bandwidth: Option<u64>,
    /// MiB per second that are read
    #[arg(long, value_name = "MIB", group = "limits")]
    pub(crate) read: Option<u64>,
    /// MiB per second that are written
    #[arg(long, value_name = "MIB", group = "limits")]
    pub(crate) write: Option<u64>,
    /// For how many milliseconds what was not used can be used later [default: 10]
    #[arg(long, value_name = "MS", group = "limits")]
    pub(crate) burst: Option<u64>,
}

/// Arguments of `port`.
#[derive(Clone, Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct PortArgs {
    #[command(flatten)]
    pub(crate) daemon: DaemonArgs,
    #[command(subcommand)]
    pub(crate) verb: PortVerb,
}

/// What to do with addresses.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum PortVerb {
    /// List the addresses at which subsystems are reached
    Ls {
        /// Only those of this subsystem
        #[arg(value_name = "NQN", add = ArgValueCandidates::new(complete::subsystems))]
        nqn: Option<String>,
    },
    /// Let hosts reach a subsystem at an address
    Add(PortAdd),
    /// Say how well an address leads to the namespaces (ANA); a path that is closed writes nothing afterwards
    Set(PortSet),
    /// Stop it
    Rm(PortChange),
}

/// An address for a subsystem.
#[derive(Clone, Debug, Args)]
pub(crate) struct PortAdd {
    #[command(flatten)]
    pub(crate) change: PortChange,
    /// Only over TLS, and only hosts that have a pre-shared key (host add --psk): short for --security tls
    #[arg(long, conflicts_with = "security")]
    pub(crate) tls: bool,
    /// What connections need. With concat, hosts may begin in the clear, with an authentication that makes their key for
    /// TLS
    #[arg(long, value_name = "LEVEL", value_parser = PORT_LEVELS)]
    pub(crate) security: Option<String>,
}

/// The state of the paths by an address.
#[derive(Clone, Debug, Args)]
pub(crate) struct PortSet {
    #[command(flatten)]
    pub(crate) change: PortChange,
    /// The state
    #[arg(long, value_name = "STATE", value_enum)]
    pub(crate) ana: AnaChoice,
    /// Only for this group of namespaces; by default for all
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) group: Option<u32>,
}

/// A state of paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum AnaChoice {
    /// Hosts use these paths
    Optimized,
    /// Hosts use these paths when no optimized one is left
    NonOptimized,
    /// Commands fail until the state changes
    Inaccessible,
    /// Commands fail, and the paths do not come back
    PersistentLoss,
}

impl AnaChoice {
    /// SPDK's word for it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Optimized => "optimized",
            Self::NonOptimized => "non_optimized",
            Self::Inaccessible => "inaccessible",
            Self::PersistentLoss => "persistent_loss",
        }
    }
}

/// A subsystem and an address.
#[derive(Clone, Debug, Args)]
pub(crate) struct PortChange {
    /// The subsystem
    #[arg(value_name = "NQN", add = ArgValueCandidates::new(complete::subsystems))]
    pub(crate) nqn: String,
    /// Where: ADDR, ADDR:PORT or [ADDR]:PORT, with rdma:// before it for NVMe/RDMA; the port is 4420 unless given
    #[arg(value_name = "[rdma://]ADDR[:PORT]", value_parser = super::values::listen)]
    pub(crate) address: super::values::Listen,
}

/// Arguments of `host`.
#[derive(Clone, Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct HostArgs {
    #[command(flatten)]
    pub(crate) daemon: DaemonArgs,
    #[command(subcommand)]
    pub(crate) verb: HostVerb,
}

/// What to do with hosts.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum HostVerb {
    /// List the hosts that may connect
    Ls {
        /// Only those of this subsystem
        #[arg(value_name = "NQN", add = ArgValueCandidates::new(complete::subsystems))]
        nqn: Option<String>,
    },
    /// Let a host connect
    Add {
        #[command(flatten)]
        host: HostChange,
        /// The key by which it has to prove itself
        #[arg(long, value_name = "KEY")]
        dhchap_key: Option<String>,
        /// The key by which the controller proves itself to it
        #[arg(long, value_name = "KEY", requires = "dhchap_key")]
        dhchap_ctrlr_key: Option<String>,
        /// Its pre-shared key of TLS: it comes by no way without TLS then
        #[arg(long, value_name = "KEY")]
        psk: Option<String>,
        /// What its connections need besides what the subsystem demands
        #[arg(long, value_name = "LEVEL", value_parser = LEVELS)]
        security: Option<String>,
    },
    /// Give a host other keys; its connections stay, and the keys before go on holding for a time
    #[command(group = clap::ArgGroup::new("which").required(true))]
    Set {
        #[command(flatten)]
        host: HostChange,
        /// The key by which it has to prove itself; the same name has the file read again
        #[arg(long, value_name = "KEY", group = "which")]
        dhchap_key: Option<String>,
        /// The key by which the controller proves itself to it
        #[arg(long, value_name = "KEY", requires = "dhchap_key")]
        dhchap_ctrlr_key: Option<String>,
        /// The key before, if it is not the one that the daemon has
        #[arg(long, value_name = "KEY", requires = "dhchap_key")]
        previous_dhchap_key: Option<String>,
        /// How many seconds the keys before go on holding [default: 600]
        #[arg(long, value_name = "SECONDS", requires = "dhchap_key")]
        overlap: Option<u32>,
        /// It need not prove itself any more
        #[arg(long, group = "which")]
        no_dhchap: bool,
    },
    /// Shut a host out; its connections end
    Rm(HostChange),
}

/// A subsystem and a host.
#[derive(Clone, Debug, Args)]
pub(crate) struct HostChange {
    /// The subsystem
    #[arg(value_name = "NQN", add = ArgValueCandidates::new(complete::subsystems))]
    pub(crate) nqn: String,
    /// The host's NQN, or "any" (or *) for every host
    #[arg(value_name = "HOSTNQN|any", add = ArgValueCandidates::new(complete::hosts))]
    pub(crate) host: String,
}

/// Arguments of `config`.
#[derive(Clone, Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct ConfigArgs {
    #[command(flatten)]
    pub(crate) daemon: DaemonArgs,
    #[command(subcommand)]
    pub(crate) verb: ConfigVerb,
}

/// What to do with the configuration.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum ConfigVerb {
    /// Write the running configuration to a file, or to standard output
    Save {
        /// The file; it is replaced whole or not at all
        #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
        file: Option<PathBuf>,
    },
    /// Make the daemon what a file says; what is equal already is not touched
    ///
    /// When a call fails, what has been changed is changed back.
    Restore {
        /// The file, as config save or SPDK's save_config writes it; - is standard input
        #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// Print the calls and make none
        #[arg(long)]
        dry_run: bool,
    },
    /// Show what restoring a file would change; exit code 1 if anything
    Diff {
        /// The file; - is standard input
        #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// Compare with this file instead of the daemon
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        with: Option<PathBuf>,
    },
    /// List the last changes, newest first: when, by whom, and what
    Log {
        /// How many
        #[arg(long, value_name = "N", default_value_t = 20)]
        last: usize,
    },
    /// Go back to the configuration before a change
    ///
    /// Undoing is a change, too: config log lists its calls, and they can be undone.
    Undo {
        /// The number of the change in config log: this one and all later ones are undone [default: the last one]
        #[arg(value_name = "NUMBER")]
        number: Option<u64>,
        /// Print the calls and make none
        #[arg(long)]
        dry_run: bool,
        /// Do not ask, also where more than one change is undone or hosts are connected to what changes
        #[arg(long)]
        yes: bool,
    },
    /// Remove everything that is exported and every device; settings stay
    Clear {
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
}

/// Arguments of `nvmet`.
#[derive(Clone, Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct NvmetArgs {
    #[command(flatten)]
    pub(crate) daemon: DaemonArgs,
    #[command(subcommand)]
    pub(crate) verb: NvmetVerb,
}

/// What to do with the configuration of the kernel's target.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum NvmetVerb {
    /// Have the daemon export what the Linux kernel's target exports
    Import {
        /// File that nvmetcli has saved, or the live tree in configfs
        #[arg(value_name = "FILE|FOLDER", default_value = "/sys/kernel/config/nvmet")]
        #[arg(value_hint = ValueHint::AnyPath)]
        from: PathBuf,
        /// Say what would be made, and change nothing
        #[arg(long)]
        dry_run: bool,
        /// State directory whose keys folder gets the secrets of hosts
        #[arg(long, value_name = "DIR", env = super::key::STATE_VARIABLE)]
        #[arg(default_value = super::key::DEFAULT_STATE_DIR, value_hint = ValueHint::DirPath)]
        state_dir: PathBuf,
    },
    /// Write what the daemon exports as a file for nvmetcli restore
    Export {
        /// The file, - is standard output
        #[arg(value_name = "FILE", default_value = "-", value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// Replace a file that is there
        #[arg(long)]
        force: bool,
    },
}
