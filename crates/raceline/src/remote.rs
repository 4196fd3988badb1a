//! The host's side of the verbs that talk to a target.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use raceline_auth::{IdentityVersion, PskIdentity, TlsKey};
use raceline_bdev::Identity;
use raceline_control::keyring::{KernelKey, WantedPsk};
use raceline_host::blocking::Host;
use raceline_host::multipath::DEFAULT_QUIESCE;
use raceline_host::{
    ControllerInfo, Credentials, DhchapSecret, HostConfig, HostError, MultipathConfig,
    NamespaceInfo, PathAddress, Transport,
};
use raceline_proto::host::discovery::DiscoveryLog;
use raceline_proto::nvme::{NamespaceId, Nqn};
use raceline_reactor::StreamProvider;
use raceline_tls::{ClientPsk, Offload, TlsConnector};

use crate::cli::host::{AddressArgs, ConnectArgs};
use crate::cli::paths::PathArgs;
use crate::cli::values;
use crate::failure::Failure;
use crate::initiator::RemoteUnit;
use crate::table::printable;
use crate::{interfaces, names, naming, secrets, shell};

/// The keyring of the kernel in which nvme-cli keeps keys, as its file and keyctl(1) write it.
pub(crate) const KEYRINGS: [&str; 2] = [".nvme", "%:.nvme"];
/// Why another keyring is passed over.
pub(crate) const ALL_KEYRINGS: &str = "keys are looked for in all keyrings that this user can see; name a key by --tls-psk kernel:SERIAL if another \
     one is found (keyctl show lists them)";

/// Why a secret of a controller alone is of no use.
const HOST_FIRST: &str =
    "a controller proves itself to a host that proves itself first: add --dhchap-secret FILE";

/// Time limit for each of several addresses of a name, and for the first of several ports.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// What blocks are read from and written to.
pub(crate) enum RemoteDisk {
    /// A namespace of a controller.
    Namespace(Remote, NamespaceInfo),
    /// A logical unit of an iSCSI target.
    Unit(Box<RemoteUnit>, NamespaceInfo),
}

impl RemoteDisk {
    /// Connects to what the command line names: with `--iscsi` the namespace has no meaning.
    pub(crate) fn connect(args: &ConnectArgs, nsid: NamespaceId) -> Result<Self, Failure> {
        if args.address.iscsi.iscsi {
            let unit = RemoteUnit::connect(args)?;
            let info = unit.namespace();
            return Ok(Self::Unit(Box::new(unit), info));
        }
        let remote = Remote::connect(args)?;
        let namespace = remote.namespace(nsid)?;
        Ok(Self::Namespace(remote, namespace))
    }

    /// Its size and its blocks.
    pub(crate) fn info(&self) -> &NamespaceInfo {
        let (Self::Namespace(_, info) | Self::Unit(_, info)) = self;
        info
    }

    /// What people call it.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Namespace(_, info) => format!("namespace {}", info.nsid),
            Self::Unit(unit, _) => format!("logical unit {}", unit.lun()),
        }
    }

    /// Reads blocks from `slba` on; `data` is a whole number of them.
    pub(crate) fn read(&self, slba: u64, data: &mut [u8]) -> Result<(), Failure> {
        match self {
            Self::Namespace(remote, info) => remote.read(info.nsid, slba, data),
            Self::Unit(unit, _) => unit.read(slba, data),
        }
    }

    /// Writes blocks from `slba` on; `data` is a whole number of them.
    pub(crate) fn write(&self, slba: u64, data: &[u8]) -> Result<(), Failure> {
        match self {
            Self::Namespace(remote, info) => remote.write(info.nsid, slba, data),
            Self::Unit(unit, _) => unit.write(slba, data),
        }
    }

    /// Earlier writes are on stable media when this returns.
    pub(crate) fn flush(&self) -> Result<(), Failure> {
        match self {
            Self::Namespace(remote, info) => remote.flush(info.nsid),
            Self::Unit(unit, _) => unit.flush(),
        }
    }

    /// Ends the connection in order.
    pub(crate) fn disconnect(self) {
        match self {
            Self::Namespace(remote, _) => remote.disconnect(),
            Self::Unit(unit, _) => unit.disconnect(),
        }
    }
}

