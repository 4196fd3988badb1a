//! What the program is made of: its crates, their licences and origins; the bill of materials.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::{Value, json};

use super::rules::{self, Rules};
use crate::child::Task;

/// The beginnings of names of files with texts of licences.
const TEXTS: [&str; 4] = ["LICENSE", "LICENCE", "COPYING", "NOTICE"];
/// Licences whose text is the same for everybody, and its file here: for crates whose archives have no text.
const STANDARD: [(&str, &str); 1] = [("Apache-2.0", "LICENSE-APACHE")];
/// The largest text of a licence.
const MOST_TEXT_BYTES: u64 = 256 << 10;

/// A crate that is in the program.
#[derive(Clone, Debug)]
pub(super) struct Crate {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) licence: String,
    /// `None`: of this repository.
    pub(super) source: Option<String>,
    pub(super) folder: PathBuf,
    /// The names by which the bill of materials refers to the crates that it is linked with.
    pub(super) linked_with: Vec<String>,
}

impl Crate {
    /// Its package URL, by which the bill of materials refers to it.
    fn purl(&self) -> String {
        purl(&self.name, &self.version)
    }

    /// The texts of its licences: those of its archive, or else the standard text of a licence that it leaves as a choice.
    fn texts(&self, root: &Path) -> Result<Vec<String>> {
        for is_deep in [false, true] {
            let texts = texts_in(&self.folder, is_deep)?;
            if !texts.is_empty() {
                return Ok(texts);
            }
        }
        let standard = STANDARD
            .iter()
            .find(|(licence, _)| rules::permits(&self.licence, &|one| one == *licence));
        let (_, file) = standard.with_context(|| {
            format!(
                "{} {} has no text of its licence `{}`, and the texts kept here do not meet it: add one to STANDARD in \
                 supply.rs",
                self.name, self.version, self.licence
            )
        })?;
        let text = std::fs::read_to_string(root.join(file)).with_context(|| (*file).to_owned())?;
        Ok(vec![text.trim().to_owned()])
    }
}

fn purl(name: &str, version: &str) -> String {
    format!("pkg:cargo/{name}@{version}")
}

/// All crates in the program.
pub(super) struct Supply {
    /// The program's version.
    pub(super) version: String,
    crates: Vec<Crate>,
    /// Those, and what builds and tests them.
    pub(super) all: Vec<Crate>,
}

impl Supply {
    /// Asks cargo.
    pub(super) fn read(root: &Path) -> Result<Self> {
        Self::of(&serde_json::from_str(&metadata(root)?)?)
    }

