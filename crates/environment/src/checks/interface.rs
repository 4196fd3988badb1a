//! Checks of the network interface that was asked for.

use super::{Subject, joined};
use crate::check::{Area, Check, Severity};
use crate::interface::Interface;
use crate::reading::Reading;

/// Entries of a receive ring that hold a burst.
const RING: u64 = 1024;
/// Flags of ADQ, in the two spellings that drivers have.
const INSPECT: [&str; 2] = ["channel-pkt-inspect-optimize", "channel-packet-inspect-optimize"];

pub(super) fn checks(subject: &Subject<'_>) -> Vec<Check> {
    match &subject.environment.interface {
        Reading::Read(interface) => vec![
            driver(interface),
            state(interface),
            device_link(interface),
            mtu(interface),
            offloads(interface),
            large_receive(interface),
            rings(interface),
            queues(subject, interface),
            moderation(interface),
            flags(interface),
            interrupts(subject, interface),
            transmit_map(interface),
            spreading(interface),
            discipline(interface),
            deferral(interface),
        ],
        Reading::Unread { unread } => {
            let why = "Drivers, queues, interrupts and offloads decide what a packet costs.";
            let check = Check::new(Area::Interface, "nic", "interface", why);
            vec![check.is(Severity::Info, unread)]
        }
    }
}

fn new(id: &'static str, title: &'static str, why: &'static str) -> Check {
    Check::new(Area::Interface, id, title, why)
}

fn driver(interface: &Interface) -> Check {
    let why = "Results depend on driver and firmware. ADQ needs Intel's ice driver for its private flags.";
    let settings = &interface.settings;
    let value = match &interface.driver {
        Reading::Read(driver) => {
            let version = settings.driver_version.text().unwrap_or("version not told");
            let firmware = settings.firmware.text().unwrap_or("not told");
            format!("{driver} {version}, firmware {firmware}, device {}", interface.device)
        }
        Reading::Unread { unread } => unread.clone(),
    };
    new("nic-driver", "driver", why).is(Severity::Info, value)
}

fn state(interface: &Interface) -> Check {
    let name = &interface.name;
    let why = "An interface that is down carries nothing; half duplex collides.";
    let check = new("nic-link", "link", why);
    let speed = match interface.speed_mbit.get() {
        Some(speed) if speed > 0 => format!("{speed} Mbit/s"),
        _ => "speed not told".to_owned(),
    };
    let duplex = interface.duplex.text().unwrap_or("unknown");
    match &interface.state {
        Reading::Read(state) if state == "down" => {
            check.is(Severity::Fail, "down").fix(format!("ip link set {name} up"))
        }
        Reading::Read(_) if duplex == "half" => check
            .is(Severity::Fail, format!("{speed}, half duplex"))
            .fix(format!("ethtool -s {name} autoneg on")),
        Reading::Read(state) => {
            check.is(Severity::Ok, format!("{state}, {speed}, duplex {duplex}"))
        }
        unread => check.is(Severity::Info, unread.reason().unwrap_or_default()),
    }
}

fn device_link(interface: &Interface) -> Check {
    let why = "A device in a slot that is too slow or too narrow cannot use its network: eight lanes of PCI \
               Express 3 carry 63 Gbit/s.";
    let check = new("nic-pci", "PCI Express", why);
    match &interface.link {
        Reading::Read(link) => check
            .good_or(is_full(link), Severity::Warning, link)
            .fix("# Move the card to a slot with the lanes and the speed that it has"),
        unread => check.is(Severity::Info, unread.reason().unwrap_or_default()),
    }
}

/// Whether a link is as fast as it could be; see [`crate::drives::link`].
pub(super) fn is_full(link: &str) -> bool {
    link.split_once(" of ").is_none_or(|(now, most)| now == most)
}

fn mtu(interface: &Interface) -> Check {
    let why = "Both ends and all switches must have the same. 9000 saves 10 to 30 % of the CPU time of large \
               I/O; the papers have 1500.";
    let check = new("nic-mtu", "MTU", why);
    match &interface.mtu {
        Reading::Read(bytes) => check
            .is(Severity::Info, format!("{bytes} bytes"))
            .hint(format!("ip link set {} mtu 9000", interface.name)),
        unread => check.is(Severity::Info, unread.reason().unwrap_or_default()),
    }
}

