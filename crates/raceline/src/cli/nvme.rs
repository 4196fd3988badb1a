//! Arguments of the verbs of nvme-cli: `list`, `id-ctrl`, `create-ns`, `dsm` and so on.
//!
//! Options have nvme-cli's long names; their letters are in [`super::letters`].

use std::path::PathBuf;

use clap::Args as _;
use clap::parser::ValueSource;
use raceline_proto::nvme::NamespaceId;

use super::host::{AFTER_OWN, ConnectArgs, OF_NVME_PORT, namespace};
use super::manage::SOCKET_VARIABLE;

/// Arguments of `connect` that stand for a default where they are not given.
const PLACEHOLDERS: [(&str, &str); 2] =
    [("address", ""), ("nqn", "nqn.2014-08.org.nvmexpress.discovery")];

/// Which controller, and how its answer is printed.
#[derive(Clone, Debug)]
pub(crate) struct DeviceArgs {
    /// The options of a connection; the address and the NQN mean nothing unless they were given.
    pub(crate) connect: ConnectArgs,
    /// Whether `-a` was given.
    pub(crate) has_address: bool,
    /// Whether `-n` was given.
    pub(crate) has_nqn: bool,
    /// Other ways to name a controller.
    pub(crate) named: NamedArgs,
    /// The options of a connection that the command line has.
    pub(crate) given: Given,
}

/// The options of a connection that stand on the command line: they come before those of an entry of a file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Given {
    /// In the form in which an entry of a file is read. Secrets are apart: an entry has them itself.
    pub(crate) words: Vec<String>,
    names: Vec<String>,
}

impl Given {
    /// Those that say where the controller is, and not how to connect.
    const PLACE: [&str; 3] = ["address", "port", "nqn"];
    /// Those that are read as options, and not as members of an entry.
    const APART: [&str; 3] = ["dhchap_secret", "dhchap_ctrl_secret", "output"];

    pub(crate) fn of(matches: &clap::ArgMatches) -> Self {
        let mut given = Self::default();
        let command = ConnectArgs::augment_args(clap::Command::new("options"));
        let command = super::queues::QueueNumbers::augment_args(command);
        for arg in command.get_arguments() {
            let id = arg.get_id().as_str();
            let is_known = matches.try_contains_id(id).is_ok();
            if !is_known || matches.value_source(id) != Some(ValueSource::CommandLine) {
                continue;
            }
            given.names.push(id.to_owned());
            let long =
                arg.get_long().filter(|_| !Self::PLACE.contains(&id) && !Self::APART.contains(&id));
            let Some(long) = long else { continue };
            if matches!(arg.get_action(), clap::ArgAction::SetTrue) {
                given.words.push(format!("--{long}"));
                continue;
            }
            let values = matches.get_raw(id).into_iter().flatten();
            given.words.extend(values.map(|value| format!("--{long}={}", value.to_string_lossy())));
        }
        given
    }

    /// Whether this option stands there, by the name of its field.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.names.iter().any(|known| known == name)
    }
}

/// Ways to name a controller other than its address.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct NamedArgs {
    /// A remote controller of the daemon (its NAME), or one of its namespaces (NAMEnN), instead of -a and -n
    #[arg(value_name = "DEVICE", value_parser = device, conflicts_with_all = ["address", "nqn", "config", "port", "transport"])]
    pub(crate) device: Option<String>,

    /// File of connections in which -n is looked up where -a is not given [default: /etc/nvme/config.json]
    #[arg(
        short = 'J',
        long,
        value_name = "FILE",
        conflicts_with = "address",
        help_heading = "Target"
    )]
    pub(crate) config: Option<PathBuf>,

    /// The socket of the daemon that has DEVICE [default: /run/raceline/rpc.sock, or else /var/tmp/spdk.sock]
    #[arg(long, value_name = "PATH", env = SOCKET_VARIABLE, help_heading = "Target")]
    pub(crate) socket: Option<String>,

    /// For people, for programs, or the bytes as they are
    #[arg(short = 'o', long = "output-format", value_enum, value_name = "FORMAT")]
    #[arg(default_value_t, display_order = AFTER_OWN)]
    pub(crate) format: NvmeFormat,

    /// The bytes as they are: -o binary
    #[arg(short = 'b', long, display_order = AFTER_OWN + 1)]
    pub(crate) raw_binary: bool,
}

