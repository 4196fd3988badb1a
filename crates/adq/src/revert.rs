//! Giving everything back: in reverse order, as often as needed, and nothing that someone else has set since.

use std::path::Path;

use serde::Serialize;

use crate::apply::set;
use crate::error::{Error, Result};
use crate::facts::{Facts, read};
use crate::guard;
use crate::journal::{Entry, Journal, Progress, Store, boot};
use crate::machine::Machine;
use crate::setting::{NO_QUEUE, Setting};

/// What became of a setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// It has its value of before again.
    Restored {
        /// The value.
        to: String,
    },
    /// It had its value of before already.
    Unchanged,
    /// Someone has changed it since, so it was left.
    Left {
        /// Its value before the recipe.
        before: String,
        /// The recipe's value.
        set: String,
        /// The value now.
        now: String,
    },
    /// Another interface's recipe needs it too, and gives it back later.
    HandedOver {
        /// That interface.
        interface: String,
    },
    /// It went with its interface.
    Gone(String),
    /// It could not be given back.
    Failed(String),
}

/// What a revert did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reverted {
    /// The interface's name now, if there still is one.
    pub interface: Option<String>,
    /// Its name when the recipe was applied.
    pub applied_to: String,
    /// Each setting, in the order of the plan.
    pub settings: Vec<(Setting, Fate)>,
}

impl Reverted {
    /// Settings that could not be given back.
    pub fn failures(&self) -> impl Iterator<Item = (&Setting, &str)> {
        self.settings.iter().filter_map(|(setting, fate)| match fate {
            Fate::Failed(reason) => Some((setting, reason.as_str())),
            _ => None,
        })
    }
}

/// Gives back what a journal says. Without a journal there is nothing to do.
///
/// # Errors
/// Without root; when the journal cannot be read; in another network namespace than the recipe's.
pub fn revert(
    machine: &mut dyn Machine,
    store: &mut dyn Store,
    force: bool,
) -> Result<Option<Reverted>> {
    guard::privileges(machine)?;
    let Some(journal) = store.load()? else { return Ok(None) };
    let interface = locate(machine, &journal, force)?;
    let mut facts = match &interface {
        Some(name) => read::read(machine, name)?,
        None => Facts::default(),
    };
    let (mut own, handed) = hand_over(journal.clone(), store)?;
    if interface.is_none() {
        own.entries.retain(|entry| entry.setting.is_global());
    }
    let done = undo(machine, &mut facts, &own, force);
    let fate = |entry: &Entry| {
        let find = |list: &[(Setting, Fate)]| {
            list.iter().find(|(setting, _)| *setting == entry.setting).map(|(_, fate)| fate.clone())
        };
        let gone =
            || Fate::Gone(format!("{} is gone, and its settings with it", journal.interface));
        (entry.setting.clone(), find(&done).or_else(|| find(&handed)).unwrap_or_else(gone))
    };
    let settings = journal.entries.iter().map(fate).collect();
    let reverted = Reverted { interface, applied_to: journal.interface.clone(), settings };
    if reverted.failures().next().is_none() {
        store.remove()?;
    }
    Ok(Some(reverted))
}

/// The interface's name now: a new name keeps the number, and another interface has another number.
///
/// # Errors
/// In another network namespace than the recipe's, unless forced.
pub fn locate(machine: &dyn Machine, journal: &Journal, force: bool) -> Result<Option<String>> {
    let same_boot = boot(machine) == journal.boot;
    let here = machine.link(Path::new("/proc/self/ns/net"));
    let here = here.map(|link| link.display().to_string()).unwrap_or_default();
    if same_boot && here != journal.network_namespace && !force {
        return Err(Error::Refused(format!(
            "the recipe of {} was applied in the network namespace {}, and this is {here}: run it there \
             (`ip netns exec`), or with --force if that namespace is gone",
            journal.interface, journal.network_namespace
        )));
    }
    let names = machine.list(Path::new("/sys/class/net"));
    let has_number = |name: &&String| {
        let text = machine.read(&read::folder(name).join("ifindex")).unwrap_or_default();
        text.parse() == Ok(journal.ifindex)
    };
    Ok(if same_boot {
        names.iter().find(has_number).cloned()
    } else {
        names.into_iter().find(|name| *name == journal.interface)
    })
}

/// Leaves settings of the machine to other recipes that rely on them, together with their values of before.
fn hand_over(mut own: Journal, store: &dyn Store) -> Result<(Journal, Vec<(Setting, Fate)>)> {
    let mut handed = Vec::new();
    for (mut other, mut theirs) in store.others() {
        let mut changed = false;
        own.entries.retain(|entry| {
            let same = |other: &&mut Entry| other.setting == entry.setting;
            let relies = entry.setting.is_global() && entry.progress == Progress::Done;
            match other.entries.iter_mut().find(same).filter(|_| relies) {
                None => true,
                Some(their) => {
                    their.before.clone_from(&entry.before);
                    changed = true;
                    let interface = other.interface.clone();
                    handed.push((entry.setting.clone(), Fate::HandedOver { interface }));
                    false
                }
            }
        });
        if changed {
            theirs.save(&other)?;
        }
    }
    Ok((own, handed))
}

