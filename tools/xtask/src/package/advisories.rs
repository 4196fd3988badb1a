//! Advisories about crates: facts of RustSec's database, which this repository carries, against the versions in lock files.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use semver::Version;
use serde::Deserialize;

use super::ranges::Range;
use crate::child::Task;
use crate::raceline::Tree;

/// The facts, a line for each advisory.
const FILE: &str = "tools/xtask/advisories.txt";
/// The lock files whose crates are looked up.
const LOCKS: [&str; 2] = ["Cargo.lock", "fuzz/Cargo.lock"];
/// Where a clone of the RustSec database is unless this variable says so.
const CLONE_VARIABLE: &str = "RACELINE_ADVISORY_DB";
/// The fields of an advisory stand between these in its file.
const FENCES: [&str; 2] = ["```toml\n", "\n```"];
/// Fewer advisories than that are no database.
const FEWEST: usize = 1000;
/// What stands in an empty column.
const NOTHING: &str = "-";
/// What the file begins with, before the commit and its date.
const HEAD: &str = "# Facts of https://github.com/rustsec/advisory-db at commit ";
/// The second line.
const COLUMNS: &str = "# `cargo xtask advisories --from CLONE` writes this. Columns, between tabs: id, crate, date, kind, patched \
     versions, unaffected versions, date of withdrawal.";

/// What an advisory says.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Advisory {
    pub(super) id: String,
    pub(super) package: String,
    pub(super) date: String,
    /// `unmaintained`, `unsound`, `notice`; `None`: a vulnerability.
    pub(super) informational: Option<String>,
    pub(super) patched: Vec<Range>,
    pub(super) unaffected: Vec<Range>,
    /// When it was taken back.
    pub(super) withdrawn: Option<String>,
}

impl Advisory {
    /// Reads a line of the file.
    fn parse(line: &str) -> Result<Self> {
        let columns: Vec<&str> = line.split('\t').collect();
        let [id, package, date, kind, patched, unaffected, withdrawn] = columns[..] else {
            bail!("{} columns are not 7", columns.len());
        };
        let some = |text: &str| (text != NOTHING).then(|| text.to_owned());
        let ranges = |text: &str| -> Result<Vec<Range>> {
            text.split(';').filter(|text| *text != NOTHING).map(Range::parse).collect()
        };
        Ok(Self {
            id: id.to_owned(),
            package: package.to_owned(),
            date: date.to_owned(),
            informational: some(kind),
            patched: ranges(patched)?,
            unaffected: ranges(unaffected)?,
            withdrawn: some(withdrawn),
        })
    }

    fn line(&self) -> String {
        let some = |text: &Option<String>| text.clone().unwrap_or_else(|| NOTHING.to_owned());
        let ranges = |ranges: &[Range]| match ranges {
            [] => NOTHING.to_owned(),
            _ => ranges.iter().map(Range::text).collect::<Vec<_>>().join(";"),
        };
        let Self { id, package, date, informational, patched, unaffected, withdrawn } = self;
        [
            id.clone(),
            package.clone(),
            date.clone(),
            some(informational),
            ranges(patched),
            ranges(unaffected),
            some(withdrawn),
        ]
        .join("\t")
    }

    /// Reads a file of RustSec's database.
    pub(super) fn read(text: &str) -> Result<Self> {
        #[derive(Deserialize)]
        struct Front {
            advisory: About,
            #[serde(default)]
            versions: Versions,
        }
        #[derive(Deserialize)]
        struct About {
            id: String,
            package: String,
            date: String,
            informational: Option<String>,
            withdrawn: Option<String>,
        }
        #[derive(Default, Deserialize)]
        struct Versions {
            #[serde(default)]
            patched: Vec<String>,
            #[serde(default)]
            unaffected: Vec<String>,
        }
        let front = text.strip_prefix(FENCES[0]).and_then(|rest| rest.split_once(FENCES[1]));
        let (front, _) = front.context("it does not begin with a block of TOML")?;
        let Front { advisory, versions } = toml::from_str(front)?;
        let ranges = |all: &[String]| -> Result<Vec<Range>> {
            all.iter().map(|text| Range::parse(text)).collect()
        };
        Ok(Self {
            id: advisory.id,
            package: advisory.package,
            date: advisory.date,
            informational: advisory.informational,
            patched: ranges(&versions.patched)?,
            unaffected: ranges(&versions.unaffected)?,
            withdrawn: advisory.withdrawn,
        })
    }

