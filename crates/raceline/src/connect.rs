//! `raceline connect` and `raceline disconnect`: a remote namespace, or a device, as a disk of this machine.

mod ask;
mod disconnect;
mod loss;
mod namespace;
mod queues;
mod registry;
mod renewal;
mod tls;
mod ublk;
mod units;
mod vhost;

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::Arc;

use raceline_bdev::{Bdev as _, ByteSize, DiskFigures, Identity, SharedBdev};
use raceline_control::methods::ServedDisk;
use raceline_control::server::DiskServer;
use raceline_host::{RemoteNamespace, Transport};
use raceline_initiator::LunBdev;
use raceline_nbd::{Endpoint, Export, Server, ServerConfig, ServerError};
use raceline_reactor::listening::{address_trouble, path_trouble};
use raceline_reactor::private_socket::SocketError;
use sd_notify::NotifyState;
use serde::Serialize;

pub(crate) use self::ask::{ListedDisk, disks};
pub(crate) use self::disconnect::disconnect;
use self::disconnect::name_of;
use self::loss::{InUse, Loss, Verdict};
use self::queues::Plan;
use self::registry::{Entry, Note, Noted, Registry};
use self::renewal::Renewal;
use crate::cli::connect::{DiskArgs, DiskKind};
use crate::cli::device::Device;
use crate::failure::Failure;
use crate::signals::Interrupt;
use crate::sizes::Following;
use crate::watch::Watchdog;
use crate::{initiator, limits, log, serve, shell};

/// The longest name of a socket, in bytes.
const NAME_MAX: usize = 48;

/// The line on standard output that reports readiness.
#[derive(Debug, Serialize)]
struct Ready<'a> {
    ready: bool,
    kind: &'static str,
    /// Where clients find the disk.
    uri: &'a str,
    /// The socket or address, as `disconnect -d` takes it.
    device: &'a str,
    bytes: u64,
    block_size: u32,
    read_only: bool,
    /// Another process had made it, and has ended. Only of disks that outlive a process.
    #[serde(skip_serializing_if = "Option::is_none")]
    recovered: Option<bool>,
    /// Data are not copied on their way to the device. Only of disks that may do without.
    #[serde(skip_serializing_if = "Option::is_none")]
    zero_copy: Option<bool>,
    /// The socket at which this process takes the calls of `raceline rpc`.
    #[serde(skip_serializing_if = "Option::is_none")]
    rpc: Option<PathBuf>,
    pid: u32,
}

/// How a disk is served.
struct Way {
    /// By which cores.
    cores: Vec<Option<usize>>,
    /// By which transport its first path goes; none for a device of this machine.
    transport: Option<Transport>,
}

/// What is to be a disk.
enum Source {
    Namespace(Arc<RemoteNamespace>, Box<RefCell<Renewal>>),
    Device(SharedBdev),
}

impl Source {
    /// Opens it; gives how it is to be served, too.
    fn open(args: &DiskArgs) -> Result<(Self, Way), Failure> {
        let remote = &args.remote.connect;
        match &args.bdev {
            Some(device) => {
                device.check()?;
                let way = Way { cores: Plan::of_cores(args).cores, transport: None };
                Ok((Self::Device(open_device(device)?), way))
            }
            None if remote.address.iscsi.iscsi => Err(Failure::usage(
                "connect --iscsi: name the logical unit by --bdev iscsi://HOST/IQN/LUN instead",
            )),
            None => {
                let (config, queues, renewal) = namespace::config(args)?;
                let plan = Plan::new(args, &queues)?;
                let transport = Some(config.transport);
                let namespace = plan.open(config, args.namespace)?;
                let way = Way { cores: plan.cores, transport };
                Ok((Self::Namespace(Arc::new(namespace), Box::new(RefCell::new(renewal))), way))
            }
        }
    }

    fn device(&self) -> SharedBdev {
        match self {
            Self::Namespace(namespace, _) => Arc::clone(namespace) as SharedBdev,
            Self::Device(device) => Arc::clone(device),
        }
    }

