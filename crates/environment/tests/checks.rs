//! What the checks say of recorded machines.

mod support;

use raceline_environment::check::{Check, Role, Severity};
use raceline_environment::measure::Costs;
use raceline_environment::{Environment, Reading, check};
use support::{Machine, machine};

const XEON_ICE: &str = include_str!("machines/xeon-ice.txt");
const VIRTIO_GUEST: &str = include_str!("machines/virtio-guest.txt");
const CONTAINER: &str = include_str!("machines/container.txt");

fn checks(machine: &Machine, interface: Option<&str>) -> Vec<Check> {
    check(&Environment::read_of(&machine.system, interface), None, None)
}

/// A check's severity, value and commands.
fn result<'a>(checks: &'a [Check], id: &str) -> (Severity, &'a str, Vec<&'a str>) {
    let mut found = checks.iter().filter(|check| check.id == id);
    let (Some(check), None) = (found.next(), found.next()) else {
        panic!("{id} is there once in {checks:?}")
    };
    let commands = check.fix.iter().map(String::as_str).filter(|line| !line.starts_with('#'));
    (check.severity, &check.value, commands.collect())
}

/// What is wrong on a machine as distributions set it up, and the command for each.
#[test]
#[expect(clippy::too_many_lines, reason = "one table")]
fn everything_wrong_with_a_server_is_found() {
    let machine = machine(&[XEON_ICE]);
    let found = checks(&machine, Some("ens1f0"));
    let expected: &[(&str, Severity, &str, &str)] = &[
        (
            "cpu-governor",
            Severity::Warning,
            "performance, powersave",
            "cpupower frequency-set -g performance",
        ),
        (
            "cpu-energy",
            Severity::Warning,
            "balance_performance",
            "x86_energy_perf_policy --all performance",
        ),
        (
            "cpu-smt",
            Severity::Warning,
            "on; CPUs of one core: 0,8, 1,9, 2,10, 3,11",
            "echo off > /sys/devices/system/cpu/smt/control",
        ),
        (
            "cpu-sleep",
            Severity::Warning,
            "deepest: C6, wakes up in 133 us",
            "cpupower idle-set -D 10",
        ),
        ("memory-balancing", Severity::Warning, "on", "sysctl -w kernel.numa_balancing=0"),
        (
            "memory-numa",
            Severity::Warning,
            "2 nodes; ens1f0 on node 1, nvme0n1 on node 0, nvme1n1 on node 1",
            "numactl --membind=1 raceline export --cores 4-7,12-15 ...",
        ),
        ("memory-files", Severity::Warning, "at most 1024", "ulimit -n 65536"),
        (
            "kernel-clock",
            Severity::Fail,
            "hpet",
            "echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource",
        ),
        (
            "net-congestion",
            Severity::Warning,
            "bbr",
            "sysctl -w net.ipv4.tcp_congestion_control=cubic",
        ),
        (
            "net-buffers-target",
            Severity::Warning,
            "receive up to 2048 KiB, send up to 4096 KiB; the ADQ papers use 32768 KiB",
            "sysctl -w net.ipv4.tcp_rmem='8192 1048576 33554432'",
        ),
        (
            "net-memory",
            Severity::Warning,
            "at most 1475 MiB of 193014 MiB",
            "sysctl -w net.ipv4.tcp_mem='6176448 9264672 12352896'",
        ),
        (
            "net-listen",
            Severity::Warning,
            "128 connections, 512 half open ones; 7 connections were refused since the start",
            "sysctl -w net.core.somaxconn=4096",
        ),
        (
            "net-backlog",
            Severity::Warning,
            "1000 packets; since the start 3 dropped, 11 turns ended early",
            "sysctl -w net.core.netdev_max_backlog=8192",
        ),
        (
            "net-firewall",
            Severity::Fail,
            "950 connections tracked of at most 1000",
            "iptables -t raw -A PREROUTING -p tcp --dport 4420 -j NOTRACK",
        ),
        ("nic-offloads", Severity::Warning, "off: tso", "ethtool -K ens1f0 tso on"),
        ("nic-lro", Severity::Warning, "on", "ethtool -K ens1f0 lro off"),
        (
            "nic-rings",
            Severity::Warning,
            "receive 512 of 8160, send 256 of 8160",
            "ethtool -G ens1f0 rx 1024",
        ),
        ("nic-queues", Severity::Warning, "8 of 16, for 16 CPUs", "ethtool -L ens1f0 combined 16"),
        (
            "nic-moderation",
            Severity::Warning,
            "receive 50 us, send 50 us, adaptive",
            "ethtool -C ens1f0 adaptive-rx off rx-usecs 0",
        ),
        (
            "nic-interrupts",
            Severity::Warning,
            "8 interrupts on CPUs 0, moved by irqbalance",
            "systemctl stop irqbalance",
        ),
        (
            "nic-adq-flags",
            Severity::Info,
            "hw-tc-offload off; private: channel-inline-flow-director off, channel-pkt-inspect-optimize on, fw-lldp-agent on, link-down-on-close off",
            "ethtool -K ens1f0 hw-tc-offload on",
        ),
        (
            "drives-scheduler",
            Severity::Warning,
            "nvme0n1 mq-deadline, nvme1n1 none",
            "echo none > /sys/block/nvme0n1/queue/scheduler",
        ),
        ("services-irqbalance", Severity::Warning, "runs", "systemctl stop irqbalance"),
    ];
    for (id, severity, value, command) in expected {
        let (found_severity, found_value, commands) = result(&found, id);
        assert_eq!((found_severity, found_value), (*severity, *value), "{id}");
        assert_eq!(commands.first(), Some(command), "{id}");
    }
    let (severity, value, _) = result(&found, "nic-pci");
    assert_eq!(severity, Severity::Warning);
    assert_eq!(value, "8.0 GT/s PCIe x16 of 16.0 GT/s PCIe x16");
    let (severity, value, _) = result(&found, "drives-links");
    assert_eq!(
        (severity, value),
        (Severity::Warning, "nvme0n1 8.0 GT/s PCIe x4 of 16.0 GT/s PCIe x4")
    );
    let (severity, value, _) = result(&found, "kernel-preemption");
    assert_eq!((severity, value), (Severity::Info, "voluntary, 1000 ticks/s"));
    let modules = result(&found, "kernel-modules").1;
    assert!(
        modules.starts_with(
            "loaded: ice, nvme; built in: nvme_core; can be loaded: nvme_tcp, sch_mqprio"
        ),
        "{modules}"
    );
    assert_eq!(result(&found, "nic-discipline").1, "mq, fq; 1 filters on what comes in");
    assert_eq!(result(&found, "cpu-throttles").0, Severity::Warning);
}

