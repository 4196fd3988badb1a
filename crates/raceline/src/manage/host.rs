//! `raceline host`: the hosts that may connect.

use serde_json::json;

use super::subsystem::{allow, documents, rows};
use super::{Daemon, text};
use crate::cli::manage::{HostArgs, HostChange, HostVerb};
use crate::failure::Failure;
use crate::table::Table;

/// The word for every host.
const ANY: &str = "any";

/// Runs the verb.
pub(crate) fn run(args: &HostArgs) -> Result<(), Failure> {
    let mut daemon = Daemon::connect(&args.daemon)?;
    match &args.verb {
        HostVerb::Ls { nqn } => list(&mut daemon, nqn.as_deref()),
        HostVerb::Add(change) => change_access(&mut daemon, change, true),
        HostVerb::Rm(change) => change_access(&mut daemon, change, false),
    }
}

fn change_access(
    daemon: &mut Daemon,
    HostChange { nqn, host }: &HostChange,
    may: bool,
) -> Result<(), Failure> {
    daemon.subsystems(Some(nqn))?;
    if host == ANY {
        return allow(daemon, nqn, may);
    }
    let (method, verb) = match may {
        true => ("nvmf_subsystem_add_host", "may connect to"),
        false => ("nvmf_subsystem_remove_host", "is not on the list of"),
    };
    let answer = daemon.call(method, json!({ "nqn": nqn, "host": host }))?;
    daemon.done(&answer, &format!("{host} {verb} {nqn}"))
}

fn list(daemon: &mut Daemon, nqn: Option<&str>) -> Result<(), Failure> {
    let subsystems = daemon.subsystems(nqn)?;
    let any = |value: &serde_json::Value| value["allow_any_host"] == true;
    let mut list = documents(&subsystems, "hosts");
    let open = subsystems.iter().filter(|subsystem| any(subsystem));
    list.extend(open.clone().map(|subsystem| json!({ "subsystem": subsystem["nqn"], "nqn": ANY })));
    daemon.print(&list, || {
        let mut table = Table::new(&["subsystem", "host"]);
        for subsystem in open {
            table.row([text(&subsystem["nqn"]), ANY.to_owned()]);
        }
        for (subsystem, host) in rows(&subsystems, "hosts") {
            table.row([text(&subsystem["nqn"]), text(&host["nqn"])]);
        }
        table
    })
}
