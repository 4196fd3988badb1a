//! `raceline connect --as ublk` in the guest, over a daemon of that machine.

use std::path::Path;

use anyhow::{Result, bail};

use super::{Part, drives, guest, script, watch};
use crate::raceline::Tree;
use crate::step::Outcome;

/// Runs the guest's script.
pub(super) fn run(tree: &Tree, image: &Path) -> Result<Outcome> {
    let dir = tree.scratch("interop-ublk")?;
    let program = drives::stripped(tree, &dir)?;
    let mut guest = guest(tree, image, Part::Ublk)
        .args([Path::new("-f"), &program])
        .args([image, &script(tree, Part::Ublk)])
        .start()?;
    let outcome = watch(&mut guest, |request| bail!("the guest asks for '{request}'"));
    std::fs::remove_dir_all(&dir)?;
    outcome
}
