//! One thing that can be set: its value in facts, and the commands that change the value.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::facts::read::{Part, affinity_path, refresh, xps_path};
use crate::facts::{Facts, Filter, Rule};
use crate::machine::{Change, Machine};

/// The value of what is made and removed, while it is not there.
pub const ABSENT: &str = "absent";
/// The value of what is made and removed, while it is there.
pub const PRESENT: &str = "present";
/// The value of the root queueing discipline that the kernel chose.
pub const DEFAULT: &str = "default";
/// The value of a filter that the device carries out.
pub const IN_HARDWARE: &str = "in_hw";

/// Packets of connections to or from one address and port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flow {
    /// The listener's address.
    pub address: IpAddr,
    /// The listener's port.
    pub port: u16,
    /// Whether the packets come from there; otherwise they go there.
    pub comes_from: bool,
}

/// Where a rule sends packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    /// One queue.
    Queue(u32),
    /// The table over these queues.
    Table {
        /// The first.
        first: u32,
        /// Their number.
        count: u32,
    },
}

/// The value of what a queue has before there is the queue.
pub const NO_QUEUE: &str = "no such queue yet";

/// One thing that can be set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Setting {
    /// A service: active or inactive.
    Service(String),
    /// A module: loaded or absent.
    Module(String),
    /// A private flag of the driver: on or off.
    PrivateFlag(String),
    /// A feature of the device: on or off.
    Feature(String),
    /// The channels, as `combined 8`.
    Channels,
    /// The root queueing discipline.
    RootQdisc,
    /// The place where ingress filters hang.
    Clsact,
    /// A filter that the device carries out.
    Flower {
        /// The packets.
        flow: Flow,
        /// The traffic class that gets them.
        class: u32,
        /// The filter's handle.
        handle: u32,
    },
    /// The CPU of a queue's interrupt.
    Affinity {
        /// The queue.
        queue: u32,
        /// Whether it is the interrupt for sending only.
        sends_only: bool,
    },
    /// The receive queues whose connections send through this send queue, a mask.
    XpsRxqs(u32),
    /// A devlink parameter.
    Devlink(String),
    /// Interrupt moderation of receiving, or of sending, as ethtool's arguments.
    Moderation {
        /// Whether of receiving.
        receives: bool,
    },
    /// The table that spreads packets which no rule takes, as `equal 2`.
    Table,
    /// A further table over some queues.
    Context {
        /// The first queue.
        first: u32,
        /// The number of queues.
        count: u32,
    },
    /// A rule that chooses the queues of a flow.
    Rule {
        /// The packets.
        flow: Flow,
        /// Where they go.
        goal: Goal,
    },
    /// A sysctl.
    Sysctl(String),
}

/// Whether commands are for the machine, or to be read: then numbers that are not known yet have a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// To be performed.
    Perform,
    /// To be read.
    Print,
}

impl Flow {
    fn is_v6(&self) -> bool {
        self.address.is_ipv6()
    }

