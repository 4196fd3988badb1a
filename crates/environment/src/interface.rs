//! A network interface: its device, its queues and interrupts, and what its driver and the kernel were told.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::drives::{attached, link};
use crate::ethtool::DriverSettings;
use crate::reading::Reading;
use crate::system::System;

const NET: &str = "/sys/class/net";

/// A network interface.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// The driver of its device; interfaces without a device, such as `lo`, have none.
    pub driver: Reading<String>,
    /// The device's PCI address.
    pub address: Reading<String>,
    /// Vendor and type of the device, as PCI numbers.
    pub device: Reading<String>,
    /// The NUMA node that the device is attached to; -1 where the machine does not say.
    pub numa_node: Reading<i32>,
    /// The link to the device: speed, width, and what it could be.
    pub link: Reading<String>,
    /// Virtual functions that the device can have.
    pub virtual_functions: Reading<u32>,
    /// Whether it is up: `up`, `down`, or `unknown` where the driver does not say.
    pub state: Reading<String>,
    /// Speed in Mbit/s.
    pub speed_mbit: Reading<i64>,
    /// `full` or `half`.
    pub duplex: Reading<String>,
    /// The largest packet in bytes.
    pub mtu: Reading<u32>,
    /// Packets that its queueing discipline holds at most.
    pub transmit_queue_length: Reading<u32>,
    /// How long packets may wait to be merged while interrupts are deferred, in nanoseconds.
    pub gro_flush_timeout_ns: Reading<u64>,
    /// How often an interrupt is deferred.
    pub defer_hard_irqs: Reading<u32>,
    /// Whether packets are received by kernel threads.
    pub threaded: Reading<u32>,
    /// Its receive queues.
    pub receive_queues: Reading<Vec<ReceiveQueue>>,
    /// Its transmit queues.
    pub transmit_queues: Reading<Vec<TransmitQueue>>,
    /// Its device's interrupts.
    pub interrupts: Reading<Vec<Interrupt>>,
    /// What the driver was told.
    pub settings: DriverSettings,
    /// Queueing disciplines, as `tc -j qdisc show` has them.
    pub disciplines: Reading<Vec<Value>>,
    /// The number of filters on what comes in, as `tc -j filter show ... ingress` has them.
    pub ingress_filters: Reading<usize>,
}

/// A receive queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiveQueue {
    /// The CPUs to which the kernel spreads its packets, as a mask.
    pub spread_to_cpus: Reading<String>,
    /// The number of flows that follow the threads that read them; 0 is off.
    pub followed_flows: Reading<u64>,
}

/// A transmit queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransmitQueue {
    /// The CPUs that send on it, as a mask.
    pub cpus: Reading<String>,
    /// The receive queues whose connections send on it, as a mask.
    pub receive_queues: Reading<String>,
}

/// An interrupt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interrupt {
    /// Its number.
    pub number: u32,
    /// Its name.
    pub name: String,
    /// The CPUs that may take it.
    pub allowed_cpus: Reading<String>,
    /// The CPUs that take it.
    pub cpus: Reading<String>,
}

/// The names of all interfaces.
#[must_use]
pub fn names(system: &System) -> Reading<Vec<String>> {
    // A bond puts files there, too; they are no links and no folders with an index.
    let is_interface = |name: &String| system.has(&format!("{NET}/{name}/ifindex"));
    let listed = system.names(NET).map(|names| names.into_iter().filter(is_interface).collect());
    listed.or(|| {
        system.text("/proc/net/dev").map(|text| {
            let name = |line: &str| Some(line.split_once(':')?.0.trim().to_owned());
            text.lines().filter_map(name).collect()
        })
    })
}

/// The name of the interface by which packets to this address leave, as the kernel's routes have it. An address of
/// this machine itself is reached by its loopback device.
#[must_use]
pub fn towards(system: &System, address: IpAddr) -> Reading<String> {
    json(system, "ip", &["-j", "route", "get", &address.to_string()]).then(|routes| {
        let name = routes.iter().find_map(|route| route.get("dev")?.as_str());
        name.map_or_else(
            || Reading::unread(format!("ip names no interface for {address}")),
            |name| Reading::Read(name.to_owned()),
        )
    })
}

impl Interface {
    /// Reads the interface of this name; if there is none, the reason lists those that there are.
    #[must_use]
    pub fn read(system: &System, name: &str) -> Reading<Self> {
        names(system).then(|names| {
            if names.iter().any(|known| known == name) {
                return Reading::Read(Self::read_known(system, name));
            }
            let known = names.join(", ");
            Reading::unread(format!("there is no interface {name:?}; there are: {known}"))
        })
    }

