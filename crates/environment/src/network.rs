//! The network stack: the settings that the papers name for both roles, and those that change results as well.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::reading::Reading;
use crate::system::System;

/// The settings that are read, in the spelling of sysctl(8).
const SETTINGS: &[&str] = &[
    "net.core.busy_poll",
    "net.core.busy_read",
    "net.core.default_qdisc",
    "net.core.dev_weight",
    "net.core.netdev_budget",
    "net.core.netdev_budget_usecs",
    "net.core.netdev_max_backlog",
    "net.core.optmem_max",
    "net.core.rmem_default",
    "net.core.rmem_max",
    "net.core.rps_sock_flow_entries",
    "net.core.somaxconn",
    "net.core.wmem_default",
    "net.core.wmem_max",
    "net.ipv4.tcp_autocorking",
    "net.ipv4.tcp_congestion_control",
    "net.ipv4.tcp_available_congestion_control",
    "net.ipv4.tcp_ecn",
    "net.ipv4.tcp_limit_output_bytes",
    "net.ipv4.tcp_max_syn_backlog",
    "net.ipv4.tcp_mem",
    "net.ipv4.tcp_no_metrics_save",
    "net.ipv4.tcp_notsent_lowat",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_sack",
    "net.ipv4.tcp_slow_start_after_idle",
    "net.ipv4.tcp_timestamps",
    "net.ipv4.tcp_window_scaling",
    "net.ipv4.tcp_wmem",
    "net.mptcp.enabled",
];

/// The network stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// The settings, in the spelling of sysctl(8). Blanks between numbers are single spaces.
    pub settings: BTreeMap<String, Reading<String>>,
    /// The most connections that the kernel's tracking holds, if it is on.
    pub tracked_connections_max: Reading<u64>,
    /// Whether there are firewall tables of the older kind, by name.
    pub firewall_tables: Reading<String>,
}

impl Network {
    /// Reads it.
    #[must_use]
    pub fn read(system: &System) -> Self {
        let setting = |name: &&str| ((*name).to_owned(), sysctl(system, name));
        let mut settings: BTreeMap<_, _> = SETTINGS.iter().map(setting).collect();
        let flush = "the kernel gives no value: it can only be written";
        settings.insert("net.ipv4.route.flush".to_owned(), Reading::unread(flush));
        Self {
            settings,
            tracked_connections_max: system.number("/proc/sys/net/netfilter/nf_conntrack_max"),
            firewall_tables: system
                .text("/proc/net/ip_tables_names")
                .map(|text| text.split_whitespace().collect::<Vec<_>>().join(" ")),
        }
    }

    /// A setting, if it could be read.
    #[must_use]
    pub fn setting(&self, name: &str) -> Option<&str> {
        self.settings.get(name)?.text()
    }

    /// The numbers of a setting; empty if it could not be read.
    #[must_use]
    pub fn numbers(&self, name: &str) -> Vec<u64> {
        let words = self.setting(name).unwrap_or_default().split_whitespace();
        words.filter_map(|word| word.parse().ok()).collect()
    }
}

fn sysctl(system: &System, name: &str) -> Reading<String> {
    let text = system.text(&format!("/proc/sys/{}", name.replace('.', "/")));
    text.map(|text| text.split_whitespace().collect::<Vec<_>>().join(" "))
}
