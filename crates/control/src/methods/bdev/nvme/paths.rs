//! Several paths to one subsystem: the second `bdev_nvme_attach_controller` of a name, and the methods about paths.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use raceline_host::multipath::Access;
use raceline_host::{
    BackoffConfig, HostConfig, MultipathConfig, PathAddress, Policy, RemoteController, RemotePath,
    RemoteState, Transport,
};
use raceline_proto::nvme::NamespaceId;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::options::Options;
use super::{Attach, Detach, host_config, invalid, no_controller};
use crate::error::RpcError;
use crate::manager::Change;
use crate::manager::controllers::link::{Link, trid_of};
use crate::manager::controllers::{Controller, namespace_of};
use crate::method::{Call, Registry, States};

pub(super) fn register(registry: &mut Registry) {
    registry.read("bdev_nvme_get_io_paths", States::Runtime, get_io_paths);
    registry.change("bdev_nvme_set_preferred_path", States::Runtime, set_preferred_path);
    registry.change("bdev_nvme_set_multipath_policy", States::Runtime, set_policy);
    registry.read("bdev_nvme_get_path_iostat", States::Runtime, get_path_iostat);
    registry.change("bdev_nvme_enable_controller", States::Runtime, enable);
    registry.change("bdev_nvme_disable_controller", States::Runtime, disable);
}

/// What `multipath` of `bdev_nvme_attach_controller` says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Mode {
    /// All paths may be used.
    #[default]
    Multipath,
    /// One path at a time.
    Failover,
    /// One path, and no other is added.
    Disable,
}

/// `multipath_opts`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PolicyOptions {
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<PolicyName>,
    #[serde(skip_serializing_if = "Option::is_none")]
    selector: Option<Selector>,
    #[serde(skip_serializing_if = "Option::is_none", alias = "rr_min_io")]
    min_io: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum PolicyName {
    ActivePassive,
    ActiveActive,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Selector {
    RoundRobin,
    QueueDepth,
}

impl PolicyOptions {
    /// These options, and what they leave out from `defaults`.
    pub(super) fn or(self, defaults: Self) -> Self {
        Self {
            policy: self.policy.or(defaults.policy),
            selector: self.selector.or(defaults.selector),
            min_io: self.min_io.or(defaults.min_io),
        }
    }

    /// As [`Self::or`], with a word for all that the policy has, and no default for what it does not have.
    fn complete(self, defaults: Self) -> Self {
        let policy = self.policy.or(defaults.policy).unwrap_or(PolicyName::ActivePassive);
        let defaults = match policy {
            PolicyName::ActivePassive => Self::default(),
            PolicyName::ActiveActive => defaults.or(Self {
                policy: None,
                selector: Some(Selector::RoundRobin),
                min_io: Some(1),
            }),
        };
        let selector = self.selector.or(defaults.selector);
        let default_min_io = defaults.min_io.filter(|_| selector == Some(Selector::RoundRobin));
        Self { policy: Some(policy), selector, min_io: self.min_io.or(default_min_io) }
    }

    /// Whether these options say nothing else than `other`.
    fn agrees_with(self, other: Self) -> bool {
        self.or(other) == other
    }

    /// Checks defaults for later calls, which may be of another policy.
    pub(super) fn check_defaults(self) -> Result<(), RpcError> {
        self.min_io.map_or(Ok(()), |min_io| {
            let of = Self {
                policy: Some(PolicyName::ActiveActive),
                selector: None,
                min_io: Some(min_io),
            };
            of.policy().map(drop)
        })
    }

    /// The policy; an error says which options contradict each other.
    pub(super) fn policy(&self) -> Result<Policy, RpcError> {
        let Self { policy, selector, min_io } = *self;
        let wrong = |detail: &str| RpcError::errno(libc::EINVAL).because(detail);
        match (policy, selector, min_io) {
            (None | Some(PolicyName::ActivePassive), None, None) => Ok(Policy::ActivePassive),
            (None | Some(PolicyName::ActivePassive), ..) => {
                Err(wrong("selector and min_io need the policy active_active"))
            }
            (_, Some(Selector::QueueDepth), None) => Ok(Policy::QueueDepth),
            (_, Some(Selector::QueueDepth), Some(_)) => {
                Err(wrong("min_io needs the selector round_robin"))
            }
            (_, None | Some(Selector::RoundRobin), Some(0)) => {
                Err(wrong("min_io must be at least 1"))
            }
            (_, None | Some(Selector::RoundRobin), min_io) => {
                Ok(Policy::RoundRobin { min_io: min_io.unwrap_or(1) })
            }
        }
    }
}

/// A path besides the first, as the configuration keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MorePath {
    /// Without it, that of the first path.
    #[serde(skip_serializing_if = "Option::is_none")]
    trtype: Option<String>,
    traddr: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    adrfam: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trsvcid: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hostaddr: Option<String>,
}

