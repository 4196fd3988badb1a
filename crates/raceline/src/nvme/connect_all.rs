//! `raceline connect-all`: a daemon connects to every subsystem that discovery controllers offer, and to those of a file.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use raceline_host::{HostConfig, Transport};
use raceline_proto::host::discovery::{DiscoveryLog, DiscoveryRecord};
use raceline_proto::nvme::Nqn;
use serde_json::{Value, json};

use super::device::{overrides, plain};
use super::files::{self, Connection, Overrides};
use super::unopened::{Unopened, unopened};
use super::{refuse_binary, unused};
use crate::cli::nvme::{ConnectAllArgs, Given, NvmeFormat};
use crate::failure::Failure;
use crate::manage::{self, Daemon};
use crate::table::printable;
use crate::{interfaces, remote, shell};

/// A daemon may need long for a controller that does not answer.
const DAEMON_TIMEOUT: Duration = Duration::from_secs(120);
/// TRTYPE of TCP and of RDMA in discovery records.
const TCP: u8 = 3;
const RDMA: u8 = 1;
/// SUBTYPE of other discovery services, and of subsystems with namespaces.
const REFERRAL: u8 = 1;
const NVME_SUBSYSTEM: u8 = 2;
/// More discovery services that name each other are a mistake.
const MOST_SERVICES: usize = 64;
/// The number of queues that controllers of a daemon have.
const IO_QUEUES: &str = "nr_io_queues";
/// Seconds between two attempts, where lost connections are tried again.
const RECONNECT_DELAY_S: i64 = 2;

/// Where a controller is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// TCP or RDMA.
    pub(crate) transport: &'static str,
    pub(crate) address: IpAddr,
    pub(crate) port: u16,
    pub(crate) subnqn: String,
}

/// What became of a place.
struct Outcome {
    place: Place,
    /// The controller of the daemon.
    name: String,
    is_new: bool,
    /// Its namespaces that are no devices.
    unopened: Vec<Unopened>,
}

impl Outcome {
    fn new(place: Place, name: String, is_new: bool) -> Self {
        Self { place, name, is_new, unopened: Vec::new() }
    }
}

/// Runs the verb.
pub(crate) fn run(args: &ConnectAllArgs) -> Result<(), Failure> {
    refuse_binary(&args.device, "connect-all")?;
    if args.device.connect.address.iscsi.iscsi {
        return Err(Failure::usage(
            "this verb is for NVMe: bdev_iscsi_create makes disks of iSCSI targets",
        ));
    }
    if args.device.named.device.is_some() {
        let text = "connect-all takes no DEVICE: say where to ask with -a ADDRESS or --config FILE";
        return Err(Failure::usage(text));
    }
    unused::refuse(args)?;
    let mut connections = sources(args)?;
    for connection in &mut connections {
        let queues = &mut connection.queues;
        queues.nr_io_queues = args.queues.nr_io_queues.or(queues.nr_io_queues);
    }
    let mut daemon = manage::connect(args.device.named.socket.as_deref(), DAEMON_TIMEOUT)?;
    let has_host_id = args.device.given.has("hostid");
    let (known, done) = (Vec::new(), Vec::new());
    let mut run = Run { daemon: &mut daemon, known, done, last: None, has_host_id };
    run.read_known()?;
    if args.persistent {
        run.follow(&connections)?;
    } else {
        run.connect(connections);
    }
    run.look_for_unopened(args.persistent)?;
    let Run { done, last, .. } = run;
    match last {
        Some(failure) if done.is_empty() => return Err(failure),
        _ => report(args, &done)?,
    }
    // What was done is said; what was not has the last word.
    last.map_or(Ok(()), Err)
}

/// The discovery controllers, and the subsystems that a file names itself.
fn sources(args: &ConnectAllArgs) -> Result<Vec<Connection>, Failure> {
    if args.device.has_address {
        let mut service = plain(&args.device)?;
        if !args.device.has_nqn {
            service.connect.nqn = Nqn::discovery();
        }
        service.is_discovery = true;
        // Over RDMA, nvme-cli asks at 4420 as well.
        let is_tcp = service.connect.address.transport != Some(Transport::Rdma);
        service.has_any_port = is_tcp && !args.device.given.has("port");
        return Ok(vec![service]);
    }
    if args.device.has_nqn {
        return Err(Failure::usage("-n names a discovery controller: -a says where it is"));
    }
    let over = Overrides { are_names: true, ..overrides(&args.device) };
    match &args.device.named.config {
        Some(path) => files::connections(path, over),
        None => files::known_connections(over),
    }
}