/// A connected controller.
pub(crate) struct Remote {
    host: Host,
}

impl Remote {
    /// Connects, and brings the controller up, with one I/O queue.
    pub(crate) fn connect(args: &ConnectArgs) -> Result<Self, Failure> {
        let host = Host::connect(config(args)?).map_err(|error| failure(&error))?;
        Ok(Self { host })
    }

    /// The same without I/O queues.
    pub(crate) fn connect_admin(args: &ConnectArgs) -> Result<Self, Failure> {
        let config = HostConfig { io_queues: 0, ..config(args)? };
        let host = Host::connect(config).map_err(|error| failure(&error))?;
        Ok(Self { host })
    }

    /// The controller's Identify data.
    pub(crate) fn controller(&self) -> Arc<ControllerInfo> {
        self.host.controller()
    }

    /// The controller's active namespaces.
    pub(crate) fn namespaces(&self) -> Arc<[NamespaceInfo]> {
        self.host.namespaces()
    }

    /// One of the active namespaces.
    pub(crate) fn namespace(&self, nsid: NamespaceId) -> Result<NamespaceInfo, Failure> {
        self.host.namespace(nsid).ok_or_else(|| {
            let namespaces = self.namespaces();
            let known: Vec<String> = namespaces.iter().map(|ns| ns.nsid.to_string()).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            Failure::usage(format!("there is no namespace {nsid}; the subsystem has {known}"))
        })
    }

    /// Reads blocks from `slba` on; `data` is a whole number of them.
    pub(crate) fn read(
        &self,
        nsid: NamespaceId,
        slba: u64,
        data: &mut [u8],
    ) -> Result<(), Failure> {
        self.host.read(nsid, slba, data).map_err(|error| failure(&error))
    }

    /// Writes blocks from `slba` on; `data` is a whole number of them.
    pub(crate) fn write(&self, nsid: NamespaceId, slba: u64, data: &[u8]) -> Result<(), Failure> {
        self.host.write(nsid, slba, data, false).map_err(|error| failure(&error))
    }

    /// Flushes the namespace: earlier writes are on stable media when this returns.
    pub(crate) fn flush(&self, nsid: NamespaceId) -> Result<(), Failure> {
        self.host.flush(nsid).map_err(|error| failure(&error))
    }

    /// Shuts the controller down in order.
    pub(crate) fn disconnect(self) {
        self.host.disconnect();
    }
}

/// Reads the discovery log.
pub(crate) fn discover(args: &AddressArgs, has_port: bool) -> Result<DiscoveryLog, Failure> {
    let config = address_config(args, Nqn::discovery())?;
    // Over RDMA, nvme-cli asks at 4420 as well.
    if has_port || config.transport == Transport::Rdma {
        return discovery_log(config);
    }
    discovery_log_at_any_port(&config).map(|(_, log)| log)
}

/// Where discovery controllers listen over TCP: at the port of their own (nvme-cli takes it, too), or where the subsystems
/// are, as with most of our targets.
const DISCOVERY_PORTS: [u16; 2] = [8009, values::DEFAULT_PORT];

/// Reads the discovery log where nobody has named a port: at the first one where somebody listens. Gives the configuration
/// with that port. All else is as in `config`, because a secret that came through a pipe can be read once only.
pub(crate) fn discovery_log_at_any_port(
    config: &HostConfig,
) -> Result<(HostConfig, DiscoveryLog), Failure> {
    let at = |port| {
        let mut config = config.clone();
        config.address.set_port(port);
        config
    };
    first_discovery_log(DISCOVERY_PORTS.map(at))
}