/// The name of a remote controller of the daemon, or of one of its namespaces.
fn device(text: &str) -> Result<String, String> {
    match text.starts_with("/dev/") {
        true => Err("device files of the kernel are nvme-cli's: here DEVICE is a remote controller of the daemon, as \
                     raceline list shows them, and without a daemon -a ADDRESS and -n NQN say where it is"
            .to_owned()),
        false => Ok(text.to_owned()),
    }
}

impl NamedArgs {
    /// The form of the output.
    pub(crate) fn format(&self) -> NvmeFormat {
        if self.raw_binary { NvmeFormat::Binary } else { self.format }
    }
}

/// `-o` of nvme-cli.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum NvmeFormat {
    /// For people
    #[default]
    #[value(alias = "table")]
    Normal,
    /// For programs
    Json,
    /// The bytes of the data structure
    Binary,
}

impl clap::FromArgMatches for DeviceArgs {
    fn from_arg_matches(matches: &clap::ArgMatches) -> Result<Self, clap::Error> {
        let given = |id| matches.value_source(id) == Some(ValueSource::CommandLine);
        Ok(Self {
            connect: ConnectArgs::from_arg_matches(matches)?,
            has_address: given("address"),
            has_nqn: given("nqn"),
            named: NamedArgs::from_arg_matches(matches)?,
            given: Given::of(matches),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &clap::ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The ids of options of iSCSI, which all need the first one.
pub(crate) const OF_ISCSI: [&str; 7] = [
    "iscsi",
    "lun",
    "initiator",
    "chap_user",
    "chap_secret",
    "chap_target_user",
    "chap_target_secret",
];

/// Leaves iSCSI out of the help of a verb that refuses it.
pub(super) fn without_iscsi(command: clap::Command) -> clap::Command {
    let command =
        OF_ISCSI.into_iter().fold(command, |command, id| command.mut_arg(id, |arg| arg.hide(true)));
    command.mut_arg("nqn", |arg| arg.help("NQN of the subsystem"))
}

impl clap::Args for DeviceArgs {
    fn augment_args(command: clap::Command) -> clap::Command {
        let mut command = ConnectArgs::augment_args(command);
        for (id, value) in PLACEHOLDERS {
            command = command.mut_arg(id, |arg| {
                arg.required(false).default_value(value).hide_default_value(true)
            });
        }
        // The option -o of these verbs has a form more.
        command =
            command.mut_arg("output", |arg| arg.short(None).long("output-of-connect").hide(true));
        NamedArgs::augment_args(without_iscsi(command))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

/// A number as C writes it: decimal, or hexadecimal after 0x. One that begins with another 0 is refused: it is octal in C and
/// for nvme-cli, and whoever writes it seldom means that.
pub(crate) fn number(text: &str) -> Result<u64, String> {
    let hex = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    if hex.is_none() && text.len() > 1 && text.starts_with('0') {
        return Err("a number does not begin with 0: nvme-cli takes it for octal".to_owned());
    }
    let parsed = match hex {
        Some(digits) if !digits.starts_with('+') => u64::from_str_radix(digits, 16),
        _ => text.parse(),
    };
    parsed.map_err(|_| "it has to be a number, or 0x and a hexadecimal number".to_owned())
}

/// The same, of at most 32 bits.
fn number_32(text: &str) -> Result<u32, String> {
    u32::try_from(number(text)?).map_err(|_| "it has to be below 2^32".to_owned())
}

/// The same, of at most 16 bits.
fn number_16(text: &str) -> Result<u16, String> {
    u16::try_from(number(text)?).map_err(|_| "it has to be below 65536".to_owned())
}

/// The same, of at most 8 bits.
fn number_8(text: &str) -> Result<u8, String> {
    u8::try_from(number(text)?).map_err(|_| "it has to be below 256".to_owned())
}

/// A number that can name a namespace, or all of them.
fn namespace_or_all(text: &str) -> Result<NamespaceId, String> {
    let nsid = number_32(text)?;
    (nsid != 0)
        .then_some(NamespaceId(nsid))
        .ok_or_else(|| "a namespace is a number from 1 on".to_owned())
}

/// A verb that needs the controller alone.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ControllerArgs {
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
}

/// Whether people are told what numbers mean.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(crate) struct DecodeArgs {
    /// Say below each field what its bits mean; programs get the numbers as they are
    #[arg(short = 'H', long)]
    pub(crate) human_readable: bool,
}

/// Arguments of `id-ctrl`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct IdCtrlArgs {
    #[command(flatten)]
    pub(crate) device: DeviceArgs,

    #[command(flatten)]
    pub(crate) decode: DecodeArgs,
}

/// Arguments of `id-ns`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct IdNsArgs {
    #[command(flatten)]
    pub(crate) namespace: NamespaceArgs,

    #[command(flatten)]
    pub(crate) decode: DecodeArgs,
}

/// Arguments of `connect-all`.
#[derive(Clone, Debug, clap::Args)]
#[command(mut_arg("port", |port| port.help(OF_NVME_PORT).hide_default_value(true)))]
#[command(mut_arg("nqn", |nqn| nqn.help("NQN of the discovery controller that -a names [default: the one that all have]")))]
pub(crate) struct ConnectAllArgs {
    #[command(flatten)]
    pub(crate) device: DeviceArgs,

    #[command(flatten)]
    pub(crate) queues: super::queues::QueueNumbers,

    /// Follow the discovery controllers: connect to what they offer later, too
    #[arg(short = 'p', long)]
    pub(crate) persistent: bool,
}

/// A verb on a namespace.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct NamespaceArgs {
    #[command(flatten)]
    pub(crate) device: DeviceArgs,

    /// The namespace [default: that of DEVICE, or the only one]
    #[arg(short = 'N', long, visible_alias = "namespace", value_name = "N", value_parser = namespace)]
    pub(crate) namespace_id: Option<NamespaceId>,
}

/// Arguments of `get-log`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct GetLogArgs {
    #[command(flatten)]
    pub(crate) device: DeviceArgs,

