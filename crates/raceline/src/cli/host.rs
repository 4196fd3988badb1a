//! Arguments that verbs of the host side share, and those of the verbs that move data.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{ArgPredicate, PathBufValueParser, TypedValueParser as _};
use raceline_host::Transport;
use raceline_proto::nvme::{HostId, NamespaceId, Nqn};
use raceline_reactor::socket::Interface;
use raceline_tls::Ktls;

use super::authentication::AlgorithmArgs;
use super::initiator::IscsiArgs;
use super::nvme::Given;
use super::paths::PathArgs;
use super::values::{self, OutputFormat};

/// Place in the help of options that many verbs share and that stand in no list of their own: behind those of the verb.
pub(crate) const AFTER_OWN: usize = 900;

/// The address of the target, and the identity of this host.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct AddressArgs {
    /// Transport: tcp or rdma, which has neither digests nor TLS [default: tcp]
    #[arg(short = 't', long = "transport", value_name = "TRTYPE", help_heading = "Target")]
    #[arg(value_parser = values::transport)]
    pub(crate) transport: Option<Transport>,

    /// Address or name of the target
    #[arg(short = 'a', long = "traddr", value_name = "ADDR", help_heading = "Target")]
    pub(crate) address: String,

    /// Port of the target
    #[arg(short = 's', long = "trsvcid", value_name = "PORT", help_heading = "Target")]
    #[arg(default_value_t = values::DEFAULT_PORT, value_parser = clap::value_parser!(u16).range(1..))]
    #[arg(default_value_if("iscsi", clap::builder::ArgPredicate::IsPresent, "3260"))]
    pub(crate) port: u16,

    #[command(flatten)]
    pub(crate) iscsi: IscsiArgs,

    /// Address of this machine to connect from [default: the kernel chooses]
    #[arg(short = 'w', long = "host-traddr", value_name = "ADDR", help_heading = "Host")]
    pub(crate) source: Option<IpAddr>,

    /// Network interface of this machine by which all packets leave and come [default: the kernel chooses]
    #[arg(short = 'f', long = "host-iface", value_name = "IFACE", help_heading = "Host")]
    #[arg(value_parser = values::interface)]
    pub(crate) interface: Option<Interface>,

    /// NQN of this host [default: /etc/nvme/hostnqn, or derived from this machine]
    #[arg(short = 'q', long = "hostnqn", value_name = "HOSTNQN", help_heading = "Host")]
    #[arg(value_parser = values::nqn)]
    pub(crate) hostnqn: Option<Nqn>,

    /// Identifier of this host [default: /etc/nvme/hostid, or that of the host NQN]
    #[arg(short = 'I', long = "hostid", value_name = "HOSTID", help_heading = "Host")]
    #[arg(value_parser = values::host_id)]
    pub(crate) hostid: Option<HostId>,

    /// File with the secret of this host (DHHC-1:...), readable by its owner only, or name of a key
    /// [default: the secret in RACELINE_DHCHAP_SECRET]
    #[arg(short = 'S', long = "dhchap-secret", value_name = "KEY", help_heading = "Host")]
    pub(crate) dhchap_secret: Option<PathBuf>,

    /// File with the secret by which the controller has to prove itself, or name of a key
    /// [default: the secret in RACELINE_DHCHAP_CTRL_SECRET]
    #[arg(short = 'C', long = "dhchap-ctrl-secret", value_name = "KEY", help_heading = "Host")]
    pub(crate) dhchap_ctrl_secret: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) algorithms: AlgorithmArgs,
    /// File with the key for TLS 1.3 with this controller (NVMeTLSkey-1:...), readable by its owner only, or name of a
    /// key; kernel: is the key that nvme-cli has inserted for this host and subsystem, kernel:SERIAL and
    /// kernel:DESCRIPTION are other keys of the kernel, and so is a number, as nvme-cli's --tls-key has it
    /// [default: the key in RACELINE_TLS_PSK; without one, nothing is encrypted]
    #[arg(long, aliases = ["tls-key", "tls_key"], value_name = "KEY", help_heading = "Host")]
    #[arg(value_parser = PathBufValueParser::new().map(values::tls_key))]
    #[arg(default_value_ifs([("tls", ArgPredicate::IsPresent, "kernel:"), ("tls_key_identity", ArgPredicate::IsPresent, "kernel:")]))]
    pub(crate) tls_psk: Option<PathBuf>,

    /// TLS; without --tls-psk with the key that the kernel keeps for this host and subsystem: --tls-psk kernel:
    #[arg(long, conflicts_with = "concat", help_heading = "Host")]
    pub(crate) tls: bool,

    /// Identity of the key (NVMe1R01 HOSTNQN NQN DIGEST), which has to be for this host and subsystem; without --tls-psk
    /// it is the kernel's key with this identity
    #[arg(long, alias = "tls_key_identity", value_name = "IDENTITY", help_heading = "Host")]
    #[arg(conflicts_with_all = ["concat", "tls_identity"])]
    pub(crate) tls_key_identity: Option<String>,

    /// Taken as nvme-cli has it: keys are looked for in all keyrings that this user can see
    #[arg(long, value_name = "KEYRING", hide = true)]
    pub(crate) keyring: Option<String>,

    /// Version of the identity by which the key is offered: 0 for controllers of NVMe/TCP 1.0
    #[arg(long, value_name = "VERSION", help_heading = "Host", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=1))]
    pub(crate) tls_identity: u8,

    /// Derive from the key of --tls-psk what nvme-cli 2.13 and older derive from it
    #[arg(long, help_heading = "Host")]
    pub(crate) tls_compat: bool,

    /// Begin with an authentication that makes a key for TLS, and do all else over TLS with that key
    #[arg(long, help_heading = "Host", conflicts_with = "tls_psk")]
    pub(crate) concat: bool,

    /// Let the kernel make the records of TLS: never, if it can do all of it, or insist on it
    #[arg(long, value_name = "off|auto|on", default_value = "off", help_heading = "Host")]
    pub(crate) ktls: Ktls,

    /// Keep alive timeout in seconds, 0 for none
    #[arg(short = 'k', long = "keep-alive-tmo", value_name = "TIME", help_heading = "Host")]
    #[arg(default_value = "5", value_parser = values::time)]
    pub(crate) keep_alive: Duration,

    /// Seconds for which a lost connection is tried again, -1 for ever; given twice, the last one counts
    #[arg(short = 'l', long = "ctrl-loss-tmo", value_name = "SECONDS", help_heading = "Host")]
    #[arg(default_value_t = 30, allow_negative_numbers = true, overrides_with = "ctrl_loss_tmo")]
    #[arg(value_parser = clap::value_parser!(i64).range(-1..=86_400))]
    pub(crate) ctrl_loss_tmo: i64,

    /// Priority of what is sent, for the kernel's queueing disciplines (SO_PRIORITY); above 6 it needs
    /// CAP_NET_ADMIN
    #[arg(long = "sock-priority", value_name = "N", help_heading = "Host")]
    #[arg(value_parser = values::sock_priority)]
    pub(crate) priority: Option<u32>,

    /// Type of service of what is sent over TCP, or its traffic class with IPv6, 0 to 255
    #[arg(short = 'T', long, value_name = "N", help_heading = "Host")]
    pub(crate) tos: Option<u8>,

    /// Taken as nvme-cli has it: this host never wants submission queue flow control
    #[arg(short = 'd', long = "disable-sqflow", hide = true)]
    pub(crate) disable_sqflow: bool,

    /// Taken as nvme-cli has it: each verb always connects for itself
    #[arg(short = 'D', long = "duplicate-connect", hide = true)]
    pub(crate) duplicate_connect: bool,

    /// For people or for programs
    #[arg(short = 'o', long = "output-format", value_enum, value_name = "FORMAT")]
    #[arg(default_value_t, display_order = AFTER_OWN)]
    pub(crate) output: OutputFormat,
}

