//! `cargo xtask cost`: instructions per I/O in user space, counted by callgrind, against a budget.
//!
//! The count does not depend on noise: the `cost` program does the same I/Os in memory each time,
//! callgrind counts the turns of one side only, and the C library is set to copy memory the same way on
//! every processor. Only the compiler remains, whose version the budget names.

mod profile;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::child::Task;
use crate::raceline::Tree;
use crate::setup;
use crate::step::Outcome;
use profile::Profile;

/// The budget, in the repository.
const BUDGET_FILE: &str = "tools/cost/budget.json";
/// By how many percent a case may exceed its budget.
const TOLERANCE_PERCENT: f64 = 3.0;
/// Functions shown for a case.
const SHOWN_FUNCTIONS: usize = 15;
/// Growths shown for a case that fails.
const SHOWN_GROWTHS: usize = 10;
/// Functions below this many instructions per I/O are not kept in the budget.
const LEAST_KEPT: f64 = 8.0;
/// Time for one case, in seconds; it takes about three.
const CASE_LIMIT_S: u64 = 120;
/// One memory copy for all processors: without AVX and `rep movsb`, which callgrind would count
/// differently from machine to machine. Names of old and new C libraries; unknown ones are ignored.
const ONE_MEMCPY: &str = "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW,-AVX2,-AVX2_Usable,\
     -AVX_Fast_Unaligned_Load,-ERMS,-FSRM";

/// What `cargo xtask cost` takes.
#[derive(clap::Args, Default)]
pub(crate) struct Options {
    /// Accept the present cost as the new budget; with `--only`, that of these cases.
    #[arg(long)]
    update: bool,
    /// Show the functions and source files that cost most.
    #[arg(long)]
    show: bool,
    /// Only these cases, or those whose names begin with these words.
    #[arg(long, value_delimiter = ',', value_name = "CASE")]
    only: Vec<String>,
}

/// The accepted costs: the contents of the budget file.
#[derive(Debug, Default, Deserialize, Serialize)]
struct Budget {
    /// The compiler that built the counted program.
    rustc: String,
    cases: BTreeMap<String, Case>,
}

/// Instructions per I/O of one case.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
struct Case {
    instructions_per_io: f64,
    /// Of each function with at least [`LEAST_KEPT`], without the functions that it calls.
    functions: BTreeMap<String, f64>,
}

/// How a case compares with its budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// It has no budget yet.
    New,
    Within,
    Better,
    Worse,
}

/// Counts everything and compares it with the budget.
pub(crate) fn run(tree: &Tree, options: &Options) -> Result<Outcome> {
    if !cfg!(target_arch = "x86_64") {
        return Ok(Outcome::Skipped("the budget is for x86_64".to_owned()));
    }
    if let Some(why) = setup::missing_for("cost") {
        return setup::cannot(&why);
    }
    let path = tree.root.join(BUDGET_FILE);
    let budget = load(&path)?;
    let rustc = compiler(&tree.root)?;
    let binary = tree.program("cost")?;
    let scratch = tree.scratch("cost")?;
    let mut counted = Budget { rustc, cases: BTreeMap::new() };
    let mut verdicts = Vec::new();
    println!("instructions per I/O\n{:<24} {:>9} {:>9} {:>11}", "case", "budget", "now", "change");
    for name in cases(&binary, &options.only)? {
        let profile = count(&binary, &scratch, &name)?;
        let case = Case::new(&profile);
        let (verdict, line) = compare(&name, budget.cases.get(&name), &case);
        println!("{line}");
        if options.show {
            print!("{}", profile.describe(SHOWN_FUNCTIONS));
        }
        counted.cases.insert(name.clone(), case);
        verdicts.push((name, verdict));
    }
    if options.update {
        if !options.only.is_empty() {
            let known = budget.cases.into_iter();
            let others = known.filter(|(name, _)| !counted.cases.contains_key(name));
            counted.cases.extend(others.collect::<Vec<_>>());
        }
        return update(&path, &counted);
    }
    judge(&budget, &counted, &verdicts)
}

impl Case {
    fn new(profile: &Profile) -> Self {
        let round = |value: f64| (value * 10.0).round() / 10.0;
        let kept = profile.functions.iter().filter(|&(_, &count)| count >= LEAST_KEPT);
        Self {
            instructions_per_io: round(profile.total),
            functions: kept.map(|(name, &count)| (name.clone(), round(count))).collect(),
        }
    }
}

