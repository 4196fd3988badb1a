//! The tree that commands of targetcli build: `/backstores`, `/iscsi` and what is below them.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// Port of a portal for which none is given.
const PORT: u64 = 3260;
/// The address of the portal that a new target has.
const ANY: &str = "0.0.0.0";

/// Everything that the commands so far have made.
#[derive(Debug)]
pub(super) struct Tree {
    /// The place of commands without one.
    here: String,
    objects: Vec<Value>,
    targets: Vec<Target>,
    discovery: Map<String, Value>,
    globals: BTreeMap<String, bool>,
    remarks: Vec<String>,
}

#[derive(Debug)]
struct Target {
    name: String,
    groups: Vec<Group>,
}

/// A target portal group.
#[derive(Debug)]
struct Group {
    tag: u64,
    enable: bool,
    luns: Vec<(u64, String)>,
    portals: Vec<Portal>,
    acls: Vec<Acl>,
    attributes: Map<String, Value>,
    parameters: Map<String, Value>,
    auth: Map<String, Value>,
}

#[derive(Debug)]
struct Portal {
    ip: String,
    port: u64,
    /// Nobody has asked for it: it came with its target.
    is_automatic: bool,
    iser: bool,
    offload: bool,
}

#[derive(Debug)]
struct Acl {
    name: String,
    /// Number here, number in the group, write protection.
    luns: Vec<(u64, u64, bool)>,
    auth: Map<String, Value>,
}

/// The arguments of a command: those with names, and the others in their order.
struct Arguments<'a> {
    named: BTreeMap<&'a str, &'a str>,
    placed: std::vec::IntoIter<&'a str>,
}

impl<'a> Arguments<'a> {
    fn of(words: &'a [String], names: &[&str]) -> Result<Self, String> {
        let mut named = BTreeMap::new();
        let mut placed = Vec::new();
        for word in words {
            match word.split_once('=') {
                Some((name, value)) if names.contains(&name) => {
                    named.insert(name, value);
                }
                Some((name, _)) if name.chars().all(|c| c.is_ascii_lowercase() || c == '_') => {
                    return Err(format!("`{name}` is no argument of this command"));
                }
                _ => placed.push(word.as_str()),
            }
        }
        let free = names.iter().filter(|name| !named.contains_key(*name)).count();
        if placed.len() > free {
            return Err(format!("there are {} arguments too many", placed.len() - free));
        }
        Ok(Self { named, placed: placed.into_iter() })
    }

    /// The argument of this name. The names have to be asked for in the order of the command's arguments.
    fn take(&mut self, name: &str) -> Option<&'a str> {
        self.named.remove(name).or_else(|| self.placed.next())
    }

    fn need(&mut self, name: &str) -> Result<&'a str, String> {
        self.take(name)
            .filter(|value| !value.is_empty())
            .ok_or_else(|| format!("`{name}` is missing"))
    }

    fn flag(&mut self, name: &str) -> Result<Option<bool>, String> {
        self.take(name).map(|value| boolean(name, value)).transpose()
    }
}

fn boolean(name: &str, value: &str) -> Result<bool, String> {
    match value.to_ascii_lowercase().as_str() {
        "true" | "yes" | "1" | "on" => Ok(true),
        "false" | "no" | "0" | "off" => Ok(false),
        _ => Err(format!("`{name}` has to be true or false")),
    }
}