/// The call of one path of several.
fn call_of(first: &Attach, path: &MorePath) -> Attach {
    let MorePath { trtype, traddr, adrfam, trsvcid, hostaddr } = path.clone();
    let trtype = trtype.unwrap_or_else(|| first.trtype.clone());
    Attach { trtype, traddr, adrfam, trsvcid, hostaddr, more_paths: Vec::new(), ..first.clone() }
}

/// The policy of a controller, by the parameters of the call and the options.
pub(super) fn policy_options(params: &Attach, options: &Options) -> PolicyOptions {
    let defaults = match params.multipath.unwrap_or_default() {
        Mode::Multipath => options.multipath_opts.unwrap_or_default(),
        Mode::Failover | Mode::Disable => PolicyOptions::default(),
    };
    params.multipath_opts.unwrap_or_default().complete(defaults)
}

/// How commands find their path, by the parameters of the call and the options; `None`: one path.
pub(super) fn multipath(
    params: &Attach,
    options: &Options,
) -> Result<Option<MultipathConfig>, RpcError> {
    let policy = policy_options(params, options).policy()?;
    let mode = params.multipath.unwrap_or_default();
    if mode == Mode::Disable {
        return Ok(None);
    }
    if mode == Mode::Failover && policy != Policy::ActivePassive {
        let text = "multipath failover uses one path at a time: the policy must be active_passive";
        return Err(invalid(text.to_owned()));
    }
    let fast = params.fast_io_fail_timeout_sec.or(options.fast_io_fail_timeout_sec).unwrap_or(0);
    Ok(Some(MultipathConfig {
        policy,
        failback: !options.disable_auto_failback.unwrap_or(false),
        fast_io_fail: (fast > 0).then(|| Duration::from_secs(fast.into())),
        ..MultipathConfig::default()
    }))
}

/// Checks `fast_io_fail_timeout_sec` against the times of reconnecting, as SPDK does.
pub(super) fn check_fast_fail(fast_sec: u32, backoff: &BackoffConfig) -> Result<(), RpcError> {
    let fast = Duration::from_secs(fast_sec.into());
    let bad = |detail: &str| Err(RpcError::errno(libc::EINVAL).because(detail));
    if fast_sec > 0 && fast < backoff.first {
        return bad("fast_io_fail_timeout_sec must not be less than reconnect_delay_sec");
    }
    if backoff.give_up_after.is_some_and(|loss| fast > loss) {
        return bad("fast_io_fail_timeout_sec must not be more than ctrlr_loss_timeout_sec");
    }
    Ok(())
}

/// The addresses of the paths besides the first.
pub(super) fn more_paths(
    call: &Call<'_>,
    params: &Attach,
    hostnqn: &str,
) -> Result<Vec<PathAddress>, RpcError> {
    let address = |path: &MorePath| {
        let config = host_config(call.manager, &call_of(params, path), hostnqn)?;
        let HostConfig { address, source, transport, .. } = config;
        Ok(PathAddress { address, source, transport })
    };
    params.more_paths.iter().map(address).collect()
}

