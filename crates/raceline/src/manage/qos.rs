//! `raceline qos`: limits of rates, and weights of hosts.

use serde_json::{Value, json};

use super::{Daemon, elements, text};
use crate::cli::manage::{QosArgs, QosKind, QosSet, QosTarget, QosVerb};
use crate::failure::Failure;
use crate::table::Table;

/// Runs the verb.
pub(crate) fn run(args: &QosArgs) -> Result<(), Failure> {
    let mut daemon = Daemon::connect(&args.daemon)?;
    match &args.verb {
        QosVerb::Ls => list(&mut daemon),
        QosVerb::Set(set) => {
            if set.what.kind != QosKind::Hosts && !set.hosts.is_empty() {
                return Err(Failure::usage("--host goes with `qos set hosts NAME`"));
            }
            let (method, mut params) = call(&set.what);
            let QosSet { hosts, iops, bandwidth, read, write, burst, what } = set;
            let limits = [
                ("rw_ios_per_sec", iops),
                ("rw_mbytes_per_sec", bandwidth),
                ("r_mbytes_per_sec", read),
                ("w_mbytes_per_sec", write),
                ("burst_ms", burst),
            ];
            for (name, limit) in limits {
                if let Some(limit) = limit {
                    params[name] = (*limit).into();
                }
            }
            if !hosts.is_empty() {
                params["hosts"] = json!(hosts);
            }
            let answer = daemon.call(method, params)?;
            daemon.done(&answer, &format!("{} has limits", what.name))
        }
        QosVerb::Weight { nqn, host, weight } => {
            let mut params = json!({ "nqn": nqn, "host": host });
            if let Some(weight) = weight.0 {
                params["weight"] = weight.into();
            }
            let answer = daemon.call("nvmf_subsystem_set_host_weight", params)?;
            let told = match weight.0 {
                Some(weight) => format!("{host} has weight {weight}"),
                None => format!("{host} has no weight any more"),
            };
            daemon.done(&answer, &told)
        }
        QosVerb::Rm { what } => {
            let (method, mut params) = call(what);
            for name in
                ["rw_ios_per_sec", "rw_mbytes_per_sec", "r_mbytes_per_sec", "w_mbytes_per_sec"]
            {
                params[name] = 0.into();
            }
            let answer = daemon.call(method, params)?;
            daemon.done(&answer, &format!("{} has no limits any more", what.name))
        }
    }
}

/// The method that sets limits, and the parameter that says of what.
fn call(what: &QosTarget) -> (&'static str, Value) {
    let name = &what.name;
    match what.kind {
        QosKind::Bdev => ("bdev_set_qos_limit", json!({ "name": name })),
        QosKind::Subsys => ("nvmf_subsystem_set_qos_limit", json!({ "nqn": name })),
        QosKind::Hosts => ("nvmf_host_set_qos_limit", json!({ "name": name })),
    }
}

fn list(daemon: &mut Daemon) -> Result<(), Failure> {
    let all = daemon.list("nvmf_get_qos_limits", Value::Null)?;
    daemon.print(&all, || {
        let mut table = Table::new(&[
            "kind",
            "name",
            "iops",
            "MiB/s",
            "read MiB/s",
            "write MiB/s",
            "burst ms",
            "weight",
            "hosts or subsystem",
        ]);
        for limits in &all {
            let number = |name: &str| match limits[name].as_u64() {
                None | Some(0) => "-".to_owned(),
                Some(number) => number.to_string(),
            };
            let burst = match limits["burst_ms"].as_u64() {
                Some(burst) => burst.to_string(),
                None if limits["weight"].is_null() => "10".to_owned(),
                None => "-".to_owned(),
            };
            let hosts: Vec<String> = elements(limits, "hosts").iter().map(text).collect();
            table.row([
                text(&limits["type"]),
                text(&limits["name"]),
                number("rw_ios_per_sec"),
                number("rw_mbytes_per_sec"),
                number("r_mbytes_per_sec"),
                number("w_mbytes_per_sec"),
                burst,
                number("weight"),
                if limits["nqn"].is_null() { hosts.join(" ") } else { text(&limits["nqn"]) },
            ]);
        }
        table
    })
}