    fn protocol(&self) -> &'static str {
        if self.is_v6() { "ipv6" } else { "ip" }
    }

    /// Preferences belong to one protocol each.
    pub(crate) fn pref(&self) -> u32 {
        if self.is_v6() { 2 } else { 1 }
    }

    fn ethtool(&self) -> String {
        let kind = if self.is_v6() { "tcp6" } else { "tcp4" };
        let side = if self.comes_from { "src" } else { "dst" };
        format!("flow-type {kind} {side}-ip {} {side}-port {}", self.address, self.port)
    }

    fn tc(&self) -> String {
        let (side, bits) =
            (if self.comes_from { "src" } else { "dst" }, if self.is_v6() { 128 } else { 32 });
        format!("{side}_ip {}/{bits} ip_proto tcp {side}_port {} skip_sw", self.address, self.port)
    }

    /// Whether a rule takes exactly these packets.
    fn is_of(&self, rule: &Rule) -> bool {
        let address = Some(self.address);
        let parse = |text: &Option<String>| text.as_ref().and_then(|text| text.parse().ok());
        let (source, destination) = (parse(&rule.source), parse(&rule.destination));
        let ports = (rule.source_port, rule.destination_port);
        let family = rule.flow == if self.is_v6() { "tcp6" } else { "tcp4" };
        family
            && if self.comes_from {
                (source, destination, ports) == (address, None, (Some(self.port), None))
            } else {
                (source, destination, ports) == (None, address, (None, Some(self.port)))
            }
    }
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let direction = if self.comes_from { "from" } else { "to" };
        write!(f, "{direction} {}", std::net::SocketAddr::new(self.address, self.port))
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(name) => write!(f, "service {name}"),
            Self::Module(name) => write!(f, "module {name}"),
            Self::PrivateFlag(name) => write!(f, "private flag {name}"),
            Self::Feature(name) => write!(f, "feature {name}"),
            Self::Channels => f.write_str("channels"),
            Self::RootQdisc => f.write_str("root queueing discipline"),
            Self::Clsact => f.write_str("clsact"),
            Self::Flower { flow, .. } => write!(f, "filter of packets {flow}"),
            Self::Affinity { queue, sends_only: false } => write!(f, "interrupt of queue {queue}"),
            Self::Affinity { queue, sends_only: true } => {
                write!(f, "send interrupt of queue {queue}")
            }
            Self::XpsRxqs(queue) => write!(f, "send queue {queue}"),
            Self::Devlink(name) => write!(f, "devlink parameter {name}"),
            Self::Moderation { receives: true } => f.write_str("receive moderation"),
            Self::Moderation { receives: false } => f.write_str("send moderation"),
            Self::Table => f.write_str("queues of all other packets"),
            Self::Context { .. } => f.write_str("table of the queues"),
            Self::Rule { flow, .. } => write!(f, "rule of packets {flow}"),
            Self::Sysctl(key) => f.write_str(key),
        }
    }
}

impl Setting {
    /// Whether it belongs to the machine and not to one interface.
    pub fn is_global(&self) -> bool {
        matches!(self, Self::Service(_) | Self::Module(_) | Self::Sysctl(_))
    }

    /// Whether the driver may clear it when it builds its queues anew.
    pub fn is_cleared_with_queues(&self) -> bool {
        matches!(self, Self::Affinity { .. } | Self::XpsRxqs(_) | Self::Moderation { .. })
    }

    /// The queue that it belongs to.
    pub fn queue(&self) -> Option<u32> {
        match self {
            Self::Affinity { queue, .. } | Self::XpsRxqs(queue) => Some(*queue),
            _ => None,
        }
    }

    /// The part of the facts that it lives in.
    pub fn part(&self) -> Part {
        match self {
            Self::Service(name) => Part::Service(name.clone()),
            Self::Module(name) => Part::Module(name.clone()),
            Self::Sysctl(key) => Part::Sysctl(key.clone()),
            Self::PrivateFlag(_) => Part::Flags,
            Self::Feature(_) => Part::Features,
            Self::Channels => Part::Channels,
            Self::RootQdisc | Self::Clsact => Part::Qdiscs,
            Self::Flower { .. } => Part::Filters,
            Self::Affinity { .. } => Part::Interrupts,
            Self::XpsRxqs(_) => Part::Xps,
            Self::Devlink(_) => Part::Devlink,
            Self::Moderation { .. } => Part::Coalescing,
            Self::Table | Self::Context { .. } => Part::Tables,
            Self::Rule { .. } => Part::Rules,
        }
    }

    /// Reads it from the machine. The facts are brought up to date with it.
    ///
    /// # Errors
    /// When it cannot be read, or is not there.
    pub fn read(&self, machine: &dyn Machine, facts: &mut Facts) -> Result<String> {
        if let Self::Rule { goal: Goal::Table { .. }, .. } = self {
            refresh(machine, facts, &Part::Tables)?;
        }
        refresh(machine, facts, &self.part())?;
        self.value_in(facts).ok_or_else(|| {
            Error::Missing(format!("{self}: {} does not have it, or not any more", facts.interface))
        })
    }

