//! The rules of `deny.toml` about crates, and the supply-chain step, which checks them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::advisories::{self, Snapshot};
use super::deny;
use super::supply::{Crate, Supply};
use crate::raceline::Tree;
use crate::step::{Checks, Outcome};

const FILE: &str = "deny.toml";

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
pub(super) fn terms(expression: &str) -> Vec<String> {
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

/// The parts of an expression of SPDX between the words OR, or AND; a bracket is a whole of its own.
fn parts(text: &str, word: &str) -> Vec<String> {
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
}

/// One expression of SPDX that demands what all of these do. Each demand stands once, with its choices in order.
pub(super) fn all_of<'a>(expressions: impl IntoIterator<Item = &'a str>) -> String {
    let mut demands = BTreeSet::new();
    let mut left: Vec<String> = expressions.into_iter().map(str::to_owned).collect();
    while let Some(expression) = left.pop() {
        let choices: BTreeSet<String> = parts(&expression, "OR").into_iter().collect();
        let needs = parts(&expression, "AND");
        let inner = expression.trim().strip_prefix('(').and_then(|rest| rest.strip_suffix(')'));
        if choices.len() > 1 {
            demands.insert(choices.into_iter().collect::<Vec<_>>().join(" OR "));
        } else if needs.len() > 1 {
            left.extend(needs);
        } else if let Some(inner) = inner {
            left.push(inner.trim().to_owned());
        } else {
            demands.insert(expression.trim().to_owned());
        }
    }
    let is_alone = demands.len() == 1;
    let bracket = |one: String| match one.contains(" OR ") && !is_alone {
        true => format!("({one})"),
        false => one,
    };
    demands.into_iter().map(bracket).collect::<Vec<_>>().join(" AND ")
}

/// Whether an expression of SPDX leaves a choice of licences that are all allowed. OR binds least.
pub(super) fn permits(expression: &str, is_allowed: &dyn Fn(&str) -> bool) -> bool {
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
    let snapshot = Snapshot::read(&tree.root)?;
    let about = format!("advisories of {} ({} days old)", snapshot.date, snapshot.age_days()?);
    println!("# {about}");
    let ignored = &rules.advisories.ignore;
    let locked = advisories::locked(&tree.root)?;
    checks.run("advisories", || snapshot.judge(&locked, ignored));
    match deny::program(tree) {
        Ok(program) => {
            checks.run("advisories-by-cargo-deny", || deny::run(tree, &program, &snapshot, &locked))
        }
        Err(error) => checks.skip("advisories-by-cargo-deny", &format!("{error:#}")),
    }
    if let Some(clone) = advisories::clone_here() {
        checks.run("advisories-of-the-clone", || {
            let newer = Snapshot::of_clone(&clone)?;
            let (path, lacks) = (clone.display(), snapshot.lacks_of(&newer));
            println!("# {path} is of {}", newer.date);
            if lacks > 0 {
                println!(
                    "# {lacks} advisories are new there: cargo xtask advisories --from {path}"
                );
            }
            newer.judge(&locked, ignored)
        });
    }
    Ok(match checks.outcome()? {
        Outcome::Passed(text) => Outcome::Passed(format!("{text}, {about}")),
        other @ Outcome::Skipped(_) => other,
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

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
            linked_with: Vec::new(),
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
    fn one_expression_demands_what_all_do() {
        assert_eq!(all_of(["MIT OR Apache-2.0", "Apache-2.0 OR MIT"]), "Apache-2.0 OR MIT");
        let all =
            all_of(["MIT", "Apache-2.0 OR MIT", "(MIT OR Apache-2.0) AND Unicode-3.0", "ISC"]);
        assert_eq!(all, "(Apache-2.0 OR MIT) AND ISC AND MIT AND Unicode-3.0");
        assert_eq!(all_of(["(MIT)"]), "MIT");
        let all = all_of(["Apache-2.0 WITH LLVM-exception OR MIT", "Zlib"]);
        assert_eq!(all, "(Apache-2.0 WITH LLVM-exception OR MIT) AND Zlib");
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
}
