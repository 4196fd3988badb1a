//! The static program and its archive: the program needs nothing of its machine but the kernel, and the archive has the
//! licences of the C library, which is a part of it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::archive::{Entry, gzip, tar};
use super::supply::Supply;
use super::{arch, strip};
use crate::child::{Task, has_program};
use crate::raceline::Tree;

/// Names a static build of the program that was made before.
const MADE_BEFORE: &str = "RACELINE_STATIC_BINARY";
/// The end of the archive's name.
pub(super) const ENDING: &str = ".static.tar.gz";
/// The text of the licence of glibc, on Debian.
const LGPL: &str = "/usr/share/common-licenses/LGPL-2.1";
/// What stands before the licences of the C library.
const PREFACE: &str = "This program contains the C library and GCC's library for unwinding, which stand below with their licences. The source of
the program is whole and free, so it can be linked anew with another version of them: `cargo xtask package --static`.
";

/// A library of the C compiler that is a part of the program: how the compiler is asked for its file, and the licence.
const LIBRARIES: [(&str, &str, &str); 2] = [
    ("glibc", "libc.a", "LGPL-2.1-or-later"),
    ("libgcc", "libgcc_eh.a", "GPL-3.0-or-later WITH GCC-exception-3.1"),
];

/// Such a library as Debian has it.
struct Library {
    name: &'static str,
    licence: &'static str,
    package: String,
    version: String,
}

impl Library {
    /// Finds the Debian package of the file that the linker takes.
    fn find((name, file, licence): (&'static str, &str, &'static str)) -> Result<Self> {
        let asked = Task::new("cc").args([format!("-print-file-name={file}")]).check()?.stdout;
        let path = Path::new(asked.trim()).canonicalize();
        let path =
            path.with_context(|| format!("no {file} (package libc6-dev or libgcc-*-dev)"))?;
        let owner = Task::new("dpkg-query").args(["--search".as_ref(), path.as_os_str()]).check();
        let owner = owner.context(
            "the archive takes the licences of the C library from Debian's packages, and is made on Debian only",
        )?;
        let package = owner.stdout.split([':', ',']).next().unwrap_or_default().to_owned();
        let shown = ["--show", "--showformat=${Version}", &package];
        let version = Task::new("dpkg-query").args(shown).check()?.stdout.trim().to_owned();
        Ok(Self { name, licence, package, version })
    }

    fn purl(&self) -> String {
        // In such a URL these stand for themselves only when they are encoded.
        let version = self.version.replace('+', "%2B").replace(':', "%3A");
        format!("pkg:deb/debian/{}@{version}", self.package)
    }

    /// Its licence in words.
    fn copyright(&self) -> Result<String> {
        let file = format!("/usr/share/doc/{}/copyright", self.package);
        let text = std::fs::read_to_string(&file).with_context(|| {
            format!("{file} has the licence of {}, which is a part of the program", self.name)
        })?;
        Ok(format!("\n==== {} ({} {})\n\n{text}", self.name, self.package, self.version))
    }
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
    let libraries = LIBRARIES.into_iter().map(Library::find).collect::<Result<Vec<_>>>()?;
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
    let mut text = PREFACE.to_owned();
    for library in libraries {
        text.push_str(&library.copyright()?);
    }
    let lgpl = std::fs::read_to_string(LGPL).context(LGPL)?;
    text.push_str(&format!("\n==== {LGPL}\n\n{lgpl}"));
    entries.push(Entry::file("licences-of-the-c-library.txt", 0o644, text));
    Ok(entries)
}

/// A bill of materials with the libraries of the C compiler, with which the program is linked.
fn with_libraries(bill: &[u8], libraries: &[Library]) -> Result<Vec<u8>> {
    let mut bill: Value = serde_json::from_slice(bill)?;
    let program = bill["metadata"]["component"]["bom-ref"].clone();
    for library in libraries {
        let purl = library.purl();
        let component = json!({
            "type": "library", "bom-ref": purl, "name": library.name, "version": library.version, "purl": purl,
            "licenses": [{ "expression": library.licence }],
        });
        bill["components"].as_array_mut().context("no components")?.push(component);
        let links = bill["dependencies"].as_array_mut().context("no dependencies")?;
        let link = links.iter_mut().find(|link| link["ref"] == program);
        let link = link.context("the program depends on nothing")?;
        link["dependsOn"].as_array_mut().context("no dependencies")?.push(json!(purl));
    }
    Ok(serde_json::to_vec_pretty(&bill)?)
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
    fn the_bill_of_materials_has_the_c_library() {
        let bill = json!({
            "metadata": { "component": { "bom-ref": "pkg:cargo/raceline@1" } },
            "components": [],
            "dependencies": [{ "ref": "a", "dependsOn": [] }, { "ref": "pkg:cargo/raceline@1", "dependsOn": ["a"] }],
        });
        let library = Library {
            name: "glibc",
            licence: "LGPL-2.1-or-later",
            package: "libc6-dev".to_owned(),
            version: "1:2.36-9+deb12u10".to_owned(),
        };
        let bill = with_libraries(&serde_json::to_vec(&bill).unwrap(), &[library]).unwrap();
        let bill: Value = serde_json::from_slice(&bill).unwrap();
        let purl = "pkg:deb/debian/libc6-dev@1%3A2.36-9%2Bdeb12u10";
        assert_eq!(bill["components"][0]["bom-ref"], purl);
        assert_eq!(bill["dependencies"][1]["dependsOn"], json!(["a", purl]));
    }

    #[test]
    fn a_program_with_libraries_does_not_stand_alone() {
        let error = stands_alone(&std::env::current_exe().unwrap()).unwrap_err().to_string();
        assert!(error.contains("interpreter"), "{error}");
    }
}
