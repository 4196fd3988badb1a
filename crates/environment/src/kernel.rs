//! The kernel: its release, how it was built and started, and what of it can be used.

use std::collections::BTreeMap;
use std::io::Read as _;

use serde::{Deserialize, Serialize};

use crate::reading::Reading;
use crate::system::{System, parse};

/// Modules that storage over a network uses, and those that the papers' recipes need; each with its option
/// in the kernel's configuration.
const MODULES: &[(&str, &str)] = &[
    ("nvme", "BLK_DEV_NVME"),
    ("nvme_core", "NVME_CORE"),
    ("nvme_tcp", "NVME_TCP"),
    ("nvme_rdma", "NVME_RDMA"),
    ("nvmet", "NVME_TARGET"),
    ("nvmet_tcp", "NVME_TARGET_TCP"),
    ("nvmet_rdma", "NVME_TARGET_RDMA"),
    ("tls", "TLS"),
    ("iscsi_tcp", "ISCSI_TCP"),
    ("iscsi_target_mod", "ISCSI_TARGET"),
    ("rdma_rxe", "RDMA_RXE"),
    ("ice", "ICE"),
    ("mlx5_core", "MLX5_CORE"),
    ("cxgb4", "CHELSIO_T4"),
    ("iw_cxgb4", "INFINIBAND_CXGB4"),
    ("cxgbit", "ISCSI_TARGET_CXGB4"),
    ("idxd", "INTEL_IDXD"),
    ("ublk_drv", "BLK_DEV_UBLK"),
    ("null_blk", "BLK_DEV_NULL_BLK"),
    ("sch_mqprio", "NET_SCH_MQPRIO"),
    ("sch_ingress", "NET_SCH_INGRESS"),
    ("sch_netem", "NET_SCH_NETEM"),
    ("sch_fq", "NET_SCH_FQ"),
    ("cls_flower", "NET_CLS_FLOWER"),
    ("cls_bpf", "NET_CLS_BPF"),
    ("act_mirred", "NET_ACT_MIRRED"),
    ("act_skbedit", "NET_ACT_SKBEDIT"),
    ("veth", "VETH"),
    ("ifb", "IFB"),
    ("tcp_bbr", "TCP_CONG_BBR"),
    ("nf_conntrack", "NF_CONNTRACK"),
];

/// The kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kernel {
    /// Its release, as `uname -r` prints it.
    pub release: Reading<String>,
    /// Its version, as `uname -v` prints it: when it was built, and the kind of preemption.
    pub version: Reading<String>,
    /// The command line with which it was started.
    pub command_line: Reading<String>,
    /// How readily it interrupts a thread for another.
    pub preemption: Reading<String>,
    /// Ticks per second.
    pub hz: Reading<u32>,
    /// Whether the time in interrupts is counted by itself, and not as time of the thread they interrupt.
    pub interrupt_time_counted: Reading<bool>,
    /// Whether modules can be loaded.
    pub loads_modules: Reading<bool>,
    /// What is there of the modules that matter: `loaded`, `built in`, `can be loaded`,
    /// `not installed`, `absent`.
    pub modules: BTreeMap<String, Reading<String>>,
    /// The clock by which the kernel tells time.
    pub clock_source: Reading<String>,
    /// Who may use io_uring: 0 all, 1 members of a group, 2 nobody.
    pub io_uring_disabled: Reading<u32>,
    /// Whether this process could make a ring, which filters of containers can forbid.
    pub io_uring: Reading<String>,
}