    /// Has its host authenticate with secrets that have changed in their files.
    fn look_at_secrets(&self) {
        if let Self::Namespace(_, renewal) = self {
            renewal.borrow_mut().look();
        }
    }

    /// Its name, and why its controller was given up, if it was: in this process it never comes back. (A session of a logical
    /// unit is never given up.)
    fn loss(&self) -> Option<String> {
        let Self::Namespace(namespace, _) = self else { return None };
        let error = namespace.failure()?;
        Some(format!("{}: the controller was given up ({error})", namespace.info().name))
    }
}

/// A disk, as its process looks at it.
trait Watched {
    /// Looks whether it is there, and has it follow the size of its device.
    fn look(&mut self) -> Result<(), Failure>;

    /// Who uses it, and would wait without this process instead of getting errors.
    /// `at_once`: without the time after which a program that only looks has closed it again.
    fn user(&self, at_once: bool) -> Option<InUse>;
}

/// Why a disk ends.
enum End {
    /// A signal asks for it.
    Asked,
    /// The controller was given up, and nobody uses the disk.
    GivenUp(Failure),
}

impl End {
    fn result(self) -> Result<(), Failure> {
        match self {
            Self::Asked => Ok(()),
            Self::GivenUp(failure) => Err(failure),
        }
    }
}

fn open_device(device: &Device) -> Result<SharedBdev, Failure> {
    match device {
        Device::Local(spec) => {
            raceline_bdev::open(spec, &Identity::of_this_machine()).map_err(Failure::runtime)
        }
        Device::Lun(url) => {
            let config = initiator::device_config(url, None)?;
            let lun = LunBdev::open(config).map_err(|error| initiator::failure(&error))?;
            Ok(Arc::new(lun))
        }
        Device::Refused(reason) => Err(Failure::usage(reason)),
    }
}

/// Serves the disk until a signal.
pub(crate) fn connect(args: &DiskArgs) -> Result<(), Failure> {
    limits::raise_file_descriptors();
    check(args)?;
    if args.dump_config {
        return namespace::dump(args);
    }
    let registry = Registry::of_this_user()?;
    if args.kind == DiskKind::Ublk {
        // Threads that start from here on are as a disk needs them.
        ublk::prepare(args)?;
    }
    log::begin_serving();
    let interrupt = Interrupt::catch_without_hangup().map_err(Failure::runtime)?;
    let (source, way) = Source::open(args)?;
    let ended = match args.kind {
        DiskKind::Nbd => serve_nbd(args, (&source, way), &registry, &interrupt),
        DiskKind::Ublk => ublk::serve(args, (&source, way), &registry, &interrupt),
        DiskKind::VhostUser => vhost::serve(args, (&source, way), &registry, &interrupt),
    };
    if let Source::Namespace(namespace, _) = &source {
        namespace.disconnect();
    }
    ended
}

fn check(args: &DiskArgs) -> Result<(), Failure> {
    let open_to_others = args.listen.filter(|address| !address.ip().is_loopback());
    if let Some(address) = open_to_others
        && !args.insecure
        && !args.tls.admits_only_known()
    {
        return Err(Failure::usage(format!(
            "--listen {address}: whoever reaches it could read and write the disk; let clients prove who they are by \
             --nbd-tls-psk or --nbd-tls-certificates, add --insecure if that is wanted, or choose an address of \
             127.0.0.0/8"
        )));
    }
    if args.kind != DiskKind::Nbd && args.tls.is_given() {
        return Err(Failure::usage("--nbd-tls-...: only a disk by --as nbd has TLS of its own"));
    }
    if args.tls.optional && args.tls.psk.is_none() && args.tls.certificates.is_none() {
        return Err(Failure::usage(
            "--nbd-tls-optional: it needs --nbd-tls-psk or --nbd-tls-certificates",
        ));
    }
    if args.bdev.is_some() && args.remote.queues.given().next().is_some() {
        return Err(Failure::usage(
            "-i, -W, -P and -Q are queues to a namespace; a device of this machine has as many as --cores",
        ));
    }
    if args.kind == DiskKind::VhostUser && args.listen.is_some() {
        return Err(Failure::usage(
            "--listen: a virtual machine shares its memory by --socket, not over TCP",
        ));
    }
    if args.max_connections == 0 {
        return Err(Failure::usage("--max-connections 0: nobody could use the disk"));
    }
    Ok(())
}