    /// The crates that the program is linked from, by cargo's description.
    fn of(metadata: &Value) -> Result<Self> {
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let nodes: BTreeMap<String, Value> = list(&metadata["resolve"]["nodes"])
            .into_iter()
            .map(|node| (text(&node["id"]), node))
            .collect();
        let packages: BTreeMap<String, Value> = list(&metadata["packages"])
            .into_iter()
            .map(|package| (text(&package["id"]), package))
            .collect();
        let program = packages.iter().find(|(_, package)| package["name"] == "raceline");
        let (id, program) = program.context("cargo metadata does not know the program")?;
        let (mut linked, mut left) = (BTreeSet::new(), vec![id.clone()]);
        let linked_with = |id: &String| -> Vec<String> {
            let dependencies = nodes.get(id).map(|node| list(&node["deps"])).unwrap_or_default();
            let is_linked = |dependency: &&Value| {
                list(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"].is_null())
            };
            dependencies.iter().filter(is_linked).map(|other| text(&other["pkg"])).collect()
        };
        while let Some(id) = left.pop() {
            ensure!(nodes.contains_key(&id), "cargo metadata does not resolve {id}");
            left.extend(linked_with(&id).into_iter().filter(|other| !linked.contains(other)));
            linked.insert(id);
        }
        let describe = |id: &String| {
            let package = &packages[id];
            let named = |id: &String| {
                let package = packages.get(id)?;
                Some(purl(&text(&package["name"]), &text(&package["version"])))
            };
            Crate {
                linked_with: linked_with(id).iter().filter_map(named).collect(),
                name: text(&package["name"]),
                version: text(&package["version"]),
                licence: text(&package["license"]).replace('/', " OR "),
                source: package["source"].as_str().map(str::to_owned),
                folder: Path::new(&text(&package["manifest_path"]))
                    .parent()
                    .map(Path::to_owned)
                    .unwrap_or_default(),
            }
        };
        let crates = linked.iter().map(describe).collect();
        let all = packages.keys().map(describe).collect();
        Ok(Self { version: text(&program["version"]), crates, all })
    }

    /// Every crate must be under a licence that the rules allow, and from where they allow.
    pub(super) fn check(&self, rules: &Rules) -> Result<()> {
        let wrong: Vec<String> = self.crates.iter().filter_map(|one| rules.problem(one)).collect();
        ensure!(wrong.is_empty(), "crates that may not be in the program: {}", wrong.join("; "));
        ensure!(self.crates.len() > 50, "only {} crates were found", self.crates.len());
        Ok(())
    }

    /// The bill of materials, CycloneDX 1.5: the program, its crates with the sums of their archives, and who is linked
    /// with whom. It bears the time of the packages.
    pub(super) fn sbom(&self, root: &Path, time: &str) -> Result<Vec<u8>> {
        let sums = sums(&std::fs::read_to_string(root.join("Cargo.lock"))?)?;
        let component = |one: &Crate, kind: &str| {
            let purl = one.purl();
            let mut component = json!({
                "type": kind, "bom-ref": purl, "name": one.name, "version": one.version, "purl": purl,
                "licenses": [{ "expression": one.licence }],
            });
            if let Some(sum) = sums.get(&purl) {
                component["hashes"] = json!([{ "alg": "SHA-256", "content": sum }]);
            }
            component
        };
        let is_program = |one: &&Crate| one.name == "raceline";
        let program = self.crates.iter().find(is_program).context("the program is no crate")?;
        let others = self.crates.iter().filter(|one| !is_program(one));
        let components: Vec<Value> = others.map(|one| component(one, "library")).collect();
        let links = self.crates.iter().map(|one| {
            // A crate may be there under two names, and stands once all the same.
            let linked_with: BTreeSet<&String> = one.linked_with.iter().collect();
            json!({ "ref": one.purl(), "dependsOn": linked_with })
        });
        let document = json!({
            "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
            "metadata": { "timestamp": time, "component": component(program, "application") },
            "components": components,
            "dependencies": links.collect::<Vec<Value>>(),
        });
        Ok(serde_json::to_vec_pretty(&document)?)
    }

    /// Debian's file of copyrights: ours, and a line for each crate.
    pub(super) fn copyright(&self) -> String {
        let mut text = String::from(
            "Raceline is free software under the MIT licence or the Apache licence 2.0, at your choice. On Debian,\n\
             the latter is in /usr/share/common-licenses/Apache-2.0. The program contains these crates; the texts of\n\
             their licences are in licences.txt.gz beside this file:\n\n",
        );
        for one in self.crates.iter().filter(|one| one.source.is_some()) {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{} {}: {}", one.name, one.version, one.licence);
        }
        text
    }

    /// The licence of the program as an expression of SPDX: what all of its crates demand.
    pub(super) fn licence(&self) -> String {
        rules::all_of(self.crates.iter().map(|one| one.licence.as_str()))
    }

    /// The texts of all licences, each once, with the crates that have it. Every crate has one.
    pub(super) fn texts(&self, root: &Path) -> Result<String> {
        let mut by_text: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut add = |texts: Vec<String>, name: &str| {
            for text in texts {
                by_text.entry(text).or_default().insert(name.to_owned());
            }
        };
        add(texts_in(root, false)?, "raceline");
        for one in self.crates.iter().filter(|one| one.source.is_some()) {
            add(one.texts(root)?, &format!("{} {}", one.name, one.version));
        }
        let mut all = String::new();
        for (text, names) in by_text {
            let names: Vec<String> = names.into_iter().collect();
            let _ = write!(all, "==== {}\n\n{text}\n\n", names.join(", "));
        }
        Ok(all)
    }

    /// The crates of others that the texts do not name.
    pub(super) fn without_text(&self, texts: &str) -> Vec<String> {
        let headings: BTreeSet<&str> = texts
            .lines()
            .filter_map(|line| line.strip_prefix("==== "))
            .flat_map(|names| names.split(", "))
            .collect();
        let others = self.crates.iter().filter(|one| one.source.is_some());
        others
            .map(|one| format!("{} {}", one.name, one.version))
            .filter(|name| !headings.contains(name.as_str()))
            .collect()
    }
}

/// The texts of licences in a folder, and if asked in the folders below it.
fn texts_in(folder: &Path, is_deep: bool) -> Result<Vec<String>> {
    let (mut texts, mut folders) = (BTreeSet::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for file in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let file = file?;
            let kind = file.file_type()?;
            if kind.is_dir() && is_deep {
                folders.push(file.path());
            }
            let upper = file.file_name().to_string_lossy().to_uppercase();
            let is_text = TEXTS.iter().any(|beginning| upper.starts_with(beginning));
            if is_text && kind.is_file() && file.metadata()?.len() <= MOST_TEXT_BYTES {
                texts.insert(
                    String::from_utf8_lossy(&std::fs::read(file.path())?).trim().to_owned(),
                );
            }
        }
    }
    Ok(texts.into_iter().collect())
}