fn offloads(interface: &Interface) -> Check {
    let settings = &interface.settings;
    let name = &interface.name;
    let why = "Without merging of received packets and cutting of sent ones, each packet of 1500 bytes takes \
               the whole way through TCP by itself: 5 to 10 times the CPU time for large I/O.";
    let check = new("nic-offloads", "GRO, GSO, TSO", why);
    if let Some(reason) = settings.features.reason() {
        return check.is(Severity::Info, reason);
    }
    let wanted =
        [("rx-gro", "gro"), ("tx-generic-segmentation", "gso"), ("tx-tcp-segmentation", "tso")];
    let off: Vec<&str> = wanted
        .iter()
        .filter(|(feature, _)| settings.feature(feature) == Some(false))
        .map(|(_, short)| *short)
        .collect();
    let changeable =
        wanted.iter().any(|(feature, short)| off.contains(short) && settings.can_change(feature));
    let value = if off.is_empty() { "on".to_owned() } else { format!("off: {}", joined(&off)) };
    let severity = match (off.is_empty(), changeable) {
        (true, _) => Severity::Ok,
        (false, true) => Severity::Warning,
        (false, false) => Severity::Info,
    };
    let check = check.is(severity, value);
    if interface.driver.value().is_none() {
        return check.fix(
            "# On a veth pair that is to have receive queues, TSO of the sender is off on purpose",
        );
    }
    off.iter().fold(check, |check, short| check.fix(format!("ethtool -K {name} {short} on")))
}

fn large_receive(interface: &Interface) -> Check {
    let settings = &interface.settings;
    let why = "LRO merges packets in the device and delays the first of them until it stops waiting for more.";
    let check = new("nic-lro", "LRO", why);
    match settings.feature("rx-lro") {
        Some(true) => {
            check.is(Severity::Warning, "on").fix(format!("ethtool -K {} lro off", interface.name))
        }
        Some(false) => check.is(Severity::Ok, "off"),
        None => check
            .is(Severity::Info, settings.features.reason().unwrap_or("not known to the driver")),
    }
}

fn rings(interface: &Interface) -> Check {
    let why = "A receive ring that is too short drops packets of bursts. Very long ones leave the caches.";
    let check = new("nic-rings", "rings", why);
    match &interface.settings.rings {
        Reading::Read(rings) => {
            let number = |name: &str| rings.get(name).copied().unwrap_or(0);
            let (entries, most) = (number("rx"), number("rx-max"));
            let wanted = RING.min(most);
            check
                .good_or(
                    entries >= wanted,
                    Severity::Warning,
                    format!(
                        "receive {entries} of {most}, send {} of {}",
                        number("tx"),
                        number("tx-max")
                    ),
                )
                .fix(format!("ethtool -G {} rx {wanted}", interface.name))
        }
        unread => check.is(Severity::Info, unread.reason().unwrap_or_default()),
    }
}

fn queues(subject: &Subject<'_>, interface: &Interface) -> Check {
    let why = "Each core of Raceline wants a queue of its own; cores that share one wait for each other and \
               cannot poll it alone.";
    let check = new("nic-queues", "queues", why);
    let cpus = u64::from(subject.environment.cpu.cpus.get().unwrap_or(1));
    match &interface.settings.channels {
        Reading::Read(channels) => {
            let number = |name: &str| channels.get(name).copied().unwrap_or(0);
            let used = number("combined").max(number("rx"));
            let most = number("combined-max").max(number("rx-max"));
            let wanted = cpus.min(most);
            let kind = if number("combined-max") > 0 { "combined" } else { "rx" };
            check
                .good_or(
                    used >= wanted,
                    Severity::Warning,
                    format!("{used} of {most}, for {cpus} CPUs"),
                )
                .fix(format!("ethtool -L {} {kind} {wanted}", interface.name))
        }
        unread => {
            let count = interface.receive_queues.value().map_or(0, Vec::len);
            let reason = unread.reason().unwrap_or_default();
            check.is(Severity::Info, format!("{count} receive queues; {reason}"))
        }
    }
}

