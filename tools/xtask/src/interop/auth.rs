//! Authentication with Linux: the kernel's host with our target, and our host with the kernel's target.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};

use super::{NQN, Nvmet, Part, guest, script, watch};
use crate::raceline::{Export, Tree, host, iops, perf_job};
use crate::step::{Checks, Outcome};

const HOST_ID: &str = "e9c59d16-dcd0-4d74-ab17-4989f8a30b5a";
const HOST_NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:e9c59d16-dcd0-4d74-ab17-4989f8a30b5a";
/// Secrets that nvme-cli has made, of each length and transformation.
const HOST_KEY: &str = "DHHC-1:01:E9an7+T0aHqRy+bPTH8/JfJNfoQRYRy4P0Phxj+FxT10jwKd:";
const NEW_KEY: &str =
    "DHHC-1:02:EoKcfg9lMRdaVFfojeCJpA5bK/B1Pf901D98lHK/v4Ge89CJutcWqWvDQZO977HKVTa//g==:";
const CTRL_KEY: &str = "DHHC-1:03:nIZBRxIa4/8EhkH94jj4d+xpRocL+10DcgXbA3ezASlZ03wazuWLVqhzywOTAVOpu25M6RDlAuZffxVYvIIqy6aSyHY=:";
const OTHER_KEY: &str = "DHHC-1:00:opdXssgtulUGtA7urcpHIqTK3wJJ5Y7anIl1sUVNsng3PXjQ:";

const HASHES: [&str; 3] = ["sha256", "sha384", "sha512"];
/// The ends of the range, and a group of the usual size.
const SOME_GROUPS: [&str; 3] = ["null", "ffdhe2048", "ffdhe8192"];
const ALL_GROUPS: [&str; 6] =
    ["null", "ffdhe2048", "ffdhe3072", "ffdhe4096", "ffdhe6144", "ffdhe8192"];

/// The secrets as files, which our programs read.
struct Secrets {
    folder: PathBuf,
}

impl Secrets {
    fn write(folder: &Path) -> Result<Self> {
        let all = [("host", HOST_KEY), ("new", NEW_KEY), ("ctrl", CTRL_KEY), ("other", OTHER_KEY)];
        for (name, key) in all {
            let path = folder.join(name);
            std::fs::write(&path, format!("{key}\n"))?;
            std::fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        }
        Ok(Self { folder: folder.to_owned() })
    }

    fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }
}

/// Both directions.
pub(super) fn run(tree: &Tree, image: &Path, part: Part) -> Result<Outcome> {
    let folder = tree.scratch("interop-auth")?;
    let secrets = Secrets::write(&folder)?;
    let groups = if part == Part::AuthAll { &ALL_GROUPS[..] } else { &SOME_GROUPS };
    let pairs: Vec<(&str, &str)> =
        HASHES.iter().flat_map(|hash| groups.iter().map(|group| (*hash, *group))).collect();
    let from_kernel = kernel_host(tree, image, &secrets, &pairs)?;
    let to_kernel = kernel_target(tree, image, &secrets, &pairs)?;
    std::fs::remove_dir_all(&folder)?;
    Ok(match (from_kernel, to_kernel) {
        (Outcome::Passed(from), Outcome::Passed(to)) => {
            Outcome::Passed(format!("the kernel's host: {from}; its target: {to}"))
        }
        (_, other) => other,
    })
}

