//! Steps that run beside each other, each in a process of its own, so that their lines do not mix.

use std::sync::Mutex;
use std::time::Duration;

use super::{Row, Step, Verdict};
use crate::child::Task;

/// Time for one step, in seconds; each has closer limits of its own.
const STEP_LIMIT_S: u64 = 3600;

/// Runs the lanes beside each other, and the steps of each in order; gives the rows in the order of the steps.
pub(super) fn run(steps: &[Step<'_>]) -> Vec<Row> {
    let mut names: Vec<&str> = steps.iter().filter_map(|step| step.lane).collect();
    names.sort_unstable();
    names.dedup();
    println!("\n=== beside each other, each shown when it has ended: {}", names.join(", "));
    let steps: Vec<_> = steps.iter().map(|step| (step.name, step.lane)).collect();
    let rows = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for lane in names {
            let (steps, rows) = (&steps, &rows);
            scope.spawn(move || {
                for (index, &(name, _)) in
                    steps.iter().enumerate().filter(|(_, (_, of))| *of == Some(lane))
                {
                    let (output, row) = apart(name);
                    // A panic of the other lane leaves whole rows.
                    let mut rows = rows.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    println!("\n{output}");
                    rows.push((index, row));
                }
            });
        }
    });
    let mut rows = rows.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    rows.sort_unstable_by_key(|(index, _)| *index);
    rows.into_iter().map(|(_, row)| row).collect()
}

/// Runs one step in a process of its own; gives what it printed up to its last line, and its row.
fn apart(name: &'static str) -> (String, Row) {
    let failed = |note: String| {
        (String::new(), Row { name, verdict: Verdict::Failed, note, took: Duration::ZERO })
    };
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return failed(format!("the path of this program: {error}")),
    };
    let task = Task::new(program).args(["test", "--only", name]).limit(STEP_LIMIT_S);
    match task.run() {
        Err(error) => failed(format!("{error:#}")),
        Ok(ended) => match Row::read(name, &ended.output) {
            Some(row) => {
                let line = row.line();
                let end =
                    ended.output.rfind(&line).map_or(ended.output.len(), |at| at + line.len());
                (ended.output[..end].trim_start().to_owned(), row)
            }
            None => failed(format!("{}\n{}", ended.why(), ended.tail(30))),
        },
    }
}
