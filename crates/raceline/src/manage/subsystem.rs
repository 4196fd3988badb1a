//! `raceline subsys`: subsystems.

use raceline_proto::nvme::Nqn;
use serde_json::{Value, json};

use super::{Daemon, elements, text};
use crate::cli::manage::{SubsysArgs, SubsysVerb};
use crate::failure::Failure;
use crate::naming;
use crate::table::Table;

/// Runs the verb.
pub(crate) fn run(args: &SubsysArgs) -> Result<(), Failure> {
    let mut daemon = Daemon::connect(&args.daemon)?;
    match &args.verb {
        SubsysVerb::Ls { nqn } => list(&mut daemon, nqn.as_deref()),
        SubsysVerb::Add {
            nqn,
            serial,
            model,
            max_namespaces,
            allow_any_host,
            ana,
            cntlids,
            security,
        } => {
            let derived = || Nqn::new(nqn).ok().map(|nqn| naming::shared_serial(&nqn));
            let params = json!({
                "nqn": nqn,
                "serial_number": serial.clone().or_else(derived),
                "model_number": model,
                "max_namespaces": max_namespaces,
                "allow_any_host": allow_any_host.then_some(true),
                "ana_reporting": ana.then_some(true),
                "min_cntlid": cntlids.map(|(first, _)| first),
                "max_cntlid": cntlids.map(|(_, last)| last),
                "security": security,
            });
            let answer = daemon.call("nvmf_create_subsystem", params)?;
            daemon.done(&answer, &format!("added subsystem {nqn}"))
        }
        SubsysVerb::Rm { nqns, force } => {
            nqns.iter().try_for_each(|nqn| remove(&mut daemon, nqn, *force))
        }
        SubsysVerb::Set { nqn, allow_any_host, security, psk_optional } => {
            daemon.subsystems(Some(nqn))?;
            if let Some(any) = allow_any_host {
                allow(&mut daemon, nqn, *any)?;
            }
            if security.is_none() && psk_optional.is_none() {
                return Ok(());
            }
            let params = json!({ "nqn": nqn, "security": security, "psk_optional": psk_optional });
            let answer = daemon.call("nvmf_subsystem_set_security", params)?;
            daemon.done(&answer, &format!("{nqn} has another level of security"))
        }
    }
}

/// Lets every host connect, or only listed ones.
pub(super) fn allow(daemon: &mut Daemon, nqn: &str, any: bool) -> Result<(), Failure> {
    let params = json!({ "nqn": nqn, "allow_any_host": any });
    let answer = daemon.call("nvmf_subsystem_allow_any_host", params)?;
    let who = if any { "every host" } else { "only hosts that are listed" };
    daemon.done(&answer, &format!("{who} may connect to {nqn}"))
}

fn list(daemon: &mut Daemon, nqn: Option<&str>) -> Result<(), Failure> {
    let subsystems = daemon.subsystems(nqn)?;
    daemon.print(&subsystems, || {
        let mut table = Table::new(&["nqn", "serial", "model", "namespaces", "hosts", "addresses"]);
        for subsystem in &subsystems {
            let hosts = if subsystem["allow_any_host"] == true {
                "any".to_owned()
            } else {
                elements(subsystem, "hosts").len().to_string()
            };
            let addresses = elements(subsystem, "listen_addresses");
            table.row([
                text(&subsystem["nqn"]),
                text(&subsystem["serial_number"]),
                text(&subsystem["model_number"]),
                count(elements(subsystem, "namespaces")),
                hosts,
                addresses.iter().map(super::port::address).collect::<Vec<_>>().join(" "),
            ]);
        }
        table
    })
}

/// Text with the number of namespaces, and the number that hosts do not have now.
fn count(namespaces: &[Value]) -> String {
    let missing = namespaces.iter().filter(|namespace| !namespace["missing"].is_null()).count();
    match missing {
        0 => namespaces.len().to_string(),
        missing => format!("{} ({missing} missing)", namespaces.len()),
    }
}

fn remove(daemon: &mut Daemon, nqn: &str, force: bool) -> Result<(), Failure> {
    daemon.subsystems(Some(nqn))?;
    if !force {
        // A daemon that does not list controllers refuses this, which is no reason to stop.
        let params = json!({ "nqn": nqn });
        let controllers = daemon.try_call("nvmf_subsystem_get_controllers", params);
        let controllers = controllers.ok().and_then(|list| list.as_array().map(Vec::len));
        if let Some(count @ 1..) = controllers {
            return Err(Failure::runtime(format!(
                "{count} controllers are connected to {nqn}: disconnect them, or use --force"
            )));
        }
    }
    let answer = daemon.call("nvmf_delete_subsystem", json!({ "nqn": nqn }))?;
    daemon.done(&answer, &format!("removed subsystem {nqn}"))
}

/// Every subsystem with each element of one of its lists: the rows of the other verbs.
pub(super) fn rows<'a>(
    subsystems: &'a [Value],
    member: &'a str,
) -> impl Iterator<Item = (&'a Value, &'a Value)> {
    subsystems.iter().flat_map(move |subsystem| {
        elements(subsystem, member).iter().map(move |element| (subsystem, element))
    })
}

/// The rows as JSON: the element, and the subsystem that it belongs to.
pub(super) fn documents(subsystems: &[Value], member: &str) -> Vec<Value> {
    rows(subsystems, member)
        .map(|(subsystem, element)| {
            let mut document = json!({ "subsystem": subsystem["nqn"] });
            if let (Some(document), Some(element)) = (document.as_object_mut(), element.as_object())
            {
                document.extend(element.clone());
            }
            document
        })
        .collect()
}