fn serve_nbd(
    args: &DiskArgs,
    (source, way): (&Source, Way),
    registry: &Registry,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    let device = source.device();
    let info = device.info();
    let export = Export {
        name: args.name.clone(),
        description: info.name.clone(),
        device,
        read_only: args.read_only,
    };
    let mut endpoints: Vec<Endpoint> =
        args.socket.clone().map(Endpoint::Unix).into_iter().collect();
    endpoints.extend(args.listen.map(Endpoint::Tcp));
    if endpoints.is_empty() {
        endpoints.push(Endpoint::Unix(default_socket(args, registry)));
    }
    let mut config = ServerConfig::new(vec![export], endpoints);
    config.cores = way.cores;
    config.mode = args.mode.into();
    config.backend = args.io.into();
    config.max_connections = args.max_connections;
    config.tls = tls::of(&args.tls)?;
    let server = Server::start(&config).map_err(|error| failure(&error))?;
    let listening = server.listening();
    let place = listening[0].to_string();
    let places = listening.iter().map(ToString::to_string).collect();
    let beside = (("nbd", way.transport), server.figures());
    let noted = note(args, (source, registry), beside, places);
    let uri = uri(&listening[0], config.tls.is_some());
    let uses = uses(&listening[0], config.tls.is_some(), &uri, (&args.name, info.block_size));
    let ready = Ready {
        ready: true,
        kind: "nbd",
        uri: &uri,
        device: &place,
        bytes: info.block_count * u64::from(info.block_size),
        block_size: info.block_size,
        read_only: args.read_only || info.read_only,
        recovered: None,
        zero_copy: None,
        rpc: noted.as_ref().and_then(Noted::socket_in_use),
        pid: std::process::id(),
    };
    let ended = print(&ready, &uses).and_then(|()| wait_with(source, interrupt, &server));
    server.stop();
    drop(noted);
    ended.and_then(End::result)
}

/// Notes the disk down for `list` and `disconnect`, and answers clients beside the note, until that is dropped. What cannot be noted
/// down is still a disk.
fn note(
    args: &DiskArgs,
    (source, registry): (&Source, &Registry),
    ((kind, transport), figures): ((&str, Option<Transport>), DiskFigures),
    places: Vec<String>,
) -> Option<Noted> {
    let entry = Entry {
        pid: std::process::id(),
        kind: kind.to_owned(),
        nqn: args.bdev.is_none().then(|| args.remote.connect.nqn.to_string()),
        transport: transport.map(|it| name_of(it).to_owned()),
        places,
    };
    let disk = ServedDisk {
        kind: entry.kind.clone(),
        places: entry.places.clone(),
        device: source.device(),
        namespace: match source {
            Source::Namespace(namespace, _) => Some((namespace.controller(), args.namespace)),
            Source::Device(_) => None,
        },
        read_only: args.read_only,
        figures,
    };
    let note = Note { entry, facts: disk.describe_without_figures() };
    let mut noted = registry.add(&note).inspect_err(|failure| tracing::warn!("{failure}")).ok()?;
    let control = DiskServer::start(&noted.socket(), disk, log::for_clients());
    noted.control = control.inspect_err(|error| tracing::warn!("{error}")).ok();
    Some(noted)
}

/// Tells people about the disk, and programs by a line of JSON; `uses` says how clients get at it.
fn print(ready: &Ready<'_>, uses: &str) -> Result<(), Failure> {
    let Ready { bytes, block_size, device, .. } = ready;
    let access = if ready.read_only { ", read only" } else { "" };
    let size = ByteSize(*bytes);
    shell::note(&format!("a disk of {size} in blocks of {block_size} bytes{access}: {uses}"));
    shell::note(&units::ends(device, units::unit_of(std::process::id()).as_deref()));
    let line = serde_json::to_string(ready).map_err(Failure::runtime)?;
    shell::print(format!("{line}\n").as_bytes())?;
    serve::tell(&[NotifyState::Ready]);
    Ok(())
}

