//! Scripts that run `raceline` in the guest, and need nothing outside it. Over RDMA, both ends are in the guest.

use std::path::Path;

use anyhow::{Result, bail};

use super::{Part, drives, guest, scratch, script, watch};
use crate::raceline::Tree;
use crate::step::Outcome;

/// What the scripts are told that run over RDMA.
pub(super) const RDMA: &[&str] = &["-e", "TRANSPORT=rdma", "-e", "PORT=4420"];

/// Runs the guest's script of `part`, with further words for the machine.
pub(super) fn run(tree: &Tree, image: &Path, part: Part, words: &[&str]) -> Result<Outcome> {
    let dir = scratch(tree, image, part)?;
    let program = drives::stripped(tree, &dir)?;
    let mut guest = guest(tree, image, part)
        .args(words)
        .args([Path::new("-f"), &program])
        .args([image, &script(tree, part)])
        .start()?;
    let outcome = watch(&mut guest, |request| bail!("the guest asks for '{request}'"));
    std::fs::remove_dir_all(&dir)?;
    outcome
}
