//! `cargo xtask rpc-docs`: the reference page of the daemon's methods, written and checked.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use crate::child::Task;
use crate::raceline::Tree;
use crate::step::Outcome;

fn path(root: &Path) -> PathBuf {
    root.join("docs/RPC.md")
}

/// The page that the present methods give.
fn page(tree: &Tree) -> Result<String> {
    let ended = Task::new(tree.example("rpc_reference")?).dir(&tree.root).check()?;
    Ok(ended.stdout)
}

/// Writes the page.
pub(crate) fn write(tree: &Tree) -> Result<()> {
    std::fs::write(path(&tree.root), page(tree)?)?;
    Ok(())
}

/// The page in the repository must match the present methods.
pub(crate) fn check(tree: &Tree) -> Result<Outcome> {
    let page = page(tree)?;
    let now = std::fs::read_to_string(path(&tree.root)).unwrap_or_default();
    let differs = page.lines().zip(now.lines()).find(|(new, old)| new != old);
    ensure!(page == now, "docs/RPC.md is not current ({differs:?}): cargo xtask rpc-docs");
    let counts = page.lines().find(|line| line.starts_with("**")).unwrap_or_default();
    Ok(Outcome::Passed(counts.replace("**", "")))
}
