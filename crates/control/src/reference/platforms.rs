//! The methods that platforms on top of SPDK call, and which of them are not here, for the reference page.

use std::fmt::Write as _;

use crate::absent::absent;
use crate::method::Registry;

/// The facts; its first lines describe the form.
const TABLE: &str = include_str!("platforms.txt");

/// One platform.
struct Platform {
    name: &'static str,
    /// The source that was read, with its revision.
    source: &'static str,
    /// Methods of SPDK.
    calls: Vec<&'static str>,
    /// Methods that only the platform's own fork of SPDK has.
    fork: Vec<&'static str>,
}

fn platforms() -> Vec<Platform> {
    let mut platforms: Vec<Platform> = Vec::new();
    for line in TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (kind, rest) = line.split_once(' ').expect("a kind and its words");
        if kind == "platform" {
            platforms.push(Platform {
                name: rest,
                source: "",
                calls: Vec::new(),
                fork: Vec::new(),
            });
            continue;
        }
        let platform = platforms.last_mut().expect("a platform before its lines");
        match kind {
            "calls" => platform.calls.extend(rest.split(' ')),
            "fork" => platform.fork.extend(rest.split(' ')),
            _ => platform.source = rest.trim_start_matches("at "),
        }
    }
    platforms
}

/// The section of the page. Writing to a String does not fail.
pub(super) fn section(text: &mut String, registry: &Registry) {
    text.push_str(
        "\n## Platforms\n\nWhat platforms that drive SPDK call, by their sources, and which of these methods are not \
         here. A call sequence that needs one of them ends there, with `Method not found` and a sentence that says what \
         the method belongs to.\n\n| platform | methods | here | lacking |\n|---|--:|--:|---|\n",
    );
    let platforms = platforms();
    for platform in &platforms {
        let Platform { name, calls, fork, .. } = platform;
        let here = calls.iter().filter(|method| registry.get(method).is_some()).count();
        let lacking = lacking(registry, platform);
        let lacking = if lacking.is_empty() { "nothing".to_owned() } else { lacking };
        let _ = writeln!(text, "| {name} | {} | {here} | {lacking} |", calls.len() + fork.len());
    }
    let sources =
        platforms.iter().map(|platform| format!("{}: {}", platform.name, platform.source));
    let _ = writeln!(text, "\nLooked at: {}.", sources.collect::<Vec<_>>().join("; "));
}

/// The methods that a platform lacks, by the part of SPDK that they belong to.
fn lacking(registry: &Registry, platform: &Platform) -> String {
    let mut parts: Vec<(&str, Vec<String>)> = Vec::new();
    let missing = platform.calls.iter().filter(|method| registry.get(method).is_none());
    for method in missing {
        let part = absent(method).map_or("other", |found| found.part.text);
        let method = format!("`{method}`");
        match parts.iter_mut().find(|(known, _)| *known == part) {
            Some((_, methods)) => methods.push(method),
            None => parts.push((part, vec![method])),
        }
    }
    if !platform.fork.is_empty() {
        let fork = platform.fork.iter().map(|method| format!("`{method}`")).collect();
        parts.push(("only in its own fork of SPDK", fork));
    }
    let parts = parts.into_iter().map(|(part, methods)| format!("{part}: {}", methods.join(", ")));
    parts.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::schema::schema;

    #[test]
    fn what_platforms_call_is_known() {
        let registry = Registry::new();
        let platforms = platforms();
        assert!(platforms.len() >= 5);
        for Platform { name, source, calls, fork } in platforms {
            assert!(!source.is_empty() && !calls.is_empty(), "{name}");
            let all: BTreeSet<&str> = calls.iter().chain(&fork).copied().collect();
            assert_eq!(all.len(), calls.len() + fork.len(), "{name} has a method twice");
            for method in calls {
                assert!(schema().method(method).is_some(), "{name}: SPDK has no {method}");
                let is_known = registry.get(method).is_some() || absent(method).is_some();
                assert!(
                    is_known,
                    "{name}: {method} is neither here nor in the table of what is not"
                );
            }
            for method in fork {
                assert!(schema().method(method).is_none(), "{name}: SPDK has {method} by now");
            }
        }
    }

    #[test]
    fn what_a_platform_lacks_is_named_by_part() {
        let registry = Registry::new();
        let mut text = String::new();
        section(&mut text, &registry);
        let row = text.lines().find(|line| line.starts_with("| OpenStack Cinder")).unwrap();
        assert!(row.contains("logical volumes: `bdev_lvol_clone`, `bdev_lvol_create`"), "{row}");
        assert!(!row.contains("nvmf_create_subsystem"), "{row}");
    }
}