/// One subsystem of a target, and the options of the connection.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ConnectArgs {
    #[command(flatten)]
    pub(crate) address: AddressArgs,

    /// NQN of the subsystem, or with --iscsi the IQN of the target
    #[arg(short = 'n', long = "nqn", value_name = "NQN", help_heading = "Target")]
    #[arg(value_parser = values::nqn)]
    pub(crate) nqn: Nqn,

    /// Protect headers by a checksum
    #[arg(short = 'g', long = "hdr-digest", help_heading = "Connection")]
    pub(crate) header_digest: bool,

    /// Protect data by a checksum
    #[arg(short = 'G', long = "data-digest", help_heading = "Connection")]
    pub(crate) data_digest: bool,

    #[command(flatten)]
    pub(crate) paths: PathArgs,
}

/// What verbs say of `-s` that ask discovery controllers.
pub(crate) const DISCOVERY_PORT: &str = "Port of the target [default: 8009, or 4420 where nobody listens there; 4420 \
    with rdma, 3260 with --iscsi]";

/// The same of a verb without iSCSI.
pub(crate) const OF_NVME_PORT: &str =
    "Port of the target [default: 8009, or 4420 where nobody listens there; 4420 with rdma]";

/// Arguments of `discover`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct DiscoverArgs {
    #[command(flatten)]
    pub(crate) target: OptionalAddress,

    /// File of connections (JSON) instead of an address: its discovery controllers are asked
    /// [default without -a: /etc/nvme/config.json and /etc/nvme/discovery.conf]
    #[arg(short = 'J', long, value_name = "FILE", help_heading = "Target")]
    #[arg(conflicts_with_all = ["address", "mdns", "iscsi"])]
    pub(crate) config: Option<PathBuf>,

    /// List the discovery controllers that announce themselves in the local network by multicast DNS
    #[arg(long, conflicts_with = "address", help_heading = "Target")]
    pub(crate) mdns: bool,

    /// How long to listen for announcements
    #[arg(
        long,
        value_name = "TIME",
        default_value = "3",
        conflicts_with = "address",
        help_heading = "Target"
    )]
    #[arg(value_parser = values::time)]
    pub(crate) wait: Duration,
}

