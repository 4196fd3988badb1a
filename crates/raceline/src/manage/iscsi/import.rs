//! `raceline iscsi import`: has a daemon export what a file of LIO, the Linux kernel's target, describes, or a script of its
//! tool targetcli.
//!
//! A plan is made of the whole file first. Whoever could not reach a device, or not write to it, by the file cannot do so
//! afterwards: what a daemon cannot restrict in the same way is left out, and reported.

mod plan;
mod saveconfig;
mod script;

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use serde_json::Value;
use zeroize::Zeroizing;

use self::plan::Taken;
use super::{Daemon, names};
use crate::failure::Failure;
use crate::manage::steps::Plan;

/// A larger file is no configuration.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// Carries out the file, or says what would be done.
pub(super) fn run(daemon: &mut Daemon, path: &Path, dry_run: bool) -> Result<(), Failure> {
    let shown = path.display();
    let text = read(path)?;
    let wrong = |error| Failure::usage(format!("{shown}: {error}"));
    let (saved, passed_over) = match saveconfig::is_saved(&text) {
        true => (saveconfig::read(&text).map_err(wrong)?, Vec::new()),
        false => {
            let script = script::read(&text).map_err(wrong)?;
            (script.saved, script.remarks)
        }
    };
    let taken = Taken {
        devices: names(&daemon.list("bdev_get_bdevs", Value::Null)?, "name"),
        portal_groups: tags(daemon, "iscsi_get_portal_groups")?,
        initiator_groups: tags(daemon, "iscsi_get_initiator_groups")?,
        auth_groups: tags(daemon, "iscsi_get_auth_groups")?,
    };
    let mut plan = Plan::new(&saved, taken).map_err(wrong)?;
    plan.remarks.extend(passed_over);
    if !dry_run {
        plan.carry_out(daemon)?;
    }
    plan.report(daemon.output, dry_run)
}

fn read(path: &Path) -> Result<Zeroizing<String>, Failure> {
    let failed = |error| Failure::usage(format!("{}: {error}", path.display()));
    let mut text = Zeroizing::new(String::new());
    let file = File::open(path).map_err(failed)?;
    file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > MAX_FILE_BYTES {
        let text = format!("{}: more than 16 MiB are no configuration of LIO", path.display());
        return Err(Failure::usage(text));
    }
    Ok(text)
}

fn tags(daemon: &mut Daemon, method: &str) -> Result<Vec<u64>, Failure> {
    let groups = daemon.list(method, Value::Null)?;
    Ok(groups.iter().filter_map(|group| group["tag"].as_u64()).collect())
}
