//! The kernel's target moves into a daemon of the same machine, and back by nvmetcli.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use super::{Part, drives, guest, script, watch};
use crate::child::Task;
use crate::raceline::Tree;
use crate::step::Outcome;

/// The variable that names the folder with nvmetcli's source, which Debian does not package.
const SOURCE: &str = "RACELINE_NVMETCLI";
/// What gets it.
const GET: &str = "git clone https://github.com/linux-nvme/nvmetcli ~/nvmetcli; export RACELINE_NVMETCLI=~/nvmetcli";
/// Debian's Python, which nvmetcli's library runs in.
const PYTHON: &str = "/usr/bin/python3";
/// Libraries that Python needs, and that the guest may not have.
const LIBRARIES: [&str; 2] = ["libz.so.1", "libexpat.so.1"];
/// Parts of Python that nvmetcli does not need.
const LEFT_OUT: [&str; 8] = [
    "test",
    "idlelib",
    "lib2to3",
    "ensurepip",
    "tkinter",
    "pydoc_data",
    "turtledemo",
    "dist-packages",
];
/// Time to copy or pack Python, in seconds.
const PACK_LIMIT_S: u64 = 120;

/// Runs the guest's script.
pub(super) fn run(tree: &Tree, image: &Path) -> Result<Outcome> {
    let dir = tree.scratch("interop-moved")?;
    let program = drives::stripped(tree, &dir)?;
    let mut task = guest(tree, image, Part::Moved).args([Path::new("-f"), &program]);
    match std::env::var_os(SOURCE) {
        Some(source) => {
            let packed = pack(&dir, Path::new(&source))?;
            task = task.args([Path::new("-f"), &packed]);
        }
        None => {
            println!(
                "# {SOURCE} names no folder with nvmetcli's source, so the check back-by-nvmetcli is skipped. To have it: {GET}"
            );
        }
    }
    let mut guest = task.args([image, &script(tree, Part::Moved)]).start()?;
    let outcome = watch(&mut guest, |request| bail!("the guest asks for '{request}'"));
    std::fs::remove_dir_all(&dir)?;
    outcome
}

/// An archive with this machine's Python and nvmetcli's library.
fn pack(dir: &Path, source: &Path) -> Result<PathBuf> {
    let library = source.join("nvmet");
    ensure!(
        library.join("nvme.py").is_file(),
        "{SOURCE}: no {}",
        library.join("nvme.py").display()
    );
    let root = dir.join("python");
    for folder in ["usr/bin", "usr/lib", "lib", "nvmetcli"] {
        std::fs::create_dir_all(root.join(folder))?;
    }
    let asked = "import sysconfig; print(sysconfig.get_path('stdlib'))";
    let standard = Task::new(PYTHON).args(["-c", asked]).check().context("Debian's python3")?;
    let standard = standard.stdout.trim();
    let name = Path::new(standard).file_name().context("Python has no library")?;
    let copied = root.join("usr/lib").join(name);
    copy(Path::new(PYTHON), &root.join("usr/bin/python3"))?;
    copy(Path::new(standard), &copied)?;
    copy(&library, &root.join("nvmetcli/nvmet"))?;
    for part in LEFT_OUT {
        let part = copied.join(part);
        if part.is_dir() {
            std::fs::remove_dir_all(part)?;
        }
    }
    for library in LIBRARIES {
        copy(&Path::new("/lib/x86_64-linux-gnu").join(library), &root.join("lib").join(library))?;
    }
    let packed = dir.join("nvmetcli.tar");
    Task::new("tar")
        .args([
            Path::new("-C"),
            &root,
            Path::new("--exclude=__pycache__"),
            Path::new("-cf"),
            &packed,
        ])
        .args(["."])
        .limit(PACK_LIMIT_S)
        .check()?;
    Ok(packed)
}

/// Copies a file or a folder; the top is followed when it is a link.
fn copy(from: &Path, to: &Path) -> Result<()> {
    Task::new("cp")
        .args([Path::new("-rH"), from, to])
        .limit(PACK_LIMIT_S)
        .check()
        .with_context(|| format!("cannot copy {}", from.display()))?;
    Ok(())
}
