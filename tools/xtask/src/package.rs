//! `cargo xtask package`: a Debian and an RPM package, an OCI image and a list of what is in them; and the step that proves them.

mod advisories;
mod archive;
mod build_id;
mod c_library;
mod check;
mod containers;
mod deb;
mod deny;
mod differences;
mod guide;
mod image;
mod pages;
mod portable;
mod ranges;
mod reproducible;
mod roots;
mod rpm;
mod rules;
mod static_binary;
mod supply;
#[cfg(test)]
mod upgrade;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::child::{Task, has_program};
use crate::raceline::Tree;

pub(crate) use advisories::write as write_advisories;
pub(crate) use check::run;
pub(crate) use reproducible::run as run_reproducible;
pub(crate) use roots::run as run_in_roots;
pub(crate) use rules::run as run_supply_chain;
pub(crate) use static_binary::run as run_static_binary;

/// Options of the verb.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// Where the packages go.
    #[arg(long, value_name = "DIR", default_value = "target/dist")]
    out: PathBuf,
    /// Package this build of the program instead of the release build.
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Package the repository in this folder instead of the one that this program was built in; paths are relative to it.
    #[arg(long, value_name = "DIR", conflicts_with = "binary")]
    tree: Option<PathBuf>,
    /// Also build the program as a static one, which needs nothing of its machine but the kernel, and has no RDMA.
    #[arg(long = "static")]
    is_static: bool,
}

/// What was packaged.
#[derive(Clone, Debug)]
pub(crate) struct Packages {
    version: String,
    deb: PathBuf,
    rpm: PathBuf,
    image: PathBuf,
    sbom: PathBuf,
}

impl Packages {
    fn files(&self) -> [&Path; 4] {
        [&self.deb, &self.rpm, &self.image, &self.sbom]
    }
}

/// Builds all packages, and prints where they are.
pub(crate) fn build(tree: &Tree, options: &Options) -> Result<()> {
    let other = options.tree.as_deref().map(Tree::at).transpose()?;
    let tree = other.as_ref().unwrap_or(tree);
    let binary = match (&options.binary, &other) {
        (Some(binary), _) => binary.clone(),
        (None, Some(other)) => other.binary()?.to_owned(),
        (None, None) => binary(tree)?,
    };
    let out = tree.root.join(&options.out);
    let made = make(tree, &binary, &out)?;
    let portable = options.is_static.then(|| {
        let program = portable::program(tree)?;
        portable::make(tree, &program, &out, source_date(&tree.root)?)
    });
    let portable = portable.transpose()?;
    for file in made.files().into_iter().chain(portable.as_deref()) {
        println!("{} ({} bytes)", file.display(), std::fs::metadata(file)?.len());
    }
    Ok(())
}

/// The Debian package of the program that the steps package.
pub(crate) fn deb(tree: &Tree, out: &Path) -> Result<PathBuf> {
    Ok(make(tree, &binary(tree)?, out)?.deb)
}

/// The program that the steps package: the release build, or another one that this variable names.
fn binary(tree: &Tree) -> Result<PathBuf> {
    match std::env::var_os("RACELINE_BINARY") {
        Some(binary) => Ok(binary.into()),
        None => Ok(tree.binary()?.to_owned()),
    }
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
    supply.check(&rules::Rules::read(&tree.root)?)?;
    let name = format!("raceline_{}_{}", supply.version, arch()?);
    let sbom = supply.sbom(&tree.root, &rfc3339(time_s)?)?;
    let files = deb::files(&tree.root, &program, (&supply, &sbom), out)?;
    let made = Packages {
        version: supply.version.clone(),
        deb: out.join(format!("{name}.deb")),
        rpm: out.join(rpm::name(&supply.version)?),
        image: out.join(format!("{name}.oci.tar")),
        sbom: out.join(format!("{name}.cdx.json")),
    };
    std::fs::write(&made.deb, deb::package(&supply.version, &files, time_s)?)?;
    std::fs::write(&made.rpm, rpm::package((&supply.version, &supply.licence()), &files, time_s)?)?;
    std::fs::write(&made.image, image::image(&tree.root, &program, (&supply, &sbom), time_s)?)?;
    std::fs::write(&made.sbom, sbom)?;
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

/// Seconds since 1970 as bills of materials have it.
fn rfc3339(time_s: u64) -> Result<String> {
    let time = format!("@{time_s}");
    let ended = Task::new("date").args(["-u", "-d", &time, "+%Y-%m-%dT%H:%M:%SZ"]).check()?;
    Ok(ended.stdout.trim().to_owned())
}

/// The program without what only debuggers need, and with a build id that does not come from there.
fn strip(binary: &Path, to: &Path) -> Result<()> {
    ensure!(has_program("strip"), "missing: strip (package binutils)");
    let (from, into) = (binary.to_string_lossy().into_owned(), to.to_string_lossy().into_owned());
    Task::new("strip").args(["-o", &into, &from]).check()?;
    build_id::renew(to)
}

/// The architecture by Debian's name, which is that of OCI, too.
fn arch() -> Result<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("amd64"),
        "aarch64" => Ok("arm64"),
        other => anyhow::bail!("no package for {other}"),
    }
}
