//! The verbs that manage a daemon over its RPC socket, for users and their scripts.

mod bdev;
pub(crate) mod complete;
mod config;
mod events;
mod host;
mod iscsi;
mod namespace;
mod nvmet;
mod pool;
mod port;
mod qos;
mod steps;
mod subsystem;
mod support;
mod top;

use std::time::Duration;

use raceline_control::client::{Address, ClientError, Connection, DEFAULT_PORT};
use raceline_control::similar::similar;
use raceline_control::state::Call;
use serde_json::{Map, Value};

use crate::cli::manage::DaemonArgs;
use crate::cli::values::OutputFormat;
use crate::failure::Failure;
use crate::shell;
use crate::table::{Table, printable};

pub(crate) use bdev::run as bdev;
pub(crate) use config::run as config;
pub(crate) use events::run as events;
pub(crate) use host::run as host;
pub(crate) use iscsi::run as iscsi;
pub(crate) use namespace::run as namespace;
pub(crate) use nvmet::run as nvmet;
pub(crate) use pool::run as pool;
pub(crate) use port::run as port;
pub(crate) use qos::run as qos;
pub(crate) use subsystem::run as subsystem;
pub(crate) use support::run as support;
pub(crate) use top::run as top;

/// The connection to a daemon.
pub(crate) struct Daemon {
    connection: Connection,
    output: OutputFormat,
}

/// The daemon at a socket, or at a usual one, for verbs that only ask it something.
pub(crate) fn connect(socket: Option<&str>, timeout: Duration) -> Result<Daemon, Failure> {
    let address = socket.map(|socket| Address::new(socket, DEFAULT_PORT));
    let connection = Connection::find(address.as_ref(), timeout, 0).map_err(failure)?;
    Ok(Daemon { connection, output: OutputFormat::default() })
}

impl Daemon {
    fn connect(args: &DaemonArgs) -> Result<Self, Failure> {
        Ok(Self { output: args.output, ..connect(args.socket.as_deref(), args.timeout)? })
    }

    /// Where the daemon is.
    pub(crate) fn address(&self) -> &Address {
        self.connection.address()
    }

    /// Calls a method with an object of parameters; parameters that are null are left out.
    pub(crate) fn call(&mut self, method: &str, params: Value) -> Result<Value, Failure> {
        self.try_call(method, params).map_err(failure)
    }

    fn try_call(&mut self, method: &str, params: Value) -> Result<Value, ClientError> {
        let params = match params {
            Value::Object(params) => {
                params.into_iter().filter(|(_, value)| !value.is_null()).collect()
            }
            _ => Map::new(),
        };
        self.connection.call(method, &params)
    }

    fn make(&mut self, call: &Call) -> Result<Value, ClientError> {
        self.try_call(&call.method, call.params.clone().unwrap_or(Value::Null))
    }

    /// Calls a method that gives a list.
    pub(crate) fn list(&mut self, method: &str, params: Value) -> Result<Vec<Value>, Failure> {
        match self.call(method, params)? {
            Value::Array(list) => Ok(list),
            other => Err(Failure::runtime(format!("{method}: not a list but {other}"))),
        }
    }

    /// The subsystem of that name, or all except discovery.
    fn subsystems(&mut self, nqn: Option<&str>) -> Result<Vec<Value>, Failure> {
        let listed = self.list("nvmf_get_subsystems", Value::Null)?;
        let exported = listed.into_iter().filter(|subsystem| subsystem["subtype"] != "Discovery");
        let Some(nqn) = nqn else { return Ok(exported.collect()) };
        let (found, others): (Vec<Value>, Vec<Value>) =
            exported.partition(|subsystem| subsystem["nqn"] == nqn);
        if found.is_empty() {
            return Err(none_of_that_name("subsystem", nqn, &names(&others, "nqn")));
        }
        Ok(found)
    }

    /// The parts that are configured but missing; empty for a daemon without that method.
    fn missing(&mut self) -> Vec<Value> {
        let missing = self.try_call("bdev_get_missing", Value::Null).ok();
        missing.and_then(|list| list.as_array().cloned()).unwrap_or_default()
    }

    /// Prints a list: for programs the daemon's answer as it is.
    fn print(&self, list: &[Value], table: impl FnOnce() -> Table) -> Result<(), Failure> {
        let text = match self.output {
            OutputFormat::Json => format!("{:#}\n", Value::from(list)),
            OutputFormat::Table => table().render(""),
        };
        shell::print(text.as_bytes())
    }

    /// Prints a result: for programs the daemon's answer.
    fn done(&self, answer: &Value, sentence: &str) -> Result<(), Failure> {
        let text = match self.output {
            OutputFormat::Json => format!("{answer:#}\n"),
            OutputFormat::Table => format!("{}\n", printable(sentence)),
        };
        shell::print(text.as_bytes())
    }
}

/// A daemon's error as text for users: its detail, if there is one.
fn failure(error: ClientError) -> Failure {
    match error {
        ClientError::Connect { .. } | ClientError::Nowhere(_) => Failure::connect(error),
        other => Failure::runtime(other),
    }
}

/// The failure for an unknown name; suggests a similar one.
fn none_of_that_name(kind: &str, name: &str, others: &[String]) -> Failure {
    let name = printable(name);
    let hint = match others {
        [] => format!("there is no {kind} at all"),
        [only] => format!("there is only {}", printable(only)),
        _ => match similar(&name, others.iter().map(String::as_str)) {
            Some(meant) => format!("did you mean {}?", printable(meant)),
            None => format!("`ls` lists the {} that there are", others.len()),
        },
    };
    Failure::runtime(format!("there is no {kind} {name}: {hint}"))
}

/// One member of each element of a list.
fn names(list: &[Value], member: &str) -> Vec<String> {
    list.iter().map(|element| text(&element[member])).collect()
}

/// A value as a cell of a table.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// The elements of a list inside a value; empty if there is no list.
fn elements<'a>(value: &'a Value, member: &str) -> &'a [Value] {
    value[member].as_array().map_or(&[], Vec::as_slice)
}

/// A size in a suitable unit: 64 MiB.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut whole = bytes;
    let mut unit = 0;
    let mut rest = 0;
    while whole >= 1024 && unit + 1 < UNITS.len() {
        rest = whole % 1024;
        whole /= 1024;
        unit += 1;
    }
    match rest * 10 / 1024 {
        0 => format!("{whole} {}", UNITS[unit]),
        tenths => format!("{whole}.{tenths} {}", UNITS[unit]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short() {
        let shown = [0, 1023, 1024, 1536, 64 << 20, (3 << 40) + (1 << 39)].map(size);
        assert_eq!(shown, ["0 B", "1023 B", "1 KiB", "1.5 KiB", "64 MiB", "3.5 TiB"]);
    }

    #[test]
    fn a_wrong_name_is_answered_with_the_nearest() {
        let names = ["nqn.a:one".to_owned(), "nqn.b:two".to_owned()];
        let error = none_of_that_name("subsystem", "nqn.b:tow\x1b", &names);
        let expected = "there is no subsystem nqn.b:tow\u{fffd}: did you mean nqn.b:two?";
        assert_eq!(error.message, expected);
        let error = none_of_that_name("subsystem", "nqn.c:three", &names);
        let expected = "there is no subsystem nqn.c:three: `ls` lists the 2 that there are";
        assert_eq!(error.message, expected);
        let error = none_of_that_name("device", "m", &[]);
        assert_eq!(error.message, "there is no device m: there is no device at all");
    }
}
