//! The steps of `cargo xtask test`: how they are chosen, run, and summed up.

mod beside;

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Characters of a reason in the table of steps.
const REASON_MAX: usize = 160;

/// How a step ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The step succeeded; the text says what was checked.
    Passed(String),
    /// Could not run here, and why.
    Skipped(String),
}

/// The function that runs a step.
pub(crate) type Action<'a> = Box<dyn FnMut() -> Result<Outcome> + 'a>;

/// One step.
pub(crate) struct Step<'a> {
    /// Name, as `--only` takes it.
    pub(crate) name: &'static str,
    /// The step's description.
    pub(crate) about: &'static str,
    /// Whether `--quick` includes it.
    pub(crate) quick: bool,
    /// Whether it may run while another step does. Such steps in a row run two at a time.
    pub(crate) beside: bool,
    /// Whether only `--all` and its name bring it.
    pub(crate) on_request: bool,
    /// The function that runs it.
    pub(crate) action: Action<'a>,
}

/// Individual checks inside a step, each reported on a line of its own.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    passed: usize,
    skipped: usize,
    failed: Vec<String>,
}

impl Checks {
    /// Runs one check and prints its line.
    pub(crate) fn run(&mut self, name: &str, check: impl FnOnce() -> Result<()>) {
        match check() {
            Ok(()) => self.ok(name),
            Err(error) => self.not_ok(name, &format!("{error:#}")),
        }
    }

    /// Notes a check that passed.
    pub(crate) fn ok(&mut self, name: &str) {
        println!("ok {name}");
        self.passed += 1;
    }

    /// Notes a check that failed.
    pub(crate) fn not_ok(&mut self, name: &str, why: &str) {
        println!("not ok {name}: {why}");
        // The table at the end has it, too: of a long output, often no more is kept.
        let first: String = why.lines().next().unwrap_or("").chars().take(REASON_MAX).collect();
        self.failed.push(if first.is_empty() {
            name.to_owned()
        } else {
            format!("{name} ({first})")
        });
    }

    /// Notes a check that could not run.
    pub(crate) fn skip(&mut self, name: &str, why: &str) {
        println!("skip {name}: {why}");
        self.skipped += 1;
    }

    /// Takes a line that a guest printed; false when it reports no check.
    pub(crate) fn take_line(&mut self, line: &str) -> bool {
        let (head, why) = line.split_once(": ").unwrap_or((line, ""));
        if let Some(name) = head.strip_prefix("not ok ") {
            self.not_ok(name, why);
        } else if let Some(name) = line.strip_prefix("ok ") {
            self.ok(name);
        } else if let Some(name) = head.strip_prefix("skip ") {
            self.skip(name, why);
        } else {
            return false;
        }
        true
    }

    /// Whether no check failed so far.
    pub(crate) fn all_passed(&self) -> bool {
        self.failed.is_empty()
    }

    /// Turns the checks into the step's result.
    pub(crate) fn outcome(self) -> Result<Outcome> {
        if !self.failed.is_empty() {
            let count = self.failed.len();
            bail!("{count} of {} checks: {}", count + self.passed, self.failed.join(", "));
        }
        if self.passed == 0 {
            bail!("no check ran");
        }
        let skipped =
            if self.skipped > 0 { format!(", {} skipped", self.skipped) } else { String::new() };
        Ok(Outcome::Passed(format!("{} checks{skipped}", self.passed)))
    }
}

/// The sum of the summaries in the output of test programs.
pub(crate) fn tests_passed(stdout: &str) -> usize {
    stdout
        .lines()
        .filter_map(|line| line.strip_prefix("test result: ok. "))
        .filter_map(|rest| rest.split_once(" passed")?.0.parse::<usize>().ok())
        .sum()
}

enum Verdict {
    Passed,
    Failed,
    Skipped,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Passed => "passed",
            Self::Failed => "FAILED",
            Self::Skipped => "skipped",
        })
    }
}

struct Row {
    name: &'static str,
    verdict: Verdict,
    note: String,
    took: Duration,
}