/// The controllers that the daemon has: name and path.
type Known = Vec<(String, Place)>;

struct Run<'a> {
    daemon: &'a mut Daemon,
    known: Known,
    done: Vec<Outcome>,
    last: Option<Failure>,
    /// Whether the command line names the identifier of this host.
    has_host_id: bool,
}

impl Run<'_> {
    fn read_known(&mut self) -> Result<(), Failure> {
        let controllers = self.daemon.list("bdev_nvme_get_controllers", Value::Null)?;
        self.known = controllers.iter().flat_map(paths).collect();
        Ok(())
    }

    /// Keeps what failed, for the end, and says what failed before.
    fn failed(&mut self, what: &str, failure: Failure) {
        if let Some(before) = self.last.take() {
            shell::note(&before.message);
        }
        let message = format!("{what}: {}", failure.message);
        self.last = Some(Failure { message, ..failure });
    }

    /// Asks every discovery controller, and those that they name, and connects to what they offer. What fails keeps nothing
    /// else from being connected.
    fn connect(&mut self, connections: Vec<Connection>) {
        let mut queue: VecDeque<Connection> = connections.into();
        let mut asked: Vec<SocketAddr> = Vec::new();
        let mut too_many = false;
        while let Some(connection) = queue.pop_front() {
            let shown = connection.shown();
            let config = match connection.config() {
                Ok(config) => config,
                Err(failure) => {
                    self.failed(&shown, failure);
                    continue;
                }
            };
            unused::note(&connection);
            if let Err(failure) = unused::check_host_id(&connection, &config, self.has_host_id) {
                self.failed(&shown, failure);
                continue;
            }
            if !connection.is_discovery {
                let place = place_of(&config);
                self.attach(&connection, &config, place);
                continue;
            }
            if asked.contains(&config.address) {
                continue;
            }
            if asked.len() == MOST_SERVICES {
                // Said once: a service may name thousands.
                if !std::mem::replace(&mut too_many, true) {
                    let text = format!(
                        "it is not asked: more than {MOST_SERVICES} discovery services name each other"
                    );
                    self.failed(&shown, Failure::usage(text));
                }
                continue;
            }
            if !connection.has_any_port {
                asked.push(config.address);
            }
            match ask(&connection, config) {
                Ok((connection, config, log)) => {
                    asked.push(config.address);
                    for record in &log.records {
                        self.record(&connection, &config, record, &mut queue);
                    }
                }
                Err(failure) => self.failed(&shown, failure),
            }
        }
    }

    /// A record is a subsystem to connect to, or another service to ask.
    fn record(
        &mut self,
        service: &Connection,
        config: &HostConfig,
        record: &DiscoveryRecord,
        queue: &mut VecDeque<Connection>,
    ) {
        let transport = match record.trtype {
            TCP => "TCP",
            RDMA => "RDMA",
            _ => return,
        };
        if record.rdma.is_some_and(|rdma| !rdma.is_usable()) {
            let (address, port) = (printable(&record.traddr), printable(&record.trsvcid));
            let what = "its RDMA connections are not reliable ones by RDMA_CM";
            shell::note(&format!("{address}:{port} is passed over: {what}"));
            return;
        }
        let place = match (record.traddr.parse(), record.trsvcid.parse()) {
            (Ok(address), Ok(port)) => {
                Place { transport, address, port, subnqn: record.subnqn.clone() }
            }
            _ => {
                let (address, port) = (printable(&record.traddr), printable(&record.trsvcid));
                shell::note(&format!("{address}:{port} is passed over: it is no address and port"));
                return;
            }
        };
        match record.subtype {
            NVME_SUBSYSTEM => self.attach(service, config, place),
            REFERRAL => {
                let mut other = service.clone();
                other.connect.address.address = place.address.to_string();
                other.connect.address.port = place.port;
                other.connect.address.transport =
                    Some(if transport == "RDMA" { Transport::Rdma } else { Transport::Tcp });
                (other.given, other.has_any_port) = (Given::default(), false);
                other.connect.nqn = Nqn::new(&place.subnqn).unwrap_or_else(|_| Nqn::discovery());
                queue.push_back(other);
            }
            _ => {}
        }
    }

    /// Has the daemon connect, unless it is connected.
    fn attach(&mut self, connection: &Connection, config: &HostConfig, place: Place) {
        if let Some((name, _)) = self.known.iter().find(|(_, known)| *known == place) {
            let name = name.clone();
            if !self.done.iter().any(|done| done.place == place) {
                self.done.push(Outcome::new(place, name, false));
            }
            return;
        }
        let shown = format!(
            "{} at {}",
            printable(&place.subnqn),
            SocketAddr::new(place.address, place.port)
        );
        // Another way to a subsystem is a path of its controller.
        let of_subsystem = self.known.iter().find(|(_, known)| known.subnqn == place.subnqn);
        let name = of_subsystem.map_or_else(|| self.free_name("Nvme"), |(name, _)| name.clone());
        let attached = parameters(connection, config, &place, &name)
            .and_then(|params| self.daemon.call("bdev_nvme_attach_controller", params));
        match attached {
            Ok(_) => {
                self.known.push((name.clone(), place.clone()));
                self.done.push(Outcome::new(place, name, true));
            }
            Err(failure) => self.failed(&shown, failure),
        }
    }

    /// Finds namespaces of what is connected that have become no devices: each is a failure, though the rest is done.
    fn look_for_unopened(&mut self, is_persistent: bool) -> Result<(), Failure> {
        let controllers = self.daemon.list("bdev_nvme_get_controllers", Value::Null)?;
        for found in controllers.iter().flat_map(unopened) {
            // A followed service names its controllers after itself.
            let is_its = |done: &&mut Outcome| match is_persistent {
                true => found.controller.starts_with(&done.name),
                false => found.controller == done.name,
            };
            let Some(done) = self.done.iter_mut().find(is_its) else { continue };
            let (what, reason) = (found.what(), printable(&found.reason));
            done.unopened.push(found);
            self.failed(&what, Failure::runtime(reason));
        }
        Ok(())
    }

    /// The first name with a number that no controller has.
    fn free_name(&self, word: &str) -> String {
        let taken = |name: &String| self.known.iter().any(|(known, _)| known == name);
        (0_u32..)
            .map(|number| format!("{word}{number}"))
            .find(|name| !taken(name))
            .unwrap_or_default()
    }

    /// Has the daemon follow what the discovery controllers offer, from now on.
    fn follow(&mut self, connections: &[Connection]) -> Result<(), Failure> {
        let services = self.daemon.list("bdev_nvme_get_discovery_info", Value::Null)?;
        let mut names: Vec<String> = services
            .iter()
            .filter_map(|service| service["name"].as_str().map(str::to_owned))
            .collect();
        for connection in connections {
            if !connection.is_discovery {
                let (shown, nqn) = (connection.shown(), printable(connection.connect.nqn.as_str()));
                let what = "--persistent follows discovery controllers";
                shell::note(&format!("{nqn} at {shown} is passed over: {what}"));
                continue;
            }
            match self.follow_one(connection, &services, &mut names) {
                Ok(outcome) => self.done.push(outcome),
                Err(failure) => self.failed(&connection.shown(), failure),
            }
        }
        if self.done.is_empty() && self.last.is_none() {
            let text = "--persistent follows discovery controllers, and the file names none";
            return Err(Failure::usage(text));
        }
        Ok(())
    }

    /// The same for one of them, unless the daemon follows it.
    fn follow_one(
        &mut self,
        connection: &Connection,
        services: &[Value],
        names: &mut Vec<String>,
    ) -> Result<Outcome, Failure> {
        followable(connection)?;
        let mut config = connection.config()?;
        unused::note(connection);
        unused::check_host_id(connection, &config, self.has_host_id)?;
        if connection.has_any_port {
            // The daemon has to be told which port it is.
            (_, config, _) = ask(connection, config)?;
        }
        let place = place_of(&config);
        if let Some(service) = services.iter().find(|service| is_at(&service["trid"], &place)) {
            let name = service["name"].as_str().unwrap_or_default().to_owned();
            return Ok(Outcome::new(place, name, false));
        }
        if let Some(before) = self.done.iter().find(|before| before.place == place) {
            let name = before.name.clone();
            return Ok(Outcome::new(place, name, false));
        }
        let mut free = (0_u32..).map(|number| format!("Discovery{number}"));
        let name = free.find(|name| !names.contains(name)).unwrap_or_default();
        let params = json!({
            "name": name,
            "trtype": place.transport,
            "adrfam": family(place.address),
            "traddr": place.address.to_string(),
            "trsvcid": place.port.to_string(),
            "hostnqn": config.hostnqn.as_str(),
            "wait_for_attach": true,
            "ctrlr_loss_timeout_sec": loss(connection),
            "reconnect_delay_sec": delay(connection),
            "fast_io_fail_timeout_sec": fast_fail(connection),
        });
        self.daemon.call("bdev_nvme_start_discovery", params)?;
        names.push(name.clone());
        Ok(Outcome::new(place, name, true))
    }
}

