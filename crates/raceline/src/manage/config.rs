//! `raceline config`: the whole configuration of a daemon, saved, compared, restored and cleared.

mod past;

use std::fs::File;
use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use raceline_control::client::ClientError;
use raceline_control::client::config::{self, ConfigError};
use raceline_control::configuration;
use raceline_control::error::code;
use raceline_control::reconcile::{Contents, Difference, Step};
use raceline_control::state::SubsystemConfig;
use serde_json::{Value, json};

use super::{Daemon, failure, names};
use crate::cli::manage::{ConfigArgs, ConfigVerb};
use crate::cli::values::OutputFormat;
use crate::failure::Failure;
use crate::shell;
use crate::table::printable;

/// Only the owner may read a saved configuration, because it contains names of devices and hosts.
const FILE_MODE: u32 = 0o600;
/// The largest file that is read.
const FILE_LIMIT_BYTES: u64 = 256 << 20;

/// Runs the verb.
pub(crate) fn run(args: &ConfigArgs) -> Result<(), Failure> {
    if let ConfigVerb::Diff { file, with: Some(with) } = &args.verb {
        return diff(&compared(with)?, &compared(file)?, args.daemon.output);
    }
    let mut daemon = Daemon::connect(&args.daemon)?;
    match &args.verb {
        ConfigVerb::Save { file } => save(&mut daemon, file.as_deref()),
        ConfigVerb::Restore { file, dry_run } => restore(&mut daemon, file, *dry_run),
        ConfigVerb::Diff { file, .. } => {
            diff(&running(&mut daemon)?, &compared(file)?, daemon.output)
        }
        ConfigVerb::Log { last } => past::log(&mut daemon, *last),
        ConfigVerb::Undo { number, dry_run, yes } => {
            past::undo(&mut daemon, *number, past::Manner { dry_run: *dry_run, yes: *yes })
        }
        ConfigVerb::Clear { yes } => clear(&mut daemon, *yes),
    }
}

/// The running configuration.
pub(super) fn running(daemon: &mut Daemon) -> Result<Contents, Failure> {
    let saved = saved(daemon)?;
    Contents::parse(saved.to_string().as_bytes())
        .map_err(|error| Failure::runtime(format!("what the daemon says of itself: {error}")))
}

fn saved(daemon: &mut Daemon) -> Result<Value, Failure> {
    config::save(&mut daemon.connection, None, false).map_err(|error| match error {
        config::ConfigError::Client(error) => failure(error),
        other => Failure::runtime(other),
    })
}

fn read(file: &Path) -> Result<Contents, Failure> {
    let (name, bytes) = read_bytes(file)?;
    Contents::parse(&bytes).map_err(|error| Failure::runtime(format!("{name}: {error}")))
}

/// The name of a file in messages, and its content.
fn read_bytes(file: &Path) -> Result<(String, Vec<u8>), Failure> {
    let is_input = file == Path::new("-");
    let name = if is_input { "standard input".into() } else { file.display().to_string() };
    let failed = |error: &dyn std::fmt::Display| Failure::runtime(format!("{name}: {error}"));
    let mut bytes = Vec::new();
    let source: Box<dyn io::Read> = match is_input {
        true => Box::new(io::stdin()),
        false => Box::new(File::open(file).map_err(|error| failed(&error))?),
    };
    let read = source.take(FILE_LIMIT_BYTES + 1).read_to_end(&mut bytes);
    if read.map_err(|error| failed(&error))? as u64 > FILE_LIMIT_BYTES {
        return Err(failed(&"it is larger than 256 MiB"));
    }
    Ok((name, bytes))
}

/// Reads a file for a comparison: an unreadable file has another exit code than a difference.
fn compared(file: &Path) -> Result<Contents, Failure> {
    read(file).map_err(|failure| Failure::usage(failure.message))
}

fn save(daemon: &mut Daemon, file: Option<&Path>) -> Result<(), Failure> {
    let text = format!("{:#}\n", saved(daemon)?);
    let Some(file) = file.filter(|file| *file != Path::new("-")) else {
        return shell::print(text.as_bytes());
    };
    replace(file, text.as_bytes())
        .map_err(|error| Failure::runtime(format!("cannot write {}: {error}", file.display())))
}

/// Replaces a file whole or not at all, even if power is lost.
fn replace(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let directory = match file.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let name = file.file_name().ok_or(io::ErrorKind::IsADirectory)?;
    let mut unfinished = name.to_owned();
    unfinished.push(format!(".{}.unfinished", std::process::id()));
    let unfinished: PathBuf = directory.join(unfinished);
    let written = (|| {
        let mut options = File::options();
        let mut new = options.write(true).create_new(true).mode(FILE_MODE).open(&unfinished)?;
        new.write_all(bytes)?;
        new.sync_all()?;
        std::fs::rename(&unfinished, file)?;
        File::open(directory)?.sync_all()
    })();
    if written.is_err() {
        // The file may not exist; the error that matters is reported.
        let _ = std::fs::remove_file(&unfinished);
    }
    written
}

fn diff(is: &Contents, wanted: &Contents, output: OutputFormat) -> Result<(), Failure> {
    let differences = is.differences(wanted);
    let text = match output {
        OutputFormat::Json => format!("{:#}\n", document(&differences)),
        OutputFormat::Table => {
            differences.iter().map(|one| printable(&one.to_string()) + "\n").collect()
        }
    };
    shell::print(text.as_bytes())?;
    match differences.len() {
        0 => Ok(()),
        1 => Err(Failure::runtime("1 difference")),
        count => Err(Failure::runtime(format!("{count} differences"))),
    }
}

