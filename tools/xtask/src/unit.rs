//! The step `unit`: builds the test programs of the workspace, runs three of them at a time, then the documents' tests.
//!
//! Cargo runs one test program after another. Many of ours mostly wait (for timers, lost peers, restarted daemons), so that
//! a core idles; three at a time keep two cores at work.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::Tree;
use crate::child::Task;
use crate::lint::skips::SKIPPED;
use crate::rdma;
use crate::step::{Outcome, tests_passed};

/// Programs that run at the same time.
const AT_A_TIME: usize = 3;
/// Limit of building all of them, in seconds.
const BUILD_LIMIT_S: u64 = 1800;
/// Limit of one program, in seconds.
const PROGRAM_LIMIT_S: u64 = 1200;
/// Limit of the documents' tests, in seconds.
const DOC_LIMIT_S: u64 = 900;
/// Packages whose programs take longest, by the longest of them; theirs begin first, so that none of them is left for the
/// end, when it has the cores alone.
const LONGEST: [&str; 7] = [
    "raceline-papers",
    "raceline-tls",
    "raceline",
    "sim",
    "raceline-host",
    "raceline-target",
    "raceline-control",
];

/// A compiled test program.
#[derive(Clone)]
struct Program {
    package: String,
    target: String,
    file: PathBuf,
    dir: PathBuf,
    /// It runs once more in part: these tests, over RDMA by iWARP.
    iwarp: Option<&'static [&'static str]>,
}

impl Program {
    fn name(&self) -> String {
        let how = if self.iwarp.is_some() { " by iWARP" } else { "" };
        format!("{} {}{how}", self.package, self.target)
    }
}

/// Builds and runs every test of the workspace.
pub(crate) fn run(tree: &Tree) -> Result<Outcome> {
    let mut programs = build(&tree.root)?;
    let again: Vec<Program> = programs.iter().filter_map(by_iwarp).collect();
    programs.extend(again);
    // Many tests wait, which leaves time of the processors.
    tree.begin_beneath()?;
    let count = programs.len();
    let (passed, mut failed) = run_all(programs);
    let args = ["test", "--quiet", "--workspace", "--locked", "--no-fail-fast", "--doc"];
    let doc = Task::new("cargo").args(args).dir(&tree.root).limit(DOC_LIMIT_S).echo().run()?;
    if !doc.success() {
        failed.push(format!("the documents' tests ({})", doc.why()));
    }
    ensure!(failed.is_empty(), "{} of {} programs: {}", failed.len(), count + 1, failed.join(", "));
    ensure!(passed > 0, "no test ran");
    Ok(Outcome::Passed(format!("{} tests in {count} programs", passed + tests_passed(&doc.stdout))))
}

/// Builds the test programs and lists them, those that take longest first.
fn build(root: &Path) -> Result<Vec<Program>> {
    let args =
        ["test", "--workspace", "--locked", "--no-run", "--message-format=json-render-diagnostics"];
    let built = Task::new("cargo").args(args).dir(root).limit(BUILD_LIMIT_S).check()?;
    let mut programs = Vec::new();
    for line in built.stdout.lines().filter(|line| line.starts_with('{')) {
        let message: Value = serde_json::from_str(line).context("a message of cargo")?;
        programs.extend(program(&message));
    }
    ensure!(!programs.is_empty(), "cargo named no test program");
    let rank = |program: &Program| {
        LONGEST.iter().position(|name| *name == program.package).unwrap_or(LONGEST.len())
    };
    programs.sort_by_key(rank);
    Ok(programs)
}

/// The part of a program that runs once more.
fn by_iwarp(program: &Program) -> Option<Program> {
    let part = rdma::IWARP_PARTS.iter().find(|part| part.program == program.target)?;
    Some(Program { iwarp: Some(part.tests), ..program.clone() })
}

/// The test program of a message of cargo, if it tells of one.
fn program(message: &Value) -> Option<Program> {
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let file = PathBuf::from(message["executable"].as_str()?);
    let manifest = Path::new(message["manifest_path"].as_str()?);
    let id = message["package_id"].as_str()?;
    // `path+file:///folder/name#version`, or `...#name@version` where the folder has another name.
    let (place, version) = id.rsplit_once('#')?;
    let package = match version.split_once('@') {
        Some((name, _)) => name,
        None => place.rsplit('/').next()?,
    };
    Some(Program {
        package: package.to_owned(),
        target: message["target"]["name"].as_str()?.to_owned(),
        file,
        dir: manifest.parent()?.to_owned(),
        iwarp: None,
    })
}