/// Reads the log of a discovery controller, at the port that it turns out to have.
fn ask(
    connection: &Connection,
    config: HostConfig,
) -> Result<(Connection, HostConfig, DiscoveryLog), Failure> {
    if !connection.has_any_port {
        return Ok((connection.clone(), config.clone(), remote::discovery_log(config)?));
    }
    let (config, log) = remote::discovery_log_at_any_port(&config)?;
    Ok((connection.at_port(config.address.port()), config, log))
}

fn place_of(config: &HostConfig) -> Place {
    let transport = if config.transport == Transport::Rdma { "RDMA" } else { "TCP" };
    let (address, port) = (config.address.ip(), config.address.port());
    Place { transport, address, port, subnqn: config.subnqn.to_string() }
}

/// The paths of a controller of the daemon; a local drive has none.
pub(crate) fn paths(controller: &Value) -> Vec<(String, Place)> {
    let name = controller["name"].as_str().unwrap_or_default();
    let all = controller["ctrlrs"].as_array().map_or(&[][..], Vec::as_slice);
    let path = |path: &Value| {
        let trid = &path["trid"];
        let text = |member: &str| trid[member].as_str().unwrap_or_default();
        let transport = match text("trtype").to_ascii_uppercase().as_str() {
            "TCP" => "TCP",
            "RDMA" => "RDMA",
            _ => return None,
        };
        let (address, port) = (text("traddr").parse().ok()?, text("trsvcid").parse().ok()?);
        Some((
            name.to_owned(),
            Place { transport, address, port, subnqn: text("subnqn").to_owned() },
        ))
    };
    all.iter().filter_map(path).collect()
}