fn load(path: &Path) -> Result<Budget> {
    if !path.exists() {
        return Ok(Budget::default());
    }
    let text = std::fs::read_to_string(path)?;
    serde_json::from_str(&text)
        .with_context(|| format!("{BUDGET_FILE} (cargo xtask cost --update makes a new one)"))
}

fn update(path: &Path, counted: &Budget) -> Result<Outcome> {
    std::fs::write(path, serde_json::to_string_pretty(counted)? + "\n")?;
    Ok(Outcome::Passed(format!("{BUDGET_FILE} is what it costs now; commit it, and say why")))
}

fn compiler(root: &Path) -> Result<String> {
    let ended = Task::new("rustc").args(["--version"]).dir(root).check()?;
    Ok(ended.stdout.trim().to_owned())
}

fn cases(binary: &Path, only: &[String]) -> Result<Vec<String>> {
    let listed = Task::new(binary).args(["--list"]).check()?;
    let names: Vec<String> = listed.stdout.lines().map(str::to_owned).collect();
    if let Some(word) = only.iter().find(|word| !names.iter().any(|name| name.starts_with(*word))) {
        bail!("there is no case '{word}'; there are {}", names.join(", "));
    }
    let wanted = |name: &String| only.is_empty() || only.iter().any(|word| name.starts_with(word));
    Ok(names.into_iter().filter(wanted).collect())
}

/// Runs one case under callgrind.
fn count(binary: &Path, scratch: &Path, name: &str) -> Result<Profile> {
    let side = name.split('-').next().unwrap_or(name);
    let out = scratch.join(format!("{name}.out"));
    let ended = Task::new("valgrind")
        .args(["--quiet", "--tool=callgrind"])
        .args([format!("--callgrind-out-file={}", out.display())])
        // Collecting begins and ends with this function.
        .args([format!("--toggle-collect=*counted_{side}_turn*")])
        // It pauses in this one, within the other.
        .args(["--toggle-collect=*uncounted_device*"])
        .args([binary.as_os_str(), name.as_ref()])
        .env("GLIBC_TUNABLES", ONE_MEMCPY)
        .limit(CASE_LIMIT_S)
        .check()?;
    let ios: u32 =
        ended.stdout.trim().parse().with_context(|| {
            format!("{name}: the number of I/Os was expected\n{}", ended.tail(10))
        })?;
    let text = std::fs::read_to_string(&out)?;
    Profile::parse(&text, ios).with_context(|| format!("{name}: {}", out.display()))
}

/// A line of the table, and its verdict.
fn compare(name: &str, budget: Option<&Case>, now: &Case) -> (Verdict, String) {
    let now = now.instructions_per_io;
    let Some(budget) = budget.map(|case| case.instructions_per_io) else {
        return (Verdict::New, format!("{name:<24} {:>9} {now:>9.1} {:>11}", "-", "new"));
    };
    let change = (now / budget - 1.0) * 100.0;
    let (verdict, remark) = match change {
        change if change > TOLERANCE_PERCENT => (Verdict::Worse, "  over budget"),
        change if change < -TOLERANCE_PERCENT => (Verdict::Better, "  better"),
        _ => (Verdict::Within, ""),
    };
    (verdict, format!("{name:<24} {budget:>9.1} {now:>9.1} {change:>+9.1} %{remark}"))
}

/// Sums up, and fails when a case is over its budget.
fn judge(budget: &Budget, counted: &Budget, verdicts: &[(String, Verdict)]) -> Result<Outcome> {
    let of = |wanted: Verdict| -> Vec<&str> {
        let with = verdicts.iter().filter(|(_, verdict)| *verdict == wanted);
        with.map(|(name, _)| name.as_str()).collect()
    };
    let (new, better, worse) = (of(Verdict::New), of(Verdict::Better), of(Verdict::Worse));
    for &name in &worse {
        if let (Some(before), Some(now)) = (budget.cases.get(name), counted.cases.get(name)) {
            print!("\n{name}: what grew most, in instructions per I/O\n{}", growths(before, now));
        }
    }
    let count = verdicts.len();
    if budget.rustc != counted.rustc && !budget.cases.is_empty() {
        return Ok(Outcome::Passed(format!(
            "{count} cases, but compared with another compiler's budget ({}, here {}): {} over it",
            budget.rustc,
            counted.rustc,
            worse.len()
        )));
    }
    if !worse.is_empty() {
        bail!(
            "more than {TOLERANCE_PERCENT} % over budget: {}; if it is worth it, \
             cargo xtask cost --update, and say why in the commit",
            worse.join(", ")
        );
    }
    if !new.is_empty() {
        bail!("no budget for {}: cargo xtask cost --update", new.join(", "));
    }
    let advice = match better.len() {
        0 => String::new(),
        few => format!(", {few} better than their budget: cargo xtask cost --update keeps that"),
    };
    Ok(Outcome::Passed(format!("{count} cases{advice}")))
}