/// The kernel's host with one of our targets for each pair of a hash function and a group.
fn kernel_host(
    tree: &Tree,
    image: &Path,
    secrets: &Secrets,
    pairs: &[(&str, &str)],
) -> Result<Outcome> {
    let mut targets = Vec::with_capacity(pairs.len());
    let mut words = Vec::with_capacity(pairs.len());
    for (hash, group) in pairs {
        let [own, new, ctrl] = ["host", "new", "ctrl"].map(|name| secrets.path(name));
        let keys = ["--dhchap-key", &own, "--dhchap-key", &new, "--dhchap-ctrlr-key", &ctrl];
        let allowed = ["--dhchap-digests", hash, "--dhchap-dhgroups", group];
        let export = ["ram:16M", "-n", NQN, "--host", HOST_NQN];
        let target = Export::start(tree, &[&export[..], &keys, &allowed].concat())?;
        words.push(format!("{hash}/{group}/{}", target.port));
        targets.push(target);
    }
    let mut task = guest(tree, image, Part::Auth).args(["-e", "PEER=raceline"]);
    for (name, value) in [
        ("HOSTNQN", HOST_NQN),
        ("HOSTID", HOST_ID),
        ("HOST_KEY", HOST_KEY),
        ("NEW_KEY", NEW_KEY),
        ("CTRL_KEY", CTRL_KEY),
        ("OTHER_KEY", OTHER_KEY),
        ("TARGETS", &words.join(" ")),
    ] {
        task = task.args(["-e", &format!("{name}={value}")]);
    }
    let mut guest = task.args([image, &script(tree, Part::Auth)]).start()?;
    let outcome = watch(&mut guest, |request| bail!("the guest asks for '{request}'"))?;
    for target in targets {
        target.stop("TERM")?;
    }
    Ok(outcome)
}

/// Our host with the kernel's target.
fn kernel_target(
    tree: &Tree,
    image: &Path,
    secrets: &Secrets,
    pairs: &[(&str, &str)],
) -> Result<Outcome> {
    let nvmet = Nvmet::start(tree, image)?;
    let demand = |hash: &str, group: &str, key: &str, ctrl_key: &str| {
        nvmet.request(&format!("auth {hash} {group} {HOST_NQN} {key} {ctrl_key}"))
    };
    let own = ["--hostnqn", HOST_NQN, "--hostid", HOST_ID];
    let identify = |key: &str, ctrl_key: &str, groups: &str| {
        let (key, ctrl_key) = (secrets.path(key), secrets.path(ctrl_key));
        let proof = ["--dhchap-secret", &key, "--dhchap-ctrl-secret", &ctrl_key];
        let words = [&own[..], &proof, &["--dhchap-dhgroups", groups]].concat();
        host(tree, "identify", &nvmet.address, &words)
    };
    let mut checks = Checks::default();
    for (hash, group) in pairs {
        checks.run(&format!("target-{hash}-{group}"), || {
            demand(hash, group, HOST_KEY, CTRL_KEY)?;
            // Linux 6.12 finds no usable group if NULL is all that is offered. (It also chooses NULL, if that is its
            // own, from a host that offers only others.)
            let offered = if *group == "null" { "null,ffdhe2048" } else { group };
            identify("host", "ctrl", offered).map(drop)
        });
    }
    checks.run("target-wrong-secret", || {
        demand("sha256", "ffdhe2048", HOST_KEY, CTRL_KEY)?;
        refused(identify("other", "ctrl", "ffdhe2048"), "Compare the keys")
    });
    checks.run("target-wrong-ctrl-secret", || {
        refused(identify("host", "other", "ffdhe2048"), "did not prove")
    });
    checks.run("target-wrong-group", || refused(identify("host", "ctrl", "ffdhe3072"), "group"));
    checks.run("target-reauth-under-io", || {
        let (key, ctrl_key) = (secrets.path("host"), secrets.path("ctrl"));
        let proof = ["--dhchap-secret", &key, "--dhchap-ctrl-secret", &ctrl_key];
        let job = ["--rw", "randwrite", "--bs", "4k", "--size", "8m", "--iodepth", "8", "-i", "2"];
        let time = ["--runtime", "8", "--ramp_time", "0", "--verify", "--reauthenticate", "1"];
        let job = perf_job(tree, &nvmet.address, &[&own[..], &proof, &job, &time].concat())?;
        ensure!(iops(&job) > 0.0, "no I/O");
        Ok(())
    });
    if !checks.all_passed() {
        println!("{}", crate::child::tail(nvmet.guest.output(), 20));
    }
    drop(nvmet);
    checks.outcome()
}

/// The verb must have failed, and its words must say why.
fn refused<T>(result: Result<T>, why: &str) -> Result<()> {
    let Err(error) = result else { bail!("it was accepted") };
    let text = format!("{error:#}");
    ensure!(text.contains(why), "refused without '{why}': {text}");
    Ok(())
}
