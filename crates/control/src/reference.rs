//! docs/RPC.md: every method of SPDK, whether this program has it, and what differs.

mod platforms;
mod without_effect;

use std::fmt::Write as _;

use serde_json::Value;

use crate::absent::absent;
use crate::method::{Method, Registry, States};
use crate::schema::{self, schema};
use without_effect::WithoutEffect;

/// Facts beyond the registry: remarks, a line each, `METHOD text`.
const REMARKS: &str = include_str!("reference/remarks.txt");

/// The beginning of the page.
const HEAD: &str = "\
# JSON-RPC reference

<!-- Written by `cargo xtask rpc-docs` from the methods themselves. Do not edit. -->

`raceline serve` speaks SPDK's JSON-RPC. This page goes through SPDK's methods (26.09-pre): which of them there are \
here, when they may be called, what differs. What a method takes is what SPDK's takes, unless it says otherwise; \
`raceline rpc METHOD --help` lists it. A method that is not here answers `Method not found` (-32601), and the member \
`data` of the error says what part of SPDK it belongs to. A parameter that is not supported is refused by its name \
(-32602).

*When*: **start** is before `framework_start_init` (with `--wait-for-rpc`), **run** is after it. *Without effect*: the \
method takes these parameters, and they change nothing. **all** stands at methods that only set options of a part of \
SPDK that is not here: what they are told is kept and given back by `save_config`, also over a restart with a state \
directory, and the log says so. Methods that would make something of such a part are not here.
";

/// What stands before the methods of a disk's process.
const DISK: &str = "
## The process of a disk

`raceline connect --as nbd|ublk|vhost-user` answers at a socket beside its note, `disk-PID.rpc` ([manual]\
(manual.md#connect-and-disconnect)), in narrow bounds: 8 connections, one call at a time, requests of 64 KiB. Only its user and \
root can connect. It has these methods, which do what they do in a daemon, and their old names:

";

/// What stands after them.
const GET_DISK: &str = "
`raceline_get_disk` takes nothing, and gives:

| member | what it is |
|---|---|
| `pid`, `kind`, `places` | the process; `nbd`, `ublk` or `vhost-user`; sockets, addresses or device files, first what `raceline list` shows |
| `name`, `uuid` | the device that is the disk |
| `block_size`, `num_blocks`, `read_only` | bytes of a block, and the size in blocks now; whether users may only read |
| `controller` | null for a device of this machine; else `subnqn`, `hostnqn`, `hostid`, `nsid`, `serial_number`, `model_number`, \
`firmware_revision`, and `ctrlrs`, which has the paths as in `bdev_nvme_get_controllers`: `state` is `enabled`, `resetting` or `failed` |
| `counts` | since the process began: requests that succeeded (`reads`, `writes`, `flushes`, `discards`, `write_zeroes`), their bytes \
(`read_bytes`, `written_bytes`, `discarded_bytes`, `zeroed_bytes`), reads and writes without a copy (`uncopied`), requests that failed or \
were refused (`errors`); `queues` are the connections or queues that use the disk now |
| `cores` | of each thread that serves the disk: `name`, `cpu` (null: it floats), and in microseconds how long it has run (`age_us`), \
how much of that was busy (`busy_us`) and the longest turn (`longest_us`); `turns`, `busy_turns`, and `waits`, the turns that were \
allowed to sleep |
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
    disk_methods(&mut text);
    old_names(&mut text, registry);
    platforms::section(&mut text, registry);
    text
}

/// Parameters of SPDK's method that ours does not know. There should be none; the page lists the
/// exceptions.
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

/// Whether SPDK's method is here, and not only kept.
fn is_here(registry: &Registry, method: &schema::Method) -> bool {
    registry.get(method.name).is_some_and(|ours| !ours.effect.is_none())
}

/// Whether SPDK's method is only kept.
fn is_kept(registry: &Registry, method: &schema::Method) -> bool {
    registry.get(method.name).is_some_and(|ours| ours.effect.is_none())
}

/// The counts. Writing to a String does not fail.
fn summary(text: &mut String, registry: &Registry, groups: &[&str]) {
    let all = schema().methods();
    let here = all.iter().filter(|method| is_here(registry, method)).count();
    let kept = all.iter().filter(|method| is_kept(registry, method)).count();
    let own = registry.methods().filter(|method| schema().method(method.name).is_none()).count();
    let _ = writeln!(
        text,
        "\n**{here} of SPDK's {} methods are here**, and {own} that SPDK's schema does not have. {kept} more set options \
         of what is not here, and are kept without effect.\n",
        all.len()
    );
    let _ = writeln!(text, "| group | methods | here | kept |\n|---|--:|--:|--:|");
    for &group in groups {
        let all = of_group(group).count();
        let here = of_group(group).filter(|method| is_here(registry, method)).count();
        let kept = of_group(group).filter(|method| is_kept(registry, method)).count();
        let name = group_name(group, here + kept);
        let _ = writeln!(text, "| {name} | {all} | {here} | {kept} |");
    }
}

/// The name of a group, linked if the group has a section.
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
        let _ =
            writeln!(text, "| method | when | without effect | what differs |\n|---|---|---|---|");
        for (spdk, ours) in here {
            let _ = writeln!(
                text,
                "| `{}` | {} | {} | {} |",
                spdk.name,
                when(ours.states),
                without_effect(ours),
                differences(ours, spdk)
            );
        }
    }
    if !missing.is_empty() {
        let gap = if text.ends_with("|\n") { "\n" } else { "" };
        let _ = writeln!(text, "{gap}Not here: {}.", by_part(&missing));
    }
}

