//! The service step: how exposed the service of `packaging/` is, and whether it permits what the daemon needs.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::child::{Task, has_program};
use crate::raceline::Tree;
use crate::step::{Checks, Outcome};

const UNIT: &str = "packaging/raceline.service";
/// The service that makes block devices of the kernel, which only root can.
const UBLK: &str = "packaging/raceline-ublk@.service";
/// The service of a disk for other programs.
const DISK: &str = "packaging/raceline-disk@.service";
/// All services that are judged, and the greatest exposure of each in tenths: 0 is none, 100 is all.
const UNITS: [(&str, &str); 3] = [(UNIT, "20"), (DISK, "20"), (UBLK, "30")];
/// The drop-in for NVMe/RDMA.
const RDMA: &str = "packaging/raceline-rdma.conf";
/// Where the program lists the system calls that it keeps.
const CALLS: &str = "crates/sandbox/src/calls.rs";
/// The program of systemd that judges units.
const ANALYZE: &str = "systemd-analyze";

/// Settings that systemd knows since a version; older ones pass over them, and the units say what they then do.
const NEWER_SETTINGS: [(&str, u32); 2] = [("RestartSteps", 254), ("RestartMaxDelaySec", 254)];

/// Calls of the program's filter that a service does not make.
const NOT_IN_A_SERVICE: [&str; 1] = [
    // Counters are for exports.
    "perf_event_open",
];
/// Calls by which a program enters its sandbox.
const TO_ENTER: [&str; 4] =
    ["landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self", "seccomp"];

/// How deep sets of systemd stand in each other.
const MOST_NESTED: usize = 8;

/// Runs all checks of the step.
pub(crate) fn run(tree: &Tree) -> Result<Outcome> {
    let root = &tree.root;
    if !has_program(ANALYZE) {
        return Ok(Outcome::Skipped(format!("missing: {ANALYZE} (package systemd)")));
    }
    let help = Task::new(ANALYZE).args(["--help"]).run()?;
    if !help.stdout.contains("--offline") {
        return Ok(Outcome::Skipped(format!(
            "this {ANALYZE} cannot judge a file (systemd 250 can)"
        )));
    }
    let mut checks = Checks::default();
    for (unit, most) in UNITS {
        checks.run(unit, || exposure(root, unit, most));
    }
    checks.run("spelling", || UNITS.iter().try_for_each(|(unit, _)| verify(root, unit)));
    let with_rdma = tree.scratch("service")?;
    for (unit, most) in UNITS {
        checks.run(&format!("{unit} with {RDMA}"), || {
            // A file with two sections of a name is read as a unit with its drop-in.
            let [text, more] =
                [unit, RDMA].map(|file| fs::read_to_string(root.join(file)).context(file));
            let whole = with_rdma.join(Path::new(unit).file_name().context(unit)?);
            fs::write(&whole, text? + &more?)?;
            exposure(root, &whole.to_string_lossy(), most)
        });
    }
    checks.run("system-calls", || system_calls(root));
    for unit in [DISK, UBLK] {
        checks.run(&format!("{unit} lasts"), || {
            lasts(&fs::read_to_string(root.join(unit)).context(unit)?)
        });
    }
    checks.outcome()
}

/// systemd's own judgement.
fn exposure(root: &Path, unit: &str, most: &str) -> Result<()> {
    let threshold = format!("--threshold={most}");
    let ended = Task::new(ANALYZE)
        .args(["security", "--offline=true", "--no-pager", &threshold, unit])
        .dir(root)
        .run()?;
    let verdict = ended.stdout.lines().last().unwrap_or_default().to_owned();
    ensure!(ended.success(), "exposure above {most} tenths: {verdict} {}", ended.why());
    ensure!(verdict.contains("exposure level"), "{ANALYZE} says nothing: {}", ended.stdout);
    println!("# {verdict}");
    Ok(())
}