impl Kernel {
    /// Reads it.
    #[must_use]
    pub fn read(system: &System) -> Self {
        let release = system.text("/proc/sys/kernel/osrelease");
        let configuration = configuration(system, &release);
        let option = |name: &str| configuration.clone().map(|text| chosen(&text, name));
        Self {
            version: system.text("/proc/sys/kernel/version"),
            command_line: system.text("/proc/cmdline"),
            preemption: preemption(system, &configuration),
            hz: option("HZ").then(|value| match value {
                Some(value) => parse("the kernel's configuration", &value),
                None => Reading::unread("the kernel's configuration has no CONFIG_HZ"),
            }),
            interrupt_time_counted: option("IRQ_TIME_ACCOUNTING").map(|value| value.is_some()),
            loads_modules: option("MODULES")
                .map(|value| value.is_some())
                .or(|| Reading::Read(system.has("/proc/modules"))),
            modules: modules(system, &release, &configuration),
            clock_source: system
                .text("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            io_uring_disabled: system.number("/proc/sys/kernel/io_uring_disabled"),
            io_uring: ring(system),
            release,
        }
    }
}

/// The text of the kernel's configuration.
fn configuration(system: &System, release: &Reading<String>) -> Reading<String> {
    let compressed = system.bytes("/proc/config.gz").then(|bytes| {
        /// Ten times as long as configurations are.
        const LONGEST: u64 = 4 << 20;
        let mut text = String::new();
        match flate2::read::GzDecoder::new(bytes.as_slice()).take(LONGEST).read_to_string(&mut text)
        {
            Ok(_) => Reading::Read(text),
            Err(error) => Reading::unread(format!("/proc/config.gz is damaged: {error}")),
        }
    });
    compressed
        .or(|| release.clone().then(|release| system.text(&format!("/boot/config-{release}"))))
}

/// The value of a configuration's option, if it is set.
fn chosen(text: &str, name: &str) -> Option<String> {
    let begins = format!("CONFIG_{name}=");
    text.lines().find_map(|line| line.strip_prefix(&begins).map(str::to_owned))
}

/// What was chosen when the kernel was started, else what it was built with.
fn preemption(system: &System, configuration: &Reading<String>) -> Reading<String> {
    let started = system.text("/proc/cmdline").then(|line| {
        let word = line.split_whitespace().find_map(|word| word.strip_prefix("preempt="));
        word.map_or(Reading::unread("not chosen at start"), |word| Reading::Read(word.to_owned()))
    });
    if started.value().is_some() {
        return started;
    }
    let built = configuration.clone().then(|text| {
        let kinds = [
            ("PREEMPT_RT", "rt"),
            ("PREEMPT_LAZY", "lazy"),
            ("PREEMPT", "full"),
            ("PREEMPT_VOLUNTARY", "voluntary"),
            ("PREEMPT_NONE", "none"),
        ];
        let kind = kinds.iter().find(|(name, _)| chosen(&text, name).is_some());
        kind.map_or(
            Reading::unread("the kernel's configuration names no preemption"),
            |(_, kind)| Reading::Read((*kind).to_owned()),
        )
    });
    built.or(|| {
        system.text("/proc/sys/kernel/version").then(|text| {
            let word = text.split_whitespace().find(|word| word.starts_with("PREEMPT"));
            word.map_or(Reading::unread("uname -v names no preemption"), |word| {
                Reading::Read(word.to_owned())
            })
        })
    })
}

fn modules(
    system: &System,
    release: &Reading<String>,
    configuration: &Reading<String>,
) -> BTreeMap<String, Reading<String>> {
    let loaded = system.text("/proc/modules");
    let folder = release.clone().map(|release| format!("/lib/modules/{release}"));
    let listed =
        |name: &str| folder.clone().then(|folder| system.text(&format!("{folder}/{name}")));
    let (built_in, can_be_loaded) = (listed("modules.builtin"), listed("modules.dep"));
    let state = |name: &str, option: &str| {
        let is_loaded = loaded.text().is_some_and(|text| {
            text.lines().any(|line| line.split_whitespace().next() == Some(name))
        });
        if is_loaded {
            return Reading::Read("loaded".to_owned());
        }
        if built_in.text().is_some_and(|text| lists(text, name)) {
            return Reading::Read("built in".to_owned());
        }
        let is_listed = can_be_loaded.text().map(|text| lists(text, name));
        let chosen = configuration.text().map(|text| chosen(text, option));
        let state = match (is_listed, chosen.as_ref().map(Option::as_deref)) {
            (_, Some(Some("y"))) => "built in",
            (Some(true), _) => "can be loaded",
            (Some(false), _) | (_, Some(None)) => "absent",
            // It was built, and its file is not there.
            (None, Some(Some(_))) => "not installed",
            // A module that is built in and has parameters has a folder there.
            (None, None) if system.has(&format!("/sys/module/{name}")) => "built in",
            (None, None) => return can_be_loaded.clone(),
        };
        Reading::Read(state.to_owned())
    };
    MODULES.iter().map(|(name, option)| ((*name).to_owned(), state(name, option))).collect()
}

/// Whether a list of files of modules has a module. File names may have `-` where modules have `_`.
fn lists(text: &str, module: &str) -> bool {
    text.lines().any(|line| {
        let path = line.split(':').next().unwrap_or_default();
        let file = path.rsplit('/').next().unwrap_or_default();
        let name = file.split(".ko").next().unwrap_or_default();
        file.contains(".ko") && name.replace('-', "_") == module
    })
}

/// Makes a ring of two entries and closes it.
fn ring(system: &System) -> Reading<String> {
    if system.is_recorded() {
        return Reading::unread("a recorded machine makes no ring");
    }
    match io_uring::IoUring::new(2) {
        Ok(_) => Reading::Read("works".to_owned()),
        Err(error) => Reading::Read(format!("refused: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_found_whole() {
        let text =
            "CONFIG_HZ_250=y\nCONFIG_HZ=250\n# CONFIG_PREEMPT is not set\nCONFIG_PREEMPT_NONE=y\n";
        assert_eq!(chosen(text, "HZ").as_deref(), Some("250"));
        assert_eq!(chosen(text, "PREEMPT"), None);
        let folder = tempfile::tempdir().unwrap();
        let system = System::recorded(folder.path());
        let kind = preemption(&system, &Reading::Read(text.to_owned()));
        assert_eq!(kind.text(), Some("none"));
    }

    #[test]
    fn modules_are_found_under_their_files_names() {
        let dep =
            "kernel/drivers/nvme/host/nvme-tcp.ko.xz: kernel/drivers/nvme/host/nvme-core.ko.xz\n";
        assert!(lists(dep, "nvme_tcp"));
        assert!(!lists(dep, "nvme_core"));
        assert!(lists("kernel/net/sched/sch_mqprio.ko\n", "sch_mqprio"));
    }
}
