//! Python packages that judge Raceline: each installed once below the build folder, from PyPI.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::child::Task;

/// Time for a download of a package and what it needs, in seconds.
const INSTALL_LIMIT_S: u64 = 300;

/// The file of an environment that says which package it has, written when all of it is there.
const MARK: &str = "installed";

/// A file of the environment that has this package (`name==version`), which is installed if another one, or none, is there.
///
/// # Errors
/// When python3-venv is not there, or pip cannot install the package.
pub(crate) fn install(environment: &Path, package: &str, file: &str) -> Result<PathBuf> {
    let file = environment.join(file);
    let mark = environment.join(MARK);
    let is_installed = std::fs::read_to_string(&mark).is_ok_and(|installed| installed == package);
    if file.is_file() && is_installed {
        return Ok(file);
    }
    let install = || {
        make(environment, &[], package)?;
        is_there(&file, package)?;
        Ok(std::fs::write(&mark, package)?)
    };
    let installed = install().map(|()| file.clone());
    if installed.is_err() && environment.exists() {
        // An incomplete environment must not count as a complete one next time.
        std::fs::remove_dir_all(environment)?;
    }
    installed
}

/// A file of this package (`name==version`) alone, which is kept below the folder: nothing else of the package stays there, and
/// what the package needs is not installed.
///
/// # Errors
/// When python3-venv is not there, or pip cannot install the package, or the package has no such file.
pub(crate) fn file(folder: &Path, package: &str, file: &str) -> Result<PathBuf> {
    let kept = folder.join(package).join(file);
    if kept.is_file() {
        return Ok(kept);
    }
    let environment = folder.join("new");
    let packages = environment.join("packages");
    let target = packages.to_string_lossy();
    let take = || {
        make(&environment, &["--no-deps", "--no-compile", "--target", &target], package)?;
        let found = packages.join(file);
        is_there(&found, package)?;
        std::fs::create_dir_all(kept.parent().context("a file without a folder")?)?;
        Ok(std::fs::rename(&found, &kept)?)
    };
    let taken = take();
    if environment.exists() {
        std::fs::remove_dir_all(&environment)?;
    }
    taken.map(|()| kept)
}

/// A new environment with this package.
fn make(environment: &Path, options: &[&str], package: &str) -> Result<()> {
    println!("installing the Python package {package}");
    if environment.exists() {
        std::fs::remove_dir_all(environment)?;
    }
    let made = Task::new("python3").args(["-m", "venv"]).args([environment]).limit(120).check();
    made.context("python3 -m venv (Debian: python3-venv)")?;
    let pip = environment.join("bin/pip");
    let args = ["install", "--quiet", "--disable-pip-version-check", "--retries", "1"];
    let task = Task::new(&pip).args(args).args(options).args([package]);
    let installed = task.limit(INSTALL_LIMIT_S).run()?;
    let last = installed.output.lines().last().unwrap_or_default();
    ensure!(installed.success(), "pip cannot install {package}: {last}");
    Ok(())
}

fn is_there(file: &Path, package: &str) -> Result<()> {
    ensure!(file.is_file(), "{package} has no {}", file.display());
    Ok(())
}
