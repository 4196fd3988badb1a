//! The command line: verbs and options, in the vocabulary of nvme-cli and fio.

pub(crate) mod adq;
pub(crate) mod authentication;
pub(crate) mod bench;
pub(crate) mod connect;
pub(crate) mod connections;
pub(crate) mod device;
pub(crate) mod doctor;
mod examples;
pub(crate) mod export;
pub(crate) mod host;
pub(crate) mod http;
pub(crate) mod initiator;
pub(crate) mod iscsi;
pub(crate) mod key;
pub(crate) mod letters;
pub(crate) mod manage;
pub(crate) mod nvme;
pub(crate) mod paths;
pub(crate) mod perf;
pub(crate) mod queues;
pub(crate) mod rpc;
pub(crate) mod sandbox;
pub(crate) mod serve;
pub(crate) mod values;
pub(crate) mod watch;

use std::path::PathBuf;

use clap::{ArgAction, Parser, Subcommand};
use raceline_reactor::flow::Machine;

use crate::demo::DEFAULT_SECONDS;

const AFTER_HELP: &str = "\
Exit codes: 0 done, 1 failed, 2 wrong usage, 3 cannot connect or refused, 4 data are not as \
written, 128+N ended by signal N.

Try it: raceline demo";

/// NVMe over TCP in user space: export storage to the network, and use it.
#[derive(Debug, Parser)]
#[command(name = "raceline", version, about, max_term_width = 100, after_help = AFTER_HELP)]
#[command(propagate_version = true, subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) log: LogArgs,
    /// Caches of a core, where the kernel does not say them or says them wrongly [default: as in
    /// /sys/devices/system/cpu; -v shows them]
    #[arg(long, global = true, value_name = "l2=SIZE,llc=SIZE,cores=N", help_heading = "Machine")]
    pub(crate) caches: Option<Machine>,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// The amount of messages on standard error.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct LogArgs {
    /// Say more: -v what happens, -vv what is needed to find a fault, -vvv everything
    #[arg(short = 'v', long, action = ArgAction::Count, global = true, help_heading = "Messages")]
    pub(crate) verbose: u8,
    /// Print errors only
    #[arg(long, global = true, conflicts_with = "verbose", help_heading = "Messages")]
    pub(crate) quiet: bool,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Export RAM, files and block devices over NVMe/TCP
    Export(Box<export::ExportArgs>),
    /// Run a target that SPDK's clients configure
    Serve(serve::ServeArgs),
    /// List what a target offers
    Discover(host::DiscoverArgs),
    /// Make a namespace, or a device, a disk for the programs of this machine
    Connect(Box<connect::DiskArgs>),
    /// End disks that `connect` has made, and remote controllers of a daemon
    Disconnect(connect::DisconnectArgs),
    /// End all disks of this user, and all remote controllers of a daemon
    DisconnectAll(connect::DisconnectAllArgs),
    /// Show a controller and its namespaces
    Identify(host::IdentifyArgs),
    /// Copy blocks of a namespace to a file or to standard output
    Read(host::ReadArgs),
    /// Copy a file or standard input to blocks of a namespace
    Write(host::WriteArgs),
    /// Connect a daemon to every subsystem that discovery controllers offer
    ConnectAll(Box<nvme::ConnectAllArgs>),
    /// List namespaces as nvme-cli does: those at an address, in a file, or of disks and a daemon
    List(Box<nvme::ControllerArgs>),
    /// List subsystems and the paths to them as nvme-cli does
    ListSubsys(Box<nvme::ControllerArgs>),
    /// Show the Identify data of a controller as nvme-cli does
    IdCtrl(Box<nvme::IdCtrlArgs>),
    /// Show the Identify data of a namespace as nvme-cli does
    IdNs(Box<nvme::IdNsArgs>),
    /// Show bytes of a log page
    GetLog(Box<nvme::GetLogArgs>),
    /// Show the SMART log as nvme-cli does
    SmartLog(Box<nvme::SmartLogArgs>),
    /// Show the error log as nvme-cli does
    ErrorLog(Box<nvme::ErrorLogArgs>),
    /// Make a namespace of a pool
    CreateNs(Box<nvme::CreateArgs>),
    /// Attach a namespace to controllers
    AttachNs(Box<nvme::AttachArgs>),
    /// Detach a namespace from controllers
    DetachNs(Box<nvme::AttachArgs>),
    /// Delete a namespace of a pool
    DeleteNs(Box<nvme::DeleteArgs>),
    /// Format a namespace: everything in it is lost
    Format(Box<nvme::FormatArgs>),
    /// Read the list of namespaces anew
    NsRescan(Box<nvme::ControllerArgs>),
    /// Reset a controller
    Reset(Box<nvme::ControllerArgs>),
    /// Have everything written before on stable media
    Flush(Box<nvme::NamespaceArgs>),
    /// Deallocate blocks
    Dsm(Box<nvme::DsmArgs>),
    /// Zero blocks
    WriteZeroes(Box<nvme::ZeroesArgs>),
    /// Compare blocks with a file: exit code 4 if they differ
    Compare(Box<nvme::CompareArgs>),
    /// Manage the devices of a daemon
    Bdev(manage::BdevArgs),
    /// Manage the subsystems of a daemon
    Subsys(manage::SubsysArgs),
    /// Manage the namespaces of a daemon
    Ns(manage::NsArgs),
    /// Manage the devices of which hosts make namespaces themselves
    Pool(manage::PoolArgs),
    /// Manage the addresses at which a daemon is reached
    Port(manage::PortArgs),
    /// Limit what hosts do with devices and subsystems of a daemon
    Qos(manage::QosArgs),
    /// Manage who may connect to a daemon
    Host(manage::HostArgs),
    /// Manage what a daemon exports by iSCSI
    Iscsi(iscsi::IscsiArgs),
    /// Take over the configuration of the Linux kernel's target, or give it back
    Nvmet(manage::NvmetArgs),
    /// Make and keep the keys by which hosts and controllers prove themselves
    Key(key::KeyArgs),
    /// Save, restore, compare or clear the configuration of a daemon
    Config(manage::ConfigArgs),
    /// Drive a daemon by SPDK's JSON-RPC, spelled as its rpc.py
    Rpc(rpc::RpcArgs),
    /// Follow what happens in a daemon: connections, changes, paths, errors
    Events(watch::EventsArgs),
    /// Show what a daemon does, live: devices, subsystems, hosts, cores
    Top(watch::TopArgs),
    /// Collect what a bug report needs, without secrets
    Support(watch::SupportArgs),
    /// Measure, and with --verify prove, what a namespace does
    Perf(Box<perf::PerfArgs>),
    /// Measure this machine's limit, and how close to it Raceline is
    Bench(bench::BenchArgs),
    /// Give an application queues of a network device of its own (ADQ, or what comes close), and take them back
    Adq(adq::AdqArgs),
    /// Check whether this machine is fit for measurements; changes nothing
    Doctor(doctor::DoctorArgs),
    /// Show it all at work in this process: export, connect, verify, measure
    Demo(DemoArgs),
    /// Print a completion script for a shell; names are completed as the daemon has them
    Completions(CompletionsArgs),
    /// Print the manual page, or write the pages of all verbs to a directory
    Man(ManArgs),
}

/// Arguments of `demo`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct DemoArgs {
    /// About how long it may take
    #[arg(long, value_name = "N", default_value_t = DEFAULT_SECONDS)]
    #[arg(value_parser = clap::value_parser!(u32).range(2..=3600))]
    pub(crate) seconds: u32,
    /// How to do I/O
    #[arg(long, value_enum, value_name = "HOW", default_value_t)]
    pub(crate) io: values::IoChoice,
    /// For people or for programs
    #[arg(short = 'o', long = "output-format", value_enum, value_name = "FORMAT")]
    #[arg(default_value_t)]
    pub(crate) output: values::OutputFormat,
}

/// Arguments of `completions`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

/// Arguments of `man`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// Where to write raceline.1, raceline-export.1 and so on
    pub(crate) dir: Option<PathBuf>,
}

#[cfg(test)]
mod tests;
