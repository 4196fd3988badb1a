//! `raceline adq` on a veth pair in a network namespace of its own: applied, killed, reverted, refused.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::Export;

const PROGRAM: &str = env!("CARGO_BIN_EXE_raceline");
/// A step takes milliseconds; a machine under load takes longer.
const LIMIT: Duration = Duration::from_secs(60);

/// A namespace with a veth pair `ra`, `rb` of four queues. It goes with the value.
struct Bed {
    name: String,
    state: tempfile::TempDir,
}

impl Bed {
    /// Makes it, or says on standard error why it cannot be made.
    fn make(test: &str) -> Option<Self> {
        let name = format!("raceline-adq-{}-{test}", std::process::id());
        let ip = |line: &str| {
            let output = Command::new("ip").args(line.split(' ')).output();
            output.map_err(|error| error.to_string()).and_then(|output| {
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                if output.status.success() { Ok(()) } else { Err(said) }
            })
        };
        if let Err(error) = Command::new("ethtool").arg("--version").output() {
            eprintln!("SKIPPED: ethtool: {error}");
            return None;
        }
        if let Err(error) = ip(&format!("netns add {name}")) {
            eprintln!("SKIPPED: a network namespace cannot be made here (root?): {error}");
            return None;
        }
        let bed = Self { name, state: tempfile::tempdir().unwrap() };
        let queues = "numtxqueues 4 numrxqueues 4";
        let name = &bed.name;
        let pair = format!("-n {name} link add ra {queues} type veth peer name rb {queues}");
        if let Err(error) = ip(&pair) {
            eprintln!("SKIPPED: this kernel makes no veth pair of four queues: {error}");
            return None;
        }
        ip(&format!("-n {name} link set ra up")).unwrap();
        ip(&format!("-n {name} link set rb up")).unwrap();
        Some(bed)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).args(words).env_remove("SSH_CONNECTION");
        command.stdin(Stdio::null());
        command
    }

    fn adq(&self, words: &[&str]) -> Output {
        self.command(&[&[PROGRAM, "adq"], words].concat()).output().unwrap()
    }

    /// With the folder of this bed's journals.
    fn with_state(&self, words: &[&str]) -> Output {
        let state = self.state.path().to_str().unwrap();
        self.adq(&[words, &["--state-dir", state]].concat())
    }

    fn journal(&self) -> PathBuf {
        self.state.path().join("ra.json")
    }

    /// Everything that can be read of the pair and its namespace.
    fn read_back(&self) -> String {
        let script = "for i in ra rb; do ethtool -k $i; ethtool -l $i; tc qdisc show dev $i; \
                      tc filter show dev $i ingress; ip link show $i; \
                      grep -H . /sys/class/net/$i/queues/*/xps_* /sys/class/net/$i/napi_defer_hard_irqs \
                      /sys/class/net/$i/gro_flush_timeout; done 2>&1; \
                      grep -rH . /proc/sys/net/core /proc/sys/net/ipv4 2>/dev/null | sort";
        let output = self.command(&["sh", "-c", script]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains("xps_rxqs:0") && text.contains("tcp_rmem"), "{text}");
        // The kernel counts cookies and the like on its own.
        text.lines()
            .filter(|line| !line.contains("fastopen_key"))
            .map(|l| l.to_owned() + "\n")
            .collect()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).output();
    }
}

fn text(output: &Output) -> String {
    let parts = [&output.stdout, &output.stderr];
    parts.map(|part| String::from_utf8_lossy(part).into_owned()).concat()
}

fn succeeds(output: Output) -> String {
    assert!(output.status.success(), "{}", text(&output));
    text(&output)
}

fn fails(output: &Output, code: i32, wanted: &str) {
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{}", text(output));
    assert!(error.contains(wanted), "{error}");
}

const APPLY: [&str; 4] = ["apply", "ra", "--listener", "192.0.2.1:4420"];

