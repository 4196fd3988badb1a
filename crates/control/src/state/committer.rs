//! The thread that writes the log: all changes appended during one write become the next group.

use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::Configuration;
use super::change_log::{AppendError, ChangeLog, RESERVE_STEP_BYTES};
use super::error::StateError;
use super::format::{GROUP_TARGET_BYTES, GroupBuilder};
use super::store::{Done, ENDED, Entry, Health, Queue, Shared};

/// If less unpromised room than this is left, more is reserved before a caller waits for it.
const RESERVE_AHEAD_BYTES: u64 = RESERVE_STEP_BYTES / 2;
/// How often to look for room while changes wait for it.
const FULL_RETRY: Duration = Duration::from_secs(1);

/// The only owner of the log.
pub(super) struct Committer {
    shared: Arc<Shared>,
    log: ChangeLog,
    /// The thread that writes a checkpoint while the log goes on.
    checkpoint: Option<JoinHandle<()>>,
}

/// Work for the committer.
struct Work {
    /// Entries for the next group, or one checkpoint.
    entries: Vec<Entry>,
    /// Room to reserve.
    wanted_bytes: u64,
    /// The last request for room that this answers.
    request: u64,
}

impl Committer {
    pub(super) fn new(shared: Arc<Shared>, log: ChangeLog) -> Self {
        Self { shared, log, checkpoint: None }
    }

    /// Runs until the store is dropped and everything is written.
    pub(super) fn run(mut self) {
        while let Some(work) = self.next_work() {
            let mut written = true;
            if !work.entries.is_empty() {
                written = self.do_entries(work.entries);
            }
            // While changes wait for room, other callers get none.
            let refusal = if written { self.reserve(work.wanted_bytes) } else { None };
            let mut queue = self.shared.lock();
            queue.refusal = refusal;
            queue.answers = work.request;
            drop(queue);
            self.shared.answered.notify_all();
        }
    }

