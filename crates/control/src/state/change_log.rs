//! The files of a state directory, as single operations: recovery, groups, checkpoints.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use uuid::Uuid;

use super::disk::{Disk, DiskFile};
use super::document::{DOCUMENT_FORMAT, Document, DocumentError};
use super::error::{StateError, is_full};
use super::format::{
    BLOCK_BYTES, GroupBuilder, HeaderError, LOG_FORMAT, SegmentHeader, has_groups, scan,
};
use super::{Configuration, Recovered};

/// Room reserved in the log beyond what is needed, so that most changes find room already reserved.
pub(super) const RESERVE_STEP_BYTES: u64 = 1 << 20;
/// As many bytes are zeroed at a time as the segment is filled with, but at least this number...
pub(super) const MIN_ZEROED_BYTES: u64 = 64 << 10;
/// ...and at most this number, because changes wait meanwhile. Some 250 small changes fill it.
const MAX_ZEROED_BYTES: u64 = 1 << 20;
/// Digits of the numbers in file names, so that names sort as numbers do.
const NUMBER_DIGITS: usize = 12;
/// The name under which a configuration is written before it is complete.
const UNFINISHED: &str = "config.unfinished";

/// The open log of a state directory.
pub(super) struct ChangeLog {
    disk: Arc<dyn Disk>,
    state: Uuid,
    segment: Box<dyn DiskFile>,
    segment_first: u64,
    /// Offset of the next group.
    end_bytes: u64,
    /// Offset up to which room is reserved; never less than `end_bytes`.
    reserved_to: u64,
    /// Offset up to which zeroes were written, or tried in vain.
    zeroed_to: u64,
    /// The number of the next change.
    next_sequence: u64,
}

/// Why a group has not been recorded.
#[derive(Debug)]
pub(super) enum AppendError {
    /// No room; nothing of the group is in the log, and the caller may retry.
    Full(io::Error),
    /// The log cannot be used any more.
    Failed(io::Error),
}

/// Writes checkpoints while the log goes on.
#[derive(Clone)]
pub(super) struct Checkpointer {
    disk: Arc<dyn Disk>,
    state: Uuid,
}

/// The files of a state directory by the number in their names.
#[derive(Default)]
struct Files {
    documents: BTreeMap<u64, String>,
    segments: BTreeMap<u64, String>,
}

impl ChangeLog {
    /// Reads a directory, repairs what a crash has left, and opens the log.
    pub(super) fn open(disk: Arc<dyn Disk>) -> Result<(Self, Recovered), StateError> {
        // A name given by a killed daemon may not be durable yet, but the code below relies on it.
        disk.sync_names().map_err(|error| failed(&*disk, "sync", "", &error))?;
        let files = Files::list(&*disk)?;
        let mut notes = Vec::new();
        let Some((&sequence, name)) = files.documents.last_key_value() else {
            return Self::begin(disk, &files);
        };
        let document = read_document(&*disk, name, sequence, &files)?;
        let mut recovered =
            Recovered { configuration: document.configuration, sequence, ..Recovered::default() };
        let log = Self::continue_log(&disk, document.state, &files, &mut recovered, &mut notes);
        let log = log?;
        // Leftovers of an interrupted checkpoint; if they cannot be removed they only take room.
        let _ = disk.remove(UNFINISHED);
        recovered.notes = notes;
        Ok((log, recovered))
    }

    /// The first start: writes an empty configuration, then a log that begins with change 1.
    fn begin(disk: Arc<dyn Disk>, files: &Files) -> Result<(Self, Recovered), StateError> {
        if let Some(name) = files.segments.values().next() {
            return Err(incomplete(
                &*disk,
                format!("there is {name}, but no config-N.json that it continues"),
                "Put the newest config-N.json back, or move all files away to begin anew.".into(),
            ));
        }
        let state = Uuid::new_v4();
        let checkpointer = Checkpointer { disk: Arc::clone(&disk), state };
        checkpointer.write(0, Configuration::default())?;
        let log = Self::create_segment(disk, state, 1);
        Ok((log.map_err(|(_, error)| error)?, Recovered::default()))
    }

