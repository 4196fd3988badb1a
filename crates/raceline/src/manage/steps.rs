//! A plan for a daemon: calls that are made one after the other or not at all, and remarks about what they cannot do.

use serde_json::{Value, json};

use super::Daemon;
use crate::cli::values::OutputFormat;
use crate::failure::Failure;
use crate::shell;
use crate::table::printable;

/// A call of the daemon.
pub(super) struct Step {
    /// What it makes, without secrets.
    pub(super) what: String,
    pub(super) method: &'static str,
    /// May have secrets.
    pub(super) params: Value,
    /// The call that takes it back.
    pub(super) undo: Option<(&'static str, Value)>,
}

/// What is to be done.
#[derive(Default)]
pub(super) struct Plan {
    /// In this order.
    pub(super) steps: Vec<Step>,
    /// What is not the same afterwards.
    pub(super) remarks: Vec<String>,
}

impl Plan {
    /// Makes the calls. If the daemon refuses one, those before it are taken back.
    pub(super) fn carry_out(&self, daemon: &mut Daemon) -> Result<(), Failure> {
        for (place, step) in self.steps.iter().enumerate() {
            let Err(failure) = daemon.call(step.method, step.params.clone()) else { continue };
            let mut left = Vec::new();
            for done in self.steps[..place].iter().rev() {
                let Some((method, params)) = &done.undo else { continue };
                if daemon.call(method, params.clone()).is_err() {
                    left.push(done.what.as_str());
                }
            }
            let then = match left.is_empty() {
                true => "nothing was imported".to_owned(),
                false => {
                    format!("these are there now, and could not be removed: {}", left.join("; "))
                }
            };
            let text = format!("{}: {}; {then}", step.what, failure.message);
            return Err(Failure::runtime(printable(&text)));
        }
        Ok(())
    }

    /// Prints what was done, or would be.
    pub(super) fn report(&self, output: OutputFormat, dry_run: bool) -> Result<(), Failure> {
        let steps: Vec<&str> = self.steps.iter().map(|step| step.what.as_str()).collect();
        let text = match output {
            OutputFormat::Json => {
                let report = json!({ "dry_run": dry_run, "steps": steps, "remarks": self.remarks });
                format!("{report:#}\n")
            }
            OutputFormat::Table => {
                let mut text = String::new();
                for step in steps {
                    let begin = if dry_run { "would make" } else { "made" };
                    text.push_str(&printable(&format!("{begin} {step}")));
                    text.push('\n');
                }
                for remark in &self.remarks {
                    text.push_str(&printable(&format!("not the same: {remark}")));
                    text.push('\n');
                }
                text
            }
        };
        shell::print(text.as_bytes())
    }
}