/// Adds a path to a controller of that name.
pub(super) fn add(
    call: &Call<'_>,
    controller: &Arc<Controller>,
    params: &Attach,
) -> Result<Vec<String>, RpcError> {
    let name = &params.name;
    let exists = |text: String| Err(RpcError::new(-libc::EALREADY, text));
    let remote = match &controller.link {
        Link::Remote(remote) => remote,
        Link::Drive(drive) => {
            let same = super::drive::address(params) == Some(drive.address());
            let how = if same { "with the specified network path" } else { "and is a local drive" };
            return exists(format!("A controller named {name} already exists {how}"));
        }
    };
    if params.multipath == Some(Mode::Disable) || remote.config().multipath.is_none() {
        return exists(format!(
            "A controller named {name} already exists and multipath is disabled"
        ));
    }
    let entry = call.manager.model().catalogue.get(&controller.key).cloned();
    let kept = entry.as_ref().and_then(|it| serde_json::from_value(it.params.clone()).ok());
    let Some(first): Option<Attach> = kept else {
        return exists(format!(
            "A controller named {name} already exists, and a discovery service finds its paths"
        ));
    };
    check_same(&first, params)?;
    let hostnqn = remote.config().hostnqn.as_str();
    let found = host_config(call.manager, params, hostnqn)?;
    let is_same = |path: &RemotePath| identity(&path.config) == identity(&found);
    if remote.paths().iter().chain(&remote.disabled_paths()).any(is_same) {
        return exists(format!(
            "A controller named {name} already exists with the specified network path"
        ));
    }
    check_multipath(&first, params)?;
    if found.subnqn != remote.config().subnqn {
        let text =
            format!("controller {name} is of {}: a path leads there", remote.config().subnqn);
        return Err(invalid(text));
    }
    let config = HostConfig {
        address: found.address,
        source: found.source,
        transport: found.transport,
        ..remote.config().clone()
    };
    let id = remote.add_path(config).map_err(|error| RpcError::errno(libc::EIO).because(error))?;
    let path = MorePath {
        trtype: Some(params.trtype.clone()),
        traddr: params.traddr.clone(),
        adrfam: params.adrfam.clone(),
        trsvcid: params.trsvcid.clone(),
        hostaddr: params.hostaddr.clone(),
    };
    let kept = change_kept(call, controller, |kept| kept.more_paths.push(path));
    kept.inspect_err(|_| remote.remove_path(id))?;
    Ok(names_of(call, controller))
}

/// A path is connected like the others: a parameter that says otherwise is refused.
fn check_same(first: &Attach, path: &Attach) -> Result<(), RpcError> {
    let differs = |kept: &Option<String>, asked: &Option<String>| asked.is_some() && kept != asked;
    let differing = [
        ("hostnqn", differs(&first.hostnqn, &path.hostnqn)),
        ("psk", differs(&first.psk, &path.psk)),
        ("dhchap_key", differs(&first.dhchap_key, &path.dhchap_key)),
        ("dhchap_ctrlr_key", differs(&first.dhchap_ctrlr_key, &path.dhchap_ctrlr_key)),
        ("priority", differs(&first.priority, &path.priority)),
        ("hdgst", first.hdgst != path.hdgst),
        ("ddgst", first.ddgst != path.ddgst),
    ];
    match differing.iter().find(|(_, differs)| *differs) {
        Some((name, _)) => Err(invalid(format!(
            "{name} must be that of the first path: all paths of a controller are connected alike"
        ))),
        None => Ok(()),
    }
}

/// The paths of a controller are used by one policy: a call for a further path that names another is refused.
fn check_multipath(first: &Attach, path: &Attach) -> Result<(), RpcError> {
    let (mode, asked) = (first.multipath.unwrap_or_default(), path.multipath);
    if asked.is_some_and(|asked| asked != mode) {
        let detail = "multipath must be that of the first path of the controller";
        return Err(RpcError::errno(libc::EINVAL).because(detail));
    }
    let policy = first.multipath_opts.unwrap_or_default().complete(PolicyOptions::default());
    if !path.multipath_opts.unwrap_or_default().agrees_with(policy) {
        let detail = "multipath_opts must be those of the controller: bdev_nvme_set_multipath_policy changes them for all its paths";
        return Err(RpcError::errno(libc::EINVAL).because(detail));
    }
    Ok(())
}

