//! Scripts that run `raceline` in the guest, and need nothing outside it.

use std::path::Path;

use anyhow::{Result, bail};

use super::{Part, drives, guest, script, watch};
use crate::raceline::Tree;
use crate::step::Outcome;

/// Runs the guest's script of `part`.
pub(super) fn run(tree: &Tree, image: &Path, part: Part) -> Result<Outcome> {
    let dir = tree.scratch(&format!("interop-{part:?}").to_lowercase())?;
    let program = drives::stripped(tree, &dir)?;
    let mut guest = guest(tree, image, part)
        .args([Path::new("-f"), &program])
        .args([image, &script(tree, part)])
        .start()?;
    let outcome = watch(&mut guest, |request| bail!("the guest asks for '{request}'"));
    std::fs::remove_dir_all(&dir)?;
    outcome
}