/// The same at the first of these addresses where somebody listens. A packet filter may leave the connection to the first
/// one without an answer, so that has a short time limit.
fn first_discovery_log(configs: [HostConfig; 2]) -> Result<(HostConfig, DiscoveryLog), Failure> {
    let mut nobody = Vec::new();
    for (index, config) in configs.into_iter().enumerate() {
        let mut probe = config.clone();
        let limit = probe.tcp_connect_timeout.unwrap_or(probe.connect_timeout);
        let limit = if index == 0 { limit.min(PROBE_TIMEOUT) } else { limit };
        probe.tcp_connect_timeout = Some(limit);
        match read_log(probe) {
            Ok(log) => return Ok((config, log)),
            Err(error) if error.is_no_connection() => {
                let why = match &error {
                    HostError::Tcp(_, why) => why.to_string(),
                    _ => format!("no answer within {} s", limit.as_secs_f64()),
                };
                nobody.push(format!("{} ({why})", config.address));
            }
            Err(error) => return Err(failure(&error)),
        }
    }
    let nobody = nobody.join(" and ");
    Err(Failure::connect(format!(
        "no discovery controller answers at {nobody}: name its port with -s"
    )))
}

/// Reads the discovery log of a discovery controller.
pub(crate) fn discovery_log(config: HostConfig) -> Result<DiscoveryLog, Failure> {
    read_log(config).map_err(|error| failure(&error))
}

fn read_log(config: HostConfig) -> Result<DiscoveryLog, HostError> {
    let host = Host::connect(config)?;
    let log = host.discover();
    host.disconnect();
    log
}

/// The configuration of the host library for a command line.
pub(crate) fn config(args: &ConnectArgs) -> Result<HostConfig, Failure> {
    let mut config = address_config(&args.address, args.nqn.clone())?;
    config.header_digest = args.header_digest;
    config.data_digest = args.data_digest;
    set_paths(&mut config, &args.paths)?;
    Ok(config)
}

/// Secrets that a file of connections has in it.
#[derive(Clone, Default)]
pub(crate) struct Secrets {
    /// With which this host proves itself.
    pub(crate) host: Option<DhchapSecret>,
    /// With which the controller has to prove itself.
    pub(crate) controller: Option<DhchapSecret>,
    /// The key for TLS.
    pub(crate) tls: Option<TlsKey>,
    /// An authentication makes the key for TLS.
    pub(crate) concat: bool,
}

/// The same for a connection of a file; its secrets take the place of those of the environment.
pub(crate) fn config_with(args: &ConnectArgs, secrets: &Secrets) -> Result<HostConfig, Failure> {
    let mut args = args.clone();
    if secrets.tls.is_some() && args.address.tls_psk.as_deref() == Some(Path::new("kernel:")) {
        // The key of the file takes its place.
        args.address.tls_psk = None;
    }
    let mut config = config(&args)?;
    if let Some(secret) = secrets.host.clone() {
        let algorithms = args.address.algorithms.algorithms();
        let controller_secret = secrets.controller.clone();
        let credentials = Credentials { secret, controller_secret, algorithms };
        if secrets.concat {
            check_concatenation(Some(&credentials))?;
            config.concatenator = Some(raceline_tls::concatenator());
        }
        config.credentials.set(Some(Arc::new(credentials)));
    } else if secrets.controller.is_some() {
        return Err(Failure::usage(HOST_FIRST));
    }
    if let Some(key) = secrets.tls.clone() {
        let key = key.with_derivation(secrets::derivation(args.address.tls_compat));
        let identity = identity(&args.address, &config.hostnqn, &config.subnqn)?;
        let wanted = wanted(&args.address, identity.as_ref());
        let psk = ClientPsk::new(&key, wanted.version(), &config.hostnqn, &config.subnqn);
        let psk = psk.map_err(|error| Failure::usage(format!("tls_key: {error}")))?;
        check_identity(&psk, wanted)?;
        config.streams = Some(Arc::new(TlsConnector::new(psk)));
    }
    Ok(config)
}

