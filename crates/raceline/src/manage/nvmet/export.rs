//! What a daemon exports, in the form that `nvmetcli restore` reads.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::super::{Daemon, elements, text};
use super::sizes_of;
use crate::failure::Failure;
use crate::shell;
use crate::table::printable;

/// Largest number of a namespace or port in nvmetcli.
const MAX_ID: u64 = 8192;
/// Largest number of a group of paths in the kernel (NVMET_MAX_ANAGRPS).
const MAX_GROUP: u64 = 128;
/// The group of paths that each port of the kernel has.
const FIRST_GROUP: u64 = 1;
/// Blocks of the kernel's namespaces in files.
const FILE_BLOCK_BYTES: u64 = 4096;
/// The kernel's limits of `param_max_queue_size`, which it applies itself.
const QUEUE_ENTRIES: std::ops::RangeInclusive<i64> = 16..=1024;
/// What who restores the file on an older kernel has to know.
const OLDER_KERNELS: &str = "kernels before Linux 6.9 have no param_max_queue_size: there, nvmetcli restore prints an error for each port, and \
     goes on without it";
/// The target of calls that name none.
const TARGET: &str = "nvmf_tgt";
/// The numbers of controllers, unless they are set.
const ALL_CONTROLLERS: (u64, u64) = (1, 65_519);

/// Writes the file, and says on standard error what is not in it.
pub(super) fn run(daemon: &mut Daemon, file: &Path, force: bool) -> Result<(), Failure> {
    let mut exporter = Exporter {
        bdevs: daemon.list("bdev_get_bdevs", Value::Null)?,
        transports: daemon.list("nvmf_get_transports", Value::Null)?,
        ..Exporter::default()
    };
    for subsystem in daemon.subsystems(None)? {
        let nqn = text(&subsystem["nqn"]);
        let listeners = daemon.list("nvmf_subsystem_get_listeners", json!({ "nqn": nqn }))?;
        exporter.subsystem(&nqn, &subsystem);
        for listener in &listeners {
            exporter.listener(&nqn, listener);
        }
    }
    let referrals = daemon.try_call("nvmf_discovery_get_referrals", Value::Null).ok();
    for referral in referrals.iter().flat_map(|list| list.as_array().into_iter().flatten()) {
        exporter.remark(format!(
            "referral to {}: a referral of nvmet is one of a port",
            text(&referral["address"]["traddr"])
        ));
    }
    for limits in daemon.list("nvmf_get_qos_limits", Value::Null)? {
        exporter.limits(&limits);
    }
    for target in daemon.list("nvmf_get_targets", Value::Null)? {
        let name = text(&target);
        if name != TARGET {
            exporter.remark(format!("target {name}: the kernel has one target"));
        }
    }
    let document = exporter.document();
    write(file, force, format!("{document:#}\n").as_bytes())?;
    if needs_queue_size(&document) {
        shell::note(OLDER_KERNELS);
    }
    for remark in &exporter.remarks {
        shell::note(&format!("not exported: {}", printable(remark)));
    }
    Ok(())
}

/// Only the owner may read the file, as nvmetcli has it. What is there is not overwritten by a part of the new one.
fn write(file: &Path, force: bool, document: &[u8]) -> Result<(), Failure> {
    if file == Path::new("-") {
        return shell::print(document);
    }
    let failed = |error: std::io::Error| Failure::runtime(format!("{}: {error}", file.display()));
    if !force && file.symlink_metadata().is_ok() {
        return Err(Failure::usage(format!(
            "{} is there already: name another file, or add --force",
            file.display()
        )));
    }
    let mut draft = file.as_os_str().to_owned();
    draft.push(format!(".{}.temp", std::process::id()));
    let draft = Path::new(&draft);
    let whole = OpenOptions::new().write(true).create_new(true).mode(0o600).open(draft).and_then(
        |mut out| {
            out.write_all(document)?;
            out.sync_all()?;
            std::fs::rename(draft, file)
        },
    );
    whole.map_err(|error| {
        // It may not have been made.
        drop(std::fs::remove_file(draft));
        failed(error)
    })
}

