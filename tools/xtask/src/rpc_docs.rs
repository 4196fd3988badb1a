//! `cargo xtask rpc-docs`: the reference page of the daemon's methods, written and checked.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use crate::child::Task;
use crate::step::Outcome;

/// Time for a build of the control plane with empty caches, in seconds.
const BUILD_LIMIT_S: u64 = 1200;

fn path(root: &Path) -> PathBuf {
    root.join("docs/RPC.md")
}

/// The page that the present methods give.
fn page(root: &Path) -> Result<String> {
    let args = ["run", "--quiet", "--package", "raceline-control", "--example", "rpc_reference"];
    let ended = Task::new("cargo").args(args).dir(root).limit(BUILD_LIMIT_S).check()?;
    Ok(ended.stdout)
}

/// Writes the page.
pub(crate) fn write(root: &Path) -> Result<()> {
    std::fs::write(path(root), page(root)?)?;
    Ok(())
}

/// The page in the repository must match the present methods.
pub(crate) fn check(root: &Path) -> Result<Outcome> {
    let (page, now) = (page(root)?, std::fs::read_to_string(path(root)).unwrap_or_default());
    let differs = page.lines().zip(now.lines()).find(|(new, old)| new != old);
    ensure!(page == now, "docs/RPC.md is not current ({differs:?}): cargo xtask rpc-docs");
    let counts = page.lines().find(|line| line.starts_with("**")).unwrap_or_default();
    Ok(Outcome::Passed(counts.replace("**", "")))
}