    /// Whether it is about a version: it was not taken back, and the version is neither patched nor unaffected.
    fn affects(&self, version: &Version) -> bool {
        self.withdrawn.is_none()
            && !self.patched.iter().chain(&self.unaffected).any(|range| range.contains(version))
    }
}

/// The advisories of one day.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Snapshot {
    commit: String,
    /// The day of that commit.
    pub(super) date: String,
    pub(super) advisories: Vec<Advisory>,
}

impl Snapshot {
    /// What this repository carries.
    pub(super) fn read(root: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(root.join(FILE)).context(FILE)?;
        let snapshot = Self::parse(&text).context(FILE)?;
        let count = snapshot.advisories.len();
        ensure!(count >= FEWEST, "{FILE} has only {count} advisories");
        Ok(snapshot)
    }

    fn parse(text: &str) -> Result<Self> {
        let mut lines = text.lines();
        let origin = lines.next().and_then(|line| line.strip_prefix(HEAD));
        let origin = origin.and_then(|rest| rest.strip_suffix('.')?.split_once(" of "));
        let (commit, date) = origin.context("the first line names no commit and no date")?;
        let lines = lines.filter(|line| !line.starts_with('#'));
        let advisory = |line| Advisory::parse(line).with_context(|| format!("the line {line:?}"));
        Ok(Self {
            commit: commit.to_owned(),
            date: date.to_owned(),
            advisories: lines.map(advisory).collect::<Result<_>>()?,
        })
    }

    fn text(&self) -> String {
        let mut text = format!("{HEAD}{} of {}.\n{COLUMNS}\n", self.commit, self.date);
        for advisory in &self.advisories {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{}", advisory.line());
        }
        text
    }

    /// The same of a clone of the database.
    pub(super) fn of_clone(clone: &Path) -> Result<Self> {
        let log = ["log", "-1", "--format=%H %cs"];
        let log = Task::new("git").args(log).dir(clone).check()?.stdout;
        let (commit, date) = log.trim().split_once(' ').context("git shows no commit")?;
        let mut advisories = Vec::new();
        for folder in std::fs::read_dir(clone.join("crates"))? {
            for file in std::fs::read_dir(folder?.path())? {
                let path = file?.path();
                let text = std::fs::read_to_string(&path)?;
                let advisory = Advisory::read(&text).with_context(|| path.display().to_string())?;
                advisories.push(advisory);
            }
        }
        advisories.sort();
        let (commit, date) = (commit.to_owned(), date.to_owned());
        Ok(Self { commit, date, advisories })
    }

    /// How many days ago that was.
    pub(super) fn age_days(&self) -> Result<u64> {
        let then = Task::new("date").args(["-u", "-d", &self.date, "+%s"]).check()?;
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_secs();
        Ok(now.saturating_sub(then.stdout.trim().parse()?) / (24 * 3600))
    }

    /// No crate has a known vulnerability that is not ignored. What is only unmaintained is printed.
    pub(super) fn judge(&self, crates: &[Locked], ignored: &[String]) -> Result<()> {
        let mut by_package: BTreeMap<&str, Vec<&Advisory>> = BTreeMap::new();
        for advisory in &self.advisories {
            by_package.entry(&advisory.package).or_default().push(advisory);
        }
        let (mut found, mut seen) = (Vec::new(), 0);
        for one in crates {
            let about = by_package.get(one.name.as_str()).map_or(&[][..], Vec::as_slice);
            seen += about.len();
            for advisory in about.iter().filter(|advisory| advisory.affects(&one.version)) {
                let line =
                    format!("{} ({} {} in {})", advisory.id, one.name, one.version, one.file);
                match advisory.informational.as_deref() {
                    Some(kind @ ("unmaintained" | "notice")) => println!("# {line}: {kind}"),
                    _ if ignored.contains(&advisory.id) => println!("# {line}: ignored"),
                    _ => found.push(line),
                }
            }
        }
        println!("# {} crates, {seen} advisories about some version of them", crates.len());
        ensure!(
            found.is_empty(),
            "known to be vulnerable: {}; `cargo update` takes a patched version, if there is one",
            found.join(", ")
        );
        Ok(())
    }

