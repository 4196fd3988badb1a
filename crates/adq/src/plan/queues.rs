//! Which queues the application gets, their number, CPUs, maps and moderation.

use super::{GENERAL_QUEUES, Planner, Profile, QUEUES_DEFAULT_MAX, QUEUES_MAX, Request, Step, Way};
use crate::error::{Error, Result};
use crate::facts::Facts;
use crate::setting::{Setting, bit, moderation_text};

/// Drivers that can have further tables.
const WITH_TABLES: [&str; 4] = ["mlx5_core", "sfc", "bnxt_en", "ice"];

/// The best way that a device has.
fn best(facts: &Facts, profile: Profile) -> Way {
    let channels = ["ice", "i40e"].contains(&facts.driver.as_str()) && facts.can("hw-tc-offload");
    if channels && profile != Profile::Rss {
        return Way::Channels;
    }
    if facts.driver == "veth" {
        return Way::Veth;
    }
    match (facts.can("ntuple-filters"), WITH_TABLES.contains(&facts.driver.as_str())) {
        (true, true) => Way::Tables,
        (true, false) => Way::Rules,
        (false, _) => Way::Hash,
    }
}

/// The way, the first queue and the number of queues, and the excuse if it is not the device's best way.
pub(super) fn choose(facts: &Facts, request: &Request) -> Result<(Way, u32, u32, Option<String>)> {
    let best = best(facts, request.profile);
    let most = facts.queues_max().min(QUEUES_MAX);
    let splits = matches!(best, Way::Channels | Way::Tables | Way::Rules);
    let (way, general, excuse) = if splits && most <= GENERAL_QUEUES {
        let excuse = format!(
            "{} has at most {most} channels, and {} are needed to keep other packets apart: all \
             packets share them",
            facts.interface,
            GENERAL_QUEUES + 1
        );
        (Way::Hash, 0, Some(excuse))
    } else if splits {
        (best, GENERAL_QUEUES, None)
    } else {
        (best, 0, None)
    };
    let room = most - general;
    let cpus = u32::try_from(facts.cpus.len()).unwrap_or(u32::MAX).max(1);
    let queues = match request.queues {
        Some(queues) if queues > room => {
            let kept = if general > 0 {
                format!(", of which {general} stay for other packets")
            } else {
                String::new()
            };
            return Err(Error::Request(format!(
                "--queues {queues}: {} has at most {most} channels{kept}: ask for at most {room}",
                facts.interface
            )));
        }
        Some(queues) => queues,
        None => cpus.min(room).min(QUEUES_DEFAULT_MAX),
    };
    Ok((way, general, queues, excuse))
}

/// The CPU of each queue: the device's own, and the first of them only if the others do not suffice.
pub(super) fn cpus(facts: &Facts, queues: u32) -> Vec<u32> {
    let wanted = usize::try_from(queues).unwrap_or(usize::MAX);
    let near: &[u32] = if facts.cpus.is_empty() { &[0] } else { &facts.cpus };
    let near = if near.len() > wanted { &near[1..] } else { near };
    near.iter().copied().cycle().take(wanted).collect()
}

/// As many channels as there must be.
pub(super) fn channels(planner: &mut Planner<'_>) {
    let Some(channels) = planner.facts.channels else { return };
    let needed = planner.first + planner.queues;
    let now = planner.facts.queues();
    if planner.way == Way::Veth {
        return;
    }
    let wanted = if channels.combined_max > 0 {
        format!("combined {}", now.max(needed))
    } else {
        format!("rx {} tx {}", channels.rx.max(needed), channels.tx.max(needed))
    };
    let why = "the device needs a channel for each queue; later it would break traffic classes";
    planner.push(Setting::Channels, wanted, why);
}

/// Each queue to its own CPU, and answers through the queue that the question came by.
pub(super) fn own(planner: &mut Planner<'_>) {
    let pairs: Vec<(u32, u32)> = planner.range().zip(planner.cpus.clone()).collect();
    let has_interrupts = !planner.facts.interrupts.is_empty();
    for (queue, cpu) in pairs.iter().filter(|_| has_interrupts) {
        for sends_only in [false, true] {
            let setting = Setting::Affinity { queue: *queue, sends_only };
            // Most devices have one interrupt for both directions.
            let separate = planner.facts.interrupts.iter().any(|irq| irq.sends_only);
            if !sends_only || separate {
                let why = "the core that serves the queue takes its interrupts, and no other core";
                planner.push(setting, cpu.to_string(), why);
            }
        }
    }
    if !has_interrupts && planner.way != Way::Veth {
        planner
            .note("the interrupts of the queues are not known here, so they stay where they are");
    }
    let why = if planner.way == Way::Veth {
        "what came by a queue is answered by the same queue, which is the peer's receive queue"
    } else {
        "what came by a queue is answered by the same queue"
    };
    for (queue, _) in pairs {
        planner.push(Setting::XpsRxqs(queue), bit(queue), why);
    }
}

/// No waiting before a received packet is announced: a polled queue does not interrupt anyway.
pub(super) fn moderation(planner: &mut Planner<'_>) {
    let Some(all) = planner.facts.coalescing else { return };
    let off = |adaptive: Option<bool>| adaptive.map(|_| false);
    let receive = moderation_text("rx", off(all.adaptive_rx), all.rx_usecs.map(|_| 0));
    if let Some(wanted) = receive {
        let why =
            "a received packet is announced at once; a queue that is polled raises no interrupt";
        planner.push(Setting::Moderation { receives: true }, wanted, why);
    }
    let send = moderation_text("tx", off(all.adaptive_tx), all.tx_usecs.map(|_| 500));
    let why = "sent packets are cleaned up together with received ones, and rarely on their own";
    match send {
        Some(wanted) if planner.way == Way::Hash => planner.skip(
            Setting::Moderation { receives: false },
            wanted,
            why,
            "all packets of the machine share these queues, and other programs wait for the clean-up",
        ),
        Some(wanted) => planner.push(Setting::Moderation { receives: false }, wanted, why),
        None => {}
    }
}

/// Everything that is cleared when the driver builds its queues anew, and that is no step.
pub(super) fn watched(planner: &Planner<'_>) -> Vec<Setting> {
    if !planner.rebuilds_queues() {
        return Vec::new();
    }
    let facts = planner.facts;
    let interrupts = facts
        .interrupts
        .iter()
        .map(|irq| Setting::Affinity { queue: irq.queue, sends_only: irq.sends_only });
    let maps = (0..u32::try_from(facts.xps_rxqs.len()).unwrap_or(u32::MAX)).map(Setting::XpsRxqs);
    let moderation = [true, false].map(|receives| Setting::Moderation { receives });
    let is_step = |setting: &Setting| {
        planner.steps.iter().any(|Step { setting: other, .. }| other == setting)
    };
    let all = interrupts.chain(maps).chain(moderation);
    all.filter(|setting| !is_step(setting) && setting.value_in(facts).is_some()).collect()
}