/// Methods that are not here, by the part of SPDK that they belong to.
fn by_part(missing: &[&str]) -> String {
    let mut parts: Vec<(&str, Vec<String>)> = Vec::new();
    for name in missing {
        let part = absent(name).map_or("other", |found| found.part.text);
        let name = format!("`{name}`");
        match parts.iter_mut().find(|(known, _)| *known == part) {
            Some((_, names)) => names.push(name),
            None => parts.push((part, vec![name])),
        }
    }
    let parts = parts.into_iter().map(|(part, names)| format!("{part} ({})", names.join(", ")));
    parts.collect::<Vec<_>>().join("; ")
}

/// The parameters of a method that have no effect.
fn without_effect(ours: &Method) -> String {
    if ours.effect.is_none() {
        return "all".to_owned();
    }
    let Some(WithoutEffect { parameters, why, .. }) = without_effect::of(ours.name) else {
        return String::new();
    };
    let names: Vec<String> = parameters.iter().map(|name| format!("`{name}`")).collect();
    format!("{}: {why}", names.join(", "))
}

fn when(states: States) -> &'static str {
    match states {
        States::Startup => "start",
        States::Runtime => "run",
        States::Both => "start, run",
    }
}

fn differences(ours: &Method, spdk: &schema::Method) -> String {
    if let Some(found) = absent(ours.name) {
        return format!("there is no such part: {}", found.part.text);
    }
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

/// Methods of a process that serves one disk.
fn disk_methods(text: &mut String) {
    let registry = Registry::of_disk(|| Value::Null);
    let names: Vec<String> =
        registry.methods().map(|method| format!("`{}`", method.name)).collect();
    let _ =
        writeln!(text, "{}{}.", DISK.trim_end_matches('\n').to_owned() + "\n\n", names.join(", "));
    text.push_str(GET_DISK);
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
        // A disk's process has some of them, too.
        let (before, _) = page.split_once("\n## The process of a disk").unwrap();
        for method in schema().methods() {
            let marked = format!("`{}`", method.name);
            // The text before this part may also name the method.
            let (_, body) = before.split_once("\n## ").unwrap();
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
        assert!(!page(&registry).contains("other ("), "a method without a part");
    }

    /// The decoder of each method must know what clients of SPDK send: a strict one would refuse the call,
    /// a relaxed one would ignore the parameter silently.
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

    /// SPDK's parameters that our methods do not know.
    const NOT_TAKEN: &[(&str, &str)] = &[
        // For other transports: SPDK's own decoder for this method ignores unknown parameters.
        ("nvmf_create_transport", "control_msg_num"),
        ("nvmf_create_transport", "disable_mappable_bar0"),
        ("nvmf_create_transport", "disable_adaptive_irq"),
        ("nvmf_create_transport", "disable_shadow_doorbells"),
        ("nvmf_create_transport", "acceptor_poll_rate"),
        ("nvmf_create_transport", "masked_oncs"),
        ("nvmf_create_transport", "masked_fuses"),
    ];
}
