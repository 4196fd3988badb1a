//! The static program and its archive: the program needs nothing of its machine but the kernel, and the archive has the
//! licences of the C library, which is a part of it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::archive::{Entry, gzip, tar};
use super::c_library::{LICENCES, Library, licences, with_libraries};
use super::supply::Supply;
use super::{arch, strip};
use crate::child::{Task, has_program};
use crate::raceline::Tree;

/// Names a static build of the program that was made before.
const MADE_BEFORE: &str = "RACELINE_STATIC_BINARY";
/// The end of the archive's name.
pub(super) const ENDING: &str = ".static.tar.gz";
/// What stands before the licences of the C library.
const PREFACE: &str = "This program contains the C library and GCC's library for unwinding, which stand below with their licences. The source of
the program is whole and free, so it can be linked anew with another version of them: `cargo xtask package --static`.
";

/// The libraries of the C compiler that are a part of the program, as the compiler is asked for their files.
const LIBRARIES: [&str; 2] = ["libc.a", "libgcc_eh.a"];

/// The file of a library that the linker takes.
fn linked(file: &str) -> Result<PathBuf> {
    let asked = Task::new("cc").args([format!("-print-file-name={file}")]).check()?.stdout;
    let path = Path::new(asked.trim()).canonicalize();
    path.with_context(|| format!("no {file} (package libc6-dev or libgcc-*-dev)"))
}

/// The release build of the static program, or another one that [`MADE_BEFORE`] names.
pub(super) fn program(tree: &Tree) -> Result<PathBuf> {
    match std::env::var_os(MADE_BEFORE) {
        Some(binary) => Ok(tree.root.join(binary)),
        None => tree.static_program(),
    }
}

/// Writes the archive of a static program into a folder. The same program and the same commit give the same bytes.
pub(super) fn make(tree: &Tree, program: &Path, out: &Path, time_s: u64) -> Result<PathBuf> {
    std::fs::create_dir_all(out)?;
    let stripped = out.join("raceline.static");
    strip(program, &stripped)?;
    let supply = Supply::read(&tree.root)?;
    supply.check(&super::rules::Rules::read(&tree.root)?)?;
    let files = LIBRARIES.into_iter().map(linked).collect::<Result<Vec<_>>>()?;
    let libraries = Library::find_all(files.iter().map(PathBuf::as_path))?;
    let entries = entries(tree, &stripped, &supply, &libraries, time_s)?;
    let folder = format!("raceline-{}/", supply.version);
    let entries: Vec<Entry> = entries
        .into_iter()
        .map(|entry| Entry { path: format!("{folder}{}", entry.path), ..entry })
        .collect();
    let archive = out.join(format!("raceline_{}_{}{ENDING}", supply.version, arch()?));
    std::fs::write(&archive, gzip(&tar("", &entries, time_s)?)?)?;
    Ok(archive)
}

/// What is in the archive.
fn entries(
    tree: &Tree,
    program: &Path,
    supply: &Supply,
    libraries: &[Library],
    time_s: u64,
) -> Result<Vec<Entry>> {
    let root = &tree.root;
    let mut entries = vec![Entry::file("raceline", 0o755, std::fs::read(program)?)];
    let pages = program.with_extension("man");
    Task::new(program).args(["man", &pages.to_string_lossy()]).limit(60).check()?;
    for page in std::fs::read_dir(&pages)? {
        let page = page?;
        let path = format!("man/man1/{}", page.file_name().to_string_lossy());
        entries.push(Entry::file(&path, 0o644, std::fs::read(page.path())?));
    }
    std::fs::remove_dir_all(&pages)?;
    for name in ["CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT"] {
        let text = std::fs::read(root.join(name)).with_context(|| name.to_owned())?;
        entries.push(Entry::file(name, 0o644, text));
    }
    let bill = with_libraries(&supply.sbom(root, &super::rfc3339(time_s)?)?, libraries)?;
    entries.push(Entry::file("sbom.cdx.json", 0o644, bill));
    entries.push(Entry::file("licences.txt", 0o644, supply.texts(root)?));
    entries.push(Entry::file(LICENCES, 0o644, licences(PREFACE, libraries)?));
    Ok(entries)
}

/// The program has no interpreter and needs no library.
pub(super) fn stands_alone(program: &Path) -> Result<()> {
    let read = |what: &str| -> Result<String> {
        let args = [what.as_ref(), "--wide".as_ref(), program.as_os_str()];
        Ok(Task::new("readelf").args(args).env("LC_ALL", "C").check()?.stdout)
    };
    let headers = read("--program-headers")?;
    ensure!(headers.contains("LOAD"), "readelf shows no segments:\n{headers}");
    ensure!(!headers.contains("INTERP"), "the program names an interpreter:\n{headers}");
    let dynamic = read("--dynamic")?;
    ensure!(!dynamic.contains("(NEEDED)"), "the program needs libraries:\n{dynamic}");
    // It is still loaded at an address that nobody knows before.
    ensure!(read("--file-header")?.contains("DYN ("), "the program has fixed addresses");
    let ldd = Task::new("ldd").args([program]).env("LC_ALL", "C").run()?;
    ensure!(ldd.output.contains("statically linked"), "ldd says:\n{}", ldd.tail(5));
    if has_program("file") {
        let said = Task::new("file").args(["--brief".as_ref(), program.as_os_str()]).check()?;
        let is_static = ["static-pie linked", "statically linked"];
        ensure!(is_static.iter().any(|word| said.stdout.contains(word)), "{}", said.stdout);
        println!("# {}", said.stdout.trim());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_with_libraries_does_not_stand_alone() {
        let error = stands_alone(&std::env::current_exe().unwrap()).unwrap_err().to_string();
        assert!(error.contains("interpreter"), "{error}");
    }
}