impl Row {
    /// The line that ends a step's output.
    fn line(&self) -> String {
        let Self { name, verdict, note, took } = self;
        format!("=== {name}: {verdict} in {:.1} s {note}", took.as_secs_f64())
    }

    /// The same row of another process, from its output.
    fn read(name: &'static str, output: &str) -> Option<Self> {
        let begin = format!("=== {name}: ");
        let rest = output.lines().rev().find_map(|line| {
            let rest = line.strip_prefix(&begin)?;
            ["passed in ", "FAILED in ", "skipped in "]
                .iter()
                .any(|word| rest.starts_with(word))
                .then_some(rest)
        })?;
        let (verdict, rest) = rest.split_once(" in ")?;
        let (took, note) = rest.split_once(" s ")?;
        let verdict = match verdict {
            "passed" => Verdict::Passed,
            "skipped" => Verdict::Skipped,
            _ => Verdict::Failed,
        };
        let took = Duration::try_from_secs_f64(took.parse().ok()?).ok()?;
        Some(Self { name, verdict, note: note.to_owned(), took })
    }
}

/// How many steps run when none is named.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Which {
    /// Those that take little time (`Step::quick`).
    Quick,
    /// All but those on request.
    Usual,
    /// Every step.
    All,
}

/// Keeps the steps that `only` names (a name, or the beginning of names); an unknown one is an error.
pub(crate) fn select<'a>(
    steps: Vec<Step<'a>>,
    only: &[String],
    which: Which,
) -> Result<Vec<Step<'a>>> {
    // A whole name means that step alone: this program calls itself so for steps beside each other.
    let whole: Vec<&str> = steps.iter().map(|step| step.name).collect();
    let fits = |step: &Step<'_>, word: &String| {
        let begins =
            step.name.strip_prefix(word.as_str()).is_some_and(|rest| rest.starts_with('-'));
        step.name == word || (begins && !whole.contains(&word.as_str()))
    };
    for word in only {
        if !steps.iter().any(|step| fits(step, word)) {
            bail!("there is no step '{word}' (see cargo xtask test --list)");
        }
    }
    let wanted = |step: &Step<'_>| {
        if only.is_empty() {
            match which {
                Which::Quick => step.quick && !step.on_request,
                Which::Usual => !step.on_request,
                Which::All => true,
            }
        } else {
            only.iter().any(|word| fits(step, word))
        }
    };
    Ok(steps.into_iter().filter(wanted).collect())
}

/// The steps that a run does not have because they are on request; none where the steps are named, since those are
/// what was asked for.
pub(crate) fn left_on_request(
    steps: &[Step<'_>],
    only: &[String],
    which: Which,
) -> Vec<&'static str> {
    if !only.is_empty() || matches!(which, Which::All) {
        return Vec::new();
    }
    steps.iter().filter(|step| step.on_request).map(|step| step.name).collect()
}

/// Runs the steps in order, those that may run beside another two at a time, and prints the summary with the names of those
/// that are left on request; false when one failed.
pub(crate) fn run(mut steps: Vec<Step<'_>>, left: &[&str]) -> bool {
    let mut rows = Vec::new();
    for group in steps.chunk_by_mut(|one, next| one.beside && next.beside) {
        if group.len() > 1 {
            rows.extend(beside::run(group));
        } else {
            rows.extend(group.iter_mut().map(perform));
        }
    }
    summary(&rows, left)
}

fn perform(step: &mut Step<'_>) -> Row {
    println!("\n=== {}: {}", step.name, step.about);
    let started = Instant::now();
    let (verdict, note) = match (step.action)() {
        Ok(Outcome::Passed(note)) => (Verdict::Passed, note),
        Ok(Outcome::Skipped(why)) => (Verdict::Skipped, why),
        Err(error) => (Verdict::Failed, format!("{error:#}")),
    };
    let row = Row { name: step.name, verdict, note, took: started.elapsed() };
    println!("{}", row.line());
    row
}

