//! Our host over RDMA with the kernel's target, both in one guest over soft RoCE.

use std::path::Path;

use anyhow::{Result, bail};

use super::{Part, drives, guest, script, watch};
use crate::raceline::Tree;
use crate::step::Outcome;

/// Runs the guest's script.
pub(super) fn run(tree: &Tree, image: &Path) -> Result<Outcome> {
    let dir = tree.scratch("interop-rdma")?;
    let program = drives::stripped(tree, &dir)?;
    let mut guest = guest(tree, image, Part::Rdma)
        .args([Path::new("-f"), &program])
        .args([image, &script(tree, Part::Rdma)])
        .start()?;
    let outcome = watch(&mut guest, |request| bail!("the guest asks for '{request}'"));
    std::fs::remove_dir_all(&dir)?;
    outcome
}
