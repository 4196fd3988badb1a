//! Arguments of `raceline connect` and `raceline disconnect`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::builder::ArgPredicate;
use clap::{ArgMatches, Command, FromArgMatches};
use raceline_host::Transport;
use raceline_proto::nvme::NamespaceId;

use super::device::Device;
use super::host::{ConnectArgs, namespace};
use super::manage::SOCKET_VARIABLE;
use super::nvme::{Given, without_iscsi};
use super::queues::QueueNumbers;
use super::values::{self, CoreList, IoChoice, ModeChoice};

/// What stands for the NQN where a device of this machine is named instead.
const NO_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// The files of a folder of certificates: of the server, its key, and of the authority of the clients.
pub(crate) const SERVER_CERTIFICATES: [&str; 3] =
    ["server-cert.pem", "server-key.pem", "ca-cert.pem"];

/// How programs of this machine get at the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum DiskKind {
    /// A server for everything that speaks NBD: qemu, libnbd, nbd-client
    Nbd,
    /// A disk for a virtual machine of QEMU or cloud-hypervisor, by vhost-user-blk
    VhostUser,
    /// A block device of the kernel, /dev/ublkbN; needs root and the kernel's module ublk_drv
    Ublk,
}

/// Arguments of `connect`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
It runs in the foreground, and prints one line of JSON when the disk is there. SIGINT, SIGTERM or \
`raceline disconnect` ends it after what is in flight; the end of the terminal (SIGHUP) does not.

With --as ublk the disk is a block device, which outlives a process that is killed, and one that is to end while the disk \
is mounted or open: the same command line goes on with it.

With --as nbd and without --socket and --listen, the disk is at a socket that only this user can use. Whoever can \
connect to a TCP address can read and write the disk, unless TLS asks clients for a key or a certificate.

Examples:
  raceline connect --as nbd -a 192.0.2.1 -n NQN
  raceline connect --as nbd --bdev /srv/disk.img --listen 10809
  raceline connect --as nbd --bdev /srv/disk.img --listen 0.0.0.0:10809 --nbd-tls-psk keys.psk
  raceline connect --as vhost-user -a 192.0.2.1 -n NQN --socket /run/raceline-disks/vm1.sock
  raceline connect --as ublk -a 192.0.2.1 -n NQN
  raceline connect --as ublk -n NQN -J /etc/nvme/config.json
  qemu-img info nbd+unix:///?socket=/run/raceline-disks/disk-NQN-1.sock")]
pub(crate) struct DiskArgs {
    /// What the disk becomes here
    #[arg(long = "as", value_enum, value_name = "WHAT")]
    pub(crate) kind: DiskKind,

    /// A device of this machine instead of a namespace, as `export` takes it
    #[arg(long, value_name = "DEVICE", conflicts_with_all = ["address", "nqn", "config"])]
    pub(crate) bdev: Option<Device>,

    #[command(flatten)]
    pub(crate) remote: RemoteArgs,

    /// The namespace
    #[arg(short = 'N', long, alias = "namespace-id", value_name = "N", default_value = "1")]
    #[arg(value_parser = namespace)]
    pub(crate) namespace: NamespaceId,

    /// Print the connection as a config.json of nvme-cli has it, without secrets, and make no disk
    #[arg(short = 'O', long, conflicts_with = "bdev")]
    pub(crate) dump_config: bool,

    /// Name by which clients ask for the disk; they need none
    #[arg(long, value_name = "NAME", default_value = "disk", help_heading = "Disk")]
    pub(crate) name: String,

    /// Socket in the file system to listen on
    #[arg(long, value_name = "PATH", help_heading = "Disk")]
    pub(crate) socket: Option<PathBuf>,

    /// TCP address to listen on, [ADDR:]PORT with 127.0.0.1 if none is named; port 0 takes any free port
    #[arg(long, value_name = "ADDR", value_parser = listen, help_heading = "Disk")]
    pub(crate) listen: Option<SocketAddr>,