/// Whether a discovery service of the daemon is asked there.
fn is_at(trid: &Value, place: &Place) -> bool {
    let text = |member: &str| trid[member].as_str().unwrap_or_default();
    text("trtype").eq_ignore_ascii_case(place.transport)
        && text("traddr").parse() == Ok(place.address)
        && text("trsvcid").parse() == Ok(place.port)
}

/// ADRFAM.
pub(crate) fn family(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "IPv4" } else { "IPv6" }
}

/// -l, in the form of the daemon.
fn loss(connection: &Connection) -> i64 {
    connection.connect.address.ctrl_loss_tmo
}

/// --reconnect-delay, of which the daemon wants no more than of -l and of --fast-io-fail-tmo.
fn delay(connection: &Connection) -> i64 {
    let given = connection.connect.paths.reconnect_delay;
    let wanted = given.map_or(RECONNECT_DELAY_S, |time| {
        i64::try_from(time.as_millis().div_ceil(1000)).unwrap_or(i64::MAX).max(1)
    });
    let wanted = fast_fail(connection).map_or(wanted, |time| wanted.min(time));
    match loss(connection) {
        -1 => wanted,
        loss => loss.min(wanted),
    }
}

/// --fast-io-fail-tmo; the daemon wants no less than the time between attempts.
fn fast_fail(connection: &Connection) -> Option<i64> {
    connection.connect.paths.fast_io_fail_tmo.filter(|time| *time > 0)
}

/// The call that connects.
fn parameters(
    connection: &Connection,
    config: &HostConfig,
    place: &Place,
    name: &str,
) -> Result<Value, Failure> {
    let secrets = &connection.secrets;
    if secrets.host.is_some() || secrets.controller.is_some() || secrets.tls.is_some() {
        let text = "a daemon takes names of keys, and no secret of a file: raceline key import gives it a name, which -S, \
                    -C and --tls-psk take";
        return Err(Failure::usage(text));
    }
    let address = &connection.connect.address;
    if address.concat || secrets.concat {
        let text = "a daemon makes no key for TLS by authentication: name one with --tls-psk instead of --concat";
        return Err(Failure::usage(text));
    }
    let source = match (address.source, address.interface) {
        (None, Some(interface)) => {
            let target = SocketAddr::new(place.address, place.port);
            Some(interfaces::address_of(interface, target)?)
        }
        (source, _) => source,
    };
    Ok(json!({
        "name": name,
        "trtype": place.transport,
        "adrfam": family(place.address),
        "traddr": place.address.to_string(),
        "trsvcid": place.port.to_string(),
        "subnqn": place.subnqn,
        "hostnqn": config.hostnqn.as_str(),
        "hostaddr": source.map(|source| source.to_string()),
        "priority": address.priority.map(|priority| priority.to_string()),
        "num_io_queues": connection.queues.number(IO_QUEUES),
        "hdgst": connection.connect.header_digest,
        "ddgst": connection.connect.data_digest,
        "ctrlr_loss_timeout_sec": loss(connection),
        "reconnect_delay_sec": delay(connection),
        "fast_io_fail_timeout_sec": fast_fail(connection),
        "dhchap_key": key_name(address.dhchap_secret.as_deref(), "-S")?,
        "dhchap_ctrlr_key": key_name(address.dhchap_ctrl_secret.as_deref(), "-C")?,
        "psk": key_name(address.tls_psk.as_deref(), "--tls-psk")?,
    }))
}