/// Whether a port has `param_max_queue_size`.
fn needs_queue_size(document: &Value) -> bool {
    elements(document, "ports").iter().any(|port| !port["param"]["max_queue_size"].is_null())
}

/// An address with what it leads to.
#[derive(Default)]
struct Port {
    addr: Value,
    subsystems: Vec<String>,
    /// States of groups other than optimized.
    states: BTreeMap<u64, String>,
}

#[derive(Default)]
struct Exporter {
    bdevs: Vec<Value>,
    transports: Vec<Value>,
    hosts: Vec<String>,
    subsystems: Vec<Value>,
    ports: Vec<Port>,
    remarks: Vec<String>,
}

impl Exporter {
    fn remark(&mut self, text: String) {
        if !self.remarks.contains(&text) {
            self.remarks.push(text);
        }
    }

    /// Limits and weights, which the kernel's target has for nothing.
    fn limits(&mut self, limits: &Value) {
        let name = text(&limits["name"]);
        let what = match text(&limits["type"]).as_str() {
            "bdev" => format!("limits of device {name}"),
            "subsystem" => format!("limits of {name}"),
            "weight" => format!("weight of host {name} at {}", text(&limits["nqn"])),
            _ => format!("limits of the hosts of {name}"),
        };
        self.remark(format!("{what}: the kernel's target limits nothing"));
    }

    /// The parameters of a port, as text, as nvmetcli has them.
    fn parameters(&self, transport: &str) -> Value {
        let sizes = sizes_of(&self.transports, transport);
        let shown =
            sizes.into_iter().map(|(name, size)| (name.to_owned(), size.to_string().into()));
        Value::Object(shown.collect())
    }

    /// Parameters that the kernel does not take as they are.
    fn check_parameters(&mut self, transport: &str) {
        let entries = sizes_of(&self.transports, transport).remove("max_queue_size");
        if let Some(entries) = entries.filter(|entries| !QUEUE_ENTRIES.contains(entries)) {
            let (least, most) = (QUEUE_ENTRIES.start(), QUEUE_ENTRIES.end());
            self.remark(format!(
                "max_queue_depth {entries} of transport {transport}: the kernel has queues of {least} to {most} entries"
            ));
        }
    }

    fn document(&self) -> Value {
        let ports = self.ports.iter().zip(1_u32..).map(|(port, id)| {
            // Group 1 is always there.
            let mut states = port.states.clone();
            states.entry(1).or_insert_with(|| "optimized".to_owned());
            let groups = states
                .iter()
                .map(|(group, state)| json!({ "grpid": group, "ana": { "state": state } }));
            json!({
                "portid": id,
                "addr": port.addr,
                "param": self.parameters(&text(&port.addr["trtype"])),
                "subsystems": port.subsystems,
                "ana_groups": groups.collect::<Vec<_>>(),
                "referrals": [],
            })
        });
        let hosts = self.hosts.iter().map(|nqn| json!({ "nqn": nqn }));
        json!({
            "hosts": hosts.collect::<Vec<_>>(),
            "subsystems": self.subsystems,
            "ports": ports.collect::<Vec<_>>(),
        })
    }

