//! `raceline host`: the hosts that may connect.

use raceline_proto::nvme::Nqn;
use serde_json::{Value, json};

use super::subsystem::{allow, documents, rows};
use super::{Daemon, elements, text};
use crate::cli::manage::{HostArgs, HostChange, HostVerb};
use crate::failure::Failure;
use crate::table::Table;

/// The word for every host.
const ANY: &str = "any";
/// The same word of ceph-nvmeof.
const STAR: &str = "*";

/// Runs the verb.
pub(crate) fn run(args: &HostArgs) -> Result<(), Failure> {
    let mut daemon = Daemon::connect(&args.daemon)?;
    match &args.verb {
        HostVerb::Ls { nqn } => list(&mut daemon, nqn.as_deref()),
        HostVerb::Add { host, dhchap_key, dhchap_ctrlr_key, psk, security } => {
            let keys = json!({
                "dhchap_key": dhchap_key, "dhchap_ctrlr_key": dhchap_ctrlr_key, "psk": psk,
                "security": security,
            });
            let is_any = is_any(&host.host);
            if is_any && (dhchap_key.is_some() || psk.is_some()) {
                return Err(Failure::usage("a key is for one host: name it instead of `any`"));
            }
            if is_any && security.is_some() {
                let text = "a level is for one host: for all of them, raceline subsys set --security sets it";
                return Err(Failure::usage(text));
            }
            if !is_any {
                check_name(&host.host)?;
            }
            change_access(&mut daemon, host, true, keys)
        }
        HostVerb::Set {
            host,
            dhchap_key,
            dhchap_ctrlr_key,
            previous_dhchap_key,
            overlap,
            no_dhchap: _,
        } => {
            let keys = json!({
                "dhchap_key": dhchap_key,
                "dhchap_ctrlr_key": dhchap_ctrlr_key,
                "previous_dhchap_key": previous_dhchap_key,
                "overlap_sec": overlap,
            });
            set_keys(&mut daemon, host, keys)
        }
        HostVerb::Rm(change) => change_access(&mut daemon, change, false, json!({})),
    }
}

/// Whether a word stands for every host.
fn is_any(host: &str) -> bool {
    host == ANY || host == STAR
}

/// Refuses what no host calls itself.
fn check_name(host: &str) -> Result<(), Failure> {
    Nqn::qualified(host).map(|_| ()).map_err(|error| {
        Failure::usage(format!(
            "`{host}` is no name of a host: {error}; a Linux host has its own in /etc/nvme/hostnqn, and `{ANY}` stands for every \
             host"
        ))
    })
}

fn change_access(
    daemon: &mut Daemon,
    HostChange { nqn, host }: &HostChange,
    may: bool,
    keys: Value,
) -> Result<(), Failure> {
    let found = daemon.subsystems(Some(nqn))?;
    // A host of that name may be on the list from another client of the daemon.
    let mut listed = found.iter().flat_map(|subsystem| elements(subsystem, "hosts"));
    let is_named = !may && listed.any(|listed| listed["nqn"] == *host);
    if is_any(host) && !is_named {
        return allow(daemon, nqn, may);
    }
    let (method, verb) = match may {
        true => ("nvmf_subsystem_add_host", "may connect to"),
        false => ("nvmf_subsystem_remove_host", "is not on the list of"),
    };
    let answer = daemon.call(method, with_keys(nqn, host, keys))?;
    daemon.done(&answer, &format!("{host} {verb} {nqn}"))
}

fn set_keys(
    daemon: &mut Daemon,
    HostChange { nqn, host }: &HostChange,
    keys: Value,
) -> Result<(), Failure> {
    daemon.subsystems(Some(nqn))?;
    let answer = daemon.call("nvmf_subsystem_set_keys", with_keys(nqn, host, keys))?;
    daemon.done(&answer, &format!("{host} has other keys for {nqn}"))
}

/// The parameters of a call for a host of a subsystem.
fn with_keys(nqn: &str, host: &str, keys: Value) -> Value {
    let mut params = json!({ "nqn": nqn, "host": host });
    if let (Value::Object(params), Value::Object(keys)) = (&mut params, keys) {
        params.extend(keys);
    }
    params
}

fn list(daemon: &mut Daemon, nqn: Option<&str>) -> Result<(), Failure> {
    let subsystems = daemon.subsystems(nqn)?;
    let any = |value: &Value| value["allow_any_host"] == true;
    let mut list = documents(&subsystems, "hosts");
    let open = subsystems.iter().filter(|subsystem| any(subsystem));
    list.extend(open.clone().map(|subsystem| json!({ "subsystem": subsystem["nqn"], "nqn": ANY })));
    daemon.print(&list, || {
        let mut table =
            Table::new(&["subsystem", "host", "key", "controller's", "before", "psk", "security"]);
        for subsystem in open {
            let (nqn, none) = (text(&subsystem["nqn"]), String::new);
            table.row([nqn, ANY.to_owned(), none(), none(), none(), none(), none()]);
        }
        for (subsystem, host) in rows(&subsystems, "hosts") {
            let keys =
                ["nqn", "dhchap_key", "dhchap_ctrlr_key", "previous_dhchap_key", "psk", "security"];
            let [host, key, controller, before, psk, level] = keys.map(|name| text(&host[name]));
            table.row([text(&subsystem["nqn"]), host, key, controller, before, psk, level]);
        }
        table
    })
}
