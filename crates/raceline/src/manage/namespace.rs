//! `raceline ns`: namespaces.

use serde_json::{Value, json};

use super::subsystem::{documents, rows};
use super::{Daemon, bdev, elements, size, text};
use crate::cli::manage::{NsArgs, NsVerb};
use crate::failure::Failure;
use crate::table::Table;

/// Runs the verb.
pub(crate) fn run(args: &NsArgs) -> Result<(), Failure> {
    let mut daemon = Daemon::connect(&args.daemon)?;
    match &args.verb {
        NsVerb::Ls { nqn } => list(&mut daemon, nqn.as_deref()),
        NsVerb::Add { nqn, device, nsid, uuid, ana_group, hidden } => {
            daemon.subsystems(Some(nqn))?;
            let mut namespace = json!({ "bdev_name": device });
            let options = [
                ("nsid", nsid.map(Value::from)),
                ("uuid", uuid.map(|uuid| uuid.to_string().into())),
                ("anagrpid", ana_group.map(Value::from)),
                ("no_auto_visible", hidden.then_some(Value::Bool(true))),
            ];
            for (name, value) in options {
                if let Some(value) = value {
                    namespace[name] = value;
                }
            }
            let params = json!({ "nqn": nqn, "namespace": namespace });
            let answer = daemon.call("nvmf_subsystem_add_ns", params)?;
            daemon.done(&answer, &format!("added namespace {answer} ({device}) to {nqn}"))
        }
        NsVerb::Rm { nqn, nsid } => {
            find(&mut daemon, nqn, *nsid)?;
            let params = json!({ "nqn": nqn, "nsid": nsid });
            let answer = daemon.call("nvmf_subsystem_remove_ns", params)?;
            daemon.done(&answer, &format!("removed namespace {nsid} from {nqn}"))
        }
        NsVerb::Set { nqn, nsid, ana_group: Some(group), .. } => {
            find(&mut daemon, nqn, *nsid)?;
            let params = json!({ "nqn": nqn, "nsid": nsid, "anagrpid": group });
            let answer = daemon.call("nvmf_subsystem_set_ns_ana_group", params)?;
            daemon.done(&answer, &format!("namespace {nsid} of {nqn} is in group {group}"))
        }
        NsVerb::Set { nqn, nsid, show, hide, ana_group: None } => {
            if find(&mut daemon, nqn, *nsid)?["no_auto_visible"] != true {
                return Err(Failure::runtime(format!(
                    "every host sees namespace {nsid}: remove it, and add it with --hidden"
                )));
            }
            let (method, host, verb) = match (show, hide) {
                (Some(host), _) => ("nvmf_ns_add_host", host, "shown to"),
                (None, Some(host)) => ("nvmf_ns_remove_host", host, "hidden from"),
                (None, None) => return Err(Failure::usage("--show, --hide or --ana-group")),
            };
            let params = json!({ "nqn": nqn, "nsid": nsid, "host": host });
            let answer = daemon.call(method, params)?;
            daemon.done(&answer, &format!("namespace {nsid} of {nqn} is {verb} {host}"))
        }
    }
}

fn list(daemon: &mut Daemon, nqn: Option<&str>) -> Result<(), Failure> {
    let subsystems = daemon.subsystems(nqn)?;
    let bdevs = daemon.list("bdev_get_bdevs", Value::Null)?;
    daemon.print(&documents(&subsystems, "namespaces"), || {
        let mut table = Table::new(&["subsystem", "nsid", "device", "size", "uuid", "seen by"]);
        for (subsystem, namespace) in rows(&subsystems, "namespaces") {
            let bdev = bdevs.iter().find(|bdev| bdev["name"] == namespace["bdev_name"]);
            table.row([
                text(&subsystem["nqn"]),
                text(&namespace["nsid"]),
                text(&namespace["bdev_name"]),
                // A namespace of a pool has a size of its own.
                match bdev.filter(|_| namespace["missing"].is_null()) {
                    _ if namespace["of_pool"] == true => size(bdev::bytes(namespace)),
                    Some(bdev) => size(bdev::bytes(bdev)),
                    None => "missing".to_owned(),
                },
                text(&namespace["uuid"]),
                visible_to(namespace),
            ]);
        }
        table
    })
}

/// The hosts that see a namespace, among those that may connect.
fn visible_to(namespace: &Value) -> String {
    let hosts: Vec<String> = elements(namespace, "visible_to").iter().map(text).collect();
    match namespace["no_auto_visible"] == true {
        false => "all".to_owned(),
        true if hosts.is_empty() => "none".to_owned(),
        true => hosts.join(" "),
    }
}

/// The namespace; otherwise a failure that lists the existing ones.
fn find(daemon: &mut Daemon, nqn: &str, nsid: u32) -> Result<Value, Failure> {
    let found = daemon.subsystems(Some(nqn))?;
    let namespaces = found.first().map_or(&[][..], |subsystem| elements(subsystem, "namespaces"));
    if let Some(namespace) = namespaces.iter().find(|namespace| namespace["nsid"] == nsid) {
        return Ok(namespace.clone());
    }
    let there: Vec<String> = namespaces.iter().map(|namespace| text(&namespace["nsid"])).collect();
    let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
    Err(Failure::runtime(format!("{nqn} has no namespace {nsid}: it has {there}")))
}
