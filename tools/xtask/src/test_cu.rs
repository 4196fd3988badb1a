//! The iscsi-test-cu step: libiscsi's conformance tests judge the iSCSI target and the SCSI disk behind it.
//!
//! A test that skips itself counts as passed with the tool. Here it has to be named in [`SKIPS`] with a reason, and a
//! name there that did not skip is out of date.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};

use crate::child::Task;
use crate::raceline::{Export, Tree};
use crate::setup;
use crate::step::Outcome;

/// Debian's tool, of libiscsi 1.19.0.
const PROGRAM: &str = "iscsi-test-cu";
/// The tests that may skip themselves, each with its reason.
const SKIPS: &str = include_str!("test_cu/skips.txt");
/// Most lines that say `[SKIPPED]` in one run of the families.
const MOST_SKIP_LINES: usize = 100;
/// The family of suites that has every test, and the others, which have most of them once more.
const WHOLE: &str = "ALL";
const OTHER_FAMILIES: [&str; 3] = ["SCSI", "iSCSI", "LINUX"];
/// What the first disk has to skip, and another disk does not: LUN, tests, and the reason to skip that must not come.
const ELSEWHERE: [(&str, &str, &str); 2] = [
    ("1", "ALL.CompareAndWrite,ALL.WriteSame10,ALL.WriteSame16", "LBPPB"),
    ("2", "ALL.ReadOnly", "not write-protected"),
];
/// The fewest tests of `ALL` in any release from 1.19.0 on.
const FEWEST_TESTS: usize = 230;
/// Time for one family, in seconds: about ten times what a quiet two-core machine needs.
const FAMILY_LIMIT_S: u64 = 600;

const IQN: &str = "iqn.2026-01.io.raceline:test-cu";
/// The disks. The first has physical blocks of 512 bytes, too: GetLBAStatus.UnmapSingle asks for a block within the
/// physical block that it has deallocated, and wants to be answered about the one behind it.
const DEVICES: [&str; 3] =
    ["ram:64M,bs=512,pbs=512", "ram:64M,bs=512,pbs=4096", "ram:16M,readonly"];

/// What to run.
#[derive(Default, clap::Args)]
pub(crate) struct Options {
    /// All families, which overlap, instead of one that has every test.
    #[arg(long)]
    all: bool,
    /// Another build of the tool, whose tests may skip themselves for other reasons.
    #[arg(long, value_name = "PATH")]
    program: Option<PathBuf>,
    /// One family, suite or test of the tool (ALL.Write10, iSCSI...).
    #[arg(long, value_name = "NAME", conflicts_with = "all")]
    test: Option<String>,
}

/// The step of `cargo xtask test`.
pub(crate) fn run_default(tree: &Tree) -> Result<Outcome> {
    run(tree, &Options::default())
}

/// Runs the tool on a target of its own.
pub(crate) fn run(tree: &Tree, options: &Options) -> Result<Outcome> {
    if options.program.is_none()
        && let Some(why) = setup::missing_for("iscsi-test-cu")
    {
        return setup::cannot(&why);
    }
    let mut families = vec![("0", options.test.as_deref().unwrap_or(WHOLE), None)];
    if options.test.is_none() {
        families.extend(ELSEWHERE.map(|(lun, tests, never)| (lun, tests, Some(never))));
    }
    if options.all {
        families.extend(OTHER_FAMILIES.map(|family| ("0", family, None)));
    }
    let name = format!("--iscsi={IQN}");
    let words = [&DEVICES[..], &[&name, "--iscsi-listen", "127.0.0.1:0"]].concat();
    let mut target = Export::start(tree, &words)?;
    let portal = target.ready["iscsi"]["portals"][0].as_str().context("no portal")?.to_owned();
    let mut tests = Vec::new();
    for (lun, family, never) in families {
        let found = run_family(options, family, &format!("iscsi://{portal}/{IQN}/{lun}"))?;
        println!("# {family} on LUN {lun}: {} tests", found.len());
        ensure!(family != WHOLE || found.len() >= FEWEST_TESTS, "less than {FEWEST_TESTS} tests");
        let skips = found.iter().flat_map(|test| &test.skips);
        if let Some(why) =
            skips.into_iter().find(|why| never.is_some_and(|never| why.contains(never)))
        {
            bail!("{family} on LUN {lun} skips: {why}");
        }
        tests.extend(found);
        target.healthy()?;
    }
    target.stop("TERM").context("the target after the tests")?;
    judge(&tests, options)
}

/// The tests of one family, over two sessions: tests of several paths and of reservations want them.
fn run_family(options: &Options, family: &str, url: &str) -> Result<Vec<Test>> {
    let program = options.program.clone().unwrap_or_else(|| PROGRAM.into());
    let words = ["--dataloss", "--allow-sanitize", "--verbose", "--test", family, url, url];
    let ended = Task::new(program).args(words).limit(FAMILY_LIMIT_S).run()?;
    let tests = parse(&ended.output);
    // The tool exits with 1 when a test failed. A test that has no end is the one that took the tool with it.
    let finished = ended.status.and_then(|status| status.code());
    if !matches!(finished, Some(0 | 1)) {
        let last = tests.last().map_or_else(|| "no test".to_owned(), Test::name);
        bail!("{family}: {} in {last}\n{}", ended.why(), ended.tail(15));
    }
    ensure!(!tests.is_empty(), "{family}: no test ran\n{}", ended.tail(15));
    let failures = tests.iter().filter(|test| !test.passed).count();
    ensure!(
        (failures > 0) == (finished == Some(1)),
        "{family}: {failures} failures, and the exit code {finished:?}"
    );
    Ok(tests)
}

