//! The controller that a verb of nvme-cli is about: by its address, by a file of connections, or by its name in a daemon.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use raceline_host::blocking::Host;
use raceline_host::{ControllerInfo, HostConfig, NamespaceInfo};
use raceline_proto::nvme::identify::{OACS_FORMAT, OACS_NAMESPACE_MANAGEMENT, cns};
use raceline_proto::nvme::{NamespaceId, Nqn, Sqe};
use serde_json::{Value, json};

use super::fields::Bytes;
use super::files::{self, Connection, Overrides};
use crate::cli::nvme::DeviceArgs;
use crate::failure::Failure;
use crate::manage::{self, Daemon};
use crate::remote::failure;
use crate::table::printable;

/// Time for an answer of the daemon.
const DAEMON_TIMEOUT: Duration = Duration::from_secs(60);
/// A daemon is asked so often whether its controller is back.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// A connected controller.
pub(crate) struct Device {
    host: Host,
    name: String,
    /// The namespace that the name of the device has in it.
    nsid: Option<NamespaceId>,
}

impl Device {
    /// Connects without I/O queues.
    pub(crate) fn connect_admin(args: &DeviceArgs) -> Result<Self, Failure> {
        Self::open(args, 0)
    }

    /// Connects with an I/O queue.
    pub(crate) fn connect(args: &DeviceArgs) -> Result<Self, Failure> {
        Self::open(args, 1)
    }

    fn open(args: &DeviceArgs, io_queues: u16) -> Result<Self, Failure> {
        let ways = ways(args)?;
        let mut last = None;
        // A subsystem of a file has several addresses, of which the first that answers will do.
        for Way { connection, name, nsid } in &ways {
            let config = HostConfig { io_queues, ..connection.config()? };
            match Host::connect(config) {
                Ok(host) => return Ok(Self { host, name: name.clone(), nsid: *nsid }),
                Err(error) => last = Some(failure(&error)),
            }
        }
        Err(last.unwrap_or_else(|| Failure::usage("there is no address to connect to")))
    }

    /// What people call it.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The connection.
    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    /// What the controller is.
    pub(crate) fn controller(&self) -> Arc<ControllerInfo> {
        self.host.controller()
    }

    /// An Identify structure.
    pub(crate) fn identify(&self, cns: u8, nsid: NamespaceId) -> Result<Vec<u8>, Failure> {
        self.host.identify(cns, nsid).map_err(|error| failure(&error))
    }

    /// Executes an admin command that receives so many bytes.
    pub(crate) fn receive(&self, sqe: Sqe, len: u32) -> Result<Vec<u8>, Failure> {
        self.host.execute(sqe, len).map(|(_, data)| data).map_err(|error| failure(&error))
    }

    /// Executes an admin command that sends these bytes; its result.
    pub(crate) fn send(&self, sqe: Sqe, data: Vec<u8>) -> Result<u32, Failure> {
        let done = match data.is_empty() {
            true => self.host.execute(sqe, 0).map(|(cqe, _)| cqe),
            false => self.host.execute_with(sqe, data),
        };
        done.map(|cqe| cqe.dw0).map_err(|error| failure(&error))
    }

    /// The same for commands that manage namespaces, which most controllers do not have.
    pub(crate) fn manage(&self, sqe: Sqe, data: Vec<u8>) -> Result<u32, Failure> {
        self.send(sqe, data).map_err(|failure| self.explain(failure, OACS_NAMESPACE_MANAGEMENT))
    }

    /// The failure of a command that is about managing namespaces, with the reason if the controller lacks such commands: the
    /// bit of OACS that it would have.
    pub(crate) fn explain(&self, failure: Failure, needs: u16) -> Failure {
        let about = self.identify(cns::CONTROLLER, NamespaceId(0));
        let lacks = |about: Vec<u8>| Bytes(&about).number(256, 2) & u128::from(needs) == 0;
        if !about.is_ok_and(lacks) {
            return failure;
        }
        let verb = if needs == OACS_FORMAT { "format" } else { "manage" };
        let message = format!(
            "{}: hosts cannot {verb} namespaces of this subsystem, which needs a pool for it (raceline pool add NQN DEVICE, at a \
             daemon)",
            failure.message
        );
        Failure { message, ..failure }
    }

