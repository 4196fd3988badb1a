//! Facts from the machine: all of them for a plan, or the part that one setting lives in.

use std::path::{Path, PathBuf};

use super::{Facts, Sysctl, parse};
use crate::error::{Error, Result};
use crate::machine::{self, Machine, PACKAGES, sysctl_path};

/// Sysctls that a recipe may set.
pub const SYSCTLS: [&str; 10] = [
    "net.core.busy_poll",
    "net.core.busy_read",
    "net.core.netdev_max_backlog",
    "net.core.rmem_max",
    "net.core.somaxconn",
    "net.core.wmem_max",
    "net.ipv4.tcp_max_syn_backlog",
    "net.ipv4.tcp_mem",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
];
/// Services that matter to a recipe; only the first is ever stopped.
pub const SERVICES: [&str; 5] = ["irqbalance", "lldpad", "firewalld", "NetworkManager", "tuned"];
/// Modules that channels of ADQ need.
pub const MODULES: [&str; 2] = ["sch_mqprio", "cls_flower"];
/// Tables that spread packets are asked for up to this number.
const CONTEXTS_MAX: u32 = 16;

/// A part of the facts that is read together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Numbers of channels.
    Channels,
    /// Features.
    Features,
    /// Private flags.
    Flags,
    /// Devlink parameters.
    Devlink,
    /// Queueing disciplines.
    Qdiscs,
    /// Filters of the ingress side.
    Filters,
    /// Interrupt moderation.
    Coalescing,
    /// Tables that spread packets.
    Tables,
    /// Rules that choose queues.
    Rules,
    /// Interrupts and their CPUs.
    Interrupts,
    /// Maps of send queues.
    Xps,
    /// One sysctl.
    Sysctl(String),
    /// One service.
    Service(String),
    /// One module.
    Module(String),
}

/// Checks a name before it becomes part of a path or a command line.
///
/// # Errors
/// When no interface can have it.
pub fn check_name(name: &str) -> Result<()> {
    let good = (1..=15).contains(&name.len())
        && !name.starts_with(['-', '.'])
        && !name.contains(|c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control());
    if good { Ok(()) } else { Err(Error::BadName(name.to_owned())) }
}

/// The folder of an interface.
pub fn folder(interface: &str) -> PathBuf {
    Path::new("/sys/class/net").join(interface)
}

/// Everything about an interface.
///
/// # Errors
/// When there is no such interface.
pub fn read(machine: &dyn Machine, interface: &str) -> Result<Facts> {
    let mut facts = identity(machine, interface)?;
    hardware(machine, &mut facts);
    for part in [
        Part::Channels,
        Part::Features,
        Part::Flags,
        Part::Devlink,
        Part::Qdiscs,
        Part::Filters,
        Part::Coalescing,
        Part::Tables,
        Part::Rules,
        Part::Interrupts,
        Part::Xps,
    ] {
        // A part that cannot be read stays empty: the planner then leaves its steps out, and says so.
        let _ = refresh(machine, &mut facts, &part);
    }
    let keys = SYSCTLS.iter().map(|key| Part::Sysctl((*key).to_owned()));
    let services = SERVICES.iter().map(|name| Part::Service((*name).to_owned()));
    let modules = MODULES.iter().map(|name| Part::Module((*name).to_owned()));
    for part in keys.chain(services).chain(modules) {
        let _ = refresh(machine, &mut facts, &part);
    }
    Ok(facts)
}

/// What identifies an interface, and where it is.
///
/// # Errors
/// When there is no such interface.
pub fn identity(machine: &dyn Machine, interface: &str) -> Result<Facts> {
    check_name(interface)?;
    let folder = folder(interface);
    let text = |name: &str| machine.read(&folder.join(name)).unwrap_or_default();
    let Ok(ifindex) = text("ifindex").parse() else {
        let others = machine.list(Path::new("/sys/class/net")).join(", ");
        return Err(Error::NoInterface { name: interface.to_owned(), others });
    };
    let namespace = |path: &str| {
        machine.link(Path::new(path)).map(|link| link.display().to_string()).unwrap_or_default()
    };
    let own = namespace("/proc/self/ns/net");
    Ok(Facts {
        interface: interface.to_owned(),
        ifindex,
        address: text("address"),
        mtu: text("mtu").parse().unwrap_or(0),
        kernel: machine.read(Path::new("/proc/sys/kernel/osrelease")).unwrap_or_default(),
        is_initial_namespace: own == namespace("/proc/1/ns/net"),
        network_namespace: own,
        ..Facts::default()
    })
}

