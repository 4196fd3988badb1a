//! The clean-roots step: the packages in clean roots of Debian with their own apt and systemd, and the operator's guide there.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::supply::Supply;
use super::{Packages, binary, deb, guide, make, source_date};
use crate::child::Task;
use crate::raceline::Tree;
use crate::setup;
use crate::step::{Checks, Outcome};

/// The releases of Debian, and the package that has nbdfuse there.
const SUITES: [(&str, &str); 2] = [("bookworm", "nbdfuse"), ("trixie", "libnbd-bin")];
/// The variable that names the one release to go through.
const SUITE: &str = "RACELINE_SUITE";
/// The variable that names a folder with roots that were made before, a folder for each release.
const ROOTS: &str = "RACELINE_ROOTS";
/// Where Debian is.
const MIRROR: &str = "http://deb.debian.org/debian";
/// What the roots have besides the smallest system: its systemd, and programs that judge.
const INCLUDE: &str = "systemd,systemd-sysv,dbus,libgcc-s1,iproute2,e2fsprogs,libnbd-bin,nbdkit,fuse3,fuse2fs,rpm,curl";
/// What a systemd is told on a machine whose control groups are of version 1.
const LEGACY: [&str; 2] =
    ["systemd.unified_cgroup_hierarchy=0", "SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1"];
/// Time to make a root, or to go through a script in it, in seconds.
const ROOT_LIMIT_S: u64 = 600;
/// Time to fetch a small file from the mirror, in seconds.
const FETCH_LIMIT_S: u64 = 60;
/// The version of the package that the guide installs first.
const OLD_VERSION: &str = "0";
/// From the package to a verified file system, as an operator begins.
const FIRST_USE_LIMIT: Duration = Duration::from_secs(180);

/// Runs the step.
pub(crate) fn run(tree: &Tree) -> Result<Outcome> {
    if let Some(why) = setup::missing_for("clean-roots") {
        return setup::cannot(&why);
    }
    if !setup::is_root() {
        return Ok(Outcome::Skipped("only root can make a root".to_owned()));
    }
    if let Some(why) = cannot_reach_mirror(&tree.scratch("clean-roots")?) {
        return setup::cannot(&why);
    }
    let only = std::env::var(SUITE).ok();
    let is_wanted = |suite: &str| only.as_ref().is_none_or(|only| only == suite);
    let names = SUITES.map(|(suite, _)| suite);
    ensure!(names.into_iter().any(is_wanted), "{SUITE} is none of {}", names.join(", "));
    let scratch = tree.scratch("clean-roots")?;
    let made = make(tree, &binary(tree)?, &scratch.join("made"))?;
    let old = scratch.join("old.deb");
    std::fs::write(&old, older(tree, (&made, &scratch.join("made")))?)?;
    let text = std::fs::read_to_string(tree.root.join("docs/OPERATORS.md"))?;
    let guide = guide::script(&text)?;
    let mut checks = Checks::default();
    let (mut no_start, mut has_started) = (None, false);
    for (suite, nbdfuse) in SUITES.into_iter().filter(|(suite, _)| is_wanted(suite)) {
        let root = scratch.join(suite);
        let is_made = make_root(suite, nbdfuse, &root);
        let is_there = is_made.is_ok();
        checks.run(&format!("{suite}-root"), || is_made);
        if !is_there {
            continue;
        }
        match (cannot_start(&root), has_started) {
            (None, _) => has_started = true,
            (Some(why), false) => {
                checks.skip(&format!("{suite}-start"), &why);
                no_start = Some(why);
                continue;
            }
            // The machine can, as it has shown.
            (Some(why), true) => {
                checks.not_ok(&format!("{suite}-start"), &why);
                continue;
            }
        }
        checks.run(&format!("{suite}-first-use"), || first_use(&made, &root));
        checks.run(&format!("{suite}-rpm"), || rpm(&made, &root));
        checks.run(&format!("{suite}-guide"), || {
            std::fs::copy(&old, root.join("old.deb"))?;
            std::fs::copy(&made.deb, root.join("new.deb"))?;
            booted(&root, "guide", &guide, "the-guide-is-done").map(drop)
        });
    }
    std::fs::remove_dir_all(&scratch)?;
    match no_start {
        Some(why) if !has_started && checks.all_passed() => Ok(Outcome::Skipped(why)),
        _ => checks.outcome(),
    }
}

/// The same program as a package of an older version.
fn older(tree: &Tree, (made, folder): (&Packages, &Path)) -> Result<Vec<u8>> {
    let supply = Supply::read(&tree.root)?;
    let sbom = std::fs::read(&made.sbom)?;
    let program = folder.join("raceline");
    let files = deb::files(&tree.root, &program, (&supply, &sbom), folder)?;
    deb::package(OLD_VERSION, &files, source_date(&tree.root)?)
}

