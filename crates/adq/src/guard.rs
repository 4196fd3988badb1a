//! What must not be: a machine that is cut off, or settings of someone else that cannot be given back.

use std::path::Path;

use crate::error::{Error, Result};
use crate::facts::Facts;
use crate::machine::Machine;
use crate::plan::{Plan, Way};
use crate::setting::{DEFAULT, Setting};

/// The bit of CAP_NET_ADMIN in a set of capabilities.
const NET_ADMIN: u32 = 12;

/// All reasons against applying this plan here. `ssh` is the variable SSH_CONNECTION.
pub fn objections(facts: &Facts, plan: &Plan, ssh: Option<&str>) -> Vec<String> {
    let mut reasons = Vec::new();
    let name = &facts.interface;
    if let Some(kind) = &facts.made_of {
        reasons.push(format!(
            "{name} is a {kind}: it has no queues of its own. Use one interface without it for \
             this traffic"
        ));
    }
    if let Some(master) = &facts.master {
        reasons.push(format!(
            "{name} is part of {master}, which gives it packets as it likes: take it out first"
        ));
    }
    let root = Setting::RootQdisc.value_in(facts).unwrap_or_default();
    if root != DEFAULT {
        reasons.push(format!(
            "{name} has the root queueing discipline {root}, which someone chose: `tc qdisc del dev {name} \
             root` first"
        ));
    }
    if plan.way == Way::Channels {
        channels(facts, &mut reasons);
    }
    // "client port server port"
    let own_port = ssh.and_then(|ssh| ssh.split_whitespace().nth(3)?.parse::<u16>().ok());
    for listener in &plan.request.listeners {
        if Some(listener.port()) == own_port {
            reasons.push(format!(
                "--listener {listener} is the port of this SSH connection: filters could cut it off"
            ));
        }
    }
    let program = |program: &&String| {
        let needed = plan.to_do().flat_map(|(_, step)| {
            step.setting
                .changes(facts, &step.wanted, crate::setting::Use::Print)
                .unwrap_or_default()
        });
        needed.into_iter().any(|change| change.line().starts_with(&format!("{program} ")))
    };
    for program in facts.missing_programs.iter().filter(program) {
        let package = crate::machine::PACKAGES.iter().find(|(name, _)| name == program);
        let package = package.map_or("of that name", |(_, package)| *package);
        reasons.push(format!(
            "the program {program} is not installed: install the package {package} (Debian's name)"
        ));
    }
    reasons
}

fn channels(facts: &Facts, reasons: &mut Vec<String>) {
    let name = &facts.interface;
    if facts.features.get("l2-fwd-offload").is_some_and(|feature| feature.on) {
        reasons.push(format!(
            "{name} has l2-fwd-offload on, which excludes traffic classes: `ethtool -K {name} \
             l2-fwd-offload off` first"
        ));
    }
    if facts.qdiscs.iter().any(|qdisc| qdisc.kind == "ingress") {
        reasons.push(format!(
            "{name} has an ingress queueing discipline, which excludes clsact: `tc qdisc del dev {name} \
             ingress` first"
        ));
    }
    if !facts.filters.is_empty() {
        reasons.push(format!(
            "{name} has filters of received packets already, which would be mixed with ours: see `tc filter \
             show dev {name} ingress`"
        ));
    }
}

/// Refuses what must not be applied.
///
/// # Errors
/// With the reasons.
pub fn check(machine: &dyn Machine, facts: &Facts, plan: &Plan, ssh: Option<&str>) -> Result<()> {
    privileges(machine)?;
    let reasons = objections(facts, plan, ssh);
    if reasons.is_empty() { Ok(()) } else { Err(Error::Refused(reasons.join("; "))) }
}

/// Refuses a user who cannot change anything.
///
/// # Errors
/// Without root and CAP_NET_ADMIN.
pub fn privileges(machine: &dyn Machine) -> Result<()> {
    let status = machine.read(Path::new("/proc/self/status")).unwrap_or_default();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let effective = field("CapEff:").and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    let user = field("Uid:").and_then(|text| text.split_whitespace().nth(1));
    if user != Some("0") {
        let text = "this changes settings of the machine, and needs root: run it with sudo. `plan` and \
                    `show` need no root";
        return Err(Error::Refused(text.to_owned()));
    }
    if effective.is_none_or(|set| set >> NET_ADMIN & 1 == 0) {
        let text = "this user is root without CAP_NET_ADMIN, as in most containers: run it on the machine \
                    itself, or give the container that capability";
        return Err(Error::Refused(text.to_owned()));
    }
    Ok(())
}