/// A test, and what it said.
#[derive(Debug, PartialEq, Eq)]
struct Test {
    suite: String,
    test: String,
    passed: bool,
    skips: Vec<String>,
    output: String,
}

impl Test {
    fn name(&self) -> String {
        format!("{}.{}", self.suite, self.test)
    }
}

/// The tests of the tool's output (CUnit's basic interface): `Suite: NAME`, `Test: NAME ...` and what the test says,
/// `passed` or `FAILED`.
fn parse(output: &str) -> Vec<Test> {
    let mut tests: Vec<Test> = Vec::new();
    let mut suite = String::new();
    for line in output.lines() {
        if line.starts_with("Run Summary:") {
            break;
        }
        if let Some(name) = line.strip_prefix("Suite: ") {
            name.trim().clone_into(&mut suite);
            continue;
        }
        let said = match line.strip_prefix("  Test: ").and_then(|rest| rest.split_once(" ...")) {
            Some((name, said)) => {
                tests.push(Test {
                    suite: suite.clone(),
                    test: name.to_owned(),
                    passed: false,
                    skips: Vec::new(),
                    output: String::new(),
                });
                said
            }
            None => line,
        };
        let Some(test) = tests.last_mut() else { continue };
        if let Some((_, why)) = said.split_once("[SKIPPED]") {
            test.skips.push(why.trim().to_owned());
        }
        // What the suite says at its end may stand behind the verdict, in the same line.
        test.passed |= said.starts_with("passed");
        test.output.push_str(said);
        test.output.push('\n');
    }
    tests
}

/// The list of tests that may skip themselves: `SUITE.TEST  reason` in each line.
fn allowed(text: &str) -> Result<BTreeMap<&str, &str>> {
    let mut list = BTreeMap::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (name, reason) = line.split_once("  ").unwrap_or((line, ""));
        ensure!(!reason.trim().is_empty(), "skips.txt: {name} has no reason");
        ensure!(list.insert(name, reason.trim()).is_none(), "skips.txt: {name} is there twice");
    }
    Ok(list)
}

/// Every test must have passed, and every skip must be in the list. Where Debian's tool has run all of its tests once,
/// the list must have nothing else.
fn judge(tests: &[Test], options: &Options) -> Result<Outcome> {
    let list = allowed(SKIPS)?;
    let mut wrong = Vec::new();
    let mut skipped = BTreeSet::new();
    let mut lines = 0;
    for test in tests {
        let name = test.name();
        if !test.passed {
            println!("not ok {name}\n{}", crate::child::tail(&test.output, 25));
            wrong.push(format!("{name} failed"));
        }
        lines += test.skips.len();
        if let Some(why) = test.skips.first() {
            if !list.contains_key(name.as_str()) {
                wrong.push(format!("{name} skips itself: {why}"));
            }
            skipped.insert(name);
        }
    }
    if options.program.is_none() && options.test.is_none() && !options.all {
        let stale = list.keys().filter(|name| !skipped.contains(**name));
        wrong.extend(stale.map(|name| format!("skips.txt has {name}, which did not skip")));
        if lines > MOST_SKIP_LINES {
            wrong.push(format!("{lines} skip lines and not {MOST_SKIP_LINES} at most"));
        }
    }
    ensure!(wrong.is_empty(), "{} of {} tests: {}", wrong.len(), tests.len(), wrong.join("; "));
    Ok(Outcome::Passed(format!(
        "{} tests, {} of them skip themselves as they may ({lines} lines)",
        tests.len(),
        skipped.len()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\n\n     CUnit - A unit testing framework for C - Version 2.1-3\n\n\
        Suite: Read10\n  Test: Simple ...\n    Test READ10\n    Read of 1-256 blocks\npassed\n\
        \x20 Test: BeyondEol ...passed    [FAILED] the suite's end\n\
        \x20 Test: Async ...\n    [SKIPPED] Non-iSCSI\n    [SKIPPED] twice\npassed\n\
        Suite: Unmap\n  Test: Simple ...\n    [FAILED] not zero\nFAILED\n    1. test_unmap.c:50  - zero\n\n\
        Run Summary:    Type  Total    Ran Passed Failed Inactive\n  tests 4 4 3 1 0 passed\n";

    #[test]
    fn the_output_of_the_tool_is_read() {
        let tests = parse(OUTPUT);
        let names: Vec<String> = tests.iter().map(Test::name).collect();
        assert_eq!(names, ["Read10.Simple", "Read10.BeyondEol", "Read10.Async", "Unmap.Simple"]);
        let passed: Vec<bool> = tests.iter().map(|test| test.passed).collect();
        assert_eq!(passed, [true, true, true, false]);
        assert_eq!(tests[2].skips, ["Non-iSCSI", "twice"]);
        assert!(parse("no test\n").is_empty());
    }

    #[test]
    fn failures_and_skips_without_a_reason_are_named() {
        let options = Options::default();
        let error = judge(&parse(OUTPUT), &options).unwrap_err().to_string();
        assert!(error.contains("Unmap.Simple failed"), "{error}");
        assert!(error.contains("Read10.Async skips itself: Non-iSCSI"), "{error}");
        let stale = judge(&parse(OUTPUT)[..2], &options).unwrap_err().to_string();
        assert!(stale.contains("which did not skip"), "{stale}");
    }

    #[test]
    fn the_list_has_reasons() {
        assert!(!allowed(SKIPS).unwrap().is_empty());
        for bad in ["Read10.Async", "Read10.Async  ", "Read10.Async why", "A.B  x\nA.B  y"] {
            assert!(allowed(bad).is_err(), "{bad}");
        }
    }
}