/// What the options say of several paths.
fn set_paths(config: &mut HostConfig, args: &PathArgs) -> Result<(), Failure> {
    if let Some(delay) = args.reconnect_delay {
        (config.backoff.first, config.backoff.longest) = (delay, delay);
    }
    if !args.wants_multipath() {
        return Ok(());
    }
    let fast = args.fast_io_fail_tmo.and_then(|seconds| u64::try_from(seconds).ok());
    let multipath = MultipathConfig {
        failback: !args.no_failback,
        fast_io_fail: fast.map(Duration::from_secs),
        default_quiesce: args.quiesce.unwrap_or(DEFAULT_QUIESCE),
        ..MultipathConfig::with_policy(args.policy.unwrap_or_default())
    };
    if let (Some(fast), Some(loss)) = (multipath.fast_io_fail, config.backoff.give_up_after)
        && fast > loss
    {
        return Err(Failure::usage(format!(
            "--fast-io-fail-tmo {} comes after --ctrl-loss-tmo {}, when all commands fail anyway: make it smaller",
            fast.as_secs(),
            loss.as_secs()
        )));
    }
    config.multipath = Some(multipath);
    for path in &args.path {
        let address = resolve(&path.address, path.port)?;
        let path = PathAddress {
            address,
            source: path.source.or(config.source),
            transport: path.transport.unwrap_or(config.transport),
        };
        let first = PathAddress {
            address: config.address,
            source: config.source,
            transport: config.transport,
        };
        if path == first || config.more_paths.contains(&path) {
            return Err(Failure::usage(format!("--path {address}: the path is there twice")));
        }
        config.more_paths.push(path);
    }
    Ok(())
}

/// An error of the host library as a failure of the verb: a connection that ends or cannot be made has an
/// exit code of its own.
pub(crate) fn failure(error: &HostError) -> Failure {
    match error {
        HostError::Command(_)
        | HostError::Scan(_)
        | HostError::Discovery(_)
        | HostError::Reactor(_) => Failure::runtime(error),
        HostError::Invalid(message) => Failure::usage(message),
        _ => Failure::connect(error),
    }
}

fn address_config(args: &AddressArgs, subnqn: Nqn) -> Result<HostConfig, Failure> {
    let address = resolve(&args.address, args.port)?;
    let identity = Identity::of_this_machine();
    let (hostnqn, hostid) = naming::host(&identity, args.hostnqn.as_ref(), args.hostid);
    let streams = if args.concat { None } else { tls(args, &hostnqn, &subnqn)? };
    let mut config = HostConfig { streams, ..HostConfig::new(address, subnqn, hostnqn, hostid) };
    config.transport = args.transport.unwrap_or_default();
    set_link(&mut config, args)?;
    if let Some(priority) = args.priority {
        raceline_reactor::socket::check_priority(priority).map_err(Failure::runtime)?;
        config.priority = Some(priority);
    }
    let credentials = credentials(args)?;
    if args.concat {
        check_concatenation(credentials.as_ref())?;
        config.concatenator = Some(raceline_tls::concatenator());
    }
    config.credentials.set(credentials.map(Arc::new));
    // -1, the only negative value, means no limit.
    config.backoff.give_up_after = u64::try_from(args.ctrl_loss_tmo).ok().map(Duration::from_secs);
    config.kato_ms = u32::try_from(args.keep_alive.as_millis())
        .map_err(|_| Failure::usage("-k is too long: the most is 49 days"))?;
    Ok(config)
}

