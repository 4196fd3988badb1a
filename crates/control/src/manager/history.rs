//! The last changes of the configuration: what was changed, when, by whom, and how to go back.
//!
//! Each change keeps the records that it made and those that would undo them. The configuration before a
//! change is the present one with the undoing records of this change and all later ones. The list is bounded
//! in number and bytes, and the oldest change is forgotten first. A file in the state directory keeps the
//! list over restarts. It is written soon after a change and replaced whole: a crash may lose the last
//! second of the list, but never a change of the configuration itself.
//!
//! The undoing records mean something only for the configuration to which the list leads. So the file has the
//! digest of that configuration. Where a daemon starts with another one, the list is cut: its changes are
//! shown, but nothing leads back over them.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::catalogue::{Catalogue, Key, Record};
use super::{Manager, Phase, lock};

/// The most changes that are kept.
pub const MOST_CHANGES: usize = 256;
/// The most bytes of records that are kept. A change that alone has more is kept without its records.
const MOST_BYTES: usize = 4 << 20;
/// The largest file that is read: the bytes of the records with what is around them.
const MOST_FILE_BYTES: u64 = 16 << 20;
/// How long changes are gathered before the file is written.
const GATHER: Duration = Duration::from_secs(1);
/// Only the owner may read the file: records may hold secrets of CHAP.
const FILE_MODE: u32 = 0o600;

thread_local! {
    /// The call that this thread makes.
    static CALLER: RefCell<Option<Caller>> = const { RefCell::new(None) };
}

/// Who asked for a change, and by which call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Caller {
    /// How the call came: `socket`, `http`, or `raceline` for the program itself.
    pub via: String,
    /// The user.
    pub uid: u32,
    /// The process; 0 if unknown.
    pub pid: i32,
    /// The method.
    pub method: String,
    /// Its parameters, secrets masked, cut to a line.
    pub params: String,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Past {
    /// Its number: later changes have higher ones.
    pub number: u64,
    /// When it was made, in seconds since 1970.
    pub time_s: u64,
    /// Who asked for it; the program itself does some changes unasked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caller: Option<Caller>,
    /// What it made and removed: `+ bdev / Malloc0`.
    pub effects: Vec<String>,
    /// What would undo it; `None` if it was too large to be kept.
    #[serde(default)]
    pub undo: Option<Vec<Record>>,
    /// The size of what would undo it.
    #[serde(default)]
    bytes: usize,
}

/// Why there is no way back to before a change.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoWayBack {
    /// Nothing has been changed yet.
    #[error("nothing has been changed since the list of changes began")]
    Empty,
    /// The number is not in the list.
    #[error("change {number} is not kept: the list has the changes {first} to {last}")]
    Unknown {
        /// The number.
        number: u64,
        /// The oldest that is kept.
        first: u64,
        /// The newest.
        last: u64,
    },
    /// The change, or a later one, was too large.
    #[error("change {0} was too large to be kept, so there is no way back to before it")]
    TooLarge(u64),
    /// The configuration is not the one to which the list led.
    #[error(
        "after change {0} the configuration has been changed in a way that the list of changes does not have (a crash \
         lost the end of the list, or a start added to the configuration), so there is no way back to before change {0} or \
         an earlier one"
    )]
    Cut(u64),
}

/// The last changes.
#[derive(Default)]
pub struct History {
    file: Option<PathBuf>,
    list: Mutex<List>,
    /// Held while the file is written: that may last until the next thread wants to.
    writing: Mutex<()>,
}

#[derive(Debug, Default)]
struct List {
    changes: VecDeque<Past>,
    bytes: usize,
    /// The number of the last change ever.
    last: u64,
    /// Nothing leads back over the changes up to this number.
    cut: u64,
    /// The digest of the configuration after the last change, if it is known.
    after: Option<u64>,
    /// A thread is about to write the file.
    is_saving: bool,
    is_unsaved: bool,
}

/// What the file holds.
#[derive(Default, Serialize, Deserialize)]
struct Document<C> {
    last: u64,
    #[serde(default)]
    cut: u64,
    #[serde(default)]
    after: Option<u64>,
    changes: C,
}

/// Does some work whose changes this caller has asked for.
pub(crate) fn called_by<T>(caller: Caller, work: impl FnOnce() -> T) -> T {
    /// Restores the outer caller, also when the work panics.
    struct Outer(Option<Caller>);
    impl Drop for Outer {
        fn drop(&mut self) {
            let outer = self.0.take();
            CALLER.with_borrow_mut(|caller| *caller = outer);
        }
    }
    let _outer = Outer(CALLER.replace(Some(caller)));
    work()
}

impl History {
    /// The list in a file. A file that cannot be read is left behind, with a warning: only the list is lost.
    pub(super) fn open(file: Option<PathBuf>) -> Self {
        let list = file.as_deref().map(List::load).unwrap_or_default();
        Self { file, list: Mutex::new(list), writing: Mutex::default() }
    }