    #[command(flatten)]
    pub(crate) tls: DiskTlsArgs,

    /// Let --listen be an address that other machines can reach
    #[arg(long, requires = "listen", help_heading = "Disk")]
    pub(crate) insecure: bool,

    /// Refuse writes
    #[arg(long, help_heading = "Disk")]
    pub(crate) read_only: bool,

    /// Queues that a virtual machine may use, 1 to 64 (vhost-user)
    #[arg(long, value_name = "N", default_value_t = raceline_vhost::DEFAULT_QUEUES)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=i64::from(raceline_vhost::MAX_QUEUES)))]
    #[arg(help_heading = "Disk")]
    pub(crate) queues: u16,

    /// Serial number that a virtual machine sees, at most 20 letters (vhost-user)
    #[arg(long, value_name = "TEXT", value_parser = serial, help_heading = "Disk")]
    pub(crate) serial: Option<String>,

    /// Connections of clients at a time
    #[arg(long, value_name = "N", default_value_t = raceline_nbd::DEFAULT_MAX_CONNECTIONS)]
    #[arg(help_heading = "Disk")]
    pub(crate) max_connections: usize,

    /// The number N of /dev/ublkbN [default: the kernel chooses]
    #[arg(long, value_name = "N", help_heading = "Disk")]
    pub(crate) ublk_id: Option<u32>,

    /// Requests of a ublk disk at a time, for each core
    #[arg(long, value_name = "N", default_value_t = raceline_ublk::DEFAULT_DEPTH)]
    #[arg(help_heading = "Disk")]
    pub(crate) queue_depth: u16,

    /// Most KiB of data of a request of a ublk disk
    #[arg(long, value_name = "KIB", default_value_t = raceline_ublk::DEFAULT_MAX_IO_BYTES >> 10)]
    #[arg(help_heading = "Disk")]
    pub(crate) max_io_kib: u32,

    /// Copy the data of a ublk disk, also where the kernel could move them between its requests and a file or block device
    #[arg(long, help_heading = "Disk")]
    pub(crate) no_zero_copy: bool,

    /// Cores to run on, e.g. 0,2-3 [default: one thread that floats]
    #[arg(long, value_name = "LIST", value_parser = values::core_list, help_heading = "Disk")]
    pub(crate) cores: Option<CoreList>,

    /// How eagerly cores look for work
    #[arg(long, value_enum, value_name = "MODE", default_value_t, help_heading = "Disk")]
    pub(crate) mode: ModeChoice,

    /// How to do I/O
    #[arg(long, value_enum, value_name = "HOW", default_value_t, help_heading = "Disk")]
    pub(crate) io: IoChoice,
}

/// TLS of an NBD disk.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct DiskTlsArgs {
    /// Serve by TLS those who know a key of this file: lines USER:KEY, as psktool writes them (nbd)
    #[arg(long = "nbd-tls-psk", id = "nbd_tls_psk", value_name = "FILE", help_heading = "Disk")]
    #[arg(conflicts_with = "nbd_tls_certificates")]
    pub(crate) psk: Option<PathBuf>,

    /// Serve by TLS with server-cert.pem and server-key.pem of this folder; clients need a certificate of its
    /// ca-cert.pem (nbd)
    #[arg(long = "nbd-tls-certificates", id = "nbd_tls_certificates", value_name = "DIR")]
    #[arg(help_heading = "Disk")]
    pub(crate) certificates: Option<PathBuf>,

    /// Clients need no certificate
    #[arg(long = "nbd-tls-any-client", id = "nbd_tls_any_client", help_heading = "Disk")]
    #[arg(requires = "nbd_tls_certificates", conflicts_with = "nbd_tls_psk")]
    pub(crate) any_client: bool,

    /// Serve clients that do not begin TLS, too
    #[arg(long = "nbd-tls-optional", id = "nbd_tls_optional", help_heading = "Disk")]
    pub(crate) optional: bool,
}

