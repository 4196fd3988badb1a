//! A running `raceline serve`.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::child::{Ended, Running, Task, tail};
use crate::raceline::Tree;

/// Time from the start of a daemon to its ready line, in seconds.
const READY_LIMIT_S: u64 = 30;
/// Time from the request to end to the end.
const STOP_LIMIT: Duration = Duration::from_secs(30);
/// The longest that a daemon may run under a test, in seconds.
const SERVE_LIMIT_S: u64 = 6000;

/// A daemon that ends with this value.
pub(crate) struct Serve {
    running: Running,
    /// The path of its RPC socket.
    pub(crate) socket: PathBuf,
    /// Time from its start to its ready line.
    pub(crate) start_time: Duration,
    /// The ready line.
    pub(crate) ready: Value,
}

impl Serve {
    /// Starts it with its socket in this folder.
    pub(crate) fn start(tree: &Tree, dir: &Path, arguments: &[&str]) -> Result<Self> {
        Self::launch(Task::new(tree.binary()?), dir, arguments)
    }

    /// The same through another program, as in `ip netns exec NAME`, which has to become the daemon.
    pub(crate) fn start_by(
        prefix: Task,
        tree: &Tree,
        dir: &Path,
        arguments: &[&str],
    ) -> Result<Self> {
        Self::launch(prefix.args([tree.binary()?]), dir, arguments)
    }

    fn launch(program: Task, dir: &Path, arguments: &[&str]) -> Result<Self> {
        let socket = dir.join("rpc.sock");
        let task = program.args(["serve", "-r"]).args([&socket]).args(arguments);
        let started = Instant::now();
        let mut running = task.limit(SERVE_LIMIT_S).start()?;
        let line = running
            .wait_for("\"ready\"", READY_LIMIT_S)
            .with_context(|| format!("raceline serve {}", arguments.join(" ")))?;
        let start_time = started.elapsed();
        let ready = serde_json::from_str(&line).with_context(|| line.clone())?;
        Ok(Self { running, socket, start_time, ready })
    }

    /// Process id.
    pub(crate) fn pid(&self) -> u32 {
        self.running.pid()
    }

    /// `raceline rpc` on it; the words begin with options or the method.
    pub(crate) fn rpc(&self, tree: &Tree, words: &[&str]) -> Result<Task> {
        Ok(tree.raceline(["rpc", "-s"])?.args([&self.socket]).args(words))
    }

    /// The result of a method, as JSON.
    pub(crate) fn call(&self, tree: &Tree, words: &[&str]) -> Result<Value> {
        let ended = self.rpc(tree, &["--raw"])?.args(words).limit(90).check()?;
        serde_json::from_str(&ended.stdout)
            .with_context(|| format!("{}: {}", words.join(" "), ended.stdout))
    }

    /// An error if it has ended or panicked.
    pub(crate) fn healthy(&mut self) -> Result<()> {
        self.running.drain();
        let output = self.running.output();
        ensure!(!output.contains("panicked at"), "the daemon panicked:\n{}", tail(output, 15));
        if !self.running.alive() {
            bail!("the daemon has ended:\n{}", tail(self.running.output(), 15));
        }
        Ok(())
    }

    /// Ends it by SIGTERM; exit code 0 is required.
    pub(crate) fn stop(mut self) -> Result<()> {
        self.healthy()?;
        self.running.signal("TERM");
        self.ended()
    }

    /// Waits for an end that another process has requested; exit code 0 is required.
    pub(crate) fn ended(mut self) -> Result<()> {
        let end = Instant::now() + STOP_LIMIT;
        while self.running.alive() {
            ensure!(Instant::now() < end, "still runs {STOP_LIMIT:?} after it was told to end");
            std::thread::sleep(Duration::from_millis(20));
        }
        let ended: Ended = self.running.wait()?;
        ensure!(ended.success(), "{}\n{}", ended.why(), ended.tail(10));
        Ok(())
    }

    /// Kills it without warning.
    pub(crate) fn kill(mut self) {
        self.running.kill();
    }
}