    /// The changes that are kept, oldest first.
    #[must_use]
    pub fn changes(&self) -> Vec<Past> {
        lock(&self.list).changes.iter().cloned().collect()
    }

    /// Notes a change that led to a configuration with this digest. Gives whether the caller has to have the list saved.
    fn note(&self, LookedBack { effects, undo }: LookedBack, after: u64) -> bool {
        let time_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let caller = CALLER.with_borrow(Clone::clone);
        let mut list = lock(&self.list);
        let number = list.last + 1;
        let bytes = serde_json::to_vec(&undo).map_or(MOST_BYTES + 1, |text| text.len());
        let undo = (bytes <= MOST_BYTES).then_some(undo);
        let bytes = if undo.is_some() { bytes } else { 0 };
        list.push(Past { number, time_s, caller, effects, undo, bytes });
        list.after = Some(after);
        list.is_unsaved = true;
        self.file.is_some() && !std::mem::replace(&mut list.is_saving, true)
    }

    /// The records that lead back to before a change, in the order in which they are applied; by default, before the
    /// last one.
    ///
    /// # Errors
    /// When the list does not reach so far.
    fn way_back(&self, number: Option<u64>) -> Result<(u64, Vec<Record>), NoWayBack> {
        let list = lock(&self.list);
        let (first, last) = match (list.changes.front(), list.changes.back()) {
            (Some(first), Some(last)) => (first.number, last.number),
            _ => return Err(NoWayBack::Empty),
        };
        let number = number.unwrap_or(last);
        if !(first..=last).contains(&number) {
            return Err(NoWayBack::Unknown { number, first, last });
        }
        let mut way = Vec::new();
        for past in list.changes.iter().rev().take_while(|past| past.number >= number) {
            if past.number <= list.cut {
                return Err(NoWayBack::Cut(list.cut));
            }
            let undo = past.undo.as_ref().ok_or(NoWayBack::TooLarge(past.number))?;
            way.extend(undo.iter().cloned());
        }
        Ok((number, way))
    }

    /// Has nothing lead back over the changes so far.
    fn cut(&self) {
        let mut list = lock(&self.list);
        if list.cut == list.last {
            return;
        }
        list.cut = list.last;
        list.changes.iter_mut().for_each(|past| (past.undo, past.bytes) = (None, 0));
        list.bytes = 0;
        list.is_unsaved = true;
    }

    /// Writes the file, if anything has changed since the last time.
    pub(super) fn save(&self) {
        let Some(file) = &self.file else { return };
        let _one_at_a_time = lock(&self.writing);
        let text = {
            let mut list = lock(&self.list);
            list.is_saving = false;
            if !std::mem::take(&mut list.is_unsaved) {
                return;
            }
            let List { last, cut, after, changes, .. } = &*list;
            serde_json::to_vec(&Document { last: *last, cut: *cut, after: *after, changes })
        };
        if let Err(error) = text.map_err(io::Error::from).and_then(|text| replace(file, &text)) {
            lock(&self.list).is_unsaved = true;
            tracing::warn!(
                "the list of the last changes cannot be written to {}: {error}. The configuration is kept all the \
                 same; after a restart, config log lacks these changes",
                file.display()
            );
        }
    }
}

impl List {
    fn load(file: &Path) -> Self {
        let read = || -> io::Result<Self> {
            let size = std::fs::metadata(file)?.len();
            if size > MOST_FILE_BYTES {
                return Err(io::Error::other(format!("{size} bytes are too many")));
            }
            let document: Document<Vec<Past>> = serde_json::from_slice(&std::fs::read(file)?)?;
            let mut list = Self::default();
            document.changes.into_iter().for_each(|past| list.push(past));
            list.last = list.last.max(document.last);
            (list.cut, list.after) = (document.cut, document.after);
            Ok(list)
        };
        match read() {
            Ok(list) => list,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::default(),
            Err(error) => {
                tracing::warn!(
                    "{}: {error}. The list of the last changes begins anew; the configuration is not concerned",
                    file.display()
                );
                Self::default()
            }
        }
    }

    fn push(&mut self, past: Past) {
        self.last = self.last.max(past.number);
        self.bytes = self.bytes.saturating_add(past.bytes);
        self.changes.push_back(past);
        while self.changes.len() > MOST_CHANGES || self.bytes > MOST_BYTES {
            let Some(oldest) = self.changes.pop_front() else { return };
            self.bytes = self.bytes.saturating_sub(oldest.bytes);
        }
    }
}

