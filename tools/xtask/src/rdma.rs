//! The steps `rdma-seeds` and `rdma-iwarp`: what the unit tests do in part over the simulated network of RDMA, done in full.

use anyhow::{Context as _, Result, ensure};

use crate::Tree;
use crate::child::Task;
use crate::step::{Outcome, tests_passed};

/// Seeds of both ends against each other, under faults.
const SEEDS: &str = "10000";
/// Sequences over a device that does anything: of each end of queues, and of the target's byte streams.
const SEQUENCES: &str = "100000";
/// Programs' tests of sequences: a target's queues, a host's, and a target's byte streams.
const ENDS: usize = 3;
/// Says what devices the simulated network has.
const PROFILE: &str = "RACELINE_RDMA_PROFILE";
/// Limit of each run with its build, in seconds.
const LIMIT_S: u64 = 3600;

/// Programs of the suites over RDMA.
const SUITES: [&str; 2] = ["nvme_rdma", "served_rdma"];

/// The part of the suites that the unit tests run with iWARP devices as well.
pub(crate) struct Part {
    /// The name of the program.
    pub(crate) program: &'static str,
    /// Its tests, as the beginnings of names.
    pub(crate) tests: &'static [&'static str],
}

/// What is most likely to differ with the devices: data both ways, commands that end wrongly, and ends of queues.
pub(crate) const IWARP_PARTS: [Part; 2] = [
    Part {
        program: "nvme_rdma",
        tests: &["suites::io::", "suites::commands::", "suites::odd_hosts::", "suites::live::"],
    },
    Part { program: "served_rdma", tests: &["suites::"] },
];

/// The environment in which the suites have iWARP devices.
pub(crate) const IWARP: (&str, &str) = (PROFILE, "iwarp");

/// Many seeds, and many sequences.
pub(crate) fn run_seeds(tree: &Tree) -> Result<Outcome> {
    let pairs = cargo(tree, "pairs", &["what_is_written"]).env("RACELINE_RDMA_SEEDS", SEEDS);
    let pairs = pairs.check()?;
    let line = pairs.output.lines().find(|line| line.contains(" seeds: "));
    let line = line.with_context(|| format!("no word of the seeds:\n{}", pairs.tail(10)))?;
    ensure!(line.contains(&format!("{SEEDS} seeds: ")), "not {SEEDS} seeds: {line}");
    let mut passed = 0;
    for program in ["pairs", "nvme"] {
        let ended = cargo(tree, program, &["does_anything"]);
        let ended = ended.env("RACELINE_RDMA_SEQUENCES", SEQUENCES).check()?;
        passed += tests_passed(&ended.stdout);
    }
    ensure!(passed == ENDS, "{passed} tests of sequences, and not {ENDS}");
    Ok(Outcome::Passed(format!("{line}; {SEQUENCES} sequences of each of {ENDS} ends")))
}

/// All suites over RDMA with iWARP devices.
pub(crate) fn run_iwarp(tree: &Tree) -> Result<Outcome> {
    let mut passed = 0;
    for program in SUITES {
        let ended = cargo(tree, program, &["suites::"]).env(IWARP.0, IWARP.1).echo().check()?;
        let some = tests_passed(&ended.stdout);
        ensure!(some > 0, "{program}: no test ran");
        passed += some;
    }
    Ok(Outcome::Passed(format!("{passed} tests in {} programs", SUITES.len())))
}

/// Tests of a program, which is built with the features of the unit tests.
fn cargo(tree: &Tree, program: &str, tests: &[&str]) -> Task {
    let args = ["test", "--quiet", "--workspace", "--locked", "--test", program, "--"];
    Task::new("cargo").args(args).args(["--nocapture"]).args(tests).dir(&tree.root).limit(LIMIT_S)
}
