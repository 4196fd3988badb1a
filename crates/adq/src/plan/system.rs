//! Services, sysctls, and what the program itself has to do.

use super::{Planner, Profile, Role, Way};
use crate::setting::Setting;

/// Sysctls of both roles: key and value.
const BOTH: [(&str, &str); 2] =
    [("net.core.somaxconn", "4096"), ("net.ipv4.tcp_max_syn_backlog", "16384")];
/// Sysctls of the papers' target.
const TARGET: [(&str, &str); 4] = [
    ("net.core.rmem_max", "268435456"),
    ("net.core.wmem_max", "268435456"),
    ("net.ipv4.tcp_rmem", "8192 1048576 33554432"),
    ("net.ipv4.tcp_wmem", "8192 1048576 33554432"),
];
/// Sysctls of the papers' hosts.
const HOST: [(&str, &str); 4] = [
    ("net.core.rmem_max", "16777216"),
    ("net.core.wmem_max", "16777216"),
    ("net.ipv4.tcp_rmem", "8192 87380 16777216"),
    ("net.ipv4.tcp_wmem", "8192 65536 16777216"),
];
/// `tcp_mem` of the papers' target and hosts, in pages.
const PAGES: [[u64; 3]; 2] =
    [[268_435_456, 268_435_456, 268_435_456], [764_688, 1_019_584, 16_777_216]];
/// TCP may have at most this part of the memory.
const MEMORY_PART: u64 = 4;

/// Services that would undo the recipe.
pub(super) fn services(planner: &mut Planner<'_>) {
    if planner.way != Way::Veth {
        let why = "it would move the interrupts away from their cores again";
        planner.push(Setting::Service("irqbalance".to_owned()), "inactive", why);
    }
    let agent = "fw-lldp-agent";
    if planner.way == Way::Channels && planner.facts.private_flags.contains_key(agent) {
        let why = "the device's own LLDP agent can replace the traffic classes by the switch's";
        planner.push(Setting::PrivateFlag(agent.to_owned()), "off", why);
    }
    let runs = |name: &str| planner.facts.services.get(name).is_some_and(|state| state == "active");
    let (lldpad, firewalld, manager) = (runs("lldpad"), runs("firewalld"), runs("NetworkManager"));
    if lldpad && planner.way == Way::Channels {
        planner.note(
            "lldpad runs: if it manages this interface (DCB), it can replace the traffic classes. Stop it \
             before `apply`",
        );
    }
    if firewalld || manager {
        planner.note(
            "firewalld and NetworkManager stay as they are, although the papers stop them: stopping them \
             can open the machine or cut it off",
        );
    }
}

/// Sysctls of the role.
pub(super) fn sysctls(planner: &mut Planner<'_>) {
    let (of_role, pages) = match planner.request.role {
        Role::Target => (TARGET, PAGES[0]),
        Role::Host => (HOST, PAGES[1]),
    };
    for (key, value) in BOTH {
        sysctl(planner, key, value, "all hosts may connect at once");
    }
    let why = "packets wait there on their way to another CPU, and on veth and lo";
    let backlog = "net.core.netdev_max_backlog";
    if planner.request.profile == Profile::Paper || planner.way == Way::Veth {
        sysctl(planner, backlog, "8192", why);
    } else {
        let reason = "this device's packets do not wait there, unless RPS is on";
        planner.skip(Setting::Sysctl(backlog.to_owned()), "8192", why, reason);
    }
    for (key, value) in of_role {
        sysctl(planner, key, value, "sockets hold what many commands move");
    }
    memory(planner, pages);
    busy_poll(planner);
}

fn sysctl(planner: &mut Planner<'_>, key: &str, wanted: &str, why: &str) {
    let setting = Setting::Sysctl(key.to_owned());
    match planner.facts.sysctls.get(key) {
        Some(found) if !found.writable => planner.skip(
            setting,
            wanted,
            why,
            "it can be set in the first network namespace only: its value there counts",
        ),
        _ => planner.push(setting, wanted, why),
    }
}

