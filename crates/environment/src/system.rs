//! Where values are read: this machine's files and programs, or a folder in which a machine was recorded.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};

use crate::reading::Reading;

/// The most that is read of one file: /proc/interrupts of 512 cores is shorter.
const MAX_FILE_BYTES: u64 = 16 << 20;
/// The longest that a program may take to answer.
const PROGRAM_LIMIT: Duration = Duration::from_secs(3);
/// How often it is looked whether a program has ended.
const PROGRAM_POLL: Duration = Duration::from_millis(2);
/// The folder of a recorded machine that has what programs printed, one file for each command line.
const PROGRAMS: &str = "programs";

/// A machine to read: this one, or a recorded one.
#[derive(Clone, Debug)]
pub struct System {
    root: PathBuf,
    recorded: bool,
}

impl System {
    /// This machine.
    #[must_use]
    pub fn here() -> Self {
        Self { root: PathBuf::from("/"), recorded: false }
    }

    /// A machine that was recorded below a folder: files under the paths that they have on the machine;
    /// the output of programs in `programs/`, named by the command line; and what the drivers of interfaces
    /// answer in `ethtool/NAME.json`.
    pub fn recorded(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), recorded: true }
    }

    /// Whether this is a recorded machine: then nothing is asked of the running kernel.
    #[must_use]
    pub fn is_recorded(&self) -> bool {
        self.recorded
    }

    /// Whether there is a file or a folder. `path` begins with `/`, here as below.
    #[must_use]
    pub fn has(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// A file's text without blanks at its ends.
    pub fn text(&self, path: &str) -> Reading<String> {
        let bytes = self.bytes(path);
        bytes.map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// A file's bytes.
    pub fn bytes(&self, path: &str) -> Reading<Vec<u8>> {
        let read = || -> io::Result<Vec<u8>> {
            let mut bytes = Vec::new();
            File::open(self.path(path))?.take(MAX_FILE_BYTES).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        read().map_or_else(|error| Reading::unread(reason(path, &error)), Reading::Read)
    }

    /// The number in a file.
    pub fn number<T: FromStr>(&self, path: &str) -> Reading<T> {
        self.text(path).then(|text| parse(path, &text))
    }

    /// Whether a file has `1`, `Y` or `y`.
    pub fn flag(&self, path: &str) -> Reading<bool> {
        self.text(path).then(|text| match text.as_str() {
            "1" | "Y" | "y" => Reading::Read(true),
            "0" | "N" | "n" => Reading::Read(false),
            _ => Reading::unread(format!("{path} has {text:?}, which is neither 0 nor 1")),
        })
    }

    /// The word in brackets in a file such as `[none] mq-deadline`; all of it if there are none.
    pub fn chosen(&self, path: &str) -> Reading<String> {
        self.text(path).map(|text| {
            let chosen = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
            chosen.map_or(text.clone(), |(word, _)| word.to_owned())
        })
    }

    /// The names in a folder, sorted; numbers in names count as numbers: `cpu2` stands before `cpu10`.
    pub fn names(&self, path: &str) -> Reading<Vec<String>> {
        let read = || -> io::Result<Vec<String>> {
            let mut names = Vec::new();
            for entry in fs::read_dir(self.path(path))? {
                names.push(entry?.file_name().to_string_lossy().into_owned());
            }
            names.sort_by_cached_key(|name| order(name));
            Ok(names)
        };
        read().map_or_else(|error| Reading::unread(reason(path, &error)), Reading::Read)
    }

    /// The numbers of a folder's entries that are a prefix and a number: `cpu` finds `cpu0`, `cpu1`.
    pub fn numbered(&self, path: &str, prefix: &str) -> Reading<Vec<u32>> {
        let number = |name: &String| name.strip_prefix(prefix)?.parse().ok();
        self.names(path).map(|names| names.iter().filter_map(number).collect())
    }

    /// The last part of what a link points to.
    pub fn link(&self, path: &str) -> Reading<String> {
        match fs::read_link(self.path(path)) {
            Ok(target) => {
                let name = target.file_name().unwrap_or_default();
                Reading::Read(name.to_string_lossy().into_owned())
            }
            Err(error) => Reading::unread(reason(path, &error)),
        }
    }

    /// What a program prints to standard output, without blanks at its ends. The program gets no input and
    /// three seconds.
    pub fn output(&self, program: &str, arguments: &[&str]) -> Reading<String> {
        let line = format!("{program} {}", arguments.join(" "));
        let line = line.trim();
        if self.recorded {
            return match self.text(&format!("/{PROGRAMS}/{line}")) {
                Reading::Unread { .. } => {
                    Reading::unread(format!("the program {program} is not installed"))
                }
                text @ Reading::Read(_) => text,
            };
        }
        match run(program, arguments) {
            Ok(Some((true, text))) => Reading::Read(text.trim().to_owned()),
            Ok(Some((false, _))) => Reading::unread(format!("`{line}` failed")),
            Ok(None) => Reading::unread(format!("`{line}` did not end within 3 s")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Reading::unread(format!("the program {program} is not installed"))
            }
            Err(error) => Reading::unread(format!("`{line}` cannot be run: {error}")),
        }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.join(Path::new(path.trim_start_matches('/')))
    }
}

/// Whether the program succeeded, and what it printed; nothing if it did not end in time. It is ended then.
fn run(program: &str, arguments: &[&str]) -> io::Result<Option<(bool, String)>> {
    let mut child = Command::new(program)
        .args(arguments)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    // A thread reads, so that a program that prints more than a pipe holds can end.
    let reader = child.stdout.take().map(|out| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = out.take(MAX_FILE_BYTES).read_to_end(&mut bytes);
            bytes
        })
    });
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if started.elapsed() > PROGRAM_LIMIT {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(PROGRAM_POLL);
    };
    let bytes = reader.and_then(|reader| reader.join().ok()).unwrap_or_default();
    Ok(Some((status.success(), String::from_utf8_lossy(&bytes).into_owned())))
}

