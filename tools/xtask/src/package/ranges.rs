//! Ranges of versions as RustSec's advisories have them: bounds by the order of semantic versions.
//!
//! In a manifest, `>=1.2.3` does not take 1.3.0-rc.1, because nobody wants a pre-release by accident. In an advisory it does:
//! that pre-release came later, and has the patch.

use std::cmp::Ordering;

use anyhow::{Context, Result, ensure};
use semver::{Comparator, Op, Prerelease, Version, VersionReq};

/// Versions between two bounds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Range {
    /// As it is written, without spaces.
    text: String,
    bounds: Vec<Bound>,
}

/// A version on one side of which the range ends.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Bound {
    version: Version,
    /// How versions of the range compare with it, beside being equal.
    side: Ordering,
    /// Whether it is in the range itself.
    is_inside: bool,
}

impl Range {
    /// Reads a requirement such as `>=1.2.3, <2`.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let text: String = text.split_whitespace().collect();
        let parsed = VersionReq::parse(&text).with_context(|| format!("the versions {text:?}"))?;
        ensure!(!parsed.comparators.is_empty(), "{text:?} are all versions");
        let mut bounds = Vec::new();
        for comparator in &parsed.comparators {
            bounds.extend(bounds_of(comparator).with_context(|| format!("the versions {text:?}"))?);
        }
        Ok(Self { text, bounds })
    }

    pub(super) fn text(&self) -> String {
        self.text.clone()
    }

    /// Whether a version is among them.
    pub(super) fn contains(&self, version: &Version) -> bool {
        self.bounds.iter().all(|bound| match version.cmp_precedence(&bound.version) {
            Ordering::Equal => bound.is_inside,
            side => side == bound.side,
        })
    }
}

fn bounds_of(comparator: &Comparator) -> Result<Vec<Bound>> {
    let &Comparator { op, major, minor, patch, ref pre } = comparator;
    let least =
        Version { pre: pre.clone(), ..Version::new(major, minor.unwrap_or(0), patch.unwrap_or(0)) };
    let bound =
        |version: &Version, side, is_inside| Bound { version: version.clone(), side, is_inside };
    let from = bound(&least, Ordering::Greater, true);
    // A pre-release of the next version is no longer one of these.
    let before = |major, minor, patch| -> Result<Bound> {
        let version = Version { pre: Prerelease::new("0")?, ..Version::new(major, minor, patch) };
        Ok(bound(&version, Ordering::Less, false))
    };
    Ok(match (op, major, minor, patch) {
        (Op::Exact, ..) => vec![from, bound(&least, Ordering::Less, true)],
        (Op::Greater, ..) => vec![bound(&least, Ordering::Greater, false)],
        (Op::GreaterEq, ..) => vec![from],
        (Op::Less, ..) => vec![bound(&least, Ordering::Less, false)],
        (Op::LessEq, ..) => vec![bound(&least, Ordering::Less, true)],
        (Op::Tilde, major, Some(minor), _) => vec![from, before(major, minor + 1, 0)?],
        (Op::Caret, 0, Some(0), Some(patch)) => vec![from, before(0, 0, patch + 1)?],
        (Op::Caret, 0, Some(minor), _) => vec![from, before(0, minor + 1, 0)?],
        (Op::Tilde | Op::Caret, major, ..) => vec![from, before(major + 1, 0, 0)?],
        _ => anyhow::bail!("no advisory has the operator of {comparator}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_follow_the_order_of_versions() {
        for (range, inside, outside) in [
            (">= 1.2.3", &["1.2.3", "1.3.0-rc.1", "2.0.0"][..], &["1.2.3-rc.1", "1.2.2"][..]),
            ("> 0", &["0.0.1", "0.1.0-alpha"], &["0.0.0", "0.0.0-alpha"]),
            ("<0.30.0-rc.1", &["0.29.9", "0.30.0-alpha"], &["0.30.0-rc.1", "0.30.0"]),
            ("<= 1.1", &["1.1.0", "1.0.9"], &["1.1.1"]),
            ("= 0.2.6", &["0.2.6", "0.2.6+build"], &["0.2.7-0", "0.2.5"]),
            ("^1.2", &["1.2.0", "1.9.0", "1.3.0-rc.1"], &["1.1.9", "2.0.0-alpha", "2.0.0"]),
            ("^0.2.3", &["0.2.3", "0.2.9"], &["0.3.0-0", "0.3.0", "0.2.2"]),
            ("^0.0.3", &["0.0.3"], &["0.0.4", "0.0.2"]),
            ("^0", &["0.0.1", "0.9.0"], &["1.0.0"]),
            ("0.54.2", &["0.54.2", "0.54.3"], &["0.54.1", "0.55.0"]),
            ("~1.2.3", &["1.2.3", "1.2.9"], &["1.3.0", "1.2.2"]),
            (">= 0.9.5, < 1.0.0", &["0.9.5", "0.9.9"], &["0.9.4", "1.0.0"]),
        ] {
            let parsed = Range::parse(range).unwrap();
            for (versions, expected) in [(inside, true), (outside, false)] {
                for version in versions {
                    let contains = parsed.contains(&version.parse().unwrap());
                    assert_eq!(contains, expected, "{version} in {range}");
                }
            }
        }
        for wrong in ["", "*", "1.*", "around 1", ">= 1 or so"] {
            assert!(Range::parse(wrong).is_err(), "{wrong}");
        }
    }
}