#[test]
fn a_pair_is_set_shown_and_given_back_exactly() {
    let Some(bed) = Bed::make("round") else { return };
    let before = bed.read_back();
    let plan: Value =
        serde_json::from_slice(&bed.adq(&["plan", "ra", "-o", "json"]).stdout).unwrap();
    assert_eq!((plan["way"].as_str(), plan["driver"].as_str()), (Some("veth"), Some("veth")));
    assert_eq!(bed.read_back(), before, "a plan changed something");
    // The same plan is made of the facts alone, as on another machine.
    let file = bed.state.path().join("facts");
    std::fs::write(&file, plan.to_string()).unwrap();
    let again = bed.adq(&["plan", "other", "--facts", file.to_str().unwrap()]);
    assert_eq!(again.stdout, bed.adq(&["plan", "ra"]).stdout);
    std::fs::remove_file(file).unwrap();

    let applied = succeeds(bed.with_state(&APPLY));
    assert!(applied.contains("steps are done and read back"), "{applied}");
    let set = bed.read_back();
    assert!(set.contains("ra/queues/tx-0/xps_rxqs:1"), "{set}");
    assert!(set.contains("generic-receive-offload: on"), "{set}");
    let shown = succeeds(bed.with_state(&["show", "ra"]));
    assert!(shown.contains("in place") && !shown.contains("lost"), "{shown}");
    fails(&bed.with_state(&APPLY), 1, "is applied already");

    succeeds(bed.command(&["ethtool", "-K", "ra", "gro", "off"]).output().unwrap());
    let shown = bed.with_state(&["show", "ra"]);
    fails(&shown, 1, "is not in place");
    assert!(text(&shown).contains("lost"), "{}", text(&shown));

    // A new name is no obstacle: the interface keeps its number.
    succeeds(bed.command(&["ip", "link", "set", "ra", "down"]).output().unwrap());
    succeeds(bed.command(&["ip", "link", "set", "ra", "name", "rx"]).output().unwrap());
    succeeds(bed.with_state(&["revert", "ra"]));
    succeeds(bed.command(&["ip", "link", "set", "rx", "name", "ra"]).output().unwrap());
    succeeds(bed.command(&["ip", "link", "set", "ra", "up"]).output().unwrap());
    assert_eq!(bed.read_back(), before);
    let again = succeeds(bed.with_state(&["revert", "ra"]));
    assert!(again.contains("nothing is applied to ra"), "{again}");
    assert_eq!(std::fs::read_dir(bed.state.path()).unwrap().count(), 0);
}

/// The number of steps that the journal has as done; nothing without a journal.
fn done(journal: &Path) -> Option<usize> {
    let journal: Value = serde_json::from_slice(&std::fs::read(journal).ok()?).ok()?;
    let entries = journal["entries"].as_array()?;
    Some(entries.iter().filter(|entry| entry["progress"] == "done").count())
}

