//! Child processes with a time limit, their own process group, and readable output.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// How long a child has between the request to end and SIGKILL.
const GRACE: Duration = Duration::from_secs(5);
/// How long to wait for output of processes that inherited the pipes of a child that has ended.
const OUTPUT_TAIL: Duration = Duration::from_secs(2);

/// Process groups alive, so that an interrupted xtask leaves none behind.
static GROUPS: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// Actions of an interrupted xtask once its children have ended.
static AT_INTERRUPT: Mutex<Vec<Box<dyn FnOnce() + Send>>> = Mutex::new(Vec::new());

/// The results of a child that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Exit status; `None` when the time limit ended it.
    pub(crate) status: Option<ExitStatus>,
    /// Standard output and standard error, line by line as they came.
    pub(crate) output: String,
    /// Standard output alone.
    pub(crate) stdout: String,
}

impl Ended {
    /// Whether the child exited with code 0 within its time.
    pub(crate) fn success(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }

    /// The exit in words.
    pub(crate) fn why(&self) -> String {
        match self.status {
            None => "ran out of time".to_owned(),
            Some(status) => status.to_string(),
        }
    }

    /// The child, unless it ended with anything but exit code 0; the error shows the end of its output.
    pub(crate) fn checked(self, name: &str) -> Result<Self> {
        if !self.success() {
            bail!("{name}: {}\n{}", self.why(), self.tail(25));
        }
        Ok(self)
    }

    /// The last `count` lines of the output, indented.
    pub(crate) fn tail(&self, count: usize) -> String {
        tail(&self.output, count)
    }
}

/// The last `count` lines of a text, indented.
pub(crate) fn tail(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let from = lines.len().saturating_sub(count);
    lines[from..].iter().map(|line| format!("    {line}\n")).collect()
}

/// A command with a time limit.
pub(crate) struct Task {
    command: Command,
    name: String,
    limit: Duration,
    echo: bool,
}

impl Task {
    /// A program to run; it is found in PATH.
    pub(crate) fn new(program: impl AsRef<OsStr>) -> Self {
        let name = program.as_ref().to_string_lossy().into_owned();
        let mut command = Command::new(program);
        command.stdin(Stdio::null());
        Self { command, name, limit: Duration::from_secs(60), echo: false }
    }

    /// Adds arguments.
    pub(crate) fn args<I, S>(mut self, args: I) -> Self
    where
        I: IntoIterator<Item = S>,
        S: AsRef<OsStr>,
    {
        self.command.args(args);
        self
    }

    /// Adds one environment variable.
    pub(crate) fn env(mut self, key: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(key, value);
        self
    }

    /// Sets the working folder.
    pub(crate) fn dir(mut self, dir: &Path) -> Self {
        self.command.current_dir(dir);
        self
    }

    /// Gives it this file as standard input.
    pub(crate) fn input(mut self, file: std::fs::File) -> Self {
        self.command.stdin(Stdio::from(file));
        self
    }

    /// Sets the time limit in seconds (60 by default).
    pub(crate) fn limit(mut self, limit_s: u64) -> Self {
        self.limit = Duration::from_secs(limit_s);
        self
    }

    /// Shows the output while it comes.
    pub(crate) fn echo(mut self) -> Self {
        self.echo = true;
        self
    }

    /// Starts the child; its output can then be read line by line.
    pub(crate) fn start(mut self) -> Result<Running> {
        self.command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child =
            self.command.spawn().with_context(|| format!("cannot start {}", self.name))?;
        let (sender, lines) = mpsc::channel();
        let stdout = child.stdout.take().context("no standard output")?;
        let stderr = child.stderr.take().context("no standard error")?;
        read_lines(stdout, true, sender.clone());
        read_lines(stderr, false, sender);
        groups().insert(child.id());
        Ok(Running {
            child,
            lines,
            deadline: Instant::now() + self.limit,
            echo: self.echo,
            output: String::new(),
            stdout: String::new(),
            reaped: false,
        })
    }

    /// Runs the child to its end or to the time limit.
    pub(crate) fn run(self) -> Result<Ended> {
        self.start()?.wait()
    }

    /// Runs the child; anything but exit code 0 is an error that shows the end of its output.
    pub(crate) fn check(self) -> Result<Ended> {
        let (name, shown) = (self.name.clone(), self.echo);
        let ended = self.run()?;
        if !ended.success() {
            let tail = if shown { String::new() } else { format!("\n{}", ended.tail(25)) };
            bail!("{name}: {}{tail}", ended.why());
        }
        Ok(ended)
    }
}

/// A child that runs.
pub(crate) struct Running {
    child: Child,
    lines: Receiver<(bool, String)>,
    deadline: Instant,
    echo: bool,
    output: String,
    stdout: String,
    reaped: bool,
}

impl Running {
    /// Process id, which is also the id of the process group.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// All output so far.
    pub(crate) fn output(&self) -> &str {
        &self.output
    }

    /// The next line of output (true: of standard output), or `None` when the output has ended or
    /// `wait` has passed.
    pub(crate) fn next_line(&mut self, wait: Duration) -> Option<(bool, String)> {
        let left = self.deadline.saturating_duration_since(Instant::now()).min(wait);
        match self.lines.recv_timeout(left) {
            Ok((is_stdout, line)) => {
                self.keep(is_stdout, &line);
                Some((is_stdout, line))
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => None,
        }
    }

    /// Reads until a line holds `text`; an error shows the output that came instead.
    pub(crate) fn wait_for(&mut self, text: &str, wait_s: u64) -> Result<String> {
        let end = Instant::now() + Duration::from_secs(wait_s);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.next_line(left) {
                Some((_, line)) if line.contains(text) => return Ok(line),
                Some(_) => {}
                None => bail!("no '{text}' came within {wait_s} s\n{}", tail(&self.output, 25)),
            }
        }
    }