impl Watched for &Server {
    /// Clients that connect learn the size that the device has then; NBD has no way to tell those that are connected.
    fn look(&mut self) -> Result<(), Failure> {
        match self.is_running() {
            true => Ok(()),
            false => Err(Failure::runtime("a core of the NBD server has ended; the log says why")),
        }
    }

    /// Clients lose their connections with the process, and their requests fail by that.
    fn user(&self, _at_once: bool) -> Option<InUse> {
        None
    }
}

/// Waits for a signal that requests the end, and looks at the disk once a second at least. The wait also ends when the controller
/// was given up and nobody uses the disk: a service manager starts the program again then. systemd learns that the process goes on,
/// why it stays without a controller, and when it begins to end.
fn wait_with(
    source: &Source,
    interrupt: &Interrupt,
    mut disk: impl Watched,
) -> Result<End, Failure> {
    let _sizes = Following::start(source.device())?;
    let (mut watchdog, mut loss) = (Watchdog::new(), Loss::default());
    while interrupt.wait(watchdog.interval()).is_none() {
        watchdog.look();
        match loss.judge(source.loss(), |at_once| disk.user(at_once)) {
            Verdict::GoesOn | Verdict::Stays(None) => {}
            Verdict::Stays(Some(said)) => {
                tracing::error!("{}", said.log);
                serve::tell(&[NotifyState::Status(&said.status)]);
            }
            Verdict::Ends(why) => return Ok(End::GivenUp(Failure::runtime(why))),
        }
        disk.look()?;
        source.look_at_secrets();
    }
    serve::tell(&[NotifyState::Stopping]);
    Ok(End::Asked)
}

/// `disk-NAME.sock` in the folder of this user, with the name of the subsystem and namespace, or that of this process.
fn default_socket(args: &DiskArgs, registry: &Registry) -> PathBuf {
    let name = match &args.bdev {
        None => format!("{}-{}", args.remote.connect.nqn, args.namespace),
        Some(_) => std::process::id().to_string(),
    };
    registry.dir().join(format!("disk-{}.sock", socket_name(&name)))
}

/// A name for a socket: its address has at most 107 bytes, and NQNs are longer. Of a long name the last words are left, and
/// a number that tells it from others with the same end.
fn socket_name(name: &str) -> String {
    let usual = |c: char| if c.is_ascii_alphanumeric() || "-.".contains(c) { c } else { '_' };
    let plain: String = name.chars().map(usual).collect();
    if plain.len() <= NAME_MAX {
        return plain;
    }
    let id = Identity::from_seed(b"").derive("socket", name.as_bytes()).simple().to_string();
    let id = &id[..8];
    let tail = &plain[plain.len() - (NAME_MAX - id.len() - 1)..];
    let words = tail.split_once(['-', '.', '_']).map_or(tail, |(_, words)| words);
    let tail = if words.is_empty() { tail } else { words };
    format!("{id}-{tail}")
}

/// How clients get at an NBD server.
fn uses(endpoint: &Endpoint, tls: bool, uri: &str, (name, block_size): (&str, u32)) -> String {
    let copy = format!("nbdcopy '{uri}' FILE copies it");
    // nbd-client does not ask for the block size, and takes 512 bytes for it.
    let block = if block_size == 512 { String::new() } else { format!(" -b {block_size}") };
    match endpoint {
        // The URI lacks the client's key or certificate, which only the client knows.
        _ if tls => format!("{uri}, for clients with a key or a certificate"),
        Endpoint::Unix(path) => {
            let path = path.display();
            format!(
                "{copy}; `nbd-client -unix {path} /dev/nbd0 -N {name}{block}` (root) makes it a block device"
            )
        }
        Endpoint::Tcp(address) => {
            let (ip, port) = (address.ip(), address.port());
            format!(
                "{copy}; `nbd-client {ip} {port} /dev/nbd0 -N {name}{block}` (root) makes it a block device"
            )
        }
    }
}

