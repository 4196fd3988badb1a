//! How packets come to the application's queues: traffic classes, tables, rules, or maps of a veth pair.

use super::{GENERAL_QUEUES, Planner, Profile, Role, Way};
use crate::setting::{ABSENT, Flow, Goal, IN_HARDWARE, PRESENT, Setting};

/// How long Intel's driver needs after traffic classes until it takes every filter.
const SETTLE_MS: u64 = 5_000;
/// The names of the flag that makes the driver guess whether a queue will be polled again.
const INSPECT: [&str; 2] = ["channel-pkt-inspect-optimize", "channel-packet-inspect-optimize"];

/// What leads packets to the set of queues.
pub(super) fn steer(planner: &mut Planner<'_>) {
    match planner.way {
        Way::Channels => classes(planner),
        Way::Tables => tables(planner),
        Way::Rules => rules(planner),
        Way::Veth => veth(planner),
        Way::Hash => hash(planner),
    }
    if planner.flows().is_empty() && !matches!(planner.way, Way::Veth | Way::Hash) {
        planner
            .note("without --listener no packet is led to the queues: name each address and port");
    }
}

fn classes(planner: &mut Planner<'_>) {
    let (first, queues) = (planner.first, planner.queues);
    for module in ["sch_mqprio", "cls_flower"] {
        let why = "traffic classes and filters are made with it";
        planner.push(Setting::Module(module.to_owned()), "loaded", why);
    }
    let why = "the device carries out filters only then; it cannot be changed while classes exist";
    planner.push(Setting::Feature("hw-tc-offload".to_owned()), "on", why);
    let shape = format!(
        "mqprio num_tc 2 map 0 1 queues {GENERAL_QUEUES}@0 {queues}@{first} hw 1 mode channel"
    );
    planner.push(
        Setting::RootQdisc,
        shape,
        "two traffic classes: 0 with the queues of everything else, 1 with the application's; sockets \
         with priority 1 send through class 1",
    );
    if let Some(step) = planner.steps.last_mut() {
        step.pause_ms = SETTLE_MS;
    }
    planner.push(Setting::Clsact, PRESENT, "filters of received packets hang there");
    for (handle, flow) in (1..).zip(planner.flows()) {
        planner.push(
            Setting::Flower { flow, class: 1, handle },
            IN_HARDWARE,
            "the device itself puts these packets into the queues of class 1",
        );
    }
}

/// The queue within the set, and the flags of Intel's driver.
pub(super) fn within(planner: &mut Planner<'_>) {
    if planner.way != Way::Channels {
        return;
    }
    let inline = "tc1_inline_fd";
    let many = usize::try_from(planner.queues).unwrap_or(usize::MAX);
    let why = "the device gives connections to the queues of class 1 in turn, and learns from what is sent";
    if planner.facts.devlink.contains_key(inline) {
        if planner.facts.features.get("ntuple-filters").is_some_and(|feature| feature.on) {
            let why = "it excludes the flow director of traffic classes";
            planner.push(Setting::Feature("ntuple-filters".to_owned()), "off", why);
        }
        planner.push(Setting::Devlink(inline.to_owned()), "true", why);
    } else if planner.facts.private_flags.contains_key("channel-inline-flow-director") {
        let flag = Setting::PrivateFlag("channel-inline-flow-director".to_owned());
        planner.push(flag, "on", why);
    } else if planner.flows().len() >= many && planner.facts.can("ntuple-filters") {
        // With fewer rules than queues, the hash uses more queues than the rules would.
        ntuple(planner);
        one_queue_each(planner);
    } else {
        planner.note(
            "this driver has no flow director for traffic classes: within the application's queues, \
             connections are spread by hash",
        );
    }
    let flag = INSPECT.iter().find(|name| planner.facts.private_flags.contains_key(**name));
    let why = "a queue whose poller never sleeps needs no guess whether it will be polled again";
    match flag {
        Some(name) => planner.push(Setting::PrivateFlag((*name).to_owned()), "off", why),
        None => planner.skip(
            Setting::PrivateFlag(INSPECT[0].to_owned()),
            "off",
            why,
            "only Intel's own driver has this flag, and not the kernel's",
        ),
    }
}

