//! The object that a call of a configuration makes: its identity, what it stands on, and its removal.

use std::fmt;

use serde_json::{Map, Value, json};

use crate::manager::nvmf::{RDMA, RDMA_SCHEME};
use crate::state::Call;

/// The object that a call makes.
#[derive(Clone, Debug, PartialEq)]
pub struct Object {
    /// Its identity; the identity of a part begins with that of the whole.
    pub key: Vec<String>,
    /// The call.
    pub call: Call,
    /// How it is removed.
    pub removal: Removal,
}

/// How an object is removed.
#[derive(Clone, Debug, PartialEq)]
pub enum Removal {
    /// By this call.
    Call(Call),
    /// Together with the object of which it is a part, and not without it.
    WithParent,
    /// Never: a setting always has some value.
    Setting,
}

/// Methods that make a device named by `name`, and those that remove it.
const DEVICES: &[(&str, &str)] = &[
    ("bdev_aio_create", "bdev_aio_delete"),
    ("bdev_delay_create", "bdev_delay_delete"),
    ("bdev_iscsi_create", "bdev_iscsi_delete"),
    ("bdev_malloc_create", "bdev_malloc_delete"),
    ("bdev_null_create", "bdev_null_delete"),
    ("bdev_passthru_create", "bdev_passthru_delete"),
    ("bdev_uring_create", "bdev_uring_delete"),
];

/// Parameters that tell apart the settings that one method sets.
const SETTING_NAMES: &[&str] =
    &["impl_name", "opname", "name", "bdev_name", "module", "flag", "component", "tgt_name"];

/// Parameters that name a device that an object stands on.
const BASES: &[&str] = &["base_bdev", "base_bdev_name", "base_name", "bdev_name", "dev_name"];

/// The method that makes a key.
const ADD_KEY: &str = "keyring_file_add_key";

/// Parameters of the methods that set limits of rates: without any of them there is no limit.
const LIMITS: &[&str] =
    &["rw_ios_per_sec", "rw_mbytes_per_sec", "r_mbytes_per_sec", "w_mbytes_per_sec"];

/// Parameters that name keys of DH-HMAC-CHAP.
const CHAP_KEYS: &[&str] = &["dhchap_key", "dhchap_ctrlr_key"];

/// Parameters that say how initiators of iSCSI authenticate.
const CHAP_POLICY: &[&str] = &["disable_chap", "require_chap", "mutual_chap", "chap_group"];

/// Parameters that say what the connections to a subsystem need.
const LEVEL: [&str; 2] = ["security", "psk_optional"];

/// The name of a key: `:key` is `key`.
fn bare(name: &str) -> &str {
    name.strip_prefix(':').unwrap_or(name)
}

impl Object {
    /// The object that a call makes.
    #[must_use]
    pub fn new(call: Call) -> Self {
        let params = Params::of(&call);
        let (key, removal) = params
            .device()
            .or_else(|| params.limits())
            .or_else(|| params.nvmf())
            .or_else(|| params.iscsi())
            .or_else(|| params.disk())
            .unwrap_or_else(|| (params.setting_key(), Removal::Setting));
        Self { key, call, removal }
    }

    /// One of its parameters; also found inside `namespace` and `listen_address`.
    #[must_use]
    pub fn param(&self, name: &str) -> Option<&Value> {
        flat(self.call.params.as_ref()).into_iter().find(|(found, _)| *found == name).map(|p| p.1)
    }

    /// The parameters of `wanted` that have other values here.
    #[must_use]
    pub fn differing(&self, wanted: &Self) -> Vec<String> {
        let all = flat(self.call.params.as_ref());
        let differs = |(name, value): &(&str, &Value)| {
            // Two inner objects may have members of the same name.
            let mut there = all.iter().filter(|(found, _)| found == name).peekable();
            match there.peek() {
                None => !same(name, &Value::Null, value),
                Some(_) => !there.any(|(_, is)| same(name, is, value)),
            }
        };
        let wanted = flat(wanted.call.params.as_ref());
        wanted.into_iter().filter(differs).map(|(name, _)| name.to_owned()).collect()
    }