    /// Reads the output so far, without waiting.
    pub(crate) fn drain(&mut self) {
        while self.next_line(Duration::ZERO).is_some() {}
    }

    /// Whether the child still runs.
    pub(crate) fn alive(&mut self) -> bool {
        !self.reaped && matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends a signal (by name: TERM, INT, KILL) to the child's process group.
    pub(crate) fn signal(&self, name: &str) {
        signal_group(self.child.id(), name);
    }

    /// Gives the processes of the group that `chrt --idle` has put behind all others the usual turn of the processors.
    pub(crate) fn schedule_as_usual(&self) -> Result<()> {
        let group = self.child.id().to_string();
        for process in std::fs::read_dir("/proc")? {
            let process = process?;
            // One that has ended meanwhile has no such file.
            let Ok(stat) = std::fs::read_to_string(process.path().join("stat")) else { continue };
            // The name may have spaces and brackets: `pid (name) state parent group ...`.
            let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
            if after_name.split_whitespace().nth(2) != Some(group.as_str()) {
                continue;
            }
            let pid = process.file_name();
            // A thread may end between the list of threads and its turn: chrt then says that it failed.
            Task::new("chrt").args(["--all-tasks", "--other", "--pid", "0"]).args([&pid]).run()?;
        }
        Ok(())
    }

    /// Waits for the end of the child, or ends it when its time is over.
    pub(crate) fn wait(mut self) -> Result<Ended> {
        let status = loop {
            while self.next_line(Duration::from_millis(50)).is_some() {}
            if let Some(status) = self.child.try_wait()? {
                break Some(status);
            }
            if Instant::now() >= self.deadline {
                self.end();
                break None;
            }
            // The output can end long before the child does.
            std::thread::sleep(Duration::from_millis(10));
        };
        self.reaped = true;
        self.deadline = Instant::now() + OUTPUT_TAIL;
        while self.next_line(OUTPUT_TAIL).is_some() {}
        signal_group(self.child.id(), "KILL");
        groups().remove(&self.child.id());
        let output = std::mem::take(&mut self.output);
        Ok(Ended { status, output, stdout: std::mem::take(&mut self.stdout) })
    }

    /// Asks the group to end, then kills what is left of it.
    pub(crate) fn end(&mut self) {
        if self.reaped {
            return;
        }
        self.signal("TERM");
        let end = Instant::now() + GRACE;
        while Instant::now() < end && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(20));
        }
        self.kill();
    }

    /// Kills the group at once and collects the child.
    pub(crate) fn kill(&mut self) {
        self.signal("KILL");
        // An error here means that no process is left to wait for.
        let _ = self.child.wait();
        self.reaped = true;
        groups().remove(&self.child.id());
    }

    fn keep(&mut self, is_stdout: bool, line: &str) {
        if self.echo {
            println!("{line}");
        }
        self.output.push_str(line);
        self.output.push('\n');
        if is_stdout {
            self.stdout.push_str(line);
            self.stdout.push('\n');
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.reaped {
            self.end();
        }
    }
}

/// Ends every child on SIGINT and SIGTERM, then this process.
pub(crate) fn end_children_on_signals() -> Result<()> {
    use signal_hook::consts::{SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM])?;
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            let alive: Vec<u32> = groups().iter().copied().collect();
            for group in &alive {
                signal_group(*group, "TERM");
                // A stopped child takes no other signal until it goes on.
                signal_group(*group, "CONT");
            }
            std::thread::sleep(Duration::from_millis(500));
            for group in alive {
                signal_group(group, "KILL");
            }
            for action in AT_INTERRUPT.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
                action();
            }
            std::process::exit(128 + signal);
        }
    });
    Ok(())
}

/// Registers an action for SIGINT or SIGTERM, run when the children have ended.
pub(crate) fn at_interrupt(action: impl FnOnce() + Send + 'static) {
    AT_INTERRUPT.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(action));
}

/// Whether a program of that name is in PATH, or in the folders for administrators.
pub(crate) fn has_program(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    folders.map(|folder| folder.join(name)).any(|file| file.is_file())
}

fn groups() -> std::sync::MutexGuard<'static, BTreeSet<u32>> {
    GROUPS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn signal_group(group: u32, name: &str) {
    // The shell's own `kill` needs no package. It may fail if the group is gone already.
    let _ = Command::new("sh")
        .args(["-c", &format!("kill -s {name} -- -{group}")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
}

fn read_lines(pipe: impl Read + Send + 'static, out: bool, to: mpsc::Sender<(bool, String)>) {
    std::thread::spawn(move || {
        let mut reader = BufReader::new(pipe);
        let mut line = Vec::new();
        while matches!(reader.read_until(b'\n', &mut line), Ok(count) if count > 0) {
            let text = String::from_utf8_lossy(&line);
            if to.send((out, text.trim_end_matches(['\n', '\r']).to_owned())).is_err() {
                return;
            }
            line.clear();
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_and_status_are_kept() {
        let ended = Task::new("sh").args(["-c", "echo one; echo two >&2; exit 3"]).run().unwrap();
        assert_eq!(ended.status.and_then(|status| status.code()), Some(3));
        assert_eq!(ended.stdout, "one\n");
        assert!(ended.output.contains("two\n"));
    }

    #[test]
    fn a_child_and_its_children_end_with_the_limit() {
        let started = Instant::now();
        let task = Task::new("sh").args(["-c", "sleep 97 & sleep 98"]).limit(1);
        let ended = task.run().unwrap();
        assert!(ended.status.is_none());
        assert!(started.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn tail_takes_the_last_lines() {
        assert_eq!(tail("a\nb\nc\n", 2), "    b\n    c\n");
    }
}
