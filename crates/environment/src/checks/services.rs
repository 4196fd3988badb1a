//! Checks of services and programs.

use super::{Subject, joined};
use crate::check::{Area, Check, Severity};
use crate::reading::Reading;

pub(super) fn checks(subject: &Subject<'_>) -> Vec<Check> {
    vec![
        balancer(subject),
        running(subject),
        profile(subject),
        security(subject),
        programs(subject),
    ]
}

fn new(id: &'static str, title: &'static str, why: &'static str) -> Check {
    Check::new(Area::Services, id, title, why)
}

fn balancer(subject: &Subject<'_>) -> Check {
    let why = "irqbalance moves interrupts between CPUs every ten seconds, away from where they were put.";
    let check = new("services-irqbalance", "irqbalance", why);
    match subject.environment.services.runs("irqbalance") {
        Some(runs) => check
            .good_or(!runs, Severity::Warning, if runs { "runs" } else { "does not run" })
            .fix("systemctl stop irqbalance"),
        None => {
            let reason = subject.environment.services.running.reason();
            check.is(Severity::Info, reason.unwrap_or_default())
        }
    }
}

fn running(subject: &Subject<'_>) -> Check {
    let why = "The papers stopped firewalld and NetworkManager. Services that watch the network wake up during \
               a run and can set an interface's settings back. Stop a firewall only on a network that nobody \
               else reaches.";
    let check = new("services-running", "services", why);
    match &subject.environment.services.running {
        Reading::Read(services) => {
            let runs = services.iter().filter(|(_, runs)| **runs).map(|(name, _)| name);
            check.is(Severity::Info, format!("running: {}", joined(runs)))
        }
        unread => check.is(Severity::Info, unread.reason().unwrap_or_default()),
    }
}

fn profile(subject: &Subject<'_>) -> Check {
    let why = "tuned sets governor, C-states, huge pages and network settings: network-latency for single \
               commands, network-throughput for large ones.";
    let check = new("services-tuned", "tuned's profile", why);
    match &subject.environment.services.tuned_profile {
        Reading::Read(profile) if profile.is_empty() => check.is(Severity::Info, "none"),
        Reading::Read(profile) => {
            let suits = profile.contains("latency")
                || profile.contains("throughput-performance")
                || profile.contains("network-throughput");
            check.good_or(suits, Severity::Info, profile).hint("tuned-adm profile network-latency")
        }
        Reading::Unread { .. } => check.is(Severity::Info, "tuned is not installed"),
    }
}

fn security(subject: &Subject<'_>) -> Check {
    let services = &subject.environment.services;
    let why = "SELinux and AppArmor look at each system call that opens or sends; the papers turned SELinux \
               off. Compare only results that have the same.";
    let apparmor = match services.apparmor.get() {
        Some(true) => "on",
        _ => "off",
    };
    let value = format!("SELinux {}, AppArmor {apparmor}", services.selinux);
    new("services-security", "security modules", why).is(Severity::Info, value)
}

fn programs(subject: &Subject<'_>) -> Check {
    let why = "Recipes and comparisons use these. Raceline needs none of them to run.";
    let found = subject.environment.programs.iter();
    let shown = found.map(|(name, version)| match version {
        // Most print their name themselves.
        Reading::Read(version) if version.contains(name.as_str()) => version.clone(),
        Reading::Read(version) => format!("{name} {version}"),
        Reading::Unread { .. } => format!("no {name}"),
    });
    new("services-programs", "programs", why).is(Severity::Info, joined(shown))
}
