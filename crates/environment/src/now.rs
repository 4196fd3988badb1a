//! What changes by itself from one minute to the next. It describes a moment, and is never compared.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::cpu::kib;
use crate::memory::free_pages;
use crate::platform::group;
use crate::reading::Reading;
use crate::system::{System, parse};

/// The state of a moment. Counters count since the machine was started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Now {
    /// Memory that programs can have, in KiB.
    pub available_kib: Reading<u64>,
    /// Free huge pages, by the size of a page in KiB.
    pub free_huge_pages: Reading<BTreeMap<u64, u64>>,
    /// The frequency of each CPU that says one, in kHz.
    pub frequencies_khz: Reading<Vec<u64>>,
    /// Threads that were ready to run or ran, on average over the last minute.
    pub load: Reading<f64>,
    /// Share of time in which a thread waited for a CPU, on average over the last minute, in percent.
    pub cpu_pressure_percent: Reading<f64>,
    /// Time that the hypervisor gave to others, in percent of all time since the start.
    pub stolen_percent: Reading<f64>,
    /// Packets that were dropped because a CPU's queue was full.
    pub backlog_drops: Reading<u64>,
    /// How often a CPU left packets for its next turn because its budget was used up.
    pub budget_exhausted: Reading<u64>,
    /// Connections that were refused because a listener's queue was full.
    pub listen_drops: Reading<u64>,
    /// Segments that TCP sent again.
    pub segments_sent_again: Reading<u64>,
    /// Connections that the kernel tracks.
    pub tracked_connections: Reading<u64>,
    /// How often CPUs slowed down because they were too hot.
    pub thermal_throttles: Reading<u64>,
    /// How often the control group had used up its time.
    pub quota_throttles: Reading<u64>,
}

impl Now {
    /// Reads it.
    #[must_use]
    pub fn read(system: &System) -> Self {
        Self {
            available_kib: system
                .text("/proc/meminfo")
                .then(|text| kib("/proc/meminfo", &text, "MemAvailable")),
            free_huge_pages: free_pages(system),
            frequencies_khz: each_cpu(system, "cpufreq/scaling_cur_freq"),
            load: word(system, "/proc/loadavg", 0, 0),
            cpu_pressure_percent: pressure(system),
            stolen_percent: stolen(system),
            backlog_drops: softnet(system, 1),
            budget_exhausted: softnet(system, 2),
            listen_drops: counter(system, "/proc/net/netstat", "TcpExt:", "ListenDrops"),
            segments_sent_again: counter(system, "/proc/net/snmp", "Tcp:", "RetransSegs"),
            tracked_connections: system.number("/proc/sys/net/netfilter/nf_conntrack_count"),
            thermal_throttles: each_cpu(system, "thermal_throttle/core_throttle_count")
                .map(|counts| counts.iter().sum()),
            quota_throttles: throttles(system),
        }
    }
}

fn each_cpu(system: &System, name: &str) -> Reading<Vec<u64>> {
    crate::cpu::online(system).then(|cpus| {
        let mut values = Vec::new();
        for cpu in cpus {
            match system.number(&format!("/sys/devices/system/cpu/cpu{cpu}/{name}")) {
                Reading::Read(value) => values.push(value),
                Reading::Unread { unread } => return Reading::unread(unread),
            }
        }
        Reading::Read(values)
    })
}

fn word(system: &System, path: &str, line: usize, word: usize) -> Reading<f64> {
    system.text(path).then(|text| {
        let found = text.lines().nth(line).and_then(|line| line.split_whitespace().nth(word));
        parse(path, found.unwrap_or_default())
    })
}

fn pressure(system: &System) -> Reading<f64> {
    let path = "/proc/pressure/cpu";
    system.text(path).then(|text| {
        let value = text.split_whitespace().find_map(|word| word.strip_prefix("avg60="));
        parse(path, value.unwrap_or_default())
    })
}

/// The columns of the line `cpu` are user, nice, system, idle, iowait, irq, softirq and steal.
fn stolen(system: &System) -> Reading<f64> {
    system.text("/proc/stat").then(|text| {
        let line = text.lines().next().unwrap_or_default();
        let ticks: Vec<f64> =
            line.split_whitespace().skip(1).take(8).filter_map(|word| word.parse().ok()).collect();
        let total: f64 = ticks.iter().sum();
        match ticks.get(7) {
            Some(steal) if total > 0.0 => Reading::Read((steal / total * 10_000.0).round() / 100.0),
            _ => Reading::unread("the first line of /proc/stat has no steal time"),
        }
    })
}

/// The sum of one column of all CPUs; columns are hexadecimal.
fn softnet(system: &System, column: usize) -> Reading<u64> {
    system.text("/proc/net/softnet_stat").map(|text| {
        let value = |line: &str| u64::from_str_radix(line.split_whitespace().nth(column)?, 16).ok();
        text.lines().filter_map(value).sum()
    })
}

/// Such a file has pairs of lines: names, and values in the same order.
fn counter(system: &System, path: &str, group: &str, name: &str) -> Reading<u64> {
    system.text(path).then(|text| {
        let mut lines = text.lines().filter(|line| line.split_whitespace().next() == Some(group));
        let (names, values) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
        let at = names.split_whitespace().position(|word| word == name);
        match at.and_then(|at| values.split_whitespace().nth(at)) {
            Some(value) => parse(path, value),
            None => Reading::unread(format!("{path} has no {name}")),
        }
    })
}

fn throttles(system: &System) -> Reading<u64> {
    group(system).then(|group| {
        let path = format!("/sys/fs/cgroup{group}/cpu.stat");
        system.text(&path).then(|text| {
            let value = text.lines().find_map(|line| line.strip_prefix("nr_throttled "));
            match value {
                Some(value) => parse(&path, value),
                None => Reading::unread(format!("{path} has no nr_throttled: no quota is set")),
            }
        })
    })
}
