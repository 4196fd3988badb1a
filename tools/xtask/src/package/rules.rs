//! The rules of `deny.toml` about crates, and the supply-chain step, which checks them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use semver::{Version, VersionReq};
use serde::Deserialize;

use super::supply::{Crate, Supply};
use crate::raceline::Tree;
use crate::step::{Checks, Outcome};

const FILE: &str = "deny.toml";
/// Where the RustSec database is unless this variable says so.
const DATABASE_VARIABLE: &str = "RACELINE_ADVISORY_DB";
/// The first lines of an advisory stand between these.
const FENCES: [&str; 2] = ["```toml\n", "\n```"];

/// The rules, in the form of cargo-deny. What is not read here is cargo-deny's alone.
#[derive(Debug, Deserialize)]
pub(super) struct Rules {
    licenses: Licenses,
    bans: Bans,
    sources: Sources,
    advisories: Advisories,
}

#[derive(Debug, Deserialize)]
struct Licenses {
    allow: Vec<String>,
    exceptions: Vec<Exception>,
}

#[derive(Debug, Deserialize)]
struct Exception {
    #[serde(rename = "crate")]
    name: String,
    allow: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Bans {
    deny: Vec<Named>,
    skip: Vec<Named>,
}

/// A crate, as NAME or NAME@VERSION.
#[derive(Debug, Deserialize)]
struct Named {
    #[serde(rename = "crate")]
    name: String,
    reason: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Sources {
    allow_registry: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Advisories {
    ignore: Vec<String>,
}

impl Rules {
    /// Reads the file.
    pub(super) fn read(root: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(root.join(FILE)).context(FILE)?;
        toml::from_str(&text).context(FILE)
    }

    /// Why a crate may not be used.
    pub(super) fn problem(&self, one: &Crate) -> Option<String> {
        let Crate { name, version, licence, source, .. } = one;
        let known = |source: &str| {
            let registry = source.strip_prefix("registry+").unwrap_or("");
            self.sources.allow_registry.iter().any(|known| known == registry)
        };
        if let Some(source) = source.as_deref().filter(|source| !known(source)) {
            return Some(format!("{name} {version} comes from {source}"));
        }
        if let Some(banned) = self.bans.deny.iter().find(|banned| banned.name == *name) {
            return Some(format!("{name} {version} is banned ({})", banned.reason));
        }
        let exception = self.licenses.exceptions.iter().find(|exception| exception.name == *name);
        let more = exception.map_or(&[][..], |exception| &exception.allow);
        let is_allowed = |one: &str| self.licenses.allow.iter().chain(more).any(|l| l == one);
        (!permits(licence, &is_allowed))
            .then(|| format!("{name} {version} is under `{licence}`, which {FILE} does not allow"))
    }

    /// Licences that are allowed though no crate names them: cargo-deny warns of them.
    fn needless_licences(&self, crates: &[Crate]) -> Vec<String> {
        let named = |licence: &str| {
            let names = |one: &Crate| terms(&one.licence).iter().any(|term| term == licence);
            crates.iter().any(names)
        };
        let needless = self.licenses.allow.iter().filter(|licence| !named(licence));
        needless.map(|licence| format!("{FILE} allows {licence}, which no crate names")).collect()
    }

    /// Crates that are there in several versions, and exceptions that nothing needs any more.
    fn duplicates(&self, crates: &[Crate]) -> Vec<String> {
        let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for one in crates {
            versions.entry(&one.name).or_default().insert(&one.version);
        }
        versions.retain(|_, versions| versions.len() > 1);
        let skips: BTreeSet<&str> = self.bans.skip.iter().map(|skip| skip.name.as_str()).collect();
        let is_skipped =
            |name: &str, version: &&str| skips.contains(format!("{name}@{version}").as_str());
        let several = versions.iter().filter_map(|(name, all)| {
            let left: Vec<&str> =
                all.iter().copied().filter(|version| !is_skipped(name, version)).collect();
            (left.len() > 1).then(|| format!("{name} is there as {}", left.join(" and ")))
        });
        let needed = |skip: &&&str| {
            skip.split_once('@').is_some_and(|(name, version)| {
                versions.get(name).is_some_and(|all| all.contains(version))
            })
        };
        let needless = skips.iter().filter(|skip| !needed(skip));
        several
            .chain(needless.map(|skip| format!("{FILE} skips {skip}, which is no duplicate")))
            .collect()
    }
}

/// The licences that an expression of SPDX names, each with its exception.
fn terms(expression: &str) -> Vec<String> {
    let mut terms = vec![String::new()];
    for token in expression.replace(['(', ')'], " ").split_whitespace() {
        match (token, terms.last_mut()) {
            ("OR" | "AND", _) => terms.push(String::new()),
            (_, Some(term)) if term.is_empty() => term.push_str(token),
            (_, Some(term)) => *term = format!("{term} {token}"),
            (_, None) => {}
        }
    }
    terms
}

/// Whether an expression of SPDX leaves a choice of licences that are all allowed.
fn permits(expression: &str, is_allowed: &dyn Fn(&str) -> bool) -> bool {
    // OR binds least; a bracket is a whole of its own.
    let parts = |text: &str, word: &str| -> Vec<String> {
        let (mut parts, mut depth) = (vec![String::new()], 0_usize);
        for token in text.replace('(', " ( ").replace(')', " ) ").split_whitespace() {
            match token {
                "(" => depth += 1,
                ")" => depth = depth.saturating_sub(1),
                _ => {}
            }
            if depth == 0 && token == word {
                parts.push(String::new());
            } else if let Some(last) = parts.last_mut() {
                last.push_str(if last.is_empty() { "" } else { " " });
                last.push_str(token);
            }
        }
        parts
    };
    let choices = parts(expression, "OR");
    if choices.len() > 1 {
        return choices.iter().any(|choice| permits(choice, is_allowed));
    }
    let needs = parts(expression, "AND");
    if needs.len() > 1 {
        return needs.iter().all(|need| permits(need, is_allowed));
    }
    let one = expression.trim();
    match one.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')) {
        Some(inner) => permits(inner.trim(), is_allowed),
        None => is_allowed(one),
    }
}

/// Runs the step.
pub(crate) fn run(tree: &Tree) -> Result<Outcome> {
    let rules = Rules::read(&tree.root)?;
    let crates = Supply::read(&tree.root)?.all;
    let mut checks = Checks::default();
    checks.run("licences-origins-and-bans", || {
        ensure!(crates.len() > 100, "only {} crates were found", crates.len());
        let mut wrong: Vec<String> = crates.iter().filter_map(|one| rules.problem(one)).collect();
        wrong.extend(rules.needless_licences(&crates));
        ensure!(wrong.is_empty(), "{}", wrong.join("; "));
        println!("# {} crates", crates.len());
        Ok(())
    });
    checks.run("versions", || {
        let wrong = rules.duplicates(&crates);
        ensure!(wrong.is_empty(), "{}", wrong.join("; "));
        Ok(())
    });
    let database = database();
    if database.join("crates").is_dir() {
        checks.run("advisories", || advisories(&database, &rules, &crates));
    } else {
        let why = format!(
            "no RustSec database in {} (git clone https://github.com/rustsec/advisory-db there, or name it by \
             {DATABASE_VARIABLE})",
            database.display()
        );
        checks.skip("advisories", &why);
    }
    checks.outcome()
}

/// Where cargo-audit keeps the database, too.
fn database() -> PathBuf {
    if let Some(named) = std::env::var_os(DATABASE_VARIABLE) {
        return named.into();
    }
    let home = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .unwrap_or_else(|| Path::new(&std::env::var_os("HOME").unwrap_or_default()).join(".cargo"));
    home.join("advisory-db")
}

/// The part of an advisory that counts.
#[derive(Debug, Deserialize)]
struct Advisory {
    advisory: About,
    #[serde(default)]
    versions: Versions,
}

#[derive(Debug, Deserialize)]
struct About {
    id: String,
    withdrawn: Option<toml::Value>,
    /// `unmaintained`, `unsound`, `notice`: no vulnerability.
    informational: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
struct Versions {
    #[serde(default)]
    patched: Vec<String>,
    #[serde(default)]
    unaffected: Vec<String>,
}

/// No crate has a known vulnerability that is not ignored. What is only unmaintained is printed.
fn advisories(database: &Path, rules: &Rules, crates: &[Crate]) -> Result<()> {
    let (mut found, mut seen) = (Vec::new(), 0);
    for one in crates.iter().filter(|one| one.source.is_some()) {
        let Ok(folder) = std::fs::read_dir(database.join("crates").join(&one.name)) else {
            continue;
        };
        for file in folder {
            let path = file?.path();
            let text = std::fs::read_to_string(&path)?;
            let advisory = read_advisory(&text).with_context(|| path.display().to_string())?;
            seen += 1;
            let About { id, withdrawn, informational } = &advisory.advisory;
            if withdrawn.is_some() || !affects(&advisory.versions, &one.version)? {
                continue;
            }
            let line = format!("{id} ({} {})", one.name, one.version);
            match informational.as_deref() {
                Some(kind @ ("unmaintained" | "notice")) => println!("# {line}: {kind}"),
                _ if rules.advisories.ignore.contains(id) => println!("# {line}: ignored"),
                _ => found.push(line),
            }
        }
    }
    println!("# {seen} advisories about these crates");
    ensure!(found.is_empty(), "known to be vulnerable: {}", found.join(", "));
    Ok(())
}

fn read_advisory(text: &str) -> Result<Advisory> {
    let front = text.strip_prefix(FENCES[0]).and_then(|rest| rest.split_once(FENCES[1]));
    let (front, _) = front.context("it does not begin with a block of TOML")?;
    Ok(toml::from_str(front)?)
}

/// Whether a version is neither patched nor unaffected.
fn affects(versions: &Versions, version: &str) -> Result<bool> {
    let version = Version::parse(version)?;
    for range in versions.patched.iter().chain(&versions.unaffected) {
        if VersionReq::parse(range).with_context(|| range.clone())?.matches(&version) {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> Rules {
        Rules::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")).unwrap()
    }

    fn one(name: &str, version: &str) -> Crate {
        Crate {
            name: name.to_owned(),
            version: version.to_owned(),
            licence: "MIT".to_owned(),
            source: Some("registry+https://github.com/rust-lang/crates.io-index".to_owned()),
            folder: PathBuf::new(),
        }
    }

    #[test]
    fn an_expression_permits_if_a_choice_does() {
        let rules = rules();
        for (expression, is_permitted) in [
            ("MIT", true),
            ("GPL-3.0-only OR MIT", true),
            ("MIT AND GPL-3.0-only", false),
            ("(MIT OR GPL-3.0-only) AND Unicode-3.0", true),
            ("(MIT AND GPL-3.0-only) OR LGPL-2.1-only", false),
            ("Apache-2.0 WITH LLVM-exception", true),
            ("ISC AND (Apache-2.0 OR ISC) AND Zlib", true),
            ("ISC AND (Apache-2.0 OR ISC) AND OpenSSL", false),
            ("", false),
        ] {
            let crate_of = Crate { licence: expression.to_owned(), ..one("x", "1.0.0") };
            assert_eq!(rules.problem(&crate_of).is_none(), is_permitted, "{expression}");
        }
        let excepted = |name: &str| Crate { licence: "MPL-2.0".to_owned(), ..one(name, "1.0.0") };
        assert!(rules.problem(&excepted("cbindgen")).is_none());
        assert!(rules.problem(&excepted("other")).unwrap().contains("MPL-2.0"));
    }

    #[test]
    fn a_licence_that_no_crate_names_is_not_allowed() {
        let mut rules = rules();
        rules.licenses.allow = vec!["MIT".to_owned(), "Apache-2.0 WITH LLVM-exception".to_owned()];
        let expression = "(Apache-2.0 WITH LLVM-exception OR Apache-2.0) AND MIT".to_owned();
        let crates = [Crate { licence: expression, ..one("a", "1.0.0") }];
        assert!(rules.needless_licences(&crates).is_empty());
        rules.licenses.allow.push("Zlib".to_owned());
        let needless = rules.needless_licences(&crates);
        assert_eq!(needless, ["deny.toml allows Zlib, which no crate names"]);
    }

    #[test]
    fn a_crate_from_elsewhere_or_banned_is_named() {
        let rules = rules();
        let mut other = one("x", "1.0.0");
        assert_eq!(rules.problem(&other), None);
        other.source = Some("git+https://example.org/x".to_owned());
        assert!(rules.problem(&other).unwrap().contains("git+https://example.org/x"));
        assert!(rules.problem(&one("openssl-sys", "0.9.0")).unwrap().contains("s2n-tls"));
    }

    #[test]
    fn duplicates_need_a_reason_and_reasons_a_duplicate() {
        let mut rules = rules();
        rules.bans.skip.clear();
        let crates = [one("a", "1.0.0"), one("a", "2.0.0"), one("b", "1.0.0")];
        assert_eq!(rules.duplicates(&crates), ["a is there as 1.0.0 and 2.0.0"]);
        let skip = |name: &str| Named { name: name.to_owned(), reason: "a reason".to_owned() };
        rules.bans.skip = vec![skip("a@1.0.0"), skip("b@1.0.0")];
        assert_eq!(rules.duplicates(&crates), ["deny.toml skips b@1.0.0, which is no duplicate"]);
    }

    #[test]
    fn an_advisory_is_about_versions() {
        let text = "```toml\n[advisory]\nid = \"RUSTSEC-2000-0001\"\n\n[versions]\npatched = [\">= 1.2.3\", \">= 0.9.5, < 1.0.0\"]\n\
                    unaffected = [\"< 0.5\"]\n```\n\n# Title\n";
        let Advisory { versions, .. } = read_advisory(text).unwrap();
        for (version, is_affected) in
            [("1.2.2", true), ("1.2.3", false), ("0.9.9", false), ("0.9.0", true), ("0.4.0", false)]
        {
            assert_eq!(affects(&versions, version).unwrap(), is_affected, "{version}");
        }
        assert!(read_advisory("# no front matter").is_err());
    }
}
