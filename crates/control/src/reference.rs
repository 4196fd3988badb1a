//! docs/RPC.md: every method of SPDK, whether this program has it, and what differs.

use std::fmt::Write as _;

use crate::method::{Method, Registry, States};
use crate::schema::{self, schema};

/// What the registry cannot say of itself: remarks, a line each, `METHOD text`.
const REMARKS: &str = include_str!("reference/remarks.txt");

/// The beginning of the page.
const HEAD: &str = "\
# JSON-RPC reference

<!-- Written by `cargo xtask rpc-docs` from the methods themselves. Do not edit. -->

`raceline serve` speaks SPDK's JSON-RPC. This page goes through SPDK's methods (26.09-pre): which of them there are \
here, when they may be called, what differs. What a method takes is what SPDK's takes, unless it says otherwise; \
`raceline rpc METHOD --help` lists it. A method that is not here answers `Method not found` (-32601); a parameter that \
is not supported is refused by its name (-32602). Neither is ever accepted and ignored in silence: where a parameter \
has no meaning here, the last column says so.

*When*: **start** is before `framework_start_init` (with `--wait-for-rpc`), **run** is after it.
";

/// The whole page.
pub fn page(registry: &Registry) -> String {
    let mut text = HEAD.to_owned();
    let mut groups: Vec<&str> = Vec::new();
    for method in schema().methods() {
        if groups.last() != Some(&method.group) {
            groups.push(method.group);
        }
    }
    summary(&mut text, registry, &groups);
    for group in groups {
        section(&mut text, registry, group);
    }
    own_methods(&mut text, registry);
    old_names(&mut text, registry);
    text
}

/// Parameters of SPDK's method that ours does not know. Empty is what should be; the exceptions
/// stand on the page.
pub fn unknown_parameters(ours: &Method, spdk: &schema::Method) -> Vec<&'static str> {
    let names = spdk.parameters.iter().map(|parameter| parameter.name);
    names.filter(|name| !ours.parameters.contains(name)).collect()
}

/// Parameters of ours that SPDK's method does not have.
fn further_parameters(ours: &Method, spdk: &schema::Method) -> Vec<&'static str> {
    let names = ours.parameters.iter().copied();
    names.filter(|name| spdk.parameter(name).is_none()).collect()
}

fn remark(method: &str) -> Option<&'static str> {
    let mut lines = REMARKS.lines().filter_map(|line| line.split_once(' '));
    lines.find(|(name, _)| *name == method).map(|(_, text)| text)
}

fn of_group(group: &str) -> impl Iterator<Item = &'static schema::Method> {
    schema().methods().iter().filter(move |method| method.group == group)
}

/// The counts. Writing to a String does not fail.
fn summary(text: &mut String, registry: &Registry, groups: &[&str]) {
    let ours = |method: &&schema::Method| registry.get(method.name).is_some();
    let (all, here) = (schema().methods().len(), schema().methods().iter().filter(ours).count());
    let own = registry.methods().filter(|method| schema().method(method.name).is_none()).count();
    let _ = writeln!(
        text,
        "\n**{here} of SPDK's {all} methods are here**, and {own} that SPDK's schema does not have.\n"
    );
    let _ = writeln!(text, "| group | methods | here |\n|---|--:|--:|");
    for &group in groups {
        let (all, here) = (of_group(group).count(), of_group(group).filter(ours).count());
        let _ = writeln!(text, "| {} | {all} | {here} |", group_name(group, here));
    }
}

/// A group that has a section is linked to it.
fn group_name(group: &str, here: usize) -> String {
    if here > 0 { format!("[{group}](#{group})") } else { group.to_owned() }
}

fn section(text: &mut String, registry: &Registry, group: &str) {
    let (mut here, mut missing) = (Vec::new(), Vec::new());
    for method in of_group(group) {
        match registry.get(method.name) {
            Some(ours) => here.push((method, ours)),
            None => missing.push(method.name),
        }
    }
    let _ = writeln!(text, "\n## {group}\n");
    if !here.is_empty() {
        let _ = writeln!(text, "| method | when | what differs |\n|---|---|---|");
        for (spdk, ours) in here {
            let _ = writeln!(
                text,
                "| `{}` | {} | {} |",
                spdk.name,
                when(ours.states),
                differences(ours, spdk)
            );
        }
    }
    if !missing.is_empty() {
        let gap = if text.ends_with("|\n") { "\n" } else { "" };
        let names: Vec<String> = missing.iter().map(|name| format!("`{name}`")).collect();
        let _ = writeln!(text, "{gap}Not here: {}.", names.join(", "));
    }
}