    fn subsystem(&mut self, nqn: &str, subsystem: &Value) {
        let any = subsystem["allow_any_host"] == true;
        let mut allowed = Vec::new();
        for host in elements(subsystem, "hosts") {
            let name = text(&host["nqn"]);
            if !host["security"].is_null() {
                let level = text(&host["security"]);
                self.remark(format!("{nqn}: the level of security of host {name}, {level}"));
            }
            for key in ["dhchap_key", "dhchap_ctrlr_key", "psk"] {
                if !host[key].is_null() {
                    self.remark(format!(
                        "key {} of host {name}: the daemon shows no secret; write it into configfs (dhchap_key), or into the \
                         keyring with nvme check-tls-key --insert",
                        text(&host[key])
                    ));
                }
            }
            // The kernel refuses a list of hosts where any host may connect.
            if !any {
                allowed.push(name.clone());
            }
            if !self.hosts.contains(&name) {
                self.hosts.push(name);
            }
        }
        if !subsystem["security"].is_null() {
            self.remark(format!("{nqn}: its level of security, {}", text(&subsystem["security"])));
        }
        if subsystem["psk_optional"] == true {
            self.remark(format!("{nqn}: that hosts with a key for TLS may come without it"));
        }
        let mut attr = Map::new();
        attr.insert("allow_any_host".to_owned(), (if any { "1" } else { "0" }).into());
        for (name, member) in [("serial", "serial_number"), ("model", "model_number")] {
            let value = text(&subsystem[member]);
            if !value.is_empty() {
                attr.insert(name.to_owned(), value.into());
            }
        }
        let numbers =
            ["min_cntlid", "max_cntlid"].map(|name| subsystem[name].as_u64().unwrap_or(0));
        if numbers != [ALL_CONTROLLERS.0, ALL_CONTROLLERS.1] {
            for (name, number) in ["cntlid_min", "cntlid_max"].into_iter().zip(numbers) {
                attr.insert(name.to_owned(), number.to_string().into());
            }
        }
        let listed = elements(subsystem, "namespaces");
        let namespaces: Vec<Value> =
            listed.iter().filter_map(|namespace| self.namespace(nqn, namespace)).collect();
        self.subsystems.push(json!({
            "nqn": nqn, "attr": attr, "allowed_hosts": allowed, "namespaces": namespaces,
        }));
    }

    fn namespace(&mut self, nqn: &str, namespace: &Value) -> Option<Value> {
        let nsid = namespace["nsid"].as_u64()?;
        let place = format!("namespace {nsid} of {nqn}");
        let name = text(&namespace["bdev_name"]);
        if nsid > MAX_ID {
            self.remark(format!("{place}: nvmetcli has numbers up to {MAX_ID}"));
            return None;
        }
        if namespace["of_pool"] == true {
            self.remark(format!(
                "{place}: it is a part of the pool on {name}, and the kernel has no pools"
            ));
            return None;
        }
        let bdev = self.bdevs.iter().find(|bdev| bdev["name"] == name.as_str());
        let specific = bdev.map_or(&Value::Null, |bdev| &bdev["driver_specific"]);
        let path = ["uring", "aio"].iter().find_map(|kind| specific[*kind]["filename"].as_str());
        let Some(path) = path.filter(|path| path.starts_with('/')) else {
            self.remark(format!(
                "{place}: the kernel exports files and block devices, and {name} is neither"
            ));
            return None;
        };
        let path = path.to_owned();
        if namespace["no_auto_visible"] == true {
            self.remark(format!(
                "{place}: hosts see it that the daemon hides it from, so it is left out"
            ));
            return None;
        }
        let mut device = json!({ "path": path, "uuid": namespace["uuid"] });
        let nguid = text(&namespace["nguid"]).to_ascii_lowercase();
        if nguid.len() == 32 && nguid.is_ascii() && nguid.bytes().any(|byte| byte != b'0') {
            let groups = [0..8, 8..12, 12..16, 16..20, 20..32].map(|group| nguid[group].to_owned());
            device["nguid"] = groups.join("-").into();
        }
        self.differences(&place, namespace, &path);
        // A port of the kernel has the groups that are made in it, and group 1.
        let group = namespace["anagrpid"].as_u64().unwrap_or(FIRST_GROUP);
        let group = if group > MAX_GROUP { FIRST_GROUP } else { group };
        Some(json!({ "nsid": nsid, "enable": 1, "ana_grpid": group, "device": device }))
    }

