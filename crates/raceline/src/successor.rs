//! Starts this program anew, to take the place of a daemon or to stay when the caller has gone.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::failure::Failure;
use crate::shell;

/// The option that has a process take the place of a daemon.
const TAKE_OVER: &str = "--take-over";
/// The option of [`start_detached`].
const DETACH: &str = "--detach";
/// The variable of the process that starts a detached daemon and ends at once. systemd waits for the end of its own children only,
/// and a process without a parent becomes one: a daemon that somebody else has started, it would kill where it should end it.
const BETWEEN: &str = "RACELINE_DETACHING";
/// The variable of a detached daemon: the number of the process that has started it.
const LEFT_BY: &str = "RACELINE_DETACHED_BY";
/// The first line of a detached daemon that has failed, up to its exit code.
const FAILED: &str = "exit code ";
/// How long a detached daemon waits for the end of the process that has started it.
const LEAVE_TIME: Duration = Duration::from_secs(5);
/// How often it looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);
/// What the kernel says of a program that was replaced by a new file.
const DELETED: &str = " (deleted)";

/// The program, as its path leads to it now: after an upgrade that is the new one.
fn program() -> std::io::Result<PathBuf> {
    let path = std::env::current_exe()?;
    let replaced = path.to_str().and_then(|path| path.strip_suffix(DELETED)).map(PathBuf::from);
    Ok(replaced.unwrap_or(path))
}

/// The arguments of this process but for these options.
fn arguments_without(options: &[&str]) -> Vec<OsString> {
    let all = std::env::args_os().skip(1);
    all.filter(|argument| !options.iter().any(|option| argument == option)).collect()
}

/// Has a new process take the place of this one; what becomes of it is logged. Only success ends this process.
pub(crate) fn start() {
    let started = program().and_then(|program| {
        Command::new(program)
            .args(arguments_without(&[TAKE_OVER, DETACH]))
            .arg(TAKE_OVER)
            .env_remove(LEFT_BY)
            .stdin(Stdio::null())
            .spawn()
    });
    let wait = |mut child: Child| match child.wait() {
        Ok(status) => tracing::warn!("the new process has ended, and this one goes on: {status}"),
        Err(error) => tracing::warn!("the new process is lost: {error}"),
    };
    match started {
        Ok(child) => drop(std::thread::spawn(move || wait(child))),
        Err(error) => tracing::error!(
            "SIGUSR2 starts no new process from here ({error}): in the sandbox no program can be started. Run raceline \
             serve with the same arguments and {TAKE_OVER}, or systemctl reload; SIGUSR2 needs --sandbox off"
        ),
    }
}

/// Starts the same without `--detach`, and waits until it is ready or has failed. It is the child of neither this process nor its
/// parent.
pub(crate) fn start_detached() -> Result<(), Failure> {
    if std::env::var_os(BETWEEN).is_some() {
        return start_and_leave();
    }
    let mut between = Command::new(program().map_err(Failure::runtime)?)
        .args(std::env::args_os().skip(1))
        .env(BETWEEN, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(Failure::runtime)?;
    let stdout = between.stdout.take();
    let status = between.wait().map_err(Failure::runtime)?;
    let mut said = String::new();
    if let Some(stdout) = stdout {
        BufReader::new(stdout).read_line(&mut said).map_err(Failure::runtime)?;
    }
    // It has said why.
    let failed = said.trim_end().strip_prefix(FAILED).map(|code| code.parse().unwrap_or(1));
    match failed {
        Some(code) => std::process::exit(code),
        None if said.is_empty() => {
            std::process::exit(status.code().filter(|code| *code != 0).unwrap_or(1))
        }
        None => shell::print(said.as_bytes()),
    }
}

/// Starts the daemon, whose output is that of this process, which then ends.
fn start_and_leave() -> Result<(), Failure> {
    let started = Command::new(program().map_err(Failure::runtime)?)
        .args(arguments_without(&[DETACH]))
        .env_remove(BETWEEN)
        .env(LEFT_BY, std::process::id().to_string())
        .stdin(Stdio::null())
        .spawn();
    started.map(drop).map_err(Failure::runtime)
}

/// Waits until the process that has started this one has ended, if this is a detached daemon.
pub(crate) fn wait_until_left() {
    let Some(by) = left_by() else { return };
    let deadline = Instant::now() + LEAVE_TIME;
    while std::os::unix::process::parent_id() == by && Instant::now() < deadline {
        std::thread::sleep(LOOK_INTERVAL);
    }
}

fn left_by() -> Option<u32> {
    std::env::var(LEFT_BY).ok()?.parse().ok()
}

/// Tells the failure's exit code to who waits for a detached daemon.
pub(crate) fn told(failure: Failure) -> Failure {
    if left_by().is_some() {
        let _ = shell::print(format!("{FAILED}{}\n", failure.code).as_bytes());
    }
    failure
}

/// Reports a failure and ends at once: nothing may be closed in good order that a daemon goes on with.
pub(crate) fn exit(failure: Failure) -> Failure {
    let _ = failure.report();
    std::process::exit(i32::from(failure.code))
}