    fn read_known(system: &System, name: &str) -> Self {
        let folder = format!("{NET}/{name}");
        let device = format!("{folder}/device");
        let text = |part: &str| system.text(&format!("{folder}/{part}"));
        let has_device = system.has(&device);
        let of_device = |reading: Reading<String>| {
            if has_device { reading } else { Reading::unread("the interface has no device") }
        };
        Self {
            name: name.to_owned(),
            driver: of_device(system.link(&format!("{device}/driver"))),
            address: of_device(address(system, &device)),
            device: of_device(identity(system, &device)),
            numa_node: if has_device {
                attached(system, &device)
            } else {
                Reading::unread("the interface has no device")
            },
            link: of_device(link(system, &device).or(|| link(system, &format!("{device}/..")))),
            virtual_functions: system.number(&format!("{device}/sriov_totalvfs")),
            state: text("operstate"),
            speed_mbit: system.number(&format!("{folder}/speed")),
            duplex: text("duplex"),
            mtu: system.number(&format!("{folder}/mtu")),
            transmit_queue_length: system.number(&format!("{folder}/tx_queue_len")),
            gro_flush_timeout_ns: system.number(&format!("{folder}/gro_flush_timeout")),
            defer_hard_irqs: system.number(&format!("{folder}/napi_defer_hard_irqs")),
            threaded: system.number(&format!("{folder}/threaded")),
            receive_queues: receive_queues(system, &folder),
            transmit_queues: transmit_queues(system, &folder),
            interrupts: interrupts(system, &device),
            settings: DriverSettings::read(system, name),
            disciplines: json(system, "tc", &["-j", "qdisc", "show", "dev", name]),
            ingress_filters: json(system, "tc", &["-j", "filter", "show", "dev", name, "ingress"])
                .map(|filters| {
                    filters.iter().filter(|filter| filter.get("options").is_some()).count()
                }),
        }
    }

    /// The kinds of its queueing disciplines, e.g. `mq`.
    #[must_use]
    pub fn discipline_kinds(&self) -> Vec<&str> {
        let disciplines = self.disciplines.value().into_iter().flatten();
        disciplines.filter_map(|discipline| discipline.get("kind")?.as_str()).collect()
    }
}

/// The last part of the device's place that is a PCI address: the device itself, or the one above it.
fn address(system: &System, device: &str) -> Reading<String> {
    let uevent = |place: &str| {
        system.text(&format!("{place}/uevent")).then(|text| {
            let slot = text.lines().find_map(|line| line.strip_prefix("PCI_SLOT_NAME="));
            slot.map_or(Reading::unread("the device is not on the PCI bus"), |slot| {
                Reading::Read(slot.to_owned())
            })
        })
    };
    uevent(device).or(|| uevent(&format!("{device}/..")))
}

fn identity(system: &System, device: &str) -> Reading<String> {
    let word = |name: &str| system.text(&format!("{device}/{name}"));
    let pair = |text: String| text.trim_start_matches("0x").to_owned();
    word("vendor")
        .then(|vendor| word("device").map(|kind| format!("{}:{}", pair(vendor), pair(kind))))
}

fn receive_queues(system: &System, folder: &str) -> Reading<Vec<ReceiveQueue>> {
    system.numbered(&format!("{folder}/queues"), "rx-").map(|numbers| {
        let queue = |number: u32| {
            let path = |name: &str| format!("{folder}/queues/rx-{number}/{name}");
            ReceiveQueue {
                spread_to_cpus: system.text(&path("rps_cpus")),
                followed_flows: system.number(&path("rps_flow_cnt")),
            }
        };
        numbers.into_iter().map(queue).collect()
    })
}

fn transmit_queues(system: &System, folder: &str) -> Reading<Vec<TransmitQueue>> {
    system.numbered(&format!("{folder}/queues"), "tx-").map(|numbers| {
        let queue = |number: u32| {
            let path = |name: &str| format!("{folder}/queues/tx-{number}/{name}");
            TransmitQueue {
                cpus: system.text(&path("xps_cpus")),
                receive_queues: system.text(&path("xps_rxqs")),
            }
        };
        numbers.into_iter().map(queue).collect()
    })
}

/// The interrupts that the device, or the PCI device above it, has.
fn interrupts(system: &System, device: &str) -> Reading<Vec<Interrupt>> {
    let numbers = system
        .numbered(&format!("{device}/msi_irqs"), "")
        .or(|| system.numbered(&format!("{device}/../msi_irqs"), ""));
    let names = system.text("/proc/interrupts");
    numbers.map(|numbers| {
        let interrupt = |number: u32| {
            let name = names.text().and_then(|text| interrupt_name(text, number))?;
            Some(Interrupt {
                number,
                name,
                allowed_cpus: system.text(&format!("/proc/irq/{number}/smp_affinity_list")),
                cpus: system.text(&format!("/proc/irq/{number}/effective_affinity_list")),
            })
        };
        numbers.into_iter().filter_map(interrupt).collect()
    })
}

/// The last word of an interrupt's line; interrupts that nobody uses have no line.
fn interrupt_name(text: &str, number: u32) -> Option<String> {
    let begins = format!("{number}:");
    let line = text.lines().find(|line| line.trim_start().starts_with(&begins))?;
    line.split_whitespace().next_back().map(str::to_owned)
}

/// What `tc` or `ip` prints as a JSON list.
fn json(system: &System, program: &str, arguments: &[&str]) -> Reading<Vec<Value>> {
    system.output(program, arguments).then(|text| {
        if text.is_empty() {
            return Reading::Read(Vec::new());
        }
        match serde_json::from_str(&text) {
            Ok(list) => Reading::Read(list),
            Err(error) => Reading::unread(format!("{program} prints no JSON list: {error}")),
        }
    })
}
