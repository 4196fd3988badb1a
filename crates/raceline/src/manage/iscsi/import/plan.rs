//! What a file of LIO means for a daemon: calls, and remarks about all that is not the same there.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use serde_json::{Value, json};
use uuid::Uuid;

use crate::manage::steps::{Plan, Step};

use super::saveconfig::{Lun, NodeAcl, Portal, Saved, Secrets, StorageObject, Target, Tpg};

const BLOCK_BYTES: u64 = 512;
const MAX_LUN: u64 = 255;
/// LUNs with which a target node is made; later ones are added.
const MAX_LUNS_OF_CALL: usize = 64;
/// Most commands of a session here.
const MAX_QUEUE_DEPTH: i64 = 1024;
/// Commands of a session in LIO, unless set.
const LIO_QUEUE_DEPTH: i64 = 64;
/// Attributes of target portal groups that are imported, or that have nothing to do here: reservations and unit attentions
/// outlast sessions in any case.
const KNOWN_ATTRIBUTES: &[&str] = &[
    "authentication",
    "cache_dynamic_acls",
    "default_cmdsn_depth",
    "demo_mode_write_protect",
    "generate_node_acls",
];
/// Parameters that are imported, or that mean what sessions here do in any case.
const KNOWN_PARAMETERS: &[&str] = &[
    "AuthMethod",
    "DataDigest",
    "HeaderDigest",
    "IFMarkInt",
    "IFMarker",
    "OFMarkInt",
    "OFMarker",
    "TargetAlias",
];

/// Names and tags that the daemon has.
#[derive(Debug, Default)]
pub(super) struct Taken {
    pub(super) devices: Vec<String>,
    pub(super) portal_groups: Vec<u64>,
    pub(super) initiator_groups: Vec<u64>,
    pub(super) auth_groups: Vec<u64>,
}

impl Plan {
    /// The plan of a file.
    ///
    /// # Errors
    /// When the file contradicts itself, or names what it does not have; says which object.
    pub(super) fn new(saved: &Saved, taken: Taken) -> Result<Self, String> {
        let mut planner = Planner { taken, ..Planner::default() };
        planner.devices(&saved.storage_objects)?;
        planner.portal_groups(&saved.targets)?;
        for target in &saved.targets {
            planner.target(target)?;
        }
        for tag in planner.portals.values().copied().collect::<BTreeSet<_>>() {
            let params = json!({ "tag": tag });
            planner.step(
                format!("portal group {tag} listen"),
                "iscsi_start_portal_group",
                params,
                None,
            );
        }
        planner.discovery(saved)?;
        Ok(planner.plan)
    }
}

#[derive(Default)]
struct Planner {
    taken: Taken,
    plan: Plan,
    /// Devices by the paths of their storage objects; `None`: there is no counterpart.
    devices: BTreeMap<String, Option<String>>,
    /// The tags of portal groups by the addresses.
    portals: BTreeMap<SocketAddr, u64>,
    /// Initiator groups by their names.
    initiators: BTreeMap<Vec<String>, u64>,
    auth_groups: Vec<(Vec<Secrets>, u64)>,
}

