//! xfstests' quick generic tests in the guest, on disks of ours.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};

use super::{Part, cache, drives, guest, script, watch};
use crate::child::{Task, has_program};
use crate::raceline::Tree;
use crate::step::Outcome;

/// The variable that names the folder with the source of xfstests, which Debian does not package.
const SOURCE: &str = "RACELINE_XFSTESTS";
/// What gets it.
const GET: &str = "git clone https://git.kernel.org/pub/scm/fs/xfs/xfstests-dev.git ~/xfstests; \
    export RACELINE_XFSTESTS=~/xfstests";
/// The variable that has other arguments for `check`, such as `-g quick`.
const ARGUMENTS: &str = "RACELINE_XFSTESTS_ARGS";
/// Tests of data, holes, mappings, asynchronous I/O, discard, and of what a file system finds after a power cut. They are short
/// on an emulated processor; fsx (075) takes the longest.
const TESTS: &str = "029 030 031 033 052 075 198 240 260 288 325 335 341 427 436 450 469 498";
/// The variable with the time for the tests on one kind of disk, in seconds.
const SECONDS: &str = "RACELINE_XFSTESTS_SECONDS";
/// That time where the variable is not set. On RAM disks the tests took about 150 s together, on two cores with a load of 3 to 8, and
/// 1,407 s with a load of 12 to 20.
const KIND_LIMIT_S: u64 = 1800;
/// How many kinds of disks there are.
const KINDS: u64 = 3;
/// Time for all else in the guest, in seconds.
const REST_LIMIT_S: u64 = 900;
/// Time to make the disk with xfstests, in seconds.
const DISK_LIMIT_S: u64 = 1200;

/// Runs the guest's script.
pub(super) fn run(tree: &Tree, image: &Path) -> Result<Outcome> {
    let Some(source) = std::env::var_os(SOURCE) else {
        let why =
            format!("{SOURCE} names no folder with the source of xfstests. To have it: {GET}");
        return Ok(Outcome::Skipped(why));
    };
    if !has_program("mmdebstrap") {
        return Ok(Outcome::Skipped("no mmdebstrap (apt install mmdebstrap)".to_owned()));
    }
    let kind_limit_s: u64 = match std::env::var(SECONDS) {
        Ok(seconds) => {
            seconds.parse().with_context(|| format!("{SECONDS} is '{seconds}': no seconds"))?
        }
        Err(_) => KIND_LIMIT_S,
    };
    let limit_s = KINDS * kind_limit_s + REST_LIMIT_S;
    let (tests, some) = match std::env::var(ARGUMENTS) {
        Ok(arguments) => (arguments, "1"),
        Err(_) => (TESTS.split_whitespace().map(|test| format!("generic/{test} ")).collect(), ""),
    };
    let disk = disk(tree, Path::new(&source))?;
    let dir = tree.scratch("interop-xfstests")?;
    let program = drives::stripped(tree, &dir)?;
    let drive = format!(
        "-drive if=none,id=x0,format=raw,snapshot=on,cache=unsafe,file={} -device virtio-blk-pci,drive=x0",
        disk.display()
    );
    // (of an option that is given twice, the last counts)
    let mut guest = guest(tree, image, Part::Xfstests)
        .args(["-t", &limit_s.to_string(), "-m", "4096"])
        .args(["-e", &format!("TESTS={tests}"), "-e", &format!("MOST={kind_limit_s}")])
        .args(["-e", &format!("SOME={some}")])
        .args([Path::new("-f"), &program])
        .args([image, &script(tree, Part::Xfstests)])
        .env("QEMU_ARGS", &drive)
        .limit(limit_s + 20)
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