fn when(states: States) -> &'static str {
    match states {
        States::Startup => "start",
        States::Runtime => "run",
        States::Both => "start, run",
    }
}

fn differences(ours: &Method, spdk: &schema::Method) -> String {
    let mut parts: Vec<String> = remark(spdk.name).map(str::to_owned).into_iter().collect();
    let list = |names: Vec<&str>| {
        names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
    };
    let unknown = unknown_parameters(ours, spdk);
    if !unknown.is_empty() {
        parts.push(format!("without {}", list(unknown)));
    }
    let further = further_parameters(ours, spdk);
    if !further.is_empty() {
        parts.push(format!("also takes {}", list(further)));
    }
    parts.join("; ")
}

/// Methods that SPDK's schema does not have.
fn own_methods(text: &mut String, registry: &Registry) {
    let mut own = registry.methods().filter(|method| schema().method(method.name).is_none());
    let Some(first) = own.next() else { return };
    let _ = writeln!(text, "\n## Not in SPDK's schema\n");
    let _ = writeln!(text, "| method | when | parameters | what it does |\n|---|---|---|---|");
    for method in std::iter::once(first).chain(own) {
        let names: Vec<String> = method.parameters.iter().map(|name| format!("`{name}`")).collect();
        let about = remark(method.name).unwrap_or("");
        let _ = writeln!(
            text,
            "| `{}` | {} | {} | {about} |",
            method.name,
            when(method.states),
            names.join(", ")
        );
    }
}

/// Names that older clients use.
fn old_names(text: &mut String, registry: &Registry) {
    let names: Vec<String> =
        registry.aliases().map(|(old, new)| format!("`{old}` ({new})")).collect();
    if !names.is_empty() {
        let _ = writeln!(text, "\n## Old names\n\nAlso answered: {}.", names.join(", "));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_of_spdk_stands_on_the_page_once() {
        let page = page(&Registry::new());
        for method in schema().methods() {
            let marked = format!("`{}`", method.name);
            // The text before and the old names after may name it, too.
            let body = page.split("\n## Old names").next().unwrap();
            let (_, body) = body.split_once("\n## ").unwrap();
            assert_eq!(body.matches(&marked).count(), 1, "{marked}");
        }
    }

    #[test]
    fn remarks_are_of_methods_that_are_here() {
        let registry = Registry::new();
        for line in REMARKS.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (method, text) = line.split_once(' ').expect("METHOD text");
            assert!(registry.get(method).is_some(), "{method} is not here");
            assert!(!text.contains('|'), "{method}: a bar ends a column");
        }
    }

    /// The decoder of each method must know what clients of SPDK send: a strict one would refuse the
    /// call, a relaxed one would ignore it in silence.
    #[test]
    fn methods_know_spdks_parameters() {
        let registry = Registry::new();
        let mut wrong = Vec::new();
        for ours in registry.methods() {
            let Some(spdk) = schema().method(ours.name) else { continue };
            for name in unknown_parameters(ours, spdk) {
                if !NOT_TAKEN.contains(&(ours.name, name)) {
                    wrong.push(format!("{} does not know {name}", ours.name));
                }
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
        for (method, name) in NOT_TAKEN {
            let ours = registry.get(method).expect("a method that is here");
            assert!(!ours.parameters.contains(name), "{method} knows {name} by now");
        }
    }

    /// What methods do not know of SPDK's parameters.
    const NOT_TAKEN: &[(&str, &str)] = &[
        // Of other transports: SPDK's own decoder for this method ignores what it does not know.
        ("nvmf_create_transport", "num_cqe"),
        ("nvmf_create_transport", "max_srq_depth"),
        ("nvmf_create_transport", "no_srq"),
        ("nvmf_create_transport", "acceptor_backlog"),
        ("nvmf_create_transport", "no_wr_batching"),
        ("nvmf_create_transport", "control_msg_num"),
        ("nvmf_create_transport", "disable_mappable_bar0"),
        ("nvmf_create_transport", "disable_adaptive_irq"),
        ("nvmf_create_transport", "disable_shadow_doorbells"),
        ("nvmf_create_transport", "acceptor_poll_rate"),
        ("nvmf_create_transport", "masked_oncs"),
        ("nvmf_create_transport", "masked_fuses"),
    ];
}