/// From where the connections are made, by which interface, and with which type of service.
fn set_link(config: &mut HostConfig, args: &AddressArgs) -> Result<(), Failure> {
    config.source = args.source;
    if config.transport == Transport::Tcp {
        config.tos = args.tos.unwrap_or_default();
        config.interface = args.interface;
        return args.interface.map_or(Ok(()), interfaces::check);
    }
    if args.tos.is_some_and(|tos| tos != 0) {
        return Err(Failure::usage(
            "--tos: it is for TCP; the class of RDMA's traffic is that of the device, as `cma_roce_tos` sets it",
        ));
    }
    // An RDMA device has no socket that could be bound to it: the address says which device it is.
    if let (Some(interface), None) = (args.interface, args.source) {
        config.source = Some(interfaces::address_of(interface, config.address)?);
    }
    Ok(())
}

/// A key that an authentication makes is worth as much as the authentication.
fn check_concatenation(credentials: Option<&Credentials>) -> Result<(), Failure> {
    if credentials.is_some_and(|credentials| credentials.controller_secret.is_some()) {
        return Ok(());
    }
    Err(Failure::usage(
        "--concat needs --dhchap-secret and --dhchap-ctrl-secret: whoever is on the way could pose as a controller that \
         does not prove itself, and would know the key",
    ))
}

/// The secrets of `-S` and `-C`, each if it was given.
pub(crate) fn given_secrets(
    args: &AddressArgs,
) -> Result<(Option<DhchapSecret>, Option<DhchapSecret>), Failure> {
    let read = |option, file: Option<&std::path::Path>, variable| match file {
        Some(file) => secrets::secret(option, Some(file), variable),
        None => Ok(None),
    };
    let host = read("--dhchap-secret", args.dhchap_secret.as_deref(), "RACELINE_DHCHAP_SECRET")?;
    let controller = read(
        "--dhchap-ctrl-secret",
        args.dhchap_ctrl_secret.as_deref(),
        "RACELINE_DHCHAP_CTRL_SECRET",
    )?;
    Ok((host, controller))
}

/// The secrets with which this host authenticates; `None`: it has none.
pub(crate) fn credentials(args: &AddressArgs) -> Result<Option<Credentials>, Failure> {
    let own = args.dhchap_secret.as_deref();
    let secret = secrets::secret("--dhchap-secret", own, "RACELINE_DHCHAP_SECRET")?;
    let theirs = args.dhchap_ctrl_secret.as_deref();
    let controller_secret =
        secrets::secret("--dhchap-ctrl-secret", theirs, "RACELINE_DHCHAP_CTRL_SECRET")?;
    match (secret, controller_secret) {
        (Some(secret), controller_secret) => {
            let algorithms = args.algorithms.algorithms();
            Ok(Some(Credentials { secret, controller_secret, algorithms }))
        }
        (None, None) => Ok(None),
        (None, Some(_)) => Err(Failure::usage(HOST_FIRST)),
    }
}

/// TLS with the key of this host for the subsystem; `None`: it has no key.
fn tls(
    args: &AddressArgs,
    host: &Nqn,
    subsystem: &Nqn,
) -> Result<Option<Arc<dyn StreamProvider>>, Failure> {
    let Some(psk) = psk(args, host, subsystem)? else { return Ok(None) };
    let offload = Offload::decide(args.ktls).map_err(Failure::runtime)?;
    Ok(Some(Arc::new(TlsConnector::new(psk).with_offload(offload))))
}

/// The key that this host offers to the subsystem; `None`: it has none.
fn psk(args: &AddressArgs, host: &Nqn, subsystem: &Nqn) -> Result<Option<ClientPsk>, Failure> {
    let unusable = |error: &dyn std::fmt::Display| Failure::usage(format!("--tls-psk: {error}"));
    let derivation = secrets::derivation(args.tls_compat);
    let identity = identity(args, host, subsystem)?;
    let wanted = wanted(args, identity.as_ref());
    if args.keyring.as_ref().is_some_and(|keyring| !KEYRINGS.contains(&keyring.as_str())) {
        shell::note(&format!("--keyring is passed over: {ALL_KEYRINGS}"));
    }
    let given = args.tls_psk.as_deref();
    if let Some(key) = given.and_then(|given| KernelKey::parse(&given.to_string_lossy())) {
        let psk = key.client_psk((host, subsystem), wanted, derivation);
        let psk = psk.map_err(|error| unusable(&error))?;
        raceline_sandbox::hide_memory().map_err(Failure::runtime)?;
        return Ok(Some(psk));
    }
    let Some(key) = secrets::secret::<TlsKey>("--tls-psk", given, "RACELINE_TLS_PSK")? else {
        return Ok(None);
    };
    let key = key.with_derivation(derivation);
    let psk = ClientPsk::new(&key, wanted.version(), host, subsystem);
    let psk = psk.map_err(|error| unusable(&error))?;
    check_identity(&psk, wanted)?;
    Ok(Some(psk))
}