    /// Its value, or nothing if it cannot be read or is not there.
    pub fn value_in(&self, facts: &Facts) -> Option<String> {
        let switch = |on: bool| if on { "on" } else { "off" }.to_owned();
        let there = |there: bool| if there { PRESENT } else { ABSENT }.to_owned();
        match self {
            Self::Service(name) => facts.services.get(name).cloned(),
            Self::Module(name) => match facts.modules.get(name)?.as_str() {
                "loaded" | "builtin" => Some("loaded".to_owned()),
                "loadable" => Some(ABSENT.to_owned()),
                _ => None,
            },
            Self::PrivateFlag(name) => facts.private_flags.get(name).map(|on| switch(*on)),
            Self::Feature(name) => facts.features.get(name).map(|feature| switch(feature.on)),
            Self::Channels => facts.channels.map(|channels| match channels.combined_max {
                0 => format!("rx {} tx {}", channels.rx, channels.tx),
                _ => format!("combined {}", channels.combined),
            }),
            Self::RootQdisc => Some(match facts.root_qdisc() {
                Some(qdisc) if qdisc.handle != "0:" => {
                    format!("{} {}", qdisc.kind, qdisc.options).trim_end().to_owned()
                }
                _ => DEFAULT.to_owned(),
            }),
            Self::Clsact => Some(there(facts.qdiscs.iter().any(|qdisc| qdisc.kind == "clsact"))),
            Self::Flower { flow, handle, .. } => {
                let handle = format!("{handle:#x}");
                let is_it =
                    |filter: &&Filter| filter.pref == flow.pref() && filter.handle == handle;
                Some(match facts.filters.iter().find(is_it) {
                    None => ABSENT.to_owned(),
                    Some(filter) if filter.in_hw => IN_HARDWARE.to_owned(),
                    Some(_) => "not_in_hw".to_owned(),
                })
            }
            Self::Affinity { queue, sends_only } => facts
                .interrupts
                .iter()
                .find(|irq| (irq.queue, irq.sends_only) == (*queue, *sends_only))
                .map(|irq| irq.affinity.clone()),
            Self::XpsRxqs(queue) => {
                facts.xps_rxqs.get(usize::try_from(*queue).unwrap_or(usize::MAX)).cloned()
            }
            Self::Devlink(name) => facts.devlink.get(name).cloned(),
            Self::Moderation { receives } => moderation(facts, *receives),
            Self::Table => facts.indirection.as_deref().map(|table| match equal(table) {
                Some((0, count)) => format!("equal {count}"),
                _ => "chosen by hand".to_owned(),
            }),
            Self::Context { first, count } => Some(there(context(facts, *first, *count).is_some())),
            Self::Rule { flow, goal } => rule_value(facts, flow, *goal),
            Self::Sysctl(key) => facts.sysctls.get(key).map(|sysctl| sysctl.value.clone()),
        }
    }

