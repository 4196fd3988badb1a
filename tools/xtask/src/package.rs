//! `cargo xtask package`: a Debian package, an OCI image and a list of what is in them; and the step that proves them.

mod archive;
mod check;
mod deb;
mod image;
mod supply;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::child::{Task, has_program};
use crate::raceline::Tree;

pub(crate) use check::{run, run_in_roots};

/// Options of the verb.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// Where the packages go.
    #[arg(long, value_name = "DIR", default_value = "target/dist")]
    out: PathBuf,
    /// Package this build of the program instead of the release build.
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
}

/// What was packaged.
#[derive(Clone, Debug)]
pub(crate) struct Packages {
    deb: PathBuf,
    image: PathBuf,
    sbom: PathBuf,
}

/// Builds all packages, and prints where they are.
pub(crate) fn build(tree: &Tree, options: &Options) -> Result<()> {
    let binary = match &options.binary {
        Some(binary) => binary.clone(),
        None => tree.binary()?.to_owned(),
    };
    let made = make(tree, &binary, &tree.root.join(&options.out))?;
    for file in [&made.deb, &made.image, &made.sbom] {
        println!("{} ({} bytes)", file.display(), std::fs::metadata(file)?.len());
    }
    Ok(())
}

/// Builds all packages from a program. The same program and the same commit give the same bytes.
fn make(tree: &Tree, binary: &Path, out: &Path) -> Result<Packages> {
    if out.exists() {
        std::fs::remove_dir_all(out)?;
    }
    std::fs::create_dir_all(out)?;
    let time_s = source_date(&tree.root)?;
    let program = out.join("raceline");
    strip(binary, &program)?;
    let supply = supply::Supply::read(&tree.root)?;
    supply.check()?;
    let name = format!("raceline_{}_{}", supply.version, arch()?);
    let files = deb::files(&tree.root, &program, &supply, out)?;
    let made = Packages {
        deb: out.join(format!("{name}.deb")),
        image: out.join(format!("{name}.oci.tar")),
        sbom: out.join(format!("{name}.cdx.json")),
    };
    std::fs::write(&made.deb, deb::package(&supply.version, &files, time_s)?)?;
    std::fs::write(&made.image, image::image(&program, &supply, time_s)?)?;
    std::fs::write(&made.sbom, supply.sbom()?)?;
    Ok(made)
}

/// The time that stands in the packages: SOURCE_DATE_EPOCH, or else that of the commit.
fn source_date(root: &Path) -> Result<u64> {
    if let Ok(time) = std::env::var("SOURCE_DATE_EPOCH") {
        return time.parse().context("SOURCE_DATE_EPOCH is no number of seconds");
    }
    let ended = Task::new("git").args(["log", "-1", "--format=%ct"]).dir(root).run()?;
    // A source archive has no history.
    Ok(if ended.success() { ended.stdout.trim().parse()? } else { 0 })
}

/// The program without what only debuggers need.
fn strip(binary: &Path, to: &Path) -> Result<()> {
    ensure!(has_program("strip"), "missing: strip (package binutils)");
    let (from, into) = (binary.to_string_lossy().into_owned(), to.to_string_lossy().into_owned());
    Task::new("strip").args(["-o", &into, &from]).check()?;
    Ok(())
}

/// The architecture by Debian's name, which is that of OCI, too.
fn arch() -> Result<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("amd64"),
        "aarch64" => Ok("arm64"),
        other => anyhow::bail!("no package for {other}"),
    }
}
