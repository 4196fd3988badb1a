//! Runs `ip` and `tc`, which make and change links.

use std::io::{self, ErrorKind};
use std::process::{Command, Stdio};

/// Why a command did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// The program is not there, or cannot be run.
    #[error("cannot run {program}: {error}: install the package iproute2")]
    Missing {
        /// Its name.
        program: &'static str,
        /// The reason.
        error: io::Error,
    },
    /// The program refused.
    #[error("{command}: {output}")]
    Refused {
        /// The command line.
        command: String,
        /// What it said, in one line.
        output: String,
    },
}

/// Runs the program in the namespace of the calling thread; gives what it printed.
pub(super) fn run(program: &'static str, words: &[&str]) -> Result<String, ProgramError> {
    // Also where PATH has no administrators' folders.
    let found = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"]
        .iter()
        .map(|folder| std::path::Path::new(folder).join(program))
        .find(|path| path.exists());
    let mut command = found.map_or_else(|| Command::new(program), Command::new);
    let output = command
        .args(words)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| ProgramError::Missing { program, error })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = [&output.stderr[..], &output.stdout[..]].concat();
    let said = String::from_utf8_lossy(&said);
    Err(ProgramError::Refused {
        command: format!("{program} {}", words.join(" ")),
        output: said.split_whitespace().collect::<Vec<_>>().join(" "),
    })
}

impl From<ProgramError> for io::Error {
    fn from(error: ProgramError) -> Self {
        let kind = match &error {
            ProgramError::Missing { .. } => ErrorKind::NotFound,
            ProgramError::Refused { .. } => ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}
