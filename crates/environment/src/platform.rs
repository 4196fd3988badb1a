//! What the system runs on: bare metal, a virtual machine, a container; its firmware and its limits.

use serde::{Deserialize, Serialize};

use crate::cpu::has_flag;
use crate::reading::Reading;
use crate::system::System;

const DMI: &str = "/sys/class/dmi/id";
const CGROUP: &str = "/sys/fs/cgroup";

/// What the system runs on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Platform {
    /// Whether it is a virtual machine.
    pub virtual_machine: Reading<bool>,
    /// Vendor and product of the machine, as its firmware says.
    pub product: Reading<String>,
    /// Vendor, version and date of the firmware.
    pub firmware: Reading<String>,
    /// The kind of container that this process runs in, or `none`.
    pub container: Reading<String>,
    /// The share of time that the control group may use, as in cpu.max: quota and period, or `max`.
    pub cpu_quota: Reading<String>,
    /// Whether devices reach memory through an IOMMU.
    pub iommu: Reading<bool>,
}

impl Platform {
    /// Reads it.
    #[must_use]
    pub fn read(system: &System) -> Self {
        let dmi = |names: &[&str]| joined(system, names);
        Self {
            virtual_machine: has_flag(system, "hypervisor"),
            product: dmi(&["sys_vendor", "product_name"]),
            firmware: dmi(&["bios_vendor", "bios_version", "bios_date"]),
            container: container(system),
            cpu_quota: quota(system),
            iommu: system.names("/sys/class/iommu").map(|names| !names.is_empty()),
        }
    }
}

fn joined(system: &System, names: &[&str]) -> Reading<String> {
    let mut words = Vec::new();
    for name in names {
        match system.text(&format!("{DMI}/{name}")) {
            Reading::Read(word) => words.push(word),
            unread @ Reading::Unread { .. } => return unread,
        }
    }
    Reading::Read(words.join(" "))
}

/// Container programs leave these files in the root, and Kubernetes mounts its secrets.
fn container(system: &System) -> Reading<String> {
    let signs = [
        ("/run/.containerenv", "podman"),
        ("/.dockerenv", "docker"),
        ("/var/run/secrets/kubernetes.io", "kubernetes"),
        ("/dev/lxd", "lxd"),
    ];
    let found = signs.iter().find(|(path, _)| system.has(path));
    Reading::Read(found.map_or("none", |(_, name)| name).to_owned())
}

/// The least quota of this process's group and the groups above it, in version 2 of control groups.
fn quota(system: &System) -> Reading<String> {
    group(system).then(|group| {
        let mut least: Option<(f64, String)> = None;
        let mut path = group.as_str();
        loop {
            let file = format!("{CGROUP}{path}/cpu.max");
            if let Reading::Read(text) = system.text(&file)
                && let Some(share) = share(&text)
                && least.as_ref().is_none_or(|(smallest, _)| share < *smallest)
            {
                least = Some((share, text));
            }
            match path.rsplit_once('/') {
                Some((above, _)) => path = above,
                None => break,
            }
        }
        match least {
            Some((_, text)) => Reading::Read(text),
            None if system.has(&format!("{CGROUP}/cgroup.controllers")) => {
                Reading::Read("max".to_owned())
            }
            None => Reading::unread(format!(
                "{CGROUP} has no control groups of version 2, the only ones that are read"
            )),
        }
    })
}

/// The group of this process in version 2 of control groups: empty for the topmost.
pub(crate) fn group(system: &System) -> Reading<String> {
    system.text("/proc/self/cgroup").then(|text| {
        let path = text.lines().find_map(|line| line.strip_prefix("0::"));
        path.map_or_else(
            || Reading::unread("this process is in no control group of version 2"),
            |path| Reading::Read(path.trim_end_matches('/').to_owned()),
        )
    })
}

/// How many CPUs `quota period` allows; nothing without a limit.
fn share(text: &str) -> Option<f64> {
    let (quota, period) = text.split_once(' ')?;
    Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_quota_above_counts() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let system = System::recorded(folder.path());
        assert!(quota(&system).reason().is_some());
        write("proc/self/cgroup", "0::/a/b\n");
        write("sys/fs/cgroup/cgroup.controllers", "cpu\n");
        assert_eq!(quota(&system).text(), Some("max"));
        write("sys/fs/cgroup/a/b/cpu.max", "400000 100000\n");
        write("sys/fs/cgroup/a/cpu.max", "150000 100000\n");
        assert_eq!(quota(&system).text(), Some("150000 100000"));
    }
}