fn kill_when(child: &mut Child, journal: &Path, steps: usize) {
    let end = Instant::now() + LIMIT;
    while done(journal).is_none_or(|done| done < steps) {
        assert!(Instant::now() < end, "step {steps} was not reached");
        if child.try_wait().unwrap().is_some() {
            return;
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

/// SIGKILL after each step: the journal knows everything that was changed.
#[test]
fn a_killed_recipe_is_given_back_by_a_later_revert() {
    let Some(bed) = Bed::make("kill") else { return };
    let before = bed.read_back();
    let plan: Value =
        serde_json::from_slice(&bed.adq(&["plan", "ra", "-o", "json"]).stdout).unwrap();
    let steps = plan["steps"].as_array().unwrap();
    let steps = steps.iter().filter(|step| step["state"] == "do").count();
    assert!(steps > 4, "{plan:#}");
    let mut broken_off = 0;
    for after in 0..=steps {
        let state = bed.state.path().to_str().unwrap();
        let words = [&[PROGRAM, "adq"], &APPLY[..], &["--state-dir", state]].concat();
        let mut command = bed.command(&words);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        kill_when(&mut child, &bed.journal(), after);
        let journal: Value =
            serde_json::from_slice(&std::fs::read(bed.journal()).unwrap()).unwrap();
        broken_off += usize::from(journal["complete"] == false);
        fails(&bed.with_state(&APPLY), 1, "or was broken off");
        succeeds(bed.with_state(&["revert", "ra"]));
        assert_eq!(bed.read_back(), before, "killed after {after} steps");
    }
    assert!(broken_off > 0, "no recipe was killed before its end");
}

#[test]
fn an_unconfirmed_recipe_is_given_back() {
    let Some(bed) = Bed::make("confirm") else { return };
    let before = bed.read_back();
    let output = bed.with_state(&[&APPLY[..], &["--confirm-within", "300ms"]].concat());
    fails(&output, 1, "everything was given back");
    assert_eq!(bed.read_back(), before);
}

#[test]
fn an_interface_that_vanishes_leaves_nothing() {
    let Some(bed) = Bed::make("gone") else { return };
    let sysctl = |bed: &Bed| {
        let words =
            ["cat", "/proc/sys/net/ipv4/tcp_max_syn_backlog", "/proc/sys/net/ipv4/tcp_wmem"];
        succeeds(bed.command(&words).output().unwrap())
    };
    let before = sysctl(&bed);
    succeeds(bed.with_state(&APPLY));
    assert_ne!(sysctl(&bed), before);
    succeeds(bed.command(&["ip", "link", "del", "ra"]).output().unwrap());
    let reverted = succeeds(bed.with_state(&["revert", "ra"]));
    assert!(reverted.contains("ra is gone, and its settings with it"), "{reverted}");
    assert_eq!(sysctl(&bed), before);
}

#[test]
fn what_cannot_be_is_said_in_one_line() {
    let Some(bed) = Bed::make("refuse") else { return };
    let before = bed.read_back();
    fails(&bed.adq(&["plan", "none0"]), 2, "there is no interface none0 here");
    fails(&bed.adq(&["plan", "../ra"]), 2, "cannot be the name of an interface");
    fails(&bed.adq(&["plan", "ra", "--listener", "0.0.0.0:4420"]), 2, "write the address");
    fails(&bed.adq(&["plan", "ra", "--listener", "4420"]), 2, "write ADDR:PORT");
    fails(&bed.adq(&["plan", "ra", "--queues", "5"]), 2, "ask for at most 4");
    fails(&bed.adq(&["plan", "ra", "--facts", "/dev/null"]), 2, "--facts /dev/null");
    fails(&bed.with_state(&["show", "ra"]), 1, "no recipe is applied to ra");
    let nowhere = bed.adq(&["apply", "ra", "--state-dir", "/proc/none"]);
    fails(&nowhere, 1, "the journal /proc/none/ra.json");
    let state = bed.state.path().to_str().unwrap();
    let words = [&[PROGRAM, "adq"], &APPLY[..], &["--state-dir", state]].concat();
    let ssh = "198.51.100.7 50000 192.0.2.1 4420";
    let output = bed.command(&words).env("SSH_CONNECTION", ssh).output().unwrap();
    fails(&output, 1, "is the port of this SSH connection");
    succeeds(bed.command(&["tc", "qdisc", "add", "dev", "ra", "root", "pfifo"]).output().unwrap());
    fails(&bed.with_state(&APPLY), 1, "root queueing discipline pfifo");
    succeeds(bed.command(&["tc", "qdisc", "del", "dev", "ra", "root"]).output().unwrap());
    assert_eq!(bed.read_back(), before);
}

/// A file system without room for the journal.
#[test]
fn a_full_disk_is_named_before_anything_is_changed() {
    let Some(bed) = Bed::make("full") else { return };
    let before = bed.read_back();
    let folder = bed.state.path().to_str().unwrap();
    // The mount is in the namespace of this one command, and ends with it.
    let script = format!(
        "mount -t tmpfs -o size=4k none {folder} && head -c 4096 /dev/zero > {folder}/fill && \
         exec {PROGRAM} adq apply ra --state-dir {folder}"
    );
    let output = bed.command(&["unshare", "-m", "sh", "-c", &script]).output().unwrap();
    if text(&output).contains("mount:") {
        eprintln!("SKIPPED: no file system can be mounted here: {}", text(&output));
        return;
    }
    fails(&output, 1, "make room, or name another place with --state-dir");
    assert_eq!(bed.read_back(), before);
}

#[test]
fn an_export_says_what_its_device_cannot_do() {
    if let Err(error) = Command::new("ip").arg("-V").output() {
        eprintln!("SKIPPED: ip: {error}");
        return;
    }
    let export = Export::start(&["ram:8M", "-l", "127.0.0.1:0", "--profile", "adq"]);
    let listener = export.ready["listeners"][0].as_str().unwrap().to_owned();
    let output = support::run(&export.host(&["identify"]));
    assert_eq!(output.code, Some(0), "{}", output.stderr);
    let said = export.terminate();
    assert!(said.contains(&format!("profile adq: {listener} is on the loopback")), "{said}");
}