/// The papers' values are pages: the target's are a TiB, which means no limit.
fn memory(planner: &mut Planner<'_>, pages: [u64; 3]) {
    let limit = planner.facts.memory_bytes / planner.facts.page_bytes.max(1) / MEMORY_PART;
    let capped = pages.map(|number| if limit > 0 { number.min(limit) } else { number });
    let text = capped.map(|number| number.to_string()).join(" ");
    let why = if capped == pages {
        "pages that all sockets may have: below these no socket is held back"
    } else {
        "pages that all sockets may have: the papers' value, but at most a quarter of the memory"
    };
    sysctl(planner, "net.ipv4.tcp_mem", &text, why);
}

/// Busy polling is a matter of each socket, except where the papers are followed.
fn busy_poll(planner: &mut Planner<'_>) {
    let reads = "a receive that finds nothing polls the device's queue";
    let polls = "poll and epoll_wait poll the device's queues";
    let [read, poll] = ["net.core.busy_read", "net.core.busy_poll"];
    if planner.request.profile != Profile::Paper {
        let reason =
            "Raceline asks for it on its own sockets (--busy-poll); this would be for all programs";
        planner.skip(Setting::Sysctl(read.to_owned()), "1", reads, reason);
        return;
    }
    sysctl(planner, read, "1", reads);
    sysctl(planner, poll, "0", polls);
    planner.note(
        "busy_poll can be read in two ways: the papers print busy_poll=0 and busy_read=1, so that only \
         receives poll, and their table says that epoll polls as well. This plan follows the printed \
         commands; for the table, add `sysctl -w net.core.busy_poll=1`",
    );
}

/// Whether this kernel has settings of single queues for deferred interrupts (Linux 6.13).
fn has_settings_of_queues(kernel: &str) -> bool {
    let mut numbers = kernel.split(|letter: char| !letter.is_ascii_digit());
    let mut number = || numbers.next()?.parse::<u32>().ok();
    (number(), number()) >= (Some(6), Some(13))
}

/// What no setting of the machine can do.
pub(super) fn advice(planner: &mut Planner<'_>) {
    if planner.request.profile == Profile::Paper {
        planner.note(
            "route.flush=1 is left out: it has done nothing for IPv4 since kernel 3.6, and nothing could \
             be given back",
        );
        if planner.facts.mtu != 1500 {
            planner.note(format!(
                "the papers have an MTU of 1500, and {} has {}: it stays, since changing it stops the link",
                planner.facts.interface, planner.facts.mtu
            ));
        }
    }
    let cores: Vec<String> = planner.cpus.iter().map(u32::to_string).collect();
    let mut distinct = cores.clone();
    distinct.dedup();
    let cores = if distinct.len() == cores.len() { cores } else { distinct };
    let cores = cores.join(",");
    planner.note(match planner.request.role {
        Role::Target => format!(
            "then run the target on the queues' cores: raceline export ... --cores {cores} --mode poll \
             --placement napi --busy-poll 50"
        ),
        Role::Host => format!(
            "then run the host on the queues' cores: raceline perf ... --cores {cores} --placement napi"
        ),
    });
    // A veth has no interrupts.
    if planner.way != Way::Veth && has_settings_of_queues(&planner.facts.kernel) {
        planner.note(
            "interrupts of a queue can stay off while the application polls it. The setting belongs to a NAPI \
             id, which exists only while the device runs, so it is no step. When connections have come, for each \
             napi_id that -vv logs: ynl --family netdev --do napi-set --json '{\"id\": NAPI_ID, \
             \"defer-hard-irqs\": 2, \"gro-flush-timeout\": 50000, \"irq-suspend-timeout\": 20000000}'",
        );
    }
    if planner.way == Way::Channels {
        planner.note(
            "packets leave through class 1 only from sockets with priority 1; Linux's own host and target \
             take it as so_priority=1 of their modules nvme-tcp and nvmet-tcp",
        );
    }
}
