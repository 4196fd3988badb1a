//! The step `take-over`: a hundred take-overs of the release build under 64 connections, whose pauses are judged.

use anyhow::{Context as _, Result, ensure};

use crate::Tree;
use crate::child::Task;
use crate::step::Outcome;

/// The pause that 99 of 100 take-overs stay below, on a machine that does nothing else.
const P99_LIMIT_MS: f64 = 100.0;
/// Limit of the test with its build, in seconds.
const LIMIT_S: u64 = 1800;

/// Runs the test with the release build, and reads what it says of pauses.
pub(crate) fn run(tree: &Tree) -> Result<Outcome> {
    let args = ["test", "--quiet", "--workspace", "--locked", "--test", "take_over", "--"];
    let test = Task::new("cargo").args(args).args(["--ignored", "--nocapture"]);
    let test = test.env("RACELINE_PROGRAM", tree.binary()?).dir(&tree.root).limit(LIMIT_S);
    let ended = test.check()?;
    let line = ended.output.lines().find(|line| line.contains(" take-overs of "));
    let line = line.with_context(|| format!("no word of pauses:\n{}", ended.tail(10)))?;
    let p99 = p99(line).with_context(|| format!("no P99 in: {line}"))?;
    ensure!(p99 <= P99_LIMIT_MS, "P99 is above {P99_LIMIT_MS} ms: {line}");
    Ok(Outcome::Passed(line.to_owned()))
}

fn p99(line: &str) -> Option<f64> {
    line.split("P99 ").nth(1)?.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_p99_of_a_line_is_read() {
        let line = "100 take-overs of 63 queues: pause P50 9.1 ms, P99 20.5 ms, longest 21.0 ms";
        assert_eq!(super::p99(line), Some(20.5));
        assert_eq!(super::p99("P99 many ms"), None);
    }
}
