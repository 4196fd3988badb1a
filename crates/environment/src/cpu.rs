//! The processor: its model, what of it is in use, and how its speed is governed.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::reading::Reading;
use crate::system::{System, list, parse};

const CPUS: &str = "/sys/devices/system/cpu";

/// The processor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cpu {
    /// The architecture that this program was built for, e.g. `x86_64`.
    pub architecture: String,
    /// The model's name.
    pub model: Reading<String>,
    /// The revision of its microcode.
    pub microcode: Reading<String>,
    /// CPUs that are online, as the kernel counts them: with SMT, several for each core.
    pub cpus: Reading<u32>,
    /// Cores.
    pub cores: Reading<u32>,
    /// Sockets.
    pub sockets: Reading<u32>,
    /// Whether several CPUs share a core.
    pub smt: Reading<bool>,
    /// Whether SMT can be set: `on`, `off`, `forceoff`, `notsupported`.
    pub smt_control: Reading<String>,
    /// The CPUs that share a core, one list for each core that has several, e.g. `0,16`.
    pub siblings: Reading<Vec<String>>,
    /// The frequency at which it runs under load without turbo, in kHz.
    pub base_khz: Reading<u64>,
    /// Its highest frequency, in kHz.
    pub max_khz: Reading<u64>,
    /// The lowest frequency that the governor may choose, in kHz.
    pub min_khz: Reading<u64>,
    /// The driver that sets frequencies, e.g. `intel_pstate`.
    pub frequency_driver: Reading<String>,
    /// The governors in use, each once, e.g. `performance`.
    pub governors: Reading<Vec<String>>,
    /// What the processor prefers, each value once: `performance` to `power`.
    pub energy_preferences: Reading<Vec<String>>,
    /// Whether it may run faster than its base frequency.
    pub turbo: Reading<bool>,
    /// What the kernel does about each known weakness of processors.
    pub mitigations: Reading<BTreeMap<String, String>>,
    /// CPUs that the scheduler leaves alone.
    pub isolated: Reading<String>,
    /// CPUs without a tick while one thread runs.
    pub nohz_full: Reading<String>,
    /// CPUs that this process may use.
    pub allowed: Reading<String>,
}

impl Cpu {
    /// Reads it.
    #[must_use]
    pub fn read(system: &System) -> Self {
        let info = system.text("/proc/cpuinfo");
        let first = format!("{CPUS}/cpu0/cpufreq");
        let frequency = |name: &str| system.number(&format!("{first}/{name}"));
        let siblings = siblings(system);
        Self {
            architecture: std::env::consts::ARCH.to_owned(),
            model: field(&info, "model name"),
            microcode: field(&info, "microcode"),
            cpus: system.text(&format!("{CPUS}/online")).map(|text| length(&text)).or(|| {
                info.clone().map(|text| {
                    let begins = |line: &&str| line.starts_with("processor");
                    u32::try_from(text.lines().filter(begins).count()).unwrap_or(u32::MAX)
                })
            }),
            cores: siblings.clone().map(|lists| u32::try_from(lists.len()).unwrap_or(u32::MAX)),
            sockets: distinct(system, "topology/physical_package_id")
                .map(|found| u32::try_from(found.len()).unwrap_or(u32::MAX)),
            smt: system.flag(&format!("{CPUS}/smt/active")),
            smt_control: system.text(&format!("{CPUS}/smt/control")),
            siblings: siblings
                .map(|lists| lists.into_iter().filter(|text| length(text) > 1).collect()),
            base_khz: frequency("base_frequency"),
            max_khz: frequency("cpuinfo_max_freq"),
            min_khz: frequency("scaling_min_freq"),
            frequency_driver: system.text(&format!("{first}/scaling_driver")),
            governors: distinct(system, "cpufreq/scaling_governor"),
            energy_preferences: distinct(system, "cpufreq/energy_performance_preference"),
            turbo: turbo(system),
            mitigations: mitigations(system),
            isolated: system.text(&format!("{CPUS}/isolated")),
            nohz_full: system.text(&format!("{CPUS}/nohz_full")),
            allowed: status(system, "Cpus_allowed_list"),
        }
    }
}

/// The CPUs that are online.
pub(crate) fn online(system: &System) -> Reading<Vec<u32>> {
    system.text(&format!("{CPUS}/online")).map(|text| list(&text))
}

/// The values of a file that each CPU that is online has, each once and sorted.
fn distinct(system: &System, name: &str) -> Reading<Vec<String>> {
    online(system).then(|cpus| {
        let mut values = BTreeSet::new();
        for cpu in cpus {
            match system.text(&format!("{CPUS}/cpu{cpu}/{name}")) {
                Reading::Read(value) => values.insert(value),
                Reading::Unread { unread } => return Reading::unread(unread),
            };
        }
        Reading::Read(values.into_iter().collect())
    })
}

/// For each core its CPUs, in the order of the first.
fn siblings(system: &System) -> Reading<Vec<String>> {
    distinct(system, "topology/thread_siblings_list").map(|mut lists| {
        lists.sort_by_key(|text| list(text));
        lists
    })
}

fn turbo(system: &System) -> Reading<bool> {
    let no_turbo = system.flag(&format!("{CPUS}/intel_pstate/no_turbo")).map(|off| !off);
    no_turbo.or(|| system.flag(&format!("{CPUS}/cpufreq/boost")))
}

fn mitigations(system: &System) -> Reading<BTreeMap<String, String>> {
    let folder = format!("{CPUS}/vulnerabilities");
    system.names(&folder).map(|names| {
        let state = |name: String| {
            let text = system.text(&format!("{folder}/{name}"));
            (name, text.text().unwrap_or("not readable").to_owned())
        };
        names.into_iter().map(state).collect()
    })
}

/// A field of the first CPU in /proc/cpuinfo.
fn field(info: &Reading<String>, name: &str) -> Reading<String> {
    info.clone().then(|text| {
        let value = |line: &str| {
            let (key, value) = line.split_once(':')?;
            (key.trim() == name).then(|| value.trim().to_owned())
        };
        text.lines().find_map(value).map_or_else(
            || Reading::unread(format!("/proc/cpuinfo has no line {name:?}")),
            Reading::Read,
        )
    })
}

/// Whether /proc/cpuinfo lists a flag of the processor.
pub(crate) fn has_flag(system: &System, flag: &str) -> Reading<bool> {
    let flags = field(&system.text("/proc/cpuinfo"), "flags");
    flags.map(|flags| flags.split_whitespace().any(|word| word == flag))
}

/// A field of this process in /proc/self/status.
pub(crate) fn status(system: &System, name: &str) -> Reading<String> {
    system.text("/proc/self/status").then(|text| {
        let value = |line: &str| {
            let (key, value) = line.split_once(':')?;
            (key == name).then(|| value.trim().to_owned())
        };
        text.lines().find_map(value).map_or_else(
            || Reading::unread(format!("/proc/self/status has no line {name}")),
            Reading::Read,
        )
    })
}

/// A number behind a name in a file of lines `NAME: N kB`.
pub(crate) fn kib(source: &str, text: &str, name: &str) -> Reading<u64> {
    let value = text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.split_whitespace().next_back() == Some(name)).then(|| value.trim())
    });
    match value {
        Some(value) => parse(source, value.trim_end_matches("kB").trim()),
        None => Reading::unread(format!("{source} has no line {name}")),
    }
}

fn length(text: &str) -> u32 {
    u32::try_from(list(text).len()).unwrap_or(u32::MAX)
}
