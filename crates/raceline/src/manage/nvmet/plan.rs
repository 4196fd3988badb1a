//! What a configuration of the kernel's target means for a daemon: calls, and remarks about all that is not the same there.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::net::IpAddr;
use std::path::PathBuf;

use raceline_auth::DhchapSecret;
use serde_json::{Map, Value, json};
use zeroize::Zeroizing;

use crate::manage::steps::{Plan, Step};

/// What a name that is no NQN becomes.
const PREFIX: &str = "nqn.2026-01.io.raceline:";
/// Blocks of the kernel's namespaces in files.
const FILE_BLOCK_BYTES: u32 = 4096;
/// The group of paths in which namespaces of the kernel are.
const DEFAULT_GROUP: u64 = 1;
/// Attributes of subsystems that are imported, or that hosts do not see.
const KNOWN_ATTRIBUTES: &[&str] = &[
    "allow_any_host",
    "serial",
    "model",
    "cntlid_min",
    "cntlid_max",
    "pi_enable",
    "version",
    "qid_max",
];

/// Attributes of an address that are imported, or on which there is a remark of their own.
const KNOWN_ADDRESS: &[&str] = &["trtype", "adrfam", "traddr", "trsvcid", "treq", "tsas"];

/// What the daemon has.
#[derive(Debug, Default)]
pub(super) struct Taken {
    pub(super) devices: Vec<String>,
    pub(super) keys: Vec<String>,
    /// Its transports, in small letters.
    pub(super) transports: Vec<String>,
    /// What its TCP transport has of the parameters of ports, by the kernel's names.
    pub(super) sizes: BTreeMap<&'static str, i64>,
    pub(super) keys_folder: PathBuf,
}

/// A plan, and the secrets that it needs.
#[derive(Default)]
pub(super) struct Planned {
    pub(super) plan: Plan,
    /// Keys by their names.
    pub(super) keys: Vec<(String, Zeroizing<String>)>,
}

/// The plan of a configuration.
///
/// # Errors
/// When the configuration contradicts itself, or has values of other kinds; says which object.
pub(super) fn make(saved: &Value, taken: Taken) -> Result<Planned, String> {
    let root = Node { value: saved, path: String::new() };
    root.object()?;
    let mut planner = Planner { taken, ..Planner::default() };
    planner.unknown(&root, &["hosts", "subsystems", "ports", "discovery"]);
    planner.transport(&root)?;
    for host in root.list("hosts")? {
        planner.host(&host)?;
    }
    for subsystem in root.list("subsystems")? {
        planner.subsystem(&subsystem)?;
    }
    for port in root.list("ports")? {
        planner.port(&port)?;
    }
    planner.unknown(&root.member("discovery"), &["nqn"]);
    if let Some(nqn) = root.member("discovery").text("nqn")?
        && nqn != "nqn.2014-08.org.nvmexpress.discovery"
    {
        planner.remark("/discovery_nqn", "the discovery service keeps its well-known name");
    }
    Ok(planner.planned)
}

/// A value, and where it is.
struct Node<'a> {
    value: &'a Value,
    path: String,
}

impl<'a> Node<'a> {
    fn object(&self) -> Result<&'a Map<String, Value>, String> {
        let shown = if self.path.is_empty() { "the configuration" } else { &self.path };
        self.value.as_object().ok_or_else(|| format!("{shown} has to be an object"))
    }

    fn member(&self, name: &str) -> Self {
        Self { value: &self.value[name], path: format!("{}/{name}", self.path) }
    }

    /// A list of objects or texts; there may be none.
    fn list(&self, name: &str) -> Result<Vec<Self>, String> {
        let member = self.member(name);
        match member.value {
            Value::Null => Ok(Vec::new()),
            Value::Array(list) => {
                let entries = list.iter().enumerate();
                Ok(entries
                    .map(|(place, value)| Self { value, path: format!("{}[{place}]", member.path) })
                    .collect())
            }
            _ => Err(format!("{} has to be a list", member.path)),
        }
    }

    /// Text or a number, as text: nvmetcli saves attributes as text. Empty is none.
    fn text(&self, name: &str) -> Result<Option<String>, String> {
        match &self.value[name] {
            Value::Null => Ok(None),
            Value::String(text) => Ok(Some(text.trim().to_owned()).filter(|text| !text.is_empty())),
            Value::Number(number) => Ok(Some(number.to_string())),
            _ => Err(format!("{}/{name} has to be text or a number", self.path)),
        }
    }

    fn number(&self, name: &str) -> Result<Option<u64>, String> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        let wrong =
            |_| format!("{}/{name} has to be a number, and is {}", self.path, text.escape_debug());
        text.parse().map(Some).map_err(wrong)
    }

    /// 0 or 1; anything else is off.
    fn is_on(&self, name: &str) -> Result<bool, String> {
        Ok(self.text(name)?.is_some_and(|text| text == "1"))
    }

    /// The text of an element of a list.
    fn itself(&self) -> Result<&'a str, String> {
        self.value.as_str().ok_or_else(|| format!("{} has to be text", self.path))
    }
}

