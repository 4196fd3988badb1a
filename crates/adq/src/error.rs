//! What can go wrong while a device is looked at, set or given back.

use std::io;
use std::path::PathBuf;

/// Why the work ended. Each text says what was wrong, where, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The name is not one of an interface.
    #[error(
        "there is no interface {name} here: `ip link` lists those of this network namespace ({others})"
    )]
    NoInterface {
        /// The name that was asked for.
        name: String,
        /// The names that there are.
        others: String,
    },
    /// A name that cannot be an interface's.
    #[error(
        "{0:?} cannot be the name of an interface: a name has 1 to 15 characters, without / and blanks"
    )]
    BadName(String),
    /// A file of the kernel could not be read or written.
    #[error("{what} {}: {source}", path.display())]
    File {
        /// The attempt, as in `cannot write 3 to`.
        what: String,
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A program that is needed is not installed.
    #[error(
        "the program {program} is not installed: install the package {package} (Debian's name), then try again"
    )]
    NoProgram {
        /// The program.
        program: String,
        /// The package that has it.
        package: &'static str,
    },
    /// A program could not be started, or said no.
    #[error("`{command}` failed: {reason}")]
    Program {
        /// The command line.
        command: String,
        /// What it printed, or how it ended.
        reason: String,
    },
    /// The output of a program is not what it should be.
    #[error("the output of `{command}` is not understood: {reason}")]
    Output {
        /// The command line.
        command: String,
        /// The reason.
        reason: String,
    },
    /// A setting reads back as another value than was written.
    #[error(
        "{setting}: {wanted:?} was written, and {found:?} is read back: the driver took another value"
    )]
    ReadBack {
        /// The setting.
        setting: String,
        /// What was written.
        wanted: String,
        /// What is there.
        found: String,
    },
    /// What a step needs is not there at the time it is made.
    #[error("{0}")]
    Missing(String),
    /// The recipe must not be applied here.
    #[error("{0}")]
    Refused(String),
    /// The request cannot be met.
    #[error("{0}")]
    Request(String),
    /// The journal could not be read or written.
    #[error("the journal {}: {reason}", path.display())]
    Journal {
        /// Its file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// A step failed, and everything before it was given back.
    #[error(
        "step {number} ({setting}) failed, and what was set before it was given back: {source}"
    )]
    RolledBack {
        /// Number of the step, from 1.
        number: usize,
        /// What it sets.
        setting: String,
        /// Why it failed.
        source: Box<Error>,
    },
    /// A step failed, and so did giving back.
    #[error(
        "step {number} ({setting}) failed: {source}. Not everything could be given back: {left}. Run \
         `raceline adq revert` when the cause is gone"
    )]
    Stuck {
        /// Number of the step, from 1.
        number: usize,
        /// What it sets.
        setting: String,
        /// Why it failed.
        source: Box<Error>,
        /// What was not given back, and why.
        left: String,
    },
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