    /// Reads the log from the change after the document's last, and opens its last segment.
    fn continue_log(
        disk: &Arc<dyn Disk>,
        state: Uuid,
        files: &Files,
        recovered: &mut Recovered,
        notes: &mut Vec<String>,
    ) -> Result<Self, StateError> {
        let first_needed = recovered.sequence + 1;
        let Some((&start, _)) = files.segments.range(..=first_needed).next_back() else {
            if recovered.sequence == 0 && files.segments.is_empty() {
                // The very first start was interrupted between its two files.
                let log = Self::create_segment(Arc::clone(disk), state, 1);
                return log.map_err(|(_, error)| error);
            }
            return Err(incomplete(
                &**disk,
                format!("the log that begins with change {first_needed} or before is missing"),
                format!(
                    "Put it back; or, to accept that changes after {} are lost, start an empty \
                     state directory from the configuration file (raceline serve -c FILE).",
                    recovered.sequence
                ),
            ));
        };
        let mut segments = files.segments.range(start..).peekable();
        let mut log = None;
        while let Some((&first, name)) = segments.next() {
            let next = segments.peek().map(|(first, _)| **first);
            let bytes = disk.read(name).map_err(|error| failed(&**disk, "read", name, &error))?;
            let header = match SegmentHeader::decode(&bytes) {
                // Never used: the header is durable before any group or configuration that relies on it is
                // written.
                Err(HeaderError::Invalid)
                    if next.is_none()
                        && (first > first_needed || first == 1)
                        && !has_groups(&bytes) =>
                {
                    notes.push(format!(
                        "{}: the daemon ended before this file was complete; it is begun anew",
                        disk.path().join(name).display()
                    ));
                    let made = Self::create_segment(Arc::clone(disk), state, first);
                    log = Some(made.map_err(|(_, error)| error)?);
                    continue;
                }
                Err(HeaderError::Invalid) => {
                    return Err(damaged(&**disk, name, 0, "its header is not valid"));
                }
                Err(HeaderError::Version(found)) => {
                    let file = disk.path().join(name);
                    return Err(StateError::Version { file, found, known: LOG_FORMAT });
                }
                Ok(header) => header,
            };
            if header != (SegmentHeader { state, first_sequence: first }) {
                let problem = format!(
                    "it says that it begins with change {} of state {}, but change {first} of \
                     state {state} is needed here",
                    header.first_sequence, header.state
                );
                return Err(damaged(&**disk, name, 0, &problem));
            }
            let scanned = scan(&bytes, first, next)
                .map_err(|damage| damaged(&**disk, name, damage.offset, &damage.problem))?;
            let last = first + scanned.changes.len() as u64 - 1;
            let skip = usize::try_from(first_needed.saturating_sub(first)).unwrap_or(usize::MAX);
            recovered.changes.extend(scanned.changes.into_iter().skip(skip));
            recovered.sequence = recovered.sequence.max(last);
            if next.is_none() {
                if last + 1 < first_needed {
                    let problem = format!(
                        "the log ends with change {last}, though the configuration contains change {}",
                        first_needed - 1
                    );
                    return Err(damaged(&**disk, name, scanned.end_bytes, &problem));
                }
                if scanned.torn_bytes > 0 {
                    notes.push(format!(
                        "{}: {} bytes at {} are a write that was interrupted; nothing in them was \
                         acknowledged, they are cut off",
                        disk.path().join(name).display(),
                        scanned.torn_bytes,
                        scanned.end_bytes
                    ));
                }
                let end = scanned.end_bytes as u64;
                log = Some(Self::open_segment(disk, state, name, first, last + 1, end)?);
            }
        }
        log.ok_or_else(|| incomplete(&**disk, "the log is missing".into(), "Put it back.".into()))
    }