    /// The page
    #[arg(short = 'i', long, value_name = "LID", value_parser = number_8)]
    pub(crate) log_id: u8,

    /// How many bytes, a multiple of 4
    #[arg(long, value_name = "BYTES", value_parser = number_32)]
    pub(crate) log_len: u32,

    /// First byte, a multiple of 4
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = number)]
    pub(crate) lpo: u64,

    /// What the page is to do (LSP), 0 to 127
    #[arg(long, value_name = "N", default_value = "0", value_parser = number_8)]
    pub(crate) lsp: u8,

    /// Leave the event of the page as it is
    #[arg(long)]
    pub(crate) rae: bool,

    /// Command set, for pages that each command set has
    #[arg(long, value_name = "N", default_value = "0", value_parser = number_8)]
    pub(crate) csi: u8,

    /// The namespace [default: the controller]
    #[arg(short = 'N', long, visible_alias = "namespace", value_name = "N", value_parser = namespace_or_all)]
    pub(crate) namespace_id: Option<NamespaceId>,
}

/// Arguments of `smart-log`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SmartLogArgs {
    #[command(flatten)]
    pub(crate) device: DeviceArgs,

    #[command(flatten)]
    pub(crate) decode: DecodeArgs,

    /// The namespace [default: the controller]
    #[arg(short = 'N', long, visible_alias = "namespace", value_name = "N", value_parser = namespace_or_all)]
    pub(crate) namespace_id: Option<NamespaceId>,
}

/// Arguments of `error-log`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ErrorLogArgs {
    #[command(flatten)]
    pub(crate) device: DeviceArgs,

    /// Most entries that are shown
    #[arg(short = 'e', long, value_name = "N", default_value = "64", value_parser = number_32)]
    pub(crate) log_entries: u32,

    #[command(flatten)]
    pub(crate) decode: DecodeArgs,
}