fn summary(rows: &[Row], left: &[&str]) -> bool {
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    println!("\n{:<22} {:<8} {:>7}  note", "step", "result", "seconds");
    for row in rows {
        match row.verdict {
            Verdict::Passed => passed += 1,
            Verdict::Failed => failed += 1,
            Verdict::Skipped => skipped += 1,
        }
        let note: String = row.note.lines().next().unwrap_or("").chars().take(160).collect();
        println!("{:<22} {:<8} {:>7.1}  {note}", row.name, row.verdict, row.took.as_secs_f64());
    }
    let total: Duration = rows.iter().map(|row| row.took).sum();
    println!("{:<22} {:<8} {:>7.1}\n", "sum of all steps", "", total.as_secs_f64());
    if let Some(line) = line_of_left(left) {
        println!("{line}");
    }
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    failed == 0
}

/// What a run says of the steps that it left; nothing where it left none.
fn line_of_left(left: &[&str]) -> Option<String> {
    let names = left.join(", ");
    (!left.is_empty()).then(|| {
        format!("not run, on request (--all, or --only NAME): {} steps: {names}", left.len())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps() -> Vec<Step<'static>> {
        ["build", "kernel-6.1-host", "kernel-6.12-host", "build-again"]
            .into_iter()
            .map(|name| Step {
                name,
                about: "",
                quick: name == "build",
                beside: false,
                on_request: name == "kernel-6.1-host",
                action: Box::new(|| Ok(Outcome::Passed(String::new()))),
            })
            .collect()
    }

    fn names(only: &[&str], which: Which) -> Vec<&'static str> {
        let only: Vec<String> = only.iter().map(|&word| word.to_owned()).collect();
        select(steps(), &only, which).unwrap().iter().map(|step| step.name).collect()
    }

    #[test]
    fn steps_are_chosen_by_name_or_by_its_beginning() {
        assert_eq!(names(&[], Which::All).len(), 4);
        assert_eq!(names(&[], Which::Usual), ["build", "kernel-6.12-host", "build-again"]);
        assert_eq!(names(&[], Which::Quick), ["build"]);
        assert_eq!(names(&["kernel"], Which::Quick), ["kernel-6.1-host", "kernel-6.12-host"]);
        assert_eq!(names(&["kernel-6.1"], Which::Usual), ["kernel-6.1-host"]);
        assert_eq!(names(&["build"], Which::Usual), ["build"]);
        assert!(select(steps(), &["ker".to_owned()], Which::Usual).is_err());
    }

    #[test]
    fn a_run_names_the_steps_that_it_left_on_request() {
        let left = |only: &[&str], which| {
            let only: Vec<String> = only.iter().map(|&word| word.to_owned()).collect();
            line_of_left(&left_on_request(&steps(), &only, which))
        };
        for which in [Which::Usual, Which::Quick] {
            let line = left(&[], which).unwrap();
            assert!(line.starts_with("not run, on request"), "{line}");
            assert!(line.ends_with(": 1 steps: kernel-6.1-host"), "{line}");
        }
        assert_eq!(left(&[], Which::All), None);
        assert_eq!(left(&["build"], Which::Usual), None);
    }

    #[test]
    fn the_row_of_another_process_is_read() {
        for verdict in [Verdict::Passed, Verdict::Failed, Verdict::Skipped] {
            let took = Duration::from_millis(1500);
            let row =
                Row { name: "fuzz", verdict, note: "12 checks in 3 s or so".to_owned(), took };
            let output = format!("=== fuzz: every target\nok\n{}\n\nstep  result\n", row.line());
            let read = Row::read("fuzz", &output).unwrap();
            assert_eq!((read.line(), read.note, read.took), (row.line(), row.note, row.took));
        }
        assert!(Row::read("fuzz", "=== fuzz: every target\n").is_none());
    }

    #[test]
    fn guest_lines_are_counted() {
        let mut checks = Checks::default();
        assert!(checks.take_line("ok one"));
        assert!(checks.take_line("skip two: no reason: none"));
        assert!(!checks.take_line("# ok comment"));
        assert!(checks.all_passed());
        assert!(checks.take_line("not ok three: why: because"));
        assert_eq!(
            checks.outcome().unwrap_err().to_string(),
            "1 of 2 checks: three (why: because)"
        );
    }
}
