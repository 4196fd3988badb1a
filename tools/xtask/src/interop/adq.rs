//! `raceline adq` in the guest, on devices of a kernel that has every queueing discipline and filter.

use std::path::Path;

use anyhow::{Result, bail};

use super::{Part, drives, guest, script, watch};
use crate::raceline::Tree;
use crate::step::Outcome;

/// The facts of a device with traffic classes of its own, whose commands the guest tries.
const FACTS: &str = "crates/adq/tests/facts/ice-in-tree.json";

/// Runs the guest's script.
pub(super) fn run(tree: &Tree, image: &Path) -> Result<Outcome> {
    let dir = tree.scratch("interop-adq")?;
    let program = drives::stripped(tree, &dir)?;
    let facts = dir.join("ice.json");
    std::fs::copy(tree.root.join(FACTS), &facts)?;
    let mut guest = guest(tree, image, Part::Adq)
        .args([Path::new("-f"), &program, Path::new("-f"), &facts])
        .args([image, &script(tree, Part::Adq)])
        .start()?;
    let outcome = watch(&mut guest, |request| bail!("the guest asks for '{request}'"));
    std::fs::remove_dir_all(&dir)?;
    outcome
}
