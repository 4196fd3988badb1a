//! What a process in the sandbox tries: what must fail, and what must still work.
//!
//! Each attempt runs in a process of its own. An attempt that must fail has arguments that do no harm, so the same
//! attempt also runs outside: there it must not meet the same refusal, or it would prove nothing.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "attempts/denied.rs"]
mod denied;
#[path = "attempts/support.rs"]
mod support;
#[path = "attempts/works.rs"]
mod works;

use std::io;
use std::path::Path;
use std::process::{Command, ExitCode};

use raceline_sandbox::{Access, CapabilitySet, Demand, Policy, Rule, enter};
use support::Place;

/// The word that makes this program a child which makes one attempt.
const CHILD: &str = "--attempt";

/// What an attempt does; the error is the answer of the system.
type Attempt = fn(&Place) -> io::Result<()>;

/// Where a child makes its attempt.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Inside,
    Outside,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().collect();
    if words.get(1).is_some_and(|word| word == CHILD) {
        return child(&words[2], &words[3], Path::new(&words[4]));
    }
    let wanted = words.iter().skip(1).find(|word| !word.starts_with('-'));
    let (mut passed, mut failed) = (0, Vec::new());
    for (name, check) in checks() {
        if wanted.is_some_and(|wanted| !name.contains(wanted.as_str())) {
            continue;
        }
        match check() {
            Ok(skipped) => {
                println!("test {name} ... ok");
                if let Some(why) = skipped {
                    println!("SKIPPED: {name}: {why}");
                }
                passed += 1;
            }
            Err(why) => {
                println!("test {name} ... FAILED: {why}");
                failed.push(name);
            }
        }
    }
    let verdict = if failed.is_empty() { "ok" } else { "FAILED" };
    println!("\ntest result: {verdict}. {passed} passed; {} failed", failed.len());
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// It passes, maybe with what could not be checked here and why.
type Check = Box<dyn Fn() -> Result<Option<&'static str>, String>>;

fn checks() -> Vec<(&'static str, Check)> {
    let denied = denied::ATTEMPTS.iter().map(|&(name, _, refusals)| {
        let check: Check = Box::new(move || must_fail(name, refusals));
        (name, check)
    });
    let works = works::ATTEMPTS.iter().map(|&(name, _)| {
        let check: Check = Box::new(move || must_work(name));
        (name, check)
    });
    denied.chain(works).collect()
}

/// The attempt is refused inside. Outside, where nothing else refuses it, it is not.
fn must_fail(name: &str, refusals: &[i32]) -> Result<Option<&'static str>, String> {
    let place = Place::new();
    match run(name, Side::Inside, &place)? {
        Answer::Errno(errno) if refusals.contains(&errno) => {}
        Answer::Unsupported => return Ok(Some("this kernel cannot restrict it")),
        other => return Err(format!("inside: {other:?} instead of {refusals:?}")),
    }
    if !support::is_unrestricted() {
        return Ok(Some("outside, because this process is restricted itself"));
    }
    match run(name, Side::Outside, &place)? {
        Answer::Errno(errno) if refusals.contains(&errno) => {
            Err(format!("outside it is refused, too, with {errno}: the attempt proves nothing"))
        }
        _ => Ok(None),
    }
}

fn must_work(name: &str) -> Result<Option<&'static str>, String> {
    match run(name, Side::Inside, &Place::new())? {
        Answer::Done => Ok(None),
        Answer::Unsupported => Ok(Some("this kernel cannot restrict it")),
        Answer::Errno(_) if name == works::KEYRING && !works_outside(name)? => {
            Ok(Some("this kernel has no keyrings, or forbids them"))
        }
        other => Err(format!("{other:?}")),
    }
}

fn works_outside(name: &str) -> Result<bool, String> {
    Ok(matches!(run(name, Side::Outside, &Place::new())?, Answer::Done))
}

/// How an attempt ended.
#[derive(Debug)]
enum Answer {
    Done,
    Errno(i32),
    Unsupported,
    Other,
}

fn run(name: &str, side: Side, place: &Place) -> Result<Answer, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let side = if side == Side::Inside { "inside" } else { "outside" };
    let output = Command::new(program)
        .args([CHILD, name, side])
        .arg(place.folder())
        .output()
        .map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    match (text.as_str(), text.strip_prefix("errno ").and_then(|number| number.parse().ok())) {
        ("done", _) => Ok(Answer::Done),
        ("unsupported", _) => Ok(Answer::Unsupported),
        ("other", _) => Ok(Answer::Other),
        (_, Some(errno)) => Ok(Answer::Errno(errno)),
        _ => Err(format!("{side}: {} {text:?} {errors}", output.status)),
    }
}

/// Makes one attempt and prints how it ended. It says so through a descriptor that was open before.
fn child(name: &str, side: &str, folder: &Path) -> ExitCode {
    let place = Place::at(folder);
    let denied = denied::ATTEMPTS.iter().map(|&(name, attempt, _)| (name, attempt));
    let mut all = denied.chain(works::ATTEMPTS.iter().copied());
    let Some((_, attempt)) = all.find(|(found, _)| *found == name) else {
        eprintln!("there is no attempt {name}");
        return ExitCode::FAILURE;
    };
    if side == "inside" {
        match enter(&policy(name, &place), Demand::WherePossible) {
            Ok(sandbox) if support::needs_more(name, sandbox.missing()) => {
                println!("unsupported");
                return ExitCode::SUCCESS;
            }
            Ok(sandbox) if name.starts_with("sealed") => sandbox.seal().unwrap(),
            Ok(_) => {}
            Err(error) => {
                eprintln!("{error}");
                return ExitCode::FAILURE;
            }
        }
    }
    match attempt(&place) {
        Ok(()) => println!("done"),
        Err(error) => match error.raw_os_error() {
            Some(errno) => println!("errno {errno}"),
            None => {
                eprintln!("{error}");
                println!("other");
            }
        },
    }
    ExitCode::SUCCESS
}

/// As an export of a file has it, with a folder in place of the file. Attempts whose names begin with "daemon" have
/// what a daemon has; those of a daemon "with disks" also what it has where the kernel's module nbd is.
fn policy(name: &str, place: &Place) -> Policy {
    let is_daemon = name.starts_with("daemon");
    Policy {
        files: vec![
            Rule::new(place.inside(), Access::Keep),
            Rule::new(place.read_only(), Access::Read),
            Rule::new("/proc", Access::Read),
            Rule::if_there("/nonexistent", Access::Use),
        ],
        connects: is_daemon,
        listens: if is_daemon { None } else { Some(vec![place.port()]) },
        abstract_sockets: false,
        interfaces: is_daemon,
        generic_netlink: name.starts_with("daemon with disks"),
        rdma: is_daemon,
        counters: is_daemon,
        keyrings: is_daemon,
        capabilities: CapabilitySet::NET_ADMIN | CapabilitySet::NET_BIND_SERVICE,
    }
}