    /// The identities on which other objects stand: its own; for a namespace also its number, by which its
    /// list of hosts names it.
    #[must_use]
    pub fn provides(&self) -> Vec<Vec<String>> {
        let mut keys = vec![self.key.clone()];
        if self.call.method == "nvmf_subsystem_add_ns"
            && let Some(nsid) = self.param("nsid")
        {
            let mut number = self.key[..self.key.len() - 2].to_vec();
            number.extend(["nsid".to_owned(), nsid.to_string()]);
            keys.push(number);
        }
        keys
    }

    /// The identities on which it stands: when one of these is removed, it has to be removed before.
    #[must_use]
    pub fn needs(&self) -> Vec<Vec<String>> {
        let mut keys: Vec<_> = (1..self.key.len()).map(|end| self.key[..end].to_vec()).collect();
        keys.extend(self.needs_of_node());
        for base in BASES.iter().filter_map(|base| self.param(base)?.as_str()) {
            keys.push(key(&["bdev", base]));
        }
        if self.call.method == "nvmf_ns_add_host"
            && let Some(nsid) = self.param("nsid")
        {
            let mut number = self.key[..self.key.len() - 3].to_vec();
            number.extend(["nsid".to_owned(), nsid.to_string()]);
            keys.push(number);
        }
        keys
    }

    /// The groups and devices that a target node of iSCSI stands on.
    fn needs_of_node(&self) -> Vec<Vec<String>> {
        let of_list = |list: &str, member: &'static str| {
            let list = self.param(list).and_then(Value::as_array);
            list.into_iter().flatten().filter_map(move |element| element.get(member))
        };
        let tags = |member, kind| {
            of_list("pg_ig_maps", member).map(move |tag| key(&[kind, &tag.to_string()]))
        };
        let devices = of_list("luns", "bdev_name").filter_map(Value::as_str);
        let devices = devices.map(|name| key(&["bdev", name]));
        tags("pg_tag", "portal-group")
            .chain(tags("ig_tag", "initiator-group"))
            .chain(devices)
            .collect()
    }

    /// The call that changes this object into `wanted`, if these parameters can be changed while the object
    /// is in use.
    #[must_use]
    pub fn change_in_place(&self, wanted: &Self, params: &[String]) -> Option<Call> {
        if !params.is_empty() && params.iter().all(|param| CHAP_KEYS.contains(&&**param)) {
            return self.set_keys(wanted);
        }
        if !params.is_empty() && params.iter().all(|param| CHAP_POLICY.contains(&&**param)) {
            return self.set_chap_policy(wanted);
        }
        if self.call.method != "nvmf_create_subsystem" {
            return None;
        }
        if !params.is_empty() && params.iter().all(|param| LEVEL.contains(&&**param)) {
            return Some(self.set_security(wanted));
        }
        if params != ["allow_any_host"] {
            return None;
        }
        let allow = wanted.param("allow_any_host").and_then(Value::as_bool).unwrap_or(false);
        let params = Params::of(&self.call);
        let mut call = params.on_subsystem("nvmf_subsystem_allow_any_host");
        if let Some(Value::Object(params)) = &mut call.params {
            params.insert("allow_any_host".to_owned(), allow.into());
        }
        Some(call)
    }

    /// The call that has initiators of iSCSI authenticate as `wanted` says, to this target node or for discovery.
    fn set_chap_policy(&self, wanted: &Self) -> Option<Call> {
        let mut call = match self.call.method.as_str() {
            "iscsi_set_options" => call("iscsi_set_discovery_auth", &[]),
            "iscsi_create_target_node" => {
                let name = Params::of(&self.call).text("name");
                call("iscsi_target_node_set_auth", &[("name", json!(name))])
            }
            _ => return None,
        };
        if let Some(Value::Object(members)) = &mut call.params {
            let named = CHAP_POLICY.iter().filter_map(|name| Some((*name, wanted.param(name)?)));
            members.extend(named.map(|(name, value)| (name.to_owned(), value.clone())));
        }
        Some(call)
    }

    /// The call that gives this subsystem the level of `wanted`.
    fn set_security(&self, wanted: &Self) -> Call {
        let mut call = Params::of(&self.call).on_subsystem("nvmf_subsystem_set_security");
        if let Some(Value::Object(members)) = &mut call.params {
            for (name, default) in LEVEL.into_iter().zip([json!("plain"), json!(false)]) {
                members.insert(name.to_owned(), wanted.param(name).cloned().unwrap_or(default));
            }
        }
        call
    }

    /// Whether it is a key.
    #[must_use]
    pub fn is_key(&self) -> bool {
        self.call.method == ADD_KEY
    }

    /// The call that gives this host or controller the keys of `wanted`, also when they have the same names; `None` if
    /// it is neither, or has a key that no call gives.
    #[must_use]
    pub fn set_keys(&self, wanted: &Self) -> Option<Call> {
        let params = Params::of(&self.call);
        let mut call = match self.call.method.as_str() {
            "nvmf_subsystem_add_host" => {
                let mut call = params.on_subsystem("nvmf_subsystem_set_keys");
                if let (Some(Value::Object(members)), Some(host)) =
                    (&mut call.params, self.param("host"))
                {
                    members.insert("host".to_owned(), host.clone());
                }
                call
            }
            "bdev_nvme_attach_controller" => {
                call("bdev_nvme_set_keys", &[("name", json!(params.text("name")))])
            }
            _ => return None,
        };
        if let Some(Value::Object(members)) = &mut call.params {
            let named = CHAP_KEYS.iter().filter_map(|name| Some((*name, wanted.param(name)?)));
            members.extend(named.map(|(name, value)| (name.to_owned(), value.clone())));
        }
        Some(call)
    }

    /// Whether it has the secret that is this key.
    #[must_use]
    pub fn has_secret(&self, key: &Self) -> bool {
        CHAP_KEYS.iter().any(|param| self.names_key(param, key))
    }

    /// Whether it has the pre-shared key that is this key: no call gives it another one.
    #[must_use]
    pub fn has_psk(&self, key: &Self) -> bool {
        self.names_key("psk", key)
    }

    fn names_key(&self, param: &str, key: &Self) -> bool {
        let named = self.param(param).and_then(Value::as_str).map(bare);
        named.is_some() && named == key.key.last().map(String::as_str)
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.removal {
            Removal::Setting => write!(f, "setting {}", self.key[1..].join(" ")),
            _ => f.write_str(&self.key.join(" ")),
        }
    }
}

