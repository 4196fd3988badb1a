//! `bdev_nvme_*`: the namespaces of a controller as devices, a remote one or a local drive.

mod discovery;
mod drive;
mod health;
mod hotplug;
mod inject;
pub(in crate::methods) mod keys;
mod mdns;
mod options;
mod paths;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use raceline_host::{BackoffConfig, HostConfig, RemoteController, RemotePath, Transport};
use raceline_proto::nvme::{HostId, Nqn};
use raceline_reactor::socket::check_priority;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use super::Name;
use crate::error::RpcError;
use crate::manager::catalogue::{self, Key, Section};
use crate::manager::controllers::Controller;
use crate::manager::controllers::link::{Link, state_name, trid_of};
use crate::manager::keys::{ChapKeys, HeldPsk};
use crate::manager::missing::CONNECT_TIMEOUT;
use crate::manager::nvmf::ListenAddress;
use crate::manager::{Change, Manager, ManagerError};
use crate::method::{Call, Registry, States};
use crate::params::refuse;
pub(in crate::methods) use discovery::discovery_host;
use options::Options;

/// Devices of a controller unless asked otherwise, as in SPDK.
const DEFAULT_MAX_BDEVS: u32 = 128;

pub(super) fn register(registry: &mut Registry) {
    registry.change("bdev_nvme_attach_controller", States::Runtime, attach);
    registry.alias("construct_nvme_bdev", "bdev_nvme_attach_controller");
    registry.change("bdev_nvme_detach_controller", States::Runtime, detach);
    registry.alias("delete_nvme_controller", "bdev_nvme_detach_controller");
    registry.read("bdev_nvme_get_controllers", States::Runtime, get_controllers);
    registry.alias("get_nvme_controllers", "bdev_nvme_get_controllers");
    registry.change("bdev_nvme_reset_controller", States::Runtime, reset);
    options::register(registry);
    health::register(registry);
    hotplug::register(registry);
    keys::register(registry);
    discovery::register(registry);
    mdns::register(registry);
    paths::register(registry);
    inject::register(registry);
}

#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Attach {
    name: String,
    trtype: String,
    traddr: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    adrfam: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trsvcid: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    subnqn: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hostnqn: Option<String>,
    /// For a local drive: another drive in the same place is not mistaken for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    serial: Option<String>,
    /// For a local drive: the path of its data, `block` or `passthrough`.
    #[serde(skip_serializing_if = "Option::is_none")]
    io_path: Option<drive::Way>,
    #[serde(default)]
    hdgst: bool,
    #[serde(default)]
    ddgst: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    fabrics_connect_timeout_us: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    num_io_queues: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ctrlr_loss_timeout_sec: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reconnect_delay_sec: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_bdevs: Option<u32>,
    /// SO_PRIORITY of all connections, a number in a string.
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<String>,
    /// The address of this machine from which all connections are made.
    #[serde(skip_serializing_if = "Option::is_none")]
    hostaddr: Option<String>,
    /// The key by which this host proves itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    dhchap_key: Option<String>,
    /// The key by which the controller has to prove itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    dhchap_ctrlr_key: Option<String>,
    /// The name of the pre-shared key for TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    psk: Option<String>,
    /// What to do if the name is taken: by default, this is another path.
    #[serde(skip_serializing_if = "Option::is_none")]
    multipath: Option<paths::Mode>,
    #[serde(skip_serializing_if = "Option::is_none")]
    multipath_opts: Option<paths::PolicyOptions>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fast_io_fail_timeout_sec: Option<u32>,
    /// Of our own: the paths that later calls have added. SPDK's clients see a call for each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    more_paths: Vec<paths::MorePath>,
    /// Of our own: the path that is taken before others that are as good.
    #[serde(skip_serializing_if = "Option::is_none")]
    preferred_path: Option<paths::MorePath>,
    /// Ignored: always disabled where the controller allows it.
    #[serde(default, rename = "disable_sq_flow_control", skip_serializing)]
    _disable_sq_flow_control: bool,
    // Parameters without support here.
    #[serde(default, skip_serializing)]
    hostsvcid: Option<String>,
    #[serde(default, skip_serializing)]
    prchk_reftag: bool,
    #[serde(default, skip_serializing)]
    prchk_guard: bool,
    #[serde(default, skip_serializing)]
    allow_unrecognized_csi: bool,
}

