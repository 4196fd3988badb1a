//! Sends without a copy, and sends with flags, over a link.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{TestBed, stop};
use crate::raceline::Tree;
use crate::step::Checks;

/// Reads that leave without a copy.
const LARGE: [&str; 2] = ["--bs", "128k"];
/// How long a job runs before it is killed.
const BEFORE_KILL: Duration = Duration::from_millis(700);

/// All checks of sends.
pub(super) fn check(checks: &mut Checks, tree: &Tree, bed: &TestBed, cpus: &[usize; 2]) {
    checks.run("zero-copy", || zero_copy(tree, bed, cpus, &[]));
    checks.run("zero-copy-header-digests", || zero_copy(tree, bed, cpus, &["-g"]));
    checks.run("zero-copy-data-digests", || data_digests(tree, bed, cpus));
    checks.run("zero-copy-killed", || killed(tree, bed, cpus));
    checks.run("send-flags", || flags(tree, bed, cpus));
}

/// Large reads leave without a copy, and verify.
fn zero_copy(tree: &Tree, bed: &TestBed, cpus: &[usize], options: &[&str]) -> Result<()> {
    let target = ["--io", "uring", "--zero-copy", "auto"];
    let (target, _) = bed.run_job(tree, cpus, &target, 2, &[&LARGE, options].concat())?;
    let counts = departures(&stop(target)?)?;
    println!("# without a copy: {counts}");
    let count = |name: &str| counts[name].as_u64().unwrap_or_default();
    ensure!(count("zero_copy_sends") > 0, "all reads were copied: {counts}");
    ensure!(count("zero_copy_refused") == 0, "the kernel refused: {counts}");
    // A veth pair copies when its other end receives, and each of the two queues is told once or more.
    ensure!(count("zero_copy_copied") > 0, "no queue was told of the copy: {counts}");
    Ok(())
}

/// Data with a digest must not change between digest and departure, so they are copied.
fn data_digests(tree: &Tree, bed: &TestBed, cpus: &[usize]) -> Result<()> {
    let target = ["--io", "uring", "--zero-copy", "on"];
    let (target, _) = bed.run_job(tree, cpus, &target, 2, &[&LARGE[..], &["-G"]].concat())?;
    let counts = departures(&stop(target)?)?;
    ensure!(counts["zero_copy_sends"].as_u64().unwrap_or_default() == 0, "{counts}");
    Ok(())
}

/// A host that is killed amid its reads leaves a target that serves the next one.
fn killed(tree: &Tree, bed: &TestBed, cpus: &[usize]) -> Result<()> {
    let options = ["--io", "uring", "--zero-copy", "on"];
    let (target, place) = bed.target(tree, cpus, &options)?;
    for _ in 0..3 {
        let job = bed.job(tree, &place, 4, "20")?.args(LARGE).start()?;
        std::thread::sleep(BEFORE_KILL);
        job.signal("KILL");
        ensure!(!job.wait()?.success(), "the job was not killed");
    }
    let ended = bed.job(tree, &place, 4, "1")?.args(LARGE).run()?;
    ensure!(ended.success(), "perf: {}\n{}", ended.why(), ended.tail(10));
    stop(target).map(drop)
}

/// Both sides tell the kernel what follows, and what is read is what was written.
fn flags(tree: &Tree, bed: &TestBed, cpus: &[usize]) -> Result<()> {
    for io in ["uring", "epoll"] {
        let options = ["--io", io, "--send-flags"];
        let (target, _) = bed.run_job(tree, cpus, &options, 2, &options)?;
        let counts = departures(&stop(target)?)?;
        println!("# send flags over {io}: {counts}");
        ensure!(counts["eor_sends"].as_u64().unwrap_or_default() > 0, "no record ended: {counts}");
    }
    Ok(())
}

/// How batches that are not simply copied have left a target, as its last line of JSON says.
fn departures(output: &str) -> Result<Value> {
    let line = output.lines().rfind(|line| line.starts_with("{\"cost\""));
    let mut report: Value = serde_json::from_str(line.context("no line with the cost")?)?;
    Ok(report["departures"].take())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_report_counts() {
        let output = "{\"cost\":{}}\nexporting\n{\"cost\":{},\"departures\":{\"eor_sends\":3}}\n";
        assert_eq!(departures(output).unwrap()["eor_sends"], 3);
        assert!(departures("{\"cost\":{}}").unwrap().is_null());
        assert!(departures("nothing").is_err());
    }
}