/// Bytes: a number with `k`, `m`, `g` or `t`, which are powers of 1,024.
fn bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is no size, as 512M or 10G are");
    let lower = text.to_ascii_lowercase();
    let digits = lower.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = lower[digits.len()..].trim_start().trim_end_matches('b').trim_end_matches('i');
    let shift = match unit {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(wrong()),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

fn number_after(prefix: &str, text: &str) -> Option<u64> {
    text.strip_prefix(prefix).unwrap_or(text).parse().ok()
}

/// Members `a=b` of a command `set`.
fn members(words: &[String]) -> Result<Vec<(&str, &str)>, String> {
    let all = words.iter().map(|word| {
        let (name, value) = word.split_once('=').ok_or("a value has no name: write name=value")?;
        Ok((name, value))
    });
    all.collect()
}

impl Default for Tree {
    fn default() -> Self {
        Self {
            here: "/".to_owned(),
            objects: Vec::new(),
            targets: Vec::new(),
            discovery: Map::new(),
            globals: BTreeMap::new(),
            remarks: Vec::new(),
        }
    }
}

impl Tree {
    /// Carries out a command.
    ///
    /// # Errors
    /// When it is not understood, or contradicts an earlier one.
    pub(super) fn carry_out(&mut self, words: &[String]) -> Result<(), String> {
        let Some(first) = words.first() else { return Ok(()) };
        let is_place = first.contains('/') || first == "iscsi" || first == "backstores";
        let (place, rest) = match is_place {
            true => (self.place(first), &words[1..]),
            false => (self.here.clone(), words),
        };
        let Some((command, arguments)) = rest.split_first() else {
            self.here = place;
            return Ok(());
        };
        match command.as_str() {
            "cd" => {
                self.here = self.place(arguments.first().map_or("/", String::as_str));
                return Ok(());
            }
            "clearconfig" => {
                *self = Self::default();
                return Ok(());
            }
            "exit" | "help" | "info" | "ls" | "pwd" | "refresh" | "saveconfig" | "sessions"
            | "status" | "version" => return Ok(()),
            "set" if arguments.first().is_some_and(|what| what == "global") => {
                return self.set_globals(&arguments[1..]);
            }
            _ => {}
        }
        let parts: Vec<&str> = place.split('/').filter(|part| !part.is_empty()).collect();
        let unknown = || {
            Err(format!(
                "`{command}` in {place} is no command of targetcli that is understood here"
            ))
        };
        match (parts.as_slice(), command.as_str()) {
            (["backstores", plugin], "create") => self.create_object(plugin, arguments),
            (["iscsi"], "create") => self.create_target(arguments),
            (["iscsi"], "set") => self.set_discovery(arguments),
            (["iscsi", target], "create") => self.create_group(target, arguments),
            (["iscsi", target, group, rest @ ..], _) => {
                let globals = self.globals.clone();
                let objects = &self.objects;
                let group = of_target(&mut self.targets, target)?.group(group)?;
                match (rest, command.as_str()) {
                    ([], "set") => group.set(arguments),
                    ([], "enable" | "disable") => {
                        group.enable = command == "enable";
                        Ok(())
                    }
                    (["luns"], "create") => group.create_lun(arguments, objects, &globals),
                    (["portals"], "create") => group.create_portal(arguments, &mut self.remarks),
                    (["portals"], "delete") => group.delete_portal(arguments),
                    (["portals", address], "enable_iser" | "enable_offload") => {
                        group.enable(command, address, arguments)
                    }
                    (["acls"], "create") => group.create_acl(arguments, &globals),
                    (["acls", name], "create") => group.acl(name)?.map(arguments),
                    (["acls", name], "set") => {
                        set_auth(&mut group.acl(name)?.auth, arguments, &mut self.remarks)
                    }
                    _ => unknown(),
                }
            }
            _ => unknown(),
        }
    }

    /// A path, from where the commands are.
    fn place(&self, path: &str) -> String {
        let mut parts: Vec<&str> = match path.starts_with('/') {
            true => Vec::new(),
            false => self.here.split('/').collect(),
        };
        for part in path.split('/') {
            match part {
                "." => {}
                ".." => {
                    parts.pop();
                }
                part => parts.push(part),
            }
        }
        parts.retain(|part| !part.is_empty());
        format!("/{}", parts.join("/"))
    }

    fn set_globals(&mut self, words: &[String]) -> Result<(), String> {
        for (name, value) in members(words)? {
            if name.starts_with("auto_") {
                self.globals.insert(name.to_owned(), boolean(name, value)?);
            }
        }
        Ok(())
    }

    fn create_object(&mut self, plugin: &str, words: &[String]) -> Result<(), String> {
        let mut object = Map::new();
        let names: &[&str] = match plugin {
            "block" => &["name", "dev", "readonly", "wwn"],
            "fileio" => &["name", "file_or_dev", "size", "write_back", "sparse", "wwn"],
            "ramdisk" => &["name", "size", "nullio", "wwn"],
            "pscsi" => &["name", "dev"],
            other => return Err(format!("there is no backstore of plugin {other}")),
        };
        let mut arguments = Arguments::of(words, names)?;
        for name in names {
            let Some(value) = arguments.take(name) else { continue };
            let (key, value) = match *name {
                "size" => ("size", bytes(value)?.into()),
                "readonly" | "write_back" | "nullio" => (*name, boolean(name, value)?.into()),
                "file_or_dev" => ("dev", value.into()),
                "sparse" => continue,
                _ => (*name, value.into()),
            };
            object.insert(key.to_owned(), value);
        }
        if !object.contains_key("name") {
            return Err("`name` is missing".into());
        }
        if plugin == "fileio" {
            // What targetcli does unless it is told otherwise.
            object.entry("write_back").or_insert(true.into());
        }
        object.insert("plugin".to_owned(), plugin.into());
        self.objects.push(object.into());
        Ok(())
    }

    fn is_on(&self, global: &str) -> bool {
        self.globals.get(global).copied().unwrap_or(true)
    }

    fn create_target(&mut self, words: &[String]) -> Result<(), String> {
        let mut arguments = Arguments::of(words, &["wwn"])?;
        let name = arguments.take("wwn").ok_or(
            "the name of the target is missing, and targetcli makes one up that nobody can know here",
        )?;
        let name = name.to_ascii_lowercase();
        if self.targets.iter().any(|target| target.name == name) {
            return Err(format!("target {name} is there already"));
        }
        let group = self.new_group(1);
        self.targets.push(Target { name, groups: vec![group] });
        Ok(())
    }

    fn new_group(&self, tag: u64) -> Group {
        let portal = Portal {
            ip: ANY.to_owned(),
            port: PORT,
            is_automatic: true,
            iser: false,
            offload: false,
        };
        let has_portal = tag == 1 && self.is_on("auto_add_default_portal");
        Group {
            tag,
            enable: self.is_on("auto_enable_tpgt"),
            luns: Vec::new(),
            portals: has_portal.then_some(portal).into_iter().collect(),
            acls: Vec::new(),
            attributes: Map::new(),
            parameters: Map::new(),
            auth: Map::new(),
        }
    }

    fn create_group(&mut self, target: &str, words: &[String]) -> Result<(), String> {
        let mut arguments = Arguments::of(words, &["tag"])?;
        let tag = arguments.need("tag")?;
        let tag = tag.strip_prefix("tpgt").unwrap_or(tag);
        let tag = number_after("tpg", tag).ok_or("`tag` has to be a number")?;
        let group = self.new_group(tag);
        let target = of_target(&mut self.targets, target)?;
        if target.groups.iter().any(|group| group.tag == tag) {
            return Err(format!("target portal group {tag} is there already"));
        }
        target.groups.push(group);
        Ok(())
    }

    fn set_discovery(&mut self, words: &[String]) -> Result<(), String> {
        let Some(("discovery_auth", rest)) = words.split_first().map(|(a, b)| (a.as_str(), b))
        else {
            return Err("only `set discovery_auth` is understood in /iscsi".into());
        };
        for (name, value) in members(rest)? {
            let (key, value) = match name {
                "enable" => ("discovery_enable_auth", boolean(name, value)?.into()),
                "userid" => ("discovery_userid", value.into()),
                "password" => ("discovery_password", value.into()),
                "mutual_userid" => ("discovery_mutual_userid", value.into()),
                "mutual_password" => ("discovery_mutual_password", value.into()),
                _ => return Err(format!("`{name}` is nothing that discovery_auth has")),
            };
            self.discovery.insert(key.to_owned(), value);
        }
        Ok(())
    }

    /// What targetcli would save, and what is not the same.
    pub(super) fn into_saved(self) -> (Value, Vec<String>) {
        let mut fabric = self.discovery;
        fabric.insert("name".to_owned(), "iscsi".into());
        let targets: Vec<Value> = self.targets.into_iter().map(Target::into_saved).collect();
        let saved = json!({
            "storage_objects": self.objects, "fabric_modules": [fabric], "targets": targets,
        });
        (saved, self.remarks)
    }
}

fn of_target<'a>(targets: &'a mut [Target], name: &str) -> Result<&'a mut Target, String> {
    let found = targets.iter_mut().find(|target| target.name.eq_ignore_ascii_case(name));
    found.ok_or_else(|| format!("no command before this one has made target {name}"))
}

