//! Steps that run two at a time, each in a process of its own, so that their lines do not mix.

use std::sync::Mutex;
use std::time::Duration;

use super::{Row, Step, Verdict};
use crate::child::Task;

/// Steps that run at the same time.
const AT_A_TIME: usize = 2;
/// Time for one step, in seconds; each has closer limits of its own.
const STEP_LIMIT_S: u64 = 3600;

/// Runs the steps, each as soon as a place is free; gives the rows in the order of the steps.
pub(super) fn run(steps: &[Step<'_>]) -> Vec<Row> {
    let names: Vec<&'static str> = steps.iter().map(|step| step.name).collect();
    println!("\n=== {AT_A_TIME} at a time, each shown when it has ended: {}", names.join(", "));
    let queue = Mutex::new(names.into_iter().enumerate());
    let rows = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                loop {
                    let next = lock(&queue).next();
                    let Some((index, name)) = next else { break };
                    let (output, row) = apart(name);
                    let mut rows = lock(&rows);
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

/// A panic of the other thread leaves whole values.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
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