    /// Opens a segment for writing after its last group.
    fn open_segment(
        disk: &Arc<dyn Disk>,
        state: Uuid,
        name: &str,
        segment_first: u64,
        next_sequence: u64,
        end_bytes: u64,
    ) -> Result<Self, StateError> {
        let io = |action: &'static str| {
            let disk = Arc::clone(disk);
            move |error: io::Error| failed(&*disk, action, name, &error)
        };
        let segment = disk.open(name).map_err(io("open"))?;
        segment.truncate(end_bytes).map_err(io("truncate"))?;
        // The code below relies on bytes that a killed daemon wrote but did not sync.
        segment.sync().map_err(io("sync"))?;
        let disk = Arc::clone(disk);
        Ok(Self {
            disk,
            state,
            segment,
            segment_first,
            end_bytes,
            reserved_to: end_bytes,
            zeroed_to: end_bytes,
            next_sequence,
        })
    }

    /// Creates the segment that begins with a change. An error also says whether the name is certainly
    /// gone, so that the log may go on without the segment.
    fn create_segment(
        disk: Arc<dyn Disk>,
        state: Uuid,
        first_sequence: u64,
    ) -> Result<Self, (bool, StateError)> {
        let name = segment_name(first_sequence);
        let made = disk.create(&name).and_then(|segment| {
            segment.write_at(0, &SegmentHeader { state, first_sequence }.encode())?;
            segment.sync()?;
            disk.sync_names()?;
            Ok(segment)
        });
        match made {
            Ok(segment) => Ok(Self {
                disk,
                state,
                segment,
                segment_first: first_sequence,
                end_bytes: BLOCK_BYTES as u64,
                reserved_to: BLOCK_BYTES as u64,
                zeroed_to: BLOCK_BYTES as u64,
                next_sequence: first_sequence,
            }),
            Err(error) => {
                let gone = disk.remove(&name).and_then(|()| disk.sync_names()).is_ok();
                Err((gone, failed(&*disk, "create", &name, &error)))
            }
        }
    }

    /// The number of the next change.
    pub(super) fn next_sequence(&self) -> u64 {
        self.next_sequence
    }

    /// Bytes of groups in the current segment.
    pub(super) fn segment_bytes(&self) -> u64 {
        self.end_bytes - BLOCK_BYTES as u64
    }

    /// Room that is reserved after the last group.
    pub(super) fn reserved_bytes(&self) -> u64 {
        self.reserved_to - self.end_bytes
    }

    /// Reserves room for at least `bytes`, and for more while there is plenty.
    pub(super) fn reserve(&mut self, bytes: u64) -> io::Result<()> {
        if self.reserved_bytes() >= bytes {
            return Ok(());
        }
        let mut length = bytes + RESERVE_STEP_BYTES;
        let mut result = self.segment.reserve(self.end_bytes, length);
        if result.as_ref().is_err_and(is_full) {
            // The disk is nearly full: only the room that is needed.
            length = bytes;
            result = self.segment.reserve(self.end_bytes, length);
        }
        match result {
            // Without reserving, a full disk is noticed only when the group is written.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {}
            other => other?,
        }
        self.reserved_to = self.end_bytes + length;
        Ok(())
    }

    /// Keeps zeroes ahead of the next group, in reserved room.
    ///
    /// A group that only overwrites blocks needs only a sync of these blocks: the file has its size and its
    /// blocks already. Otherwise each sync waits for the file system's own journal. Without zeroes, for
    /// example on a disk without room for them, the log grows with each group.
    ///
    /// # Errors
    /// When a sync fails: the log cannot be used any more.
    pub(super) fn write_ahead(&mut self) -> io::Result<()> {
        let from = self.zeroed_to.max(self.end_bytes);
        if from - self.end_bytes >= MIN_ZEROED_BYTES / 2 {
            return Ok(());
        }
        let length = self.segment_bytes().clamp(MIN_ZEROED_BYTES, MAX_ZEROED_BYTES);
        let to = self.reserved_to.min(from + length);
        // On a nearly full disk, a sync of zeroes for each group would cost more than it saves.
        if to < from + MIN_ZEROED_BYTES / 2 {
            return Ok(());
        }
        // Also if writing fails: the next attempt is made behind these bytes.
        self.zeroed_to = to;
        let synced = match self.segment.write_zeroes(from, to - from) {
            Ok(()) => self.segment.sync(),
            Err(error) => {
                tracing::debug!("the log grows without zeroes: {error}");
                Ok(())
            }
        };
        // If there was no room, only zeroes are lost.
        synced.or_else(|error| if is_full(&error) { Ok(()) } else { Err(error) })
    }

    /// Writes a group and makes it durable.
    pub(super) fn append(&mut self, group: &GroupBuilder) -> Result<(), AppendError> {
        let bytes = group.encode(self.next_sequence);
        if let Err(error) = self.segment.write_at(self.end_bytes, &bytes) {
            let cut = self.segment.truncate(self.end_bytes);
            self.reserved_to = self.end_bytes;
            self.zeroed_to = self.end_bytes;
            return match cut {
                Ok(()) if is_full(&error) => Err(AppendError::Full(error)),
                _ => Err(AppendError::Failed(error)),
            };
        }
        self.segment.sync().map_err(AppendError::Failed)?;
        self.end_bytes += bytes.len() as u64;
        self.reserved_to = self.reserved_to.max(self.end_bytes);
        self.next_sequence += u64::from(group.count());
        Ok(())
    }

    /// Begins a new segment with the next change, and reserves at least `bytes` in it. On failure the log
    /// goes on in the old segment, unless `false` comes with the error.
    pub(super) fn rotate(&mut self, bytes: u64) -> Result<(), (bool, StateError)> {
        if self.segment_first == self.next_sequence {
            return Ok(());
        }
        let disk = Arc::clone(&self.disk);
        let mut next = Self::create_segment(disk, self.state, self.next_sequence)?;
        if let Err(error) = next.reserve(bytes) {
            let name = segment_name(self.next_sequence);
            let removed = self.disk.remove(&name).and_then(|()| self.disk.sync_names());
            return Err((removed.is_ok(), failed(&*self.disk, "reserve room in", &name, &error)));
        }
        // Gives back room that was reserved but not used; if that fails, it stays reserved.
        let _ = self.segment.truncate(self.end_bytes);
        *self = next;
        Ok(())
    }

    /// The writer of checkpoints for this state.
    pub(super) fn checkpointer(&self) -> Checkpointer {
        Checkpointer { disk: Arc::clone(&self.disk), state: self.state }
    }
}