    /// The namespace that is meant: the given one, that of the device's name, or the only one.
    pub(crate) fn namespace(&self, given: Option<NamespaceId>) -> Result<NamespaceId, Failure> {
        if let (Some(given), Some(own)) = (given, self.nsid)
            && given != own
        {
            let text = format!("DEVICE is namespace {own}, and --namespace-id says {given}");
            return Err(Failure::usage(text));
        }
        if let Some(nsid) = given.or(self.nsid) {
            return Ok(nsid);
        }
        match &*self.host.namespaces() {
            [] => {
                Err(Failure::usage("the controller has no namespace: name one with --namespace-id"))
            }
            [only] => Ok(only.nsid),
            several => Err(Failure::usage(format!(
                "say which with --namespace-id: the controller has {}",
                list(several)
            ))),
        }
    }

    /// What is known of an attached namespace.
    pub(crate) fn info(&self, nsid: NamespaceId) -> Result<NamespaceInfo, Failure> {
        self.host.namespace(nsid).ok_or_else(|| {
            let namespaces = self.host.namespaces();
            let known = if namespaces.is_empty() { "none".to_owned() } else { list(&namespaces) };
            Failure::usage(format!("there is no namespace {nsid}; the controller has {known}"))
        })
    }

    /// Shuts the controller down in order.
    pub(crate) fn disconnect(self) {
        self.host.disconnect();
    }
}

fn list(namespaces: &[NamespaceInfo]) -> String {
    let numbers: Vec<String> = namespaces.iter().map(|info| info.nsid.to_string()).collect();
    numbers.join(", ")
}

/// A way to a controller.
pub(super) struct Way {
    pub(super) connection: Connection,
    pub(super) name: String,
    nsid: Option<NamespaceId>,
}

/// The ways that the options name.
pub(super) fn ways(args: &DeviceArgs) -> Result<Vec<Way>, Failure> {
    if args.connect.address.iscsi.iscsi {
        return Err(Failure::usage(
            "this verb is for NVMe: raceline identify, read and write take --iscsi",
        ));
    }
    if let Some(device) = &args.named.device {
        return of_daemon(args, device).map(|way| vec![way]);
    }
    if !args.has_nqn {
        let text = "say which controller: -a ADDRESS and -n NQN, -n NQN of a file of connections (--config), or a \
                    remote controller of a daemon";
        return Err(Failure::usage(text));
    }
    if args.has_address {
        let connection = plain(args)?;
        let name = connection.shown();
        return Ok(vec![Way { connection, name, nsid: None }]);
    }
    of_file(args)
}

/// The options of the command line, for the entries of a file.
pub(super) fn overrides(args: &DeviceArgs) -> Overrides<'_> {
    Overrides { given: &args.given, line: &args.connect.address, are_names: false }
}

/// The options as they are.
pub(super) fn plain(args: &DeviceArgs) -> Result<Connection, Failure> {
    Ok(Connection { given: args.given.clone(), ..Connection::new(args.connect.clone()) })
}

/// The addresses that the file has for the subsystem.
fn of_file(args: &DeviceArgs) -> Result<Vec<Way>, Failure> {
    let path = args.named.config.as_deref().unwrap_or(Path::new(files::CONFIG));
    let nqn = &args.connect.nqn;
    if args.named.config.is_none() && !path.exists() {
        let text = format!(
            "-a is missing, and there is no {} that has the address of {nqn}",
            files::CONFIG
        );
        return Err(Failure::usage(text));
    }
    let connections = files::config(path, overrides(args))?;
    let ways = connections.into_iter().filter(|connection| connection.connect.nqn == *nqn);
    let ways: Vec<Way> =
        ways.map(|connection| Way { name: connection.shown(), connection, nsid: None }).collect();
    if ways.is_empty() {
        return Err(Failure::usage(format!(
            "{} has no subsystem {nqn}: add it, or name its address with -a",
            path.display()
        )));
    }
    Ok(ways)
}

/// A remote controller of the daemon: another connection to the same address, as the same host.
fn of_daemon(args: &DeviceArgs, device: &str) -> Result<Way, Failure> {
    let (controller, nsid) = find(args, device)?;
    let path = first_path(&controller)?;
    let mut connection = plain(args)?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let target = &mut connection.connect.address;
    target.address = text(&path["trid"]["traddr"]);
    target.transport = transport_of(path);
    target.port =
        text(&path["trid"]["trsvcid"]).parse().unwrap_or(crate::cli::values::DEFAULT_PORT);
    if target.source.is_none() {
        target.source = path["host"]["addr"].as_str().and_then(|address| address.parse().ok());
    }
    if target.hostnqn.is_none() {
        target.hostnqn = path["host"]["nqn"].as_str().and_then(|nqn| Nqn::new(nqn).ok());
    }
    let nqn = Nqn::new(&text(&path["trid"]["subnqn"]));
    connection.connect.nqn = nqn.map_err(|error| Failure::runtime(format!("{device}: {error}")))?;
    Ok(Way { connection, name: device.to_owned(), nsid })
}

