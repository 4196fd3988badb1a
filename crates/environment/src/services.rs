//! Services that change settings or take processor time: which of them run, without asking them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::reading::Reading;
use crate::system::System;

/// Names of services, and of their processes as the kernel has them, which are at most 15 letters long.
const SERVICES: &[(&str, &str)] = &[
    ("irqbalance", "irqbalance"),
    ("firewalld", "firewalld"),
    ("NetworkManager", "NetworkManager"),
    ("tuned", "tuned"),
    ("thermald", "thermald"),
    ("lldpad", "lldpad"),
    ("power-profiles-daemon", "power-profiles-"),
    ("chronyd", "chronyd"),
    ("systemd-timesyncd", "systemd-timesyn"),
];

/// Services and security modules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Services {
    /// Whether each of the services runs.
    pub running: Reading<BTreeMap<String, bool>>,
    /// The profile that tuned has set, if it is installed.
    pub tuned_profile: Reading<String>,
    /// `enforcing`, `permissive` or `disabled`.
    pub selinux: Reading<String>,
    /// Whether AppArmor is on.
    pub apparmor: Reading<bool>,
}

impl Services {
    /// Reads them.
    #[must_use]
    pub fn read(system: &System) -> Self {
        let enforces = system.flag("/sys/fs/selinux/enforce");
        let selinux = match enforces {
            Reading::Read(true) => "enforcing",
            Reading::Read(false) => "permissive",
            Reading::Unread { .. } => "disabled",
        };
        Self {
            running: processes(system).map(|names| {
                let runs = |process: &str| names.iter().any(|name| name == process);
                SERVICES.iter().map(|(name, process)| ((*name).to_owned(), runs(process))).collect()
            }),
            tuned_profile: system.text("/etc/tuned/active_profile"),
            selinux: if system.has("/sys/fs") {
                Reading::Read(selinux.to_owned())
            } else {
                Reading::unread("this system has no /sys/fs")
            },
            apparmor: system.flag("/sys/module/apparmor/parameters/enabled"),
        }
    }

    /// Whether a service runs; nothing if that could not be read.
    #[must_use]
    pub fn runs(&self, name: &str) -> Option<bool> {
        self.running.value()?.get(name).copied()
    }
}

/// The names of all processes that this process can see.
fn processes(system: &System) -> Reading<Vec<String>> {
    system.numbered("/proc", "").then(|numbers| {
        if numbers.is_empty() {
            return Reading::unread("/proc shows no processes");
        }
        let name =
            |number: &u32| system.text(&format!("/proc/{number}/comm")).text().map(str::to_owned);
        Reading::Read(numbers.iter().filter_map(name).collect())
    })
}
