//! A machine of cloud-hypervisor with our guest: what the guest prints, and calls of the program's API.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::Bed;
use crate::child::{Running, Task, tail};

/// The longest that a machine may run, in seconds.
const LIMIT_S: u64 = 900;
/// The longest until the next line of a guest.
const LINE_LIMIT: Duration = Duration::from_secs(60);
/// The longest until the API answers.
const CALL_LIMIT: Duration = Duration::from_secs(30);

/// A machine that runs.
pub(super) struct Machine {
    running: Running,
    passed: usize,
    rounds: u32,
    has_ended: bool,
}

impl Machine {
    /// Starts one with a disk of two queues at this socket, the guest's command line, and further options.
    pub(super) fn start(
        bed: &Bed<'_>,
        socket: &Path,
        line: &str,
        options: &[&str],
    ) -> Result<Self> {
        let disk =
            format!("vhost_user=true,socket={},num_queues=2,queue_size=64", socket.display());
        let running = Task::new(&bed.program)
            .args(["--cpus", "boot=2", "--memory", "size=128M,shared=on,hotplug_size=256M"])
            .args(["--disk", &disk, "--serial", "tty", "--console", "off", "--cmdline", line])
            .args([Path::new("--kernel"), &bed.kernel])
            .args(options)
            // Its threads may not read the files that a backtrace needs, and would end it by SIGSYS.
            .env("RUST_BACKTRACE", "0")
            .limit(LIMIT_S)
            .start()?;
        Ok(Self { running, passed: 0, rounds: 0, has_ended: false })
    }

    /// Reads until the guest prints this line.
    pub(super) fn reach(&mut self, text: &str) -> Result<()> {
        self.read_until(text, |line| line == text).map(drop)
    }

    /// Reads until the guest prints a line that begins with this; gives the line.
    pub(super) fn reach_beginning(&mut self, text: &str) -> Result<String> {
        self.read_until(text, |line| line.starts_with(text))
    }

    fn read_until(&mut self, text: &str, is_it: impl Fn(&str) -> bool) -> Result<String> {
        loop {
            match self.running.next_line(LINE_LIMIT) {
                Some((_, line)) => {
                    let line = self.take(&line)?;
                    if is_it(line) {
                        return Ok(line.to_owned());
                    }
                }
                None => {
                    let output = tail(self.running.output(), 25);
                    bail!("nothing came for {LINE_LIMIT:?}, and not '{text}'\n{output}");
                }
            }
        }
    }

    /// How many rounds of load the guest has ended by now.
    pub(super) fn rounds(&mut self) -> u32 {
        while let Some((_, line)) = self.running.next_line(Duration::ZERO) {
            // What has failed is found again at the end.
            let _ = self.take(&line);
        }
        self.rounds
    }

    /// Waits for the end of the guest and of the machine; gives the number of its checks.
    pub(super) fn end(mut self) -> Result<usize> {
        if !self.has_ended {
            self.reach("end")?;
        }
        let passed = self.passed;
        let ended = self.running.wait()?;
        ensure!(ended.success(), "cloud-hypervisor: {}\n{}", ended.why(), ended.tail(25));
        let failed = ended.output.lines().find(|line| line.starts_with("not ok "));
        ensure!(failed.is_none(), "{}", failed.unwrap_or_default());
        Ok(passed)
    }

    /// Waits for the end of a machine that cannot begin; gives what it said.
    pub(super) fn refused(self) -> Result<String> {
        let ended = self.running.wait()?;
        ensure!(!ended.success(), "the machine has begun\n{}", ended.tail(25));
        Ok(ended.output)
    }

    /// Counts a line; gives it without what another line's end has left before it.
    fn take<'a>(&mut self, line: &'a str) -> Result<&'a str> {
        let line = line.trim();
        if line.starts_with("ok ") {
            self.passed += 1;
        } else if let Some(round) = line.strip_prefix("round ") {
            self.rounds = round.parse().with_context(|| line.to_owned())?;
        } else if line == "end" {
            self.has_ended = true;
        }
        ensure!(!line.starts_with("not ok "), "the guest: {line}");
        Ok(line)
    }
}

/// Sends a signal to a process, by its name (STOP, CONT).
pub(super) fn signal(pid: u32, name: &str) -> Result<()> {
    let word = format!("kill -s {name} {pid}");
    Task::new("sh").args(["-c", &word]).check()?;
    Ok(())
}

/// A call of the API, which must be done.
pub(super) fn call(socket: &Path, name: &str, body: &str) -> Result<()> {
    let mut stream = UnixStream::connect(socket).with_context(|| socket.display().to_string())?;
    stream.set_read_timeout(Some(CALL_LIMIT))?;
    let len = body.len();
    write!(
        stream,
        "PUT /api/v1/{name} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len}\r\n\r\n{body}"
    )?;
    let mut answer = [0; 4096];
    let count = stream.read(&mut answer).with_context(|| format!("{name} is not answered"))?;
    let answer = String::from_utf8_lossy(&answer[..count]);
    let first = answer.lines().next().unwrap_or_default();
    ensure!(first.contains(" 200 ") || first.contains(" 204 "), "{name}: {answer}");
    Ok(())
}