#[derive(Default)]
struct Planner {
    taken: Taken,
    planned: Planned,
    /// Subsystems that are made: the name in the file, and the one here.
    subsystems: BTreeMap<String, String>,
    /// Files that are devices already, and where.
    devices: BTreeMap<String, String>,
    /// Keys of hosts: the host's, and the controller's.
    keys: BTreeMap<String, [Option<String>; 2]>,
}

impl Planner {
    fn step(
        &mut self,
        what: impl Display,
        method: &'static str,
        params: Value,
        undo: Option<(&'static str, Value)>,
    ) {
        self.planned.plan.steps.push(Step { what: what.to_string(), method, params, undo });
    }

    fn remark(&mut self, path: &str, text: impl Display) {
        self.planned.plan.remarks.push(format!("{path}: {text}"));
    }

    /// Remarks on members that mean nothing here.
    fn unknown(&mut self, node: &Node<'_>, known: &[&str]) {
        let members =
            node.value.as_object().map(|object| object.keys().cloned().collect::<Vec<_>>());
        for name in members.unwrap_or_default() {
            if !known.contains(&name.as_str()) {
                self.remark(&format!("{}/{name}", node.path), "there is nothing like it here");
            }
        }
    }

    /// The cores start with the transport, which has one value of these for all ports.
    fn transport(&mut self, root: &Node<'_>) -> Result<(), String> {
        let inline = self.largest(root, "inline_data_size")?;
        let queue = self.largest(root, "max_queue_size")?;
        if self.has_transport("tcp") {
            return Ok(());
        }
        let mut params = json!({ "trtype": "TCP", "in_capsule_data_size": inline });
        if let Some(entries) = queue {
            params["max_queue_depth"] = entries.into();
        }
        self.step("the TCP transport", "nvmf_create_transport", params, None);
        Ok(())
    }

    /// The largest value that a port has of a parameter; the kernel takes its own where it is not positive.
    fn largest(&mut self, root: &Node<'_>, name: &str) -> Result<Option<i64>, String> {
        let mut values = BTreeSet::new();
        for port in root.list("ports")? {
            let value = port.member("param").text(name)?;
            let value = value.and_then(|text| text.parse::<i64>().ok()).filter(|value| *value > 0);
            values.extend(value);
        }
        let Some(&largest) = values.last() else { return Ok(None) };
        if self.has_transport("tcp") && self.taken.sizes.get(name) == Some(&largest) {
            // Nothing has to be set.
        } else if self.has_transport("tcp") {
            let text =
                format!("{name} {largest} is not set, because the transport is there already");
            self.remark("/ports", text);
        } else if values.len() > 1 {
            self.remark("/ports", format!("all ports have the largest {name}, {largest}"));
        }
        Ok(Some(largest))
    }

    fn has_transport(&self, name: &str) -> bool {
        self.taken.transports.iter().any(|transport| transport == name)
    }

    // ------------------------------------------------------------------------------ hosts

    fn host(&mut self, host: &Node<'_>) -> Result<(), String> {
        host.object()?;
        let nqn = host.text("nqn")?.ok_or_else(|| format!("{} has no nqn", host.path))?;
        let path = format!("/hosts/{nqn}");
        self.unknown(host, &["nqn", "dhchap"]);
        let group = host.member("dhchap");
        self.unknown(&group, &["key", "ctrl_key", "hash", "dhgroup"]);
        let own = self.key(&path, &nqn, (&group, "key", ""))?;
        let theirs = self.key(&path, &nqn, (&group, "ctrl_key", "-ctrl"))?;
        if own.is_some() {
            for (name, default) in [("hash", "hmac(sha256)"), ("dhgroup", "null")] {
                if let Some(value) = group.text(name)?.filter(|value| value != default) {
                    let text = format!(
                        "{value} is not asked for of this host alone: nvmf_set_config says what all hosts may use"
                    );
                    self.remark(&format!("{path}/dhchap_{name}"), text);
                }
            }
        }
        self.keys.insert(nqn, [own, theirs]);
        Ok(())
    }

    /// The name of a key of a host; its text goes into the folder of keys.
    fn key(
        &mut self,
        path: &str,
        nqn: &str,
        (group, name, end): (&Node<'_>, &str, &str),
    ) -> Result<Option<String>, String> {
        let Some(text) = group.text(name)?.map(Zeroizing::new) else { return Ok(None) };
        // The error of a key shows no part of it.
        if let Err(error) = DhchapSecret::parse(&text) {
            return Err(format!("{path}/dhchap_{name}: {error}"));
        }
        let letters = nqn
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || "-.".contains(c) { c } else { '-' });
        let base: String = letters
            .collect::<String>()
            .chars()
            .rev()
            .take(40)
            .collect::<Vec<_>>()
            .into_iter()
            .rev()
            .collect();
        let base = format!("nvmet-{base}{end}");
        let numbered = (2..).map(|number| format!("{base}-{number}"));
        let free = |name: &String| !self.taken.keys.contains(name);
        let chosen = std::iter::once(base.clone()).chain(numbered).find(free).unwrap_or(base);
        let file = self.taken.keys_folder.join(&chosen);
        self.taken.keys.push(chosen.clone());
        self.step(
            format!("key {chosen}"),
            "keyring_file_add_key",
            json!({ "name": chosen, "path": file }),
            Some(("keyring_file_remove_key", json!({ "name": chosen }))),
        );
        self.planned.keys.push((chosen.clone(), text));
        Ok(Some(chosen))
    }

    // ------------------------------------------------------------------------- subsystems

    fn subsystem(&mut self, subsystem: &Node<'_>) -> Result<(), String> {
        subsystem.object()?;
        let name =
            subsystem.text("nqn")?.ok_or_else(|| format!("{} has no nqn", subsystem.path))?;
        let path = format!("/subsystems/{name}");
        if self.subsystems.contains_key(&name) {
            return Err(format!("{path} stands twice"));
        }
        self.unknown(subsystem, &["nqn", "attr", "namespaces", "allowed_hosts", "passthru"]);
        for (place, passthru) in subsystem.list("passthru")?.iter().enumerate() {
            let device = passthru.member("device").text("path")?;
            if passthru.is_on("enable")? {
                let device = device.unwrap_or_default();
                let text = format!(
                    "a controller cannot be passed through: attach the drive {device} (raceline bdev add) and export its namespaces"
                );
                self.remark(&format!("{path}/passthru[{place}]"), text);
            }
        }
        let nqn = match name.starts_with("nqn.") {
            true => name.clone(),
            false => {
                let nqn = format!("{PREFIX}{name}");
                self.remark(&path, format!("the name is no NQN, so hosts connect to {nqn}"));
                nqn
            }
        };
        self.subsystems.insert(name, nqn.clone());
        let attr = subsystem.member("attr");
        self.attributes(&path, &attr)?;
        let namespaces = subsystem.list("namespaces")?;
        let mut largest = 0;
        for namespace in &namespaces {
            largest = largest.max(namespace.number("nsid")?.unwrap_or(0));
        }
        let any = attr.is_on("allow_any_host")?;
        let params = json!({
            "nqn": nqn,
            "serial_number": attr.text("serial")?.map(|text| text.chars().take(20).collect::<String>()),
            "model_number": attr.text("model")?,
            "allow_any_host": any,
            "ana_reporting": true,
            "min_cntlid": attr.number("cntlid_min")?,
            "max_cntlid": attr.number("cntlid_max")?,
            "max_namespaces": (largest > 32).then_some(largest),
        });
        let undo = Some(("nvmf_delete_subsystem", json!({ "nqn": nqn })));
        self.step(format!("subsystem {nqn}"), "nvmf_create_subsystem", params, undo);
        for namespace in &namespaces {
            self.namespace(&path, &nqn, namespace)?;
        }
        for host in subsystem.list("allowed_hosts")? {
            self.allow(&path, &nqn, host.itself()?);
        }
        Ok(())
    }

    fn attributes(&mut self, path: &str, attr: &Node<'_>) -> Result<(), String> {
        let Some(members) = attr.value.as_object() else { return Ok(()) };
        let other: Vec<&str> = members
            .keys()
            .map(String::as_str)
            .filter(|name| !KNOWN_ATTRIBUTES.contains(name))
            .collect();
        if !other.is_empty() {
            self.remark(path, format!("hosts see other values of {}", other.join(", ")));
        }
        if attr.is_on("pi_enable")? {
            self.remark(
                &format!("{path}/attr_pi_enable"),
                "there is no protection information here",
            );
        }
        if let Some(queues) = attr.number("qid_max")?.filter(|queues| *queues < 128) {
            let text = format!(
                "hosts may have more than {queues} queues: nvmf_create_transport max_io_qpairs_per_ctrlr limits them"
            );
            self.remark(&format!("{path}/attr_qid_max"), text);
        }
        Ok(())
    }

    fn allow(&mut self, path: &str, nqn: &str, host: &str) {
        let [own, theirs] = self.keys.get(host).cloned().unwrap_or_else(|| {
            self.planned.plan.remarks.push(format!(
                "{path}/allowed_hosts/{host}: /hosts does not have it; it is let in all the same"
            ));
            [None, None]
        });
        let with = if own.is_some() { ", by its key" } else { "" };
        let params =
            json!({ "nqn": nqn, "host": host, "dhchap_key": own, "dhchap_ctrlr_key": theirs });
        self.step(format!("host {host} of {nqn}{with}"), "nvmf_subsystem_add_host", params, None);
    }

    fn namespace(&mut self, path: &str, nqn: &str, namespace: &Node<'_>) -> Result<(), String> {
        namespace.object()?;
        let nsid =
            namespace.number("nsid")?.filter(|nsid| (1..=u64::from(u32::MAX - 1)).contains(nsid));
        let nsid = nsid.ok_or_else(|| format!("{} has no nsid from 1 on", namespace.path))?;
        let path = format!("{path}/namespaces/{nsid}");
        self.unknown(
            namespace,
            &["nsid", "enable", "ana_grpid", "ana", "buffered_io", "device", "resv"],
        );
        if !namespace.is_on("enable")? {
            self.remark(&path, "it is disabled, and is not made");
            return Ok(());
        }
        let device = namespace.member("device");
        self.unknown(&device, &["path", "uuid", "nguid", "p2pmem"]);
        self.unknown(&namespace.member("ana"), &["grpid"]);
        let reservations = namespace.member("resv");
        self.unknown(&reservations, &["enable"]);
        if reservations.text("enable")?.is_some_and(|value| value != "1") {
            let text = "hosts may make reservations here, which cannot be turned off";
            self.remark(&format!("{path}/resv_enable"), text);
        }
        let file = device.text("path")?.filter(|file| file.starts_with('/'));
        let file = file.ok_or_else(|| format!("{path}/device_path has to be an absolute path"))?;
        if let Some(first) = self.devices.get(&file) {
            let text = format!("{file} is {first} already, and a device is used once here");
            self.remark(&path, text);
            return Ok(());
        }
        if namespace.is_on("buffered_io")? {
            self.remark(&format!("{path}/buffered_io"), "files are not cached here");
        }
        if device.text("p2pmem")?.is_some_and(|value| value != "0") {
            self.remark(&format!("{path}/p2pmem"), "there is no peer-to-peer memory here");
        }
        let name = self.device(&file);
        self.devices.insert(file, path.clone());
        let group = match namespace.number("ana_grpid")? {
            Some(group) => group,
            None => namespace.member("ana").number("grpid")?.unwrap_or(DEFAULT_GROUP),
        };
        let plain = |text: String| {
            Some(text.replace('-', "")).filter(|text| text.bytes().any(|byte| byte != b'0'))
        };
        // The kernel shows an NGUID of zeroes, which is none, unless one is set; Linux as a host ends a namespace whose
        // identifiers change.
        let nguid = device.text("nguid")?.and_then(plain).unwrap_or_else(|| "0".repeat(32));
        let mut params =
            json!({ "nsid": nsid, "bdev_name": name, "anagrpid": group, "nguid": nguid });
        if let Some(uuid) = device.text("uuid")?.filter(|text| plain(text.clone()).is_some()) {
            params["uuid"] = uuid.into();
        }
        let params = json!({ "nqn": nqn, "namespace": params });
        self.step(format!("namespace {nsid} of {nqn}"), "nvmf_subsystem_add_ns", params, None);
        Ok(())
    }

    /// Opens a file or a block device; its name.
    fn device(&mut self, file: &str) -> String {
        let base = file.rsplit('/').next().unwrap_or("disk").to_owned();
        let numbered = (2..).map(|number| format!("{base}-{number}"));
        let free = |name: &String| !self.taken.devices.contains(name);
        let name = std::iter::once(base.clone()).chain(numbered).find(free).unwrap_or(base);
        self.taken.devices.push(name.clone());
        let mut params = json!({ "name": name, "filename": file });
        // The blocks of a device are its own.
        if !file.starts_with("/dev/") {
            params["block_size"] = FILE_BLOCK_BYTES.into();
        }
        let undo = Some(("bdev_uring_delete", json!({ "name": name })));
        self.step(format!("device {name}: {file}"), "bdev_uring_create", params, undo);
        name
    }

    // ------------------------------------------------------------------------------ ports

    fn port(&mut self, port: &Node<'_>) -> Result<(), String> {
        port.object()?;
        let id = port.number("portid")?.ok_or_else(|| format!("{} has no portid", port.path))?;
        let path = format!("/ports/{id}");
        self.unknown(port, &["portid", "addr", "param", "ana_groups", "referrals", "subsystems"]);
        let addr = port.member("addr");
        let transport = addr.text("trtype")?.unwrap_or_default();
        let subsystems = port.list("subsystems")?;
        let is_rdma = transport == "rdma";
        if transport != "tcp" && !(is_rdma && self.has_transport("rdma")) {
            let names: Result<Vec<&str>, String> = subsystems.iter().map(Node::itself).collect();
            let why = if is_rdma {
                "transport rdma is not there: start the daemon with --rdma, and make the transport with `raceline rpc \
                 nvmf_create_transport trtype=RDMA` before the import"
                    .to_owned()
            } else {
                format!("transport {transport} has no counterpart here")
            };
            self.remark(&path, format!("{why}; there is no way by it to {}", join(&names?)));
            return Ok(());
        }
        if subsystems.is_empty() {
            self.remark(&path, "it has no subsystem, and is not made");
        }
        self.unknown(&addr, KNOWN_ADDRESS);
        self.parameters(&path, &port.member("param"))?;
        let address = address(&path, &addr)?;
        let is_secure = addr.text("tsas")?.is_some_and(|tsas| tsas == "tls1.3");
        if is_secure {
            let text = "it is for TLS: the keys of the kernel's keyring are not read; add each host with raceline host add --psk";
            self.remark(&path, text);
            if addr.text("treq")?.is_some_and(|treq| treq == "not required") {
                let text = "the kernel takes hosts without TLS here too; the daemon takes those with TLS alone";
                self.remark(&format!("{path}/addr_treq"), text);
            }
        }
        for subsystem in subsystems {
            let name = subsystem.itself()?;
            let nqn = self.subsystems.get(name).cloned();
            let nqn =
                nqn.ok_or_else(|| format!("{path}/subsystems/{name}: there is no such subsystem"))?;
            let params = json!({ "nqn": nqn, "listen_address": address, "secure_channel": is_secure.then_some(true) });
            let (host, service) = (&address["traddr"], &address["trsvcid"]);
            let what = format!(
                "{nqn} reached at {} port {}",
                host.as_str().unwrap_or_default(),
                service.as_str().unwrap_or_default()
            );
            self.step(what, "nvmf_subsystem_add_listener", params, None);
            self.ana(&path, port, (&nqn, &address))?;
        }
        for referral in port.list("referrals")? {
            self.referral(&path, &referral)?;
        }
        Ok(())
    }

    fn parameters(&mut self, path: &str, param: &Node<'_>) -> Result<(), String> {
        if param.is_on("pi_enable")? {
            self.remark(
                &format!("{path}/param_pi_enable"),
                "there is no protection information here",
            );
        }
        if let Some(mdts) = param.text("mdts")?.filter(|mdts| mdts != "0") {
            let text =
                format!("{mdts} is not set: max_io_size of nvmf_create_transport is for all ports");
            self.remark(&format!("{path}/param_mdts"), text);
        }
        for name in param.value.as_object().into_iter().flat_map(Map::keys) {
            if !["pi_enable", "inline_data_size", "max_queue_size", "mdts"].contains(&name.as_str())
            {
                self.remark(&format!("{path}/param_{name}"), "there is nothing like it here");
            }
        }
        Ok(())
    }

    fn ana(
        &mut self,
        path: &str,
        port: &Node<'_>,
        (nqn, address): (&str, &Value),
    ) -> Result<(), String> {
        for group in port.list("ana_groups")? {
            let id =
                group.number("grpid")?.ok_or_else(|| format!("{} has no grpid", group.path))?;
            self.unknown(&group, &["grpid", "ana"]);
            self.unknown(&group.member("ana"), &["state"]);
            let state =
                group.member("ana").text("state")?.unwrap_or_else(|| "optimized".to_owned());
            let state = match state.as_str() {
                "optimized" => continue,
                "non-optimized" => "non_optimized",
                "inaccessible" => "inaccessible",
                "persistent-loss" => "persistent_loss",
                other => {
                    let text = format!(
                        "state {} does not last; the group is optimized",
                        other.escape_debug()
                    );
                    self.remark(&format!("{path}/ana_groups/{id}"), text);
                    continue;
                }
            };
            let params = json!({ "nqn": nqn, "listen_address": address, "ana_state": state, "anagrpid": id });
            self.step(
                format!("group {id} of {nqn} {state} there"),
                "nvmf_subsystem_listener_set_ana_state",
                params,
                None,
            );
        }
        Ok(())
    }

    fn referral(&mut self, path: &str, referral: &Node<'_>) -> Result<(), String> {
        let name = referral.text("name")?.unwrap_or_else(|| "?".to_owned());
        let path = format!("{path}/referrals/{name}");
        let addr = referral.member("addr");
        self.unknown(referral, &["name", "addr", "enable", "portid"]);
        self.unknown(&addr, KNOWN_ADDRESS);
        if !matches!(addr.text("trtype")?.as_deref(), Some("tcp" | "rdma")) {
            self.remark(&path, "its transport has no counterpart here");
            return Ok(());
        }
        if !referral.is_on("enable")? {
            self.remark(&path, "it is disabled, and is not made");
            return Ok(());
        }
        let address = address(&path, &addr)?;
        let undo = Some(("nvmf_discovery_remove_referral", json!({ "address": address })));
        self.step(
            format!("referral {name}"),
            "nvmf_discovery_add_referral",
            json!({ "address": address }),
            undo,
        );
        Ok(())
    }
}

fn join(names: &[&str]) -> String {
    if names.is_empty() { "any subsystem".to_owned() } else { names.join(", ") }
}

/// The address of a port as the daemon takes it.
fn address(path: &str, addr: &Node<'_>) -> Result<Value, String> {
    let text = addr.text("traddr")?.unwrap_or_default();
    let ip: IpAddr = text.parse().map_err(|_| {
        format!("{path}/addr_traddr has to be an IP address, and is {}", text.escape_debug())
    })?;
    let port = addr.number("trsvcid")?.filter(|port| (1..=65_535).contains(port));
    let port =
        port.ok_or_else(|| format!("{path}/addr_trsvcid has to be a port from 1 to 65535"))?;
    let family = if ip.is_ipv4() { "IPv4" } else { "IPv6" };
    if let Some(given) = addr.text("adrfam")?
        && !given.eq_ignore_ascii_case(family)
    {
        return Err(format!(
            "{path}/addr_adrfam is {}, and {ip} is {family}",
            given.escape_debug()
        ));
    }
    let transport = addr.text("trtype")?.unwrap_or_default().to_ascii_uppercase();
    Ok(
        json!({ "trtype": transport, "adrfam": family, "traddr": ip.to_string(), "trsvcid": port.to_string() }),
    )
}

#[cfg(test)]
mod tests;
