//! `thread_get_*` and `framework_get_reactors`: the cores, their threads and their work.

use std::time::Duration;

use raceline_reactor::LoopSnapshot;
use serde_json::{Value, json};

use crate::cores::mask_text;
use crate::error::RpcError;
use crate::manager::Manager;
use crate::manager::nvmf::Running;
use crate::method::{Call, Registry, States};
use crate::params::NoParams;

/// Times are given in nanoseconds.
const TICK_RATE: u64 = 1_000_000_000;

pub(super) fn register(registry: &mut Registry) {
    registry.read("framework_get_reactors", States::Runtime, reactors);
    registry.read("framework_get_governor", States::Runtime, get_governor);
    registry.read("thread_get_stats", States::Runtime, stats);
    registry.read("raceline_get_loop_times", States::Runtime, loop_times);
    registry.read("thread_get_pollers", States::Runtime, pollers);
    registry.read("thread_get_io_channels", States::Runtime, io_channels);
}

/// A thread that serves connections on a core of its own.
pub(super) struct Thread {
    pub(super) name: String,
    pub(super) id: usize,
    /// The CPU that it is bound to.
    pub(super) cpu: Option<usize>,
    core: usize,
    mask: String,
    counts: LoopSnapshot,
    channels: Vec<String>,
}

impl Thread {
    /// The CPU that it runs on, or its number if it is not bound.
    pub(super) fn core(&self) -> usize {
        self.core
    }

    /// What its loop has done.
    pub(super) fn counts(&self) -> &LoopSnapshot {
        &self.counts
    }
}

/// The threads of all targets; a target that nothing is reached by has none yet.
pub(super) fn threads(manager: &Manager) -> Vec<Thread> {
    let mut served: Vec<(String, Running, Vec<String>)> = Vec::new();
    for (name, target) in &manager.model().nvmf.targets {
        let Some(running) = &target.running else { continue };
        let devices = target.subsystems.values().flat_map(|s| s.namespaces.values());
        let shown = devices.filter(|ns| ns.missing.is_none());
        let channels = shown.map(|ns| ns.bdev_name.clone()).collect();
        served.push((name.clone(), running.clone(), channels));
    }
    let mut threads = Vec::new();
    for (name, running, channels) in served {
        for (index, counts) in running.target.stats().loops.into_iter().enumerate() {
            let cpu = running.cpus.get(index).copied();
            threads.push(Thread {
                name: format!("{name}_poll_group_{index:03}"),
                id: threads.len() + 1,
                cpu,
                core: cpu.unwrap_or(index),
                mask: cpu.map_or_else(|| "ffffffff".to_owned(), |cpu| mask_text(&[cpu])),
                counts,
                channels: channels.clone(),
            });
        }
    }
    threads
}

fn ticks(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Time since the start of the manager in which the thread was idle.
fn idle(manager: &Manager, counts: &LoopSnapshot) -> u64 {
    ticks(manager.began().elapsed().saturating_sub(counts.busy))
}

fn reactors(call: &Call<'_>, _params: NoParams) -> Result<Value, RpcError> {
    let describe = |thread: Thread| {
        json!({
            "lcore": thread.core,
            "busy": ticks(thread.counts.busy),
            "idle": idle(call.manager, &thread.counts),
            "lw_threads": [{
                "name": thread.name,
                "id": thread.id,
                "cpumask": thread.mask,
                "elapsed": ticks(call.manager.began().elapsed()),
            }],
        })
    };
    let reactors: Vec<Value> = threads(call.manager).into_iter().map(describe).collect();
    Ok(json!({ "tick_rate": TICK_RATE, "pid": std::process::id(), "reactors": reactors }))
}

fn stats(call: &Call<'_>, _params: NoParams) -> Result<Value, RpcError> {
    let describe = |thread: Thread| {
        json!({
            "name": thread.name,
            "id": thread.id,
            "cpumask": thread.mask,
            "busy": ticks(thread.counts.busy),
            "idle": idle(call.manager, &thread.counts),
            "active_pollers_count": 1,
            "timed_pollers_count": 0,
            "paused_pollers_count": 0,
        })
    };
    let threads: Vec<Value> = threads(call.manager).into_iter().map(describe).collect();
    Ok(json!({ "tick_rate": TICK_RATE, "threads": threads }))
}

/// How long the turns of each core take: a core serves nothing else while a turn goes on.
fn loop_times(call: &Call<'_>, _params: NoParams) -> Result<Vec<Value>, RpcError> {
    let describe = |thread: Thread| {
        let counts = &thread.counts;
        let bucket = |(power, count): (usize, &u64)| {
            (*count > 0).then(|| json!({ "below_ns": 1_u64 << (power + 1), "count": count }))
        };
        let histogram: Vec<Value> = counts.buckets.iter().enumerate().filter_map(bucket).collect();
        json!({
            "name": thread.name,
            "id": thread.id,
            "cpu": thread.cpu,
            "turns": counts.turns,
            "busy_turns": counts.busy_turns,
            "busy_ns": ticks(counts.busy),
            "longest_ns": ticks(counts.longest),
            "histogram": histogram,
        })
    };
    Ok(threads(call.manager).into_iter().map(describe).collect())
}

/// A core has one loop, which counts as its one poller.
fn pollers(call: &Call<'_>, _params: NoParams) -> Result<Value, RpcError> {
    let describe = |thread: Thread| {
        json!({
            "name": thread.name,
            "id": thread.id,
            "active_pollers": [{
                "name": "loop",
                "id": 1,
                "state": "waiting",
                "run_count": thread.counts.turns,
                "busy_count": thread.counts.busy_turns,
            }],
            "timed_pollers": [],
            "paused_pollers": [],
        })
    };
    let threads: Vec<Value> = threads(call.manager).into_iter().map(describe).collect();
    Ok(json!({ "tick_rate": TICK_RATE, "threads": threads }))
}

/// Every core has a channel to the device of every namespace.
fn io_channels(call: &Call<'_>, _params: NoParams) -> Result<Value, RpcError> {
    let describe = |thread: Thread| {
        let channels = thread.channels.iter();
        let channels: Vec<Value> =
            channels.map(|name| json!({ "name": format!("bdev_{name}"), "ref": 1 })).collect();
        json!({ "name": thread.name, "io_channels": channels })
    };
    let threads: Vec<Value> = threads(call.manager).into_iter().map(describe).collect();
    Ok(json!({ "tick_rate": TICK_RATE, "threads": threads }))
}

/// The kernel controls the frequency of cores.
fn get_governor(_call: &Call<'_>, _params: NoParams) -> Result<Value, RpcError> {
    Ok(json!({}))
}