fn hardware(machine: &dyn Machine, facts: &mut Facts) {
    let folder = folder(&facts.interface);
    if let Ok(text) = machine::ask(machine, "ethtool", &format!("-i {}", facts.interface)) {
        let (driver, version, bus) = parse::driver(&text);
        facts.driver_in_tree = machine::ask(machine, "modinfo", &format!("-F intree {driver}"))
            .ok()
            .map(|text| text.trim() == "Y");
        (facts.driver, facts.driver_version) = (driver, version);
        facts.bus = (!bus.is_empty()).then(|| format!("pci/{bus}"));
    } else if let Some(link) = machine.link(&folder.join("device/driver")) {
        facts.driver = link.file_name().unwrap_or_default().to_string_lossy().into_owned();
    }
    facts.made_of = if !machine.list(&folder.join("bonding")).is_empty() {
        Some("bond".to_owned())
    } else {
        (facts.driver == "team").then(|| "team".to_owned())
    };
    let name = |link: PathBuf| link.file_name().map(|name| name.to_string_lossy().into_owned());
    facts.master = machine.link(&folder.join("master")).and_then(name);
    let near = ["device/local_cpulist", "device/../local_cpulist"]
        .iter()
        .find_map(|name| machine.read(&folder.join(name)).ok())
        .or_else(|| machine.read(Path::new("/sys/devices/system/cpu/online")).ok());
    facts.cpus = parse::cpu_list(&near.unwrap_or_default());
    let memory = machine.read(Path::new("/proc/meminfo")).unwrap_or_default();
    let total = memory.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let total = total.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    facts.memory_bytes = total.unwrap_or(0) * 1024;
    facts.page_bytes = 4096;
    let needed = PACKAGES.iter().map(|(program, _)| *program);
    // A program that is there answers, if only that it wants other arguments.
    facts.missing_programs = needed
        .filter(|program| machine.look(program, &["--version".to_owned()]).is_err())
        .map(str::to_owned)
        .collect();
}

/// Reads one part again.
///
/// # Errors
/// When it cannot be read, for instance since a program is not installed or the device does not have it.
pub fn refresh(machine: &dyn Machine, facts: &mut Facts, part: &Part) -> Result<()> {
    let interface = facts.interface.clone();
    let ethtool = |option: &str| machine::ask(machine, "ethtool", &format!("{option} {interface}"));
    match part {
        Part::Channels => facts.channels = parse::channels(&ethtool("-l")?),
        Part::Features => facts.features = parse::features(&ethtool("-k")?),
        Part::Flags => facts.private_flags = parse::private_flags(&ethtool("--show-priv-flags")?),
        Part::Coalescing => facts.coalescing = Some(parse::coalescing(&ethtool("-c")?)),
        Part::Rules => facts.rules = Some(parse::rules(&ethtool("-n")?)),
        Part::Devlink => {
            let Some(bus) = &facts.bus else { return Ok(()) };
            let text = machine::ask(machine, "devlink", &format!("-j dev param show {bus}"))?;
            facts.devlink = parse::devlink(&text);
        }
        Part::Qdiscs => {
            let line = format!("-j qdisc show dev {interface}");
            facts.qdiscs = tc(machine, &line, parse::qdiscs)?;
        }
        Part::Filters => {
            refresh(machine, facts, &Part::Qdiscs)?;
            facts.filters.clear();
            if !facts
                .qdiscs
                .iter()
                .any(|qdisc| ["clsact", "ingress"].contains(&qdisc.kind.as_str()))
            {
                return Ok(());
            }
            let line = format!("-j filter show dev {interface} ingress");
            facts.filters = tc(machine, &line, parse::filters)?;
        }
        Part::Tables => tables(machine, facts)?,
        Part::Interrupts => interrupts(machine, facts),
        Part::Xps => xps(machine, facts),
        Part::Sysctl(key) => sysctl(machine, facts, key),
        Part::Service(name) => service(machine, facts, name)?,
        Part::Module(name) => module(machine, facts, name),
    }
    Ok(())
}