impl Attach {
    /// Refuses parameters that SPDK supports and this program does not.
    fn refuse(&self) -> Result<(), RpcError> {
        let no_metadata = "namespaces with metadata are not used";
        refuse_because(&[
            ("hostsvcid", self.fixes_port(), ONE_PORT),
            ("prchk_reftag", self.prchk_reftag, no_metadata),
            ("prchk_guard", self.prchk_guard, no_metadata),
            (
                "allow_unrecognized_csi",
                self.allow_unrecognized_csi,
                "only namespaces of the NVM command set can be used",
            ),
        ])
    }

    /// Whether a source port is named; neither an empty one nor 0 counts.
    fn fixes_port(&self) -> bool {
        self.hostsvcid.as_deref().is_some_and(|port| !matches!(port, "" | "0"))
    }

    /// The source address, if one is named.
    fn source(&self, address: SocketAddr) -> Result<Option<IpAddr>, RpcError> {
        let Some(hostaddr) = self.hostaddr.as_deref().filter(|text| !text.is_empty()) else {
            return Ok(None);
        };
        let source: IpAddr = hostaddr.parse().map_err(|_| {
            let shown = hostaddr.escape_debug();
            invalid(format!("hostaddr `{shown}` is not an IPv4 or IPv6 address"))
        })?;
        if source.is_ipv4() != address.is_ipv4() {
            let text = format!("hostaddr {source} and traddr {} are of two families", address.ip());
            return Err(invalid(text));
        }
        Ok(Some(source))
    }

    /// The priority of sent packets; SPDK's clients send a number as a string.
    fn priority(&self) -> Result<Option<u32>, RpcError> {
        let Some(text) = self.priority.as_deref() else { return Ok(None) };
        let priority = text.parse().ok().filter(|number| *number <= i32::MAX.unsigned_abs());
        let priority = priority.ok_or_else(|| {
            let shown = text.escape_debug();
            invalid(format!("priority `{shown}` is no number of 0 to {}", i32::MAX))
        })?;
        check_priority(priority).map_err(|error| {
            let text =
                format!("priority {priority} may not be set (above 6 it needs CAP_NET_ADMIN)");
            invalid(text).because(error)
        })?;
        Ok(Some(priority).filter(|priority| *priority != 0))
    }
}

/// Why a source port cannot be fixed.
const ONE_PORT: &str = "a source port serves one connection to one address, and a controller has \
    at least two (its admin queue and an I/O queue); leave it out: the kernel chooses a port for \
    each, from hostaddr";
/// `trtype` of NVMe/RDMA.
const RDMA: &str = "RDMA";
/// Why a digest cannot be had.
const NO_DIGESTS: &str =
    "RDMA has no digests, because its links have checksums of their own: leave it out";
