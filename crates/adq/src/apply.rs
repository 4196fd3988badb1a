//! Applying a plan: journal, change, read back, step after step; the first failure gives everything back.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::facts::Facts;
use crate::guard;
use crate::journal::{Entry, Journal, Progress, Store, already};
use crate::machine::Machine;
use crate::plan::{Plan, State, Step};
use crate::revert::{Fate, revert};
use crate::setting::{NO_QUEUE, Setting, Use};

/// What is told about each step before it is made; an answer of false gives everything back.
pub type Observer<'a> = &'a mut dyn FnMut(usize, &Step) -> bool;

/// Applies a plan.
///
/// # Errors
/// When it is refused, then nothing was changed. When a step fails, then what was changed was given back, or
/// the journal is still there.
pub fn apply(
    machine: &mut dyn Machine,
    facts: &Facts,
    plan: &Plan,
    store: &mut dyn Store,
    ssh: Option<&str>,
    observer: Observer<'_>,
) -> Result<Journal> {
    guard::privileges(machine)?;
    // An applied recipe explains most other objections, so it is named first.
    if store.load()?.is_some() {
        return Err(already(store.path()));
    }
    guard::check(machine, facts, plan, ssh)?;
    let mut facts = facts.clone();
    let mut journal = Journal::new(machine, &facts);
    journal.entries = snapshot(machine, &mut facts, plan)?;
    store.create(&journal)?;
    for at in 0..journal.entries.len() {
        let Some((number, step)) = to_do(plan, &journal.entries[at]) else { continue };
        let made = if observer(number, step) {
            make(machine, &mut facts, &mut journal, at, step, store)
        } else {
            Err(Error::Missing("it was interrupted".to_owned()))
        };
        if let Err(source) = made {
            return Err(roll_back(machine, store, (number, step), source));
        }
    }
    if let Err((at, source)) = settle(machine, &mut facts, &mut journal, store) {
        let number = journal.entries[at].step.unwrap_or(1);
        let step = &plan.steps[number - 1];
        return Err(roll_back(machine, store, (number, step), source));
    }
    Ok(journal)
}

/// The step of an entry, if it is to be made.
fn to_do<'a>(plan: &'a Plan, entry: &Entry) -> Option<(usize, &'a Step)> {
    let number = entry.step?;
    let step = &plan.steps[number - 1];
    (step.state == State::Do).then_some((number, step))
}

/// The values of everything that is going to change, and of what the machine shares with other recipes.
fn snapshot(machine: &dyn Machine, facts: &mut Facts, plan: &Plan) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for (number, step) in (1..).zip(&plan.steps) {
        let shared = step.state == State::Already && step.setting.is_global();
        if step.state != State::Do && !shared {
            continue;
        }
        let before = match step.setting.read(machine, facts) {
            Err(_) if step.current.is_none() && step.setting.queue().is_some() => {
                NO_QUEUE.to_owned()
            }
            read => read?,
        };
        entries.push(Entry {
            step: Some(number),
            setting: step.setting.clone(),
            after: shared.then(|| before.clone()),
            before,
            wanted: Some(step.wanted.clone()),
            progress: if shared { Progress::Done } else { Progress::Waiting },
        });
    }
    for setting in &plan.watched {
        let before = setting.read(machine, facts)?;
        let progress = Progress::Waiting;
        let setting = setting.clone();
        entries.push(Entry { step: None, setting, before, wanted: None, after: None, progress });
    }
    Ok(entries)
}

fn make(
    machine: &mut dyn Machine,
    facts: &mut Facts,
    journal: &mut Journal,
    at: usize,
    step: &Step,
    store: &mut dyn Store,
) -> Result<()> {
    journal.entries[at].progress = Progress::Begun;
    store.save(journal)?;
    set(machine, facts, &step.setting, &step.wanted)?;
    if step.pause_ms > 0 {
        machine.pause(Duration::from_millis(step.pause_ms));
    }
    let found = step.setting.read(machine, facts)?;
    if found != step.wanted {
        let (setting, wanted) = (step.setting.to_string(), step.wanted.clone());
        return Err(Error::ReadBack { setting, wanted, found });
    }
    let entry = &mut journal.entries[at];
    (entry.after, entry.progress) = (Some(found), Progress::Done);
    store.save(journal)
}

/// Brings a setting to a value. Its part of the facts must be up to date, and is not afterwards.
pub(crate) fn set(
    machine: &mut dyn Machine,
    facts: &mut Facts,
    setting: &Setting,
    to: &str,
) -> Result<()> {
    // Numbers of rules and tables are those of this moment.
    setting.read(machine, facts)?;
    for change in setting.changes(facts, to, Use::Perform)? {
        change.perform(machine)?;
    }
    Ok(())
}

/// Looks at everything once more: a step may have undone one before it.
fn settle(
    machine: &dyn Machine,
    facts: &mut Facts,
    journal: &mut Journal,
    store: &mut dyn Store,
) -> std::result::Result<(), (usize, Error)> {
    for at in 0..journal.entries.len() {
        let entry = &mut journal.entries[at];
        match (entry.setting.read(machine, facts), &entry.wanted) {
            (Ok(found), Some(wanted)) if found != *wanted => {
                let (setting, wanted) = (entry.setting.to_string(), wanted.clone());
                return Err((at, Error::ReadBack { setting, wanted, found }));
            }
            (Ok(found), _) => (entry.after, entry.progress) = (Some(found), Progress::Done),
            (Err(error), Some(_)) => return Err((at, error)),
            // The queue is not there any more, so there is nothing to compare later.
            (Err(_), None) => entry.progress = Progress::Done,
        }
    }
    journal.complete = true;
    let last = journal.entries.len().saturating_sub(1);
    store.save(journal).map_err(|error| (last, error))
}

fn roll_back(
    machine: &mut dyn Machine,
    store: &mut dyn Store,
    (number, step): (usize, &Step),
    source: Error,
) -> Error {
    let (setting, source) = (step.setting.to_string(), Box::new(source));
    let left = match revert(machine, store, false) {
        Ok(reverted) => {
            let settings = reverted.into_iter().flat_map(|reverted| reverted.settings);
            let left = settings.filter_map(|(setting, fate)| match fate {
                Fate::Failed(reason) => Some(format!("{setting}: {reason}")),
                Fate::Left { now, .. } => {
                    Some(format!("{setting} is {now}, which someone else set"))
                }
                _ => None,
            });
            left.collect::<Vec<_>>().join("; ")
        }
        Err(error) => error.to_string(),
    };
    if left.is_empty() {
        Error::RolledBack { number, setting, source }
    } else {
        Error::Stuck { number, setting, source, left }
    }
}
