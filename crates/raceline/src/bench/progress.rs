//! The progress of an experiment.

use std::fmt::Display;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::failure::Failure;
use crate::shell;
use crate::signals::Interrupt;

/// Measures cases one after another, under a bar that names the present one. `measure` looks whether it is to stop;
/// `rows` gives what is printed of a point, if anything is. Gives the points.
pub(super) fn measure_each<C: Copy + Display, P>(
    cases: &[C],
    interrupt: &Interrupt,
    mut measure: impl FnMut(C, &dyn Fn() -> bool) -> Result<P, Failure>,
    rows: impl Fn(&P) -> Option<String>,
) -> Result<Vec<P>, Failure> {
    let bar = bar(cases.len());
    let mut points = Vec::with_capacity(cases.len());
    for &case in cases {
        bar.set_message(case.to_string());
        let point = measure(case, &|| interrupt.requested().is_some());
        if let Some(signal) = interrupt.requested() {
            return Err(Failure::signal(signal));
        }
        let point = point?;
        if let Some(rows) = rows(&point) {
            bar.suspend(|| shell::print(rows.as_bytes()))?;
        }
        points.push(point);
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(points)
}

/// A line on standard error that shows the progress, if that is a terminal.
pub(super) fn bar(points: usize) -> ProgressBar {
    let target = ProgressDrawTarget::stderr();
    let bar = ProgressBar::with_draw_target(Some(points as u64), target);
    if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos} of {len}, {msg}") {
        bar.set_style(style);
    }
    bar
}