    /// How many advisories of another one are missing here, or say something else.
    pub(super) fn lacks_of(&self, other: &Self) -> usize {
        other.advisories.iter().filter(|one| !self.advisories.contains(one)).count()
    }
}

/// A crate of a lock file.
#[derive(Clone, Debug)]
pub(super) struct Locked {
    pub(super) name: String,
    pub(super) version: Version,
    /// The lock file.
    pub(super) file: &'static str,
}

/// The crates of all lock files that come from elsewhere.
pub(super) fn locked(root: &Path) -> Result<Vec<Locked>> {
    let mut all = Vec::new();
    for file in LOCKS {
        let text = std::fs::read_to_string(root.join(file)).context(file)?;
        all.extend(locked_in(file, &text).context(file)?);
    }
    ensure!(all.len() > 100, "only {} crates were found", all.len());
    Ok(all)
}

fn locked_in(file: &'static str, text: &str) -> Result<Vec<Locked>> {
    #[derive(Deserialize)]
    struct Lock {
        package: Vec<Package>,
    }
    #[derive(Deserialize)]
    struct Package {
        name: String,
        version: String,
        source: Option<String>,
    }
    let lock: Lock = toml::from_str(text)?;
    let others = lock.package.into_iter().filter(|one| one.source.is_some());
    let locked = |Package { name, version, .. }| {
        let version = Version::parse(&version).with_context(|| format!("{name} {version}"))?;
        Ok(Locked { name, version, file })
    };
    others.map(locked).collect()
}

/// The clone of the database on this machine, if there is one. cargo-audit keeps its own there, too.
pub(super) fn clone_here() -> Option<PathBuf> {
    let named = std::env::var_os(CLONE_VARIABLE).map(PathBuf::from);
    let clone = named.unwrap_or_else(|| {
        let home = std::env::var_os("CARGO_HOME").map(PathBuf::from).unwrap_or_else(|| {
            Path::new(&std::env::var_os("HOME").unwrap_or_default()).join(".cargo")
        });
        home.join("advisory-db")
    });
    clone.join("crates").is_dir().then_some(clone)
}