fn moderation(interface: &Interface) -> Check {
    let why = "Waiting 50 us before an interrupt adds 25 us on average to a single command. Adaptive waiting \
               changes during a run. The papers wait 0 us for reception with ADQ and 50 us without.";
    let check = new("nic-moderation", "interrupt moderation", why);
    match &interface.settings.coalescing {
        Reading::Read(found) => {
            let number = |name: &str| found.get(name).copied().unwrap_or(0);
            let adaptive = number("adaptive-rx") > 0 || number("adaptive-tx") > 0;
            let (receive, send) = (number("rx-usecs"), number("tx-usecs"));
            let mode = if adaptive { ", adaptive" } else { "" };
            check
                .good_or(
                    !adaptive && receive == 0,
                    Severity::Warning,
                    format!("receive {receive} us, send {send} us{mode}"),
                )
                .fix("# For latency; results of throughput cost more CPU time with it:")
                .fix(format!("ethtool -C {} adaptive-rx off rx-usecs 0", interface.name))
        }
        unread => check.is(Severity::Info, unread.reason().unwrap_or_default()),
    }
}

fn flags(interface: &Interface) -> Check {
    let name = &interface.name;
    let why = "ADQ steers with filters in the device, which need hw-tc-offload, and wants pollers that the \
               driver does not second-guess. A device that negotiates DCB by itself undoes traffic classes.";
    let check = new("nic-adq-flags", "flags for ADQ", why);
    let settings = &interface.settings;
    let empty = std::collections::BTreeMap::new();
    let private = settings.private_flags.value().unwrap_or(&empty);
    let inspect = INSPECT.iter().find(|flag| private.get(**flag) == Some(&true));
    let agent = private.get("fw-lldp-agent") == Some(&true);
    let offload = settings.feature("hw-tc-offload");
    let can_offload = offload == Some(true) || settings.can_change("hw-tc-offload");
    if !can_offload {
        return check
            .is(Severity::Info, "this device has no filters in hardware: ADQ is not possible");
    }
    let on = |on: bool| if on { "on" } else { "off" };
    let listed = private.iter().map(|(flag, set)| format!("{flag} {}", on(*set)));
    let value = format!("hw-tc-offload {}; private: {}", on(offload == Some(true)), joined(listed));
    let mut check = check.is(Severity::Info, value);
    if offload == Some(false) {
        check = check.hint(format!("ethtool -K {name} hw-tc-offload on"));
    }
    if let Some(flag) = inspect {
        check = check.hint(format!("ethtool --set-priv-flags {name} {flag} off"));
    }
    if agent {
        check = check.hint(format!("ethtool --set-priv-flags {name} fw-lldp-agent off"));
    }
    check
}

fn interrupts(subject: &Subject<'_>, interface: &Interface) -> Check {
    let why = "An interrupt on another core than the connection's moves each packet from cache to cache and \
               takes time from whoever runs there. irqbalance moves interrupts during a run.";
    let check = new("nic-interrupts", "interrupts", why);
    let balanced = subject.environment.services.runs("irqbalance") == Some(true);
    let found = match &interface.interrupts {
        Reading::Read(found) => found,
        unread => {
            let reason = unread.reason().unwrap_or_default();
            let severity = if balanced { Severity::Warning } else { Severity::Info };
            return check.is(severity, reason).fix("systemctl stop irqbalance");
        }
    };
    let cpus: std::collections::BTreeSet<&str> =
        found.iter().filter_map(|interrupt| interrupt.cpus.text()).collect();
    let queues = interface.receive_queues.value().map_or(0, Vec::len);
    let crowded = queues > 1 && cpus.len() < 2;
    let value = format!(
        "{} interrupts on CPUs {}{}",
        found.len(),
        joined(&cpus),
        if balanced { ", moved by irqbalance" } else { "" }
    );
    let mut check = check.good_or(!balanced && !crowded, Severity::Warning, value);
    if balanced {
        check = check.fix("systemctl stop irqbalance");
    }
    if crowded {
        check = check.fix("# Each queue's interrupt on a CPU of its own:");
        let online = usize::try_from(subject.environment.cpu.cpus.get().unwrap_or(1)).unwrap_or(1);
        for (at, interrupt) in found.iter().take(queues).enumerate() {
            let (cpu, number) = (at % online.max(1), interrupt.number);
            check = check.fix(format!("echo {cpu} > /proc/irq/{number}/smp_affinity_list"));
        }
    }
    check
}