impl Checkpointer {
    /// Writes the configuration as it is after change `sequence`, and removes the files that
    /// neither it nor its predecessor needs. Gives the size of the file.
    ///
    /// The log must already go on in a segment that begins with the change after it.
    pub(super) fn write(
        &self,
        sequence: u64,
        configuration: Configuration,
    ) -> Result<u64, StateError> {
        let bytes = Document { state: self.state, sequence, configuration }.encode();
        let name = document_name(sequence);
        let io = |action, name| move |error: io::Error| failed(&*self.disk, action, name, &error);
        let written = self.disk.create(UNFINISHED).and_then(|file| {
            file.write_at(0, &bytes)?;
            file.sync()
        });
        if let Err(error) = written {
            // Frees room for the log, which matters more.
            let _ = self.disk.remove(UNFINISHED);
            return Err(failed(&*self.disk, "write", UNFINISHED, &error));
        }
        self.disk.rename(UNFINISHED, &name).map_err(io("rename to", &name))?;
        self.disk.sync_names().map_err(io("sync", ""))?;
        self.prune()?;
        Ok(bytes.len() as u64)
    }

    /// Keeps the newest two configurations and the log since the older of them.
    fn prune(&self) -> Result<(), StateError> {
        let files = Files::list(&*self.disk)?;
        let Some((&kept, _)) = files.documents.iter().rev().nth(1) else { return Ok(()) };
        let old_documents = files.documents.range(..kept).map(|(_, name)| name);
        // A segment ends where the next one begins.
        let pairs = files.segments.iter().zip(files.segments.keys().skip(1));
        let old_segments = pairs.filter(|(_, next)| **next <= kept + 1).map(|((_, name), _)| name);
        for name in old_documents.chain(old_segments) {
            self.disk.remove(name).map_err(|error| failed(&*self.disk, "remove", name, &error))?;
        }
        Ok(())
    }
}