/// The secrets that `set auth` names; remarks on the rest.
fn set_auth(
    auth: &mut Map<String, Value>,
    words: &[String],
    remarks: &mut Vec<String>,
) -> Result<(), String> {
    match words.split_first().map(|(what, rest)| (what.as_str(), rest)) {
        Some(("auth", rest)) => {
            for (name, value) in members(rest)? {
                if !["userid", "password", "mutual_userid", "mutual_password"].contains(&name) {
                    return Err(format!("`{name}` is nothing that auth has"));
                }
                auth.insert(format!("chap_{name}"), value.into());
            }
            Ok(())
        }
        Some(("attribute" | "parameter", _)) => {
            remarks.push("attributes of ACLs are not imported".to_owned());
            Ok(())
        }
        _ => Err("only `set auth`, `set attribute` and `set parameter` are understood".into()),
    }
}

impl Target {
    fn group(&mut self, name: &str) -> Result<&mut Group, String> {
        let name = name.strip_prefix("tpgt").unwrap_or(name);
        let tag = number_after("tpg", name);
        let found = self.groups.iter_mut().find(|group| Some(group.tag) == tag);
        found.ok_or_else(|| format!("target {} has no target portal group {name}", self.name))
    }

    fn into_saved(self) -> Value {
        let groups: Vec<Value> = self.groups.into_iter().map(Group::into_saved).collect();
        json!({ "wwn": self.name, "fabric": "iscsi", "tpgs": groups })
    }
}