fn document(differences: &[Difference<'_>]) -> Value {
    let one = |difference: &Difference<'_>| match difference {
        Difference::Missing(object) => json!({ "missing": object.key, "call": object.call }),
        Difference::Extra(object) => json!({ "extra": object.key, "call": object.call }),
        Difference::Changed { is, wanted, params } => {
            json!({ "changed": is.key, "params": params, "is": is.call, "wanted": wanted.call })
        }
    };
    differences.iter().map(one).collect()
}

fn clear(daemon: &mut Daemon, yes: bool) -> Result<(), Failure> {
    let is = running(daemon)?;
    let count = is.objects().len() - is.cleared().objects().len();
    let question = format!("Remove {count} things, and end all connections? [y/N] ");
    if count > 0 && !yes && !agreed(&question, &format!("clear would remove {count} things"))? {
        return Err(Failure::runtime("nothing was removed"));
    }
    apply(daemon, &is, &is.cleared())
}

/// Asks on the terminal; without one, the option has to be given, and the refusal says what would happen.
fn agreed(question: &str, refusal: &str) -> Result<bool, Failure> {
    if !io::stdin().is_terminal() {
        return Err(Failure::usage(format!("{refusal}: use --yes")));
    }
    eprint!("{question}");
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(Failure::runtime)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

fn restore(daemon: &mut Daemon, file: &Path, dry_run: bool) -> Result<(), Failure> {
    let (name, bytes) = read_bytes(file)?;
    let failed = |error: &dyn std::fmt::Display| Failure::runtime(format!("{name}: {error}"));
    let wanted = Contents::parse(&bytes).map_err(|error| failed(&error))?;
    // This parser also gives the places of calls, which a message names.
    let sections = configuration::parse(&bytes).map_err(|error| failed(&error))?;
    let kept = look_at(daemon, &sections).map_err(|error| match error {
        ConfigError::Client(error) => failure(error),
        other => failed(&other),
    })?;
    if let Some(kept) = kept {
        shell::note(&format!("kept without effect, as the daemon has no such parts: {kept}"));
    }
    let wanted = &wanted;
    let is = running(daemon)?;
    if dry_run {
        let steps = is.plan(wanted);
        let lines: String = steps.iter().map(|step| json!(step.call).to_string() + "\n").collect();
        return shell::print(lines.as_bytes());
    }
    apply(daemon, &is, wanted)
}

/// Checks all calls before the first is made.
fn look_at(
    daemon: &mut Daemon,
    sections: &[SubsystemConfig],
) -> Result<Option<String>, ConfigError> {
    let known = config::methods(&mut daemon.connection, false)?;
    config::look_at(&mut daemon.connection, &known, sections)
}

/// Makes the daemon's configuration the wanted one; if that fails, restores the previous one.
fn apply(daemon: &mut Daemon, is: &Contents, wanted: &Contents) -> Result<(), Failure> {
    let steps = is.plan(wanted);
    let total = steps.len();
    match make(daemon, &steps) {
        Ok(later) => {
            let left = running(daemon)?;
            let left: Vec<String> = left
                .differences(wanted)
                .iter()
                .filter(|difference| !matches!(difference, Difference::Extra(object) if is_setting(object)))
                .map(ToString::to_string)
                .collect();
            if !left.is_empty() {
                let restart = if later > 0 {
                    " (some settings are taken before the start only: serve -c FILE)"
                } else {
                    ""
                };
                return Err(Failure::runtime(format!(
                    "{} of {total} calls were made, but this still differs{restart}: {}",
                    total - later,
                    printable(&left.join("; "))
                )));
            }
            let made = json!({ "calls": total });
            daemon.done(&made, &format!("{total} calls made, nothing differs any more"))
        }
        Err((place, error)) => Err(undo(daemon, is, &steps[place], place, total, &error)),
    }
}

fn is_setting(object: &raceline_control::reconcile::Object) -> bool {
    object.removal == raceline_control::reconcile::Removal::Setting
}

/// Makes calls in their order; gives the number of settings that could not be made now, or the call that
/// failed.
fn make(daemon: &mut Daemon, steps: &[Step]) -> Result<usize, (usize, ClientError)> {
    let mut later = 0;
    for (place, step) in steps.iter().enumerate() {
        match daemon.make(&step.call) {
            Ok(_) => {}
            Err(ClientError::Refused { refusal, .. })
                if step.is_setting && refusal.code == i64::from(code::INVALID_STATE) =>
            {
                later += 1;
            }
            Err(error) => return Err((place, error)),
        }
    }
    Ok(later)
}

/// Restores the previous configuration; reports the failed call and the result of the restoration.
fn undo(
    daemon: &mut Daemon,
    was: &Contents,
    step: &Step,
    place: usize,
    total: usize,
    error: &ClientError,
) -> Failure {
    let call = json!(step.call);
    let what =
        format!("call {} of {total}, {}, failed: {error}", place + 1, printable(&call.to_string()));
    let back = running(daemon).and_then(|now| {
        make(daemon, &now.plan(was)).map_err(|(_, error)| failure(error))?;
        let now = running(daemon)?;
        match now.differences(was)[..] {
            [] => Ok(()),
            ref left => {
                let left: Vec<Value> =
                    left.iter().map(|one| json!({ "left": one.to_string() })).collect();
                Err(Failure::runtime(names(&left, "left").join("; ")))
            }
        }
    });
    match back {
        Ok(()) => Failure::runtime(format!("nothing was changed: {what}")),
        Err(error) => Failure::runtime(format!(
            "{what}; and not everything could be changed back: {error}; see raceline config diff"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("config.json");
        replace(&file, b"one").unwrap();
        replace(&file, b"two").unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), b"two");
        assert_eq!(directory.path().read_dir().unwrap().count(), 1);
        assert!(replace(&directory.path().join("missing/config.json"), b"x").is_err());
    }
}