/// What is to happen to a setting.
enum Verdict {
    /// It gets its value of before.
    Restore,
    /// It keeps this value, which someone else set.
    Keep(String),
    /// It is none of ours.
    Ignore,
    /// It cannot be read.
    Unreadable(String),
}

/// Gives back what the journal's steps did. The list has each setting that was touched.
fn undo(
    machine: &mut dyn Machine,
    facts: &mut Facts,
    journal: &Journal,
    force: bool,
) -> Vec<(Setting, Fate)> {
    let lost = queues_were_lost(machine, facts, journal);
    let verdicts: Vec<Verdict> = journal
        .entries
        .iter()
        .map(|entry| judge(machine, facts, journal, entry, lost, force))
        .collect();
    let mut fates: Vec<Fate> = journal.entries.iter().map(|_| Fate::Unchanged).collect();
    let steps = journal.entries.iter().zip(&verdicts).enumerate().rev();
    for (at, (entry, verdict)) in steps {
        if matches!(verdict, Verdict::Restore) && entry.step.is_some() {
            fates[at] = restore(machine, facts, &entry.setting, &entry.before);
        }
    }
    // What was given back last may have cleared what was given back first, and what was no step.
    for (at, (entry, verdict)) in journal.entries.iter().zip(&verdicts).enumerate() {
        match verdict {
            Verdict::Restore => {
                let again = restore(machine, facts, &entry.setting, &entry.before);
                if again != Fate::Unchanged || matches!(fates[at], Fate::Failed(_)) {
                    fates[at] = again;
                }
            }
            Verdict::Keep(now) => {
                let kept = if entry.setting.is_cleared_with_queues() {
                    restore(machine, facts, &entry.setting, now)
                } else {
                    Fate::Unchanged
                };
                let set = entry.after.clone().or_else(|| entry.wanted.clone()).unwrap_or_default();
                fates[at] = match kept {
                    Fate::Failed(reason) => Fate::Failed(reason),
                    _ => Fate::Left { before: entry.before.clone(), set, now: now.clone() },
                };
            }
            Verdict::Ignore => {}
            Verdict::Unreadable(reason) => fates[at] = Fate::Failed(reason.clone()),
        }
    }
    let settings = journal.entries.iter().map(|entry| entry.setting.clone());
    settings.zip(fates).collect()
}

/// Whether the traffic classes have gone without us, and with them what hangs on the queues.
fn queues_were_lost(machine: &dyn Machine, facts: &mut Facts, journal: &Journal) -> bool {
    journal.entries.iter().any(|entry| {
        entry.setting == Setting::RootQdisc
            && entry.progress == Progress::Done
            && entry.setting.read(machine, facts).ok() != entry.after
    })
}

fn judge(
    machine: &dyn Machine,
    facts: &mut Facts,
    journal: &Journal,
    entry: &Entry,
    lost: bool,
    force: bool,
) -> Verdict {
    let cleared = entry.setting.is_cleared_with_queues();
    // What came with a channel goes with the channel.
    if (entry.progress == Progress::Waiting && !cleared) || entry.before == NO_QUEUE {
        return Verdict::Ignore;
    }
    let now = match entry.setting.read(machine, facts) {
        Ok(now) => now,
        // A queue that is only watched may come back with the channels.
        Err(_) if cleared => return Verdict::Restore,
        Err(error) => return Verdict::Unreadable(error.to_string()),
    };
    let known = now == entry.before || Some(&now) == entry.after.as_ref();
    let unfinished = !journal.complete && entry.progress != Progress::Done;
    if known || unfinished || force || (lost && cleared) {
        Verdict::Restore
    } else {
        Verdict::Keep(now)
    }
}

/// Brings a setting to a value if it has another one, and reads it back.
fn restore(machine: &mut dyn Machine, facts: &mut Facts, setting: &Setting, to: &str) -> Fate {
    match setting.read(machine, facts) {
        Ok(now) if now == to => return Fate::Unchanged,
        Ok(_) => {}
        Err(error) => return Fate::Failed(error.to_string()),
    }
    let done = set(machine, facts, setting, to).and_then(|()| setting.read(machine, facts));
    match done {
        Ok(now) if now == to => Fate::Restored { to: now },
        Ok(now) => Fate::Failed(format!("{to} was written, and {now} is read back")),
        Err(error) => Fate::Failed(error.to_string()),
    }
}