impl Group {
    fn set(&mut self, words: &[String]) -> Result<(), String> {
        let Some((what, rest)) = words.split_first() else { return Ok(()) };
        let of_group = match what.as_str() {
            "attribute" => &mut self.attributes,
            "parameter" => &mut self.parameters,
            _ => return set_auth(&mut self.auth, words, &mut Vec::new()),
        };
        for (name, value) in members(rest)? {
            of_group.insert(name.to_owned(), value.into());
        }
        Ok(())
    }

    fn create_lun(
        &mut self,
        words: &[String],
        objects: &[Value],
        globals: &BTreeMap<String, bool>,
    ) -> Result<(), String> {
        let mut arguments = Arguments::of(words, &["storage_object", "lun", "add_mapped_luns"])?;
        let object = arguments.need("storage_object")?.trim_end_matches('/');
        let object = if object.starts_with('/') { object.to_owned() } else { format!("/{object}") };
        let path = |object: &Value| {
            let text = |key: &str| object[key].as_str().unwrap_or_default().to_owned();
            format!("/backstores/{}/{}", text("plugin"), text("name"))
        };
        if !objects.iter().any(|made| path(made) == object) {
            return Err(format!("no command before this one has made the backstore {object}"));
        }
        let lun = match arguments.take("lun") {
            Some(text) => number_after("lun", text).ok_or("`lun` has to be a number")?,
            None => (0..).find(|lun| self.luns.iter().all(|(taken, _)| taken != lun)).unwrap_or(0),
        };
        if self.luns.iter().any(|(taken, _)| *taken == lun) {
            return Err(format!("LUN {lun} is there already"));
        }
        let maps = globals.get("auto_add_mapped_luns").copied().unwrap_or(true);
        if arguments.flag("add_mapped_luns")?.unwrap_or(maps) {
            self.acls.iter_mut().for_each(|acl| acl.luns.push((lun, lun, false)));
        }
        self.luns.push((lun, object));
        Ok(())
    }

    fn create_portal(&mut self, words: &[String], remarks: &mut Vec<String>) -> Result<(), String> {
        let (ip, port) = address(words)?;
        if let Some(there) = self.portals.iter_mut().find(|it| it.ip == ip && it.port == port) {
            there.is_automatic = false;
            return Ok(());
        }
        // LIO refuses an address beside the one for all addresses.
        if self.portals.iter().any(|it| it.is_automatic && it.port == port) {
            remarks.push(format!(
                "the portal {ANY}:{port} that comes with a target is left out, because {ip}:{port} is created"
            ));
            self.portals.retain(|it| !it.is_automatic);
        }
        let (iser, offload) = (false, false);
        self.portals.push(Portal { ip, port, is_automatic: false, iser, offload });
        Ok(())
    }

    fn delete_portal(&mut self, words: &[String]) -> Result<(), String> {
        let (ip, port) = address(words)?;
        let before = self.portals.len();
        self.portals.retain(|it| it.ip != ip || it.port != port);
        match self.portals.len() < before {
            true => Ok(()),
            false => Err(format!("there is no portal {ip}:{port}")),
        }
    }