/// Replaces a file whole or not at all.
fn replace(file: &Path, text: &[u8]) -> io::Result<()> {
    let unfinished = file.with_extension("unfinished");
    let mut options = File::options();
    let options = options.write(true).create(true).truncate(true).mode(FILE_MODE);
    let mut new = options.open(&unfinished)?;
    new.write_all(text)?;
    new.sync_all()?;
    std::fs::rename(&unfinished, file)?;
    match file.parent() {
        Some(directory) => File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}

/// What records do to a catalogue.
pub(super) struct LookedBack {
    /// What they make, remove and change, as text; nothing for records without effect.
    effects: Vec<String>,
    /// The records that undo them.
    undo: Vec<Record>,
}

fn look_back(catalogue: &Catalogue, records: &[Record]) -> LookedBack {
    let mut now = Cow::Borrowed(catalogue);
    // What undoes the records is gathered from its end on: the last effect is undone first.
    let (mut effects, mut undo) = (Vec::new(), Vec::new());
    for (index, record) in records.iter().enumerate() {
        let backwards: Vec<Record> = match record {
            Record::Put { key, entry } => match now.get(key) {
                Some(before) if before == entry => continue,
                Some(before) => {
                    effects.push(format!("~ {key:?}"));
                    vec![Record::Put { key: key.clone(), entry: before.clone() }]
                }
                None => {
                    effects.push(format!("+ {key:?}"));
                    // The removal also takes what it owns, which may have been there before it.
                    let mut backwards = vec![Record::Remove { key: key.clone() }];
                    backwards.extend(owned_by(&now, key));
                    backwards
                }
            },
            Record::Remove { key } => {
                let owned = owned_by(&now, key);
                if owned.is_empty() {
                    continue;
                }
                effects.push(format!("- {key:?}"));
                owned
            }
        };
        // The last one needs no look at what comes after it: most changes have one record.
        if index + 1 < records.len() {
            now.to_mut().apply(record.clone());
        }
        undo.extend(backwards.into_iter().rev());
    }
    undo.reverse();
    LookedBack { effects, undo }
}

/// The records that make an entry and all that it owns, in the order in which they were made.
fn owned_by(catalogue: &Catalogue, key: &Key) -> Vec<Record> {
    let owned = catalogue.owned(key).into_iter();
    owned.map(|(key, entry)| Record::Put { key: key.clone(), entry: entry.clone() }).collect()
}

impl Manager {
    /// The last changes.
    #[must_use]
    pub fn history(&self) -> &History {
        &self.history
    }

    /// The configuration as it was before a change (by default: the last one), and the number of that change.
    ///
    /// # Errors
    /// When the list of changes does not reach so far.
    pub fn configuration_before(&self, number: Option<u64>) -> Result<(u64, Catalogue), NoWayBack> {
        // No change is between the list and the catalogue.
        let _in_order = self.keeping.hold_order();
        let (number, way) = self.history.way_back(number)?;
        let mut catalogue = self.model().catalogue.clone();
        way.into_iter().for_each(|record| catalogue.apply(record));
        Ok((number, catalogue))
    }

    /// Looks at the records of a change before they are applied to the catalogue. Gives nothing if they have no effect.
    pub(super) fn look_back(&self, records: &[Record]) -> Option<LookedBack> {
        if records.is_empty() {
            return None;
        }
        let looked_back = look_back(&self.model().catalogue, records);
        (!looked_back.effects.is_empty()).then_some(looked_back)
    }

    /// Notes a change whose records have been applied to the catalogue. What is made at the start is no change, and is
    /// what was there before as a rule; nothing leads back over what was not.
    pub(super) fn note_change(&self, looked_back: Option<LookedBack>) {
        let Some(looked_back) = looked_back else { return };
        if self.phase() != Phase::Runtime {
            self.history.cut();
            return;
        }
        let after = self.model().catalogue.digest();
        if !self.history.note(looked_back, after) {
            return;
        }
        let (history, end) = (Arc::clone(&self.history), Arc::clone(&self.threads.end));
        let save = move || {
            end.wait(GATHER);
            history.save();
        };
        if self.threads.spawn("history", save).is_err() {
            // The next change tries again, and so does the end.
            lock(&self.history.list).is_saving = false;
        }
    }

    /// Cuts the list if it does not lead to this configuration, with which the daemon starts. `is_whole`: earlier
    /// releases, which have not written where the list leads, had time to write the end of the list.
    pub(crate) fn check_history(&self, kept: &Catalogue, is_whole: bool) {
        let (last, after, is_cut) = {
            let list = lock(&self.history.list);
            (list.last, list.after, list.cut == list.last)
        };
        if is_cut || after.map_or(is_whole, |after| after == kept.digest()) {
            return;
        }
        tracing::warn!(
            "the list of the last changes does not lead to the present configuration, or not for certain, so nothing leads \
             back over its changes up to number {last}: the end of the list was not written (a crash, or an earlier \
             release has handed over), or other files are in the state directory than before. The configuration is not \
             concerned"
        );
        self.history.cut();
    }

    /// Writes the list down now, as leading to the present configuration: this process makes no more changes.
    pub(crate) fn save_history(&self) {
        let after = Some(self.model().catalogue.digest());
        {
            let mut list = lock(&self.history.list);
            list.is_unsaved |= list.last > 0 && list.after != after;
            list.after = after;
        }
        self.history.save();
    }
}

#[cfg(test)]
mod tests;