/// Writes the file from a clone of the database.
pub(crate) fn write(tree: &Tree, clone: &Path) -> Result<()> {
    let snapshot = Snapshot::of_clone(clone).with_context(|| {
        format!("{} is no clone of https://github.com/rustsec/advisory-db", clone.display())
    })?;
    let count = snapshot.advisories.len();
    ensure!(count >= FEWEST, "{} has only {count} advisories", clone.display());
    let text = snapshot.text();
    ensure!(Snapshot::parse(&text)? == snapshot, "the file would not say what the clone says");
    std::fs::write(tree.root.join(FILE), text)?;
    println!("{FILE}: {count} advisories of {}", snapshot.date);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What this repository carries.
    fn snapshot() -> Snapshot {
        Snapshot::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")).unwrap()
    }

    fn lock(name: &str, version: &str) -> Vec<Locked> {
        let text = format!(
            "version = 4\n\n[[package]]\nname = \"ours\"\nversion = \"0.1.0\"\n\n[[package]]\nname = \"{name}\"\n\
             version = \"{version}\"\nsource = \"registry+https://github.com/rust-lang/crates.io-index\"\n"
        );
        let crates = locked_in(LOCKS[0], &text).unwrap();
        assert_eq!(crates.len(), 1);
        crates
    }

    #[test]
    fn a_lock_file_with_a_vulnerable_version_is_refused() {
        let snapshot = snapshot();
        for (name, bad, good, id) in [
            ("time", "0.1.45", "0.2.23", "RUSTSEC-2020-0071"),
            ("time", "0.2.22", "0.3.47", "RUSTSEC-2020-0071"),
            ("chrono", "0.4.19", "0.4.20", "RUSTSEC-2020-0159"),
            ("tokio", "1.7.1", "1.44.2", "RUSTSEC-2021-0072"),
            ("smallvec", "1.6.0", "1.6.1", "RUSTSEC-2021-0003"),
        ] {
            let error = snapshot.judge(&lock(name, bad), &[]).unwrap_err().to_string();
            assert!(error.contains(id), "{name} {bad}: {error}");
            assert!(error.contains(&format!("({name} {bad} in Cargo.lock)")), "{error}");
            let other = snapshot.judge(&lock(name, good), &[]);
            assert!(!format!("{other:?}").contains(id), "{name} {good}: {other:?}");
            // A name that only begins alike is another crate.
            snapshot.judge(&lock(&format!("{name}-of-nobody"), bad), &[]).unwrap();
        }
    }

    #[test]
    fn what_was_taken_back_ignored_or_is_only_unmaintained_is_no_fault() {
        let line = "RUSTSEC-2000-0001\tname\t2000-01-01\t-\t>=1.2.3\t<0.5\t-";
        let of = |line: &str| Snapshot {
            commit: "c".to_owned(),
            date: "2000-01-02".to_owned(),
            advisories: vec![Advisory::parse(line).unwrap()],
        };
        let crates = lock("name", "1.2.2");
        assert!(of(line).judge(&crates, &[]).is_err());
        of(line).judge(&lock("name", "1.2.3"), &[]).unwrap();
        of(line).judge(&lock("name", "0.4.9"), &[]).unwrap();
        of(line).judge(&crates, &["RUSTSEC-2000-0001".to_owned()]).unwrap();
        assert!(of(line).judge(&crates, &["RUSTSEC-2000-0002".to_owned()]).is_err());
        let withdrawn = line.strip_suffix('-').unwrap().to_owned() + "2001-01-01";
        of(&withdrawn).judge(&crates, &[]).unwrap();
        for (kind, is_fault) in [("unmaintained", false), ("notice", false), ("unsound", true)] {
            let line = line.replace("\t-\t>=", &format!("\t{kind}\t>="));
            assert_eq!(of(&line).judge(&crates, &[]).is_err(), is_fault, "{kind}");
        }
    }

    #[test]
    fn a_file_of_the_database_becomes_a_line_and_comes_back() {
        let text = "```toml\n[advisory]\nid = \"RUSTSEC-2000-0001\"\npackage = \"name\"\ndate = \"2000-01-01\"\n\
                    informational = \"unsound\"\nurl = \"https://example.org\"\n\n[versions]\n\
                    patched = [\">= 1.2.3\", \">= 0.9.5, < 1.0.0\"]\nunaffected = [\"< 0.5\"]\n```\n\n# Title\n";
        let advisory = Advisory::read(text).unwrap();
        let line = advisory.line();
        let expected =
            "RUSTSEC-2000-0001\tname\t2000-01-01\tunsound\t>=1.2.3;>=0.9.5,<1.0.0\t<0.5\t-";
        assert_eq!(line, expected);
        assert_eq!(Advisory::parse(&line).unwrap(), advisory);
        for (version, is_affected) in
            [("1.2.2", true), ("1.2.3", false), ("0.9.9", false), ("0.9.0", true), ("0.4.0", false)]
        {
            assert_eq!(advisory.affects(&version.parse().unwrap()), is_affected, "{version}");
        }
        assert!(Advisory::read("# no front matter").is_err());
        for broken in [&line[1..line.len() - 2], &line.replace(">=1.2.3", "around 1")] {
            assert!(Advisory::parse(broken).is_err(), "{broken}");
        }
    }

    #[test]
    fn the_file_says_where_it_is_from() {
        let snapshot = snapshot();
        assert_eq!(Snapshot::parse(&snapshot.text()).unwrap(), snapshot);
        assert_eq!(snapshot.commit.len(), 40);
        assert!(snapshot.advisories.is_sorted());
        assert!(Snapshot::parse("RUSTSEC-2000-0001\tname\n").is_err());
        let mut newer = Snapshot::parse(&snapshot.text()).unwrap();
        assert_eq!(snapshot.lacks_of(&newer), 0);
        newer.advisories[0].withdrawn = Some("2030-01-01".to_owned());
        assert_eq!(snapshot.lacks_of(&newer), 1);
    }
}