/// A key in a file has to be the one that is named.
fn check_identity(psk: &ClientPsk, wanted: WantedPsk<'_>) -> Result<(), Failure> {
    match wanted.instead_of(&psk.identity) {
        None => Ok(()),
        Some(wanted) => Err(Failure::usage(format!(
            "--tls-key-identity: the key is offered as `{}`, and not as `{}`",
            printable(psk.identity.as_str()),
            printable(wanted.as_str())
        ))),
    }
}

/// The identity of `--tls-key-identity`.
fn identity(
    args: &AddressArgs,
    host: &Nqn,
    subsystem: &Nqn,
) -> Result<Option<PskIdentity>, Failure> {
    let Some(identity) = &args.tls_key_identity else { return Ok(None) };
    let identity = parse_identity(identity, (host.as_str(), subsystem.as_str()));
    identity.map(Some).map_err(|what| Failure::usage(format!("--tls-key-identity: {what}")))
}

/// Which key is to be offered.
fn wanted<'a>(args: &AddressArgs, identity: Option<&'a PskIdentity>) -> WantedPsk<'a> {
    match (identity, args.tls_identity) {
        (Some(identity), _) => WantedPsk::Identity(identity),
        (None, 0) => WantedPsk::Best(IdentityVersion::Zero),
        (None, _) => WantedPsk::Best(IdentityVersion::One),
    }
}

/// An identity as nvme-cli names it, which has to be for these names of host and subsystem.
pub(crate) fn parse_identity(
    identity: &str,
    (host, subsystem): (&str, &str),
) -> Result<PskIdentity, String> {
    let Some(parsed) = PskIdentity::parse(identity) else {
        return Err("it is no identity of a key for TLS (NVMe1R01 HOSTNQN SUBSYSNQN DIGEST), as nvme check-tls-key \
                    prints it"
            .to_owned());
    };
    let mut names = identity.split(' ').skip(1);
    if (names.next(), names.next()) != (Some(host), Some(subsystem)) {
        return Err(format!(
            "it is for other names: `{}`, and not for this host and {}",
            printable(identity),
            printable(subsystem)
        ));
    }
    Ok(parsed)
}