impl DiskTlsArgs {
    /// Whether any of it was given.
    pub(crate) fn is_given(&self) -> bool {
        self.psk.is_some() || self.certificates.is_some() || self.optional
    }

    /// Whether only those are served who have proved something.
    pub(crate) fn admits_only_known(&self) -> bool {
        let proves = self.psk.is_some() || (self.certificates.is_some() && !self.any_client);
        proves && !self.optional
    }
}

/// The arguments of a subsystem, for which `--bdev` can stand. Its address may be in a file.
#[derive(Clone, Debug)]
pub(crate) struct RemoteArgs {
    /// The address means nothing unless it was given.
    pub(crate) connect: ConnectArgs,
    /// The options that stand on the command line.
    pub(crate) given: Given,
    pub(crate) file: FileArgs,
    pub(crate) queues: QueueNumbers,
}

/// The file with the addresses of a subsystem.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct FileArgs {
    /// File of connections (JSON) with the options of the subsystem, and with its addresses where -a is not given; none is
    /// no file [default without -a: /etc/nvme/config.json]
    #[arg(short = 'J', long, alias = "config-file", value_name = "FILE", help_heading = "Target")]
    pub(crate) config: Option<PathBuf>,
}

impl FromArgMatches for RemoteArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self {
            connect: ConnectArgs::from_arg_matches(matches)?,
            given: Given::of(matches),
            file: FileArgs::from_arg_matches(matches)?,
            queues: QueueNumbers::from_arg_matches(matches)?,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl clap::Args for RemoteArgs {
    fn augment_args(command: Command) -> Command {
        let command = without_iscsi(ConnectArgs::augment_args(command))
            .mut_arg("address", |arg| {
                arg.required(false).default_value("").hide_default_value(true)
            })
            .mut_arg("tls", |arg| arg.conflicts_with("bdev"))
            .mut_arg("nqn", |arg| {
                let arg = arg.required(false).required_unless_present("bdev");
                arg.default_value_if("bdev", ArgPredicate::IsPresent, NO_NQN)
            });
        QueueNumbers::augment_args(FileArgs::augment_args(command))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// Arguments of `disconnect`.
#[derive(Clone, Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("which").required(true).multiple(false))]
pub(crate) struct DisconnectArgs {
    /// All disks and controllers of this subsystem
    #[arg(short = 'n', long, value_name = "NQN", group = "which")]
    pub(crate) nqn: Option<String>,

    /// The disk at this socket, address or path, or the controller of the daemon with this name; may be repeated
    #[arg(short = 'd', long, value_name = "PLACE|NAME", group = "which")]
    pub(crate) device: Vec<String>,

    /// All disks of this user, and all remote controllers of the daemon, as disconnect-all does it
    #[arg(long, group = "which")]
    pub(crate) all: bool,

    /// With --all, only those of this transport: tcp or rdma
    #[arg(short = 't', long, value_name = "TRTYPE", value_parser = values::transport, conflicts_with_all = ["nqn", "device"])]
    pub(crate) transport: Option<Transport>,

    #[command(flatten)]
    pub(crate) end: EndArgs,
}

/// Arguments of `disconnect-all`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct DisconnectAllArgs {
    /// Only those of this transport: tcp or rdma
    #[arg(short = 'r', long, short_alias = 't', value_name = "TRTYPE")]
    #[arg(value_parser = values::transport)]
    pub(crate) transport: Option<Transport>,

    #[command(flatten)]
    pub(crate) end: EndArgs,
}

impl From<DisconnectAllArgs> for DisconnectArgs {
    fn from(args: DisconnectAllArgs) -> Self {
        let DisconnectAllArgs { transport, end } = args;
        Self { nqn: None, device: Vec::new(), all: true, transport, end }
    }
}

/// How disks and controllers are ended.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct EndArgs {
    /// Also a block device, or a controller of the daemon, that is in use: what was not written is lost
    #[arg(long)]
    pub(crate) force: bool,

    /// The daemon's socket [default: /run/raceline/rpc.sock, or else /var/tmp/spdk.sock, if a daemon is there]
    #[arg(short = 's', long, value_name = "PATH", env = SOCKET_VARIABLE)]
    pub(crate) socket: Option<String>,
}

/// A serial number that virtio can carry.
fn serial(text: &str) -> Result<String, String> {
    const MOST: usize = 20;
    let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
    if text.is_empty() || text.len() > MOST || !is_plain {
        return Err(format!("a serial number has 1 to {MOST} letters of ASCII"));
    }
    Ok(text.to_owned())
}

/// `[ADDR:]PORT`.
fn listen(text: &str) -> Result<SocketAddr, String> {
    let address = match text.parse::<u16>() {
        Ok(port) => Some(SocketAddr::from((IpAddr::V4(Ipv4Addr::LOCALHOST), port))),
        Err(_) => text.parse().ok(),
    };
    address.ok_or_else(|| "an address is written PORT, ADDR:PORT or [ADDR]:PORT".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser as _};

    use super::*;
    use crate::cli::{Cli, Verb};

    fn parse(line: &str) -> Result<DiskArgs, String> {
        let cli = Cli::try_parse_from(format!("raceline connect {line}").split(' '));
        match cli.map_err(|error| error.to_string())?.verb {
            Verb::Connect(args) => Ok(*args),
            verb => panic!("{verb:?}"),
        }
    }

    #[test]
    fn a_disk_by_tls_admits_those_who_prove_something() {
        let line = "--as nbd --bdev ram:1M --nbd-tls-certificates d";
        for (more, only_known) in
            [("", true), (" --nbd-tls-any-client", false), (" --nbd-tls-optional", false)]
        {
            let tls = parse(&format!("{line}{more}")).unwrap().tls;
            assert_eq!((tls.is_given(), tls.admits_only_known()), (true, only_known), "{more}");
        }
        assert!(parse("--as nbd --bdev ram:1M --nbd-tls-psk f").unwrap().tls.admits_only_known());
        assert!(!parse("--as nbd --bdev ram:1M").unwrap().tls.is_given());
        parse(&format!("{line} --nbd-tls-psk f")).unwrap_err();
        parse("--as nbd --bdev ram:1M --nbd-tls-psk f --nbd-tls-any-client").unwrap_err();
    }

    #[test]
    fn a_line_of_nvme_cli_is_a_line_of_connect() {
        let line = "--as nbd -t tcp -a 192.0.2.1 -s 4421 -n nqn.2026-01.io.raceline:x -w 192.0.2.9 -f eth0 -T 8 \
                    -Q 64 -i 4 -W 2 -P 1 -k 30 -c 2 -l 600 -F 5 -g -G -d -D --tls -J f.json -O";
        let args = parse(&line.split_whitespace().collect::<Vec<_>>().join(" ")).unwrap();
        let address = &args.remote.connect.address;
        assert_eq!((address.tos, address.interface.unwrap().to_string()), (Some(8), "eth0".into()));
        let numbers: Vec<_> = args.remote.queues.given().collect();
        let expected = [
            ("nr_io_queues", 4),
            ("nr_write_queues", 2),
            ("nr_poll_queues", 1),
            ("queue_size", 64),
        ];
        assert_eq!(numbers, expected);
        assert!(args.dump_config && args.remote.file.config.unwrap().ends_with("f.json"));
        let given = &args.remote.given;
        assert!(given.has("address") && given.has("tos") && !given.has("tls_psk"));
        assert_eq!(address.tls_psk.as_deref(), Some(std::path::Path::new("kernel:")));
        assert_eq!(args.remote.connect.paths.fast_io_fail_tmo, Some(5));
        let words = given.words.join(" ");
        for word in [
            "--host-traddr=192.0.2.9",
            "--hdr-digest",
            "--queue-size=64",
            "--ctrl-loss-tmo=600",
            "--tls",
        ] {
            assert!(words.contains(word), "{words}");
        }
        assert!(!words.contains("192.0.2.1 ") && !words.contains("nqn."), "{words}");
        for wrong in ["-Q 1", "-Q 4097", "-T 256", "-f a/b", "-J f --bdev ram:1M"] {
            parse(&format!("--as nbd -n nqn.2026-01.io.raceline:x -a h {wrong}")).unwrap_err();
        }
    }

    #[test]
    fn keys_are_named_as_nvme_cli_names_them() {
        let at = "-t tcp -a 192.0.2.1 -n nqn.2026-01.io.raceline:x";
        let identity = "NVMe1R01_h_s_d";
        for verb in ["connect --as nbd", "connect-all", "discover", "id-ctrl", "identify", "perf"] {
            let at =
                if matches!(verb, "connect-all" | "discover") { "-t tcp -a 192.0.2.1" } else { at };
            for (options, expected) in [
                ("--tls", "kernel:"),
                ("--tls --keyring .nvme --tls_key 305419896", "kernel:305419896"),
                ("--tls --keyring=0x1234 --tls-key=0x12345678", "kernel:0x12345678"),
                (&format!("--tls --tls-key-identity {identity}"), "kernel:"),
                (&format!("--tls_key_identity {identity} --tls-key 7"), "kernel:7"),
                ("--tls --tls-psk file", "file"),
            ] {
                let words = format!("raceline {verb} {at} {options}");
                let words: Vec<&str> = words.split(' ').collect();
                let matches = Cli::command().try_get_matches_from(&words);
                let matches = matches.unwrap_or_else(|error| panic!("{words:?}: {error}"));
                let (_, matches) = matches.subcommand().unwrap();
                let key = matches.get_one::<PathBuf>("tls_psk").unwrap();
                assert_eq!(key, std::path::Path::new(expected), "{words:?}");
                let has_identity = matches.get_one::<String>("tls_key_identity").is_some();
                assert_eq!(has_identity, options.contains("identity"), "{words:?}");
            }
            for wrong in ["--tls --concat", "--tls-key-identity x --concat", "--tls-key 7 --concat"]
            {
                let words = format!("raceline {verb} {at} {wrong}");
                Cli::command().try_get_matches_from(words.split(' ')).unwrap_err();
            }
        }
    }

    #[test]
    fn a_disk_is_a_namespace_or_a_device() {
        let args = parse("--as nbd -t tcp -a 192.0.2.1 -n nqn.2026-01.io.raceline:x -N 3").unwrap();
        assert_eq!((args.namespace, args.bdev.is_none()), (NamespaceId(3), true));
        let args = parse("--as nbd --bdev ram:64M --listen 0").unwrap();
        assert_eq!(args.listen.unwrap().to_string(), "127.0.0.1:0");
        assert!(args.bdev.is_some());
        let args = parse("--as ublk --bdev ram:64M --ublk-id 3 --max-io-kib 64").unwrap();
        assert_eq!((args.kind, args.ublk_id, args.queue_depth), (DiskKind::Ublk, Some(3), 128));
        assert!(!args.no_zero_copy);
        assert!(parse("--as ublk --bdev ram:64M --no-zero-copy").unwrap().no_zero_copy);
        parse("--as ublk --bdev ram:1M --queue-depth 65536").unwrap_err();
        for line in ["--as nbd", "--as nbd -a h", "--as nbd --bdev ram:1M -a h", "--bdev ram:1M"] {
            parse(line).unwrap_err();
        }
        for text in ["", "host:1", "1.2.3.4", "99999"] {
            assert!(listen(text).is_err(), "{text}");
        }
        let args = parse("--as vhost-user --bdev ram:1M --queues 2 --serial vm1").unwrap();
        assert_eq!((args.kind, args.queues), (DiskKind::VhostUser, 2));
        let long = format!("--as vhost-user --bdev ram:1M --serial {}", "x".repeat(21));
        for line in ["--as vhost-user --bdev ram:1M --queues 0", long.as_str()] {
            parse(line).unwrap_err();
        }
        assert_eq!(listen("[::1]:7").unwrap().to_string(), "[::1]:7");
    }
}