/// A key that the daemon has; a file is this program's alone.
fn key_name(key: Option<&Path>, option: &str) -> Result<Option<String>, Failure> {
    let Some(key) = key else { return Ok(None) };
    let text = key.to_string_lossy();
    if text.contains('/') {
        let text = format!(
            "{option}: a daemon takes the name of a key, and no file: raceline key import makes one of {}",
            printable(&text)
        );
        return Err(Failure::usage(text));
    }
    Ok(Some(text.into_owned()))
}

/// What a followed service cannot have: the daemon has no such parameters for it.
fn followable(connection: &Connection) -> Result<(), Failure> {
    let address = &connection.connect.address;
    let secrets = &connection.secrets;
    let has_key = address.dhchap_secret.is_some()
        || address.dhchap_ctrl_secret.is_some()
        || address.tls_psk.is_some()
        || address.concat
        || secrets.host.is_some()
        || secrets.controller.is_some()
        || secrets.tls.is_some()
        || secrets.concat;
    let refused = [
        (has_key, "keys"),
        (address.source.is_some(), "--host-traddr"),
        (address.interface.is_some(), "--host-iface"),
        (address.priority.is_some(), "--sock-priority"),
        (connection.queues.number(IO_QUEUES).is_some(), "--nr-io-queues"),
        (connection.connect.header_digest || connection.connect.data_digest, "digests"),
        (connection.connect.nqn != Nqn::discovery(), "a discovery controller of its own name (-n)"),
    ];
    match refused.iter().find(|(is_there, _)| *is_there) {
        Some((_, what)) => Err(Failure::usage(format!(
            "--persistent cannot have {what}: connect-all without it can, and connects once"
        ))),
        None => Ok(()),
    }
}

fn report(args: &ConnectAllArgs, done: &[Outcome]) -> Result<(), Failure> {
    let text = match args.device.named.format() {
        NvmeFormat::Json => {
            let list = done.iter().map(|Outcome { place, name, is_new, unopened }| {
                let mut described = json!({
                    "name": name, "trtype": place.transport.to_ascii_lowercase(),
                    "traddr": place.address.to_string(), "trsvcid": place.port.to_string(),
                    "subnqn": place.subnqn, "new": is_new,
                });
                if !unopened.is_empty() {
                    let unopened = unopened.iter();
                    let unopened = unopened
                        .map(|one| json!({ "nsid": one.nsid, "reason": one.reason }))
                        .collect();
                    described["unopened"] = Value::Array(unopened);
                }
                described
            });
            format!("{:#}\n", Value::from(list.collect::<Vec<_>>()))
        }
        _ if done.is_empty() => "the discovery controllers offer nothing to this host\n".to_owned(),
        _ => done.iter().map(|outcome| sentence(args.persistent, outcome)).collect(),
    };
    shell::print(text.as_bytes())
}

fn sentence(is_persistent: bool, Outcome { place, name, is_new, unopened }: &Outcome) -> String {
    let what = match (is_persistent, is_new) {
        (false, true) => "is connected to",
        (false, false) => "was already connected to",
        (true, true) => "follows",
        (true, false) => "was already following",
    };
    let address = SocketAddr::new(place.address, place.port);
    let numbers: Vec<String> = unopened.iter().map(|one| one.nsid.to_string()).collect();
    let without = match numbers.is_empty() {
        true => String::new(),
        false => format!(", but for namespaces that are no devices: {}", numbers.join(", ")),
    };
    format!("{} {what} {} at {address}{without}\n", printable(name), printable(&place.subnqn))
}