/// Arguments of `format`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct FormatArgs {
    #[command(flatten)]
    pub(crate) namespace: NamespaceArgs,

    /// Number of the block format, as id-ns lists them [default: the one in use]
    #[arg(long, value_name = "N", value_parser = number_8, conflicts_with = "block_size")]
    pub(crate) lbaf: Option<u8>,

    /// Size of a block in bytes, instead of --lbaf
    #[arg(long, value_name = "BYTES", value_parser = number_32)]
    pub(crate) block_size: Option<u32>,

    /// Erase: 0 as the controller likes, 1 user data, 2 by changing a key
    #[arg(long, value_name = "N", default_value = "0", value_parser = clap::value_parser!(u8).range(..=2))]
    pub(crate) ses: u8,

    /// Type of protection information, 0 for none
    #[arg(long, value_name = "N", default_value = "0", value_parser = clap::value_parser!(u8).range(..=3))]
    pub(crate) pi: u8,

    /// Place of protection information: 0 last, 1 first bytes of the metadata
    #[arg(long, value_name = "N", default_value = "0", value_parser = clap::value_parser!(u8).range(..=1))]
    pub(crate) pil: u8,

    /// Metadata: 0 apart, 1 at the end of each block
    #[arg(long, value_name = "N", default_value = "0", value_parser = clap::value_parser!(u8).range(..=1))]
    pub(crate) ms: u8,

    /// Do it: everything in the namespace is lost
    #[arg(long)]
    pub(crate) force: bool,
}

/// Arguments of `create-ns`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct CreateArgs {
    #[command(flatten)]
    pub(crate) device: DeviceArgs,

    /// Size in blocks
    #[arg(long, value_name = "BLOCKS", value_parser = number, required_unless_present = "nsze_si")]
    pub(crate) nsze: Option<u64>,

    /// Capacity in blocks [default: the size]
    #[arg(long, value_name = "BLOCKS", value_parser = number)]
    pub(crate) ncap: Option<u64>,

    /// Size as 1T, 64G or 512M, in powers of 1000 (512Gi: of 1024), instead of --nsze
    #[arg(long, value_name = "SIZE", value_parser = si_bytes, conflicts_with = "nsze")]
    pub(crate) nsze_si: Option<u64>,

    /// Capacity, as --nsze-si
    #[arg(long, value_name = "SIZE", value_parser = si_bytes, conflicts_with = "ncap")]
    pub(crate) ncap_si: Option<u64>,

    /// Number of the block format [default: that of --block-size, or 0]
    #[arg(long, value_name = "N", value_parser = number_8, conflicts_with = "block_size")]
    pub(crate) flbas: Option<u8>,

    /// Size of a block in bytes, instead of --flbas
    #[arg(long, value_name = "BYTES", value_parser = number_32)]
    pub(crate) block_size: Option<u32>,

    /// Protection information
    #[arg(long, value_name = "N", default_value = "0", value_parser = number_8)]
    pub(crate) dps: u8,

    /// 1: several controllers may have it attached
    #[arg(long, value_name = "N", default_value = "0", value_parser = number_8)]
    pub(crate) nmic: u8,

    /// Its group of paths (ANA)
    #[arg(long, value_name = "N", default_value = "0", value_parser = number_32)]
    pub(crate) anagrp_id: u32,

    /// Its NVM set
    #[arg(long, value_name = "N", default_value = "0", value_parser = number_16)]
    pub(crate) nvmset_id: u16,

    /// Its command set
    #[arg(long, value_name = "N", default_value = "0", value_parser = number_8)]
    pub(crate) csi: u8,
}

/// Arguments of `attach-ns` and `detach-ns`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct AttachArgs {
    #[command(flatten)]
    pub(crate) device: DeviceArgs,

    /// The namespace
    #[arg(short = 'N', long, visible_alias = "namespace", value_name = "N", value_parser = namespace)]
    pub(crate) namespace_id: NamespaceId,

    /// The controllers [default: that of this connection, which stands for this host]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = number_16)]
    pub(crate) controllers: Vec<u16>,
}

