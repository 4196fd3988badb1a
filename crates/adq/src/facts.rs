//! What a machine and one of its network devices are and have, as the planner needs it.

pub mod parse;
pub mod read;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Everything that the planner looks at. What could not be read is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Facts {
    /// Name of the interface.
    pub interface: String,
    /// Its number in this network namespace.
    pub ifindex: u32,
    /// Its hardware address.
    pub address: String,
    /// The driver, as `ethtool -i` names it.
    pub driver: String,
    /// Version of the driver; drivers of the kernel print the kernel's.
    pub driver_version: String,
    /// Whether the driver is the kernel's own, if modinfo says so.
    pub driver_in_tree: Option<bool>,
    /// Where the device is, as `pci/0000:01:00.0`.
    pub bus: Option<String>,
    /// The kernel's release.
    pub kernel: String,
    /// The kernel's name of the network namespace, as `net:[4026531840]`.
    pub network_namespace: String,
    /// Whether that is the first process's, which has the settings of the whole machine.
    pub is_initial_namespace: bool,
    /// `bond` or `team` when the interface is made of others.
    pub made_of: Option<String>,
    /// The bond, team or bridge that this interface is part of.
    pub master: Option<String>,
    /// Largest packet.
    pub mtu: u32,
    /// CPUs near the device, or all that are online.
    pub cpus: Vec<u32>,
    /// Bytes of memory of the machine.
    pub memory_bytes: u64,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Channels, if the driver tells.
    pub channels: Option<Channels>,
    /// Features of `ethtool -k`.
    pub features: BTreeMap<String, Feature>,
    /// Private flags of the driver.
    pub private_flags: BTreeMap<String, bool>,
    /// Run-time values of the device's devlink parameters.
    pub devlink: BTreeMap<String, String>,
    /// Queueing disciplines.
    pub qdiscs: Vec<Qdisc>,
    /// Filters of the ingress side.
    pub filters: Vec<Filter>,
    /// Interrupt moderation, if the driver has it.
    pub coalescing: Option<Coalescing>,
    /// The queue of each entry of the table that spreads packets, if the driver tells.
    pub indirection: Option<Vec<u32>>,
    /// Further such tables, by number.
    pub contexts: BTreeMap<u32, Vec<u32>>,
    /// Rules that choose a queue for a flow; absent where the driver has none.
    pub rules: Option<Vec<Rule>>,
    /// Interrupts of the device's queues.
    pub interrupts: Vec<Interrupt>,
    /// `xps_rxqs` of each send queue.
    pub xps_rxqs: Vec<String>,
    /// Sysctls that the recipe may set.
    pub sysctls: BTreeMap<String, Sysctl>,
    /// State of services: active or inactive.
    pub services: BTreeMap<String, String>,
    /// Modules that the recipe needs: loaded, loadable or missing.
    pub modules: BTreeMap<String, String>,
    /// Programs that are not installed.
    pub missing_programs: Vec<String>,
}

/// Numbers of channels: now and at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Channels {
    /// Channels that receive and send, now.
    pub combined: u32,
    /// And at most.
    pub combined_max: u32,
    /// Channels that only receive, now.
    pub rx: u32,
    /// And at most.
    pub rx_max: u32,
    /// Channels that only send, now.
    pub tx: u32,
    /// And at most.
    pub tx_max: u32,
}

/// A feature that can be on or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Feature {
    /// Whether it is on.
    pub on: bool,
    /// Whether the driver forbids changing it.
    #[serde(default)]
    pub fixed: bool,
}

/// A queueing discipline.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Qdisc {
    /// Its kind.
    pub kind: String,
    /// Its handle; 0: was made by the kernel.
    pub handle: String,
    /// Whether it is the root.
    pub root: bool,
    /// For mqprio: its options as they are typed.
    pub options: String,
}

/// A filter of the ingress side.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Filter {
    /// Preference.
    pub pref: u32,
    /// Handle, as tc prints it.
    pub handle: String,
    /// Its kind.
    pub kind: String,
    /// Whether the device carries it out.
    pub in_hw: bool,
}

/// Interrupt moderation. Absent values are ones that the driver lacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Coalescing {
    /// Whether the driver chooses for receiving.
    pub adaptive_rx: Option<bool>,
    /// Whether the driver chooses for sending.
    pub adaptive_tx: Option<bool>,
    /// Microseconds from a received packet to the interrupt.
    pub rx_usecs: Option<u32>,
    /// Microseconds from a sent packet to the interrupt.
    pub tx_usecs: Option<u32>,
}

/// A rule that chooses where packets of a flow go.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rule {
    /// Its number.
    pub id: u32,
    /// `tcp4` or `tcp6`.
    pub flow: String,
    /// Source address, if it matters.
    pub source: Option<String>,
    /// Destination address, if it matters.
    pub destination: Option<String>,
    /// Source port, if it matters.
    pub source_port: Option<u16>,
    /// Destination port, if it matters.
    pub destination_port: Option<u16>,
    /// The table that spreads the packets.
    pub context: Option<u32>,
    /// The queue.
    pub queue: Option<u32>,
}

/// An interrupt of one of the device's queues.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interrupt {
    /// Its number.
    pub number: u32,
    /// Its name in /proc/interrupts.
    pub name: String,
    /// The queue in its name.
    pub queue: u32,
    /// Whether it is for sending only.
    #[serde(default)]
    pub sends_only: bool,
    /// CPUs that may take it.
    pub affinity: String,
}

/// A sysctl.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sysctl {
    /// Its value, with single blanks.
    pub value: String,
    /// Whether it can be set in this network namespace.
    pub writable: bool,
}

impl Facts {
    /// Whether a feature can be had: it is on, or can be switched on.
    pub fn can(&self, feature: &str) -> bool {
        self.features.get(feature).is_some_and(|feature| feature.on || !feature.fixed)
    }

    /// The root queueing discipline.
    pub fn root_qdisc(&self) -> Option<&Qdisc> {
        self.qdiscs.iter().find(|qdisc| qdisc.root)
    }

    /// The number of receive queues now.
    pub fn queues(&self) -> u32 {
        let sends = u32::try_from(self.xps_rxqs.len()).unwrap_or(u32::MAX).max(1);
        self.channels.map_or(sends, |channels| match channels.combined {
            0 => channels.rx.min(channels.tx).max(1),
            combined => combined,
        })
    }

    /// The most receive queues that the device can have.
    pub fn queues_max(&self) -> u32 {
        self.channels.map_or(self.queues(), |channels| match channels.combined_max {
            0 => channels.rx_max.min(channels.tx_max).max(1),
            most => most,
        })
    }
}