/// Why there is no way to Debian's mirror, if there is none: apt knows this machine's proxies.
fn cannot_reach_mirror(scratch: &Path) -> Option<String> {
    if std::env::var_os(ROOTS).is_some() {
        return None;
    }
    let release = format!("{MIRROR}/dists/{}/Release", SUITES[0].0);
    let fetch = Task::new("/usr/lib/apt/apt-helper")
        .args(["download-file", release.as_str()])
        .args([scratch.join("Release")]);
    let why = match fetch.limit(FETCH_LIMIT_S).run() {
        Ok(ended) if ended.success() => return None,
        Ok(ended) => ended.tail(2),
        Err(error) => format!("{error:#}"),
    };
    Some(in_one_line(&format!("no roots, as this machine does not get {release}: {why}")))
}

fn in_one_line(text: &str) -> String {
    text.lines().map(str::trim).collect::<Vec<_>>().join(" ")
}

fn make_root(suite: &str, nbdfuse: &str, root: &Path) -> Result<()> {
    if let Some(made) = std::env::var_os(ROOTS) {
        let made = Path::new(&made).join(suite);
        let copy = Task::new("cp").args(["--archive", "--no-target-directory"]).args([&made, root]);
        copy.limit(ROOT_LIMIT_S).check()?;
        return silence_console(root);
    }
    let include = format!("--include={INCLUDE},{nbdfuse}");
    Task::new("mmdebstrap")
        .args(["--quiet", "--variant=minbase", include.as_str(), suite])
        .args([root.as_os_str(), MIRROR.as_ref()])
        .limit(ROOT_LIMIT_S)
        .check()?;
    silence_console(root)
}

/// Why no system starts in a root on this machine, if none does: a script that does nothing shows it.
fn cannot_start(root: &Path) -> Option<String> {
    let script = "test -c /dev/fuse && echo a-system-starts";
    let error = booted(root, "start", script, "a-system-starts").err()?;
    Some(in_one_line(&format!("this machine starts no system in a root: {error:#}")))
}

/// The console of a root that boots is nobody's.
fn silence_console(root: &Path) -> Result<()> {
    let shadow = root.join("etc/systemd/system/console-getty.service");
    if shadow.symlink_metadata().is_err() {
        std::os::unix::fs::symlink("/dev/null", shadow)?;
    }
    Ok(())
}

/// From the package to a verified file system: each command, and what has to be true before the next one.
/// nbdkit is there because fuse2fs writes parts of blocks, which it makes whole.
const FIRST_USE: [(&str, &str); 8] = [
    ("apt install -y ./raceline_*.deb", ""),
    (
        "raceline export ram:256M,bs=512 --nqn nqn.2026-01.com.example:first > /export.log 2>&1 &",
        "EXPORT=$!; waits grep -q '\"ready\":true' /export.log",
    ),
    (
        "raceline connect --as nbd -a 127.0.0.1 -n nqn.2026-01.com.example:first --listen 10809 > /connect.log 2>&1 &",
        "CONNECT=$!; waits grep -q '\"ready\":true' /connect.log",
    ),
    (
        "nbdfuse /mnt/disk --command nbdkit -s --exit-with-parent --filter=blocksize nbd uri=nbd://127.0.0.1:10809 \
         minblock=512 2> /nbdfuse.log &",
        "NBDFUSE=$!; waits test -e /mnt/disk/nbd",
    ),
    ("mkfs.ext4 -q -F /mnt/disk/nbd", ""),
    ("fuse2fs -o fakeroot /mnt/disk/nbd /mnt/files", ""),
    ("cp -r /usr/share/doc/raceline /mnt/files/", ""),
    ("diff -r /usr/share/doc/raceline /mnt/files/raceline", ""),
];
/// The most commands that an operator may need.
const MOST_COMMANDS: usize = 10;
/// What an administrator's machine has before the first command.
const BEFORE_FIRST_USE: &str = "set -eE; trap 'echo \"FAILED ($?): $BASH_COMMAND\"' ERR
ip link set lo up; export DEBIAN_FRONTEND=noninteractive; mkdir -p /mnt/disk /mnt/files; cp /new.deb /root/raceline_0.deb; cd /root
waits() { for turn in $(seq 600); do \"$@\" && return; sleep 0.1; done; tail -n 5 /*.log; false; }
STARTED=$(date +%s%N)
";
/// An orderly end, and the removal, which leaves nothing: no service has run, so there is no state.
const AFTER_FIRST_USE: &str = r#"echo "the commands took $(( ($(date +%s%N) - STARTED) / 1000000 )) ms"
umount /mnt/files
waits umount /mnt/disk
wait $NBDFUSE
kill $CONNECT; wait $CONNECT || test $? = 143
kill $EXPORT; wait $EXPORT || test $? = 143
if grep -i -E 'error|unaligned' /export.log /connect.log /nbdfuse.log; then exit 1; fi
left() {
    find / -xdev '(' -path /proc -o -path /sys -o -path '/var/lib/raceline' -o -path '/var/lib/dpkg*' -o -path '/var/log*' \
        -o -path '/root/raceline_0.deb' ')' -prune -o -name '*raceline*' -print | sort | tr '\n' ' '
}
apt remove -y raceline
test "$(left)" = '/etc/default/raceline ' || { echo "the removal left $(left)"; exit 1; }
apt purge -y raceline
test -z "$(left)" || { echo "the purge left $(left)"; exit 1; }
test ! -e /var/lib/raceline || { echo 'a folder of state, though no service ever ran'; exit 1; }
echo the-first-use-is-done
"#;

/// The script of the first use.
fn first_use_script() -> String {
    let mut script = BEFORE_FIRST_USE.to_owned();
    for (command, then) in FIRST_USE {
        // Writing to a string does not fail.
        let _ = writeln!(script, "echo '+ {}'\n{command}\n{then}", command.replace('\'', "'\\''"));
    }
    script + AFTER_FIRST_USE
}

fn first_use(made: &Packages, root: &Path) -> Result<()> {
    std::fs::copy(&made.deb, root.join("new.deb"))?;
    let started = Instant::now();
    let said = booted(root, "first-use", &first_use_script(), "the-first-use-is-done")?;
    let with_start = started.elapsed();
    let took =
        said.lines().find_map(|line| line.strip_prefix("the commands took ")?.strip_suffix(" ms"));
    let took =
        Duration::from_millis(took.context("the script does not say how long it took")?.parse()?);
    let given: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("+ ")).collect();
    for command in &given {
        println!("# {command}");
    }
    let commands = given.len();
    println!(
        "# from the package to a verified file system: {commands} commands, {:.1} s; {:.1} s with the start of the \
         system, the removal and its end",
        took.as_secs_f64(),
        with_start.as_secs_f64()
    );
    ensure!(commands == FIRST_USE.len() && commands <= MOST_COMMANDS, "{commands} commands");
    ensure!(took <= FIRST_USE_LIMIT, "that took {took:?}");
    Ok(())
}