    /// What is not the same of a namespace that is exported.
    fn differences(&mut self, place: &str, namespace: &Value, path: &str) {
        let name = text(&namespace["bdev_name"]);
        let bdev = self.bdevs.iter().find(|bdev| bdev["name"] == name.as_str()).cloned();
        let bdev = bdev.unwrap_or_default();
        if bdev["supported_io_types"]["write"] == false {
            self.remark(format!(
                "{place}: that hosts may only read it; the kernel lets them write, unless {path} is a block device that \
                 is read-only itself"
            ));
        }
        let block_bytes = bdev["block_size"].as_u64().unwrap_or(FILE_BLOCK_BYTES);
        if !path.starts_with("/dev/") && block_bytes != FILE_BLOCK_BYTES {
            self.remark(format!(
                "{place}: its blocks of {block_bytes} bytes; the kernel gives a file blocks of {FILE_BLOCK_BYTES} bytes, \
                 so partitions and file systems in it may not be found"
            ));
        }
        let eui64 = text(&namespace["eui64"]);
        if !eui64.is_empty() {
            self.remark(format!("{place}: its EUI64, {eui64}: the kernel has a UUID and an NGUID"));
        }
        if let Some(group) = namespace["anagrpid"].as_u64().filter(|group| *group > MAX_GROUP) {
            self.remark(format!(
                "{place}: its ANA group, {group}: the kernel has {MAX_GROUP} groups, so it is in group {FIRST_GROUP} there"
            ));
        }
    }

