//! TLS with Linux: the kernel's host against our target, our host against the kernel's target, and records that the
//! guest's kernel makes for us.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use super::{NQN, Nvmet, Part, drives, guest, script, verify, watch};
use crate::child::tail;
use crate::raceline::{Export, Tree, host};
use crate::step::{Checks, Outcome};

/// Keys of tests: anyone may know them.
const KEY: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
const OTHER_KEY: &str = "NVMeTLSkey-1:01:MDAxMTIyMzM0NDU1NjY3Nzg4OTlhYWJiY2NkZGVlZmZwJEiQ:";
const HOSTNQN: &str = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-000000000007";

/// Both directions.
pub(super) fn run(tree: &Tree, image: &Path) -> Result<Outcome> {
    let scratch = super::scratch(tree, image, Part::Tls)?;
    let mut files = Vec::new();
    for (name, key) in [("tls.key", KEY), ("other.key", OTHER_KEY)] {
        let path = scratch.join(name);
        std::fs::write(&path, key)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        files.push(path.display().to_string());
    }
    let from_kernel = kernel_host(tree, image, &files[0]);
    let to_kernel = kernel_target(tree, image, [&files[0], &files[1]]);
    std::fs::remove_dir_all(&scratch)?;
    Ok(match (from_kernel?, to_kernel?) {
        (Outcome::Passed(from), Outcome::Passed(to)) => {
            Outcome::Passed(format!("the kernel's host: {from}; its target: {to}"))
        }
        (Outcome::Passed(_), other) | (other, _) => other,
    })
}

/// Our host against the kernel's target, where tlshd shakes hands and the kernel makes the records.
fn kernel_target(tree: &Tree, image: &Path, [key, other]: [&str; 2]) -> Result<Outcome> {
    let settings = [format!("HOSTNQN={HOSTNQN}"), format!("KEY={KEY}")];
    let nvmet = Nvmet::start_with(tree, image, &settings)?;
    let own = |key| ["--hostnqn", HOSTNQN, "--tls-psk", key, "--tls-compat", "-l", "0"];
    let mut checks = Checks::default();
    for version in ["1", "0"] {
        let identity = ["--tls-identity", version];
        checks.run(&format!("target-identity-{version}"), || {
            let ended =
                host(tree, "identify", &nvmet.address, &[&own(key)[..], &identity].concat())?;
            ensure!(ended.stdout.contains(NQN), "no {NQN} in\n{}", ended.tail(10));
            Ok(())
        });
        checks.run(&format!("target-verify-{version}"), || {
            verify(tree, &nvmet, &[&own(key)[..], &identity].concat())
        });
        checks.run(&format!("target-another-key-{version}"), || {
            let words = [&own(other)[..], &identity].concat();
            let refused = host(tree, "identify", &nvmet.address, &words);
            ensure!(refused.is_err(), "a host with another key was let in");
            Ok(())
        });
    }
    checks.run("target-without-tls", || {
        let refused = host(tree, "identify", &nvmet.address, &["--hostnqn", HOSTNQN, "-l", "0"]);
        ensure!(refused.is_err(), "a host without TLS was let in");
        Ok(())
    });
    checks.run("target-log-clean", || {
        // What an orderly end leaves there (close_notify). The dots stand for spaces.
        nvmet.request("clean nvmet_tcp:.queue.[0-9]+:.TLS.Alert.desc.0")
    });
    if !checks.all_passed() {
        println!("{}", tail(nvmet.guest.output(), 20));
    }
    drop(nvmet);
    checks.outcome()
}

/// The kernel's host against our target.
fn kernel_host(tree: &Tree, image: &Path, file: &str) -> Result<Outcome> {
    // nvme-cli 2.13, which derives the keys of the guest, does it in the old way.
    let words = ["ram:96M", "-n", NQN, "--host", HOSTNQN, "--tls-psk", file, "--tls-compat"];
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
    let outcome = outcome?;
    health.context("the target after the guest's checks")?;
    Ok(match (outcome, ktls(tree, image)?) {
        (Outcome::Passed(first), Outcome::Passed(second)) => {
            Outcome::Passed(format!("{first}; records by the kernel: {second}"))
        }
        (Outcome::Passed(_), skipped) => skipped,
        (skipped, _) => skipped,
    })
}

/// Records by the guest's kernel, for our program in the guest: this machine's kernel may have none.
fn ktls(tree: &Tree, image: &Path) -> Result<Outcome> {
    let dir = tree.scratch("interop-ktls")?;
    let program = drives::stripped(tree, &dir)?;
    let mut guest = guest(tree, image, Part::Tls)
        .args([Path::new("-f"), &program])
        .args(["-e", &format!("HOSTNQN={HOSTNQN}"), "-e", &format!("KEY={KEY}")])
        .args([image, &tree.root.join("interop/guest/ktls.sh")])
        .start()?;
    let outcome = watch(&mut guest, |request| bail!("the guest asks for '{request}'"));
    std::fs::remove_dir_all(&dir)?;
    outcome
}