    /// The commands that change it.
    ///
    /// # Errors
    /// When something that they name is not there.
    pub fn changes(&self, facts: &Facts, to: &str, usage: Use) -> Result<Vec<Change>> {
        let dev = &facts.interface;
        let ethtool = |line: String| Ok(vec![Change::run("ethtool", &line)]);
        let tc = |line: String| Ok(vec![Change::run("tc", &line)]);
        match self {
            Self::Service(name) => {
                let verb = if to == "active" { "start" } else { "stop" };
                Ok(vec![Change::run("systemctl", &format!("{verb} {name}"))])
            }
            Self::Module(name) => {
                let option = if to == ABSENT { "-r " } else { "" };
                Ok(vec![Change::run("modprobe", &format!("{option}{name}"))])
            }
            Self::PrivateFlag(name) => ethtool(format!("--set-priv-flags {dev} {name} {to}")),
            // The one feature whose name in -K is not the one that -k prints.
            Self::Feature(name) if name == "ntuple-filters" => {
                ethtool(format!("-K {dev} ntuple {to}"))
            }
            Self::Feature(name) => ethtool(format!("-K {dev} {name} {to}")),
            Self::Channels => ethtool(format!("-L {dev} {to}")),
            Self::RootQdisc if to == DEFAULT => tc(format!("qdisc del dev {dev} root")),
            Self::RootQdisc => tc(format!("qdisc add dev {dev} root {to}")),
            Self::Clsact => {
                let verb = if to == ABSENT { "del" } else { "add" };
                tc(format!("qdisc {verb} dev {dev} clsact"))
            }
            Self::Flower { flow, class, handle } => {
                let place = format!(
                    "dev {dev} ingress protocol {} prio {} handle {handle:#x} flower",
                    flow.protocol(),
                    flow.pref()
                );
                match to {
                    ABSENT => tc(format!("filter del {place}")),
                    _ => tc(format!("filter add {place} {} hw_tc {class}", flow.tc())),
                }
            }
            Self::Affinity { queue, sends_only } => {
                let is_it = |irq: &&crate::facts::Interrupt| {
                    (irq.queue, irq.sends_only) == (*queue, *sends_only)
                };
                let irq = facts.interrupts.iter().find(is_it);
                let irq = irq.ok_or_else(|| Error::Missing(format!("{self}: {dev} has none")))?;
                Ok(vec![Change::Write { path: affinity_path(irq.number), text: to.to_owned() }])
            }
            Self::XpsRxqs(queue) => {
                Ok(vec![Change::Write { path: xps_path(dev, *queue), text: grouped(to) }])
            }
            Self::Devlink(name) => {
                let bus = facts.bus.as_deref().unwrap_or("DEVICE");
                let line = format!("dev param set {bus} name {name} value {to} cmode runtime");
                Ok(vec![Change::run("devlink", &line)])
            }
            Self::Moderation { .. } => ethtool(format!("-C {dev} {to}")),
            Self::Table if to == format!("equal {}", facts.queues()) => {
                ethtool(format!("-X {dev} default"))
            }
            Self::Table => ethtool(format!("-X {dev} {to}")),
            Self::Context { first, count } if to == ABSENT => {
                let number = number(context(facts, *first, *count), "CONTEXT", self, usage)?;
                ethtool(format!("-X {dev} context {number} delete"))
            }
            Self::Context { first, count } => {
                ethtool(format!("-X {dev} context new start {first} equal {count}"))
            }
            Self::Rule { flow, goal } if to == ABSENT => {
                let mine = rule(facts, flow).filter(|rule| leads_to(facts, rule, *goal));
                let number = number(mine.map(|rule| rule.id), "RULE", self, usage)?;
                ethtool(format!("-U {dev} delete {number}"))
            }
            Self::Rule { flow, goal: Goal::Queue(queue) } => {
                ethtool(format!("-U {dev} {} action {queue}", flow.ethtool()))
            }
            Self::Rule { flow, goal: Goal::Table { first, count } } => {
                let number = number(context(facts, *first, *count), "CONTEXT", self, usage)?;
                ethtool(format!("-U {dev} {} context {number}", flow.ethtool()))
            }
            Self::Sysctl(key) => Ok(vec![Change::Sysctl { key: key.clone(), text: to.to_owned() }]),
        }
    }
}

/// A number that must be known to perform a command, and has a name in one that is only read.
fn number(known: Option<u32>, name: &str, setting: &Setting, usage: Use) -> Result<String> {
    match (known, usage) {
        (Some(number), _) => Ok(number.to_string()),
        (None, Use::Print) => Ok(name.to_owned()),
        (None, Use::Perform) => {
            Err(Error::Missing(format!("{setting}: the driver does not list what was made for it")))
        }
    }
}

fn moderation(facts: &Facts, receives: bool) -> Option<String> {
    let all = facts.coalescing?;
    let (adaptive, usecs, side) = if receives {
        (all.adaptive_rx, all.rx_usecs, "rx")
    } else {
        (all.adaptive_tx, all.tx_usecs, "tx")
    };
    moderation_text(side, adaptive, usecs)
}

/// Moderation in ethtool's words, with the parts that the driver has.
pub fn moderation_text(side: &str, adaptive: Option<bool>, usecs: Option<u32>) -> Option<String> {
    let adaptive = adaptive.map(|on| format!("adaptive-{side} {}", if on { "on" } else { "off" }));
    let usecs = usecs.map(|usecs| format!("{side}-usecs {usecs}"));
    let parts: Vec<String> = adaptive.into_iter().chain(usecs).collect();
    (!parts.is_empty()).then(|| parts.join(" "))
}

