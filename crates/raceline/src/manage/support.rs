//! `raceline support`: an archive with what a bug report needs, and without secrets.
//!
//! Everything goes through [`redact`] on its way into the archive. What cannot be had is named in `MISSING.txt`
//! with the reason: a daemon that does not answer is often what the report is about.

mod redact;

use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use flate2::Compression;
use flate2::write::GzEncoder;
use raceline_environment::{Environment, System, check};
use serde_json::{Value, json};

use super::Daemon;
use super::events::{line, stamp};
use crate::cli::values::OutputFormat;
use crate::cli::watch::SupportArgs;
use crate::failure::{Failure, one_line};
use crate::shell;

/// How much of the end of a log is taken.
const LOG_BYTES: u64 = 1 << 20;
/// How many lines are asked of the system's journal.
const JOURNAL_LINES: &str = "5000";
/// The units of all processes: the daemon, its disks and its sockets.
const UNITS: &str = "raceline*";
/// How much of what journalctl says of a failure is taken, in characters.
const JOURNAL_WORDS: usize = 500;

/// Files of the kernel about the machine.
const MACHINE: [&str; 9] = [
    "/proc/version",
    "/proc/cmdline",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/loadavg",
    "/proc/mounts",
    "/proc/net/snmp",
    "/proc/net/netstat",
    "/etc/os-release",
];
/// Files of the kernel about the daemon.
const PROCESS: [&str; 4] = ["status", "limits", "cmdline", "cgroup"];
/// Methods that only read.
const METHODS: [&str; 29] = [
    "spdk_get_version",
    "framework_get_subsystems",
    "framework_get_reactors",
    "thread_get_stats",
    "framework_get_scheduler",
    "iobuf_get_stats",
    "accel_get_stats",
    "log_get_level",
    "log_get_flags",
    "bdev_get_bdevs",
    "bdev_get_missing",
    "bdev_get_iostat",
    "bdev_nvme_get_controllers",
    "bdev_nvme_get_discovery_info",
    "nvmf_get_subsystems",
    "nvmf_get_transports",
    "nvmf_get_stats",
    "nvmf_get_qos_limits",
    "iscsi_get_target_nodes",
    "iscsi_get_portal_groups",
    "iscsi_get_connections",
    "iscsi_get_options",
    "vhost_get_controllers",
    "ublk_get_disks",
    "nbd_get_disks",
    "keyring_get_keys",
    "raceline_get_activity",
    "raceline_get_loop_times",
    "raceline_get_changes",
];

const ABOUT: &str = "\
This archive was made by `raceline support`.

version.txt   this program
doctor.json   what `raceline doctor` finds on this machine
machine/      what the kernel says about the machine
process/      what the kernel says about the daemon
rpc/          what the daemon answers: methods that only read
config.json   the daemon's configuration
events.txt    the last events of the daemon
log/          the end of its log
MISSING.txt   what could not be had, and why

Keys, secrets, passwords and tokens are replaced by [removed]. Names of hosts and addresses are not. Look into
it before you send it.
";

/// The archive while it is made.
struct Archive {
    tar: tar::Builder<GzEncoder<std::fs::File>>,
    time_s: u64,
    missing: String,
    count: usize,
}

/// Runs the verb.
pub(crate) fn run(args: &SupportArgs) -> Result<(), Failure> {
    let name = format!("raceline-support-{}", stamp());
    let path = args.file.clone().unwrap_or_else(|| PathBuf::from(format!("{name}.tar.gz")));
    let failed = |error: std::io::Error| {
        Failure::runtime(format!("cannot write {}: {error}", path.display()))
    };
    // Only for its owner: names of hosts are nobody else's business. Never over a file that is there.
    let mut open = std::fs::OpenOptions::new();
    let file = open.write(true).create_new(true).mode(0o600).open(&path).map_err(failed)?;
    let mut archive = Archive::new(file);
    let collected = collect(&mut archive, args);
    let (count, missing) = (archive.count, !archive.missing.is_empty());
    if let Err(error) = collected.and_then(|()| archive.finish()) {
        let _ = std::fs::remove_file(&path);
        return Err(failed(error));
    }
    let text = match args.daemon.output {
        OutputFormat::Json => {
            format!("{:#}\n", json!({ "file": path, "parts": count, "complete": !missing }))
        }
        OutputFormat::Table => {
            let rest = if missing { "; MISSING.txt in it says what could not be had" } else { "" };
            format!("{} has {count} parts, without secrets{rest}\n", path.display())
        }
    };
    shell::print(text.as_bytes())
}

fn collect(archive: &mut Archive, args: &SupportArgs) -> std::io::Result<()> {
    archive.add("README.txt", ABOUT)?;
    let version = format!("raceline {}\n", env!("CARGO_PKG_VERSION"));
    archive.add("version.txt", &version)?;
    let environment = Environment::read_of(&System::here(), None);
    let checks = check(&environment, None, None);
    archive.json("doctor.json", &json!({ "checks": checks, "environment": environment }))?;
    for path in MACHINE {
        archive.file(&format!("machine{path}"), Path::new(path))?;
    }
    daemon(archive, args)?;
    logs(archive, args)
}

