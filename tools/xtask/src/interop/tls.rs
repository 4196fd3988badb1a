//! The kernel's host against our target over TLS.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::{NQN, Part, guest, script, watch};
use crate::raceline::{Export, Tree};
use crate::step::Outcome;

/// Keys of tests: anyone may know them.
const KEY: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
const OTHER_KEY: &str = "NVMeTLSkey-1:01:MDAxMTIyMzM0NDU1NjY3Nzg4OTlhYWJiY2NkZGVlZmZwJEiQ:";
const HOSTNQN: &str = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-000000000007";

pub(super) fn run(tree: &Tree, image: &Path) -> Result<Outcome> {
    let scratch = super::scratch(tree, image)?;
    let key = scratch.join("tls.key");
    std::fs::write(&key, KEY)?;
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600))?;
    let file = key.display().to_string();
    // nvme-cli 2.13, which derives the keys of the guest, does it in the old way.
    let words = ["ram:96M", "-n", NQN, "--host", HOSTNQN, "--tls-psk", &file, "--tls-compat"];
    let target = Export::start(tree, &words)?;
    let settings = [
        format!("PORT={}", target.port),
        format!("HOSTNQN={HOSTNQN}"),
        format!("KEY={KEY}"),
        format!("OTHER_KEY={OTHER_KEY}"),
    ];
    let mut task = guest(tree, image, Part::Tls);
    for setting in &settings {
        task = task.args(["-e", setting]);
    }
    let mut guest = task.args([image, &script(tree, Part::Tls)]).start()?;
    let outcome = watch(&mut guest, |request| bail!("the guest asks for '{request}'"));
    let health = target.stop("TERM");
    std::fs::remove_dir_all(&scratch)?;
    let outcome = outcome?;
    health.context("the target after the guest's checks")?;
    Ok(outcome)
}