fn transmit_map(interface: &Interface) -> Check {
    let why = "What a connection sends should leave by the queue on which it receives: otherwise the device \
               does not learn its flow, and another core cleans up.";
    let check = new("nic-transmit-map", "transmit queues (XPS)", why);
    match &interface.transmit_queues {
        Reading::Read(queues) if queues.len() > 1 => {
            let is_set = |mask: &Reading<String>| {
                mask.text()
                    .is_some_and(|mask| mask.chars().any(|c| c.is_ascii_hexdigit() && c != '0'))
            };
            let by_queue = queues.iter().filter(|queue| is_set(&queue.receive_queues)).count();
            let by_cpu = queues.iter().filter(|queue| is_set(&queue.cpus)).count();
            let check = check.good_or(
                by_queue == queues.len(),
                Severity::Info,
                format!("{} queues: {by_queue} by receive queue, {by_cpu} by CPU", queues.len()),
            );
            check
                .hint("# Transmit queue q for receive queue q; the number is the mask with bit q set:")
                .hint(format!("echo 1 > /sys/class/net/{}/queues/tx-0/xps_rxqs", interface.name))
        }
        Reading::Read(queues) => check.is(Severity::Ok, format!("{} queue", queues.len())),
        unread => check.is(Severity::Info, unread.reason().unwrap_or_default()),
    }
}

fn spreading(interface: &Interface) -> Check {
    let why = "Spreading by software moves packets to other CPUs after they were received, against any \
               placement.";
    let check = new("nic-spreading", "spreading of packets (RPS)", why);
    match &interface.receive_queues {
        Reading::Read(queues) => {
            let is_set = |mask: &Reading<String>| {
                mask.text()
                    .is_some_and(|mask| mask.chars().any(|c| c.is_ascii_hexdigit() && c != '0'))
            };
            let spread = queues.iter().filter(|queue| is_set(&queue.spread_to_cpus)).count();
            let value =
                if spread == 0 { "off".to_owned() } else { format!("on for {spread} queues") };
            check
                .good_or(spread == 0, Severity::Info, value)
                .hint(format!("echo 0 > /sys/class/net/{}/queues/rx-0/rps_cpus", interface.name))
        }
        unread => check.is(Severity::Info, unread.reason().unwrap_or_default()),
    }
}

fn discipline(interface: &Interface) -> Check {
    let why = "What is sent passes the queueing discipline: one for all queues is a lock that all cores take, \
               and those that shape or delay change what is measured.";
    let check = new("nic-discipline", "queueing discipline", why);
    if let Some(reason) = interface.disciplines.reason() {
        return check.is(Severity::Info, reason);
    }
    let kinds = interface.discipline_kinds();
    let shapes =
        kinds.iter().any(|kind| matches!(*kind, "netem" | "tbf" | "htb" | "hfsc" | "cake"));
    let filters = match interface.ingress_filters.get() {
        Some(0) | None => String::new(),
        Some(count) => format!("; {count} filters on what comes in"),
    };
    let mut shown: Vec<&str> = kinds.clone();
    shown.dedup();
    check
        .is(
            if shapes { Severity::Warning } else { Severity::Info },
            format!("{}{filters}", joined(shown)),
        )
        .fix(format!("tc qdisc del dev {} root", interface.name))
}

fn deferral(interface: &Interface) -> Check {
    let why = "Deferred interrupts let programs that poll receive first; without a program that polls they \
               only add latency.";
    let check = new("nic-deferral", "deferred interrupts", why);
    match (&interface.defer_hard_irqs, &interface.gro_flush_timeout_ns, &interface.threaded) {
        (Reading::Read(times), Reading::Read(ns), threaded) => {
            let threads = match threaded.get() {
                Some(0) | None => "",
                Some(_) => "; received by kernel threads",
            };
            check.is(Severity::Info, format!("{times} times, then {ns} ns{threads}"))
        }
        (unread, _, _) => check.is(Severity::Info, unread.reason().unwrap_or("not told")),
    }
}