/// What the daemon says about itself, if it answers.
fn daemon(archive: &mut Archive, args: &SupportArgs) -> std::io::Result<()> {
    let mut daemon = match Daemon::connect(&args.daemon) {
        Ok(daemon) => daemon,
        Err(failure) => {
            archive.miss("rpc/, config.json, events.txt, process/", &failure);
            return Ok(());
        }
    };
    for method in METHODS {
        match daemon.try_call(method, Value::Null) {
            Ok(answer) => archive.json(&format!("rpc/{method}.json"), &answer)?,
            Err(error) => archive.miss(&format!("rpc/{method}.json"), &error),
        }
    }
    let sections = daemon.list("framework_get_subsystems", Value::Null).unwrap_or_default();
    let mut config = Vec::new();
    for section in &sections {
        let name = &section["subsystem"];
        match daemon.try_call("framework_get_config", json!({ "name": name })) {
            Ok(calls) => config.push(json!({ "subsystem": name, "config": calls })),
            Err(error) => archive.miss(&format!("config.json: {name}"), &error),
        }
    }
    archive.json("config.json", &json!({ "subsystems": config }))?;
    events(archive, &mut daemon)?;
    let reactors = daemon.try_call("framework_get_reactors", Value::Null);
    let pid = reactors.ok().and_then(|answer| answer["pid"].as_u64());
    let Some(pid) = pid else {
        archive.miss("process/", &"the daemon does not say its number");
        return Ok(());
    };
    for name in PROCESS {
        archive.file(&format!("process/{name}"), Path::new(&format!("/proc/{pid}/{name}")))?;
    }
    Ok(())
}

fn events(archive: &mut Archive, daemon: &mut Daemon) -> std::io::Result<()> {
    let (mut since, mut text) = (0, String::new());
    loop {
        let batch = match daemon.try_call("raceline_get_events", json!({ "since": since })) {
            Ok(batch) => batch,
            Err(error) => {
                archive.miss("events.txt", &error);
                return Ok(());
            }
        };
        let events = super::elements(&batch, "events");
        for event in events {
            text.push_str(&format!("{}\n", line(&redact::document(event))));
        }
        since = batch["next"].as_u64().unwrap_or(0);
        if events.is_empty() {
            return archive.add("events.txt", &text);
        }
    }
}

/// The end of the log: of files that the user names, or of the system's journal.
fn logs(archive: &mut Archive, args: &SupportArgs) -> std::io::Result<()> {
    for (number, path) in args.logs.iter().enumerate() {
        archive.file(&format!("log/{number}.txt"), path)?;
    }
    if !args.logs.is_empty() {
        return Ok(());
    }
    let units = args.unit.as_deref().unwrap_or(UNITS);
    let mut journal = Command::new("journalctl");
    journal.args(["--no-pager", "--quiet", "-n", JOURNAL_LINES, "-u", units]);
    let why = match journal.output() {
        Ok(output) if output.status.success() && !output.stdout.is_empty() => {
            return archive.add("log/journal.txt", &String::from_utf8_lossy(&output.stdout));
        }
        Ok(output) if output.status.success() => format!("the journal has nothing of {units}"),
        Ok(output) => {
            let said = one_line(String::from_utf8_lossy(&output.stderr).trim());
            let said: String = said.chars().take(JOURNAL_WORDS).collect();
            let status = output.status;
            format!("journalctl -u {units} ended with {status}: {said}")
        }
        Err(error) => format!("journalctl: {error}"),
    };
    archive.miss("log/", &format!("{why}: --log FILE names a log"));
    Ok(())
}

impl Archive {
    fn new(file: std::fs::File) -> Self {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let time_s = now.unwrap_or_default().as_secs();
        let tar = tar::Builder::new(GzEncoder::new(file, Compression::default()));
        Self { tar, time_s, missing: String::new(), count: 0 }
    }

    /// Adds a text, without its secrets.
    fn add(&mut self, name: &str, text: &str) -> std::io::Result<()> {
        self.put(name, &redact::text(text))
    }

    /// Adds a document, without its secrets.
    fn json(&mut self, name: &str, value: &Value) -> std::io::Result<()> {
        self.put(name, &format!("{:#}\n", redact::document(value)))
    }

    /// Adds the end of a file, without its secrets.
    fn file(&mut self, name: &str, path: &Path) -> std::io::Result<()> {
        match tail(path) {
            // Arguments end with zeros.
            Ok(text) => self.add(name, &text.replace('\0', " ")),
            Err(error) => {
                self.miss(name, &format!("{}: {error}", path.display()));
                Ok(())
            }
        }
    }

    fn miss(&mut self, name: &str, why: &dyn std::fmt::Display) {
        self.missing.push_str(&format!("{name}: {why}\n"));
    }

    fn put(&mut self, name: &str, text: &str) -> std::io::Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_size(u64::try_from(text.len()).unwrap_or(u64::MAX));
        header.set_mode(0o600);
        header.set_mtime(self.time_s);
        self.count += 1;
        self.tar.append_data(&mut header, format!("raceline-support/{name}"), text.as_bytes())
    }

    fn finish(mut self) -> std::io::Result<()> {
        if !self.missing.is_empty() {
            let missing = std::mem::take(&mut self.missing);
            self.add("MISSING.txt", &missing)?;
        }
        let mut file = self.tar.into_inner()?.finish()?;
        file.flush()?;
        file.sync_all()
    }
}

/// The end of a file. The first line of a part is left out: a secret's name may have stood before it.
fn tail(path: &Path) -> std::io::Result<String> {
    let mut file = std::fs::File::open(path)?;
    // Files of the kernel say that they have no length.
    let length = file.metadata()?.len();
    let mut is_part = false;
    if length > LOG_BYTES {
        file.seek(SeekFrom::Start(length - LOG_BYTES))?;
        is_part = true;
    }
    let mut bytes = Vec::new();
    file.take(LOG_BYTES).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    match text.find('\n') {
        Some(end) if is_part => Ok(text[end + 1..].to_owned()),
        None if is_part => Ok(String::new()),
        _ => Ok(text),
    }
}