fn tc<T>(machine: &dyn Machine, line: &str, parse: impl Fn(&str) -> Option<T>) -> Result<T> {
    let text = machine::ask(machine, "tc", line)?;
    // Without filters, tc prints nothing at all in some releases.
    let text = if text.trim().is_empty() { "[]" } else { &text };
    parse(text).ok_or_else(|| Error::Output {
        command: format!("tc {line}"),
        reason: "it is not the JSON that iproute2 6.1 prints".to_owned(),
    })
}

fn tables(machine: &dyn Machine, facts: &mut Facts) -> Result<()> {
    let interface = &facts.interface;
    let text = machine::ask(machine, "ethtool", &format!("-x {interface}"))?;
    facts.indirection = parse::indirection(&text);
    facts.contexts.clear();
    if facts.indirection.is_none() {
        return Ok(());
    }
    for number in 1..=CONTEXTS_MAX {
        let line = format!("-x {interface} context {number}");
        if let Ok(text) = machine::ask(machine, "ethtool", &line)
            && let Some(table) = parse::indirection(&text)
        {
            facts.contexts.insert(number, table);
        }
    }
    Ok(())
}

fn interrupts(machine: &dyn Machine, facts: &mut Facts) {
    let folder = folder(&facts.interface);
    let mut numbers: Vec<u32> = Vec::new();
    // A virtio device is a child of the device that has the interrupts.
    for name in ["device/msi_irqs", "device/../msi_irqs"] {
        let names = machine.list(&folder.join(name));
        numbers.extend(names.iter().filter_map(|name| name.parse::<u32>().ok()));
        if !numbers.is_empty() {
            break;
        }
    }
    let text = machine.read(Path::new("/proc/interrupts")).unwrap_or_default();
    facts.interrupts = parse::interrupts(&text, &numbers);
    for interrupt in &mut facts.interrupts {
        interrupt.affinity = machine.read(&affinity_path(interrupt.number)).unwrap_or_default();
    }
    facts.interrupts.sort_by_key(|interrupt| (interrupt.queue, interrupt.sends_only));
}

/// The file that says which CPUs take an interrupt.
pub fn affinity_path(number: u32) -> PathBuf {
    PathBuf::from(format!("/proc/irq/{number}/smp_affinity_list"))
}

/// The file of a send queue's map.
pub fn xps_path(interface: &str, queue: u32) -> PathBuf {
    folder(interface).join(format!("queues/tx-{queue}/xps_rxqs"))
}

fn xps(machine: &dyn Machine, facts: &mut Facts) {
    facts.xps_rxqs.clear();
    for queue in 0.. {
        match machine.read(&xps_path(&facts.interface, queue)) {
            Ok(text) => facts.xps_rxqs.push(parse::mask(&text)),
            Err(_) => break,
        }
    }
}

fn sysctl(machine: &dyn Machine, facts: &mut Facts, key: &str) {
    let path = sysctl_path(key);
    facts.sysctls.remove(key);
    if let Ok(text) = machine.read(&path) {
        let value = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let writable = machine.is_writable(&path);
        facts.sysctls.insert(key.to_owned(), Sysctl { value, writable });
    }
}

fn service(machine: &dyn Machine, facts: &mut Facts, name: &str) -> Result<()> {
    let arguments = ["is-active".to_owned(), name.to_owned()];
    let ended = machine.look("systemctl", &arguments).map_err(|error| Error::Program {
        command: format!("systemctl is-active {name}"),
        reason: error.to_string(),
    })?;
    let state = match ended.stdout.trim() {
        "active" => "active",
        "inactive" | "failed" => "inactive",
        // Unknown, or there is no systemd: nothing can be said, so nothing is done.
        _ => {
            facts.services.remove(name);
            return Ok(());
        }
    };
    facts.services.insert(name.to_owned(), state.to_owned());
    Ok(())
}

fn module(machine: &dyn Machine, facts: &mut Facts, name: &str) {
    let release = machine.read(Path::new("/proc/sys/kernel/osrelease")).unwrap_or_default();
    let folder = Path::new("/lib/modules").join(release);
    let has = |file: &str| {
        let text = machine.read(&folder.join(file)).unwrap_or_default();
        text.contains(&format!("/{name}.ko"))
    };
    let state = if !machine.list(&Path::new("/sys/module").join(name)).is_empty() {
        "loaded"
    } else if has("modules.builtin") {
        "builtin"
    } else if has("modules.dep") {
        "loadable"
    } else {
        "missing"
    };
    facts.modules.insert(name.to_owned(), state.to_owned());
}