impl Planner {
    fn step(
        &mut self,
        what: String,
        method: &'static str,
        params: Value,
        undo: Option<(&'static str, Value)>,
    ) {
        self.plan.steps.push(Step { what, method, params, undo });
    }

    fn remark(&mut self, text: String) {
        if !self.plan.remarks.contains(&text) {
            self.plan.remarks.push(text);
        }
    }

    // ---------------------------------------------------------------------------- devices

    fn devices(&mut self, objects: &[StorageObject]) -> Result<(), String> {
        let mut ignored = BTreeSet::new();
        for object in objects {
            let (plugin, name) = (object.plugin.as_str(), object.name.as_str());
            let path = format!("/backstores/{plugin}/{name}");
            if name.is_empty() || plugin.is_empty() {
                return Err("a storage object has no name or no plugin".into());
            }
            if self.devices.contains_key(&path) {
                return Err(format!("storage object {path} stands twice"));
            }
            ignored.extend(object.attributes.keys().filter(|key| *key != "block_size"));
            let device = self.device(object, &path)?;
            self.devices.insert(path, device);
        }
        if !ignored.is_empty() {
            let list: Vec<&str> = ignored.into_iter().map(String::as_str).collect();
            self.remark(format!(
                "attributes of storage objects are not imported: {}",
                list.join(" ")
            ));
        }
        Ok(())
    }

    /// A name that no device has.
    fn free_name(&self, object: &StorageObject) -> String {
        let with_plugin = format!("{}-{}", object.plugin, object.name);
        let numbered = (1..).map(|number| format!("{with_plugin}-{number}"));
        let mut names = [object.name.clone(), with_plugin.clone()].into_iter().chain(numbered);
        names.find(|name| !self.taken.devices.contains(name)).unwrap_or(with_plugin)
    }

    fn device(&mut self, object: &StorageObject, path: &str) -> Result<Option<String>, String> {
        let name = self.free_name(object);
        let uuid = object.wwn.as_deref().filter(|wwn| !wwn.is_empty()).map(Uuid::try_parse);
        if let Some(Err(_)) = uuid {
            self.remark(format!(
                "{path}: its serial number is no UUID, and initiators see another"
            ));
        }
        let uuid = uuid.and_then(Result::ok).map(|uuid| uuid.to_string());
        let block_size = object.attributes.get("block_size").and_then(Value::as_u64);
        let (method, params, removal, what) = match object.plugin.as_str() {
            "ramdisk" => {
                let size = object.size.filter(|size| *size >= BLOCK_BYTES);
                let size =
                    size.ok_or_else(|| format!("{path}: its size has to be 512 bytes or more"))?;
                let params = json!({
                    "name": name, "block_size": BLOCK_BYTES, "num_blocks": size / BLOCK_BYTES, "uuid": uuid,
                });
                let what = format!("device {name}: {size} bytes of memory");
                match object.nullio {
                    true => ("bdev_null_create", params, "bdev_null_delete", what),
                    false => ("bdev_malloc_create", params, "bdev_malloc_delete", what),
                }
            }
            plugin @ ("block" | "fileio") => {
                let file = object.dev.as_deref().filter(|dev| dev.starts_with('/'));
                let file = file.ok_or_else(|| format!("{path}: dev has to be an absolute path"))?;
                let block_size = block_size.filter(|_| plugin == "fileio");
                let what = format!("device {name}: {file}");
                let params = json!({
                    "name": name, "filename": file, "block_size": block_size, "uuid": uuid,
                    "readonly": object.readonly.then_some(true),
                });
                if plugin == "fileio" && object.write_back {
                    self.remark(format!(
                        "{path}: write_back is off, because files are not cached here"
                    ));
                }
                match object.readonly {
                    true => ("bdev_aio_create", params, "bdev_aio_delete", what),
                    false => ("bdev_uring_create", params, "bdev_uring_delete", what),
                }
            }
            other => {
                self.remark(format!(
                    "{path}: there is no counterpart to a backstore of plugin {other}"
                ));
                return Ok(None);
            }
        };
        self.taken.devices.push(name.clone());
        self.step(what, method, params, Some((removal, json!({ "name": name }))));
        Ok(Some(name))
    }

    // ----------------------------------------------------------------------------- portals

    /// Addresses that the same target portal groups use are a portal group here, because an address can be in one only.
    fn portal_groups(&mut self, targets: &[Target]) -> Result<(), String> {
        let mut users: BTreeMap<SocketAddr, BTreeSet<(usize, usize)>> = BTreeMap::new();
        for (at, target) in targets.iter().enumerate().filter(|(_, target)| is_iscsi(target)) {
            for (place, tpg) in target.tpgs.iter().enumerate().filter(|(_, tpg)| tpg.enable) {
                for portal in &tpg.portals {
                    let Some(address) = self.portal(portal, &target.wwn)? else { continue };
                    users.entry(address).or_default().insert((at, place));
                }
            }
        }
        let mut groups: BTreeMap<BTreeSet<(usize, usize)>, Vec<SocketAddr>> = BTreeMap::new();
        for (address, users) in users {
            groups.entry(users).or_default().push(address);
        }
        for addresses in groups.into_values() {
            let tag = free_tag(&mut self.taken.portal_groups);
            let portal = |it: &SocketAddr| json!({ "host": it.ip().to_string(), "port": it.port().to_string() });
            let portals: Vec<Value> = addresses.iter().map(portal).collect();
            let shown: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
            // Nobody is to look for a target node before it is there.
            let params = json!({ "tag": tag, "portals": portals, "wait": true });
            let undo = ("iscsi_delete_portal_group", json!({ "tag": tag }));
            let what = format!("portal group {tag}: {}", shown.join(" "));
            self.step(what, "iscsi_create_portal_group", params, Some(undo));
            self.portals.extend(addresses.into_iter().map(|address| (address, tag)));
        }
        Ok(())
    }

    fn portal(&mut self, portal: &Portal, target: &str) -> Result<Option<SocketAddr>, String> {
        let address = address_of(portal).map_err(|error| format!("target {target}: {error}"))?;
        if portal.iser {
            self.remark(format!(
                "target {target}: portal {address} is left out, because it is for iSER"
            ));
            return Ok(None);
        }
        if portal.offload {
            self.remark(format!(
                "target {target}: portal {address} has no offload to a network card here"
            ));
        }
        Ok(Some(address))
    }

    // ------------------------------------------------------------------------------ secrets

    fn discovery(&mut self, saved: &Saved) -> Result<(), String> {
        for fabric in saved.fabric_modules.iter().filter(|fabric| fabric.name == "iscsi") {
            let secrets = fabric.chap().secrets();
            let secrets = secrets.map_err(|error| format!("discovery of fabric iscsi: {error}"))?;
            let Some(secrets) = secrets.filter(|_| fabric.discovery_enable_auth) else { continue };
            let mutual = secrets.mutual.is_some();
            let tag = self.auth_group(vec![secrets]);
            let params = json!({ "require_chap": true, "mutual_chap": mutual, "chap_group": tag });
            let what = format!("discovery ask for the secrets of auth group {tag}");
            // The last step: it never has to be taken back.
            self.step(what, "iscsi_set_discovery_auth", params, None);
        }
        Ok(())
    }

    /// The auth group with these secrets.
    fn auth_group(&mut self, secrets: Vec<Secrets>) -> u64 {
        if let Some((_, tag)) = self.auth_groups.iter().find(|(there, _)| *there == secrets) {
            return *tag;
        }
        let tag = free_tag(&mut self.taken.auth_groups);
        let list = secrets.iter().map(|it| {
            let (name, own) = it.mutual.clone().unzip();
            let all = [
                ("user", Some(it.user.clone())),
                ("secret", Some(it.secret.clone())),
                ("muser", name),
                ("msecret", own),
            ];
            let there =
                all.into_iter().filter_map(|(key, text)| Some((key.to_owned(), text?.into())));
            Value::Object(there.collect())
        });
        let params = json!({ "tag": tag, "secrets": list.collect::<Vec<_>>() });
        let undo = ("iscsi_delete_auth_group", json!({ "tag": tag }));
        let users: Vec<&str> = secrets.iter().map(|it| it.user.as_str()).collect();
        let what = format!("auth group {tag}: secrets of {}", users.join(" "));
        self.step(what, "iscsi_create_auth_group", params, Some(undo));
        self.auth_groups.push((secrets, tag));
        tag
    }

    /// The members of a call that say how initiators authenticate to a target node.
    fn policy(&mut self, tpg: &Tpg, name: &str) -> Result<Value, String> {
        // LIO asks for CHAP unless it is told not to.
        if tpg.attribute("authentication", 1) == 0 {
            return Ok(json!({ "disable_chap": true }));
        }
        let mut all: Vec<Secrets> = Vec::new();
        let acls = tpg.node_acls.iter().map(|acl| (acl.chap(), acl.node_wwn.as_str()));
        for (chap, whose) in acls.chain([(tpg.chap(), "any initiator")]) {
            let wrong = |error| format!("target {name}, {whose}: {error}");
            let Some(secrets) = chap.secrets().map_err(wrong)? else { continue };
            match all.iter().find(|other| other.user == secrets.user) {
                Some(same) if *same == secrets => {}
                Some(_) => {
                    let user = &secrets.user;
                    return Err(format!(
                        "target {name}: the CHAP user {user} has two different secrets"
                    ));
                }
                None => all.push(secrets),
            }
        }
        if all.is_empty() {
            self.remark(format!(
                "target {name}: CHAP is demanded and no secret is set, so that nobody can log in (authentication=0 turns it off)"
            ));
        } else if all.len() > 1 {
            self.remark(format!("target {name}: any initiator that is let in may prove itself by any of its CHAP users"));
        }
        let mutual = !all.is_empty() && all.iter().all(|secrets| secrets.mutual.is_some());
        if !mutual && all.iter().any(|secrets| secrets.mutual.is_some()) {
            self.remark(format!("target {name}: it proves itself to initiators that ask for it, and not all have to ask"));
        }
        let tag = self.auth_group(all);
        Ok(json!({ "require_chap": true, "mutual_chap": mutual, "chap_group": tag }))
    }

    // ---------------------------------------------------------------------------- initiators

    /// The names that may log in.
    fn initiators(&mut self, tpg: &Tpg, name: &str) -> Vec<String> {
        let mut names = Vec::new();
        for acl in &tpg.node_acls {
            match difference(acl, &tpg.luns) {
                None => names.push(acl.node_wwn.to_ascii_lowercase()),
                Some(why) => {
                    let initiator = &acl.node_wwn;
                    self.remark(format!(
                        "target {name}: initiator {initiator} is not let in, because it {why}, and all initiators of a target \
                         node see the same LUNs here"
                    ));
                    names.push(format!("!{}", initiator.to_ascii_lowercase()));
                }
            }
        }
        if tpg.attribute("generate_node_acls", 0) != 0 {
            if tpg.attribute("demo_mode_write_protect", 1) == 0 {
                names.push("ANY".to_owned());
            } else {
                self.remark(format!(
                    "target {name}: initiators without an ACL are not let in, because they may only read \
                     (demo_mode_write_protect=1), which cannot be said here"
                ));
            }
        }
        // The first name that matches decides.
        names.sort_by_key(|name| (name == "ANY", !name.starts_with('!')));
        if names.iter().all(|name| name.starts_with('!')) {
            names = vec!["!ANY".to_owned()];
        }
        names
    }

    fn initiator_group(&mut self, names: Vec<String>) -> u64 {
        if let Some(tag) = self.initiators.get(&names) {
            return *tag;
        }
        let tag = free_tag(&mut self.taken.initiator_groups);
        let params = json!({ "tag": tag, "initiators": names, "netmasks": ["ANY"] });
        let undo = ("iscsi_delete_initiator_group", json!({ "tag": tag }));
        let what = format!("initiator group {tag}: {}", names.join(" "));
        self.step(what, "iscsi_create_initiator_group", params, Some(undo));
        self.initiators.insert(names, tag);
        tag
    }

    // -------------------------------------------------------------------------- target nodes

    fn target(&mut self, target: &Target) -> Result<(), String> {
        let name = &target.wwn;
        if !is_iscsi(target) {
            let fabric = &target.fabric;
            self.remark(format!(
                "target {name} is left out: there is no counterpart to fabric {fabric}"
            ));
            return Ok(());
        }
        let Some(first) = target.tpgs.iter().find(|tpg| tpg.enable).or(target.tpgs.first()) else {
            self.remark(format!("target {name} is left out: it has no target portal group"));
            return Ok(());
        };
        for other in target.tpgs.iter().filter(|tpg| !std::ptr::eq(*tpg, first)) {
            let tag = other.tag;
            self.remark(format!("target {name}: its target portal group {tag} is left out, since a target node has one set of LUNs"));
        }
        if !first.enable {
            self.remark(format!("target {name} is disabled: it is made, and nobody reaches it"));
        }
        self.remark_rest(first, name);
        let mut luns = self.luns(first, name)?;
        if luns.is_empty() {
            self.remark(format!("target {name} is left out: it has no LUN"));
            return Ok(());
        }
        let policy = self.policy(first, name)?;
        let initiators = self.initiators(first, name);
        let group = self.initiator_group(initiators);
        let mut tags = BTreeSet::new();
        for portal in first.portals.iter().filter(|portal| first.enable && !portal.iser) {
            let address = address_of(portal).map_err(|error| format!("target {name}: {error}"))?;
            tags.extend(self.portals.get(&address));
        }
        let later = luns.split_off(luns.len().min(MAX_LUNS_OF_CALL));
        let map = |tag: &u64| json!({ "pg_tag": tag, "ig_tag": group });
        let depth =
            first.attribute("default_cmdsn_depth", LIO_QUEUE_DEPTH).clamp(1, MAX_QUEUE_DEPTH);
        let digest = |parameter: &str| first.parameter(parameter) == Some("CRC32C");
        let mut params = json!({
            "name": name,
            "alias_name": first.parameter("TargetAlias").filter(|alias| *alias != "LIO Target").unwrap_or(""),
            "pg_ig_maps": tags.iter().map(map).collect::<Vec<_>>(),
            "luns": luns,
            "queue_depth": depth,
            "header_digest": digest("HeaderDigest"),
            "data_digest": digest("DataDigest"),
        });
        if let (Some(members), Value::Object(policy)) = (params.as_object_mut(), policy) {
            members.extend(policy);
        }
        let count = match luns.len() {
            1 => "1 LUN".to_owned(),
            count => format!("{count} LUNs"),
        };
        let what = format!("target node {name} with {count}");
        let undo = ("iscsi_delete_target_node", json!({ "name": name }));
        self.step(what, "iscsi_create_target_node", params, Some(undo));
        for mut lun in later {
            let what = format!("LUN {} of target node {name}", lun["lun_id"]);
            lun["name"] = name.as_str().into();
            self.step(what, "iscsi_target_node_add_lun", lun, None);
        }
        Ok(())
    }

    fn luns(&mut self, tpg: &Tpg, name: &str) -> Result<Vec<Value>, String> {
        let mut luns = Vec::new();
        let mut seen = BTreeSet::new();
        for Lun { index, storage_object } in &tpg.luns {
            if !seen.insert(*index) {
                return Err(format!("target {name}: LUN {index} stands twice"));
            }
            let device = self.devices.get(storage_object).cloned();
            let device = device.ok_or_else(|| {
                format!("target {name}: LUN {index} is of {storage_object}, which is none of the storage objects")
            })?;
            match device {
                None => self.remark(format!(
                    "target {name}: LUN {index} is left out, as its storage object is"
                )),
                Some(_) if *index > MAX_LUN => {
                    self.remark(format!(
                        "target {name}: LUN {index} is left out: numbers go to {MAX_LUN}"
                    ));
                }
                Some(device) => luns.push(json!({ "lun_id": index, "bdev_name": device })),
            }
        }
        Ok(luns)
    }

    /// Reports attributes and parameters that have no counterpart.
    fn remark_rest(&mut self, tpg: &Tpg, name: &str) {
        let rest = |all: &BTreeMap<String, Value>, known: &[&str]| {
            let rest = all.keys().filter(|key| !known.contains(&key.as_str()));
            rest.map(String::as_str).collect::<Vec<_>>().join(" ")
        };
        let (attributes, parameters) =
            (rest(&tpg.attributes, KNOWN_ATTRIBUTES), rest(&tpg.parameters, KNOWN_PARAMETERS));
        if !attributes.is_empty() {
            self.remark(format!(
                "attributes of target portal groups are not imported: {attributes}"
            ));
        }
        if !parameters.is_empty() {
            self.remark(format!(
                "parameters of target portal groups are not imported, since iscsi_set_options sets them for all: {parameters}"
            ));
        }
        let depth = tpg.attribute("default_cmdsn_depth", LIO_QUEUE_DEPTH);
        if !(1..=MAX_QUEUE_DEPTH).contains(&depth) {
            self.remark(format!("target {name}: default_cmdsn_depth {depth} is out of range, which goes from 1 to {MAX_QUEUE_DEPTH}"));
        }
    }
}

fn is_iscsi(target: &Target) -> bool {
    target.fabric == "iscsi"
}

/// Takes the lowest tag that is free.
fn free_tag(taken: &mut Vec<u64>) -> u64 {
    let tag = (1..).find(|tag| !taken.contains(tag)).unwrap_or(u64::MAX);
    taken.push(tag);
    tag
}

fn address_of(portal: &Portal) -> Result<SocketAddr, String> {
    let text = portal.ip_address.as_str();
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    let ip: IpAddr = bare.parse().map_err(|_| format!("portal `{text}` is no IP address"))?;
    let port = u16::try_from(portal.port).ok().filter(|port| *port > 0);
    let port = port.ok_or_else(|| {
        format!("portal {text} has port {}, which is not within 1 to 65535", portal.port)
    })?;
    Ok(SocketAddr::new(ip, port))
}

/// How what an initiator sees differs from the LUNs of its target portal group; `None`: it does not.
fn difference(acl: &NodeAcl, luns: &[Lun]) -> Option<&'static str> {
    let mapped: BTreeSet<u64> = acl.mapped_luns.iter().map(|lun| lun.tpg_lun).collect();
    if acl.mapped_luns.iter().any(|lun| lun.write_protect) {
        Some("may not write to some LUNs")
    } else if acl.mapped_luns.iter().any(|lun| lun.index != lun.tpg_lun) {
        Some("sees LUNs under other numbers")
    } else if luns.iter().any(|lun| !mapped.contains(&lun.index)) {
        Some("does not see all LUNs")
    } else {
        None
    }
}

#[cfg(test)]
mod tests;
