//! What has become of an applied recipe: in place, lost, or changed by someone else.

use serde::Serialize;

use crate::error::Result;
use crate::facts::{Facts, read};
use crate::journal::{Journal, Progress};
use crate::machine::Machine;
use crate::revert::locate;
use crate::setting::Setting;

/// One setting, compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    /// It has the recipe's value.
    InPlace,
    /// It has its value of before again, without a revert.
    Lost,
    /// It has another value.
    Changed,
    /// Its step was begun, and nobody knows whether it was done.
    Begun,
    /// Its step was not reached.
    NotReached,
    /// It cannot be read.
    Unreadable,
}

/// A line of the comparison.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Line {
    /// The setting.
    pub setting: String,
    /// Its value before.
    pub before: String,
    /// The recipe's value.
    pub wanted: String,
    /// Its value now.
    pub now: Option<String>,
    /// What this means.
    pub condition: Condition,
}

/// The comparison.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Shown {
    /// The interface's name now, if there still is one.
    pub interface: Option<String>,
    /// Its name when the recipe was applied.
    pub applied_to: String,
    /// Whether every step was done.
    pub complete: bool,
    /// Each step's setting.
    pub settings: Vec<Line>,
}

impl Shown {
    /// Whether everything is as the recipe left it.
    pub fn is_in_place(&self) -> bool {
        let good = |line: &Line| line.condition == Condition::InPlace;
        self.complete && self.interface.is_some() && self.settings.iter().all(good)
    }
}

/// Compares a journal with what there is.
///
/// # Errors
/// In another network namespace than the recipe's.
pub fn show(machine: &dyn Machine, journal: &Journal) -> Result<Shown> {
    let interface = locate(machine, journal, false)?;
    let mut facts = match &interface {
        Some(name) => read::read(machine, name)?,
        None => Facts::default(),
    };
    let steps = journal.entries.iter().filter(|entry| entry.step.is_some());
    let settings = steps
        .map(|entry| {
            let wanted = entry.wanted.clone().unwrap_or_default();
            let now = current(machine, &mut facts, &entry.setting, interface.is_some());
            let condition = match (&now, entry.progress) {
                (None, _) => Condition::Unreadable,
                (_, Progress::Waiting) => Condition::NotReached,
                (_, Progress::Begun) => Condition::Begun,
                (Some(now), _) if *now == wanted => Condition::InPlace,
                (Some(now), _) if *now == entry.before => Condition::Lost,
                _ => Condition::Changed,
            };
            let (setting, before) = (entry.setting.to_string(), entry.before.clone());
            Line { setting, before, wanted, now, condition }
        })
        .collect();
    let (applied_to, complete) = (journal.interface.clone(), journal.complete);
    Ok(Shown { interface, applied_to, complete, settings })
}

fn current(
    machine: &dyn Machine,
    facts: &mut Facts,
    setting: &Setting,
    has_interface: bool,
) -> Option<String> {
    if has_interface || setting.is_global() { setting.read(machine, facts).ok() } else { None }
}
