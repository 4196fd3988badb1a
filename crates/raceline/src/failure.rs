//! The failure of a verb: one line for users, one exit code for scripts.

use std::fmt;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use raceline_control::hand_over::TakeOverError;

use crate::cli::letters;
use crate::log;

/// Exit codes, as docs/manual.md lists them.
pub(crate) mod code {
    /// Something failed while running.
    pub(crate) const RUNTIME: u8 = 1;
    /// The command line is wrong.
    pub(crate) const USAGE: u8 = 2;
    /// The target cannot be reached, or refused the connection.
    pub(crate) const CONNECT: u8 = 3;
    /// Data read are not the data written.
    pub(crate) const MISMATCH: u8 = 4;
    /// A daemon of another form of state refuses a take-over: only a restart leads to this version. The packages' scripts look for
    /// it.
    pub(crate) const OTHER_FORM: u8 = 5;
    /// Ended by a signal: this plus the signal's number, as in shells.
    pub(crate) const SIGNAL: u8 = 128;
}

/// Why a verb failed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The exit code of the process.
    pub(crate) code: u8,
    /// What was wrong, where, and what to do.
    pub(crate) message: String,
}

impl Failure {
    /// Something failed while running.
    pub(crate) fn runtime(message: impl fmt::Display) -> Self {
        Self { code: code::RUNTIME, message: message.to_string() }
    }

    /// The command line is wrong.
    pub(crate) fn usage(message: impl fmt::Display) -> Self {
        Self { code: code::USAGE, message: message.to_string() }
    }

    /// The target cannot be reached, or refused the connection.
    pub(crate) fn connect(message: impl fmt::Display) -> Self {
        Self { code: code::CONNECT, message: message.to_string() }
    }

    /// Data read are not the data written.
    pub(crate) fn mismatch(message: impl fmt::Display) -> Self {
        Self { code: code::MISMATCH, message: message.to_string() }
    }

    /// A take-over has failed, and the daemon goes on if it still runs.
    pub(crate) fn take_over(error: &TakeOverError) -> Self {
        let code = match error {
            TakeOverError::OtherForm(_) => code::OTHER_FORM,
            _ => code::RUNTIME,
        };
        Self { code, message: error.to_string() }
    }

    /// A signal ended the work before it was done.
    pub(crate) fn signal(signal: i32) -> Self {
        let number = u8::try_from(signal).unwrap_or(0);
        Self { code: code::SIGNAL.saturating_add(number), message: "interrupted".to_owned() }
    }

    /// Prints the line to standard error and gives the exit code.
    pub(crate) fn report(&self) -> ExitCode {
        log::last_line(&format!("raceline: {}", one_line(&self.message)));
        ExitCode::from(self.code)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// The text in one line: scripts read errors line by line.
pub(crate) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// An error of the command line parser in one line: what is wrong, and where the help is. `words` is the
/// command line.
pub(crate) fn usage_line(error: &clap::Error, words: &[String]) -> String {
    let text = error.render().to_string();
    let end = ["\n\nUsage:", "\n\nFor more information"]
        .into_iter()
        .filter_map(|marker| text.find(marker))
        .min()
        .unwrap_or(text.len());
    let message = one_line(text[..end].trim_start_matches("error:"));
    let command = letters::definition();
    let verb = words.iter().skip(1).find(|word| command.find_subcommand(word).is_some());
    let verb = verb.map_or(String::new(), |verb| format!(" {verb}"));
    let advice = if lacks_kind_of_disk(error) { AS_ADVICE } else { "" };
    format!("{message}{advice} (see raceline{verb} --help)")
}

/// What a line of nvme-cli lacks, which makes a block device of the kernel in its own way.
const AS_ADVICE: &str = ": add --as nbd (a server), --as ublk (/dev/ublkbN) or --as vhost-user (a virtual machine); to have a \
    daemon connect, use raceline connect-all";

/// Whether it is missing what `connect` is to make.
fn lacks_kind_of_disk(error: &clap::Error) -> bool {
    let Some(ContextValue::Strings(missing)) = error.get(ContextKind::InvalidArg) else {
        return false;
    };
    error.kind() == ErrorKind::MissingRequiredArgument
        && missing.iter().any(|argument| argument.starts_with("--as "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_joined() {
        assert_eq!(one_line("  a\n  b\t c\n"), "a b c");
    }

    #[test]
    fn signals_exit_as_shells_do() {
        assert_eq!(Failure::signal(signal_hook::consts::SIGINT).code, 130);
        assert_eq!(Failure::signal(signal_hook::consts::SIGTERM).code, 143);
    }
}