impl Files {
    fn list(disk: &dyn Disk) -> Result<Self, StateError> {
        let names = disk.list().map_err(|error| failed(disk, "list", "", &error))?;
        let mut files = Self::default();
        for name in names {
            if let Some(number) = number_in(&name, "config-", ".json") {
                files.documents.insert(number, name);
            } else if let Some(number) = number_in(&name, "changes-", ".log") {
                files.segments.insert(number, name);
            }
        }
        Ok(files)
    }
}

/// The number in a file name of the form that this module gives; `None` for other names.
fn number_in(name: &str, prefix: &str, suffix: &str) -> Option<u64> {
    let digits = name.strip_prefix(prefix)?.strip_suffix(suffix)?;
    let number = digits.parse().ok()?;
    (format!("{number:0NUMBER_DIGITS$}") == digits).then_some(number)
}

fn document_name(sequence: u64) -> String {
    format!("config-{sequence:0NUMBER_DIGITS$}.json")
}

fn segment_name(first_sequence: u64) -> String {
    format!("changes-{first_sequence:0NUMBER_DIGITS$}.log")
}

/// Reads the newest configuration; if it is damaged, the error says how to go back.
fn read_document(
    disk: &dyn Disk,
    name: &str,
    sequence: u64,
    files: &Files,
) -> Result<Document, StateError> {
    let bytes = disk.read(name).map_err(|error| failed(disk, "read", name, &error))?;
    let file = disk.path().join(name);
    let (offset, problem) = match Document::decode(&bytes) {
        Ok(document) if document.sequence == sequence => return Ok(document),
        Ok(document) => (0, format!("it contains changes up to {}", document.sequence)),
        Err(DocumentError::Version(found)) => {
            return Err(StateError::Version { file, found, known: DOCUMENT_FORMAT });
        }
        Err(DocumentError::Damaged { offset, problem }) => (offset, problem),
    };
    let previous = files.documents.range(..sequence).next_back();
    // What the message promises has to be true: a failing disk may have damaged both.
    let is_whole = |name: &str, sequence: u64| {
        let document = disk.read(name).ok().and_then(|bytes| Document::decode(&bytes).ok());
        document.is_some_and(|document| document.sequence == sequence)
    };
    let complete = previous
        .filter(|(previous, _)| files.segments.range(..=**previous + 1).next_back().is_some())
        .filter(|(previous, name)| is_whole(name, **previous));
    let remedy = match complete {
        Some((_, previous)) => format!(
            "Move {name} away and start again: {previous} and the log after it hold the same state"
        ),
        None => "Restore it from a copy, or move all files away to begin anew".into(),
    };
    let offset = offset as u64;
    Err(StateError::Damaged { file, offset, problem, remedy })
}

fn failed(disk: &dyn Disk, action: &'static str, name: &str, error: &io::Error) -> StateError {
    let file = if name.is_empty() { disk.path().to_owned() } else { disk.path().join(name) };
    StateError::Io { action, file, reason: error.to_string() }
}

fn damaged(disk: &dyn Disk, name: &str, offset: usize, problem: &str) -> StateError {
    StateError::Damaged {
        file: disk.path().join(name),
        offset: offset as u64,
        problem: problem.to_owned(),
        remedy: "The disk may be failing. Restore the directory from a copy; or, to accept that \
                 this and all later changes are lost, start an empty state directory from the \
                 newest config-N.json (raceline serve -c FILE)"
            .into(),
    }
}

fn incomplete(disk: &dyn Disk, problem: String, remedy: String) -> StateError {
    let dir: PathBuf = disk.path().to_owned();
    StateError::Incomplete { dir, problem, remedy }
}