/// Parameters, and the members of `namespace` and `listen_address`, into which SPDK puts some of them.
fn flat(params: Option<&Value>) -> Vec<(&str, &Value)> {
    let Some(Value::Object(params)) = params else { return Vec::new() };
    let mut found = Vec::new();
    for (name, value) in params {
        match value {
            Value::Object(inner) => {
                found.extend(inner.iter().map(|(name, value)| (name.as_str(), value)));
            }
            _ => found.push((name.as_str(), value)),
        }
    }
    found
}

/// Whether all these services have these numbers: what a search by multicast DNS has found since is no difference.
fn has_services(is: &[Value], wanted: &[Value]) -> bool {
    let names = |service: &Value| service["subsystems"].as_array().cloned().unwrap_or_default();
    wanted.iter().all(|wanted| {
        let same = |it: &&Value| {
            ["number", "instance", "subnqn"].iter().all(|part| it[*part] == wanted[*part])
        };
        is.iter().find(same).is_some_and(|it| names(it).starts_with(&names(wanted)))
    })
}

/// The elements of a list; none if it is unset.
fn as_names(value: &Value) -> Option<&[Value]> {
    match value {
        Value::Null => Some(&[]),
        other => other.as_array().map(Vec::as_slice),
    }
}

/// Whether two values mean the same: SPDK spells identities in either case, writes numbers also as text,
/// and leaves out values that are false, 0 or empty.
fn same(name: &str, left: &Value, right: &Value) -> bool {
    let is_unset = |value: &Value| match value {
        Value::Null | Value::Bool(false) => true,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty() || text.bytes().all(|byte| b"0-".contains(&byte)),
        Value::Array(values) => values.is_empty(),
        Value::Object(values) => values.is_empty(),
        Value::Bool(true) => false,
    };
    if left == right || (is_unset(left) && is_unset(right)) {
        return true;
    }
    // Until when an old key holds as well is no part of what a configuration wants.
    if name.starts_with("previous_") {
        return true;
    }
    // Names that a discovery service or the watching for drives has added since are no difference: numbers
    // are given once.
    if let ("subsystems" | "drives", Value::Array(is), Some(wanted)) = (name, left, as_names(right))
    {
        return is.starts_with(wanted);
    }
    if let ("services", Value::Array(is)) = (name, left) {
        return right.as_array().is_none_or(|wanted| has_services(is, wanted));
    }
    if let ("detached", Value::Array(is), Some(wanted)) = (name, left, as_names(right)) {
        return wanted.iter().all(|serial| is.contains(serial));
    }
    let plain = |value: &Value| match value {
        Value::String(text) if name == "uuid" || name == "nguid" || name == "eui64" => {
            text.replace('-', "").to_lowercase()
        }
        Value::String(text) if name == "trtype" || name == "adrfam" => text.to_lowercase(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    plain(left) == plain(right)
}

/// The parameters of a call, for building the object that it makes.
struct Params<'a> {
    call: &'a Call,
}

type Identity = (Vec<String>, Removal);

impl<'a> Params<'a> {
    fn of(call: &'a Call) -> Self {
        Self { call }
    }

    fn get(&self, name: &str) -> Option<&'a Value> {
        flat(self.call.params.as_ref()).into_iter().find(|(found, _)| *found == name).map(|p| p.1)
    }

    fn text(&self, name: &str) -> String {
        match self.get(name) {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Null) | None => String::new(),
            Some(other) => other.to_string(),
        }
    }

    fn device(&self) -> Option<Identity> {
        let name = self.text("name");
        if let Some((_, remove)) = DEVICES.iter().find(|(make, _)| *make == self.call.method) {
            let removal = Removal::Call(call(remove, &[("name", json!(name))]));
            return Some((key(&["bdev", &name]), removal));
        }
        Some(match self.call.method.as_str() {
            // SPDK's name of the device is that of its base, with a prefix.
            "bdev_error_create" => {
                let name = format!("EE_{}", self.text("base_name"));
                let removal = Removal::Call(call("bdev_error_delete", &[("name", json!(name))]));
                (key(&["bdev", &name]), removal)
            }
            "bdev_split_create" => {
                let base = self.text("base_bdev");
                let removal =
                    Removal::Call(call("bdev_split_delete", &[("base_bdev", json!(base))]));
                (key(&["split", &base]), removal)
            }
            "bdev_nvme_attach_controller" => {
                let removal =
                    Removal::Call(call("bdev_nvme_detach_controller", &[("name", json!(name))]));
                (key(&["nvme", &name, &self.text("traddr"), &self.text("trsvcid")]), removal)
            }
            ADD_KEY => {
                let removal =
                    Removal::Call(call("keyring_file_remove_key", &[("name", json!(name))]));
                (key(&["key", bare(&name)]), removal)
            }
            "bdev_nvme_start_discovery" => {
                let removal =
                    Removal::Call(call("bdev_nvme_stop_discovery", &[("name", json!(name))]));
                (key(&["discovery", &name]), removal)
            }
            "bdev_nvme_start_mdns_discovery" => {
                let removal =
                    Removal::Call(call("bdev_nvme_stop_mdns_discovery", &[("name", json!(name))]));
                (key(&["mdns", &name]), removal)
            }
            _ => return None,
        })
    }

    /// Limits of rates are parts of what they limit, where that is one object.
    fn limits(&self) -> Option<Identity> {
        let name = self.text("name");
        let (key, call) = match self.call.method.as_str() {
            method @ "bdev_set_qos_limit" => {
                (key(&["bdev", &name, "qos"]), call(method, &[("name", json!(name))]))
            }
            method @ "nvmf_subsystem_set_qos_limit" => {
                let key = self.key_on_target(&["subsystem", &self.text("nqn"), "qos"]);
                (key, self.on_subsystem(method))
            }
            method @ "nvmf_host_set_qos_limit" => {
                let mut names = vec![("name", json!(name))];
                names.extend(self.get("tgt_name").map(|target| ("tgt_name", target.clone())));
                (self.key_on_target(&["host-qos", &name]), call(method, &names))
            }
            _ => return None,
        };
        Some((key, Removal::Call(without_limits(call))))
    }

    fn nvmf(&self) -> Option<Identity> {
        let nqn = self.text("nqn");
        let part = |parts: &[&str]| {
            let mut all = vec!["subsystem", nqn.as_str()];
            all.extend_from_slice(parts);
            self.key_on_target(&all)
        };
        let remove = |method, names: &[&str]| {
            let mut call = self.on_subsystem(method);
            if let Some(Value::Object(params)) = &mut call.params {
                for name in names {
                    let value = self.call.params.as_ref().and_then(|params| params.get(*name));
                    if let Some(value) = value.or_else(|| self.get(name)) {
                        params.insert((*name).to_owned(), value.clone());
                    }
                }
            }
            Removal::Call(call)
        };
        Some(match self.call.method.as_str() {
            "nvmf_create_target" => {
                let name = self.text("name");
                (
                    key(&["target", &name]),
                    Removal::Call(call("nvmf_delete_target", &[("name", json!(name))])),
                )
            }
            // SPDK has no method that removes a transport.
            "nvmf_create_transport" => {
                let kind = self.text("trtype").to_uppercase();
                (self.key_on_target(&["transport", &kind]), Removal::Setting)
            }
            "nvmf_create_subsystem" => (part(&[]), remove("nvmf_delete_subsystem", &[])),
            "nvmf_subsystem_allow_any_host" => (part(&["any-host"]), Removal::WithParent),
            "nvmf_subsystem_add_ns" => {
                let device = self.text("bdev_name");
                let removal = match self.get("nsid") {
                    Some(_) => remove("nvmf_subsystem_remove_ns", &["nsid"]),
                    // A configuration written by hand; no object is ever removed from it.
                    None => Removal::WithParent,
                };
                (part(&["namespace", &device]), removal)
            }
            "nvmf_subsystem_add_pool" => {
                (part(&["pool"]), remove("nvmf_subsystem_remove_pool", &[]))
            }
            "nvmf_subsystem_add_listener" => {
                let address = self.address();
                (
                    part(&["port", &address]),
                    remove("nvmf_subsystem_remove_listener", &["listen_address"]),
                )
            }
            "nvmf_subsystem_add_host" => (
                part(&["host", &self.text("host")]),
                remove("nvmf_subsystem_remove_host", &["host"]),
            ),
            // Without `weight`, the host has none.
            method @ "nvmf_subsystem_set_host_weight" => {
                (part(&["weight", &self.text("host")]), remove(method, &["host"]))
            }
            "nvmf_ns_add_host" => (
                part(&["visible", &self.text("nsid"), &self.text("host")]),
                remove("nvmf_ns_remove_host", &["nsid", "host"]),
            ),
            _ => return self.nvmf_discovery(),
        })
    }

    /// What the discovery service has of its own.
    fn nvmf_discovery(&self) -> Option<Identity> {
        Some(match self.call.method.as_str() {
            "nvmf_publish_mdns_prr" => {
                let target = self.get("tgt_name").map(|target| ("tgt_name", target.clone()));
                let names: Vec<(&str, Value)> = target.into_iter().collect();
                (self.key_on_target(&["mdns"]), Removal::Call(call("nvmf_stop_mdns_prr", &names)))
            }
            "nvmf_discovery_set_central" => {
                let mut params = self.only(&["tgt_name"]);
                params.insert("enable".to_owned(), json!(false));
                let method = "nvmf_discovery_set_central".to_owned();
                let call = Call { method, params: Some(Value::Object(params)) };
                (self.key_on_target(&["central"]), Removal::Call(call))
            }
            "nvmf_discovery_register" => {
                let params = Some(Value::Object(self.only(&["address", "tgt_name"])));
                let call = Call { method: "nvmf_discovery_unregister".to_owned(), params };
                (self.key_on_target(&["register", &self.address()]), Removal::Call(call))
            }
            "nvmf_discovery_add_referral" => {
                let params = Some(Value::Object(self.only(&["address", "subnqn", "tgt_name"])));
                let call = Call { method: "nvmf_discovery_remove_referral".to_owned(), params };
                let key = self.key_on_target(&["referral", &self.address(), &self.text("subnqn")]);
                (key, Removal::Call(call))
            }
            _ => return None,
        })
    }

    /// These of its parameters that it has.
    fn only(&self, names: &[&str]) -> Map<String, Value> {
        let params = self.call.params.as_ref();
        let of = |name: &&str| Some(((*name).to_owned(), params?.get(*name)?.clone()));
        names.iter().filter_map(of).collect()
    }

    /// The exports by iSCSI.
    fn disk(&self) -> Option<Identity> {
        let controller = self.text("ctrlr");
        Some(match self.call.method.as_str() {
            "vhost_create_blk_controller" => {
                let removal = call("vhost_delete_controller", &[("ctrlr", json!(controller))]);
                (key(&["vhost", &controller]), Removal::Call(removal))
            }
            "vhost_controller_set_coalescing" => {
                (key(&["vhost", &controller, "coalescing"]), Removal::WithParent)
            }
            "ublk_create_target" => {
                (key(&["ublk"]), Removal::Call(call("ublk_destroy_target", &[])))
            }
            "ublk_start_disk" => {
                let id = self.get("ublk_id").cloned().unwrap_or_default();
                let key = key(&["ublk", "disk", &id.to_string()]);
                (key, Removal::Call(call("ublk_stop_disk", &[("ublk_id", id)])))
            }
            "nbd_start_disk" => {
                let path = self.text("nbd_device");
                let number = path.trim_start_matches("/dev/nbd");
                let removal = call("nbd_stop_disk", &[("nbd_device", json!(path))]);
                (key(&["nbd", number]), Removal::Call(removal))
            }
            _ => return None,
        })
    }

    fn iscsi(&self) -> Option<Identity> {
        let (tag, name) = (self.text("tag"), self.text("name"));
        let tagged = |kind: &str, remove: &str| {
            let tag_value = self.get("tag").cloned().unwrap_or_default();
            (key(&[kind, &tag]), Removal::Call(call(remove, &[("tag", tag_value)])))
        };
        Some(match self.call.method.as_str() {
            "iscsi_create_portal_group" => tagged("portal-group", "iscsi_delete_portal_group"),
            "iscsi_create_initiator_group" => {
                tagged("initiator-group", "iscsi_delete_initiator_group")
            }
            "iscsi_create_auth_group" => tagged("auth-group", "iscsi_delete_auth_group"),
            "iscsi_portal_group_set_auth" => {
                (key(&["portal-group", &tag, "auth"]), Removal::WithParent)
            }
            "iscsi_create_target_node" => {
                let removal = call("iscsi_delete_target_node", &[("name", json!(name))]);
                (key(&["target-node", &name]), Removal::Call(removal))
            }
            method @ "iscsi_target_node_set_redirect" => {
                let tag = self.get("pg_tag").cloned().unwrap_or_default();
                let key = key(&["target-node", &name, "redirect", &tag.to_string()]);
                (key, Removal::Call(call(method, &[("name", json!(name)), ("pg_tag", tag)])))
            }
            method @ "iscsi_enable_histogram" => {
                let off = call(method, &[("name", json!(name)), ("enable", json!(false))]);
                (key(&["target-node", &name, "histogram"]), Removal::Call(off))
            }
            _ => return None,
        })
    }

    /// A key that begins with the target, unless it is the default one.
    fn key_on_target(&self, parts: &[&str]) -> Vec<String> {
        let target = self.text("tgt_name");
        let mut all = if target.is_empty() { vec![] } else { vec!["target", target.as_str()] };
        all.extend_from_slice(parts);
        key(&all)
    }

    /// A call on the same subsystem.
    fn on_subsystem(&self, method: &str) -> Call {
        let mut call = call(method, &[("nqn", json!(self.text("nqn")))]);
        if let (Some(target), Some(Value::Object(params))) =
            (self.get("tgt_name"), &mut call.params)
        {
            params.insert("tgt_name".to_owned(), target.clone());
        }
        call
    }

    /// As the command line spells it: TCP and RDMA can have the same address.
    fn address(&self) -> String {
        let is_rdma = self.text("trtype").eq_ignore_ascii_case(RDMA);
        let scheme = if is_rdma { RDMA_SCHEME } else { "" };
        format!("{scheme}{}:{}", self.text("traddr"), self.text("trsvcid"))
    }

    fn setting_key(&self) -> Vec<String> {
        let mut key = vec!["setting".to_owned(), self.call.method.clone()];
        let named = SETTING_NAMES.iter().filter(|name| self.get(name).is_some());
        key.extend(named.map(|name| self.text(name)));
        key
    }
}

/// The call that takes all limits away.
fn without_limits(mut call: Call) -> Call {
    if let Some(Value::Object(params)) = &mut call.params {
        params.extend(LIMITS.iter().map(|limit| ((*limit).to_owned(), json!(0))));
    }
    call
}

fn key(parts: &[&str]) -> Vec<String> {
    parts.iter().map(|part| (*part).to_owned()).collect()
}

fn call(method: &str, params: &[(&str, Value)]) -> Call {
    let params = params.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    Call { method: method.to_owned(), params: Some(Value::Object(params)) }
}
