//! The reproducible step: release builds of one commit, in different folders and surroundings, give the same packages.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::{differences, portable};
use crate::child::{Task, has_program};
use crate::raceline::Tree;
use crate::step::{Checks, Outcome};

/// Names a folder with packages of this commit that were made before, perhaps elsewhere: one build is enough then.
const MADE_BEFORE: &str = "RACELINE_PACKAGES";
/// Time for a release build and its packages, in seconds.
const BUILD_LIMIT_S: u64 = 3600;

/// The surroundings of a build.
struct Place {
    /// The folder of the clone, below that of the step.
    folder: &'static str,
    umask: &'static str,
    locale: &'static str,
    zone: &'static str,
}

const PLACES: [Place; 2] = [
    Place { folder: "a", umask: "022", locale: "C", zone: "UTC" },
    Place {
        folder: "another/folder/whose-name-is-longer",
        umask: "077",
        locale: "C.UTF-8",
        zone: "Pacific/Kiritimati",
    },
];

/// Runs the step.
pub(crate) fn run(tree: &Tree) -> Result<Outcome> {
    if !has_program("git") {
        return Ok(Outcome::Skipped("missing: git (package git)".to_owned()));
    }
    let commit = git(&tree.root, &["rev-parse", "HEAD"])?;
    let changed = git(&tree.root, &["status", "--porcelain"])?;
    let without =
        if changed.is_empty() { "" } else { ", without the changes that are not committed" };
    println!("# commit {}{without}", &commit[..12.min(commit.len())]);
    let scratch = tree.scratch("reproducible")?;
    let mut checks = Checks::default();
    let [first, second] = &PLACES;
    let expected = match std::env::var_os(MADE_BEFORE) {
        Some(folder) => tree.root.join(folder),
        None => build(tree, &commit, first, false, &scratch)?,
    };
    let names = names(&expected)?;
    // The static program takes a build more, which is made where there is something to compare it with.
    let is_static = names.iter().any(|name| name.ends_with(portable::ENDING));
    let built = build(tree, &commit, second, is_static, &scratch)?;
    for name in names {
        checks.run(&name, || {
            let built = built.join(&name);
            ensure!(built.exists(), "this commit makes no {name}");
            let different = differences::files(&expected.join(&name), &built)?;
            ensure!(different.is_empty(), "{}", different.join("\n"));
            println!("# {} {name}", sum(&built)?);
            Ok(())
        });
    }
    if checks.all_passed() {
        std::fs::remove_dir_all(&scratch)?;
    }
    checks.outcome()
}

fn git(root: &Path, args: &[&str]) -> Result<String> {
    Ok(Task::new("git").args(args).dir(root).check()?.stdout.trim().to_owned())
}

/// Clones the commit, builds it and packages it; the folder with the packages.
fn build(
    tree: &Tree,
    commit: &str,
    place: &Place,
    is_static: bool,
    scratch: &Path,
) -> Result<PathBuf> {
    let started = Instant::now();
    let clone = scratch.join(place.folder);
    let text = clone.to_string_lossy().into_owned();
    let from = tree.root.to_string_lossy().into_owned();
    Task::new("git").args(["clone", "--quiet", &from, &text]).limit(300).check()?;
    git(&clone, &["checkout", "--quiet", "--detach", commit])?;
    let this = std::env::current_exe().context("the path of this program")?;
    let more = if is_static { " --static" } else { "" };
    let script = format!("umask {} && exec \"$0\" package --tree \"$1\"{more}", place.umask);
    let Place { umask, locale, zone, .. } = place;
    Task::new("sh")
        .args(["-c".as_ref(), script.as_ref(), this.as_os_str(), clone.as_os_str()])
        .env("CARGO_TARGET_DIR", clone.join("target"))
        .env("LC_ALL", locale)
        .env("TZ", zone)
        .limit(BUILD_LIMIT_S)
        .check()?;
    let took = started.elapsed().as_secs();
    println!("# {text}: umask {umask}, locale {locale}, time zone {zone}: {took} s");
    Ok(clone.join("target/dist"))
}

/// The program and the packages in a folder.
fn names(folder: &Path) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for file in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let name = file?.file_name().to_string_lossy().into_owned();
        if name == "raceline"
            || [".deb", ".rpm", ".tar", ".json", portable::ENDING]
                .iter()
                .any(|end| name.ends_with(end))
        {
            names.insert(name);
        }
    }
    ensure!(!names.is_empty(), "{} has no packages", folder.display());
    Ok(names)
}

fn sum(file: &Path) -> Result<String> {
    let ended = Task::new("sha256sum").args([file]).check()?;
    Ok(ended.stdout.split_whitespace().next().unwrap_or_default().to_owned())
}