/// The address of a target. If a name has several, the first that answers is taken.
pub(crate) fn resolve(name: &str, port: u16) -> Result<SocketAddr, Failure> {
    let bare = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(name);
    let found = (bare, port).to_socket_addrs();
    let unknown = |why: &dyn std::fmt::Display| {
        let name = name.escape_default();
        Failure::connect(format!("cannot find the address of {name}: {why}{}", names::HINT))
    };
    let addresses: Vec<SocketAddr> = found.map_err(|error| unknown(&error))?.collect();
    match addresses[..] {
        [] => Err(unknown(&"the name has none")),
        [only] => Ok(only),
        [first, ..] => {
            let answers =
                |address: &&SocketAddr| TcpStream::connect_timeout(address, PROBE_TIMEOUT).is_ok();
            Ok(addresses.iter().find(answers).copied().unwrap_or(first))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use raceline_auth::Hash;
    use raceline_proto::nvme::Status;

    use super::*;

    #[test]
    fn addresses_and_names() {
        assert_eq!(resolve("192.0.2.1", 7).unwrap().to_string(), "192.0.2.1:7");
        assert_eq!(resolve("[::1]", 7).unwrap().to_string(), "[::1]:7");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(resolve("localhost", port).unwrap().ip().is_loopback());
        let failure = resolve("no-such-name.invalid", 1).unwrap_err();
        assert_eq!(failure.code, 3);
        assert!(failure.message.starts_with("cannot find the address of no-such-name.invalid"));
    }

    #[test]
    fn an_identity_is_for_its_names() {
        let digest = "VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ";
        let names = ("nqn.2014-08.org.example:h", "nqn.2026-01.io.raceline:x");
        let identity = |start: &str| format!("{start} {} {} {digest}", names.0, names.1);
        for (form, hash) in [("NVMe1R01", Hash::Sha256), ("NVMe1R02", Hash::Sha384)] {
            let parsed = parse_identity(&identity(form), names).unwrap();
            assert_eq!((parsed.version(), parsed.hash()), (IdentityVersion::One, hash));
        }
        for other in
            [("nqn.2014-08.org.example:i", names.1), (names.0, "nqn.2026-01.io.raceline:y")]
        {
            let error = parse_identity(&identity("NVMe1R02"), other).unwrap_err();
            assert!(error.contains("it is for other names"), "{error}");
        }
        let error = parse_identity(&identity("NVMe1X02"), names).unwrap_err();
        assert!(error.contains("it is no identity"), "{error}");
    }

    /// Listens with no room for connections, so that one more gets no answer, as behind a packet filter.
    fn silent() -> (TcpListener, Vec<TcpStream>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let address = listener.local_addr().unwrap();
        let connect = || TcpStream::connect_timeout(&address, Duration::from_millis(200)).ok();
        let taken: Vec<TcpStream> = std::iter::from_fn(connect).take(16).collect();
        assert!(taken.len() < 16, "the listener still has room");
        (listener, taken)
    }

    #[test]
    fn a_port_without_an_answer_does_not_keep_the_next_one_from_being_asked() {
        let (silent, _taken) = silent();
        let silent = silent.local_addr().unwrap();
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let limit = Duration::from_millis(300);
        let host = Nqn::new("nqn.2014-08.org.example:h").unwrap();
        let ask = |first: SocketAddr, second: SocketAddr, limit: Duration| {
            let at = |address| {
                let hostid = raceline_proto::nvme::HostId([1; 16]);
                let config = HostConfig::new(address, Nqn::discovery(), host.clone(), hostid);
                HostConfig { connect_timeout: limit, ..config }
            };
            first_discovery_log([first, second].map(at)).unwrap_err()
        };
        let both = |failure: &Failure| {
            assert_eq!(failure.code, 3);
            for part in [silent.to_string(), closed.to_string(), "no answer within".to_owned()] {
                assert!(failure.message.contains(&part), "{part}: {}", failure.message);
            }
        };
        // The time for the first port is short, and not that of a connection.
        let began = std::time::Instant::now();
        let failure = ask(silent, closed, Duration::from_secs(600));
        both(&failure);
        assert!(failure.message.contains("no answer within 2 s"), "{}", failure.message);
        assert!(began.elapsed() < Duration::from_secs(300), "{:?}", began.elapsed());
        both(&ask(closed, silent, limit));
    }

    #[test]
    fn what_keeps_a_connection_from_being_made_is_code_3() {
        let address = "192.0.2.1:4420".parse().unwrap();
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let host = Status::CONNECT_INVALID_HOST;
        for (error, code) in [
            (HostError::Tcp(address, Arc::new(refused)), 3),
            (HostError::ConnectRefused { address, status: host, offset: 512, in_data: true }, 3),
            (HostError::ClosedByPeer(address), 3),
            (HostError::Invalid("x".to_owned()), 2),
        ] {
            assert_eq!(failure(&error).code, code, "{error}");
        }
    }
}