/// The URI of the NBD project. The client adds where its own key or certificate is.
fn uri(endpoint: &Endpoint, tls: bool) -> String {
    let scheme = if tls { "nbds" } else { "nbd" };
    match endpoint {
        Endpoint::Tcp(address) => format!("{scheme}://{address}"),
        Endpoint::Unix(path) => format!("{scheme}+unix:///?socket={}", path.display()),
    }
}

fn failure(error: &ServerError) -> Failure {
    match error {
        ServerError::Invalid(text) => Failure::usage(text),
        ServerError::Listen { endpoint: Endpoint::Tcp(address), source } => {
            let trouble = address_trouble(*address, source, Some("--listen"));
            Failure::runtime(format!("cannot listen on {address}: {trouble}"))
        }
        ServerError::Socket(error) => no_socket(error),
        error => Failure::runtime(error),
    }
}

/// The failure for a socket that cannot be made, with the options of `connect`. Who listens there may be this disk already.
fn no_socket(error: &SocketError) -> Failure {
    let (path, trouble) = match error {
        SocketError::InUse(path) => {
            let path = path.display();
            let trouble = format!(
                "another process listens there: if that is this disk, `raceline disconnect -d {path}` ends it; else choose \
                 another path with --socket"
            );
            (path, trouble)
        }
        SocketError::Refused { path, source } => {
            (path.display(), path_trouble(path, source, Some("--socket")))
        }
        error => return Failure::runtime(error),
    };
    Failure::runtime(format!("cannot listen on {path}: {trouble}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_have_uris() {
        let tcp = Endpoint::Tcp("127.0.0.1:10809".parse().unwrap());
        assert_eq!(uri(&tcp, false), "nbd://127.0.0.1:10809");
        assert_eq!(uri(&tcp, true), "nbds://127.0.0.1:10809");
        let unix = Endpoint::Unix("/run/x.sock".into());
        assert_eq!(uri(&unix, false), "nbd+unix:///?socket=/run/x.sock");
    }
    #[test]
    fn sockets_have_names_that_fit() {
        let nqn = "nqn.2026-01.io.raceline:disk";
        assert_eq!(socket_name(&format!("{nqn}-1")), "nqn.2026-01.io.raceline_disk-1");
        let long = |end: &str| {
            socket_name(&format!("nqn.2014-08.org.nvmexpress:uuid:{}-{end}", "ab-".repeat(60)))
        };
        let (one, two) = (long("1"), long("2"));
        assert!(one.len() <= NAME_MAX && one.ends_with("-ab--1") && one != two, "{one} {two}");
        // Names with the same end differ, and one without words is only cut.
        let other = socket_name(&format!("nqn.2026-01.io.other:{}-1", "ab-".repeat(60)));
        assert!(other.len() <= NAME_MAX && other != one && other[9..] == one[9..], "{other} {one}");
        assert_eq!(socket_name(&"a".repeat(200)).len(), NAME_MAX);
    }

    #[test]
    fn people_learn_how_to_use_the_disk() {
        let tcp = Endpoint::Tcp("127.0.0.1:10809".parse().unwrap());
        let text = uses(&tcp, false, "nbd://127.0.0.1:10809", ("disk", 512));
        assert!(text.contains("`nbd-client 127.0.0.1 10809 /dev/nbd0 -N disk`"), "{text}");
        let text = uses(&tcp, false, "nbd://127.0.0.1:10809", ("disk", 4096));
        assert!(text.contains("10809 /dev/nbd0 -N disk -b 4096`"), "{text}");
        let unix = Endpoint::Unix("/run/x.sock".into());
        let text = uses(&unix, false, "URI", ("disk", 512));
        assert!(text.contains("`nbd-client -unix /run/x.sock /dev/nbd0 -N disk`"), "{text}");
        let text = uses(&unix, false, "URI", ("disk", 4096));
        assert!(
            text.contains("`nbd-client -unix /run/x.sock /dev/nbd0 -N disk -b 4096`"),
            "{text}"
        );
        assert!(!uses(&tcp, true, "nbds://127.0.0.1:10809", ("disk", 512)).contains("nbd-client"));
    }
}
