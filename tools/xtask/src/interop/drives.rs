//! `raceline serve` in the guest, on an emulated NVMe drive of that machine.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use super::{Part, guest, script, watch};
use crate::child::Task;
use crate::raceline::Tree;
use crate::step::Outcome;

/// Where the drive is plugged in: slot 10h of the first bus.
const ADDRESS: &str = "0000:00:10.0";
/// Bytes of each of its two namespaces.
const NAMESPACE_BYTES: u64 = 64 << 20;
/// Time to copy the program without its line tables, in seconds.
const STRIP_LIMIT_S: u64 = 60;

/// Runs the guest's script.
pub(super) fn run(tree: &Tree, image: &Path) -> Result<Outcome> {
    let dir = tree.scratch("interop-drives")?;
    let program = stripped(tree, &dir)?;
    let drive = drive(&dir)?;
    let mut guest = guest(tree, image, Part::Drives)
        .env("QEMU_ARGS", drive)
        .args([Path::new("-f"), &program])
        .args(["-e", &format!("DRIVE={ADDRESS}")])
        .args([image, &script(tree, Part::Drives)])
        .start()?;
    let outcome = watch(&mut guest, |request| bail!("the guest asks for '{request}'"));
    std::fs::remove_dir_all(&dir)?;
    outcome
}

/// The program without its line tables, which an emulated CPU would take long to copy.
pub(super) fn stripped(tree: &Tree, dir: &Path) -> Result<PathBuf> {
    let program = dir.join("raceline");
    Task::new("strip")
        .args([Path::new("-o"), &program, tree.binary()?])
        .limit(STRIP_LIMIT_S)
        .check()
        .context("cannot copy the program for the guest")?;
    Ok(program)
}

/// QEMU's arguments for a drive with a namespace of 512-byte blocks and one of 4096-byte blocks.
fn drive(dir: &Path) -> Result<String> {
    let slot = ADDRESS.rsplit(':').next().and_then(|slot| slot.split('.').next());
    let slot = slot.context("no slot")?;
    let mut words = vec![format!("-device nvme,id=nvme0,serial=raceline,addr=0x{slot}")];
    for (nsid, block_size) in [(1, 512), (2, 4096)] {
        let file = dir.join(format!("namespace-{nsid}"));
        std::fs::File::create(&file)?.set_len(NAMESPACE_BYTES)?;
        let file = file.display();
        words.push(format!("-drive if=none,id=n{nsid},format=raw,cache=unsafe,file={file}"));
        words.push(format!(
            "-device nvme-ns,bus=nvme0,drive=n{nsid},nsid={nsid},logical_block_size={block_size},\
             physical_block_size={block_size}"
        ));
    }
    Ok(words.join(" "))
}
