//! The C library and GCC's library, where a package has them: which Debian package they are of, their licences, and their
//! place in the bill of materials.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::child::Task;

/// The file with the licences of these libraries, without the ending of a compressed file.
pub(super) const LICENCES: &str = "licences-of-the-c-library.txt";
/// The texts of the licences that Debian's files of copyrights only name.
const TEXTS: [&str; 2] =
    ["/usr/share/common-licenses/LGPL-2.1", "/usr/share/common-licenses/GPL-3"];

/// How the names of files of a library begin, its name, and its licence.
const KNOWN: [(&str, &str, &str); 5] = [
    ("libc.", "glibc", "LGPL-2.1-or-later"),
    ("libm.", "glibc", "LGPL-2.1-or-later"),
    ("ld-linux", "glibc", "LGPL-2.1-or-later"),
    ("libgcc_eh.", "libgcc", "GPL-3.0-or-later WITH GCC-exception-3.1"),
    ("libgcc_s.", "libgcc", "GPL-3.0-or-later WITH GCC-exception-3.1"),
];

/// Such a library as Debian has it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Library {
    pub(super) name: &'static str,
    pub(super) licence: &'static str,
    /// The Debian package.
    pub(super) package: String,
    /// The version of the Debian package.
    pub(super) version: String,
}

impl Library {
    /// Finds the Debian package of a file of a library.
    pub(super) fn find(file: &Path) -> Result<Self> {
        let (name, licence) = known(file)?;
        let query = |path: &Path| {
            Task::new("dpkg-query").args(["--search".as_ref(), path.as_os_str()]).run()
        };
        // Debian knows a file by the path at which it was packed: before or after /lib became a link to /usr/lib.
        let whole = file.canonicalize().with_context(|| file.display().to_string())?;
        let mut paths = vec![file.to_owned(), whole.clone()];
        paths.extend(whole.strip_prefix("/usr").ok().map(|rest| Path::new("/").join(rest)));
        let mut found = None;
        for path in &paths {
            let ended = query(path)?;
            if ended.success() {
                found = ended.stdout.split([':', ',']).next().map(str::to_owned);
                break;
            }
        }
        let package = found.with_context(|| {
            format!(
                "no Debian package has {}: the licences of the C library come from Debian's packages, so what contains it \
                 is made on Debian only",
                file.display()
            )
        })?;
        let shown = ["--show", "--showformat=${Version}\n", &package];
        let versions = Task::new("dpkg-query").args(shown).check()?.stdout;
        let version = versions.lines().next().unwrap_or_default().trim().to_owned();
        ensure!(!version.is_empty(), "dpkg-query names no version of {package}");
        Ok(Self { name, licence, package, version })
    }

    /// Finds the libraries of all these files, each once.
    pub(super) fn find_all<'a>(files: impl IntoIterator<Item = &'a Path>) -> Result<Vec<Self>> {
        let all: BTreeSet<Self> = files.into_iter().map(Self::find).collect::<Result<_>>()?;
        Ok(all.into_iter().collect())
    }

    fn purl(&self) -> String {
        // In such a URL these stand for themselves only when they are encoded.
        let version = self.version.replace('+', "%2B").replace(':', "%3A");
        format!("pkg:deb/debian/{}@{version}", self.package)
    }

    /// Its licence in words.
    fn copyright(&self) -> Result<String> {
        let file = format!("/usr/share/doc/{}/copyright", self.package);
        let text = std::fs::read_to_string(&file)
            .with_context(|| format!("{file} has the licence of {}", self.name))?;
        Ok(format!("\n==== {} ({} {})\n\n{text}", self.name, self.package, self.version))
    }
}

/// The name and the licence of the library that a file belongs to.
fn known(file: &Path) -> Result<(&'static str, &'static str)> {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let found = KNOWN.iter().find(|(begin, ..)| name.starts_with(begin));
    let (_, library, licence) = found.with_context(|| {
        format!("the licence of {} is not known: add it to KNOWN in c_library.rs", file.display())
    })?;
    Ok((library, licence))
}

/// The licences of the libraries in words, after a sentence of what has them.
pub(super) fn licences(preface: &str, libraries: &[Library]) -> Result<String> {
    let mut text = preface.to_owned();
    for library in libraries {
        text.push_str(&library.copyright()?);
    }
    for file in TEXTS {
        let whole = std::fs::read_to_string(file).context(file)?;
        text.push_str(&format!("\n==== {file}\n\n{whole}"));
    }
    Ok(text)
}

/// A bill of materials with the libraries, with which the program is linked.
pub(super) fn with_libraries(bill: &[u8], libraries: &[Library]) -> Result<Vec<u8>> {
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
    fn a_library_without_a_known_licence_is_refused() {
        for (file, library) in [
            ("/lib/x86_64-linux-gnu/libc.so.6", "glibc"),
            ("/lib64/ld-linux-x86-64.so.2", "glibc"),
            ("/lib/x86_64-linux-gnu/libgcc_s.so.1", "libgcc"),
        ] {
            assert_eq!(known(Path::new(file)).unwrap().0, library);
        }
        let error = known(Path::new("/lib/libcrypto.so.3")).unwrap_err().to_string();
        assert!(error.contains("libcrypto.so.3"), "{error}");
    }
}
