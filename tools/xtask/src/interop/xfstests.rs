//! xfstests' quick generic tests in the guest, on disks of ours.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};

use super::{Part, XFSTESTS_LIMIT_S, cache, drives, guest, script, watch};
use crate::child::{Task, has_program};
use crate::raceline::Tree;
use crate::step::Outcome;

/// The variable that names the folder with the source of xfstests, which Debian does not package.
const SOURCE: &str = "RACELINE_XFSTESTS";
/// The variable that has other arguments for `check`, such as `-g quick`.
const ARGUMENTS: &str = "RACELINE_XFSTESTS_ARGS";
/// Quick tests of data, holes, discard, mappings, asynchronous I/O, and of what a file system finds after a power cut.
const TESTS: &str = "001 005 006 007 011 013 020 053 069 075 091 112 113 130 198 207 214 221 228 236 245 255 257 260 263 286 288 \
                     321 322 325";
/// Time to make the disk with xfstests, in seconds.
const DISK_LIMIT_S: u64 = 1200;

/// Runs the guest's script.
pub(super) fn run(tree: &Tree, image: &Path) -> Result<Outcome> {
    let Some(source) = std::env::var_os(SOURCE) else {
        let why = format!("{SOURCE} names no folder with the source of xfstests");
        return Ok(Outcome::Skipped(why));
    };
    if !has_program("debootstrap") {
        return Ok(Outcome::Skipped("no debootstrap (apt install debootstrap)".to_owned()));
    }
    let disk = disk(tree, Path::new(&source))?;
    let tests = match std::env::var(ARGUMENTS) {
        Ok(arguments) => arguments,
        Err(_) => TESTS.split(' ').map(|test| format!("generic/{test} ")).collect(),
    };
    let dir = tree.scratch("interop-xfstests")?;
    let program = drives::stripped(tree, &dir)?;
    let drive = format!(
        "-drive if=none,id=x0,format=raw,snapshot=on,cache=unsafe,file={} -device virtio-blk-pci,drive=x0",
        disk.display()
    );
    let mut guest = guest(tree, image, Part::Xfstests)
        .args(["-m", "4096"])
        .args(["-e", &format!("TESTS={tests}"), "-e", &format!("MOST={}", XFSTESTS_LIMIT_S / 4)])
        .args([Path::new("-f"), &program])
        .args([image, &script(tree, Part::Xfstests)])
        .env("QEMU_ARGS", &drive)
        .start()?;
    let outcome = watch(&mut guest, |request| bail!("the guest asks for '{request}'"));
    std::fs::remove_dir_all(&dir)?;
    outcome
}

/// The disk with xfstests, which is made once.
fn disk(tree: &Tree, source: &Path) -> Result<PathBuf> {
    let folder = cache(tree).join("xfstests");
    let made = Task::new(tree.root.join("interop/xfstests-disk.sh"))
        .args([source, &folder])
        .limit(DISK_LIMIT_S)
        .check()?;
    let disk = PathBuf::from(made.stdout.lines().last().unwrap_or_default());
    ensure!(disk.is_file(), "no disk {}", disk.display());
    Ok(disk)
}
