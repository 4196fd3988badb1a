//! `raceline pool`: devices that hosts themselves divide into namespaces.

use serde_json::{Value, json};

use super::{Daemon, elements, size, text};
use crate::cli::manage::{PoolArgs, PoolVerb};
use crate::failure::Failure;
use crate::table::Table;

/// Runs the verb.
pub(crate) fn run(args: &PoolArgs) -> Result<(), Failure> {
    let mut daemon = Daemon::connect(&args.daemon)?;
    match &args.verb {
        PoolVerb::Ls { nqn } => list(&mut daemon, nqn.as_deref()),
        PoolVerb::Add { nqn, device, unit, managers } => {
            daemon.subsystems(Some(nqn))?;
            let params = json!({
                "nqn": nqn,
                "bdev_name": device,
                "unit_bytes": unit.0,
                "managers": (!managers.is_empty()).then_some(managers),
            });
            let answer = daemon.call("nvmf_subsystem_add_pool", params)?;
            daemon.done(&answer, &format!("hosts of {nqn} may make namespaces of {device}"))
        }
        PoolVerb::Rm { nqn, force } => remove(&mut daemon, nqn, *force),
    }
}

/// The pools of these subsystems, each with the subsystem's name.
pub(super) fn pools(daemon: &mut Daemon, nqn: Option<&str>) -> Result<Vec<Value>, Failure> {
    let mut pools = Vec::new();
    for subsystem in daemon.subsystems(nqn)? {
        pools.extend(daemon.list("nvmf_subsystem_get_pool", json!({ "nqn": subsystem["nqn"] }))?);
    }
    Ok(pools)
}

fn list(daemon: &mut Daemon, nqn: Option<&str>) -> Result<(), Failure> {
    let pools = pools(daemon, nqn)?;
    daemon.print(&pools, || {
        let mut table =
            Table::new(&["subsystem", "device", "size", "free", "unit", "namespaces", "managers"]);
        for pool in &pools {
            let bytes = |member: &str| pool[member].as_u64().map_or_else(String::new, size);
            let managers: Vec<String> = elements(pool, "managers").iter().map(text).collect();
            table.row([
                text(&pool["nqn"]),
                text(&pool["bdev_name"]),
                if pool["missing"].is_null() { bytes("total_bytes") } else { "missing".to_owned() },
                bytes("free_bytes"),
                bytes("unit_bytes"),
                elements(pool, "namespaces").len().to_string(),
                if managers.is_empty() { "any".to_owned() } else { managers.join(" ") },
            ]);
        }
        table
    })
}

fn remove(daemon: &mut Daemon, nqn: &str, force: bool) -> Result<(), Failure> {
    let pools = pools(daemon, Some(nqn))?;
    let Some(pool) = pools.first() else {
        return Err(Failure::runtime(format!("{nqn} has no pool: raceline pool ls lists them")));
    };
    let count = elements(pool, "namespaces").len();
    if count > 0 && !force {
        return Err(Failure::runtime(format!(
            "hosts have made {count} namespaces of {}: delete them, or use --force",
            text(&pool["bdev_name"])
        )));
    }
    let answer = daemon.call("nvmf_subsystem_remove_pool", json!({ "nqn": nqn }))?;
    daemon.done(&answer, &format!("removed the pool of {nqn}"))
}