/// Arguments of `delete-ns`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct DeleteArgs {
    #[command(flatten)]
    pub(crate) device: DeviceArgs,

    /// The namespace, or 0xffffffff for all of the pool
    #[arg(short = 'N', long, visible_alias = "namespace", value_name = "N", value_parser = namespace_or_all)]
    pub(crate) namespace_id: NamespaceId,
}

/// Arguments of `dsm`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct DsmArgs {
    #[command(flatten)]
    pub(crate) namespace: NamespaceArgs,

    /// First block of each range
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = number, required = true)]
    pub(crate) slbs: Vec<u64>,

    /// Number of blocks of each range
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = number_32, required = true)]
    pub(crate) blocks: Vec<u32>,

    /// Deallocate the ranges: their contents are lost
    #[arg(long)]
    pub(crate) ad: bool,
}

/// Arguments of `write-zeroes`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ZeroesArgs {
    #[command(flatten)]
    pub(crate) namespace: NamespaceArgs,

    /// First block
    #[arg(long, value_name = "N", value_parser = number)]
    pub(crate) start_block: u64,

    /// Number of blocks less one, as nvme-cli has it: 0 is one block
    #[arg(long, value_name = "N", value_parser = number)]
    pub(crate) block_count: u64,

    /// The controller may free the blocks
    #[arg(long)]
    pub(crate) deac: bool,
}

/// Arguments of `compare`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct CompareArgs {
    #[command(flatten)]
    pub(crate) namespace: NamespaceArgs,

    /// First block
    #[arg(long, value_name = "N", default_value = "0", value_parser = number)]
    pub(crate) start_block: u64,

    /// Number of blocks less one, as nvme-cli has it [default: as many as there are data]
    #[arg(long, value_name = "N", value_parser = number_16)]
    pub(crate) block_count: Option<u16>,

    /// Bytes of the data that are compared [default: all]
    #[arg(long, value_name = "BYTES", value_parser = number)]
    pub(crate) data_size: Option<u64>,

    /// File with the data, - is standard input
    #[arg(long, value_name = "FILE", default_value = "-")]
    pub(crate) data: PathBuf,

    /// Say how long the comparison took
    #[arg(long)]
    pub(crate) latency: bool,
}

/// A size in powers of 1000, or of 1024 with an i.
fn si_bytes(text: &str) -> Result<u64, String> {
    let wrong = || {
        "a size is a number with K, M, G, T or P (powers of 1000) or Ki, Mi... (of 1024)".to_owned()
    };
    let text = text.strip_suffix(['B', 'b']).unwrap_or(text);
    let (text, base) = text.strip_suffix('i').map_or((text, 1000_u64), |rest| (rest, 1024));
    let power = match text.chars().last().map(|last| last.to_ascii_uppercase()) {
        Some('K') => 1,
        Some('M') => 2,
        Some('G') => 3,
        Some('T') => 4,
        Some('P') => 5,
        _ if base == 1024 => return Err(wrong()),
        _ => 0,
    };
    let digits = if power == 0 { text } else { &text[..text.len() - 1] };
    let count: u64 = digits.parse().map_err(|_| wrong())?;
    base.checked_pow(power)
        .and_then(|unit| unit.checked_mul(count))
        .ok_or_else(|| "it is above 16 EiB".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_in_c() {
        assert_eq!(number("0x10"), Ok(16));
        assert_eq!(number("10"), Ok(10));
        assert_eq!(number("0"), Ok(0));
        assert_eq!(number("0xffffffffffffffff"), Ok(u64::MAX));
        for text in ["", "0x", "-1", "0x+1", "1k", "18446744073709551616", "010", "00", "08"] {
            assert!(number(text).is_err(), "{text}");
        }
        assert!(number_16("65536").is_err() && number_8("0x100").is_err());
        assert!(namespace_or_all("0").is_err());
    }

    #[test]
    fn sizes_have_units_of_1000_or_1024() {
        assert_eq!(si_bytes("64G"), Ok(64_000_000_000));
        assert_eq!(si_bytes("64GiB"), Ok(64 << 30));
        assert_eq!(si_bytes("512"), Ok(512));
        for text in ["", "G", "1i", "1X", "99999999P", "é"] {
            assert!(si_bytes(text).is_err(), "{text}");
        }
    }
}