/// The same arguments, where `--mdns` or a file stands for the address.
#[derive(Clone, Debug)]
pub(crate) struct OptionalAddress(pub(crate) AddressArgs, pub(crate) Given);

impl clap::FromArgMatches for OptionalAddress {
    fn from_arg_matches(matches: &clap::ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self(AddressArgs::from_arg_matches(matches)?, Given::of(matches)))
    }

    fn update_from_arg_matches(&mut self, matches: &clap::ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl clap::Args for OptionalAddress {
    fn augment_args(command: clap::Command) -> clap::Command {
        let command = AddressArgs::augment_args(command).mut_arg("address", |address| {
            address.required(false).default_value("").hide_default_value(true)
        });
        command.mut_arg("port", |port| port.help(DISCOVERY_PORT).hide_default_value(true))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

/// Arguments of `identify`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct IdentifyArgs {
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,

    /// Only this namespace
    #[arg(long, alias = "namespace-id", value_name = "N", value_parser = namespace)]
    pub(crate) namespace: Option<NamespaceId>,
}

/// Arguments of `read`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ReadArgs {
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,

    /// The namespace
    #[arg(long, alias = "namespace-id", value_name = "N", default_value = "1")]
    #[arg(value_parser = namespace)]
    pub(crate) namespace: NamespaceId,

    /// First block
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) slba: u64,

    /// Number of blocks
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) blocks: u64,

    /// Where the data go, - is standard output
    #[arg(value_name = "FILE", default_value = "-")]
    pub(crate) file: PathBuf,
}

/// Arguments of `write`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct WriteArgs {
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,

    /// The namespace
    #[arg(long, alias = "namespace-id", value_name = "N", default_value = "1")]
    #[arg(value_parser = namespace)]
    pub(crate) namespace: NamespaceId,

    /// First block
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) slba: u64,

    /// Number of blocks [default: as many as there are data]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) blocks: Option<u64>,

    /// Where the data come from, - is standard input
    #[arg(value_name = "FILE", default_value = "-")]
    pub(crate) file: PathBuf,
}

/// A number that can name a namespace.
pub(crate) fn namespace(text: &str) -> Result<NamespaceId, String> {
    let number = super::nvme::number(text).ok().and_then(|number| u32::try_from(number).ok());
    let nsid = number.map(NamespaceId).filter(|nsid| nsid.is_valid());
    nsid.ok_or_else(|| "a namespace is a number from 1 to 4294967294".to_owned())
}