/// The RPM package with its scripts: a system of Debian has what they need, though not RPM's names for it.
fn rpm(made: &Packages, root: &Path) -> Result<()> {
    std::fs::copy(&made.rpm, root.join("raceline.rpm"))?;
    let begin = "set -eE; trap 'echo \"FAILED ($?): $BASH_COMMAND\"' ERR
rpm --install --nodeps --nosignature /raceline.rpm
rpm --verify --nodeps raceline
id raceline
test -d /var/lib/raceline
systemctl start raceline
raceline bdev add ram:1M --name kept -s /run/raceline/rpc.sock
rpm --upgrade --replacepkgs --nodeps --nosignature /raceline.rpm
systemctl is-active raceline
raceline bdev ls -s /run/raceline/rpc.sock | grep kept
";
    let end = "held rpm --erase --nodeps raceline
rpm --query raceline
rpm --erase --nodeps raceline
test ! -e /usr/bin/raceline; test -e /var/lib/raceline/lock; test ! -e /run/raceline
rm -rf /var/lib/raceline
echo the-rpm-is-done
";
    let script = [begin, guide::HELD, end].concat();
    booted(root, "rpm", &script, "the-rpm-is-done").map(drop)
}

/// Starts the root's system with a script as its only work, whose output must contain a word in the end; that output.
fn booted(root: &Path, name: &str, script: &str, word: &str) -> Result<String> {
    let log = root.join(format!("{name}.log"));
    // The script and the command after it both write to its end.
    let _ = std::fs::remove_file(&log);
    std::fs::write(root.join(format!("{name}.sh")), script)?;
    let unit = format!(
        "[Unit]\nAfter=basic.target dbus.service\n[Service]\nType=oneshot\nExecStart=/bin/bash /{name}.sh\n\
         StandardOutput=append:/{name}.log\nStandardError=inherit\nExecStopPost=/bin/systemctl --no-block poweroff\n"
    );
    let units = root.join("etc/systemd/system");
    let (file, wanted) = (units.join("check.service"), units.join("multi-user.target.wants"));
    std::fs::write(&file, unit)?;
    std::fs::create_dir_all(&wanted)?;
    let link = wanted.join("check.service");
    if link.symlink_metadata().is_err() {
        std::os::unix::fs::symlink("/etc/systemd/system/check.service", &link)?;
    }
    let root_text = root.to_string_lossy().into_owned();
    let args =
        ["--register=no", "--keep-unit", "--boot", "--private-network", "--bind=/dev/fuse", "-D"];
    // A machine with control groups of version 1: new systemds have to be told.
    let is_legacy = !Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let more = if is_legacy { &LEGACY[..] } else { &[] };
    let words = args.into_iter().chain([root_text.as_str()]).chain(more.iter().copied());
    let ended = Task::new("systemd-nspawn").args(words).limit(ROOT_LIMIT_S).run()?;
    let said = std::fs::read(&log).with_context(|| {
        format!("the root's system does not start ({}): {}", ended.why(), ended.tail(10).trim())
    })?;
    // systemctl cuts long lines, and not always between two letters.
    let said = String::from_utf8_lossy(&said).into_owned();
    let lines: Vec<&str> = said.lines().collect();
    let tail = lines[lines.len().saturating_sub(25)..].join("\n");
    ensure!(said.contains(word), "{name} in {root_text}:\n{tail}");
    Ok(said)
}
