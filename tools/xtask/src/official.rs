//! The spdk-client step: SPDK's own published clients judge `raceline serve`.
//!
//! The package `spdk` is installed in virtual environments below the build folder, once. Each of
//! its releases drives a daemon through the life of a target. I/O by Raceline's host shows that the
//! reported changes have happened.

mod disks;
mod iscsi;
mod life;
mod paper;

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::child::{Ended, Task};
use crate::raceline::Tree;
use crate::step::{Checks, Outcome};
use crate::{python, setup};

/// The releases: the oldest with `pip install`, one between, and the newest.
const RELEASES: [Release; 3] = [
    Release { version: "25.5", any_host: &["-e"], no_host: &["-d"], old_transport: true },
    Release { version: "26.1", any_host: &["-e"], no_host: NEW_NO_HOST, old_transport: true },
    Release { version: "26.9", any_host: NEW_ANY_HOST, no_host: NEW_NO_HOST, old_transport: false },
];
const NEW_ANY_HOST: &[&str] = &["--allow-any-host"];
const NEW_NO_HOST: &[&str] = &["--no-allow-any-host"];

/// Time for one command of a client, in seconds; Python starts slowly on a busy machine.
const COMMAND_LIMIT_S: u64 = 90;

/// One release of the client, and its spelling of options that changed between releases.
struct Release {
    version: &'static str,
    /// Options of `nvmf_subsystem_allow_any_host` that allow.
    any_host: &'static [&'static str],
    /// Options of it that forbid.
    no_host: &'static [&'static str],
    /// Whether `nvmf_create_transport` still takes -u, -n and -b.
    old_transport: bool,
}

/// Runs all checks of the step.
pub(crate) fn run(tree: &Tree) -> Result<Outcome> {
    if let Some(why) = setup::missing_for("spdk-client") {
        return setup::cannot(&why);
    }
    let mut programs = Vec::new();
    for release in &RELEASES {
        match install(tree, release.version) {
            Ok(program) => programs.push(program),
            Err(error) => return Ok(Outcome::Skipped(format!("{error:#}"))),
        }
    }
    if !tree.raceline(["serve", "--help"])?.run()?.success() {
        return Ok(Outcome::Skipped("this raceline has no verb serve".to_owned()));
    }
    let mut checks = Checks::default();
    paper::run(tree, &mut checks);
    for (release, program) in RELEASES.iter().zip(&programs) {
        life::run(tree, release, program, &mut checks);
    }
    checks.outcome()
}

/// The release's `spdk-rpc`, installed if it is not there yet.
fn install(tree: &Tree, version: &str) -> Result<PathBuf> {
    let environment = tree.target.join("spdk-client").join(version);
    python::install(&environment, &format!("spdk=={version}"), "bin/spdk-rpc")
}

/// One release of SPDK's client on one daemon.
struct Client<'a> {
    program: &'a Path,
    socket: &'a Path,
}

impl Client<'_> {
    fn task(&self, words: &[&str]) -> Task {
        let task = Task::new(self.program).args(["-s"]).args([self.socket]);
        task.args(["-t", "60"]).args(words).limit(COMMAND_LIMIT_S)
    }

    /// Runs a command that must succeed; gives what it prints.
    fn run(&self, words: &[&str]) -> Result<String> {
        let ended = self.task(words).check().with_context(|| words.join(" "))?;
        Ok(ended.stdout)
    }

    /// The same, read as JSON.
    fn json(&self, words: &[&str]) -> Result<Value> {
        let text = self.run(words)?;
        serde_json::from_str(&text).with_context(|| format!("{}: {text}", words.join(" ")))
    }

    /// Runs a command that must print exactly this.
    fn prints(&self, words: &[&str], expected: &str) -> Result<()> {
        let text = self.run(words)?;
        ensure!(text.trim_end() == expected, "{}: printed {text:?}", words.join(" "));
        Ok(())
    }

    /// Runs a command with a file as its standard input.
    fn fed(&self, words: &[&str], file: &Path) -> Result<Ended> {
        self.task(words).input(File::open(file)?).check().with_context(|| words.join(" "))
    }

    /// Runs a command that the daemon must refuse with this code and text.
    fn refused(&self, words: &[&str], code: i64, text: &str) -> Result<()> {
        let ended = self.task(words).run()?;
        let line = words.join(" ");
        ensure!(!ended.success(), "accepted: {line}");
        let found = ended.output.contains(&format!("\"code\": {code},"))
            && ended.output.contains(&format!("\"message\": \"{text}\""));
        ensure!(found, "{line}: not {code} '{text}' but:\n{}", ended.tail(8));
        Ok(())
    }
}