/// The number, or that this text is none.
pub(crate) fn parse<T: FromStr>(source: &str, text: &str) -> Reading<T> {
    text.parse().map_or_else(
        |_| Reading::unread(format!("{source} has {text:?}, which is no number of this kind")),
        Reading::Read,
    )
}

fn reason(path: &str, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            format!("this system has no {path}")
        }
        io::ErrorKind::PermissionDenied => format!("{path} can be read by root only"),
        _ => format!("{path} cannot be read: {error}"),
    }
}

/// The key by which names are sorted: the letters before the first digit, the number there, the name.
fn order(name: &str) -> (String, u64, String) {
    let start = name.find(|c: char| c.is_ascii_digit()).unwrap_or(name.len());
    let (letters, rest) = name.split_at(start);
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    (letters.to_owned(), rest[..end].parse().unwrap_or(0), name.to_owned())
}

/// The numbers of a kernel list such as `0-3,8,10-11`; a text that is none gives the numbers before the fault.
pub(crate) fn list(text: &str) -> Vec<u32> {
    /// No machine has more cores or nodes: longer ranges are nonsense.
    const LONGEST: u32 = 1 << 16;
    let mut numbers = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (Ok(first), Ok(last)) = (first.trim().parse::<u32>(), last.trim().parse::<u32>())
        else {
            break;
        };
        numbers.extend(first..=last.min(first.saturating_add(LONGEST)));
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_files_and_programs_say_so() {
        let folder = tempfile::tempdir().unwrap();
        let system = System::recorded(folder.path());
        assert_eq!(system.text("/sys/a").reason(), Some("this system has no /sys/a"));
        let program = system.output("fio", &["--version"]);
        assert_eq!(program.reason(), Some("the program fio is not installed"));
        let missing = System::here().output("raceline-no-such-program", &[]);
        assert_eq!(missing.reason(), Some("the program raceline-no-such-program is not installed"));
    }

    #[test]
    fn programs_are_bounded_in_time_and_may_print_more_than_a_pipe_holds() {
        let slow = System::here().output("sleep", &["30"]);
        assert_eq!(slow.reason(), Some("`sleep 30` did not end within 3 s"));
        let long = System::here().output("seq", &["100000"]);
        assert_eq!(long.value().map(|text| text.lines().count()), Some(100_000));
        assert_eq!(System::here().output("false", &[]).reason(), Some("`false` failed"));
    }

    #[test]
    fn values_are_parsed() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write("n", " 12\n");
        write("x", "twelve\n");
        write("s", "none [mq-deadline] kyber\n");
        write("y", "Y\n");
        for name in ["cpu10", "cpu2", "cpufreq"] {
            write(name, "");
        }
        let system = System::recorded(folder.path());
        assert_eq!(system.number::<u32>("/n").get(), Some(12));
        assert!(system.number::<u32>("/x").reason().unwrap().contains("\"twelve\""));
        assert_eq!(system.chosen("/s").text(), Some("mq-deadline"));
        assert_eq!(system.chosen("/n").text(), Some("12"));
        assert_eq!(system.flag("/y").get(), Some(true));
        assert_eq!(system.numbered("/", "cpu").value(), Some(&vec![2, 10]));
        assert_eq!(list("0-3,8,10-11\n"), [0, 1, 2, 3, 8, 10, 11]);
        assert!(list("").is_empty());
        assert_eq!(list("1,x"), [1]);
    }
}