fn ntuple(planner: &mut Planner<'_>) {
    let why = "rules can be made only then";
    planner.push(Setting::Feature("ntuple-filters".to_owned()), "on", why);
}

/// Keeps other packets away from the application's queues.
fn keep_apart(planner: &mut Planner<'_>) {
    let wanted = format!("equal {GENERAL_QUEUES}");
    let why = "packets that no rule takes stay on the first queues";
    match Setting::Table.value_in(planner.facts) {
        // Only an even table can be given back by a command.
        Some(current) if !current.starts_with("equal ") => planner.skip(
            Setting::Table,
            wanted,
            why,
            "the table was chosen by hand, and could not be given back: `ethtool -X IFACE default` first",
        ),
        _ => planner.push(Setting::Table, wanted, why),
    }
}

fn tables(planner: &mut Planner<'_>) {
    let (first, count) = (planner.first, planner.queues);
    keep_apart(planner);
    let why =
        "a table over the application's queues: connections spread over these, and only these";
    planner.push(Setting::Context { first, count }, PRESENT, why);
    ntuple(planner);
    for flow in planner.flows() {
        let why = "these packets go by that table";
        lead(planner, flow, Goal::Table { first, count }, why);
    }
    if planner.request.profile != Profile::Rss {
        lacks(planner, "traffic classes with filters");
    }
}

fn rules(planner: &mut Planner<'_>) {
    keep_apart(planner);
    ntuple(planner);
    one_queue_each(planner);
    if planner.flows().len() < usize::try_from(planner.queues).unwrap_or(usize::MAX) {
        planner.note(format!(
            "a rule leads a listener's packets to one queue: with {} listeners, {} of the {} queues are \
             used. Listen on more ports to use all",
            planner.flows().len(),
            planner.flows().len(),
            planner.queues
        ));
    }
    lacks(planner, "traffic classes with filters, and tables of queues");
}

fn one_queue_each(planner: &mut Planner<'_>) {
    for (flow, queue) in planner.flows().into_iter().zip(planner.range().cycle()) {
        lead(
            planner,
            flow,
            Goal::Queue(queue),
            "these packets go to one of the application's queues",
        );
    }
}

fn lead(planner: &mut Planner<'_>, flow: Flow, goal: Goal, why: &str) {
    let setting = Setting::Rule { flow, goal };
    match setting.value_in(planner.facts) {
        Some(current) if current != ABSENT && current != PRESENT => {
            let reason = format!("{current}: delete that rule first");
            planner.skip(setting, PRESENT, why, &reason);
        }
        // Some drivers list rules only once they may have some.
        None if planner.facts.can("ntuple-filters") => {
            planner.push(setting, PRESENT, why);
            if let Some(step) = planner.steps.last_mut() {
                step.state = super::State::Do;
                step.current = Some(ABSENT.to_owned());
            }
        }
        _ => planner.push(setting, PRESENT, why),
    }
}

fn veth(planner: &mut Planner<'_>) {
    let why = "a receive queue of a veth is polled (has a NAPI instance) only then";
    planner.push(Setting::Feature("generic-receive-offload".to_owned()), "on", why);
    let why = "the peer polls its receive queues only for packets that were not put together here";
    for feature in ["tx-tcp-segmentation", "tx-tcp6-segmentation"] {
        planner.push(Setting::Feature(feature.to_owned()), "off", why);
    }
    planner.note(
        "send queue Q of a veth is receive queue Q of its peer: what the peer receives is chosen by the \
         maps of this side, so both sides need their plan. These are sets of queues and not ADQ: there is \
         no interrupt, no moderation and no filter in a device",
    );
}

fn hash(planner: &mut Planner<'_>) {
    lacks(planner, "rules that choose queues");
    planner.note(match planner.request.role {
        Role::Target => {
            "connections come to queues by the hash of their addresses; placement by queue follows it \
             (--placement napi)"
        }
        Role::Host => {
            "connections come to queues by the hash of their addresses; `raceline perf --placement napi` \
             tries source ports until each core has its own queue"
        }
    });
}

fn lacks(planner: &mut Planner<'_>, what: &str) {
    let driver = &planner.facts.driver;
    let driver = if driver.is_empty() { "this device" } else { driver.as_str() };
    let text = format!("{driver} has no {what}: this plan is what comes close to ADQ");
    planner.note(text);
}
