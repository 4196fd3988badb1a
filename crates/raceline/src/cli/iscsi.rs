//! Arguments of `raceline iscsi`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use clap_complete::ArgValueCandidates;

use super::manage::DaemonArgs;
use super::values;
use crate::manage::complete;

/// Arguments of `iscsi`.
#[derive(Clone, Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
#[command(after_help = "\
Three commands export a device of the daemon to the initiators of a network:

  raceline iscsi portal add 192.0.2.1
  raceline iscsi initiator add ANY --from 192.0.2.0/24
  raceline iscsi target add iqn.2026-01.com.example:disk DEVICE")]
pub(crate) struct IscsiArgs {
    #[command(flatten)]
    pub(crate) daemon: DaemonArgs,
    #[command(subcommand)]
    pub(crate) verb: IscsiVerb,
}

/// What to manage.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum IscsiVerb {
    /// Target nodes: names under which initiators find devices
    Target {
        #[command(subcommand)]
        verb: TargetVerb,
    },
    /// LUNs: the devices of target nodes
    Lun {
        #[command(subcommand)]
        verb: LunVerb,
    },
    /// Portal groups: the addresses at which target nodes are reached
    Portal {
        #[command(subcommand)]
        verb: PortalVerb,
    },
    /// Initiator groups: who may log in, by name and address
    Initiator {
        #[command(subcommand)]
        verb: InitiatorVerb,
    },
    /// Auth groups: the secrets of CHAP
    Auth {
        #[command(subcommand)]
        verb: AuthVerb,
    },
    /// List the connections of initiators
    Connections,
    /// Export what a file of LIO, the Linux kernel's target, describes, or a script of targetcli
    #[command(after_help = "\
The file is what targetcli saves, usually /etc/target/saveconfig.json, or a script of targetcli's commands. All of it is
exported, or nothing. What is not the same afterwards is reported. Secrets of CHAP go to auth groups, and are not shown.")]
    Import {
        /// The file
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Say what would be made, and change nothing
        #[arg(long)]
        dry_run: bool,
    },
}

/// What to do with target nodes.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum TargetVerb {
    /// List target nodes
    Ls {
        /// Only this one
        #[arg(value_name = "NAME", add = ArgValueCandidates::new(complete::target_nodes))]
        name: Option<String>,
    },
    /// Create a target node with devices
    Add(TargetAdd),
    /// Change how initiators log in to a target node
    #[command(group = clap::ArgGroup::new("what").required(true).multiple(true))]
    Set {
        /// Its name
        #[arg(value_name = "NAME", add = ArgValueCandidates::new(complete::target_nodes))]
        name: String,
        /// Who has to prove who it is
        #[arg(long, value_enum, value_name = "DEMAND", group = "what")]
        chap: Option<ChapChoice>,
        /// The auth group with the secrets
        #[arg(long, value_name = "TAG", requires = "chap")]
        auth: Option<u32>,
        /// Let an initiator group reach it by a portal group as well
        #[arg(long, value_name = "PORTALS:INITIATORS", value_parser = map, group = "what")]
        add_map: Vec<Map>,
        /// Let an initiator group reach it by a portal group no longer
        #[arg(long, value_name = "PORTALS:INITIATORS", value_parser = map, group = "what")]
        rm_map: Vec<Map>,
    },
    /// Delete target nodes; their devices stay
    Rm {
        /// Their names
        #[arg(required = true, value_name = "NAME")]
        #[arg(add = ArgValueCandidates::new(complete::target_nodes))]
        names: Vec<String>,
        /// Also those with connected initiators
        #[arg(long)]
        force: bool,
    },
}

/// A target node to create.
#[derive(Clone, Debug, Args)]
pub(crate) struct TargetAdd {
    /// Its name: iqn.YYYY-MM.DOMAIN[:TEXT], eui. or naa.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Its devices, which become LUN 0, 1, ...
    #[arg(required = true, value_name = "DEVICE", add = ArgValueCandidates::new(complete::bdevs))]
    pub(crate) devices: Vec<String>,
    /// Its alias, which initiators show
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) alias: String,
    /// Which initiator group reaches it by which portal group; by default all by all that there are
    #[arg(long, value_name = "PORTALS:INITIATORS", value_parser = map)]
    pub(crate) map: Vec<Map>,
    /// Commands that a session may have outstanding
    #[arg(long, value_name = "N", default_value_t = 64)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) queue_depth: u32,
    /// Who has to prove who it is
    #[arg(long, value_enum, value_name = "DEMAND", default_value_t)]
    pub(crate) chap: ChapChoice,
    /// The auth group with the secrets
    #[arg(long, value_name = "TAG")]
    pub(crate) auth: Option<u32>,
    /// Every connection has header digests
    #[arg(long)]
    pub(crate) header_digest: bool,
    /// Every connection has data digests
    #[arg(long)]
    pub(crate) data_digest: bool,
}

/// What is demanded of initiators.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ChapChoice {
    /// Nobody has to, and who offers it does
    #[default]
    Optional,
    /// Nobody is asked
    Disabled,
    /// Initiators have to
    Required,
    /// Initiators have to, and the target proves itself as well
    Mutual,
}

/// A portal group and an initiator group, by their tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Map {
    pub(crate) portals: u16,
    pub(crate) initiators: u32,
}

