//! `raceline host`: the hosts that may connect.

use serde_json::{Value, json};

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
        HostVerb::Add { host, dhchap_key, dhchap_ctrlr_key, psk, security } => {
            let keys = json!({
                "dhchap_key": dhchap_key, "dhchap_ctrlr_key": dhchap_ctrlr_key, "psk": psk,
                "security": security,
            });
            if host.host == ANY && (dhchap_key.is_some() || psk.is_some()) {
                return Err(Failure::usage("a key is for one host: name it instead of `any`"));
            }
            if host.host == ANY && security.is_some() {
                let text = "a level is for one host: for all of them, raceline subsys set --security sets it";
                return Err(Failure::usage(text));
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

fn change_access(
    daemon: &mut Daemon,
    HostChange { nqn, host }: &HostChange,
    may: bool,
    keys: Value,
) -> Result<(), Failure> {
    daemon.subsystems(Some(nqn))?;
    if host == ANY {
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