/// Cargo's description of the workspace, with the crates of this platform.
pub(super) fn metadata(root: &Path) -> Result<String> {
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let args = ["metadata", "--locked", "--format-version=1", "--filter-platform", &platform];
    Ok(Task::new("cargo").args(args).dir(root).limit(120).check()?.stdout)
}

/// The sums of the archives that Cargo.lock asks for, by package URL.
fn sums(lock: &str) -> Result<BTreeMap<String, String>> {
    #[derive(Deserialize)]
    struct Lock {
        package: Vec<Locked>,
    }
    #[derive(Deserialize)]
    struct Locked {
        name: String,
        version: String,
        checksum: Option<String>,
    }
    let lock: Lock = toml::from_str(lock).context("Cargo.lock")?;
    let sum = |one: Locked| Some((purl(&one.name, &one.version), one.checksum?));
    Ok(lock.package.into_iter().filter_map(sum).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    fn one(licence: &str, folder: &Path) -> Crate {
        Crate {
            name: "x".to_owned(),
            version: "1.0.0".to_owned(),
            licence: licence.to_owned(),
            source: Some("registry".to_owned()),
            folder: folder.to_owned(),
            linked_with: Vec::new(),
        }
    }

    #[test]
    fn a_crate_without_a_text_has_the_standard_one_or_is_refused() {
        let folder = std::env::temp_dir().join(format!("raceline-licences-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("a/b")).unwrap();
        let of = |licence: &str| one(licence, &folder).texts(&root());
        let apache = std::fs::read_to_string(root().join("LICENSE-APACHE")).unwrap();
        assert_eq!(of("MIT OR Apache-2.0").unwrap(), [apache.trim()]);
        for licence in ["BSD-3-Clause", "Apache-2.0 AND BSD-3-Clause"] {
            assert!(of(licence).unwrap_err().to_string().contains(licence));
        }
        // A text in a folder of the crate counts, and one at its top comes before it.
        std::fs::write(folder.join("a/b/COPYING"), "deep\n").unwrap();
        assert_eq!(of("BSD-3-Clause").unwrap(), ["deep"]);
        std::fs::write(folder.join("LICENSE"), "top\n").unwrap();
        assert_eq!(of("BSD-3-Clause").unwrap(), ["top"]);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_crate_that_the_texts_do_not_name_is_found() {
        let crates = vec![one("MIT", Path::new("/none"))];
        let supply = Supply { version: "1".to_owned(), crates, all: Vec::new() };
        assert_eq!(supply.without_text("==== y 1.0.0, x 1.0.0\n\ntext\n"), [""; 0]);
        assert_eq!(supply.without_text("==== y 1.0.0\n\nx 1.0.0\n"), ["x 1.0.0"]);
    }
}