/// The devices of a controller, which a further path does not change.
fn names_of(call: &Call<'_>, controller: &Arc<Controller>) -> Vec<String> {
    call.manager.devices_of(controller)
}

/// Changes the call that makes a controller again.
fn change_kept(
    call: &Call<'_>,
    controller: &Arc<Controller>,
    change_attach: impl FnOnce(&mut Attach),
) -> Result<(), RpcError> {
    call.manager.change(|change: &mut Change<'_>| {
        let Some(mut entry) = change.model().catalogue.get(&controller.key).cloned() else {
            return Ok(());
        };
        let mut kept: Attach = serde_json::from_value(entry.params.clone())
            .map_err(|error| RpcError::errno(libc::EIO).because(error))?;
        change_attach(&mut kept);
        entry.params = serde_json::to_value(&kept)
            .map_err(|error| RpcError::errno(libc::EIO).because(error))?;
        change.put(controller.key.clone(), entry);
        Ok(())
    })
}

/// Detaches the paths that a call names, if they are some and not all; whether it did.
pub(super) fn detach(
    call: &Call<'_>,
    controller: &Arc<Controller>,
    params: &Detach,
) -> Result<bool, RpcError> {
    let Link::Remote(remote) = &controller.link else { return Ok(false) };
    let (paths, disabled) = (remote.paths(), remote.disabled_paths());
    let all: Vec<&RemotePath> = paths.iter().chain(&disabled).collect();
    let named: Vec<&&RemotePath> = all
        .iter()
        .filter(|path| params.names(&trid_of(&path.config), path.config.source))
        .collect();
    if named.is_empty() || named.len() == all.len() {
        return Ok(false);
    }
    for path in &named {
        remote.remove_path(path.id);
    }
    let is_gone = |(is_rdma, address): (bool, SocketAddr)| {
        let is_it = |config: &HostConfig| {
            (config.transport == Transport::Rdma, config.address) == (is_rdma, address)
        };
        named.iter().any(|path| is_it(&path.config))
    };
    change_kept(call, controller, |kept| {
        let first = kept.trtype.clone();
        let stays = |path: &MorePath| !place(path, &first).is_some_and(is_gone);
        kept.more_paths.retain(stays);
        kept.preferred_path.take_if(|path| !stays(path));
        let own = MorePath {
            trtype: Some(first.clone()),
            traddr: kept.traddr.clone(),
            adrfam: kept.adrfam.clone(),
            trsvcid: kept.trsvcid.clone(),
            hostaddr: kept.hostaddr.clone(),
        };
        if !stays(&own) && !kept.more_paths.is_empty() {
            let next = kept.more_paths.remove(0);
            let more_paths = std::mem::take(&mut kept.more_paths);
            *kept = Attach { more_paths, ..call_of(kept, &next) };
        }
    })?;
    Ok(true)
}

/// Whether a path is RDMA, and where it leads; without a word of its own it is of the type of the first path.
fn place(path: &MorePath, first: &str) -> Option<(bool, SocketAddr)> {
    let port = path.trsvcid.as_deref().unwrap_or("4420").parse().ok()?;
    let is_rdma = path.trtype.as_deref().unwrap_or(first).eq_ignore_ascii_case(super::RDMA);
    Some((is_rdma, SocketAddr::new(path.traddr.parse().ok()?, port)))
}

/// What tells paths of a controller from each other.
fn identity(config: &HostConfig) -> (SocketAddr, Option<std::net::IpAddr>, Transport) {
    (config.address, config.source, config.transport)
}

/// The remote controller of that name.
fn remote_of(call: &Call<'_>, name: &str) -> Result<Arc<Controller>, RpcError> {
    let found = call.manager.model().controllers.get(name).cloned();
    let controller = found.ok_or_else(|| no_controller(name))?;
    match controller.link {
        Link::Remote(_) => Ok(controller),
        Link::Drive(_) => Err(RpcError::errno(libc::EINVAL)
            .because(format!("`{name}` is a local drive, which has one path"))),
    }
}

