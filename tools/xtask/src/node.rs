//! One of two daemons that export the same file as the same namespace: two targets of one subsystem.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::child::Task;
use crate::raceline::Tree;
use crate::serve::Serve;

/// Controller numbers of the daemons: a host takes the same number twice for an error.
const NUMBERS: [&str; 2] = ["1-32759", "32760-65519"];
/// NGUID and UUID of the namespace that both daemons have.
const UUID: &str = "6b9f2f8c-0d3a-4c55-9a2f-00000000c075";

/// A daemon that may be down, with its folder.
pub(crate) struct Node {
    dir: PathBuf,
    numbers: &'static str,
    daemon: Option<Serve>,
}

impl Node {
    /// Two of them, which are down, with folders in this one.
    pub(crate) fn pair(dir: &Path) -> Result<[Self; 2]> {
        let node = |index: usize| -> Result<Self> {
            let dir = dir.join(format!("node{index}"));
            std::fs::create_dir(&dir)?;
            Ok(Self { dir, numbers: NUMBERS[index], daemon: None })
        };
        Ok([node(0)?, node(1)?])
    }

    /// Starts it with what it had before, through the program `prefix` if there is one.
    pub(crate) fn start(&mut self, tree: &Tree, prefix: Option<Task>, more: &[&str]) -> Result<()> {
        let state = self.dir.join("state").display().to_string();
        let arguments = [&["--state-dir", &state], more].concat();
        self.daemon = Some(match prefix {
            Some(prefix) => Serve::start_by(prefix, tree, &self.dir, &arguments)?,
            None => Serve::start(tree, &self.dir, &arguments)?,
        });
        Ok(())
    }

    pub(crate) fn daemon(&self) -> Result<&Serve> {
        self.daemon.as_ref().context("the daemon is not there")
    }

    /// A verb of the program on the daemon.
    pub(crate) fn verb(&self, tree: &Tree, line: &str) -> Result<()> {
        let socket = &self.daemon()?.socket;
        tree.raceline(line.split_whitespace())?.args(["-s"]).args([socket]).limit(60).check()?;
        Ok(())
    }

    /// Exports the file as namespace 1, the same by both daemons.
    pub(crate) fn export(&self, tree: &Tree, file: &Path, nqn: &str, address: &str) -> Result<()> {
        let numbers = self.numbers;
        for line in [
            format!("bdev add file:{},shared --name disk", file.display()),
            format!(
                "subsys add {nqn} --allow-any-host --ana --serial CUTS --model Raceline \
                 --cntlids {numbers}"
            ),
            format!("ns add {nqn} disk --nsid 1 --uuid {UUID}"),
            format!("port add {nqn} {address}"),
        ] {
            self.verb(tree, &line)?;
        }
        Ok(())
    }

    /// Ends it by SIGKILL.
    pub(crate) fn kill(&mut self) -> Result<()> {
        let mut daemon = self.daemon.take().context("the daemon is not there")?;
        daemon.healthy()?;
        daemon.kill();
        Ok(())
    }

    /// Ends it as its users do.
    pub(crate) fn stop(self) -> Result<()> {
        self.daemon.context("the daemon is not there")?.stop()
    }
}