#[test]
fn the_worst_comes_first_and_roles_have_their_own_checks() {
    let machine = machine(&[XEON_ICE]);
    let environment = Environment::read_of(&machine.system, Some("ens1f0"));
    let all = check(&environment, None, None);
    // Areas are together, and the worst of each area is at its front.
    let mut areas = Vec::new();
    for check in &all {
        if areas.last().is_none_or(|(area, _)| *area != check.area) {
            areas.push((check.area, check.severity));
        }
    }
    let distinct: std::collections::BTreeSet<_> = areas.iter().map(|(area, _)| *area).collect();
    assert_eq!(areas.len(), distinct.len());
    assert!(areas.windows(2).all(|pair| pair[0].1 >= pair[1].1), "{areas:?}");
    let has =
        |role, id: &str| check(&environment, Some(role), None).iter().any(|check| check.id == id);
    assert!(has(Role::Target, "net-listen") && !has(Role::Host, "net-listen"));
    assert!(has(Role::Host, "net-buffers-host") && !has(Role::Target, "net-buffers-host"));
    assert!(has(Role::Target, "cpu-governor") && has(Role::Host, "cpu-governor"));
}

#[test]
fn what_a_guest_cannot_show_is_no_pass() {
    let machine = machine(&[VIRTIO_GUEST]);
    let found = checks(&machine, Some("eth0"));
    for id in ["cpu-governor", "cpu-energy", "cpu-turbo", "platform-firmware", "nic-pci"] {
        let (severity, value, _) = result(&found, id);
        assert_eq!(severity, Severity::Info, "{id}");
        assert!(value.starts_with("this system has no /sys/"), "{id}: {value}");
    }
    let (severity, value, commands) = result(&found, "cpu-halt-poll");
    assert_eq!((severity, value), (Severity::Warning, "0 ns (haltpoll)"));
    assert_eq!(commands, ["echo 200000 > /sys/module/haltpoll/parameters/guest_halt_poll_ns"]);
    assert_eq!(result(&found, "kernel-clock").0, Severity::Ok);
}

#[test]
fn a_container_without_sysfs_gets_what_procfs_tells() {
    let machine = machine(&[CONTAINER]);
    let found = checks(&machine, None);
    let (severity, value, _) = result(&found, "platform-quota");
    assert_eq!(severity, Severity::Fail);
    assert_eq!(value, "150000 100000 (quota and period in us), used up 3 times");
    let (severity, _, commands) = result(&found, "kernel-io-uring");
    assert_eq!(
        (severity, commands),
        (Severity::Fail, vec!["sysctl -w kernel.io_uring_disabled=0"])
    );
    assert_eq!(result(&found, "platform-kind").1, "no virtual machine, podman container");
    assert_eq!(result(&found, "nic").1, "no interface was asked for; there are: lo, eth0");
    // A process with CAP_IPC_LOCK is not limited; this one is.
    assert_eq!(result(&found, "memory-lock").0, Severity::Warning);
    let interface = Environment::read_of(&machine.system, Some("eth0")).interface;
    assert!(interface.value().is_some(), "{interface:?}");
}

#[test]
fn measured_costs_stand_beside_what_causes_them() {
    let machine = machine(&[XEON_ICE]);
    let environment = Environment::read_of(&machine.system, None);
    let costs = Costs {
        system_call_ns: 210.4,
        clock_ns: 1100.0,
        wake_up_us: 90.0,
        wake_up_p99_us: 141.0,
        busy_percent: Reading::Read(12.5),
        stolen_percent: Reading::Read(0.4),
    };
    let found = check(&environment, None, Some(&costs));
    let cost = |id: &str| {
        found.iter().find(|check| check.id == id).and_then(|check| check.cost.as_deref())
    };
    assert_eq!(cost("cpu-mitigations"), Some("a system call takes 210 ns"));
    assert_eq!(cost("kernel-clock"), Some("reading the clock takes 1100 ns"));
    assert_eq!(
        cost("cpu-sleep"),
        Some("waking a sleeping thread takes 90.0 us (median), 141.0 us (99 %)")
    );
    assert_eq!(result(&found, "platform-load").0, Severity::Fail);
    assert_eq!(result(&found, "platform-stolen").0, Severity::Ok);
}