/// The first queue and the number of queues of a table that spreads evenly.
fn equal(table: &[u32]) -> Option<(u32, u32)> {
    let first = *table.iter().min()?;
    let count = table.iter().max()? - first + 1;
    let even = table.iter().zip((0..count).cycle()).all(|(queue, at)| *queue == first + at);
    even.then_some((first, count))
}

/// The number of the further table over these queues.
fn context(facts: &Facts, first: u32, count: u32) -> Option<u32> {
    let mut all = facts.contexts.iter();
    all.find(|(_, table)| equal(table) == Some((first, count))).map(|(number, _)| *number)
}

fn rule<'a>(facts: &'a Facts, flow: &Flow) -> Option<&'a Rule> {
    facts.rules.iter().flatten().find(|rule| flow.is_of(rule))
}

fn leads_to(facts: &Facts, rule: &Rule, goal: Goal) -> bool {
    match goal {
        Goal::Queue(queue) => rule.queue == Some(queue) && rule.context.is_none(),
        Goal::Table { first, count } => {
            let table = rule.context.and_then(|number| facts.contexts.get(&number));
            table.is_some_and(|table| equal(table) == Some((first, count)))
        }
    }
}

fn rule_value(facts: &Facts, flow: &Flow, goal: Goal) -> Option<String> {
    facts.rules.as_ref()?;
    Some(match rule(facts, flow) {
        None => ABSENT.to_owned(),
        Some(rule) if leads_to(facts, rule, goal) => PRESENT.to_owned(),
        Some(rule) => format!("rule {} sends them elsewhere", rule.id),
    })
}

/// A mask in the groups of 32 bits that the kernel reads.
fn grouped(mask: &str) -> String {
    let digits: Vec<char> = mask.chars().collect();
    let groups: Vec<String> = digits.rchunks(8).rev().map(|group| group.iter().collect()).collect();
    groups.join(",")
}

/// The mask with one bit.
pub fn bit(number: u32) -> String {
    let digit = ["1", "2", "4", "8"][usize::try_from(number % 4).unwrap_or(0)];
    format!("{digit}{}", "0".repeat(usize::try_from(number / 4).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_of_more_than_32_queues_are_grouped() {
        assert_eq!((bit(0), bit(5), bit(33)), ("1".into(), "20".into(), "200000000".into()));
        assert_eq!((grouped("20"), grouped("200000000")), ("20".into(), "2,00000000".into()));
    }

    #[test]
    fn tables_are_even_or_chosen_by_hand() {
        assert_eq!(equal(&[2, 3, 2, 3]), Some((2, 2)));
        assert_eq!(equal(&[0, 0]), Some((0, 1)));
        assert_eq!(equal(&[0, 1, 1, 0]), None);
        let facts = Facts { indirection: Some(vec![1, 2, 1, 2]), ..Facts::default() };
        assert_eq!(Setting::Table.value_in(&facts).unwrap(), "chosen by hand");
    }

    #[test]
    fn a_rule_elsewhere_is_neither_absent_nor_present() {
        let address = "192.0.2.1".parse().unwrap();
        let flow = Flow { address, port: 4420, comes_from: false };
        let setting = Setting::Rule { flow, goal: Goal::Queue(2) };
        let mut facts = Facts::default();
        assert_eq!(setting.value_in(&facts), None);
        let rule = Rule {
            id: 9,
            flow: "tcp4".to_owned(),
            destination: Some("192.0.2.1".to_owned()),
            destination_port: Some(4420),
            queue: Some(3),
            ..Rule::default()
        };
        facts.rules = Some(vec![rule]);
        assert_eq!(setting.value_in(&facts).unwrap(), "rule 9 sends them elsewhere");
        let own = Setting::Rule { flow, goal: Goal::Queue(3) };
        assert_eq!(own.value_in(&facts).unwrap(), PRESENT);
        let other = Flow { comes_from: true, ..flow };
        let other = Setting::Rule { flow: other, goal: Goal::Queue(3) };
        assert_eq!(other.value_in(&facts).unwrap(), ABSENT);
    }
}