    fn listener(&mut self, nqn: &str, listener: &Value) {
        let address = &listener["address"];
        let transport = text(&address["trtype"]).to_ascii_lowercase();
        if !["tcp", "rdma"].contains(&transport.as_str()) {
            self.remark(format!("an address of {nqn} by {transport}"));
            return;
        }
        let (host, service) = (text(&address["traddr"]), text(&address["trsvcid"]));
        let mut addr = json!({
            "trtype": transport,
            "adrfam": text(&address["adrfam"]).to_ascii_lowercase(),
            "traddr": host,
            "trsvcid": service,
            "treq": "not specified",
        });
        self.check_parameters(&transport);
        let level = text(&listener["security"]);
        if !level.is_empty() && level != "plain" {
            (addr["treq"], addr["tsas"]) = ("required".into(), "tls1.3".into());
            if level != "tls" {
                self.remark(format!("the level of security {level} of {nqn} at {host} port {service}: it is TLS there"));
            }
        }
        let found = self.ports.iter().position(|port| port.addr == addr);
        let place = found.unwrap_or_else(|| {
            self.ports.push(Port { addr, ..Port::default() });
            self.ports.len() - 1
        });
        let mut states = BTreeMap::new();
        for group in elements(listener, "ana_states") {
            let state = text(&group["ana_state"]).replace('_', "-");
            let Some(id) = group["ana_group"].as_u64() else { continue };
            if id <= MAX_GROUP {
                states.insert(id, state);
            } else if state != "optimized" {
                self.remark(format!(
                    "the state {state} of group {id} of {nqn} at {host} port {service}: the kernel has {MAX_GROUP} groups"
                ));
            }
        }
        let port = &mut self.ports[place];
        let is_first = port.subsystems.is_empty();
        port.subsystems.push(nqn.to_owned());
        if is_first {
            port.states = states;
        } else if states
            .iter()
            .any(|(id, state)| port.states.get(id).is_some_and(|other| other != state))
        {
            self.remark(format!("the states of paths of {nqn} at {host} port {service}: a port of nvmet has one state for all subsystems"));
        } else {
            port.states.extend(states);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said of the configuration of the test.
    const SAID: [&str; 16] = [
        "key k of host",
        "m is neither",
        "up to 8192",
        "one state for all",
        "security of host nqn.2014-08.org.example:h, tls",
        "may come without it",
        "namespace 200 of nqn.2014-08.org.example:1: that hosts may only read it",
        "its blocks of 512 bytes",
        "its EUI64, 0123456789ABCDEF",
        "its ANA group, 200",
        "the state inaccessible of group 200",
        "max_queue_depth 2048 of transport tcp",
        "limits of device d",
        "limits of nqn.2014-08.org.example:1",
        "weight of host nqn.2014-08.org.example:h at",
        "limits of the hosts of tenants",
    ];

    #[test]
    fn what_the_kernel_cannot_have_is_said() {
        let file = json!({ "name": "d", "driver_specific": { "uring": { "filename": "/srv/d" } } });
        let memory = json!({ "name": "m", "driver_specific": {} });
        let old = json!({
            "name": "old", "block_size": 512, "supported_io_types": { "read": true, "write": false },
            "driver_specific": { "aio": { "filename": "/srv/old" } },
        });
        let tcp = json!({ "trtype": "TCP", "in_capsule_data_size": 8192, "max_queue_depth": 2048 });
        let (bdevs, transports) = (vec![file, memory, old], vec![tcp]);
        let mut exporter = Exporter { bdevs, transports, ..Exporter::default() };
        let nqn = "nqn.2014-08.org.example:1";
        exporter.subsystem(
            nqn,
            &json!({
                "nqn": nqn, "allow_any_host": false, "serial_number": "S", "min_cntlid": 1, "max_cntlid": 65519,
                "psk_optional": true,
                "hosts": [{ "nqn": "nqn.2014-08.org.example:h", "dhchap_key": "k", "security": "tls" }],
                "namespaces": [
                    { "nsid": 1, "bdev_name": "d", "uuid": "u", "nguid": "EF90689C6C46D44C89C14067801309A8", "anagrpid": 2 },
                    { "nsid": 2, "bdev_name": "m" },
                    { "nsid": 8193, "bdev_name": "d" },
                    { "nsid": 200, "bdev_name": "old", "uuid": "u", "anagrpid": 200, "eui64": "0123456789ABCDEF" },
                ],
            }),
        );
        let listener = |state: &str| {
            json!({
                "address": { "trtype": "TCP", "adrfam": "IPv4", "traddr": "192.0.2.1", "trsvcid": "4420" },
                "ana_states": [
                    { "ana_group": 2, "ana_state": state }, { "ana_group": 129, "ana_state": "optimized" },
                    { "ana_group": 200, "ana_state": "inaccessible" },
                ],
            })
        };
        exporter.listener(nqn, &listener("non_optimized"));
        exporter.listener("nqn.2014-08.org.example:2", &listener("optimized"));
        let mut rdma = listener("optimized");
        rdma["address"]["trtype"] = "RDMA".into();
        exporter.listener(nqn, &rdma);
        for limits in [
            json!({ "type": "bdev", "name": "d", "rw_ios_per_sec": 1000 }),
            json!({ "type": "subsystem", "name": nqn }),
            json!({ "type": "weight", "name": "nqn.2014-08.org.example:h", "nqn": nqn, "weight": 2 }),
            json!({ "type": "hosts", "name": "tenants" }),
        ] {
            exporter.limits(&limits);
        }
        let document = exporter.document();
        let device = &document["subsystems"][0]["namespaces"][0]["device"];
        assert_eq!(device["nguid"], "ef90689c-6c46-d44c-89c1-4067801309a8");
        assert_eq!(document["subsystems"][0]["namespaces"].as_array().map(Vec::len), Some(2));
        assert_eq!(document["subsystems"][0]["namespaces"][1]["ana_grpid"], 1);
        let groups = document["ports"][0]["ana_groups"].as_array().map(Vec::len);
        assert_eq!(groups, Some(2), "{document}");
        let param = json!({ "inline_data_size": "8192", "max_queue_size": "2048" });
        assert_eq!(document["ports"][0]["param"], param);
        assert_eq!(document["ports"][1]["param"], json!({}));
        assert!(needs_queue_size(&document));
        assert!(!needs_queue_size(&json!({ "ports": [document["ports"][1]] })));
        let ports = document["ports"].as_array().into_iter().flatten();
        let kinds: Vec<&Value> = ports.map(|port| &port["addr"]["trtype"]).collect();
        assert_eq!(kinds, ["tcp", "rdma"]);
        assert_eq!(document["ports"][0]["ana_groups"][1]["ana"]["state"], "non-optimized");
        assert_eq!(document["hosts"][0]["nqn"], "nqn.2014-08.org.example:h");
        for words in SAID {
            assert!(
                exporter.remarks.iter().any(|remark| remark.contains(words)),
                "{words}: {:?}",
                exporter.remarks
            );
        }
    }
}