fn map(text: &str) -> Result<Map, String> {
    let wrong = || "a map is written PORTALS:INITIATORS, two tags such as 1:1".to_owned();
    let (portals, initiators) = text.split_once(':').ok_or_else(wrong)?;
    let (portals, initiators) = (portals.parse().ok(), initiators.parse().ok());
    Ok(Map { portals: portals.ok_or_else(wrong)?, initiators: initiators.ok_or_else(wrong)? })
}

/// What to do with LUNs.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum LunVerb {
    /// List LUNs
    Ls {
        /// Only those of this target node
        #[arg(value_name = "NAME", add = ArgValueCandidates::new(complete::target_nodes))]
        name: Option<String>,
    },
    /// Show a device to the initiators of a target node
    Add {
        /// The target node
        #[arg(value_name = "NAME", add = ArgValueCandidates::new(complete::target_nodes))]
        name: String,
        /// The device
        #[arg(value_name = "DEVICE", add = ArgValueCandidates::new(complete::bdevs))]
        device: String,
        /// The LUN's number; by default the lowest free one
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8))]
        lun: Option<u8>,
    },
    /// Take a LUN away; its device stays
    Rm {
        /// The target node
        #[arg(value_name = "NAME", add = ArgValueCandidates::new(complete::target_nodes))]
        name: String,
        /// The LUN's number
        #[arg(value_name = "LUN")]
        lun: u8,
    },
}

/// What to do with portal groups.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum PortalVerb {
    /// List portal groups
    Ls,
    /// Listen at addresses
    Add {
        /// Where: ADDR, ADDR:PORT or [ADDR]:PORT; the port is 3260 unless given
        #[arg(required = true, value_name = "ADDR[:PORT]", value_parser = values::portal_address)]
        addresses: Vec<SocketAddr>,
        /// The group's tag; by default the lowest free one
        #[arg(long, value_name = "TAG", value_parser = clap::value_parser!(u16).range(1..))]
        tag: Option<u16>,
        /// Discovery does not tell these addresses
        #[arg(long)]
        private: bool,
        /// Do not listen before portal start
        #[arg(long)]
        wait: bool,
    },
    /// Listen at the addresses of a group that was added with --wait
    Start {
        /// The group's tag
        #[arg(value_name = "TAG")]
        tag: u16,
    },
    /// Delete portal groups; connections that came by them close
    Rm {
        /// Their tags
        #[arg(required = true, value_name = "TAG")]
        tags: Vec<u16>,
    },
}

/// What to do with initiator groups.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum InitiatorVerb {
    /// List initiator groups
    Ls,
    /// Let initiators in
    Add {
        /// Their names, or ANY; !NAME keeps one out, and the first that matches decides
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        /// From where: ANY, an address, or addresses such as 192.0.2.0/24
        #[arg(long = "from", value_name = "NETMASK", default_value = "ANY")]
        netmasks: Vec<String>,
        /// The group's tag; by default the lowest free one
        #[arg(long, value_name = "TAG", value_parser = clap::value_parser!(u32).range(1..=0x7fff_ffff))]
        tag: Option<u32>,
    },
    /// Change a group; sessions that it lets in no longer close
    #[command(group = clap::ArgGroup::new("what").required(true).multiple(true))]
    Set {
        /// The group's tag
        #[arg(value_name = "TAG")]
        tag: u32,
        /// Let this initiator in as well
        #[arg(long, value_name = "NAME", group = "what")]
        add: Vec<String>,
        /// Take this name out of the group
        #[arg(long, value_name = "NAME", group = "what")]
        rm: Vec<String>,
        /// Let initiators in from here as well
        #[arg(long, value_name = "NETMASK", group = "what")]
        add_from: Vec<String>,
        /// Take these addresses out of the group
        #[arg(long, value_name = "NETMASK", group = "what")]
        rm_from: Vec<String>,
    },
    /// Delete initiator groups; sessions of their initiators close
    Rm {
        /// Their tags
        #[arg(required = true, value_name = "TAG")]
        tags: Vec<u32>,
    },
}

/// What to do with auth groups.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum AuthVerb {
    /// List auth groups and their users; secrets are not shown
    Ls,
    /// Add the secret of a user
    Add {
        /// The name that the initiator gives
        #[arg(value_name = "USER")]
        user: String,
        /// File with the secret, 12 bytes or more, or name of a key
        #[arg(value_name = "KEY")]
        secret: PathBuf,
        /// The group's tag, which is created if it is not there; by default the lowest free one
        #[arg(long, value_name = "TAG", value_parser = clap::value_parser!(u32).range(1..=0x7fff_ffff))]
        tag: Option<u32>,
        /// The name by which the target proves itself to this user
        #[arg(long, value_name = "USER", requires = "mutual_secret")]
        mutual_user: Option<String>,
        /// File with the secret by which the target proves itself, or name of a key
        #[arg(long, value_name = "KEY", requires = "mutual_user")]
        mutual_secret: Option<PathBuf>,
    },
    /// Delete an auth group, or the secret of one user
    Rm {
        /// The group's tag
        #[arg(value_name = "TAG")]
        tag: u32,
        /// Only the secret of this user
        #[arg(long, value_name = "USER")]
        user: Option<String>,
    },
}
