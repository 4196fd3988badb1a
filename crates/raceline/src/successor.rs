//! Starts this program anew, to take the place of a daemon or to stay when the caller has gone.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::failure::Failure;
use crate::shell;

/// The option that has a process take the place of a daemon.
const TAKE_OVER: &str = "--take-over";
/// The option of [`start_detached`].
const DETACH: &str = "--detach";
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

/// Starts the same without `--detach`, and waits until it is ready or has failed.
pub(crate) fn start_detached() -> Result<(), Failure> {
    let mut child = Command::new(program().map_err(Failure::runtime)?)
        .args(arguments_without(&[DETACH]))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(Failure::runtime)?;
    let mut ready = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut ready).map_err(Failure::runtime)?;
    }
    if ready.is_empty() {
        let status = child.wait().map_err(Failure::runtime)?;
        // It has said why.
        std::process::exit(status.code().unwrap_or(1));
    }
    shell::print(ready.as_bytes())
}

/// Reports a failure and ends at once: nothing may be closed in good order that a daemon goes on with.
pub(crate) fn exit(failure: Failure) -> Failure {
    let _ = failure.report();
    std::process::exit(i32::from(failure.code))
}