    /// `enable_iser` and `enable_offload` of a portal.
    fn enable(&mut self, what: &str, address: &str, words: &[String]) -> Result<(), String> {
        let on = Arguments::of(words, &["boolean"])?.flag("boolean")?.unwrap_or(true);
        let portal = self.portals.iter_mut().find(|it| format!("{}:{}", it.ip, it.port) == address);
        let portal = portal.ok_or_else(|| format!("there is no portal {address}"))?;
        match what {
            "enable_iser" => portal.iser = on,
            _ => portal.offload = on,
        }
        Ok(())
    }

    fn create_acl(
        &mut self,
        words: &[String],
        globals: &BTreeMap<String, bool>,
    ) -> Result<(), String> {
        let mut arguments = Arguments::of(words, &["wwn", "add_mapped_luns"])?;
        let name = arguments.need("wwn")?.to_ascii_lowercase();
        if self.acls.iter().any(|acl| acl.name == name) {
            return Err(format!("the ACL of {name} is there already"));
        }
        let maps = globals.get("auto_add_mapped_luns").copied().unwrap_or(true);
        let maps = arguments.flag("add_mapped_luns")?.unwrap_or(maps);
        let all = self.luns.iter().map(|(lun, _)| (*lun, *lun, false));
        let luns = if maps { all.collect() } else { Vec::new() };
        self.acls.push(Acl { name, luns, auth: Map::new() });
        Ok(())
    }

    fn acl(&mut self, name: &str) -> Result<&mut Acl, String> {
        let found = self.acls.iter_mut().find(|acl| acl.name.eq_ignore_ascii_case(name));
        found.ok_or_else(|| format!("no command before this one has made an ACL of {name}"))
    }

    fn into_saved(self) -> Value {
        let lun =
            |(index, object): &(u64, String)| json!({ "index": index, "storage_object": object });
        let portal = |it: &Portal| json!({ "ip_address": it.ip, "port": it.port, "iser": it.iser, "offload": it.offload });
        let acls: Vec<Value> = self.acls.into_iter().map(Acl::into_saved).collect();
        let mut saved = json!({
            "tag": self.tag,
            "enable": self.enable,
            "luns": self.luns.iter().map(lun).collect::<Vec<_>>(),
            "portals": self.portals.iter().map(portal).collect::<Vec<_>>(),
            "node_acls": acls,
            "attributes": self.attributes,
            "parameters": self.parameters,
        });
        if let Some(members) = saved.as_object_mut() {
            members.extend(self.auth);
        }
        saved
    }
}

impl Acl {
    /// `create` in an ACL: a LUN under a number of its own.
    fn map(&mut self, words: &[String]) -> Result<(), String> {
        let names = ["mapped_lun", "tpg_lun_or_backstore", "write_protect"];
        let mut arguments = Arguments::of(words, &names)?;
        let [mapped, lun] = [arguments.need(names[0])?, arguments.need(names[1])?];
        let mapped = number_after("mapped_lun", mapped).ok_or("`mapped_lun` has to be a number")?;
        let lun = number_after("lun", lun)
            .ok_or("`tpg_lun_or_backstore` has to be the number of a LUN here")?;
        let protects = arguments.flag(names[2])?.unwrap_or(false);
        self.luns.retain(|(number, _, _)| *number != mapped);
        self.luns.push((mapped, lun, protects));
        Ok(())
    }

    fn into_saved(self) -> Value {
        let lun = |&(index, lun, protects): &(u64, u64, bool)| json!({ "index": index, "tpg_lun": lun, "write_protect": protects });
        let luns: Vec<Value> = self.luns.iter().map(lun).collect();
        let mut saved = json!({ "node_wwn": self.name, "mapped_luns": luns });
        if let Some(members) = saved.as_object_mut() {
            members.extend(self.auth);
        }
        saved
    }
}

/// The arguments of `portals create` and `portals delete`.
fn address(words: &[String]) -> Result<(String, u64), String> {
    let mut arguments = Arguments::of(words, &["ip_address", "ip_port"])?;
    let ip = arguments.take("ip_address").unwrap_or(ANY).to_owned();
    let port = arguments.take("ip_port").map_or(Ok(PORT), |port| {
        port.parse().map_err(|_| "`ip_port` has to be a number".to_owned())
    })?;
    Ok((ip, port))
}
