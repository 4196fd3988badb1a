//! A plan as text, with the commands that an operator would type.

use super::{Plan, Profile, Role, State, Step, Way};
use crate::facts::Facts;
use crate::setting::{ABSENT, Setting, Use};

/// The command lines that lead to a value, joined to one.
pub fn commands(setting: &Setting, facts: &Facts, to: &str) -> String {
    match setting.changes(facts, to, Use::Print) {
        Ok(changes) => changes.iter().map(|change| change.line()).collect::<Vec<_>>().join(" && "),
        // The interrupt of a queue that is not there yet has no number.
        Err(_) => format!("echo {to} > /proc/irq/NUMBER/smp_affinity_list"),
    }
}

/// How a step is taken back.
fn undo(step: &Step, facts: &Facts) -> String {
    match &step.current {
        None if step.setting.queue().is_some() => "the queue goes when its channel goes".to_owned(),
        before => commands(&step.setting, facts, before.as_deref().unwrap_or(ABSENT)),
    }
}

/// The plan for people.
pub fn render(plan: &Plan, facts: &Facts) -> String {
    let mut out = heading(plan, facts);
    for (number, step) in (1..).zip(&plan.steps) {
        out.push('\n');
        let current = step.current.as_deref().unwrap_or("not there");
        let command = commands(&step.setting, facts, &step.wanted);
        match &step.state {
            State::Skipped(reason) => {
                out.push_str(&format!("{number:3}. skipped: {}\n", step.setting));
                out.push_str(&format!("     because {reason}\n"));
            }
            State::Already => {
                out.push_str(&format!(
                    "{number:3}. nothing to do: {} is {current}\n",
                    step.setting
                ));
            }
            State::Do => {
                out.push_str(&format!("{number:3}. {command}\n"));
                out.push_str(&format!(
                    "     {}: now {current}, then {}\n",
                    step.setting, step.wanted
                ));
                out.push_str(&format!("     undo: {}\n", undo(step, facts)));
                if step.pause_ms > 0 {
                    out.push_str(&format!("     and wait {} s\n", step.pause_ms / 1000));
                }
            }
        }
        out.push_str(&format!("     why: {}\n", step.why));
    }
    if !plan.watched.is_empty() {
        let count = plan.watched.len();
        out.push_str(&format!(
            "\n{count} further settings of queues are cleared by these steps, and are given back too.\n"
        ));
    }
    out.push('\n');
    for note in &plan.notes {
        out.push_str(&format!("- {note}\n"));
    }
    out
}

fn heading(plan: &Plan, facts: &Facts) -> String {
    let role = match plan.request.role {
        Role::Target => "target",
        Role::Host => "host",
    };
    let profile = match plan.request.profile {
        Profile::Adq => "adq",
        Profile::Rss => "rss",
        Profile::Paper => "paper",
    };
    let way = match plan.way {
        Way::Channels => "traffic classes of the device (ADQ)",
        Way::Tables => "a table of queues and rules (not ADQ)",
        Way::Rules => "rules to single queues (not ADQ)",
        Way::Veth => "sets of queues of a veth pair (not ADQ)",
        Way::Hash => "the hash over all queues (not ADQ)",
    };
    let driver = if plan.driver.is_empty() { "unknown driver" } else { &plan.driver };
    let version = match facts.driver_version.as_str() {
        "" => String::new(),
        version => format!(" {version}"),
    };
    let origin = match facts.driver_in_tree {
        Some(true) => ", of the kernel",
        Some(false) => ", not of the kernel",
        None => "",
    };
    let last = plan.first_queue + plan.queues - 1;
    let cpus: Vec<String> = plan.cpus.iter().map(u32::to_string).collect();
    format!(
        "{} ({driver}{version}{origin}), {role}, profile {profile}\nby {way}\nqueues {}-{last} on CPUs {}\n",
        plan.interface,
        plan.first_queue,
        cpus.join(",")
    )
}
