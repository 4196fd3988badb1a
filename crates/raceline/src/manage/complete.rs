//! Existing names, for the completion of shells: none when the daemon does not answer.

use std::time::Duration;

use clap_complete::CompletionCandidate;
use raceline_control::client::{Address, Connection, DEFAULT_PORT};
use serde_json::{Map, Value};

use crate::cli::manage::SOCKET_VARIABLE;

/// Time limit for the daemon's answer: a user waits for the completion.
const TIMEOUT: Duration = Duration::from_millis(500);

/// The names of devices.
pub(crate) fn bdevs() -> Vec<CompletionCandidate> {
    let named = |bdev: &Value| Some((name(bdev, "name")?, name(bdev, "product_name")));
    candidates(list("bdev_get_bdevs").iter().filter_map(named))
}

/// The NQNs of subsystems.
pub(crate) fn subsystems() -> Vec<CompletionCandidate> {
    let subsystems = list("nvmf_get_subsystems");
    let exported = subsystems.iter().filter(|subsystem| subsystem["subtype"] != "Discovery");
    candidates(exported.filter_map(|it| Some((name(it, "nqn")?, name(it, "serial_number")))))
}

/// The names of target nodes of iSCSI.
pub(crate) fn target_nodes() -> Vec<CompletionCandidate> {
    let named = |node: &Value| Some((name(node, "name")?, name(node, "alias_name")));
    candidates(list("iscsi_get_target_nodes").iter().filter_map(named))
}

/// The known NQNs of hosts.
pub(crate) fn hosts() -> Vec<CompletionCandidate> {
    let subsystems = list("nvmf_get_subsystems");
    let hosts = subsystems.iter().filter_map(|subsystem| subsystem["hosts"].as_array()).flatten();
    let mut names: Vec<String> = hosts.filter_map(|host| name(host, "nqn")).collect();
    names.sort_unstable();
    names.dedup();
    candidates(names.into_iter().map(|name| (name, None)))
}

fn candidates(names: impl Iterator<Item = (String, Option<String>)>) -> Vec<CompletionCandidate> {
    names.map(|(name, help)| CompletionCandidate::new(name).help(help.map(Into::into))).collect()
}

/// A name, unless it has characters that a command line cannot hold.
fn name(value: &Value, member: &str) -> Option<String> {
    let text = value[member].as_str()?;
    (!text.chars().any(char::is_control)).then(|| text.to_owned())
}

fn list(method: &str) -> Vec<Value> {
    let address = socket().map(|socket| Address::new(&socket, DEFAULT_PORT));
    let connection = Connection::find(address.as_ref(), TIMEOUT, 0);
    let listed = connection.and_then(|mut daemon| daemon.call(method, &Map::new()));
    match listed {
        Ok(Value::Array(list)) => list,
        _ => Vec::new(),
    }
}

/// The socket that the unfinished command line or the environment names.
fn socket() -> Option<String> {
    let words: Vec<String> = std::env::args().collect();
    let named = words.windows(2).find(|pair| pair[0] == "-s" || pair[0] == "--socket");
    let named = named.map(|pair| pair[1].clone());
    named.or_else(|| std::env::var(SOCKET_VARIABLE).ok())
}