/// The functions whose cost grew most.
fn growths(before: &Case, now: &Case) -> String {
    let names: std::collections::BTreeSet<_> =
        before.functions.keys().chain(now.functions.keys()).collect();
    let of = |case: &Case, name: &String| case.functions.get(name).copied().unwrap_or(0.0);
    let mut changes: Vec<(f64, &String)> =
        names.into_iter().map(|name| (of(now, name) - of(before, name), name)).collect();
    changes.retain(|(change, _)| *change > 0.0);
    changes.sort_by(|a, b| b.0.total_cmp(&a.0));
    let line = |(change, name): &(f64, &String)| {
        format!("{change:>+10.1} {:>10.1} -> {:<8.1} {name}\n", of(before, name), of(now, name))
    };
    changes.iter().take(SHOWN_GROWTHS).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(instructions_per_io: f64, functions: &[(&str, f64)]) -> Case {
        let functions = functions.iter().map(|(name, count)| ((*name).to_owned(), *count));
        Case { instructions_per_io, functions: functions.collect() }
    }

    fn budget(rustc: &str, instructions_per_io: f64) -> Budget {
        let cases = [("a".to_owned(), case(instructions_per_io, &[("f", 10.0)]))];
        Budget { rustc: rustc.to_owned(), cases: cases.into() }
    }

    fn outcome(before: &Budget, now: &Budget) -> Result<Outcome> {
        let verdict = compare("a", before.cases.get("a"), &now.cases["a"]).0;
        judge(before, now, &[("a".to_owned(), verdict)])
    }

    #[test]
    fn more_than_the_tolerance_is_worse_and_less_is_better() {
        let before = case(1000.0, &[]);
        let verdict = |now: f64| compare("a", Some(&before), &case(now, &[])).0;
        assert_eq!(verdict(1029.0), Verdict::Within);
        assert_eq!(verdict(1031.0), Verdict::Worse);
        assert_eq!(verdict(971.0), Verdict::Within);
        assert_eq!(verdict(969.0), Verdict::Better);
        assert_eq!(compare("a", None, &before).0, Verdict::New);
    }

    #[test]
    fn only_the_budgets_compiler_can_fail() {
        let before = budget("rustc 1", 1000.0);
        let error = outcome(&before, &budget("rustc 1", 1100.0)).unwrap_err().to_string();
        assert!(error.contains("over budget: a") && error.contains("--update"), "{error}");
        assert!(outcome(&before, &budget("rustc 1", 1000.0)).is_ok());
        let Outcome::Passed(text) = outcome(&before, &budget("rustc 2", 1100.0)).unwrap() else {
            panic!("not skipped")
        };
        assert!(text.contains("another compiler"), "{text}");
        assert!(outcome(&Budget::default(), &before).is_err());
    }

    #[test]
    fn growths_name_the_culprit_first() {
        let before = case(100.0, &[("same", 50.0), ("slower", 30.0), ("gone", 20.0)]);
        let now = case(130.0, &[("same", 50.0), ("slower", 55.0), ("fresh", 25.5)]);
        let text = growths(&before, &now);
        let names: Vec<&str> =
            text.lines().filter_map(|line| line.split(' ').next_back()).collect();
        assert_eq!(names, ["fresh", "slower"]);
    }

    #[test]
    fn the_budget_file_survives_writing_and_reading() {
        let before = budget("rustc 1", 1000.5);
        let text = serde_json::to_string(&before).unwrap();
        let after: Budget = serde_json::from_str(&text).unwrap();
        assert_eq!((after.rustc, after.cases), (before.rustc, before.cases));
    }
}
