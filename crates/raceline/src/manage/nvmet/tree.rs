//! A live tree of the kernel's target in configfs, read into the form in which nvmetcli saves it.
//!
//! The depth of the tree is fixed, and no link is followed, so that no tree can make this read for ever.

use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

/// A larger value is none of the kernel's.
const MAX_VALUE_BYTES: u64 = 4096;
/// Most objects in a folder.
const MAX_ENTRIES: usize = 65_536;

/// Reads the tree.
pub(super) fn read(root: &Path) -> Result<Value, String> {
    if !root.join("subsystems").is_dir() || !root.join("ports").is_dir() {
        let shown = root.display();
        return Err(format!(
            "{shown} is not the kernel's target, because it has no folders `subsystems` and `ports`: name \
             /sys/kernel/config/nvmet or a file of nvmetcli"
        ));
    }
    let mut tree = groups(root, &["discovery"])?;
    let hosts = each(&root.join("hosts"), |path, name| {
        let mut host = groups(path, &["dhchap"])?;
        host.insert("nqn".to_owned(), name.into());
        Ok(host)
    })?;
    tree.insert("hosts".to_owned(), hosts);
    tree.insert("subsystems".to_owned(), each(&root.join("subsystems"), subsystem)?);
    tree.insert("ports".to_owned(), each(&root.join("ports"), port)?);
    Ok(tree.into())
}

fn subsystem(path: &Path, name: &str) -> Result<Map<String, Value>, String> {
    let mut subsystem = groups(path, &["attr"])?;
    subsystem.insert("nqn".to_owned(), name.into());
    let namespaces = each(&path.join("namespaces"), |path, name| {
        let mut namespace = groups(path, &["device", "resv"])?;
        namespace.insert("nsid".to_owned(), name.into());
        for file in ["enable", "ana_grpid", "buffered_io"] {
            if let Some(text) = value(&path.join(file))? {
                namespace.insert(file.to_owned(), text.into());
            }
        }
        Ok(namespace)
    })?;
    subsystem.insert("namespaces".to_owned(), namespaces);
    let hosts = entries(&path.join("allowed_hosts"))?;
    subsystem.insert("allowed_hosts".to_owned(), json!(hosts));
    let passthru = path.join("passthru");
    if passthru.is_dir() {
        let mut shown = groups(&passthru, &["device"])?;
        if let Some(text) = value(&passthru.join("enable"))? {
            shown.insert("enable".to_owned(), text.into());
        }
        subsystem.insert("passthru".to_owned(), json!([shown]));
    }
    Ok(subsystem)
}

fn port(path: &Path, name: &str) -> Result<Map<String, Value>, String> {
    let mut port = groups(path, &["addr", "param"])?;
    port.insert("portid".to_owned(), name.into());
    port.insert("subsystems".to_owned(), json!(entries(&path.join("subsystems"))?));
    let ana = each(&path.join("ana_groups"), |path, name| {
        let mut group = groups(path, &["ana"])?;
        group.insert("grpid".to_owned(), name.into());
        Ok(group)
    })?;
    port.insert("ana_groups".to_owned(), ana);
    let referrals = each(&path.join("referrals"), |path, name| {
        let mut referral = groups(path, &["addr"])?;
        referral.insert("name".to_owned(), name.into());
        if let Some(text) = value(&path.join("enable"))? {
            referral.insert("enable".to_owned(), text.into());
        }
        Ok(referral)
    })?;
    port.insert("referrals".to_owned(), referrals);
    Ok(port)
}

/// Each folder in a folder, in the order of names. A folder that is missing is empty: older kernels have fewer.
fn each(
    folder: &Path,
    mut read: impl FnMut(&Path, &str) -> Result<Map<String, Value>, String>,
) -> Result<Value, String> {
    let mut list = Vec::new();
    for name in entries(folder)? {
        let path = folder.join(&name);
        if path.symlink_metadata().is_ok_and(|info| info.is_dir()) {
            list.push(read(&path, &name)?.into());
        }
    }
    Ok(Value::Array(list))
}

/// The names in a folder, numbers in their order.
fn entries(folder: &Path) -> Result<Vec<String>, String> {
    let failed =
        |error: std::io::Error| format!("cannot read {}: {}", folder.display(), advice(&error));
    let listed = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(failed)?,
    };
    let mut names = Vec::new();
    for entry in listed {
        let name = entry.map_err(failed)?.file_name();
        let name = name
            .into_string()
            .map_err(|name| format!("{} has a name that is no text: {name:?}", folder.display()))?;
        names.push(name);
        if names.len() > MAX_ENTRIES {
            return Err(format!("{} has more than {MAX_ENTRIES} entries", folder.display()));
        }
    }
    names.sort_by_key(|name| (name.parse::<u64>().unwrap_or(0), name.clone()));
    Ok(names)
}

/// The attributes of some groups: files whose names begin with the group and an underscore.
fn groups(folder: &Path, wanted: &[&str]) -> Result<Map<String, Value>, String> {
    let mut found = Map::new();
    for group in wanted {
        found.insert((*group).to_owned(), Value::Object(Map::new()));
    }
    for name in entries(folder)? {
        let Some((group, attribute)) = name.split_once('_') else { continue };
        if !wanted.contains(&group) {
            continue;
        }
        // ana_grpid of a namespace and the folder ana_groups of a port are no attributes of the group ana.
        if let Some(text) = value(&folder.join(&name))?
            && let Some(Value::Object(attributes)) = found.get_mut(group)
        {
            attributes.insert(attribute.to_owned(), text.into());
        }
    }
    Ok(found)
}

/// The text of an attribute; `None`: there is no such file, or it is not a regular one.
fn value(path: &Path) -> Result<Option<String>, String> {
    if !path.symlink_metadata().is_ok_and(|info| info.is_file()) {
        return Ok(None);
    }
    let failed =
        |error: std::io::Error| format!("cannot read {}: {}", path.display(), advice(&error));
    let mut text = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_VALUE_BYTES + 1).read_to_end(&mut text))
        .map_err(failed)?;
    if text.len() as u64 > MAX_VALUE_BYTES {
        return Err(format!(
            "{} is longer than any attribute of the kernel",
            PathBuf::from(path).display()
        ));
    }
    let text = String::from_utf8(text).map_err(|_| format!("{} is no text", path.display()))?;
    Ok(Some(text.trim().to_owned()))
}

fn advice(error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::PermissionDenied => format!("{error}; only root reads all of it"),
        _ => error.to_string(),
    }
}
