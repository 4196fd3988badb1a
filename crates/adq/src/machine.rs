//! The machine behind a seam: its files, and the programs of the field that set what no file sets.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::journal::Lock;

/// Files and programs of a machine. Tests have another one, in which every operation can fail.
pub trait Machine {
    /// The text of a file, without the line's end.
    fn read(&self, path: &Path) -> io::Result<String>;
    /// Writes a text to a file of the kernel, in one call.
    fn write(&mut self, path: &Path, text: &str) -> io::Result<()>;
    /// The names in a directory, sorted; none if there is no such directory.
    fn list(&self, path: &Path) -> Vec<String>;
    /// Where a link leads.
    fn link(&self, path: &Path) -> Option<PathBuf>;
    /// Whether the file's mode lets its owner write it.
    fn is_writable(&self, path: &Path) -> bool;
    /// Runs a program to look at something.
    fn look(&self, program: &str, arguments: &[String]) -> io::Result<Ended>;
    /// Runs a program to change something.
    fn change(&mut self, program: &str, arguments: &[String]) -> io::Result<Ended>;
    /// Waits until the driver is ready for the next step.
    fn pause(&mut self, time: Duration);
}

/// How a program ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// Whether it ended with 0.
    pub success: bool,
    /// What it printed.
    pub stdout: String,
    /// What it complained about.
    pub stderr: String,
}

/// The Debian package of each program in use.
pub const PACKAGES: [(&str, &str); 6] = [
    ("ethtool", "ethtool"),
    ("tc", "iproute2"),
    ("devlink", "iproute2"),
    ("ip", "iproute2"),
    ("modprobe", "kmod"),
    ("systemctl", "systemd"),
];

/// Where programs are, also for users whose PATH lacks the directories of the system's.
const DIRECTORIES: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// This machine.
#[derive(Debug, Default)]
pub struct Live<'a> {
    lock: Option<&'a Lock>,
}

impl<'a> Live<'a> {
    /// This machine, to be changed under a lock. Programs that change it share the lock: if this process is
    /// killed, nobody reverts before the last change has ended.
    pub fn locked(lock: &'a Lock) -> Self {
        Self { lock: Some(lock) }
    }
}

impl Machine for Live<'_> {
    fn read(&self, path: &Path) -> io::Result<String> {
        Ok(fs::read_to_string(path)?.trim_end().to_owned())
    }

    fn write(&mut self, path: &Path, text: &str) -> io::Result<()> {
        fs::OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes())
    }

    fn list(&self, path: &Path) -> Vec<String> {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    fn link(&self, path: &Path) -> Option<PathBuf> {
        fs::read_link(path).ok()
    }

    fn is_writable(&self, path: &Path) -> bool {
        use std::os::unix::fs::PermissionsExt as _;
        fs::metadata(path).is_ok_and(|data| data.permissions().mode() & 0o200 != 0)
    }

    fn look(&self, program: &str, arguments: &[String]) -> io::Result<Ended> {
        execute(program, arguments, Stdio::null())
    }

    fn change(&mut self, program: &str, arguments: &[String]) -> io::Result<Ended> {
        // None of these programs reads its standard input, so that can carry the lock.
        let input = self.lock.map(Lock::share).transpose()?;
        execute(program, arguments, input.map_or_else(Stdio::null, Stdio::from))
    }

    fn pause(&mut self, time: Duration) {
        std::thread::sleep(time);
    }
}

fn execute(program: &str, arguments: &[String], input: Stdio) -> io::Result<Ended> {
    let own = std::env::var("PATH").unwrap_or_default();
    let output = Command::new(program)
        .args(arguments)
        .env("PATH", format!("{own}:{DIRECTORIES}"))
        .env("LC_ALL", "C")
        .stdin(input)
        .output()?;
    Ok(Ended {
        success: output.status.success(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}

/// One thing that changes the machine, as an operator would type it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// `echo TEXT > PATH`.
    Write {
        /// The file.
        path: PathBuf,
        /// Its new text.
        text: String,
    },
    /// `sysctl -w KEY=TEXT`; done by writing the file.
    Sysctl {
        /// The key, with dots.
        key: String,
        /// Its new text.
        text: String,
    },
    /// A program.
    Run {
        /// Its name.
        program: &'static str,
        /// Its arguments.
        arguments: Vec<String>,
    },
}

impl Change {
    /// A program with arguments that stand in one line, separated by blanks.
    pub fn run(program: &'static str, line: &str) -> Self {
        Self::Run { program, arguments: line.split_whitespace().map(str::to_owned).collect() }
    }

    /// The command line.
    pub fn line(&self) -> String {
        match self {
            Self::Write { path, text } => format!("echo {text} > {}", path.display()),
            Self::Sysctl { key, text } if text.contains(char::is_whitespace) => {
                format!("sysctl -w {key}=\"{}\"", text.replace('\t', " "))
            }
            Self::Sysctl { key, text } => format!("sysctl -w {key}={text}"),
            Self::Run { program, arguments } => format!("{program} {}", arguments.join(" ")),
        }
    }

    /// Does it.
    ///
    /// # Errors
    /// When the file cannot be written, or the program is not there or fails.
    pub fn perform(&self, machine: &mut dyn Machine) -> Result<()> {
        let write = |machine: &mut dyn Machine, path: &Path, text: &str| {
            machine.write(path, text).map_err(|source| Error::File {
                what: format!("cannot write {text:?} to"),
                path: path.to_owned(),
                source,
            })
        };
        match self {
            Self::Write { path, text } => write(machine, path, text),
            Self::Sysctl { key, text } => write(machine, &sysctl_path(key), text),
            Self::Run { program, arguments } => {
                let ended = machine.change(program, arguments);
                finish(program, arguments, ended).map(|_| ())
            }
        }
    }
}

/// The file of a sysctl.
pub fn sysctl_path(key: &str) -> PathBuf {
    Path::new("/proc/sys").join(key.replace('.', "/"))
}

/// Runs a program to look at something, and takes anything but success as an error.
///
/// # Errors
/// When the program is not there or fails.
pub fn ask(machine: &dyn Machine, program: &str, line: &str) -> Result<String> {
    let arguments: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    let ended = machine.look(program, &arguments);
    finish(program, &arguments, ended)
}

fn finish(program: &str, arguments: &[String], ended: io::Result<Ended>) -> Result<String> {
    let command = || format!("{program} {}", arguments.join(" "));
    match ended {
        Ok(ended) if ended.success => Ok(ended.stdout),
        Ok(ended) => {
            let said = if ended.stderr.trim().is_empty() { &ended.stdout } else { &ended.stderr };
            let words: Vec<&str> = said.split_whitespace().collect();
            let reason =
                if words.is_empty() { "it said no reason".to_owned() } else { words.join(" ") };
            Err(Error::Program { command: command(), reason })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Error::NoProgram {
            program: program.to_owned(),
            package: BTreeMap::from(PACKAGES).get(program).copied().unwrap_or("of that name"),
        }),
        Err(error) => Err(Error::Program { command: command(), reason: error.to_string() }),
    }
}
