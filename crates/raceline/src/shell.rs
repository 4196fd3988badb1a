//! Completion scripts and manual pages, generated from the command line's definition.

use std::io::{self, Write};
use std::path::Path;

use clap_complete::Shell;
use clap_complete::env::{Bash, Elvish, EnvCompleter, Fish, Powershell, Zsh};

use crate::cli::letters;
use crate::cli::{CompletionsArgs, ManArgs};
use crate::failure::Failure;

/// The program's name for shells.
const NAME: &str = "raceline";
/// The environment variable in which a completion script names its shell.
const VARIABLE: &str = "COMPLETE";

/// `raceline completions SHELL`.
pub(crate) fn completions(args: &CompletionsArgs) -> Result<(), Failure> {
    let mut script = Vec::new();
    let shell: &dyn EnvCompleter = match args.shell {
        Shell::Bash => &Bash,
        Shell::Elvish => &Elvish,
        Shell::Fish => &Fish,
        Shell::PowerShell => &Powershell,
        Shell::Zsh => &Zsh,
        other => return Err(Failure::usage(format!("no completions for {other}"))),
    };
    // The script asks this program, which asks the daemon for existing names.
    let registered = shell.write_registration(VARIABLE, NAME, NAME, NAME, &mut script);
    registered.map_err(Failure::runtime)?;
    print(&script)
}

/// `raceline man [DIR]`.
pub(crate) fn man(args: &ManArgs) -> Result<(), Failure> {
    match &args.dir {
        None => {
            let mut page = Vec::new();
            let rendered = clap_mangen::Man::new(letters::definition()).render(&mut page);
            rendered.map_err(Failure::runtime)?;
            print(&page)
        }
        Some(dir) => write_pages(dir).map_err(|error| {
            Failure::runtime(format!("cannot write manual pages to {}: {error}", dir.display()))
        }),
    }
}

fn write_pages(dir: &Path) -> io::Result<()> {
    std::fs::create_dir_all(dir)?;
    clap_mangen::generate_to(letters::definition(), dir)
}

/// Prints to standard output; a reader that closes the pipe early (`| head`) is no failure.
pub(crate) fn print(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(|error| Failure::runtime(format!("cannot write output: {error}"))),
    }
}

/// Prints for people on standard error. A program with cores does not wait for who reads it.
pub(crate) fn tell(text: &str) {
    crate::log::print(text, std::time::Duration::from_secs(1));
}

/// Tells users something that is neither output nor a failure.
pub(crate) fn note(text: &str) {
    tell(&format!("raceline: {}\n", crate::failure::one_line(text)));
}