/// As [`refuse`], with a reason for each parameter.
fn refuse_because(parameters: &[(&str, bool, &'static str)]) -> Result<(), RpcError> {
    match parameters.iter().find(|(_, asked, _)| *asked) {
        Some((name, _, reason)) => Err(RpcError::unsupported(name).because(reason)),
        None => Ok(()),
    }
}

fn invalid(text: String) -> RpcError {
    RpcError::new(-libc::EINVAL, text)
}

/// Connecting takes time, and others may change things meanwhile; only the result is a change.
fn attach(call: &Call<'_>, params: Attach) -> Result<Vec<String>, RpcError> {
    params.refuse()?;
    let max_bdevs = params.max_bdevs.unwrap_or(DEFAULT_MAX_BDEVS);
    if max_bdevs == 0 {
        return Err(invalid("max_bdevs cannot be zero".to_owned()));
    }
    check_name(&params.name)?;
    let taken = call.manager.model().controllers.get(&params.name).cloned();
    if let Some(taken) = taken {
        return paths::add(call, &taken, &params);
    }
    let max_bdevs = usize::try_from(max_bdevs).unwrap_or(usize::MAX);
    if drive::is_local(&params) {
        return drive::attach(call, params, max_bdevs);
    }
    refuse(&[("serial", params.serial.is_some()), ("io_path", params.io_path.is_some())])?;
    let hostnqn = params.hostnqn.clone().unwrap_or_else(|| default_hostnqn(call.manager));
    let mut config = host_config(call.manager, &params, &hostnqn)?;
    config.more_paths = paths::more_paths(call, &params, &hostnqn)?;
    let psk = keys::hold_psk(call, params.psk.as_deref(), &config)?;
    config.streams = psk.as_ref().map(|psk| keys::streams(call.manager, psk)).transpose()?;
    let held = keys::hold(call, params.dhchap_key.as_deref(), params.dhchap_ctrlr_key.as_deref())?;
    config.credentials.set(keys::credentials(call.manager, held.as_ref())?);
    let config = if call.peer.is_internal {
        // During a start or a retry, others wait for this.
        config.within(CONNECT_TIMEOUT)
    } else {
        config
    };
    // Without a number, there is room for the cores and namespaces that are usual.
    let connect = match params.num_io_queues {
        Some(_) => RemoteController::connect_exactly,
        None => RemoteController::connect,
    };
    let remote = connect(config).map_err(|error| RpcError::errno(libc::EIO).because(error))?;
    remote.count_paths(Options::current(call.manager).io_path_stat.unwrap_or(false));
    paths::prefer_kept(call, &remote, &params, &hostnqn)?;
    let policy = paths::policy_options(&params, &Options::current(call.manager));
    let canonical = Attach { hostnqn: Some(hostnqn), multipath_opts: Some(policy), ..params };
    take(call, Link::Remote(remote), (held, psk), &canonical, max_bdevs)
}

/// Makes the found controller a controller here; `canonical` is the call that makes it again.
fn take(
    call: &Call<'_>,
    link: Link,
    (keys, psk): (Option<ChapKeys>, Option<HeldPsk>),
    canonical: &Attach,
    max_bdevs: usize,
) -> Result<Vec<String>, RpcError> {
    let name = canonical.name.clone();
    let key = Key::new(&["bdev-nvme", &name]);
    let controller = Controller::new(name, link, key.clone(), max_bdevs);
    controller.set_keys(keys);
    controller.set_psk(psk);
    let attached = call.manager.change(|change| {
        let entry = catalogue::Entry::new(Section::Bdev, "bdev_nvme_attach_controller", canonical)?;
        let names = change.attach(&controller)?;
        change.put(key, entry);
        Ok(names)
    });
    if attached.is_err() {
        controller.link.end();
    }
    attached
}

fn check_name(name: &str) -> Result<(), RpcError> {
    if name.is_empty() || name.len() > 64 || name.chars().any(char::is_control) {
        let detail = "a name has 1 to 64 bytes without control characters";
        return Err(RpcError::errno(libc::EINVAL).because(detail));
    }
    Ok(())
}

fn default_hostnqn(manager: &Manager) -> String {
    let uuid = manager.config().identity.derive("host", b"");
    format!("nqn.2014-08.org.nvmexpress:uuid:{uuid}")
}

/// The host identifier is the UUID in the host's name, if there is one.
fn host_id(manager: &Manager, hostnqn: &str) -> HostId {
    let named = hostnqn.rsplit_once("uuid:").and_then(|(_, uuid)| Uuid::try_parse(uuid).ok());
    let identity = &manager.config().identity;
    let uuid = named.unwrap_or_else(|| identity.derive("host", hostnqn.as_bytes()));
    HostId(uuid.into_bytes())
}

fn host_config(manager: &Manager, params: &Attach, hostnqn: &str) -> Result<HostConfig, RpcError> {
    let Attach { trtype, adrfam, traddr, trsvcid, .. } = params;
    let transport = match trtype.eq_ignore_ascii_case(RDMA) {
        true => Transport::Rdma,
        false => Transport::Tcp,
    };
    // Addresses of RDMA are written as those of TCP.
    let like = if transport == Transport::Rdma { "TCP" } else { trtype };
    let address = ListenAddress::parse(like, adrfam.as_deref(), traddr, trsvcid.as_deref())
        .and_then(|address| address.socket())?;
    if transport == Transport::Rdma {
        refuse_because(&[
            ("hdgst", params.hdgst, NO_DIGESTS),
            ("ddgst", params.ddgst, NO_DIGESTS),
            ("psk", params.psk.is_some(), "RDMA has no TLS: leave it out, or attach over TCP"),
        ])?;
    }
    let nqn = |what: &str, text: &str| {
        let what = format!("{what} is no name of a host or a subsystem");
        Nqn::new(text).map_err(|error| invalid(what).because(error))
    };
    let subnqn = params.subnqn.as_deref().unwrap_or_default();
    let subnqn = nqn("subnqn", subnqn)?;
    let mut config =
        HostConfig::new(address, subnqn, nqn("hostnqn", hostnqn)?, host_id(manager, hostnqn));
    let options = Options::current(manager);
    config.transport = transport;
    config.source = params.source(address)?;
    config.priority = params.priority()?;
    config.header_digest = params.hdgst;
    config.data_digest = params.ddgst;
    config.kato_ms = options.keep_alive_timeout_ms.unwrap_or(config.kato_ms);
    if let Some(timeout_us) = options.timeout_us.filter(|timeout_us| *timeout_us > 0) {
        config.command_timeout = Some(Duration::from_micros(timeout_us));
        let admin = options.timeout_admin_us.filter(|timeout_us| *timeout_us > 0);
        config.admin_timeout = admin.map(Duration::from_micros);
    }
    let exponent = options.transport_ack_timeout.filter(|exponent| *exponent > 0);
    config.ack_timeout = exponent.map(|exponent| Duration::from_millis(1 << exponent));
    let tcp = options.tcp_connect_timeout_ms.filter(|timeout_ms| *timeout_ms > 0);
    config.tcp_connect_timeout = tcp.map(|timeout_ms| Duration::from_millis(timeout_ms.into()));
    if let Some(timeout_us) = params.fabrics_connect_timeout_us {
        config.connect_timeout = Duration::from_micros(timeout_us);
    }
    if let Some(queues) = params.num_io_queues {
        let range = 1..=u32::from(u16::MAX) + 1;
        if !range.contains(&queues) {
            let text = "num_io_queues out of bounds, min: 1 max: 65536";
            return Err(invalid(text.to_owned()));
        }
        config.io_queues = u16::try_from(queues).unwrap_or(u16::MAX);
    }
    let loss = params.ctrlr_loss_timeout_sec.or(options.ctrlr_loss_timeout_sec).unwrap_or(0);
    let delay = params.reconnect_delay_sec.or(options.reconnect_delay_sec).unwrap_or(0);
    config.backoff = backoff(loss, delay)?;
    config.multipath = paths::multipath(params, &options)?;
    let fast = params.fast_io_fail_timeout_sec.or(options.fast_io_fail_timeout_sec);
    paths::check_fast_fail(fast.unwrap_or(0), &config.backoff)?;
    Ok(config)
}

/// How long to retry a lost controller. By default ten minutes, with growing delays.
fn backoff(loss_sec: i32, delay_sec: u32) -> Result<BackoffConfig, RpcError> {
    let bad = |detail: &str| Err(RpcError::errno(libc::EINVAL).because(detail));
    let delay = Duration::from_secs(delay_sec.into());
    let give_up_after = match u32::try_from(loss_sec) {
        Err(_) if loss_sec != -1 => return bad("ctrlr_loss_timeout_sec must be at least -1"),
        Err(_) if delay_sec == 0 => {
            return bad("reconnect_delay_sec must not be 0 with a ctrlr_loss_timeout_sec of -1");
        }
        Err(_) => None,
        Ok(0) if delay_sec == 0 => return Ok(BackoffConfig::default()),
        Ok(0) => return bad("reconnect_delay_sec needs a ctrlr_loss_timeout_sec"),
        Ok(loss) if delay_sec == 0 || delay_sec > loss => {
            return bad("reconnect_delay_sec must be 1 to ctrlr_loss_timeout_sec");
        }
        Ok(loss) => Some(Duration::from_secs(loss.into())),
    };
    Ok(BackoffConfig { first: delay, longest: delay, give_up_after })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Detach {
    name: String,
    // One path of several; without any of these, all.
    trtype: Option<String>,
    traddr: Option<String>,
    adrfam: Option<String>,
    trsvcid: Option<String>,
    subnqn: Option<String>,
    hostaddr: Option<String>,
    hostsvcid: Option<String>,
}

impl Detach {
    /// Whether the source address, if one is named, is this one.
    fn comes_from(&self, source: Option<IpAddr>) -> bool {
        match self.hostaddr.as_deref() {
            None | Some("") => true,
            Some(named) => named.parse().is_ok_and(|named: IpAddr| Some(named) == source),
        }
    }

    fn names_path(&self, controller: &Controller) -> bool {
        let mut trid = controller.link.trid();
        let given = self.traddr.as_deref().unwrap_or_default();
        if let (Link::Drive(drive), Ok(address)) = (&controller.link, given.parse())
            && drive.address() == address
        {
            // Another spelling of the same address.
            trid["traddr"] = given.into();
        }
        match &controller.link {
            Link::Remote(remote) => remote
                .paths()
                .iter()
                .chain(&remote.disabled_paths())
                .any(|path| self.names(&trid_of(&path.config), path.config.source)),
            Link::Drive(_) => self.names(&trid, None),
        }
    }

    /// Whether it names a path of this identifier from this address.
    fn names(&self, trid: &Value, source: Option<IpAddr>) -> bool {
        let is = |part: &Option<String>, member: &str| {
            let text = trid[member].as_str().unwrap_or_default();
            part.as_ref().is_none_or(|part| part.eq_ignore_ascii_case(text))
        };
        is(&self.trtype, "trtype")
            && is(&self.traddr, "traddr")
            && is(&self.adrfam, "adrfam")
            && is(&self.trsvcid, "trsvcid")
            && is(&self.subnqn, "subnqn")
            && self.comes_from(source)
            && self.hostsvcid.as_deref().is_none_or(|port| matches!(port, "" | "0"))
    }
}

fn detach(call: &Call<'_>, params: Detach) -> Result<bool, RpcError> {
    let key = Key::new(&["bdev-nvme", &params.name]);
    let forget = |change: &mut Change<'_>| Ok::<_, RpcError>(change.forget_missing(&key));
    if call.manager.change(forget)? {
        return Ok(true);
    }
    let found = call.manager.model().controllers.get(&params.name).cloned();
    if let Some(controller) = found
        && paths::detach(call, &controller, &params)?
    {
        return Ok(true);
    }
    let controller = call.manager.change(|change| {
        let found = change.model().controllers.get(&params.name).cloned();
        let found = found.filter(|controller| params.names_path(controller));
        found.ok_or_else(|| no_controller(&params.name))?;
        let controller = change.detach(&params.name)?;
        change.dismiss_drive(&controller)?;
        Ok::<_, RpcError>(controller)
    })?;
    // Ending takes as long as the controller needs to shut down: others need not wait for it.
    controller.link.end();
    Ok(true)
}

fn no_controller(name: &str) -> RpcError {
    RpcError::errno(libc::ENODEV).because(format!(
        "there is no such controller `{name}`: bdev_nvme_get_controllers lists them"
    ))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GetControllers {
    name: Option<String>,
}

fn get_controllers(call: &Call<'_>, params: GetControllers) -> Result<Vec<Value>, RpcError> {
    let model = call.manager.model();
    let Some(name) = params.name else {
        return Ok(model.controllers.values().map(|controller| describe(controller)).collect());
    };
    let found = model.controllers.get(&name);
    let found = found.ok_or_else(|| invalid(format!("Controller {name} does not exist")))?;
    Ok(vec![describe(found)])
}

fn describe(controller: &Controller) -> Value {
    let ctrlrs = match &controller.link {
        Link::Remote(remote) => describe_paths(remote),
        Link::Drive(_) => vec![json!({
            "state": controller.link.state(),
            "trid": controller.link.trid(),
            "cntlid": controller.link.cntlid(),
            // Only a host that connects to a remote controller has a name.
            "host": { "nqn": "", "addr": "", "svcid": "" },
        })],
    };
    let mut described = json!({ "name": controller.name, "ctrlrs": ctrlrs });
    let unopened = controller.unopened().into_iter();
    let unopened: Vec<Value> =
        unopened.map(|(nsid, reason)| json!({ "nsid": nsid, "reason": reason })).collect();
    // SPDK has no such member, so it is there only when it says something.
    if !unopened.is_empty() {
        described["unopened"] = unopened.into();
    }
    described
}

/// The paths of a remote controller, as the member `ctrlrs` has them.
pub(in crate::methods) fn describe_paths(remote: &RemoteController) -> Vec<Value> {
    let (paths, disabled) = (remote.paths(), remote.disabled_paths());
    let disabled = disabled.iter().map(|path| describe_path(path, "disabled"));
    let states = paths.iter().map(|path| describe_path(path, state_name(&path.state)));
    states.chain(disabled).collect()
}

fn describe_path(path: &RemotePath, state: &str) -> Value {
    let source = path.config.source.map(|source| source.to_string()).unwrap_or_default();
    json!({
        "state": state,
        "trid": trid_of(&path.config),
        "cntlid": path.association.as_ref().map_or(0, |association| association.cntlid.0),
        "host": {
            "nqn": path.config.hostnqn.as_str(),
            "addr": source,
            "svcid": "",
            // Not SPDK's; nvme-cli shows it.
            "hostid": Uuid::from_bytes(path.config.hostid.0),
        },
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Reset {
    name: String,
    cntlid: Option<u16>,
}

fn reset(call: &Call<'_>, Reset { name, cntlid }: Reset) -> Result<bool, RpcError> {
    // A drive answers slowly, and others need the model meanwhile.
    let found = call.manager.model().controllers.get(&name).cloned();
    let found =
        found.filter(|controller| cntlid.is_none_or(|cntlid| controller.link.has_cntlid(cntlid)));
    match &found.ok_or_else(|| no_controller(&name))?.link {
        Link::Remote(remote) => {
            let named = |path: &&RemotePath| {
                let up = path.association.as_ref();
                cntlid.is_none_or(|id| up.is_some_and(|up| up.cntlid.0 == id))
            };
            remote.paths().iter().filter(named).for_each(|path| remote.reset_path(path.id));
        }
        Link::Drive(drive) => drive.reset().map_err(ManagerError::from)?,
    }
    Ok(true)
}

#[cfg(test)]
mod tests;
