//! The kernel's NBD client, in the guest, on a disk that `raceline connect --as nbd` makes outside, and on disks that a
//! daemon of the guest makes by RPC.

use std::path::Path;

use anyhow::{Result, bail};

use super::{Part, drives, guest, script, watch};
use crate::nbd::Disk;
use crate::raceline::Tree;
use crate::step::Outcome;

/// Runs the guest's script.
pub(super) fn run(tree: &Tree, image: &Path) -> Result<Outcome> {
    let scratch = super::scratch(tree, image, Part::Disk)?;
    let device = format!("file:{},size=384M,buffered", scratch.join("disk.img").display());
    let program = drives::stripped(tree, &scratch)?;
    let disk = Disk::start(tree, &["--bdev", &device, "--listen", "0"])?;
    let large = format!("file:{},size=384M,bs=4096,buffered", scratch.join("large.img").display());
    let large = Disk::start(tree, &["--bdev", &large, "--listen", "0"])?;
    let mut guest = guest(tree, image, Part::Disk)
        .args(["-e", &format!("PORT={}", disk.port()?)])
        .args(["-e", &format!("LARGE_PORT={}", large.port()?)])
        .args([Path::new("-f"), &program])
        .args([image, &script(tree, Part::Disk)])
        .start()?;
    let outcome = watch(&mut guest, |request| bail!("the guest asks for '{request}'"));
    let ended = disk.disconnect(tree).and(large.disconnect(tree));
    std::fs::remove_dir_all(&scratch)?;
    let outcome = outcome?;
    ended?;
    Ok(outcome)
}