/// systemd knows every setting of a unit: it passes over those that it does not. Only those may be unknown that are newer than it.
fn verify(root: &Path, unit: &str) -> Result<()> {
    let version = Task::new(ANALYZE).args(["--version"]).check()?;
    let version =
        version_of(&version.stdout).context("systemd-analyze does not say its version")?;
    let ended = Task::new(ANALYZE).args(["verify", "--man=no", unit]).dir(root).run()?;
    let stem = unit.trim_start_matches("packaging/").trim_end_matches(".service");
    let is_wrong = |line: &&str| {
        // The program is not installed on the machine of this check.
        let is_of_program = line.ends_with("is not executable: No such file or directory");
        line.contains(stem) && !is_of_program && !is_newer(line, version)
    };
    let wrong: Vec<&str> = ended.output.lines().filter(is_wrong).collect();
    ensure!(wrong.is_empty(), "{}", wrong.join("; "));
    Ok(())
}

/// The version in the first line of `systemd-analyze --version`: `systemd 252 (252.39-1)`.
fn version_of(text: &str) -> Option<u32> {
    let number = text.split_whitespace().nth(1)?;
    number.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Whether a line of `systemd-analyze verify` is about a setting that this version is too old for.
fn is_newer(line: &str, version: u32) -> bool {
    NEWER_SETTINGS.iter().any(|(name, since)| {
        let of_name = [format!("Unknown key name '{name}' in"), format!("Unknown key '{name}' in")];
        version < *since && of_name.iter().any(|text| line.contains(text))
    })
}

/// The unit of a disk is started again for ever: a target that refuses a few connections, as one that starts does, ends it else. Its
/// I/O waits for a target that is away.
fn lasts(unit: &str) -> Result<()> {
    let mut section = "";
    let mut settings = BTreeSet::new();
    for line in unit.lines().map(str::trim) {
        if line.starts_with('[') {
            section = line;
        } else if !line.starts_with('#') {
            settings.insert((section, line));
        }
    }
    // It is a setting of the section Unit since systemd 230, and passed over elsewhere.
    let limit = "StartLimitIntervalSec=0";
    ensure!(settings.contains(&("[Unit]", limit)), "[Unit] has no {limit}");
    let restarts = ["Restart=always", "Restart=on-failure"];
    let starts_again = restarts.iter().any(|line| settings.contains(&("[Service]", line)));
    ensure!(starts_again, "[Service] has none of {}", restarts.join(", "));
    // The options of the file come after it, and the last one counts.
    let waits = settings.iter().any(|(section, line)| {
        let words = line.strip_prefix("ExecStart=").unwrap_or_default();
        *section == "[Service]"
            && words.contains(" connect ")
            && words
                .split_once(" -l -1 ")
                .is_some_and(|(_, rest)| rest.contains("$RACELINE_DISK_OPTIONS"))
    });
    ensure!(
        waits,
        "ExecStart has no -l -1 before the options: I/O fails when the target is away for 30 s"
    );
    Ok(())
}

/// What the program keeps for itself, the unit permits.
fn system_calls(root: &Path) -> Result<()> {
    let unit = fs::read_to_string(root.join(UNIT)).context(UNIT)?;
    let text = fs::read_to_string(root.join(CALLS)).context(CALLS)?;
    let permitted = permitted(&unit, &|set| {
        let ended = Task::new(ANALYZE).args(["syscall-filter", "--no-pager", set]).check()?;
        Ok(ended.stdout)
    })?;
    let kept = kept(&text);
    ensure!(kept.len() > 50, "{CALLS} lists only {} calls", kept.len());
    let denied: Vec<&str> =
        kept.into_iter().chain(TO_ENTER).filter(|call| !permitted.contains(*call)).collect();
    ensure!(denied.is_empty(), "{UNIT} forbids what the program keeps: {}", denied.join(", "));
    Ok(())
}

/// The calls that the program's filter names, without those that a service does not make.
fn kept(text: &str) -> BTreeSet<&str> {
    let names = text.split("libc::SYS_").skip(1);
    let is_letter = |c: char| c.is_ascii_alphanumeric() || c == '_';
    names
        .filter_map(|rest| rest.split(|c| !is_letter(c)).next())
        .filter(|name| !NOT_IN_A_SERVICE.contains(name))
        .collect()
}

/// The calls that a unit permits: its `SystemCallFilter=` lines in order, the first of which permits.
fn permitted(unit: &str, describe: &dyn Fn(&str) -> Result<String>) -> Result<BTreeSet<String>> {
    let mut all = members("@default", describe, 0)?;
    for line in unit.lines().filter_map(|line| line.strip_prefix("SystemCallFilter=")) {
        let (forbids, words) = match line.strip_prefix('~') {
            Some(words) => (true, words),
            None => (false, line),
        };
        for word in words.split_whitespace() {
            for call in members(word, describe, 0)? {
                if forbids {
                    all.remove(&call);
                } else {
                    all.insert(call);
                }
            }
        }
    }
    Ok(all)
}

/// A call, or the calls of a set, which may name other sets.
fn members(
    word: &str,
    describe: &dyn Fn(&str) -> Result<String>,
    depth: usize,
) -> Result<BTreeSet<String>> {
    if !word.starts_with('@') {
        return Ok([word.to_owned()].into());
    }
    ensure!(depth < MOST_NESTED, "sets of systemd contain each other: {word}");
    let mut all = BTreeSet::new();
    for line in describe(word)?.lines().skip(1).map(str::trim) {
        if !line.is_empty() && !line.starts_with('#') {
            all.extend(members(line, describe, depth + 1)?);
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn describe(set: &str) -> Result<String> {
        Ok(match set {
            "@default" => "@default\n    # Always\n    exit\n",
            "@all" => "@all\n    @some\n    open\n    write\n",
            "@some" => "@some\n    read\n    mount\n",
            other => anyhow::bail!("no set {other}"),
        }
        .to_owned())
    }

    #[test]
    fn lines_permit_and_forbid_in_their_order() {
        let unit = "SystemCallFilter=@all\nSystemCallFilter=~@some write\nSystemCallFilter=read\n";
        let permitted = permitted(unit, &describe).unwrap();
        assert_eq!(permitted.into_iter().collect::<Vec<_>>(), ["exit", "open", "read"]);
        assert!(super::permitted("SystemCallFilter=@none", &describe).is_err());
    }

    #[test]
    fn a_unit_of_a_disk_is_started_again_for_ever() {
        let unit = |head: &str, body: &str| format!("[Unit]\n{head}\n\n[Service]\n{body}\n");
        let start = |options: &str| {
            format!("Restart=on-failure\nExecStart=/usr/bin/raceline connect {options}")
        };
        let (limit, restart) = ("StartLimitIntervalSec=0", &*start("-l -1 $RACELINE_DISK_OPTIONS"));
        lasts(&unit(limit, restart)).unwrap();
        for (head, body) in [
            ("", restart),
            ("#StartLimitIntervalSec=0", restart),
            ("StartLimitIntervalSec=05", restart),
            (limit, ""),
            (limit, &restart.replace("on-failure", "no")),
            (limit, &start("$RACELINE_DISK_OPTIONS")),
            (limit, &start("$RACELINE_DISK_OPTIONS -l -1 ")),
        ] {
            lasts(&unit(head, body)).unwrap_err();
        }
        let misplaced = unit("", &format!("{limit}\n{restart}"));
        assert!(lasts(&misplaced).unwrap_err().to_string().contains("[Unit] has no"));
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for path in [DISK, UBLK] {
            lasts(&fs::read_to_string(root.join(path)).unwrap()).unwrap();
        }
    }

    #[test]
    fn only_what_is_newer_than_this_systemd_may_be_unknown_to_it() {
        assert_eq!(version_of("systemd 252 (252.39-1~deb12u2)\n+PAM"), Some(252));
        assert_eq!(version_of("systemd 257~rc1 (257)"), Some(257));
        assert_eq!(version_of("systemd"), None);
        let line = |name: &str| {
            format!(
                "/p/raceline-disk@.service:39: Unknown key '{name}' in section [Service], ignoring."
            )
        };
        assert!(is_newer(&line("RestartSteps"), 253) && is_newer(&line("RestartMaxDelaySec"), 252));
        assert!(!is_newer(&line("RestartSteps"), 254) && !is_newer(&line("RestartStep"), 252));
    }

    #[test]
    fn names_are_found_in_the_source() {
        let text = "libc::SYS_read,\n (libc::SYS_clone, x), libc::SYS_perf_event_open";
        assert_eq!(kept(text).into_iter().collect::<Vec<_>>(), ["clone", "read"]);
    }
}
