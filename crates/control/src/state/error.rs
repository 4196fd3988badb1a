//! Why state cannot be read or written: what was wrong, where, and what to do.

use std::io;
use std::path::PathBuf;

/// An error of the state directory.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StateError {
    /// A file operation failed.
    #[error("cannot {action} {}: {reason}", file.display())]
    Io {
        /// The operation that was tried, such as "read".
        action: &'static str,
        /// The file or directory.
        file: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// Other users may write to the state directory.
    #[error(
        "{} may be written by others (mode {mode:o}): whoever can write it rules the target; \
         chmod go-w {}",
        dir.display(), dir.display()
    )]
    Permissions {
        /// The directory.
        dir: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Another daemon uses this directory.
    #[error(
        "{} is in use by another raceline (process {holder}): stop it, or give each daemon a \
         --state-dir of its own",
        dir.display()
    )]
    Locked {
        /// The directory.
        dir: PathBuf,
        /// The other's process id, as far as it is known.
        holder: String,
    },
    /// A file does not hold the bytes that were written to it. Nothing of the state has been used.
    #[error("{} is damaged at byte {offset}: {problem}; nothing was started. {remedy}", file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// Where in the file.
        offset: u64,
        /// What is wrong there.
        problem: String,
        /// What to do.
        remedy: String,
    },
    /// The files do not belong together.
    #[error("the state in {} is incomplete: {problem}; nothing was started. {remedy}", dir.display())]
    Incomplete {
        /// The directory.
        dir: PathBuf,
        /// What is missing.
        problem: String,
        /// What to do.
        remedy: String,
    },
    /// The file was written by a newer version of this program.
    #[error(
        "{} has format {found}, this program knows format {known}: use the version of raceline \
         that wrote it, or a newer one",
        file.display()
    )]
    Version {
        /// The file.
        file: PathBuf,
        /// The format found.
        found: u32,
        /// The newest format known.
        known: u32,
    },
    /// There is no room for the change; the change has not been made.
    #[error(
        "no room in {} to record the change ({reason}): the change was refused, nothing has \
         changed; make room and try again",
        dir.display()
    )]
    Full {
        /// The directory.
        dir: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// The disk became full although room had been reserved.
    #[error(
        "no room in {} to record the change ({reason}): it is in effect now but not on disk; it \
         is written, and changes are taken again, as soon as there is room",
        dir.display()
    )]
    Behind {
        /// The directory.
        dir: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// The log could not be written or synced: the content of the disk is unknown until it is read again.
    #[error(
        "the state in {} is read-only since a write failed ({reason}): changes are refused until \
         the daemon is restarted; check the disk first",
        dir.display()
    )]
    ReadOnly {
        /// The directory.
        dir: PathBuf,
        /// What failed.
        reason: String,
    },
    /// A change is larger than the log takes.
    #[error("a change of {bytes} bytes is too large to record: the limit is {limit} bytes")]
    TooLarge {
        /// The size of the change.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
}

/// Whether the system reported a full disk, which may pass.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}