/// The transport of a path; `None`: it is a local drive's.
fn transport_of(path: &Value) -> Option<raceline_host::Transport> {
    path["trid"]["trtype"].as_str().and_then(|kind| crate::cli::values::transport(kind).ok())
}

/// The path of a controller of the daemon that is up, or the first one.
fn first_path(controller: &Value) -> Result<&Value, Failure> {
    let name = controller["name"].as_str().unwrap_or_default();
    let paths = controller["ctrlrs"].as_array().map_or(&[][..], Vec::as_slice);
    let remote = |path: &&Value| transport_of(path).is_some();
    let up = paths.iter().filter(remote).find(|path| path["state"] == "enabled");
    up.or_else(|| paths.iter().find(remote)).ok_or_else(|| {
        let name = printable(name);
        Failure::usage(format!(
            "{name} is a drive of the daemon's machine: nvme-cli manages it there"
        ))
    })
}

/// The controller of that name, or of the name before `nN`.
fn find(args: &DeviceArgs, device: &str) -> Result<(Value, Option<NamespaceId>), Failure> {
    let mut daemon = manage::connect(args.named.socket.as_deref(), DAEMON_TIMEOUT)?;
    let controllers = daemon.list("bdev_nvme_get_controllers", Value::Null)?;
    let named =
        |name: &str| controllers.iter().find(|controller| controller["name"] == name).cloned();
    if let Some(controller) = named(device) {
        return Ok((controller, None));
    }
    let parts =
        device.rsplit_once('n').and_then(|(name, number)| Some((name, number.parse().ok()?)));
    if let Some((name, number)) = parts
        && let Some(controller) = named(name)
    {
        return Ok((controller, Some(NamespaceId(number))));
    }
    let names: Vec<String> =
        controllers.iter().filter_map(|it| it["name"].as_str().map(printable)).collect();
    let there = match names.is_empty() {
        true => "it has none (bdev_nvme_attach_controller makes them)".to_owned(),
        false => format!("it has {}", names.join(", ")),
    };
    let device = printable(device);
    Err(Failure::usage(format!("the daemon has no remote controller {device}: {there}")))
}

/// Has the daemon reset one of its own controllers, and waits until it is back; its name. `None`: the options do not name one.
pub(super) fn reset_of_daemon(args: &DeviceArgs) -> Result<Option<String>, Failure> {
    let Some(device) = &args.named.device else { return Ok(None) };
    let (controller, _) = find(args, device)?;
    let mut daemon = manage::connect(args.named.socket.as_deref(), DAEMON_TIMEOUT)?;
    let name = controller["name"].as_str().unwrap_or_default().to_owned();
    // A path that was away before may stay so.
    let before = paths(&mut daemon, &name)?;
    daemon.call("bdev_nvme_reset_controller", json!({ "name": name }))?;
    let end = Instant::now() + super::RESET_TIMEOUT;
    while !is_back(&before, &paths(&mut daemon, &name)?, &name)? {
        if Instant::now() > end {
            return Err(Failure::runtime(format!(
                "{name} is not back {} s after its reset: the daemon goes on trying, and its log and `raceline list-subsys` say \
                 what becomes of it",
                super::RESET_TIMEOUT.as_secs()
            )));
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
    Ok(Some(name))
}

/// The paths of a daemon's controller.
fn paths(daemon: &mut Daemon, name: &str) -> Result<Vec<Value>, Failure> {
    let mut found = daemon.list("bdev_nvme_get_controllers", json!({ "name": name }))?;
    let first = found.first_mut().map(|controller| controller["ctrlrs"].take());
    Ok(first.and_then(|paths| paths.as_array().cloned()).unwrap_or_default())
}

/// Whether all paths that were up before are up again, and one is. It is an error if none is left that may come back.
fn is_back(before: &[Value], now: &[Value], name: &str) -> Result<bool, Failure> {
    if now.iter().all(|path| path["state"] == "failed") {
        return Err(Failure::runtime(format!(
            "{name} is lost after its reset: the daemon's log says why"
        )));
    }
    let is_up = |path: &&Value| path["state"] == "enabled";
    let is_same =
        |one: &Value, other: &Value| one["trid"] == other["trid"] && one["host"] == other["host"];
    let has = |was: &Value| now.iter().filter(is_up).any(|path| is_same(path, was));
    Ok(now.iter().any(|path| is_up(&path)) && before.iter().filter(is_up).all(has))
}