    /// Waits for work; `None` at the end.
    fn next_work(&mut self) -> Option<Work> {
        let shared = Arc::clone(&self.shared);
        let mut queue = shared.lock();
        loop {
            let asked = queue.requests > queue.answers;
            let full = matches!(queue.health, Health::Full(_));
            let ready = !queue.entries.is_empty() && (!full || asked);
            if asked || ready || queue.stop {
                break;
            }
            if queue.entries.is_empty() {
                queue = shared.wait(queue, &shared.work);
            } else {
                let waited = shared.work.wait_timeout(queue, FULL_RETRY);
                let (woken, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
                queue = woken;
                if timeout.timed_out() {
                    break;
                }
            }
        }
        if queue.stop && (queue.entries.is_empty() || queue.health != Health::Good) {
            return None;
        }
        let entries = take_entries(&mut queue);
        let wanted_bytes = std::mem::take(&mut queue.wanted_bytes);
        Some(Work { entries, wanted_bytes, request: queue.requests })
    }

    /// Handles the entries; `false` if they still wait for room.
    fn do_entries(&mut self, entries: Vec<Entry>) -> bool {
        if let Some(Entry::Checkpoint { .. }) = entries.first() {
            for entry in entries {
                if let Entry::Checkpoint { configuration, done } = entry {
                    self.begin_checkpoint(configuration, done);
                }
            }
            return true;
        }
        let mut group = GroupBuilder::default();
        for entry in &entries {
            if let Entry::Changes { encoded, count, .. } = entry {
                group.push(encoded, *count);
            }
        }
        let before = self.log.segment_bytes();
        match self.log.append(&group) {
            Ok(()) => {
                let mut queue = self.shared.lock();
                if queue.health != Health::Good {
                    tracing::warn!("{}: there is room again", self.shared.dir.display());
                    queue.health = Health::Good;
                }
                queue.checkpoints.log_bytes += self.log.segment_bytes() - before;
                queue.reserved_bytes = self.log.reserved_bytes();
                queue.promised_bytes -= entries.iter().map(Entry::room_bytes).sum::<u64>();
                queue.durable_sequence = self.log.next_sequence() - 1;
                drop(queue);
                // Answered before more room is reserved, which may take long.
                self.shared.answered.notify_all();
                true
            }
            Err(AppendError::Full(error)) => {
                self.fall_behind(entries, &error.to_string());
                false
            }
            Err(AppendError::Failed(error)) => {
                let mut queue = self.shared.lock();
                queue.promised_bytes -= entries.iter().map(Entry::room_bytes).sum::<u64>();
                drop(queue);
                self.fail(&error.to_string());
                true
            }
        }
    }

    /// The disk is full although room was reserved: the changes stay at the head of the queue, and their
    /// callers get an error.
    fn fall_behind(&mut self, entries: Vec<Entry>, reason: &str) {
        let mut queue = self.shared.lock();
        if queue.health == Health::Good {
            let (dir, reason) = (self.shared.dir.clone(), reason.to_owned());
            tracing::error!("{}", StateError::Behind { dir, reason });
        }
        queue.health = Health::Full(reason.to_owned());
        queue.reserved_bytes = self.log.reserved_bytes();
        for entry in entries.into_iter().rev() {
            queue.entries.push_front(entry);
        }
        drop(queue);
        self.shared.answered.notify_all();
    }

    /// Ends all writing.
    fn fail(&self, reason: &str) {
        tracing::error!("{}", self.shared.read_only(reason));
        self.shared.end(reason);
    }

    /// Reserves the wanted room, and some room ahead, and zeroes it; gives the reason if the wanted room is
    /// refused.
    fn reserve(&mut self, wanted_bytes: u64) -> Option<String> {
        let promised_bytes = self.shared.lock().promised_bytes;
        let needed_bytes = wanted_bytes.max(promised_bytes);
        let result = self.log.reserve(needed_bytes + RESERVE_AHEAD_BYTES);
        let result = result.or_else(|_| self.log.reserve(needed_bytes));
        if let Err(error) = self.log.write_ahead() {
            self.fail(&error.to_string());
        }
        self.shared.lock().reserved_bytes = self.log.reserved_bytes();
        let reason = result.err()?.to_string();
        if wanted_bytes > 0 {
            tracing::error!("{}: no room for changes: {reason}", self.shared.dir.display());
        }
        Some(reason)
    }

    /// Lets the log go on in a new segment, and writes the configuration beside it.
    fn begin_checkpoint(&mut self, configuration: Configuration, done: Done) {
        if let Some(earlier) = self.checkpoint.take() {
            // The thread reports its own failures.
            let _ = earlier.join();
        }
        let mut queue = self.shared.lock();
        // Callers that ask for room from now on wait until the room of the new segment is known.
        queue.reserved_bytes = queue.promised_bytes;
        let promised_bytes = queue.promised_bytes;
        drop(queue);
        let rotated = self.log.rotate(promised_bytes);
        let mut queue = self.shared.lock();
        queue.reserved_bytes = self.log.reserved_bytes();
        let log_bytes = std::mem::take(&mut queue.checkpoints.log_bytes);
        drop(queue);
        if let Err((can_go_on, error)) = rotated {
            self.shared.end_checkpoint(log_bytes, Err(error.clone()), done);
            if !can_go_on {
                self.fail(&error.to_string());
            }
            return;
        }
        let shared = Arc::clone(&self.shared);
        let checkpointer = self.log.checkpointer();
        let sequence = self.log.next_sequence() - 1;
        let write = move || {
            let written = checkpointer.write(sequence, configuration);
            shared.end_checkpoint(log_bytes, written, done);
        };
        let thread = std::thread::Builder::new().name("raceline-checkpoint".into()).spawn(write);
        // If no thread could start, `done` has been dropped with the closure, which its waiters notice.
        match thread {
            Ok(thread) => self.checkpoint = Some(thread),
            Err(error) => {
                tracing::warn!("cannot start a thread to write the configuration: {error}");
                let mut queue = self.shared.lock();
                queue.checkpoints.running = false;
                queue.checkpoints.log_bytes += log_bytes;
                queue.checkpoints.failed_at = Some(Instant::now());
            }
        }
    }
}

impl Drop for Committer {
    fn drop(&mut self) {
        if let Some(checkpoint) = self.checkpoint.take() {
            // The thread reports its own failures.
            let _ = checkpoint.join();
        }
        // Also when this thread panics: otherwise callers would wait in vain.
        self.shared.end(ENDED);
    }
}

impl Shared {
    /// Refuses further changes, and wakes every waiting caller.
    fn end(&self, reason: &str) {
        let mut queue = self.lock();
        if !matches!(queue.health, Health::ReadOnly(_)) {
            queue.health = Health::ReadOnly(reason.to_owned());
        }
        queue.answers = queue.requests;
        let entries: Vec<Entry> = queue.entries.drain(..).collect();
        queue.promised_bytes -= entries.iter().map(Entry::room_bytes).sum::<u64>();
        drop(queue);
        self.answered.notify_all();
        if !entries.is_empty() {
            let dir = self.dir.display();
            tracing::error!("{dir}: {} changes were not acknowledged and not kept", entries.len());
        }
        for entry in entries {
            if let Entry::Checkpoint { done, .. } = entry {
                done(Err(self.read_only(reason)));
            }
        }
    }

    fn end_checkpoint(&self, log_bytes: u64, written: Result<u64, StateError>, done: Done) {
        let mut queue = self.lock();
        let checkpoints = &mut queue.checkpoints;
        checkpoints.running = false;
        match &written {
            Ok(document_bytes) => {
                checkpoints.after_start = false;
                checkpoints.document_bytes = *document_bytes;
                checkpoints.failed_at = None;
            }
            Err(error) => {
                tracing::warn!("no checkpoint, the log goes on: {error}");
                checkpoints.log_bytes += log_bytes;
                checkpoints.failed_at = Some(Instant::now());
            }
        }
        drop(queue);
        done(written.map(|_| ()));
    }
}

impl Entry {
    fn room_bytes(&self) -> u64 {
        match self {
            Self::Changes { room_bytes, .. } => *room_bytes,
            Self::Checkpoint { .. } => 0,
        }
    }
}

/// Takes the changes for one group from the head of the queue, or the checkpoint there.
fn take_entries(queue: &mut Queue) -> Vec<Entry> {
    let mut entries = Vec::new();
    let mut group_bytes = 0;
    while let Some(entry) = queue.entries.front() {
        match entry {
            Entry::Checkpoint { .. } if entries.is_empty() => {
                entries.extend(queue.entries.pop_front());
                break;
            }
            Entry::Changes { encoded, .. }
                if entries.is_empty() || group_bytes + encoded.len() < GROUP_TARGET_BYTES =>
            {
                group_bytes += encoded.len() + 1;
                entries.extend(queue.entries.pop_front());
            }
            _ => break,
        }
    }
    entries
}
