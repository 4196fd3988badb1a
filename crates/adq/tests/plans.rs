//! Plans as text for each kind of device and both roles, and what must hold in each.
#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::path::Path;

use raceline_adq::facts::{Facts, read};
use raceline_adq::plan::{Plan, Profile, Request, Role, State, Way, commands, plan, render};
use support::{Fake, facts};

const DEVICES: [&str; 7] =
    ["ice-out-of-tree", "ice-in-tree", "mlx5", "gve", "ena", "virtio", "veth"];

fn request(role: Role, profile: Profile) -> Request {
    let listeners = ["192.0.2.1:4420", "192.0.2.1:4421"].map(|text| text.parse().unwrap());
    Request { listeners: listeners.to_vec(), role, queues: None, profile }
}

fn lines(plan: &Plan, facts: &Facts) -> Vec<String> {
    plan.to_do().map(|(_, step)| commands(&step.setting, facts, &step.wanted)).collect()
}

/// Compares with the file, or writes it when RACELINE_BLESS is set.
fn golden(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/{name}.txt"));
    if std::env::var_os("RACELINE_BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let wanted = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, wanted, "{name}: if the new plan is right, run again with RACELINE_BLESS=1");
}

#[test]
fn plans_are_as_they_were_reviewed() {
    for device in DEVICES {
        let facts = facts(device);
        for (role, name) in [(Role::Target, "target"), (Role::Host, "host")] {
            let plan = plan(&facts, &request(role, Profile::Adq)).unwrap();
            golden(&format!("{device}-{name}"), &render(&plan, &facts));
        }
    }
    let facts = facts("ice-out-of-tree");
    for (role, name) in [(Role::Target, "target"), (Role::Host, "host")] {
        let plan = plan(&facts, &request(role, Profile::Paper)).unwrap();
        golden(&format!("paper-{name}"), &render(&plan, &facts));
    }
    let plan = plan(&facts, &request(Role::Target, Profile::Rss)).unwrap();
    golden("ice-out-of-tree-rss", &render(&plan, &facts));
}

/// The papers' tables of settings (NIC and ADQ; operating system), line by line.
#[test]
fn the_papers_recipe_is_in_the_plan() {
    let facts = facts("ice-out-of-tree");
    let mut request = request(Role::Target, Profile::Paper);
    request.listeners.truncate(1);
    let plan = plan(&facts, &request).unwrap();
    let found = lines(&plan, &facts);
    for wanted in [
        "systemctl stop irqbalance",
        "ethtool -K eth0 hw-tc-offload on",
        "tc qdisc add dev eth0 root mqprio num_tc 2 map 0 1 queues 2@0 8@2 hw 1 mode channel",
        "tc filter add dev eth0 ingress protocol ip prio 1 handle 0x1 flower dst_ip 192.0.2.1/32 ip_proto \
         tcp dst_port 4420 skip_sw hw_tc 1",
        "ethtool --set-priv-flags eth0 channel-pkt-inspect-optimize off",
        "devlink dev param set pci/0000:01:00.0 name tc1_inline_fd value true cmode runtime",
        "ethtool -C eth0 adaptive-rx off rx-usecs 0",
        "ethtool -C eth0 adaptive-tx off tx-usecs 500",
        "echo 4 > /sys/class/net/eth0/queues/tx-2/xps_rxqs",
        "sysctl -w net.core.busy_read=1",
        "sysctl -w net.core.netdev_max_backlog=8192",
        "sysctl -w net.ipv4.tcp_max_syn_backlog=16384",
        "sysctl -w net.core.rmem_max=268435456",
        "sysctl -w net.core.wmem_max=268435456",
        "sysctl -w net.ipv4.tcp_rmem=\"8192 1048576 33554432\"",
        "sysctl -w net.ipv4.tcp_wmem=\"8192 1048576 33554432\"",
        // A quarter of 64 GiB in pages, since the papers' 1 TiB is no limit at all.
        "sysctl -w net.ipv4.tcp_mem=\"4194304 4194304 4194304\"",
    ] {
        assert!(
            found.iter().any(|line| line == wanted),
            "{wanted}\nis not in\n{}",
            found.join("\n")
        );
    }
    request.role = Role::Host;
    let plan = raceline_adq::plan::plan(&facts, &request).unwrap();
    let found = lines(&plan, &facts);
    for wanted in [
        "tc filter add dev eth0 ingress protocol ip prio 1 handle 0x1 flower src_ip 192.0.2.1/32 ip_proto \
         tcp src_port 4420 skip_sw hw_tc 1",
        "sysctl -w net.core.rmem_max=16777216",
        "sysctl -w net.ipv4.tcp_rmem=\"8192 87380 16777216\"",
        "sysctl -w net.ipv4.tcp_wmem=\"8192 65536 16777216\"",
        "sysctl -w net.ipv4.tcp_mem=\"764688 1019584 4194304\"",
    ] {
        assert!(
            found.iter().any(|line| line == wanted),
            "{wanted}\nis not in\n{}",
            found.join("\n")
        );
    }
    let somaxconn = plan.steps.iter().find(|step| step.setting.to_string() == "net.core.somaxconn");
    assert_eq!(somaxconn.unwrap().state, State::Already);
}

/// Steps stand in the order that the driver needs.
#[test]
fn filters_come_after_classes_and_maps_after_both() {
    let facts = facts("ice-out-of-tree");
    let plan = plan(&facts, &request(Role::Target, Profile::Adq)).unwrap();
    let found = lines(&plan, &facts);
    let at = |text: &str| found.iter().position(|line| line.contains(text)).unwrap();
    let order = [
        "irqbalance",
        "fw-lldp-agent",
        "-L eth0",
        "modprobe",
        "hw-tc-offload",
        "mqprio num_tc",
        "clsact",
        " flower dst_ip",
        "smp_affinity_list",
        "xps_rxqs",
        "tc1_inline_fd",
        "rx-usecs",
    ];
    assert!(order.map(at).is_sorted(), "{found:#?}");
    let pause = plan.steps.iter().find(|step| step.pause_ms > 0).unwrap();
    assert_eq!(
        (pause.setting.to_string().as_str(), pause.pause_ms),
        ("root queueing discipline", 5000)
    );
}

#[test]
fn each_device_gets_the_best_that_it_has() {
    let ways = DEVICES
        .map(|device| plan(&facts(device), &request(Role::Target, Profile::Adq)).unwrap().way);
    assert_eq!(
        ways,
        [Way::Channels, Way::Channels, Way::Tables, Way::Rules, Way::Hash, Way::Hash, Way::Veth]
    );
}

/// Rules lead to single queues, so they are better than the hash only if there is one for each queue.
#[test]
fn the_kernels_ice_gets_rules_when_there_are_enough_listeners() {
    let facts = facts("ice-in-tree");
    for (queues, rules) in [(1, 2), (2, 2), (3, 0)] {
        let request = Request { queues: Some(queues), ..request(Role::Target, Profile::Adq) };
        let plan = plan(&facts, &request).unwrap();
        let found = lines(&plan, &facts);
        let count =
            found.iter().filter(|line| line.starts_with("ethtool -U eth0 flow-type")).count();
        assert_eq!(count, rules, "{queues} queues: {found:#?}");
    }
}

#[test]
fn kernels_that_can_suspend_a_queues_interrupts_are_told_how() {
    let says = |device: &str, kernel: &str| {
        let facts = Facts { kernel: kernel.to_owned(), ..facts(device) };
        let plan = plan(&facts, &request(Role::Target, Profile::Adq)).unwrap();
        plan.notes.iter().any(|note| note.contains("irq-suspend-timeout"))
    };
    for kernel in ["6.13.0", "6.18.44-1-amd64", "7.0-rc1"] {
        assert!(says("ice-in-tree", kernel) && says("virtio", kernel), "{kernel}");
        assert!(!says("veth", kernel), "{kernel}");
    }
    for kernel in ["6.12.0", "5.16", "", "next"] {
        assert!(!says("ice-in-tree", kernel), "{kernel}");
    }
}

#[test]
fn facts_are_read_back_as_they_are_printed() {
    for device in DEVICES {
        let facts = facts(device);
        let fake = Fake::new(facts.clone());
        assert_eq!(read::read(&fake, &facts.interface).unwrap(), facts, "{device}");
    }
}

#[test]
fn requests_that_cannot_be_met_say_why() {
    let facts = facts("mlx5");
    let refuse = |listeners: &[&str], queues: Option<u32>| {
        let listeners = listeners.iter().map(|text| text.parse().unwrap()).collect();
        let request = Request { listeners, queues, ..Request::default() };
        plan(&facts, &request).unwrap_err().to_string()
    };
    assert_eq!(
        refuse(&["0.0.0.0:4420"], None),
        "--listener 0.0.0.0:4420: a filter names one address: write the address that hosts connect to"
    );
    assert!(refuse(&["192.0.2.1:0"], None).contains("write the port"));
    assert!(refuse(&["192.0.2.1:1", "192.0.2.1:1"], None).contains("is there twice"));
    assert!(refuse(&[], Some(0)).contains("at least 1 queue"));
    assert_eq!(
        refuse(&[], Some(7)),
        "--queues 7: eth0 has at most 8 channels, of which 2 stay for other packets: ask for at most 6"
    );
}

#[test]
fn a_device_without_room_shares_its_queues() {
    let mut facts = facts("mlx5");
    let channels = facts.channels.as_mut().unwrap();
    (channels.combined, channels.combined_max) = (2, 2);
    let plan = plan(&facts, &request(Role::Target, Profile::Adq)).unwrap();
    assert_eq!((plan.way, plan.queues, plan.first_queue), (Way::Hash, 2, 0));
    assert!(plan.notes[0].contains("at most 2 channels"), "{:?}", plan.notes);
}

#[test]
fn names_that_no_interface_has_are_refused() {
    let fake = Fake::new(facts("veth"));
    for name in ["", "../eth0", "a b", "-x", "abcdefghijklmnop"] {
        let error = read::read(&fake, name).unwrap_err().to_string();
        assert!(error.contains("cannot be the name of an interface"), "{error}");
    }
    let error = read::read(&fake, "eth9").unwrap_err().to_string();
    assert!(error.contains("no interface eth9") && error.contains("lo, eth0"), "{error}");
}