/// Runs the programs, `AT_A_TIME` at a time; gives the number of tests that passed, and what failed.
fn run_all(programs: Vec<Program>) -> (usize, Vec<String>) {
    let queue = Mutex::new(programs.into_iter());
    let results = Mutex::new((0, Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                loop {
                    let next = lock(&queue).next();
                    let Some(program) = next else { break };
                    let result = run_one(&program);
                    let mut results = lock(&results);
                    match result {
                        Ok(count) => results.0 += count,
                        Err(error) => {
                            println!("not ok {}: {error:#}", program.name());
                            results.1.push(program.name());
                        }
                    }
                }
            });
        }
    });
    results.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Runs one program as cargo would; prints its output when it has ended, so that programs' lines do not mix.
fn run_one(program: &Program) -> Result<usize> {
    let mut task = Task::new(&program.file)
        .args(["--quiet", "--show-output"])
        .env("CARGO_MANIFEST_DIR", &program.dir)
        .env("CARGO_PKG_NAME", &program.package)
        .dir(&program.dir)
        .limit(PROGRAM_LIMIT_S);
    if let Some(tests) = program.iwarp {
        task = task.args(tests).env(rdma::IWARP.0, rdma::IWARP.1);
    }
    let ended = task.run()?;
    let summary = ended.stdout.lines().filter(|line| line.starts_with("test result: "));
    for line in summary.clone() {
        println!("{}: {line}", program.name());
    }
    // A test that lacks a program or a right passes, and says so.
    for why in ended.output.lines().filter_map(|line| line.strip_prefix(SKIPPED)) {
        println!("# {}: SKIPPED: {why}", program.name());
    }
    if !ended.success() {
        println!("{}", ended.output);
        anyhow::bail!("{}", failed_tests(&ended.stdout, &ended.why()));
    }
    let passed = tests_passed(&ended.stdout);
    if let (Some(tests), 0) = (program.iwarp, passed) {
        anyhow::bail!("no test of {tests:?} ran with iWARP devices");
    }
    Ok(passed)
}

/// The names of the tests that failed, else why the program ended.
fn failed_tests(stdout: &str, why: &str) -> String {
    let list = stdout.rsplit_once("\nfailures:\n").map_or("", |(_, list)| list);
    let names: Vec<&str> = list
        .lines()
        .take_while(|line| !line.starts_with("test result"))
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    if names.is_empty() { why.to_owned() } else { names.join(", ") }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_read_from_cargos_messages() {
        let text = r#"{"reason":"compiler-artifact","package_id":"path+file:///w/crates/control#raceline-control@0.1.0",
            "manifest_path":"/w/crates/control/Cargo.toml","target":{"name":"restart"},"profile":{"test":true},
            "executable":"/w/target/debug/deps/restart-1"}"#;
        let mut message: Value = serde_json::from_str(text).unwrap();
        let read = program(&message).unwrap();
        assert_eq!(read.name(), "raceline-control restart");
        assert_eq!(read.dir, Path::new("/w/crates/control"));
        message["package_id"] = "path+file:///w/tools/sim#0.1.0".into();
        assert_eq!(program(&message).unwrap().package, "sim");
        assert!(by_iwarp(&read).is_none());
        message["target"]["name"] = "nvme_rdma".into();
        let again = by_iwarp(&program(&message).unwrap()).unwrap();
        assert_eq!(again.name(), "sim nvme_rdma by iWARP");
        message["profile"]["test"] = false.into();
        assert!(program(&message).is_none());
    }

    #[test]
    fn failed_tests_are_named() {
        let output = "test a ... FAILED\n\nfailures:\n\n---- a stdout ----\nno\n\nfailures:\n    a\n    m::b\n\ntest result: FAILED. 1 passed";
        assert_eq!(failed_tests(output, "exit status: 101"), "a, m::b");
        assert_eq!(failed_tests("", "ran out of time"), "ran out of time");
        assert_eq!(tests_passed("test result: ok. 12 passed; 0 failed\n"), 12);
    }
}