/// The controller whose namespace a device is, and the namespace.
fn remote_of_bdev(call: &Call<'_>, name: &str) -> Result<(Arc<Controller>, u32), RpcError> {
    let model = call.manager.model();
    let found = namespace_of(model.bdev(name).map_err(RpcError::from)?);
    found.filter(|(controller, _)| matches!(controller.link, Link::Remote(_))).ok_or_else(|| {
        RpcError::errno(libc::ENODEV)
            .because(format!("`{name}` is no namespace of a remote controller"))
    })
}

fn remote(controller: &Controller) -> &RemoteController {
    match &controller.link {
        Link::Remote(remote) => remote,
        Link::Drive(_) => unreachable!("drives were refused"),
    }
}

fn cntlid(path: &RemotePath) -> Option<u16> {
    path.association.as_ref().map(|association| association.cntlid.0)
}

fn access(path: &RemotePath, nsid: u32) -> Access {
    let Some(association) = &path.association else { return Access::Awaited };
    let ana = association.ana.as_ref();
    ana.map_or(Access::Optimized, |ana| ana.access(NamespaceId(nsid), std::time::Instant::now()))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GetIoPaths {
    name: Option<String>,
}

fn get_io_paths(call: &Call<'_>, params: GetIoPaths) -> Result<Value, RpcError> {
    let devices: Vec<(String, Arc<Controller>, u32)> = match params.name {
        Some(name) => {
            let (controller, nsid) = remote_of_bdev(call, &name)?;
            vec![(name, controller, nsid)]
        }
        None => {
            let model = call.manager.model();
            let of = |bdev| {
                let (controller, nsid) = namespace_of(bdev)?;
                let is_remote = matches!(controller.link, Link::Remote(_));
                is_remote.then(|| (bdev.name.clone(), controller, nsid))
            };
            model.bdevs.iter().filter_map(of).collect()
        }
    };
    let mut io_paths = Vec::new();
    for (name, controller, nsid) in devices {
        io_paths.extend(describe(&name, remote(&controller), nsid));
    }
    // All cores choose among the same paths, so they are shown once.
    Ok(json!({ "poll_groups": [{ "thread": "app_thread", "io_paths": io_paths }] }))
}

/// The paths of a device as SPDK shows them.
fn describe(bdev: &str, remote: &RemoteController, nsid: u32) -> Vec<Value> {
    let paths = remote.paths();
    let is_best = |path: &&RemotePath| access(path, nsid) == Access::Optimized;
    let best = if paths.iter().any(|path| is_best(&path)) {
        Access::Optimized
    } else {
        Access::NonOptimized
    };
    let good: Vec<_> =
        paths.iter().filter(|path| access(path, nsid) == best).map(|path| path.id).collect();
    let preferred = remote.preferred_path().filter(|id| good.contains(id));
    let active = preferred.or(good.first().copied());
    let all = remote.multipath().policy != Policy::ActivePassive;
    let path = |path: &RemotePath| {
        let current = if all { good.contains(&path.id) } else { active == Some(path.id) };
        json!({
            "bdev_name": bdev,
            "cntlid": cntlid(path),
            "current": current,
            "connected": matches!(path.state, RemoteState::Up),
            "accessible": access(path, nsid).is_usable(),
            "transport": trid_of(&path.config),
        })
    };
    paths.iter().map(path).collect()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Preferred {
    name: String,
    cntlid: u16,
}

/// The path is preferred for all namespaces of the controller.
fn set_preferred_path(call: &Call<'_>, params: Preferred) -> Result<bool, RpcError> {
    let (controller, _) = remote_of_bdev(call, &params.name)?;
    let remote = remote(&controller);
    let path = remote.paths().into_iter().find(|path| cntlid(path) == Some(params.cntlid));
    let path = path.ok_or_else(|| no_path(&params.name, params.cntlid))?;
    let preferred = path_of(&path.config);
    change_kept(call, &controller, |kept| kept.preferred_path = Some(preferred))?;
    remote.prefer_path(Some(path.id));
    Ok(true)
}

/// How a path is kept.
fn path_of(config: &HostConfig) -> MorePath {
    MorePath {
        trtype: trid_of(config)["trtype"].as_str().map(str::to_owned),
        traddr: config.address.ip().to_string(),
        adrfam: None,
        trsvcid: Some(config.address.port().to_string()),
        hostaddr: config.source.map(|source| source.to_string()),
    }
}

/// Prefers the path again that was preferred before.
pub(super) fn prefer_kept(
    call: &Call<'_>,
    remote: &RemoteController,
    params: &Attach,
    hostnqn: &str,
) -> Result<(), RpcError> {
    let Some(kept) = &params.preferred_path else { return Ok(()) };
    let kept = host_config(call.manager, &call_of(params, kept), hostnqn)?;
    let is_it = |path: &RemotePath| identity(&path.config) == identity(&kept);
    remote.prefer_path(remote.paths().into_iter().find(is_it).map(|path| path.id));
    Ok(())
}

fn no_path(name: &str, cntlid: u16) -> RpcError {
    RpcError::errno(libc::ENODEV).because(format!(
        "`{name}` has no path that is up with controller {cntlid}: bdev_nvme_get_io_paths lists them"
    ))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetPolicy {
    name: String,
    policy: PolicyName,
    selector: Option<Selector>,
    rr_min_io: Option<u32>,
}

/// The policy holds for all namespaces of the controller.
fn set_policy(call: &Call<'_>, params: SetPolicy) -> Result<bool, RpcError> {
    let (controller, _) = remote_of_bdev(call, &params.name)?;
    let remote = remote(&controller);
    let SetPolicy { policy, selector, rr_min_io: min_io, .. } = params;
    let options = PolicyOptions { policy: Some(policy), selector, min_io };
    let options = options.complete(PolicyOptions::default());
    let policy = options.policy()?;
    if remote.config().multipath.is_none() {
        let text = format!("multipath is disabled for controller {}", controller.name);
        return Err(invalid(text));
    }
    change_kept(call, &controller, |kept| kept.multipath_opts = Some(options))?;
    remote.set_multipath(MultipathConfig { policy, ..remote.multipath() });
    Ok(true)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    name: String,
}

fn get_path_iostat(call: &Call<'_>, params: Named) -> Result<Value, RpcError> {
    let (controller, _) = remote_of_bdev(call, &params.name)?;
    let remote = remote(&controller);
    if !remote.counts_paths() {
        return Err(RpcError::errno(libc::EPERM).because(
            "paths are not counted: set io_path_stat by bdev_nvme_set_options before a controller is attached",
        ));
    }
    let path = |path: RemotePath| {
        let get = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &path.counters;
        json!({
            "trid": trid_of(&path.config),
            "stat": {
                "bytes_read": get(&counters.read_bytes),
                "num_read_ops": get(&counters.reads),
                "bytes_written": get(&counters.write_bytes),
                "num_write_ops": get(&counters.writes),
                "num_other_ops": get(&counters.others),
            },
        })
    };
    let stats: Vec<Value> = remote.paths().into_iter().map(path).collect();
    Ok(json!({ "name": params.name, "stats": stats }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OnePath {
    name: String,
    cntlid: Option<u16>,
}

/// Paths are connected again, without waiting for them.
fn enable(call: &Call<'_>, params: OnePath) -> Result<bool, RpcError> {
    let controller = remote_of(call, &params.name)?;
    let remote = remote(&controller);
    let disabled = remote.disabled_paths();
    let named = |path: &&RemotePath| params.cntlid.is_none_or(|id| cntlid(path) == Some(id));
    let found: Vec<&RemotePath> = disabled.iter().filter(named).collect();
    match (found.is_empty(), params.cntlid) {
        (true, Some(cntlid)) => return Err(no_path(&params.name, cntlid)),
        (true, None) => {
            let text = format!("no path of `{}` is disabled", params.name);
            return Err(RpcError::errno(libc::EALREADY).because(text));
        }
        (false, _) => found.iter().for_each(|path| remote.enable_path(path.id)),
    }
    Ok(true)
}

/// Paths are shut down, and their commands take others; without any, they fail.
fn disable(call: &Call<'_>, params: OnePath) -> Result<bool, RpcError> {
    let controller = remote_of(call, &params.name)?;
    let remote = remote(&controller);
    if remote.config().multipath.is_none() {
        let text = format!("multipath is disabled for controller {}", controller.name);
        return Err(invalid(text));
    }
    let paths = remote.paths();
    let named = |path: &&RemotePath| params.cntlid.is_none_or(|id| cntlid(path) == Some(id));
    let found: Vec<&RemotePath> = paths.iter().filter(named).collect();
    match (found.is_empty(), params.cntlid) {
        (true, Some(cntlid)) => return Err(no_path(&params.name, cntlid)),
        (true, None) => {
            let text = format!("all paths of `{}` are disabled", params.name);
            return Err(RpcError::errno(libc::EALREADY).because(text));
        }
        (false, _) => found.iter().for_each(|path| remote.disable_path(path.id)),
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_as_spdk_spells_them() {
        let policy = |options: Value| {
            let options: PolicyOptions = serde_json::from_value(options).unwrap();
            options.policy().map_err(|error| error.message)
        };
        assert_eq!(policy(json!({})), Ok(Policy::ActivePassive));
        assert_eq!(policy(json!({ "policy": "active_passive" })), Ok(Policy::ActivePassive));
        let active = |more: Value| {
            let mut options = json!({ "policy": "active_active" });
            options.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            policy(options)
        };
        assert_eq!(active(json!({})), Ok(Policy::RoundRobin { min_io: 1 }));
        assert_eq!(active(json!({ "min_io": 7 })), Ok(Policy::RoundRobin { min_io: 7 }));
        assert_eq!(active(json!({ "selector": "queue_depth" })), Ok(Policy::QueueDepth));
        assert!(active(json!({ "selector": "queue_depth", "min_io": 7 })).is_err());
        assert!(active(json!({ "min_io": 0 })).is_err());
        assert!(policy(json!({ "selector": "round_robin" })).is_err());
    }

    #[test]
    fn what_a_call_leaves_out_of_its_policy_is_in_the_options() {
        let of = |options: Value| serde_json::from_value::<PolicyOptions>(options).unwrap();
        let active = json!({ "policy": "active_active", "selector": "round_robin", "min_io": 16 });
        let queue_depth = json!({ "policy": "active_active", "selector": "queue_depth" });
        let passive = json!({ "policy": "active_passive" });
        for (given, defaults, all) in [
            (json!({}), json!({}), &passive),
            (json!({}), active.clone(), &active),
            (json!({ "selector": "round_robin" }), active.clone(), &active),
            (json!({ "policy": "active_active" }), json!({ "min_io": 16 }), &active),
            (json!({ "selector": "queue_depth" }), active.clone(), &queue_depth),
            (
                json!({ "policy": "active_active" }),
                json!({ "selector": "queue_depth" }),
                &queue_depth,
            ),
            (passive.clone(), active.clone(), &passive),
        ] {
            let complete = of(given.clone()).complete(of(defaults.clone()));
            assert_eq!(serde_json::to_value(complete).unwrap(), *all, "{given} {defaults}");
            assert!(complete.policy().is_ok() && of(given).agrees_with(complete));
        }
        assert!(!of(passive).agrees_with(of(active.clone())));
        assert!(!of(json!({ "min_io": 4 })).agrees_with(of(active)));
    }

    #[test]
    fn io_fails_between_the_first_attempt_and_the_last() {
        let backoff = |delay, loss| BackoffConfig {
            first: Duration::from_secs(delay),
            longest: Duration::from_secs(delay),
            give_up_after: loss,
        };
        let loss = Some(Duration::from_secs(10));
        for (fast, is_fine) in [(0, true), (1, false), (2, true), (10, true), (11, false)] {
            assert_eq!(check_fast_fail(fast, &backoff(2, loss)).is_ok(), is_fine, "{fast}");
        }
        assert!(check_fast_fail(1000, &backoff(2, None)).is_ok());
    }
}
